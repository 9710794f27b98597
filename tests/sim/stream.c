/* The world of the operator stream: network, faults, the machine's actions, the end of a seed. */
#include "stream.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "wire/wire.h"

#define SESSIONS_MAX 8u /* a Welcome may be lost, and then another session is begun */

static stream_t *current; /* for the machine's random numbers */

uint64_t stream_random(stream_t *s, uint64_t bound)
{
    s->random = dt_hash_u64(s->random + UINT64_C(0x9e3779b97f4a7c15));
    return bound ? s->random % bound : 0;
}

bool stream_chance(stream_t *s, unsigned percent)
{
    return stream_random(s, 100) < percent;
}

uint64_t stream_mix(uint64_t kind, uint64_t a, uint64_t b)
{
    return dt_hash_u64(kind + 3 * dt_hash_u64(a + 5 * dt_hash_u64(b)));
}

void stream_fail(stream_t *s, const char *fmt, ...)
{
    char text[300];
    va_list args;
    if (s->has_failed)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s->has_failed = true;
    (void)snprintf(s->failure, 512, "stream%s%s: %s at %.6f s", s->has_meshes ? " on meshes" : "",
                   s->has_overlap ? ", overlapping" : "", text, (double)s->now_ns / 1e9);
}

void stream_trace(stream_t *s, const char *fmt, ...)
{
    va_list args;
    if (!s->is_traced)
        return;
    (void)printf("%10.6f ", (double)s->now_ns / 1e9);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
}

/* ---- queues ---- */

static void put(stream_queue_t *queue, int64_t at_ns, bool is_end, const uint8_t *data, size_t size)
{
    stream_message_t *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->at_ns = at_ns;
    m->is_end = is_end;
    m->size = size;
    m->data = malloc(size + 1);
    if (!m->data)
        abort();
    if (size)
        memcpy(m->data, data, size);
    if (queue->tail)
        queue->tail->next = m;
    else
        queue->head = m;
    queue->tail = m;
}

static stream_message_t *take(stream_queue_t *queue)
{
    stream_message_t *m = queue->head;
    queue->head = m->next;
    if (!queue->head)
        queue->tail = NULL;
    return m;
}

static void message_free(stream_message_t *m)
{
    free(m->data);
    free(m);
}

static void drop_all(stream_queue_t *queue)
{
    while (queue->head)
        message_free(take(queue));
}

/* In order, each a little later than the one before. */
static int64_t delay(stream_t *s, int64_t *newest_ns)
{
    int64_t at_ns = s->now_ns + 10000 + (int64_t)stream_random(s, 400000);
    if (stream_chance(s, 3))
        at_ns += (int64_t)stream_random(s, 20 * STREAM_MS);
    if (at_ns <= *newest_ns)
        at_ns = *newest_ns + 1;
    *newest_ns = at_ns;
    return at_ns;
}

/* ---- pipes ---- */

static stream_pipe_t *pipe_of(stream_t *s, uint64_t id)
{
    for (int i = s->pipe_count - 1; i >= 0; i--)
        if (s->pipes[i].id == id)
            return &s->pipes[i];
    return NULL;
}

int stream_open(stream_t *s, dt_session_stream_kind_t kind, int owner)
{
    stream_pipe_t *p = &s->pipes[s->pipe_count];
    if (s->pipe_count == STREAM_PIPES) {
        stream_fail(s, "more streams than the simulator has");
        return -1;
    }
    p->id = ++s->next_stream;
    p->kind = kind;
    p->owner = owner;
    dt_sessions_opened(s->sessions, p->id, kind, "sim", s->now_ns);
    return s->pipe_count++;
}

void stream_say(stream_t *s, int pipe, const uint8_t *data, size_t size)
{
    stream_pipe_t *p = &s->pipes[pipe];
    put(&p->to_core, delay(s, &p->core_ns), false, data, size);
}

void stream_pack_say(stream_t *s, int pipe, const ProtobufCMessage *message)
{
    uint8_t *data;
    size_t size;
    if (dt_wire_pack_new(message, &data, &size) != DT_OK)
        abort();
    stream_say(s, pipe, data, size);
    free(data);
}

void stream_cut(stream_t *s, int pipe)
{
    stream_pipe_t *p = &s->pipes[pipe];
    stream_trace(s, "stream %" PRIu64 " is cut", p->id);
    s->cuts++;
    drop_all(&p->to_core);
    drop_all(&p->to_peer);
    p->core_ns = p->peer_ns = s->now_ns;
    put(&p->to_core, s->now_ns + (int64_t)stream_random(s, 30 * STREAM_MS), true, NULL, 0);
    put(&p->to_peer, s->now_ns + (int64_t)stream_random(s, 30 * STREAM_MS), true, NULL, 0);
}

void stream_leave(stream_t *s, int pipe)
{
    stream_pipe_t *p = &s->pipes[pipe];
    p->owner = -1;
    drop_all(&p->to_peer);
    put(&p->to_core, delay(s, &p->core_ns), true, NULL, 0);
}

/* ---- the machine ---- */

static void random_bytes(void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(stream_random(current, UINT64_MAX) >> 24);
}

static void hash_bytes(const uint8_t *bytes, size_t size, uint8_t ret_hash[DT_SESSION_HASH_BYTES])
{
    uint64_t hash = dt_hash_bytes(DT_HASH_SEED, bytes, size);
    for (size_t i = 0; i < DT_SESSION_HASH_BYTES; i++)
        ret_hash[i] = (uint8_t)(dt_hash_u64(hash + i) >> 16);
}

static void perform(stream_t *s)
{
    dt_session_action_t action;
    while (dt_sessions_poll(s->sessions, &action)) {
        stream_pipe_t *p;
        switch (action.kind) {
        case DT_SESSION_DO_SEND:
            p = pipe_of(s, action.stream);
            if (p && !p->is_core_done && p->owner >= 0)
                put(&p->to_peer, delay(s, &p->peer_ns), false, action.data, action.size);
            break;
        case DT_SESSION_DO_CLOSE:
            p = pipe_of(s, action.stream);
            stream_trace(s, "stream %" PRIu64 " is ended: %s", action.stream, action.text);
            if (!p || p->is_core_done)
                break;
            p->is_core_done = true;
            if (p->owner >= 0)
                put(&p->to_peer, delay(s, &p->peer_ns), true,
                    (const uint8_t *)(action.status == DT_ERR_NOT_FOUND ? "x" : ""),
                    action.status == DT_ERR_NOT_FOUND);
            break;
        case DT_SESSION_DO_NODE_SEND:
            for (int i = 0; i < STREAM_NODES; i++)
                if (s->nodes[i].control == action.stream)
                    put(&s->nodes[i].orders, delay(s, &s->nodes[i].order_ns), false, action.data,
                        action.size);
            break;
        case DT_SESSION_DO_EVENT:
            stream_trace(s, "event %s: %s", action.event->name, action.event->text);
            if (strcmp(action.event->name, "session-misbehaves") == 0)
                stream_fail(s, "an innocent peer is accused: %s", action.event->text);
            break;
        default:
            break;
        }
    }
}

void stream_node_tell(stream_t *s, int node)
{
    dt_session_device_t devices[STREAM_DEVICES];
    char name[8];
    (void)snprintf(name, sizeof name, "n%d", node);
    for (uint32_t i = 0; i < STREAM_DEVICES; i++)
        devices[i] = (dt_session_device_t){
            .index = i, .kind = "cpu", .backend = "ref", .is_usable = !s->nodes[node].well_ns};
    dt_sessions_node(s->sessions,
                     &(dt_session_node_t){.name = name,
                                          .boot_id = "",
                                          .incarnation = s->nodes[node].incarnation,
                                          .stream = s->nodes[node].control,
                                          .takes_work = s->nodes[node].control != 0,
                                          .devices = devices,
                                          .device_count = STREAM_DEVICES},
                     s->now_ns);
    perform(s);
}

/* ---- faults ---- */

static void cut_one(stream_t *s, dt_session_stream_kind_t kind)
{
    for (int i = 0; i < 8; i++) {
        int who = (int)stream_random(
            s, kind == DT_SESSION_STREAM_CLIENT ? STREAM_CLIENTS : (uint64_t)s->instance_count);
        int pipe = kind == DT_SESSION_STREAM_CLIENT ? s->clients[who].pipe
                   : s->instance_count              ? s->instances[who].pipe
                                                    : -1;
        if (pipe < 0)
            continue;
        stream_cut(s, pipe);
        return;
    }
}

static void cut_control(stream_t *s)
{
    stream_node_t *node = &s->nodes[stream_random(s, s->node_count)];
    if (!node->control)
        return;
    node->control = 0;
    drop_all(&node->orders);
    node->back_ns = s->now_ns + (int64_t)stream_random(s, (s->may_lose ? 3000 : 500) * STREAM_MS);
    stream_node_tell(s, (int)(node - s->nodes));
}

static void fault(stream_t *s)
{
    uint64_t what = stream_random(s, s->may_lose ? 100 : 92);
    if (what < 35)
        cut_one(s, DT_SESSION_STREAM_CLIENT);
    else if (what < 65)
        cut_one(s, DT_SESSION_STREAM_LINK);
    else if (what < 80)
        stream_client_repeat(s, (int)stream_random(s, STREAM_CLIENTS));
    else if (what < 92)
        cut_control(s);
    else if (what < 95)
        stream_node_restart(s, (int)stream_random(s, s->node_count),
                            s->has_meshes && stream_chance(s, 50));
    else if (s->instance_count)
        stream_engine_lost(s, (int)stream_random(s, (uint64_t)s->instance_count));
    s->fault_ns = s->now_ns < STREAM_FAULTS_NS
                      ? s->now_ns + (int64_t)stream_random(s, 60 * STREAM_MS)
                      : INT64_MAX;
}

/* ---- steps ---- */

/* What is next: a message, a timer, somebody who wakes. */
struct next {
    int64_t at_ns;
    enum { NOTHING, TO_CORE, TO_PEER, ORDER, TICK, CLIENT, INSTANCE, BACK, WELL, FAULT } what;
    int who;
};

static void offer(struct next *next, int64_t at_ns, int what, int who)
{
    if (at_ns < next->at_ns)
        *next = (struct next){at_ns, what, who};
}

static struct next find_next(stream_t *s)
{
    struct next next = {INT64_MAX, NOTHING, 0};
    for (int i = 0; i < s->pipe_count; i++) {
        if (s->pipes[i].to_core.head)
            offer(&next, s->pipes[i].to_core.head->at_ns, TO_CORE, i);
        if (s->pipes[i].to_peer.head)
            offer(&next, s->pipes[i].to_peer.head->at_ns, TO_PEER, i);
    }
    for (int i = 0; i < (int)s->node_count; i++) {
        if (s->nodes[i].orders.head)
            offer(&next, s->nodes[i].orders.head->at_ns, ORDER, i);
        if (!s->nodes[i].control)
            offer(&next, s->nodes[i].back_ns, BACK, i);
        if (s->nodes[i].well_ns)
            offer(&next, s->nodes[i].well_ns, WELL, i);
    }
    for (int i = 0; i < STREAM_CLIENTS; i++)
        if (!s->clients[i].is_over)
            offer(&next, s->clients[i].wake_ns, CLIENT, i);
    for (int i = 0; i < s->instance_count; i++)
        if (s->instances[i].is_used)
            offer(&next, s->instances[i].wake_ns, INSTANCE, i);
    offer(&next, dt_sessions_deadline(s->sessions), TICK, 0);
    offer(&next, s->fault_ns, FAULT, 0);
    return next;
}

static void deliver_core(stream_t *s, stream_pipe_t *p)
{
    stream_message_t *m = take(&p->to_core);
    if (!p->is_core_done && m->is_end) {
        p->is_core_done = true;
        dt_sessions_closed(s->sessions, p->id, "", s->now_ns);
    } else if (!p->is_core_done) {
        dt_sessions_received(s->sessions, p->id, m->data, m->size, s->now_ns);
    }
    message_free(m);
}

static void deliver_peer(stream_t *s, stream_pipe_t *p)
{
    stream_message_t *m = take(&p->to_peer);
    int owner = p->owner;
    if (owner >= 0 && m->is_end) {
        p->owner = -1;
        if (p->kind == DT_SESSION_STREAM_CLIENT)
            stream_client_ended(s, owner);
        else
            stream_instance_ended(s, owner, m->size > 0);
    } else if (owner >= 0 && p->kind == DT_SESSION_STREAM_CLIENT) {
        stream_client_message(s, owner, m->data, m->size);
    } else if (owner >= 0) {
        stream_instance_message(s, owner, m->data, m->size);
    }
    message_free(m);
}

static void step(stream_t *s)
{
    struct next next = find_next(s);
    stream_message_t *m;
    s->now_ns = next.at_ns > s->now_ns ? next.at_ns : s->now_ns;
    s->steps++;
    switch (next.what) {
    case TO_CORE:
        deliver_core(s, &s->pipes[next.who]);
        break;
    case TO_PEER:
        deliver_peer(s, &s->pipes[next.who]);
        break;
    case ORDER:
        m = take(&s->nodes[next.who].orders);
        stream_node_order(s, next.who, m->data, m->size);
        message_free(m);
        break;
    case TICK:
        dt_sessions_tick(s->sessions, s->now_ns, s->now_ns / STREAM_MS);
        break;
    case CLIENT:
        stream_client_wake(s, next.who);
        break;
    case INSTANCE:
        stream_instance_wake(s, next.who);
        break;
    case BACK:
        s->nodes[next.who].control = ++s->next_control;
        stream_node_tell(s, next.who);
        break;
    case WELL:
        s->nodes[next.who].well_ns = 0;
        stream_node_tell(s, next.who);
        break;
    case FAULT:
        fault(s);
        break;
    case NOTHING:
        break;
    }
    perform(s);
}

/* What waits is within the windows, whatever happens. */
static void check_bounds(stream_t *s)
{
    dt_sessions_counts_t counts;
    dt_sessions_count(s->sessions, &counts);
    if (counts.queued_bytes > (uint64_t)2 * STREAM_CLIENTS * DT_FRAME_BYTES_MAX ||
        counts.tensors > (uint64_t)STREAM_CLIENTS * STREAM_IDS ||
        counts.storages > counts.tensors || counts.live + counts.away > SESSIONS_MAX)
        stream_fail(s, "more waits than may");
}

/* ---- a seed ---- */

static bool is_over(const stream_t *s)
{
    dt_sessions_counts_t counts;
    for (int i = 0; i < STREAM_CLIENTS; i++)
        if (!s->clients[i].is_over)
            return false;
    for (int i = 0; i < s->instance_count; i++)
        if (s->instances[i].is_used)
            return false;
    dt_sessions_count(s->sessions, &counts); /* one whose Bye was lost has its grace */
    return counts.live + counts.away == 0;
}

static void show_end(stream_t *s)
{
    for (int i = 0; i < STREAM_CLIENTS; i++)
        for (uint64_t f = 1; f < s->clients[i].next_future; f++)
            if (!s->clients[i].answers[f])
                stream_trace(s, "client %d: future %" PRIu64 " is open", i, f);
    for (int i = 0; i < s->instance_count; i++) {
        const stream_instance_t *in = &s->instances[i];
        if (in->is_used)
            stream_trace(s,
                         "instance %d of session %" PRIu64 " on n%d: received %" PRIu64
                         ", executed %" PRIu64 ", %" PRIu32 " frames, %" PRIu32 " not taken%s",
                         i, in->session, in->node, in->received, in->executed, in->frame_count,
                         in->up_count, in->pipe < 0 ? ", not connected" : "");
    }
}

static void check_end(stream_t *s)
{
    show_end(s);
    dt_sessions_counts_t counts;
    for (int i = 0; i < STREAM_CLIENTS; i++) {
        const stream_client_t *c = &s->clients[i];
        uint32_t errors = 0;
        for (uint64_t f = 1; f < c->next_future; f++)
            errors += c->answers[f] == 2 && !c->is_error[f];
        if (!c->is_over)
            stream_fail(s, "client %d did not get to its end: %" PRIu32 " of %" PRIu64 " answers",
                        i, c->answered, c->next_future - 1);
        if (errors && !s->losses)
            stream_fail(s, "client %d got errors though nothing was lost", i);
    }
    for (int i = 0; i < s->instance_count; i++)
        if (s->instances[i].is_used)
            stream_fail(s, "instance %d was not freed", i);
    dt_sessions_count(s->sessions, &counts);
    if (!s->has_failed && (counts.live || counts.away || counts.tensors || counts.storages ||
                           counts.queued_bytes || counts.links))
        stream_fail(s, "something of a session is left");
}

static void start(stream_t *s)
{
    static const uint32_t windows[] = {4, 32, 8192};
    const dt_sessions_options_t options = {
        .struct_size = sizeof options,
        .build = "sim",
        .random = random_bytes,
        .hash = hash_bytes,
        .rules = {.interval_ns = 250 * STREAM_MS, .suspect_beats = 3, .dead_beats = 8},
        .grace_ns = 10000 * STREAM_MS,
        .hello_ns = 5000 * STREAM_MS,
        .lost_ns = 2000 * STREAM_MS,
        .sessions_max = SESSIONS_MAX,
        .tensors_max = STREAM_IDS,
        .client_window_bytes = DT_FRAME_BYTES_MAX,
        .node_window_bytes = 256u << 10,
        .node_window_records = windows[stream_random(s, 3)],
        .results_bytes = 200 + stream_random(s, 4000),
    };
    if (dt_sessions_create(&options, s->now_ns, &s->sessions, NULL) != DT_OK)
        abort();
    dt_sessions_numbers(s->sessions, STREAM_EPOCH, 1, 65, s->now_ns);
    for (int i = 0; i < (int)s->node_count; i++) {
        s->nodes[i].incarnation = 1;
        s->nodes[i].control = ++s->next_control;
        stream_node_tell(s, i);
    }
    for (int i = 0; i < STREAM_CLIENTS; i++) {
        s->clients[i].pipe = -1;
        s->clients[i].sequence = s->clients[i].next_id = s->clients[i].next_future = 1;
        s->clients[i].wake_ns = (int64_t)stream_random(s, 10 * STREAM_MS);
    }
    s->fault_ns = (int64_t)stream_random(s, 50 * STREAM_MS);
}

static void finish(stream_t *s)
{
    for (int i = 0; i < s->pipe_count; i++) {
        drop_all(&s->pipes[i].to_core);
        drop_all(&s->pipes[i].to_peer);
    }
    for (int i = 0; i < STREAM_NODES; i++)
        drop_all(&s->nodes[i].orders);
    for (int i = 0; i < s->instance_count; i++)
        stream_instance_free(s, i);
    for (int i = 0; i < STREAM_CLIENTS; i++)
        for (uint32_t k = 0; k < s->clients[i].kept_count; k++)
            free(s->clients[i].kept[k].bytes);
    dt_sessions_free(s->sessions);
    free(s);
}

/* How many devices, meshes and nodes. */
static void choose_world(stream_t *s)
{
    s->vdev_count = s->node_count = 2;
    if (s->has_meshes) {
        s->vdev_count += (uint32_t)stream_random(s, STREAM_VDEVS - 1);
        s->node_count = 1 + (uint32_t)stream_random(s, STREAM_NODES);
        s->mesh_count = 1 + (uint32_t)stream_random(s, 3);
    }
    stream_places_make(s);
}

bool stream_run(uint64_t seed, stream_world_t world, bool is_traced, char *failure,
                uint64_t *ret_steps)
{
    static const uint64_t salts[] = {
        [STREAM_PLAIN] = 77, [STREAM_MESHES] = 178, [STREAM_OVERLAP] = 279};
    stream_t *s = calloc(1, sizeof *s);
    bool is_ok;
    if (!s)
        abort();
    current = s;
    s->seed = seed;
    s->random = dt_hash_u64(seed + salts[world]);
    s->is_traced = is_traced;
    s->failure = failure;
    s->may_lose = seed % 3 == 0;
    s->has_meshes = world != STREAM_PLAIN;
    s->has_overlap = world == STREAM_OVERLAP;
    choose_world(s);
    start(s);
    while (!s->has_failed && !is_over(s) && s->now_ns < STREAM_DEADLINE_NS) {
        step(s);
        if (s->has_meshes)
            check_bounds(s);
    }
    if (!s->has_failed)
        check_end(s);
    *ret_steps += s->steps;
    is_ok = !s->has_failed;
    finish(s);
    return is_ok;
}
