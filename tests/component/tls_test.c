/* What is no TLS, or only begins like it, at every port that speaks TLS: the controller's, its
 * page's, and the data port of a node. Each such connection ends, the daemons live, keep no
 * descriptor of it, and serve the next who comes. And the other way round: a program that dials who
 * answers so. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/rawpeer.h"
#include "lib/testproc.h"
#include "lib/tlscluster.h"
#include "pki/tls.h"

#define PATIENCE    DT_TESTCLUSTER_PATIENCE_MS
#define CTRL        DT_TESTCLUSTER_CONTROLLER
#define BYTES_MAX   (80u << 10)
#define RECORD_HEAD 5u  /* type, version, length */
#define CUTS        8u  /* places where a true greeting is cut off */
#define FLIPS       24u /* places where a byte of it is another one */
#define NOISES      6u
#define HELD        4u /* greetings that nothing follows, and whose connection stays */

TestSuite(tls, .timeout = 600);

/* ---- what is said ---- */

typedef struct speech {
    uint8_t bytes[BYTES_MAX];
    size_t size;
} speech_t;

static void add(speech_t *speech, const void *bytes, size_t size)
{
    cr_assert_leq(speech->size + size, sizeof speech->bytes);
    if (size > 0) /* a record without a body has no bytes to copy from */
        memcpy(speech->bytes + speech->size, bytes, size);
    speech->size += size;
}

/* A record's head and as much of its body as there is. */
static void add_record(speech_t *speech, uint8_t type, uint16_t version, uint16_t claimed,
                       const void *body, size_t size)
{
    const uint8_t head[RECORD_HEAD] = {type, (uint8_t)(version >> 8), (uint8_t)version,
                                       (uint8_t)(claimed >> 8), (uint8_t)claimed};
    add(speech, head, sizeof head);
    add(speech, body, size);
}

/* The first bytes of an honest client. */
static speech_t *greeting(void)
{
    static speech_t hello;
    dt_pki_pair_t ca;
    dt_tls_t *tls;
    dt_error_t err;
    int fds[2];
    if (hello.size)
        return &hello;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    const dt_tls_options_t options = {.ca = ca.certificate, .peer = "w0"};
    cr_assert_eq(dt_tls_create(&options, &tls, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_tls_send(tls, fds[0], "x", 1, &err),
                 0); /* none is taken before the handshake */
    ssize_t got = read(fds[1], hello.bytes, sizeof hello.bytes);
    cr_assert_gt(got, 100);
    hello.size = (size_t)got;
    dt_tls_free(tls);
    dt_pki_pair_fini(&ca);
    (void)close(fds[0]);
    (void)close(fds[1]);
    return &hello;
}

static void noise(uint32_t seed, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++, seed = seed * 1664525u + 1013904223u)
        bytes[i] = (uint8_t)(seed >> 24);
}

/* The body of the greeting's record once more, in records of `step` bytes. */
static void add_in_pieces(speech_t *speech, size_t step)
{
    const speech_t *hello = greeting();
    for (size_t at = RECORD_HEAD; at < hello->size; at += step) {
        size_t size = hello->size - at < step ? hello->size - at : step;
        add_record(speech, 22, 0x0303, (uint16_t)size, hello->bytes + at, size);
    }
}

static void no_tls(speech_t *out, unsigned which)
{
    static const char clear[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    static const uint8_t old[] = {0x80, 0x2e, 0x01, 0x00, 0x02, 0x00, 0x15, 0x00, 0x00, 0x00, 0x10};
    static uint8_t filling[64u << 10];
    switch (which) {
    case 0: /* nothing at all */
        return;
    case 1:
        add(out, clear, sizeof clear - 1);
        return;
    case 2: /* SSL 2 */
        add(out, old, sizeof old);
        return;
    case 3: /* more than a record may hold, and much of it comes */
        add_record(out, 22, 0x0301, UINT16_MAX, filling, sizeof filling);
        return;
    case 4: /* types and versions that there are not */
        add_record(out, 0xff, 0x0303, 16, filling, 16);
        add_record(out, 22, 0x7f7f, 16, filling, 16);
        return;
    default:
        memset(out->bytes, 0xff, 4096);
        out->size = 4096;
    }
}

static void out_of_turn(speech_t *out, unsigned which)
{
    static const uint8_t huge[] = {1, 0xff, 0xff, 0xff, 3, 3}; /* a greeting of 16 MiB */
    static const uint8_t fatal[] = {2, 80}, unknown[] = {7, 7}, change[] = {1};
    static const uint8_t beat[] = {1, 0xff, 0xff}; /* claims 64 KiB, brings none */
    static uint8_t filling[16384];
    switch (which) {
    case 0: /* data before anything was agreed */
        add_record(out, 23, 0x0303, sizeof filling, filling, sizeof filling);
        return;
    case 1: /* empty records, one after the other */
        for (int i = 0; i < 500; i++)
            add_record(out, 22, 0x0303, 0, NULL, 0);
        return;
    case 2:
        add_record(out, 22, 0x0301, sizeof filling, huge, sizeof huge);
        add(out, filling, sizeof filling - sizeof huge);
        return;
    case 3:
        for (int i = 0; i < 100; i++)
            add_record(out, 20, 0x0303, 1, change, 1);
        return;
    case 4:
        add_record(out, 21, 0x0303, 2, unknown, 2);
        add_record(out, 21, 0x0303, 2, fatal, 2);
        return;
    case 5:
        add_record(out, 24, 0x0303, 3, beat, sizeof beat);
        return;
    case 6: /* twice the same */
        add(out, greeting()->bytes, greeting()->size);
        add(out, greeting()->bytes, greeting()->size);
        return;
    case 7: /* a good begin, and then no key that fits */
        add(out, greeting()->bytes, greeting()->size);
        noise(7, filling, 512);
        add_record(out, 23, 0x0303, 512, filling, 512);
        return;
    case 8: /* a good begin, and an end at once */
        add(out, greeting()->bytes, greeting()->size);
        add_record(out, 21, 0x0303, 2, fatal, 2);
        return;
    default: /* the greeting in records of one byte, and some noise */
        add_in_pieces(out, 1);
        add_record(out, 23, 0x0303, 64, filling, 64);
    }
}

#define PLAIN_COUNT  6u
#define TURN_COUNT   10u
#define SPEECH_COUNT (PLAIN_COUNT + TURN_COUNT + CUTS + FLIPS + NOISES)

static void speech_make(unsigned which, speech_t *out)
{
    const speech_t *hello = greeting();
    out->size = 0;
    if (which < PLAIN_COUNT) {
        no_tls(out, which);
        return;
    }
    which -= PLAIN_COUNT;
    if (which < TURN_COUNT) {
        out_of_turn(out, which);
        return;
    }
    which -= TURN_COUNT;
    if (which < CUTS) {
        add(out, hello->bytes, hello->size * (which + 1) / (CUTS + 1));
        return;
    }
    which -= CUTS;
    if (which < FLIPS) {
        add(out, hello->bytes, hello->size);
        out->bytes[hello->size * which / FLIPS] ^= 0xff;
        return;
    }
    noise(which, out->bytes, 3000);
    out->size = 3000;
    if (which % 2) /* behind a head that is right */
        memcpy(out->bytes, "\x16\x03\x03\x0b\xb3", RECORD_HEAD);
}

/* ---- who hears it ---- */

static int descriptor_count(pid_t pid)
{
    char path[64];
    int count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    cr_assert(dir != NULL);
    while (readdir(dir))
        count++;
    (void)closedir(dir);
    return count;
}

struct expected {
    pid_t pid;
    int descriptors;
};

static bool has_let_go(dt_testcluster_t *tc, void *arg)
{
    const struct expected *expected = arg;
    (void)tc;
    return descriptor_count(expected->pid) <= expected->descriptors;
}

/* Say everything; each connection ends by the daemon's own doing, and takes its descriptor along.
 */
static void say_all(dt_testcluster_t *tc, int port, int who)
{
    static speech_t speech;
    struct expected expected = {.pid = dt_testcluster_pid(tc, who)};
    char target[16];
    int held[HELD];
    expected.descriptors = descriptor_count(expected.pid);
    (void)snprintf(target, sizeof target, "%d", port);
    for (unsigned i = 0; i < HELD; i++) {
        held[i] = dt_rawpeer_connect(target);
        cr_assert_geq(held[i], 0);
        (void)!send(held[i], greeting()->bytes, greeting()->size * i / (HELD - 1), MSG_NOSIGNAL);
    }
    for (unsigned which = 0; which < SPEECH_COUNT; which++) {
        int fd = dt_rawpeer_connect(target);
        cr_assert_geq(fd, 0, "port %d, before speech %u", port, which);
        speech_make(which, &speech);
        for (size_t at = 0; at < speech.size;) { /* it may hang up before it has heard all */
            ssize_t sent = send(fd, speech.bytes + at, speech.size - at, MSG_NOSIGNAL);
            if (sent <= 0)
                break;
            at += (size_t)sent;
        }
        (void)shutdown(fd, SHUT_WR);
        cr_assert(dt_rawpeer_wait_closed(fd, PATIENCE), "port %d holds on after speech %u\n%s",
                  port, which, dt_testcluster_logs(tc));
        (void)close(fd);
    }
    for (unsigned i = 0; i < HELD; i++)
        (void)close(held[i]);
    cr_assert(dt_testcluster_wait(tc, has_let_go, &expected, PATIENCE),
              "port %d: descriptors are left, %d of %d", port, descriptor_count(expected.pid),
              expected.descriptors);
}

static void expect_page(int port)
{
    char command[256];
    (void)snprintf(command, sizeof command,
                   "printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' | "
                   "openssl s_client -quiet -connect 127.0.0.1:%d 2>/dev/null",
                   port);
    const char *const args[] = {"-c", command, NULL};
    dt_testrun_t run = dt_testrun_program("/bin/sh", args, NULL);
    cr_assert(run.out && strstr(run.out, "HTTP/1.1 401") == run.out, "%s", run.out);
    dt_testrun_fini(&run);
}

/* By its own connection, which uses the data port: 1 MiB there and back. */
static void expect_program(dt_tlscluster_t *c)
{
    enum { COUNT = 1 << 18 };
    static float is[COUNT], back[COUNT];
    dt_session_t *session = dt_tlscluster_connect(c, "direct", 1);
    dt_session_info_t info = {.struct_size = sizeof info};
    for (int i = 0; i < COUNT; i++)
        is[i] = (float)i;
    dt_tensor_t *x = dt_clienttest_f32(session, 1, (const int64_t[]){COUNT}, is);
    dt_clienttest_read(x, back, sizeof back);
    cr_assert_eq(memcmp(is, back, sizeof is), 0);
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    cr_assert_gt(info.direct_bytes, 0, "%s", info.detour);
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
}

Test(tls, that_is_none_ends_its_connection_and_nobody_else_s)
{
    dt_tlscluster_t c;
    char lines[1024];
    int kept[2], page = dt_testcluster_reserve_port(&kept[0]);
    int data = dt_testcluster_reserve_port(&kept[1]);
    dt_tlscluster_prepare(&c, 1);
    dt_temptree_write(&c.tree, "secret", "correct horse battery staple\n");
    (void)snprintf(lines, sizeof lines, "StatusListen=0.0.0.0:%d\nStatusSecret=%s\n", page,
                   dt_temptree_path(&c.tree, "secret"));
    c.controller_lines = lines;
    char worker[256];
    (void)snprintf(worker, sizeof worker, "Devices=ref\nEngines=1\nDataListen=127.0.0.1:%d\n",
                   data);
    dt_tlscluster_begin(&c, 1, worker);
    expect_program(&c);
    pid_t controller = dt_testcluster_pid(c.tc, CTRL), node = dt_testcluster_pid(c.tc, 0);
    say_all(c.tc, dt_testcluster_port(c.tc), CTRL);
    expect_program(&c);
    say_all(c.tc, page, CTRL);
    expect_page(page);
    say_all(c.tc, data, 0);
    expect_program(&c);
    cr_assert_eq(dt_testcluster_pid(c.tc, CTRL), controller);
    cr_assert_eq(dt_testcluster_pid(c.tc, 0), node);
    dt_tlscluster_stop(&c); /* they had not been started anew, and end well */
    (void)close(kept[0]);
    (void)close(kept[1]);
}

/* ---- who answers so ---- */

struct impostor {
    int fd;
    unsigned which;
    _Atomic unsigned heard;
};

static void *answer(void *arg)
{
    static speech_t speech;
    struct impostor *it = arg;
    for (;;) {
        int fd = accept4(it->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        speech_make(it->which++ % SPEECH_COUNT, &speech);
        (void)!send(fd, speech.bytes, speech.size, MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
        (void)dt_rawpeer_wait_closed(fd, PATIENCE);
        (void)close(fd);
        it->heard++;
    }
}

Test(tls, that_a_controller_speaks_badly_never_lets_a_program_in)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    struct impostor it = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    dt_temptree_t tree;
    dt_pki_pair_t ca;
    char to[32];
    pthread_t thread;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(it.fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(it.fd, 16), 0);
    cr_assert_eq(getsockname(it.fd, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(to, sizeof to, "127.0.0.1:%d", ntohs(address.sin_port));
    dt_temptree_init(&tree);
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    dt_temptree_write(&tree, "ca.pem", ca.certificate);
    (void)greeting();
    cr_assert_eq(pthread_create(&thread, NULL, answer, &it), 0);
    while (it.heard < SPEECH_COUNT) { /* it is dialled again and again meanwhile */
        dt_session_t *session = NULL;
        dt_error_t err = {0};
        const dt_connect_options_t options = {.struct_size = sizeof options,
                                              .address = to,
                                              .program = "test",
                                              .api_key = "dtk_0",
                                              .certificate_authority =
                                                  dt_temptree_path(&tree, "ca.pem"),
                                              .connect_timeout_ms = 300};
        cr_assert_neq(dt_connect(&options, &session, &err), DT_OK);
    }
    (void)shutdown(it.fd, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(it.fd);
    dt_pki_pair_fini(&ca);
    dt_temptree_fini(&tree);
}
