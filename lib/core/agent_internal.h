/* The agent's inside, shared by agent.c (states) and agent_out.c (actions and what is sent). */
#ifndef DT_CORE_AGENT_INTERNAL_H
#define DT_CORE_AGENT_INTERNAL_H
#include "core/agent.h"
#include "dtorch/v1/admin.pb-c.h"
#include "wire/wire.h"

#define DT_AGENT_ACTIONS_MAX 64u /* an input makes at most 8; the caller polls after each */

/* One queued engine event, packed as a WorkerUp. */
typedef struct dt_agent_queued {
    uint64_t sequence;
    uint8_t *data; /* owned */
    size_t size;
} dt_agent_queued_t;

typedef struct dt_agent_slot {
    dt_agent_action_t action;
    uint8_t *owned; /* action.data, or NULL if that is borrowed from the queue */
    char text[600];
} dt_agent_slot_t;

struct dt_agent {
    dt_agent_state_t state;
    int64_t now_ns;  /* of the last input */
    int64_t wall_ms; /* of the last input that brought it; shown in the hello only */

    /* who we are */
    uint8_t node_id[16];
    uint8_t cluster_id[16];
    bool has_cluster_id;
    uint64_t epoch_seen;
    uint64_t incarnation;
    uint64_t random; /* state of the jitter's generator */
    char node_name[64], rack[64], build[65], boot_id[37], config_hash[17];
    uint32_t pid;
    uint32_t address_count;
    int64_t dial_timeout_ns;

    /* connection */
    uint64_t stream;        /* number of the current attempt; rises */
    uint32_t address_index; /* of the current or last attempt */
    uint32_t round_tried;   /* addresses tried since the last wait */
    uint32_t attempts;
    int64_t backoff_ns;       /* bound of the next wait */
    int64_t offline_since_ns; /* start of the time without a controller */
    int64_t online_since_ns;
    int64_t due_ns; /* WAITING: next dial; DIALING, HELLO: give up */
    char last_error[600];
    char logged_error[600]; /* the text that was logged last, so that it is logged once */

    /* lease on the controller */
    dt_lease_rules_t rules;
    dt_lease_clock_t clock;
    dt_lease_t lease;
    int64_t next_beat_ns;
    uint64_t beat_sequence;
    uint64_t progress; /* of the daemon's work, if it ever said so */
    bool has_progress;
    uint8_t busy[DT_AGENT_DEVICES_MAX]; /* percent, by the inventory's order */
    uint32_t busy_count;
    bool busy_is_sent; /* since the last change, inventory and welcome */
    uint64_t turns;    /* of the caller's loop that came to us; what beats tell otherwise */

    /* what is said again after a reconnect */
    uint8_t *inventory; /* packed WorkerUp, owned; NULL until set */
    size_t inventory_size;
    bool inventory_is_sent;
    dt_agent_queued_t events[DT_AGENT_EVENTS_MAX]; /* ring */
    uint32_t events_head, events_count;
    uint64_t event_sequence;       /* of the newest */
    uint64_t events_sent_sequence; /* on this stream */
    uint64_t events_dropped;

    /* what people want, and counters */
    Dtorch__V1__NodeIntent__Admin admin;
    char reason[257];
    char cluster_name[64], controller_build[65];
    uint64_t welcomes, beats_sent;

    dt_agent_slot_t slots[DT_AGENT_ACTIONS_MAX]; /* ring of actions to poll */
    uint32_t slots_head, slots_count;
    uint8_t *polled; /* memory of the action that was polled last */
};

/* agent_out.c */
dt_agent_slot_t *dt_agent_push(dt_agent_t *agent, dt_agent_action_kind_t kind);
void dt_agent_log(dt_agent_t *agent, int severity, const char *event, const char *fmt, ...)
    DT_PRINTF_LIKE(4, 5);
/* False: out of memory, nothing was queued. */
bool dt_agent_send(dt_agent_t *agent, const Dtorch__V1__WorkerUp *up, bool is_beat);
bool dt_agent_send_hello(dt_agent_t *agent);
void dt_agent_send_beat(dt_agent_t *agent);
void dt_agent_send_inventory(dt_agent_t *agent);
void dt_agent_forget_events(dt_agent_t *agent, uint64_t sequence);

#endif
