#include "replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/strings.h"
#include "dtorch/v1/session.pb-c.h"
#include "wire/wire.h"

#define STREAM_METHOD "/dtorch.v1.Session/Stream"
#define BULK_METHOD   "/dtorch.v1.Session/Bulk"
#define STREAM_MS     (INT64_C(7) * 24 * 3600 * 1000) /* the life of a stream */
#define SEND_MS       10000
#define BEAT_NS       (200 * DT_CLOCK_MS_NS) /* below the shortest interval's patience */
#define TURN_MS       20
#define STALL_NS      (300 * DT_CLOCK_MS_NS) /* then bytes are asked for again */
#define BYE_NS        (2 * DT_CLOCK_SECOND_NS)
#define AHEAD_MAX     (8u << 20) /* of uploads, as the protocol says */
#define DONE_COUNT    256u
#define CHUNK_ARENA   (4u << 20)

/* A fetch whose value is compared. */
struct awaited {
    dt_recording_result_t was;
    Dtorch__V1__ReplayedResult *line;
    uint32_t crc;      /* of what came so far */
    uint64_t received; /* bytes of a transfer */
    bool is_done;
    bool is_coming; /* by transfer */
};

struct upload {
    uint64_t transfer, sent, received;
    struct upload *next;
};

struct player {
    dt_arena_t *pool;
    const dt_ctl_replay_options_t *options;
    dt_ctl_replayed_t *replayed;
    dt_rpc_reader_t *stream, *bulk;
    dt_arena_t arena; /* of one message */
    uint8_t token[16];
    uint32_t epoch;
    uint64_t credit, sent_payload; /* cumulative payload bytes */
    uint64_t sent_sequence, acked; /* records */
    struct awaited *awaited;       /* (result_count) by future */
    size_t first_open;             /* those before it are done */
    uint64_t told_done;
    struct upload *uploads;
    int64_t news_ns, beat_ns, bytes_ns; /* bytes_ns: of the last bytes that were of use */
    uint64_t beats;
};

/* ---- sending ---- */

static dt_status_t send_up(struct player *p, const Dtorch__V1__SessionUp *up, dt_error_t *err)
{
    uint8_t *bytes;
    size_t size;
    DT_TRY(dt_wire_pack_new(&up->base, &bytes, &size));
    dt_status_t status = dt_rpc_reader_send(p->stream, bytes, size, SEND_MS, err);
    free(bytes);
    return status;
}

static dt_status_t send_chunk(struct player *p, const Dtorch__V1__BulkChunk *chunk, dt_error_t *err)
{
    uint8_t *bytes;
    size_t size;
    DT_TRY(dt_wire_pack_new(&chunk->base, &bytes, &size));
    dt_status_t status = dt_rpc_reader_send(p->bulk, bytes, size, SEND_MS, err);
    free(bytes);
    return status;
}

static dt_status_t send_beat(struct player *p, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    int64_t now_ns = dt_clock_mono_ns(dt_clock_system());
    if (now_ns - p->beat_ns < BEAT_NS)
        return DT_OK;
    p->beat_ns = now_ns;
    beat.sequence = ++p->beats;
    beat.progress = p->sent_sequence;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BEAT;
    up.beat = &beat;
    return send_up(p, &up, err);
}

/* Confirm results, so that the controller need not keep them. */
static dt_status_t send_done(struct player *p, bool at_once, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__FuturesDone done = DTORCH__V1__FUTURES_DONE__INIT;
    while (p->first_open < p->replayed->result_count && p->awaited[p->first_open].is_done)
        p->first_open++;
    if (p->first_open == 0)
        return DT_OK;
    done.future = p->awaited[p->first_open - 1].was.future;
    if (done.future <= p->told_done || (!at_once && done.future - p->told_done < DONE_COUNT))
        return DT_OK;
    p->told_done = done.future;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_DONE;
    up.done = &done;
    return send_up(p, &up, err);
}

/* ---- comparing ---- */

static int compare_awaited(const void *left, const void *right)
{
    const struct awaited *a = left, *b = right;
    return (a->was.future > b->was.future) - (a->was.future < b->was.future);
}

static struct awaited *find_awaited(const struct player *p, uint64_t future)
{
    const struct awaited key = {.was = {.future = future}};
    if (p->replayed->result_count == 0)
        return NULL;
    return bsearch(&key, p->awaited, p->replayed->result_count, sizeof key, compare_awaited);
}

static char *copy(const struct player *p, const char *text)
{
    return dt_ctl_copy(p->pool, text, strlen(text));
}

static void judge(struct player *p, struct awaited *a, const char *difference)
{
    a->is_done = true;
    a->is_coming = false;
    a->line->state = copy(p, *difference ? "differs" : "equal");
    a->line->what = copy(p, difference);
    p->replayed->equal_count += *difference == '\0';
}

static void judge_value(struct player *p, struct awaited *a, uint32_t crc)
{
    const char *difference = "";
    if (crc != a->was.crc32c)
        difference =
            dt_ctl_print(p->pool, "checksum %08" PRIx32 ", was %08" PRIx32, crc, a->was.crc32c);
    judge(p, a, difference);
}

/* Of errors the kind is compared: texts differ between versions of a backend. */
static void judge_error(struct player *p, struct awaited *a, const char *kind, const char *text)
{
    size_t kind_bytes = strlen(kind);
    const char *difference = "";
    if (a->was.status == DT_OK)
        difference = dt_ctl_print(p->pool, "%s: %s; was a value", kind, text);
    else if (a->was.text_bytes < kind_bytes || memcmp(a->was.text, kind, kind_bytes) != 0)
        difference = dt_ctl_print(p->pool, "%s: %s; was %.*s", kind, text, (int)a->was.text_bytes,
                                  a->was.text);
    judge(p, a, difference);
}

static void on_result(struct player *p, const Dtorch__V1__Result *result)
{
    struct awaited *a = find_awaited(p, result->future);
    dt_meta_t meta;
    if (!a || a->is_done || a->is_coming)
        return;
    if (result->error) {
        judge_error(p, a, result->error->kind, result->error->text);
        return;
    }
    if (a->was.status != DT_OK) {
        judge(p, a,
              dt_ctl_print(p->pool, "a value; was %.*s", (int)a->was.text_bytes, a->was.text));
        return;
    }
    const uint8_t *end =
        result->meta.len ? result->meta.data + result->meta.len : result->meta.data;
    dt_cursor_t cursor = {.at = result->meta.data, .end = end};
    dt_record_get_meta(&cursor, &meta);
    uint64_t size = result->transfer ? result->size_bytes : result->value.len;
    if (cursor.error || !dt_meta_equal(&meta, &a->was.meta) || size != a->was.size_bytes)
        judge(p, a, "other metadata");
    else if (result->transfer)
        a->is_coming = true;
    else
        judge_value(p, a, dt_crc32c(0, result->value.data, result->value.len));
}

/* ---- receiving ---- */

static dt_status_t on_down(struct player *p, const Dtorch__V1__SessionDown *down, dt_error_t *err)
{
    switch (down->kind_case) {
    case DTORCH__V1__SESSION_DOWN__KIND_WELCOME:
        if (down->welcome->resume_token.len != sizeof p->token)
            return dt_fail(err, DT_ERR_PEER, "dt", 0, "a Welcome without a token");
        memcpy(p->token, down->welcome->resume_token.data, sizeof p->token);
        p->replayed->session = down->welcome->session;
        p->epoch = (uint32_t)down->welcome->epoch;
        p->credit = down->welcome->credit_bytes;
        return DT_OK;
    case DTORCH__V1__SESSION_DOWN__KIND_REFUSAL:
        return dt_fail(err, DT_ERR_PEER, "dt", down->refusal->code, "refused: %s",
                       down->refusal->text);
    case DTORCH__V1__SESSION_DOWN__KIND_ACK:
        p->acked = down->ack->sequence;
        p->credit = down->ack->credit_bytes > p->credit ? down->ack->credit_bytes : p->credit;
        return DT_OK;
    case DTORCH__V1__SESSION_DOWN__KIND_RESULT:
        on_result(p, down->result);
        return DT_OK;
    default:
        return DT_OK;
    }
}

static dt_status_t say_received(struct player *p, uint64_t transfer, uint64_t received,
                                bool restart, dt_error_t *err)
{
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.transfer = transfer;
    chunk.received = received;
    chunk.restart = restart;
    return send_chunk(p, &chunk, err);
}

/* Bytes of a value. They come in order; others are asked for again. */
static dt_status_t on_data(struct player *p, const Dtorch__V1__BulkChunk *chunk, dt_error_t *err)
{
    struct awaited *a = find_awaited(p, chunk->transfer);
    if (!a || !a->is_coming)
        return DT_OK;
    bool fits = chunk->offset == a->received &&
                chunk->data.len <= a->was.size_bytes - a->received &&
                chunk->crc32c == dt_crc32c(0, chunk->data.data, chunk->data.len);
    if (fits) {
        a->crc = dt_crc32c(a->crc, chunk->data.data, chunk->data.len);
        a->received += chunk->data.len;
        p->bytes_ns = dt_clock_mono_ns(dt_clock_system());
    }
    uint64_t received = a->received;
    if (received == a->was.size_bytes)
        judge_value(p, a, a->crc);
    return say_received(p, chunk->transfer, received, !fits && chunk->offset > received, err);
}

static dt_status_t on_chunk(struct player *p, const Dtorch__V1__BulkChunk *chunk, dt_error_t *err)
{
    if (chunk->data.len > 0)
        return on_data(p, chunk, err);
    if (chunk->error)
        return dt_fail(err, DT_ERR_PEER, "dt", chunk->error->code, "an upload failed: %s",
                       chunk->error->text);
    for (struct upload *u = p->uploads; u; u = u->next)
        if (u->transfer == chunk->transfer && chunk->received > u->received) {
            u->received = chunk->received < u->sent ? chunk->received : u->sent;
            p->bytes_ns = dt_clock_mono_ns(dt_clock_system());
        }
    return DT_OK;
}

/* Read what has come on one of the streams, waiting at most `wait_ms` for the first message. */
static dt_status_t receive(struct player *p, dt_rpc_reader_t *reader, int64_t wait_ms,
                           dt_error_t *err)
{
    const ProtobufCMessageDescriptor *type = reader == p->bulk
                                                 ? &dtorch__v1__bulk_chunk__descriptor
                                                 : &dtorch__v1__session_down__descriptor;
    for (;; wait_ms = 0) {
        uint8_t *bytes;
        size_t size;
        ProtobufCMessage *message;
        dt_error_t why;
        dt_status_t status = dt_rpc_reader_next(reader, wait_ms, &bytes, &size, &why);
        if (status == DT_ERR_AGAIN || status == DT_ERR_TIMEOUT)
            return DT_OK;
        if (status != DT_OK)
            return dt_fail(err, status, why.source, why.source_code, "the session has ended: %s",
                           why.text);
        dt_arena_reset(&p->arena);
        status = dt_ctl_unpack(&p->arena, type, bytes, size, &message, err);
        free(bytes);
        if (status == DT_OK && reader == p->bulk)
            status = on_chunk(p, (const void *)message, err);
        else if (status == DT_OK)
            status = on_down(p, (const void *)message, err);
        if (status != DT_OK)
            return status;
        const Dtorch__V1__SessionDown *down = (const void *)message;
        if (reader == p->bulk || down->kind_case != DTORCH__V1__SESSION_DOWN__KIND_BEAT)
            p->news_ns = dt_clock_mono_ns(dt_clock_system());
    }
}

static bool has_downloads(const struct player *p)
{
    for (size_t i = p->first_open; i < p->replayed->result_count; i++)
        if (p->awaited[i].is_coming)
            return true;
    return false;
}

/* Open the stream of bytes, if it is not open. */
static dt_status_t open_bulk(struct player *p, dt_error_t *err)
{
    Dtorch__V1__BulkChunk who = DTORCH__V1__BULK_CHUNK__INIT;
    uint8_t *bytes;
    size_t size;
    if (p->bulk)
        return DT_OK;
    who.session = p->replayed->session;
    who.token = (ProtobufCBinaryData){sizeof p->token, p->token};
    DT_TRY(dt_wire_pack_new(&who.base, &bytes, &size));
    dt_status_t status = dt_rpc_reader_open(p->options->address, p->options->tls, BULK_METHOD, true,
                                            bytes, size, STREAM_MS, &p->bulk, err);
    free(bytes);
    DT_TRY(status);
    for (size_t i = 0; i < p->replayed->result_count; i++)
        if (p->awaited[i].is_coming)
            DT_TRY(say_received(p, p->awaited[i].was.future, 0, true, err));
    return DT_OK;
}

static uint64_t bytes_ahead(const struct player *p)
{
    uint64_t ahead = 0;
    for (const struct upload *u = p->uploads; u; u = u->next)
        ahead += u->sent - u->received;
    return ahead;
}

static dt_status_t say_chunk(struct player *p, const dt_recording_chunk_t *from, dt_error_t *err)
{
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.transfer = from->transfer;
    chunk.offset = from->offset;
    chunk.crc32c = dt_crc32c(0, from->bytes, from->size);
    chunk.data = (ProtobufCBinaryData){from->size, (uint8_t *)(uintptr_t)from->bytes};
    return send_chunk(p, &chunk, err);
}

static const struct upload *find_upload(const struct player *p, uint64_t transfer)
{
    const struct upload *u = p->uploads;
    while (u && u->transfer != transfer)
        u = u->next;
    return u;
}

/* Bytes that came before the node had joined the session were of no use: say them again. */
static dt_status_t say_again(struct player *p, dt_error_t *err)
{
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    dt_recording_chunk_t from;
    bool is_end = false;
    if (dt_recording_open(&reader, p->options->bytes, p->options->size) != 0)
        return DT_OK;
    while (dt_recording_next(&reader, &item, &is_end) == 0 && !is_end) {
        if (item.kind != DT_RECORDING_CHUNK || dt_recording_get_chunk(&item, &from) != 0)
            continue;
        const struct upload *u = find_upload(p, from.transfer);
        uint64_t end = from.offset + from.size;
        if (u && end <= u->sent && end > u->received)
            DT_TRY(say_chunk(p, &from, err));
    }
    return DT_OK;
}

/* Nothing of use for a while: bytes that overtook their Result, on the other stream, are asked for
 * again, and those of uploads are said again. */
static dt_status_t ask_again(struct player *p, dt_error_t *err)
{
    int64_t now_ns = dt_clock_mono_ns(dt_clock_system());
    if (now_ns - p->bytes_ns < STALL_NS)
        return DT_OK;
    p->bytes_ns = now_ns;
    for (size_t i = p->first_open; i < p->replayed->result_count; i++)
        if (p->awaited[i].is_coming)
            DT_TRY(say_received(p, p->awaited[i].was.future, p->awaited[i].received, true, err));
    return bytes_ahead(p) ? say_again(p, err) : DT_OK;
}

/* One turn of waiting: beats, confirmations, what comes. */
static dt_status_t turn(struct player *p, dt_error_t *err)
{
    bool has_bytes = p->bulk || has_downloads(p);
    DT_TRY(send_beat(p, err));
    DT_TRY(send_done(p, false, err));
    DT_TRY(receive(p, p->stream, has_bytes ? 1 : TURN_MS, err));
    if (has_bytes) {
        DT_TRY(open_bulk(p, err));
        DT_TRY(receive(p, p->bulk, 1, err));
        DT_TRY(ask_again(p, err));
    }
    int64_t silent_ns = dt_clock_mono_ns(dt_clock_system()) - p->news_ns;
    if (silent_ns > p->options->patience_ms * DT_CLOCK_MS_NS)
        return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "no news for %" PRId64 " s",
                       silent_ns / DT_CLOCK_SECOND_NS);
    return DT_OK;
}

/* ---- playing ---- */

static dt_status_t play_hello(struct player *p, const dt_recording_item_t *item, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    ProtobufCMessage *message;
    uint8_t *bytes;
    size_t size;
    if (p->stream)
        return DT_OK;
    DT_TRY(dt_ctl_unpack(p->pool, &dtorch__v1__session_hello__descriptor, item->content, item->size,
                         &message, err));
    Dtorch__V1__SessionHello *hello = (Dtorch__V1__SessionHello *)(void *)message;
    hello->session = 0;
    hello->resume_token = (ProtobufCBinaryData){0, NULL};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = hello;
    DT_TRY(dt_wire_pack_new(&up.base, &bytes, &size));
    dt_status_t status = dt_rpc_reader_open(p->options->address, p->options->tls, STREAM_METHOD,
                                            true, bytes, size, STREAM_MS, &p->stream, err);
    free(bytes);
    while (status == DT_OK && p->replayed->session == 0)
        status = turn(p, err);
    return status;
}

static dt_status_t play_frame(struct player *p, const dt_recording_item_t *item, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    dt_frame_reader_t reader = {0};
    int error = dt_frame_open(&reader, item->content, item->size);
    if (error || !p->stream)
        return dt_frame_fail(err, error ? error : DT_FRAME_E_SEQ, item->number, "of the file");
    while (p->sent_payload + reader.header.payload_bytes > p->credit)
        DT_TRY(turn(p, err));
    uint8_t *bytes = malloc(item->size);
    if (!bytes)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a frame");
    memcpy(bytes, item->content, item->size);
    dt_frame_restamp(bytes, item->size, p->epoch);
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame = (ProtobufCBinaryData){item->size, bytes};
    dt_status_t status = send_up(p, &up, err);
    free(bytes);
    p->sent_payload += reader.header.payload_bytes;
    p->sent_sequence = reader.header.first_sequence + reader.header.count - 1;
    p->replayed->frame_count++;
    p->replayed->record_count += reader.header.count;
    DT_TRY(status);
    DT_TRY(send_beat(p, err));
    return receive(p, p->stream, 0, err);
}

static struct upload *upload_of(struct player *p, uint64_t transfer)
{
    struct upload *u = p->uploads;
    while (u && u->transfer != transfer)
        u = u->next;
    if (u)
        return u;
    u = dt_ctl_alloc(p->pool, 1, sizeof *u);
    u->transfer = transfer;
    u->next = p->uploads;
    p->uploads = u;
    return u;
}

/* The record of an upload must have been accepted before its bytes. */
static dt_status_t play_chunk(struct player *p, const dt_recording_item_t *item, dt_error_t *err)
{
    dt_recording_chunk_t from;
    int error = dt_recording_get_chunk(item, &from);
    if (error || !p->stream)
        return dt_frame_fail(err, error ? error : DT_FRAME_E_SEQ, item->number, "of the file");
    while (p->acked < p->sent_sequence)
        DT_TRY(turn(p, err));
    DT_TRY(open_bulk(p, err));
    while (bytes_ahead(p) + from.size > AHEAD_MAX)
        DT_TRY(turn(p, err));
    struct upload *upload = upload_of(p, from.transfer);
    upload->sent = from.offset + from.size;
    p->replayed->upload_bytes += from.size;
    return say_chunk(p, &from, err);
}

static dt_status_t play_items(struct player *p, dt_error_t *err)
{
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    bool is_end = false;
    dt_status_t status = DT_OK;
    int error = dt_recording_open(&reader, p->options->bytes, p->options->size);
    while (status == DT_OK && !error) {
        error = dt_recording_next(&reader, &item, &is_end);
        if (error || is_end)
            break;
        if (item.kind == DT_RECORDING_HELLO)
            status = play_hello(p, &item, err);
        else if (item.kind == DT_RECORDING_FRAME)
            status = play_frame(p, &item, err);
        else if (item.kind == DT_RECORDING_CHUNK)
            status = play_chunk(p, &item, err);
    }
    if (error)
        p->replayed->damage = (dt_ctl_damage_t){error, reader.at, reader.number + 1, 0};
    return status;
}

/* A Bye that is not taken before the stream goes would leave the session to its grace. */
static void await_end(struct player *p)
{
    int64_t until_ns = dt_clock_mono_ns(dt_clock_system()) + BYE_NS;
    uint8_t *bytes = NULL;
    size_t size;
    dt_status_t status = DT_OK;
    while ((status == DT_OK || status == DT_ERR_AGAIN) &&
           dt_clock_mono_ns(dt_clock_system()) < until_ns) {
        status = dt_rpc_reader_next(p->stream, TURN_MS, &bytes, &size, NULL);
        if (status == DT_OK)
            free(bytes);
    }
}

static dt_status_t play(struct player *p, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionBye bye = DTORCH__V1__SESSION_BYE__INIT;
    DT_TRY(play_items(p, err));
    if (!p->stream)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "no session was recorded");
    for (;;) {
        DT_TRY(send_done(p, true, err));
        if (p->first_open == p->replayed->result_count && p->acked >= p->sent_sequence)
            break;
        DT_TRY(turn(p, err));
    }
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BYE;
    up.bye = &bye;
    DT_TRY(send_up(p, &up, err));
    await_end(p);
    return DT_OK;
}

/* ---- what is expected ---- */

static size_t count_results(const dt_ctl_replay_options_t *options)
{
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    bool is_end = false;
    size_t count = 0;
    if (dt_recording_open(&reader, options->bytes, options->size) != 0)
        return 0;
    while (dt_recording_next(&reader, &item, &is_end) == 0 && !is_end)
        count += item.kind == DT_RECORDING_RESULT;
    return count;
}

static void expect_results(struct player *p)
{
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    bool is_end = false;
    size_t max = count_results(p->options), count = 0;
    p->awaited = dt_ctl_alloc(p->pool, max + 1, sizeof *p->awaited);
    p->replayed->results = dt_ctl_alloc(p->pool, max + 1, sizeof *p->replayed->results);
    if (max > 0 && dt_recording_open(&reader, p->options->bytes, p->options->size) == 0)
        while (count < max && dt_recording_next(&reader, &item, &is_end) == 0 && !is_end)
            if (item.kind == DT_RECORDING_RESULT &&
                dt_recording_get_result(&item, &p->awaited[count].was) == 0)
                count++;
    p->replayed->result_count = count;
    if (count > 1)
        qsort(p->awaited, count, sizeof *p->awaited, compare_awaited);
    for (size_t i = 0; i < count; i++) {
        Dtorch__V1__ReplayedResult *line = dt_ctl_alloc(p->pool, 1, sizeof *line);
        dtorch__v1__replayed_result__init(line);
        line->future = p->awaited[i].was.future;
        line->size_bytes = p->awaited[i].was.size_bytes;
        line->state = copy(p, "missing");
        p->awaited[i].line = p->replayed->results[i] = line;
    }
}

dt_status_t dt_ctl_replay(dt_arena_t *pool, const dt_ctl_replay_options_t *options,
                          dt_ctl_replayed_t *ret_replayed, dt_error_t *err)
{
    struct player p = {.pool = pool,
                       .options = options,
                       .replayed = ret_replayed,
                       .news_ns = dt_clock_mono_ns(dt_clock_system())};
    *ret_replayed = (dt_ctl_replayed_t){0};
    dt_arena_init(&p.arena, CHUNK_ARENA);
    expect_results(&p);
    dt_status_t status = play(&p, err);
    dt_rpc_reader_free(p.bulk);
    dt_rpc_reader_free(p.stream);
    dt_arena_fini(&p.arena);
    return status;
}
