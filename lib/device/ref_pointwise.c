/* Operators that compute each element of the result from one element of each input. */
#include <math.h>
#include <string.h>

#include "device/ref_internal.h"

/* ---- elements: x, y, z are the inputs' values ---- */
#define FLOATS(name, expression)                                                                   \
    static dt_ref_value_t name##_f(const dt_ref_value_t *in)                                       \
    {                                                                                              \
        double x = in[0].f, y = in[1].f, z = in[2].f;                                              \
        (void)x, (void)y, (void)z;                                                                 \
        return (dt_ref_value_t){.f = (expression)};                                                \
    }
/* Unsigned, since int64 wraps around in PyTorch. */
#define INTS(name, expression)                                                                     \
    static dt_ref_value_t name##_i(const dt_ref_value_t *in)                                       \
    {                                                                                              \
        uint64_t x = (uint64_t)in[0].i, y = (uint64_t)in[1].i, z = (uint64_t)in[2].i;              \
        (void)x, (void)y, (void)z;                                                                 \
        return (dt_ref_value_t){.i = (int64_t)(expression)};                                       \
    }
#define TESTS(name, operator)                                                                      \
    static dt_ref_value_t name##_f(const dt_ref_value_t *in)                                       \
    {                                                                                              \
        return (dt_ref_value_t){.i = in[0].f operator in[1].f };                                   \
    }                                                                                              \
    static dt_ref_value_t name##_i(const dt_ref_value_t *in)                                       \
    {                                                                                              \
        return (dt_ref_value_t){.i = in[0].i operator in[1].i };                                   \
    }
#define IS_LESS(a, b) ((int64_t)(a) < (int64_t)(b))

FLOATS(add, z == 1 ? x + y : fma(z, y, x))
INTS(add, x + z * y)
FLOATS(sub, z == 1 ? x - y : fma(-z, y, x))
INTS(sub, x - z * y)
FLOATS(mul, x *y)
INTS(mul, x *y)
FLOATS(div, x / y)
FLOATS(maximum, isnan(x) || x > y ? x : y)
INTS(maximum, IS_LESS(x, y) ? y : x)
FLOATS(minimum, isnan(x) || x < y ? x : y)
INTS(minimum, IS_LESS(x, y) ? x : y)
FLOATS(neg, -x)
INTS(neg, 0 - x)
FLOATS(abs, fabs(x))
INTS(abs, IS_LESS(x, 0) ? 0 - x : x)
FLOATS(relu, x < 0 ? 0 : x)
INTS(relu, IS_LESS(x, 0) ? 0 : x)
FLOATS(exp, exp(x))
FLOATS(log, log(x))
FLOATS(sqrt, sqrt(x))
FLOATS(rsqrt, 1 / sqrt(x))
FLOATS(reciprocal, 1 / x)
FLOATS(tanh, tanh(x))
FLOATS(sigmoid, 1 / (1 + exp(-x)))
FLOATS(threshold_backward, x <= z ? 0 : y)
INTS(threshold_backward, IS_LESS(z, x) ? y : 0)
TESTS(eq, ==)
TESTS(ne, !=)
TESTS(lt, <)
TESTS(le, <=)
TESTS(gt, >)
TESTS(ge, >=)
TESTS(logical_and, &&)
TESTS(logical_or, ||)

static dt_ref_value_t logical_not_f(const dt_ref_value_t *in)
{
    return (dt_ref_value_t){.i = in[0].f == 0};
}

static dt_ref_value_t logical_not_i(const dt_ref_value_t *in)
{
    return (dt_ref_value_t){.i = in[0].i == 0};
}

/* in[0] is the condition: it comes as the int 0 or 1. */
static dt_ref_value_t where(const dt_ref_value_t *in)
{
    return in[0].i ? in[1] : in[2];
}

/* ---- the common way ---- */
typedef struct plan {
    dt_ref_tensor_t *in[DT_REF_SLOT_MAX]; /* inputs, then the number */
    uint32_t count;                       /* of inputs */
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    unsigned dtype;        /* computed in */
    unsigned result_dtype; /* of a new result */
} plan_t;

static dt_status_t check_alpha(dt_ref_call_t *call, unsigned dtype, unsigned alpha)
{
    if (dtype != DT_DTYPE_BOOL && alpha == DT_DTYPE_BOOL)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "a bool alpha is for bool results only");
    if (!dt_ref_is_float(dtype) && dt_ref_is_float(alpha))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "alpha must not be a float where the result is none");
    return DT_OK;
}

/* `number` is one more input that has no say in the shape or the dtype. */
static dt_status_t add_number(dt_ref_call_t *call, plan_t *plan)
{
    const dt_ref_kernel_t *kernel = &call->op->kernel;
    dt_ref_number_t number;
    if (!kernel->number)
        return DT_OK;
    if (!(kernel->flags & DT_REF_ALPHA) && !dt_ref_is_given(call, kernel->number))
        return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "argument %u is missing", kernel->number);
    DT_TRY(dt_ref_arg_number(call, kernel->number, 1, &number));
    if (kernel->flags & DT_REF_ALPHA)
        DT_TRY(check_alpha(call, plan->dtype, number.dtype));
    plan->in[plan->count] = dt_ref_dress(call, &number);
    return DT_OK;
}

static dt_status_t choose_dtype(dt_ref_call_t *call, plan_t *plan)
{
    const dt_ref_kernel_t *kernel = &call->op->kernel;
    plan->dtype = dt_ref_promote(plan->in, plan->count);
    for (uint32_t k = 0; k < plan->count && kernel->flags & DT_REF_NO_BOOL; k++)
        if (plan->in[k]->meta.dtype == DT_DTYPE_BOOL)
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "is not for bool");
    if (!kernel->i && !dt_ref_is_float(plan->dtype))
        plan->dtype = DT_DTYPE_F32;
    plan->result_dtype = kernel->flags & DT_REF_COMPARE ? DT_DTYPE_BOOL : plan->dtype;
    return DT_OK;
}

/* The result is the first input: it must have room for shape and kind of what is computed. */
static dt_status_t check_in_place(dt_ref_call_t *call, const plan_t *plan)
{
    const dt_meta_t *to = &plan->in[0]->meta;
    bool is_kind_lost = (dt_ref_is_float(plan->result_dtype) && !dt_ref_is_float(to->dtype)) ||
                        (plan->result_dtype != DT_DTYPE_BOOL && to->dtype == DT_DTYPE_BOOL);
    if (plan->in[0]->is_wrapped)
        return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "a number cannot be written");
    if (is_kind_lost)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "a result of %s does not fit a tensor of %s",
                             dt_dtype_name(plan->result_dtype), dt_dtype_name(to->dtype));
    if (plan->ndim != to->ndim || memcmp(plan->sizes, to->sizes, to->ndim * sizeof *to->sizes) != 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "the tensor written in place is smaller than the result");
    return dt_ref_check_overlap(plan->in[0], plan->in + 1, plan->count - 1, call->err);
}

static dt_status_t make_result(dt_ref_call_t *call, const plan_t *plan,
                               dt_ref_tensor_t **ret_result)
{
    int64_t strides[DT_META_DIM_MAX];
    if (call->op->kernel.flags & DT_REF_IN_PLACE) {
        DT_TRY(check_in_place(call, plan));
        *ret_result = plan->in[0];
        return dt_ref_result_same(call, plan->in[0]);
    }
    dt_ref_pointwise_strides(plan->in, plan->count, plan->ndim, plan->sizes, strides);
    return dt_ref_result(call, plan->result_dtype, plan->ndim, plan->sizes, strides, ret_result);
}

static dt_status_t run_pointwise(dt_ref_call_t *call)
{
    const dt_ref_kernel_t *kernel = &call->op->kernel;
    dt_ref_tensor_t *result;
    dt_ref_loop_t loop;
    plan_t plan = {.count = kernel->inputs};
    for (uint32_t k = 0; k < kernel->inputs; k++)
        DT_TRY(dt_ref_arg_tensor(call, kernel->flags & DT_REF_SWAPPED ? 1 - k : k, &plan.in[k]));
    DT_TRY(dt_ref_broadcast(plan.in, plan.count, &plan.ndim, plan.sizes, call->err));
    DT_TRY(choose_dtype(call, &plan));
    DT_TRY(add_number(call, &plan));
    DT_TRY(make_result(call, &plan, &result));
    if (call->is_question)
        return DT_OK;
    dt_ref_loop_init(&loop, plan.ndim, plan.sizes);
    dt_ref_loop_add(&loop, result, plan.result_dtype);
    for (uint32_t k = 0; k < plan.count + (kernel->number != 0); k++)
        dt_ref_loop_add(&loop, plan.in[k], plan.dtype);
    dt_ref_loop_run(&loop, dt_ref_is_float(plan.dtype) ? kernel->f : kernel->i);
    return DT_OK;
}

static dt_status_t run_where(dt_ref_call_t *call)
{
    int64_t strides[DT_META_DIM_MAX];
    dt_ref_tensor_t *result;
    dt_ref_loop_t loop;
    plan_t plan = {.count = 3};
    for (uint32_t k = 0; k < 3; k++)
        DT_TRY(dt_ref_arg_tensor(call, k, &plan.in[k]));
    if (plan.in[0]->meta.dtype != DT_DTYPE_BOOL)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "the condition must be bool");
    DT_TRY(dt_ref_broadcast(plan.in, 3, &plan.ndim, plan.sizes, call->err));
    plan.dtype = dt_ref_promote(plan.in + 1, 2);
    dt_ref_pointwise_strides(plan.in, 3, plan.ndim, plan.sizes, strides);
    DT_TRY(dt_ref_result(call, plan.dtype, plan.ndim, plan.sizes, strides, &result));
    if (call->is_question)
        return DT_OK;
    dt_ref_loop_init(&loop, plan.ndim, plan.sizes);
    dt_ref_loop_add(&loop, result, plan.dtype);
    dt_ref_loop_add(&loop, plan.in[0], DT_DTYPE_BOOL);
    dt_ref_loop_add(&loop, plan.in[1], plan.dtype);
    dt_ref_loop_add(&loop, plan.in[2], plan.dtype);
    dt_ref_loop_run(&loop, where);
    return DT_OK;
}

/* name, arguments of the schema, inputs, argument of the number, flags */
#define ROW(text, args, kernel_f, kernel_i, in, at, bits)                                          \
    {                                                                                              \
        .name = "aten::" text, .arg_count = (args), .run = run_pointwise, .kernel = {              \
            .f = (kernel_f),                                                                       \
            .i = (kernel_i),                                                                       \
            .inputs = (in),                                                                        \
            .number = (at),                                                                        \
            .flags = (bits)                                                                        \
        }                                                                                          \
    }
#define UNARY(text, name, bits)  ROW(text, 1, name##_f, name##_i, 1, 0, bits)
#define UNARY_FLOAT(text, name)  ROW(text, 1, name##_f, NULL, 1, 0, 0)
#define BINARY(text, name, bits) ROW(text, 2, name##_f, name##_i, 2, 0, bits)
#define ALPHA(text, name, bits)  ROW(text, 3, name##_f, name##_i, 2, 2, DT_REF_ALPHA | (bits))
#define COMPARISON(text, name)                                                                     \
    BINARY(text ".Tensor", name, DT_REF_COMPARE), BINARY(text ".Scalar", name, DT_REF_COMPARE)

dt_ref_table_t dt_ref_pointwise_table(void)
{
    static const dt_ref_op_t ops[] = {
        ALPHA("add.Tensor", add, 0),
        ALPHA("add.Scalar", add, 0),
        ALPHA("add_.Tensor", add, DT_REF_IN_PLACE),
        ALPHA("add_.Scalar", add, DT_REF_IN_PLACE),
        ALPHA("sub.Tensor", sub, DT_REF_NO_BOOL),
        ALPHA("sub.Scalar", sub, DT_REF_NO_BOOL),
        ALPHA("sub_.Tensor", sub, DT_REF_NO_BOOL | DT_REF_IN_PLACE),
        BINARY("mul.Tensor", mul, 0),
        BINARY("mul.Scalar", mul, 0),
        BINARY("mul_.Tensor", mul, DT_REF_IN_PLACE),
        BINARY("mul_.Scalar", mul, DT_REF_IN_PLACE),
        ROW("div.Tensor", 2, div_f, NULL, 2, 0, 0),
        ROW("div.Scalar", 2, div_f, NULL, 2, 0, 0),
        ROW("div_.Tensor", 2, div_f, NULL, 2, 0, DT_REF_IN_PLACE),
        BINARY("maximum", maximum, 0),
        BINARY("minimum", minimum, 0),
        UNARY("neg", neg, DT_REF_NO_BOOL),
        UNARY("abs", abs, DT_REF_NO_BOOL),
        UNARY("relu", relu, DT_REF_NO_BOOL),
        UNARY("relu_", relu, DT_REF_NO_BOOL | DT_REF_IN_PLACE),
        UNARY_FLOAT("exp", exp),
        UNARY_FLOAT("log", log),
        UNARY_FLOAT("sqrt", sqrt),
        UNARY_FLOAT("rsqrt", rsqrt),
        UNARY_FLOAT("reciprocal", reciprocal),
        UNARY_FLOAT("tanh", tanh),
        UNARY_FLOAT("sigmoid", sigmoid),
        ROW("threshold_backward", 3, threshold_backward_f, threshold_backward_i, 2, 2,
            DT_REF_SWAPPED),
        COMPARISON("eq", eq),
        COMPARISON("ne", ne),
        COMPARISON("lt", lt),
        COMPARISON("le", le),
        COMPARISON("gt", gt),
        COMPARISON("ge", ge),
        BINARY("logical_and", logical_and, DT_REF_COMPARE),
        BINARY("logical_or", logical_or, DT_REF_COMPARE),
        UNARY("logical_not", logical_not, DT_REF_COMPARE),
        {.name = "aten::where.self", .arg_count = 3, .run = run_where},
    };
    return (dt_ref_table_t){ops, sizeof ops / sizeof *ops};
}
