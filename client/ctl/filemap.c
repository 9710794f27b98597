#include "filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int dt_ctl_filemap_open(dt_ctl_t *ctl, const char *path, dt_ctl_filemap_t *ret_file)
{
    struct stat status;
    void *bytes = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int number = errno;
        if (fd >= 0)
            (void)close(fd);
        bool is_denied = number == EACCES || number == EPERM;
        return dt_ctl_fail(ctl, is_denied ? DT_CTL_EXIT_DENIED : DT_CTL_EXIT_NOT_FOUND, "%s: %s",
                           path, strerror(number));
    }
    size_t size = S_ISREG(status.st_mode) && status.st_size > 0 ? (size_t)status.st_size : 0;
    if (size > 0)
        bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int number = errno;
    (void)close(fd);
    if (size == 0)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_DATA, "%s is no recording: it is empty or no file",
                           path);
    if (bytes == MAP_FAILED)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "%s: %s", path, strerror(number));
    *ret_file = (dt_ctl_filemap_t){.bytes = bytes, .size = size};
    return DT_CTL_EXIT_OK;
}

void dt_ctl_filemap_close(dt_ctl_filemap_t *file)
{
    (void)munmap(file->bytes, file->size);
    *file = (dt_ctl_filemap_t){0};
}

int dt_ctl_fail_damaged(dt_ctl_t *ctl, const char *path, const dt_ctl_damage_t *damage)
{
    const char *where = "";
    if (damage->item > 0)
        where = dt_ctl_print(&ctl->pool, " (item %" PRIu64 ")%s", damage->item,
                             damage->sequence > 0
                                 ? dt_ctl_print(&ctl->pool, ", record %" PRIu64, damage->sequence)
                                 : "");
    return dt_ctl_fail(ctl, DT_CTL_EXIT_DATA, "%s: at byte %" PRIu64 "%s: %s (%s)%s", path,
                       damage->offset, where, dt_frame_error_text(damage->error),
                       dt_frame_error_name(damage->error),
                       damage->item > 0 ? "; what is whole before it was read" : "");
}
