/* Bytes of large tensors between a program and a node, by each way that they can take. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clienttest.h"

TestSuite(bulk, .timeout = 240);

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
