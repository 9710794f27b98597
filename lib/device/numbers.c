/* The table of device numbers and its file. */
#include "device/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/sysfile.h"

#define NUMBERS_HEADER   "dtorch-devices 1"
#define NUMBERS_LINE_MAX 160 /* 2 + 31 + 63 + 20 digits and blanks */
#define NUMBERS_FILE_MAX (DT_DEVICE_MAX * NUMBERS_LINE_MAX + 64)

/* ---- file ---- */
static bool parse_line(char *line, dt_numbers_t *numbers)
{
    struct dt_numbers_entry *entry;
    uint64_t number, seen;
    char *at = line;
    const char *index = dt_sysfile_word(&at), *backend = dt_sysfile_word(&at);
    const char *uuid = dt_sysfile_word(&at), *last = dt_sysfile_word(&at);
    if (dt_sysfile_parse_uint(index, DT_DEVICE_MAX - 1, &number) != DT_OK ||
        dt_sysfile_parse_uint(last, UINT64_MAX - 1, &seen) != DT_OK || !*uuid || *at)
        return false;
    entry = &numbers->at[number];
    if (*entry->uuid || dt_numbers_find(numbers, uuid) >= 0 || strlen(uuid) >= sizeof entry->uuid ||
        strlen(backend) >= sizeof entry->backend)
        return false;
    (void)snprintf(entry->uuid, sizeof entry->uuid, "%s", uuid);
    (void)snprintf(entry->backend, sizeof entry->backend, "%s", backend);
    entry->seen = seen;
    if (seen > numbers->seen)
        numbers->seen = seen;
    return true;
}

static dt_status_t parse(const char *path, char *text, dt_numbers_t *numbers, dt_error_t *err)
{
    char *rest = text;
    for (int line_number = 1; rest; line_number++) {
        char *line = rest, *end = strchr(rest, '\n');
        if (end)
            *end = '\0';
        rest = end ? end + 1 : NULL;
        if (line_number == 1 ? strcmp(line, NUMBERS_HEADER) == 0 : parse_line(line, numbers))
            continue;
        memset(numbers, 0, sizeof *numbers);
        return dt_fail(err, DT_ERR_INVALID, "dt", line_number,
                       "%s:%d: damaged; devices are numbered anew", path, line_number);
    }
    dt_numbers_begin(numbers); /* parse_line's search marked entries */
    return DT_OK;
}

static bool make_path(const char *dir, const char *suffix, char *ret_path, size_t size)
{
    return (size_t)snprintf(ret_path, size, "%s/%s%s", dir, DT_NUMBERS_FILE, suffix) < size;
}

dt_status_t dt_numbers_load(const char *dir, dt_numbers_t *ret_numbers, dt_error_t *err)
{
    char path[DT_SYSFILE_PATH_MAX];
    char *text;
    dt_status_t status;
    memset(ret_numbers, 0, sizeof *ret_numbers);
    if (!make_path(dir, "", path, sizeof path))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: path too long", dir);
    if (access(path, R_OK) != 0) {
        if (errno == ENOENT)
            return DT_OK;
        return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", path,
                       dt_sysfile_errno_text(errno));
    }
    text = malloc(NUMBERS_FILE_MAX);
    if (!text)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to read %s", path);
    status = dt_sysfile_read("", path, text, NUMBERS_FILE_MAX);
    if (status == DT_OK)
        status = parse(path, text, ret_numbers, err);
    else
        status = dt_fail(err, DT_ERR_DENIED, "dt", 0, "%s: cannot be read", path);
    free(text);
    return status;
}

static dt_status_t write_file(int fd, const dt_numbers_t *numbers)
{
    char text[NUMBERS_FILE_MAX];
    size_t used = (size_t)snprintf(text, sizeof text, "%s\n", NUMBERS_HEADER);
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++)
        if (*numbers->at[i].uuid)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%d %s %s %" PRIu64 "\n", i,
                                 numbers->at[i].backend, numbers->at[i].uuid, numbers->at[i].seen);
    for (size_t done = 0; done < used;) {
        ssize_t wrote = write(fd, text + done, used - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return errno == ENOSPC || errno == EDQUOT ? DT_ERR_LIMIT : DT_ERR_DENIED;
        done += (size_t)wrote;
    }
    return fsync(fd) == 0 ? DT_OK : DT_ERR_DENIED;
}

static void sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    (void)close(fd);
}

dt_status_t dt_numbers_save(const char *dir, dt_numbers_t *numbers, dt_error_t *err)
{
    char path[DT_SYSFILE_PATH_MAX], next[DT_SYSFILE_PATH_MAX];
    dt_status_t status;
    int fd, saved;
    if (!make_path(dir, "", path, sizeof path) || !make_path(dir, ".new", next, sizeof next))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: path too long", dir);
    fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (fd < 0)
        return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", next,
                       dt_sysfile_errno_text(errno));
    status = write_file(fd, numbers);
    if (status == DT_OK && rename(next, path) != 0)
        status = DT_ERR_DENIED;
    saved = errno;
    (void)close(fd);
    if (status != DT_OK) {
        (void)unlink(next);
        return dt_fail(err, status, "errno", saved,
                       "%s: %s; device numbers may change at the next "
                       "start",
                       path, dt_sysfile_errno_text(saved));
    }
    sync_dir(dir);
    numbers->is_changed = false;
    return DT_OK;
}

/* ---- rounds ---- */
void dt_numbers_begin(dt_numbers_t *numbers)
{
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++)
        numbers->at[i].is_present = false;
}

int32_t dt_numbers_find(dt_numbers_t *numbers, const char *uuid)
{
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++) {
        if (strcmp(numbers->at[i].uuid, uuid) != 0)
            continue;
        numbers->at[i].is_present = true;
        return i;
    }
    return -1;
}

int32_t dt_numbers_add(dt_numbers_t *numbers, const char *uuid, const char *backend)
{
    struct dt_numbers_entry *entry;
    int32_t best = -1;
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++) {
        if (!*numbers->at[i].uuid) {
            best = i;
            break;
        }
        if (!numbers->at[i].is_present &&
            (best < 0 || numbers->at[i].seen < numbers->at[best].seen))
            best = i;
    }
    if (best < 0)
        return -1;
    entry = &numbers->at[best];
    memset(entry, 0, sizeof *entry);
    (void)snprintf(entry->uuid, sizeof entry->uuid, "%s", uuid);
    (void)snprintf(entry->backend, sizeof entry->backend, "%s", backend);
    entry->is_present = true;
    numbers->is_changed = true;
    return best;
}

void dt_numbers_end(dt_numbers_t *numbers)
{
    bool is_same = !numbers->is_changed;
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++)
        is_same &= numbers->at[i].is_present == numbers->at[i].was_present;
    if (is_same)
        return;
    numbers->seen++;
    numbers->is_changed = true;
    for (int32_t i = 0; i < DT_DEVICE_MAX; i++) {
        struct dt_numbers_entry *entry = &numbers->at[i];
        if (entry->is_present)
            entry->seen = numbers->seen;
        entry->was_present = entry->is_present;
    }
}
