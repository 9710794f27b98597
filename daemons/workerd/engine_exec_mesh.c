/* Meshes, and tensors of which several parts lie here: this engine runs more than one vdev of their
 * mesh. Such a tensor has one local tensor for each of these vdevs, all under one id. */
#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"

/* ---- meshes ---- */

static bool is_mine(const dt_exec_session_t *session, uint64_t vdev)
{
    uint32_t low = 0;
    uint32_t high = session->vdev_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (session->vdevs[middle] == vdev)
            return true;
        if (session->vdevs[middle] < vdev)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

static void mesh_fini(dt_exec_mesh_t *mesh)
{
    while (mesh->spreads) {
        dt_exec_spread_t *spread = mesh->spreads;
        mesh->spreads = spread->next_free;
        free(spread);
    }
    free(mesh->vdevs);
    free(mesh->own);
}

/* Fill a mesh whose shape is set, but for the vdevs. */
static bool mesh_fill(const dt_exec_session_t *session, dt_exec_mesh_t *mesh, const uint64_t *vdevs)
{
    uint32_t count = mesh->shape.count;
    mesh->shape.vdevs = mesh->vdevs = malloc(count * sizeof *mesh->vdevs);
    mesh->own = malloc(count * sizeof *mesh->own);
    if (!mesh->vdevs || !mesh->own) {
        mesh_fini(mesh);
        return false;
    }
    memcpy(mesh->vdevs, vdevs, count * sizeof *vdevs);
    for (uint32_t i = 0; i < count; i++)
        if (is_mine(session, vdevs[i]))
            mesh->own[mesh->own_count++] = (dt_exec_own_t){i, (uint32_t)vdevs[i]};
    return true;
}

bool dt_exec_mesh_init(dt_exec_session_t *session)
{
    const uint64_t first = 0;
    session->first.shape = dt_shard_mesh_single(&first);
    return mesh_fill(session, &session->first, &first);
}

void dt_exec_mesh_fini(dt_exec_session_t *session)
{
    for (uint32_t i = 0; i < session->mesh_count; i++)
        if (session->meshes[i]) {
            mesh_fini(session->meshes[i]);
            free(session->meshes[i]);
        }
    free(session->meshes);
    mesh_fini(&session->first);
}

void dt_exec_define_mesh(dt_exec_session_t *session, const dt_record_t *record)
{
    const dt_record_mesh_t *said = &record->mesh;
    void *array = session->meshes;
    if (!dt_exec_reach(session, &array, &session->mesh_count, sizeof(dt_exec_mesh_t *), said->id,
                       "the meshes"))
        return;
    session->meshes = array;
    if (session->meshes[said->id])
        return; /* an id means one mesh: tensors and plans point to it */
    dt_exec_mesh_t *mesh = calloc(1, sizeof *mesh);
    dt_error_t err = {0};
    if (!mesh ||
        dt_shard_mesh_init(&mesh->shape, said->ndim, said->sizes, said->vdevs, &err) != DT_OK ||
        !mesh_fill(session, mesh, said->vdevs)) {
        free(mesh); /* what the controller accepts is a mesh, so it is memory */
        dt_exec_break(session, "the meshes");
        return;
    }
    session->meshes[said->id] = mesh;
}

dt_exec_mesh_t *dt_exec_mesh_of(dt_exec_session_t *session, const dt_layout_t *layout)
{
    dt_exec_mesh_t *mesh =
        layout->mesh < session->mesh_count ? session->meshes[layout->mesh] : NULL;
    return mesh || layout->mesh > 0 ? mesh : &session->first;
}

bool dt_exec_mesh_is_same(const dt_exec_mesh_t *a, const dt_exec_mesh_t *b)
{
    if (a->shape.count == 1 && b->shape.count == 1)
        return a->vdevs[0] == b->vdevs[0]; /* whatever dimensions they have, of size 1 */
    return a == b || dt_shard_mesh_equal(&a->shape, &b->shape);
}

/* ---- local tensors ---- */

/* The controller has seen to it that a tensor lies where a plan says; we believe nobody. */
dt_exec_local_t *dt_exec_local(dt_exec_session_t *session, const dt_exec_mesh_t *mesh, uint64_t id,
                               uint32_t own)
{
    dt_exec_tensor_t *tensor;
    if (mesh->own_count == 1) {
        tensor = dt_exec_find(&session->tensors, id);
        return tensor && tensor->storage->vdev == mesh->own[own].vdev ? &tensor->local : NULL;
    }
    tensor = dt_exec_find(&session->spreads, id);
    if (!tensor || !dt_exec_mesh_is_same(tensor->spread->mesh, mesh) ||
        !tensor->spread->locals[own].storage)
        return NULL;
    return &tensor->spread->locals[own];
}

static void local_free(dt_exec_session_t *session, dt_exec_local_t *local)
{
    const dt_exec_options_t *options = &session->exec->options;
    if (local->handle &&
        (dt_move_may_write(&local->storage->mark) || !dt_exec_run_keeps(session, local)))
        options->backend->tensor_free(options->device, local->handle);
    if (local->storage)
        dt_exec_storage_unref(session, local->storage);
    *local = (dt_exec_local_t){0};
}

void dt_exec_spread_free(dt_exec_session_t *session, dt_exec_spread_t *spread)
{
    for (uint32_t i = 0; i < spread->mesh->own_count; i++)
        local_free(session, &spread->locals[i]);
    spread->next_free = spread->mesh->spreads;
    spread->mesh->spreads = spread;
}

static dt_exec_spread_t *spread_new(dt_exec_mesh_t *mesh)
{
    dt_exec_spread_t *spread = mesh->spreads;
    if (spread) {
        mesh->spreads = spread->next_free;
        return spread;
    }
    spread = calloc(1, sizeof *spread + mesh->own_count * sizeof *spread->locals);
    if (spread)
        spread->mesh = mesh;
    return spread;
}

/* The tensor of an id, made if it is not there. */
static dt_exec_spread_t *spread_of(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint64_t id)
{
    dt_exec_tensor_t *tensor = dt_exec_find(&session->spreads, id);
    if (tensor && tensor->spread->mesh == mesh)
        return tensor->spread;
    dt_exec_spread_t *spread = spread_new(mesh);
    if (spread && dt_exec_enter_spread(session, id, spread))
        return spread;
    if (spread)
        dt_exec_spread_free(session, spread);
    return NULL;
}

bool dt_exec_enter_local(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint32_t own,
                         uint64_t id, void *handle, dt_exec_storage_t *storage)
{
    storage->place = (uint16_t)mesh->own[own].place;
    if (mesh->own_count == 1)
        return dt_exec_enter(session, id, handle, storage);
    dt_exec_spread_t *spread = spread_of(session, mesh, id);
    if (!spread)
        return false;
    local_free(session, &spread->locals[own]);
    spread->locals[own] = (dt_exec_local_t){handle, storage};
    return true;
}

/* ---- cutting ---- */

static dt_status_t cut_check(dt_exec_session_t *session, const dt_exec_mesh_t *mesh,
                             dt_error_t *err)
{
    const dt_record_t *record = session->record;
    const dt_layout_t *layout = &record->move.layout;
    DT_TRY(dt_layout_check(layout, &mesh->shape, &record->move.meta, err));
    for (uint32_t i = 0; i < layout->ndim; i++)
        if (layout->placements[i].kind == DT_PLACEMENT_PARTIAL)
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "an upload has no partial values");
    if (record->move.number != 0 || record->move.offset != 0 ||
        record->move.size != (uint64_t)dt_meta_bytes(&record->move.meta) ||
        record->move.size > DT_EXEC_SCRATCH_BYTES)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)record->move.size,
                       "an upload to several devices has its bytes beside it");
    return DT_OK;
}

dt_status_t dt_exec_cut(dt_exec_session_t *session, const dt_exec_mesh_t *mesh, uint32_t own,
                        dt_meta_t *meta, uint64_t *size, dt_error_t *err)
{
    const dt_record_t *record = session->record;
    const dt_meta_t *global = &record->move.meta;
    uint8_t *out = session->exec->scratch;
    size_t item = dt_dtype_bytes(global->dtype);
    uint64_t count = item ? record->move.size / item : 0;
    uint32_t place = mesh->own[own].place;
    dt_shard_box_t box;
    DT_TRY(cut_check(session, mesh, err));
    dt_shard_local_meta(global, &record->move.layout, &mesh->shape, place, meta);
    (void)dt_shard_box(&record->move.layout, &mesh->shape, global->ndim, global->sizes, place,
                       &box);
    for (uint64_t i = 0; i < count; i++) { /* both are in row-major order, so what is in stays so */
        uint64_t left = i;
        bool is_in = true;
        for (unsigned d = global->ndim; is_in && d-- > 0;) {
            is_in = dt_shard_span_local(&box.spans[d],
                                        (int64_t)(left % (uint64_t)global->sizes[d])) >= 0;
            left /= (uint64_t)global->sizes[d];
        }
        if (!is_in)
            continue;
        memcpy(out, record->move.bytes + i * item, item);
        out += item;
    }
    *size = (uint64_t)(out - session->exec->scratch);
    return DT_OK;
}
