/* From Devices= to backends that can be asked. */
#include "device/source.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/builtin.h"
#include "device/sysfile.h"

#define DEFAULT_SEED "dtorch"

static dt_status_t no_memory(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the devices");
}

static dt_status_t keep(const char *text, const char *otherwise, char **ret_copy, dt_error_t *err)
{
    const char *from = text ? text : otherwise;
    if (!from)
        return DT_OK;
    *ret_copy = strdup(from);
    return *ret_copy ? DT_OK : no_memory(err);
}

static const dt_backend_t *table_of(const char *name)
{
    return strcmp(name, "ref") == 0   ? dt_backend_ref()
           : strcmp(name, "sim") == 0 ? dt_backend_sim()
                                      : NULL;
}

static dt_backend_options_t options_of(const dt_sources_t *sources, const dt_source_t *source)
{
    return (dt_backend_options_t){
        .struct_size = sizeof(dt_backend_options_t),
        .spec = source->spec,
        .root = sources->root,
        .seed = sources->seed,
        .faults = sources->faults,
        .library = sources->library && !*source->path ? sources->library : "",
    };
}

static dt_status_t open_source(const dt_sources_t *sources, dt_source_t *source, dt_error_t *err)
{
    const dt_backend_t *table = source->builtin ? table_of(source->builtin) : NULL;
    dt_backend_options_t options = options_of(sources, source);
    dt_probe_options_t probe = {
        .program = sources->program,
        .path = *source->path ? source->path : NULL,
        .builtin = source->builtin,
        .backend = options,
    };
    if (!table)
        return dt_probe_create(&probe, &source->probe, err);
    source->run = malloc(sizeof *source->run);
    if (!source->run)
        return no_memory(err);
    return dt_loader_open(table, NULL, &options, source->run, err);
}

/* ---- Devices= ---- */
struct selection {
    const dt_device_options_t *options;
    dt_sources_t *sources;
    dt_loader_file_t *files; /* found in Backends= */
    size_t file_count;
};

static dt_status_t make_spec(const struct selection *sel, const char *spec, dt_source_t *source,
                             dt_error_t *err)
{
    const char *topology = sel->options->sim_topology;
    /* The library of torch is of the CPU; its NVIDIA devices come from nvml. */
    bool is_cpu_only = strcmp(source->name, "ref") == 0 ||
                       (strcmp(source->name, "torch") == 0 && !source->builtin);
    uint64_t limit;
    source->limit = DT_DEVICE_MAX;
    source->copies = 1;
    if (strcmp(source->name, "sim") == 0) {
        bool has_both = *spec && topology && *topology;
        if (asprintf(&source->spec, "%s%s%s", spec, has_both ? "," : "",
                     topology ? topology : "") >= 0)
            return DT_OK;
        source->spec = NULL;
        return no_memory(err);
    }
    if (!isdigit((unsigned char)*spec))
        return keep(spec, NULL, &source->spec, err);
    if (dt_sysfile_parse_uint(spec, DT_DEVICE_MAX, &limit) != DT_OK || limit == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "Devices=%s:%s: the number of devices must be in 1..%d", source->name, spec,
                       DT_DEVICE_MAX);
    *(is_cpu_only ? &source->copies : &source->limit) = (int32_t)limit;
    return keep("", NULL, &source->spec, err);
}

static dt_status_t check_once(const dt_sources_t *sources, const char *name, dt_error_t *err)
{
    for (int32_t i = 0; i < sources->count; i++)
        if (strcmp(sources->at[i].name, name) == 0)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "Devices=: %s is there twice", name);
    return DT_OK;
}

/* `path` of a shared object, or NULL: built in as `builtin`. */
static dt_status_t add(struct selection *sel, const char *name, const char *builtin,
                       const char *path, const char *spec, dt_error_t *err)
{
    dt_sources_t *sources = sel->sources;
    dt_source_t *source;
    if (sources->count == DT_INVENTORY_BACKEND_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "Devices=: more than %d backends",
                       DT_INVENTORY_BACKEND_MAX);
    source = &sources->at[sources->count++];
    (void)snprintf(source->name, sizeof source->name, "%s", name);
    source->builtin = builtin;
    (void)snprintf(source->path, sizeof source->path, "%s", path ? path : "");
    DT_TRY(make_spec(sel, spec, source, err));
    return open_source(sources, source, err);
}

static const dt_loader_file_t *find_file(const struct selection *sel, const char *name)
{
    for (size_t i = 0; i < sel->file_count; i++)
        if (strcmp(sel->files[i].name, name) == 0)
            return &sel->files[i];
    return NULL;
}

/* torch, torch:cpu, torch:cpu:N (the CPU as N devices), torch:cuda, torch:N (at most N CUDA
 * devices). */
static dt_status_t add_torch(struct selection *sel, const char *spec, dt_error_t *err)
{
    const dt_loader_file_t *file = find_file(sel, "torch");
    bool is_many = strncmp(spec, "cpu:", 4) == 0 && isdigit((unsigned char)spec[4]);
    bool is_cpu = is_many || strcmp(spec, "cpu") == 0, is_cuda = strcmp(spec, "cuda") == 0;
    if (*spec && !is_cpu && !is_cuda && !isdigit((unsigned char)*spec))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "Devices=torch:%s: expected torch, torch:cpu, torch:cpu:COUNT, torch:cuda "
                       "or torch:COUNT",
                       spec);
    if (is_cpu && !file)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "Devices=torch:cpu: dtorch-backend-torch.so is in no folder of Backends=");
    if (file && (is_cpu || !*spec))
        DT_TRY(add(sel, "torch", NULL, file->path, is_many ? spec + 4 : "", err));
    return is_cpu ? DT_OK : add(sel, "torch", "nvml", NULL, is_cuda ? "" : spec, err);
}

/* The host's processor is one device: torch's where its library is there, else ref's. */
static dt_status_t add_all(struct selection *sel, dt_error_t *err)
{
    if (!find_file(sel, "torch"))
        DT_TRY(add(sel, "ref", "ref", NULL, "", err));
    DT_TRY(add_torch(sel, "", err));
    for (size_t i = 0; i < sel->file_count; i++)
        if (strcmp(sel->files[i].name, "torch") != 0)
            DT_TRY(add(sel, sel->files[i].name, NULL, sel->files[i].path, "", err));
    return DT_OK;
}

/* cpu, cpu:N: as torch:cpu:N where its library is there, else as ref:N. */
static dt_status_t add_cpu(struct selection *sel, const char *spec, dt_error_t *err)
{
    const dt_loader_file_t *file = find_file(sel, "torch");
    if (*spec && !isdigit((unsigned char)*spec))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "Devices=cpu:%s: expected cpu or cpu:COUNT",
                       spec);
    return file ? add(sel, "torch", NULL, file->path, spec, err)
                : add(sel, "ref", "ref", NULL, spec, err);
}

static dt_status_t unknown(const struct selection *sel, const char *name, dt_error_t *err)
{
    char known[256] = "ref, sim, torch";
    for (size_t i = 0; i < sel->file_count; i++) {
        size_t used = strlen(known);
        if (strcmp(sel->files[i].name, "torch") != 0)
            (void)snprintf(known + used, sizeof known - used, ", %s", sel->files[i].name);
    }
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "Devices=%s: no such backend; there are %s (and \"all\", \"none\")", name,
                   known);
}

static dt_status_t add_item(struct selection *sel, const char *item, dt_error_t *err)
{
    char name[DT_LOADER_NAME_MAX];
    size_t len = strcspn(item, ":");
    const char *spec = item[len] ? item + len + 1 : "";
    const dt_loader_file_t *file;
    if (len == 0 || len >= sizeof name)
        return unknown(sel, item, err);
    (void)snprintf(name, sizeof name, "%.*s", (int)len, item);
    DT_TRY(check_once(sel->sources, name, err));
    if (strcmp(name, "torch") == 0)
        return add_torch(sel, spec, err);
    if (strcmp(name, "cpu") == 0)
        return add_cpu(sel, spec, err);
    file = find_file(sel, name);
    if (file)
        return add(sel, name, NULL, file->path, spec, err);
    if (table_of(name))
        return add(sel, name, table_of(name)->name, NULL, spec, err);
    return unknown(sel, name, err);
}

static dt_status_t select_devices(struct selection *sel, dt_error_t *err)
{
    const dt_device_options_t *o = sel->options;
    for (size_t i = 0; i < sel->file_count; i++)
        if (table_of(sel->files[i].name) || strcmp(sel->files[i].name, "nvml") == 0)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "%s: the name %s is taken by a built-in "
                           "backend",
                           sel->files[i].path, sel->files[i].name);
    if (o->device_count == 0)
        return add_all(sel, err);
    for (size_t i = 0; i < o->device_count; i++) {
        bool is_all = strcmp(o->devices[i], "all") == 0;
        if (!is_all && strcmp(o->devices[i], "none") != 0) {
            DT_TRY(add_item(sel, o->devices[i], err));
            continue;
        }
        if (o->device_count > 1)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "Devices=: \"%s\" stands alone",
                           o->devices[i]);
        return is_all ? add_all(sel, err) : DT_OK;
    }
    return DT_OK;
}

dt_status_t dt_sources_init(const dt_device_options_t *options, dt_sources_t *ret_sources,
                            dt_error_t *err)
{
    struct selection sel = {.options = options, .sources = ret_sources};
    dt_status_t status;
    memset(ret_sources, 0, sizeof *ret_sources);
    DT_TRY(keep(options->root, "", &ret_sources->root, err));
    DT_TRY(keep(options->seed, DEFAULT_SEED, &ret_sources->seed, err));
    DT_TRY(keep(options->sim_faults, "", &ret_sources->faults, err));
    DT_TRY(keep(options->nvml_path, NULL, &ret_sources->library, err));
    DT_TRY(keep(options->probe_program, NULL, &ret_sources->program, err));
    sel.files = calloc(DT_INVENTORY_BACKEND_MAX, sizeof *sel.files);
    if (!sel.files)
        return no_memory(err);
    status = dt_loader_scan(options->backend_dirs, options->backend_dir_count, sel.files,
                            DT_INVENTORY_BACKEND_MAX, &sel.file_count, err);
    if (status == DT_OK)
        status = select_devices(&sel, err);
    free(sel.files);
    return status;
}

void dt_sources_fini(dt_sources_t *sources)
{
    for (int32_t i = 0; i < sources->count; i++) {
        dt_source_t *source = &sources->at[i];
        dt_probe_free(source->probe);
        dt_loader_close(source->run);
        free(source->run);
        free(source->spec);
    }
    free(sources->root);
    free(sources->seed);
    free(sources->faults);
    free(sources->library);
    free(sources->program);
    memset(sources, 0, sizeof *sources);
}

const char *dt_source_label(const dt_source_t *source)
{
    return source->builtin ? source->builtin : source->name;
}

void dt_sources_cancel(dt_sources_t *sources)
{
    for (int32_t i = 0; i < sources->count; i++)
        if (sources->at[i].probe)
            dt_probe_cancel(sources->at[i].probe);
}

/* ---- asking ---- */
/* A child is only worth its start where the kernel has NVIDIA's driver. */
static bool has_nvidia(const dt_sources_t *sources)
{
    static const char *const signs[] = {"/proc/driver/nvidia/version", "/dev/nvidiactl",
                                        "/dev/dxg"};
    char path[DT_SYSFILE_PATH_MAX];
    if (sources->library)
        return true;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if ((size_t)snprintf(path, sizeof path, "%s%s", sources->root, signs[i]) < sizeof path &&
            access(path, F_OK) == 0)
            return true;
    return false;
}

dt_status_t dt_source_list(dt_sources_t *sources, dt_source_t *source, int64_t now_ns,
                           dt_probe_answer_t *answer, dt_device_info_t **ret_devices,
                           int32_t *ret_count, dt_error_t *err)
{
    if (source->run) {
        DT_TRY(dt_loader_update(source->run, err));
        *ret_devices = source->run->devices;
        *ret_count = source->run->count;
        return DT_OK;
    }
    if (source->builtin && !has_nvidia(sources))
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "no NVIDIA driver on this machine");
    DT_TRY(dt_probe_ask(source->probe, now_ns, answer, err));
    *ret_devices = answer->devices;
    *ret_count = answer->count;
    return DT_OK;
}
