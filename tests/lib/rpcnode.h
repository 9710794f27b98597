/* A runtime with a small server of echo-like methods, for tests of lib/rpc. Everything runs on the
 * test's own thread; rpcnode_serve() gives it to a thread, for tests that use the blocking client.
 */
#ifndef DT_TESTS_RPCNODE_H
#define DT_TESTS_RPCNODE_H
#include <pthread.h>
#include <stdatomic.h>

#include "rpc/rpc.h"

#define RPCNODE_ECHO   "/t.T/Echo"   /* bidi: each message comes back */
#define RPCNODE_FLOOD  "/t.T/Flood"  /* bidi: answers the first message until its queue is full */
#define RPCNODE_COUNT  "/t.T/Count"  /* server stream: "1" "2" "3", then OK */
#define RPCNODE_REFUSE "/t.T/Refuse" /* bidi: one message "no", then DENIED "go away" */
#define RPCNODE_WHO    "/t.T/Who"    /* unary: the peer as text */
#define RPCNODE_LATE   "/t.T/Late"   /* unary: the request comes back after 400 ms */
#define RPCNODE_HOLD   "/t.T/Hold"   /* unary: no answer until the node stops */

typedef struct rpcnode {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_rpc_server_t *server; /* NULL once stopped */
    dt_rpc_wake_t *stop_wake;
    dt_rpc_wake_t *act_wake;
    void (*act)(struct rpcnode *node); /* run on the node's thread by rpcnode_act() */
    pthread_t thread;
    bool is_served;
    int64_t grace_ms;
    char directory[64];
    char socket_path[96];
    char unix_address[104];
    char tcp_address[32];
    int port;
    dt_rpc_call_t *held[64];
    int held_count;
    dt_timer_t *late_timer;
    dt_rpc_call_t *late_call;
    char late_text[64];
    atomic_int late_ms; /* after which RPCNODE_LATE is answered; 400 at first */
    atomic_int opened, closed, flooded, left, refused;
    _Atomic(size_t) queued_longest;
    atomic_int last_status;
    char last_text[512];
    dt_rpc_method_t *methods;
} rpcnode_t;

/* Create loop, runtime and server without listeners. Asserts on failure, as all of these. */
void rpcnode_open(rpcnode_t *node, const dt_rpc_server_options_t *options);
/* Listen on a unix socket (listener 1) and plain TCP (listener 2), and start. */
void rpcnode_start(rpcnode_t *node);
void rpcnode_open_and_start(rpcnode_t *node);
/* Run in a thread of its own until rpcnode_stop(). */
void rpcnode_serve(rpcnode_t *node);
/* Run `act` on the node's thread and wait until it has run. */
void rpcnode_act(rpcnode_t *node, void (*act)(rpcnode_t *node));
/* Run on this thread until *flag is not 0 or `timeout_ms` are over. Returns whether it is set. */
bool rpcnode_run_until(rpcnode_t *node, const atomic_int *flag, int value, int64_t timeout_ms);
/* Stop and free everything; asserts that nothing is left over. */
void rpcnode_stop(rpcnode_t *node);

#endif
