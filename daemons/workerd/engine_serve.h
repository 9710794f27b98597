/* The engine at work: its device, its executor, its metadata thread, and the agent's messages.
 * Order at the start: dt_engine_host_open() (loads the backend, opens the device, runs an operator
 * of each kind, because libraries open files at first use), the sandbox, dt_engine_host_serve(). */
#ifndef DT_WORKERD_ENGINE_SERVE_H
#define DT_WORKERD_ENGINE_SERVE_H
#include "base/status.h"
#include "shm/engine_page.h"

typedef struct dt_engine_host dt_engine_host_t;

/* Take the descriptors from DT_ENGINE_FD_SETUP on, and make the device ready.
 * Ownership: keeps `page`; gives *ret_host, for the life of the process.
 * Errors: INVALID, NOT_FOUND, DEVICE, NOMEM; the text is for the agent. Blocking: loads. */
DT_MUST_USE dt_status_t dt_engine_host_open(dt_engine_page_t *page, dt_engine_host_t **ret_host,
                                            dt_error_t *err);
/* Serve until the agent says EXIT or is gone. */
void dt_engine_host_serve(dt_engine_host_t *host);

#endif
