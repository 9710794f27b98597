/* What the monitor and the tests see of the inventory beyond device.h. */
#ifndef DT_DEVICE_INVENTORY_INTERNAL_H
#define DT_DEVICE_INVENTORY_INTERNAL_H
#include "device/device.h"

/* Make the present and each later refresh return without waiting for children. Threads: any. */
void dt_inventory_cancel(dt_inventory_t *inventory);

/* What a change from `a` to `b` is worth. */
dt_inventory_change_t dt_inventory_compare(const dt_inventory_snapshot_t *a,
                                           const dt_inventory_snapshot_t *b);

#endif
