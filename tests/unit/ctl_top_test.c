#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/text.h"
#include "client/ctl/top.h"

/* Two jobs on two devices of one node, looked at twice. */
#define SECOND_NS INT64_C(1000000000)

static dt_ctl_t ctl;
static Dtorch__V1__Job jobs[2];
static Dtorch__V1__Job *job_items[] = {&jobs[0], &jobs[1]};
static dt_ctl_jobs_t all = {job_items, 2};
static Dtorch__V1__VdevBinding bindings[3];
static Dtorch__V1__VdevBinding *first[] = {&bindings[0], &bindings[1]}, *second[] = {&bindings[2]};
static Dtorch__V1__Node node = DTORCH__V1__NODE__INIT;
static Dtorch__V1__NodeDevice devices[2];
static Dtorch__V1__NodeDevice *device_items[] = {&devices[0], &devices[1]};
static Dtorch__V1__Device hardware[2];
static const Dtorch__V1__Node *node_items[] = {&node};
static dt_ctl_nodes_t nodes = {.items = node_items, .count = 1};
static dt_ctl_top_look_t before;
static dt_ctl_top_view_t view;
static char *caught;
static size_t caught_size;
static char text_gpu001[] = "gpu001", text_id0[] = "gpu001:0", text_id1[] = "gpu001:1";
static char text_train[] = "train.py", text_evil[] = "ev\033il";

static void make_devices(void)
{
    node.name = text_gpu001;
    node.health = DTORCH__V1__NODE_HEALTH__NODE_OK;
    node.devices = device_items;
    node.n_devices = 2;
    for (uint32_t i = 0; i < 2; i++) {
        dtorch__v1__node_device__init(&devices[i]);
        dtorch__v1__device__init(&hardware[i]);
        devices[i].device = &hardware[i];
        devices[i].node = text_gpu001;
        devices[i].id = i == 0 ? text_id0 : text_id1;
        hardware[i].index = i;
        hardware[i].health = DTORCH__V1__DEVICE__HEALTH__OK;
        hardware[i].memory_bytes = UINT64_C(64) << 30;
    }
    hardware[1].utilization_percent = 42;
    hardware[1].memory_used_bytes = UINT64_C(16) << 30;
}

static void make_jobs(void)
{
    for (uint32_t i = 0; i < 3; i++) {
        dtorch__v1__vdev_binding__init(&bindings[i]);
        bindings[i].node = text_gpu001;
        bindings[i].device = i % 2;
    }
    for (size_t i = 0; i < 2; i++) {
        dtorch__v1__job__init(&jobs[i]);
        jobs[i].id = 7 + 5 * i;
        jobs[i].state = i == 0 ? DTORCH__V1__JOB__STATE__LIVE : DTORCH__V1__JOB__STATE__AWAY;
        jobs[i].age_ms = 60000;
    }
    jobs[0].program = text_train;
    jobs[1].program = text_evil;
    jobs[0].bindings = first;
    jobs[0].n_bindings = 2;
    jobs[1].bindings = second;
    jobs[1].n_bindings = 1;
    jobs[1].memory_bytes = UINT64_C(3) << 30;
    jobs[1].errors = 2;
}

static void start(void)
{
    ctl = (dt_ctl_t){.err = stderr};
    dt_arena_init(&ctl.pool, DT_CTL_POOL_MAX);
    ctl.output = (dt_ctl_output_t){
        .pool = &ctl.pool, .screen = {.has_legend = true}, .style = {.is_utc = true}};
    view = (dt_ctl_top_view_t){.sorted = dt_ctl_top_key_count};
    make_devices();
    make_jobs();
}

static void stop(void)
{
    dt_ctl_top_forget(&before);
    dt_arena_fini(&ctl.pool);
    free(caught);
}

TestSuite(ctl_top, .init = start, .fini = stop, .timeout = 60);

static const char *draw(const dt_ctl_top_t *top, size_t lines, bool with_devices, bool with_keys)
{
    free(caught);
    caught = NULL;
    ctl.output.screen.file = open_memstream(&caught, &caught_size);
    cr_assert(ctl.output.screen.file != NULL);
    view.lines = lines;
    view.with_devices = with_devices;
    view.with_keys = with_keys;
    int code = dt_ctl_top_draw(&ctl, top, &view);
    (void)fclose(ctl.output.screen.file);
    cr_assert_eq(code, DT_CTL_EXIT_OK);
    return caught;
}

/* Look at what there is, and remember it. */
static dt_ctl_top_t look_at(int64_t now_ns)
{
    dt_ctl_top_t top;
    dt_ctl_top_make(&ctl.pool, &all, &nodes, &before, now_ns, &top);
    dt_ctl_top_remember(&before, &top, now_ns);
    return top;
}

/* Let two seconds pass in which the first job ran 5000 operators on one and a half devices. */
static dt_ctl_top_t later(void)
{
    (void)look_at(10 * SECOND_NS);
    jobs[0].operators_per_second = 2500;
    jobs[0].device_percent = 150;
    jobs[0].bytes += 20000;
    return look_at(12 * SECOND_NS);
}

Test(ctl_top, draws_devices_with_bars_and_jobs_with_rates)
{
    dt_ctl_top_t top = later();
    ctl.output.sort = "-rate";
    cr_assert_str_eq(
        draw(&top, 0, true, false),
        "1970-01-01T00:00:00.000Z  2 jobs  2 devices  2500 operators/s  3.0 GiB held  0 B queued\n"
        "\n"
        "DEVICE    STATE             LOAD                   MEMORY  JOBS\n"
        "gpu001:1  ok     ||||......  42%  |||.......  16.0/64 GiB  7\n"
        "gpu001:0  ok     ..........   0%  ..........       64 GiB  7 12\n"
        "2 devices listed.\n"
        "\n"
        "ID  PROGRAM   STATE  DEV  OPS/S  TIME  QUEUED   MEMORY  ERRORS   AGE\n"
        " 7  train.py  live     2   2500  150%     0 B      0 B       -  60 s\n"
        "12  ev\\x1bil  away     1      0    0%     0 B  3.0 GiB       2  60 s\n"
        "2 jobs listed.\n",
        "%s", caught);
}

Test(ctl_top, has_no_rates_of_what_the_controller_does_not_know)
{
    jobs[0].operators_per_second = jobs[0].device_percent = -1;
    dt_ctl_top_t top = look_at(SECOND_NS);
    cr_assert(top.jobs[0]->rates == NULL && top.jobs[1]->rates != NULL);
    cr_assert_eq(top.operators_per_second, 0);
}

Test(ctl_top, has_the_controllers_rates_and_the_streams_of_two_looks)
{
    dt_ctl_top_t top = later();
    const Dtorch__V1__TopRates *rates = top.jobs[0]->rates;
    cr_assert_eq(rates->operators_per_second, 2500);
    cr_assert_eq(rates->bytes_per_second, 10000);
    cr_assert_eq(rates->device_percent, 150);
    cr_assert_eq(top.jobs[1]->rates->operators_per_second, 0);
    cr_assert_eq(top.operators_per_second, 2500);
    cr_assert_eq(top.memory_bytes, UINT64_C(3) << 30);
}

Test(ctl_top, takes_no_rate_from_a_counter_that_fell)
{
    jobs[0].bytes = 900;
    (void)look_at(SECOND_NS);
    jobs[0].bytes = 100;
    dt_ctl_top_t top = look_at(2 * SECOND_NS);
    cr_assert_eq(top.jobs[0]->rates->bytes_per_second, 0);
}

Test(ctl_top, fits_the_lines_of_a_terminal)
{
    dt_ctl_top_t top = later();
    for (size_t lines = 14; lines < 40; lines++) {
        size_t count = 0;
        draw(&top, lines, true, true);
        for (const char *c = caught; *c; c++)
            count += *c == '\n';
        cr_assert_lt(count, lines + 1, "%zu lines on %zu:\n%s", count, lines, caught);
    }
}

Test(ctl_top, shows_keys_and_hides_devices_when_asked)
{
    dt_ctl_top_t top = later();
    draw(&top, 24, false, true);
    cr_assert(strstr(caught, "q quit\n") && !strstr(caught, "DEVICE"), "%s", caught);
    for (const char *line = caught; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        cr_assert_leq(len, 90, "%.*s", (int)len, line);
        line += len + 1;
    }
}

/* The columns of the widest line. */
static size_t widest(const char *text)
{
    size_t most = 0;
    while (*text != '\0') {
        size_t len = strcspn(text, "\n"),
               columns = dt_ctl_columns(dt_ctl_copy(&ctl.pool, text, len));
        most = columns > most ? columns : most;
        text += len + (text[len] == '\n');
    }
    return most;
}

Test(ctl_top, fits_the_columns_of_a_terminal_with_shorter_bars_or_none)
{
    dt_ctl_top_t top = later();
    for (size_t columns = 50; columns < 140; columns++) {
        ctl.output.screen.columns = columns;
        draw(&top, 24, true, true);
        cr_assert_leq(widest(caught), columns, "%zu columns:\n%s", columns, caught);
        cr_assert_not_null(strstr(caught, "16.0/64 GiB"), "%zu columns:\n%s", columns, caught);
        cr_assert_eq(strstr(caught, "||") != NULL, columns >= 58, "%zu columns:\n%s", columns,
                     caught);
    }
}

Test(ctl_top, says_which_key_sorts)
{
    dt_ctl_top_t top = later();
    view.sorted = 2;
    cr_assert_not_null(strstr(draw(&top, 24, true, true), "t time [m memory]  b queued"), "%s",
                       caught);
    ctl.output.screen.columns = 60;
    cr_assert_not_null(strstr(draw(&top, 24, true, true), "sort: o t [m] b e"), "%s", caught);
}

Test(ctl_top, shows_a_jobs_operators_in_place_of_the_devices)
{
    char mm[] = "aten::mm", add[] = "aten::add";
    Dtorch__V1__OperatorStats stats[] = {DTORCH__V1__OPERATOR_STATS__INIT,
                                         DTORCH__V1__OPERATOR_STATS__INIT};
    Dtorch__V1__OperatorStats *operators[] = {&stats[0], &stats[1]};
    Dtorch__V1__JobDetail detail = DTORCH__V1__JOB_DETAIL__INIT;
    dt_ctl_top_t top = later();
    stats[0].name = add;
    stats[0].device_ns = 1000;
    stats[1].name = mm;
    stats[1].device_ns = 3000;
    detail.job = &jobs[0];
    detail.operators = operators;
    detail.n_operators = 2;
    view.detail = &detail;
    draw(&top, 40, true, true);
    const char *most = strstr(caught, "aten::mm"), *less = strstr(caught, "aten::add");
    cr_assert(most && less && most < less, "%s", caught); /* by time */
    cr_assert_not_null(strstr(caught, "Operators of job 7, train.py"), "%s", caught);
    cr_assert_not_null(strstr(caught, "75%"), "%s", caught);
    cr_assert(!strstr(caught, "DEVICE") && strstr(caught, "2 jobs listed."), "%s", caught);
}

Test(ctl_top, makes_what_programs_call_themselves_harmless)
{
    dt_ctl_top_t top = later();
    cr_assert_null(strchr(draw(&top, 0, true, false), '\033'), "%s", caught);
    cr_assert_not_null(strstr(caught, "ev\\x1bil"), "%s", caught);
}

Test(ctl_top, bars_show_little_as_something_and_too_much_as_all)
{
    cr_assert_str_eq(dt_ctl_bar(&ctl.pool, 0, 100, 4), "....");
    cr_assert_str_eq(dt_ctl_bar(&ctl.pool, 1, 1000, 4), "|...");
    cr_assert_str_eq(dt_ctl_bar(&ctl.pool, 50, 100, 4), "||..");
    cr_assert_str_eq(dt_ctl_bar(&ctl.pool, 500, 100, 4), "||||");
    cr_assert_str_eq(dt_ctl_bar(&ctl.pool, 5, 0, 4), "|...");
}

Test(ctl_top, counts_are_plain_below_a_hundred_thousand)
{
    cr_assert_str_eq(dt_ctl_count(&ctl.pool, 99999), "99999");
    cr_assert_str_eq(dt_ctl_count(&ctl.pool, 100000), "100 k");
    cr_assert_str_eq(dt_ctl_count(&ctl.pool, 999600), "1.0 M");
    cr_assert_str_eq(dt_ctl_count(&ctl.pool, 1340000), "1.3 M");
    cr_assert_str_eq(dt_ctl_count(&ctl.pool, UINT64_MAX), "18 E");
}

/* ---- job list ---- */

Test(ctl_top, job_list_says_why_a_job_is_away)
{
    dt_error_t error = {.text = ""};
    jobs[1].grace_left_ms = 540000;
    ctl.output.screen.file = open_memstream(&caught, &caught_size);
    cr_assert(ctl.output.screen.file != NULL);
    dt_status_t status = dt_ctl_list_print(&dt_ctl_job_list_type, (const void *)job_items, 2, NULL,
                                           &ctl.output, &error);
    (void)fclose(ctl.output.screen.file);
    cr_assert_eq(status, DT_OK, "%s", error.text);
    cr_assert_str_eq(
        caught,
        "ID  PROGRAM   STATE  DEVICES  OPERATORS  QUEUED   MEMORY  ERRORS   AGE  REASON\n"
        " 7  train.py  live         2          0     0 B      0 B       -  60 s  -\n"
        "12  ev\\x1bil  away         1          0     0 B  3.0 GiB       2  60 s  program not "
        "connected, ends in 9.0 min\n"
        "2 jobs listed.\n",
        "%s", caught);
}
