/* usage: conformance BACKENDS NAME[:SPEC]
 * BACKENDS: folder with dtorch-backend-torch.so, and with dtorch-backend-NAME.so if NAME is not
 * built in. Prints a line an operator and, last, "conformance-NAME: N passed, N failed". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "device/execute.h"

#define SHOWN_MAX 5 /* differences of one operator that are printed */

static void *memory_alloc(void *arg, size_t size)
{
    (void)arg;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static const dt_backend_memory_t memory = {.alloc = memory_alloc, .release = free};

static dt_status_t open_backend(const char *dir, const char *name, const char *spec,
                                dt_loader_run_t *run, dt_conf_backend_t *ret_backend,
                                dt_error_t *err)
{
    const dt_backend_options_t options = {.struct_size = sizeof options,
                                          .spec = spec,
                                          .root = "",
                                          .seed = "conformance",
                                          .faults = "",
                                          .library = ""};
    dt_backend_device_options_t device = {
        .struct_size = sizeof device, .memory = &memory, .threads = 1};
    DT_TRY(dt_device_execute_open(name, &dir, 1, &options, run, err));
    DT_TRY(dt_loader_update(run, err));
    if (run->count == 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "%s has no device here", name);
    device.info = &run->devices[0];
    DT_TRY(run->table.device_open(run->ctx, &device, &ret_backend->device, err));
    ret_backend->table = &run->table;
    return DT_OK;
}

/* Sums over cases. */
typedef struct tally {
    uint32_t same, refused, absent, different;
} tally_t;

static void count_verdict(tally_t *tally, dt_conf_verdict_t verdict)
{
    tally->same += verdict == DT_CONF_SAME;
    tally->refused += verdict == DT_CONF_BOTH_REFUSE;
    tally->absent += verdict == DT_CONF_ABSENT;
    tally->different += verdict == DT_CONF_DIFFERENT;
}

/* The k-th choice of dtypes; false when there are no more. */
static bool choose_dtypes(const dt_conf_row_t *row, uint32_t tensor_count, size_t k, char *dtypes)
{
    size_t kinds = strlen(row->dtypes);
    for (uint32_t i = 0; i < DT_CONF_TENSOR_MAX; i++) {
        dtypes[i] = row->dtypes[k % kinds];
        if (row->is_mixed && i < tensor_count)
            k /= kinds;
    }
    return row->is_mixed ? k == 0 : k < kinds;
}

static void run_row(const dt_conf_row_t *row, const dt_conf_backend_t *tested,
                    const dt_conf_backend_t *oracle, dt_conf_report_t *report, tally_t *tally)
{
    size_t shape_count;
    const dt_conf_shapes_t *shapes = dt_conf_shapes(&shape_count);
    for (size_t s = 0; s < shape_count; s++) {
        dt_conf_case_t one = {.row = row, .shapes = &shapes[s]};
        uint32_t tensors = 0;
        if (shapes[s].set != row->set)
            continue;
        while (tensors < DT_CONF_TENSOR_MAX && shapes[s].of[tensors])
            tensors++;
        for (size_t k = 0; choose_dtypes(row, tensors, k, one.dtypes); k++) {
            dt_conf_verdict_t verdict = dt_conf_run(&one, tested, oracle, report);
            char text[256];
            count_verdict(tally, verdict);
            if (verdict != DT_CONF_DIFFERENT || tally->different > SHOWN_MAX)
                continue;
            dt_conf_print_case(&one, text, sizeof text);
            printf("  differs: %s: %s\n", text, report->text);
        }
    }
}

static void print_operator(const char *name, const tally_t *tally, const dt_conf_report_t *report)
{
    if (tally->absent > 0) {
        printf("%-28s not there\n", name);
        return;
    }
    printf("%-28s %5u equal %4u refused alike %3u differ   max error f32 %g f64 %g epsilon%s\n",
           name, tally->same, tally->refused, tally->different, report->error[0], report->error[1],
           report->has_inferred ? "" : "   not inferred");
}

static tally_t run_all(const dt_conf_backend_t *tested, const dt_conf_backend_t *oracle)
{
    size_t row_count;
    const dt_conf_row_t *rows = dt_conf_rows(&row_count);
    tally_t total = {0};
    for (size_t i = 0; i < row_count;) {
        const char *name = rows[i].op;
        dt_conf_report_t report = {0};
        tally_t tally = {0};
        for (; i < row_count && strcmp(rows[i].op, name) == 0; i++)
            run_row(&rows[i], tested, oracle, &report, &tally);
        print_operator(name, &tally, &report);
        total.same += tally.same;
        total.refused += tally.refused;
        total.absent += tally.absent;
        total.different += tally.different;
    }
    return total;
}

int main(int argc, char **argv)
{
    static dt_loader_run_t runs[2]; /* large */
    dt_conf_backend_t tested, oracle;
    dt_error_t err = {0};
    tally_t total;
    char name[DT_LOADER_NAME_MAX];
    if (argc != 3 || strcspn(argv[2], ":") >= sizeof name) {
        (void)fprintf(stderr, "usage: conformance BACKENDS NAME[:SPEC]\n");
        return 64;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(argv[2], ":"), argv[2]);
    if (open_backend(argv[1], "torch", "", &runs[0], &oracle, &err) != DT_OK ||
        open_backend(argv[1], name, strchr(argv[2], ':') ? strchr(argv[2], ':') + 1 : "", &runs[1],
                     &tested, &err) != DT_OK) {
        (void)fprintf(stderr, "conformance: %s\n", err.text);
        return 69;
    }
    total = run_all(&tested, &oracle);
    tested.table->device_close(tested.device);
    oracle.table->device_close(oracle.device);
    printf("conformance-%s: %u passed, %u failed, %u skipped\n", name, total.same + total.refused,
           total.different, total.absent);
    return total.different > 0;
}
