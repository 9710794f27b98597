/* Tensors on meshes as the program moves, makes and reads them. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* ---- what is known of an id ---- */

static dt_status_t unknown(uint64_t id, dt_error_t *err)
{
    return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)id,
                   "tensor %llu: nothing is known of it, and no metadata was given",
                   (unsigned long long)id);
}

/* The node of an id; one that is not known yet is a plain one on `vdev`. */
static dt_status_t node_of(dt_session_t *session, uint64_t id, const dt_meta_t *meta, uint32_t vdev,
                           dt_client_node_t **ret_node, dt_error_t *err)
{
    dt_client_node_t *node = dt_client_node_find(session, id);
    uint32_t index = DT_CLIENT_NO_META;
    if (meta && dt_client_meta_intern(&session->metas, meta, &index) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for metadata");
    if (!node) {
        if (id == 0 || id >= session->next_tensor)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "no tensor has this id");
        if (!meta)
            return unknown(id, err);
        DT_TRY(dt_client_node_base(session, id, id, index, vdev, err));
        node = dt_client_node_find(session, id);
        node->is_alien = true;
    }
    if (node->meta == DT_CLIENT_NO_META)
        node->meta = index;
    *ret_node = node;
    return DT_OK;
}

/* ---- moving ---- */

/* `tensor`'s handle has metadata where the node does not know it yet. Lock held. */
static dt_status_t move_apart(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                              uint64_t *ret_id, uint32_t *ret_meta, dt_error_t *err)
{
    dt_client_signature_t *move;
    uint64_t wire, seen;
    if (node->meta == DT_CLIENT_NO_META)
        return unknown(node->id, err);
    do {
        DT_TRY(dt_client_refresh(session, node, err));
        seen = session->releases;
        DT_TRY(dt_client_dense(session, node->meta, ret_meta, err));
        DT_TRY(dt_client_move(session, node->meta, node->place, place, &move, err));
        DT_TRY(dt_client_room(session, dt_client_op_bound(1, 1, 0), INT64_MAX, err));
    } while (session->releases != seen);
    DT_TRY(dt_client_run1(session, move, node->wire, &wire, err));
    dt_client_drop_flush(session);
    *ret_id = wire;
    return dt_client_node_base(session, wire, wire, *ret_meta, place, err);
}

/* NOLINTNEXTLINE(readability-function-size): the public interface's parameters */
static dt_status_t redistribute(dt_session_t *session, uint64_t id, const dt_meta_t *meta,
                                uint32_t vdev, const dt_mesh_t *mesh,
                                const dt_placement_t *placements, uint64_t *ret_id,
                                uint32_t *ret_meta, uint32_t *ret_place, dt_error_t *err)
{
    dt_client_node_t *node;
    DT_TRY(node_of(session, id, meta, vdev, &node, err));
    if (node->meta == DT_CLIENT_NO_META)
        return unknown(id, err);
    DT_TRY(dt_client_place_given(session, vdev, mesh, placements, session->metas.items[node->meta],
                                 ret_place, err));
    DT_TRY(node_of(session, id, meta, vdev, &node, err)); /* the lock may have been released */
    return move_apart(session, node, *ret_place, ret_id, ret_meta, err);
}

/* NOLINTNEXTLINE(readability-function-size): the public interface, eight parameters */
dt_status_t dt_redistribute_id(dt_session_t *session, uint64_t id, const dt_meta_t *meta,
                               uint32_t vdev, const dt_mesh_t *mesh,
                               const dt_placement_t *placements, uint64_t *ret_id, dt_error_t *err)
{
    uint32_t index, place;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status =
        redistribute(session, id, meta, vdev, mesh, placements, ret_id, &index, &place, err);
    pthread_mutex_unlock(&session->lock);
    return status;
}

dt_status_t dt_redistribute(dt_tensor_t *tensor, const dt_mesh_t *mesh,
                            const dt_placement_t *placements, dt_tensor_t **ret_tensor,
                            dt_error_t *err)
{
    dt_session_t *session = tensor->session;
    dt_tensor_t *made = NULL;
    dt_meta_t meta;
    uint64_t id;
    uint32_t index = 0, place = 0;
    dt_status_t status = dt_tensor_meta(tensor, &meta, NULL);
    if (status != DT_OK)
        return dt_fail(err, status, "dt", 0, "the tensor that is to be moved has no value");
    DT_TRY(dt_client_lock(session, err));
    status =
        redistribute(session, tensor->id, &meta, 0, mesh, placements, &id, &index, &place, err);
    if (status == DT_OK) {
        made = dt_client_tensor_new(session, id, index, dt_client_place_vdev(session, place));
        if (!made)
            status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
    }
    pthread_mutex_unlock(&session->lock);
    if (status == DT_OK)
        *ret_tensor = made;
    return status;
}

static dt_status_t move_whole(dt_session_t *session, uint64_t id, const dt_meta_t *meta,
                              const dt_mesh_t *mesh, const dt_placement_t *placements,
                              dt_error_t *err)
{
    dt_client_node_t *node;
    uint32_t place;
    DT_TRY(node_of(session, id, meta, 0, &node, err));
    if (node->source || node->is_alien)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)id,
                       "tensor %llu is not known as the whole of its storage",
                       (unsigned long long)id);
    if (node->meta == DT_CLIENT_NO_META)
        return unknown(id, err);
    DT_TRY(dt_client_place_given(session, 0, mesh, placements, session->metas.items[node->meta],
                                 &place, err));
    DT_TRY(node_of(session, id, meta, 0, &node, err));
    DT_TRY(dt_client_rebase(session, node, place, err));
    dt_client_node_forget(session, node);
    dt_client_drop_flush(session);
    return DT_OK;
}

dt_status_t dt_redistribute_in_place(dt_session_t *session, uint64_t id, const dt_meta_t *meta,
                                     const dt_mesh_t *mesh, const dt_placement_t *placements,
                                     dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = move_whole(session, id, meta, mesh, placements, err);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- telling ---- */

/* Which rows a slice left where is not said: it is a Shard, but with a unit of 0, which no other
 * Shard has here and which is 1 to whoever is given it. */
static dt_placement_t told(dt_placement_t placement)
{
    return dt_placement_is_window(placement)
               ? (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .dim = placement.dim}
               : placement;
}

dt_status_t dt_layout_of(dt_session_t *session, uint64_t id, const dt_mesh_t **ret_mesh,
                         dt_placement_t ret_placements[DT_RECORD_MESH_DIM_MAX], dt_error_t *err)
{
    dt_layout_t layout;
    DT_TRY(dt_client_lock(session, err));
    const dt_client_node_t *node = dt_client_node_find(session, id);
    *ret_mesh = node ? dt_client_place_mesh(session, node->place) : NULL;
    if (*ret_mesh) {
        dt_client_place_layout(session, node->place, &layout);
        for (unsigned j = 0; j < layout.ndim; j++)
            ret_placements[j] = told(layout.placements[j]);
    }
    pthread_mutex_unlock(&session->lock);
    return DT_OK;
}

dt_status_t dt_tensor_layout(dt_tensor_t *tensor, const dt_mesh_t **ret_mesh,
                             dt_placement_t ret_placements[DT_RECORD_MESH_DIM_MAX])
{
    dt_error_t err;
    return dt_layout_of(tensor->session, tensor->id, ret_mesh, ret_placements, &err);
}

dt_status_t dt_layout_hint(dt_session_t *session, uint64_t id, uint32_t flags, dt_error_t *err)
{
    dt_status_t status = DT_OK;
    if (flags & ~DT_HINT_PINNED)
        return dt_fail(err, DT_ERR_INVALID, "dt", flags, "unknown hints");
    DT_TRY(dt_client_lock(session, err));
    dt_client_node_t *node = dt_client_node_find(session, id);
    if (node)
        node->root->flags = flags;
    else
        status = unknown(id, err);
    pthread_mutex_unlock(&session->lock);
    return status;
}

static dt_status_t use(dt_session_t *session, uint64_t id, const dt_placement_t *placements,
                       uint32_t flags, dt_error_t *err)
{
    dt_client_node_t *node = dt_client_node_find(session, id);
    const dt_mesh_t *mesh = node ? dt_client_place_mesh(session, node->place) : NULL;
    uint32_t place = 0;
    if (!mesh || node->source)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)id,
                       "tensor %llu is on no mesh, or a view", (unsigned long long)id);
    if (placements)
        DT_TRY(dt_client_place_given(session, 0, mesh, placements, session->metas.items[node->meta],
                                     &place, err));
    node->own.use = placements ? place + 1 : 0;
    node->own.is_use_kept = flags & DT_USE_KEPT;
    return DT_OK;
}

dt_status_t dt_tensor_use(dt_tensor_t *tensor, const dt_placement_t *placements, uint32_t flags,
                          dt_error_t *err)
{
    dt_session_t *session = tensor->session;
    if (flags & ~DT_USE_KEPT)
        return dt_fail(err, DT_ERR_INVALID, "dt", flags, "unknown flags");
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = use(session, tensor->id, placements, flags, err);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- values ---- */

dt_status_t dt_client_fetch_wire(dt_session_t *session, uint64_t id, uint64_t *ret_wire,
                                 dt_error_t *err)
{
    dt_client_node_t *node = dt_client_node_find(session, id);
    *ret_wire = id;
    if (!node)
        return DT_OK;
    DT_TRY(dt_client_refresh(session, node, err));
    *ret_wire = node->wire;
    if (dt_client_place_is_whole(session, node->place))
        return DT_OK;
    if (node->meta == DT_CLIENT_NO_META)
        return unknown(id, err);
    return dt_client_bring(session, node, dt_client_place_vdev(session, node->place), ret_wire,
                           err);
}

static dt_status_t local_signature(dt_session_t *session, const dt_client_node_t *node,
                                   uint32_t vdev, dt_client_signature_t **ret_signature,
                                   dt_error_t *err)
{
    static const dt_value_t arg = {.tag = DT_VALUE_TENSOR};
    const dt_mesh_t *mesh = dt_client_place_mesh(session, node->place);
    dt_signature_tensor_t input = {.meta = *session->metas.items[node->meta]}, output = {0};
    int64_t index = mesh ? dt_shard_mesh_find(&mesh->shard, vdev) : -1;
    if (index < 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", vdev,
                       "virtual device %u has no part of this tensor", vdev);
    DT_TRY(dt_client_layout(session, vdev, &output.layout, err));
    dt_client_place_layout(session, node->place, &input.layout);
    dt_shard_local_meta(&input.meta, &input.layout, &mesh->shard, (uint32_t)index, &output.meta);
    dt_signature_t sig = {.name = "dtorch::local",
                          .arg_count = 1,
                          .args = &arg,
                          .input_count = 1,
                          .inputs = &input,
                          .output_count = 1,
                          .outputs = &output};
    return dt_client_signature_define(session, &sig, ret_signature, err);
}

static dt_status_t fetch_shard(dt_session_t *session, uint64_t id, const dt_meta_t *meta,
                               uint32_t vdev, dt_future_t **ret_future, dt_error_t *err)
{
    dt_client_node_t *node;
    dt_client_signature_t *local;
    uint64_t wire, seen;
    do {
        DT_TRY(node_of(session, id, meta, vdev, &node, err));
        if (node->meta == DT_CLIENT_NO_META)
            return unknown(id, err);
        DT_TRY(dt_client_refresh(session, node, err));
        seen = session->releases;
        if (!dt_client_place_mesh(session, node->place) && node->place == vdev)
            return dt_client_fetch(session, node->wire, INT64_MAX, ret_future, err);
        DT_TRY(local_signature(session, node, vdev, &local, err));
        DT_TRY(dt_client_room(session, dt_client_op_bound(1, 1, 0), INT64_MAX, err));
    } while (session->releases != seen);
    DT_TRY(dt_client_run1(session, local, node->wire, &wire, err));
    dt_status_t status = dt_client_fetch(session, wire, INT64_MAX, ret_future, err);
    dt_client_free_wire(session, wire, DT_CLIENT_FREE_UNKNOWN);
    return status;
}

dt_status_t dt_fetch_shard(dt_session_t *session, uint64_t id, const dt_meta_t *meta, uint32_t vdev,
                           dt_future_t **ret_future, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = vdev < session->settings.vdev_count
                             ? fetch_shard(session, id, meta, vdev, ret_future, err)
                             : dt_fail(err, DT_ERR_INVALID, "dt", vdev, "virtual device %u of %u",
                                       vdev, session->settings.vdev_count);
    pthread_mutex_unlock(&session->lock);
    return status;
}
