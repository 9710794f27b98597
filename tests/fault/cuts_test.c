/* Connections that are cut at any byte: between program and controller, between controller and
 * worker, and both at once. A random program of integers runs on the cluster and on this machine;
 * counters that are written in place tell whether an operator took effect once, large tensors go
 * by the bulk streams. DT_TEST_SEEDS=N runs N programs, DT_TEST_SEED=S begins at S. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"
#include "lib/testproxy.h"

TestSuite(cuts, .timeout = 3600); /* a soak runs hundreds of programs; see DT_TEST_LIMIT */

#define TENSORS  6
#define SMALL    4
#define LARGE    20000 /* elements: 160 kB, of the last tensor */
#define STEPS    250
#define CUTS_MAX 8 /* of a program on one hop: each costs a dial */

struct program {
    dt_session_t *session;
    uint64_t seed;
    uint64_t random;
    dt_tensor_t *tensors[TENSORS];
    int64_t *value[TENSORS];
};

/* One hop. */
struct hop {
    dt_testproxy_t *proxy;
    bool is_cut;
    int cuts; /* seen so far, and from when it began */
    int first;
};

static uint64_t draw(struct program *p, uint64_t below)
{
    p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (p->random >> 33) % below;
}

static int64_t count_of(int tensor)
{
    return tensor == TENSORS - 1 ? LARGE : SMALL;
}

static void arm(struct program *p, struct hop *hop)
{
    static const uint64_t reach[] = {400, 8000, 300000};
    dt_testproxy_cut_after(hop->proxy, (long)draw(p, reach[draw(p, 3)]));
}

static void look(struct program *p, struct hop *hop)
{
    int cuts = dt_testproxy_cuts(hop->proxy);
    if (!hop->is_cut || cuts == hop->cuts || cuts - hop->first >= CUTS_MAX)
        return;
    hop->cuts = cuts;
    arm(p, hop);
}

static void upload(struct program *p, int to)
{
    int64_t factor = (int64_t)draw(p, 1000);
    for (int64_t i = 0; i < count_of(to); i++)
        p->value[to][i] = i * factor - 7;
    dt_tensor_free(p->tensors[to]);
    p->tensors[to] = dt_clienttest_i64(p->session, p->value[to], count_of(to));
}

static void read_back(struct program *p, int which, int step)
{
    size_t size = (size_t)count_of(which) * sizeof(int64_t);
    int64_t *is = malloc(size);
    cr_assert(is);
    dt_clienttest_read(p->tensors[which], is, size);
    for (int64_t i = 0; i < count_of(which); i++)
        cr_assert_eq(is[i], p->value[which][i],
                     "seed %llu, step %d, tensor %d, element %lld: %lld, not %lld",
                     (unsigned long long)p->seed, step, which, (long long)i, (long long)is[i],
                     (long long)p->value[which][i]);
    free(is);
}

static void binary(struct program *p, int to)
{
    int a = to == TENSORS - 1 ? to : (int)draw(p, TENSORS - 1);
    int b = to == TENSORS - 1 ? to : (int)draw(p, TENSORS - 1);
    bool is_sum = draw(p, 2);
    dt_tensor_t *made = dt_clienttest_call2(
        p->session, is_sum ? "aten::add.Tensor" : "aten::mul.Tensor", p->tensors[a], p->tensors[b]);
    for (int64_t i = 0; i < count_of(to); i++) {
        uint64_t x = (uint64_t)p->value[a][i], y = (uint64_t)p->value[b][i];
        p->value[to][i] = (int64_t)(is_sum ? x + y : x * y);
    }
    dt_tensor_free(p->tensors[to]);
    p->tensors[to] = made;
}

/* Through a view: the second half of `to` is doubled where it lies. */
static void double_half(struct program *p, int to)
{
    int64_t count = count_of(to);
    const dt_value_t args[] = {dt_arg_tensor(p->tensors[to]), dt_arg_int(0), dt_arg_int(count / 2),
                               dt_arg_int(count)};
    dt_tensor_t *half = dt_clienttest_call(p->session, "aten::slice.Tensor", args, 4);
    dt_tensor_free(dt_clienttest_call2(p->session, "aten::add_.Tensor", half, half));
    dt_tensor_free(half);
    for (int64_t i = count / 2; i < count; i++)
        p->value[to][i] = (int64_t)((uint64_t)p->value[to][i] * 2);
}

static void count_up(struct program *p, int to)
{
    int64_t by = (int64_t)draw(p, 100);
    const dt_value_t args[] = {dt_arg_tensor(p->tensors[to]), dt_arg_int(by)};
    dt_tensor_free(dt_clienttest_call(p->session, "aten::add_.Scalar", args, 2));
    for (int64_t i = 0; i < count_of(to); i++)
        p->value[to][i] = (int64_t)((uint64_t)p->value[to][i] + (uint64_t)by);
}

static void run(struct program *p, struct hop *hops, int hop_count)
{
    for (int i = 0; i < TENSORS; i++) {
        p->value[i] = malloc((size_t)count_of(i) * sizeof(int64_t));
        cr_assert(p->value[i]);
        upload(p, i);
    }
    for (int step = 0; step < STEPS; step++) {
        int to = (int)draw(p, TENSORS), what = (int)draw(p, 40);
        if (what < 12)
            binary(p, to);
        else if (what < 28)
            count_up(p, to);
        else if (what < 35)
            double_half(p, to);
        else if (what < 37)
            upload(p, to);
        else
            read_back(p, to, step);
        for (int i = 0; i < hop_count; i++)
            look(p, &hops[i]);
    }
    for (int i = 0; i < hop_count; i++)
        dt_testproxy_cut_after(hops[i].proxy, -1);
    for (int i = 0; i < TENSORS; i++) {
        read_back(p, i, STEPS);
        dt_tensor_free(p->tensors[i]);
        free(p->value[i]);
    }
}

static unsigned long number_from(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

/* Run one program. Returns how often it was cut. */
static int run_seed(dt_testcluster_t *tc, struct hop *hops, const char *address, uint64_t seed)
{
    struct program p = {.seed = seed, .random = seed};
    int cuts = 0;
    for (int i = 0; i < 2; i++) { /* the client's hop, the worker's, both */
        hops[i].is_cut = seed % 3 == 2 || seed % 3 == (uint64_t)i;
        hops[i].first = hops[i].cuts = dt_testproxy_cuts(hops[i].proxy);
    }
    p.session = dt_clienttest_connect(tc, address, NULL);
    for (int i = 0; i < 2; i++)
        if (hops[i].is_cut)
            arm(&p, &hops[i]);
    run(&p, hops, 2);
    dt_clienttest_disconnect(p.session);
    for (int i = 0; i < 2; i++)
        cuts += dt_testproxy_cuts(hops[i].proxy) - hops[i].first;
    return cuts;
}

Test(cuts, on_either_hop_and_on_both_lose_and_repeat_nothing)
{
    char conf[256], address[64];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = conf, .use_proxy = true});
    struct hop hops[2] = {
        {.proxy = dt_testproxy_start(dt_testcluster_controller_socket(tc))},
        {.proxy = dt_testcluster_proxy(tc, 0)},
    };
    unsigned long first = number_from("DT_TEST_SEED", 1), count = number_from("DT_TEST_SEEDS", 6);
    unsigned long cuts = 0;
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testproxy_port(hops[0].proxy));
    for (unsigned long i = 0; i < count; i++)
        cuts += (unsigned long)run_seed(tc, hops, address, first + i);
    cr_assert_geq(cuts, count, "connections were cut");
    dt_testproxy_stop(hops[0].proxy);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
