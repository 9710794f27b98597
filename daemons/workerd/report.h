/* What the agent shows of itself: the metrics text and the line in `systemctl status`. */
#ifndef DT_WORKERD_REPORT_H
#define DT_WORKERD_REPORT_H
#include <stddef.h>
#include <stdint.h>

#include "core/agent.h"
#include "device/device.h"
#include "engines.h"
#include "loop/loop.h"
#include "metrics/text.h"
#include "sessions.h"

/* One look at everything. Pointers are borrowed for the call. */
typedef struct dt_report {
    const char *node_name;
    const char *address;                    /* of the controller */
    const dt_agent_view_t *link;            /* NULL: not joined yet */
    const dt_inventory_snapshot_t *devices; /* NULL: not asked yet */
    dt_engines_stats_t engines;
    dt_node_sessions_stats_t sessions;
    dt_loop_stats_t loop;
    int64_t device_refresh_ns;  /* age of the refresh that runs; 0: none */
    int64_t certificate_end_ms; /* wall clock; 0: none */
} dt_report_t;

/* Write the metrics. `text` is emptied first. */
void dt_report_metrics(const dt_report_t *report, dt_metrics_text_t *text);

/* Write one line for people: connected or connecting to whom, and what is here. */
void dt_report_status(const dt_report_t *report, char *line, size_t size);

#endif
