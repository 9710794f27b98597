/* A starved machine is not a dead one: nobody is declared dead while other processes keep every
 * core busy. DT_TEST_STARVE_S says for how long: 60 s by default, 600 in make check-soak. */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/testcluster.h"

#define WORKERS     3
#define BURNERS_MAX 64

TestSuite(starve, .timeout = 900);

static int start_burners(pid_t *burners)
{
    /* Two a core: each of our processes gets a third of one at most. */
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN) * 2;
    if (count > BURNERS_MAX)
        count = BURNERS_MAX;
    for (int i = 0; i < count; i++) {
        burners[i] = fork();
        cr_assert_geq(burners[i], 0);
        if (burners[i] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned turn = 0;; turn++)
            continue;
    }
    return count;
}

static void stop_burners(const pid_t *burners, int count)
{
    for (int i = 0; i < count; i++)
        (void)kill(burners[i], SIGKILL);
    for (int i = 0; i < count; i++)
        (void)waitpid(burners[i], NULL, 0);
}

Test(starve, no_node_is_declared_dead_while_all_cores_burn)
{
    const char *seconds = getenv("DT_TEST_STARVE_S");
    int64_t burn_ms = (seconds ? strtol(seconds, NULL, 10) : 60) * 1000;
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = WORKERS, .worker_conf = "Engines=1", .is_strict = true});
    uint64_t before = dt_testcluster_last_event(tc);
    pid_t burners[BURNERS_MAX];
    int count = start_burners(burners);
    bool died = dt_testcluster_wait_event(tc, "node-dead", DT_TESTCLUSTER_CONTROLLER, before,
                                          burn_ms, NULL);
    Dtorch__V1__NodeList *nodes;
    stop_burners(burners, count);
    cr_assert(!died, "a node was declared dead\n%s", dt_testcluster_logs(tc));
    for (int worker = 0; worker < WORKERS; worker++)
        cr_assert_eq(dt_testcluster_log_count(tc, worker, "controller lost"), 0, "%s",
                     dt_testcluster_logs(tc));
    nodes = dt_testcluster_nodes(tc);
    cr_assert(nodes && nodes->n_nodes == WORKERS);
    for (size_t i = 0; i < nodes->n_nodes; i++)
        cr_assert_eq(nodes->nodes[i]->session_count, 1, "a stream broke\n%s",
                     dt_testcluster_logs(tc));
    dtorch__v1__node_list__free_unpacked(nodes, NULL);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
