/* Events: made, bounded in rate, kept in a ring, durable through the journal, asked for; and the
 * small table of peers that were refused or that misbehave. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/cluster_internal.h"

/* A node may make a burst of events, then one each two seconds: one that flaps for a day leaves
 * less than the ring holds. All nodes together: a thousand may come up at once. */
#define NODE_BURST   64u
#define NODE_RATE_NS (2 * DT_CLUSTER_SECOND_NS)
#define ALL_BURST    16384u
#define ALL_RATE_NS  (10 * DT_CLUSTER_MS_NS)

#define OFFENCE_EVENT_EVERY_NS (60 * DT_CLUSTER_SECOND_NS)
#define ANSWERS_MAX            10u /* refusals that one host is told the reason of, then */
#define ANSWER_EVERY_NS        (6 * DT_CLUSTER_SECOND_NS)

/* ---- making ---- */

void dt_event_begin(dt_event_draft_t *draft, Dtorch__V1__Severity severity, const char *name,
                    dt_node_t *node)
{
    dtorch__v1__event__init(&draft->event);
    draft->event.severity = severity;
    draft->event.name = (char *)(uintptr_t)name; /* borrowed while it is packed */
    draft->event.fields = draft->field_list;
    draft->node = node;
    draft->is_unbounded = false;
    if (node)
        draft->event.node = node->name;
}

void dt_event_field(dt_event_draft_t *draft, const char *key, const char *fmt, ...)
{
    char text[512];
    size_t at = draft->event.n_fields;
    dt_check(at < sizeof draft->fields / sizeof draft->fields[0]);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dt_wire_text_copy(draft->values[at], sizeof draft->values[at], text);
    dtorch__v1__event_field__init(&draft->fields[at]);
    draft->fields[at].key = (char *)(uintptr_t)key; /* borrowed while it is packed */
    draft->fields[at].value = draft->values[at];
    draft->field_list[at] = &draft->fields[at];
    draft->event.n_fields = at + 1;
}

static bool rate_allows(dt_cluster_t *cluster, dt_event_draft_t *draft)
{
    if (draft->is_unbounded)
        return true;
    if (draft->node &&
        !dt_bucket_take(&draft->node->bucket, cluster->now_ns, NODE_BURST, NODE_RATE_NS)) {
        cluster->events_suppressed++;
        return false;
    }
    if (!dt_bucket_take(&cluster->event_bucket, cluster->now_ns, ALL_BURST, ALL_RATE_NS)) {
        cluster->events_suppressed++;
        return false;
    }
    if (draft->node && draft->node->bucket.suppressed &&
        draft->event.n_fields < sizeof draft->fields / sizeof draft->fields[0]) {
        dt_event_field(draft, "suppressed_before", "%" PRIu64, draft->node->bucket.suppressed);
        draft->node->bucket.suppressed = 0;
    }
    return true;
}

static void push_event_action(dt_cluster_t *cluster, const Dtorch__V1__Event *event)
{
    size_t size = protobuf_c_message_get_packed_size(&event->base);
    dt_queued_action_t *queued = dt_cluster_action_new(cluster, DT_CLUSTER_DO_EVENT, size);
    if (!queued)
        return;
    (void)protobuf_c_message_pack(&event->base, queued->data);
    dt_cluster_push(cluster, queued);
}

const dt_stored_event_t *dt_cluster_event_at(const dt_cluster_t *cluster, uint32_t index)
{
    return &cluster->events[(cluster->events_head + index) % cluster->events_max];
}

uint32_t dt_cluster_event_index_above(const dt_cluster_t *cluster, uint64_t sequence)
{
    uint32_t low = 0, high = cluster->events_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (dt_cluster_event_at(cluster, middle)->sequence <= sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static dt_status_t keep_in_ring(dt_cluster_t *cluster, const Dtorch__V1__Event *event,
                                uint64_t journal_sequence)
{
    dt_stored_event_t stored = {
        .sequence = event->sequence,
        .journal_sequence = journal_sequence,
        .wall_ms = event->wall_ms,
        .severity = event->severity,
    };
    dt_check(cluster->events_max > 0);
    DT_TRY(dt_wire_pack_new(&event->base, &stored.packed, &stored.packed_size));
    (void)dt_str_copy(stored.node, sizeof stored.node, event->node);
    if (cluster->events_count == cluster->events_max) {
        dt_stored_event_t *oldest = &cluster->events[cluster->events_head];
        free(DT_TAKE(oldest->packed));
        cluster->event_lost_before = oldest->sequence + 1;
        cluster->events_head = (cluster->events_head + 1) % cluster->events_max;
        cluster->events_count--;
    }
    uint32_t at = (cluster->events_head + cluster->events_count++) % cluster->events_max;
    cluster->events[at] = stored;
    return DT_OK;
}

static uint64_t keep(dt_cluster_t *cluster, Dtorch__V1__Event *event, bool is_unbounded)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    event->sequence = cluster->event_sequence + 1;
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_EVENT;
    record.event = event;
    uint64_t sequence =
        dt_cluster_journal(cluster, is_unbounded ? DT_JOURNAL_ADMIN : DT_JOURNAL_EVENT, &record);
    if (sequence) {
        cluster->event_sequence = event->sequence;
        (void)keep_in_ring(cluster, event, sequence); /* without memory: in the journal only */
        return sequence;
    }
    event->sequence = 0;
    if (cluster->events_dropped == cluster->events_dropped_told)
        cluster->dropped_since_wall_ms = cluster->wall_ms;
    cluster->events_dropped++;
    return 0;
}

uint64_t dt_event_end(dt_cluster_t *cluster, dt_event_draft_t *draft, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (!rate_allows(cluster, draft))
        return 0;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dt_wire_text_copy(draft->text, sizeof draft->text, text);
    draft->event.text = draft->text;
    draft->event.wall_ms = cluster->wall_ms;
    draft->event.epoch = cluster->epoch;
    cluster->events_by_severity[draft->event.severity]++;
    uint64_t sequence = keep(cluster, &draft->event, draft->is_unbounded);
    push_event_action(cluster, &draft->event);
    return sequence;
}

/* ---- durability ---- */

void dt_cluster_events_durable(dt_cluster_t *cluster)
{
    uint32_t at = dt_cluster_event_index_above(cluster, cluster->event_visible);
    for (; at < cluster->events_count; at++) {
        const dt_stored_event_t *stored = dt_cluster_event_at(cluster, at);
        if (stored->journal_sequence > cluster->journal_durable)
            return;
        cluster->event_visible = stored->sequence;
    }
}

/* When the journal has room again, say once how many events it could not take. */
void dt_cluster_events_tick(dt_cluster_t *cluster)
{
    uint64_t dropped = cluster->events_dropped - cluster->events_dropped_told;
    if (!dropped || cluster->journal_is_failing ||
        cluster->journal_issued - cluster->journal_durable > cluster->journal_pending_max / 4)
        return;
    dt_event_draft_t draft;
    cluster->events_dropped_told = cluster->events_dropped;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__WARNING, "events-dropped", NULL);
    draft.is_unbounded = true;
    dt_event_field(&draft, "count", "%" PRIu64, dropped);
    (void)dt_event_end(
        cluster, &draft,
        "%" PRIu64 " events were logged but not kept: the journal could not take them", dropped);
}

static uint64_t field_u64(const Dtorch__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_fields; i++) {
        char *end;
        if (strcmp(event->fields[i]->key, key) != 0)
            continue;
        uint64_t value = strtoull(event->fields[i]->value, &end, 10);
        return *end ? 0 : value;
    }
    return 0;
}

/* An engine's event names its sequence, so that one that is sent again after our restart is known.
 */
static void note_engine_sequence(dt_cluster_t *cluster, const Dtorch__V1__Event *event)
{
    dt_node_t *node = dt_cluster_node_by_name(cluster, event->node);
    uint64_t sequence = field_u64(event, "engine_sequence");
    if (!node || !sequence)
        return;
    dt_life_t *life = dt_cluster_node_life(node, field_u64(event, "incarnation"));
    if (sequence > life->engine_sequence)
        life->engine_sequence = sequence;
}

dt_status_t dt_cluster_event_restore(dt_cluster_t *cluster, const Dtorch__V1__Event *event)
{
    if (event->sequence <= cluster->event_sequence)
        return DT_OK; /* a snapshot and the segment behind it may both have it */
    if (cluster->events_count == 0)
        cluster->event_lost_before = event->sequence;
    DT_TRY(keep_in_ring(cluster, event, 0));
    cluster->event_sequence = cluster->event_visible = event->sequence;
    note_engine_sequence(cluster, event);
    return DT_OK;
}

void dt_cluster_events_free(dt_cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->events_count; i++)
        free(cluster->events[(cluster->events_head + i) % cluster->events_max].packed);
    free(DT_TAKE(cluster->events));
    cluster->events_count = 0;
}

/* ---- queries ---- */

static bool event_matches(const dt_stored_event_t *stored,
                          const Dtorch__V1__ListEventsRequest *request)
{
    return stored->wall_ms >= request->since_wall_ms && stored->severity >= request->severity_min &&
           (!request->node[0] || strcmp(stored->node, request->node) == 0);
}

/* Index from which on the newest `limit` matches begin. */
static uint32_t first_of_newest(const dt_cluster_t *cluster,
                                const Dtorch__V1__ListEventsRequest *request, uint32_t begin,
                                uint32_t end, uint32_t limit)
{
    uint32_t at = end;
    while (at > begin && limit > 0)
        if (event_matches(dt_cluster_event_at(cluster, --at), request))
            limit--;
    return at;
}

dt_status_t dt_cluster_list_events(const dt_cluster_t *cluster,
                                   const Dtorch__V1__ListEventsRequest *request, dt_arena_t *arena,
                                   Dtorch__V1__EventList **ret_list)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    uint32_t limit = request->limit ? request->limit : 1000;
    uint32_t begin = dt_cluster_event_index_above(cluster, request->after_sequence);
    uint32_t end = dt_cluster_event_index_above(cluster, cluster->event_visible);
    Dtorch__V1__EventList *list = dt_arena_alloc(arena, sizeof *list);
    if (!list)
        return DT_ERR_NOMEM;
    dtorch__v1__event_list__init(list);
    list->lost_before_sequence = cluster->event_lost_before;
    uint32_t at =
        request->after_sequence ? begin : first_of_newest(cluster, request, begin, end, limit);
    uint32_t room = end > at ? end - at : 0;
    list->events = dt_arena_calloc(arena, room < limit ? room : limit, sizeof *list->events);
    if (!list->events)
        return DT_ERR_NOMEM;
    for (; at < end && list->n_events < limit; at++) {
        const dt_stored_event_t *stored = dt_cluster_event_at(cluster, at);
        if (!event_matches(stored, request))
            continue;
        Dtorch__V1__Event *event =
            dtorch__v1__event__unpack(&allocator, stored->packed_size, stored->packed);
        if (!event)
            return DT_ERR_NOMEM;
        list->events[list->n_events++] = event;
    }
    *ret_list = list;
    return DT_OK;
}

/* ---- peers ---- */

/* "10.0.0.7:41234" -> "10.0.0.7"; anything else stays. */
static void host_of(char *out, size_t out_size, const char *address)
{
    dt_wire_text_copy(out, out_size, address);
    char *colon = strrchr(out, ':');
    if (colon && strncmp(out, "unix", 4) != 0)
        *colon = '\0';
}

static dt_offender_t *find_offender(dt_cluster_t *cluster, const char *key)
{
    dt_offender_t *oldest = &cluster->offenders[0];
    for (uint32_t i = 0; i < DT_CLUSTER_PEERS_MAX; i++) {
        dt_offender_t *offender = &cluster->offenders[i];
        if (offender->count && strcmp(offender->key, key) == 0)
            return offender;
        if (oldest->count && (!offender->count || offender->last_ns < oldest->last_ns))
            oldest = offender;
    }
    *oldest = (dt_offender_t){.first_wall_ms = cluster->wall_ms};
    (void)dt_str_copy(oldest->key, sizeof oldest->key, key);
    return oldest;
}

static dt_offender_t *offender_of(dt_cluster_t *cluster, const char *address, const char *kind)
{
    char key[160], host[96];
    host_of(host, sizeof host, address);
    (void)snprintf(key, sizeof key, "%.95s|%.40s", host, kind);
    return find_offender(cluster, key);
}

bool dt_cluster_offender_may_ask(dt_cluster_t *cluster, const char *address, const char *kind)
{
    dt_offender_t *offender = offender_of(cluster, address, kind);
    return dt_bucket_take(&offender->answer, cluster->now_ns, ANSWERS_MAX, ANSWER_EVERY_NS);
}

static void tell_offence(dt_cluster_t *cluster, dt_offender_t *offender, const char *kind,
                         const char *node_name)
{
    dt_event_draft_t draft;
    bool is_session = strcmp(kind, "session") == 0;
    bool has_name = node_name && *node_name;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__WARNING,
                   offender->is_malicious ? "peer-misbehaves"
                   : is_session           ? "session-refused"
                                          : "node-refused",
                   NULL);
    dt_event_field(&draft, "address", "%s", offender->address);
    dt_event_field(&draft, "kind", "%s", is_session ? node_name : kind);
    if (has_name && !is_session)
        dt_event_field(&draft, "node_name", "%s", node_name);
    if (offender->suppressed)
        dt_event_field(&draft, "suppressed_before", "%" PRIu64, offender->suppressed);
    offender->suppressed = 0;
    offender->event_ns = cluster->now_ns;
    (void)dt_event_end(cluster, &draft, "%s at %s%s: %s",
                       is_session ? "a session of a program"
                       : has_name ? node_name
                                  : "peer",
                       offender->address, offender->is_malicious ? " misbehaves" : " was refused",
                       offender->text);
}

void dt_cluster_offence(dt_cluster_t *cluster, const char *address, const char *kind,
                        const char *node_name, const char *text, bool is_malicious)
{
    dt_offender_t *offender = offender_of(cluster, address, kind);
    offender->count++;
    offender->last_ns = cluster->now_ns;
    offender->last_wall_ms = cluster->wall_ms;
    offender->is_malicious = is_malicious;
    dt_wire_text_copy(offender->address, sizeof offender->address, address);
    dt_wire_text_copy(offender->text, sizeof offender->text, text);
    if (offender->count > 1 && cluster->now_ns - offender->event_ns < OFFENCE_EVENT_EVERY_NS) {
        offender->suppressed++;
        cluster->events_suppressed++;
        return;
    }
    tell_offence(cluster, offender, kind, node_name);
}

void dt_cluster_peer_misbehaved(dt_cluster_t *cluster, const char *address, const char *what,
                                int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_cluster_offence(cluster, address, what, NULL, what, true);
}
