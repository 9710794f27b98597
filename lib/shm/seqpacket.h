/* Messages with descriptors between the agent and its engines, over a SOCK_SEQPACKET pair.
 * A message arrives whole or not at all, at most DT_SEQPACKET_SIZE_MAX bytes with
 * DT_SEQPACKET_FDS_MAX descriptors. The other side is not trusted: what is cut off is refused, and
 * no descriptor that it sent can stay open unnoticed. Received descriptors are close-on-exec.
 * Sending never blocks and never raises SIGPIPE. */
#ifndef DT_SHM_SEQPACKET_H
#define DT_SHM_SEQPACKET_H
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define DT_SEQPACKET_SIZE_MAX 4096
#define DT_SEQPACKET_FDS_MAX  4

/* Create a connected pair, both ends close-on-exec; [0] never blocks, [1] does.
 * Ownership: gives ret_fds, close() each. Errors: LIMIT (descriptors), NOMEM. Threads: any. */
DT_MUST_USE dt_status_t dt_seqpacket_pair(int ret_fds[2], dt_error_t *err);

/* Send one message.
 * Ownership: borrows `data` and `fds`; the receiver gets duplicates. Safe in a signal handler when
 * `err` is NULL. The end of a peer is also seen by receiving, so the result may be ignored.
 * Errors: INVALID (a bound), AGAIN (the peer's buffer is full), PEER (it is
 * gone). Threads: any. Blocking: never. */
dt_status_t dt_seqpacket_send(int fd, const void *data, size_t size_bytes, const int *fds,
                              int fd_count, dt_error_t *err);

/* Receive one message into `data`, with at most `fd_max` descriptors.
 * Ownership: borrows `data`; gives `ret_fds` (*ret_fd_count of them), close() each.
 * Errors: AGAIN (nothing there and `fd` does not block), PEER (end of the connection), INVALID (a
 * message over `size_max` or with too many descriptors: it is dropped and its descriptors are
 * closed). Threads: any. Blocking: as `fd` is. */
DT_MUST_USE dt_status_t dt_seqpacket_recv(int fd, void *data, size_t size_max,
                                          size_t *ret_size_bytes, int *ret_fds, int fd_max,
                                          int *ret_fd_count, dt_error_t *err);

#endif
