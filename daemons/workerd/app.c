#include "app.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "devices.h"
#include "engines.h"
#include "identity.h"
#include "join.h"
#include "link.h"
#include "load.h"
#include "metrics/metrics.h"
#include "report.h"
#include "rpc/rpc.h"
#include "sessions.h"
#include "sysd/sysd.h"
#include "tasks.h"
#include "wire/wire.h"

#define DT_WORKERD_TICK_NS       INT64_C(1000000000)
#define DT_WORKERD_STOP_NS       INT64_C(4000000000) /* below the 5 s that a stop may take */
#define DT_WORKERD_FILES_MAX     65536
#define DT_WORKERD_TASK_GRACE_MS 1000
#define DT_WORKERD_EARLY_MAX     64 /* engines' events before there is a link; more: the newest */

/* sysexits; operators branch on them. */
enum {
    EXIT_OK = 0,
    EXIT_DATA = 65,
    EXIT_UNAVAILABLE = 69,
    EXIT_SOFTWARE = 70,
    EXIT_AGAIN = 75,
    EXIT_DENIED = 77,
    EXIT_CONFIG = 78,
};

typedef struct workerd {
    const dt_conf_cmdline_t *cmdline;
    dt_conf_t *conf;
    dt_identity_t identity;
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_tasks_t *tasks;
    dt_join_t *join;
    dt_link_t *link; /* NULL until there are credentials */
    struct {
        uint8_t *data; /* packed EngineEvent, owned */
        size_t size;
    } early[DT_WORKERD_EARLY_MAX]; /* what the link will be told first */
    uint32_t early_count;
    dt_devices_t *devices;
    dt_engine_cgroup_t cgroup;
    dt_engines_t *engines;
    dt_node_sessions_t *sessions;
    int32_t spare_device;  /* what spares are for: the device that a session had last; -1: any */
    dt_metrics_t *metrics; /* NULL: MetricsListen=none */
    dt_metrics_text_t metrics_text;
    dt_sigwatch_t *signals[3];
    dt_timer_t *tick;
    dt_timer_t *stop_deadline;
    dt_load_t load;
    int64_t tick_ns;     /* between ticks */
    int64_t watchdog_ns; /* 0: none */
    int64_t fed_ns;
    bool is_ready;
    bool is_stopping;
    int still_stopping; /* parts that have not said "stopped" yet */
    int exit_code;
    char status[512]; /* line in the service manager */
    Dtorch__V1__Engine engine_list[DT_ENGINES_MAX];
    Dtorch__V1__Engine *engine_at[DT_ENGINES_MAX];
} workerd_t;

int dt_workerd_exit_code(dt_status_t status)
{
    switch (status) {
    case DT_OK:
        return EXIT_OK;
    case DT_ERR_INVALID:
        return EXIT_DATA;
    case DT_ERR_DENIED:
        return EXIT_DENIED;
    case DT_ERR_EXISTS:
    case DT_ERR_LIMIT:
    case DT_ERR_AGAIN:
        return EXIT_AGAIN;
    case DT_ERR_NOT_FOUND:
        return EXIT_CONFIG;
    default:
        return EXIT_SOFTWARE;
    }
}

dt_status_t dt_workerd_check(const dt_conf_t *conf, dt_error_t *err)
{
    const char *name = dt_conf_str(conf, "NodeName");
    if (name[0] && !dt_wire_node_name_is_valid(name))
        return dt_conf_fail(conf, "NodeName", err,
                            "a node's name has 1 to 63 of a-z 0-9 -, and begins and ends with a "
                            "letter or digit");
    if (dt_conf_str(conf, "Certificate")[0] && !dt_conf_str(conf, "CertificateAuthority")[0])
        return dt_conf_fail(conf, "Certificate", err, "CertificateAuthority= is needed too");
    return DT_OK;
}

/* ---- what it shows ---- */

static void report_fill(workerd_t *w, dt_agent_view_t *view, dt_report_t *ret_report)
{
    *ret_report = (dt_report_t){
        .node_name = w->identity.node_name,
        .devices = dt_devices_snapshot(w->devices),
        .device_refresh_ns = dt_devices_busy_ns(w->devices),
        .certificate_end_ms = dt_join_not_after_ms(w->join),
    };
    if (w->link) {
        dt_link_view(w->link, view);
        ret_report->link = view;
        ret_report->address = dt_link_address(w->link);
    }
    dt_engines_stats(w->engines, &ret_report->engines);
    dt_node_sessions_stats(w->sessions, &ret_report->sessions);
}

static const char *not_ready(const workerd_t *w, const dt_report_t *report)
{
    if (!w->is_ready)
        return "starting";
    if (!report->link)
        return "joining the cluster";
    bool is_online =
        report->link->state == DT_AGENT_ONLINE || report->link->state == DT_AGENT_SUSPECT;
    return is_online ? NULL : "no controller";
}

/* Say what has changed to the service manager: the line, and READY once. */
static void status_update(workerd_t *w)
{
    dt_report_t report;
    dt_agent_view_t view;
    char line[sizeof w->status];
    if (w->is_stopping)
        return;
    report_fill(w, &view, &report);
    dt_report_status(&report, line, sizeof line);
    if (!w->is_ready && report.devices && dt_engines_is_settled(w->engines)) {
        w->is_ready = true;
        (void)dt_str_copy(w->status, sizeof w->status, line);
        (void)dt_sysd_ready(line, NULL);
        dt_log_notice("ready", DT_LOG_S("node", w->identity.node_name),
                      DT_LOG_S("version", dt_version()),
                      DT_LOG_I("devices", report.devices->device_count),
                      DT_LOG_U("engines", report.engines.ready),
                      DT_LOG_S("metrics", w->metrics ? dt_metrics_address(w->metrics) : "none"));
    } else if (!dt_str_is_equal(line, w->status)) {
        (void)dt_str_copy(w->status, sizeof w->status, line);
        (void)dt_sysd_status(NULL, "%s", line);
    }
}

static void inventory_send(workerd_t *w)
{
    dt_error_t err;
    dt_inventory_message_t *message = dt_devices_message(w->devices);
    if (!w->link || !message || w->is_stopping)
        return;
    message->inventory.n_engines =
        dt_engines_list(w->engines, w->engine_list, w->engine_at, DT_ENGINES_MAX);
    message->inventory.engines = w->engine_at;
    message->inventory.config_hash = (char *)(uintptr_t)dt_conf_hash(w->conf); /* not written to */
    if (dt_link_set_inventory(w->link, &message->inventory, &err) != DT_OK)
        dt_log_err("the inventory cannot be sent", DT_LOG_E(&err));
}

static void on_part_changed(void *arg)
{
    workerd_t *w = arg;
    inventory_send(w);
    status_update(w);
}

static void on_devices_changed(void *arg)
{
    workerd_t *w = arg;
    dt_engines_refresh(w->engines);
    on_part_changed(w);
}

static void on_link_changed(void *arg)
{
    workerd_t *w = arg;
    dt_agent_view_t view;
    status_update(w);
    if (!w->link || w->is_stopping || !dt_link_dialed(w->link))
        return;
    dt_link_view(w->link, &view);
    dt_node_sessions_epoch(w->sessions, view.epoch);
}

/* ---- sessions ---- */

static void on_session_open(void *arg, const Dtorch__V1__SessionOpen *open)
{
    workerd_t *w = arg;
    if (open->n_bindings > 0)
        w->spare_device = (int32_t)open->bindings[0]->device;
    dt_node_sessions_open(w->sessions, open);
}

static void on_session_close(void *arg, const Dtorch__V1__SessionClose *close)
{
    workerd_t *w = arg;
    dt_node_sessions_close(w->sessions, close);
}

static bool on_engine_setup(void *arg, int32_t device, dt_engine_setup_t *ret_setup)
{
    workerd_t *w = arg;
    return w->devices && dt_devices_engine_setup(w->devices, w->conf, &w->identity, device,
                                                 w->spare_device, ret_setup);
}

static void on_engine_ready(void *arg, uint32_t engine)
{
    workerd_t *w = arg;
    dt_node_sessions_engine_ready(w->sessions, engine);
}

static void on_engine_lost(void *arg, uint32_t engine, const Dtorch__V1__EngineEvent *event)
{
    workerd_t *w = arg;
    dt_node_sessions_engine_lost(w->sessions, engine, event);
}

static void on_engine_bell(void *arg, uint32_t engine)
{
    workerd_t *w = arg;
    dt_node_sessions_engine_bell(w->sessions, engine);
}

static void on_engine_refused(void *arg, uint32_t engine, uint32_t instance, const char *text)
{
    workerd_t *w = arg;
    dt_node_sessions_engine_refused(w->sessions, engine, instance, text);
}

static void on_engine_no_window(void *arg, uint32_t engine, uint32_t instance, const char *text)
{
    workerd_t *w = arg;
    (void)engine;
    dt_node_sessions_no_window(w->sessions, instance, text);
}

static const char *session_address(void *arg)
{
    workerd_t *w = arg;
    return w->link ? dt_link_dialed(w->link) : NULL;
}

static const char *session_peer(void *arg)
{
    workerd_t *w = arg;
    return w->link ? dt_link_peer(w->link) : "";
}

static const dt_rpc_tls_t *session_tls(void *arg)
{
    workerd_t *w = arg;
    return dt_join_tls(w->join);
}

static dt_node_isolation_t isolation_of(const dt_conf_t *conf)
{
    const char *word = dt_conf_enum(conf, "Isolation");
    if (dt_str_is_equal(word, "session"))
        return DT_NODE_ISOLATION_SESSION;
    return dt_str_is_equal(word, "device") ? DT_NODE_ISOLATION_DEVICE : DT_NODE_ISOLATION_TENANT;
}

static dt_status_t sessions_start(workerd_t *w, dt_error_t *err)
{
    const dt_node_sessions_options_t options = {
        .loop = w->loop,
        .rpc = w->rpc,
        .engines = w->engines,
        .node_name = w->identity.node_name,
        .boot_id = w->identity.boot_id,
        .isolation = isolation_of(w->conf),
        .data_listen = dt_conf_str(w->conf, "DataListen"),
        .data_address = dt_conf_str(w->conf, "DataAddress"),
        .is_plain = dt_join_is_ready(w->join) && !dt_join_tls(w->join),
        .address = session_address,
        .peer = session_peer,
        .tls = session_tls,
        .arg = w,
    };
    return dt_node_sessions_create(&options, &w->sessions, err);
}

static void early_drop_oldest(workerd_t *w)
{
    free(w->early[0].data);
    memmove(&w->early[0], &w->early[1], --w->early_count * sizeof w->early[0]);
}

/* Joining may take as long as it likes; what happened to engines meanwhile is told after it. */
static void early_keep(workerd_t *w, const Dtorch__V1__EngineEvent *event)
{
    uint8_t *data;
    size_t size;
    if (dt_wire_pack_new(&event->base, &data, &size) != DT_OK) {
        dt_log_err("an engine's event is lost: out of memory");
        return;
    }
    if (w->early_count == DT_WORKERD_EARLY_MAX)
        early_drop_oldest(w);
    w->early[w->early_count].data = data;
    w->early[w->early_count++].size = size;
}

static void on_engine_event(void *arg, const Dtorch__V1__EngineEvent *event)
{
    workerd_t *w = arg;
    dt_error_t err;
    if (w->is_stopping)
        return;
    if (!w->link)
        early_keep(w, event);
    else if (dt_link_engine_event(w->link, event, &err) != DT_OK)
        dt_log_err("an engine's event cannot be sent", DT_LOG_E(&err));
}

static void early_tell(workerd_t *w)
{
    for (; w->early_count > 0; early_drop_oldest(w)) {
        Dtorch__V1__EngineEvent *event =
            dtorch__v1__engine_event__unpack(NULL, w->early[0].size, w->early[0].data);
        if (!event)
            continue;
        on_engine_event(w, event);
        dtorch__v1__engine_event__free_unpacked(event, NULL);
    }
}

static void metrics_publish(workerd_t *w)
{
    dt_error_t err;
    dt_report_t report;
    dt_agent_view_t view;
    if (!w->metrics)
        return;
    report_fill(w, &view, &report);
    dt_loop_stats(w->loop, true, &report.loop);
    dt_report_metrics(&report, &w->metrics_text);
    if (dt_metrics_publish(w->metrics, &w->metrics_text, not_ready(w, &report), &err) != DT_OK)
        dt_log_warn("the metrics were not published", DT_LOG_E(&err));
}

/* The watchdog is fed from the loop's own timer: a loop that does not turn does not feed. */
static void watchdog_feed(workerd_t *w, int64_t now_ns)
{
    if (w->watchdog_ns == 0 || now_ns - w->fed_ns < w->watchdog_ns / 4)
        return;
    w->fed_ns = now_ns;
    (void)dt_sysd_watchdog_feed(NULL);
}

static void tell_load(workerd_t *w, int64_t now_ns)
{
    const dt_inventory_snapshot_t *devices = dt_devices_snapshot(w->devices);
    uint8_t percents[DT_DEVICE_MAX];
    if (w->link && dt_load_look(&w->load, w->engines, devices, now_ns, percents))
        dt_link_set_busy(w->link, percents, (uint32_t)devices->device_count);
}

static void on_tick(void *arg, int64_t deadline_ns)
{
    workerd_t *w = arg;
    int64_t now_ns = dt_loop_now_ns();
    dt_engines_stats_t engines;
    dt_loop_stats_t loop;
    dt_engines_stats(w->engines, &engines);
    dt_loop_stats(w->loop, false, &loop);
    if (w->link)
        dt_link_set_progress(w->link, loop.turns + engines.progress);
    tell_load(w, now_ns);
    watchdog_feed(w, now_ns);
    status_update(w);
    metrics_publish(w);
    int64_t next_ns = deadline_ns + w->tick_ns;
    dt_timer_arm(w->tick, next_ns > now_ns ? next_ns : now_ns + w->tick_ns);
}

static void on_slow(void *arg, const char *what, int64_t ns)
{
    (void)arg;
    dt_log_warn("the state thread was held up", DT_LOG_S("callback", what),
                DT_LOG_I("ms", ns / 1000000));
}

static void on_grpc_line(int severity, const char *text)
{
    (void)severity;
    dt_log_debug("grpc", DT_LOG_S("text", text));
}

/* ---- stopping ---- */

static void on_part_stopped(void *arg)
{
    workerd_t *w = arg;
    if (--w->still_stopping == 0)
        dt_rpc_stop(w->rpc);
}

static void on_stop_deadline(void *arg, int64_t deadline_ns)
{
    workerd_t *w = arg;
    (void)deadline_ns;
    dt_log_err("a part did not stop in time", DT_LOG_I("parts", w->still_stopping));
    w->exit_code = w->exit_code ? w->exit_code : EXIT_SOFTWARE;
    dt_rpc_stop(w->rpc);
}

static void stop(workerd_t *w, const char *reason, int exit_code)
{
    if (w->is_stopping)
        return;
    w->is_stopping = true;
    w->exit_code = exit_code;
    w->still_stopping = 4;
    (void)dt_sysd_stopping("Ending the engines", NULL);
    dt_log_notice("stopping", DT_LOG_S("reason", reason));
    dt_timer_arm(w->stop_deadline, dt_loop_now_ns() + DT_WORKERD_STOP_NS);
    if (w->link)
        dt_link_stop(w->link, reason, on_part_stopped);
    else
        on_part_stopped(w);
    dt_join_stop(w->join, on_part_stopped);
    dt_node_sessions_stop(w->sessions, on_part_stopped, w);
    dt_engines_stop(w->engines, on_part_stopped);
}

static void on_term(void *arg, int signum)
{
    stop(arg, signum == SIGTERM ? "SIGTERM" : "SIGINT", EXIT_OK);
}

/* ---- reloading ---- */

static void reload_apply(workerd_t *w, const dt_conf_t *conf, const dt_strv_t *changed)
{
    dt_error_t err;
    dt_log_level_t level;
    if (dt_log_level_from_text(dt_conf_enum(conf, "LogLevel"), &level) == DT_OK)
        dt_log_set_level(level);
    if (dt_strv_has(changed, "Engines"))
        dt_engines_set_spares(w->engines, (int32_t)dt_conf_int(conf, "Engines"));
    if (w->link && dt_strv_has(changed, "Controller") &&
        dt_link_set_addresses(w->link, dt_conf_list(conf, "Controller"), &err) != DT_OK)
        dt_log_err("the controller's addresses were not changed", DT_LOG_E(&err));
}

static void on_hup(void *arg, int signum)
{
    workerd_t *w = arg;
    dt_conf_t *conf = NULL;
    dt_strv_t changed = {0};
    dt_error_t err = {0};
    (void)signum;
    if (w->is_stopping)
        return;
    (void)dt_sysd_reloading(dt_loop_now_ns(), NULL);
    dt_status_t status = dt_conf_reload(w->conf, &w->cmdline->sources, &conf, &changed, &err);
    if (status == DT_OK)
        status = dt_join_reload(w->join, conf, &err);
    if (status == DT_OK) {
        reload_apply(w, conf, &changed);
        dt_conf_free(w->conf);
        w->conf = conf;
        inventory_send(w); /* with the new hash */
        dt_log_notice("configuration loaded again", DT_LOG_U("changed", changed.count),
                      DT_LOG_S("hash", dt_conf_hash(w->conf)));
    } else {
        dt_log_err("the configuration was not loaded again", DT_LOG_E(&err));
        dt_conf_free(conf);
    }
    dt_strv_fini(&changed);
    if (w->is_ready)
        (void)dt_sysd_ready(w->status, NULL);
}

/* ---- starting ---- */

/* Devices, engines and streams need descriptors; the soft limit is often 1024. */
static void files_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    rlim_t wanted = limit.rlim_max < DT_WORKERD_FILES_MAX ? limit.rlim_max : DT_WORKERD_FILES_MAX;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        dt_log_warn("the limit of descriptors stays low", DT_LOG_S("error", strerror(errno)));
}

static void link_start(void *arg)
{
    workerd_t *w = arg;
    dt_error_t err;
    const dt_link_options_t options = {
        .loop = w->loop,
        .rpc = w->rpc,
        .tasks = w->tasks,
        .identity = &w->identity,
        .addresses = dt_conf_list(w->conf, "Controller"),
        .rack = dt_conf_str(w->conf, "Rack"),
        .config_hash = dt_conf_hash(w->conf),
        .join = w->join,
        .changed = on_link_changed,
        .session_open = on_session_open,
        .session_close = on_session_close,
        .arg = w,
    };
    if (w->is_stopping)
        return;
    if (dt_link_create(&options, &w->link, &err) != DT_OK) {
        dt_log_err("the controller cannot be dialed", DT_LOG_E(&err));
        stop(w, "no link", dt_workerd_exit_code(err.code));
        return;
    }
    early_tell(w);
    inventory_send(w);
}

static void on_join_failed(void *arg, const dt_error_t *why)
{
    dt_log_err("this node cannot join; make a new token with \"dtorchctl token create\"",
               DT_LOG_E(why));
    stop(arg, "not joined", EXIT_DENIED);
}

static dt_status_t credentials_start(workerd_t *w, dt_error_t *err)
{
    const dt_join_options_t options = {
        .loop = w->loop,
        .rpc = w->rpc,
        .tasks = w->tasks,
        .conf = w->conf,
        .identity = &w->identity,
        .ready = link_start,
        .failed = on_join_failed,
        .arg = w,
    };
    dt_status_t status = dt_join_create(&options, &w->join, err);
    if (status != DT_OK)
        w->exit_code = status == DT_ERR_INVALID ? EXIT_CONFIG : dt_workerd_exit_code(status);
    return status;
}

static dt_status_t metrics_start(workerd_t *w, dt_error_t *err)
{
    const dt_metrics_options_t options = {
        .struct_size = sizeof options,
        .listen = dt_conf_str(w->conf, "MetricsListen"),
    };
    dt_metrics_text_init(&w->metrics_text);
    if (dt_str_is_equal(options.listen, "none"))
        return DT_OK;
    dt_status_t status = dt_metrics_open(&options, &w->metrics, err);
    if (status != DT_OK)
        w->exit_code = status == DT_ERR_INVALID ? EXIT_CONFIG : EXIT_UNAVAILABLE;
    return status;
}

static dt_status_t devices_start(workerd_t *w, dt_error_t *err)
{
    dt_status_t status =
        dt_devices_create(w->rpc, w->conf, &w->identity, on_devices_changed, w, &w->devices, err);
    if (status == DT_ERR_INVALID)
        w->exit_code = EXIT_CONFIG;
    return status;
}

static dt_status_t engines_start(workerd_t *w, dt_error_t *err)
{
    const char *cgroups = dt_conf_enum(w->conf, "EngineCgroup");
    const dt_engines_options_t options = {
        .loop = w->loop,
        .spare_count = (int32_t)dt_conf_int(w->conf, "Engines"),
        .heap_bytes = dt_conf_size(w->conf, "EngineHeapMax"),
        .operation_ns = dt_conf_duration_ns(w->conf, "OperationTimeout"),
        .cgroup = &w->cgroup,
        .event = on_engine_event,
        .changed = on_part_changed,
        .setup = on_engine_setup,
        .ready = on_engine_ready,
        .lost = on_engine_lost,
        .bell = on_engine_bell,
        .refused = on_engine_refused,
        .no_window = on_engine_no_window,
        .arg = w,
    };
    if (!dt_str_is_equal(cgroups, "no") && dt_engine_cgroup_open(&w->cgroup, err) != DT_OK) {
        if (dt_str_is_equal(cgroups, "yes")) {
            w->exit_code = EXIT_CONFIG;
            return DT_ERR_NOT_FOUND;
        }
        dt_log_notice("engines stay in the agent's cgroup", DT_LOG_E(err));
    }
    return dt_engines_create(&options, &w->engines, err);
}

static dt_status_t signals_start(workerd_t *w, dt_error_t *err)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    DT_TRY(dt_sigwatch_create(w->loop, SIGTERM, on_term, w, &w->signals[0], err));
    DT_TRY(dt_sigwatch_create(w->loop, SIGINT, on_term, w, &w->signals[1], err));
    return dt_sigwatch_create(w->loop, SIGHUP, on_hup, w, &w->signals[2], err);
}

static dt_status_t parts_start(workerd_t *w, dt_error_t *err)
{
    DT_TRY(dt_identity_open(dt_conf_str(w->conf, "StateDirectory"),
                            dt_conf_str(w->conf, "NodeName"), &w->identity, err));
    DT_TRY(dt_loop_create(&w->loop, err));
    dt_loop_set_slow_hook(w->loop, on_slow, w);
    DT_TRY(dt_rpc_create(w->loop, on_grpc_line, &w->rpc, err));
    DT_TRY(dt_tasks_create(w->rpc, &w->tasks, err));
    DT_TRY(signals_start(w, err));
    DT_TRY(dt_timer_create(w->loop, on_tick, w, &w->tick, err));
    DT_TRY(dt_timer_create(w->loop, on_stop_deadline, w, &w->stop_deadline, err));
    DT_TRY(credentials_start(w, err));
    DT_TRY(metrics_start(w, err));
    DT_TRY(engines_start(w, err));
    DT_TRY(sessions_start(w, err));
    return devices_start(w, err);
}

/* Free in the order in which parts need each other. A thread that hangs in a name look-up would
 * make the loop and gRPC wait: then they are left to the end of the process. */
static void parts_free(workerd_t *w)
{
    dt_metrics_close(w->metrics);
    dt_metrics_text_fini(&w->metrics_text);
    dt_devices_free(w->devices);
    bool is_idle = dt_tasks_free(w->tasks, DT_WORKERD_TASK_GRACE_MS);
    dt_node_sessions_free(w->sessions);
    dt_engines_free(w->engines);
    while (w->early_count > 0)
        early_drop_oldest(w);
    if (is_idle) {
        dt_link_free(w->link);
        dt_join_free(w->join);
        dt_timer_free(w->tick);
        dt_timer_free(w->stop_deadline);
        for (size_t i = 0; i < sizeof w->signals / sizeof w->signals[0]; i++)
            dt_sigwatch_free(w->signals[i]);
        if (dt_rpc_free(w->rpc) == DT_OK && dt_loop_free(w->loop) != DT_OK)
            dt_log_err("a handle of the loop was left open");
    }
    dt_identity_close(&w->identity);
    dt_conf_free(w->conf);
}

int dt_workerd_run(const dt_conf_cmdline_t *cmdline, dt_conf_t *conf)
{
    dt_error_t err = {0};
    dt_log_level_t level;
    workerd_t *w = calloc(1, sizeof *w);
    if (!w)
        return EXIT_SOFTWARE;
    w->cmdline = cmdline;
    w->conf = conf;
    w->identity.lock_fd = -1;
    w->spare_device = -1;
    (void)dt_sysd_log_init("dtorch-workerd");
    if (dt_log_level_from_text(dt_conf_enum(conf, "LogLevel"), &level) == DT_OK)
        dt_log_set_level(level);
    files_raise();
    (void)dt_sysd_status(NULL, "Starting");
    dt_status_t status = parts_start(w, &err);
    if (status == DT_OK) {
        w->watchdog_ns = dt_sysd_watchdog_ns();
        bool is_short = w->watchdog_ns > 0 && w->watchdog_ns < 4 * DT_WORKERD_TICK_NS;
        w->tick_ns = is_short ? w->watchdog_ns / 4 : DT_WORKERD_TICK_NS;
        dt_timer_arm(w->tick, dt_loop_now_ns());
        dt_engines_start(w->engines);
        dt_join_start(w->join);
        if (dt_join_is_ready(w->join))
            link_start(w);
        dt_signals_release();
        dt_rpc_run(w->rpc);
    } else {
        dt_log_err("dtorch-workerd cannot start", DT_LOG_E(&err));
        w->exit_code = w->exit_code ? w->exit_code : dt_workerd_exit_code(status);
    }
    int exit_code = w->exit_code;
    parts_free(w);
    free(w);
    dt_sysd_log_fini();
    return exit_code;
}
