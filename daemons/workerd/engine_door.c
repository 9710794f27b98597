#include "engine_door.h"

#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "shm/memfd.h"

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

dt_status_t dt_engine_door_setup(const dt_engine_setup_t *setup, int *ret_fd, dt_error_t *err)
{
    int fd;
    void *map;
    DT_TRY(dt_memfd_create("dtorch-setup", sizeof *setup, &fd, err));
    dt_status_t status = dt_memfd_map(fd, sizeof *setup, DT_MEMFD_READ_WRITE, &map, err);
    if (status == DT_OK) {
        memcpy(map, setup, sizeof *setup);
        dt_memfd_unmap(map, sizeof *setup);
        status = dt_memfd_reopen_readonly(fd, ret_fd, err);
    }
    (void)close(fd);
    return status;
}

static dt_status_t meta_make(dt_engine_door_t *door, dt_error_t *err)
{
    uint32_t reader;
    DT_TRY(dt_memfd_create("dtorch-meta", DT_CHANNEL_META_SIZE, &door->meta_fd, err));
    DT_TRY(
        dt_memfd_map(door->meta_fd, DT_CHANNEL_META_SIZE, DT_MEMFD_READ_WRITE, &door->meta, err));
    dt_channel_meta_t *head = door->meta;
    DT_TRY(dt_ring_writer_init(&door->queries, (uint8_t *)door->meta + DT_CHANNEL_QUERIES_AT,
                               DT_CHANNEL_META_BYTES, err));
    DT_TRY(dt_ring_join(&door->queries, &head->queries, door->meta_wake, &reader, err));
    /* The engine writes this ring's head once more when it comes up; it is the same. */
    dt_ring_writer_t first;
    DT_TRY(dt_ring_writer_init(&first, (uint8_t *)door->meta + DT_CHANNEL_ANSWERS_AT,
                               DT_CHANNEL_META_BYTES, err));
    DT_TRY(dt_ring_reader_init(&door->answers, (uint8_t *)door->meta + DT_CHANNEL_ANSWERS_AT,
                               dt_ring_body_bytes(DT_CHANNEL_META_BYTES), &head->answers,
                               door->meta_wake, err));
    (void)dt_ring_prepare_sleep(&door->answers); /* the first answer rings */
    return DT_OK;
}

dt_status_t dt_engine_door_open(const dt_engine_setup_t *setup, dt_engine_door_t *ret_door,
                                dt_error_t *err)
{
    memset(ret_door, 0, sizeof *ret_door);
    ret_door->setup = ret_door->meta_fd = ret_door->wake = ret_door->bell = -1;
    ret_door->meta_wake = ret_door->move_wake = -1;
    DT_TRY(dt_ring_wake_create(&ret_door->wake, err));
    DT_TRY(dt_ring_wake_create(&ret_door->bell, err));
    DT_TRY(dt_ring_wake_create(&ret_door->meta_wake, err));
    DT_TRY(dt_ring_wake_create(&ret_door->move_wake, err));
    DT_TRY(dt_engine_door_setup(setup, &ret_door->setup, err));
    return meta_make(ret_door, err);
}

void dt_engine_door_fds(const dt_engine_door_t *door, dt_child_fd_t fds[DT_ENGINE_DOOR_FDS])
{
    fds[0] = (dt_child_fd_t){door->setup, DT_ENGINE_FD_SETUP};
    fds[1] = (dt_child_fd_t){door->meta_fd, DT_ENGINE_FD_META};
    fds[2] = (dt_child_fd_t){door->wake, DT_ENGINE_FD_WAKE};
    fds[3] = (dt_child_fd_t){door->bell, DT_ENGINE_FD_BELL};
    fds[4] = (dt_child_fd_t){door->meta_wake, DT_ENGINE_FD_META_WAKE};
    fds[5] = (dt_child_fd_t){door->move_wake, DT_ENGINE_FD_MOVE_WAKE};
}

void dt_engine_door_started(dt_engine_door_t *door)
{
    close_fd(&door->setup);
    close_fd(&door->meta_fd);
}

void dt_engine_door_close(dt_engine_door_t *door)
{
    dt_engine_door_started(door);
    close_fd(&door->wake);
    close_fd(&door->bell);
    close_fd(&door->meta_wake);
    close_fd(&door->move_wake);
    dt_memfd_unmap(door->meta, DT_CHANNEL_META_SIZE);
    door->meta = NULL;
}
