/* Small helpers for what the kernel tells in files, and for identities made from a seed.
 * All paths are `root` (a prefix, "" outside tests) followed by an absolute path. */
#ifndef DT_DEVICE_SYSFILE_H
#define DT_DEVICE_SYSFILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_SYSFILE_PATH_MAX 512
#define DT_SYSFILE_TEXT_MAX 512 /* of what dt_sysfile_clean() takes */

/* Read at most size-1 bytes of a file and end them with NUL; what follows is not read. A last
 * newline is cut.
 * Errors: NOT_FOUND (or cannot be read), LIMIT (path too long). Blocking: reads a file. */
DT_MUST_USE dt_status_t dt_sysfile_read(const char *root, const char *path, char *ret_text,
                                        size_t size);

/* Read a file that holds one decimal number, possibly negative.
 * Errors: as dt_sysfile_read, INVALID (no number). */
DT_MUST_USE dt_status_t dt_sysfile_read_int(const char *root, const char *path, int64_t *ret_value);

/* Find "KEY  :  VALUE" or "KEY  VALUE" at a line's start and copy VALUE up to the line's end.
 * Errors: NOT_FOUND. Blocking: never. */
DT_MUST_USE dt_status_t dt_sysfile_field(const char *text, const char *key, char *ret_value,
                                         size_t size);

/* Call `each` for every number of a kernel list such as "0-3,8,10-11"; stops at what it does not
 * understand. Numbers above 65535 are left out. */
void dt_sysfile_list(const char *text, void (*each)(int32_t number, void *arg), void *arg);

/* Take the next word off *at, which is changed, and the blanks behind it; "" at the end. */
const char *dt_sysfile_word(char **at);

/* Parse a whole decimal number, or a size with a unit (none, K, M, G, T or KiB, MiB, GiB, TiB; all
 * powers of 1024).
 * Errors: INVALID (anything else, trailing text, overflow). */
DT_MUST_USE dt_status_t dt_sysfile_parse_uint(const char *text, uint64_t max, uint64_t *ret_value);
DT_MUST_USE dt_status_t dt_sysfile_parse_size(const char *text, uint64_t *ret_bytes);

/* Make a uuid "PREFIX-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" that depends on all three arguments
 * only. Not a secret and not proof against anyone who wants a collision. */
void dt_sysfile_uuid(const char *prefix, const char *seed, int64_t number, char *ret_uuid,
                     size_t size);

/* Make bytes that came from outside fit for a protobuf string and a terminal: NUL-terminated within
 * `size`, which is at most DT_SYSFILE_TEXT_MAX; control characters and what is no UTF-8 become '?'.
 * With `is_word`, spaces become '_'. */
void dt_sysfile_clean(char *text, size_t size, bool is_word);

/* The text of an errno value, for messages; any thread. */
const char *dt_sysfile_errno_text(int number);

#endif
