/* Which code runs operators on a device, for the engine. A device's `backend` is a name: `ref` and
 * `sim` are built in; every other name, `torch` too, is dtorch-backend-NAME.so in a directory of
 * Backends=, whoever enumerated the device (NVML finds NVIDIA's, LibTorch runs them). */
#ifndef DT_DEVICE_EXECUTE_H
#define DT_DEVICE_EXECUTE_H
#include <stddef.h>

#include "base/status.h"
#include "device/loader.h"

/* Open a context of the backend that executes for devices of backend `name`; then
 * run->table.device_open(run->ctx, …) opens a device. A shared object is opened RTLD_LOCAL and
 * passes the loader's checks (ABI, size, name, all entries of execution or none).
 * Ownership: borrows all; *ret_run needs no initialisation and, whatever is returned, may be given
 * to dt_loader_close(). `options` as for enumerating (spec "" but for sim, root, seed).
 * Errors: NOT_FOUND (no such file in `dirs`, or no such hardware), INVALID (refused, or a backend
 * that enumerates only), DENIED, what open returns.
 * Threads: any one at a time. Blocking: reads files; LibTorch takes 0.2 s. */
DT_MUST_USE dt_status_t dt_device_execute_open(const char *name, const char *const *dirs,
                                               size_t dir_count,
                                               const dt_backend_options_t *options,
                                               dt_loader_run_t *ret_run, dt_error_t *err);

#endif
