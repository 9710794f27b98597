#include "engines.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/strings.h"
#include "conf/env.h"
#include "engine.h"
#include "loop/child.h"
#include "shm/engine_page.h"
#include "shm/seqpacket.h"

#define DT_ENGINES_MESSAGES_A_TURN 64
#define DT_ENGINES_ENV_MAX         8

typedef enum engine_phase {
    ENGINE_COMING_UP,
    ENGINE_READY,
    ENGINE_ENDING, /* asked to end */
    ENGINE_LOST,   /* its end was noticed, or it was killed for a reason */
} engine_phase_t;

typedef struct engine {
    dt_list_t link;
    dt_engines_t *owner;
    engine_phase_t phase;
    uint32_t id;
    pid_t pid;
    int control; /* our end of the socket; -1 none */
    const dt_engine_page_t *page;
    dt_watch_t *watch;
    dt_child_t *child;
    dt_timer_t *timer; /* what it is for depends on the phase, see on_engine_timer() */
    int64_t started_ns;
    int64_t started_wall_ms;
    int64_t noticed_ns; /* from its last sign to our notice; -1 unknown */
    const char *noticed_by;
    bool was_ready;
    bool is_reported;
    bool is_taken;  /* by sessions; else it is a spare */
    bool is_used;   /* a session is open in it now */
    bool is_early;  /* it loads, and waits for what it is for */
    int32_t device; /* -1: none */
    char backend[32];
    dt_engine_door_t door;
    dt_watch_t *bell;
    char text[sizeof((dt_engine_message_t *)0)->text]; /* what it said last */
} engine_t;

struct dt_engines {
    dt_engines_options_t options;
    dt_list_t list;    /* engine_t, oldest first; dead ones until they are reaped */
    dt_timer_t *retry; /* when the next start is due */
    dt_timer_t *check; /* looks at the pages */
    uint32_t last_id;
    bool is_started;
    bool is_settled;
    bool is_stopping;
    void (*stopped)(void *arg);
    dt_engines_stats_t stats; /* totals, failures and retry_at_ns; the rest is counted when asked */
    char missing[sizeof((dt_engine_message_t *)0)->text]; /* of the sandbox, logged last */
};

static void maintain(dt_engines_t *engines);

int64_t dt_engines_backoff_ns(uint32_t failures, uint32_t random)
{
    if (failures <= 1)
        return 0;
    uint32_t doublings = failures - 2 < 16 ? failures - 2 : 16;
    int64_t bound_ns = DT_ENGINES_BACKOFF_MIN_NS << doublings;
    if (bound_ns > DT_ENGINES_BACKOFF_MAX_NS)
        bound_ns = DT_ENGINES_BACKOFF_MAX_NS;
    return bound_ns / 2 + (int64_t)(random % 1024) * (bound_ns / 2) / 1024;
}

static void changed(dt_engines_t *engines)
{
    engines->options.changed(engines->options.arg);
}

/* ---- how it came and went ---- */

static const char *kind_text(Dtorch__V1__EngineEvent__Kind kind)
{
    switch (kind) {
    case DTORCH__V1__ENGINE_EVENT__KIND__EXITED:
        return "engine exited";
    case DTORCH__V1__ENGINE_EVENT__KIND__CRASHED:
        return "engine crashed";
    case DTORCH__V1__ENGINE_EVENT__KIND__HUNG:
        return "engine hung and was killed";
    default:
        return "engine did not come up";
    }
}

static void count(dt_engines_stats_t *stats, Dtorch__V1__EngineEvent__Kind kind)
{
    switch (kind) {
    case DTORCH__V1__ENGINE_EVENT__KIND__STARTED:
        stats->started++;
        return;
    case DTORCH__V1__ENGINE_EVENT__KIND__EXITED:
        stats->exited++;
        return;
    case DTORCH__V1__ENGINE_EVENT__KIND__CRASHED:
        stats->crashed++;
        return;
    case DTORCH__V1__ENGINE_EVENT__KIND__HUNG:
        stats->hung++;
        return;
    default:
        stats->failed++;
    }
}

/* One sentence's end, after "engine 3 of NODE: ". `why` is what else is known, or "". */
static void sentence(const engine_t *engine, const Dtorch__V1__EngineEvent *event, const char *why,
                     char *text, size_t size)
{
    const char *name = event->signo ? sigabbrev_np(event->signo) : NULL;
    const char *operator_name = event->operator_name;
    switch (event->kind) {
    case DTORCH__V1__ENGINE_EVENT__KIND__STARTED:
        (void)snprintf(text, size, "warm after %" PRId64 " ms",
                       (dt_loop_now_ns() - engine->started_ns) / DT_CLOCK_MS_NS);
        return;
    case DTORCH__V1__ENGINE_EVENT__KIND__CRASHED:
        (void)snprintf(text, size, "ended by %s%s%s%s%s%s", name ? "SIG" : "an unknown signal",
                       name ? name : "", operator_name[0] ? " in " : " while idle", operator_name,
                       why[0] ? "; " : "", why);
        return;
    case DTORCH__V1__ENGINE_EVENT__KIND__EXITED:
        (void)snprintf(text, size, "exited by itself with status %d", event->exit_status);
        return;
    default:
        (void)dt_str_copy(text, size, why);
    }
}

static void add_counts(dt_engines_stats_t *stats, const dt_engine_snapshot_t *shot)
{
    stats->progress += shot->progress;
    for (size_t i = 0; i < DT_ENGINE_ANSWERER_COUNT; i++)
        stats->answers[i] += shot->answers[i];
    for (size_t i = 0; i < DT_ENGINE_MOVED_COUNT; i++)
        stats->moved[i] += shot->moved[i];
    for (size_t i = 0; i < DT_ENGINE_MOVE_TIME_COUNT; i++)
        stats->move_ns[i] += shot->move_ns[i];
}

static void report(engine_t *engine, Dtorch__V1__EngineEvent__Kind kind, int signo, int exit_status,
                   const char *why)
{
    dt_engine_snapshot_t shot = {.op_name = ""};
    char text[sizeof engine->text + 128];
    char by[16];
    Dtorch__V1__EngineEvent event;
    if (engine->page)
        dt_engine_page_read(engine->page, dt_loop_now_ns(), &shot);
    if (shot.op_begin_ns == 0) /* an operator that has ended is no cause */
        shot.op_name[0] = '\0';
    dtorch__v1__engine_event__init(&event);
    (void)dt_str_copy(by, sizeof by, engine->noticed_by ? engine->noticed_by : "");
    event.kind = kind;
    event.engine = engine->id;
    event.pid = (uint32_t)engine->pid;
    event.device = engine->device;
    event.signo = signo;
    event.exit_status = exit_status;
    event.operator_name = shot.op_name;
    event.noticed_ns = engine->noticed_ns;
    event.noticed_by = by;
    sentence(engine, &event, why, text, sizeof text);
    event.text = text;
    engine->is_reported = kind != DTORCH__V1__ENGINE_EVENT__KIND__STARTED;
    count(&engine->owner->stats, kind);
    if (kind == DTORCH__V1__ENGINE_EVENT__KIND__STARTED)
        dt_log_info("engine started", DT_LOG_U("engine", engine->id), DT_LOG_I("pid", engine->pid),
                    DT_LOG_S("text", text));
    else
        dt_log_warn(kind_text(kind), DT_LOG_U("engine", engine->id), DT_LOG_I("pid", engine->pid),
                    DT_LOG_I("signal", signo), DT_LOG_I("exit_status", exit_status),
                    DT_LOG_S("noticed_by", by), DT_LOG_I("noticed_us", engine->noticed_ns / 1000),
                    DT_LOG_S("operator", event.operator_name), DT_LOG_S("reason", text));
    engine->owner->options.event(engine->owner->options.arg, &event);
    if (engine->is_taken && engine->is_reported && engine->owner->options.lost)
        engine->owner->options.lost(engine->owner->options.arg, engine->id, &event);
}

/* ---- one engine ---- */

static void control_close(engine_t *engine)
{
    dt_watch_free(engine->watch);
    engine->watch = NULL;
    dt_watch_free(engine->bell);
    engine->bell = NULL;
    if (engine->control >= 0)
        (void)close(engine->control);
    engine->control = -1;
}

static void engine_free(engine_t *engine)
{
    control_close(engine);
    dt_timer_free(engine->timer);
    dt_child_free(engine->child);
    dt_engine_page_unmap(engine->page);
    dt_engine_door_close(&engine->door);
    dt_list_remove(&engine->link);
    free(engine);
}

/* An engine is gone or must go: its place is free from now on. */
static void set_lost(engine_t *engine, const char *by, int64_t timeout_ns)
{
    dt_engines_t *engines = engine->owner;
    int64_t now_ns = dt_loop_now_ns();
    bool was_steady =
        engine->phase == ENGINE_READY && now_ns - engine->started_ns >= DT_ENGINES_STEADY_NS;
    dt_engine_snapshot_t shot;
    dt_engine_page_read(engine->page, now_ns, &shot);
    engine->phase = ENGINE_LOST;
    engine->noticed_by = by;
    engine->noticed_ns = shot.crash_ns > 0 ? now_ns - shot.crash_ns : -1;
    control_close(engine);
    dt_timer_arm(engine->timer, now_ns + timeout_ns);
    engines->stats.failures = was_steady ? 1 : engines->stats.failures + 1;
    engines->stats.retry_at_ns =
        now_ns + dt_engines_backoff_ns(engines->stats.failures, (uint32_t)now_ns);
    engines->is_settled = true;
}

static void engine_kill(engine_t *engine)
{
    (void)dt_child_kill(engine->child, SIGKILL);
}

/* The deadline of the phase has passed. */
static void on_engine_timer(void *arg, int64_t deadline_ns)
{
    engine_t *engine = arg;
    dt_engines_t *engines = engine->owner;
    (void)deadline_ns;
    if (engine->phase == ENGINE_COMING_UP && engine->is_early) {
        dt_timer_arm(engine->timer, dt_loop_now_ns() + DT_ENGINES_COME_UP_NS); /* it is our turn */
    } else if (engine->phase == ENGINE_COMING_UP) {
        set_lost(engine, NULL, DT_ENGINES_END_NS);
        engine_kill(engine);
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__FAILED, 0, 0, "not warm within 60 s");
        changed(engines);
        maintain(engines);
    } else if (engine->phase == ENGINE_LOST && !engine->is_reported) {
        /* The socket has ended, but no status came within any reason: tell what is known. */
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__CRASHED, 0, 0,
               "the kernel has not told how yet");
        dt_timer_arm(engine->timer, dt_loop_now_ns() + DT_ENGINES_END_NS);
    } else {
        engine_kill(engine);
    }
}

static void on_hello(engine_t *engine, const dt_engine_message_t *message)
{
    dt_engines_t *engines = engine->owner;
    if (engine->phase != ENGINE_COMING_UP)
        return;
    engine->phase = ENGINE_READY;
    engine->was_ready = true;
    engines->is_settled = true;
    dt_timer_disarm(engine->timer);
    if (!dt_str_is_equal(message->text, engines->missing)) {
        (void)dt_str_copy(engines->missing, sizeof engines->missing, message->text);
        if (message->text[0])
            dt_log_warn("engines run with a weaker sandbox", DT_LOG_S("missing", message->text));
    }
    report(engine, DTORCH__V1__ENGINE_EVENT__KIND__STARTED, 0, 0, "");
    if (engine->is_taken && engines->options.ready)
        engines->options.ready(engines->options.arg, engine->id);
    changed(engines);
}

static void on_crash(engine_t *engine, const dt_engine_message_t *message)
{
    dt_engines_t *engines = engine->owner;
    int signo = message->value > 0 && message->value <= SIGRTMAX ? message->value : 0;
    if (engine->phase == ENGINE_ENDING)
        return;
    set_lost(engine, "handler", DT_ENGINES_END_NS);
    report(engine, DTORCH__V1__ENGINE_EVENT__KIND__CRASHED, signo, 0, "");
    changed(engines);
    maintain(engines);
}

static void on_message(engine_t *engine, dt_engine_message_t *message)
{
    message->text[sizeof message->text - 1] = '\0';
    switch (message->kind) {
    case DT_ENGINE_MESSAGE_HELLO:
        on_hello(engine, message);
        return;
    case DT_ENGINE_MESSAGE_CRASH:
        on_crash(engine, message);
        return;
    case DT_ENGINE_MESSAGE_FAILED:
        (void)dt_str_copy(engine->text, sizeof engine->text, message->text);
        return;
    case DT_ENGINE_MESSAGE_REFUSED:
        if (engine->is_taken && engine->owner->options.refused)
            engine->owner->options.refused(engine->owner->options.arg, engine->id,
                                           (uint32_t)message->value, message->text);
        return;
    case DT_ENGINE_MESSAGE_NO_WINDOW:
        if (engine->is_taken && engine->owner->options.no_window)
            engine->owner->options.no_window(engine->owner->options.arg, engine->id,
                                             (uint32_t)message->value, message->text);
        return;
    default: /* an engine is not trusted to speak sense */
        return;
    }
}

/* Read what the engine sent. The end of the socket is the second way to learn of a death. */
static void control_read(engine_t *engine)
{
    dt_engines_t *engines = engine->owner;
    for (int i = 0; i < DT_ENGINES_MESSAGES_A_TURN && engine->control >= 0; i++) {
        dt_engine_message_t message = {0};
        size_t size;
        int fd_count;
        dt_status_t status = dt_seqpacket_recv(engine->control, &message, sizeof message, &size,
                                               NULL, 0, &fd_count, NULL);
        if (status == DT_OK && size == sizeof message)
            on_message(engine, &message);
        else if (status == DT_ERR_AGAIN)
            return;
        else if (status != DT_OK && status != DT_ERR_INVALID) {
            if (engine->phase == ENGINE_ENDING) {
                control_close(engine);
                return;
            }
            /* Its place is free at once; it is told of when the status says how it ended. */
            set_lost(engine, "socket", DT_ENGINES_STATUS_WAIT_NS);
            changed(engines);
            maintain(engines);
        }
    }
}

static void on_control(void *arg, int events)
{
    (void)events;
    control_read(arg);
}

static void report_exit(engine_t *engine, const dt_child_exit_t *exit)
{
    char text[sizeof engine->text];
    if (exit->is_signal) {
        bool is_oom = exit->code == SIGKILL &&
                      dt_engine_cgroup_had_oom(engine->owner->options.cgroup, engine->id);
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__CRASHED, exit->code, 0,
               is_oom ? "its cgroup was out of memory" : "");
    } else if (!engine->was_ready) {
        (void)snprintf(text, sizeof text, "exited with status %d before it was warm", exit->code);
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__FAILED, 0, exit->code,
               engine->text[0] ? engine->text : text);
    } else {
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__EXITED, 0, exit->code, engine->text);
    }
}

static void on_exit_notice(void *arg, const dt_child_exit_t *exit)
{
    engine_t *engine = arg;
    dt_engines_t *engines = engine->owner;
    dt_engine_snapshot_t shot;
    control_read(engine); /* the handler's message says more */
    if (engine->phase != ENGINE_LOST && engine->phase != ENGINE_ENDING)
        set_lost(engine, "pidfd", DT_ENGINES_END_NS);
    if (engine->phase == ENGINE_LOST && !engine->is_reported)
        report_exit(engine, exit);
    dt_engine_page_read(engine->page, dt_loop_now_ns(), &shot);
    add_counts(&engines->stats, &shot);
    uint32_t id = engine->id;
    engine_free(engine);
    dt_engine_cgroup_remove(engines->options.cgroup, id);
    changed(engines);
    maintain(engines);
}

/* ---- starting ---- */

/* Tensors are freed up to 64 at a time; malloc's list of one thread holds 7 of a size, and what is
 * above goes a way that costs ten times as much. */
#define DT_ENGINES_TUNABLES "GLIBC_TUNABLES=glibc.malloc.tcache_count=128"

/* An engine gets no environment but what the dynamic linker, malloc and the sanitizers need. */
static void environment_fill(char texts[DT_ENGINES_ENV_MAX][512], char *ret_env[])
{
    static const char *const names[] = {"LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                                        "TSAN_OPTIONS"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = dt_env_get(names[i]);
        if (value && snprintf(texts[n], 512, "%s=%s", names[i], value) < 512) {
            ret_env[n] = texts[n];
            n++;
        }
    }
    (void)dt_str_copy(texts[n], 512, DT_ENGINES_TUNABLES);
    ret_env[n] = texts[n];
    ret_env[n + 1] = NULL;
}

static dt_status_t engine_exec(engine_t *engine, int control, int page, const char *cgroup,
                               dt_error_t *err)
{
    char program[] = "dtorch-workerd";
    char mode[] = "engine";
    char id[16];
    char heap[24];
    char agent[16];
    char group[4224];
    char env_texts[DT_ENGINES_ENV_MAX][512];
    char *env[DT_ENGINES_ENV_MAX + 1];
    (void)snprintf(id, sizeof id, "%" PRIu32, engine->id);
    (void)snprintf(heap, sizeof heap, "%" PRId64, engine->owner->options.heap_bytes);
    (void)snprintf(agent, sizeof agent, "%d", (int)getpid());
    (void)dt_str_copy(group, sizeof group, cgroup);
    environment_fill(env_texts, env);
    char *argv[] = {program, mode, id, heap, agent, group, NULL};
    dt_child_fd_t fds[2 + DT_ENGINE_DOOR_FDS] = {{control, DT_ENGINE_FD_CONTROL},
                                                 {page, DT_ENGINE_FD_PAGE}};
    dt_engine_door_fds(&engine->door, fds + 2);
    const dt_child_options_t options = {.path = "/proc/self/exe",
                                        .argv = argv,
                                        .envp = env,
                                        .fds = fds,
                                        .fd_count = sizeof fds / sizeof fds[0],
                                        .parent_death_signal = SIGKILL,
                                        .new_session = true};
    return dt_child_spawn(engine->owner->options.loop, &options, on_exit_notice, engine,
                          &engine->child, err);
}

static void on_bell(void *arg, int events)
{
    engine_t *engine = arg;
    (void)events;
    dt_ring_wake_clear(engine->door.bell);
    if (engine->is_taken && engine->owner->options.bell)
        engine->owner->options.bell(engine->owner->options.arg, engine->id);
}

static dt_status_t door_open(dt_engines_t *engines, engine_t *engine,
                             const dt_engine_setup_t *setup, dt_error_t *err)
{
    DT_TRY(dt_engine_door_open(setup, &engine->door, err));
    return dt_watch_create(engines->options.loop, engine->door.bell, DT_LOOP_READABLE, on_bell,
                           engine, &engine->bell, err);
}

static dt_status_t engine_spawn(dt_engines_t *engines, engine_t *engine,
                                const dt_engine_setup_t *setup, dt_error_t *err)
{
    int pair[2];
    int page = -1;
    char cgroup[4224];
    DT_TRY(dt_engine_cgroup_make(engines->options.cgroup, engine->id, cgroup, sizeof cgroup, err));
    DT_TRY(dt_seqpacket_pair(pair, err));
    engine->control = pair[0];
    dt_status_t status = dt_engine_page_create(&page, &engine->page, err);
    if (status == DT_OK)
        status =
            dt_timer_create(engines->options.loop, on_engine_timer, engine, &engine->timer, err);
    if (status == DT_OK)
        status = dt_watch_create(engines->options.loop, engine->control, DT_LOOP_READABLE,
                                 on_control, engine, &engine->watch, err);
    if (status == DT_OK)
        status = door_open(engines, engine, setup, err);
    if (status == DT_OK)
        status = engine_exec(engine, pair[1], page, cgroup, err);
    dt_engine_door_started(&engine->door);
    if (page >= 0)
        (void)close(page);
    (void)close(pair[1]);
    if (status != DT_OK)
        return status;
    engine->pid = dt_child_pid(engine->child);
    dt_timer_arm(engine->timer, dt_loop_now_ns() + DT_ENGINES_COME_UP_NS);
    return DT_OK;
}

static void door_none(engine_t *engine)
{
    engine->door.setup = engine->door.meta_fd = engine->door.wake = engine->door.bell =
        engine->door.meta_wake = -1;
}

/* False: not known yet. What was loaded early and failed is not tried again so. */
static bool setup_of(const dt_engines_t *engines, int32_t device, dt_engine_setup_t *ret_setup)
{
    *ret_setup = (dt_engine_setup_t){.magic = DT_ENGINE_SETUP_MAGIC, .device = -1, .threads = 1};
    if (engines->options.setup && !engines->options.setup(engines->options.arg, device, ret_setup))
        return false;
    return ret_setup->device != DT_ENGINE_DEVICE_LATER || engines->stats.failures == 0;
}

static void set_device(engine_t *engine, const dt_engine_setup_t *setup)
{
    engine->is_early = setup->device == DT_ENGINE_DEVICE_LATER;
    engine->device = engine->is_early ? -1 : setup->device;
    (void)dt_str_copy(engine->backend, sizeof engine->backend, setup->backend);
}

/* Start an engine. AGAIN: what it has to load is not known yet. */
static dt_status_t start_one(dt_engines_t *engines, int32_t device, engine_t **ret_engine)
{
    dt_error_t err = {0};
    dt_engine_setup_t setup;
    if (!setup_of(engines, device, &setup))
        return DT_ERR_AGAIN;
    engine_t *engine = calloc(1, sizeof *engine);
    if (!engine)
        return DT_ERR_NOMEM;
    door_none(engine);
    set_device(engine, &setup);
    engine->owner = engines;
    engine->id = ++engines->last_id;
    engine->control = -1;
    engine->noticed_ns = -1;
    engine->started_ns = dt_loop_now_ns();
    engine->started_wall_ms = dt_clock_wall_ms(dt_clock_system());
    dt_list_push(&engines->list, &engine->link);
    dt_status_t status = engine_spawn(engines, engine, &setup, &err);
    if (status != DT_OK) {
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__FAILED, 0, 0, err.text);
        dt_engine_cgroup_remove(engines->options.cgroup, engine->id);
        engine_free(engine);
        engines->is_settled = true;
        return status;
    }
    dt_log_debug("engine spawned", DT_LOG_U("engine", engine->id), DT_LOG_I("pid", engine->pid));
    if (ret_engine)
        *ret_engine = engine;
    return DT_OK;
}

static void end_one(engine_t *engine)
{
    const dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_EXIT};
    engine->phase = ENGINE_ENDING;
    if (dt_seqpacket_send(engine->control, &message, sizeof message, NULL, 0, NULL) != DT_OK)
        engine_kill(engine);
    dt_timer_arm(engine->timer, dt_loop_now_ns() + DT_ENGINES_END_NS);
}

/* ---- all engines ---- */

static bool is_live(const engine_t *engine)
{
    return engine->phase == ENGINE_COMING_UP || engine->phase == ENGINE_READY;
}

static int32_t spares_count(const dt_engines_t *engines)
{
    int32_t spares = 0;
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        const engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        spares += is_live(engine) && !engine->is_taken;
    }
    return spares;
}

static size_t total_count(const dt_engines_t *engines)
{
    size_t total = 0;
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next)
        total++;
    return total;
}

static void end_surplus(dt_engines_t *engines, int32_t surplus)
{
    for (dt_list_t *at = engines->list.prev; at != &engines->list && surplus > 0; at = at->prev) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        if (!is_live(engine) || engine->is_taken)
            continue;
        end_one(engine);
        surplus--;
    }
}

/* Say what they are for to those that were started before that was known. */
static void tell_early(dt_engines_t *engines)
{
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        const dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_SETUP};
        dt_engine_setup_t setup;
        int fd = -1;
        if (!is_live(engine) || !engine->is_early)
            continue;
        if (!setup_of(engines, -1, &setup) || setup.device == DT_ENGINE_DEVICE_LATER)
            return;
        set_device(engine, &setup);
        dt_timer_arm(engine->timer, dt_loop_now_ns() + DT_ENGINES_COME_UP_NS);
        dt_status_t status = dt_engine_door_setup(&setup, &fd, NULL);
        if (status == DT_OK)
            status = dt_seqpacket_send(engine->control, &message, sizeof message, &fd, 1, NULL);
        if (status != DT_OK)
            engine_kill(engine);
        if (fd >= 0)
            (void)close(fd);
    }
}

/* Bring the number of live engines to what is wanted, or finish stopping. */
static void maintain(dt_engines_t *engines)
{
    int64_t now_ns = dt_loop_now_ns();
    int32_t wanted = engines->options.spare_count;
    if (engines->is_stopping) {
        if (dt_list_is_empty(&engines->list) && engines->stopped) {
            void (*stopped)(void *arg) = engines->stopped;
            engines->stopped = NULL;
            stopped(engines->options.arg);
        }
        return;
    }
    if (!engines->is_started)
        return;
    int32_t live = spares_count(engines);
    if (live > wanted)
        end_surplus(engines, live - wanted);
    tell_early(engines);
    for (; live < wanted && total_count(engines) < DT_ENGINES_MAX; live++) {
        if (engines->stats.retry_at_ns > now_ns) {
            dt_timer_arm(engines->retry, engines->stats.retry_at_ns);
            return;
        }
        dt_status_t status = start_one(engines, -1, NULL);
        if (status == DT_ERR_AGAIN)
            return;
        if (status != DT_OK) {
            engines->stats.failures++;
            engines->stats.retry_at_ns =
                now_ns + DT_ENGINES_BACKOFF_MIN_NS +
                dt_engines_backoff_ns(engines->stats.failures, (uint32_t)now_ns);
            dt_timer_arm(engines->retry, engines->stats.retry_at_ns);
            return;
        }
    }
    engines->stats.retry_at_ns = 0;
}

static void on_retry(void *arg, int64_t deadline_ns)
{
    dt_engines_t *engines = arg;
    (void)deadline_ns;
    maintain(engines);
    changed(engines);
}

/* An engine says in its page when its operator began; nobody else can tell that it hangs. */
static void on_check(void *arg, int64_t deadline_ns)
{
    dt_engines_t *engines = arg;
    int64_t now_ns = dt_loop_now_ns();
    bool was_one_killed = false;
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        dt_engine_snapshot_t shot;
        char text[192];
        if (engine->phase != ENGINE_READY)
            continue;
        dt_engine_page_read(engine->page, now_ns, &shot);
        if (shot.op_begin_ns == 0 || now_ns - shot.op_begin_ns <= engines->options.operation_ns)
            continue;
        set_lost(engine, "page", DT_ENGINES_END_NS);
        engine->noticed_ns = now_ns - shot.op_begin_ns - engines->options.operation_ns;
        engine_kill(engine);
        (void)snprintf(text, sizeof text, "%.127s ran for %" PRId64 " s, killed", shot.op_name,
                       (now_ns - shot.op_begin_ns) / DT_CLOCK_SECOND_NS);
        report(engine, DTORCH__V1__ENGINE_EVENT__KIND__HUNG, SIGKILL, 0, text);
        was_one_killed = true;
    }
    dt_timer_arm(engines->check, deadline_ns + DT_ENGINES_CHECK_NS);
    if (was_one_killed) {
        changed(engines);
        maintain(engines);
    }
}

dt_status_t dt_engines_create(const dt_engines_options_t *options, dt_engines_t **ret_engines,
                              dt_error_t *err)
{
    dt_engines_t *engines = calloc(1, sizeof *engines);
    if (!engines)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for engines");
    engines->options = *options;
    dt_list_init(&engines->list);
    dt_status_t status = dt_timer_create(options->loop, on_retry, engines, &engines->retry, err);
    if (status == DT_OK)
        status = dt_timer_create(options->loop, on_check, engines, &engines->check, err);
    if (status != DT_OK) {
        dt_engines_free(engines);
        return status;
    }
    *ret_engines = engines;
    return DT_OK;
}

void dt_engines_start(dt_engines_t *engines)
{
    engines->is_started = true;
    engines->is_settled = engines->options.spare_count == 0;
    if (engines->options.operation_ns > 0)
        dt_timer_arm(engines->check, dt_loop_now_ns() + DT_ENGINES_CHECK_NS);
    maintain(engines);
}

void dt_engines_set_spares(dt_engines_t *engines, int32_t spare_count)
{
    engines->options.spare_count = spare_count;
    maintain(engines);
}

void dt_engines_refresh(dt_engines_t *engines)
{
    maintain(engines);
}

/* ---- engines that sessions have ---- */

static engine_t *engine_find(const dt_engines_t *engines, uint32_t id)
{
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        if (engine->id == id && is_live(engine))
            return engine;
    }
    return NULL;
}

/* A spare for the device, a warm one if there is any. */
static engine_t *spare_find(const dt_engines_t *engines, int32_t device)
{
    engine_t *best = NULL;
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        if (is_live(engine) && !engine->is_taken && engine->device == device &&
            (!best || best->phase != ENGINE_READY))
            best = engine;
    }
    return best;
}

dt_status_t dt_engines_take(dt_engines_t *engines, int32_t device, uint32_t *ret_engine,
                            dt_error_t *err)
{
    engine_t *engine = spare_find(engines, device);
    if (!engine && (engines->is_stopping || total_count(engines) >= DT_ENGINES_MAX))
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_ENGINES_MAX,
                       "this node stops, or has %d engines", DT_ENGINES_MAX);
    dt_status_t status = engine ? DT_OK : start_one(engines, device, &engine);
    if (status != DT_OK)
        return dt_fail(err, status, "dt", device, "no engine for device %d could be started",
                       (int)device);
    engine->is_taken = engine->is_used = true;
    *ret_engine = engine->id;
    maintain(engines);
    changed(engines);
    return DT_OK;
}

void dt_engines_use(dt_engines_t *engines, uint32_t id, bool is_used)
{
    engine_t *engine = engine_find(engines, id);
    if (!engine || engine->is_used == is_used)
        return;
    engine->is_used = is_used;
    changed(engines);
}

bool dt_engines_is_ready(const dt_engines_t *engines, uint32_t id)
{
    const engine_t *engine = engine_find(engines, id);
    return engine && engine->phase == ENGINE_READY;
}

dt_engine_door_t *dt_engines_door(dt_engines_t *engines, uint32_t id)
{
    engine_t *engine = engine_find(engines, id);
    return engine ? &engine->door : NULL;
}

dt_status_t dt_engines_say(dt_engines_t *engines, uint32_t id, uint32_t kind, uint32_t value,
                           const int *fds, int fd_count)
{
    const dt_engine_message_t message = {.kind = kind, .value = (int32_t)value};
    return dt_engines_send(engines, id, &message, fds, fd_count);
}

dt_status_t dt_engines_send(dt_engines_t *engines, uint32_t id, const dt_engine_message_t *message,
                            const int *fds, int fd_count)
{
    const engine_t *engine = engine_find(engines, id);
    if (!engine || engine->control < 0)
        return DT_ERR_PEER;
    return dt_seqpacket_send(engine->control, message, sizeof *message, fds, fd_count, NULL);
}

void dt_engines_kill(dt_engines_t *engines, uint32_t id)
{
    engine_t *engine = engine_find(engines, id);
    if (engine)
        engine_kill(engine);
}

void dt_engines_end(dt_engines_t *engines, uint32_t id)
{
    engine_t *engine = engine_find(engines, id);
    if (!engine)
        return;
    engine->is_taken = engine->is_used = false;
    end_one(engine);
    changed(engines);
}

bool dt_engines_is_settled(const dt_engines_t *engines)
{
    return engines->is_settled;
}

void dt_engines_stop(dt_engines_t *engines, void (*stopped)(void *arg))
{
    engines->is_stopping = true;
    engines->stopped = stopped;
    dt_timer_disarm(engines->retry);
    dt_timer_disarm(engines->check);
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        if (is_live(engine))
            end_one(engine);
        else
            engine_kill(engine);
    }
    maintain(engines);
}

static Dtorch__V1__Engine__State state_of(const engine_t *engine, const dt_engine_snapshot_t *shot)
{
    if (engine->phase == ENGINE_LOST)
        return DTORCH__V1__ENGINE__STATE__CRASHED;
    if (engine->is_used) /* before the engine knows it itself, so that no drain overlooks it */
        return DTORCH__V1__ENGINE__STATE__BUSY;
    if (engine->phase == ENGINE_COMING_UP)
        return DTORCH__V1__ENGINE__STATE__LOADING;
    return shot->state == DT_ENGINE_STATE_BUSY ? DTORCH__V1__ENGINE__STATE__BUSY
                                               : DTORCH__V1__ENGINE__STATE__WARM;
}

size_t dt_engines_list(const dt_engines_t *engines, Dtorch__V1__Engine *list,
                       Dtorch__V1__Engine **list_at, size_t max)
{
    size_t n = 0;
    for (dt_list_t *at = engines->list.next; at != &engines->list && n < max; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        dt_engine_snapshot_t shot;
        dt_engine_page_read(engine->page, dt_loop_now_ns(), &shot);
        dtorch__v1__engine__init(&list[n]);
        list[n].id = engine->id;
        list[n].pid = (uint32_t)engine->pid;
        list[n].device = engine->device;
        list[n].state = state_of(engine, &shot);
        list[n].progress = shot.progress;
        list[n].started_wall_ms = engine->started_wall_ms;
        list[n].backend = engine->backend;
        list_at[n] = &list[n];
        n++;
    }
    return n;
}

void dt_engines_stats(const dt_engines_t *engines, dt_engines_stats_t *ret_stats)
{
    *ret_stats = engines->stats;
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        const engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        dt_engine_snapshot_t shot;
        dt_engine_page_read(engine->page, dt_loop_now_ns(), &shot);
        add_counts(ret_stats, &shot);
        ret_stats->coming_up += engine->phase == ENGINE_COMING_UP;
        ret_stats->ready += engine->phase == ENGINE_READY;
        ret_stats->lost += !is_live(engine);
    }
}

void dt_engines_computed(const dt_engines_t *engines, int64_t now_ns, uint64_t *ret_ns,
                         size_t count)
{
    memset(ret_ns, 0, count * sizeof *ret_ns);
    for (dt_list_t *at = engines->list.next; at != &engines->list; at = at->next) {
        engine_t *engine = DT_CONTAINER_OF(at, engine_t, link);
        dt_engine_snapshot_t shot;
        if (engine->device < 0 || (size_t)engine->device >= count)
            continue;
        dt_engine_page_read(engine->page, now_ns, &shot);
        ret_ns[engine->device] +=
            shot.device_ns + (shot.op_begin_ns ? (uint64_t)(now_ns - shot.op_begin_ns) : 0);
    }
}

void dt_engines_free(dt_engines_t *engines)
{
    if (!engines)
        return;
    for (dt_list_t *at = engines->list.next, *next; at != &engines->list; at = next) {
        next = at->next;
        engine_free(DT_CONTAINER_OF(at, engine_t, link));
    }
    dt_timer_free(engines->retry);
    dt_timer_free(engines->check);
    free(engines);
}
