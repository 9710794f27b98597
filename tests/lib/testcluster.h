/* A cluster of real daemons for a test: private folder, private sockets, nothing shared.
 *
 * dt_testcluster_start() writes configurations, starts dtorch-controllerd and N dtorch-workerd from
 * $DT_TEST_BIN, and returns when each said READY=1. Tests then wait for a condition until a
 * generous deadline; nothing here sleeps as a way to synchronise. What cannot work (no folder, no
 * program) ends the test with a message. dt_testcluster_stop() is the last check of each test: it
 * is not 0 when a daemon did not end well or left something behind.
 *
 * A daemon is named by its index: 0..workers-1, or DT_TESTCLUSTER_CONTROLLER.
 * Worker i is the node "wI" ("w0", "w1"). Threads: one; the proxy has its own. */
#ifndef DT_TESTS_LIB_TESTCLUSTER_H
#define DT_TESTS_LIB_TESTCLUSTER_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "dtorch/v1/admin.pb-c.h"
#include "lib/testproc.h"

#define DT_TESTCLUSTER_CONTROLLER (-1)
#define DT_TESTCLUSTER_WORKER_MAX 16
/* Until when a condition must hold. Only a failing test uses it up: it is no measure of speed, and
 * has room for a sanitizer on a slow machine that does other things. */
#define DT_TESTCLUSTER_PATIENCE_MS 60000

typedef struct dt_testcluster dt_testcluster_t;
typedef struct dt_testproxy dt_testproxy_t;

/* Zero is a good start: a controller alone, workers by unix socket. */
typedef struct dt_testcluster_options {
    int workers;                 /* 0..DT_TESTCLUSTER_WORKER_MAX */
    const char *controller_conf; /* more lines for [Controller], or NULL; a key given here replaces
                                    the one that the test cluster would write */
    const char *worker_conf; /* more lines for each [Worker]; default Devices=sim:2, Engines=0 */
    bool is_idle;            /* start nothing yet: see dt_testcluster_start_daemon() */
    bool use_tcp;            /* workers dial 127.0.0.1:port in place of the unix socket */
    bool use_proxy;          /* each worker dials through its own dt_testproxy_t */
    bool fake_wall;          /* the daemons' wall clocks can be moved: dt_testcluster_jump_wall */
    bool is_strict;          /* SuspectBeats= and DeadBeats= as shipped: for tests of silence. All
                                others are about something else, and give a busy machine 5 s. */
} dt_testcluster_options_t;

/* Start a cluster; returns when all that was started is READY and each worker is registered with
 * its devices.
 * Ownership: borrows; gives, end it with dt_testcluster_stop(). Errors: none, the test ends. */
dt_testcluster_t *dt_testcluster_start(const dt_testcluster_options_t *options);

/* End all daemons with SIGTERM, workers first, and take the folder away. Frees `tc`.
 * Returns 0, or the number of complaints (each printed, with the logs): a daemon that did not exit
 * with 0 within its time, a process, socket or temporary file that stayed, a sanitizer's report.
 * Daemons that the test killed or waited for are not judged. */
int dt_testcluster_stop(dt_testcluster_t *tc);

/* What all daemons logged so far, for a failing assertion. Borrowed until the next call. */
const char *dt_testcluster_logs(dt_testcluster_t *tc);

/* Paths and addresses. Borrowed, valid until stop. */
const char *dt_testcluster_dir(const dt_testcluster_t *tc);
const char *dt_testcluster_admin_socket(const dt_testcluster_t *tc);
const char *dt_testcluster_controller_socket(const dt_testcluster_t *tc);
const char *dt_testcluster_state_dir(const dt_testcluster_t *tc, int who);
const char *dt_testcluster_conf_file(const dt_testcluster_t *tc, int who);
int dt_testcluster_port(const dt_testcluster_t *tc); /* controller, TCP, loopback */
int dt_testcluster_metrics_port(const dt_testcluster_t *tc, int who); /* loopback */

/* One daemon. start waits for READY, spawn does not. `extra` are more arguments, NULL-ended, or
 * NULL. signal sends; SIGKILL and SIGTERM also mark it as not to be judged at the end. */
void dt_testcluster_start_daemon(dt_testcluster_t *tc, int who);
void dt_testcluster_spawn(dt_testcluster_t *tc, int who, const char *const *extra);
bool dt_testcluster_wait_ready(dt_testcluster_t *tc, int who, int64_t patience_ms);
void dt_testcluster_kill(dt_testcluster_t *tc, int who, int signo);
/* Wait until it has ended. Gives its exit code, or 128 + signal. False: it runs still. */
bool dt_testcluster_wait_exit(dt_testcluster_t *tc, int who, int64_t patience_ms, int *ret_code);
pid_t dt_testcluster_pid(const dt_testcluster_t *tc, int who);
int64_t dt_testcluster_rss_bytes(
    const dt_testcluster_t *tc,
    int who); /* A port of loopback that no other process is given, but which may be bound with
               * SO_REUSEADDR, as daemons do; close *ret_fd at the end. */
int dt_testcluster_reserve_port(int *ret_fd);
/* resident now */
int dt_testcluster_log_count(dt_testcluster_t *tc, int who,
                             const char *text); /* lines that hold it */
/* Replace a daemon's configuration text; takes effect at its next start or SIGHUP. */
void dt_testcluster_set_conf(dt_testcluster_t *tc, int who, const char *lines);
/* Move one daemon's wall clock; needs fake_wall. */
void dt_testcluster_jump_wall(dt_testcluster_t *tc, int who, int64_t offset_ms);

/* Give the daemons that are started from now on an /etc/hosts of their own; called again, it
 * changes the text under those that run. Needs root. */
void dt_testcluster_set_hosts(dt_testcluster_t *tc, const char *text);

/* Admin calls on the admin socket. NULL when the controller did not answer in time.
 * Give, free with the protobuf-c function of the type and a NULL allocator. */
Dtorch__V1__ClusterStatus *dt_testcluster_status(dt_testcluster_t *tc);
Dtorch__V1__NodeList *dt_testcluster_nodes(dt_testcluster_t *tc);
Dtorch__V1__EventList *dt_testcluster_events(dt_testcluster_t *tc, uint64_t after_sequence);
/* Set a node's admin state. DT_OK only when the change is durable. */
dt_status_t dt_testcluster_set_node(dt_testcluster_t *tc, int worker,
                                    Dtorch__V1__SetNodeRequest__Change change, const char *reason,
                                    dt_error_t *err);
/* Any other Admin method: the packed reply of `request`. Gives *ret_reply, free(). */
dt_status_t dt_testcluster_admin_call(dt_testcluster_t *tc, const char *method,
                                      const ProtobufCMessage *request, uint8_t **ret_reply,
                                      size_t *ret_size, dt_error_t *err);

/* Conditions: true as soon as it holds, false when `patience_ms` is over. */
typedef bool (*dt_testcluster_node_fn)(const Dtorch__V1__Node *node, void *arg);
bool dt_testcluster_wait_node(dt_testcluster_t *tc, int worker, dt_testcluster_node_fn holds,
                              void *arg, int64_t patience_ms);
bool dt_testcluster_wait_health(dt_testcluster_t *tc, int worker, Dtorch__V1__NodeHealth health,
                                int64_t patience_ms);
/* It is registered and well, and the controller has heard of its devices, a moment later. */
bool dt_testcluster_wait_here(dt_testcluster_t *tc, int worker, int64_t patience_ms);
bool dt_testcluster_wait_admin(dt_testcluster_t *tc, int worker,
                               Dtorch__V1__NodeIntent__Admin admin, int64_t patience_ms);
/* An event of this name, of this worker (or DT_TESTCLUSTER_CONTROLLER: of any), later than
 * `after_sequence`. *ret_event may be NULL, else gives, free with dtorch__v1__event__free_unpacked.
 */
bool dt_testcluster_wait_event(dt_testcluster_t *tc, const char *name, int worker,
                               uint64_t after_sequence, int64_t patience_ms,
                               Dtorch__V1__Event **ret_event);
uint64_t dt_testcluster_last_event(dt_testcluster_t *tc); /* its sequence, 0 if there is none */
bool dt_testcluster_wait(dt_testcluster_t *tc, bool (*holds)(dt_testcluster_t *tc, void *arg),
                         void *arg, int64_t patience_ms);

/* Run a program of $DT_TEST_BIN, or of an absolute path, to its end (180 s at most). dtorchctl gets
 * the cluster's client configuration by itself. Gives texts, free(); either may be NULL. Returns
 * the exit code, 128 + signal when it was killed. Arguments end with NULL. */
typedef struct dt_testrun {
    int code;
    char *out;
    char *err;
} dt_testrun_t;
dt_testrun_t dt_testcluster_ctl(dt_testcluster_t *tc, const char *first, ...)
    __attribute__((sentinel));
dt_testrun_t dt_testrun_program(const char *program, const char *const *args,
                                const char *const *env);
void dt_testrun_fini(dt_testrun_t *run);

/* GET an HTTP path on loopback. Gives the whole answer, headers too, free(); NULL: no answer. */
char *dt_test_http_get(int port, const char *path);

/* The worker's link, with use_proxy. pass: as if it were not there. swallow: connections stay open,
 * no byte arrives either way. cut: all are closed, new ones too. delay: each byte arrives later. */
void dt_testcluster_link_pass(dt_testcluster_t *tc, int worker);
void dt_testcluster_link_swallow(dt_testcluster_t *tc, int worker);
void dt_testcluster_link_cut(dt_testcluster_t *tc, int worker);
void dt_testcluster_link_delay(dt_testcluster_t *tc, int worker, int delay_ms);
dt_testproxy_t *dt_testcluster_proxy(dt_testcluster_t *tc, int worker); /* the cluster's */

#endif
