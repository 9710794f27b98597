/* The functions of rules: arithmetic on integers and lists of them, and what a tensor's metadata
 * says. Each checks its arguments; what does not fit makes the rule refuse. */
#include <string.h>

#include "ops/meta_internal.h"

typedef struct call {
    const dt_ops_value_t *args;
    uint32_t count;
    dt_ops_value_t *to;
    const char *why;
} call_t;

static bool refuse(call_t *c, const char *why)
{
    c->why = why;
    return false;
}

static bool give_int(call_t *c, int64_t number)
{
    c->to->kind = DT_OPS_VALUE_INT;
    c->to->number = number;
    return true;
}

static bool give_bool(call_t *c, bool is_true)
{
    c->to->kind = DT_OPS_VALUE_BOOL;
    c->to->number = is_true;
    return true;
}

static bool give_dtype(call_t *c, int64_t dtype)
{
    if (dtype < 0 || dtype > DT_DTYPE_NUMBER_MAX || !dt_dtype_bytes((unsigned)dtype))
        return refuse(c, "not a dtype of ours");
    c->to->kind = DT_OPS_VALUE_DTYPE;
    c->to->number = dtype;
    return true;
}

static bool is_tensor(call_t *c, uint32_t i)
{
    return c->args[i].kind == DT_OPS_VALUE_TENSOR || refuse(c, "expected a tensor");
}

static bool is_ints(call_t *c, uint32_t i)
{
    return c->args[i].kind == DT_OPS_VALUE_INTS || refuse(c, "expected a list of integers");
}

static bool get_int(call_t *c, uint32_t i, int64_t *ret_number)
{
    uint8_t kind = c->args[i].kind;
    if (kind != DT_OPS_VALUE_INT && kind != DT_OPS_VALUE_BOOL)
        return refuse(c, "expected an integer that is known");
    *ret_number = c->args[i].number;
    return true;
}

/* A dtype, an integer that stands for one, or the dtype of a tensor. */
static bool get_dtype(call_t *c, uint32_t i, int64_t *ret_dtype)
{
    const dt_ops_value_t *arg = &c->args[i];
    bool is_number = arg->kind == DT_OPS_VALUE_DTYPE || arg->kind == DT_OPS_VALUE_INT;
    if (!is_number && arg->kind != DT_OPS_VALUE_TENSOR)
        return refuse(c, "expected a dtype");
    *ret_dtype = is_number ? arg->number : arg->meta.dtype;
    return true;
}

/* ---- arithmetic ---- */

/* Division is towards minus infinity. */
static bool compute(call_t *c, dt_ops_builtin_t builtin, int64_t x, int64_t y, int64_t *ret)
{
    switch (builtin) {
    case DT_OPS_BUILTIN_ADD:
        return !__builtin_add_overflow(x, y, ret) || refuse(c, "overflow");
    case DT_OPS_BUILTIN_SUB:
        return !__builtin_sub_overflow(x, y, ret) || refuse(c, "overflow");
    case DT_OPS_BUILTIN_MUL:
        return !__builtin_mul_overflow(x, y, ret) || refuse(c, "overflow");
    default:
        if (y == 0 || (y == -1 && x == INT64_MIN))
            return refuse(c, "division by zero");
        *ret = x / y - (x % y != 0 && (x < 0) != (y < 0));
        return true;
    }
}

/* Element by element; a number, or a list of one, goes with each. */
static bool arithmetic(call_t *c, dt_ops_builtin_t builtin)
{
    const dt_ops_value_t *x = &c->args[0], *y = &c->args[1];
    int64_t left = 0, right = 0;
    bool has_list = x->kind == DT_OPS_VALUE_INTS || y->kind == DT_OPS_VALUE_INTS;
    if ((x->kind != DT_OPS_VALUE_INTS && !get_int(c, 0, &left)) ||
        (y->kind != DT_OPS_VALUE_INTS && !get_int(c, 1, &right)))
        return false;
    if (!has_list) {
        c->to->kind = DT_OPS_VALUE_INT;
        return compute(c, builtin, left, right, &c->to->number);
    }
    uint32_t xs = x->kind == DT_OPS_VALUE_INTS ? x->count : 1;
    uint32_t ys = y->kind == DT_OPS_VALUE_INTS ? y->count : 1;
    if (xs != ys && xs != 1 && ys != 1)
        return refuse(c, "lists of different lengths");
    c->to->kind = DT_OPS_VALUE_INTS;
    c->to->count = xs == 1 ? ys : xs;
    for (uint32_t i = 0; i < c->to->count; i++) {
        if (x->kind == DT_OPS_VALUE_INTS)
            left = x->ints[xs == 1 ? 0 : i];
        if (y->kind == DT_OPS_VALUE_INTS)
            right = y->ints[ys == 1 ? 0 : i];
        if (!compute(c, builtin, left, right, &c->to->ints[i]))
            return false;
    }
    return true;
}

static bool is_equal(const dt_ops_value_t *x, const dt_ops_value_t *y)
{
    if (x->kind == DT_OPS_VALUE_INTS && y->kind == DT_OPS_VALUE_INTS)
        return x->count == y->count && memcmp(x->ints, y->ints, x->count * sizeof x->ints[0]) == 0;
    return x->number == y->number;
}

static bool compare(call_t *c, dt_ops_builtin_t builtin)
{
    bool has_list = c->args[0].kind == DT_OPS_VALUE_INTS || c->args[1].kind == DT_OPS_VALUE_INTS;
    int64_t x = 0, y = 0;
    if (has_list && c->args[0].kind != c->args[1].kind)
        return refuse(c, "a list is compared with a number");
    if (has_list && builtin != DT_OPS_BUILTIN_EQ && builtin != DT_OPS_BUILTIN_NE)
        return refuse(c, "lists have no order");
    for (uint32_t i = 0; i < 2 && !has_list; i++)
        if (c->args[i].kind != DT_OPS_VALUE_DTYPE && !get_int(c, i, i ? &y : &x))
            return false;
    x = c->args[0].number;
    y = c->args[1].number;
    if (builtin == DT_OPS_BUILTIN_LT || builtin == DT_OPS_BUILTIN_LE)
        return give_bool(c, x < y || (builtin == DT_OPS_BUILTIN_LE && x == y));
    return give_bool(c, is_equal(&c->args[0], &c->args[1]) == (builtin == DT_OPS_BUILTIN_EQ));
}

/* ---- lists ---- */

static bool list_position(call_t *c, uint32_t i, uint32_t *ret_at)
{
    int64_t at;
    if (!get_int(c, i, &at))
        return false;
    if (at < 0)
        at += c->args[0].count;
    if (at < 0 || at >= c->args[0].count)
        return refuse(c, "a position out of range");
    *ret_at = (uint32_t)at;
    return true;
}

static bool list_slice(call_t *c)
{
    int64_t from, to, len = c->args[0].count;
    if (!get_int(c, 1, &from) || !get_int(c, 2, &to))
        return false;
    from = from < 0 ? from + len : from;
    to = to < 0 ? to + len : to;
    if (from < 0 || to > len || from > to)
        return refuse(c, "a slice out of range");
    c->to->kind = DT_OPS_VALUE_INTS;
    c->to->count = (uint32_t)(to - from);
    memcpy(c->to->ints, c->args[0].ints + from, c->to->count * sizeof c->to->ints[0]);
    return true;
}

static bool list_replace(call_t *c)
{
    uint32_t at;
    int64_t with;
    if (!list_position(c, 1, &at) || !get_int(c, 2, &with))
        return false;
    *c->to = c->args[0];
    c->to->ints[at] = with;
    return true;
}

static bool list_repeat(call_t *c)
{
    int64_t number, count;
    if (!get_int(c, 0, &number) || !get_int(c, 1, &count))
        return false;
    if (count < 0 || count > DT_OPS_INTS_MAX)
        return refuse(c, "a list that is too long");
    c->to->kind = DT_OPS_VALUE_INTS;
    c->to->count = (uint32_t)count;
    for (uint32_t i = 0; i < c->to->count; i++)
        c->to->ints[i] = number;
    return true;
}

static bool list_product(call_t *c)
{
    int64_t product = 1;
    for (uint32_t i = 0; i < c->args[0].count; i++)
        if (__builtin_mul_overflow(product, c->args[0].ints[i], &product))
            return refuse(c, "overflow");
    return give_int(c, product);
}

static bool list_function(call_t *c, dt_ops_builtin_t builtin)
{
    if (builtin == DT_OPS_BUILTIN_REPEAT)
        return list_repeat(c);
    if (!is_ints(c, 0))
        return false;
    switch (builtin) {
    case DT_OPS_BUILTIN_LEN:
        return give_int(c, c->args[0].count);
    case DT_OPS_BUILTIN_PROD:
        return list_product(c);
    case DT_OPS_BUILTIN_SLICE:
        return list_slice(c);
    default:
        return list_replace(c);
    }
}

/* ---- tensors ---- */

static bool give_tensor(call_t *c, int64_t dtype, const dt_ops_value_t *sizes,
                        const dt_ops_value_t *strides)
{
    if (sizes->count > DT_META_DIM_MAX || (strides && strides->count != sizes->count))
        return refuse(c, "too many dimensions");
    if (dtype < 0 || dtype > DT_DTYPE_NUMBER_MAX ||
        dt_meta_set(&c->to->meta, (unsigned)dtype, sizes->count, sizes->ints,
                    strides ? strides->ints : NULL, 0, NULL) != DT_OK)
        return refuse(c, "a shape that cannot be");
    c->to->kind = DT_OPS_VALUE_TENSOR;
    c->to->alias = DT_ALIAS_FRESH;
    return true;
}

/* Strides of a dense tensor whose dimensions lie in `order`, the last one fastest. */
static bool lay_out(call_t *c, const dt_ops_value_t *sizes, const dt_ops_value_t *order,
                    dt_ops_value_t *strides)
{
    int64_t stride = 1;
    uint64_t seen = 0;
    if (order->count != sizes->count || sizes->count > DT_META_DIM_MAX)
        return refuse(c, "an order of other dimensions");
    strides->count = sizes->count;
    for (uint32_t k = order->count; k-- > 0;) {
        int64_t dim = order->ints[k];
        if (dim < 0 || dim >= sizes->count || (seen >> dim & 1))
            return refuse(c, "an order of other dimensions");
        seen |= UINT64_C(1) << dim;
        strides->ints[dim] = stride;
        if (sizes->ints[dim] > 1 && __builtin_mul_overflow(stride, sizes->ints[dim], &stride))
            return refuse(c, "overflow");
    }
    return true;
}

static bool make(call_t *c, dt_ops_builtin_t builtin)
{
    int64_t dtype;
    dt_ops_value_t laid_out;
    bool has_list = builtin != DT_OPS_BUILTIN_CONT;
    if (!is_ints(c, 0) || (has_list && !is_ints(c, 1)) || !get_dtype(c, c->count - 1, &dtype))
        return false;
    if (builtin == DT_OPS_BUILTIN_ORDERED)
        return lay_out(c, &c->args[0], &c->args[1], &laid_out) &&
               give_tensor(c, dtype, &c->args[0], &laid_out);
    return give_tensor(c, dtype, &c->args[0], has_list ? &c->args[1] : NULL);
}

static bool cast(call_t *c)
{
    int64_t dtype;
    unsigned conj;
    if (!is_tensor(c, 0) || !get_dtype(c, 1, &dtype))
        return false;
    if (!give_dtype(c, dtype)) /* checks it */
        return false;
    *c->to = c->args[0];
    c->to->alias = DT_ALIAS_FRESH;
    c->to->meta.dtype = (uint8_t)dtype;
    conj = c->to->meta.layout & (DT_META_CONJ | DT_META_NEG);
    return !conj || refuse(c, "a lazy conjugate");
}

/* What ATen calls a tensor's suggested memory format: channels last if its strides are in that
 * order, which sizes of 1 and strides alike make ambiguous in the ways that are followed here. */
static bool suggests_channels_last(const dt_meta_t *meta)
{
    static const uint8_t order4[] = {1, 3, 2, 0}, order5[] = {1, 4, 3, 2, 0};
    const uint8_t *order = meta->ndim == 4 ? order4 : order5;
    int64_t least = 0;
    if ((meta->ndim != 4 && meta->ndim != 5) || meta->strides[1] == 0)
        return false;
    for (unsigned i = 0; i < meta->ndim; i++) {
        unsigned d = order[i];
        if (meta->sizes[d] == 0 || meta->strides[d] < least ||
            (d == 0 && least == meta->strides[1]))
            return false;
        least = meta->strides[d];
        if (meta->sizes[d] > 1 && __builtin_mul_overflow(least, meta->sizes[d], &least))
            return false;
    }
    return true;
}

static bool suggested(call_t *c)
{
    dt_ops_value_t sizes, order, strides;
    const dt_meta_t *meta = &c->args[0].meta;
    if (!is_tensor(c, 0))
        return false;
    sizes.count = order.count = meta->ndim;
    memcpy(sizes.ints, meta->sizes, meta->ndim * sizeof sizes.ints[0]);
    if (!suggests_channels_last(meta))
        return give_tensor(c, meta->dtype, &sizes, NULL);
    for (uint32_t i = 1; i < order.count; i++)
        order.ints[i] = i + 1 < order.count ? i + 1 : 1;
    order.ints[0] = 0;
    return lay_out(c, &sizes, &order, &strides) && give_tensor(c, meta->dtype, &sizes, &strides);
}

static bool first_known(call_t *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->args[i].kind != DT_OPS_VALUE_NONE) {
            *c->to = c->args[i];
            return true;
        }
    return refuse(c, "none of them is known");
}

static bool give_sizes(call_t *c, const int64_t *from)
{
    c->to->kind = DT_OPS_VALUE_INTS;
    c->to->count = c->args[0].meta.ndim;
    memcpy(c->to->ints, from, c->to->count * sizeof *from);
    return true;
}

/* Elements lie side by side, none twice, in whatever order. */
static bool is_dense(const dt_meta_t *meta)
{
    int64_t wanted = 1;
    bool is_used[DT_META_DIM_MAX] = {false};
    if (dt_meta_numel(meta) == 0)
        return true;
    for (int left = meta->ndim; left > 0; left--) {
        int next = -1;
        for (int i = 0; i < meta->ndim && next < 0; i++)
            if (!is_used[i] && (meta->sizes[i] == 1 || meta->strides[i] == wanted))
                next = i;
        if (next < 0)
            return false;
        is_used[next] = true;
        wanted *= meta->sizes[next];
    }
    return true;
}

/* Contiguous as ATen has it: strides of sizes of 1 are not looked at. */
static bool is_packed(const dt_meta_t *meta)
{
    int64_t wanted = 1;
    for (unsigned i = meta->ndim; i-- > 0;) {
        if (meta->sizes[i] != 1 && meta->strides[i] != wanted)
            return false;
        wanted *= meta->sizes[i];
    }
    return true;
}

/* Its memory format can be read in one way only: no function of ATen takes it for another. */
static bool is_clear(const dt_meta_t *meta)
{
    unsigned layout = meta->layout & DT_META_CLASS_MASK;
    bool has_single = false;
    for (unsigned i = 0; i < meta->ndim; i++)
        has_single |= meta->sizes[i] == 1;
    if (dt_meta_numel(meta) == 0)
        return false;
    return layout == DT_META_CONTIGUOUS || !has_single ||
           (layout == DT_META_CHANNELS_LAST && !is_packed(meta));
}

static bool look(call_t *c, dt_ops_builtin_t builtin)
{
    const dt_meta_t *meta = &c->args[0].meta;
    if (!is_tensor(c, 0))
        return false;
    switch (builtin) {
    case DT_OPS_BUILTIN_SIZES:
        return give_sizes(c, meta->sizes);
    case DT_OPS_BUILTIN_STRIDES:
        return give_sizes(c, meta->strides);
    case DT_OPS_BUILTIN_DTYPE:
        return give_dtype(c, meta->dtype);
    case DT_OPS_BUILTIN_DIM:
        return give_int(c, meta->ndim);
    case DT_OPS_BUILTIN_NUMEL:
        return give_int(c, dt_meta_numel(meta));
    case DT_OPS_BUILTIN_IS_CONTIGUOUS:
        return give_bool(c, (meta->layout & DT_META_CLASS_MASK) == DT_META_CONTIGUOUS);
    case DT_OPS_BUILTIN_IS_CHANNELS_LAST:
        return give_bool(c, (meta->layout & DT_META_CLASS_MASK) == DT_META_CHANNELS_LAST);
    case DT_OPS_BUILTIN_IS_CLEAR:
        return give_bool(c, is_clear(meta));
    case DT_OPS_BUILTIN_IS_DENSE:
        return give_bool(c, is_dense(meta));
    default:
        return give_bool(c, !(meta->layout & (DT_META_CONJ | DT_META_NEG)));
    }
}

/* ---- dtypes ---- */

static bool is_complex(int64_t dtype)
{
    return dtype == DT_DTYPE_C32 || dtype == DT_DTYPE_C64 || dtype == DT_DTYPE_C128;
}

static bool is_float(int64_t dtype)
{
    return dtype == DT_DTYPE_F16 || dtype == DT_DTYPE_F32 || dtype == DT_DTYPE_F64 ||
           dtype == DT_DTYPE_BF16 || (dtype >= DT_DTYPE_F8_E5M2 && dtype <= DT_DTYPE_F8_E4M3FNUZ);
}

static bool dtype_function(call_t *c, dt_ops_builtin_t builtin)
{
    int64_t dtype;
    if (!get_dtype(c, 0, &dtype))
        return false;
    switch (builtin) {
    case DT_OPS_BUILTIN_IS_FLOAT:
        return give_bool(c, is_float(dtype));
    case DT_OPS_BUILTIN_IS_COMPLEX:
        return give_bool(c, is_complex(dtype));
    case DT_OPS_BUILTIN_REAL:
        return give_dtype(c, dtype == DT_DTYPE_C32    ? DT_DTYPE_F16
                             : dtype == DT_DTYPE_C64  ? DT_DTYPE_F32
                             : dtype == DT_DTYPE_C128 ? DT_DTYPE_F64
                                                      : dtype);
    default: /* ACCUMULATE: what sums of it are kept in */
        return give_dtype(c,
                          dtype == DT_DTYPE_F16 || dtype == DT_DTYPE_BF16 ? DT_DTYPE_F32 : dtype);
    }
}

static bool apply(call_t *c, dt_ops_builtin_t builtin)
{
    int64_t number;
    switch (builtin) {
    case DT_OPS_BUILTIN_ADD:
    case DT_OPS_BUILTIN_SUB:
    case DT_OPS_BUILTIN_MUL:
    case DT_OPS_BUILTIN_DIV:
        return arithmetic(c, builtin);
    case DT_OPS_BUILTIN_EQ:
    case DT_OPS_BUILTIN_NE:
    case DT_OPS_BUILTIN_LT:
    case DT_OPS_BUILTIN_LE:
        return compare(c, builtin);
    case DT_OPS_BUILTIN_NOT:
        return get_int(c, 0, &number) && give_bool(c, !number);
    case DT_OPS_BUILTIN_KNOWN:
        return give_bool(c, c->args[0].kind != DT_OPS_VALUE_NONE);
    case DT_OPS_BUILTIN_CONT:
    case DT_OPS_BUILTIN_STRIDED:
    case DT_OPS_BUILTIN_ORDERED:
        return make(c, builtin);
    case DT_OPS_BUILTIN_CAST:
        return cast(c);
    case DT_OPS_BUILTIN_SUGGESTED:
        return suggested(c);
    case DT_OPS_BUILTIN_FIRST:
        return first_known(c);
    case DT_OPS_BUILTIN_LEN:
    case DT_OPS_BUILTIN_PROD:
    case DT_OPS_BUILTIN_SLICE:
    case DT_OPS_BUILTIN_REPLACE:
    case DT_OPS_BUILTIN_REPEAT:
        return list_function(c, builtin);
    case DT_OPS_BUILTIN_REAL:
    case DT_OPS_BUILTIN_ACCUMULATE:
    case DT_OPS_BUILTIN_IS_FLOAT:
    case DT_OPS_BUILTIN_IS_COMPLEX:
        return dtype_function(c, builtin);
    default:
        return look(c, builtin);
    }
}

bool dt_ops_builtin_apply(dt_ops_builtin_t builtin, const dt_ops_value_t *args, uint32_t count,
                          dt_ops_value_t *ret_value, const char **ret_why)
{
    call_t c = {.args = args, .count = count, .to = ret_value, .why = ""};
    bool holds = apply(&c, builtin);
    if (!holds)
        *ret_why = c.why;
    return holds;
}
