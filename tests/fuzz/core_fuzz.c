/* A hostile peer against the cores: messages that pass the bounds, in any order, on some streams,
 * with time between. Nothing may stop the process, and the queues stay within their bounds.
 * Input: steps of a byte that chooses stream and what, a byte of length, and that many bytes. */
#include <stdlib.h>
#include <string.h>

#include "core/agent.h"
#include "core/cluster.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MS_NS INT64_C(1000000)

static dt_cluster_t *cluster;
static dt_agent_t *agent;
static int64_t now_ns;
static uint64_t agent_stream;

static void perform(void)
{
    dt_cluster_action_t action;
    dt_agent_action_t agent_action;
    uint64_t sequence = 0;
    while (dt_cluster_poll(cluster, &action))
        if (action.kind == DT_CLUSTER_DO_JOURNAL)
            sequence = action.sequence;
    if (sequence) {
        dt_cluster_durable(cluster, sequence, now_ns);
        perform();
    }
    while (dt_agent_poll(agent, &agent_action))
        if (agent_action.kind == DT_AGENT_DO_DIAL)
            agent_stream = agent_action.stream;
}

static void start(void)
{
    dt_cluster_options_t options = {
        .struct_size = sizeof options,
        .name = "fuzz",
        .rules = {250 * MS_NS, 3, 8},
        .rejoin_grace_ns = 1000 * MS_NS,
        .hello_timeout_ns = 1000 * MS_NS,
        .nodes_max = 4,
        .streams_max = 8,
        .events_max = 64,
        .admin_pending_max = 4,
        .journal_pending_max = 256,
    };
    dt_agent_options_t agent_options = {
        .struct_size = sizeof agent_options,
        .incarnation = 1,
        .node_name = "n1",
        .address_count = 2,
    };
    now_ns = 1000 * MS_NS;
    if (dt_cluster_create(&options, &cluster, NULL) != DT_OK ||
        dt_cluster_start(cluster, now_ns, 1, NULL) != DT_OK ||
        dt_agent_create(&agent_options, now_ns, &agent, NULL) != DT_OK)
        abort();
    perform();
}

static void say(uint64_t stream, const uint8_t *data, size_t size)
{
    dt_arena_t arena;
    dt_error_t error = {0};
    Dtorch__V1__WorkerUp *up;
    Dtorch__V1__WorkerDown *down;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, data, size, &up, &error) == DT_OK)
        dt_cluster_stream_received(cluster, stream, up, now_ns);
    else
        dt_cluster_stream_malformed(cluster, stream, &error, now_ns);
    perform();
    dt_arena_reset(&arena);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_down, &arena, data, size, &down, &error) == DT_OK)
        dt_agent_received(agent, agent_stream, down, now_ns);
    else if (stream & 1)
        dt_agent_malformed(agent, agent_stream, &error, now_ns);
    dt_arena_fini(&arena);
}

static void step(uint8_t what, const uint8_t *data, size_t size, uint64_t ids[static 8],
                 uint64_t *next_id)
{
    dt_cluster_peer_t peer = {.address = "10.0.0.1:1"};
    uint64_t *id = &ids[what & 7];
    switch (what >> 4 & 7) {
    case 0:
        now_ns += (int64_t)size * 20 * MS_NS;
        dt_cluster_tick(cluster, now_ns, 1);
        dt_agent_tick(agent, now_ns, 1);
        break;
    case 1:
        dt_cluster_stream_closed(cluster, *id, "closed", now_ns);
        dt_agent_closed(agent, agent_stream, "closed", now_ns);
        break;
    case 2:
        *id = ++*next_id;
        dt_cluster_stream_opened(cluster, *id, &peer, now_ns);
        dt_agent_connected(agent, agent_stream, now_ns, 1);
        break;
    default:
        say(*id, data, size);
        break;
    }
    perform();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t ids[8] = {0}, next_id = 0;
    dt_cluster_counts_t counts;
    start();
    for (size_t at = 0; at + 2 <= size && at < 4096;) {
        size_t length = data[at + 1];
        if (length > size - at - 2)
            length = size - at - 2;
        step(data[at], data + at + 2, length, ids, &next_id);
        at += 2 + length;
    }
    dt_cluster_count(cluster, &counts);
    if (counts.nodes_total > 4 || counts.streams > 8)
        abort();
    dt_cluster_free(cluster);
    dt_agent_free(agent);
    return 0;
}
