/* What people and machines see of the controller: log lines for events, metrics, STATUS=, alarms of
 * its own, diagnostics, and the watch over peers that only take up room. */
#include "observe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "dtorch/v1/admin.pb-c.h"
#include "wire/wire.h"

#define EVENT_SITES       64
#define YOUNG_SECONDS     DT_CONTROLLERD_YOUNG_SECONDS
#define DAY_MS            (INT64_C(86400000))
#define CERTIFICATE_SOON  (14 * DAY_MS)
#define AUTHORITY_SOON    (60 * DAY_MS)
#define ITEMS_MAX         128
#define ITEM_TEXT_MAX     96
#define ALARMS_MAX        64
#define START_PATIENCE_NS (5 * DT_CLOCK_SECOND_NS)

/* ---- events in the log ---- */

void dt_controllerd_log_event(const Dtorch__V1__Event *event, uint64_t epoch)
{
    static dt_log_site_t sites[EVENT_SITES]; /* by name, so that one kind cannot hide the others */
    static const dt_log_level_t levels[] = {DT_LOG_INFO,   DT_LOG_DEBUG,   DT_LOG_INFO,
                                            DT_LOG_NOTICE, DT_LOG_WARNING, DT_LOG_ERR};
    size_t severity = (size_t)event->severity;
    dt_log_level_t level = levels[severity < sizeof levels / sizeof *levels ? severity : 0];
    dt_log_field_t fields[DT_LOG_FIELD_MAX];
    size_t count = 0;
    if (!dt_log_is_on(level))
        return;
    if (*event->node)
        fields[count++] = DT_LOG_S("node", event->node);
    if (*event->device)
        fields[count++] = DT_LOG_S("device", event->device);
    fields[count++] = DT_LOG_U("epoch", epoch);
    fields[count++] = DT_LOG_S("text", event->text);
    for (size_t i = 0; i < event->n_fields && count < DT_LOG_FIELD_MAX; i++)
        fields[count++] = DT_LOG_S(event->fields[i]->key, event->fields[i]->value);
    dt_log_event(&sites[dt_hash_str(DT_HASH_SEED, event->name) % EVENT_SITES], level, __FILE__,
                 __LINE__, event->name, fields, count);
}

/* ---- why it does not serve ---- */

const char *dt_controllerd_not_serving(const dt_controllerd_t *app)
{
    if (app->is_stopping)
        return "the controller stops";
    if (!app->is_ready)
        return app->was_failing ? "the journal cannot be written"
                                : "the journal has not taken the new epoch yet";
    return NULL;
}

/* ---- the cluster's status ---- */

/* Write the sentence for a certificate that ends soon. False: it does not. */
static bool expiry_text(const char *whose, const dt_pki_info_t *info, int64_t soon_ms,
                        int64_t wall_ms, char *text, size_t size)
{
    char when[DT_CLOCK_TEXT_SIZE], left[DT_STR_UNIT_TEXT_SIZE];
    int64_t left_ms = info->not_after_ms - wall_ms;
    int64_t life_ms = info->not_after_ms - info->not_before_ms;
    if (left_ms > soon_ms || left_ms > life_ms / 3)
        return false;
    dt_clock_format_wall(info->not_after_ms, when);
    if (left_ms <= 0) {
        (void)snprintf(text, size, "%s expired at %s", whose, when);
    } else {
        dt_str_human_duration(left_ms * DT_CLOCK_MS_NS, left);
        (void)snprintf(text, size, "%s expires in %s, at %s", whose, left, when);
    }
    return true;
}

static dt_status_t add_alarm(dt_controllerd_t *app, Dtorch__V1__ClusterStatus *status,
                             const char *text, int64_t since_wall_ms)
{
    Dtorch__V1__Alarm *alarm = dt_arena_calloc(&app->reply_arena, 1, sizeof *alarm);
    Dtorch__V1__Alarm **alarms =
        dt_arena_calloc(&app->reply_arena, status->n_alarms + 1, sizeof *alarms);
    if (!alarm || !alarms)
        return DT_ERR_NOMEM;
    if (status->n_alarms >= ALARMS_MAX)
        return DT_OK;
    dtorch__v1__alarm__init(alarm);
    alarm->name = (char *)(uintptr_t) "certificate-expires";
    alarm->text = dt_arena_strndup(&app->reply_arena, text, strlen(text));
    alarm->command = (char *)(uintptr_t) "dtorchctl setup controller --renew";
    alarm->since_wall_ms = since_wall_ms;
    if (!alarm->text)
        return DT_ERR_NOMEM;
    if (status->n_alarms)
        memcpy(alarms, status->alarms, status->n_alarms * sizeof *alarms);
    alarms[status->n_alarms++] = alarm;
    status->alarms = alarms;
    return DT_OK;
}

static dt_status_t add_own_alarms(dt_controllerd_t *app, Dtorch__V1__ClusterStatus *status)
{
    int64_t wall_ms = dt_clock_wall_ms(dt_clock_system());
    char text[160];
    if (!app->tls.is_on)
        return DT_OK;
    if (expiry_text("the controller's certificate", &app->tls.info, CERTIFICATE_SOON, wall_ms, text,
                    sizeof text))
        DT_TRY(add_alarm(app, status, text, app->tls.info.not_after_ms - CERTIFICATE_SOON));
    if (expiry_text("the cluster's certificate authority", &app->tls.ca_info, AUTHORITY_SOON,
                    wall_ms, text, sizeof text))
        DT_TRY(add_alarm(app, status, text, app->tls.ca_info.not_after_ms - AUTHORITY_SOON));
    return DT_OK;
}

static dt_status_t add_journal(dt_controllerd_t *app, Dtorch__V1__ClusterStatus *status)
{
    Dtorch__V1__JournalStatus *journal = dt_arena_calloc(&app->reply_arena, 1, sizeof *journal);
    dt_cluster_counts_t counts;
    dt_store_status_t store;
    if (!journal)
        return DT_ERR_NOMEM;
    dt_store_poll(app->store, &store);
    dt_cluster_count(app->cluster, &counts);
    dtorch__v1__journal_status__init(journal);
    journal->directory = (char *)(uintptr_t)dt_conf_str(app->conf, "StateDirectory");
    journal->bytes = store.bytes;
    journal->records = store.records;
    journal->sequence = store.durable_sequence;
    journal->pending = store.pending;
    journal->pending_max = counts.journal_pending_max;
    journal->is_failing = store.is_failing;
    journal->text = dt_arena_strndup(&app->reply_arena, store.text, strlen(store.text));
    journal->dropped_events = counts.events_dropped;
    if (!journal->text)
        return DT_ERR_NOMEM;
    status->journal = journal;
    return DT_OK;
}

dt_status_t dt_controllerd_complete_status(dt_controllerd_t *app, int64_t now_ns,
                                           Dtorch__V1__ClusterStatus *status)
{
    status->listens = app->listens;
    status->n_listens = app->listen_count;
    status->controller = app->host;
    status->version = (char *)(uintptr_t)DT_WIRE_VERSION_TEXT;
    status->is_private = !app->tls.is_on && !dt_conf_bool(app->conf, "Insecure");
    status->started_wall_ms = app->started_wall_ms;
    status->uptime_ms = (now_ns - app->started_ns) / DT_CLOCK_MS_NS;
    DT_TRY(add_journal(app, status));
    return add_own_alarms(app, status);
}

/* ---- diagnostics ---- */

struct items {
    dt_arena_t *arena;
    Dtorch__V1__DiagnosticsItem *list[ITEMS_MAX];
    size_t count;
    const char *part;
    dt_status_t status;
};

/* Add an item; `bound` 0: it is no queue. */
static void item(struct items *items, const char *name, uint64_t bound, const char *fmt, ...)
    DT_PRINTF_LIKE(4, 5);
static void item(struct items *items, const char *name, uint64_t bound, const char *fmt, ...)
{
    Dtorch__V1__DiagnosticsItem *new = dt_arena_calloc(items->arena, 1, sizeof *new);
    char *value = dt_arena_alloc(items->arena, ITEM_TEXT_MAX);
    char *limit = dt_arena_alloc(items->arena, ITEM_TEXT_MAX);
    va_list args;
    if (!new || !value || !limit || items->count == ITEMS_MAX) {
        items->status = DT_ERR_NOMEM;
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(value, ITEM_TEXT_MAX, fmt, args);
    va_end(args);
    (void)snprintf(limit, ITEM_TEXT_MAX, bound ? "%" PRIu64 : "%.0" PRIu64, bound);
    dtorch__v1__diagnostics_item__init(new);
    new->part = (char *)(uintptr_t)items->part;
    new->name = (char *)(uintptr_t)name;
    new->value = value;
    new->bound = limit;
    items->list[items->count++] = new;
}

static void loop_items(dt_controllerd_t *app, struct items *items)
{
    dt_loop_stats_t loop;
    dt_loop_stats(app->loop, false, &loop);
    items->part = "loop";
    item(items, "turns", 0, "%" PRIu64, loop.turns);
    item(items, "callbacks", 0, "%" PRIu64, loop.callbacks);
    item(items, "slow_callbacks", 0, "%" PRIu64, loop.slow);
    item(items, "longest_callback_us", 0, "%" PRId64 " (%s)", loop.longest_ns / DT_CLOCK_US_NS,
         loop.longest ? loop.longest : "none");
    item(items, "timer_lag_us", 0, "%" PRId64, loop.lag_ns / DT_CLOCK_US_NS);
    item(items, "timer_lag_longest_us", 0, "%" PRId64, loop.lag_longest_ns / DT_CLOCK_US_NS);
    items->part = "daemon";
    item(items, "state", 0, "%s",
         app->is_stopping ? "stopping"
         : app->is_ready  ? "serving"
                          : "starting");
    item(items, "version", 0, "%s", dt_version());
    item(items, "watchdog_ms", 0, "%" PRId64, dt_sysd_watchdog_ns() / DT_CLOCK_MS_NS);
    item(items, "probe_runs", 0, "%" PRIu64, app->probe_runs);
    item(items, "metrics", 0, "%s", app->metrics ? dt_metrics_address(app->metrics) : "off");
    item(items, "status_documents", 0, "%" PRIu64, app->page_documents);
    item(items, "status_document_us", 0, "%" PRId64, app->page_spent_ns / DT_CLOCK_US_NS);
    item(items, "status_page", 0, "%s", app->page ? dt_page_address(app->page) : "off");
}

static void rpc_items(dt_controllerd_t *app, struct items *items)
{
    dt_rpc_server_stats_t rpc;
    dt_rpc_server_stats(app->server, &rpc);
    items->part = "rpc";
    item(items, "connections", rpc.connection_max, "%zu", rpc.connections);
    item(items, "streams", rpc.stream_max, "%zu", rpc.streams);
    item(items, "calls", rpc.call_max, "%zu", rpc.calls);
    item(items, "followers", DT_CONTROLLERD_FOLLOWER_MAX, "%zu", app->follower_count);
    item(items, "watchers", DT_CONTROLLERD_FOLLOWER_MAX, "%zu", app->watcher_count);
    item(items, "session_streams", DT_CONTROLLERD_SESSION_STREAMS, "%zu",
         app->session_stream_count);
    item(items, "accepted_total", 0, "%" PRIu64, rpc.accepted);
    item(items, "refused_total", 0, "%" PRIu64, rpc.refused);
    item(items, "silent_total", 0, "%" PRIu64, rpc.silent);
    item(items, "streams_total", 0, "%" PRIu64, rpc.streams_total);
    item(items, "calls_total", 0, "%" PRIu64, rpc.calls_total);
    item(items, "unknown_methods_total", 0, "%" PRIu64, rpc.unknown_total);
    item(items, "received_messages_total", 0, "%" PRIu64, rpc.rx_messages);
    item(items, "sent_messages_total", 0, "%" PRIu64, rpc.tx_messages);
    item(items, "tls", 0, "%s", app->tls.is_on ? "on" : "off");
}

static void session_items(dt_controllerd_t *app, struct items *items)
{
    uint64_t window = (uint64_t)dt_conf_size(app->conf, "SessionWindow");
    dt_sessions_counts_t counts;
    dt_sessions_count(app->sessions, &counts);
    items->part = "sessions";
    item(items, "live", counts.sessions_max, "%" PRIu32, counts.live);
    item(items, "away", counts.sessions_max, "%" PRIu32, counts.away);
    item(items, "links", 0, "%" PRIu32, counts.links);
    item(items, "queued_bytes", window * counts.sessions_max, "%" PRIu64, counts.queued_bytes);
    item(items, "unsent_bytes", window * counts.sessions_max, "%" PRIu64, counts.unsent_bytes);
    item(items, "credit_bytes", window * counts.sessions_max, "%" PRIu64, counts.credit_bytes);
    item(items, "results_bytes", 0, "%" PRIu64, counts.results_bytes);
    item(items, "tensors", 0, "%" PRIu64, counts.tensors);
    item(items, "storages", 0, "%" PRIu64, counts.storages);
    item(items, "frames_total", 0, "%" PRIu64, counts.frames);
    item(items, "frames_repeated_total", 0, "%" PRIu64, counts.frames_dropped);
    item(items, "frames_rewritten_total", 0, "%" PRIu64, counts.rewritten);
    item(items, "records_total", 0, "%" PRIu64, counts.records);
    item(items, "malformed_total", 0, "%" PRIu64, counts.malformed);
    item(items, "misbehaved_total", 0, "%" PRIu64, counts.misbehaved);
}

static void journal_items(dt_controllerd_t *app, struct items *items)
{
    dt_store_status_t store;
    dt_store_poll(app->store, &store);
    items->part = "journal";
    item(items, "state", 0, "%s", store.is_failing ? "failing" : "sound");
    item(items, "reason", 0, "%s", store.text);
    item(items, "pending", store.pending_max, "%" PRIu64, store.pending);
    item(items, "pending_bytes", store.pending_bytes_max, "%" PRIu64, store.pending_bytes);
    item(items, "sequence", 0, "%" PRIu64, store.sequence);
    item(items, "durable_sequence", 0, "%" PRIu64, store.durable_sequence);
    item(items, "records_since_snapshot",
         (uint64_t)dt_conf_int(app->conf, "JournalSnapshotRecords"), "%" PRIu64, store.records);
    item(items, "bytes_since_snapshot", (uint64_t)dt_conf_size(app->conf, "JournalSegment"),
         "%" PRIu64, store.bytes);
    item(items, "snapshots_total", 0, "%" PRIu64, store.snapshots);
    item(items, "snapshot_error", 0, "%s",
         store.snapshot_errno ? strerrordesc_np(store.snapshot_errno) : "");
    item(items, "failures_total", 0, "%" PRIu64, store.failures);
    item(items, "syncs_total", 0, "%" PRIu64, store.sync_count);
    item(items, "sync_mean_us", 0, "%" PRIu64,
         store.sync_count ? store.sync_sum_ns / store.sync_count / DT_CLOCK_US_NS : 0);
    item(items, "turns", 0, "%" PRIu64, store.turns);
}

dt_status_t dt_controllerd_diagnose(dt_controllerd_t *app, int64_t now_ns,
                                    Dtorch__V1__Diagnostics **ret_diagnostics)
{
    struct items items = {.arena = &app->reply_arena, .status = DT_OK};
    Dtorch__V1__Diagnostics *diagnostics;
    Dtorch__V1__DiagnosticsItem **all;
    loop_items(app, &items);
    session_items(app, &items);
    rpc_items(app, &items);
    journal_items(app, &items);
    DT_TRY(items.status);
    DT_TRY(dt_cluster_diagnose(app->cluster, &app->reply_arena, now_ns, &diagnostics));
    all = dt_arena_calloc(&app->reply_arena, items.count + diagnostics->n_items, sizeof *all);
    if (!all)
        return DT_ERR_NOMEM;
    memcpy(all, items.list, items.count * sizeof *all);
    if (diagnostics->n_items)
        memcpy(all + items.count, diagnostics->items, diagnostics->n_items * sizeof *all);
    diagnostics->items = all;
    diagnostics->n_items += items.count;
    *ret_diagnostics = diagnostics;
    return DT_OK;
}

/* ---- once a second ---- */

/* In how many looks one after the other a host was over the bound; remembers this one. */
static unsigned crowd_looks(const dt_controllerd_crowds_t *before, dt_controllerd_crowds_t *now,
                            const char *host)
{
    unsigned looks = 1;
    for (size_t i = 0; i < before->count; i++) {
        if (strcmp(before->hosts[i].name, host) == 0)
            looks = before->hosts[i].looks + 1;
    }
    (void)dt_str_copy(now->hosts[now->count].name, sizeof now->hosts->name, host);
    now->hosts[now->count++].looks = looks;
    return looks;
}

/* Hosts that hold connections and say nothing are named; lib/rpc closes the connections. Fine is
 * what works, what was accepted in the last seconds (a host may call often), and what was left
 * behind a moment ago (a host may end with all its workers). */
static void watch_crowds(dt_controllerd_t *app, int64_t now_ns)
{
    dt_rpc_crowd_t crowds[DT_CONTROLLERD_CROWDS];
    dt_controllerd_crowds_t over = {.count = 0};
    dt_rpc_server_stats_t rpc;
    uint64_t young, *oldest = &app->accepted_before[app->accepted_turn++ % YOUNG_SECONDS];
    size_t count = 0;
    dt_rpc_server_stats(app->server, &rpc);
    young = rpc.accepted - *oldest;
    *oldest = rpc.accepted;
    if (rpc.connections > DT_CONTROLLERD_SILENT_MAX || app->tls.is_on)
        count = dt_rpc_server_crowds(app->server, crowds, DT_CONTROLLERD_CROWDS);
    for (size_t i = 0; i < count; i++) {
        size_t fine = DT_CONTROLLERD_SILENT_MAX + (size_t)young;
        if (crowds[i].connections <= fine)
            break;
        if (crowds[i].connections > fine + dt_controllerd_worker_count_host(app, crowds[i].host) &&
            crowd_looks(&app->crowds, &over, crowds[i].host) >= YOUNG_SECONDS)
            dt_cluster_peer_misbehaved(app->cluster, crowds[i].host,
                                       "holds many connections without a call", now_ns);
    }
    app->crowds = over;
}

static void tell_manager(dt_controllerd_t *app, const dt_cluster_counts_t *counts)
{
    char line[sizeof app->status_line];
    const char *why = dt_controllerd_not_serving(app);
    uint32_t ready = counts->nodes[0][DTORCH__V1__NODE_HEALTH__NODE_OK] +
                     counts->nodes[0][DTORCH__V1__NODE_HEALTH__NODE_DEGRADED];
    if (why)
        (void)snprintf(line, sizeof line, "not serving: %s", why);
    else
        (void)snprintf(line, sizeof line,
                       "epoch %" PRIu64 ", %u of %u nodes ready, %u of %u devices ok, journal %s%s",
                       counts->epoch, ready, counts->nodes_total, counts->devices_ok,
                       counts->devices_total, app->was_failing ? "failing" : "ok",
                       app->tls.is_on                        ? ""
                       : dt_conf_bool(app->conf, "Insecure") ? ", INSECURE"
                                                             : ", private (no TLS)");
    if (strcmp(line, app->status_line) == 0 || app->is_stopping)
        return;
    (void)dt_str_copy(app->status_line, sizeof app->status_line, line);
    (void)dt_sysd_status(NULL, "%s", line);
}

static void warn_of_expiry(dt_controllerd_t *app)
{
    int64_t wall_ms = dt_clock_wall_ms(dt_clock_system());
    char text[160];
    if (!app->tls.is_on || wall_ms - app->expiry_told_ms < DAY_MS)
        return;
    if (!expiry_text("the controller's certificate", &app->tls.info, CERTIFICATE_SOON, wall_ms,
                     text, sizeof text) &&
        !expiry_text("the cluster's certificate authority", &app->tls.ca_info, AUTHORITY_SOON,
                     wall_ms, text, sizeof text))
        return;
    app->expiry_told_ms = wall_ms;
    dt_log_warn("certificate expires", DT_LOG_S("text", text));
}

void dt_controllerd_observe(dt_controllerd_t *app, int64_t now_ns)
{
    dt_cluster_counts_t counts;
    dt_controllerd_worker_sweep(app, now_ns);
    dt_controllerd_follow_sweep(app, now_ns);
    dt_controllerd_session_sweep(app, now_ns);
    if (!app->is_stopping)
        watch_crowds(app, now_ns);
    dt_controllerd_watch_tell(app);
    dt_cluster_count(app->cluster, &counts);
    tell_manager(app, &counts);
    warn_of_expiry(app);
    dt_controllerd_metrics_publish(app, &counts);
    dt_controllerd_page_look(app);
    if (!app->is_ready && app->was_failing && !app->is_stopping &&
        now_ns - app->started_ns > START_PATIENCE_NS) {
        dt_store_status_t store;
        dt_store_poll(app->store, &store);
        dt_log_err("cannot start: the journal takes nothing", DT_LOG_S("reason", store.text),
                   DT_LOG_S("directory", dt_conf_str(app->conf, "StateDirectory")));
        dt_controllerd_stop(app, DT_CONTROLLERD_EXIT_AGAIN);
    }
}
