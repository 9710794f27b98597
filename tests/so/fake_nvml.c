/* A library that plays NVIDIA's NVML: four devices, two pairs with NVLink between (ports 0 and 1 to
 * the partner, port 2 to a switch that all four reach). It reads the file named by
 * DT_FAKE_NVML at each call and does what its lines say:
 *     count N          N devices are there
 *     lost I           device I fell off the bus
 *     ecc I N          device I counts N uncorrected errors
 *     throttle I BITS  why device I is slow, a decimal number
 *     dumb             no device supports any question but its uuid
 *     broken           the driver does not run */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/nvml.h"

#define DEVICE_COUNT 4
#define UNKNOWN      999
/* An exported function with its prototype before it. */
#define ENTRY(name, ...)                                                                           \
    __attribute__((visibility("default"))) int name(__VA_ARGS__);                                  \
    int name(__VA_ARGS__)

struct play {
    unsigned count;
    unsigned lost; /* bits */
    unsigned long long ecc[DEVICE_COUNT], throttle[DEVICE_COUNT];
    int is_dumb, is_broken;
};

static struct play read_play(void)
{
    struct play play = {.count = DEVICE_COUNT};
    const char *path = getenv("DT_FAKE_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    char word[16];
    unsigned i;
    if (!file)
        return play;
    while (fscanf(file, "%15s", word) == 1) {
        if (strcmp(word, "dumb") == 0)
            play.is_dumb = 1;
        else if (strcmp(word, "broken") == 0)
            play.is_broken = 1;
        else if (fscanf(file, "%u", &i) != 1 || i > DEVICE_COUNT)
            break;
        else if (strcmp(word, "count") == 0)
            play.count = i;
        else if (strcmp(word, "lost") == 0)
            play.lost |= 1U << i;
        else if (i == DEVICE_COUNT ||
                 fscanf(file, "%llu", *word == 'e' ? &play.ecc[i] : &play.throttle[i]) != 1)
            break;
    }
    (void)fclose(file);
    return play;
}

static unsigned number_of(dt_nvml_device_t device)
{
    return (unsigned)((size_t)device - 1);
}

/* What every question about a device answers first. */
static int ask(dt_nvml_device_t device, struct play *ret_play)
{
    *ret_play = read_play();
    if (ret_play->lost & 1U << number_of(device))
        return DT_NVML_LOST;
    return ret_play->is_dumb ? DT_NVML_NOT_SUPPORTED : DT_NVML_SUCCESS;
}

static void fill_pci(unsigned number, dt_nvml_pci_t *ret_pci)
{
    memset(ret_pci, 0, sizeof *ret_pci);
    (void)snprintf(ret_pci->bus_id, sizeof ret_pci->bus_id, "00000000:%02X:00.0",
                   0x8b - number * 0x10); /* NVML's order is not the bus's */
}

ENTRY(nvmlInit_v2, void)
{
    return read_play().is_broken ? 9 : DT_NVML_SUCCESS;
}

ENTRY(nvmlShutdown, void)
{
    return DT_NVML_SUCCESS;
}

ENTRY(nvmlSystemGetDriverVersion, char *text, unsigned size)
{
    (void)snprintf(text, size, "550.54.15");
    return DT_NVML_SUCCESS;
}

ENTRY(nvmlDeviceGetCount_v2, unsigned *count)
{
    struct play play = read_play();
    *count = play.count;
    return play.is_broken ? UNKNOWN : DT_NVML_SUCCESS;
}

ENTRY(nvmlDeviceGetHandleByIndex_v2, unsigned number, dt_nvml_device_t *device)
{
    struct play play = read_play();
    if (play.lost & 1U << number)
        return DT_NVML_LOST;
    *device = (char *)1 + number;
    return number < play.count ? DT_NVML_SUCCESS : 2;
}

ENTRY(nvmlDeviceGetUUID, dt_nvml_device_t device, char *text, unsigned size)
{
    (void)snprintf(text, size, "GPU-0000000%u-aaaa-bbbb-cccc-dddddddddddd", number_of(device));
    return DT_NVML_SUCCESS;
}

ENTRY(nvmlDeviceGetName, dt_nvml_device_t device, char *text, unsigned size)
{
    struct play play;
    (void)snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetMemoryInfo, dt_nvml_device_t device, dt_nvml_memory_t *memory)
{
    struct play play;
    memory->total = 80ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetPciInfo_v3, dt_nvml_device_t device, dt_nvml_pci_t *pci)
{
    struct play play;
    fill_pci(number_of(device), pci);
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetNvLinkState, dt_nvml_device_t device, unsigned port, int *is_active)
{
    struct play play;
    *is_active = port < 3;
    return port < 4 ? ask(device, &play) : DT_NVML_NOT_SUPPORTED;
}

ENTRY(nvmlDeviceGetNvLinkRemoteDeviceType, dt_nvml_device_t device, unsigned port, int *type)
{
    struct play play;
    *type = port == 2 ? DT_NVML_REMOTE_SWITCH : 0;
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetNvLinkRemotePciInfo_v2, dt_nvml_device_t device, unsigned port,
      dt_nvml_pci_t *pci)
{
    struct play play;
    (void)port;
    fill_pci(number_of(device) ^ 1, pci);
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetTotalEccErrors, dt_nvml_device_t device, int type, int counter,
      unsigned long long *count)
{
    struct play play;
    int rc = ask(device, &play);
    *count = type == 1 && counter == 0 ? play.ecc[number_of(device)] : 0;
    return rc;
}

ENTRY(nvmlDeviceGetCurrentClocksThrottleReasons, dt_nvml_device_t device, unsigned long long *bits)
{
    struct play play;
    int rc = ask(device, &play);
    *bits = play.throttle[number_of(device)];
    return rc;
}

ENTRY(nvmlDeviceGetTemperature, dt_nvml_device_t device, int sensor, unsigned *celsius)
{
    struct play play;
    (void)sensor;
    *celsius = 40 + number_of(device);
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetUtilizationRates, dt_nvml_device_t device, dt_nvml_utilization_t *rates)
{
    struct play play;
    rates->gpu = 10 * number_of(device);
    rates->memory = 0;
    return ask(device, &play);
}

ENTRY(nvmlDeviceGetGpuFabricInfo, dt_nvml_device_t device, dt_nvml_fabric_t *fabric)
{
    struct play play;
    memset(fabric, 0, sizeof *fabric);
    memset(fabric->cluster_uuid, 0xab, sizeof fabric->cluster_uuid);
    fabric->state = 3;
    return ask(device, &play);
}
