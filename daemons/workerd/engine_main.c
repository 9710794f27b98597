/* The engine's own main: `dtorch-workerd engine ID HEAP_BYTES AGENT_PID CGROUP`.
 * CGROUP is a folder of the cgroup file system, or "-". The order is the sandbox's: join the
 * cgroup, open what must be open, load, install the crash handler (a library may install its own
 * while it loads), then give everything up. The main thread is the executor. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "engine.h"
#include "engine_meta.h"
#include "engine_serve.h"
#include "shm/engine_page.h"
#include "shm/seqpacket.h"

#define DT_ENGINE_CRASH_STACK_BYTES 65536

typedef struct engine_args {
    int64_t id;
    int64_t heap_bytes;
    int64_t agent_pid;
    const char *cgroup; /* NULL: stay where the agent is */
} engine_args_t;

/* The crash handler has no argument, so the page is a static. */
static dt_engine_page_t *crash_page;
static char crash_stack[DT_ENGINE_CRASH_STACK_BYTES];

/* Tell the agent before the kernel tears the memory down, which takes long, then die by the same
 * one: SA_RESETHAND has put the default back. */
static void on_crash(int signo, siginfo_t *info, void *context)
{
    (void)context;
    const dt_clock_t *clock = dt_clock_system();
    dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_CRASH, .value = signo};
    const char *asked = dt_engine_meta_running(); /* else it is the executor's operator */
    if (asked[0])
        dt_engine_page_op_begin(crash_page, asked, dt_clock_mono_ns(clock));
    dt_engine_page_crashed(crash_page, signo, (uint64_t)(uintptr_t)info->si_addr,
                           dt_clock_mono_ns(clock));
    (void)dt_seqpacket_send(DT_ENGINE_FD_CONTROL, &message, sizeof message, NULL, 0, NULL);
    (void)raise(signo);
}

static dt_status_t crash_handler_install(dt_error_t *err)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    const stack_t stack = {.ss_sp = crash_stack, .ss_size = sizeof crash_stack};
    struct sigaction action = {.sa_sigaction = on_crash,
                               .sa_flags =
                                   (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER)};
    (void)sigemptyset(&action.sa_mask);
    if (sigaltstack(&stack, NULL))
        return dt_fail(err, DT_ERR_INTERNAL, "errno", errno, "sigaltstack: %s", strerror(errno));
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], &action, NULL))
            return dt_fail(err, DT_ERR_INTERNAL, "errno", errno, "sigaction: %s", strerror(errno));
    return DT_OK;
}

static dt_status_t args_parse(int argc, char **argv, engine_args_t *ret_args, dt_error_t *err)
{
    engine_args_t args = {0};
    if (argc != 6 || dt_str_to_i64(argv[2], &args.id) != DT_OK ||
        dt_str_to_i64(argv[3], &args.heap_bytes) != DT_OK || args.heap_bytes < 0 ||
        dt_str_to_i64(argv[4], &args.agent_pid) != DT_OK)
        return dt_fail(err, DT_ERR_INVALID, "dt", argc,
                       "an engine is started by its agent, not by hand");
    if (!dt_str_is_equal(argv[5], "-"))
        args.cgroup = argv[5];
    *ret_args = args;
    return DT_OK;
}

/* Whatever kills the agent kills this process. The agent may be gone already: then its number is no
 * longer our parent's. */
static dt_status_t die_with_agent(int64_t agent_pid, dt_error_t *err)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
        return dt_fail(err, DT_ERR_INTERNAL, "errno", errno, "PR_SET_PDEATHSIG: %s",
                       strerror(errno));
    if (getppid() != agent_pid)
        return dt_fail(err, DT_ERR_PEER, "dt", getppid(), "the agent is gone");
    return DT_OK;
}

static dt_status_t cgroup_join(const char *cgroup, dt_error_t *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    int fd = length < (int)sizeof path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    ssize_t wrote = fd < 0 ? -1 : write(fd, "0", 1);
    int code = errno;
    if (fd >= 0)
        (void)close(fd);
    if (wrote != 1)
        return dt_fail(err, DT_ERR_DENIED, "errno", code, "join %s: %s", path, strerror(code));
    return DT_OK;
}

static void say(dt_engine_message_kind_t kind, int32_t value, const char *text)
{
    dt_engine_message_t message = {.kind = (uint32_t)kind, .value = value};
    (void)dt_str_copy(message.text, sizeof message.text, text);
    (void)dt_seqpacket_send(DT_ENGINE_FD_CONTROL, &message, sizeof message, NULL, 0, NULL);
}

static dt_status_t come_up(const engine_args_t *args, dt_engine_host_t **ret_host,
                           uint32_t *ret_parts, char *missing, size_t size, dt_error_t *err)
{
    dt_engine_page_t *page;
    (void)prctl(PR_SET_NAME, "dtorch-engine", 0, 0, 0);
    (void)setsid(); /* Ctrl-C on the agent's terminal is the agent's affair */
    DT_TRY(die_with_agent(args->agent_pid, err));
    if (close_range(DT_ENGINE_FD_LAST + 1, ~0U, 0))
        return dt_fail(err, DT_ERR_INTERNAL, "errno", errno, "close_range: %s", strerror(errno));
    if (args->cgroup)
        DT_TRY(cgroup_join(args->cgroup, err));
    DT_TRY(dt_engine_page_open(DT_ENGINE_FD_PAGE, &page, err));
    (void)close(DT_ENGINE_FD_PAGE); /* the map stays */
    crash_page = page;
    DT_TRY(dt_engine_host_open(page, ret_host, err));
    DT_TRY(crash_handler_install(err));
    DT_TRY(dt_engine_sandbox_enter((uint64_t)args->heap_bytes, ret_parts, missing, size, err));
    atomic_store_explicit(&page->state, DT_ENGINE_STATE_WARM, memory_order_release);
    return DT_OK;
}

int dt_engine_main(int argc, char **argv)
{
    char missing[192] = "";
    uint32_t parts = 0;
    engine_args_t args = {0};
    dt_engine_host_t *host;
    dt_error_t err = {0};
    if (args_parse(argc, argv, &args, &err) != DT_OK) {
        (void)fprintf(stderr, "dtorch-workerd: %s\n", err.text);
        return 64;
    }
    if (come_up(&args, &host, &parts, missing, sizeof missing, &err) != DT_OK) {
        say(DT_ENGINE_MESSAGE_FAILED, 0, err.text);
        return 1;
    }
    say(DT_ENGINE_MESSAGE_HELLO, (int32_t)parts, missing);
    dt_engine_host_serve(host);
    _exit(0); /* no exit handlers: in the sandbox they could do nothing but fail */
}
