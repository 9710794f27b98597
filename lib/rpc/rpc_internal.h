/* What the files of lib/rpc share. Everything here is touched by the state thread only, unless a
 * comment says otherwise. */
#ifndef DT_RPC_RPC_INTERNAL_H
#define DT_RPC_RPC_INTERNAL_H
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/list.h"
#include "rpc/rpc.h"

#define DT_RPC_NS_PER_MS INT64_C(1000000)
#define DT_RPC_NS_PER_S  INT64_C(1000000000)
#define DT_RPC_INT_ARG(name, number)                                                               \
    {                                                                                              \
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)(name), .value.integer = (number)      \
    }

#define DT_RPC_AUTHORIZATION "authorization"
#define DT_RPC_BEARER        "Bearer "
#define DT_RPC_BEARER_MAX    255u

/* What the completion queue hands back: embedded in the object that the batch is about. */
typedef struct dt_rpc_tag {
    void (*run)(void *arg, bool ok);
    void *arg;
} dt_rpc_tag_t;

struct dt_rpc {
    grpc_completion_queue *queue;
    dt_loop_t *loop;
    grpc_channel *lame;
    grpc_call *post_call;  /* never started: an empty batch on it completes at once; any thread */
    dt_rpc_tag_t turn_tag; /* "the loop's descriptor is readable" */
    pthread_t watcher;
    int watch_fd;         /* what the watcher waits in: the loop's descriptor, once armed */
    int stop_fd;          /* the watcher shall end */
    pthread_mutex_t lock; /* guards is_closed against posts of other threads */
    bool is_closed;       /* lock; a batch after the queue's shutdown would abort the process */
    bool should_stop;
    /* Who turns: the state thread, or another one that stands in for it (dt_rpc_share). */
    pthread_mutex_t lead_lock;
    pthread_cond_t lead_changed;
    bool is_led;                   /* lead_lock; somebody turns */
    bool is_lent;                  /* lead_lock; the state thread waits in park() */
    bool is_recalled;              /* lead_lock; it is needed, since nobody turns */
    bool waits_for_end;            /* lead_lock; it waits for the end of a turn, with no deadline */
    uint64_t lead_count;           /* lead_lock; how often others led */
    int64_t left_ns;               /* lead_lock; when somebody last ceased to turn */
    bool should_lend;              /* whoever turns */
    _Atomic uint64_t posted_count; /* wakes posted */
    _Atomic uint64_t handled_count; /* of them those that ran */
    void (*lent)(void *arg);        /* NULL: nobody stands in */
    void *lent_arg;
    size_t open_count;  /* streams, calls, unaries, servers, wakes */
    uint64_t stream_id; /* of the last stream */
    dt_list_t closing;  /* streams that end in order, by close_link */
    dt_list_t unread;   /* streams whose next read is to be started, by unread_link */
    dt_timer_t *sweep;  /* cancels those of them that take too long */
    uint8_t *buffer;    /* the message that is being handled, in one piece */
    size_t buffer_size;
    dt_list_t tls; /* certificates of servers; gRPC's threads may use them until its shutdown */
};

/* One certificate set of one TLS listener, handed to gRPC whenever it asks. */
typedef struct dt_rpc_tls_state {
    dt_list_t link;
    pthread_mutex_t lock; /* gRPC's threads read */
    char *ca;             /* lock */
    char *chain;          /* lock; certificate, then ca */
    char *key;            /* lock */
    bool is_new;          /* lock; not fetched yet */
    int port;             /* set at listen */
} dt_rpc_tls_state_t;

struct dt_rpc_stream {
    dt_rpc_t *rpc;
    dt_rpc_server_t *server;              /* NULL: client */
    struct dt_rpc_registered *registered; /* server: its method */
    const dt_rpc_stream_ops_t *ops;
    void *arg;
    grpc_call *call;
    grpc_channel *channel;  /* client */
    grpc_metadata bearer;   /* client; slices are empty if there is none */
    dt_timer_t *open_timer; /* client, until it is open */
    uint64_t id;
    int64_t last_rx_ns;
    size_t pending;    /* batches in flight; the stream ends when it reaches zero */
    bool is_open;      /* open() has run */
    bool is_ending;    /* nothing more is accepted for sending */
    bool is_end_begun; /* the final batch was started, or never will be */
    bool is_writing;
    bool is_corked;
    bool is_half_closed; /* the peer has sent all */
    bool is_server_stream;
    dt_list_t messages; /* struct message, waiting to be written */
    size_t queued_bytes;
    size_t queue_bytes_max;
    size_t writing_bytes;
    dt_list_t close_link;
    dt_list_t unread_link;
    int64_t close_deadline_ns;
    dt_rpc_tag_t open_tag, initial_tag, read_tag, write_tag, close_tag, end_tag;
    grpc_byte_buffer *rx, *tx;
    grpc_metadata_array initial, trailing;
    gpr_timespec deadline;
    grpc_status_code grpc_status;
    grpc_slice details;
    int is_cancelled; /* server: the call ended without our status */
    bool has_why;
    dt_error_t why; /* what we ended it with */
    dt_rpc_peer_t peer;
    struct dt_rpc_connection *connection;
};

/* ---- runtime.c ---- */
DT_MUST_USE dt_status_t dt_rpc_library_init(dt_error_t *err);
/* How often a listener of gRPC's own failed to accept, and ended so, in this process. Any thread.
 */
uint64_t dt_rpc_accept_failures(void);
void dt_rpc_library_fini(void);
/* Copy a message into the runtime's buffer; valid until the next one. NULL: no memory. */
const uint8_t *dt_rpc_gather(dt_rpc_t *rpc, grpc_byte_buffer *bytes, size_t *ret_size);
/* Copy a message into `data`, which has grpc_byte_buffer_length() bytes. */
void dt_rpc_copy_out(grpc_byte_buffer *bytes, uint8_t *data);
grpc_byte_buffer *dt_rpc_bytes(const void *data, size_t size);
/* Start a batch; the caller counts it. Any error is a bug of ours. */
void dt_rpc_start(grpc_call *call, grpc_op *ops, size_t count, dt_rpc_tag_t *tag);
/* Fill `ret_why` from the end of a client's call. */
void dt_rpc_why(grpc_status_code status, grpc_slice details, dt_error_t *ret_why);
/* The earliest of the deadlines that the sweep watches may have changed. */
void dt_rpc_arm_sweep(dt_rpc_t *rpc);

/* ---- stream.c ---- */
dt_rpc_stream_t *dt_rpc_stream_new(dt_rpc_t *rpc, const dt_rpc_stream_ops_t *ops, void *arg);
void dt_rpc_stream_batch(dt_rpc_stream_t *stream, grpc_op *op, dt_rpc_tag_t *tag);
/* Give back one reference that dt_rpc_stream_batch() or the creator took. */
void dt_rpc_stream_put(dt_rpc_stream_t *stream);
void dt_rpc_stream_read(dt_rpc_stream_t *stream);
/* Free one that never was a call. */
void dt_rpc_stream_discard(dt_rpc_stream_t *stream);
/* Nothing can be sent any more. */
void dt_rpc_stream_shut(dt_rpc_stream_t *stream);
void dt_rpc_stream_opened(dt_rpc_stream_t *stream);

/* ---- server.c, listen.c ---- */

/* A connection that our own acceptor took. It stays in the server's table for a while after gRPC
 * has closed it, so that its number is not given to another peer while calls may be under way. */
typedef struct dt_rpc_connection {
    int fd;         /* gRPC's; only looked at, to see whether it is still the same socket */
    uint64_t inode; /* of the socket */
    bool is_gone;   /* gRPC has closed it */
    int64_t gone_ns;
    size_t calls;    /* that refer to this record */
    bool has_called; /* at least once */
    int64_t accepted_ns;
    dt_rpc_peer_t peer;
} dt_rpc_connection_t;

typedef struct dt_rpc_listener {
    dt_rpc_server_t *server;
    int fd;
    int number;
    bool is_unix;
    bool is_paused;  /* out of descriptors; the server's sweep resumes it */
    bool is_resting; /* after a slice of work; the server's breath resumes it */
    dt_watch_t *watch;
    char path[108];         /* socket file of ours, or "" */
    uint64_t device, inode; /* of that file */
} dt_rpc_listener_t;

typedef struct dt_rpc_registered {
    const dt_rpc_method_t *method;
    void *handle; /* gRPC's */
} dt_rpc_registered_t;

struct dt_rpc_server {
    dt_rpc_t *rpc;
    dt_rpc_server_options_t options; /* defaults filled in */
    grpc_server *grpc;
    grpc_server_credentials *insecure; /* for accepted connections */
    dt_rpc_registered_t *registered;
    bool is_started, is_stopping, is_shut;
    size_t requests; /* posted and not completed */
    dt_rpc_tag_t shut_tag;
    dt_timer_t *grace, *sweep, *breath;
    void (*done)(void *arg);
    void *done_arg;
    dt_rpc_listener_t listeners[DT_RPC_LISTENER_MAX];
    size_t listener_count;
    dt_rpc_tls_state_t *tls[DT_RPC_LISTENER_MAX];
    size_t tls_count;
    int tls_listener;
    uint64_t accept_failures; /* before the first of them */
    bool is_tls_lost;
    dt_rpc_connection_t **connections; /* by descriptor */
    size_t connection_capacity;
    size_t connection_count; /* records, gone ones included */
    size_t gone_count;
    uint64_t churn;          /* connections that went without a call since the last sweep */
    uint64_t refused_unsaid; /* since options.refused last ran */
    char refused_address[112];
    dt_rpc_server_stats_t stats;
};

/* Find out who made a call. Marks the connection as used; give it back with the next one. */
dt_rpc_connection_t *dt_rpc_peer_of(dt_rpc_server_t *server, grpc_call *call,
                                    dt_rpc_peer_t *ret_peer, bool *ret_is_gone);
void dt_rpc_peer_done(dt_rpc_connection_t *connection);
/* Listen on plain TCP with our own acceptor. */
DT_MUST_USE dt_status_t dt_rpc_listen_plain(dt_rpc_server_t *server,
                                            const struct sockaddr_storage *address, socklen_t size,
                                            int listener, int *ret_port, dt_error_t *err);
DT_MUST_USE dt_status_t dt_rpc_listeners_init(dt_rpc_server_t *server, dt_error_t *err);
void dt_rpc_listeners_begin(dt_rpc_server_t *server);
void dt_rpc_listeners_close(dt_rpc_server_t *server); /* idempotent; socket files go */
void dt_rpc_connections_free(dt_rpc_server_t *server);
/* A call of this server ended: it may now be complete. */
void dt_rpc_server_maybe_done(dt_rpc_server_t *server);

/* ---- client.c ---- */
/* `limit_ms`: the caller gives up by then; a connection attempt may take as long. */
DT_MUST_USE dt_status_t dt_rpc_channel(const char *address, const dt_rpc_tls_t *tls,
                                       size_t message_bytes_max, int64_t limit_ms,
                                       grpc_channel **ret_channel, dt_error_t *err);
gpr_timespec dt_rpc_deadline(int64_t timeout_ms);

#endif
