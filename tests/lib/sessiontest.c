#include "lib/sessiontest.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/strings.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define CONTROL(number) (1000 + (number))

static void fake_random(void *bytes, size_t size)
{
    static uint64_t state = 1;
    uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t)(dt_hash_u64(state++) >> 8);
}

static void fake_hash(const uint8_t *bytes, size_t size, uint8_t ret_hash[DT_SESSION_HASH_BYTES])
{
    uint64_t hash = dt_hash_bytes(DT_HASH_SEED, bytes, size);
    for (size_t i = 0; i < DT_SESSION_HASH_BYTES; i++)
        ret_hash[i] = (uint8_t)(dt_hash_u64(hash + i) >> 16);
}

dt_sessiontest_t *dt_sessiontest_new_stopped(void)
{
    dt_sessiontest_t *test = calloc(1, sizeof *test);
    cr_assert(test);
    test->now_ns = DT_CLOCK_SECOND_NS;
    dt_arena_init(&test->arena, 64u << 20);
    test->options = (dt_sessions_options_t){
        .struct_size = sizeof test->options,
        .build = "test",
        .random = fake_random,
        .hash = fake_hash,
        .rules = {.interval_ns = 250 * DT_SESSIONTEST_MS, .suspect_beats = 3, .dead_beats = 8},
        .grace_ns = 600 * DT_CLOCK_SECOND_NS,
        .hello_ns = 5 * DT_CLOCK_SECOND_NS,
        .lost_ns = 2 * DT_CLOCK_SECOND_NS,
        .sessions_max = 16,
        .tensors_max = 1000,
        .client_window_bytes = 1u << 20,
        .node_window_bytes = 256u << 10,
        .node_window_records = 8192,
        .results_bytes = 8u << 20,
    };
    return test;
}

void dt_sessiontest_start(dt_sessiontest_t *test)
{
    dt_error_t err;
    cr_assert_eq(dt_sessions_create(&test->options, test->now_ns, &test->sessions, &err), DT_OK,
                 "%s", err.text);
    dt_sessions_numbers(test->sessions, DT_SESSIONTEST_EPOCH, 65, 129, test->now_ns);
}

dt_sessiontest_t *dt_sessiontest_new(void)
{
    dt_sessiontest_t *test = dt_sessiontest_new_stopped();
    dt_sessiontest_start(test);
    return test;
}

void dt_sessiontest_forget(dt_sessiontest_t *test)
{
    for (uint32_t i = 0; i < test->action_count; i++)
        free(test->actions[i].data);
    test->action_count = 0;
    dt_arena_reset(&test->arena);
}

void dt_sessiontest_free(dt_sessiontest_t *test)
{
    dt_sessiontest_forget(test);
    dt_sessions_free(test->sessions);
    dt_arena_fini(&test->arena);
    free(test);
}

/* Remember what a client would. */
static void look(dt_sessiontest_t *test, const dt_sessiontest_action_t *action)
{
    Dtorch__V1__SessionDown *down;
    if (action->kind != DT_SESSION_DO_SEND || action->stream >= 100)
        return;
    down = dtorch__v1__session_down__unpack(NULL, action->size, action->data);
    cr_assert(down);
    if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_WELCOME) {
        memcpy(test->token, down->welcome->resume_token.data, sizeof test->token);
        test->session = down->welcome->session;
        test->credit = down->welcome->credit_bytes;
        test->next_sequence = down->welcome->next_sequence;
    } else if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_ACK) {
        test->credit = down->ack->credit_bytes;
    }
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

void dt_sessiontest_perform(dt_sessiontest_t *test)
{
    dt_session_action_t action;
    while (dt_sessions_poll(test->sessions, &action)) {
        dt_sessiontest_action_t *kept = &test->actions[test->action_count++];
        cr_assert(test->action_count < DT_SESSIONTEST_ACTIONS);
        *kept = (dt_sessiontest_action_t){.kind = action.kind,
                                          .stream = action.stream,
                                          .ticket = action.ticket,
                                          .number = action.number,
                                          .size = action.size,
                                          .status = action.status};
        kept->data = malloc(action.size + 1);
        cr_assert(kept->data);
        memcpy(kept->data, action.data, action.size);
        (void)dt_str_copy(kept->text, sizeof kept->text, action.text);
        if (action.event)
            (void)dt_str_copy(kept->event, sizeof kept->event, action.event->name);
        if (action.kind == DT_SESSION_DO_NUMBERS)
            dt_sessions_numbers(test->sessions, DT_SESSIONTEST_EPOCH, 65, action.number,
                                test->now_ns);
        look(test, kept);
    }
}

void dt_sessiontest_pass(dt_sessiontest_t *test, int64_t ms)
{
    for (int64_t i = 0; i < ms; i++) {
        test->now_ns += DT_SESSIONTEST_MS;
        if (dt_sessions_deadline(test->sessions) > test->now_ns)
            continue;
        dt_sessions_tick(test->sessions, test->now_ns, 1000 + test->now_ns / 1000000);
        dt_sessiontest_perform(test);
    }
}

/* ---- nodes ---- */

void dt_sessiontest_node_is(dt_sessiontest_t *test, unsigned number, uint32_t devices,
                            uint64_t incarnation, uint64_t stream, bool takes_work)
{
    dt_session_device_t list[64] = {{.index = 0}};
    char name[16];
    (void)snprintf(name, sizeof name, "n%u", number);
    for (uint32_t i = 0; i < devices; i++) {
        list[i] = (dt_session_device_t){.index = i, .is_usable = true};
        (void)dt_str_copy(list[i].kind, sizeof list[i].kind, "cpu");
        (void)dt_str_copy(list[i].backend, sizeof list[i].backend, "torch");
    }
    dt_sessions_node(test->sessions,
                     &(dt_session_node_t){.name = name,
                                          .boot_id = "boot",
                                          .incarnation = incarnation,
                                          .stream = stream,
                                          .takes_work = takes_work,
                                          .devices = list,
                                          .device_count = devices},
                     test->now_ns);
    dt_sessiontest_perform(test);
}

void dt_sessiontest_node(dt_sessiontest_t *test, unsigned number, uint32_t devices)
{
    dt_sessiontest_node_is(test, number, devices, 1, CONTROL(number), true);
}

static ProtobufCMessage *unpack(dt_sessiontest_t *test, const ProtobufCMessageDescriptor *type,
                                const dt_sessiontest_action_t *action)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, &test->arena};
    ProtobufCMessage *message =
        protobuf_c_message_unpack(type, &allocator, action->size, action->data);
    cr_assert(message);
    cr_assert_eq(dt_wire_validate(message, NULL), DT_OK, "the machine sent what is out of bounds");
    return message;
}

const Dtorch__V1__SessionOpen *dt_sessiontest_opened(dt_sessiontest_t *test, unsigned number)
{
    for (uint32_t i = test->action_count; i > 0; i--) {
        const dt_sessiontest_action_t *action = &test->actions[i - 1];
        Dtorch__V1__WorkerDown *down;
        if (action->kind != DT_SESSION_DO_NODE_SEND || action->stream != CONTROL(number))
            continue;
        down = (void *)unpack(test, &dtorch__v1__worker_down__descriptor, action);
        if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_OPEN)
            return down->open;
    }
    return NULL;
}

void dt_sessiontest_up(dt_sessiontest_t *test, uint64_t stream,
                       const Dtorch__V1__WorkerSessionUp *up)
{
    uint8_t *data;
    size_t size;
    cr_assert_eq(dt_wire_pack_new(&up->base, &data, &size), DT_OK);
    dt_sessions_received(test->sessions, stream, data, size, test->now_ns);
    free(data);
    dt_sessiontest_perform(test);
}

void dt_sessiontest_link(dt_sessiontest_t *test, unsigned number, uint64_t stream,
                         uint64_t received)
{
    const Dtorch__V1__SessionOpen *open = dt_sessiontest_opened(test, number);
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__WorkerSessionHello hello = DTORCH__V1__WORKER_SESSION_HELLO__INIT;
    cr_assert(open, "node %u was not asked", number);
    hello.session = open->session;
    hello.epoch = open->epoch;
    hello.key = open->key;
    hello.received = received;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    dt_sessions_opened(test->sessions, stream, DT_SESSION_STREAM_LINK, "node", test->now_ns);
    dt_sessiontest_up(test, stream, &up);
}

void dt_sessiontest_executed(dt_sessiontest_t *test, uint64_t stream, uint32_t vdev,
                             uint64_t sequence)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__Executed executed = DTORCH__V1__EXECUTED__INIT;
    executed.sequence = sequence;
    executed.vdev = vdev;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_EXECUTED;
    up.executed = &executed;
    dt_sessiontest_up(test, stream, &up);
}

void dt_sessiontest_result(dt_sessiontest_t *test, uint64_t stream, uint64_t future)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__Result result = DTORCH__V1__RESULT__INIT;
    uint8_t value[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    result.future = future;
    result.value = (ProtobufCBinaryData){sizeof value, value};
    result.size_bytes = sizeof value;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT;
    up.result = &result;
    dt_sessiontest_up(test, stream, &up);
}

void dt_sessiontest_lost(dt_sessiontest_t *test, uint64_t stream, uint32_t vdev)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__EngineLost lost = DTORCH__V1__ENGINE_LOST__INIT;
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    error.code = DT_ERR_LOST;
    error.kind = (char *)(uintptr_t) "EngineLost";
    error.text = (char *)(uintptr_t) "SIGSEGV in aten::mm";
    lost.vdevs = &vdev;
    lost.n_vdevs = 1;
    lost.error = &error;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_LOST;
    up.lost = &lost;
    dt_sessiontest_up(test, stream, &up);
}

static void read_frame(const ProtobufCBinaryData *frame, dt_buf_t *text, uint64_t *first,
                       uint64_t *last)
{
    dt_frame_reader_t reader = {.scratch = NULL};
    dt_record_t *record = malloc(sizeof *record);
    bool is_end = false;
    cr_assert(record);
    cr_assert_eq(dt_frame_open(&reader, frame->data, frame->len), 0);
    cr_assert_eq(reader.header.epoch, DT_SESSIONTEST_EPOCH);
    cr_assert(*last == 0 || reader.header.first_sequence == *last + 1, "a gap or an overlap");
    if (!*first)
        *first = reader.header.first_sequence;
    for (;;) {
        cr_assert_eq(dt_record_next(&reader, record, &is_end), 0);
        if (is_end)
            break;
        cr_assert_eq(dt_buf_printf(
                         text, "%s%s", text->len ? " " : "",
                         record->kind == DT_RECORD_NOP ? "NOP" : dt_record_kind_name(record->kind)),
                     DT_OK);
        *last = record->sequence;
    }
    dt_frame_reader_fini(&reader);
    free(record);
}

const char *dt_sessiontest_records(dt_sessiontest_t *test, uint64_t stream, uint64_t *ret_first,
                                   uint64_t *ret_last)
{
    dt_buf_t text;
    const char *found;
    uint64_t first = 0, last = 0;
    dt_buf_init(&text, 1u << 20);
    for (uint32_t i = 0; i < test->action_count; i++) {
        Dtorch__V1__WorkerSessionDown *down;
        if (test->actions[i].kind != DT_SESSION_DO_SEND || test->actions[i].stream != stream)
            continue;
        down =
            (void *)unpack(test, &dtorch__v1__worker_session_down__descriptor, &test->actions[i]);
        if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_FRAME)
            read_frame(&down->frame, &text, &first, &last);
    }
    cr_assert_eq(dt_buf_text(&text, &found), DT_OK);
    found = dt_arena_strndup(&test->arena, found, strlen(found));
    dt_buf_fini(&text);
    if (ret_first)
        *ret_first = first;
    if (ret_last)
        *ret_last = last;
    return found;
}

/* ---- clients ---- */

void dt_sessiontest_open(dt_sessiontest_t *test, uint64_t stream)
{
    dt_sessions_opened(test->sessions, stream, DT_SESSION_STREAM_CLIENT, "peer", test->now_ns);
}

void dt_sessiontest_send(dt_sessiontest_t *test, uint64_t stream, const Dtorch__V1__SessionUp *up)
{
    uint8_t *data;
    size_t size;
    cr_assert_eq(dt_wire_pack_new(&up->base, &data, &size), DT_OK);
    dt_sessions_received(test->sessions, stream, data, size, test->now_ns);
    free(data);
    dt_sessiontest_perform(test);
}

static void say_hello(dt_sessiontest_t *test, uint64_t stream, uint32_t vdevs, uint64_t session,
                      const uint8_t *token)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello = DTORCH__V1__SESSION_HELLO__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    hello.version = &version;
    hello.program = (char *)(uintptr_t) "train.py";
    hello.device_count = vdevs;
    hello.session = session;
    if (token)
        hello.resume_token =
            (ProtobufCBinaryData){DT_SESSION_TOKEN_BYTES, (uint8_t *)(uintptr_t)token};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    dt_sessiontest_send(test, stream, &up);
}

void dt_sessiontest_hello(dt_sessiontest_t *test, uint64_t stream, uint32_t vdevs)
{
    say_hello(test, stream, vdevs, 0, NULL);
}

void dt_sessiontest_resume(dt_sessiontest_t *test, uint64_t stream, uint64_t session,
                           const uint8_t *token)
{
    dt_sessiontest_open(test, stream);
    say_hello(test, stream, 0, session, token);
}

void dt_sessiontest_join(dt_sessiontest_t *test, uint64_t stream, uint32_t vdevs)
{
    dt_sessiontest_open(test, stream);
    dt_sessiontest_hello(test, stream, vdevs);
    cr_assert(dt_sessiontest_down(test, stream, DTORCH__V1__SESSION_DOWN__KIND_WELCOME, 0));
    for (unsigned number = 1; number < 10; number++)
        if (dt_sessiontest_opened(test, number))
            dt_sessiontest_link(test, number, 100 + number, 0);
}

void dt_sessiontest_close(dt_sessiontest_t *test, uint64_t stream)
{
    dt_sessions_closed(test->sessions, stream, "", test->now_ns);
    dt_sessiontest_perform(test);
}

/* ---- frames ---- */

void dt_sessiontest_begin(dt_sessiontest_t *test, uint64_t first)
{
    dt_frame_begin(&test->writer, test->frame_bytes, sizeof test->frame_bytes, first,
                   DT_SESSIONTEST_EPOCH);
}

void dt_sessiontest_put(dt_sessiontest_t *test, const dt_record_t *record)
{
    cr_assert(dt_record_put(&test->writer, record));
}

void dt_sessiontest_define(dt_sessiontest_t *test, uint32_t id, uint32_t inputs,
                           const char *outputs, uint32_t scalars, uint32_t mesh)
{
    dt_signature_t sig = {.name = "aten::test", .input_count = inputs};
    dt_value_t args[16] = {{.tag = DT_VALUE_TENSOR}};
    dt_signature_tensor_t in[8], out[8];
    dt_record_t record = {.kind = DT_RECORD_DEF_SIG};
    int64_t sizes[] = {4, 3};
    dt_buf_t body;
    dt_error_t err;
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    sig.arg_count = inputs + scalars;
    for (uint32_t i = 0; i < sig.arg_count; i++)
        args[i] = (dt_value_t){.tag = i < inputs ? DT_VALUE_TENSOR : DT_VALUE_DYNAMIC};
    sig.dynamic_count = scalars;
    sig.output_count = (uint32_t)strlen(outputs);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert_eq(dt_meta_set(&in[i].meta, DT_DTYPE_F32, 2, sizes, NULL, 0, &err), DT_OK);
        in[i].layout.mesh = mesh;
        out[i] = in[i];
    }
    for (uint32_t i = 0; i < sig.output_count; i++)
        out[i].alias = outputs[i] == 'v'   ? DT_ALIAS_VIEW
                       : outputs[i] == 'w' ? DT_ALIAS_IN_PLACE
                                           : DT_ALIAS_FRESH;
    sig.args = args;
    sig.inputs = in;
    sig.outputs = out;
    dt_buf_init(&body, 1u << 17);
    cr_assert_eq(dt_signature_encode(&sig, &body, &err), DT_OK, "%s", err.text);
    record.definition.id = id;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    dt_sessiontest_put(test, &record);
    dt_buf_fini(&body);
}

void dt_sessiontest_op(dt_sessiontest_t *test, uint32_t signature, uint32_t input_count,
                       const uint64_t *inputs, uint32_t output_count, const uint64_t *outputs)
{
    cr_assert(dt_record_put_op(&test->writer, &(dt_record_op_t){.signature = signature,
                                                                .input_count = input_count,
                                                                .inputs = inputs,
                                                                .output_count = output_count,
                                                                .outputs = outputs}));
}

void dt_sessiontest_upload(dt_sessiontest_t *test, uint64_t id, uint32_t mesh, uint64_t transfer)
{
    uint8_t bytes[48] = {0};
    int64_t sizes[] = {4, 3};
    dt_record_t record = {.kind = DT_RECORD_UPLOAD};
    record.move.output = id;
    record.move.number = transfer;
    record.move.size = sizeof bytes;
    record.move.bytes = transfer ? NULL : bytes;
    record.move.layout.mesh = mesh;
    cr_assert_eq(dt_meta_set(&record.move.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    dt_sessiontest_put(test, &record);
}

void dt_sessiontest_free_id(dt_sessiontest_t *test, uint64_t id)
{
    dt_record_t record = {.kind = DT_RECORD_FREE};
    record.ids.ids = &id;
    record.ids.count = 1;
    dt_sessiontest_put(test, &record);
}

void dt_sessiontest_fetch(dt_sessiontest_t *test, uint64_t id, uint64_t future)
{
    dt_record_t record = {.kind = DT_RECORD_FETCH};
    record.move.tensor = id;
    record.move.number = future;
    dt_sessiontest_put(test, &record);
}

void dt_sessiontest_mesh(dt_sessiontest_t *test, uint32_t id, uint32_t count, uint64_t first)
{
    uint64_t vdevs[64];
    dt_record_t record = {.kind = DT_RECORD_DEF_MESH};
    for (uint32_t i = 0; i < count; i++)
        vdevs[i] = first + i;
    record.mesh = (dt_record_mesh_t){
        .id = id, .ndim = 1, .vdev_count = count, .sizes = {count}, .names = {""}, .vdevs = vdevs};
    dt_sessiontest_put(test, &record);
}

void dt_sessiontest_frame_bytes(dt_sessiontest_t *test, uint64_t stream, const uint8_t *bytes,
                                size_t size)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame = (ProtobufCBinaryData){size, (uint8_t *)(uintptr_t)bytes};
    dt_sessiontest_send(test, stream, &up);
}

void dt_sessiontest_frame(dt_sessiontest_t *test, uint64_t stream, unsigned flags)
{
    size_t size = dt_frame_end(&test->writer, flags);
    cr_assert_gt(size, 0);
    dt_sessiontest_frame_bytes(test, stream, test->frame_bytes, size);
}

/* ---- what came out ---- */

const Dtorch__V1__SessionDown *dt_sessiontest_down(dt_sessiontest_t *test, uint64_t stream,
                                                   int kind, uint32_t nth)
{
    for (uint32_t i = 0; i < test->action_count; i++) {
        const Dtorch__V1__SessionDown *down;
        if (test->actions[i].kind != DT_SESSION_DO_SEND || test->actions[i].stream != stream)
            continue;
        down = (void *)unpack(test, &dtorch__v1__session_down__descriptor, &test->actions[i]);
        if ((int)down->kind_case == kind && nth-- == 0)
            return down;
    }
    return NULL;
}

uint32_t dt_sessiontest_count(dt_sessiontest_t *test, uint64_t stream, int kind)
{
    uint32_t count = 0;
    while (dt_sessiontest_down(test, stream, kind, count))
        count++;
    return count;
}

const dt_sessiontest_action_t *dt_sessiontest_closed(const dt_sessiontest_t *test, uint64_t stream)
{
    for (uint32_t i = 0; i < test->action_count; i++)
        if (test->actions[i].kind == DT_SESSION_DO_CLOSE && test->actions[i].stream == stream)
            return &test->actions[i];
    return NULL;
}

bool dt_sessiontest_is_malformed(dt_sessiontest_t *test, uint64_t stream, const char *name,
                                 uint64_t sequence)
{
    const Dtorch__V1__SessionDown *down =
        dt_sessiontest_down(test, stream, DTORCH__V1__SESSION_DOWN__KIND_REFUSAL, 0);
    char words[32], record[32];
    (void)snprintf(words, sizeof words, "(%s)", name);
    (void)snprintf(record, sizeof record, "record %llu", (unsigned long long)sequence);
    return down && down->refusal->code == DTORCH__V1__REFUSAL__CODE__MALFORMED &&
           strstr(down->refusal->text, words) && strstr(down->refusal->text, record) &&
           dt_sessiontest_closed(test, stream);
}

uint32_t dt_sessiontest_events(const dt_sessiontest_t *test, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->action_count; i++)
        count += strcmp(test->actions[i].event, name) == 0;
    return count;
}

dt_sessions_counts_t dt_sessiontest_counts(const dt_sessiontest_t *test)
{
    dt_sessions_counts_t counts;
    dt_sessions_count(test->sessions, &counts);
    return counts;
}
