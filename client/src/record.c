/* The session written to a file as it goes (wire/recording.h), for `dtorchctl diag decode` and to
 * play it again. Only the I/O thread writes; where the lock is held too, the disk may be waited
 * for with it: who records wants the recording. A file that takes no more ends the recording, not
 * the session; dt_disconnect() tells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "client.h"
#include "wire/recording.h"
#include "wire/wire.h"

dt_status_t dt_client_record_open(dt_session_t *session, dt_error_t *err)
{
    const dt_clock_t *clock = dt_clock_system();
    if (!session->settings.record_file)
        return DT_OK;
    session->io.recording_ns = dt_loop_now_ns();
    return dt_recording_create(session->settings.record_file, dt_clock_wall_ms(clock),
                               &session->io.recording, err);
}

dt_status_t dt_client_record_close(dt_session_t *session, dt_error_t *err)
{
    return dt_recording_close(DT_TAKE(session->io.recording), err);
}

static int64_t now_of(const dt_session_t *session)
{
    return dt_loop_now_ns() - session->io.recording_ns;
}

/* The recording keeps its first error. */
static void add(dt_session_t *session, dt_recording_kind_t kind, const void *content, size_t size)
{
    dt_status_t status =
        dt_recording_add(session->io.recording, kind, now_of(session), content, size, NULL);
    (void)status;
}

static void add_message(dt_session_t *session, dt_recording_kind_t kind,
                        const ProtobufCMessage *message)
{
    uint8_t *bytes;
    size_t size;
    if (dt_wire_pack_new(message, &bytes, &size) != DT_OK)
        return;
    add(session, kind, bytes, size);
    free(bytes);
}

void dt_client_record_hello(dt_session_t *session, const Dtorch__V1__SessionHello *hello)
{
    if (!session->io.recording || session->io.is_hello_recorded)
        return;
    session->io.is_hello_recorded = true; /* others are the same attempt again */
    add_message(session, DT_RECORDING_HELLO, &hello->base);
}

void dt_client_record_welcome(dt_session_t *session, const Dtorch__V1__SessionWelcome *welcome)
{
    Dtorch__V1__SessionWelcome shown = *welcome;
    shown.resume_token = (ProtobufCBinaryData){0, NULL}; /* a secret while the session lives */
    if (session->io.recording)
        add_message(session, DT_RECORDING_BINDINGS, &shown.base);
}

void dt_client_record_frame(dt_session_t *session, const dt_client_frame_t *frame)
{
    if (!session->io.recording || frame->last <= session->io.recorded_sequence)
        return;
    session->io.recorded_sequence = frame->last;
    add(session, DT_RECORDING_FRAME, frame->bytes, frame->size);
}

void dt_client_record_chunk(dt_session_t *session, dt_client_upload_t *upload, size_t size)
{
    size_t end = upload->sent + size;
    while (session->io.recording && upload->recorded < end) {
        size_t left = end - upload->recorded;
        const dt_recording_chunk_t chunk = {
            .transfer = upload->number,
            .offset = upload->recorded,
            .bytes = upload->data + upload->recorded,
            .size = left < DT_CLIENT_BULK_CHUNK ? left : DT_CLIENT_BULK_CHUNK,
        };
        dt_status_t status =
            dt_recording_add_chunk(session->io.recording, now_of(session), &chunk, NULL);
        (void)status;
        upload->recorded += chunk.size;
    }
}

void dt_client_record_result(const dt_future_t *future, dt_status_t result)
{
    dt_session_t *session = future->session;
    char text[sizeof future->failure->kind + sizeof future->failure->text + 2];
    if (!session->io.recording || future->is_dropped)
        return;
    dt_recording_result_t record = {
        .future = future->number, .status = result, .meta = future->meta};
    if (result == DT_OK) {
        record.size_bytes = future->size;
        record.crc32c = dt_crc32c(0, future->data, future->size);
    } else if (future->failure) {
        (void)snprintf(text, sizeof text, "%s: %s", future->failure->kind, future->failure->text);
        record.text = text;
        record.text_bytes = strlen(text);
    }
    dt_status_t status =
        dt_recording_add_result(session->io.recording, now_of(session), &record, NULL);
    (void)status;
}

void dt_client_record_fault(dt_session_t *session, const Dtorch__V1__Fault *fault)
{
    if (session->io.recording)
        add_message(session, DT_RECORDING_FAULT, &fault->base);
}

void dt_client_record_end(dt_session_t *session)
{
    if (session->io.recording)
        add(session, DT_RECORDING_END, "", 0);
}
