/* A node's agent and engines, as a model: instances of sessions that execute what they receive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/redistribute.h"
#include "stream.h"
#include "wire/signature.h"
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
    if (in->is_used && s->has_meshes && !s->nodes[in->node].is_dark)
        stream_exchange_break(s, instance, in->own);
    for (uint32_t i = 0; i < in->frame_count; i++)
        free(in->frames[i].bytes);
    for (uint32_t i = 0; i < in->up_count; i++)
        free(in->ups[i].bytes);
    for (dt_move_t *move; in->is_used && (move = dt_moves_take(&in->moves)) != NULL;)
        free(DT_CONTAINER_OF(move, stream_queued_t, move));
    in->running = NULL;
    in->frame_count = in->up_count = 0;
    in->is_used = false;
    in->pipe = -1;
}

static void take_bindings(stream_instance_t *in, const Dtorch__V1__SessionOpen *open)
{
    Dtorch__V1__VdevBinding **all = open->n_all ? open->all : open->bindings;
    size_t count = open->n_all ? open->n_all : open->n_bindings;
    for (uint32_t v = 0; v < STREAM_VDEVS; v++) {
        in->vdev_device[v] = UINT32_MAX;
        in->all_node[v] = -1;
        in->gone_ns[v] = INT64_MAX;
    }
    for (size_t i = 0; i < open->n_bindings; i++) {
        in->vdev_device[open->bindings[i]->vdev] = open->bindings[i]->device;
        in->own |= 1u << open->bindings[i]->vdev;
    }
    for (size_t i = 0; i < count; i++)
        in->all_node[all[i]->vdev] = all[i]->node[1] - '0';
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
    dt_moves_init(&in->moves);
    in->slowness = 1;
    if (s->has_overlap && stream_chance(s, 50))
        in->slowness = stream_chance(s, 50) ? 16 : 1 + stream_random(s, 16);
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

void stream_node_restart(stream_t *s, int node, bool is_silent)
{
    stream_node_t *n = &s->nodes[node];
    if (!n->control)
        return;
    stream_trace(s, "node %d is restarted%s", node, is_silent ? " without a word" : "");
    s->losses++;
    n->is_dark = is_silent;
    for (int i = 0; i < s->instance_count; i++)
        if (s->instances[i].is_used && s->instances[i].node == node)
            stream_instance_free(s, i);
    n->is_dark = false;
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
    for (uint32_t v = 0; v < s->vdev_count; v++) {
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
    uint32_t vdevs[STREAM_VDEVS], device, gone = 0;
    if (!in->is_used)
        return;
    device = in->vdev_device[stream_random(s, s->vdev_count)];
    if (device == UINT32_MAX)
        return;
    for (uint32_t v = 0; v < s->vdev_count; v++)
        if (in->vdev_device[v] == device) {
            vdevs[lost.n_vdevs++] = v;
            in->vdev_device[v] = UINT32_MAX;
            gone |= 1u << v;
        }
    if (s->has_meshes)
        stream_exchange_break(s, instance, gone);
    stream_trace(s, "an engine of session %" PRIu64 " is lost", in->session);
    if (s->has_meshes && stream_chance(s, 30)) { /* and its node's devices, for a while */
        s->nodes[in->node].well_ns = s->now_ns + (int64_t)stream_random(s, 300 * STREAM_MS);
        stream_node_tell(s, in->node);
    }
    s->losses++;
    lost.vdevs = vdevs;
    lost.executed = in->executed;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_LOST;
    up.lost = &lost;
    send_up(s, in, &up);
}

/* ---- execution ---- */

/* Whether a device of a place is ours and lives. */
static bool is_here(const stream_t *s, const stream_instance_t *in, uint32_t place)
{
    for (uint32_t i = 0; i < s->places[place].count; i++)
        if (in->vdev_device[s->places[place].vdevs[i]] != UINT32_MAX)
            return true;
    return false;
}

static void put_tensor(stream_instance_t *in, uint64_t id, uint32_t place, uint32_t storage)
{
    in->is_there[id] = true;
    in->place_of[id] = place;
    in->storage_of[id] = storage;
}

/* An input that should be there, as the program thinks. */
static bool check_input(stream_t *s, const stream_instance_t *in, uint64_t id, uint32_t place)
{
    if (in->is_there[id] && in->place_of[id] == place)
        return true;
    stream_fail(s, "tensor %" PRIu64 " of session %" PRIu64 " is not on its node, or elsewhere", id,
                in->session);
    return false;
}

/* One device's part of an operator of one place. */
static void execute_part(stream_instance_t *in, const dt_record_op_t *op, uint32_t kind, uint32_t v)
{
    uint32_t a = in->storage_of[op->inputs[0]];
    if (kind == 0) {
        uint32_t b = in->storage_of[op->inputs[1]];
        uint64_t output = op->outputs[0], other = in->poison[b][v];
        in->values[output][v] = stream_mix(0, in->values[a][v], in->values[b][v]);
        in->poison[output][v] = in->poison[a][v];
        if (other && (!in->poison[output][v] || other < in->poison[output][v]))
            in->poison[output][v] = other;
    } else if (kind == 1) {
        in->values[a][v] = stream_mix(1, in->values[a][v], 0);
    }
}

static void execute_kind(stream_t *s, stream_instance_t *in, const dt_record_op_t *op)
{
    uint32_t place = op->signature / STREAM_KINDS, kind = op->signature % STREAM_KINDS;
    const stream_place_t *at = &s->places[place];
    if (!is_here(s, in, place))
        return;
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!check_input(s, in, op->inputs[i], place))
            return;
    for (uint32_t i = 0; i < at->count; i++)
        if (in->vdev_device[at->vdevs[i]] != UINT32_MAX)
            execute_part(in, op, kind, at->vdevs[i]);
    if (kind == 0)
        put_tensor(in, op->outputs[0], place, (uint32_t)op->outputs[0]);
    else if (kind == 2)
        put_tensor(in, op->outputs[0], place, in->storage_of[op->inputs[0]]);
}

static void execute_local(stream_t *s, stream_instance_t *in, const dt_record_op_t *op)
{
    uint32_t place = (op->signature - STREAM_SIG_LOCAL) / STREAM_VDEVS;
    uint32_t index = (op->signature - STREAM_SIG_LOCAL) % STREAM_VDEVS;
    uint32_t vdev = s->places[place].vdevs[index];
    if (!is_here(s, in, vdev) || !check_input(s, in, op->inputs[0], place))
        return;
    uint32_t from = in->storage_of[op->inputs[0]];
    uint32_t storage = index % 2 ? from : (uint32_t)op->outputs[0];
    put_tensor(in, op->outputs[0], vdev, storage);
    in->values[storage][vdev] = in->values[from][vdev];
    in->poison[storage][vdev] = in->poison[from][vdev];
}

static void execute_join(stream_t *s, stream_instance_t *in, const dt_record_op_t *op)
{
    uint32_t place = op->signature - STREAM_SIG_JOIN;
    const stream_place_t *at = &s->places[place];
    uint64_t output = op->outputs[0];
    if (!is_here(s, in, place))
        return;
    put_tensor(in, output, place, (uint32_t)output);
    for (uint32_t i = 0; i < at->count; i++) {
        uint32_t v = at->vdevs[i];
        if (!is_here(s, in, v))
            continue;
        if (!check_input(s, in, op->inputs[i], v))
            return;
        in->values[output][v] = in->values[in->storage_of[op->inputs[i]]][v];
        in->poison[output][v] = in->poison[in->storage_of[op->inputs[i]]][v];
    }
}

/* ---- moves ---- */

static void queue_move(stream_instance_t *in, uint64_t sequence, const stream_queued_t *what,
                       bool is_source, bool is_target)
{
    stream_queued_t *q = malloc(sizeof *q);
    if (!q)
        abort();
    *q = *what;
    q->marks[0] = &in->marks[in->storage_of[q->input]];
    q->marks[1] = &in->marks[q->output];
    q->move = (dt_move_t){.sequence = sequence,
                          .reads = &q->marks[0],
                          .read_count = is_source,
                          .makes = &q->marks[1],
                          .make_count = is_target};
    dt_moves_push(&in->moves, &q->move);
}

/* End what can end, begin what comes next. */
static void turn_moves(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    for (;;) {
        dt_move_t *next = dt_moves_next(&in->moves);
        if (next)
            in->running = DT_CONTAINER_OF(next, stream_queued_t, move);
        if (!in->running ||
            !stream_exchange_run(s, instance, in->running->move.sequence, in->running))
            return;
        dt_moves_end(&in->moves);
        free(in->running);
        in->running = NULL;
    }
}

/* Whether queued moves leave to an operator what it reads and writes. */
static bool may_execute(const stream_instance_t *in, const dt_record_op_t *op)
{
    bool is_in_place = op->signature < STREAM_SIG_MOVE && op->signature % STREAM_KINDS == 1;
    for (uint32_t i = 0; i < op->input_count; i++) {
        const dt_move_mark_t *mark = &in->marks[in->storage_of[op->inputs[i]]];
        if (!dt_move_may_read(mark) || (is_in_place && !dt_move_may_write(mark)))
            return false;
    }
    return true;
}

/* False: it waits. */
static bool execute_move(stream_t *s, int instance, uint64_t sequence, const dt_record_op_t *op)
{
    stream_instance_t *in = &s->instances[instance];
    const stream_queued_t what = {.input = op->inputs[0],
                                  .output = op->outputs[0],
                                  .from = (op->signature - STREAM_SIG_MOVE) / STREAM_PLACES,
                                  .to = (op->signature - STREAM_SIG_MOVE) % STREAM_PLACES};
    bool is_source = is_here(s, in, what.from), is_target = is_here(s, in, what.to);
    if ((!is_source && !is_target) || (is_source && !check_input(s, in, what.input, what.from)))
        return true;
    if (dt_moves_is_full(&in->moves))
        return false;
    if (is_target)
        put_tensor(in, what.output, what.to, (uint32_t)what.output);
    if (!s->has_overlap)
        return stream_exchange_run(s, instance, sequence, &what);
    queue_move(in, sequence, &what, is_source, is_target);
    turn_moves(s, instance);
    return true;
}

/* False: it waits. */
static bool execute_op(stream_t *s, int instance, uint64_t sequence, const dt_record_op_t *op)
{
    stream_instance_t *in = &s->instances[instance];
    if (op->signature >= STREAM_SIG_COUNT || !in->plans[op->signature])
        stream_fail(s, "a plan that the node was not told");
    else if (op->signature >= STREAM_SIG_LIE)
        stream_fail(s, "a node is to execute what the program lied about");
    else if (!may_execute(in, op))
        return false;
    else if (op->signature < STREAM_SIG_MOVE)
        execute_kind(s, in, op);
    else if (op->signature < STREAM_SIG_LOCAL)
        return execute_move(s, instance, sequence, op);
    else if (op->signature < STREAM_SIG_JOIN)
        execute_local(s, in, op);
    else
        execute_join(s, in, op);
    return true;
}

static void execute_fetch(stream_t *s, stream_instance_t *in, uint64_t id, uint64_t future)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__Result result = DTORCH__V1__RESULT__INIT;
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    if (!in->is_there[id] || !is_here(s, in, in->place_of[id]))
        return; /* another node's, or of a lost engine */
    uint32_t storage = in->storage_of[id], v = s->places[in->place_of[id]].vdevs[0];
    result.future = future;
    if (in->poison[storage][v]) {
        error.code = DT_ERR_LOST;
        error.kind = (char *)(uintptr_t) "PeerLost";
        error.text = (char *)(uintptr_t) "a peer was lost";
        error.sequence = in->poison[storage][v];
        result.error = &error;
    } else {
        result.value =
            (ProtobufCBinaryData){sizeof in->values[0][0], (uint8_t *)&in->values[storage][v]};
    }
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT;
    up.result = &result;
    send_up(s, in, &up);
}

static void execute_upload(stream_t *s, stream_instance_t *in, const dt_record_t *r)
{
    uint32_t place = 0;
    uint64_t value;
    while (place < s->place_count && !dt_layout_equal(&s->places[place].layout, &r->move.layout))
        place++;
    if (place == s->place_count || !is_here(s, in, place))
        return;
    const stream_place_t *at = &s->places[place];
    memcpy(&value, r->move.bytes, sizeof value);
    put_tensor(in, r->move.output, place, (uint32_t)r->move.output);
    for (uint32_t i = 0; i < at->count; i++)
        in->values[r->move.output][at->vdevs[i]] = at->count == 1 ? value : stream_mix(5, value, i);
}

static bool is_alike(const stream_place_t *a, const stream_place_t *b)
{
    dt_layout_t layout = b->layout;
    layout.mesh = a->layout.mesh;
    return a->count == b->count && dt_layout_equal(&a->layout, &layout) &&
           memcmp(a->vdevs, b->vdevs, a->count * sizeof a->vdevs[0]) == 0;
}

/* A plan comes once, but after it was dropped; a move has steps. */
static void take_plan(stream_t *s, stream_instance_t *in, const dt_record_t *r)
{
    uint32_t id = r->definition.id, count = 0;
    dt_cursor_t cursor = {.at = r->definition.body,
                          .end = r->definition.body + r->definition.body_bytes};
    dt_shard_step_t steps[DT_SHARD_STEP_MAX];
    dt_signature_t *sig;
    dt_arena_t arena;
    if (id >= STREAM_SIG_COUNT || in->plans[id]) {
        stream_fail(s, "plan %" PRIu32 " was told twice", id);
        return;
    }
    in->plans[id] = true;
    if (id < STREAM_SIG_MOVE || id >= STREAM_SIG_LOCAL)
        return;
    bool is_still = is_alike(&s->places[(id - STREAM_SIG_MOVE) / STREAM_PLACES],
                             &s->places[(id - STREAM_SIG_MOVE) % STREAM_PLACES]);
    dt_arena_init(&arena, 1u << 20);
    if (dt_signature_decode(&cursor, &arena, &sig) == 0)
        dt_shard_steps_get(&cursor, steps, &count);
    if (cursor.error || (count == 0) != is_still)
        stream_fail(s, "plan %" PRIu32 " moves by %" PRIu32 " steps", id, count);
    dt_arena_fini(&arena);
}

static void take_option(stream_t *s, stream_instance_t *in, const dt_record_t *r)
{
    uint32_t id = 0;
    for (uint32_t i = 0; i < r->note.text_bytes; i++)
        id = id * 10 + (uint32_t)(r->note.text[i] - '0');
    if (id < STREAM_SIG_COUNT)
        in->plans[id] = false;
    else
        stream_fail(s, "an unknown signature was dropped");
}

/* False: it waits for others. */
static bool execute(stream_t *s, int instance, const dt_record_t *r)
{
    stream_instance_t *in = &s->instances[instance];
    switch (r->kind) {
    case DT_RECORD_DEF_PLAN:
        take_plan(s, in, r);
        break;
    case DT_RECORD_DEF_MESH:
        in->meshes[r->mesh.id] = true;
        break;
    case DT_RECORD_OP:
        return execute_op(s, instance, r->sequence, &r->op);
    case DT_RECORD_UPLOAD:
        if (r->move.layout.mesh && !in->meshes[r->move.layout.mesh])
            stream_fail(s, "a mesh that the node was not told");
        execute_upload(s, in, r);
        break;
    case DT_RECORD_FETCH:
        if (in->moves.count > 0)
            return false;
        execute_fetch(s, in, r->move.tensor, r->move.number);
        break;
    case DT_RECORD_FREE:
        for (uint32_t i = 0; i < r->ids.count; i++)
            in->is_there[r->ids.ids[i]] = false;
        break;
    case DT_RECORD_SET_OPTION:
        take_option(s, in, r);
        break;
    case DT_RECORD_NOP:
        break;
    default:
        stream_fail(s, "a node got a record of kind %s", dt_record_kind_name(r->kind));
    }
    return true;
}

/* Execute some records of the oldest frame. */
static void execute_some(stream_t *s, int instance, uint64_t count)
{
    dt_frame_reader_t reader = {.scratch = NULL};
    stream_instance_t *in = &s->instances[instance];
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
        if (!execute(s, instance, &s->record))
            break;
        in->performed = s->record.sequence;
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

/* Where the others of the session reach it. */
static void say_door(stream_t *s, stream_instance_t *in)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__PeerDoor door = DTORCH__V1__PEER_DOOR__INIT;
    char name[8];
    (void)snprintf(name, sizeof name, "n%d", in->node);
    door.node = name;
    door.token = (ProtobufCBinaryData){sizeof in->key, in->key};
    door.address = (char *)(uintptr_t) "192.0.2.1:1";
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_PEER;
    up.peer = &door;
    in->is_door_said = true;
    send_up(s, in, &up);
}

/* Another node is reached there, or is gone. */
static void on_peer(stream_t *s, stream_instance_t *in, const Dtorch__V1__PeerDoor *peer)
{
    int node = peer->node[1] - '0';
    if (*peer->address) {
        in->has_door[node] = true;
        return;
    }
    for (uint32_t v = 0; v < s->vdev_count; v++)
        if (in->all_node[v] == node && !(in->own >> v & 1) && node != in->node)
            in->gone_ns[v] = s->now_ns;
}

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
    if (s->has_meshes && !in->is_door_said)
        say_door(s, in);
}

void stream_instance_wake(stream_t *s, int instance)
{
    stream_instance_t *in = &s->instances[instance];
    in->wake_ns =
        s->now_ns + (int64_t)in->slowness * (20000 + (int64_t)stream_random(s, 3 * STREAM_MS));
    if (in->pipe < 0 && s->now_ns >= in->dial_ns)
        dial(s, instance);
    bool had_frames = in->frame_count > 0;
    turn_moves(s, instance);
    if (had_frames)
        execute_some(s, instance, 1 + stream_random(s, 20));
    in->executed = dt_moves_settled(&in->moves, in->performed);
    bool is_due = s->has_overlap ? in->executed != in->said : had_frames;
    if (is_due && (stream_chance(s, 60) || !in->frame_count)) {
        in->said = in->executed;
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
    else if (down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_PEER)
        on_peer(s, in, down->peer);
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
