/* The backends that are always there. Each returns its table, which lives as long as the process.
 */
#ifndef DT_DEVICE_BUILTIN_H
#define DT_DEVICE_BUILTIN_H
#include "device/backend.h"

/* `ref`: the host's CPU. Spec "" is one device for the whole host (how CPU code with threads runs);
 * "numa" is one for each NUMA node that has CPUs. Memory is the host's or the cgroup's limit,
 * whichever is less. The uuid is made from the node's seed and the NUMA node's number, not from
 * the machine id, which containers share or lack. */
const dt_backend_t *dt_backend_ref(void);

/* `sim`: devices that do not exist. Its spec and its faults are described in sim.h. */
const dt_backend_t *dt_backend_sim(void);

/* `nvml`: enumerates NVIDIA devices for the torch backend, whose library runs their operators; the
 * devices' backend is `torch`. Executes nothing. See nvml.h. */
const dt_backend_t *dt_backend_nvml(void);

#endif
