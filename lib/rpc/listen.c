/* Our own acceptor for unix sockets and plain TCP: it knows who connects before gRPC does, holds
 * the bound on connections, takes sockets from systemd, and survives a lack of descriptors (gRPC's
 * own listener would stop for ever). An accepted descriptor is gRPC's from then on. gRPC names the
 * peer of such a call "fd:N", and this table knows who N is. N is looked at (fstat) but never
 * used: gRPC may close it at any time. A record outlives its connection by CONNECTION_GONE_NS and
 * by its calls, and its number is not used for a new connection meanwhile. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "pki/pki.h"
#include "rpc/address.h"
#include "rpc/rpc_internal.h"

#define ACCEPT_BATCH       64                     /* connections accepted in one turn */
#define ACCEPT_SLICE_NS    (2 * DT_RPC_NS_PER_MS) /* and the time that it may take */
#define BREATH_NS          DT_RPC_NS_PER_MS       /* then at least as long for those we have */
#define BREATH_MAX_NS      (4 * DT_RPC_NS_PER_MS) /* a slice that took longer was not on the CPU */
#define CHURN_MAX          200 /* connections of a second that may go without a call */
#define BACKLOG            1024
#define SWEEP_NS           (1000 * DT_RPC_NS_PER_MS)
#define PAUSE_NS           (100 * DT_RPC_NS_PER_MS) /* out of descriptors */
#define SILENT_PART        5 /* then a fifth of the time for the first call is silence enough */
#define CONNECTION_GONE_NS (2000 * DT_RPC_NS_PER_MS)

/* ---- the table of connections ---- */

static bool is_same_socket(const dt_rpc_connection_t *connection)
{
    struct stat info;
    return fstat(connection->fd, &info) == 0 && S_ISSOCK(info.st_mode) &&
           info.st_ino == connection->inode;
}

static dt_rpc_connection_t *find_connection(dt_rpc_server_t *server, int fd)
{
    if (fd < 0 || (size_t)fd >= server->connection_capacity)
        return NULL;
    return server->connections[fd];
}

static void note_refused(dt_rpc_server_t *server, const dt_rpc_peer_t *peer, uint64_t count)
{
    server->refused_unsaid += count;
    memcpy(server->refused_address, peer->address, sizeof peer->address);
}

static void forget(dt_rpc_server_t *server, dt_rpc_connection_t *connection, int64_t now_ns)
{
    connection->is_gone = true;
    connection->gone_ns = now_ns;
    server->gone_count++;
}

/* Some that come and go are somebody's health check; a crowd of them is an offence. */
static void mark_gone(dt_rpc_server_t *server, int64_t now_ns)
{
    const dt_rpc_connection_t *last = NULL;
    for (size_t i = 0; i < server->connection_capacity; i++) {
        dt_rpc_connection_t *connection = server->connections[i];
        if (!connection)
            continue;
        if (!connection->is_gone && !is_same_socket(connection)) {
            forget(server, connection, now_ns);
            last = connection->has_called ? last : connection;
            server->churn += !connection->has_called;
        } else if (connection->is_gone && connection->calls == 0 &&
                   now_ns - connection->gone_ns > CONNECTION_GONE_NS) {
            server->connections[i] = NULL;
            server->connection_count--;
            server->gone_count--;
            free(connection);
        }
    }
    if (last && server->churn > CHURN_MAX) {
        note_refused(server, &last->peer, server->churn);
        server->churn = 0;
    }
}

static bool grow_table(dt_rpc_server_t *server, int fd)
{
    size_t capacity = server->connection_capacity ? server->connection_capacity : 64;
    while (capacity <= (size_t)fd)
        capacity *= 2;
    if (capacity == server->connection_capacity)
        return true;
    dt_rpc_connection_t **table = realloc(server->connections, capacity * sizeof *table);
    if (!table)
        return false;
    memset(table + server->connection_capacity, 0,
           (capacity - server->connection_capacity) * sizeof *table);
    server->connections = table;
    server->connection_capacity = capacity;
    return true;
}

/* Close a connection that gRPC holds. A duplicate pins the socket, so that none but the one that
 * was accepted is shut down, whatever gRPC does meanwhile. Without a descriptor for it the number
 * is used as it is: at worst a peer has to connect again. */
static void evict(dt_rpc_server_t *server, dt_rpc_connection_t *connection, int64_t now_ns)
{
    struct stat info;
    int copy = fcntl(connection->fd, F_DUPFD_CLOEXEC, 0);
    int fd = copy >= 0 ? copy : connection->fd;
    if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == connection->inode) {
        (void)shutdown(fd, SHUT_RDWR);
        server->stats.silent++;
        note_refused(server, &connection->peer, 1);
    }
    if (copy >= 0)
        (void)close(copy);
    forget(server, connection, now_ns);
}

static void evict_silent(dt_rpc_server_t *server, int64_t now_ns)
{
    int64_t limit_ns = now_ns - server->options.handshake_ms * DT_RPC_NS_PER_MS;
    for (size_t i = 0; i < server->connection_capacity; i++) {
        dt_rpc_connection_t *connection = server->connections[i];
        if (connection && !connection->is_gone && !connection->has_called &&
            connection->accepted_ns < limit_ns)
            evict(server, connection, now_ns);
    }
}

/* Make room for one connection. False: all of them have made calls, or were accepted after
 * `before_ns`, so that who is just about to call is not taken for one who never does. */
static bool evict_oldest(dt_rpc_server_t *server, int64_t now_ns, int64_t before_ns)
{
    dt_rpc_connection_t *oldest = NULL;
    for (size_t i = 0; i < server->connection_capacity; i++) {
        dt_rpc_connection_t *connection = server->connections[i];
        if (connection && !connection->is_gone && !connection->has_called &&
            connection->accepted_ns < before_ns &&
            (!oldest || connection->accepted_ns < oldest->accepted_ns))
            oldest = connection;
    }
    if (oldest)
        evict(server, oldest, now_ns);
    return oldest != NULL;
}

/* Move a new descriptor to a number that no record holds. Returns -1 (closed) if there is none. */
static int to_fresh_number(dt_rpc_server_t *server, int fd)
{
    while (fd >= 0 && find_connection(server, fd)) {
        int from = fd + 1;
        while (find_connection(server, from))
            from++;
        int moved = fcntl(fd, F_DUPFD_CLOEXEC, from);
        (void)close(fd);
        fd = moved;
    }
    return fd;
}

void dt_rpc_connections_free(dt_rpc_server_t *server)
{
    for (size_t i = 0; i < server->connection_capacity; i++)
        free(server->connections[i]);
    free(server->connections);
}

/* ---- who calls ---- */

static void copy_property(grpc_auth_context *context, const char *name, char *text, size_t size)
{
    grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, name);
    const grpc_auth_property *property = grpc_auth_property_iterator_next(&it);
    if (!property || property->value_length >= size ||
        memchr(property->value, '\0', property->value_length))
        return; /* a name that does not fit is no name of ours */
    memcpy(text, property->value, property->value_length);
    text[property->value_length] = '\0';
}

static void copy_end(grpc_auth_context *context, dt_rpc_peer_t *peer)
{
    dt_pki_info_t info;
    grpc_auth_property_iterator it =
        grpc_auth_context_find_properties_by_name(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    const grpc_auth_property *property = grpc_auth_property_iterator_next(&it);
    char *pem = property ? strndup(property->value, property->value_length) : NULL;
    if (pem && dt_pki_read(pem, &info, NULL) == DT_OK)
        peer->not_after_ms = info.not_after_ms;
    free(pem);
}

static void read_certificate(grpc_call *call, dt_rpc_peer_t *peer)
{
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (!context)
        return;
    /* Present only if a certificate was shown and was verified. */
    peer->has_certificate = grpc_auth_context_peer_is_authenticated(context) != 0;
    if (peer->has_certificate) {
        copy_property(context, GRPC_X509_CN_PROPERTY_NAME, peer->common_name,
                      sizeof peer->common_name);
        copy_property(context, GRPC_PEER_SPIFFE_ID_PROPERTY_NAME, peer->spiffe_id,
                      sizeof peer->spiffe_id);
        copy_end(context, peer);
    }
    grpc_auth_context_release(context);
}

dt_rpc_connection_t *dt_rpc_peer_of(dt_rpc_server_t *server, grpc_call *call,
                                    dt_rpc_peer_t *ret_peer, bool *ret_is_gone)
{
    dt_rpc_connection_t *connection = NULL;
    char *text = grpc_call_get_peer(call);
    *ret_is_gone = false;
    if (text && strncmp(text, "fd:", 3) == 0) {
        connection = find_connection(server, (int)strtol(text + 3, NULL, 10));
        *ret_is_gone = !connection || connection->is_gone;
    }
    if (connection) {
        *ret_peer = connection->peer;
        connection->calls++;
        connection->has_called = true;
    } else {
        *ret_peer = (dt_rpc_peer_t){.kind = DT_RPC_PEER_TLS,
                                    .listener = server->tls_listener,
                                    .uid = (uid_t)-1,
                                    .gid = (gid_t)-1};
        dt_rpc_address_of_peer(text ? text : "", ret_peer->address, sizeof ret_peer->address);
        read_certificate(call, ret_peer);
    }
    gpr_free(text);
    return connection;
}

void dt_rpc_peer_done(dt_rpc_connection_t *connection)
{
    if (connection)
        connection->calls--;
}

/* ---- accepting ---- */

static void describe_peer(const dt_rpc_listener_t *listener, int fd, dt_rpc_peer_t *ret_peer)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    struct ucred who = {0};
    socklen_t who_size = sizeof who;
    *ret_peer = (dt_rpc_peer_t){.kind = listener->is_unix ? DT_RPC_PEER_UNIX : DT_RPC_PEER_PLAIN,
                                .listener = listener->number,
                                .uid = (uid_t)-1,
                                .gid = (gid_t)-1};
    if (!listener->is_unix) {
        if (getpeername(fd, (struct sockaddr *)&address, &size) == 0)
            dt_rpc_address_text(&address, true, ret_peer->address, sizeof ret_peer->address);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_size) == 0) {
        ret_peer->uid = who.uid;
        ret_peer->gid = who.gid;
        ret_peer->pid = who.pid;
        (void)snprintf(ret_peer->address, sizeof ret_peer->address, "unix:pid=%d,uid=%u",
                       (int)who.pid, (unsigned)who.uid);
    }
}

static void refuse(dt_rpc_listener_t *listener, int fd)
{
    dt_rpc_server_t *server = listener->server;
    dt_rpc_peer_t peer;
    describe_peer(listener, fd, &peer);
    (void)close(fd);
    server->stats.refused++;
    note_refused(server, &peer, 1);
}

static void serve(dt_rpc_listener_t *listener, int fd)
{
    dt_rpc_server_t *server = listener->server;
    struct stat info;
    int one = 1;
    fd = to_fresh_number(server, fd);
    if (fd < 0)
        return;
    dt_rpc_connection_t *connection = calloc(1, sizeof *connection);
    if (!connection || !grow_table(server, fd) || fstat(fd, &info) != 0) {
        free(connection);
        (void)close(fd);
        return;
    }
    describe_peer(listener, fd, &connection->peer);
    connection->fd = fd;
    connection->inode = info.st_ino;
    connection->accepted_ns = dt_loop_now_ns();
    connection->peer.connection = ++server->stats.accepted;
    server->connections[fd] = connection;
    server->connection_count++;
    if (!listener->is_unix)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    grpc_server_add_channel_from_fd(server->grpc, fd, server->insecure);
}

static bool is_full(const dt_rpc_server_t *server)
{
    return server->connection_count - server->gone_count >= server->options.connection_max;
}

/* A listener that always has somebody waiting keeps the loop busy, and gRPC is polled only when the
 * loop is not: so peers that connect without end would silence all others. After a slice of work
 * the listener rests for as long. */
static void rest(dt_rpc_listener_t *listener, int64_t began_ns)
{
    int64_t now_ns = dt_loop_now_ns();
    int64_t took_ns = now_ns - began_ns;
    listener->is_resting = true;
    dt_watch_set(listener->watch, 0);
    int64_t rest_ns = took_ns < BREATH_NS ? BREATH_NS : took_ns;
    if (rest_ns > BREATH_MAX_NS)
        rest_ns = BREATH_MAX_NS;
    dt_timer_arm(listener->server->breath, now_ns + rest_ns);
}

static void on_breath(void *arg, int64_t deadline_ns)
{
    dt_rpc_server_t *server = arg;
    (void)deadline_ns;
    for (size_t i = 0; i < server->listener_count; i++) {
        dt_rpc_listener_t *listener = &server->listeners[i];
        if (listener->is_resting && !listener->is_paused)
            dt_watch_set(listener->watch, DT_LOOP_READABLE);
        listener->is_resting = false;
    }
}

static void on_acceptable(void *arg, int events)
{
    dt_rpc_listener_t *listener = arg;
    dt_rpc_server_t *server = listener->server;
    (void)events;
    int64_t now_ns = dt_loop_now_ns();
    if (is_full(server))
        mark_gone(server, now_ns); /* once a batch: it looks at every connection */
    for (int i = 0;; i++) {
        if (i == ACCEPT_BATCH || dt_loop_now_ns() - now_ns > ACCEPT_SLICE_NS) {
            rest(listener, now_ns);
            break;
        }
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
            continue;
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (fd < 0) { /* no descriptor, no memory: it stays in the backlog for now */
            int64_t silent_ns = server->options.handshake_ms * DT_RPC_NS_PER_MS / SILENT_PART;
            (void)evict_oldest(server, now_ns, now_ns - silent_ns);
            listener->is_paused = true;
            dt_watch_set(listener->watch, 0);
            dt_timer_arm(server->sweep, dt_loop_now_ns() + PAUSE_NS);
            break;
        }
        if (is_full(server) && !evict_oldest(server, now_ns, INT64_MAX))
            refuse(listener, fd);
        else
            serve(listener, fd);
    }
}

/* gRPC keeps the descriptor of a listener that it has given up, so only its log tells. */
static void look_at_tls(dt_rpc_server_t *server)
{
    if (server->tls_count == 0 || server->is_tls_lost || server->is_stopping ||
        dt_rpc_accept_failures() == server->accept_failures)
        return;
    server->is_tls_lost = true;
    if (server->options.listener_lost)
        server->options.listener_lost(server->options.arg, server->tls[0]->port);
}

static void on_sweep(void *arg, int64_t deadline_ns)
{
    dt_rpc_server_t *server = arg;
    (void)deadline_ns;
    int64_t now_ns = dt_loop_now_ns();
    mark_gone(server, now_ns);
    server->churn = 0;
    evict_silent(server, now_ns);
    look_at_tls(server);
    for (size_t i = 0; i < server->listener_count; i++)
        if (server->listeners[i].is_paused) {
            server->listeners[i].is_paused = false;
            dt_watch_set(server->listeners[i].watch, DT_LOOP_READABLE);
        }
    if (server->refused_unsaid > 0 && server->options.refused)
        server->options.refused(server->options.arg, server->refused_address,
                                server->refused_unsaid);
    server->refused_unsaid = 0;
    dt_timer_arm(server->sweep, now_ns + SWEEP_NS);
}

/* ---- listening ---- */

static dt_status_t fail_errno(dt_error_t *err, const char *what, const char *where)
{
    int number = errno;
    dt_status_t status = DT_ERR_INVALID;
    if (number == EADDRINUSE)
        status = DT_ERR_EXISTS;
    else if (number == EACCES || number == EPERM || number == EROFS)
        status = DT_ERR_DENIED;
    else if (number == ENOENT || number == ENOTDIR || number == EADDRNOTAVAIL)
        status = DT_ERR_NOT_FOUND;
    else if (number == EMFILE || number == ENFILE || number == ENOBUFS || number == ENOMEM)
        status = DT_ERR_AGAIN;
    return dt_fail(err, status, "errno", number, "cannot %s %s: %s", what, where, strerror(number));
}

static dt_status_t add_listener(dt_rpc_server_t *server, int fd, int number, bool is_unix,
                                dt_rpc_listener_t **ret_listener, dt_error_t *err)
{
    if (server->listener_count == DT_RPC_LISTENER_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "more than %d listeners", DT_RPC_LISTENER_MAX);
    dt_rpc_listener_t *listener = &server->listeners[server->listener_count];
    *listener =
        (dt_rpc_listener_t){.server = server, .fd = fd, .number = number, .is_unix = is_unix};
    int events = server->is_started ? DT_LOOP_READABLE : 0;
    DT_TRY(dt_watch_create(server->rpc->loop, fd, events, on_acceptable, listener, &listener->watch,
                           err));
    server->listener_count++;
    *ret_listener = listener;
    return DT_OK;
}

dt_status_t dt_rpc_server_listen_fd(dt_rpc_server_t *server, int fd, int listener, dt_error_t *err)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    int is_listening = 0;
    socklen_t flag_size = sizeof is_listening;
    dt_rpc_listener_t *added;
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &flag_size) != 0 || !is_listening)
        return dt_fail(err, DT_ERR_INVALID, "dt", fd, "descriptor %d is not a socket that listens",
                       fd);
    if (address.ss_family != AF_UNIX && address.ss_family != AF_INET &&
        address.ss_family != AF_INET6)
        return dt_fail(err, DT_ERR_INVALID, "dt", fd, "descriptor %d is of a strange family", fd);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return add_listener(server, fd, listener, address.ss_family == AF_UNIX, &added, err);
}

/* Remove a socket file that nobody answers on. */
static dt_status_t clear_path(const struct sockaddr_un *address, dt_error_t *err)
{
    struct stat info;
    if (lstat(address->sun_path, &info) != 0)
        return errno == ENOENT ? DT_OK : fail_errno(err, "listen on", address->sun_path);
    if (!S_ISSOCK(info.st_mode))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "cannot listen on %s: it exists and is not a socket", address->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_errno(err, "make a socket for", address->sun_path);
    int rc = connect(fd, (const struct sockaddr *)address, sizeof *address);
    int number = errno;
    (void)close(fd);
    if (rc == 0 || number == EAGAIN)
        return dt_fail(err, DT_ERR_EXISTS, "dt", 0,
                       "cannot listen on %s: another process answers there", address->sun_path);
    if (number != ECONNREFUSED && number != ENOENT) {
        errno = number;
        return fail_errno(err, "look at", address->sun_path);
    }
    if (unlink(address->sun_path) != 0 && errno != ENOENT)
        return fail_errno(err, "remove the stale", address->sun_path);
    return DT_OK;
}

static dt_status_t bind_unix(const struct sockaddr_un *address, mode_t mode, int *ret_fd,
                             dt_error_t *err)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_errno(err, "make a socket for", address->sun_path);
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        dt_status_t status = fail_errno(err, "listen on", address->sun_path);
        (void)close(fd);
        return status;
    }
    /* The mode is set before anyone can connect: until listen() they are refused. */
    if (chmod(address->sun_path, mode) != 0 || listen(fd, BACKLOG) != 0) {
        dt_status_t status = fail_errno(err, "listen on", address->sun_path);
        (void)close(fd);
        (void)unlink(address->sun_path);
        return status;
    }
    *ret_fd = fd;
    return DT_OK;
}

dt_status_t dt_rpc_server_listen_unix(dt_rpc_server_t *server, const char *path, mode_t mode,
                                      int listener, dt_error_t *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    dt_rpc_listener_t *added;
    int fd = -1;
    if (strncmp(path, "unix:", 5) == 0)
        path += 5;
    if (path[0] == '\0' || strlen(path) >= sizeof address.sun_path)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "socket path %s has %zu bytes: 1 to %zu are possible", path, strlen(path),
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    DT_TRY(clear_path(&address, err));
    DT_TRY(bind_unix(&address, mode, &fd, err));
    dt_status_t status = add_listener(server, fd, listener, true, &added, err);
    if (status != DT_OK) {
        (void)close(fd);
        (void)unlink(path);
        return status;
    }
    memcpy(added->path, path, strlen(path) + 1);
    if (stat(path, &info) == 0) {
        added->device = info.st_dev;
        added->inode = info.st_ino;
    }
    return DT_OK;
}

dt_status_t dt_rpc_listen_plain(dt_rpc_server_t *server, const struct sockaddr_storage *address,
                                socklen_t size, int listener, int *ret_port, dt_error_t *err)
{
    struct sockaddr_storage bound = {0};
    socklen_t bound_size = sizeof bound;
    dt_rpc_listener_t *added;
    char where[112];
    int one = 1;
    dt_rpc_address_text(address, true, where, sizeof where);
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_errno(err, "make a socket for", where);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    dt_status_t status;
    if (bind(fd, (const struct sockaddr *)address, size) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_size) != 0)
        status = fail_errno(err, "listen on", where);
    else
        status = add_listener(server, fd, listener, false, &added, err);
    if (status != DT_OK) {
        (void)close(fd);
        return status;
    }
    *ret_port = dt_rpc_address_port(&bound);
    return DT_OK;
}

/* ---- life ---- */

dt_status_t dt_rpc_listeners_init(dt_rpc_server_t *server, dt_error_t *err)
{
    DT_TRY(dt_timer_create(server->rpc->loop, on_breath, server, &server->breath, err));
    return dt_timer_create(server->rpc->loop, on_sweep, server, &server->sweep, err);
}

void dt_rpc_listeners_begin(dt_rpc_server_t *server)
{
    for (size_t i = 0; i < server->listener_count; i++)
        dt_watch_set(server->listeners[i].watch, DT_LOOP_READABLE);
    dt_timer_arm(server->sweep, dt_loop_now_ns() + SWEEP_NS);
}

void dt_rpc_listeners_close(dt_rpc_server_t *server)
{
    struct stat info;
    for (size_t i = 0; i < server->listener_count; i++) {
        dt_rpc_listener_t *listener = &server->listeners[i];
        dt_watch_free(listener->watch);
        (void)close(listener->fd);
        /* Only our own file: a successor may have put its own there. */
        if (listener->path[0] && lstat(listener->path, &info) == 0 &&
            info.st_dev == listener->device && info.st_ino == listener->inode)
            (void)unlink(listener->path);
    }
    server->listener_count = 0;
}

/* ---- crowds ---- */

static int by_host(const void *a, const void *b)
{
    return strcmp(((const dt_rpc_crowd_t *)a)->host, ((const dt_rpc_crowd_t *)b)->host);
}

static int by_count(const void *a, const void *b)
{
    size_t count_a = ((const dt_rpc_crowd_t *)a)->connections;
    size_t count_b = ((const dt_rpc_crowd_t *)b)->connections;
    return count_a < count_b ? 1 : count_a > count_b ? -1 : by_host(a, b);
}

static bool is_port_of_tls(const dt_rpc_server_t *server, int port)
{
    for (size_t i = 0; i < server->tls_count; i++)
        if (server->tls[i]->port == port)
            return true;
    return false;
}

/* Fill `host` if `fd` is a connection that this server accepted. */
static bool host_of(dt_rpc_server_t *server, int fd, char *host, size_t size)
{
    struct sockaddr_storage local = {0}, remote = {0};
    socklen_t local_size = sizeof local, remote_size = sizeof remote;
    dt_rpc_connection_t *connection = find_connection(server, fd);
    if (connection && !connection->is_gone && connection->peer.kind == DT_RPC_PEER_UNIX) {
        (void)snprintf(host, size, "unix:uid=%u", (unsigned)connection->peer.uid);
        return true;
    }
    if (getsockname(fd, (struct sockaddr *)&local, &local_size) != 0 ||
        getpeername(fd, (struct sockaddr *)&remote, &remote_size) != 0 ||
        (remote.ss_family != AF_INET && remote.ss_family != AF_INET6))
        return false;
    if (!connection && !is_port_of_tls(server, dt_rpc_address_port(&local)))
        return false;
    dt_rpc_address_text(&remote, false, host, size);
    return true;
}

size_t dt_rpc_server_crowds(const dt_rpc_server_t *server, dt_rpc_crowd_t *ret_crowds, size_t max)
{
    dt_rpc_server_t *own = (dt_rpc_server_t *)(uintptr_t)server; /* only looked at */
    size_t capacity = 64, count = 0, kinds = 0;
    dt_rpc_crowd_t *all = malloc(capacity * sizeof *all);
    int fd_max = (int)sysconf(_SC_OPEN_MAX);
    for (int fd = 0, unused = 0; all && fd < fd_max && unused < 1024; fd++) {
        if (count == capacity) {
            dt_rpc_crowd_t *larger = realloc(all, 2 * capacity * sizeof *all);
            if (!larger)
                break;
            all = larger;
            capacity *= 2;
        }
        unused = fcntl(fd, F_GETFD) < 0 ? unused + 1 : 0; /* descriptors are dense from 0 */
        if (host_of(own, fd, all[count].host, sizeof all[count].host))
            all[count++].connections = 1;
    }
    if (count > 0)
        qsort(all, count, sizeof *all, by_host);
    for (size_t i = 0; i < count; i++) {
        if (kinds > 0 && strcmp(all[kinds - 1].host, all[i].host) == 0)
            all[kinds - 1].connections++;
        else
            all[kinds++] = all[i];
    }
    if (kinds > 0)
        qsort(all, kinds, sizeof *all, by_count);
    if (kinds > max)
        kinds = max;
    for (size_t i = 0; i < kinds; i++)
        ret_crowds[i] = all[i];
    free(all);
    return kinds;
}
