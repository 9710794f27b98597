#include "transport/board.h"

#include <string.h>
#include <unistd.h>

#include "base/strings.h"
#include "shm/memfd.h"

dt_status_t dt_board_create(int *ret_fd, dt_board_t **ret_board, dt_error_t *err)
{
    int fd;
    void *map;
    DT_TRY(dt_memfd_create("dtorch-board", sizeof(dt_board_t), &fd, err));
    dt_status_t status = dt_memfd_map(fd, sizeof(dt_board_t), DT_MEMFD_READ_WRITE, &map, err);
    if (status != DT_OK) {
        (void)close(fd);
        return status;
    }
    dt_board_t *board = map;
    memset(board->member_of, 0xff, sizeof board->member_of);
    board->magic = DT_BOARD_MAGIC;
    *ret_fd = fd;
    *ret_board = board;
    return DT_OK;
}

dt_status_t dt_board_open(int fd, dt_board_t **ret_board, dt_error_t *err)
{
    void *map;
    DT_TRY(dt_memfd_map(fd, sizeof(dt_board_t), DT_MEMFD_READ_WRITE, &map, err));
    dt_board_t *board = map;
    uint32_t magic = board->magic;
    if (magic != DT_BOARD_MAGIC || board->member_count > DT_BOARD_MEMBERS_MAX) {
        dt_board_close(board);
        return dt_fail(err, DT_ERR_INVALID, "dt", magic, "not a session's board");
    }
    *ret_board = board;
    return DT_OK;
}

void dt_board_close(dt_board_t *board)
{
    dt_memfd_unmap(board, sizeof *board);
}

dt_status_t dt_board_add(dt_board_t *board, const dt_board_entry_t *entry, uint32_t *ret_member,
                         dt_error_t *err)
{
    uint32_t member = board->member_count;
    if (member == DT_BOARD_MEMBERS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_BOARD_MEMBERS_MAX,
                       "a session with more than %u engines", DT_BOARD_MEMBERS_MAX);
    for (uint32_t i = 0; i < entry->vdev_count; i++) {
        uint32_t vdev = entry->vdevs[i];
        if (vdev >= DT_BOARD_VDEVS_MAX)
            return dt_fail(err, DT_ERR_LIMIT, "dt", vdev, "virtual device %u", vdev);
        if (board->member_of[vdev] != DT_BOARD_NOBODY)
            return dt_fail(err, DT_ERR_EXISTS, "dt", vdev, "virtual device %u is run twice", vdev);
    }
    for (uint32_t i = 0; i < entry->vdev_count; i++)
        board->member_of[entry->vdevs[i]] = (uint16_t)member;
    dt_board_member_t *it = &board->members[member];
    it->arena_bytes = entry->arena_bytes;
    it->device = entry->device;
    it->host = entry->host;
    (void)dt_str_copy(it->node, sizeof it->node, entry->node);
    board->member_count++;
    *ret_member = member;
    return DT_OK;
}

void dt_board_lose(dt_board_t *board, uint32_t member, const char *why)
{
    if (atomic_load_explicit(&board->members[member].is_lost, memory_order_relaxed))
        return;
    (void)dt_str_copy(board->members[member].why, sizeof board->members[member].why, why);
    atomic_store_explicit(&board->members[member].is_lost, 1, memory_order_seq_cst);
}
