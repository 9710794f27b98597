/* Engines of one session that move tensors between each other. The agent makes the board on which
 * they go in step, tells each how to reach the others, and says who is gone: it is the first to
 * know. Members of the board are the instance's, in their order. */
#include <unistd.h>

#include "engine.h"
#include "sessions_internal.h"
#include "shm/arena.h"
#include "shm/ring.h"

dt_status_t dt_node_peers_create(dt_node_instance_t *instance, uint64_t limit_bytes,
                                 dt_error_t *err)
{
    if (instance->member_count < 2)
        return DT_OK;
    DT_TRY(dt_board_create(&instance->board_fd, &instance->board, err));
    for (uint32_t i = 0; i < instance->member_count; i++) {
        const dt_node_member_t *member = &instance->members[i];
        uint32_t number;
        DT_TRY(dt_board_add(instance->board, instance->owner->options.node_name, 0, member->device,
                            dt_shm_arena_size(limit_bytes * member->vdev_count), member->vdevs,
                            member->vdev_count, &number, err));
    }
    return DT_OK;
}

static dt_engine_door_t *door_of(dt_node_instance_t *instance, const dt_node_member_t *member)
{
    return member->host ? dt_engines_door(instance->owner->options.engines, member->host->engine)
                        : NULL;
}

void dt_node_peers_show(dt_node_instance_t *instance, dt_node_member_t *member)
{
    for (uint32_t i = 0; instance->board && i < instance->member_count; i++) {
        const dt_node_member_t *peer = &instance->members[i];
        const dt_engine_door_t *door = door_of(instance, peer);
        if (peer == member || !door)
            continue; /* one that is gone stands on the board */
        const int fds[] = {peer->arena_fd, door->move_wake};
        const dt_engine_message_t message = {
            .kind = DT_ENGINE_MESSAGE_PEER, .value = (int32_t)instance->number, .member = i};
        if (dt_engines_send(instance->owner->options.engines, member->host->engine, &message, fds,
                            2) == DT_OK)
            continue;
        dt_engines_kill(instance->owner->options.engines, member->host->engine);
        return; /* it does not read its messages */
    }
}

void dt_node_peers_lose(dt_node_instance_t *instance, dt_node_member_t *member)
{
    if (!instance->board)
        return;
    dt_board_lose(instance->board, (uint32_t)(member - instance->members));
    for (uint32_t i = 0; i < instance->member_count; i++) {
        const dt_engine_door_t *door = door_of(instance, &instance->members[i]);
        if (door && &instance->members[i] != member)
            dt_ring_wake(door->move_wake);
    }
}

void dt_node_peers_free(dt_node_instance_t *instance)
{
    dt_board_close(instance->board);
    if (instance->board_fd >= 0)
        (void)close(instance->board_fd);
    instance->board = NULL;
    instance->board_fd = -1;
}
