/* Notifications to the service manager, and the watchdog. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "conf/env.h"
#include "sysd/sysd.h"

/* Fill the address of a datagram socket: a path, or "@name" in the abstract namespace. */
static dt_status_t fill_address(const char *text, struct sockaddr_un *address, socklen_t *ret_size,
                                dt_error_t *err)
{
    size_t len = strlen(text);
    if ((text[0] != '/' && text[0] != '@') || len < 2 || len >= sizeof address->sun_path)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "NOTIFY_SOCKET=%.128s is not a socket", text);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, text, len);
    if (text[0] == '@')
        address->sun_path[0] = '\0';
    *ret_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (text[0] == '/'));
    return DT_OK;
}

/* Send one datagram of assignments. */
static dt_status_t notify(const char *state, dt_error_t *err)
{
    const char *where = dt_env_get("NOTIFY_SOCKET");
    struct sockaddr_un address;
    socklen_t size = 0;
    if (!where)
        return DT_OK;
    DT_TRY(fill_address(where, &address, &size, err));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return dt_fail(err, DT_ERR_PEER, "errno", errno, "socket: %s", strerrordesc_np(errno));
    ssize_t sent =
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    int code = errno;
    (void)close(fd);
    if (sent < 0)
        return dt_fail(err, DT_ERR_PEER, "errno", code, "%s: %s", where, strerrordesc_np(code));
    return DT_OK;
}

/* Append "\nSTATUS=text" with line ends made blanks, so that the text stays one assignment. */
static void append_status(char *state, size_t size, const char *text)
{
    if (!text)
        return;
    size_t at = strlen(state);
    char line[DT_SYSD_NOTIFY_MAX];
    (void)snprintf(line, sizeof line, "%sSTATUS=%s", at ? "\n" : "", text);
    for (char *c = line + (at ? 1 : 0); *c; c++)
        if (*c == '\n')
            *c = ' ';
    (void)dt_str_copy(state + at, size - at, line);
}

dt_status_t dt_sysd_ready(const char *status_line, dt_error_t *err)
{
    char state[DT_SYSD_NOTIFY_MAX] = "READY=1";
    append_status(state, sizeof state, status_line);
    return notify(state, err);
}

dt_status_t dt_sysd_stopping(const char *status_line, dt_error_t *err)
{
    char state[DT_SYSD_NOTIFY_MAX] = "STOPPING=1";
    append_status(state, sizeof state, status_line);
    return notify(state, err);
}

dt_status_t dt_sysd_status(dt_error_t *err, const char *fmt, ...)
{
    char text[DT_SYSD_NOTIFY_MAX];
    char state[DT_SYSD_NOTIFY_MAX] = "";
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    append_status(state, sizeof state, text);
    return notify(state, err);
}

dt_status_t dt_sysd_reloading(int64_t now_ns, dt_error_t *err)
{
    char state[DT_SYSD_NOTIFY_MAX];
    (void)snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
                   now_ns / DT_CLOCK_US_NS);
    return notify(state, err);
}

dt_status_t dt_sysd_extend_timeout(int64_t more_ns, dt_error_t *err)
{
    char state[DT_SYSD_NOTIFY_MAX];
    (void)snprintf(state, sizeof state, "EXTEND_TIMEOUT_USEC=%" PRId64, more_ns / DT_CLOCK_US_NS);
    return notify(state, err);
}

dt_status_t dt_sysd_watchdog_feed(dt_error_t *err)
{
    return notify("WATCHDOG=1", err);
}

int64_t dt_sysd_watchdog_ns(void)
{
    const char *usec_text = dt_env_get("WATCHDOG_USEC");
    const char *pid_text = dt_env_get("WATCHDOG_PID");
    int64_t usec;
    int64_t pid;
    int64_t ns;

    if (!usec_text || dt_str_to_i64(usec_text, &usec) != DT_OK || usec <= 0)
        return 0;
    if (pid_text && (dt_str_to_i64(pid_text, &pid) != DT_OK || pid != getpid()))
        return 0;
    return __builtin_mul_overflow(usec, DT_CLOCK_US_NS, &ns) ? 0 : ns;
}
