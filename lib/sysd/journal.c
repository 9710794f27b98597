/* The journal's native protocol as a sink of lib/base/log.
 * One datagram is one entry: FIELD=value lines; values are escaped by the log, so they hold no line
 * ends. The socket is not connected, so a restarted journald is found again. A send never waits:
 * what a busy journald does not take is counted, and the next entry says how many. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strings.h"
#include "conf/env.h"
#include "sysd/sysd.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

enum { JOURNAL_ENTRY_MAX = 16 * 1024, JOURNAL_KEY_MAX = 48 };

static const char *identifier;       /* set while no other thread logs */
static const char *socket_path;      /* as identifier */
static int journal_fd = -1;          /* as identifier */
static _Atomic uint64_t lost_so_far; /* entries since the last one that was taken; any thread */

/* An entry that grows; what does not fit is left out. */
typedef struct entry {
    char text[JOURNAL_ENTRY_MAX];
    size_t len;
} entry_t;

bool dt_sysd_is_stderr_journal(void)
{
    const char *stream = dt_env_get("JOURNAL_STREAM");
    DT_CLEANUP(dt_strv_fini) dt_strv_t parts = {0};
    struct stat st;
    int64_t device;
    int64_t inode;

    if (!stream || fstat(STDERR_FILENO, &st) != 0)
        return false;
    if (dt_strv_split(&parts, stream, ":") != DT_OK || parts.count != 2 ||
        dt_str_to_i64(parts.items[0], &device) != DT_OK ||
        dt_str_to_i64(parts.items[1], &inode) != DT_OK)
        return false;
    return st.st_dev == (dev_t)device && st.st_ino == (ino_t)inode;
}

static void put(entry_t *entry, const char *key, const char *value)
{
    size_t room = sizeof entry->text - entry->len;
    int len = snprintf(entry->text + entry->len, room, "%s=%s\n", key, value);
    if (len > 0 && (size_t)len < room)
        entry->len += (size_t)len;
}

static void put_number(entry_t *entry, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    put(entry, key, text);
}

static void put_field(entry_t *entry, const dt_log_field_t *field)
{
    char key[sizeof "DTORCH_" + JOURNAL_KEY_MAX] = "MESSAGE_ID";
    char value[4 * DT_LOG_VALUE_MAX + 1];

    if (!field->key)
        return;
    if (field->kind != DT_LOG_KIND_MESSAGE_ID) {
        (void)snprintf(key, sizeof key, "DTORCH_%s", field->key);
        for (char *at = key; *at; at++)
            *at = (char)toupper((unsigned char)*at);
    }
    (void)dt_log_format_value(field, value, sizeof value);
    put(entry, key, value);
}

static void fill(entry_t *entry, const dt_log_record_t *record, uint64_t lost)
{
    char message[DT_LOG_LINE_MAX];

    (void)dt_log_format_message(record, message, sizeof message);
    put(entry, "MESSAGE", message);
    put_number(entry, "PRIORITY", (uint64_t)record->level);
    put(entry, "SYSLOG_IDENTIFIER", identifier);
    put(entry, "CODE_FILE", record->file);
    put_number(entry, "CODE_LINE", (uint64_t)record->line);
    put(entry, "DTORCH_EVENT", record->event);
    if (record->dropped)
        put_number(entry, "DTORCH_DROPPED", record->dropped);
    if (lost)
        put_number(entry, "DTORCH_LOST", lost);
    for (size_t i = 0; i < record->field_count; i++)
        put_field(entry, &record->fields[i]);
}

static void journal_sink(const dt_log_record_t *record, void *arg)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t lost = atomic_exchange(&lost_so_far, 0);
    entry_t entry;

    (void)arg;
    entry.len = 0;
    fill(&entry, record, lost);
    (void)dt_str_copy(address.sun_path, sizeof address.sun_path, socket_path);
    ssize_t sent = sendto(journal_fd, entry.text, entry.len, MSG_NOSIGNAL | MSG_DONTWAIT,
                          (struct sockaddr *)&address, sizeof address);
    if (sent >= 0)
        return;
    if (errno == EAGAIN || errno == ENOBUFS) {
        atomic_fetch_add(&lost_so_far, lost + 1);
        return;
    }
    atomic_fetch_add(&lost_so_far, lost);
    dt_log_to_stderr(record);
}

bool dt_sysd_log_init_for_test(const char *program, const char *path)
{
    dt_sysd_log_fini();
    journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (journal_fd < 0)
        return false;
    identifier = program;
    socket_path = path;
    dt_log_set_sink(journal_sink, NULL);
    return true;
}

bool dt_sysd_log_init(const char *program)
{
    return dt_sysd_is_stderr_journal() && dt_sysd_log_init_for_test(program, JOURNAL_SOCKET);
}

void dt_sysd_log_fini(void)
{
    if (journal_fd < 0)
        return;
    dt_log_set_sink(NULL, NULL);
    (void)close(journal_fd);
    journal_fd = -1;
}
