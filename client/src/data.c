/* The direct ways to nodes, past the controller: by a unix socket and a window of shared memory on
 * one host, else by TCP, with TLS where the node has certificates. The messages are those of
 * wire/bulk.h.
 *
 *   a door comes (a token, where to connect) --> IDLE --> something is to be moved: connect, HELLO
 * with the window --> WELCOME: READY --> it breaks, or is refused: SPENT until the next door
 *
 * What does not work here costs no byte: it goes another way, and dt_session_info() says why. Each
 * connection has a window of its own, so that what the node still reads of an old one is never
 * written over. I/O thread, but for dt_client_window_*(). */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/strings.h"
#include "client.h"
#include "rpc/address.h"
#include "shm/memfd.h"

#define DIAL_NS     (2 * DT_CLOCK_SECOND_NS) /* until the welcome */
#define RETRY_NS    (50 * DT_CLOCK_MS_NS)
#define BROKEN_MAX  20u /* connections in a row that may break before the welcome */
#define TURN_BYTES  (8u << 20)
#define PATHS_MAX   4096u
#define CONTROL_MAX (1u << 20)   /* bytes that may wait for the socket before it is given up */
#define LOCKED_MAX  (128u << 10) /* received in one go while the program's threads wait */

/* ---- windows ---- */

static dt_client_window_t *window_new(int *ret_fd)
{
    dt_client_window_t *window = calloc(1, sizeof *window);
    void *map = NULL;
    int fd = -1;
    if (!window || dt_memfd_create("dtorch-window", DT_BULK_WINDOW_BYTES, &fd, NULL) != DT_OK) {
        free(window);
        return NULL;
    }
    if (dt_memfd_map(fd, DT_BULK_WINDOW_BYTES, DT_MEMFD_READ_WRITE, &map, NULL) != DT_OK) {
        (void)close(fd);
        free(window);
        return NULL;
    }
    window->refs = 1;
    window->map = map;
    window->units.count = DT_BULK_UPLOAD_BYTES / DT_BULK_UNIT_BYTES;
    *ret_fd = fd;
    return window;
}

void dt_client_window_unref(dt_client_window_t *window)
{
    if (!window || --window->refs > 0)
        return;
    dt_memfd_unmap(window->map, DT_BULK_WINDOW_BYTES);
    free(window);
}

dt_client_window_t *dt_client_window_take(dt_session_t *session, uint32_t vdev, size_t size,
                                          uint32_t *ret_first, uint32_t *ret_count)
{
    dt_client_path_t *path = dt_client_path_of(session, vdev);
    dt_client_window_t *window = path ? path->window : NULL;
    *ret_count = dt_bulk_units_of(size);
    if (!window || !dt_bulk_units_take(&window->units, *ret_count, ret_first))
        return NULL;
    window->refs++;
    return window;
}

void dt_client_window_give(dt_client_window_t *window, uint64_t upload, size_t received)
{
    for (uint32_t i = 0; i < window->units.count; i++)
        if (window->pieces[i].upload == upload && window->pieces[i].end <= received) {
            window->pieces[i].upload = 0;
            dt_bulk_units_give(&window->units, i, window->pieces[i].count);
        }
}

/* ---- ends ---- */

static void note_detour(dt_session_t *session, const char *what, const char *why)
{
    pthread_mutex_lock(&session->lock);
    (void)snprintf(session->detour, sizeof session->detour, "%s: %s", what, why);
    pthread_mutex_unlock(&session->lock);
}

/* `is_again`: the same token is tried once more. */
static void end_path(dt_client_path_t *path, const char *why, bool is_again)
{
    dt_session_t *session = path->session;
    if (path->fd < 0)
        return;
    bool was_ready = path->state == DT_CLIENT_PATH_READY;
    path->has_token |= is_again;
    if (!was_ready && path->is_local && !is_again)
        path->is_local_bad = true; /* TCP is next, with the next door */
    if (!was_ready)
        note_detour(session, path->is_local ? "shared memory" : path->address, why);
    dt_watch_free(path->watch);
    dt_tls_free(DT_TAKE(path->tls));
    (void)close(path->fd);
    if (path->window_fd >= 0)
        (void)close(path->window_fd);
    path->watch = NULL;
    path->fd = path->window_fd = -1;
    path->head_len = path->body_len = path->out_at = path->out_len = 0;
    path->state = path->has_token ? DT_CLIENT_PATH_IDLE : DT_CLIENT_PATH_SPENT;
    path->retry_ns = dt_loop_now_ns() + RETRY_NS;
    pthread_mutex_lock(&session->lock);
    dt_client_window_t *window = DT_TAKE(path->window);
    dt_client_window_unref(window);
    pthread_mutex_unlock(&session->lock);
}

static void close_path(dt_client_path_t *path, const char *why)
{
    end_path(path, why, false);
}

/* The connection broke, with errno or by its end (0). If that was before the welcome, nobody knows
 * whether the node has read the token: if it has, it refuses it the next time, and the next door is
 * on its way; if it has not, there will be no other door. */
static void break_path(dt_client_path_t *path, int number)
{
    bool is_again = path->state == DT_CLIENT_PATH_DIALING && path->broken_count < BROKEN_MAX &&
                    (number == 0 || number == ECONNRESET || number == EPIPE);
    path->broken_count += is_again;
    end_path(path, number ? strerror(number) : "the node closed the connection", is_again);
}

/* What TLS says when it is over. */
static void fail_path(dt_client_path_t *path, const dt_error_t *err)
{
    if (dt_str_is_equal(err->source, "errno"))
        break_path(path, (int)err->source_code);
    else
        close_path(path, err->text);
}

static void path_free(dt_client_path_t *path)
{
    close_path(path, "the end");
    pthread_mutex_lock(&path->session->lock);
    dt_list_remove(&path->link);
    for (dt_list_t *at = path->session->uploads.next; at != &path->session->uploads;
         at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        if (upload->path == path) {
            upload->path = NULL;
            upload->sent = upload->received;
        }
    }
    pthread_mutex_unlock(&path->session->lock);
    free(path->vdevs);
    free(path->body);
    free(path->out);
    free(path);
}

void dt_client_paths_close(dt_session_t *session)
{
    while (!dt_list_is_empty(&session->paths))
        path_free(DT_CONTAINER_OF(session->paths.next, dt_client_path_t, link));
}

/* ---- sending ---- */

static bool keep_out(dt_client_path_t *path, const uint8_t *bytes, size_t size)
{
    if (!bytes || size == 0)
        return true;
    if (path->out_at + path->out_len + size > path->out_cap) {
        size_t cap = path->out_len + size + DT_BULK_BODY_MAX;
        uint8_t *grown = malloc(cap);
        if (!grown)
            return false;
        if (path->out_len)
            memcpy(grown, path->out + path->out_at, path->out_len);
        free(path->out);
        path->out = grown;
        path->out_cap = cap;
        path->out_at = 0;
    }
    memcpy(path->out + path->out_at + path->out_len, bytes, size);
    path->out_len += size;
    return true;
}

static void watch_what(dt_client_path_t *path)
{
    bool wants_out = path->tls ? dt_tls_wants_out(path->tls) : path->out_len > 0;
    dt_watch_set(path->watch, DT_LOOP_READABLE | (wants_out ? DT_LOOP_WRITABLE : 0));
}

/* Whether the socket has no room: what is kept has to go first. */
static bool is_full(const dt_client_path_t *path)
{
    return path->out_len > 0 || (path->tls && dt_tls_wants_out(path->tls));
}

/* Returns how many bytes were taken; -1: the path is over. */
static ssize_t send_secure(dt_client_path_t *path, const uint8_t *head, const uint8_t *body,
                           size_t size)
{
    dt_error_t err;
    ssize_t sent = dt_tls_send(path->tls, path->fd, head, DT_BULK_HEAD_BYTES, &err);
    ssize_t more = sent == (ssize_t)DT_BULK_HEAD_BYTES && size
                       ? dt_tls_send(path->tls, path->fd, body, size, &err)
                       : 0;
    if (sent < 0 || more < 0) {
        fail_path(path, &err);
        return -1;
    }
    return sent + more;
}

/* Returns how many bytes the socket took; -1: the path is over. */
static ssize_t send_parts(dt_client_path_t *path, const struct msghdr *message)
{
    ssize_t sent;
    do
        sent = sendmsg(path->fd, message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (sent < 0)
        break_path(path, errno);
    return sent;
}

/* The hello brings the window. */
static ssize_t send_plain(dt_client_path_t *path, const uint8_t *head, const uint8_t *body,
                          size_t size)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec parts[2] = {{.iov_len = DT_BULK_HEAD_BYTES}, {.iov_len = size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = size ? 2 : 1};
    memcpy(&parts[0].iov_base, &head, sizeof head); /* sendmsg only reads them */
    memcpy(&parts[1].iov_base, &body, sizeof body);
    if (path->window_fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &path->window_fd, sizeof(int));
    }
    return send_parts(path, &message);
}

static bool send_message(dt_client_path_t *path, const dt_bulk_head_t *head, const uint8_t *body)
{
    uint8_t bytes[DT_BULK_HEAD_BYTES];
    size_t size = dt_bulk_body(head);
    ssize_t sent = 0;
    if (path->fd < 0)
        return false;
    dt_bulk_put(bytes, head);
    if (path->out_len == 0)
        sent =
            path->tls ? send_secure(path, bytes, body, size) : send_plain(path, bytes, body, size);
    if (sent < 0)
        return false;
    if (path->window_fd >= 0 && sent > 0) {
        (void)close(path->window_fd);
        path->window_fd = -1;
    }
    size_t head_sent = (size_t)sent < sizeof bytes ? (size_t)sent : sizeof bytes;
    size_t body_sent = (size_t)sent - head_sent;
    if (path->out_len > CONTROL_MAX ||
        !keep_out(path, bytes + head_sent, sizeof bytes - head_sent) ||
        !keep_out(path, body + body_sent, size - body_sent)) {
        close_path(path, "the node does not read");
        return false;
    }
    if (is_full(path))
        watch_what(path);
    return true;
}

/* Send more of what is kept. Returns as send_parts(). */
static ssize_t send_kept(dt_client_path_t *path)
{
    struct iovec kept = {.iov_base = path->out + path->out_at, .iov_len = path->out_len};
    const struct msghdr message = {.msg_iov = &kept, .msg_iovlen = 1};
    dt_error_t err;
    if (!path->tls)
        return send_parts(path, &message);
    ssize_t sent = dt_tls_send(path->tls, path->fd, kept.iov_base, kept.iov_len, &err);
    if (sent < 0)
        fail_path(path, &err);
    return sent;
}

static void flush(dt_client_path_t *path)
{
    while (is_full(path)) {
        ssize_t sent = send_kept(path);
        if (sent < 0)
            return;
        path->out_at += (size_t)sent;
        path->out_len -= (size_t)sent;
        if (sent == 0)
            break;
    }
    if (path->out_len == 0)
        path->out_at = 0;
    watch_what(path);
}

void dt_client_path_received(dt_client_path_t *path, uint64_t transfer, uint64_t received,
                             bool is_again)
{
    const dt_bulk_head_t head = {.kind = DT_BULK_RECEIVED,
                                 .flags = is_again ? DT_BULK_AGAIN : 0,
                                 .transfer = transfer,
                                 .place = received};
    (void)send_message(path, &head, NULL);
}

/* ---- pieces of uploads ---- */

/* Does room in the window come back before more of this upload has come to the node? It tells of
 * what it has read when that is much, or the upload's end. */
static bool comes_back(const dt_client_window_t *window, const dt_client_upload_t *upload)
{
    if (upload->sent - upload->received >= DT_BULK_TELL_BYTES)
        return true;
    for (uint32_t i = 0; i < window->units.count; i++)
        if (window->pieces[i].upload && window->pieces[i].upload < upload->number)
            return true;
    return false;
}

/* Where a piece lies in the path's window; it is copied there if it is not yet. False: no room, and
 * *ret_waits says whether it is worth waiting for some. It is not if uploads hold it all that are
 * behind this one: the node may take none of them before. */
static bool place_piece(dt_client_path_t *path, dt_client_upload_t *upload, size_t size,
                        uint64_t *ret_place, bool *ret_waits)
{
    dt_client_window_t *window = path->window;
    uint32_t count = dt_bulk_units_of(size);
    uint32_t first;
    if (upload->window == window) {
        *ret_place = (uint64_t)upload->unit_first * DT_BULK_UNIT_BYTES + upload->sent;
        return true;
    }
    pthread_mutex_lock(&path->session->lock);
    bool has_room = dt_bulk_units_take(&window->units, count, &first);
    if (has_room) {
        window->pieces[first].upload = upload->number;
        window->pieces[first].end = upload->sent + size;
        window->pieces[first].count = count;
    }
    *ret_waits = comes_back(window, upload);
    pthread_mutex_unlock(&path->session->lock);
    if (!has_room)
        return false;
    *ret_place = (uint64_t)first * DT_BULK_UNIT_BYTES;
    memcpy(window->map + *ret_place, upload->data + upload->sent, size);
    return true;
}

bool dt_client_path_piece(dt_client_path_t *path, dt_client_upload_t *upload, size_t size)
{
    dt_session_t *session = path->session;
    const uint8_t *data = upload->data + upload->sent;
    dt_bulk_head_t head = {.kind = DT_BULK_DATA,
                           .transfer = upload->number,
                           .offset = upload->sent,
                           .size = (uint32_t)size};
    if (is_full(path))
        return false;
    dt_client_record_chunk(session, upload, size);
    bool waits = false;
    bool is_placed = path->window && upload->size > DT_BULK_INLINE_MAX &&
                     place_piece(path, upload, size, &head.place, &waits);
    if (is_placed)
        head.kind = DT_BULK_PLACED;
    else if (waits)
        return false;
    else
        head.crc32c = dt_crc32c(0, data, size);
    if (!send_message(path, &head, data))
        return false;
    pthread_mutex_lock(&session->lock);
    upload->sent += size;
    *(is_placed ? &session->window_bytes : &session->direct_bytes) += size;
    pthread_mutex_unlock(&session->lock);
    return true;
}

/* ---- what comes ---- */

static void on_welcome(dt_client_path_t *path)
{
    dt_session_t *session = path->session;
    bool has_window = path->head.place != 0 && path->window;
    if (path->state != DT_CLIENT_PATH_DIALING)
        return;
    path->state = DT_CLIENT_PATH_READY;
    path->broken_count = 0;
    pthread_mutex_lock(&session->lock);
    if (!has_window)
        dt_client_window_unref(DT_TAKE(path->window));
    if (has_window)
        session->detour[0] = '\0';
    pthread_mutex_unlock(&session->lock);
    if (path->is_local && !has_window && session->settings.uses_window)
        note_detour(session, "shared memory", "the node does not take the window");
    dt_client_bulk_again(session, path);
}

static void on_data(dt_client_path_t *path, const uint8_t *bytes, bool is_placed)
{
    dt_session_t *session = path->session;
    const dt_bulk_head_t *head = &path->head;
    const dt_client_chunk_t chunk = {
        .transfer = head->transfer,
        .offset = head->offset,
        .total = head->total,
        .crc32c = head->crc32c,
        .has_crc = !is_placed,
        .is_in_place = path->is_in_place,
        .is_torn = path->is_torn,
        .data = bytes,
        .data_bytes = head->size,
    };
    pthread_mutex_lock(&session->lock);
    *(is_placed ? &session->window_bytes : &session->direct_bytes) += head->size;
    pthread_mutex_unlock(&session->lock);
    dt_client_bulk_chunk(session, path, &chunk);
}

static void on_message(dt_client_path_t *path)
{
    const dt_bulk_head_t *head = &path->head;
    dt_client_chunk_t chunk = {.transfer = head->transfer};
    char text[128];
    switch (head->kind) {
    case DT_BULK_WELCOME:
        on_welcome(path);
        return;
    case DT_BULK_DATA:
        on_data(path, path->body, false);
        return;
    case DT_BULK_PLACED:
        if (path->window)
            on_data(path, path->window->map + head->place, true);
        else
            close_path(path, "a place in a window that is not there");
        return;
    case DT_BULK_RECEIVED:
        chunk.received = head->place;
        chunk.is_again = head->flags & DT_BULK_AGAIN;
        dt_client_bulk_chunk(path->session, path, &chunk);
        return;
    case DT_BULK_FAILED:
        chunk.error = path->body;
        chunk.error_bytes = head->size;
        dt_client_bulk_chunk(path->session, path, &chunk);
        return;
    case DT_BULK_REFUSED:
        (void)snprintf(text, sizeof text, "%.*s", (int)(head->size < 100 ? head->size : 100),
                       head->size ? (const char *)path->body : "");
        close_path(path, text);
        return;
    default:
        close_path(path, "a message that a node may not send");
    }
}

/* Read up to `size` bytes. 0: none now, or with an error in *ret_err the connection is over. */
static size_t receive_some(dt_client_path_t *path, uint8_t *bytes, size_t size, dt_error_t *ret_err)
{
    ssize_t got;
    if (path->tls) {
        got = dt_tls_recv(path->tls, path->fd, bytes, size, ret_err);
        return got > 0 ? (size_t)got : 0;
    }
    do
        got = recv(path->fd, bytes, size, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        return (size_t)got;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        (void)dt_fail(ret_err, DT_ERR_PEER, "errno", got == 0 ? 0 : errno, "%s", "");
    return 0;
}

static size_t receive(dt_client_path_t *path, uint8_t *bytes, size_t size)
{
    dt_error_t err = {.code = DT_OK};
    size_t got = receive_some(path, bytes, size, &err);
    if (err.code != DT_OK)
        fail_path(path, &err);
    return got;
}

static bool body_room(dt_client_path_t *path, size_t size)
{
    if (size <= path->body_cap)
        return true;
    free(path->body);
    path->body = malloc(size);
    path->body_cap = path->body ? size : 0;
    if (!path->body)
        close_path(path, "no memory for a message");
    return path->body != NULL;
}

/* Read the head. False: not yet. */
static bool read_head(dt_client_path_t *path)
{
    dt_error_t err;
    if (path->head_len == sizeof path->head_bytes)
        return true;
    path->head_len +=
        receive(path, path->head_bytes + path->head_len, sizeof path->head_bytes - path->head_len);
    if (path->fd < 0 || path->head_len < sizeof path->head_bytes)
        return false;
    if (dt_bulk_get(path->head_bytes, &path->head, &err) != DT_OK) {
        close_path(path, err.text);
        return false;
    }
    path->is_torn = false;
    path->is_in_place = path->head.kind == DT_BULK_DATA;
    return true;
}

/* Read more of the body, straight into its future as long as that is possible: the program may let
 * go of it at any time. */
static size_t read_body(dt_client_path_t *path, size_t size)
{
    dt_session_t *session = path->session;
    const dt_bulk_head_t *head = &path->head;
    dt_error_t err = {.code = DT_OK};
    size_t got = 0;
    if (path->is_in_place) {
        pthread_mutex_lock(&session->lock);
        uint8_t *room =
            dt_client_bulk_room(session, head->transfer, head->total, head->offset, size);
        size_t left = size - path->body_len;
        if (room)
            got = receive_some(path, room + path->body_len, left < LOCKED_MAX ? left : LOCKED_MAX,
                               &err);
        pthread_mutex_unlock(&session->lock);
        if (err.code != DT_OK)
            fail_path(path, &err);
        if (room)
            return got;
        path->is_in_place = false;
        path->is_torn = path->body_len > 0;
    }
    return body_room(path, size) ? receive(path, path->body + path->body_len, size - path->body_len)
                                 : 0;
}

/* With TLS what lies decrypted is read to its end: no poll would tell of it. */
static bool goes_on(dt_client_path_t *path, size_t budget)
{
    if (path->fd >= 0 && budget == 0 && path->tls)
        dt_tls_hold(path->tls, true);
    return path->fd >= 0 && (budget > 0 || path->tls);
}

static void read_some(dt_client_path_t *path)
{
    size_t budget = TURN_BYTES;
    while (goes_on(path, budget) && read_head(path)) {
        size_t size = dt_bulk_body(&path->head);
        if (path->body_len < size) {
            size_t got = read_body(path, size);
            path->body_len += got;
            budget -= got < budget ? got : budget;
            if (path->fd < 0 || got == 0)
                return;
            if (path->body_len < size)
                continue;
        }
        path->head_len = path->body_len = 0;
        budget -= budget > sizeof path->head_bytes ? sizeof path->head_bytes : budget;
        on_message(path);
    }
}

static void on_ready(void *arg, int events)
{
    dt_client_path_t *path = arg;
    dt_session_t *session = path->session;
    if (events & DT_LOOP_WRITABLE)
        flush(path);
    if (path->fd >= 0 && (events & (DT_LOOP_READABLE | DT_LOOP_HANGUP)))
        read_some(path);
    if (path->fd >= 0 && path->tls) {
        dt_tls_hold(path->tls, false);
        flush(path); /* a handshake that is over lets go what waited for it */
    }
    dt_client_bulk_pump(session);
}

/* ---- connecting ---- */

/* Is it the node's daemon that listens? An abstract name is anybody's who takes it. */
static bool is_daemon(const dt_client_path_t *path)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    return getsockopt(path->fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0 &&
           cred.uid == path->uid;
}

static int connect_local(dt_client_path_t *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path->local);
    memcpy(address.sun_path + 1, path->local, len);
    path->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (path->fd < 0)
        return errno;
    if (connect(path->fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) != 0)
        return errno;
    if (!is_daemon(path))
        return EPERM;
    if (path->session->settings.uses_window) {
        dt_client_window_t *window = window_new(&path->window_fd);
        pthread_mutex_lock(&path->session->lock);
        path->window = window;
        pthread_mutex_unlock(&path->session->lock);
    }
    return 0;
}

static int connect_tcp(dt_client_path_t *path)
{
    dt_rpc_address_t parsed;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    int one = 1;
    if (dt_rpc_address_parse(path->address, &parsed, NULL) != DT_OK ||
        dt_rpc_address_resolve(&parsed, &address, &size, NULL) != DT_OK)
        return EINVAL;
    path->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (path->fd < 0)
        return errno;
    (void)setsockopt(path->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(path->fd, (const struct sockaddr *)&address, size) != 0 && errno != EINPROGRESS)
        return errno;
    return 0;
}

/* A node shows its own certificate, by whatever address it is reached. */
static bool secure(dt_client_path_t *path)
{
    const dt_tls_options_t options = {.ca = path->session->settings.ca, .peer = path->node};
    dt_error_t err;
    if (path->is_local || !path->has_tls || dt_tls_create(&options, &path->tls, &err) == DT_OK)
        return true;
    close_path(path, err.text);
    return false;
}

static void say_hello(dt_client_path_t *path)
{
    const dt_bulk_head_t head = {.kind = DT_BULK_HELLO,
                                 .place = path->window ? DT_BULK_WINDOW_BYTES : 0,
                                 .total = path->session->number,
                                 .size = sizeof path->token};
    (void)send_message(path, &head, path->token);
}

static void dial(dt_client_path_t *path)
{
    dt_session_t *session = path->session;
    bool can_local = path->local[0] && !path->is_local_bad && session->settings.host[0] &&
                     dt_str_is_equal(path->boot_id, session->settings.host) &&
                     session->settings.uses_window;
    path->is_local = can_local;
    path->has_token = false;
    path->since_ns = dt_loop_now_ns();
    if (!can_local && !path->address[0]) {
        path->state = DT_CLIENT_PATH_SPENT;
        note_detour(session, path->node, path->no_address);
        return;
    }
    path->state = DT_CLIENT_PATH_DIALING;
    int code = can_local ? connect_local(path) : connect_tcp(path);
    if (code == 0 && dt_watch_create(session->io.loop, path->fd, DT_LOOP_READABLE, on_ready, path,
                                     &path->watch, NULL) != DT_OK)
        code = ENOMEM;
    if (code == 0 && secure(path))
        say_hello(path);
    else if (path->fd >= 0)
        close_path(path, strerror(code));
    if (path->fd < 0 && path->is_local && path->address[0] && path->state == DT_CLIENT_PATH_SPENT)
        dial(path); /* the token was not seen: TCP */
}

bool dt_client_path_dial(dt_client_path_t *path)
{
    if (path->state == DT_CLIENT_PATH_IDLE && dt_loop_now_ns() < path->retry_ns)
        return true;
    if (path->state == DT_CLIENT_PATH_IDLE)
        dial(path);
    if (path->state == DT_CLIENT_PATH_DIALING && dt_loop_now_ns() - path->since_ns > DIAL_NS)
        close_path(path, "the node does not answer");
    return path->state == DT_CLIENT_PATH_DIALING || path->state == DT_CLIENT_PATH_READY;
}

/* ---- doors ---- */

dt_client_path_t *dt_client_path_of(dt_session_t *session, uint32_t vdev)
{
    for (dt_list_t *at = session->paths.next; at != &session->paths; at = at->next) {
        dt_client_path_t *path = DT_CONTAINER_OF(at, dt_client_path_t, link);
        for (uint32_t i = 0; i < path->vdev_count; i++)
            if (path->vdevs[i] == vdev)
                return path;
    }
    return NULL;
}

/* The path of a door; made if it is new. NULL: no memory. */
static dt_client_path_t *path_for(dt_session_t *session, const Dtorch__V1__DataDoor *door)
{
    dt_client_path_t *path;
    uint32_t count = 0;
    for (dt_list_t *at = session->paths.next; at != &session->paths; at = at->next, count++) {
        path = DT_CONTAINER_OF(at, dt_client_path_t, link);
        if (memcmp(path->instance, door->instance.data, sizeof path->instance) == 0)
            return path;
    }
    path = count < PATHS_MAX ? calloc(1, sizeof *path) : NULL;
    if (!path)
        return NULL;
    path->session = session;
    path->fd = path->window_fd = -1;
    memcpy(path->instance, door->instance.data, sizeof path->instance);
    pthread_mutex_lock(&session->lock);
    dt_list_push(&session->paths, &path->link);
    pthread_mutex_unlock(&session->lock);
    return path;
}

/* Give a path its virtual devices; others have them no longer, and go when they have none. */
static bool take_vdevs(dt_client_path_t *path, const Dtorch__V1__DataDoor *door)
{
    dt_session_t *session = path->session;
    uint32_t *vdevs = malloc((door->n_vdevs ? door->n_vdevs : 1) * sizeof *vdevs);
    if (!vdevs)
        return false;
    if (door->n_vdevs)
        memcpy(vdevs, door->vdevs, door->n_vdevs * sizeof *vdevs);
    for (size_t i = 0; i < door->n_vdevs; i++) {
        pthread_mutex_lock(&session->lock);
        dt_client_path_t *old = dt_client_path_of(session, vdevs[i]);
        if (old && old != path)
            for (uint32_t k = 0; k < old->vdev_count; k++)
                if (old->vdevs[k] == vdevs[i])
                    old->vdevs[k--] = old->vdevs[--old->vdev_count];
        pthread_mutex_unlock(&session->lock);
        if (old && old != path && old->vdev_count == 0)
            path_free(old);
    }
    pthread_mutex_lock(&session->lock);
    free(path->vdevs);
    path->vdevs = vdevs;
    path->vdev_count = (uint32_t)door->n_vdevs;
    pthread_mutex_unlock(&session->lock);
    return true;
}

/* Why nobody should connect to the address of a door; NULL: one should. */
static const char *why_not_there(const dt_session_t *session, const Dtorch__V1__DataDoor *door)
{
    const dt_client_settings_t *settings = &session->settings;
    bool is_loopback =
        strncmp(door->address, "127.", 4) == 0 || strncmp(door->address, "[::1]:", 6) == 0;
    if (!door->address[0])
        return "it is on another host, and has no data port";
    if (is_loopback && settings->host[0] && door->boot_id[0] &&
        !dt_str_is_equal(door->boot_id, settings->host))
        return "it is on another host, and its data port is on loopback";
    if (door->tls && !settings->ca)
        return "its data port has TLS, and CertificateAuthority= is not set";
    if (!door->tls && settings->has_tls)
        return "its data port has no TLS, and the controller's has";
    return NULL;
}

void dt_client_door(dt_session_t *session, const Dtorch__V1__DataDoor *door)
{
    dt_client_path_t *path;
    if (!session->settings.uses_direct || door->instance.len != sizeof path->instance ||
        door->token.len != sizeof path->token)
        return;
    path = path_for(session, door);
    if (!path || !take_vdevs(path, door))
        return;
    memcpy(path->token, door->token.data, sizeof path->token);
    (void)dt_str_copy(path->node, sizeof path->node, door->node);
    (void)dt_str_copy(path->boot_id, sizeof path->boot_id, door->boot_id);
    (void)dt_str_copy(path->local, sizeof path->local, door->local);
    path->no_address = why_not_there(session, door);
    (void)dt_str_copy(path->address, sizeof path->address, path->no_address ? "" : door->address);
    path->has_tls = door->tls;
    path->uid = door->uid;
    path->has_token = true;
    if (path->state == DT_CLIENT_PATH_SPENT)
        path->state = DT_CLIENT_PATH_IDLE;
    dt_client_bulk_pump(session);
}
