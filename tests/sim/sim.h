/* The simulator: one controller core and some agent cores, the same object code as the daemons',
 * under virtual time. A model of everything around them, driven by one seed:
 *   processes  killed, stopped, restarted, starved of processor time; each with its own clocks
 *              (offset, drift; the wall clock jumps)
 *   network    streams in order, each with its own delays (so order across streams is arbitrary),
 *              black holes, losses that each side learns of at its own time and perhaps twice
 *   disk       durable some time after the write, stalls; a crash keeps a prefix of what was
 * written people     drain, undrain, cordon, uncordon with request ids, sent again after a crash
 *   strangers  clones of a node, thieves of a name, malformed messages, streams without hello
 * sim_check.c holds what must be true after every step, and what must come true when faults end. */
#ifndef SIM_SIM_H
#define SIM_SIM_H
#include <stdbool.h>
#include <stdint.h>

#include "core/agent.h"
#include "core/cluster.h"

#define SIM_MS          INT64_C(1000000)
#define SIM_SECOND      (1000 * SIM_MS)
#define SIM_NODES_MAX   5
#define SIM_AGENTS_MAX  (SIM_NODES_MAX + 2) /* and a clone, and a thief of a name */
#define SIM_CLONE       SIM_NODES_MAX
#define SIM_THIEF       (SIM_NODES_MAX + 1)
#define SIM_CONNS_MAX   512
#define SIM_RECORDS_MAX 16384
#define SIM_FAULTS_NS   (40 * SIM_SECOND)
#define SIM_CALM_NS     (30 * SIM_SECOND) /* all must be well again within this */

typedef enum sim_kind {
    SIM_TICK = 1, /* process */
    SIM_DELIVER,  /* conn, side, data */
    SIM_OPENED,   /* conn, side */
    SIM_CLOSED,   /* conn, side */
    SIM_DURABLE,  /* journal up to a record */
    SIM_FAULT,    /* inject one, plan the next */
    SIM_RESTART,  /* process */
    SIM_DISK,     /* the stall ends */
    SIM_PEOPLE,   /* a person does something */
    SIM_SCENE,    /* engine events, devices */
} sim_kind_t;

typedef struct sim_event {
    int64_t at_ns;
    uint64_t order;
    sim_kind_t kind;
    int process;         /* -1: nobody's; starving it delays the event */
    uint64_t generation; /* of that process; an event for an earlier life is dropped */
    uint32_t conn;
    uint64_t number;
    uint8_t *data;
    size_t size;
} sim_event_t;

/* Process 0 is the controller, 1.. are agents. */
typedef struct sim_process {
    bool is_up;
    bool stays_down;     /* until the faults end */
    uint64_t generation; /* of its life */
    int64_t offset_ns;   /* of its monotonic clock */
    int64_t drift_ppm;
    int64_t wall_offset_ms;
    int64_t started_ns;
    int64_t starved_until_ns;
    int64_t unhealthy_until_ns; /* end of its last starvation or start */
    uint64_t tick_number;       /* of the tick that counts */
} sim_process_t;

typedef struct sim_agent {
    dt_agent_t *core;
    uint8_t node_id[16];
    char name[16];
    uint8_t cluster_id[16]; /* its disk */
    uint64_t epoch_seen;
    uint64_t incarnation;
    uint64_t devices; /* bit set of what is there */
    uint32_t conn;    /* in use; 0: none */
    uint64_t highest_epoch;
} sim_agent_t;

enum { SIM_SIDE_AGENT = 0, SIM_SIDE_CONTROLLER = 1 };

typedef struct sim_conn {
    bool is_used;
    int agent;
    uint64_t agent_stream;
    uint64_t agent_generation, controller_generation;
    uint64_t stream;    /* the controller's number */
    bool is_open[2];    /* by side */
    bool is_broken;     /* what is in flight is lost */
    int64_t last_ns[2]; /* delivery of the last thing toward a side */
    int64_t hole_until_ns;
    bool is_welcomed; /* a Welcome went out and no CLOSE */
    int intent;       /* last sent, -1 none */
} sim_conn_t;

/* What a person asked for and what was answered. */
typedef struct sim_wish {
    bool is_pending;
    uint64_t ticket;
    uint32_t asked; /* times */
    int change;
    int target; /* category: 0 enabled, 1 cordoned, 2 draining or drained */
    int acked;  /* category */
    char request_id[32];
} sim_wish_t;

typedef struct sim {
    uint64_t seed, random;
    bool is_traced;
    int64_t now_ns;
    bool are_faults_over;
    char failure[512]; /* the first; empty: none */

    sim_event_t *heap;
    uint32_t heap_count, heap_max;
    uint64_t order;

    sim_process_t processes[1 + SIM_AGENTS_MAX];
    sim_agent_t agents[SIM_AGENTS_MAX];
    int node_count;
    dt_cluster_t *cluster;
    sim_conn_t conns[SIM_CONNS_MAX];
    uint64_t next_stream, next_incarnation, next_ticket;

    /* disk of the controller */
    struct {
        uint8_t *data;
        size_t size;
    } records[SIM_RECORDS_MAX];
    uint32_t record_count;  /* written, of all lives */
    uint32_t durable_count; /* safe */
    uint32_t life_base;     /* record_count when this life began */
    int64_t stalled_until_ns;
    uint64_t durable_epoch; /* highest in safe records */
    bool is_first_known;    /* n0 is in them, so a thief cannot have its name */

    sim_wish_t wishes[SIM_NODES_MAX];

    /* shadows for the checks */
    uint64_t seen_event;          /* highest visible sequence ever */
    uint64_t event_hashes[65536]; /* by sequence, of what was shown */
    uint64_t last_epoch;
    uint64_t engine_shown[SIM_AGENTS_MAX][64]; /* bit set by sequence & 4095 of this incarnation */
    uint64_t engine_incarnation[SIM_AGENTS_MAX];
    uint64_t engine_acked[SIM_AGENTS_MAX]; /* acknowledged in this step, not checked yet; 0: none */
    bool was_event_lost;                   /* some were suppressed or dropped, and counted */
    uint64_t steps;
} sim_t;

/* Run one seed. Returns true if all held; else sim->failure says what did not. */
bool sim_run(uint64_t seed, bool is_traced, char failure[static 512], uint64_t *ret_steps);

/* sim.c */
uint64_t sim_random(sim_t *sim, uint64_t bound); /* 0..bound-1 */
int64_t sim_local_ns(const sim_t *sim, int process);
int64_t sim_wall_ms(const sim_t *sim, int process);
void sim_trace(const sim_t *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_fail(sim_t *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_push(sim_t *sim, sim_event_t event);
void sim_plan_tick(sim_t *sim, int process);
void sim_perform(sim_t *sim); /* the actions of all cores */

/* sim_world.c */
void sim_start_agent(sim_t *sim, int agent);
void sim_give_inventory(sim_t *sim, int agent);
void sim_kill_agent(sim_t *sim, int agent, bool says_bye);
void sim_start_controller(sim_t *sim);
void sim_kill_controller(sim_t *sim, bool says_bye);
void sim_perform_cluster(sim_t *sim);
void sim_perform_agent(sim_t *sim, int agent);
void sim_deliver(sim_t *sim, const sim_event_t *event);
void sim_opened(sim_t *sim, const sim_event_t *event);
void sim_closed(sim_t *sim, const sim_event_t *event);
void sim_durable(sim_t *sim, const sim_event_t *event);
void sim_break_conn(sim_t *sim, sim_conn_t *conn);
void sim_close_side(sim_t *sim, sim_conn_t *conn, int side, int64_t delay_ns);

/* sim_faults.c */
void sim_inject(sim_t *sim);
void sim_end_faults(sim_t *sim);
void sim_people(sim_t *sim);
void sim_scene(sim_t *sim);

/* sim_check.c */
void sim_check_step(sim_t *sim);
void sim_check_restored(sim_t *sim);
void sim_check_calm(sim_t *sim);
void sim_check_cluster_close(sim_t *sim, const sim_conn_t *conn, const char *text);
void sim_check_agent_close(sim_t *sim, const sim_conn_t *conn, const char *text);
void sim_check_sent(sim_t *sim, sim_conn_t *conn, const Dtorch__V1__WorkerDown *down);

#endif
