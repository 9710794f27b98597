#include "devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/strings.h"

#define DT_DEVICES_DRIFT_MS 30000

struct dt_devices {
    dt_device_monitor_t *monitor;
    dt_rpc_wake_t *wake;
    dt_inventory_snapshot_t *snapshot; /* newest; NULL until the first */
    dt_inventory_message_t *message;   /* of `snapshot` */
    void (*changed)(void *arg);
    void *arg;
};

void dt_devices_select(const dt_conf_t *conf, const dt_identity_t *identity,
                       dt_devices_selection_t *ret_selection)
{
    const dt_strv_t *devices = dt_conf_list(conf, "Devices");
    const dt_strv_t *dirs = dt_conf_list(conf, "Backends");
    const char *faults = dt_conf_str(conf, "SimFaults");
    dt_devices_selection_t *s = ret_selection;
    *s = (dt_devices_selection_t){.options = DT_DEVICE_OPTIONS_INIT};
    for (size_t i = 0; i < devices->count && i < DT_DEVICE_MAX; i++)
        s->devices[s->options.device_count++] = devices->items[i];
    for (size_t i = 0; i < dirs->count && i < DT_INVENTORY_BACKEND_MAX; i++)
        s->dirs[s->options.backend_dir_count++] = dirs->items[i];
    if (dirs->count == 0 && dt_loader_home(s->home, sizeof s->home, NULL) == DT_OK)
        s->dirs[s->options.backend_dir_count++] = s->home;
    s->options.devices = s->devices;
    s->options.backend_dirs = s->dirs;
    s->options.sim_topology = dt_conf_str(conf, "SimTopology");
    s->options.sim_faults = faults[0] ? faults : NULL;
    s->options.rack = dt_conf_str(conf, "Rack");
    if (identity) {
        s->options.state_dir = identity->directory;
        s->options.seed = identity->node_id_hex;
    }
}

static bool has_problem(const dt_inventory_snapshot_t *snapshot, const dt_device_problem_t *problem)
{
    for (int32_t i = 0; snapshot && i < snapshot->problem_count; i++)
        if (strcmp(snapshot->problems[i].backend, problem->backend) == 0 &&
            strcmp(snapshot->problems[i].error.text, problem->error.text) == 0)
            return true;
    return false;
}

static bool has_backend(const dt_inventory_snapshot_t *snapshot, const char *backend)
{
    for (int32_t i = 0; i < snapshot->problem_count; i++)
        if (strcmp(snapshot->problems[i].backend, backend) == 0)
            return true;
    return false;
}

static void log_difference(const dt_inventory_snapshot_t *old, const dt_inventory_snapshot_t *new)
{
    for (int32_t i = 0; i < new->problem_count; i++) {
        const dt_device_problem_t *problem = &new->problems[i];
        if (has_problem(old, problem))
            continue;
        if (problem->error.code == DT_ERR_NOT_FOUND) /* no such hardware here is no fault */
            dt_log_info("backend has no devices here", DT_LOG_S("backend", problem->backend),
                        DT_LOG_E(&problem->error));
        else
            dt_log_warn("backend does not work", DT_LOG_S("backend", problem->backend),
                        DT_LOG_E(&problem->error));
    }
    for (int32_t i = 0; old && i < old->problem_count; i++)
        if (!has_backend(new, old->problems[i].backend))
            dt_log_notice("backend works again", DT_LOG_S("backend", old->problems[i].backend));
    if (old && old->device_count == new->device_count)
        return;
    if (new->device_count == 0 && new->problem_count > 0) /* asked for, and not there */
        dt_log_warn("this node has no device: see Devices=",
                    DT_LOG_S("first", new->problems[0].backend), DT_LOG_E(&new->problems[0].error));
    else
        dt_log_notice("devices", DT_LOG_I("count", new->device_count));
}

static void on_snapshot(void *arg)
{
    dt_devices_t *devices = arg;
    dt_inventory_snapshot_t *snapshot = dt_device_monitor_take(devices->monitor);
    if (!snapshot)
        return;
    log_difference(devices->snapshot, snapshot);
    dt_inventory_message_fill(devices->message, snapshot);
    dt_inventory_snapshot_free(devices->snapshot);
    devices->snapshot = snapshot;
    devices->changed(devices->arg);
}

static dt_status_t monitor_start(dt_devices_t *devices, const dt_conf_t *conf,
                                 const dt_identity_t *identity, dt_error_t *err)
{
    dt_devices_selection_t selection;
    dt_inventory_t *inventory;
    const dt_device_monitor_options_t options = {
        .refresh_ms = (int32_t)(dt_conf_duration_ns(conf, "DeviceInterval") / 1000000),
        .drift_ms = DT_DEVICES_DRIFT_MS,
        .notify = dt_rpc_wake,
        .arg = devices->wake,
    };
    dt_devices_select(conf, identity, &selection);
    DT_TRY(dt_inventory_open(&selection.options, &inventory, err));
    dt_status_t status = dt_device_monitor_start(inventory, &options, &devices->monitor, err);
    if (status != DT_OK)
        dt_inventory_free(inventory);
    return status;
}

dt_status_t dt_devices_create(dt_rpc_t *rpc, const dt_conf_t *conf, const dt_identity_t *identity,
                              void (*changed)(void *arg), void *arg, dt_devices_t **ret_devices,
                              dt_error_t *err)
{
    dt_devices_t *devices = calloc(1, sizeof *devices);
    if (!devices)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for devices");
    devices->changed = changed;
    devices->arg = arg;
    devices->message = calloc(1, sizeof *devices->message);
    dt_status_t status = devices->message
                             ? dt_rpc_wake_create(rpc, on_snapshot, devices, &devices->wake, err)
                             : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for devices");
    if (status == DT_OK)
        status = monitor_start(devices, conf, identity, err);
    if (status != DT_OK) {
        dt_devices_free(devices);
        return status;
    }
    *ret_devices = devices;
    return DT_OK;
}

dt_inventory_message_t *dt_devices_message(dt_devices_t *devices)
{
    return devices->snapshot ? devices->message : NULL;
}

const dt_inventory_snapshot_t *dt_devices_snapshot(const dt_devices_t *devices)
{
    return devices->snapshot;
}

/* ---- what engines load ---- */

static const dt_device_t *device_find(const dt_inventory_snapshot_t *snapshot, int32_t index)
{
    for (int32_t i = 0; i < snapshot->device_count; i++)
        if (snapshot->devices[i].index == index &&
            snapshot->devices[i].info.health != DT_DEVICE_FAILED)
            return &snapshot->devices[i];
    return NULL;
}

static const dt_device_t *device_choose(const dt_inventory_snapshot_t *snapshot, int32_t preferred)
{
    const dt_device_t *best = device_find(snapshot, preferred);
    for (int32_t i = 0; !best && i < snapshot->device_count; i++)
        if (strcmp(snapshot->devices[i].backend, "torch") == 0)
            best = device_find(snapshot, snapshot->devices[i].index);
    for (int32_t i = 0; !best && i < snapshot->device_count; i++)
        best = device_find(snapshot, snapshot->devices[i].index);
    return best;
}

/* The spec that enumerated the devices; only `sim` needs it to execute, for its cost model. */
static void spec_fill(const dt_devices_selection_t *selection, dt_engine_setup_t *setup)
{
    const char *topology = selection->options.sim_topology;
    const char *spec = "";
    if (!dt_str_is_equal(setup->backend, "sim"))
        return;
    for (size_t i = 0; i < selection->options.device_count; i++)
        if (dt_str_has_prefix(selection->devices[i], "sim:"))
            spec = selection->devices[i] + 4;
    bool has_topology = topology && topology[0];
    (void)snprintf(setup->spec, sizeof setup->spec, "%s%s%s", spec,
                   spec[0] && has_topology ? "," : "", has_topology ? topology : "");
}

static void dirs_fill(const dt_devices_selection_t *selection, dt_engine_setup_t *setup)
{
    size_t at = 0;
    for (size_t i = 0; i < selection->options.backend_dir_count; i++) {
        size_t size = strlen(selection->options.backend_dirs[i]) + 1;
        if (at + size > sizeof setup->dirs)
            return;
        memcpy(setup->dirs + at, selection->options.backend_dirs[i], size);
        at += size;
        setup->dir_count++;
    }
}

/* Whether the first device will be LibTorch's, as far as Devices= tells. */
static bool expects_torch(const dt_devices_selection_t *selection)
{
    dt_loader_file_t files[DT_INVENTORY_BACKEND_MAX];
    const dt_device_options_t *options = &selection->options;
    bool is_wanted = options->device_count == 0;
    size_t count;
    for (size_t i = 0; i < options->device_count; i++)
        is_wanted |= dt_str_is_equal(options->devices[i], "all") ||
                     dt_str_is_equal(options->devices[i], "torch") ||
                     dt_str_has_prefix(options->devices[i], "torch:");
    if (!is_wanted || dt_loader_scan(options->backend_dirs, options->backend_dir_count, files,
                                     DT_INVENTORY_BACKEND_MAX, &count, NULL) != DT_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (dt_str_is_equal(files[i].name, "torch"))
            return true;
    return false;
}

/* Before the devices are known: the library that takes long is loaded beside the inventory. */
static bool setup_early(const dt_conf_t *conf, const dt_identity_t *identity,
                        dt_engine_setup_t *ret_setup)
{
    dt_devices_selection_t selection;
    dt_devices_select(conf, identity, &selection);
    if (!expects_torch(&selection))
        return false;
    ret_setup->device = DT_ENGINE_DEVICE_LATER;
    (void)dt_str_copy(ret_setup->backend, sizeof ret_setup->backend, "torch");
    (void)dt_str_copy(ret_setup->seed, sizeof ret_setup->seed, identity->node_id_hex);
    dirs_fill(&selection, ret_setup);
    return true;
}

bool dt_devices_engine_setup(const dt_devices_t *devices, const dt_conf_t *conf,
                             const dt_identity_t *identity, int32_t device, int32_t preferred,
                             dt_engine_setup_t *ret_setup)
{
    dt_devices_selection_t selection;
    if (!devices->snapshot)
        return device < 0 && setup_early(conf, identity, ret_setup);
    const dt_device_t *found = device >= 0 ? device_find(devices->snapshot, device)
                                           : device_choose(devices->snapshot, preferred);
    if (!found)
        return device < 0;
    dt_devices_select(conf, identity, &selection);
    ret_setup->device = found->index;
    ret_setup->threads = (int32_t)dt_conf_int(conf, "EngineThreads");
    ret_setup->is_serial = !dt_conf_bool(conf, "Overlap");
    ret_setup->info = found->info;
    (void)dt_str_copy(ret_setup->backend, sizeof ret_setup->backend, found->backend);
    (void)dt_str_copy(ret_setup->seed, sizeof ret_setup->seed, identity->node_id_hex);
    spec_fill(&selection, ret_setup);
    dirs_fill(&selection, ret_setup);
    return true;
}

int64_t dt_devices_busy_ns(const dt_devices_t *devices)
{
    int64_t since_ns = dt_device_monitor_busy_since_ns(devices->monitor);
    return since_ns > 0 ? dt_loop_now_ns() - since_ns : 0;
}

void dt_devices_free(dt_devices_t *devices)
{
    if (!devices)
        return;
    dt_device_monitor_stop(devices->monitor);
    if (devices->wake)
        dt_rpc_wake_free(devices->wake);
    dt_inventory_snapshot_free(devices->snapshot);
    free(devices->message);
    free(devices);
}
