/* This node's devices as the agent sees them: lib/device's monitor thread, its snapshots taken on
 * the state thread, and what is wrong with a backend said once when it comes and once when it ends.
 */
#ifndef DT_WORKERD_DEVICES_H
#define DT_WORKERD_DEVICES_H
#include <stdbool.h>

#include "conf/conf.h"
#include "device/device.h"
#include "device/loader.h"
#include "engine_setup.h"
#include "identity.h"
#include "rpc/rpc.h"

typedef struct dt_devices dt_devices_t;

/* Fill what lib/device needs from the configuration. `list` and `dirs` hold the pointers.
 * Ownership: everything is borrowed from `conf` and `identity` (NULL: none, for checks). */
typedef struct dt_devices_selection {
    dt_device_options_t options;
    const char *devices[DT_DEVICE_MAX];
    const char *dirs[DT_INVENTORY_BACKEND_MAX]; /* Backends=, else `home` */
    char home[DT_LOADER_PATH_MAX];
} dt_devices_selection_t;
void dt_devices_select(const dt_conf_t *conf, const dt_identity_t *identity,
                       dt_devices_selection_t *ret_selection);

/* Open the backends and start to watch them. `changed` runs on the state thread when
 * dt_devices_message() gives something else.
 * Ownership: keeps `rpc`; gives *ret_devices, free with dt_devices_free().
 * Errors: INVALID (Devices= or SimTopology=), NOMEM, AGAIN. Blocking: reads files. */
DT_MUST_USE dt_status_t dt_devices_create(dt_rpc_t *rpc, const dt_conf_t *conf,
                                          const dt_identity_t *identity, void (*changed)(void *arg),
                                          void *arg, dt_devices_t **ret_devices, dt_error_t *err);

/* The newest inventory, engines left out; NULL until the devices were asked the first time.
 * Ownership: borrowed until `changed` runs. */
dt_inventory_message_t *dt_devices_message(dt_devices_t *devices);

/* Tell what an engine for `device` has to load; -1: for the device that `preferred` names, else the
 * first one that is good, torch's before others. False: the devices were not asked yet, or there is
 * no such one. A node without devices gives -1 in ret_setup->device; before the devices were asked,
 * it is DT_ENGINE_DEVICE_LATER where they are expected to be LibTorch's.
 * Ownership: borrows `conf` and `identity`. */
bool dt_devices_engine_setup(const dt_devices_t *devices, const dt_conf_t *conf,
                             const dt_identity_t *identity, int32_t device, int32_t preferred,
                             dt_engine_setup_t *ret_setup);

/* For metrics and `diag`. */
const dt_inventory_snapshot_t *dt_devices_snapshot(const dt_devices_t *devices);
/* How long the present refresh has run, ns; 0: none runs. */
int64_t dt_devices_busy_ns(const dt_devices_t *devices);

void dt_devices_free(dt_devices_t *devices); /* NULL is fine. Blocking: milliseconds */

#endif
