/* Frames of a client: order, what each record does to the session, what nodes get of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"

#define ENVELOPE_TAG 0x0a /* WorkerSessionDown.frame */

/* ---- packets ---- */

dt_session_packet_t *dt_session_packet_new(const uint8_t *frame, size_t size, uint64_t first,
                                           uint32_t count)
{
    dt_session_packet_t *packet = malloc(sizeof *packet + DT_SESSION_ENVELOPE_BYTES + size);
    uint8_t coded[DT_VARINT_BYTES_MAX];
    uint32_t coded_bytes = (uint32_t)(dt_varint_put(coded, size) - coded);
    if (!packet)
        return NULL;
    *packet = (dt_session_packet_t){.refs = 1, .first = first, .count = count};
    packet->start = DT_SESSION_ENVELOPE_BYTES - 1 - coded_bytes;
    packet->size = 1 + coded_bytes + (uint32_t)size;
    packet->bytes[packet->start] = ENVELOPE_TAG;
    memcpy(packet->bytes + packet->start + 1, coded, coded_bytes);
    memcpy(packet->bytes + DT_SESSION_ENVELOPE_BYTES, frame, size);
    return packet;
}

void dt_session_packet_unref(dt_session_packet_t *packet)
{
    if (packet && --packet->refs == 0)
        free(packet);
}

static bool queue_room(dt_session_t *session)
{
    dt_session_packet_t **grown;
    uint32_t cap;
    if (session->queue_head + session->queue_count < session->queue_cap)
        return true;
    if (session->queue_head > session->queue_cap / 2) {
        memmove(session->queue, session->queue + session->queue_head,
                session->queue_count * sizeof(void *));
        session->queue_head = 0;
        return true;
    }
    cap = session->queue_cap ? 2 * session->queue_cap : 64;
    grown = realloc(session->queue, cap * sizeof(void *));
    if (!grown)
        return false;
    session->queue = grown;
    session->queue_cap = cap;
    return true;
}

/* Queue a frame for the nodes. `base`: of id deltas at its end. */
static bool enqueue(dt_session_t *session, const uint8_t *frame, size_t size, uint64_t first,
                    uint32_t count, uint64_t base)
{
    dt_session_packet_t *packet;
    if (!queue_room(session))
        return false;
    packet = dt_session_packet_new(frame, size, first, count);
    if (!packet)
        return false;
    packet->base = base;
    session->queue[session->queue_head + session->queue_count++] = packet;
    return true;
}

/* The packet at the queue's end, where a frame of `size` bytes that begins at `first` may be
 * written into it: many wait, so nobody waits for just this one; both are small; no node has it. A
 * client that sends each record alone would otherwise have us keep forty bytes for each of its own.
 */
static dt_session_packet_t *tail_for(const dt_session_t *session, size_t size, uint64_t first)
{
    uint64_t index = session->queue_first + session->queue_count - 1;
    if (session->queue_count < DT_SESSION_MERGE_PACKETS)
        return NULL;
    dt_session_packet_t *tail = session->queue[session->queue_head + session->queue_count - 1];
    if (tail->refs > 1 || tail->size + size > DT_SESSION_MERGE_BYTES ||
        tail->first + tail->count != first)
        return NULL;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        uint64_t sent = link->next > link->prelude_count ? link->next - link->prelude_count : 0;
        if (link->join_index + sent > index)
            return NULL;
    }
    return tail;
}

/* ---- what a record does ---- */

struct apply {
    dt_sessions_t *sessions;
    dt_session_t *session;
    const dt_record_t *record;
    uint8_t fate;
};

/* Refuse a record by name. Returns the cause. */
static uint32_t refuse(struct apply *a, const char *operator_name, const char *text)
{
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    error.code = DT_ERR_INVALID;
    error.kind = DT_SESSION_TEXT("NotImplementedError");
    error.text = DT_SESSION_TEXT(text);
    error.sequence = a->record->sequence;
    error.operator_name = DT_SESSION_TEXT(operator_name);
    dt_session_note_error(a->sessions, a->session, &error);
    a->fate = DT_FATE_NOP;
    return dt_session_cause(a->session, &error);
}

static uint32_t refuse_kind(struct apply *a)
{
    char text[128];
    (void)snprintf(text, sizeof text, "records of kind %s are not served by this controller",
                   dt_record_kind_name(a->record->kind));
    return refuse(a, "", text);
}

static int check_outputs(const dt_session_t *session, const uint64_t *outputs, uint32_t count)
{
    uint64_t least = session->next_tensor;
    for (uint32_t i = 0; i < count; i++) {
        if (outputs[i] < least)
            return outputs[i] == 0 ? DT_FRAME_E_ID : DT_FRAME_E_DUP;
        least = outputs[i] + 1;
        if (least == 0)
            return DT_FRAME_E_LIMIT;
    }
    return session->tensors.count + count > session->tensors_max ? DT_FRAME_E_LIMIT : 0;
}

/* Name a storage; takes the reference. */
static int put_tensor(dt_session_t *session, uint64_t id, uint32_t storage, uint32_t spot)
{
    if (storage == UINT32_MAX)
        return DT_FRAME_E_NOMEM;
    if (!dt_session_map_put(&session->tensors, id, storage, spot)) {
        dt_session_storage_unref(session, storage);
        return DT_FRAME_E_NOMEM;
    }
    session->next_tensor = id + 1;
    return 0;
}

/* A tensor of its own. A vdev that has no device any more poisons what is put there. */
static int put_fresh(struct apply *a, uint64_t id, uint32_t spot, uint32_t cause)
{
    dt_session_t *session = a->session;
    if (!cause)
        cause = dt_session_spot_cause(session, spot);
    if (cause)
        a->fate = DT_FATE_NOP;
    return put_tensor(session, id,
                      dt_session_storage_new(session, spot, a->record->sequence, cause), spot);
}

static dt_session_storage_t *storage_of(dt_session_t *session, uint64_t id)
{
    dt_session_entry_t *entry = dt_session_map_find(&session->tensors, id);
    return entry ? &session->storages[entry->value] : NULL;
}

/* Spots of a signature whose tensors do not all lie alike: of its inputs, then of its outputs. */
static const uint32_t *spots_of(const dt_session_signature_t *sig)
{
    return sig->links + sig->write_count + (sig->has_views ? sig->output_count : 0);
}

/* Whether all inputs live, and the first cause among them. */
static int check_inputs(struct apply *a, const dt_session_signature_t *sig, uint32_t *cause)
{
    const dt_record_op_t *op = &a->record->op;
    const dt_session_t *session = a->session;
    const uint32_t *spots = sig->is_uniform ? NULL : spots_of(sig);
    bool is_elsewhere = false;
    for (uint32_t i = 0; i < op->input_count; i++) {
        const dt_session_entry_t *entry = dt_session_map_find(&session->tensors, op->inputs[i]);
        if (!entry)
            return DT_FRAME_E_ID;
        const dt_session_storage_t *storage = &session->storages[entry->value];
        if (storage->cause && (!*cause || storage->cause < *cause))
            *cause = storage->cause;
        is_elsewhere |= entry->extra != (spots ? spots[i] : sig->spot);
    }
    if (is_elsewhere && !*cause)
        *cause = UINT32_MAX; /* refused, once the outputs are known to be sound */
    return 0;
}

static int put_op_outputs(struct apply *a, const dt_session_signature_t *sig, uint32_t cause)
{
    const dt_record_op_t *op = &a->record->op;
    dt_session_t *session = a->session;
    const uint32_t *views = sig->links + sig->write_count;
    const uint32_t *spots = sig->is_uniform ? NULL : spots_of(sig) + sig->input_count;
    for (uint32_t i = 0; i < op->output_count; i++) {
        uint32_t spot = spots ? spots[i] : sig->spot;
        int error;
        if (sig->has_views && views[i] && !cause) {
            dt_session_entry_t *entry =
                dt_session_map_find(&session->tensors, op->inputs[views[i] - 1]);
            session->storages[entry->value].refs++;
            error = put_tensor(session, op->outputs[i], entry->value, spot);
        } else {
            error = put_fresh(a, op->outputs[i], spot, cause);
        }
        if (error)
            return error;
    }
    return 0;
}

/* The rare cases of an operator: refused by its signature, or for where its inputs lie. */
static uint32_t settle_cause(struct apply *a, dt_session_signature_t *sig, uint32_t cause)
{
    a->fate = DT_FATE_NOP;
    if (cause == UINT32_MAX)
        return refuse(a, sig->name,
                      "an input lies on other virtual devices, or otherwise, than the signature "
                      "says");
    if (sig->cause && !sig->is_told) {
        sig->is_told = true;
        dt_session_note_error(a->sessions, a->session, dt_session_cause_of(a->session, sig->cause));
    }
    return cause;
}

static void count_moves(struct apply *a, const dt_session_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const dt_session_move_t *move = &plan->moves[i];
        dt_session_moved_t *here = &a->session->moves[move->kind];
        dt_session_moved_t *all = &a->sessions->counts.moves[move->kind];
        here->count++;
        here->bytes += move->bytes;
        all->count++;
        all->bytes += move->bytes;
    }
}

static int apply_op(struct apply *a)
{
    const dt_record_op_t *op = &a->record->op;
    dt_session_t *session = a->session;
    dt_session_signature_t *sig;
    uint32_t cause;
    int error;
    if (op->signature >= session->signature_cap || !session->signatures[op->signature])
        return DT_FRAME_E_SIG;
    sig = session->signatures[op->signature];
    if (op->input_count != sig->input_count || op->output_count != sig->output_count ||
        op->scalar_count != sig->scalar_count)
        return DT_FRAME_E_ARITY;
    cause = sig->cause;
    error = check_inputs(a, sig, &cause);
    if (error)
        return error;
    error = check_outputs(session, op->outputs, op->output_count);
    if (error)
        return error;
    if (cause)
        cause = settle_cause(a, sig, cause);
    else if (sig->plan.move_count)
        count_moves(a, &sig->plan);
    for (uint32_t i = 0; i < sig->write_count; i++) {
        dt_session_storage_t *storage = storage_of(session, op->inputs[sig->links[i]]);
        storage->version = a->record->sequence;
        if (cause && !storage->cause)
            storage->cause = cause;
    }
    session->operators++;
    return put_op_outputs(a, sig, cause);
}

static int apply_free(struct apply *a)
{
    dt_session_map_t *tensors = &a->session->tensors;
    const uint64_t *ids = a->record->ids.ids;
    uint32_t count = a->record->ids.count, good = 0;
    for (; good < count; good++) {
        dt_session_entry_t *entry = dt_session_map_find(tensors, ids[good]);
        if (!entry || entry->extra & DT_SESSION_NAMED)
            break;
        entry->extra |= DT_SESSION_NAMED; /* once in this record */
    }
    if (good < count) {
        while (good > 0)
            dt_session_map_find(tensors, ids[--good])->extra &= ~DT_SESSION_NAMED;
        return DT_FRAME_E_ID;
    }
    /* Ids mostly rise and lie side by side in the map: from the end, the gap is closed at once. */
    for (uint32_t i = count; i-- > 0;) {
        dt_session_entry_t *entry = dt_session_map_find(tensors, ids[i]);
        dt_session_storage_unref(a->session, entry->value);
        dt_session_map_remove(tensors, entry);
    }
    return 0;
}

/* The tensor's own device answers: a part of what lies on a mesh is a view that lies on one. */
static int apply_fetch(struct apply *a)
{
    const dt_session_entry_t *entry =
        dt_session_map_find(&a->session->tensors, a->record->move.tensor);
    int error;
    if (!entry)
        return DT_FRAME_E_ID;
    const dt_session_storage_t *storage = &a->session->storages[entry->value];
    error =
        dt_session_future_add(a->session, a->record->move.number,
                              dt_session_spot_vdev(a->session, entry->extra), a->record->sequence);
    if (error || !storage->cause)
        return error;
    a->fate = DT_FATE_NOP;
    dt_session_answer(a->sessions, a->session, a->record->move.number, storage->cause);
    return 0;
}

static int apply_upload(struct apply *a)
{
    dt_session_t *session = a->session;
    uint64_t transfer = a->record->move.number;
    uint32_t spot, cause = 0;
    dt_error_t err;
    int error = check_outputs(session, &a->record->move.output, 1);
    if (!error)
        error = dt_session_spot(session, &a->record->move.layout, &spot);
    if (!error && transfer)
        error = dt_session_transfer_add(session, transfer, a->record->move.size,
                                        dt_session_spot_vdev(session, spot));
    if (error)
        return error;
    if (dt_session_spot_mesh(session, spot) &&
        dt_session_check_upload(session, a->record, &err) != DT_OK)
        cause = refuse(a, "", err.text);
    return put_fresh(a, a->record->move.output, spot, cause);
}

/* Kinds that are coded and not served. */
static int apply_refused(struct apply *a)
{
    const dt_record_t *record = a->record;
    uint64_t output =
        record->kind == DT_RECORD_REPLAY ? record->replay.output : record->move.output;
    bool has_output = record->kind == DT_RECORD_REPLAY || record->kind == DT_RECORD_LOAD ||
                      record->kind == DT_RECORD_REDISTRIBUTE;
    int error = 0;
    if ((record->kind == DT_RECORD_REDISTRIBUTE || record->kind == DT_RECORD_SAVE) &&
        !dt_session_map_find(&a->session->tensors, record->move.tensor))
        return DT_FRAME_E_ID;
    if (has_output)
        error = check_outputs(a->session, &output, 1);
    if (error)
        return error;
    uint32_t cause = refuse_kind(a);
    return has_output ? put_fresh(a, output, 0, cause) : 0;
}

/* A step tells its time in decimal, as its value is its number. */
static uint64_t time_of(const dt_record_t *record)
{
    uint64_t ns = 0;
    if (record->note.what != DT_MARK_STEP)
        return record->note.value;
    if (record->note.text_bytes > 18)
        return 0;
    for (uint32_t i = 0; i < record->note.text_bytes; i++) {
        if (record->note.text[i] < '0' || record->note.text[i] > '9')
            return 0;
        ns = ns * 10 + (uint64_t)(record->note.text[i] - '0');
    }
    return ns;
}

static void trace_mark(struct apply *a, const char *text)
{
    if (a->session->trace)
        dt_session_trace_mark(a->sessions, a->session, a->record->note.what, a->record->sequence,
                              time_of(a->record), text);
}

static void apply_mark(struct apply *a)
{
    dt_session_t *session = a->session;
    const dt_record_t *record = a->record;
    size_t bytes;
    switch (record->note.what) {
    case DT_MARK_STEP:
        session->steps++;
        session->step = record->note.value;
        session->step_ns = a->sessions->now_ns;
        trace_mark(a, NULL);
        break;
    case DT_MARK_RANGE_BEGIN:
        if (session->range_depth < DT_SESSION_RANGES_MAX) {
            char *range = session->ranges[session->range_depth];
            char text[DT_RECORD_TEXT_MAX + 1];
            bytes = record->note.text_bytes;
            memcpy(text, record->note.text, bytes);
            text[bytes] = '\0';
            dt_wire_text_copy(range, sizeof session->ranges[0], text);
        }
        session->range_depth += session->range_depth < UINT32_MAX;
        trace_mark(a, session->range_depth <= DT_SESSION_RANGES_MAX
                          ? session->ranges[session->range_depth - 1]
                          : "");
        break;
    case DT_MARK_RANGE_END:
        session->range_depth -= session->range_depth > 0;
        trace_mark(a, NULL);
        break;
    default:
        break;
    }
}

static void apply_option(struct apply *a)
{
    const dt_record_t *record = a->record;
    uint32_t id = 0;
    if (record->note.what != DT_OPTION_DROP_SIGNATURE || record->note.text_bytes == 0 ||
        record->note.text_bytes > 7)
        return;
    for (uint32_t i = 0; i < record->note.text_bytes; i++) {
        if (record->note.text[i] < '0' || record->note.text[i] > '9')
            return;
        id = id * 10 + (uint32_t)(record->note.text[i] - '0');
    }
    dt_session_drop_signature(a->session, id);
}

static int apply_signature(struct apply *a)
{
    int error = dt_session_define_signature(a->sessions, a->session, a->record);
    if (error)
        return error;
    a->fate = a->session->signatures[a->record->definition.id]->cause ? DT_FATE_NOP : DT_FATE_PLAN;
    return 0;
}

/* Accept one record. Returns a dt_frame_error_t, and then it changed nothing. */
static int apply(struct apply *a)
{
    switch (a->record->kind) {
    case DT_RECORD_OP:
    case DT_RECORD_OP_LONG:
        return apply_op(a);
    case DT_RECORD_FREE:
        return apply_free(a);
    case DT_RECORD_FETCH:
        return apply_fetch(a);
    case DT_RECORD_UPLOAD:
        return apply_upload(a);
    case DT_RECORD_DEF_SIG:
        return apply_signature(a);
    case DT_RECORD_DEF_MESH:
        return dt_session_define_mesh(a->session, a->record);
    case DT_RECORD_SEED:
        return dt_session_seed(a->session, a->record);
    case DT_RECORD_MARK:
        apply_mark(a);
        return 0;
    case DT_RECORD_SET_OPTION:
        apply_option(a);
        return 0;
    case DT_RECORD_REDISTRIBUTE:
    case DT_RECORD_LOAD:
    case DT_RECORD_SAVE:
    case DT_RECORD_BEGIN:
    case DT_RECORD_END:
    case DT_RECORD_REPLAY:
        return apply_refused(a);
    case DT_RECORD_COPY_OUT:
    case DT_RECORD_COPY_IN:
    case DT_RECORD_BIND:
    case DT_RECORD_DEF_PLAN:
        return DT_FRAME_E_KIND;
    default:
        return 0; /* optional kinds that this build does not know */
    }
}

/* ---- what nodes get ---- */

/* Put a record whose bytes stand in a frame. */
static bool put_raw(dt_frame_writer_t *writer, const uint8_t *bytes, size_t size)
{
    if (size > writer->cap - writer->len)
        return false;
    memcpy(writer->bytes + writer->len, bytes, size);
    writer->len += size;
    writer->count++;
    return true;
}

/* DEF_SIG `id body` as DEF_PLAN `id body steps`; most plans have none. */
static bool put_plan(dt_frame_writer_t *writer, uint32_t id, const dt_session_plan_t *plan)
{
    static const uint8_t none = 0;
    const uint8_t *steps = plan->step_bytes ? plan->steps : &none;
    size_t step_bytes = plan->step_bytes ? plan->step_bytes : 1, bytes = plan->body_bytes;
    uint8_t head[2 + 2 * DT_VARINT_BYTES_MAX], number[DT_VARINT_BYTES_MAX];
    size_t number_bytes = (size_t)(dt_varint_put(number, id) - number), head_bytes;
    uint8_t *at = head;
    *at++ = DT_RECORD_DEF_PLAN;
    at = dt_varint_put(at, number_bytes + bytes + step_bytes);
    memcpy(at, number, number_bytes);
    head_bytes = (size_t)(at - head) + number_bytes;
    if (head_bytes + bytes + step_bytes > writer->cap - writer->len)
        return false;
    at = writer->bytes + writer->len;
    memcpy(at, head, head_bytes);
    memcpy(at + head_bytes, plan->body, bytes);
    memcpy(at + head_bytes + bytes, steps, step_bytes);
    writer->len += head_bytes + bytes + step_bytes;
    writer->count++;
    return true;
}

static bool put_nop(dt_frame_writer_t *writer)
{
    static const uint8_t nop[] = {DT_RECORD_NOP, 0};
    return put_raw(writer, nop, sizeof nop);
}

struct rewrite {
    dt_sessions_t *sessions;
    dt_session_t *session;
    dt_session_packet_t *tail; /* what is written takes its place; NULL: a place of its own */
    dt_frame_writer_t writer;
    unsigned flags;
    uint32_t epoch;
};

/* The signature may have been dropped since, in the same frame. */
static bool put_definition(struct rewrite *w, const dt_record_t *record)
{
    uint32_t id = record->definition.id;
    dt_session_plan_t plan = {.body = record->definition.body,
                              .body_bytes = record->definition.body_bytes};
    const dt_session_signature_t *sig =
        id < w->session->signature_cap ? w->session->signatures[id] : NULL;
    if (sig && sig->plan.body_bytes == plan.body_bytes &&
        memcmp(sig->plan.body, plan.body, plan.body_bytes) == 0)
        return put_plan(&w->writer, id, &sig->plan);
    if (!dt_session_steps_again(w->sessions, w->session, &plan))
        return put_nop(&w->writer);
    bool is_put = put_plan(&w->writer, id, &plan);
    dt_session_steps_free(&plan);
    return is_put;
}

static bool put_record(struct rewrite *w, const dt_record_t *record, unsigned fate,
                       const uint8_t *raw, size_t raw_bytes)
{
    dt_frame_writer_t *writer = &w->writer;
    if (fate == DT_FATE_NOP)
        return put_nop(writer);
    if (fate == DT_FATE_PLAN)
        return put_definition(w, record);
    if (record->kind >= DT_RECORD_OPTIONAL)
        return put_raw(writer, raw, raw_bytes);
    return dt_record_put(writer, record);
}

static bool flush(struct rewrite *w)
{
    uint64_t first = w->writer.first_sequence;
    uint32_t count = w->writer.count;
    uint64_t base = w->writer.base;
    size_t size = dt_frame_end(&w->writer, w->flags);
    dt_session_packet_t *tail = w->tail;
    w->session->queue_count -= tail != NULL;
    if (size && !enqueue(w->session, w->writer.bytes, size, first, count, base)) {
        w->session->queue_count += tail != NULL;
        return false;
    }
    if (tail) { /* the writer holds all of it, so there was a frame */
        w->session->queue[w->session->queue_head + w->session->queue_count - 1]->payload =
            tail->payload;
        dt_session_packet_unref(tail);
        w->tail = NULL;
    }
    dt_frame_begin(&w->writer, w->writer.bytes, w->writer.cap, first + count, w->epoch);
    return true;
}

/* One that does not fit a frame even alone, since its ids are far from 0, cannot go on. */
static bool add(struct rewrite *w, const dt_record_t *record, unsigned fate, const uint8_t *raw,
                size_t raw_bytes)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        dt_frame_writer_t before = w->writer;
        if (put_record(w, record, fate, raw, raw_bytes) && w->writer.len <= DT_FRAME_BYTES_MAX)
            return true;
        w->writer = before;
        if (before.count == 0)
            return false;
        if (!flush(w))
            return false;
    }
    return false;
}

/* Begin with what the tail holds. */
static void begin_with_tail(struct rewrite *w, uint8_t *scratch)
{
    const dt_session_packet_t *tail = w->tail;
    const uint8_t *frame = tail->bytes + DT_SESSION_ENVELOPE_BYTES;
    size_t header_bytes = frame[6] | (size_t)frame[7] << 8; /* checked when it came */
    size_t size = tail->size - (DT_SESSION_ENVELOPE_BYTES - tail->start) - header_bytes;
    dt_frame_begin(&w->writer, scratch, DT_SESSION_SCRATCH_BYTES, tail->first, w->epoch);
    memcpy(scratch + w->writer.len, frame + header_bytes, size);
    w->writer.len += size;
    w->writer.count = tail->count;
    w->writer.base = tail->base;
}

/* Write the first `count` records of a frame anew by their fates, behind those of `tail` if it is
 * not NULL. */
static bool rewrite(dt_sessions_t *sessions, dt_session_t *session, const uint8_t *bytes,
                    size_t size, uint32_t count, dt_session_packet_t *tail)
{
    dt_frame_reader_t *reader = &sessions->reader;
    struct rewrite w = {.sessions = sessions, .session = session, .tail = tail};
    bool is_end;
    if (dt_frame_open(reader, bytes, size) != 0)
        return false;
    w.flags = reader->header.flags;
    w.epoch = reader->header.epoch;
    if (tail)
        begin_with_tail(&w, sessions->scratch);
    else
        dt_frame_begin(&w.writer, sessions->scratch, DT_SESSION_SCRATCH_BYTES,
                       reader->header.first_sequence, w.epoch);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *raw = reader->cursor.at;
        if (dt_record_next(reader, &sessions->record, &is_end) != 0)
            return false;
        if (sessions->fates[i] == DT_FATE_CUT) {
            w.writer.first_sequence += !tail;
            continue;
        }
        if (!add(&w, &sessions->record, sessions->fates[i], raw, (size_t)(reader->cursor.at - raw)))
            return false;
    }
    sessions->counts.rewritten++;
    return flush(&w);
}

/* ---- frames ---- */

static void malformed(dt_sessions_t *sessions, dt_session_stream_t *stream, int number,
                      uint64_t sequence, const char *what)
{
    dt_error_t err;
    (void)dt_frame_fail(&err, number, sequence, what);
    sessions->counts.malformed++;
    dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED, err.code,
                      dt_frame_error_name(number), err.text);
}

/* Accept records until one is malformed. Returns its error, and how many were read before it. */
static int apply_all(dt_sessions_t *sessions, dt_session_t *session, uint32_t *ret_count,
                     bool *ret_is_plain)
{
    struct apply a = {.sessions = sessions, .session = session, .record = &sessions->record};
    bool is_plain = true, is_end = false;
    uint32_t count = 0;
    int error;
    for (;; count++) {
        error = dt_record_next(&sessions->reader, &sessions->record, &is_end);
        if (error || is_end)
            break;
        a.fate = DT_FATE_KEEP;
        if (sessions->record.sequence < session->next_sequence) {
            a.fate = DT_FATE_CUT;
        } else {
            error = apply(&a);
            if (error)
                break;
            session->next_sequence++;
        }
        sessions->fates[count] = a.fate;
        is_plain &= a.fate == DT_FATE_KEEP;
    }
    *ret_count = count;
    *ret_is_plain = is_plain && !error;
    return error;
}

/* Order, epoch, credit. False: the stream was ended, or there is nothing to do. */
static bool admit(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    const dt_frame_header_t *header = &sessions->reader.header;
    dt_session_t *session = stream->session;
    bool is_sync = header->flags & DT_FRAME_SYNC;
    if (header->epoch != (uint32_t)sessions->epoch) {
        malformed(sessions, stream, DT_FRAME_E_EPOCH, header->first_sequence, NULL);
        return false;
    }
    if (header->first_sequence > session->next_sequence) {
        malformed(sessions, stream, DT_FRAME_E_SEQ, session->next_sequence, "expected next");
        return false;
    }
    if (is_sync &&
        !dt_session_bucket_take(&session->syncs, sessions->now_ns, DT_SESSION_SYNC_RATE)) {
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, DT_ERR_LIMIT,
                          "sync-flood", "too many frames with SYNC in a second");
        return false;
    }
    if (header->first_sequence + header->count <= session->next_sequence) {
        sessions->counts.frames_dropped++;
        dt_session_ack(sessions, session, true);
        return false;
    }
    if (session->bytes + header->payload_bytes > session->ack_credit) {
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, DT_ERR_LIMIT,
                          "no-credit", "a frame was sent without credit for it");
        return false;
    }
    return true;
}

/* Give the client's bytes to the packet that is executed last; a frame may have given none. */
static void charge(dt_session_t *session, uint32_t before, uint32_t payload)
{
    session->bytes += payload;
    if (session->queue_count > before)
        session->queue[session->queue_head + session->queue_count - 1]->payload += payload;
    else
        session->bytes_done += payload;
}

void dt_session_frame(dt_sessions_t *sessions, dt_session_stream_t *stream, const uint8_t *bytes,
                      size_t size)
{
    dt_session_t *session = stream->session;
    uint64_t first = session->next_sequence;
    uint32_t count, queued = session->queue_count;
    bool is_plain, is_queued;
    int error = dt_frame_open(&sessions->reader, bytes, size);
    if (error) {
        malformed(sessions, stream, error, session->next_sequence, "frame");
        return;
    }
    const dt_frame_header_t header = sessions->reader.header;
    if (!admit(sessions, stream))
        return;
    error = apply_all(sessions, session, &count, &is_plain);
    dt_session_packet_t *tail = count > 0 ? tail_for(session, size, first) : NULL;
    is_queued = is_plain && !tail ? enqueue(session, bytes, size, header.first_sequence,
                                            header.count, sessions->reader.base)
                                  : rewrite(sessions, session, bytes, size, count, tail);
    charge(session, tail ? queued - 1 : queued, header.payload_bytes);
    session->frames++;
    sessions->counts.frames++;
    sessions->counts.records += session->next_sequence - first;
    sessions->counts.bytes += header.payload_bytes;
    if (session->trace)
        dt_session_trace_frame(sessions, session, first, size);
    if (!is_queued) {
        /* Accepted and not to be had for the nodes: the session cannot go on. */
        dt_session_finish(sessions, session, "the controller has no memory for its frames");
        return;
    }
    if (error)
        malformed(sessions, stream, error, session->next_sequence, NULL);
    else
        dt_session_ack(sessions, session, header.flags & DT_FRAME_SYNC);
    dt_session_pump(sessions, session);
    if (dt_list_is_empty(&session->links))
        dt_session_settle(sessions, session);
}

/* ---- definitions for a node that joins ---- */

static bool prelude_put(dt_session_link_t *link, struct rewrite *w)
{
    uint32_t count = w->writer.count;
    uint64_t first = w->writer.first_sequence;
    size_t size = dt_frame_end(&w->writer, 0);
    dt_session_packet_t **grown;
    if (!size)
        return true;
    grown = realloc(link->prelude, (link->prelude_count + 1) * sizeof(void *));
    if (!grown)
        return false;
    link->prelude = grown;
    grown[link->prelude_count] = dt_session_packet_new(w->writer.bytes, size, first, count);
    if (!grown[link->prelude_count])
        return false;
    link->prelude_count++;
    dt_frame_begin(&w->writer, w->writer.bytes, w->writer.cap, first + count, w->epoch);
    return true;
}

static uint32_t count_definitions(const dt_session_t *session)
{
    uint32_t count = session->seed_count;
    for (uint32_t i = 0; i < session->signature_cap; i++)
        count += session->signatures[i] && !session->signatures[i]->cause;
    for (uint32_t i = 0; i < session->mesh_cap; i++)
        count += session->meshes[i].body != NULL;
    return count;
}

static bool prelude_begin(dt_session_link_t *link, struct rewrite *w, size_t size)
{
    return w->writer.len + size + (size_t)2 * DT_VARINT_BYTES_MAX <= DT_FRAME_BYTES_MAX ||
           prelude_put(link, w);
}

dt_status_t dt_session_prelude(dt_sessions_t *sessions, dt_session_link_t *link)
{
    dt_session_t *session = link->session;
    struct rewrite w = {.session = session, .epoch = (uint32_t)sessions->epoch};
    bool is_done = true;
    dt_frame_begin(&w.writer, sessions->scratch, DT_SESSION_SCRATCH_BYTES,
                   session->next_sequence - count_definitions(session), w.epoch);
    link->start = link->sent = link->executed = w.writer.first_sequence - 1;
    for (uint32_t i = 0; is_done && i < session->mesh_cap; i++)
        if (session->meshes[i].body)
            is_done = prelude_begin(link, &w, session->meshes[i].body_bytes) &&
                      put_raw(&w.writer, session->meshes[i].body, session->meshes[i].body_bytes);
    for (uint32_t i = 0; is_done && i < session->signature_cap; i++) {
        const dt_session_signature_t *sig = session->signatures[i];
        if (sig && !sig->cause)
            is_done = prelude_begin(link, &w, sig->plan.body_bytes + sig->plan.step_bytes) &&
                      put_plan(&w.writer, i, &sig->plan);
    }
    for (uint32_t i = 0; is_done && i < session->seed_count; i++) {
        dt_record_t *record = &sessions->record;
        memset(&record->note, 0, sizeof record->note);
        record->kind = DT_RECORD_SEED;
        record->note.what = session->seeds[i].stream;
        record->note.value = session->seeds[i].seed;
        record->note.offset = session->seeds[i].offset;
        is_done = prelude_begin(link, &w, 64) && dt_record_put(&w.writer, record);
    }
    return is_done && prelude_put(link, &w) ? DT_OK : DT_ERR_NOMEM;
}
