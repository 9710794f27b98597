/* NUMA and PCI from sysfs. */
#include "device/topology.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/sysfile.h"

static void count_one(int32_t number, void *arg)
{
    (void)number;
    ++*(int32_t *)arg;
}

static void add_node(int32_t number, void *arg)
{
    dt_topology_nodes_t *nodes = arg;
    if (nodes->count < DT_TOPOLOGY_NODE_MAX)
        nodes->number[nodes->count++] = number;
}

void dt_topology_nodes(const char *root, dt_topology_nodes_t *ret_nodes)
{
    char text[4096], path[64];
    memset(ret_nodes, 0, sizeof *ret_nodes);
    if (dt_sysfile_read(root, "/sys/devices/system/node/online", text, sizeof text) != DT_OK)
        return;
    dt_sysfile_list(text, add_node, ret_nodes);
    for (int32_t i = 0; i < ret_nodes->count; i++) {
        (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist",
                       ret_nodes->number[i]);
        if (dt_sysfile_read(root, path, text, sizeof text) == DT_OK)
            dt_sysfile_list(text, count_one, &ret_nodes->cpu_count[i]);
    }
}

/* Take a hexadecimal number of at most max_digits up to `stop`; NULL if there is none. */
static const char *take_hex(const char *at, int max_digits, char stop, unsigned *ret_value)
{
    int digits = 0;
    *ret_value = 0;
    for (; isxdigit((unsigned char)*at) && digits < max_digits; at++, digits++) {
        int c = tolower((unsigned char)*at);
        *ret_value = *ret_value * 16 + (unsigned)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    if (digits == 0 || *at != stop)
        return NULL;
    return stop ? at + 1 : at;
}

dt_status_t dt_topology_pci_normal(const char *text, char *ret_address, size_t size)
{
    unsigned domain = 0, bus, slot, function;
    const char *first = strchr(text, ':'), *at = text;
    if (first && strchr(first + 1, ':'))
        at = take_hex(at, 8, ':', &domain);
    if (!at || !(at = take_hex(at, 2, ':', &bus)) || !(at = take_hex(at, 2, '.', &slot)) ||
        !take_hex(at, 1, '\0', &function) || slot > 0x1f || function > 7)
        return DT_ERR_INVALID;
    (void)snprintf(ret_address, size, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return DT_OK;
}

int32_t dt_topology_pci_numa(const char *root, const char *address)
{
    char path[96];
    int64_t node;
    dt_topology_nodes_t nodes;
    (void)snprintf(path, sizeof path, "/sys/bus/pci/devices/%.31s/numa_node", address);
    if (dt_sysfile_read_int(root, path, &node) != DT_OK)
        return -1;
    if (node >= 0 && node < INT16_MAX)
        return (int32_t)node;
    dt_topology_nodes(root, &nodes);
    return nodes.count == 1 ? nodes.number[0] : -1;
}

/* The device's place in the PCI tree, "pci0000:00/0000:00:01.0/0000:01:00.0", or false. */
static bool pci_path(const char *root, const char *address, char *ret_path, size_t size)
{
    char link[DT_SYSFILE_PATH_MAX], target[DT_SYSFILE_PATH_MAX];
    ssize_t len;
    const char *at;
    if ((size_t)snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, address) >=
        sizeof link)
        return false;
    len = readlink(link, target, sizeof target - 1);
    if (len <= 0 || (size_t)len >= sizeof target - 1)
        return false;
    target[len] = '\0';
    at = strstr(target, "/pci");
    return at && (size_t)snprintf(ret_path, size, "%s", at + 1) < size;
}

bool dt_topology_pci_is_switched(const char *root, const char *a, const char *b)
{
    char path_a[DT_SYSFILE_PATH_MAX], path_b[DT_SYSFILE_PATH_MAX];
    size_t at = 0;
    int shared = 0;
    if (!*a || !*b || strcmp(a, b) == 0 || !pci_path(root, a, path_a, sizeof path_a) ||
        !pci_path(root, b, path_b, sizeof path_b))
        return false;
    for (;;) {
        size_t len = strcspn(path_a + at, "/");
        if (len != strcspn(path_b + at, "/") || memcmp(path_a + at, path_b + at, len) != 0)
            break;
        if (path_a[at + len] != '/' || path_b[at + len] != '/')
            break; /* one is an ancestor of the other: no switch between */
        shared++;
        at += len + 1;
    }
    return shared >= 2; /* the host bridge and at least one bridge below it */
}

dt_link_kind_t dt_topology_link(const char *root, const dt_device_info_t *a,
                                const dt_device_info_t *b)
{
    if (dt_topology_pci_is_switched(root, a->pci_address, b->pci_address))
        return DT_LINK_PCI_SWITCH;
    if (a->numa_node >= 0 && a->numa_node == b->numa_node)
        return DT_LINK_NUMA;
    return DT_LINK_SYSTEM;
}
