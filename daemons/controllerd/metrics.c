/* The controller's metrics, rendered once a second. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "controllerd.h"
#include "observe.h"
#include "shard/redistribute.h"
#include "wire/wire.h"

static const char *const admin_words[] = {"enabled", "cordoned", "draining", "drained"};
static const char *const health_words[] = {"unknown", "ok",   "degraded",
                                           "suspect", "dead", "stopped"};
static const char *const severity_words[] = {"unspecified", "debug",   "info",
                                             "notice",      "warning", "error"};

static void gauge(dt_metrics_text_t *text, const char *name, const char *help, double value)
{
    dt_metrics_family(text, name, DT_METRICS_GAUGE, help);
    dt_metrics_real(text, NULL, value);
}

static void counter(dt_metrics_text_t *text, const char *name, const char *help, uint64_t value)
{
    dt_metrics_family(text, name, DT_METRICS_COUNTER, help);
    dt_metrics_integer(text, NULL, (int64_t)value);
}

static double seconds(int64_t ns)
{
    return (double)ns / DT_CLOCK_SECOND_NS;
}

static void put_cluster(dt_controllerd_t *app, const dt_cluster_counts_t *counts)
{
    dt_metrics_text_t *text = &app->text;
    gauge(text, "dtorch_epoch", "Epoch of the cluster; rises with each start of the controller.",
          (double)counts->epoch);
    dt_metrics_family(text, "dtorch_nodes", DT_METRICS_GAUGE,
                      "Nodes by what people set and by what is observed.");
    for (size_t admin = 0; admin < 4; admin++) {
        for (size_t health = 0; health < 6; health++)
            dt_metrics_integer(
                text,
                DT_METRICS_LABELS({"admin", admin_words[admin]}, {"health", health_words[health]}),
                counts->nodes[admin][health]);
    }
    dt_metrics_family(text, "dtorch_devices", DT_METRICS_GAUGE, "Devices by state.");
    dt_metrics_integer(text, DT_METRICS_LABELS({"state", "ok"}), counts->devices_ok);
    dt_metrics_integer(text, DT_METRICS_LABELS({"state", "missing"}), counts->devices_missing);
    dt_metrics_integer(text, DT_METRICS_LABELS({"state", "failed"}), counts->devices_failed);
    gauge(text, "dtorch_devices_known", "All devices that nodes have shown.",
          counts->devices_total);
    dt_metrics_family(text, "dtorch_events_total", DT_METRICS_COUNTER, "Events by severity.");
    for (size_t i = 1; i < 6; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"severity", severity_words[i]}),
                           (int64_t)counts->events_by_severity[i]);
    counter(text, "dtorch_events_suppressed_total", "Events over a node's or the cluster's rate.",
            counts->events_suppressed);
    counter(text, "dtorch_events_dropped_total", "Events that the full journal could not keep.",
            counts->events_dropped);
    counter(text, "dtorch_welcomes_total", "Streams of workers that were welcomed.",
            counts->welcomes);
    counter(text, "dtorch_refusals_total", "Streams of workers that were refused.",
            counts->refusals);
    counter(text, "dtorch_malformed_total", "Messages that were refused as malformed.",
            counts->malformed);
    counter(text, "dtorch_heartbeats_received_total", "Heartbeats of workers.",
            counts->beats_received);
    counter(text, "dtorch_heartbeats_sent_total", "Heartbeats to workers.", counts->beats_sent);
    gauge(text, "dtorch_heartbeat_late_seconds", "How late the controller's own turns were lately.",
          seconds(counts->late_ns));
}

static void put_loop(dt_controllerd_t *app)
{
    dt_metrics_text_t *text = &app->text;
    dt_loop_stats_t loop;
    dt_loop_stats(app->loop, true, &loop);
    counter(text, "dtorch_loop_turns_total", "Turns of the state thread's loop.", loop.turns);
    counter(text, "dtorch_loop_callbacks_total", "Callbacks on the state thread.", loop.callbacks);
    counter(text, "dtorch_loop_slow_callbacks_total", "Callbacks of more than 50 ms.", loop.slow);
    gauge(text, "dtorch_loop_lag_seconds", "Largest delay of a timer in the last second.",
          seconds(loop.lag_longest_ns));
    gauge(text, "dtorch_loop_longest_callback_seconds", "Longest callback in the last second.",
          seconds(loop.longest_ns));
}

static void put_page(dt_controllerd_t *app)
{
    dt_metrics_text_t *text = &app->text;
    counter(text, "dtorch_status_documents_total", "Documents made for the status page.",
            app->page_documents);
    dt_metrics_family(text, "dtorch_status_seconds_total", DT_METRICS_COUNTER,
                      "Time of the state thread that they took.");
    dt_metrics_real(text, NULL, seconds(app->page_spent_total_ns));
}

/* Kinds that are counted: 0 is none. */
static void put_moves(dt_metrics_text_t *text, const dt_sessions_counts_t *counts)
{
    dt_metrics_family(text, "dtorch_moves_total", DT_METRICS_COUNTER,
                      "Tensors moved between devices of a session, by step of the plan.");
    for (unsigned kind = 1; kind < DT_SESSION_MOVE_KINDS; kind++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"kind", dt_shard_step_name(kind)}),
                           (int64_t)counts->moves[kind].count);
    dt_metrics_family(text, "dtorch_move_bytes_total", DT_METRICS_COUNTER,
                      "Bytes of these steps that the device which receives most received.");
    for (unsigned kind = 1; kind < DT_SESSION_MOVE_KINDS; kind++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"kind", dt_shard_step_name(kind)}),
                           (int64_t)counts->moves[kind].bytes);
}

static void put_sessions(dt_controllerd_t *app)
{
    dt_metrics_text_t *text = &app->text;
    dt_sessions_counts_t counts;
    dt_sessions_count(app->sessions, &counts);
    dt_metrics_family(text, "dtorch_sessions", DT_METRICS_GAUGE, "Sessions by state.");
    dt_metrics_integer(text, DT_METRICS_LABELS({"state", "live"}), counts.live);
    dt_metrics_integer(text, DT_METRICS_LABELS({"state", "away"}), counts.away);
    counter(text, "dtorch_sessions_started_total", "Sessions that began.", counts.started);
    counter(text, "dtorch_sessions_resumed_total", "Sessions that came back on a new stream.",
            counts.resumed);
    counter(text, "dtorch_sessions_lost_total", "Sessions whose program did not come back.",
            counts.lost);
    counter(text, "dtorch_session_misbehaved_total", "Streams ended for what peers did.",
            counts.misbehaved);
    counter(text, "dtorch_session_frames_total", "Frames accepted.", counts.frames);
    counter(text, "dtorch_session_frames_repeated_total", "Frames that were accepted before.",
            counts.frames_dropped);
    counter(text, "dtorch_session_frames_rewritten_total", "Frames written anew for the nodes.",
            counts.rewritten);
    counter(text, "dtorch_session_records_total", "Records accepted.", counts.records);
    counter(text, "dtorch_session_bytes_total", "Bytes of frames accepted.", counts.bytes);
    counter(text, "dtorch_operators_accepted_total", "Operators accepted.", counts.operators);
    counter(text, "dtorch_operators_executed_total", "Operators executed, as the nodes report.",
            counts.executed);
    put_moves(text, &counts);
    counter(text, "dtorch_move_plan_work_total",
            "Work of choosing steps of moves, some 0.1 us each.", counts.plan_work);
    counter(text, "dtorch_operator_errors_total", "First causes of failures.", counts.errors);
    counter(text, "dtorch_session_acks_total", "Acknowledgements sent.", counts.acks);
    counter(text, "dtorch_session_results_total", "Results of fetches.", counts.results);
    dt_metrics_family(text, "dtorch_bulk_bytes_total", DT_METRICS_COUNTER,
                      "Bytes of transfers relayed.");
    dt_metrics_integer(text, DT_METRICS_LABELS({"way", "up"}), (int64_t)counts.bulk_bytes_up);
    dt_metrics_integer(text, DT_METRICS_LABELS({"way", "down"}), (int64_t)counts.bulk_bytes_down);
    gauge(text, "dtorch_session_credit_bytes", "Bytes that programs may still send.",
          (double)counts.credit_bytes);
    gauge(text, "dtorch_session_queued_bytes", "Bytes of frames accepted and not executed.",
          (double)counts.queued_bytes);
    gauge(text, "dtorch_session_unsent_bytes", "Bytes of frames that wait for a node's window.",
          (double)counts.unsent_bytes);
    gauge(text, "dtorch_session_results_bytes", "Bytes of results that are not confirmed.",
          (double)counts.results_bytes);
    gauge(text, "dtorch_session_links", "Streams of sessions to nodes that should be there.",
          counts.links);
    gauge(text, "dtorch_tensors", "Live tensors of all sessions.", (double)counts.tensors);
    gauge(text, "dtorch_storages", "Storages that they share.", (double)counts.storages);
    gauge(text, "dtorch_session_memory_bytes", "Memory of sessions on nodes, as they report.",
          (double)counts.memory_bytes);
}

struct depth {
    const char *queue;
    uint64_t depth, bound;
};

static void put_queues(dt_controllerd_t *app, const dt_cluster_counts_t *counts,
                       const dt_store_status_t *store)
{
    dt_metrics_text_t *text = &app->text;
    dt_rpc_server_stats_t rpc;
    dt_sessions_counts_t sessions;
    dt_rpc_server_stats(app->server, &rpc);
    dt_sessions_count(app->sessions, &sessions);
    const struct depth depths[] = {
        {"journal", store->pending, counts->journal_pending_max},
        {"journal_bytes", counts->journal_bytes, counts->journal_bytes_max},
        {"admin", counts->admin_pending, counts->admin_pending_max},
        {"connections", rpc.connections, rpc.connection_max},
        {"streams", rpc.streams, rpc.stream_max},
        {"worker_streams", counts->streams, counts->streams_max},
        {"calls", rpc.calls, rpc.call_max},
        {"followers", app->follower_count, DT_CONTROLLERD_FOLLOWER_MAX},
        {"watchers", app->watcher_count, DT_CONTROLLERD_FOLLOWER_MAX},
        {"sessions", sessions.live + sessions.away, sessions.sessions_max},
        {"session_streams", app->session_stream_count, DT_CONTROLLERD_SESSION_STREAMS},
        {"nodes", counts->nodes_total, counts->nodes_max},
    };
    dt_metrics_family(text, "dtorch_queue_depth", DT_METRICS_GAUGE, "What is held, by queue.");
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"queue", depths[i].queue}),
                           (int64_t)depths[i].depth);
    dt_metrics_family(text, "dtorch_queue_bound", DT_METRICS_GAUGE, "What it may hold, by queue.");
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"queue", depths[i].queue}),
                           (int64_t)depths[i].bound);
    counter(text, "dtorch_connections_accepted_total", "Connections taken.", rpc.accepted);
    counter(text, "dtorch_connections_refused_total", "Connections over the bound.", rpc.refused);
    counter(text, "dtorch_connections_silent_total", "Connections closed without any call.",
            rpc.silent);
    counter(text, "dtorch_calls_total", "Unary calls.", rpc.calls_total);
}

static void put_journal(dt_controllerd_t *app, const dt_store_status_t *store)
{
    dt_metrics_text_t *text = &app->text;
    gauge(text, "dtorch_journal_failing", "1 while the journal cannot be written.",
          store->is_failing);
    counter(text, "dtorch_journal_failures_total", "Failed writes and syncs.", store->failures);
    gauge(text, "dtorch_journal_bytes", "Bytes since the last snapshot.", (double)store->bytes);
    gauge(text, "dtorch_journal_records", "Records since the last snapshot.",
          (double)store->records);
    counter(text, "dtorch_journal_snapshots_total", "Snapshots written.", store->snapshots);
    dt_metrics_family(text, "dtorch_journal_fsync_seconds", DT_METRICS_HISTOGRAM,
                      "Time of one sync of the journal.");
    dt_metrics_seconds(text, NULL, dt_store_sync_bounds_ns, store->sync_buckets,
                       DT_STORE_SYNC_BUCKETS, store->sync_sum_ns);
}

static void put_keys(dt_controllerd_t *app, const dt_cluster_counts_t *counts)
{
    dt_metrics_text_t *text = &app->text;
    static const char *const states[] = {"valid", "expired", "revoked"};
    dt_metrics_family(text, "dtorch_api_keys", DT_METRICS_GAUGE, "API keys by state.");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"state", states[i]}), counts->keys[i]);
    dt_metrics_family(text, "dtorch_sessions_refused_total", DT_METRICS_COUNTER,
                      "Streams of programs that were refused for their API key.");
    for (size_t i = DT_KEY_FITS + 1; i < DT_KEY_VERDICT_COUNT; i++)
        dt_metrics_integer(text,
                           DT_METRICS_LABELS({"key", dt_cluster_verdict_text((dt_key_verdict_t)i)}),
                           (int64_t)counts->key_refusals[i]);
}

static void put_security(dt_controllerd_t *app, const dt_cluster_counts_t *counts)
{
    dt_metrics_text_t *text = &app->text;
    put_keys(app, counts);
    gauge(text, "dtorch_insecure", "1 if Insecure=yes lets plain text off this host.",
          dt_conf_bool(app->conf, "Insecure"));
    if (app->tls.is_on)
        gauge(text, "dtorch_certificate_expiry_timestamp_seconds",
              "When the controller's certificate ends.", (double)app->tls.info.not_after_ms / 1000);
    dt_metrics_family(text, "dtorch_config_info", DT_METRICS_GAUGE,
                      "Hash of the configuration in effect; always 1.");
    dt_metrics_integer(text, DT_METRICS_LABELS({"hash", dt_conf_hash(app->conf)}), 1);
    gauge(text, "dtorch_start_timestamp_seconds", "When this controller started.",
          (double)app->started_wall_ms / 1000);
}

void dt_controllerd_metrics_publish(dt_controllerd_t *app, const dt_cluster_counts_t *counts)
{
    dt_store_status_t store;
    dt_error_t err;
    if (!app->metrics || !app->server)
        return;
    dt_store_poll(app->store, &store);
    dt_metrics_text_reset(&app->text);
    dt_metrics_build_info(&app->text, "dtorch-controllerd", dt_version(), DT_WIRE_VERSION_TEXT);
    put_cluster(app, counts);
    put_sessions(app);
    put_loop(app);
    put_page(app);
    put_queues(app, counts, &store);
    put_journal(app, &store);
    put_security(app, counts);
    if (dt_metrics_publish(app->metrics, &app->text, dt_controllerd_not_serving(app), &err) !=
        DT_OK)
        dt_log_warn("metrics not published", DT_LOG_E(&err));
}

int dt_controllerd_http_exit(dt_status_t status)
{
    return status == DT_ERR_INVALID                                ? DT_CONTROLLERD_EXIT_CONFIG
           : status == DT_ERR_DENIED                               ? DT_CONTROLLERD_EXIT_DENIED
           : status == DT_ERR_EXISTS || status == DT_ERR_NOT_FOUND ? DT_CONTROLLERD_EXIT_UNAVAILABLE
                                                                   : DT_CONTROLLERD_EXIT_SOFTWARE;
}

dt_status_t dt_controllerd_metrics_open(dt_controllerd_t *app, const char *listen, int *ret_exit,
                                        dt_error_t *err)
{
    bool needs_tls = !dt_controllerd_is_local(listen) && app->tls.is_on;
    dt_metrics_options_t options = {
        .struct_size = sizeof options,
        .listen = listen,
        .certificate_pem = needs_tls ? app->tls.chain : NULL,
        .key_pem = needs_tls ? app->tls.key : NULL,
    };
    dt_status_t status = DT_OK;
    if (strcmp(listen, "none") != 0)
        status = dt_metrics_open(&options, &app->metrics, err);
    *ret_exit = dt_controllerd_http_exit(status);
    return status;
}
