#include "shm/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static dt_status_t fail_errno(dt_error_t *err, const char *what)
{
    int code = errno;
    dt_status_t status = DT_ERR_INTERNAL;
    if (code == EMFILE || code == ENFILE)
        status = DT_ERR_LIMIT;
    else if (code == ENOMEM || code == ENOSPC)
        status = DT_ERR_NOMEM;
    else if (code == EACCES || code == EPERM)
        status = DT_ERR_DENIED;
    else if (code == ENOENT)
        status = DT_ERR_NOT_FOUND;
    return dt_fail(err, status, "errno", code, "%s: %s", what, strerror(code));
}

static size_t page_round(size_t size_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size_bytes + page - 1) / page * page;
}

dt_status_t dt_memfd_create(const char *name, size_t size_bytes, int *ret_fd, dt_error_t *err)
{
    if (size_bytes == 0 || size_bytes > DT_MEMFD_SIZE_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "shared memory of %zu bytes: not in 1..%zu",
                       size_bytes, DT_MEMFD_SIZE_MAX);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_errno(err, "memfd_create");
    if (ftruncate(fd, (off_t)page_round(size_bytes)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        dt_status_t status = fail_errno(err, "size and seal shared memory");
        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    return DT_OK;
}

dt_status_t dt_memfd_reopen_readonly(int fd, int *ret_fd, dt_error_t *err)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readonly = open(path, O_RDONLY | O_CLOEXEC);
    if (readonly < 0)
        return fail_errno(err, path);
    *ret_fd = readonly;
    return DT_OK;
}

dt_status_t dt_memfd_map(int fd, size_t size_bytes, dt_memfd_access_t access, void **ret_map,
                         dt_error_t *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return dt_fail(err, DT_ERR_INVALID, "dt", seals,
                       "shared memory is not sealed against shrinking");
    off_t end = lseek(fd, 0, SEEK_END); /* not fstat: an engine's sandbox refuses newfstatat */
    if (size_bytes == 0 || end < 0 || (uint64_t)end < size_bytes)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "shared memory has %lld bytes, need %zu",
                       (long long)end, size_bytes);
    int protection = access == DT_MEMFD_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    void *map = mmap(NULL, size_bytes, protection, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return fail_errno(err, "map shared memory");
    *ret_map = map;
    return DT_OK;
}

void dt_memfd_unmap(void *map, size_t size_bytes)
{
    if (map)
        (void)munmap(map, size_bytes);
}
