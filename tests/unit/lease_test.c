#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "core/lease.h"

#define MS_NS INT64_C(1000000)

static const dt_lease_rules_t rules = {250 * MS_NS, 3, 8};

struct side {
    dt_lease_clock_t clock;
    dt_lease_t lease;
    int64_t now_ns;
};

static struct side start(void)
{
    struct side side = {.now_ns = 5000 * MS_NS};
    dt_lease_clock_init(&side.clock, &rules, side.now_ns);
    dt_lease_init(&side.lease, &side.clock, side.now_ns);
    return side;
}

/* Let turns come when they are due, for some time. */
static dt_lease_state_t pass(struct side *side, int64_t ms)
{
    int64_t end_ns = side->now_ns + ms * MS_NS;
    while (side->clock.deadline_ns <= end_ns) {
        side->now_ns = side->clock.deadline_ns;
        if (dt_lease_clock_turn(&side->clock, side->now_ns))
            (void)dt_lease_check(&side->lease, &rules, &side->clock);
    }
    side->now_ns = end_ns;
    return side->lease.state;
}

/* One turn that comes `ms` later than now. */
static dt_lease_state_t starve(struct side *side, int64_t ms)
{
    side->now_ns += ms * MS_NS;
    cr_assert(dt_lease_clock_turn(&side->clock, side->now_ns));
    return dt_lease_check(&side->lease, &rules, &side->clock);
}

TestSuite(lease, .timeout = 60);

Test(lease, is_suspect_after_three_intervals_of_silence_and_dead_after_eight)
{
    struct side side = start();
    cr_assert_eq(pass(&side, 700), DT_LEASE_ALIVE);
    cr_assert_eq(pass(&side, 200), DT_LEASE_SUSPECT);
    cr_assert_eq(pass(&side, 1050), DT_LEASE_SUSPECT);
    cr_assert_eq(pass(&side, 200), DT_LEASE_DEAD);
    cr_assert_eq(dt_lease_silence_ns(&side.lease, side.now_ns), 2150 * MS_NS);
}

Test(lease, is_alive_again_when_a_suspect_is_heard)
{
    struct side side = start();
    (void)pass(&side, 1000);
    cr_assert(dt_lease_heard(&side.lease, &side.clock, side.now_ns));
    cr_assert_eq(side.lease.state, DT_LEASE_ALIVE);
    cr_assert_not(dt_lease_heard(&side.lease, &side.clock, side.now_ns));
    cr_assert_eq(pass(&side, 700), DT_LEASE_ALIVE);
}

Test(lease, stays_dead_when_bytes_come_too_late)
{
    struct side side = start();
    (void)pass(&side, 3000);
    cr_assert_not(dt_lease_heard(&side.lease, &side.clock, side.now_ns));
    cr_assert_eq(side.lease.state, DT_LEASE_DEAD);
}

Test(lease, does_not_die_by_two_missed_timers_of_ours)
{
    struct side side = start();
    (void)pass(&side, 250);
    (void)starve(&side, 60000);
    cr_assert_neq(starve(&side, 60000), DT_LEASE_DEAD);
}

Test(lease, is_not_even_suspect_after_one_missed_timer_of_ours)
{
    struct side side = start();
    (void)pass(&side, 250);
    cr_assert_eq(starve(&side, 3600 * 1000), DT_LEASE_ALIVE);
}

Test(lease, survives_any_number_of_missed_timers_with_a_read_between)
{
    struct side side = start();
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(starve(&side, 5000), DT_LEASE_ALIVE);
        (void)dt_lease_heard(&side.lease, &side.clock, side.now_ns);
    }
}

Test(lease, still_dies_by_silence_while_turns_are_late)
{
    struct side side = start();
    int turns = 0;
    while (starve(&side, 400) != DT_LEASE_DEAD)
        cr_assert_lt(++turns, 40);
    cr_assert_geq(turns, 15);
}

Test(lease, gives_a_peer_that_reports_lateness_that_much_more_time)
{
    struct side side = start();
    dt_lease_beat(&side.lease, &rules, 1, 1, 1000 * MS_NS);
    cr_assert_eq(pass(&side, 1700), DT_LEASE_ALIVE);
    cr_assert_eq(pass(&side, 200), DT_LEASE_SUSPECT);
    cr_assert_eq(pass(&side, 1050), DT_LEASE_SUSPECT);
    cr_assert_eq(pass(&side, 200), DT_LEASE_DEAD);
}

Test(lease, lets_a_liar_no_more_than_double_its_deadline)
{
    struct side side = start();
    dt_lease_beat(&side.lease, &rules, 1, 1, INT64_MAX);
    cr_assert_eq(pass(&side, 4300), DT_LEASE_DEAD);
}

Test(lease, forgets_a_peers_lateness_with_punctual_beats)
{
    struct side side = start();
    dt_lease_beat(&side.lease, &rules, 1, 1, 1000 * MS_NS);
    for (uint64_t i = 2; i < 20; i++)
        dt_lease_beat(&side.lease, &rules, i, i, 0);
    cr_assert_lt(side.lease.peer_late_ns, MS_NS);
}

Test(lease, tells_stuck_from_alive_by_progress)
{
    struct side side = start();
    for (uint64_t i = 1; i <= DT_LEASE_STUCK_BEATS; i++)
        dt_lease_beat(&side.lease, &rules, i, 7, 0);
    cr_assert_not(dt_lease_is_stuck(&side.lease));
    dt_lease_beat(&side.lease, &rules, 99, 7, 0);
    cr_assert(dt_lease_is_stuck(&side.lease));
    dt_lease_beat(&side.lease, &rules, 100, 8, 0);
    cr_assert_not(dt_lease_is_stuck(&side.lease));
}

Test(lease, reports_its_own_lateness_and_forgets_it)
{
    struct side side = start();
    (void)starve(&side, 1000);
    cr_assert_gt(side.clock.late_ns, 900 * MS_NS);
    (void)pass(&side, 3000);
    cr_assert_eq(side.clock.late_ns, 0);
}
