/* Log front end: level, rate limit, logfmt. The journal's sink is in lib/sysd.
 * All state is atomic or set before threads start: there is no lock. Two lines of two threads are
 * two writes, so they never mix. */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/strings.h"

#define LOG_CUT      " cut=yes\n" /* in place of the fields that did not fit */
#define LOG_KEY_MAX  63
#define LOG_BARE     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,[]"
#define LOG_TEXT_MAX (4 * DT_LOG_VALUE_MAX + 3) /* each byte escaped, two quotes, NUL */

static _Atomic int level_now = DT_LOG_INFO;
static dt_log_sink_fn sink_now; /* NULL: stderr; set while no other thread logs */
static void *sink_arg;
static _Atomic uint64_t lost_lines; /* that stderr did not take, since it took one */
static const dt_clock_t *clock_now; /* NULL: the system's; as sink_now */

static const struct {
    const char *text;
    dt_log_level_t level;
} level_names[] = {{"err", DT_LOG_ERR},
                   {"warning", DT_LOG_WARNING},
                   {"notice", DT_LOG_NOTICE},
                   {"info", DT_LOG_INFO},
                   {"debug", DT_LOG_DEBUG}};

bool dt_log_is_on(dt_log_level_t level)
{
    return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

void dt_log_set_level(dt_log_level_t level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

dt_status_t dt_log_level_from_text(const char *text, dt_log_level_t *ret_level)
{
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++)
        if (dt_str_is_equal(level_names[i].text, text)) {
            *ret_level = level_names[i].level;
            return DT_OK;
        }
    return DT_ERR_INVALID;
}

const char *dt_log_level_text(dt_log_level_t level)
{
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++)
        if (level_names[i].level == level)
            return level_names[i].text;
    return "unknown";
}

void dt_log_set_sink(dt_log_sink_fn sink, void *arg)
{
    sink_now = sink;
    sink_arg = arg;
}

void dt_log_set_clock_for_test(const dt_clock_t *clock)
{
    clock_now = clock;
}

/* Copy text with control bytes, invalid UTF-8 and, inside quotes, quotes and backslashes escaped.
 * Takes at most DT_LOG_VALUE_MAX bytes of it. Returns the length; always terminates. */
static size_t escape(const char *text, bool is_quoted, char *out, size_t size)
{
    size_t len = strlen(text);
    size_t at = 0;

    for (size_t i = 0; i < len && i < DT_LOG_VALUE_MAX;) {
        size_t step = dt_str_utf8_length(text + i, len - i);
        unsigned char byte = (unsigned char)text[i];
        char piece[8];
        if (!step || (step == 1 && (byte < 0x20 || byte == 0x7f))) {
            step = 1;
            if (byte == '\n')
                (void)snprintf(piece, sizeof piece, "\\n");
            else
                (void)snprintf(piece, sizeof piece, "\\x%02x", byte);
        } else if (is_quoted && (byte == '"' || byte == '\\')) {
            (void)snprintf(piece, sizeof piece, "\\%c", byte);
        } else {
            memcpy(piece, text + i, step);
            piece[step] = '\0';
        }
        size_t piece_len = strlen(piece);
        if (at + piece_len >= size)
            break;
        memcpy(out + at, piece, piece_len);
        at += piece_len;
        i += step;
    }
    out[at] = '\0';
    return at;
}

size_t dt_log_format_value(const dt_log_field_t *field, char *text, size_t size)
{
    int len = 0;

    switch (field->kind) {
    case DT_LOG_KIND_STR:
    case DT_LOG_KIND_MESSAGE_ID:
        return escape(field->str ? field->str : "", false, text, size);
    case DT_LOG_KIND_INT:
        len = snprintf(text, size, "%" PRId64, field->num);
        break;
    case DT_LOG_KIND_UINT:
        len = snprintf(text, size, "%" PRIu64, (uint64_t)field->num);
        break;
    case DT_LOG_KIND_BOOL:
        len = snprintf(text, size, "%s", field->num ? "yes" : "no");
        break;
    }
    return len < 0 ? 0 : (size_t)len < size ? (size_t)len : size - 1;
}

/* Write a value as logfmt wants it: bare when it is a plain word, else in quotes. */
static void format_logfmt(const dt_log_field_t *field, char *text, size_t size)
{
    const char *str = field->str ? field->str : "";
    if (field->kind != DT_LOG_KIND_STR || (*str && !str[strspn(str, LOG_BARE)])) {
        (void)dt_log_format_value(field, text, size);
        return;
    }
    text[0] = '"';
    size_t len = escape(str, true, text + 1, size - 2);
    text[len + 1] = '"';
    text[len + 2] = '\0';
}

/* Append ` key=value` to the line. Returns false, with nothing appended, when it does not fit. */
static bool append_field(char *line, size_t size, size_t *at, const dt_log_field_t *field)
{
    char value[LOG_TEXT_MAX];
    format_logfmt(field, value, sizeof value);
    size_t room = size - *at;
    int len =
        snprintf(line + *at, room, "%s%.*s=%s", *at ? " " : "", LOG_KEY_MAX, field->key, value);
    if (len < 0 || (size_t)len >= room)
        return false;
    *at += (size_t)len;
    return true;
}

/* Append the record's own fields and what was dropped. Returns whether all fitted. */
static bool append_fields(char *text, size_t size, size_t *at, const dt_log_record_t *record)
{
    for (size_t i = 0; i < record->field_count; i++)
        if (record->fields[i].key && record->fields[i].kind != DT_LOG_KIND_MESSAGE_ID &&
            !append_field(text, size, at, &record->fields[i]))
            return false;
    return !record->dropped || append_field(text, size, at, &DT_LOG_U("dropped", record->dropped));
}

size_t dt_log_format(const dt_log_record_t *record, char *text, size_t size)
{
    char when[DT_CLOCK_TEXT_SIZE];
    size_t at = 0;
    bool is_whole = true;

    if (size < sizeof LOG_CUT)
        return 0;
    size_t room = size - (sizeof LOG_CUT - 1);
    dt_clock_format_wall(record->wall_ms, when);
    const dt_log_field_t head[] = {DT_LOG_S("time", when),
                                   DT_LOG_S("level", dt_log_level_text(record->level)),
                                   DT_LOG_S("event", record->event)};
    for (size_t i = 0; i < sizeof head / sizeof *head && is_whole; i++)
        is_whole = append_field(text, room, &at, &head[i]);
    is_whole = is_whole && append_fields(text, room, &at, record);
    const char *end = is_whole ? "\n" : LOG_CUT;
    memcpy(text + at, end, strlen(end) + 1);
    return at + strlen(end);
}

size_t dt_log_format_message(const dt_log_record_t *record, char *text, size_t size)
{
    size_t at = escape(record->event, false, text, size);
    (void)append_fields(text, size, &at, record);
    text[at] = '\0';
    return at;
}

/* A pipe takes a line at once if it takes anything: a line is no longer than PIPE_BUF. Returns
 * false if nothing is taken now. */
static bool write_line(const dt_log_record_t *record)
{
    char line[DT_LOG_LINE_MAX];
    struct pollfd door = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t len = dt_log_format(record, line, sizeof line);
    ssize_t rc;
    if (poll(&door, 1, 0) == 0)
        return false;
    do {
        rc = write(STDERR_FILENO, line, len);
    } while (rc < 0 && errno == EINTR);
    return true;
}

void dt_log_to_stderr(const dt_log_record_t *record)
{
    uint64_t lost = atomic_exchange(&lost_lines, 0);
    if (lost) {
        const dt_log_field_t field = DT_LOG_U("lines", lost);
        const dt_log_record_t confession = {
            .level = DT_LOG_WARNING,
            .event = "lines were lost: nobody read this log",
            .fields = &field,
            .field_count = 1,
            .wall_ms = record->wall_ms,
        };
        if (!write_line(&confession)) {
            atomic_fetch_add(&lost_lines, lost + 1);
            return;
        }
    }
    if (!write_line(record))
        atomic_fetch_add(&lost_lines, 1);
}

/* Take a token from the site's bucket (a generic cell rate algorithm: `empty_ns` is the time at
 * which the bucket would be full again). Returns whether there was one. */
static bool take_token(dt_log_site_t *site, dt_log_level_t level, int64_t now_ns)
{
    bool is_debug = level >= DT_LOG_DEBUG;
    int64_t refill_ns = is_debug ? DT_LOG_DEBUG_REFILL_NS : DT_LOG_SITE_REFILL_NS;
    int64_t burst = is_debug ? DT_LOG_DEBUG_BURST : DT_LOG_SITE_BURST;
    int64_t full_ns = atomic_load_explicit(&site->full_ns, memory_order_relaxed);
    int64_t next_ns;
    do {
        int64_t from_ns = full_ns > now_ns ? full_ns : now_ns;
        if (from_ns - now_ns > (burst - 1) * refill_ns)
            return false;
        next_ns = from_ns + refill_ns;
    } while (!atomic_compare_exchange_weak_explicit(&site->full_ns, &full_ns, next_ns,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void dt_log_event(dt_log_site_t *site, dt_log_level_t level, const char *file, int line,
                  const char *event, const dt_log_field_t *fields, size_t field_count)
{
    const dt_clock_t *clock = clock_now ? clock_now : dt_clock_system();
    int saved_errno = errno;

    if (!take_token(site, level, dt_clock_mono_ns(clock))) {
        atomic_fetch_add_explicit(&site->dropped, 1, memory_order_relaxed);
        return;
    }
    /* The first field is the macro's empty one. */
    const dt_log_record_t record = {
        .level = level,
        .event = event,
        .fields = fields,
        .field_count = field_count <= DT_LOG_FIELD_MAX ? field_count : DT_LOG_FIELD_MAX + 1,
        .dropped = atomic_exchange_explicit(&site->dropped, 0, memory_order_relaxed),
        .wall_ms = dt_clock_wall_ms(clock),
        .file = file,
        .line = line,
    };
    if (sink_now)
        sink_now(&record, sink_arg);
    else
        dt_log_to_stderr(&record);
    errno = saved_errno;
}
