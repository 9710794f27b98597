/* The point-to-point form of a redistribution.
 *
 * A layout cuts each tensor dimension into pieces, so its boxes form a grid of cells. A mesh index
 * is a cell, a replica number (its coordinates on Replicate dimensions) and a part number (on
 * Partial dimensions). The cells of the destination are walked, and for each the source cells that
 * overlap; all elements of an overlap have the same holders and the same receivers. Grouped shards
 * overlap in several boxes (regions), one after the other.
 *
 * Copies: a local holder, else the nearest; ties in turn by (cell, receiver). Holders that would
 * idle share one box. If no holder is on the receivers' host, each receiver takes a piece over the
 * slow link and passes it on (wave 1), so each byte enters a host once. Reductions: receivers that
 * hold a part own a piece each, combine the parts in part order, and copy it to the others (wave
 * 1); small ones go to everyone at once. The rule looks at the region and the receiver only, so a
 * device lists its own transfers without the rest. */
#include <string.h>

#include "shard/redistribute.h"

#define VDEV_INDEX_MAX 65536u

typedef struct grid {
    const dt_layout_t *layout;
    const dt_shard_mesh_t *mesh;
    unsigned ndim; /* of the tensor */
    const int64_t *sizes;
    uint32_t pieces[DT_META_DIM_MAX]; /* cells along each tensor dimension */
    uint8_t axis_count[DT_META_DIM_MAX];
    uint8_t axes[DT_META_DIM_MAX][DT_RECORD_MESH_DIM_MAX]; /* mesh dimensions that cut it */
    uint32_t strides[DT_RECORD_MESH_DIM_MAX];
    uint32_t replica_count, part_count;
    uint32_t *replica_at, *part_at; /* what replica r, part p adds to a place in the mesh */
    uint32_t *cell_of, *part_of;    /* (mesh->count) */
    uint32_t *base_of;              /* (cells) the first place of a cell */
    uint32_t *place_of; /* (place_count) by vdev: its place + 1, 0: none; NULL: search */
    uint64_t place_count;
    uint8_t reduction; /* SUM, MAX, MIN */
} grid_t;

/* A dense box in global coordinates. */
typedef struct box {
    int64_t lo[DT_META_DIM_MAX], hi[DT_META_DIM_MAX];
} box_t;

typedef struct lister {
    const dt_shard_topology_t *topology;
    unsigned ndim;
    int64_t item_bytes;
    grid_t from, to;
    uint64_t only;       /* device, or DT_SHARD_ALL */
    uint32_t cell, base; /* the source cell, and its first place in from.mesh */
    uint32_t turn;       /* spreads ties; the same at sender and receiver */
    box_t region;
    uint64_t *receivers, *owners, *near; /* devices; (most) each */
    uint32_t *next;                      /* (most) chains of receivers on one host */
    dt_arena_t *arena;
    dt_shard_transfer_t *transfers;
    uint32_t count, capacity;
    dt_shard_list_t list;
    bool has_failed;
} lister_t;

/* ---- places of devices ---- */

static uint32_t host_of(const lister_t *l, uint64_t vdev)
{
    return l->topology->hosts && vdev < l->topology->vdev_count ? l->topology->hosts[vdev] : 0;
}

dt_shard_link_t dt_shard_link_between(const dt_shard_topology_t *t, uint64_t a, uint64_t b)
{
    uint64_t n = t->vdev_count;
    if (a == b)
        return DT_SHARD_LINK_SELF;
    if (!t->hosts || a >= n || b >= n || t->hosts[a] == t->hosts[b])
        return DT_SHARD_LINK_HOST;
    return !t->racks || t->racks[a] == t->racks[b] ? DT_SHARD_LINK_RACK : DT_SHARD_LINK_FAR;
}

/* ---- cells ---- */

static void cell_coords(const grid_t *g, uint32_t index, uint32_t *ret_at, uint32_t *ret_part)
{
    memset(ret_at, 0, g->ndim * sizeof *ret_at);
    uint32_t coords[DT_RECORD_MESH_DIM_MAX] = {0};
    *ret_part = 0;
    dt_shard_mesh_coords(g->mesh, index, coords);
    for (unsigned j = 0; j < g->mesh->ndim; j++) {
        dt_placement_t p = g->layout->placements[j];
        uint32_t coord = coords[j];
        if (p.kind == DT_PLACEMENT_SHARD)
            ret_at[p.dim] = ret_at[p.dim] * g->mesh->sizes[j] + coord;
        else if (p.kind == DT_PLACEMENT_PARTIAL)
            *ret_part = *ret_part * g->mesh->sizes[j] + coord;
    }
}

static uint32_t cell_number(const grid_t *g, const uint32_t *at)
{
    uint32_t n = 0;
    for (unsigned d = 0; d < g->ndim; d++)
        n = n * g->pieces[d] + at[d];
    return n;
}

/* Offsets of all coordinates on the mesh dimensions of one kind. Returns how many. */
static uint32_t offsets(const grid_t *g, dt_placement_kind_t kind, uint32_t *ret_at)
{
    uint32_t n = 1;
    ret_at[0] = 0;
    for (unsigned j = 0; j < g->mesh->ndim; j++) {
        uint32_t size = g->layout->placements[j].kind == kind ? g->mesh->sizes[j] : 1;
        for (uint32_t i = n * size; i-- > 0;)
            ret_at[i] = ret_at[i / size] + i % size * g->strides[j];
        n *= size;
    }
    return n;
}

/* Where a device stands; -1: it does not. */
static int64_t place_of(const grid_t *g, uint64_t vdev)
{
    if (!g->place_of)
        return dt_shard_mesh_find(g->mesh, vdev);
    return vdev < g->place_count ? (int64_t)g->place_of[vdev] - 1 : -1;
}

/* False: no memory. Numbers of vdevs are small; where they are not, places are searched for. */
static bool index_places(grid_t *g, dt_arena_t *arena)
{
    for (uint32_t i = 0; i < g->mesh->count; i++)
        g->place_count =
            g->mesh->vdevs[i] >= g->place_count ? g->mesh->vdevs[i] + 1 : g->place_count;
    if (g->place_count > VDEV_INDEX_MAX)
        return true;
    g->place_of = dt_arena_calloc(arena, g->place_count, sizeof *g->place_of);
    for (uint32_t i = 0; g->place_of && i < g->mesh->count; i++)
        g->place_of[g->mesh->vdevs[i]] = i + 1;
    return g->place_of != NULL;
}

static bool grid_init(grid_t *g, const dt_shard_mesh_t *mesh, const dt_layout_t *layout,
                      const dt_meta_t *meta, dt_arena_t *arena)
{
    uint32_t stride = mesh->count, at[DT_META_DIM_MAX];
    uint32_t *memory = dt_arena_calloc(arena, (size_t)mesh->count * 5, sizeof *memory);
    if (!memory)
        return false;
    *g = (grid_t){.layout = layout,
                  .mesh = mesh,
                  .ndim = meta->ndim,
                  .sizes = meta->sizes,
                  .replica_at = memory,
                  .part_at = memory + mesh->count,
                  .cell_of = memory + (size_t)2 * mesh->count,
                  .part_of = memory + (size_t)3 * mesh->count,
                  .base_of = memory + (size_t)4 * mesh->count};
    for (unsigned d = 0; d < g->ndim; d++)
        g->pieces[d] = 1;
    for (unsigned j = 0; j < mesh->ndim; j++) {
        dt_placement_t p = layout->placements[j];
        g->strides[j] = stride /= mesh->sizes[j];
        if (p.kind == DT_PLACEMENT_SHARD) {
            g->axes[p.dim][g->axis_count[p.dim]++] = (uint8_t)j;
            g->pieces[p.dim] *= mesh->sizes[j];
        } else if (p.kind == DT_PLACEMENT_PARTIAL) {
            g->reduction =
                p.reduction == DT_REDUCTION_AVG ? (uint8_t)DT_REDUCTION_SUM : p.reduction;
        }
    }
    g->replica_count = offsets(g, DT_PLACEMENT_REPLICATE, g->replica_at);
    g->part_count = offsets(g, DT_PLACEMENT_PARTIAL, g->part_at);
    for (uint32_t i = mesh->count; i-- > 0;) {
        cell_coords(g, i, at, &g->part_of[i]);
        g->cell_of[i] = cell_number(g, at);
        g->base_of[g->cell_of[i]] = i;
    }
    return index_places(g, arena);
}

static bool box_of(const grid_t *g, uint32_t index, dt_shard_box_t *ret_box)
{
    return dt_shard_box(g->layout, g->mesh, g->ndim, g->sizes, index, ret_box);
}

/* ---- transfers of one region ---- */

static int64_t box_bytes(const lister_t *l, const box_t *box)
{
    int64_t bytes = l->item_bytes;
    for (unsigned d = 0; d < l->ndim; d++)
        bytes *= box->hi[d] - box->lo[d];
    return bytes;
}

/* Piece i of n, cut along the first dimension that has n entries, else the longest. False: empty.
 */
static bool box_piece(const lister_t *l, const box_t *box, uint32_t n, uint32_t i, box_t *ret_piece)
{
    unsigned cut = 0;
    *ret_piece = *box;
    if (l->ndim == 0)
        return i == 0;
    for (unsigned d = l->ndim - 1; d > 0; d--)
        if (box->hi[d] - box->lo[d] > box->hi[cut] - box->lo[cut])
            cut = d;
    for (unsigned d = l->ndim; d-- > 0;)
        if (box->hi[d] - box->lo[d] >= n)
            cut = d;
    int64_t len = box->hi[cut] - box->lo[cut];
    ret_piece->lo[cut] = box->lo[cut] + len * i / n;
    ret_piece->hi[cut] = box->lo[cut] + len * (i + 1) / n;
    return ret_piece->lo[cut] < ret_piece->hi[cut];
}

typedef struct move {
    uint64_t from, to;
    uint32_t part;
    uint8_t wave;
    bool is_reduce;
} move_t;

static bool grow(lister_t *l)
{
    uint32_t capacity = l->capacity ? 2 * l->capacity : 64;
    dt_shard_transfer_t *grown = dt_arena_alloc(l->arena, capacity * sizeof *grown);
    if (!grown) {
        l->has_failed = true;
        return false;
    }
    if (l->count)
        memcpy(grown, l->transfers, l->count * sizeof *grown);
    l->transfers = grown;
    l->capacity = capacity;
    return true;
}

static void local_corner(const grid_t *g, uint64_t vdev, const box_t *box, int64_t *ret_at)
{
    dt_shard_box_t own;
    (void)box_of(g, (uint32_t)place_of(g, vdev), &own);
    for (unsigned d = 0; d < g->ndim; d++)
        ret_at[d] = dt_shard_span_local(&own.spans[d], box->lo[d]);
}

static void add(lister_t *l, move_t move, const box_t *box)
{
    if (l->only != DT_SHARD_ALL && move.from != l->only && move.to != l->only)
        return;
    if (l->count == l->capacity && !grow(l))
        return;
    dt_shard_transfer_t *t = &l->transfers[l->count++];
    memset(t, 0, sizeof *t);
    t->from_vdev = move.from;
    t->to_vdev = move.to;
    t->part = move.part;
    t->wave = move.wave;
    t->is_reduce = move.is_reduce;
    for (unsigned d = 0; d < l->ndim; d++)
        t->sizes[d] = box->hi[d] - box->lo[d];
    local_corner(move.wave ? &l->to : &l->from, move.from, box, t->from_at);
    local_corner(&l->to, move.to, box, t->to_at);
    l->list.moved_bytes += move.from == move.to ? 0 : box_bytes(l, box);
}

/* Has the device the region; of that part (-1: any)? */
static bool holds(const lister_t *l, uint64_t vdev, int64_t part)
{
    int64_t i = place_of(&l->from, vdev);
    return i >= 0 && l->from.cell_of[i] == l->cell && (part < 0 || l->from.part_of[i] == part);
}

/* The holders of `part` nearest to `to`, into l->near; returns how many. */
static uint32_t nearest(lister_t *l, uint32_t part, uint64_t to)
{
    int best = DT_SHARD_LINK_COUNT;
    uint32_t n = 0;
    for (uint32_t r = 0; r < l->from.replica_count; r++) {
        uint64_t vdev =
            l->from.mesh->vdevs[l->base + l->from.part_at[part] + l->from.replica_at[r]];
        int link = (int)dt_shard_link_between(l->topology, vdev, to);
        n = link < best ? 0 : n;
        if (link <= best)
            l->near[n++] = vdev;
        best = link < best ? link : best;
    }
    return n;
}

/* Fetch the region for the i-th of `needers`; from several holders if they would idle otherwise. */
static void fetch(lister_t *l, uint64_t to, uint32_t i, uint32_t needers)
{
    uint32_t n = nearest(l, 0, to), pieces = 1;
    int64_t split = l->topology->split_bytes > 0 ? l->topology->split_bytes : 1;
    int64_t most = box_bytes(l, &l->region) / split;
    box_t box;
    dt_check(n > 0); /* a region has a holder of each part */
    if (l->from.replica_count >= 2 * needers)
        pieces = l->from.replica_count / needers;
    pieces = pieces < n ? pieces : n;
    pieces = pieces < most ? pieces : most > 1 ? (uint32_t)most : 1;
    for (uint32_t k = 0; k < pieces; k++)
        if (box_piece(l, &l->region, pieces, k, &box))
            add(l, (move_t){.from = l->near[(i * pieces + k + l->turn) % n], .to = to}, &box);
}

/* No holder on this host: each of its `n` receivers takes a piece over the slow link and passes it
 * on, so every byte enters the host once. */
static void relay(lister_t *l, const uint64_t *to, uint32_t n)
{
    bool is_split = box_bytes(l, &l->region) >= n * l->topology->split_bytes;
    box_t box;
    for (uint32_t k = 0; k < (is_split ? n : 1); k++) {
        uint64_t first = to[(k + l->turn) % n];
        if (!box_piece(l, &l->region, is_split ? n : 1, k, &box))
            continue;
        uint32_t count = nearest(l, 0, first);
        dt_check(count > 0);
        add(l, (move_t){.from = l->near[(k + l->turn) % count], .to = first}, &box);
        for (uint32_t i = 0; i < n; i++)
            if (to[i] != first)
                add(l, (move_t){.from = first, .to = to[i], .wave = 1}, &box);
    }
}

/* Fetch for the receivers of one host: `group` of them, in l->receivers. */
static void serve_host(lister_t *l, uint32_t group, uint32_t done, uint32_t needers)
{
    (void)nearest(l, 0, l->receivers[0]);
    bool is_far =
        dt_shard_link_between(l->topology, l->near[0], l->receivers[0]) > DT_SHARD_LINK_HOST;
    if (group > 1 && is_far) {
        relay(l, l->receivers, group);
        return;
    }
    for (uint32_t i = 0; i < group; i++)
        fetch(l, l->receivers[i], done + i, needers);
}

/* Bring the region to l->receivers[0..n). One part, so any replica is as good. */
static void copy_to(lister_t *l, uint32_t n)
{
    uint32_t needers = 0, done = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t to = l->receivers[i];
        if (holds(l, to, -1))
            add(l, (move_t){.from = to, .to = to}, &l->region);
        else
            l->owners[needers++] = to;
    }
    memset(l->next, 0, needers * sizeof *l->next); /* 1: served */
    for (uint32_t i = 0; i < needers; i++) {
        uint32_t group = 0, host = host_of(l, l->owners[i]);
        if (l->next[i])
            continue;
        for (uint32_t k = i; k < needers; k++)
            if (!l->next[k] && host_of(l, l->owners[k]) == host) {
                l->receivers[group++] = l->owners[k]; /* which was read to its end */
                l->next[k] = 1;
            }
        serve_host(l, group, done, needers);
        done += group;
    }
}

/* Contribution p of `box` to one device; all of them, combined in order. */
static void give(lister_t *l, uint32_t p, uint64_t to, const box_t *box, uint32_t turn)
{
    uint32_t n = nearest(l, p, to);
    dt_check(n > 0);
    add(l, (move_t){.from = l->near[turn % n], .to = to, .part = p, .is_reduce = true}, box);
}

static void gather(lister_t *l, uint64_t to, const box_t *box, uint32_t turn)
{
    for (uint32_t p = 0; p < l->from.part_count; p++)
        give(l, p, to, box, turn);
}

/* The combined region on l->receivers[0..n): at once if that moves no more, else by owners. */
static void reduce_to(lister_t *l, uint32_t n)
{
    uint32_t owners = 0, parts = l->from.part_count;
    box_t box;
    for (uint32_t i = 0; i < n; i++)
        if (holds(l, l->receivers[i], -1))
            l->owners[owners++] = l->receivers[i];
    bool is_direct = (int64_t)parts * n - owners <= (int64_t)parts + n - 1 - (owners > 0);
    if (is_direct || box_bytes(l, &l->region) <= l->topology->direct_bytes) {
        for (uint32_t i = 0; i < n; i++)
            gather(l, l->receivers[i], &l->region, l->turn + i);
        return;
    }
    if (owners == 0)
        for (; owners < n; owners++)
            l->owners[owners] = l->receivers[owners];
    for (uint32_t k = 0; k < owners; k++) {
        uint64_t owner = l->owners[(k + l->turn) % owners];
        if (!box_piece(l, &l->region, owners, k, &box))
            continue;
        gather(l, owner, &box, l->turn + k);
        for (uint32_t i = 0; i < n; i++)
            if (l->receivers[i] != owner)
                add(l, (move_t){.from = owner, .to = l->receivers[i], .wave = 1}, &box);
    }
}

static void receivers_of(lister_t *l, uint32_t base, uint32_t part)
{
    for (uint32_t r = 0; r < l->to.replica_count; r++)
        l->receivers[r] = l->to.mesh->vdevs[base + l->to.part_at[part] + l->to.replica_at[r]];
}

/* The first destination part with most replicas that hold (`part` of) the region already. */
static uint32_t best_part(lister_t *l, uint32_t base, int64_t part, uint32_t *ret_count)
{
    uint32_t best = 0;
    for (uint32_t q = 0; q < l->to.part_count; q++) {
        uint32_t n = 0;
        receivers_of(l, base, q);
        for (uint32_t r = 0; r < l->to.replica_count; r++)
            n += holds(l, l->receivers[r], part);
        if (q == 0 || n > *ret_count) {
            *ret_count = n;
            best = q;
        }
    }
    return best;
}

/* P->P of one kind: a contribution stays or goes where it costs least; unless one sum is cheaper.
 */
static void parts_to_parts(lister_t *l, uint32_t base)
{
    uint32_t parts = l->from.part_count, replicas = l->to.replica_count, n = 0;
    int64_t kept = 0;
    for (uint32_t p = 0; p < parts; p++) {
        (void)best_part(l, base, p, &n);
        kept += n;
    }
    uint32_t q = best_part(l, base, -1, &n);
    if ((int64_t)parts * replicas - kept > (int64_t)parts + replicas - 1 - (n > 0)) {
        receivers_of(l, base, q);
        reduce_to(l, replicas);
        return;
    }
    for (uint32_t p = 0; p < parts; p++) {
        receivers_of(l, base, best_part(l, base, p, &n));
        for (uint32_t r = 0; r < replicas; r++)
            give(l, p, l->receivers[r], &l->region, l->turn + r);
    }
}

static void region(lister_t *l, uint32_t base)
{
    uint32_t n = 0;
    if (l->from.part_count > 1 && l->to.part_count > 1 && l->from.reduction == l->to.reduction) {
        parts_to_parts(l, base);
        return;
    }
    for (uint32_t q = 0; q < l->to.part_count && l->list.everyone_holds; q++) {
        receivers_of(l, base, q);
        copy_to(l, l->to.replica_count);
    }
    if (l->list.everyone_holds)
        return;
    receivers_of(l, base, best_part(l, base, -1, &n));
    if (l->from.part_count > 1)
        reduce_to(l, l->to.replica_count);
    else
        copy_to(l, l->to.replica_count);
}

/* ---- walking the cells ---- */

typedef struct range {
    uint32_t lo[DT_META_DIM_MAX], hi[DT_META_DIM_MAX]; /* cells, both ends included */
} range_t;

static bool next_cell(unsigned ndim, const range_t *range, uint32_t *at)
{
    for (unsigned d = ndim; d-- > 0;) {
        if (++at[d] <= range->hi[d])
            return true;
        at[d] = range->lo[d];
    }
    return false;
}

/* The cell of the element at `pos` of dimension d. */
static uint32_t cell_at(const grid_t *g, unsigned d, int64_t pos)
{
    int64_t lo = 0, hi = g->sizes[d];
    uint32_t cell = 0;
    for (unsigned k = 0; k < g->axis_count[d]; k++) {
        dt_placement_t p = g->layout->placements[g->axes[d][k]];
        int64_t parts = g->mesh->sizes[g->axes[d][k]];
        if (k == 0 && p.groups > 1) {
            hi /= p.groups;
            pos %= hi;
        }
        int64_t step = ((hi - lo + p.unit - 1) / p.unit + parts - 1) / parts * p.unit;
        int64_t at = (pos - lo) / step;
        lo += at * step;
        hi = lo + step < hi ? lo + step : hi;
        cell = cell * (uint32_t)parts + (uint32_t)at;
    }
    return cell;
}

/* In runs, or not in the order of the cells? */
static bool is_grouped(const grid_t *g, unsigned d)
{
    const dt_placement_t *p = g->axis_count[d] ? &g->layout->placements[g->axes[d][0]] : NULL;
    return p && (p->groups > 1 || p->order);
}

/* Cells that may overlap a box: all of them in such a dimension. */
static range_t overlapping(const grid_t *g, const dt_shard_box_t *box)
{
    range_t r = {{0}, {0}};
    for (unsigned d = 0; d < g->ndim; d++) {
        const dt_shard_span_t *span = &box->spans[d];
        bool is_all = is_grouped(g, d) || span->groups > 1;
        r.lo[d] = is_all ? 0 : cell_at(g, d, span->lo);
        r.hi[d] = is_all ? g->pieces[d] - 1 : cell_at(g, d, span->lo + span->length - 1);
    }
    return r;
}

/* Where the intervals i of `a` and j of `b` meet. */
static bool meet(const dt_shard_span_t *a, int64_t i, const dt_shard_span_t *b, int64_t j,
                 int64_t *ret_lo, int64_t *ret_hi)
{
    int64_t al = a->lo + i * a->stride, bl = b->lo + j * b->stride;
    int64_t ah = al + a->length, bh = bl + b->length;
    *ret_lo = al > bl ? al : bl;
    *ret_hi = ah < bh ? ah : bh;
    return *ret_lo < *ret_hi;
}

/* The k-th interval that two spans share; false behind the last. Both are passed through once, side
 * by side; spans that repeat together meet in all of their intervals or in none. */
static bool shared(const dt_shard_span_t *a, const dt_shard_span_t *b, int64_t k, int64_t *ret_lo,
                   int64_t *ret_hi)
{
    if (dt_shard_spans_alike(a, b))
        return k < a->groups && meet(a, k, b, k, ret_lo, ret_hi);
    for (int64_t i = 0, j = 0; i < a->groups && j < b->groups;) {
        if (meet(a, i, b, j, ret_lo, ret_hi) && k-- == 0)
            return true;
        bool is_first = a->lo + i * a->stride + a->length <= b->lo + j * b->stride + b->length;
        i += is_first;
        j += !is_first;
    }
    return false;
}

/* Every dense box that the two have in common. */
static void overlaps(lister_t *l, const dt_shard_box_t *from, const dt_shard_box_t *to,
                     uint32_t base)
{
    int64_t at[DT_META_DIM_MAX] = {0};
    unsigned d = 0;
    for (;;) {
        for (; d < l->ndim; d++)
            if (!shared(&from->spans[d], &to->spans[d], at[d], &l->region.lo[d], &l->region.hi[d]))
                break;
        if (d == l->ndim) {
            region(l, base);
            if (d == 0)
                return;
        }
        /* Behind the last interval of dimension d: the next one of the dimension before. */
        if (d < l->ndim)
            at[d] = 0;
        if (d == 0)
            return;
        at[--d]++;
    }
}

/* Every region between source cells `from` (NULL: all that overlap) and destination cells `to`. */
static void walk(lister_t *l, const range_t *from, const range_t *to, int64_t skip)
{
    uint32_t to_at[DT_META_DIM_MAX], from_at[DT_META_DIM_MAX];
    dt_shard_box_t to_box, from_box;
    memcpy(to_at, to->lo, sizeof to_at);
    do {
        uint32_t to_cell = cell_number(&l->to, to_at), base = l->to.base_of[to_cell];
        if (to_cell == skip || !box_of(&l->to, base, &to_box))
            continue;
        range_t range = from ? *from : overlapping(&l->from, &to_box);
        memcpy(from_at, range.lo, sizeof from_at);
        do {
            l->cell = cell_number(&l->from, from_at);
            l->base = l->from.base_of[l->cell];
            l->turn = l->cell + to_cell;
            if (box_of(&l->from, l->base, &from_box))
                overlaps(l, &from_box, &to_box, base);
        } while (next_cell(l->ndim, &range, from_at) && !l->has_failed);
    } while (next_cell(l->ndim, to, to_at) && !l->has_failed);
}

static void walk_all(lister_t *l)
{
    uint32_t part;
    int64_t mine = -1, i;
    range_t all = {{0}, {0}};
    dt_shard_box_t box;
    for (unsigned d = 0; d < l->ndim; d++)
        all.hi[d] = l->to.pieces[d] - 1;
    if (l->only == DT_SHARD_ALL) {
        walk(l, NULL, &all, -1);
        return;
    }
    i = place_of(&l->to, l->only);
    if (i >= 0) { /* what I receive, pass on, combine */
        cell_coords(&l->to, (uint32_t)i, all.lo, &part);
        memcpy(all.hi, all.lo, sizeof all.lo);
        mine = cell_number(&l->to, all.lo);
        walk(l, NULL, &all, -1);
    }
    i = place_of(&l->from, l->only); /* what I send to other cells */
    if (i >= 0 && box_of(&l->from, (uint32_t)i, &box)) {
        range_t to = overlapping(&l->to, &box);
        memset(&all, 0, sizeof all);
        cell_coords(&l->from, (uint32_t)i, all.lo, &part);
        memcpy(all.hi, all.lo, sizeof all.lo);
        walk(l, &all, &to, mine);
    }
}

/* Does every destination device hold all its box already? */
static bool covers(const dt_shard_pair_t *pair)
{
    dt_shard_box_t to, from;
    unsigned ndim = pair->meta->ndim;
    for (uint32_t i = 0; i < pair->to_mesh->count; i++) {
        int64_t k = dt_shard_mesh_find(pair->from_mesh, pair->to_mesh->vdevs[i]);
        if (!dt_shard_box(pair->to, pair->to_mesh, ndim, pair->meta->sizes, i, &to))
            continue;
        if (k < 0 ||
            !dt_shard_box(pair->from, pair->from_mesh, ndim, pair->meta->sizes, (uint32_t)k, &from))
            return false;
        for (unsigned d = 0; d < ndim; d++)
            for (int64_t g = 0; g < to.spans[d].groups; g++) {
                int64_t lo = to.spans[d].lo + g * to.spans[d].stride;
                int64_t first = dt_shard_span_local(&from.spans[d], lo);
                int64_t last = dt_shard_span_local(&from.spans[d], lo + to.spans[d].length - 1);
                if (first < 0 || last != first + to.spans[d].length - 1)
                    return false;
            }
    }
    return true;
}

/* Waves one after the other, otherwise in the order of listing. */
static bool sort_waves(lister_t *l)
{
    dt_shard_transfer_t *sorted = dt_arena_alloc(l->arena, (l->count + 1) * sizeof *sorted);
    uint32_t n = 0;
    if (!sorted)
        return false;
    for (unsigned wave = 0; wave < 2; wave++)
        for (uint32_t i = 0; i < l->count; i++)
            if (l->transfers[i].wave == wave)
                sorted[n++] = l->transfers[i];
    l->transfers = sorted;
    return true;
}

static bool lister_init(lister_t *l, const dt_shard_pair_t *pair)
{
    uint32_t most = pair->from_mesh->count > pair->to_mesh->count ? pair->from_mesh->count
                                                                  : pair->to_mesh->count;
    l->receivers = dt_arena_calloc(l->arena, (size_t)most * 3, sizeof *l->receivers);
    l->next = dt_arena_calloc(l->arena, most, sizeof *l->next);
    if (!l->receivers || !l->next ||
        !grid_init(&l->from, pair->from_mesh, pair->from, pair->meta, l->arena) ||
        !grid_init(&l->to, pair->to_mesh, pair->to, pair->meta, l->arena))
        return false;
    l->owners = l->receivers + most;
    l->near = l->owners + most;
    l->list.combine = l->from.reduction;
    l->list.identity = l->to.reduction;
    l->list.everyone_holds = l->from.part_count == 1 && l->to.part_count > 1 &&
                             l->to.reduction != DT_REDUCTION_SUM && covers(pair);
    l->list.fills = l->to.part_count > 1 && !l->list.everyone_holds;
    l->list.scale_num = dt_layout_avg_count(pair->to, pair->to_mesh);
    l->list.scale_den = dt_layout_avg_count(pair->from, pair->from_mesh);
    return true;
}

dt_status_t dt_shard_list(const dt_shard_pair_t *pair, const dt_shard_topology_t *topology,
                          uint64_t vdev, dt_arena_t *arena, dt_shard_list_t *ret_list,
                          dt_error_t *err)
{
    lister_t l = {.topology = topology ? topology : &dt_shard_topology_default,
                  .ndim = pair->meta->ndim,
                  .item_bytes = (int64_t)dt_dtype_bytes(pair->meta->dtype),
                  .only = vdev,
                  .arena = arena};
    DT_TRY(dt_layout_check(pair->from, pair->from_mesh, pair->meta, err));
    DT_TRY(dt_layout_check(pair->to, pair->to_mesh, pair->meta, err));
    if (!lister_init(&l, pair))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to list a redistribution");
    if (dt_meta_numel(pair->meta) > 0)
        walk_all(&l);
    if (l.has_failed || !sort_waves(&l))
        return dt_fail(err, DT_ERR_NOMEM, "dt", l.count, "no memory for %u transfers", l.count);
    l.list.ndim = l.ndim;
    l.list.count = l.count;
    l.list.transfers = l.transfers;
    *ret_list = l.list;
    return DT_OK;
}
