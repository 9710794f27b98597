/* What an agent reads of the agents of other nodes: the hello of one that connects, and the answer
 * to our own. Input: a byte, then what the other side sends; bit 0 of the byte says which side it
 * is, bit 1 that it comes in two pieces. Nobody is handed to an engine who has not said all of the
 * session, its token, a member of ours and one of another host's. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemons/workerd/sessions_internal.h"
#include "loop/loop.h"

enum { SESSION = 7, OURS = 0, THEIRS = 1, HELLO_BYTES = 64, ANSWER_BYTES = 8 };

static const uint8_t hello_head[] = {0x44,    0x54, 0x58, 0x48, 1, 0, 0, 0,
                                     SESSION, 0,    0,    0,    0, 0, 0, 0};
static const uint8_t answer_ok[ANSWER_BYTES] = {0x44, 0x54, 0x58, 0x41};

static const dt_rpc_tls_t *no_tls(void *arg)
{
    (void)arg;
    return NULL;
}

/* A session of two nodes with one engine each, of which this is the first. */
typedef struct rig {
    dt_node_sessions_t sessions;
    dt_node_instance_t instance;
    dt_node_member_t member;
    dt_node_host_t host;
} rig_t;

static rig_t *rig_new(void)
{
    static const uint32_t vdevs[] = {0, 1};
    rig_t *rig = calloc(1, sizeof *rig);
    uint32_t member;
    if (!rig || dt_loop_create(&rig->sessions.options.loop, NULL) != DT_OK ||
        dt_board_create(&rig->instance.board_fd, &rig->instance.board, NULL) != DT_OK)
        abort();
    for (uint32_t i = 0; i < 2; i++) {
        const dt_board_entry_t entry = {
            .node = i ? "there" : "here", .host = i, .vdevs = &vdevs[i], .vdev_count = 1};
        if (dt_board_add(rig->instance.board, &entry, &member, NULL) != DT_OK || member != i)
            abort();
    }
    rig->sessions.options.tls = no_tls;
    dt_list_init(&rig->sessions.instances);
    rig->instance.owner = &rig->sessions;
    rig->instance.session = SESSION;
    rig->instance.has_remotes = true;
    rig->instance.members = &rig->member;
    rig->instance.member_count = 1;
    rig->member.board = OURS;
    rig->member.host = &rig->host; /* not opened yet: what is for it waits */
    memset(rig->instance.peer_token, 0x5a, sizeof rig->instance.peer_token);
    dt_list_push(&rig->sessions.instances, &rig->instance.link);
    return rig;
}

/* Whether these bytes may have the link to an engine. */
static bool is_due(const rig_t *rig, bool is_asked, const uint8_t *data, size_t size)
{
    static const uint8_t members[] = {THEIRS, 0, 0, 0, OURS, 0, 0, 0};
    if (!is_asked)
        return size >= ANSWER_BYTES && memcmp(data, answer_ok, sizeof answer_ok) == 0;
    return size >= HELLO_BYTES && memcmp(data, hello_head, sizeof hello_head) == 0 &&
           memcmp(data + 16, rig->instance.peer_token, sizeof rig->instance.peer_token) == 0 &&
           memcmp(data + 32, members, sizeof members) == 0;
}

static void say(rig_t *rig, int fd, const uint8_t *data, size_t size)
{
    (void)!send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    dt_loop_turn(rig->sessions.options.loop);
}

static void run(rig_t *rig, uint8_t how, const uint8_t *data, size_t size)
{
    int pair[2];
    bool is_asked = !(how & 1);
    size_t first = how & 2 ? size / 2 : size;
    uint8_t heard[HELLO_BYTES + 1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ||
        dt_node_links_create(&rig->sessions, NULL) != DT_OK)
        abort();
    if (is_asked)
        dt_node_links_take_for_test(&rig->sessions, pair[0]);
    else
        dt_node_links_ask_for_test(&rig->instance, THEIRS, pair[0]);
    say(rig, pair[1], data, first);
    say(rig, pair[1], data + first, size - first);
    bool is_ready = dt_node_links_ready_for_test(&rig->sessions) == 1;
    if (is_ready != is_due(rig, is_asked, data, size))
        abort();
    ssize_t got = recv(pair[1], heard, sizeof heard, MSG_DONTWAIT);
    if (!is_asked && (got != HELLO_BYTES || memcmp(heard, hello_head, sizeof hello_head) != 0))
        abort();
    if (is_asked && size >= HELLO_BYTES &&
        (got != ANSWER_BYTES || (memcmp(heard, answer_ok, sizeof answer_ok) == 0) != is_ready))
        abort();
    (void)close(pair[1]);
    dt_loop_turn(rig->sessions.options.loop);
    dt_node_links_leave(&rig->instance);
    dt_node_links_free(&rig->sessions);
    dt_loop_turn(rig->sessions.options.loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rig_t *rig;
    if (!rig)
        rig = rig_new();
    if (size > 0 && size <= 256)
        run(rig, data[0], data + 1, size - 1);
    return 0;
}
