/* Links: a connection between each two engines of a session that are on different nodes. The agents
 * make it and hand it to the engines, which speak transport/link.h over it.
 *
 *   a session with engines on several nodes --> a PeerDoor: our address and a token, through the
 * controller, to the other nodes --> of two nodes the one with the lower number connects, once for
 * each pair of engines --> a hello of DT_LINK_HELLO_BYTES with the token, answered by 8 bytes -->
 * both sides pass the socket on, and with TLS a key that the two agents have derived
 *
 * Hello, little-endian: u32 "DTXH", u32 version, u64 session, 16 bytes token, u32 the member that
 * connects, u32 the member it wants, zeros. Answer: u32 "DTXA", u32 0 (yes) or 1 (not here, or not
 * yet: who connects tries again).
 *
 * TLS: where the nodes have certificates, each shows its own, and is compared with the name that
 * the door or the board says. That connection ends with the answer; on the same socket the engines
 * begin another one by the key that is exported from it (RFC 8446, 7.5), so that no engine ever has
 * a certificate's key. Without certificates, where the node's own stream to the controller is plain
 * too, the text is plain.
 * Who cannot be reached for DT_LINKS_PATIENCE_NS is lost to the session's exchanges. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strings.h"
#include "engine.h"
#include "pki/pki.h"
#include "pki/tls.h"
#include "rpc/address.h"
#include "sessions_internal.h"

#define DT_LINK_HELLO_BYTES  64u
#define DT_LINK_ANSWER_BYTES 8u
#define DT_LINK_HELLO_MAGIC  UINT32_C(0x48585444) /* "DTXH" */
#define DT_LINK_ANSWER_MAGIC UINT32_C(0x41585444) /* "DTXA" */
#define DT_LINK_VERSION      1u
#define DT_LINKS_MAX         4096u
#define DT_LINKS_PATIENCE_NS INT64_C(60000000000)
#define DT_LINKS_HELLO_NS    INT64_C(10000000000)
#define DT_LINKS_RETRY_NS    INT64_C(100000000)
#define DT_LINKS_LOOK_NS     INT64_C(100000000)
#define DT_LINKS_BACKLOG     128

typedef enum link_state {
    LINK_WAITING,  /* to connect again at retry_ns */
    LINK_DIALLING, /* connect() is under way */
    LINK_GREETING, /* connected: the hello is on its way */
    LINK_ASKING,   /* the hello is sent, the answer is awaited */
    LINK_ASKED,    /* accepted: the hello is awaited */
    LINK_READY,    /* for the engine, which is not open yet */
    LINK_DEAD,
} link_state_t;

typedef struct node_link {
    dt_list_t list; /* in links.all */
    struct dt_node_links *owner;
    dt_node_instance_t *instance; /* NULL: accepted, and not known yet */
    link_state_t state;
    int fd; /* -1: none */
    dt_watch_t *watch;
    dt_tls_t *tls;                 /* until it is ready; NULL: the socket is plain */
    uint8_t key[DT_TLS_KEY_BYTES]; /* READY: for the engines */
    dt_engine_secret_t secret;     /* READY: how the key is used */
    char why[160];                 /* it did not work the last time */
    uint32_t ours, theirs;         /* members of the board */
    int64_t retry_ns;
    int64_t until_ns; /* then it is given up */
    struct sockaddr_storage address;
    socklen_t address_size;
    uint8_t token[DT_BULK_TOKEN_BYTES];
    uint8_t bytes[DT_LINK_HELLO_BYTES];
    size_t len;
} node_link_t;

typedef struct dt_node_links {
    dt_node_sessions_t *sessions;
    int fd; /* -1: it does not listen */
    dt_watch_t *watch;
    char address[64];
    dt_list_t all;
    uint32_t count;
    dt_timer_t *timer;
} dt_node_links_t;

/* ---- ends ---- */

static void disconnect(node_link_t *link)
{
    dt_watch_free(DT_TAKE(link->watch));
    dt_tls_free(DT_TAKE(link->tls));
    explicit_bzero(link->key, sizeof link->key);
    if (link->fd >= 0)
        (void)close(link->fd);
    link->fd = -1;
    link->len = 0;
}

/* Freed by the timer: it may be in its own callback. */
static void kill_link(node_link_t *link)
{
    disconnect(link);
    link->instance = NULL;
    link->state = LINK_DEAD;
}

static node_link_t *link_new(dt_node_links_t *links, link_state_t state)
{
    node_link_t *link = links->count < DT_LINKS_MAX ? calloc(1, sizeof *link) : NULL;
    if (!link)
        return NULL;
    link->owner = links;
    link->state = state;
    link->fd = -1;
    dt_list_push(&links->all, &link->list);
    if (links->count++ == 0)
        dt_timer_arm(links->timer, dt_loop_now_ns() + DT_LINKS_LOOK_NS);
    return link;
}

/* ---- handing over ---- */

static dt_node_member_t *member_of_board(dt_node_instance_t *instance, uint32_t board)
{
    for (uint32_t i = 0; i < instance->member_count; i++)
        if (instance->members[i].board == board)
            return &instance->members[i];
    return NULL;
}

/* Give the socket to the engine, now or when it is open. */
static void hand_over(node_link_t *link)
{
    dt_node_instance_t *instance = link->instance;
    dt_node_member_t *member = member_of_board(instance, link->ours);
    dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_LINK,
                                   .value = (int32_t)instance->number,
                                   .member = link->theirs,
                                   .secret = link->secret};
    dt_watch_free(DT_TAKE(link->watch));
    link->state = LINK_READY;
    if (!member || !member->host) {
        kill_link(link); /* the other side sees it end */
        return;
    }
    if (!member->is_opened)
        return;
    dt_log_debug("an engine is given a link", DT_LOG_U("session", instance->session),
                 DT_LOG_S("node", instance->board->members[link->theirs].node),
                 DT_LOG_S("link", message.secret == DT_ENGINE_SECRET_NONE ? "plain" : "TLS"));
    memcpy(message.key, link->key, sizeof message.key);
    if (dt_engines_send(instance->owner->options.engines, member->host->engine, &message, &link->fd,
                        1) != DT_OK)
        dt_engines_kill(instance->owner->options.engines, member->host->engine);
    explicit_bzero(message.key, sizeof message.key);
    kill_link(link);
}

/* The agents are done with the connection: what is left of TLS is a key for the engines. */
static void settle(node_link_t *link, bool is_server)
{
    dt_error_t err;
    link->secret = DT_ENGINE_SECRET_NONE;
    if (link->tls) {
        if (dt_tls_wants_out(link->tls) || dt_tls_export(link->tls, link->key, &err) != DT_OK) {
            kill_link(link); /* 8 bytes into an empty socket: it is no socket any more */
            return;
        }
        link->secret = is_server ? DT_ENGINE_SECRET_SERVER : DT_ENGINE_SECRET_CLIENT;
        dt_tls_free(DT_TAKE(link->tls));
    }
    hand_over(link);
}

void dt_node_links_show(dt_node_instance_t *instance, dt_node_member_t *member)
{
    dt_node_links_t *links = instance->owner->links;
    for (dt_list_t *at = links->all.next; at != &links->all; at = at->next) {
        node_link_t *link = DT_CONTAINER_OF(at, node_link_t, list);
        if (link->instance == instance && link->state == LINK_READY && link->ours == member->board)
            hand_over(link);
    }
}

/* ---- messages ---- */

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Send a few bytes, all or none. Returns how many; -1: the connection is over. */
static ssize_t send_few(node_link_t *link, const uint8_t *bytes, size_t size, dt_error_t *err)
{
    if (link->tls)
        return dt_tls_send(link->tls, link->fd, bytes, size, err);
    if (send(link->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size)
        return (ssize_t)size; /* the socket is empty */
    (void)dt_fail(err, DT_ERR_PEER, "errno", errno, "%s", strerror(errno));
    return -1;
}

static void hello_put(const node_link_t *link, uint8_t hello[DT_LINK_HELLO_BYTES])
{
    uint64_t session = link->instance->session;
    memset(hello, 0, DT_LINK_HELLO_BYTES);
    put_u32(hello, DT_LINK_HELLO_MAGIC);
    put_u32(hello + 4, DT_LINK_VERSION);
    put_u32(hello + 8, (uint32_t)session);
    put_u32(hello + 12, (uint32_t)(session >> 32));
    memcpy(hello + 16, link->token, sizeof link->token);
    put_u32(hello + 32, link->ours);
    put_u32(hello + 36, link->theirs);
}

/* Who is asked for: by the session and the token of our door. */
static dt_node_instance_t *instance_asked(dt_node_sessions_t *sessions, const uint8_t *hello)
{
    uint64_t session = get_u32(hello + 8) | (uint64_t)get_u32(hello + 12) << 32;
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        uint8_t differs = 0;
        for (size_t i = 0; i < sizeof instance->peer_token; i++)
            differs |= instance->peer_token[i] ^ hello[16 + i];
        if (instance->session == session && instance->has_remotes && !differs)
            return instance;
    }
    return NULL;
}

/* Whether who connects is the node whose member it says it is; plain text has to do without. */
static bool is_that_node(const node_link_t *link, const dt_board_member_t *member)
{
    return !link->tls || dt_str_is_equal(dt_tls_peer(link->tls), member->node);
}

static void hello_take(node_link_t *link)
{
    uint8_t answer[DT_LINK_ANSWER_BYTES];
    dt_node_instance_t *instance = NULL;
    dt_error_t err;
    if (get_u32(link->bytes) == DT_LINK_HELLO_MAGIC && get_u32(link->bytes + 4) == DT_LINK_VERSION)
        instance = instance_asked(link->owner->sessions, link->bytes);
    link->theirs = get_u32(link->bytes + 32);
    link->ours = get_u32(link->bytes + 36);
    bool is_ours = instance && instance->board && member_of_board(instance, link->ours) &&
                   link->theirs < instance->board->member_count &&
                   instance->board->members[link->theirs].host != instance->host &&
                   is_that_node(link, &instance->board->members[link->theirs]);
    put_u32(answer, DT_LINK_ANSWER_MAGIC);
    put_u32(answer + 4, is_ours ? 0 : 1);
    if (send_few(link, answer, sizeof answer, &err) != (ssize_t)sizeof answer || !is_ours) {
        kill_link(link);
        return;
    }
    link->instance = instance;
    settle(link, true);
}

static void try_later(node_link_t *link, const char *why)
{
    (void)dt_str_copy(link->why, sizeof link->why, why);
    disconnect(link);
    link->state = LINK_WAITING;
    link->retry_ns = dt_loop_now_ns() + DT_LINKS_RETRY_NS;
}

/* Give up on a member; who waits for it learns that. */
static void give_up(node_link_t *link)
{
    dt_node_instance_t *instance = link->instance;
    char why[192];
    (void)snprintf(why, sizeof why, "it does not answer%s%s", link->why[0] ? ": " : "", link->why);
    if (instance && instance->board)
        dt_node_peers_lose_node(instance, instance->board->members[link->theirs].node, why);
    kill_link(link);
}

/* The connection is over. Certificates will not be others in a moment; all else may be. */
static void fail_link(node_link_t *link, const dt_error_t *err)
{
    if (link->state == LINK_ASKED) {
        if (!dt_str_is_equal(err->source, "errno"))
            dt_log_info("another node is refused", DT_LOG_S("reason", err->text));
        kill_link(link);
    } else if (err->code == DT_ERR_DENIED) {
        (void)dt_str_copy(link->why, sizeof link->why, err->text);
        give_up(link);
    } else {
        try_later(link, err->text);
    }
}

static void watch_what(node_link_t *link)
{
    bool wants_out = link->tls && dt_tls_wants_out(link->tls);
    dt_watch_set(link->watch, DT_LOOP_READABLE | (wants_out ? DT_LOOP_WRITABLE : 0));
}

/* Read up to `want` bytes. False: not all are here yet; a connection that ended is dealt with. */
static bool read_up_to(node_link_t *link, size_t want)
{
    uint8_t *at = link->bytes + link->len;
    dt_error_t err;
    ssize_t got;
    if (link->tls) {
        got = dt_tls_recv(link->tls, link->fd, at, want - link->len, &err);
    } else {
        got = recv(link->fd, at, want - link->len, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (got <= 0)
            (void)dt_fail(&err, DT_ERR_PEER, "errno", got ? errno : 0, "%s",
                          got ? strerror(errno) : "it closed the connection");
        got = got > 0 ? got : -1;
    }
    if (got < 0) {
        fail_link(link, &err);
        return false;
    }
    link->len += (size_t)got;
    if (link->len < want)
        watch_what(link);
    return link->len == want;
}

/* Say hello, as soon as TLS lets us. */
static void greet(node_link_t *link)
{
    uint8_t hello[DT_LINK_HELLO_BYTES];
    dt_error_t err;
    hello_put(link, hello);
    ssize_t sent = send_few(link, hello, sizeof hello, &err);
    if (sent < 0) {
        fail_link(link, &err);
        return;
    }
    if (sent > 0)
        link->state = LINK_ASKING;
    watch_what(link);
}

static void on_dialled(node_link_t *link)
{
    int code = 0;
    socklen_t size = sizeof code;
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &code, &size) || code) {
        try_later(link, strerror(code));
        return;
    }
    link->state = LINK_GREETING;
    greet(link);
}

/* Send what TLS has kept: hellos and answers are few bytes, this is for a socket that is slow to
 * take even those. */
static bool flush(node_link_t *link)
{
    dt_error_t err;
    if (!link->tls || dt_tls_send(link->tls, link->fd, NULL, 0, &err) >= 0)
        return true;
    fail_link(link, &err);
    return false;
}

static void on_ready(void *arg, int events)
{
    node_link_t *link = arg;
    (void)events;
    switch (link->state) {
    case LINK_DIALLING:
        on_dialled(link);
        return;
    case LINK_GREETING:
        greet(link);
        return;
    case LINK_ASKING:
        if (!flush(link) || !read_up_to(link, DT_LINK_ANSWER_BYTES))
            return;
        if (get_u32(link->bytes) == DT_LINK_ANSWER_MAGIC && get_u32(link->bytes + 4) == 0)
            settle(link, false);
        else
            try_later(link, "it does not know the session yet");
        return;
    case LINK_ASKED:
        if (flush(link) && read_up_to(link, DT_LINK_HELLO_BYTES))
            hello_take(link);
        return;
    default:
        return;
    }
}

/* ---- connecting ---- */

/* TLS for a connection, if this node has a certificate. `node`: who must be there; NULL: who
 * connects shows it. */
static bool secure(node_link_t *link, const char *node)
{
    dt_node_sessions_t *sessions = link->owner->sessions;
    const dt_rpc_tls_t *own = sessions->options.tls(sessions->options.arg);
    dt_error_t err;
    if (!own)
        return true;
    const dt_tls_options_t options = {.ca = own->ca,
                                      .certificate = own->certificate,
                                      .key = own->key,
                                      .peer = node,
                                      .is_server = node == NULL,
                                      .is_exact = true};
    if (dt_tls_create(&options, &link->tls, &err) == DT_OK)
        return true;
    dt_log_warn("no TLS for a connection to another node", DT_LOG_E(&err));
    return false;
}

static void no_delay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void dial(node_link_t *link)
{
    const struct sockaddr *address = (const struct sockaddr *)&link->address;
    const char *node = link->instance->board->members[link->theirs].node;
    link->fd = socket(link->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0) {
        try_later(link, strerror(errno));
        return;
    }
    no_delay(link->fd);
    link->state = LINK_DIALLING;
    if (connect(link->fd, address, link->address_size) && errno != EINPROGRESS)
        try_later(link, strerror(errno));
    else if (!secure(link, node) ||
             dt_watch_create(link->owner->sessions->options.loop, link->fd, DT_LOOP_WRITABLE,
                             on_ready, link, &link->watch, NULL) != DT_OK)
        try_later(link, "there is no memory for a connection");
}

static bool is_known(const dt_node_links_t *links, const dt_node_instance_t *instance,
                     uint32_t ours, uint32_t theirs)
{
    for (const dt_list_t *at = links->all.next; at != &links->all; at = at->next) {
        const node_link_t *link = (const node_link_t *)(const void *)at; /* its first member */
        if (link->instance == instance && link->ours == ours && link->theirs == theirs)
            return true;
    }
    return false;
}

/* Connect each engine of ours with each of that node. */
static void dial_node(dt_node_instance_t *instance, const Dtorch__V1__PeerDoor *door,
                      const struct sockaddr_storage *address, socklen_t size)
{
    dt_node_links_t *links = instance->owner->links;
    for (uint32_t m = 0; m < instance->board->member_count; m++) {
        const dt_board_member_t *theirs = &instance->board->members[m];
        if (!dt_str_is_equal(theirs->node, door->node) || theirs->host <= instance->host)
            continue; /* the one with the lower number connects */
        for (uint32_t i = 0; i < instance->member_count; i++) {
            node_link_t *link = is_known(links, instance, instance->members[i].board, m)
                                    ? NULL
                                    : link_new(links, LINK_WAITING);
            if (!link)
                continue;
            link->instance = instance;
            link->ours = instance->members[i].board;
            link->theirs = m;
            link->until_ns = dt_loop_now_ns() + DT_LINKS_PATIENCE_NS;
            link->address = *address;
            link->address_size = size;
            memcpy(link->token, door->token.data, sizeof link->token);
            dial(link);
        }
    }
}

/* Why that node cannot be connected to as it says; NULL: it can. */
static const char *why_not(const dt_node_instance_t *instance, const Dtorch__V1__PeerDoor *door)
{
    const dt_node_sessions_t *sessions = instance->owner;
    bool has_tls = sessions->options.tls(sessions->options.arg) != NULL;
    if (door->address[0] == '\0' || door->token.len != DT_BULK_TOKEN_BYTES)
        return door->reason;
    if (door->tls && !has_tls)
        return "it speaks TLS, and the other node has no certificate";
    if (!door->tls && has_tls)
        return "it has no certificate, and the other node speaks TLS";
    return NULL;
}

void dt_node_links_door(dt_node_instance_t *instance, const Dtorch__V1__PeerDoor *door)
{
    struct sockaddr_storage address;
    socklen_t size;
    if (!instance->board)
        return;
    const char *why = why_not(instance, door);
    if (why || !dt_node_address_read(door->address, &address, &size)) {
        dt_node_peers_lose_node(instance, door->node, why ? why : "its address is none");
        return;
    }
    dial_node(instance, door, &address, size);
}

/* ---- listening ---- */

/* Takes `fd`. Returns NULL: it is closed. */
static node_link_t *link_over(dt_node_links_t *links, link_state_t state, int fd)
{
    node_link_t *link = link_new(links, state);
    if (!link) {
        (void)close(fd);
        return NULL;
    }
    link->fd = fd;
    link->until_ns = dt_loop_now_ns() + DT_LINKS_HELLO_NS;
    if (secure(link, NULL) && dt_watch_create(links->sessions->options.loop, fd, DT_LOOP_READABLE,
                                              on_ready, link, &link->watch, NULL) == DT_OK)
        return link;
    kill_link(link);
    return NULL;
}

static void on_accept(void *arg, int events)
{
    dt_node_links_t *links = arg;
    (void)events;
    int fd = accept4(links->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    no_delay(fd);
    (void)link_over(links, LINK_ASKED, fd);
}

void dt_node_links_take_for_test(dt_node_sessions_t *sessions, int fd)
{
    (void)link_over(sessions->links, LINK_ASKED, fd);
}

void dt_node_links_ask_for_test(dt_node_instance_t *instance, uint32_t theirs, int fd)
{
    node_link_t *link = link_over(instance->owner->links, LINK_GREETING, fd);
    if (!link)
        return;
    link->instance = instance;
    link->ours = instance->members[0].board;
    link->theirs = theirs;
    greet(link);
}

uint32_t dt_node_links_ready_for_test(const dt_node_sessions_t *sessions)
{
    uint32_t ready = 0;
    const dt_list_t *all = &sessions->links->all;
    for (const dt_list_t *at = all->next; at != all; at = at->next)
        ready += ((const node_link_t *)(const void *)at)->state == LINK_READY; /* first member */
    return ready;
}

/* Listen, once. Returns why not; NULL: it does. */
static const char *listen_here(dt_node_links_t *links)
{
    dt_node_sessions_t *sessions = links->sessions;
    struct sockaddr_storage address = {0};
    socklen_t size = 0;
    if (links->fd >= 0)
        return NULL;
    if (!dt_node_address_own(sessions, &address, &size))
        return "its own address is not known";
    dt_node_address_set_port(&address, 0);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) || listen(fd, DT_LINKS_BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&address, &size) ||
        dt_watch_create(sessions->options.loop, fd, DT_LOOP_READABLE, on_accept, links,
                        &links->watch, NULL) != DT_OK) {
        if (fd >= 0)
            (void)close(fd);
        return "it cannot listen for other nodes";
    }
    links->fd = fd;
    dt_rpc_address_text(&address, true, links->address, sizeof links->address);
    dt_log_info("listening for other nodes", DT_LOG_S("address", links->address));
    return NULL;
}

void dt_node_links_tell(dt_node_instance_t *instance)
{
    dt_node_links_t *links = instance->owner->links;
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__PeerDoor door = DTORCH__V1__PEER_DOOR__INIT;
    char node[64];
    char reason[128];
    if (!instance->has_remotes)
        return;
    const char *why = listen_here(links);
    (void)dt_str_copy(node, sizeof node, instance->owner->options.node_name);
    (void)dt_str_copy(reason, sizeof reason, why ? why : "");
    dt_pki_random(instance->peer_token, sizeof instance->peer_token);
    door.node = node;
    door.reason = reason;
    if (!why) {
        door.address = links->address;
        door.tls = instance->owner->options.tls(instance->owner->options.arg) != NULL;
        door.token = (ProtobufCBinaryData){sizeof instance->peer_token, instance->peer_token};
    }
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_PEER;
    up.peer = &door;
    if (dt_node_up_pack(instance, &up))
        dt_node_up_pump(instance);
}

/* ---- time, life ---- */

static void on_look(void *arg, int64_t deadline_ns)
{
    dt_node_links_t *links = arg;
    int64_t now_ns = dt_loop_now_ns();
    (void)deadline_ns;
    for (dt_list_t *at = links->all.next, *next; at != &links->all; at = next) {
        node_link_t *link = DT_CONTAINER_OF(at, node_link_t, list);
        next = at->next;
        if (link->state != LINK_DEAD && link->state != LINK_READY && now_ns > link->until_ns)
            give_up(link);
        else if (link->state == LINK_WAITING && now_ns >= link->retry_ns)
            dial(link);
        if (link->state != LINK_DEAD)
            continue;
        dt_list_remove(&link->list);
        links->count--;
        free(link);
    }
    if (links->count > 0)
        dt_timer_arm(links->timer, now_ns + DT_LINKS_LOOK_NS);
}

void dt_node_links_leave(dt_node_instance_t *instance)
{
    dt_node_links_t *links = instance->owner->links;
    for (dt_list_t *at = links->all.next; links->count > 0 && at != &links->all; at = at->next) {
        node_link_t *link = DT_CONTAINER_OF(at, node_link_t, list);
        if (link->instance == instance)
            kill_link(link);
    }
}

dt_status_t dt_node_links_create(dt_node_sessions_t *sessions, dt_error_t *err)
{
    dt_node_links_t *links = calloc(1, sizeof *links);
    if (!links)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for links");
    links->sessions = sessions;
    links->fd = -1;
    dt_list_init(&links->all);
    sessions->links = links;
    return dt_timer_create(sessions->options.loop, on_look, links, &links->timer, err);
}

void dt_node_links_free(dt_node_sessions_t *sessions)
{
    dt_node_links_t *links = DT_TAKE(sessions->links);
    dt_list_t *at;
    if (!links)
        return;
    while ((at = dt_list_pop(&links->all)) != NULL) {
        node_link_t *link = DT_CONTAINER_OF(at, node_link_t, list);
        disconnect(link);
        free(link);
    }
    dt_watch_free(links->watch);
    if (links->fd >= 0)
        (void)close(links->fd);
    dt_timer_free(links->timer);
    free(links);
}
