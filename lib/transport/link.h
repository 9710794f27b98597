/* Bytes between two engines of a session on different hosts: frames on a stream socket that their
 * agents connected. A frame is a head of DT_LINK_HEAD_BYTES, little-endian, and a body:
 *
 *    0 u32 magic    "DTXF"
 *    4 u8  kind     1 WORD, 2 DATA
 *    5 u8  phase    WORD: 1 published, 3 done, 4 failed, 5 ended (2 is for one host only)
 *    6 u8  wave     DATA: 0, 1
 *    7 u8  0
 *    8 u64 number   of the exchange, below 2^60
 *   16 u64 sequence WORD published: of the cause; DATA: 0
 *   24 i32 code     WORD failed: a status, -1 to -13
 *   28 u32 from     DATA: vdev
 *   32 u32 to       DATA: vdev
 *   36 u32 part     DATA: which contribution, if parts are combined
 *   40 u32 size     of the body, at most DT_LINK_BODY_MAX
 *   44 u32 0
 *
 * Body: DATA the box in row-major order; WORD published the cause that poisons the exchange, or
 * nothing; WORD failed its text. Both sides list the boxes of an exchange in the same order, so
 * each DATA says what is expected anyway; another one breaks the link. Nothing is read ahead of
 * what bounded room can take, so a peer can make us hold DT_LINK_AHEAD pieces, no more. With a
 * secret the frames are inside TLS (pki/tls.h). */
#ifndef DT_TRANSPORT_LINK_H
#define DT_TRANSPORT_LINK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pki/tls.h"
#include "transport/exchange_internal.h"
#include "transport/transport.h"

#define DT_LINK_MAGIC      UINT32_C(0x46585444) /* "DTXF" */
#define DT_LINK_HEAD_BYTES 48u
#define DT_LINK_BODY_MAX   DT_EXCHANGE_PIECE_BYTES
#define DT_LINK_TEXT_MAX   400u
#define DT_LINK_AHEAD      8u /* pieces that came and were not used */

typedef enum dt_link_kind {
    DT_LINK_WORD = 1,
    DT_LINK_DATA = 2,
} dt_link_kind_t;

typedef struct dt_link_head {
    uint8_t kind;  /* dt_link_kind_t */
    uint8_t phase; /* WORD: dt_board_phase_t */
    uint8_t wave;
    uint64_t number;
    uint64_t sequence;
    int32_t code;
    uint32_t from, to, part;
    uint32_t size;
} dt_link_head_t;

void dt_link_put(uint8_t *bytes, const dt_link_head_t *head); /* DT_LINK_HEAD_BYTES */
/* False: no head, or one that breaks a bound. */
bool dt_link_get(const uint8_t *bytes, dt_link_head_t *ret_head);

/* One side of a link. */
typedef struct dt_link {
    int fd;
    dt_tls_t *tls;  /* NULL: plain */
    bool is_broken; /* it ended, or broke the rules; what came before counts */
    /* What the peer has said. */
    uint64_t word;
    uint64_t cause_sequence;
    uint32_t cause_bytes;
    int32_t failed_code;
    uint8_t *cause; /* (DT_TRANSPORT_CAUSE_MAX) */
    char text[DT_LINK_TEXT_MAX];
    /* Coming in. */
    uint8_t head_bytes[DT_LINK_HEAD_BYTES];
    uint32_t head_len;
    dt_link_head_t head;
    uint8_t *body; /* where it goes; NULL: nowhere */
    uint32_t body_len;
    uint32_t piece, part; /* of the plan: what comes next */
    uint32_t ahead;
    /* Going out: words, then the frame of a box. */
    uint8_t *words;
    size_t words_at, words_len, words_cap;
    uint8_t *data; /* (DT_LINK_HEAD_BYTES + DT_LINK_BODY_MAX); NULL before the first */
    size_t data_at, data_len;
    uint32_t send; /* of the plan: what goes next */
} dt_link_t;

/* Ownership: takes `fd`, a connected stream socket, on success only; gives *ret_link,
 * dt_transport_link_free(). Errors: NOMEM, INTERNAL (TLS). Threads: none of its own. Nothing here
 * blocks. */
DT_MUST_USE dt_status_t dt_transport_link_create(int fd, const dt_link_secret_t *secret,
                                                 dt_link_t **ret_link, dt_error_t *err);
void dt_transport_link_free(dt_link_t *link); /* NULL is fine */
/* End the connection; what the peer has said stays. */
void dt_link_close(dt_link_t *link);

/* An exchange begins: its boxes are counted from the start. */
void dt_link_begin(dt_link_t *link);
/* Queue a word. False: no memory; the link is broken. */
bool dt_link_say(dt_link_t *link, const dt_link_head_t *head, const void *body);
/* What may be sent and what is expected now. */
typedef struct dt_link_turn {
    dt_exchange_plan_t *plan;
    uint64_t number;
    uint32_t member;        /* on the other side */
    bool may_send;          /* boxes, those whose piece is done */
    bool has_wave0;         /* all our pieces of wave 0 are done */
    bool is_discarded;      /* it failed: what comes is dropped */
    _Atomic uint64_t *came; /* bytes of boxes are added; NULL: nobody counts */
} dt_link_turn_t;
/* Send and receive what is possible now. Returns whether anything moved. */
bool dt_link_pump(dt_link_t *link, const dt_link_turn_t *turn);
/* Whether every box for that member is on its way. */
bool dt_link_is_sent(dt_link_t *link, const dt_link_turn_t *turn);
/* What to poll for. */
short dt_link_events(const dt_link_t *link);
/* Whether words or a box that has begun are not in the socket yet. */
bool dt_link_has_more(const dt_link_t *link);

#endif
