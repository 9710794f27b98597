/* What sysfs tells about how near things are: NUMA nodes, their CPUs, and the PCI tree.
 * Nothing is cached; all functions read files under `root` (see sysfile.h) and may block for that.
 * Two devices are behind one PCI switch when their sysfs paths share a bridge below the host
 * bridge: two end points below one root port need a switch between (what nvidia-smi calls PIX and
 * PXB). */
#ifndef DT_DEVICE_TOPOLOGY_H
#define DT_DEVICE_TOPOLOGY_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/backend.h"

#define DT_TOPOLOGY_NODE_MAX 64

typedef struct dt_topology_nodes {
    int32_t count;                           /* 0 where sysfs has no NUMA directory */
    int32_t number[DT_TOPOLOGY_NODE_MAX];    /* as the kernel numbers them, rising */
    int32_t cpu_count[DT_TOPOLOGY_NODE_MAX]; /* 0: memory only */
} dt_topology_nodes_t;

/* List the NUMA nodes that are online. Cannot fail: what cannot be read is not there. */
void dt_topology_nodes(const char *root, dt_topology_nodes_t *ret_nodes);

/* Write a PCI address as the kernel does ("0000:3b:00.0"): lower case, domain in at least 4 digits.
 * Accepts "00000000:3B:00.0" and "3b:00.0". Errors: INVALID; *ret_address is then untouched. */
DT_MUST_USE dt_status_t dt_topology_pci_normal(const char *text, char *ret_address, size_t size);

/* The NUMA node of a PCI device, -1 if unknown. A machine with one node has all devices on it,
 * whatever its firmware says. */
int32_t dt_topology_pci_numa(const char *root, const char *address);

/* True if a PCI bridge below the host bridge leads to both. */
bool dt_topology_pci_is_switched(const char *root, const char *a, const char *b);

/* How near two devices are by PCI and NUMA: PCI_SWITCH, NUMA or SYSTEM. */
dt_link_kind_t dt_topology_link(const char *root, const dt_device_info_t *a,
                                const dt_device_info_t *b);

#endif
