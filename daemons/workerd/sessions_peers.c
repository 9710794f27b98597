/* Engines of one session that move tensors between each other. The agent makes the board on which
 * they go in step, tells each how to reach the others, and says who is gone: it is the first to
 * know. Members of the board are the engines of all nodes, in the order of their first virtual
 * device, so that every node numbers them alike; hosts are nodes, likewise. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strings.h"
#include "engine.h"
#include "sessions_internal.h"
#include "shm/arena.h"
#include "shm/ring.h"

/* One member of the board while it is made. */
typedef struct entry {
    const char *node;
    uint32_t device;
    uint32_t host;
    dt_node_member_t *ours; /* NULL: another node's */
    uint32_t vdev_count;
    uint32_t *vdevs; /* (DT_BOARD_VDEVS_MAX) */
} entry_t;

static bool is_our_name(const dt_node_instance_t *instance, const char *node)
{
    return dt_str_is_equal(node, instance->owner->options.node_name);
}

/* All bindings of one engine from `first` on. */
static void entry_read(const dt_node_instance_t *instance, Dtorch__V1__VdevBinding **list,
                       size_t count, size_t first, entry_t *entry)
{
    entry->node = list[first]->node;
    entry->device = list[first]->device;
    entry->vdev_count = 0;
    entry->ours = NULL;
    for (size_t i = first; i < count; i++)
        if (list[i]->device == entry->device && dt_str_is_equal(list[i]->node, entry->node) &&
            entry->vdev_count < DT_BOARD_VDEVS_MAX)
            entry->vdevs[entry->vdev_count++] = list[i]->vdev;
    for (uint32_t i = 0; is_our_name(instance, entry->node) && i < instance->member_count; i++)
        if (instance->members[i].device == entry->device)
            entry->ours = &instance->members[i];
}

/* Whether a binding before `at` has told of the same engine. */
static bool is_repeated(Dtorch__V1__VdevBinding **list, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (list[i]->device == list[at]->device && dt_str_is_equal(list[i]->node, list[at]->node))
            return true;
    return false;
}

/* The number of a node: how many others come before it. */
static uint32_t host_of(Dtorch__V1__VdevBinding **list, size_t at)
{
    uint32_t host = 0;
    for (size_t i = 0; i < at && !dt_str_is_equal(list[i]->node, list[at]->node); i++) {
        bool is_new = true;
        for (size_t k = 0; k < i && is_new; k++)
            is_new = !dt_str_is_equal(list[k]->node, list[i]->node);
        host += is_new;
    }
    return host;
}

static dt_status_t entry_add(dt_node_instance_t *instance, const entry_t *entry,
                             uint64_t limit_bytes, dt_error_t *err)
{
    uint32_t number;
    const dt_node_member_t *ours = entry->ours;
    const dt_board_entry_t it = {
        .node = entry->node,
        .host = entry->host,
        .device = entry->device,
        .arena_bytes = ours ? dt_shm_arena_size(limit_bytes * ours->vdev_count) : 0,
        .vdevs = ours ? ours->vdevs : entry->vdevs,
        .vdev_count = ours ? ours->vdev_count : entry->vdev_count,
    };
    DT_TRY(dt_board_add(instance->board, &it, &number, err));
    if (ours) {
        entry->ours->board = number;
        instance->host = entry->host;
    }
    instance->has_remotes |= !is_our_name(instance, entry->node);
    return DT_OK;
}

static dt_status_t members_add(dt_node_instance_t *instance, Dtorch__V1__VdevBinding **list,
                               size_t count, uint64_t limit_bytes, dt_error_t *err)
{
    entry_t entry = {.vdevs = malloc(DT_BOARD_VDEVS_MAX * sizeof *entry.vdevs)};
    dt_status_t status =
        entry.vdevs ? DT_OK : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a board");
    for (size_t i = 0; i < count && status == DT_OK; i++) {
        if (is_repeated(list, i))
            continue;
        entry_read(instance, list, count, i, &entry);
        entry.host = host_of(list, i);
        if (entry.ours || !is_our_name(instance, entry.node)) /* not of another instance here */
            status = entry_add(instance, &entry, limit_bytes, err);
    }
    free(entry.vdevs);
    return status;
}

void dt_node_peers_create(dt_node_instance_t *instance, const Dtorch__V1__SessionOpen *open,
                          uint64_t limit_bytes)
{
    dt_error_t err = {0};
    Dtorch__V1__VdevBinding **list = open->n_all > 0 ? open->all : open->bindings;
    size_t count = open->n_all > 0 ? open->n_all : open->n_bindings;
    if (instance->member_count < 2 && open->n_all == 0)
        return;
    dt_status_t status = dt_board_create(&instance->board_fd, &instance->board, &err);
    if (status == DT_OK)
        status = members_add(instance, list, count, limit_bytes, &err);
    if (status == DT_OK)
        return;
    dt_log_warn("the engines of a session cannot exchange tensors",
                DT_LOG_U("session", instance->session), DT_LOG_E(&err));
    dt_node_peers_free(instance);
    instance->has_remotes = false;
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
        const dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_PEER,
                                             .value = (int32_t)instance->number,
                                             .member = peer->board};
        if (dt_engines_send(instance->owner->options.engines, member->host->engine, &message, fds,
                            2) == DT_OK)
            continue;
        dt_engines_kill(instance->owner->options.engines, member->host->engine);
        return; /* it does not read its messages */
    }
    dt_node_links_show(instance, member);
}

static void wake_all(dt_node_instance_t *instance)
{
    for (uint32_t i = 0; i < instance->member_count; i++) {
        const dt_engine_door_t *door = door_of(instance, &instance->members[i]);
        if (door)
            dt_ring_wake(door->move_wake);
    }
}

void dt_node_peers_lose(dt_node_instance_t *instance, dt_node_member_t *member)
{
    if (!instance->board)
        return;
    dt_board_lose(instance->board, member->board, "");
    wake_all(instance);
}

void dt_node_peers_lose_node(dt_node_instance_t *instance, const char *node, const char *why)
{
    if (!instance->board || is_our_name(instance, node))
        return;
    for (uint32_t i = 0; i < instance->board->member_count; i++)
        if (dt_str_is_equal(instance->board->members[i].node, node))
            dt_board_lose(instance->board, i, why);
    wake_all(instance);
}

void dt_node_peers_free(dt_node_instance_t *instance)
{
    dt_board_close(instance->board);
    if (instance->board_fd >= 0)
        (void)close(instance->board_fd);
    instance->board = NULL;
    instance->board_fd = -1;
}
