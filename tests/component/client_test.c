/* libdtorch against real daemons: values, errors as values, broken connections, threads, bounds. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clienttest.h"
#include "lib/temptree.h"
#include "lib/testproxy.h"

TestSuite(client, .timeout = 600);

static dt_testcluster_t *start(const char *more)
{
    char conf[256];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n%s", dt_clienttest_devices(),
                   more ? more : "");
    /* A worker that a test stops for a while is not to be taken for dead. */
    return dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .worker_conf = conf, .controller_conf = "DeadBeats=1000"});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- values ---- */

Test(client, a_product_equals_that_of_loops)
{
    enum { M = 7, K = 5, N = 3 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    float a[M * K], b[K * N], is[M * N];
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 11 - 5);
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i % 7 - 3);
    dt_tensor_t *ta = dt_clienttest_f32(session, 2, (int64_t[]){M, K}, a);
    dt_tensor_t *tb = dt_clienttest_f32(session, 2, (int64_t[]){K, N}, b);
    dt_tensor_t *tp = dt_clienttest_call2(session, "aten::mm", ta, tb);
    dt_clienttest_read(tp, is, sizeof is);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float wanted = 0; /* small integers: exact in any order */
            for (int k = 0; k < K; k++)
                wanted += a[i * K + k] * b[k * N + j];
            cr_assert_eq(is[i * N + j], wanted, "(%d, %d): %g, not %g", i, j, (double)is[i * N + j],
                         (double)wanted);
        }
    dt_tensor_free(ta);
    dt_tensor_free(tb);
    dt_tensor_free(tp);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, metadata_is_known_without_waiting_for_the_operator)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    float data[12] = {0};
    dt_meta_t meta;
    dt_session_info_t info = {.struct_size = sizeof info};
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){4, 3}, data);
    dt_tensor_t *t = dt_clienttest_call(session, "aten::t", (dt_value_t[]){dt_arg_tensor(a)}, 1);
    cr_assert_eq(dt_tensor_meta(t, &meta, NULL), DT_OK);
    cr_assert(meta.ndim == 2 && meta.sizes[0] == 3 && meta.sizes[1] == 4);
    cr_assert(meta.strides[0] == 1 && meta.strides[1] == 3, "a view has its base's strides");
    for (int i = 0; i < 50; i++)
        dt_tensor_free(dt_clienttest_call2(session, "aten::add.Tensor", a, a));
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    cr_assert_eq(info.queries, 2, "a signature is asked for once, not %lu times",
                 (unsigned long)info.queries);
    dt_tensor_free(a);
    dt_tensor_free(t);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* ---- shapes that grow ---- */

enum { GROWN_STEPS = 50, GROWN_WIDTH = 4, GROWN_KNOWN = 6 };

/* One head of attention over all keys and values so far, by loops. */
static void attend(const float (*keys)[GROWN_WIDTH], const float (*values)[GROWN_WIDTH], int count,
                   const float *query, float *ret)
{
    double weights[GROWN_STEPS], sum = 0, most = -1e30;
    for (int i = 0; i < count; i++) {
        weights[i] = 0;
        for (int k = 0; k < GROWN_WIDTH; k++)
            weights[i] += (double)query[k] * (double)keys[i][k];
        most = weights[i] > most ? weights[i] : most;
    }
    for (int i = 0; i < count; i++)
        sum += weights[i] = exp(weights[i] - most);
    for (int k = 0; k < GROWN_WIDTH; k++) {
        double value = 0;
        for (int i = 0; i < count; i++)
            value += weights[i] / sum * (double)values[i][k];
        ret[k] = (float)value;
    }
}

/* cache = cat(cache, row) along the rows. */
static void append_row(dt_session_t *session, dt_tensor_t **cache, const float *row)
{
    dt_tensor_t *next = dt_clienttest_f32(session, 3, (int64_t[]){1, 1, GROWN_WIDTH}, row);
    if (!*cache) {
        *cache = next;
        return;
    }
    dt_tensor_t *const parts[] = {*cache, next};
    dt_tensor_t *both = dt_clienttest_call(
        session, "aten::cat", (dt_value_t[]){dt_arg_tensors(parts, 2), dt_arg_int(1)}, 2);
    dt_tensor_free(*cache);
    dt_tensor_free(next);
    *cache = both;
}

/* softmax(query keys^T + mask[:count]) values */
static dt_tensor_t *decode_step(dt_session_t *session, dt_tensor_t *query, dt_tensor_t *keys,
                                dt_tensor_t *values, dt_tensor_t *mask, int count)
{
    dt_tensor_t *at[6];
    at[0] =
        dt_clienttest_call(session, "aten::transpose.int",
                           (dt_value_t[]){dt_arg_tensor(keys), dt_arg_int(1), dt_arg_int(2)}, 3);
    at[1] = dt_clienttest_call2(session, "aten::bmm", query, at[0]);
    at[2] = dt_clienttest_call(session, "aten::slice.Tensor",
                               (dt_value_t[]){dt_arg_tensor(mask), dt_arg_int(0), dt_arg_int(0),
                                              dt_arg_int(count), dt_arg_int(1)},
                               5);
    at[3] = dt_clienttest_call2(session, "aten::add.Tensor", at[1], at[2]);
    at[4] = dt_clienttest_call(
        session, "aten::_softmax",
        (dt_value_t[]){dt_arg_tensor(at[3]), dt_arg_int(-1), dt_arg_bool(false)}, 3);
    at[5] = dt_clienttest_call2(session, "aten::bmm", at[4], values);
    for (int i = 0; i < 5; i++)
        dt_tensor_free(at[i]);
    return at[5];
}

static uint64_t queries_of(dt_session_t *session)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    return info.queries;
}

static void decode(dt_session_t *session)
{
    float keys[GROWN_STEPS][GROWN_WIDTH], values[GROWN_STEPS][GROWN_WIDTH], query[GROWN_WIDTH];
    float zeros[GROWN_STEPS] = {0}, is[GROWN_WIDTH], wanted[GROWN_WIDTH];
    dt_tensor_t *key_cache = NULL, *value_cache = NULL;
    dt_tensor_t *mask = dt_clienttest_f32(session, 1, (int64_t[]){GROWN_STEPS}, zeros);
    uint64_t asked = 0;
    for (int step = 0; step < GROWN_STEPS; step++) {
        for (int k = 0; k < GROWN_WIDTH; k++) {
            keys[step][k] = (float)((step * 7 + k * 3) % 11) / 8 - 0.5f;
            values[step][k] = (float)((step * 5 + k) % 13) / 4;
            query[k] = (float)((step + 2 * k) % 5) / 4 - 0.5f;
        }
        append_row(session, &key_cache, keys[step]);
        append_row(session, &value_cache, values[step]);
        dt_tensor_t *q = dt_clienttest_f32(session, 3, (int64_t[]){1, 1, GROWN_WIDTH}, query);
        dt_tensor_t *got = decode_step(session, q, key_cache, value_cache, mask, step + 1);
        dt_clienttest_read(got, is, sizeof is);
        attend(keys, values, step + 1, query, wanted);
        for (int k = 0; k < GROWN_WIDTH; k++)
            cr_assert_float_eq(is[k], wanted[k], 1e-5, "step %d: %g, not %g", step, (double)is[k],
                               (double)wanted[k]);
        dt_tensor_free(got);
        dt_tensor_free(q);
        if (step < GROWN_KNOWN)
            asked = queries_of(session);
    }
    cr_assert_geq(asked, 10, "the first steps ask");
    cr_assert_eq(queries_of(session), asked, "later ones ask nothing: %lu, not %lu",
                 (unsigned long)queries_of(session), (unsigned long)asked);
    dt_tensor_free(mask);
    dt_tensor_free(key_cache);
    dt_tensor_free(value_cache);
}

Test(client, a_cache_that_grows_asks_nothing_after_its_first_steps)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    decode(session);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, a_number_that_changes_becomes_part_of_the_operator)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    float zero = 0, is, wanted = 0;
    dt_session_info_t info = {.struct_size = sizeof info};
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){1}, &zero);
    for (int i = 0; i < 100; i++) {
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_double(0.5 * i)};
        dt_tensor_free(dt_clienttest_call(session, "aten::add_.Scalar", args, 2));
        wanted += 0.5f * (float)i;
    }
    dt_clienttest_read(a, &is, sizeof is);
    cr_assert_eq(is, wanted);
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    cr_assert_leq(info.signatures, 3);
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, a_dimension_that_changes_does_not)
{
    static const int64_t calls[][2] = {{1, 0}, {1, 1}, {1, 2}, {1, 0}, {0, 1}, {-2, 0}, {-1, 2}};
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[6] = {0, 1, 2, 3, 4, 5};
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){2, 3}, data);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        bool is_row = calls[i][0] == 0 || calls[i][0] == -2;
        const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_int(calls[i][0]),
                                   dt_arg_int(calls[i][1])};
        float is[3];
        dt_tensor_t *part = dt_clienttest_call(session, "aten::select.int", args, 3);
        dt_clienttest_read(part, is, is_row ? sizeof is : 2 * sizeof *is);
        cr_assert_eq(is[1], (float)(is_row ? 3 * calls[i][1] + 1 : 3 + calls[i][1]), "call %zu", i);
        dt_tensor_free(part);
    }
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, large_tensors_come_back_as_they_were)
{
    enum { COUNT = 5 * 1024 * 1024 / 8 + 13 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    int64_t *data = malloc(COUNT * sizeof *data), *is = calloc(COUNT, sizeof *is);
    cr_assert(data && is);
    for (int64_t i = 0; i < COUNT; i++)
        data[i] = i * 7919;
    dt_tensor_t *a = dt_clienttest_i64(session, data, COUNT);
    dt_tensor_t *b = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_clienttest_read(b, is, COUNT * sizeof *is);
    for (int64_t i = 0; i < COUNT; i++)
        cr_assert_eq(is[i], 2 * data[i], "element %ld", (long)i);
    dt_tensor_free(a);
    dt_tensor_free(b);
    dt_clienttest_disconnect(session);
    free(data);
    free(is);
    stop(tc);
}

static void count_release(void *arg)
{
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

Test(client, borrowed_bytes_are_released_once)
{
    enum { COUNT = 100000 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    static float data[COUNT], is[COUNT];
    static int released;
    const int64_t sizes[] = {COUNT};
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 1,
                          .sizes = sizes,
                          .data = data,
                          .release = count_release,
                          .arg = &released};
    dt_tensor_t *tensor;
    data[COUNT - 1] = 3;
    cr_assert_eq(dt_tensor_upload(session, &upload, &tensor, NULL), DT_OK);
    dt_clienttest_read(tensor, is, sizeof is);
    cr_assert_eq(is[COUNT - 1], 3);
    dt_tensor_free(tensor);
    dt_clienttest_disconnect(session);
    cr_assert_eq(__atomic_load_n(&released, __ATOMIC_SEQ_CST), 1);
    stop(tc);
}

/* ---- errors ---- */

Test(client, an_error_names_the_program_s_line_and_the_operator)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[4] = {1, 2, 3, 4};
    const int64_t index = 9;
    dt_failure_t failure;
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){4}, data);
    dt_tensor_t *i = dt_clienttest_i64(session, &index, 1);
    cr_assert_eq(dt_range_begin(session, "epoch 1", NULL), DT_OK);
    cr_assert_eq(dt_mark_source(session, "train.py:57 in loss", NULL), DT_OK);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_int(0), dt_arg_tensor(i)};
    dt_tensor_t *bad = dt_clienttest_call(session, "aten::index_select", args, 3);
    cr_assert_eq(dt_mark_source(session, "train.py:58 in loss", NULL), DT_OK);
    dt_tensor_t *after = dt_clienttest_call2(session, "aten::add.Tensor", bad, bad);
    dt_tensor_t *good = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    cr_assert_eq(dt_clienttest_fails(after, &failure), DT_ERR_INVALID);
    cr_assert_str_eq(failure.operator_name, "aten::index_select");
    cr_assert_str_eq(failure.place, "train.py:57 in loss");
    cr_assert_str_eq(failure.node, "w0");
    cr_assert(failure.range_count == 1 && strcmp(failure.range[0], "epoch 1") == 0);
    cr_assert_not_null(strstr(failure.kind, "Error"), "kind: %s", failure.kind);
    float is[4];
    dt_clienttest_read(good, is, sizeof is);
    cr_assert_eq(is[3], 8, "the next operator works");
    dt_tensor_t *const all[] = {a, i, bad, after, good};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        dt_tensor_free(all[k]);
    dt_clienttest_disconnect(session); /* it was fetched */
    stop(tc);
}

Test(client, an_error_nobody_fetched_is_reported_at_the_end)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[4] = {1, 2, 3, 4};
    const int64_t index = -77;
    dt_failure_t failure;
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){4}, data);
    dt_tensor_t *i = dt_clienttest_i64(session, &index, 1);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_int(0), dt_arg_tensor(i)};
    dt_tensor_free(dt_clienttest_call(session, "aten::index_select", args, 3));
    dt_tensor_free(a);
    dt_tensor_free(i);
    cr_assert_eq(dt_disconnect(session, DT_TESTCLUSTER_PATIENCE_MS, &failure), DT_ERR_INVALID);
    cr_assert_str_eq(failure.operator_name, "aten::index_select");
    stop(tc);
}

Test(client, a_call_that_cannot_be_fails_at_once_with_the_backend_s_words)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[6] = {0};
    dt_failure_t failure;
    dt_tensor_t *result;
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){2, 3}, data);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_tensor(a)};
    cr_assert_eq(dt_call(session, "aten::mm", args, 2, &result, 1, NULL, &failure), DT_ERR_INVALID);
    cr_assert_str_neq(failure.kind, "");
    cr_assert_str_neq(failure.text, "");
    cr_assert_eq(dt_call(session, "aten::no_such_thing", args, 2, &result, 1, NULL, &failure),
                 DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_call(session, "aten::add.Tensor", args, 2, &result, 0, NULL, &failure),
                 DT_ERR_LIMIT, "no room for the result");
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, memory_over_the_limit_is_a_typed_error_and_the_next_operator_works)
{
    dt_testcluster_t *tc = start(NULL);
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .memory_limit_bytes = 16 << 20,
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    dt_session_t *session;
    dt_failure_t failure;
    const float one = 1;
    float is = 0;
    cr_assert_eq(dt_connect(&options, &session, NULL), DT_OK);
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){1, 1}, &one);
    static const int64_t large[] = {4096, 4096};
    dt_value_t args[] = {dt_arg_tensor(a), dt_arg_ints(large, 2), dt_arg_bool(false)};
    dt_tensor_t *wide = dt_clienttest_call(session, "aten::expand", args, 3);
    dt_tensor_t *huge = dt_clienttest_call2(session, "aten::add.Tensor", wide, wide);
    cr_assert_eq(dt_clienttest_fails(huge, &failure), DT_ERR_LIMIT, "%s", failure.text);
    cr_assert_str_eq(failure.kind, "OutOfMemoryError");
    dt_tensor_t *small = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_clienttest_read(small, &is, sizeof is);
    cr_assert_eq(is, 2);
    dt_tensor_t *const all[] = {a, wide, huge, small};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        dt_tensor_free(all[k]);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, a_result_whose_size_depends_on_values_is_learned_by_a_fetch)
{
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        cr_skip_test("ref has no operator of this kind");
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[5] = {0, 3, 0, 4, 5};
    int64_t is[3];
    dt_meta_t meta;
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){5}, data);
    dt_tensor_t *at =
        dt_clienttest_call(session, "aten::nonzero", (dt_value_t[]){dt_arg_tensor(a)}, 1);
    dt_tensor_t *twice = dt_clienttest_call2(session, "aten::add.Tensor", at, at);
    cr_assert_eq(dt_tensor_meta(at, &meta, NULL), DT_OK);
    cr_assert(meta.ndim == 2 && meta.sizes[0] == 3 && meta.sizes[1] == 1);
    dt_clienttest_read(twice, is, sizeof is);
    cr_assert(is[0] == 2 && is[1] == 6 && is[2] == 8);
    const dt_value_t flat[] = {dt_arg_tensor(a), dt_arg_int(0)};
    dt_tensor_t *row = dt_clienttest_call(session, "aten::unsqueeze", flat, 2);
    dt_tensor_t *pairs =
        dt_clienttest_call(session, "aten::nonzero", (dt_value_t[]){dt_arg_tensor(row)}, 1);
    cr_assert_eq(dt_tensor_meta(pairs, &meta, NULL), DT_OK);
    cr_assert(meta.ndim == 2 && meta.sizes[0] == 3 && meta.sizes[1] == 2);
    cr_assert(meta.strides[0] == 1 && meta.strides[1] == 3, "PyTorch's result is column-major");
    dt_tensor_free(row);
    dt_tensor_free(pairs);
    dt_tensor_free(a);
    dt_tensor_free(at);
    dt_tensor_free(twice);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, how_many_results_there_are_is_known_though_their_sizes_are_not)
{
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        cr_skip_test("ref has no operator of this kind");
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[5] = {3, 3, 1, 4, 3};
    float unique[3];
    int64_t counts[3];
    uint32_t count = 0;
    dt_tensor_t *out[8];
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){5}, data);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_bool(true), dt_arg_bool(true),
                               dt_arg_bool(true)};
    cr_assert_eq(dt_call(session, "aten::_unique2", args, 4, out, 8, &count, NULL), DT_OK);
    cr_assert_eq(count, 3, "%u results", count);
    dt_clienttest_read(out[0], unique, sizeof unique);
    dt_clienttest_read(out[2], counts, sizeof counts);
    cr_assert(unique[0] == 1 && unique[1] == 3 && unique[2] == 4);
    cr_assert(counts[0] == 1 && counts[1] == 3 && counts[2] == 1);
    for (uint32_t i = 0; i < count; i++)
        dt_tensor_free(out[i]);
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* ---- futures ---- */

Test(client, a_fetch_sees_the_value_at_its_place_in_the_program)
{
    enum { COUNT = 300 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t start_value = 0;
    dt_future_t *futures[COUNT];
    dt_tensor_t *x = dt_clienttest_i64(session, &start_value, 1);
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(1)};
    for (int i = 0; i < COUNT; i++) {
        dt_tensor_free(dt_clienttest_call(session, "aten::add_.Scalar", args, 2));
        cr_assert_eq(dt_fetch(x, &futures[i], NULL), DT_OK);
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        int64_t value;
        if (i % 3 == 0) { /* nobody wants this one any more */
            dt_future_free(futures[i]);
            continue;
        }
        cr_assert_eq(dt_future_wait(futures[i], DT_TESTCLUSTER_PATIENCE_MS, NULL), DT_OK);
        cr_assert(dt_future_ready(futures[i]));
        cr_assert_eq(dt_future_read(futures[i], &value, sizeof value, NULL), DT_OK);
        cr_assert_eq(value, i + 1);
        cr_assert_eq(dt_future_read(futures[i], &value, 4, NULL), DT_ERR_LIMIT);
        dt_future_free(futures[i]);
    }
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, waiting_has_a_limit_and_outlives_the_session)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t value = 5;
    dt_future_t *future;
    dt_failure_t failure;
    dt_tensor_t *x = dt_clienttest_i64(session, &value, 1);
    dt_testcluster_kill(tc, 0, SIGSTOP);
    cr_assert_eq(dt_fetch(x, &future, NULL), DT_OK);
    cr_assert_eq(dt_future_wait(future, 50, &failure), DT_ERR_TIMEOUT);
    cr_assert_eq(dt_disconnect(session, 50, &failure), DT_ERR_TIMEOUT);
    cr_assert_eq(dt_future_wait(future, -1, &failure), DT_ERR_STOPPED);
    dt_future_free(future);
    dt_tensor_free(x);
    dt_testcluster_kill(tc, 0, SIGCONT);
    stop(tc);
}

/* ---- the fast path ---- */

Test(client, a_front_end_defines_once_and_submits_by_number)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t data[2] = {1, 2};
    int64_t is[2];
    uint32_t sig, again;
    dt_operand_t operands[2] = {0};
    cr_assert_eq(dt_describe(DT_DTYPE_I64, 1, (int64_t[]){2}, NULL, &operands[0].meta, NULL),
                 DT_OK);
    operands[1] = operands[0];
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_tag(DT_VALUE_TENSOR),
                               dt_arg_tag(DT_VALUE_DYNAMIC)};
    dt_operation_t add = {.name = "aten::add.Tensor",
                          .args = args,
                          .arg_count = 3,
                          .inputs = operands,
                          .input_count = 2};
    const dt_output_t output = {.alias = DT_ALIAS_FRESH, .meta = operands[0].meta};
    cr_assert_eq(dt_signature_find(session, &add, &sig, NULL), DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_signature_define(session, &add, &output, 1, 0, &sig, NULL), DT_OK);
    cr_assert_eq(dt_signature_find(session, &add, &again, NULL), DT_OK);
    cr_assert_eq(sig, again);
    dt_tensor_t *x = dt_clienttest_i64(session, data, 2);
    uint64_t id = dt_tensor_id(x);
    for (int i = 0; i < 1000; i++) { /* id = id + i * x */
        const uint64_t inputs[] = {id, dt_tensor_id(x)};
        const dt_value_t scalar = dt_arg_int(i);
        uint64_t out;
        cr_assert_eq(dt_submit(session, sig, inputs, 2, &scalar, 1, &out, 1, NULL), DT_OK);
        if (id != dt_tensor_id(x))
            dt_free_ids(session, &id, 1);
        id = out;
    }
    dt_tensor_t *sum;
    cr_assert_eq(dt_tensor_adopt(session, id, 0, &output.meta, &sum, NULL), DT_OK);
    dt_clienttest_read(sum, is, sizeof is);
    cr_assert(is[0] == 1 + 499500 && is[1] == 2 + 2 * 499500);
    cr_assert_eq(dt_submit(session, sig, &id, 1, NULL, 0, &id, 1, NULL), DT_ERR_INVALID);
    dt_tensor_free(sum);
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* The second signature of one family is asked for when the number is dynamic already. */
Test(client, a_dynamic_fraction_with_whole_numbers_gives_fractions)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t data[1] = {10};
    dt_tensor_t *x = dt_clienttest_i64(session, data, 1);
    for (int i = 0; i < 8; i++) {
        const int64_t alpha = i < 6 ? 1 : 2;
        const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_double(i + 0.5), dt_arg_int(alpha)};
        float is;
        dt_tensor_t *sum = dt_clienttest_call(session, "aten::add.Scalar", args, 3);
        dt_clienttest_read(sum, &is, sizeof is);
        cr_assert_float_eq(is, 10 + (float)alpha * ((float)i + 0.5F), 1e-6, "%d: %g", i, is);
        dt_tensor_free(sum);
    }
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, a_wrong_claim_about_outputs_is_an_error_at_the_fetch)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t data[2] = {1, 2};
    uint32_t sig;
    dt_operand_t operands[2] = {0};
    dt_output_t output = {.alias = DT_ALIAS_FRESH};
    dt_failure_t failure;
    cr_assert_eq(dt_describe(DT_DTYPE_I64, 1, (int64_t[]){2}, NULL, &operands[0].meta, NULL),
                 DT_OK);
    cr_assert_eq(dt_describe(DT_DTYPE_I64, 1, (int64_t[]){3}, NULL, &output.meta, NULL), DT_OK);
    operands[1] = operands[0];
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_tag(DT_VALUE_TENSOR)};
    dt_operation_t add = {.name = "aten::add.Tensor",
                          .args = args,
                          .arg_count = 2,
                          .inputs = operands,
                          .input_count = 2};
    cr_assert_eq(dt_signature_define(session, &add, &output, 1, 0, &sig, NULL), DT_OK);
    dt_tensor_t *x = dt_clienttest_i64(session, data, 2), *sum;
    const uint64_t inputs[] = {dt_tensor_id(x), dt_tensor_id(x)};
    uint64_t id;
    cr_assert_eq(dt_submit(session, sig, inputs, 2, NULL, 0, &id, 1, NULL), DT_OK);
    cr_assert_eq(dt_tensor_adopt(session, id, 0, &output.meta, &sum, NULL), DT_OK);
    cr_assert_neq(dt_clienttest_fails(sum, &failure), DT_OK);
    cr_assert_str_eq(failure.kind, "MetadataError");
    dt_tensor_free(sum);
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* ---- connections ---- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* A random program of integers on `session` and on this machine; they must agree. Each connection
 * is cut at a random byte while it runs. */
static void run_random(dt_session_t *session, dt_testproxy_t *proxy, uint64_t seed)
{
    enum { TENSORS = 6, WIDTH = 4, STEPS = 1500 };
    static const char *const binary[] = {"aten::add.Tensor", "aten::sub.Tensor",
                                         "aten::mul.Tensor"};
    uint64_t random = seed;
    int64_t value[TENSORS][WIDTH];
    dt_tensor_t *tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        for (int k = 0; k < WIDTH; k++)
            value[i][k] = (int64_t)next_random(&random) % 100;
        tensors[i] = dt_clienttest_i64(session, value[i], WIDTH);
    }
    dt_testproxy_cut_after(proxy, (long)(next_random(&random) % 3000));
    int cuts = dt_testproxy_cuts(proxy);
    for (int step = 0; step < STEPS; step++) {
        unsigned a = next_random(&random) % TENSORS, b = next_random(&random) % TENSORS;
        unsigned to = next_random(&random) % TENSORS, what = next_random(&random) % 40;
        if (what < 20) {
            dt_tensor_t *made =
                dt_clienttest_call2(session, binary[what % 3], tensors[a], tensors[b]);
            for (int k = 0; k < WIDTH; k++) {
                uint64_t x = (uint64_t)value[a][k], y = (uint64_t)value[b][k];
                value[to][k] = (int64_t)(what % 3 == 0 ? x + y : what % 3 == 1 ? x - y : x * y);
            }
            dt_tensor_free(tensors[to]);
            tensors[to] = made;
        } else if (what < 39) {
            const dt_value_t args[] = {dt_arg_tensor(tensors[to]), dt_arg_int(what)};
            dt_tensor_free(dt_clienttest_call(session, "aten::add_.Scalar", args, 2));
            for (int k = 0; k < WIDTH; k++)
                value[to][k] += what;
        } else {
            int64_t is[WIDTH];
            dt_clienttest_read(tensors[to], is, sizeof is);
            cr_assert_arr_eq(is, value[to], sizeof is, "seed %lu, step %d", (unsigned long)seed,
                             step);
        }
        if (dt_testproxy_cuts(proxy) != cuts) {
            cuts = dt_testproxy_cuts(proxy);
            dt_testproxy_cut_after(proxy, (long)(next_random(&random) % 8000));
        }
    }
    dt_testproxy_cut_after(proxy, -1);
    for (int i = 0; i < TENSORS; i++) {
        int64_t is[WIDTH];
        dt_clienttest_read(tensors[i], is, sizeof is);
        cr_assert_arr_eq(is, value[i], sizeof is, "seed %lu, tensor %d", (unsigned long)seed, i);
        dt_tensor_free(tensors[i]);
    }
}

Test(client, connections_cut_at_any_byte_lose_and_repeat_nothing)
{
    dt_testcluster_t *tc = start(NULL);
    const char *wanted = getenv("DT_TEST_SEEDS");
    unsigned long seeds = wanted ? strtoul(wanted, NULL, 10) : 12;
    uint64_t reconnects = 0;
    dt_testproxy_t *proxy = dt_testproxy_start(dt_testcluster_controller_socket(tc));
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testproxy_port(proxy));
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        dt_session_t *session = dt_clienttest_connect(tc, address, NULL);
        dt_session_info_t info = {.struct_size = sizeof info};
        run_random(session, proxy, seed);
        cr_assert_eq(dt_session_info(session, &info), DT_OK);
        reconnects += info.reconnects;
        dt_clienttest_disconnect(session);
    }
    cr_assert_geq(reconnects, seeds, "connections were cut");
    dt_testproxy_stop(proxy);
    stop(tc);
}

Test(client, large_transfers_survive_cuts)
{
    enum { COUNT = 3 * 1024 * 1024 / 8 };
    dt_testcluster_t *tc = start(NULL);
    dt_testproxy_t *proxy = dt_testproxy_start(dt_testcluster_controller_socket(tc));
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testproxy_port(proxy));
    cr_assert_eq(setenv("DTORCH_DATA_PATH", "relay", 1), 0); /* the proxy is on that way */
    dt_session_t *session = dt_clienttest_connect(tc, address, NULL);
    int64_t *data = malloc(COUNT * sizeof *data), *is = malloc(COUNT * sizeof *is);
    cr_assert(data && is);
    for (int round = 0; round < 3; round++) {
        for (int64_t i = 0; i < COUNT; i++)
            data[i] = i * (round + 3);
        dt_testproxy_cut_after(proxy, 1500000 + 10007 * round);
        dt_tensor_t *a = dt_clienttest_i64(session, data, COUNT);
        cr_assert_eq(dt_synchronize(session, DT_TESTCLUSTER_PATIENCE_MS, NULL), DT_OK);
        dt_testproxy_cut_after(proxy, 1100000 + 20011 * round);
        memset(is, 0, COUNT * sizeof *is);
        dt_clienttest_read(a, is, COUNT * sizeof *is);
        cr_assert_eq(memcmp(is, data, COUNT * sizeof *is), 0, "round %d", round);
        dt_tensor_free(a);
    }
    cr_assert_geq(dt_testproxy_cuts(proxy), 3);
    dt_clienttest_disconnect(session);
    dt_testproxy_stop(proxy);
    free(data);
    free(is);
    stop(tc);
}

Test(client, a_controller_that_forgot_the_session_ends_it_with_LOST)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t value = 5;
    dt_failure_t failure;
    dt_tensor_t *x = dt_clienttest_i64(session, &value, 1), *y;
    int code;
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(
        dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, DT_TESTCLUSTER_PATIENCE_MS, &code));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    cr_assert_eq(dt_clienttest_fails(x, &failure), DT_ERR_LOST, "%s", failure.error.text);
    const dt_value_t args[] = {dt_arg_tensor(x)};
    cr_assert_eq(dt_call(session, "aten::neg", args, 1, &y, 1, NULL, &failure), DT_ERR_LOST);
    dt_tensor_free(x);
    cr_assert_eq(dt_disconnect(session, 1000, &failure), DT_ERR_LOST);
    stop(tc);
}

/* ---- threads, fork, bounds ---- */

struct worker {
    pthread_t thread;
    dt_session_t *session;
    int number;
    int64_t is;
};

static void *add_many(void *arg)
{
    struct worker *w = arg;
    const int64_t begin = w->number;
    dt_tensor_t *x = dt_clienttest_i64(w->session, &begin, 1);
    for (int i = 0; i < 2000; i++) {
        const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(i % 3)};
        dt_tensor_t *y = dt_clienttest_call(w->session, "aten::add.Scalar", args, 2);
        dt_tensor_free(x);
        x = y;
        if (i % 500 == 0)
            dt_clienttest_read(x, &w->is, sizeof w->is);
    }
    dt_clienttest_read(x, &w->is, sizeof w->is);
    dt_tensor_free(x);
    return NULL;
}

Test(client, threads_share_a_session)
{
    enum { THREADS = 6 };
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.session = session, .number = i * 1000};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, add_many, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(workers[i].thread, NULL), 0);
        cr_assert_eq(workers[i].is, i * 1000 + 1999, "thread %d", i); /* 0 1 2 0 1 2 ... 0 1 */
    }
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(client, a_forked_child_is_told_so)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t value = 7;
    int64_t is = 0;
    dt_tensor_t *x = dt_clienttest_i64(session, &value, 1);
    pid_t child = fork();
    if (child == 0) {
        dt_error_t err;
        dt_future_t *future;
        bool is_told = dt_fetch(x, &future, &err) == DT_ERR_STOPPED && strstr(err.text, "fork");
        dt_tensor_free(x);
        _exit(is_told ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    dt_clienttest_read(x, &is, sizeof is);
    cr_assert_eq(is, 7);
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

static void *produce(void *arg)
{
    struct worker *w = arg;
    const int64_t begin = 0;
    dt_tensor_t *x = dt_clienttest_i64(w->session, &begin, 1);
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(1)};
    dt_failure_t failure;
    dt_tensor_t *same;
    w->is = 0;
    while (w->is < 3000000 &&
           dt_call(w->session, "aten::add_.Scalar", args, 2, &same, 1, NULL, &failure) == DT_OK) {
        dt_tensor_free(same);
        __atomic_add_fetch(&w->is, 1, __ATOMIC_RELAXED);
    }
    dt_tensor_free(x);
    return NULL;
}

static bool has_begun(dt_testcluster_t *tc, void *arg)
{
    struct worker *w = arg;
    (void)tc;
    return __atomic_load_n(&w->is, __ATOMIC_RELAXED) >= 1000;
}

static bool stands_still(dt_testcluster_t *tc, void *arg)
{
    static int64_t last, since_ms;
    struct worker *w = arg;
    int64_t now = __atomic_load_n(&w->is, __ATOMIC_RELAXED);
    (void)tc;
    if (now != last || now < 1000) {
        last = now;
        since_ms = dt_test_now_ms();
    }
    return dt_test_now_ms() - since_ms > 500;
}

Test(client, a_program_waits_when_the_window_is_full_and_ends_all_the_same)
{
    dt_testcluster_t *tc = start(NULL);
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    struct worker w = {.session = session};
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(pthread_create(&w.thread, NULL, produce, &w), 0);
    cr_assert(dt_testcluster_wait(tc, has_begun, &w, DT_TESTCLUSTER_PATIENCE_MS));
    dt_testcluster_kill(tc, 0, SIGSTOP);
    cr_assert(dt_testcluster_wait(tc, stands_still, &w, DT_TESTCLUSTER_PATIENCE_MS));
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    dt_testcluster_kill(tc, 0, SIGCONT);
    cr_assert_eq(pthread_join(w.thread, NULL), 0);
    cr_assert_eq(w.is, 3000000);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* ---- drain ---- */

Test(client, a_node_is_drained_only_when_its_last_session_has_ended)
{
    dt_testcluster_t *tc = start("Isolation=tenant\n");
    float data[4] = {1, 2, 3, 4}, is[4];
    for (int round = 0; round < 2; round++) { /* the second one finds the engine lingering */
        dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
        cr_assert_eq(dt_testcluster_set_node(tc, 0, DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN,
                                             "look", NULL),
                     DT_OK);
        dt_tensor_t *tensor = dt_clienttest_f32(session, 1, (int64_t[]){4}, data);
        dt_clienttest_read(tensor, is, sizeof is);
        cr_assert(dt_testcluster_wait_admin(tc, 0, DTORCH__V1__NODE_INTENT__ADMIN__DRAINING,
                                            DT_TESTCLUSTER_PATIENCE_MS),
                  "drained under a program\n%s", dt_testcluster_logs(tc));
        dt_tensor_free(tensor);
        dt_clienttest_disconnect(session);
        cr_assert(dt_testcluster_wait_admin(tc, 0, DTORCH__V1__NODE_INTENT__ADMIN__DRAINED,
                                            DT_TESTCLUSTER_PATIENCE_MS),
                  "%s", dt_testcluster_logs(tc));
        cr_assert_eq(
            dt_testcluster_set_node(tc, 0, DTORCH__V1__SET_NODE_REQUEST__CHANGE__UNDRAIN, "", NULL),
            DT_OK);
    }
    stop(tc);
}

/* ---- private clusters, examples ---- */

Test(client, without_an_address_a_private_cluster_is_started_and_ended)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .flags = DT_CONNECT_PRIVATE,
                                    .bin_dir = getenv("DT_TEST_BIN"),
                                    .private_devices = dt_clienttest_devices(),
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    dt_session_t *session;
    dt_session_info_t info = {.struct_size = sizeof info};
    dt_binding_t binding;
    dt_error_t err;
    const int64_t value = 21;
    int64_t is;
    uint32_t count;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    dt_tensor_t *x = dt_clienttest_i64(session, &value, 1);
    dt_tensor_t *y = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    dt_clienttest_read(y, &is, sizeof is);
    cr_assert_eq(is, 42);
    cr_assert(dt_session_info(session, &info) == DT_OK && info.is_private);
    cr_assert_eq(dt_session_bindings(session, &binding, 1, &count), DT_OK);
    cr_assert(count == 1 && strcmp(binding.node, "local") == 0);
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_clienttest_disconnect(session);
}

/* The child of a test: a program with a private cluster, which says that it has one and is killed.
 */
static void be_killed(int ready)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .flags = DT_CONNECT_PRIVATE,
                                    .bin_dir = getenv("DT_TEST_BIN"),
                                    .private_devices = "ref",
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    dt_session_t *session;
    dt_error_t err;
    if (dt_connect(&options, &session, &err) != DT_OK)
        _exit(1);
    if (write(ready, "x", 1) != 1)
        _exit(2);
    (void)pause();
    _exit(3);
}

/* Folders of private clusters. */
static size_t count_folders(const char *base)
{
    size_t count = 0;
    DIR *folder = opendir(base);
    const struct dirent *entry;
    cr_assert_not_null(folder);
    while ((entry = readdir(folder)) != NULL)
        count += strncmp(entry->d_name, "dtorch-", 7) == 0;
    (void)closedir(folder);
    return count;
}

Test(client, a_private_cluster_of_a_killed_program_leaves_nothing_that_stays)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .flags = DT_CONNECT_PRIVATE,
                                    .bin_dir = getenv("DT_TEST_BIN"),
                                    .private_devices = "ref",
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    dt_temptree_t tree;
    dt_session_t *session;
    dt_error_t err;
    char byte;
    int ends[2], status;
    dt_temptree_init(&tree);
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", tree.root, 1), 0);
    dt_testproc_adopt_orphans();
    cr_assert_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0)
        be_killed(ends[1]);
    (void)close(ends[1]);
    cr_assert_eq(read(ends[0], &byte, 1), 1, "the program did not begin");
    cr_assert_eq(count_folders(tree.root), 1);
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    cr_assert_eq(count_folders(tree.root), 2, "one that is in use is let alone");
    dt_clienttest_disconnect(session);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(dt_testproc_orphans_left(DT_TESTCLUSTER_PATIENCE_MS), 0, "a daemon stayed");
    cr_assert_eq(count_folders(tree.root), 1);
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    cr_assert_eq(count_folders(tree.root), 1, "the left one is gone");
    dt_clienttest_disconnect(session);
    cr_assert_eq(count_folders(tree.root), 0);
    dt_temptree_fini(&tree);
}

Test(client, a_private_cluster_that_cannot_start_says_why)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .flags = DT_CONNECT_PRIVATE,
                                    .bin_dir = getenv("DT_TEST_BIN"),
                                    .private_devices = "no-such-backend:1"};
    dt_session_t *session;
    dt_error_t err;
    cr_assert_neq(dt_connect(&options, &session, &err), DT_OK);
    cr_assert_not_null(strstr(err.text, "no-such-backend"), "%s", err.text);
    options.bin_dir = "/nonexistent";
    cr_assert_eq(dt_connect(&options, &session, &err), DT_ERR_NOT_FOUND);
}

Test(client, the_examples_run)
{
    static const char *const names[] = {"matmul", "mlp_train", "async_fetch", "mesh"};
    dt_testcluster_t *tc = start(NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        const char *args[] = {dt_testcluster_controller_socket(tc), NULL};
        (void)snprintf(path, sizeof path, "%s/%s", getenv("DT_TEST_EXAMPLES"), names[i]);
        dt_testrun_t run = dt_testrun_program(path, args, NULL);
        cr_assert_eq(run.code, 0, "%s: %s%s", names[i], run.out, run.err);
        dt_testrun_fini(&run);
    }
    stop(tc);
}
