/* Virtual time: the queue of events and the loop. */
#include "sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_random(sim_t *sim, uint64_t bound)
{
    uint64_t z = sim->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % bound;
}

int64_t sim_local_ns(const sim_t *sim, int process)
{
    const sim_process_t *p = &sim->processes[process];
    return p->offset_ns + sim->now_ns + sim->now_ns / 1000000 * p->drift_ppm;
}

int64_t sim_wall_ms(const sim_t *sim, int process)
{
    return INT64_C(1790000000000) + sim->now_ns / SIM_MS + sim->processes[process].wall_offset_ms;
}

void sim_trace(const sim_t *sim, const char *fmt, ...)
{
    va_list args;
    if (!sim->is_traced)
        return;
    (void)printf("%10.4f ", (double)sim->now_ns / 1e9);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
}

void sim_fail(sim_t *sim, const char *fmt, ...)
{
    va_list args;
    if (sim->failure[0])
        return;
    int len = snprintf(sim->failure, sizeof sim->failure, "at %.4f s: ", (double)sim->now_ns / 1e9);
    va_start(args, fmt);
    (void)vsnprintf(sim->failure + len, sizeof sim->failure - (size_t)len, fmt, args);
    va_end(args);
    sim_trace(sim, "FAILED %s", sim->failure);
}

/* ---- queue ---- */

static bool is_before(const sim_event_t *a, const sim_event_t *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(sim_event_t *a, sim_event_t *b)
{
    sim_event_t c = *a;
    *a = *b;
    *b = c;
}

static void push_ordered(sim_t *sim, sim_event_t event)
{
    if (sim->heap_count == sim->heap_max) {
        sim->heap_max = sim->heap_max ? sim->heap_max * 2 : 1024;
        sim->heap = realloc(sim->heap, sim->heap_max * sizeof *sim->heap);
        if (!sim->heap)
            abort();
    }
    uint32_t at = sim->heap_count++;
    sim->heap[at] = event;
    for (; at && is_before(&sim->heap[at], &sim->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(&sim->heap[at], &sim->heap[(at - 1) / 2]);
}

void sim_push(sim_t *sim, sim_event_t event)
{
    event.order = ++sim->order;
    if (event.at_ns < sim->now_ns)
        event.at_ns = sim->now_ns;
    if (event.process >= 0)
        event.generation = sim->processes[event.process].generation;
    push_ordered(sim, event);
}

static sim_event_t pop(sim_t *sim)
{
    sim_event_t event = sim->heap[0];
    sim->heap[0] = sim->heap[--sim->heap_count];
    for (uint32_t at = 0;;) {
        uint32_t least = at, left = 2 * at + 1, right = left + 1;
        if (left < sim->heap_count && is_before(&sim->heap[left], &sim->heap[least]))
            least = left;
        if (right < sim->heap_count && is_before(&sim->heap[right], &sim->heap[least]))
            least = right;
        if (least == at)
            return event;
        swap(&sim->heap[at], &sim->heap[least]);
        at = least;
    }
}

/* ---- processes' turns ---- */

void sim_plan_tick(sim_t *sim, int process)
{
    sim_process_t *p = &sim->processes[process];
    if (!p->is_up)
        return;
    int64_t due_ns = process ? dt_agent_deadline(sim->agents[process - 1].core)
                             : dt_cluster_deadline(sim->cluster);
    if (due_ns == INT64_MAX)
        return;
    int64_t wait_ns = due_ns - sim_local_ns(sim, process);
    if (wait_ns < 0)
        wait_ns = 0;
    wait_ns += (int64_t)sim_random(sim, 2 * SIM_MS); /* timers are never exact */
    sim_push(sim, (sim_event_t){.at_ns = sim->now_ns + wait_ns,
                                .kind = SIM_TICK,
                                .process = process,
                                .number = ++p->tick_number});
}

static void tick(sim_t *sim, const sim_event_t *event)
{
    int process = event->process;
    if (event->number != sim->processes[process].tick_number)
        return; /* a later one is planned */
    if (process) {
        dt_agent_tick(sim->agents[process - 1].core, sim_local_ns(sim, process),
                      sim_wall_ms(sim, process));
    } else {
        dt_cluster_tick(sim->cluster, sim_local_ns(sim, 0), sim_wall_ms(sim, 0));
    }
    sim_perform(sim);
    sim_plan_tick(sim, process);
    /* Starved again between two turns, before it could read: missed timers in a row. */
    sim_process_t *p = &sim->processes[process];
    if (p->starved_until_ns == sim->now_ns && p->is_up && !sim->are_faults_over &&
        sim_random(sim, 2))
        p->starved_until_ns = p->unhealthy_until_ns =
            sim->now_ns + (int64_t)sim_random(sim, 5 * SIM_SECOND);
}

void sim_perform(sim_t *sim)
{
    if (sim->processes[0].is_up)
        sim_perform_cluster(sim);
    for (int i = 0; i < SIM_AGENTS_MAX; i++)
        if (sim->processes[1 + i].is_up)
            sim_perform_agent(sim, i);
}

static void handle(sim_t *sim, const sim_event_t *event)
{
    switch (event->kind) {
    case SIM_TICK:
        tick(sim, event);
        break;
    case SIM_DELIVER:
        sim_deliver(sim, event);
        break;
    case SIM_OPENED:
        sim_opened(sim, event);
        break;
    case SIM_CLOSED:
        sim_closed(sim, event);
        break;
    case SIM_DURABLE:
    case SIM_DISK:
        sim_durable(sim, event);
        break;
    case SIM_FAULT:
        sim_inject(sim);
        break;
    case SIM_PEOPLE:
        sim_people(sim);
        break;
    case SIM_SCENE:
        sim_scene(sim);
        break;
    case SIM_RESTART:
        if (event->number == 0)
            sim_start_controller(sim);
        else
            sim_start_agent(sim, (int)event->number - 1);
        break;
    }
    sim_perform(sim);
}

/* A starved process handles nothing; what comes for it waits, its own timer in any place. */
static bool must_wait(sim_t *sim, const sim_event_t *event)
{
    if (event->process < 0)
        return false;
    const sim_process_t *p = &sim->processes[event->process];
    if (p->starved_until_ns <= sim->now_ns)
        return false;
    sim_event_t later = *event;
    later.at_ns = p->starved_until_ns;
    if (event->kind == SIM_TICK) /* else the order in which things were sent */
        later.order = sim_random(sim, 2) ? 0 : UINT64_MAX;
    push_ordered(sim, later);
    return true;
}

static bool is_stale(const sim_t *sim, const sim_event_t *event)
{
    if (event->process < 0)
        return false;
    const sim_process_t *p = &sim->processes[event->process];
    return !p->is_up || p->generation != event->generation;
}

static void run_until(sim_t *sim, int64_t end_ns)
{
    while (sim->heap_count && sim->heap[0].at_ns <= end_ns && !sim->failure[0]) {
        sim_event_t event = pop(sim);
        sim->now_ns = event.at_ns;
        if (!is_stale(sim, &event)) {
            if (must_wait(sim, &event))
                continue;
            handle(sim, &event);
            sim->steps++;
            sim_check_step(sim);
        }
        free(event.data);
    }
    sim->now_ns = end_ns;
}

static void start(sim_t *sim)
{
    sim->node_count = 2 + (int)sim_random(sim, SIM_NODES_MAX - 1);
    for (int i = 0; i < SIM_AGENTS_MAX; i++) {
        sim_agent_t *agent = &sim->agents[i];
        int identity = i == SIM_CLONE ? 0 : i;
        int named = i >= SIM_NODES_MAX ? 0 : i; /* clone and thief call themselves n0 */
        memset(agent->node_id, 1 + identity, sizeof agent->node_id);
        (void)snprintf(agent->name, sizeof agent->name, "n%d", named);
        agent->devices = 0xf;
    }
    for (int i = 0; i <= SIM_AGENTS_MAX; i++) {
        sim_process_t *p = &sim->processes[i];
        p->offset_ns = SIM_SECOND + (int64_t)sim_random(sim, 1000 * SIM_SECOND);
        p->drift_ppm = (int64_t)sim_random(sim, 400) - 200;
        p->wall_offset_ms = (int64_t)sim_random(sim, 20000) - 10000;
    }
    for (int i = 0; i <= sim->node_count; i++) /* in any order of start */
        sim_push(sim, (sim_event_t){.at_ns = (int64_t)sim_random(sim, 3 * SIM_SECOND),
                                    .kind = SIM_RESTART,
                                    .process = -1,
                                    .number = (uint64_t)i});
    sim_push(sim, (sim_event_t){.at_ns = SIM_SECOND, .kind = SIM_FAULT, .process = -1});
    sim_push(sim, (sim_event_t){.at_ns = SIM_SECOND, .kind = SIM_PEOPLE, .process = -1});
    sim_push(sim, (sim_event_t){.at_ns = SIM_SECOND, .kind = SIM_SCENE, .process = -1});
}

static void finish(sim_t *sim)
{
    while (sim->heap_count)
        free(pop(sim).data);
    for (uint32_t i = 0; i < sim->record_count; i++)
        free(sim->records[i].data);
    for (int i = 0; i < SIM_AGENTS_MAX; i++)
        dt_agent_free(sim->agents[i].core);
    dt_cluster_free(sim->cluster);
    free(sim->heap);
    free(sim);
}

bool sim_run(uint64_t seed, bool is_traced, char failure[static 512], uint64_t *ret_steps)
{
    sim_t *sim = calloc(1, sizeof *sim);
    if (!sim)
        abort();
    sim->seed = sim->random = seed;
    sim->is_traced = is_traced;
    start(sim);
    run_until(sim, SIM_FAULTS_NS);
    if (!sim->failure[0]) {
        sim_end_faults(sim);
        run_until(sim, SIM_FAULTS_NS + SIM_CALM_NS);
    }
    if (!sim->failure[0])
        sim_check_calm(sim);
    bool is_ok = !sim->failure[0];
    memcpy(failure, sim->failure, sizeof sim->failure);
    *ret_steps = sim->steps;
    finish(sim);
    return is_ok;
}
