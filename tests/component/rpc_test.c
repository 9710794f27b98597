/* lib/rpc over real sockets: unix sockets in a folder of the test's own, and 127.0.0.1:0. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/rpcnode.h"
#include "lib/testcluster.h"
#include "pki/pki.h"

#define WAIT_MS    DT_TESTCLUSTER_PATIENCE_MS
#define WAIT_TURNS (WAIT_MS / 10)

TestSuite(rpc, .timeout = 600);

/* ---- a client stream that counts ---- */

struct client {
    atomic_int opened, messages, closed;
    size_t bytes;
    char text[64]; /* of the last message */
    dt_error_t why;
};

static void client_open(dt_rpc_stream_t *stream)
{
    struct client *client = dt_rpc_stream_arg(stream);
    client->opened++;
}

static void client_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct client *client = dt_rpc_stream_arg(stream);
    client->messages++;
    client->bytes += size;
    (void)snprintf(client->text, sizeof client->text, "%.*s", size < 60 ? (int)size : 60,
                   (const char *)data);
}

static void client_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct client *client = dt_rpc_stream_arg(stream);
    client->why = *why;
    client->closed++;
}

static const dt_rpc_stream_ops_t client_ops = {
    .open = client_open, .message = client_message, .closed = client_closed};

static dt_rpc_stream_t *dial(rpcnode_t *node, struct client *client, const char *address,
                             const char *method, const dt_rpc_tls_t *tls)
{
    dt_rpc_stream_t *stream = NULL;
    dt_error_t err = {0};
    dt_rpc_dial_t options = {.address = address,
                             .tls = tls,
                             .method = method,
                             .ops = &client_ops,
                             .arg = client,
                             .open_ms = WAIT_MS};
    cr_assert(eq(int, dt_rpc_dial(node->rpc, &options, &stream, &err), DT_OK), "%s", err.text);
    return stream;
}

static dt_status_t ask(const char *address, const dt_rpc_tls_t *tls, const char *method,
                       const char *request, int64_t timeout_ms, char *text, size_t text_size,
                       dt_error_t *err)
{
    uint8_t *data;
    size_t size;
    dt_status_t status = dt_rpc_call_blocking(address, tls, method, request, strlen(request),
                                              timeout_ms, &data, &size, err);
    text[0] = '\0';
    if (status != DT_OK)
        return status;
    (void)snprintf(text, text_size, "%.*s", (int)size, (const char *)data);
    free(data);
    return DT_OK;
}

/* ---- streams ---- */

static void echo_over(const char *which)
{
    rpcnode_t node;
    struct client client = {0};
    int64_t begin_ns = dt_loop_now_ns();
    rpcnode_open_and_start(&node);
    dt_rpc_stream_t *stream = dial(
        &node, &client, which[0] == 'u' ? node.unix_address : node.tcp_address, RPCNODE_ECHO, NULL);
    cr_assert(rpcnode_run_until(&node, &client.opened, 1, WAIT_MS), "%s", client.why.text);
    for (int i = 0; i < 100; i++)
        cr_assert(eq(int, dt_rpc_stream_send(stream, "hello", 5), DT_OK));
    cr_assert(rpcnode_run_until(&node, &client.messages, 100, WAIT_MS));
    cr_assert_str_eq(client.text, "hello");
    cr_assert(eq(sz, dt_rpc_stream_queued(stream), 0));
    cr_assert(gt(i64, dt_rpc_stream_last_rx_ns(stream), begin_ns));
    cr_assert(le(i64, dt_rpc_stream_last_rx_ns(stream), dt_loop_now_ns()));
    dt_rpc_stream_close(stream, DT_OK, NULL);
    cr_assert(eq(int, dt_rpc_stream_send(stream, "late", 4), DT_ERR_STOPPED));
    cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
    cr_assert(eq(int, client.why.code, DT_OK), "%s", client.why.text);
    cr_assert(rpcnode_run_until(&node, &node.closed, 1, WAIT_MS));
    cr_assert(eq(int, node.last_status, DT_OK), "%s", node.last_text);
    rpcnode_stop(&node);
}

Test(rpc, echoes_a_stream_over_a_unix_socket)
{
    echo_over("unix");
}

Test(rpc, echoes_a_stream_over_tcp)
{
    echo_over("tcp");
}

Test(rpc, carries_a_message_of_several_mebibytes_in_one_piece)
{
    rpcnode_t node;
    struct client client = {0};
    size_t size = 5u << 20;
    uint8_t *big = calloc(1, size);
    rpcnode_open_and_start(&node);
    dt_rpc_stream_t *stream = dial(&node, &client, node.unix_address, RPCNODE_ECHO, NULL);
    cr_assert(eq(int, dt_rpc_stream_send(stream, big, size), DT_OK));
    cr_assert(rpcnode_run_until(&node, &client.messages, 1, WAIT_MS));
    cr_assert(eq(sz, client.bytes, size));
    dt_rpc_stream_close(stream, DT_OK, NULL);
    cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
    free(big);
    rpcnode_stop(&node);
}

Test(rpc, ends_the_stream_and_not_the_server_when_a_message_is_too_large)
{
    rpcnode_t node;
    struct client client = {0}, other = {0};
    uint8_t *big = calloc(1, 100000);
    rpcnode_open(&node, &(dt_rpc_server_options_t){.message_bytes_max = 65536});
    rpcnode_start(&node);
    dt_rpc_stream_t *stream = dial(&node, &client, node.tcp_address, RPCNODE_ECHO, NULL);
    dt_rpc_stream_t *healthy = dial(&node, &other, node.tcp_address, RPCNODE_ECHO, NULL);
    cr_assert(eq(int, dt_rpc_stream_send(stream, big, 100000), DT_OK));
    cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
    cr_assert(ne(int, client.why.code, DT_OK));
    cr_assert(eq(int, dt_rpc_stream_send(healthy, "x", 1), DT_OK));
    cr_assert(rpcnode_run_until(&node, &other.messages, 1, WAIT_MS));
    dt_rpc_stream_cancel(healthy, DT_ERR_STOPPED, "bye");
    cr_assert(rpcnode_run_until(&node, &other.closed, 1, WAIT_MS));
    free(big);
    rpcnode_stop(&node);
}

Test(rpc, delivers_the_last_message_before_the_status_that_ends_a_stream)
{
    rpcnode_t node;
    rpcnode_open_and_start(&node);
    for (int i = 0; i < 50; i++) { /* gRPC drops it if the status was asked for too early */
        struct client client = {0};
        (void)dial(&node, &client, node.unix_address, RPCNODE_REFUSE, NULL);
        cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
        cr_assert(eq(int, client.messages, 1), "round %d", i);
        cr_assert_str_eq(client.text, "no");
        cr_assert(eq(int, client.why.code, DT_ERR_DENIED));
        cr_assert_str_eq(client.why.text, "go away");
    }
    rpcnode_stop(&node);
}

Test(rpc, bounds_the_queue_of_a_reader_that_never_reads)
{
    rpcnode_t node;
    size_t bound = 256u << 10;
    dt_rpc_reader_t *reader;
    dt_error_t err = {0};
    rpcnode_open(&node, &(dt_rpc_server_options_t){.queue_bytes_max = bound});
    rpcnode_start(&node);
    rpcnode_serve(&node);
    cr_assert(eq(int,
                 dt_rpc_reader_open(node.tcp_address, NULL, RPCNODE_FLOOD, true, "go", 2, WAIT_MS,
                                    &reader, &err),
                 DT_OK),
              "%s", err.text);
    for (int i = 0; i < WAIT_TURNS && node.closed == 0;
         i++) /* reads nothing: the call only waits */
        (void)poll(NULL, 0, 10);
    cr_assert(eq(int, node.flooded, 1));
    cr_assert(eq(int, node.last_status, DT_ERR_LIMIT));
    cr_assert(le(sz, node.queued_longest, bound));
    dt_rpc_reader_free(reader);
    rpcnode_stop(&node);
}

Test(rpc, tells_the_server_at_once_when_a_peer_is_killed)
{
    rpcnode_t node;
    int pipes[2];
    cr_assert(eq(int, pipe(pipes), 0));
    pid_t pid = fork(); /* before gRPC starts here */
    if (pid == 0) {
        char address[104] = "";
        dt_rpc_reader_t *reader;
        dt_error_t err;
        if (read(pipes[0], address, sizeof address) <= 0)
            _exit(1);
        if (dt_rpc_reader_open(address, NULL, RPCNODE_ECHO, true, "x", 1, WAIT_MS, &reader, &err) !=
            DT_OK)
            _exit(2);
        pause();
        _exit(3);
    }
    rpcnode_open_and_start(&node);
    cr_assert(eq(sz, (size_t)write(pipes[1], node.unix_address, sizeof node.unix_address),
                 sizeof node.unix_address));
    cr_assert(rpcnode_run_until(&node, &node.opened, 1, WAIT_MS));
    kill(pid, SIGKILL);
    cr_assert(rpcnode_run_until(&node, &node.closed, 1, WAIT_MS));
    cr_assert(eq(int, node.last_status, DT_ERR_PEER));
    (void)waitpid(pid, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
    rpcnode_stop(&node);
}

/* ---- unary ---- */

Test(rpc, answers_a_request_later_while_others_are_answered)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512];
    rpcnode_open_and_start(&node);
    rpcnode_serve(&node);
    cr_assert(
        eq(int,
           ask(node.unix_address, NULL, RPCNODE_LATE, "later", WAIT_MS, text, sizeof text, &err),
           DT_OK),
        "%s", err.text);
    cr_assert_str_eq(text, "later");
    cr_assert(
        eq(int,
           ask(node.tcp_address, NULL, RPCNODE_LATE, "again", WAIT_MS, text, sizeof text, &err),
           DT_OK),
        "%s", err.text);
    cr_assert_str_eq(text, "again");
    rpcnode_stop(&node);
}

Test(rpc, keeps_a_request_valid_after_its_client_has_left)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512];
    rpcnode_open_and_start(&node);
    rpcnode_serve(&node);
    /* The client leaves after a while, and the answer comes after twice that: a busy machine needs
     * a longer while, so that the request comes first. */
    for (int64_t while_ms = 200; node.left == 0 && while_ms < WAIT_MS; while_ms *= 2) {
        node.late_ms = (int)(2 * while_ms);
        dt_status_t status =
            ask(node.unix_address, NULL, RPCNODE_LATE, "x", while_ms, text, sizeof text, &err);
        cr_assert(ne(int, status, DT_ERR_PEER), "%s", err.text);
        for (int64_t waited_ms = 0; node.left == 0 && waited_ms < 4 * while_ms; waited_ms += 10)
            (void)poll(NULL, 0, 10);
    }
    cr_assert(ge(int, node.left, 1));
    rpcnode_stop(&node);
}

Test(rpc, answers_an_unknown_method_with_NOT_FOUND_and_its_name)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512];
    rpcnode_open_and_start(&node);
    rpcnode_serve(&node);
    cr_assert(eq(int,
                 ask(node.unix_address, NULL, "/t.T/Nope", "", WAIT_MS, text, sizeof text, &err),
                 DT_ERR_NOT_FOUND));
    cr_assert(strstr(err.text, "/t.T/Nope") != NULL, "%s", err.text);
    rpcnode_stop(&node);
}

Test(rpc, knows_the_peer_of_a_unix_socket_and_of_tcp)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], want[128];
    rpcnode_open_and_start(&node);
    rpcnode_serve(&node);
    for (int i = 0; i < 5; i++) {
        cr_assert(
            eq(int, ask(node.unix_address, NULL, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err),
               DT_OK),
            "%s", err.text);
        (void)snprintf(want, sizeof want, "unix listener=1 uid=%d pid=%d cert=0 ", (int)getuid(),
                       (int)getpid());
        cr_assert(strncmp(text, want, strlen(want)) == 0, "%s", text);
        cr_assert(eq(int,
                     ask(node.tcp_address, NULL, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err),
                     DT_OK),
                  "%s", err.text);
        cr_assert(strncmp(text, "plain listener=2 uid=-1 pid=0 cert=0 ", 37) == 0, "%s", text);
        cr_assert(strstr(text, "at=127.0.0.1:") != NULL, "%s", text);
    }
    rpcnode_stop(&node);
}

Test(rpc, reads_a_server_stream_to_its_end)
{
    rpcnode_t node;
    dt_rpc_reader_t *reader;
    dt_error_t err = {0};
    uint8_t *data;
    size_t size;
    rpcnode_open_and_start(&node);
    rpcnode_serve(&node);
    cr_assert(eq(int,
                 dt_rpc_reader_open(node.unix_address, NULL, RPCNODE_COUNT, false, "", 0, WAIT_MS,
                                    &reader, &err),
                 DT_OK),
              "%s", err.text);
    for (char want = '1'; want <= '3'; want++) {
        cr_assert(eq(int, dt_rpc_reader_next(reader, WAIT_MS, &data, &size, &err), DT_OK));
        cr_assert(size == 1 && data[0] == (uint8_t)want);
        free(data);
    }
    cr_assert(eq(int, dt_rpc_reader_next(reader, WAIT_MS, &data, &size, &err), DT_ERR_STOPPED));
    dt_rpc_reader_free(reader);
    rpcnode_stop(&node);
}

struct reply {
    atomic_int count;
    dt_status_t status;
    char text[512];
};

static void on_reply(void *arg, const dt_error_t *why, const uint8_t *data, size_t size)
{
    struct reply *reply = arg;
    reply->status = why->code;
    (void)snprintf(reply->text, sizeof reply->text, "%.*s", why->code ? 500 : (int)size,
                   why->code ? why->text : (const char *)data);
    reply->count++;
}

Test(rpc, sends_a_request_without_blocking_its_thread)
{
    rpcnode_t node;
    struct reply good = {0}, bad = {0};
    dt_error_t err = {0};
    rpcnode_open_and_start(&node);
    cr_assert(eq(int,
                 dt_rpc_unary(node.rpc, node.tcp_address, NULL, RPCNODE_LATE, "async", 5, WAIT_MS,
                              on_reply, &good, &err),
                 DT_OK));
    cr_assert(eq(int,
                 dt_rpc_unary(node.rpc, "127.0.0.1:1", NULL, RPCNODE_LATE, "async", 5, WAIT_MS,
                              on_reply, &bad, &err),
                 DT_OK));
    cr_assert(rpcnode_run_until(&node, &good.count, 1, WAIT_MS));
    cr_assert_str_eq(good.text, "async");
    cr_assert(rpcnode_run_until(&node, &bad.count, 1, WAIT_MS));
    cr_assert(eq(int, bad.status, DT_ERR_AGAIN));
    cr_assert(strstr(bad.text, "refused") != NULL, "%s", bad.text);
    rpcnode_stop(&node);
}

/* ---- connections ---- */

Test(rpc, says_why_nobody_answers)
{
    rpcnode_t node;
    struct client client = {0}, name = {0}, bad = {0};
    dt_error_t err = {0};
    char path[96];
    rpcnode_open_and_start(&node);
    (void)snprintf(path, sizeof path, "%s/nobody", node.directory);
    (void)dial(&node, &client, path, RPCNODE_ECHO, NULL);
    (void)dial(&node, &name, "no-such-host.invalid:7700", RPCNODE_ECHO, NULL);
    cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
    cr_assert(strstr(client.why.text, "No such file") != NULL, "%s", client.why.text);
    cr_assert(rpcnode_run_until(&node, &name.closed, 1, WAIT_MS));
    cr_assert(eq(int, name.opened, 0));
    dt_rpc_stream_t *stream = NULL;
    dt_rpc_dial_t options = {
        .address = "host", .method = RPCNODE_ECHO, .ops = &client_ops, .arg = &bad};
    cr_assert(eq(int, dt_rpc_dial(node.rpc, &options, &stream, &err), DT_ERR_INVALID));
    cr_assert(strstr(err.text, "host:port") != NULL, "%s", err.text);
    rpcnode_stop(&node);
}

Test(rpc, gives_up_on_a_server_that_accepts_and_says_nothing)
{
    rpcnode_t node;
    struct client client = {0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    rpcnode_open_and_start(&node);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/mute", node.directory);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
    dt_rpc_stream_t *stream = NULL;
    dt_rpc_dial_t options = {.address = address.sun_path,
                             .method = RPCNODE_ECHO,
                             .ops = &client_ops,
                             .arg = &client,
                             .open_ms = 300};
    dt_error_t err = {0};
    cr_assert(eq(int, dt_rpc_dial(node.rpc, &options, &stream, &err), DT_OK));
    cr_assert(rpcnode_run_until(&node, &client.closed, 1, WAIT_MS));
    cr_assert(eq(int, client.why.code, DT_ERR_TIMEOUT), "%s", client.why.text);
    close(fd);
    unlink(address.sun_path);
    rpcnode_stop(&node);
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* Wait until the peer has closed. */
static bool is_closed_within(int fd, int timeout_ms)
{
    char byte[64];
    int64_t end_ns = dt_loop_now_ns() + timeout_ms * INT64_C(1000000);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (dt_loop_now_ns() < end_ns) {
        if (poll(&wait, 1, 50) == 1 && read(fd, byte, sizeof byte) <= 0)
            return true;
    }
    return false;
}

static dt_rpc_server_stats_t shown;
static dt_rpc_crowd_t crowds[4];
static size_t crowd_count;

static void look(rpcnode_t *node)
{
    dt_rpc_server_stats(node->server, &shown);
    crowd_count = dt_rpc_server_crowds(node->server, crowds, 4);
}

Test(rpc, makes_room_by_closing_who_says_nothing_and_names_the_crowd)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], want[64];
    int fds[4];
    rpcnode_open(&node, &(dt_rpc_server_options_t){.connection_max = 4, .handshake_ms = 8000});
    rpcnode_start(&node);
    rpcnode_serve(&node);
    for (int i = 0; i < 4; i++)
        fds[i] = connect_to(node.socket_path);
    int extra = connect_to(node.socket_path);
    cr_assert(is_closed_within(fds[0], WAIT_MS), "the oldest connection was not closed");
    rpcnode_act(&node, look);
    cr_assert(eq(sz, shown.connections, 4));
    cr_assert(eq(u64, shown.silent, 1));
    cr_assert(eq(sz, crowd_count, 1));
    (void)snprintf(want, sizeof want, "unix:uid=%u", (unsigned)getuid());
    cr_assert_str_eq(crowds[0].host, want);
    cr_assert(eq(sz, crowds[0].connections, 4));
    for (int i = 0; i < 4; i++)
        cr_assert(is_closed_within(fds[i], WAIT_MS), "a silent connection was not closed");
    cr_assert(eq(int,
                 ask(node.unix_address, NULL, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err),
                 DT_OK),
              "%s", err.text);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    close(extra);
    rpcnode_stop(&node);
    cr_assert(ge(int, node.refused, 1));
}

/* What keeps new connections out may be anything; who has just come and is about to call is not
 * to be blamed for it. */
Test(rpc, without_descriptors_closes_nobody_who_has_just_come)
{
    rpcnode_t node;
    struct rlimit limit, tight;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    rpcnode_open(&node, &(dt_rpc_server_options_t){.handshake_ms = 10 * WAIT_MS});
    rpcnode_start(&node);
    rpcnode_serve(&node);
    int guest = connect_to(node.socket_path);
    int later = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < WAIT_TURNS && shown.connections < 1; i++)
        rpcnode_act(&node, look);
    cr_assert(eq(sz, shown.connections, 1));
    cr_assert(eq(int, getrlimit(RLIMIT_NOFILE, &limit), 0));
    tight = (struct rlimit){.rlim_cur = 3, .rlim_max = limit.rlim_max};
    cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &tight), 0));
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", node.socket_path);
    cr_assert(eq(int, connect(later, (struct sockaddr *)&address, sizeof address), 0));
    cr_assert(not(is_closed_within(guest, 500)), "it was closed");
    cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &limit), 0));
    for (int i = 0; i < WAIT_TURNS && shown.connections < 2; i++) {
        (void)poll(NULL, 0, 10);
        rpcnode_act(&node, look);
    }
    cr_assert(eq(sz, shown.connections, 2), "the one that waited is served");
    cr_assert(eq(u64, shown.silent, 0));
    close(guest);
    close(later);
    rpcnode_stop(&node);
}

Test(rpc, refuses_a_connection_when_all_others_are_at_work)
{
    rpcnode_t node;
    dt_rpc_reader_t *readers[2];
    dt_error_t err = {0};
    char text[512];
    rpcnode_open(&node, &(dt_rpc_server_options_t){.connection_max = 2});
    rpcnode_start(&node);
    rpcnode_serve(&node);
    for (int i = 0; i < 2; i++) {
        cr_assert(eq(int,
                     dt_rpc_reader_open(node.unix_address, NULL, RPCNODE_ECHO, true, "x", 1,
                                        WAIT_MS, &readers[i], &err),
                     DT_OK),
                  "%s", err.text);
        for (int k = 0; k < WAIT_TURNS && node.opened <= i; k++)
            (void)poll(NULL, 0, 10);
    }
    int extra = connect_to(node.socket_path);
    cr_assert(is_closed_within(extra, WAIT_MS), "the third connection was not refused");
    close(extra);
    dt_rpc_reader_free(readers[0]);
    dt_status_t status = DT_ERR_AGAIN;
    for (int i = 0; i < WAIT_TURNS && status == DT_ERR_AGAIN;
         i++) { /* gRPC closes it a little later */
        (void)poll(NULL, 0, 10);
        status = ask(node.unix_address, NULL, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err);
    }
    cr_assert(eq(int, status, DT_OK), "%s", err.text);
    dt_rpc_reader_free(readers[1]);
    rpcnode_stop(&node);
}

Test(rpc, removes_a_stale_socket_file_and_refuses_one_that_answers)
{
    rpcnode_t node, second;
    dt_error_t err = {0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    rpcnode_open(&node, NULL);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", node.socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    close(fd); /* as a killed daemon leaves it */
    rpcnode_start(&node);
    rpcnode_open(&second, NULL);
    cr_assert(eq(int, dt_rpc_server_listen_unix(second.server, node.socket_path, 0600, 1, &err),
                 DT_ERR_EXISTS));
    cr_assert(strstr(err.text, node.socket_path) != NULL, "%s", err.text);
    struct stat info;
    cr_assert(stat(node.socket_path, &info) == 0 && (info.st_mode & 0777) == 0600);
    rpcnode_stop(&second);
    rpcnode_stop(&node);
}

Test(rpc, refuses_a_path_that_is_too_long_or_no_socket_or_in_no_folder)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char path[200], file[96];
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    rpcnode_open(&node, NULL);
    cr_assert(eq(int, dt_rpc_server_listen_unix(node.server, path, 0600, 1, &err), DT_ERR_INVALID));
    cr_assert(strstr(err.text, "199 bytes: 1 to 107") != NULL, "%s", err.text);
    (void)snprintf(file, sizeof file, "%s/file", node.directory);
    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    cr_assert(eq(int, dt_rpc_server_listen_unix(node.server, file, 0600, 1, &err), DT_ERR_INVALID));
    cr_assert(strstr(err.text, "not a socket") != NULL, "%s", err.text);
    cr_assert(eq(int, unlink(file), 0), "the file must not be touched");
    cr_assert(eq(int, dt_rpc_server_listen_unix(node.server, "/nonexistent/x", 0600, 1, &err),
                 DT_ERR_NOT_FOUND));
    rpcnode_stop(&node);
}

Test(rpc, refuses_a_port_that_is_taken_with_and_without_TLS)
{
    rpcnode_t node, second;
    dt_error_t err = {0};
    dt_rpc_tls_t tls = {"x", "x", "x"};
    int port;
    rpcnode_open_and_start(&node);
    rpcnode_open(&second, NULL);
    cr_assert(eq(int,
                 dt_rpc_server_listen_tcp(second.server, node.tcp_address, NULL, 1, &port, &err),
                 DT_ERR_EXISTS));
    cr_assert(strstr(err.text, node.tcp_address) != NULL, "%s", err.text);
    cr_assert(eq(int,
                 dt_rpc_server_listen_tcp(second.server, node.tcp_address, &tls, 1, &port, &err),
                 DT_ERR_EXISTS));
    cr_assert(eq(int, dt_rpc_server_listen_tcp(second.server, "127.0.0.1:0", &tls, 1, &port, &err),
                 DT_ERR_INVALID));
    rpcnode_stop(&second);
    rpcnode_stop(&node);
}

Test(rpc, serves_on_a_descriptor_that_somebody_else_bound)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], where[96];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    rpcnode_open(&node, NULL);
    (void)snprintf(where, sizeof where, "%s/activated", node.directory);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", where);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    cr_assert(eq(int, dt_rpc_server_listen_fd(node.server, fd, 7, &err), DT_ERR_INVALID));
    cr_assert(listen(fd, 5) == 0);
    cr_assert(eq(int, dt_rpc_server_listen_fd(node.server, fd, 7, &err), DT_OK), "%s", err.text);
    rpcnode_start(&node);
    rpcnode_serve(&node);
    cr_assert(eq(int, ask(where, NULL, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err), DT_OK),
              "%s", err.text);
    cr_assert(strncmp(text, "unix listener=7 ", 16) == 0, "%s", text);
    cr_assert(eq(int, unlink(where), 0));
    rpcnode_stop(&node);
}

Test(rpc, refuses_streams_and_requests_over_their_bounds)
{
    rpcnode_t node;
    struct client a = {0}, b = {0};
    rpcnode_open(&node, &(dt_rpc_server_options_t){.stream_max = 1});
    rpcnode_start(&node);
    dt_rpc_stream_t *first = dial(&node, &a, node.unix_address, RPCNODE_ECHO, NULL);
    cr_assert(rpcnode_run_until(&node, &a.opened, 1, WAIT_MS));
    (void)dial(&node, &b, node.unix_address, RPCNODE_ECHO, NULL);
    cr_assert(rpcnode_run_until(&node, &b.closed, 1, WAIT_MS));
    cr_assert(eq(int, b.why.code, DT_ERR_LIMIT), "%s", b.why.text);
    cr_assert(eq(int, node.opened, 1));
    dt_rpc_stream_cancel(first, DT_ERR_STOPPED, "");
    cr_assert(rpcnode_run_until(&node, &a.closed, 1, WAIT_MS));
    rpcnode_stop(&node);
}

/* ---- stopping ---- */

Test(rpc, leaves_nothing_when_it_stops_with_calls_open)
{
    rpcnode_t node;
    struct client client[8] = {{0}};
    struct reply reply = {0};
    dt_error_t err = {0};
    rpcnode_open_and_start(&node);
    for (int i = 0; i < 8; i++)
        (void)dial(&node, &client[i], node.unix_address, RPCNODE_ECHO, NULL);
    cr_assert(eq(int,
                 dt_rpc_unary(node.rpc, node.unix_address, NULL, RPCNODE_HOLD, "", 0, WAIT_MS,
                              on_reply, &reply, &err),
                 DT_OK));
    cr_assert(rpcnode_run_until(&node, &node.opened, 8, WAIT_MS));
    atomic_int never = 0;
    for (int i = 0; i < WAIT_TURNS && node.held_count == 0; i++)
        (void)rpcnode_run_until(&node, &never, 1, 10);
    node.grace_ms = 100;
    dt_rpc_wake(node.stop_wake);
    for (int i = 0; i < 8; i++)
        cr_assert(rpcnode_run_until(&node, &client[i].closed, 1, WAIT_MS));
    cr_assert(rpcnode_run_until(&node, &reply.count, 1, WAIT_MS));
    cr_assert(eq(int, reply.status, DT_ERR_STOPPED), "%s", reply.text);
    if (node.server)
        dt_rpc_run(node.rpc);
    cr_assert(node.server == NULL);
    rpcnode_stop(&node);
}

Test(rpc, reports_what_is_still_open_when_it_is_freed_too_early)
{
    rpcnode_t node;
    rpcnode_open_and_start(&node);
    cr_assert(eq(int, dt_rpc_free(node.rpc), DT_ERR_INTERNAL));
    rpcnode_stop(&node);
}

/* ---- TLS ---- */

#define DAY_MS INT64_C(86400000)

struct certificates {
    dt_pki_pair_t ca, foreign, server, node, expired, stranger, elsewhere;
};

static struct certificates pki;

static void make_certificates(void)
{
    const char *const here[] = {"localhost", "127.0.0.1"};
    const char *const there[] = {"elsewhere.example"};
    dt_error_t err = {0};
    bool is_ok =
        dt_pki_make_ca("cluster", 0, &pki.ca, &err) == DT_OK &&
        dt_pki_make_ca("foreign", 0, &pki.foreign, &err) == DT_OK &&
        dt_pki_make_server(&pki.ca, here, 2, DAY_MS, &pki.server, &err) == DT_OK &&
        dt_pki_make_server(&pki.ca, there, 1, DAY_MS, &pki.elsewhere, &err) == DT_OK &&
        dt_pki_make_client(&pki.ca, DT_PKI_ROLE_NODE, "n1", DAY_MS, &pki.node, &err) == DT_OK &&
        dt_pki_make_client(&pki.ca, DT_PKI_ROLE_NODE, "n2", -1000, &pki.expired, &err) == DT_OK &&
        dt_pki_make_client(&pki.foreign, DT_PKI_ROLE_NODE, "n3", DAY_MS, &pki.stranger, &err) ==
            DT_OK;
    cr_assert(is_ok, "%s", err.text);
}

static void free_certificates(void)
{
    dt_pki_pair_fini(&pki.ca);
    dt_pki_pair_fini(&pki.foreign);
    dt_pki_pair_fini(&pki.server);
    dt_pki_pair_fini(&pki.node);
    dt_pki_pair_fini(&pki.expired);
    dt_pki_pair_fini(&pki.stranger);
    dt_pki_pair_fini(&pki.elsewhere);
}

TestSuite(rpc_tls, .timeout = 600, .init = make_certificates, .fini = free_certificates);

static dt_rpc_tls_t tls_of(const dt_pki_pair_t *authority, const dt_pki_pair_t *own)
{
    return (dt_rpc_tls_t){authority->certificate, own ? own->certificate : NULL,
                          own ? own->key : NULL};
}

/* A node with a TLS listener, number 3. */
static void open_tls(rpcnode_t *node, const dt_pki_pair_t *server, char address[32])
{
    dt_rpc_tls_t tls = tls_of(&pki.ca, server);
    dt_error_t err = {0};
    int port;
    rpcnode_open(node, NULL);
    cr_assert(
        eq(int, dt_rpc_server_listen_tcp(node->server, "127.0.0.1:0", &tls, 3, &port, &err), DT_OK),
        "%s", err.text);
    rpcnode_start(node);
    (void)snprintf(address, 32, "127.0.0.1:%d", port);
}

Test(rpc_tls, knows_the_certificate_of_a_node)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], address[32];
    dt_rpc_tls_t tls = tls_of(&pki.ca, &pki.node);
    open_tls(&node, &pki.server, address);
    rpcnode_serve(&node);
    cr_assert(eq(int, ask(address, &tls, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err), DT_OK),
              "%s", err.text);
    cr_assert(strncmp(text,
                      "tls listener=3 uid=-1 pid=0 cert=1 cn=n1 id=spiffe://dtorch/node/n1 "
                      "at=127.0.0.1:",
                      81) == 0,
              "%s", text);
    rpcnode_stop(&node);
}

Test(rpc_tls, lets_a_peer_without_certificate_through_as_nobody)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], address[32];
    dt_rpc_tls_t tls = tls_of(&pki.ca, NULL);
    open_tls(&node, &pki.server, address);
    memmove(address + 9, strchr(address, ':'), strlen(strchr(address, ':')) + 1);
    memcpy(address, "localhost", 9); /* the certificate is checked against the name */
    rpcnode_serve(&node);
    cr_assert(eq(int, ask(address, &tls, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err), DT_OK),
              "%s", err.text);
    cr_assert(strncmp(text, "tls listener=3 uid=-1 pid=0 cert=0 cn= id= at=", 46) == 0, "%s", text);
    rpcnode_stop(&node);
}

/* Dial with `tls` and expect to be refused, with a text. */
static void expect_refusal(rpcnode_t *node, const char *address, const dt_rpc_tls_t *tls)
{
    struct client client = {0};
    (void)dial(node, &client, address, RPCNODE_ECHO, tls);
    cr_assert(rpcnode_run_until(node, &client.closed, 1, WAIT_MS));
    cr_assert(eq(int, client.opened, 0));
    cr_assert(ne(int, client.why.code, DT_OK));
    cr_assert(ne(int, client.why.text[0], 0));
    cr_log_info("%s", client.why.text);
}

Test(rpc_tls, refuses_expired_and_foreign_certificates_and_plain_text)
{
    rpcnode_t node;
    char address[32];
    dt_rpc_tls_t expired = tls_of(&pki.ca, &pki.expired);
    dt_rpc_tls_t stranger = tls_of(&pki.ca, &pki.stranger);
    open_tls(&node, &pki.server, address);
    expect_refusal(&node, address, &expired);
    expect_refusal(&node, address, &stranger);
    expect_refusal(&node, address, NULL);
    cr_assert(eq(int, node.opened, 0));
    rpcnode_stop(&node);
}

Test(rpc_tls, does_not_talk_to_a_server_of_another_authority_or_name)
{
    rpcnode_t node, other;
    char address[32], other_address[32];
    dt_rpc_tls_t wrong = tls_of(&pki.foreign, NULL);
    dt_rpc_tls_t right = tls_of(&pki.ca, NULL);
    open_tls(&node, &pki.server, address);
    open_tls(&other, &pki.elsewhere, other_address);
    rpcnode_serve(&other);
    expect_refusal(&node, address, &wrong);
    expect_refusal(&node, other_address, &right);
    expect_refusal(&node, node.tcp_address, &right); /* plain text there */
    rpcnode_stop(&node);
    rpcnode_stop(&other);
}

static void reload(rpcnode_t *node)
{
    dt_rpc_tls_t tls = tls_of(&pki.foreign, &pki.server);
    cr_assert(eq(int, dt_rpc_server_reload_tls(node->server, &tls, NULL), DT_OK));
}

Test(rpc_tls, uses_new_certificates_without_dropping_a_connection)
{
    rpcnode_t node;
    dt_error_t err = {0};
    char text[512], address[32];
    const char *const here[] = {"127.0.0.1"};
    uint8_t *data;
    size_t size;
    dt_rpc_reader_t *reader;
    dt_rpc_tls_t before = tls_of(&pki.ca, &pki.node), after = tls_of(&pki.foreign, &pki.stranger);
    open_tls(&node, &pki.server, address);
    rpcnode_serve(&node);
    cr_assert(
        eq(int,
           dt_rpc_reader_open(address, &before, RPCNODE_ECHO, true, "1", 1, WAIT_MS, &reader, &err),
           DT_OK),
        "%s", err.text);
    cr_assert(eq(int, dt_rpc_reader_next(reader, WAIT_MS, &data, &size, &err), DT_OK));
    free(data);
    dt_pki_pair_fini(&pki.server);
    cr_assert(eq(int, dt_pki_make_server(&pki.foreign, here, 1, DAY_MS, &pki.server, &err), DT_OK));
    rpcnode_act(&node, reload);
    cr_assert(
        eq(int, ask(address, &after, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err), DT_OK),
        "%s", err.text);
    cr_assert(strstr(text, "cn=n3") != NULL, "%s", text);
    cr_assert(
        ne(int, ask(address, &before, RPCNODE_WHO, "", WAIT_MS, text, sizeof text, &err), DT_OK));
    cr_assert(eq(int, dt_rpc_reader_send(reader, "2", 1, WAIT_MS, &err), DT_OK), "%s", err.text);
    cr_assert(eq(int, dt_rpc_reader_next(reader, WAIT_MS, &data, &size, &err), DT_OK));
    free(data);
    dt_rpc_reader_free(reader);
    rpcnode_stop(&node);
}

Test(rpc_tls, gives_its_authority_to_a_node_that_joins_and_knows_its_hash)
{
    rpcnode_t node;
    dt_error_t err = {0};
    dt_pki_info_t ca, foreign;
    char address[32], *fetched = NULL;
    open_tls(&node, &pki.server, address);
    rpcnode_serve(&node);
    cr_assert(eq(int, dt_pki_read(pki.ca.certificate, &ca, &err), DT_OK));
    cr_assert(eq(int, dt_pki_read(pki.foreign.certificate, &foreign, &err), DT_OK));
    cr_assert(eq(int, dt_pki_fetch_ca(address, ca.sha256, WAIT_MS, &fetched, &err), DT_OK), "%s",
              err.text);
    cr_assert_str_eq(fetched, pki.ca.certificate);
    free(fetched);
    cr_assert(
        eq(int, dt_pki_fetch_ca(address, foreign.sha256, WAIT_MS, &fetched, &err), DT_ERR_DENIED));
    cr_assert(
        eq(int, dt_pki_fetch_ca(node.tcp_address, ca.sha256, WAIT_MS, &fetched, &err), DT_ERR_PEER),
        "%s", err.text);
    cr_assert(
        eq(int, dt_pki_fetch_ca("127.0.0.1:1", ca.sha256, WAIT_MS, &fetched, &err), DT_ERR_PEER));
    cr_assert(
        eq(int, dt_pki_fetch_ca("nowhere", ca.sha256, WAIT_MS, &fetched, &err), DT_ERR_INVALID));
    rpcnode_stop(&node);
}
