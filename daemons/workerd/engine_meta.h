/* The metadata thread: answers what an operator would return, without executing it and without
 * waiting for what the executor does. The first of these that knows: the backend's op_infer (Meta
 * kernels), a rule of lib/ops/meta.def, the backend's op_rehearse, the operator's execution. It
 * owns nothing but its two rings and the rules; it calls op_find, op_infer and op_rehearse of the
 * device, which any thread may. */
#ifndef DT_WORKERD_ENGINE_META_H
#define DT_WORKERD_ENGINE_META_H
#include "base/arena.h"
#include "device/backend.h"
#include "engine_channel.h"
#include "ops/meta.h"
#include "shm/engine_page.h"

typedef struct dt_engine_meta dt_engine_meta_t;

/* What answers. */
typedef struct dt_engine_meta_source {
    const dt_backend_t *backend;
    void *device;
    const char *kind;            /* of the device, "cpu": rules hold for some */
    const dt_ops_rules_t *rules; /* NULL: none */
    dt_engine_page_t *page;      /* where answers are counted; NULL: nowhere */
} dt_engine_meta_source_t;

/* Begin to answer what comes through `memory` (DT_CHANNEL_META_SIZE). Of `source` the rules are set
 * here.
 * Ownership: keeps all but `source` itself; gives *ret_meta, end with dt_engine_meta_stop().
 * Errors: INVALID (no rings), NOMEM, AGAIN (no thread). */
DT_MUST_USE dt_status_t dt_engine_meta_start(const dt_engine_meta_source_t *source, void *memory,
                                             int wake, int bell, dt_engine_meta_t **ret_meta,
                                             dt_error_t *err);
void dt_engine_meta_stop(dt_engine_meta_t *meta); /* NULL is fine. Blocking: for its thread */

/* What this thread asks the backend about now; "" if it does not. Safe in a signal handler. */
const char *dt_engine_meta_running(void);

/* Answer one query: `body` is of wire/signature.h, and behind it may be those that are asked ahead.
 * *ret_answer is a packed WorkerSessionUp in `arena`. Errors: NOMEM. Threads: any. */
DT_MUST_USE dt_status_t dt_engine_meta_answer(const dt_engine_meta_source_t *source,
                                              dt_arena_t *arena, uint64_t query, uint32_t vdev,
                                              const uint8_t *body, size_t size,
                                              uint8_t **ret_answer, size_t *ret_size);

#endif
