/* A session machine under a clock of the test's own: plays clients and nodes, writes actions down.
 * For unit tests of lib/core/session*; the simulator has its own world. */
#ifndef DT_SESSIONTEST_H
#define DT_SESSIONTEST_H
#include <stdbool.h>
#include <stdint.h>

#include "core/session.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/record.h"

#define DT_SESSIONTEST_ACTIONS 20000
#define DT_SESSIONTEST_MS      INT64_C(1000000)
#define DT_SESSIONTEST_EPOCH   7u

typedef struct dt_sessiontest_action {
    dt_session_action_kind_t kind;
    uint64_t stream, ticket, number;
    uint8_t *data;
    size_t size;
    dt_status_t status;
    char text[600];
    char event[64];
} dt_sessiontest_action_t;

typedef struct dt_sessiontest {
    dt_sessions_t *sessions;
    dt_sessions_options_t options;
    int64_t now_ns;
    dt_sessiontest_action_t actions[DT_SESSIONTEST_ACTIONS];
    uint32_t action_count;
    uint8_t token[DT_SESSION_TOKEN_BYTES]; /* of the last Welcome */
    uint64_t session;                      /* of the last Welcome */
    uint64_t credit;
    uint64_t next_sequence;
    uint8_t frame_bytes[DT_FRAME_BYTES_MAX];
    dt_frame_writer_t writer; /* of the frame that a test fills */
    dt_arena_t arena;         /* of unpacked messages, until dt_sessiontest_forget() */
} dt_sessiontest_t;

/* A machine with numbers from 1 and defaults of the daemon; options may be changed before start. */
dt_sessiontest_t *dt_sessiontest_new_stopped(void);
void dt_sessiontest_start(dt_sessiontest_t *test);
dt_sessiontest_t *dt_sessiontest_new(void);
void dt_sessiontest_free(dt_sessiontest_t *test);

void dt_sessiontest_perform(dt_sessiontest_t *test);
void dt_sessiontest_forget(dt_sessiontest_t *test);           /* what was written down */
void dt_sessiontest_pass(dt_sessiontest_t *test, int64_t ms); /* in turns of at most 1 ms */

/* ---- nodes ---- */

/* Node "n<number>" with `devices` devices of backend "torch", on control stream 1000 + number. */
void dt_sessiontest_node(dt_sessiontest_t *test, unsigned number, uint32_t devices);
/* The same in another state: incarnation, control stream (0: away), whether it takes work. */
void dt_sessiontest_node_is(dt_sessiontest_t *test, unsigned number, uint32_t devices,
                            uint64_t incarnation, uint64_t stream, bool takes_work);
/* The newest SessionOpen sent to a node, or NULL. */
const Dtorch__V1__SessionOpen *dt_sessiontest_opened(dt_sessiontest_t *test, unsigned number);
/* Open a link stream for the newest SessionOpen of that node, which has frames up to `received`. */
void dt_sessiontest_link(dt_sessiontest_t *test, unsigned number, uint64_t stream,
                         uint64_t received);
void dt_sessiontest_up(dt_sessiontest_t *test, uint64_t stream,
                       const Dtorch__V1__WorkerSessionUp *up);
void dt_sessiontest_executed(dt_sessiontest_t *test, uint64_t stream, uint32_t vdev,
                             uint64_t sequence);
void dt_sessiontest_result(dt_sessiontest_t *test, uint64_t stream, uint64_t future);
void dt_sessiontest_lost(dt_sessiontest_t *test, uint64_t stream, uint32_t vdev);
/* Read all records that were sent on a link stream, as "DEF_PLAN OP NOP FREE". `ret_first` and
 * `ret_last`: sequences of the first and the last; 0 without any. Asserts that frames are sound and
 * follow each other. */
const char *dt_sessiontest_records(dt_sessiontest_t *test, uint64_t stream, uint64_t *ret_first,
                                   uint64_t *ret_last);

/* ---- clients ---- */

void dt_sessiontest_open(dt_sessiontest_t *test, uint64_t stream);
void dt_sessiontest_hello(dt_sessiontest_t *test, uint64_t stream, uint32_t vdevs);
void dt_sessiontest_resume(dt_sessiontest_t *test, uint64_t stream, uint64_t session,
                           const uint8_t *token);
/* open, hello, Welcome taken; a link for each node that was asked, on stream 100 + its number */
void dt_sessiontest_join(dt_sessiontest_t *test, uint64_t stream, uint32_t vdevs);
void dt_sessiontest_send(dt_sessiontest_t *test, uint64_t stream, const Dtorch__V1__SessionUp *up);
void dt_sessiontest_close(dt_sessiontest_t *test, uint64_t stream);

/* Fill a frame: begin at a sequence, put records, send it. */
void dt_sessiontest_begin(dt_sessiontest_t *test, uint64_t first);
/* `text`: "name inputs outputs scalars flags"; aliases of outputs as letters: f fresh, v view of
 * input 0, w in place of input 0. Layouts: the mesh given. */
void dt_sessiontest_define(dt_sessiontest_t *test, uint32_t id, uint32_t inputs,
                           const char *outputs, uint32_t scalars, uint32_t mesh);
void dt_sessiontest_op(dt_sessiontest_t *test, uint32_t signature, uint32_t input_count,
                       const uint64_t *inputs, uint32_t output_count, const uint64_t *outputs);
void dt_sessiontest_upload(dt_sessiontest_t *test, uint64_t id, uint32_t mesh, uint64_t transfer);
void dt_sessiontest_free_id(dt_sessiontest_t *test, uint64_t id);
void dt_sessiontest_fetch(dt_sessiontest_t *test, uint64_t id, uint64_t future);
void dt_sessiontest_mesh(dt_sessiontest_t *test, uint32_t id, uint32_t count, uint64_t first);
void dt_sessiontest_put(dt_sessiontest_t *test, const dt_record_t *record);
void dt_sessiontest_frame(dt_sessiontest_t *test, uint64_t stream, unsigned flags);
void dt_sessiontest_frame_bytes(dt_sessiontest_t *test, uint64_t stream, const uint8_t *bytes,
                                size_t size);

/* ---- what came out ---- */

/* The `nth` SessionDown of a kind sent on a stream since the last forget, or NULL. */
const Dtorch__V1__SessionDown *dt_sessiontest_down(dt_sessiontest_t *test, uint64_t stream,
                                                   int kind, uint32_t nth);
uint32_t dt_sessiontest_count(dt_sessiontest_t *test, uint64_t stream, int kind);
const dt_sessiontest_action_t *dt_sessiontest_closed(const dt_sessiontest_t *test, uint64_t stream);
/* Whether a stream was refused as malformed with this E_ name and record. */
bool dt_sessiontest_is_malformed(dt_sessiontest_t *test, uint64_t stream, const char *name,
                                 uint64_t sequence);
uint32_t dt_sessiontest_events(const dt_sessiontest_t *test, const char *name);
dt_sessions_counts_t dt_sessiontest_counts(const dt_sessiontest_t *test);

#endif
