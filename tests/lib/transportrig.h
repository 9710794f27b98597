/* Several engines' transports in one process, without engines: the calling thread stands for all
 * their executors, the communication threads are real, arenas are mapped once more for each peer as
 * between processes. And a plain reference of what a redistribution must give. */
#ifndef DT_TESTS_LIB_TRANSPORTRIG_H
#define DT_TESTS_LIB_TRANSPORTRIG_H
#include <stdbool.h>
#include <stdint.h>

#include "transport/board.h"
#include "transport/transport.h"

#define DT_RIG_ENGINES_MAX  8u
#define DT_RIG_SESSIONS_MAX 2u
#define DT_RIG_VDEVS_MAX    16u

/* A redistribution, and the values that devices hold before it. */
typedef struct dt_rig_case {
    dt_meta_t meta;
    uint64_t vdevs[2][DT_RIG_VDEVS_MAX];
    dt_shard_mesh_t from_mesh, to_mesh;
    dt_layout_t from, to;
    uint64_t seed;
    bool is_exact; /* small whole numbers: any order of additions gives the same */
} dt_rig_case_t;

typedef struct dt_rig_move {
    dt_exchange_plan_t *plan;
    uint32_t vdev_count;
    uint32_t vdevs[DT_RIG_VDEVS_MAX];
    void *sources[DT_RIG_VDEVS_MAX];
    void *targets[DT_RIG_VDEVS_MAX];
    size_t target_bytes[DT_RIG_VDEVS_MAX];
    bool is_started, is_done;
    dt_status_t status;
    dt_error_t err;
    uint64_t cause_sequence;
    char cause[64];
} dt_rig_move_t;

typedef struct dt_rig_engine {
    dt_transport_t *transport;
    int wake, executor;
    dt_shm_arena_t *arenas[DT_RIG_SESSIONS_MAX];
    int arena_fds[DT_RIG_SESSIONS_MAX];
    dt_rig_move_t moves[DT_RIG_SESSIONS_MAX]; /* what each session moves now */
} dt_rig_engine_t;

typedef struct dt_rig {
    uint32_t engine_count, session_count;
    dt_rig_engine_t engines[DT_RIG_ENGINES_MAX];
    uint8_t host_of[DT_RIG_ENGINES_MAX];
    dt_board_t *boards[DT_RIG_SESSIONS_MAX][DT_RIG_ENGINES_MAX]; /* by session and host */
    uint8_t engine_of[DT_RIG_VDEVS_MAX];                         /* in all sessions */
    uint64_t number;
    bool is_in_heap;   /* buffers are not in the arena */
    bool has_tls;      /* between hosts */
    uint32_t cause_of; /* 1 + the engine whose input is poisoned in dt_rig_again(); 0: none is */
    void *groups[DT_RIG_ENGINES_MAX]; /* contexts of device/group.h; NULL: none */
} dt_rig_t;

/* `engine_of` (DT_RIG_VDEVS_MAX) says who runs a vdev. Any failure ends the process. */
void dt_rig_open(dt_rig_t *rig, uint32_t engine_count, uint32_t session_count,
                 const uint8_t *engine_of);
/* The same with engines on hosts: `host_of` (engine_count). Those of two hosts have a socket. */
typedef enum dt_rig_how { DT_RIG_PLAIN, DT_RIG_TLS } dt_rig_how_t;
void dt_rig_open_hosts(dt_rig_t *rig, uint32_t engine_count, uint32_t session_count,
                       const uint8_t *engine_of, const uint8_t *host_of, dt_rig_how_t how);
/* One host, and devices that form groups by `library`, which plays NCCL and CUDA, or NULL: an
 * engine without it is `without` (UINT32_MAX: none is). Buffers are of the heap. */
void dt_rig_open_groups(dt_rig_t *rig, uint32_t engine_count, const uint8_t *engine_of,
                        const char *library, uint32_t without);
/* Move what was moved once more, with the same plans, into targets that are cleared before; not on
 * engine `absent`. The engines go on when dt_rig_finish() is called. Returns on how many it goes by
 * a group. */
uint32_t dt_rig_again(dt_rig_t *rig, uint32_t session, uint32_t absent);
void dt_rig_close(dt_rig_t *rig);

/* A case: placements as words, "R", "S0", "Psum", one for each mesh dimension, parted by spaces. */
void dt_rig_case(dt_rig_case_t *ret_case, unsigned dtype, unsigned ndim, const int64_t *sizes,
                 unsigned mesh_ndim, const uint32_t *mesh_sizes, const char *from, const char *to,
                 uint64_t seed);
/* False: it is refused, `err` says why. */
bool dt_rig_is_legal(const dt_rig_case_t *c, dt_error_t *err);

/* Make one engine's buffers and start; `cause` NULL: sound. */
void dt_rig_start(dt_rig_t *rig, uint32_t engine, uint32_t session, const dt_rig_case_t *c,
                  uint64_t number, const char *cause);
/* Collect until all that was started is done. */
void dt_rig_finish(dt_rig_t *rig);
/* Free a session's buffers and plans. */
void dt_rig_drop(dt_rig_t *rig, uint32_t session);
/* Start on all engines, finish, compare with the reference, drop. False: `what` says what differs.
 */
bool dt_rig_check(dt_rig_t *rig, const dt_rig_case_t *c, char *what, size_t size);
/* Compare what the engines have in `session` now. */
bool dt_rig_compare(dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c, char *what,
                    size_t size);
/* A checksum over all targets, in the order of vdevs: equal for equal bits. */
uint64_t dt_rig_sum(const dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c);

#endif
