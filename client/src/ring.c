/* Operators as lists of records: what no rule of placement can say, since there is communication in
 * the middle. Attention whose sequence is cut (ring_make.c), and softmax, norms and losses along a
 * dimension that is cut (whole_make.c).
 *
 * Of attention each device has queries, keys and values of its part of the sequence. Either the
 * keys go around: a block is attended to (dtorch::attend of lib/shard, which merges by the
 * logarithm of the weights' sum) while the next one is on its way from the neighbour; or everything
 * is dealt out anew by heads, or by batch, the operator runs as it is, and its results come back.
 * Whichever moves fewer bytes. Under a triangular mask the sequence is folded first, so that all
 * devices have the same work.
 *
 * A list depends on where the inputs lie, not on devices or ids: it is made once and kept with the
 * operator's signature. Its numbered places are ids while it is put. What it makes on the way is
 * freed behind its last use, so a device holds one block beside its own.
 *
 * Not here, and so gathered by the operator's rule: a mask, dropout, queries that are whole while
 * the keys are cut, all under DT_POLICY_STRICT, and all but attention under DT_POLICY_WHOLE. */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

#define FREE_BOUND 16u /* bytes of a record, and of each id in it */

/* ---- lists ---- */

static void ring_free(dt_client_ring_t *ring)
{
    if (!ring)
        return;
    free(ring->values);
    free(ring->steps);
    free(ring);
}

void dt_client_rings_free(dt_client_signature_t *signature)
{
    while (signature->rings) {
        dt_client_ring_t *ring = signature->rings;
        signature->rings = ring->next;
        ring_free(ring);
    }
}

static bool is_dropped(const dt_client_ring_t *ring)
{
    for (uint32_t i = 0; i < ring->step_count; i++)
        if (ring->steps[i].signature->is_dropped)
            return true;
    return false;
}

/* The list for inputs at these places; one whose signatures were dropped meanwhile is forgotten. */
static dt_client_ring_t *ring_find(dt_client_signature_t *signature, const uint32_t *have)
{
    for (dt_client_ring_t **at = &signature->rings, *ring; (ring = *at); at = &ring->next) {
        if (memcmp(ring->have, have, signature->input_count * sizeof *have) != 0)
            continue;
        if (!is_dropped(ring))
            return ring;
        *at = ring->next;
        ring_free(ring);
        return NULL;
    }
    return NULL;
}

/* Whether a frame can hold it: it is put at once, so that nobody comes between. */
static void measure(dt_client_ring_t *ring)
{
    ring->bound = 0;
    for (uint32_t i = 0; i < ring->step_count; i++) {
        const dt_client_ring_step_t *step = &ring->steps[i];
        ring->bound += dt_client_op_bound(step->signature->input_count, step->signature->id_count,
                                          step->signature->dynamic_count);
        ring->bound += step->free_count ? FREE_BOUND * (step->free_count + 1u) : 0;
    }
    ring->is_none |= ring->bound > DT_CLIENT_RING_BYTES;
}

/* ---- putting one ---- */

struct putting {
    dt_session_t *session;
    const dt_client_spread_t *spread;
    const dt_client_ring_t *ring;
    uint64_t *ids;                                   /* (value_count) */
    dt_client_node_t *nodes[DT_CLIENT_RING_OUTPUTS]; /* of the results */
};

/* A gradient that nobody asks for has none. */
static bool has_id(const struct putting *p, uint32_t output)
{
    return p->spread->signature->outputs[output].alias == DT_ALIAS_FRESH;
}

/* Everything that can fail. */
static dt_status_t putting_begin(struct putting *p, const uint64_t *wires, dt_error_t *err)
{
    uint32_t count = p->spread->signature->output_count;
    bool is_made = dt_client_node_room(p->session, count);
    p->ids = calloc(p->ring->value_count, sizeof *p->ids);
    for (uint32_t i = 0; i < count && is_made; i++)
        if (has_id(p, i))
            is_made = (p->nodes[i] = dt_client_node_new(p->session)) != NULL;
    if (is_made && p->ids) {
        memcpy(p->ids, wires, p->spread->signature->input_count * sizeof *wires);
        return DT_OK;
    }
    for (uint32_t i = 0; i < count; i++)
        if (p->nodes[i])
            dt_client_node_discard(p->session, p->nodes[i]);
    free(p->ids);
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an operator");
}

static void put_step(const struct putting *p, const dt_client_ring_step_t *step)
{
    dt_session_t *session = p->session;
    uint64_t inputs[DT_CLIENT_RING_INPUTS], outputs[DT_CLIENT_RING_OUTPUTS];
    dt_record_t record = {.kind = DT_RECORD_FREE};
    uint32_t count = step->signature->id_count;
    for (uint32_t i = 0; i < step->signature->input_count; i++)
        inputs[i] = p->ids[step->inputs[i]];
    for (uint32_t i = 0; i < count; i++)
        outputs[i] = p->ids[step->output + i] = session->next_tensor++;
    const dt_record_op_t op = {.signature = step->signature->id,
                               .input_count = step->signature->input_count,
                               .output_count = count,
                               .scalar_count = step->signature->dynamic_count,
                               .inputs = inputs,
                               .outputs = outputs,
                               .scalars = p->spread->scalars + step->scalar};
    step->signature->used = dt_client_sequence(session);
    dt_client_put_part(session, &op);
    if (step->free_count == 0)
        return;
    for (uint32_t i = 0; i < step->free_count; i++)
        inputs[i] = p->ids[step->frees[i]];
    record.ids.count = step->free_count;
    record.ids.ids = inputs;
    dt_check(dt_record_put(&session->writer, &record)); /* there is room: measure() */
}

static void put_all(struct putting *p, uint64_t *ret_outputs)
{
    const dt_client_ring_t *ring = p->ring;
    uint32_t at = 0;
    for (uint32_t i = 0; i < ring->step_count; i++)
        put_step(p, &ring->steps[i]);
    for (uint32_t i = 0; i < p->spread->signature->output_count; i++) {
        dt_client_node_t *node = p->nodes[i];
        if (!has_id(p, i))
            continue;
        dt_check(node); /* putting_begin() made it */
        node->id = node->wire = ret_outputs[at++] = p->ids[ring->results[i]];
        node->meta = p->spread->signature->metas[i];
        node->place = ring->values[ring->results[i]].place;
        dt_client_node_add(p->session, node, NULL);
    }
    dt_client_put_end(p->session);
    free(p->ids);
}

/* ---- an operator ---- */

/* Where the inputs are. False: one of them is on no mesh. */
static dt_status_t look(dt_session_t *session, const dt_client_spread_t *spread, uint64_t *wires,
                        uint32_t *have, bool *ret_is_known, dt_error_t *err)
{
    uint32_t count = spread->signature->input_count;
    *ret_is_known = false;
    for (uint32_t k = 0; k < count; k++) {
        dt_client_node_t *node = dt_client_node_find(session, spread->inputs[k]);
        if (!node || !dt_client_place_mesh(session, node->place))
            return DT_OK;
        DT_TRY(dt_client_refresh(session, node, err));
    }
    for (uint32_t k = 0; k < count; k++) {
        const dt_client_node_t *node = dt_client_node_find(session, spread->inputs[k]);
        if (!node || node->meta == DT_CLIENT_NO_META)
            return DT_OK;
        wires[k] = node->wire;
        have[k] = node->place;
    }
    *ret_is_known = true;
    return DT_OK;
}

dt_status_t dt_client_ring(dt_session_t *session, const dt_client_spread_t *spread,
                           uint64_t *ret_outputs, bool *ret_is_done, dt_error_t *err)
{
    struct putting p = {.session = session, .spread = spread};
    dt_client_signature_t *signature = spread->signature;
    uint64_t wires[DT_CLIENT_RING_INPUTS];
    uint32_t have[DT_CLIENT_RING_INPUTS];
    bool is_known;
    *ret_is_done = false;
    if ((session->track.policy & DT_POLICY_STRICT) ||
        (signature->needs_whole && session->track.policy & DT_POLICY_WHOLE) ||
        (signature->ring_drops && spread->scalars[0].real != 0))
        return DT_OK;
    for (;;) {
        uint64_t seen = session->releases;
        DT_TRY(look(session, spread, wires, have, &is_known, err));
        if (!is_known)
            return DT_OK;
        dt_client_ring_t *ring = ring_find(signature, have);
        if (!ring) {
            DT_TRY(dt_client_ring_make(session, signature, have, &ring, err));
            measure(ring);
            ring->next = signature->rings;
            signature->rings = ring;
        }
        if (ring->is_none)
            return DT_OK;
        DT_TRY(dt_client_room(session, ring->bound, INT64_MAX, err));
        if (session->releases != seen)
            continue; /* the lock was released: all may be elsewhere */
        p.ring = ring;
        DT_TRY(putting_begin(&p, wires, err));
        put_all(&p, ret_outputs);
        *ret_is_done = true;
        return DT_OK;
    }
}
