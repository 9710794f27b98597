/* Random arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta.h"

#define ELEMENT_MAX 65536

void dt_gen_begin(dt_gen_t *g, uint64_t seed)
{
    const dt_backend_t *table = g->table;
    void *device = g->device;
    memset(g, 0, sizeof *g);
    g->table = table;
    g->device = device;
    g->state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

void dt_gen_end(dt_gen_t *g)
{
    for (uint32_t i = 0; i < g->owned_count; i++)
        g->table->tensor_free(g->device, g->owned[i]);
    g->owned_count = 0;
}

/* ---- draws ---- */

static uint64_t draw(dt_gen_t *g)
{
    uint64_t x = g->state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint32_t dt_gen_below(dt_gen_t *g, uint32_t bound)
{
    return (uint32_t)(draw(g) >> 33) % bound;
}

bool dt_gen_chance(dt_gen_t *g, uint32_t percent)
{
    return dt_gen_below(g, 100) < percent;
}

int64_t dt_gen_size(dt_gen_t *g)
{
    static const int64_t sizes[] = {1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7, 9};
    return dt_gen_chance(g, 3) ? 0 : sizes[dt_gen_below(g, sizeof sizes / sizeof *sizes)];
}

unsigned dt_gen_dtype(dt_gen_t *g, const char *letters)
{
    switch (letters[dt_gen_below(g, (uint32_t)strlen(letters))]) {
    case 'f':
        return DT_DTYPE_F32;
    case 'd':
        return DT_DTYPE_F64;
    case 'h':
        return DT_DTYPE_F16;
    case 'b':
        return DT_DTYPE_BF16;
    case 'i':
        return DT_DTYPE_I64;
    case 'j':
        return DT_DTYPE_I32;
    case 'k':
        return DT_DTYPE_I8;
    case 'u':
        return DT_DTYPE_U8;
    case 'c':
        return DT_DTYPE_C64;
    case 'z':
        return DT_DTYPE_C128;
    default:
        return DT_DTYPE_BOOL;
    }
}

unsigned dt_gen_shape(dt_gen_t *g, unsigned least, unsigned most, int64_t *ret_sizes)
{
    unsigned ndim = least + dt_gen_below(g, most - least + 1);
    for (unsigned i = 0; i < ndim; i++)
        ret_sizes[i] = dt_gen_size(g);
    return ndim;
}

/* ---- tensors ---- */

typedef struct geometry {
    int64_t strides[DT_META_DIM_MAX];
    int64_t offset, span; /* elements */
} geometry_t;

/* Strides for a dense tensor whose dimensions lie in `order`, last one fastest. */
static void lay_out(const int64_t *sizes, unsigned ndim, const unsigned *order, int64_t gap,
                    geometry_t *to)
{
    int64_t stride = 1;
    for (unsigned k = ndim; k-- > 0;) {
        to->strides[order[k]] = stride;
        stride *= sizes[order[k]] > 1 ? sizes[order[k]] : 1;
        if (k == ndim / 2)
            stride *= gap;
    }
}

static void draw_geometry(dt_gen_t *g, const int64_t *sizes, unsigned ndim, geometry_t *to)
{
    unsigned order[DT_META_DIM_MAX];
    uint32_t way = g->is_plain ? 0 : dt_gen_below(g, 100);
    for (unsigned i = 0; i < ndim; i++)
        order[i] = i;
    if (way >= 40 && way < 65)
        for (unsigned i = ndim; i-- > 1;) {
            unsigned k = dt_gen_below(g, i + 1), was = order[i];
            order[i] = order[k];
            order[k] = was;
        }
    if (way >= 65 && way < 80 && ndim >= 3 && ndim <= 5) /* channels last */
        for (unsigned i = 1; i < ndim; i++)
            order[i] = i + 1 < ndim ? i + 1 : 1;
    lay_out(sizes, ndim, order, way >= 55 && way < 65 ? 2 : way >= 80 && way < 90 ? 3 : 1, to);
    for (unsigned i = 0; i < ndim && way >= 90; i++) /* expanded, or odd strides of single ones */
        if (dt_gen_chance(g, 40))
            to->strides[i] = sizes[i] == 1 ? 1 + dt_gen_below(g, 9) : 0;
    to->offset = dt_gen_chance(g, 15) ? 3 : 0;
    to->span = to->offset + 1;
    for (unsigned i = 0; i < ndim; i++)
        to->span += sizes[i] > 0 ? (sizes[i] - 1) * to->strides[i] : 0;
}

static double value_of(dt_gen_t *g)
{
    return (double)(int64_t)(draw(g) >> 40) / (double)(1 << 23) * 2 - 2;
}

static void fill(dt_gen_t *g, unsigned dtype, int64_t count, int64_t bound, void *data)
{
    size_t item = dt_dtype_bytes(dtype);
    memset(data, 0, (size_t)count * item);
    for (int64_t i = 0; i < count; i++) {
        double value = value_of(g);
        int64_t whole = bound < 0 ? -bound : dt_gen_below(g, bound > 0 ? (uint32_t)bound : 4);
        if (dtype == DT_DTYPE_F32)
            ((float *)data)[i] = (float)value;
        else if (dtype == DT_DTYPE_F64)
            ((double *)data)[i] = value;
        else if (dtype == DT_DTYPE_C64)
            ((float *)data)[2 * i] = (float)value;
        else if (dtype == DT_DTYPE_C128)
            ((double *)data)[2 * i] = value;
        else if (dtype == DT_DTYPE_I64)
            ((int64_t *)data)[i] = whole;
        else if (dtype == DT_DTYPE_I32)
            ((int32_t *)data)[i] = (int32_t)whole;
        else if (dtype == DT_DTYPE_BOOL)
            ((uint8_t *)data)[i] = whole & 1;
        else if (item == 1)
            ((uint8_t *)data)[i] = (uint8_t)whole;
        /* the 16-bit floats stay zero */
    }
}

static void *derive(dt_gen_t *g, const char *name, const dt_value_t *args, uint32_t count)
{
    void *result = NULL, *op;
    uint32_t result_count;
    dt_error_t err = {0};
    if (g->table->op_find(g->device, name, &op, &err) != DT_OK ||
        g->table->op_execute(g->device, op, args, count, &result, 1, &result_count, &err) !=
            DT_OK) {
        (void)fprintf(stderr, "%s: %s\n", name, err.text);
        g->is_broken = true;
        return NULL;
    }
    g->owned[g->owned_count++] = result;
    return result;
}

static void *make_base(dt_gen_t *g, unsigned dtype, int64_t span, int64_t bound)
{
    static double data[2 * ELEMENT_MAX];
    dt_meta_t meta;
    dt_error_t err = {0};
    void *base = NULL;
    if (span > ELEMENT_MAX || dt_meta_set(&meta, dtype, 1, &span, NULL, 0, &err) != DT_OK ||
        g->table->tensor_create(g->device, &meta, &base, &err) != DT_OK) {
        g->is_broken = true;
        return NULL;
    }
    g->owned[g->owned_count++] = base;
    fill(g, dtype, span, bound, data);
    g->is_broken |= g->table->tensor_write(g->device, base, 0, data, (size_t)dt_meta_bytes(&meta),
                                           &err) != DT_OK;
    return base;
}

static void add_tensor(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes,
                       int64_t bound)
{
    geometry_t geometry;
    draw_geometry(g, sizes, ndim, &geometry);
    void *base = make_base(g, dtype, geometry.span, bound);
    const dt_value_t args[] = {
        {.tag = DT_VALUE_TENSOR, .handle = base},
        {.tag = DT_VALUE_INTS, .count = ndim, .ints = sizes},
        {.tag = DT_VALUE_INTS, .count = ndim, .ints = geometry.strides},
        {.tag = DT_VALUE_INT, .number = geometry.offset},
    };
    void *tensor = base ? derive(g, "aten::as_strided", args, 4) : NULL;
    dt_value_t one = {.tag = DT_VALUE_TENSOR, .handle = tensor};
    bool is_complex = dtype == DT_DTYPE_C64 || dtype == DT_DTYPE_C128;
    if (tensor && !g->is_plain && is_complex && dt_gen_chance(g, 15))
        tensor = derive(g, "aten::_conj", &one, 1);
    one.handle = tensor;
    if (tensor && !g->is_plain && dtype != DT_DTYPE_BOOL && dt_gen_chance(g, 2))
        tensor = derive(g, "aten::_neg_view", &one, 1);
    g->tensors[g->tensor_count++] = tensor;
    g->args[g->arg_count++] = (dt_value_t){.tag = DT_VALUE_TENSOR, .handle = tensor};
}

void dt_gen_tensor(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes)
{
    add_tensor(g, dtype, ndim, sizes, 0);
}

void dt_gen_indices(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes, int64_t bound)
{
    add_tensor(g, dtype, ndim, sizes, bound);
}

void dt_gen_broadcast(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes)
{
    int64_t own[DT_META_DIM_MAX];
    unsigned left_out = dt_gen_chance(g, 30) ? dt_gen_below(g, ndim + 1) : 0;
    for (unsigned i = left_out; i < ndim; i++)
        own[i - left_out] = dt_gen_chance(g, 20) ? 1 : sizes[i];
    dt_gen_tensor(g, dtype, ndim - left_out, own);
}

/* ---- other arguments ---- */

static dt_value_t *next(dt_gen_t *g, dt_value_tag_t tag)
{
    dt_value_t *value = &g->args[g->arg_count++];
    *value = (dt_value_t){.tag = (uint8_t)tag};
    return value;
}

void dt_gen_int(dt_gen_t *g, int64_t number)
{
    next(g, DT_VALUE_INT)->number = number;
}

void dt_gen_double(dt_gen_t *g, double number)
{
    next(g, DT_VALUE_DOUBLE)->real = number;
}

void dt_gen_bool(dt_gen_t *g, bool is_true)
{
    (void)next(g, is_true ? DT_VALUE_TRUE : DT_VALUE_FALSE);
}

void dt_gen_names(dt_gen_t *g, uint32_t count)
{
    static char texts[8][16];
    static dt_value_t words[8];
    for (uint32_t i = 0; i < count && i < 8; i++) {
        int size = snprintf(texts[i], sizeof texts[i], "dimname::D%u", i);
        words[i] = (dt_value_t){.tag = DT_VALUE_STR, .count = (uint32_t)size, .text = texts[i]};
    }
    dt_value_t *value = next(g, DT_VALUE_STRS);
    value->count = count;
    value->values = words;
}

void dt_gen_none(dt_gen_t *g)
{
    (void)next(g, DT_VALUE_NONE);
}

void dt_gen_default(dt_gen_t *g)
{
    (void)next(g, DT_VALUE_DEFAULT);
}

void dt_gen_type(dt_gen_t *g, unsigned dtype)
{
    next(g, DT_VALUE_DTYPE)->number = dtype;
}

void dt_gen_list(dt_gen_t *g, unsigned count, const int64_t *ints)
{
    dt_value_t *value = next(g, DT_VALUE_INTS);
    int64_t *to = &g->ints[g->ints_used];
    dt_check(g->ints_used + count <= DT_RULES_INTS_MAX);
    memcpy(to, ints, count * sizeof *ints);
    g->ints_used += count;
    value->count = count;
    value->ints = to;
}

void dt_gen_mask(dt_gen_t *g, unsigned count)
{
    dt_value_t *value = next(g, DT_VALUE_BOOLS);
    for (unsigned i = 0; i < count; i++)
        g->bools[i] = dt_gen_chance(g, 70);
    value->count = count;
    value->bools = g->bools;
}
