/* How busy each device is: the time that its engines spent in operators of late. A
 * CPU has no counter of its own, and a GPU's own tells of everybody's work on it.
 * Threads: loop only. Blocking: never. */
#ifndef DT_WORKERD_LOAD_H
#define DT_WORKERD_LOAD_H
#include "device/device.h"
#include "engines.h"

#define DT_LOAD_PERIOD_NS INT64_C(500000000) /* looks nearer than this are one */

typedef struct dt_load {
    int64_t at_ns;                  /* of the last look; 0: none yet */
    uint64_t before[DT_DEVICE_MAX]; /* what engines had computed then, ns, by device index */
} dt_load_t;

/* Take a look, if the last one is a period ago. Gives whether `percents` was filled: one for each
 * device of `devices`, in its order. */
bool dt_load_look(dt_load_t *load, const dt_engines_t *engines,
                  const dt_inventory_snapshot_t *devices, int64_t now_ns,
                  uint8_t percents[DT_DEVICE_MAX]);

#endif
