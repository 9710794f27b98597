/* `torch`: NVIDIA devices by NVML. */
#include "device/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/topology.h"

#define ECC_UNCORRECTED 1
#define ECC_VOLATILE    0 /* since the driver was loaded */
#define SENSOR_GPU      0
#define TROUBLE_MAX                                                                                \
    12 /* refreshes until the library is started anew: it never finds a device again               \
          that it lost */

struct nvml {
    void *library;
    bool is_started;
    int32_t count; /* devices with a handle and a uuid */
    dt_nvml_device_t handle[DT_DEVICE_MAX];
    unsigned seen;   /* what device_count said at the last enumeration */
    int32_t trouble; /* refreshes in a row with a device lost or without a uuid */
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator and a parameter list */
#define X(field, symbol, is_needed, parameters) int(*field) parameters;
    DT_NVML_SYMBOLS(X)
#undef X
};

/* NULL entries answer as a device that does not know. */
#define ASK(nvml, field, ...) ((nvml)->field ? (nvml)->field(__VA_ARGS__) : DT_NVML_NOT_SUPPORTED)

static void nvml_close(void *ctx)
{
    struct nvml *nvml = ctx;
    if (!nvml)
        return;
    if (nvml->is_started)
        (void)nvml->shutdown();
    if (nvml->library)
        (void)dlclose(nvml->library);
    free(nvml);
}

static dt_status_t load(struct nvml *nvml, const char *library, dt_error_t *err)
{
    nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "no NVIDIA driver: %s",
                       dlerror()); /* NOLINT(concurrency-mt-unsafe): glibc's is one a thread */
#define X(field, symbol, is_needed, parameters)                                                    \
    {                                                                                              \
        void *at = dlsym(nvml->library, symbol);                                                   \
        memcpy(&nvml->field, &at, sizeof at);                                                      \
        if ((is_needed) && !at)                                                                    \
            return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "%s is too old: it has no %s", library, \
                           symbol);                                                                \
    }
    DT_NVML_SYMBOLS(X)
#undef X
    return DT_OK;
}

static dt_status_t nvml_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    struct nvml *nvml;
    dt_status_t status;
    int rc;
    if (*options->spec)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "torch:%s: expected \"torch\" or \"torch:N\"",
                       options->spec);
    nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the torch backend");
    status = load(nvml, *options->library ? options->library : DT_NVML_LIBRARY, err);
    rc = status == DT_OK && nvml->init ? nvml->init() : DT_NVML_SUCCESS;
    if (rc != DT_NVML_SUCCESS)
        status = dt_fail(err, DT_ERR_NOT_FOUND, "nvml", rc,
                         "no NVIDIA driver that runs: nvmlInit_v2 returned %d", rc);
    nvml->is_started = status == DT_OK;
    if (status != DT_OK) {
        nvml_close(nvml);
        return status;
    }
    *ret_ctx = nvml;
    return DT_OK;
}

/* ---- what changes ---- */
static void set_fault(dt_device_info_t *info, dt_device_health_t health, const char *text)
{
    info->health = (int32_t)health;
    (void)snprintf(info->health_text, sizeof info->health_text, "%s", text);
}

static void judge(dt_device_info_t *info, int worst)
{
    char text[128];
    set_fault(info, DT_DEVICE_OK, "");
    if (worst == DT_NVML_LOST) {
        set_fault(info, DT_DEVICE_FAILED, "the device fell off the bus (NVML 15)");
    } else if (worst == DT_NVML_RESET_REQUIRED) {
        set_fault(info, DT_DEVICE_FAILED, "the device needs a reset (NVML 16)");
    } else if (info->ecc_uncorrected > 0) {
        (void)snprintf(text, sizeof text, "%llu uncorrected memory errors",
                       (unsigned long long)info->ecc_uncorrected);
        set_fault(info, DT_DEVICE_DEGRADED, text);
    } else if (info->throttle_reasons & DT_NVML_THROTTLE_FAULTS) {
        (void)snprintf(text, sizeof text, "slowed down by hardware or heat (reasons 0x%llx)",
                       (unsigned long long)info->throttle_reasons);
        set_fault(info, DT_DEVICE_DEGRADED, text);
    }
}

/* Update the fields that change. What a lost device does not answer any more keeps its value. */
static void measure(const struct nvml *nvml, dt_nvml_device_t device, dt_device_info_t *info)
{
    dt_nvml_memory_t memory;
    dt_nvml_utilization_t utilization;
    unsigned long long number;
    unsigned celsius;
    int rc[5];
    int worst = DT_NVML_SUCCESS;
    rc[0] = ASK(nvml, memory, device, &memory);
    if (rc[0] == DT_NVML_SUCCESS) {
        info->memory_bytes = memory.total;
        info->memory_used_bytes = memory.used;
    }
    rc[1] = ASK(nvml, ecc, device, ECC_UNCORRECTED, ECC_VOLATILE, &number);
    if (rc[1] == DT_NVML_SUCCESS)
        info->ecc_uncorrected = number;
    rc[2] = ASK(nvml, throttle, device, &number);
    if (rc[2] == DT_NVML_SUCCESS)
        info->throttle_reasons = number;
    rc[3] = ASK(nvml, temperature, device, SENSOR_GPU, &celsius);
    if (rc[3] == DT_NVML_SUCCESS)
        info->temperature_c = celsius;
    rc[4] = ASK(nvml, utilization, device, &utilization);
    if (rc[4] == DT_NVML_SUCCESS)
        info->utilization_percent = utilization.gpu;
    for (size_t i = 0; i < sizeof rc / sizeof *rc; i++)
        if (rc[i] == DT_NVML_LOST || (rc[i] == DT_NVML_RESET_REQUIRED && worst != DT_NVML_LOST))
            worst = rc[i];
    judge(info, worst);
}

/* ---- links ---- */
struct ports {
    uint32_t to_switch;
    uint32_t to_peer[DT_DEVICE_MAX];
};

static void read_ports(const struct nvml *nvml, int32_t self, const dt_device_info_t *devices,
                       struct ports *ports)
{
    dt_nvml_device_t device = nvml->handle[self];
    for (unsigned port = 0; port < DT_NVML_LINK_MAX; port++) {
        dt_nvml_pci_t remote = {0};
        char address[32];
        int is_active = 0, type = -1;
        if (ASK(nvml, link_state, device, port, &is_active) != DT_NVML_SUCCESS || !is_active)
            continue;
        if (ASK(nvml, link_type, device, port, &type) == DT_NVML_SUCCESS &&
            type == DT_NVML_REMOTE_SWITCH) {
            ports->to_switch++;
            continue;
        }
        if (ASK(nvml, link_remote, device, port, &remote) != DT_NVML_SUCCESS)
            continue;
        remote.bus_id[sizeof remote.bus_id - 1] = '\0';
        if (dt_topology_pci_normal(remote.bus_id, address, sizeof address) != DT_OK)
            continue;
        for (int32_t peer = 0; peer < nvml->count; peer++)
            if (peer != self && strcmp(devices[peer].pci_address, address) == 0)
                ports->to_peer[peer]++;
    }
}

static void connect_devices(const struct nvml *nvml, dt_device_info_t *devices)
{
    static struct ports ports[DT_DEVICE_MAX]; /* large; one thread, see nvml.h */
    memset(ports, 0, sizeof ports);
    for (int32_t i = 0; i < nvml->count; i++)
        read_ports(nvml, i, devices, &ports[i]);
    for (int32_t i = 0; i < nvml->count; i++) {
        dt_device_info_t *info = &devices[i];
        for (int32_t peer = 0; peer < nvml->count; peer++) {
            uint32_t lanes = ports[i].to_peer[peer];
            uint32_t switched = ports[i].to_switch < ports[peer].to_switch ? ports[i].to_switch
                                                                           : ports[peer].to_switch;
            if (peer == i || lanes + switched == 0)
                continue;
            info->links[info->link_count++] =
                (dt_device_link_t){.peer = peer, .kind = DT_LINK_NVLINK, .lanes = lanes + switched};
        }
    }
}

/* ---- what stays ---- */
static void describe(const struct nvml *nvml, dt_nvml_device_t device, dt_device_info_t *info)
{
    dt_nvml_pci_t pci = {0};
    dt_nvml_fabric_t fabric = {0};
    unsigned node;
    (void)snprintf(info->kind, sizeof info->kind, "cuda");
    if (ASK(nvml, name, device, info->name, sizeof info->name) != DT_NVML_SUCCESS)
        (void)snprintf(info->name, sizeof info->name, "NVIDIA device");
    (void)ASK(nvml, driver, info->driver, sizeof info->driver);
    info->numa_node = -1;
    if (ASK(nvml, numa, device, &node) == DT_NVML_SUCCESS && node < INT16_MAX)
        info->numa_node = (int32_t)node;
    if (ASK(nvml, pci, device, &pci) == DT_NVML_SUCCESS) {
        pci.bus_id[sizeof pci.bus_id - 1] = '\0';
        if (dt_topology_pci_normal(pci.bus_id, info->pci_address, sizeof info->pci_address) !=
            DT_OK)
            info->pci_address[0] = '\0';
    }
    if (ASK(nvml, fabric, device, &fabric) == DT_NVML_SUCCESS && fabric.state == 3 &&
        fabric.status == DT_NVML_SUCCESS)
        for (size_t i = 0; i < sizeof fabric.cluster_uuid; i++)
            (void)snprintf(info->nvlink_domain + 2 * i, sizeof info->nvlink_domain - 2 * i, "%02x",
                           fabric.cluster_uuid[i]);
}

static int restart(struct nvml *nvml)
{
    nvml->trouble = 0;
    (void)nvml->shutdown();
    return nvml->init();
}

static dt_status_t nvml_enumerate(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                                  int32_t *ret_count, dt_error_t *err)
{
    struct nvml *nvml = ctx;
    unsigned count = 0;
    int rc = nvml->trouble > TROUBLE_MAX ? restart(nvml) : DT_NVML_SUCCESS;
    if (rc == DT_NVML_SUCCESS)
        rc = nvml->device_count(&count);
    if (rc != DT_NVML_SUCCESS)
        return dt_fail(err, DT_ERR_DEVICE, "nvml", rc, "the devices cannot be counted (NVML %d)",
                       rc);
    if (count > (unsigned)device_max)
        return dt_fail(err, DT_ERR_LIMIT, "nvml", count, "%u devices, room for %d", count,
                       device_max);
    nvml->count = 0;
    nvml->seen = count;
    for (unsigned i = 0; i < count; i++) {
        dt_nvml_device_t device;
        dt_device_info_t *info = &ret_devices[nvml->count];
        memset(info, 0, sizeof *info);
        /* A device that is lost at this moment has no uuid to know it by: it is not there. */
        if (nvml->device_at(i, &device) != DT_NVML_SUCCESS ||
            nvml->uuid(device, info->uuid, sizeof info->uuid) != DT_NVML_SUCCESS)
            continue;
        nvml->handle[nvml->count++] = device;
        describe(nvml, device, info);
        measure(nvml, device, info);
    }
    connect_devices(nvml, ret_devices);
    *ret_count = nvml->count;
    return DT_OK;
}

static dt_status_t nvml_refresh(void *ctx, dt_device_info_t *devices, int32_t count,
                                bool *ret_is_stale, dt_error_t *err)
{
    struct nvml *nvml = ctx;
    unsigned seen = 0;
    bool is_troubled = nvml->seen != (unsigned)count;
    int rc = nvml->device_count(&seen);
    if (rc != DT_NVML_SUCCESS)
        return dt_fail(err, DT_ERR_DEVICE, "nvml", rc, "the devices cannot be counted (NVML %d)",
                       rc);
    for (int32_t i = 0; i < count && i < nvml->count; i++) {
        measure(nvml, nvml->handle[i], &devices[i]);
        is_troubled |= devices[i].health == DT_DEVICE_FAILED;
    }
    nvml->trouble = is_troubled ? nvml->trouble + 1 : 0;
    *ret_is_stale = seen != nvml->seen || nvml->trouble > TROUBLE_MAX;
    return DT_OK;
}

const dt_backend_t *dt_backend_nvml(void)
{
    static const dt_backend_t table = {
        .struct_size = sizeof(dt_backend_t),
        .abi = DT_BACKEND_ABI,
        .name = "nvml",
        .open = nvml_open,
        .enumerate = nvml_enumerate,
        .refresh = nvml_refresh,
        .close = nvml_close,
    };
    return &table;
}
