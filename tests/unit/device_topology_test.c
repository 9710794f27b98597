#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/topology.h"
#include "lib/temptree.h"

TestSuite(topology, .timeout = 60);

/* Two sockets. On socket 0 a switch (below root port 01.0) leads to devices 03 and 04; device 05
 * hangs on a root port of its own; socket 1 has device 81. */
static void make_machine(dt_temptree_t *tree)
{
    static const struct {
        const char *address, *path, *numa;
    } devices[] = {
        {"0000:03:00.0",
         "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0\n"},
        {"0000:04:00.0",
         "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0\n"},
        {"0000:05:00.0", "../../../devices/pci0000:00/0000:00:02.0/0000:05:00.0", "0\n"},
        {"0000:81:00.0", "../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0", "1\n"},
        {"0000:82:00.0", "../../../devices/pci0000:80/0000:80:02.0/0000:82:00.0", "-1\n"},
    };
    char path[512];
    dt_temptree_init(tree);
    dt_temptree_write(tree, "sys/devices/system/node/online", "0-1\n");
    dt_temptree_write(tree, "sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    dt_temptree_write(tree, "sys/devices/system/node/node1/cpulist", "\n");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        (void)snprintf(path, sizeof path, "sys/%s/numa_node",
                       devices[i].path + strlen("../../../"));
        dt_temptree_write(tree, path, devices[i].numa);
        (void)snprintf(path, sizeof path, "sys/bus/pci/devices/%s", devices[i].address);
        dt_temptree_link(tree, path, devices[i].path);
    }
}

Test(topology, counts_numa_nodes_and_their_cpus)
{
    dt_temptree_t tree;
    dt_topology_nodes_t nodes;
    make_machine(&tree);
    dt_topology_nodes(tree.root, &nodes);
    cr_assert_eq(nodes.count, 2);
    cr_assert(nodes.number[0] == 0 && nodes.cpu_count[0] == 8);
    cr_assert(nodes.number[1] == 1 && nodes.cpu_count[1] == 0);
    dt_topology_nodes("/nowhere", &nodes);
    cr_assert_eq(nodes.count, 0);
    dt_temptree_fini(&tree);
}

Test(topology, writes_pci_addresses_as_the_kernel_does)
{
    static const char *const wrong[] = {
        "", "3b:00", "0000:3b:00.8", "0000:3b:20.0", "0000:3b:00.0 ", "0000:3bb:00.0", "x"};
    char text[32] = "before";
    cr_assert_eq(dt_topology_pci_normal("00000000:3B:00.0", text, sizeof text), DT_OK);
    cr_assert_str_eq(text, "0000:3b:00.0");
    cr_assert_eq(dt_topology_pci_normal("3b:1f.7", text, sizeof text), DT_OK);
    cr_assert_str_eq(text, "0000:3b:1f.7");
    cr_assert_eq(dt_topology_pci_normal("00010000:01:00.0", text, sizeof text), DT_OK);
    cr_assert_str_eq(text, "10000:01:00.0");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(dt_topology_pci_normal(wrong[i], text, sizeof text), DT_ERR_INVALID, "%s",
                     wrong[i]);
    cr_assert_str_eq(text, "10000:01:00.0");
}

Test(topology, knows_the_numa_node_of_a_pci_device)
{
    dt_temptree_t tree;
    make_machine(&tree);
    cr_assert_eq(dt_topology_pci_numa(tree.root, "0000:81:00.0"), 1);
    cr_assert_eq(dt_topology_pci_numa(tree.root, "0000:82:00.0"), -1, "two nodes: unknown");
    cr_assert_eq(dt_topology_pci_numa(tree.root, "0000:99:00.0"), -1);
    dt_temptree_write(&tree, "sys/devices/system/node/online", "0\n");
    cr_assert_eq(dt_topology_pci_numa(tree.root, "0000:82:00.0"), 0, "one node: there");
    dt_temptree_fini(&tree);
}

static dt_link_kind_t link_of(const dt_temptree_t *tree, const char *a, int a_node, const char *b,
                              int b_node)
{
    dt_device_info_t x = {.numa_node = a_node}, y = {.numa_node = b_node};
    (void)snprintf(x.pci_address, sizeof x.pci_address, "%s", a);
    (void)snprintf(y.pci_address, sizeof y.pci_address, "%s", b);
    return dt_topology_link(tree->root, &x, &y);
}

Test(topology, tells_switch_numa_node_and_system_apart)
{
    dt_temptree_t tree;
    make_machine(&tree);
    cr_assert_eq(link_of(&tree, "0000:03:00.0", 0, "0000:04:00.0", 0), DT_LINK_PCI_SWITCH);
    cr_assert_eq(link_of(&tree, "0000:03:00.0", 0, "0000:05:00.0", 0), DT_LINK_NUMA,
                 "only the host bridge is shared");
    cr_assert_eq(link_of(&tree, "0000:03:00.0", 0, "0000:81:00.0", 1), DT_LINK_SYSTEM);
    cr_assert_eq(link_of(&tree, "", 0, "0000:03:00.0", 0), DT_LINK_NUMA, "a CPU");
    cr_assert_eq(link_of(&tree, "", -1, "", -1), DT_LINK_SYSTEM, "unknown is not near");
    cr_assert_eq(link_of(&tree, "0000:77:00.0", 0, "0000:03:00.0", 1), DT_LINK_SYSTEM);
    dt_temptree_fini(&tree);
}
