/* Which collectives, in which order: the cheapest path between placements on one mesh.
 *
 * A state is a placement for each mesh dimension; a move changes one dimension, or several alike at
 * once (a flattened group). A move may touch Shard(d) only if no mesh dimension inside it shards d
 * too. Each dimension may be what it was, what it must become, Replicate, or (from Partial) sharded
 * meanwhile: two-step and hierarchical all-reduce are paths like any other. Against the best path
 * stands one exchange, point to point, which never moves a byte twice.
 *
 * Work is counted and bounded, since it is a client that says how large meshes are: a unit is a
 * move that is tried or a device that is looked at, some 0.1 us. What is left when it runs out is
 * judged by what was found so far. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "shard/redistribute.h"

#define SEARCH_DIM_MAX 5 /* dimensions of a mesh; with more only EXCHANGE */
#define OPTION_MAX     4
#define LOOK_MAX       256 /* devices of a mesh that are looked at, spread evenly over larger ones */
#define RUN_MAX        64  /* intervals of a grouped shard that are compared one by one */
#define STATE_MAX      (1 << (2 * SEARCH_DIM_MAX))

typedef struct search {
    const dt_meta_t *meta;
    const dt_shard_mesh_t *mesh;
    const dt_shard_topology_t *topology;
    uint64_t work;                         /* that is left */
    uint8_t links[DT_RECORD_MESH_DIM_MAX]; /* worst link between neighbours along a dimension */
    int option_count[SEARCH_DIM_MAX];
    dt_placement_t options[SEARCH_DIM_MAX][OPTION_MAX]; /* [0] as it was */
    double cost[STATE_MAX];
    int came_from[STATE_MAX], queue[STATE_MAX];
    bool is_queued[STATE_MAX];
    dt_shard_step_t how[STATE_MAX];
} search_t;

/* Transports of one host and between hosts; the second columns are racks'. */
const dt_shard_topology_t dt_shard_topology_default = {
    .latency_us = {0, 3, 8, 8},
    .message_us = {0, 0.5, 1, 1},
    .us_per_byte = {1e-6, 1.0 / 8000, 1.0 / 3000, 1.0 / 3000},
    .split_bytes = 4096,
    .direct_bytes = 4096,
};

const char *dt_shard_step_name(unsigned kind)
{
    static const char *const names[DT_SHARD_STEP_KIND_COUNT] = {
        [DT_SHARD_STEP_SLICE] = "slice",
        [DT_SHARD_STEP_FILL] = "fill",
        [DT_SHARD_STEP_ALL_REDUCE] = "all-reduce",
        [DT_SHARD_STEP_REDUCE_SCATTER] = "reduce-scatter",
        [DT_SHARD_STEP_ALL_GATHER] = "all-gather",
        [DT_SHARD_STEP_ALL_TO_ALL] = "all-to-all",
        [DT_SHARD_STEP_BROADCAST] = "broadcast",
        [DT_SHARD_STEP_EXCHANGE] = "exchange"};
    return kind < DT_SHARD_STEP_KIND_COUNT && names[kind] ? names[kind] : "unknown step";
}

static void links_of(const dt_shard_mesh_t *mesh, const dt_shard_topology_t *topology,
                     uint8_t *ret_links)
{
    memset(ret_links, DT_SHARD_LINK_SELF, DT_RECORD_MESH_DIM_MAX);
    if (!topology->hosts) {
        for (unsigned j = 0; j < mesh->ndim; j++)
            ret_links[j] = mesh->sizes[j] > 1 ? DT_SHARD_LINK_HOST : DT_SHARD_LINK_SELF;
        return;
    }
    for (uint32_t i = 0; i < mesh->count; i++) {
        uint32_t stride = 1;
        for (unsigned j = mesh->ndim; j-- > 0; stride *= mesh->sizes[j]) {
            if (i / stride % mesh->sizes[j] == 0)
                continue;
            uint8_t link = dt_shard_link_between(topology, mesh->vdevs[i], mesh->vdevs[i - stride]);
            ret_links[j] = link > ret_links[j] ? link : ret_links[j];
        }
    }
}

/* Bit k: some mesh dimension of more than one device is of dt_placement_kind_t k. */
static uint32_t kinds_of(const dt_layout_t *layout, const dt_shard_mesh_t *mesh)
{
    uint32_t kinds = 0;
    for (unsigned j = 0; j < mesh->ndim; j++)
        kinds |= mesh->sizes[j] > 1 ? 1u << layout->placements[j].kind : 0;
    return kinds;
}

/* The collective that does it; 0: none, or nothing to do. */
static unsigned kind_of(dt_placement_t a, dt_placement_t b)
{
    static const uint8_t kinds[3][3] = {
        {0, DT_SHARD_STEP_SLICE, DT_SHARD_STEP_FILL},
        {DT_SHARD_STEP_ALL_GATHER, DT_SHARD_STEP_ALL_TO_ALL, DT_SHARD_STEP_FILL},
        {DT_SHARD_STEP_ALL_REDUCE, DT_SHARD_STEP_REDUCE_SCATTER, DT_SHARD_STEP_FILL}};
    bool is_scale = a.reduction <= DT_REDUCTION_AVG && b.reduction <= DT_REDUCTION_AVG;
    if (a.kind == DT_PLACEMENT_PARTIAL && b.kind == a.kind && !is_scale)
        return 0;
    return dt_placement_equal(a, b) ? 0 : kinds[a.kind][b.kind];
}

/* Sizes are what a client says: no product of theirs may overflow. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t local_bytes(const search_t *s, const dt_placement_t *at)
{
    int64_t sizes[DT_META_DIM_MAX], bytes = (int64_t)dt_dtype_bytes(s->meta->dtype);
    memcpy(sizes, s->meta->sizes, sizeof sizes);
    for (unsigned j = 0; j < s->mesh->ndim; j++)
        if (at[j].kind == DT_PLACEMENT_SHARD)
            sizes[at[j].dim] =
                (sizes[at[j].dim] + s->mesh->sizes[j] - 1) / (int64_t)s->mesh->sizes[j];
    for (unsigned d = 0; d < s->meta->ndim; d++)
        bytes = times(bytes, sizes[d]);
    return bytes;
}

/* One piece to each peer of the group, over the link that reaches it. */
static double peers_us(const search_t *s, uint32_t mask, double piece_bytes, int64_t *ret_peers)
{
    double us = 0;
    int64_t reached = 1;
    for (int link = 0; link < DT_SHARD_LINK_COUNT; link++) {
        int64_t k = 1;
        for (unsigned j = 0; j < s->mesh->ndim; j++)
            k *= (mask >> j & 1) && s->links[j] <= link ? s->mesh->sizes[j] : 1;
        if (k > reached)
            us += s->topology->latency_us[link] +
                  (double)(k - reached) * (s->topology->message_us[link] +
                                           piece_bytes * s->topology->us_per_byte[link]);
        reached = k;
    }
    *ret_peers = reached - 1;
    return us;
}

static void price(const search_t *s, dt_shard_step_t *step, int64_t before, int64_t after)
{
    int64_t peers, piece = before;
    (void)peers_us(s, step->mesh_dims, 0, &peers);
    if (step->kind <= DT_SHARD_STEP_FILL) {
        step->cost_us = (double)after * s->topology->us_per_byte[DT_SHARD_LINK_SELF];
        return;
    }
    if (step->kind == DT_SHARD_STEP_REDUCE_SCATTER)
        piece = after;
    else if (step->kind != DT_SHARD_STEP_ALL_GATHER)
        piece = before / (peers + 1) + (before % (peers + 1) != 0);
    step->cost_us = peers_us(s, step->mesh_dims, (double)piece, &peers);
    step->recv_bytes = times(peers, piece);
    if (step->kind != DT_SHARD_STEP_ALL_REDUCE)
        return;
    step->cost_us *= 2; /* reduce-scatter and all-gather, or everything to everyone */
    step->recv_bytes = times(step->recv_bytes, 2);
    double direct = peers_us(s, step->mesh_dims, (double)before, &peers);
    if (direct < step->cost_us) {
        step->cost_us = direct;
        step->recv_bytes = times(peers, before);
    }
}

static void placements_of(const search_t *s, int state, dt_placement_t *ret_at)
{
    for (unsigned j = 0; j < s->mesh->ndim; j++)
        ret_at[j] = s->options[j][state >> (2 * j) & 3];
}

static bool cuts(dt_placement_t inner, dt_placement_t moving)
{
    return inner.kind == DT_PLACEMENT_SHARD && moving.kind == DT_PLACEMENT_SHARD &&
           inner.dim == moving.dim;
}

/* The state after every dimension of `mask` goes to option `o` of its first; -1: not one move. */
static int moved(const search_t *s, int state, uint32_t mask, int o, dt_shard_step_t *ret_step)
{
    int first = __builtin_ctz(mask), to = state;
    dt_placement_t at[DT_RECORD_MESH_DIM_MAX], want = s->options[first][o];
    placements_of(s, state, at);
    unsigned kind = kind_of(at[first], want);
    if (!kind)
        return -1;
    for (int j = first; j < s->mesh->ndim; j++) {
        int k = 0;
        if (!(mask >> j & 1)) {
            if (cuts(at[j], at[first]) || cuts(at[j], want))
                return -1; /* an inner dimension cuts what this move would change */
            continue;
        }
        while (k < s->option_count[j] && !dt_placement_equal(s->options[j][k], want))
            k++;
        if (k == s->option_count[j] || !dt_placement_equal(at[j], at[first]))
            return -1;
        to = (to & ~(3 << (2 * j))) | k << (2 * j);
    }
    *ret_step = (dt_shard_step_t){
        .kind = (uint8_t)kind, .mesh_dims = (uint8_t)mask, .from = at[first], .to = want};
    return to;
}

/* Groups of one tensor dimension must agree, and so must its reductions. */
static bool is_layout(const search_t *s, const dt_placement_t *at)
{
    dt_layout_t layout = {.ndim = s->mesh->ndim};
    memcpy(layout.placements, at, s->mesh->ndim * sizeof *at);
    return dt_layout_check(&layout, s->mesh, s->meta, NULL) == DT_OK;
}

static void relax(search_t *s, int state, int *tail)
{
    dt_placement_t at[DT_RECORD_MESH_DIM_MAX], next[DT_RECORD_MESH_DIM_MAX];
    dt_shard_step_t step;
    placements_of(s, state, at);
    int64_t before = local_bytes(s, at);
    for (uint32_t mask = 1; mask < 1u << s->mesh->ndim; mask++) {
        for (int o = 0; o < s->option_count[__builtin_ctz(mask)]; o++) {
            if (s->work == 0)
                return;
            s->work--;
            int to = moved(s, state, mask, o, &step);
            if (to < 0)
                continue;
            placements_of(s, to, next);
            if (!is_layout(s, next))
                continue;
            price(s, &step, before, local_bytes(s, next));
            double cost = s->cost[state] + step.cost_us + 1e-3; /* fewer steps win ties */
            if (cost >= s->cost[to])
                continue;
            s->cost[to] = cost;
            s->came_from[to] = state;
            s->how[to] = step;
            if (!s->is_queued[to])
                s->queue[(*tail)++ & (STATE_MAX - 1)] = to;
            s->is_queued[to] = true;
        }
    }
}

static int option_add(search_t *s, unsigned j, dt_placement_t p)
{
    int k = 0;
    while (k < s->option_count[j] && !dt_placement_equal(s->options[j][k], p))
        k++;
    if (k == s->option_count[j])
        s->options[j][s->option_count[j]++] = p;
    return k;
}

static int options_init(search_t *s, const dt_layout_t *from, const dt_layout_t *to)
{
    int goal = 0;
    unsigned longest = 0;
    for (unsigned d = 1; d < s->meta->ndim; d++)
        longest = s->meta->sizes[d] > s->meta->sizes[longest] ? d : longest;
    for (unsigned j = 0; j < s->mesh->ndim; j++) {
        dt_placement_t was = from->placements[j], becomes = to->placements[j];
        bool changes = !dt_placement_equal(was, becomes);
        (void)option_add(s, j, was);
        goal |= option_add(s, j, becomes) << (2 * j);
        if (changes || was.kind == DT_PLACEMENT_SHARD)
            (void)option_add(s, j, dt_placement_replicate());
        if (changes && was.kind == DT_PLACEMENT_PARTIAL && s->meta->ndim > 0 &&
            s->meta->sizes[longest] >= s->mesh->sizes[j])
            (void)option_add(s, j, dt_placement_shard(longest));
    }
    return goal;
}

/* Cheapest path on one mesh into the plan. False: none. */
static bool find_path(search_t *s, const dt_layout_t *from, const dt_layout_t *to,
                      dt_shard_plan_t *plan)
{
    int head = 0, tail = 1, states = 1 << (2 * s->mesh->ndim);
    int goal = options_init(s, from, to);
    for (int i = 0; i < states; i++)
        s->cost[i] = DBL_MAX;
    s->cost[0] = 0;
    while (head != tail) {
        int state = s->queue[head++ & (STATE_MAX - 1)];
        s->is_queued[state] = false;
        relax(s, state, &tail);
    }
    for (int at = goal; s->cost[goal] < DBL_MAX && at != 0; at = s->came_from[at])
        plan->step_count++;
    if (s->cost[goal] == DBL_MAX || plan->step_count > DT_SHARD_STEP_MAX) {
        plan->step_count = 0;
        return false;
    }
    int at = goal;
    for (uint32_t k = plan->step_count; k > 0; at = s->came_from[at])
        plan->steps[--k] = s->how[at];
    plan->cost_us = s->cost[goal];
    return true;
}

/* ---- the exchange as one step: what the busiest device receives, by the worst link ---- */

typedef struct load {
    int64_t bytes, messages;
} load_t;

/* How many elements of a span lie below `at`. */
static int64_t below(const dt_shard_span_t *span, int64_t at)
{
    if (at <= span->lo)
        return 0;
    int64_t run = span->stride > 0 ? (at - span->lo) / span->stride : 0;
    if (run >= span->groups)
        return span->groups * span->length;
    int64_t inside = at - span->lo - run * span->stride;
    return run * span->length + (inside < span->length ? inside : span->length);
}

/* Elements that two spans of one dimension share; where both have many intervals that do not fit
 * each other, about as many. */
static int64_t common(const dt_shard_span_t *a, const dt_shard_span_t *b, int64_t size)
{
    const dt_shard_span_t *few = a->groups < b->groups ? a : b, *many = few == a ? b : a;
    bool is_alike = dt_shard_spans_alike(a, b);
    int64_t runs = is_alike ? 1 : few->groups, sum = 0;
    if (runs > RUN_MAX)
        return (int64_t)((double)dt_shard_span_size(a) * (double)dt_shard_span_size(b) /
                         (double)(size > 0 ? size : 1));
    for (int64_t g = 0; g < runs; g++) {
        int64_t lo = few->lo + g * few->stride;
        sum += below(many, lo + few->length) - below(many, lo);
    }
    return is_alike ? sum * few->groups : sum;
}

/* What the device at place i of the target receives. `own`: its place in the source; -1: none. */
static load_t load_of(const dt_shard_pair_t *pair, uint32_t i, int64_t own, int64_t parts,
                      int64_t copies)
{
    int64_t item = (int64_t)dt_dtype_bytes(pair->meta->dtype);
    load_t load = {.bytes = item, .messages = parts};
    int64_t kept = own >= 0 ? item : 0;
    dt_shard_box_t a, b;
    (void)dt_shard_box(pair->to, pair->to_mesh, pair->meta->ndim, pair->meta->sizes, i, &b);
    (void)dt_shard_box(pair->from, pair->from_mesh, pair->meta->ndim, pair->meta->sizes,
                       own >= 0 ? (uint32_t)own : 0, &a);
    for (unsigned d = 0; d < pair->meta->ndim; d++) {
        int64_t len = dt_shard_span_size(&b.spans[d]);
        int64_t cut = a.spans[d].length > 0 ? a.spans[d].length : 1;
        load.bytes = times(load.bytes, len);
        kept = times(kept, common(&a.spans[d], &b.spans[d], pair->meta->sizes[d]));
        load.messages = times(load.messages, (len + cut - 1) / cut);
    }
    load.bytes = parts > 1 ? times(load.bytes, parts + copies - 2) / copies : load.bytes - kept;
    return load;
}

/* Where a device of the target stands in the source. On one mesh in the same place; else it is
 * searched for, each device passed is a unit. -1: nowhere, or there was no work left to find it. */
static int64_t own_place(const dt_shard_pair_t *pair, uint32_t i, uint64_t *work)
{
    const dt_shard_mesh_t *from = pair->from_mesh;
    uint64_t vdev = pair->to_mesh->vdevs[i];
    if (i < from->count && from->vdevs[i] == vdev)
        return i;
    uint64_t passed = from->count / 64 + 1; /* it is 64 times faster than what else is a unit */
    if (*work < passed)
        return -1;
    *work -= passed;
    return dt_shard_mesh_find(from, vdev);
}

/* The k-th place that is looked at of `count`: all of a small mesh, else from the first to the
 * last. */
static uint32_t look_at(uint32_t k, uint32_t looks, uint32_t count)
{
    return looks < 2 ? 0 : (uint32_t)((uint64_t)k * (count - 1) / (looks - 1));
}

/* `ret_covers`: every device that was looked at holds all its box already. */
static dt_shard_step_t price_exchange(const dt_shard_pair_t *pair,
                                      const dt_shard_topology_t *topology, uint64_t *work,
                                      bool *ret_covers)
{
    const dt_shard_mesh_t *from = pair->from_mesh, *to = pair->to_mesh;
    int64_t parts = 1, copies = to->count, messages = 1, most = 0;
    uint8_t link = DT_SHARD_LINK_SELF, links[DT_RECORD_MESH_DIM_MAX];
    links_of(from, topology, links);
    for (unsigned j = 0; j < from->ndim; j++) {
        parts *= pair->from->placements[j].kind == DT_PLACEMENT_PARTIAL ? from->sizes[j] : 1;
        link = links[j] > link ? links[j] : link;
    }
    for (unsigned j = 0; j < to->ndim; j++)
        copies /=
            pair->to->placements[j].kind == DT_PLACEMENT_REPLICATE ? 1 : (int64_t)to->sizes[j];
    uint64_t most_looks = *work > 0 ? *work : 1;
    uint32_t looks = to->count < LOOK_MAX ? to->count : LOOK_MAX;
    looks = looks < most_looks ? looks : (uint32_t)most_looks;
    *ret_covers = true;
    for (uint32_t k = 0; k < looks; k++) {
        uint32_t i = look_at(k, looks, to->count);
        *work -= *work > 0;
        int64_t own = own_place(pair, i, work);
        load_t load = load_of(pair, i, own, parts, copies);
        *ret_covers &= load_of(pair, i, own, 1, 1).bytes == 0;
        uint8_t reach = dt_shard_link_between(topology, to->vdevs[i], from->vdevs[i % from->count]);
        most = load.bytes > most ? load.bytes : most;
        messages = load.messages > messages ? load.messages : messages;
        link = reach > link ? reach : link;
    }
    double us = (parts > 1 ? 2 : 1) * topology->latency_us[link] +
                (double)messages * topology->message_us[link] +
                (double)most * topology->us_per_byte[link];
    return (dt_shard_step_t){.kind = DT_SHARD_STEP_EXCHANGE,
                             .from = dt_placement_replicate(),
                             .to = dt_placement_replicate(),
                             .recv_bytes = most,
                             .cost_us = us};
}

/* Pieces of which some lie in another order go from device to device: that is no collective. */
static bool is_ordered(const dt_layout_t *layout)
{
    for (unsigned j = 0; j < layout->ndim; j++)
        if (layout->placements[j].order)
            return true;
    return false;
}

static void choose(search_t *s, const dt_shard_pair_t *pair, dt_shard_plan_t *plan)
{
    bool is_one = dt_shard_mesh_equal(pair->from_mesh, pair->to_mesh);
    bool may_search = !is_ordered(pair->from) && !is_ordered(pair->to);
    uint32_t from = kinds_of(pair->from, pair->from_mesh), to = kinds_of(pair->to, pair->to_mesh);
    uint32_t partial = 1u << DT_PLACEMENT_PARTIAL, moves = 0;
    links_of(pair->from_mesh, s->topology, s->links);
    if (is_one && may_search && pair->from_mesh->ndim <= SEARCH_DIM_MAX &&
        find_path(s, pair->from, pair->to, plan)) {
        for (uint32_t k = 0; k < plan->step_count; k++) {
            moves += plan->steps[k].kind >= DT_SHARD_STEP_ALL_REDUCE;
            plan->recv_bytes = plus(plan->recv_bytes, plan->steps[k].recv_bytes);
        }
        if (moves == 0 || plan->step_count == 1)
            return;
    }
    bool is_covered;
    dt_shard_step_t other = price_exchange(pair, s->topology, &s->work, &is_covered);
    if (moves > 0 && other.cost_us > plan->cost_us)
        return;
    if (!(from & partial) && !is_one && is_covered)
        other.kind = to & partial ? DT_SHARD_STEP_FILL : DT_SHARD_STEP_SLICE;
    else if (!is_one && (from | to) <= 1u << DT_PLACEMENT_REPLICATE)
        other.kind = DT_SHARD_STEP_BROADCAST;
    *plan = (dt_shard_plan_t){.step_count = 1,
                              .steps = {other},
                              .cost_us = other.cost_us,
                              .recv_bytes = other.recv_bytes};
}

dt_status_t dt_shard_plan_choose(const dt_shard_pair_t *pair, const dt_shard_topology_t *topology,
                                 uint64_t *work, dt_shard_plan_t *ret_plan, dt_error_t *err)
{
    uint64_t most = !work || *work > DT_SHARD_WORK_MAX ? DT_SHARD_WORK_MAX : *work;
    DT_TRY(dt_layout_check(pair->from, pair->from_mesh, pair->meta, err));
    DT_TRY(dt_layout_check(pair->to, pair->to_mesh, pair->meta, err));
    search_t *search = calloc(1, sizeof *search);
    if (!search)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to plan a redistribution");
    search->meta = pair->meta;
    search->mesh = pair->from_mesh;
    search->topology = topology ? topology : &dt_shard_topology_default;
    search->work = most;
    *ret_plan = (dt_shard_plan_t){.step_count = 0};
    choose(search, pair, ret_plan);
    if (work)
        *work -= most - search->work;
    free(search);
    return DT_OK;
}

dt_layout_t dt_shard_plan_layout(const dt_layout_t *from, const dt_layout_t *to,
                                 const dt_shard_step_t *steps, uint32_t step_count, uint32_t done)
{
    dt_layout_t layout = *from;
    if (done >= step_count)
        return *to;
    for (uint32_t k = 0; k < done; k++)
        for (unsigned j = 0; j < layout.ndim; j++)
            if (steps[k].mesh_dims >> j & 1)
                layout.placements[j] = steps[k].to;
    return layout;
}

/* ---- on the wire ---- */

uint8_t *dt_shard_steps_put(uint8_t *at, const dt_shard_step_t *steps, uint32_t step_count)
{
    at = dt_varint_put(at, step_count);
    for (uint32_t k = 0; k < step_count; k++) {
        *at++ = steps[k].kind;
        at = dt_varint_put(at, steps[k].mesh_dims);
        at = dt_record_put_placement(at, &steps[k].from);
        at = dt_record_put_placement(at, &steps[k].to);
        *at++ = 0; /* the queue */
    }
    return at;
}

void dt_shard_steps_get(dt_cursor_t *cursor, dt_shard_step_t *ret_steps, uint32_t *ret_count)
{
    *ret_count = (uint32_t)dt_cursor_bounded(cursor, DT_SHARD_STEP_MAX);
    for (uint32_t k = 0; k < *ret_count; k++) {
        dt_shard_step_t *step = &ret_steps[k];
        *step = (dt_shard_step_t){.kind = dt_cursor_u8(cursor)};
        step->mesh_dims = (uint8_t)dt_cursor_bounded(cursor, UINT8_MAX);
        dt_record_get_placement(cursor, &step->from);
        dt_record_get_placement(cursor, &step->to);
        (void)dt_cursor_u8(cursor);
        if (step->kind == 0 || step->kind >= DT_SHARD_STEP_KIND_COUNT)
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    }
    if (cursor->error)
        *ret_count = 0;
}
