/* What the agent sends and says: its action ring, messages, and the queue of engine events. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/agent_internal.h"

dt_agent_slot_t *dt_agent_push(dt_agent_t *agent, dt_agent_action_kind_t kind)
{
    dt_check(agent->slots_count < DT_AGENT_ACTIONS_MAX);
    uint32_t at = (agent->slots_head + agent->slots_count++) % DT_AGENT_ACTIONS_MAX;
    dt_agent_slot_t *slot = &agent->slots[at];
    *slot = (dt_agent_slot_t){.action = {.kind = kind, .stream = agent->stream}};
    slot->action.text = slot->text;
    return slot;
}

void dt_agent_log(dt_agent_t *agent, int severity, const char *event, const char *fmt, ...)
{
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_LOG);
    slot->action.severity = severity;
    slot->action.event = event;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(slot->text, sizeof slot->text, fmt, args);
    va_end(args);
}

bool dt_agent_send(dt_agent_t *agent, const Dtorch__V1__WorkerUp *up, bool is_beat)
{
    uint8_t *data;
    size_t size;
    if (dt_wire_pack_new(&up->base, &data, &size) != DT_OK)
        return false;
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_SEND);
    slot->owned = data;
    slot->action.data = data;
    slot->action.size = size;
    slot->action.is_beat = is_beat;
    return true;
}

bool dt_agent_send_hello(dt_agent_t *agent)
{
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    version.minor = DT_WIRE_VERSION_MINOR;
    hello.version = &version;
    hello.build = agent->build;
    hello.node_id = (ProtobufCBinaryData){sizeof agent->node_id, agent->node_id};
    hello.node_name = agent->node_name;
    hello.incarnation = agent->incarnation;
    hello.epoch_seen = agent->epoch_seen;
    if (agent->has_cluster_id)
        hello.cluster_id = (ProtobufCBinaryData){sizeof agent->cluster_id, agent->cluster_id};
    hello.boot_id = agent->boot_id;
    hello.config_hash = agent->config_hash;
    hello.wall_ms = agent->wall_ms < 0 ? 0 : agent->wall_ms;
    hello.pid = agent->pid;
    hello.rack = agent->rack;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    return dt_agent_send(agent, &up, false);
}

void dt_agent_send_beat(dt_agent_t *agent)
{
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    beat.sequence = agent->beat_sequence + 1;
    beat.progress = agent->has_progress ? agent->progress : agent->turns;
    beat.late_ns = agent->clock.late_ns;
    if (!agent->busy_is_sent && agent->inventory_is_sent)
        beat.busy = (ProtobufCBinaryData){agent->busy_count, agent->busy};
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_BEAT;
    up.beat = &beat;
    if (!dt_agent_send(agent, &up, true))
        return; /* the next one is an interval away */
    agent->beat_sequence++;
    agent->beats_sent++;
    agent->busy_is_sent = agent->inventory_is_sent;
}

void dt_agent_send_inventory(dt_agent_t *agent)
{
    if (!agent->inventory || agent->inventory_is_sent)
        return;
    uint8_t *copy = malloc(agent->inventory_size);
    if (!copy)
        return; /* tried again at the next turn */
    memcpy(copy, agent->inventory, agent->inventory_size);
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_SEND);
    slot->owned = copy;
    slot->action.data = copy;
    slot->action.size = agent->inventory_size;
    agent->inventory_is_sent = true;
    agent->busy_is_sent = false; /* the controller forgot it, with the old inventory */
}

static dt_agent_queued_t *oldest_event(dt_agent_t *agent)
{
    return &agent->events[agent->events_head];
}

static void drop_oldest_event(dt_agent_t *agent)
{
    free(DT_TAKE(oldest_event(agent)->data));
    agent->events_head = (agent->events_head + 1) % DT_AGENT_EVENTS_MAX;
    agent->events_count--;
}

void dt_agent_forget_events(dt_agent_t *agent, uint64_t sequence)
{
    while (agent->events_count && oldest_event(agent)->sequence <= sequence)
        drop_oldest_event(agent);
}

dt_status_t dt_agent_engine_event(dt_agent_t *agent, const Dtorch__V1__EngineEvent *event,
                                  int64_t now_ns, dt_error_t *err)
{
    Dtorch__V1__EngineEvent copy =
        *event; /* shallow: the strings are borrowed while it is packed */
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    dt_agent_queued_t queued = {.sequence = agent->event_sequence + 1};
    agent->now_ns = now_ns;
    copy.sequence = queued.sequence;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_ENGINE;
    up.engine = &copy;
    DT_TRY(dt_wire_validate(&up.base, err));
    if (dt_wire_pack_new(&up.base, &queued.data, &queued.size) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an engine's event");
    if (agent->events_count == DT_AGENT_EVENTS_MAX) {
        drop_oldest_event(agent);
        agent->events_dropped++;
    }
    agent->events[(agent->events_head + agent->events_count++) % DT_AGENT_EVENTS_MAX] = queued;
    agent->event_sequence = queued.sequence;
    return DT_OK;
}

/* The oldest queued event that this stream has not carried yet, as an action that borrows it. */
static bool poll_event(dt_agent_t *agent, dt_agent_action_t *ret_action)
{
    if (agent->state != DT_AGENT_ONLINE && agent->state != DT_AGENT_SUSPECT)
        return false;
    if (agent->events_sent_sequence >= agent->event_sequence || !agent->events_count)
        return false;
    uint64_t next = agent->events_sent_sequence + 1;
    uint64_t first = oldest_event(agent)->sequence;
    uint32_t skip = next > first ? (uint32_t)(next - first) : 0;
    const dt_agent_queued_t *queued =
        &agent->events[(agent->events_head + skip) % DT_AGENT_EVENTS_MAX];
    agent->events_sent_sequence = queued->sequence;
    *ret_action = (dt_agent_action_t){
        .kind = DT_AGENT_DO_SEND,
        .stream = agent->stream,
        .data = queued->data,
        .size = queued->size,
        .text = "",
    };
    return true;
}

bool dt_agent_poll(dt_agent_t *agent, dt_agent_action_t *ret_action)
{
    free(DT_TAKE(agent->polled));
    if (!agent->slots_count)
        return poll_event(agent, ret_action);
    dt_agent_slot_t *slot = &agent->slots[agent->slots_head];
    agent->slots_head = (agent->slots_head + 1) % DT_AGENT_ACTIONS_MAX;
    agent->slots_count--;
    agent->polled = DT_TAKE(slot->owned);
    *ret_action = slot->action;
    return true;
}
