/* Tasks of workerd: work on threads of their own, results on the state thread, an end while some
 * still run. A plain main(), since ThreadSanitizer cannot run Criterion. */
#include <stdio.h>
#include <time.h>

#include "daemons/workerd/tasks.h"
#include "loop/loop.h"
#include "rpc/rpc.h"

#define TASK_COUNT 400

struct job {
    int input;
    int output; /* the thread writes it, the state thread reads it */
};

static dt_rpc_t *rpc;
static dt_tasks_t *tasks;
static struct job jobs[TASK_COUNT];
static int started, finished;

static void job_work(void *arg)
{
    struct job *job = arg;
    job->output = job->input + 1;
}

static void job_done(void *arg);

/* Keep as many running as may. */
static void fill(void)
{
    for (; started < TASK_COUNT; started++) {
        jobs[started].input = started;
        dt_status_t status = dt_tasks_run(tasks, job_work, job_done, &jobs[started], NULL);
        if (status == DT_ERR_LIMIT)
            return;
        dt_check(status == DT_OK);
    }
}

static void job_done(void *arg)
{
    const struct job *job = arg;
    dt_check(job->output == job->input + 1);
    finished++;
    if (finished == TASK_COUNT)
        dt_rpc_stop(rpc);
    else
        fill();
}

static void slow_work(void *arg)
{
    (void)arg;
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void count_done(void *arg)
{
    int *done = arg;
    ++*done;
}

/* A result that starts another task, as the last save of an epoch does. */
static void chain_done(void *arg)
{
    int *done = arg;
    if (++*done < 3)
        dt_check(dt_tasks_run(tasks, slow_work, chain_done, done, NULL) == DT_OK);
}

int main(void)
{
    dt_loop_t *loop;
    int slow = 0, chained = 0;
    dt_check(dt_loop_create(&loop, NULL) == DT_OK);
    dt_check(dt_rpc_create(loop, NULL, &rpc, NULL) == DT_OK);
    dt_check(dt_tasks_create(rpc, &tasks, NULL) == DT_OK);
    fill();
    dt_rpc_run(rpc);
    dt_check(finished == TASK_COUNT);
    dt_check(dt_tasks_run(tasks, slow_work, count_done, &slow, NULL) == DT_OK);
    dt_check(dt_tasks_run(tasks, slow_work, chain_done, &chained, NULL) == DT_OK);
    dt_check(dt_tasks_free(tasks, 5000)); /* waits for both, and for what they start */
    dt_check(slow == 1 && chained == 3);
    dt_check(dt_rpc_free(rpc) == DT_OK);
    dt_check(dt_loop_free(loop) == DT_OK);
    printf("tasks_race: %d tasks\n", finished);
    return 0;
}
