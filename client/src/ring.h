/* Attention over a sequence that is cut, as a list of records; see ring.c. Inside of libdtorch,
 * lock held in all. */
#ifndef DT_CLIENT_RING_H
#define DT_CLIENT_RING_H
#include "client.h"

#define DT_CLIENT_RING_INPUTS  9u /* of one record */
#define DT_CLIENT_RING_OUTPUTS 3u
#define DT_CLIENT_RING_BYTES   (48u << 10) /* of a list: one frame's */

/* A value of a list: the operator's inputs first, then what steps make. */
typedef struct dt_client_ring_value {
    uint32_t meta; /* interned */
    uint32_t place;
} dt_client_ring_value_t;

typedef struct dt_client_ring_step {
    dt_client_signature_t *signature;
    uint16_t inputs[DT_CLIENT_RING_INPUTS]; /* (signature->input_count) values */
    uint16_t output;                        /* first of (signature->id_count) values */
    uint16_t frees[DT_CLIENT_RING_INPUTS]; /* (free_count) values that are used for the last time */
    uint8_t free_count;
    uint8_t scalar; /* first of the operator's numbers that it is given */
} dt_client_ring_step_t;

typedef struct dt_client_ring {
    struct dt_client_ring *next;
    uint32_t have[DT_CLIENT_RING_INPUTS]; /* places of the operator's inputs */
    bool is_none;                         /* the operator's own rule does it */
    size_t bound;                         /* bytes in a frame, at most */
    dt_client_ring_value_t *values;       /* (value_count) */
    uint32_t value_count, value_cap;
    dt_client_ring_step_t *steps; /* (step_count) */
    uint32_t step_count, step_cap;
    uint16_t results[DT_CLIENT_RING_OUTPUTS]; /* values */
} dt_client_ring_t;

/* ---- ring_make.c ---- */

/* Whether a call may have a list: it is attention, without a mask, and nothing is dropped. */
bool dt_client_ring_takes(const dt_signature_t *sig);
/* Whether each call brings the share that is dropped, as its first number. */
bool dt_client_ring_drops(const dt_signature_t *sig);
/* Make the list for inputs at these places. May release the lock.
 * Ownership: gives *ret_ring to the signature's list. Errors: NOMEM, what defining gives. */
DT_MUST_USE dt_status_t dt_client_ring_make(dt_session_t *session, dt_client_signature_t *signature,
                                            const uint32_t *have, dt_client_ring_t **ret_ring,
                                            dt_error_t *err);

#endif
