/* The service manager: notifications, watchdog, passed sockets, credentials, the journal.
 * Speaks systemd's documented datagram protocols itself, so it needs no library. Outside systemd
 * every call succeeds and does nothing.
 * Source: sd_notify(3), sd_listen_fds(3), systemd.exec(5), systemd.io/JOURNAL_NATIVE_PROTOCOL. */
#ifndef DT_SYSD_SYSD_H
#define DT_SYSD_SYSD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_SYSD_FD_MAX     64
#define DT_SYSD_NAME_MAX   256
#define DT_SYSD_PATH_MAX   4096
#define DT_SYSD_NOTIFY_MAX 2048 /* bytes of one notification; a longer one is cut */

/* Tell the manager that the service is able to serve, with a line for `systemctl status`.
 * Errors of all these: INVALID (a bad $NOTIFY_SOCKET), PEER (the manager does not take it; source
 * "errno"). Nobody must stop because of one. Threads: any. Blocking: never. */
dt_status_t dt_sysd_ready(const char *status_line, dt_error_t *err);
dt_status_t dt_sysd_status(dt_error_t *err, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);
dt_status_t dt_sysd_stopping(const char *status_line, dt_error_t *err);

/* Tell it that a reload begins; dt_sysd_ready() ends it. Carries MONOTONIC_USEC, as Type=
 * notify-reload wants. Units: now_ns is CLOCK_MONOTONIC. */
dt_status_t dt_sysd_reloading(int64_t now_ns, dt_error_t *err);

/* Ask for more time to start or to stop, counted from now; call again before it is over. */
dt_status_t dt_sysd_extend_timeout(int64_t more_ns, dt_error_t *err);

/* Feed the watchdog. Only after real progress: the state loop turned AND its threads each moved. */
dt_status_t dt_sysd_watchdog_feed(dt_error_t *err);

/* How long the manager waits between two feeds, in nanoseconds; 0: no watchdog is set for this
 * process. Feed at half of it. */
int64_t dt_sysd_watchdog_ns(void);

/* A socket that the manager passed. */
typedef struct dt_sysd_fd {
    int fd;                      /* close-on-exec is set */
    char name[DT_SYSD_NAME_MAX]; /* FileDescriptorName=, "unknown" if none */
} dt_sysd_fd_t;

/* Take the passed sockets. The environment is cleared, so a second call gives none, and children
 * do not see them.
 * Ownership: gives the descriptors. Errors: INVALID (a bad LISTEN_FDS), LIMIT (over
 * DT_SYSD_FD_MAX). Threads: at start, before there are others. */
DT_MUST_USE dt_status_t dt_sysd_listen_fds(dt_sysd_fd_t fds[static DT_SYSD_FD_MAX],
                                           size_t *ret_count, dt_error_t *err);

/* Find the file of a credential (LoadCredential=NAME) in $CREDENTIALS_DIRECTORY.
 * A file whose content is the word "none" means that there is none yet.
 * Errors: NOT_FOUND (no such credential, or "none"), INVALID (a name with a slash), LIMIT (path
 * too long), DENIED (cannot be read). Blocking: reads up to 16 bytes. */
DT_MUST_USE dt_status_t dt_sysd_credential_path(const char *name,
                                                char ret_path[static DT_SYSD_PATH_MAX],
                                                dt_error_t *err);

/* Whether stderr is the journal ($JOURNAL_STREAM names its device and inode). */
bool dt_sysd_is_stderr_journal(void);

/* Log to the journal with fields if stderr is the journal; else leave logfmt on stderr.
 * `program` is SYSLOG_IDENTIFIER. Returns whether it does. Without a journald, lines go to stderr;
 * what a busy one does not take is lost and counted (DTORCH_LOST), so that logging never waits for
 * it. Ownership: keeps `program`. Threads: while no other thread logs. */
bool dt_sysd_log_init(const char *program);
void dt_sysd_log_fini(void); /* log to stderr again */

/* Log to the datagram socket at `path` as if it were the journal's. Keeps both strings. */
bool dt_sysd_log_init_for_test(const char *program, const char *path);

#endif
