/* dtorchctl job, tensor, top, and recorded sessions, against real daemons. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/clienttest.h"
#include "lib/sessionpeer.h"
#include "wire/recording.h"

#define WORD_MAX    24
#define PATIENCE_MS DT_TESTCLUSTER_PATIENCE_MS

TestSuite(ctl_job, .timeout = 600);

/* Run "dtorchctl LINE", words with one blank between; ^ stands for a blank within a word. */
static dt_testrun_t run(dt_testcluster_t *tc, const char *line)
{
    char variable[600], *text = strdup(line), *rest;
    const char *env[] = {variable, "NO_COLOR=1", "TZ=UTC", NULL};
    const char *args[WORD_MAX + 1] = {NULL};
    size_t count = 0;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        cr_assert_lt(count, WORD_MAX);
        for (char *c = word; *c; c++)
            *c = *c == '^' ? ' ' : *c;
        args[count++] = word;
    }
    (void)snprintf(variable, sizeof variable, "DTORCH_ADMIN_SOCKET=%s",
                   dt_testcluster_admin_socket(tc));
    dt_testrun_t said = dt_testrun_program("dtorchctl", args, env);
    cr_assert(said.out && said.err, "no output of: %s", line);
    free(text);
    return said;
}

/* A line must give a code, and hold words (NULL: any, "": none). */
static void check(dt_testcluster_t *tc, const char *line, int code, const char *out,
                  const char *err)
{
    dt_testrun_t said = run(tc, line);
    const char *is[] = {said.out, said.err}, *wanted[] = {out, err};
    for (size_t i = 0; i < 2; i++)
        cr_assert(!wanted[i] || (*wanted[i] ? strstr(is[i], wanted[i]) != NULL : *is[i] == '\0'),
                  "dtorchctl %s: no \"%s\" in:\n%s%s", line, wanted[i], said.out, said.err);
    cr_assert_eq(said.code, code, "dtorchctl %s: %d\n%s%s", line, said.code, said.out, said.err);
    dt_testrun_fini(&said);
}

/* Run a line until it holds `wanted`: what nodes report comes a moment later. */
static void wait_for(dt_testcluster_t *tc, const char *line, const char *wanted)
{
    int64_t until_ms = dt_test_now_ms() + PATIENCE_MS;
    for (;;) {
        dt_testrun_t said = run(tc, line);
        bool is_there = strstr(said.out, wanted) != NULL;
        cr_assert(is_there || dt_test_now_ms() < until_ms, "dtorchctl %s: no \"%s\" in:\n%s%s%s",
                  line, wanted, said.out, said.err, dt_testcluster_logs(tc));
        dt_testrun_fini(&said);
        if (is_there)
            return;
    }
}

static dt_testcluster_t *start_cluster(void)
{
    char conf[128];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    return dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
}

/* ---- a program ---- */

struct program {
    dt_testcluster_t *tc;
    dt_sessionpeer_t *peer;
    unsigned long id;
    uint64_t product;
};

/* A session that has multiplied two matrices and holds them and the product. */
static struct program start(void)
{
    const int64_t sizes[] = {2, 2};
    const float numbers[] = {1, 2, 3, 4};
    float is[4];
    struct program p = {.tc = start_cluster()};
    p.peer = dt_sessionpeer_open(dt_testcluster_controller_socket(p.tc), "", 1, 0);
    cr_assert(p.peer != NULL, "%s", dt_testcluster_logs(p.tc));
    p.id = (unsigned long)dt_sessionpeer_id(p.peer);
    uint32_t mm = dt_sessionpeer_define_f32(p.peer, "aten::mm", 2, 2, sizes, DT_ALIAS_FRESH, 0);
    uint64_t a = dt_sessionpeer_upload(p.peer, DT_DTYPE_F32, 2, sizes, numbers);
    const uint64_t inputs[] = {a, a};
    p.product = dt_sessionpeer_op(p.peer, mm, inputs, 2, true);
    cr_assert(dt_sessionpeer_read(p.peer, p.product, is, sizeof is, NULL, 0), "%s",
              dt_testcluster_logs(p.tc));
    return p;
}

static void stop(struct program *p)
{
    dt_sessionpeer_close(p->peer);
    cr_assert_eq(dt_testcluster_stop(p->tc), 0, "a daemon left something behind");
}

/* The program hears why it is over; what it would say after that goes nowhere. */
static void expect_refusal(struct program *p, const char *words)
{
    Dtorch__V1__SessionDown *down =
        dt_sessionpeer_wait(p->peer, DTORCH__V1__SESSION_DOWN__KIND_REFUSAL, PATIENCE_MS);
    cr_assert(down != NULL && strstr(down->refusal->text, words) != NULL);
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

/* "job show %lu" with the program's number. */
static const char *line_of(const struct program *p, const char *fmt)
{
    static char line[256];
    char *at = strchr(fmt, '#');
    (void)snprintf(line, sizeof line, "%.*s%lu%s", (int)(at - fmt), fmt, p->id, at + 1);
    return line;
}

Test(ctl_job, a_running_program_is_seen_with_its_work)
{
    struct program p = start();
    wait_for(p.tc, line_of(&p, "job ops #"), "aten::mm");
    check(p.tc, "job list", 0, "  live ", "");
    check(p.tc, "job list", 0, "1 job listed.", "");
    check(p.tc, "job", 0, "ID ", "");
    check(p.tc, "job list -o json", 0, "\"kind\":\"JobList\",\"items\":[\n{\"id\":", "");
    check(p.tc, "job list --filter=state=away", 0, "0 of 1 job listed.", "");
    check(p.tc, line_of(&p, "job show #"), 0, "vdev 0 on w0:0", "");
    check(p.tc, line_of(&p, "job #"), 0, "most time aten::mm  1 times", "");
    check(p.tc, line_of(&p, "job show # -o json"), 0, "\"operators\":[{\"name\":\"aten::mm\"", "");
    check(p.tc, line_of(&p, "job ops # -o csv"), 0, "aten::mm,1,", "");
    check(p.tc, line_of(&p, "job errors #"), 0, "0 errors listed.", "");
    check(p.tc, line_of(&p, "tensor list #"), 0, "float32 (2, 2)", "");
    check(p.tc, "tensor list", 0, "2 tensors listed.", "");
    check(p.tc, "top", 0, "  1 job  1 device  ", "");
    check(p.tc, "top -o json", 0, "\"kind\":\"Top\",\"interval_ms\":", "");
    check(p.tc, "report usage", 0, "1 job  1 operators  ", "");
    check(p.tc, "report usage", 0, "1 program listed.", "");
    check(p.tc, line_of(&p, "job cancel # -m test -y"), 0, NULL, NULL);
    expect_refusal(&p, "test");
    check(p.tc, "job list", 0, "0 jobs listed.", "");
    check(p.tc, "report usage -o json", 0, "\"jobs\":1,", ""); /* it stays in the sums */
    check(p.tc, "report usage -o json", 0, "\"operators\":1,", "");
    stop(&p);
}

/* What `top` draws on a terminal of script(1) while `keys` are typed; until the next call. */
static const char *top_on_a_terminal(const struct program *p, const char *keys)
{
    static char drawn[1 << 18];
    char command[1024];
    (void)snprintf(command, sizeof command,
                   "printf '%s' | env NO_COLOR=1 TERM=xterm COLUMNS=90 LINES=30 "
                   "DTORCH_ADMIN_SOCKET=%s script -qec '%s/dtorchctl top' /dev/null",
                   keys, dt_testcluster_admin_socket(p->tc), getenv("DT_TEST_BIN"));
    FILE *screen = popen(command, "r"); /* NOLINT(cert-env33-c): the test's own words */
    cr_assert_not_null(screen);
    drawn[fread(drawn, 1, sizeof drawn - 1, screen)] = '\0';
    cr_assert_eq(pclose(screen), 0, "top failed:\n%s", drawn);
    return drawn;
}

Test(ctl_job, top_on_a_terminal_obeys_keys)
{
    struct program p = start();
    wait_for(p.tc, line_of(&p, "job ops #"), "aten::mm");
    const char *drawn = top_on_a_terminal(&p, "m\\tq");
    cr_assert_not_null(strstr(drawn, "DEVICE"), "%s", drawn);
    const char *sorted = strstr(drawn, "[m memory]");
    cr_assert_not_null(sorted, "%s", drawn);
    const char *operators = strstr(sorted, "Operators of job");
    cr_assert(operators && strstr(operators, "aten::mm"), "%s", drawn);
    cr_assert_not_null(strstr(operators, "\033[?1049l"), "%s",
                       drawn); /* the screen is given back */
    stop(&p);
}

Test(ctl_job, more_tensors_than_a_message_holds_are_all_listed)
{
    const int64_t sizes[] = {2, 2}, longer[] = {3};
    const float numbers[] = {1, 2, 3};
    struct program p = start();
    uint32_t mm = dt_sessionpeer_define_f32(p.peer, "aten::mm", 2, 2, sizes, DT_ALIAS_FRESH, 0);
    const uint64_t inputs[] = {p.product, p.product};
    float is[4];
    (void)dt_sessionpeer_upload(p.peer, DT_DTYPE_F32, 1, longer, numbers);
    for (int i = 0; i < 4200; i++) {
        uint64_t product = dt_sessionpeer_op(p.peer, mm, inputs, 2, true);
        if (i % 600 == 599)
            cr_assert(dt_sessionpeer_read(p.peer, product, is, sizeof is, NULL, 0));
    }
    check(p.tc, "tensor list --limit=10000", 0, "4203 tensors listed.", "");
    check(p.tc, "tensor list --limit=10000", 0, "float32 (3,)", "");
    stop(&p);
}

Test(ctl_job, what_does_not_exist_is_told)
{
    struct program p = start();
    check(p.tc, "job show 999999", 67, "", "999999");
    check(p.tc, "job show abc", 64, "", "\"abc\" is no job");
    check(p.tc, "job ops 0", 64, "", "is no job");
    check(p.tc, line_of(&p, "job show # 999999"), 2, "vdev 0 on w0:0", "999999");
    check(p.tc, line_of(&p, "job errors # 4711"), 67, "", "no error of record 4711");
    check(p.tc, line_of(&p, "job errors # x"), 64, "", "is no record");
    check(p.tc, "job list --sort=nonsense", 64, "", "nonsense");
    check(p.tc, "tensor list 999999", 67, "", NULL);
    stop(&p);
}

Test(ctl_job, a_failed_operator_is_shown_with_its_cause)
{
    struct program p = start();
    const int64_t sizes[] = {3};
    const float numbers[] = {1, 2, 3};
    char kind[64] = "";
    float is[4];
    uint32_t mm = dt_sessionpeer_define_f32(p.peer, "aten::mm", 2, 1, sizes, DT_ALIAS_FRESH, 0);
    uint64_t a = dt_sessionpeer_upload(p.peer, DT_DTYPE_F32, 1, sizes, numbers);
    const uint64_t inputs[] = {a, a};
    uint64_t wrong = dt_sessionpeer_op(p.peer, mm, inputs, 2, true);
    cr_assert(!dt_sessionpeer_read(p.peer, wrong, is, sizeof is, kind, sizeof kind));
    check(p.tc, line_of(&p, "job errors #"), 0, kind, "");
    check(p.tc, line_of(&p, "job errors #"), 0, "1 error listed.", "");
    dt_testrun_t said = run(p.tc, line_of(&p, "job errors # -o name"));
    char line[256];
    (void)snprintf(line, sizeof line, "job errors %lu %.*s", p.id, (int)strcspn(said.out, "\n"),
                   said.out);
    dt_testrun_fini(&said);
    check(p.tc, line, 0, "device    w0:0 (vdev 0), record ", "");
    check(p.tc, line_of(&p, "job show #"), 0, "see: dtorchctl job errors", "");
    stop(&p);
}

Test(ctl_job, a_cancelled_program_is_told_the_reason)
{
    struct program p = start();
    check(p.tc, line_of(&p, "job cancel # --dry-run"), 3, "", "would end");
    check(p.tc, "job list", 0, "1 job listed.", "");
    check(p.tc, line_of(&p, "job cancel # -y -m takes^all"), 0, "  cancelled", "");
    expect_refusal(&p, "takes all");
    wait_for(p.tc, "job list", "0 jobs listed.");
    check(p.tc, line_of(&p, "job cancel # -y"), 67, "", NULL);
    stop(&p);
}

/* ---- recorded sessions ---- */

#define SIDE 128 /* 64 KiB of numbers: more than goes inline */

/* Run a program that multiplies a matrix and adds a vector, and reads both; recorded in `path`. */
static void record_program(dt_testcluster_t *tc, const char *path)
{
    static float numbers[SIDE * SIDE];
    const int64_t sizes[] = {SIDE, SIDE}, three[] = {3};
    dt_session_t *session;
    dt_error_t error;
    const dt_connect_options_t options = {.struct_size = sizeof options,
                                          .address = dt_testcluster_controller_socket(tc),
                                          .record_file = path,
                                          .connect_timeout_ms = PATIENCE_MS};
    cr_assert_eq(dt_connect(&options, &session, &error), DT_OK, "%s", error.text);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        numbers[i] = (float)(i % 97) / 97;
    dt_tensor_t *a = dt_clienttest_f32(session, 2, sizes, numbers);
    dt_tensor_t *product = dt_clienttest_call2(session, "aten::mm", a, a);
    dt_clienttest_read(product, numbers, sizeof numbers);
    dt_tensor_t *vector = dt_clienttest_f32(session, 1, three, (const float[]){0, 1, 99});
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", vector, vector);
    dt_clienttest_read(sum, numbers, 3 * sizeof(float));
    dt_tensor_free(a);
    dt_tensor_free(product);
    dt_tensor_free(vector);
    dt_tensor_free(sum);
    dt_clienttest_disconnect(session);
}

/* "diag replay PATH" and more, at the controller's socket. */
static const char *replay_line(dt_testcluster_t *tc, const char *path, const char *more)
{
    static char line[1024];
    (void)snprintf(line, sizeof line, "diag replay %s -H %s %s", path,
                   dt_testcluster_controller_socket(tc), more);
    return line;
}

/* Copy a recording with each result's checksum changed. */
static void falsify(const char *from, const char *to)
{
    static uint8_t bytes[1u << 20];
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    dt_recording_result_t result;
    dt_recording_t *copy;
    bool is_end = false;
    FILE *file = fopen(from, "rbe");
    cr_assert(file != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    cr_assert_eq(dt_recording_open(&reader, bytes, size), 0);
    cr_assert_eq(dt_recording_create(to, reader.wall_ms, &copy, NULL), DT_OK);
    while (dt_recording_next(&reader, &item, &is_end) == 0 && !is_end) {
        if (dt_recording_get_result(&item, &result) == 0 && item.kind == DT_RECORDING_RESULT) {
            result.crc32c ^= 1;
            cr_assert_eq(dt_recording_add_result(copy, item.at_ns, &result, NULL), DT_OK);
            continue;
        }
        cr_assert_eq(dt_recording_add(copy, (dt_recording_kind_t)item.kind, item.at_ns,
                                      item.content, item.size, NULL),
                     DT_OK);
    }
    cr_assert(is_end);
    cr_assert_eq(dt_recording_close(copy, NULL), DT_OK);
}

Test(ctl_job, a_recorded_session_is_printed_and_replays_bit_equal)
{
    dt_testcluster_t *tc = start_cluster();
    char path[512], other[520], line[600];
    (void)snprintf(path, sizeof path, "%s/session.rec", dt_testcluster_dir(tc));
    (void)snprintf(other, sizeof other, "%s.other", path);
    record_program(tc, path);
    (void)snprintf(line, sizeof line, "diag decode %s", path);
    check(tc, line, 0, "aten::mm(t1 float32 (128, 128), t1 float32 (128, 128)) -> t2", "");
    check(tc, line, 0, "  CHUNK     transfer 1, 65536 bytes from 0", "");
    check(tc, line, 0, "float32 (128, 128), 65536 bytes, checksum ", "");
    check(tc, line, 0, "  END ", "");
    check(tc, replay_line(tc, path, ""), 0, " results equal; ", "");
    check(tc, replay_line(tc, path, "-v"), 0, "     1  equal  64 KiB", "");
    check(tc, replay_line(tc, path, "-o json"), 0, "\"kind\":\"Replay\",\"session\":", "");
    wait_for(tc, "job list", "0 jobs listed.");
    falsify(path, other);
    check(tc, replay_line(tc, other, ""), 1, "differs  64 KiB  checksum ", "");
    check(tc, replay_line(tc, other, ""), 1, "0 of ", "");
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon left something behind");
}

/* Two virtual devices: a sharded tensor that goes in parts, sums and a product that move, a view
 * that is written, all read; recorded in `path`. */
static void record_mesh_program(dt_testcluster_t *tc, const char *path)
{
    static float numbers[SIDE * SIDE];
    const int64_t sizes[] = {SIDE, SIDE};
    const dt_placement_t rows = {.kind = DT_PLACEMENT_SHARD, .dim = 0};
    const dt_connect_options_t options = {.struct_size = sizeof options,
                                          .address = dt_testcluster_controller_socket(tc),
                                          .record_file = path,
                                          .vdev_count = 2,
                                          .connect_timeout_ms = PATIENCE_MS};
    dt_session_t *session;
    dt_mesh_t *mesh = NULL;
    dt_tensor_t *a = NULL;
    dt_error_t error;
    cr_assert_eq(dt_connect(&options, &session, &error), DT_OK, "%s", error.text);
    cr_assert_eq(dt_mesh_create(session, 1, (const uint32_t[]){2}, NULL, NULL, &mesh, &error),
                 DT_OK, "%s", error.text);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        numbers[i] = (float)(i % 89);
    const dt_upload_t upload = {.struct_size = sizeof upload,
                                .dtype = DT_DTYPE_F32,
                                .ndim = 2,
                                .sizes = sizes,
                                .data = numbers,
                                .mesh = mesh,
                                .placements = &rows};
    cr_assert_eq(dt_tensor_upload(session, &upload, &a, &error), DT_OK, "%s", error.text);
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_tensor_t *product = dt_clienttest_call2(session, "aten::mm", a, sum);
    const dt_value_t flip[] = {dt_arg_tensor(sum), dt_arg_int(0), dt_arg_int(1)};
    dt_tensor_t *view = dt_clienttest_call(session, "aten::transpose.int", flip, 3);
    dt_tensor_free(dt_clienttest_call2(session, "aten::add_.Tensor", view, a));
    dt_tensor_t *const all[] = {product, sum, view, a};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dt_clienttest_read(all[i], numbers, sizeof numbers);
        dt_tensor_free(all[i]);
    }
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
}

Test(ctl_job, a_recorded_session_on_a_mesh_replays_bit_equal)
{
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = "Devices=ref:2\nEngines=2\n"});
    char path[512], line[600];
    (void)snprintf(path, sizeof path, "%s/mesh.rec", dt_testcluster_dir(tc));
    record_mesh_program(tc, path);
    (void)snprintf(line, sizeof line, "diag decode %s", path);
    check(tc, line, 0, "dtorch::redistribute", "");
    check(tc, replay_line(tc, path, ""), 0, " results equal; ", "");
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon left something behind");
}

Test(ctl_job, a_recording_that_was_cut_is_played_as_far_as_it_is_whole)
{
    dt_testcluster_t *tc = start_cluster();
    char path[512];
    (void)snprintf(path, sizeof path, "%s/session.rec", dt_testcluster_dir(tc));
    record_program(tc, path);
    FILE *file = fopen(path, "r+be");
    cr_assert(file && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    cr_assert_eq(ftruncate(fileno(file), size - 10), 0);
    check(tc, replay_line(tc, path, ""), 65, " results equal; ", "E_SHORT");
    cr_assert_eq(ftruncate(fileno(file), 40), 0);
    check(tc, replay_line(tc, path, ""), 65, "", "E_SHORT");
    (void)fclose(file);
    check(tc, replay_line(tc, "/nonexistent.rec", ""), 67, "", "No such file");
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon left something behind");
}

Test(ctl_job, a_recording_that_cannot_be_made_fails_to_connect)
{
    dt_session_t *session;
    dt_error_t error;
    const dt_connect_options_t options = {.struct_size = sizeof options,
                                          .address = "/nonexistent/controller.sock",
                                          .record_file = "/nonexistent/session.rec"};
    cr_assert_eq(dt_connect(&options, &session, &error), DT_ERR_NOT_FOUND);
    cr_assert(strstr(error.text, "/nonexistent/session.rec") != NULL, "%s", error.text);
}
