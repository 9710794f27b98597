/* Leases: observed time and the two bounds. The argument is in the header. */
#include "core/lease.h"

#include <stddef.h>

#define QUANTA_PER_INTERVAL 4                /* turns of our timer in one interval */
#define QUANTA_PER_STEP     2                /* most that one turn may move the observed clock */
#define LATE_SLACK_NS       INT64_C(2000000) /* timers of milliseconds: no lateness worth telling */

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void dt_lease_clock_set_rules(dt_lease_clock_t *clock, const dt_lease_rules_t *rules)
{
    clock->quantum_ns = rules->interval_ns / QUANTA_PER_INTERVAL;
}

void dt_lease_clock_init(dt_lease_clock_t *clock, const dt_lease_rules_t *rules, int64_t now_ns)
{
    *clock = (dt_lease_clock_t){.turn_ns = now_ns};
    dt_lease_clock_set_rules(clock, rules);
    clock->deadline_ns = now_ns + clock->quantum_ns;
}

int64_t dt_lease_clock_observed(const dt_lease_clock_t *clock, int64_t now_ns)
{
    int64_t passed_ns = now_ns > clock->turn_ns ? now_ns - clock->turn_ns : 0;
    return clock->observed_ns + min_ns(passed_ns, QUANTA_PER_STEP * clock->quantum_ns);
}

bool dt_lease_clock_turn(dt_lease_clock_t *clock, int64_t now_ns)
{
    if (now_ns < clock->deadline_ns)
        return false;
    int64_t late_ns = now_ns - clock->deadline_ns;
    if (late_ns < LATE_SLACK_NS)
        late_ns = 0;
    clock->observed_ns = dt_lease_clock_observed(clock, now_ns);
    clock->turn_ns = now_ns;
    clock->late_total_ns += late_ns;
    /* Forgets by a quarter a turn, so by two thirds in an interval. */
    int64_t faded_ns = clock->late_ns - clock->late_ns / 4;
    clock->late_ns = late_ns > faded_ns ? late_ns : faded_ns;
    if (clock->late_ns < LATE_SLACK_NS)
        clock->late_ns = 0;
    clock->deadline_ns += clock->quantum_ns; /* from the deadline, so that turns do not drift */
    if (clock->deadline_ns <= now_ns)
        clock->deadline_ns = now_ns + clock->quantum_ns;
    return true;
}

void dt_lease_init(dt_lease_t *lease, const dt_lease_clock_t *clock, int64_t now_ns)
{
    *lease = (dt_lease_t){
        .heard_observed_ns = dt_lease_clock_observed(clock, now_ns),
        .heard_ns = now_ns,
    };
}

bool dt_lease_heard(dt_lease_t *lease, const dt_lease_clock_t *clock, int64_t now_ns)
{
    if (lease->state == DT_LEASE_DEAD)
        return false;
    bool was_suspect = lease->state == DT_LEASE_SUSPECT;
    lease->state = DT_LEASE_ALIVE;
    lease->heard_observed_ns = dt_lease_clock_observed(clock, now_ns);
    lease->heard_ns = now_ns;
    return was_suspect;
}

void dt_lease_beat(dt_lease_t *lease, const dt_lease_rules_t *rules, uint64_t sequence,
                   uint64_t progress, int64_t late_ns)
{
    int64_t cap_ns = rules->interval_ns * rules->dead_beats;
    int64_t faded_ns = lease->peer_late_ns / 2;
    late_ns = min_ns(late_ns < 0 ? 0 : late_ns, cap_ns);
    lease->peer_late_ns = late_ns > faded_ns ? late_ns : faded_ns;
    if (lease->beat_sequence && progress == lease->progress)
        lease->same_progress++;
    else
        lease->same_progress = 0;
    lease->progress = progress;
    lease->beat_sequence = sequence;
}

dt_lease_state_t dt_lease_check(dt_lease_t *lease, const dt_lease_rules_t *rules,
                                const dt_lease_clock_t *clock)
{
    int64_t silence_ns = clock->observed_ns - lease->heard_observed_ns - lease->peer_late_ns;
    if (lease->state == DT_LEASE_SUSPECT && silence_ns > rules->interval_ns * rules->dead_beats)
        lease->state = DT_LEASE_DEAD;
    else if (lease->state == DT_LEASE_ALIVE &&
             silence_ns > rules->interval_ns * rules->suspect_beats)
        lease->state = DT_LEASE_SUSPECT;
    return lease->state;
}

bool dt_lease_is_stuck(const dt_lease_t *lease)
{
    return lease->same_progress >= DT_LEASE_STUCK_BEATS;
}

int64_t dt_lease_silence_ns(const dt_lease_t *lease, int64_t now_ns)
{
    return now_ns > lease->heard_ns ? now_ns - lease->heard_ns : 0;
}

const char *dt_lease_state_text(dt_lease_state_t state)
{
    static const char *const texts[] = {"alive", "suspect", "dead"};
    return texts[state];
}
