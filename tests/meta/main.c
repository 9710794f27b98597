/* usage: meta BACKENDS [SETS [OVERLOAD...]]
 * BACKENDS: folder with dtorch-backend-torch.so. SETS of arguments for each row, 300 if not given.
 * Prints a line a rule: sets that it told exactly, refused, told although the operator then raised
 * an error, told wrongly; and last "meta: N passed, N failed". A rule without a row fails, and
 * so does one that tells nothing. */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/execute.h"
#include "meta.h"
#include "ops/meta.h"

#define SHOWN_MAX 3

typedef struct tally {
    uint32_t exact, refused, raised, wrong;
    uint32_t by_meta; /* exact ones that the Meta kernel tells too */
    uint32_t skipped; /* the operator raised, and nobody told anything */
    char why[200];    /* of the last refusal where the operator ran */
} tally_t;

static void *memory_alloc(void *arg, size_t size)
{
    (void)arg;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static const dt_backend_memory_t memory = {.alloc = memory_alloc, .release = free};

static dt_status_t open_torch(const char *dir, dt_loader_run_t *run, dt_gen_t *g, dt_error_t *err)
{
    const dt_backend_options_t options = {.struct_size = sizeof options,
                                          .spec = "",
                                          .root = "",
                                          .seed = "rules",
                                          .faults = "",
                                          .library = ""};
    dt_backend_device_options_t device = {
        .struct_size = sizeof device, .memory = &memory, .threads = 1};
    DT_TRY(dt_device_execute_open("torch", &dir, 1, &options, run, err));
    DT_TRY(dt_loader_update(run, err));
    if (run->count == 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "torch has no device here");
    device.info = &run->devices[0];
    g->table = &run->table;
    return run->table.device_open(run->ctx, &device, &g->device, err);
}

/* ---- asking ---- */

static dt_status_t ask(void *arg, const dt_ops_question_t *question, dt_ops_answer_t *ret_answer,
                       dt_error_t *err)
{
    const dt_gen_t *g = arg;
    dt_backend_output_t outputs[DT_OPS_RESULT_MAX];
    void *op;
    DT_TRY(g->table->op_find(g->device, question->name, &op, err));
    DT_TRY(g->table->op_infer(g->device, op, question->args, question->arg_count, question->inputs,
                              question->input_count, outputs, DT_OPS_RESULT_MAX, &ret_answer->count,
                              err));
    for (uint32_t i = 0; i < ret_answer->count; i++)
        ret_answer->outputs[i] =
            (dt_ops_output_t){outputs[i].alias, outputs[i].input, outputs[i].meta};
    return DT_OK;
}

/* With strides whatever the class. */
static void print_meta(const dt_meta_t *meta, char *text, size_t size)
{
    dt_meta_t shown = *meta;
    shown.layout = DT_META_EXPLICIT | (meta->layout & ~DT_META_CLASS_MASK);
    dt_meta_print(meta->layout == DT_META_CONTIGUOUS ? meta : &shown, text, size);
}

static void describe(const dt_gen_t *g, const char *name, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s(", name);
    uint32_t tensor = 0;
    for (uint32_t i = 0; i < g->arg_count && at < size; i++) {
        const dt_value_t *arg = &g->args[i];
        dt_backend_tensor_t info;
        char meta[128] = "";
        dt_error_t err;
        if (arg->tag == DT_VALUE_TENSOR) {
            if (g->table->tensor_info(g->device, g->tensors[tensor++], &info, &err) == DT_OK)
                print_meta(&info.meta, meta, sizeof meta);
        } else if (arg->tag == DT_VALUE_INTS) {
            size_t k = (size_t)snprintf(meta, sizeof meta, "[");
            for (uint32_t j = 0; j < arg->count && k < sizeof meta - 24; j++)
                k += (size_t)snprintf(meta + k, sizeof meta - k, "%s%lld", j ? " " : "",
                                      (long long)arg->ints[j]);
            (void)snprintf(meta + k, sizeof meta - k, "]");
        } else if (arg->tag == DT_VALUE_INT || arg->tag == DT_VALUE_DTYPE) {
            (void)snprintf(meta, sizeof meta, "%lld", (long long)arg->number);
        } else if (arg->tag == DT_VALUE_DOUBLE) {
            (void)snprintf(meta, sizeof meta, "%g", arg->real);
        } else {
            (void)snprintf(meta, sizeof meta, "%s",
                           arg->tag == DT_VALUE_TRUE    ? "true"
                           : arg->tag == DT_VALUE_FALSE ? "false"
                           : arg->tag == DT_VALUE_NONE  ? "none"
                                                        : "-");
        }
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", meta);
    }
}

/* ---- the truth ---- */

static void alias_of(const dt_gen_t *g, void *result, const dt_backend_tensor_t *info,
                     dt_ops_output_t *to)
{
    dt_error_t err;
    to->alias = DT_ALIAS_FRESH;
    to->input = 0;
    for (uint32_t i = 0; i < g->tensor_count && to->alias == DT_ALIAS_FRESH; i++) {
        dt_backend_tensor_t input;
        bool is_same = result == g->tensors[i];
        if (!is_same && (g->table->tensor_info(g->device, g->tensors[i], &input, &err) != DT_OK ||
                         input.storage != info->storage))
            continue;
        to->alias = is_same ? DT_ALIAS_IN_PLACE : DT_ALIAS_VIEW;
        to->input = i;
    }
}

/* Kernels of LibTorch die of shapes that nobody should give them, on one CPU and not on another:
 * such a set counts as one that raised. */
static sigjmp_buf died;

static void on_signal(int signo)
{
    siglongjmp(died, signo);
}

static void catch_signals(void)
{
    static uint8_t stack[1 << 16];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER};
    dt_check(sigaltstack(&other, NULL) == 0);
    dt_check(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGFPE, &action, NULL) == 0 &&
             sigaction(SIGBUS, &action, NULL) == 0);
}

static dt_status_t execute_guarded(const dt_gen_t *g, void *op, void **ret_results,
                                   uint32_t *ret_count, dt_error_t *err)
{
    static void *undo;
    uint32_t count;
    if (sigsetjmp(died, 1) == 0)
        return g->table->op_execute(g->device, op, g->args, g->arg_count, ret_results,
                                    DT_OPS_RESULT_MAX, ret_count, err);
    /* a call that is refused empties what the dead one left on the backend's stack */
    if (g->table->op_find(g->device, "aten::neg", &undo, err) == DT_OK)
        (void)g->table->op_execute(g->device, undo, NULL, 0, ret_results, 1, &count, err);
    return dt_fail(err, DT_ERR_DEVICE, "dt", 0, "the kernel died");
}

/* Execute. False: the operator raised. */
static bool execute(const dt_gen_t *g, const char *name, dt_ops_answer_t *ret_truth,
                    dt_error_t *err)
{
    void *results[DT_OPS_RESULT_MAX], *op;
    bool is_right = true;
    if (g->table->op_find(g->device, name, &op, err) != DT_OK ||
        execute_guarded(g, op, results, &ret_truth->count, err) != DT_OK)
        return false;
    for (uint32_t i = 0; i < ret_truth->count; i++) {
        dt_ops_output_t *out = &ret_truth->outputs[i];
        dt_backend_tensor_t info;
        memset(out, 0, sizeof *out);
        out->alias = DT_ALIAS_NONE;
        if (!results[i])
            continue;
        is_right &= g->table->tensor_info(g->device, results[i], &info, err) == DT_OK;
        out->meta = info.meta;
        alias_of(g, results[i], &info, out);
        g->table->tensor_free(g->device, results[i]);
    }
    return is_right;
}

static bool is_equal(const dt_ops_answer_t *said, const dt_ops_answer_t *truth, char *text,
                     size_t size)
{
    if (said->count != truth->count) {
        (void)snprintf(text, size, "%u results, not %u", said->count, truth->count);
        return false;
    }
    for (uint32_t i = 0; i < said->count; i++) {
        const dt_ops_output_t *a = &said->outputs[i], *b = &truth->outputs[i];
        char left[160], right[160];
        bool has_input = b->alias == DT_ALIAS_VIEW || b->alias == DT_ALIAS_IN_PLACE;
        if (a->alias == b->alias && (!has_input || a->input == b->input) &&
            (a->alias == DT_ALIAS_NONE || dt_meta_equal(&a->meta, &b->meta)))
            continue;
        print_meta(&a->meta, left, sizeof left);
        print_meta(&b->meta, right, sizeof right);
        (void)snprintf(text, size, "result %u: %s (alias %u of %u), it is %s (alias %u of %u)", i,
                       left, a->alias, a->input, right, b->alias, b->input);
        return false;
    }
    return true;
}

/* ---- one set of arguments ---- */

static bool make_question(const dt_gen_t *g, const char *name, dt_meta_t *metas,
                          dt_ops_question_t *ret_question)
{
    dt_error_t err;
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        dt_backend_tensor_t info;
        if (!g->tensors[i] || g->table->tensor_info(g->device, g->tensors[i], &info, &err) != DT_OK)
            return false;
        metas[i] = info.meta;
    }
    *ret_question = (dt_ops_question_t){.name = name,
                                        .args = g->args,
                                        .arg_count = g->arg_count,
                                        .inputs = metas,
                                        .input_count = g->tensor_count};
    return true;
}

static void run_set(const dt_ops_rules_t *rules, dt_gen_t *g, const dt_rules_row_t *row,
                    uint64_t seed, tally_t *tally)
{
    static dt_ops_answer_t said, meta, truth;
    dt_meta_t metas[DT_RULES_TENSOR_MAX];
    dt_ops_question_t question;
    dt_ops_asker_t asker = {.ask = ask, .arg = g, .kind = "cpu"};
    dt_error_t err = {0}, meta_err = {0}, raised = {0};
    char text[512], difference[400];
    dt_gen_begin(g, seed);
    row->make(g, row->how);
    if (g->is_broken || !make_question(g, row->name, metas, &question)) {
        dt_gen_end(g);
        return;
    }
    describe(g, row->name, text, sizeof text); /* before it writes in place */
    dt_status_t status = dt_ops_rules_answer(rules, &asker, &question, &said, &err);
    bool has_meta = ask(g, &question, &meta, &meta_err) == DT_OK;
    if (!execute(g, row->name, &truth, &raised)) {
        tally->raised += status == DT_OK;
        tally->skipped += status != DT_OK;
    } else if (status != DT_OK) {
        tally->refused++;
        (void)snprintf(tally->why, sizeof tally->why, "%.190s", err.text);
    } else if (is_equal(&said, &truth, difference, sizeof difference)) {
        tally->exact++;
        tally->by_meta += has_meta && is_equal(&meta, &truth, difference, sizeof difference);
    } else if (tally->wrong++ < SHOWN_MAX) {
        printf("  wrong (seed %llu): %s): %s\n", (unsigned long long)seed, text, difference);
    }
    if (getenv("DT_RULES_SHOW") && *raised.text)
        printf("  raises: %s): %s\n", text, raised.text);
    dt_gen_end(g);
}

/* ---- all ---- */

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 3; i < argc; i++)
        if (strstr(name, argv[i]))
            return true;
    return argc <= 3;
}

static bool run_rule(const dt_ops_rules_t *rules, const char *name, dt_gen_t *g, uint32_t sets)
{
    uint32_t row_count;
    const dt_rules_row_t *rows = dt_rules_rows(&row_count);
    tally_t tally = {.why = ""};
    for (uint32_t i = 0; i < row_count; i++)
        for (uint32_t k = 0; k < sets && strcmp(rows[i].name, name) == 0; k++)
            run_set(rules, g, &rows[i], (uint64_t)i << 32 | k, &tally);
    bool is_right = tally.wrong == 0 && tally.exact > 0;
    printf("%-52s %5u exact %4u refused %4u raised %4u skipped %3u wrong%s%s%s\n", name,
           tally.exact, tally.refused, tally.raised, tally.skipped, tally.wrong,
           tally.by_meta && tally.by_meta == tally.exact ? "   (Meta tells it too)" : "",
           is_right ? "" : "   FAILED", tally.exact + tally.refused == 0 ? ": no set ran" : "");
    if (tally.refused > tally.exact / 4)
        printf("  refused: %s\n", tally.why);
    return is_right;
}

int main(int argc, char **argv)
{
    static dt_loader_run_t run; /* large */
    static dt_gen_t g;
    dt_error_t err = {0};
    dt_ops_rules_t *rules;
    uint32_t passed = 0, failed = 0;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    catch_signals();
    long sets = argc > 2 ? strtol(argv[2], NULL, 10) : 300;
    if (argc < 2 || sets <= 0) {
        (void)fprintf(stderr, "usage: meta BACKENDS [SETS [OVERLOAD...]]\n");
        return 64;
    }
    if (dt_ops_rules_create(&rules, &err) != DT_OK ||
        open_torch(argv[1], &run, &g, &err) != DT_OK) {
        (void)fprintf(stderr, "meta: %s\n", err.text);
        return 69;
    }
    for (uint32_t i = 0; i < dt_ops_rules_count(rules); i++) {
        const char *name = dt_ops_rules_name(rules, i);
        if (!is_wanted(name, argc, argv))
            continue;
        bool is_right = run_rule(rules, name, &g, (uint32_t)sets);
        passed += is_right;
        failed += !is_right;
    }
    g.table->device_close(g.device);
    dt_ops_rules_free(rules);
    printf("meta: %u passed, %u failed\n", passed, failed);
    return failed > 0;
}
