/* Tensors that move between devices, through real daemons: devices of one engine, engines of one
 * worker (shared memory), of two and four workers (sockets). The bits are the same everywhere, who
 * is lost in a redistribution is named to the program, and operators that need nothing of one go on
 * beside it. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS
#define ROWS     7
#define COLUMNS  5
#define COUNT    (ROWS * COLUMNS)

TestSuite(collective, .timeout = 600);

typedef struct cluster {
    dt_testcluster_t *tc;
    dt_session_t *session;
    dt_mesh_t *mesh; /* 4 devices in a row */
} cluster_t;

static void open_cluster_with(cluster_t *c, int workers, const char *devices, const char *lines)
{
    char conf[128];
    const uint32_t four = 4;
    dt_error_t err;
    (void)snprintf(conf, sizeof conf, "Devices=%s\n%s", devices, lines);
    c->tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = workers, .worker_conf = conf});
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(c->tc),
                                    .vdev_count = four,
                                    .program = "collective",
                                    .connect_timeout_ms = PATIENCE};
    cr_assert_eq(dt_connect(&options, &c->session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(c->tc));
    cr_assert_eq(dt_mesh_create(c->session, 1, &four, NULL, NULL, &c->mesh, &err), DT_OK, "%s",
                 err.text);
}

static void open_cluster(cluster_t *c, int workers, const char *devices)
{
    open_cluster_with(c, workers, devices, "");
}

static void close_cluster(cluster_t *c)
{
    dt_mesh_free(c->mesh);
    (void)dt_disconnect(c->session, PATIENCE, NULL);
    cr_assert_eq(dt_testcluster_stop(c->tc), 0);
}

/* So many of the four devices are of engines of their own. */
static uint32_t engines_of(cluster_t *c)
{
    dt_binding_t bindings[4];
    uint32_t count;
    uint32_t engines = 0;
    cr_assert_eq(dt_session_bindings(c->session, bindings, 4, &count), DT_OK);
    for (uint32_t i = 0; i < count; i++) {
        bool is_new = true;
        for (uint32_t k = 0; k < i; k++)
            is_new &= strcmp(bindings[i].node, bindings[k].node) != 0 ||
                      bindings[i].device != bindings[k].device;
        engines += is_new;
    }
    return engines;
}

static dt_placement_t shard(uint8_t dim)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .dim = dim, .unit = 1, .groups = 1};
}

static dt_placement_t replicate(void)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_REPLICATE};
}

static dt_tensor_t *put(cluster_t *c, const float *data, dt_placement_t placement)
{
    const int64_t sizes[] = {ROWS, COLUMNS};
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 2,
                          .sizes = sizes,
                          .data = data,
                          .mesh = c->mesh,
                          .placements = &placement};
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    cr_assert_eq(dt_tensor_upload(c->session, &upload, &tensor, &err), DT_OK, "%s", err.text);
    return tensor;
}

static dt_tensor_t *move(cluster_t *c, dt_tensor_t *tensor, dt_placement_t placement)
{
    dt_tensor_t *moved = NULL;
    dt_error_t err;
    cr_assert_eq(dt_redistribute(tensor, c->mesh, &placement, &moved, &err), DT_OK, "%s", err.text);
    return moved;
}

static void expect(cluster_t *c, dt_tensor_t *tensor, const float *wanted, const char *what)
{
    static dt_failure_t failure;
    float is[COUNT];
    cr_assert_eq(dt_tensor_read(tensor, is, sizeof is, &failure), DT_OK, "%s: %s %s\n%s", what,
                 failure.kind, failure.text, dt_testcluster_logs(c->tc));
    cr_assert_eq(memcmp(is, wanted, sizeof is), 0, "%s: not the same bits\n%s", what,
                 dt_testcluster_logs(c->tc));
}

/* Every pair of whole and cut. */
static void move_around(cluster_t *c, const float *data)
{
    const dt_placement_t all[] = {replicate(), shard(0), shard(1)};
    for (size_t a = 0; a < 3; a++) {
        dt_tensor_t *from = put(c, data, all[a]);
        for (size_t b = 0; b < 3; b++) {
            char what[64];
            dt_tensor_t *to = move(c, from, all[b]);
            (void)snprintf(what, sizeof what, "from %zu to %zu", a, b);
            expect(c, to, data, what);
            dt_tensor_free(to);
        }
        dt_tensor_free(from);
    }
}

/* Parts that are summed: a product over a dimension that is cut. */
static void sum_parts(cluster_t *c, const float *data, float *ret_product)
{
    static dt_failure_t failure;
    dt_tensor_t *columns = put(c, data, shard(1)); /* (7, 5), its second dimension cut */
    dt_tensor_t *turned = dt_clienttest_call(
        c->session, "aten::t", (dt_value_t[]){dt_arg_tensor(columns)}, 1); /* (5, 7), its first */
    dt_tensor_t *product = dt_clienttest_call2(c->session, "aten::mm", columns, turned);
    dt_tensor_t *whole = move(c, product, replicate());
    dt_tensor_t *cut = move(c, product, shard(0));
    float again[ROWS * ROWS];
    cr_assert_eq(dt_tensor_read(whole, ret_product, sizeof again, &failure), DT_OK, "%s\n%s",
                 failure.text, dt_testcluster_logs(c->tc));
    cr_assert_eq(dt_tensor_read(cut, again, sizeof again, &failure), DT_OK, "%s", failure.text);
    cr_expect_eq(memcmp(ret_product, again, sizeof again), 0,
                 "scattered sums have other bits than whole ones");
    dt_tensor_free(columns);
    dt_tensor_free(turned);
    dt_tensor_free(product);
    dt_tensor_free(whole);
    dt_tensor_free(cut);
}

static void fill(float *data)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i * 7919 % 1009) * 0.37F - 100;
}

Test(collective, moves_have_the_same_bits_on_one_engine_on_several_and_between_workers)
{
    const struct {
        int workers;
        const char *devices;
        uint32_t engines;
    } shapes[] = {{1, "ref:1", 1}, {1, "ref:4", 4}, {2, "ref:2", 4}, {4, "ref:1", 4}};
    float data[COUNT];
    float first[ROWS * ROWS];
    fill(data);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        cluster_t c;
        float product[ROWS * ROWS];
        open_cluster(&c, shapes[i].workers, shapes[i].devices);
        cr_expect_eq(engines_of(&c), shapes[i].engines);
        move_around(&c, data);
        sum_parts(&c, data, product);
        if (i == 0)
            memcpy(first, product, sizeof first);
        cr_expect_eq(memcmp(first, product, sizeof first), 0, "shape %zu has other bits", i);
        close_cluster(&c);
    }
}

/* A redistribution whose member died ends with an error that names both. */
static void lose_one(int workers, const char *devices, int victim)
{
    static dt_failure_t failure;
    cluster_t c;
    float data[COUNT];
    float is[COUNT];
    fill(data);
    open_cluster(&c, workers, devices);
    dt_tensor_t *from = put(&c, data, shard(0));
    dt_tensor_t *before = move(&c, from, replicate());
    expect(&c, before, data, "before");
    dt_testcluster_kill(c.tc, victim, SIGKILL);
    dt_tensor_t *to = move(&c, from, replicate());
    cr_expect_neq(dt_tensor_read(to, is, sizeof is, &failure), DT_OK);
    cr_expect(failure.text[0] != '\0');
    dt_tensor_free(from);
    dt_tensor_free(before);
    dt_tensor_free(to);
    close_cluster(&c);
}

Test(collective, a_worker_that_is_killed_holds_nobody)
{
    lose_one(2, "ref:2", 1);
}

typedef struct wanted_engine {
    int32_t device;
    pid_t pid;
} wanted_engine_t;

/* The engine of a device that works for the session, as the controller knows it. */
static bool find_engine(dt_testcluster_t *tc, void *arg)
{
    wanted_engine_t *wanted = arg;
    Dtorch__V1__NodeList *nodes = dt_testcluster_nodes(tc);
    bool is_there = false;
    for (size_t n = 0; nodes && n < nodes->n_nodes; n++)
        for (size_t i = 0; i < nodes->nodes[n]->n_engines; i++) {
            const Dtorch__V1__Engine *engine = nodes->nodes[n]->engines[i];
            if (engine->device != wanted->device ||
                engine->state != DTORCH__V1__ENGINE__STATE__BUSY)
                continue;
            wanted->pid = (pid_t)engine->pid;
            is_there = true;
        }
    if (nodes)
        dtorch__v1__node_list__free_unpacked(nodes, NULL);
    return is_there;
}

static pid_t engine_of(cluster_t *c, int32_t device)
{
    wanted_engine_t wanted = {.device = device};
    cr_assert(dt_testcluster_wait(c->tc, find_engine, &wanted, PATIENCE), "%s",
              dt_testcluster_logs(c->tc));
    return wanted.pid;
}

static pid_t stop_engine(cluster_t *c, int32_t device)
{
    pid_t pid = engine_of(c, device);
    cr_assert_eq(kill(pid, SIGSTOP), 0);
    return pid;
}

/* It is stopped, so the redistribution cannot end; the others wait for it when it dies. */
static void kill_in_the_middle(int workers, const char *devices)
{
    static dt_failure_t failure;
    cluster_t c;
    float data[COUNT];
    float is[COUNT];
    fill(data);
    open_cluster(&c, workers, devices);
    dt_tensor_t *from = put(&c, data, shard(0));
    dt_tensor_t *before = move(&c, from, replicate());
    expect(&c, before, data, "before");
    pid_t pid = stop_engine(&c, 1);
    dt_tensor_t *to = move(&c, from, replicate());
    dt_future_t *future = NULL;
    dt_error_t err;
    cr_assert_eq(dt_fetch(to, &future, &err), DT_OK, "%s", err.text); /* it is sent, and waits */
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_expect_neq(dt_future_wait(future, PATIENCE, &failure), DT_OK);
    cr_expect_neq(failure.error.code, DT_ERR_TIMEOUT, "it hangs\n%s", dt_testcluster_logs(c.tc));
    cr_expect(failure.text[0] != '\0' && failure.node[0] == 'w', "%s %s: %s", failure.kind,
              failure.node, failure.text);
    cr_expect_neq(dt_tensor_read(from, is, sizeof is, &failure), DT_OK, "its part is lost");
    dt_future_free(future);
    dt_tensor_free(from);
    dt_tensor_free(before);
    dt_tensor_free(to);
    close_cluster(&c);
}

Test(collective, an_engine_that_is_killed_in_the_middle_ends_it_for_all)
{
    kill_in_the_middle(1, "ref:4");
    kill_in_the_middle(2, "ref:2");
}

/* ---- what goes on beside them ---- */

/* How many operators of a name the session's nodes have executed, as they report. */
typedef struct executed {
    uint64_t session;
    const char *name;
    uint64_t wanted;
} executed_t;

static bool has_executed(dt_testcluster_t *tc, void *arg)
{
    const executed_t *what = arg;
    Dtorch__V1__GetJobRequest request = DTORCH__V1__GET_JOB_REQUEST__INIT;
    uint8_t *reply;
    size_t size;
    uint64_t count = 0;
    request.id = what->session;
    if (dt_testcluster_admin_call(tc, "GetJob", &request.base, &reply, &size, NULL) != DT_OK)
        return false;
    Dtorch__V1__JobDetail *job = dtorch__v1__job_detail__unpack(NULL, size, reply);
    for (size_t i = 0; job && i < job->n_operators; i++)
        if (strcmp(job->operators[i]->name, what->name) == 0)
            count = job->operators[i]->count;
    if (job)
        dtorch__v1__job_detail__free_unpacked(job, NULL);
    free(reply);
    return count >= what->wanted;
}

/* A tensor on the first device alone, and twice of it: an operator that needs no other device. */
typedef struct alone {
    dt_tensor_t *input, *twice;
} alone_t;

static void begin_alone(cluster_t *c, const float *data, alone_t *ret_alone)
{
    ret_alone->input = dt_clienttest_f32(c->session, 2, (const int64_t[]){ROWS, COLUMNS}, data);
    ret_alone->twice =
        dt_clienttest_call2(c->session, "aten::add.Tensor", ret_alone->input, ret_alone->input);
}

static void end_alone(cluster_t *c, const float *data, alone_t *alone)
{
    float twice[COUNT];
    for (int i = 0; i < COUNT; i++)
        twice[i] = 2 * data[i];
    expect(c, alone->twice, twice, "the operator beside it");
    dt_tensor_free(alone->input);
    dt_tensor_free(alone->twice);
}

static void await_alone(cluster_t *c)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(c->session, &info), DT_OK);
    executed_t what = {info.session, "aten::add.Tensor", 1};
    cr_expect(dt_testcluster_wait(c->tc, has_executed, &what, PATIENCE),
              "the operator waited for a move that it does not need\n%s",
              dt_testcluster_logs(c->tc));
}

static void hold_up(int workers, const char *devices, const char *lines, bool goes_on)
{
    cluster_t c;
    float data[COUNT];
    alone_t alone;
    dt_tensor_t *moved[3];
    fill(data);
    open_cluster_with(&c, workers, devices, lines);
    dt_tensor_t *from = put(&c, data, shard(0));
    dt_tensor_t *before = move(&c, from, replicate());
    expect(&c, before, data, "before");
    pid_t pid = stop_engine(&c, 1);
    for (int i = 0; i < 3; i++)
        moved[i] = move(&c, from, i == 1 ? shard(1) : replicate());
    dt_tensor_free(from); /* which holds up nobody */
    begin_alone(&c, data, &alone);
    if (goes_on)
        await_alone(&c);
    cr_assert_eq(kill(pid, SIGCONT), 0);
    for (int i = 0; i < 3; i++) {
        expect(&c, moved[i], data, "held up");
        dt_tensor_free(moved[i]);
    }
    end_alone(&c, data, &alone);
    dt_tensor_free(before);
    close_cluster(&c);
}

Test(collective, an_operator_goes_on_beside_a_move_that_is_held_up)
{
    hold_up(1, "ref:4", "", true);
    hold_up(2, "ref:2", "", true);
    hold_up(1, "ref:4", "Isolation=session\n", true);
    hold_up(1, "ref:4", "Isolation=device\n", true);
    hold_up(1, "ref:4", "Overlap=no\n", false);
}

/* Moves are queued behind the one that hangs, and an operator has gone on, when a member dies. */
Test(collective, an_engine_that_is_killed_ends_all_that_is_queued)
{
    static const char *const lines[] = {"", "Isolation=session\n", "Isolation=device\n",
                                        "Overlap=no\n"};
    float data[COUNT];
    float is[COUNT];
    fill(data);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        static dt_failure_t failure;
        cluster_t c;
        alone_t alone;
        dt_tensor_t *moved[3];
        open_cluster_with(&c, 1, "ref:4", lines[i]);
        dt_tensor_t *from = put(&c, data, shard(0));
        pid_t pid = stop_engine(&c, 1);
        for (int k = 0; k < 3; k++)
            moved[k] = move(&c, from, replicate());
        begin_alone(&c, data, &alone);
        if (i + 1 < sizeof lines / sizeof lines[0])
            await_alone(&c);
        cr_assert_eq(kill(pid, SIGKILL), 0);
        for (int k = 0; k < 3; k++) {
            cr_expect_neq(dt_tensor_read(moved[k], is, sizeof is, &failure), DT_OK);
            cr_expect(failure.text[0] != '\0');
            dt_tensor_free(moved[k]);
        }
        end_alone(&c, data, &alone);
        dt_tensor_free(from);
        close_cluster(&c);
    }
}

Test(collective, a_program_that_leaves_with_moves_queued_leaves_nothing)
{
    cluster_t c;
    float data[COUNT];
    alone_t alone;
    fill(data);
    open_cluster(&c, 1, "ref:4");
    dt_tensor_t *from = put(&c, data, shard(0));
    pid_t pid = stop_engine(&c, 1);
    for (int i = 0; i < 3; i++)
        dt_tensor_free(move(&c, from, replicate()));
    begin_alone(&c, data, &alone);
    await_alone(&c);
    dt_tensor_free(alone.input);
    dt_tensor_free(alone.twice);
    dt_tensor_free(from);
    dt_mesh_free(c.mesh);
    (void)dt_disconnect(c.session, 0, NULL);
    cr_assert_eq(kill(pid, SIGCONT), 0);
    cr_assert_eq(dt_testcluster_stop(c.tc), 0);
}

/* The engine of the first device has begun a move, and waits for one that stands still, when it is
 * killed: the program hears what the engine was in, and where. */
static void kill_one_that_moves(const char *lines)
{
    static dt_failure_t failure;
    cluster_t c;
    float data[COUNT];
    float is[COUNT];
    alone_t alone;
    fill(data);
    open_cluster_with(&c, 1, "ref:4", lines);
    dt_tensor_t *from = put(&c, data, shard(0));
    pid_t stopped = stop_engine(&c, 1);
    dt_tensor_t *to = move(&c, from, replicate());
    begin_alone(&c, data, &alone);
    await_alone(&c); /* behind the move, so that has begun */
    cr_assert_eq(kill(engine_of(&c, 0), SIGKILL), 0);
    cr_expect_neq(dt_tensor_read(to, is, sizeof is, &failure), DT_OK);
    cr_expect_str_eq(failure.kind, "EngineLost");
    cr_expect_str_eq(failure.operator_name, "dtorch::redistribute");
    cr_expect_str_eq(failure.node, "w0");
    cr_expect_gt(failure.sequence, 0);
    dt_tensor_free(alone.input);
    dt_tensor_free(alone.twice);
    dt_tensor_free(from);
    dt_tensor_free(to);
    cr_assert_eq(kill(stopped, SIGCONT), 0);
    dt_mesh_free(c.mesh);
    dt_status_t status = dt_disconnect(c.session, PATIENCE, &failure);
    cr_expect_neq(status, DT_ERR_TIMEOUT, "those that live have not ended the move");
    cr_assert_eq(dt_testcluster_stop(c.tc), 0);
}

Test(collective, an_engine_that_is_killed_in_a_move_names_it)
{
    kill_one_that_moves("");
    kill_one_that_moves("Isolation=session\n");
    kill_one_that_moves("Isolation=device\n");
}
