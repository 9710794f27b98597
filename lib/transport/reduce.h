/* The arithmetic of collectives: parts combined in the order of their index, whatever the
 * transport, so that all devices have the same bits.
 *
 * sum: ((p0 + p1) + p2) + ..., floats of 16 bits in float32 and rounded once; integers wrap; of
 * bools it is "or". max, min: NaN wins; not for complex numbers. avg is a sum and a scale. Float8
 * has no arithmetic.
 * The identity of a float sum is -0.0: with +0.0 a held -0.0 would come back +0.0.
 * Threads: any. Blocking: never. */
#ifndef DT_TRANSPORT_REDUCE_H
#define DT_TRANSPORT_REDUCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is done to elements on their way. */
typedef struct dt_reduce {
    uint8_t dtype;
    uint8_t reduction;            /* dt_reduction_t: SUM, MAX or MIN */
    bool is_streamed;             /* results will not be read soon: past the caches */
    int64_t scale_num, scale_den; /* of the result; 1 and 1: none. Floats and complex only */
} dt_reduce_t;

/* Whether elements of `dtype` can be combined so; avg: as a sum, of what can be divided. */
bool dt_reduce_is_defined(unsigned dtype, unsigned reduction);

/* Combine `count` elements of each part, and write the result to each target.
 * Shapes: parts (part_count, at least 1), targets (target_count), each (count) elements, aligned
 * for the dtype. Targets overlap neither parts nor each other. Writes that are streamed are ordered
 * by dt_reduce_fence(). */
void dt_reduce_run(const dt_reduce_t *reduce, const void *const *parts, uint32_t part_count,
                   void *const *targets, uint32_t target_count, size_t count);
/* Fill with what does not change a result. */
void dt_reduce_fill(const dt_reduce_t *reduce, void *target, size_t count);
/* Copy bytes, past the caches if `is_streamed`. */
void dt_reduce_copy(void *target, const void *source, size_t size, bool is_streamed);
/* What was streamed is seen before what is written from now on. */
void dt_reduce_fence(void);

#endif
