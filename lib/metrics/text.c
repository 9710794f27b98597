#include "metrics/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/strings.h"

static bool name_is_good(const char *name)
{
    if (!*name || (*name >= '0' && *name <= '9'))
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
           strlen(name);
}

/* Keep the first failure. */
static void note(dt_metrics_text_t *text, dt_status_t status)
{
    if (text->status == DT_OK)
        text->status = status;
}

static void put(dt_metrics_text_t *text, const char *piece)
{
    note(text, dt_buf_append_str(&text->buf, piece));
}

void dt_metrics_text_init(dt_metrics_text_t *text)
{
    *text = (dt_metrics_text_t){.status = DT_OK};
    dt_buf_init(&text->buf, DT_METRICS_TEXT_MAX);
}

void dt_metrics_text_reset(dt_metrics_text_t *text)
{
    dt_buf_reset(&text->buf);
    text->status = DT_OK;
    text->family[0] = '\0';
}

void dt_metrics_text_fini(dt_metrics_text_t *text)
{
    if (text)
        dt_buf_fini(&text->buf);
}

dt_status_t dt_metrics_text_status(const dt_metrics_text_t *text)
{
    return text->status;
}

/* HELP takes \\ and \n, a label value takes \" too; both come through here. */
static void put_escaped(dt_metrics_text_t *text, const char *value, bool is_label)
{
    for (; *value; value++) {
        if (*value == '\\')
            put(text, "\\\\");
        else if (*value == '\n')
            put(text, "\\n");
        else if (*value == '"' && is_label)
            put(text, "\\\"");
        else
            note(text, dt_buf_append_byte(&text->buf, (uint8_t)*value));
    }
}

void dt_metrics_family(dt_metrics_text_t *text, const char *name, dt_metrics_type_t type,
                       const char *help)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    dt_check(name_is_good(name));
    dt_check(dt_str_copy(text->family, sizeof text->family, name));
    note(text, dt_buf_printf(&text->buf, "# HELP %s ", name));
    put_escaped(text, help, false);
    note(text, dt_buf_printf(&text->buf, "\n# TYPE %s %s\n", name, types[type]));
}

/* Write name{labels}, with `extra` behind the others; the value is the caller's. */
static void put_series(dt_metrics_text_t *text, const char *suffix,
                       const dt_metrics_label_t *labels, const dt_metrics_label_t *extra)
{
    const char *before = "{";
    dt_check(text->family[0]);
    put(text, text->family);
    put(text, suffix);
    for (; labels && labels->name; labels++) {
        dt_check(name_is_good(labels->name));
        note(text, dt_buf_printf(&text->buf, "%s%s=\"", before, labels->name));
        put_escaped(text, labels->value ? labels->value : "", true);
        put(text, "\"");
        before = ",";
    }
    if (extra) {
        note(text, dt_buf_printf(&text->buf, "%s%s=\"%s\"", before, extra->name, extra->value));
        before = ",";
    }
    put(text, *before == ',' ? "} " : " ");
}

void dt_metrics_integer(dt_metrics_text_t *text, const dt_metrics_label_t *labels, int64_t value)
{
    put_series(text, "", labels, NULL);
    note(text, dt_buf_printf(&text->buf, "%" PRId64 "\n", value));
}

static void put_real(dt_metrics_text_t *text, double value)
{
    if (isnan(value))
        put(text, "NaN\n");
    else if (isinf(value))
        put(text, value > 0 ? "+Inf\n" : "-Inf\n");
    else
        note(text, dt_buf_printf(&text->buf, "%.9g\n", value));
}

void dt_metrics_real(dt_metrics_text_t *text, const dt_metrics_label_t *labels, double value)
{
    put_series(text, "", labels, NULL);
    put_real(text, value);
}

void dt_metrics_seconds(dt_metrics_text_t *text, const dt_metrics_label_t *labels,
                        const int64_t *bounds_ns, const uint64_t *counts, size_t count,
                        uint64_t sum_ns)
{
    uint64_t total = 0;
    dt_check(count >= 1);
    for (size_t i = 0; i < count; i++) {
        char bound[32] = "+Inf";
        total += counts[i];
        if (i + 1 < count)
            (void)snprintf(bound, sizeof bound, "%.9g", (double)bounds_ns[i] / DT_CLOCK_SECOND_NS);
        put_series(text, "_bucket", labels, &(dt_metrics_label_t){"le", bound});
        note(text, dt_buf_printf(&text->buf, "%" PRIu64 "\n", total));
    }
    put_series(text, "_sum", labels, NULL);
    put_real(text, (double)sum_ns / DT_CLOCK_SECOND_NS);
    put_series(text, "_count", labels, NULL);
    note(text, dt_buf_printf(&text->buf, "%" PRIu64 "\n", total));
}

void dt_metrics_build_info(dt_metrics_text_t *text, const char *program, const char *version,
                           const char *protocol)
{
    dt_metrics_family(text, "dtorch_build_info", DT_METRICS_GAUGE,
                      "Which program answers here; always 1.");
    dt_metrics_integer(
        text, DT_METRICS_LABELS({"program", program}, {"version", version}, {"protocol", protocol}),
        1);
}
