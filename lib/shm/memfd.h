/* Memory that processes share by descriptor.
 * A memfd gets its size once and is sealed against shrinking and growing, so whoever maps it can
 * never be hit by SIGBUS, and the size is a hard cap. It is sparse: pages cost memory when they are
 * touched. Who may only read gets a descriptor of its own, opened again read-only: a mapping of it
 * cannot be made writable. (F_SEAL_FUTURE_WRITE would do that too, but it also forbids giving
 * memory back.) Limits: 1 byte to DT_MEMFD_SIZE_MAX. Not here: what the memory holds. */
#ifndef DT_SHM_MEMFD_H
#define DT_SHM_MEMFD_H
#include <stddef.h>

#include "base/status.h"

#define DT_MEMFD_SIZE_MAX ((size_t)1 << 40)

/* Create sealed, zeroed shared memory of `size_bytes`, rounded up to whole pages.
 * Ownership: borrows `name` (shown in /proc, at most 64 bytes); gives *ret_fd (close-on-exec),
 * close(). Errors: INVALID (size), LIMIT (descriptors), NOMEM. Threads: any. Blocking: never. */
DT_MUST_USE dt_status_t dt_memfd_create(const char *name, size_t size_bytes, int *ret_fd,
                                        dt_error_t *err);

/* Open the memory of `fd` again, for reading only.
 * Ownership: borrows `fd`; gives *ret_fd (close-on-exec), close().
 * Errors: NOT_FOUND (no /proc), LIMIT (descriptors). Threads: any. Blocking: never. */
DT_MUST_USE dt_status_t dt_memfd_reopen_readonly(int fd, int *ret_fd, dt_error_t *err);

typedef enum dt_memfd_access { DT_MEMFD_READ, DT_MEMFD_READ_WRITE } dt_memfd_access_t;

/* Map `size_bytes` of shared memory that a peer may have sent: its seals and its size are checked
 * first. Ownership: borrows `fd` (the map outlives it); gives *ret_map, unmap with
 * dt_memfd_unmap(). Errors: INVALID (not sealed against shrinking, or smaller than `size_bytes`),
 * DENIED (writing through a read-only descriptor), NOMEM. Threads: any. Blocking: never. */
DT_MUST_USE dt_status_t dt_memfd_map(int fd, size_t size_bytes, dt_memfd_access_t access,
                                     void **ret_map, dt_error_t *err);
void dt_memfd_unmap(void *map, size_t size_bytes); /* NULL is fine */

#endif
