#include "wire/record.h"

#include <stdlib.h>

static const char *const names[DT_RECORD_KIND_COUNT] = {
    [DT_RECORD_DEF_SIG] = "DEF_SIG",
    [DT_RECORD_DEF_MESH] = "DEF_MESH",
    [DT_RECORD_OP] = "OP",
    [DT_RECORD_OP_LONG] = "OP_LONG",
    [DT_RECORD_FREE] = "FREE",
    [DT_RECORD_FETCH] = "FETCH",
    [DT_RECORD_UPLOAD] = "UPLOAD",
    [DT_RECORD_REDISTRIBUTE] = "REDISTRIBUTE",
    [DT_RECORD_LOAD] = "LOAD",
    [DT_RECORD_SAVE] = "SAVE",
    [DT_RECORD_MARK] = "MARK",
    [DT_RECORD_BEGIN] = "RECORD_BEGIN",
    [DT_RECORD_END] = "RECORD_END",
    [DT_RECORD_REPLAY] = "REPLAY",
    [DT_RECORD_SEED] = "SEED",
    [DT_RECORD_SET_OPTION] = "OPTION",
    [DT_RECORD_COPY_OUT] = "COPY_OUT",
    [DT_RECORD_COPY_IN] = "COPY_IN",
    [DT_RECORD_BIND] = "BIND",
    [DT_RECORD_DEF_PLAN] = "DEF_PLAN",
};

const char *dt_record_kind_name(unsigned kind)
{
    return kind < DT_RECORD_KIND_COUNT && names[kind] ? names[kind] : "unknown";
}

/* ---- parts ---- */

uint8_t *dt_record_put_meta(uint8_t *at, const dt_meta_t *meta)
{
    *at++ = meta->dtype;
    *at++ = meta->ndim;
    for (int i = 0; i < meta->ndim; i++)
        at = dt_varint_put(at, (uint64_t)meta->sizes[i]);
    *at++ = meta->layout;
    if ((meta->layout & DT_META_CLASS_MASK) == DT_META_EXPLICIT)
        for (int i = 0; i < meta->ndim; i++)
            at = dt_varint_put(at, (uint64_t)meta->strides[i]);
    return at;
}

void dt_record_get_meta(dt_cursor_t *cursor, dt_meta_t *ret_meta)
{
    int64_t sizes[DT_META_DIM_MAX];
    int64_t strides[DT_META_DIM_MAX];
    uint8_t dtype = dt_cursor_u8(cursor);
    uint8_t ndim = dt_cursor_u8(cursor);
    dt_meta_t meta = {.dtype = dtype, .ndim = ndim};
    if (ndim > DT_META_DIM_MAX) {
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
        return;
    }
    for (int i = 0; i < ndim; i++)
        meta.sizes[i] = sizes[i] = (int64_t)dt_cursor_bounded(cursor, DT_META_BYTES_MAX);
    meta.layout = dt_cursor_u8(cursor);
    if (meta.layout & ~(DT_META_CLASS_MASK | DT_META_CONJ | DT_META_NEG)) {
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return;
    }
    if ((meta.layout & DT_META_CLASS_MASK) == DT_META_EXPLICIT) {
        for (int i = 0; i < ndim; i++)
            strides[i] = (int64_t)dt_cursor_bounded(cursor, DT_META_BYTES_MAX);
    } else if (dt_meta_set(ret_meta, dtype, ndim, sizes, NULL, 0, NULL) != DT_OK ||
               !dt_meta_fill_strides(&meta)) {
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
        return;
    } else {
        memcpy(strides, meta.strides, sizeof strides);
    }
    /* One form for one layout: a signature is interned by its bytes. */
    if (dt_meta_set(ret_meta, dtype, ndim, sizes, strides, meta.layout & ~DT_META_CLASS_MASK,
                    NULL) != DT_OK)
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    else if (ret_meta->layout != meta.layout)
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
}

#define ORDERED_SHARD 3u /* the kind of a SHARD that is followed by its order */

uint8_t *dt_record_put_placement(uint8_t *at, const dt_placement_t *placement)
{
    bool is_ordered = placement->kind == DT_PLACEMENT_SHARD && placement->order;
    *at++ = is_ordered ? ORDERED_SHARD : placement->kind;
    if (placement->kind == DT_PLACEMENT_SHARD) {
        *at++ = placement->dim;
        at = dt_varint_put(at, placement->unit);
        at = dt_varint_put(at, placement->groups);
        if (is_ordered)
            *at++ = placement->order;
    } else if (placement->kind == DT_PLACEMENT_PARTIAL) {
        *at++ = placement->reduction;
    }
    return at;
}

void dt_record_get_placement(dt_cursor_t *cursor, dt_placement_t *ret_placement)
{
    dt_placement_t p = {.kind = dt_cursor_u8(cursor)};
    bool is_ordered = p.kind == ORDERED_SHARD;
    if (is_ordered)
        p.kind = DT_PLACEMENT_SHARD;
    if (p.kind == DT_PLACEMENT_SHARD) {
        p.dim = dt_cursor_u8(cursor);
        p.unit = (uint32_t)dt_cursor_bounded(cursor, UINT32_MAX);
        p.groups = (uint32_t)dt_cursor_bounded(cursor, UINT32_MAX);
        p.order = is_ordered ? dt_cursor_u8(cursor) : 0;
        if (p.dim >= DT_META_DIM_MAX || p.unit == 0 || p.groups == 0 || is_ordered != (p.order > 0))
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    } else if (p.kind == DT_PLACEMENT_PARTIAL) {
        p.reduction = dt_cursor_u8(cursor);
        if (p.reduction > DT_REDUCTION_MIN)
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    } else if (p.kind != DT_PLACEMENT_REPLICATE) {
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    }
    *ret_placement = p;
}

uint8_t *dt_record_put_layout(uint8_t *at, const dt_layout_t *layout)
{
    at = dt_varint_put(at, layout->mesh);
    *at++ = layout->ndim;
    for (int i = 0; i < layout->ndim; i++)
        at = dt_record_put_placement(at, &layout->placements[i]);
    return at;
}

void dt_record_get_layout(dt_cursor_t *cursor, dt_layout_t *ret_layout)
{
    *ret_layout = (dt_layout_t){.mesh = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_MESH_MAX)};
    ret_layout->ndim = dt_cursor_u8(cursor);
    if (ret_layout->ndim > DT_RECORD_MESH_DIM_MAX) {
        ret_layout->ndim = 0;
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    }
    for (int i = 0; i < ret_layout->ndim; i++)
        dt_record_get_placement(cursor, &ret_layout->placements[i]);
}

static uint8_t *put_text(uint8_t *at, const char *text, uint32_t bytes)
{
    at = dt_varint_put(at, bytes);
    if (bytes)
        memcpy(at, text, bytes);
    return at + bytes;
}

static uint8_t *put_id(uint8_t *at, uint64_t base, uint64_t id)
{
    return dt_varint_put(at, dt_zigzag((int64_t)(id - base)));
}

static uint64_t get_id(dt_cursor_t *cursor, uint64_t base)
{
    return base + (uint64_t)dt_unzigzag(dt_cursor_varint(cursor));
}

static uint8_t *put_output(uint8_t *at, uint64_t *base, uint64_t id)
{
    at = put_id(at, *base + 1, id);
    *base = id;
    return at;
}

static uint64_t get_output(dt_cursor_t *cursor, uint64_t *base)
{
    *base = get_id(cursor, *base + 1);
    return *base;
}

static uint8_t *put_scalar(uint8_t *at, const dt_value_t *value)
{
    *at++ = value->tag;
    if (value->tag == DT_VALUE_INT)
        return dt_varint_put(at, dt_zigzag(value->number));
    if (value->tag == DT_VALUE_DOUBLE) {
        uint64_t bits;
        memcpy(&bits, &value->real, sizeof bits);
        for (int i = 0; i < 8; i++)
            *at++ = (uint8_t)(bits >> 8 * i);
    }
    return at;
}

static void get_scalar(dt_cursor_t *cursor, dt_value_t *ret_value)
{
    ret_value->tag = dt_cursor_u8(cursor);
    ret_value->count = 0;
    if (ret_value->tag == DT_VALUE_INT)
        ret_value->number = dt_unzigzag(dt_cursor_varint(cursor));
    else if (ret_value->tag == DT_VALUE_DOUBLE)
        ret_value->real = dt_cursor_f64(cursor);
    else if (!dt_value_is_scalar(ret_value))
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
}

/* ---- writing ---- */

static uint8_t *put_op(uint8_t *at, uint64_t *base, const dt_record_op_t *op, bool is_long)
{
    at = dt_varint_put(at, op->signature);
    if (is_long) {
        at = dt_varint_put(at, op->input_count);
        at = dt_varint_put(at, op->output_count);
        at = dt_varint_put(at, op->scalar_count);
    } else {
        *at++ = (uint8_t)op->input_count;
        *at++ = (uint8_t)(op->output_count << 4 | op->scalar_count);
    }
    for (uint32_t i = 0; i < op->input_count; i++)
        at = put_id(at, *base, op->inputs[i]);
    for (uint32_t i = 0; i < op->output_count; i++)
        at = put_output(at, base, op->outputs[i]);
    for (uint32_t i = 0; i < op->scalar_count; i++)
        at = put_scalar(at, &op->scalars[i]);
    return at;
}

/* Finish a record whose body was written from `start + 2`: most sizes take one byte. */
static void finish(dt_frame_writer_t *writer, uint8_t kind, uint8_t *start, uint8_t *end)
{
    size_t size = (size_t)(end - (start + 2));
    start[0] = kind;
    if (size < 128) {
        start[1] = (uint8_t)size;
    } else {
        uint8_t coded[DT_VARINT_BYTES_MAX];
        size_t coded_bytes = (size_t)(dt_varint_put(coded, size) - coded);
        memmove(start + 1 + coded_bytes, start + 2, size);
        memcpy(start + 1, coded, coded_bytes);
        end += coded_bytes - 1;
    }
    writer->len = (size_t)(end - writer->bytes);
    writer->count++;
}

static bool is_long_op(const dt_record_op_t *op)
{
    return op->input_count > DT_RECORD_OP_INPUTS || op->output_count > DT_RECORD_OP_OUTPUTS ||
           op->scalar_count > DT_RECORD_OP_SCALARS;
}

static size_t op_bound(const dt_record_op_t *op)
{
    return 32 + DT_VARINT_BYTES_MAX * ((size_t)op->input_count + op->output_count) +
           (1 + DT_VARINT_BYTES_MAX) * (size_t)op->scalar_count;
}

bool dt_record_put_op(dt_frame_writer_t *writer, const dt_record_op_t *op)
{
    bool is_long = is_long_op(op);
    uint8_t *start = writer->bytes + writer->len;
    if (op_bound(op) > writer->cap - writer->len)
        return false;
    finish(writer, is_long ? DT_RECORD_OP_LONG : DT_RECORD_OP, start,
           put_op(start + 2, &writer->base, op, is_long));
    return true;
}

size_t dt_record_bound(const dt_record_t *record)
{
    const size_t number = DT_VARINT_BYTES_MAX;
    switch (record->kind) {
    case DT_RECORD_OP:
    case DT_RECORD_OP_LONG:
        return op_bound(&record->op);
    case DT_RECORD_DEF_SIG:
    case DT_RECORD_DEF_PLAN:
        return 32 + (size_t)record->definition.body_bytes;
    case DT_RECORD_DEF_MESH:
        return 32 + DT_RECORD_MESH_DIM_MAX * (2 * number + DT_RECORD_NAME_MAX) +
               number * record->mesh.vdev_count;
    case DT_RECORD_FREE:
    case DT_RECORD_END:
        return 48 + number * record->ids.count;
    case DT_RECORD_MARK:
    case DT_RECORD_BEGIN:
    case DT_RECORD_SEED:
    case DT_RECORD_SET_OPTION:
    case DT_RECORD_BIND:
        return 64 + (size_t)record->note.text_bytes;
    case DT_RECORD_REPLAY:
        return 64 + 2 * number * record->replay.slot_count + record->replay.change_bytes;
    default:
        return 96 + DT_RECORD_META_BYTES + DT_RECORD_LAYOUT_BYTES + record->move.uri_bytes +
               record->move.name_bytes + (record->move.bytes ? (size_t)record->move.size : 0);
    }
}

static uint8_t *put_ids(uint8_t *at, uint64_t base, const uint64_t *ids, uint32_t count)
{
    at = dt_varint_put(at, count);
    for (uint32_t i = 0; i < count; i++) {
        at = put_id(at, base, ids[i]);
        base = ids[i];
    }
    return at;
}

static uint8_t *put_mesh(uint8_t *at, const dt_record_mesh_t *mesh)
{
    bool is_row = true;
    at = dt_varint_put(at, mesh->id);
    *at++ = mesh->ndim;
    for (int i = 0; i < mesh->ndim; i++) {
        at = dt_varint_put(at, mesh->sizes[i]);
        at = put_text(at, mesh->names[i], mesh->name_bytes[i]);
    }
    for (uint32_t i = 1; i < mesh->vdev_count; i++)
        is_row &= mesh->vdevs[i] == mesh->vdevs[0] + i;
    *at++ = is_row ? 0 : 1;
    for (uint32_t i = 0; i < (is_row ? 1 : mesh->vdev_count); i++)
        at = dt_varint_put(at, mesh->vdevs[i]);
    return at;
}

static uint8_t *put_move(uint8_t *at, uint64_t *base, const dt_record_t *r)
{
    if (r->kind == DT_RECORD_LOAD || r->kind == DT_RECORD_SAVE) {
        at = put_text(at, r->move.uri, r->move.uri_bytes);
        at = put_text(at, r->move.name, r->move.name_bytes);
    }
    if (r->kind == DT_RECORD_FETCH || r->kind == DT_RECORD_SAVE || r->kind == DT_RECORD_COPY_OUT ||
        r->kind == DT_RECORD_REDISTRIBUTE)
        at = put_id(at, *base, r->move.tensor);
    if (r->kind == DT_RECORD_UPLOAD || r->kind == DT_RECORD_LOAD || r->kind == DT_RECORD_COPY_IN ||
        r->kind == DT_RECORD_REDISTRIBUTE)
        at = put_output(at, base, r->move.output);
    if (r->kind == DT_RECORD_FETCH || r->kind == DT_RECORD_UPLOAD ||
        r->kind == DT_RECORD_COPY_OUT || r->kind == DT_RECORD_COPY_IN)
        at = dt_varint_put(at, r->move.number);
    if (r->kind == DT_RECORD_UPLOAD || r->kind == DT_RECORD_COPY_IN)
        at = dt_record_put_meta(at, &r->move.meta);
    if (r->kind == DT_RECORD_REDISTRIBUTE || r->kind == DT_RECORD_LOAD ||
        r->kind == DT_RECORD_UPLOAD)
        at = dt_record_put_layout(at, &r->move.layout);
    if (r->kind == DT_RECORD_UPLOAD) {
        at = dt_varint_put(at, r->move.offset);
        at = dt_varint_put(at, r->move.size);
        if (r->move.number == 0 && r->move.size) {
            memcpy(at, r->move.bytes, r->move.size);
            at += r->move.size;
        }
    }
    return at;
}

static uint8_t *put_note(uint8_t *at, const dt_record_t *r)
{
    at = dt_varint_put(at, r->note.what);
    if (r->kind == DT_RECORD_MARK || r->kind == DT_RECORD_BIND)
        at = dt_varint_put(at, r->note.value);
    if (r->kind == DT_RECORD_SEED) {
        for (int i = 0; i < 8; i++)
            *at++ = (uint8_t)(r->note.value >> 8 * i);
        at = dt_varint_put(at, r->note.offset);
    }
    if (r->kind == DT_RECORD_MARK || r->kind == DT_RECORD_SET_OPTION)
        at = put_text(at, r->note.text, r->note.text_bytes);
    return at;
}

static uint8_t *put_replay(uint8_t *at, uint64_t *base, const dt_record_t *r)
{
    uint64_t ids_base = *base;
    at = dt_varint_put(at, r->replay.recording);
    at = put_output(at, base, r->replay.output);
    at = dt_varint_put(at, r->replay.slot_count);
    for (size_t i = 0; i < r->replay.slot_count; i++) {
        at = dt_varint_put(at, r->replay.pairs[2 * i]);
        at = put_id(at, ids_base, r->replay.pairs[2 * i + 1]);
    }
    at = dt_varint_put(at, r->replay.change_count);
    if (r->replay.change_bytes)
        memcpy(at, r->replay.changes, r->replay.change_bytes);
    return at + r->replay.change_bytes;
}

static uint8_t *put_body(uint8_t *at, dt_frame_writer_t *writer, const dt_record_t *r)
{
    switch (r->kind) {
    case DT_RECORD_DEF_SIG:
    case DT_RECORD_DEF_PLAN:
        at = dt_varint_put(at, r->definition.id);
        memcpy(at, r->definition.body, r->definition.body_bytes);
        return at + r->definition.body_bytes;
    case DT_RECORD_DEF_MESH:
        return put_mesh(at, &r->mesh);
    case DT_RECORD_FREE:
        return put_ids(at, writer->base, r->ids.ids, r->ids.count);
    case DT_RECORD_END:
        at = dt_varint_put(at, r->ids.recording);
        return put_ids(at, writer->base, r->ids.ids, r->ids.count);
    case DT_RECORD_MARK:
    case DT_RECORD_BEGIN:
    case DT_RECORD_SEED:
    case DT_RECORD_SET_OPTION:
    case DT_RECORD_BIND:
        return put_note(at, r);
    case DT_RECORD_REPLAY:
        return put_replay(at, &writer->base, r);
    default:
        return put_move(at, &writer->base, r);
    }
}

bool dt_record_put(dt_frame_writer_t *writer, const dt_record_t *record)
{
    uint8_t *start = writer->bytes + writer->len;
    if (record->kind == DT_RECORD_OP || record->kind == DT_RECORD_OP_LONG)
        return dt_record_put_op(writer, &record->op);
    dt_check(record->kind < DT_RECORD_KIND_COUNT && names[record->kind]);
    if (dt_record_bound(record) > writer->cap - writer->len)
        return false;
    finish(writer, record->kind, start, put_body(start + 2, writer, record));
    return true;
}

/* ---- reading ---- */

/* Give room for `count` ids: the record's own, or the reader's scratch for long ones. The caller
 * has bounded `count`. */
static uint64_t *room_for(dt_frame_reader_t *reader, dt_record_t *record, dt_cursor_t *cursor,
                          size_t count)
{
    uint64_t *grown;
    if (count <= sizeof record->ids_ / sizeof record->ids_[0])
        return record->ids_;
    if (count <= reader->scratch_count)
        return reader->scratch;
    grown = realloc(reader->scratch, count * sizeof *grown);
    if (!grown) {
        dt_cursor_fail(cursor, DT_FRAME_E_NOMEM);
        return NULL;
    }
    reader->scratch = grown;
    reader->scratch_count = (uint32_t)count;
    return grown;
}

/* The same for ids that stand in the body: a peer cannot ask for more than the bytes that are left,
 * since an id takes at least one. */
static uint64_t *ids_for(dt_frame_reader_t *reader, dt_record_t *record, dt_cursor_t *cursor,
                         size_t count)
{
    if (cursor->error)
        return NULL;
    if (count > dt_cursor_left(cursor)) {
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return NULL;
    }
    return room_for(reader, record, cursor, count);
}

static void get_op(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    dt_record_op_t *op = &r->op;
    uint64_t *ids;
    op->signature = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_SIG_MAX - 1);
    if (r->kind == DT_RECORD_OP) {
        uint8_t counts;
        op->input_count = dt_cursor_u8(cursor);
        counts = dt_cursor_u8(cursor);
        op->output_count = counts >> 4;
        op->scalar_count = counts & 15;
        if (op->input_count > DT_RECORD_OP_INPUTS || op->scalar_count > DT_RECORD_OP_SCALARS)
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    } else {
        op->input_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_INPUTS_MAX);
        op->output_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_OUTPUTS_MAX);
        op->scalar_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_SCALARS_MAX);
    }
    ids = ids_for(reader, r, cursor, (size_t)op->input_count + op->output_count);
    if (!ids)
        return;
    for (uint32_t i = 0; i < op->input_count; i++)
        ids[i] = get_id(cursor, reader->base);
    for (uint32_t i = 0; i < op->output_count; i++)
        ids[op->input_count + i] = get_output(cursor, &reader->base);
    for (uint32_t i = 0; i < op->scalar_count; i++)
        get_scalar(cursor, &r->scalars_[i]);
    op->inputs = ids;
    op->outputs = ids + op->input_count;
    op->scalars = r->scalars_;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool are_distinct(const uint64_t *ids, uint32_t count, uint64_t *sorted)
{
    memcpy(sorted, ids, count * sizeof *ids);
    qsort(sorted, count, sizeof *sorted, compare_ids);
    for (uint32_t i = 1; i < count; i++)
        if (sorted[i] == sorted[i - 1])
            return false;
    return true;
}

static void get_vdevs(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    uint8_t form = dt_cursor_u8(cursor);
    uint32_t count = r->mesh.vdev_count;
    uint64_t *vdevs = room_for(reader, r, cursor, 2 * (size_t)count);
    if (form > 1)
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    if (!vdevs || cursor->error)
        return;
    for (uint32_t i = 0; i < count; i++)
        vdevs[i] = i > 0 && form == 0 ? vdevs[0] + i : dt_cursor_bounded(cursor, UINT32_MAX);
    if (!cursor->error && !are_distinct(vdevs, count, vdevs + count))
        dt_cursor_fail(cursor, DT_FRAME_E_DUP);
    r->mesh.vdevs = vdevs;
}

static void get_mesh(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    dt_record_mesh_t *mesh = &r->mesh;
    uint64_t count = 1;
    mesh->id = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_MESH_MAX);
    mesh->ndim = dt_cursor_u8(cursor);
    if (mesh->ndim == 0 || mesh->ndim > DT_RECORD_MESH_DIM_MAX)
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    for (int i = 0; i < mesh->ndim && !cursor->error; i++) {
        mesh->sizes[i] = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_VDEV_MAX);
        mesh->names[i] = dt_cursor_text(cursor, DT_RECORD_NAME_MAX, &mesh->name_bytes[i]);
        count *= mesh->sizes[i];
        if (count == 0 || count > DT_RECORD_VDEV_MAX)
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    }
    mesh->vdev_count = (uint32_t)count;
    if (!cursor->error)
        get_vdevs(reader, cursor, r);
}

static void get_ids(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    bool is_free = r->kind == DT_RECORD_FREE;
    uint64_t base = reader->base;
    uint64_t *ids;
    r->ids.recording = is_free ? 0 : (uint32_t)dt_cursor_bounded(cursor, UINT32_MAX);
    r->ids.count =
        (uint32_t)dt_cursor_bounded(cursor, is_free ? DT_RECORD_FREE_MAX : DT_RECORD_INPUTS_MAX);
    if (is_free && r->ids.count == 0)
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    ids = ids_for(reader, r, cursor, r->ids.count);
    for (uint32_t i = 0; ids && i < r->ids.count; i++)
        base = ids[i] = get_id(cursor, base);
    r->ids.ids = ids;
}

static void get_upload(dt_cursor_t *cursor, dt_record_t *r)
{
    uint64_t bytes;
    r->move.offset = dt_cursor_varint(cursor);
    r->move.size = dt_cursor_varint(cursor);
    if (cursor->error)
        return;
    bytes = (uint64_t)dt_meta_bytes(&r->move.meta);
    if (r->move.offset > bytes || r->move.size > bytes - r->move.offset)
        dt_cursor_fail(cursor, DT_FRAME_E_RANGE);
    else if (r->move.number == 0 && r->move.size > DT_RECORD_INLINE_MAX)
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
    else if (r->move.number == 0)
        r->move.bytes = dt_cursor_bytes(cursor, r->move.size);
}

static void get_move(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    uint8_t kind = r->kind;
    memset(&r->move, 0, sizeof r->move);
    if (kind == DT_RECORD_LOAD || kind == DT_RECORD_SAVE) {
        r->move.uri = dt_cursor_text(cursor, DT_RECORD_URI_MAX, &r->move.uri_bytes);
        r->move.name = dt_cursor_text(cursor, DT_RECORD_NAME_MAX, &r->move.name_bytes);
    }
    if (kind == DT_RECORD_FETCH || kind == DT_RECORD_SAVE || kind == DT_RECORD_COPY_OUT ||
        kind == DT_RECORD_REDISTRIBUTE)
        r->move.tensor = get_id(cursor, reader->base);
    if (kind == DT_RECORD_UPLOAD || kind == DT_RECORD_LOAD || kind == DT_RECORD_COPY_IN ||
        kind == DT_RECORD_REDISTRIBUTE)
        r->move.output = get_output(cursor, &reader->base);
    if (kind == DT_RECORD_FETCH || kind == DT_RECORD_UPLOAD || kind == DT_RECORD_COPY_OUT ||
        kind == DT_RECORD_COPY_IN)
        r->move.number = dt_cursor_varint(cursor);
    if (kind == DT_RECORD_UPLOAD || kind == DT_RECORD_COPY_IN)
        dt_record_get_meta(cursor, &r->move.meta);
    if (kind == DT_RECORD_REDISTRIBUTE || kind == DT_RECORD_LOAD || kind == DT_RECORD_UPLOAD)
        dt_record_get_layout(cursor, &r->move.layout);
    if (kind == DT_RECORD_UPLOAD)
        get_upload(cursor, r);
}

static void get_note(dt_cursor_t *cursor, dt_record_t *r)
{
    memset(&r->note, 0, sizeof r->note);
    r->note.what = dt_cursor_varint(cursor);
    if (r->kind == DT_RECORD_MARK || r->kind == DT_RECORD_BIND)
        r->note.value = dt_cursor_varint(cursor);
    if (r->kind == DT_RECORD_SEED) {
        r->note.value = dt_cursor_u64(cursor);
        r->note.offset = dt_cursor_varint(cursor);
    }
    if (r->kind == DT_RECORD_MARK || r->kind == DT_RECORD_SET_OPTION)
        r->note.text = dt_cursor_text(cursor, DT_RECORD_TEXT_MAX, &r->note.text_bytes);
    if (r->kind == DT_RECORD_MARK && (r->note.what == 0 || r->note.what > DT_MARK_SOURCE))
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
}

bool dt_record_change(dt_cursor_t *cursor, uint32_t *ret_record, uint8_t *ret_index,
                      dt_value_t *ret_value)
{
    if (cursor->error || dt_cursor_left(cursor) == 0)
        return false;
    *ret_record = (uint32_t)dt_cursor_bounded(cursor, UINT32_MAX);
    *ret_index = dt_cursor_u8(cursor);
    get_scalar(cursor, ret_value);
    return !cursor->error;
}

static void get_replay(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    uint64_t base = reader->base;
    uint64_t *pairs;
    uint32_t index;
    uint8_t scalar;
    dt_value_t value;
    r->replay.recording = (uint32_t)dt_cursor_bounded(cursor, UINT32_MAX);
    r->replay.output = get_output(cursor, &reader->base);
    r->replay.slot_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_INPUTS_MAX);
    pairs = ids_for(reader, r, cursor, 2 * (size_t)r->replay.slot_count);
    for (size_t i = 0; pairs && i < r->replay.slot_count; i++) {
        pairs[2 * i] = dt_cursor_varint(cursor);
        pairs[2 * i + 1] = get_id(cursor, base);
    }
    r->replay.pairs = pairs;
    r->replay.change_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_INPUTS_MAX);
    r->replay.changes = cursor->at;
    for (uint32_t i = 0; !cursor->error && i < r->replay.change_count; i++)
        if (!dt_record_change(cursor, &index, &scalar, &value))
            dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    r->replay.change_bytes = (uint32_t)(cursor->at - r->replay.changes);
}

static void get_body(dt_frame_reader_t *reader, dt_cursor_t *cursor, dt_record_t *r)
{
    switch (r->kind) {
    case DT_RECORD_OP:
    case DT_RECORD_OP_LONG:
        get_op(reader, cursor, r);
        return;
    case DT_RECORD_DEF_SIG:
    case DT_RECORD_DEF_PLAN:
        r->definition.id = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_SIG_MAX - 1);
        r->definition.body_bytes = (uint32_t)dt_cursor_left(cursor);
        r->definition.body = dt_cursor_bytes(cursor, r->definition.body_bytes);
        return;
    case DT_RECORD_DEF_MESH:
        get_mesh(reader, cursor, r);
        return;
    case DT_RECORD_FREE:
    case DT_RECORD_END:
        get_ids(reader, cursor, r);
        return;
    case DT_RECORD_MARK:
    case DT_RECORD_BEGIN:
    case DT_RECORD_SEED:
    case DT_RECORD_SET_OPTION:
    case DT_RECORD_BIND:
        get_note(cursor, r);
        return;
    case DT_RECORD_REPLAY:
        get_replay(reader, cursor, r);
        return;
    default:
        get_move(reader, cursor, r);
    }
}

int dt_record_next(dt_frame_reader_t *reader, dt_record_t *ret_record, bool *ret_is_end)
{
    dt_cursor_t *cursor = &reader->cursor;
    dt_cursor_t body;
    uint64_t size;
    *ret_is_end = reader->index == reader->header.count;
    if (*ret_is_end)
        return dt_cursor_left(cursor) ? DT_FRAME_E_TRAILING : 0;
    ret_record->sequence = reader->header.first_sequence + reader->index;
    if (dt_cursor_left(cursor) < 2)
        return DT_FRAME_E_COUNT;
    ret_record->kind = *cursor->at++;
    size = dt_cursor_varint(cursor);
    if (cursor->error || size > dt_cursor_left(cursor))
        return DT_FRAME_E_BODY;
    body = (dt_cursor_t){.at = cursor->at, .end = cursor->at + size};
    if (ret_record->kind < DT_RECORD_KIND_COUNT && names[ret_record->kind])
        get_body(reader, &body, ret_record);
    else if (ret_record->kind & DT_RECORD_OPTIONAL)
        body.at = body.end;
    else
        return DT_FRAME_E_KIND;
    if (body.error)
        return body.error;
    if (body.at != body.end)
        return DT_FRAME_E_BODY;
    cursor->at = body.end;
    reader->index++;
    return 0;
}
