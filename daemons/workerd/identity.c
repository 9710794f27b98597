#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strings.h"
#include "pki/pki.h"
#include "wire/wire.h"

#define DT_IDENTITY_FILE_MAX 256

static dt_status_t fail_errno(dt_error_t *err, int code, const char *path, const char *hint)
{
    dt_status_t status = DT_ERR_INTERNAL;
    if (code == EACCES || code == EPERM || code == EROFS)
        status = DT_ERR_DENIED;
    else if (code == ENOSPC || code == EDQUOT || code == EMFILE || code == ENFILE)
        status = DT_ERR_LIMIT;
    else if (code == ENOENT || code == ENOTDIR)
        status = DT_ERR_NOT_FOUND;
    return dt_fail(err, status, "errno", code, "%s: %s%s", path, strerror(code), hint);
}

static dt_status_t path_join(const char *directory, const char *name, char *path, size_t size,
                             dt_error_t *err)
{
    int length = snprintf(path, size, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= size)
        return dt_fail(err, DT_ERR_INVALID, "dt", length, "%s: the path is too long", directory);
    return DT_OK;
}

static dt_status_t directory_make(const char *directory, dt_error_t *err)
{
    struct stat info;
    if (mkdir(directory, 0700) == 0)
        return DT_OK;
    if (errno != EEXIST)
        return fail_errno(err, errno, directory, "; StateDirectory= says where the state goes");
    if (stat(directory, &info) || !S_ISDIR(info.st_mode))
        return fail_errno(err, ENOTDIR, directory, "; StateDirectory= must be a folder");
    return DT_OK;
}

/* ---- the lock ---- */

static dt_status_t lock_is_held(int fd, const char *directory, dt_error_t *err)
{
    char holder[DT_IDENTITY_FILE_MAX] = "";
    ssize_t got = pread(fd, holder, sizeof holder - 1, 0);
    holder[got > 0 ? got : 0] = '\0';
    (void)dt_str_trim(holder);
    char *end = strchr(holder, '\n');
    if (end)
        *end = '\0';
    return dt_fail(err, DT_ERR_EXISTS, "dt", 0, "%s is held by another dtorch-workerd (%s)",
                   directory, holder[0] ? holder : "unknown");
}

static dt_status_t lock_write(int fd, const char *path, dt_error_t *err)
{
    char host[65] = "";
    char text[DT_IDENTITY_FILE_MAX] = "";
    (void)gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text, "pid %d on %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length)
        return fail_errno(err, errno, path, "");
    return DT_OK;
}

/* The file is removed at the end, so a process can open it, wait, and lock what is no longer there:
 * only a lock on the file that has the name counts. */
static dt_status_t lock_take(const char *directory, int *ret_fd, dt_error_t *err)
{
    char path[4160];
    struct stat mine;
    struct stat named;
    DT_TRY(path_join(directory, "lock", path, sizeof path, err));
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return fail_errno(err, errno, path, "");
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            dt_status_t status = errno == EWOULDBLOCK ? lock_is_held(fd, directory, err)
                                                      : fail_errno(err, errno, path, "");
            (void)close(fd);
            return status;
        }
        if (fstat(fd, &mine) || stat(path, &named) || mine.st_ino != named.st_ino) {
            (void)close(fd);
            continue;
        }
        dt_status_t status = lock_write(fd, path, err);
        if (status != DT_OK) {
            (void)unlink(path);
            (void)close(fd);
            return status;
        }
        *ret_fd = fd;
        return DT_OK;
    }
}

/* ---- files ---- */

/* Read a small text file without the white space around it. NOT_FOUND if there is none. */
static dt_status_t file_read(const char *path, char *text, size_t size, dt_error_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, errno, path, "");
    ssize_t got = read(fd, text, size - 1);
    int code = errno;
    (void)close(fd);
    if (got < 0)
        return fail_errno(err, code, path, "");
    text[got] = '\0';
    char *begin = dt_str_trim(text);
    memmove(text, begin, strlen(begin) + 1);
    return DT_OK;
}

static bool id_from_hex(const char *hex, uint8_t *ret_id)
{
    for (size_t i = 0; i < DT_IDENTITY_ID_BYTES; i++) {
        unsigned byte = 0;
        for (size_t j = 0; j < 2; j++) {
            char c = hex[2 * i + j];
            if (c >= '0' && c <= '9')
                byte = byte << 4 | (unsigned)(c - '0');
            else if (c >= 'a' && c <= 'f')
                byte = byte << 4 | (unsigned)(c - 'a' + 10);
            else
                return false;
        }
        ret_id[i] = (uint8_t)byte;
    }
    return true;
}

static void id_to_hex(const uint8_t *id, char *hex)
{
    for (size_t i = 0; i < DT_IDENTITY_ID_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", id[i]);
}

static dt_status_t node_id_open(dt_identity_t *identity, dt_error_t *err)
{
    char path[4160];
    char text[DT_IDENTITY_FILE_MAX] = "";
    DT_TRY(path_join(identity->directory, "node-id", path, sizeof path, err));
    dt_status_t status = file_read(path, text, sizeof text, err);
    if (status == DT_ERR_NOT_FOUND) {
        dt_pki_random(identity->node_id, sizeof identity->node_id);
        id_to_hex(identity->node_id, identity->node_id_hex);
        (void)snprintf(text, sizeof text, "%s\n", identity->node_id_hex);
        return dt_pki_write_file(path, text, strlen(text), 0600, err);
    }
    if (status != DT_OK)
        return status;
    if (strlen(text) != (size_t)2 * DT_IDENTITY_ID_BYTES || !id_from_hex(text, identity->node_id))
        return dt_fail(
            err, DT_ERR_INVALID, "dt", 0,
            "%s is damaged: it must hold 32 hex digits; restore it, or remove it to join "
            "as a new node",
            path);
    memcpy(identity->node_id_hex, text, sizeof identity->node_id_hex);
    return DT_OK;
}

static dt_status_t cluster_read(dt_identity_t *identity, dt_error_t *err)
{
    char path[4160];
    char text[DT_IDENTITY_FILE_MAX] = "";
    int64_t epoch = 0;
    DT_TRY(path_join(identity->directory, "cluster", path, sizeof path, err));
    dt_status_t status = file_read(path, text, sizeof text, err);
    if (status == DT_ERR_NOT_FOUND)
        return DT_OK;
    if (status != DT_OK)
        return status;
    size_t hex = (size_t)2 * DT_IDENTITY_ID_BYTES;
    if (strlen(text) < hex + 2 || text[hex] != ' ' || !id_from_hex(text, identity->cluster_id) ||
        dt_str_to_i64(text + hex + 1, &epoch) != DT_OK || epoch < 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "%s is damaged; remove it to trust the next controller again", path);
    identity->epoch_seen = (uint64_t)epoch;
    return DT_OK;
}

dt_status_t dt_identity_save_cluster(const char *directory, const uint8_t *cluster_id,
                                     uint64_t epoch, dt_error_t *err)
{
    char path[4160];
    char hex[2 * DT_IDENTITY_ID_BYTES + 1];
    char text[DT_IDENTITY_FILE_MAX] = "";
    DT_TRY(path_join(directory, "cluster", path, sizeof path, err));
    id_to_hex(cluster_id, hex);
    (void)snprintf(text, sizeof text, "%s %" PRIu64 "\n", hex, epoch);
    return dt_pki_write_file(path, text, strlen(text), 0600, err);
}

/* ---- the name ---- */

void dt_identity_name_from_host(const char *host, char name[static DT_IDENTITY_NAME_SIZE])
{
    size_t length = 0;
    for (; *host && *host != '.' && length < DT_IDENTITY_NAME_SIZE - 1; host++) {
        char c = *host;
        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!is_plain && length == 0)
            continue;
        if (!is_plain)
            c = '-';
        name[length++] = c;
    }
    while (length > 0 && name[length - 1] == '-')
        length--;
    name[length] = '\0';
}

static dt_status_t name_choose(dt_identity_t *identity, const char *node_name, dt_error_t *err)
{
    char host[256] = "";
    if (node_name[0]) {
        if (!dt_wire_node_name_is_valid(node_name))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "NodeName=%s: a node's name has 1 to 63 of a-z 0-9 -, and begins and "
                           "ends with a letter or digit",
                           node_name);
        (void)dt_str_copy(identity->node_name, sizeof identity->node_name, node_name);
        return DT_OK;
    }
    (void)gethostname(host, sizeof host - 1);
    dt_identity_name_from_host(host, identity->node_name);
    if (!identity->node_name[0])
        (void)snprintf(identity->node_name, sizeof identity->node_name, "node-%.8s",
                       identity->node_id_hex);
    return DT_OK;
}

static dt_status_t identity_fill(dt_identity_t *identity, const char *node_name, dt_error_t *err)
{
    DT_TRY(node_id_open(identity, err));
    DT_TRY(cluster_read(identity, err));
    DT_TRY(name_choose(identity, node_name, err));
    while (identity->incarnation == 0)
        dt_pki_random(&identity->incarnation, sizeof identity->incarnation);
    char boot_id[DT_IDENTITY_FILE_MAX] = "";
    if (file_read("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id, NULL) != DT_OK ||
        strlen(boot_id) != sizeof identity->boot_id - 1)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0,
                       "/proc/sys/kernel/random/boot_id cannot be read");
    memcpy(identity->boot_id, boot_id, sizeof identity->boot_id);
    return DT_OK;
}

dt_status_t dt_identity_open(const char *directory, const char *node_name,
                             dt_identity_t *ret_identity, dt_error_t *err)
{
    dt_identity_t identity = {.lock_fd = -1};
    if (!dt_str_copy(identity.directory, sizeof identity.directory, directory))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "StateDirectory=: the path is too long");
    DT_TRY(directory_make(directory, err));
    DT_TRY(lock_take(directory, &identity.lock_fd, err));
    dt_status_t status = identity_fill(&identity, node_name, err);
    if (status != DT_OK) {
        dt_identity_close(&identity);
        return status;
    }
    *ret_identity = identity;
    return DT_OK;
}

void dt_identity_close(dt_identity_t *identity)
{
    char path[4160];
    if (identity->directory[0] == '\0' || identity->lock_fd < 0)
        return;
    if (path_join(identity->directory, "lock", path, sizeof path, NULL) == DT_OK)
        (void)unlink(path);
    (void)close(identity->lock_fd);
    identity->lock_fd = -1;
}
