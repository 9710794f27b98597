/* Products of matrices. */
#include "device/ref_internal.h"

/* One matrix of a batch: elements at data + i * row + k * column bytes. */
typedef struct matrix {
    char *data;
    int64_t row, column;
    unsigned dtype;
} matrix_t;

/* Matrix number `batch` of a tensor of two or three dimensions. */
static matrix_t matrix_of(const dt_ref_tensor_t *tensor, int64_t batch)
{
    const dt_meta_t *meta = &tensor->meta;
    int64_t width = (int64_t)dt_dtype_bytes(meta->dtype);
    int first = meta->ndim - 2;
    return (matrix_t){
        .data = (char *)dt_ref_tensor_data(tensor) + (first ? batch * meta->strides[0] * width : 0),
        .row = meta->strides[first] * width,
        .column = meta->strides[first + 1] * width,
        .dtype = meta->dtype,
    };
}

static dt_ref_value_t dot(const matrix_t *a, const matrix_t *b, int64_t i, int64_t k, int64_t inner)
{
    bool is_float = dt_ref_is_float(a->dtype);
    double real = 0;
    uint64_t whole = 0;
    for (int64_t m = 0; m < inner; m++) {
        dt_ref_value_t x = dt_ref_load(a->data + i * a->row + m * a->column, a->dtype, a->dtype);
        dt_ref_value_t y = dt_ref_load(b->data + m * b->row + k * b->column, b->dtype, b->dtype);
        if (is_float)
            real += x.f * y.f;
        else
            whole += (uint64_t)x.i * (uint64_t)y.i;
    }
    return is_float ? (dt_ref_value_t){.f = real} : (dt_ref_value_t){.i = (int64_t)whole};
}

/* c = a b, or c = beta c + alpha a b: c holds what is added. */
typedef struct product {
    dt_ref_tensor_t *a, *b, *c;
    dt_ref_number_t alpha, beta;
    bool is_added;
} product_t;

static dt_ref_value_t scale(const dt_ref_number_t *by, bool is_float, dt_ref_value_t value)
{
    double real = by->dtype == DT_DTYPE_F64 ? by->value.f : (double)by->value.i;
    if (is_float)
        return (dt_ref_value_t){.f = real * value.f};
    return (dt_ref_value_t){.i = (int64_t)((uint64_t)by->value.i * (uint64_t)value.i)};
}

static void multiply(const product_t *p, int64_t batch)
{
    matrix_t a = matrix_of(p->a, batch), b = matrix_of(p->b, batch), c = matrix_of(p->c, batch);
    const dt_meta_t *left = &p->a->meta, *out = &p->c->meta;
    int64_t inner = left->sizes[left->ndim - 1];
    unsigned as = dt_ref_is_float(c.dtype) ? DT_DTYPE_F64 : c.dtype;
    bool is_float = dt_ref_is_float(c.dtype);
    bool is_beta = p->beta.dtype == DT_DTYPE_F64 ? p->beta.value.f != 0 : p->beta.value.i != 0;
    for (int64_t i = 0; i < out->sizes[out->ndim - 2]; i++)
        for (int64_t k = 0; k < out->sizes[out->ndim - 1]; k++) {
            char *at = c.data + i * c.row + k * c.column;
            dt_ref_value_t value = dot(&a, &b, i, k, inner), old = {.i = 0};
            if (p->is_added) {
                value = scale(&p->alpha, is_float, value);
                if (is_beta) /* 0 times NaN is not wanted */
                    old = scale(&p->beta, is_float, dt_ref_load(at, c.dtype, as));
                if (is_float)
                    value.f += is_beta ? old.f : 0;
                else
                    value.i = (int64_t)((uint64_t)value.i + (uint64_t)old.i);
            }
            dt_ref_store(at, c.dtype, as, value);
        }
}

static dt_status_t read_factors(dt_ref_call_t *call, uint32_t at, unsigned ndim, product_t *p)
{
    const dt_meta_t *a, *b;
    DT_TRY(dt_ref_arg_tensor(call, at, &p->a));
    DT_TRY(dt_ref_arg_tensor(call, at + 1, &p->b));
    a = &p->a->meta;
    b = &p->b->meta;
    if (a->ndim != ndim || b->ndim != ndim)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "expected tensors of %u dimensions, got %u and %u", ndim, a->ndim,
                             b->ndim);
    if (a->sizes[ndim - 1] != b->sizes[ndim - 2] || (ndim == 3 && a->sizes[0] != b->sizes[0]))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "the shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                             (long long)a->sizes[ndim - 2], (long long)a->sizes[ndim - 1],
                             (long long)b->sizes[ndim - 2], (long long)b->sizes[ndim - 1]);
    if (a->dtype != b->dtype)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "different dtypes, %s and %s",
                             dt_dtype_name(a->dtype), dt_dtype_name(b->dtype));
    if (a->dtype == DT_DTYPE_BOOL && dt_meta_numel(a) > 0 && dt_meta_numel(b) > 0)
        return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED, "is not for bool");
    return DT_OK;
}

static dt_status_t run_mm(dt_ref_call_t *call)
{
    product_t p = {0};
    DT_TRY(read_factors(call, 0, 2, &p));
    const int64_t sizes[] = {p.a->meta.sizes[0], p.b->meta.sizes[1]};
    DT_TRY(dt_ref_result(call, p.a->meta.dtype, 2, sizes, NULL, &p.c));
    if (!call->is_question)
        multiply(&p, 0);
    return DT_OK;
}

static dt_status_t run_bmm(dt_ref_call_t *call)
{
    product_t p = {0};
    DT_TRY(read_factors(call, 0, 3, &p));
    const int64_t sizes[] = {p.a->meta.sizes[0], p.a->meta.sizes[1], p.b->meta.sizes[2]};
    DT_TRY(dt_ref_result(call, p.a->meta.dtype, 3, sizes, NULL, &p.c));
    for (int64_t batch = 0; batch < sizes[0] && !call->is_question; batch++)
        multiply(&p, batch);
    return DT_OK;
}

/* A float that meets ints loses what is behind the point. */
static dt_status_t read_scale(dt_ref_call_t *call, uint32_t at, unsigned dtype,
                              dt_ref_number_t *ret_number)
{
    DT_TRY(dt_ref_arg_number(call, at, 1, ret_number));
    if (!dt_ref_is_float(dtype) && ret_number->dtype == DT_DTYPE_F64) {
        const char *at_value = (const char *)&ret_number->value.f;
        ret_number->value = dt_ref_load(at_value, DT_DTYPE_F64, DT_DTYPE_I64);
        ret_number->dtype = DT_DTYPE_I64;
    }
    return DT_OK;
}

static dt_status_t run_addmm(dt_ref_call_t *call)
{
    product_t p = {.is_added = true};
    dt_ref_tensor_t *self, *both[2];
    int64_t shape[DT_META_DIM_MAX];
    unsigned ndim;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(read_factors(call, 1, 2, &p));
    DT_TRY(read_scale(call, 3, p.a->meta.dtype, &p.beta));
    DT_TRY(read_scale(call, 4, p.a->meta.dtype, &p.alpha));
    if (self->meta.dtype != p.a->meta.dtype)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "different dtypes, %s and %s",
                             dt_dtype_name(self->meta.dtype), dt_dtype_name(p.a->meta.dtype));
    const int64_t sizes[] = {p.a->meta.sizes[0], p.b->meta.sizes[1]};
    DT_TRY(dt_ref_result(call, p.a->meta.dtype, 2, sizes, NULL, &p.c));
    both[0] = p.c;
    both[1] = self;
    DT_TRY(dt_ref_broadcast(both, 2, &ndim, shape, call->err));
    if (ndim != 2 || shape[0] != sizes[0] || shape[1] != sizes[1])
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "what is added does not broadcast to %lldx%lld", (long long)sizes[0],
                             (long long)sizes[1]);
    dt_ref_copy(call, p.c, self);
    if (!call->is_question)
        multiply(&p, 0);
    return DT_OK;
}

dt_ref_table_t dt_ref_matrix_table(void)
{
    static const dt_ref_op_t ops[] = {
        {.name = "aten::mm", .arg_count = 2, .run = run_mm},
        {.name = "aten::bmm", .arg_count = 2, .run = run_bmm},
        {.name = "aten::addmm", .arg_count = 5, .run = run_addmm},
    };
    return (dt_ref_table_t){ops, sizeof ops / sizeof *ops};
}
