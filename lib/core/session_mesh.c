/* Meshes of a session, layouts by number, and whether those of a signature are right. Clients
 * derive layouts; here they are derived again by the same rules (lib/shard), once a signature. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/session_internal.h"

#define MESHES_FIRST 16u
#define SPOTS_FIRST  64u
#define SPOTS_MAX    16384u
#define SHAPE_BYTES  128

/* ---- meshes ---- */

static bool mesh_room(dt_session_t *session, uint32_t id)
{
    uint32_t cap = session->mesh_cap ? session->mesh_cap : MESHES_FIRST;
    dt_session_mesh_t *grown;
    if (id < session->mesh_cap)
        return true;
    while (cap <= id)
        cap *= 2;
    grown = realloc(session->meshes, cap * sizeof *grown);
    if (!grown)
        return false;
    memset(grown + session->mesh_cap, 0, (cap - session->mesh_cap) * sizeof *grown);
    session->meshes = grown;
    session->mesh_cap = cap;
    return true;
}

dt_status_t dt_session_meshes_init(dt_session_t *session)
{
    uint64_t *first = calloc(1, sizeof *first);
    if (!first || !mesh_room(session, 0)) {
        free(first);
        return DT_ERR_NOMEM;
    }
    session->meshes[0].vdevs = first;
    session->meshes[0].shard = dt_shard_mesh_single(first);
    return DT_OK;
}

void dt_session_meshes_fini(dt_session_t *session)
{
    for (uint32_t i = 0; i < session->mesh_cap; i++) {
        free(session->meshes[i].body);
        free(session->meshes[i].shape);
        free(session->meshes[i].vdevs);
    }
    free(session->meshes);
    free(session->spots);
    free(session->spot_index);
}

/* The body of a DEF_MESH, written again: the record at hand does not keep it. */
static int keep_mesh(const dt_record_t *record, dt_session_mesh_t *mesh)
{
    size_t cap = DT_FRAME_HEADER_BYTES + dt_record_bound(record);
    uint8_t *bytes = malloc(cap);
    dt_frame_writer_t writer;
    if (!bytes)
        return DT_FRAME_E_NOMEM;
    dt_frame_begin(&writer, bytes, cap, 1, 1);
    dt_check(dt_record_put(&writer, record));
    mesh->body_bytes = (uint32_t)(writer.len - DT_FRAME_HEADER_BYTES);
    mesh->body = malloc(mesh->body_bytes);
    if (mesh->body)
        memcpy(mesh->body, bytes + DT_FRAME_HEADER_BYTES, mesh->body_bytes);
    free(bytes);
    return mesh->body ? 0 : DT_FRAME_E_NOMEM;
}

/* "(dp=2, tp=2)", "(4)"; cut if its names are long. */
static char *shape_of(const dt_record_mesh_t *mesh)
{
    char text[SHAPE_BYTES] = "(", name[SHAPE_BYTES / 2], clean[SHAPE_BYTES / 2];
    size_t at = 1;
    for (int i = 0; i < mesh->ndim && at < sizeof text; i++) {
        size_t bytes = mesh->name_bytes[i] < sizeof name ? mesh->name_bytes[i] : sizeof name - 1;
        if (bytes)
            memcpy(name, mesh->names[i], bytes);
        name[bytes] = '\0';
        dt_wire_text_copy(clean, sizeof clean, name);
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s%s%" PRIu32, i ? ", " : "", clean,
                               *clean ? "=" : "", mesh->sizes[i]);
    }
    if (at < sizeof text)
        (void)snprintf(text + at, sizeof text - at, ")");
    return strdup(text);
}

static uint32_t lost_cause(const dt_session_t *session, const dt_session_mesh_t *mesh)
{
    for (uint32_t i = 0; i < mesh->shard.count; i++)
        if (!session->vdevs[mesh->vdevs[i]].link)
            return session->vdevs[mesh->vdevs[i]].cause;
    return 0;
}

int dt_session_define_mesh(dt_session_t *session, const dt_record_t *record)
{
    const dt_record_mesh_t *mesh = &record->mesh;
    dt_session_mesh_t made = {0};
    int error;
    if (mesh->vdev_count == 0)
        return DT_FRAME_E_BODY;
    if (mesh->id < session->mesh_cap && session->meshes[mesh->id].shard.count)
        return DT_FRAME_E_DUP;
    for (uint32_t i = 0; i < mesh->vdev_count; i++)
        if (mesh->vdevs[i] >= session->vdev_count)
            return DT_FRAME_E_LIMIT;
    /* A row of devices has ten bytes on the wire, whatever its length: what is kept counts. */
    uint64_t kept = mesh->vdev_count * sizeof *mesh->vdevs + dt_record_bound(record) + SHAPE_BYTES;
    if (session->definition_bytes + kept > DT_SESSION_SIG_BYTES)
        return DT_FRAME_E_LIMIT;
    if (!mesh_room(session, mesh->id))
        return DT_FRAME_E_NOMEM;
    uint64_t *vdevs = malloc(mesh->vdev_count * sizeof *vdevs);
    if (!vdevs)
        return DT_FRAME_E_NOMEM;
    memcpy(vdevs, mesh->vdevs, mesh->vdev_count * sizeof *vdevs);
    error = keep_mesh(record, &made);
    made.shape = shape_of(mesh);
    if (!made.shape)
        error = DT_FRAME_E_NOMEM;
    if (!error && dt_shard_mesh_init(&made.shard, mesh->ndim, mesh->sizes, vdevs, NULL) != DT_OK)
        error = DT_FRAME_E_LIMIT;
    if (error) {
        free(vdevs);
        free(made.body);
        free(made.shape);
        return error;
    }
    made.vdevs = vdevs;
    made.cause = lost_cause(session, &made);
    session->meshes[mesh->id] = made;
    session->definition_bytes += kept;
    return 0;
}

/* ---- layouts by number ---- */

static uint64_t hash_of(const dt_layout_t *layout)
{
    uint64_t hash = dt_hash_u64((uint64_t)layout->mesh << 8 | layout->ndim);
    for (int i = 0; i < layout->ndim; i++) {
        const dt_placement_t *p = &layout->placements[i];
        hash = dt_hash_u64(hash ^ ((uint64_t)p->order << 24 | (uint64_t)p->kind << 16 |
                                   (uint64_t)p->dim << 8 | p->reduction));
        hash = dt_hash_u64(hash ^ ((uint64_t)p->unit << 32 | p->groups));
    }
    return hash;
}

static bool spot_room(dt_session_t *session)
{
    uint32_t cap = session->spot_cap ? 2 * session->spot_cap : SPOTS_FIRST;
    if (session->spot_count < session->spot_cap)
        return true;
    dt_session_spot_t *spots = realloc(session->spots, cap * sizeof *spots);
    if (!spots)
        return false;
    session->spots = spots;
    uint32_t *index = calloc((size_t)2 * cap, sizeof *index);
    if (!index)
        return false;
    free(session->spot_index);
    session->spot_index = index;
    session->spot_cap = cap;
    for (uint32_t i = 0; i < session->spot_count; i++) {
        uint64_t at = hash_of(&spots[i].layout) & (2 * (uint64_t)cap - 1);
        while (index[at])
            at = (at + 1) & (2 * (uint64_t)cap - 1);
        index[at] = i + 1;
    }
    return true;
}

int dt_session_spot(dt_session_t *session, const dt_layout_t *layout, uint32_t *ret_spot)
{
    uint64_t mask, at;
    if (layout->mesh >= session->mesh_cap || session->meshes[layout->mesh].shard.count == 0)
        return DT_FRAME_E_LIMIT;
    const dt_session_mesh_t *mesh = &session->meshes[layout->mesh];
    if (mesh->shard.count == 1) {
        *ret_spot = (uint32_t)mesh->vdevs[0];
        return 0;
    }
    mask = 2 * (uint64_t)session->spot_cap - 1;
    for (at = hash_of(layout) & mask; session->spot_cap && session->spot_index[at];
         at = (at + 1) & mask) {
        uint32_t index = session->spot_index[at] - 1;
        if (!dt_layout_equal(&session->spots[index].layout, layout))
            continue;
        *ret_spot = session->vdev_count + index;
        return 0;
    }
    if (session->spot_count == SPOTS_MAX)
        return DT_FRAME_E_LIMIT;
    if (!spot_room(session))
        return DT_FRAME_E_NOMEM;
    session->spots[session->spot_count] =
        (dt_session_spot_t){.layout = *layout, .cause = mesh->cause};
    *ret_spot = session->vdev_count + session->spot_count++;
    mask = 2 * (uint64_t)session->spot_cap - 1;
    at = hash_of(layout) & mask;
    while (session->spot_index[at])
        at = (at + 1) & mask;
    session->spot_index[at] = session->spot_count;
    return 0;
}

const dt_session_mesh_t *dt_session_spot_mesh(const dt_session_t *session, uint32_t spot)
{
    return spot < session->vdev_count
               ? NULL
               : &session->meshes[session->spots[spot - session->vdev_count].layout.mesh];
}

uint32_t dt_session_spot_vdev(const dt_session_t *session, uint32_t spot)
{
    const dt_session_mesh_t *mesh = dt_session_spot_mesh(session, spot);
    return mesh ? (uint32_t)mesh->vdevs[0] : spot;
}

uint32_t dt_session_spot_cause(const dt_session_t *session, uint32_t spot)
{
    if (spot >= session->vdev_count)
        return session->spots[spot - session->vdev_count].cause;
    return session->vdevs[spot].link ? 0 : session->vdevs[spot].cause;
}

void dt_session_spots_update(dt_session_t *session)
{
    for (uint32_t i = 0; i < session->mesh_cap; i++)
        session->meshes[i].cause = lost_cause(session, &session->meshes[i]);
    for (uint32_t i = 0; i < session->spot_count; i++)
        session->spots[i].cause = session->meshes[session->spots[i].layout.mesh].cause;
}

/* ---- what a signature says of layouts ---- */

struct check {
    dt_sessions_t *sessions;
    dt_session_t *session;
    const dt_signature_t *sig;
    dt_error_t *err;
};

static const dt_session_mesh_t *mesh_of(const struct check *c, const dt_signature_tensor_t *tensor)
{
    return &c->session->meshes[tensor->layout.mesh];
}

static dt_status_t refuse(const struct check *c, const char *text)
{
    return dt_fail(c->err, DT_ERR_INVALID, "dt", 0, "%s: %s", c->sig->name, text);
}

static dt_status_t keep_steps(const struct check *c, const dt_shard_plan_t *chosen,
                              dt_session_plan_t *plan)
{
    uint32_t count = chosen->step_count;
    uint8_t *steps = malloc((size_t)count * DT_SHARD_STEP_BYTES + DT_VARINT_BYTES_MAX);
    dt_session_move_t *moves = calloc(count + 1, sizeof *moves);
    if (!steps || !moves) {
        free(steps);
        free(moves);
        return dt_fail(c->err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    }
    for (uint32_t i = 0; i < count; i++)
        moves[i] =
            (dt_session_move_t){chosen->steps[i].kind, (uint64_t)chosen->steps[i].recv_bytes};
    plan->step_bytes = (uint32_t)(dt_shard_steps_put(steps, chosen->steps, count) - steps);
    plan->steps = steps;
    plan->moves = moves;
    plan->move_count = count;
    return DT_OK;
}

void dt_session_steps_free(dt_session_plan_t *plan)
{
    free((void *)(uintptr_t)plan->steps);
    free((void *)(uintptr_t)plan->moves);
}

/* Steps are told, not followed (decision 0015): a session that wants more of them chosen than its
 * share of this thread allows gets one exchange for each. */
static void plan_work_refill(const struct check *c)
{
    dt_session_t *session = c->session;
    int64_t past_ns = c->sessions->now_ns - session->plan_work_ns;
    uint64_t more = (uint64_t)(past_ns / (DT_SESSION_SECOND_NS / DT_SESSION_PLAN_WORK_RATE));
    if (session->plan_work_ns == 0 || more >= DT_SESSION_PLAN_WORK - session->plan_work) {
        session->plan_work = DT_SESSION_PLAN_WORK;
        session->plan_work_ns = c->sessions->now_ns;
    } else if (more > 0) {
        session->plan_work += more;
        session->plan_work_ns = c->sessions->now_ns;
    }
}

/* One value, moved. */
static dt_status_t check_move(const struct check *c, dt_session_plan_t *plan)
{
    const dt_signature_tensor_t *in = c->sig->inputs, *out = c->sig->outputs;
    dt_shard_plan_t chosen;
    if (c->sig->input_count != 1 || c->sig->output_count != 1 || out->alias != DT_ALIAS_FRESH)
        return refuse(c, "takes one tensor and gives another one");
    if (in->meta.dtype != out->meta.dtype || in->meta.ndim != out->meta.ndim ||
        memcmp(in->meta.sizes, out->meta.sizes, in->meta.ndim * sizeof in->meta.sizes[0]) != 0)
        return refuse(c, "the result has another type or other sizes than the tensor");
    dt_shard_pair_t pair = {.meta = &in->meta,
                            .from_mesh = &mesh_of(c, in)->shard,
                            .to_mesh = &mesh_of(c, out)->shard,
                            .from = &in->layout,
                            .to = &out->layout};
    dt_layout_t from, to;
    if (pair.from_mesh->count == 1) { /* however it is written, it is the whole there */
        from = dt_layout_replicate(in->layout.mesh, pair.from_mesh->ndim);
        pair.from = &from;
    }
    if (pair.to_mesh->count == 1) {
        to = dt_layout_replicate(out->layout.mesh, pair.to_mesh->ndim);
        pair.to = &to;
    }
    plan_work_refill(c);
    uint64_t before = c->session->plan_work;
    DT_TRY(dt_shard_plan_choose(&pair, NULL, &c->session->plan_work, &chosen, c->err));
    c->sessions->counts.plan_work += before - c->session->plan_work;
    return keep_steps(c, &chosen, plan);
}

/* What one device has of a tensor. */
static dt_status_t check_part(const struct check *c, const dt_signature_tensor_t *whole,
                              uint32_t index, const dt_signature_tensor_t *part)
{
    const dt_session_mesh_t *mesh = mesh_of(c, whole), *alone = mesh_of(c, part);
    int64_t sizes[DT_META_DIM_MAX];
    if (alone->shard.count != 1 || alone->vdevs[0] != mesh->vdevs[index])
        return refuse(c, "a part lies on another device than its place in the mesh");
    DT_TRY(dt_layout_check(&whole->layout, &mesh->shard, &whole->meta, c->err));
    (void)dt_shard_sizes(&whole->layout, &mesh->shard, whole->meta.ndim, whole->meta.sizes, index,
                         sizes);
    if (part->meta.dtype != whole->meta.dtype || part->meta.ndim != whole->meta.ndim ||
        memcmp(sizes, part->meta.sizes, part->meta.ndim * sizeof sizes[0]) != 0)
        return refuse(c, "a part has another type or other sizes than the layout gives it");
    return DT_OK;
}

static dt_status_t check_local(const struct check *c)
{
    const dt_signature_tensor_t *in = c->sig->inputs, *out = c->sig->outputs;
    if (c->sig->input_count != 1 || c->sig->output_count != 1 ||
        (out->alias != DT_ALIAS_FRESH && out->alias != DT_ALIAS_VIEW))
        return refuse(c, "takes one tensor and gives one");
    const dt_session_mesh_t *mesh = mesh_of(c, in);
    int64_t index = dt_shard_mesh_find(&mesh->shard, mesh_of(c, out)->vdevs[0]);
    return index < 0 ? refuse(c, "the device has no part of the tensor")
                     : check_part(c, in, (uint32_t)index, out);
}

static dt_status_t check_assemble(const struct check *c)
{
    const dt_signature_tensor_t *out = c->sig->outputs;
    if (c->sig->output_count != 1 || out->alias != DT_ALIAS_FRESH)
        return refuse(c, "gives one tensor");
    for (int i = 0; i < out->layout.ndim; i++)
        if (out->layout.placements[i].kind == DT_PLACEMENT_PARTIAL)
            return refuse(c, "parts are not summands");
    const dt_session_mesh_t *mesh = mesh_of(c, out);
    if (c->sig->input_count != mesh->shard.count)
        return refuse(c, "takes a part for each device of the mesh");
    for (uint32_t i = 0; i < mesh->shard.count; i++)
        DT_TRY(check_part(c, out, i, &c->sig->inputs[i]));
    return DT_OK;
}

/* All on one mesh: one of the operator's rows. */
static dt_status_t check_row(const struct check *c)
{
    dt_sessions_t *sessions = c->sessions;
    const dt_session_mesh_t *mesh = NULL, *alike = NULL; /* another number for the same devices */
    bool is_unknown = c->sig->flags & DT_SIGNATURE_DATA_DEPENDENT;
    for (uint32_t i = 0; i < c->sig->input_count + c->sig->output_count; i++) {
        const dt_signature_tensor_t *tensor = i < c->sig->input_count
                                                  ? &c->sig->inputs[i]
                                                  : &c->sig->outputs[i - c->sig->input_count];
        if (i >= c->sig->input_count && tensor->alias == DT_ALIAS_NONE)
            continue;
        const dt_session_mesh_t *its = mesh_of(c, tensor);
        if (!mesh)
            mesh = its;
        if (its != mesh && its != alike && !dt_shard_mesh_equal(&mesh->shard, &its->shard))
            return refuse(c, "all tensors of an operator must lie on one mesh");
        if (its != mesh)
            alike = its;
        if (is_unknown &&
            (tensor->layout.ndim != mesh->shard.ndim || !dt_layout_is_replicate(&tensor->layout)))
            return refuse(c, "sizes that depend on values are known of Replicate tensors only");
    }
    if (is_unknown)
        return DT_OK;
    if (!sessions->rules)
        DT_TRY(dt_shard_rules_create(&sessions->rules, c->err));
    return dt_shard_verify(sessions->rules, c->sig, &mesh->shard, c->err);
}

dt_status_t dt_session_check_layouts(dt_sessions_t *sessions, dt_session_t *session,
                                     const dt_signature_t *decoded, dt_session_plan_t *plan,
                                     dt_error_t *err)
{
    const struct check c = {.sessions = sessions, .session = session, .sig = decoded, .err = err};
    if (dt_str_is_equal(decoded->name, "dtorch::redistribute"))
        return check_move(&c, plan);
    if (dt_str_is_equal(decoded->name, "dtorch::local"))
        return check_local(&c);
    if (dt_str_is_equal(decoded->name, "dtorch::assemble"))
        return check_assemble(&c);
    return check_row(&c);
}

bool dt_session_steps_again(dt_sessions_t *sessions, dt_session_t *session, dt_session_plan_t *plan)
{
    dt_cursor_t cursor = {.at = plan->body, .end = plan->body + plan->body_bytes};
    dt_signature_t *decoded;
    dt_arena_reset(&sessions->sig_arena);
    if (dt_signature_decode(&cursor, &sessions->sig_arena, &decoded) != 0)
        return false;
    return !dt_str_is_equal(decoded->name, "dtorch::redistribute") ||
           dt_session_check_layouts(sessions, session, decoded, plan, NULL) == DT_OK;
}

dt_status_t dt_session_check_upload(const dt_session_t *session, const dt_record_t *record,
                                    dt_error_t *err)
{
    const dt_layout_t *layout = &record->move.layout;
    const dt_session_mesh_t *mesh = &session->meshes[layout->mesh];
    DT_TRY(dt_layout_check(layout, &mesh->shard, &record->move.meta, err));
    if (record->move.number)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "an upload to several virtual devices is at most %u bytes: upload each part "
                       "to its own device and make one tensor of them with dtorch::assemble",
                       DT_RECORD_INLINE_MAX);
    for (int i = 0; i < layout->ndim; i++)
        if (layout->placements[i].kind == DT_PLACEMENT_PARTIAL)
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "an upload cannot be Partial");
    return DT_OK;
}
