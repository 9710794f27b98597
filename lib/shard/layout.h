/* Layouts: which elements of a tensor a device of its mesh holds.
 *
 * A layout (dt_layout_t of wire/record.h) has a placement for each dimension of its mesh. The mesh
 * dimensions are walked from left to right; each Shard(d) cuts what is left of tensor dimension d
 * again, as torch.chunk does: pieces of ceil(n / k), the last ones shorter or empty. So 5 elements
 * over 2x2 are 2,1|1,1 and over 4 they are 2,2,1,0. Two additions:
 *   unit=u    borders are multiples of u (heads are not torn): ceil(ceil(n / u) / k) * u a piece
 *   groups=g  the dimension is g runs of n / g each, and every run is cut alike (the q, k and v of
 * a fused weight): a device holds g intervals, which lie side by side in its local tensor Where
 * several mesh dimensions cut one tensor dimension they must agree on `groups`, and an inner `unit`
 * must divide the outer one; groups must divide the dimension.
 * And one that no program asks for, of what travels in a ring (rules_attend.c):
 *   order     the device at coordinate c has another piece than c, see DT_ORDER_FOLDED; only where
 *             no other mesh dimension cuts the tensor dimension, without unit and groups; folded
 *             ones must divide into 2 k halves, two intervals a device, in rising order
 *   window    what a slice leaves: rows first.. of a dimension of `of`, each where that one's rows
 *             are, so some devices may have none; only where no other mesh dimension cuts the
 *             tensor dimension. Programs see a plain Shard.
 *
 * Partial: each device holds a tensor of whole size, and the reduction of all gives the value. sum
 * and avg may mix (they commute), max and min only with themselves.
 *
 * Never allocates, no state. The same bytes in give the same answer in a program, the controller
 * and an engine. Threads: any. Blocking: never. */
#ifndef DT_SHARD_LAYOUT_H
#define DT_SHARD_LAYOUT_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/meta.h"
#include "wire/record.h"

/* A mesh: sizes, and which device stands where. */
typedef struct dt_shard_mesh {
    uint8_t ndim;                           /* 1..DT_RECORD_MESH_DIM_MAX; 0: a device alone */
    uint32_t count;                         /* product of sizes, 1..DT_RECORD_VDEV_MAX */
    uint32_t sizes[DT_RECORD_MESH_DIM_MAX]; /* (ndim) */
    const uint64_t *vdevs; /* (count) row-major, distinct; NULL where only the shape counts */
} dt_shard_mesh_t;

/* One dimension of a box: `groups` intervals [lo + i * stride, lo + i * stride + length). */
typedef struct dt_shard_span {
    int64_t lo, length;     /* elements; length 0: empty */
    int64_t groups, stride; /* 1 and the dimension's size without groups */
} dt_shard_span_t;

/* What a device holds, in global coordinates. */
typedef struct dt_shard_box {
    uint8_t ndim;
    dt_shard_span_t spans[DT_META_DIM_MAX]; /* (ndim) */
} dt_shard_box_t;

/* Whether interval i of one span can meet interval i of the other and no other one: both repeat
 * together, and each interval lies in its own part of the dimension (folded ones do not). */
static inline bool dt_shard_spans_alike(const dt_shard_span_t *a, const dt_shard_span_t *b)
{
    return a->groups == b->groups && a->stride == b->stride && a->lo + a->length <= a->stride &&
           b->lo + b->length <= b->stride;
}

/* Make a mesh. `vdevs` may be NULL.
 * Ownership: keeps `vdevs` as long as the mesh is used. Errors: INVALID (0 or too many dimensions,
 * a size of 0), LIMIT (too many devices). That vdevs are distinct is not looked at here. */
DT_MUST_USE dt_status_t dt_shard_mesh_init(dt_shard_mesh_t *ret_mesh, unsigned ndim,
                                           const uint32_t *sizes, const uint64_t *vdevs,
                                           dt_error_t *err);
/* The mesh of one device, without dimensions (layouts on it have no placements); `vdev` must live
 * as long. This is what mesh 0 means. */
dt_shard_mesh_t dt_shard_mesh_single(const uint64_t *vdev);
/* Coordinates of a place 0..count - 1 in the mesh. */
void dt_shard_mesh_coords(const dt_shard_mesh_t *mesh, uint32_t index, uint32_t *ret_coords);
/* Where a device stands; -1: it does not. Cost: O(count). */
int64_t dt_shard_mesh_find(const dt_shard_mesh_t *mesh, uint64_t vdev);
/* The same devices in the same shape? Ids of meshes do not count. */
bool dt_shard_mesh_equal(const dt_shard_mesh_t *a, const dt_shard_mesh_t *b);

/* Placements. */
dt_placement_t dt_placement_replicate(void);
dt_placement_t dt_placement_shard(unsigned dim); /* unit and groups 1 */
dt_placement_t dt_placement_partial(unsigned reduction);
/* `size` rows from `first` on of a dimension of `of` that is cut in `parts`: a plain Shard where
 * that has the same borders. False: the numbers are too large for a placement. */
bool dt_placement_window(unsigned dim, int64_t size, int64_t of, int64_t first, uint32_t parts,
                         dt_placement_t *ret_placement);
bool dt_placement_is_window(dt_placement_t p);
bool dt_placement_equal(dt_placement_t a, dt_placement_t b); /* looks at what counts for the kind */
/* All Replicate, on mesh `mesh` of `ndim` dimensions. */
dt_layout_t dt_layout_replicate(uint32_t mesh, unsigned ndim);
/* The same mesh id and placements. */
bool dt_layout_equal(const dt_layout_t *a, const dt_layout_t *b);
/* True if every device holds the whole value. */
bool dt_layout_is_replicate(const dt_layout_t *layout);
/* Write "[Shard(0), Partial(sum)]", as people write placements; cut to `size`, which is not 0. */
void dt_layout_print(const dt_layout_t *layout, char *text, size_t size);

/* Whether a tensor can lie so.
 * Errors: INVALID: another number of placements than mesh dimensions, a dimension that the tensor
 * has not, a unit or groups of 0 or that do not fit, a max or min beside another reduction, Partial
 * of bool, avg of integers, max or min of complex numbers. The text names placement and shape. */
DT_MUST_USE dt_status_t dt_layout_check(const dt_layout_t *layout, const dt_shard_mesh_t *mesh,
                                        const dt_meta_t *meta, dt_error_t *err);

/* The box of place `index`. Layout and sizes must have passed dt_layout_check(). Returns whether
 * there is an element in it. */
bool dt_shard_box(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, unsigned ndim,
                  const int64_t *sizes, uint32_t index, dt_shard_box_t *ret_box);
/* Local size of a span: length * groups. */
static inline int64_t dt_shard_span_size(const dt_shard_span_t *span)
{
    return span->length * span->groups;
}
/* Where the element at global position `at` lies in the local dimension; -1: elsewhere. */
int64_t dt_shard_span_local(const dt_shard_span_t *span, int64_t at);
/* Local sizes of place `index`, as dt_shard_box(). Returns whether there is an element. */
bool dt_shard_sizes(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, unsigned ndim,
                    const int64_t *sizes, uint32_t index, int64_t *ret_sizes);
/* Metadata of the local tensor: local sizes, dense, its dimensions lying in the order that the
 * global strides tell (channels-last stays so); dimensions of stride 0 and more than one element
 * (expanded) keep stride 0. A global tensor that is dense gives the strides that the engine's
 * tensors have; for other views only the sizes mean something. */
void dt_shard_local_meta(const dt_meta_t *global, const dt_layout_t *layout,
                         const dt_shard_mesh_t *mesh, uint32_t index, dt_meta_t *ret_local);
/* Who keeps the value when a whole tensor becomes Partial: the device whose coordinates on all
 * Partial dimensions are 0. Others take the identity; with avg the keeper's value is multiplied by
 * the number of devices on these dimensions (dt_layout_avg_count()). For max and min everybody
 * keeps the value. */
bool dt_shard_keeps_value(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, uint32_t index);
uint32_t dt_layout_avg_count(const dt_layout_t *layout, const dt_shard_mesh_t *mesh);

#endif
