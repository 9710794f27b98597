/* The connection to the controller: lib/core's agent driven over lib/rpc.
 * The agent decides (when to dial, what to say, when the controller is dead); this file opens
 * streams, carries bytes both ways, keeps the agent's timer, and says what the agent wants said. */
#ifndef DT_WORKERD_LINK_H
#define DT_WORKERD_LINK_H
#include <stdbool.h>

#include "base/strings.h"
#include "core/agent.h"
#include "identity.h"
#include "join.h"
#include "rpc/rpc.h"
#include "tasks.h"

typedef struct dt_link dt_link_t;

typedef struct dt_link_options {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_tasks_t *tasks;
    const dt_identity_t *identity; /* kept until freed */
    const dt_strv_t *addresses;    /* Controller=; copied */
    const char *rack;
    const char *config_hash;
    const dt_join_t *join; /* kept; what to show a controller, asked at each dial */
    /* State, intent or error is another one; see dt_link_view(). */
    void (*changed)(void *arg);
    /* The controller wants a session served, or no more. Borrow all; may be NULL. */
    void (*session_open)(void *arg, const Dtorch__V1__SessionOpen *open);
    void (*session_close)(void *arg, const Dtorch__V1__SessionClose *close);
    void *arg;
} dt_link_options_t;

/* Ownership: keeps what options say; gives *ret_link, free with dt_link_free().
 * Errors: INVALID, NOMEM. Threads: state thread, as all here. Dials with the next turn. */
DT_MUST_USE dt_status_t dt_link_create(const dt_link_options_t *options, dt_link_t **ret_link,
                                       dt_error_t *err);

/* What the node has; sent when it differs. Errors: as dt_agent_set_inventory(). */
DT_MUST_USE dt_status_t dt_link_set_inventory(dt_link_t *link,
                                              const Dtorch__V1__Inventory *inventory,
                                              dt_error_t *err);
/* Tell of an engine; kept until the controller has it. Errors: as dt_agent_engine_event(). */
DT_MUST_USE dt_status_t dt_link_engine_event(dt_link_t *link, const Dtorch__V1__EngineEvent *event,
                                             dt_error_t *err);
/* Count of finished work, for the beats. */
void dt_link_set_progress(dt_link_t *link, uint64_t progress);
/* Percent of each device of the inventory, in its order, for the beats. */
void dt_link_set_busy(dt_link_t *link, const uint8_t *percents, uint32_t count);
/* New Controller=; the connection is kept if its address is still among them.
 * Errors: NOMEM; nothing changed. */
DT_MUST_USE dt_status_t dt_link_set_addresses(dt_link_t *link, const dt_strv_t *addresses,
                                              dt_error_t *err);

/* The agent's view; texts are valid until the next call on the link. */
void dt_link_view(const dt_link_t *link, dt_agent_view_t *ret_view);
/* The address in use or tried last, as in the configuration. */
const char *dt_link_address(const dt_link_t *link);

/* Where the stream that is up leads, names resolved; NULL: none is up. Borrowed until the next
 * turn.
 */
const char *dt_link_dialed(const dt_link_t *link);
/* Likewise as number and port; "": a unix socket, or no stream is open. */
const char *dt_link_peer(const dt_link_t *link);

/* Say Bye and close. `stopped` runs once all streams have ended, perhaps at once. */
void dt_link_stop(dt_link_t *link, const char *reason, void (*stopped)(void *arg));
void dt_link_free(dt_link_t *link); /* after `stopped`, or never used; NULL is fine */

#endif
