/* Sessions and their turns. */
#include "engine_exec.h"

#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"

#define DT_EXEC_LOOK_RECORDS 64u /* the clock is read at least so often */

dt_status_t dt_exec_create(const dt_exec_options_t *options, dt_exec_t **ret_exec, dt_error_t *err)
{
    dt_exec_t *exec = calloc(1, sizeof *exec);
    if (exec) {
        exec->options = *options;
        exec->results = calloc(DT_RECORD_OUTPUTS_MAX, sizeof *exec->results);
        exec->scratch = malloc(DT_EXEC_SCRATCH_BYTES);
    }
    if (!exec || !exec->results || !exec->scratch) {
        dt_exec_free(exec);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the executor");
    }
    (void)dt_exec_now(exec);
    *ret_exec = exec;
    return DT_OK;
}

void dt_exec_free(dt_exec_t *exec)
{
    if (!exec)
        return;
    while (exec->session_count > 0)
        dt_exec_close(exec, exec->sessions[0]->instance);
    while (exec->storage_batches) {
        dt_exec_storage_batch_t *batch = exec->storage_batches;
        exec->storage_batches = batch->next;
        free(batch);
    }
    dt_shard_rules_free(exec->rules);
    free(exec->results);
    free(exec->scratch);
    free(exec);
}

uint32_t dt_exec_session_count(const dt_exec_t *exec)
{
    return exec->session_count;
}

/* ---- opening and closing ---- */

static dt_status_t vdevs_copy(dt_exec_session_t *session, const dt_channel_t *channel,
                              dt_error_t *err)
{
    uint32_t count = channel->vdev_count;
    if (count == 0 || count > DT_CHANNEL_VDEVS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", count, "a session with %u devices here", count);
    session->vdevs = malloc(count * sizeof *session->vdevs);
    if (!session->vdevs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    memcpy(session->vdevs, channel->vdevs, count * sizeof *session->vdevs);
    session->vdev_count = count;
    return DT_OK;
}

static dt_status_t rings_open(dt_exec_session_t *session, dt_error_t *err)
{
    dt_channel_t *channel = session->memory.channel;
    uint32_t reader;
    DT_TRY(dt_ring_reader_init(&session->frames, session->memory.down,
                               DT_RING_HEAD_BYTES + DT_CHANNEL_FRAMES_BYTES, &channel->frames, -1,
                               err));
    DT_TRY(dt_ring_reader_init(&session->bulk, session->memory.down + DT_CHANNEL_BULK_AT,
                               DT_RING_HEAD_BYTES + DT_CHANNEL_BULK_BYTES, &channel->bulk,
                               session->exec->options.bell, err));
    DT_TRY(dt_ring_writer_init(&session->up, (uint8_t *)channel + DT_CHANNEL_CONTROL_BYTES,
                               DT_CHANNEL_UP_BYTES, err));
    return dt_ring_join(&session->up, &channel->up, session->exec->options.bell, &reader, err);
}

static void session_free(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    dt_exec_memory_use(session->memory.arena);
    dt_exec_move_leave(session);
    dt_exec_trace_end(session);
    dt_exec_bulk_fini(session);
    dt_exec_window_drop(session);
    dt_exec_table_fini(session);
    exec->named = NULL;
    for (uint32_t i = 0; i < session->plan_count; i++)
        dt_exec_plan_free(session->plans[i]);
    for (uint32_t i = 0; i < session->stat_count; i++) {
        free(session->stats[i]->name);
        free(session->stats[i]);
    }
    for (uint32_t i = 0; session->sources && i < DT_EXEC_SOURCES_MAX; i++)
        free(session->sources[i]);
    for (uint32_t i = 0; i < session->stream_count; i++)
        exec->options.backend->generator_free(exec->options.device, session->streams[i].number);
    dt_exec_memory_use(NULL);
    dt_frame_reader_fini(&session->reader);
    free(session->record);
    free(session->plans);
    dt_exec_mesh_fini(session);
    free(session->stats);
    free(session->sources);
    free(session->streams);
    free(session->vdevs);
    free(session);
}

static dt_exec_session_t **session_find(dt_exec_t *exec, uint32_t instance)
{
    for (uint32_t i = 0; i < exec->session_count; i++)
        if (exec->sessions[i]->instance == instance)
            return &exec->sessions[i];
    return NULL;
}

dt_status_t dt_exec_open(dt_exec_t *exec, uint32_t instance, const dt_exec_memory_t *memory,
                         dt_error_t *err)
{
    if (session_find(exec, instance))
        return dt_fail(err, DT_ERR_EXISTS, "dt", instance, "instance %u is open", instance);
    if (exec->session_count == DT_EXEC_SESSIONS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_EXEC_SESSIONS_MAX, "%u sessions are open",
                       DT_EXEC_SESSIONS_MAX);
    dt_exec_session_t *session = calloc(1, sizeof *session);
    if (!session)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    session->exec = exec;
    session->instance = instance;
    session->memory = *memory;
    session->id = memory->channel->session;
    session->device = memory->channel->device;
    memcpy(session->node, memory->channel->node, sizeof session->node - 1);
    dt_list_init(&session->uploads);
    dt_list_init(&session->downloads);
    dt_list_init(&session->early);
    dt_moves_init(&session->moves);
    session->origin = &session->here;
    session->record = malloc(sizeof *session->record);
    dt_status_t status = session->record
                             ? vdevs_copy(session, memory->channel, err)
                             : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    if (status == DT_OK && !dt_exec_mesh_init(session))
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    if (status == DT_OK)
        status = rings_open(session, err);
    if (status == DT_OK && exec->options.transport)
        status = dt_transport_open(exec->options.transport, instance, session->memory.arena,
                                   session->vdevs, session->vdev_count, err);
    if (status != DT_OK) {
        session_free(session);
        return status;
    }
    exec->sessions[exec->session_count++] = session;
    return DT_OK;
}

void dt_exec_close(dt_exec_t *exec, uint32_t instance)
{
    dt_exec_session_t **place = session_find(exec, instance);
    if (!place)
        return;
    dt_exec_session_t *session = *place;
    dt_exec_memory_t memory = session->memory;
    *place = exec->sessions[--exec->session_count];
    session_free(session);
    if (memory.closed)
        memory.closed(memory.arg, &memory);
}

/* ---- frames ---- */

static void session_break(dt_exec_session_t *session, const char *what, int64_t number)
{
    if (session->is_broken)
        return;
    session->is_broken = true;
    (void)dt_fail(&session->broken, DT_ERR_INTERNAL, "dt", number,
                  "the stream of this session to the engine broke: %s", what);
}

static void frame_end(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    const dt_frame_header_t *header = &session->reader.header;
    session->next = header->first_sequence + header->count;
    session->payload += header->payload_bytes;
    if (session->unreported_ns == 0)
        session->unreported_ns = exec->now_ns;
    session->has_frame = false;
    dt_ring_pass(&session->frames);
    if (session->payload >= DT_EXEC_REPORT_BYTES)
        dt_exec_report(session);
}

/* Whether the frame in `reader` brings something new. */
static bool frame_accept(dt_exec_session_t *session)
{
    const dt_frame_header_t *header = &session->reader.header;
    if (session->next == 0)
        session->next = header->first_sequence;
    if (header->first_sequence + header->count <= session->next)
        return false;
    if (header->first_sequence > session->next)
        session_break(session, "records are missing", (int64_t)session->next);
    return true;
}

/* Stand before the records of the next frame. False: there is none. */
static bool frame_next(dt_exec_session_t *session)
{
    dt_ring_message_t message;
    while (dt_ring_peek(&session->frames, &message) == DT_OK) {
        uint32_t limit;
        if (message.kind == DT_CHANNEL_LIST && message.size == sizeof limit) {
            dt_exec_list(session);
        } else if (message.kind == DT_CHANNEL_TRACE && message.size == sizeof limit) {
            memcpy(&limit, message.bytes, sizeof limit);
            dt_exec_trace_begin(session, limit);
        } else if (message.kind == DT_CHANNEL_FRAME) {
            int error = dt_frame_open(&session->reader, message.bytes, message.size);
            if (error)
                session_break(session, dt_frame_error_text(error), error);
            else if (frame_accept(session))
                return session->has_frame = true;
        }
        dt_ring_pass(&session->frames);
    }
    return false;
}

/* Decode the next record that was not performed. False: there is none. */
static bool record_next(dt_exec_session_t *session)
{
    for (;;) {
        bool is_end = false;
        if (!session->has_frame && !frame_next(session))
            return false;
        int error = dt_record_next(&session->reader, session->record, &is_end);
        if (error)
            session_break(session, dt_frame_error_text(error), error);
        if (error || is_end)
            frame_end(session);
        else if (session->record->sequence >= session->next)
            return session->has_record = true;
    }
}

/* ---- turns ---- */

/* Whether a record leaves all tensors as they are. */
static bool is_harmless(const dt_record_t *record)
{
    return record->kind == DT_RECORD_FETCH || record->kind == DT_RECORD_MARK;
}

/* The record at hand was not performed. */
static void wait_begin(dt_exec_session_t *session)
{
    if (session->moves.count > 0 && session->wait_since_ns == 0)
        session->wait_since_ns = session->exec->now_ns;
}

/* It is now. */
static void wait_end(dt_exec_session_t *session, int64_t now_ns)
{
    dt_exec_move_time(session->exec, DT_ENGINE_MOVE_WAITS, now_ns - session->wait_since_ns);
    session->wait_since_ns = 0;
}

/* Perform what is at hand. */
static bool perform(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    int64_t begin_ns = exec->now_ns;
    session->is_waiting = exec->options.is_serial && session->moves.count > 0;
    if (session->is_waiting || !dt_exec_perform(session)) {
        wait_begin(session);
        return false;
    }
    if (__builtin_expect(session->wait_since_ns != 0, 0))
        wait_end(session, begin_ns);
    return true;
}

/* Perform records until the quantum is over or nothing can be done. Returns whether one was. */
static bool run_records(dt_exec_session_t *session, int64_t until_ns)
{
    dt_exec_t *exec = session->exec;
    uint32_t count = 0;
    while (exec->now_ns < until_ns && session->download_waits == 0) {
        if (!session->has_record && !record_next(session))
            break;
        if (session->has_emitted && !dt_exec_has_room(session))
            break;
        if (session->lazy_count > 0 && !is_harmless(session->record) &&
            !dt_exec_bulk_settle(session))
            break;
        dt_exec_kick(session); /* what comes next may take long */
        if (!perform(session))
            break;
        session->has_record = false;
        session->next = session->record->sequence + 1;
        if (++count % DT_EXEC_LOOK_RECORDS == 0)
            (void)dt_exec_now(exec);
    }
    return count > 0;
}

/* Tell what is due. A session that has nothing more to do tells at once. */
static void tell(dt_exec_session_t *session, bool is_idle)
{
    dt_exec_t *exec = session->exec;
    if (session->trace)
        dt_exec_trace_turn(session);
    if (session->next == 0)
        return;
    uint64_t executed = dt_exec_executed(session);
    atomic_store_explicit(&session->memory.channel->executed, executed, memory_order_relaxed);
    if (session->has_emitted && !dt_exec_has_room(session))
        return;
    if (session->reported != executed) {
        if (session->unreported_ns == 0)
            session->unreported_ns = exec->now_ns;
        if (is_idle || exec->now_ns - session->unreported_ns >= DT_EXEC_REPORT_NS)
            dt_exec_report(session);
    }
    if (session->has_stats && exec->now_ns - session->stats_told_ns >= DT_EXEC_STATS_NS)
        dt_exec_report_stats(session);
}

/* Whether the session may perform records now: it has not had more time than those that want some
 * too. One that had nothing to do has not saved all that time, else it would take over. */
static bool is_its_turn(dt_exec_session_t *session, int64_t least_ns)
{
    int64_t saved_ns = session->exec->fair_ns - DT_EXEC_SAVED_NS;
    if (!session->wants_more && session->spent_ns < saved_ns)
        session->spent_ns = saved_ns;
    return least_ns == INT64_MAX || session->spent_ns <= least_ns + DT_EXEC_QUANTUM_NS;
}

static bool session_turn(dt_exec_session_t *session, int64_t least_ns)
{
    dt_exec_t *exec = session->exec;
    int64_t begin_ns = exec->now_ns;
    dt_exec_memory_use(session->memory.arena);
    session->has_emitted = true;
    dt_exec_bulk_read(session);
    dt_exec_moves_turn(session);
    bool may_run = is_its_turn(session, least_ns);
    bool was_busy = may_run && run_records(session, exec->now_ns + DT_EXEC_QUANTUM_NS);
    bool can_go_on = may_run ? was_busy && !session->is_waiting && !session->is_blocked
                             : session->has_frame || session->has_record;
    bool was_sent = dt_exec_bulk_write(session);
    tell(session, may_run && (!was_busy || (!session->has_record && !session->has_frame)));
    dt_exec_kick(session);
    atomic_store_explicit(&session->memory.channel->running, 0, memory_order_relaxed);
    dt_exec_memory_use(NULL);
    if (was_busy || was_sent)
        session->spent_ns += dt_exec_now(exec) - begin_ns;
    session->wants_more = can_go_on || was_sent;
    return session->wants_more;
}

/* What the one with the least has had of those that want more; INT64_MAX: nobody does. */
static int64_t least_spent(dt_exec_t *exec)
{
    int64_t least_ns = INT64_MAX;
    for (uint32_t i = 0; i < exec->session_count; i++)
        if (exec->sessions[i]->wants_more && exec->sessions[i]->spent_ns < least_ns)
            least_ns = exec->sessions[i]->spent_ns;
    if (least_ns != INT64_MAX && least_ns > exec->fair_ns)
        exec->fair_ns = least_ns;
    return least_ns;
}

bool dt_exec_turn(dt_exec_t *exec)
{
    bool is_busy = false;
    if (exec->options.transport)
        (void)dt_transport_collect(exec->options.transport);
    int64_t least_ns = least_spent(exec);
    (void)dt_exec_now(exec);
    for (uint32_t i = 0; i < exec->session_count; i++)
        is_busy |= session_turn(exec->sessions[i], least_ns);
    if (is_busy || exec->idle_since_ns == 0)
        exec->idle_since_ns = exec->now_ns;
    return is_busy;
}

/* ---- sleeping ---- */

/* Whether something came for this session since its turn. */
static bool has_news(dt_exec_session_t *session)
{
    if (!session->has_frame && !session->has_record && session->download_waits == 0 &&
        dt_ring_prepare_sleep(&session->frames))
        return true;
    if (!session->is_stuck && !session->is_blocked && dt_ring_prepare_sleep(&session->bulk))
        return true;
    if (session->is_blocked && dt_exec_has_room(session))
        return true;
    return dt_exec_bulk_can_write(session);
}

static void trim(dt_exec_t *exec)
{
    for (uint32_t i = 0; i < exec->session_count; i++)
        if (exec->sessions[i]->memory.arena)
            dt_shm_arena_trim(exec->sessions[i]->memory.arena);
    exec->idle_since_ns = INT64_MAX;
}

bool dt_exec_prepare_sleep(dt_exec_t *exec, int64_t *ret_deadline_ns)
{
    int64_t deadline_ns = INT64_MAX;
    if (exec->idle_since_ns != INT64_MAX) {
        if (exec->now_ns - exec->idle_since_ns >= DT_EXEC_TRIM_NS)
            trim(exec);
        else if (exec->session_count > 0)
            deadline_ns = exec->idle_since_ns + DT_EXEC_TRIM_NS;
    }
    for (uint32_t i = 0; i < exec->session_count; i++) {
        dt_exec_session_t *session = exec->sessions[i];
        int64_t due_ns = session->stats_told_ns + DT_EXEC_STATS_NS;
        if (has_news(session))
            return false;
        if (session->has_stats && due_ns < deadline_ns)
            deadline_ns = due_ns;
        if (session->trace && dt_exec_trace_due_ns(session) < deadline_ns)
            deadline_ns = dt_exec_trace_due_ns(session);
    }
    if (exec->options.transport && dt_transport_collect(exec->options.transport))
        return false;
    *ret_deadline_ns = deadline_ns;
    return true;
}
