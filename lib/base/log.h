/* Logging as events: a short constant sentence and fields.
 *     dt_log_warn("node lost", DT_LOG_S("node", name), DT_LOG_I("silent_ms", ms));
 * gives `time=... level=warning event="node lost" node=gpu007 silent_ms=900` on stderr, or the
 * fields DTORCH_EVENT, DTORCH_NODE, DTORCH_SILENT_MS in the journal when lib/sysd set its sink.
 *
 * Levels: err = someone must act, warning = degraded, notice = lifecycle, info = each job, debug =
 * each move of a state machine. Libraries log at debug only and return errors; a daemon logs an
 * event once, at its edge.
 *
 * Limits: every call site is a token bucket of DT_LOG_SITE_BURST lines that refills at one line in
 * DT_LOG_SITE_REFILL_NS (debug: DT_LOG_DEBUG_*). What a site drops is counted, and the count is the
 * field "dropped" of the next line that it lets through. A value is cut at DT_LOG_VALUE_MAX bytes,
 * a line has at most DT_LOG_FIELD_MAX fields. Control bytes and invalid UTF-8 are escaped, so a
 * peer's text cannot forge a line. Nothing here ever sees a secret: callers must not pass one.
 *
 * Keys are constant lower_snake words. Those with a fixed meaning, so that
 * `journalctl DTORCH_NODE=gpu007` finds all: node, device ("node:index"), epoch, job, tenant,
 * reason. Values are borrowed for the call. Threads: any. Blocking: a write to stderr. */
#ifndef DT_BASE_LOG_H
#define DT_BASE_LOG_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"

#define DT_LOG_FIELD_MAX       24
#define DT_LOG_VALUE_MAX       512
#define DT_LOG_LINE_MAX        4096
#define DT_LOG_SITE_BURST      20
#define DT_LOG_SITE_REFILL_NS  (500 * DT_CLOCK_MS_NS)
#define DT_LOG_DEBUG_BURST     10000
#define DT_LOG_DEBUG_REFILL_NS (100 * DT_CLOCK_US_NS)

/* The values are syslog's. */
typedef enum dt_log_level {
    DT_LOG_ERR = 3,
    DT_LOG_WARNING = 4,
    DT_LOG_NOTICE = 5,
    DT_LOG_INFO = 6,
    DT_LOG_DEBUG = 7,
} dt_log_level_t;

typedef enum dt_log_kind {
    DT_LOG_KIND_STR = 1,
    DT_LOG_KIND_INT,
    DT_LOG_KIND_UINT,
    DT_LOG_KIND_BOOL,
    DT_LOG_KIND_MESSAGE_ID, /* 32 hex digits: MESSAGE_ID in the journal, nothing on stderr */
} dt_log_kind_t;

typedef struct dt_log_field {
    const char *key; /* lower_snake; NULL: no field */
    dt_log_kind_t kind;
    const char *str; /* STR: NULL is written as an empty value */
    int64_t num;     /* INT, UINT (as bits), BOOL */
} dt_log_field_t;

#define DT_LOG_S(key_, text_)                                                                      \
    (dt_log_field_t)                                                                               \
    {                                                                                              \
        .key = (key_), .kind = DT_LOG_KIND_STR, .str = (text_)                                     \
    }
#define DT_LOG_I(key_, number_)                                                                    \
    (dt_log_field_t)                                                                               \
    {                                                                                              \
        .key = (key_), .kind = DT_LOG_KIND_INT, .num = (int64_t)(number_)                          \
    }
#define DT_LOG_U(key_, number_)                                                                    \
    (dt_log_field_t)                                                                               \
    {                                                                                              \
        .key = (key_), .kind = DT_LOG_KIND_UINT, .num = (int64_t)(uint64_t)(number_)               \
    }
#define DT_LOG_B(key_, truth_)                                                                     \
    (dt_log_field_t)                                                                               \
    {                                                                                              \
        .key = (key_), .kind = DT_LOG_KIND_BOOL, .num = (truth_) ? 1 : 0                           \
    }
#define DT_LOG_ID(hex_)                                                                            \
    (dt_log_field_t)                                                                               \
    {                                                                                              \
        .key = "message_id", .kind = DT_LOG_KIND_MESSAGE_ID, .str = (hex_)                         \
    }
/* The text of a dt_error_t under the key "error". */
#define DT_LOG_E(error_) DT_LOG_S("error", (error_)->text)

/* One a call site, static, zero at start. */
typedef struct dt_log_site {
    _Atomic int64_t full_ns;  /* monotonic time at which the bucket is full again; any thread */
    _Atomic uint64_t dropped; /* lines since the last one let through; any thread */
} dt_log_site_t;

/* What a sink gets. */
typedef struct dt_log_record {
    dt_log_level_t level;
    const char *event;            /* the sentence */
    const dt_log_field_t *fields; /* `field_count` of them; some may have a NULL key */
    size_t field_count;
    uint64_t dropped; /* lines that this site dropped before this one */
    int64_t wall_ms;
    const char *file; /* of the call site */
    int line;
} dt_log_record_t;

typedef void (*dt_log_sink_fn)(const dt_log_record_t *record, void *arg);

#define DT_LOG_AT(level_, event_, ...)                                                             \
    do {                                                                                           \
        static dt_log_site_t site_;                                                                \
        if (dt_log_is_on(level_)) {                                                                \
            const dt_log_field_t fields_[] = {{.key = NULL}, ##__VA_ARGS__};                       \
            dt_log_event(&site_, (level_), __FILE__, __LINE__, (event_), fields_,                  \
                         sizeof fields_ / sizeof *fields_);                                        \
        }                                                                                          \
    } while (0)
#define dt_log_err(event_, ...)    DT_LOG_AT(DT_LOG_ERR, event_, ##__VA_ARGS__)
#define dt_log_warn(event_, ...)   DT_LOG_AT(DT_LOG_WARNING, event_, ##__VA_ARGS__)
#define dt_log_notice(event_, ...) DT_LOG_AT(DT_LOG_NOTICE, event_, ##__VA_ARGS__)
#define dt_log_info(event_, ...)   DT_LOG_AT(DT_LOG_INFO, event_, ##__VA_ARGS__)
#define dt_log_debug(event_, ...)  DT_LOG_AT(DT_LOG_DEBUG, event_, ##__VA_ARGS__)

/* Whether a line of this level would be written. Cost: one relaxed load. */
bool dt_log_is_on(dt_log_level_t level);

/* Change the level, at any time. The default is info. */
void dt_log_set_level(dt_log_level_t level);

/* The level of a word: err warning notice info debug. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_log_level_from_text(const char *text, dt_log_level_t *ret_level);
const char *dt_log_level_text(dt_log_level_t level);

/* Send records to `sink` instead of stderr; NULL for stderr again.
 * Ownership: keeps `arg` until the next call. The sink may be called by several threads at once.
 * Threads: while no other thread logs. */
void dt_log_set_sink(dt_log_sink_fn sink, void *arg);

/* Use another clock, for tests. NULL: the system's. Threads: as dt_log_set_sink(). */
void dt_log_set_clock_for_test(const dt_clock_t *clock);

/* What the macros call. */
void dt_log_event(dt_log_site_t *site, dt_log_level_t level, const char *file, int line,
                  const char *event, const dt_log_field_t *fields, size_t field_count);

/* Write a record to stderr as one logfmt line: what happens without a sink. Blocking: never; when
 * nobody reads stderr, lines are lost, and the next one that is taken says how many. */
void dt_log_to_stderr(const dt_log_record_t *record);

/* Write a record as one logfmt line with its newline and a NUL. Fields that do not fit are left
 * out, and the line ends in `cut=yes` then. Returns the length. */
size_t dt_log_format(const dt_log_record_t *record, char *text, size_t size);

/* Write a record as people read it in the journal, which has time and level by itself: the event
 * and the fields, as many as fit. Returns the length. */
size_t dt_log_format_message(const dt_log_record_t *record, char *text, size_t size);

/* Write a field's value as text, escaped and cut at `size`. Returns the length. */
size_t dt_log_format_value(const dt_log_field_t *field, char *text, size_t size);

#endif
