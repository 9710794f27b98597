/* A node's agent and engines, as a model: instances of sessions that execute what they receive. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "wire/wire.h"

/* ---- life of instances ---- */

static stream_instance_t *find(stream_t *s, int node, uint64_t session, const uint8_t *key)
{
    for (int i = 0; i < s->instance_count; i++) {
        stream_instance_t *in = &s->instances[i];
        if (in->is_used && in->node == node && in->session == session &&
            memcmp(in->key, key, sizeof in->key) == 0)
            return in;
    }
    return NULL;
}

void stream_instance_free(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    if (in->is_used && in->pipe >= 0)
        stream_leave(s, in->pipe);
    for (uint32_t i = 0; i < in->frame_count; i++)
        free(in->frames[i].bytes);
    for (uint32_t i = 0; i < in->up_count; i++)
        free(in->ups[i].bytes);
    in->frame_count = in->up_count = 0;
    in->is_used = false;
    in->pipe = -1;
}

static void take_bindings(stream_instance_t *in, const Dtorch__V1__SessionOpen *open)
{
    for (uint32_t v = 0; v < STREAM_VDEVS; v++)
        in->vdev_device[v] = UINT32_MAX;
    for (size_t i = 0; i < open->n_bindings; i++)
        in->vdev_device[open->bindings[i]->vdev] = open->bindings[i]->device;
}

static void on_open(stream_t *s, int node, const Dtorch__V1__SessionOpen *open)
{
    stream_instance_t *in = find(s, node, open->session, open->key.data);
    if (in)
        return; /* said again; what was lost in between stays lost */
    if (s->instance_count == STREAM_INSTANCES) {
        stream_fail(s, "more instances than the simulator has");
        return;
    }
    in = &s->instances[s->instance_count++];
    *in = (stream_instance_t){.is_used = true, .node = node, .session = open->session, .pipe = -1};
    memcpy(in->key, open->key.data, sizeof in->key);
    in->dial_ns = in->wake_ns = s->now_ns + (int64_t)stream_random(s, 5 * STREAM_MS);
    take_bindings(in, open);
}

static void on_close(stream_t *s, int node, const Dtorch__V1__SessionClose *close)
{
    for (int i = 0; i < s->instance_count; i++) {
        stream_instance_t *in = &s->instances[i];
        if (in->is_used && in->node == node && in->session == close->session &&
            (close->key.len == 0 || memcmp(in->key, close->key.data, sizeof in->key) == 0))
            stream_instance_free(s, i);
    }
}

void stream_node_order(stream_t *s, int node, const uint8_t *data, size_t size)
{
    Dtorch__V1__WorkerDown *down = dtorch__v1__worker_down__unpack(NULL, size, data);
    if (!down || dt_wire_validate(&down->base, NULL) != DT_OK) {
        stream_fail(s, "the machine sent nonsense to a node");
        return;
    }
    if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_OPEN)
        on_open(s, node, down->open);
    else if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_CLOSE)
        on_close(s, node, down->close);
    dtorch__v1__worker_down__free_unpacked(down, NULL);
}

void stream_node_restart(stream_t *s, int node)
{
    stream_node_t *n = &s->nodes[node];
    if (!n->control)
        return;
    stream_trace(s, "node %d is restarted", node);
    s->losses++;
    for (int i = 0; i < s->instance_count; i++)
        if (s->instances[i].is_used && s->instances[i].node == node)
            stream_instance_free(s, i);
    n->control = 0;
    while (n->orders.head) {
        stream_message_t *m = n->orders.head;
        n->orders.head = m->next;
        free(m->data);
        free(m);
    }
    n->orders.tail = NULL;
    n->back_ns = s->now_ns + (int64_t)stream_random(s, 800 * STREAM_MS);
    stream_node_tell(s, node);
    n->incarnation++;
}

/* ---- what goes up ---- */

static void send_up(stream_t *s, stream_instance_t *in, const Dtorch__V1__WorkerSessionUp *up)
{
    stream_frame_t *kept = &in->ups[in->up_count];
    if (in->up_count == STREAM_KEPT) {
        stream_fail(s, "what a node sends is not taken");
        return;
    }
    *kept = (stream_frame_t){.first = ++in->up_number};
    if (dt_wire_pack_new(&up->base, &kept->bytes, &kept->size) != DT_OK)
        abort();
    in->up_count++;
    if (in->pipe >= 0 && in->may_send)
        stream_say(s, in->pipe, kept->bytes, kept->size);
}

static void on_taken(stream_t *s, stream_instance_t *in, uint64_t number)
{
    uint32_t gone = 0;
    while (gone < in->up_count && in->ups[gone].first <= number)
        free(in->ups[gone++].bytes);
    in->up_count -= gone;
    memmove(in->ups, in->ups + gone, in->up_count * sizeof in->ups[0]);
    if (in->may_send)
        return;
    in->may_send = true;
    for (uint32_t i = 0; i < in->up_count; i++)
        stream_say(s, in->pipe, in->ups[i].bytes, in->ups[i].size);
}

static void say_executed(stream_t *s, stream_instance_t *in)
{
    for (uint32_t v = 0; v < STREAM_VDEVS; v++) {
        Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
        Dtorch__V1__Executed executed = DTORCH__V1__EXECUTED__INIT;
        bool is_first = in->vdev_device[v] != UINT32_MAX;
        for (uint32_t k = 0; k < v; k++)
            is_first &= in->vdev_device[k] != in->vdev_device[v];
        if (!is_first)
            continue;
        executed.sequence = in->executed;
        executed.vdev = v;
        up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_EXECUTED;
        up.executed = &executed;
        send_up(s, in, &up);
    }
}

void stream_engine_lost(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__EngineLost lost = DTORCH__V1__ENGINE_LOST__INIT;
    uint32_t vdevs[STREAM_VDEVS], device;
    if (!in->is_used)
        return;
    device = in->vdev_device[stream_random(s, STREAM_VDEVS)];
    if (device == UINT32_MAX)
        return;
    for (uint32_t v = 0; v < STREAM_VDEVS; v++)
        if (in->vdev_device[v] == device) {
            vdevs[lost.n_vdevs++] = v;
            in->vdev_device[v] = UINT32_MAX;
        }
    for (uint64_t id = 1; id < STREAM_IDS; id++)
        if (in->is_there[id] && in->vdev_device[in->vdev_of[id]] == UINT32_MAX)
            in->is_there[id] = false;
    stream_trace(s, "an engine of session %" PRIu64 " is lost", in->session);
    s->losses++;
    lost.vdevs = vdevs;
    lost.executed = in->executed;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_LOST;
    up.lost = &lost;
    send_up(s, in, &up);
}

/* ---- execution ---- */

static bool is_here(stream_instance_t *in, uint32_t vdev)
{
    return vdev < STREAM_VDEVS && in->vdev_device[vdev] != UINT32_MAX;
}

static void put_tensor(stream_instance_t *in, uint64_t id, uint32_t vdev, uint32_t storage)
{
    in->is_there[id] = true;
    in->vdev_of[id] = vdev;
    in->storage_of[id] = storage;
}

static void execute_op(stream_t *s, stream_instance_t *in, const dt_record_op_t *op)
{
    uint32_t vdev = op->signature / STREAM_KINDS, kind = op->signature % STREAM_KINDS, storage;
    if (!is_here(in, vdev))
        return;
    if (!in->plans[op->signature]) {
        stream_fail(s, "a plan that the node was not told");
        return;
    }
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!in->is_there[op->inputs[i]]) {
            stream_fail(s, "tensor %" PRIu64 " of session %" PRIu64 " is not on its node",
                        op->inputs[i], in->session);
            return;
        }
    storage = in->storage_of[op->inputs[0]];
    if (kind == 0) {
        uint64_t value =
            stream_mix(0, in->values[storage], in->values[in->storage_of[op->inputs[1]]]);
        put_tensor(in, op->outputs[0], vdev, (uint32_t)op->outputs[0]);
        in->values[op->outputs[0]] = value;
    } else if (kind == 1) {
        in->values[storage] = stream_mix(1, in->values[storage], 0);
    } else {
        put_tensor(in, op->outputs[0], vdev, storage);
    }
}

static void execute_fetch(stream_t *s, stream_instance_t *in, uint64_t id, uint64_t future)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__Result result = DTORCH__V1__RESULT__INIT;
    if (!in->is_there[id])
        return; /* another node's, or of a lost engine */
    result.future = future;
    result.value =
        (ProtobufCBinaryData){sizeof in->values[0], (uint8_t *)&in->values[in->storage_of[id]]};
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT;
    up.result = &result;
    send_up(s, in, &up);
}

static void execute(stream_t *s, stream_instance_t *in, const dt_record_t *r)
{
    switch (r->kind) {
    case DT_RECORD_DEF_PLAN:
        in->plans[r->definition.id] = true;
        break;
    case DT_RECORD_DEF_MESH:
        in->meshes[r->mesh.id] = true;
        break;
    case DT_RECORD_OP:
        execute_op(s, in, &r->op);
        break;
    case DT_RECORD_UPLOAD:
        if (is_here(in, r->move.layout.mesh)) {
            put_tensor(in, r->move.output, r->move.layout.mesh, (uint32_t)r->move.output);
            memcpy(&in->values[r->move.output], r->move.bytes, sizeof in->values[0]);
        }
        break;
    case DT_RECORD_FETCH:
        execute_fetch(s, in, r->move.tensor, r->move.number);
        break;
    case DT_RECORD_FREE:
        for (uint32_t i = 0; i < r->ids.count; i++)
            in->is_there[r->ids.ids[i]] = false;
        break;
    case DT_RECORD_NOP:
        break;
    default:
        stream_fail(s, "a node got a record of kind %s", dt_record_kind_name(r->kind));
    }
}

/* Execute some records of the oldest frame. */
static void execute_some(stream_t *s, stream_instance_t *in, uint64_t count)
{
    dt_frame_reader_t reader = {.scratch = NULL};
    stream_frame_t *frame = &in->frames[0];
    bool is_end = false;
    if (dt_frame_open(&reader, frame->bytes, frame->size) != 0) {
        stream_fail(s, "a node got a malformed frame");
        return;
    }
    for (uint32_t i = 0; i < frame->count && count > 0; i++) {
        if (dt_record_next(&reader, &s->record, &is_end) != 0) {
            stream_fail(s, "a node got a malformed record");
            break;
        }
        if (i < in->done_records)
            continue;
        execute(s, in, &s->record);
        in->executed = s->record.sequence;
        in->done_records++;
        count--;
    }
    dt_frame_reader_fini(&reader);
    if (in->done_records < frame->count)
        return;
    free(frame->bytes);
    in->frame_count--;
    in->done_records = 0;
    memmove(in->frames, in->frames + 1, in->frame_count * sizeof in->frames[0]);
}

/* ---- the link ---- */

static void dial(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__WorkerSessionHello hello = DTORCH__V1__WORKER_SESSION_HELLO__INIT;
    hello.session = in->session;
    hello.epoch = STREAM_EPOCH;
    hello.key = (ProtobufCBinaryData){sizeof in->key, in->key};
    hello.received = in->received;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    in->pipe = stream_open(s, DT_SESSION_STREAM_LINK, instance);
    in->may_send = false;
    if (in->pipe >= 0)
        stream_pack_say(s, in->pipe, &up.base);
}

void stream_instance_wake(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    in->wake_ns = s->now_ns + 20000 + (int64_t)stream_random(s, 3 * STREAM_MS);
    if (in->pipe < 0 && s->now_ns >= in->dial_ns)
        dial(s, instance);
    if (in->frame_count) {
        execute_some(s, in, 1 + stream_random(s, 20));
        if (stream_chance(s, 60) || !in->frame_count)
            say_executed(s, in);
    }
}

static void on_frame(stream_t *s, stream_instance_t *in, const ProtobufCBinaryData *bytes)
{
    dt_frame_reader_t reader = {.scratch = NULL};
    stream_frame_t *frame = &in->frames[in->frame_count];
    if (in->frame_count == STREAM_KEPT || dt_frame_open(&reader, bytes->data, bytes->len) != 0) {
        stream_fail(s, "a node got a malformed frame, or too many");
        return;
    }
    if (in->received && reader.header.first_sequence != in->received + 1) {
        stream_fail(s, "session %" PRIu64 ": a node got record %" PRIu64 " after %" PRIu64,
                    in->session, reader.header.first_sequence, in->received);
        return;
    }
    *frame = (stream_frame_t){
        .size = bytes->len, .first = reader.header.first_sequence, .count = reader.header.count};
    frame->bytes = malloc(bytes->len);
    if (!frame->bytes)
        abort();
    memcpy(frame->bytes, bytes->data, bytes->len);
    in->frame_count++;
    in->received = frame->first + frame->count - 1;
}

void stream_instance_message(stream_t *s, int instance, const uint8_t *data, size_t size)
{
    stream_instance_t *in = &s->instances[instance];
    Dtorch__V1__WorkerSessionDown *down = dtorch__v1__worker_session_down__unpack(NULL, size, data);
    if (!down || dt_wire_validate(&down->base, NULL) != DT_OK) {
        stream_fail(s, "the machine sent nonsense to a node");
        return;
    }
    if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_FRAME)
        on_frame(s, in, &down->frame);
    else if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_UP_RECEIVED)
        on_taken(s, in, down->up_received);
    else if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_CLOSE)
        stream_instance_free(s, instance);
    dtorch__v1__worker_session_down__free_unpacked(down, NULL);
}

void stream_instance_ended(stream_t *s, int instance, bool is_over)
{
    stream_instance_t *in = &s->instances[instance];
    in->pipe = -1;
    in->dial_ns = s->now_ns + (int64_t)stream_random(s, 100 * STREAM_MS);
    if (is_over)
        stream_instance_free(s, instance);
}
