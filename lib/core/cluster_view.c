/* Queries: nodes, the cluster's summary with its alarms, diagnostics, counts. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/cluster_internal.h"

#define ALARMS_MAX            64u
#define CERTIFICATE_SOON_MS   (INT64_C(7) * 24 * 3600 * 1000)
#define OFFENDER_ALARM_NS     (600 * DT_CLUSTER_SECOND_NS)
#define DIAGNOSED_NODES_MAX   1000u
#define DIAGNOSTICS_ITEMS_MAX (64u + 6u * DIAGNOSED_NODES_MAX)

#define HEALTH(name) DTORCH__V1__NODE_HEALTH__NODE_##name

static char *copy(dt_arena_t *arena, const char *text)
{
    return dt_arena_strndup(arena, text, strlen(text));
}

/* The configuration hash that more than half of the connected nodes report, or "". */
static const char *usual_hash(const dt_cluster_t *cluster)
{
    const char *candidate = "";
    uint32_t lead = 0, count = 0, connected = 0;
    if (cluster->worker_config_hash[0])
        return cluster->worker_config_hash;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const dt_node_t *node = cluster->nodes[i];
        if (!node->stream)
            continue;
        connected++;
        if (lead == 0)
            candidate = node->config_hash;
        lead = strcmp(candidate, node->config_hash) == 0 ? lead + 1 : lead - 1;
    }
    for (uint32_t i = 0; i < cluster->node_count; i++)
        if (cluster->nodes[i]->stream && strcmp(cluster->nodes[i]->config_hash, candidate) == 0)
            count++;
    return count * 2 > connected ? candidate : "";
}

static bool config_differs(const dt_node_t *node, const char *usual)
{
    return *usual && node->stream && node->config_hash[0] && strcmp(node->config_hash, usual) != 0;
}

/* ---- one node ---- */

static dt_status_t show_labels(const dt_node_t *node, dt_arena_t *arena, Dtorch__V1__Node *out)
{
    out->labels = dt_arena_calloc(arena, node->label_count, sizeof *out->labels);
    if (!out->labels)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < node->label_count; i++) {
        Dtorch__V1__Label *label = dt_arena_alloc(arena, sizeof *label);
        if (!label)
            return DT_ERR_NOMEM;
        dtorch__v1__label__init(label);
        label->key = copy(arena, node->labels[i].key);
        label->value = copy(arena, node->labels[i].value);
        if (!label->key || !label->value)
            return DT_ERR_NOMEM;
        out->labels[out->n_labels++] = label;
    }
    return DT_OK;
}

/* The device of the newest inventory, else what was kept of it. Not every device says how busy it
 * is, and an inventory comes when something changed: its node knows what the engines compute. */
static Dtorch__V1__Device *newest_device(const dt_node_t *node, const dt_known_device_t *known,
                                         const Dtorch__V1__Inventory *inventory,
                                         ProtobufCAllocator *allocator)
{
    for (size_t i = 0; inventory && !known->is_missing && i < inventory->n_devices; i++) {
        Dtorch__V1__Device *device = inventory->devices[i];
        if (device->index != known->index)
            continue;
        if (node->stream && i < node->busy_count && node->busy[i] > device->utilization_percent)
            device->utilization_percent = node->busy[i];
        return device;
    }
    return dtorch__v1__device__unpack(allocator, known->packed_size, known->packed);
}

static int compare_devices(const void *a, const void *b)
{
    const Dtorch__V1__NodeDevice *x = *(Dtorch__V1__NodeDevice *const *)a;
    const Dtorch__V1__NodeDevice *y = *(Dtorch__V1__NodeDevice *const *)b;
    if (x->device->index != y->device->index)
        return x->device->index < y->device->index ? -1 : 1;
    return (int)x->is_missing - (int)y->is_missing;
}

static dt_status_t show_devices(const dt_node_t *node, const Dtorch__V1__Inventory *inventory,
                                dt_arena_t *arena, Dtorch__V1__Node *out)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    out->devices = dt_arena_calloc(arena, node->device_count, sizeof *out->devices);
    if (!out->devices)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < node->device_count; i++) {
        const dt_known_device_t *known = &node->devices[i];
        char id[80];
        Dtorch__V1__NodeDevice *shown = dt_arena_alloc(arena, sizeof *shown);
        if (!shown)
            return DT_ERR_NOMEM;
        dtorch__v1__node_device__init(shown);
        (void)snprintf(id, sizeof id, "%s:%" PRIu32, node->name, known->index);
        shown->device = newest_device(node, known, inventory, &allocator);
        shown->is_missing = known->is_missing;
        shown->missing_since_wall_ms = known->is_missing ? known->missing_since_wall_ms : 0;
        shown->id = copy(arena, id);
        shown->node = out->name;
        if (!shown->device || !shown->id)
            return DT_ERR_NOMEM;
        out->devices[out->n_devices++] = shown;
    }
    qsort(out->devices, out->n_devices, sizeof *out->devices, compare_devices);
    return DT_OK;
}

static dt_status_t show_inventory(const dt_node_t *node, bool with_devices, dt_arena_t *arena,
                                  Dtorch__V1__Node *out)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    Dtorch__V1__Inventory *inventory = NULL;
    if (!with_devices)
        return DT_OK;
    if (node->inventory) {
        inventory =
            dtorch__v1__inventory__unpack(&allocator, node->inventory_size, node->inventory);
        if (!inventory)
            return DT_ERR_NOMEM;
        out->topology = inventory->topology;
        out->engines = inventory->engines;
        out->n_engines = node->stream ? inventory->n_engines : 0;
        out->memory_bytes = inventory->memory_bytes;
        out->cpu_count = inventory->cpu_count;
        out->kernel = inventory->kernel;
    }
    return show_devices(node, inventory, arena, out);
}

static void show_numbers(const dt_node_t *node, int64_t now_ns, Dtorch__V1__Node *out)
{
    out->admin = node->admin;
    out->health = node->health;
    out->reason_wall_ms = node->reason_wall_ms;
    out->incarnation = node->incarnation;
    out->session_count = node->session_count;
    out->beat_age_ms =
        node->stream ? dt_lease_silence_ns(&node->lease, now_ns) / DT_CLUSTER_MS_NS : -1;
    out->health_since_wall_ms = node->health_since_wall_ms;
    out->connected_wall_ms = node->connected_wall_ms;
    out->late_ms = node->lease.peer_late_ns / DT_CLUSTER_MS_NS;
    out->progress = node->lease.progress;
    out->certificate_not_after_wall_ms = node->certificate_not_after_wall_ms;
    out->clock_offset_ms = node->clock_offset_ms;
    out->pid = node->pid;
}

static dt_status_t show_node(const dt_node_t *node, const char *usual, bool with_devices,
                             dt_arena_t *arena, int64_t now_ns, Dtorch__V1__Node **ret_node)
{
    Dtorch__V1__Node *out = dt_arena_alloc(arena, sizeof *out);
    uint8_t *id = dt_arena_alloc(arena, sizeof node->id);
    if (!out || !id)
        return DT_ERR_NOMEM;
    dtorch__v1__node__init(out);
    memcpy(id, node->id, sizeof node->id);
    show_numbers(node, now_ns, out);
    out->node_id = (ProtobufCBinaryData){sizeof node->id, id};
    out->name = copy(arena, node->name);
    out->health_text = copy(arena, node->health_text);
    out->reason = copy(arena, node->reason);
    out->reason_by = copy(arena, node->reason_by);
    out->build = copy(arena, node->build);
    out->address = copy(arena, node->address);
    out->config_hash = copy(arena, node->config_hash);
    out->config_differs = config_differs(node, usual);
    if (!out->name || !out->health_text || !out->reason || !out->reason_by || !out->build ||
        !out->address || !out->config_hash)
        return DT_ERR_NOMEM;
    DT_TRY(show_labels(node, arena, out));
    DT_TRY(show_inventory(node, with_devices, arena, out));
    *ret_node = out;
    return DT_OK;
}

/* ---- lists ---- */

static Dtorch__V1__NodeList *new_list(dt_arena_t *arena, size_t nodes_max, size_t names_max)
{
    Dtorch__V1__NodeList *list = dt_arena_alloc(arena, sizeof *list);
    if (!list)
        return NULL;
    dtorch__v1__node_list__init(list);
    list->nodes = dt_arena_calloc(arena, nodes_max, sizeof *list->nodes);
    list->not_found = dt_arena_calloc(arena, names_max, sizeof *list->not_found);
    return list->nodes && list->not_found ? list : NULL;
}

dt_status_t dt_cluster_node_list_of(const dt_cluster_t *cluster, char **names, size_t count,
                                    bool with_devices, dt_arena_t *arena, int64_t now_ns,
                                    Dtorch__V1__NodeList **ret_list)
{
    const char *usual = usual_hash(cluster);
    Dtorch__V1__NodeList *list = new_list(arena, count, count);
    if (!list)
        return DT_ERR_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const dt_node_t *node = dt_cluster_node_by_name(cluster, names[i]);
        if (node)
            DT_TRY(
                show_node(node, usual, with_devices, arena, now_ns, &list->nodes[list->n_nodes++]));
        else if (!(list->not_found[list->n_not_found++] = copy(arena, names[i])))
            return DT_ERR_NOMEM;
    }
    *ret_list = list;
    return DT_OK;
}

dt_status_t dt_cluster_list_nodes(const dt_cluster_t *cluster,
                                  const Dtorch__V1__ListNodesRequest *request, dt_arena_t *arena,
                                  int64_t now_ns, Dtorch__V1__NodeList **ret_list)
{
    if (request->n_names)
        return dt_cluster_node_list_of(cluster, request->names, request->n_names,
                                       request->with_devices, arena, now_ns, ret_list);
    const char *usual = usual_hash(cluster);
    uint32_t limit = request->limit ? request->limit : 1000;
    uint32_t at = dt_cluster_node_index_above(cluster, request->after);
    uint32_t left = cluster->node_count - at;
    Dtorch__V1__NodeList *list = new_list(arena, left < limit ? left : limit, 0);
    if (!list)
        return DT_ERR_NOMEM;
    for (; at < cluster->node_count && list->n_nodes < limit; at++)
        DT_TRY(show_node(cluster->nodes[at], usual, request->with_devices, arena, now_ns,
                         &list->nodes[list->n_nodes++]));
    list->more = at < cluster->node_count;
    *ret_list = list;
    return DT_OK;
}

/* ---- alarms ---- */

struct alarms {
    Dtorch__V1__ClusterStatus *status;
    dt_arena_t *arena;
    bool is_failed;
};

static void alarm_add(struct alarms *alarms, const char *name, const char *node,
                      int64_t since_wall_ms, const char *command, const char *fmt, ...)
    DT_PRINTF_LIKE(6, 7);
static void alarm_add(struct alarms *alarms, const char *name, const char *node,
                      int64_t since_wall_ms, const char *command, const char *fmt, ...)
{
    char text[512], with_node[160];
    Dtorch__V1__ClusterStatus *status = alarms->status;
    if (status->n_alarms == ALARMS_MAX || alarms->is_failed)
        return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)snprintf(with_node, sizeof with_node, "%s%s%s", command, *node ? " " : "", node);
    Dtorch__V1__Alarm *alarm = dt_arena_alloc(alarms->arena, sizeof *alarm);
    if (alarm) {
        dtorch__v1__alarm__init(alarm);
        alarm->name = copy(alarms->arena, name);
        alarm->text = copy(alarms->arena, text);
        alarm->command = copy(alarms->arena, with_node);
        alarm->node = copy(alarms->arena, node);
        alarm->since_wall_ms = since_wall_ms;
    }
    alarms->is_failed = !alarm || !alarm->name || !alarm->text || !alarm->command || !alarm->node;
    if (!alarms->is_failed)
        status->alarms[status->n_alarms++] = alarm;
}

static void alarm_journal(const dt_cluster_t *cluster, struct alarms *alarms)
{
    uint64_t dropped = cluster->events_dropped - cluster->events_dropped_told;
    if (cluster->journal_is_failing)
        alarm_add(alarms, "journal-full", "", cluster->journal_failing_since_wall_ms,
                  "dtorchctl diag dump", "the journal cannot be written: %s",
                  cluster->journal_text);
    else if (dropped)
        alarm_add(alarms, "journal-full", "", cluster->dropped_since_wall_ms, "dtorchctl diag dump",
                  "the journal is behind; %" PRIu64 " events were not kept", dropped);
}

static void alarm_dead(const dt_cluster_t *cluster, struct alarms *alarms)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const dt_node_t *node = cluster->nodes[i];
        if (node->health == HEALTH(DEAD) &&
            (node->admin == DTORCH__V1__NODE_INTENT__ADMIN__ENABLED || node->engines_busy))
            alarm_add(alarms, "node-dead", node->name, node->health_since_wall_ms,
                      "dtorchctl node show", "%s is dead: %s", node->name, node->health_text);
    }
}

static void alarm_devices(const dt_cluster_t *cluster, struct alarms *alarms)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const dt_node_t *node = cluster->nodes[i];
        int64_t since_wall_ms = 0;
        for (uint32_t k = 0; k < node->device_count; k++)
            if (node->devices[k].is_missing &&
                (!since_wall_ms || node->devices[k].missing_since_wall_ms < since_wall_ms))
                since_wall_ms = node->devices[k].missing_since_wall_ms;
        if (node->devices_missing || node->devices_failed)
            alarm_add(alarms, "devices-missing", node->name, since_wall_ms, "dtorchctl node show",
                      "%s: %" PRIu32 " of %" PRIu32 " devices missing, %" PRIu32 " failed",
                      node->name, node->devices_missing, node->device_count, node->devices_failed);
    }
}

static void alarm_certificates(const dt_cluster_t *cluster, int64_t wall_ms, struct alarms *alarms)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const dt_node_t *node = cluster->nodes[i];
        int64_t left_ms = node->certificate_not_after_wall_ms - wall_ms;
        if (!node->certificate_not_after_wall_ms || left_ms > CERTIFICATE_SOON_MS)
            continue;
        alarm_add(alarms, "certificate-expires", node->name,
                  node->certificate_not_after_wall_ms - CERTIFICATE_SOON_MS, "dtorchctl node show",
                  left_ms > 0 ? "certificate of %s expires in %" PRId64 " h"
                              : "certificate of %s has expired, %" PRId64 " h",
                  node->name, left_ms / 3600000);
    }
}

static void alarm_differences(const dt_cluster_t *cluster, struct alarms *alarms)
{
    const char *usual = usual_hash(cluster);
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const dt_node_t *node = cluster->nodes[i];
        if (config_differs(node, usual))
            alarm_add(alarms, "config-differs", node->name, node->connected_wall_ms,
                      "dtorchctl node show", "the configuration of %s differs (%s, others %s)",
                      node->name, node->config_hash, usual);
    }
}

static void alarm_peers(const dt_cluster_t *cluster, int64_t now_ns, struct alarms *alarms)
{
    for (uint32_t i = 0; i < DT_CLUSTER_PEERS_MAX; i++) {
        const dt_offender_t *offender = &cluster->offenders[i];
        if (!offender->count || !offender->is_malicious ||
            now_ns - offender->last_ns > OFFENDER_ALARM_NS)
            continue;
        alarm_add(alarms, "peer-misbehaves", "", offender->first_wall_ms, "dtorchctl events list",
                  "%s: %s (%" PRIu64 " times)", offender->address, offender->text, offender->count);
    }
}

/* ---- the whole ---- */

static void count_node(const dt_node_t *node, dt_cluster_counts_t *counts)
{
    counts->nodes[node->admin][node->health]++;
    counts->nodes_by_admin[node->admin]++;
    counts->nodes_by_health[node->health]++;
    counts->devices_total += node->device_count;
    counts->devices_missing += node->devices_missing;
    counts->devices_failed += node->devices_failed;
    if (dt_cluster_node_is_heard(node))
        counts->devices_ok += node->device_count - node->devices_missing - node->devices_failed;
}

uint64_t dt_cluster_epoch(const dt_cluster_t *cluster)
{
    return cluster->epoch;
}

uint64_t dt_cluster_events_visible(const dt_cluster_t *cluster)
{
    return cluster->event_visible;
}

void dt_cluster_count(const dt_cluster_t *cluster, dt_cluster_counts_t *ret_counts)
{
    *ret_counts = (dt_cluster_counts_t){
        .epoch = cluster->epoch,
        .streams = cluster->stream_count,
        .streams_max = cluster->streams_max,
        .nodes_total = cluster->node_count,
        .nodes_max = cluster->nodes_max,
        .events_visible = cluster->event_visible,
        .events_suppressed = cluster->events_suppressed,
        .events_dropped = cluster->events_dropped,
        .journal_issued = cluster->journal_issued,
        .journal_durable = cluster->journal_durable,
        .journal_pending_max = cluster->journal_pending_max,
        .journal_bytes = cluster->journal_bytes - cluster->journal_bytes_durable,
        .journal_bytes_max = cluster->journal_bytes_max,
        .admin_pending = cluster->pending_count,
        .admin_pending_max = cluster->admin_pending_max,
        .welcomes = cluster->welcomes,
        .refusals = cluster->refusals,
        .beats_received = cluster->beats_received,
        .beats_sent = cluster->beats_sent,
        .malformed = cluster->malformed,
        .late_ns = cluster->clock.late_ns,
        .late_total_ns = cluster->clock.late_total_ns,
        .journal_is_failing = cluster->journal_is_failing,
    };
    dt_cluster_count_keys(cluster, ret_counts);
    memcpy(ret_counts->events_by_severity, cluster->events_by_severity,
           sizeof ret_counts->events_by_severity);
    for (uint32_t i = 0; i < cluster->node_count; i++)
        count_node(cluster->nodes[i], ret_counts);
}

static void show_counts(const dt_cluster_counts_t *counts, Dtorch__V1__ClusterStatus *status)
{
    const uint32_t *enabled = counts->nodes[DTORCH__V1__NODE_INTENT__ADMIN__ENABLED];
    status->nodes_total = counts->nodes_total;
    status->nodes_ready = enabled[HEALTH(OK)] + enabled[HEALTH(DEGRADED)];
    status->nodes_suspect = counts->nodes_by_health[HEALTH(SUSPECT)];
    status->nodes_dead = counts->nodes_by_health[HEALTH(DEAD)];
    status->nodes_unknown = counts->nodes_by_health[HEALTH(UNKNOWN)];
    status->nodes_stopped = counts->nodes_by_health[HEALTH(STOPPED)];
    status->nodes_drained =
        counts->nodes_total - counts->nodes_by_admin[DTORCH__V1__NODE_INTENT__ADMIN__ENABLED];
    status->devices_total = counts->devices_total;
    status->devices_ok = counts->devices_ok;
    status->devices_missing = counts->devices_missing;
    status->devices_failed = counts->devices_failed;
}

dt_status_t dt_cluster_get(const dt_cluster_t *cluster, dt_arena_t *arena, int64_t now_ns,
                           Dtorch__V1__ClusterStatus **ret_status)
{
    dt_cluster_counts_t counts;
    Dtorch__V1__ClusterStatus *status = dt_arena_alloc(arena, sizeof *status);
    uint8_t *id = dt_arena_alloc(arena, sizeof cluster->id);
    if (!status || !id)
        return DT_ERR_NOMEM;
    dtorch__v1__cluster_status__init(status);
    memcpy(id, cluster->id, sizeof cluster->id);
    dt_cluster_count(cluster, &counts);
    show_counts(&counts, status);
    status->cluster_id = (ProtobufCBinaryData){sizeof cluster->id, id};
    status->epoch = cluster->epoch;
    status->started_wall_ms = cluster->started_wall_ms;
    status->uptime_ms = (now_ns - cluster->started_ns) / DT_CLUSTER_MS_NS;
    status->name = copy(arena, cluster->name);
    status->build = copy(arena, cluster->build);
    status->config_hash = copy(arena, cluster->config_hash);
    status->alarms = dt_arena_calloc(arena, ALARMS_MAX, sizeof *status->alarms);
    if (!status->name || !status->build || !status->config_hash || !status->alarms)
        return DT_ERR_NOMEM;
    struct alarms alarms = {status, arena, false};
    alarm_journal(cluster, &alarms);
    alarm_dead(cluster, &alarms);
    alarm_peers(cluster, now_ns, &alarms);
    alarm_devices(cluster, &alarms);
    alarm_certificates(cluster, cluster->wall_ms, &alarms);
    alarm_differences(cluster, &alarms);
    if (alarms.is_failed)
        return DT_ERR_NOMEM;
    *ret_status = status;
    return DT_OK;
}

/* ---- diagnostics ---- */

struct diagnosis {
    Dtorch__V1__Diagnostics *out;
    dt_arena_t *arena;
    bool is_failed;
};

static void item(struct diagnosis *diagnosis, const char *part, const char *name, const char *bound,
                 const char *fmt, ...) DT_PRINTF_LIKE(5, 6);
static void item(struct diagnosis *diagnosis, const char *part, const char *name, const char *bound,
                 const char *fmt, ...)
{
    char text[256];
    Dtorch__V1__Diagnostics *out = diagnosis->out;
    Dtorch__V1__DiagnosticsItem *made = dt_arena_alloc(diagnosis->arena, sizeof *made);
    if (!made || out->n_items == DIAGNOSTICS_ITEMS_MAX) {
        diagnosis->is_failed = true;
        return;
    }
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dtorch__v1__diagnostics_item__init(made);
    made->part = copy(diagnosis->arena, part);
    made->name = copy(diagnosis->arena, name);
    made->value = copy(diagnosis->arena, text);
    made->bound = copy(diagnosis->arena, bound);
    if (made->part && made->name && made->value && made->bound)
        out->items[out->n_items++] = made;
    else
        diagnosis->is_failed = true;
}

static void item_depth(struct diagnosis *diagnosis, const char *name, uint64_t depth,
                       uint64_t bound)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, bound);
    item(diagnosis, "core", name, text, "%" PRIu64, depth);
}

static void diagnose_core(const dt_cluster_t *cluster, struct diagnosis *diagnosis)
{
    uint32_t held = 0, silent = 0;
    for (const dt_list_t *link = cluster->streams.next; link != &cluster->streams;
         link = link->next) {
        const dt_stream_t *stream =
            (const dt_stream_t *)((const char *)link - offsetof(dt_stream_t, link));
        held += stream->state == DT_STREAM_HELD;
        silent += stream->state == DT_STREAM_NEW;
    }
    item(diagnosis, "core", "state", "", "%s",
         cluster->is_stopping ? "stopping"
         : cluster->is_ready  ? "ready"
                              : "starting");
    item(diagnosis, "core", "epoch", "", "%" PRIu64, cluster->epoch);
    item_depth(diagnosis, "nodes", cluster->node_count, cluster->nodes_max);
    item_depth(diagnosis, "streams", cluster->stream_count, cluster->streams_max);
    item(diagnosis, "core", "streams_held", "", "%" PRIu32, held);
    item(diagnosis, "core", "streams_without_hello", "", "%" PRIu32, silent);
    item_depth(diagnosis, "events_in_memory", cluster->events_count, cluster->events_max);
    item_depth(diagnosis, "journal_pending", cluster->journal_issued - cluster->journal_durable,
               cluster->journal_pending_max);
    item_depth(diagnosis, "admin_pending", cluster->pending_count, cluster->admin_pending_max);
    item_depth(diagnosis, "request_ids", cluster->requests_count, DT_CLUSTER_REQUESTS_MAX);
    item_depth(diagnosis, "tokens", cluster->token_count, DT_CLUSTER_TOKENS_MAX);
    item(diagnosis, "core", "events_suppressed", "", "%" PRIu64, cluster->events_suppressed);
    item(diagnosis, "core", "events_dropped", "", "%" PRIu64, cluster->events_dropped);
    item(diagnosis, "core", "actions_lost", "", "%" PRIu64, cluster->actions_lost);
    item(diagnosis, "core", "late_ms", "", "%" PRId64, cluster->clock.late_ns / DT_CLUSTER_MS_NS);
    item(diagnosis, "core", "late_total_ms", "", "%" PRId64,
         cluster->clock.late_total_ns / DT_CLUSTER_MS_NS);
}

static void diagnose_node(const dt_node_t *node, int64_t now_ns, struct diagnosis *diagnosis)
{
    char part[80], bound[32];
    (void)snprintf(part, sizeof part, "node/%s", node->name);
    item(diagnosis, part, "state", "", "%s %s", dt_cluster_admin_text(node->admin),
         dt_cluster_health_text(node->health));
    if (!node->stream)
        return;
    (void)snprintf(bound, sizeof bound, "%" PRId64,
                   node->rules.interval_ns * node->rules.dead_beats / DT_CLUSTER_MS_NS);
    item(diagnosis, part, "stream", "", "%" PRIu64, node->stream->id);
    item(diagnosis, part, "lease", "", "%s", dt_lease_state_text(node->lease.state));
    item(diagnosis, part, "silence_ms", bound, "%" PRId64,
         dt_lease_silence_ns(&node->lease, now_ns) / DT_CLUSTER_MS_NS);
    item(diagnosis, part, "peer_late_ms", "", "%" PRId64,
         node->lease.peer_late_ns / DT_CLUSTER_MS_NS);
}

dt_status_t dt_cluster_diagnose(const dt_cluster_t *cluster, dt_arena_t *arena, int64_t now_ns,
                                Dtorch__V1__Diagnostics **ret_items)
{
    Dtorch__V1__Diagnostics *out = dt_arena_alloc(arena, sizeof *out);
    if (!out)
        return DT_ERR_NOMEM;
    dtorch__v1__diagnostics__init(out);
    out->items = dt_arena_calloc(arena, DIAGNOSTICS_ITEMS_MAX, sizeof *out->items);
    if (!out->items)
        return DT_ERR_NOMEM;
    struct diagnosis diagnosis = {out, arena, false};
    diagnose_core(cluster, &diagnosis);
    for (uint32_t i = 0; i < cluster->node_count && i < DIAGNOSED_NODES_MAX; i++)
        diagnose_node(cluster->nodes[i], now_ns, &diagnosis);
    if (diagnosis.is_failed)
        return DT_ERR_NOMEM;
    *ret_items = out;
    return DT_OK;
}
