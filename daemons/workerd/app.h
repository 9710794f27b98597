/* The node agent, put together: the only file pair that knows all its parts.
 * Life: identity (state directory and lock), loop and gRPC, credentials, metrics, devices, engines,
 * signals; then the connection to the controller, as soon as there are credentials for it. READY=1
 * when the devices were asked and the first spare engine is warm or has failed; a controller is not
 * needed for that. A controller that is away changes nothing here: engines stay, dialing goes on.
 * SIGTERM, SIGINT: Bye, engines end, exit. SIGHUP: the configuration is read again. */
#ifndef DT_WORKERD_APP_H
#define DT_WORKERD_APP_H
#include "conf/cmdline.h"
#include "conf/conf.h"

/* Run until a signal ends it. Returns the exit status (sysexits).
 * Ownership: takes `conf`; keeps `cmdline` until it returns. Threads: the main thread. */
int dt_workerd_run(const dt_conf_cmdline_t *cmdline, dt_conf_t *conf);

/* Whether the values of a configuration make sense together, for dt_conf_start(). */
dt_status_t dt_workerd_check(const dt_conf_t *conf, dt_error_t *err);

/* The exit status for an error at start. */
int dt_workerd_exit_code(dt_status_t status);

#endif
