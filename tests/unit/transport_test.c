/* Redistributions on one engine and on several: what a plain reference says, the same bits
 * everywhere, nobody hangs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "lib/transportrig.h"
#include "shm/ring.h"

TestSuite(transport, .timeout = 600);

static const uint8_t one_each[DT_RIG_VDEVS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t two_each[DT_RIG_VDEVS_MAX] = {0, 0, 1, 1, 2, 2, 3, 3};
static const uint8_t mixed[DT_RIG_VDEVS_MAX] = {2, 0, 1, 0, 2, 1, 0, 0};
static const uint8_t on_one[DT_RIG_VDEVS_MAX] = {0};

static const uint8_t one_host[DT_RIG_ENGINES_MAX] = {0};
static const uint8_t host_each[DT_RIG_ENGINES_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t two_hosts[DT_RIG_ENGINES_MAX] = {0, 1, 0, 1, 1, 0};

static const char *const words_1d[] = {"R", "S0", "S1", "Psum"};
static const char *const words_2d[] = {"R R",     "S0 R",    "R S0",     "S0 S0",
                                       "S0 S1",   "S1 S0",   "Psum R",   "R Psum",
                                       "Psum S1", "S0 Psum", "Psum Psum"};

static void check(dt_rig_t *rig, const dt_rig_case_t *c, const char *from, const char *to)
{
    char what[600] = "";
    char text[128];
    dt_meta_print(&c->meta, text, sizeof text);
    cr_expect(dt_rig_check(rig, c, what, sizeof what), "%s, mesh of %u, %s to %s: %s", text,
              c->from_mesh.count, from, to, what);
}

static void check_pairs(dt_rig_t *rig, unsigned dtype, const int64_t *sizes, unsigned mesh_ndim,
                        const uint32_t *mesh, const char *const *words, size_t count)
{
    dt_rig_case_t c;
    for (size_t a = 0; a < count; a++)
        for (size_t b = 0; b < count; b++) {
            dt_rig_case(&c, dtype, 2, sizes, mesh_ndim, mesh, words[a], words[b], a * count + b);
            c.is_exact = strstr(words[b], "P") != NULL;
            check(rig, &c, words[a], words[b]);
        }
}

static void check_all_pairs(const uint8_t *engine_of, uint32_t engines, const uint8_t *host_of,
                            dt_rig_how_t how)
{
    static const int64_t shapes[][2] = {{8, 6}, {7, 5}, {1, 3}, {0, 4}};
    dt_rig_t rig;
    dt_rig_open_hosts(&rig, engines, 1, engine_of, host_of, how);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (uint32_t n = 2; n <= 4; n++)
            check_pairs(&rig, DT_DTYPE_F32, shapes[s], 1, &n, words_1d, 4);
        check_pairs(&rig, DT_DTYPE_F32, shapes[s], 2, (const uint32_t[]){2, 3}, words_2d, 11);
    }
    dt_rig_close(&rig);
}

Test(transport, every_pair_of_layouts_on_one_engine)
{
    check_all_pairs(on_one, 1, one_host, DT_RIG_PLAIN);
}

Test(transport, every_pair_of_layouts_with_a_device_an_engine)
{
    check_all_pairs(one_each, 6, one_host, DT_RIG_PLAIN);
}

Test(transport, every_pair_of_layouts_with_devices_mixed_over_engines)
{
    check_all_pairs(mixed, 3, one_host, DT_RIG_PLAIN);
}

Test(transport, every_pair_of_layouts_with_each_engine_on_a_host_of_its_own)
{
    check_all_pairs(one_each, 6, host_each, DT_RIG_PLAIN);
}

Test(transport, every_pair_of_layouts_with_tls_between_hosts)
{
    check_all_pairs(one_each, 6, host_each, DT_RIG_TLS);
}

Test(transport, every_pair_of_layouts_over_two_hosts)
{
    check_all_pairs(one_each, 6, two_hosts, DT_RIG_PLAIN);
    check_all_pairs(mixed, 3, two_hosts, DT_RIG_PLAIN);
}

Test(transport, every_dtype_and_reduction)
{
    static const char *const words[] = {"Psum", "Pavg", "Pmax", "Pmin", "S0", "R"};
    static const unsigned dtypes[] = {
        DT_DTYPE_U8,  DT_DTYPE_I8,  DT_DTYPE_I16, DT_DTYPE_I32,  DT_DTYPE_I64,      DT_DTYPE_F16,
        DT_DTYPE_F32, DT_DTYPE_F64, DT_DTYPE_C32, DT_DTYPE_C64,  DT_DTYPE_C128,     DT_DTYPE_BOOL,
        DT_DTYPE_U16, DT_DTYPE_U32, DT_DTYPE_U64, DT_DTYPE_BF16, DT_DTYPE_F8_E4M3FN};
    const uint32_t three = 3;
    uint32_t run = 0;
    dt_rig_t rig;
    dt_rig_open(&rig, 3, 1, one_each);
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++)
        for (size_t a = 0; a < 6; a++)
            for (size_t b = 4; b < 6; b++) {
                dt_rig_case_t c;
                dt_error_t err = {0};
                dt_rig_case(&c, dtypes[t], 2, (const int64_t[]){5, 3}, 1, &three, words[a],
                            words[b], run);
                if (!dt_rig_is_legal(&c, &err)) {
                    cr_assert_eq(err.code, DT_ERR_INVALID, "%s", err.text);
                    continue;
                }
                check(&rig, &c, words[a], words[b]);
                run++;
            }
    dt_rig_close(&rig);
    cr_assert_geq(run, 100, "%u", run);
}

/* Bigger than a piece, than a block, with odd ends. */
Test(transport, big_tensors_have_the_same_bits_on_one_engine_on_many_and_between_hosts)
{
    static const char *const pairs[][2] = {{"Psum", "R"}, {"Psum", "S0"}, {"S0", "R"},
                                           {"S0", "S1"},  {"Psum", "S1"}, {"R", "S1"}};
    static const struct {
        uint32_t engines;
        const uint8_t *engine_of, *host_of;
        dt_rig_how_t how;
    } worlds[] = {{1, on_one, one_host, DT_RIG_PLAIN},    {2, two_each, one_host, DT_RIG_PLAIN},
                  {4, one_each, one_host, DT_RIG_PLAIN},  {3, mixed, one_host, DT_RIG_PLAIN},
                  {2, two_each, host_each, DT_RIG_PLAIN}, {4, one_each, host_each, DT_RIG_PLAIN},
                  {4, one_each, two_hosts, DT_RIG_PLAIN}, {3, mixed, two_hosts, DT_RIG_PLAIN},
                  {4, one_each, host_each, DT_RIG_TLS},   {3, mixed, two_hosts, DT_RIG_TLS}};
    const uint32_t four = 4;
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        uint64_t first = 0;
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            dt_rig_t rig;
            dt_rig_case_t c;
            dt_rig_open_hosts(&rig, worlds[w].engines, 1, worlds[w].engine_of, worlds[w].host_of,
                              worlds[w].how);
            dt_rig_case(&c, DT_DTYPE_F32, 2, (const int64_t[]){1237, 251}, 1, &four, pairs[p][0],
                        pairs[p][1], p);
            for (uint32_t i = 0; i < worlds[w].engines; i++)
                dt_rig_start(&rig, i, 0, &c, 1, NULL);
            dt_rig_finish(&rig);
            uint64_t sum = dt_rig_sum(&rig, 0, &c);
            first = w == 0 ? sum : first;
            for (uint32_t i = 0; i < worlds[w].engines; i++)
                cr_expect_eq(rig.engines[i].moves[0].status, DT_OK, "%s",
                             rig.engines[i].moves[0].err.text);
            cr_expect_eq(sum, first, "%s to %s, world %zu", pairs[p][0], pairs[p][1], w);
            dt_rig_close(&rig);
        }
    }
}

Test(transport, buffers_outside_of_the_arena_go_through_it)
{
    dt_rig_t rig;
    dt_rig_open(&rig, 3, 1, mixed);
    rig.is_in_heap = true;
    check_pairs(&rig, DT_DTYPE_F32, (const int64_t[]){7, 5}, 2, (const uint32_t[]){2, 3}, words_2d,
                11);
    dt_rig_close(&rig);
}

Test(transport, other_meshes_and_engines_that_take_no_part)
{
    const uint32_t sizes[] = {3, 2, 2};
    dt_rig_t rig;
    dt_rig_open(&rig, 4, 1, two_each);
    for (size_t a = 0; a < 4; a++)
        for (size_t b = 0; b < 4; b++) {
            dt_rig_case_t c;
            dt_error_t err = {0};
            dt_rig_case(&c, DT_DTYPE_F64, 2, (const int64_t[]){7, 6}, 1, &sizes[0], words_1d[a],
                        words_1d[b], a);
            c.vdevs[1][0] = 4; /* to devices 4 and 1 */
            c.vdevs[1][1] = 1;
            c.is_exact = b == 3;
            cr_assert_eq(dt_shard_mesh_init(&c.to_mesh, 1, &sizes[1], c.vdevs[1], &err), DT_OK);
            check(&rig, &c, words_1d[a], words_1d[b]);
        }
    dt_rig_close(&rig);
}

Test(transport, sessions_in_opposite_order_on_shared_engines_do_not_lock_each_other_out)
{
    const uint32_t two = 2;
    dt_rig_t rig;
    dt_rig_case_t c;
    char what[600];
    dt_rig_open(&rig, 2, 2, one_each);
    for (uint64_t round = 1; round <= 50; round++) {
        dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){1000}, 1, &two, "Psum", "R", round);
        dt_rig_start(&rig, 0, 0, &c, round, NULL);
        dt_rig_start(&rig, 1, 1, &c, round, NULL);
        dt_rig_start(&rig, 0, 1, &c, round, NULL);
        dt_rig_start(&rig, 1, 0, &c, round, NULL);
        dt_rig_finish(&rig);
        for (uint32_t s = 0; s < 2; s++) {
            cr_assert(dt_rig_compare(&rig, s, &c, what, sizeof what), "%s", what);
            dt_rig_drop(&rig, s);
        }
    }
    dt_rig_close(&rig);
}

/* ---- what goes wrong ---- */

Test(transport, a_poisoned_input_ends_all_with_the_smallest_cause)
{
    const uint32_t three = 3;
    dt_rig_t rig;
    dt_rig_case_t c;
    char what[600];
    dt_rig_open(&rig, 3, 1, one_each);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &three, "Psum", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    dt_rig_start(&rig, 1, 0, &c, 1, "the first");
    dt_rig_start(&rig, 2, 0, &c, 1, "the second");
    dt_rig_finish(&rig);
    for (uint32_t e = 0; e < 3; e++) {
        cr_expect_eq(rig.engines[e].moves[0].status, DT_ERR_PEER);
        cr_expect_eq(rig.engines[e].moves[0].cause_sequence, 11);
        cr_expect_str_eq(rig.engines[e].moves[0].cause, "the first");
    }
    dt_rig_drop(&rig, 0);
    rig.number = 1;
    cr_expect(dt_rig_check(&rig, &c, what, sizeof what), "the next one is sound: %s", what);
    dt_rig_close(&rig);
}

Test(transport, a_lost_member_ends_the_exchange_for_all_and_is_named)
{
    const uint32_t three = 3;
    const uint32_t two = 2;
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_error_t err = {0};
    char what[600];
    dt_rig_open(&rig, 3, 1, one_each);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &three, "S0", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    dt_rig_start(&rig, 2, 0, &c, 1, NULL);
    dt_board_lose(rig.boards[0][0], 1, "");
    dt_ring_wake(rig.engines[0].wake);
    dt_ring_wake(rig.engines[2].wake);
    dt_rig_finish(&rig);
    for (uint32_t e = 0; e < 3; e += 2) {
        cr_expect_eq(rig.engines[e].moves[0].status, DT_ERR_LOST);
        cr_expect(strstr(rig.engines[e].moves[0].err.text, "node1"), "%s",
                  rig.engines[e].moves[0].err.text);
        cr_expect(strstr(rig.engines[e].moves[0].err.text, "test of float32 (10,)"), "%s",
                  rig.engines[e].moves[0].err.text);
    }
    dt_rig_drop(&rig, 0);
    rig.engines[1].moves[0].is_started = false;
    c.vdevs[0][1] = c.vdevs[1][1] = 2; /* those who live go on */
    cr_assert_eq(dt_shard_mesh_init(&c.from_mesh, 1, &two, c.vdevs[0], &err), DT_OK);
    cr_assert_eq(dt_shard_mesh_init(&c.to_mesh, 1, &two, c.vdevs[1], &err), DT_OK);
    rig.number = 1;
    cr_expect(dt_rig_check(&rig, &c, what, sizeof what), "%s", what);
    dt_rig_close(&rig);
}

static void lose_a_host(dt_rig_how_t how)
{
    static const uint8_t hosts[] = {0, 0, 1};
    const uint32_t three = 3;
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_rig_open_hosts(&rig, 3, 1, one_each, hosts, how);
    dt_rig_case(&c, DT_DTYPE_F32, 2, (const int64_t[]){3000, 1000}, 1, &three, "Psum", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    dt_rig_start(&rig, 1, 0, &c, 1, NULL);
    dt_transport_close(rig.engines[2].transport, 0); /* its sockets end, as when it dies */
    dt_rig_finish(&rig);
    for (uint32_t e = 0; e < 2; e++) {
        cr_expect_eq(rig.engines[e].moves[0].status, DT_ERR_LOST);
        cr_expect(strstr(rig.engines[e].moves[0].err.text, "node2"), "%s",
                  rig.engines[e].moves[0].err.text);
    }
    dt_rig_close(&rig);
}

Test(transport, a_host_that_is_lost_ends_the_exchange_for_all_and_is_named)
{
    lose_a_host(DT_RIG_PLAIN);
    lose_a_host(DT_RIG_TLS);
}

static void tell_a_cause(dt_rig_how_t how)
{
    const uint32_t three = 3;
    dt_rig_t rig;
    dt_rig_case_t c;
    char what[600];
    dt_rig_open_hosts(&rig, 3, 1, one_each, host_each, how);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &three, "Psum", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    dt_rig_start(&rig, 1, 0, &c, 1, "the first");
    dt_rig_start(&rig, 2, 0, &c, 1, "the second");
    dt_rig_finish(&rig);
    for (uint32_t e = 0; e < 3; e++)
        cr_expect_str_eq(rig.engines[e].moves[0].cause, "the first");
    dt_rig_drop(&rig, 0);
    rig.number = 1;
    cr_expect(dt_rig_check(&rig, &c, what, sizeof what), "the next one is sound: %s", what);
    dt_rig_close(&rig);
}

Test(transport, a_cause_goes_to_other_hosts)
{
    tell_a_cause(DT_RIG_PLAIN);
    tell_a_cause(DT_RIG_TLS);
}

Test(transport, a_member_that_closes_in_the_middle_holds_nobody)
{
    const uint32_t two = 2;
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_rig_open(&rig, 2, 1, one_each);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &two, "Psum", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    dt_transport_close(rig.engines[1].transport, 0);
    dt_rig_finish(&rig);
    cr_expect_eq(rig.engines[0].moves[0].status, DT_ERR_LOST);
    dt_rig_close(&rig);
}

Test(transport, a_place_outside_of_a_peers_arena_is_refused)
{
    const uint32_t two = 2;
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_rig_open(&rig, 2, 1, one_each);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &two, "Psum", "R", 1);
    /* Member 1 is played: it says a place and that it has published. */
    for (uint64_t number = 1; number <= 3; number++) {
        static const uint64_t places[] = {UINT64_MAX - 8, 3, UINT64_C(1) << 40};
        dt_board_t *board = rig.boards[0][0];
        atomic_store(&board->buffers[1].source, places[number - 1]);
        atomic_store(&board->buffers[1].target, places[number - 1]);
        atomic_store(&board->slots[1].word, dt_board_word(number, DT_BOARD_ENDED));
        dt_rig_start(&rig, 0, 0, &c, number, NULL);
        dt_rig_finish(&rig);
        cr_expect_eq(rig.engines[0].moves[0].status, DT_ERR_PEER, "%s",
                     rig.engines[0].moves[0].err.text);
        dt_rig_drop(&rig, 0);
    }
    dt_rig_close(&rig);
}

Test(transport, a_device_without_an_engine_is_refused_by_name)
{
    const uint32_t three = 3;
    const uint8_t lacking[DT_RIG_VDEVS_MAX] = {0, 0, 7};
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_rig_open(&rig, 1, 1, lacking);
    dt_rig_case(&c, DT_DTYPE_F32, 1, (const int64_t[]){10}, 1, &three, "Psum", "R", 1);
    dt_rig_start(&rig, 0, 0, &c, 1, NULL);
    cr_expect_eq(rig.engines[0].moves[0].status, DT_ERR_NOT_FOUND);
    cr_expect(strstr(rig.engines[0].moves[0].err.text, "virtual device 2"));
    dt_rig_close(&rig);
}
