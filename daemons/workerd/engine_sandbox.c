/* What an engine gives up. The order matters: backends are loaded before (they open files), seccomp
 * is last (it refuses the calls that the other parts need). A call that is not on the list gets
 * EPERM and not a kill, because libraries probe and live on. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine.h"

#define DT_ENGINE_FILES_MAX 1024 /* a wake for each peer of each session */

#if defined(__x86_64__)
#define DT_ENGINE_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define DT_ENGINE_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#define DT_ENGINE_AUDIT_ARCH 0
#endif

/* A sanitizer's shadow memory is private memory too: with a bound on it nothing could be allocated.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DT_ENGINE_HAS_SHADOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DT_ENGINE_HAS_SHADOW 1
#endif
#endif
#ifndef DT_ENGINE_HAS_SHADOW
#define DT_ENGINE_HAS_SHADOW 0
#endif

/* The steady state of LibTorch and of our own loop. W+X memory stays allowed: oneDNN's JIT needs
 * it. */
static const uint32_t allowed_calls[] = {
#ifdef SYS_poll
    SYS_poll,
#endif
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_pread64,
    SYS_lseek,
    SYS_close,
    SYS_fstat,
    SYS_fallocate,
    SYS_fcntl,
    SYS_dup,
    SYS_ppoll,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_mmap,
    SYS_mprotect,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_membarrier,
    SYS_futex,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_exit,
    SYS_exit_group,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_gettid,
    SYS_getpid,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_restart_syscall,
    SYS_getrandom,
    SYS_getrusage,
    SYS_sysinfo,
};
#define DT_ENGINE_CALL_COUNT (sizeof allowed_calls / sizeof allowed_calls[0])

static void add_missing(char *missing, size_t size, const char *part, const char *why)
{
    size_t at = strlen(missing);
    (void)snprintf(missing + at, size - at, "%s%s (%s)", at ? ", " : "", part, why);
}

static dt_status_t fail_errno(dt_error_t *err, const char *what)
{
    int code = errno;
    return dt_fail(err, DT_ERR_DENIED, "errno", code, "%s: %s", what, strerror(code));
}

/* A stricter limit that came from the agent's own environment stays: raising it is refused. */
static dt_status_t limit_to(int which, rlim_t value, dt_error_t *err)
{
    struct rlimit limit;
    if (getrlimit(which, &limit))
        return fail_errno(err, "getrlimit");
    limit.rlim_max = value < limit.rlim_max ? value : limit.rlim_max;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(which, &limit) ? fail_errno(err, "setrlimit") : DT_OK;
}

static dt_status_t limits_enter(uint64_t heap_bytes, dt_error_t *err)
{
    const struct {
        int which;
        rlim_t value;
    } limits[] = {
        {RLIMIT_NOFILE, DT_ENGINE_FILES_MAX},
        {RLIMIT_CORE, 1}, /* not 0, which a core_pattern that is a pipe ignores */
        {RLIMIT_MEMLOCK, 0},
        /* RLIMIT_AS cannot be used (arenas are sparse), FSIZE 0 kills when stderr is a file, NPROC
         * counts the whole user */
    };
    dt_status_t status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < sizeof limits / sizeof limits[0]; i++)
        status = limit_to(limits[i].which, limits[i].value, err);
    if (status == DT_OK && heap_bytes > 0 && !DT_ENGINE_HAS_SHADOW)
        status = limit_to(RLIMIT_DATA, heap_bytes, err);
    return status;
}

static dt_status_t capabilities_drop(dt_error_t *err)
{
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } none[2] = {{0}}, have[2];
    for (int cap = 0; cap < 64; cap++)
        (void)prctl(PR_CAPBSET_DROP, cap, 0, 0,
                    0); /* refused without CAP_SETPCAP, and needless then */
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    /* A unit's filter may refuse capset, where there is nothing to drop either. */
    if (syscall(SYS_capget, &header, have) == 0 && memcmp(have, none, sizeof none) == 0)
        return DT_OK;
    return syscall(SYS_capset, &header, none) ? fail_errno(err, "capset") : DT_OK;
}

/* A ruleset that handles all rights this kernel knows and has no rule allows nothing. The structure
 * grew with the kernel; ours is the newest known here, cut to what the running one takes. */
static dt_status_t landlock_enter(bool *ret_is_on, char *missing, size_t size, dt_error_t *err)
{
    struct {
        uint64_t fs, net, scoped;
    } rights = {.net = 3, .scoped = 3};
    long abi =
        syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi < 1) {
        add_missing(missing, size, "Landlock", strerror(errno));
        return DT_OK;
    }
    rights.fs = abi >= 5 ? 0xffff : abi >= 3 ? 0x7fff : abi == 2 ? 0x3fff : 0x1fff;
    size_t known = abi >= 6 ? sizeof rights : abi >= 4 ? 16 : 8;
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rights, known, 0);
    if (fd < 0)
        return fail_errno(err, "landlock_create_ruleset");
    long rc = syscall(SYS_landlock_restrict_self, fd, 0);
    int code = errno;
    (void)close(fd);
    errno = code;
    if (rc)
        return fail_errno(err, "landlock_restrict_self");
    *ret_is_on = true;
    return DT_OK;
}

static const struct sock_filter load_nr =
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
static const struct sock_filter load_arch =
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
static const struct sock_filter load_arg0 =
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
static const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

static struct sock_filter answer(uint32_t code)
{
    return (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code);
}

static struct sock_filter skip_unless(uint16_t test, uint32_t value, uint8_t skip)
{
    return (struct sock_filter)BPF_JUMP((uint16_t)(BPF_JMP | test | BPF_K), value, 0, skip);
}

static unsigned short filter_build(struct sock_filter *filter)
{
    unsigned short n = 0;
    filter[n++] = load_arch;
    filter[n++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, DT_ENGINE_AUDIT_ARCH, 1, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[n++] = load_nr;
    for (size_t i = 0; i < DT_ENGINE_CALL_COUNT; i++) {
        filter[n++] = skip_unless(BPF_JEQ, allowed_calls[i], 1);
        filter[n++] = allow;
    }
    /* A signal may go to this process only: the crash handler raises its own again. */
    filter[n++] = skip_unless(BPF_JEQ, SYS_tgkill, 4);
    filter[n++] = load_arg0;
    filter[n++] = skip_unless(BPF_JEQ, (uint32_t)getpid(), 1);
    filter[n++] = allow;
    filter[n++] = answer(EPERM);
    /* clone3 cannot be looked into: with ENOSYS glibc falls back to clone, which may make threads
     * only. */
    filter[n++] = skip_unless(BPF_JEQ, SYS_clone3, 1);
    filter[n++] = answer(ENOSYS);
    filter[n++] = skip_unless(BPF_JEQ, SYS_clone, 3);
    filter[n++] = load_arg0;
    filter[n++] = skip_unless(BPF_JSET, CLONE_THREAD, 1);
    filter[n++] = allow;
    filter[n++] = answer(EPERM);
    return n;
}

static dt_status_t seccomp_enter(bool *ret_is_on, char *missing, size_t size, dt_error_t *err)
{
    struct sock_filter filter[2 * DT_ENGINE_CALL_COUNT + 24];
    if (DT_ENGINE_AUDIT_ARCH == 0) {
        add_missing(missing, size, "seccomp", "no list of calls for this architecture");
        return DT_OK;
    }
    struct sock_fprog program = {filter_build(filter), filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        if (errno != ENOSYS && errno != EINVAL)
            return fail_errno(err, "seccomp");
        add_missing(missing, size, "seccomp", strerror(errno));
        return DT_OK;
    }
    *ret_is_on = true;
    return DT_OK;
}

dt_status_t dt_engine_sandbox_enter(uint64_t heap_bytes, uint32_t *ret_parts, char *missing,
                                    size_t missing_size, dt_error_t *err)
{
    bool has_landlock = false;
    bool has_seccomp = false;
    missing[0] = '\0';
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return fail_errno(err, "prctl");
    DT_TRY(limits_enter(heap_bytes, err));
    DT_TRY(capabilities_drop(err));
    DT_TRY(landlock_enter(&has_landlock, missing, missing_size, err));
    DT_TRY(seccomp_enter(&has_seccomp, missing, missing_size, err));
    *ret_parts = DT_ENGINE_SANDBOX_BASE | (has_landlock ? DT_ENGINE_SANDBOX_LANDLOCK : 0) |
                 (has_seccomp ? DT_ENGINE_SANDBOX_SECCOMP : 0);
    return DT_OK;
}
