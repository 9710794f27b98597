/* Redistribution: how a tensor gets from one layout to another, on one mesh or between two.
 *
 * Every pair of layouts has a plan: meshes alike or not, sharing devices or not, shards uneven or
 * empty. Two forms of one plan:
 *   dt_shard_plan_choose   what the controller sends: a few steps (collective, mesh dimensions), or
 *                          one EXCHANGE; symbolic, so it does not grow with the devices
 *   dt_shard_list          what an engine makes of a step: the transfers of one device, by a rule
 *                          that sender and receiver evaluate alike
 * Any step can be run from its list: a step leads from one layout to the next
 * (dt_shard_plan_layout()), and the list of that pair moves no byte twice. Reductions combine the
 * parts in part order on the owner of a piece, so every list gives bit-equal results.
 *
 * A list has two waves. Wave 0 reads the source's OLD shard; then each new shard is scaled
 * (scale_num / scale_den); wave 1 reads the source's NEW shard. Old and new need separate storage
 * until all sends are done. Before wave 0 a Partial target is filled with the identity (`identity`;
 * -0.0 for float sums), unless `everyone_holds`.
 *
 * Threads: any. Blocking: never. Allocation: lists, into the caller's arena; choose takes and
 * returns 100 KiB of heap (it is called once for a pair). */
#ifndef DT_SHARD_REDISTRIBUTE_H
#define DT_SHARD_REDISTRIBUTE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "shard/layout.h"
#include "wire/record.h"

#define DT_SHARD_STEP_MAX 16u

/* The numbers are the wire's (kind of a step of DEF_PLAN). */
typedef enum dt_shard_step_kind {
    DT_SHARD_STEP_SLICE = 1,          /* R->S: nothing moves */
    DT_SHARD_STEP_FILL = 2,           /* R->P, S->P, P(sum)<->P(avg): nothing moves */
    DT_SHARD_STEP_ALL_REDUCE = 3,     /* P->R */
    DT_SHARD_STEP_REDUCE_SCATTER = 4, /* P->S */
    DT_SHARD_STEP_ALL_GATHER = 5,     /* S->R */
    DT_SHARD_STEP_ALL_TO_ALL = 6,     /* S->S */
    DT_SHARD_STEP_BROADCAST = 7,      /* all of it, from any holder, to devices of another mesh */
    DT_SHARD_STEP_EXCHANGE = 8,       /* point to point, all mesh dimensions at once */
    DT_SHARD_STEP_KIND_COUNT = 9,
} dt_shard_step_kind_t;

/* "all-gather"; "unknown step". */
const char *dt_shard_step_name(unsigned kind);

typedef struct dt_shard_step {
    uint8_t kind;      /* dt_shard_step_kind_t */
    uint8_t mesh_dims; /* bit j: mesh dimension j; a group is devices that differ in these only.
                          0: BROADCAST, EXCHANGE: straight to the target */
    dt_placement_t from, to; /* of each of those mesh dimensions */
    int64_t recv_bytes;      /* most that one device receives */
    double cost_us;          /* by the topology's model */
} dt_shard_step_t;

typedef struct dt_shard_plan {
    uint32_t step_count; /* 0: the layouts are equal */
    dt_shard_step_t steps[DT_SHARD_STEP_MAX];
    double cost_us;
    int64_t recv_bytes; /* of all steps */
} dt_shard_plan_t;

typedef enum dt_shard_link {
    DT_SHARD_LINK_SELF,
    DT_SHARD_LINK_HOST,
    DT_SHARD_LINK_RACK,
    DT_SHARD_LINK_FAR,
    DT_SHARD_LINK_COUNT,
} dt_shard_link_t;

/* Where devices are. Whoever lists the transfers of one plan must use the same one. */
typedef struct dt_shard_topology {
    uint32_t vdev_count;
    const uint32_t *hosts;                   /* (vdev_count) by vdev; NULL: all on one */
    const uint32_t *racks;                   /* (vdev_count) by vdev; NULL: all in one */
    double latency_us[DT_SHARD_LINK_COUNT];  /* once a step */
    double message_us[DT_SHARD_LINK_COUNT];  /* each message */
    double us_per_byte[DT_SHARD_LINK_COUNT]; /* one device's share of the link */
    int64_t split_bytes;                     /* no piece of a box becomes smaller than this */
    int64_t direct_bytes;                    /* up to here a reduction goes to all at once */
} dt_shard_topology_t;
/* One host, and costs of the shared-memory and TCP transports. */
extern const dt_shard_topology_t dt_shard_topology_default;
/* Over what bytes go from vdev a to vdev b; vdevs that the topology does not know are on one host.
 */
dt_shard_link_t dt_shard_link_between(const dt_shard_topology_t *t, uint64_t a, uint64_t b);

/* A tensor and two layouts of it. */
typedef struct dt_shard_pair {
    const dt_meta_t *meta;                      /* global: dtype, sizes */
    const dt_shard_mesh_t *from_mesh, *to_mesh; /* with vdevs */
    const dt_layout_t *from, *to;               /* ids of meshes are not looked at */
} dt_shard_pair_t;

/* Choose the steps that take the least time on the busiest device.
 * Units: `work` is how much may be done, some 0.1 us each; what is left is written back. With none
 * left the answer is one exchange. NULL: as much as is done at most, DT_SHARD_WORK_MAX. Up to 256
 * devices are looked at; the largest part of a larger mesh is that of the busiest of them.
 * Errors: INVALID (dt_layout_check() of either layout), NOMEM. Cost: a few us, at most that work,
 * and a look through the mesh if meshes differ. `topology` NULL: the default. */
#define DT_SHARD_WORK_MAX UINT64_C(8192)
DT_MUST_USE dt_status_t dt_shard_plan_choose(const dt_shard_pair_t *pair,
                                             const dt_shard_topology_t *topology, uint64_t *work,
                                             dt_shard_plan_t *ret_plan, dt_error_t *err);
/* The layout after the first `steps` steps of a plan: 0 gives `from`, all give `to`. `steps` and
 * `from` and `to` as given to choose (or decoded). Only plans on one mesh have layouts between. */
dt_layout_t dt_shard_plan_layout(const dt_layout_t *from, const dt_layout_t *to,
                                 const dt_shard_step_t *steps, uint32_t step_count, uint32_t done);

/* Steps of a DEF_PLAN: kind u8, mesh dims varint, from placement, to placement, queue u8 (0).
 * `at` has room for step_count * DT_SHARD_STEP_BYTES + 10; returns the end. Decoding fails the
 * cursor (E_BODY, E_LIMIT) on what is no step; *ret_count at most DT_SHARD_STEP_MAX. */
#define DT_SHARD_STEP_BYTES 48u
uint8_t *dt_shard_steps_put(uint8_t *at, const dt_shard_step_t *steps, uint32_t step_count);
void dt_shard_steps_get(dt_cursor_t *cursor, dt_shard_step_t *ret_steps, uint32_t *ret_count);

/* ---- one device's part ---- */

/* A dense box that goes from one device to another. Sender and receiver list the same transfers of
 * their pair in the same order; a message is the box in row-major order. */
typedef struct dt_shard_transfer {
    uint64_t from_vdev, to_vdev; /* equal: a local copy or a local contribution */
    uint32_t part; /* is_reduce: which contribution; the receiver combines 0, 1, 2... in order */
    uint8_t wave;  /* 0, 1 */
    bool
        is_reduce; /* combine with `combine`; part 0 (the first that comes for the box) is copied */
    int64_t sizes[DT_META_DIM_MAX]; /* (ndim) elements of the box */
    int64_t
        from_at[DT_META_DIM_MAX]; /* its corner in the local tensor read: old shard, wave 1: new */
    int64_t to_at[DT_META_DIM_MAX]; /* its corner in the new shard */
} dt_shard_transfer_t;

typedef struct dt_shard_list {
    uint32_t ndim;
    uint32_t count;
    const dt_shard_transfer_t *transfers; /* (count) in the order to run: by wave, then part */
    uint8_t combine;                      /* dt_reduction_t of is_reduce: SUM, MAX or MIN */
    uint8_t identity;             /* what a Partial target is filled with: SUM, MAX or MIN */
    bool fills;                   /* the target is Partial, and is filled first */
    bool everyone_holds;          /* Partial(max|min) of whole copies: no identity anywhere */
    int64_t scale_num, scale_den; /* each new shard times num / den, after wave 0 */
    int64_t moved_bytes;          /* of the listed transfers, local ones not counted */
} dt_shard_list_t;

#define DT_SHARD_ALL UINT64_MAX /* everybody's transfers (tests, explain-plan) */

/* List what `vdev` sends, receives, copies and combines if the pair is done in one exchange; or
 * everything, with DT_SHARD_ALL. `topology` NULL: the default.
 * Ownership: the list lives in `arena`. Errors: INVALID (a layout), NOMEM (the arena's cap). Cost:
 * the transfers listed, times the replicas of a box. */
DT_MUST_USE dt_status_t dt_shard_list(const dt_shard_pair_t *pair,
                                      const dt_shard_topology_t *topology, uint64_t vdev,
                                      dt_arena_t *arena, dt_shard_list_t *ret_list,
                                      dt_error_t *err);

#endif
