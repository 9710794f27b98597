/* gRPC from one thread: the only folder that calls gRPC.
 *
 * The state thread blocks in gRPC's completion queue (dt_rpc_run) and turns the libuv loop from
 * there ("inverted mode"): timers are the queue's deadline, a watcher thread posts when a
 * descriptor of the loop has something. So messages, timers, signals and mails are all handled on
 * one thread and no state needs a lock.
 * Invariants: one send and one receive in flight for each call; an object is freed after its last
 * batch completed and never before its closed (done) callback ran; callbacks never run from inside
 * a function of this module. Limits: every queue is bounded in bytes, calls, streams and
 * connections by the options. Does not: retry, judge liveness, or know any message type.
 * Messages that arrive are 8-byte aligned and valid during the callback only.
 * Addresses: "host:port", "[v6]:port", "/path" or "unix:/path". */
#ifndef DT_RPC_RPC_H
#define DT_RPC_RPC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "loop/loop.h"
#include "loop/mailbox.h"

#define DT_RPC_MESSAGE_MAX  (8u << 20) /* bytes of one message, default */
#define DT_RPC_TEXT_MAX     256        /* bytes of a status text */
#define DT_RPC_LISTENER_MAX 16

typedef struct dt_rpc dt_rpc_t;
typedef struct dt_rpc_wake dt_rpc_wake_t;
typedef struct dt_rpc_stream dt_rpc_stream_t;
typedef struct dt_rpc_call dt_rpc_call_t;
typedef struct dt_rpc_server dt_rpc_server_t;
typedef struct dt_rpc_reader dt_rpc_reader_t;

/* ---- status ---- */

/* Map a gRPC status number to ours, and back. The one place. Unknown numbers are INTERNAL. A
 * status that dt_rpc_to_grpc() made comes back the same. */
dt_status_t dt_status_from_grpc(int grpc_status);
int dt_rpc_to_grpc(dt_status_t status);

/* ---- runtime ---- */

/* Create the runtime; gRPC is initialised with the first. Its own log goes to `log_line` (any
 * thread; NULL: dropped), process-wide.
 * Ownership: keeps `loop` until dt_rpc_free(); gives *ret_rpc. Errors: NOMEM, AGAIN.
 * Threads: the loop's thread; never before a fork(). */
DT_MUST_USE dt_status_t dt_rpc_create(dt_loop_t *loop,
                                      void (*log_line)(int severity, const char *text),
                                      dt_rpc_t **ret_rpc, dt_error_t *err);
/* Run callbacks of gRPC and of the loop until dt_rpc_stop(). Blocking: yes. */
void dt_rpc_run(dt_rpc_t *rpc);
void dt_rpc_stop(dt_rpc_t *rpc); /* Threads: loop only */

/* Standing in. A thread that waits for what the state thread would tell it can turn in its place,
 * and is spared two wakes: dt_rpc_lend() makes the state thread step aside after this callback, and
 * `lent` say so; then one other thread at a time may lead, turn, and leave. While it leads it is
 * the state thread: all callbacks run on it. The state thread comes back by itself when nobody has
 * led for DT_RPC_LINGER_NS, and at once for a wake that nobody is there to take.
 * Threads: dt_rpc_share() before dt_rpc_run(); `lent` on the state thread, without a lock. */
#define DT_RPC_LINGER_NS INT64_C(2000000)
void dt_rpc_share(dt_rpc_t *rpc, void (*lent)(void *arg), void *arg);
void dt_rpc_lend(dt_rpc_t *rpc); /* Threads: whoever turns. No effect when it is lent already */
/* True: the caller leads. Threads: any, but never from a callback; `rpc` must live. */
DT_MUST_USE bool dt_rpc_lead(dt_rpc_t *rpc);
/* Start now what dt_rpc_turn() starts before it waits: the reads behind those messages that were
 * handled. For who is going to look elsewhere for a while. Threads: whoever turns. */
void dt_rpc_catch_up(dt_rpc_t *rpc);
/* Wait for one event until `deadline_ns` and handle it. Threads: who leads. Blocking: yes. */
void dt_rpc_turn(dt_rpc_t *rpc, int64_t deadline_ns);
/* `is_over`: the state thread shall take over at once. */
void dt_rpc_leave(dt_rpc_t *rpc, bool is_over);
/* The same of one who has sent and not turned: the state thread comes back as early as without it.
 */
void dt_rpc_leave_sent(dt_rpc_t *rpc);

/* End. Every server must have been stopped and every stream and unary have ended; wakes freed.
 * Errors: INTERNAL if something is still open (nothing was freed). NULL is fine. Blocking: for
 * gRPC's own threads. The loop is not freed. */
dt_status_t dt_rpc_free(dt_rpc_t *rpc);

/* Make a door for other threads: dt_rpc_wake() makes `run` be called once on the state thread.
 * Wakes coalesce: at most one is outstanding. Ownership: gives *ret_wake, dt_rpc_wake_free(). */
DT_MUST_USE dt_status_t dt_rpc_wake_create(dt_rpc_t *rpc, void (*run)(void *arg), void *arg,
                                           dt_rpc_wake_t **ret_wake, dt_error_t *err);
/* Wake. Threads: any. The argument is a dt_rpc_wake_t: fits dt_mailbox_init(). Blocking: never. */
void dt_rpc_wake(void *arg);
/* Free; no thread may wake it any more; a run still outstanding is dropped. Threads: loop only. */
void dt_rpc_wake_free(dt_rpc_wake_t *wake);

/* ---- who calls ---- */

typedef enum dt_rpc_peer_kind {
    DT_RPC_PEER_PLAIN, /* TCP without TLS */
    DT_RPC_PEER_UNIX,  /* unix socket: uid, gid, pid are the kernel's word */
    DT_RPC_PEER_TLS,   /* TLS; with a certificate if common_name is not empty */
} dt_rpc_peer_kind_t;

typedef struct dt_rpc_peer {
    dt_rpc_peer_kind_t kind;
    int listener; /* number that dt_rpc_server_listen_*() was given; TLS: of the first TLS one */
    uid_t uid;    /* unix only, else (uid_t)-1 */
    gid_t gid;    /* unix only, else (gid_t)-1 */
    pid_t pid;    /* unix only, else 0 */
    bool has_certificate; /* a client certificate was shown and verified */
    char common_name[64]; /* of the certificate, or "" */
    char spiffe_id[192];  /* "spiffe://dtorch/node/NAME", or "" */
    char address[112];    /* "10.0.0.7:51312", "[::1]:5", "unix:pid=17,uid=0"; for people */
    int64_t not_after_ms; /* end of the certificate, wall clock; 0 without one */
    uint64_t connection;  /* number of the connection; 0 with TLS */
} dt_rpc_peer_t;

/* ---- TLS ---- */

/* PEM texts. Server: all three; `certificate` is the leaf alone, or already ends with the
 * authority: the chain that is sent always does. Client: ca, and certificate with key or neither.
 */
typedef struct dt_rpc_tls {
    const char *ca;
    const char *certificate;
    const char *key;
} dt_rpc_tls_t;

/* ---- streams, both sides ---- */

typedef struct dt_rpc_stream_ops {
    /* Server: a peer opened it. Client: the server accepted it (or refused it in the same breath:
     * then closed follows with its status). May be NULL. */
    void (*open)(dt_rpc_stream_t *stream);
    void (*message)(dt_rpc_stream_t *stream, const uint8_t *data, size_t size);
    /* The queue is empty again and the last message was given to the transport. May be NULL. */
    void (*drained)(dt_rpc_stream_t *stream);
    /* Server-stream methods: the client has sent all it will send. May be NULL. */
    void (*half_closed)(dt_rpc_stream_t *stream);
    /* Last callback; the stream is freed after it. `why` holds status, gRPC's number and text; OK
     * is a clean end. Runs also when a client's stream was never open. */
    void (*closed)(dt_rpc_stream_t *stream, const dt_error_t *why);
} dt_rpc_stream_ops_t;

/* The caller's pointer: at first the method's or the dial's `arg`. */
void *dt_rpc_stream_arg(const dt_rpc_stream_t *stream);
void dt_rpc_stream_set_arg(dt_rpc_stream_t *stream, void *arg);
/* Who is at the other end; valid as long as the stream. Who dialled knows the address of an open
 * stream only, "" of a unix socket. */
const dt_rpc_peer_t *dt_rpc_stream_peer(const dt_rpc_stream_t *stream);
/* The secret that a client sent as "authorization: Bearer SECRET", NUL-terminated into `out`;
 * false: none, several, or one that does not fit. Server side only; on an encrypted connection or
 * not: the caller looks at the peer. */
bool dt_rpc_stream_bearer(const dt_rpc_stream_t *stream, char *out, size_t size);
uint64_t dt_rpc_stream_id(const dt_rpc_stream_t *stream); /* unique in this process, from 1 */
/* When the last message arrived (open counts), ns monotonic: what silence is measured from. */
int64_t dt_rpc_stream_last_rx_ns(const dt_rpc_stream_t *stream);
size_t dt_rpc_stream_queued(const dt_rpc_stream_t *stream); /* bytes accepted and not yet written */

/* Queue one message.
 * Errors: LIMIT (the peer does not read: the queue's bound is reached; nothing was taken, the
 * caller should cancel), STOPPED (the stream is ending), NOMEM.
 * Ownership: borrows (copies). Threads: loop only. Blocking: never. */
DT_MUST_USE dt_status_t dt_rpc_stream_send(dt_rpc_stream_t *stream, const void *data, size_t size);
/* Hold back what is sent from now on until it is uncorked, so that several small messages leave in
 * one write. Both on the same callback: a corked stream writes nothing. */
void dt_rpc_stream_cork(dt_rpc_stream_t *stream);
void dt_rpc_stream_uncork(dt_rpc_stream_t *stream);

/* End in order: what is queued is sent first, then server: `status` and `text` go to the client;
 * client: half-close, and the server's status ends it. A peer that does not take it within
 * DT_RPC_CLOSE_NS is cancelled. `text` may be NULL. Later calls change nothing. */
#define DT_RPC_CLOSE_NS INT64_C(2000000000)
void dt_rpc_stream_close(dt_rpc_stream_t *stream, dt_status_t status, const char *text);
/* End now; what is queued is dropped. `closed` runs soon, with this status. */
void dt_rpc_stream_cancel(dt_rpc_stream_t *stream, dt_status_t status, const char *text);

/* ---- server ---- */

/* A unary request. `call` is taken by dt_rpc_call_reply() or dt_rpc_call_fail(), at once or later
 * (a reply may wait until it is durable). It stays valid when the client has left. */
typedef void (*dt_rpc_unary_fn)(dt_rpc_call_t *call, const uint8_t *data, size_t size, void *arg);

typedef struct dt_rpc_method {
    const char *name;               /* "/dtorch.v1.Worker/Stream" */
    const dt_rpc_stream_ops_t *ops; /* a stream method, or NULL */
    dt_rpc_unary_fn unary;          /* a unary method, or NULL */
    bool is_server_stream;          /* the client's half-close does not end the stream */
    void *arg;
} dt_rpc_method_t;

typedef struct dt_rpc_server_options {
    const dt_rpc_method_t *methods; /* kept until stopped */
    size_t method_count;
    /* Of unix and plain listeners; 0 = 4096, and less than the process's descriptors. When full,
     * the oldest one that has not made a call yet makes room; if there is none, the new one is
     * closed. */
    size_t connection_max;
    size_t stream_max;        /* streams open at once; 0 = 8192; more end with LIMIT */
    size_t call_max;          /* unary requests open at once; 0 = 1024; more end with AGAIN */
    size_t message_bytes_max; /* 0 = DT_RPC_MESSAGE_MAX; larger ones end the call, not the server */
    size_t queue_bytes_max;   /* of each stream's write queue; 0 = 8 MiB */
    int64_t idle_ms;          /* a connection without any call is closed after it; 0 = 10 s */
    int64_t handshake_ms;     /* until TLS is done, or until the first call; 0 = 5 s */
    /* Connections were refused over connection_max, or closed because they said nothing: the host
     * of the last one, and how many since the last call. At most one call a second; may be NULL. */
    void (*refused)(void *arg, const char *address, uint64_t count);
    /* gRPC has given up a TLS listener (1.51 does so when accept fails, for want of descriptors or
     * because the peer was gone already) and cannot open it again: the daemon should say so, and
     * end to be restarted. May be NULL. */
    void (*listener_lost)(void *arg, int port);
    void *arg;
} dt_rpc_server_options_t;

typedef struct dt_rpc_server_stats {
    size_t connections; /* of unix and plain listeners */
    size_t connection_max;
    size_t streams;
    size_t stream_max;
    size_t calls;
    size_t call_max;
    uint64_t accepted;      /* connections since the start */
    uint64_t refused;       /* connections over the bound since the start */
    uint64_t silent;        /* connections closed since the start because they said nothing */
    uint64_t streams_total; /* since the start */
    uint64_t calls_total;   /* since the start */
    uint64_t unknown_total; /* calls of methods that do not exist */
    uint64_t rx_messages;
    uint64_t tx_messages;
} dt_rpc_server_stats_t;

/* Create a server without listeners.
 * Ownership: keeps `rpc` and options->methods until `done` of dt_rpc_server_stop(); gives
 * *ret_server. Errors: INVALID, NOMEM. Threads: loop only, as all of the server's functions. */
DT_MUST_USE dt_status_t dt_rpc_server_create(dt_rpc_t *rpc, const dt_rpc_server_options_t *options,
                                             dt_rpc_server_t **ret_server, dt_error_t *err);
/* Listen on TCP. `tls` NULL: plain text (whether that is allowed is the caller's policy). TLS: a
 * client certificate is asked for; one that does not verify is refused, none is let through with
 * has_certificate false. Port 0: the kernel chooses, *ret_port says. TLS listeners must be added
 * before dt_rpc_server_start().
 * Errors: INVALID (address, certificate), EXISTS (port taken), DENIED, NOT_FOUND (name). */
DT_MUST_USE dt_status_t dt_rpc_server_listen_tcp(dt_rpc_server_t *server, const char *address,
                                                 const dt_rpc_tls_t *tls, int listener,
                                                 int *ret_port, dt_error_t *err);
/* Listen on a unix socket. A file left by a dead server is removed, one that answers is not.
 * Errors: INVALID (path too long, not a socket), EXISTS (someone answers there), DENIED,
 * NOT_FOUND (folder). The file goes when the server stops. */
DT_MUST_USE dt_status_t dt_rpc_server_listen_unix(dt_rpc_server_t *server, const char *path,
                                                  mode_t mode, int listener, dt_error_t *err);
/* Listen on a descriptor that somebody else bound (socket activation): unix or plain TCP.
 * Ownership: takes `fd` on success only. The file is not removed at the end. */
DT_MUST_USE dt_status_t dt_rpc_server_listen_fd(dt_rpc_server_t *server, int fd, int listener,
                                                dt_error_t *err);
/* Begin to serve. */
DT_MUST_USE dt_status_t dt_rpc_server_start(dt_rpc_server_t *server, dt_error_t *err);
/* New TLS handshakes use these from now on; connections that stand are not touched.
 * They are used at the next handshake and cannot be judged here: check them with dt_pki_check()
 * first. Errors: INVALID (there is no TLS listener, a text is missing), NOMEM; the old ones stay.
 */
DT_MUST_USE dt_status_t dt_rpc_server_reload_tls(dt_rpc_server_t *server, const dt_rpc_tls_t *tls,
                                                 dt_error_t *err);
/* Stop: listeners close at once (socket files go), running calls have `grace_ms`, then are
 * cancelled; `done` runs when all have ended, the server is freed after it. Unary calls that the
 * caller still holds must be answered: the server waits for them. */
void dt_rpc_server_stop(dt_rpc_server_t *server, int64_t grace_ms, void (*done)(void *arg),
                        void *arg);
void dt_rpc_server_stats(const dt_rpc_server_t *server, dt_rpc_server_stats_t *ret_stats);

typedef struct dt_rpc_crowd {
    char host[64]; /* remote address without port; "unix:uid=0" for unix sockets */
    size_t connections;
} dt_rpc_crowd_t;
/* Count this server's accepted connections by remote host, TLS ones included, most first.
 * Cost: O(descriptors of the process); meant for a second's pace. */
size_t dt_rpc_server_crowds(const dt_rpc_server_t *server, dt_rpc_crowd_t *ret_crowds, size_t max);

/* Unary calls. */
const dt_rpc_peer_t *dt_rpc_call_peer(const dt_rpc_call_t *call);
bool dt_rpc_call_is_cancelled(const dt_rpc_call_t *call); /* the client left or gave up */
/* Answer. Takes `call`; borrows `data`. Threads: loop only. */
void dt_rpc_call_reply(dt_rpc_call_t *call, const void *data, size_t size);
void dt_rpc_call_fail(dt_rpc_call_t *call, dt_status_t status, const char *text);

/* ---- client ---- */

typedef struct dt_rpc_dial {
    const char *address;
    const dt_rpc_tls_t *tls; /* NULL: plain text; ignored for unix sockets */
    const char *bearer;      /* sent as "authorization: Bearer ..." over TLS, and not without */
    const char *method;
    const dt_rpc_stream_ops_t *ops; /* kept until closed */
    void *arg;
    int64_t open_ms;          /* until the server accepts the stream; 0 = 5 s */
    size_t message_bytes_max; /* 0 = DT_RPC_MESSAGE_MAX */
    size_t queue_bytes_max;   /* 0 = 8 MiB */
} dt_rpc_dial_t;

/* Open a bidirectional stream on a connection of its own; names are resolved anew each time.
 * Failures of the network and of TLS come as `closed` with their text, within open_ms.
 * Ownership: gives *ret_stream until `closed`. Errors: INVALID (address, certificate), NOMEM. */
DT_MUST_USE dt_status_t dt_rpc_dial(dt_rpc_t *rpc, const dt_rpc_dial_t *dial,
                                    dt_rpc_stream_t **ret_stream, dt_error_t *err);

/* Send one request; `done` runs once, on the state thread, with the reply or with err->code not
 * OK. Errors: INVALID, NOMEM: then `done` does not run. */
DT_MUST_USE dt_status_t dt_rpc_unary(dt_rpc_t *rpc, const char *address, const dt_rpc_tls_t *tls,
                                     const char *method, const void *data, size_t size,
                                     int64_t timeout_ms,
                                     void (*done)(void *arg, const dt_error_t *why,
                                                  const uint8_t *data, size_t size),
                                     void *arg, dt_error_t *err);

/* ---- blocking client, for tools and tests; needs no runtime ---- */

/* Call and wait.
 * Ownership: gives *ret_data (free), set for an empty reply too.
 * Errors: as the server said; TIMEOUT; PEER or AGAIN (nobody answers; the text says why).
 * Threads: any but a state thread. Blocking: until `timeout_ms`. */
DT_MUST_USE dt_status_t dt_rpc_call_blocking(const char *address, const dt_rpc_tls_t *tls,
                                             const char *method, const void *data, size_t size,
                                             int64_t timeout_ms, uint8_t **ret_data,
                                             size_t *ret_size, dt_error_t *err);
/* Open a server stream with one request, or a bidirectional one (is_bidi: then the client's side
 * stays open for dt_rpc_reader_send). Ownership: gives *ret_reader. */
DT_MUST_USE dt_status_t dt_rpc_reader_open(const char *address, const dt_rpc_tls_t *tls,
                                           const char *method, bool is_bidi, const void *data,
                                           size_t size, int64_t timeout_ms,
                                           dt_rpc_reader_t **ret_reader, dt_error_t *err);
/* Send one more message. Blocking: until the transport took it or `timeout_ms`. */
DT_MUST_USE dt_status_t dt_rpc_reader_send(dt_rpc_reader_t *reader, const void *data, size_t size,
                                           int64_t timeout_ms, dt_error_t *err);
/* Wait for the next message.
 * Ownership: gives *ret_data (free). Errors: AGAIN (none within `timeout_ms`, ask again), STOPPED
 * (the server ended it cleanly), else as the server said. */
DT_MUST_USE dt_status_t dt_rpc_reader_next(dt_rpc_reader_t *reader, int64_t timeout_ms,
                                           uint8_t **ret_data, size_t *ret_size, dt_error_t *err);
void dt_rpc_reader_free(dt_rpc_reader_t *reader); /* NULL is fine */

#endif
