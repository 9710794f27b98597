/* What an engine has to do for a pair of layouts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/exchange_internal.h"

#define DT_PLAN_VDEV_MAX     (1u << 20)
#define DT_PLAN_STREAM_BYTES (INT64_C(8) << 20) /* a target from here on goes past the caches */

/* ---- making ---- */

static dt_status_t check_reduction(const dt_meta_t *meta, const dt_layout_t *layout,
                                   dt_error_t *err)
{
    for (int i = 0; i < layout->ndim; i++)
        if (layout->placements[i].kind == DT_PLACEMENT_PARTIAL &&
            !dt_reduce_is_defined(meta->dtype, layout->placements[i].reduction))
            return dt_fail(err, DT_ERR_INVALID, "dt", meta->dtype,
                           "%s has no arithmetic for a Partial placement",
                           dt_dtype_name(meta->dtype));
    return DT_OK;
}

static dt_status_t mesh_copy(dt_exchange_plan_t *plan, const dt_shard_mesh_t *mesh,
                             dt_shard_mesh_t *ret_mesh, dt_error_t *err)
{
    uint64_t *vdevs = dt_arena_alloc(&plan->arena, mesh->count * sizeof *vdevs);
    if (!vdevs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
    for (uint32_t i = 0; i < mesh->count; i++) {
        vdevs[i] = mesh->vdevs[i];
        if (vdevs[i] >= DT_PLAN_VDEV_MAX)
            return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)vdevs[i], "device %llu of a mesh",
                           (unsigned long long)vdevs[i]);
    }
    *ret_mesh = *mesh;
    ret_mesh->vdevs = vdevs;
    return DT_OK;
}

/* Row-major strides of a local tensor; returns its elements. */
static int64_t strides_of(const dt_exchange_plan_t *plan, const dt_layout_t *layout,
                          const dt_shard_mesh_t *mesh, uint32_t index, int64_t *ret_strides)
{
    int64_t sizes[DT_META_DIM_MAX];
    int64_t count = 1;
    if (!dt_shard_sizes(layout, mesh, plan->meta.ndim, plan->meta.sizes, index, sizes))
        return 0;
    for (int d = plan->meta.ndim - 1; d >= 0; d--) {
        ret_strides[d] = count;
        count *= sizes[d];
    }
    return count;
}

static dt_status_t places_fill(dt_exchange_plan_t *plan, dt_error_t *err)
{
    const dt_shard_mesh_t *meshes[] = {&plan->from_mesh, &plan->to_mesh};
    uint64_t top = 0;
    for (int m = 0; m < 2; m++)
        for (uint32_t i = 0; i < meshes[m]->count; i++)
            top = meshes[m]->vdevs[i] > top ? meshes[m]->vdevs[i] : top;
    uint32_t *place_of = calloc(top + 1, sizeof *place_of); /* and 1; 0: none yet */
    plan->places = dt_arena_calloc(
        &plan->arena, (size_t)plan->from_mesh.count + plan->to_mesh.count, sizeof *plan->places);
    if (!place_of || !plan->places) {
        free(place_of);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
    }
    for (int m = 0; m < 2; m++)
        for (uint32_t i = 0; i < meshes[m]->count; i++) {
            uint64_t vdev = meshes[m]->vdevs[i];
            if (place_of[vdev] == 0) {
                plan->places[plan->place_count].vdev = vdev;
                place_of[vdev] = ++plan->place_count;
            }
            dt_exchange_place_t *place = &plan->places[place_of[vdev] - 1];
            if (m == 0)
                place->source_count =
                    strides_of(plan, &plan->from, meshes[m], i, place->source_strides);
            else
                place->target_count =
                    strides_of(plan, &plan->to, meshes[m], i, place->target_strides);
        }
    free(place_of);
    return DT_OK;
}

static void text_fill(dt_exchange_plan_t *plan, const char *name)
{
    char meta[96];
    char from[72];
    char to[72];
    dt_meta_print(&plan->meta, meta, sizeof meta);
    dt_layout_print(&plan->from, from, sizeof from);
    dt_layout_print(&plan->to, to, sizeof to);
    (void)snprintf(plan->text, sizeof plan->text, "%.48s of %s from %s to %s", name, meta, from,
                   to);
}

static dt_status_t plan_fill(dt_exchange_plan_t *plan, const dt_shard_pair_t *pair, dt_error_t *err)
{
    DT_TRY(dt_layout_check(pair->from, pair->from_mesh, pair->meta, err));
    DT_TRY(dt_layout_check(pair->to, pair->to_mesh, pair->meta, err));
    DT_TRY(check_reduction(pair->meta, pair->from, err));
    DT_TRY(check_reduction(pair->meta, pair->to, err));
    DT_TRY(dt_meta_set(&plan->meta, pair->meta->dtype, pair->meta->ndim, pair->meta->sizes, NULL, 0,
                       err));
    plan->from = *pair->from;
    plan->to = *pair->to;
    plan->item_bytes = (uint32_t)dt_dtype_bytes(plan->meta.dtype);
    for (int i = 0; i < plan->from.ndim; i++)
        plan->is_reducing |=
            plan->from.placements[i].kind == DT_PLACEMENT_PARTIAL && pair->from_mesh->sizes[i] > 1;
    DT_TRY(mesh_copy(plan, pair->from_mesh, &plan->from_mesh, err));
    DT_TRY(mesh_copy(plan, pair->to_mesh, &plan->to_mesh, err));
    return places_fill(plan, err);
}

dt_status_t dt_exchange_plan_create(const char *name, const dt_shard_pair_t *pair,
                                    dt_exchange_plan_t **ret_plan, dt_error_t *err)
{
    dt_exchange_plan_t *plan = calloc(1, sizeof *plan);
    if (!plan)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
    dt_arena_init(&plan->arena, DT_EXCHANGE_PLAN_BYTES);
    dt_status_t status = plan_fill(plan, pair, err);
    if (status != DT_OK) {
        dt_exchange_plan_free(plan);
        return status;
    }
    text_fill(plan, name);
    *ret_plan = plan;
    return DT_OK;
}

bool dt_exchange_plan_is_grouped(const dt_exchange_plan_t *plan)
{
    return plan->grouping == DT_EXCHANGE_GROUPED;
}

void dt_exchange_plan_free(dt_exchange_plan_t *plan)
{
    if (!plan)
        return;
    dt_exchange_stages_free(plan);
    dt_exchange_grouped_free(plan);
    free(plan->pieces);
    free(plan->sends);
    dt_arena_fini(&plan->arena);
    free(plan);
}

void dt_exchange_stages_free(dt_exchange_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->piece_count; i++) {
        dt_exchange_piece_t *piece = &plan->pieces[i];
        for (uint32_t k = 0; piece->stages && k < piece->part_count; k++) {
            free(piece->stages[k]);
            piece->stages[k] = NULL;
        }
        piece->staged = 0;
    }
}

/* ---- boxes ---- */

size_t dt_exchange_box_bytes(const dt_exchange_plan_t *plan, const int64_t *sizes)
{
    size_t bytes = plan->item_bytes;
    for (int d = 0; d < plan->meta.ndim; d++)
        bytes *= (size_t)sizes[d];
    return bytes;
}

/* Cuts a box into pieces: runs of dimension `dim`, one index of those before it. */
typedef struct cutter {
    uint32_t ndim, dim;
    int64_t rows;
    int64_t full[DT_META_DIM_MAX];
    int64_t at[DT_META_DIM_MAX];    /* corner of the piece in the box */
    int64_t sizes[DT_META_DIM_MAX]; /* of the piece */
    bool is_first;
} cutter_t;

static cutter_t cutter_of(const dt_exchange_plan_t *plan, const int64_t *sizes)
{
    cutter_t c = {.ndim = plan->meta.ndim, .is_first = true};
    int64_t inner = plan->item_bytes;
    memcpy(c.full, sizes, c.ndim * sizeof *sizes);
    for (uint32_t d = 1; d < c.ndim; d++)
        inner *= sizes[d];
    while (c.dim + 1 < c.ndim && inner > DT_EXCHANGE_PIECE_BYTES)
        inner /= sizes[++c.dim];
    c.rows = DT_EXCHANGE_PIECE_BYTES / inner;
    c.rows = c.rows < 1 ? 1 : c.rows;
    return c;
}

static bool cutter_next(cutter_t *c)
{
    if (c->ndim == 0 || c->is_first) {
        bool is_first = c->is_first;
        c->is_first = false;
        if (!is_first)
            return false;
    } else {
        uint32_t d = c->dim + 1;
        while (d-- > 0) {
            c->at[d] += c->sizes[d];
            if (c->at[d] < c->full[d])
                break;
            c->at[d] = 0;
            if (d == 0)
                return false;
        }
    }
    for (uint32_t d = 0; d < c->ndim; d++) {
        int64_t left = c->full[d] - c->at[d];
        int64_t most = d < c->dim ? 1 : d == c->dim ? c->rows : left;
        c->sizes[d] = most < left ? most : left;
    }
    return true;
}

static int64_t offset_of(const cutter_t *c, const int64_t *corner, const int64_t *strides)
{
    int64_t offset = 0;
    for (uint32_t d = 0; d < c->ndim; d++)
        offset += (corner[d] + c->at[d]) * strides[d];
    return offset;
}

/* ---- listing ---- */

/* A transfer with its places. */
typedef struct move {
    const dt_shard_transfer_t *transfer;
    uint32_t from, to;
    uint32_t ndim;
} move_t;

typedef struct lister {
    dt_exchange_plan_t *plan;
    const dt_exchange_world_t *world;
    uint32_t *place_of; /* by vdev */
    move_t *in, *out;
    uint32_t in_count, out_count;
    uint32_t piece_cap, send_cap;
} lister_t;

static dt_status_t no_memory(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
}

/* Who runs each place, and which members take part. */
static dt_status_t places_reach(lister_t *l, dt_error_t *err)
{
    dt_exchange_plan_t *plan = l->plan;
    const dt_exchange_world_t *world = l->world;
    bool *is_there = dt_arena_calloc(&plan->arena, DT_EXCHANGE_MEMBERS_MAX, sizeof *is_there);
    plan->members = dt_arena_calloc(&plan->arena, DT_EXCHANGE_MEMBERS_MAX, sizeof *plan->members);
    if (!is_there || !plan->members)
        return no_memory(err);
    for (uint32_t i = 0; i < plan->place_count; i++) {
        dt_exchange_place_t *place = &plan->places[i];
        place->member =
            place->vdev < world->vdev_count ? world->members[place->vdev] : DT_EXCHANGE_NOBODY;
        if (place->member >= DT_EXCHANGE_MEMBERS_MAX)
            return dt_fail(err, DT_ERR_NOT_FOUND, "dt", (int64_t)place->vdev,
                           "%s: no engine runs virtual device %llu", plan->text,
                           (unsigned long long)place->vdev);
        is_there[place->member] = true;
        place->reach = place->member == world->self                          ? DT_EXCHANGE_OWN
                       : world->is_remote && world->is_remote[place->member] ? DT_EXCHANGE_REMOTE
                                                                             : DT_EXCHANGE_SHARED;
        plan->has_remotes |= place->reach == DT_EXCHANGE_REMOTE;
        l->place_of[place->vdev] = i;
    }
    plan->member_count = 0;
    for (uint32_t m = 0; m < DT_EXCHANGE_MEMBERS_MAX; m++)
        if (is_there[m])
            plan->members[plan->member_count++] = m;
    return DT_OK;
}

static bool move_add(move_t **moves, uint32_t *count, move_t move)
{
    if ((*count & (*count - 1)) == 0) { /* 0, 1, 2, 4, ... */
        move_t *grown = realloc(*moves, (*count ? 2 * (size_t)*count : 1) * sizeof *grown);
        if (!grown)
            return false;
        *moves = grown;
    }
    (*moves)[(*count)++] = move;
    return true;
}

/* Sort one transfer of ours into what comes in and what goes out. */
static bool transfer_take(lister_t *l, uint32_t place, const dt_shard_transfer_t *transfer)
{
    dt_exchange_plan_t *plan = l->plan;
    const move_t move = {transfer, l->place_of[transfer->from_vdev], l->place_of[transfer->to_vdev],
                         plan->meta.ndim};
    uint8_t from = plan->places[move.from].reach;
    uint8_t to = plan->places[move.to].reach;
    /* What owners combine they write to all whom they reach. */
    bool is_pushed = transfer->wave == 1 && plan->is_reducing && from != DT_EXCHANGE_REMOTE &&
                     to != DT_EXCHANGE_REMOTE;
    if (move.to == place && !is_pushed) {
        plan->has_pulls |= transfer->wave == 1 && from == DT_EXCHANGE_SHARED;
        if (!move_add(&l->in, &l->in_count, move))
            return false;
    }
    /* Somebody else reads it out of our target. */
    plan->has_pulls |=
        transfer->wave == 1 && move.from == place && !is_pushed && to == DT_EXCHANGE_SHARED;
    if (move.from == place && (is_pushed || to == DT_EXCHANGE_REMOTE))
        return move_add(&l->out, &l->out_count, move);
    return true;
}

static dt_status_t lists_read(lister_t *l, dt_error_t *err)
{
    dt_exchange_plan_t *plan = l->plan;
    const dt_shard_pair_t pair = {&plan->meta, &plan->from_mesh, &plan->to_mesh, &plan->from,
                                  &plan->to};
    dt_shard_topology_t topology = dt_shard_topology_default;
    topology.vdev_count = l->world->vdev_count;
    topology.hosts = l->world->hosts;
    plan->reduce = (dt_reduce_t){.dtype = plan->meta.dtype, .scale_num = 1, .scale_den = 1};
    plan->fill = plan->reduce;
    for (uint32_t i = 0; i < plan->place_count; i++) {
        dt_shard_list_t list;
        if (plan->places[i].reach != DT_EXCHANGE_OWN)
            continue;
        DT_TRY(dt_shard_list(&pair, &topology, plan->places[i].vdev, &plan->arena, &list, err));
        plan->reduce.reduction = list.combine;
        plan->reduce.scale_num = list.scale_num;
        plan->reduce.scale_den = list.scale_den;
        plan->fill.reduction = list.identity;
        plan->fills = list.fills && !list.everyone_holds;
        for (uint32_t k = 0; k < list.count; k++)
            if (!transfer_take(l, i, &list.transfers[k]))
                return no_memory(err);
    }
    return DT_OK;
}

/* ---- pieces ---- */

#define ORDER(a, b)                                                                                \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

/* Parts of one box come together, in their order. */
static int in_compare(const void *a_, const void *b_)
{
    const move_t *a = a_;
    const move_t *b = b_;
    ORDER(a->transfer->wave, b->transfer->wave);
    ORDER(a->to, b->to);
    for (uint32_t d = 0; d < a->ndim; d++) {
        ORDER(a->transfer->to_at[d], b->transfer->to_at[d]);
        ORDER(a->transfer->sizes[d], b->transfer->sizes[d]);
    }
    ORDER(a->transfer->part, b->transfer->part);
    ORDER(a->from, b->from);
    return 0;
}

static bool is_same_box(const move_t *a, const move_t *b)
{
    size_t bytes = a->ndim * sizeof(int64_t);
    return a->transfer->wave == b->transfer->wave && a->to == b->to && a->transfer->is_reduce &&
           b->transfer->is_reduce && memcmp(a->transfer->to_at, b->transfer->to_at, bytes) == 0 &&
           memcmp(a->transfer->sizes, b->transfer->sizes, bytes) == 0;
}

static bool grow(void **array, uint32_t count, uint32_t *cap, size_t element_bytes)
{
    if (count < *cap)
        return true;
    uint32_t bigger = *cap ? 2 * *cap : 16;
    void *grown = realloc(*array, bigger * element_bytes);
    if (!grown)
        return false;
    *array = grown;
    *cap = bigger;
    return true;
}

/* The piece at `cutter` of the box that `moves` (count) make. */
static bool piece_add(lister_t *l, const cutter_t *cutter, const move_t *moves, uint32_t count)
{
    dt_exchange_plan_t *plan = l->plan;
    void *pieces = plan->pieces;
    if (!grow(&pieces, plan->piece_count, &l->piece_cap, sizeof *plan->pieces))
        return false;
    plan->pieces = pieces;
    dt_exchange_piece_t *piece = &plan->pieces[plan->piece_count++];
    const dt_shard_transfer_t *first = moves->transfer;
    *piece = (dt_exchange_piece_t){
        .wave = first->wave, .is_reduce = first->is_reduce, .part_count = count};
    memcpy(piece->sizes, cutter->sizes, sizeof piece->sizes);
    piece->to = (dt_exchange_end_t){
        moves->to, offset_of(cutter, first->to_at, plan->places[moves->to].target_strides)};
    piece->parts = dt_arena_calloc(&plan->arena, count, sizeof *piece->parts);
    if (!piece->parts)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const dt_exchange_place_t *from = &plan->places[moves[i].from];
        piece->remote_count += from->reach == DT_EXCHANGE_REMOTE;
        piece->parts[i] = (dt_exchange_end_t){
            moves[i].from, offset_of(cutter, moves[i].transfer->from_at,
                                     first->wave ? from->target_strides : from->source_strides)};
    }
    if (piece->remote_count == 0)
        return true;
    piece->stages = dt_arena_calloc(&plan->arena, count, sizeof *piece->stages);
    return piece->stages != NULL;
}

static int piece_compare(const void *a_, const void *b_)
{
    const dt_exchange_piece_t *a = a_;
    const dt_exchange_piece_t *b = b_;
    ORDER(a->wave, b->wave);
    ORDER(a->to.place, b->to.place);
    ORDER(a->to.offset, b->to.offset);
    return 0;
}

static dt_status_t pieces_make(lister_t *l, dt_error_t *err)
{
    dt_exchange_plan_t *plan = l->plan;
    if (l->in_count > 0)
        qsort(l->in, l->in_count, sizeof *l->in, in_compare);
    for (uint32_t i = 0, count; i < l->in_count; i += count) {
        cutter_t cutter = cutter_of(plan, l->in[i].transfer->sizes);
        count = 1;
        while (i + count < l->in_count && is_same_box(&l->in[i], &l->in[i + count]))
            count++;
        while (cutter_next(&cutter))
            if (!piece_add(l, &cutter, &l->in[i], count))
                return no_memory(err);
    }
    if (plan->piece_count > 0)
        qsort(plan->pieces, plan->piece_count, sizeof *plan->pieces, piece_compare);
    return DT_OK;
}

/* ---- what goes out ---- */

/* The piece of wave 0 that makes what lies there. */
static uint32_t piece_find(const dt_exchange_plan_t *plan, dt_exchange_end_t at,
                           const int64_t *sizes)
{
    const dt_exchange_piece_t key = {.to = at};
    const dt_exchange_piece_t *piece =
        plan->piece_count
            ? bsearch(&key, plan->pieces, plan->piece_count, sizeof key, piece_compare)
            : NULL;
    if (!piece || memcmp(piece->sizes, sizes, plan->meta.ndim * sizeof *sizes) != 0)
        return DT_EXCHANGE_NOBODY;
    return (uint32_t)(piece - plan->pieces);
}

static dt_status_t push_add(dt_exchange_plan_t *plan, dt_exchange_end_t from, dt_exchange_end_t to,
                            const int64_t *sizes, dt_error_t *err)
{
    uint32_t at = piece_find(plan, from, sizes);
    if (at == DT_EXCHANGE_NOBODY)
        return dt_fail(err, DT_ERR_INTERNAL, "dt", 0, "%s: a box of the second wave is of no piece",
                       plan->text);
    dt_exchange_piece_t *piece = &plan->pieces[at];
    if ((piece->push_count & (piece->push_count - 1)) == 0) { /* 0, 1, 2, 4, ... */
        size_t places = piece->push_count ? 2 * (size_t)piece->push_count : 1;
        dt_exchange_end_t *grown = dt_arena_calloc(&plan->arena, places, sizeof *grown);
        if (!grown)
            return no_memory(err);
        if (piece->push_count > 0)
            memcpy(grown, piece->pushes, piece->push_count * sizeof *grown);
        piece->pushes = grown;
    }
    piece->pushes[piece->push_count++] = to;
    return DT_OK;
}

static dt_status_t send_add(lister_t *l, const dt_exchange_send_t *send, dt_error_t *err)
{
    void *sends = l->plan->sends;
    if (!grow(&sends, l->plan->send_count, &l->send_cap, sizeof *send))
        return no_memory(err);
    l->plan->sends = sends;
    l->plan->sends[l->plan->send_count++] = *send;
    return DT_OK;
}

static dt_status_t out_add(lister_t *l, const move_t *move, const cutter_t *cutter, dt_error_t *err)
{
    dt_exchange_plan_t *plan = l->plan;
    const dt_shard_transfer_t *transfer = move->transfer;
    const dt_exchange_place_t *from = &plan->places[move->from];
    const dt_exchange_place_t *to = &plan->places[move->to];
    dt_exchange_send_t send = {
        .wave = transfer->wave,
        .part = transfer->is_reduce ? transfer->part : 0,
        .from = {move->from,
                 offset_of(cutter, transfer->from_at,
                           transfer->wave ? from->target_strides : from->source_strides)},
        .to = {move->to, offset_of(cutter, transfer->to_at, to->target_strides)},
        .after = DT_EXCHANGE_NOBODY,
    };
    memcpy(send.sizes, cutter->sizes, sizeof send.sizes);
    if (to->reach != DT_EXCHANGE_REMOTE)
        return push_add(plan, send.from, send.to, send.sizes, err);
    if (send.wave == 1 && plan->is_reducing)
        send.after = piece_find(plan, send.from, send.sizes);
    return send_add(l, &send, err);
}

static int send_compare(const void *a_, const void *b_)
{
    const dt_exchange_send_t *a = a_;
    const dt_exchange_send_t *b = b_;
    ORDER(a->wave, b->wave);
    ORDER(a->to.place, b->to.place);
    ORDER(a->to.offset, b->to.offset);
    ORDER(a->part, b->part);
    ORDER(a->from.place, b->from.place);
    return 0;
}

static dt_status_t outs_make(lister_t *l, dt_error_t *err)
{
    dt_exchange_plan_t *plan = l->plan;
    for (uint32_t i = 0; i < l->out_count; i++) {
        cutter_t cutter = cutter_of(plan, l->out[i].transfer->sizes);
        while (cutter_next(&cutter))
            DT_TRY(out_add(l, &l->out[i], &cutter, err));
    }
    if (plan->send_count > 0)
        qsort(plan->sends, plan->send_count, sizeof *plan->sends, send_compare);
    return DT_OK;
}

/* ---- the end of it ---- */

/* Which of our targets are made whole by pieces, ours or others'. */
static void coverage_count(dt_exchange_plan_t *plan)
{
    int64_t largest = 0;
    for (uint32_t i = 0; i < plan->place_count; i++) {
        dt_exchange_place_t *place = &plan->places[i];
        int64_t left = place->target_count;
        for (uint32_t k = 0; k < plan->piece_count; k++)
            if (plan->pieces[k].to.place == i)
                left -= (int64_t)(dt_exchange_box_bytes(plan, plan->pieces[k].sizes) /
                                  plan->item_bytes);
        place->is_filled = left == 0;
        largest = place->target_count > largest ? place->target_count : largest;
    }
    plan->reduce.is_streamed = plan->fill.is_streamed =
        largest * plan->item_bytes >= DT_PLAN_STREAM_BYTES;
}

static dt_status_t scratch_make(dt_exchange_plan_t *plan, dt_error_t *err)
{
    size_t most = 1;
    plan->work_bytes = 0;
    for (uint32_t i = 0; i < plan->piece_count; i++) {
        size_t ends = (size_t)plan->pieces[i].part_count + plan->pieces[i].push_count + 1;
        most = ends > most ? ends : most;
        plan->work_bytes += ends * dt_exchange_box_bytes(plan, plan->pieces[i].sizes);
    }
    plan->ends = dt_arena_calloc(&plan->arena, most, sizeof *plan->ends);
    plan->strides = dt_arena_calloc(&plan->arena, most, sizeof *plan->strides);
    return plan->ends && plan->strides ? DT_OK : no_memory(err);
}

dt_status_t dt_exchange_plan_prepare(dt_exchange_plan_t *plan, const dt_exchange_world_t *world,
                                     dt_error_t *err)
{
    lister_t l = {.plan = plan, .world = world};
    uint64_t top = 0;
    for (uint32_t i = 0; i < plan->place_count; i++)
        top = plan->places[i].vdev > top ? plan->places[i].vdev : top;
    plan->piece_count = plan->send_count = 0;
    plan->has_pulls = plan->has_remotes = false;
    l.place_of = calloc(top + 1, sizeof *l.place_of);
    dt_status_t status = l.place_of ? places_reach(&l, err) : no_memory(err);
    if (status == DT_OK)
        status = lists_read(&l, err);
    if (status == DT_OK)
        status = pieces_make(&l, err);
    if (status == DT_OK)
        status = outs_make(&l, err);
    if (status == DT_OK)
        status = scratch_make(plan, err);
    if (status == DT_OK)
        coverage_count(plan);
    plan->is_prepared = status == DT_OK;
    free(l.place_of);
    free(l.in);
    free(l.out);
    return status;
}

/* ---- doing ---- */

void dt_exchange_plan_fill(const dt_exchange_plan_t *plan)
{
    for (uint32_t i = 0; plan->fills && i < plan->place_count; i++) {
        const dt_exchange_place_t *place = &plan->places[i];
        if (place->reach == DT_EXCHANGE_OWN && !place->is_filled && place->target)
            dt_reduce_fill(&plan->fill, place->target, (size_t)place->target_count);
    }
}

/* Boxes of several tensors, walked together in runs that lie in one piece in all of them. */
typedef struct walk {
    uint8_t **at;
    const int64_t *const *strides;
    uint32_t count; /* tensors */
    uint32_t ndim;  /* dimensions outside of a run */
    int64_t run;    /* elements */
    size_t item_bytes;
    const int64_t *sizes;
    int64_t index[DT_META_DIM_MAX];
} walk_t;

static void walk_begin(walk_t *w, uint32_t ndim)
{
    w->run = 1;
    w->ndim = ndim;
    while (w->ndim > 0) {
        uint32_t d = w->ndim - 1;
        for (uint32_t i = 0; i < w->count && w->sizes[d] != 1; i++)
            if (w->strides[i][d] != w->run)
                return;
        w->run *= w->sizes[d];
        w->ndim--;
    }
}

static bool walk_next(walk_t *w)
{
    uint32_t d = w->ndim;
    while (d-- > 0) {
        bool is_over = ++w->index[d] == w->sizes[d];
        int64_t steps = is_over ? 1 - w->sizes[d] : 1;
        for (uint32_t i = 0; i < w->count; i++)
            w->at[i] += steps * w->strides[i][d] * (int64_t)w->item_bytes;
        if (!is_over)
            return true;
        w->index[d] = 0;
    }
    return false;
}

static void dense_strides(const dt_exchange_plan_t *plan, const int64_t *sizes, int64_t *ret)
{
    int64_t count = 1;
    for (int d = plan->meta.ndim - 1; d >= 0; d--) {
        ret[d] = count;
        count *= sizes[d];
    }
}

/* Where the parts and targets of a piece lie. */
static void ends_find(const dt_exchange_plan_t *plan, const dt_exchange_piece_t *piece,
                      const int64_t *dense)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < piece->part_count; i++, n++) {
        const dt_exchange_place_t *from = &plan->places[piece->parts[i].place];
        const uint8_t *base = piece->wave ? from->target : from->source;
        if (piece->stages && piece->stages[i]) {
            plan->ends[n] = piece->stages[i];
            plan->strides[n] = dense;
            continue;
        }
        base += piece->parts[i].offset * plan->item_bytes;
        memcpy(&plan->ends[n], &base, sizeof base); /* it is only read */
        plan->strides[n] = piece->wave ? from->target_strides : from->source_strides;
    }
    for (uint32_t i = 0; i <= piece->push_count; i++, n++) {
        const dt_exchange_end_t *to = i == 0 ? &piece->to : &piece->pushes[i - 1];
        const dt_exchange_place_t *place = &plan->places[to->place];
        plan->ends[n] = place->target + to->offset * plan->item_bytes;
        plan->strides[n] = place->target_strides;
    }
}

void dt_exchange_piece_run(const dt_exchange_plan_t *plan, const dt_exchange_piece_t *piece)
{
    int64_t dense[DT_META_DIM_MAX];
    const dt_reduce_t *reduce = &plan->reduce;
    bool scales = piece->wave == 0 && (reduce->scale_num != 1 || reduce->scale_den != 1);
    dense_strides(plan, piece->sizes, dense);
    ends_find(plan, piece, dense);
    walk_t w = {.at = (uint8_t **)plan->ends,
                .strides = plan->strides,
                .count = piece->part_count + piece->push_count + 1,
                .item_bytes = plan->item_bytes,
                .sizes = piece->sizes};
    walk_begin(&w, plan->meta.ndim);
    void *const *targets = plan->ends + piece->part_count;
    do {
        if (piece->is_reduce || scales) {
            dt_reduce_run(reduce, (const void *const *)plan->ends, piece->part_count, targets,
                          piece->push_count + 1, (size_t)w.run);
            continue;
        }
        for (uint32_t i = 0; i <= piece->push_count; i++)
            dt_reduce_copy(targets[i], plan->ends[0], (size_t)w.run * w.item_bytes,
                           reduce->is_streamed);
    } while (walk_next(&w));
}

void dt_exchange_send_pack(const dt_exchange_plan_t *plan, const dt_exchange_send_t *send,
                           uint8_t *bytes)
{
    int64_t dense[DT_META_DIM_MAX];
    const dt_exchange_place_t *from = &plan->places[send->from.place];
    const uint8_t *base =
        (send->wave ? from->target : from->source) + send->from.offset * plan->item_bytes;
    uint8_t *at[2] = {bytes, NULL};
    const int64_t *strides[2] = {dense, send->wave ? from->target_strides : from->source_strides};
    memcpy(&at[1], &base, sizeof base); /* it is only read */
    dense_strides(plan, send->sizes, dense);
    walk_t w = {.at = at,
                .strides = strides,
                .count = 2,
                .item_bytes = plan->item_bytes,
                .sizes = send->sizes};
    walk_begin(&w, plan->meta.ndim);
    do
        memcpy(at[0], at[1], (size_t)w.run * w.item_bytes);
    while (walk_next(&w));
}
