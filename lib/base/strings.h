/* Strings: bounded copies, vectors of them, and numbers with units to and from text.
 * Every parser reads the whole text or fails. Nothing here depends on the locale. */
#ifndef DT_BASE_STRINGS_H
#define DT_BASE_STRINGS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_STR_UNIT_TEXT_SIZE 48 /* bytes that each dt_str_format_* needs */

/* A list of strings. Zero is an empty one. */
typedef struct dt_strv {
    char **items; /* `count` strings and a NULL; NULL while empty */
    size_t count;
} dt_strv_t;

bool dt_str_is_equal(const char *a, const char *b); /* NULL equals NULL only */
bool dt_str_has_prefix(const char *text, const char *prefix);
bool dt_str_has_suffix(const char *text, const char *suffix);

/* Copy as much of `text` as fits and terminate it; never splits a UTF-8 character.
 * Returns whether all of it fitted. `size` is at least 1. */
bool dt_str_copy(char *dst, size_t size, const char *text);

/* Cut spaces, tabs, CR and LF off both ends, in place. Returns the new begin within `text`. */
char *dt_str_trim(char *text);

/* Whether the bytes are valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). */
bool dt_str_is_utf8(const char *text, size_t len);

/* The bytes of the UTF-8 character at `text`, or 0 if it is not a valid one or `len` is 0. */
size_t dt_str_utf8_length(const char *text, size_t len);

/* Whether `text` is a name as nodes and clusters have it: 1..63 of a-z 0-9 -, the first and the
 * last not a dash. */
bool dt_str_is_name(const char *text);

/* Read a decimal number with an optional sign. Errors: INVALID, LIMIT (does not fit in 64 bits). */
DT_MUST_USE dt_status_t dt_str_to_i64(const char *text, int64_t *ret_value);

/* Read a duration: numbers with units one after the other, "500ms", "1min 30s", "1.5s"; units ns us
 * ms s min h d w. A number without a unit is INVALID, but "0" is fine. Units: nanoseconds.
 * Errors: INVALID, LIMIT. */
DT_MUST_USE dt_status_t dt_str_to_duration_ns(const char *text, int64_t *ret_ns);

/* Read a size: a number with B, KiB, MiB, GiB, TiB, or K, M, G, T for the same; "0" is fine and a
 * number without a unit is INVALID. Units: bytes. Errors: INVALID, LIMIT. */
DT_MUST_USE dt_status_t dt_str_to_size(const char *text, int64_t *ret_bytes);

/* Read yes, no, true, false, on, off, 1, 0. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_str_to_bool(const char *text, bool *ret_value);

/* Write a duration or a size exactly: "250ms", "1min 30s", "64MiB", "1000B". Of values from 0 on,
 * dt_str_to_* reads the same value back. */
void dt_str_format_duration(int64_t ns, char text[static DT_STR_UNIT_TEXT_SIZE]);
void dt_str_format_size(int64_t bytes, char text[static DT_STR_UNIT_TEXT_SIZE]);

/* The same for people, cut to two or three digits: "0.9 s", "41 d", "3.1 TiB". */
void dt_str_human_duration(int64_t ns, char text[static DT_STR_UNIT_TEXT_SIZE]);
void dt_str_human_size(int64_t bytes, char text[static DT_STR_UNIT_TEXT_SIZE]);

/* Append a copy of `text`. Errors: NOMEM; the list stays as it was. */
DT_MUST_USE dt_status_t dt_strv_append(dt_strv_t *strv, const char *text);

/* Append the words of `text` that stand between any of the bytes in `separators`; empty ones are
 * skipped. Errors: NOMEM; the list may have grown by some. */
DT_MUST_USE dt_status_t dt_strv_split(dt_strv_t *strv, const char *text, const char *separators);

bool dt_strv_has(const dt_strv_t *strv, const char *text);
void dt_strv_fini(dt_strv_t *strv); /* NULL is fine; leaves an empty list */

/* Cleanup for locals: DT_CLEANUP(dt_str_free) char *text = NULL; */
void dt_str_free(char **text);

#endif
