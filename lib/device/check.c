/* `--check-backends`: does each backend load here, and what does it see. */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/loader.h"
#include "device/probe.h"

static dt_status_t check_one(const dt_device_options_t *options, const char *name, const char *path,
                             dt_probe_answer_t *answer, FILE *out)
{
    dt_probe_options_t probe_options = {
        .program = options->probe_program,
        .path = path,
        .builtin = name,
        .backend = {.struct_size = sizeof(dt_backend_options_t),
                    .spec = "",
                    .root = options->root ? options->root : "",
                    .seed = options->seed ? options->seed : "check",
                    .faults = "",
                    .library = options->nvml_path && !path ? options->nvml_path : ""},
    };
    dt_error_t err = {0};
    dt_probe_t *probe = NULL;
    dt_status_t status = dt_probe_create(&probe_options, &probe, &err);
    if (status == DT_OK)
        status = dt_probe_ask(probe, 0, answer, &err);
    dt_probe_free(probe);
    if (status == DT_OK)
        (void)fprintf(out, "%-12s ok       ABI %d, table %llu bytes, %d device%s%s%s\n", name,
                      answer->abi, (unsigned long long)answer->table_size, answer->count,
                      answer->count == 1 ? "" : "s", path ? "  " : "", path ? path : "");
    else if (status == DT_ERR_NOT_FOUND)
        (void)fprintf(out, "%-12s absent   %s\n", name, err.text);
    else
        (void)fprintf(out, "%-12s failed   %s\n", name, err.text);
    return status == DT_ERR_NOT_FOUND ? DT_OK : status;
}

dt_status_t dt_device_check_backends(const dt_device_options_t *options, FILE *out, dt_error_t *err)
{
    static const char *const builtin[] = {"ref", "sim", "nvml"};
    dt_loader_file_t *files = calloc(DT_INVENTORY_BACKEND_MAX, sizeof *files);
    dt_probe_answer_t *answer = malloc(sizeof *answer);
    size_t count = 0;
    int failed = 0;
    dt_status_t status = DT_ERR_NOMEM;
    if (!files || !answer) {
        (void)dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to check backends");
        goto out;
    }
    status = dt_loader_scan(options->backend_dirs, options->backend_dir_count, files,
                            DT_INVENTORY_BACKEND_MAX, &count, err);
    if (status != DT_OK)
        goto out;
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++)
        failed += check_one(options, builtin[i], NULL, answer, out) != DT_OK;
    for (size_t i = 0; i < count; i++)
        failed += check_one(options, files[i].name, files[i].path, answer, out) != DT_OK;
    if (failed > 0)
        status = dt_fail(err, DT_ERR_INVALID, "dt", failed, "%d backend%s failed", failed,
                         failed == 1 ? "" : "s");
out:
    free(files);
    free(answer);
    return status;
}
