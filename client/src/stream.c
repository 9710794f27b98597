/* The open frame and the frames that are kept. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* ---- memory ---- */

static dt_client_frame_t *frame_new(dt_session_t *session, size_t cap)
{
    dt_client_frame_t *frame = session->spare;
    if (frame && frame->cap >= cap) {
        session->spare = NULL;
        return frame;
    }
    frame = malloc(sizeof *frame + DT_CLIENT_ENVELOPE + cap);
    if (!frame)
        return NULL;
    *frame = (dt_client_frame_t){.cap = cap};
    frame->bytes = (uint8_t *)(frame + 1) + DT_CLIENT_ENVELOPE;
    return frame;
}

static void frame_free(dt_session_t *session, dt_client_frame_t *frame)
{
    if (!session->spare && frame->cap >= session->flush_bytes)
        session->spare = frame;
    else
        free(frame);
}

void dt_client_stream_fini(dt_session_t *session)
{
    for (dt_list_t *at = session->frames.next, *next; at != &session->frames; at = next) {
        next = at->next;
        free(DT_CONTAINER_OF(at, dt_client_frame_t, link));
    }
    dt_list_init(&session->frames);
    free(session->open);
    free(session->spare);
    session->open = session->spare = NULL;
    session->unsent = NULL;
    free(session->frees);
    session->frees = NULL;
}

/* ---- closing ---- */

/* A frame that is closed early would keep a whole frame's memory until it is acknowledged. */
static dt_client_frame_t *shrink(dt_session_t *session, dt_client_frame_t *frame)
{
    dt_client_frame_t *small;
    if (frame->size > frame->cap / 4)
        return frame;
    small = malloc(sizeof *small + DT_CLIENT_ENVELOPE + frame->size);
    if (!small)
        return frame;
    *small = *frame;
    small->cap = frame->size;
    small->bytes = (uint8_t *)(small + 1) + DT_CLIENT_ENVELOPE;
    memcpy(small->bytes, frame->bytes, frame->size);
    frame_free(session, frame);
    return small;
}

static void close_open(dt_session_t *session)
{
    dt_client_frame_t *frame = session->open;
    session->open = NULL;
    frame->first = session->writer.first_sequence;
    frame->last = frame->first + session->writer.count - 1;
    frame->size = dt_frame_end(&session->writer, session->wants_ack ? DT_FRAME_SYNC : 0);
    session->wants_ack = false;
    frame->is_sent = frame->is_counted = false;
    session->next_sequence = frame->last + 1;
    session->appended_bytes += frame->size - DT_FRAME_HEADER_BYTES;
    frame = shrink(session, frame);
    dt_list_push(&session->frames, &frame->link);
    if (!session->unsent)
        session->unsent = frame;
    session->unsent_bytes += frame->size;
}

void dt_client_close_frame(dt_session_t *session)
{
    dt_client_put_frees(session, false);
    if (session->open && session->writer.count > 0)
        close_open(session);
    if (session->unsent)
        dt_client_io_kick(session);
}

/* ---- room ---- */

/* Write one record of what the program has freed, if there is room. */
static bool put_free(dt_session_t *session)
{
    dt_record_t record = {.kind = DT_RECORD_FREE};
    uint32_t count =
        session->free_count < DT_RECORD_FREE_MAX ? session->free_count : DT_RECORD_FREE_MAX;
    record.ids.count = count;
    record.ids.ids = session->frees;
    if (!dt_record_put(&session->writer, &record))
        return false;
    session->free_count -= count;
    if (session->free_count)
        memmove(session->frees, session->frees + count, session->free_count * sizeof(uint64_t));
    else
        session->free_bytes = 0; /* of a rest it stays too high: it goes the sooner */
    return true;
}

static dt_status_t ended(const dt_session_t *session, dt_error_t *err)
{
    return dt_fail(err, session->end.code, session->end.source, session->end.source_code, "%s",
                   session->end.text);
}

/* How long the frame that is opened now stays open for more. A program that has waited for nothing
 * for a while would gain little by being a little ahead: it may hold back twice as long as it has
 * been busy. What is executed to the last byte has to be given something soon. */
static void set_hold(dt_session_t *session)
{
    const dt_client_settings_t *settings = &session->settings;
    bool is_idle =
        !session->unsent && session->sent_payload + session->credit_first == session->credit_bytes;
    if (is_idle || session->has_awaited)
        session->busy_since_ns = session->open_ns;
    session->has_awaited = false;
    int64_t run_ns = session->open_ns - session->busy_since_ns;
    session->hold_ns = run_ns < settings->linger_max_ns / 2 ? 2 * run_ns : settings->linger_max_ns;
    if (session->hold_ns < settings->linger_ns)
        session->hold_ns = settings->linger_ns;
}

static dt_status_t open_frame(dt_session_t *session, size_t bound, dt_error_t *err)
{
    size_t cap = DT_FRAME_HEADER_BYTES + bound + DT_CLIENT_FREES;
    if (cap > DT_FRAME_BYTES_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", (int64_t)bound, "a record of %zu bytes", bound);
    if (cap < session->flush_bytes)
        cap = session->flush_bytes;
    session->open = frame_new(session, cap);
    if (!session->open)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a frame");
    dt_frame_begin(&session->writer, session->open->bytes, session->open->cap,
                   session->next_sequence, session->epoch);
    session->open_ns = dt_loop_now_ns();
    session->since_look = 0;
    set_hold(session);
    if (!session->is_ticking) {
        session->is_ticking = true;
        dt_client_io_kick(session); /* it arms the tail's timer */
    }
    return DT_OK;
}

dt_status_t dt_client_room(dt_session_t *session, size_t bound, int64_t deadline_ns,
                           dt_error_t *err)
{
    for (;;) {
        if (session->state == DT_CLIENT_ENDED)
            return ended(session, err);
        if (dt_client_has_room(session, bound))
            return DT_OK;
        if (session->open && session->writer.count > 0) {
            dt_client_close_frame(session);
            continue;
        }
        if (session->open) { /* empty and too small for this record */
            free(session->open);
            session->open = NULL;
        }
        if (session->unsent_bytes <= DT_CLIENT_UNSENT_MAX) {
            DT_TRY(open_frame(session, bound, err));
            if (session->free_bytes >= DT_CLIENT_FREE_BYTES)
                (void)put_free(session); /* for it there is room beside `bound` */
            return DT_OK;
        }
        if (!dt_client_wait(session, deadline_ns))
            return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "the session's window is full");
    }
}

/* ---- appending ---- */

static void appended(dt_session_t *session)
{
    if (++session->since_look < DT_CLIENT_LINGER_LOOK)
        return;
    session->since_look = 0;
    if (dt_client_has_lingered(session, dt_loop_now_ns()))
        dt_client_close_frame(session);
}

void dt_client_put(dt_session_t *session, const dt_record_t *record)
{
    dt_check(dt_record_put(&session->writer, record));
    appended(session);
}

void dt_client_put_op(dt_session_t *session, const dt_record_op_t *op)
{
    dt_check(dt_record_put_op(&session->writer, op));
    if (session->explain)
        dt_client_explain_note(session, op->signature);
    appended(session);
}

void dt_client_put_part(dt_session_t *session, const dt_record_op_t *op)
{
    dt_check(dt_record_put_op(&session->writer, op));
    if (session->explain)
        dt_client_explain_note(session, op->signature);
}

void dt_client_put_end(dt_session_t *session)
{
    appended(session);
}

size_t dt_client_op_bound(uint32_t inputs, uint32_t outputs, uint32_t scalars)
{
    return 32 + DT_VARINT_BYTES_MAX * ((size_t)inputs + outputs) +
           (1 + DT_VARINT_BYTES_MAX) * (size_t)scalars;
}

dt_status_t dt_client_append(dt_session_t *session, const dt_record_t *record, dt_error_t *err)
{
    DT_TRY(dt_client_room(session, dt_record_bound(record), INT64_MAX, err));
    dt_client_put(session, record);
    return DT_OK;
}

uint64_t dt_client_sequence(const dt_session_t *session)
{
    return session->open ? session->writer.first_sequence + session->writer.count
                         : session->next_sequence;
}

/* ---- frees ---- */

/* Write what the program has freed, as far as there is room without waiting. At the tail a frame
 * may be opened for it. */
void dt_client_put_frees(dt_session_t *session, bool is_tail)
{
    while (session->free_count > 0) {
        if (!session->open &&
            (!is_tail || session->state == DT_CLIENT_ENDED ||
             session->unsent_bytes > DT_CLIENT_UNSENT_MAX || open_frame(session, 0, NULL) != DT_OK))
            break;
        if (put_free(session))
            continue;
        if (!is_tail || session->writer.count == 0)
            break;
        close_open(session);
    }
}

/* ---- acknowledgement and resume ---- */

void dt_client_accepted(dt_session_t *session, uint64_t sequence)
{
    bool has_room = false;
    for (dt_list_t *at = session->frames.next, *next; at != &session->frames; at = next) {
        dt_client_frame_t *frame = DT_CONTAINER_OF(at, dt_client_frame_t, link);
        next = at->next;
        if (frame->last > sequence || !frame->is_counted)
            break;
        if (session->unsent == frame) { /* accepted on a stream that broke */
            session->unsent =
                next == &session->frames ? NULL : DT_CONTAINER_OF(next, dt_client_frame_t, link);
            session->unsent_bytes -= frame->size;
            has_room = true;
        }
        dt_list_remove(&frame->link);
        frame_free(session, frame);
    }
    if (sequence > session->acked_sequence)
        session->acked_sequence = sequence;
    if (has_room)
        dt_client_changed(session);
}

void dt_client_resume(dt_session_t *session, uint64_t next_sequence)
{
    session->unsent = NULL;
    session->unsent_bytes = 0;
    dt_client_accepted(session, next_sequence - 1);
    for (dt_list_t *at = session->frames.next; at != &session->frames; at = at->next) {
        dt_client_frame_t *frame = DT_CONTAINER_OF(at, dt_client_frame_t, link);
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): freed ones are in the list no more */
        if (frame->is_counted)
            dt_frame_restamp(frame->bytes, frame->size, session->epoch);
        frame->is_sent = false;
        session->unsent_bytes += frame->size;
        if (!session->unsent)
            session->unsent = frame;
    }
    session->sent_sequence = session->acked_sequence;
    session->writer.epoch = session->epoch;
    dt_client_changed(session);
}
