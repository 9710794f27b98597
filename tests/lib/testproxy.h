/* A TCP proxy on loopback that can misbehave: what stands between a worker and its controller.
 * stall: connections stay open, no byte moves and no end is passed on, as with a pulled cable; what
 * was sent meanwhile arrives when it passes again. cut: everything is closed, also what comes new.
 * Threads: the mode is set from the test's thread; the proxy has one thread of its own. */
#ifndef DT_TESTS_LIB_TESTPROXY_H
#define DT_TESTS_LIB_TESTPROXY_H

typedef struct dt_testproxy dt_testproxy_t;

typedef enum dt_testproxy_mode {
    DT_TESTPROXY_PASS,
    DT_TESTPROXY_STALL,
    DT_TESTPROXY_CUT,
} dt_testproxy_mode_t;

/* Listen on a free port. `target` is a unix socket's path, or a loopback port as text.
 * Gives; end with dt_testproxy_stop(). Ends the test when it cannot. */
dt_testproxy_t *dt_testproxy_start(const char *target);
void dt_testproxy_stop(dt_testproxy_t *proxy); /* NULL is fine */
int dt_testproxy_port(const dt_testproxy_t *proxy);
void dt_testproxy_set(dt_testproxy_t *proxy, dt_testproxy_mode_t mode, int delay_ms);
/* Close the connection that moves the `bytes`-th byte from now on, right behind that byte; once.
 * Others and new ones go on. */
void dt_testproxy_cut_after(dt_testproxy_t *proxy, long bytes);
int dt_testproxy_cuts(const dt_testproxy_t *proxy); /* done so far */

#endif
