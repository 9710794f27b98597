#include "loop/loop.h"

#include <stdlib.h>
#include <time.h>

#include "loop/loop_internal.h"
#include "loop/uvstatus.h"

#define NS_PER_MS INT64_C(1000000)

struct dt_timer {
    uv_timer_t uv;
    dt_loop_t *loop;
    void (*run)(void *arg, int64_t deadline_ns);
    void *arg;
    int64_t deadline_ns;
    int64_t armed_ns; /* when; a deadline in the past is not the loop's lateness */
};

struct dt_watch {
    uv_poll_t uv;
    dt_loop_t *loop;
    void (*run)(void *arg, int events);
    void *arg;
};

struct dt_sigwatch {
    uv_signal_t uv;
    dt_loop_t *loop;
    void (*run)(void *arg, int signum);
    void *arg;
};

int64_t dt_loop_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 * NS_PER_MS + now.tv_nsec;
}

/* ---- the loop ---- */

static void on_wake(uv_async_t *wake)
{
    (void)wake; /* the turn itself is what was asked for */
}

dt_status_t dt_loop_create(dt_loop_t **ret_loop, dt_error_t *err)
{
    dt_loop_t *loop = calloc(1, sizeof *loop);
    if (!loop)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a loop");
    int rc = uv_loop_init(&loop->uv);
    if (rc == 0) {
        rc = uv_async_init(&loop->uv, &loop->wake, on_wake);
        if (rc != 0)
            (void)uv_loop_close(&loop->uv);
    }
    if (rc != 0) {
        free(loop);
        return dt_fail(err, dt_status_from_uv(rc), "uv", rc, "loop: %s", uv_strerror(rc));
    }
    dt_list_init(&loop->children);
    loop->stats.longest = "none";
    *ret_loop = loop;
    return DT_OK;
}

static void free_data(uv_handle_t *handle)
{
    free(handle->data);
}

void dt_loop_close_handle(uv_handle_t *handle)
{
    uv_close(handle, free_data);
}

static void close_left_over(uv_handle_t *handle, void *arg)
{
    int *count = arg;
    if (uv_is_closing(handle))
        return;
    ++*count;
    dt_loop_close_handle(handle);
}

dt_status_t dt_loop_free(dt_loop_t *loop)
{
    if (!loop)
        return DT_OK;
    int left_over = dt_loop_reap_children(loop);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_walk(&loop->uv, close_left_over, &left_over);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    dt_check(uv_loop_close(&loop->uv) == 0);
    free(loop);
    return left_over == 0 ? DT_OK : DT_ERR_INTERNAL;
}

void dt_loop_run(dt_loop_t *loop)
{
    loop->should_stop = false;
    while (!loop->should_stop) {
        loop->stats.turns++;
        uv_run(&loop->uv, UV_RUN_ONCE);
    }
}

void dt_loop_stop(dt_loop_t *loop)
{
    loop->should_stop = true;
    uv_stop(&loop->uv);
}

void dt_loop_wake(dt_loop_t *loop)
{
    (void)uv_async_send(&loop->wake);
}

int dt_loop_backend_fd(const dt_loop_t *loop)
{
    return uv_backend_fd(&loop->uv);
}

int dt_loop_timeout_ms(dt_loop_t *loop)
{
    uv_update_time(&loop->uv);
    return uv_backend_timeout(&loop->uv);
}

void dt_loop_turn(dt_loop_t *loop)
{
    loop->stats.turns++;
    uv_run(&loop->uv, UV_RUN_NOWAIT);
}

/* ---- statistics ---- */

void dt_loop_stats(dt_loop_t *loop, bool reset_maxima, dt_loop_stats_t *ret_stats)
{
    *ret_stats = loop->stats;
    if (reset_maxima) {
        loop->stats.longest_ns = 0;
        loop->stats.longest = "none";
        loop->stats.lag_longest_ns = 0;
    }
}

void dt_loop_set_slow_hook(dt_loop_t *loop, void (*hook)(void *arg, const char *what, int64_t ns),
                           void *arg)
{
    loop->slow_hook = hook;
    loop->slow_arg = arg;
}

int64_t dt_loop_measure_begin(dt_loop_t *loop)
{
    loop->stats.callbacks++;
    return dt_loop_now_ns();
}

void dt_loop_measure_end(dt_loop_t *loop, const char *what, int64_t begin_ns)
{
    int64_t ns = dt_loop_now_ns() - begin_ns;
    if (ns > loop->stats.longest_ns) {
        loop->stats.longest_ns = ns;
        loop->stats.longest = what;
    }
    if (ns <= DT_LOOP_SLOW_NS)
        return;
    loop->stats.slow++;
    if (loop->slow_hook)
        loop->slow_hook(loop->slow_arg, what, ns);
}

/* ---- timers ---- */

static void on_timer(uv_timer_t *uv)
{
    dt_timer_t *timer = uv->data;
    dt_loop_t *loop = timer->loop;
    int64_t now_ns = dt_loop_now_ns();
    if (now_ns < timer->deadline_ns) { /* libuv counts whole ms and may be a part of one early */
        dt_timer_arm(timer, timer->deadline_ns);
        return;
    }
    int64_t due_ns = timer->deadline_ns > timer->armed_ns ? timer->deadline_ns : timer->armed_ns;
    loop->stats.lag_ns = now_ns - due_ns;
    if (loop->stats.lag_ns > loop->stats.lag_longest_ns)
        loop->stats.lag_longest_ns = loop->stats.lag_ns;
    int64_t begin_ns = dt_loop_measure_begin(loop);
    timer->run(timer->arg, timer->deadline_ns);
    dt_loop_measure_end(loop, "timer", begin_ns); /* the timer may be gone */
}

dt_status_t dt_timer_create(dt_loop_t *loop, void (*run)(void *arg, int64_t deadline_ns), void *arg,
                            dt_timer_t **ret_timer, dt_error_t *err)
{
    dt_timer_t *timer = calloc(1, sizeof *timer);
    if (!timer)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a timer");
    (void)uv_timer_init(&loop->uv, &timer->uv); /* cannot fail */
    timer->uv.data = timer;
    timer->loop = loop;
    timer->run = run;
    timer->arg = arg;
    *ret_timer = timer;
    return DT_OK;
}

void dt_timer_arm(dt_timer_t *timer, int64_t deadline_ns)
{
    int64_t now_ns = dt_loop_now_ns();
    int64_t wait_ms = 0;
    if (deadline_ns > now_ns)
        wait_ms = (deadline_ns - now_ns) / NS_PER_MS + 1;
    if (deadline_ns != timer->deadline_ns || !uv_is_active((uv_handle_t *)&timer->uv))
        timer->armed_ns = now_ns;
    timer->deadline_ns = deadline_ns;
    uv_update_time(&timer->loop->uv);
    (void)uv_timer_start(&timer->uv, on_timer, (uint64_t)wait_ms, 0);
}

void dt_timer_disarm(dt_timer_t *timer)
{
    (void)uv_timer_stop(&timer->uv);
}

void dt_timer_free(dt_timer_t *timer)
{
    if (timer)
        dt_loop_close_handle((uv_handle_t *)&timer->uv);
}

/* ---- descriptors ---- */

static int to_uv_events(int events)
{
    return ((events & DT_LOOP_READABLE) ? UV_READABLE : 0) |
           ((events & DT_LOOP_WRITABLE) ? UV_WRITABLE : 0) |
           ((events & DT_LOOP_HANGUP) ? UV_DISCONNECT : 0);
}

static void on_watch(uv_poll_t *uv, int status, int uv_events)
{
    dt_watch_t *watch = uv->data;
    dt_loop_t *loop = watch->loop;
    int events = ((uv_events & UV_READABLE) ? DT_LOOP_READABLE : 0) |
                 ((uv_events & UV_WRITABLE) ? DT_LOOP_WRITABLE : 0) |
                 ((uv_events & UV_DISCONNECT) ? DT_LOOP_HANGUP : 0);
    if (status < 0)
        events = DT_LOOP_READABLE | DT_LOOP_HANGUP; /* the owner's read says what it is */
    int64_t begin_ns = dt_loop_measure_begin(loop);
    watch->run(watch->arg, events);
    dt_loop_measure_end(loop, "fd", begin_ns);
}

dt_status_t dt_watch_create(dt_loop_t *loop, int fd, int events, void (*run)(void *arg, int events),
                            void *arg, dt_watch_t **ret_watch, dt_error_t *err)
{
    dt_watch_t *watch = calloc(1, sizeof *watch);
    if (!watch)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a watch");
    int rc = uv_poll_init(&loop->uv, &watch->uv, fd);
    if (rc != 0) {
        free(watch);
        return dt_fail(err, rc == UV_ENOMEM ? DT_ERR_NOMEM : DT_ERR_INVALID, "uv", rc,
                       "watch of descriptor %d: %s", fd, uv_strerror(rc));
    }
    watch->uv.data = watch;
    watch->loop = loop;
    watch->run = run;
    watch->arg = arg;
    dt_watch_set(watch, events);
    *ret_watch = watch;
    return DT_OK;
}

void dt_watch_set(dt_watch_t *watch, int events)
{
    if (events == 0)
        (void)uv_poll_stop(&watch->uv);
    else
        (void)uv_poll_start(&watch->uv, to_uv_events(events), on_watch);
}

void dt_watch_free(dt_watch_t *watch)
{
    if (watch)
        dt_loop_close_handle((uv_handle_t *)&watch->uv);
}

/* ---- signals ---- */

static void on_signal(uv_signal_t *uv, int signum)
{
    dt_sigwatch_t *sigwatch = uv->data;
    dt_loop_t *loop = sigwatch->loop;
    int64_t begin_ns = dt_loop_measure_begin(loop);
    sigwatch->run(sigwatch->arg, signum);
    dt_loop_measure_end(loop, "signal", begin_ns);
}

dt_status_t dt_sigwatch_create(dt_loop_t *loop, int signum, void (*run)(void *arg, int signum),
                               void *arg, dt_sigwatch_t **ret_sigwatch, dt_error_t *err)
{
    dt_sigwatch_t *sigwatch = calloc(1, sizeof *sigwatch);
    if (!sigwatch)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signal");
    int rc = uv_signal_init(&loop->uv, &sigwatch->uv);
    if (rc != 0) {
        free(sigwatch);
        return dt_fail(err, dt_status_from_uv(rc), "uv", rc, "signals: %s", uv_strerror(rc));
    }
    sigwatch->uv.data = sigwatch;
    sigwatch->loop = loop;
    sigwatch->run = run;
    sigwatch->arg = arg;
    rc = uv_signal_start(&sigwatch->uv, on_signal, signum);
    if (rc != 0) {
        dt_sigwatch_free(sigwatch);
        return dt_fail(err, dt_status_from_uv(rc), "uv", rc, "signal %d: %s", signum,
                       uv_strerror(rc));
    }
    *ret_sigwatch = sigwatch;
    return DT_OK;
}

void dt_sigwatch_free(dt_sigwatch_t *sigwatch)
{
    if (sigwatch)
        dt_loop_close_handle((uv_handle_t *)&sigwatch->uv);
}

static void mask_signals(int how)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGHUP);
    (void)pthread_sigmask(how, &held, NULL);
}

void dt_signals_hold(void)
{
    mask_signals(SIG_BLOCK);
}

void dt_signals_release(void)
{
    mask_signals(SIG_UNBLOCK);
}
