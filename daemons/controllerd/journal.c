/* The core's records to and from the store. */
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "controllerd.h"
#include "dtorch/v1/state.pb-c.h"
#include "wire/wire.h"

#define RECORD_BYTES     1024 /* beside the bytes, records are bounded, as if they were so large */
#define PENDING_MIN      64
#define PENDING_BYTES    (UINT64_C(2) << 30) /* never reached: the core bounds the records */
#define CLOSE_GRACE_MS   1500
#define SNAPSHOT_TURN_NS (2 * DT_CLOCK_MS_NS)

static bool is_term_pending(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

static dt_status_t restore(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    dt_controllerd_t *app = arg;
    Dtorch__V1__StateRecord *state;
    dt_error_t why;
    if (is_term_pending())
        return dt_fail(err, DT_ERR_STOPPED, "dt", 0, "stopped while the journal was read");
    if (record->type != DT_JOURNAL_TYPE_STATE)
        return dt_fail(err, DT_ERR_INVALID, "dt", record->type,
                       "journal record %llu has type %u, which this build does not know: a newer "
                       "one wrote it",
                       (unsigned long long)record->sequence, record->type);
    dt_arena_reset(&app->request_arena);
    if (DT_WIRE_UNPACK(dtorch__v1__state_record, &app->request_arena, record->payload,
                       record->payload_bytes, &state, &why) != DT_OK ||
        dt_cluster_restore(app->cluster, state, &why) != DT_OK)
        return dt_fail(err, why.code, why.source, why.source_code, "journal record %llu: %s",
                       (unsigned long long)record->sequence, why.text);
    return DT_OK;
}

static int exit_of(const dt_error_t *err)
{
    switch (err->code) {
    case DT_ERR_EXISTS:
    case DT_ERR_LIMIT:
        return DT_CONTROLLERD_EXIT_AGAIN;
    case DT_ERR_DENIED:
        return DT_CONTROLLERD_EXIT_DENIED;
    case DT_ERR_NOT_FOUND:
        return DT_CONTROLLERD_EXIT_CONFIG;
    case DT_ERR_INVALID:
        return dt_str_is_equal(err->source, "errno") ? DT_CONTROLLERD_EXIT_CONFIG
                                                     : DT_CONTROLLERD_EXIT_DATA;
    case DT_ERR_STOPPED:
        return DT_CONTROLLERD_EXIT_OK;
    default:
        return DT_CONTROLLERD_EXIT_SOFTWARE;
    }
}

static void report(const dt_controllerd_t *app)
{
    const dt_store_report_t *found = &app->store_report;
    if (found->torn_bytes)
        dt_log_warn("the journal's torn end was cut; nothing that was acknowledged is lost",
                    DT_LOG_S("file", found->torn_file), DT_LOG_U("offset", found->torn_offset),
                    DT_LOG_U("bytes", found->torn_bytes));
    if (found->snapshots_refused)
        dt_log_warn("damaged snapshots were passed over",
                    DT_LOG_U("count", found->snapshots_refused));
    dt_log_info("journal read", DT_LOG_U("records", found->record_count),
                DT_LOG_U("snapshot", found->snapshot_sequence),
                DT_LOG_U("sequence", found->sequence));
}

static void on_wake(void *arg)
{
    dt_controllerd_journal_look(arg);
}

static void snapshot_turn(void *arg, int64_t deadline_ns);

dt_status_t dt_controllerd_journal_open(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    dt_store_options_t options = {
        .struct_size = sizeof options,
        .directory = dt_conf_str(app->conf, "StateDirectory"),
        .segment_bytes = (uint64_t)dt_conf_size(app->conf, "JournalSegment"),
        .pending_max = UINT32_MAX,
        .pending_bytes_max = PENDING_BYTES,
        .snapshot_records = (uint32_t)dt_conf_int(app->conf, "JournalSnapshotRecords"),
        .wake = dt_rpc_wake,
    };
    dt_status_t status;
    *ret_exit = DT_CONTROLLERD_EXIT_SOFTWARE;
    DT_TRY(dt_rpc_wake_create(app->rpc, on_wake, app, &app->store_wake, err));
    DT_TRY(dt_timer_create(app->loop, snapshot_turn, app, &app->snapshot_timer, err));
    options.wake_arg = app->store_wake;
    (void)dt_sysd_extend_timeout(60 * DT_CLOCK_SECOND_NS, NULL);
    (void)dt_sysd_status(NULL, "reading the journal");
    status = dt_store_open(&options, restore, app, &app->store_report, &app->store, err);
    if (status != DT_OK) {
        *ret_exit = exit_of(err);
        return status;
    }
    app->sequence_base = app->store_report.sequence;
    report(app);
    return DT_OK;
}

uint32_t dt_controllerd_journal_pending_max(const dt_conf_t *conf)
{
    int64_t records = dt_conf_size(conf, "JournalPendingMax") / RECORD_BYTES;
    if (records < PENDING_MIN)
        return PENDING_MIN;
    return records < DT_JOURNAL_BATCH_MAX ? (uint32_t)records : DT_JOURNAL_BATCH_MAX;
}

void dt_controllerd_journal_put(dt_controllerd_t *app, const dt_cluster_action_t *action)
{
    uint64_t sequence;
    dt_error_t err;
    if (dt_store_append(app->store, DT_JOURNAL_TYPE_STATE, dt_cluster_epoch(app->cluster),
                        action->data, action->size, &sequence, &err) == DT_OK) {
        dt_check(sequence == app->sequence_base + action->sequence);
        return;
    }
    /* The core counts on each record: without memory for one, an end is better than a gap. */
    dt_log_err("a journal record cannot be kept, the controller ends", DT_LOG_E(&err));
    dt_controllerd_stop(app, DT_CONTROLLERD_EXIT_SOFTWARE);
}

static void tell_failing(dt_controllerd_t *app, const dt_store_status_t *status, int64_t now_ns)
{
    if (status->is_failing == app->was_failing)
        return;
    app->was_failing = status->is_failing;
    if (status->is_failing) {
        dt_log_err("the journal cannot be written; trying again until it can",
                   DT_LOG_S("reason", status->text),
                   DT_LOG_S("directory", dt_conf_str(app->conf, "StateDirectory")),
                   DT_LOG_U("pending", status->pending));
        dt_cluster_journal_failing(app->cluster, status->text, now_ns);
    } else {
        dt_log_notice("the journal is written again", DT_LOG_U("failures", status->failures));
        dt_cluster_journal_failing(app->cluster, NULL, now_ns);
    }
}

static void begin_snapshot(dt_controllerd_t *app, int64_t now_ns)
{
    if (dt_store_snapshot_begin(app->store, NULL) != DT_OK)
        return; /* the store asks again */
    app->is_snapshot_open = true;
    app->snapshot_cursor = (dt_cluster_cursor_t){.part = 0};
    dt_timer_arm(app->snapshot_timer, now_ns);
}

void dt_controllerd_journal_look(dt_controllerd_t *app)
{
    int64_t now_ns = dt_loop_now_ns();
    dt_store_status_t status;
    dt_store_poll(app->store, &status);
    if (status.durable_sequence > app->sequence_base)
        dt_cluster_durable(app->cluster, status.durable_sequence - app->sequence_base, now_ns);
    tell_failing(app, &status, now_ns);
    if (status.wants_snapshot && !app->is_snapshot_open && !app->is_stopping)
        begin_snapshot(app, now_ns);
    dt_controllerd_pump(app);
}

static void give_up_snapshot(dt_controllerd_t *app, const dt_error_t *err)
{
    dt_log_warn("snapshot given up", DT_LOG_E(err));
    dt_store_snapshot_abort(app->store);
    app->is_snapshot_open = false;
}

/* Write some more of the snapshot; the state thread has other things to do too. */
static void snapshot_turn(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    int64_t until_ns = dt_loop_now_ns() + SNAPSHOT_TURN_NS;
    const uint8_t *data;
    dt_error_t err;
    size_t size;
    (void)deadline_ns;
    if (!app->is_snapshot_open)
        return;
    while (dt_cluster_snapshot_next(app->cluster, &app->snapshot_cursor, &data, &size)) {
        if (dt_store_snapshot_add(app->store, DT_JOURNAL_TYPE_STATE, dt_cluster_epoch(app->cluster),
                                  data, size, &err) != DT_OK) {
            give_up_snapshot(app, &err);
            return;
        }
        if (dt_loop_now_ns() >= until_ns) {
            dt_timer_arm(app->snapshot_timer, until_ns);
            return;
        }
    }
    dt_store_snapshot_commit(app->store);
    app->is_snapshot_open = false;
    dt_log_info("snapshot handed to the journal");
}

void dt_controllerd_journal_close(dt_controllerd_t *app)
{
    uint64_t lost;
    if (app->store) {
        lost = dt_store_close(app->store, CLOSE_GRACE_MS);
        app->store = NULL;
        if (lost)
            dt_log_err("journal records are lost: the disk did not take them before the end",
                       DT_LOG_U("records", lost));
    }
    dt_timer_free(app->snapshot_timer);
    if (app->store_wake)
        dt_rpc_wake_free(app->store_wake);
    app->snapshot_timer = NULL;
    app->store_wake = NULL;
}
