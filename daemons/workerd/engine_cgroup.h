/* A cgroup for each engine, below the agent's own, where the service manager delegated it.
 * The agent moves itself to `agent`, so that the kernel's rule (no processes beside groups with
 * controllers) holds and the OOM killer's choice of an engine is not the agent. An engine joins by
 * writing to cgroup.procs itself: clone3 may be refused by the unit's hardening.
 * Where nothing is delegated engines stay in the agent's cgroup, and the reason is a text. */
#ifndef DT_WORKERD_ENGINE_CGROUP_H
#define DT_WORKERD_ENGINE_CGROUP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct dt_engine_cgroup {
    char path[4096]; /* of the delegated cgroup; "" if there is none */
} dt_engine_cgroup_t;

/* Find the own cgroup, make it ready and remove what a crash left in it.
 * Ownership: fills *ret_cgroup.
 * Errors: NOT_FOUND (not delegated here, the text says why); *ret_cgroup then holds none, which all
 * other functions take. Threads: at start. Blocking: files of the kernel only. */
DT_MUST_USE dt_status_t dt_engine_cgroup_open(dt_engine_cgroup_t *ret_cgroup, dt_error_t *err);

/* Make the cgroup of engine `id`. Gives its path in `path`, "-" when there is no delegated one.
 * Errors: DENIED, LIMIT, INTERNAL. */
DT_MUST_USE dt_status_t dt_engine_cgroup_make(const dt_engine_cgroup_t *cgroup, uint32_t id,
                                              char *path, size_t size, dt_error_t *err);

/* Whether the kernel killed in this engine's cgroup for want of memory. */
bool dt_engine_cgroup_had_oom(const dt_engine_cgroup_t *cgroup, uint32_t id);

/* Remove the cgroup of an engine that was reaped. */
void dt_engine_cgroup_remove(const dt_engine_cgroup_t *cgroup, uint32_t id);

#endif
