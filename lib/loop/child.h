/* Child processes, told of their end by pidfd.
 *
 * States: running, exited (the callback has run), freed. A child gets the descriptors that are
 * listed and no others, default signal dispositions, an empty signal mask, and /dev/null as stdin
 * unless listed. The only caller of fork() in the tree. Does not: restart anything, keep output. */
#ifndef DT_LOOP_CHILD_H
#define DT_LOOP_CHILD_H
#include <stddef.h>
#include <sys/types.h>

#include "loop/loop.h"

#define DT_CHILD_FD_MAX 32 /* descriptors passed to one child */

typedef struct dt_child dt_child_t;

typedef struct dt_child_fd {
    int fd;     /* in this process; stays open here */
    int target; /* its number in the child, 0..1023, each once */
} dt_child_fd_t;

typedef struct dt_child_exit {
    bool is_signal; /* ended by a signal */
    int code;       /* exit status, or the signal's number */
    bool is_core;   /* a core was dumped */
} dt_child_exit_t;

typedef struct dt_child_options {
    const char *path;         /* of the program; no search in PATH */
    char *const *argv;        /* NULL-terminated, argv[0] included */
    char *const *envp;        /* NULL-terminated; NULL: this process's environment */
    const dt_child_fd_t *fds; /* stdout and stderr are kept as they are unless listed */
    size_t fd_count;
    int parent_death_signal; /* sent to the child when the spawning thread ends; 0: none */
    bool new_session;        /* setsid(): signals of the terminal do not reach it */
} dt_child_options_t;

/* Start a child. `exited` runs once on the loop, when the child has ended and was reaped.
 * Ownership: borrows all; gives *ret_child, free with dt_child_free(), in `exited` too.
 * Errors: NOT_FOUND (no such program), DENIED, INVALID (too many descriptors), NOMEM, AGAIN (no
 * process or descriptor left); the exec itself has succeeded when DT_OK is returned.
 * Threads: loop only. Blocking: for the child's exec, about 1 ms. */
DT_MUST_USE dt_status_t dt_child_spawn(dt_loop_t *loop, const dt_child_options_t *options,
                                       void (*exited)(void *arg, const dt_child_exit_t *exit),
                                       void *arg, dt_child_t **ret_child, dt_error_t *err);
pid_t dt_child_pid(const dt_child_t *child);
int dt_child_pidfd(const dt_child_t *child); /* stays the child's; -1 once it was reaped */
/* Send a signal; never hits another process. NOT_FOUND once the child was reaped. */
dt_status_t dt_child_kill(dt_child_t *child, int signum);
/* Forget a child. One that still runs gets SIGKILL and is reaped later by the loop; `exited` does
 * not run. NULL is fine. */
void dt_child_free(dt_child_t *child);

#endif
