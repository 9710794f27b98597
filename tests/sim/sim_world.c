/* Processes, streams and the disk. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "wire/wire.h"

static const dt_lease_rules_t rules = {250 * SIM_MS, 3, 8};

/* ---- streams ---- */

static sim_conn_t *conn_of_stream(sim_t *sim, uint64_t stream)
{
    for (uint32_t i = 1; i < SIM_CONNS_MAX; i++)
        if (sim->conns[i].is_used && sim->conns[i].stream == stream)
            return &sim->conns[i];
    return NULL;
}

static uint32_t new_conn(sim_t *sim)
{
    for (uint32_t i = 1; i < SIM_CONNS_MAX; i++) {
        sim_conn_t *conn = &sim->conns[i];
        if (conn->is_used && (conn->is_open[0] || conn->is_open[1]))
            continue;
        *conn = (sim_conn_t){.is_used = true, .intent = -1, .stream = ++sim->next_stream};
        return i;
    }
    sim_fail(sim, "too many streams are open");
    return 0;
}

static int process_of(const sim_conn_t *conn, int side)
{
    return side == SIM_SIDE_CONTROLLER ? 0 : 1 + conn->agent;
}

/* When something that leaves now arrives: in order within the stream, late in a black hole. */
static int64_t arrival(sim_t *sim, sim_conn_t *conn, int to_side)
{
    int64_t delay_ns =
        100000 + (int64_t)sim_random(sim, sim_random(sim, 10) ? SIM_MS : 80 * SIM_MS);
    int64_t at_ns = sim->now_ns + delay_ns;
    if (at_ns < conn->hole_until_ns)
        at_ns = conn->hole_until_ns + delay_ns;
    if (at_ns <= conn->last_ns[to_side])
        at_ns = conn->last_ns[to_side] + 1;
    conn->last_ns[to_side] = at_ns;
    return at_ns;
}

static void push_conn(sim_t *sim, sim_conn_t *conn, int side, sim_kind_t kind, int64_t at_ns,
                      const uint8_t *data, size_t size)
{
    uint8_t *copy = NULL;
    if (data) {
        copy = malloc(size ? size : 1);
        if (!copy)
            abort();
        memcpy(copy, data, size);
    }
    sim_push(sim, (sim_event_t){.at_ns = at_ns,
                                .kind = kind,
                                .process = process_of(conn, side),
                                .conn = (uint32_t)(conn - sim->conns),
                                .number = conn->stream * 2 + (uint64_t)side,
                                .data = copy,
                                .size = size});
}

void sim_close_side(sim_t *sim, sim_conn_t *conn, int side, int64_t delay_ns)
{
    if (!conn->is_open[side])
        return;
    push_conn(sim, conn, side, SIM_CLOSED, sim->now_ns + delay_ns, NULL, 0);
    if (sim_random(sim, 8) == 0) /* the news comes twice */
        push_conn(sim, conn, side, SIM_CLOSED, sim->now_ns + delay_ns + SIM_MS, NULL, 0);
}

void sim_break_conn(sim_t *sim, sim_conn_t *conn)
{
    conn->is_broken = true;
    for (int side = 0; side < 2; side++)
        sim_close_side(sim, conn, side, (int64_t)sim_random(sim, 3 * SIM_SECOND));
}

static void dial(sim_t *sim, int agent, uint64_t agent_stream)
{
    uint32_t index = new_conn(sim);
    sim_conn_t *conn = &sim->conns[index];
    conn->agent = agent;
    conn->agent_stream = agent_stream;
    conn->agent_generation = sim->processes[1 + agent].generation;
    conn->controller_generation = sim->processes[0].generation;
    conn->is_open[SIM_SIDE_AGENT] = true;
    sim->agents[agent].conn = index;
    if (!sim->processes[0].is_up) {
        conn->is_broken = true;
        sim_close_side(sim, conn, SIM_SIDE_AGENT, SIM_MS);
        return;
    }
    conn->is_open[SIM_SIDE_CONTROLLER] = true;
    push_conn(sim, conn, SIM_SIDE_CONTROLLER, SIM_OPENED, arrival(sim, conn, 1), NULL, 0);
    push_conn(sim, conn, SIM_SIDE_AGENT, SIM_OPENED, arrival(sim, conn, 0), NULL, 0);
}

static void send(sim_t *sim, sim_conn_t *conn, int to_side, const uint8_t *data, size_t size,
                 bool may_repeat)
{
    if (conn->is_broken || !conn->is_open[to_side])
        return;
    push_conn(sim, conn, to_side, SIM_DELIVER, arrival(sim, conn, to_side), data, size);
    if (may_repeat && sim_random(sim, 50) == 0)
        push_conn(sim, conn, to_side, SIM_DELIVER, arrival(sim, conn, to_side), data, size);
}

/* One side ended the stream: the other learns it behind what was sent. */
static void end_stream(sim_t *sim, sim_conn_t *conn, int side)
{
    conn->is_open[side] = false;
    if (!conn->is_broken && conn->is_open[!side])
        push_conn(sim, conn, !side, SIM_CLOSED, arrival(sim, conn, !side), NULL, 0);
}

static bool is_current(const sim_t *sim, const sim_event_t *event, int *ret_side)
{
    const sim_conn_t *conn = &sim->conns[event->conn];
    *ret_side = (int)(event->number & 1);
    return conn->stream == event->number / 2 && conn->is_open[*ret_side];
}

void sim_opened(sim_t *sim, const sim_event_t *event)
{
    int side;
    sim_conn_t *conn = &sim->conns[event->conn];
    if (!is_current(sim, event, &side) || conn->is_broken)
        return;
    if (side == SIM_SIDE_AGENT) {
        dt_agent_connected(sim->agents[conn->agent].core, conn->agent_stream,
                           sim_local_ns(sim, 1 + conn->agent), sim_wall_ms(sim, 1 + conn->agent));
        return;
    }
    char address[32];
    (void)snprintf(address, sizeof address, "10.0.0.%d:%" PRIu64, conn->agent, conn->stream);
    dt_cluster_peer_t peer = {.address = address};
    dt_cluster_stream_opened(sim->cluster, conn->stream, &peer, sim_local_ns(sim, 0));
}

static void deliver_up(sim_t *sim, sim_conn_t *conn, const sim_event_t *event)
{
    dt_arena_t arena;
    dt_error_t error = {0};
    Dtorch__V1__WorkerUp *up;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, event->data, event->size, &up, &error) ==
        DT_OK)
        dt_cluster_stream_received(sim->cluster, conn->stream, up, sim_local_ns(sim, 0));
    else
        dt_cluster_stream_malformed(sim->cluster, conn->stream, &error, sim_local_ns(sim, 0));
    dt_arena_fini(&arena);
}

static void deliver_down(sim_t *sim, sim_conn_t *conn, const sim_event_t *event)
{
    dt_arena_t arena;
    dt_error_t error = {0};
    Dtorch__V1__WorkerDown *down;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_down, &arena, event->data, event->size, &down, &error) ==
        DT_OK)
        dt_agent_received(sim->agents[conn->agent].core, conn->agent_stream, down,
                          sim_local_ns(sim, 1 + conn->agent));
    else
        sim_fail(sim, "the controller sent what is malformed: %s", error.text);
    dt_arena_fini(&arena);
}

void sim_deliver(sim_t *sim, const sim_event_t *event)
{
    int side;
    sim_conn_t *conn = &sim->conns[event->conn];
    if (!is_current(sim, event, &side) || conn->is_broken)
        return;
    if (side == SIM_SIDE_CONTROLLER)
        deliver_up(sim, conn, event);
    else
        deliver_down(sim, conn, event);
}

void sim_closed(sim_t *sim, const sim_event_t *event)
{
    int side;
    sim_conn_t *conn = &sim->conns[event->conn];
    if (!is_current(sim, event, &side)) {
        if (side == SIM_SIDE_CONTROLLER) /* late or twice: must be ignored */
            dt_cluster_stream_closed(sim->cluster, event->number / 2, "again",
                                     sim_local_ns(sim, 0));
        return;
    }
    end_stream(sim, conn, side);
    if (side == SIM_SIDE_CONTROLLER) {
        conn->is_welcomed = false;
        dt_cluster_stream_closed(sim->cluster, conn->stream, "connection lost",
                                 sim_local_ns(sim, 0));
    } else {
        dt_agent_closed(sim->agents[conn->agent].core, conn->agent_stream, "connection lost",
                        sim_local_ns(sim, 1 + conn->agent));
    }
}

/* ---- disk ---- */

static void note_durable(sim_t *sim, uint32_t count)
{
    for (uint32_t i = sim->durable_count; i < count; i++) {
        Dtorch__V1__StateRecord *record =
            dtorch__v1__state_record__unpack(NULL, sim->records[i].size, sim->records[i].data);
        if (record && record->kind_case == DTORCH__V1__STATE_RECORD__KIND_CLUSTER)
            sim->durable_epoch = record->cluster->epoch;
        if (record && record->kind_case == DTORCH__V1__STATE_RECORD__KIND_NODE &&
            memcmp(record->node->node_id.data, sim->agents[0].node_id, 16) == 0)
            sim->is_first_known = true;
        dtorch__v1__state_record__free_unpacked(record, NULL);
    }
    sim->durable_count = count;
}

void sim_durable(sim_t *sim, const sim_event_t *event)
{
    if (event->kind == SIM_DISK) {
        dt_cluster_journal_failing(sim->cluster, NULL, sim_local_ns(sim, 0));
        sim_push(sim, (sim_event_t){.at_ns = sim->now_ns,
                                    .kind = SIM_DURABLE,
                                    .process = 0,
                                    .number = sim->record_count});
        return;
    }
    if (sim->now_ns < sim->stalled_until_ns || event->number <= sim->durable_count)
        return;
    note_durable(sim, (uint32_t)event->number);
    dt_cluster_durable(sim->cluster, event->number - sim->life_base, sim_local_ns(sim, 0));
}

static void write_record(sim_t *sim, const dt_cluster_action_t *action)
{
    if (sim->record_count == SIM_RECORDS_MAX) {
        sim_fail(sim, "the journal grows without bound: %d records", SIM_RECORDS_MAX);
        return;
    }
    uint8_t *copy = malloc(action->size);
    if (!copy)
        abort();
    memcpy(copy, action->data, action->size);
    sim->records[sim->record_count].data = copy;
    sim->records[sim->record_count++].size = action->size;
    if (action->sequence != sim->record_count - sim->life_base)
        sim_fail(sim, "journal sequence %" PRIu64 " is out of order", action->sequence);
    sim_push(sim,
             (sim_event_t){.at_ns = sim->now_ns + SIM_MS + (int64_t)sim_random(sim, 10 * SIM_MS),
                           .kind = SIM_DURABLE,
                           .process = 0,
                           .number = sim->record_count});
}

/* ---- actions ---- */

static void answer(sim_t *sim, const dt_cluster_action_t *action)
{
    for (int i = 0; i < SIM_NODES_MAX; i++) {
        sim_wish_t *wish = &sim->wishes[i];
        if (!wish->is_pending || wish->ticket != action->ticket)
            continue;
        sim_trace(sim, "wish %d of n%d answered %d %s", wish->change, i, (int)action->status,
                  action->text);
        if (action->status == DT_OK)
            wish->acked = wish->target;
        /* "Not now" to one that is sent again says nothing about the first time. */
        wish->is_pending = action->status == DT_ERR_AGAIN && wish->asked > 1;
    }
}

static void send_down(sim_t *sim, const dt_cluster_action_t *action)
{
    sim_conn_t *conn = conn_of_stream(sim, action->stream);
    if (!conn)
        return;
    Dtorch__V1__WorkerDown *down =
        dtorch__v1__worker_down__unpack(NULL, action->size, action->data);
    if (!down || dt_wire_validate(&down->base, NULL) != DT_OK)
        sim_fail(sim, "the controller sends what is malformed");
    else
        sim_check_sent(sim, conn, down);
    dtorch__v1__worker_down__free_unpacked(down, NULL);
    send(sim, conn, SIM_SIDE_AGENT, action->data, action->size, action->is_beat);
}

void sim_perform_cluster(sim_t *sim)
{
    dt_cluster_action_t action;
    while (dt_cluster_poll(sim->cluster, &action)) {
        sim_conn_t *conn;
        switch (action.kind) {
        case DT_CLUSTER_DO_SEND:
            send_down(sim, &action);
            break;
        case DT_CLUSTER_DO_CLOSE:
            conn = conn_of_stream(sim, action.stream);
            if (!conn)
                break;
            sim_trace(sim, "controller closes stream %" PRIu64 ": %s", action.stream, action.text);
            sim_check_cluster_close(sim, conn, action.text);
            conn->is_welcomed = false;
            end_stream(sim, conn, SIM_SIDE_CONTROLLER);
            break;
        case DT_CLUSTER_DO_JOURNAL:
            write_record(sim, &action);
            break;
        case DT_CLUSTER_DO_EVENT:
            sim_trace(sim, "event %s: %s", action.event->name, action.event->text);
            break;
        case DT_CLUSTER_DO_REPLY:
            answer(sim, &action);
            break;
        }
    }
}

static void perform_one(sim_t *sim, int index, const dt_agent_action_t *action)
{
    sim_agent_t *agent = &sim->agents[index];
    sim_conn_t *conn = &sim->conns[agent->conn];
    bool is_its = agent->conn && conn->agent == index && conn->agent_stream == action->stream;
    switch (action->kind) {
    case DT_AGENT_DO_DIAL:
        dial(sim, index, action->stream);
        break;
    case DT_AGENT_DO_SEND:
        if (is_its)
            send(sim, conn, SIM_SIDE_CONTROLLER, action->data, action->size, action->is_beat);
        break;
    case DT_AGENT_DO_CLOSE:
        sim_trace(sim, "agent %d closes: %s", index, action->text);
        if (!is_its)
            break;
        sim_check_agent_close(sim, conn, action->text);
        end_stream(sim, conn, SIM_SIDE_AGENT);
        break;
    case DT_AGENT_DO_SAVE:
        memcpy(agent->cluster_id, action->cluster_id, sizeof agent->cluster_id);
        agent->epoch_seen = action->epoch;
        if (action->epoch < agent->highest_epoch)
            sim_fail(sim, "agent %d went back from epoch %" PRIu64 " to %" PRIu64, index,
                     agent->highest_epoch, action->epoch);
        agent->highest_epoch = action->epoch;
        break;
    case DT_AGENT_DO_LOG:
        sim_trace(sim, "agent %d: %s: %s", index, action->event, action->text);
        break;
    default:
        break;
    }
}

void sim_perform_agent(sim_t *sim, int index)
{
    dt_agent_action_t action;
    while (dt_agent_poll(sim->agents[index].core, &action))
        perform_one(sim, index, &action);
}

/* ---- lives ---- */

static void begin_life(sim_t *sim, int process)
{
    sim_process_t *p = &sim->processes[process];
    p->is_up = true;
    p->generation++;
    p->tick_number = 0;
    p->started_ns = p->unhealthy_until_ns = sim->now_ns;
    p->starved_until_ns = 0;
}

void sim_give_inventory(sim_t *sim, int index)
{
    char uuid[64][24], backend[] = "sim";
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    Dtorch__V1__Device devices[64], *list[64];
    inventory.devices = list;
    for (uint32_t i = 0; i < 64; i++) {
        if (!(sim->agents[index].devices >> i & 1))
            continue;
        size_t at = inventory.n_devices++;
        dtorch__v1__device__init(&devices[at]);
        (void)snprintf(uuid[at], sizeof uuid[at], "SIM-%d-%u", index == SIM_CLONE ? 0 : index, i);
        devices[at].index = i;
        devices[at].uuid = uuid[at];
        devices[at].backend = backend;
        devices[at].health = DTORCH__V1__DEVICE__HEALTH__OK;
        list[at] = &devices[at];
    }
    if (dt_agent_set_inventory(sim->agents[index].core, &inventory, sim_local_ns(sim, 1 + index),
                               NULL) != DT_OK)
        sim_fail(sim, "an inventory was not taken");
}

void sim_start_agent(sim_t *sim, int index)
{
    sim_agent_t *agent = &sim->agents[index];
    sim_process_t *p = &sim->processes[1 + index];
    if (p->is_up || p->stays_down)
        return;
    begin_life(sim, 1 + index);
    agent->incarnation = ++sim->next_incarnation;
    agent->conn = 0;
    dt_agent_options_t options = {
        .struct_size = sizeof options,
        .epoch_seen = agent->epoch_seen,
        .incarnation = agent->incarnation,
        .seed = sim_random(sim, UINT64_MAX),
        .node_name = agent->name,
        .pid = (uint32_t)agent->incarnation,
        .address_count = 1 + (uint32_t)sim_random(sim, 2),
    };
    memcpy(options.node_id, agent->node_id, sizeof options.node_id);
    memcpy(options.cluster_id, agent->cluster_id, sizeof options.cluster_id);
    dt_agent_free(agent->core);
    agent->core = NULL;
    if (dt_agent_create(&options, sim_local_ns(sim, 1 + index), &agent->core, NULL) != DT_OK)
        abort();
    sim_trace(sim, "agent %d (%s) starts as incarnation %" PRIu64, index, agent->name,
              agent->incarnation);
    sim_give_inventory(sim, index);
    sim_plan_tick(sim, 1 + index);
}

/* What the other side of each of a dead process's streams learns. */
static void orphan_streams(sim_t *sim, int process)
{
    bool is_power_lost = sim_random(sim, 4) == 0; /* nobody closes anything */
    for (uint32_t i = 1; i < SIM_CONNS_MAX; i++) {
        sim_conn_t *conn = &sim->conns[i];
        if (!conn->is_used)
            continue;
        int side = process == 0 ? SIM_SIDE_CONTROLLER : SIM_SIDE_AGENT;
        if (process_of(conn, side) != process || !conn->is_open[side])
            continue;
        conn->is_open[side] = false;
        conn->is_welcomed = conn->is_welcomed && side == SIM_SIDE_AGENT;
        if (is_power_lost) {
            conn->is_broken = true;
            conn->hole_until_ns = INT64_MAX / 2;
            sim_close_side(sim, conn, !side, 20 * SIM_SECOND);
        } else if (!conn->is_broken && conn->is_open[!side]) {
            push_conn(sim, conn, !side, SIM_CLOSED, arrival(sim, conn, !side), NULL, 0);
        }
    }
}

void sim_kill_agent(sim_t *sim, int index, bool says_bye)
{
    sim_process_t *p = &sim->processes[1 + index];
    if (!p->is_up)
        return;
    sim_trace(sim, "agent %d %s", index, says_bye ? "stops" : "is killed");
    if (says_bye) {
        dt_agent_stop(sim->agents[index].core, "SIGTERM", sim_local_ns(sim, 1 + index));
        sim_perform_agent(sim, index);
    }
    p->is_up = false;
    orphan_streams(sim, 1 + index);
}

static void restore(sim_t *sim)
{
    dt_error_t error = {0};
    for (uint32_t i = 0; i < sim->durable_count; i++) {
        Dtorch__V1__StateRecord *record =
            dtorch__v1__state_record__unpack(NULL, sim->records[i].size, sim->records[i].data);
        if (!record || dt_cluster_restore(sim->cluster, record, &error) != DT_OK)
            sim_fail(sim, "record %u cannot be restored: %s", i, error.text);
        dtorch__v1__state_record__free_unpacked(record, NULL);
    }
}

void sim_start_controller(sim_t *sim)
{
    if (sim->processes[0].is_up)
        return;
    begin_life(sim, 0);
    dt_cluster_options_t options = {
        .struct_size = sizeof options,
        .name = "sim",
        .new_cluster_id = "the sim cluster",
        .rules = rules,
        .rejoin_grace_ns = 8 * SIM_SECOND,
        .hello_timeout_ns = 3 * SIM_SECOND,
        .nodes_max = 16,
        .streams_max = 64,
        .events_max = 4096,
        .admin_pending_max = 8,
        .journal_pending_max = 256,
    };
    dt_cluster_free(sim->cluster);
    sim->cluster = NULL;
    if (dt_cluster_create(&options, &sim->cluster, NULL) != DT_OK)
        abort();
    restore(sim);
    sim->life_base = sim->record_count;
    if (dt_cluster_start(sim->cluster, sim_local_ns(sim, 0), sim_wall_ms(sim, 0), NULL) != DT_OK)
        abort();
    sim_trace(sim, "controller starts with %u records", sim->durable_count);
    sim_check_restored(sim);
    if (sim->now_ns < sim->stalled_until_ns) {
        dt_cluster_journal_failing(sim->cluster, "No space left on device", sim_local_ns(sim, 0));
        sim_push(sim,
                 (sim_event_t){.at_ns = sim->stalled_until_ns, .kind = SIM_DISK, .process = 0});
    }
    sim_plan_tick(sim, 0);
}

void sim_kill_controller(sim_t *sim, bool says_bye)
{
    if (!sim->processes[0].is_up)
        return;
    sim_trace(sim, "controller %s", says_bye ? "stops" : "is killed");
    if (says_bye) {
        dt_cluster_stop(sim->cluster, sim_local_ns(sim, 0));
        sim_perform_cluster(sim);
    }
    sim->processes[0].is_up = false;
    orphan_streams(sim, 0);
    /* A prefix of what was written is on the disk, whether that was reported or not. */
    uint32_t unsure = sim->record_count - sim->durable_count;
    uint32_t kept = sim->durable_count + (uint32_t)sim_random(sim, unsure + 1);
    for (uint32_t i = kept; i < sim->record_count; i++)
        free(sim->records[i].data);
    note_durable(sim, kept);
    sim->record_count = kept;
}
