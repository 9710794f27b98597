#include "core/moves.h"

#include <stddef.h>

#include "base/status.h"

void dt_moves_init(dt_moves_t *moves)
{
    dt_list_init(&moves->queue);
    moves->count = 0;
}

static dt_move_t *first_of(const dt_moves_t *moves)
{
    return moves->count > 0 ? DT_CONTAINER_OF(moves->queue.next, dt_move_t, link) : NULL;
}

void dt_moves_push(dt_moves_t *moves, dt_move_t *move)
{
    dt_check(!dt_moves_is_full(moves));
    for (uint32_t i = 0; i < move->read_count; i++) {
        dt_check(!move->reads[i]->is_coming);
        move->reads[i]->readers++;
    }
    for (uint32_t i = 0; i < move->make_count; i++)
        move->makes[i]->is_coming = true;
    move->is_running = false;
    dt_list_push(&moves->queue, &move->link);
    moves->count++;
}

dt_move_t *dt_moves_next(dt_moves_t *moves)
{
    dt_move_t *first = first_of(moves);
    if (!first || first->is_running)
        return NULL;
    first->is_running = true;
    return first;
}

dt_move_t *dt_moves_take(dt_moves_t *moves)
{
    dt_move_t *first = first_of(moves);
    if (!first)
        return NULL;
    dt_list_remove(&first->link);
    moves->count--;
    for (uint32_t i = 0; i < first->read_count; i++)
        first->reads[i]->readers--;
    for (uint32_t i = 0; i < first->make_count; i++)
        first->makes[i]->is_coming = false;
    return first;
}

void dt_moves_end(dt_moves_t *moves)
{
    dt_move_t *first = first_of(moves);
    dt_check(first && first->is_running);
    (void)dt_moves_take(moves);
}

uint64_t dt_moves_settled(const dt_moves_t *moves, uint64_t performed)
{
    const dt_move_t *first = first_of(moves);
    return first && first->sequence <= performed ? first->sequence - 1 : performed;
}
