/* Sessions: their begin and end, what is known of them, fork(). */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/strings.h"
#include "client.h"

#define CONNECT_WAIT_NS (10 * DT_CLOCK_SECOND_NS)

atomic_uint dt_client_generation;

/* ---- fork ---- */

/* The child has no I/O thread, and the lock may be held by a thread that it does not have either.
 */
static void in_child(void)
{
    atomic_fetch_add(&dt_client_generation, 1);
}

static void watch_fork(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

dt_status_t dt_client_forked(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_STOPPED, "dt", 0,
                   "this process was forked from the one that made the session; connect after "
                   "fork()");
}

/* ---- lock and waiting ---- */

dt_status_t dt_client_lock(dt_session_t *session, dt_error_t *err)
{
    if (dt_client_is_forked(session))
        return dt_client_forked(err);
    pthread_mutex_lock(&session->lock);
    if (session->state != DT_CLIENT_ENDED)
        return DT_OK;
    dt_status_t status = dt_fail(err, session->end.code, session->end.source,
                                 session->end.source_code, "%s", session->end.text);
    pthread_mutex_unlock(&session->lock);
    return status;
}

void dt_client_unlock_sending(dt_session_t *session)
{
    session->must_kick = session->sends_itself = false;
    bool is_leader = session->wake && session->state == DT_CLIENT_LIVE && !session->should_end &&
                     dt_rpc_lead(session->io.rpc);
    if (!is_leader)
        dt_client_io_kick(session);
    pthread_mutex_unlock(&session->lock);
    if (is_leader) {
        dt_client_io_woken(session);
        pthread_mutex_lock(&session->lock);
        dt_rpc_leave_sent(session->io.rpc);
        if (session->waiter_count > 0) /* one of them would have led */
            pthread_cond_broadcast(&session->changed);
        pthread_mutex_unlock(&session->lock);
    }
}

int64_t dt_client_deadline(int64_t timeout_ms)
{
    int64_t ns;
    if (timeout_ms < 0 || __builtin_mul_overflow(timeout_ms, DT_CLOCK_MS_NS, &ns) ||
        __builtin_add_overflow(ns, dt_loop_now_ns(), &ns))
        return INT64_MAX;
    return ns;
}

void dt_client_changed(dt_session_t *session)
{
    session->changes++;
    pthread_cond_broadcast(&session->changed);
}

/* Turn in the I/O thread's place until something has changed: what is waited for comes to this very
 * thread. At first it only looks, and lets others run between: to be woken takes longer than most
 * answers do. Lock held, released meanwhile. */
static bool wait_leading(dt_session_t *session, bool must_pump, int64_t deadline_ns)
{
    uint64_t seen = session->changes;
    bool is_late = false, is_looking = dt_look_begin(&session->look);
    int64_t look_ns = dt_loop_now_ns() + DT_CLIENT_LOOK_NS;
    pthread_mutex_unlock(&session->lock);
    if (must_pump)
        dt_client_io_woken(session);
    pthread_mutex_lock(&session->lock);
    while (session->changes == seen && !is_late) {
        pthread_mutex_unlock(&session->lock);
        if (is_looking)
            (void)sched_yield();
        dt_rpc_turn(session->io.rpc, is_looking ? 0 : deadline_ns);
        int64_t now_ns = dt_loop_now_ns();
        is_late = now_ns >= deadline_ns;
        pthread_mutex_lock(&session->lock);
        if (is_looking && (session->changes != seen || now_ns >= look_ns)) {
            dt_look_end(&session->look, now_ns < look_ns);
            is_looking = false;
        }
    }
    dt_rpc_leave(session->io.rpc, session->should_end);
    if (session->waiter_count > 1) /* one of the others leads now */
        pthread_cond_broadcast(&session->changed);
    return session->changes != seen;
}

static bool wait_changed(dt_session_t *session, int64_t deadline_ns, bool is_for_answer)
{
    bool is_changed = true;
    bool must_pump = session->must_kick;
    bool is_leader = is_for_answer && session->wake && session->state == DT_CLIENT_LIVE &&
                     !session->should_end && dt_rpc_lead(session->io.rpc);
    session->must_kick = session->sends_itself = false;
    session->releases++;
    session->waiter_count++;
    session->answer_waits += is_for_answer;
    if (must_pump && !is_leader)
        dt_client_io_kick(session);
    if (is_leader) {
        is_changed = wait_leading(session, must_pump, deadline_ns);
    } else if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(&session->changed, &session->lock);
    } else {
        struct timespec until = {.tv_sec = deadline_ns / DT_CLOCK_SECOND_NS,
                                 .tv_nsec = deadline_ns % DT_CLOCK_SECOND_NS};
        is_changed = pthread_cond_timedwait(&session->changed, &session->lock, &until) != ETIMEDOUT;
    }
    session->waiter_count--;
    session->answer_waits -= is_for_answer;
    return is_changed;
}

static bool wait_for(dt_session_t *session, int64_t deadline_ns, bool is_for_answer)
{
    bool (*should_stop)(void *) = session->should_stop;
    void *arg = session->stop_arg;
    int64_t look_ns = dt_loop_now_ns() + DT_CLIENT_STOP_LOOK_NS;
    if (!should_stop || look_ns >= deadline_ns)
        return wait_changed(session, deadline_ns, is_for_answer);
    if (wait_changed(session, look_ns, is_for_answer))
        return true;
    pthread_mutex_unlock(&session->lock);
    bool is_stopped = should_stop(arg);
    pthread_mutex_lock(&session->lock);
    return !is_stopped;
}

bool dt_client_wait(dt_session_t *session, int64_t deadline_ns)
{
    return wait_for(session, deadline_ns, false);
}

bool dt_client_await(dt_session_t *session, int64_t deadline_ns)
{
    session->has_awaited = true;
    return wait_for(session, deadline_ns, true);
}

void dt_on_wait(dt_session_t *session, bool (*should_stop)(void *arg), void *arg)
{
    if (dt_client_is_forked(session))
        return;
    pthread_mutex_lock(&session->lock);
    session->should_stop = should_stop;
    session->stop_arg = arg;
    pthread_mutex_unlock(&session->lock);
}

void dt_client_end(dt_session_t *session, dt_status_t code, const char *text)
{
    if (session->state == DT_CLIENT_ENDED)
        return;
    (void)dt_fail(&session->end, code, "dt", 0, "%s", text);
    session->state = DT_CLIENT_ENDED;
    for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next)
        DT_CONTAINER_OF(at, dt_client_query_t, link)->is_done = true;
    dt_client_futures_end(session);
    dt_client_changed(session);
}

/* ---- memory ---- */

static void destroy(dt_session_t *session)
{
    dt_client_stream_fini(session);
    while (session->tensor_pool) {
        dt_tensor_t *tensor = session->tensor_pool;
        session->tensor_pool = tensor->next_free;
        free(tensor);
    }
    for (uint32_t i = 0; i < session->failure_count; i++)
        free(session->failures[i]);
    for (uint32_t i = 0; i < session->source_count; i++)
        free(session->sources[i]);
    free(session->sources);
    free(session->futures);
    free(session->bindings);
    free(session->has_mesh);
    free(session->sync_tensors);
    free(session->source_index);
    dt_client_explain_fini(session);
    dt_client_track_fini(session);
    dt_client_places_fini(session);
    dt_client_metas_fini(&session->metas);
    dt_client_cache_fini(&session->cache);
    dt_client_ahead_fini(session);
    dt_client_settings_fini(&session->settings);
    pthread_cond_destroy(&session->changed);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

void dt_client_unuse_unlock(dt_session_t *session)
{
    bool is_last = --session->users == 0;
    pthread_mutex_unlock(&session->lock);
    if (is_last)
        destroy(session);
}

dt_session_t *dt_client_create(dt_error_t *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    dt_session_t *session = calloc(1, sizeof *session);
    pthread_condattr_t attributes;
    if (!session) {
        (void)dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
        return NULL;
    }
    (void)pthread_once(&once, watch_fork);
    session->generation = atomic_load(&dt_client_generation);
    pthread_mutex_init(&session->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&session->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    session->users = 1;
    session->next_sequence = session->next_tensor = session->future_base = session->future_next = 1;
    session->flush_bytes = DT_FRAME_FLUSH_BYTES;
    dt_list_init(&session->frames);
    dt_list_init(&session->queries);
    dt_list_init(&session->uploads);
    dt_list_init(&session->downloads);
    dt_list_init(&session->paths);
    dt_buf_init(&session->cache.body, DT_SIGNATURE_BYTES_MAX);
    (void)dt_fail(&session->end, DT_ERR_TIMEOUT, "dt", 0, "nobody answers");
    return session;
}

/* End the I/O thread. Nobody else uses the session any more, but tensors and futures may.
 * Errors: those of the recording. */
static dt_status_t close_session(dt_session_t *session, dt_error_t *err)
{
    pthread_mutex_lock(&session->lock);
    session->should_end = true;
    dt_client_end(session, DT_ERR_STOPPED, "the session was ended by its program");
    dt_client_io_kick(session);
    pthread_mutex_unlock(&session->lock);
    if (session->has_thread)
        (void)pthread_join(session->thread, NULL);
    while (!dt_list_is_empty(&session->uploads))
        dt_client_upload_free(
            DT_CONTAINER_OF(dt_list_pop(&session->uploads), dt_client_upload_t, link));
    dt_status_t status = dt_client_record_close(session, err);
    pthread_mutex_lock(&session->lock);
    dt_client_unuse_unlock(session);
    return status;
}

/* ---- connecting ---- */

static dt_status_t await_welcome(dt_session_t *session, dt_error_t *err)
{
    int64_t deadline_ns = dt_loop_now_ns() + session->settings.connect_timeout_ns;
    dt_status_t status = DT_OK;
    pthread_mutex_lock(&session->lock);
    while (session->state == DT_CLIENT_CONNECTING && dt_client_wait(session, deadline_ns))
        ;
    if (session->state == DT_CLIENT_CONNECTING || session->state == DT_CLIENT_ENDED) {
        bool is_late = session->state == DT_CLIENT_CONNECTING;
        status =
            dt_fail(err, session->end.code, session->end.source, session->end.source_code, "%s%s%s",
                    session->settings.is_private ? "" : session->settings.addresses[0],
                    session->settings.is_private ? "" : ": ", session->end.text);
        if (is_late && err && status != DT_ERR_AGAIN)
            err->code = status = DT_ERR_AGAIN;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

dt_status_t dt_connect(const dt_connect_options_t *options, dt_session_t **ret_session,
                       dt_error_t *err)
{
    dt_session_t *session = dt_client_create(err);
    dt_status_t status;
    if (!session)
        return DT_ERR_NOMEM;
    status = dt_client_settings(&session->settings, options, err);
    if (status == DT_OK) {
        session->has_mesh = calloc(session->settings.vdev_count, 1);
        session->sync_tensors = calloc(session->settings.vdev_count, sizeof *session->sync_tensors);
        if (!session->has_mesh || !session->sync_tensors)
            status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    }
    session->track.is_on = session->settings.vdev_count > 1;
    if (status == DT_OK)
        status = dt_client_record_open(session, err);
    if (status == DT_OK)
        status = dt_client_io_start(session, err);
    if (status == DT_OK)
        status = await_welcome(session, err);
    if (status != DT_OK) {
        (void)close_session(session, NULL);
        return status;
    }
    *ret_session = session;
    return DT_OK;
}

dt_status_t dt_disconnect(dt_session_t *session, int64_t timeout_ms, dt_failure_t *failure)
{
    dt_error_t err;
    dt_status_t status;
    if (!session)
        return DT_OK;
    if (dt_client_is_forked(session)) {
        (void)dt_client_forked(&err);
        return dt_client_failure_from(failure, &err);
    }
    status = dt_synchronize(session, timeout_ms, &err);
    if (status != DT_OK)
        status = dt_client_failure_from(failure, &err);
    pthread_mutex_lock(&session->lock);
    if (session->failure_count > 0)
        status = dt_client_failure_give(session->failures[0], failure);
    pthread_mutex_unlock(&session->lock);
    if (close_session(session, &err) != DT_OK && status == DT_OK)
        status = dt_client_failure_from(failure, &err);
    return status;
}

/* ---- what is known ---- */

dt_status_t dt_session_info(dt_session_t *session, dt_session_info_t *info)
{
    dt_session_info_t full = {.struct_size = sizeof full};
    size_t size = info->struct_size;
    if (dt_client_is_forked(session))
        return DT_ERR_STOPPED;
    if (size < sizeof info->struct_size || size > sizeof full)
        return DT_ERR_INVALID;
    pthread_mutex_lock(&session->lock);
    full.session = session->number;
    full.vdev_count = session->settings.vdev_count;
    full.is_connected = session->state == DT_CLIENT_LIVE;
    full.is_private = session->settings.is_private;
    full.epoch = session->epoch;
    full.failures = session->failure_count;
    full.reconnects = session->reconnects;
    full.records = dt_client_sequence(session) - 1;
    full.accepted = session->acked_sequence;
    full.bytes = session->appended_bytes;
    if (session->open)
        full.bytes += session->writer.len - DT_FRAME_HEADER_BYTES;
    full.signatures = session->cache.signature_count;
    full.queries = session->queries_asked;
    full.window_bytes = session->window_bytes;
    full.direct_bytes = session->direct_bytes;
    full.relayed_bytes = session->relayed_bytes;
    (void)dt_str_copy(full.detour, sizeof full.detour, session->detour);
    pthread_mutex_unlock(&session->lock);
    full.struct_size = size;
    memcpy(info, &full, size);
    return DT_OK;
}

dt_status_t dt_session_bindings(dt_session_t *session, dt_binding_t *ret_bindings, uint32_t max,
                                uint32_t *ret_count)
{
    if (dt_client_is_forked(session))
        return DT_ERR_STOPPED;
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < session->binding_count && i < max; i++)
        ret_bindings[i] = session->bindings[i];
    *ret_count = session->binding_count;
    pthread_mutex_unlock(&session->lock);
    return DT_OK;
}
