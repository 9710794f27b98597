/* Sessions of the communication thread and what runs in them. Two threads: the executor fills a run
 * and hands the session over, the communication thread owns it until it has ended. What the
 * executor adds later (peers) is published by one atomic flag each. */
#ifndef DT_TRANSPORT_TRANSPORT_INTERNAL_H
#define DT_TRANSPORT_TRANSPORT_INTERNAL_H
#include <stdatomic.h>

#include "base/list.h"
#include "transport/board.h"
#include "transport/exchange_internal.h"
#include "transport/link.h"

#define DT_TRANSPORT_TURN_PIECES 4u  /* of one exchange before the next one's turn */
#define DT_TRANSPORT_LOOK_PIECES 64u /* beyond the first that waits for a message */
#define DT_TRANSPORT_POLLS_MAX   1024u

/* Another engine of a session. */
typedef struct dt_transport_peer {
    _Atomic bool is_here; /* what follows is set */
    uint8_t *arena;       /* mapped; NULL: another host's */
    size_t arena_bytes;
    int wake;        /* its eventfd; -1 */
    dt_link_t *link; /* to another host; NULL: it is on ours. The thread's while one runs */
    uint64_t told;   /* our word, as it was said there last */
} dt_transport_peer_t;

typedef enum dt_transport_state {
    DT_TRANSPORT_IDLE,
    DT_TRANSPORT_PUBLISH,
    DT_TRANSPORT_WAIT_PUBLISHED,
    DT_TRANSPORT_WAVE0,
    DT_TRANSPORT_WAIT_WAVE0,
    DT_TRANSPORT_WAVE1,
    DT_TRANSPORT_WAIT_DONE,
    DT_TRANSPORT_LEAVE, /* until all know what we know */
    DT_TRANSPORT_ENDED,
    DT_TRANSPORT_GROUP, /* after WAIT_PUBLISHED, in place of the waves */
} dt_transport_state_t;

/* A buffer that is not in the arena has a block there while it is moved. */
typedef struct dt_transport_stage {
    void *source, *target; /* NULL: none needed */
} dt_transport_stage_t;

typedef struct dt_transport_run {
    dt_transport_state_t state;
    dt_exchange_plan_t *plan;
    uint64_t number;
    dt_exchange_buffer_t *buffers; /* (buffer_cap) */
    dt_transport_stage_t *stages;  /* (buffer_cap) */
    uint32_t buffer_count, buffer_cap;
    uint32_t next;   /* piece */
    uint32_t wait;   /* members[0 .. wait) have come */
    bool has_links;  /* members on other hosts take part */
    bool has_wave0;  /* all our pieces of wave 0 are done */
    bool is_grouped; /* by a group of devices, on the executor; grouped.h */
    bool is_issued;  /* and has begun to move */
    uint8_t *cause;  /* (DT_TRANSPORT_CAUSE_MAX) */
    dt_exchange_result_t result;
    void (*done)(void *arg, const dt_exchange_result_t *result);
    void *arg;
} dt_transport_run_t;

typedef struct dt_transport_group dt_transport_group_t;

typedef struct dt_transport_session {
    dt_list_t link;     /* in transport.sessions; executor */
    dt_list_t run_link; /* in mails, running or ended; by the lock and who owns it */
    dt_transport_t *owner;
    _Atomic uint64_t *moved; /* the owner's */
    uint32_t instance;
    dt_shm_arena_t *arena;
    dt_board_t *board;          /* NULL: alone */
    dt_transport_peer_t *peers; /* (member_count) */
    uint32_t member_count;
    dt_exchange_world_t world;
    uint32_t *members; /* of world */
    uint32_t *hosts;
    uint8_t *is_remote;
    bool is_busy;    /* executor: a run has begun and was not collected */
    bool has_quit;   /* executor: the others were told not to wait for us */
    bool is_running; /* by the lock: the thread has it */
    _Atomic bool is_closing;
    /* Of groups, all the executor's: grouped.h. */
    const dt_group_table_t *owner_groups; /* NULL: our device can be in none */
    void *group_ctx;
    dt_transport_group_t *groups;
    uint64_t group_generation;
    uint8_t *scratch; /* of the device, for boxes on their way */
    uint64_t scratch_bytes;
    dt_transport_run_t run; /* the thread's while it is running */
} dt_transport_session_t;

/* ---- exchange.c ---- */

/* All of it at once: every place is ours. */
void dt_exchange_run_here(dt_transport_session_t *session);
/* Go on as far as that is possible now, for one turn. Returns whether it did; run->state tells when
 * it has ended. */
bool dt_exchange_step(dt_transport_session_t *session);
/* Leave: tell the others, so that nobody waits for us. `why` "": the session ends. */
void dt_exchange_quit(dt_transport_session_t *session, const char *why);
struct pollfd;
/* Fill in what to poll for. Returns the number, at most `max`. */
uint32_t dt_exchange_polls(const dt_transport_session_t *session, struct pollfd *fds, uint32_t max);
/* Before sleeping, and after. */
void dt_exchange_set_asleep(dt_transport_session_t *session, bool is_asleep);

#endif
