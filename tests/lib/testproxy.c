/* See testproxy.h. One thread polls all connections; each direction holds one buffer, and is not
 * read again before that has been written, so a delay is kept for each buffer. */
#include "lib/testproxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/testproc.h"

#define PAIR_MAX  64
#define LANE_SIZE 65536
#define TICK_MS   5

struct lane {
    int from, to;
    size_t len, off;
    int64_t due_ms;
    char data[LANE_SIZE];
};

struct pair {
    int near, far; /* -1: free */
    struct lane up, down;
};

struct dt_testproxy {
    atomic_int mode, delay_ms, is_stopping;
    atomic_long cut_after; /* bytes until one connection is cut; -1: none */
    atomic_int cuts;
    int listen_fd, wake_fd, port;
    struct sockaddr_storage target;
    socklen_t target_size;
    pthread_t thread;
    struct pair *pairs[PAIR_MAX]; /* proxy's thread only */
};

static void pair_drop(dt_testproxy_t *proxy, int index)
{
    close(proxy->pairs[index]->near);
    close(proxy->pairs[index]->far);
    free(proxy->pairs[index]);
    proxy->pairs[index] = NULL;
}

static void pair_open(dt_testproxy_t *proxy)
{
    int near = accept4(proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int far = -1, index = 0;
    if (near < 0)
        return;
    while (index < PAIR_MAX && proxy->pairs[index])
        index++;
    if (index < PAIR_MAX && atomic_load(&proxy->mode) != DT_TESTPROXY_CUT)
        far = socket(proxy->target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (far < 0 || connect(far, (struct sockaddr *)&proxy->target, proxy->target_size) < 0) {
        if (far >= 0)
            close(far);
        close(near);
        return;
    }
    proxy->pairs[index] = calloc(1, sizeof(struct pair));
    if (!proxy->pairs[index])
        dt_test_die("proxy: out of memory");
    *proxy->pairs[index] = (struct pair){.near = near,
                                         .far = far,
                                         .up = {.from = near, .to = far},
                                         .down = {.from = far, .to = near}};
}

/* Move what is there. False: the connection is over. */
static bool lane_move(dt_testproxy_t *proxy, struct lane *lane, int64_t now_ms, int delay_ms)
{
    long cut_after = atomic_load(&proxy->cut_after);
    size_t size;
    ssize_t n;
    if (lane->off == lane->len) {
        n = recv(lane->from, lane->data, sizeof lane->data, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n < 0)
            return true;
        lane->len = (size_t)n;
        lane->off = 0;
        lane->due_ms = now_ms + delay_ms;
    }
    if (now_ms < lane->due_ms)
        return true;
    size = lane->len - lane->off;
    if (cut_after >= 0 && (size_t)cut_after < size)
        size = (size_t)cut_after;
    n = send(lane->to, lane->data + lane->off, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    lane->off += (size_t)n;
    if (cut_after < 0 ||
        !atomic_compare_exchange_strong(&proxy->cut_after, &cut_after, cut_after - (long)n))
        return true;
    if (cut_after > n)
        return true;
    atomic_store(&proxy->cut_after, -1);
    atomic_fetch_add(&proxy->cuts, 1);
    return false;
}

static nfds_t fill_poll(dt_testproxy_t *proxy, int mode, struct pollfd *fds)
{
    nfds_t count = 0;
    fds[count++] = (struct pollfd){.fd = proxy->wake_fd, .events = POLLIN};
    fds[count++] =
        (struct pollfd){.fd = mode == DT_TESTPROXY_STALL ? -1 : proxy->listen_fd, .events = POLLIN};
    for (int i = 0; mode == DT_TESTPROXY_PASS && i < PAIR_MAX; i++) {
        struct pair *pair = proxy->pairs[i];
        struct lane *lanes[2] = {pair ? &pair->up : NULL, pair ? &pair->down : NULL};
        for (int j = 0; pair && j < 2; j++) {
            bool is_full = lanes[j]->off < lanes[j]->len;
            fds[count].fd = is_full ? lanes[j]->to : lanes[j]->from;
            fds[count++].events = is_full ? POLLOUT : POLLIN;
        }
    }
    return count;
}

static void *proxy_main(void *arg)
{
    dt_testproxy_t *proxy = arg;
    while (!atomic_load(&proxy->is_stopping)) {
        struct pollfd fds[2 + 2 * PAIR_MAX];
        int mode = atomic_load(&proxy->mode), delay_ms = atomic_load(&proxy->delay_ms);
        nfds_t count = fill_poll(proxy, mode, fds);
        eventfd_t ignored;
        int64_t now_ms;
        (void)poll(fds, count, delay_ms ? TICK_MS : 1000);
        now_ms = dt_test_now_ms();
        mode = atomic_load(&proxy->mode);
        if (fds[0].revents)
            (void)eventfd_read(proxy->wake_fd, &ignored);
        if (fds[1].revents && mode != DT_TESTPROXY_STALL)
            pair_open(proxy);
        for (int i = 0; i < PAIR_MAX; i++) {
            struct pair *pair = proxy->pairs[i];
            if (pair &&
                (mode == DT_TESTPROXY_CUT ||
                 (mode == DT_TESTPROXY_PASS && !(lane_move(proxy, &pair->up, now_ms, delay_ms) &&
                                                 lane_move(proxy, &pair->down, now_ms, delay_ms)))))
                pair_drop(proxy, i);
        }
    }
    return NULL;
}

static void set_target(dt_testproxy_t *proxy, const char *target)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (target[0] == '/') {
        memcpy(un.sun_path, target, strnlen(target, sizeof un.sun_path - 1));
        memcpy(&proxy->target, &un, sizeof un);
        proxy->target_size = sizeof un;
        return;
    }
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in.sin_port = htons((uint16_t)strtol(target, NULL, 10));
    memcpy(&proxy->target, &in, sizeof in);
    proxy->target_size = sizeof in;
}

dt_testproxy_t *dt_testproxy_start(const char *target)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof addr;
    dt_testproxy_t *proxy = calloc(1, sizeof *proxy);
    if (!proxy)
        dt_test_die("proxy: out of memory");
    atomic_store(&proxy->cut_after, -1);
    set_target(proxy, target);
    proxy->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    proxy->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (proxy->wake_fd < 0 || proxy->listen_fd < 0 ||
        bind(proxy->listen_fd, (struct sockaddr *)&addr, sizeof addr) < 0 ||
        listen(proxy->listen_fd, PAIR_MAX) < 0 ||
        getsockname(proxy->listen_fd, (struct sockaddr *)&addr, &size) < 0)
        dt_test_die("proxy: cannot listen: %s", strerror(errno));
    proxy->port = ntohs(addr.sin_port);
    if (pthread_create(&proxy->thread, NULL, proxy_main, proxy) != 0)
        dt_test_die("proxy: no thread");
    return proxy;
}

void dt_testproxy_stop(dt_testproxy_t *proxy)
{
    if (!proxy)
        return;
    atomic_store(&proxy->is_stopping, 1);
    (void)eventfd_write(proxy->wake_fd, 1);
    (void)pthread_join(proxy->thread, NULL);
    for (int i = 0; i < PAIR_MAX; i++)
        if (proxy->pairs[i])
            pair_drop(proxy, i);
    close(proxy->listen_fd);
    close(proxy->wake_fd);
    free(proxy);
}

int dt_testproxy_port(const dt_testproxy_t *proxy)
{
    return proxy->port;
}

void dt_testproxy_set(dt_testproxy_t *proxy, dt_testproxy_mode_t mode, int delay_ms)
{
    atomic_store(&proxy->mode, mode);
    atomic_store(&proxy->delay_ms, delay_ms);
    (void)eventfd_write(proxy->wake_fd, 1);
}

void dt_testproxy_cut_after(dt_testproxy_t *proxy, long bytes)
{
    atomic_store(&proxy->cut_after, bytes);
}

int dt_testproxy_cuts(const dt_testproxy_t *proxy)
{
    return atomic_load(&proxy->cuts);
}
