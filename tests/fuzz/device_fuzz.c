/* Fuzzes the small languages of lib/device. The first byte picks one: 's' the spec of sim, 'f' its
 * faults, 'n' the file of numbers, 'p' a PCI address, 'l' a kernel list, 'c' cleaning. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "device/numbers.h"
#include "device/sim.h"
#include "device/sysfile.h"
#include "device/topology.h"
#include "lib/temptree.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_spec(const char *text)
{
    dt_sim_spec_t spec;
    dt_error_t err;
    if (dt_sim_spec_parse(text, &spec, &err) != DT_OK)
        return;
    dt_check(spec.device_count >= 1 && spec.device_count <= DT_DEVICE_MAX);
    dt_check(spec.switch_size >= 1 && spec.numa_nodes >= 1 && spec.nvlink >= 0 && *spec.name);
}

static void fuzz_faults(const char *text)
{
    static dt_device_info_t devices[4];
    bool is_gone[4] = {false};
    dt_error_t err;
    memset(devices, 0, sizeof devices);
    if (dt_sim_faults_apply("faults", text, devices, is_gone, 4, &err) != DT_OK)
        dt_check(strstr(err.text, "faults:"));
    for (int i = 0; i < 4; i++)
        dt_check(devices[i].utilization_percent <= 100);
}

/* What was read comes back the same after it was written. */
static void fuzz_numbers(const char *text)
{
    static dt_numbers_t first, second;
    dt_temptree_t tree;
    const char *dir = tree.root;
    dt_error_t err;
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, DT_NUMBERS_FILE, text);
    if (dt_numbers_load(dir, &first, &err) == DT_OK) {
        dt_check(dt_numbers_save(dir, &first, &err) == DT_OK);
        dt_check(dt_numbers_load(dir, &second, &err) == DT_OK);
        for (int i = 0; i < DT_DEVICE_MAX; i++)
            dt_check(strcmp(first.at[i].uuid, second.at[i].uuid) == 0 &&
                     first.at[i].seen == second.at[i].seen);
    }
    dt_temptree_fini(&tree);
}

static void count(int32_t number, void *arg)
{
    dt_check(number >= 0 && number <= UINT16_MAX);
    ++*(uint64_t *)arg;
}

static void fuzz_clean(const char *text, size_t size)
{
    char copy[DT_SYSFILE_TEXT_MAX];
    if (size == 0 || size > sizeof copy)
        return;
    memcpy(copy, text, size);
    dt_sysfile_clean(copy, size, true);
    dt_check(strnlen(copy, size) < size && dt_wire_text_is_clean(copy, strlen(copy)));
    dt_check(!strchr(copy, ' '));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char address[32], again[32];
    uint64_t counted = 0;
    char *text;
    if (size == 0 || size > 16384)
        return 0;
    text = malloc(size);
    if (!text)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (*data == 's')
        fuzz_spec(text);
    else if (*data == 'f')
        fuzz_faults(text);
    else if (*data == 'n')
        fuzz_numbers(text);
    else if (*data == 'p' && dt_topology_pci_normal(text, address, sizeof address) == DT_OK)
        dt_check(dt_topology_pci_normal(address, again, sizeof again) == DT_OK &&
                 strcmp(address, again) == 0);
    else if (*data == 'l' && size < 64)
        dt_sysfile_list(text, count, &counted);
    else if (*data == 'c')
        fuzz_clean(text, size - 1);
    free(text);
    return 0;
}
