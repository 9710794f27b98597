/* Bytes of large tensors between a program and a node, by each way that they can take. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clienttest.h"
#include "lib/sessionpeer.h"
#include "wire/bulk.h"

TestSuite(bulk, .timeout = 600);

#define MIB ((size_t)1 << 20)

static dt_testcluster_t *start(const char *more)
{
    char conf[256];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n%s", dt_clienttest_devices(),
                   more ? more : "");
    return dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* `way` is one of the words of DataPath=. */
static dt_session_t *connect_by(dt_testcluster_t *tc, const char *way)
{
    cr_assert_eq(setenv("DTORCH_DATA_PATH", way, 1), 0);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    (void)unsetenv("DTORCH_DATA_PATH");
    return session;
}

static dt_session_info_t info_of(dt_session_t *session)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    return info;
}

/* Bytes that differ everywhere and from seed to seed. */
static uint8_t *make_bytes(size_t size, uint32_t seed)
{
    uint8_t *bytes = malloc(size ? size : 1);
    uint32_t x = seed * 2654435761u + 1;
    cr_assert(bytes);
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

static dt_tensor_t *upload(dt_session_t *session, const uint8_t *bytes, size_t size)
{
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    cr_assert_eq(
        dt_tensor_from(session, DT_DTYPE_U8, 1, (int64_t[]){(int64_t)size}, bytes, &tensor, &err),
        DT_OK, "%s", err.text);
    return tensor;
}

static void expect(dt_tensor_t *tensor, const uint8_t *bytes, size_t size)
{
    uint8_t *is = malloc(size ? size : 1);
    cr_assert(is);
    dt_clienttest_read(tensor, is, size);
    cr_assert(size == 0 || memcmp(is, bytes, size) == 0, "%zu bytes came back changed", size);
    free(is);
}

static void there_and_back(dt_session_t *session, size_t size, uint32_t seed)
{
    uint8_t *bytes = make_bytes(size, seed);
    dt_tensor_t *tensor = upload(session, bytes, size);
    expect(tensor, bytes, size);
    dt_tensor_free(tensor);
    free(bytes);
}

static const size_t sizes[] = {0,           1,   4096,    4097,         65536,   65537,
                               MIB - 1,     MIB, MIB + 1, 5 * MIB + 13, 9 * MIB, 64 * MIB - 1,
                               64 * MIB + 5};
#define SIZE_COUNT (sizeof sizes / sizeof *sizes)

static void all_sizes(const char *way)
{
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    dt_session_t *session = connect_by(tc, way);
    for (size_t i = 0; i < SIZE_COUNT; i++)
        there_and_back(session, sizes[i], (uint32_t)i + 1);
    dt_session_info_t info = info_of(session);
    uint64_t all = info.window_bytes + info.direct_bytes + info.relayed_bytes;
    cr_assert_geq(all, 2 * (uint64_t)(64 * MIB));
    if (strcmp(way, "relay") == 0)
        cr_assert_eq(info.relayed_bytes, all);
    else
        cr_assert_lt(info.relayed_bytes, all / 4, "%s: %lu of %lu bytes were relayed, %s", way,
                     (unsigned long)info.relayed_bytes, (unsigned long)all, info.detour);
    if (strcmp(way, "auto") == 0)
        cr_assert_gt(info.window_bytes, all / 2, "%s", info.detour);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(bulk, every_size_comes_back_by_shared_memory)
{
    all_sizes("auto");
}

Test(bulk, every_size_comes_back_by_the_data_port)
{
    all_sizes("direct");
}

Test(bulk, every_size_comes_back_by_the_relay)
{
    all_sizes("relay");
}

/* What the worker has counted of values' bytes by one way; -1: it does not say. */
static long counted(dt_testcluster_t *tc, const char *way)
{
    char line[160];
    char *text = dt_test_http_get(dt_testcluster_metrics_port(tc, 0), "/metrics");
    (void)snprintf(line, sizeof line,
                   "dtorch_worker_bulk_bytes_total{path=\"%s\",direction=\"fetch\"} ", way);
    const char *at = text ? strstr(text, line) : NULL;
    long value = at ? strtol(at + strlen(line), NULL, 10) : -1;
    free(text);
    return value;
}

static const char *const counted_ways[] = {"window", "direct", "relayed"};

/* By any way; the report is a moment old. */
static bool has_counted(dt_testcluster_t *tc, void *arg)
{
    long all = 0;
    for (int i = 0; i < 3; i++)
        all += counted(tc, counted_ways[i]);
    return all >= *(const long *)arg;
}

/* The first value of a session comes before there is a connection for it: nothing is sent in vain.
 */
Test(bulk, a_first_value_goes_once_and_by_one_way)
{
    enum { SIZE = 256 << 10 };
    const dt_value_t args[] = {dt_arg_ints((int64_t[]){SIZE}, 1), dt_arg_dtype(DT_DTYPE_U8)};
    uint8_t *zeros = calloc(1, SIZE);
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = connect_by(tc, "auto");
    dt_tensor_t *tensor = dt_clienttest_call(session, "aten::zeros", args, 2);
    expect(tensor, zeros, SIZE);
    cr_assert(dt_testcluster_wait(tc, has_counted, &(long){SIZE}, 60000));
    int whole = 0; /* by shared memory, but where the machine is too late with that */
    for (int i = 0; i < 3; i++) {
        long bytes = counted(tc, counted_ways[i]);
        cr_assert(bytes == 0 || bytes == SIZE, "%ld by %s", bytes, counted_ways[i]);
        whole += bytes == SIZE;
    }
    cr_assert_eq(whole, 1);
    dt_tensor_free(tensor);
    dt_clienttest_disconnect(session);
    stop(tc);
    free(zeros);
}

/* Values that are dropped before they come are let go, with no way for bytes but by them. */
static void dropped_values(const char *way)
{
    enum { SIZE = 3 << 20, COUNT = 20 };
    const dt_value_t args[] = {dt_arg_ints((int64_t[]){SIZE}, 1), dt_arg_dtype(DT_DTYPE_U8)};
    uint8_t *zeros = calloc(1, SIZE);
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = connect_by(tc, way);
    dt_tensor_t *tensor = dt_clienttest_call(session, "aten::zeros", args, 2);
    for (int i = 0; i < COUNT; i++) {
        dt_future_t *future;
        cr_assert_eq(dt_fetch(tensor, &future, NULL), DT_OK);
        dt_future_free(future);
    }
    expect(tensor, zeros, SIZE); /* behind more than may be on its way */
    dt_tensor_free(tensor);
    dt_clienttest_disconnect(session);
    stop(tc);
    free(zeros);
}

Test(bulk, values_that_are_dropped_hold_no_other_by_shared_memory)
{
    dropped_values("auto");
}

Test(bulk, values_that_are_dropped_hold_no_other_by_the_relay)
{
    dropped_values("relay");
}

/* ---- shapes of use ---- */

static void transposed(const char *way)
{
    enum { M = 700, N = 1501 };
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    dt_session_t *session = connect_by(tc, way);
    float *data = malloc(sizeof(float) * M * N), *is = malloc(sizeof(float) * M * N);
    cr_assert(data && is);
    for (int i = 0; i < M * N; i++)
        data[i] = (float)(i % 8191);
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){M, N}, data);
    dt_tensor_t *t = dt_clienttest_call(session, "aten::t", (dt_value_t[]){dt_arg_tensor(a)}, 1);
    dt_clienttest_read(t, is, sizeof(float) * M * N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++)
            cr_assert_eq(is[i * M + j], data[j * N + i], "(%d, %d)", i, j);
    dt_tensor_free(a);
    dt_tensor_free(t);
    free(data);
    free(is);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(bulk, a_transposed_tensor_comes_packed_by_shared_memory)
{
    transposed("auto");
}

Test(bulk, a_transposed_tensor_comes_packed_by_the_data_port)
{
    transposed("direct");
}

Test(bulk, tensors_larger_than_the_window_pass_through_it)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = connect_by(tc, "auto");
    there_and_back(session, 1 * MIB, 1); /* the window is there */
    there_and_back(session, 256 * MIB + 4099, 2);
    cr_assert_gt(info_of(session).window_bytes, 384 * MIB, "%s", info_of(session).detour);
    dt_clienttest_disconnect(session);
    stop(tc);
}

static void count_release(void *arg)
{
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

struct crowd {
    dt_session_t *session;
    const uint8_t *bytes;
    dt_tensor_t *tensors[400];
};

enum { CROWD_BYTES = 70 << 10, CROWD_COUNT = sizeof((struct crowd *)0)->tensors / sizeof(void *) };

static void *upload_crowd(void *arg)
{
    struct crowd *crowd = arg;
    for (int i = 0; i < CROWD_COUNT; i++)
        crowd->tensors[i] = upload(crowd->session, crowd->bytes, CROWD_BYTES);
    return NULL;
}

/* The node takes what is behind an operator only when the operator has its values. */
Test(bulk, an_upload_is_not_kept_waiting_by_those_behind_it_that_fill_the_window)
{
    enum { THREADS = 4, BYTES = 96 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = connect_by(tc, "auto");
    there_and_back(session, 1 * MIB, 1); /* the window is there */
    uint8_t *first = make_bytes(BYTES * MIB, 2), *small = make_bytes(CROWD_BYTES, 3);
    struct crowd crowds[THREADS];
    pthread_t threads[THREADS];
    dt_tensor_t *head = NULL;
    dt_error_t err;
    int released = 0;
    dt_upload_t from = {.struct_size = sizeof from,
                        .dtype = DT_DTYPE_U8,
                        .ndim = 1,
                        .sizes = (int64_t[]){(int64_t)(BYTES * MIB)},
                        .data = first,
                        .release = count_release,
                        .arg = &released};
    cr_assert_eq(dt_tensor_upload(session, &from, &head, &err), DT_OK, "%s", err.text);
    dt_tensor_t *same = dt_clienttest_call(session, "aten::add.Tensor",
                                           (dt_value_t[]){dt_arg_tensor(head), dt_arg_int(0)}, 2);
    for (int t = 0; t < THREADS; t++) {
        crowds[t] = (struct crowd){.session = session, .bytes = small};
        cr_assert_eq(pthread_create(&threads[t], NULL, upload_crowd, &crowds[t]), 0);
    }
    expect(same, first, BYTES * MIB);
    for (int t = 0; t < THREADS; t++) {
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
        expect(crowds[t].tensors[CROWD_COUNT - 1], small, CROWD_BYTES);
        for (int i = 0; i < CROWD_COUNT; i++)
            dt_tensor_free(crowds[t].tensors[i]);
    }
    dt_tensor_free(same);
    dt_tensor_free(head);
    dt_clienttest_disconnect(session);
    free(first);
    free(small);
    stop(tc);
}

Test(bulk, many_transfers_at_once_do_not_mix)
{
    enum { COUNT = 40 };
    static const char *const ways[] = {"auto", "direct", "relay"};
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        dt_session_t *session = connect_by(tc, ways[way]);
        uint8_t *bytes[COUNT];
        dt_tensor_t *tensors[COUNT];
        dt_future_t *futures[COUNT];
        int released = 0;
        for (int i = 0; i < COUNT; i++) {
            size_t size = 5000 + (size_t)(i * i) * 1777;
            int64_t count = (int64_t)size;
            bytes[i] = make_bytes(size, (uint32_t)i);
            const dt_upload_t from = {.struct_size = sizeof from,
                                      .dtype = DT_DTYPE_U8,
                                      .ndim = 1,
                                      .sizes = &count,
                                      .data = bytes[i],
                                      .release = i % 2 ? count_release : NULL,
                                      .arg = &released};
            cr_assert_eq(dt_tensor_upload(session, &from, &tensors[i], NULL), DT_OK);
        }
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(dt_fetch(tensors[i], &futures[i], NULL), DT_OK);
        for (int i = 0; i < COUNT; i++) {
            const void *data = NULL;
            size_t size = 0;
            if (i % 5 == 4) { /* nobody wants it: the others come all the same */
                dt_future_free(futures[i]);
                continue;
            }
            cr_assert_eq(dt_future_wait(futures[i], DT_TESTCLUSTER_PATIENCE_MS * 4, NULL), DT_OK);
            cr_assert_eq(dt_future_data(futures[i], &data, &size), DT_OK);
            cr_assert_eq(size, 5000 + (size_t)(i * i) * 1777);
            cr_assert_eq(memcmp(data, bytes[i], size), 0, "%s: value %d", ways[way], i);
            dt_future_free(futures[i]);
        }
        for (int i = 0; i < COUNT; i++)
            dt_tensor_free(tensors[i]);
        dt_clienttest_disconnect(session);
        cr_assert_eq(__atomic_load_n(&released, __ATOMIC_SEQ_CST), COUNT / 2);
        for (int i = 0; i < COUNT; i++)
            free(bytes[i]);
    }
    stop(tc);
}

/* Fetches and writes of one tensor in turn, larger than what may be on its way; every third value
 * is let go of while it comes, and the tensor before any of them was read. */
static void written_meanwhile(dt_session_t *session, const char *way)
{
    enum { COUNT = 6, ELEMENTS = 10 << 17 };
    int64_t *values = malloc(ELEMENTS * sizeof *values);
    dt_future_t *futures[COUNT];
    cr_assert(values);
    for (int64_t i = 0; i < ELEMENTS; i++)
        values[i] = i * 7;
    dt_tensor_t *x = dt_clienttest_i64(session, values, ELEMENTS);
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(1)};
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(dt_fetch(x, &futures[i], NULL), DT_OK);
        dt_tensor_free(dt_clienttest_call(session, "aten::add_.Scalar", args, 2));
    }
    dt_tensor_free(x);
    for (int i = 0; i < COUNT; i++) {
        const void *data = NULL;
        size_t size = 0;
        bool is_wanted = i % 3 != 1;
        if (is_wanted) {
            cr_assert_eq(dt_future_wait(futures[i], DT_TESTCLUSTER_PATIENCE_MS * 4, NULL), DT_OK);
            cr_assert_eq(dt_future_data(futures[i], &data, &size), DT_OK);
            cr_assert_eq(size, ELEMENTS * sizeof *values);
            cr_assert_eq(memcmp(data, values, size), 0, "%s: value %d", way, i);
        }
        dt_future_free(futures[i]);
        for (int64_t k = 0; k < ELEMENTS; k++)
            values[k]++;
    }
    free(values);
}

Test(bulk, a_value_is_that_of_its_place_whatever_follows_while_it_comes)
{
    static const char *const ways[] = {"auto", "direct", "relay"};
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        dt_session_t *session = connect_by(tc, ways[way]);
        for (int round = 0; round < 2; round++)
            written_meanwhile(session, ways[way]);
        dt_clienttest_disconnect(session);
    }
    stop(tc);
}

/* ---- connections that break ---- */

/* Whether a socket of this process goes to a node's data door: the controller is reached by a unix
 * socket with a path. */
static bool is_data_socket(int fd)
{
    struct sockaddr_storage peer;
    struct sockaddr_un un;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0)
        return false;
    memcpy(&un, &peer, sizeof un);
    return peer.ss_family == AF_INET ||
           (peer.ss_family == AF_UNIX && size > sizeof(sa_family_t) + 12 &&
            memcmp(un.sun_path + 1, "dtorch-data-", 12) == 0);
}

struct cutter {
    atomic_bool is_over;
    atomic_int round; /* of the program's */
    atomic_int cuts;
};

/* Cuts come after 2 to 32 ms, in which a busy machine may not get a piece across: then they come
 * more and more seldom until the program gets to its next round. */
static void *cut_now_and_then(void *arg)
{
    struct cutter *cutter = arg;
    unsigned seed = 7;
    int round = 0, cuts_before = 0;
    while (!atomic_load(&cutter->is_over)) {
        if (atomic_load(&cutter->round) != round) {
            round = atomic_load(&cutter->round);
            cuts_before = cutter->cuts;
        }
        int shift = (cutter->cuts - cuts_before) / 8;
        (void)usleep((2000 + (unsigned)rand_r(&seed) % 30000) << (shift < 8 ? shift : 8));
        for (int fd = 3; fd < 200; fd++)
            if (is_data_socket(fd) && shutdown(fd, SHUT_RDWR) == 0)
                cutter->cuts++;
    }
    return NULL;
}

static void cuts(const char *way)
{
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    dt_session_t *session = connect_by(tc, way);
    struct cutter cutter = {.cuts = 0};
    pthread_t thread;
    there_and_back(session, MIB, 99);
    cr_assert_eq(pthread_create(&thread, NULL, cut_now_and_then, &cutter), 0);
    for (uint32_t round = 0; round < 12 || (round < 200 && cutter.cuts < 8); round++) {
        atomic_store(&cutter.round, (int)round);
        uint8_t *bytes = make_bytes(4 * MIB + round * 4099, round);
        dt_tensor_t *a = upload(session, bytes, 4 * MIB + round * 4099);
        dt_tensor_t *b = upload(session, bytes + 7, 2 * MIB);
        expect(a, bytes, 4 * MIB + round * 4099);
        expect(b, bytes + 7, 2 * MIB);
        dt_tensor_free(a);
        dt_tensor_free(b);
        free(bytes);
    }
    atomic_store(&cutter.is_over, true);
    (void)pthread_join(thread, NULL);
    cr_assert_geq(cutter.cuts, 8, "%d cuts", cutter.cuts);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(bulk, a_window_that_is_cut_off_again_and_again_loses_nothing)
{
    cuts("auto");
}

Test(bulk, a_data_port_that_is_cut_off_again_and_again_loses_nothing)
{
    cuts("direct");
}

/* ---- programs that end ---- */

/* Mappings of memory of that name in all processes of the cluster but this one. */
static int count_maps(dt_testcluster_t *tc, const char *name)
{
    char command[256];
    dt_testrun_t run;
    (void)snprintf(command, sizeof command,
                   "for p in %d $(ps -o pid= --ppid %d); do grep -c '%s' /proc/$p/maps; ls -l "
                   "/proc/$p/fd | grep -c '%s'; done 2>/proc/self/fd/1 | awk '{n += $1} END "
                   "{print n + 0}'",
                   dt_testcluster_pid(tc, 0), dt_testcluster_pid(tc, 0), name, name);
    const char *args[] = {"-c", command, NULL};
    run = dt_testrun_program("/bin/sh", args, NULL);
    int count = run.code == 0 ? (int)strtol(run.out, NULL, 10) : -1;
    dt_testrun_fini(&run);
    return count;
}

static bool has_window(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return count_maps(tc, "dtorch-window") > 0;
}

static bool has_no_window(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return count_maps(tc, "dtorch-window") == 0;
}

static bool has_no_arena(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return count_maps(tc, "dtorch-arena") == 0;
}

/* A program that uploads without end, and says on `out` when the first one is done. */
static void upload_for_ever(dt_testcluster_t *tc, int out)
{
    dt_session_t *session = connect_by(tc, "auto");
    uint8_t *bytes = make_bytes(16 * MIB, 5);
    there_and_back(session, MIB, 4);
    (void)!write(out, "x", 1);
    for (;;)
        dt_tensor_free(upload(session, bytes, 16 * MIB));
}

Test(bulk, memory_is_free_again_when_a_program_is_killed_in_the_middle)
{
    char conf[256], byte;
    int pipe_fds[2], status;
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\nIsolation=session\n",
                   dt_clienttest_devices());
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .worker_conf = conf, .controller_conf = "SessionGrace=1s"});
    cr_assert_eq(pipe(pipe_fds), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        upload_for_ever(tc, pipe_fds[1]);
        _exit(0);
    }
    cr_assert_eq(read(pipe_fds[0], &byte, 1), 1);
    /* Until the window is there, the first bytes may take another way. */
    cr_assert(dt_testcluster_wait(tc, has_window, NULL, DT_TESTCLUSTER_PATIENCE_MS), "%s",
              dt_testcluster_logs(tc));
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(dt_testcluster_wait(tc, has_no_window, NULL, DT_TESTCLUSTER_PATIENCE_MS),
              "the window is still mapped\n%s", dt_testcluster_logs(tc));
    cr_assert(dt_testcluster_wait(tc, has_no_arena, NULL, DT_TESTCLUSTER_PATIENCE_MS),
              "the session's memory is still there\n%s", dt_testcluster_logs(tc));
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    stop(tc);
}

static uint64_t moved(const dt_session_info_t *info)
{
    return info->window_bytes + info->direct_bytes + info->relayed_bytes;
}

/* A fetch whose node dies in the middle of it. */
static void lose_node(const char *way)
{
    dt_testcluster_t *tc = start("DataListen=127.0.0.1:0\n");
    dt_session_t *session = connect_by(tc, way);
    uint8_t *bytes = make_bytes(96 * MIB, 1);
    dt_tensor_t *tensor = upload(session, bytes, 96 * MIB);
    dt_future_t *future;
    dt_failure_t failure = {0};
    there_and_back(session, MIB, 2); /* behind the upload */
    dt_session_info_t before = info_of(session), now = before;
    cr_assert_eq(dt_fetch(tensor, &future, NULL), DT_OK);
    (void)dt_flush(session, NULL);
    while (moved(&now) == moved(&before)) {
        (void)usleep(1000);
        now = info_of(session);
    }
    dt_testcluster_kill(tc, 0, SIGKILL);
    dt_status_t status = dt_future_wait(future, DT_TESTCLUSTER_PATIENCE_MS, &failure);
    cr_assert(status == DT_OK || status == DT_ERR_LOST, "%s: %s", way, failure.error.text);
    dt_future_free(future);
    dt_tensor_free(tensor);
    free(bytes);
    (void)dt_disconnect(session, DT_TESTCLUSTER_PATIENCE_MS, NULL);
    (void)dt_testcluster_stop(tc);
}

Test(bulk, a_fetch_whose_node_dies_ends_with_an_error_by_shared_memory)
{
    lose_node("auto");
}

Test(bulk, a_fetch_whose_node_dies_ends_with_an_error_by_the_relay)
{
    lose_node("relay");
}

/* ---- peers that lie ---- */

struct door {
    dt_sessionpeer_t *peer;
    Dtorch__V1__SessionDown *down; /* with the door */
    int fd;
};

static struct door open_door(dt_testcluster_t *tc)
{
    struct door door = {.peer = dt_sessionpeer_open(dt_testcluster_controller_socket(tc), "", 1, 0),
                        .fd = -1};
    cr_assert(door.peer);
    door.down = dt_sessionpeer_wait(door.peer, DTORCH__V1__SESSION_DOWN__KIND_DOOR,
                                    DT_TESTCLUSTER_PATIENCE_MS);
    cr_assert(door.down, "no door\n%s", dt_testcluster_logs(tc));
    return door;
}

static void close_door(struct door *door)
{
    if (door->fd >= 0)
        (void)close(door->fd);
    dtorch__v1__session_down__free_unpacked(door->down, NULL);
    dt_sessionpeer_close(door->peer);
}

static void dial(struct door *door)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = door->down->door->local;
    if (door->fd >= 0)
        (void)close(door->fd);
    memcpy(address.sun_path + 1, name, strlen(name));
    door->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(door->fd, (const struct sockaddr *)&address,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                 0);
}

static void say(const struct door *door, const dt_bulk_head_t *head, const void *body, int window)
{
    uint8_t bytes[DT_BULK_HEAD_BYTES];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    dt_bulk_put(bytes, head);
    if (window >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &window, sizeof window);
    }
    (void)!sendmsg(door->fd, &message, MSG_NOSIGNAL);
    if (dt_bulk_body(head))
        (void)!send(door->fd, body, dt_bulk_body(head), MSG_NOSIGNAL);
}

/* Wait for a message. False: the connection ended. */
static bool hear(const struct door *door, dt_bulk_head_t *ret_head)
{
    uint8_t bytes[DT_BULK_HEAD_BYTES], body[DT_BULK_TEXT_MAX];
    if (recv(door->fd, bytes, sizeof bytes, MSG_WAITALL) != (ssize_t)sizeof bytes)
        return false;
    cr_assert_eq(dt_bulk_get(bytes, ret_head, NULL), DT_OK);
    size_t size = dt_bulk_body(ret_head);
    cr_assert_leq(size, sizeof body);
    return size == 0 || recv(door->fd, body, size, MSG_WAITALL) == (ssize_t)size;
}

static bool hello(struct door *door, const uint8_t *token, int window, dt_bulk_head_t *ret_answer)
{
    const dt_bulk_head_t head = {.kind = DT_BULK_HELLO,
                                 .place = window >= 0 ? DT_BULK_WINDOW_BYTES : 0,
                                 .total = dt_sessionpeer_id(door->peer),
                                 .size = DT_BULK_TOKEN_BYTES};
    dial(door);
    say(door, &head, token, window);
    return hear(door, ret_answer);
}

/* The next door: the token of the last one was used. */
static void next_door(struct door *door)
{
    Dtorch__V1__SessionDown *next = dt_sessionpeer_wait(
        door->peer, DTORCH__V1__SESSION_DOWN__KIND_DOOR, DT_TESTCLUSTER_PATIENCE_MS);
    cr_assert(next);
    dtorch__v1__session_down__free_unpacked(door->down, NULL);
    door->down = next;
}

Test(bulk, a_token_opens_one_connection_and_a_guess_none)
{
    dt_testcluster_t *tc = start(NULL);
    struct door door = open_door(tc);
    uint8_t token[DT_BULK_TOKEN_BYTES], guess[DT_BULK_TOKEN_BYTES] = {1};
    dt_bulk_head_t answer;
    memcpy(token, door.down->door->token.data, sizeof token);
    cr_assert(hello(&door, guess, -1, &answer));
    cr_assert_eq(answer.kind, DT_BULK_REFUSED);
    cr_assert(hello(&door, token, -1, &answer));
    cr_assert_eq(answer.kind, DT_BULK_WELCOME);
    cr_assert(hello(&door, token, -1, &answer));
    cr_assert_eq(answer.kind, DT_BULK_REFUSED, "a token was good twice");
    next_door(&door);
    cr_assert(hello(&door, door.down->door->token.data, -1, &answer));
    cr_assert_eq(answer.kind, DT_BULK_WELCOME);
    close_door(&door);
    stop(tc);
}

static int window_with(unsigned seals, off_t size)
{
    int fd = memfd_create("dtorch-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(fd >= 0 && ftruncate(fd, size) == 0);
    if (seals)
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

Test(bulk, memory_that_could_harm_an_engine_is_not_taken_for_a_window)
{
    static const struct {
        unsigned seals;
        off_t size;
        bool is_good;
    } windows[] = {
        {0, DT_BULK_WINDOW_BYTES, false}, /* it could be cut short under the engine */
        {F_SEAL_SHRINK, DT_BULK_WINDOW_BYTES - 4096, false},
        {F_SEAL_SHRINK | F_SEAL_WRITE, DT_BULK_WINDOW_BYTES, false},
        {F_SEAL_SHRINK | F_SEAL_GROW, DT_BULK_WINDOW_BYTES, true},
    };
    dt_testcluster_t *tc = start(NULL);
    struct door door = open_door(tc);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        dt_bulk_head_t answer;
        int fd = window_with(windows[i].seals, windows[i].size);
        cr_assert(hello(&door, door.down->door->token.data, fd, &answer));
        cr_assert_eq(answer.kind, DT_BULK_WELCOME);
        cr_assert_eq(answer.place != 0, windows[i].is_good, "window %zu", i);
        next_door(&door);
        (void)close(fd);
    }
    int pair[2];
    dt_bulk_head_t answer;
    cr_assert_eq(pipe(pair), 0);
    cr_assert(hello(&door, door.down->door->token.data, pair[0], &answer));
    cr_assert(answer.kind == DT_BULK_WELCOME && answer.place == 0, "a pipe is no memory");
    (void)close(pair[0]);
    (void)close(pair[1]);
    close_door(&door);
    stop(tc);
}

Test(bulk, a_program_that_sends_nonsense_ends_its_connection_only)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *other = connect_by(tc, "auto");
    struct door door = open_door(tc);
    uint8_t *noise = make_bytes(MIB, 3);
    for (uint32_t i = 0; i < 6; i++) {
        const dt_bulk_head_t said[] = {
            {.kind = DT_BULK_PLACED, .transfer = 1, .size = 4096},
            {.kind = DT_BULK_FAILED, .size = 5},
            {.kind = DT_BULK_DATA, .transfer = UINT64_MAX, .offset = 1, .size = MIB},
            {.kind = DT_BULK_RECEIVED, .transfer = 77, .place = UINT64_MAX, .flags = 255},
            {.kind = DT_BULK_WELCOME},
        };
        dt_bulk_head_t answer;
        cr_assert(hello(&door, door.down->door->token.data, -1, &answer));
        cr_assert_eq(answer.kind, DT_BULK_WELCOME);
        if (i < 5)
            say(&door, &said[i], noise, -1);
        else
            (void)!send(door.fd, noise, MIB, MSG_NOSIGNAL);
        next_door(&door);
        there_and_back(other, 3 * MIB, i);
    }
    free(noise);
    close_door(&door);
    dt_clienttest_disconnect(other);
    stop(tc);
}

/* Bytes for uploads that were never announced fill what is kept for them, then the socket. */
Test(bulk, a_program_that_only_sends_is_held_up_and_nobody_else)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *other = connect_by(tc, "auto");
    struct door door = open_door(tc);
    uint8_t *noise = make_bytes(MIB, 3);
    dt_bulk_head_t answer;
    cr_assert(hello(&door, door.down->door->token.data, -1, &answer));
    cr_assert_eq(answer.kind, DT_BULK_WELCOME);
    cr_assert_eq(fcntl(door.fd, F_SETFL, O_NONBLOCK), 0);
    int64_t before = dt_testcluster_rss_bytes(tc, 0);
    for (int i = 0; i < 400; i++) {
        const dt_bulk_head_t head = {.kind = DT_BULK_DATA,
                                     .transfer = 1000 + (uint64_t)i,
                                     .size = (uint32_t)MIB,
                                     .crc32c = 0};
        say(&door, &head, noise, -1);
        if (i % 50 == 0)
            there_and_back(other, 2 * MIB, (uint32_t)i);
    }
    cr_assert_lt(dt_testcluster_rss_bytes(tc, 0) - before, (int64_t)(96 * MIB));
    free(noise);
    close_door(&door);
    dt_clienttest_disconnect(other);
    stop(tc);
}
