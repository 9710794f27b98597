/* The datagrams that lib/sysd sends, as a service manager and a journald would receive them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strings.h"
#include "lib/temptree.h"
#include "sysd/sysd.h"

TestSuite(sysd_datagrams, .timeout = 600);

static dt_temptree_t tree;
static char path[512];
static int receiver = -1;
static char datagram[64 * 1024];

static void setup(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    dt_temptree_init(&tree);
    (void)dt_str_copy(path, sizeof path, dt_temptree_path(&tree, "socket"));
    cr_assert(dt_str_copy(address.sun_path, sizeof address.sun_path, path));
    receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert_eq(bind(receiver, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(setenv("NOTIFY_SOCKET", path, 1), 0);
}

static void cleanup(void)
{
    dt_sysd_log_fini();
    (void)close(receiver);
    dt_temptree_fini(&tree);
}

/* The next datagram as text, or "" when there is none. */
static const char *next(void)
{
    ssize_t got = recv(receiver, datagram, sizeof datagram - 1, 0);
    datagram[got > 0 ? got : 0] = '\0';
    return datagram;
}

Test(sysd_datagrams, notifications_are_what_the_manager_expects, .init = setup, .fini = cleanup)
{
    dt_error_t err;
    cr_assert_eq(dt_sysd_ready("serving 3 nodes", &err), DT_OK, "%s", err.text);
    cr_assert_str_eq(next(), "READY=1\nSTATUS=serving 3 nodes");
    cr_assert_eq(dt_sysd_ready(NULL, &err), DT_OK);
    cr_assert_str_eq(next(), "READY=1");
    cr_assert_eq(dt_sysd_status(&err, "replaying %d %%", 40), DT_OK);
    cr_assert_str_eq(next(), "STATUS=replaying 40 %");
    cr_assert_eq(dt_sysd_reloading(1234567, &err), DT_OK);
    cr_assert_str_eq(next(), "RELOADING=1\nMONOTONIC_USEC=1234");
    cr_assert_eq(dt_sysd_extend_timeout(2 * DT_CLOCK_SECOND_NS, &err), DT_OK);
    cr_assert_str_eq(next(), "EXTEND_TIMEOUT_USEC=2000000");
    cr_assert_eq(dt_sysd_watchdog_feed(&err), DT_OK);
    cr_assert_str_eq(next(), "WATCHDOG=1");
    cr_assert_eq(dt_sysd_stopping("bye", &err), DT_OK);
    cr_assert_str_eq(next(), "STOPPING=1\nSTATUS=bye");
}

Test(sysd_datagrams, a_status_cannot_smuggle_in_an_assignment, .init = setup, .fini = cleanup)
{
    dt_error_t err;
    cr_assert_eq(dt_sysd_status(&err, "node %s", "x\nREADY=1"), DT_OK);
    cr_assert_str_eq(next(), "STATUS=node x READY=1");
}

Test(sysd_datagrams, a_long_status_is_cut, .init = setup, .fini = cleanup)
{
    static char text[3 * DT_SYSD_NOTIFY_MAX];
    dt_error_t err;
    memset(text, 'x', sizeof text - 1);
    cr_assert_eq(dt_sysd_ready(text, &err), DT_OK);
    cr_assert_eq(strlen(next()), DT_SYSD_NOTIFY_MAX - 1);
}

Test(sysd_datagrams, abstract_sockets_work_too, .init = setup, .fini = cleanup)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[64];
    dt_error_t err;
    (void)snprintf(name, sizeof name, "@dtorch-test-%d", (int)getpid());
    memcpy(address.sun_path + 1, name + 1, strlen(name + 1));
    (void)close(receiver);
    receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    cr_assert_eq(bind(receiver, (struct sockaddr *)&address, size), 0);
    cr_assert_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    cr_assert_eq(dt_sysd_watchdog_feed(&err), DT_OK, "%s", err.text);
    cr_assert_str_eq(next(), "WATCHDOG=1");
}

Test(sysd_datagrams, a_manager_that_does_not_read_never_blocks_us, .init = setup, .fini = cleanup)
{
    dt_error_t err;
    dt_status_t status = DT_OK;
    for (int i = 0; i < 100000 && status == DT_OK; i++)
        status = dt_sysd_watchdog_feed(&err);
    cr_assert_eq(status, DT_ERR_PEER);
    cr_assert_eq(err.source_code, EAGAIN);
}

Test(sysd_datagrams, log_lines_reach_the_journal_with_their_fields, .init = setup, .fini = cleanup)
{
    cr_assert(dt_sysd_log_init_for_test("dtorch-test", path));
    dt_log_warn("node lost", DT_LOG_S("node", "gpu\n7"), DT_LOG_I("silent_ms", 900),
                DT_LOG_ID("0123456789abcdef0123456789abcdef"));
    const char *text = next();
    const char *wanted[] = {"MESSAGE=node lost node=\"gpu\\n7\" silent_ms=900\n",
                            "\nPRIORITY=4\n",
                            "\nSYSLOG_IDENTIFIER=dtorch-test\n",
                            "\nDTORCH_EVENT=node lost\n",
                            "\nDTORCH_NODE=gpu\\n7\n",
                            "\nDTORCH_SILENT_MS=900\n",
                            "\nMESSAGE_ID=0123456789abcdef0123456789abcdef\n"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_assert(strstr(text, wanted[i]), "%s is not in:\n%s", wanted[i], text);
}

/* Fill a socket that nobody reads, by the same debug line: its bucket holds thousands. */
static void fill_journal(void)
{
    for (int i = 0; i < 2000; i++)
        dt_log_debug("move", DT_LOG_I("n", i));
}

Test(sysd_datagrams, a_journal_that_does_not_read_costs_lines_and_they_are_counted, .init = setup,
     .fini = cleanup)
{
    int count = 0;
    cr_assert(dt_sysd_log_init_for_test("dtorch-test", path));
    dt_log_set_level(DT_LOG_DEBUG);
    fill_journal();
    while (*next())
        count++;
    cr_assert(count > 0 && count < 2000, "%d", count);
    char lost[64];
    (void)snprintf(lost, sizeof lost, "\nDTORCH_LOST=%d\n", 2000 - count);
    dt_log_err("after");
    cr_assert(strstr(next(), lost), "%s is not in:\n%s", lost, datagram);
    dt_log_err("again");
    cr_assert(!strstr(next(), "DTORCH_LOST"));
}
