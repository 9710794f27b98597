/* NVIDIA's management library as far as the `torch` backend needs it: our own declarations, no
 * header of NVIDIA's, and every symbol looked up at run time by its versioned name.
 *
 * The library `libnvidia-ml.so.1` comes with the driver. Without it, or without a driver that runs,
 * open says NOT_FOUND and the node simply has no such devices. A symbol that an old driver lacks,
 * or a question that a device answers with NOT_SUPPORTED, leaves its field unknown.
 *
 * It runs in a probe's child (probe.h), as calls into a driver whose device fell off the bus may
 * hang.
 *
 * Health: FAILED when the device is lost or wants a reset; DEGRADED when it counts uncorrected
 * memory errors or hardware slows it down (hardware slowdown, heat, power brake); else OK. NVLink:
 * two devices that name each other by PCI address count their common links; all devices that have
 * links to switches reach each other, with as many links as the lesser of two has.
 *
 * Limits: multi-instance devices (MIG) are shown whole. This code was tested against a library of
 * our own that plays NVML (tests/so/fake_nvml.c); it has NOT been run on NVIDIA hardware yet. */
#ifndef DT_DEVICE_NVML_H
#define DT_DEVICE_NVML_H
#include <stdint.h>

#define DT_NVML_LIBRARY  "libnvidia-ml.so.1"
#define DT_NVML_LINK_MAX 18 /* NVLink ports of one device */

/* nvmlReturn_t, as far as it is told apart. */
#define DT_NVML_SUCCESS        0
#define DT_NVML_NOT_SUPPORTED  3
#define DT_NVML_LOST           15
#define DT_NVML_RESET_REQUIRED 16

/* Bits of the throttle reasons that mean trouble: hardware slowdown, heat (software's and
 * hardware's limit), power brake. The others (idle, application clocks, power cap) come and go with
 * the load. */
#define DT_NVML_THROTTLE_FAULTS UINT64_C(0xe8)

/* nvmlIntNvLinkDeviceType_t */
#define DT_NVML_REMOTE_SWITCH 2

typedef struct dt_nvml_pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} dt_nvml_pci_t;

typedef struct dt_nvml_memory {
    unsigned long long total, free, used;
} dt_nvml_memory_t;

typedef struct dt_nvml_utilization {
    unsigned gpu, memory;
} dt_nvml_utilization_t;

typedef struct dt_nvml_fabric {
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique_id;
    unsigned char state; /* 3: complete */
} dt_nvml_fabric_t;

typedef void *dt_nvml_device_t;

/* X(field, symbol, is_needed, parameters) */
#define DT_NVML_SYMBOLS(X)                                                                         \
    X(init, "nvmlInit_v2", 1, (void))                                                              \
    X(shutdown, "nvmlShutdown", 1, (void))                                                         \
    X(device_count, "nvmlDeviceGetCount_v2", 1, (unsigned *))                                      \
    X(device_at, "nvmlDeviceGetHandleByIndex_v2", 1, (unsigned, dt_nvml_device_t *))               \
    X(uuid, "nvmlDeviceGetUUID", 1, (dt_nvml_device_t, char *, unsigned))                          \
    X(name, "nvmlDeviceGetName", 0, (dt_nvml_device_t, char *, unsigned))                          \
    X(driver, "nvmlSystemGetDriverVersion", 0, (char *, unsigned))                                 \
    X(memory, "nvmlDeviceGetMemoryInfo", 0, (dt_nvml_device_t, dt_nvml_memory_t *))                \
    X(pci, "nvmlDeviceGetPciInfo_v3", 0, (dt_nvml_device_t, dt_nvml_pci_t *))                      \
    X(numa, "nvmlDeviceGetNumaNodeId", 0, (dt_nvml_device_t, unsigned *))                          \
    X(link_state, "nvmlDeviceGetNvLinkState", 0, (dt_nvml_device_t, unsigned, int *))              \
    X(link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2", 0,                                       \
      (dt_nvml_device_t, unsigned, dt_nvml_pci_t *))                                               \
    X(link_type, "nvmlDeviceGetNvLinkRemoteDeviceType", 0, (dt_nvml_device_t, unsigned, int *))    \
    X(ecc, "nvmlDeviceGetTotalEccErrors", 0, (dt_nvml_device_t, int, int, unsigned long long *))   \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", 0,                                    \
      (dt_nvml_device_t, unsigned long long *))                                                    \
    X(temperature, "nvmlDeviceGetTemperature", 0, (dt_nvml_device_t, int, unsigned *))             \
    X(utilization, "nvmlDeviceGetUtilizationRates", 0,                                             \
      (dt_nvml_device_t, dt_nvml_utilization_t *))                                                 \
    X(fabric, "nvmlDeviceGetGpuFabricInfo", 0, (dt_nvml_device_t, dt_nvml_fabric_t *))

#endif
