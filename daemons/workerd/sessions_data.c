/* Data connections: tensor bytes between programs and this node, past the controller. The messages
 * are those of wire/bulk.h.
 *
 *   a door: a token, told to the program through the controller --> a connection, by an abstract
 * unix socket or TCP, there with TLS if this node has a certificate --> HELLO with the token, which
 * is used up; a new door is told --> chunks into the bulk ring, the engines' chunks out
 *
 * One connection an instance; a newer one replaces it. With a window (memory of the program, by
 * SCM_RIGHTS) chunks name places in it, and engines read and write there. A connection that ends
 * loses what was on its way; the program says again what was not received, by the next connection
 * or by the controller. Bytes that come by a socket are received where the engines read them, in
 * the bulk ring; if somebody else has to write there meanwhile they move to the connection's own
 * memory.
 *
 * Trust. Who knows the token is the session's program; with TLS the program knows the node by its
 * certificate. Plain text is for loopback only. SO_PEERCRED is shown to people. A window
 * must be plain shared memory that is sealed against shrinking, so that no engine gets SIGBUS. Bulk
 * that the ring has no room for stays in the socket. What a peer does not read is kept up to
 * DT_NODE_DATA_QUEUE_MAX, and DT_NODE_DATA_STALL_NS long. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strings.h"
#include "pki/pki.h"
#include "pki/tls.h"
#include "rpc/address.h"
#include "sessions_internal.h"

#define DT_NODE_DATA_CONNECTIONS (DT_NODE_SESSIONS_MAX + 64u)
#define DT_NODE_DATA_QUEUE_MAX   ((size_t)2 * DT_BULK_AHEAD_MAX + (2u << 20))
#define DT_NODE_DATA_TURN_BYTES  (8u << 20)
#define DT_NODE_DATA_HELLO_NS    INT64_C(5000000000)
#define DT_NODE_DATA_STALL_NS    INT64_C(30000000000)
#define DT_NODE_DATA_LOOK_NS     INT64_C(1000000000)
#define DT_NODE_DATA_BACKLOG     64
#define DT_NODE_DATA_CLAIM_MIN   (16u << 10)
#define DT_NODE_DATA_SEALS       (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)

typedef struct data_listener {
    struct dt_node_data *owner;
    dt_watch_t *watch; /* NULL: it does not listen */
    int fd;
    bool is_local;
} data_listener_t;

typedef struct dt_node_connection {
    dt_list_t link; /* in data.connections, or in data.dead */
    struct dt_node_data *owner;
    dt_node_instance_t *instance; /* NULL: it has not said hello, or is dead */
    int fd;                       /* -1: dead */
    dt_tls_t *tls;                /* NULL: the socket is plain */
    dt_watch_t *watch;
    int window_fd; /* -1: none */
    uint32_t number;
    bool is_local;
    bool is_blocked;   /* the message at hand waits for room in the ring */
    int64_t active_ns; /* when it came, or what it waits to send last moved */
    uint8_t head_bytes[DT_BULK_HEAD_BYTES];
    size_t head_len;
    dt_bulk_head_t head;
    uint8_t
        *claim; /* where the body is received in the ring, not yet seen by readers; NULL: body */
    uint8_t *body;
    size_t body_cap, body_len;
    uint8_t *out; /* not taken by the socket: out_len bytes at out_at */
    size_t out_cap, out_at, out_len;
} dt_node_connection_t;

typedef struct dt_node_data {
    dt_node_sessions_t *sessions;
    data_listener_t local, tcp;
    char name[48];              /* of the abstract socket */
    struct sockaddr_storage at; /* where TCP listens */
    char address[64];           /* what programs are told; "": found out for each door */
    char told[64];              /* to the last one, then */
    dt_list_t connections;
    dt_list_t dead; /* ended in their own callback; freed in a later one */
    uint32_t count;
    dt_timer_t *timer;
} dt_node_data_t;

/* ---- ends ---- */

static void reap(dt_node_data_t *data)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&data->dead)) != NULL) {
        dt_node_connection_t *c = DT_CONTAINER_OF(at, dt_node_connection_t, link);
        dt_tls_free(c->tls); /* it may have been in use when the connection ended */
        free(c->body);
        free(c->out);
        free(c);
    }
}

/* Tell an engine of the window, or with `fd` -1 that there is none any more. */
static dt_status_t tell_window(dt_node_connection_t *c, dt_node_instance_t *instance,
                               dt_node_member_t *member, int fd)
{
    dt_engine_message_t message = {
        .kind = DT_ENGINE_MESSAGE_WINDOW, .value = (int32_t)instance->number, .window = c->number};
    uint64_t bytes = 0;
    if (!member->host || !member->is_opened)
        return DT_OK;
    if (fd >= 0 && dt_bulk_area((uint32_t)(member - instance->members), instance->member_count,
                                &message.area_place, &bytes))
        message.area_bytes = (uint32_t)bytes;
    return dt_engines_send(instance->owner->options.engines, member->host->engine, &message, &fd,
                           fd >= 0);
}

static void close_connection(dt_node_connection_t *c, const char *why)
{
    dt_node_instance_t *instance = DT_TAKE(c->instance);
    if (c->fd < 0)
        return;
    if (instance) {
        dt_log_debug("a data connection ended", DT_LOG_U("session", instance->session),
                     DT_LOG_S("reason", why));
        instance->data = NULL;
        instance->must_restart = true; /* soon: this may be in the middle of something */
        dt_timer_arm(c->owner->timer, dt_loop_now_ns());
        for (uint32_t i = 0; c->window_fd >= 0 && i < instance->member_count; i++)
            (void)!tell_window(c, instance, &instance->members[i], -1);
    }
    dt_watch_free(c->watch);
    (void)close(c->fd);
    if (c->window_fd >= 0)
        (void)close(c->window_fd);
    c->fd = c->window_fd = -1;
    c->claim = NULL;
    dt_list_remove(&c->link);
    dt_list_push(&c->owner->dead, &c->link);
    c->owner->count--;
}

/* ---- sending ---- */

static void watch_what(dt_node_connection_t *c)
{
    bool wants_out = c->tls ? dt_tls_wants_out(c->tls) : c->out_len > 0;
    dt_watch_set(c->watch,
                 (c->is_blocked ? 0 : DT_LOOP_READABLE) | (wants_out ? DT_LOOP_WRITABLE : 0));
}

/* Whether the socket has no room: what is kept has to go first. */
static bool is_full(const dt_node_connection_t *c)
{
    return c->out_len > 0 || (c->tls && dt_tls_wants_out(c->tls));
}

/* TLS is over: before the hello people are told. */
static void fail_secure(dt_node_connection_t *c, const dt_error_t *err)
{
    if (!c->instance && !dt_str_is_equal(err->source, "errno")) {
        c->owner->sessions->stats.connections_refused++;
        dt_log_info("a data connection is refused", DT_LOG_S("reason", err->text));
    }
    close_connection(c, err->text);
}

/* Keep what the socket did not take. False: too much, or no memory. */
static bool keep_out(dt_node_connection_t *c, const uint8_t *bytes, size_t size)
{
    if (!bytes || size == 0)
        return true;
    if (c->out_len + size > DT_NODE_DATA_QUEUE_MAX)
        return false;
    if (c->out_at + c->out_len + size > c->out_cap) {
        size_t cap = c->out_cap ? c->out_cap : DT_BULK_BODY_MAX;
        if (c->out_len)
            memmove(c->out, c->out + c->out_at, c->out_len);
        c->out_at = 0;
        while (cap < c->out_len + size)
            cap *= 2;
        uint8_t *grown = cap > c->out_cap ? realloc(c->out, cap) : c->out;
        if (!grown)
            return false;
        c->out = grown;
        c->out_cap = cap > c->out_cap ? cap : c->out_cap;
    }
    memcpy(c->out + c->out_at + c->out_len, bytes, size);
    c->out_len += size;
    return true;
}

/* Returns how many bytes were taken; -1: the connection is over. */
static ssize_t send_secure(dt_node_connection_t *c, const uint8_t *head, const uint8_t *body,
                           size_t size)
{
    dt_error_t err;
    ssize_t sent = dt_tls_send(c->tls, c->fd, head, DT_BULK_HEAD_BYTES, &err);
    ssize_t more = sent == (ssize_t)DT_BULK_HEAD_BYTES && size
                       ? dt_tls_send(c->tls, c->fd, body, size, &err)
                       : 0;
    if (sent < 0 || more < 0) {
        fail_secure(c, &err);
        return -1;
    }
    return sent + more;
}

/* Returns how many bytes the socket took; -1: the connection is over. */
static ssize_t send_parts(dt_node_connection_t *c, const struct msghdr *message)
{
    ssize_t sent;
    do
        sent = sendmsg(c->fd, message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (sent < 0)
        close_connection(c, strerror(errno));
    return sent;
}

static ssize_t send_plain(dt_node_connection_t *c, const uint8_t *head, const uint8_t *body,
                          size_t size)
{
    struct iovec parts[2] = {{.iov_len = DT_BULK_HEAD_BYTES}, {.iov_len = size}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = size ? 2 : 1};
    memcpy(&parts[0].iov_base, &head, sizeof head); /* sendmsg only reads them */
    memcpy(&parts[1].iov_base, &body, sizeof body);
    return send_parts(c, &message);
}

static void send_message(dt_node_connection_t *c, const dt_bulk_head_t *head, const uint8_t *body)
{
    uint8_t bytes[DT_BULK_HEAD_BYTES];
    size_t size = dt_bulk_body(head);
    ssize_t sent = 0;
    if (c->fd < 0)
        return;
    dt_bulk_put(bytes, head);
    if (c->out_len == 0) {
        c->active_ns = dt_loop_now_ns();
        sent = c->tls ? send_secure(c, bytes, body, size) : send_plain(c, bytes, body, size);
    }
    if (sent < 0)
        return;
    size_t head_sent = (size_t)sent < sizeof bytes ? (size_t)sent : sizeof bytes;
    size_t body_sent = (size_t)sent - head_sent;
    if (!keep_out(c, bytes + head_sent, sizeof bytes - head_sent) ||
        !keep_out(c, body + body_sent, size - body_sent))
        close_connection(c, "the program does not read");
    else if (is_full(c))
        watch_what(c);
}

/* Send more of what is kept. Returns as send_parts(). */
static ssize_t send_kept(dt_node_connection_t *c)
{
    struct iovec kept = {.iov_base = c->out + c->out_at, .iov_len = c->out_len};
    const struct msghdr message = {.msg_iov = &kept, .msg_iovlen = 1};
    dt_error_t err;
    if (!c->tls)
        return send_parts(c, &message);
    ssize_t sent = dt_tls_send(c->tls, c->fd, kept.iov_base, kept.iov_len, &err);
    if (sent < 0)
        fail_secure(c, &err);
    return sent;
}

static void flush(dt_node_connection_t *c)
{
    while (is_full(c)) {
        ssize_t sent = send_kept(c);
        if (sent < 0)
            return;
        if (sent > 0)
            c->active_ns = dt_loop_now_ns();
        c->out_at += (size_t)sent;
        c->out_len -= (size_t)sent;
        if (sent == 0)
            break;
    }
    if (c->out_len == 0)
        c->out_at = 0;
    watch_what(c);
}

static void refuse(dt_node_connection_t *c, const char *text)
{
    const dt_bulk_head_t head = {.kind = DT_BULK_REFUSED, .size = (uint32_t)strlen(text)};
    c->owner->sessions->stats.connections_refused++;
    dt_log_info("a data connection is refused", DT_LOG_S("reason", text));
    send_message(c, &head, (const uint8_t *)text);
    close_connection(c, text);
}

/* ---- hello ---- */

/* What an engine may map: it cannot shrink under it, and no page of it can fail to come. */
static bool is_window(int fd)
{
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    off_t size = lseek(fd, 0, SEEK_END);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && !(seals & DT_NODE_DATA_SEALS) &&
           fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC && size == DT_BULK_WINDOW_BYTES &&
           (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

static dt_node_instance_t *instance_of(dt_node_sessions_t *sessions, uint64_t session,
                                       const uint8_t *token)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        uint8_t differs = 0;
        for (size_t i = 0; i < sizeof instance->token; i++)
            differs |= instance->token[i] ^ token[i];
        if (instance->session == session && !differs)
            return instance;
    }
    return NULL;
}

static void on_hello(dt_node_connection_t *c)
{
    dt_node_sessions_t *sessions = c->owner->sessions;
    dt_node_instance_t *instance = instance_of(sessions, c->head.total, c->body);
    bool wants_window = c->head.place > 0 && c->is_local;
    if (!instance || sessions->is_stopping) {
        refuse(c, "no session of this node has that token");
        return;
    }
    if (c->window_fd >= 0 && !(wants_window && is_window(c->window_fd))) {
        (void)close(c->window_fd);
        c->window_fd = -1;
    }
    if (instance->data)
        close_connection(instance->data, "replaced by a newer one");
    instance->data = c;
    c->instance = instance;
    c->number = ++instance->window_last;
    for (uint32_t i = 0; i < instance->member_count && c->fd >= 0; i++)
        dt_node_data_show(instance, &instance->members[i]);
    if (c->fd < 0)
        return;
    dt_log_debug("a data connection came", DT_LOG_U("session", instance->session),
                 DT_LOG_S("by", c->is_local ? "unix socket" : "TCP"),
                 DT_LOG_S("window", c->window_fd >= 0 ? "yes" : "no"));
    const dt_bulk_head_t welcome = {.kind = DT_BULK_WELCOME, .place = c->window_fd >= 0};
    send_message(c, &welcome, NULL);
    dt_node_door_tell(instance); /* the token was good for this one */
}

void dt_node_data_show(dt_node_instance_t *instance, dt_node_member_t *member)
{
    dt_node_connection_t *c = instance->data;
    if (!c || c->window_fd < 0 || tell_window(c, instance, member, c->window_fd) == DT_OK)
        return;
    refuse(c, "an engine does not take the window");
}

void dt_node_data_no_window(dt_node_instance_t *instance, const char *why)
{
    if (instance->data && instance->data->window_fd >= 0)
        refuse(instance->data, why);
}

/* ---- what comes ---- */

static bool body_room(dt_node_connection_t *c, size_t size)
{
    if (size <= c->body_cap)
        return true;
    free(c->body);
    c->body = malloc(size);
    c->body_cap = c->body ? size : 0;
    if (!c->body)
        refuse(c, "no memory for a message");
    return c->body != NULL;
}

/* Receive the body that comes where the engines will read it, if there is room now. */
static void claim(dt_node_connection_t *c)
{
    uint8_t *bytes;
    size_t size = sizeof(dt_channel_chunk_t) + c->head.size;
    if (c->head.kind == DT_BULK_DATA && c->head.size >= DT_NODE_DATA_CLAIM_MIN &&
        dt_ring_reserve(&c->instance->bulk, size, &bytes, NULL) == DT_OK)
        c->claim = bytes + sizeof(dt_channel_chunk_t);
}

/* Somebody else writes into the ring. */
static void unclaim(dt_node_connection_t *c)
{
    const uint8_t *bytes = DT_TAKE(c->claim);
    if (bytes && body_room(c, c->head.size) && c->body_len > 0)
        memcpy(c->body, bytes, c->body_len);
}

static void commit(dt_node_connection_t *c)
{
    dt_node_instance_t *instance = c->instance;
    uint8_t *bytes = DT_TAKE(c->claim);
    const dt_channel_chunk_t head = {
        .transfer = c->head.transfer, .offset = c->head.offset, .crc32c = c->head.crc32c};
    memcpy(bytes - sizeof head, &head, sizeof head);
    dt_ring_commit(&instance->bulk, sizeof head + c->head.size, DT_CHANNEL_CHUNK);
    instance->owner->stats.bulk[DT_NODE_BULK_DIRECT].up_bytes += c->head.size;
}

dt_status_t dt_node_bulk_write(dt_node_instance_t *instance, const dt_node_chunk_t *chunk)
{
    uint8_t *bytes;
    uint32_t bad = 0;
    size_t size = sizeof chunk->head + chunk->size;
    if (instance->data && instance->data->claim)
        unclaim(instance->data);
    dt_status_t status = dt_ring_reserve(&instance->bulk, size, &bytes, &bad);
    if (status == DT_ERR_PEER)
        dt_node_member_misbehaves(instance, bad, false);
    if (status != DT_OK)
        return status;
    memcpy(bytes, &chunk->head, sizeof chunk->head);
    if (chunk->size > 0)
        memcpy(bytes + sizeof chunk->head, chunk->data, chunk->size);
    dt_ring_commit(&instance->bulk, size, DT_CHANNEL_CHUNK);
    return DT_OK;
}

void dt_node_bulk_restart(dt_node_instance_t *instance)
{
    const dt_node_chunk_t chunk = {
        .head = {.flags = DT_CHANNEL_CHUNK_ACK | DT_CHANNEL_CHUNK_RESTART}};
    instance->must_restart = dt_node_bulk_write(instance, &chunk) == DT_ERR_AGAIN;
    if (instance->must_restart)
        dt_ring_want_room(&instance->bulk);
}

static bool chunk_of(const dt_node_connection_t *c, dt_node_chunk_t *ret_chunk)
{
    const dt_bulk_head_t *head = &c->head;
    *ret_chunk = (dt_node_chunk_t){.head = {.transfer = head->transfer, .offset = head->offset}};
    switch (head->kind) {
    case DT_BULK_DATA:
        ret_chunk->head.crc32c = head->crc32c;
        ret_chunk->data = c->body;
        ret_chunk->size = head->size;
        return true;
    case DT_BULK_PLACED:
        ret_chunk->head.flags = DT_CHANNEL_CHUNK_PLACED;
        ret_chunk->head.place = head->place;
        ret_chunk->head.size = head->size;
        ret_chunk->head.window = c->number;
        return c->window_fd >= 0;
    case DT_BULK_RECEIVED:
        ret_chunk->head.flags = DT_CHANNEL_CHUNK_ACK;
        ret_chunk->head.received = head->place;
        if (head->flags & DT_BULK_AGAIN)
            ret_chunk->head.flags |= DT_CHANNEL_CHUNK_RESTART;
        return true;
    default:
        return false;
    }
}

/* Handle the message at hand. False: it waits for room. */
static bool on_message(dt_node_connection_t *c)
{
    dt_node_chunk_t chunk;
    if (!c->instance) {
        if (c->head.kind == DT_BULK_HELLO)
            on_hello(c);
        else
            refuse(c, "the first message must be a hello");
        return true;
    }
    if (c->claim) {
        commit(c);
        return true;
    }
    if (!chunk_of(c, &chunk)) {
        refuse(c, "a message that a program may not send");
        return true;
    }
    bool is_again = (chunk.head.flags & DT_CHANNEL_CHUNK_RESTART) && c->instance->has_withheld;
    if (is_again) /* what it asks for was withheld, and perhaps others that it wants no more */
        chunk.head.transfer = 0;
    dt_status_t status = dt_node_bulk_write(c->instance, &chunk);
    if (status == DT_ERR_AGAIN) {
        dt_ring_want_room(&c->instance->bulk);
        status = dt_node_bulk_write(c->instance, &chunk);
    }
    if (status == DT_ERR_AGAIN)
        return false;
    if (is_again)
        c->instance->has_withheld = c->instance->is_overdue = false;
    bool is_placed = chunk.head.flags & DT_CHANNEL_CHUNK_PLACED;
    c->owner->sessions->stats.bulk[is_placed ? DT_NODE_BULK_WINDOW : DT_NODE_BULK_DIRECT]
        .up_bytes += is_placed ? chunk.head.size : chunk.size;
    return true;
}

/* The first message may bring a descriptor. */
static ssize_t receive_first(dt_node_connection_t *c, uint8_t *bytes, size_t size)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    for (struct cmsghdr *h = got < 0 ? NULL : CMSG_FIRSTHDR(&message); h;
         h = CMSG_NXTHDR(&message, h)) {
        size_t count = h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS
                           ? (h->cmsg_len - CMSG_LEN(0)) / sizeof(int)
                           : 0;
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (c->window_fd < 0)
                c->window_fd = fd;
            else
                (void)close(fd);
        }
    }
    return got;
}

/* Read up to `size` bytes. 0: none now, or the connection is over. */
static size_t receive(dt_node_connection_t *c, uint8_t *bytes, size_t size)
{
    dt_error_t err;
    if (c->tls) {
        ssize_t got = dt_tls_recv(c->tls, c->fd, bytes, size, &err);
        if (got < 0)
            fail_secure(c, &err);
        return got > 0 ? (size_t)got : 0;
    }
    for (;;) {
        ssize_t got =
            c->instance ? recv(c->fd, bytes, size, MSG_DONTWAIT) : receive_first(c, bytes, size);
        if (got > 0)
            return (size_t)got;
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            close_connection(c, got == 0 ? "the program closed it" : strerror(errno));
        return 0;
    }
}

/* Read the head. False: not yet. */
static bool read_head(dt_node_connection_t *c)
{
    dt_error_t err;
    if (c->head_len == sizeof c->head_bytes)
        return true;
    c->head_len += receive(c, c->head_bytes + c->head_len, sizeof c->head_bytes - c->head_len);
    if (c->fd < 0 || c->head_len < sizeof c->head_bytes)
        return false;
    if (dt_bulk_get(c->head_bytes, &c->head, &err) != DT_OK) {
        refuse(c, err.text);
        return false;
    }
    size_t size = dt_bulk_body(&c->head);
    if (!c->instance && c->head.kind != DT_BULK_HELLO) {
        refuse(c, "the first message must be a hello");
        return false;
    }
    if (c->instance)
        claim(c);
    return c->claim || body_room(c, size);
}

/* With TLS what lies decrypted is read to its end: no poll would tell of it. */
static bool goes_on(dt_node_connection_t *c, size_t budget)
{
    if (c->fd >= 0 && budget == 0 && c->tls)
        dt_tls_hold(c->tls, true);
    return c->fd >= 0 && !c->is_blocked && (budget > 0 || c->tls);
}

static void read_turn(dt_node_connection_t *c)
{
    size_t budget = DT_NODE_DATA_TURN_BYTES;
    while (goes_on(c, budget)) {
        if (!read_head(c))
            return;
        size_t size = dt_bulk_body(&c->head);
        if (c->body_len < size) {
            uint8_t *body = c->claim ? c->claim : c->body;
            size_t got = receive(c, body + c->body_len, size - c->body_len);
            c->body_len += got;
            budget -= got < budget ? got : budget;
            if (c->fd < 0 || got == 0)
                return;
            if (c->body_len < size)
                continue;
        }
        c->is_blocked = !on_message(c);
        if (c->fd < 0)
            return;
        budget -= budget > sizeof c->head_bytes ? sizeof c->head_bytes : budget;
        if (!c->is_blocked)
            c->head_len = c->body_len = 0;
    }
    if (c->is_blocked)
        watch_what(c);
}

static void read_some(dt_node_connection_t *c)
{
    read_turn(c);
    if (c->fd < 0 || !c->tls)
        return;
    dt_tls_hold(c->tls, false);
    flush(c); /* what the handshake has to say, and what waited for its end */
}

void dt_node_data_resume(dt_node_instance_t *instance)
{
    dt_node_connection_t *c = instance->data;
    if (instance->must_restart)
        dt_node_bulk_restart(instance);
    if (!c || !c->is_blocked)
        return;
    c->is_blocked = !on_message(c);
    if (c->fd < 0 || c->is_blocked)
        return;
    c->head_len = c->body_len = 0;
    watch_what(c);
    if (c->tls)
        read_some(c); /* the rest may have been received already */
}

static void on_ready(void *arg, int events)
{
    dt_node_connection_t *c = arg;
    reap(c->owner);
    if (events & DT_LOOP_WRITABLE)
        flush(c);
    if (c->fd >= 0 && (events & (DT_LOOP_READABLE | DT_LOOP_HANGUP)))
        read_some(c);
}

/* ---- what goes ---- */

bool dt_node_data_take(dt_node_instance_t *instance, const dt_node_chunk_t *chunk)
{
    dt_node_connection_t *c = instance->data;
    dt_bulk_head_t head = {
        .transfer = chunk->head.transfer, .offset = chunk->head.offset, .total = chunk->total};
    bool is_placed = chunk->head.flags & DT_CHANNEL_CHUNK_PLACED;
    if (is_placed) {
        head.kind = DT_BULK_PLACED;
        head.place = chunk->head.place;
        head.size = chunk->head.size;
        if (!c || c->window_fd < 0 || chunk->head.window != c->number)
            return true; /* its window is gone; the program asks again */
        instance->owner->stats.bulk[DT_NODE_BULK_WINDOW].down_bytes += head.size;
        send_message(c, &head, NULL);
        return true;
    }
    if (!c)
        return false;
    if (chunk->error) {
        head.kind = DT_BULK_FAILED;
        head.size = (uint32_t)chunk->error_bytes;
        if (chunk->error_bytes > DT_BULK_TEXT_MAX)
            return false;
        send_message(c, &head, chunk->error);
    } else if (chunk->size > 0) {
        head.kind = DT_BULK_DATA;
        head.size = (uint32_t)chunk->size;
        head.crc32c = chunk->head.crc32c;
        instance->owner->stats.bulk[DT_NODE_BULK_DIRECT].down_bytes += chunk->size;
        send_message(c, &head, chunk->data);
    } else {
        head.kind = DT_BULK_RECEIVED;
        head.place = chunk->head.received;
        head.flags = chunk->head.flags & DT_CHANNEL_CHUNK_RESTART ? DT_BULK_AGAIN : 0;
        send_message(c, &head, NULL);
    }
    return true;
}

/* ---- doors ---- */

static uint32_t vdevs_of(const dt_node_instance_t *instance, uint32_t *vdevs)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < instance->member_count; i++)
        for (uint32_t k = 0; instance->members[i].host && k < instance->members[i].vdev_count; k++)
            vdevs[count++] = instance->members[i].vdevs[k];
    return count;
}

/* Where programs are told to connect. */
static char *address_told(dt_node_data_t *data)
{
    struct sockaddr_storage address;
    socklen_t size;
    if (!data->address[0] && dt_node_address_reach(&data->at) == DT_NODE_REACH_ANY &&
        dt_node_address_own(data->sessions, &address, &size)) {
        dt_node_address_set_port(&address, dt_rpc_address_port(&data->at));
        dt_rpc_address_text(&address, true, data->told, sizeof data->told);
        return data->told;
    }
    return data->address;
}

void dt_node_door_tell(dt_node_instance_t *instance)
{
    dt_node_sessions_t *sessions = instance->owner;
    dt_node_data_t *data = sessions->data;
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__DataDoor door = DTORCH__V1__DATA_DOOR__INIT;
    char node[64];
    if (!data || (!data->local.watch && !data->tcp.watch))
        return;
    if (instance->window_last == 0)
        dt_pki_random(instance->door, sizeof instance->door);
    dt_pki_random(instance->token, sizeof instance->token);
    (void)dt_str_copy(node, sizeof node, sessions->options.node_name);
    door.instance = (ProtobufCBinaryData){sizeof instance->door, instance->door};
    door.token = (ProtobufCBinaryData){sizeof instance->token, instance->token};
    door.node = node;
    door.boot_id = (char *)(uintptr_t)sessions->options.boot_id;
    if (data->local.watch)
        door.local = data->name;
    door.tls = sessions->options.tls(sessions->options.arg) != NULL;
    if (data->tcp.watch && (door.tls || dt_node_address_reach(&data->at) == DT_NODE_REACH_LOOPBACK))
        door.address = address_told(data);
    door.uid = (uint32_t)getuid();
    door.vdevs = malloc(DT_CHANNEL_VDEVS_MAX * sizeof *door.vdevs);
    if (!door.vdevs)
        return; /* then there is no door, and the controller relays */
    door.n_vdevs = vdevs_of(instance, door.vdevs);
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_DOOR;
    up.door = &door;
    if (dt_node_up_pack(instance, &up))
        dt_node_up_pump(instance);
    free(door.vdevs);
}

void dt_node_data_leave(dt_node_instance_t *instance, const char *why)
{
    if (instance->data)
        close_connection(instance->data, why);
}

/* ---- listening ---- */

/* TLS as soon as this node has a certificate; the program is known by its token. */
static bool secure(dt_node_connection_t *c)
{
    dt_node_sessions_t *sessions = c->owner->sessions;
    const dt_rpc_tls_t *own = sessions->options.tls(sessions->options.arg);
    dt_error_t err;
    if (!own)
        return dt_node_address_reach(&c->owner->at) == DT_NODE_REACH_LOOPBACK;
    const dt_tls_options_t options = {
        .certificate = own->certificate, .key = own->key, .is_server = true};
    if (dt_tls_create(&options, &c->tls, &err) == DT_OK)
        return true;
    dt_log_warn("no TLS for a data connection", DT_LOG_E(&err));
    return false;
}

static dt_node_connection_t *connection_new(dt_node_data_t *data, int fd, bool is_local)
{
    dt_node_connection_t *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->owner = data;
    c->fd = fd;
    c->window_fd = -1;
    c->is_local = is_local;
    c->active_ns = dt_loop_now_ns();
    if (dt_watch_create(data->sessions->options.loop, fd, DT_LOOP_READABLE, on_ready, c, &c->watch,
                        NULL) != DT_OK) {
        free(c);
        return NULL;
    }
    if (!is_local && !secure(c)) {
        dt_watch_free(c->watch);
        free(c);
        return NULL;
    }
    dt_list_push(&data->connections, &c->link);
    if (data->count++ == 0)
        dt_timer_arm(data->timer, dt_loop_now_ns() + DT_NODE_DATA_LOOK_NS);
    return c;
}

static void on_accept(void *arg, int events)
{
    data_listener_t *listener = arg;
    dt_node_data_t *data = listener->owner;
    int one = 1;
    (void)events;
    reap(data);
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (!listener->is_local)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (data->count >= DT_NODE_DATA_CONNECTIONS || !connection_new(data, fd, listener->is_local))
        (void)close(fd);
}

/* What was withheld the program asks for when its connection is there, but it may have learnt of a
 * value later than that. */
static void restart_all(dt_node_sessions_t *sessions)
{
    for (dt_list_t *at = sessions->instances.next, *next; at != &sessions->instances; at = next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        bool is_due = instance->must_restart || (instance->is_overdue && instance->data);
        next = at->next;
        instance->has_withheld &= !instance->is_overdue;
        instance->is_overdue = instance->has_withheld && instance->data;
        if (is_due)
            dt_node_bulk_restart(instance);
    }
}

static void on_look(void *arg, int64_t deadline_ns)
{
    dt_node_data_t *data = arg;
    int64_t now_ns = dt_loop_now_ns();
    (void)deadline_ns;
    reap(data);
    restart_all(data->sessions);
    for (dt_list_t *at = data->connections.next, *next; at != &data->connections; at = next) {
        dt_node_connection_t *c = DT_CONTAINER_OF(at, dt_node_connection_t, link);
        next = at->next;
        if (!c->instance && now_ns - c->active_ns > DT_NODE_DATA_HELLO_NS)
            close_connection(c, "no hello in time");
        else if (c->out_len > 0 && now_ns - c->active_ns > DT_NODE_DATA_STALL_NS)
            close_connection(c, "the program does not read");
    }
    if (data->count > 0)
        dt_timer_arm(data->timer, now_ns + DT_NODE_DATA_LOOK_NS);
}

static dt_status_t listen_on(dt_node_data_t *data, data_listener_t *listener,
                             const struct sockaddr *address, socklen_t size, dt_error_t *err)
{
    int one = 1;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && address->sa_family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, address, size) || listen(fd, DT_NODE_DATA_BACKLOG)) {
        int code = errno;
        if (fd >= 0)
            (void)close(fd);
        return dt_fail(err, DT_ERR_AGAIN, "errno", code, "%s", strerror(code));
    }
    listener->owner = data;
    listener->fd = fd;
    listener->is_local = address->sa_family == AF_UNIX;
    dt_status_t status = dt_watch_create(data->sessions->options.loop, fd, DT_LOOP_READABLE,
                                         on_accept, listener, &listener->watch, err);
    if (status != DT_OK)
        (void)close(fd);
    return status;
}

/* An abstract name: no folder that programs would have to reach, and no file that stays. */
static void listen_local(dt_node_data_t *data)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    dt_error_t err = {0};
    char hex[33];
    dt_pki_random_hex(hex, 12);
    (void)snprintf(data->name, sizeof data->name, "dtorch-data-%s", hex);
    size_t len = strlen(data->name);
    memcpy(address.sun_path + 1, data->name, len);
    if (listen_on(data, &data->local, (const struct sockaddr *)&address,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len), &err) != DT_OK)
        dt_log_warn("programs of this host cannot share memory", DT_LOG_E(&err));
}

static dt_status_t listen_tcp(dt_node_data_t *data, const char *text, dt_error_t *err)
{
    dt_rpc_address_t parsed;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    dt_error_t why = {0};
    if (dt_str_is_equal(text, "none"))
        return DT_OK;
    DT_TRY(dt_rpc_address_parse(text, &parsed, err));
    DT_TRY(dt_rpc_address_resolve(&parsed, &address, &size, err));
    if (data->sessions->options.is_plain &&
        dt_node_address_reach(&address) != DT_NODE_REACH_LOOPBACK)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "DataListen=%s: must be a loopback address, as this node has no certificate",
                       text);
    if (listen_on(data, &data->tcp, (const struct sockaddr *)&address, size, &why) != DT_OK) {
        dt_log_notice("no data port", DT_LOG_S("listen", text), DT_LOG_E(&why));
        return DT_OK;
    }
    size = sizeof data->at;
    if (getsockname(data->tcp.fd, (struct sockaddr *)&data->at, &size) != 0)
        return DT_OK;
    const char *told = data->sessions->options.data_address;
    if (!dt_str_is_equal(told, "none"))
        (void)dt_str_copy(data->address, sizeof data->address, told);
    else if (dt_node_address_reach(&data->at) != DT_NODE_REACH_ANY)
        dt_rpc_address_text(&data->at, true, data->address, sizeof data->address);
    return DT_OK;
}

dt_status_t dt_node_data_create(dt_node_sessions_t *sessions, dt_error_t *err)
{
    dt_node_data_t *data = calloc(1, sizeof *data);
    if (!data)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for data connections");
    data->sessions = sessions;
    dt_list_init(&data->connections);
    dt_list_init(&data->dead);
    data->local.fd = data->tcp.fd = -1;
    sessions->data = data;
    dt_status_t status = dt_timer_create(sessions->options.loop, on_look, data, &data->timer, err);
    if (status == DT_OK) {
        listen_local(data);
        status = listen_tcp(data, sessions->options.data_listen, err);
    }
    if (status != DT_OK)
        dt_node_data_free(sessions);
    return status;
}

static void listener_free(data_listener_t *listener)
{
    if (!listener->watch)
        return;
    dt_watch_free(listener->watch);
    (void)close(listener->fd);
}

void dt_node_data_free(dt_node_sessions_t *sessions)
{
    dt_node_data_t *data = DT_TAKE(sessions->data);
    if (!data)
        return;
    while (!dt_list_is_empty(&data->connections))
        close_connection(DT_CONTAINER_OF(data->connections.next, dt_node_connection_t, link),
                         "the end");
    reap(data);
    listener_free(&data->local);
    listener_free(&data->tcp);
    dt_timer_free(data->timer);
    free(data);
}

uint32_t dt_node_data_count(const dt_node_sessions_t *sessions)
{
    return sessions->data ? sessions->data->count : 0;
}
