/* A client of the operator stream for tests: speaks /dtorch.v1.Session/Stream itself, so that what
 * a program's library would never do can be done too. Tensors, signatures and futures are numbered
 * from 1 (signatures from 0) in the order of their making. What goes wrong on the wire ends the
 * test. One thread calls; a second one keeps the session alive with beats. */
#ifndef DT_TESTS_LIB_SESSIONPEER_H
#define DT_TESTS_LIB_SESSIONPEER_H
#include <stdbool.h>
#include <stdint.h>

#include "dtorch/v1/session.pb-c.h"
#include "wire/record.h"
#include "wire/signature.h"

typedef struct dt_sessionpeer dt_sessionpeer_t;

/* Open a session at `address`. `backend` "" for any. NULL: refused, the text is printed. */
dt_sessionpeer_t *dt_sessionpeer_open(const char *address, const char *backend,
                                      uint32_t device_count, uint64_t memory_bytes);
void dt_sessionpeer_close(dt_sessionpeer_t *peer); /* Bye; NULL is fine */
uint64_t dt_sessionpeer_id(const dt_sessionpeer_t *peer);

/* Append one record; a full frame is sent. */
void dt_sessionpeer_put(dt_sessionpeer_t *peer, const dt_record_t *record);
void dt_sessionpeer_put_op(dt_sessionpeer_t *peer, const dt_record_op_t *op);
void dt_sessionpeer_flush(dt_sessionpeer_t *peer);

uint64_t dt_sessionpeer_upload(dt_sessionpeer_t *peer, unsigned dtype, unsigned ndim,
                               const int64_t *sizes, const void *bytes);
/* Define a signature from its parts; outputs as said. */
uint32_t dt_sessionpeer_define(dt_sessionpeer_t *peer, const dt_signature_t *signature);
/* A signature over float32 tensors of one shape: `name`(inputs...) -> one output, alias as said. */
uint32_t dt_sessionpeer_define_f32(dt_sessionpeer_t *peer, const char *name, uint32_t input_count,
                                   unsigned ndim, const int64_t *sizes, unsigned alias,
                                   uint32_t flags);
/* Submit with one output. Returns its id; 0 for a signature whose output is in place. */
uint64_t dt_sessionpeer_op(dt_sessionpeer_t *peer, uint32_t signature, const uint64_t *inputs,
                           uint32_t input_count, bool has_output);
void dt_sessionpeer_free(dt_sessionpeer_t *peer, uint64_t tensor);
uint64_t dt_sessionpeer_fetch(dt_sessionpeer_t *peer, uint64_t tensor); /* flushes; the future */

/* Wait for a message of a kind; others are looked at (acks, beats) and kept for their waiters.
 * Gives, free with dtorch__v1__session_down__free_unpacked(). NULL: not within `patience_ms`. */
Dtorch__V1__SessionDown *dt_sessionpeer_wait(dt_sessionpeer_t *peer,
                                             Dtorch__V1__SessionDown__KindCase kind,
                                             int64_t patience_ms);
/* Wait for the result of a future. */
Dtorch__V1__SessionDown *dt_sessionpeer_result(dt_sessionpeer_t *peer, uint64_t future,
                                               int64_t patience_ms);
/* Fetch and wait; the bytes must be `size`. False: an error, whose kind is copied if not NULL. */
bool dt_sessionpeer_read(dt_sessionpeer_t *peer, uint64_t tensor, void *bytes, size_t size,
                         char *ret_kind, size_t kind_size);
/* Send any message. */
void dt_sessionpeer_send(dt_sessionpeer_t *peer, const Dtorch__V1__SessionUp *up);

#endif
