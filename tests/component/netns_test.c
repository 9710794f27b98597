/* Workers that share neither a network nor memory with each other or with the program: each in a
 * network namespace of its own, joined by a bridge, TLS everywhere. The values are those of one
 * worker. Where the machine allows no namespaces the tests are skipped, and say why. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/meshwork.h"
#include "lib/tlscluster.h"

#define WORKERS 4
#define MIB     ((size_t)1 << 20)

TestSuite(netns, .timeout = 600);

/* Namespaces: ours, and one for each worker; they end with this process. */
static int ours = -1, theirs[WORKERS];

static int own_namespace(void)
{
    return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

static bool writes(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        (void)close(fd);
    return is_good;
}

/* Where we are nobody outside: root inside of a user namespace. */
static bool become_root(void)
{
    char map[64];
    if (geteuid() == 0)
        return true;
    (void)snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    return unshare(CLONE_NEWUSER) == 0 && writes("/proc/self/setgroups", "deny") &&
           writes("/proc/self/uid_map", map);
}

/* Run ip(8) with the words of a line. */
static bool ip(const char *line)
{
    char text[256], *words[16] = {NULL}, *save = NULL;
    int count = 0, status = -1;
    (void)snprintf(text, sizeof text, "ip %s", line);
    for (char *word = strtok_r(text, " ", &save); word && count < 15;
         word = strtok_r(NULL, " ", &save))
        words[count++] = word;
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(STDOUT_FILENO, STDERR_FILENO);
        execvp(words[0], words);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/* A cable from our bridge into a new namespace, where its end has the address. */
static bool join(int who)
{
    char line[128];
    if (unshare(CLONE_NEWNET) != 0 || (theirs[who] = own_namespace()) < 0 ||
        setns(ours, CLONE_NEWNET) != 0)
        return false;
    (void)snprintf(line, sizeof line, "link add v%d type veth peer name e%d netns /proc/%d/fd/%d",
                   who, who, (int)getpid(), theirs[who]);
    if (!ip(line))
        return false;
    (void)snprintf(line, sizeof line, "link set v%d master br0 up", who);
    if (!ip(line) || setns(theirs[who], CLONE_NEWNET) != 0)
        return false;
    (void)snprintf(line, sizeof line, "addr add 10.99.0.%d/24 dev e%d", 2 + who, who);
    bool is_good = ip(line) && ip("link set lo up");
    (void)snprintf(line, sizeof line, "link set e%d up", who);
    return ip(line) && setns(ours, CLONE_NEWNET) == 0 && is_good;
}

static void separate(void)
{
    const char *what = NULL;
    if (!become_root())
        what = "no user namespace";
    else if (unshare(CLONE_NEWNET) != 0)
        what = "no network namespace";
    else if ((ours = own_namespace()) < 0)
        what = "no /proc";
    if (what)
        cr_skip_test("%s: %s", what, strerror(errno));
    if (!ip("link set lo up") || !ip("link add br0 type bridge forward_delay 0") ||
        !ip("addr add " DT_TLSCLUSTER_IP "/24 dev br0") || !ip("link set br0 up"))
        cr_skip_test("ip(8) cannot make a bridge");
    for (int i = 0; i < WORKERS; i++)
        if (!join(i))
            cr_skip_test("ip(8) cannot make cables between network namespaces");
}

static void enter(void *arg, int who)
{
    (void)arg;
    cr_assert_eq(setns(theirs[who], CLONE_NEWNET), 0);
}

static void leave(void *arg, int who)
{
    (void)arg;
    (void)who;
    cr_assert_eq(setns(ours, CLONE_NEWNET), 0);
}

static void start(dt_tlscluster_t *c, int workers, const char *lines)
{
    dt_tlscluster_prepare(c, workers);
    c->ip = DT_TLSCLUSTER_IP;
    c->before = enter;
    c->after = leave;
    dt_tlscluster_begin(c, workers, lines);
}

Test(netns, workers_that_share_no_memory_compute_the_bits_of_one)
{
    static float first[DT_MESHWORK_SUMS], is[DT_MESHWORK_SUMS];
    static const struct {
        int workers;
        const char *devices;
    } shapes[] = {{1, "Devices=ref:4\n"}, {2, "Devices=ref:2\n"}, {4, "Devices=ref:1\n"}};
    separate();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        dt_tlscluster_t c;
        start(&c, shapes[i].workers, shapes[i].devices);
        dt_session_t *session = dt_tlscluster_connect(&c, "auto", 4);
        dt_meshwork_run(session, c.tc, i == 0 ? first : is);
        cr_assert(i == 0 || memcmp(first, is, sizeof is) == 0, "%d workers have other bits",
                  shapes[i].workers);
        dt_clienttest_disconnect(session);
        dt_tlscluster_stop(&c);
    }
}

Test(netns, bytes_of_a_program_go_straight_to_a_worker_on_another_network)
{
    const size_t size = 5 * MIB + 3;
    uint8_t *bytes = malloc(size), *is = malloc(size);
    dt_tlscluster_t c;
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    dt_session_info_t info = {.struct_size = sizeof info};
    separate();
    cr_assert(bytes && is);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    start(&c, 1, "Devices=ref:1\nDataListen=0.0.0.0:7703\n");
    dt_session_t *session = dt_tlscluster_connect(&c, "auto", 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(dt_tensor_from(session, DT_DTYPE_U8, 1, (int64_t[]){(int64_t)size}, bytes,
                                    &tensor, &err),
                     DT_OK, "%s", err.text);
        dt_clienttest_read(tensor, is, size);
        cr_assert_eq(memcmp(is, bytes, size), 0);
        dt_tensor_free(tensor);
    }
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    cr_assert_eq(info.window_bytes, 0, "it reached the worker's memory");
    cr_assert_gt(info.direct_bytes, 4 * size, "%lu relayed: %s", (unsigned long)info.relayed_bytes,
                 info.detour);
    dt_clienttest_disconnect(session);
    dt_tlscluster_stop(&c);
    free(bytes);
    free(is);
}
