/* A client library as a model: frames, their credit, a session that comes back, answers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "wire/wire.h"

#define BEAT_NS (200 * STREAM_MS)

/* ---- frames ---- */

static void send_frame(stream_t *s, stream_client_t *c, const stream_frame_t *frame)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame = (ProtobufCBinaryData){frame->size, frame->bytes};
    stream_pack_say(s, c->pipe, &up.base);
    c->said_ns = s->now_ns;
}

static void make_frame(stream_t *s, stream_client_t *c)
{
    static uint8_t bytes[DT_FRAME_BYTES_MAX];
    uint64_t wanted = 1 + stream_random(s, 12);
    dt_frame_writer_t w;
    stream_frame_t *frame = &c->kept[c->kept_count];
    if (c->kept_count == STREAM_KEPT)
        return;
    dt_frame_begin(&w, bytes, sizeof bytes, c->sequence, STREAM_EPOCH);
    for (uint64_t i = 0; i < wanted && c->made < STREAM_RECORDS; i++)
        stream_put_next(s, c, &w);
    if (w.count == 0)
        return;
    *frame = (stream_frame_t){.first = c->sequence, .count = w.count};
    frame->size = dt_frame_end(&w, stream_chance(s, 20) ? DT_FRAME_SYNC : 0);
    c->sent_bytes += frame->size - DT_FRAME_HEADER_BYTES;
    if (c->sent_bytes > c->credit)
        stream_fail(s, "a small program ran out of credit");
    frame->bytes = malloc(frame->size);
    if (!frame->bytes)
        abort();
    memcpy(frame->bytes, bytes, frame->size);
    c->sequence += frame->count;
    c->kept_count++;
    send_frame(s, c, frame);
}

/* Drop frames up to a record. */
static void acknowledged(stream_client_t *c, uint64_t sequence)
{
    uint32_t gone = 0;
    while (gone < c->kept_count && c->kept[gone].first + c->kept[gone].count - 1 <= sequence)
        free(c->kept[gone++].bytes);
    c->kept_count -= gone;
    memmove(c->kept, c->kept + gone, c->kept_count * sizeof c->kept[0]);
}

void stream_client_repeat(stream_t *s, int client)
{
    stream_client_t *c = &s->clients[client];
    if (c->pipe < 0 || !c->is_welcome || !c->kept_count)
        return;
    uint32_t at = (uint32_t)stream_random(s, c->kept_count);
    dt_frame_restamp(c->kept[at].bytes, c->kept[at].size, STREAM_EPOCH);
    send_frame(s, c, &c->kept[at]);
}

/* ---- the session ---- */

static void say_hello(stream_t *s, int client)
{
    stream_client_t *c = &s->clients[client];
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello = DTORCH__V1__SESSION_HELLO__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    hello.version = &version;
    hello.device_count = s->vdev_count;
    hello.session = c->session;
    if (c->session)
        hello.resume_token = (ProtobufCBinaryData){sizeof c->token, c->token};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    c->pipe = stream_open(s, DT_SESSION_STREAM_CLIENT, client);
    c->is_welcome = false;
    if (c->pipe >= 0)
        stream_pack_say(s, c->pipe, &up.base);
    c->said_ns = s->now_ns;
}

static void say_beat(stream_t *s, stream_client_t *c)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BEAT;
    up.beat = &beat;
    stream_pack_say(s, c->pipe, &up.base);
    c->said_ns = s->now_ns;
}

static void say_done(stream_t *s, stream_client_t *c)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__FuturesDone done = DTORCH__V1__FUTURES_DONE__INIT;
    while (c->done + 1 < c->next_future && c->answers[c->done + 1])
        c->done++;
    done.future = c->done;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_DONE;
    up.done = &done;
    stream_pack_say(s, c->pipe, &up.base);
}

static void say_bye(stream_t *s, stream_client_t *c)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionBye bye = DTORCH__V1__SESSION_BYE__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BYE;
    up.bye = &bye;
    stream_pack_say(s, c->pipe, &up.base);
    c->is_done = true;
}

void stream_client_wake(stream_t *s, int client)
{
    stream_client_t *c = &s->clients[client];
    c->wake_ns = s->now_ns + 50000 + (int64_t)stream_random(s, 8 * STREAM_MS);
    if (c->pipe < 0) {
        if (s->now_ns >= c->dial_ns)
            say_hello(s, client);
        return;
    }
    if (!c->is_welcome)
        return;
    if (c->made < STREAM_RECORDS)
        make_frame(s, c);
    else if (c->answered + 1 == c->next_future && !c->kept_count && !c->is_done)
        say_bye(s, c);
    if (stream_chance(s, 20))
        say_done(s, c);
    if (s->now_ns - c->said_ns > BEAT_NS)
        say_beat(s, c);
}

static void on_welcome(stream_t *s, stream_client_t *c, const Dtorch__V1__SessionWelcome *welcome)
{
    stream_trace(s, "session %" PRIu64 " goes on at %" PRIu64, welcome->session,
                 welcome->next_sequence);
    if (c->session && c->session != welcome->session)
        stream_fail(s, "a resume gave another session");
    c->resumes += c->session != 0;
    c->session = welcome->session;
    memcpy(c->token, welcome->resume_token.data, sizeof c->token);
    c->credit = welcome->credit_bytes;
    c->is_welcome = true;
    acknowledged(c, welcome->next_sequence - 1);
    for (uint32_t i = 0; i < c->kept_count; i++) {
        dt_frame_restamp(c->kept[i].bytes, c->kept[i].size, STREAM_EPOCH);
        send_frame(s, c, &c->kept[i]);
    }
}

static void on_result(stream_t *s, stream_client_t *c, const Dtorch__V1__Result *result)
{
    uint64_t value = 0;
    uint8_t kind = result->error ? 2 : 1;
    if (result->future == 0 || result->future >= c->next_future) {
        stream_fail(s, "an answer to a question that was not asked: %" PRIu64, result->future);
        return;
    }
    if (result->value.len == sizeof value)
        memcpy(&value, result->value.data, sizeof value);
    if (kind == 1 && c->is_error[result->future])
        stream_fail(s, "future %" PRIu64 " of what was lied about gave a value", result->future);
    else if (kind == 1 && value != c->expected[result->future])
        stream_fail(s, "future %" PRIu64 " gave a wrong value", result->future);
    if (c->answers[result->future] && c->answers[result->future] != kind)
        stream_fail(s, "future %" PRIu64 " was answered in two ways", result->future);
    c->answered += c->answers[result->future] == 0;
    c->answers[result->future] = kind;
}

static void on_refusal(stream_t *s, stream_client_t *c, const Dtorch__V1__Refusal *refusal)
{
    stream_trace(s, "refused: %s", refusal->text);
    if (!refusal->retry && !c->is_done)
        stream_fail(s, "an innocent client was refused: %s", refusal->text);
}

void stream_client_message(stream_t *s, int client, const uint8_t *data, size_t size)
{
    stream_client_t *c = &s->clients[client];
    Dtorch__V1__SessionDown *down = dtorch__v1__session_down__unpack(NULL, size, data);
    if (!down || dt_wire_validate(&down->base, NULL) != DT_OK) {
        stream_fail(s, "the machine sent nonsense to a client");
        return;
    }
    if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_WELCOME)
        on_welcome(s, c, down->welcome);
    else if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_ACK) {
        acknowledged(c, down->ack->sequence);
        c->credit = down->ack->credit_bytes;
    } else if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_RESULT)
        on_result(s, c, down->result);
    else if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_REFUSAL)
        on_refusal(s, c, down->refusal);
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

void stream_client_ended(stream_t *s, int client)
{
    stream_client_t *c = &s->clients[client];
    c->pipe = -1;
    c->is_welcome = false;
    c->dial_ns = s->now_ns + (int64_t)stream_random(s, 60 * STREAM_MS);
    if (c->is_done)
        c->is_over = true; /* if its Bye was lost, the grace ends the session */
}
