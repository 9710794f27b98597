/* The operator stream under simulation: the controller's session machine, same object code as the
 * daemon's, between clients and nodes that are models, driven by one seed, which is run in three
 * worlds: sessions of single devices, sessions whose tensors lie on meshes, and these once more on
 * nodes that go on beside a move (core/moves.h, the engines' object code), some 16 times slower.
 *   clients    make a random program of operators, in-place operators, views, frees and fetches,
 * and know what each fetch must give; they keep frames until acknowledged, come back with their
 * token, send frames twice network    each stream in order with its own delays; cuts lose what is
 * under way in both directions, and each side learns of it at its own time nodes      agents with
 * one engine a device that executes with delays, counts what it sends, and sends again what was not
 * taken; in some seeds they are restarted or lose engines What must hold: nodes see every record
 * exactly once and in order; a value that a fetch gives is the program's; in seeds without loss
 * every fetch gives one; at the end all is answered, and nothing is left of the session anywhere.
 *   On meshes also: what moves between devices meets at the same record on all of its members, with
 * the parts that the program's history gives; a member that is lost ends what the others wait for,
 * and whoever is lost without a word is made known by the machine; what a signature claims falsely
 * of layouts gives an error and never a value. After each event: what waits is within the windows.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H
#include <stdbool.h>
#include <stdint.h>

#include "core/moves.h"
#include "core/session.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/frame.h"
#include "wire/record.h"

#define STREAM_MS          INT64_C(1000000)
#define STREAM_CLIENTS     2
#define STREAM_NODES       3 /* at most; 2 in the world without meshes */
#define STREAM_DEVICES     2
#define STREAM_VDEVS       4 /* at most; 2 without meshes */
#define STREAM_PLACES      16
#define STREAM_IDS         1024 /* tensors of one program */
#define STREAM_RECORDS     400
#define STREAM_KEPT        1024
#define STREAM_PIPES       2048
#define STREAM_INSTANCES   256
#define STREAM_KINDS       3 /* signatures of one place: two inputs, in place, view */
#define STREAM_EXCHANGES   (STREAM_CLIENTS * STREAM_RECORDS)
#define STREAM_EPOCH       3u
#define STREAM_FAULTS_NS   (2000 * STREAM_MS)
#define STREAM_DEADLINE_NS (60000 * STREAM_MS)

/* Numbers of signatures: for each place its kinds, then these. */
enum {
    STREAM_SIG_MOVE = STREAM_PLACES * STREAM_KINDS, /* + from * STREAM_PLACES + to */
    STREAM_SIG_LOCAL = STREAM_SIG_MOVE + STREAM_PLACES * STREAM_PLACES, /* + place * VDEVS + part */
    STREAM_SIG_JOIN = STREAM_SIG_LOCAL + STREAM_PLACES * STREAM_VDEVS,  /* + place */
    STREAM_SIG_LIE = STREAM_SIG_JOIN + STREAM_PLACES,                   /* + place */
    STREAM_SIG_COUNT = STREAM_SIG_LIE + STREAM_PLACES,
};

/* Where a tensor may lie: a vdev alone (place v, mesh v), or a layout on a mesh. */
typedef struct stream_place {
    uint32_t mesh, count;
    uint32_t vdevs[STREAM_VDEVS]; /* (count) in the mesh's order */
    dt_layout_t layout;
} stream_place_t;

/* A tensor that moves between devices, at one record of one session. */
typedef struct stream_exchange {
    uint64_t session, sequence;
    uint32_t published;            /* bit v: vdev v has come to it */
    int instances[STREAM_VDEVS];   /* that published it */
    uint64_t values[STREAM_VDEVS]; /* parts */
    uint64_t cause;                /* first record that poisons it; 0: none */
    bool is_over;                  /* for all alike */
} stream_exchange_t;

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
    uint32_t storage_of[STREAM_IDS], place_of[STREAM_IDS];
    uint64_t values[STREAM_IDS][STREAM_VDEVS]; /* of storages, by vdev */
    bool is_bad[STREAM_IDS];                   /* storages: the program lied about it */
    bool is_defined[STREAM_SIG_COUNT];
    uint64_t next_future, done;
    uint64_t expected[STREAM_RECORDS * 2];
    bool is_error[STREAM_RECORDS * 2];   /* expected to be one */
    uint8_t answers[STREAM_RECORDS * 2]; /* 0 none, 1 value, 2 error */
    uint32_t answered;
    uint64_t resumes;
} stream_client_t;

/* A move that an instance has come to and that has not ended. */
typedef struct stream_queued {
    dt_move_t move;
    uint64_t input, output;
    uint32_t from, to; /* places */
    dt_move_mark_t *marks[2];
} stream_queued_t;

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
    uint32_t own;                       /* bit v: it was bound to vdev v */
    int all_node[STREAM_VDEVS];         /* as it was told at its begin; -1: of nobody */
    int64_t gone_ns[STREAM_VDEVS];      /* when it learns that a vdev's engine is lost */
    bool has_door[STREAM_NODES];        /* knows how to reach a node */
    bool is_door_said;
    uint64_t received, executed;
    uint64_t performed; /* the last record; `executed` has nothing open before it */
    uint64_t said;      /* of `executed` */
    uint64_t slowness;
    dt_moves_t moves;
    stream_queued_t *running;           /* NULL: none */
    dt_move_mark_t marks[STREAM_IDS];   /* of storages */
    stream_frame_t frames[STREAM_KEPT]; /* received, not executed */
    uint32_t frame_count;
    uint32_t done_records; /* of frames[0] */
    bool plans[STREAM_SIG_COUNT], meshes[STREAM_PLACES];
    bool is_there[STREAM_IDS];
    uint32_t storage_of[STREAM_IDS], place_of[STREAM_IDS];
    uint64_t values[STREAM_IDS][STREAM_VDEVS]; /* of storages, by vdev */
    uint64_t poison[STREAM_IDS][STREAM_VDEVS]; /* record that poisoned them; 0: none */
    stream_frame_t ups[STREAM_KEPT];           /* sent, not known to be taken; first: its number */
    uint32_t up_count;
    uint64_t up_number;
} stream_instance_t;

typedef struct stream_node {
    uint64_t incarnation;
    uint64_t control; /* stream, 0: away */
    int64_t back_ns;  /* when it connects again */
    bool is_dark;     /* what goes now goes without a word */
    int64_t well_ns;  /* until then its devices have failed; 0: they have not */
    stream_queue_t orders;
    int64_t order_ns;
} stream_node_t;

typedef struct stream {
    uint64_t seed, random;
    bool is_traced, may_lose, has_failed, has_meshes, has_overlap;
    uint32_t vdev_count, node_count, place_count, mesh_count;
    stream_place_t places[STREAM_PLACES];
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
    stream_exchange_t exchanges[STREAM_EXCHANGES];
    int exchange_count;
    uint64_t exchanges_cut; /* that a loss ended */
    dt_record_t record;
} stream_t;

typedef enum stream_world {
    STREAM_PLAIN,
    STREAM_MESHES,
    STREAM_OVERLAP, /* on meshes too */
} stream_world_t;

/* Run one seed in one of the worlds. False: *failure (512 bytes) says what broke. */
bool stream_run(uint64_t seed, stream_world_t world, bool is_traced, char *failure,
                uint64_t *ret_steps);

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

/* stream_program.c */
void stream_places_make(stream_t *s);
/* Put the next record of the client's program, with a definition before it where it needs one. */
void stream_put_next(stream_t *s, stream_client_t *c, dt_frame_writer_t *w);
/* What the parts of a tensor on `from` give in place `index` of the mesh that they move to. */
uint64_t stream_moved(const stream_place_t *from, const uint64_t values[STREAM_VDEVS],
                      uint32_t index);

/* stream_exchange.c */
/* Run the move of a record whose output is there, without a value. False: it waits for others. */
bool stream_exchange_run(stream_t *s, int instance, uint64_t sequence, const stream_queued_t *what);
/* An engine is gone: those that were connected to it notice. */
void stream_exchange_break(stream_t *s, int instance, uint32_t vdevs);

/* stream_node.c */
void stream_node_order(stream_t *s, int node, const uint8_t *data, size_t size);
void stream_instance_wake(stream_t *s, int instance);
void stream_instance_message(stream_t *s, int instance, const uint8_t *data, size_t size);
void stream_instance_ended(stream_t *s, int instance, bool is_over);
void stream_instance_free(stream_t *s, int instance);
/* Its machine is restarted. `is_silent`: it was cut off from power, nobody's connection ends. */
void stream_node_restart(stream_t *s, int node, bool is_silent);
void stream_engine_lost(stream_t *s, int instance);

#endif
