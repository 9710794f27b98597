#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/loader.h"
#include "device/sim.h"
#include "lib/temptree.h"

TestSuite(sim, .timeout = 60);

static dt_loader_run_t *start(const char *spec, const char *faults)
{
    dt_backend_options_t options = {sizeof options, spec, "", "seed", faults, ""};
    dt_loader_run_t *run = malloc(sizeof *run);
    dt_error_t err = {0};
    cr_assert_eq(dt_loader_open(dt_backend_sim(), NULL, &options, run, &err), DT_OK, "%s",
                 err.text);
    cr_assert_eq(dt_loader_update(run, &err), DT_OK, "%s", err.text);
    return run;
}

static void end(dt_loader_run_t *run)
{
    dt_loader_close(run);
    free(run);
}

static int32_t kind_of(const dt_loader_run_t *run, int32_t from, int32_t to)
{
    const dt_device_info_t *info = &run->devices[from];
    for (int32_t i = 0; i < info->link_count; i++)
        if (info->links[i].peer == to)
            return info->links[i].kind;
    return -1;
}

Test(sim, parses_its_spec_and_says_what_is_wrong_and_where)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"0", "1..64"},
        {"65", "1..64"},
        {"x", "1..64"},
        {"8,nvlnk=4", "\"nvlnk=4\" at byte 2: unknown key"},
        {"8,nvlink=65", "nvlink needs a number in 0..64"},
        {"8,numa=0", "numa needs a number in 1..64"},
        {"8,memory=80GB", "at byte 2: memory needs a size"},
        {"8,name=", "name needs"},
        {"8,lanes", "expected KEY=VALUE"},
    };
    dt_sim_spec_t spec;
    dt_error_t err;
    cr_assert_eq(dt_sim_spec_parse("8,nvlink=4,numa=2,memory=80GiB,name=H100", &spec, &err), DT_OK);
    cr_assert(spec.device_count == 8 && spec.nvlink == 4 && spec.numa_nodes == 2 &&
              spec.memory_bytes == UINT64_C(80) << 30);
    cr_assert_str_eq(spec.name, "H100");
    cr_assert_eq(dt_sim_spec_parse("", &spec, &err), DT_OK);
    cr_assert_eq(spec.device_count, 1);
    cr_assert_eq(dt_sim_spec_parse("lanes=3", &spec, &err), DT_OK);
    cr_assert_eq(spec.lanes, 3);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(dt_sim_spec_parse(wrong[i].text, &spec, &err), DT_ERR_INVALID, "%s",
                     wrong[i].text);
        cr_assert(strstr(err.text, wrong[i].says), "%s: %s", wrong[i].text, err.text);
    }
    cr_assert_eq(spec.lanes, 3, "set on success only");
}

Test(sim, makes_islands_switches_and_numa_nodes)
{
    dt_loader_run_t *run = start("8,nvlink=2,switch=4,numa=2", "");
    cr_assert_eq(run->count, 8);
    cr_assert_eq(kind_of(run, 0, 1), DT_LINK_NVLINK);
    cr_assert_eq(kind_of(run, 1, 2), DT_LINK_PCI_SWITCH);
    cr_assert_eq(kind_of(run, 0, 4), DT_LINK_SYSTEM);
    cr_assert_eq(run->devices[0].links[0].lanes, 18);
    cr_assert(run->devices[3].numa_node == 0 && run->devices[4].numa_node == 1);
    cr_assert_str_eq(run->devices[5].pci_address, "feed:11:01.0");
    for (int32_t i = 0; i < 8; i++)
        for (int32_t j = 0; j < i; j++) {
            cr_assert_str_neq(run->devices[i].uuid, run->devices[j].uuid);
            cr_assert_str_neq(run->devices[i].pci_address, run->devices[j].pci_address);
            cr_assert_eq(kind_of(run, i, j), kind_of(run, j, i));
        }
    end(run);
}

Test(sim, gives_64_devices_64_addresses_behind_one_switch)
{
    dt_loader_run_t *run = start("64,switch=64", "");
    cr_assert_eq(run->count, 64);
    cr_assert_eq(run->devices[63].link_count, 63);
    cr_assert_str_eq(run->devices[63].pci_address, "feed:10:1f.1");
    end(run);
}

Test(sim, plays_faults_from_a_file_and_gets_well_again)
{
    dt_temptree_t tree;
    dt_loader_run_t *run;
    char first[64];
    dt_temptree_init(&tree);
    run = start("4,nvlink=4", dt_temptree_path(&tree, "faults"));
    (void)snprintf(first, sizeof first, "%s", run->devices[3].uuid);
    dt_temptree_write(
        &tree, "faults",
        "# who what\n0 failed it burns\n2  throttle 0x40 \n3 ecc 5\n* used 1GiB\n1 busy 50\n");
    cr_assert_eq(dt_loader_update(run, NULL), DT_OK);
    cr_assert_eq(run->count, 4);
    cr_assert_eq(run->devices[0].health, DT_DEVICE_FAILED);
    cr_assert_str_eq(run->devices[0].health_text, "it burns");
    cr_assert_eq(run->devices[1].health, DT_DEVICE_OK);
    cr_assert_eq(run->devices[1].utilization_percent, 50);
    cr_assert(run->devices[2].health == DT_DEVICE_DEGRADED &&
              run->devices[2].throttle_reasons == 0x40);
    cr_assert(run->devices[3].health == DT_DEVICE_DEGRADED && run->devices[3].ecc_uncorrected == 5);
    cr_assert_eq(run->devices[3].memory_used_bytes, UINT64_C(1) << 30);
    dt_temptree_write(&tree, "faults", "1 gone\n");
    cr_assert_eq(dt_loader_update(run, NULL), DT_OK);
    cr_assert_eq(run->count, 3);
    cr_assert_str_eq(run->devices[2].uuid, first, "the others stay who they are");
    cr_assert_eq(run->devices[2].link_count, 2);
    cr_assert_eq(kind_of(run, 2, 1), DT_LINK_NVLINK);
    cr_assert_eq(run->devices[0].health, DT_DEVICE_OK);
    dt_temptree_remove(&tree, "faults");
    cr_assert_eq(dt_loader_update(run, NULL), DT_OK);
    cr_assert_eq(run->count, 4);
    end(run);
    dt_temptree_fini(&tree);
}

Test(sim, names_file_and_line_of_a_fault_it_does_not_know)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"0 failed\n0 burns\n", "faults:2: unknown fault \"burns\""},
        {"4 gone\n", "faults:1: device \"4\" is not"},
        {"\n\n1 ecc many\n", "faults:3: ecc: wrong value \"many\""},
        {"1 throttle 0\n", "wrong value"},
        {"1 busy 101\n", "wrong value"},
        {"1\n", "unknown fault \"\""},
    };
    static dt_device_info_t devices[4];
    bool is_gone[4];
    dt_error_t err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(dt_sim_faults_apply("faults", wrong[i].text, devices, is_gone, 4, &err),
                     DT_ERR_INVALID, "%s", wrong[i].text);
        cr_assert(strstr(err.text, wrong[i].says), "%s", err.text);
    }
}

/* ---- executing nothing ---- */
static dt_value_t tensor_value(void *tensor)
{
    return (dt_value_t){.tag = DT_VALUE_TENSOR, .handle = tensor};
}

Test(sim, gives_results_without_data_as_told_or_as_ref_would)
{
    const dt_backend_options_t options = {sizeof options, "1,tflops=1,gbs=1000", "", "s", "", ""};
    const dt_backend_device_options_t device_options = {.struct_size = sizeof device_options};
    const dt_backend_t *table = dt_backend_sim();
    const int64_t sizes[] = {2, 3};
    void *ctx, *device, *op, *tensor, *result = NULL;
    dt_backend_output_t told = {.alias = DT_ALIAS_FRESH};
    dt_backend_tensor_t info;
    dt_error_t err = {0};
    dt_meta_t meta;
    uint32_t count = 0;
    float data[6] = {1, 1, 1, 1, 1, 1};
    cr_assert_eq(table->open(&options, &ctx, &err), DT_OK, "%s", err.text);
    cr_assert_eq(table->device_open(ctx, &device_options, &device, &err), DT_OK);
    cr_assert_eq(dt_meta_set(&meta, DT_DTYPE_F32, 2, sizes, NULL, 0, &err), DT_OK);
    cr_assert_eq(dt_meta_set(&told.meta, DT_DTYPE_BF16, 1, sizes, NULL, 0, &err), DT_OK);
    cr_assert_eq(table->tensor_create(device, &meta, &tensor, &err), DT_OK);
    cr_assert_eq(table->tensor_write(device, tensor, 0, data, sizeof data, &err), DT_OK);
    const dt_value_t args[] = {tensor_value(tensor), tensor_value(tensor)};
    cr_assert_eq(table->op_find(device, "aten::add.Tensor", &op, &err), DT_OK);
    cr_assert_eq(table->op_execute(device, op, args, 2, &result, 1, &count, &err), DT_OK, "%s",
                 err.text);
    cr_assert_eq(table->tensor_read(device, result, 0, data, sizeof data, &err), DT_OK);
    cr_assert_eq(data[0], 0.0F, "nothing is computed");
    table->tensor_free(device, result);
    cr_assert_eq(table->op_find(device, "aten::unknown_of_ref", &op, &err), DT_OK);
    cr_assert_eq(table->op_execute(device, op, args, 1, &result, 1, &count, &err),
                 DT_ERR_NOT_FOUND);
    table->op_expect(device, op, &told, 1);
    cr_assert_eq(table->op_execute(device, op, args, 1, &result, 1, &count, &err), DT_OK);
    cr_assert_eq(table->tensor_info(device, result, &info, &err), DT_OK);
    cr_assert_eq(info.meta.dtype, DT_DTYPE_BF16);
    cr_assert_eq(table->device_sync(device, &err), DT_OK);
    table->tensor_free(device, result);
    table->tensor_free(device, tensor);
    table->device_close(device);
    table->close(ctx);
}
