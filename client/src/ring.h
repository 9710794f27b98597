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

/* A list that is being made. */
typedef struct dt_client_making {
    dt_session_t *session;
    dt_client_signature_t *signature;
    dt_client_ring_t *ring;
    dt_arena_t arena;
    dt_signature_t *sig; /* decoded, with the layouts of the inputs */
    const dt_mesh_t *mesh;
    dt_error_t *err;
    /* Of attention: */
    bool is_backward;
    uint32_t q, k, lse_dtype;  /* inputs; what is added up in */
    unsigned dim;              /* of the mesh: that cuts the sequence */
    uint32_t parts;            /* along it */
    bool is_causal, is_ring;   /* is_ring: the keys are cut too */
    dt_layout_t queries, keys; /* where they are to lie, in the order of the sequence */
    dt_value_t scale;
} dt_client_making_t;

/* ---- steps.c ---- */

dt_status_t dt_client_making_nomem(const dt_client_making_t *m);
/* A new value; what makes it is the caller's to say. */
dt_status_t dt_client_making_value(dt_client_making_t *m, uint32_t meta, uint32_t place,
                                   uint16_t *ret_value);
/* A new step at the end: `inputs` has signature->input_count values; its output is set afterwards.
 */
dt_status_t dt_client_making_step(dt_client_making_t *m, dt_client_signature_t *signature,
                                  const uint16_t *inputs);
/* The last step is the last one that uses a value; nothing for the operator's inputs. */
void dt_client_making_let_go(dt_client_making_t *m, uint16_t value);
/* A value at another place; the same if it is there. */
dt_status_t dt_client_making_move(dt_client_making_t *m, uint16_t value, uint32_t place,
                                  uint16_t *ret_value);
/* Metadata and layout of a value, as a signature says them. */
void dt_client_making_tensor(const dt_client_making_t *m, uint16_t value,
                             dt_signature_tensor_t *ret_tensor);
/* Of a finished list: each value is let go behind its last use. */
void dt_client_making_free_all(dt_client_making_t *m);

/* ---- whole_make.c ---- */

/* Whether a call may have a list because it needs the whole of a dimension. */
bool dt_client_whole_takes(const dt_signature_t *sig);
/* Make it, or set m->ring->is_none. May release the lock. Errors: NOMEM, what defining gives. */
dt_status_t dt_client_whole_make(dt_client_making_t *m);

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
