/* What the files of lib/loop share. */
#ifndef DT_LOOP_LOOP_INTERNAL_H
#define DT_LOOP_LOOP_INTERNAL_H
#include <uv.h>

#include "base/list.h"
#include "loop/loop.h"

struct dt_loop {
    uv_loop_t uv;
    uv_async_t wake; /* uv_async_send from any thread, the rest loop only */
    bool should_stop;
    dt_loop_stats_t stats;
    void (*slow_hook)(void *arg, const char *what, int64_t ns);
    void *slow_arg;
    dt_list_t children; /* that were not reaped yet */
};

/* Close a handle whose memory is `handle->data`; it is freed when libuv has let go. */
void dt_loop_close_handle(uv_handle_t *handle);
/* Kill and reap what dt_loop_free() still finds. Returns how many there were. Blocking: for the
 * deaths. */
int dt_loop_reap_children(dt_loop_t *loop);

#endif
