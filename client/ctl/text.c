#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/strings.h"

size_t dt_ctl_utf8_next(const char *text, size_t len, uint32_t *ret_code)
{
    const uint8_t *in = (const uint8_t *)text;
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t need = in[0] < 0x80 ? 1 : (in[0] & 0xe0) == 0xc0 ? 2 : (in[0] & 0xf0) == 0xe0 ? 3 : 4;
    uint32_t code = need == 1 ? in[0] : in[0] & (0xffU >> (need + 1));
    *ret_code = UINT32_MAX;
    if (need > len || (in[0] >= 0x80 && in[0] < 0xc0) || in[0] > 0xf4)
        return 1;
    for (size_t i = 1; i < need; i++) {
        if ((in[i] & 0xc0) != 0x80)
            return 1;
        code = code << 6 | (in[i] & 0x3f);
    }
    if (code < smallest[need] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 1;
    *ret_code = code;
    return need;
}

bool dt_ctl_is_obeyed(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) ||
           code == 0xfeff || code == UINT32_MAX;
}

const char *dt_ctl_safe(dt_arena_t *pool, const char *text)
{
    size_t len = text ? strlen(text) : 0, used = 0;
    bool is_clean = true;
    uint32_t code;
    for (size_t at = 0; at < len; at += dt_ctl_utf8_next(text + at, len - at, &code))
        is_clean = is_clean && (uint8_t)text[at] >= 0x20 && (uint8_t)text[at] < 0x7f;
    if (is_clean)
        return text ? text : "";
    size_t size = len * 6 + 1; /* the longest escape takes six bytes */
    char *safe = dt_ctl_alloc(pool, size, 1);
    for (size_t at = 0; at < len;) {
        size_t step = dt_ctl_utf8_next(text + at, len - at, &code);
        if (!dt_ctl_is_obeyed(code)) {
            memcpy(safe + used, text + at, step);
            used += step;
        } else if (code == '\n' || code == '\t') {
            used += (size_t)snprintf(safe + used, size - used, "\\%c", code == '\n' ? 'n' : 't');
        } else if (code < 0x80 || code == UINT32_MAX) {
            used += (size_t)snprintf(safe + used, size - used, "\\x%02x", (uint8_t)text[at]);
        } else {
            used += (size_t)snprintf(safe + used, size - used, "\\u%04" PRIx32, code);
        }
        at += step;
    }
    safe[used] = '\0';
    return safe;
}

static size_t columns_of(uint32_t code)
{
    if (code < 0x80)
        return 1;
    int columns = wcwidth((wchar_t)code); /* -1 when the locale does not know the character */
    return columns < 0 ? 1 : (size_t)columns;
}

size_t dt_ctl_columns(const char *text)
{
    size_t columns = 0, len = strlen(text);
    uint32_t code;
    for (size_t at = 0; at < len;) {
        at += dt_ctl_utf8_next(text + at, len - at, &code);
        columns += columns_of(code);
    }
    return columns;
}

const char *dt_ctl_ellipsis(dt_arena_t *pool, const char *text, size_t columns)
{
    size_t at = 0, used = 0, len = strlen(text);
    uint32_t code;
    if (columns == 0 || dt_ctl_columns(text) <= columns)
        return columns == 0 ? "" : text;
    while (at < len) {
        size_t step = dt_ctl_utf8_next(text + at, len - at, &code);
        if (used + columns_of(code) > columns - 1)
            break;
        used += columns_of(code);
        at += step;
    }
    return dt_ctl_print(pool, "%.*s…", (int)at, text);
}

const char *dt_ctl_duration(dt_arena_t *pool, int64_t ms)
{
    char text[DT_STR_UNIT_TEXT_SIZE];
    int64_t ns;
    if (ms > -1000 && ms < 1000)
        return dt_ctl_print(pool, "%.1f s", (double)ms / 1000);
    dt_str_human_duration(__builtin_mul_overflow(ms, DT_CLOCK_MS_NS, &ns) ? INT64_MAX : ns, text);
    return dt_ctl_copy(pool, text, strlen(text));
}

const char *dt_ctl_duration_ns(dt_arena_t *pool, int64_t ns)
{
    char text[DT_STR_UNIT_TEXT_SIZE];
    dt_str_human_duration(ns, text);
    return dt_ctl_copy(pool, text, strlen(text));
}

const char *dt_ctl_bytes(dt_arena_t *pool, uint64_t bytes)
{
    char text[DT_STR_UNIT_TEXT_SIZE];
    dt_str_human_size(bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes, text);
    return dt_ctl_copy(pool, text, strlen(text));
}

const char *dt_ctl_count(dt_arena_t *pool, uint64_t count)
{
    static const char *const units[] = {"k", "M", "G", "T", "P", "E"};
    size_t unit = 0;
    double value = (double)count / 1000;
    if (count < 100000)
        return dt_ctl_print(pool, "%" PRIu64, count);
    for (; value >= 999.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        value /= 1000;
    return dt_ctl_print(pool, value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

const char *dt_ctl_bar(dt_arena_t *pool, uint64_t part, uint64_t total, size_t columns)
{
    char *bar = dt_ctl_alloc(pool, columns + 1, 1);
    double share = total > 0 ? (double)part / (double)total : 0;
    size_t full = share >= 1 ? columns : (size_t)(share * (double)columns + 0.5);
    if (full == 0 && part > 0 && columns > 0)
        full = 1; /* little is not nothing */
    memset(bar, '|', full);
    memset(bar + full, '.', columns - full);
    return bar;
}

const char *dt_ctl_time(dt_arena_t *pool, int64_t wall_ms, int64_t now_wall_ms, bool is_utc)
{
    time_t at = (time_t)(wall_ms / 1000), now = (time_t)(now_wall_ms / 1000);
    struct tm tm, today;
    char text[DT_CLOCK_TEXT_SIZE];
    dt_clock_format_wall(wall_ms, text);
    if (!is_utc && localtime_r(&at, &tm) && localtime_r(&now, &today)) {
        bool is_today = tm.tm_yday == today.tm_yday && tm.tm_year == today.tm_year;
        (void)strftime(text, sizeof text, is_today ? "%H:%M:%S" : "%Y-%m-%d %H:%M", &tm);
    }
    return dt_ctl_copy(pool, text, strlen(text));
}

const char *dt_ctl_hex(dt_arena_t *pool, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    char *text = dt_ctl_alloc(pool, len * 2 + 1, 1);
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    return text;
}

/* The end of an RFC 3339 time: a fraction, and Z or an offset. *ret_has_zone says whether one came.
 */
static const char *parse_zone(const char *text, int64_t *ret_fraction_ms, bool *ret_has_zone,
                              int64_t *ret_offset_ms)
{
    *ret_fraction_ms = *ret_offset_ms = 0;
    *ret_has_zone = false;
    if (*text == '.') {
        int64_t scale = 100;
        for (text++; *text >= '0' && *text <= '9'; text++, scale /= 10)
            *ret_fraction_ms += (*text - '0') * scale;
    }
    if (*text == 'Z' || *text == 'z') {
        *ret_has_zone = true;
        return text + 1;
    }
    if (*text == '+' || *text == '-') {
        int hours, minutes, used = 0;
        if (sscanf(text + 1, "%2d:%2d%n", &hours, &minutes, &used) != 2)
            return text;
        *ret_has_zone = true;
        *ret_offset_ms = (int64_t)(hours * 60 + minutes) * 60000 * (*text == '-' ? -1 : 1);
        text += 1 + used;
    }
    return text;
}

/* Parse a date, a time of today, or both. Returns false if `text` is neither. */
static bool parse_calendar(const char *text, int64_t now_wall_ms, int64_t *ret_wall_ms)
{
    static const char *const forms[] = {
        "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M",
        "%Y-%m-%d",          "%H:%M:%S",          "%H:%M"};
    time_t now = (time_t)(now_wall_ms / 1000);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct tm tm;
        int64_t fraction_ms, offset_ms;
        bool has_zone;
        if (!localtime_r(&now, &tm))
            return false;
        tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
        const char *end = strptime(text, forms[i], &tm);
        if (!end || *parse_zone(end, &fraction_ms, &has_zone, &offset_ms) != '\0')
            continue;
        tm.tm_isdst = -1;
        time_t at = has_zone ? timegm(&tm) : mktime(&tm);
        *ret_wall_ms = (int64_t)at * 1000 + fraction_ms - offset_ms;
        return true;
    }
    return false;
}

dt_status_t dt_ctl_parse_time(const char *text, int64_t now_wall_ms, int64_t *ret_wall_ms,
                              dt_error_t *err)
{
    int64_t ago_ns, midnight_ms, seconds;
    int used = 0;
    if (parse_calendar("00:00", now_wall_ms, &midnight_ms)) {
        if (strcmp(text, "today") == 0) {
            *ret_wall_ms = midnight_ms;
            return DT_OK;
        }
        if (strcmp(text, "yesterday") == 0 && parse_calendar("00:00", midnight_ms - 1, ret_wall_ms))
            return DT_OK;
    }
    if (sscanf(text, "@%" SCNd64 "%n", &seconds, &used) == 1 && text[used] == '\0' &&
        !__builtin_mul_overflow(seconds, 1000, ret_wall_ms))
        return DT_OK;
    if (dt_str_to_duration_ns(text, &ago_ns) == DT_OK) {
        *ret_wall_ms = now_wall_ms - ago_ns / 1000000;
        return DT_OK;
    }
    if (parse_calendar(text, now_wall_ms, ret_wall_ms))
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "\"%s\" is no time: write 10m (so long ago), 14:02, 2026-11-28 or "
                   "2026-11-28T14:02:11Z",
                   text);
}
