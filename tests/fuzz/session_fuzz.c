/* Programs and nodes that mean harm against the session machine: frames of any records with a sound
 * header, so that the fuzzer gets to what records do, and any bytes as messages of all three kinds
 * of streams, with losses and time between. Nothing may stop the process, what nodes get is sound,
 * and the bounds hold.
 * Input: steps of a byte that says what, two bytes of length, and that many bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/session.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/record.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MS_NS   INT64_C(1000000)
#define EPOCH   5u
#define TENSORS 4096u
#define CONTROL 900

enum { FRAME, CLIENT, LINK, BULK, EXECUTED, TIME, NODE, AGAIN, WHAT_COUNT };

static dt_sessions_t *sessions;
static int64_t now_ns;
static uint64_t next_stream, client, link_stream, bulk, session, next_sequence, sent, incarnation;
static uint8_t token[DT_SESSION_TOKEN_BYTES], key[DT_SESSION_KEY_BYTES];
static dt_record_t record;
static uint8_t frame[DT_FRAME_BYTES_MAX];

static void random_bytes(void *bytes, size_t size)
{
    memset(bytes, 7, size);
}

static void hash_bytes(const uint8_t *bytes, size_t size, uint8_t ret_hash[DT_SESSION_HASH_BYTES])
{
    uint64_t hash = dt_hash_bytes(DT_HASH_SEED, bytes, size);
    for (size_t i = 0; i < DT_SESSION_HASH_BYTES; i++)
        ret_hash[i] = (uint8_t)(hash >> i % 8 * 8);
}

static void check(bool is_sound)
{
    if (!is_sound)
        abort();
}

/* A node reads what it is sent: it must be sound, whatever the program wrote. */
static void read_frame(const ProtobufCBinaryData *bytes)
{
    dt_frame_reader_t reader = {.scratch = NULL};
    bool is_end = false;
    check(dt_frame_open(&reader, bytes->data, bytes->len) == 0);
    while (!is_end)
        check(dt_record_next(&reader, &record, &is_end) == 0);
    sent = reader.header.first_sequence + reader.header.count - 1;
    dt_frame_reader_fini(&reader);
}

static void take_client(const dt_session_action_t *action)
{
    Dtorch__V1__SessionDown *down =
        dtorch__v1__session_down__unpack(NULL, action->size, action->data);
    check(down && dt_wire_validate(&down->base, NULL) == DT_OK);
    if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_WELCOME) {
        session = down->welcome->session;
        next_sequence = down->welcome->next_sequence;
        memcpy(token, down->welcome->resume_token.data, sizeof token);
    } else if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_ACK) {
        next_sequence = down->ack->sequence + 1;
    }
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

static void take_node(const dt_session_action_t *action)
{
    Dtorch__V1__WorkerDown *down =
        dtorch__v1__worker_down__unpack(NULL, action->size, action->data);
    check(down && dt_wire_validate(&down->base, NULL) == DT_OK);
    if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_OPEN)
        memcpy(key, down->open->key.data, sizeof key);
    dtorch__v1__worker_down__free_unpacked(down, NULL);
}

static void take_link(const dt_session_action_t *action)
{
    Dtorch__V1__WorkerSessionDown *down =
        dtorch__v1__worker_session_down__unpack(NULL, action->size, action->data);
    if (!down)
        return; /* a chunk goes on as it came */
    if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_FRAME)
        read_frame(&down->frame);
    dtorch__v1__worker_session_down__free_unpacked(down, NULL);
}

static void perform(void)
{
    dt_session_action_t action;
    while (dt_sessions_poll(sessions, &action)) {
        if (action.kind == DT_SESSION_DO_NODE_SEND)
            take_node(&action);
        else if (action.kind == DT_SESSION_DO_SEND && action.stream == client)
            take_client(&action);
        else if (action.kind == DT_SESSION_DO_SEND && action.stream == link_stream)
            take_link(&action);
        else if (action.kind == DT_SESSION_DO_CLOSE && action.stream == client)
            client = 0;
        else if (action.kind == DT_SESSION_DO_CLOSE && action.stream == link_stream)
            link_stream = 0;
        else if (action.kind == DT_SESSION_DO_CLOSE && action.stream == bulk)
            bulk = 0;
    }
}

static void say(uint64_t stream, const uint8_t *data, size_t size)
{
    if (stream)
        dt_sessions_received(sessions, stream, data, size, now_ns);
    perform();
}

static void pack_say(uint64_t stream, const ProtobufCMessage *message)
{
    uint8_t *data;
    size_t size;
    check(dt_wire_pack_new(message, &data, &size) == DT_OK);
    say(stream, data, size);
    free(data);
}

static void open_client(void)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello = DTORCH__V1__SESSION_HELLO__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    hello.version = &version;
    hello.device_count = 2;
    hello.session = session;
    if (session)
        hello.resume_token = (ProtobufCBinaryData){sizeof token, token};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    client = ++next_stream;
    dt_sessions_opened(sessions, client, DT_SESSION_STREAM_CLIENT, "fuzz", now_ns);
    pack_say(client, &up.base);
    if (!client)
        session = 0; /* it is over: the next one is new */
}

static void open_link(void)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__WorkerSessionHello hello = DTORCH__V1__WORKER_SESSION_HELLO__INIT;
    hello.session = session ? session : 1;
    hello.epoch = EPOCH;
    hello.key = (ProtobufCBinaryData){sizeof key, key};
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    link_stream = ++next_stream;
    dt_sessions_opened(sessions, link_stream, DT_SESSION_STREAM_LINK, "fuzz", now_ns);
    pack_say(link_stream, &up.base);
}

static void open_bulk(void)
{
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.session = session;
    chunk.token = (ProtobufCBinaryData){sizeof token, token};
    bulk = ++next_stream;
    dt_sessions_opened(sessions, bulk, DT_SESSION_STREAM_BULK, "fuzz", now_ns);
    pack_say(bulk, &chunk.base);
}

static void tell_node(unsigned bits)
{
    static const dt_session_device_t devices[] = {
        {.index = 0, .kind = "cpu", .backend = "ref", .is_usable = true},
        {.index = 1, .kind = "cpu", .backend = "ref", .is_usable = true}};
    incarnation += (bits & 4) != 0;
    dt_sessions_node(sessions,
                     &(dt_session_node_t){.name = "n1",
                                          .boot_id = "",
                                          .incarnation = incarnation,
                                          .stream = bits & 1 ? CONTROL : 0,
                                          .takes_work = (bits & 2) != 0,
                                          .devices = devices,
                                          .device_count = 2},
                     now_ns);
    perform();
}

static void start(void)
{
    const dt_sessions_options_t options = {
        .struct_size = sizeof options,
        .build = "fuzz",
        .random = random_bytes,
        .hash = hash_bytes,
        .rules = {250 * MS_NS, 3, 8},
        .grace_ns = 5000 * MS_NS,
        .hello_ns = 1000 * MS_NS,
        .lost_ns = 2000 * MS_NS,
        .sessions_max = 4,
        .tensors_max = TENSORS,
        .client_window_bytes = DT_FRAME_BYTES_MAX,
        .node_window_bytes = 64u << 10,
        .node_window_records = 64,
        .results_bytes = 4096,
    };
    now_ns = 1000 * MS_NS;
    next_stream = client = link_stream = bulk = session = sent = 0;
    next_sequence = incarnation = 1;
    check(dt_sessions_create(&options, now_ns, &sessions, NULL) == DT_OK);
    dt_sessions_numbers(sessions, EPOCH, 1, 1000, now_ns);
    tell_node(3);
    open_client();
    open_link();
}

/* Count the records of a payload as far as they have a kind and a size. */
static uint32_t count_records(const uint8_t *payload, size_t size)
{
    dt_cursor_t cursor = {.at = payload, .end = payload + size};
    uint32_t count = 0;
    while (dt_cursor_left(&cursor) >= 2) {
        (void)dt_cursor_u8(&cursor);
        (void)dt_cursor_bytes(&cursor, dt_cursor_varint(&cursor));
        if (cursor.error)
            break;
        count++;
    }
    return count ? count : 1;
}

static void say_frame(const uint8_t *payload, size_t size)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    dt_frame_writer_t writer;
    dt_frame_begin(&writer, frame, sizeof frame, next_sequence, EPOCH);
    memcpy(frame + writer.len, payload, size);
    writer.len += size;
    writer.count = count_records(payload, size);
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame = (ProtobufCBinaryData){dt_frame_end(&writer, DT_FRAME_SYNC), frame};
    pack_say(client, &up.base);
}

static void say_executed(uint32_t vdev)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__Executed executed = DTORCH__V1__EXECUTED__INIT;
    executed.sequence = sent;
    executed.vdev = vdev;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_EXECUTED;
    up.executed = &executed;
    pack_say(link_stream, &up.base);
}

static void step(unsigned what, const uint8_t *data, size_t size)
{
    unsigned first = size ? data[0] : 0;
    switch (what % WHAT_COUNT) {
    case FRAME:
        say_frame(data, size);
        break;
    case CLIENT:
        say(client, data, size);
        break;
    case LINK:
        say(link_stream, data, size);
        break;
    case BULK:
        if (!bulk)
            open_bulk();
        say(bulk, data, size);
        break;
    case EXECUTED:
        say_executed(first & 1);
        break;
    case TIME:
        for (unsigned i = 0; i <= first; i++) {
            now_ns += 10 * MS_NS;
            dt_sessions_tick(sessions, now_ns, now_ns / MS_NS);
            perform();
        }
        break;
    case NODE:
        tell_node(first);
        break;
    default:
        if (client && first & 1)
            dt_sessions_closed(sessions, client, "", now_ns);
        if (link_stream && first & 2)
            dt_sessions_closed(sessions, link_stream, "", now_ns);
        open_client();
        open_link();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_sessions_counts_t counts;
    start();
    while (size >= 3) {
        unsigned what = data[0];
        size_t bytes = data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        bytes = bytes < size ? bytes : size;
        step(what, data, bytes);
        data += bytes;
        size -= bytes;
        dt_sessions_count(sessions, &counts);
        check(counts.tensors <= 4 * TENSORS && counts.live + counts.away <= 4);
        check(counts.queued_bytes <= 4 * DT_FRAME_BYTES_MAX);
    }
    dt_sessions_free(sessions);
    sessions = NULL;
    return 0;
}
