/* A peer that speaks HTTP/2 and gRPC by hand, as badly as a test wants: half messages, a window of
 * nothing, silence. For well-formed streams with bad content use rpc/rpc.h's dt_rpc_reader. */
#ifndef DT_TESTS_LIB_RAWPEER_H
#define DT_TESTS_LIB_RAWPEER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Connect to a unix socket's path, or to a loopback port given as text. -1: refused. */
int dt_rawpeer_connect(const char *target);
/* Send the HTTP/2 preface. `window` bytes are what the other side may send on each stream. */
bool dt_rawpeer_preface(int fd, uint32_t window);
/* Open stream 1 for a method, "/dtorch.v1.Worker/Stream". */
bool dt_rawpeer_open(int fd, const char *method);
/* Send `size` bytes of a message that claims to have `claimed`. */
bool dt_rawpeer_message(int fd, const void *data, uint32_t size, uint32_t claimed);
/* Whether the other side closed the connection within patience. What it sends is dropped. */
bool dt_rawpeer_wait_closed(int fd, int64_t patience_ms);

#endif
