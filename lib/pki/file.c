/* Files of keys and certificates. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pki/pki.h"

#define PATH_SIZE 4096

static dt_status_t fail_errno(dt_error_t *err, const char *what, const char *path)
{
    int number = errno;
    dt_status_t status = DT_ERR_INTERNAL;
    if (number == EACCES || number == EPERM || number == EROFS)
        status = DT_ERR_DENIED;
    else if (number == ENOENT || number == ENOTDIR)
        status = DT_ERR_NOT_FOUND;
    else if (number == ENOSPC || number == EDQUOT || number == EFBIG)
        status = DT_ERR_LIMIT;
    return dt_fail(err, status, "errno", number, "cannot %s %s: %s", what, path, strerror(number));
}

static bool write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return false;
        data += done;
        size -= (size_t)done;
    }
    return true;
}

static bool sync_folder(const char *path)
{
    char folder[PATH_SIZE];
    const char *slash = strrchr(path, '/');
    if (!slash)
        (void)snprintf(folder, sizeof folder, ".");
    else
        (void)snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path),
                       path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool is_ok = fsync(fd) == 0;
    (void)close(fd);
    return is_ok;
}

dt_status_t dt_pki_write_file(const char *path, const void *data, size_t size, unsigned mode,
                              dt_error_t *err)
{
    char temporary[PATH_SIZE];
    char random[17];
    dt_pki_random_hex(random, 8);
    int length = snprintf(temporary, sizeof temporary, "%s.%s", path, random);
    if (length < 0 || (size_t)length >= sizeof temporary)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the path of a file is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return fail_errno(err, "write", path);
    /* fchmod: the umask may have taken bits away */
    bool is_ok = fchmod(fd, mode) == 0 && write_all(fd, data, size) && fsync(fd) == 0;
    int number = errno;
    is_ok = close(fd) == 0 && is_ok;
    errno = number;
    if (!is_ok || rename(temporary, path) != 0 || !sync_folder(path)) {
        dt_status_t status = fail_errno(err, "write", path);
        (void)unlink(temporary);
        return status;
    }
    return DT_OK;
}

dt_status_t dt_pki_read_file(const char *path, char **ret_text, dt_error_t *err)
{
    size_t used = 0;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hold us up */
    if (fd < 0)
        return fail_errno(err, "read", path);
    char *text = malloc(DT_PKI_PEM_MAX + 2);
    while (text && used <= DT_PKI_PEM_MAX &&
           ((got = read(fd, text + used, DT_PKI_PEM_MAX + 1 - used)) > 0 ||
            (got < 0 && errno == EINTR)))
        used += got > 0 ? (size_t)got : 0;
    dt_status_t status = DT_OK;
    if (!text)
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to read %s", path);
    else if (got < 0)
        status = fail_errno(err, "read", path);
    else if (used > DT_PKI_PEM_MAX)
        status = dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s is larger than %d bytes", path,
                         DT_PKI_PEM_MAX);
    if (status == DT_OK) {
        text[used] = '\0';
        if (strlen(text) != used || !strstr(text, "-----BEGIN "))
            status = dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s holds no PEM text", path);
    }
    (void)close(fd);
    if (status != DT_OK) {
        dt_pki_key_free(text);
        return status;
    }
    *ret_text = text;
    return DT_OK;
}
