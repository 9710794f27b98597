/* Meshes of a session, and places: layouts by number. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define MESHES_MAX   60000u
#define LAYOUTS_MAX  (1u << 24)
#define LAYOUTS_MANY 4096u /* each is looked for among all */

/* ---- meshes ---- */

static void mesh_destroy(dt_mesh_t *mesh)
{
    if (!mesh)
        return;
    free(mesh->vdevs);
    free(mesh);
}

void dt_client_places_fini(dt_session_t *session)
{
    dt_client_track_t *track = &session->track;
    for (uint32_t i = 0; i < track->mesh_count; i++)
        mesh_destroy(track->meshes[i]);
    free(track->meshes);
    free(track->layouts);
    dt_shard_rules_free(track->rules);
}

static dt_mesh_t *mesh_find(const dt_session_t *session, const dt_shard_mesh_t *shard)
{
    for (uint32_t i = 0; i < session->track.mesh_count; i++)
        if (dt_shard_mesh_equal(&session->track.meshes[i]->shard, shard))
            return session->track.meshes[i];
    return NULL;
}

/* Devices by number, each once. */
static dt_status_t check_vdevs(const dt_session_t *session, const dt_shard_mesh_t *shard,
                               dt_error_t *err)
{
    uint32_t count = session->settings.vdev_count;
    dt_status_t status = DT_OK;
    uint8_t *is_taken = calloc(count, 1);
    if (!is_taken)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a mesh");
    for (uint32_t i = 0; status == DT_OK && i < shard->count; i++) {
        uint64_t vdev = shard->vdevs[i];
        if (vdev >= count)
            status = dt_fail(err, DT_ERR_LIMIT, "dt", (int64_t)vdev,
                             "a mesh names virtual device %u, the session has %u: ask for more "
                             "with dt_connect_options_t.vdev_count or DTORCH_DEVICES",
                             (unsigned)vdev, count);
        else if (is_taken[vdev]++)
            status = dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)vdev,
                             "a mesh names virtual device %u twice", (unsigned)vdev);
    }
    free(is_taken);
    return status;
}

static dt_status_t begin_tracking(dt_session_t *session, dt_error_t *err)
{
    if (!session->track.rules)
        DT_TRY(dt_shard_rules_create(&session->track.rules, err));
    session->track.is_on = true;
    return DT_OK;
}

static bool mesh_room(dt_client_track_t *track)
{
    uint32_t cap = track->mesh_cap ? 2 * track->mesh_cap : 8;
    if (track->mesh_count < track->mesh_cap)
        return true;
    dt_mesh_t **grown = realloc(track->meshes, cap * sizeof(void *));
    if (!grown)
        return false;
    track->meshes = grown;
    track->mesh_cap = cap;
    return true;
}

/* Define it in the stream. The lock may have been released: another thread may have been faster. */
static dt_status_t mesh_define(dt_session_t *session, dt_mesh_t *mesh, const char *const *names,
                               dt_mesh_t **ret_mesh, dt_error_t *err)
{
    dt_client_track_t *track = &session->track;
    dt_record_t record;
    dt_layout_t alone;
    DT_TRY(begin_tracking(session, err));
    for (uint32_t i = 0; i < mesh->shard.count; i++)
        DT_TRY(dt_client_layout(session, (uint32_t)mesh->vdevs[i], &alone, err));
    record.kind = DT_RECORD_DEF_MESH;
    memset(&record.mesh, 0, sizeof record.mesh);
    record.mesh.ndim = mesh->shard.ndim;
    record.mesh.vdev_count = mesh->shard.count;
    record.mesh.vdevs = mesh->vdevs;
    for (unsigned i = 0; i < mesh->shard.ndim; i++) {
        record.mesh.sizes[i] = mesh->shard.sizes[i];
        record.mesh.names[i] = names && names[i] ? names[i] : "";
        record.mesh.name_bytes[i] = (uint32_t)strlen(record.mesh.names[i]);
        if (record.mesh.name_bytes[i] > DT_RECORD_NAME_MAX)
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "a name of %u bytes for a mesh dimension",
                           record.mesh.name_bytes[i]);
    }
    DT_TRY(dt_client_room(session, dt_record_bound(&record), INT64_MAX, err));
    *ret_mesh = mesh_find(session, &mesh->shard);
    if (*ret_mesh)
        return DT_OK;
    if (track->mesh_count == MESHES_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", MESHES_MAX, "a session has at most %u meshes",
                       MESHES_MAX);
    if (!mesh_room(track))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a mesh");
    record.mesh.id = mesh->id = session->settings.vdev_count + track->mesh_count;
    track->meshes[track->mesh_count++] = mesh;
    dt_client_put(session, &record);
    *ret_mesh = mesh;
    return DT_OK;
}

static dt_status_t mesh_make(dt_session_t *session, unsigned ndim, const uint32_t *sizes,
                             const uint32_t *vdevs, dt_mesh_t **ret_mesh, dt_error_t *err)
{
    dt_shard_mesh_t shard;
    DT_TRY(dt_shard_mesh_init(&shard, ndim, sizes, NULL, err));
    dt_mesh_t *mesh = calloc(1, sizeof *mesh);
    if (mesh)
        mesh->vdevs = calloc(shard.count, sizeof *mesh->vdevs);
    if (!mesh || !mesh->vdevs) {
        mesh_destroy(mesh);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a mesh");
    }
    for (uint32_t i = 0; i < shard.count; i++)
        mesh->vdevs[i] = vdevs ? vdevs[i] : i;
    mesh->session = session;
    mesh->first = (uint32_t)mesh->vdevs[0];
    mesh->shard = shard;
    mesh->shard.vdevs = mesh->vdevs;
    *ret_mesh = mesh;
    return DT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): the public interface, seven parameters and the lock */
dt_status_t dt_mesh_create(dt_session_t *session, unsigned ndim, const uint32_t *sizes,
                           const char *const *names, const uint32_t *vdevs, dt_mesh_t **ret_mesh,
                           dt_error_t *err)
{
    dt_mesh_t *mesh = NULL, *found;
    DT_TRY(mesh_make(session, ndim, sizes, vdevs, &mesh, err));
    dt_status_t status = dt_client_lock(session, err);
    if (status != DT_OK) {
        mesh_destroy(mesh);
        return status;
    }
    status = check_vdevs(session, &mesh->shard, err);
    found = status == DT_OK ? mesh_find(session, &mesh->shard) : NULL;
    if (status == DT_OK && !found)
        status = mesh_define(session, mesh, names, &found, err);
    if (status == DT_OK) {
        session->users++;
        *ret_mesh = found;
    }
    pthread_mutex_unlock(&session->lock);
    if (status != DT_OK || found != mesh)
        mesh_destroy(mesh);
    return status;
}

/* It stays defined: the session's tables end with the session. */
void dt_mesh_free(dt_mesh_t *mesh)
{
    if (!mesh || dt_client_is_forked(mesh->session))
        return;
    pthread_mutex_lock(&mesh->session->lock);
    dt_client_unuse_unlock(mesh->session);
}

void dt_mesh_shape(const dt_mesh_t *mesh, unsigned *ret_ndim,
                   uint32_t ret_sizes[DT_RECORD_MESH_DIM_MAX])
{
    *ret_ndim = mesh->shard.ndim;
    for (unsigned i = 0; i < mesh->shard.ndim; i++)
        ret_sizes[i] = mesh->shard.sizes[i];
}

dt_status_t dt_set_policy(dt_session_t *session, dt_policy_t policy)
{
    dt_error_t err;
    if ((unsigned)policy & ~(2u * DT_POLICY_WHOLE - 1))
        return DT_ERR_INVALID;
    DT_TRY(dt_client_lock(session, &err));
    session->track.policy = policy;
    pthread_mutex_unlock(&session->lock);
    return DT_OK;
}

/* ---- places ---- */

dt_status_t dt_client_place(dt_session_t *session, const dt_layout_t *layout, uint32_t *ret_place,
                            dt_error_t *err)
{
    dt_client_track_t *track = &session->track;
    uint32_t first = session->settings.vdev_count;
    if (layout->mesh < first) {
        *ret_place = layout->mesh;
        return DT_OK;
    }
    for (uint32_t i = 0; i < track->layout_count; i++)
        if (dt_layout_equal(&track->layouts[i], layout)) {
            *ret_place = first + i;
            return DT_OK;
        }
    if (track->layout_count == track->layout_cap) {
        uint32_t cap = track->layout_cap ? 2 * track->layout_cap : 32;
        dt_layout_t *grown =
            cap < LAYOUTS_MAX ? realloc(track->layouts, cap * sizeof *grown) : NULL;
        if (!grown)
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a layout");
        track->layouts = grown;
        track->layout_cap = cap;
    }
    track->layouts[track->layout_count] = *layout;
    *ret_place = first + track->layout_count++;
    return DT_OK;
}

bool dt_client_places_are_many(const dt_session_t *session)
{
    return session->track.layout_count >= LAYOUTS_MANY;
}

void dt_client_place_layout(const dt_session_t *session, uint32_t place, dt_layout_t *ret_layout)
{
    uint32_t first = session->settings.vdev_count;
    if (place < first)
        *ret_layout = (dt_layout_t){.mesh = place, .ndim = place ? 1 : 0};
    else
        *ret_layout = session->track.layouts[place - first];
}

const dt_mesh_t *dt_client_place_mesh(const dt_session_t *session, uint32_t place)
{
    uint32_t first = session->settings.vdev_count;
    return place < first
               ? NULL
               : session->track.meshes[session->track.layouts[place - first].mesh - first];
}

uint32_t dt_client_place_vdev(const dt_session_t *session, uint32_t place)
{
    const dt_mesh_t *mesh = dt_client_place_mesh(session, place);
    return mesh ? mesh->first : place;
}

bool dt_client_place_is_partial(const dt_session_t *session, uint32_t place)
{
    uint32_t first = session->settings.vdev_count;
    if (place < first)
        return false;
    const dt_layout_t *layout = &session->track.layouts[place - first];
    for (int i = 0; i < layout->ndim; i++)
        if (layout->placements[i].kind == DT_PLACEMENT_PARTIAL)
            return true;
    return false;
}

bool dt_client_place_is_whole(const dt_session_t *session, uint32_t place)
{
    uint32_t first = session->settings.vdev_count;
    return place < first || dt_layout_is_replicate(&session->track.layouts[place - first]);
}

static dt_placement_t normal(dt_placement_t given)
{
    dt_placement_t placement = {.kind = given.kind};
    if (given.kind == DT_PLACEMENT_SHARD) {
        placement.dim = given.dim;
        placement.unit = given.unit ? given.unit : 1;
        placement.groups = given.groups ? given.groups : 1;
    } else if (given.kind == DT_PLACEMENT_PARTIAL) {
        placement.reduction = given.reduction;
    }
    return placement;
}

dt_status_t dt_client_place_given(dt_session_t *session, uint32_t vdev, const dt_mesh_t *mesh,
                                  const dt_placement_t *placements, const dt_meta_t *meta,
                                  uint32_t *ret_place, dt_error_t *err)
{
    dt_layout_t layout;
    if (!mesh) {
        *ret_place = vdev;
        return dt_client_layout(session, vdev, &layout, err);
    }
    if (mesh->session != session)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the mesh belongs to another session");
    layout = dt_layout_replicate(mesh->id, mesh->shard.ndim);
    for (unsigned i = 0; placements && i < mesh->shard.ndim; i++)
        layout.placements[i] = normal(placements[i]);
    if (meta)
        DT_TRY(dt_layout_check(&layout, &mesh->shard, meta, err));
    return dt_client_place(session, &layout, ret_place, err);
}
