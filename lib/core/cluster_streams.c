/* Streams of workers: hello, who may have an identity, welcome, refusals, messages. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

#define REFUSE_IDENTITY DTORCH__V1__REFUSAL__CODE__IDENTITY
#define REFUSE_DENIED   DTORCH__V1__REFUSAL__CODE__DENIED
#define REFUSE_LIMIT    DTORCH__V1__REFUSAL__CODE__LIMIT
#define REFUSE_VERSION  DTORCH__V1__REFUSAL__CODE__VERSION
#define REFUSE_EPOCH    DTORCH__V1__REFUSAL__CODE__EPOCH
#define REFUSE_STOPPING DTORCH__V1__REFUSAL__CODE__STOPPING

/* ---- table ---- */

static dt_stream_t **bucket_of(const dt_cluster_t *cluster, uint64_t id)
{
    return &cluster->stream_buckets[dt_hash_u64(id) & cluster->stream_mask];
}

dt_stream_t *dt_cluster_stream_find(const dt_cluster_t *cluster, uint64_t id)
{
    dt_stream_t *stream = *bucket_of(cluster, id);
    while (stream && stream->id != id)
        stream = stream->next_by_id;
    return stream;
}

void dt_cluster_stream_remove(dt_cluster_t *cluster, dt_stream_t *stream)
{
    dt_stream_t **link = bucket_of(cluster, stream->id);
    while (*link != stream)
        link = &(*link)->next_by_id;
    *link = stream->next_by_id;
    if (stream->node) {
        dt_check(stream->node->stream == stream);
        stream->node->stream = NULL;
        dt_cluster_node_moved(cluster, stream->node);
    }
    dt_list_remove(&stream->link);
    cluster->stream_count--;
    free(stream);
}

static void push_close(dt_cluster_t *cluster, uint64_t stream, const char *text)
{
    dt_queued_action_t *queued = dt_cluster_action_new(cluster, DT_CLUSTER_DO_CLOSE, 0);
    if (!queued)
        return; /* the stream says nothing more to the peer, whose own lease ends it */
    queued->action.stream = stream;
    dt_wire_text_copy(queued->text, sizeof queued->text, text);
    dt_cluster_push(cluster, queued);
}

void dt_cluster_stream_end(dt_cluster_t *cluster, dt_stream_t *stream, const char *text)
{
    push_close(cluster, stream->id, text);
    dt_cluster_stream_remove(cluster, stream);
}

static void push_refusal(dt_cluster_t *cluster, uint64_t stream, Dtorch__V1__Refusal__Code code,
                         bool retry, const char *text)
{
    char clean[DT_CLUSTER_TEXT_SIZE];
    Dtorch__V1__Refusal refusal = DTORCH__V1__REFUSAL__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    dt_wire_text_copy(clean, sizeof clean, text);
    refusal.code = code;
    refusal.retry = retry;
    refusal.text = clean;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_REFUSAL;
    down.refusal = &refusal;
    dt_cluster_send(cluster, stream, &down, false);
    cluster->refusals++;
}

void dt_cluster_stream_refuse(dt_cluster_t *cluster, dt_stream_t *stream,
                              Dtorch__V1__Refusal__Code code, bool retry, const char *text)
{
    push_refusal(cluster, stream->id, code, retry, text);
    dt_cluster_stream_end(cluster, stream, text);
}

void dt_cluster_stream_opened(dt_cluster_t *cluster, uint64_t id, const dt_cluster_peer_t *peer,
                              int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_check(id != 0 && !dt_cluster_stream_find(cluster, id));
    if (cluster->is_stopping) {
        push_refusal(cluster, id, REFUSE_STOPPING, true, "the controller stops");
        push_close(cluster, id, "stopping");
        return;
    }
    dt_stream_t *stream =
        cluster->stream_count < cluster->streams_max ? calloc(1, sizeof *stream) : NULL;
    if (!stream) {
        dt_cluster_offence(cluster, peer->address, "too-many-streams", NULL,
                           "too many worker streams are open", false);
        push_refusal(cluster, id, REFUSE_LIMIT, true, "too many streams are open");
        push_close(cluster, id, "too many streams");
        return;
    }
    stream->id = id;
    stream->opened_ns = cluster->now_ns;
    stream->pid = peer->pid;
    stream->certificate_not_after_wall_ms = peer->certificate_not_after_wall_ms;
    dt_wire_text_copy(stream->address, sizeof stream->address, peer->address);
    dt_wire_text_copy(stream->certificate_name, sizeof stream->certificate_name,
                      peer->certificate_name ? peer->certificate_name : "");
    stream->next_by_id = *bucket_of(cluster, id);
    *bucket_of(cluster, id) = stream;
    dt_list_push(&cluster->streams, &stream->link);
    cluster->stream_count++;
}

/* ---- hello ---- */

static void take_hello(dt_hello_t *out, const Dtorch__V1__WorkerHello *hello)
{
    *out = (dt_hello_t){
        .incarnation = hello->incarnation,
        .epoch_seen = hello->epoch_seen,
        .wall_ms = hello->wall_ms,
        .pid = hello->pid,
        .has_cluster_id = hello->cluster_id.len == DT_CLUSTER_ID_SIZE,
    };
    memcpy(out->node_id, hello->node_id.data, sizeof out->node_id);
    if (out->has_cluster_id)
        memcpy(out->cluster_id, hello->cluster_id.data, sizeof out->cluster_id);
    (void)dt_str_copy(out->node_name, sizeof out->node_name, hello->node_name);
    (void)dt_str_copy(out->build, sizeof out->build, hello->build);
    (void)dt_str_copy(out->boot_id, sizeof out->boot_id, hello->boot_id);
    (void)dt_str_copy(out->config_hash, sizeof out->config_hash, hello->config_hash);
    (void)dt_str_copy(out->rack, sizeof out->rack, hello->rack);
}

static const char *code_name(Dtorch__V1__Refusal__Code code)
{
    return protobuf_c_enum_descriptor_get_value(&dtorch__v1__refusal__code__descriptor, (int)code)
        ->name;
}

static void refuse_hello(dt_cluster_t *cluster, dt_stream_t *stream, Dtorch__V1__Refusal__Code code,
                         bool retry, const char *text)
{
    char kind[128];
    (void)snprintf(kind, sizeof kind, "%s %s", code_name(code), stream->hello.node_name);
    dt_cluster_offence(cluster, stream->address, kind, stream->hello.node_name, text, false);
    dt_cluster_stream_refuse(cluster, stream, code, retry, text);
}

/* Cluster, epoch, certificate. False: refused, the stream is gone. */
static bool belongs_here(dt_cluster_t *cluster, dt_stream_t *stream)
{
    char text[DT_CLUSTER_TEXT_SIZE];
    const dt_hello_t *hello = &stream->hello;
    if (stream->certificate_name[0] && strcmp(stream->certificate_name, hello->node_name) != 0) {
        (void)snprintf(text, sizeof text, "the certificate is for %s, the node says it is %s",
                       stream->certificate_name, hello->node_name);
        refuse_hello(cluster, stream, REFUSE_DENIED, false, text);
        return false;
    }
    if (!hello->has_cluster_id)
        return true;
    if (memcmp(hello->cluster_id, cluster->id, sizeof cluster->id) != 0) {
        (void)snprintf(text, sizeof text,
                       "%s belongs to another cluster than \"%s\"; to move it, remove the cluster "
                       "file in its state directory",
                       hello->node_name, cluster->name);
        refuse_hello(cluster, stream, REFUSE_DENIED, false, text);
        return false;
    }
    if (hello->epoch_seen > cluster->epoch) {
        (void)snprintf(text, sizeof text,
                       "%s has seen epoch %" PRIu64 ", this controller is at %" PRIu64
                       ": an old controller, or one whose state was put back",
                       hello->node_name, hello->epoch_seen, cluster->epoch);
        refuse_hello(cluster, stream, REFUSE_EPOCH, false, text);
        return false;
    }
    return true;
}

/* The same text as long as it is the same holder: who asks again and again logs it once. */
static void describe_holder(char *out, size_t size, const dt_node_t *node)
{
    char when[DT_CLOCK_TEXT_SIZE] = "an unknown time";
    if (node->connected_wall_ms)
        dt_clock_format_wall(node->connected_wall_ms, when);
    (void)snprintf(out, size, "%s (pid %" PRIu32 ", connected at %s)",
                   node->address[0] ? node->address : "an unknown address", node->pid, when);
}

/* Whether a live process holds the identity, or another node the name. False: refused. */
static bool identity_is_free(dt_cluster_t *cluster, dt_stream_t *stream, dt_node_t *node)
{
    char text[DT_CLUSTER_TEXT_SIZE], holder[200];
    const dt_hello_t *hello = &stream->hello;
    const dt_node_t *named = dt_cluster_node_by_name(cluster, hello->node_name);
    if (named && named != node) {
        describe_holder(holder, sizeof holder, named);
        (void)snprintf(text, sizeof text,
                       "the name %s belongs to another node, %s, last seen at %s; choose another "
                       "NodeName=, or: dtorchctl node forget %s",
                       hello->node_name, dt_cluster_health_text(named->health), holder,
                       hello->node_name);
        refuse_hello(cluster, stream, REFUSE_IDENTITY, false, text);
        return false;
    }
    if (node && !named && stream->certificate_name[0]) {
        (void)snprintf(
            text, sizeof text,
            "this identity is known as %s; before it can be %s: dtorchctl node forget %s",
            node->name, hello->node_name, node->name);
        refuse_hello(cluster, stream, REFUSE_IDENTITY, false, text);
        return false;
    }
    if (node && node->stream && node->incarnation != hello->incarnation &&
        node->lease.state == DT_LEASE_ALIVE) {
        describe_holder(holder, sizeof holder, node);
        (void)snprintf(text, sizeof text,
                       "another live process holds the identity of %s: %s; stop one of the two, or "
                       "give this one its own state directory",
                       node->name, holder);
        refuse_hello(cluster, stream, REFUSE_IDENTITY, false, text);
        return false;
    }
    return true;
}

static void send_welcome(dt_cluster_t *cluster, dt_node_t *node)
{
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerWelcome welcome = DTORCH__V1__WORKER_WELCOME__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    version.minor = DT_WIRE_VERSION_MINOR;
    welcome.version = &version;
    welcome.build = cluster->build;
    welcome.cluster_id = (ProtobufCBinaryData){sizeof cluster->id, cluster->id};
    welcome.cluster_name = cluster->name;
    welcome.epoch = cluster->epoch;
    welcome.stream = node->stream->id;
    welcome.heartbeat_ms = (uint32_t)(node->rules.interval_ns / DT_CLUSTER_MS_NS);
    welcome.suspect_beats = node->rules.suspect_beats;
    welcome.dead_beats = node->rules.dead_beats;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_WELCOME;
    down.welcome = &welcome;
    dt_cluster_send(cluster, node->stream->id, &down, false);
    cluster->welcomes++;
}

/* The node is new, a new life of a known one, or the same life on a new stream: say which. */
static void tell_arrival(dt_cluster_t *cluster, dt_node_t *node, bool is_new, uint64_t before,
                         const char *old_name)
{
    dt_event_draft_t draft;
    bool is_new_life = before != node->incarnation;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE,
                   is_new        ? "node-joined"
                   : is_new_life ? "node-restarted"
                                 : "node-reconnected",
                   node);
    dt_event_field(&draft, "address", "%s", node->address);
    dt_event_field(&draft, "incarnation", "%" PRIu64, node->incarnation);
    if (!is_new && is_new_life)
        dt_event_field(&draft, "old_incarnation", "%" PRIu64, before);
    if (old_name)
        dt_event_field(&draft, "old_name", "%s", old_name);
    dt_event_field(&draft, "build", "%s", node->build);
    dt_event_field(&draft, "pid", "%" PRIu32, node->pid);
    (void)dt_event_end(cluster, &draft, "%s %s from %s", node->name,
                       is_new        ? "joined"
                       : is_new_life ? "came up as a new life"
                                     : "connected again",
                       node->address);
}

static void take_over(dt_cluster_t *cluster, dt_node_t *node, const dt_stream_t *stream)
{
    const dt_hello_t *hello = &stream->hello;
    if (node->incarnation != hello->incarnation) {
        free(DT_TAKE(node->inventory)); /* of another life */
        node->inventory_size = 0;
        node->engines_busy = 0;
    }
    node->incarnation = hello->incarnation;
    (void)dt_cluster_node_life(node, hello->incarnation);
    node->session_count++;
    node->pid = hello->pid;
    node->is_stuck = false;
    (void)dt_str_copy(node->build, sizeof node->build, hello->build);
    (void)dt_str_copy(node->boot_id, sizeof node->boot_id, hello->boot_id);
    (void)dt_str_copy(node->config_hash, sizeof node->config_hash, hello->config_hash);
    (void)dt_str_copy(node->rack, sizeof node->rack, hello->rack);
    (void)dt_str_copy(node->address, sizeof node->address, stream->address);
    node->clock_offset_ms = hello->wall_ms - cluster->wall_ms;
    node->connected_wall_ms = cluster->wall_ms;
    node->certificate_not_after_wall_ms = stream->certificate_not_after_wall_ms;
}

static void welcome(dt_cluster_t *cluster, dt_stream_t *stream, dt_node_t *node, bool is_new)
{
    uint64_t before = node->incarnation;
    char old_name[64] = "";
    if (node->stream)
        dt_cluster_stream_end(cluster, node->stream, "replaced by a new stream of this node");
    if (strcmp(node->name, stream->hello.node_name) != 0) {
        (void)dt_str_copy(old_name, sizeof old_name, node->name);
        dt_check(dt_cluster_node_rename(cluster, node, stream->hello.node_name) == DT_OK);
    }
    take_over(cluster, node, stream);
    node->stream = stream;
    stream->node = node;
    stream->state = DT_STREAM_WELCOMED;
    node->rules = cluster->rules;
    dt_lease_init(&node->lease, &cluster->clock, cluster->now_ns);
    node->beat_sequence = 0;
    node->next_beat_ns =
        cluster->now_ns + (int64_t)(dt_hash_u64(stream->id) % (uint64_t)node->rules.interval_ns);
    send_welcome(cluster, node);
    dt_cluster_node_send_intent(cluster, node);
    tell_arrival(cluster, node, is_new, before, old_name[0] ? old_name : NULL);
    dt_cluster_node_judge(cluster, node);
    dt_cluster_node_dirty(cluster, node);
    dt_cluster_flush_dirty(cluster);
}

static void admit(dt_cluster_t *cluster, dt_stream_t *stream)
{
    dt_node_t *node = dt_cluster_node_by_id(cluster, stream->hello.node_id);
    if (!belongs_here(cluster, stream) || !identity_is_free(cluster, stream, node))
        return;
    bool is_new = node == NULL;
    if (is_new)
        node = dt_cluster_node_add(cluster, stream->hello.node_id, stream->hello.node_name);
    if (!node) {
        refuse_hello(cluster, stream, REFUSE_LIMIT, true,
                     "the cluster has as many nodes as NodesMax=");
        return;
    }
    welcome(cluster, stream, node, is_new);
}

void dt_cluster_admit_held(dt_cluster_t *cluster)
{
    dt_list_t *link = cluster->streams.next;
    while (link != &cluster->streams) {
        dt_stream_t *stream = DT_CONTAINER_OF(link, dt_stream_t, link);
        link = link->next;
        if (stream->state == DT_STREAM_HELD)
            admit(cluster, stream); /* may end this stream or a welcomed, older one: never `link` */
    }
}

static void offend(dt_cluster_t *cluster, dt_stream_t *stream, const char *kind, const char *text)
{
    dt_node_t *node = stream->node;
    cluster->malformed++;
    dt_cluster_offence(cluster, stream->address, kind, node ? node->name : NULL, text, true);
    dt_cluster_stream_refuse(cluster, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED, false, text);
    if (node)
        dt_cluster_node_set_health(cluster, node, DTORCH__V1__NODE_HEALTH__NODE_DEAD,
                                   "sent a malformed message");
}

static void on_hello(dt_cluster_t *cluster, dt_stream_t *stream,
                     const Dtorch__V1__WorkerHello *hello)
{
    dt_error_t error;
    if (stream->state != DT_STREAM_NEW) {
        offend(cluster, stream, "second-hello", "a second Hello on one stream");
        return;
    }
    take_hello(&stream->hello, hello);
    if (dt_wire_check_version(hello->version, "worker", hello->build, &error) != DT_OK) {
        refuse_hello(cluster, stream, REFUSE_VERSION, false, error.text);
        return;
    }
    stream->state = DT_STREAM_HELD;
    if (cluster->is_ready)
        admit(cluster, stream);
}

void dt_cluster_check_hellos(dt_cluster_t *cluster)
{
    dt_list_t *link = cluster->streams.next;
    while (link != &cluster->streams) {
        dt_stream_t *stream = DT_CONTAINER_OF(link, dt_stream_t, link);
        link = link->next;
        if (cluster->now_ns - stream->opened_ns < cluster->hello_timeout_ns)
            return; /* they stand by age */
        if (stream->state != DT_STREAM_NEW)
            continue;
        dt_cluster_offence(cluster, stream->address, "no-hello", NULL,
                           "opened a stream and said no Hello in time", true);
        dt_cluster_stream_end(cluster, stream, "no Hello in time");
    }
}

/* ---- messages ---- */

static void on_beat(dt_cluster_t *cluster, dt_node_t *node, const Dtorch__V1__Beat *beat)
{
    cluster->beats_received++;
    if (beat->busy.len > 0)
        dt_cluster_take_busy(node, beat->busy.data, (uint32_t)beat->busy.len);
    dt_lease_beat(&node->lease, &node->rules, beat->sequence, beat->progress, beat->late_ns);
    if (dt_lease_is_stuck(&node->lease) == node->is_stuck)
        return;
    node->is_stuck = !node->is_stuck;
    dt_cluster_node_judge(cluster, node);
}

static void name_engine_event(Dtorch__V1__EngineEvent__Kind kind, const char **ret_name,
                              Dtorch__V1__Severity *ret_severity)
{
    static const struct {
        const char *name;
        Dtorch__V1__Severity severity;
    } names[] = {
        [DTORCH__V1__ENGINE_EVENT__KIND__UNSPECIFIED] = {"engine-event",
                                                         DTORCH__V1__SEVERITY__INFO},
        [DTORCH__V1__ENGINE_EVENT__KIND__STARTED] = {"engine-started", DTORCH__V1__SEVERITY__INFO},
        [DTORCH__V1__ENGINE_EVENT__KIND__EXITED] = {"engine-exited", DTORCH__V1__SEVERITY__NOTICE},
        [DTORCH__V1__ENGINE_EVENT__KIND__CRASHED] = {"engine-crashed",
                                                     DTORCH__V1__SEVERITY__WARNING},
        [DTORCH__V1__ENGINE_EVENT__KIND__HUNG] = {"engine-hung", DTORCH__V1__SEVERITY__WARNING},
        [DTORCH__V1__ENGINE_EVENT__KIND__FAILED] = {"engine-failed", DTORCH__V1__SEVERITY__ERROR},
    };
    *ret_name = names[kind].name;
    *ret_severity = names[kind].severity;
}

static void on_engine(dt_cluster_t *cluster, dt_node_t *node, const Dtorch__V1__EngineEvent *engine)
{
    dt_event_draft_t draft;
    const char *name;
    char device[80] = "";
    Dtorch__V1__Severity severity;
    if (dt_list_is_empty(&node->ack_link))
        dt_list_push(&cluster->acks, &node->ack_link);
    if (engine->sequence <= node->lives[0].engine_sequence) {
        dt_cluster_send_acks(cluster); /* sent again: the acknowledgement was lost */
        return;
    }
    node->lives[0].engine_sequence = engine->sequence;
    name_engine_event(engine->kind, &name, &severity);
    dt_event_begin(&draft, severity, name, node);
    if (engine->device >= 0)
        (void)snprintf(device, sizeof device, "%s:%" PRId32, node->name, engine->device);
    draft.event.device = device;
    dt_event_field(&draft, "engine", "%" PRIu32, engine->engine);
    dt_event_field(&draft, "pid", "%" PRIu32, engine->pid);
    if (engine->signo)
        dt_event_field(&draft, "signal", "%" PRId32, engine->signo);
    if (engine->kind == DTORCH__V1__ENGINE_EVENT__KIND__EXITED)
        dt_event_field(&draft, "exit_status", "%" PRId32, engine->exit_status);
    if (engine->operator_name[0])
        dt_event_field(&draft, "operator", "%s", engine->operator_name);
    if (engine->noticed_ns >= 0)
        dt_event_field(&draft, "noticed_ns", "%" PRId64, engine->noticed_ns);
    if (engine->noticed_by[0])
        dt_event_field(&draft, "noticed_by", "%s", engine->noticed_by);
    dt_event_field(&draft, "engine_sequence", "%" PRIu64, engine->sequence);
    dt_event_field(&draft, "incarnation", "%" PRIu64, node->incarnation);
    uint64_t sequence = dt_event_end(cluster, &draft, "engine %" PRIu32 " of %s: %s",
                                     engine->engine, node->name, engine->text);
    if (sequence)
        node->engine_journal_sequence = sequence;
    else
        dt_cluster_send_acks(cluster); /* counted as suppressed or dropped */
}

static void on_bye(dt_cluster_t *cluster, dt_stream_t *stream, const Dtorch__V1__Bye *bye)
{
    char text[300];
    dt_node_t *node = stream->node;
    (void)snprintf(text, sizeof text, "ended as planned%s%s", bye->reason[0] ? ": " : "",
                   bye->reason);
    node->engines_busy = 0;
    dt_cluster_node_set_health(cluster, node, DTORCH__V1__NODE_HEALTH__NODE_STOPPED, text);
    dt_cluster_stream_end(cluster, stream, "bye");
}

void dt_cluster_stream_received(dt_cluster_t *cluster, uint64_t id,
                                const Dtorch__V1__WorkerUp *message, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_stream_t *stream = dt_cluster_stream_find(cluster, id);
    if (!stream)
        return;
    if (message->kind_case == DTORCH__V1__WORKER_UP__KIND_HELLO) {
        on_hello(cluster, stream, message->hello);
        return;
    }
    if (stream->state != DT_STREAM_WELCOMED) {
        offend(cluster, stream, "no-hello-first", "the first message must be a Hello");
        return;
    }
    dt_node_t *node = stream->node;
    if (dt_lease_heard(&node->lease, &cluster->clock, cluster->now_ns))
        dt_cluster_node_judge(cluster, node);
    switch (message->kind_case) {
    case DTORCH__V1__WORKER_UP__KIND_BEAT:
        on_beat(cluster, node, message->beat);
        break;
    case DTORCH__V1__WORKER_UP__KIND_INVENTORY:
        dt_cluster_take_inventory(cluster, node, message->inventory);
        break;
    case DTORCH__V1__WORKER_UP__KIND_ENGINE:
        on_engine(cluster, node, message->engine);
        break;
    case DTORCH__V1__WORKER_UP__KIND_BYE:
        on_bye(cluster, stream, message->bye);
        break;
    default:
        break; /* of a newer minor version */
    }
}

void dt_cluster_stream_malformed(dt_cluster_t *cluster, uint64_t id, const dt_error_t *error,
                                 int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_stream_t *stream = dt_cluster_stream_find(cluster, id);
    if (stream)
        offend(cluster, stream, "malformed", error->text);
}

void dt_cluster_stream_closed(dt_cluster_t *cluster, uint64_t id, const char *text, int64_t now_ns)
{
    char why[200];
    dt_cluster_set_now(cluster, now_ns);
    dt_stream_t *stream = dt_cluster_stream_find(cluster, id);
    if (!stream)
        return;
    dt_node_t *node = stream->node;
    dt_cluster_stream_remove(cluster, stream);
    if (!node)
        return;
    (void)snprintf(why, sizeof why, "connection closed%s%.150s", *text ? ": " : "", text);
    dt_cluster_node_set_health(cluster, node, DTORCH__V1__NODE_HEALTH__NODE_DEAD, why);
    dt_cluster_flush_dirty(cluster);
}
