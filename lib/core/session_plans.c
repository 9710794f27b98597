/* What a job's program has defined: its signatures and meshes as they are kept for nodes that join,
 * copied page by page. What they mean the asker works out (lib/shard/explain.h). */
#include <inttypes.h>

#include "core/session_internal.h"
#include "dtorch/v1/admin.pb-c.h"

#define PLANS_MAX  1024u        /* in one answer */
#define REPLY_MAX  (512u << 10) /* bytes of their bodies */
#define MESHES_MAX 1024u
#define VDEVS_MAX  (64u << 10) /* of all meshes */

static Dtorch__V1__PlanInfo *plan_info(const dt_session_signature_t *sig, uint32_t id,
                                       dt_arena_t *arena)
{
    const dt_session_plan_t *plan = &sig->plan;
    Dtorch__V1__PlanInfo *info = dt_arena_alloc(arena, sizeof *info);
    Dtorch__V1__PlanStep *steps = dt_arena_calloc(arena, plan->move_count + 1, sizeof *steps);
    if (!info)
        return NULL;
    dtorch__v1__plan_info__init(info);
    info->signature = id;
    info->body.data = (uint8_t *)(uintptr_t)plan->body;
    info->body.len = plan->body_bytes;
    info->steps = dt_arena_calloc(arena, plan->move_count + 1, sizeof(void *));
    if (!steps || !info->steps)
        return NULL;
    for (uint32_t i = 0; i < plan->move_count; i++) {
        dtorch__v1__plan_step__init(&steps[i]);
        steps[i].kind = plan->moves[i].kind;
        steps[i].bytes = plan->moves[i].bytes;
        info->steps[info->n_steps++] = &steps[i];
    }
    return info;
}

static bool fill_plans(const dt_session_t *session, uint32_t from, dt_arena_t *arena,
                       Dtorch__V1__PlanList *list)
{
    size_t bytes = 0;
    list->plans = dt_arena_calloc(arena, PLANS_MAX, sizeof(void *));
    for (uint32_t id = from; list->plans && id < session->signature_cap; id++) {
        const dt_session_signature_t *sig = session->signatures[id];
        if (!sig)
            continue;
        if (list->n_plans == PLANS_MAX || (bytes > 0 && bytes >= REPLY_MAX)) {
            list->next = id;
            break;
        }
        Dtorch__V1__PlanInfo *info = plan_info(sig, id, arena);
        if (!info)
            return false;
        list->plans[list->n_plans++] = info;
        bytes += sig->plan.body_bytes;
    }
    return list->plans != NULL;
}

static Dtorch__V1__PlanMesh *plan_mesh(const dt_session_mesh_t *mesh, uint32_t id,
                                       dt_arena_t *arena)
{
    Dtorch__V1__PlanMesh *to = dt_arena_alloc(arena, sizeof *to);
    if (!to)
        return NULL;
    dtorch__v1__plan_mesh__init(to);
    to->id = id;
    to->shape = DT_SESSION_TEXT(mesh->shape ? mesh->shape : "");
    to->n_sizes = mesh->shard.ndim;
    to->n_vdevs = mesh->shard.count;
    to->sizes = dt_arena_calloc(arena, to->n_sizes + 1, sizeof *to->sizes);
    to->vdevs = dt_arena_calloc(arena, to->n_vdevs, sizeof *to->vdevs);
    if (!to->sizes || !to->vdevs)
        return NULL;
    for (size_t i = 0; i < to->n_sizes; i++)
        to->sizes[i] = mesh->shard.sizes[i];
    for (size_t i = 0; i < to->n_vdevs; i++)
        to->vdevs[i] = (uint32_t)mesh->vdevs[i];
    return to;
}

static bool fill_meshes(const dt_session_t *session, dt_arena_t *arena, Dtorch__V1__PlanList *list)
{
    uint64_t vdevs = 0;
    list->meshes = dt_arena_calloc(arena, MESHES_MAX, sizeof(void *));
    for (uint32_t id = 0; list->meshes && id < session->mesh_cap; id++) {
        const dt_session_mesh_t *mesh = &session->meshes[id];
        vdevs += mesh->shard.count;
        if (mesh->shard.count == 0)
            continue;
        if (list->n_meshes == MESHES_MAX || vdevs > VDEVS_MAX)
            break;
        list->meshes[list->n_meshes] = plan_mesh(mesh, id, arena);
        if (!list->meshes[list->n_meshes++])
            return false;
    }
    return list->meshes != NULL;
}

dt_status_t dt_sessions_plans(const dt_sessions_t *sessions,
                              const Dtorch__V1__GetPlansRequest *request, dt_arena_t *arena,
                              Dtorch__V1__PlanList **ret_list, dt_error_t *err)
{
    const dt_session_t *session = dt_sessions_find(sessions, request->job);
    Dtorch__V1__PlanList *list = dt_arena_alloc(arena, sizeof *list);
    if (!session)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "there is no job %" PRIu64, request->job);
    if (list)
        dtorch__v1__plan_list__init(list);
    if (!list || !fill_plans(session, request->from, arena, list) ||
        (request->from == 0 && !fill_meshes(session, arena, list)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the reply is too large");
    *ret_list = list;
    return DT_OK;
}
