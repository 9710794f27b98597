#include "transport/grouped.h"

#include <stdlib.h>
#include <string.h>

#include "shard/layout.h"

#define DT_GROUPED_ALIGN 256u /* of boxes on their way */

/* Where an operation reads or writes, before addresses are known. */
typedef enum where { WHERE_SOURCE, WHERE_TARGET, WHERE_SCRATCH } where_t;
typedef struct spot {
    uint32_t place;
    uint8_t where;
    uint64_t at; /* bytes */
} spot_t;

/* What a plan is for a group: operations and copies, their addresses filled in each time. */
struct dt_exchange_grouped {
    dt_group_op_t *ops;
    spot_t *op_spots; /* (op_count) of the one end that each has */
    dt_group_copy_t *copies[2];
    spot_t *from_spots[2], *to_spots[2];
    uint32_t op_count, op_cap, copy_count[2], copy_cap[2];
    uint64_t scratch_bytes;
    bool is_all_reduce, is_reduce_scatter;
    dt_group_op_t reduce; /* the only one of these */
    dt_group_work_t work;
};

/* A communicator of a session. */
struct dt_transport_group {
    dt_transport_group_t *next;
    void *group; /* NULL: not joined yet */
    uint32_t member_count;
    uint32_t members[];
};

/* ---- which pairs ---- */

static bool is_partial(const dt_layout_t *layout, const dt_shard_mesh_t *mesh)
{
    for (int i = 0; i < layout->ndim; i++)
        if (mesh->sizes[i] > 1 && layout->placements[i].kind == DT_PLACEMENT_PARTIAL)
            return true;
    return false;
}

/* Every device has a part of the whole, and they are combined alike. */
static bool is_all_partial(const dt_exchange_plan_t *plan, uint8_t *ret_reduction)
{
    bool is_first = true;
    for (int i = 0; i < plan->from.ndim; i++) {
        dt_placement_t p = plan->from.placements[i];
        if (plan->from_mesh.sizes[i] == 1)
            continue;
        if (p.kind != DT_PLACEMENT_PARTIAL || (!is_first && p.reduction != *ret_reduction))
            return false;
        *ret_reduction = p.reduction;
        is_first = false;
    }
    return !is_first;
}

static bool is_number(unsigned dtype)
{
    return dtype == DT_DTYPE_F32 || dtype == DT_DTYPE_I64 || dtype == DT_DTYPE_F16 ||
           dtype == DT_DTYPE_BF16 || dtype == DT_DTYPE_F64 || dtype == DT_DTYPE_I32;
}

static bool can_combine(const dt_exchange_plan_t *plan, uint8_t reduction)
{
    bool is_integer = plan->meta.dtype == DT_DTYPE_I64 || plan->meta.dtype == DT_DTYPE_I32;
    return is_number(plan->meta.dtype) &&
           (reduction == DT_REDUCTION_SUM ||
            (is_integer && (reduction == DT_REDUCTION_MAX || reduction == DT_REDUCTION_MIN)));
}

static bool is_replicate(const dt_exchange_plan_t *plan)
{
    for (int i = 0; i < plan->to.ndim; i++)
        if (plan->to_mesh.sizes[i] > 1 && plan->to.placements[i].kind != DT_PLACEMENT_REPLICATE)
            return false;
    return true;
}

/* Rows in the order of ranks, as many for each. */
static bool is_even_rows(const dt_exchange_plan_t *plan)
{
    dt_placement_t p = plan->to.placements[0];
    if (plan->to.ndim != 1 || p.kind != DT_PLACEMENT_SHARD || p.dim != 0 || p.order != 0 ||
        p.unit != 1 || p.groups != 1 || plan->meta.ndim == 0 ||
        plan->meta.sizes[0] % plan->to_mesh.count != 0)
        return false;
    for (uint32_t i = 0; i < plan->place_count; i++) {
        int64_t at = dt_shard_mesh_find(&plan->to_mesh, plan->places[i].vdev);
        if (at < 0 || plan->places[i].member != plan->members[at])
            return false;
    }
    return true;
}

typedef enum way { WAY_NONE, WAY_BOXES, WAY_ALL_REDUCE, WAY_REDUCE_SCATTER } way_t;

/* How a group runs the pair; the same answer on all members. */
static way_t way_of(const dt_exchange_plan_t *plan, uint8_t *ret_reduction)
{
    if (is_partial(&plan->to, &plan->to_mesh) || plan->has_remotes || plan->member_count < 2)
        return WAY_NONE;
    if (!is_partial(&plan->from, &plan->from_mesh))
        return WAY_BOXES;
    if (!is_all_partial(plan, ret_reduction) || !can_combine(plan, *ret_reduction) ||
        plan->place_count != plan->member_count ||
        !dt_shard_mesh_equal(&plan->from_mesh, &plan->to_mesh))
        return WAY_NONE;
    return is_replicate(plan) ? WAY_ALL_REDUCE : is_even_rows(plan) ? WAY_REDUCE_SCATTER : WAY_NONE;
}

void dt_exchange_group_decide(dt_transport_session_t *session)
{
    dt_exchange_plan_t *plan = session->run.plan;
    uint8_t reduction = DT_REDUCTION_SUM;
    bool all_have = session->owner_groups != NULL;
    if (plan->grouping != DT_EXCHANGE_NOT_SEEN)
        return;
    for (uint32_t i = 0; i < plan->member_count; i++)
        all_have &= atomic_load_explicit(&session->board->slots[plan->members[i]].has_groups,
                                         memory_order_acquire) != 0;
    plan->grouping = all_have && way_of(plan, &reduction) != WAY_NONE ? DT_EXCHANGE_GROUPED
                                                                      : DT_EXCHANGE_BY_HOST;
}

/* ---- preparing ---- */

static bool grow(void **array, uint32_t count, uint32_t *cap, size_t bytes)
{
    uint32_t bigger = *cap ? 2 * *cap : 8;
    if (count < *cap)
        return true;
    void *grown = realloc(*array, bigger * bytes);
    if (!grown)
        return false;
    *array = grown;
    *cap = bigger;
    return true;
}

static bool op_add(dt_exchange_grouped_t *it, dt_group_op_t op, spot_t spot)
{
    uint32_t cap = it->op_cap;
    void *ops = it->ops, *spots = it->op_spots;
    bool is_done = grow(&ops, it->op_count, &cap, sizeof op);
    it->ops = ops;
    cap = it->op_cap;
    is_done = is_done && grow(&spots, it->op_count, &cap, sizeof spot);
    it->op_spots = spots;
    if (!is_done)
        return false;
    it->op_cap = cap;
    it->ops[it->op_count] = op;
    it->op_spots[it->op_count++] = spot;
    return true;
}

static bool copy_add(dt_exchange_grouped_t *it, unsigned when, dt_group_copy_t copy, spot_t from,
                     spot_t to)
{
    uint32_t count = it->copy_count[when];
    uint32_t caps[3] = {it->copy_cap[when], it->copy_cap[when], it->copy_cap[when]};
    void *copies = it->copies[when], *froms = it->from_spots[when], *tos = it->to_spots[when];
    bool is_done = grow(&copies, count, &caps[0], sizeof copy);
    it->copies[when] = copies;
    is_done = is_done && grow(&froms, count, &caps[1], sizeof from);
    it->from_spots[when] = froms;
    is_done = is_done && grow(&tos, count, &caps[2], sizeof to);
    it->to_spots[when] = tos;
    if (!is_done)
        return false;
    it->copy_cap[when] = caps[0];
    it->copies[when][count] = copy;
    it->from_spots[when][count] = from;
    it->to_spots[when][count] = to;
    it->copy_count[when]++;
    return true;
}

/* A box within a local tensor, or packed. */
typedef struct side {
    spot_t spot;
    const int64_t *strides; /* elements; NULL: packed */
} side_t;

/* Copies for a box: the run that is contiguous on both sides, rows of it, and one copy for each
 * index of what is further out. */
static bool box_copy(dt_exchange_grouped_t *it, const dt_exchange_plan_t *plan, unsigned when,
                     const int64_t *sizes, side_t from, side_t to)
{
    int64_t packed[DT_META_DIM_MAX], at[DT_META_DIM_MAX] = {0};
    int64_t run = 1, whole = 1;
    int d = plan->meta.ndim - 1;
    for (int k = d; k >= 0; whole *= sizes[k--])
        packed[k] = whole;
    const int64_t *a = from.strides ? from.strides : packed;
    const int64_t *b = to.strides ? to.strides : packed;
    for (; d >= 0 && (sizes[d] == 1 || (a[d] == run && b[d] == run)); d--)
        run *= sizes[d];
    uint64_t item = plan->item_bytes;
    const dt_group_copy_t copy = {.rows = d >= 0 ? (uint64_t)sizes[d] : 1,
                                  .row_bytes = (uint64_t)run * item,
                                  .source_pitch = (uint64_t)(d >= 0 ? a[d] : run) * item,
                                  .target_pitch = (uint64_t)(d >= 0 ? b[d] : run) * item};
    for (;;) {
        spot_t x = from.spot, y = to.spot;
        for (int k = 0; k < d; k++) {
            x.at += (uint64_t)(at[k] * a[k]) * item;
            y.at += (uint64_t)(at[k] * b[k]) * item;
        }
        if (!copy_add(it, when, copy, x, y))
            return false;
        int k = d - 1;
        while (k >= 0 && ++at[k] == sizes[k])
            at[k--] = 0;
        if (k < 0)
            return true;
    }
}

static uint64_t corner(const dt_exchange_plan_t *plan, const int64_t *at, const int64_t *strides)
{
    int64_t offset = 0;
    for (int d = 0; d < plan->meta.ndim; d++)
        offset += at[d] * strides[d];
    return (uint64_t)offset * plan->item_bytes;
}

static bool is_dense(const dt_exchange_plan_t *plan, const int64_t *sizes, const int64_t *strides)
{
    int64_t run = 1;
    for (int d = plan->meta.ndim - 1; d >= 0; run *= sizes[d--])
        if (sizes[d] != 1 && strides[d] != run)
            return false;
    return true;
}

static uint32_t rank_of(const dt_exchange_plan_t *plan, uint32_t member)
{
    uint32_t rank = 0;
    while (rank + 1 < plan->member_count && plan->members[rank] != member)
        rank++;
    return rank;
}

/* One end of a box that is sent or comes: in place where it is dense, else by way of scratch. */
static bool end_add(dt_exchange_grouped_t *it, const dt_exchange_plan_t *plan,
                    const dt_shard_transfer_t *t, bool is_send, side_t side, uint32_t peer)
{
    uint64_t bytes = dt_exchange_box_bytes(plan, t->sizes);
    const dt_group_op_t op = {.kind = is_send ? DT_GROUP_SEND : DT_GROUP_RECV,
                              .dtype = plan->meta.dtype,
                              .peer = peer,
                              .count = bytes / plan->item_bytes};
    if (is_dense(plan, t->sizes, side.strides))
        return op_add(it, op, side.spot);
    const side_t scratch = {{0, WHERE_SCRATCH, it->scratch_bytes}, NULL};
    it->scratch_bytes += (bytes + DT_GROUPED_ALIGN - 1) / DT_GROUPED_ALIGN * DT_GROUPED_ALIGN;
    return op_add(it, op, scratch.spot) &&
           (is_send ? box_copy(it, plan, 0, t->sizes, side, scratch)
                    : box_copy(it, plan, 1, t->sizes, scratch, side));
}

static bool transfer_add(dt_exchange_grouped_t *it, const dt_exchange_plan_t *plan,
                         const dt_shard_transfer_t *t, uint32_t from, uint32_t to)
{
    const dt_exchange_place_t *a = &plan->places[from], *b = &plan->places[to];
    const side_t source = {{from, WHERE_SOURCE, corner(plan, t->from_at, a->source_strides)},
                           a->source_strides};
    const side_t target = {{to, WHERE_TARGET, corner(plan, t->to_at, b->target_strides)},
                           b->target_strides};
    bool is_ours = a->reach == DT_EXCHANGE_OWN, is_to_us = b->reach == DT_EXCHANGE_OWN;
    if (is_ours && is_to_us)
        return box_copy(it, plan, 0, t->sizes, source, target);
    if (is_ours)
        return end_add(it, plan, t, true, source, rank_of(plan, b->member));
    return !is_to_us || end_add(it, plan, t, false, target, rank_of(plan, a->member));
}

static uint32_t place_of(const dt_exchange_plan_t *plan, uint64_t vdev)
{
    uint32_t i = 0;
    while (i + 1 < plan->place_count && plan->places[i].vdev != vdev)
        i++;
    return i;
}

/* Everybody lists everything: so the boxes between two members come in one order. */
static dt_status_t boxes_prepare(dt_exchange_plan_t *plan, dt_exchange_grouped_t *it,
                                 dt_error_t *err)
{
    const dt_shard_pair_t pair = {&plan->meta, &plan->from_mesh, &plan->to_mesh, &plan->from,
                                  &plan->to};
    dt_shard_list_t list;
    dt_arena_t arena;
    dt_arena_init(&arena, DT_EXCHANGE_PLAN_BYTES);
    dt_status_t status = dt_shard_list(&pair, NULL, DT_SHARD_ALL, &arena, &list, err);
    for (uint32_t i = 0; status == DT_OK && i < list.count; i++) {
        const dt_shard_transfer_t *t = &list.transfers[i];
        dt_check(t->wave == 0 && !t->is_reduce); /* on one host, without parts */
        if (dt_exchange_box_bytes(plan, t->sizes) > 0 &&
            !transfer_add(it, plan, t, place_of(plan, t->from_vdev), place_of(plan, t->to_vdev)))
            status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
    }
    dt_arena_fini(&arena);
    return status;
}

static void reduce_prepare(const dt_exchange_plan_t *plan, dt_exchange_grouped_t *it,
                           uint8_t reduction)
{
    it->reduce =
        (dt_group_op_t){.kind = it->is_all_reduce ? DT_GROUP_ALL_REDUCE : DT_GROUP_REDUCE_SCATTER,
                        .dtype = plan->meta.dtype,
                        .reduction = reduction == DT_REDUCTION_SUM   ? DT_GROUP_SUM
                                     : reduction == DT_REDUCTION_MAX ? DT_GROUP_MAX
                                                                     : DT_GROUP_MIN};
    for (uint32_t i = 0; i < plan->place_count; i++)
        if (plan->places[i].reach == DT_EXCHANGE_OWN)
            it->reduce.count = (uint64_t)plan->places[i].target_count;
}

static dt_status_t prepare(dt_exchange_plan_t *plan, dt_error_t *err)
{
    uint8_t reduction = DT_REDUCTION_SUM;
    if (plan->grouped)
        return DT_OK;
    dt_exchange_grouped_t *it = calloc(1, sizeof *it);
    if (!it)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
    plan->grouped = it;
    way_t way = way_of(plan, &reduction);
    it->is_all_reduce = way == WAY_ALL_REDUCE;
    it->is_reduce_scatter = way == WAY_REDUCE_SCATTER;
    dt_status_t status = DT_OK;
    if (way == WAY_BOXES)
        status = boxes_prepare(plan, it, err);
    else
        reduce_prepare(plan, it, reduction);
    if (status != DT_OK)
        dt_exchange_grouped_free(plan);
    return status;
}

void dt_exchange_grouped_free(dt_exchange_plan_t *plan)
{
    dt_exchange_grouped_t *it = plan->grouped;
    plan->grouped = NULL;
    if (!it)
        return;
    for (unsigned when = 0; when < 2; when++) {
        free(it->copies[when]);
        free(it->from_spots[when]);
        free(it->to_spots[when]);
    }
    free(it->ops);
    free(it->op_spots);
    free(it);
}

/* ---- addresses ---- */

static uint8_t *address(const dt_transport_session_t *session, spot_t spot)
{
    const dt_exchange_place_t *place = &session->run.plan->places[spot.place];
    uint8_t *base = session->scratch;
    if (spot.where == WHERE_SOURCE)
        memcpy(&base, &place->source, sizeof base); /* it is only read */
    else if (spot.where == WHERE_TARGET)
        base = place->target;
    return base + spot.at;
}

static dt_status_t scratch_reserve(dt_transport_session_t *session, uint64_t bytes, dt_error_t *err)
{
    const dt_group_table_t *table = session->owner_groups;
    if (bytes <= session->scratch_bytes)
        return DT_OK;
    table->release(session->group_ctx, session->scratch);
    session->scratch = NULL;
    session->scratch_bytes = 0;
    void *block;
    DT_TRY(table->alloc(session->group_ctx, bytes, &block, err));
    session->scratch = block;
    session->scratch_bytes = bytes;
    return DT_OK;
}

static void addresses_fill(dt_transport_session_t *session)
{
    dt_exchange_plan_t *plan = session->run.plan;
    dt_exchange_grouped_t *it = plan->grouped;
    for (unsigned when = 0; when < 2; when++)
        for (uint32_t i = 0; i < it->copy_count[when]; i++) {
            it->copies[when][i].source = address(session, it->from_spots[when][i]);
            it->copies[when][i].target = address(session, it->to_spots[when][i]);
        }
    for (uint32_t i = 0; i < it->op_count; i++)
        it->ops[i].source = it->ops[i].target = address(session, it->op_spots[i]);
    for (uint32_t i = 0; i < plan->place_count; i++)
        if (plan->places[i].reach == DT_EXCHANGE_OWN) {
            it->reduce.source = plan->places[i].source;
            it->reduce.target = plan->places[i].target;
        }
    bool is_reducing = it->is_all_reduce || it->is_reduce_scatter;
    it->work = (dt_group_work_t){.before = it->copies[0],
                                 .before_count = it->copy_count[0],
                                 .ops = is_reducing ? &it->reduce : it->ops,
                                 .op_count = is_reducing ? it->reduce.count > 0 : it->op_count,
                                 .after = it->copies[1],
                                 .after_count = it->copy_count[1]};
}

/* ---- communicators ---- */

static dt_transport_group_t **find(dt_transport_session_t *session)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    dt_transport_group_t **at = &session->groups;
    while (*at &&
           ((*at)->member_count != plan->member_count ||
            memcmp((*at)->members, plan->members, plan->member_count * sizeof *plan->members) != 0))
        at = &(*at)->next;
    return at;
}

bool dt_exchange_group_offer(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_exchange_plan_t *plan = run->plan;
    dt_transport_group_t **at = find(session);
    if (prepare(plan, &run->result.err) != DT_OK ||
        scratch_reserve(session, plan->grouped->scratch_bytes, &run->result.err) != DT_OK)
        return false;
    addresses_fill(session);
    if (*at && (*at)->group)
        return true;
    size_t bytes = plan->member_count * sizeof *plan->members;
    dt_transport_group_t *group = *at ? *at : calloc(1, sizeof *group + bytes);
    if (!group) {
        (void)dt_fail(&run->result.err, DT_ERR_NOMEM, "dt", 0, "no memory for a group");
        return false;
    }
    group->member_count = plan->member_count;
    memcpy(group->members, plan->members, bytes);
    *at = group;
    if (plan->members[0] != session->world.self)
        return true;
    return session->owner_groups->id_make(session->group_ctx,
                                          &session->board->slots[session->world.self].group_id,
                                          &run->result.err) == DT_OK;
}

bool dt_exchange_group_begin(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    const dt_exchange_plan_t *plan = run->plan;
    dt_transport_group_t *group = *find(session);
    if (group->group)
        return true;
    const dt_group_id_t id = session->board->slots[plan->members[0]].group_id;
    const dt_group_place_t place = {.generation = ++session->group_generation,
                                    .rank = rank_of(plan, session->world.self),
                                    .count = plan->member_count};
    return session->owner_groups->join(session->group_ctx, &id, &place, &group->group,
                                       &run->result.err) == DT_OK;
}

dt_status_t dt_exchange_group_step(dt_transport_session_t *session, bool *ret_has_moved)
{
    dt_transport_run_t *run = &session->run;
    const dt_group_table_t *table = session->owner_groups;
    void *group = (*find(session))->group;
    *ret_has_moved = false;
    DT_TRY(table->poll(group, &run->result.err));
    *ret_has_moved = true;
    if (run->is_issued)
        return DT_OK;
    run->is_issued = true;
    DT_TRY(table->run(group, &run->plan->grouped->work, &run->result.err));
    return DT_ERR_AGAIN;
}

static void drop(dt_transport_session_t *session, dt_transport_group_t **at)
{
    dt_transport_group_t *group = *at;
    *at = group->next;
    session->owner_groups->leave(group->group);
    free(group);
}

void dt_exchange_group_leave(dt_transport_session_t *session)
{
    dt_transport_group_t **at = find(session);
    if (*at)
        drop(session, at);
}

void dt_exchange_groups_free(dt_transport_session_t *session)
{
    while (session->groups)
        drop(session, &session->groups);
    if (session->owner_groups)
        session->owner_groups->release(session->group_ctx, session->scratch);
    session->scratch = NULL;
}
