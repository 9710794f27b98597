/* The registry of nodes: by id, by name; their health, admin state, leases and records. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

#define RECORD_EVERY_NS DT_CLUSTER_SECOND_NS /* a node that flaps is not written more often */

#define OK       DTORCH__V1__NODE_HEALTH__NODE_OK
#define DEGRADED DTORCH__V1__NODE_HEALTH__NODE_DEGRADED
#define SUSPECT  DTORCH__V1__NODE_HEALTH__NODE_SUSPECT
#define DEAD     DTORCH__V1__NODE_HEALTH__NODE_DEAD
#define STOPPED  DTORCH__V1__NODE_HEALTH__NODE_STOPPED
#define UNKNOWN  DTORCH__V1__NODE_HEALTH__NODE_UNKNOWN

#define TO(health) (1u << (health))
#define TO_HEARD   (TO(OK) | TO(DEGRADED))
static const struct {
    const char *name;
    unsigned next;
} healths[] = {
    [UNKNOWN] = {"unknown", TO_HEARD | TO(DEAD) | TO(STOPPED)},
    [OK] = {"ok", TO(DEGRADED) | TO(SUSPECT) | TO(DEAD) | TO(STOPPED)},
    [DEGRADED] = {"degraded", TO(OK) | TO(SUSPECT) | TO(DEAD) | TO(STOPPED)},
    [SUSPECT] = {"suspect", TO_HEARD | TO(DEAD) | TO(STOPPED)},
    [DEAD] = {"dead", TO_HEARD},
    [STOPPED] = {"stopped", TO_HEARD},
};

const char *dt_cluster_health_text(Dtorch__V1__NodeHealth health)
{
    return healths[health].name;
}

const char *dt_cluster_admin_text(Dtorch__V1__NodeIntent__Admin admin)
{
    static const char *const texts[] = {"enabled", "cordoned", "draining", "drained"};
    return texts[admin];
}

bool dt_cluster_node_is_heard(const dt_node_t *node)
{
    return node->health == OK || node->health == DEGRADED;
}

/* ---- registry ---- */

static uint32_t bucket_of(const dt_cluster_t *cluster, const uint8_t *id)
{
    return (uint32_t)dt_hash_bytes(DT_HASH_SEED, id, DT_CLUSTER_ID_SIZE) & cluster->bucket_mask;
}

dt_node_t *dt_cluster_node_by_id(const dt_cluster_t *cluster, const uint8_t *id)
{
    dt_node_t *node = cluster->buckets[bucket_of(cluster, id)];
    while (node && memcmp(node->id, id, DT_CLUSTER_ID_SIZE) != 0)
        node = node->next_by_id;
    return node;
}

/* Index of the first node whose name is above `name`; with `or_equal`, not below it. */
static uint32_t lower_bound(const dt_cluster_t *cluster, const char *name, bool or_equal)
{
    uint32_t low = 0, high = cluster->node_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(cluster->nodes[middle]->name, name);
        if (order < 0 || (order == 0 && !or_equal))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t dt_cluster_node_index_above(const dt_cluster_t *cluster, const char *name)
{
    return lower_bound(cluster, name, false);
}

dt_node_t *dt_cluster_node_by_name(const dt_cluster_t *cluster, const char *name)
{
    uint32_t at = lower_bound(cluster, name, true);
    if (at < cluster->node_count && strcmp(cluster->nodes[at]->name, name) == 0)
        return cluster->nodes[at];
    return NULL;
}

static void insert_by_name(dt_cluster_t *cluster, dt_node_t *node)
{
    uint32_t at = lower_bound(cluster, node->name, true);
    memmove(cluster->nodes + at + 1, cluster->nodes + at,
            (cluster->node_count - at) * sizeof(dt_node_t *));
    cluster->nodes[at] = node;
    cluster->node_count++;
}

static void remove_by_name(dt_cluster_t *cluster, const dt_node_t *node)
{
    uint32_t at = lower_bound(cluster, node->name, true);
    dt_check(at < cluster->node_count && cluster->nodes[at] == node);
    cluster->node_count--;
    memmove(cluster->nodes + at, cluster->nodes + at + 1,
            (cluster->node_count - at) * sizeof(dt_node_t *));
}

dt_node_t *dt_cluster_node_add(dt_cluster_t *cluster, const uint8_t *id, const char *name)
{
    if (cluster->node_count == cluster->nodes_max)
        return NULL;
    dt_node_t *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    memcpy(node->id, id, sizeof node->id);
    (void)dt_str_copy(node->name, sizeof node->name, name);
    dt_list_init(&node->ack_link);
    dt_list_init(&node->dirty_link);
    node->rules = cluster->rules;
    node->health_since_wall_ms = cluster->wall_ms;
    node->health_since_ns = cluster->now_ns;
    uint32_t bucket = bucket_of(cluster, id);
    node->next_by_id = cluster->buckets[bucket];
    cluster->buckets[bucket] = node;
    insert_by_name(cluster, node);
    return node;
}

dt_status_t dt_cluster_node_rename(dt_cluster_t *cluster, dt_node_t *node, const char *name)
{
    if (dt_cluster_node_by_name(cluster, name))
        return DT_ERR_EXISTS;
    remove_by_name(cluster, node);
    (void)dt_str_copy(node->name, sizeof node->name, name);
    insert_by_name(cluster, node);
    return DT_OK;
}

void dt_cluster_node_free(dt_node_t *node)
{
    dt_list_remove(&node->ack_link);
    dt_list_remove(&node->dirty_link);
    dt_cluster_devices_free(node);
    free(node->labels);
    free(node->inventory);
    free(node);
}

void dt_cluster_node_remove(dt_cluster_t *cluster, dt_node_t *node)
{
    dt_check(!node->stream);
    dt_node_t **link = &cluster->buckets[bucket_of(cluster, node->id)];
    while (*link != node)
        link = &(*link)->next_by_id;
    *link = node->next_by_id;
    remove_by_name(cluster, node);
    dt_cluster_node_free(node);
}

dt_life_t *dt_cluster_node_life(dt_node_t *node, uint64_t incarnation)
{
    uint32_t at = 0;
    while (at < DT_CLUSTER_LIVES_MAX - 1 && node->lives[at].incarnation != incarnation)
        at++;
    dt_life_t life = node->lives[at];
    if (life.incarnation != incarnation)
        life = (dt_life_t){.incarnation = incarnation};
    memmove(node->lives + 1, node->lives, at * sizeof life);
    node->lives[0] = life;
    return &node->lives[0];
}

/* ---- records ---- */

uint64_t dt_cluster_node_record(dt_cluster_t *cluster, dt_node_t *node, dt_journal_use_t use)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    Dtorch__V1__NodeState state;
    dt_arena_t arena;
    uint64_t sequence = 0;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_NODE;
    record.node = &state;
    if (dt_cluster_node_fill_state(node, &arena, &state) == DT_OK)
        sequence = dt_cluster_journal(cluster, use, &record);
    dt_arena_fini(&arena);
    if (!sequence) {
        dt_cluster_node_dirty(cluster, node);
        return 0;
    }
    node->is_recorded = true;
    node->recorded_ns = cluster->now_ns;
    dt_list_remove(&node->dirty_link);
    return sequence;
}

void dt_cluster_node_dirty(dt_cluster_t *cluster, dt_node_t *node)
{
    dt_cluster_node_moved(cluster, node);
    if (dt_list_is_empty(&node->dirty_link))
        dt_list_push(&cluster->dirty, &node->dirty_link);
}

void dt_cluster_flush_dirty(dt_cluster_t *cluster)
{
    dt_list_t *link = cluster->dirty.next;
    while (link != &cluster->dirty && dt_cluster_journal_has_room(cluster, DT_JOURNAL_NODE, 1)) {
        dt_node_t *node = DT_CONTAINER_OF(link, dt_node_t, dirty_link);
        link = link->next;
        if (node->is_recorded && cluster->now_ns - node->recorded_ns < RECORD_EVERY_NS)
            continue;
        if (!dt_cluster_node_record(cluster, node, DT_JOURNAL_NODE))
            return; /* no memory: later */
    }
}

/* ---- health ---- */

/* What an event about a move of health is called, and how grave it is. */
static void name_move(Dtorch__V1__NodeHealth to, const char **ret_name,
                      Dtorch__V1__Severity *ret_severity)
{
    *ret_severity = DTORCH__V1__SEVERITY__WARNING;
    if (to == SUSPECT)
        *ret_name = "node-suspect";
    else if (to == DEGRADED)
        *ret_name = "node-degraded";
    else if (to == DEAD) {
        *ret_name = "node-dead";
        *ret_severity = DTORCH__V1__SEVERITY__ERROR;
    } else {
        *ret_severity = DTORCH__V1__SEVERITY__NOTICE;
        *ret_name = to == STOPPED ? "node-stopped" : "node-ok";
    }
}

void dt_cluster_node_set_health(dt_cluster_t *cluster, dt_node_t *node,
                                Dtorch__V1__NodeHealth health, const char *text)
{
    dt_event_draft_t draft;
    const char *name;
    Dtorch__V1__Severity severity;
    Dtorch__V1__NodeHealth from = node->health;
    if (from == health) {
        dt_wire_text_copy(node->health_text, sizeof node->health_text, text);
        return;
    }
    dt_check(healths[from].next & TO(health));
    dt_cluster_node_moved(cluster, node);
    node->health = health;
    dt_wire_text_copy(node->health_text, sizeof node->health_text, text);
    name_move(health, &name, &severity);
    dt_event_begin(&draft, severity, name, node);
    dt_event_field(&draft, "from", "%s", healths[from].name);
    dt_event_field(&draft, "after_ms", "%" PRId64,
                   (cluster->now_ns - node->health_since_ns) / DT_CLUSTER_MS_NS);
    if (health == SUSPECT || health == DEAD)
        dt_event_field(&draft, "silent_ms", "%" PRId64,
                       node->stream
                           ? dt_lease_silence_ns(&node->lease, cluster->now_ns) / DT_CLUSTER_MS_NS
                           : 0);
    dt_event_field(&draft, "incarnation", "%" PRIu64, node->incarnation);
    (void)dt_event_end(cluster, &draft, "%s is %s%s%s", node->name, healths[health].name,
                       *text ? ": " : "", text);
    node->health_since_wall_ms = cluster->wall_ms;
    node->health_since_ns = cluster->now_ns;
    bool is_gone = health == DEAD || health == STOPPED;
    if (is_gone || from == DEAD || from == STOPPED)
        dt_cluster_node_dirty(cluster, node);
    dt_cluster_node_settle_drain(cluster, node);
}

void dt_cluster_node_judge(dt_cluster_t *cluster, dt_node_t *node)
{
    char text[256];
    if (!node->devices_missing && !node->devices_failed && !node->devices_degraded &&
        !node->is_stuck) {
        dt_cluster_node_set_health(cluster, node, OK, "");
        return;
    }
    if (node->is_stuck)
        (void)snprintf(text, sizeof text, "alive but without progress for %u beats",
                       DT_LEASE_STUCK_BEATS);
    else
        (void)snprintf(text, sizeof text,
                       "of %" PRIu32 " devices %" PRIu32 " missing, %" PRIu32 " failed, %" PRIu32
                       " degraded",
                       node->device_count, node->devices_missing, node->devices_failed,
                       node->devices_degraded);
    dt_cluster_node_set_health(cluster, node, DEGRADED, text);
}

/* ---- admin state ---- */

void dt_cluster_node_send_intent(dt_cluster_t *cluster, dt_node_t *node)
{
    Dtorch__V1__NodeIntent intent = DTORCH__V1__NODE_INTENT__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    if (!node->stream)
        return;
    intent.admin = node->admin;
    intent.reason = node->reason;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_INTENT;
    down.intent = &intent;
    dt_cluster_send(cluster, node->stream->id, &down, false);
}

void dt_cluster_node_settle_drain(dt_cluster_t *cluster, dt_node_t *node)
{
    bool is_gone = node->health == DEAD || node->health == STOPPED;
    bool is_idle =
        is_gone || (dt_cluster_node_is_heard(node) && node->inventory && node->engines_busy == 0);
    bool is_busy = !is_gone && node->engines_busy > 0;
    if (node->admin == DTORCH__V1__NODE_INTENT__ADMIN__DRAINING && is_idle) {
        dt_event_draft_t draft;
        node->admin = DTORCH__V1__NODE_INTENT__ADMIN__DRAINED;
        dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, "node-drained", node);
        (void)dt_event_end(cluster, &draft, "%s is drained: nothing runs there (%s)", node->name,
                           node->reason);
    } else if (node->admin == DTORCH__V1__NODE_INTENT__ADMIN__DRAINED && is_busy) {
        node->admin = DTORCH__V1__NODE_INTENT__ADMIN__DRAINING;
    } else {
        return;
    }
    dt_cluster_node_dirty(cluster, node);
    dt_cluster_node_send_intent(cluster, node);
}

/* ---- leases and beats ---- */

static void check_lease(dt_cluster_t *cluster, dt_node_t *node)
{
    char text[128];
    dt_lease_state_t before = node->lease.state;
    dt_lease_state_t state = dt_lease_check(&node->lease, &node->rules, &cluster->clock);
    if (state == before)
        return;
    int64_t silent_ms = dt_lease_silence_ns(&node->lease, cluster->now_ns) / DT_CLUSTER_MS_NS;
    (void)snprintf(text, sizeof text, "no beat for %" PRId64 ".%01" PRId64 " s", silent_ms / 1000,
                   silent_ms % 1000 / 100);
    if (state == DT_LEASE_SUSPECT) {
        dt_cluster_node_set_health(cluster, node, SUSPECT, text);
        return;
    }
    dt_cluster_node_set_health(cluster, node, DEAD, text);
    dt_cluster_stream_end(cluster, node->stream, "heartbeat lost");
}

void dt_cluster_check_leases(dt_cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->node_count; i++)
        if (cluster->nodes[i]->stream)
            check_lease(cluster, cluster->nodes[i]);
}

static void send_beat(dt_cluster_t *cluster, dt_node_t *node)
{
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    beat.sequence = ++node->beat_sequence;
    beat.progress = cluster->journal_durable + cluster->beats_received;
    beat.late_ns = cluster->clock.late_ns;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_BEAT;
    down.beat = &beat;
    dt_cluster_send(cluster, node->stream->id, &down, true);
    cluster->beats_sent++;
}

void dt_cluster_send_beats(dt_cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        dt_node_t *node = cluster->nodes[i];
        if (!node->stream || cluster->now_ns < node->next_beat_ns)
            continue;
        send_beat(cluster, node);
        node->next_beat_ns += node->rules.interval_ns;
        if (node->next_beat_ns <= cluster->now_ns)
            node->next_beat_ns = cluster->now_ns + node->rules.interval_ns;
    }
}

void dt_cluster_send_acks(dt_cluster_t *cluster)
{
    dt_list_t *link = cluster->acks.next;
    while (link != &cluster->acks) {
        dt_node_t *node = DT_CONTAINER_OF(link, dt_node_t, ack_link);
        link = link->next;
        if (node->engine_journal_sequence > cluster->journal_durable)
            continue;
        dt_list_remove(&node->ack_link);
        if (!node->stream)
            continue; /* it sends them again, and is answered then */
        Dtorch__V1__EngineAck ack = DTORCH__V1__ENGINE_ACK__INIT;
        Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
        ack.sequence = node->lives[0].engine_sequence;
        down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK;
        down.engine_ack = &ack;
        dt_cluster_send(cluster, node->stream->id, &down, false);
    }
}
