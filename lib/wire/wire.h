/* Envelopes: the protobuf messages of proto/dtorch/v1 in and out of bytes, within bounds.
 *
 * A message from outside takes three steps, and all three are in dt_wire_unpack():
 *   1. its size is compared with the bound of its kind,
 *   2. protobuf-c unpacks it into a capped arena, so it can allocate no more than the cap,
 *   3. validate.c compares every field with the bound that its .proto comment states.
 * What comes out is safe to use: strings are UTF-8 without control characters, counts and numbers
 * are in range, byte fields have their length. Nothing that outlives the arena may point into it.
 *
 * Not here: operator frames (they come with the session stream), and anything about state. */
#ifndef DT_WIRE_WIRE_H
#define DT_WIRE_WIRE_H
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "dtorch/v1/common.pb-c.h"

#define DT_WIRE_VERSION_MAJOR 1u
#define DT_WIRE_VERSION_MINOR 0u
#define DT_WIRE_VERSION_TEXT  "1.0"

/* No envelope is larger: the receive limit of lib/rpc for control streams. */
#define DT_WIRE_MESSAGE_MAX (512u << 10)
/* Cap that fits the arena of one message of that size: 64 devices with 64 links each and their
 * texts unpack into less than this. */
#define DT_WIRE_ARENA_MAX (2u << 20)

/* Signatures that one SigQuery asks ahead, and the bytes of all of them. */
#define DT_WIRE_AHEAD_MAX   64u
#define DT_WIRE_AHEAD_BYTES (16u << 10)

/* Numbers of dt_error_t.source_code where source is "wire". */
typedef enum dt_wire_error {
    DT_WIRE_SIZE = 1,    /* the message is larger than its bound */
    DT_WIRE_SYNTAX = 2,  /* protobuf-c could not unpack it, or the arena's cap was hit */
    DT_WIRE_BOUND = 3,   /* a field is out of its bound; the text has field, value and bound */
    DT_WIRE_MISSING = 4, /* a field that must be there is not */
    DT_WIRE_TEXT = 5,    /* a string is not UTF-8 or holds control characters */
} dt_wire_error_t;

/* Unpack and validate one message.
 * Ownership: borrows `bytes`; *ret_message lives in `arena` until that is reset; never free it.
 * Errors: INVALID with source "wire" and a dt_wire_error_t, text names message.field, value, bound;
 *  LIMIT (the message is over DT_WIRE_MESSAGE_MAX). The arena may hold a part then: reset it.
 * Threads: any, one arena a thread. Blocking: never. Cost: O(size). */
DT_MUST_USE dt_status_t dt_wire_unpack(const ProtobufCMessageDescriptor *type, dt_arena_t *arena,
                                       const void *bytes, size_t size,
                                       ProtobufCMessage **ret_message, dt_error_t *err);

/* Typed form, *ret is NULL on errors: DT_WIRE_UNPACK(dtorch__v1__worker_up, arena, bytes, size,
 * &up, err). */
#define DT_WIRE_UNPACK(prefix, arena, bytes, size, ret, err)                                       \
    ({                                                                                             \
        ProtobufCMessage *unpacked_ = NULL;                                                        \
        dt_status_t unpack_status_ =                                                               \
            dt_wire_unpack(&prefix##__descriptor, (arena), (bytes), (size), &unpacked_, (err));    \
        *(ret) = (void *)unpacked_;                                                                \
        unpack_status_;                                                                            \
    })

/* Pack into new memory in `arena`.
 * Ownership: *ret_bytes lives in `arena`.
 * Errors: NOMEM (the arena's cap). */
DT_MUST_USE dt_status_t dt_wire_pack(const ProtobufCMessage *message, dt_arena_t *arena,
                                     uint8_t **ret_bytes, size_t *ret_size);

/* Pack into new memory from malloc. Errors: NOMEM. Gives *ret_bytes, free with free(). */
DT_MUST_USE dt_status_t dt_wire_pack_new(const ProtobufCMessage *message, uint8_t **ret_bytes,
                                         size_t *ret_size);

/* Compare every field of an unpacked message with the bounds of its .proto comments.
 * Message kinds without bounds pass. Errors: INVALID as dt_wire_unpack(). */
DT_MUST_USE dt_status_t dt_wire_validate(const ProtobufCMessage *message, dt_error_t *err);

/* Whether a peer's version can be talked to; else INVALID with a text that names both versions.
 * `who` is "worker", "controller", "client": the peer. A missing version is 0.0. */
DT_MUST_USE dt_status_t dt_wire_check_version(const Dtorch__V1__ProtocolVersion *version,
                                              const char *who, const char *build, dt_error_t *err);

/* Whether `len` bytes are UTF-8 without control characters (tab and newline are control too). */
bool dt_wire_text_is_clean(const char *text, size_t len);

/* Whether a name is 1..63 bytes of [a-z0-9-] that begins and ends with a letter or digit. */
bool dt_wire_node_name_is_valid(const char *name);

/* Copy text cut to what fits, at a character's boundary; never fails, always ends `out`.
 * Bytes that are not clean become '?'. */
void dt_wire_text_copy(char *out, size_t out_size, const char *text);

#endif
