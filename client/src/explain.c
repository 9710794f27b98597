/* What the program's operators become, noted while somebody wants to know, and moves that are heavy
 * for the step that they are in. */
#include "shard/explain.h"

#include <dtorch/explain.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "client.h"

#define RECORDS_MAX (1u << 20)
#define JSON_MAX    (64u << 20)
#define ARENA_MAX   (8u << 20)
#define HEAVY_MIN   (UINT64_C(1) << 20)

struct note {
    uint32_t signature, source, group;
};

struct dt_client_explain {
    uint32_t group, groups; /* of the records that are put now; given out so far */
    uint64_t dropped;
    struct note *notes;
    uint32_t count, cap;
};

/* ---- noting; lock held ---- */

void dt_client_explain_note(dt_session_t *session, uint32_t signature)
{
    struct dt_client_explain *x = session->explain;
    if (x->count == x->cap) {
        uint32_t cap = x->cap ? 2 * x->cap : 256;
        struct note *grown = cap <= RECORDS_MAX ? realloc(x->notes, cap * sizeof *grown) : NULL;
        if (!grown) {
            x->dropped++;
            return;
        }
        x->notes = grown;
        x->cap = cap;
    }
    x->notes[x->count++] = (struct note){signature, session->source, x->group};
}

uint32_t dt_client_explain_enter(dt_session_t *session)
{
    struct dt_client_explain *x = session->explain;
    uint32_t outer = x ? x->group : 0;
    if (x && !outer)
        x->group = ++x->groups;
    return outer;
}

void dt_client_explain_leave(dt_session_t *session, uint32_t outer)
{
    if (session->explain)
        session->explain->group = outer;
}

void dt_client_explain_fini(dt_session_t *session)
{
    if (session->explain)
        free(session->explain->notes);
    free(session->explain);
    session->explain = NULL;
}

dt_status_t dt_explain_begin(dt_session_t *session, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = DT_OK;
    if (session->explain)
        status = dt_fail(err, DT_ERR_EXISTS, "dt", 0, "the session's operators are noted already");
    else if (!(session->explain = calloc(1, sizeof *session->explain)))
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to note operators");
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- explaining ---- */

/* A session's meshes, those of one device made as they are asked for. */
struct meshes {
    const dt_session_t *session;
    dt_shard_mesh_t alone;
    uint64_t vdev;
};

static const dt_shard_mesh_t *mesh_of(void *arg, uint32_t mesh)
{
    struct meshes *m = arg;
    uint32_t first = m->session->settings.vdev_count;
    if (mesh >= first)
        return mesh - first < m->session->track.mesh_count
                   ? &m->session->track.meshes[mesh - first]->shard
                   : NULL;
    m->vdev = mesh;
    m->alone = dt_shard_mesh_single(&m->vdev);
    return &m->alone;
}

/* Lock held. *ret_name lives in the arena. */
static dt_status_t explain(const dt_session_t *session, const dt_shard_rules_t *rules,
                           uint32_t signature, dt_arena_t *arena, const char **ret_name,
                           dt_shard_explained_t *ret_explained, dt_error_t *err)
{
    const dt_client_signature_t *sig = session->cache.signatures[signature];
    struct meshes meshes = {.session = session};
    dt_cursor_t cursor = {.at = sig->body, .end = sig->body + sig->body_bytes};
    dt_signature_t *decoded;
    dt_arena_reset(arena);
    if (dt_signature_decode(&cursor, arena, &decoded) != 0)
        return dt_fail(err, DT_ERR_INTERNAL, "dt", signature, "a signature cannot be read");
    *ret_name = decoded->name;
    return dt_shard_explain(rules, decoded, mesh_of, &meshes, ret_explained, err);
}

static void put_signature(dt_json_t *json, const dt_session_t *session, const char *name,
                          const dt_shard_explained_t *is)
{
    uint32_t first = session->settings.vdev_count;
    dt_json_open(json, '{');
    dt_json_put_text(json, "operator", name);
    dt_json_put_text(json, "rule", is->rule);
    dt_json_put_text(json, "inputs", is->inputs);
    dt_json_put_text(json, "outputs", is->outputs);
    dt_json_put_text(json, "algorithm", is->steps);
    dt_json_key(json, "is_move");
    dt_json_bool(json, is->is_move);
    dt_json_put_int(json, "bytes", is->bytes);
    dt_json_put_int(json, "planned_ns", (int64_t)(is->cost_us * 1000));
    dt_json_key(json, "mesh");
    dt_json_open(json, '[');
    if (is->mesh >= first && is->mesh - first < session->track.mesh_count) {
        const dt_shard_mesh_t *mesh = &session->track.meshes[is->mesh - first]->shard;
        for (unsigned i = 0; i < mesh->ndim; i++)
            dt_json_uint(json, mesh->sizes[i]);
    }
    dt_json_close(json, ']');
    dt_json_close(json, '}');
}

/* Signatures by the order of their first records; `number` says which of them each is. */
static dt_status_t put_signatures(dt_json_t *json, const dt_session_t *session,
                                  const struct dt_client_explain *x, uint32_t *number,
                                  dt_error_t *err)
{
    dt_shard_rules_t *own = NULL;
    dt_shard_explained_t is;
    dt_arena_t arena;
    uint32_t count = 0;
    dt_status_t status = session->track.rules ? DT_OK : dt_shard_rules_create(&own, err);
    dt_arena_init(&arena, ARENA_MAX);
    for (uint32_t i = 0; status == DT_OK && i < x->count; i++) {
        uint32_t signature = x->notes[i].signature;
        const char *name = "";
        if (number[signature])
            continue;
        number[signature] = ++count;
        status =
            explain(session, own ? own : session->track.rules, signature, &arena, &name, &is, err);
        if (status == DT_OK)
            put_signature(json, session, name, &is);
    }
    dt_arena_fini(&arena);
    dt_shard_rules_free(own);
    return status;
}

static dt_status_t put_all(dt_json_t *json, const dt_session_t *session,
                           const struct dt_client_explain *x, dt_error_t *err)
{
    uint32_t *number = calloc(session->cache.signature_count + 1, sizeof *number);
    if (!number)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to explain operators");
    dt_json_open(json, '{');
    dt_json_key(json, "signatures");
    dt_json_open(json, '[');
    dt_status_t status = put_signatures(json, session, x, number, err);
    dt_json_close(json, ']');
    dt_json_key(json, "records");
    dt_json_open(json, '[');
    for (uint32_t i = 0; status == DT_OK && i < x->count; i++) {
        const struct note *note = &x->notes[i];
        dt_json_open(json, '{');
        dt_json_put_uint(json, "signature", number[note->signature] - 1);
        dt_json_put_text(json, "line", note->source ? session->sources[note->source - 1] : "");
        dt_json_put_uint(json, "group", note->group);
        dt_json_close(json, '}');
    }
    dt_json_close(json, ']');
    dt_json_put_uint(json, "dropped", x->dropped);
    dt_json_close(json, '}');
    free(number);
    if (status == DT_OK && json->status != DT_OK)
        return dt_fail(err, json->status, "dt", 0, "what was noted has no room");
    return status;
}

dt_status_t dt_explain_end(dt_session_t *session, char **ret_json, dt_error_t *err)
{
    dt_buf_t text;
    dt_json_t json;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = session->explain
                             ? DT_OK
                             : dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "no operators are noted");
    dt_buf_init(&text, JSON_MAX);
    dt_json_init(&json, &text);
    if (status == DT_OK)
        status = put_all(&json, session, session->explain, err);
    if (status == DT_OK && dt_buf_append_byte(&text, '\0') != DT_OK)
        status = dt_fail(err, DT_ERR_LIMIT, "dt", 0, "what was noted has no room");
    dt_client_explain_fini(session);
    pthread_mutex_unlock(&session->lock);
    if (status == DT_OK)
        *ret_json = (char *)text.data; /* which is malloc()'s */
    else
        dt_buf_fini(&text);
    return status;
}

void dt_explain_free(char *json)
{
    free(json);
}

/* ---- heavy moves ---- */

void dt_client_weigh(const dt_session_t *session, dt_client_signature_t *signature)
{
    int64_t bytes = 1; /* 0: not weighed */
    bool is_move = signature->moved > 0;
    for (uint32_t i = 0; !is_move && i < signature->input_count; i++)
        if (signature->inputs[i] != DT_CLIENT_NO_META)
            bytes += dt_meta_bytes(session->metas.items[signature->inputs[i]]);
    for (uint32_t i = 0; !is_move && i < signature->output_count; i++)
        if (signature->metas[i] != DT_CLIENT_NO_META)
            bytes += dt_meta_bytes(session->metas.items[signature->metas[i]]);
    signature->bytes = (uint64_t)bytes;
}

static dt_status_t describe(const dt_session_t *session, uint32_t signature, dt_heavy_move_t *to,
                            dt_error_t *err)
{
    dt_shard_explained_t is;
    dt_arena_t arena;
    const char *name, *at;
    dt_arena_init(&arena, ARENA_MAX);
    dt_status_t status = explain(session, session->track.rules, signature, &arena, &name, &is, err);
    dt_arena_fini(&arena);
    if (status != DT_OK)
        return status;
    at = strrchr(is.outputs, '[');
    (void)snprintf(to->what, sizeof to->what, "%s to %s: %s", is.inputs, at ? at : is.outputs,
                   is.steps);
    return DT_OK;
}

dt_status_t dt_heavy_move(dt_session_t *session, dt_heavy_move_t *ret_move, bool *ret_is_heavy,
                          dt_error_t *err)
{
    dt_heavy_move_t move = {.struct_size = sizeof move};
    if (ret_move->struct_size != sizeof move)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "dt_heavy_move_t of another size");
    DT_TRY(dt_client_lock(session, err));
    dt_client_step_t step = session->step;
    uint32_t percent = session->settings.move_warning_percent;
    dt_status_t status = DT_OK;
    memset(&session->step, 0, sizeof session->step);
    bool is_heavy = percent > 0 && step.heaviest && step.heaviest_bytes >= HEAVY_MIN &&
                    step.heaviest_bytes > step.bytes / 100 * percent &&
                    !step.heaviest->is_told_heavy;
    if (is_heavy) {
        step.heaviest->is_told_heavy = true;
        move.bytes = step.heaviest_bytes;
        move.step_bytes = step.bytes;
        if (step.source)
            (void)snprintf(move.line, sizeof move.line, "%s", session->sources[step.source - 1]);
        status = describe(session, step.heaviest->id, &move, err);
    }
    pthread_mutex_unlock(&session->lock);
    if (status != DT_OK)
        return status;
    *ret_is_heavy = is_heavy;
    if (is_heavy)
        *ret_move = move;
    return DT_OK;
}
