/* Who makes arguments for which operator. */
#include "meta.h"

#define DIM_MAX 5

/* x; `how`: dtypes */
static void make_x(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
}

/* x, y that broadcast; dtypes differ */
static void make_xy(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_broadcast(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_broadcast(g, dt_gen_dtype(g, how), ndim, sizes);
}

/* x, y in place: x has all dimensions */
static void make_xy_(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_broadcast(g, dt_gen_dtype(g, how), ndim, sizes);
}

/* x, y of one dtype and one shape, each laid out in its own way */
static void make_alike(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
}

static void number(dt_gen_t *g)
{
    if (dt_gen_chance(g, 50))
        dt_gen_int(g, 2);
    else if (dt_gen_chance(g, 80))
        dt_gen_double(g, 0.5);
    else
        dt_gen_bool(g, true);
}

static void make_x_two_numbers(dt_gen_t *g, const char *how)
{
    make_x(g, how);
    if (dt_gen_chance(g, 70)) {
        dt_gen_double(g, -1);
        dt_gen_double(g, 1);
    }
}

static void make_alike_two_numbers(dt_gen_t *g, const char *how)
{
    make_alike(g, how);
    dt_gen_double(g, -1);
    dt_gen_double(g, 1);
}

static void make_where(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_broadcast(g, DT_DTYPE_BOOL, ndim, sizes);
    if (how[0] == '<')
        number(g);
    else
        dt_gen_broadcast(g, dt_gen_dtype(g, how), ndim, sizes);
    if (how[0] == '>')
        number(g);
    else
        dt_gen_broadcast(g, dt_gen_dtype(g, how[0] == '<' ? how + 1 : how), ndim, sizes);
}

/* ---- dimensions ---- */

static void dimension(dt_gen_t *g, unsigned ndim)
{
    int64_t d = ndim ? dt_gen_below(g, ndim) : 0;
    dt_gen_int(g, dt_gen_chance(g, 40) ? d - (ndim ? ndim : 1) : d);
}

static void dimensions(dt_gen_t *g, unsigned ndim)
{
    int64_t dims[DIM_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < ndim; i++)
        if (dt_gen_chance(g, 40))
            dims[count++] = dt_gen_chance(g, 30) ? (int64_t)i - ndim : i;
    dt_gen_list(g, count, dims);
}

static void make_x_dim(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dimension(g, ndim);
}

static void make_x_dims(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dimensions(g, ndim);
}

static void make_roll(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], shifts[2] = {1, -2}, dims[2] = {0, -1};
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    unsigned count = dt_gen_below(g, ndim >= 2 ? 3 : 2);
    dt_gen_list(g, count ? count : 1, shifts);
    if (count)
        dt_gen_list(g, count, dims);
}

static void make_rot90(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], dims[2] = {0, -1};
    unsigned ndim = dt_gen_shape(g, 2, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_int(g, (int64_t)dt_gen_below(g, 6) - 2);
    dt_gen_list(g, 2, dims);
}

/* x, dims or None, keepdim, dtype or None */
static void make_nansum(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    if (dt_gen_chance(g, 30))
        return;
    if (dt_gen_chance(g, 20))
        dt_gen_none(g);
    else
        dimensions(g, ndim);
    dt_gen_bool(g, dt_gen_chance(g, 50));
    if (dt_gen_chance(g, 30))
        dt_gen_type(g, dt_gen_dtype(g, "fd"));
}

static void make_logsumexp(dt_gen_t *g, const char *how)
{
    make_x_dims(g, how);
    if (dt_gen_chance(g, 60))
        dt_gen_bool(g, dt_gen_chance(g, 50));
}

/* x, dims, correction, keepdim; "!" before the dtypes: correction is unbiased */
static void make_var(dt_gen_t *g, const char *how)
{
    bool is_old = how[0] == '!';
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how + is_old), ndim, sizes);
    if (!is_old && dt_gen_chance(g, 30))
        return;
    if (dt_gen_chance(g, is_old ? 0 : 20))
        dt_gen_none(g);
    else
        dimensions(g, ndim);
    if (is_old)
        dt_gen_bool(g, dt_gen_chance(g, 50));
    else if (dt_gen_chance(g, 30))
        dt_gen_none(g);
    else
        dt_gen_int(g, dt_gen_below(g, 2));
    dt_gen_bool(g, dt_gen_chance(g, 50));
}

static void make_x_bool(dt_gen_t *g, const char *how)
{
    make_x(g, how);
    if (dt_gen_chance(g, 60))
        dt_gen_bool(g, dt_gen_chance(g, 50));
}

/* x, names of its dimensions or none */
static void make_named(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    if (dt_gen_chance(g, 70))
        dt_gen_names(g, ndim);
    else
        dt_gen_none(g);
}

static void make_names(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_names(g, ndim);
}

/* ---- attention ---- */

/* Not empty: the kernels divide by zero, and the process dies. */
static void draw_attention(dt_gen_t *g, int64_t *q, int64_t *k)
{
    for (unsigned i = 0; i < 4; i++) {
        q[i] = dt_gen_size(g);
        q[i] += q[i] == 0;
        k[i] = q[i];
    }
    if (dt_gen_chance(g, 50))
        k[2] = 1 + dt_gen_below(g, 9);
}

static void make_attention(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how);
    int64_t q[4], k[4];
    draw_attention(g, q, k);
    dt_gen_tensor(g, dtype, 4, q);
    dt_gen_tensor(g, dtype, 4, k);
    dt_gen_tensor(g, dtype, 4, k);
}

static void make_attention_flash(dt_gen_t *g, const char *how)
{
    make_attention(g, how);
    if (dt_gen_chance(g, 50)) {
        dt_gen_double(g, 0);
        dt_gen_bool(g, dt_gen_chance(g, 50));
    }
}

static void make_attention_backward(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how);
    int64_t q[4], k[4];
    draw_attention(g, q, k);
    dt_gen_tensor(g, dtype, 4, q);
    dt_gen_tensor(g, dtype, 4, q);
    dt_gen_tensor(g, dtype, 4, k);
    dt_gen_tensor(g, dtype, 4, k);
    dt_gen_tensor(g, dtype, 4, q);
    dt_gen_tensor(g, dtype == DT_DTYPE_BF16 || dtype == DT_DTYPE_F16 ? DT_DTYPE_F32 : dtype, 3, q);
    dt_gen_double(g, 0);
    dt_gen_bool(g, false);
}

/* ---- normalisation ---- */

static void maybe_tensor(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes,
                         uint32_t percent)
{
    if (dt_gen_chance(g, percent))
        dt_gen_tensor(g, dtype, ndim, sizes);
    else
        dt_gen_none(g);
}

static void make_layer_norm(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    unsigned inner = 1 + dt_gen_below(g, ndim);
    unsigned of = dt_gen_chance(g, 25) ? DT_DTYPE_F32 : dtype;
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_list(g, inner, sizes + ndim - inner);
    maybe_tensor(g, of, inner, sizes + ndim - inner, 70);
    maybe_tensor(g, of, inner, sizes + ndim - inner, 70);
    dt_gen_double(g, 1e-5);
}

static void make_layer_norm_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], outer[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    unsigned inner = 1 + dt_gen_below(g, ndim);
    unsigned of = dtype == DT_DTYPE_BF16 && dt_gen_chance(g, 25) ? DT_DTYPE_F32 : dtype;
    for (unsigned i = 0; i < ndim; i++)
        outer[i] = i < ndim - inner ? sizes[i] : 1;
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_list(g, inner, sizes + ndim - inner);
    dt_gen_tensor(g, of, ndim, outer);
    dt_gen_tensor(g, of, ndim, outer);
    maybe_tensor(g, of, inner, sizes + ndim - inner, 70);
    maybe_tensor(g, of, inner, sizes + ndim - inner, 70);
    dt_gen_mask(g, 3);
}

/* x, w, b, N, C, HxW, G, eps; "+" before the dtypes: of the composite */
static void make_group_norm(dt_gen_t *g, const char *how)
{
    bool is_composite = how[0] == '+';
    int64_t sizes[DIM_MAX], groups = 1 + dt_gen_below(g, 3), inner = 1;
    unsigned ndim = dt_gen_shape(g, 2, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how + is_composite);
    unsigned of = dt_gen_chance(g, 25) ? DT_DTYPE_F32 : dtype;
    sizes[1] = groups * (1 + dt_gen_below(g, 3));
    for (unsigned i = 2; i < ndim; i++)
        inner *= sizes[i];
    dt_gen_tensor(g, dtype, ndim, sizes);
    if (is_composite)
        dt_gen_int(g, groups);
    maybe_tensor(g, of, 1, sizes + 1, 70);
    maybe_tensor(g, of, 1, sizes + 1, 70);
    if (is_composite)
        return;
    dt_gen_int(g, sizes[0]);
    dt_gen_int(g, sizes[1]);
    dt_gen_int(g, inner);
    dt_gen_int(g, groups);
    dt_gen_double(g, 1e-5);
}

static void make_group_norm_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], groups = 1 + dt_gen_below(g, 3), inner = 1;
    unsigned ndim = dt_gen_shape(g, 2, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    sizes[1] = groups * (1 + dt_gen_below(g, 3));
    for (unsigned i = 0; i < ndim; i++)
        sizes[i] += sizes[i] == 0; /* the kernel divides by zero, and the process dies */
    for (unsigned i = 2; i < ndim; i++)
        inner *= sizes[i];
    const int64_t statistics[2] = {sizes[0], groups};
    g->is_plain = true; /* channels last: the kernel writes out of bounds */
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, 2, statistics);
    dt_gen_tensor(g, dtype, 2, statistics);
    maybe_tensor(g, dtype, 1, sizes + 1, 70);
    dt_gen_int(g, sizes[0]);
    dt_gen_int(g, sizes[1]);
    dt_gen_int(g, inner);
    dt_gen_int(g, groups);
    dt_gen_mask(g, 3);
}

/* x, w, b, running mean, running var, training, momentum, eps; "-": without running ones */
static void make_batch_norm(dt_gen_t *g, const char *how)
{
    bool is_bare = how[0] == '-', is_composite = how[0] == '+', training = dt_gen_chance(g, 60);
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 2, DIM_MAX, sizes);
    unsigned dtype = dt_gen_dtype(g, how + (is_bare || is_composite));
    unsigned of = dt_gen_chance(g, 25) ? DT_DTYPE_F32 : dtype;
    bool has_running = !is_bare && (!training || dt_gen_chance(g, 60)), has = dt_gen_chance(g, 75);
    dt_gen_tensor(g, dtype, ndim, sizes);
    maybe_tensor(g, of, 1, sizes + 1, has ? 100 : 0);
    maybe_tensor(g, of, 1, sizes + 1, has ? 100 : 0);
    for (unsigned i = 0; i < 2 && !is_bare; i++)
        maybe_tensor(g, of, 1, sizes + 1, has_running ? 100 : 0);
    dt_gen_bool(g, is_bare || training);
    dt_gen_double(g, 0.1);
    dt_gen_double(g, 1e-5);
    if (is_composite)
        dt_gen_bool(g, false);
}

static void make_batch_norm_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 2, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    bool training = dt_gen_chance(g, 60);
    for (unsigned i = 0; i < ndim; i++)
        sizes[i] += sizes[i] == 0; /* no rows: the kernel divides by zero, and the process dies */
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
    maybe_tensor(g, dtype, 1, sizes + 1, 75);
    dt_gen_tensor(g, dtype, 1, sizes + 1);
    dt_gen_tensor(g, dtype, 1, sizes + 1);
    dt_gen_tensor(g, dtype, 1, sizes + 1);
    dt_gen_tensor(g, dtype, 1, sizes + 1);
    dt_gen_bool(g, training);
    dt_gen_double(g, 1e-5);
    dt_gen_mask(g, 3);
}

/* ---- convolution ---- */

typedef struct conv {
    unsigned dims, dtype;
    int64_t x[DIM_MAX], w[DIM_MAX], out[DIM_MAX];
    int64_t stride[3], padding[3], dilation[3], output_padding[3], groups;
    bool transposed;
} conv_t;

static void draw_conv(dt_gen_t *g, const char *how, bool may_transpose, conv_t *c)
{
    c->dims = (unsigned)(how[0] - '0');
    c->dtype = dt_gen_dtype(g, how + 1);
    c->transposed = may_transpose && dt_gen_chance(g, 35);
    c->groups = dt_gen_chance(g, 30) ? 2 : 1;
    c->x[0] = dt_gen_size(g);
    c->x[1] = c->groups * (1 + dt_gen_below(g, 3));
    int64_t out = c->groups * (1 + dt_gen_below(g, 3));
    c->w[0] = c->transposed ? c->x[1] : out;
    c->w[1] = (c->transposed ? out : c->x[1]) / c->groups;
    c->out[0] = c->x[0];
    c->out[1] = out;
    for (unsigned i = 0; i < c->dims; i++) {
        int64_t k = c->w[i + 2] = 1 + dt_gen_below(g, 3);
        int64_t s = c->stride[i] = 1 + dt_gen_below(g, 2);
        /* outputs of padding alone: a kernel of oneDNN dies of them */
        int64_t p = c->padding[i] = k > 1 ? dt_gen_below(g, 2) : 0;
        int64_t d = c->dilation[i] = 1 + dt_gen_below(g, 2);
        int64_t n = c->x[i + 2] = d * (k - 1) + 1 + dt_gen_below(g, 4);
        c->output_padding[i] = c->transposed && s > 1 ? dt_gen_below(g, 2) : 0;
        c->out[i + 2] = c->transposed ? (n - 1) * s - 2 * p + d * (k - 1) + c->output_padding[i] + 1
                                      : (n + 2 * p - d * (k - 1) - 1) / s + 1;
    }
    g->is_plain = dt_gen_chance(g, 75);
}

static void conv_numbers(dt_gen_t *g, const conv_t *c)
{
    unsigned count = dt_gen_chance(g, 20) ? 1 : c->dims;
    dt_gen_list(g, c->dims, c->stride);
    dt_gen_list(g, c->dims, c->padding);
    dt_gen_list(g, c->dims, c->dilation);
    (void)count;
    dt_gen_bool(g, c->transposed);
    dt_gen_list(g, c->dims, c->output_padding);
    dt_gen_int(g, c->groups);
}

static void make_convolution(dt_gen_t *g, const char *how)
{
    conv_t c;
    draw_conv(g, how, true, &c);
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.x);
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.w);
    maybe_tensor(g, c.dtype, 1, &c.out[1], 60);
    conv_numbers(g, &c);
}

static void make_convolution_backward(dt_gen_t *g, const char *how)
{
    conv_t c;
    draw_conv(g, how, true, &c);
    for (unsigned i = 0; i < c.dims; i++)
        if (c.out[i + 2] <= 0)
            c.out[i + 2] = 0;
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.out);
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.x);
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.w);
    dt_gen_list(g, 1, &c.out[1]);
    conv_numbers(g, &c);
    dt_gen_mask(g, 3);
}

/* conv1d and its like, unbatched now and then */
static void make_conv(dt_gen_t *g, const char *how)
{
    conv_t c;
    draw_conv(g, how, false, &c);
    bool is_single = dt_gen_chance(g, 15);
    dt_gen_tensor(g, c.dtype, c.dims + 2 - is_single, c.x + is_single);
    dt_gen_tensor(g, c.dtype, c.dims + 2, c.w);
    maybe_tensor(g, c.dtype, 1, &c.out[1], 60);
    if (dt_gen_chance(g, 20) && c.groups == 1)
        return;
    unsigned count = dt_gen_chance(g, 20) ? 1 : c.dims;
    dt_gen_list(g, count, c.stride);
    dt_gen_list(g, count, c.padding);
    dt_gen_list(g, count, c.dilation);
    dt_gen_int(g, c.groups);
}

/* ---- indices ---- */

static void make_index_select(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], count[1] = {dt_gen_size(g)};
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    unsigned d = ndim ? dt_gen_below(g, ndim) : 0;
    bool is_single = ndim == 0 || dt_gen_chance(g, 15);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_int(g, dt_gen_chance(g, 40) ? (int64_t)d - (ndim ? ndim : 1) : d);
    dt_gen_indices(g, dt_gen_dtype(g, "ij"), is_single ? 0 : 1, count, ndim ? sizes[d] : 1);
}

static void make_embedding(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], weight[2] = {1 + dt_gen_below(g, 9), dt_gen_size(g)};
    unsigned ndim = dt_gen_shape(g, 0, 3, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), 2, weight);
    dt_gen_indices(g, dt_gen_dtype(g, "ij"), ndim, sizes, weight[0]);
    if (dt_gen_chance(g, 50))
        dt_gen_int(g, 0);
}

static void make_embedding_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], rows = 1 + dt_gen_below(g, 9);
    unsigned ndim = dt_gen_shape(g, 1, 4, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_indices(g, dt_gen_dtype(g, "ij"), ndim - 1, sizes, rows);
    dt_gen_int(g, rows);
    dt_gen_int(g, -1);
    dt_gen_bool(g, false);
}

static void make_take(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], from[2] = {3, 4};
    unsigned ndim = dt_gen_shape(g, 0, 4, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), 2, from);
    dt_gen_indices(g, DT_DTYPE_I64, ndim, sizes, 12);
}

/* "b": x first; "s": edges first; then a digit: x is a number */
static void make_search(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX], edges[1] = {dt_gen_size(g)};
    unsigned ndim = dt_gen_shape(g, 0, 4, sizes), dtype = dt_gen_dtype(g, "fdi");
    if (how[0] == 's')
        dt_gen_tensor(g, dtype, 1, edges);
    if (how[1])
        dt_gen_double(g, 0.5);
    else
        dt_gen_tensor(g, dtype, ndim, sizes);
    if (how[0] == 'b')
        dt_gen_tensor(g, dtype, 1, edges);
    if (dt_gen_chance(g, 60))
        dt_gen_bool(g, dt_gen_chance(g, 50));
}

/* ---- pooling, sampling, losses ---- */

static void make_pool(dt_gen_t *g, const char *how)
{
    unsigned dims = (unsigned)(how[0] - '0');
    int64_t sizes[DIM_MAX], to[3] = {1 + dt_gen_below(g, 3), 1 + dt_gen_below(g, 3), 1};
    unsigned ndim = dt_gen_shape(g, dims + 1, dims + 2, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how + 1), ndim, sizes);
    dt_gen_list(g, dims, to);
}

static void make_pool_backward(dt_gen_t *g, const char *how)
{
    unsigned dims = (unsigned)(how[0] - '0');
    int64_t sizes[DIM_MAX], grad[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, dims + 1, dims + 2, sizes), dtype = dt_gen_dtype(g, how + 1);
    for (unsigned i = 0; i < ndim; i++)
        sizes[i] += sizes[i] == 0; /* in three dimensions the kernel dies of an empty tensor */
    for (unsigned i = 0; i < ndim; i++)
        grad[i] = i < ndim - dims ? sizes[i] : 1 + dt_gen_below(g, 3);
    dt_gen_tensor(g, dtype, ndim, grad);
    dt_gen_tensor(g, dtype, ndim, sizes);
}

static void make_grid(dt_gen_t *g, const char *how)
{
    unsigned dims = (unsigned)(how[0] - '0'), dtype = dt_gen_dtype(g, how + 1);
    int64_t x[DIM_MAX], grid[DIM_MAX];
    for (unsigned i = 0; i < dims + 2; i++) {
        x[i] = 1 + dt_gen_below(g, 4);
        grid[i] = 1 + dt_gen_below(g, 4);
    }
    x[0] = grid[0] = dt_gen_size(g);
    grid[dims + 1] = dims;
    dt_gen_tensor(g, dtype, dims + 2, x);
    dt_gen_tensor(g, dtype, dims + 2, grid);
    dt_gen_int(g, dt_gen_below(g, 2));
    dt_gen_int(g, dt_gen_below(g, 3));
    dt_gen_bool(g, dt_gen_chance(g, 50));
}

/* x, y, reduction, delta */
static void make_loss(dt_gen_t *g, const char *how)
{
    make_xy(g, how);
    if (dt_gen_chance(g, 80))
        dt_gen_int(g, dt_gen_below(g, 3));
}

/* grad, x, y, reduction, delta; "-" without delta */
static void make_loss_backward(dt_gen_t *g, const char *how)
{
    bool has_delta = how[0] != '-';
    int64_t sizes[DIM_MAX], reduction = dt_gen_below(g, 3);
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how + !has_delta);
    dt_gen_tensor(g, dtype, reduction ? 0 : ndim, sizes);
    if (dt_gen_chance(g, 70)) {
        dt_gen_tensor(g, dtype, ndim, sizes);
        dt_gen_tensor(g, dtype, ndim, sizes);
    } else {
        dt_gen_broadcast(g, dtype, ndim, sizes);
        dt_gen_broadcast(g, dtype, ndim, sizes);
    }
    dt_gen_int(g, reduction);
    if (has_delta)
        dt_gen_double(g, 1);
}

/* probabilities must be 0 to 1: 16-bit zeros, and what is drawn below */
static void make_bce(dt_gen_t *g, const char *how)
{
    bool is_backward = how[0] == '<';
    int64_t sizes[DIM_MAX], reduction = dt_gen_below(g, 3);
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    unsigned dtype = dt_gen_dtype(g, how + is_backward);
    if (is_backward)
        dt_gen_tensor(g, dtype, reduction ? 0 : ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, ndim, sizes);
    maybe_tensor(g, dtype, ndim, sizes, 30);
    dt_gen_int(g, reduction);
}

static void make_glu_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    unsigned d = dt_gen_below(g, ndim);
    dt_gen_tensor(g, dtype, ndim, sizes);
    sizes[d] *= 2;
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_int(g, d);
}

static void make_three(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes), dtype = dt_gen_dtype(g, how);
    for (unsigned i = 0; i < 3; i++)
        dt_gen_tensor(g, dtype, ndim, sizes);
}

static void make_dropout_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 0, DIM_MAX, sizes);
    dt_gen_tensor(g, dt_gen_dtype(g, how), ndim, sizes);
    dt_gen_tensor(g, DT_DTYPE_BOOL, ndim, sizes);
    dt_gen_double(g, 2);
}

/* ---- matrices ---- */

static void make_addbmm(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how);
    int64_t b = dt_gen_size(g), n = dt_gen_size(g), k = dt_gen_size(g), m = dt_gen_size(g);
    const int64_t x[2] = {n, m}, left[3] = {b, n, k}, right[3] = {b, k, m};
    dt_gen_broadcast(g, dtype, 2, x);
    dt_gen_tensor(g, dtype, 3, left);
    dt_gen_tensor(g, dtype, 3, right);
}

static void make_linear(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, 4, sizes), dtype = dt_gen_dtype(g, how);
    const int64_t weight[2] = {dt_gen_size(g), sizes[ndim - 1]};
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, 2, weight);
    if (dt_gen_chance(g, 50))
        dt_gen_tensor(g, dtype, 1, weight);
}

static void make_linear_backward(dt_gen_t *g, const char *how)
{
    int64_t sizes[DIM_MAX];
    unsigned ndim = dt_gen_shape(g, 1, 4, sizes), dtype = dt_gen_dtype(g, how);
    const int64_t weight[2] = {dt_gen_size(g), sizes[ndim - 1]};
    dt_gen_tensor(g, dtype, ndim, sizes);
    sizes[ndim - 1] = weight[0];
    dt_gen_tensor(g, dtype, ndim, sizes);
    dt_gen_tensor(g, dtype, 2, weight);
    dt_gen_mask(g, 3);
}

static void make_like(dt_gen_t *g, const char *how)
{
    make_x(g, how);
    if (dt_gen_chance(g, 40))
        dt_gen_type(g, dt_gen_dtype(g, how));
}

static void make_dot(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how);
    int64_t n = dt_gen_size(g);
    dt_gen_tensor(g, dtype, 1, &n);
    dt_gen_tensor(g, dtype, 1, &n);
}

static void make_triangular(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how), batch;
    int64_t a[DIM_MAX], b[DIM_MAX], n = dt_gen_size(g), k = dt_gen_size(g);
    bool left = dt_gen_chance(g, 70);
    batch = dt_gen_shape(g, 0, 2, a);
    for (unsigned i = 0; i < batch; i++) {
        b[i] = dt_gen_chance(g, 15) ? 1 : a[i];
        a[i] = dt_gen_chance(g, 15) ? 1 : a[i];
    }
    a[batch] = a[batch + 1] = n;
    b[batch] = left ? n : k;
    b[batch + 1] = left ? k : n;
    dt_gen_tensor(g, dtype, batch + 2, a);
    dt_gen_tensor(g, dtype, batch + 2, b);
    dt_gen_bool(g, dt_gen_chance(g, 50));
    if (!left || dt_gen_chance(g, 50))
        dt_gen_bool(g, left);
}

static void make_lu_solve(dt_gen_t *g, const char *how)
{
    unsigned dtype = dt_gen_dtype(g, how), batch;
    int64_t a[DIM_MAX], b[DIM_MAX], n = dt_gen_size(g), k = dt_gen_size(g);
    bool left = dt_gen_chance(g, 60);
    n += n == 0; /* MKL complains of empty ones, on stdout */
    k += k == 0;
    g->is_plain = true;
    batch = dt_gen_shape(g, 0, 2, a);
    for (unsigned i = 0; i < batch; i++)
        b[i] = a[i];
    a[batch] = a[batch + 1] = n;
    b[batch] = left ? n : k;
    b[batch + 1] = left ? k : n;
    dt_gen_tensor(g, dtype, batch + 2, a);
    dt_gen_indices(g, DT_DTYPE_I32, batch + 1, a, -1);
    dt_gen_tensor(g, dtype, batch + 2, b);
    dt_gen_bool(g, left);
    dt_gen_bool(g, dt_gen_chance(g, 50));
}

static void make_softmax(dt_gen_t *g, const char *how)
{
    make_x_dim(g, how);
    if (dt_gen_chance(g, 30))
        dt_gen_type(g, dt_gen_dtype(g, "fd"));
}

#define FLOATS   "fdhb"
#define NUMBERS  "fdhbijku"
#define ALL      "fdhbijkuo"
#define COMPLEX  "cz"
#define ANYTHING "fdhbijkuocz"

static const dt_rules_row_t rows[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", make_attention_flash, FLOATS},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", make_attention_backward, FLOATS},
    {"aten::where.self", make_where, ANYTHING},
    {"aten::where.ScalarSelf", make_where, "<" ANYTHING},
    {"aten::where.ScalarOther", make_where, ">" ANYTHING},
    {"aten::linalg_solve_triangular", make_triangular, "fdcz"},
    {"aten::abs", make_x, ANYTHING},
    {"aten::_conj_physical", make_x, COMPLEX},
    {"aten::native_layer_norm", make_layer_norm, FLOATS},
    {"aten::layer_norm", make_layer_norm, FLOATS},
    {"aten::native_layer_norm_backward", make_layer_norm_backward, FLOATS},
    {"aten::native_group_norm", make_group_norm, FLOATS},
    {"aten::group_norm", make_group_norm, "+" FLOATS},
    {"aten::native_group_norm_backward", make_group_norm_backward, FLOATS},
    {"aten::native_batch_norm", make_batch_norm, FLOATS},
    {"aten::_native_batch_norm_legit", make_batch_norm, FLOATS},
    {"aten::_native_batch_norm_legit.no_stats", make_batch_norm, "-" FLOATS},
    {"aten::native_batch_norm_backward", make_batch_norm_backward, FLOATS},
    {"aten::batch_norm", make_batch_norm, "+" FLOATS},
    {"aten::flip", make_x_dims, ANYTHING},
    {"aten::roll", make_roll, ANYTHING},
    {"aten::rot90", make_rot90, ANYTHING},
    {"aten::convolution", make_convolution, "1fd"},
    {"aten::convolution", make_convolution, "2fd"},
    {"aten::convolution", make_convolution, "3fd"},
    {"aten::convolution_backward", make_convolution_backward, "1fd"},
    {"aten::convolution_backward", make_convolution_backward, "2fd"},
    {"aten::convolution_backward", make_convolution_backward, "3fd"},
    {"aten::conv1d", make_conv, "1fd"},
    {"aten::conv2d", make_conv, "2fd"},
    {"aten::conv3d", make_conv, "3fd"},
    {"aten::index_select", make_index_select, ANYTHING},
    {"aten::embedding", make_embedding, FLOATS},
    {"aten::embedding_dense_backward", make_embedding_backward, FLOATS},
    {"aten::isnan", make_x, ANYTHING},
    {"aten::isinf", make_x, ANYTHING},
    {"aten::isfinite", make_x, ANYTHING},
    {"aten::logical_and", make_xy, ANYTHING},
    {"aten::logical_or", make_xy, ANYTHING},
    {"aten::logical_xor", make_xy, ANYTHING},
    {"aten::logical_not", make_x, ANYTHING},
    {"aten::logical_and_", make_xy_, ANYTHING},
    {"aten::logical_or_", make_xy_, ANYTHING},
    {"aten::logical_xor_", make_xy_, ANYTHING},
    {"aten::logical_not_", make_x, ANYTHING},
    {"aten::relu", make_x, ALL},
    {"aten::hardtanh", make_x_two_numbers, ALL},
    {"aten::relu6", make_x, ALL},
    {"aten::hardtanh_backward", make_alike_two_numbers, FLOATS},
    {"aten::hardswish", make_x, ALL},
    {"aten::hardswish_backward", make_alike, FLOATS},
    {"aten::max", make_x, ALL},
    {"aten::min", make_x, ALL},
    {"aten::median", make_x, ALL},
    {"aten::nanmedian", make_x, ALL},
    {"aten::logsumexp", make_logsumexp, ANYTHING},
    {"aten::nansum", make_nansum, ANYTHING},
    {"aten::var.correction", make_var, "fdhbcz"},
    {"aten::std.correction", make_var, "fdhbcz"},
    {"aten::var_mean.correction", make_var, "fdhbcz"},
    {"aten::std_mean.correction", make_var, "fdhbcz"},
    {"aten::var", make_x_bool, "fdhbcz"},
    {"aten::std", make_x_bool, "fdhbcz"},
    {"aten::var.dim", make_var, "!fdhbcz"},
    {"aten::std.dim", make_var, "!fdhbcz"},
    {"aten::rsub.Tensor", make_xy, ANYTHING},
    {"aten::native_dropout_backward", make_dropout_backward, NUMBERS},
    {"aten::logit", make_x, ALL},
    {"aten::nan_to_num", make_x, ANYTHING},
    {"aten::take", make_take, ANYTHING},
    {"aten::bucketize.Tensor", make_search, "b"},
    {"aten::bucketize.Scalar", make_search, "b1"},
    {"aten::searchsorted.Tensor", make_search, "s"},
    {"aten::searchsorted.Scalar", make_search, "s1"},
    {"aten::_safe_softmax", make_softmax, FLOATS},
    {"aten::_adaptive_avg_pool2d", make_pool, "2fdhb"},
    {"aten::_adaptive_avg_pool3d", make_pool, "3fdhb"},
    {"aten::adaptive_avg_pool2d", make_pool, "2fdhb"},
    {"aten::adaptive_avg_pool3d", make_pool, "3fdhb"},
    {"aten::_adaptive_avg_pool2d_backward", make_pool_backward, "2fdhb"},
    {"aten::_adaptive_avg_pool3d_backward", make_pool_backward, "3fdhb"},
    {"aten::mse_loss_backward", make_loss_backward, "-" FLOATS},
    {"aten::smooth_l1_loss_backward", make_loss_backward, FLOATS},
    {"aten::huber_loss_backward", make_loss_backward, FLOATS},
    {"aten::huber_loss", make_loss, FLOATS},
    {"aten::binary_cross_entropy", make_bce, FLOATS},
    {"aten::binary_cross_entropy_backward", make_bce, "<" FLOATS},
    {"aten::glu_backward", make_glu_backward, FLOATS},
    {"aten::grid_sampler_2d", make_grid, "2fd"},
    {"aten::grid_sampler_3d", make_grid, "3fd"},
    {"aten::log_sigmoid_forward", make_x, FLOATS},
    {"aten::log_sigmoid", make_x, FLOATS},
    {"aten::log_sigmoid_backward", make_three, FLOATS},
    {"aten::linalg_lu_solve", make_lu_solve, "fdcz"},
    {"aten::addbmm", make_addbmm, "fdhbi"},
    {"aten::zeros_like", make_like, "fdhbijkuocz"},
    {"aten::ones_like", make_like, "fdhbijkuocz"},
    {"aten::linear", make_linear, "fdhb"},
    {"aten::linear_backward", make_linear_backward, "fdhb"},
    {"aten::dot", make_dot, "fdhbicz"},
    {"aten::vdot", make_dot, "fdhbicz"},
    {"aten::logcumsumexp", make_x_dim, "fdhbc"},
    {"aten::rename", make_named, "fdhbijkuocz"},
    {"aten::rename_", make_named, "fdhbijkuocz"},
    {"aten::refine_names", make_names, "fdhbijkuocz"},
};

const dt_rules_row_t *dt_rules_rows(uint32_t *ret_count)
{
    *ret_count = sizeof rows / sizeof *rows;
    return rows;
}
