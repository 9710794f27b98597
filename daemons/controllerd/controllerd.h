/* The controller daemon's own face: its parts, and what its files offer each other.
 *
 * main.c reads the command line; app.c owns all parts, starts and stops them; each other file is
 * one subject. Everything here runs on the state thread; the journal and the HTTP door of the
 * metrics have a thread each (lib/store, lib/metrics).
 *
 * Rule: a callback hands its event to the core, then calls dt_controllerd_pump(), which performs
 * the actions that the core wants. */
#ifndef DT_CONTROLLERD_CONTROLLERD_H
#define DT_CONTROLLERD_CONTROLLERD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/list.h"
#include "base/status.h"
#include "base/strings.h"
#include "conf/cmdline.h"
#include "conf/conf.h"
#include "core/cluster.h"
#include "core/session.h"
#include "loop/loop.h"
#include "metrics/metrics.h"
#include "metrics/page.h"
#include "pki/pki.h"
#include "rpc/rpc.h"
#include "store/store.h"
#include "sysd/sysd.h"

/* Exit codes, sysexits(3); dtorch-controllerd(8) lists them. */
enum {
    DT_CONTROLLERD_EXIT_OK = 0,
    DT_CONTROLLERD_EXIT_DATA = 65,        /* the journal is damaged */
    DT_CONTROLLERD_EXIT_UNAVAILABLE = 69, /* a port is taken, an address is not ours */
    DT_CONTROLLERD_EXIT_SOFTWARE = 70,
    DT_CONTROLLERD_EXIT_AGAIN = 75,  /* disk full, or another controller holds the directory */
    DT_CONTROLLERD_EXIT_DENIED = 77, /* permissions, read-only file system */
    DT_CONTROLLERD_EXIT_CONFIG = 78,
};

#define DT_CONTROLLERD_LISTEN_MAX      DT_RPC_LISTENER_MAX
#define DT_CONTROLLERD_FOLLOWER_MAX    64    /* event followers, and health watchers, at once */
#define DT_CONTROLLERD_SESSION_STREAMS 65536 /* of programs, their bulk, and nodes' of sessions */
#define DT_CONTROLLERD_NODE_WINDOW     (256u << 10) /* bytes of a session on their way to a node */
#define DT_CONTROLLERD_NODE_RECORDS    8192u
#define DT_CONTROLLERD_RESULTS         (8u << 20) /* unconfirmed Results of a session */
#define DT_CONTROLLERD_CHUNK_MESSAGE                                                               \
    ((1u << 20) + 4096) /* the largest message: bytes of a transfer */
#define DT_CONTROLLERD_LIST_JOBS    1000
#define DT_CONTROLLERD_BY_MAX       320
#define DT_CONTROLLERD_BUCKET_COUNT 1024
#define DT_CONTROLLERD_REPLY_MAX    (7u << 20)   /* bytes of a reply; a list is cut to fit */
#define DT_CONTROLLERD_ARENA_MAX    (128u << 20) /* of a reply while it is made */
#define DT_CONTROLLERD_STALL_NS                                                                    \
    (5 * DT_CLOCK_SECOND_NS)              /* a peer that reads nothing for it goes                 \
                                           */
#define DT_CONTROLLERD_SILENT_MAX     200 /* connections without a call that one host may hold */
#define DT_CONTROLLERD_CROWDS         8   /* hosts looked at, those with most connections first */
#define DT_CONTROLLERD_YOUNG_SECONDS  3   /* a connection may be without a call for so long */
#define DT_CONTROLLERD_LISTENER_ADMIN 0   /* number of the admin socket; others count from 1 */

typedef struct dt_controllerd dt_controllerd_t;

/* ---- roles: who may call what (roles.c) ---- */

typedef enum dt_controllerd_role {
    DT_CONTROLLERD_ROLE_NONE, /* anybody */
    DT_CONTROLLERD_ROLE_VIEWER,
    DT_CONTROLLERD_ROLE_USER,
    DT_CONTROLLERD_ROLE_OPERATOR,
    DT_CONTROLLERD_ROLE_ADMIN,
    DT_CONTROLLERD_ROLE_WORKER,
    DT_CONTROLLERD_ROLE_COUNT,
} dt_controllerd_role_t;

/* The word for a role in a .proto comment. */
const char *dt_controllerd_role_text(dt_controllerd_role_t role);

/* Whether a peer may call a method of this role. */
bool dt_controllerd_peer_has_role(const dt_rpc_peer_t *peer, dt_controllerd_role_t role);

/* Write who a peer is known to be: "root (uid 0)", "uid 1000", "admin ana (certificate)". */
void dt_controllerd_peer_name(const dt_rpc_peer_t *peer, char *out, size_t size);

/* The name in a verified node's certificate, or NULL. */
const char *dt_controllerd_peer_node(const dt_rpc_peer_t *peer);

/* ---- methods (services.c and svc_*.c) ---- */

typedef void dt_controllerd_unary_fn(dt_controllerd_t *app, dt_rpc_call_t *call,
                                     const ProtobufCMessage *request);

/* One row a method of all services. */
typedef struct dt_controllerd_method {
    const char *path; /* "/dtorch.v1.Admin/GetCluster" */
    dt_controllerd_role_t role;
    const ProtobufCMessageDescriptor *request; /* unary */
    dt_controllerd_unary_fn *unary;
    const dt_rpc_stream_ops_t *ops;
    bool is_server_stream;
} dt_controllerd_method_t;

/* All rows. Ownership: static. */
const dt_controllerd_method_t *dt_controllerd_methods(size_t *ret_count);

/* Make the doors and what lib/rpc wants of the table. Ownership: app frees both arrays. */
DT_MUST_USE dt_status_t dt_controllerd_doors_make(dt_controllerd_t *app, dt_error_t *err);

/* What a method's callbacks get as `arg`. */
typedef struct dt_controllerd_door {
    dt_controllerd_t *app;
    const dt_controllerd_method_t *method;
} dt_controllerd_door_t;

/* Whether the peer of a stream that just opened may use it; else it was refused with a status. */
bool dt_controllerd_door_admits(const dt_controllerd_door_t *door, dt_rpc_stream_t *stream);

/* Answer with a message, or with why there is none. Takes `call`. */
void dt_controllerd_reply(dt_controllerd_t *app, dt_rpc_call_t *call,
                          const ProtobufCMessage *message);
void dt_controllerd_fail(dt_rpc_call_t *call, const dt_error_t *why);

/* The same for a stream of a session, which an API key opens too. *ret_admission: whose it is, and
 * whether it may begin a session. Threads: loop only; the answer holds until the cluster's next
 * call. */
bool dt_controllerd_admit(const dt_controllerd_door_t *door, dt_rpc_stream_t *stream, bool is_bulk,
                          dt_cluster_admission_t *ret_admission);

extern const dt_rpc_stream_ops_t dt_controllerd_worker_ops;
extern const dt_rpc_stream_ops_t dt_controllerd_session_ops;
extern const dt_rpc_stream_ops_t dt_controllerd_link_ops;
extern const dt_rpc_stream_ops_t dt_controllerd_bulk_ops;
extern const dt_rpc_stream_ops_t dt_controllerd_follow_ops;
extern const dt_rpc_stream_ops_t dt_controllerd_watch_ops;

dt_controllerd_unary_fn dt_controllerd_join, dt_controllerd_get_cluster, dt_controllerd_list_nodes,
    dt_controllerd_set_node, dt_controllerd_list_events, dt_controllerd_get_config,
    dt_controllerd_get_diagnostics, dt_controllerd_create_token, dt_controllerd_list_tokens,
    dt_controllerd_revoke_token, dt_controllerd_create_key, dt_controllerd_list_keys,
    dt_controllerd_revoke_key, dt_controllerd_list_jobs, dt_controllerd_get_job,
    dt_controllerd_end_job, dt_controllerd_list_tensors, dt_controllerd_get_timeline,
    dt_controllerd_get_plans, dt_controllerd_get_usage, dt_controllerd_health_check;

/* A request that waits for the core's REPLY. */
typedef struct dt_controllerd_ticket {
    dt_list_t link;
    uint64_t number;
    dt_rpc_call_t *call;
    uint8_t *held; /* a reply that goes out when the core says DT_OK without data, or NULL */
    size_t held_size;
} dt_controllerd_ticket_t;

/* Make a ticket for a call. Returns 0 when there is no memory: the call was failed.
 * Ownership: takes `call`, and `held` if it is not NULL. */
uint64_t dt_controllerd_ticket_make(dt_controllerd_t *app, dt_rpc_call_t *call, uint8_t *held,
                                    size_t held_size);
void dt_controllerd_ticket_answer(dt_controllerd_t *app, const dt_cluster_action_t *action);
void dt_controllerd_ticket_fail_all(dt_controllerd_t *app, dt_status_t status, const char *text);

/* ---- worker streams (svc_worker.c) ---- */

void dt_controllerd_worker_send(dt_controllerd_t *app, const dt_cluster_action_t *action);
void dt_controllerd_worker_close(dt_controllerd_t *app, const dt_cluster_action_t *action);
/* Drop peers that do not read. Cost: O(streams). */
void dt_controllerd_worker_sweep(dt_controllerd_t *app, int64_t now_ns);
size_t dt_controllerd_worker_count_host(dt_controllerd_t *app, const char *host);

/* SHA-256. */
void dt_controllerd_hash(const void *bytes, size_t size, uint8_t hash[32]);
/* Hash a token's secret, as the core compares it. */
void dt_controllerd_secret_hash(const char *secret, uint8_t hash[32]);

/* ---- events (svc_admin.c) ---- */

/* Pack the events that a request asks for into app->reply_arena, as many as one message may hold.
 * *ret_last: sequence of the newest, 0 if none. Errors: LIMIT. */
DT_MUST_USE dt_status_t dt_controllerd_pack_events(dt_controllerd_t *app,
                                                   const Dtorch__V1__ListEventsRequest *wanted,
                                                   uint8_t **ret_data, size_t *ret_size,
                                                   uint64_t *ret_last);

/* ---- the other streams ---- */

void dt_controllerd_follow_feed(dt_controllerd_t *app); /* give followers what is new */
void dt_controllerd_follow_sweep(dt_controllerd_t *app, int64_t now_ns);
void dt_controllerd_follow_end(dt_controllerd_t *app); /* end all: the daemon stops */
void dt_controllerd_watch_tell(dt_controllerd_t *app); /* the health may have changed */
void dt_controllerd_watch_end(dt_controllerd_t *app);

/* ---- sessions (svc_session.c) ---- */

DT_MUST_USE dt_status_t dt_controllerd_session_start(dt_controllerd_t *app, dt_error_t *err);
/* Tell the machine of nodes that moved, perform what it wants, arm its timer. */
void dt_controllerd_session_pump(dt_controllerd_t *app);
void dt_controllerd_session_reload(dt_controllerd_t *app);
/* Drop peers that do not read. Cost: O(streams). */
void dt_controllerd_session_sweep(dt_controllerd_t *app, int64_t now_ns);
void dt_controllerd_session_end(dt_controllerd_t *app); /* end all streams: the daemon stops */
void dt_controllerd_session_free(dt_controllerd_t *app);

/* ---- certificates (credentials.c) ---- */

typedef struct dt_controllerd_tls {
    bool is_on;
    char *ca;    /* PEM, gives; NULL when off */
    char *chain; /* the certificate and the CA behind it */
    char *key;
    char *ca_key; /* NULL: nobody can join */
    dt_pki_info_t info;
    dt_pki_info_t ca_info;
} dt_controllerd_tls_t;

/* Read and check what the configuration names; keys may come as systemd credentials `tls.key` and
 * `ca.key`. Without Certificate=, Key= and CertificateAuthority= TLS is off.
 * Errors: INVALID (half a set, damaged, not belonging together), DENIED (expired, unreadable),
 * NOT_FOUND. Ownership: gives *ret_tls, dt_controllerd_tls_fini(). Blocking: reads files. */
DT_MUST_USE dt_status_t dt_controllerd_tls_load(const dt_conf_t *conf, int64_t wall_ms,
                                                dt_controllerd_tls_t *ret_tls, dt_error_t *err);
void dt_controllerd_tls_fini(dt_controllerd_tls_t *tls);

/* ---- listening (listen.c) ---- */

/* What the table of options cannot check: for --check-config, start and reload.
 * Errors: INVALID. */
DT_MUST_USE dt_status_t dt_controllerd_check_conf(const dt_conf_t *conf, dt_error_t *err);
/* Whether the address stands for this host only: 127.0.0.0/8, ::1, localhost, a unix path. */
bool dt_controllerd_is_local(const char *address);
/* Listen on all; remembers the addresses as bound. Gives the exit code that fits an error. */
DT_MUST_USE dt_status_t dt_controllerd_listen(dt_controllerd_t *app, int *ret_exit,
                                              dt_error_t *err);

/* ---- journal (journal.c) ---- */

DT_MUST_USE dt_status_t dt_controllerd_journal_open(dt_controllerd_t *app, int *ret_exit,
                                                    dt_error_t *err);
/* How many records the core may have on their way. */
uint32_t dt_controllerd_journal_pending_max(const dt_conf_t *conf);
void dt_controllerd_journal_put(dt_controllerd_t *app, const dt_cluster_action_t *action);
void dt_controllerd_journal_look(dt_controllerd_t *app); /* has the store news? */
void dt_controllerd_journal_close(dt_controllerd_t *app);

/* ---- reload (reload.c) ---- */

/* Read the configuration again, all of it or nothing. */
void dt_controllerd_reload(dt_controllerd_t *app);

/* ---- what people and machines see (observe.c) ---- */

void dt_controllerd_log_event(const Dtorch__V1__Event *event, uint64_t epoch);
void dt_controllerd_observe(dt_controllerd_t *app, int64_t now_ns); /* once a second */
/* Open the metrics' port if MetricsListen= is set. Gives the exit code that fits an error. */
DT_MUST_USE dt_status_t dt_controllerd_metrics_open(dt_controllerd_t *app, const char *listen,
                                                    int *ret_exit, dt_error_t *err);
const char *dt_controllerd_not_serving(const dt_controllerd_t *app); /* why, or NULL */

/* What an HTTP port that does not open ends the daemon with. */
int dt_controllerd_http_exit(dt_status_t status);

/* ---- the status page (page.c) ---- */

#define DT_CONTROLLERD_PAGE_MODELS 64

/* The document that is being made, a few nodes a turn. Zero: none is. */
typedef struct dt_controllerd_page_draft {
    bool is_open;
    dt_buf_t text;
    dt_json_t json;
    char after[64];                              /* name of the last node that was written */
    uint32_t nodes;                              /* written */
    int64_t began_ns;                            /* monotonic */
    int64_t spent_ns;                            /* processor time of the state thread so far */
    char models[DT_CONTROLLERD_PAGE_MODELS][96]; /* names of devices */
    unsigned model_count;
} dt_controllerd_page_draft_t;

/* Open the page's port if StatusListen= is set. Gives the exit code that fits an error. */
DT_MUST_USE dt_status_t dt_controllerd_page_open(dt_controllerd_t *app, int *ret_exit,
                                                 dt_error_t *err);
/* Open the port again, for the certificate and the secret of a reload; on loopback there are none.
 * Browsers ask again by themselves. */
void dt_controllerd_page_renew(dt_controllerd_t *app);
void dt_controllerd_page_look(dt_controllerd_t *app); /* begin a document if somebody waits */
void dt_controllerd_page_close(dt_controllerd_t *app);
/* The files of the page, with what lies in them. */
const dt_page_file_t *dt_controllerd_page_files(size_t *ret_count);

/* Hosts that held too many silent connections at the last look. */
typedef struct dt_controllerd_crowds {
    size_t count;
    struct {
        char name[64];
        unsigned looks; /* one after the other */
    } hosts[DT_CONTROLLERD_CROWDS];
} dt_controllerd_crowds_t;

/* ---- app.c ---- */

struct dt_controllerd {
    const dt_conf_sources_t *sources; /* for a reload */
    dt_conf_t *conf;
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_rpc_server_t *server;
    dt_cluster_t *cluster;
    dt_metrics_t *metrics; /* NULL: MetricsListen=none */
    dt_metrics_text_t text;
    dt_page_t *page; /* NULL: StatusListen=none */
    dt_rpc_wake_t *page_wake;
    dt_timer_t *page_timer;
    dt_arena_t page_arena; /* of one turn */
    dt_controllerd_page_draft_t page_draft;
    int64_t page_next_ns;    /* when the next document may begin */
    uint64_t page_documents; /* made since the start */
    int64_t page_spent_ns;   /* on the last one */
    int64_t page_spent_total_ns;
    int64_t page_period_ns; /* between the last document and the next one */
    dt_controllerd_tls_t tls;
    dt_arena_t request_arena;
    dt_arena_t reply_arena;
    dt_rpc_method_t *rpc_methods;
    dt_controllerd_door_t *doors;
    size_t method_count;
    char *listens[DT_CONTROLLERD_LISTEN_MAX]; /* as bound */
    size_t listen_count;
    char host[65];
    int64_t started_wall_ms;
    int64_t started_ns;

    dt_store_t *store;
    dt_rpc_wake_t *store_wake;
    dt_store_report_t store_report;
    uint64_t sequence_base; /* the store's sequence when the core began to count from 1 */
    bool was_failing;       /* as the core was told */
    bool is_snapshot_open;
    dt_cluster_cursor_t snapshot_cursor;
    dt_timer_t *snapshot_timer;

    dt_timer_t *core_timer;
    dt_timer_t *second_timer;
    dt_timer_t *stop_timer;
    dt_sigwatch_t *sigterm, *sigint, *sighup;

    dt_list_t worker_buckets[DT_CONTROLLERD_BUCKET_COUNT]; /* by the stream's number */
    dt_list_t followers;
    size_t follower_count;
    uint64_t events_fed; /* newest event that followers were offered */
    dt_list_t watchers;
    size_t watcher_count;
    dt_sessions_t *sessions;
    dt_timer_t *session_timer;
    dt_list_t session_buckets[DT_CONTROLLERD_BUCKET_COUNT]; /* by the stream's number */
    size_t session_stream_count;
    uint64_t session_generation; /* of the cluster, as the machine knows it */
    uint64_t session_numbers;    /* below it, the machine may give them out */
    dt_list_t tickets;
    uint64_t ticket_last;

    dt_rpc_wake_t *probe; /* goes once through the completion queue for each feed of the watchdog */
    uint64_t probe_runs;
    uint64_t fed_probe_runs, fed_journal_turns;
    dt_timer_t *watchdog_timer; /* NULL: the service manager waits for nothing */
    int64_t watchdog_ns;        /* between two looks */
    char status_line[256];

    bool is_ready;
    bool is_stopping;
    bool is_server_stopping;
    bool has_tls_listener;
    int64_t expiry_told_ms;                                 /* wall clock */
    uint64_t accepted_before[DT_CONTROLLERD_YOUNG_SECONDS]; /* ring: connections accepted by then */
    unsigned accepted_turn;
    dt_controllerd_crowds_t crowds;
    int exit_code;
};

/* Perform what the core wants, arm its timer, feed followers. */
void dt_controllerd_pump(dt_controllerd_t *app);
/* End the daemon in order. */
void dt_controllerd_stop(dt_controllerd_t *app, int exit_code);
/* Fill the core's options from the configuration. */
void dt_controllerd_cluster_options(const dt_controllerd_t *app, const dt_conf_t *conf,
                                    dt_cluster_options_t *ret_options);
/* Run until SIGTERM. Returns the exit code. Ownership: takes *conf; keeps sources. */
int dt_controllerd_run(const dt_conf_sources_t *sources, dt_conf_t *conf);

#endif
