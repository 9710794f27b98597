/* The operator stream through real daemons: a test's own client, the controller, the agent, engines
 * with a backend of the tests' own. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "lib/sessionpeer.h"
#include "lib/temptree.h"
#include "lib/testcluster.h"

TestSuite(session, .timeout = 600);

typedef struct rig {
    dt_temptree_t tree;
    dt_testcluster_t *tc;
} rig_t;

static const int64_t four[] = {4};
static const float ones[] = {1, 1, 1, 1};
static const float ramp[] = {1, 2, 3, 4};

static void begin(rig_t *rig, const char *more)
{
    char target[512];
    char conf[1024];
    const char *so = getenv("DT_TEST_SO");
    (void)snprintf(target, sizeof target, "%s/backend_fake.so", so ? so : "");
    dt_temptree_init(&rig->tree);
    dt_temptree_link(&rig->tree, "backends/dtorch-backend-fake.so", target);
    (void)snprintf(conf, sizeof conf, "Devices=fake\nEngines=1\nBackends=%s/backends\n%s",
                   rig->tree.root, more);
    rig->tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = conf, .use_proxy = true});
}

static void end(rig_t *rig)
{
    cr_assert_eq(dt_testcluster_stop(rig->tc), 0);
    dt_temptree_fini(&rig->tree);
}

static dt_sessionpeer_t *connect_to(rig_t *rig, uint64_t memory_bytes)
{
    dt_sessionpeer_t *peer =
        dt_sessionpeer_open(dt_testcluster_controller_socket(rig->tc), "", 1, memory_bytes);
    cr_assert_not_null(peer, "%s", dt_testcluster_logs(rig->tc));
    return peer;
}

static uint64_t upload4(dt_sessionpeer_t *peer, const float *values)
{
    return dt_sessionpeer_upload(peer, DT_DTYPE_F32, 1, four, values);
}

static uint64_t op2(dt_sessionpeer_t *peer, uint32_t sig, uint64_t a, uint64_t b)
{
    return dt_sessionpeer_op(peer, sig, (uint64_t[]){a, b}, 2, true);
}

static void expect_value(rig_t *rig, dt_sessionpeer_t *peer, uint64_t tensor, float first,
                         float step)
{
    float is[4];
    char kind[64];
    cr_assert(dt_sessionpeer_read(peer, tensor, is, sizeof is, kind, sizeof kind), "%s\n%s", kind,
              dt_testcluster_logs(rig->tc));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(is[i], first + step * (float)i);
}

static Dtorch__V1__SessionDown *failing(rig_t *rig, dt_sessionpeer_t *peer, uint64_t tensor)
{
    Dtorch__V1__SessionDown *down =
        dt_sessionpeer_result(peer, dt_sessionpeer_fetch(peer, tensor), DT_TESTCLUSTER_PATIENCE_MS);
    cr_assert_not_null(down, "%s", dt_testcluster_logs(rig->tc));
    cr_assert_not_null(down->result->error, "a value came\n%s", dt_testcluster_logs(rig->tc));
    return down;
}

static void expect_error(rig_t *rig, dt_sessionpeer_t *peer, uint64_t tensor, const char *kind)
{
    Dtorch__V1__SessionDown *down = failing(rig, peer, tensor);
    cr_assert_str_eq(down->result->error->kind, kind, "%s: %s", down->result->error->kind,
                     down->result->error->text);
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

/* ---- tests ---- */

Test(session, sums_come_back_through_all_processes)
{
    rig_t rig;
    begin(&rig, "");
    dt_sessionpeer_t *peer = connect_to(&rig, 0);
    uint32_t add = dt_sessionpeer_define_f32(peer, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint64_t a = upload4(peer, ones);
    uint64_t sum = upload4(peer, ramp);
    for (int i = 0; i < 20000; i++) { /* several frames, more than a node's window */
        uint64_t next = op2(peer, add, sum, a);
        dt_sessionpeer_free(peer, sum);
        sum = next;
        if (i % 1000 == 999)
            expect_value(&rig, peer, sum, (float)(i + 2), 1);
    }
    dt_sessionpeer_close(peer);
    end(&rig);
}

Test(session, sessions_in_one_engine_do_not_see_each_other_and_one_without_memory_harms_none)
{
    rig_t rig;
    begin(&rig, "Isolation=device\n");
    dt_sessionpeer_t *a = connect_to(&rig, 2 << 20);
    dt_sessionpeer_t *b = connect_to(&rig, 0);
    uint32_t add_a = dt_sessionpeer_define_f32(a, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint32_t add_b = dt_sessionpeer_define_f32(b, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint64_t in_a = upload4(a, ones);
    uint64_t in_b = upload4(b, ramp);
    cr_assert_eq(in_a, in_b);
    uint64_t first = op2(a, add_a, in_a, in_a);
    expect_value(&rig, a, first, 2, 0);
    expect_value(&rig, b, op2(b, add_b, in_b, in_b), 2, 2);
    uint64_t last = first;
    for (uint32_t i = 1; i <= 40000; i++) { /* 64 bytes each: 2 MiB are over at 32,768 */
        last = op2(a, add_a, in_a, in_a);
        if (i % 10000 == 0) /* so that there is credit */
            expect_value(&rig, a, in_a, 1, 0);
    }
    expect_error(&rig, a, last, "OutOfMemoryError");
    expect_value(&rig, b, op2(b, add_b, in_b, in_b), 2, 2);
    dt_sessionpeer_free(a, first);
    expect_value(&rig, a, op2(a, add_a, in_a, in_a), 2, 0);
    dt_sessionpeer_close(a);
    expect_value(&rig, b, op2(b, add_b, in_b, in_b), 2, 2);
    dt_sessionpeer_close(b);
    end(&rig);
}

/* How many events of a name there are. */
static size_t count_events(rig_t *rig, const char *name)
{
    Dtorch__V1__EventList *list = dt_testcluster_events(rig->tc, 0);
    size_t count = 0;
    cr_assert_not_null(list);
    for (size_t i = 0; i < list->n_events; i++)
        count += strcmp(list->events[i]->name, name) == 0;
    dtorch__v1__event_list__free_unpacked(list, NULL);
    return count;
}

/* The operator dies of `signo` in one engine of a device; a session in another engine of the same
 * device is in the middle of its work and notices nothing. */
static void die_of(const char *operator_name, int signo, const char *word)
{
    rig_t rig;
    begin(&rig, "Isolation=session\n");
    dt_sessionpeer_t *bad = connect_to(&rig, 0);
    dt_sessionpeer_t *good = connect_to(&rig, 0);
    uint32_t crash = dt_sessionpeer_define_f32(bad, operator_name, 1, 1, four, 0, 0);
    uint32_t add = dt_sessionpeer_define_f32(good, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint32_t add_bad = dt_sessionpeer_define_f32(bad, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint64_t a = upload4(bad, ones);
    uint64_t b = upload4(good, ones), sum = b;
    expect_value(&rig, good, b, 1, 0);
    expect_value(&rig, bad, a, 1, 0);
    for (int i = 0; i < 500; i++) /* some before it, some while it happens, some after it */
        sum = op2(good, add, sum, b);
    dt_sessionpeer_flush(good);
    uint64_t gone = dt_sessionpeer_op(bad, crash, &a, 1, true);
    uint64_t after = op2(bad, add_bad, gone, gone);
    dt_sessionpeer_flush(bad);
    for (int i = 0; i < 500; i++)
        sum = op2(good, add, sum, b);
    dt_sessionpeer_flush(good);
    for (int i = 0; i < 2; i++) { /* what depends on it has the same cause */
        Dtorch__V1__SessionDown *down = failing(&rig, bad, i ? after : gone);
        const Dtorch__V1__OperatorError *error = down->result->error;
        cr_assert_str_eq(error->kind, "EngineLost", "%s", error->text);
        cr_assert_str_eq(error->operator_name, operator_name);
        cr_assert_eq(error->source_code, signo);
        cr_assert_str_eq(error->node, "w0");
        cr_assert_eq(error->device, 0);
        cr_assert_eq(error->vdev, 0);
        cr_assert_eq(error->sequence, 5, "record %lu", (unsigned long)error->sequence);
        cr_assert_not_null(strstr(error->text, word), "%s", error->text);
        dtorch__v1__session_down__free_unpacked(down, NULL);
    }
    expect_value(&rig, good, sum, 1001, 0);
    cr_assert_eq(count_events(&rig, "session-fault"), 1, "the other session was told something");
    expect_error(&rig, bad, a, "EngineLost");
    a = upload4(bad, ramp); /* on another engine now */
    expect_value(&rig, bad, op2(bad, add_bad, a, a), 2, 2);
    dt_sessionpeer_close(bad);
    dt_sessionpeer_close(good);
    end(&rig);
}

Test(session, an_operator_that_divides_by_zero_ends_its_engine_only_and_is_named)
{
    die_of("fake::crash", SIGFPE, "SIGFPE");
}

Test(session, an_operator_that_writes_where_it_must_not_ends_its_engine_only_and_is_named)
{
    die_of("fake::segv", SIGSEGV, "SIGSEGV");
}

static bool engine_is_busy(const Dtorch__V1__Node *node, void *arg)
{
    pid_t *pid = arg;
    for (size_t i = 0; i < node->n_engines; i++)
        if (node->engines[i]->state == DTORCH__V1__ENGINE__STATE__BUSY)
            *pid = (pid_t)node->engines[i]->pid;
    return *pid != 0;
}

Test(session, an_engine_that_is_killed_is_a_typed_error_and_the_session_goes_on)
{
    rig_t rig;
    pid_t pid = 0;
    begin(&rig, "");
    dt_sessionpeer_t *peer = connect_to(&rig, 0);
    uint32_t add = dt_sessionpeer_define_f32(peer, "aten::add.Tensor", 2, 1, four, 0, 0);
    uint64_t a = upload4(peer, ones);
    expect_value(&rig, peer, op2(peer, add, a, a), 2, 0);
    cr_assert(dt_testcluster_wait_node(rig.tc, 0, engine_is_busy, &pid, DT_TESTCLUSTER_PATIENCE_MS),
              "%s", dt_testcluster_logs(rig.tc));
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert(
        dt_testcluster_wait_event(rig.tc, "session-fault", 0, 0, DT_TESTCLUSTER_PATIENCE_MS, NULL),
        "%s", dt_testcluster_logs(rig.tc));
    expect_error(&rig, peer, op2(peer, add, a, a), "EngineLost");
    uint64_t b = upload4(peer, ramp);
    expect_value(&rig, peer, op2(peer, add, b, b), 2, 2);
    dt_sessionpeer_close(peer);
    end(&rig);
}

Test(session, an_operator_that_never_returns_is_ended_and_named)
{
    rig_t rig;
    begin(&rig, "OperationTimeout=500ms\n");
    dt_sessionpeer_t *peer = connect_to(&rig, 0);
    uint32_t hang = dt_sessionpeer_define_f32(peer, "fake::hang", 1, 1, four, 0, 0);
    uint64_t a = upload4(peer, ones);
    Dtorch__V1__SessionDown *down = failing(&rig, peer, dt_sessionpeer_op(peer, hang, &a, 1, true));
    cr_assert_str_eq(down->result->error->kind, "EngineLost");
    cr_assert_str_eq(down->result->error->operator_name, "fake::hang");
    dtorch__v1__session_down__free_unpacked(down, NULL);
    dt_sessionpeer_close(peer);
    end(&rig);
}

/* Ask what an operator would return. Gives the answer. */
static Dtorch__V1__SessionDown *ask(rig_t *rig, dt_sessionpeer_t *peer, uint64_t number,
                                    const char *name)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SigQuery query = DTORCH__V1__SIG_QUERY__INIT;
    const dt_value_t arg = {.tag = DT_VALUE_TENSOR};
    dt_signature_tensor_t input = {0};
    dt_error_t err = {0};
    dt_buf_t body;
    cr_assert_eq(dt_meta_set(&input.meta, DT_DTYPE_F32, 1, four, NULL, 0, &err), DT_OK);
    const dt_signature_t sig = {.name = name,
                                .arg_count = 1,
                                .input_count = 1,
                                .flags = DT_SIGNATURE_UNKNOWN,
                                .args = &arg,
                                .inputs = &input};
    dt_buf_init(&body, 4096);
    cr_assert_eq(dt_signature_encode(&sig, &body, &err), DT_OK, "%s", err.text);
    query.query = number;
    query.signature.data = body.data;
    query.signature.len = body.len;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_QUERY;
    up.query = &query;
    dt_sessionpeer_send(peer, &up);
    dt_buf_fini(&body);
    Dtorch__V1__SessionDown *down = dt_sessionpeer_wait(peer, DTORCH__V1__SESSION_DOWN__KIND_ANSWER,
                                                        DT_TESTCLUSTER_PATIENCE_MS);
    cr_assert_not_null(down, "%s", dt_testcluster_logs(rig->tc));
    cr_assert_eq(down->answer->query, number);
    return down;
}

Test(session, metadata_is_answered_while_an_operator_runs)
{
    rig_t rig;
    begin(&rig, "OperationTimeout=30s\n");
    dt_sessionpeer_t *peer = connect_to(&rig, 0);
    uint32_t hang = dt_sessionpeer_define_f32(peer, "fake::hang", 1, 1, four, 0, 0);
    uint64_t a = upload4(peer, ones);
    (void)dt_sessionpeer_op(peer, hang, &a, 1, true);
    dt_sessionpeer_flush(peer);
    Dtorch__V1__SessionDown *down = ask(&rig, peer, 1, "aten::view");
    cr_assert_null(down->answer->error);
    dt_arena_t arena;
    dt_signature_t *sig;
    dt_cursor_t cursor = {down->answer->signature.data,
                          down->answer->signature.data + down->answer->signature.len, 0};
    dt_arena_init(&arena, 1 << 20);
    cr_assert_eq(dt_signature_decode(&cursor, &arena, &sig), 0);
    cr_assert_eq(sig->output_count, 1);
    cr_assert_eq(sig->outputs[0].alias, DT_ALIAS_VIEW);
    cr_assert_eq(sig->flags & DT_SIGNATURE_UNKNOWN, 0);
    dt_arena_fini(&arena);
    dtorch__v1__session_down__free_unpacked(down, NULL);
    down = ask(&rig, peer, 2, "aten::no_such");
    cr_assert_not_null(down->answer->error);
    cr_assert_str_eq(down->answer->error->kind, "NotImplementedError");
    dtorch__v1__session_down__free_unpacked(down, NULL);
    down = ask(&rig, peer, 3, "fake::slow");
    cr_assert(down->answer->needs_execution);
    dtorch__v1__session_down__free_unpacked(down, NULL);
    dt_sessionpeer_close(peer);
    end(&rig);
}

Test(session, a_link_that_is_cut_loses_and_repeats_nothing)
{
    rig_t rig;
    begin(&rig, "");
    dt_sessionpeer_t *peer = connect_to(&rig, 0);
    uint32_t write =
        dt_sessionpeer_define_f32(peer, "aten::add_.Tensor", 2, 1, four, DT_ALIAS_IN_PLACE, 0);
    uint64_t a = upload4(peer, ramp);
    uint64_t one = upload4(peer, ones);
    float total = 1;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 500; i++, total++)
            (void)dt_sessionpeer_op(peer, write, (uint64_t[]){a, one}, 2, false);
        uint64_t future = dt_sessionpeer_fetch(peer, a);
        dt_testcluster_link_cut(rig.tc, 0);
        dt_testcluster_link_pass(rig.tc, 0);
        Dtorch__V1__SessionDown *down =
            dt_sessionpeer_result(peer, future, DT_TESTCLUSTER_PATIENCE_MS);
        cr_assert_not_null(down, "round %d\n%s", round, dt_testcluster_logs(rig.tc));
        cr_assert_null(down->result->error, "round %d: %s\n%s", round, down->result->error->text,
                       dt_testcluster_logs(rig.tc));
        float is[4];
        memcpy(is, down->result->value.data, sizeof is);
        cr_assert_eq(is[0], total, "round %d: %g, not %g", round, (double)is[0], (double)total);
        dtorch__v1__session_down__free_unpacked(down, NULL);
    }
    dt_sessionpeer_close(peer);
    end(&rig);
}
