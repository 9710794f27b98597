/* Prometheus text, version 0.0.4: families with HELP and TYPE, samples with escaped label values.
 * A text is a bounded buffer that is written front to back; the first failure sticks and is told by
 * dt_metrics_text_status(), so the calls between need no check.
 * Names and label names are ours and are not escaped; a bad one is a bug (dt_check). */
#ifndef DT_METRICS_TEXT_H
#define DT_METRICS_TEXT_H
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

#define DT_METRICS_TEXT_MAX   (1u << 20) /* bytes */
#define DT_METRICS_LABELS_MAX 8

typedef enum dt_metrics_type {
    DT_METRICS_COUNTER,
    DT_METRICS_GAUGE,
    DT_METRICS_HISTOGRAM,
} dt_metrics_type_t;

/* A label; a list of them ends with a NULL name. A NULL list: no labels. */
typedef struct dt_metrics_label {
    const char *name;
    const char *value; /* any bytes; escaped */
} dt_metrics_label_t;

/* Labels in place: DT_METRICS_LABELS({"admin", a}, {"health", h}) */
#define DT_METRICS_LABELS(...) ((const dt_metrics_label_t[]){__VA_ARGS__, {NULL, NULL}})

typedef struct dt_metrics_text {
    dt_buf_t buf;
    dt_status_t status; /* of the first failure */
    char family[64];
} dt_metrics_text_t;

void dt_metrics_text_init(dt_metrics_text_t *text);
void dt_metrics_text_reset(dt_metrics_text_t *text); /* empty it, keep the memory */
void dt_metrics_text_fini(dt_metrics_text_t *text);

/* Return DT_OK, NOMEM or LIMIT. */
dt_status_t dt_metrics_text_status(const dt_metrics_text_t *text);

/* Begin a family: HELP and TYPE. The samples that follow belong to it. */
void dt_metrics_family(dt_metrics_text_t *text, const char *name, dt_metrics_type_t type,
                       const char *help);

/* Add a sample to the family. */
void dt_metrics_integer(dt_metrics_text_t *text, const dt_metrics_label_t *labels, int64_t value);
void dt_metrics_real(dt_metrics_text_t *text, const dt_metrics_label_t *labels, double value);

/* Add a histogram: `counts[i]` values are at most `bounds[i]` and above bounds[i - 1]; the last
 * bound is +Inf whatever it says. Units: bounds and sum in ns, printed in seconds.
 * Shapes: bounds and counts have `count` entries, at least 1. */
void dt_metrics_seconds(dt_metrics_text_t *text, const dt_metrics_label_t *labels,
                        const int64_t *bounds_ns, const uint64_t *counts, size_t count,
                        uint64_t sum_ns);

/* Add what every daemon has: dtorch_build_info{program,version,protocol}. */
void dt_metrics_build_info(dt_metrics_text_t *text, const char *program, const char *version,
                           const char *protocol);

#endif
