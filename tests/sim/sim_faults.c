/* What goes wrong, and what people and devices do meanwhile. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"

#define CHANGE(name) DTORCH__V1__SET_NODE_REQUEST__CHANGE__##name

static void restart_later(sim_t *sim, int process, int64_t most_ns)
{
    sim_push(sim, (sim_event_t){.at_ns = sim->now_ns + (int64_t)sim_random(sim, (uint64_t)most_ns),
                                .kind = SIM_RESTART,
                                .process = -1,
                                .number = (uint64_t)process});
}

static void starve(sim_t *sim, int process, int64_t most_ns)
{
    sim_process_t *p = &sim->processes[process];
    if (!p->is_up)
        return;
    int64_t until_ns = sim->now_ns + (int64_t)sim_random(sim, (uint64_t)most_ns);
    if (until_ns > p->starved_until_ns)
        p->starved_until_ns = until_ns;
    p->unhealthy_until_ns = p->starved_until_ns;
    sim_trace(sim, "process %d is starved for %" PRId64 " ms", process,
              (until_ns - sim->now_ns) / SIM_MS);
}

static int some_node(sim_t *sim)
{
    return (int)sim_random(sim, (uint64_t)sim->node_count);
}

static sim_conn_t *some_conn(sim_t *sim)
{
    int agent = some_node(sim);
    uint32_t index = sim->agents[agent].conn;
    return index && sim->processes[1 + agent].is_up ? &sim->conns[index] : NULL;
}

static void stall_disk(sim_t *sim)
{
    if (!sim->processes[0].is_up || sim->now_ns < sim->stalled_until_ns)
        return;
    sim->stalled_until_ns = sim->now_ns + (int64_t)sim_random(sim, 8 * SIM_SECOND);
    sim_trace(sim, "the disk is full until %.3f", (double)sim->stalled_until_ns / 1e9);
    dt_cluster_journal_failing(sim->cluster, "No space left on device", sim_local_ns(sim, 0));
    sim_push(sim, (sim_event_t){.at_ns = sim->stalled_until_ns, .kind = SIM_DISK, .process = 0});
}

/* A second process with a node's identity, or with its name only. */
static void imitate(sim_t *sim, int who)
{
    if (sim->processes[1 + who].is_up)
        sim_kill_agent(sim, who, false);
    else if (sim->is_first_known)
        sim_start_agent(sim, who);
}

/* A stream that says nothing, or what is no message. */
static void send_rubbish(sim_t *sim)
{
    dt_error_t error = {.text = "Beat.late_ns: -1, bound 0.."};
    dt_cluster_peer_t peer = {.address = "10.9.9.9:9"};
    if (!sim->processes[0].is_up || sim->processes[0].starved_until_ns > sim->now_ns)
        return;
    uint64_t stream = ++sim->next_stream;
    dt_cluster_stream_opened(sim->cluster, stream, &peer, sim_local_ns(sim, 0));
    if (sim_random(sim, 2))
        dt_cluster_stream_malformed(sim->cluster, stream, &error, sim_local_ns(sim, 0));
}

static void fail_network(sim_t *sim)
{
    sim_conn_t *conn = some_conn(sim);
    if (!conn)
        return;
    if (sim_random(sim, 2)) {
        sim_trace(sim, "the stream of agent %d is lost", conn->agent);
        sim_break_conn(sim, conn);
        return;
    }
    int64_t until_ns = sim->now_ns + (int64_t)sim_random(sim, 6 * SIM_SECOND);
    if (until_ns > conn->hole_until_ns)
        conn->hole_until_ns = until_ns;
    sim_trace(sim, "the stream of agent %d is a black hole until %.3f", conn->agent,
              (double)until_ns / 1e9);
}

static void jump_wall(sim_t *sim)
{
    static const int64_t jumps_ms[] = {86400000, -86400000, 3600000, -3600000, 1500, -1500};
    int process = (int)sim_random(sim, 1 + (uint64_t)sim->node_count);
    sim->processes[process].wall_offset_ms += jumps_ms[sim_random(sim, 6)];
    sim_trace(sim, "the wall clock of process %d jumps", process);
}

static void fail_agent(sim_t *sim)
{
    int agent = some_node(sim);
    sim_kill_agent(sim, agent, sim_random(sim, 3) == 0);
    restart_later(sim, 1 + agent, sim_random(sim, 3) ? 2 * SIM_SECOND : 15 * SIM_SECOND);
}

void sim_inject(sim_t *sim)
{
    if (sim->are_faults_over)
        return;
    switch (sim_random(sim, 12)) {
    case 0:
        sim_kill_controller(sim, sim_random(sim, 3) == 0);
        restart_later(sim, 0, sim_random(sim, 3) ? SIM_SECOND : 12 * SIM_SECOND);
        break;
    case 1:
    case 2:
        fail_agent(sim);
        break;
    case 3:
        starve(sim, 0, 10 * SIM_SECOND);
        break;
    case 4:
        starve(sim, 1 + some_node(sim), 6 * SIM_SECOND);
        break;
    case 5:
    case 6:
        fail_network(sim);
        break;
    case 7:
        stall_disk(sim);
        break;
    case 8:
        jump_wall(sim);
        break;
    case 9:
        imitate(sim, SIM_CLONE);
        break;
    case 10:
        imitate(sim, SIM_THIEF);
        break;
    default:
        send_rubbish(sim);
        break;
    }
    sim_push(sim, (sim_event_t){.at_ns = sim->now_ns + (int64_t)sim_random(sim, 3 * SIM_SECOND),
                                .kind = SIM_FAULT,
                                .process = -1});
}

void sim_end_faults(sim_t *sim)
{
    sim_trace(sim, "---- faults end ----");
    sim->are_faults_over = true;
    sim_kill_agent(sim, SIM_CLONE, false);
    sim_kill_agent(sim, SIM_THIEF, false);
    sim->processes[1 + SIM_CLONE].stays_down = true;
    sim->processes[1 + SIM_THIEF].stays_down = true;
    for (int i = 0; i <= sim->node_count; i++) /* who is starved now stays so to its end */
        if (!sim->processes[i].is_up)
            restart_later(sim, i, SIM_SECOND);
    for (int i = 0; i < sim->node_count; i++) {
        sim->agents[i].devices = 0xf;
        if (sim->processes[1 + i].is_up)
            sim_give_inventory(sim, i);
    }
    bool was_stalled = sim->stalled_until_ns > sim->now_ns;
    sim->stalled_until_ns = sim->now_ns;
    if (was_stalled && sim->processes[0].is_up)
        sim_push(sim, (sim_event_t){.at_ns = sim->now_ns, .kind = SIM_DISK, .process = 0});
}

/* ---- people ---- */

static void ask(sim_t *sim, int node)
{
    char reason[] = "fan", by[] = "ana", name[8], request_id[32];
    char *names[] = {name};
    sim_wish_t *wish = &sim->wishes[node];
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    (void)snprintf(name, sizeof name, "n%d", node);
    memcpy(request_id, wish->request_id, sizeof request_id);
    request.names = names;
    request.n_names = 1;
    request.change = (Dtorch__V1__SetNodeRequest__Change)wish->change;
    request.reason = reason;
    request.by = by;
    request.request_id = request_id;
    wish->ticket = ++sim->next_ticket;
    wish->is_pending = true;
    wish->asked++;
    dt_cluster_set_node(sim->cluster, wish->ticket, &request, "sim", sim_local_ns(sim, 0));
}

void sim_people(sim_t *sim)
{
    static const struct {
        int change, target;
    } changes[] = {
        {CHANGE(DRAIN), 2}, {CHANGE(UNDRAIN), 0}, {CHANGE(CORDON), 1}, {CHANGE(UNCORDON), 0}};
    sim_push(sim, (sim_event_t){.at_ns = sim->now_ns + (int64_t)sim_random(sim, 2 * SIM_SECOND),
                                .kind = SIM_PEOPLE,
                                .process = -1});
    if (!sim->processes[0].is_up || sim->processes[0].starved_until_ns > sim->now_ns)
        return;
    int node = some_node(sim);
    sim_wish_t *wish = &sim->wishes[node];
    if (wish->is_pending) {
        ask(sim, node); /* again, with the same id */
        return;
    }
    if (sim->are_faults_over)
        return;
    size_t what = sim_random(sim, 4);
    wish->asked = 0;
    wish->change = changes[what].change;
    wish->target = changes[what].target;
    (void)snprintf(wish->request_id, sizeof wish->request_id, "request-%" PRIu64,
                   ++sim->next_ticket);
    sim_trace(sim, "a person wants change %d of n%d", wish->change, node);
    ask(sim, node);
}

/* ---- devices and engines ---- */

void sim_scene(sim_t *sim)
{
    char text[] = "it crashed";
    Dtorch__V1__EngineEvent event = DTORCH__V1__ENGINE_EVENT__INIT;
    int index = some_node(sim);
    sim_push(sim, (sim_event_t){.at_ns = sim->now_ns + (int64_t)sim_random(sim, SIM_SECOND),
                                .kind = SIM_SCENE,
                                .process = -1});
    sim_agent_t *agent = &sim->agents[index];
    if (!sim->processes[1 + index].is_up)
        return;
    int64_t now_ns = sim_local_ns(sim, 1 + index);
    if (sim_random(sim, 2)) {
        event.kind = DTORCH__V1__ENGINE_EVENT__KIND__CRASHED;
        event.text = text;
        if (dt_agent_engine_event(agent->core, &event, now_ns, NULL) != DT_OK)
            sim_fail(sim, "an engine's event was not taken");
        return;
    }
    agent->devices = sim->are_faults_over ? 0xf : 1 + sim_random(sim, 15);
    sim_give_inventory(sim, index);
}
