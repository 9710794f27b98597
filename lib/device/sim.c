/* `sim`: the spec, the devices made from it, and faults played from a file. */
#include "device/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/ref_internal.h"
#include "device/sysfile.h"

#define SIM_DRIVER "sim 1"

struct sim {
    dt_sim_spec_t spec;
    char *seed;
    char *faults;
    char text[DT_SIM_FAULTS_MAX];
    dt_device_info_t scratch[DT_DEVICE_MAX];
    bool is_gone[DT_DEVICE_MAX];
    int32_t place[DT_DEVICE_MAX]; /* of scratch[i] in what enumerate returned, -1 when gone */
};

/* ---- spec ---- */
static const struct {
    const char *key;
    int64_t min, max;
    size_t at;
} numbers[] = {
    {"nvlink", 0, DT_DEVICE_MAX, offsetof(dt_sim_spec_t, nvlink)},
    {"lanes", 1, 64, offsetof(dt_sim_spec_t, lanes)},
    {"switch", 1, DT_DEVICE_MAX, offsetof(dt_sim_spec_t, switch_size)},
    {"numa", 1, DT_DEVICE_MAX, offsetof(dt_sim_spec_t, numa_nodes)},
    {"tflops", 0, 1000000, offsetof(dt_sim_spec_t, tflops)},
    {"gbs", 0, 1000000, offsetof(dt_sim_spec_t, gbs)},
};

static dt_status_t set_item(const char *key, const char *value, dt_sim_spec_t *spec,
                            dt_error_t *err)
{
    uint64_t number;
    if (strcmp(key, "name") == 0) {
        if (!*value || strlen(value) >= sizeof spec->name)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "name needs 1..%zu bytes",
                           sizeof spec->name - 1);
        (void)snprintf(spec->name, sizeof spec->name, "%s", value);
        return DT_OK;
    }
    if (strcmp(key, "memory") == 0) {
        if (dt_sysfile_parse_size(value, &spec->memory_bytes) != DT_OK)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "memory needs a size such as 80GiB");
        return DT_OK;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(key, numbers[i].key) != 0)
            continue;
        if (dt_sysfile_parse_uint(value, (uint64_t)numbers[i].max, &number) != DT_OK ||
            (int64_t)number < numbers[i].min)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s needs a number in %d..%d", key,
                           (int)numbers[i].min, (int)numbers[i].max);
        *(int32_t *)((char *)spec + numbers[i].at) = (int32_t)number;
        return DT_OK;
    }
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "unknown key; there are nvlink, lanes, switch, numa, tflops, gbs, memory, name");
}

static dt_status_t parse_item(char *item, bool is_first, dt_sim_spec_t *spec, dt_error_t *err)
{
    char *value = strchr(item, '=');
    uint64_t count;
    if (value) {
        *value = '\0';
        return set_item(item, value + 1, spec, err);
    }
    if (!is_first)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "expected KEY=VALUE");
    if (dt_sysfile_parse_uint(item, DT_DEVICE_MAX, &count) != DT_OK || count == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the number of devices must be in 1..%d",
                       DT_DEVICE_MAX);
    spec->device_count = (int32_t)count;
    return DT_OK;
}

dt_status_t dt_sim_spec_parse(const char *text, dt_sim_spec_t *ret_spec, dt_error_t *err)
{
    dt_sim_spec_t spec = {.device_count = 1,
                          .lanes = 18,
                          .switch_size = 2,
                          .numa_nodes = 1,
                          .memory_bytes = UINT64_C(80) << 30,
                          .name = "DTorch simulated device"};
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, ",");
        char item[160];
        dt_error_t why;
        if (len >= sizeof item)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "sim:%.64s…: item at byte %zu is too long",
                           text, (size_t)(at - text));
        memcpy(item, at, len);
        item[len] = '\0';
        if (len > 0 && parse_item(item, at == text, &spec, &why) != DT_OK)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "sim:%.128s: \"%.*s\" at byte %zu: %s",
                           text, (int)len, at, (size_t)(at - text), why.text);
        at += len;
        at += *at == ',';
    }
    *ret_spec = spec;
    return DT_OK;
}

/* ---- faults ---- */
static void set_health(dt_device_info_t *device, dt_device_health_t health, const char *text)
{
    if (device->health >= (int32_t)health)
        return; /* the worst fault is what is told */
    device->health = (int32_t)health;
    (void)snprintf(device->health_text, sizeof device->health_text, "%s", text);
}

static dt_status_t apply_one(const char *fault, const char *value, dt_device_info_t *device,
                             bool *is_gone)
{
    char *end;
    uint64_t number;
    if (strcmp(fault, "gone") == 0) {
        *is_gone = true;
    } else if (strcmp(fault, "failed") == 0) {
        set_health(device, DT_DEVICE_FAILED, *value ? value : "simulated failure");
    } else if (strcmp(fault, "degraded") == 0) {
        set_health(device, DT_DEVICE_DEGRADED, *value ? value : "simulated fault");
    } else if (strcmp(fault, "throttle") == 0) {
        device->throttle_reasons = *value ? strtoull(value, &end, 0) : 8;
        if (*value && (*end || device->throttle_reasons == 0))
            return DT_ERR_INVALID;
        set_health(device, DT_DEVICE_DEGRADED, "simulated throttling");
    } else if (strcmp(fault, "ecc") == 0) {
        DT_TRY(dt_sysfile_parse_uint(value, UINT64_MAX, &device->ecc_uncorrected));
        set_health(device, DT_DEVICE_DEGRADED, "simulated uncorrected memory errors");
    } else if (strcmp(fault, "used") == 0) {
        return dt_sysfile_parse_size(value, &device->memory_used_bytes);
    } else if (strcmp(fault, "busy") == 0) {
        DT_TRY(dt_sysfile_parse_uint(value, 100, &number));
        device->utilization_percent = (uint32_t)number;
    } else {
        return DT_ERR_NOT_FOUND;
    }
    return DT_OK;
}

static dt_status_t apply_line(char *line, dt_device_info_t *devices, bool *is_gone, int32_t count,
                              dt_error_t *err)
{
    char *at = line;
    const char *who, *fault;
    uint64_t only = 0;
    line[strcspn(line, "#\r")] = '\0';
    for (size_t len = strlen(line); len > 0 && strchr(" \t", line[len - 1]); len--)
        line[len - 1] = '\0';
    who = dt_sysfile_word(&at);
    if (!*who)
        return DT_OK;
    fault = dt_sysfile_word(&at);
    if (strcmp(who, "*") != 0 && dt_sysfile_parse_uint(who, (uint64_t)count - 1, &only) != DT_OK)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "device \"%s\" is not \"*\" or in 0..%d", who,
                       count - 1);
    for (int32_t i = 0; i < count; i++) {
        dt_status_t status;
        if (strcmp(who, "*") != 0 && (uint64_t)i != only)
            continue;
        status = apply_one(fault, at, &devices[i], &is_gone[i]);
        if (status == DT_ERR_NOT_FOUND)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "unknown fault \"%s\"", fault);
        if (status != DT_OK)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: wrong value \"%s\"", fault, at);
    }
    return DT_OK;
}

dt_status_t dt_sim_faults_apply(const char *file, const char *text, dt_device_info_t *devices,
                                bool *is_gone, int32_t count, dt_error_t *err)
{
    int line_number = 1;
    for (const char *at = text; *at; line_number++) {
        size_t len = strcspn(at, "\n");
        char line[512];
        dt_error_t why;
        if (len >= sizeof line)
            return dt_fail(err, DT_ERR_INVALID, "dt", line_number, "%s:%d: line too long", file,
                           line_number);
        memcpy(line, at, len);
        line[len] = '\0';
        if (apply_line(line, devices, is_gone, count, &why) != DT_OK)
            return dt_fail(err, DT_ERR_INVALID, "dt", line_number, "%s:%d: %s", file, line_number,
                           why.text);
        at += len;
        at += *at == '\n';
    }
    return DT_OK;
}

/* ---- devices ---- */
static dt_link_kind_t link_kind(const dt_sim_spec_t *spec, int32_t a, int32_t b)
{
    int32_t per_node = (spec->device_count + spec->numa_nodes - 1) / spec->numa_nodes;
    if (spec->nvlink > 0 && a / spec->nvlink == b / spec->nvlink)
        return DT_LINK_NVLINK;
    if (a / spec->switch_size == b / spec->switch_size)
        return DT_LINK_PCI_SWITCH;
    return a / per_node == b / per_node ? DT_LINK_NUMA : DT_LINK_SYSTEM;
}

static void describe(const struct sim *sim, int32_t i, dt_device_info_t *info)
{
    const dt_sim_spec_t *spec = &sim->spec;
    int32_t per_node = (spec->device_count + spec->numa_nodes - 1) / spec->numa_nodes;
    memset(info, 0, sizeof *info);
    dt_sysfile_uuid("SIM", sim->seed, i, info->uuid, sizeof info->uuid);
    (void)snprintf(info->kind, sizeof info->kind, "sim");
    (void)snprintf(info->name, sizeof info->name, "%s", spec->name);
    (void)snprintf(info->pci_address, sizeof info->pci_address, "feed:%02x:%02x.%x",
                   (unsigned)(16 + i / spec->switch_size) & 0xff,
                   (unsigned)(i % spec->switch_size) & 0x1f,
                   (unsigned)(i % spec->switch_size) >> 5);
    (void)snprintf(info->driver, sizeof info->driver, SIM_DRIVER);
    info->memory_bytes = spec->memory_bytes;
    info->numa_node = i / per_node;
    info->health = DT_DEVICE_OK;
}

/* Make all devices as they are now, gone ones too, in sim->scratch. */
static dt_status_t build(struct sim *sim, dt_error_t *err)
{
    for (int32_t i = 0; i < sim->spec.device_count; i++)
        describe(sim, i, &sim->scratch[i]);
    memset(sim->is_gone, 0, sizeof sim->is_gone);
    if (!*sim->faults || dt_sysfile_read("", sim->faults, sim->text, sizeof sim->text) != DT_OK)
        return DT_OK;
    return dt_sim_faults_apply(sim->faults, sim->text, sim->scratch, sim->is_gone,
                               sim->spec.device_count, err);
}

static dt_status_t sim_enumerate(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                                 int32_t *ret_count, dt_error_t *err)
{
    struct sim *sim = ctx;
    int32_t count = 0;
    DT_TRY(build(sim, err));
    for (int32_t i = 0; i < sim->spec.device_count; i++)
        sim->place[i] = sim->is_gone[i] ? -1 : count++;
    if (count > device_max)
        return dt_fail(err, DT_ERR_LIMIT, "dt", count, "no room for %d devices", count);
    for (int32_t i = 0; i < sim->spec.device_count; i++) {
        dt_device_info_t *info = &sim->scratch[i];
        if (sim->place[i] < 0)
            continue;
        for (int32_t peer = 0; peer < sim->spec.device_count; peer++) {
            dt_link_kind_t kind = link_kind(&sim->spec, i, peer);
            if (peer == i || sim->place[peer] < 0)
                continue;
            info->links[info->link_count++] = (dt_device_link_t){
                .peer = sim->place[peer],
                .kind = (int32_t)kind,
                .lanes = kind == DT_LINK_NVLINK ? (uint32_t)sim->spec.lanes : 0,
            };
        }
        ret_devices[sim->place[i]] = *info;
    }
    *ret_count = count;
    return DT_OK;
}

static dt_status_t sim_refresh(void *ctx, dt_device_info_t *devices, int32_t count,
                               bool *ret_is_stale, dt_error_t *err)
{
    struct sim *sim = ctx;
    DT_TRY(build(sim, err));
    *ret_is_stale = false;
    for (int32_t i = 0; i < sim->spec.device_count; i++) {
        const dt_device_info_t *now = &sim->scratch[i];
        dt_device_info_t *device;
        if (sim->is_gone[i] != (sim->place[i] < 0) || sim->place[i] >= count) {
            *ret_is_stale = true;
            return DT_OK;
        }
        if (sim->is_gone[i])
            continue;
        device = &devices[sim->place[i]];
        device->health = now->health;
        memcpy(device->health_text, now->health_text, sizeof device->health_text);
        device->memory_used_bytes = now->memory_used_bytes;
        device->ecc_uncorrected = now->ecc_uncorrected;
        device->throttle_reasons = now->throttle_reasons;
        device->utilization_percent = now->utilization_percent;
    }
    return DT_OK;
}

static void sim_close(void *ctx)
{
    struct sim *sim = ctx;
    if (!sim)
        return;
    free(sim->seed);
    free(sim->faults);
    free(sim);
}

static dt_status_t sim_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    struct sim *sim = calloc(1, sizeof *sim);
    dt_status_t status;
    if (!sim)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the sim backend");
    sim->seed = strdup(options->seed);
    sim->faults = strdup(options->faults);
    if (!sim->seed || !sim->faults)
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the sim backend");
    else
        status = dt_sim_spec_parse(options->spec, &sim->spec, err);
    if (status != DT_OK) {
        sim_close(sim);
        return status;
    }
    *ret_ctx = sim;
    return DT_OK;
}

static dt_status_t sim_device_open(void *ctx, const dt_backend_device_options_t *options,
                                   void **ret_device, dt_error_t *err)
{
    const struct sim *sim = ctx;
    (void)options;
    return dt_sim_device_make(&sim->spec, ret_device, err);
}

const dt_backend_t *dt_backend_sim(void)
{
    static const dt_backend_t table = {
        .struct_size = sizeof(dt_backend_t),
        .abi = DT_BACKEND_ABI,
        .name = "sim",
        .open = sim_open,
        .enumerate = sim_enumerate,
        .refresh = sim_refresh,
        .close = sim_close,
        .device_open = sim_device_open,
        .device_close = dt_sim_device_close,
        .op_find = dt_sim_op_find,
        .op_execute = dt_sim_op_execute,
        .op_infer = dt_sim_op_infer,
        .op_expect = dt_sim_op_expect,
        .tensor_create = dt_sim_tensor_create,
        .tensor_info = dt_sim_tensor_info,
        .tensor_is = dt_ref_tensor_is,
        .tensor_write = dt_sim_tensor_write,
        .tensor_read = dt_sim_tensor_read,
        .tensor_free = dt_ref_tensor_free,
        .generator_seed = dt_ref_generator_seed,
        .generator_use = dt_ref_generator_use,
        .generator_free = dt_ref_generator_free,
        .device_sync = dt_sim_device_sync,
    };
    return &table;
}
