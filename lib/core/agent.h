/* The worker's half of membership as a sans-IO machine: when to dial, hello, beats, the lease on
 * the controller, what to say again after a reconnect. Events and time in, actions out.
 *
 * States:
 *   WAITING   no connection; the next dial is due at a time (full jitter back-off: a random part of
 *             a bound that doubles from 50 ms, to 1 s in the first 30 s without a controller, then
 *             to 5 s; after a refusal that cannot succeed by itself 5 s, and one log line)
 *   DIALING   the caller opens a stream to one address; addresses are tried in order
 *   HELLO     the stream is open, Hello is sent, Welcome is awaited
 *   ONLINE    welcomed; beats go both ways
 *   SUSPECT   online, but the controller is silent; nothing is dropped
 *   STOPPED   the end; a stream that was open got its Bye and is to be closed after it
 * SUSPECT -> DEAD closes the stream and dials again at once, with a fresh look-up of the name.
 *
 * Invariants: one stream at a time; the highest epoch seen never falls, and a Welcome with a lower
 * one or with another cluster id is refused; an engine event is kept until it is acknowledged or
 * pushed out by DT_AGENT_EVENTS_MAX newer ones (which are counted).
 *
 * The caller performs actions in order: dt_agent_poll() until it returns false, after each input.
 * Pointers in an action are valid until the next call on the agent. Times are monotonic ns.
 * Threads: state thread only. Blocking: never. */
#ifndef DT_CORE_AGENT_H
#define DT_CORE_AGENT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "core/lease.h"
#include "dtorch/v1/worker.pb-c.h"

#define DT_AGENT_EVENTS_MAX  256u
#define DT_AGENT_ADDRESS_MAX 16u
#define DT_AGENT_DEVICES_MAX 64u /* of an Inventory */

typedef struct dt_agent dt_agent_t;

typedef struct dt_agent_options {
    size_t struct_size;
    uint8_t node_id[16];
    uint8_t cluster_id[16]; /* from the state directory; all zero: none yet */
    uint64_t epoch_seen;    /* from the state directory; 0: none yet */
    uint64_t incarnation;   /* random, not 0 */
    uint64_t seed;          /* of the jitter */
    const char *node_name;  /* strings are copied */
    const char *rack;
    const char *build;
    const char *boot_id;
    const char *config_hash;
    uint32_t pid;
    uint32_t
        address_count; /* Controller= entries, 1..DT_AGENT_ADDRESS_MAX; they are named by index */
    int64_t dial_timeout_ns; /* for dial and hello together, each; 0: 3 s */
} dt_agent_options_t;

typedef enum dt_agent_state {
    DT_AGENT_WAITING = 0,
    DT_AGENT_DIALING,
    DT_AGENT_HELLO,
    DT_AGENT_ONLINE,
    DT_AGENT_SUSPECT,
    DT_AGENT_STOPPED,
} dt_agent_state_t;

typedef enum dt_agent_action_kind {
    DT_AGENT_DO_DIAL = 1, /* resolve anew and open a stream to address[index]; answer with
                             dt_agent_connected() or dt_agent_closed(), naming `stream` */
    DT_AGENT_DO_SEND,     /* send `data` (a WorkerUp) on `stream` */
    DT_AGENT_DO_CLOSE,    /* end `stream` after what was sent; `text` says why. No answer is needed:
                             later inputs for that stream are ignored */
    DT_AGENT_DO_SAVE,     /* write cluster_id and epoch to the state directory, with fsync. May be
                             written behind the next actions: fsync must not hold beats up, and a
                             crash in between costs the fence against this one epoch only */
    DT_AGENT_DO_INTENT,   /* the controller said what people want of this node */
    DT_AGENT_DO_LOG,      /* one log line: severity, text; state changes and refusals, once each */
    DT_AGENT_DO_STOPPED,  /* nothing more will come */
} dt_agent_action_kind_t;

typedef struct dt_agent_action {
    dt_agent_action_kind_t kind;
    uint64_t stream;     /* number of the attempt, never used again */
    uint32_t index;      /* DIAL: address */
    const uint8_t *data; /* SEND */
    size_t size;
    bool is_beat;      /* SEND: may be dropped if an earlier beat is still unsent */
    const char *text;  /* CLOSE, LOG, INTENT: reason */
    int severity;      /* LOG: Dtorch__V1__Severity */
    const char *event; /* LOG: stable name, "controller-lost" */
    Dtorch__V1__NodeIntent__Admin admin; /* INTENT */
    uint8_t cluster_id[16];              /* SAVE */
    uint64_t epoch;                      /* SAVE */
} dt_agent_action_t;

/* What a person or a metric wants to see. */
typedef struct dt_agent_view {
    dt_agent_state_t state;
    const char *state_text;
    uint64_t stream;
    uint32_t address_index; /* in use or tried last */
    uint32_t attempts;      /* dials since the last Welcome */
    uint64_t reconnects;    /* Welcomes after the first */
    uint64_t epoch;
    const char *cluster_name; /* "" before the first Welcome */
    const char *controller_build;
    Dtorch__V1__NodeIntent__Admin admin;
    const char *reason;
    int64_t silence_ns; /* of the controller; -1 offline */
    int64_t late_ns;
    uint32_t events_queued; /* not acknowledged yet */
    uint64_t events_dropped;
    uint64_t beats_sent;
    const char *last_error; /* why the last attempt failed; "" if none */
    dt_lease_rules_t rules;
} dt_agent_view_t;

/* Errors: INVALID (an option is out of bounds), NOMEM. Gives *ret_agent, free with dt_agent_free().
 */
DT_MUST_USE dt_status_t dt_agent_create(const dt_agent_options_t *options, int64_t now_ns,
                                        dt_agent_t **ret_agent, dt_error_t *err);
void dt_agent_free(dt_agent_t *agent); /* NULL is fine */

/* The stream of a DIAL is open (for gRPC: the call has been started and its metadata came, or the
 * first message can be sent). */
void dt_agent_connected(dt_agent_t *agent, uint64_t stream, int64_t now_ns, int64_t wall_ms);
/* A valid message (dt_wire_unpack) came. Borrows it. */
void dt_agent_received(dt_agent_t *agent, uint64_t stream, const Dtorch__V1__WorkerDown *message,
                       int64_t now_ns);
/* A message came that lib/wire refused. */
void dt_agent_malformed(dt_agent_t *agent, uint64_t stream, const dt_error_t *error,
                        int64_t now_ns);
/* The dial failed, or the stream ended. `text` for people. */
void dt_agent_closed(dt_agent_t *agent, uint64_t stream, const char *text, int64_t now_ns);
/* Time passed. Call at dt_agent_deadline(), or whenever. */
void dt_agent_tick(dt_agent_t *agent, int64_t now_ns, int64_t wall_ms);
/* When dt_agent_tick() is wanted next; INT64_MAX: never. */
int64_t dt_agent_deadline(const dt_agent_t *agent);

/* What the node has. Sent if it differs from what was sent last; kept for the next connection,
 * whose hello says its config_hash, if there is one. Errors: INVALID (our own inventory breaks a
 * bound of the .proto), NOMEM. Borrows. */
DT_MUST_USE dt_status_t dt_agent_set_inventory(dt_agent_t *agent,
                                               const Dtorch__V1__Inventory *inventory,
                                               int64_t now_ns, dt_error_t *err);
/* Queue an engine's event; its sequence is set here. Errors: INVALID, NOMEM. Borrows. */
DT_MUST_USE dt_status_t dt_agent_engine_event(dt_agent_t *agent,
                                              const Dtorch__V1__EngineEvent *event, int64_t now_ns,
                                              dt_error_t *err);
/* Counter of real work of this process; goes out with beats. Without it they carry the number of
 * ticks. */
void dt_agent_set_progress(dt_agent_t *agent, uint64_t progress);
/* How busy each device of the inventory is, in its order: percent, at most DT_AGENT_DEVICES_MAX.
 * Goes out with the next beat if it is news. */
void dt_agent_set_busy(dt_agent_t *agent, const uint8_t *percents, uint32_t count);
/* The configuration was loaded again: new addresses (by count), hash. Dials again only if the
 * address in use is no longer there: the caller says so. */
void dt_agent_set_addresses(dt_agent_t *agent, uint32_t address_count, bool redial, int64_t now_ns);
/* Say Bye, close, then STOPPED. Cuts short whatever state it is in. */
void dt_agent_stop(dt_agent_t *agent, const char *reason, int64_t now_ns);

bool dt_agent_poll(dt_agent_t *agent, dt_agent_action_t *ret_action);
void dt_agent_view(const dt_agent_t *agent, int64_t now_ns, dt_agent_view_t *ret_view);
const char *dt_agent_state_text(dt_agent_state_t state);

#endif
