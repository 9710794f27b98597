/* An executor with one or more sessions and no processes: frames are written into its rings, what
 * goes up is read back. For unit tests with a fake backend and for benches with a real one. */
#ifndef DT_TESTS_LIB_EXECRIG_H
#define DT_TESTS_LIB_EXECRIG_H
#include <stdbool.h>
#include <stdint.h>

#include "daemons/workerd/engine_exec.h"
#include "dtorch/v1/session.pb-c.h"
#include "transport/board.h"
#include "wire/record.h"
#include "wire/signature.h"

#define DT_EXECRIG_FRAME_BYTES (200u << 10)

typedef struct dt_execrig {
    dt_exec_t *exec;
    dt_transport_t *transport;
    int wake; /* of its thread */
    dt_engine_page_t *page;
    int64_t now_ns; /* of the fake clock, when it is used */
    dt_clock_t clock;
} dt_execrig_t;

typedef struct dt_execrig_session {
    dt_execrig_t *rig;
    int arena_fd; /* -1: none */
    uint32_t instance;
    dt_channel_t *channel;
    void *down;
    dt_ring_writer_t frames;
    dt_ring_writer_t bulk;
    dt_ring_reader_t up;
    uint8_t *frame;
    dt_frame_writer_t writer;
    bool has_frame;
    uint64_t sequence; /* of the next record */
    uint64_t tensor, future;
    uint32_t signature;
} dt_execrig_session_t;

/* `is_fake_clock`: time is rig->now_ns. */
void dt_execrig_init(dt_execrig_t *rig, const dt_backend_t *backend, void *device,
                     bool is_fake_clock);
/* The same with Overlap=no. */
void dt_execrig_init_serial(dt_execrig_t *rig, const dt_backend_t *backend, void *device,
                            bool is_fake_clock);
void dt_execrig_fini(dt_execrig_t *rig);

/* A session on vdevs 0 .. vdev_count - 1 with an arena of that limit; 0: the heap. */
void dt_execrig_open(dt_execrig_t *rig, dt_execrig_session_t *session, uint32_t instance,
                     uint32_t vdev_count, uint64_t limit_bytes);
/* The same on other vdevs, rising. */
void dt_execrig_open_on(dt_execrig_t *rig, dt_execrig_session_t *session, uint32_t instance,
                        const uint32_t *vdevs, uint32_t vdev_count, uint64_t limit_bytes);
/* Make them one session of several engines: each has a rig of its own and an arena. "node0" and so
 * on are their nodes. Gives the board, dt_board_close() after they are closed. */
dt_board_t *dt_execrig_join(dt_execrig_session_t *const *sessions, uint32_t count);
void dt_execrig_close(dt_execrig_session_t *session);

void dt_execrig_put(dt_execrig_session_t *session, const dt_record_t *record);
void dt_execrig_flush(dt_execrig_session_t *session);
uint64_t dt_execrig_upload(dt_execrig_session_t *session, unsigned dtype, unsigned ndim,
                           const int64_t *sizes, const void *bytes);
uint32_t dt_execrig_define(dt_execrig_session_t *session, const dt_signature_t *signature);
/* As dt_sessionpeer_define_f32(). */
uint32_t dt_execrig_define_f32(dt_execrig_session_t *session, const char *name,
                               uint32_t input_count, unsigned ndim, const int64_t *sizes,
                               unsigned alias, uint32_t flags);
uint64_t dt_execrig_op(dt_execrig_session_t *session, uint32_t signature, const uint64_t *inputs,
                       uint32_t input_count, bool has_output);
void dt_execrig_free(dt_execrig_session_t *session, uint64_t tensor);
uint64_t dt_execrig_fetch(dt_execrig_session_t *session, uint64_t tensor);
/* A chunk of a transfer, with its checksum. */
void dt_execrig_chunk(dt_execrig_session_t *session, uint64_t transfer, uint64_t offset,
                      const void *bytes, size_t size);
void dt_execrig_ack(dt_execrig_session_t *session, uint64_t transfer, uint64_t received,
                    bool is_restart);

/* Flush, and give turns until nothing is left to do. */
void dt_execrig_run(dt_execrig_session_t *session);
/* The next message that goes up; NULL: none. Gives, free with the protobuf-c function. */
Dtorch__V1__WorkerSessionUp *dt_execrig_next(dt_execrig_session_t *session);
/* Run, and look for the result of a future; what comes before it is dropped. */
Dtorch__V1__WorkerSessionUp *dt_execrig_result(dt_execrig_session_t *session, uint64_t future);

#endif
