#include "lib/transportrig.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/nccl/nccl.h"
#include "shm/memfd.h"
#include "shm/ring.h"
#include "transport/reduce.h"

#define RIG_ARENA_BYTES (INT64_C(256) << 20)
#define RIG_WAIT_MS     120000

static void die(const char *what, const dt_error_t *err)
{
    fprintf(stderr, "transportrig: %s: %s\n", what, err ? err->text : "");
    abort();
}

/* ---- engines ---- */

static void arena_open(dt_rig_engine_t *engine, uint32_t session)
{
    dt_error_t err = {0};
    int fd;
    size_t size = dt_shm_arena_size(RIG_ARENA_BYTES);
    if (dt_memfd_create("rig", size, &fd, &err) != DT_OK)
        die("memfd", &err);
    engine->arena_fds[session] = dup(fd);
    if (dt_shm_arena_open(fd, size, RIG_ARENA_BYTES, &engine->arenas[session], &err) != DT_OK)
        die("arena", &err);
}

/* One board a host, with the same members. */
static void boards_make(dt_rig_t *rig, uint32_t session, int *board_fds)
{
    dt_error_t err = {0};
    for (uint32_t h = 0; h < rig->engine_count; h++) {
        if (dt_board_create(&board_fds[h], &rig->boards[session][h], &err) != DT_OK)
            die("board", &err);
        for (uint32_t e = 0; e < rig->engine_count; e++) {
            uint32_t vdevs[DT_RIG_VDEVS_MAX];
            uint32_t count = 0;
            uint32_t member;
            char node[16];
            for (uint32_t v = 0; v < DT_RIG_VDEVS_MAX; v++)
                if (rig->engine_of[v] == e)
                    vdevs[count++] = v;
            (void)snprintf(node, sizeof node, "node%u", e);
            const dt_board_entry_t entry = {
                node, rig->host_of[e], e, dt_shm_arena_size(RIG_ARENA_BYTES), vdevs, count};
            if (dt_board_add(rig->boards[session][h], &entry, &member, &err) != DT_OK)
                die("board", &err);
        }
    }
}

static void peers_join(dt_rig_t *rig, uint32_t session, uint32_t a, uint32_t b)
{
    dt_error_t err = {0};
    int pair[2];
    if (rig->host_of[a] == rig->host_of[b]) {
        if (dt_transport_peer(rig->engines[a].transport, session, b,
                              rig->engines[b].arena_fds[session], dup(rig->engines[b].wake),
                              &err) != DT_OK ||
            dt_transport_peer(rig->engines[b].transport, session, a,
                              rig->engines[a].arena_fds[session], dup(rig->engines[a].wake),
                              &err) != DT_OK)
            die("peer", &err);
        return;
    }
    const uint8_t key[32] = {(uint8_t)session, (uint8_t)a, (uint8_t)b, 1};
    const dt_link_secret_t one = {.key = key}, other = {.key = key, .is_server = true};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) ||
        dt_transport_link(rig->engines[a].transport, session, b, pair[0],
                          rig->has_tls ? &one : NULL, &err) != DT_OK ||
        dt_transport_link(rig->engines[b].transport, session, a, pair[1],
                          rig->has_tls ? &other : NULL, &err) != DT_OK)
        die("link", &err);
}

static void session_open(dt_rig_t *rig, uint32_t session)
{
    dt_error_t err = {0};
    int board_fds[DT_RIG_ENGINES_MAX];
    boards_make(rig, session, board_fds);
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        arena_open(&rig->engines[e], session);
        if (dt_transport_open(rig->engines[e].transport, session, rig->engines[e].arenas[session],
                              NULL, 0, &err) != DT_OK ||
            dt_transport_board(rig->engines[e].transport, session, board_fds[rig->host_of[e]], e,
                               &err) != DT_OK)
            die("session", &err);
    }
    for (uint32_t e = 0; e < rig->engine_count; e++)
        for (uint32_t p = e + 1; p < rig->engine_count; p++)
            peers_join(rig, session, e, p);
    for (uint32_t h = 0; h < rig->engine_count; h++)
        (void)close(board_fds[h]);
}

void dt_rig_open(dt_rig_t *rig, uint32_t engine_count, uint32_t session_count,
                 const uint8_t *engine_of)
{
    static const uint8_t one_host[DT_RIG_ENGINES_MAX] = {0};
    dt_rig_open_hosts(rig, engine_count, session_count, engine_of, one_host, DT_RIG_PLAIN);
}

static void open_all(dt_rig_t *rig, uint32_t engine_count, uint32_t session_count)
{
    dt_error_t err = {0};
    rig->engine_count = engine_count;
    rig->session_count = session_count;
    for (uint32_t e = 0; e < engine_count; e++) {
        dt_rig_engine_t *engine = &rig->engines[e];
        if (dt_ring_wake_create(&engine->wake, &err) != DT_OK ||
            dt_ring_wake_create(&engine->executor, &err) != DT_OK)
            die("eventfd", &err);
        const dt_transport_options_t options = {.wake = engine->wake,
                                                .executor = engine->executor,
                                                .groups = rig->groups[e] ? dt_nccl_groups() : NULL,
                                                .group_ctx = rig->groups[e]};
        if (dt_transport_create(&options, &engine->transport, &err) != DT_OK)
            die("transport", &err);
    }
    for (uint32_t s = 0; s < session_count; s++)
        session_open(rig, s);
}

void dt_rig_open_groups(dt_rig_t *rig, uint32_t engine_count, const uint8_t *engine_of,
                        const char *library, uint32_t without)
{
    dt_error_t err = {0};
    memset(rig, 0, sizeof *rig);
    memcpy(rig->engine_of, engine_of, sizeof rig->engine_of);
    rig->is_in_heap = true;
    for (uint32_t e = 0; e < engine_count; e++) {
        const dt_group_options_t options = {
            .device = (int32_t)e, .library = library, .runtime = library};
        if (e != without && dt_nccl_groups()->open(&options, &rig->groups[e], &err) != DT_OK)
            die("groups", &err);
    }
    open_all(rig, engine_count, 1);
}

void dt_rig_open_hosts(dt_rig_t *rig, uint32_t engine_count, uint32_t session_count,
                       const uint8_t *engine_of, const uint8_t *host_of, dt_rig_how_t how)
{
    memset(rig, 0, sizeof *rig);
    rig->has_tls = how == DT_RIG_TLS;
    memcpy(rig->engine_of, engine_of, sizeof rig->engine_of);
    memcpy(rig->host_of, host_of, engine_count);
    open_all(rig, engine_count, session_count);
}

void dt_rig_close(dt_rig_t *rig)
{
    for (uint32_t s = 0; s < rig->session_count; s++) {
        dt_rig_drop(rig, s);
        for (uint32_t h = 0; h < rig->engine_count; h++)
            dt_board_close(rig->boards[s][h]);
    }
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        dt_transport_free(rig->engines[e].transport);
        dt_nccl_groups()->close(rig->groups[e]);
        for (uint32_t s = 0; s < rig->session_count; s++) {
            dt_shm_arena_close(rig->engines[e].arenas[s]);
            (void)close(rig->engines[e].arena_fds[s]);
        }
        (void)close(rig->engines[e].wake);
        (void)close(rig->engines[e].executor);
    }
}

/* ---- cases ---- */

static dt_placement_t placement_of(const char *word)
{
    static const char *const reductions[] = {"Psum", "Pavg", "Pmax", "Pmin"};
    if (word[0] == 'S')
        return dt_placement_shard((unsigned)(word[1] - '0'));
    for (unsigned i = 0; i < 4; i++)
        if (strncmp(word, reductions[i], 4) == 0)
            return dt_placement_partial(i);
    return dt_placement_replicate();
}

static dt_layout_t layout_of(const char *words)
{
    dt_layout_t layout = {.mesh = 1};
    while (*words) {
        layout.placements[layout.ndim++] = placement_of(words);
        words += strcspn(words, " ");
        words += strspn(words, " ");
    }
    return layout;
}

void dt_rig_case(dt_rig_case_t *ret_case, unsigned dtype, unsigned ndim, const int64_t *sizes,
                 unsigned mesh_ndim, const uint32_t *mesh_sizes, const char *from, const char *to,
                 uint64_t seed)
{
    dt_error_t err = {0};
    memset(ret_case, 0, sizeof *ret_case);
    for (uint64_t i = 0; i < DT_RIG_VDEVS_MAX; i++)
        ret_case->vdevs[0][i] = ret_case->vdevs[1][i] = i;
    ret_case->from = layout_of(from);
    ret_case->to = layout_of(to);
    ret_case->seed = seed;
    if (dt_meta_set(&ret_case->meta, dtype, ndim, sizes, NULL, 0, &err) != DT_OK ||
        dt_shard_mesh_init(&ret_case->from_mesh, mesh_ndim, mesh_sizes, ret_case->vdevs[0], &err) !=
            DT_OK ||
        dt_shard_mesh_init(&ret_case->to_mesh, mesh_ndim, mesh_sizes, ret_case->vdevs[1], &err) !=
            DT_OK)
        die("case", &err);
}

static dt_shard_pair_t pair_of(const dt_rig_case_t *c)
{
    return (dt_shard_pair_t){&c->meta, &c->from_mesh, &c->to_mesh, &c->from, &c->to};
}

bool dt_rig_is_legal(const dt_rig_case_t *c, dt_error_t *err)
{
    const dt_shard_pair_t pair = pair_of(c);
    dt_exchange_plan_t *plan;
    if (dt_exchange_plan_create("test", &pair, &plan, err) != DT_OK)
        return false;
    dt_exchange_plan_free(plan);
    return true;
}

/* ---- values ---- */

/* One lane of an element: what device part `part` holds at global element `at`. */
static void value_put(const dt_rig_case_t *c, uint32_t part, uint64_t at, uint8_t *ret)
{
    uint64_t x = (c->seed * 1000003 + at + 1) * UINT64_C(0x9e3779b97f4a7c15) + part * 77777;
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 32;
    bool is_exact = c->is_exact;
    double real = is_exact ? (double)(x % 9) - 4
                           : ((double)(x & 0xffffff) - 8388608) * (x & (1u << 30) ? 1e-5 : 1e-3);
    float f32 = (float)real;
    uint32_t bits;
    memcpy(&bits, &f32, sizeof bits);
    switch (c->meta.dtype) {
    case DT_DTYPE_F32:
    case DT_DTYPE_C64:
        memcpy(ret, &f32, sizeof f32);
        break;
    case DT_DTYPE_F64:
    case DT_DTYPE_C128:
        memcpy(ret, &real, sizeof real);
        break;
    case DT_DTYPE_BF16: {
        uint16_t half = (uint16_t)(bits >> 16); /* exact for small whole numbers */
        memcpy(ret, &half, sizeof half);
        break;
    }
    case DT_DTYPE_BOOL:
        ret[0] = x & 1;
        break;
    default:
        memcpy(ret, &x, dt_dtype_bytes(c->meta.dtype) < 8 ? dt_dtype_bytes(c->meta.dtype) : 8);
        if (c->meta.dtype == DT_DTYPE_F16 || c->meta.dtype == DT_DTYPE_C32)
            ret[1] = (uint8_t)((ret[1] & 0x83) | 0x38); /* about 1 */
        break;
    }
}

static void element_put(const dt_rig_case_t *c, uint32_t part, uint64_t at, uint8_t *ret)
{
    size_t bytes = dt_dtype_bytes(c->meta.dtype);
    bool is_complex = c->meta.dtype == DT_DTYPE_C32 || c->meta.dtype == DT_DTYPE_C64 ||
                      c->meta.dtype == DT_DTYPE_C128;
    value_put(c, part, is_complex ? 2 * at : at, ret);
    if (is_complex)
        value_put(c, part, 2 * at + 1, ret + bytes / 2);
}

/* Which contribution a place of the mesh holds. */
static uint32_t part_of(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, uint32_t index,
                        uint32_t *ret_count)
{
    uint32_t coords[DT_RECORD_MESH_DIM_MAX];
    uint32_t part = 0;
    *ret_count = 1;
    dt_shard_mesh_coords(mesh, index, coords);
    for (int d = 0; d < layout->ndim; d++)
        if (layout->placements[d].kind == DT_PLACEMENT_PARTIAL) {
            part = part * mesh->sizes[d] + coords[d];
            *ret_count *= mesh->sizes[d];
        }
    return part;
}

static uint8_t reduction_of(const dt_layout_t *layout)
{
    uint8_t reduction = DT_REDUCTION_SUM;
    for (int d = 0; d < layout->ndim; d++)
        if (layout->placements[d].kind == DT_PLACEMENT_PARTIAL &&
            layout->placements[d].reduction >= DT_REDUCTION_MAX)
            reduction = layout->placements[d].reduction;
    return reduction;
}

/* The global element that local element `k` of a box is. */
static uint64_t global_of(const dt_rig_case_t *c, const dt_shard_box_t *box, uint64_t k)
{
    uint64_t at = 0;
    uint64_t scale = 1;
    for (int d = c->meta.ndim - 1; d >= 0; d--) {
        const dt_shard_span_t *span = &box->spans[d];
        uint64_t local = k % (uint64_t)dt_shard_span_size(span);
        k /= (uint64_t)dt_shard_span_size(span);
        at +=
            scale * ((uint64_t)span->lo + local / (uint64_t)span->length * (uint64_t)span->stride +
                     local % (uint64_t)span->length);
        scale *= (uint64_t)c->meta.sizes[d];
    }
    return at;
}

static uint64_t box_count(const dt_shard_box_t *box)
{
    uint64_t count = 1;
    for (int d = 0; d < box->ndim; d++)
        count *= (uint64_t)dt_shard_span_size(&box->spans[d]);
    return count;
}

static void source_fill(const dt_rig_case_t *c, uint32_t index, const dt_shard_box_t *box,
                        uint8_t *bytes)
{
    uint32_t count;
    uint32_t part = part_of(&c->from, &c->from_mesh, index, &count);
    size_t item = dt_dtype_bytes(c->meta.dtype);
    for (uint64_t k = 0; k < box_count(box); k++)
        element_put(c, part, global_of(c, box, k), bytes + k * item);
}

/* ---- moving ---- */

static void on_done(void *arg, const dt_exchange_result_t *result)
{
    dt_rig_move_t *move = arg;
    move->is_done = true;
    move->status = result->status;
    move->err = result->err;
    move->cause_sequence = result->cause.size ? result->cause.sequence : 0;
    (void)snprintf(move->cause, sizeof move->cause, "%.*s", (int)result->cause.size,
                   result->cause.size ? (const char *)result->cause.bytes : "");
}

static void *block_new(dt_rig_t *rig, uint32_t engine, uint32_t session, size_t size)
{
    void *block = rig->is_in_heap ? malloc(size)
                                  : dt_shm_arena_alloc(rig->engines[engine].arenas[session], size);
    if (!block)
        die("no room in the arena", NULL);
    memset(block, 0xa5, size);
    return block;
}

static void block_free(dt_rig_t *rig, uint32_t engine, uint32_t session, void *block)
{
    if (rig->is_in_heap)
        free(block);
    else if (block)
        dt_shm_arena_free(rig->engines[engine].arenas[session], block);
}

static void buffers_make(dt_rig_t *rig, uint32_t engine, uint32_t session, const dt_rig_case_t *c)
{
    dt_rig_move_t *move = &rig->engines[engine].moves[session];
    size_t item = dt_dtype_bytes(c->meta.dtype);
    for (uint32_t v = 0; v < DT_RIG_VDEVS_MAX; v++) {
        dt_shard_box_t box;
        if (rig->engine_of[v] != engine)
            continue;
        int64_t from = dt_shard_mesh_find(&c->from_mesh, v);
        int64_t to = dt_shard_mesh_find(&c->to_mesh, v);
        if (from < 0 && to < 0)
            continue;
        uint32_t at = move->vdev_count++;
        move->vdevs[at] = v;
        if (from >= 0 && dt_shard_box(&c->from, &c->from_mesh, c->meta.ndim, c->meta.sizes,
                                      (uint32_t)from, &box)) {
            move->sources[at] = block_new(rig, engine, session, box_count(&box) * item);
            source_fill(c, (uint32_t)from, &box, move->sources[at]);
        }
        if (to >= 0 &&
            dt_shard_box(&c->to, &c->to_mesh, c->meta.ndim, c->meta.sizes, (uint32_t)to, &box))
            move->targets[at] =
                block_new(rig, engine, session, move->target_bytes[at] = box_count(&box) * item);
    }
}

void dt_rig_start(dt_rig_t *rig, uint32_t engine, uint32_t session, const dt_rig_case_t *c,
                  uint64_t number, const char *cause)
{
    dt_rig_move_t *move = &rig->engines[engine].moves[session];
    const dt_shard_pair_t pair = pair_of(c);
    dt_exchange_buffer_t buffers[DT_RIG_VDEVS_MAX];
    dt_error_t err = {0};
    memset(move, 0, sizeof *move);
    buffers_make(rig, engine, session, c);
    if (move->vdev_count == 0)
        return;
    for (uint32_t i = 0; i < move->vdev_count; i++)
        buffers[i] = (dt_exchange_buffer_t){move->vdevs[i], move->sources[i], move->targets[i]};
    if (dt_exchange_plan_create("test", &pair, &move->plan, &err) != DT_OK)
        die("plan", &err);
    dt_exchange_t exchange = {.plan = move->plan,
                              .number = number,
                              .buffers = buffers,
                              .buffer_count = move->vdev_count,
                              .done = on_done,
                              .arg = move};
    if (cause)
        exchange.cause = (dt_exchange_cause_t){number * 10 + engine, (uint32_t)strlen(cause),
                                               (const uint8_t *)cause};
    move->is_started = true;
    (void)dt_transport_start(rig->engines[engine].transport, session, &exchange);
}

void dt_rig_finish(dt_rig_t *rig)
{
    for (;;) {
        struct pollfd fds[DT_RIG_ENGINES_MAX];
        bool is_waiting = false;
        for (uint32_t e = 0; e < rig->engine_count; e++) {
            (void)dt_transport_collect(rig->engines[e].transport);
            fds[e] = (struct pollfd){.fd = rig->engines[e].executor, .events = POLLIN};
            for (uint32_t s = 0; s < rig->session_count; s++)
                is_waiting |=
                    rig->engines[e].moves[s].is_started && !rig->engines[e].moves[s].is_done;
        }
        if (!is_waiting)
            return;
        if (poll(fds, rig->engine_count, RIG_WAIT_MS) == 0)
            die("an exchange hangs", NULL);
        for (uint32_t e = 0; e < rig->engine_count; e++)
            if (fds[e].revents)
                dt_ring_wake_clear(fds[e].fd);
    }
}

uint32_t dt_rig_again(dt_rig_t *rig, uint32_t session, uint32_t absent)
{
    uint32_t grouped = 0;
    rig->number++;
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        dt_rig_move_t *move = &rig->engines[e].moves[session];
        dt_exchange_buffer_t buffers[DT_RIG_VDEVS_MAX];
        if (move->vdev_count == 0 || e == absent)
            continue;
        for (uint32_t i = 0; i < move->vdev_count; i++) {
            buffers[i] = (dt_exchange_buffer_t){move->vdevs[i], move->sources[i], move->targets[i]};
            if (move->targets[i])
                memset(move->targets[i], 0xa5, move->target_bytes[i]);
        }
        dt_exchange_t exchange = {.plan = move->plan,
                                  .number = rig->number,
                                  .buffers = buffers,
                                  .buffer_count = move->vdev_count,
                                  .is_grouped = dt_exchange_plan_is_grouped(move->plan),
                                  .done = on_done,
                                  .arg = move};
        if (rig->cause_of == e + 1)
            exchange.cause = (dt_exchange_cause_t){1, 6, (const uint8_t *)"poison"};
        grouped += exchange.is_grouped;
        move->is_done = false;
        (void)dt_transport_start(rig->engines[e].transport, session, &exchange);
    }
    return grouped;
}

void dt_rig_drop(dt_rig_t *rig, uint32_t session)
{
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        dt_rig_move_t *move = &rig->engines[e].moves[session];
        for (uint32_t i = 0; i < move->vdev_count; i++) {
            block_free(rig, e, session, move->sources[i]);
            block_free(rig, e, session, move->targets[i]);
        }
        dt_exchange_plan_free(move->plan);
        memset(move, 0, sizeof *move);
    }
}

/* ---- comparing ---- */

static const uint8_t *target_of(const dt_rig_t *rig, uint32_t session, uint64_t vdev)
{
    const dt_rig_move_t *move = &rig->engines[rig->engine_of[vdev]].moves[session];
    for (uint32_t i = 0; i < move->vdev_count; i++)
        if (move->vdevs[i] == vdev)
            return move->targets[i];
    return NULL;
}

/* What element `at` must be: the parts, combined in their order, scaled. */
static void value_expected(const dt_rig_case_t *c, uint64_t at, int64_t num, int64_t den,
                           uint8_t *ret)
{
    uint8_t bytes[DT_RIG_VDEVS_MAX][16];
    const void *parts[DT_RIG_VDEVS_MAX];
    void *target = ret;
    uint32_t count;
    (void)part_of(&c->from, &c->from_mesh, 0, &count);
    for (uint32_t p = 0; p < count; p++) {
        element_put(c, p, at, bytes[p]);
        parts[p] = bytes[p];
    }
    const dt_reduce_t reduce = {c->meta.dtype, reduction_of(&c->from), false, num, den};
    if (count > 1 || num != 1 || den != 1)
        dt_reduce_run(&reduce, parts, count, &target, 1, 1);
    else
        memcpy(ret, bytes[0], dt_dtype_bytes(c->meta.dtype));
}

/* Combine what the devices of a Partial target hold of element `at`. */
static bool value_held(const dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c, uint64_t at,
                       uint8_t *ret)
{
    size_t item = dt_dtype_bytes(c->meta.dtype);
    const void *parts[DT_RIG_VDEVS_MAX] = {NULL};
    void *target = ret;
    uint32_t count = 1;
    for (uint32_t i = 0; i < c->to_mesh.count; i++) {
        dt_shard_box_t box;
        int64_t local = 0;
        uint32_t part = part_of(&c->to, &c->to_mesh, i, &count);
        uint64_t rest = at;
        int64_t scale = 1;
        if (!dt_shard_box(&c->to, &c->to_mesh, c->meta.ndim, c->meta.sizes, i, &box))
            continue;
        for (int d = c->meta.ndim - 1; d >= 0 && local >= 0; d--) {
            int64_t here =
                dt_shard_span_local(&box.spans[d], (int64_t)(rest % (uint64_t)c->meta.sizes[d]));
            local = here < 0 ? -1 : local + here * scale;
            scale *= dt_shard_span_size(&box.spans[d]);
            rest /= (uint64_t)c->meta.sizes[d];
        }
        if (local >= 0 && !parts[part])
            parts[part] = target_of(rig, session, c->to_mesh.vdevs[i]) + (size_t)local * item;
    }
    for (uint32_t p = 0; p < count; p++)
        if (!parts[p])
            return false;
    const dt_reduce_t reduce = {c->meta.dtype, reduction_of(&c->to), false, 1,
                                (int64_t)dt_layout_avg_count(&c->to, &c->to_mesh)};
    if (count > 1)
        dt_reduce_run(&reduce, parts, count, &target, 1, 1);
    else
        memcpy(ret, parts[0], item);
    return true;
}

static bool compare_place(const dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c,
                          uint32_t index, char *what, size_t size)
{
    dt_shard_box_t box;
    size_t item = dt_dtype_bytes(c->meta.dtype);
    uint32_t to_parts;
    const uint8_t *bytes = target_of(rig, session, c->to_mesh.vdevs[index]);
    int64_t den = (int64_t)dt_layout_avg_count(&c->from, &c->from_mesh);
    (void)part_of(&c->to, &c->to_mesh, index, &to_parts);
    if (!dt_shard_box(&c->to, &c->to_mesh, c->meta.ndim, c->meta.sizes, index, &box))
        return true;
    for (uint64_t k = 0; k < box_count(&box); k++) {
        uint8_t wanted[16] = {0};
        uint8_t held[16] = {0};
        uint64_t at = global_of(c, &box, k);
        value_expected(c, at, 1, den, wanted);
        if (to_parts == 1)
            memcpy(held, bytes + k * item, item);
        else if (!value_held(rig, session, c, at, held))
            memset(held, 0xee, item);
        if (memcmp(wanted, held, item) == 0)
            continue;
        (void)snprintf(what, size, "device %u, element %llu of its shard is not what it must be",
                       index, (unsigned long long)k);
        return false;
    }
    return true;
}

bool dt_rig_compare(dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c, char *what,
                    size_t size)
{
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        const dt_rig_move_t *move = &rig->engines[e].moves[session];
        if (!move->is_started || move->status == DT_OK)
            continue;
        (void)snprintf(what, size, "engine %u: %s %s", e, dt_status_text(move->status),
                       move->err.text);
        return false;
    }
    for (uint32_t i = 0; i < c->to_mesh.count; i++)
        if (!compare_place(rig, session, c, i, what, size))
            return false;
    return true;
}

bool dt_rig_check(dt_rig_t *rig, const dt_rig_case_t *c, char *what, size_t size)
{
    rig->number++;
    for (uint32_t e = 0; e < rig->engine_count; e++)
        dt_rig_start(rig, e, 0, c, rig->number, NULL);
    dt_rig_finish(rig);
    bool is_right = dt_rig_compare(rig, 0, c, what, size);
    dt_rig_drop(rig, 0);
    return is_right;
}

uint64_t dt_rig_sum(const dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c)
{
    uint64_t sum = 0;
    size_t item = dt_dtype_bytes(c->meta.dtype);
    for (uint32_t i = 0; i < c->to_mesh.count; i++) {
        dt_shard_box_t box;
        const uint8_t *bytes = target_of(rig, session, c->to_mesh.vdevs[i]);
        if (!dt_shard_box(&c->to, &c->to_mesh, c->meta.ndim, c->meta.sizes, i, &box))
            continue;
        for (uint64_t k = 0; k < box_count(&box) * item; k++)
            sum = (sum ^ bytes[k]) * UINT64_C(0x100000001b3) + 1;
    }
    return sum;
}
