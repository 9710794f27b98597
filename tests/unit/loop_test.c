#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loop/child.h"
#include "loop/loop.h"

#define MS INT64_C(1000000)

static dt_loop_t *loop;
static dt_error_t err;

static void open_loop(void)
{
    cr_assert(eq(int, dt_loop_create(&loop, &err), DT_OK), "%s", err.text);
}

static void close_loop(void)
{
    cr_assert(eq(int, dt_loop_free(loop), DT_OK), "a handle or child was left over");
}

TestSuite(loop, .timeout = 60, .init = open_loop);

/* ---- timers ---- */

struct beat {
    dt_timer_t *timer;
    int64_t start_ns, period_ns, late_ns;
    int count, count_max;
};

static void on_beat(void *arg, int64_t deadline_ns)
{
    struct beat *beat = arg;
    int64_t now_ns = dt_loop_now_ns();
    beat->count++;
    cr_assert(ge(i64, now_ns, deadline_ns), "a timer ran before its deadline");
    cr_assert(eq(i64, deadline_ns, beat->start_ns + beat->count * beat->period_ns));
    if (beat->count == beat->count_max)
        dt_loop_stop(loop);
    else
        dt_timer_arm(beat->timer, deadline_ns + beat->period_ns);
}

Test(loop, runs_a_timer_at_its_deadlines_and_never_before)
{
    struct beat beat = {.start_ns = dt_loop_now_ns(), .period_ns = 3333333, .count_max = 30};
    cr_assert(eq(int, dt_timer_create(loop, on_beat, &beat, &beat.timer, &err), DT_OK));
    dt_timer_arm(beat.timer, beat.start_ns + beat.period_ns);
    dt_loop_run(loop);
    cr_assert(ge(i64, dt_loop_now_ns() - beat.start_ns, 30 * beat.period_ns));
    dt_timer_free(beat.timer);
    close_loop();
}

static int ran;

static void on_run(void *arg, int64_t deadline_ns)
{
    dt_timer_t **timer = arg;
    (void)deadline_ns;
    ran++;
    dt_timer_free(*timer); /* in its own callback */
    *timer = NULL;
    dt_loop_stop(loop);
}

Test(loop, runs_a_deadline_that_has_passed_in_the_next_turn_and_not_inside_arm)
{
    dt_timer_t *timer;
    cr_assert(eq(int, dt_timer_create(loop, on_run, &timer, &timer, &err), DT_OK));
    dt_timer_arm(timer, 0);
    cr_assert(eq(int, ran, 0));
    cr_assert(eq(int, dt_loop_timeout_ms(loop), 0));
    dt_loop_run(loop);
    cr_assert(eq(int, ran, 1));
    dt_loop_stats_t stats;
    dt_loop_stats(loop, true, &stats);
    cr_assert(lt(i64, stats.lag_longest_ns, 5000 * MS), "the age of the deadline is not lateness");
    close_loop();
}

Test(loop, never_runs_a_timer_that_was_disarmed_or_freed)
{
    dt_timer_t *disarmed, *freed, *end;
    cr_assert(eq(int, dt_timer_create(loop, on_run, NULL, &disarmed, &err), DT_OK));
    cr_assert(eq(int, dt_timer_create(loop, on_run, NULL, &freed, &err), DT_OK));
    cr_assert(eq(int, dt_timer_create(loop, on_run, &end, &end, &err), DT_OK));
    dt_timer_arm(disarmed, dt_loop_now_ns());
    dt_timer_arm(freed, dt_loop_now_ns());
    dt_timer_arm(end, dt_loop_now_ns() + 5 * MS);
    dt_timer_disarm(disarmed);
    dt_timer_free(freed);
    dt_loop_run(loop);
    cr_assert(eq(int, ran, 1));
    dt_timer_free(disarmed);
    close_loop();
}

/* ---- descriptors, signals, wakes ---- */

struct pipe_end {
    int fds[2];
    dt_watch_t *watch;
    int events;
    char text[16];
};

static void on_pipe(void *arg, int events)
{
    struct pipe_end *end = arg;
    end->events |= events;
    if (read(end->fds[0], end->text, sizeof end->text - 1) <= 0) {
        dt_watch_free(end->watch);
        close(end->fds[0]);
        dt_loop_stop(loop);
    }
}

Test(loop, tells_when_a_descriptor_is_readable_and_when_its_peer_has_closed)
{
    struct pipe_end end = {0};
    cr_assert(eq(int, pipe(end.fds), 0));
    cr_assert(eq(
        int, dt_watch_create(loop, end.fds[0], DT_LOOP_READABLE, on_pipe, &end, &end.watch, &err),
        DT_OK));
    cr_assert(eq(sz, (size_t)write(end.fds[1], "hello", 5), 5));
    close(end.fds[1]);
    dt_loop_run(loop);
    cr_assert_str_eq(end.text, "hello");
    close_loop();
}

Test(loop, refuses_to_watch_a_descriptor_that_is_none)
{
    dt_watch_t *watch;
    cr_assert(eq(int, dt_watch_create(loop, 999, DT_LOOP_READABLE, on_pipe, NULL, &watch, &err),
                 DT_ERR_INVALID));
    close_loop();
}

static void on_signal(void *arg, int signum)
{
    *(int *)arg = signum;
    dt_loop_stop(loop);
}

Test(loop, takes_a_signal_as_an_event)
{
    dt_sigwatch_t *sigwatch;
    int got = 0;
    cr_assert(eq(int, dt_sigwatch_create(loop, SIGUSR1, on_signal, &got, &sigwatch, &err), DT_OK));
    cr_assert(eq(int, raise(SIGUSR1), 0));
    dt_loop_run(loop);
    cr_assert(eq(int, got, SIGUSR1));
    dt_sigwatch_free(sigwatch);
    cr_assert(eq(int, dt_sigwatch_create(loop, SIGKILL, on_signal, &got, &sigwatch, &err),
                 DT_ERR_INVALID));
    close_loop();
}

/* ---- measuring ---- */

static const char *slow_what;
static int64_t slow_ns;

static void on_slow(void *arg, const char *what, int64_t ns)
{
    (void)arg;
    slow_what = what;
    slow_ns = ns;
}

static void on_busy(void *arg, int64_t deadline_ns)
{
    (void)arg;
    while (dt_loop_now_ns() < deadline_ns + 60 * MS)
        continue;
    dt_loop_stop(loop);
}

Test(loop, reports_a_callback_that_takes_too_long)
{
    dt_timer_t *timer;
    dt_loop_stats_t stats;
    dt_loop_set_slow_hook(loop, on_slow, NULL);
    cr_assert(eq(int, dt_timer_create(loop, on_busy, NULL, &timer, &err), DT_OK));
    dt_timer_arm(timer, dt_loop_now_ns());
    dt_loop_run(loop);
    cr_assert_str_eq(slow_what, "timer");
    cr_assert(gt(i64, slow_ns, DT_LOOP_SLOW_NS));
    dt_loop_stats(loop, true, &stats);
    cr_assert(eq(u64, stats.slow, 1));
    cr_assert(eq(i64, stats.longest_ns, slow_ns));
    cr_assert(ge(u64, stats.turns, 1));
    dt_loop_stats(loop, false, &stats);
    cr_assert(eq(i64, stats.longest_ns, 0));
    dt_timer_free(timer);
    close_loop();
}

Test(loop, says_that_a_handle_was_left_over_and_closes_it)
{
    dt_timer_t *timer;
    cr_assert(eq(int, dt_timer_create(loop, on_run, NULL, &timer, &err), DT_OK));
    cr_assert(eq(int, dt_loop_free(loop), DT_ERR_INTERNAL));
}

/* ---- children ---- */

static dt_child_exit_t last_exit;
static int exits;

static void on_exit_of(void *arg, const dt_child_exit_t *exit)
{
    dt_child_t **child = arg;
    last_exit = *exit;
    exits++;
    dt_child_free(*child);
    *child = NULL;
    dt_loop_stop(loop);
}

static dt_status_t shell(const char *script, const dt_child_fd_t *fds, size_t fd_count,
                         dt_child_t **ret_child)
{
    char sh[] = "sh", c[] = "-c", text[400];
    (void)snprintf(text, sizeof text, "%s", script);
    char *argv[] = {sh, c, text, NULL};
    dt_child_options_t options = {
        .path = "/bin/sh", .argv = argv, .fds = fds, .fd_count = fd_count};
    return dt_child_spawn(loop, &options, on_exit_of, ret_child, ret_child, &err);
}

Test(loop, tells_how_a_child_ended)
{
    dt_child_t *child;
    cr_assert(eq(int, shell("exit 7", NULL, 0, &child), DT_OK), "%s", err.text);
    cr_assert(gt(int, dt_child_pid(child), 0));
    dt_loop_run(loop);
    cr_assert(not(last_exit.is_signal));
    cr_assert(eq(int, last_exit.code, 7));
    cr_assert(eq(int, shell("kill -9 $$", NULL, 0, &child), DT_OK));
    dt_loop_run(loop);
    cr_assert(last_exit.is_signal);
    cr_assert(eq(int, last_exit.code, SIGKILL));
    close_loop();
}

Test(loop, kills_a_child_by_its_pidfd)
{
    dt_child_t *child;
    cr_assert(eq(int, shell("exec sleep 100", NULL, 0, &child), DT_OK));
    cr_assert(eq(int, dt_child_kill(child, SIGKILL), DT_OK));
    dt_loop_run(loop);
    cr_assert(eq(int, last_exit.code, SIGKILL));
    cr_assert(eq(int, exits, 1));
    close_loop();
}

Test(loop, passes_the_listed_descriptors_to_a_child_and_no_others)
{
    dt_child_t *child;
    char text[64] = "";
    int out[2], other[2], leak = open("/dev/null", O_RDONLY); /* without close-on-exec */
    cr_assert(eq(int, pipe2(out, O_CLOEXEC), 0));
    cr_assert(eq(int, pipe2(other, O_CLOEXEC), 0));
    /* The targets are each other's sources: none may be overwritten before it was copied. */
    dt_child_fd_t fds[] = {{out[1], other[0]}, {other[0], out[1]}, {out[1], 1}};
    char script[200];
    (void)snprintf(script, sizeof script,
                   "[ -e /proc/self/fd/%d ] && echo leak; echo hello >/proc/self/fd/%d; "
                   "read x || echo null",
                   leak, other[0]);
    cr_assert(eq(int, shell(script, fds, 3, &child), DT_OK), "%s", err.text);
    dt_loop_run(loop);
    cr_assert(eq(int, last_exit.code, 0));
    cr_assert(gt(int, (int)read(out[0], text, sizeof text - 1), 0));
    cr_assert_str_eq(text, "hello\nnull\n");
    for (int i = 0; i < 2; i++) {
        close(out[i]);
        close(other[i]);
    }
    close(leak);
    close_loop();
}

Test(loop, says_why_a_child_cannot_start_and_keeps_nothing)
{
    dt_child_t *child;
    char name[] = "x";
    char *argv[] = {name, NULL};
    dt_child_options_t options = {.path = "/nonexistent/program", .argv = argv};
    cr_assert(eq(int, dt_child_spawn(loop, &options, on_exit_of, &child, &child, &err),
                 DT_ERR_NOT_FOUND));
    cr_assert(strstr(err.text, "/nonexistent/program") != NULL, "%s", err.text);
    options.path = "/dev/null";
    cr_assert(
        eq(int, dt_child_spawn(loop, &options, on_exit_of, &child, &child, &err), DT_ERR_DENIED));
    dt_child_fd_t fd = {0, 5000};
    options = (dt_child_options_t){.path = "/bin/sh", .argv = argv, .fds = &fd, .fd_count = 1};
    cr_assert(
        eq(int, dt_child_spawn(loop, &options, on_exit_of, &child, &child, &err), DT_ERR_INVALID));
    close_loop();
}

Test(loop, kills_a_child_that_is_freed_while_it_runs)
{
    dt_child_t *child;
    cr_assert(eq(int, shell("exec sleep 100", NULL, 0, &child), DT_OK));
    pid_t pid = dt_child_pid(child);
    dt_child_free(child);
    close_loop(); /* reaps it */
    cr_assert(kill(pid, 0) != 0 && errno == ESRCH);
    cr_assert(eq(int, exits, 0));
}

Test(loop, reaps_and_reports_a_child_that_was_left_over)
{
    dt_child_t *child;
    cr_assert(eq(int, shell("exec sleep 100", NULL, 0, &child), DT_OK));
    cr_assert(eq(int, dt_loop_free(loop), DT_ERR_INTERNAL));
}
