/* Text for people: numbers with units, times, and strings of peers made harmless.
 * A string that came over the wire may hold anything. Before it reaches a terminal, every control
 * character, every byte that is not UTF-8 and every character that turns the direction of writing
 * is shown as an escape (\x1b, \u202e): no peer can move the cursor or hide a word. */
#ifndef DT_CTL_TEXT_H
#define DT_CTL_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

/* Read one character of `text` (`len` bytes are left, at least 1).
 * Returns its length in bytes and sets *ret_code; a byte that is not UTF-8 gives 1 and
 * *ret_code = UINT32_MAX. */
size_t dt_ctl_utf8_next(const char *text, size_t len, uint32_t *ret_code);

/* Whether a character changes what a terminal does with the others, or is none (UINT32_MAX). */
bool dt_ctl_is_obeyed(uint32_t code);

/* Give `text` with everything that a terminal would obey turned into escapes. NULL gives "". */
const char *dt_ctl_safe(dt_arena_t *pool, const char *text);

/* Return how many columns a safe text takes. */
size_t dt_ctl_columns(const char *text);

/* Give `text` cut to `columns` columns, the last one an ellipsis if anything was cut. */
const char *dt_ctl_ellipsis(dt_arena_t *pool, const char *text, size_t columns);

/* "0.9 s" "12 min" "41 d", "350 us" and "512 B" "3.1 GiB", rounded. Units: milliseconds,
 * nanoseconds, bytes. */
const char *dt_ctl_duration(dt_arena_t *pool, int64_t ms);
const char *dt_ctl_duration_ns(dt_arena_t *pool, int64_t ns);
const char *dt_ctl_bytes(dt_arena_t *pool, uint64_t bytes);

/* "18204", "1.3 M": a number of things, rounded from 100,000 on. */
const char *dt_ctl_count(dt_arena_t *pool, uint64_t count);

/* "||||......": how much of `total` `part` is, `columns` wide. */
const char *dt_ctl_bar(dt_arena_t *pool, uint64_t part, uint64_t total, size_t columns);

/* "14:02:11" for today, "2026-11-28 14:02" else; RFC 3339 in UTC with `is_utc`.
 * Units: milliseconds since 1970. */
const char *dt_ctl_time(dt_arena_t *pool, int64_t wall_ms, int64_t now_wall_ms, bool is_utc);

/* "a5f0…" of bytes. */
const char *dt_ctl_hex(dt_arena_t *pool, const uint8_t *bytes, size_t len);

/* Parse a point in time: "10m" (so long ago), "14:02", "14:02:11", "today", "yesterday",
 * "2026-11-28", "2026-11-28 14:02[:11]", "2026-11-28T14:02:11[.5](Z|+01:00)", "@1790000000".
 * Errors: INVALID. Units: milliseconds since 1970. */
DT_MUST_USE dt_status_t dt_ctl_parse_time(const char *text, int64_t now_wall_ms,
                                          int64_t *ret_wall_ms, dt_error_t *err);

#endif
