/* The communication queue by itself: order, marks, what is acknowledged. */
#include <criterion/criterion.h>

#include "core/moves.h"

TestSuite(moves, .timeout = 10);

typedef struct one {
    dt_move_t move;
    dt_move_mark_t *reads[2], *makes[2];
} one_t;

static dt_move_t *reading(one_t *one, uint64_t sequence, dt_move_mark_t *read, dt_move_mark_t *make)
{
    *one = (one_t){.move = {.sequence = sequence, .read_count = 1, .make_count = 1}};
    one->reads[0] = read;
    one->makes[0] = make;
    one->move.reads = one->reads;
    one->move.makes = one->makes;
    return &one->move;
}

Test(moves, begin_in_order_and_one_at_a_time)
{
    dt_moves_t moves;
    dt_move_mark_t marks[4] = {{0}};
    one_t ones[2];
    dt_moves_init(&moves);
    cr_assert_null(dt_moves_next(&moves));
    dt_moves_push(&moves, reading(&ones[0], 5, &marks[0], &marks[1]));
    dt_moves_push(&moves, reading(&ones[1], 9, &marks[0], &marks[2]));
    cr_assert_eq(dt_moves_next(&moves), &ones[0].move);
    cr_assert_null(dt_moves_next(&moves), "the first one runs");
    dt_moves_end(&moves);
    cr_assert_eq(dt_moves_next(&moves), &ones[1].move);
    dt_moves_end(&moves);
    cr_assert_null(dt_moves_next(&moves));
    cr_assert_eq(moves.count, 0);
}

Test(moves, leave_what_they_read_to_readers_and_what_they_make_to_nobody)
{
    dt_moves_t moves;
    dt_move_mark_t source = {0}, first = {0}, second = {0};
    one_t ones[2];
    dt_moves_init(&moves);
    cr_assert(dt_move_may_write(&source));
    dt_moves_push(&moves, reading(&ones[0], 5, &source, &first));
    dt_moves_push(&moves, reading(&ones[1], 6, &source, &second));
    cr_expect(dt_move_may_read(&source));
    cr_expect(!dt_move_may_write(&source));
    cr_expect(!dt_move_may_read(&first));
    cr_expect(!dt_move_may_write(&second));
    (void)dt_moves_next(&moves);
    dt_moves_end(&moves);
    cr_expect(!dt_move_may_write(&source), "the second one reads it still");
    cr_expect(dt_move_may_write(&first));
    cr_expect(!dt_move_may_read(&second));
    (void)dt_moves_next(&moves);
    dt_moves_end(&moves);
    cr_expect(dt_move_may_write(&source));
    cr_expect(dt_move_may_read(&second));
}

Test(moves, nothing_behind_an_open_one_is_acknowledged)
{
    dt_moves_t moves;
    dt_move_mark_t marks[3] = {{0}};
    one_t ones[2];
    dt_moves_init(&moves);
    cr_expect_eq(dt_moves_settled(&moves, 4), 4);
    dt_moves_push(&moves, reading(&ones[0], 5, &marks[0], &marks[1]));
    cr_expect_eq(dt_moves_settled(&moves, 4), 4, "its record is not performed yet");
    cr_expect_eq(dt_moves_settled(&moves, 5), 4);
    dt_moves_push(&moves, reading(&ones[1], 8, &marks[0], &marks[2]));
    cr_expect_eq(dt_moves_settled(&moves, 20), 4);
    (void)dt_moves_next(&moves);
    dt_moves_end(&moves);
    cr_expect_eq(dt_moves_settled(&moves, 20), 7);
    cr_expect_eq(dt_moves_take(&moves), &ones[1].move, "it need not run to be given up");
    cr_expect_eq(dt_moves_settled(&moves, 20), 20);
    cr_expect_null(dt_moves_take(&moves));
    cr_expect(dt_move_may_write(&marks[0]) && dt_move_may_read(&marks[2]));
}

Test(moves, are_bounded)
{
    static one_t ones[DT_MOVES_MAX];
    static dt_move_mark_t marks[DT_MOVES_MAX];
    dt_moves_t moves;
    dt_move_mark_t source = {0};
    dt_moves_init(&moves);
    for (uint32_t i = 0; i < DT_MOVES_MAX; i++) {
        cr_assert(!dt_moves_is_full(&moves));
        dt_moves_push(&moves, reading(&ones[i], 1 + i, &source, &marks[i]));
    }
    cr_assert(dt_moves_is_full(&moves));
    cr_assert_eq(source.readers, DT_MOVES_MAX);
    (void)dt_moves_next(&moves);
    dt_moves_end(&moves);
    cr_assert(!dt_moves_is_full(&moves));
}
