/* Redistributions by groups of devices: engines of one host whose devices form groups by a library
 * that plays NCCL. Values are those of the plain reference, failures end all alike. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transportrig.h"

TestSuite(transport_group, .timeout = 600);

static const uint8_t one_each[DT_RIG_VDEVS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t mixed[DT_RIG_VDEVS_MAX] = {2, 0, 1, 0, 2, 1, 0, 0};
static const int64_t shape[] = {8, 6};
static const uint32_t four = 4;

static void open_rig(dt_rig_t *rig, uint32_t engines, const uint8_t *engine_of, uint32_t without)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/fake_nccl.so", getenv("DT_TEST_SO"));
    dt_rig_open_groups(rig, engines, engine_of, path, without);
}

static void start_all(dt_rig_t *rig, const dt_rig_case_t *c)
{
    rig->number++;
    for (uint32_t e = 0; e < rig->engine_count; e++)
        dt_rig_start(rig, e, 0, c, rig->number, NULL);
    dt_rig_finish(rig);
}

static void expect_value(dt_rig_t *rig, const dt_rig_case_t *c, const char *name)
{
    char what[600] = "";
    cr_expect(dt_rig_compare(rig, 0, c, what, sizeof what), "%s: %s", name, what);
}

/* By host memory, then twice by a group. Returns on how many engines it went by one. */
static uint32_t thrice(dt_rig_t *rig, const dt_rig_case_t *c, const char *name)
{
    uint32_t grouped = 0;
    start_all(rig, c);
    expect_value(rig, c, name);
    for (int i = 0; i < 2; i++) {
        grouped = dt_rig_again(rig, 0, UINT32_MAX);
        dt_rig_finish(rig);
        expect_value(rig, c, name);
    }
    dt_rig_drop(rig, 0);
    return grouped;
}

static void all_pairs(uint32_t engines, const uint8_t *engine_of, const int64_t *sizes)
{
    static const char *const words[] = {"R", "S0", "S1", "Psum"};
    static const char *const words_2d[] = {"R R", "S0 R", "S0 S1", "S1 S0", "Psum Psum", "Psum S1"};
    uint32_t grouped = 0, runs = 0;
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, engines, engine_of, UINT32_MAX);
    for (unsigned a = 0; a < 4; a++)
        for (unsigned b = 0; b < 4; b++, runs++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s to %s", words[a], words[b]);
            dt_rig_case(&c, DT_DTYPE_F32, 2, sizes, 1, &four, words[a], words[b], runs);
            c.is_exact = true;
            grouped += thrice(&rig, &c, name) > 0;
        }
    for (unsigned a = 0; a < 6; a++)
        for (unsigned b = 0; b < 6; b++, runs++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s to %s", words_2d[a], words_2d[b]);
            dt_rig_case(&c, DT_DTYPE_I64, 2, sizes, 2, (const uint32_t[]){2, 3}, words_2d[a],
                        words_2d[b], runs);
            c.is_exact = true;
            grouped += thrice(&rig, &c, name) > 0;
        }
    dt_rig_close(&rig);
    cr_expect_gt(grouped, runs / 3, "%u of %u went by a group", grouped, runs);
}

Test(transport_group, every_pair_of_layouts_has_its_value)
{
    all_pairs(6, one_each, shape);
}

Test(transport_group, every_pair_of_layouts_of_uneven_sizes_has_its_value)
{
    all_pairs(6, one_each, (const int64_t[]){7, 5});
}

Test(transport_group, every_pair_of_layouts_with_several_devices_an_engine_has_its_value)
{
    all_pairs(3, mixed, shape);
}

Test(transport_group, a_large_tensor_has_its_value)
{
    static const char *const pairs[][2] = {
        {"Psum", "R"}, {"Psum", "S0"}, {"S0", "S1"}, {"S1", "R"}};
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, UINT32_MAX);
    for (unsigned i = 0; i < 4; i++) {
        dt_rig_case(&c, DT_DTYPE_F32, 2, (const int64_t[]){400, 300}, 1, &four, pairs[i][0],
                    pairs[i][1], i);
        c.is_exact = true;
        cr_expect_eq(thrice(&rig, &c, pairs[i][0]), 4);
    }
    dt_rig_close(&rig);
}

Test(transport_group, with_an_engine_that_has_none_all_go_by_host_memory)
{
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, 2);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &four, "S0", "R", 1);
    cr_expect_eq(thrice(&rig, &c, "S0 to R"), 0);
    dt_rig_close(&rig);
}

/* Maxima of floats keep NaN, which the library's do not; averages are not sums. */
Test(transport_group, what_the_library_computes_otherwise_goes_by_host_memory)
{
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, UINT32_MAX);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &four, "Pmax", "R", 1);
    cr_expect_eq(thrice(&rig, &c, "Pmax to R"), 0);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &four, "Pavg", "R", 1);
    c.is_exact = true;
    cr_expect_eq(thrice(&rig, &c, "Pavg to R"), 0);
    dt_rig_case(&c, DT_DTYPE_I64, 2, shape, 1, &four, "Pmax", "R", 1);
    cr_expect_eq(thrice(&rig, &c, "Pmax of int64 to R"), 4);
    dt_rig_close(&rig);
}

static void expect_lost(const dt_rig_t *rig, uint32_t absent)
{
    for (uint32_t e = 0; e < rig->engine_count; e++) {
        const dt_rig_move_t *move = &rig->engines[e].moves[0];
        if (e == absent)
            continue;
        cr_expect_eq(move->status, DT_ERR_LOST, "engine %u: %s %s", e, dt_status_text(move->status),
                     move->err.text);
        cr_expect_not_null(strstr(move->err.text, "node3"), "%s", move->err.text);
    }
}

/* Engine 3 is lost before it comes to the exchange; what is left makes a group of its own. */
Test(transport_group, a_lost_engine_ends_the_move_and_the_rest_forms_anew)
{
    const uint32_t three = 3;
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, UINT32_MAX);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &four, "S0", "R", 1);
    start_all(&rig, &c);
    cr_assert_eq(dt_rig_again(&rig, 0, UINT32_MAX), 4);
    dt_rig_finish(&rig);
    cr_assert_eq(dt_rig_again(&rig, 0, 3), 3);
    rig.engines[3].moves[0].is_done = true;
    dt_board_lose(rig.boards[0][0], 3, "");
    dt_rig_finish(&rig);
    expect_lost(&rig, 3);
    dt_rig_drop(&rig, 0);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &three, "Psum", "R", 2);
    c.is_exact = true;
    cr_expect_eq(thrice(&rig, &c, "what is left"), 3);
    dt_rig_close(&rig);
}

/* Engine 3 has published and joined, and closes its session in the middle. */
Test(transport_group, a_session_closed_in_a_move_ends_it_for_all)
{
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, UINT32_MAX);
    dt_rig_case(&c, DT_DTYPE_F32, 2, (const int64_t[]){400, 300}, 1, &four, "Psum", "R", 1);
    c.is_exact = true;
    start_all(&rig, &c);
    cr_assert_eq(dt_rig_again(&rig, 0, UINT32_MAX), 4);
    dt_transport_close(rig.engines[3].transport, 0);
    rig.engines[3].moves[0].is_done = true;
    dt_rig_finish(&rig);
    expect_lost(&rig, 3);
    dt_rig_close(&rig);
}

/* A poisoned input of one engine is the cause on all; the group stays. */
Test(transport_group, a_poisoned_input_moves_nothing_and_breaks_nothing)
{
    dt_rig_t rig;
    dt_rig_case_t c;
    open_rig(&rig, 4, one_each, UINT32_MAX);
    dt_rig_case(&c, DT_DTYPE_F32, 2, shape, 1, &four, "S0", "R", 1);
    start_all(&rig, &c);
    for (uint32_t poisoned = 0; poisoned < 4; poisoned++) {
        rig.cause_of = poisoned + 1;
        cr_assert_eq(dt_rig_again(&rig, 0, UINT32_MAX), 4);
        dt_rig_finish(&rig);
        for (uint32_t e = 0; e < 4; e++)
            cr_expect_str_eq(rig.engines[e].moves[0].cause, "poison", "engine %u", e);
        rig.cause_of = 0;
        cr_assert_eq(dt_rig_again(&rig, 0, UINT32_MAX), 4);
        dt_rig_finish(&rig);
        expect_value(&rig, &c, "after a poisoned one");
    }
    dt_rig_close(&rig);
}
