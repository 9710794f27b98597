/* The sources of a configuration in their order: files, drop-ins, environment, flags. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/conf_internal.h"
#include "conf/env.h"
#include "conf/print.h"

#define SOURCE_VENDOR "/usr/lib/dtorch"
#define SOURCE_SYSTEM "/etc/dtorch"
#define SOURCE_SUFFIX ".conf"

/* One drop-in. */
typedef struct dropin {
    char *name; /* of the file; its order */
    char *path;
} dropin_t;

typedef struct dropins {
    dropin_t *items; /* sorted by name at the end */
    size_t count;
} dropins_t;

static dt_status_t fail_errno(dt_error_t *err, int code, const char *path)
{
    dt_status_t status = DT_ERR_INVALID;
    if (code == ENOENT)
        status = DT_ERR_NOT_FOUND;
    else if (code == EACCES || code == EPERM)
        status = DT_ERR_DENIED;
    else if (code == ENOMEM)
        status = DT_ERR_NOMEM;
    return dt_fail(err, status, "errno", code, "%s: %s", path, strerrordesc_np(code));
}

/* Read all of an open file. Errors: LIMIT, NOMEM, and those of fail_errno(). */
static dt_status_t read_all(int fd, const char *path, dt_buf_t *out, dt_error_t *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fail_errno(err, errno, path);
    if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: not a regular file", path);
    for (;;) {
        char chunk[4096];
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(err, errno, path);
        if (got == 0)
            return DT_OK;
        dt_status_t status = dt_buf_append(out, chunk, (size_t)got);
        if (status == DT_ERR_LIMIT)
            return dt_fail(err, status, "dt", 0, "%s: larger than %d KiB", path,
                           DT_CONF_FILE_MAX / 1024);
        if (status != DT_OK)
            return dt_fail(err, status, "dt", 0, "%s: out of memory", path);
    }
}

/* Apply one file. A file that is not there is fine unless it `must_exist`. */
static dt_status_t apply_file(dt_conf_t *conf, const char *path, bool must_exist, dt_error_t *err)
{
    DT_CLEANUP(dt_buf_fini) dt_buf_t text;
    dt_buf_init(&text, DT_CONF_FILE_MAX);

    /* O_NONBLOCK: a FIFO of that name must not hang the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && !must_exist)
        return DT_OK;
    if (fd < 0)
        return fail_errno(err, errno, path);
    dt_status_t status = read_all(fd, path, &text, err);
    (void)close(fd);
    if (status != DT_OK)
        return status;
    return dt_conf_apply_text(conf, path, (const char *)text.data, text.len, err);
}

static void dropins_fini(dropins_t *dropins)
{
    for (size_t i = 0; i < dropins->count; i++) {
        free(dropins->items[i].name);
        free(dropins->items[i].path);
    }
    free(dropins->items);
    *dropins = (dropins_t){0};
}

/* Note a drop-in; one of the same name in a later folder takes its place. */
static dt_status_t note_dropin(dropins_t *dropins, const char *dir, const char *name,
                               dt_error_t *err)
{
    DT_CLEANUP(dt_str_free) char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) {
        path = NULL;
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "%s: out of memory", dir);
    }
    for (size_t i = 0; i < dropins->count; i++)
        if (strcmp(dropins->items[i].name, name) == 0) {
            free(dropins->items[i].path);
            dropins->items[i].path = DT_TAKE(path);
            return DT_OK;
        }
    if (dropins->count == DT_CONF_DROPIN_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "%s: more than %d drop-ins", dir,
                       DT_CONF_DROPIN_MAX);
    dropin_t *items = reallocarray(dropins->items, dropins->count + 1, sizeof *items);
    if (items)
        dropins->items = items;
    char *copy = items ? strdup(name) : NULL;
    if (!copy)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "%s: out of memory", dir);
    items[dropins->count++] = (dropin_t){copy, DT_TAKE(path)};
    return DT_OK;
}

static dt_status_t list_dropins(dropins_t *dropins, const char *dir, dt_error_t *err)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return errno == ENOENT || errno == ENOTDIR ? DT_OK : fail_errno(err, errno, dir);
    dt_status_t status = DT_OK;
    struct dirent *entry;
    while (status == DT_OK && (errno = 0, entry = readdir(stream)) != NULL)
        if (entry->d_name[0] != '.' && dt_str_has_suffix(entry->d_name, SOURCE_SUFFIX))
            status = note_dropin(dropins, dir, entry->d_name, err);
    if (status == DT_OK && errno)
        status = fail_errno(err, errno, dir);
    (void)closedir(stream);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dropin_t *)a)->name, ((const dropin_t *)b)->name);
}

/* Apply the main files, then the drop-ins of both folders in one order. */
static dt_status_t apply_system(dt_conf_t *conf, const char *root, dt_error_t *err)
{
    static const char *const folders[] = {SOURCE_VENDOR, SOURCE_SYSTEM};
    DT_CLEANUP(dropins_fini) dropins_t dropins = {0};
    char path[4096];

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int len = snprintf(path, sizeof path - 2, "%s%s/%s", root, folders[i], conf->table->file);
        if (len < 0 || (size_t)len >= sizeof path - 2)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "path too long: %.64s…", path);
        DT_TRY(apply_file(conf, path, false, err));
        memcpy(path + len, ".d", sizeof ".d");
        DT_TRY(list_dropins(&dropins, path, err));
    }
    if (dropins.count)
        qsort(dropins.items, dropins.count, sizeof *dropins.items, by_name);
    for (size_t i = 0; i < dropins.count; i++)
        DT_TRY(apply_file(conf, dropins.items[i].path, false, err));
    return DT_OK;
}

static const char *find_variable(char *const *environment, const char *name)
{
    size_t len = strlen(name);
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, len) == 0 && (*environment)[len] == '=')
            return *environment + len + 1;
    return NULL;
}

/* Set a value that a person typed, in a shell: a path that does not begin at the root begins in the
 * current folder. In a file it is refused, since a file does not know where it will be read. */
static dt_status_t set_typed(dt_conf_t *conf, size_t index, const char *value, const char *origin,
                             dt_error_t *err)
{
    char path[PATH_MAX + DT_CONF_LINE_MAX];
    if (conf->table->options[index].type != DT_CONF_PATH || !*value || *value == '/' ||
        !getcwd(path, PATH_MAX))
        return dt_conf_set(conf, index, value, origin, err);
    size_t len = strlen(path);
    int more = snprintf(path + len, sizeof path - len, "%s%s", len > 1 ? "/" : "", value);
    if (more < 0 || (size_t)more >= sizeof path - len)
        return dt_conf_set(conf, index, value, origin, err);
    return dt_conf_set(conf, index, path, origin, err);
}

static dt_status_t apply_environment(dt_conf_t *conf, char *const *environment, dt_error_t *err)
{
    for (size_t i = 0; i < conf->table->option_count; i++) {
        char name[DT_CONF_NAME_SIZE];
        char origin[DT_CONF_NAME_SIZE + 16];
        dt_conf_env_name(conf->table->options[i].name, name);
        const char *value = find_variable(environment, name);
        if (!value || !*value)
            continue;
        (void)snprintf(origin, sizeof origin, "environment %s", name);
        DT_TRY(set_typed(conf, i, value, origin, err));
    }
    return DT_OK;
}

dt_status_t dt_conf_apply_sources(dt_conf_t *conf, const dt_conf_sources_t *sources,
                                  dt_error_t *err)
{
    char *const *environment = sources->environment ? sources->environment : dt_env_all();

    if (sources->config_path)
        DT_TRY(apply_file(conf, sources->config_path, true, err));
    else
        DT_TRY(apply_system(conf, sources->root ? sources->root : "", err));
    DT_TRY(apply_environment(conf, environment, err));
    for (size_t i = 0; i < sources->flag_count; i++) {
        const dt_conf_flag_t *flag = &sources->flags[i];
        size_t index = dt_conf_find(conf->table, flag->key);
        char name[DT_CONF_NAME_SIZE];
        char origin[DT_CONF_NAME_SIZE + 16];
        dt_check(index < conf->table->option_count);
        dt_conf_flag_name(flag->key, name);
        (void)snprintf(origin, sizeof origin, "flag %s", flag->origin ? flag->origin : name);
        DT_TRY(set_typed(conf, index, flag->value, origin, err));
    }
    return DT_OK;
}
