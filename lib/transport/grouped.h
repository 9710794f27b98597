/* Exchanges between devices that form a group (device/group.h): the same phases on the same board
 * as all others, but the bytes go from device memory to device memory by the maker's library.
 *
 * Which exchanges. A plan's first exchange goes through host memory. Where that ends well for all,
 * each member looks at what all have said of themselves on the board, and at the pair: if all have
 * groups, and the pair can be run by one, the plan is "grouped" from then on. Everybody sees the
 * same, so nobody has to ask.
 *
 * Communicators. One for each set of members that exchanges, made by the first grouped exchange of
 * that set: its first member makes the id and publishes it with the exchange. It is kept while all
 * goes well. When an exchange fails (a member is lost, the library says so, a session is closed),
 * every member leaves the communicator, which ends what the device still does, and the next
 * exchange of that set, or of what is left of it, makes one of the next generation.
 *
 * Arithmetic. What only moves is bit-equal. Sums are the library's: its own order of additions, so
 * floats may differ in their last bits from what host memory gives. Max and min of floats stay in
 * host memory: NCCL's do not keep NaN.
 *
 * Limits: engines of one host; Partial targets and averages go through host memory.
 * Threads: the executor's, all of it. Blocking: never. */
#ifndef DT_TRANSPORT_GROUPED_H
#define DT_TRANSPORT_GROUPED_H
#include "transport/transport_internal.h"

/* An exchange has ended well: say whether the plan's next one is grouped. */
void dt_exchange_group_decide(dt_transport_session_t *session);
/* PUBLISH: what this exchange needs of us; false: run->result.err says why it cannot be. */
bool dt_exchange_group_offer(dt_transport_session_t *session);
/* All have published: join, or use what is there. False as above. */
bool dt_exchange_group_begin(dt_transport_session_t *session);
/* Go on. OK: all of it is done; AGAIN; others are in run->result.err, too. `ret_has_moved`: there
 * was progress. */
dt_status_t dt_exchange_group_step(dt_transport_session_t *session, bool *ret_has_moved);
/* The exchange has failed: leave its communicator. */
void dt_exchange_group_leave(dt_transport_session_t *session);
/* The session ends: leave all, free all. */
void dt_exchange_groups_free(dt_transport_session_t *session);

#endif
