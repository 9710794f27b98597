/* Leases: when silence of a peer becomes SUSPECT and DEAD. Shared by controller and agent.
 *
 * Silence counts from the last received byte of any kind, on a monotonic clock. It must never be
 * taken for death when in truth this machine, or the peer's, had no processor time:
 *
 *  1. *We* were starved. While this process did not run it could not read, so that time proves
 *     nothing about the peer: its bytes lie in our socket. Silence is therefore not measured in
 *     clock time but in *observed time*: at each turn of our timer the observed clock moves by the
 *     time since the last turn, but by no more than step_max (half an interval). Suppose the peer
 *     sends a beat each interval and we are stopped for any time T, any number of times. Each stop
 *     adds at most step_max to the observed clock, and the turn that ends it is followed by the
 *     loop reading what has arrived before the next turn. To reach DEAD the observed clock must
 *     move by dead_beats intervals without one byte read, which takes at least 2 * dead_beats
 *     turns of our own timer, and each of these turns had its chance to read. So two missed timers
 *     (or two hundred, with reads between) never kill a peer that lives.
 *     The same rule by another name: lateness of our own timer is added to the peer's patience.
 *  2. *The peer* was starved. Each beat carries how late the sender's timer fired. The largest
 *     recent value is added to the bounds; it halves with each punctual beat, and it is capped by
 *     dead_beats intervals, so that a peer that lies can at most double its own deadline.
 *  3. *The network* was slow: nothing tells this from death; that is what the bounds are for.
 *
 * DEAD by silence comes only from SUSPECT and only in dt_lease_check(), one step a turn. A closed
 * connection is not this module's matter: that is death at once, or a planned end.
 *
 * Progress: beats carry a counter of the sender's work. DT_LEASE_STUCK_BEATS beats with one value
 * mean alive but stuck; a peer whose timers are late, but whose counter moves, is slow.
 *
 * Threads: none of its own. No allocation. Never blocks. */
#ifndef DT_CORE_LEASE_H
#define DT_CORE_LEASE_H
#include <stdbool.h>
#include <stdint.h>

#define DT_LEASE_STUCK_BEATS 20u

/* Settings of all leases of a process; the controller's win (in the Welcome). */
typedef struct dt_lease_rules {
    int64_t interval_ns;    /* between beats, 50 ms..60 s */
    uint32_t suspect_beats; /* 2..100 */
    uint32_t dead_beats;    /* above suspect_beats, at most 1000 */
} dt_lease_rules_t;

/* Time as this process was able to see it. One for each process, moved once a turn. */
typedef struct dt_lease_clock {
    int64_t observed_ns;   /* never moves by more than step_max_ns a turn */
    int64_t turn_ns;       /* monotonic time of the last turn */
    int64_t deadline_ns;   /* when the next turn is due */
    int64_t late_ns;       /* largest lateness of our turns lately; what our beats report */
    int64_t late_total_ns; /* since the start, for diagnostics */
    int64_t quantum_ns;    /* between turns: interval / 4 */
} dt_lease_clock_t;

typedef enum dt_lease_state {
    DT_LEASE_ALIVE = 0,
    DT_LEASE_SUSPECT,
    DT_LEASE_DEAD,
} dt_lease_state_t;

typedef struct dt_lease {
    dt_lease_state_t state;
    int64_t heard_observed_ns; /* observed time of the last received byte */
    int64_t heard_ns;          /* monotonic time of it, for display */
    int64_t peer_late_ns;      /* patience that the peer's reports bought, already capped */
    uint64_t progress;         /* of the last beat */
    uint64_t beat_sequence;    /* of the last beat */
    uint32_t same_progress;    /* beats in a row with that progress */
} dt_lease_t;

void dt_lease_clock_init(dt_lease_clock_t *clock, const dt_lease_rules_t *rules, int64_t now_ns);
/* New settings; the observed time goes on. */
void dt_lease_clock_set_rules(dt_lease_clock_t *clock, const dt_lease_rules_t *rules);
/* Take a turn if one is due. True: it was, so check the leases and send beats now. */
bool dt_lease_clock_turn(dt_lease_clock_t *clock, int64_t now_ns);
/* Observed time now, between turns too. */
int64_t dt_lease_clock_observed(const dt_lease_clock_t *clock, int64_t now_ns);

void dt_lease_init(dt_lease_t *lease, const dt_lease_clock_t *clock, int64_t now_ns);
/* Bytes came. True if the lease was SUSPECT and is ALIVE again. A DEAD lease stays dead. */
bool dt_lease_heard(dt_lease_t *lease, const dt_lease_clock_t *clock, int64_t now_ns);
/* The bytes were a beat; call after dt_lease_heard(). */
void dt_lease_beat(dt_lease_t *lease, const dt_lease_rules_t *rules, uint64_t sequence,
                   uint64_t progress, int64_t late_ns);
/* Judge at a turn. Returns the new state; it moves by one step at most. */
dt_lease_state_t dt_lease_check(dt_lease_t *lease, const dt_lease_rules_t *rules,
                                const dt_lease_clock_t *clock);
/* Alive but without progress for DT_LEASE_STUCK_BEATS beats. */
bool dt_lease_is_stuck(const dt_lease_t *lease);
/* Clock time since the last received byte, for display. */
int64_t dt_lease_silence_ns(const dt_lease_t *lease, int64_t now_ns);
const char *dt_lease_state_text(dt_lease_state_t state);

#endif
