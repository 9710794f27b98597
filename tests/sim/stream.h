/* The operator stream under simulation: the controller's session machine, same object code as the
 * daemon's, between clients and nodes that are models, driven by one seed.
 *   clients    make a random program of operators, in-place operators, views, frees and fetches,
 * and know what each fetch must give; they keep frames until acknowledged, come back with their
 * token, send frames twice network    each stream in order with its own delays; cuts lose what is
 * under way in both directions, and each side learns of it at its own time nodes      agents with
 * one engine a device that executes with delays, counts what it sends, and sends again what was not
 * taken; in some seeds they are restarted or lose engines What must hold: nodes see every record
 * exactly once and in order; a value that a fetch gives is the program's; in seeds without loss
 * every fetch gives one; at the end all is answered, and nothing is left of the session anywhere.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H
#include <stdbool.h>
#include <stdint.h>

#include "core/session.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/record.h"

#define STREAM_MS          INT64_C(1000000)
#define STREAM_CLIENTS     2
#define STREAM_NODES       2
#define STREAM_DEVICES     2
#define STREAM_VDEVS       2
#define STREAM_IDS         1024 /* tensors of one program */
#define STREAM_RECORDS     400
#define STREAM_KEPT        1024
#define STREAM_PIPES       2048
#define STREAM_INSTANCES   256
#define STREAM_KINDS       3 /* signatures of one vdev: two inputs, in place, view */
#define STREAM_EPOCH       3u
#define STREAM_FAULTS_NS   (2000 * STREAM_MS)
#define STREAM_DEADLINE_NS (60000 * STREAM_MS)

typedef struct stream_message {
    struct stream_message *next;
    int64_t at_ns;
    bool is_end; /* the other side learns that the stream is over */
    uint8_t *data;
    size_t size;
} stream_message_t;

typedef struct stream_queue {
    stream_message_t *head, *tail;
} stream_queue_t;

typedef struct stream_pipe {
    uint64_t id; /* 0: not used */
    dt_session_stream_kind_t kind;
    int owner;         /* client or instance; -1: it went away */
    bool is_core_done; /* the machine knows that it is over, or ended it */
    stream_queue_t to_core, to_peer;
    int64_t core_ns, peer_ns; /* of the newest message each way */
} stream_pipe_t;

typedef struct stream_frame {
    uint8_t *bytes;
    size_t size;
    uint64_t first;
    uint32_t count;
} stream_frame_t;

typedef struct stream_client {
    uint64_t session;
    uint8_t token[DT_SESSION_TOKEN_BYTES];
    int pipe; /* -1: not connected */
    bool is_welcome, is_done, is_over;
    int64_t wake_ns, dial_ns, said_ns;
    stream_frame_t kept[STREAM_KEPT]; /* not acknowledged */
    uint32_t kept_count;
    uint64_t sequence; /* of the next record */
    uint32_t made;     /* records of the program so far */
    uint64_t credit, sent_bytes;
    /* what the program means */
    uint64_t next_id;
    bool is_live[STREAM_IDS];
    uint32_t storage_of[STREAM_IDS], vdev_of[STREAM_IDS];
    uint64_t values[STREAM_IDS]; /* of storages */
    uint64_t next_future, done;
    uint64_t expected[STREAM_RECORDS * 2];
    uint8_t answers[STREAM_RECORDS * 2]; /* 0 none, 1 value, 2 error */
    uint32_t answered;
    uint64_t resumes;
} stream_client_t;

/* One instance of a session on a node. */
typedef struct stream_instance {
    bool is_used;
    int node;
    uint64_t session;
    uint8_t key[DT_SESSION_KEY_BYTES];
    int pipe; /* -1: not connected */
    int64_t dial_ns, wake_ns;
    bool may_send;                      /* the controller said what it has */
    uint32_t vdev_device[STREAM_VDEVS]; /* UINT32_MAX: not here, or lost */
    uint64_t received, executed;
    stream_frame_t frames[STREAM_KEPT]; /* received, not executed */
    uint32_t frame_count;
    uint32_t done_records; /* of frames[0] */
    bool plans[STREAM_VDEVS * STREAM_KINDS], meshes[STREAM_VDEVS];
    bool is_there[STREAM_IDS];
    uint32_t storage_of[STREAM_IDS], vdev_of[STREAM_IDS];
    uint64_t values[STREAM_IDS];
    stream_frame_t ups[STREAM_KEPT]; /* sent, not known to be taken; first: its number */
    uint32_t up_count;
    uint64_t up_number;
} stream_instance_t;

typedef struct stream_node {
    uint64_t incarnation;
    uint64_t control; /* stream, 0: away */
    int64_t back_ns;  /* when it connects again */
    stream_queue_t orders;
    int64_t order_ns;
} stream_node_t;

typedef struct stream {
    uint64_t seed, random;
    bool is_traced, may_lose, has_failed;
    int64_t now_ns, fault_ns;
    uint64_t steps, losses, cuts;
    char *failure;
    dt_sessions_t *sessions;
    stream_pipe_t pipes[STREAM_PIPES];
    int pipe_count;
    uint64_t next_stream, next_control;
    stream_client_t clients[STREAM_CLIENTS];
    stream_node_t nodes[STREAM_NODES];
    stream_instance_t instances[STREAM_INSTANCES];
    int instance_count;
    dt_record_t record;
} stream_t;

/* Run one seed. False: *failure (512 bytes) says what broke. */
bool stream_run(uint64_t seed, bool is_traced, char *failure, uint64_t *ret_steps);

uint64_t stream_random(stream_t *s, uint64_t bound);
bool stream_chance(stream_t *s, unsigned percent);
void stream_fail(stream_t *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void stream_trace(stream_t *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Open a stream to the machine. Returns its pipe. */
int stream_open(stream_t *s, dt_session_stream_kind_t kind, int owner);
void stream_say(stream_t *s, int pipe, const uint8_t *data, size_t size);
void stream_pack_say(stream_t *s, int pipe, const ProtobufCMessage *message);
/* It breaks: what is under way is lost. */
void stream_cut(stream_t *s, int pipe);
/* The peer leaves. */
void stream_leave(stream_t *s, int pipe);
void stream_node_tell(stream_t *s, int node);
uint64_t stream_mix(uint64_t kind, uint64_t a, uint64_t b);

/* stream_client.c */
void stream_client_wake(stream_t *s, int client);
void stream_client_message(stream_t *s, int client, const uint8_t *data, size_t size);
void stream_client_ended(stream_t *s, int client);
void stream_client_repeat(stream_t *s, int client);

/* stream_node.c */
void stream_node_order(stream_t *s, int node, const uint8_t *data, size_t size);
void stream_instance_wake(stream_t *s, int instance);
void stream_instance_message(stream_t *s, int instance, const uint8_t *data, size_t size);
void stream_instance_ended(stream_t *s, int instance, bool is_over);
void stream_instance_free(stream_t *s, int instance);
void stream_node_restart(stream_t *s, int node);
void stream_engine_lost(stream_t *s, int instance);

#endif
