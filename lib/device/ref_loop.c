/* The one loop over elements, and what an element of each dtype is. */
#include <math.h>
#include <string.h>

#include "device/ref_internal.h"

#define TWO_TO_63 9223372036854775808.0

/* Out of range and NaN give what x86 gives, so that it is the same everywhere. */
static int64_t to_int(double value)
{
    return value >= -TWO_TO_63 && value < TWO_TO_63 ? (int64_t)value : INT64_MIN;
}

dt_ref_value_t dt_ref_load(const char *at, unsigned dtype, unsigned as)
{
    dt_ref_value_t value = {.i = 0};
    float single;
    uint8_t byte;
    switch (dtype) {
    case DT_DTYPE_F64:
        memcpy(&value.f, at, sizeof value.f);
        break;
    case DT_DTYPE_F32:
        memcpy(&single, at, sizeof single);
        value.f = single;
        break;
    case DT_DTYPE_I64:
        memcpy(&value.i, at, sizeof value.i);
        break;
    default:
        memcpy(&byte, at, sizeof byte);
        value.i = byte != 0;
        break;
    }
    if (dt_ref_is_float(dtype) != dt_ref_is_float(as)) {
        if (as == DT_DTYPE_BOOL)
            value.i = value.f != 0;
        else if (dt_ref_is_float(dtype))
            value.i = to_int(value.f);
        else
            value.f = (double)value.i;
    }
    if (as == DT_DTYPE_F32)
        value.f = (float)value.f;
    else if (as == DT_DTYPE_BOOL)
        value.i = value.i != 0;
    return value;
}

void dt_ref_store(char *at, unsigned dtype, unsigned as, dt_ref_value_t value)
{
    bool is_float = dt_ref_is_float(as);
    if (as == DT_DTYPE_F32)
        value.f = (float)value.f;
    if (dtype == DT_DTYPE_F64) {
        double number = is_float ? value.f : (double)value.i;
        memcpy(at, &number, sizeof number);
    } else if (dtype == DT_DTYPE_F32) {
        float number = is_float ? (float)value.f : (float)value.i;
        memcpy(at, &number, sizeof number);
    } else if (dtype == DT_DTYPE_I64) {
        int64_t number = is_float ? to_int(value.f) : value.i;
        memcpy(at, &number, sizeof number);
    } else {
        uint8_t number = is_float ? value.f != 0 : value.i != 0;
        memcpy(at, &number, sizeof number);
    }
}

bool dt_ref_step(unsigned ndim, const int64_t *sizes, int64_t *index)
{
    for (unsigned i = ndim; i-- > 0;) {
        if (++index[i] < sizes[i])
            return true;
        index[i] = 0;
    }
    return false;
}

void dt_ref_loop_init(dt_ref_loop_t *loop, unsigned ndim, const int64_t *sizes)
{
    memset(loop, 0, sizeof *loop);
    loop->ndim = ndim;
    memcpy(loop->sizes, sizes, ndim * sizeof *sizes);
}

void dt_ref_loop_add(dt_ref_loop_t *loop, const dt_ref_tensor_t *tensor, unsigned as)
{
    const dt_meta_t *meta = &tensor->meta;
    unsigned missing = loop->ndim - meta->ndim;
    uint32_t slot = loop->count++;
    int64_t width = (int64_t)dt_dtype_bytes(meta->dtype);
    loop->slots[slot].at = dt_ref_tensor_data(tensor);
    loop->slots[slot].dtype = meta->dtype;
    loop->slots[slot].as = (uint8_t)(as == 0xff ? meta->dtype : as);
    for (unsigned i = missing; i < loop->ndim; i++)
        loop->slots[slot].steps[i] = meta->sizes[i - missing] == 1 && loop->sizes[i] != 1
                                         ? 0
                                         : meta->strides[i - missing] * width;
}

static int64_t place_of(const dt_ref_loop_t *loop, uint32_t slot, const int64_t *index)
{
    int64_t place = 0;
    for (unsigned i = 0; i < loop->ndim; i++)
        place += index[i] * loop->slots[slot].steps[i];
    return place;
}

static bool is_empty(const dt_ref_loop_t *loop)
{
    for (unsigned i = 0; i < loop->ndim; i++)
        if (loop->sizes[i] == 0)
            return true;
    return !loop->slots[0].at; /* a question */
}

void dt_ref_loop_run(dt_ref_loop_t *loop, dt_ref_element_fn fn)
{
    int64_t index[DT_META_DIM_MAX] = {0};
    dt_ref_value_t in[DT_REF_SLOT_MAX];
    if (is_empty(loop))
        return;
    do {
        for (uint32_t k = 1; k < loop->count; k++)
            in[k - 1] = dt_ref_load(loop->slots[k].at + place_of(loop, k, index),
                                    loop->slots[k].dtype, loop->slots[k].as);
        dt_ref_store(loop->slots[0].at + place_of(loop, 0, index), loop->slots[0].dtype,
                     loop->slots[0].as, fn(in));
    } while (dt_ref_step(loop->ndim, loop->sizes, index));
}

static dt_ref_value_t same(const dt_ref_value_t *in)
{
    return in[0];
}

void dt_ref_copy(const dt_ref_call_t *call, dt_ref_tensor_t *to, const dt_ref_tensor_t *from)
{
    dt_ref_loop_t loop;
    if (call->is_question)
        return;
    dt_ref_loop_init(&loop, to->meta.ndim, to->meta.sizes);
    dt_ref_loop_add(&loop, to, from->meta.dtype);
    dt_ref_loop_add(&loop, from, 0xff);
    dt_ref_loop_run(&loop, same);
}
