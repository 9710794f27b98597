/* The completion queue that the state thread blocks in, and what it turns from there. */
#include <dlfcn.h>
#include <errno.h>
#include <grpc/support/log.h>
#include <grpc/support/string_util.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rpc/rpc_internal.h"

#define ACCEPT_FAILED "Failed accept4" /* gRPC 1.51's last word on a listener */
#define BUFFER_STEP   65536u
/* absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle), of release 20220623 */
#define ABSL_SET_DEADLOCK_MODE                                                                     \
    "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE"
#define ABSL_DEADLOCK_IGNORE 0 /* absl::OnDeadlockCycle::kIgnore */
#define SWEEP_STEP_NS        (250 * DT_RPC_NS_PER_MS)
#define BUFFER_KEEP          (1u << 20) /* a larger buffer is given back after use */

struct dt_rpc_wake {
    dt_rpc_t *rpc;
    void (*run)(void *arg);
    void *arg;
    dt_rpc_tag_t tag;
    bool is_posted; /* rpc->lock */
    bool is_freed;  /* rpc->lock; the outstanding post frees it */
};

static void (*_Atomic log_sink)(int severity, const char *text);
static _Atomic uint64_t accept_failures; /* of gRPC's own listeners */

/* ---- status ---- */

dt_status_t dt_status_from_grpc(int grpc_status)
{
    switch (grpc_status) {
#define X(name, value, grpc, text)                                                                 \
    case grpc:                                                                                     \
        return name;
        DT_ERR_MAP(X)
#undef X
    case GRPC_STATUS_UNAUTHENTICATED:
        return DT_ERR_DENIED;
    case GRPC_STATUS_UNIMPLEMENTED:
        return DT_ERR_NOT_FOUND;
    default:
        return DT_ERR_INTERNAL;
    }
}

int dt_rpc_to_grpc(dt_status_t status)
{
    switch (status) {
#define X(name, value, grpc, text)                                                                 \
    case name:                                                                                     \
        return grpc;
        DT_ERR_MAP(X)
#undef X
    }
    return GRPC_STATUS_INTERNAL;
}

void dt_rpc_why(grpc_status_code status, grpc_slice details, dt_error_t *ret_why)
{
    char *text = grpc_slice_to_c_string(details);
    (void)dt_fail(ret_why, dt_status_from_grpc((int)status), "grpc", (int64_t)status, "%s",
                  status == GRPC_STATUS_OK ? "ended" : text);
    gpr_free(text);
}

/* ---- the library ---- */

static void on_log(gpr_log_func_args *line)
{
    void (*sink)(int severity, const char *text) = atomic_load(&log_sink);
    if (strncmp(line->message, ACCEPT_FAILED, strlen(ACCEPT_FAILED)) == 0)
        atomic_fetch_add(&accept_failures, 1);
    if (sink)
        sink((int)line->severity, line->message);
}

uint64_t dt_rpc_accept_failures(void)
{
    return atomic_load(&accept_failures);
}

/* Abseil as Debian builds it looks for deadlocks at every lock that gRPC takes: a tenth of what a
 * small message costs. It has a switch, for C++ only, so it is looked for by its name there; where
 * it has another name, or the search is left out, there is nothing to switch. */
static void leave_out_deadlock_search(void)
{
    void (*set_mode)(int mode) = NULL;
    void *found = dlsym(RTLD_DEFAULT, ABSL_SET_DEADLOCK_MODE);
    memcpy(&set_mode, &found, sizeof set_mode);
    if (set_mode)
        set_mode(ABSL_DEADLOCK_IGNORE);
}

dt_status_t dt_rpc_library_init(dt_error_t *err)
{
    leave_out_deadlock_search();
    gpr_set_log_function(on_log); /* before grpc_init: it would print to stderr */
    grpc_init();
    if (!grpc_is_initialized())
        return dt_fail(err, DT_ERR_INTERNAL, "grpc", 0, "gRPC does not start");
    if (!gpr_should_log(GPR_LOG_SEVERITY_ERROR)) /* GRPC_VERBOSITY=NONE */
        gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    return DT_OK;
}

void dt_rpc_library_fini(void)
{
    grpc_shutdown_blocking();
}

/* ---- bytes ---- */

void dt_rpc_copy_out(grpc_byte_buffer *bytes, uint8_t *data)
{
    grpc_byte_buffer_reader reader;
    grpc_slice *slice;
    if (!grpc_byte_buffer_reader_init(&reader, bytes))
        return;
    while (grpc_byte_buffer_reader_peek(&reader, &slice)) { /* split anywhere, not aligned */
        if (GRPC_SLICE_LENGTH(*slice) > 0)
            memcpy(data, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        data += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
}

const uint8_t *dt_rpc_gather(dt_rpc_t *rpc, grpc_byte_buffer *bytes, size_t *ret_size)
{
    size_t size = grpc_byte_buffer_length(bytes);
    if (!rpc->buffer || size > rpc->buffer_size || rpc->buffer_size > BUFFER_KEEP) {
        size_t rounded = (size / BUFFER_STEP + 1) * BUFFER_STEP;
        free(rpc->buffer);
        rpc->buffer = malloc(rounded);
        rpc->buffer_size = rpc->buffer ? rounded : 0;
        if (!rpc->buffer)
            return NULL;
    }
    dt_rpc_copy_out(bytes, rpc->buffer);
    *ret_size = size;
    return rpc->buffer;
}

grpc_byte_buffer *dt_rpc_bytes(const void *data, size_t size)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(data, size);
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

void dt_rpc_start(grpc_call *call, grpc_op *ops, size_t count, dt_rpc_tag_t *tag)
{
    dt_check(grpc_call_start_batch(call, ops, count, tag, NULL) == GRPC_CALL_OK);
}

/* ---- the watcher: says that the loop has something, and touches nothing else ---- */

static dt_status_t watch(dt_rpc_t *rpc, int fd, uint32_t events)
{
    struct epoll_event what = {.events = events, .data.fd = fd};
    return epoll_ctl(rpc->watch_fd, EPOLL_CTL_ADD, fd, &what) == 0 ? DT_OK : DT_ERR_AGAIN;
}

/* The watcher may say it once more. It sleeps on meanwhile, unless there is something already. */
static void arm(dt_rpc_t *rpc)
{
    int fd = dt_loop_backend_fd(rpc->loop);
    struct epoll_event what = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = fd};
    dt_check(epoll_ctl(rpc->watch_fd, EPOLL_CTL_MOD, fd, &what) == 0);
}

static void *watcher_main(void *arg)
{
    dt_rpc_t *rpc = arg;
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(rpc->watch_fd, &event, 1, -1) < 1)
            continue; /* EINTR */
        if (event.data.fd == rpc->stop_fd)
            return NULL;
        dt_rpc_start(rpc->post_call, NULL, 0, &rpc->turn_tag);
    }
}

static void signal_fd(int fd)
{
    uint64_t one = 1;
    dt_check(write(fd, &one, sizeof one) == (ssize_t)sizeof one);
}

static void on_turn(void *arg, bool ok)
{
    dt_rpc_t *rpc = arg;
    (void)ok;
    dt_loop_turn(rpc->loop);
    arm(rpc);
}

/* ---- streams that should have ended by now ---- */

static void on_sweep(void *arg, int64_t deadline_ns)
{
    dt_rpc_t *rpc = arg;
    dt_list_t *next;
    (void)deadline_ns;
    int64_t now_ns = dt_loop_now_ns();
    for (dt_list_t *at = rpc->closing.next; at != &rpc->closing; at = next) {
        dt_rpc_stream_t *stream = DT_CONTAINER_OF(at, dt_rpc_stream_t, close_link);
        next = at->next;
        if (now_ns < stream->close_deadline_ns)
            continue;
        dt_list_remove(&stream->close_link);
        dt_rpc_stream_cancel(stream, DT_ERR_TIMEOUT, "the peer did not take the end of the stream");
    }
    if (!dt_list_is_empty(&rpc->closing))
        dt_rpc_arm_sweep(rpc);
}

void dt_rpc_arm_sweep(dt_rpc_t *rpc)
{
    dt_timer_arm(rpc->sweep, dt_loop_now_ns() + SWEEP_STEP_NS);
}

/* ---- life ---- */

static void free_parts(dt_rpc_t *rpc)
{
    dt_timer_free(rpc->sweep);
    if (rpc->watch_fd >= 0)
        (void)close(rpc->watch_fd);
    if (rpc->stop_fd >= 0)
        (void)close(rpc->stop_fd);
    pthread_mutex_destroy(&rpc->lock);
    pthread_cond_destroy(&rpc->lead_changed);
    pthread_mutex_destroy(&rpc->lead_lock);
    free(rpc->buffer);
    free(rpc);
}

static void lead_init(dt_rpc_t *rpc)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&rpc->lead_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&rpc->lead_changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

dt_status_t dt_rpc_create(dt_loop_t *loop, void (*log_line)(int severity, const char *text),
                          dt_rpc_t **ret_rpc, dt_error_t *err)
{
    dt_rpc_t *rpc = calloc(1, sizeof *rpc);
    if (!rpc)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the RPC runtime");
    rpc->loop = loop;
    rpc->turn_tag = (dt_rpc_tag_t){on_turn, rpc};
    rpc->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    rpc->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&rpc->lock, NULL);
    lead_init(rpc);
    dt_list_init(&rpc->closing);
    dt_list_init(&rpc->unread);
    dt_list_init(&rpc->tls);
    if (rpc->watch_fd < 0 || rpc->stop_fd < 0 || watch(rpc, rpc->stop_fd, EPOLLIN) != DT_OK ||
        watch(rpc, dt_loop_backend_fd(loop), EPOLLIN | EPOLLONESHOT) != DT_OK) {
        int number = errno;
        free_parts(rpc);
        return dt_fail(err, DT_ERR_AGAIN, "errno", number, "watcher: %s", strerror(number));
    }
    dt_status_t status = dt_timer_create(loop, on_sweep, rpc, &rpc->sweep, err);
    if (status == DT_OK) {
        atomic_store(&log_sink, log_line);
        status = dt_rpc_library_init(err);
    }
    if (status != DT_OK) {
        free_parts(rpc);
        return status;
    }
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    rpc->lame = grpc_lame_client_channel_create("lame:", GRPC_STATUS_UNAVAILABLE, "wake-up");
    rpc->post_call = grpc_channel_create_call(rpc->lame, NULL, GRPC_PROPAGATE_DEFAULTS, rpc->queue,
                                              grpc_slice_from_static_string("/post"), NULL,
                                              gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    int rc = pthread_create(&rpc->watcher, NULL, watcher_main, rpc);
    if (rc != 0) {
        rpc->is_closed = true; /* no watcher to join */
        (void)dt_rpc_free(rpc);
        return dt_fail(err, DT_ERR_AGAIN, "errno", rc, "thread: %s", strerror(rc));
    }
    *ret_rpc = rpc;
    return DT_OK;
}

/* ---- turning ---- */

/* Until when the queue may be waited for: what the loop's timers and the caller want. */
static gpr_timespec wait_end(int loop_ms, int64_t deadline_ns)
{
    gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
    gpr_timespec end = loop_ms < 0 ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
                                   : gpr_time_add(now, gpr_time_from_millis(loop_ms, GPR_TIMESPAN));
    if (deadline_ns == INT64_MAX)
        return end;
    int64_t left_ns = deadline_ns - dt_loop_now_ns();
    gpr_timespec other =
        gpr_time_add(now, gpr_time_from_nanos(left_ns > 0 ? left_ns : 0, GPR_TIMESPAN));
    return gpr_time_cmp(other, end) < 0 ? other : end;
}

void dt_rpc_turn(dt_rpc_t *rpc, int64_t deadline_ns)
{
    /* Timers must not starve under load: look at the clock each turn. */
    int ms = dt_loop_timeout_ms(rpc->loop);
    if (ms == 0) {
        dt_loop_turn(rpc->loop);
        if (rpc->should_stop)
            return;
        ms = dt_loop_timeout_ms(rpc->loop);
    }
    dt_rpc_catch_up(rpc);
    grpc_event event = grpc_completion_queue_next(rpc->queue, wait_end(ms, deadline_ns), NULL);
    if (event.type != GRPC_OP_COMPLETE)
        return;
    dt_rpc_tag_t *tag = event.tag;
    if (tag == &rpc->turn_tag) { /* the loop measures its own callbacks */
        on_turn(rpc, true);
        return;
    }
    int64_t begin_ns = dt_loop_measure_begin(rpc->loop);
    tag->run(tag->arg, event.success != 0);
    dt_loop_measure_end(rpc->loop, "rpc", begin_ns);
}

void dt_rpc_share(dt_rpc_t *rpc, void (*lent)(void *arg), void *arg)
{
    rpc->lent = lent;
    rpc->lent_arg = arg;
}

void dt_rpc_lend(dt_rpc_t *rpc)
{
    rpc->should_lend = rpc->lent && !rpc->is_lent; /* is_lent stays what it is while one leads */
}

bool dt_rpc_lead(dt_rpc_t *rpc)
{
    pthread_mutex_lock(&rpc->lead_lock);
    bool is_mine = rpc->is_lent && !rpc->is_led;
    if (is_mine) {
        rpc->is_led = true;
        rpc->lead_count++;
        rpc->is_recalled = false; /* what it was needed for is now ours */
    }
    pthread_mutex_unlock(&rpc->lead_lock);
    return is_mine;
}

static void leave(dt_rpc_t *rpc, bool is_over, bool has_turned)
{
    pthread_mutex_lock(&rpc->lead_lock);
    rpc->is_led = false;
    if (has_turned)
        rpc->left_ns = dt_loop_now_ns();
    if (is_over || rpc->should_stop ||
        atomic_load(&rpc->posted_count) != atomic_load(&rpc->handled_count))
        rpc->is_recalled = true;
    if (rpc->is_recalled || rpc->waits_for_end)
        pthread_cond_signal(&rpc->lead_changed);
    pthread_mutex_unlock(&rpc->lead_lock);
}

void dt_rpc_leave(dt_rpc_t *rpc, bool is_over)
{
    leave(rpc, is_over, true);
}

void dt_rpc_leave_sent(dt_rpc_t *rpc)
{
    leave(rpc, false, false);
}

/* A wake was posted: somebody must be there to take it. */
static void recall(dt_rpc_t *rpc)
{
    pthread_mutex_lock(&rpc->lead_lock);
    if (rpc->is_lent && !rpc->is_led) {
        rpc->is_recalled = true;
        pthread_cond_signal(&rpc->lead_changed);
    }
    pthread_mutex_unlock(&rpc->lead_lock);
}

/* For a change of who leads. lead_lock held. */
static void wait_until(dt_rpc_t *rpc, int64_t until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / DT_RPC_NS_PER_S,
                                   .tv_nsec = until_ns % DT_RPC_NS_PER_S};
    (void)pthread_cond_timedwait(&rpc->lead_changed, &rpc->lead_lock, &until);
}

/* Step aside until one is needed, or others have not led for a while. */
static void park(dt_rpc_t *rpc)
{
    uint64_t seen;
    rpc->should_lend = false;
    pthread_mutex_lock(&rpc->lead_lock);
    rpc->is_lent = true;
    rpc->is_led = rpc->is_recalled = false;
    seen = rpc->lead_count;
    rpc->left_ns = dt_loop_now_ns();
    pthread_mutex_unlock(&rpc->lead_lock);
    rpc->lent(rpc->lent_arg);
    pthread_mutex_lock(&rpc->lead_lock);
    for (;;) {
        int64_t until_ns = rpc->left_ns + DT_RPC_LINGER_NS;
        if (rpc->is_led) { /* who leads briefly shall not have to wake us: look again later */
            bool is_long = rpc->lead_count == seen;
            seen = rpc->lead_count;
            rpc->waits_for_end = is_long;
            if (is_long)
                pthread_cond_wait(&rpc->lead_changed, &rpc->lead_lock);
            else
                wait_until(rpc, dt_loop_now_ns() + DT_RPC_LINGER_NS);
            rpc->waits_for_end = false;
            continue;
        }
        if (rpc->is_recalled || dt_loop_now_ns() >= until_ns)
            break;
        wait_until(rpc, until_ns);
    }
    rpc->is_lent = false;
    rpc->is_led = true;
    pthread_mutex_unlock(&rpc->lead_lock);
}

void dt_rpc_run(dt_rpc_t *rpc)
{
    rpc->should_stop = false;
    rpc->is_led = true;
    while (!rpc->should_stop) {
        dt_rpc_turn(rpc, INT64_MAX);
        if (rpc->should_lend && !rpc->should_stop)
            park(rpc);
    }
}

void dt_rpc_stop(dt_rpc_t *rpc)
{
    rpc->should_stop = true;
}

static void free_tls_states(dt_rpc_t *rpc)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&rpc->tls)) != NULL) {
        dt_rpc_tls_state_t *tls = DT_CONTAINER_OF(at, dt_rpc_tls_state_t, link);
        pthread_mutex_destroy(&tls->lock);
        free(tls->ca);
        free(tls->chain);
        if (tls->key)
            explicit_bzero(tls->key, strlen(tls->key));
        free(tls->key);
        free(tls);
    }
}

dt_status_t dt_rpc_free(dt_rpc_t *rpc)
{
    grpc_event event;
    if (!rpc)
        return DT_OK;
    if (rpc->open_count != 0)
        return DT_ERR_INTERNAL;
    pthread_mutex_lock(&rpc->lock);
    bool has_watcher = !rpc->is_closed;
    rpc->is_closed = true;
    pthread_mutex_unlock(&rpc->lock);
    if (has_watcher) {
        signal_fd(rpc->stop_fd);
        (void)pthread_join(rpc->watcher, NULL);
    }
    grpc_call_unref(rpc->post_call);
    grpc_channel_destroy(rpc->lame);
    grpc_completion_queue_shutdown(rpc->queue);
    do { /* a turn or a wake of a freed door may still be there */
        event = grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        dt_rpc_tag_t *tag = event.tag;
        if (event.type == GRPC_OP_COMPLETE && tag != &rpc->turn_tag)
            tag->run(tag->arg, false);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
    grpc_completion_queue_destroy(rpc->queue);
    dt_rpc_library_fini();
    free_tls_states(rpc);
    free_parts(rpc);
    return DT_OK;
}

/* ---- wakes ---- */

static void on_woken(void *arg, bool ok)
{
    dt_rpc_wake_t *wake = arg;
    (void)ok;
    pthread_mutex_lock(&wake->rpc->lock);
    bool is_freed = wake->is_freed;
    wake->is_posted = false; /* a wake from now on posts again, so none is lost */
    atomic_fetch_add(&wake->rpc->handled_count, 1);
    pthread_mutex_unlock(&wake->rpc->lock);
    if (is_freed)
        free(wake);
    else
        wake->run(wake->arg);
}

dt_status_t dt_rpc_wake_create(dt_rpc_t *rpc, void (*run)(void *arg), void *arg,
                               dt_rpc_wake_t **ret_wake, dt_error_t *err)
{
    dt_rpc_wake_t *wake = calloc(1, sizeof *wake);
    if (!wake)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a wake");
    *wake = (dt_rpc_wake_t){.rpc = rpc, .run = run, .arg = arg, .tag = {on_woken, wake}};
    rpc->open_count++;
    *ret_wake = wake;
    return DT_OK;
}

void dt_rpc_wake(void *arg)
{
    dt_rpc_wake_t *wake = arg;
    dt_rpc_t *rpc = wake->rpc;
    pthread_mutex_lock(&rpc->lock);
    if (!wake->is_posted && !wake->is_freed && !rpc->is_closed) {
        wake->is_posted = true;
        atomic_fetch_add(&rpc->posted_count, 1);
        dt_rpc_start(rpc->post_call, NULL, 0, &wake->tag);
        if (rpc->lent)
            recall(rpc);
    }
    pthread_mutex_unlock(&rpc->lock);
}

void dt_rpc_wake_free(dt_rpc_wake_t *wake)
{
    if (!wake)
        return;
    pthread_mutex_t *lock = &wake->rpc->lock;
    wake->rpc->open_count--;
    pthread_mutex_lock(lock);
    bool is_posted = wake->is_posted;
    wake->is_freed = true;
    pthread_mutex_unlock(lock);
    if (!is_posted)
        free(wake);
}
