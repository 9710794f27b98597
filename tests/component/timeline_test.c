/* dtorchctl job timeline: a program that runs all the while, its trace read as strictly as JSON
 * demands, and compared with what the program did. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/ctlbeside.h"

#define OPS_A_STEP 3
#define EVENTS_MAX 200000

TestSuite(timeline, .timeout = 600);

/* ---- JSON, strictly ---- */

static const char *json_value(const char *at, int depth);

static const char *json_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

/* strspn() over megabytes, without the sanitizers' look at all of the rest each time. */
static size_t digits_at(const char *at)
{
    size_t count = 0;
    while (at[count] >= '0' && at[count] <= '9')
        count++;
    return count;
}

static const char *json_text(const char *at)
{
    if (*at++ != '"')
        return NULL;
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < ' ')
            return NULL;
        if (*at == '\\' && (!at[1] || !strchr("\"\\/bfnrtu", *++at)))
            return NULL;
    }
    return at + 1;
}

static const char *json_number(const char *at)
{
    const char *begin = at += *at == '-';
    size_t digits = digits_at(at);
    if (digits == 0 || (*begin == '0' && digits > 1))
        return NULL;
    at += digits;
    if (*at == '.') {
        digits = digits_at(++at);
        at = digits ? at + digits : NULL;
    }
    return at;
}

static const char *json_many(const char *at, char end, int depth)
{
    bool has_names = end == '}';
    at = json_space(at + 1);
    if (*at == end)
        return at + 1;
    for (;;) {
        if (has_names) {
            at = json_text(json_space(at));
            at = at ? json_space(at) : NULL;
            if (!at || *at++ != ':')
                return NULL;
        }
        at = json_value(json_space(at), depth + 1);
        at = at ? json_space(at) : NULL;
        if (!at || (*at != ',' && *at != end))
            return NULL;
        if (*at++ == end)
            return at;
    }
}

/* Behind the value at `at`; NULL: it is none. */
static const char *json_value(const char *at, int depth)
{
    if (depth > 20)
        return NULL;
    if (*at == '{' || *at == '[')
        return json_many(at, *at == '{' ? '}' : ']', depth);
    if (*at == '"')
        return json_text(at);
    for (int i = 0; i < 3; i++) {
        const char *word = (const char *[]){"true", "false", "null"}[i];
        if (strncmp(at, word, strlen(word)) == 0)
            return at + strlen(word);
    }
    return json_number(at);
}

/* ---- events: one a line ---- */

typedef struct event {
    char phase;
    unsigned pid, tid;
    unsigned long record;
    double begin_us, end_us;
    char name[64];
} event_t;

static double number_of(const char *line, const char *field)
{
    const char *at = strstr(line, field);
    return at ? strtod(at + strlen(field), NULL) : 0;
}

static size_t read_events(char *text, event_t *events)
{
    size_t count = 0;
    const char *end = text + strlen(text);
    for (char *line = strchr(text, '\n'), *next; line; line = next) {
        event_t *event = &events[count];
        next = line < end ? memchr(line + 1, '\n', (size_t)(end - line - 1)) : NULL;
        if (next)
            *next = '\0';
        const char *name = strstr(line + 1, "\"name\":\"");
        if (strncmp(line + 1, "{\"ph\":\"", 7) != 0)
            continue;
        cr_assert_lt(count, EVENTS_MAX);
        event->phase = line[8];
        event->pid = (unsigned)number_of(line + 1, "\"pid\":");
        event->tid = (unsigned)number_of(line + 1, "\"tid\":");
        event->record = (unsigned long)number_of(line + 1, "\"record\":");
        event->begin_us = number_of(line + 1, "\"ts\":");
        event->end_us = event->begin_us + number_of(line + 1, "\"dur\":");
        (void)snprintf(event->name, sizeof event->name, "%.*s",
                       name ? (int)strcspn(name + 8, "\"") : 0, name ? name + 8 : "");
        count++;
        if (next)
            *next = '\n';
    }
    return count;
}

static void check_nesting(const event_t *events, size_t count)
{
    int depth = 0;
    double range_us = -1e18, device_us = -1e18;
    for (size_t i = 0; i < count; i++) {
        const event_t *event = &events[i];
        cr_assert(event->end_us >= event->begin_us, "%s ends before it begins", event->name);
        if (event->phase == 'X' && event->pid >= 10) { /* one device: one after the other */
            cr_assert(event->begin_us > device_us - 0.0005, "%s runs within another", event->name);
            device_us = event->end_us;
        }
        if (event->pid != 1 || (event->phase != 'B' && event->phase != 'E'))
            continue;
        cr_assert(event->begin_us >= range_us, "ranges go back in time");
        range_us = event->begin_us;
        depth += event->phase == 'B' ? 1 : -1;
        cr_assert_geq(depth, 0);
    }
    cr_assert_eq(depth, 0, "each range that begins ends");
}

/* Between two steps lie the operators that a step has. Gives how many such steps were seen. */
static size_t check_steps(const event_t *events, size_t count)
{
    unsigned long first = 0, last = 0, step = 0;
    size_t whole = 0;
    for (size_t i = 0; i < count; i++)
        if (events[i].phase == 'X' && events[i].pid >= 10) {
            first = first ? first : events[i].record;
            last = events[i].record;
        }
    for (size_t i = 0; i < count; i++) {
        size_t between = 0;
        unsigned long before = step;
        if (events[i].phase != 'i' || strncmp(events[i].name, "step ", 5) != 0)
            continue;
        step = events[i].record;
        if (before < first || step > last)
            continue;
        for (size_t k = 0; k < count; k++)
            between += events[k].phase == 'X' && events[k].pid >= 10 && events[k].record > before &&
                       events[k].record < step;
        cr_assert_eq(between, OPS_A_STEP, "%zu operators before record %lu", between, step);
        if (++whole == 50) /* enough */
            break;
    }
    return whole;
}

static bool has(const event_t *events, size_t count, char phase, unsigned pid, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (events[i].phase == phase && events[i].pid == pid && strcmp(events[i].name, name) == 0)
            return true;
    return false;
}

/* ---- the program that is traced ---- */

static void run_step(dt_session_t *session, dt_tensor_t *a, uint64_t step)
{
    float is;
    cr_assert_eq(dt_range_begin(session, "outer \"range\"", NULL), DT_OK);
    cr_assert_eq(dt_range_begin(session, "inner", NULL), DT_OK);
    cr_assert_eq(DT_SOURCE_HERE(session), DT_OK);
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_tensor_t *product = dt_clienttest_call2(session, "aten::mul.Tensor", sum, a);
    cr_assert_eq(dt_range_end(session, NULL), DT_OK);
    dt_tensor_t *again = dt_clienttest_call2(session, "aten::add.Tensor", product, a);
    dt_clienttest_read(again, &is, sizeof is);
    cr_assert_eq(is, 21); /* (3 + 3) * 3 + 3 */
    dt_tensor_free(sum);
    dt_tensor_free(product);
    dt_tensor_free(again);
    cr_assert_eq(dt_mark_step(session, step, NULL), DT_OK);
    cr_assert_eq(dt_range_end(session, NULL), DT_OK);
}

/* What was traced, free(). */
static event_t *traced(dt_ctlbeside_t *tracer, size_t *ret_count)
{
    dt_ctlbeside_end(tracer);
    char *text = tracer->said.out;
    const char *end = json_value(text, 0);
    cr_assert(end && *json_space(end) == '\0', "no JSON: %.200s", end ? end : text);
    event_t *events = calloc(EVENTS_MAX, sizeof *events);
    *ret_count = read_events(text, events);
    return events;
}

Test(timeline, it_has_the_operators_ranges_and_steps_of_a_running_program)
{
    char conf[128];
    dt_ctlbeside_t tracer = {0};
    const float three = 3;
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    tracer.tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
    dt_session_t *session = dt_clienttest_connect(tracer.tc, NULL, NULL);
    dt_tensor_t *a = dt_clienttest_f32(session, 0, NULL, &three);
    run_step(session, a, 1);
    dt_ctlbeside_job(&tracer, session);
    dt_ctlbeside_begin(&tracer, "timeline", "2", NULL);
    for (uint64_t step = 2; !atomic_load(&tracer.is_done); step++)
        run_step(session, a, step);

    size_t count;
    event_t *events = traced(&tracer, &count);
    check_nesting(events, count);
    cr_assert(check_steps(events, count) > 0, "no whole step in %zu events", count);
    cr_assert(has(events, count, 'X', 10, "aten::add.Tensor"));
    cr_assert(has(events, count, 'X', 10, "aten::mul.Tensor"));
    cr_assert(has(events, count, 'B', 1, "inner"));
    cr_assert(has(events, count, 'X', 2, "frame"));
    cr_assert(has(events, count, 'i', 2, "ack"));
    cr_assert(has(events, count, 'M', 10, "thread_name"));
    for (int i = 0; i < 5; i++) {
        const char *wanted = (const char *[]){
            "\"name\":\"node w0\"", "\"name\":\"controller\"", "outer \\\"range\\\"",
            "timeline_test.c:", "\"dropped_events\":0,\"dropped_batches\":0"}[i];
        cr_assert_not_null(strstr(tracer.said.out, wanted), "no %s", wanted);
    }
    free(events);
    dt_testrun_fini(&tracer.said);
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tracer.tc), 0);
}

/* A range that the program has waited in holds what its devices did for it. */
static size_t count_within(const event_t *events, size_t count, unsigned tid, const char *name)
{
    double begin_us = -1;
    size_t within = 0;
    for (size_t i = 0; i < count; i++) {
        if (events[i].pid == 1 && events[i].phase == 'B')
            begin_us = events[i].begin_us;
        if (events[i].pid != 1 || events[i].phase != 'E' || begin_us < 0)
            continue;
        for (size_t k = 0; k < count; k++)
            within += events[k].phase == 'X' && events[k].pid >= 10 && events[k].tid == tid &&
                      strcmp(events[k].name, name) == 0 && events[k].begin_us >= begin_us &&
                      events[k].end_us <= events[i].begin_us;
        begin_us = -1;
    }
    return within;
}

static void move_once(dt_session_t *session, const dt_mesh_t *mesh, dt_tensor_t *sharded)
{
    const dt_placement_t whole = {.kind = DT_PLACEMENT_REPLICATE};
    dt_tensor_t *made = NULL;
    float is[4];
    cr_assert_eq(dt_range_begin(session, "move", NULL), DT_OK);
    cr_assert_eq(dt_redistribute(sharded, mesh, &whole, &made, NULL), DT_OK);
    dt_clienttest_read(made, is, sizeof is);
    dt_tensor_free(made);
    cr_assert_eq(dt_range_end(session, NULL), DT_OK);
}

Test(timeline, each_device_has_a_lane_of_what_it_moved_on_the_clock_of_the_program)
{
    static const uint32_t sizes[] = {2};
    static const int64_t shape[] = {4};
    static const float data[] = {1, 2, 3, 4};
    const dt_placement_t placement = {.kind = DT_PLACEMENT_SHARD};
    dt_ctlbeside_t tracer = {0};
    dt_session_t *session = NULL;
    dt_tensor_t *sharded = NULL;
    dt_mesh_t *mesh = NULL;
    tracer.tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = "Devices=ref:2\nEngines=1\n"});
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tracer.tc),
                                    .vdev_count = 2,
                                    .program = "timeline",
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    cr_assert_eq(dt_connect(&options, &session, NULL), DT_OK);
    cr_assert_eq(dt_mesh_create(session, 1, sizes, NULL, NULL, &mesh, NULL), DT_OK);
    const dt_upload_t upload = {.struct_size = sizeof upload,
                                .dtype = DT_DTYPE_F32,
                                .ndim = 1,
                                .sizes = shape,
                                .data = data,
                                .mesh = mesh,
                                .placements = &placement};
    cr_assert_eq(dt_tensor_upload(session, &upload, &sharded, NULL), DT_OK);
    move_once(session, mesh, sharded);
    dt_ctlbeside_job(&tracer, session);
    dt_ctlbeside_begin(&tracer, "timeline", "2", NULL);
    while (!atomic_load(&tracer.is_done))
        move_once(session, mesh, sharded);
    size_t count;
    event_t *events = traced(&tracer, &count);
    for (unsigned vdev = 0; vdev < 2; vdev++)
        cr_assert(count_within(events, count, 10000 + vdev, "dtorch::redistribute") > 0,
                  "no move of vdev %u within a range of the program:\n%.4000s", vdev,
                  tracer.said.out);
    cr_assert_not_null(strstr(tracer.said.out, "\"name\":\"vdev 1, communication\""));
    cr_assert_not_null(strstr(tracer.said.out, "\"client_times\":\"of the program\""));
    free(events);
    dt_testrun_fini(&tracer.said);
    dt_tensor_free(sharded);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tracer.tc), 0);
}

Test(timeline, a_job_that_is_not_there_is_told)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0});
    dt_testrun_t said = dt_testcluster_ctl(tc, "job", "timeline", "77", NULL);
    cr_assert_eq(said.code, 67, "%d: %s", said.code, said.err);
    dt_testrun_fini(&said);
    said = dt_testcluster_ctl(tc, "job", "timeline", "77", "61", NULL);
    cr_assert_eq(said.code, 64, "%d: %s", said.code, said.err);
    dt_testrun_fini(&said);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
