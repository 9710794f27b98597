/* `ref`: the host's processor as a device. The smallest backend there is, and the pattern for
 * others: docs/backend.md goes through it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/host.h"
#include "device/ref_internal.h"
#include "device/sysfile.h"
#include "device/topology.h"

struct ref {
    char *root;
    char *seed;
    bool is_by_node; /* spec "numa" */
};

static void ref_close(void *ctx)
{
    struct ref *ref = ctx;
    if (!ref)
        return;
    free(ref->root);
    free(ref->seed);
    free(ref);
}

static dt_status_t ref_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    struct ref *ref;
    if (*options->spec && strcmp(options->spec, "numa") != 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "ref:%s: expected \"ref\" or \"ref:numa\"",
                       options->spec);
    ref = calloc(1, sizeof *ref);
    if (!ref)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the ref backend");
    ref->root = strdup(options->root);
    ref->seed = strdup(options->seed);
    ref->is_by_node = *options->spec != '\0';
    if (!ref->root || !ref->seed) {
        ref_close(ref);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the ref backend");
    }
    *ret_ctx = ref;
    return DT_OK;
}

/* node -1: the whole host. */
static void describe(const struct ref *ref, int32_t node, dt_device_info_t *info)
{
    memset(info, 0, sizeof *info);
    dt_sysfile_uuid("CPU", ref->seed, node, info->uuid, sizeof info->uuid);
    (void)snprintf(info->kind, sizeof info->kind, "cpu");
    dt_host_cpu_name(ref->root, info->name, sizeof info->name);
    info->health = DT_DEVICE_OK;
    info->numa_node = node;
}

static void measure(const struct ref *ref, dt_device_info_t *info)
{
    if (ref->is_by_node)
        dt_host_node_memory(ref->root, info->numa_node, &info->memory_bytes,
                            &info->memory_used_bytes);
    else
        dt_host_memory(ref->root, &info->memory_bytes, &info->memory_used_bytes);
}

static dt_status_t ref_enumerate(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                                 int32_t *ret_count, dt_error_t *err)
{
    const struct ref *ref = ctx;
    dt_topology_nodes_t nodes;
    int32_t count = 0;
    dt_topology_nodes(ref->root, &nodes);
    if (device_max < 1)
        return dt_fail(err, DT_ERR_LIMIT, "dt", device_max, "no room for a CPU device");
    if (!ref->is_by_node) {
        describe(ref, -1, &ret_devices[count++]);
        if (nodes.count == 1) /* a device over several nodes is on none of them */
            ret_devices[0].numa_node = nodes.number[0];
    }
    for (int32_t i = 0; ref->is_by_node && i < nodes.count; i++) {
        if (nodes.cpu_count[i] == 0)
            continue;
        if (count == device_max)
            return dt_fail(err, DT_ERR_LIMIT, "dt", nodes.count, "more than %d NUMA nodes",
                           device_max);
        describe(ref, nodes.number[i], &ret_devices[count++]);
    }
    for (int32_t i = 0; i < count; i++)
        measure(ref, &ret_devices[i]);
    *ret_count = count;
    return DT_OK;
}

static dt_status_t ref_refresh(void *ctx, dt_device_info_t *devices, int32_t count,
                               bool *ret_is_stale, dt_error_t *err)
{
    (void)err;
    for (int32_t i = 0; i < count; i++)
        measure(ctx, &devices[i]);
    *ret_is_stale = false;
    return DT_OK;
}

const dt_backend_t *dt_backend_ref(void)
{
    static const dt_backend_t table = {
        .struct_size = sizeof(dt_backend_t),
        .abi = DT_BACKEND_ABI,
        .name = "ref",
        .open = ref_open,
        .enumerate = ref_enumerate,
        .refresh = ref_refresh,
        .close = ref_close,
        .device_open = dt_ref_device_open,
        .device_close = dt_ref_device_close,
        .op_find = dt_ref_op_find,
        .op_execute = dt_ref_op_execute,
        .op_infer = dt_ref_op_infer,
        .tensor_create = dt_ref_tensor_create,
        .tensor_info = dt_ref_tensor_info,
        .tensor_is = dt_ref_tensor_is,
        .tensor_write = dt_ref_tensor_write,
        .tensor_read = dt_ref_tensor_read,
        .tensor_free = dt_ref_tensor_free,
        .generator_seed = dt_ref_generator_seed,
        .generator_use = dt_ref_generator_use,
        .generator_free = dt_ref_generator_free,
    };
    return &table;
}
