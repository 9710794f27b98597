/* Rules of metadata: reading them, and answering with an asker that is played. What the built-in
 * ones say is compared with LibTorch by tests/meta. */
#include <criterion/criterion.h>
#include <string.h>

#include "ops/meta_internal.h"

TestSuite(ops_meta, .timeout = 60);

/* ---- the asker: two operators ---- */

static uint32_t asked;

static dt_status_t ask(void *arg, const dt_ops_question_t *question, dt_ops_answer_t *ret_answer,
                       dt_error_t *err)
{
    const char *name = question->name;
    asked++;
    if (arg)
        return dt_fail(err, *(const dt_status_t *)arg, "test", 0, "as told");
    memset(ret_answer, 0, sizeof *ret_answer);
    ret_answer->count = strcmp(name, "aten::two") == 0 ? 2 : 1;
    for (uint32_t i = 0; i < ret_answer->count; i++) {
        ret_answer->outputs[i].meta = question->inputs[i];
        ret_answer->outputs[i].alias =
            strcmp(name, "aten::view") == 0 ? DT_ALIAS_VIEW : DT_ALIAS_FRESH;
    }
    return DT_OK;
}

static dt_meta_t meta_of(unsigned dtype, unsigned ndim, const int64_t *sizes)
{
    dt_meta_t meta;
    cr_assert_eq(dt_meta_set(&meta, dtype, ndim, sizes, NULL, 0, NULL), DT_OK);
    return meta;
}

/* f(x (2, 3, 4) float32, y (5,) int64, n) by one line; `n` an INT, or what is given. */
static dt_status_t answer(const char *kind, const char *line, const dt_value_t *n,
                          dt_ops_answer_t *ret_answer, dt_error_t *err)
{
    const dt_ops_line_t lines[] = {{1, kind, line}};
    const dt_value_t args[] = {
        {.tag = DT_VALUE_TENSOR, .id = 1}, {.tag = DT_VALUE_TENSOR, .id = 1}, *n};
    const dt_meta_t inputs[] = {meta_of(DT_DTYPE_F32, 3, (const int64_t[]){2, 3, 4}),
                                meta_of(DT_DTYPE_I64, 1, (const int64_t[]){5})};
    const dt_ops_question_t question = {"aten::f", args, 3, 2, inputs};
    const dt_ops_asker_t asker = {.ask = ask, .kind = "cpu"};
    dt_ops_rules_t *rules;
    dt_status_t status = dt_ops_rules_read(lines, 1, &rules, err);
    cr_assert_eq(status, DT_OK, "%s: %s", line, err->text);
    status = dt_ops_rules_answer(rules, &asker, &question, ret_answer, err);
    dt_ops_rules_free(rules);
    return status;
}

static const dt_value_t seven = {.tag = DT_VALUE_INT, .number = 7};

static void expect_sizes(const char *line, unsigned ndim, const int64_t *sizes)
{
    dt_ops_answer_t got;
    dt_error_t err = {0};
    dt_status_t status = answer("cpu", line, &seven, &got, &err);
    cr_assert_eq(status, DT_OK, "%s: %s", line, err.text);
    const dt_meta_t *meta = &got.outputs[0].meta;
    cr_assert_eq(meta->ndim, ndim, "%s gave %u dimensions", line, meta->ndim);
    cr_assert_eq(memcmp(meta->sizes, sizes, ndim * sizeof *sizes), 0, "%s", line);
}

static void expect_refusal(const char *line, const char *why)
{
    dt_ops_answer_t got;
    dt_error_t err = {0};
    cr_assert_eq(answer("cpu", line, &seven, &got, &err), DT_ERR_AGAIN, "%s", line);
    cr_assert_not_null(strstr(err.text, why), "%s: %s", line, err.text);
}

/* ---- reading ---- */

Test(ops_meta, every_built_in_rule_can_be_read)
{
    dt_ops_rules_t *rules;
    dt_error_t err = {0};
    cr_assert_eq(dt_ops_rules_create(&rules, &err), DT_OK, "%s", err.text);
    cr_assert_geq(dt_ops_rules_count(rules), 80);
    for (uint32_t i = 0; i < dt_ops_rules_count(rules); i++) {
        cr_assert(dt_ops_rules_has(rules, dt_ops_rules_name(rules, i)));
        cr_assert(i == 0 ||
                  strcmp(dt_ops_rules_name(rules, i - 1), dt_ops_rules_name(rules, i)) < 0);
    }
    cr_assert_null(dt_ops_rules_name(rules, dt_ops_rules_count(rules)));
    cr_assert(dt_ops_rules_is_first(rules, "aten::native_layer_norm"));
    cr_assert_not(dt_ops_rules_is_first(rules, "aten::where.self"));
    cr_assert_not(dt_ops_rules_has(rules, "aten::wher"));
    cr_assert_not(dt_ops_rules_has(rules, "aten::where.selfish"));
    cr_assert_not(dt_ops_rules_has(NULL, "aten::where.self"));
    dt_ops_rules_free(rules);
    dt_ops_rules_free(NULL);
}

Test(ops_meta, what_is_no_rule_is_refused_with_its_line)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "operator's name"},
        {"f(x) = x", "operator's name"},
        {"aten::f x = x", "expected ("},
        {"aten::f(x=1 = x", "expected , or )"},
        {"aten::f(x, x) = x", "second argument"},
        {"aten::f(1) = x", "name of an argument"},
        {"aten::f(x)", "expected ="},
        {"aten::f(x) = y", "no argument has the name"},
        {"aten::f(x) = frobnicate(x)", "no function has the name"},
        {"aten::f(x) = cont(x)", "number of arguments"},
        {"aten::f(x) = x,", "expected a value"},
        {"aten::f(x) = x if", "expected a value"},
        {"aten::f(x) = x x", "more than a rule"},
        {"aten::f(x) = (x", "expected )"},
        {"aten::f(x) = cont([1, 2, x)", "closing bracket"},
        {"aten::f(x) = sizes(x)[0", "expected ]"},
        {"aten::f(x) = aten::g(x)[x]", "which result"},
        {"aten::f(x) = cont([99999999999999999999], x)", "out of range"},
        {"aten::f(x) = ((((((((((((x))))))))))))", "too deep"},
        {"aten::f(x) = x, x, x, x, x, x, x, x, x", "too many results"},
        {"aten::f(x) = cont([1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], x)", "too many arguments"},
        {"aten::f(a,b,c,d,e,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z) = a", "too many arguments"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const dt_ops_line_t lines[] = {{3, "any", "aten::good(x) = x"}, {77, "cpu", bad[i].text}};
        dt_ops_rules_t *rules = NULL;
        dt_error_t err = {0};
        cr_assert_eq(dt_ops_rules_read(lines, 2, &rules, &err), DT_ERR_INVALID, "%s", bad[i].text);
        cr_assert_not_null(strstr(err.text, "meta.def:77: "), "%s", err.text);
        cr_assert_not_null(strstr(err.text, bad[i].why), "%s: %s", bad[i].text, err.text);
    }
    const dt_ops_line_t kind[] = {{5, "gpu", "aten::f(x) = x"}};
    dt_ops_rules_t *rules;
    dt_error_t err = {0};
    cr_assert_eq(dt_ops_rules_read(kind, 1, &rules, &err), DT_ERR_INVALID);
}

/* ---- answering ---- */

Test(ops_meta, lists_and_arithmetic_are_as_documented)
{
    expect_sizes("aten::f(x, y, n) = cont([1, *sizes(x), n], x)", 5,
                 (const int64_t[]){1, 2, 3, 4, 7});
    expect_sizes("aten::f(x, y, n) = cont(sizes(x) * 2 - [1, 1, 2] + n, x)", 3,
                 (const int64_t[]){10, 12, 13});
    expect_sizes("aten::f(x, y, n) = cont([(0 - n) / 2 + 5, n / 2, n - 2 * 3], x)", 3,
                 (const int64_t[]){1, 3, 1});
    expect_sizes("aten::f(x, y, n) = cont(replace(slice(sizes(x), 1, -1), -1, n), x)", 1,
                 (const int64_t[]){7});
    expect_sizes("aten::f(x, y, n) = cont([sizes(x)[-1], numel(x), dim(x), len(sizes(y))], x)", 4,
                 (const int64_t[]){4, 24, 3, 1});
    expect_sizes("aten::f(x, y, n) = cont(repeat(prod(strides(x)), 2), x)", 2,
                 (const int64_t[]){48, 48});
    expect_sizes("aten::f(x, y, n) = choose(n == 7 and not n < 7, cont([1], x), cont([2], x))", 1,
                 (const int64_t[]){1});
    expect_sizes("aten::f(x, y, n) = choose(n != 7 or n <= 6, cont([1], x), cont([2], x))", 1,
                 (const int64_t[]){2});
}

Test(ops_meta, a_side_that_does_not_matter_is_not_looked_at)
{
    asked = 0;
    expect_sizes("aten::f(x, y, n) = choose(true, cont([1], x), aten::one(x))", 1,
                 (const int64_t[]){1});
    expect_sizes("aten::f(x, y, n) = cont([1], x) if n == 7 or aten::one(x)", 1,
                 (const int64_t[]){1});
    cr_assert_eq(asked, 0);
}

Test(ops_meta, what_does_not_fit_refuses)
{
    expect_refusal("aten::f(x, y, n) = cont([n], x) if n == 8", "its condition");
    expect_refusal("aten::f(x, y, n) = cont([n / 0], x)", "division by zero");
    expect_refusal("aten::f(x, y, n) = cont([n * 4611686018427387904], x)", "overflow");
    expect_refusal("aten::f(x, y, n) = cont([0 - n], x)", "cannot be");
    expect_refusal("aten::f(x, y, n) = cont(repeat(1, 17), x)", "dimensions");
    expect_refusal("aten::f(x, y, n) = cont(repeat(1, 33), x)", "too long");
    expect_refusal("aten::f(x, y, n) = cont([sizes(x)[3]], x)", "there is not");
    expect_refusal("aten::f(x, y, n) = cont(slice(sizes(x), 2, 1), x)", "out of range");
    expect_refusal("aten::f(x, y, n) = cont(sizes(x) + sizes([1, 2]), x)", "a tensor");
    expect_refusal("aten::f(x, y, n) = cont(sizes(x) + [1, 2], x)", "different lengths");
    expect_refusal("aten::f(x, y, n) = cont([*n], x)", "something else");
    expect_refusal("aten::f(x, y, n) = n", "no tensor");
    expect_refusal("aten::f(x, y, n) = ordered(sizes(x), [0, 0, 1], x)", "order");
    expect_refusal("aten::f(x, y, n) = aten::one(undefined)", "undefined");
    expect_refusal("aten::f(x, y, n) = aten::two(x, y)", "several results");
    expect_refusal("aten::f(x, y, n) = aten::two(x, y)[2]", "no such result");
    expect_refusal("aten::f(x, y) = x", "more arguments");
    expect_refusal("aten::f(x, y, n, m) = cont([m], x)", "left out");
}

Test(ops_meta, aliases_are_those_of_the_operator)
{
    static const struct {
        const char *line;
        uint8_t alias;
        uint32_t input;
    } cases[] = {
        {"aten::f(x, y, n) = y", DT_ALIAS_IN_PLACE, 1},
        {"aten::f(x, ...) = aten::view(x)", DT_ALIAS_VIEW, 0},
        {"aten::f(x, y, n) = aten::view(aten::view(y))", DT_ALIAS_VIEW, 1},
        {"aten::f(x, y, n) = aten::view(aten::one(y))", DT_ALIAS_FRESH, 0},
        {"aten::f(x, y, n) = aten::two(x, y)[1]", DT_ALIAS_FRESH, 0},
        {"aten::f(x, y, n) = undefined", DT_ALIAS_NONE, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_ops_answer_t got;
        dt_error_t err = {0};
        cr_assert_eq(answer("any", cases[i].line, &seven, &got, &err), DT_OK, "%s", err.text);
        cr_assert_eq(got.count, 1);
        cr_assert_eq(got.outputs[0].alias, cases[i].alias, "%s", cases[i].line);
        cr_assert_eq(got.outputs[0].input, cases[i].input, "%s", cases[i].line);
    }
}

Test(ops_meta, numbers_that_are_not_known_are_passed_on_but_not_counted_with)
{
    const dt_value_t dynamic = {.tag = DT_VALUE_DYNAMIC};
    dt_ops_answer_t got;
    dt_error_t err = {0};
    cr_assert_eq(answer("cpu", "aten::f(x, y, n) = aten::one(x, n)", &dynamic, &got, &err), DT_OK);
    cr_assert_eq(answer("cpu", "aten::f(x, y, n) = cont([n], x)", &dynamic, &got, &err),
                 DT_ERR_AGAIN);
}

Test(ops_meta, the_first_line_that_holds_answers_on_the_devices_it_is_for)
{
    const dt_ops_line_t lines[] = {{1, "cpu", "aten::f(n=3) = cont([n], int8) if n == 3"},
                                   {2, "any", "aten::f(n=3) = cont([n, n], int8)"}};
    const dt_value_t four = {.tag = DT_VALUE_INT, .number = 4},
                     left_out = {.tag = DT_VALUE_DEFAULT};
    dt_ops_question_t question = {.name = "aten::f"};
    dt_ops_asker_t asker = {.ask = ask, .kind = "cpu"};
    dt_ops_rules_t *rules;
    dt_ops_answer_t got;
    dt_error_t err = {0};
    cr_assert_eq(dt_ops_rules_read(lines, 2, &rules, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_ops_rules_answer(rules, &asker, &question, &got, &err), DT_OK);
    cr_assert_eq(got.outputs[0].meta.ndim, 1);
    cr_assert_eq(got.outputs[0].meta.dtype, DT_DTYPE_I8);
    question.args = &left_out;
    question.arg_count = 1;
    asker.kind = "cuda";
    cr_assert_eq(dt_ops_rules_answer(rules, &asker, &question, &got, &err), DT_OK);
    cr_assert_eq(got.outputs[0].meta.ndim, 2);
    question.args = &four;
    asker.kind = "cpu";
    cr_assert_eq(dt_ops_rules_answer(rules, &asker, &question, &got, &err), DT_OK);
    cr_assert_eq(got.outputs[0].meta.sizes[1], 4);
    question.name = "aten::g";
    cr_assert_eq(dt_ops_rules_answer(rules, &asker, &question, &got, &err), DT_ERR_AGAIN);
    dt_ops_rules_free(rules);
}

Test(ops_meta, what_the_asked_one_refuses_refuses_but_memory_is_told)
{
    static const dt_ops_line_t lines[] = {{1, "any", "aten::f(x) = aten::g(x)"}};
    const dt_value_t arg = {.tag = DT_VALUE_TENSOR, .id = 1};
    const dt_meta_t input = meta_of(DT_DTYPE_F32, 0, NULL);
    const dt_ops_question_t question = {"aten::f", &arg, 1, 1, &input};
    dt_ops_rules_t *rules;
    dt_ops_answer_t got;
    dt_error_t err = {0};
    cr_assert_eq(dt_ops_rules_read(lines, 1, &rules, &err), DT_OK);
    for (int i = 0; i < 3; i++) {
        dt_status_t told = (const dt_status_t[]){DT_ERR_INVALID, DT_ERR_NOT_FOUND, DT_ERR_NOMEM}[i];
        const dt_ops_asker_t asker = {.ask = ask, .arg = &told, .kind = "cpu"};
        cr_assert_eq(dt_ops_rules_answer(rules, &asker, &question, &got, &err),
                     i < 2 ? DT_ERR_AGAIN : DT_ERR_NOMEM);
    }
    const dt_ops_question_t lying = {"aten::f", &arg, 1, 0, NULL};
    const dt_ops_asker_t asker = {.ask = ask, .kind = "cpu"};
    cr_assert_eq(dt_ops_rules_answer(rules, &asker, &lying, &got, &err), DT_ERR_AGAIN);
    dt_ops_rules_free(rules);
}

/* ---- memory formats ---- */

Test(ops_meta, formats_are_read_as_ATen_reads_them)
{
    static const struct {
        int64_t sizes[4], strides[4];
        int suggests, is_dense, is_clear; /* channels last */
    } cases[] = {
        {{2, 3, 4, 5}, {60, 20, 5, 1}, 0, 1, 1},  {{2, 3, 4, 5}, {60, 1, 15, 3}, 1, 1, 1},
        {{2, 3, 4, 5}, {120, 2, 30, 6}, 1, 0, 1}, {{2, 1, 4, 5}, {20, 1, 5, 1}, 1, 1, 0},
        {{2, 3, 1, 1}, {3, 1, 1, 1}, 0, 1, 1},    {{2, 3, 1, 1}, {3, 1, 3, 3}, 1, 1, 0},
        {{2, 3, 4, 5}, {0, 20, 5, 1}, 0, 0, 1},   {{0, 3, 4, 5}, {60, 1, 15, 3}, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_ops_value_t x = {.kind = DT_OPS_VALUE_TENSOR}, got = {0};
        const char *why;
        cr_assert_eq(
            dt_meta_set(&x.meta, DT_DTYPE_F32, 4, cases[i].sizes, cases[i].strides, 0, NULL),
            DT_OK);
        cr_assert(dt_ops_builtin_apply(DT_OPS_BUILTIN_SUGGESTED, &x, 1, &got, &why));
        cr_assert_eq(got.meta.strides[1] == 1 && got.meta.strides[3] == cases[i].sizes[1],
                     cases[i].suggests, "suggested of case %zu", i);
        cr_assert(dt_ops_builtin_apply(DT_OPS_BUILTIN_IS_DENSE, &x, 1, &got, &why));
        cr_assert_eq(got.number, cases[i].is_dense, "is_dense of case %zu", i);
        cr_assert(dt_ops_builtin_apply(DT_OPS_BUILTIN_IS_CLEAR, &x, 1, &got, &why));
        cr_assert_eq(got.number, cases[i].is_clear, "is_clear of case %zu", i);
    }
}
