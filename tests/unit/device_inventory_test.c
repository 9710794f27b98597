#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/inventory_internal.h"
#include "lib/deviceprobe.h"
#include "lib/temptree.h"
#include "wire/wire.h"

TestSuite(inventory, .timeout = 60);

static dt_inventory_t *open_with(dt_device_options_t *options, const char *const *devices,
                                 size_t count)
{
    dt_inventory_t *inventory = NULL;
    dt_error_t err = {0};
    options->devices = devices;
    options->device_count = count;
    cr_assert_eq(dt_inventory_open(options, &inventory, &err), DT_OK, "%s", err.text);
    return inventory;
}

static dt_inventory_snapshot_t *refresh(dt_inventory_t *inventory, dt_inventory_change_t *change)
{
    dt_inventory_snapshot_t *snapshot = NULL;
    dt_error_t err = {0};
    cr_assert_eq(dt_inventory_refresh(inventory, &snapshot, change, &err), DT_OK, "%s", err.text);
    return snapshot;
}

/* The numbers of a snapshot's devices, "0 1 3". */
static const char *numbers(const dt_inventory_snapshot_t *snapshot)
{
    static char text[512];
    size_t used = 0;
    *text = '\0';
    for (int32_t i = 0; i < snapshot->device_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "",
                                 snapshot->devices[i].index);
    return text;
}

/* Refresh, compare the numbers and the change with what is expected, and free. */
static void expect(dt_inventory_t *inventory, const char *want, dt_inventory_change_t want_change)
{
    dt_inventory_change_t change;
    dt_inventory_snapshot_t *snapshot = refresh(inventory, &change);
    cr_assert_str_eq(numbers(snapshot), want);
    cr_assert_eq(change, want_change, "change %d, not %d", change, want_change);
    dt_inventory_snapshot_free(snapshot);
}

Test(inventory, understands_devices_and_says_what_it_does_not_understand)
{
    static const struct {
        const char *items[2];
        const char *says;
    } wrong[] = {
        {{"cuda"}, "Devices=cuda: no such backend; there are ref, sim, torch"},
        {{"all", "ref"}, "\"all\" stands alone"},
        {{"ref", "none"}, "\"none\" stands alone"},
        {{"ref", "ref"}, "ref is there twice"},
        {{"ref:0"}, "must be in 1..64"},
        {{"ref:x"}, "ref:x"},
        {{":3"}, "no such backend"},
        {{"sim:8,nvlnk=2"}, "\"nvlnk=2\" at byte 2"},
    };
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory = NULL;
    dt_error_t err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.devices = wrong[i].items;
        options.device_count = wrong[i].items[1] ? 2 : 1;
        cr_assert_eq(dt_inventory_open(&options, &inventory, &err), DT_ERR_INVALID, "%s",
                     wrong[i].items[0]);
        cr_assert(strstr(err.text, wrong[i].says), "%s", err.text);
    }
    cr_assert_null(inventory);
}

Test(inventory, orders_devices_by_backend_and_numbers_them_from_0)
{
    const char *const devices[] = {"sim:3,nvlink=3", "ref"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    options.sim_topology = "memory=1GiB";
    inventory = open_with(&options, devices, 2);
    snapshot = refresh(inventory, &change);
    cr_assert_eq(change, DT_INVENTORY_CHANGED);
    cr_assert_eq(snapshot->generation, 1);
    cr_assert_str_eq(numbers(snapshot), "0 1 2 3");
    cr_assert_str_eq(snapshot->devices[0].backend, "sim");
    cr_assert_str_eq(snapshot->devices[3].backend, "ref");
    cr_assert_eq(snapshot->devices[0].info.memory_bytes, UINT64_C(1) << 30);
    cr_assert_eq(snapshot->devices[1].info.link_count, 3);
    cr_assert_eq(snapshot->devices[1].info.links[0].peer, 0);
    cr_assert_eq(snapshot->devices[1].info.links[0].kind, DT_LINK_NVLINK);
    cr_assert_eq(snapshot->devices[1].info.links[2].peer, 3);
    cr_assert_leq(snapshot->devices[1].info.links[2].kind, DT_LINK_NUMA);
    cr_assert(snapshot->memory_bytes > 0 && snapshot->cpu_count > 0 && *snapshot->kernel);
    cr_assert_eq(snapshot->problem_count, 0);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
}

Test(inventory, keeps_numbers_while_a_device_is_absent_and_over_a_restart)
{
    const char *const devices[] = {"sim:4"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    dt_temptree_t tree;
    dt_temptree_init(&tree);
    options.state_dir = tree.root;
    options.sim_faults = dt_temptree_path(&tree, "faults");
    inventory = open_with(&options, devices, 1);
    expect(inventory, "0 1 2 3", DT_INVENTORY_CHANGED);
    expect(inventory, "0 1 2 3", DT_INVENTORY_SAME);
    dt_temptree_write(&tree, "faults", "1 gone\n");
    expect(inventory, "0 2 3", DT_INVENTORY_CHANGED);
    dt_inventory_free(inventory);
    inventory = open_with(&options, devices, 1);
    expect(inventory, "0 2 3", DT_INVENTORY_CHANGED);
    dt_temptree_remove(&tree, "faults");
    expect(inventory, "0 1 2 3", DT_INVENTORY_CHANGED);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

Test(inventory, tells_changes_from_drift)
{
    const char *const devices[] = {"sim:2"};
    static const struct {
        const char *faults;
        dt_inventory_change_t change;
    } steps[] = {
        {"0 used 1GiB\n", DT_INVENTORY_DRIFTED},
        {"0 used 1GiB\n", DT_INVENTORY_SAME},
        {"0 used 1GiB\n1 busy 7\n", DT_INVENTORY_DRIFTED},
        {"0 failed\n", DT_INVENTORY_CHANGED},
        {"0 failed again\n", DT_INVENTORY_CHANGED},
        {"1 throttle 8\n", DT_INVENTORY_CHANGED},
        {"", DT_INVENTORY_CHANGED},
        {"0 breaks\n", DT_INVENTORY_CHANGED},
        {"0 breaks\n", DT_INVENTORY_SAME},
    };
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    dt_temptree_t tree;
    dt_temptree_init(&tree);
    options.sim_faults = dt_temptree_path(&tree, "faults");
    inventory = open_with(&options, devices, 1);
    expect(inventory, "0 1", DT_INVENTORY_CHANGED);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        dt_temptree_write(&tree, "faults", steps[i].faults);
        snapshot = refresh(inventory, &change);
        cr_assert_eq(change, steps[i].change, "step %zu: %d", i, change);
        dt_inventory_snapshot_free(snapshot);
    }
    snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, 0, "of a backend in error nothing is known");
    cr_assert_eq(snapshot->problem_count, 1);
    cr_assert_str_eq(snapshot->problems[0].backend, "sim");
    cr_assert(strstr(snapshot->problems[0].error.text, "faults:1: unknown fault"));
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

/* Backends= with the playing backend, and the spec that makes it misbehave. */
static dt_inventory_t *open_play(dt_temptree_t *tree, const char *spec)
{
    static const char *dirs[1];
    static char item[64];
    static const char *const devices[] = {"ref", item};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    char target[512], *real;
    (void)snprintf(target, sizeof target, "%s/backend_play.so", so_dir());
    real = realpath(target, NULL);
    cr_assert(real, "%s is not built", target);
    dt_temptree_init(tree);
    dt_temptree_link(tree, "dtorch-backend-play.so", real);
    free(real);
    (void)snprintf(item, sizeof item, "play:%s", spec);
    dirs[0] = tree->root;
    options.backend_dirs = dirs;
    options.backend_dir_count = 1;
    return open_with(&options, devices, 2);
}

Test(inventory, shows_a_backend_that_crashes_as_a_problem_and_keeps_the_others)
{
    dt_temptree_t tree;
    dt_inventory_t *inventory = open_play(&tree, "abort");
    dt_inventory_change_t change;
    dt_inventory_snapshot_t *snapshot = refresh(inventory, &change);
    cr_assert_str_eq(numbers(snapshot), "0");
    cr_assert_eq(snapshot->problem_count, 1);
    cr_assert_str_eq(snapshot->problems[0].backend, "play");
    cr_assert_eq(snapshot->problems[0].error.code, DT_ERR_PEER);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

Test(inventory, cleans_what_a_backend_says_and_leaves_twins_out)
{
    dt_temptree_t tree;
    dt_inventory_t *inventory = open_play(&tree, "dirty");
    dt_inventory_change_t change;
    dt_inventory_snapshot_t *snapshot = refresh(inventory, &change);
    dt_inventory_message_t *message = malloc(sizeof *message);
    const dt_device_info_t *second = &snapshot->devices[2].info;
    dt_error_t err = {0};
    cr_assert_eq(snapshot->device_count, 3);
    cr_assert_eq(strlen(snapshot->devices[1].info.name), sizeof second->name - 1);
    cr_assert_str_eq(second->name, "a?[31m?");
    cr_assert(second->health == DT_DEVICE_UNKNOWN && second->utilization_percent == 100);
    cr_assert_eq(second->link_count, 2, "to the two others, and none to nowhere");
    cr_assert_leq(second->links[1].kind, DT_LINK_NUMA);
    dt_inventory_message_fill(message, snapshot);
    cr_assert_eq(dt_wire_validate(&message->inventory.base, &err), DT_OK, "%s", err.text);
    free(message);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
    inventory = open_play(&tree, "twins");
    snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, 2);
    cr_assert_eq(snapshot->problem_count, 1);
    cr_assert(strstr(snapshot->problems[0].error.text, "play: device 1 has no kind, or no uuid"));
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

Test(inventory, takes_only_the_first_devices_when_a_number_is_given)
{
    dt_temptree_t tree;
    dt_inventory_t *inventory = open_play(&tree, "1");
    expect(inventory, "0 1", DT_INVENTORY_CHANGED);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

Test(inventory, orders_nvidia_devices_by_bus_and_maps_their_links)
{
    const char *const devices[] = {"torch"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    char library[512];
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    (void)snprintf(library, sizeof library, "%s/fake_nvml.so", so_dir());
    options.nvml_path = library;
    inventory = open_with(&options, devices, 1);
    snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, 4, "%s", snapshot->problems[0].error.text);
    cr_assert_str_eq(snapshot->devices[0].info.pci_address, "0000:5b:00.0");
    cr_assert_str_eq(snapshot->devices[0].info.uuid + 11, "3-aaaa-bbbb-cccc-dddddddddddd");
    cr_assert_str_eq(snapshot->nvlink_domain, "abababababababababababababababab");
    for (int32_t i = 0; i < 4; i++)
        for (int32_t l = 0; l < 3; l++) {
            const dt_device_link_t *link = &snapshot->devices[i].info.links[l];
            cr_assert_eq(link->lanes, link->peer == (i ^ 1) ? 3U : 1U);
        }
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
}

Test(inventory, of_a_machine_without_nvidia_says_so_and_starts_no_child)
{
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    options.root = "/nowhere";
    options.probe_program = "/nowhere/program"; /* a start would be an AGAIN */
    inventory = open_with(&options, NULL, 0);
    snapshot = refresh(inventory, &change);
    cr_assert_str_eq(numbers(snapshot), "0");
    cr_assert_eq(snapshot->problem_count, 1);
    cr_assert_eq(snapshot->problems[0].error.code, DT_ERR_NOT_FOUND);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
}

/* Devices= with the torch library there; it cannot be loaded, so only its problem tells of it. */
static void expect_torch(const char *device, int32_t cpu_count, bool has_problem)
{
    const char *const devices[] = {device};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_temptree_t tree;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_t *inventory;
    dt_inventory_change_t change;
    bool is_told = false;
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "dtorch-backend-torch.so", "no library\n");
    const char *const dirs[] = {tree.root};
    options.backend_dirs = dirs;
    options.backend_dir_count = 1;
    options.root = tree.root;
    inventory = open_with(&options, devices, 1);
    snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, cpu_count, "%s", device);
    for (int32_t i = 0; i < snapshot->problem_count; i++)
        is_told |= strcmp(snapshot->problems[i].backend, "torch") == 0;
    cr_assert_eq(is_told, has_problem, "%s", device);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    dt_temptree_fini(&tree);
}

Test(inventory, lists_the_cpu_once_and_as_torch_where_its_library_is)
{
    const char *const unknown[] = {"torch:tpu"}, *const missing[] = {"torch:cpu"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    expect_torch("all", 0, true);
    expect_torch("ref", 1, false);
    expect_torch("torch", 0, true);
    expect_torch("torch:cpu", 0, true);
    expect_torch("torch:cuda", 0, false);
    expect_torch("torch:2", 0, false);
    options.device_count = 1;
    options.devices = unknown;
    cr_assert_eq(dt_inventory_open(&options, &inventory, NULL), DT_ERR_INVALID);
    options.devices = missing;
    cr_assert_eq(dt_inventory_open(&options, &inventory, NULL), DT_ERR_INVALID);
}

Test(inventory, lists_the_cpu_as_many_devices_where_that_is_asked_for)
{
    const char *const devices[] = {"cpu:3"};
    const char *const one[] = {"ref"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_change_t change;
    dt_inventory_t *inventory = open_with(&options, one, 1);
    dt_inventory_snapshot_t *whole = refresh(inventory, &change);
    dt_inventory_free(inventory);
    inventory = open_with(&options, devices, 1);
    dt_inventory_snapshot_t *snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, 3);
    for (int32_t i = 0; i < 3; i++) {
        const dt_device_info_t *info = &snapshot->devices[i].info;
        cr_assert_str_eq(info->kind, "cpu");
        cr_assert_eq(info->memory_bytes, whole->devices[0].info.memory_bytes / 3);
        cr_assert_eq(strcmp(info->uuid, whole->devices[0].info.uuid) == 0, i == 0);
    }
    dt_inventory_snapshot_free(snapshot);
    snapshot = refresh(inventory, &change);
    cr_assert_str_eq(numbers(snapshot), "0 1 2");
    cr_assert_neq(change, DT_INVENTORY_CHANGED); /* others use this machine's memory, too */
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_snapshot_free(whole);
    dt_inventory_free(inventory);
}

Test(inventory, of_devices_none_is_empty_and_well)
{
    const char *const devices[] = {"none"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory = open_with(&options, devices, 1);
    expect(inventory, "", DT_INVENTORY_CHANGED);
    expect(inventory, "", DT_INVENTORY_SAME);
    dt_inventory_free(inventory);
}

Test(inventory, goes_on_when_its_numbers_cannot_be_kept)
{
    const char *const devices[] = {"sim:2"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    options.state_dir = "/nowhere";
    inventory = open_with(&options, devices, 1);
    snapshot = refresh(inventory, &change);
    cr_assert_eq(snapshot->device_count, 2);
    cr_assert_eq(snapshot->problem_count, 1);
    cr_assert_str_eq(snapshot->problems[0].backend, "state");
    dt_inventory_snapshot_free(snapshot);
    expect(inventory, "0 1", DT_INVENTORY_SAME);
    dt_inventory_free(inventory);
}

Test(inventory, becomes_a_message_with_all_links_and_no_allocation)
{
    const char *const devices[] = {"sim:64,nvlink=8,numa=2"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_inventory_message_t *message = malloc(sizeof *message);
    dt_inventory_t *inventory;
    dt_inventory_snapshot_t *snapshot;
    dt_inventory_change_t change;
    Dtorch__V1__Inventory *again;
    uint8_t *packed;
    size_t size;
    options.rack = "r7";
    inventory = open_with(&options, devices, 1);
    snapshot = refresh(inventory, &change);
    dt_inventory_message_fill(message, snapshot);
    size = dtorch__v1__inventory__get_packed_size(&message->inventory);
    packed = malloc(size);
    cr_assert_eq(dtorch__v1__inventory__pack(&message->inventory, packed), size);
    again = dtorch__v1__inventory__unpack(NULL, size, packed);
    cr_assert(again && again->n_devices == 64 && again->devices[63]->n_links == 63);
    cr_assert_eq(again->devices[9]->links[8]->kind, DTORCH__V1__LINK__KIND__NVLINK);
    cr_assert_eq(again->devices[9]->links[8]->peer, 8);
    cr_assert_str_eq(again->devices[9]->backend, "sim");
    cr_assert_str_eq(again->topology->rack, "r7");
    cr_assert_eq(again->devices[9]->health, DTORCH__V1__DEVICE__HEALTH__OK);
    dtorch__v1__inventory__free_unpacked(again, NULL);
    free(packed);
    dt_inventory_snapshot_free(snapshot);
    dt_inventory_free(inventory);
    free(message);
}

static void post(void *arg)
{
    (void)__atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

Test(inventory, of_a_monitor_that_hangs_in_a_driver_can_still_be_stopped)
{
    dt_temptree_t tree;
    dt_inventory_t *inventory = open_play(&tree, "hang");
    int posts = 0;
    const dt_device_monitor_options_t options = {
        .refresh_ms = 10, .drift_ms = 10, .notify = post, .arg = &posts};
    dt_device_monitor_t *monitor = NULL;
    dt_error_t err;
    cr_assert_eq(dt_device_monitor_start(inventory, &options, &monitor, &err), DT_OK);
    while (dt_device_monitor_busy_since_ns(monitor) == 0)
        ;
    dt_device_monitor_stop(monitor);
    dt_temptree_fini(&tree);
}
