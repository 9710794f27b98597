/* What the session machine (core/session.h) wants of the cluster: nodes that changed, durable
 * numbers, a place for its events. */
#include <inttypes.h>
#include <string.h>

#include "base/strings.h"
#include "core/cluster_internal.h"

void dt_cluster_node_moved(dt_cluster_t *cluster, dt_node_t *node)
{
    node->generation = ++cluster->generation;
}

uint64_t dt_cluster_generation(const dt_cluster_t *cluster)
{
    return cluster->generation;
}

static bool takes_work(const dt_node_t *node)
{
    return node->stream && node->inventory &&
           node->admin == DTORCH__V1__NODE_INTENT__ADMIN__ENABLED &&
           (node->health == DTORCH__V1__NODE_HEALTH__NODE_OK ||
            node->health == DTORCH__V1__NODE_HEALTH__NODE_DEGRADED);
}

static void fill_devices(const dt_node_t *node, dt_session_node_t *ret_node,
                         dt_session_device_t *devices)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->device_count && count < DT_CLUSTER_PLACE_DEVICES; i++) {
        const dt_known_device_t *known = &node->devices[i];
        if (known->is_missing)
            continue;
        devices[count].index = known->index;
        devices[count].is_usable = known->health != DTORCH__V1__DEVICE__HEALTH__FAILED;
        (void)dt_str_copy(devices[count].kind, sizeof devices[count].kind, known->kind);
        (void)dt_str_copy(devices[count].backend, sizeof devices[count].backend, known->backend);
        count++;
    }
    ret_node->devices = devices;
    ret_node->device_count = count;
}

bool dt_cluster_next_moved(const dt_cluster_t *cluster, uint64_t since, uint32_t *at,
                           dt_session_node_t *ret_node,
                           dt_session_device_t devices[DT_CLUSTER_PLACE_DEVICES])
{
    while (*at < cluster->node_count) {
        const dt_node_t *node = cluster->nodes[(*at)++];
        if (node->generation <= since)
            continue;
        *ret_node = (dt_session_node_t){
            .name = node->name,
            .boot_id = node->boot_id,
            .incarnation = node->incarnation,
            .stream = node->stream ? node->stream->id : 0,
            .takes_work = takes_work(node),
            .is_stopped = node->health == DTORCH__V1__NODE_HEALTH__NODE_STOPPED,
        };
        fill_devices(node, ret_node, devices);
        return true;
    }
    return false;
}

/* ---- numbers ---- */

void dt_cluster_fill_state(dt_cluster_t *cluster, Dtorch__V1__ClusterState *ret_state)
{
    dtorch__v1__cluster_state__init(ret_state);
    ret_state->cluster_id = (ProtobufCBinaryData){sizeof cluster->id, cluster->id};
    ret_state->epoch = cluster->epoch;
    ret_state->wall_ms = cluster->started_wall_ms;
    ret_state->session_numbers = cluster->session_reserved;
}

void dt_cluster_reserve_sessions(dt_cluster_t *cluster, uint64_t limit, int64_t now_ns)
{
    Dtorch__V1__ClusterState state;
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    dt_cluster_set_now(cluster, now_ns);
    if (limit > cluster->session_wanted)
        cluster->session_wanted = limit;
    if (!cluster->is_ready || cluster->session_wanted <= cluster->session_reserved ||
        !dt_cluster_journal_has_room(cluster, DT_JOURNAL_NODE, 1))
        return; /* tried again when more is durable */
    dt_cluster_fill_state(cluster, &state);
    state.session_numbers = cluster->session_wanted;
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_CLUSTER;
    record.cluster = &state;
    uint64_t sequence = dt_cluster_journal(cluster, DT_JOURNAL_NODE, &record);
    if (!sequence)
        return;
    cluster->session_reserved = cluster->session_wanted;
    cluster->session_sequence = sequence;
}

void dt_cluster_session_numbers(const dt_cluster_t *cluster, uint64_t *ret_epoch,
                                uint64_t *ret_first, uint64_t *ret_limit)
{
    *ret_epoch = cluster->epoch;
    *ret_first = cluster->session_first;
    *ret_limit = cluster->session_limit;
}

void dt_cluster_sessions_durable(dt_cluster_t *cluster)
{
    if (cluster->journal_durable >= cluster->session_sequence)
        cluster->session_limit = cluster->session_reserved;
    dt_cluster_reserve_sessions(cluster, 0, cluster->now_ns);
}

/* ---- events ---- */

static const char *field_of(const Dtorch__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_fields; i++)
        if (dt_str_is_equal(event->fields[i]->key, key))
            return event->fields[i]->value;
    return "";
}

/* A program that may go on, but not begin: bounded for its host like other refusals. */
static void report_refused(dt_cluster_t *cluster, const Dtorch__V1__Event *event)
{
    dt_key_verdict_t verdict = DT_KEY_REVOKED;
    if (dt_str_is_equal(field_of(event, "kind"), dt_cluster_verdict_text(DT_KEY_EXPIRED)))
        verdict = DT_KEY_EXPIRED;
    dt_cluster_refused_session(cluster, verdict, field_of(event, "peer"), event->text);
}

/* Names outlive the event's message, since drafts borrow them. */
static const char *literal_of(const char *name)
{
    static const char *const names[] = {"session-started", "session-resumed",    "session-ended",
                                        "session-lost",    "session-misbehaves", "session-fault"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dt_str_is_equal(names[i], name))
            return names[i];
    return "session-event";
}

void dt_cluster_report(dt_cluster_t *cluster, const Dtorch__V1__Event *event, int64_t now_ns)
{
    dt_event_draft_t draft;
    dt_node_t *node = event->node[0] ? dt_cluster_node_by_name(cluster, event->node) : NULL;
    dt_cluster_set_now(cluster, now_ns);
    if (dt_str_is_equal(event->name, "session-refused")) {
        report_refused(cluster, event);
        return;
    }
    dt_event_begin(&draft, event->severity, literal_of(event->name), node);
    for (size_t i = 0; i < event->n_fields; i++)
        dt_event_field(&draft, event->fields[i]->key, "%s", event->fields[i]->value);
    (void)dt_event_end(cluster, &draft, "%s", event->text);
}
