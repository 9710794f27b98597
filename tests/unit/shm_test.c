/* lib/shm: sealed memory, the engine's page, messages with descriptors. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/engine_page.h"
#include "shm/memfd.h"
#include "shm/seqpacket.h"

TestSuite(memfd, .timeout = 60);
TestSuite(engine_page, .timeout = 60);
TestSuite(seqpacket, .timeout = 60);

Test(memfd, has_a_size_that_nobody_can_change)
{
    int fd;
    cr_assert_eq(dt_memfd_create("t", 5000, &fd, NULL), DT_OK);
    cr_assert_eq(lseek(fd, 0, SEEK_END), 8192);
    cr_assert_eq(ftruncate(fd, 4096), -1);
    cr_assert_eq(ftruncate(fd, 1 << 20), -1);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    cr_assert_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
}

Test(memfd, refuses_a_size_out_of_bounds)
{
    int fd = 77;
    dt_error_t err;
    cr_assert_eq(dt_memfd_create("t", 0, &fd, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_memfd_create("t", DT_MEMFD_SIZE_MAX + 1, &fd, &err), DT_ERR_INVALID);
    cr_assert_eq(fd, 77, "an output was set on failure");
    cr_assert_not_null(strstr(err.text, "not in 1.."));
}

Test(memfd, opened_again_for_reading_cannot_be_written)
{
    int fd, readonly;
    void *map;
    dt_error_t err;
    cr_assert_eq(dt_memfd_create("t", 4096, &fd, NULL), DT_OK);
    cr_assert_eq(dt_memfd_reopen_readonly(fd, &readonly, NULL), DT_OK);
    cr_assert_eq(dt_memfd_map(readonly, 4096, DT_MEMFD_READ_WRITE, &map, &err), DT_ERR_DENIED);
    cr_assert_eq(dt_memfd_map(readonly, 4096, DT_MEMFD_READ, &map, &err), DT_OK);
    cr_assert_eq(mprotect(map, 4096, PROT_READ | PROT_WRITE), -1);
    cr_assert_eq(write(fd, "x", 1), 1);
    cr_assert_eq(*(char *)map, 'x', "both see one memory");
    dt_memfd_unmap(map, 4096);
    close(fd);
    close(readonly);
}

Test(memfd, is_not_mapped_when_it_could_shrink_or_is_too_small)
{
    void *map;
    dt_error_t err;
    int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 4096), 0);
    cr_assert_eq(dt_memfd_map(fd, 4096, DT_MEMFD_READ, &map, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "sealed"));
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    cr_assert_eq(dt_memfd_map(fd, 4097, DT_MEMFD_READ, &map, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_memfd_map(fd, 0, DT_MEMFD_READ, &map, &err), DT_ERR_INVALID);
    close(fd);
    cr_assert_eq(dt_memfd_map(0, 4096, DT_MEMFD_READ, &map, &err), DT_ERR_INVALID);
}

static dt_engine_page_t *page_pair(const dt_engine_page_t **ret_agent)
{
    int fd;
    dt_engine_page_t *page;
    cr_assert_eq(dt_engine_page_create(&fd, ret_agent, NULL), DT_OK);
    cr_assert_eq(dt_engine_page_open(fd, &page, NULL), DT_OK);
    close(fd);
    return page;
}

Test(engine_page, shows_the_running_operator_and_counts_finished_ones)
{
    const dt_engine_page_t *seen;
    dt_engine_snapshot_t shot;
    dt_engine_page_t *page = page_pair(&seen);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_eq(shot.state, DT_ENGINE_STATE_LOADING);
    cr_assert_eq(shot.op_begin_ns, 0);
    dt_engine_page_op_begin(page, "aten::mm", 500);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_str_eq(shot.op_name, "aten::mm");
    cr_assert_eq(shot.op_begin_ns, 500);
    cr_assert_eq(shot.progress, 0);
    dt_engine_page_op_end(page, 700);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_eq(shot.op_begin_ns, 0);
    cr_assert_eq(shot.progress, 1);
    cr_assert_eq(shot.device_ns, 200);
    cr_assert_str_eq(shot.op_name, "aten::mm", "the last one is still named");
    dt_engine_page_unmap(page);
    dt_engine_page_unmap(seen);
}

Test(engine_page, keeps_the_signal_and_when_it_came)
{
    const dt_engine_page_t *seen;
    dt_engine_snapshot_t shot;
    dt_engine_page_t *page = page_pair(&seen);
    dt_engine_page_crashed(page, SIGSEGV, 0xdead, 900);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_eq(shot.state, DT_ENGINE_STATE_CRASHED);
    cr_assert_eq(shot.crash_signo, SIGSEGV);
    cr_assert_eq(shot.crash_addr, 0xdead);
    cr_assert_eq(shot.crash_ns, 900);
    dt_engine_page_unmap(page);
    dt_engine_page_unmap(seen);
}

Test(engine_page, of_a_hostile_engine_is_brought_into_bounds)
{
    const dt_engine_page_t *seen;
    dt_engine_snapshot_t shot;
    dt_engine_page_t *page = page_pair(&seen);
    memset(page, 0xff, sizeof *page);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_eq(shot.state, DT_ENGINE_STATE_CRASHED);
    cr_assert_eq(shot.crash_signo, 0);
    cr_assert_eq(shot.crash_ns, 0);
    cr_assert_eq(shot.op_begin_ns, 0);
    cr_assert_eq(strlen(shot.op_name), DT_ENGINE_PAGE_NAME_MAX);
    cr_assert_eq(strspn(shot.op_name, "?"), DT_ENGINE_PAGE_NAME_MAX);
    atomic_store(&page->op_begin_ns, 5000);
    dt_engine_page_read(seen, 1000, &shot);
    cr_assert_eq(shot.op_begin_ns, 0, "nothing began in the future");
    dt_engine_page_unmap(page);
    dt_engine_page_unmap(seen);
}

Test(engine_page, of_another_version_is_refused)
{
    int fd;
    void *map;
    dt_engine_page_t *page;
    dt_error_t err;
    cr_assert_eq(dt_memfd_create("t", DT_ENGINE_PAGE_BYTES, &fd, NULL), DT_OK);
    cr_assert_eq(dt_engine_page_open(fd, &page, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_memfd_map(fd, 4096, DT_MEMFD_READ_WRITE, &map, NULL), DT_OK);
    ((dt_engine_page_t *)map)->magic = DT_ENGINE_PAGE_MAGIC;
    ((dt_engine_page_t *)map)->version = DT_ENGINE_PAGE_VERSION + 1;
    cr_assert_eq(dt_engine_page_open(fd, &page, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "version 3"));
    dt_memfd_unmap(map, 4096);
    close(fd);
}

Test(engine_page, cuts_a_long_operator_name)
{
    const dt_engine_page_t *seen;
    dt_engine_snapshot_t shot;
    char name[400];
    dt_engine_page_t *page = page_pair(&seen);
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    dt_engine_page_op_begin(page, name, 1);
    dt_engine_page_read(seen, 1, &shot);
    cr_assert_eq(strlen(shot.op_name), DT_ENGINE_PAGE_NAME_MAX);
    dt_engine_page_unmap(page);
    dt_engine_page_unmap(seen);
}

static int open_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

Test(seqpacket, carries_a_message_with_its_descriptors)
{
    int pair[2], fds[2], count;
    char text[32];
    size_t size;
    cr_assert_eq(dt_seqpacket_pair(pair, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_send(pair[0], "hello", 5, pair, 2, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_recv(pair[1], text, sizeof text, &size, fds, 2, &count, NULL), DT_OK);
    cr_assert_eq(size, 5);
    cr_assert_eq(memcmp(text, "hello", 5), 0);
    cr_assert_eq(count, 2);
    cr_assert_eq(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

Test(seqpacket, drops_what_is_cut_off_and_closes_its_descriptors)
{
    int pair[2], fds[1], count;
    char text[4];
    size_t size;
    dt_error_t err;
    cr_assert_eq(dt_seqpacket_pair(pair, NULL), DT_OK);
    int before = open_fds();
    cr_assert_eq(dt_seqpacket_send(pair[0], "too long", 8, pair, 1, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_recv(pair[1], text, sizeof text, &size, fds, 1, &count, &err),
                 DT_ERR_INVALID);
    cr_assert_eq(dt_seqpacket_send(pair[0], "two", 3, pair, 2, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_recv(pair[1], text, sizeof text, &size, fds, 1, &count, &err),
                 DT_ERR_INVALID);
    cr_assert_eq(open_fds(), before);
    cr_assert_eq(dt_seqpacket_send(pair[0], "ok", 2, NULL, 0, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_recv(pair[1], text, sizeof text, &size, fds, 1, &count, &err), DT_OK);
}

Test(seqpacket, says_when_nothing_is_there_and_when_the_peer_left)
{
    int pair[2], count;
    char text[4];
    size_t size;
    dt_error_t err;
    cr_assert_eq(dt_seqpacket_pair(pair, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_recv(pair[0], text, sizeof text, &size, NULL, 0, &count, &err),
                 DT_ERR_AGAIN);
    close(pair[1]);
    cr_assert_eq(dt_seqpacket_recv(pair[0], text, sizeof text, &size, NULL, 0, &count, &err),
                 DT_ERR_PEER);
    cr_assert_eq(dt_seqpacket_send(pair[0], "x", 1, NULL, 0, &err), DT_ERR_PEER, "and no SIGPIPE");
}

Test(seqpacket, never_blocks_when_the_peer_does_not_read)
{
    int pair[2];
    char data[DT_SEQPACKET_SIZE_MAX] = {0};
    dt_status_t status = DT_OK;
    cr_assert_eq(dt_seqpacket_pair(pair, NULL), DT_OK);
    for (int i = 0; i < 100000 && status == DT_OK; i++)
        status = dt_seqpacket_send(pair[1], data, sizeof data, NULL, 0, NULL);
    cr_assert_eq(status, DT_ERR_AGAIN);
}

Test(seqpacket, refuses_what_is_over_its_bounds)
{
    int pair[2];
    char data[DT_SEQPACKET_SIZE_MAX + 1] = {0};
    const int fds[DT_SEQPACKET_FDS_MAX + 1] = {0};
    cr_assert_eq(dt_seqpacket_pair(pair, NULL), DT_OK);
    cr_assert_eq(dt_seqpacket_send(pair[0], data, sizeof data, NULL, 0, NULL), DT_ERR_INVALID);
    cr_assert_eq(dt_seqpacket_send(pair[0], data, 0, NULL, 0, NULL), DT_ERR_INVALID);
    cr_assert_eq(dt_seqpacket_send(pair[0], data, 1, fds, DT_SEQPACKET_FDS_MAX + 1, NULL),
                 DT_ERR_INVALID);
}
