/* A program and its client library, as a model that knows what each fetch must give. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define BEAT_NS (200 * STREAM_MS)

/* ---- the program ---- */

static bool pick(stream_t *s, const stream_client_t *c, uint32_t vdev, uint64_t *ret_id)
{
    uint64_t from = stream_random(s, c->next_id);
    for (uint64_t i = 0; i < c->next_id; i++) {
        uint64_t id = (from + i) % c->next_id;
        if (id && c->is_live[id] && c->vdev_of[id] == vdev) {
            *ret_id = id;
            return true;
        }
    }
    return false;
}

static uint64_t give_id(stream_client_t *c, uint32_t vdev, uint32_t storage)
{
    uint64_t id = c->next_id++;
    c->is_live[id] = true;
    c->vdev_of[id] = vdev;
    c->storage_of[id] = storage;
    return id;
}

static void put_definition(stream_t *s, dt_frame_writer_t *w, uint32_t number)
{
    uint32_t vdev = number / STREAM_KINDS, kind = number % STREAM_KINDS;
    static const uint8_t aliases[STREAM_KINDS] = {DT_ALIAS_FRESH, DT_ALIAS_IN_PLACE, DT_ALIAS_VIEW};
    dt_value_t args[2] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    dt_signature_tensor_t in[2], out;
    dt_signature_t sig = {.name = "sim::op", .args = args, .inputs = in, .outputs = &out};
    int64_t size = 1;
    dt_buf_t body;
    sig.arg_count = sig.input_count = kind == 0 ? 2 : 1;
    sig.output_count = 1;
    memset(in, 0, sizeof in);
    if (dt_meta_set(&in[0].meta, DT_DTYPE_I64, 1, &size, NULL, 0, NULL) != DT_OK)
        abort();
    in[0].layout.mesh = vdev;
    in[1] = out = in[0];
    out.alias = aliases[kind];
    dt_buf_init(&body, 4096);
    if (dt_signature_encode(&sig, &body, NULL) != DT_OK)
        abort();
    s->record.kind = DT_RECORD_DEF_SIG;
    s->record.definition.id = number;
    s->record.definition.body = body.data;
    s->record.definition.body_bytes = (uint32_t)body.len;
    if (!dt_record_put(w, &s->record))
        abort();
    dt_buf_fini(&body);
}

static void put_mesh(stream_t *s, dt_frame_writer_t *w, uint32_t vdev)
{
    uint64_t vdevs[] = {vdev};
    s->record.kind = DT_RECORD_DEF_MESH;
    s->record.mesh = (dt_record_mesh_t){
        .id = vdev, .ndim = 1, .vdev_count = 1, .sizes = {1}, .names = {""}, .vdevs = vdevs};
    if (!dt_record_put(w, &s->record))
        abort();
}

static void put_upload(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t vdev)
{
    uint64_t value = stream_random(s, UINT64_MAX);
    int64_t size = 1;
    dt_record_t *r = &s->record;
    memset(&r->move, 0, sizeof r->move);
    r->kind = DT_RECORD_UPLOAD;
    r->move.layout.mesh = vdev;
    r->move.size = sizeof value;
    r->move.bytes = (const uint8_t *)&value;
    r->move.output = give_id(c, vdev, (uint32_t)c->next_id);
    c->values[c->storage_of[r->move.output]] = value;
    if (dt_meta_set(&r->move.meta, DT_DTYPE_I64, 1, &size, NULL, 0, NULL) != DT_OK)
        abort();
    if (!dt_record_put(w, r))
        abort();
}

static void put_op(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t vdev,
                   uint32_t kind)
{
    uint64_t inputs[2], output;
    dt_record_op_t op = {.signature = vdev * STREAM_KINDS + kind, .inputs = inputs};
    if (!pick(s, c, vdev, &inputs[0]) || !pick(s, c, vdev, &inputs[1])) {
        put_upload(s, c, w, vdev);
        return;
    }
    uint32_t storage = c->storage_of[inputs[0]];
    op.input_count = kind == 0 ? 2 : 1;
    op.output_count = kind == 1 ? 0 : 1;
    op.outputs = &output;
    if (kind == 0) {
        uint64_t value = stream_mix(0, c->values[storage], c->values[c->storage_of[inputs[1]]]);
        output = give_id(c, vdev, (uint32_t)c->next_id);
        c->values[c->storage_of[output]] = value;
    } else if (kind == 1) {
        c->values[storage] = stream_mix(1, c->values[storage], 0);
    } else {
        output = give_id(c, vdev, storage);
    }
    if (!dt_record_put_op(w, &op))
        abort();
}

static void put_fetch(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    memset(&s->record.move, 0, sizeof s->record.move);
    s->record.kind = DT_RECORD_FETCH;
    s->record.move.tensor = id;
    s->record.move.number = c->next_future;
    c->expected[c->next_future++] = c->values[c->storage_of[id]];
    if (!dt_record_put(w, &s->record))
        abort();
}

static void put_free(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    c->is_live[id] = false;
    s->record.kind = DT_RECORD_FREE;
    s->record.ids.ids = &id;
    s->record.ids.count = 1;
    if (!dt_record_put(w, &s->record))
        abort();
}

/* The next record of the program. */
static void put_next(stream_t *s, stream_client_t *c, dt_frame_writer_t *w)
{
    uint32_t vdev = (uint32_t)stream_random(s, STREAM_VDEVS), at = c->made++;
    uint64_t id, what = stream_random(s, 100);
    if (at < STREAM_VDEVS - 1)
        put_mesh(s, w, at + 1);
    else if (at < STREAM_VDEVS - 1 + STREAM_VDEVS * STREAM_KINDS)
        put_definition(s, w, at - (STREAM_VDEVS - 1));
    else if (what < 8 || !pick(s, c, vdev, &id))
        put_upload(s, c, w, vdev);
    else if (what < 50)
        put_op(s, c, w, vdev, 0);
    else if (what < 65)
        put_op(s, c, w, vdev, 1);
    else if (what < 73)
        put_op(s, c, w, vdev, 2);
    else if (what < 88)
        put_fetch(s, c, w, id);
    else
        put_free(s, c, w, id);
}

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
        put_next(s, c, &w);
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
    hello.device_count = STREAM_VDEVS;
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
    if (kind == 1 && value != c->expected[result->future])
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
