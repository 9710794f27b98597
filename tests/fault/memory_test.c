/* Memory that runs out: each allocation of a scenario fails once, and then from it on all of them.
 * What may come of it is an error; never a crash, a leak (AddressSanitizer looks), or a state that
 * does not go on working. The linker puts the functions below in place of the allocator's
 * (--wrap in mk/tests.mk); they fail only while a scenario is inside a call of the library. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conf/conf.h"
#include "conf/print.h"
#include "core/agent.h"
#include "core/cluster.h"
#include "device/builtin.h"
#include "lib/execrig.h"
#include "lib/temptree.h"
#include "wire/frame.h"
#include "wire/record.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define ALLOCATIONS_MAX 20000 /* of one scenario; more are a loop without an end */
#define MS              INT64_C(1000000)

TestSuite(memory, .timeout = 600);

/* ---- the allocator ---- */

static _Thread_local struct {
    bool is_inside;  /* the library is at work, on this thread */
    bool is_lasting; /* all fail from the chosen one on */
    unsigned count;  /* allocations so far */
    unsigned chosen; /* from 1 on; 0: none fails */
    unsigned failed;
} memory;

static bool must_fail(void)
{
    if (!memory.is_inside || ++memory.count < memory.chosen || memory.chosen == 0)
        return false;
    if (memory.count > memory.chosen && !memory.is_lasting)
        return false;
    memory.failed++;
    errno = ENOMEM;
    return true;
}

#define WRAP(type, name, parameters, arguments)                                                    \
    extern type __real_##name parameters;                                                          \
    extern type __wrap_##name parameters;                                                          \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return must_fail() ? NULL : __real_##name arguments;                                       \
    }
WRAP(void *, malloc, (size_t size), (size))
WRAP(void *, calloc, (size_t count, size_t size), (count, size))
WRAP(void *, realloc, (void *old, size_t size), (old, size))
WRAP(void *, reallocarray, (void *old, size_t count, size_t size), (old, count, size))
WRAP(char *, strdup, (const char *text), (text))
WRAP(char *, strndup, (const char *text, size_t size), (text, size))

extern int __wrap_vasprintf(char **ret_text, const char *fmt, va_list args);
extern int __real_vasprintf(char **ret_text, const char *fmt, va_list args);
extern int __wrap_asprintf(char **ret_text, const char *fmt, ...);
int __wrap_vasprintf(char **ret_text, const char *fmt, va_list args)
{
    return must_fail() ? -1 : __real_vasprintf(ret_text, fmt, args);
}
int __wrap_asprintf(char **ret_text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int size = must_fail() ? -1 : __real_vasprintf(ret_text, fmt, args);
    va_end(args);
    return size;
}

#define IN(call)                                                                                   \
    ({                                                                                             \
        memory.is_inside = true;                                                                   \
        __auto_type inside_ = (call);                                                              \
        memory.is_inside = false;                                                                  \
        inside_;                                                                                   \
    })
#define DO(call)                                                                                   \
    do {                                                                                           \
        memory.is_inside = true;                                                                   \
        call;                                                                                      \
        memory.is_inside = false;                                                                  \
    } while (0)

/* What a status may be while memory is short. */
static bool may_be(dt_status_t status)
{
    return status == DT_OK ||
           (memory.failed && (status == DT_ERR_NOMEM || status == DT_ERR_LIMIT ||
                              status == DT_ERR_AGAIN || status == DT_ERR_INVALID));
}

/* Run `scenario` until no allocation is left that has not failed. Returns how many there are. */
static unsigned run(void (*scenario)(void))
{
    unsigned total = 0;
    for (int lasting = 0; lasting < 2; lasting++)
        for (unsigned chosen = 1;; chosen++) {
            memset(&memory, 0, sizeof memory);
            memory.is_lasting = lasting;
            memory.chosen = chosen;
            scenario();
            total = memory.count;
            if (!memory.failed)
                break;
            cr_assert_lt(chosen, ALLOCATIONS_MAX);
        }
    return total;
}

/* ---- configuration ---- */

static dt_temptree_t tree;

static void make_tree(void)
{
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "usr/lib/dtorch/workerd.conf", "[Worker]\nEngines=2\n");
    dt_temptree_write(&tree, "etc/dtorch/workerd.conf",
                      "# a comment\n[Worker]\nController=ctl1, ctl2:7701 /run/x.sock\nRack=r7\n");
    dt_temptree_write(&tree, "etc/dtorch/workerd.conf.d/10-more.conf",
                      "[Worker]\nDevices=sim:2 ref\nLogLevel=debug\n");
}

static void remove_tree(void)
{
    dt_temptree_fini(&tree);
}

static char variable[] = "DTORCH_ENGINE_HEAP_MAX=1GiB";
static char *const environment[] = {variable, NULL};

static void configuration(void)
{
    const dt_conf_flag_t flags[] = {{.key = "NodeName", .value = "w7"}};
    dt_conf_sources_t sources = {
        .root = tree.root, .environment = environment, .flags = flags, .flag_count = 1};
    dt_conf_t *conf = NULL, *again = NULL;
    dt_strv_t changed = {0};
    dt_error_t err = {0};
    dt_buf_t out;
    dt_status_t status = IN(dt_conf_load(dt_conf_table_worker(), &sources, &conf, &err));
    cr_assert(may_be(status), "%d: %s", (int)status, err.text);
    if (status != DT_OK)
        return;
    cr_assert_eq(dt_conf_list(conf, "Controller")->count, 3);
    cr_assert_eq(dt_conf_int(conf, "Engines"), 2);
    dt_buf_init(&out, DT_CONF_TEXT_MAX);
    cr_assert(may_be(IN(dt_conf_dump(conf, &out))));
    cr_assert(may_be(IN(dt_conf_print_help(dt_conf_table_worker(), &out))));
    dt_buf_fini(&out);
    char other[] = "DTORCH_ENGINES=5";
    char *const changed_environment[] = {other, NULL};
    sources.environment = changed_environment;
    status = IN(dt_conf_reload(conf, &sources, &again, &changed, &err));
    cr_assert(may_be(status) || status == DT_ERR_DENIED);
    dt_strv_fini(&changed);
    dt_conf_free(again);
    dt_conf_free(conf);
}

static void wrong_configuration(void)
{
    static const char text[] = "[Worker]\nEngins=3\n";
    dt_conf_t *conf = NULL;
    dt_error_t err = {0};
    dt_status_t status =
        IN(dt_conf_parse(dt_conf_table_worker(), "x.conf", text, sizeof text - 1, &conf, &err));
    cr_assert(status == DT_ERR_INVALID || (memory.failed && status == DT_ERR_NOMEM));
    cr_assert_null(conf);
}

Test(memory, that_runs_out_while_a_configuration_is_read, .init = make_tree, .fini = remove_tree)
{
    cr_assert_gt(run(configuration), 50);
    (void)run(wrong_configuration);
}

/* ---- messages ---- */

static Dtorch__V1__ProtocolVersion version;
static uint8_t identity[16] = {1, 2, 3};

static size_t pack_hello(uint8_t *out, uint64_t incarnation)
{
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    char name[] = "w0", build[] = "b", boot[] = "01234567-0123-0123-0123-012345678901";
    char hash[] = "0123456789abcdef", rack[] = "r1";
    dtorch__v1__protocol_version__init(&version);
    version.major = DT_WIRE_VERSION_MAJOR;
    hello.version = &version;
    hello.build = build;
    hello.node_id = (ProtobufCBinaryData){sizeof identity, identity};
    hello.node_name = name;
    hello.incarnation = incarnation;
    hello.boot_id = boot;
    hello.config_hash = hash;
    hello.rack = rack;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    return dtorch__v1__worker_up__pack(&up, out);
}

/* An inventory of a device for each bit, as a message. */
static size_t pack_inventory(uint8_t *out, unsigned devices)
{
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__NodeTopology topology = DTORCH__V1__NODE_TOPOLOGY__INIT;
    Dtorch__V1__Device device[4], *at[4];
    Dtorch__V1__Link link = DTORCH__V1__LINK__INIT, *links[] = {&link};
    Dtorch__V1__Engine engine = DTORCH__V1__ENGINE__INIT, *engines[] = {&engine};
    char backend[] = "sim", uuid[4][8];
    for (uint32_t i = 0; i < 4; i++) {
        if (!(devices >> i & 1))
            continue;
        dtorch__v1__device__init(&device[i]);
        (void)snprintf(uuid[i], sizeof uuid[i], "SIM-%u", (unsigned)i);
        device[i].index = i;
        device[i].uuid = uuid[i];
        device[i].backend = backend;
        device[i].health = DTORCH__V1__DEVICE__HEALTH__OK;
        device[i].links = links;
        device[i].n_links = 1;
        at[inventory.n_devices++] = &device[i];
    }
    link.peer = 1;
    inventory.devices = at;
    inventory.topology = &topology;
    inventory.engines = engines;
    inventory.n_engines = 1;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_INVENTORY;
    up.inventory = &inventory;
    return dtorch__v1__worker_up__pack(&up, out);
}

static size_t pack_engine(uint8_t *out, uint64_t sequence)
{
    Dtorch__V1__EngineEvent engine = DTORCH__V1__ENGINE_EVENT__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    char text[] = "signal 11", by[] = "pidfd";
    engine.kind = DTORCH__V1__ENGINE_EVENT__KIND__CRASHED;
    engine.signo = 11;
    engine.text = text;
    engine.noticed_by = by;
    engine.sequence = sequence;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_ENGINE;
    up.engine = &engine;
    return dtorch__v1__worker_up__pack(&up, out);
}

static void decode(const uint8_t *bytes, size_t size)
{
    Dtorch__V1__WorkerUp *up = NULL;
    dt_arena_t arena;
    dt_error_t err = {0};
    uint8_t *packed = NULL;
    size_t packed_size = 0;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_status_t status = IN(DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, bytes, size, &up, &err));
    cr_assert(may_be(status), "%s", err.text);
    cr_assert_eq(status == DT_OK, up != NULL);
    if (up) {
        cr_assert(may_be(IN(dt_wire_pack(&up->base, &arena, &packed, &packed_size))));
        packed = NULL;
        cr_assert(may_be(IN(dt_wire_pack_new(&up->base, &packed, &packed_size))));
        free(packed);
    }
    dt_arena_fini(&arena);
}

static void messages(void)
{
    uint8_t bytes[2048];
    decode(bytes, pack_hello(bytes, 1));
    decode(bytes, pack_inventory(bytes, 15));
    decode(bytes, pack_engine(bytes, 1));
}

Test(memory, that_runs_out_while_a_message_is_decoded)
{
    cr_assert_gt(run(messages), 5);
}

/* A signature with texts and lists, and a record with more ids than a reader holds by itself. */
static void frames(void)
{
    static uint8_t bytes[DT_FRAME_BYTES_MAX];
    static uint64_t inputs[3000];
    static dt_record_t record;
    static const int64_t ints[] = {0, -5, 9}, sizes[] = {4, 7};
    static const dt_value_t strs[] = {{.tag = DT_VALUE_STR, .count = 2, .text = "ab"}};
    static const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR},
                                      {.tag = DT_VALUE_STR, .count = 2, .text = "ij"},
                                      {.tag = DT_VALUE_INTS, .count = 3, .ints = ints},
                                      {.tag = DT_VALUE_STRS, .count = 1, .values = strs}};
    dt_signature_tensor_t tensor = {0};
    dt_frame_writer_t writer;
    dt_frame_reader_t reader = {0};
    dt_signature_t *got = NULL;
    dt_arena_t arena;
    dt_buf_t buf;
    bool is_end = false;
    cr_assert_eq(dt_meta_set(&tensor.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    const dt_signature_t signature = {.name = "aten::x",
                                      .arg_count = 4,
                                      .args = args,
                                      .input_count = 1,
                                      .inputs = &tensor,
                                      .output_count = 1,
                                      .outputs = &tensor};
    dt_buf_init(&buf, DT_SIGNATURE_BYTES_MAX);
    dt_arena_init(&arena, 1u << 20);
    dt_status_t status = IN(dt_signature_encode(&signature, &buf, NULL));
    cr_assert(may_be(status));
    if (status == DT_OK) {
        dt_cursor_t cursor = {.at = buf.data, .end = buf.data + buf.len};
        int error = IN(dt_signature_decode(&cursor, &arena, &got));
        cr_assert(error == 0 || (memory.failed && error == DT_FRAME_E_NOMEM), "%d", error);
    }
    dt_arena_fini(&arena);
    dt_buf_fini(&buf);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        inputs[i] = i + 1;
    dt_frame_begin(&writer, bytes, sizeof bytes, 1, 1);
    const dt_record_op_t op = {.signature = 1, .input_count = 3000, .inputs = inputs};
    cr_assert(dt_record_put_op(&writer, &op));
    size_t size = dt_frame_end(&writer, 0);
    cr_assert_eq(dt_frame_open(&reader, bytes, size), 0);
    int error = IN(dt_record_next(&reader, &record, &is_end));
    cr_assert(error == 0 || (memory.failed && error == DT_FRAME_E_NOMEM), "%d", error);
    dt_frame_reader_fini(&reader);
}

Test(memory, that_runs_out_while_a_frame_is_decoded)
{
    cr_assert_gt(run(frames), 2);
}

/* ---- the controller's core ---- */

struct driver {
    dt_cluster_t *cluster;
    int64_t now_ns, wall_ms;
    uint64_t issued;
    uint64_t replies; /* a bit for each ticket that was answered */
    uint64_t good;    /* with DT_OK */
    struct {
        uint8_t *data;
        size_t size;
    } records[256];
    size_t record_count;
};

static void take_actions(struct driver *d)
{
    dt_cluster_action_t action;
    while (IN(dt_cluster_poll(d->cluster, &action))) {
        if (action.kind == DT_CLUSTER_DO_JOURNAL) {
            cr_assert_eq(action.sequence, d->issued + 1, "a gap in the journal");
            cr_assert_lt(d->record_count, sizeof d->records / sizeof *d->records);
            d->issued = action.sequence;
            d->records[d->record_count].data = malloc(action.size);
            memcpy(d->records[d->record_count].data, action.data, action.size);
            d->records[d->record_count++].size = action.size;
        } else if (action.kind == DT_CLUSTER_DO_REPLY) {
            cr_assert_eq(d->replies >> action.ticket & 1, 0, "two answers");
            d->replies |= UINT64_C(1) << action.ticket;
            if (action.status == DT_OK)
                d->good |= UINT64_C(1) << action.ticket;
            else
                cr_assert(memory.failed, "ticket %d: %s", (int)action.ticket, action.text);
        }
    }
}

static void settle(struct driver *d)
{
    uint64_t before;
    do {
        before = d->issued;
        take_actions(d);
        DO(dt_cluster_durable(d->cluster, d->issued, d->now_ns));
        take_actions(d);
    } while (d->issued != before);
}

static void pass(struct driver *d, int64_t ms)
{
    for (int64_t end_ns = d->now_ns + ms * MS; d->now_ns < end_ns;) {
        d->now_ns += 50 * MS;
        d->wall_ms += 50;
        DO(dt_cluster_tick(d->cluster, d->now_ns, d->wall_ms));
        settle(d);
    }
}

static void say(struct driver *d, uint64_t stream, const uint8_t *bytes, size_t size)
{
    Dtorch__V1__WorkerUp *up = dtorch__v1__worker_up__unpack(NULL, size, bytes);
    cr_assert(up);
    DO(dt_cluster_stream_received(d->cluster, stream, up, d->now_ns));
    dtorch__v1__worker_up__free_unpacked(up, NULL);
    settle(d);
}

static void open_stream(struct driver *d, uint64_t stream)
{
    uint8_t bytes[2048];
    const dt_cluster_peer_t peer = {.address = "10.0.0.7:4000"};
    DO(dt_cluster_stream_opened(d->cluster, stream, &peer, d->now_ns));
    settle(d);
    say(d, stream, bytes, pack_hello(bytes, stream));
}

static void set_node(struct driver *d, uint64_t ticket, Dtorch__V1__SetNodeRequest__Change change)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    Dtorch__V1__Label label = DTORCH__V1__LABEL__INIT, *labels[] = {&label};
    char name[] = "w0", *names[] = {name}, key[] = "zone", value[] = "a", reason[] = "new fan";
    char id[16];
    (void)snprintf(id, sizeof id, "id-%d", (int)ticket);
    label.key = key;
    label.value = value;
    request.names = names;
    request.n_names = 1;
    request.change = change;
    request.request_id = id;
    if (change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL) {
        request.set_labels = labels;
        request.n_set_labels = 1;
    } else {
        request.reason = reason;
    }
    DO(dt_cluster_set_node(d->cluster, ticket, &request, "root", d->now_ns));
    settle(d);
}

static void use_tokens(struct driver *d)
{
    Dtorch__V1__CreateTokenRequest create = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    Dtorch__V1__RevokeTokenRequest revoke = DTORCH__V1__REVOKE_TOKEN_REQUEST__INIT;
    const dt_cluster_new_token_t token = {.id = "abc", .token = "dtj_abc", .secret_sha256 = {1}};
    char id[] = "abc";
    create.uses = 2;
    DO(dt_cluster_create_token(d->cluster, 3, &create, &token, "root", d->now_ns));
    settle(d);
    if (!(d->good >> 3 & 1)) { /* there is none to use, as the caller was told */
        d->replies |= UINT64_C(3) << 4;
        return;
    }
    DO(dt_cluster_use_token(d->cluster, 4, "abc", token.secret_sha256, "w9", identity, "10.0.0.9:1",
                            d->now_ns));
    settle(d);
    revoke.id = id;
    DO(dt_cluster_revoke_token(d->cluster, 5, &revoke, "root", d->now_ns));
    settle(d);
}

/* Look at everything. With memory all of it is there. */
static void look(struct driver *d)
{
    Dtorch__V1__ListNodesRequest nodes = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    Dtorch__V1__ListEventsRequest events = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    Dtorch__V1__ClusterStatus *status;
    Dtorch__V1__NodeList *node_list;
    Dtorch__V1__EventList *event_list;
    Dtorch__V1__TokenList *token_list;
    Dtorch__V1__Diagnostics *items;
    dt_cluster_cursor_t cursor = {0};
    const uint8_t *data;
    dt_arena_t arena;
    size_t size;
    dt_arena_init(&arena, 8u << 20);
    cr_assert(may_be(IN(dt_cluster_get(d->cluster, &arena, d->now_ns, &status))));
    cr_assert(may_be(IN(dt_cluster_list_nodes(d->cluster, &nodes, &arena, d->now_ns, &node_list))));
    cr_assert(may_be(IN(dt_cluster_list_events(d->cluster, &events, &arena, &event_list))));
    cr_assert(may_be(IN(dt_cluster_list_tokens(d->cluster, &arena, d->now_ns, &token_list))));
    cr_assert(may_be(IN(dt_cluster_diagnose(d->cluster, &arena, d->now_ns, &items))));
    while (IN(dt_cluster_snapshot_next(d->cluster, &cursor, &data, &size)))
        continue;
    cr_assert(!cursor.is_failed || memory.failed);
    dt_arena_fini(&arena);
}

static bool start(struct driver *d)
{
    static const dt_cluster_options_t options = {
        .struct_size = sizeof options,
        .name = "lab",
        .build = "b",
        .config_hash = "0123456789abcdef",
        .new_cluster_id = "cluster-id-1234",
        .rules = {250 * MS, 3, 8},
        .rejoin_grace_ns = 10000 * MS,
        .hello_timeout_ns = 5000 * MS,
        .nodes_max = 8,
        .streams_max = 8,
        .events_max = 64,
        .admin_pending_max = 8,
        .journal_pending_max = 128,
    };
    dt_error_t err = {0};
    dt_status_t status = IN(dt_cluster_create(&options, &d->cluster, &err));
    for (size_t i = 0; status == DT_OK && i < d->record_count; i++) {
        Dtorch__V1__StateRecord *record =
            dtorch__v1__state_record__unpack(NULL, d->records[i].size, d->records[i].data);
        cr_assert(record);
        status = IN(dt_cluster_restore(d->cluster, record, &err));
        dtorch__v1__state_record__free_unpacked(record, NULL);
    }
    d->issued = 0;
    if (status == DT_OK)
        status = IN(dt_cluster_start(d->cluster, d->now_ns, d->wall_ms, &err));
    cr_assert(may_be(status), "%s", err.text);
    if (status == DT_OK)
        settle(d);
    return status == DT_OK;
}

/* After all that the core must still do its work: a node comes, is welcomed and is seen. */
static void expect_work(struct driver *d)
{
    Dtorch__V1__ListNodesRequest nodes = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    Dtorch__V1__NodeList *list;
    dt_arena_t arena;
    unsigned failed = memory.failed;
    memory.chosen = 0; /* memory is there again */
    pass(d, 6000);
    open_stream(d, 40);
    set_node(d, 20, DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN);
    cr_assert(d->good >> 20 & 1, "no drain after %u failed allocations", failed);
    dt_arena_init(&arena, 8u << 20);
    cr_assert_eq(dt_cluster_list_nodes(d->cluster, &nodes, &arena, d->now_ns, &list), DT_OK);
    cr_assert_eq(list->n_nodes, 1);
    cr_assert(list->nodes[0]->health == DTORCH__V1__NODE_HEALTH__NODE_OK ||
              list->nodes[0]->health == DTORCH__V1__NODE_HEALTH__NODE_DEGRADED);
    dt_arena_fini(&arena);
}

static void controller(void)
{
    static struct driver d;
    uint8_t bytes[2048];
    memset(&d, 0, sizeof d);
    d.now_ns = 1000000 * MS;
    d.wall_ms = INT64_C(1790000000000);
    if (start(&d)) {
        open_stream(&d, 1);
        say(&d, 1, bytes, pack_inventory(bytes, 15));
        say(&d, 1, bytes, pack_inventory(bytes, 3));
        say(&d, 1, bytes, pack_engine(bytes, 1));
        set_node(&d, 1, DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL);
        set_node(&d, 2, DTORCH__V1__SET_NODE_REQUEST__CHANGE__CORDON);
        use_tokens(&d);
        DO(dt_cluster_peer_misbehaved(d.cluster, "10.0.0.8", "is rude", d.now_ns));
        look(&d);
        open_stream(&d, 2); /* another life, while the first is alive: refused */
        pass(&d, 3000);     /* silence: dead */
        DO(dt_cluster_stream_closed(d.cluster, 1, "gone", d.now_ns));
        dt_cluster_free(d.cluster);
        d.cluster = NULL;
        if (start(&d)) {
            open_stream(&d, 3);
            look(&d);
            /* An answer is lost only with the connection, never here. */
            for (unsigned ticket = 1; ticket <= 5; ticket++)
                cr_assert(memory.failed || d.replies >> ticket & 1, "ticket %u", ticket);
            expect_work(&d);
        }
    }
    dt_cluster_free(d.cluster);
    for (size_t i = 0; i < d.record_count; i++)
        free(d.records[i].data);
}

Test(memory, that_runs_out_in_the_controllers_core)
{
    cr_assert_gt(run(controller), 100);
}

/* ---- the worker's core ---- */

static void take_agent_actions(dt_agent_t *agent, uint64_t *stream)
{
    dt_agent_action_t action;
    while (IN(dt_agent_poll(agent, &action)))
        if (action.kind == DT_AGENT_DO_DIAL)
            *stream = action.stream;
}

static void welcome(dt_agent_t *agent, uint64_t stream, int64_t now_ns)
{
    Dtorch__V1__WorkerWelcome message = DTORCH__V1__WORKER_WELCOME__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    char name[] = "lab", build[] = "b";
    message.version = &version;
    message.build = build;
    message.cluster_id = (ProtobufCBinaryData){sizeof identity, identity};
    message.cluster_name = name;
    message.epoch = 1;
    message.stream = 1;
    message.heartbeat_ms = 250;
    message.suspect_beats = 3;
    message.dead_beats = 8;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_WELCOME;
    down.welcome = &message;
    DO(dt_agent_received(agent, stream, &down, now_ns));
}

static void beat(dt_agent_t *agent, uint64_t stream, int64_t now_ns)
{
    Dtorch__V1__Beat message = DTORCH__V1__BEAT__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    message.sequence = 1;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_BEAT;
    down.beat = &message;
    DO(dt_agent_received(agent, stream, &down, now_ns));
}

/* The inventory or the engine's event inside a packed message, given to the agent. */
static void give(dt_agent_t *agent, const uint8_t *bytes, size_t size, int64_t now_ns)
{
    dt_error_t err = {0};
    Dtorch__V1__WorkerUp *up = dtorch__v1__worker_up__unpack(NULL, size, bytes);
    cr_assert(up);
    dt_status_t status = up->kind_case == DTORCH__V1__WORKER_UP__KIND_INVENTORY
                             ? IN(dt_agent_set_inventory(agent, up->inventory, now_ns, &err))
                             : IN(dt_agent_engine_event(agent, up->engine, now_ns, &err));
    cr_assert(may_be(status), "%s", err.text);
    dtorch__v1__worker_up__free_unpacked(up, NULL);
}

static void worker(void)
{
    dt_agent_options_t options = {.struct_size = sizeof options,
                                  .node_id = {1},
                                  .incarnation = 7,
                                  .seed = 3,
                                  .node_name = "w0",
                                  .boot_id = "01234567-0123-0123-0123-012345678901",
                                  .config_hash = "0123456789abcdef",
                                  .address_count = 1};
    dt_agent_t *agent = NULL;
    dt_agent_view_t view;
    dt_error_t err = {0};
    uint8_t bytes[2048];
    int64_t now_ns = 1000000 * MS;
    uint64_t stream = 0, connected = 0;
    dtorch__v1__protocol_version__init(&version);
    version.major = DT_WIRE_VERSION_MAJOR;
    dt_status_t status = IN(dt_agent_create(&options, now_ns, &agent, &err));
    cr_assert(may_be(status));
    if (status != DT_OK)
        return;
    give(agent, bytes, pack_inventory(bytes, 15), now_ns);
    for (int turn = 0; turn < 400; turn++) {
        if (turn == 100)
            give(agent, bytes, pack_engine(bytes, 0), now_ns);
        if (turn == 200)
            memory.chosen = 0; /* memory is there again */
        now_ns += 50 * MS;
        DO(dt_agent_tick(agent, now_ns, 1));
        take_agent_actions(agent, &stream);
        if (stream != connected) {
            connected = stream;
            DO(dt_agent_connected(agent, stream, now_ns, 1));
            take_agent_actions(agent, &stream);
            welcome(agent, stream, now_ns);
        }
        beat(agent, stream, now_ns);
        take_agent_actions(agent, &stream);
        if (turn == 60)
            DO(dt_agent_closed(agent, stream, "cut", now_ns));
    }
    dt_agent_view(agent, now_ns, &view);
    cr_assert(view.state == DT_AGENT_ONLINE, "%s: %s", view.state_text, view.last_error);
    cr_assert_gt(view.beats_sent, 0);
    DO(dt_agent_stop(agent, "end", now_ns));
    take_agent_actions(agent, &stream);
    dt_agent_free(agent);
}

Test(memory, that_runs_out_in_the_workers_core)
{
    cr_assert_gt(run(worker), 20);
}

/* ---- a redistribution between two engines ---- */

#define HANGS_S 120 /* far more than it takes, under any sanitizer */

typedef struct two_engines {
    void *device;
    dt_execrig_t rigs[2];
    dt_execrig_session_t sessions[2];
    dt_board_t *board;
} two_engines_t;

static void engines_open(two_engines_t *two)
{
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = dt_exec_backend_memory(), .threads = 1};
    cr_assert_eq(dt_backend_ref()->device_open(NULL, &options, &two->device, NULL), DT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        dt_execrig_init(&two->rigs[i], dt_backend_ref(), two->device, true);
        dt_execrig_open_on(&two->rigs[i], &two->sessions[i], 1, &i, 1, 1 << 20);
    }
    two->board =
        dt_execrig_join((dt_execrig_session_t *const[]){&two->sessions[0], &two->sessions[1]}, 2);
}

static void engines_close(two_engines_t *two)
{
    for (int i = 0; i < 2; i++) {
        dt_execrig_close(&two->sessions[i]);
        dt_execrig_fini(&two->rigs[i]);
    }
    dt_board_close(two->board);
    dt_backend_ref()->device_close(two->device);
}

/* Half of a vector each, made whole on both; then it is asked for. Returns the future. */
static uint64_t engine_feed(dt_execrig_session_t *s)
{
    static const uint64_t vdevs[] = {0, 1};
    static const int64_t size = 6;
    static const float values[] = {1, 2, 3, 4, 5, 6};
    static dt_record_t record;
    const dt_layout_t shard = {.mesh = 7, .ndim = 1, .placements = {dt_placement_shard(0)}};
    const dt_layout_t whole = {.mesh = 7, .ndim = 1, .placements = {dt_placement_replicate()}};
    dt_signature_tensor_t from = {.layout = shard};
    dt_value_t arg = {.tag = DT_VALUE_TENSOR};
    cr_assert_eq(dt_meta_set(&from.meta, DT_DTYPE_F32, 1, &size, NULL, 0, NULL), DT_OK);
    dt_signature_tensor_t to = {.layout = whole, .meta = from.meta};
    record = (dt_record_t){.kind = DT_RECORD_DEF_MESH};
    record.mesh = (dt_record_mesh_t){.id = 7, .ndim = 1, .sizes = {2}, .vdev_count = 2};
    record.mesh.names[0] = "";
    record.mesh.vdevs = vdevs;
    dt_execrig_put(s, &record);
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.meta = from.meta;
    record.move.layout = shard;
    record.move.output = ++s->tensor;
    record.move.size = sizeof values;
    record.move.bytes = (const uint8_t *)values;
    dt_execrig_put(s, &record);
    const dt_signature_t sig = {.name = "dtorch::redistribute",
                                .arg_count = 1,
                                .input_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .args = &arg,
                                .inputs = &from,
                                .outputs = &to};
    uint64_t id = s->tensor;
    uint64_t moved = dt_execrig_op(s, dt_execrig_define(s, &sig), &id, 1, true);
    uint64_t future = dt_execrig_fetch(s, moved);
    dt_execrig_flush(s);
    return future;
}

static bool engine_is_through(dt_execrig_session_t *s, bool is_short)
{
    if (is_short)
        DO(dt_execrig_run(s));
    else
        dt_execrig_run(s);
    return atomic_load(&s->channel->executed) == s->sequence - 1;
}

/* The second engine is short of memory; the first one must come to the end all the same. */
static void redistribute_scenario(void)
{
    two_engines_t two;
    bool is_through[2] = {false, false};
    engines_open(&two);
    uint64_t future = engine_feed(&two.sessions[0]);
    (void)engine_feed(&two.sessions[1]);
    time_t begin_s = time(NULL);
    while (!is_through[0] || !is_through[1]) {
        is_through[1] = engine_is_through(&two.sessions[1], true);
        is_through[0] = engine_is_through(&two.sessions[0], false);
        (void)sched_yield();
        cr_assert_lt(time(NULL) - begin_s, HANGS_S, "allocation %u failed, and a peer waits",
                     memory.chosen);
    }
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(&two.sessions[0], future);
    cr_assert_not_null(up, "allocation %u failed, and nobody answers", memory.chosen);
    cr_assert(memory.failed || !up->result->error, "%s", up->result->error->text);
    cr_assert(!up->result->error || up->result->error->text[0]);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    engines_close(&two);
}

Test(memory, that_runs_out_on_one_engine_of_a_redistribution_holds_no_other)
{
    cr_expect_gt(run(redistribute_scenario), 10);
}
