#include "lib/bulkpeer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/testproc.h"

#define PIECE  ((size_t)1 << 20)
#define PIECES 16u /* of the window: enough that neither side waits for each */

static void whole(int fd, void *bytes, size_t size, int is_send)
{
    for (size_t at = 0; at < size;) {
        size_t most = size - at < PIECE ? size - at : PIECE;
        ssize_t moved = is_send ? send(fd, (char *)bytes + at, most, MSG_NOSIGNAL)
                                : recv(fd, (char *)bytes + at, most, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            _exit(1); /* the other process says why */
        at += (size_t)moved;
    }
}

static void say(int fd)
{
    char byte = 'x';
    whole(fd, &byte, 1, 1);
}

static void hear(int fd)
{
    char byte;
    whole(fd, &byte, 1, 0);
}

/* One side of a transfer by shared memory: a byte for each piece that is there, one back for each
 * that was taken. */
static void give(const dt_bulkpeer_t *peer, int fd, const unsigned char *data)
{
    size_t count = peer->size / PIECE, taken = 0;
    for (size_t i = 0; i < count; i++) {
        for (; i - taken >= PIECES; taken++)
            hear(fd);
        memcpy(peer->window + i % PIECES * PIECE, data + i * PIECE, PIECE);
        say(fd);
    }
    for (; taken < count; taken++)
        hear(fd);
}

static void take(const dt_bulkpeer_t *peer, int fd, unsigned char *data)
{
    for (size_t i = 0; i < peer->size / PIECE; i++) {
        hear(fd);
        memcpy(data + i * PIECE, peer->window + i % PIECES * PIECE, PIECE);
        say(fd);
    }
}

static void serve(const dt_bulkpeer_t *peer, int fd)
{
    unsigned char *data = malloc(peer->size);
    char what;
    if (!data)
        _exit(1);
    memset(data, 1, peer->size);
    for (;;) {
        whole(fd, &what, 1, 0); /* its end ends us */
        if (peer->kind == DT_BULKPEER_SOCKET) {
            whole(fd, data, peer->size, what == 'f');
            if (what == 's')
                say(fd);
        } else if (what == 'f') {
            give(peer, fd, data);
        } else {
            take(peer, fd, data);
        }
    }
}

static void connect_both(int ret_fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ret_fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || ret_fds[0] < 0 ||
        bind(listener, (const struct sockaddr *)&address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0 ||
        connect(ret_fds[0], (const struct sockaddr *)&address, size) != 0 ||
        (ret_fds[1] = accept(listener, NULL, NULL)) < 0)
        dt_test_die("a socket to measure beside: %s", strerror(errno));
    (void)close(listener);
}

void dt_bulkpeer_start(dt_bulkpeer_t *peer, dt_bulkpeer_kind_t kind, size_t size)
{
    int fds[2];
    peer->kind = kind;
    peer->size = size;
    peer->window =
        mmap(NULL, PIECES * PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (peer->window == MAP_FAILED)
        dt_test_die("memory to measure beside");
    connect_both(fds);
    peer->pid = fork();
    if (peer->pid < 0)
        dt_test_die("fork: %s", strerror(errno));
    if (peer->pid == 0) {
        (void)close(fds[0]);
        serve(peer, fds[1]);
    }
    (void)close(fds[1]);
    peer->fd = fds[0];
}

void dt_bulkpeer_send(dt_bulkpeer_t *peer, const void *data)
{
    char what = 's';
    void *bytes;
    memcpy(&bytes, &data, sizeof bytes); /* it is only read */
    whole(peer->fd, &what, 1, 1);
    if (peer->kind == DT_BULKPEER_MEMORY) {
        give(peer, peer->fd, data);
        return;
    }
    whole(peer->fd, bytes, peer->size, 1);
    hear(peer->fd);
}

void dt_bulkpeer_fetch(dt_bulkpeer_t *peer, void *ret_data)
{
    char what = 'f';
    whole(peer->fd, &what, 1, 1);
    if (peer->kind == DT_BULKPEER_MEMORY)
        take(peer, peer->fd, ret_data);
    else
        whole(peer->fd, ret_data, peer->size, 0);
}

void dt_bulkpeer_stop(dt_bulkpeer_t *peer)
{
    (void)close(peer->fd);
    (void)waitpid(peer->pid, NULL, 0);
    (void)munmap(peer->window, PIECES * PIECE);
}
