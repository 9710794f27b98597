#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/loader.h"
#include "device/nvml.h"
#include "lib/deviceprobe.h"
#include "lib/temptree.h"

/* These run NVML's code path against tests/so/fake_nvml.c: no NVIDIA hardware is involved. */
TestSuite(nvml, .timeout = 60);

static dt_temptree_t tree;
static dt_loader_run_t run;

static dt_status_t start(const char *play, dt_error_t *err)
{
    char library[512];
    (void)snprintf(library, sizeof library, "%s/fake_nvml.so", so_dir());
    dt_backend_options_t options = {sizeof options, "", "", "seed", "", library};
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "play", play);
    cr_assert_eq(setenv("DT_FAKE_NVML", dt_temptree_path(&tree, "play"), 1), 0);
    DT_TRY(dt_loader_open(dt_backend_nvml(), NULL, &options, &run, err));
    return dt_loader_update(&run, err);
}

static void play(const char *text)
{
    dt_temptree_write(&tree, "play", text);
    cr_assert_eq(dt_loader_update(&run, NULL), DT_OK);
}

static void end(void)
{
    dt_loader_close(&run);
    dt_temptree_fini(&tree);
}

Test(nvml, tells_all_that_the_driver_tells)
{
    dt_error_t err = {0};
    const dt_device_info_t *d = &run.devices[1];
    cr_assert_eq(start("", &err), DT_OK, "%s", err.text);
    cr_assert_eq(run.count, 4);
    cr_assert_str_eq(d->uuid, "GPU-00000001-aaaa-bbbb-cccc-dddddddddddd");
    cr_assert_str_eq(d->kind, "cuda");
    cr_assert_str_eq(d->name, "NVIDIA H100 80GB HBM3");
    cr_assert_str_eq(d->pci_address, "0000:7b:00.0");
    cr_assert_str_eq(d->driver, "550.54.15");
    cr_assert_str_eq(d->nvlink_domain, "abababababababababababababababab");
    cr_assert(d->memory_bytes == UINT64_C(80) << 30 && d->memory_used_bytes == UINT64_C(1) << 30);
    cr_assert(d->temperature_c == 41 && d->utilization_percent == 10);
    cr_assert_eq(d->numa_node, -1, "this library has no such symbol: sysfs is asked instead");
    cr_assert_eq(d->health, DT_DEVICE_OK);
    end();
}

Test(nvml, counts_direct_links_and_links_by_a_switch)
{
    dt_error_t err = {0};
    cr_assert_eq(start("", &err), DT_OK, "%s", err.text);
    for (int32_t i = 0; i < 4; i++) {
        cr_assert_eq(run.devices[i].link_count, 3);
        for (int32_t l = 0; l < 3; l++) {
            const dt_device_link_t *link = &run.devices[i].links[l];
            cr_assert_eq(link->kind, DT_LINK_NVLINK);
            cr_assert_eq(link->lanes, link->peer == (i ^ 1) ? 3U : 1U);
        }
    }
    end();
}

Test(nvml, marks_devices_that_fail_and_that_are_slowed_down)
{
    dt_error_t err = {0};
    cr_assert_eq(start("", &err), DT_OK, "%s", err.text);
    play("lost 0 ecc 1 3 throttle 2 64 throttle 3 5");
    cr_assert_eq(run.devices[0].health, DT_DEVICE_FAILED);
    cr_assert(strstr(run.devices[0].health_text, "fell off the bus"));
    cr_assert_eq(run.devices[0].memory_bytes, UINT64_C(80) << 30, "kept");
    cr_assert_eq(run.devices[1].health, DT_DEVICE_DEGRADED);
    cr_assert(strstr(run.devices[1].health_text, "3 uncorrected"));
    cr_assert_eq(run.devices[2].health, DT_DEVICE_DEGRADED);
    cr_assert_eq(run.devices[3].health, DT_DEVICE_OK, "idle and a power cap are no fault");
    cr_assert_eq(run.devices[3].throttle_reasons, 5);
    play("");
    for (int i = 0; i < 4; i++)
        cr_assert(run.devices[i].health == DT_DEVICE_OK && !*run.devices[i].health_text);
    end();
}

Test(nvml, sees_devices_go_and_return)
{
    dt_error_t err = {0};
    cr_assert_eq(start("lost 2", &err), DT_OK, "%s", err.text);
    cr_assert_eq(run.count, 3, "lost at the start: no uuid to know it by");
    cr_assert_str_eq(run.devices[2].pci_address, "0000:5b:00.0");
    for (int i = 0; i < 20 && run.count == 3; i++)
        play("");
    cr_assert_eq(run.count, 4, "the library is started anew after a while");
    play("count 2");
    cr_assert_eq(run.count, 2);
    play("");
    cr_assert_eq(run.count, 4);
    end();
}

Test(nvml, does_with_a_device_that_supports_nothing)
{
    dt_error_t err = {0};
    cr_assert_eq(start("dumb", &err), DT_OK, "%s", err.text);
    cr_assert_eq(run.count, 4);
    cr_assert_str_eq(run.devices[0].name, "NVIDIA device");
    cr_assert(!*run.devices[0].pci_address && run.devices[0].memory_bytes == 0);
    cr_assert(run.devices[0].numa_node == -1 && run.devices[0].link_count == 0);
    cr_assert_eq(run.devices[0].health, DT_DEVICE_OK);
    end();
}

Test(nvml, is_absent_without_a_driver_that_runs)
{
    dt_error_t err = {0};
    cr_assert_eq(start("broken", &err), DT_ERR_NOT_FOUND);
    cr_assert(strstr(err.text, "nvmlInit_v2 returned 9"), "%s", err.text);
    cr_assert_eq(err.source_code, 9);
    end();
}

Test(nvml, is_absent_without_the_library_and_with_one_that_lacks_what_it_needs)
{
    char library[512];
    dt_backend_options_t options = {sizeof options, "", "",
                                    "seed",         "", "/nowhere/libnvidia-ml.so.1"};
    dt_error_t err;
    cr_assert_eq(dt_loader_open(dt_backend_nvml(), NULL, &options, &run, &err), DT_ERR_NOT_FOUND);
    dt_loader_close(&run);
    (void)snprintf(library, sizeof library, "%s/backend_other.so", so_dir());
    options.library = library;
    cr_assert_eq(dt_loader_open(dt_backend_nvml(), NULL, &options, &run, &err), DT_ERR_NOT_FOUND);
    cr_assert(strstr(err.text, "it has no nvmlInit_v2"), "%s", err.text);
    dt_loader_close(&run);
}

Test(nvml, is_an_error_when_the_driver_stops_and_well_when_it_is_back)
{
    dt_error_t err = {0};
    cr_assert_eq(start("", &err), DT_OK, "%s", err.text);
    dt_temptree_write(&tree, "play", "broken");
    cr_assert_eq(dt_loader_update(&run, &err), DT_ERR_DEVICE);
    cr_assert(strstr(err.text, "NVML 999"), "%s", err.text);
    play("");
    cr_assert_eq(run.count, 4);
    end();
}
