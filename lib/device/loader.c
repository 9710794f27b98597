/* Finding, refusing and driving backends. */
#include "device/loader.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/sysfile.h"

#define FILE_PREFIX "dtorch-backend-"
#define FILE_SUFFIX ".so"

static bool name_is_valid(const char *name, size_t len)
{
    if (len == 0 || len >= DT_LOADER_NAME_MAX || !islower((unsigned char)name[0]))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!islower((unsigned char)name[i]) && !isdigit((unsigned char)name[i]) && name[i] != '-')
            return false;
    return true;
}

/* ---- files ---- */
/* The NAME in dtorch-backend-NAME.so, or false. */
static bool name_of_file(const char *file, char *ret_name, size_t size)
{
    size_t len = strlen(file), prefix = strlen(FILE_PREFIX), suffix = strlen(FILE_SUFFIX);
    if (len <= prefix + suffix || strncmp(file, FILE_PREFIX, prefix) != 0 ||
        strcmp(file + len - suffix, FILE_SUFFIX) != 0 ||
        !name_is_valid(file + prefix, len - prefix - suffix))
        return false;
    (void)snprintf(ret_name, size, "%.*s", (int)(len - prefix - suffix), file + prefix);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dt_loader_file_t *)a)->name, ((const dt_loader_file_t *)b)->name);
}

static bool is_listed(const dt_loader_file_t *files, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(files[i].name, name) == 0)
            return true;
    return false;
}

static dt_status_t scan_one(DIR *dir, const char *path, dt_loader_file_t *files, size_t file_max,
                            size_t *count, dt_error_t *err)
{
    const struct dirent *entry;
    size_t before = *count;
    char name[DT_LOADER_NAME_MAX];
    while ((entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe): our own stream */
        dt_loader_file_t *file = &files[*count];
        if (!name_of_file(entry->d_name, name, sizeof name) || is_listed(files, before, name))
            continue;
        if (*count == file_max)
            return dt_fail(err, DT_ERR_LIMIT, "dt", (int64_t)file_max,
                           "%s: more than %zu backends in all", path, file_max);
        if ((size_t)snprintf(file->path, sizeof file->path, "%s/%s", path, entry->d_name) >=
            sizeof file->path)
            return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "%s/%s: path too long", path, entry->d_name);
        (void)snprintf(file->name, sizeof file->name, "%s", name);
        ++*count;
    }
    qsort(files + before, *count - before, sizeof *files, by_name);
    return DT_OK;
}

dt_status_t dt_loader_home(char *ret_path, size_t size, dt_error_t *err)
{
    char program[DT_LOADER_PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    char *slash;
    if (len < 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "errno", errno, "/proc/self/exe: %s",
                       dt_sysfile_errno_text(errno));
    program[len] = '\0';
    slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    if ((size_t)snprintf(ret_path, size, "%s/../lib/dtorch/backends", program) >= size)
        return dt_fail(err, DT_ERR_LIMIT, "dt", len, "%s: path too long", program);
    return DT_OK;
}

dt_status_t dt_loader_scan(const char *const *dirs, size_t dir_count, dt_loader_file_t *ret_files,
                           size_t file_max, size_t *ret_count, dt_error_t *err)
{
    size_t count = 0;
    for (size_t i = 0; i < dir_count; i++) {
        DIR *dir = opendir(dirs[i]);
        dt_status_t status;
        if (!dir && errno == ENOENT)
            continue;
        if (!dir)
            return dt_fail(err, DT_ERR_DENIED, "errno", errno, "Backends=%s: %s", dirs[i],
                           dt_sysfile_errno_text(errno));
        status = scan_one(dir, dirs[i], ret_files, file_max, &count, err);
        (void)closedir(dir);
        if (status != DT_OK)
            return status;
    }
    *ret_count = count;
    return DT_OK;
}

/* ---- acceptance ---- */
/* Who can open a device must have all entries that have no fallback. */
static const char *missing_entry(const dt_backend_t *t)
{
    if (!t->device_open)
        return NULL;
    return !t->device_close     ? "device_close"
           : !t->op_find        ? "op_find"
           : !t->op_execute     ? "op_execute"
           : !t->tensor_create  ? "tensor_create"
           : !t->tensor_info    ? "tensor_info"
           : !t->tensor_write   ? "tensor_write"
           : !t->tensor_read    ? "tensor_read"
           : !t->tensor_free    ? "tensor_free"
           : !t->generator_seed ? "generator_seed"
           : !t->generator_use  ? "generator_use"
           : !t->generator_free ? "generator_free"
                                : NULL;
}

dt_status_t dt_loader_accept(const dt_backend_t *given, const char *file, dt_backend_t *ret_table,
                             dt_error_t *err)
{
    dt_backend_t table = {0};
    const char *missing;
    if (given->abi != DT_BACKEND_ABI || given->struct_size < DT_BACKEND_SIZE_MIN)
        return dt_fail(err, DT_ERR_INVALID, "dt", given->abi,
                       "%s: built for backend ABI %d with a table of %zu bytes; this program has "
                       "ABI %d and needs %zu bytes or more (it knows %zu)",
                       file, given->abi, given->struct_size, DT_BACKEND_ABI, DT_BACKEND_SIZE_MIN,
                       sizeof table);
    memcpy(&table, given, given->struct_size < sizeof table ? given->struct_size : sizeof table);
    missing = !table.open ? "open" : !table.enumerate ? "enumerate" : missing_entry(&table);
    if (missing)
        return dt_fail(err, DT_ERR_INVALID, "dt", given->abi, "%s: the table has no %s", file,
                       missing);
    if (!table.name || !name_is_valid(table.name, strnlen(table.name, DT_LOADER_NAME_MAX)))
        return dt_fail(err, DT_ERR_INVALID, "dt", given->abi,
                       "%s: the backend's name is not [a-z][a-z0-9-]* of at most %d bytes", file,
                       DT_LOADER_NAME_MAX - 1);
    *ret_table = table;
    return DT_OK;
}

static dt_status_t load_file(const char *path, dt_loader_run_t *run, dt_error_t *err)
{
    const char *base = strrchr(path, '/');
    char name[DT_LOADER_NAME_MAX];
    const dt_backend_t *given;
    dt_backend_get_fn get;
    void *symbol;
    run->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!run->library)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: cannot be loaded: %s", path,
                       dlerror()); /* NOLINT(concurrency-mt-unsafe): glibc's is one a thread */
    symbol = dlsym(run->library, DT_BACKEND_SYMBOL);
    if (!symbol)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: exports no %s, so it is no backend", path,
                       DT_BACKEND_SYMBOL);
    memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from object to function pointer */
    given = get(DT_BACKEND_ABI);
    if (!given)
        return dt_fail(err, DT_ERR_INVALID, "dt", DT_BACKEND_ABI,
                       "%s: does not serve backend ABI %d of this program", path, DT_BACKEND_ABI);
    run->given_size = given->struct_size;
    DT_TRY(dt_loader_accept(given, path, &run->table, err));
    if (!name_of_file(base ? base + 1 : path, name, sizeof name) ||
        strcmp(name, run->table.name) != 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: calls itself \"%s\"; the file must be %s",
                       path, run->table.name, FILE_PREFIX "NAME" FILE_SUFFIX);
    return DT_OK;
}

/* ---- a running backend ---- */
/* The error that a backend is given: never NULL, and empty. */
static dt_error_t *prepare(dt_error_t *own)
{
    memset(own, 0, sizeof *own);
    return own;
}

/* A failure of a backend as the host's own, with a text even where the backend gave none. */
static dt_status_t explain(const dt_loader_run_t *run, const char *entry, dt_status_t status,
                           const dt_error_t *own, dt_error_t *err)
{
    if (*own->text)
        return dt_fail(err, status, "backend", own->source_code, "%.511s", own->text);
    return dt_fail(err, status, "backend", own->source_code, "%s: %s: %s", run->table.name, entry,
                   dt_status_text(status));
}

dt_status_t dt_loader_open(const dt_backend_t *table, const char *path,
                           const dt_backend_options_t *options, dt_loader_run_t *ret_run,
                           dt_error_t *err)
{
    dt_error_t own;
    dt_status_t status;
    memset(ret_run, 0, sizeof *ret_run);
    if (table) {
        ret_run->given_size = table->struct_size;
        DT_TRY(dt_loader_accept(table, table->name, &ret_run->table, err));
    } else {
        DT_TRY(load_file(path, ret_run, err));
    }
    status = ret_run->table.open(options, &ret_run->ctx, prepare(&own));
    if (status != DT_OK)
        return explain(ret_run, "open", status, &own, err);
    ret_run->is_open = true;
    return DT_OK;
}

dt_status_t dt_loader_update(dt_loader_run_t *run, dt_error_t *err)
{
    dt_status_t status;
    dt_error_t own;
    bool is_stale = false;
    int32_t count = 0;
    if (run->is_known && run->table.refresh &&
        run->table.refresh(run->ctx, run->devices, run->count, &is_stale, prepare(&own)) == DT_OK &&
        !is_stale)
        return DT_OK;
    run->is_known = false;
    memset(run->devices, 0, sizeof run->devices);
    status = run->table.enumerate(run->ctx, run->devices, DT_DEVICE_MAX, &count, prepare(&own));
    if (status != DT_OK)
        return explain(run, "enumerate", status, &own, err);
    if (count < 0 || count > DT_DEVICE_MAX)
        return dt_fail(err, DT_ERR_DEVICE, "dt", count,
                       "%s: enumerate returned %d devices, room was for %d", run->table.name, count,
                       DT_DEVICE_MAX);
    run->count = count;
    run->is_known = true;
    return DT_OK;
}

void dt_loader_close(dt_loader_run_t *run)
{
    if (!run)
        return;
    if (run->is_open && run->table.close)
        run->table.close(run->ctx);
    if (run->library)
        (void)dlclose(run->library);
    run->is_open = run->is_known = false;
    run->library = NULL;
}
