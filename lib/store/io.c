#include "store/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int system_open_at(void *arg, int dir_fd, const char *name, int flags, mode_t mode)
{
    (void)arg;
    return openat(dir_fd, name, flags, mode);
}

static ssize_t system_write_at(void *arg, int fd, const void *data, size_t size, off_t at)
{
    (void)arg;
    return pwrite(fd, data, size, at);
}

static int system_data_sync(void *arg, int fd)
{
    (void)arg;
    return fdatasync(fd);
}

static int system_sync(void *arg, int fd)
{
    (void)arg;
    return fsync(fd);
}

static int system_truncate(void *arg, int fd, off_t size)
{
    (void)arg;
    return ftruncate(fd, size);
}

static int system_reserve(void *arg, int fd, off_t at, off_t size)
{
    (void)arg;
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, at, size);
}

static int system_rename_at(void *arg, int dir_fd, const char *from, const char *to)
{
    (void)arg;
    return renameat(dir_fd, from, dir_fd, to);
}

static int system_unlink_at(void *arg, int dir_fd, const char *name)
{
    (void)arg;
    return unlinkat(dir_fd, name, 0);
}

const dt_store_io_t *dt_store_io_system(void)
{
    static const dt_store_io_t io = {
        .open_at = system_open_at,
        .write_at = system_write_at,
        .data_sync = system_data_sync,
        .sync = system_sync,
        .truncate = system_truncate,
        .reserve = system_reserve,
        .rename_at = system_rename_at,
        .unlink_at = system_unlink_at,
    };
    return &io;
}
