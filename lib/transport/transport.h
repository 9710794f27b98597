/* Moving tensors between the devices of a session: what a redistribution does, between the vdevs of
 * one engine, between engines of one host and between hosts.
 *
 *   executor:  dt_exchange_plan_create() once a plan, dt_transport_start() each time
 *        |         the executor goes on meanwhile, see core/moves.h
 *        v
 *   communication thread: one an engine. It never waits for one exchange: each is a state machine,
 *        |         and it goes on with whichever can go on, so that sessions whose exchanges meet
 * on |         shared engines in another order cannot lock each other out
 *        v
 *   dt_transport_collect() on the executor calls `done`
 *
 * What is moved is told by two layouts (lib/shard lists who sends which box to whom). Each region
 * of a target is made of its parts in the order of their part index, ((x0 + x1) + x2) + ...,
 * wherever they lie, so results have the same bits on one engine, on several and between hosts.
 *
 * Phases of an exchange, the same for all of its engines ("members"): PUBLISHED (my buffers, or the
 * cause that poisons them), wave 0 (regions out of sources), wave 1 (regions out of targets that
 * others have made), DONE. A member that fails says so and stays in the exchange until all that
 * live have come to its end, so all end alike: every member has the value, or every member has the
 * first cause. Nobody waits for a member that is lost.
 *
 * Not here: who is a member and how one reaches it (board.h), the arithmetic (reduce.h), what is
 * planned (lib/shard). */
#ifndef DT_TRANSPORT_TRANSPORT_H
#define DT_TRANSPORT_TRANSPORT_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/group.h"
#include "shard/redistribute.h"
#include "shm/arena.h"
#include "shm/engine_page.h"

#define DT_TRANSPORT_CAUSE_MAX 8192u /* bytes of a cause */

typedef struct dt_transport dt_transport_t;
typedef struct dt_exchange_plan dt_exchange_plan_t;

/* Prepare what turns `pair->from` into `pair->to`, to be used any number of times in one session.
 * Shapes: of pair->meta only the sizes and the dtype count: local tensors are row-major here.
 * Ownership: borrows all (`name` is for errors); gives *ret_plan, free with
 * dt_exchange_plan_free(), not while an exchange of it runs. Errors: INVALID (no layout of that
 * tensor, or a reduction that the dtype has not), NOMEM. Threads: any. Blocking: never. */
DT_MUST_USE dt_status_t dt_exchange_plan_create(const char *name, const dt_shard_pair_t *pair,
                                                dt_exchange_plan_t **ret_plan, dt_error_t *err);
void dt_exchange_plan_free(dt_exchange_plan_t *plan); /* NULL is fine */
/* Whether the next exchange of the plan takes memory of the devices, which move it as a group:
 * alike on all members. Threads: the executor's. */
bool dt_exchange_plan_is_grouped(const dt_exchange_plan_t *plan);

/* One vdev of this engine that is on either mesh. Both shards are row-major without gaps (the local
 * sizes of lib/shard); source and target of all buffers are apart. In the session's arena nothing
 * is copied more than once; elsewhere it goes through the arena. */
typedef struct dt_exchange_buffer {
    uint32_t vdev;
    const void *source; /* NULL: not on `from`'s mesh, or an empty shard */
    void *target;       /* NULL: not on `to`'s mesh, or an empty shard */
} dt_exchange_buffer_t;

/* Why a tensor has no value: packed by the executor, not looked into. */
typedef struct dt_exchange_cause {
    uint64_t sequence; /* the smallest one wins */
    uint32_t size;     /* 0: there is none; at most DT_TRANSPORT_CAUSE_MAX, else it is cut off */
    const uint8_t *bytes;
} dt_exchange_cause_t;

/* How an exchange ended: OK; or with a cause, which some member brought; or without one, then `err`
 * says which peer failed (LOST, PEER) or what is wrong here. What is borrowed ends with the call.
 */
typedef struct dt_exchange_result {
    dt_status_t status;
    dt_exchange_cause_t cause; /* size 0: none */
    dt_error_t err;
} dt_exchange_result_t;

typedef struct dt_exchange {
    dt_exchange_plan_t *plan; /* kept until done */
    uint64_t number; /* rising in a session, the same on all members: the record's sequence. Below
                        2^60 */
    const dt_exchange_buffer_t *buffers; /* (buffer_count) each vdev of ours on either mesh */
    uint32_t buffer_count;
    bool is_grouped; /* buffers are memory of our device; as dt_exchange_plan_is_grouped() says. It
                        goes on in dt_transport_collect() only */
    /* What is not to be moved: an input of ours is poisoned, or there was no memory for a target.
     * Start all the same: the others wait for us. */
    dt_exchange_cause_t cause;
    /* Called by dt_transport_collect(), or within dt_transport_start() when it says so. */
    void (*done)(void *arg, const dt_exchange_result_t *result);
    void *arg;
} dt_exchange_t;

typedef struct dt_transport_options {
    int wake; /* kept; eventfd on which our thread sleeps and that peers write; -1: one is made */
    int executor; /* kept; eventfd, written when there is something to collect; -1: none */
    _Atomic uint64_t *moved; /* (DT_ENGINE_MOVED_COUNT) kept; bytes that came from one vdev to
                                another are added; NULL: nobody counts */
    const dt_group_table_t *groups; /* kept; of our device; NULL: it can be in no group */
    void *group_ctx;                /* kept, open until dt_transport_free() */
} dt_transport_options_t;

/* Ownership: gives *ret_transport, free with dt_transport_free(). The thread is started with the
 * first exchange that needs it. Errors: NOMEM, LIMIT. Threads: the executor's, as all that follows.
 */
DT_MUST_USE dt_status_t dt_transport_create(const dt_transport_options_t *options,
                                            dt_transport_t **ret_transport, dt_error_t *err);
void dt_transport_free(dt_transport_t *transport); /* closes what is open; NULL is fine */

/* A session is served here by these vdevs; alone, until dt_transport_board() says who else. `arena`
 * holds its tensors and is kept until dt_transport_close(); NULL: the heap (tests).
 * Ownership: borrows `vdevs`. Errors: EXISTS, NOMEM. */
DT_MUST_USE dt_status_t dt_transport_open(dt_transport_t *transport, uint32_t instance,
                                          dt_shm_arena_t *arena, const uint32_t *vdevs,
                                          uint32_t vdev_count, dt_error_t *err);
/* Leave: `done` of what runs is not called, its buffers are not touched any more when this returns.
 * Unknown is fine. Blocking: until the piece that is being moved is, a few ms. */
void dt_transport_close(dt_transport_t *transport, uint32_t instance);

/* Say who else serves the session: its board, and which member of it we are. Before the first
 * exchange. Ownership: borrows `board_fd`. Errors: NOT_FOUND (no such session), INVALID (no board,
 * or one that does not have us), EXISTS, NOMEM. */
DT_MUST_USE dt_status_t dt_transport_board(dt_transport_t *transport, uint32_t instance,
                                           int board_fd, uint32_t self, dt_error_t *err);
/* How to reach another member on this host: the memory of its tensors, and what wakes it. Exchanges
 * with it wait for that. Ownership: borrows `arena_fd`, takes `wake_fd` on success only.
 * Errors: NOT_FOUND (session, member), EXISTS, as dt_memfd_map(). */
DT_MUST_USE dt_status_t dt_transport_peer(dt_transport_t *transport, uint32_t instance,
                                          uint32_t member, int arena_fd, int wake_fd,
                                          dt_error_t *err);

/* What the two ends of a link know, and nobody else. */
typedef struct dt_link_secret {
    const uint8_t *key; /* (32) borrowed for the call */
    bool is_server;     /* one of the two is */
} dt_link_secret_t;

/* How to reach a member on another host: a stream socket that is connected to it (link.h). With a
 * secret TLS begins on it; NULL: the text is plain.
 * Ownership: takes `fd` on success only. Errors: NOT_FOUND, EXISTS, NOMEM, INTERNAL (TLS). */
DT_MUST_USE dt_status_t dt_transport_link(dt_transport_t *transport, uint32_t instance,
                                          uint32_t member, int fd, const dt_link_secret_t *secret,
                                          dt_error_t *err);

/* Begin an exchange. One at a time in a session. True: `done` was called already (all of it was
 * ours, or it cannot be). Ownership: borrows `exchange`, keeps what it says is kept. Blocking:
 * where all vdevs are ours, for the move itself. */
bool dt_transport_start(dt_transport_t *transport, uint32_t instance,
                        const dt_exchange_t *exchange);
/* Take part in no exchange of the session any more: those that wait for us end with LOST and `why`.
 * Not while one runs. Unknown is fine. Ownership: borrows `why`. Blocking: never. */
void dt_transport_quit(dt_transport_t *transport, uint32_t instance, const char *why);
/* Call `done` of what has ended. Returns whether anything had. Cost: a load if nothing has. */
bool dt_transport_collect(dt_transport_t *transport);

#endif
