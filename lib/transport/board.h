/* The board of a session: memory that its engines on one host share to go in step.
 *
 * The agent makes it when it opens the session and says who is who: members are the session's
 * engines, on this host and on others. Each member of this host has a slot that it alone writes:
 * how far it is, where its buffers lie, and what poisons them. How far is one word that only rises,
 * (number of the exchange, phase), so there is nothing to reset and nobody can be a turn late.
 *
 * Waking: each engine sleeps on an eventfd of its own that its peers have. Who is going to sleep
 * says so in its slot, looks once more, and sleeps; who moves its word wakes those who said so.
 *
 * Trust. Engines believe nothing in the board that could move them outside of an arena: offsets are
 * read once and checked. A broken member can spoil its own session's exchanges, no more: every
 * session has a board of its own. The agent only writes here. */
#ifndef DT_TRANSPORT_BOARD_H
#define DT_TRANSPORT_BOARD_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/group.h"

#define DT_BOARD_MAGIC       UINT32_C(0x42445444) /* "DTDB" */
#define DT_BOARD_MEMBERS_MAX 512u
#define DT_BOARD_VDEVS_MAX   4096u
#define DT_BOARD_CAUSE_MAX   8192u
#define DT_BOARD_NOBODY      UINT16_MAX
#define DT_BOARD_NOWHERE     UINT64_MAX
#define DT_BOARD_QUIT        UINT64_MAX /* a word: this member has left */

/* Phases of an exchange, in its word. */
typedef enum dt_board_phase {
    DT_BOARD_PUBLISHED = 1,
    DT_BOARD_WAVE0 = 2,  /* what wave 1 reads is there */
    DT_BOARD_DONE = 3,   /* it reads and writes nothing of others any more */
    DT_BOARD_FAILED = 4, /* likewise; `text` says why. It stays so until all have seen it */
    DT_BOARD_ENDED = 5,  /* it knows how the exchange ended */
} dt_board_phase_t;

static inline uint64_t dt_board_word(uint64_t number, dt_board_phase_t phase)
{
    return number << 3 | phase;
}

/* What the agent says of a member. */
typedef struct dt_board_member {
    uint64_t arena_bytes; /* of its memfd; 0: on another host */
    uint32_t device;
    uint32_t host; /* alike on all hosts of the session */
    _Atomic uint32_t is_lost;
    char why[128]; /* it is lost, before is_lost is set; empty: it died */
    char node[64];
} dt_board_member_t;

typedef struct dt_board_slot {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint32_t is_asleep;
    uint32_t cause_bytes; /* 0: not poisoned */
    uint64_t cause_sequence;
    int32_t failed_code;         /* FAILED: a dt_status_t, and in words */
    _Atomic uint32_t has_groups; /* before its first word: its device can be in groups */
    dt_group_id_t group_id;      /* PUBLISHED by the first member of a group that is to be made */
    char text[400];
    uint8_t cause[DT_BOARD_CAUSE_MAX];
} dt_board_slot_t;

/* Offsets in the arena of the member that runs the vdev; NOWHERE: none. */
typedef struct dt_board_buffer {
    _Atomic uint64_t source, target;
} dt_board_buffer_t;

typedef struct dt_board {
    uint32_t magic;
    uint32_t member_count;
    dt_board_member_t members[DT_BOARD_MEMBERS_MAX];
    uint16_t member_of[DT_BOARD_VDEVS_MAX]; /* a vdev's member, or NOBODY */
    dt_board_buffer_t buffers[DT_BOARD_VDEVS_MAX];
    dt_board_slot_t slots[DT_BOARD_MEMBERS_MAX];
} dt_board_t;

/* Make an empty board: no members, every vdev nobody's.
 * Ownership: gives *ret_fd, close(), and *ret_board, dt_board_close().
 * Errors: LIMIT, NOMEM. Threads: any. */
DT_MUST_USE dt_status_t dt_board_create(int *ret_fd, dt_board_t **ret_board, dt_error_t *err);
/* Map a board. Ownership: borrows `fd`; gives *ret_board, dt_board_close().
 * Errors: INVALID (none, or of another version), as dt_memfd_map(). Threads: any. */
DT_MUST_USE dt_status_t dt_board_open(int fd, dt_board_t **ret_board, dt_error_t *err);
void dt_board_close(dt_board_t *board); /* NULL is fine */

/* A member, as it is entered. Borrowed for the call. */
typedef struct dt_board_entry {
    const char *node;
    uint32_t host, device;
    uint64_t arena_bytes; /* 0: on another host */
    const uint32_t *vdevs;
    uint32_t vdev_count;
} dt_board_entry_t;

/* Agent: enter one more member and its vdevs, before engines are told.
 * Errors: LIMIT (members, or a vdev's number), EXISTS (a vdev that has a member). */
DT_MUST_USE dt_status_t dt_board_add(dt_board_t *board, const dt_board_entry_t *entry,
                                     uint32_t *ret_member, dt_error_t *err);
/* Agent: a member is gone for good, or cannot be reached (`why`, else ""); wake the others then. */
void dt_board_lose(dt_board_t *board, uint32_t member, const char *why);

#endif
