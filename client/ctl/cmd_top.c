/* dtorchctl top: what runs now. On a terminal it is drawn again and again and takes keys; else it
 * looks twice and prints once. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "text.h"
#include "top.h"

#define WATCH_MS     2000
#define POLL_MS      60000
#define FIRST_MS     1200 /* until the first rate of the stream */
#define SORT_DEFAULT "-rate,-memory,id"

struct live {
    struct termios kept;    /* of the terminal before */
    dt_ctl_top_view_t view; /* with_keys: the standard input is a terminal too */
    bool is_turned;
    bool is_due;       /* look again now */
    uint64_t job;      /* whose operators are shown; 0: devices are */
    char *said;        /* what went wrong in this turn */
    const char *order; /* --sort, or NULL */
};

static volatile sig_atomic_t is_over, is_resized;

static void on_signal(int signo)
{
    if (signo == SIGWINCH)
        is_resized = 1;
    else
        is_over = 1;
}

/* ---- looking ---- */

/* Ask for what there is. Gives the exit code. */
static int look(dt_ctl_t *ctl, dt_ctl_jobs_t *jobs, dt_ctl_nodes_t *nodes, int64_t *ret_now_ns)
{
    const dt_ctl_hosts_t all = {0};
    int code = dt_ctl_fetch_nodes(ctl, &all, nodes);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_fetch_jobs(ctl, jobs);
    *ret_now_ns = dt_clock_mono_ns(dt_clock_system());
    ctl->output.style.now_wall_ms = dt_clock_wall_ms(dt_clock_system());
    return code;
}

static void pause_for(int64_t ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * DT_CLOCK_MS_NS};
    (void)nanosleep(&pause, NULL);
}

/* ---- once ---- */

static int print_json(dt_ctl_t *ctl, const dt_ctl_top_t *top, int64_t interval_ns)
{
    FILE *out = ctl->output.screen.file;
    dt_ctl_json_begin(out, dt_ctl_top_jobs.kind);
    (void)fprintf(out,
                  ",\"interval_ms\":%" PRId64 ",\"operators_per_second\":%" PRIu64
                  ",\"memory_bytes\":%" PRIu64 ",\"queued_bytes\":%" PRIu64 ",\"devices\":[",
                  interval_ns / DT_CLOCK_MS_NS, top->operators_per_second, top->memory_bytes,
                  top->queued_bytes);
    for (size_t i = 0; i < top->device_count; i++) {
        (void)fputs(i > 0 ? ",\n" : "\n", out);
        dt_ctl_json_message(&ctl->pool, out, &top->devices[i]->base, NULL, 0);
    }
    (void)fputs("],\"items\":[", out);
    ctl->output.is_stream = ctl->output.is_array = true;
    int code =
        dt_ctl_print_list(ctl, &dt_ctl_top_jobs, (const void *)top->jobs, top->job_count, NULL);
    dt_ctl_json_end(out);
    ctl->output.is_stream = ctl->output.is_array = false;
    return code;
}

/* Print what changed since `before`. Gives the exit code. */
static int print_turn(dt_ctl_t *ctl, dt_ctl_top_look_t *before)
{
    const dt_ctl_top_view_t once = {.with_devices = true, .sorted = dt_ctl_top_key_count};
    dt_ctl_jobs_t jobs;
    dt_ctl_nodes_t nodes;
    dt_ctl_top_t top;
    int64_t now_ns;
    int code = look(ctl, &jobs, &nodes, &now_ns);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_ctl_top_make(&ctl->pool, &jobs, &nodes, before, now_ns, &top);
    if (ctl->output.format == DT_CTL_JSON)
        code = print_json(ctl, &top, now_ns - before->at_ns);
    else if (dt_ctl_is_people(ctl))
        code = dt_ctl_top_draw(ctl, &top, &once);
    else
        code =
            dt_ctl_print_list(ctl, &dt_ctl_top_jobs, (const void *)top.jobs, top.job_count, NULL);
    dt_ctl_top_remember(before, &top, now_ns);
    dt_arena_reset(&ctl->pool);
    return code;
}

/* Without -w one turn; with it turns without end, with an empty line between. */
static int run_plain(dt_ctl_t *ctl, dt_ctl_top_look_t *before)
{
    dt_ctl_jobs_t jobs;
    dt_ctl_nodes_t nodes;
    dt_ctl_top_t top;
    int64_t now_ns;
    bool goes_on = dt_ctl_has(ctl, DT_CTL_OPT_WATCH);
    int64_t pause_ms = goes_on ? dt_ctl_number(ctl, DT_CTL_OPT_WATCH, WATCH_MS) : FIRST_MS;
    int code = look(ctl, &jobs, &nodes, &now_ns);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_ctl_top_make(&ctl->pool, &jobs, &nodes, before, now_ns, &top);
    dt_ctl_top_remember(before, &top, now_ns);
    dt_arena_reset(&ctl->pool);
    do {
        pause_for(pause_ms);
        code = print_turn(ctl, before);
        if (goes_on)
            (void)fputc('\n', ctl->output.screen.file);
        if (fflush(ctl->output.screen.file) != 0)
            return DT_CTL_EXIT_FAILED;
    } while (goes_on && (code == DT_CTL_EXIT_OK || code == DT_CTL_EXIT_UNAVAILABLE ||
                         code == DT_CTL_EXIT_AGAIN));
    return code;
}

/* ---- live ---- */

static void begin_screen(struct live *live, FILE *out)
{
    struct termios raw;
    const struct sigaction action = {.sa_handler = on_signal};
    live->view.with_keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &live->kept) == 0;
    if (live->view.with_keys) {
        raw = live->kept;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped top would leave the terminal like this */
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    (void)sigaction(SIGWINCH, &action, NULL);
    (void)fputs("\033[?1049h\033[?25l", out); /* another screen, no cursor */
}

static void end_screen(const struct live *live, FILE *out)
{
    (void)fputs("\033[?25h\033[?1049l", out);
    (void)fflush(out);
    if (live->view.with_keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &live->kept);
}

/* Put a page on the screen without a flicker: over the old one, each line's rest cleared. */
static void put_page(FILE *out, const char *page)
{
    (void)fputs("\033[H", out);
    for (const char *at = page; *at != '\0';) {
        size_t len = strcspn(at, "\n");
        (void)fprintf(out, "%.*s\033[K%s", (int)len, at, at[len] ? "\n" : "");
        at += len + (at[len] == '\n');
    }
    (void)fputs("\033[J", out);
    (void)fflush(out);
}

static int draw(dt_ctl_t *ctl, struct live *live, const dt_ctl_top_t *top)
{
    char *page = NULL;
    size_t page_size, columns, sorted = live->view.sorted;
    FILE *out = ctl->output.screen.file, *memory = open_memstream(&page, &page_size);
    if (!memory)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_INTERNAL, "out of memory");
    dt_ctl_terminal_size(out, &columns, &live->view.lines);
    ctl->output.screen.columns = ctl->output.format == DT_CTL_WIDE ? 0 : columns;
    ctl->output.screen.file = memory;
    ctl->output.sort = live->order ? live->order : SORT_DEFAULT;
    if (sorted < dt_ctl_top_key_count)
        ctl->output.sort =
            live->is_turned ? dt_ctl_top_keys[sorted].turned : dt_ctl_top_keys[sorted].sort;
    int code = dt_ctl_top_draw(ctl, top, &live->view);
    (void)fclose(memory);
    ctl->output.screen.file = out;
    put_page(out, page);
    free(page);
    return code;
}

/* The job after `id`; 0 after the last one. */
static uint64_t next_job(const dt_ctl_top_t *top, uint64_t id)
{
    for (size_t i = 0; top && i < top->job_count; i++)
        if (top->jobs[i]->job->id > id)
            return top->jobs[i]->job->id;
    return 0;
}

/* Obey a key. Gives whether to draw again. */
static bool press(struct live *live, const dt_ctl_top_t *top, char key)
{
    for (size_t i = 0; i < dt_ctl_top_key_count; i++)
        if (dt_ctl_top_keys[i].key == key) {
            live->is_turned = false;
            live->view.sorted = i;
            return true;
        }
    switch (key) {
    case 'q':
        is_over = 1;
        return false;
    case 'r':
        live->is_turned = !live->is_turned;
        return true;
    case 'd':
        live->view.with_devices = live->job != 0 || !live->view.with_devices;
        live->job = 0;
        live->view.detail = NULL;
        return true;
    case ' ':
        live->view.is_paused = !live->view.is_paused;
        live->is_due = !live->view.is_paused;
        return true;
    case '\t':
        live->job = next_job(top, live->job);
        live->is_due = true;
        return false;
    default:
        return false;
    }
}

/* Wait until the next look is due; keys draw what is known again. */
static int wait_turn(dt_ctl_t *ctl, struct live *live, const dt_ctl_top_t *top, int64_t due_ns)
{
    int code = DT_CTL_EXIT_OK;
    live->is_due = false;
    while (!is_over && !live->is_due && code == DT_CTL_EXIT_OK) {
        char key;
        struct pollfd input = {.fd = live->view.with_keys ? STDIN_FILENO : -1, .events = POLLIN};
        int64_t left_ms = (due_ns - dt_clock_mono_ns(dt_clock_system())) / DT_CLOCK_MS_NS;
        if (live->view.is_paused)
            left_ms = POLL_MS;
        else if (left_ms <= 0)
            break;
        if (poll(&input, 1, (int)(left_ms < POLL_MS ? left_ms : POLL_MS)) <= 0) {
            if (is_resized && top)
                code = draw(ctl, live, top);
            is_resized = 0;
            continue;
        }
        if (read(STDIN_FILENO, &key, 1) != 1)
            live->view.with_keys = false; /* the terminal is gone */
        else if (press(live, top, key) && top)
            code = draw(ctl, live, top);
    }
    return code;
}

/* Look with everything that is said kept in live->said. Gives the exit code. */
static int look_quietly(dt_ctl_t *ctl, struct live *live, dt_ctl_jobs_t *jobs,
                        dt_ctl_nodes_t *nodes, int64_t *ret_now_ns)
{
    size_t size;
    FILE *err = ctl->err;
    free(live->said);
    live->said = NULL;
    ctl->err = open_memstream(&live->said, &size);
    if (!ctl->err) {
        ctl->err = err;
        return DT_CTL_EXIT_INTERNAL;
    }
    int code = look(ctl, jobs, nodes, ret_now_ns);
    live->view.detail = NULL;
    if (code == DT_CTL_EXIT_OK && live->job) {
        live->view.detail = dt_ctl_fetch_job(ctl, live->job, &code);
        if (code == DT_CTL_EXIT_NOT_FOUND) { /* it has ended */
            live->job = 0;
            code = DT_CTL_EXIT_OK;
        }
    }
    (void)fclose(ctl->err);
    ctl->err = err;
    return code;
}

/* One turn: look, draw, wait. That nobody answers is shown in place of the tables. */
static int live_turn(dt_ctl_t *ctl, struct live *live, dt_ctl_top_look_t *before)
{
    dt_ctl_jobs_t jobs;
    dt_ctl_nodes_t nodes;
    dt_ctl_top_t top;
    int64_t now_ns = 0, pause_ms = dt_ctl_number(ctl, DT_CTL_OPT_WATCH, WATCH_MS);
    bool is_first = before->at_ns == 0;
    int code = look_quietly(ctl, live, &jobs, &nodes, &now_ns);
    int64_t due_ns =
        now_ns + (is_first && pause_ms > FIRST_MS ? FIRST_MS : pause_ms) * DT_CLOCK_MS_NS;
    if (code == DT_CTL_EXIT_OK) {
        dt_ctl_top_make(&ctl->pool, &jobs, &nodes, before, now_ns, &top);
        dt_ctl_top_remember(before, &top, now_ns);
        code = draw(ctl, live, &top);
        return code == DT_CTL_EXIT_OK ? wait_turn(ctl, live, &top, due_ns) : code;
    }
    if (code != DT_CTL_EXIT_UNAVAILABLE && code != DT_CTL_EXIT_AGAIN)
        return code;
    put_page(ctl->output.screen.file, live->said);
    return wait_turn(ctl, live, NULL, due_ns);
}

static int run_live(dt_ctl_t *ctl, dt_ctl_top_look_t *before)
{
    struct live live = {.view = {.with_devices = true, .sorted = dt_ctl_top_key_count},
                        .order = ctl->output.sort};
    int code = DT_CTL_EXIT_OK;
    begin_screen(&live, ctl->output.screen.file);
    while (!is_over && code == DT_CTL_EXIT_OK) {
        code = live_turn(ctl, &live, before);
        dt_arena_reset(&ctl->pool);
    }
    end_screen(&live, ctl->output.screen.file);
    if (code != DT_CTL_EXIT_OK && live.said)
        (void)fputs(live.said, ctl->err);
    free(live.said);
    return code;
}

int dt_ctl_top(dt_ctl_t *ctl)
{
    dt_ctl_top_look_t before = {0};
    int code = dt_ctl_check_list(ctl, &dt_ctl_top_jobs);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (ctl->is_terminal && dt_ctl_is_people(ctl)) {
        code = run_live(ctl, &before);
    } else {
        ctl->output.sort = ctl->output.sort ? ctl->output.sort : SORT_DEFAULT;
        code = run_plain(ctl, &before);
    }
    dt_ctl_top_forget(&before);
    return code;
}
