#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/list.h"
#include "dtorch/v1/admin.pb-c.h"

/* Output is caught in memory. The items are three nodes and their two devices. */
static dt_arena_t pool;
static char *caught;
static size_t caught_size;
static dt_ctl_output_t output;
static Dtorch__V1__Node nodes[3];
static Dtorch__V1__Label zone = DTORCH__V1__LABEL__INIT;
static Dtorch__V1__Label *labels[] = {&zone};
static Dtorch__V1__NodeTopology topology = DTORCH__V1__NODE_TOPOLOGY__INIT;
static const ProtobufCMessage *items[] = {&nodes[0].base, &nodes[1].base, &nodes[2].base};
static uint8_t id_bytes[] = {0xa5, 0x00, 0xff};
static char text_gpu2[] = "gpu2", text_gpu10[] = "gpu10", text_gpu9[] = "gpu9";
static char text_zone[] = "zone", text_b[] = "b", text_rack[] = "r1";
static char text_evil[] = "fan \"2\", \033[31mred\nend";

static dt_ctl_value_t state_of(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Node *node = (const Dtorch__V1__Node *)(const void *)view->items[0];
    return dt_ctl_text(node->admin == DTORCH__V1__NODE_INTENT__ADMIN__ENABLED ? "ready"
                                                                              : "drained");
}

static dt_ctl_value_t sum_of(const dt_ctl_view_t *view)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < view->count; i++)
        sum += ((const Dtorch__V1__Node *)(const void *)view->items[i])->memory_bytes;
    return dt_ctl_uint(sum, DT_CTL_BYTES);
}

static bool always_folds(dt_arena_t *arena, const ProtobufCMessage *last,
                         const ProtobufCMessage *next)
{
    (void)arena, (void)last, (void)next;
    return true;
}

static const dt_ctl_column_t columns[] = {
    {"name", "NAME", "name", NULL, NULL, 0, 0},
    {"state", "STATE", NULL, state_of, NULL, DT_CTL_COLUMN_STATE, 0},
    {"memory", "MEMORY", NULL, sum_of, NULL, 0, 0},
    {"kernel", "KERNEL", "kernel", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"reason", "REASON", "reason", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static dt_ctl_list_t list = {
    .kind = "NodeList",
    .one = "node",
    .many = "nodes",
    .name_path = "name",
    .type = &dtorch__v1__node__descriptor,
    .columns = columns,
    .column_count = sizeof columns / sizeof columns[0],
};

static void start(void)
{
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
    for (size_t i = 0; i < 3; i++)
        dtorch__v1__node__init(&nodes[i]);
    nodes[0].name = text_gpu10;
    nodes[1].name = text_gpu2;
    nodes[2].name = text_gpu9;
    nodes[0].memory_bytes = UINT64_C(8) << 30;
    nodes[1].memory_bytes = UINT64_C(16) << 30;
    nodes[1].admin = DTORCH__V1__NODE_INTENT__ADMIN__DRAINED;
    nodes[1].health = DTORCH__V1__NODE_HEALTH__NODE_SUSPECT;
    nodes[1].reason = text_evil;
    nodes[1].beat_age_ms = -1;
    nodes[1].incarnation = UINT64_MAX;
    nodes[2].node_id.data = id_bytes;
    nodes[2].node_id.len = sizeof id_bytes;
    zone.key = text_zone;
    zone.value = text_b;
    nodes[2].labels = labels;
    nodes[2].n_labels = 1;
    topology.rack = text_rack;
    nodes[2].topology = &topology;
    output = (dt_ctl_output_t){.pool = &pool, .screen = {.has_legend = true}};
}

static void stop(void)
{
    dt_arena_fini(&pool);
    free(caught);
}

TestSuite(ctl_list, .init = start, .fini = stop, .timeout = 60);

static const char *print(const dt_ctl_list_t *of, const ProtobufCMessage *reply)
{
    dt_error_t error = {.text = ""};
    free(caught);
    caught = NULL;
    output.screen.file = open_memstream(&caught, &caught_size);
    cr_assert_not_null(output.screen.file);
    cr_assert_eq(dt_ctl_list_check(of, &output, &error), DT_OK, "%s", error.text);
    dt_status_t status = dt_ctl_list_print(of, items, 3, reply, &output, &error);
    (void)fclose(output.screen.file);
    cr_assert_eq(status, DT_OK, "%s", error.text);
    return caught;
}

Test(ctl_list, a_table_has_text_left_and_numbers_right_and_ends_with_a_count)
{
    cr_assert_str_eq(print(&list, NULL),
                     "NAME   STATE     MEMORY  REASON\n"
                     "gpu10  ready    8.0 GiB  -\n"
                     "gpu2   drained   16 GiB  fan \"2\", \\x1b[31mred\\nend\n"
                     "gpu9   ready        0 B  -\n"
                     "3 nodes listed.\n",
                     "%s", caught);
}

Test(ctl_list, wide_has_more_columns)
{
    output.format = DT_CTL_WIDE;
    cr_assert_not_null(strstr(print(&list, NULL), "KERNEL"));
}

Test(ctl_list, no_legend_leaves_rows_only)
{
    output.screen.has_legend = false;
    cr_assert_eq(strncmp(print(&list, NULL), "gpu10  ready", 12), 0);
    cr_assert_null(strstr(caught, "listed"));
}

Test(ctl_list, a_narrow_terminal_cuts_the_columns_that_may_shrink)
{
    output.screen.columns = 33;
    cr_assert_not_null(strstr(print(&list, NULL), "fan \"2\"…\n"), "%s", caught);
}

Test(ctl_list, colour_marks_states_only)
{
    output.screen.has_colour = true;
    print(&list, NULL);
    cr_assert_not_null(strstr(caught, "\033[32mready\033[0m"), "%s", caught);
    cr_assert_not_null(strstr(caught, "\033[33mdrained\033[0m"));
    cr_assert_null(strstr(caught, "\033[31m"), "a peer's colour got through");
}

Test(ctl_list, a_sparse_column_without_values_is_left_out)
{
    dt_ctl_column_t sparse[sizeof columns / sizeof columns[0]];
    dt_ctl_list_t of = list;
    memcpy(sparse, columns, sizeof columns);
    sparse[4].flags |= DT_CTL_COLUMN_SPARSE;
    of.columns = sparse;
    cr_assert_not_null(strstr(print(&of, NULL), "REASON"));
    output.filter = "name!=gpu2";
    cr_assert_null(strstr(print(&of, NULL), "REASON"), "%s", caught);
}

Test(ctl_list, like_items_share_a_line_of_a_table_only)
{
    dt_ctl_list_t folding = list;
    folding.folds = always_folds;
    cr_assert_str_eq(print(&folding, NULL), "NAME   STATE  MEMORY  REASON\n"
                                            "gpu10  ready  24 GiB  -\n"
                                            "3 nodes listed.\n");
    output.format = DT_CTL_WIDE;
    cr_assert_not_null(strstr(print(&folding, NULL), "gpu9"));
}

Test(ctl_list, json_has_raw_values_and_lower_case_words)
{
    output.format = DT_CTL_JSON;
    print(&list, NULL);
    cr_assert_eq(
        strncmp(caught, "{\"schema\":\"dtorch/v1\",\"kind\":\"NodeList\",\"items\":[\n", 50), 0,
        "%s", caught);
    cr_assert_not_null(strstr(caught, "\"memory_bytes\":8589934592"));
    cr_assert_not_null(strstr(caught, "\"incarnation\":18446744073709551615"));
    cr_assert_not_null(strstr(caught, "\"beat_age_ms\":-1"));
    cr_assert_not_null(strstr(caught, "\"admin\":\"drained\""));
    cr_assert_not_null(strstr(caught, "\"health\":\"suspect\""));
    cr_assert_not_null(strstr(caught, "\"node_id\":\"a500ff\""));
    cr_assert_not_null(strstr(caught, "\"labels\":[{\"key\":\"zone\",\"value\":\"b\"}]"));
    cr_assert_not_null(strstr(caught, "\"topology\":{\"numa_nodes\":0,\"rack\":\"r1\"}"));
    cr_assert_not_null(strstr(caught, "\"config_differs\":false"));
    cr_assert_not_null(strstr(caught, "\"reason\":\"fan \\\"2\\\", \\u001b[31mred\\u000aend\""));
}

Test(ctl_list, json_leaves_out_what_is_not_known)
{
    output.format = DT_CTL_JSON;
    output.filter = "name=gpu10";
    print(&list, NULL);
    cr_assert_null(strstr(caught, "\"kernel\""), "%s", caught);
    cr_assert_null(strstr(caught, "\"topology\""));
    cr_assert_null(strstr(caught, "\"node_id\""));
    cr_assert_not_null(strstr(caught, "\"devices\":[]"));
}

Test(ctl_list, json_of_an_empty_list_is_an_empty_list)
{
    output.format = DT_CTL_JSON;
    output.filter = "name=none";
    cr_assert_str_eq(print(&list, NULL),
                     "{\"schema\":\"dtorch/v1\",\"kind\":\"NodeList\",\"items\":[]}\n");
}

Test(ctl_list, json_carries_the_replys_own_fields)
{
    Dtorch__V1__EventList reply = DTORCH__V1__EVENT_LIST__INIT;
    reply.lost_before_sequence = 17;
    output.format = DT_CTL_JSON;
    output.filter = "name=none";
    cr_assert_not_null(strstr(print(&list, &reply.base), ",\"lost_before_sequence\":17,"));
}

Test(ctl_list, json_of_chosen_fields_goes_into_messages)
{
    output.format = DT_CTL_JSON;
    output.fields = "name,topology.rack";
    output.filter = "name=gpu9";
    cr_assert_not_null(
        strstr(print(&list, NULL), "\n{\"name\":\"gpu9\",\"topology\":{\"rack\":\"r1\"}}\n"));
}

Test(ctl_list, a_stream_of_json_is_one_object_a_line)
{
    output.format = DT_CTL_JSON;
    output.is_stream = true;
    output.fields = "name";
    cr_assert_str_eq(print(&list, NULL),
                     "{\"name\":\"gpu10\"}\n{\"name\":\"gpu2\"}\n{\"name\":\"gpu9\"}\n");
}

Test(ctl_list, csv_quotes_as_rfc_4180_and_keeps_numbers_raw)
{
    output.format = DT_CTL_CSV;
    output.fields = "name,memory,reason,labels,topology.rack";
    cr_assert_str_eq(print(&list, NULL),
                     "name,memory,reason,labels,topology.rack\r\n"
                     "gpu10,8589934592,,,\r\n"
                     "gpu2,17179869184,\"fan \"\"2\"\", \\x1b[31mred\\nend\",,\r\n"
                     "gpu9,0,,zone=b,r1\r\n");
}

Test(ctl_list, csv_without_fields_has_every_single_field)
{
    output.format = DT_CTL_CSV;
    print(&list, NULL);
    cr_assert_not_null(strstr(caught, "name,node_id,admin,health,"), "%s", caught);
    cr_assert_not_null(strstr(caught, ",topology.numa_nodes,topology.rack,"));
    cr_assert_null(strstr(caught, ",devices,"), "lists of messages are left out");
}

Test(ctl_list, names_are_one_a_line)
{
    output.format = DT_CTL_NAME;
    output.sort = "name";
    cr_assert_str_eq(print(&list, NULL), "gpu2\ngpu9\ngpu10\n");
}

Test(ctl_list, sorting_is_natural_and_can_be_turned)
{
    output.format = DT_CTL_NAME;
    output.sort = "-memory_bytes";
    cr_assert_str_eq(print(&list, NULL), "gpu2\ngpu10\ngpu9\n");
    output.sort = "state,-name";
    cr_assert_str_eq(print(&list, NULL), "gpu2\ngpu10\ngpu9\n");
}

Test(ctl_list, a_limit_is_told_in_the_footer)
{
    output.limit = 2;
    cr_assert_not_null(strstr(print(&list, NULL), "2 of 3 nodes listed.\n"));
}

static void check_filter(const char *filter, const char *names)
{
    output.format = DT_CTL_NAME;
    output.filter = filter;
    cr_assert_str_eq(print(&list, NULL), names, "%s gives %s", filter, caught);
}

Test(ctl_list, filters_compare_by_what_the_field_is)
{
    check_filter("state=ready", "gpu10\ngpu9\n");
    check_filter("state!=ready", "gpu2\n");
    check_filter("health=suspect|dead", "gpu2\n");
    check_filter("health>=suspect", "gpu2\n");
    check_filter("name=gpu1*|gpu9", "gpu10\ngpu9\n");
    check_filter("memory>=8GiB memory<16GiB", "gpu10\n");
    check_filter("memory_bytes=17179869184", "gpu2\n");
    check_filter("labels.zone=b", "gpu9\n");
    check_filter("labels.zone!=b", "gpu10\ngpu2\n");
    check_filter("labels.zone=", "gpu10\ngpu2\n");
    check_filter("topology.rack=r1", "gpu9\n");
    check_filter("reason~\"fan \"", "gpu2\n");
    check_filter("reason!~fan", "gpu10\ngpu9\n");
    check_filter("config_differs=no, node_id=a500*", "gpu9\n");
    check_filter("beat_age_ms<0", "gpu2\n");
    check_filter("", "gpu10\ngpu2\ngpu9\n");
}

static void check_wrong(const char *fields, const char *filter, const char *sort,
                        const char *wanted)
{
    dt_error_t error = {.text = ""};
    output.fields = fields;
    output.filter = filter;
    output.sort = sort;
    cr_assert_eq(dt_ctl_list_check(&list, &output, &error), DT_ERR_INVALID);
    cr_assert_not_null(strstr(error.text, wanted), "%s", error.text);
}

Test(ctl_list, unknown_fields_are_told_with_the_nearest_one)
{
    check_wrong("nmae", NULL, NULL, "did you mean \"name\"?");
    check_wrong(NULL, "helth=ok", NULL, "did you mean \"health\"?");
    check_wrong(NULL, NULL, "-memroy", "did you mean \"memory\"?");
    check_wrong("zzzzzz", NULL, NULL, "it has: name state");
    check_wrong("devices.id", NULL, NULL, "no field");
    check_wrong(NULL, "name", NULL, "write FIELD=VALUE");
    check_wrong(NULL, "name=\"x", NULL, "not closed");
}

Test(ctl_list, a_filter_value_that_does_not_fit_is_told)
{
    dt_error_t error = {.text = ""};
    static const char *const wrong[] = {"health=sad", "memory>=lots", "config_differs=perhaps",
                                        "memory<-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        output.filter = wrong[i];
        output.screen.file = stdout;
        cr_assert_eq(dt_ctl_list_print(&list, items, 3, NULL, &output, &error), DT_ERR_INVALID,
                     "%s", wrong[i]);
        cr_assert_not_null(strstr(error.text, "is no value of"), "%s", error.text);
    }
}

Test(ctl_list, json_refuses_fields_that_are_worked_out)
{
    output.format = DT_CTL_JSON;
    check_wrong("state", NULL, NULL, "worked out for tables");
}
