/* The node's sessions from inside:
 *   sessions.c         instances: opening, closing, engines shared and lost
 *   sessions_stream.c  the stream of one instance: dialing, what comes down
 *   sessions_up.c      what goes up: kept, numbered, sent, sent again
 *   sessions_data.c    data connections: tensor bytes past the controller
 *   sessions_peers.c   engines that move tensors between each other: their board, who reaches whom
 *   sessions_links.c   connections between engines of different nodes
 *   sessions_address.c where this node is reached
 *   chunk.c            chunks, read in place */
#ifndef DT_WORKERD_SESSIONS_INTERNAL_H
#define DT_WORKERD_SESSIONS_INTERNAL_H
#include <sys/socket.h>

#include "base/arena.h"
#include "base/list.h"
#include "base/look.h"
#include "chunk.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_channel.h"
#include "sessions.h"
#include "transport/board.h"
#include "wire/bulk.h"

#define DT_NODE_SESSION_KEY_BYTES 16u
#define DT_NODE_DOOR_BYTES        8u

/* An engine that serves sessions of one isolation key. */
typedef struct dt_node_host {
    dt_list_t link; /* in sessions.hosts */
    uint32_t engine;
    uint32_t device;
    char key[96]; /* what Isolation= makes of a session */
    uint32_t users;
    int64_t linger_ns; /* without users: when it is ended */
} dt_node_host_t;

/* One engine of an instance. */
typedef struct dt_node_member {
    dt_node_host_t *host; /* NULL: lost */
    uint32_t device;
    uint32_t board; /* which member of the board it is */
    bool is_opened; /* it was told */
    int arena_fd;
    int channel_fd;
    dt_channel_t *channel;
    dt_ring_reader_t up;
    uint32_t frames_reader; /* of the instance's rings */
    uint32_t bulk_reader;
    uint32_t vdev_count;
    uint32_t *vdevs; /* our copy; the channel may be written by the engine */
} dt_node_member_t;

/* A message on its way up. */
typedef struct dt_node_message {
    dt_list_t link; /* in instance.kept */
    uint64_t number;
    uint32_t size;
    uint8_t bytes[];
} dt_node_message_t;

/* One connection of an instance; it may end after a newer one was dialled. */
typedef struct dt_node_stream {
    dt_list_t link; /* in sessions.streams */
    dt_node_sessions_t *owner;
    struct dt_node_instance *instance; /* NULL: it only ends */
    dt_rpc_stream_t *rpc;
    bool is_heard; /* up_received came: what goes up may go */
} dt_node_stream_t;

typedef struct dt_node_instance {
    dt_list_t link; /* in sessions.instances */
    dt_node_sessions_t *owner;
    uint32_t number; /* ours, rising */
    uint64_t session;
    uint64_t epoch;
    uint8_t key[DT_NODE_SESSION_KEY_BYTES];
    char isolation[96];
    dt_node_member_t *members; /* (member_count) */
    uint32_t member_count;
    dt_board_t *board; /* NULL: its one engine is all there is */
    uint32_t host;     /* we, in the board */
    bool has_remotes;  /* engines of other nodes are members */
    uint8_t peer_token[DT_BULK_TOKEN_BYTES];
    int board_fd;
    int down_fd;
    int down_readonly_fd;
    void *down; /* DT_CHANNEL_DOWN_BYTES */
    dt_ring_writer_t frames;
    dt_ring_writer_t bulk;
    uint64_t received;        /* last sequence that came */
    dt_node_stream_t *stream; /* NULL: none */
    int64_t redial_ns;        /* when the next one is dialled; 0: not */
    uint32_t dials;           /* failed in a row */
    dt_list_t kept;
    uint64_t kept_bytes;
    uint64_t up_last;                   /* number of the last message */
    uint64_t up_sent;                   /* number of the last one given to this stream */
    uint8_t door[DT_NODE_DOOR_BYTES];   /* tells data connections whose they are */
    uint8_t token[DT_BULK_TOKEN_BYTES]; /* of the next one */
    struct dt_node_connection *data;    /* the newest; NULL: none */
    uint32_t window_last;               /* number of the newest connection */
    bool must_restart;                  /* dt_node_bulk_restart() had no room */
    bool has_relay;    /* the program has had a stream for bytes to the controller */
    bool has_withheld; /* bytes of values: nobody was there whom they could have reached */
    bool is_overdue;   /* that was so at the last look, with a connection: nobody has asked */
    dt_look_t look;    /* for answers, see dt_node_up_look() */
} dt_node_instance_t;

struct dt_node_sessions {
    dt_node_sessions_options_t options;
    dt_list_t instances;
    dt_list_t hosts;
    dt_list_t streams;
    uint32_t instance_count;
    uint32_t last_number;
    dt_timer_t *timer; /* redials, lingering engines */
    dt_arena_t arena;  /* of the message at hand */
    dt_node_sessions_stats_t stats;
    struct dt_node_data *data; /* where data connections come in; NULL: nowhere */
    struct dt_node_links *links;
    bool is_stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

/* sessions.c */
void dt_node_instance_end(dt_node_instance_t *instance, const char *why);
void dt_node_schedule(dt_node_sessions_t *sessions); /* arm the timer for what is due first */
dt_node_member_t *dt_node_member_of(dt_node_instance_t *instance, uint32_t vdev);
/* A reader of the frames' ring (else of the bulk ring) has a cursor that cannot be: its engine is
 * ended. */
void dt_node_member_misbehaves(dt_node_instance_t *instance, uint32_t reader, bool is_frames);

/* sessions_stream.c */
void dt_node_stream_dial(dt_node_instance_t *instance);
void dt_node_stream_leave(dt_node_instance_t *instance, const char *why); /* end its stream */

/* Put a chunk into the bulk ring. Errors: AGAIN (no room), others: nothing will come of it. */
dt_status_t dt_node_bulk_write(dt_node_instance_t *instance, const dt_node_chunk_t *chunk);

/* Answers to downloads may have been lost with the way they took: engines send again what was not
 * answered. */
void dt_node_bulk_restart(dt_node_instance_t *instance);

/* sessions_data.c */
dt_status_t dt_node_data_create(dt_node_sessions_t *sessions, dt_error_t *err);
void dt_node_data_free(dt_node_sessions_t *sessions);
uint32_t dt_node_data_count(const dt_node_sessions_t *sessions); /* connections */
/* Tell the program, through the controller, where its bytes may go; with a new token. */
void dt_node_door_tell(dt_node_instance_t *instance);
void dt_node_data_leave(dt_node_instance_t *instance, const char *why);
/* A chunk of an engine. True: it is the data connection's, or nobody's; not the controller's. */
bool dt_node_data_take(dt_node_instance_t *instance, const dt_node_chunk_t *chunk);
/* An engine has passed something: what waited for room goes on. */
void dt_node_data_resume(dt_node_instance_t *instance);
/* An engine was opened: it gets the window, if there is one. */
void dt_node_data_show(dt_node_instance_t *instance, dt_node_member_t *member);
void dt_node_data_no_window(dt_node_instance_t *instance, const char *why);

/* sessions_peers.c */
/* Make the board of an instance whose members are filled, if it has peers; else there is none. */
void dt_node_peers_create(dt_node_instance_t *instance, const Dtorch__V1__SessionOpen *open,
                          uint64_t limit_bytes);
/* An engine was opened: it gets what reaches the others. */
void dt_node_peers_show(dt_node_instance_t *instance, dt_node_member_t *member);
/* An engine is gone: those that wait for it do so no more. */
void dt_node_peers_lose(dt_node_instance_t *instance, dt_node_member_t *member);
/* Likewise all engines of another node; `why` it cannot be reached. */
void dt_node_peers_lose_node(dt_node_instance_t *instance, const char *node, const char *why);
void dt_node_peers_free(dt_node_instance_t *instance);

/* sessions_links.c */
dt_status_t dt_node_links_create(dt_node_sessions_t *sessions, dt_error_t *err);
void dt_node_links_free(dt_node_sessions_t *sessions);
/* Tell the other nodes, through the controller, where we are reached. */
void dt_node_links_tell(dt_node_instance_t *instance);
/* Another node has told where it is reached, or that it is not. */
void dt_node_links_door(dt_node_instance_t *instance, const Dtorch__V1__PeerDoor *door);
/* An engine was opened: it gets the connections that wait for it. */
void dt_node_links_show(dt_node_instance_t *instance, dt_node_member_t *member);
void dt_node_links_leave(dt_node_instance_t *instance); /* it ends */
/* A socket as if it was accepted; and one that was dialled for the first member. Take `fd`. */
void dt_node_links_take_for_test(dt_node_sessions_t *sessions, int fd);
void dt_node_links_ask_for_test(dt_node_instance_t *instance, uint32_t theirs, int fd);
uint32_t dt_node_links_ready_for_test(const dt_node_sessions_t *sessions); /* for an engine */

/* sessions_address.c */
typedef enum dt_node_reach {
    DT_NODE_REACH_LOOPBACK, /* this host only */
    DT_NODE_REACH_ANY,      /* every interface */
    DT_NODE_REACH_ONE,
} dt_node_reach_t;
dt_node_reach_t dt_node_address_reach(const struct sockaddr_storage *address);
/* Read a number and a port; a name is none. */
bool dt_node_address_read(const char *text, struct sockaddr_storage *ret_address,
                          socklen_t *ret_size);
/* The address of ours that packets to the controller leave from. False: not known now. */
bool dt_node_address_own(const dt_node_sessions_t *sessions, struct sockaddr_storage *ret_address,
                         socklen_t *ret_size);
void dt_node_address_set_port(struct sockaddr_storage *address, int port);

/* sessions_up.c */
/* Take a message over. False: no memory; the session is then ended by the caller. */
bool dt_node_up_keep(dt_node_instance_t *instance, const uint8_t *bytes, size_t size);
bool dt_node_up_pack(dt_node_instance_t *instance, const Dtorch__V1__WorkerSessionUp *up);
/* The controller has taken messages up to `number`; on a new stream what is behind it is sent. */
void dt_node_up_received(dt_node_instance_t *instance, uint64_t number);
/* Move what the engines wrote, as far as there is room. */
void dt_node_up_pump(dt_node_instance_t *instance);
/* Frames came for engines that had nothing to do: look for their answers for a moment, where that
 * has paid lately, instead of being woken for them. Blocking: up to DT_NODE_LOOK_NS. */
void dt_node_up_look(dt_node_instance_t *instance);
/* All that an engine that is gone has written, whatever the room. */
void dt_node_up_drain(dt_node_instance_t *instance, dt_node_member_t *member);
void dt_node_up_free(dt_node_instance_t *instance);

#endif
