#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "metrics/metrics.h"

TestSuite(metrics, .timeout = 60);

static const char *text_of(dt_metrics_text_t *text)
{
    const char *out = NULL;
    cr_assert_eq(dt_metrics_text_status(text), DT_OK);
    cr_assert_eq(dt_buf_text(&text->buf, &out), DT_OK);
    return out;
}

Test(metrics, writes_help_type_and_samples)
{
    dt_metrics_text_t text;
    dt_metrics_text_init(&text);
    dt_metrics_family(&text, "dtorch_nodes", DT_METRICS_GAUGE, "Nodes.");
    dt_metrics_integer(&text, DT_METRICS_LABELS({"admin", "enabled"}, {"health", "ok"}), 3);
    dt_metrics_family(&text, "dtorch_load", DT_METRICS_COUNTER, "Load.");
    dt_metrics_real(&text, NULL, 0.25);
    cr_assert_str_eq(text_of(&text), "# HELP dtorch_nodes Nodes.\n"
                                     "# TYPE dtorch_nodes gauge\n"
                                     "dtorch_nodes{admin=\"enabled\",health=\"ok\"} 3\n"
                                     "# HELP dtorch_load Load.\n"
                                     "# TYPE dtorch_load counter\n"
                                     "dtorch_load 0.25\n");
    dt_metrics_text_fini(&text);
}

Test(metrics, escapes_what_would_end_a_label_or_a_line)
{
    dt_metrics_text_t text;
    dt_metrics_text_init(&text);
    dt_metrics_family(&text, "x", DT_METRICS_GAUGE, "a\\b\n\"c\"");
    dt_metrics_integer(&text, DT_METRICS_LABELS({"l", "a\\b\n\"c\""}), 1);
    cr_assert_str_eq(text_of(&text), "# HELP x a\\\\b\\n\"c\"\n# TYPE x gauge\n"
                                     "x{l=\"a\\\\b\\n\\\"c\\\"\"} 1\n");
    dt_metrics_text_fini(&text);
}

Test(metrics, a_histogram_sums_its_buckets_up_and_ends_with_Inf)
{
    static const int64_t bounds[] = {1000000, 500000000, INT64_MAX};
    static const uint64_t counts[] = {3, 0, 2};
    dt_metrics_text_t text;
    dt_metrics_text_init(&text);
    dt_metrics_family(&text, "s", DT_METRICS_HISTOGRAM, "S.");
    dt_metrics_seconds(&text, DT_METRICS_LABELS({"k", "v"}), bounds, counts, 3, 2500000000);
    cr_assert_str_eq(text_of(&text), "# HELP s S.\n# TYPE s histogram\n"
                                     "s_bucket{k=\"v\",le=\"0.001\"} 3\n"
                                     "s_bucket{k=\"v\",le=\"0.5\"} 3\n"
                                     "s_bucket{k=\"v\",le=\"+Inf\"} 5\n"
                                     "s_sum{k=\"v\"} 2.5\ns_count{k=\"v\"} 5\n");
    dt_metrics_text_fini(&text);
}

Test(metrics, numbers_without_a_value_have_their_own_words)
{
    dt_metrics_text_t text;
    dt_metrics_text_init(&text);
    dt_metrics_family(&text, "x", DT_METRICS_GAUGE, "X.");
    dt_metrics_real(&text, NULL, NAN);
    dt_metrics_real(&text, NULL, INFINITY);
    dt_metrics_real(&text, NULL, -INFINITY);
    cr_assert_not_null(strstr(text_of(&text), "x NaN\nx +Inf\nx -Inf\n"));
    dt_metrics_text_fini(&text);
}

Test(metrics, a_text_over_its_bound_says_LIMIT_and_can_be_begun_again)
{
    dt_metrics_text_t text;
    dt_metrics_text_init(&text);
    dt_metrics_family(&text, "x", DT_METRICS_GAUGE, "X.");
    for (int i = 0; i < 200000; i++)
        dt_metrics_integer(&text, DT_METRICS_LABELS({"l", "value"}), i);
    cr_assert_eq(dt_metrics_text_status(&text), DT_ERR_LIMIT);
    dt_metrics_text_reset(&text);
    dt_metrics_build_info(&text, "dtorch-controllerd", "1.2.3", "1.0");
    cr_assert_not_null(strstr(text_of(&text), "dtorch_build_info{program=\"dtorch-controllerd\","
                                              "version=\"1.2.3\",protocol=\"1.0\"} 1\n"));
    dt_metrics_text_fini(&text);
}
