#include "recorded.h"

#include <inttypes.h>
#include <string.h>

#include "dtorch/v1/session.pb-c.h"
#include "shard/layout.h"
#include "text.h"

#define META_TEXT_SIZE 512

void dt_ctl_recorded_init(dt_ctl_recorded_t *recorded, const uint8_t *bytes, size_t size,
                          bool with_frames)
{
    *recorded = (dt_ctl_recorded_t){.with_frames = with_frames};
    dt_arena_init(&recorded->kept, DT_CTL_POOL_MAX);
    recorded->damage.error = dt_recording_open(&recorded->reader, bytes, size);
}

void dt_ctl_recorded_fini(dt_ctl_recorded_t *recorded)
{
    dt_frame_reader_fini(&recorded->frame);
    dt_arena_fini(&recorded->kept);
}

/* ---- parts of a line ---- */

static Dtorch__V1__RecordedItem *new_item(const dt_ctl_recorded_t *recorded, dt_arena_t *pool,
                                          const char *kind)
{
    Dtorch__V1__RecordedItem *line = dt_ctl_alloc(pool, 1, sizeof *line);
    dtorch__v1__recorded_item__init(line);
    line->item = recorded->item.number;
    line->offset = recorded->item.offset;
    line->at_ns = recorded->item.at_ns;
    line->kind = dt_ctl_copy(pool, kind, strlen(kind));
    return line;
}

static const char *meta_text(dt_arena_t *pool, const dt_meta_t *meta)
{
    char text[META_TEXT_SIZE];
    dt_meta_print(meta, text, sizeof text);
    return dt_ctl_copy(pool, text, strlen(text));
}

/* Metadata, and the placements of what lies on a mesh: "float32 (4, 3) [Shard(0)]". */
static const char *placed_text(dt_arena_t *pool, const dt_signature_tensor_t *tensor)
{
    char text[META_TEXT_SIZE];
    const char *meta = meta_text(pool, &tensor->meta);
    if (tensor->layout.mesh == 0)
        return meta;
    dt_layout_print(&tensor->layout, text, sizeof text);
    return dt_ctl_print(pool, "%s %s", meta, text);
}

static const char *scalar_text(dt_arena_t *pool, const dt_value_t *value)
{
    switch (value->tag) {
    case DT_VALUE_INT:
        return dt_ctl_print(pool, "%" PRId64, value->number);
    case DT_VALUE_DOUBLE:
        return dt_ctl_print(pool, "%.17g", value->real);
    case DT_VALUE_TRUE:
        return "True";
    case DT_VALUE_FALSE:
        return "False";
    default:
        return "None";
    }
}

static const char *alias_text(dt_arena_t *pool, const dt_signature_tensor_t *output)
{
    static const char *const words[] = {[DT_ALIAS_VIEW] = "view", [DT_ALIAS_IN_PLACE] = "in place"};
    if (output->alias == DT_ALIAS_NONE)
        return "none";
    if (output->alias == DT_ALIAS_FRESH)
        return "";
    return dt_ctl_print(pool, "%s of %u", words[output->alias], output->input);
}

static Dtorch__V1__RecordedTensor *new_tensor(dt_arena_t *pool, uint64_t id, const char *meta,
                                              const char *alias)
{
    Dtorch__V1__RecordedTensor *tensor = dt_ctl_alloc(pool, 1, sizeof *tensor);
    dtorch__v1__recorded_tensor__init(tensor);
    tensor->id = id;
    tensor->meta = dt_ctl_copy(pool, meta, strlen(meta));
    tensor->alias = dt_ctl_copy(pool, alias, strlen(alias));
    return tensor;
}

/* The operator of a signature, with the ids of `op`; NULL: a definition. */
static Dtorch__V1__RecordedOperator *
new_operator(dt_arena_t *pool, uint32_t id, const dt_signature_t *sig, const dt_record_op_t *op)
{
    Dtorch__V1__RecordedOperator *line = dt_ctl_alloc(pool, 1, sizeof *line);
    uint32_t next = 0;
    dtorch__v1__recorded_operator__init(line);
    line->signature = id;
    line->name = dt_ctl_copy(pool, sig->name, strlen(sig->name));
    line->inputs = dt_ctl_alloc(pool, sig->input_count + 1u, sizeof(void *));
    line->outputs = dt_ctl_alloc(pool, sig->output_count + 1u, sizeof(void *));
    line->scalars = dt_ctl_alloc(pool, op ? op->scalar_count + 1u : 1, sizeof(void *));
    for (uint32_t i = 0; i < sig->input_count; i++)
        line->inputs[line->n_inputs++] =
            new_tensor(pool, op ? op->inputs[i] : 0, placed_text(pool, &sig->inputs[i]), "");
    for (uint32_t i = 0; i < sig->output_count; i++) {
        const dt_signature_tensor_t *out = &sig->outputs[i];
        uint64_t tensor = 0;
        if (op && out->alias == DT_ALIAS_IN_PLACE)
            tensor = op->inputs[out->input];
        else if (op && out->alias != DT_ALIAS_NONE)
            tensor = op->outputs[next++];
        line->outputs[line->n_outputs++] =
            new_tensor(pool, tensor, out->alias == DT_ALIAS_NONE ? "" : placed_text(pool, out),
                       alias_text(pool, out));
    }
    for (uint32_t i = 0; op && i < op->scalar_count; i++) {
        const char *text = scalar_text(pool, &op->scalars[i]);
        line->scalars[line->n_scalars++] = dt_ctl_copy(pool, text, strlen(text));
    }
    return line;
}

/* ---- texts for people ---- */

/* Text that grows by pieces, so that long lists cost no square of their length. */
static void say(dt_buf_t *buf, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);
static void say(dt_buf_t *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dt_status_t status = dt_buf_vprintf(buf, fmt, args);
    va_end(args);
    (void)status; /* a line of more than its buffer's maximum is cut */
}

#define LINE_MAX_BYTES (1u << 20)

static char *take_text(dt_arena_t *pool, dt_buf_t *buf)
{
    char *text = dt_ctl_copy(pool, buf->len ? (const char *)buf->data : "", buf->len);
    dt_buf_fini(buf);
    return text;
}

/* "aten::mm(t1 float32 (4, 3), t2 float32 (3, 2)) -> t3 float32 (4, 2)" */
static char *operator_text(dt_arena_t *pool, const Dtorch__V1__RecordedOperator *op)
{
    dt_buf_t buf;
    dt_buf_init(&buf, LINE_MAX_BYTES);
    say(&buf, "%s(", op->name);
    for (size_t i = 0; i < op->n_inputs; i++)
        say(&buf, "%st%" PRIu64 " %s", i ? ", " : "", op->inputs[i]->id, op->inputs[i]->meta);
    for (size_t i = 0; i < op->n_scalars; i++)
        say(&buf, "%s%s", i || op->n_inputs ? (i ? ", " : "; ") : "", op->scalars[i]);
    say(&buf, ")");
    for (size_t i = 0; i < op->n_outputs; i++) {
        const Dtorch__V1__RecordedTensor *out = op->outputs[i];
        say(&buf, "%s", i ? ", " : " -> ");
        if (strcmp(out->alias, "none") == 0)
            say(&buf, "none");
        else
            say(&buf, "t%" PRIu64 " %s%s", out->id, out->meta,
                *out->alias == 'v'   ? " view"
                : *out->alias == 'i' ? " in place"
                                     : "");
    }
    return take_text(pool, &buf);
}

static char *ids_text(dt_arena_t *pool, const uint64_t *ids, uint32_t count)
{
    dt_buf_t buf;
    dt_buf_init(&buf, LINE_MAX_BYTES);
    for (uint32_t i = 0; i < count; i++)
        say(&buf, "%st%" PRIu64, i ? " " : "", ids[i]);
    return take_text(pool, &buf);
}

static char *mesh_text(dt_arena_t *pool, const dt_record_mesh_t *mesh)
{
    dt_buf_t buf;
    dt_buf_init(&buf, LINE_MAX_BYTES);
    say(&buf, "mesh %u (", mesh->id);
    for (int i = 0; i < mesh->ndim; i++)
        say(&buf, "%s%.*s%s%u", i ? ", " : "", (int)mesh->name_bytes[i], mesh->names[i],
            mesh->name_bytes[i] ? "=" : "", mesh->sizes[i]);
    say(&buf, ") of vdevs");
    for (uint32_t i = 0; i < mesh->vdev_count; i++)
        say(&buf, " %" PRIu64, mesh->vdevs[i]);
    return take_text(pool, &buf);
}

static char *move_text(dt_arena_t *pool, const dt_record_t *r)
{
    const char *meta = r->kind == DT_RECORD_UPLOAD || r->kind == DT_RECORD_COPY_IN
                           ? meta_text(pool, &r->move.meta)
                           : "";
    switch (r->kind) {
    case DT_RECORD_FETCH:
        return dt_ctl_print(pool, "t%" PRIu64 " as future %" PRIu64, r->move.tensor,
                            r->move.number);
    case DT_RECORD_UPLOAD:
        if (r->move.number == 0)
            return dt_ctl_print(pool, "t%" PRIu64 " %s, %" PRIu64 " bytes here", r->move.output,
                                meta, r->move.size);
        return dt_ctl_print(pool, "t%" PRIu64 " %s, %" PRIu64 " bytes by transfer %" PRIu64,
                            r->move.output, meta, r->move.size, r->move.number);
    case DT_RECORD_REDISTRIBUTE:
        return dt_ctl_print(pool, "t%" PRIu64 " -> t%" PRIu64 " on mesh %u", r->move.tensor,
                            r->move.output, r->move.layout.mesh);
    case DT_RECORD_LOAD:
        return dt_ctl_print(pool, "%.*s of %.*s -> t%" PRIu64, (int)r->move.name_bytes,
                            r->move.name, (int)r->move.uri_bytes, r->move.uri, r->move.output);
    case DT_RECORD_SAVE:
        return dt_ctl_print(pool, "t%" PRIu64 " as %.*s of %.*s", r->move.tensor,
                            (int)r->move.name_bytes, r->move.name, (int)r->move.uri_bytes,
                            r->move.uri);
    case DT_RECORD_COPY_OUT:
        return dt_ctl_print(pool, "t%" PRIu64 " to transfer %" PRIu64, r->move.tensor,
                            r->move.number);
    default:
        return dt_ctl_print(pool, "t%" PRIu64 " %s of transfer %" PRIu64, r->move.output, meta,
                            r->move.number);
    }
}

static char *note_text(dt_arena_t *pool, const dt_record_t *r)
{
    static const char *const marks[] = {
        [DT_MARK_STEP] = "step",
        [DT_MARK_RANGE_BEGIN] = "range begins",
        [DT_MARK_RANGE_END] = "range ends",
        [DT_MARK_SNAPSHOT] = "snapshot",
        [DT_MARK_SOURCE] = "source",
    };
    bool is_mark = r->kind == DT_RECORD_MARK && r->note.what > 0 &&
                   r->note.what < sizeof marks / sizeof marks[0];
    switch (r->kind) {
    case DT_RECORD_MARK:
        if (is_mark && (r->note.what == DT_MARK_RANGE_BEGIN || r->note.what == DT_MARK_RANGE_END))
            return dt_ctl_print(pool, "%s%s%.*s", marks[r->note.what],
                                r->note.text_bytes ? " " : "", (int)r->note.text_bytes,
                                r->note.text);
        if (is_mark)
            return dt_ctl_print(pool, "%s %" PRIu64 "%s%.*s", marks[r->note.what], r->note.value,
                                r->note.text_bytes ? " " : "", (int)r->note.text_bytes,
                                r->note.text);
        return dt_ctl_print(pool, "mark %" PRIu64 " %" PRIu64 " %.*s", r->note.what, r->note.value,
                            (int)r->note.text_bytes, r->note.text);
    case DT_RECORD_SEED:
        return dt_ctl_print(pool, "random stream %" PRIu64 ": seed %" PRIu64 ", offset %" PRIu64,
                            r->note.what, r->note.value, r->note.offset);
    case DT_RECORD_SET_OPTION:
        return dt_ctl_print(pool, "%" PRIu64 "=%.*s", r->note.what, (int)r->note.text_bytes,
                            r->note.text);
    case DT_RECORD_BIND:
        return dt_ctl_print(pool, "vdev %" PRIu64 " to pdev %" PRIu64, r->note.what, r->note.value);
    default:
        return dt_ctl_print(pool, "recording %" PRIu64, r->note.what);
    }
}

/* ---- records ---- */

static void set_ids(dt_arena_t *pool, Dtorch__V1__RecordedItem *line, const uint64_t *ids,
                    size_t count)
{
    line->ids = dt_ctl_alloc(pool, count + 1, sizeof *line->ids);
    for (size_t i = 0; i < count; i++)
        line->ids[line->n_ids++] = ids[i];
}

static void keep_signature(dt_ctl_recorded_t *recorded, uint32_t id, dt_signature_t *sig)
{
    if (id >= recorded->signature_cap) {
        size_t cap = recorded->signature_cap ? recorded->signature_cap : 64;
        while (cap <= id)
            cap *= 2;
        dt_signature_t **grown = dt_ctl_alloc(&recorded->kept, cap, sizeof(dt_signature_t *));
        if (recorded->signature_cap)
            memcpy(grown, recorded->signatures, recorded->signature_cap * sizeof(dt_signature_t *));
        recorded->signatures = grown;
        recorded->signature_cap = cap;
    }
    recorded->signatures[id] = sig;
}

static int define(dt_ctl_recorded_t *recorded, dt_arena_t *pool, Dtorch__V1__RecordedItem *line)
{
    const dt_record_t *r = &recorded->record;
    dt_signature_t *sig;
    dt_buf_t buf;
    dt_cursor_t cursor = {.at = r->definition.body,
                          .end = r->definition.body + r->definition.body_bytes};
    int error = dt_signature_decode(&cursor, &recorded->kept, &sig);
    if (error)
        return error;
    keep_signature(recorded, r->definition.id, sig);
    line->op = new_operator(pool, r->definition.id, sig, NULL);
    dt_buf_init(&buf, LINE_MAX_BYTES);
    say(&buf, "s%u ", r->definition.id);
    dt_status_t status = dt_signature_print(sig, &buf);
    (void)status; /* as in say() */
    line->what = take_text(pool, &buf);
    return 0;
}

static int describe_op(dt_ctl_recorded_t *recorded, dt_arena_t *pool,
                       Dtorch__V1__RecordedItem *line)
{
    const dt_record_op_t *op = &recorded->record.op;
    const dt_signature_t *sig =
        op->signature < recorded->signature_cap ? recorded->signatures[op->signature] : NULL;
    if (!sig)
        return DT_FRAME_E_SIG;
    if (op->input_count != sig->input_count || op->output_count != sig->id_count ||
        op->scalar_count != sig->dynamic_count)
        return DT_FRAME_E_ARITY;
    line->op = new_operator(pool, op->signature, sig, op);
    line->what = operator_text(pool, line->op);
    return 0;
}

static void describe_move(dt_arena_t *pool, Dtorch__V1__RecordedItem *line, const dt_record_t *r)
{
    bool has_input =
        r->kind != DT_RECORD_UPLOAD && r->kind != DT_RECORD_LOAD && r->kind != DT_RECORD_COPY_IN;
    bool has_output = !has_input || r->kind == DT_RECORD_REDISTRIBUTE;
    uint64_t ids[2];
    size_t count = 0;
    if (has_input)
        ids[count++] = r->move.tensor;
    if (has_output)
        ids[count++] = r->move.output;
    set_ids(pool, line, ids, count);
    line->size_bytes = r->kind == DT_RECORD_UPLOAD ? r->move.size : 0;
    line->what = move_text(pool, r);
}

/* Fill a line from a record. Returns 0 or a dt_frame_error_t. */
static int describe(dt_ctl_recorded_t *recorded, dt_arena_t *pool, Dtorch__V1__RecordedItem *line)
{
    const dt_record_t *r = &recorded->record;
    switch (r->kind) {
    case DT_RECORD_DEF_SIG:
    case DT_RECORD_DEF_PLAN:
        return define(recorded, pool, line);
    case DT_RECORD_OP:
    case DT_RECORD_OP_LONG:
        return describe_op(recorded, pool, line);
    case DT_RECORD_DEF_MESH:
        line->what = mesh_text(pool, &r->mesh);
        return 0;
    case DT_RECORD_FREE:
    case DT_RECORD_END:
        set_ids(pool, line, r->ids.ids, r->ids.count);
        line->what = ids_text(pool, r->ids.ids, r->ids.count);
        return 0;
    case DT_RECORD_MARK:
    case DT_RECORD_BEGIN:
    case DT_RECORD_SEED:
    case DT_RECORD_SET_OPTION:
    case DT_RECORD_BIND:
        line->what = note_text(pool, r);
        return 0;
    case DT_RECORD_REPLAY:
        set_ids(pool, line, &r->replay.output, 1);
        line->what = dt_ctl_print(pool, "recording %u, outputs from t%" PRIu64 ", %u slots",
                                  r->replay.recording, r->replay.output, r->replay.slot_count);
        return 0;
    default:
        if (r->kind < DT_RECORD_KIND_COUNT)
            describe_move(pool, line, r);
        return 0;
    }
}

/* ---- other items ---- */

static char *hello_text(dt_arena_t *pool, const dt_recording_item_t *item)
{
    ProtobufCMessage *message;
    if (dt_ctl_unpack(pool, &dtorch__v1__session_hello__descriptor, item->content, item->size,
                      &message, NULL) != DT_OK)
        return NULL;
    const Dtorch__V1__SessionHello *hello = (const void *)message;
    return dt_ctl_print(pool, "program \"%s\", %u device%s%s%s%s%s, build %s", hello->program,
                        hello->device_count, hello->device_count == 1 ? "" : "s",
                        *hello->device_kind ? " of kind " : "", hello->device_kind,
                        *hello->backend ? " on backend " : "", hello->backend, hello->build);
}

static char *bindings_text(dt_arena_t *pool, const dt_recording_item_t *item)
{
    ProtobufCMessage *message;
    dt_buf_t buf;
    if (dt_ctl_unpack(pool, &dtorch__v1__session_welcome__descriptor, item->content, item->size,
                      &message, NULL) != DT_OK)
        return NULL;
    const Dtorch__V1__SessionWelcome *welcome = (const void *)message;
    dt_buf_init(&buf, LINE_MAX_BYTES);
    say(&buf, "session %" PRIu64 ", epoch %" PRIu64, welcome->session, welcome->epoch);
    for (size_t i = 0; i < welcome->n_bindings; i++)
        say(&buf, ", vdev %u = %s:%u (%s, %s)", welcome->bindings[i]->vdev,
            welcome->bindings[i]->node, welcome->bindings[i]->device, welcome->bindings[i]->kind,
            welcome->bindings[i]->backend);
    return take_text(pool, &buf);
}

static char *fault_text(dt_arena_t *pool, const dt_recording_item_t *item)
{
    ProtobufCMessage *message;
    if (dt_ctl_unpack(pool, &dtorch__v1__fault__descriptor, item->content, item->size, &message,
                      NULL) != DT_OK)
        return NULL;
    const Dtorch__V1__Fault *fault = (const void *)message;
    return dt_ctl_print(pool, "%s: %s; %" PRIu64 " tensors lost",
                        fault->error ? fault->error->kind : "Fault",
                        fault->error ? fault->error->text : "", fault->tensor_count);
}

static char *result_text(dt_arena_t *pool, const dt_recording_result_t *result)
{
    if (result->status != DT_OK)
        return dt_ctl_print(pool, "future %" PRIu64 ": %.*s", result->future,
                            (int)result->text_bytes, result->text);
    return dt_ctl_print(pool, "future %" PRIu64 ": %s, %" PRIu64 " bytes, checksum %08" PRIx32,
                        result->future, meta_text(pool, &result->meta), result->size_bytes,
                        result->crc32c);
}

/* Fill a line from an item that is no frame. Returns 0 or a dt_frame_error_t. */
static int describe_item(const dt_recording_item_t *item, dt_arena_t *pool,
                         Dtorch__V1__RecordedItem *line)
{
    dt_recording_chunk_t chunk;
    dt_recording_result_t result;
    int error = 0;
    switch (item->kind) {
    case DT_RECORDING_HELLO:
        line->what = hello_text(pool, item);
        break;
    case DT_RECORDING_BINDINGS:
        line->what = bindings_text(pool, item);
        break;
    case DT_RECORDING_FAULT:
        line->what = fault_text(pool, item);
        break;
    case DT_RECORDING_CHUNK:
        error = dt_recording_get_chunk(item, &chunk);
        if (error)
            return error;
        line->size_bytes = chunk.size;
        line->what = dt_ctl_print(pool, "transfer %" PRIu64 ", %zu bytes from %" PRIu64,
                                  chunk.transfer, chunk.size, chunk.offset);
        break;
    case DT_RECORDING_RESULT:
        error = dt_recording_get_result(item, &result);
        if (error)
            return error;
        line->size_bytes = result.size_bytes;
        line->what = result_text(pool, &result);
        break;
    default:
        break; /* END, and kinds that are newer than this program */
    }
    return line->what ? 0 : DT_FRAME_E_BODY;
}

/* ---- reading ---- */

static Dtorch__V1__RecordedItem *stop_at(dt_ctl_recorded_t *recorded, int error, uint64_t offset,
                                         uint64_t item, uint64_t sequence)
{
    recorded->damage = (dt_ctl_damage_t){error, offset, item, sequence};
    return NULL;
}

/* The next record of the frame; *ret_line is NULL behind the last one. False: damage. */
static bool next_record(dt_ctl_recorded_t *recorded, dt_arena_t *pool,
                        Dtorch__V1__RecordedItem **ret_line)
{
    bool is_end = false;
    uint64_t sequence = recorded->frame.header.first_sequence + recorded->frame.index;
    int error = dt_record_next(&recorded->frame, &recorded->record, &is_end);
    *ret_line = NULL;
    if (!error && is_end) {
        recorded->is_in_frame = false;
        return true;
    }
    if (!error) {
        unsigned kind = recorded->record.kind;
        *ret_line =
            new_item(recorded, pool, kind == DT_RECORD_NOP ? "NOP" : dt_record_kind_name(kind));
        (*ret_line)->sequence = sequence;
        error = describe(recorded, pool, *ret_line);
    }
    if (error) {
        *ret_line =
            stop_at(recorded, error, recorded->item.offset, recorded->item.number, sequence);
        return false;
    }
    recorded->record_count++;
    return true;
}

/* Open the frame of the item that was read; with_frames: as a line. */
static Dtorch__V1__RecordedItem *open_frame(dt_ctl_recorded_t *recorded, dt_arena_t *pool)
{
    const dt_recording_item_t *item = &recorded->item;
    const dt_frame_header_t *header = &recorded->frame.header;
    int error = dt_frame_open(&recorded->frame, item->content, item->size);
    if (error)
        return stop_at(recorded, error, item->offset, item->number, 0);
    recorded->is_in_frame = true;
    recorded->frame_count++;
    if (!recorded->with_frames)
        return NULL;
    Dtorch__V1__RecordedItem *line = new_item(recorded, pool, "FRAME");
    line->size_bytes = item->size;
    line->what =
        dt_ctl_print(pool, "%u record%s from %" PRIu64 ", epoch %u, %zu bytes%s", header->count,
                     header->count == 1 ? "" : "s", header->first_sequence, header->epoch,
                     item->size, header->flags & DT_FRAME_SYNC ? ", SYNC" : "");
    return line;
}

Dtorch__V1__RecordedItem *dt_ctl_recorded_next(dt_ctl_recorded_t *recorded, dt_arena_t *pool)
{
    Dtorch__V1__RecordedItem *line = NULL;
    bool is_end = false;
    while (!recorded->damage.error) {
        if (recorded->is_in_frame) {
            if (!next_record(recorded, pool, &line) || line)
                return line;
            continue;
        }
        int error = dt_recording_next(&recorded->reader, &recorded->item, &is_end);
        if (error)
            return stop_at(recorded, error, recorded->reader.at, recorded->reader.number + 1, 0);
        if (is_end)
            return NULL;
        if (recorded->item.kind == DT_RECORDING_FRAME) {
            line = open_frame(recorded, pool);
            if (line)
                return line;
            continue;
        }
        line = new_item(recorded, pool, dt_recording_kind_name(recorded->item.kind));
        error = describe_item(&recorded->item, pool, line);
        if (error)
            return stop_at(recorded, error, recorded->item.offset, recorded->item.number, 0);
        return line;
    }
    return NULL;
}
