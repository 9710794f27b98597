#include "lib/coretest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

static void must(bool is_true, const char *what)
{
    if (is_true)
        return;
    (void)fprintf(stderr, "coretest: %s\n", what);
    abort();
}

dt_coretest_t *dt_coretest_new_stopped(void)
{
    dt_coretest_t *test = calloc(1, sizeof *test);
    must(test != NULL, "no memory");
    dt_arena_init(&test->arena, 8 * DT_WIRE_ARENA_MAX);
    test->now_ns = 1000 * 1000 * DT_CORETEST_MS;
    test->wall_ms = INT64_C(1790000000000);
    test->options = (dt_cluster_options_t){
        .struct_size = sizeof test->options,
        .name = "lab",
        .build = "test-1",
        .config_hash = "0123456789abcdef",
        .new_cluster_id = "cluster-id-1234",
        .rules = {250 * DT_CORETEST_MS, 3, 8},
        .rejoin_grace_ns = 10000 * DT_CORETEST_MS,
        .hello_timeout_ns = 5000 * DT_CORETEST_MS,
        .nodes_max = 64,
        .streams_max = 64,
        .events_max = 1024,
        .admin_pending_max = 16,
        .journal_pending_max = 1024,
    };
    return test;
}

void dt_coretest_start(dt_coretest_t *test)
{
    dt_error_t error = {0};
    if (dt_cluster_create(&test->options, &test->cluster, &error) != DT_OK)
        must(false, error.text);
    for (uint32_t i = 0; i < test->durable_count; i++) {
        Dtorch__V1__StateRecord *record =
            dtorch__v1__state_record__unpack(NULL, test->records[i].size, test->records[i].data);
        must(record != NULL, "a record cannot be read");
        if (dt_cluster_restore(test->cluster, record, &error) != DT_OK)
            must(false, error.text);
        dtorch__v1__state_record__free_unpacked(record, NULL);
    }
    test->issued = 0;
    if (dt_cluster_start(test->cluster, test->now_ns, test->wall_ms, &error) != DT_OK)
        must(false, error.text);
    dt_coretest_perform(test);
}

dt_coretest_t *dt_coretest_new(void)
{
    dt_coretest_t *test = dt_coretest_new_stopped();
    dt_coretest_start(test);
    must(dt_cluster_is_ready(test->cluster), "not ready");
    return test;
}

void dt_coretest_restart(dt_coretest_t *test)
{
    dt_cluster_free(test->cluster);
    for (uint32_t i = test->durable_count; i < test->record_count; i++)
        free(test->records[i].data);
    test->record_count = test->durable_count;
    dt_coretest_start(test);
}

void dt_coretest_forget_actions(dt_coretest_t *test)
{
    for (uint32_t i = 0; i < test->action_count; i++)
        free(test->actions[i].data);
    test->action_count = 0;
}

void dt_coretest_free(dt_coretest_t *test)
{
    dt_coretest_forget_actions(test);
    for (uint32_t i = 0; i < test->record_count; i++)
        free(test->records[i].data);
    dt_cluster_free(test->cluster);
    dt_arena_fini(&test->arena);
    free(test);
}

static uint8_t *copy(const uint8_t *data, size_t size)
{
    uint8_t *made = malloc(size ? size : 1);
    must(made != NULL, "no memory");
    if (size)
        memcpy(made, data, size);
    return made;
}

static void write_down(dt_coretest_t *test, const dt_cluster_action_t *action)
{
    must(test->action_count < DT_CORETEST_ACTIONS_MAX, "too many actions");
    dt_coretest_action_t *note = &test->actions[test->action_count++];
    *note = (dt_coretest_action_t){
        .kind = action->kind,
        .stream = action->stream,
        .sequence = action->sequence,
        .ticket = action->ticket,
        .data = copy(action->data, action->size),
        .size = action->size,
        .status = action->status,
    };
    (void)snprintf(note->text, sizeof note->text, "%s", action->text);
    if (action->kind == DT_CLUSTER_DO_EVENT)
        (void)snprintf(note->event, sizeof note->event, "%s", action->event->name);
}

static bool take_actions(dt_coretest_t *test)
{
    dt_cluster_action_t action;
    bool has_records = false;
    while (dt_cluster_poll(test->cluster, &action)) {
        write_down(test, &action);
        if (action.kind != DT_CLUSTER_DO_JOURNAL)
            continue;
        must(test->record_count < DT_CORETEST_ACTIONS_MAX, "too many records");
        must(action.sequence == test->issued + 1, "a gap in the journal's sequence");
        test->issued = action.sequence;
        test->records[test->record_count].data = copy(action.data, action.size);
        test->records[test->record_count++].size = action.size;
        has_records = true;
    }
    return has_records;
}

void dt_coretest_sync(dt_coretest_t *test)
{
    test->durable_count = test->record_count;
    dt_cluster_durable(test->cluster, test->issued, test->now_ns);
    if (take_actions(test))
        dt_coretest_sync(test);
}

void dt_coretest_perform(dt_coretest_t *test)
{
    if (take_actions(test) && !test->is_holding)
        dt_coretest_sync(test);
}

void dt_coretest_starve(dt_coretest_t *test, int64_t ms)
{
    test->now_ns += ms * DT_CORETEST_MS;
    test->wall_ms += ms;
    dt_cluster_tick(test->cluster, test->now_ns, test->wall_ms);
    dt_coretest_perform(test);
}

void dt_coretest_pass(dt_coretest_t *test, int64_t ms)
{
    int64_t end_ns = test->now_ns + ms * DT_CORETEST_MS;
    while (test->now_ns < end_ns) {
        int64_t due_ns = dt_cluster_deadline(test->cluster);
        int64_t next_ns = due_ns < end_ns ? due_ns : end_ns;
        test->wall_ms += next_ns / DT_CORETEST_MS - test->now_ns / DT_CORETEST_MS;
        test->now_ns = next_ns;
        dt_cluster_tick(test->cluster, test->now_ns, test->wall_ms);
        dt_coretest_perform(test);
    }
}

void dt_coretest_open(dt_coretest_t *test, uint64_t stream, const char *certificate_name)
{
    char address[64];
    (void)snprintf(address, sizeof address, "10.0.0.%" PRIu64 ":%" PRIu64, stream, 40000 + stream);
    dt_cluster_peer_t peer = {.address = address, .certificate_name = certificate_name};
    dt_cluster_stream_opened(test->cluster, stream, &peer, test->now_ns);
    dt_coretest_perform(test);
}

static void receive(dt_coretest_t *test, uint64_t stream, const Dtorch__V1__WorkerUp *up)
{
    dt_error_t error = {0};
    if (dt_wire_validate(&up->base, &error) != DT_OK)
        must(false, error.text);
    dt_cluster_stream_received(test->cluster, stream, up, test->now_ns);
    dt_coretest_perform(test);
}

void dt_coretest_hello(dt_coretest_t *test, uint64_t stream, uint8_t node, uint64_t incarnation,
                       const char *name)
{
    char own_name[16], hash[] = "00000000000000aa", build[] = "test-1";
    uint8_t id[16];
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    (void)snprintf(own_name, sizeof own_name, "n%u", node);
    memset(id, node, sizeof id);
    version.major = DT_WIRE_VERSION_MAJOR;
    hello.version = &version;
    hello.build = build;
    hello.node_id = (ProtobufCBinaryData){sizeof id, id};
    hello.node_name = name ? (char *)(uintptr_t)name : own_name;
    hello.incarnation = incarnation;
    hello.config_hash = hash;
    hello.wall_ms = test->wall_ms;
    hello.pid = 100u + node;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    receive(test, stream, &up);
}

void dt_coretest_join(dt_coretest_t *test, uint64_t stream, uint8_t node, uint64_t incarnation)
{
    dt_coretest_open(test, stream, NULL);
    dt_coretest_hello(test, stream, node, incarnation, NULL);
}

static void receive_beat(dt_coretest_t *test, uint64_t stream, Dtorch__V1__Beat *beat)
{
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    beat->sequence = 1;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_BEAT;
    up.beat = beat;
    receive(test, stream, &up);
}

void dt_coretest_beat(dt_coretest_t *test, uint64_t stream, uint64_t progress, int64_t late_ns)
{
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    beat.progress = progress;
    beat.late_ns = late_ns;
    receive_beat(test, stream, &beat);
}

void dt_coretest_beat_busy(dt_coretest_t *test, uint64_t stream, const uint8_t *percents,
                           size_t count)
{
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    uint8_t copy[64];
    dt_check(count <= sizeof copy);
    memcpy(copy, percents, count);
    beat.busy = (ProtobufCBinaryData){count, copy};
    receive_beat(test, stream, &beat);
}

void dt_coretest_inventory(dt_coretest_t *test, uint64_t stream, uint64_t devices, uint32_t busy)
{
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__Device device[64], *device_list[64];
    Dtorch__V1__Engine engine[8], *engine_list[8];
    char uuid[64][24], backend[] = "sim";
    inventory.devices = device_list;
    inventory.engines = engine_list;
    for (uint32_t i = 0; i < 64; i++) {
        if (!(devices >> i & 1))
            continue;
        size_t at = inventory.n_devices++;
        dtorch__v1__device__init(&device[at]);
        (void)snprintf(uuid[at], sizeof uuid[at], "SIM-%u", i);
        device[at].index = i;
        device[at].uuid = uuid[at];
        device[at].backend = backend;
        device[at].health = DTORCH__V1__DEVICE__HEALTH__OK;
        device_list[at] = &device[at];
    }
    for (uint32_t i = 0; i < busy && i < 8; i++) {
        dtorch__v1__engine__init(&engine[i]);
        engine[i].id = i;
        engine[i].state = DTORCH__V1__ENGINE__STATE__BUSY;
        engine_list[inventory.n_engines++] = &engine[i];
    }
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_INVENTORY;
    up.inventory = &inventory;
    receive(test, stream, &up);
}

void dt_coretest_engine(dt_coretest_t *test, uint64_t stream, uint64_t sequence)
{
    char text[] = "signal 11", by[] = "pidfd";
    Dtorch__V1__EngineEvent engine = DTORCH__V1__ENGINE_EVENT__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    engine.kind = DTORCH__V1__ENGINE_EVENT__KIND__CRASHED;
    engine.engine = 3;
    engine.signo = 11;
    engine.text = text;
    engine.noticed_by = by;
    engine.sequence = sequence;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_ENGINE;
    up.engine = &engine;
    receive(test, stream, &up);
}

void dt_coretest_set(dt_coretest_t *test, uint64_t ticket, int change, const char *name,
                     const char *reason, const char *request_id)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    char *names[] = {(char *)(uintptr_t)name};
    char by[] = "ana";
    request.names = names;
    request.n_names = 1;
    request.change = (Dtorch__V1__SetNodeRequest__Change)change;
    request.reason = (char *)(uintptr_t)reason;
    request.request_id = (char *)(uintptr_t)request_id;
    request.by = by;
    dt_cluster_set_node(test->cluster, ticket, &request, "uid 1000", test->now_ns);
    dt_coretest_perform(test);
}

static bool is_about(const dt_coretest_action_t *action, dt_cluster_action_kind_t kind,
                     uint64_t which)
{
    if (action->kind != kind)
        return false;
    if (kind == DT_CLUSTER_DO_REPLY)
        return action->ticket == which;
    if (kind == DT_CLUSTER_DO_SEND || kind == DT_CLUSTER_DO_CLOSE)
        return action->stream == which;
    return true;
}

const dt_coretest_action_t *dt_coretest_find(const dt_coretest_t *test,
                                             dt_cluster_action_kind_t kind, uint64_t which)
{
    for (uint32_t i = 0; i < test->action_count; i++)
        if (is_about(&test->actions[i], kind, which))
            return &test->actions[i];
    return NULL;
}

uint32_t dt_coretest_count(const dt_coretest_t *test, dt_cluster_action_kind_t kind, uint64_t which)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->action_count; i++)
        count += is_about(&test->actions[i], kind, which);
    return count;
}

uint32_t dt_coretest_count_events(const dt_coretest_t *test, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->action_count; i++)
        count += strcmp(test->actions[i].event, name) == 0;
    return count;
}

const Dtorch__V1__WorkerDown *dt_coretest_sent(dt_coretest_t *test, uint64_t stream, int kind_case)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, &test->arena};
    for (uint32_t i = 0; i < test->action_count; i++) {
        const dt_coretest_action_t *action = &test->actions[i];
        if (!is_about(action, DT_CLUSTER_DO_SEND, stream))
            continue;
        const Dtorch__V1__WorkerDown *down =
            dtorch__v1__worker_down__unpack(&allocator, action->size, action->data);
        must(down != NULL, "an unreadable message was sent");
        if ((int)down->kind_case == kind_case)
            return down;
    }
    return NULL;
}

bool dt_coretest_was_refused(dt_coretest_t *test, uint64_t stream, int code, const char *words)
{
    const Dtorch__V1__WorkerDown *down =
        dt_coretest_sent(test, stream, DTORCH__V1__WORKER_DOWN__KIND_REFUSAL);
    if (!down)
        return false;
    bool is_refused = (int)down->refusal->code == code && strstr(down->refusal->text, words);
    if (!is_refused)
        (void)fprintf(stderr, "refused: %d %s\n", (int)down->refusal->code, down->refusal->text);
    return is_refused && dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, stream);
}

Dtorch__V1__Node *dt_coretest_node(dt_coretest_t *test, dt_arena_t *arena, const char *name)
{
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    Dtorch__V1__NodeList *list;
    char *names[] = {(char *)(uintptr_t)name};
    request.names = names;
    request.n_names = 1;
    request.with_devices = true;
    must(dt_cluster_list_nodes(test->cluster, &request, arena, test->now_ns, &list) == DT_OK,
         "the list of nodes failed");
    return list->n_nodes ? list->nodes[0] : NULL;
}

int dt_coretest_health(dt_coretest_t *test, const char *name)
{
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    const Dtorch__V1__Node *node = dt_coretest_node(test, &arena, name);
    int health = node ? (int)node->health : -1;
    dt_arena_fini(&arena);
    return health;
}

int dt_coretest_admin(dt_coretest_t *test, const char *name)
{
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    const Dtorch__V1__Node *node = dt_coretest_node(test, &arena, name);
    int admin = node ? (int)node->admin : -1;
    dt_arena_fini(&arena);
    return admin;
}
