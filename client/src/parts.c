/* Uploads to several devices: each part goes to its own device as an upload of its own, by whatever
 * way leads there, and one operator makes a tensor of them. Where the layout repeats, only the
 * first replica is uploaded; the cluster copies it. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct parts {
    dt_session_t *session;
    const dt_upload_t *from;
    const dt_meta_t *meta;
    dt_mesh_t *mesh;     /* of the parts; one reference */
    dt_layout_t layout;  /* on it: every dimension cuts */
    uint32_t place;      /* that of the layout */
    dt_tensor_t **parts; /* (mesh->shard.count) */
};

/* The devices that hold the first replica, and the layout on them. */
static dt_status_t first_replica(struct parts *p, const dt_layout_t *layout, dt_error_t *err)
{
    const dt_shard_mesh_t *whole = &p->from->mesh->shard;
    uint32_t sizes[DT_RECORD_MESH_DIM_MAX], coords[DT_RECORD_MESH_DIM_MAX], count = 0;
    dt_placement_t cuts[DT_RECORD_MESH_DIM_MAX];
    unsigned ndim = 0;
    uint32_t *vdevs = calloc(whole->count, sizeof *vdevs);
    if (!vdevs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an upload");
    for (unsigned i = 0; i < whole->ndim; i++)
        if (layout->placements[i].kind == DT_PLACEMENT_SHARD) {
            sizes[ndim] = whole->sizes[i];
            cuts[ndim++] = layout->placements[i];
        }
    for (uint32_t k = 0; k < whole->count; k++) {
        bool is_first = true;
        dt_shard_mesh_coords(whole, k, coords);
        for (unsigned i = 0; i < whole->ndim; i++)
            is_first &= layout->placements[i].kind == DT_PLACEMENT_SHARD || coords[i] == 0;
        if (is_first)
            vdevs[count++] = (uint32_t)whole->vdevs[k];
    }
    dt_status_t status = dt_mesh_create(p->session, ndim, sizes, NULL, vdevs, &p->mesh, err);
    free(vdevs);
    DT_TRY(status);
    p->layout = dt_layout_replicate(p->mesh->id, ndim);
    memcpy(p->layout.placements, cuts, ndim * sizeof cuts[0]);
    return DT_OK;
}

/* Whether a box is one run of bytes. */
static bool is_run(const dt_shard_box_t *box, const dt_meta_t *meta)
{
    if (box->ndim == 0 || box->spans[0].groups != 1)
        return false;
    for (unsigned i = 1; i < box->ndim; i++)
        if (box->spans[i].groups != 1 || box->spans[i].length != meta->sizes[i])
            return false;
    return true;
}

/* Copy the elements of a box, row-major. */
static void cut(const dt_shard_box_t *box, const dt_meta_t *meta, const uint8_t *data, uint8_t *to)
{
    size_t item = dt_dtype_bytes(meta->dtype);
    const dt_shard_span_t *row = &box->spans[box->ndim - 1];
    int64_t at[DT_META_DIM_MAX] = {0};
    int last = box->ndim - 1;
    for (;;) {
        int64_t offset = 0;
        for (int i = 0; i < last; i++) {
            const dt_shard_span_t *span = &box->spans[i];
            offset = offset * meta->sizes[i] + span->lo + at[i] / span->length * span->stride +
                     at[i] % span->length;
        }
        offset *= meta->sizes[last];
        for (int64_t g = 0; g < row->groups; g++) {
            size_t bytes = (size_t)row->length * item;
            memcpy(to, data + (size_t)(offset + row->lo + g * row->stride) * item, bytes);
            to += bytes;
        }
        int i = last - 1;
        while (i >= 0 && ++at[i] == dt_shard_span_size(&box->spans[i]))
            at[i--] = 0;
        if (i < 0)
            return;
    }
}

static dt_status_t upload_part(struct parts *p, uint32_t index, dt_error_t *err)
{
    int64_t sizes[DT_META_DIM_MAX];
    dt_shard_box_t box;
    bool is_any =
        dt_shard_box(&p->layout, &p->mesh->shard, p->meta->ndim, p->meta->sizes, index, &box);
    dt_upload_t part = {.struct_size = sizeof part,
                        .dtype = p->from->dtype,
                        .ndim = p->from->ndim,
                        .sizes = sizes,
                        .vdev = (uint32_t)p->mesh->vdevs[index]};
    size_t row = dt_dtype_bytes(p->meta->dtype), bytes = row;
    for (unsigned i = 0; i < p->meta->ndim; i++) {
        sizes[i] = dt_shard_span_size(&box.spans[i]);
        bytes *= (size_t)sizes[i];
        row *= i ? (size_t)sizes[i] : 1; /* bytes behind one index of the first dimension */
    }
    if (is_any && p->from->data && is_run(&box, p->meta)) {
        part.data = (const uint8_t *)p->from->data + (size_t)box.spans[0].lo * row;
    } else if (is_any && p->from->data) {
        void *copy = malloc(bytes);
        if (!copy)
            return dt_fail(err, DT_ERR_NOMEM, "dt", (int64_t)bytes, "no memory for %zu bytes",
                           bytes);
        cut(&box, p->meta, p->from->data, copy);
        part.data = part.arg = copy;
        part.release = free;
    }
    dt_status_t status = dt_tensor_upload(p->session, &part, &p->parts[index], err);
    if (status != DT_OK && part.release)
        free(part.arg);
    return status;
}

/* Put the operator that makes one tensor of the parts. */
static dt_status_t assemble(struct parts *p, uint64_t *ids, uint32_t place,
                            dt_tensor_t **ret_tensor, dt_error_t *err)
{
    dt_session_t *session = p->session;
    dt_client_signature_t *signature;
    uint32_t index, count = p->mesh->shard.count;
    uint64_t seen, id;
    if (dt_client_meta_intern(&session->metas, p->meta, &index) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for metadata");
    do {
        seen = session->releases;
        DT_TRY(dt_client_assemble(session, index, p->place, &signature, err));
        DT_TRY(dt_client_room(session, dt_client_op_bound(count, 1, 0), INT64_MAX, err));
    } while (session->releases != seen);
    dt_tensor_t *tensor = dt_client_tensor_new(session, 0, index, p->from->mesh->first);
    if (!tensor)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
    id = session->next_tensor;
    dt_status_t status = dt_client_node_base(session, id, id, index, p->place, err);
    if (status == DT_OK) {
        dt_record_op_t op = {.signature = signature->id,
                             .input_count = count,
                             .output_count = 1,
                             .inputs = ids,
                             .outputs = &id};
        tensor->id = session->next_tensor++;
        dt_client_put_op(session, &op);
        status = dt_client_rebase(session, dt_client_node_find(session, id), place, err);
        dt_client_drop_flush(session);
    }
    if (status == DT_OK)
        *ret_tensor = tensor;
    else
        dt_client_tensor_unref(tensor);
    return status;
}

static dt_status_t put_together(struct parts *p, uint32_t place, dt_tensor_t **ret_tensor,
                                dt_error_t *err)
{
    uint32_t count = p->mesh->shard.count;
    uint64_t *ids = malloc(count * sizeof *ids);
    if (!ids)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an upload");
    for (uint32_t i = 0; i < count; i++)
        ids[i] = p->parts[i]->id;
    dt_status_t status = dt_client_lock(p->session, err);
    if (status == DT_OK) {
        status = assemble(p, ids, place, ret_tensor, err);
        pthread_mutex_unlock(&p->session->lock);
    }
    free(ids);
    return status;
}

static dt_status_t upload_all(struct parts *p, uint32_t place, dt_tensor_t **ret_tensor,
                              dt_error_t *err)
{
    dt_layout_t layout;
    DT_TRY(dt_client_lock(p->session, err));
    dt_client_place_layout(p->session, place, &layout);
    pthread_mutex_unlock(&p->session->lock);
    DT_TRY(first_replica(p, &layout, err));
    p->parts = calloc(p->mesh->shard.count, sizeof(void *));
    if (!p->parts)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an upload");
    for (uint32_t i = 0; i < p->mesh->shard.count; i++)
        DT_TRY(upload_part(p, i, err));
    DT_TRY(dt_client_lock(p->session, err));
    dt_status_t status = dt_client_place(p->session, &p->layout, &p->place, err);
    pthread_mutex_unlock(&p->session->lock);
    return status == DT_OK ? put_together(p, place, ret_tensor, err) : status;
}

dt_status_t dt_client_upload_parts(dt_session_t *session, const dt_upload_t *from,
                                   const dt_meta_t *meta, uint32_t place, dt_tensor_t **ret_tensor,
                                   dt_error_t *err)
{
    struct parts p = {.session = session, .from = from, .meta = meta};
    dt_status_t status = upload_all(&p, place, ret_tensor, err);
    for (uint32_t i = 0; p.parts && i < p.mesh->shard.count; i++)
        dt_tensor_free(p.parts[i]);
    free(p.parts);
    dt_mesh_free(p.mesh);
    if (status == DT_OK && from->release)
        from->release(from->arg);
    return status;
}
