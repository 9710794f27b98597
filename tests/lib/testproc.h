/* Child processes of a test: daemons with a readiness socket, and programs that run to their end.
 * A child dies with the test (PDEATHSIG); what it leaves behind is adopted (child subreaper), so
 * that it can be found. Every program that is started gets a clean environment. */
#ifndef DT_TESTS_LIB_TESTPROC_H
#define DT_TESTS_LIB_TESTPROC_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DT_TESTPROC_PATH_MAX 512
#define DT_TESTPROC_ENV_MAX  32

/* Strings for execve, grown by dt_testproc_env(); each is freed by dt_testproc_env_fini(). */
typedef struct dt_testproc_env {
    char *items[DT_TESTPROC_ENV_MAX + 1];
    int count;
} dt_testproc_env_t;

typedef struct dt_testproc {
    pid_t pid;     /* 0: never started */
    int pidfd;     /* -1: not running */
    int notify_fd; /* its NOTIFY_SOCKET; -1: none */
    int code;      /* exit code, or 128 + signal, once it ended */
    bool is_ready; /* READY=1 came */
    bool is_running;
    char status[256]; /* the last STATUS= */
} dt_testproc_t;

/* Start with PATH, LANG, LD_LIBRARY_PATH and the sanitizers' options of the test, whose reports go
 * to REPORT.PID (NULL: where the test's own go). */
void dt_testproc_env_init(dt_testproc_env_t *env, const char *report);
void dt_testproc_env_add(dt_testproc_env_t *env, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void dt_testproc_env_fini(dt_testproc_env_t *env);

/* Start a program with both outputs in files (appended; NULL: as the test's own). `hosts`, if not
 * NULL, stands in place of /etc/hosts for it (needs root). Ends the test when it cannot. */
void dt_testproc_spawn(dt_testproc_t *proc, const char *path, const char *const *argv,
                       const dt_testproc_env_t *env, const char *out, const char *err,
                       const char *hosts);

/* Open the socket for notifications before spawn; the path goes into NOTIFY_SOCKET. */
void dt_testproc_listen(dt_testproc_t *proc, const char *path);

/* Until READY=1 or the end of the process. False: neither within patience, or it ended. */
bool dt_testproc_wait_ready(dt_testproc_t *proc, int64_t patience_ms);
bool dt_testproc_wait_exit(dt_testproc_t *proc, int64_t patience_ms);
void dt_testproc_close(dt_testproc_t *proc); /* kills it if it runs still */

/* Adopt orphans from now on. */
void dt_testproc_adopt_orphans(void);
/* Wait until the test has no child process; all that end are reaped. Returns how many stay, and
 * prints each. */
int dt_testproc_orphans_left(int64_t patience_ms);

/* Print to stderr and abort: what a test cannot go on without. */
void dt_test_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* A whole file as text. Gives, free(); NULL when it cannot be read. */
char *dt_test_read_file(const char *path);
void dt_test_write_file(const char *path, const char *text);
int64_t dt_test_now_ms(void);  /* monotonic */
void dt_test_pause_ms(int ms); /* between two looks at a condition, never instead of one */

#endif
