/* An engine: the child process that runs operators for one device, and what it says to its agent.
 * The same binary, exec'ed as `dtorch-workerd engine ...` with the control socket at descriptor 3
 * and its page at
 * 4. It has no gRPC, no network, no keys but those of its links, and no files: it loads the
 * backends, installs the crash handler, gives up everything it does not need, says HELLO and serves
 * the sessions that it is given (engine_serve.h). Its death is told by the crash handler's message
 * first, by the end of the socket second, by its pidfd third. An agent's end ends its engines, by
 * PDEATHSIG and by the end of the socket. Not here: who starts and watches it (engines.h). */
#ifndef DT_WORKERD_ENGINE_H
#define DT_WORKERD_ENGINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_ENGINE_FD_CONTROL 3
#define DT_ENGINE_FD_PAGE    4
/* From here on what sessions need; engine_door.h has the agent's side of it. */
#define DT_ENGINE_FD_SETUP     5  /* dt_engine_setup_t, read-only; closed once it was read */
#define DT_ENGINE_FD_META      6  /* rings of the metadata thread; closed once it is mapped */
#define DT_ENGINE_FD_WAKE      7  /* eventfd: the executor sleeps on it */
#define DT_ENGINE_FD_BELL      8  /* eventfd: the agent watches it */
#define DT_ENGINE_FD_META_WAKE 9  /* eventfd: the metadata thread sleeps on it */
#define DT_ENGINE_FD_MOVE_WAKE 10 /* eventfd: the communication thread sleeps on it */
#define DT_ENGINE_FD_LAST      10

typedef enum dt_engine_message_kind {
    DT_ENGINE_MESSAGE_HELLO =
        1, /* engine: warm. value: dt_engine_sandbox_part_t set; text: what is missing */
    DT_ENGINE_MESSAGE_CRASH,   /* engine's signal handler. value: the signal */
    DT_ENGINE_MESSAGE_FAILED,  /* engine: cannot come up, it exits. text: why */
    DT_ENGINE_MESSAGE_EXIT,    /* agent: end */
    DT_ENGINE_MESSAGE_OPEN,    /* agent: serve a session. value: its instance; three descriptors:
                                  arena, channel, down rings (engine_channel.h); a fourth, the board
                                  (transport/board.h), where others serve it too; member: ours */
    DT_ENGINE_MESSAGE_CLOSE,   /* agent: free all that an instance has */
    DT_ENGINE_MESSAGE_CLOSED,  /* engine: it is free */
    DT_ENGINE_MESSAGE_REFUSED, /* engine: an instance is not served. text: why */
    DT_ENGINE_MESSAGE_WINDOW,  /* agent: the window of an instance's program, in place of an earlier
                                  one; its descriptor, or none: there is no window any more */
    DT_ENGINE_MESSAGE_NO_WINDOW, /* engine: the window of an instance cannot be used. text: why */
    DT_ENGINE_MESSAGE_PEER,  /* agent: how to reach another member of an instance on this host; its
                                arena, and the eventfd that wakes it */
    DT_ENGINE_MESSAGE_LINK,  /* agent: likewise on another host; a connected socket */
    DT_ENGINE_MESSAGE_SETUP, /* agent: the setup that was promised; its descriptor */
} dt_engine_message_kind_t;

/* How a link's key is used. */
typedef enum dt_engine_secret {
    DT_ENGINE_SECRET_NONE, /* there is none: plain text */
    DT_ENGINE_SECRET_CLIENT,
    DT_ENGINE_SECRET_SERVER,
} dt_engine_secret_t;

typedef struct dt_engine_message {
    uint32_t kind; /* dt_engine_message_kind_t */
    int32_t value;
    uint32_t window;     /* WINDOW: its number */
    uint32_t member;     /* OPEN, PEER: of the board */
    uint32_t area_bytes; /* WINDOW: where this engine puts what is fetched; 0: it has no area */
    uint64_t area_place;
    uint8_t key[32];           /* LINK */
    dt_engine_secret_t secret; /* LINK */
    char text[232];            /* NUL-terminated */
} dt_engine_message_t;

/* The parts of the sandbox; the kernel may lack some. */
typedef enum dt_engine_sandbox_part {
    DT_ENGINE_SANDBOX_BASE = 1 << 0, /* no_new_privs, not dumpable, limits, no capabilities */
    DT_ENGINE_SANDBOX_LANDLOCK =
        1 << 1, /* no path, no TCP, no abstract socket, no signal to others */
    DT_ENGINE_SANDBOX_SECCOMP = 1 << 2, /* only the calls that a working engine makes */
    DT_ENGINE_SANDBOX_ALL = 7,
} dt_engine_sandbox_part_t;

/* Run as an engine: argv[1] is "engine", see engine_main.c for the rest. Returns the exit status.
 * Threads: main thread, before any other exists. */
int dt_engine_main(int argc, char **argv);

/* Give up what an engine does not need. Not undoable. A part that this kernel lacks is left out and
 * named in `missing`; whatever else goes wrong is an error. Units: `heap_bytes` bounds private
 * memory; 0 sets no bound. Ownership: borrows `missing` (empty text when nothing is). Errors:
 * DENIED (a part that exists refused). Threads: any, all threads of the process are bound.
 * Blocking: never. */
DT_MUST_USE dt_status_t dt_engine_sandbox_enter(uint64_t heap_bytes, uint32_t *ret_parts,
                                                char *missing, size_t missing_size,
                                                dt_error_t *err);

/* Enter the sandbox, try what must not work, print a line for each attempt on stdout, and end the
 * process: with 0 when all that must be refused was refused, 1 otherwise. */
void dt_engine_probe(uint64_t heap_bytes) __attribute__((noreturn));

#endif
