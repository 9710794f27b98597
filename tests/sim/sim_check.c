/* What must be true after every step, and what must come true once the faults are over. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim.h"
#include "wire/wire.h"

#define HEALTHY_FOR_NS (3500 * SIM_MS) /* longer than the lease, delays and one drift */

/* ---- leases: nobody is declared dead by the starvation of the one who judges ---- */

static bool was_healthy(const sim_t *sim, int process)
{
    const sim_process_t *p = &sim->processes[process];
    return p->is_up && p->unhealthy_until_ns + HEALTHY_FOR_NS < sim->now_ns;
}

static bool link_was_healthy(const sim_t *sim, const sim_conn_t *conn)
{
    return !conn->is_broken && conn->is_open[0] && conn->is_open[1] &&
           conn->hole_until_ns + HEALTHY_FOR_NS < sim->now_ns;
}

void sim_check_cluster_close(sim_t *sim, const sim_conn_t *conn, const char *text)
{
    if (strcmp(text, "heartbeat lost") == 0 && was_healthy(sim, 1 + conn->agent) &&
        link_was_healthy(sim, conn))
        sim_fail(sim, "agent %d lives, its stream too, and it was declared dead", conn->agent);
    /* Only a stream that its own agent has left, or that was silent, gives way to another. */
    if (strncmp(text, "replaced", 8) == 0 && was_healthy(sim, 0) &&
        was_healthy(sim, 1 + conn->agent) && link_was_healthy(sim, conn) &&
        &sim->conns[sim->agents[conn->agent].conn] == conn)
        sim_fail(sim, "live agent %d was disturbed by another with its identity", conn->agent);
}

void sim_check_agent_close(sim_t *sim, const sim_conn_t *conn, const char *text)
{
    if (strcmp(text, "the controller is silent") == 0 && was_healthy(sim, 0) &&
        link_was_healthy(sim, conn))
        sim_fail(sim, "agent %d dropped a controller that lives", conn->agent);
}

/* ---- identity, epochs, intent ---- */

static void check_one_session(sim_t *sim, const sim_conn_t *newest)
{
    for (uint32_t i = 1; i < SIM_CONNS_MAX; i++) {
        const sim_conn_t *other = &sim->conns[i];
        if (other == newest || !other->is_used || !other->is_welcomed)
            continue;
        if (memcmp(sim->agents[other->agent].node_id, sim->agents[newest->agent].node_id, 16) == 0)
            sim_fail(sim, "streams %" PRIu64 " and %" PRIu64 " hold one identity", other->stream,
                     newest->stream);
    }
}

void sim_check_sent(sim_t *sim, sim_conn_t *conn, const Dtorch__V1__WorkerDown *down)
{
    if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_WELCOME) {
        conn->is_welcomed = true;
        sim_trace(sim, "stream %" PRIu64 " of agent %d is welcomed", conn->stream, conn->agent);
        check_one_session(sim, conn);
        if (down->welcome->epoch > sim->durable_epoch)
            sim_fail(sim, "welcomed with epoch %" PRIu64 ", durable is %" PRIu64,
                     down->welcome->epoch, sim->durable_epoch);
    } else if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_INTENT) {
        conn->intent = (int)down->intent->admin;
    } else if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK) {
        if (conn->agent_generation == sim->processes[1 + conn->agent].generation)
            sim->engine_acked[conn->agent] = down->engine_ack->sequence;
    } else if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_REFUSAL) {
        sim_trace(sim, "agent %d is refused: %s", conn->agent, down->refusal->text);
    }
}

static int category(int admin)
{
    return admin == DTORCH__V1__NODE_INTENT__ADMIN__DRAINED ? 2 : admin;
}

static const sim_conn_t *welcomed_conn(const sim_t *sim, int node)
{
    for (uint32_t i = 1; i < SIM_CONNS_MAX; i++) {
        const sim_conn_t *conn = &sim->conns[i];
        if (conn->is_used && conn->is_welcomed &&
            memcmp(sim->agents[conn->agent].node_id, sim->agents[node].node_id, 16) == 0)
            return conn;
    }
    return NULL;
}

/* Which node an entry is, by its id: a name may be a thief's while its owner was never seen. */
static int node_of(const sim_t *sim, const Dtorch__V1__Node *shown)
{
    for (int i = 0; i < sim->node_count; i++)
        if (memcmp(sim->agents[i].node_id, shown->node_id.data, 16) == 0)
            return i;
    return -1;
}

static void check_intent(sim_t *sim, const Dtorch__V1__Node *shown)
{
    int node = node_of(sim, shown);
    if (node < 0)
        return;
    const sim_conn_t *conn = welcomed_conn(sim, node);
    if (conn && conn->intent != (int)shown->admin)
        sim_fail(sim, "n%d is %d, its stream was told %d last: it could get work", node,
                 (int)shown->admin, conn->intent);
}

static void check_wish(sim_t *sim, const Dtorch__V1__Node *shown)
{
    int number = shown->name[1] - '0';
    if (number < 0 || number >= sim->node_count)
        return;
    const sim_wish_t *wish = &sim->wishes[number];
    int is = category((int)shown->admin);
    if (is != wish->acked && !(wish->is_pending && is == wish->target))
        sim_fail(sim, "%s is in admin state %d, acknowledged was %d", shown->name,
                 (int)shown->admin, wish->acked);
}

static void check_nodes(sim_t *sim)
{
    dt_arena_t arena;
    Dtorch__V1__NodeList *list;
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (dt_cluster_list_nodes(sim->cluster, &request, &arena, sim_local_ns(sim, 0), &list) != DT_OK)
        sim_fail(sim, "the list of nodes failed");
    for (size_t i = 0; !sim->failure[0] && i < list->n_nodes; i++) {
        check_intent(sim, list->nodes[i]);
        check_wish(sim, list->nodes[i]);
    }
    dt_arena_fini(&arena);
}

/* ---- events ---- */

static uint64_t hash_of(const Dtorch__V1__Event *event)
{
    return dt_hash_str(dt_hash_str(dt_hash_u64(event->sequence), event->name), event->text) | 1;
}

static uint64_t field_of(const Dtorch__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_fields; i++)
        if (strcmp(event->fields[i]->key, key) == 0)
            return strtoull(event->fields[i]->value, NULL, 10);
    return 0;
}

/* An engine's event is shown once, however often it was sent. */
static void check_engine(sim_t *sim, const Dtorch__V1__Event *event)
{
    uint64_t sequence = field_of(event, "engine_sequence");
    uint64_t incarnation = field_of(event, "incarnation");
    if (!sequence || sequence >= 4096)
        return;
    for (int i = 0; i < SIM_AGENTS_MAX; i++) {
        if (sim->agents[i].incarnation != incarnation)
            continue;
        if (sim->engine_incarnation[i] != incarnation)
            memset(sim->engine_shown[i], 0, sizeof sim->engine_shown[i]);
        sim->engine_incarnation[i] = incarnation;
        uint64_t *word = &sim->engine_shown[i][sequence / 64];
        if (*word >> (sequence % 64) & 1)
            sim_fail(sim, "engine event %" PRIu64 " of agent %d is shown twice", sequence, i);
        *word |= UINT64_C(1) << (sequence % 64);
    }
}

static void check_new_events(sim_t *sim)
{
    dt_arena_t arena;
    Dtorch__V1__EventList *list;
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    dt_cluster_counts_t counts;
    dt_cluster_count(sim->cluster, &counts);
    if (counts.events_visible == sim->seen_event)
        return;
    if (counts.events_visible < sim->seen_event) {
        sim_fail(sim, "event %" PRIu64 " was shown, now the last is %" PRIu64, sim->seen_event,
                 counts.events_visible);
        return;
    }
    request.after_sequence = sim->seen_event ? sim->seen_event : 0;
    request.limit = 10000;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (dt_cluster_list_events(sim->cluster, &request, &arena, &list) != DT_OK)
        sim_fail(sim, "the list of events failed");
    for (size_t i = 0; !sim->failure[0] && i < list->n_events; i++) {
        const Dtorch__V1__Event *event = list->events[i];
        if (event->sequence != sim->seen_event + 1 || event->sequence >= 65536)
            sim_fail(sim, "event %" PRIu64 " follows %" PRIu64, event->sequence, sim->seen_event);
        else
            sim->event_hashes[event->sequence] = hash_of(event);
        sim->seen_event = event->sequence;
        check_engine(sim, event);
    }
    dt_arena_fini(&arena);
}

/* What was acknowledged to an agent is durable, or was counted as not kept. */
static void check_acked(sim_t *sim, const dt_cluster_counts_t *counts)
{
    sim->was_event_lost |= counts->events_suppressed + counts->events_dropped > 0;
    for (int i = 0; i < SIM_AGENTS_MAX; i++) {
        uint64_t sequence = sim->engine_acked[i];
        sim->engine_acked[i] = 0;
        if (!sequence || sequence >= 4096 || sim->was_event_lost)
            continue;
        if (sim->engine_incarnation[i] != sim->agents[i].incarnation ||
            !(sim->engine_shown[i][sequence / 64] >> (sequence % 64) & 1))
            sim_fail(sim, "engine event %" PRIu64 " of agent %d is acknowledged, not durable",
                     sequence, i);
    }
}

/* After a restart all that was ever shown is still there, unchanged. */
static void check_old_events(sim_t *sim)
{
    dt_arena_t arena;
    Dtorch__V1__EventList *list;
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    uint64_t held = 0;
    request.limit = 10000;
    dt_arena_init(&arena, 16 * DT_WIRE_ARENA_MAX);
    if (dt_cluster_list_events(sim->cluster, &request, &arena, &list) != DT_OK)
        sim_fail(sim, "the list of events failed");
    for (size_t i = 0; !sim->failure[0] && i < list->n_events; i++) {
        const Dtorch__V1__Event *event = list->events[i];
        if (event->sequence > sim->seen_event)
            break;
        held++;
        if (sim->event_hashes[event->sequence] != hash_of(event))
            sim_fail(sim, "event %" PRIu64 " is not what was shown", event->sequence);
    }
    if (!sim->failure[0] && held != sim->seen_event)
        sim_fail(sim, "%" PRIu64 " events were shown, %" PRIu64 " are left", sim->seen_event, held);
    dt_arena_fini(&arena);
}

/* ---- the three moments ---- */

static void check_bound(sim_t *sim, const char *what, uint64_t value, uint64_t max)
{
    if (value > max)
        sim_fail(sim, "%s: %" PRIu64 " are over the bound of %" PRIu64, what, value, max);
}

void sim_check_step(sim_t *sim)
{
    dt_cluster_counts_t counts;
    if (!sim->processes[0].is_up || sim->failure[0])
        return;
    dt_cluster_count(sim->cluster, &counts);
    check_bound(sim, "streams", counts.streams, counts.streams_max);
    check_bound(sim, "nodes", counts.nodes_total, counts.nodes_max);
    check_bound(sim, "journal", counts.journal_issued - counts.journal_durable,
                counts.journal_pending_max);
    check_bound(sim, "admin", counts.admin_pending, counts.admin_pending_max);
    check_nodes(sim);
    check_new_events(sim);
    check_acked(sim, &counts);
}

void sim_check_restored(sim_t *sim)
{
    dt_cluster_counts_t counts;
    dt_cluster_count(sim->cluster, &counts);
    if (counts.epoch <= sim->last_epoch && counts.epoch <= sim->durable_epoch)
        sim_fail(sim, "epoch %" PRIu64 " after %" PRIu64, counts.epoch, sim->durable_epoch);
    sim->last_epoch = counts.epoch;
    check_old_events(sim);
}

static const Dtorch__V1__Node *find_node(const sim_t *sim, const Dtorch__V1__NodeList *list,
                                         int node)
{
    for (size_t i = 0; i < list->n_nodes; i++)
        if (node_of(sim, list->nodes[i]) == node)
            return list->nodes[i];
    return NULL;
}

static void check_node_is_well(sim_t *sim, const Dtorch__V1__NodeList *list, int node)
{
    dt_agent_view_t view;
    const Dtorch__V1__Node *shown = find_node(sim, list, node);
    const sim_agent_t *agent = &sim->agents[node];
    dt_agent_view(agent->core, sim_local_ns(sim, 1 + node), &view);
    if (!shown) {
        sim_fail(sim, "n%d is not known; its agent is %s: %s", node, view.state_text,
                 view.last_error);
        return;
    }
    if (shown->health != DTORCH__V1__NODE_HEALTH__NODE_OK || view.state != DT_AGENT_ONLINE)
        sim_fail(sim, "%s is %d (%s), its agent is %s: %s", shown->name, (int)shown->health,
                 shown->health_text, view.state_text, view.last_error);
    if (shown->incarnation != agent->incarnation)
        sim_fail(sim, "%s is shown as incarnation %" PRIu64 ", it is %" PRIu64, shown->name,
                 shown->incarnation, agent->incarnation);
    if (view.admin != shown->admin)
        sim_fail(sim, "%s is in admin state %d, its agent believes %d", shown->name,
                 (int)shown->admin, (int)view.admin);
    if (sim->wishes[node].is_pending)
        sim_fail(sim, "a change of n%d was never answered", node);
}

void sim_check_calm(sim_t *sim)
{
    dt_arena_t arena;
    Dtorch__V1__NodeList *list;
    dt_cluster_counts_t counts;
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (dt_cluster_list_nodes(sim->cluster, &request, &arena, sim_local_ns(sim, 0), &list) != DT_OK)
        sim_fail(sim, "the list of nodes failed");
    for (int i = 0; !sim->failure[0] && i < sim->node_count; i++)
        check_node_is_well(sim, list, i);
    dt_cluster_count(sim->cluster, &counts);
    if (counts.journal_is_failing || counts.admin_pending)
        sim_fail(sim, "the journal or a person still waits");
    dt_arena_fini(&arena);
}
