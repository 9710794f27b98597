#include "shm/seqpacket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

union fd_control {
    char bytes[CMSG_SPACE(DT_SEQPACKET_FDS_MAX * sizeof(int))];
    struct cmsghdr align;
};

static dt_status_t fail_errno(dt_error_t *err, const char *what)
{
    int code = errno;
    dt_status_t status = DT_ERR_INTERNAL;
    if (code == EAGAIN || code == EWOULDBLOCK || code == ENOBUFS)
        status = DT_ERR_AGAIN;
    else if (code == EPIPE || code == ECONNRESET || code == ENOTCONN)
        status = DT_ERR_PEER;
    else if (code == EMFILE || code == ENFILE || code == ETOOMANYREFS)
        status = DT_ERR_LIMIT;
    else if (code == ENOMEM)
        status = DT_ERR_NOMEM;
    if (!err)
        return status; /* a signal handler may be here: strerror is not for it */
    return dt_fail(err, status, "errno", code, "%s: %s", what, strerror(code));
}

dt_status_t dt_seqpacket_pair(int ret_fds[2], dt_error_t *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return fail_errno(err, "socketpair");
    int flags = fcntl(pair[0], F_GETFL);
    if (flags < 0 || fcntl(pair[0], F_SETFL, flags | O_NONBLOCK)) {
        dt_status_t status = fail_errno(err, "fcntl");
        (void)close(pair[0]);
        (void)close(pair[1]);
        return status;
    }
    memcpy(ret_fds, pair, sizeof pair);
    return DT_OK;
}

dt_status_t dt_seqpacket_send(int fd, const void *data, size_t size_bytes, const int *fds,
                              int fd_count, dt_error_t *err)
{
    union fd_control control;
    struct iovec vector = {.iov_len = size_bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    if (size_bytes == 0 || size_bytes > DT_SEQPACKET_SIZE_MAX || fd_count < 0 ||
        fd_count > DT_SEQPACKET_FDS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "message of %zu bytes with %d descriptors",
                       size_bytes, fd_count);
    memcpy(&vector.iov_base, &data, sizeof data); /* iov_base is not const; sendmsg only reads it */
    if (fd_count > 0) {
        size_t bytes = (size_t)fd_count * sizeof(int);
        memset(&control, 0, sizeof control);
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_len = CMSG_LEN(bytes);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(rights), fds, bytes);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? fail_errno(err, "send to the other process") : DT_OK;
}

/* Gather the descriptors of a received message; gives at most DT_SEQPACKET_FDS_MAX of them. */
static int take_fds(struct msghdr *header, int *ret_fds)
{
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int here = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < here && count < DT_SEQPACKET_FDS_MAX; i++)
            memcpy(&ret_fds[count++], CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof(int));
    }
    return count;
}

/* NOLINTNEXTLINE(readability-function-size): eight parameters: three outputs and bounds of two */
dt_status_t dt_seqpacket_recv(int fd, void *data, size_t size_max, size_t *ret_size_bytes,
                              int *ret_fds, int fd_max, int *ret_fd_count, dt_error_t *err)
{
    union fd_control control;
    int fds[DT_SEQPACKET_FDS_MAX];
    struct iovec vector = {.iov_base = data, .iov_len = size_max};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    ssize_t got;
    do
        got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return fail_errno(err, "receive from the other process");
    int count = take_fds(&header, fds);
    bool is_cut = header.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    if (got == 0 || is_cut || count > fd_max) {
        for (int i = 0; i < count; i++)
            (void)close(fds[i]);
        if (got == 0 && !is_cut && count == 0)
            return dt_fail(err, DT_ERR_PEER, "dt", 0, "the other process closed the connection");
        return dt_fail(err, DT_ERR_INVALID, "dt", count,
                       "a message was empty, over %zu bytes or had over %d descriptors", size_max,
                       fd_max);
    }
    if (count > 0)
        memcpy(ret_fds, fds, (size_t)count * sizeof(int));
    *ret_size_bytes = (size_t)got;
    *ret_fd_count = count;
    return DT_OK;
}
