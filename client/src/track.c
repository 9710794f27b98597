/* What is known of the program's ids: where their values lie, and what they are views of. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define BUCKETS_FIRST 1024u

/* ---- freeing wires, behind the operator that is being put ---- */

void dt_client_drop(dt_session_t *session, uint64_t wire, uint32_t meta)
{
    dt_client_track_t *track = &session->track;
    if (track->drop_count == track->drop_cap) {
        uint32_t cap = track->drop_cap ? 2 * track->drop_cap : 64;
        void *grown = realloc(track->drops, cap * sizeof *track->drops);
        if (!grown)
            return; /* it is freed with the session */
        track->drops = grown;
        track->drop_cap = cap;
    }
    uint64_t bytes = meta < session->metas.count
                         ? (uint64_t)dt_meta_bytes(session->metas.items[meta])
                         : DT_CLIENT_FREE_UNKNOWN;
    track->drops[track->drop_count++] = (struct dt_client_dropped){wire, bytes};
}

void dt_client_drop_flush(dt_session_t *session)
{
    dt_client_track_t *track = &session->track;
    for (uint32_t i = 0; i < track->drop_count; i++)
        dt_client_free_wire(session, track->drops[i].wire, track->drops[i].bytes);
    track->drop_count = 0;
}

void dt_client_copy_unref(dt_session_t *session, dt_client_copy_t *copy)
{
    if (!copy || --copy->refs > 0)
        return;
    dt_client_drop(session, copy->wire, copy->meta);
    free(copy);
}

/* ---- the table ---- */

dt_client_node_t *dt_client_node_find(const dt_session_t *session, uint64_t id)
{
    const dt_client_track_t *track = &session->track;
    if (!track->buckets)
        return NULL;
    dt_client_node_t *node = track->buckets[id & track->bucket_mask];
    while (node && node->id != id)
        node = node->next;
    return node;
}

static bool grow(dt_client_track_t *track)
{
    uint64_t count = track->buckets ? 2 * (track->bucket_mask + 1) : BUCKETS_FIRST;
    dt_client_node_t **buckets = calloc(count, sizeof(void *));
    if (!buckets)
        return false;
    for (uint64_t i = 0; track->buckets && i <= track->bucket_mask; i++)
        while (track->buckets[i]) {
            dt_client_node_t *node = track->buckets[i];
            dt_client_node_t **to = &buckets[node->id & (count - 1)];
            track->buckets[i] = node->next;
            node->next = *to;
            *to = node;
        }
    free(track->buckets);
    track->buckets = buckets;
    track->bucket_mask = count - 1;
    return true;
}

static void table_remove(dt_client_track_t *track, const dt_client_node_t *node)
{
    dt_client_node_t **at = &track->buckets[node->id & track->bucket_mask];
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    track->node_count--;
}

/* ---- nodes ---- */

dt_client_node_t *dt_client_node_new(dt_session_t *session)
{
    dt_client_node_t *node = session->track.node_pool;
    if (node)
        session->track.node_pool = node->next;
    else if (!(node = malloc(sizeof *node)))
        return NULL;
    memset(node, 0, sizeof *node);
    node->refs = 1;
    node->meta = DT_CLIENT_NO_META;
    return node;
}

void dt_client_node_discard(dt_session_t *session, dt_client_node_t *node)
{
    free(node->scalars);
    node->next = session->track.node_pool;
    session->track.node_pool = node;
}

bool dt_client_node_room(dt_session_t *session, uint32_t count)
{
    dt_client_track_t *track = &session->track;
    while (!track->buckets || track->node_count + count > track->bucket_mask)
        if (!grow(track))
            return false;
    return true;
}

void dt_client_node_add(dt_session_t *session, dt_client_node_t *node, dt_client_node_t *source)
{
    dt_client_track_t *track = &session->track;
    node->source = source;
    node->root = source ? source->root : &node->own;
    if (source)
        source->refs++;
    node->next = track->buckets[node->id & track->bucket_mask];
    track->buckets[node->id & track->bucket_mask] = node;
    track->node_count++;
}

/* NOLINTNEXTLINE(readability-function-size): all that is known of an id */
dt_status_t dt_client_node_base(dt_session_t *session, uint64_t id, uint64_t wire, uint32_t meta,
                                uint32_t place, dt_error_t *err)
{
    dt_client_node_t *node = dt_client_node_room(session, 1) ? dt_client_node_new(session) : NULL;
    if (!node)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
    node->id = id;
    node->wire = wire;
    node->meta = meta;
    node->place = place;
    dt_client_node_add(session, node, NULL);
    return DT_OK;
}

void dt_client_node_forget(dt_session_t *session, dt_client_node_t *node)
{
    for (uint32_t i = 0; i < DT_CLIENT_KEPT_MAX; i++) {
        dt_client_copy_unref(session, node->kept[i]);
        node->kept[i] = NULL;
    }
}

void dt_client_node_unref(dt_session_t *session, dt_client_node_t *node)
{
    while (node && --node->refs == 0) {
        dt_client_node_t *source = node->source;
        dt_client_node_forget(session, node);
        dt_client_copy_unref(session, node->via);
        dt_client_drop(session, node->wire, node->meta);
        table_remove(&session->track, node);
        dt_client_node_discard(session, node);
        node = source;
    }
}

void dt_client_track_fini(dt_session_t *session)
{
    dt_client_track_t *track = &session->track;
    for (uint64_t i = 0; track->buckets && i <= track->bucket_mask; i++)
        while (track->buckets[i]) {
            dt_client_node_t *node = track->buckets[i];
            track->buckets[i] = node->next;
            for (uint32_t k = 0; k < DT_CLIENT_KEPT_MAX; k++)
                if (node->kept[k] && --node->kept[k]->refs == 0)
                    free(node->kept[k]);
            if (node->via && --node->via->refs == 0)
                free(node->via);
            free(node->scalars);
            free(node);
        }
    while (track->node_pool) {
        dt_client_node_t *node = track->node_pool;
        track->node_pool = node->next;
        free(node);
    }
    free(track->buckets);
    free(track->moves);
    free(track->drops);
}

/* ---- values that were moved ---- */

dt_client_copy_t *dt_client_node_kept(dt_session_t *session, dt_client_node_t *node, uint32_t place)
{
    if (node->kept_version != node->root->version || node->kept_wire != node->wire)
        dt_client_node_forget(session, node);
    for (uint32_t i = 0; i < DT_CLIENT_KEPT_MAX; i++)
        if (node->kept[i] && node->kept[i]->place == place)
            return node->kept[i];
    return NULL;
}

dt_status_t dt_client_node_keep(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                                uint64_t wire)
{
    dt_client_copy_t *copy = malloc(sizeof *copy);
    uint32_t at = 0;
    if (!copy) {
        dt_client_drop(session, wire, node->meta);
        return DT_ERR_NOMEM;
    }
    *copy = (dt_client_copy_t){.refs = 1, .place = place, .meta = node->meta, .wire = wire};
    if (node->kept_version != node->root->version || node->kept_wire != node->wire)
        dt_client_node_forget(session, node);
    node->kept_version = node->root->version;
    node->kept_wire = node->wire;
    while (at < DT_CLIENT_KEPT_MAX && node->kept[at])
        at++;
    if (at == DT_CLIENT_KEPT_MAX) { /* the oldest goes */
        dt_client_copy_unref(session, node->kept[0]);
        memmove(node->kept, node->kept + 1, (DT_CLIENT_KEPT_MAX - 1) * sizeof(void *));
        at--;
    }
    node->kept[at] = copy;
    return DT_OK;
}
