/* Lists of live tensors: nodes are asked, and what the tables know of layouts is added. A node has
 * a line for each device's part; of a tensor whose parts were all seen the whole sizes are told. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"

#define LIST_TENSORS_MAX 10000u
#define LIST_TENSORS     1000u
#define TEXT_BYTES       512
#define MESH_BYTES       192

/* ---- the question ---- */

static void reply_error(dt_sessions_t *sessions, uint64_t ticket, dt_status_t status,
                        const char *text)
{
    dt_session_queued_t *queued = dt_sessions_action(sessions, DT_SESSION_DO_REPLY, 0);
    if (!queued)
        return;
    queued->action.ticket = ticket;
    queued->action.status = status;
    (void)snprintf(queued->text, sizeof queued->text, "%s", text);
    dt_sessions_push(sessions, queued);
}

static int by_size(const void *a, const void *b)
{
    const Dtorch__V1__TensorInfo *x = *(Dtorch__V1__TensorInfo *const *)a;
    const Dtorch__V1__TensorInfo *y = *(Dtorch__V1__TensorInfo *const *)b;
    return (y->size_bytes > x->size_bytes) - (y->size_bytes < x->size_bytes);
}

/* Name the node of each link that has not answered. */
static void fill_unanswered(dt_sessions_t *sessions, const dt_session_ask_t *ask,
                            Dtorch__V1__TensorList *list, char **names)
{
    for (uint32_t i = 0; i < ask->stream_count; i++) {
        const dt_session_stream_t *stream = dt_sessions_stream(sessions, ask->streams[i]);
        if (stream && stream->link && list->n_unanswered < DT_SESSION_NODES_MAX)
            names[list->n_unanswered++] = stream->link->place->name;
    }
    list->unanswered = names;
}

/* ---- tensors on meshes ---- */

/* What the tables know of it; NULL: it is gone, or lies on one device. */
static const dt_session_spot_t *spot_of(const dt_sessions_t *sessions,
                                        const Dtorch__V1__TensorInfo *info)
{
    const dt_session_t *session = dt_sessions_find(sessions, info->session);
    const dt_session_entry_t *entry =
        session ? dt_session_map_find(&session->tensors, info->id) : NULL;
    return entry && entry->extra >= session->vdev_count
               ? &session->spots[entry->extra - session->vdev_count]
               : NULL;
}

static int by_tensor(const void *a, const void *b)
{
    const Dtorch__V1__TensorInfo *x = *(Dtorch__V1__TensorInfo *const *)a;
    const Dtorch__V1__TensorInfo *y = *(Dtorch__V1__TensorInfo *const *)b;
    if (x->session != y->session)
        return x->session > y->session ? 1 : -1;
    if (x->id != y->id)
        return x->id > y->id ? 1 : -1;
    return (x->vdev > y->vdev) - (x->vdev < y->vdev);
}

/* Whether a place counts for a dimension: it stands at 0 wherever the mesh does not cut that. */
static bool counts_for(const dt_layout_t *layout, const uint32_t *coords, uint32_t dim)
{
    for (int j = 0; j < layout->ndim; j++) {
        const dt_placement_t *p = &layout->placements[j];
        if (coords[j] && (p->kind != DT_PLACEMENT_SHARD || p->dim != dim))
            return false;
    }
    return true;
}

/* The whole sizes from all parts; false: some are not here. */
static bool add_up(const dt_session_mesh_t *mesh, const dt_layout_t *layout,
                   Dtorch__V1__TensorInfo *const *parts, uint32_t count, int64_t *sizes)
{
    size_t ndim = parts[0]->n_sizes;
    uint32_t coords[DT_RECORD_MESH_DIM_MAX];
    if (count != mesh->shard.count || ndim > DT_META_DIM_MAX)
        return false;
    memset(sizes, 0, DT_META_DIM_MAX * sizeof *sizes);
    for (uint32_t i = 0; i < count; i++) {
        int64_t place = dt_shard_mesh_find(&mesh->shard, parts[i]->vdev);
        if (place < 0 || parts[i]->n_sizes != ndim)
            return false;
        dt_shard_mesh_coords(&mesh->shard, (uint32_t)place, coords);
        for (uint32_t d = 0; d < ndim; d++)
            if (counts_for(layout, coords, d) &&
                __builtin_add_overflow(sizes[d], parts[i]->sizes[d], &sizes[d]))
                return false;
    }
    return true;
}

static void print_sizes(const int64_t *sizes, size_t ndim, char *text)
{
    size_t at = (size_t)snprintf(text, TEXT_BYTES, "(");
    for (size_t d = 0; d < ndim; d++)
        at += (size_t)snprintf(text + at, TEXT_BYTES - at, "%s%" PRId64 "%s", d ? ", " : "",
                               sizes[d], ndim == 1 ? "," : "");
    (void)snprintf(text + at, TEXT_BYTES - at, ")");
}

static void set_text(char **field, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return;
    if (*field != protobuf_c_empty_string)
        free(*field);
    *field = copy;
}

/* The parts of one tensor, side by side. */
static void describe_parts(const dt_sessions_t *sessions, Dtorch__V1__TensorInfo **parts,
                           uint32_t count)
{
    const dt_session_spot_t *spot = spot_of(sessions, parts[0]);
    char global[TEXT_BYTES] = "", placements[TEXT_BYTES], name[MESH_BYTES];
    int64_t sizes[DT_META_DIM_MAX];
    if (!spot)
        return;
    const dt_session_t *session = dt_sessions_find(sessions, parts[0]->session);
    const dt_session_mesh_t *mesh = &session->meshes[spot->layout.mesh];
    if (add_up(mesh, &spot->layout, parts, count, sizes))
        print_sizes(sizes, parts[0]->n_sizes, global);
    dt_layout_print(&spot->layout, placements, sizeof placements);
    (void)snprintf(name, sizeof name, "%" PRIu32 " %s", spot->layout.mesh, mesh->shape);
    for (uint32_t i = 0; i < count; i++) {
        set_text(&parts[i]->global, global);
        set_text(&parts[i]->placements, placements);
        set_text(&parts[i]->mesh, name);
    }
}

static void describe_all(const dt_sessions_t *sessions, const dt_session_ask_t *ask)
{
    Dtorch__V1__TensorInfo **all = ask->tensors;
    qsort(all, ask->tensor_count, sizeof(void *), by_tensor);
    for (uint32_t first = 0, end; first < ask->tensor_count; first = end) {
        for (end = first + 1; end < ask->tensor_count && all[end]->id == all[first]->id &&
                              all[end]->session == all[first]->session;)
            end++;
        describe_parts(sessions, all + first, end - first);
    }
}

/* ---- the answer ---- */

static void ask_finish(dt_sessions_t *sessions, dt_session_ask_t *ask)
{
    Dtorch__V1__TensorList list = DTORCH__V1__TENSOR_LIST__INIT;
    char *names[DT_SESSION_NODES_MAX];
    dt_session_queued_t *queued;
    if (ask->tensors) {
        describe_all(sessions, ask);
        qsort(ask->tensors, ask->tensor_count, sizeof(void *), by_size);
    }
    list.tensors = ask->tensors;
    list.n_tensors = ask->tensor_count < ask->limit ? ask->tensor_count : ask->limit;
    list.more = ask->is_cut || ask->tensor_count > ask->limit;
    fill_unanswered(sessions, ask, &list, names);
    queued = dt_sessions_action(sessions, DT_SESSION_DO_REPLY,
                                dtorch__v1__tensor_list__get_packed_size(&list));
    if (queued) {
        queued->action.ticket = ask->ticket;
        (void)dtorch__v1__tensor_list__pack(&list, queued->data);
        dt_sessions_push(sessions, queued);
    }
    dt_session_ask_free(sessions, ask);
}

static void ask_links(dt_sessions_t *sessions, dt_session_ask_t *ask, const dt_session_t *session)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    Dtorch__V1__ListTensors wanted = DTORCH__V1__LIST_TENSORS__INIT;
    wanted.limit = ask->limit;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_LIST;
    down.list = &wanted;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (!link->stream || ask->stream_count >= sessions->link_count)
            continue;
        dt_sessions_send(sessions, link->stream, &down.base);
        ask->engines[ask->stream_count] = link->engine_count ? link->engine_count : 1;
        ask->streams[ask->stream_count++] = link->stream;
        ask->waiting++;
    }
}

void dt_sessions_list_tensors(dt_sessions_t *sessions, uint64_t ticket,
                              const Dtorch__V1__ListTensorsRequest *request, int64_t now_ns)
{
    dt_session_ask_t *ask;
    dt_sessions_set_now(sessions, now_ns);
    if (request->job && !dt_sessions_find(sessions, request->job)) {
        reply_error(sessions, ticket, DT_ERR_NOT_FOUND, "there is no such job");
        return;
    }
    ask = calloc(1, sizeof *ask);
    if (ask) {
        ask->streams = calloc(sessions->link_count + 1, sizeof *ask->streams);
        ask->engines = calloc(sessions->link_count + 1, sizeof *ask->engines);
    }
    if (!ask || !ask->streams || !ask->engines || sessions->ask_count >= DT_SESSION_TICKETS_MAX) {
        free(ask ? ask->streams : NULL);
        free(ask ? ask->engines : NULL);
        free(ask);
        reply_error(sessions, ticket, DT_ERR_AGAIN, "too many such questions wait for nodes");
        return;
    }
    ask->ticket = ticket;
    ask->job = request->job;
    ask->limit = request->limit ? request->limit : LIST_TENSORS;
    ask->deadline_ns = now_ns + DT_SESSION_LIST_NS;
    dt_list_push(&sessions->asks, &ask->list);
    sessions->ask_count++;
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next) {
        const dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        if (!ask->job || session->id == ask->job)
            ask_links(sessions, ask, session);
    }
    if (ask->waiting == 0)
        ask_finish(sessions, ask);
}

static void ask_take(dt_session_ask_t *ask, const Dtorch__V1__TensorInfo *info, uint64_t session)
{
    uint8_t *packed;
    size_t size;
    if (ask->tensor_count == ask->tensor_cap) {
        uint32_t cap = ask->tensor_cap ? 2 * ask->tensor_cap : 256;
        Dtorch__V1__TensorInfo **grown = realloc(ask->tensors, cap * sizeof(void *));
        if (!grown) {
            ask->is_cut = true;
            return;
        }
        ask->tensors = grown;
        ask->tensor_cap = cap;
    }
    if (ask->tensor_count >= 4 * LIST_TENSORS_MAX ||
        dt_wire_pack_new(&info->base, &packed, &size) != DT_OK) {
        ask->is_cut = true;
        return;
    }
    ask->tensors[ask->tensor_count] = dtorch__v1__tensor_info__unpack(NULL, size, packed);
    free(packed);
    if (ask->tensors[ask->tensor_count])
        ask->tensors[ask->tensor_count++]->session = session;
}

void dt_session_ask_answered(dt_sessions_t *sessions, uint64_t stream,
                             const Dtorch__V1__SessionStats *stats, uint64_t session)
{
    if (!stats->is_list)
        return;
    for (dt_list_t *at = sessions->asks.next, *next; at != &sessions->asks; at = next) {
        dt_session_ask_t *ask = DT_CONTAINER_OF(at, dt_session_ask_t, list);
        next = at->next;
        for (uint32_t i = 0; i < ask->stream_count; i++) {
            if (ask->streams[i] != stream)
                continue;
            for (size_t k = 0; k < stats->n_list; k++)
                ask_take(ask, stats->list[k], session);
            ask->is_cut |= stats->list_is_cut;
            if (stats->list_follows || --ask->engines[i] > 0)
                break;
            ask->streams[i] = 0;
            if (--ask->waiting == 0)
                ask_finish(sessions, ask);
            break;
        }
    }
}

void dt_sessions_asks_turn(dt_sessions_t *sessions)
{
    for (dt_list_t *at = sessions->asks.next, *next; at != &sessions->asks; at = next) {
        dt_session_ask_t *ask = DT_CONTAINER_OF(at, dt_session_ask_t, list);
        next = at->next;
        if (sessions->now_ns >= ask->deadline_ns)
            ask_finish(sessions, ask);
    }
}

void dt_session_ask_free(dt_sessions_t *sessions, dt_session_ask_t *ask)
{
    for (uint32_t i = 0; ask->tensors && i < ask->tensor_count; i++)
        dtorch__v1__tensor_info__free_unpacked(ask->tensors[i], NULL);
    dt_list_remove(&ask->list);
    sessions->ask_count--;
    free(ask->tensors);
    free(ask->streams);
    free(ask->engines);
    free(ask);
}
