/* The cluster's life, options, time, its queue of actions, and the journal's two ends. */
#include "core/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/cluster_internal.h"

#define CLOCK_JUMP_MS       2000 /* a smaller step of the wall clock is no news */
#define JUMP_EVENT_EVERY_NS (60 * DT_CLUSTER_SECOND_NS)
#define EVENT_ARENA_MAX     (64u << 10)

/* ---- actions ---- */

dt_queued_action_t *dt_cluster_action_new(dt_cluster_t *cluster, dt_cluster_action_kind_t kind,
                                          size_t size)
{
    dt_queued_action_t *queued = calloc(1, sizeof *queued + size);
    if (!queued) {
        cluster->actions_lost++;
        return NULL;
    }
    dt_list_init(&queued->link);
    queued->action.kind = kind;
    queued->action.size = size;
    queued->action.data = size ? queued->data : NULL;
    queued->action.text = queued->text;
    return queued;
}

void dt_cluster_push(dt_cluster_t *cluster, dt_queued_action_t *queued)
{
    dt_list_push(&cluster->actions, &queued->link);
}

void dt_cluster_send(dt_cluster_t *cluster, uint64_t stream, const Dtorch__V1__WorkerDown *down,
                     bool is_beat)
{
    size_t size = protobuf_c_message_get_packed_size(&down->base);
    dt_queued_action_t *queued = dt_cluster_action_new(cluster, DT_CLUSTER_DO_SEND, size);
    if (!queued)
        return; /* the worker's own deadlines bring it back */
    (void)protobuf_c_message_pack(&down->base, queued->data);
    queued->action.stream = stream;
    queued->action.is_beat = is_beat;
    dt_cluster_push(cluster, queued);
}

bool dt_cluster_has_actions(const dt_cluster_t *cluster)
{
    return !dt_list_is_empty(&cluster->actions);
}

bool dt_cluster_poll(dt_cluster_t *cluster, dt_cluster_action_t *ret_action)
{
    free(DT_TAKE(cluster->polled));
    dt_list_t *link = dt_list_pop(&cluster->actions);
    if (!link)
        return false;
    cluster->polled = DT_CONTAINER_OF(link, dt_queued_action_t, link);
    *ret_action = cluster->polled->action;
    if (ret_action->kind != DT_CLUSTER_DO_EVENT)
        return true;
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, &cluster->event_arena};
    dt_arena_reset(&cluster->event_arena);
    ret_action->event = dtorch__v1__event__unpack(&allocator, ret_action->size, ret_action->data);
    if (!ret_action->event)
        return dt_cluster_poll(cluster, ret_action); /* no memory to show it: the ring has it */
    return true;
}

/* ---- journal ---- */

bool dt_cluster_journal_has_room(const dt_cluster_t *cluster, dt_journal_use_t use, uint32_t count)
{
    /* Of both bounds events may use a half, nodes three quarters, people all. */
    const uint64_t quarters = use == DT_JOURNAL_EVENT ? 2 : use == DT_JOURNAL_NODE ? 3 : 4;
    uint64_t pending = cluster->journal_issued - cluster->journal_durable;
    uint64_t bytes = cluster->journal_bytes - cluster->journal_bytes_durable;
    if (cluster->journal_bytes_max && bytes >= cluster->journal_bytes_max * quarters / 4)
        return false;
    return pending + count <= cluster->journal_pending_max * quarters / 4;
}

static uint64_t *journal_end(dt_cluster_t *cluster, uint64_t sequence)
{
    return &cluster->journal_ends[sequence % ((uint64_t)cluster->journal_pending_max + 1)];
}

uint64_t dt_cluster_journal(dt_cluster_t *cluster, dt_journal_use_t use,
                            const Dtorch__V1__StateRecord *record)
{
    if (!dt_cluster_journal_has_room(cluster, use, 1))
        return 0;
    size_t size = protobuf_c_message_get_packed_size(&record->base);
    dt_check(size <= DT_CLUSTER_RECORD_MAX);
    dt_queued_action_t *queued = dt_cluster_action_new(cluster, DT_CLUSTER_DO_JOURNAL, size);
    if (!queued)
        return 0;
    (void)protobuf_c_message_pack(&record->base, queued->data);
    queued->action.sequence = ++cluster->journal_issued;
    cluster->journal_bytes += size;
    *journal_end(cluster, cluster->journal_issued) = cluster->journal_bytes;
    dt_cluster_push(cluster, queued);
    return cluster->journal_issued;
}

static void become_ready(dt_cluster_t *cluster)
{
    cluster->is_ready = true;
    cluster->grace_until_ns = cluster->now_ns + cluster->rejoin_grace_ns;
    dt_cluster_admit_held(cluster);
}

void dt_cluster_durable(dt_cluster_t *cluster, uint64_t sequence, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_check(sequence <= cluster->journal_issued);
    if (sequence <= cluster->journal_durable)
        return;
    cluster->journal_durable = sequence;
    cluster->journal_bytes_durable = *journal_end(cluster, sequence);
    if (cluster->is_started && !cluster->is_ready && sequence >= cluster->epoch_sequence)
        become_ready(cluster);
    dt_cluster_sessions_durable(cluster);
    dt_cluster_events_durable(cluster);
    dt_cluster_replies_durable(cluster);
    dt_cluster_send_acks(cluster);
    dt_cluster_flush_dirty(cluster);
}

void dt_cluster_journal_failing(dt_cluster_t *cluster, const char *text, int64_t now_ns)
{
    dt_event_draft_t draft;
    dt_cluster_set_now(cluster, now_ns);
    bool was_failing = cluster->journal_is_failing;
    cluster->journal_is_failing = text != NULL;
    if (text)
        dt_wire_text_copy(cluster->journal_text, sizeof cluster->journal_text, text);
    if (text && !was_failing) {
        cluster->journal_failing_since_wall_ms = cluster->wall_ms;
        dt_event_begin(&draft, DTORCH__V1__SEVERITY__ERROR, "journal-failing", NULL);
        draft.is_unbounded = true;
        (void)dt_event_end(cluster, &draft, "the journal cannot be written: %s",
                           cluster->journal_text);
    } else if (!text && was_failing) {
        dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, "journal-recovered", NULL);
        draft.is_unbounded = true;
        dt_event_field(&draft, "failed_ms", "%" PRId64,
                       cluster->wall_ms - cluster->journal_failing_since_wall_ms);
        (void)dt_event_end(cluster, &draft, "the journal can be written again");
    }
}

/* ---- time ---- */

void dt_cluster_set_now(dt_cluster_t *cluster, int64_t now_ns)
{
    if (now_ns > cluster->now_ns)
        cluster->now_ns = now_ns;
    cluster->wall_ms = cluster->wall_base_ms + cluster->now_ns / DT_CLUSTER_MS_NS;
    if (cluster->wall_ms < 0)
        cluster->wall_ms = 0; /* a clock before 1970: only shown */
}

/* Take the wall clock's reading. A jump is one event and changes nothing else. */
static void look_at_wall(dt_cluster_t *cluster, int64_t now_ns, int64_t wall_ms)
{
    int64_t base_ms = wall_ms - now_ns / DT_CLUSTER_MS_NS;
    int64_t jump_ms = base_ms - cluster->wall_base_ms;
    bool is_jump = jump_ms > CLOCK_JUMP_MS || jump_ms < -CLOCK_JUMP_MS;
    cluster->wall_base_ms = base_ms;
    dt_cluster_set_now(cluster, now_ns);
    if (!is_jump || !cluster->is_started)
        return;
    if (cluster->jump_event_ns && now_ns - cluster->jump_event_ns < JUMP_EVENT_EVERY_NS)
        return;
    cluster->jump_event_ns = now_ns;
    dt_event_draft_t draft;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__WARNING, "clock-jumped", NULL);
    draft.is_unbounded = true;
    dt_event_field(&draft, "jump_ms", "%" PRId64, jump_ms);
    (void)dt_event_end(cluster, &draft,
                       "the wall clock jumped by %" PRId64 " s; nothing depends on it",
                       jump_ms / 1000);
}

static void end_grace(dt_cluster_t *cluster)
{
    if (!cluster->grace_until_ns || cluster->now_ns < cluster->grace_until_ns)
        return;
    cluster->grace_until_ns = 0;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        dt_node_t *node = cluster->nodes[i];
        if (node->health != DTORCH__V1__NODE_HEALTH__NODE_UNKNOWN)
            continue;
        dt_cluster_node_set_health(cluster, node, DTORCH__V1__NODE_HEALTH__NODE_DEAD,
                                   "did not come back after the controller's start");
    }
}

void dt_cluster_tick(dt_cluster_t *cluster, int64_t now_ns, int64_t wall_ms)
{
    look_at_wall(cluster, now_ns, wall_ms);
    if (!cluster->is_started || !dt_lease_clock_turn(&cluster->clock, now_ns))
        return;
    dt_cluster_check_leases(cluster);
    dt_cluster_check_hellos(cluster);
    end_grace(cluster);
    dt_cluster_send_beats(cluster);
    dt_cluster_events_tick(cluster);
    dt_cluster_flush_dirty(cluster);
}

int64_t dt_cluster_deadline(const dt_cluster_t *cluster)
{
    return cluster->is_started ? cluster->clock.deadline_ns : INT64_MAX;
}

bool dt_bucket_take(dt_bucket_t *bucket, int64_t now_ns, uint32_t max, int64_t rate_ns)
{
    int64_t refill = (now_ns - bucket->filled_ns) / rate_ns;
    if (bucket->filled_ns == 0 || refill >= bucket->level) {
        bucket->level = 0;
        bucket->filled_ns = now_ns;
    } else if (refill > 0) {
        bucket->level -= (uint32_t)refill;
        bucket->filled_ns += refill * rate_ns;
    }
    if (bucket->level >= max) {
        bucket->suppressed++;
        return false;
    }
    bucket->level++;
    return true;
}

/* ---- life ---- */

static dt_status_t in_range(const char *name, int64_t value, int64_t min, int64_t max,
                            dt_error_t *err)
{
    if (value >= min && value <= max)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", value,
                   "cluster option %s: %" PRId64 ", bound %" PRId64 "..%" PRId64, name, value, min,
                   max);
}

static dt_status_t check_options(const dt_cluster_options_t *o, dt_error_t *err)
{
    const int64_t day_ns = INT64_C(24) * 3600 * DT_CLUSTER_SECOND_NS;
    DT_TRY(in_range("struct_size", (int64_t)o->struct_size, sizeof *o, sizeof *o, err));
    DT_TRY(in_range("name's length", (int64_t)strlen(o->name), 1, 63, err));
    DT_TRY(in_range("interval_ms", o->rules.interval_ns / DT_CLUSTER_MS_NS, 50, 60000, err));
    DT_TRY(in_range("suspect_beats", o->rules.suspect_beats, 2, 100, err));
    DT_TRY(in_range("dead_beats", o->rules.dead_beats, (int64_t)o->rules.suspect_beats + 1, 1000,
                    err));
    DT_TRY(in_range("rejoin_grace_ns", o->rejoin_grace_ns, 0, day_ns, err));
    DT_TRY(in_range("hello_timeout_ns", o->hello_timeout_ns, DT_CLUSTER_MS_NS, day_ns, err));
    DT_TRY(in_range("nodes_max", o->nodes_max, 1, 1 << 20, err));
    DT_TRY(in_range("streams_max", o->streams_max, 1, 1 << 20, err));
    DT_TRY(in_range("events_max", o->events_max, 16, 1 << 24, err));
    DT_TRY(in_range("admin_pending_max", o->admin_pending_max, 1, 1 << 20, err));
    return in_range("journal_pending_max", o->journal_pending_max, 64, 1 << 24, err);
}

static void take_options(dt_cluster_t *cluster, const dt_cluster_options_t *o)
{
    cluster->rules = o->rules;
    cluster->rejoin_grace_ns = o->rejoin_grace_ns;
    cluster->hello_timeout_ns = o->hello_timeout_ns;
    dt_wire_text_copy(cluster->build, sizeof cluster->build, o->build ? o->build : "");
    dt_wire_text_copy(cluster->config_hash, sizeof cluster->config_hash,
                      o->config_hash ? o->config_hash : "");
    dt_wire_text_copy(cluster->worker_config_hash, sizeof cluster->worker_config_hash,
                      o->worker_config_hash ? o->worker_config_hash : "");
}

static uint32_t mask_for(uint32_t count)
{
    uint32_t size = 16;
    while (size < count)
        size *= 2;
    return size - 1;
}

static bool allocate_tables(dt_cluster_t *cluster)
{
    cluster->bucket_mask = mask_for(cluster->nodes_max);
    cluster->stream_mask = mask_for(cluster->streams_max);
    cluster->nodes = calloc(cluster->nodes_max, sizeof *cluster->nodes);
    cluster->buckets = calloc((size_t)cluster->bucket_mask + 1, sizeof(dt_node_t *));
    cluster->stream_buckets = calloc((size_t)cluster->stream_mask + 1, sizeof(dt_stream_t *));
    cluster->events = calloc(cluster->events_max, sizeof *cluster->events);
    cluster->requests = calloc(DT_CLUSTER_REQUESTS_MAX, sizeof *cluster->requests);
    cluster->journal_ends = calloc((size_t)cluster->journal_pending_max + 1, sizeof(uint64_t));
    return cluster->nodes && cluster->buckets && cluster->stream_buckets && cluster->events &&
           cluster->requests && cluster->journal_ends;
}

dt_status_t dt_cluster_create(const dt_cluster_options_t *options, dt_cluster_t **ret_cluster,
                              dt_error_t *err)
{
    DT_TRY(check_options(options, err));
    dt_cluster_t *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the cluster");
    dt_list_init(&cluster->streams);
    dt_list_init(&cluster->dirty);
    dt_list_init(&cluster->acks);
    dt_list_init(&cluster->pending);
    dt_list_init(&cluster->actions);
    dt_arena_init(&cluster->event_arena, EVENT_ARENA_MAX);
    dt_wire_text_copy(cluster->name, sizeof cluster->name, options->name);
    memcpy(cluster->id, options->new_cluster_id, sizeof cluster->id);
    cluster->nodes_max = options->nodes_max;
    cluster->streams_max = options->streams_max;
    cluster->events_max = options->events_max;
    cluster->admin_pending_max = options->admin_pending_max;
    cluster->journal_pending_max = options->journal_pending_max;
    cluster->journal_bytes_max = options->journal_bytes_max;
    take_options(cluster, options);
    if (!allocate_tables(cluster)) {
        dt_cluster_free(cluster);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for %" PRIu32 " nodes",
                       options->nodes_max);
    }
    *ret_cluster = cluster;
    return DT_OK;
}

static void free_actions(dt_cluster_t *cluster)
{
    dt_list_t *link;
    while ((link = dt_list_pop(&cluster->actions)) != NULL)
        free(DT_CONTAINER_OF(link, dt_queued_action_t, link));
    while ((link = dt_list_pop(&cluster->pending)) != NULL) {
        dt_pending_t *pending = DT_CONTAINER_OF(link, dt_pending_t, link);
        free(pending->reply);
        free(pending);
    }
    free(cluster->polled);
}

void dt_cluster_free(dt_cluster_t *cluster)
{
    if (!cluster)
        return;
    dt_list_t *link;
    while ((link = dt_list_pop(&cluster->streams)) != NULL)
        free(DT_CONTAINER_OF(link, dt_stream_t, link));
    for (uint32_t i = 0; i < cluster->node_count; i++)
        dt_cluster_node_free(cluster->nodes[i]);
    free_actions(cluster);
    dt_cluster_events_free(cluster);
    dt_arena_fini(&cluster->event_arena);
    free(cluster->snapshot_data);
    free(cluster->requests);
    free(cluster->journal_ends);
    free(cluster->stream_buckets);
    free(cluster->buckets);
    free(cluster->nodes);
    free(cluster);
}

dt_status_t dt_cluster_start(dt_cluster_t *cluster, int64_t now_ns, int64_t wall_ms,
                             dt_error_t *err)
{
    Dtorch__V1__ClusterState state;
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    dt_check(!cluster->is_started);
    look_at_wall(cluster, now_ns, wall_ms);
    cluster->session_first = cluster->session_reserved ? cluster->session_reserved : 1;
    cluster->session_reserved = cluster->session_first + DT_SESSION_NUMBERS_STEP;
    dt_cluster_fill_state(cluster, &state);
    state.epoch = cluster->epoch + 1;
    state.wall_ms = cluster->wall_ms;
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_CLUSTER;
    record.cluster = &state;
    cluster->epoch_sequence = dt_cluster_journal(cluster, DT_JOURNAL_ADMIN, &record);
    if (!cluster->epoch_sequence)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the epoch's record");
    cluster->session_sequence = cluster->epoch_sequence;
    cluster->epoch++;
    cluster->is_started = true;
    cluster->started_ns = now_ns;
    cluster->started_wall_ms = cluster->wall_ms;
    for (uint32_t i = 0; i < cluster->node_count; i++) { /* the journal does not say since when */
        cluster->nodes[i]->health_since_ns = now_ns;
        cluster->nodes[i]->health_since_wall_ms = cluster->wall_ms;
    }
    dt_lease_clock_init(&cluster->clock, &cluster->rules, now_ns);
    dt_cluster_tokens_start(cluster);
    dt_cluster_keys_start(cluster);
    dt_event_draft_t draft;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, "cluster-started", NULL);
    draft.is_unbounded = true;
    dt_event_field(&draft, "build", "%s", cluster->build);
    (void)dt_event_end(cluster, &draft,
                       "controller of cluster \"%s\" started at epoch %" PRIu64 ", %" PRIu32
                       " nodes known",
                       cluster->name, cluster->epoch, cluster->node_count);
    return DT_OK;
}

bool dt_cluster_is_ready(const dt_cluster_t *cluster)
{
    return cluster->is_ready && !cluster->is_stopping;
}

dt_status_t dt_cluster_set_options(dt_cluster_t *cluster, const dt_cluster_options_t *options,
                                   int64_t now_ns, dt_error_t *err)
{
    DT_TRY(check_options(options, err));
    dt_cluster_set_now(cluster, now_ns);
    int64_t interval_ns = cluster->rules.interval_ns;
    take_options(cluster, options);
    /* Streams keep the rules of their Welcome, so turns must suit the shorter of both. */
    dt_lease_rules_t both = options->rules;
    if (interval_ns < both.interval_ns)
        both.interval_ns = interval_ns;
    dt_lease_clock_set_rules(&cluster->clock, &both);
    return DT_OK;
}

void dt_cluster_stop(dt_cluster_t *cluster, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    cluster->is_stopping = true;
    while (!dt_list_is_empty(&cluster->streams)) {
        dt_stream_t *stream = DT_CONTAINER_OF(cluster->streams.next, dt_stream_t, link);
        dt_cluster_stream_refuse(cluster, stream, DTORCH__V1__REFUSAL__CODE__STOPPING, true,
                                 "the controller stops");
    }
}

const uint8_t *dt_cluster_id(const dt_cluster_t *cluster)
{
    return cluster->id;
}
