/* The daemon as a whole: its parts, the order in which they start and stop, and the pump that
 * performs what the core wants.
 *
 * Start: limits, certificates, loop, core, journal (which restores the core), epoch, server,
 * metrics, signals. READY=1 goes out when the journal has taken the new epoch. Stop: refuse new
 * work, tell workers (Refusal STOPPING), end streams, answer what waits, end the server, then the
 * journal writes what is left. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "controllerd.h"
#include "observe.h"
#include "wire/wire.h"

#define SERVER_GRACE_MS   1000
#define TICKET_GRACE_NS   (800 * DT_CLOCK_MS_NS)
#define ADMIN_PENDING_MAX 256
#define STREAM_EXTRA      (2 * DT_CONTROLLERD_FOLLOWER_MAX + DT_CONTROLLERD_SESSION_STREAMS)
#define CALLS_MAX         1024
#define QUEUE_BYTES_MAX                                                                            \
    (64u << 20) /* a peer's unsent messages; all unconfirmed results at once                       \
                 */
#define DESCRIPTORS_SPARE 256
#define WATCHDOG_LOOKS    4 /* in one watchdog interval */

/* ---- the pump ---- */

static void perform(dt_controllerd_t *app, const dt_cluster_action_t *action)
{
    switch (action->kind) {
    case DT_CLUSTER_DO_SEND:
        dt_controllerd_worker_send(app, action);
        break;
    case DT_CLUSTER_DO_CLOSE:
        dt_controllerd_worker_close(app, action);
        break;
    case DT_CLUSTER_DO_JOURNAL:
        dt_controllerd_journal_put(app, action);
        break;
    case DT_CLUSTER_DO_EVENT:
        dt_controllerd_log_event(action->event, dt_cluster_epoch(app->cluster));
        break;
    case DT_CLUSTER_DO_REPLY:
        dt_controllerd_ticket_answer(app, action);
        break;
    }
}

/* Say that we serve: once, when the epoch is durable. */
static void become_ready(dt_controllerd_t *app)
{
    dt_cluster_counts_t counts;
    char listens[512] = "";
    size_t used = 0;
    app->is_ready = true;
    dt_cluster_count(app->cluster, &counts);
    for (size_t i = 0; i < app->listen_count && used < sizeof listens; i++) {
        int more =
            snprintf(listens + used, sizeof listens - used, "%s%s", i ? " " : "", app->listens[i]);
        used += more > 0 ? (size_t)more : 0;
    }
    dt_log_notice("ready", DT_LOG_U("epoch", counts.epoch), DT_LOG_S("listens", listens),
                  DT_LOG_S("admin_socket", dt_conf_str(app->conf, "AdminSocket")),
                  DT_LOG_S("metrics", app->metrics ? dt_metrics_address(app->metrics) : "none"),
                  DT_LOG_S("status", app->page ? dt_page_address(app->page) : "none"),
                  DT_LOG_U("nodes", counts.nodes_total), DT_LOG_S("version", dt_version()),
                  DT_LOG_I("start_ms", (dt_loop_now_ns() - app->started_ns) / DT_CLOCK_MS_NS));
    if (dt_conf_bool(app->conf, "Insecure"))
        dt_log_warn("insecure: everybody who reaches the port can use this cluster",
                    DT_LOG_S("why", "Insecure=yes"));
    else if (!app->tls.is_on)
        dt_log_notice("private: no TLS is configured, so only this host can connect",
                      DT_LOG_S("to_change", "dtorchctl setup controller"));
    dt_controllerd_observe(app, dt_loop_now_ns()); /* who hears of it finds /readyz so */
    (void)dt_sysd_ready(app->status_line, NULL);
}

void dt_controllerd_pump(dt_controllerd_t *app)
{
    dt_cluster_action_t action;
    do {
        while (dt_cluster_poll(app->cluster, &action))
            perform(app, &action);
        dt_controllerd_session_pump(app);
    } while (dt_cluster_has_actions(app->cluster));
    dt_controllerd_follow_feed(app);
    if (app->core_timer)
        dt_timer_arm(app->core_timer, dt_cluster_deadline(app->cluster));
    if (!app->is_ready && !app->is_stopping && app->second_timer &&
        dt_cluster_is_ready(app->cluster))
        become_ready(app);
}

/* ---- timers and signals ---- */

static void on_core_deadline(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    (void)deadline_ns;
    dt_cluster_tick(app->cluster, dt_loop_now_ns(), dt_clock_wall_ms(dt_clock_system()));
    dt_controllerd_pump(app);
}

static void on_second(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    int64_t now_ns = dt_loop_now_ns();
    dt_controllerd_observe(app, now_ns);
    dt_controllerd_pump(app);
    deadline_ns += DT_CLOCK_SECOND_NS;
    dt_timer_arm(app->second_timer, deadline_ns > now_ns ? deadline_ns : now_ns);
}

/* Progress of the completion queue: a post went through it. */
static void on_probe(void *arg)
{
    dt_controllerd_t *app = arg;
    app->probe_runs++;
}

/* Feed the watchdog if loop (this timer), journal and completion queue each moved since. */
static void on_watchdog(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    int64_t now_ns = dt_loop_now_ns();
    dt_store_status_t store;
    dt_store_poll(app->store, &store);
    if (app->probe_runs != app->fed_probe_runs && store.turns != app->fed_journal_turns) {
        app->fed_probe_runs = app->probe_runs;
        app->fed_journal_turns = store.turns;
        (void)dt_sysd_watchdog_feed(NULL);
    }
    dt_rpc_wake(app->probe);
    deadline_ns += app->watchdog_ns;
    dt_timer_arm(app->watchdog_timer, deadline_ns > now_ns ? deadline_ns : now_ns);
}

static void on_signal(void *arg, int signum)
{
    dt_controllerd_t *app = arg;
    if (signum == SIGHUP)
        dt_controllerd_reload(app);
    else
        dt_controllerd_stop(app, DT_CONTROLLERD_EXIT_OK);
}

static void on_slow(void *arg, const char *what, int64_t took_ns)
{
    (void)arg;
    dt_log_warn("slow callback", DT_LOG_S("what", what),
                DT_LOG_I("took_ms", took_ns / DT_CLOCK_MS_NS));
}

static void on_grpc_log(int severity, const char *text)
{
    dt_log_debug("grpc", DT_LOG_I("severity", severity), DT_LOG_S("text", text));
}

static void on_refused(void *arg, const char *address, uint64_t count)
{
    dt_controllerd_t *app = arg;
    dt_log_debug("connections closed", DT_LOG_S("address", address), DT_LOG_U("count", count));
    dt_cluster_peer_misbehaved(app->cluster, address,
                               "connections without a call, or over ConnectionsMax=, were closed",
                               dt_loop_now_ns());
    dt_controllerd_pump(app);
}

static void on_listener_lost(void *arg, int port)
{
    dt_log_err("gRPC gave up a listening port for want of descriptors; ending, to be started again",
               DT_LOG_I("port", port));
    dt_controllerd_stop(arg, DT_CONTROLLERD_EXIT_AGAIN);
}

/* ---- stop ---- */

static void on_server_stopped(void *arg)
{
    dt_controllerd_t *app = arg;
    app->server = NULL;
    dt_rpc_stop(app->rpc);
}

static void on_stop_deadline(void *arg, int64_t deadline_ns)
{
    (void)deadline_ns;
    dt_controllerd_ticket_fail_all(arg, DT_ERR_STOPPED, "the controller stops");
}

void dt_controllerd_stop(dt_controllerd_t *app, int exit_code)
{
    int64_t now_ns = dt_loop_now_ns();
    if (app->is_stopping)
        return;
    app->is_stopping = true;
    app->exit_code = exit_code;
    dt_log_notice("stopping", DT_LOG_I("exit_code", exit_code));
    (void)dt_sysd_stopping("stopping", NULL);
    dt_cluster_stop(app->cluster, now_ns);
    dt_controllerd_pump(app);
    dt_controllerd_follow_end(app);
    dt_controllerd_watch_end(app);
    dt_controllerd_session_end(app);
    dt_controllerd_pump(app);
    dt_timer_arm(app->stop_timer, now_ns + TICKET_GRACE_NS);
    if (!app->is_server_stopping && app->server) {
        app->is_server_stopping = true;
        dt_rpc_server_stop(app->server, SERVER_GRACE_MS, on_server_stopped, app);
    }
}

/* ---- start ---- */

void dt_controllerd_cluster_options(const dt_controllerd_t *app, const dt_conf_t *conf,
                                    dt_cluster_options_t *ret_options)
{
    (void)app;
    *ret_options = (dt_cluster_options_t){
        .struct_size = sizeof *ret_options,
        .name = dt_conf_str(conf, "ClusterName"),
        .build = dt_version(),
        .config_hash = dt_conf_hash(conf),
        .rules = {.interval_ns = dt_conf_duration_ns(conf, "HeartbeatInterval"),
                  .suspect_beats = (uint32_t)dt_conf_int(conf, "SuspectBeats"),
                  .dead_beats = (uint32_t)dt_conf_int(conf, "DeadBeats")},
        .rejoin_grace_ns = dt_conf_duration_ns(conf, "RejoinGrace"),
        .hello_timeout_ns = dt_conf_duration_ns(conf, "HelloTimeout"),
        .nodes_max = (uint32_t)dt_conf_int(conf, "NodesMax"),
        .streams_max = (uint32_t)dt_conf_int(conf, "ConnectionsMax"),
        .events_max = (uint32_t)dt_conf_int(conf, "EventsMax"),
        .admin_pending_max = ADMIN_PENDING_MAX,
        .journal_pending_max = dt_controllerd_journal_pending_max(conf),
        .journal_bytes_max = (uint64_t)dt_conf_size(conf, "JournalPendingMax"),
    };
    dt_pki_random(ret_options->new_cluster_id, sizeof ret_options->new_cluster_id);
}

/* A connection takes a descriptor; ask for as many as we may have. */
static void raise_limits(const dt_controllerd_t *app)
{
    struct rlimit limit;
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    rlim_t wanted = (rlim_t)dt_conf_int(app->conf, "ConnectionsMax") + DESCRIPTORS_SPARE;
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigaction(SIGXFSZ, &ignore, NULL); /* the write fails with EFBIG then, and is retried */
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < wanted)
        dt_log_info("fewer descriptors than ConnectionsMax= may need: raise LimitNOFILE=",
                    DT_LOG_U("have", limit.rlim_cur), DT_LOG_U("want", wanted));
}

static dt_status_t start_parts(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    dt_cluster_options_t options;
    dt_status_t status =
        dt_controllerd_tls_load(app->conf, dt_clock_wall_ms(dt_clock_system()), &app->tls, err);
    *ret_exit = status == DT_ERR_NOMEM ? DT_CONTROLLERD_EXIT_SOFTWARE : DT_CONTROLLERD_EXIT_CONFIG;
    DT_TRY(status);
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    DT_TRY(dt_loop_create(&app->loop, err));
    dt_loop_set_slow_hook(app->loop, on_slow, app);
    DT_TRY(dt_rpc_create(app->loop, on_grpc_log, &app->rpc, err));
    dt_controllerd_cluster_options(app, app->conf, &options);
    DT_TRY(dt_cluster_create(&options, &app->cluster, err));
    DT_TRY(dt_controllerd_session_start(app, err));
    DT_TRY(dt_controllerd_journal_open(app, ret_exit, err));
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    return dt_cluster_start(app->cluster, dt_loop_now_ns(), dt_clock_wall_ms(dt_clock_system()),
                            err);
}

static dt_status_t start_server(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    size_t connections = (size_t)dt_conf_int(app->conf, "ConnectionsMax");
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    DT_TRY(dt_controllerd_doors_make(app, err));
    const dt_rpc_server_options_t options = {
        .methods = app->rpc_methods,
        .method_count = app->method_count,
        .connection_max = connections,
        .stream_max = connections + STREAM_EXTRA,
        .call_max = CALLS_MAX,
        .message_bytes_max = DT_CONTROLLERD_CHUNK_MESSAGE,
        .queue_bytes_max = QUEUE_BYTES_MAX,
        .refused = on_refused,
        .listener_lost = on_listener_lost,
        .arg = app,
    };
    DT_TRY(dt_rpc_server_create(app->rpc, &options, &app->server, err));
    DT_TRY(dt_controllerd_listen(app, ret_exit, err));
    DT_TRY(
        dt_controllerd_metrics_open(app, dt_conf_str(app->conf, "MetricsListen"), ret_exit, err));
    DT_TRY(dt_controllerd_page_open(app, ret_exit, err));
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    return dt_rpc_server_start(app->server, err);
}

static dt_status_t start_events(dt_controllerd_t *app, dt_error_t *err)
{
    int64_t now_ns = dt_loop_now_ns();
    DT_TRY(dt_rpc_wake_create(app->rpc, on_probe, app, &app->probe, err));
    DT_TRY(dt_timer_create(app->loop, on_core_deadline, app, &app->core_timer, err));
    DT_TRY(dt_timer_create(app->loop, on_second, app, &app->second_timer, err));
    DT_TRY(dt_timer_create(app->loop, on_stop_deadline, app, &app->stop_timer, err));
    DT_TRY(dt_sigwatch_create(app->loop, SIGTERM, on_signal, app, &app->sigterm, err));
    DT_TRY(dt_sigwatch_create(app->loop, SIGINT, on_signal, app, &app->sigint, err));
    DT_TRY(dt_sigwatch_create(app->loop, SIGHUP, on_signal, app, &app->sighup, err));
    dt_timer_arm(app->second_timer, now_ns + DT_CLOCK_SECOND_NS);
    if (dt_sysd_watchdog_ns() > 0) {
        DT_TRY(dt_timer_create(app->loop, on_watchdog, app, &app->watchdog_timer, err));
        app->watchdog_ns = dt_sysd_watchdog_ns() / WATCHDOG_LOOKS;
        dt_timer_arm(app->watchdog_timer, now_ns);
    }
    return DT_OK;
}

static dt_status_t start(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    dt_log_level_t level;
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    if (dt_log_level_from_text(dt_conf_enum(app->conf, "LogLevel"), &level) == DT_OK)
        dt_log_set_level(level);
    if (gethostname(app->host, sizeof app->host - 1) < 0)
        (void)dt_str_copy(app->host, sizeof app->host, "unknown");
    raise_limits(app);
    DT_TRY(start_parts(app, ret_exit, err));
    DT_TRY(start_server(app, ret_exit, err));
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    DT_TRY(start_events(app, err));
    dt_controllerd_pump(app);
    return DT_OK;
}

/* ---- the end of all parts, also after a start that failed ---- */

static void end_server(dt_controllerd_t *app)
{
    if (!app->server)
        return;
    if (!app->is_server_stopping) {
        app->is_server_stopping = true;
        dt_rpc_server_stop(app->server, 0, on_server_stopped, app);
    }
    dt_rpc_run(app->rpc);
}

static void end(dt_controllerd_t *app)
{
    app->is_stopping = true;
    end_server(app);
    dt_controllerd_journal_close(app);
    dt_metrics_close(app->metrics);
    dt_controllerd_page_close(app);
    dt_timer_free(app->core_timer);
    dt_timer_free(app->second_timer);
    dt_timer_free(app->stop_timer);
    dt_timer_free(app->watchdog_timer);
    dt_sigwatch_free(app->sigterm);
    dt_sigwatch_free(app->sigint);
    dt_sigwatch_free(app->sighup);
    if (app->probe)
        dt_rpc_wake_free(app->probe);
    dt_controllerd_session_free(app);
    dt_cluster_free(app->cluster);
    if (dt_rpc_free(app->rpc) != DT_OK || dt_loop_free(app->loop) != DT_OK)
        dt_log_err("handles were left open at the end");
    dt_controllerd_tls_fini(&app->tls);
    dt_metrics_text_fini(&app->text);
    dt_arena_fini(&app->request_arena);
    dt_arena_fini(&app->reply_arena);
    for (size_t i = 0; i < app->listen_count; i++)
        free(app->listens[i]);
    free(app->rpc_methods);
    free(app->doors);
    dt_conf_free(app->conf);
}

static void init(dt_controllerd_t *app, const dt_conf_sources_t *sources, dt_conf_t *conf)
{
    app->sources = sources;
    app->conf = conf;
    app->started_ns = dt_loop_now_ns();
    app->started_wall_ms = dt_clock_wall_ms(dt_clock_system());
    dt_arena_init(&app->request_arena, DT_WIRE_ARENA_MAX);
    dt_arena_init(&app->reply_arena, DT_CONTROLLERD_ARENA_MAX);
    dt_metrics_text_init(&app->text);
    for (size_t i = 0; i < DT_CONTROLLERD_BUCKET_COUNT; i++)
        dt_list_init(&app->worker_buckets[i]);
    dt_list_init(&app->followers);
    dt_list_init(&app->watchers);
    for (size_t i = 0; i < DT_CONTROLLERD_BUCKET_COUNT; i++)
        dt_list_init(&app->session_buckets[i]);
    dt_list_init(&app->tickets);
}

/* Tell why the start failed: as a plain line to people, as an event to the journal. */
static void complain(const dt_error_t *err, int exit_code)
{
    (void)dt_sysd_status(NULL, "start failed: %s", err->text);
    if (dt_sysd_is_stderr_journal())
        dt_log_err("start failed", DT_LOG_E(err), DT_LOG_I("exit_code", exit_code));
    else
        (void)fprintf(stderr, "dtorch-controllerd: %s\n", err->text);
}

int dt_controllerd_run(const dt_conf_sources_t *sources, dt_conf_t *conf)
{
    dt_controllerd_t *app = calloc(1, sizeof *app);
    dt_error_t err = {.text = "out of memory"};
    int exit_code;
    if (!app) {
        dt_conf_free(conf);
        return DT_CONTROLLERD_EXIT_SOFTWARE;
    }
    (void)dt_sysd_log_init("dtorch-controllerd");
    init(app, sources, conf);
    if (start(app, &exit_code, &err) == DT_OK) {
        dt_signals_release();
        dt_rpc_run(app->rpc);
        exit_code = app->exit_code;
    } else if (exit_code != DT_CONTROLLERD_EXIT_OK) {
        complain(&err, exit_code);
    }
    end(app);
    free(app);
    dt_log_notice("stopped", DT_LOG_I("exit_code", exit_code));
    dt_sysd_log_fini();
    return exit_code;
}
