#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "wire/wire.h"

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

static void gauge(dt_metrics_text_t *text, const char *name, const char *help, int64_t value)
{
    dt_metrics_family(text, name, DT_METRICS_GAUGE, help);
    dt_metrics_integer(text, NULL, value);
}

static void gauge_seconds(dt_metrics_text_t *text, const char *name, const char *help, double value)
{
    dt_metrics_family(text, name, DT_METRICS_GAUGE, help);
    dt_metrics_real(text, NULL, value);
}

static void counter(dt_metrics_text_t *text, const char *name, const char *help, uint64_t value)
{
    dt_metrics_family(text, name, DT_METRICS_COUNTER, help);
    dt_metrics_integer(text, NULL, (int64_t)value);
}

static bool is_connected(const dt_report_t *report)
{
    return report->link &&
           (report->link->state == DT_AGENT_ONLINE || report->link->state == DT_AGENT_SUSPECT);
}

static void link_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    const dt_agent_view_t *link = report->link;
    gauge(text, "dtorch_worker_connected", "1 while the controller has welcomed this node",
          is_connected(report));
    if (!link)
        return;
    gauge(text, "dtorch_epoch", "Highest epoch of the cluster that was seen", (int64_t)link->epoch);
    counter(text, "dtorch_worker_reconnects_total", "Connections to a controller after the first",
            link->reconnects);
    counter(text, "dtorch_worker_beats_sent_total", "Heartbeats sent", link->beats_sent);
    if (link->silence_ns >= 0)
        gauge_seconds(text, "dtorch_heartbeat_age_seconds",
                      "Time since the controller was heard last", seconds(link->silence_ns));
    gauge_seconds(text, "dtorch_heartbeat_late_seconds", "How late own timers fired lately",
                  seconds(link->late_ns));
    gauge(text, "dtorch_worker_events_queued", "Engine events that the controller does not have",
          link->events_queued);
    counter(text, "dtorch_worker_events_dropped_total",
            "Engine events pushed out by newer ones while there was no controller",
            link->events_dropped);
}

static void engine_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    static const char *const answerers[DT_ENGINE_ANSWERER_COUNT] = {
        [DT_ENGINE_ANSWERER_META] = "meta",
        [DT_ENGINE_ANSWERER_RULE] = "rule",
        [DT_ENGINE_ANSWERER_REHEARSAL] = "rehearsal",
        [DT_ENGINE_ANSWERER_EXECUTION] = "execution"};
    const dt_engines_stats_t *engines = &report->engines;
    const struct {
        const char *state;
        uint32_t count;
    } states[] = {
        {"loading", engines->coming_up}, {"ready", engines->ready}, {"ending", engines->lost}};
    const struct {
        const char *kind;
        uint64_t count;
    } ends[] = {{"exited", engines->exited},
                {"crashed", engines->crashed},
                {"hung", engines->hung},
                {"failed", engines->failed}};
    dt_metrics_family(text, "dtorch_worker_engines", DT_METRICS_GAUGE, "Engines by state");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"state", states[i].state}), states[i].count);
    counter(text, "dtorch_worker_engine_starts_total", "Engines that became warm",
            engines->started);
    dt_metrics_family(text, "dtorch_worker_engine_ends_total", DT_METRICS_COUNTER,
                      "Engines that ended unasked, by how");
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"kind", ends[i].kind}), (int64_t)ends[i].count);
    counter(text, "dtorch_worker_operations_total", "Operators finished by all engines",
            engines->progress);
    dt_metrics_family(text, "dtorch_worker_metadata_answers_total", DT_METRICS_COUNTER,
                      "Questions about operators' results, by who answered them");
    for (size_t i = 0; i < DT_ENGINE_ANSWERER_COUNT; i++)
        dt_metrics_integer(text, DT_METRICS_LABELS({"by", answerers[i]}),
                           (int64_t)engines->answers[i]);
    dt_metrics_family(text, "dtorch_worker_move_bytes_total", DT_METRICS_COUNTER,
                      "Bytes that came from one device to another, by the way that they took");
    dt_metrics_integer(text, DT_METRICS_LABELS({"by", "memory"}),
                       (int64_t)engines->moved[DT_ENGINE_MOVED_MEMORY]);
    dt_metrics_integer(text, DT_METRICS_LABELS({"by", "link"}),
                       (int64_t)engines->moved[DT_ENGINE_MOVED_LINK]);
    dt_metrics_family(text, "dtorch_worker_move_seconds_total", DT_METRICS_COUNTER,
                      "Time that redistributions ran, and that operators waited for them");
    dt_metrics_real(text, DT_METRICS_LABELS({"what", "runs"}),
                    seconds((int64_t)engines->move_ns[DT_ENGINE_MOVE_RUNS]));
    dt_metrics_real(text, DT_METRICS_LABELS({"what", "waits"}),
                    seconds((int64_t)engines->move_ns[DT_ENGINE_MOVE_WAITS]));
}

static void bulk_metrics(const dt_node_sessions_stats_t *sessions, dt_metrics_text_t *text)
{
    static const char *const paths[DT_NODE_BULK_PATHS] = {"window", "direct", "relayed"};
    gauge(text, "dtorch_worker_data_connections", "Data connections of programs",
          sessions->connections);
    counter(text, "dtorch_worker_data_connections_refused_total",
            "Data connections that were refused", sessions->connections_refused);
    dt_metrics_family(text, "dtorch_worker_bulk_bytes_total", DT_METRICS_COUNTER,
                      "Bytes of large tensors by the way that they took");
    for (int i = 0; i < DT_NODE_BULK_PATHS; i++) {
        dt_metrics_integer(text, DT_METRICS_LABELS({"path", paths[i]}, {"direction", "upload"}),
                           (int64_t)sessions->bulk[i].up_bytes);
        dt_metrics_integer(text, DT_METRICS_LABELS({"path", paths[i]}, {"direction", "fetch"}),
                           (int64_t)sessions->bulk[i].down_bytes);
    }
}

static void session_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    const dt_node_sessions_stats_t *sessions = &report->sessions;
    gauge(text, "dtorch_worker_sessions", "Sessions that this node serves", sessions->sessions);
    gauge(text, "dtorch_worker_session_streams", "Of them those connected to the controller",
          sessions->streams);
    gauge(text, "dtorch_worker_session_engines", "Engines that serve sessions", sessions->engines);
    counter(text, "dtorch_worker_sessions_opened_total", "Sessions opened", sessions->opened);
    counter(text, "dtorch_worker_session_engines_lost_total",
            "Engines lost by sessions, once for each session", sessions->lost);
    counter(text, "dtorch_worker_frames_total", "Frames of operators received", sessions->frames);
    counter(text, "dtorch_worker_frame_bytes_total", "Bytes of them", sessions->frame_bytes);
    counter(text, "dtorch_worker_results_total", "Messages of engines sent up", sessions->messages);
    counter(text, "dtorch_worker_result_bytes_total", "Bytes of them", sessions->message_bytes);
    gauge(text, "dtorch_worker_results_kept_bytes",
          "Bytes of messages that the controller has not taken yet", (int64_t)sessions->kept_bytes);
    gauge(text, "dtorch_worker_queue_records",
          "Records received and not executed, once for each engine of their session",
          (int64_t)sessions->queued_records);
    gauge(text, "dtorch_worker_session_memory_limit_bytes", "Memory that the sessions may use",
          (int64_t)sessions->memory_limit_bytes);
    bulk_metrics(sessions, text);
}

static const char *health_text(int32_t health)
{
    switch (health) {
    case DT_DEVICE_OK:
        return "ok";
    case DT_DEVICE_DEGRADED:
        return "degraded";
    case DT_DEVICE_FAILED:
        return "failed";
    default:
        return "unknown";
    }
}

static void device_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    const dt_inventory_snapshot_t *devices = report->devices;
    char index[16];
    gauge_seconds(text, "dtorch_worker_device_refresh_seconds",
                  "Age of the look at the devices that is under way",
                  seconds(report->device_refresh_ns));
    if (!devices)
        return;
    dt_metrics_family(text, "dtorch_worker_device_healthy", DT_METRICS_GAUGE,
                      "1 for the health that the device has");
    for (int32_t i = 0; i < devices->device_count; i++) {
        const dt_device_t *device = &devices->devices[i];
        (void)snprintf(index, sizeof index, "%" PRId32, device->index);
        dt_metrics_integer(text,
                           DT_METRICS_LABELS({"device", index}, {"class", device->info.kind},
                                             {"health", health_text(device->info.health)}),
                           1);
    }
    dt_metrics_family(text, "dtorch_worker_memory_bytes", DT_METRICS_GAUGE,
                      "Device memory, used by anyone and in all");
    for (int32_t i = 0; i < devices->device_count; i++) {
        const dt_device_t *device = &devices->devices[i];
        (void)snprintf(index, sizeof index, "%" PRId32, device->index);
        dt_metrics_integer(text, DT_METRICS_LABELS({"device", index}, {"state", "used"}),
                           (int64_t)device->info.memory_used_bytes);
        dt_metrics_integer(text, DT_METRICS_LABELS({"device", index}, {"state", "total"}),
                           (int64_t)device->info.memory_bytes);
    }
}

static void loop_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    const dt_loop_stats_t *loop = &report->loop;
    counter(text, "dtorch_loop_turns_total", "Turns of the state thread", loop->turns);
    counter(text, "dtorch_loop_slow_callbacks_total", "Callbacks above 50 ms", loop->slow);
    gauge_seconds(text, "dtorch_loop_lag_seconds", "How late the last timer ran",
                  seconds(loop->lag_ns));
    gauge_seconds(text, "dtorch_loop_callback_longest_seconds",
                  "Longest callback since the last sample", seconds(loop->longest_ns));
}

void dt_report_metrics(const dt_report_t *report, dt_metrics_text_t *text)
{
    dt_metrics_text_reset(text);
    dt_metrics_build_info(text, "dtorch-workerd", dt_version(), DT_WIRE_VERSION_TEXT);
    link_metrics(report, text);
    engine_metrics(report, text);
    session_metrics(report, text);
    device_metrics(report, text);
    loop_metrics(report, text);
    if (report->certificate_end_ms > 0)
        gauge(text, "dtorch_certificate_end_timestamp_seconds", "When the certificate ends",
              report->certificate_end_ms / 1000);
}

void dt_report_status(const dt_report_t *report, char *line, size_t size)
{
    const dt_agent_view_t *link = report->link;
    char what[160];
    if (report->devices)
        (void)snprintf(what, sizeof what, "%" PRId32 " devices, %" PRIu32 " warm engines",
                       report->devices->device_count, report->engines.ready);
    else
        (void)snprintf(what, sizeof what, "looking for devices");
    if (!link)
        (void)snprintf(line, size, "Joining the cluster as node %s; %s", report->node_name, what);
    else if (link->state == DT_AGENT_ONLINE)
        (void)snprintf(line, size, "Connected to %s as node %s, cluster %s, epoch %" PRIu64 "; %s",
                       report->address, report->node_name, link->cluster_name, link->epoch, what);
    else if (link->state == DT_AGENT_SUSPECT)
        (void)snprintf(line, size, "The controller at %s is silent; %s", report->address, what);
    else
        (void)snprintf(line, size, "Connecting to %s as node %s; %s%s%s", report->address,
                       report->node_name, what, link->last_error[0] ? "; " : "", link->last_error);
}
