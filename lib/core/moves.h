/* The communication queue of one session on one engine, sans-IO: which moves between devices were
 * come to and have not ended, in the order of the stream, and what other records may do meanwhile.
 *
 *   a move's record --> push: it waits --> next: it runs --> end
 *   any other record: may_read() what it reads, may_write() what it writes; else it waits, and what
 *   follows it too
 *
 * Why nothing can lock up. The stream orders the moves, all members of a move have it at the same
 * place, and each engine begins its moves in that order, one after the other. A record waits for
 * moves before it only. So of all moves that have not ended the first one has nothing before it on
 * any of its members: they all come to it. tests/sim/overlap.c tries it.
 *
 * Invariants: a storage's mark says how many queued moves read it and whether one makes it. Limits:
 * DT_MOVES_MAX in a queue; who makes one more waits. Threads: none of its own. */
#ifndef DT_CORE_MOVES_H
#define DT_CORE_MOVES_H
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define DT_MOVES_MAX 256u

/* What queued moves do with a storage. Zero is a valid start. */
typedef struct dt_move_mark {
    uint32_t readers; /* queued moves that read it */
    bool is_coming;   /* one makes it: it has no value yet */
} dt_move_mark_t;

typedef struct dt_move {
    dt_list_t link;
    uint64_t sequence;      /* of its record */
    dt_move_mark_t **reads; /* (read_count) kept, with what they point to, until it ends */
    uint32_t read_count;
    dt_move_mark_t **makes; /* (make_count) likewise; new storages */
    uint32_t make_count;
    bool is_running;
} dt_move_t;

typedef struct dt_moves {
    dt_list_t queue; /* dt_move_t, rising sequences; the first one may run */
    uint32_t count;
} dt_moves_t;

void dt_moves_init(dt_moves_t *moves);

/* Whether a record may read, or write, a storage now. What is free to be written may be freed too.
 */
static inline bool dt_move_may_read(const dt_move_mark_t *mark)
{
    return !mark->is_coming;
}

static inline bool dt_move_may_write(const dt_move_mark_t *mark)
{
    return !mark->is_coming && mark->readers == 0;
}

/* Whether the next move has to wait with its record. */
static inline bool dt_moves_is_full(const dt_moves_t *moves)
{
    return moves->count == DT_MOVES_MAX;
}

/* Come to a move whose reads may be read, with a queue that is not full. Ownership: keeps `move`
 * until it has ended. */
void dt_moves_push(dt_moves_t *moves, dt_move_t *move);
/* The move that begins now, which is running then; NULL: one runs, or there is none. */
dt_move_t *dt_moves_next(dt_moves_t *moves);
/* The move that runs is over, whatever came of it. */
void dt_moves_end(dt_moves_t *moves);
/* Take out the first one, whether it runs or not, as if it had ended; NULL: there is none. */
dt_move_t *dt_moves_take(dt_moves_t *moves);

/* Of records performed up to `performed` those that have nothing open behind them: what may be
 * acknowledged. Never falls as long as `performed` does not. */
uint64_t dt_moves_settled(const dt_moves_t *moves, uint64_t performed);

#endif
