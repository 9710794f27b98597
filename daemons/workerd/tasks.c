#include "tasks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loop/mailbox.h"

typedef struct task {
    dt_mail_t mail;
    dt_tasks_t *owner;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
} task_t;

struct dt_tasks {
    dt_mailbox_t results;
    dt_rpc_wake_t *wake;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* running became 0 */
    int running;         /* lock; threads that have not posted yet */
    int open;            /* state thread; tasks whose `done` has not run */
};

static void on_wake(void *arg)
{
    dt_tasks_t *tasks = arg;
    dt_mailbox_drain(&tasks->results);
}

static void on_result(dt_mail_t *mail)
{
    task_t *task = DT_CONTAINER_OF(mail, task_t, mail);
    task->owner->open--;
    task->done(task->arg);
    free(task);
}

static void *run(void *arg)
{
    task_t *task = arg;
    dt_tasks_t *tasks = task->owner;
    task->work(task->arg);
    pthread_mutex_lock(&tasks->lock);
    /* The mailbox has room for every task that can run, and is not closed while one does. */
    dt_check(dt_mailbox_post(&tasks->results, &task->mail) == DT_OK);
    if (--tasks->running == 0)
        pthread_cond_signal(&tasks->idle);
    pthread_mutex_unlock(&tasks->lock);
    return NULL;
}

dt_status_t dt_tasks_create(dt_rpc_t *rpc, dt_tasks_t **ret_tasks, dt_error_t *err)
{
    pthread_condattr_t monotonic;
    dt_tasks_t *tasks = calloc(1, sizeof *tasks);
    if (!tasks)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for tasks");
    dt_status_t status = dt_rpc_wake_create(rpc, on_wake, tasks, &tasks->wake, err);
    if (status == DT_OK) {
        status = dt_mailbox_init(&tasks->results, DT_TASKS_MAX, dt_rpc_wake, tasks->wake, err);
        if (status != DT_OK)
            dt_rpc_wake_free(tasks->wake);
    }
    if (status != DT_OK) {
        free(tasks);
        return status;
    }
    pthread_mutex_init(&tasks->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&tasks->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *ret_tasks = tasks;
    return DT_OK;
}

/* Signals are the state thread's, so a task's thread blocks them all. */
static int thread_start(task_t *task)
{
    sigset_t all;
    sigset_t before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, run, task);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_detach(thread);
    return rc;
}

dt_status_t dt_tasks_run(dt_tasks_t *tasks, void (*work)(void *arg), void (*done)(void *arg),
                         void *arg, dt_error_t *err)
{
    if (tasks->open >= DT_TASKS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", tasks->open, "%d tasks run", tasks->open);
    task_t *task = malloc(sizeof *task);
    if (!task)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a task");
    *task = (task_t){
        .mail = {.run = on_result}, .owner = tasks, .work = work, .done = done, .arg = arg};
    dt_list_init(&task->mail.link);
    pthread_mutex_lock(&tasks->lock);
    tasks->running++;
    pthread_mutex_unlock(&tasks->lock);
    int rc = thread_start(task);
    if (rc) {
        pthread_mutex_lock(&tasks->lock);
        tasks->running--;
        pthread_mutex_unlock(&tasks->lock);
        free(task);
        return dt_fail(err, DT_ERR_AGAIN, "errno", rc, "start a thread: %s", strerror(rc));
    }
    tasks->open++;
    return DT_OK;
}

/* Returns false when the time was over before the last thread had ended. */
static bool wait_idle(dt_tasks_t *tasks, const struct timespec *until)
{
    int rc = 0;
    pthread_mutex_lock(&tasks->lock);
    while (tasks->running > 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&tasks->idle, &tasks->lock, until);
    bool is_idle = tasks->running == 0;
    pthread_mutex_unlock(&tasks->lock);
    return is_idle;
}

bool dt_tasks_free(dt_tasks_t *tasks, int64_t grace_ms)
{
    struct timespec until;
    if (!tasks)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += grace_ms / 1000;
    do { /* a result may start another task; a thread may still be on its way out */
        bool is_idle = wait_idle(tasks, &until);
        dt_mailbox_drain(&tasks->results);
        if (!is_idle)
            return false;
    } while (tasks->open > 0);
    dt_mailbox_close(&tasks->results);
    dt_mailbox_fini(&tasks->results);
    dt_rpc_wake_free(tasks->wake);
    pthread_cond_destroy(&tasks->idle);
    pthread_mutex_destroy(&tasks->lock);
    free(tasks);
    return true;
}
