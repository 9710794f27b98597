/* Daemons and engines are killed, stopped, ended and started at random moments, for a while. What a
 * person was promised is there afterwards, and everything comes back without help. The seed is
 * printed when it fails; DT_TEST_CHAOS_S= and DT_TEST_CHAOS_SEED= choose. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/testcluster.h"

#define WORKERS  3
#define CTRL     DT_TESTCLUSTER_CONTROLLER
#define CHAOS_S  8
#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS

TestSuite(chaos, .timeout = 900);

struct chaos {
    dt_testcluster_t *tc;
    uint64_t random;
    bool is_running[WORKERS + 1]; /* the controller last */
    bool is_stopped[WORKERS + 1];
    unsigned labels_tried;
    unsigned promised[WORKERS];  /* number of the last label that was acknowledged */
    unsigned attempted[WORKERS]; /* the last that was tried: it may be there without an answer */
};

static int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? (int)strtol(text, NULL, 10) : otherwise;
}

static unsigned pick(struct chaos *c, unsigned count)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (unsigned)((c->random >> 20) % count);
}

static int who_of(unsigned slot)
{
    return slot == WORKERS ? CTRL : (int)slot;
}

static void wait_end(struct chaos *c, unsigned slot, int wanted, int otherwise)
{
    int code = -1;
    cr_assert(dt_testcluster_wait_exit(c->tc, who_of(slot), PATIENCE, &code),
              "daemon %u did not end\n%s", slot, dt_testcluster_logs(c->tc));
    cr_assert(code == wanted || code == otherwise, "daemon %u ended with %d, not %d\n%s", slot,
              code, wanted, dt_testcluster_logs(c->tc));
    c->is_running[slot] = c->is_stopped[slot] = false;
}

static void go_on(struct chaos *c, unsigned slot)
{
    if (c->is_stopped[slot])
        dt_testcluster_kill(c->tc, who_of(slot), SIGCONT);
    c->is_stopped[slot] = false;
}

static void hurt_daemon(struct chaos *c)
{
    unsigned slot = pick(c, WORKERS + 1);
    if (!c->is_running[slot]) {
        dt_testcluster_spawn(c->tc, who_of(slot), NULL);
        c->is_running[slot] = true;
        return;
    }
    switch (pick(c, 5)) {
    case 0:
        dt_testcluster_kill(c->tc, who_of(slot), SIGKILL);
        wait_end(c, slot, 128 + SIGKILL, 128 + SIGKILL);
        break;
    case 1: /* before its handler is there, SIGTERM is what ends it */
        go_on(c, slot);
        dt_testcluster_kill(c->tc, who_of(slot), SIGTERM);
        wait_end(c, slot, 0, 128 + SIGTERM);
        break;
    case 2:
        dt_testcluster_kill(c->tc, who_of(slot), SIGSTOP);
        c->is_stopped[slot] = true;
        break;
    default:
        go_on(c, slot);
    }
}

static void hurt_engine(struct chaos *c)
{
    static const int signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGSTOP, SIGTERM, SIGBUS, SIGFPE};
    Dtorch__V1__NodeList *list =
        c->is_running[WORKERS] && !c->is_stopped[WORKERS] ? dt_testcluster_nodes(c->tc) : NULL;
    unsigned worker = pick(c, WORKERS);
    int signo = signals[pick(c, sizeof signals / sizeof *signals)];
    for (size_t i = 0; list && i < list->n_nodes; i++) {
        const Dtorch__V1__Node *node = list->nodes[i];
        if (node->name[1] != (char)('0' + worker) || node->n_engines == 0)
            continue;
        /* Only a process of ours: the pid may be an old one. */
        char path[64];
        (void)snprintf(path, sizeof path, "/proc/%u/comm", node->engines[0]->pid);
        char *comm = node->engines[0]->pid ? dt_test_read_file(path) : NULL;
        if (comm && strncmp(comm, "dtorch", 6) == 0)
            (void)kill((pid_t)node->engines[0]->pid, signo);
        free(comm);
    }
    if (list)
        dtorch__v1__node_list__free_unpacked(list, NULL);
}

/* Ask for a label. Only an answer of OK is a promise. */
static void set_label(struct chaos *c)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    Dtorch__V1__Label one = DTORCH__V1__LABEL__INIT, *labels[] = {&one};
    char name[8], key[] = "n", value[16], *names[] = {name};
    unsigned worker = pick(c, WORKERS), number = ++c->labels_tried;
    uint8_t *reply = NULL;
    size_t size;
    if (!c->is_running[WORKERS] || c->is_stopped[WORKERS])
        return;
    (void)snprintf(name, sizeof name, "w%u", worker);
    (void)snprintf(value, sizeof value, "%u", number);
    one.key = key;
    one.value = value;
    request.names = names;
    request.n_names = 1;
    request.change = DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL;
    request.set_labels = labels;
    request.n_set_labels = 1;
    c->attempted[worker] = number;
    if (dt_testcluster_admin_call(c->tc, "SetNode", &request.base, &reply, &size, NULL) == DT_OK)
        c->promised[worker] = number;
    free(reply);
}

static void expect_labels(struct chaos *c)
{
    Dtorch__V1__NodeList *list = dt_testcluster_nodes(c->tc);
    cr_assert(list && list->n_nodes == WORKERS);
    for (size_t i = 0; i < list->n_nodes; i++) {
        const Dtorch__V1__Node *node = list->nodes[i];
        unsigned worker = (unsigned)(node->name[1] - '0'), found = 0;
        for (size_t k = 0; k < node->n_labels; k++)
            if (strcmp(node->labels[k]->key, "n") == 0)
                found = (unsigned)strtoul(node->labels[k]->value, NULL, 10);
        cr_assert(found >= c->promised[worker] && found <= c->attempted[worker],
                  "%s has label %u; %u was promised, %u tried last", node->name, found,
                  c->promised[worker], c->attempted[worker]);
        cr_assert_eq(node->n_devices, 2);
    }
    dtorch__v1__node_list__free_unpacked(list, NULL);
}

/* Events are there once, in their order, without a hole. */
static void expect_events(struct chaos *c)
{
    Dtorch__V1__EventList *list = dt_testcluster_events(c->tc, 0);
    cr_assert(list && list->n_events > 0);
    for (size_t i = 1; i < list->n_events; i++)
        cr_assert_eq(list->events[i]->sequence, list->events[i - 1]->sequence + 1,
                     "event %" PRIu64 " follows %" PRIu64, list->events[i]->sequence,
                     list->events[i - 1]->sequence);
    dtorch__v1__event_list__free_unpacked(list, NULL);
}

Test(chaos, of_signals_loses_nothing_and_everything_comes_back)
{
    struct chaos c = {.random = (uint64_t)number_of("DT_TEST_CHAOS_SEED", (int)getpid())};
    uint64_t seed = c.random;
    int64_t end_ms = dt_test_now_ms() + 1000 * number_of("DT_TEST_CHAOS_S", CHAOS_S);
    c.random = c.random * 0x9e3779b97f4a7c15u + 1;
    c.tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = WORKERS, .worker_conf = "Engines=1"});
    for (unsigned i = 0; i <= WORKERS; i++)
        c.is_running[i] = true;
    (void)fprintf(stderr, "chaos: DT_TEST_CHAOS_SEED=%" PRIu64 "\n", seed);
    while (dt_test_now_ms() < end_ms) {
        hurt_daemon(&c);
        if (pick(&c, 3) == 0)
            hurt_engine(&c);
        set_label(&c);
        dt_test_pause_ms((int)pick(&c, 120)); /* the moment is what varies here */
    }
    for (unsigned i = 0; i <= WORKERS; i++) {
        go_on(&c, i);
        if (!c.is_running[i])
            dt_testcluster_spawn(c.tc, who_of(i), NULL);
    }
    for (int worker = 0; worker < WORKERS; worker++)
        cr_assert(
            dt_testcluster_wait_health(c.tc, worker, DTORCH__V1__NODE_HEALTH__NODE_OK, PATIENCE),
            "w%d did not come back\n%s", worker, dt_testcluster_logs(c.tc));
    expect_labels(&c);
    expect_events(&c);
    cr_assert_eq(dt_testcluster_stop(c.tc), 0);
}
