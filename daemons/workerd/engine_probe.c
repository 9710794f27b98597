/* Try from inside the sandbox what an engine must not be able to do. W+X memory is tried too, and
 * is expected to work: oneDNN's JIT needs it. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine.h"

static bool try_open_read(void)
{
    return open("/etc/hostname", O_RDONLY | O_CLOEXEC) >= 0;
}

static bool try_open_write(void)
{
    return open(".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600) >= 0;
}

static bool try_reopen(void)
{
    return open("/proc/self/fd/2", O_RDWR | O_CLOEXEC) >= 0;
}

static bool try_socket_inet(void)
{
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0;
}

static bool try_socket_unix(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0;
}

static bool try_kill_parent(void)
{
    return kill(getppid(), 0) == 0 || kill(-1, 0) == 0;
}

static bool try_ptrace_parent(void)
{
    return ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0;
}

static bool try_read_parent(void)
{
    char bytes[8];
    struct iovec to = {bytes, sizeof bytes};
    struct iovec from = {&to, sizeof bytes};
    return process_vm_readv(getppid(), &to, 1, &from, 1, 0) >= 0 || errno == EFAULT;
}

static bool try_memfd(void)
{
    return memfd_create("probe", MFD_CLOEXEC) >= 0;
}

static bool try_unshare(void)
{
    return unshare(CLONE_NEWUSER) == 0;
}

static bool try_setuid(void)
{
    return setuid(getuid() == 0 ? 1 : 0) == 0;
}

static bool try_core_size(void)
{
    return setrlimit(RLIMIT_CORE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0;
}

static bool try_new_process(void)
{
    long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    return child > 0;
}

static bool try_exec(void)
{
    char *argv[] = {NULL, NULL};
    char *env[] = {NULL};
    (void)execve("/proc/self/exe", argv, env);
    return errno != EPERM && errno != EACCES; /* had it worked, nobody would be here to tell */
}

static bool try_wx_memory(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0) != MAP_FAILED;
}

static const struct {
    const char *what;
    bool (*attempt)(void);
    bool is_allowed;
} probes[] = {
    {"open a file for reading", try_open_read, false},
    {"create a file", try_open_write, false},
    {"open a descriptor again", try_reopen, false},
    {"make an internet socket", try_socket_inet, false},
    {"make a unix socket", try_socket_unix, false},
    {"signal another process", try_kill_parent, false},
    {"trace the agent", try_ptrace_parent, false},
    {"read the agent's memory", try_read_parent, false},
    {"make shared memory", try_memfd, false},
    {"make a namespace", try_unshare, false},
    {"change the user", try_setuid, false},
    {"raise a limit", try_core_size, false},
    {"make a process", try_new_process, false},
    {"run a program", try_exec, false},
    {"map memory to write and execute", try_wx_memory, true},
};

void dt_engine_probe(uint64_t heap_bytes)
{
    char missing[192];
    uint32_t parts = 0;
    int broken = 0;
    dt_error_t err;
    if (dt_engine_sandbox_enter(heap_bytes, &parts, missing, sizeof missing, &err) != DT_OK) {
        printf("sandbox: %s\n", err.text);
        (void)fflush(stdout);
        _exit(1);
    }
    printf("sandbox: %s%s\n", missing[0] ? "without " : "complete", missing);
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        bool worked = probes[i].attempt();
        bool is_bad = worked && !probes[i].is_allowed;
        broken += is_bad;
        printf("%s: %s%s\n", probes[i].what, worked ? "works" : "refused",
               is_bad ? ", must not" : "");
    }
    (void)fflush(stdout);
    _exit(broken ? 1 : 0); /* exit handlers could do nothing in here but fail */
}
