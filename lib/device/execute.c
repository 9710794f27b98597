/* From a device's backend to the code that runs its operators. */
#include "device/execute.h"

#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/device.h"

static dt_status_t find_file(const char *name, const char *const *dirs, size_t dir_count,
                             const dt_loader_file_t *files, size_t count, const char **ret_path,
                             dt_error_t *err)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(files[i].name, name) == 0) {
            *ret_path = files[i].path;
            return DT_OK;
        }
    return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0,
                   "dtorch-backend-%s.so is in none of the %zu folders of Backends= (%s%s)", name,
                   dir_count, dir_count ? dirs[0] : "none", dir_count > 1 ? ", …" : "");
}

static dt_status_t check_executes(const dt_loader_run_t *run, dt_error_t *err)
{
    if (run->table.device_open)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "the %s backend only lists devices: it runs no operators", run->table.name);
}

dt_status_t dt_device_execute_open(const char *name, const char *const *dirs, size_t dir_count,
                                   const dt_backend_options_t *options, dt_loader_run_t *ret_run,
                                   dt_error_t *err)
{
    const dt_backend_t *table = strcmp(name, "ref") == 0   ? dt_backend_ref()
                                : strcmp(name, "sim") == 0 ? dt_backend_sim()
                                                           : NULL;
    dt_loader_file_t *files = NULL;
    const char *path = NULL;
    size_t count = 0;
    dt_status_t status = DT_OK;
    memset(ret_run, 0, sizeof *ret_run);
    if (!table) {
        files = calloc(DT_INVENTORY_BACKEND_MAX, sizeof *files);
        status = files
                     ? dt_loader_scan(dirs, dir_count, files, DT_INVENTORY_BACKEND_MAX, &count, err)
                     : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to look for backends");
        if (status == DT_OK)
            status = find_file(name, dirs, dir_count, files, count, &path, err);
    }
    if (status == DT_OK)
        status = dt_loader_open(table, path, options, ret_run, err);
    if (status == DT_OK)
        status = check_executes(ret_run, err);
    free(files);
    return status;
}
