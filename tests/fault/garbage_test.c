/* Garbage on every method of every service, from where each may be called: it is answered with an
 * error, costs no memory that stays, and disturbs nobody. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/testcluster.h"
#include "rpc/rpc.h"

#define LONG_MS      DT_TESTCLUSTER_PATIENCE_MS
#define MIB          (INT64_C(1) << 20)
#define GARBAGE_MAX  (3u << 20)
#define NOISE_ROUNDS 8

TestSuite(garbage, .timeout = 600);

static const char *const unary[] = {
    "dtorch.v1.Admin/GetCluster",    "dtorch.v1.Admin/ListNodes",
    "dtorch.v1.Admin/SetNode",       "dtorch.v1.Admin/ListEvents",
    "dtorch.v1.Admin/GetConfig",     "dtorch.v1.Admin/GetDiagnostics",
    "dtorch.v1.Admin/CreateToken",   "dtorch.v1.Admin/ListTokens",
    "dtorch.v1.Admin/RevokeToken",   "dtorch.v1.Worker/Join",
    "grpc.health.v1.Health/Check",   "dtorch.v1.Worker/",
    "dtorch.v1.Admin/GetClusterTwo",
};
static const char *const streams[] = {
    "dtorch.v1.Worker/Stream",
    "dtorch.v1.Admin/FollowEvents",
    "grpc.health.v1.Health/Watch",
    "dtorch.v1.Session/Stream",
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Kinds of garbage; the last kind is noise of `seed`. Returns the size. */
static size_t make_garbage(unsigned kind, uint64_t seed, uint8_t *out)
{
    size_t size = 0;
    switch (kind) {
    case 0: /* a field's length runs over the end */
        memcpy(out, "\x0a\xff\xff\xff\xff\x0f", 6);
        return 6;
    case 1: /* a varint without an end */
        memset(out, 0xff, 64);
        return 64;
    case 2: /* half a million of empty strings */
        for (size = 0; size < 1u << 20; size += 2)
            memcpy(out + size, "\x0a\x00", 2);
        return size;
    case 3: /* one string of all the room */
        memset(out, 'a', GARBAGE_MAX);
        memcpy(out, "\x0a\xf0\xff\x3f", 4);
        return (0x3fu << 14 | 0x7fu << 7 | 0x70u) + 4;
    case 4: /* messages in messages, as deep as they go */
        for (size = 0; size < 3000; size += 3)
            memcpy(out + size, "\x0a\xff\x7f", 3);
        return size;
    case 5: /* text that is no text: NUL, half of a sequence, terminal controls */
        memcpy(out,
               "\x0a\x08"
               "a\0b\xc3\x28\x1b[2",
               10);
        return 10;
    case 6: /* enumerators that there are not, numbers out of all bounds */
        for (unsigned field = 1; field < 16; field++) {
            out[size++] = (uint8_t)(field << 3);
            memset(out + size, 0xff, 9);
            size += 9;
            out[size++] = 1;
        }
        return size;
    case 7: /* groups, which nobody has made for twenty years */
        memset(out, 0x0b, 4096);
        return 4096;
    default:
        size = next_random(&seed) % 200;
        for (size_t i = 0; i < size; i++)
            out[i] = (uint8_t)next_random(&seed);
        return size;
    }
}

static void say(const char *address, const char *name, bool is_stream, const uint8_t *data,
                size_t size)
{
    char method[96];
    uint8_t *reply = NULL;
    size_t reply_size = 0;
    dt_rpc_reader_t *reader;
    dt_error_t err = {0};
    (void)snprintf(method, sizeof method, "/%s", name);
    if (!is_stream) {
        dt_status_t status = dt_rpc_call_blocking(address, NULL, method, data, size, LONG_MS,
                                                  &reply, &reply_size, &err);
        cr_assert_neq(status, DT_ERR_TIMEOUT, "%s did not answer on %s", name, address);
        if (status == DT_OK)
            free(reply);
        return;
    }
    if (dt_rpc_reader_open(address, NULL, method, true, data, size, LONG_MS, &reader, &err) !=
        DT_OK)
        return;
    if (dt_rpc_reader_next(reader, 20, &reply, &reply_size, &err) == DT_OK)
        free(reply);
    dt_rpc_reader_free(reader);
}

static void say_all(const char *address, uint8_t *garbage)
{
    for (unsigned kind = 0; kind < 8 + NOISE_ROUNDS; kind++) {
        size_t size = make_garbage(kind, 0x9e3779b97f4a7c15u * (kind + 1), garbage);
        for (size_t i = 0; i < sizeof unary / sizeof *unary; i++)
            say(address, unary[i], false, garbage, size);
        if (kind < 12)
            for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
                say(address, streams[i], true, garbage, size);
    }
}

static bool is_undisturbed(const Dtorch__V1__Node *node, void *arg)
{
    (void)arg;
    return node->health == DTORCH__V1__NODE_HEALTH__NODE_OK && node->session_count == 1;
}

Test(garbage, on_every_method_is_refused_and_disturbs_nobody)
{
    const char *bin = getenv("DT_TEST_BIN");
    bool is_sanitized = bin && (strstr(bin, "/asan/") || strstr(bin, "/tsan/"));
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .is_strict = true});
    uint8_t *garbage = malloc(GARBAGE_MAX + 16);
    char tcp[64];
    cr_assert(garbage);
    (void)snprintf(tcp, sizeof tcp, "127.0.0.1:%d", dt_testcluster_port(tc));
    say_all(dt_testcluster_admin_socket(tc), garbage); /* buffers have their size after this */
    int64_t before = dt_testcluster_rss_bytes(tc, DT_TESTCLUSTER_CONTROLLER);
    say_all(dt_testcluster_controller_socket(tc), garbage);
    say_all(tcp, garbage);
    free(garbage);
    int64_t grown = dt_testcluster_rss_bytes(tc, DT_TESTCLUSTER_CONTROLLER) - before;
    if (!is_sanitized)
        cr_assert_lt(grown, 48 * MIB, "%lld MiB more", (long long)(grown / MIB));
    cr_assert(dt_testcluster_wait_node(tc, 0, is_undisturbed, NULL, LONG_MS), "%s",
              dt_testcluster_logs(tc));
    Dtorch__V1__NodeList *nodes = dt_testcluster_nodes(tc);
    cr_assert(nodes && nodes->n_nodes == 1, "garbage made a node");
    dtorch__v1__node_list__free_unpacked(nodes, NULL);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
