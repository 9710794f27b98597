/* What /proc and the cgroup tell of this host. Functions cannot fail: what cannot be read is 0 or a
 * general word. Blocking: they read files under `root` (see sysfile.h). */
#ifndef DT_DEVICE_HOST_H
#define DT_DEVICE_HOST_H
#include <stddef.h>
#include <stdint.h>

/* Memory that this process may use: MemTotal, or the smallest memory.max on the way from its cgroup
 * (version 2) to the root. `used` is MemTotal less MemAvailable, at most total. */
void dt_host_memory(const char *root, uint64_t *ret_total, uint64_t *ret_used);

/* Memory of one NUMA node. */
void dt_host_node_memory(const char *root, int32_t node, uint64_t *ret_total, uint64_t *ret_used);

/* The processor's name, such as "Intel(R) Xeon(R) Processor", else the architecture's. */
void dt_host_cpu_name(const char *root, char *ret_name, size_t size);

/* Processors that this process may be scheduled on. */
uint32_t dt_host_cpu_count(void);

#endif
