/* What lists of records are made of: values, steps, and moves between places. See ring.c. */
#include <stdlib.h>
#include <string.h>

#include "ring.h"

dt_status_t dt_client_making_nomem(const dt_client_making_t *m)
{
    return dt_fail(m->err, DT_ERR_NOMEM, "dt", 0, "no memory for an operator");
}

/* Have room for `more`. False: no memory. */
static bool grow(void **items, uint32_t *cap, uint32_t count, uint32_t more, size_t size)
{
    if (count + more <= *cap)
        return true;
    uint32_t wider = 2 * (count + more);
    void *grown = realloc(*items, wider * size);
    if (!grown)
        return false;
    *items = grown;
    *cap = wider;
    return true;
}

dt_status_t dt_client_making_value(dt_client_making_t *m, uint32_t meta, uint32_t place,
                                   uint16_t *ret_value)
{
    dt_client_ring_t *ring = m->ring;
    void *values = ring->values;
    if (ring->value_count == UINT16_MAX ||
        !grow(&values, &ring->value_cap, ring->value_count, 1, sizeof *ring->values))
        return dt_client_making_nomem(m);
    ring->values = values;
    ring->values[ring->value_count] = (dt_client_ring_value_t){meta, place};
    *ret_value = (uint16_t)ring->value_count++;
    return DT_OK;
}

dt_status_t dt_client_making_step(dt_client_making_t *m, dt_client_signature_t *signature,
                                  const uint16_t *inputs)
{
    dt_client_ring_t *ring = m->ring;
    void *steps = ring->steps;
    if (!grow(&steps, &ring->step_cap, ring->step_count, 1, sizeof *ring->steps))
        return dt_client_making_nomem(m);
    ring->steps = steps;
    dt_client_ring_step_t *step = &ring->steps[ring->step_count++];
    *step = (dt_client_ring_step_t){.signature = signature};
    memcpy(step->inputs, inputs, signature->input_count * sizeof *inputs);
    return DT_OK;
}

/* A value is used no more; the operator's inputs are not ours. */
void dt_client_making_let_go(dt_client_making_t *m, uint16_t value)
{
    dt_client_ring_step_t *step = &m->ring->steps[m->ring->step_count - 1];
    if (value < m->signature->input_count)
        return;
    dt_check(step->free_count < DT_CLIENT_RING_INPUTS);
    step->frees[step->free_count++] = value;
}

dt_status_t dt_client_making_move(dt_client_making_t *m, uint16_t value, uint32_t place,
                                  uint16_t *ret_value)
{
    const dt_client_ring_value_t from = m->ring->values[value];
    dt_client_signature_t *signature;
    uint32_t dense;
    *ret_value = value;
    if (from.place == place)
        return DT_OK;
    DT_TRY(dt_client_move(m->session, from.meta, from.place, place, &signature, m->err));
    DT_TRY(dt_client_dense(m->session, from.meta, &dense, m->err));
    DT_TRY(dt_client_making_value(m, dense, place, ret_value));
    DT_TRY(dt_client_making_step(m, signature, &value));
    m->ring->steps[m->ring->step_count - 1].output = *ret_value;
    return DT_OK;
}

void dt_client_making_tensor(const dt_client_making_t *m, uint16_t value,
                             dt_signature_tensor_t *ret_tensor)
{
    const dt_client_ring_value_t *is = &m->ring->values[value];
    *ret_tensor = (dt_signature_tensor_t){.meta = *m->session->metas.items[is->meta]};
    dt_client_place_layout(m->session, is->place, &ret_tensor->layout);
}

/* The last step that each value is an input of frees it, but for the operator's inputs and results.
 */
void dt_client_making_free_all(dt_client_making_t *m)
{
    dt_client_ring_t *ring = m->ring;
    for (uint32_t value = m->signature->input_count; value < ring->value_count; value++) {
        dt_client_ring_step_t *last = NULL;
        bool is_result = false;
        for (uint32_t i = 0; i < m->sig->output_count; i++)
            is_result |= m->sig->outputs[i].alias != DT_ALIAS_NONE && ring->results[i] == value;
        for (uint32_t i = 0; i < ring->step_count && !is_result; i++) {
            dt_client_ring_step_t *step = &ring->steps[i];
            bool is_made =
                value >= step->output && value - step->output < step->signature->id_count;
            for (uint32_t k = 0; k < step->signature->input_count && !is_made; k++)
                is_made = step->inputs[k] == value;
            last = is_made ? step : last;
        }
        if (!last)
            continue;
        dt_check(last->free_count < DT_CLIENT_RING_INPUTS);
        last->frees[last->free_count++] = (uint16_t)value;
    }
}
