/* Groups: devices that move tensors among themselves by a library of their maker's, which reads and
 * writes device memory (lib/backend/nccl). What moves, who takes part and when is not decided here:
 * lib/transport does that, and lib/device/backend.h has no word of it.
 *
 * A group is one communicator: its members have ranks, and all of them make the same calls in the
 * same order. It has a generation, a number that rises in a session: what ends badly is left, and
 * its successor among those that live has another id and a higher generation.
 *
 *   join() -> JOINING -poll-> IDLE -run()-> RUNNING -poll-> IDLE ... leave()
 *                \______________ a failure ________________/-> BROKEN -> leave()
 *
 * Nothing here waits: join() and run() begin, poll() tells AGAIN until it is done. Nothing here
 * notices a peer that died, either: who knows that leaves, which ends what runs on the device, so
 * the buffers are free again.
 *
 * Threads: all calls of a context and its groups come from one thread, its device's executor. */
#ifndef DT_DEVICE_GROUP_H
#define DT_DEVICE_GROUP_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/dtype.h"

#define DT_GROUP_ID_BYTES 128u
#define DT_GROUP_RANK_MAX 4096u

typedef struct dt_group_id {
    uint8_t bytes[DT_GROUP_ID_BYTES];
} dt_group_id_t;

typedef struct dt_group_options {
    int32_t device;      /* the runtime's number of the device, as this process sees it */
    const char *library; /* to open in place of the usual ones; "" or NULL: the usual ones */
    const char *runtime;
} dt_group_options_t;

typedef struct dt_group_place {
    uint64_t generation; /* for people and for order; above that of what it succeeds */
    uint32_t rank, count;
} dt_group_place_t;

typedef enum dt_group_op_kind {
    DT_GROUP_SEND,           /* source -> rank `peer` */
    DT_GROUP_RECV,           /* rank `peer` -> target */
    DT_GROUP_BROADCAST,      /* rank `peer`'s source -> everybody's target */
    DT_GROUP_ALL_REDUCE,     /* all sources combined -> everybody's target */
    DT_GROUP_ALL_GATHER,     /* sources, one behind the other by rank -> everybody's target */
    DT_GROUP_REDUCE_SCATTER, /* all sources combined; the part of our rank -> target */
    DT_GROUP_OP_KIND_COUNT,
} dt_group_op_kind_t;

typedef enum dt_group_reduction {
    DT_GROUP_SUM,
    DT_GROUP_MAX,
    DT_GROUP_MIN,
    DT_GROUP_AVG,
} dt_group_reduction_t;

/* One operation of a piece of work. */
typedef struct dt_group_op {
    uint8_t kind;      /* dt_group_op_kind_t */
    uint8_t dtype;     /* dt_dtype_t; what only moves may have any */
    uint8_t reduction; /* dt_group_reduction_t */
    uint32_t peer;     /* SEND, RECV: not our own rank */
    uint64_t count;    /* elements: of the smaller of source and target */
    const void *source;
    void *target;
} dt_group_op_t;

/* A box within our device: `rows` runs of `row_bytes`. */
typedef struct dt_group_copy {
    const void *source;
    void *target;
    uint64_t rows, row_bytes;
    uint64_t source_pitch, target_pitch; /* bytes from one run to the next */
} dt_group_copy_t;

/* What runs in one go, in this order. The operations go together: none waits for another, so
 * everybody may send to everybody. */
typedef struct dt_group_work {
    const dt_group_copy_t *before;
    const dt_group_op_t *ops;
    const dt_group_copy_t *after;
    uint32_t before_count, op_count, after_count;
} dt_group_work_t;

typedef struct dt_group_table {
    const char *name;

    /* Ownership: borrows options; gives *ret_ctx, ended by close() after all its groups are left.
     * Errors: NOT_FOUND (no library, or one that lacks a call), DEVICE, NOMEM. */
    dt_status_t (*open)(const dt_group_options_t *options, void **ret_ctx, dt_error_t *err);
    void (*close)(void *ctx); /* NULL is fine */

    /* Make the id of one group; its members get it from whoever made it. Errors: PEER (no network
     * to be reached by), DEVICE. Blocking: some ms. */
    dt_status_t (*id_make)(void *ctx, dt_group_id_t *ret_id, dt_error_t *err);
    /* Begin to join. Ownership: gives *ret_group, ended by leave(). Errors: INVALID, DEVICE, PEER,
     * NOMEM. */
    dt_status_t (*join)(void *ctx, const dt_group_id_t *id, const dt_group_place_t *place,
                        void **ret_group, dt_error_t *err);
    /* OK: idle; AGAIN (no text): it joins or runs. Others break the group: PEER (another member
     * failed or cannot be reached), DEVICE, INVALID, INTERNAL. */
    dt_status_t (*poll)(void *group, dt_error_t *err);
    /* Begin a piece of work; the group is idle. Ownership: keeps `work` and what it points to until
     * poll() says that it is over or the group is left. Errors: INVALID (an operation that the
     * library has not; nothing has begun and the group stays idle), else as poll(). */
    dt_status_t (*run)(void *group, const dt_group_work_t *work, dt_error_t *err);
    /* Leave in any state, without the others: what runs on our device ends, with whatever values.
     * Who leaves while another member's move still runs may break that: a member whose work is over
     * says so by other ways and leaves when all have. NULL is fine. */
    void (*leave)(void *group);

    /* Memory of the device. Errors: LIMIT, DEVICE. */
    dt_status_t (*alloc)(void *ctx, uint64_t size, void **ret_block, dt_error_t *err);
    void (*release)(void *ctx, void *block); /* NULL is fine */
} dt_group_table_t;

#endif
