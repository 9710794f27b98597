/* Links: instances of sessions on nodes. Frames down within the window, Executed, results, answers,
 * statistics up. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/session_internal.h"

/* Fields of one kind in both envelopes: what is in them is the same, so their bytes go on. */
enum {
    UP_RESULT = 3,
    UP_ANSWER = 4,
    TAG_DOWN_RESULT = 0x2a,
    TAG_DOWN_ANSWER = 0x32,
    UP_CHUNK = 6,
    UP_DOOR = 9,  /* SessionDown has it under the same number */
    UP_PEER = 11, /* WorkerSessionDown likewise */
};

#define UP_MESSAGES 64u
#define UP_BYTES    (256u << 10)

/* ---- life ---- */

dt_session_link_t *dt_session_link_new(dt_sessions_t *sessions, dt_session_t *session,
                                       dt_session_place_t *place)
{
    dt_session_link_t *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->session = session;
    link->place = place;
    link->join = session->next_sequence;
    link->round = session->bind_round;
    link->join_index = session->queue_first + session->queue_count;
    link->unserved_ns = sessions->now_ns;
    link->gone_from = session->gone_next;
    sessions->options.random(link->key, sizeof link->key);
    dt_list_push(&session->links, &link->list);
    dt_list_push(&place->links, &link->node_list);
    sessions->link_count++;
    if (dt_session_prelude(sessions, link) != DT_OK) {
        dt_session_link_remove(sessions, link, "out of memory");
        return NULL;
    }
    return link;
}

/* ---- nodes that are gone ---- */

void dt_session_gone_fini(dt_session_t *session)
{
    for (uint32_t i = 0; i < session->gone_count; i++)
        free(session->gone[i].packed);
    free(session->gone);
}

/* Drop what is said again of a node, and what no link needs. */
static void gone_prune(dt_session_t *session, const char *node)
{
    uint64_t first = UINT64_MAX;
    uint32_t kept = 0;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        first = link->gone_from < first ? link->gone_from : first;
    }
    for (uint32_t i = 0; i < session->gone_count; i++) {
        if (session->gone[i].number < first || dt_str_is_equal(session->gone[i].node, node))
            free(session->gone[i].packed);
        else
            session->gone[kept++] = session->gone[i];
    }
    session->gone_count = kept;
}

static dt_session_gone_t *gone_add(dt_session_t *session, const char *node)
{
    gone_prune(session, node);
    if (session->gone_count == session->gone_cap) {
        uint32_t cap = session->gone_cap ? 2 * session->gone_cap : 4;
        dt_session_gone_t *grown = realloc(session->gone, cap * sizeof *grown);
        if (!grown)
            return NULL;
        session->gone = grown;
        session->gone_cap = cap;
    }
    dt_session_gone_t *gone = &session->gone[session->gone_count];
    *gone = (dt_session_gone_t){.number = session->gone_next++};
    (void)dt_str_copy(gone->node, sizeof gone->node, node);
    return gone;
}

/* Tell the other nodes of the session that this one is gone, if they may know it: now, and each
 * time when they come back, as what is under way on a stream that breaks is lost. */
static void tell_gone(dt_sessions_t *sessions, const dt_session_link_t *link, const char *reason)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    Dtorch__V1__PeerDoor peer = DTORCH__V1__PEER_DOOR__INIT;
    dt_session_t *session = link->session;
    char text[257];
    size_t size;
    if (session->links.next->next == &session->links)
        return;
    (void)dt_str_copy(text, sizeof text, reason);
    peer.node = link->place->name;
    peer.reason = text;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_PEER;
    down.peer = &peer;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *other = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (other != link && other->place != link->place && other->stream)
            dt_sessions_send(sessions, other->stream, &down.base);
    }
    dt_session_gone_t *gone = gone_add(session, link->place->name);
    if (gone && dt_wire_pack_new(&down.base, &gone->packed, &size) == DT_OK) {
        gone->size = (uint32_t)size;
        session->gone_count++;
    }
}

void dt_session_link_remove(dt_sessions_t *sessions, dt_session_link_t *link, const char *reason)
{
    dt_session_stream_t *stream = dt_sessions_stream(sessions, link->stream);
    tell_gone(sessions, link, reason);
    if (link->place->stream) {
        Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
        Dtorch__V1__SessionClose close = DTORCH__V1__SESSION_CLOSE__INIT;
        close.session = link->session->id;
        close.reason = DT_SESSION_TEXT(reason);
        close.key = (ProtobufCBinaryData){sizeof link->key, link->key};
        down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_CLOSE;
        down.close = &close;
        dt_sessions_node_send(sessions, link->place->stream, &down);
    }
    if (stream) {
        Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
        down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_CLOSE;
        down.close = true;
        dt_sessions_send(sessions, stream->id, &down.base);
        stream->link = NULL;
        dt_session_stream_end(sessions, stream, DT_ERR_NOT_FOUND, reason);
    }
    for (uint32_t i = 0; i < link->prelude_count; i++)
        dt_session_packet_unref(link->prelude[i]);
    dt_list_remove(&link->list);
    dt_list_remove(&link->node_list);
    sessions->link_count--;
    free(link->prelude);
    free(link->engines);
    dt_session_drop_reporters(link);
    free(link->door);
    free(link->peer);
    free(link);
}

/* Tell the node to serve it; said again on each new control stream. */
void dt_session_link_open(dt_sessions_t *sessions, dt_session_link_t *link)
{
    dt_session_t *session = link->session;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    Dtorch__V1__SessionOpen open = DTORCH__V1__SESSION_OPEN__INIT;
    if (!link->place->stream)
        return;
    dt_arena_reset(&sessions->sig_arena);
    open.bindings = dt_session_bindings(session, link, &sessions->sig_arena, &open.n_bindings);
    if (!open.bindings)
        return;
    if (session->links.next->next != &session->links) {
        open.all = dt_session_bindings(session, NULL, &sessions->sig_arena, &open.n_all);
        if (!open.all)
            return;
    }
    open.session = session->id;
    open.key = (ProtobufCBinaryData){sizeof link->key, link->key};
    open.tenant = DT_SESSION_TEXT("default");
    open.memory_limit_bytes = session->memory_limit;
    open.epoch = sessions->epoch;
    open.program = session->program;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_OPEN;
    down.open = &open;
    dt_sessions_node_send(sessions, link->place->stream, &down);
}

void dt_session_link_engines(dt_session_link_t *link)
{
    const dt_session_t *session = link->session;
    uint32_t count = 0;
    dt_session_engine_t *engines = calloc(session->vdev_count, sizeof *engines);
    if (!engines)
        return;
    for (uint32_t v = 0; v < session->vdev_count; v++) {
        const dt_session_vdev_t *vdev = &session->vdevs[v];
        uint32_t at = 0;
        if (vdev->link != link)
            continue;
        while (at < count && engines[at].device != vdev->device)
            at++;
        if (at < count)
            continue;
        engines[count] = (dt_session_engine_t){vdev->device, v, link->executed};
        for (uint32_t i = 0; i < link->engine_count; i++)
            if (link->engines[i].device == vdev->device)
                engines[count].executed = link->engines[i].executed;
        count++;
    }
    free(link->engines);
    link->engines = engines;
    link->engine_count = count;
}

/* ---- sending ---- */

static uint64_t packet_total(const dt_session_link_t *link)
{
    const dt_session_t *session = link->session;
    return link->prelude_count + (session->queue_first + session->queue_count - link->join_index);
}

static dt_session_packet_t *packet_at(const dt_session_link_t *link, uint64_t index)
{
    const dt_session_t *session = link->session;
    uint64_t at;
    if (index < link->prelude_count)
        return link->prelude[index];
    at = link->join_index + (index - link->prelude_count) - session->queue_first;
    return session->queue[session->queue_head + at];
}

/* Packets that begin behind record `last` wait. */
static void send_packets(dt_sessions_t *sessions, dt_session_link_t *link, uint64_t last)
{
    const dt_session_t *session = link->session;
    uint64_t total = packet_total(link);
    while (link->next < total && link->inflight_bytes < session->node_window_bytes &&
           link->sent - link->executed < session->node_window_records) {
        dt_session_packet_t *packet = packet_at(link, link->next);
        if (packet->first > last)
            return;
        dt_sessions_send_packet(sessions, link->stream, packet);
        link->inflight_bytes += packet->size;
        link->sent = packet->first + packet->count - 1;
        link->next++;
    }
}

/* With too many unconfirmed results nothing goes on behind the oldest fetch that has none: the
 * client can confirm none before it has that. To there all go, not only the node that owes it: it
 * may have to move a tensor first, and waits for the others then. */
void dt_session_pump(dt_sessions_t *sessions, dt_session_t *session)
{
    uint64_t last = UINT64_MAX;
    if (session->results_bytes > session->results_bytes_max) {
        const dt_session_future_t *oldest = dt_session_future_open(session);
        last = oldest ? oldest->sequence : 0;
    }
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (link->stream)
            send_packets(sessions, link, last);
    }
}

/* What this link has behind it. */
static void link_done(dt_session_link_t *link)
{
    uint64_t executed = UINT64_MAX;
    for (uint32_t i = 0; i < link->engine_count; i++)
        if (link->engines[i].executed < executed)
            executed = link->engines[i].executed;
    if (executed == UINT64_MAX)
        return; /* no engine is left; its vdevs are about to go */
    link->executed = executed;
    while (link->done < link->next) {
        dt_session_packet_t *packet = packet_at(link, link->done);
        if (packet->first + packet->count - 1 > executed)
            break;
        link->inflight_bytes -= packet->size;
        if (link->done < link->prelude_count) {
            dt_session_packet_unref(packet);
            link->prelude[link->done] = NULL;
        }
        link->done++;
    }
}

/* Index since the session began of the first packet that this link still needs. */
static uint64_t needs_from(const dt_session_link_t *link)
{
    uint64_t done = link->done > link->prelude_count ? link->done - link->prelude_count : 0;
    return link->join_index + done;
}

void dt_session_settle(dt_sessions_t *sessions, dt_session_t *session)
{
    uint64_t keep = session->queue_first + session->queue_count;
    uint64_t executed = session->next_sequence - 1;
    uint64_t credit = dt_session_credit(session);
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        uint64_t behind;
        link_done(link);
        behind = link->executed + 1 < link->join ? link->join - 1 : link->executed;
        executed = behind < executed ? behind : executed;
        keep = needs_from(link) < keep ? needs_from(link) : keep;
    }
    while (session->queue_count && session->queue_first < keep) {
        dt_session_packet_t *packet = session->queue[session->queue_head];
        session->bytes_done += packet->payload;
        dt_session_packet_unref(packet);
        session->queue_first++;
        session->queue_head++;
        session->queue_count--;
    }
    if (executed > session->executed)
        session->executed = executed;
    if (dt_session_credit(session) != credit)
        dt_session_ack(sessions, session, false);
}

/* ---- what was taken of what a node sent ---- */

static void tell_taken(dt_sessions_t *sessions, dt_session_link_t *link)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_UP_RECEIVED;
    down.up_received = link->up_told = link->up_count;
    link->up_bytes = 0;
    dt_sessions_send(sessions, link->stream, &down.base);
}

static void count_up(dt_sessions_t *sessions, dt_session_link_t *link, size_t size)
{
    link->up_count++;
    link->up_bytes += size;
    if (link->up_count - link->up_told >= UP_MESSAGES || link->up_bytes >= UP_BYTES)
        tell_taken(sessions, link);
}

void dt_sessions_links_turn(dt_sessions_t *sessions)
{
    for (dt_list_t *at = sessions->streams.next; at != &sessions->streams; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_stream_t, list)->link;
        if (link && link->up_count != link->up_told)
            tell_taken(sessions, link);
    }
}

/* ---- hello ---- */

static bool equals(const uint8_t *a, const uint8_t *b, size_t size)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < size; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

static dt_session_link_t *find_link(dt_session_t *session, const uint8_t *key)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (equals(link->key, key, sizeof link->key))
            return link;
    }
    return NULL;
}

/* Go on behind what the node has. False: it lacks what is not kept any more. */
static bool rewind_to(dt_session_link_t *link, uint64_t received)
{
    uint64_t total = packet_total(link);
    if (received == 0 && link->executed == link->start)
        received = link->start; /* it got nothing: all from the start */
    if (received < link->executed || received > link->sent)
        return false;
    link->next = link->done;
    link->inflight_bytes = 0;
    link->sent = received > link->executed ? received : link->executed;
    while (link->next < total) {
        const dt_session_packet_t *packet = packet_at(link, link->next);
        if (packet->first + packet->count - 1 > received)
            break;
        link->inflight_bytes += packet->size;
        link->next++;
    }
    return true;
}

static void send_queries(dt_sessions_t *sessions, dt_session_link_t *link)
{
    dt_session_t *session = link->session;
    for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next) {
        const dt_session_query_t *query = DT_CONTAINER_OF(at, dt_session_query_t, list);
        if (session->vdevs[query->vdev].link == link)
            (void)dt_sessions_send_bytes(sessions, link->stream, query->bytes, query->size);
    }
}

static void lose_all(dt_sessions_t *sessions, dt_session_link_t *link, const char *kind,
                     const char *text)
{
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    error.code = DT_ERR_LOST;
    error.kind = DT_SESSION_TEXT(kind);
    error.text = DT_SESSION_TEXT(text);
    error.node = link->place->name;
    dt_session_lose(sessions, link, NULL, 0, &error);
}

/* What the other nodes have said of where they are reached, and which are gone. */
static void tell_peers(dt_sessions_t *sessions, const dt_session_link_t *link)
{
    const dt_session_t *session = link->session;
    for (uint32_t i = 0; i < session->gone_count; i++) {
        const dt_session_gone_t *gone = &session->gone[i];
        if (gone->number >= link->gone_from && !dt_str_is_equal(gone->node, link->place->name))
            (void)dt_sessions_send_bytes(sessions, link->stream, gone->packed, gone->size);
    }
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *other = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (other != link && other->peer)
            (void)dt_sessions_send_bytes(sessions, link->stream, other->peer, other->peer_bytes);
    }
}

static void on_hello(dt_sessions_t *sessions, dt_session_stream_t *stream,
                     const Dtorch__V1__WorkerSessionHello *hello)
{
    dt_session_t *session = dt_sessions_find(sessions, hello->session);
    dt_session_link_t *link = session ? find_link(session, hello->key.data) : NULL;
    dt_session_stream_t *old;
    if (!link || hello->epoch != sessions->epoch) {
        dt_session_stream_end(sessions, stream, DT_ERR_NOT_FOUND,
                              hello->epoch != sessions->epoch ? "another epoch"
                                                              : "there is no such session here");
        return;
    }
    old = dt_sessions_stream(sessions, link->stream);
    if (old) {
        old->link = NULL;
        dt_session_stream_end(sessions, old, DT_ERR_AGAIN, "replaced by a new stream");
    }
    stream->session = session;
    stream->link = link;
    link->stream = stream->id;
    link->unserved_ns = 0;
    if (!rewind_to(link, hello->received)) {
        lose_all(sessions, link, "WorkerLost", "the node has lost what it had of the session");
        return;
    }
    tell_taken(sessions, link);
    tell_peers(sessions, link);
    send_queries(sessions, link);
    dt_session_pump(sessions, session);
    dt_session_bulk_restart(sessions, session, link);
}

/* ---- what comes up ---- */

static void on_executed(dt_sessions_t *sessions, dt_session_link_t *link,
                        const Dtorch__V1__Executed *executed)
{
    dt_session_t *session = link->session;
    uint64_t sequence = executed->sequence < link->sent ? executed->sequence : link->sent;
    if (executed->vdev >= session->vdev_count || session->vdevs[executed->vdev].link != link)
        return;
    for (uint32_t i = 0; i < link->engine_count; i++)
        if (link->engines[i].device == session->vdevs[executed->vdev].device &&
            link->engines[i].executed < sequence)
            link->engines[i].executed = sequence;
    dt_session_settle(sessions, session);
    dt_session_pump(sessions, session);
}

/* Keep a result until it is confirmed, and send it if the client is there. Takes `packed`. */
static void keep_result(dt_sessions_t *sessions, dt_session_t *session, dt_session_future_t *future,
                        uint8_t *packed, size_t size)
{
    future->result = packed;
    future->size = (uint32_t)size;
    session->results_bytes += size;
    sessions->counts.results++;
    if (session->stream)
        (void)dt_sessions_send_bytes(sessions, session->stream->id, packed, size);
}

void dt_session_answer(dt_sessions_t *sessions, dt_session_t *session, uint64_t number,
                       uint32_t cause)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Result result = DTORCH__V1__RESULT__INIT;
    dt_session_future_t *future = dt_session_future_find(session, number);
    Dtorch__V1__OperatorError error = *dt_session_cause_of(session, cause);
    uint8_t *packed;
    size_t size;
    if (!future || future->result)
        return;
    result.future = number;
    result.error = &error;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_RESULT;
    down.result = &result;
    if (dt_wire_pack_new(&down.base, &packed, &size) == DT_OK)
        keep_result(sessions, session, future, packed, size);
}

static void on_result(dt_sessions_t *sessions, dt_session_link_t *link,
                      const Dtorch__V1__Result *result, const uint8_t *data, size_t size)
{
    dt_session_t *session = link->session;
    dt_session_future_t *future = dt_session_future_find(session, result->future);
    uint8_t *packed;
    if (!future || future->result || session->vdevs[future->vdev].link != link)
        return; /* confirmed, sent again, or not its own */
    if (result->transfer && result->transfer != result->future)
        return;
    packed = malloc(size);
    if (!packed)
        return;
    memcpy(packed, data, size);
    packed[0] = TAG_DOWN_RESULT;
    future->has_transfer = result->transfer != 0;
    keep_result(sessions, session, future, packed, size);
    if (session->results_bytes > session->results_bytes_max)
        dt_session_pump(sessions, session); /* another one is the oldest now */
}

static void on_answer(dt_sessions_t *sessions, dt_session_link_t *link,
                      const Dtorch__V1__SigAnswer *answer, const uint8_t *data, size_t size)
{
    dt_session_t *session = link->session;
    for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next) {
        dt_session_query_t *query = DT_CONTAINER_OF(at, dt_session_query_t, list);
        if (query->query != answer->query || session->vdevs[query->vdev].link != link)
            continue;
        session->query_count--;
        session->query_bytes -= query->size;
        dt_list_remove(&query->list);
        free(query);
        if (session->stream) {
            uint8_t *copy = dt_sessions_send_bytes(sessions, session->stream->id, data, size);
            if (copy)
                copy[0] = TAG_DOWN_ANSWER;
        }
        return;
    }
}

/* Where the node takes tensor bytes itself: for the client, now and when it comes back. */
static void on_door(dt_sessions_t *sessions, dt_session_link_t *link,
                    const Dtorch__V1__DataDoor *door, const uint8_t *data, size_t size)
{
    const dt_session_t *session = link->session;
    uint8_t *kept;
    for (size_t i = 0; i < door->n_vdevs; i++)
        if (door->vdevs[i] >= session->vdev_count || session->vdevs[door->vdevs[i]].link != link)
            return;
    if (!dt_str_is_equal(door->node, link->place->name))
        return;
    kept = malloc(size);
    if (!kept)
        return;
    memcpy(kept, data, size);
    free(link->door);
    link->door = kept;
    link->door_bytes = (uint32_t)size;
    if (session->stream)
        (void)dt_sessions_send_bytes(sessions, session->stream->id, data, size);
}

/* Where the node is reached by the others: for them, now and when they come back. */
static void on_peer(dt_sessions_t *sessions, dt_session_link_t *link,
                    const Dtorch__V1__PeerDoor *peer, const uint8_t *data, size_t size)
{
    dt_session_t *session = link->session;
    uint8_t *kept = dt_str_is_equal(peer->node, link->place->name) ? malloc(size) : NULL;
    if (!kept)
        return;
    memcpy(kept, data, size);
    free(link->peer);
    link->peer = kept;
    link->peer_bytes = (uint32_t)size;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *other = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (other != link && other->stream)
            (void)dt_sessions_send_bytes(sessions, other->stream, data, size);
    }
}

static void on_lost(dt_sessions_t *sessions, dt_session_link_t *link,
                    const Dtorch__V1__EngineLost *lost)
{
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    if (lost->error)
        error = *lost->error;
    if (!error.code)
        error.code = DT_ERR_LOST;
    if (!error.kind[0])
        error.kind = DT_SESSION_TEXT("EngineLost");
    if (!error.text[0])
        error.text = DT_SESSION_TEXT("the engine of the session ended");
    if (!error.node[0])
        error.node = link->place->name;
    dt_session_lose(sessions, link, lost->vdevs, lost->n_vdevs, &error);
}

static bool unpack(dt_sessions_t *sessions, dt_session_stream_t *stream, const uint8_t *data,
                   size_t size, Dtorch__V1__WorkerSessionUp **ret_up)
{
    dt_error_t err;
    dt_arena_reset(&sessions->arena);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_session_up, &sessions->arena, data, size, ret_up, &err) ==
        DT_OK)
        return true;
    sessions->counts.malformed++;
    dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-misbehaves", stream->session,
                     stream->link ? stream->link->place->name : "", "malformed",
                     "the node's stream of the session: %s", err.text);
    dt_session_stream_end(sessions, stream, DT_ERR_INVALID, err.text);
    return false;
}

void dt_session_link_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                              const uint8_t *data, size_t size)
{
    dt_session_link_t *link = stream->link;
    Dtorch__V1__WorkerSessionUp *up;
    const uint8_t *chunk;
    size_t chunk_bytes;
    if (link && dt_session_only_field(data, size, UP_CHUNK, &chunk, &chunk_bytes)) {
        count_up(sessions, link, size);
        dt_session_bulk_from_link(sessions, link, chunk, chunk_bytes);
        return;
    }
    if (!unpack(sessions, stream, data, size, &up))
        return;
    if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_HELLO) {
        if (!link)
            on_hello(sessions, stream, up->hello);
        return;
    }
    if (!link) {
        dt_session_stream_end(sessions, stream, DT_ERR_INVALID,
                              "the first message must be a hello");
        return;
    }
    count_up(sessions, link, size);
    switch (up->kind_case) {
    case DTORCH__V1__WORKER_SESSION_UP__KIND_EXECUTED:
        on_executed(sessions, link, up->executed);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT:
        if (dt_session_only_field(data, size, UP_RESULT, &chunk, &chunk_bytes))
            on_result(sessions, link, up->result, data, size);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_ANSWER:
        if (dt_session_only_field(data, size, UP_ANSWER, &chunk, &chunk_bytes))
            on_answer(sessions, link, up->answer, data, size);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_POISON:
        if (up->poison->error)
            dt_session_note_error(sessions, link->session, up->poison->error);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_STATS:
        dt_session_take_stats(link, up->stats, sessions->now_ns);
        dt_session_ask_answered(sessions, stream->id, up->stats, link->session->id);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_TRACE:
        dt_session_trace_take(sessions, link, up->trace);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_LOST:
        on_lost(sessions, link, up->lost);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_DOOR:
        if (dt_session_only_field(data, size, UP_DOOR, &chunk, &chunk_bytes))
            on_door(sessions, link, up->door, data, size);
        break;
    case DTORCH__V1__WORKER_SESSION_UP__KIND_PEER:
        if (dt_session_only_field(data, size, UP_PEER, &chunk, &chunk_bytes))
            on_peer(sessions, link, up->peer, data, size);
        break;
    default:
        break; /* of a newer minor version */
    }
}

void dt_session_link_closed(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    dt_session_link_t *link = stream->link;
    if (!link || link->stream != stream->id)
        return;
    link->stream = 0;
    link->unserved_ns = sessions->now_ns;
}

/* ---- errors ---- */

/* Keep a first cause for people, and tell the client. */
void dt_session_note_error(dt_sessions_t *sessions, dt_session_t *session,
                           const Dtorch__V1__OperatorError *error)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Poison poison = DTORCH__V1__POISON__INIT;
    uint32_t at = (session->error_head + session->error_count) % DT_SESSION_ERRORS_MAX;
    uint8_t *packed;
    size_t size;
    sessions->counts.errors++;
    session->error_total++;
    poison.sequence = error->sequence;
    poison.error = (Dtorch__V1__OperatorError *)(uintptr_t)error;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_POISON;
    down.poison = &poison;
    if (session->stream)
        dt_sessions_send(sessions, session->stream->id, &down.base);
    if (dt_wire_pack_new(&down.base, &packed, &size) != DT_OK)
        return;
    free(session->errors[at].packed);
    session->errors[at].packed = packed;
    session->errors[at].size = (uint32_t)size;
    session->errors[at].is_told = session->stream != NULL;
    if (session->error_count < DT_SESSION_ERRORS_MAX)
        session->error_count++;
    else
        session->error_head = (session->error_head + 1) % DT_SESSION_ERRORS_MAX;
}

void dt_session_answer_queries(dt_sessions_t *sessions, dt_session_t *session)
{
    for (dt_list_t *at = session->queries.next, *next; at != &session->queries; at = next) {
        dt_session_query_t *query = DT_CONTAINER_OF(at, dt_session_query_t, list);
        const dt_session_vdev_t *vdev = &session->vdevs[query->vdev];
        Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
        Dtorch__V1__SigAnswer answer = DTORCH__V1__SIG_ANSWER__INIT;
        Dtorch__V1__OperatorError error = *dt_session_cause_of(session, vdev->cause);
        next = at->next;
        if (vdev->link)
            continue;
        answer.query = query->query;
        answer.error = &error;
        down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_ANSWER;
        down.answer = &answer;
        if (session->stream)
            dt_sessions_send(sessions, session->stream->id, &down.base);
        session->query_count--;
        session->query_bytes -= query->size;
        dt_list_remove(&query->list);
        free(query);
    }
}
