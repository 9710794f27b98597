/* What GetCluster and GetDiagnostics add to the core's answer: what the core cannot know. */
#ifndef DT_CONTROLLERD_OBSERVE_H
#define DT_CONTROLLERD_OBSERVE_H
#include "controllerd.h"

/* Fill in addresses, versions, journal, and alarms of the controller's own certificates; the
 * message is in app->reply_arena. Errors: NOMEM. */
DT_MUST_USE dt_status_t dt_controllerd_complete_status(dt_controllerd_t *app, int64_t now_ns,
                                                       Dtorch__V1__ClusterStatus *status);

/* Give state machines, queue depths and bounds of all parts, in app->reply_arena. Errors: NOMEM. */
DT_MUST_USE dt_status_t dt_controllerd_diagnose(dt_controllerd_t *app, int64_t now_ns,
                                                Dtorch__V1__Diagnostics **ret_diagnostics);

/* Render and publish the metrics. */
void dt_controllerd_metrics_publish(dt_controllerd_t *app, const dt_cluster_counts_t *counts);

#endif
