/* Train a small network: forward and backward by operators, and SGD.
 *
 *     ./mlp_train [ADDRESS]
 *
 * Nothing waits for the cluster but reading the loss, once in EVERY steps: the program runs ahead.
 */
#include <dtorch/dtorch.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS   64
#define INPUTS 8
#define HIDDEN 32
#define STEPS  200
#define EVERY  50

static dt_session_t *session;
static dt_failure_t failure;

static void die(const char *what)
{
    fprintf(stderr, "mlp_train: %s: %s: %s\n", what, failure.kind, failure.error.text);
    exit(1);
}

/* Call an operator with one result. */
static dt_tensor_t *op(const char *name, const dt_value_t *args, uint32_t count)
{
    dt_tensor_t *result = NULL;
    if (dt_call(session, name, args, count, &result, 1, NULL, &failure) != DT_OK)
        die(name);
    return result;
}

static dt_tensor_t *op1(const char *name, dt_tensor_t *a)
{
    return op(name, (dt_value_t[]){dt_arg_tensor(a)}, 1);
}

static dt_tensor_t *op2(const char *name, dt_tensor_t *a, dt_tensor_t *b)
{
    return op(name, (dt_value_t[]){dt_arg_tensor(a), dt_arg_tensor(b)}, 2);
}

static dt_tensor_t *sum_rows(dt_tensor_t *a)
{
    static const int64_t dim[] = {0};
    return op("aten::sum.dim_IntList", (dt_value_t[]){dt_arg_tensor(a), dt_arg_ints(dim, 1)}, 2);
}

/* parameter -= rate * gradient, in place; the gradient is not needed any more. */
static void descend(dt_tensor_t *parameter, dt_tensor_t *gradient, double rate)
{
    const dt_value_t args[] = {dt_arg_tensor(parameter), dt_arg_tensor(gradient),
                               dt_arg_double(rate)};
    dt_tensor_free(op("aten::sub_.Tensor", args, 3));
    dt_tensor_free(gradient);
}

/* The same numbers in every run. */
static float noise(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1u << 23) - 1.0f;
}

static dt_tensor_t *random_tensor(int64_t rows, int64_t columns, float scale)
{
    static float data[ROWS * HIDDEN];
    const int64_t sizes[] = {rows, columns};
    dt_tensor_t *tensor = NULL;
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = noise() * scale;
    if (dt_tensor_from(session, DT_DTYPE_F32, 2, sizes, data, &tensor, &failure.error) != DT_OK)
        die("upload");
    return tensor;
}

struct model {
    dt_tensor_t *w1, *b1, *w2, *b2;
};

/* One step. Returns the loss, a tensor without dimensions. */
static dt_tensor_t *step(const struct model *m, dt_tensor_t *x, dt_tensor_t *y, double rate)
{
    /* Forward. */
    dt_tensor_t *xw = op2("aten::mm", x, m->w1);
    dt_tensor_t *h = op2("aten::add.Tensor", xw, m->b1); /* (ROWS, HIDDEN) */
    dt_tensor_t *a = op1("aten::relu", h);
    dt_tensor_t *aw = op2("aten::mm", a, m->w2);
    dt_tensor_t *p = op2("aten::add.Tensor", aw, m->b2); /* (ROWS, 1) */
    dt_tensor_t *d = op2("aten::sub.Tensor", p, y);
    dt_tensor_t *dd = op2("aten::mul.Tensor", d, d);
    dt_tensor_t *loss = op1("aten::mean", dd);
    /* Backward. */
    const dt_value_t scaled[] = {dt_arg_tensor(d), dt_arg_double(2.0 / ROWS)};
    dt_tensor_t *gp = op("aten::mul.Scalar", scaled, 2);
    dt_tensor_t *at = op1("aten::t", a);
    dt_tensor_t *w2t = op1("aten::t", m->w2);
    dt_tensor_t *ga = op2("aten::mm", gp, w2t);
    const dt_value_t gated[] = {dt_arg_tensor(ga), dt_arg_tensor(h), dt_arg_int(0)};
    dt_tensor_t *gh = op("aten::threshold_backward", gated, 3);
    dt_tensor_t *xt = op1("aten::t", x);
    dt_tensor_t *gw2 = op2("aten::mm", at, gp);
    dt_tensor_t *gw1 = op2("aten::mm", xt, gh);
    descend(m->w2, gw2, rate);
    descend(m->b2, sum_rows(gp), rate);
    descend(m->w1, gw1, rate);
    descend(m->b1, sum_rows(gh), rate);
    dt_tensor_t *const done[] = {xw, h, a, aw, p, d, dd, gp, at, w2t, ga, gh, xt};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++)
        dt_tensor_free(done[i]);
    return loss;
}

/* What the network is to learn: some function of the inputs, made of operators too. */
static dt_tensor_t *targets(dt_tensor_t *x)
{
    dt_tensor_t *w = random_tensor(INPUTS, 1, 1.0f);
    dt_tensor_t *xw = op2("aten::mm", x, w);
    dt_tensor_t *y = op1("aten::relu", xw);
    dt_tensor_free(w);
    dt_tensor_free(xw);
    return y;
}

int main(int argc, char **argv)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = argc > 1 ? argv[1] : NULL};
    float first = NAN, last = NAN;
    if (dt_connect(&options, &session, &failure.error) != DT_OK)
        die("connect");
    dt_tensor_t *x = random_tensor(ROWS, INPUTS, 1.0f);
    dt_tensor_t *y = targets(x);
    struct model model = {.w1 = random_tensor(INPUTS, HIDDEN, 0.5f),
                          .b1 = random_tensor(1, HIDDEN, 0.1f),
                          .w2 = random_tensor(HIDDEN, 1, 0.5f),
                          .b2 = random_tensor(1, 1, 0.1f)};
    for (int i = 0; i < STEPS; i++) {
        dt_tensor_t *loss = step(&model, x, y, 0.2 / (1.0 + 0.002 * i));
        if (dt_mark_step(session, (uint64_t)i, &failure.error) != DT_OK)
            die("mark");
        if (i % EVERY == 0 || i == STEPS - 1) {
            if (dt_tensor_read(loss, &last, sizeof last, &failure) != DT_OK)
                die("loss");
            printf("step %3d  loss %.5f\n", i, (double)last);
            if (i == 0)
                first = last;
        }
        dt_tensor_free(loss);
    }
    dt_tensor_t *const rest[] = {x, y, model.w1, model.b1, model.w2, model.b2};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        dt_tensor_free(rest[i]);
    if (dt_disconnect(session, -1, &failure) != DT_OK)
        die("disconnect");
    return last < 0.1f * first ? 0 : 1;
}
