#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/host.h"
#include "device/loader.h"
#include "lib/temptree.h"

TestSuite(ref, .timeout = 60);

static void make_host(dt_temptree_t *tree)
{
    dt_temptree_init(tree);
    dt_temptree_write(tree, "proc/cpuinfo", "processor\t: 0\nmodel\t\t: 1\nmodel name\t: Chip 9\n");
    dt_temptree_write(tree, "proc/meminfo",
                      "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n");
    dt_temptree_write(tree, "sys/devices/system/node/online", "0-2\n");
    for (int i = 0; i < 3; i++) {
        char path[64], text[128];
        (void)snprintf(path, sizeof path, "sys/devices/system/node/node%d/cpulist", i);
        dt_temptree_write(tree, path, i == 1 ? "\n" : "0-3\n");
        (void)snprintf(path, sizeof path, "sys/devices/system/node/node%d/meminfo", i);
        (void)snprintf(text, sizeof text, "Node %d MemTotal: %d kB\nNode %d MemUsed: 5 kB\n", i,
                       1000 * (i + 1), i);
        dt_temptree_write(tree, path, text);
    }
}

static dt_loader_run_t *list(const char *root, const char *spec)
{
    dt_backend_options_t options = {sizeof options, spec, root, "seed", "", ""};
    dt_loader_run_t *run = malloc(sizeof *run);
    dt_error_t err = {0};
    cr_assert_eq(dt_loader_open(dt_backend_ref(), NULL, &options, run, &err), DT_OK, "%s",
                 err.text);
    cr_assert_eq(dt_loader_update(run, &err), DT_OK, "%s", err.text);
    return run;
}

static void end(dt_loader_run_t *run)
{
    dt_loader_close(run);
    free(run);
}

Test(ref, is_one_device_with_the_hosts_name_and_memory)
{
    dt_temptree_t tree;
    dt_loader_run_t *run;
    make_host(&tree);
    run = list(tree.root, "");
    cr_assert_eq(run->count, 1);
    cr_assert_str_eq(run->devices[0].name, "Chip 9");
    cr_assert_str_eq(run->devices[0].kind, "cpu");
    cr_assert_eq(run->devices[0].memory_bytes, UINT64_C(16) << 30);
    cr_assert_eq(run->devices[0].memory_used_bytes, UINT64_C(4) << 30);
    cr_assert_eq(run->devices[0].numa_node, -1, "it spans three nodes");
    cr_assert_eq(run->devices[0].health, DT_DEVICE_OK);
    dt_temptree_write(&tree, "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n");
    cr_assert_eq(dt_loader_update(run, NULL), DT_OK);
    cr_assert_eq(run->devices[0].memory_used_bytes, 0);
    end(run);
    dt_temptree_fini(&tree);
}

Test(ref, has_one_device_a_numa_node_with_cpus_when_asked)
{
    dt_temptree_t tree;
    dt_loader_run_t *run;
    make_host(&tree);
    run = list(tree.root, "numa");
    cr_assert_eq(run->count, 2, "node 1 has memory only");
    cr_assert_eq(run->devices[1].numa_node, 2);
    cr_assert_eq(run->devices[1].memory_bytes, 3000 * 1024);
    cr_assert_eq(run->devices[1].memory_used_bytes, 5 * 1024);
    cr_assert_str_neq(run->devices[0].uuid, run->devices[1].uuid);
    end(run);
    dt_temptree_fini(&tree);
}

Test(ref, keeps_its_uuid_over_restarts)
{
    dt_loader_run_t *first = list("", ""), *second = list("", "");
    cr_assert_str_eq(first->devices[0].uuid, second->devices[0].uuid);
    cr_assert(first->devices[0].memory_bytes > 0, "this machine has memory");
    cr_assert(*first->devices[0].name);
    end(first);
    end(second);
}

Test(ref, obeys_the_smallest_cgroup_limit_on_the_way_up)
{
    dt_temptree_t tree;
    uint64_t total, used;
    make_host(&tree);
    dt_temptree_write(&tree, "proc/self/cgroup", "0::/a/b\n");
    dt_temptree_write(&tree, "sys/fs/cgroup/a/b/memory.max", "max\n");
    dt_host_memory(tree.root, &total, &used);
    cr_assert_eq(total, UINT64_C(16) << 30);
    dt_temptree_write(&tree, "sys/fs/cgroup/a/memory.max", "1073741824\n");
    dt_host_memory(tree.root, &total, &used);
    cr_assert_eq(total, UINT64_C(1) << 30);
    cr_assert_eq(used, total, "no more can be in use than there is");
    dt_temptree_fini(&tree);
}

Test(ref, does_without_proc_and_refuses_a_spec_it_does_not_know)
{
    dt_backend_options_t options = {sizeof options, "socket", "/nowhere", "seed", "", ""};
    dt_loader_run_t *run = list("/nowhere", ""), other;
    dt_error_t err;
    cr_assert_eq(run->count, 1);
    cr_assert(strstr(run->devices[0].name, "processor"));
    cr_assert_eq(dt_loader_open(dt_backend_ref(), NULL, &options, &other, &err), DT_ERR_INVALID);
    cr_assert(strstr(err.text, "ref:socket"), "%s", err.text);
    dt_loader_close(&other);
    end(run);
}
