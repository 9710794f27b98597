/* Sockets that the service manager passes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/strings.h"
#include "conf/env.h"
#include "sysd/sysd.h"

enum { LISTEN_FD_FIRST = 3 };

static dt_status_t take(dt_sysd_fd_t fds[static DT_SYSD_FD_MAX], size_t *ret_count, dt_error_t *err)
{
    const char *pid_text = dt_env_get("LISTEN_PID");
    const char *count_text = dt_env_get("LISTEN_FDS");
    const char *names_text = dt_env_get("LISTEN_FDNAMES");
    DT_CLEANUP(dt_strv_fini) dt_strv_t names = {0};
    int64_t pid;
    int64_t count;

    *ret_count = 0;
    if (!count_text || !pid_text)
        return DT_OK;
    if (dt_str_to_i64(pid_text, &pid) != DT_OK || dt_str_to_i64(count_text, &count) != DT_OK ||
        count < 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "LISTEN_PID=%.32s LISTEN_FDS=%.32s", pid_text,
                       count_text);
    if (pid != getpid())
        return DT_OK; /* meant for another process */
    if (count > DT_SYSD_FD_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", count, "LISTEN_FDS=%.32s; at most %d", count_text,
                       DT_SYSD_FD_MAX);
    if (names_text && dt_strv_split(&names, names_text, ":") != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    for (int i = 0; i < (int)count; i++) {
        int fd = LISTEN_FD_FIRST + i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
            return dt_fail(err, DT_ERR_INVALID, "errno", errno, "LISTEN_FDS: descriptor %d: %s", fd,
                           strerrordesc_np(errno));
        fds[i].fd = fd;
        (void)dt_str_copy(fds[i].name, sizeof fds[i].name,
                          (size_t)i < names.count ? names.items[i] : "unknown");
    }
    *ret_count = (size_t)count;
    return DT_OK;
}

dt_status_t dt_sysd_listen_fds(dt_sysd_fd_t fds[static DT_SYSD_FD_MAX], size_t *ret_count,
                               dt_error_t *err)
{
    dt_status_t status = take(fds, ret_count, err);
    dt_env_unset("LISTEN_PID");
    dt_env_unset("LISTEN_FDS");
    dt_env_unset("LISTEN_FDNAMES");
    return status;
}
