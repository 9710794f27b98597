/* Play a recording against a cluster: the frames and uploaded bytes of the file go to a new session
 * as they are (only epoch and checksum are written anew), and what the fetches give is compared
 * with what they gave when it was recorded: size, metadata, checksum of all bytes; of errors the
 * kind.
 *
 * Frames go as credit allows, whatever the program once waited for. Nothing is asked of nodes but
 * what the file says. Limits: those of the protocol. Threads: one. Blocking: yes. */
#ifndef DT_CTL_REPLAY_H
#define DT_CTL_REPLAY_H
#include "dtorch/v1/tool.pb-c.h"
#include "recorded.h"
#include "rpc/rpc.h"

typedef struct dt_ctl_replay_options {
    const char *address;
    const dt_rpc_tls_t *tls; /* NULL: none */
    const uint8_t *bytes;    /* (size) of the file */
    size_t size;
    int64_t patience_ms; /* without any news but beats it is given up */
} dt_ctl_replay_options_t;

typedef struct dt_ctl_replayed {
    uint64_t session; /* 0: it was never welcomed */
    uint64_t frame_count, record_count, upload_bytes;
    Dtorch__V1__ReplayedResult **results; /* (result_count) by future; in the pool */
    size_t result_count;
    size_t equal_count;
    dt_ctl_damage_t damage; /* of the file; what is whole before it was played */
} dt_ctl_replayed_t;

/* Play it. *ret_replayed is set in any case, as far as it came.
 * Errors: INVALID (no recording), those of the connection, PEER (refused; the text says why),
 * TIMEOUT (no news for patience_ms). Differences are no error. */
DT_MUST_USE dt_status_t dt_ctl_replay(dt_arena_t *pool, const dt_ctl_replay_options_t *options,
                                      dt_ctl_replayed_t *ret_replayed, dt_error_t *err);

#endif
