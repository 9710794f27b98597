#include "wire/signature.h"

#include <inttypes.h>
#include <string.h>

/* ---- decoding ---- */

static void *arena_array(dt_cursor_t *cursor, dt_arena_t *arena, size_t count, size_t size)
{
    void *memory = NULL;
    if (!cursor->error && !(memory = dt_arena_calloc(arena, count, size)))
        dt_cursor_fail(cursor, DT_FRAME_E_NOMEM);
    return memory;
}

/* A list's count: no more than the bytes that are left, so that nothing is allocated for a lie. */
static uint32_t list_count(dt_cursor_t *cursor, size_t element_bytes)
{
    uint64_t count = dt_cursor_bounded(cursor, DT_VALUE_LIST_MAX);
    if (count * element_bytes > dt_cursor_left(cursor))
        return (uint32_t)dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    return (uint32_t)count;
}

static int64_t get_int(dt_cursor_t *cursor)
{
    int64_t number = dt_unzigzag(dt_cursor_varint(cursor));
    if (number >= 0 && number < 64)
        dt_cursor_fail(cursor, DT_FRAME_E_BODY); /* has a shorter form */
    return number;
}

static void get_ints(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value)
{
    int64_t *ints;
    value->count = list_count(cursor, 1);
    ints = arena_array(cursor, arena, value->count, sizeof *ints);
    for (uint32_t i = 0; ints && i < value->count; i++)
        ints[i] = dt_unzigzag(dt_cursor_varint(cursor));
    value->ints = ints;
}

static void get_doubles(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value, uint32_t count)
{
    double *doubles = arena_array(cursor, arena, count, sizeof *doubles);
    for (uint32_t i = 0; doubles && i < count; i++)
        doubles[i] = dt_cursor_f64(cursor);
    value->count = count;
    value->doubles = doubles;
}

static void get_bools(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value)
{
    uint8_t *bools;
    value->count = list_count(cursor, 1);
    bools = arena_array(cursor, arena, value->count, 1);
    for (uint32_t i = 0; bools && i < value->count; i++)
        if ((bools[i] = dt_cursor_u8(cursor)) > 1)
            dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    value->bools = bools;
}

static void get_tensors(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value)
{
    uint64_t *ids;
    value->count = list_count(cursor, 1);
    ids = arena_array(cursor, arena, value->count, sizeof *ids);
    for (uint32_t i = 0; ids && i < value->count; i++) {
        uint8_t is_none = dt_cursor_u8(cursor);
        ids[i] = !is_none;
        if (is_none > 1)
            dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    }
    value->ids = ids;
}

static void get_str(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value)
{
    const char *text = dt_cursor_text(cursor, DT_RECORD_URI_MAX, &value->count);
    if (!cursor->error && !(value->text = dt_arena_strndup(arena, text, value->count)))
        dt_cursor_fail(cursor, DT_FRAME_E_NOMEM);
}

static void get_value(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value, int depth);

static void get_values(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value)
{
    dt_value_t *values;
    value->count = list_count(cursor, 1);
    values = arena_array(cursor, arena, value->count, sizeof *values);
    for (uint32_t i = 0; values && i < value->count; i++) {
        bool is_number;
        if (value->tag == DT_VALUE_STRS) {
            values[i].tag = DT_VALUE_STR;
            get_str(cursor, arena, &values[i]);
            continue;
        }
        get_value(cursor, arena, &values[i], 1);
        is_number = dt_value_is_scalar(&values[i]) || values[i].tag == DT_VALUE_COMPLEX;
        if (!is_number || values[i].tag == DT_VALUE_NONE)
            dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    }
    value->values = values;
}

static void get_device(dt_cursor_t *cursor, dt_value_t *value)
{
    value->number = dt_cursor_u8(cursor);
    value->index = (int16_t)(dt_cursor_u8(cursor) - 1);
}

/* `depth` is 1 inside VALUES, where only numbers may stand: no recursion beyond that. */
static void get_value(dt_cursor_t *cursor, dt_arena_t *arena, dt_value_t *value, int depth)
{
    uint8_t tag = dt_cursor_u8(cursor);
    *value = (dt_value_t){.tag = tag};
    if (tag >= DT_VALUE_SMALL && tag < DT_VALUE_SMALL + 64) {
        *value = (dt_value_t){.tag = DT_VALUE_INT, .number = tag - DT_VALUE_SMALL};
        return;
    }
    if (depth > 0 && tag > DT_VALUE_COMPLEX) {
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return;
    }
    switch (tag) {
    case DT_VALUE_DEFAULT:
    case DT_VALUE_NONE:
    case DT_VALUE_FALSE:
    case DT_VALUE_TRUE:
    case DT_VALUE_TENSOR:
    case DT_VALUE_STORAGE:
    case DT_VALUE_DYNAMIC:
        return;
    case DT_VALUE_INT:
        value->number = get_int(cursor);
        return;
    case DT_VALUE_DOUBLE:
        value->real = dt_cursor_f64(cursor);
        return;
    case DT_VALUE_COMPLEX:
        get_doubles(cursor, arena, value, 2);
        return;
    case DT_VALUE_STR:
        get_str(cursor, arena, value);
        return;
    case DT_VALUE_INTS:
        get_ints(cursor, arena, value);
        return;
    case DT_VALUE_DOUBLES:
        get_doubles(cursor, arena, value, list_count(cursor, 8));
        return;
    case DT_VALUE_BOOLS:
        get_bools(cursor, arena, value);
        return;
    case DT_VALUE_TENSORS:
        get_tensors(cursor, arena, value);
        return;
    case DT_VALUE_VALUES:
    case DT_VALUE_STRS:
        get_values(cursor, arena, value);
        return;
    case DT_VALUE_DTYPE:
    case DT_VALUE_LAYOUT:
    case DT_VALUE_MEMORY_FORMAT:
        value->number = dt_cursor_u8(cursor);
        return;
    case DT_VALUE_DEVICE:
        get_device(cursor, value);
        return;
    case DT_VALUE_GENERATOR:
        value->number = (int64_t)dt_cursor_bounded(cursor, UINT32_MAX);
        return;
    default:
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    }
}

static void count_arg(dt_signature_t *sig, const dt_value_t *arg)
{
    if (arg->tag == DT_VALUE_TENSOR || arg->tag == DT_VALUE_STORAGE)
        sig->input_count++;
    else if (arg->tag == DT_VALUE_DYNAMIC)
        sig->dynamic_count++;
    else if (arg->tag == DT_VALUE_TENSORS)
        for (uint32_t i = 0; arg->ids && i < arg->count; i++)
            sig->input_count += arg->ids[i] != 0;
}

static void get_args(dt_cursor_t *cursor, dt_arena_t *arena, dt_signature_t *sig)
{
    dt_value_t *args;
    sig->arg_count = (uint32_t)dt_cursor_bounded(cursor, DT_SIGNATURE_ARGS_MAX);
    args = arena_array(cursor, arena, sig->arg_count, sizeof *args);
    for (uint32_t i = 0; args && i < sig->arg_count; i++) {
        get_value(cursor, arena, &args[i], 0);
        count_arg(sig, &args[i]);
    }
    sig->args = args;
    if (sig->input_count > DT_SIGNATURE_TENSORS_MAX || sig->dynamic_count > DT_RECORD_SCALARS_MAX)
        dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
}

/* An input takes 5 bytes or more, an output 1. */
static dt_signature_tensor_t *get_tensor_list(dt_cursor_t *cursor, dt_arena_t *arena,
                                              uint32_t count, size_t element_bytes)
{
    if (count * element_bytes > dt_cursor_left(cursor)) {
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return NULL;
    }
    return arena_array(cursor, arena, count, sizeof(dt_signature_tensor_t));
}

static void get_outputs(dt_cursor_t *cursor, dt_arena_t *arena, dt_signature_t *sig)
{
    dt_signature_tensor_t *outputs;
    sig->output_count = (uint32_t)dt_cursor_bounded(cursor, DT_RECORD_OUTPUTS_MAX);
    outputs = get_tensor_list(cursor, arena, sig->output_count, 1);
    for (uint32_t i = 0; outputs && i < sig->output_count; i++) {
        dt_signature_tensor_t *out = &outputs[i];
        out->alias = dt_cursor_u8(cursor);
        if (out->alias > DT_ALIAS_NONE)
            dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
        if (out->alias == DT_ALIAS_NONE)
            continue;
        if (out->alias != DT_ALIAS_FRESH) {
            out->input = (uint32_t)dt_cursor_varint(cursor);
            if (out->input >= sig->input_count)
                dt_cursor_fail(cursor, DT_FRAME_E_ID);
        }
        dt_record_get_meta(cursor, &out->meta);
        dt_record_get_layout(cursor, &out->layout);
        sig->id_count += out->alias != DT_ALIAS_IN_PLACE;
    }
    sig->outputs = outputs;
}

int dt_signature_decode(dt_cursor_t *cursor, dt_arena_t *arena, dt_signature_t **ret_signature)
{
    dt_signature_t *sig = arena_array(cursor, arena, 1, sizeof *sig);
    dt_signature_tensor_t *inputs;
    uint32_t name_bytes;
    const char *name = dt_cursor_text(cursor, DT_RECORD_NAME_MAX, &name_bytes);
    if (!cursor->error && name_bytes == 0)
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    if (cursor->error)
        return cursor->error;
    sig->name = dt_arena_strndup(arena, name, name_bytes);
    if (!sig->name)
        dt_cursor_fail(cursor, DT_FRAME_E_NOMEM);
    get_args(cursor, arena, sig);
    inputs = get_tensor_list(cursor, arena, sig->input_count, 5);
    for (uint32_t i = 0; inputs && i < sig->input_count; i++) {
        dt_record_get_meta(cursor, &inputs[i].meta);
        dt_record_get_layout(cursor, &inputs[i].layout);
    }
    sig->inputs = inputs;
    get_outputs(cursor, arena, sig);
    sig->flags = (uint32_t)dt_cursor_bounded(cursor, DT_SIGNATURE_FLAGS_ALL);
    if (!cursor->error)
        *ret_signature = sig;
    return cursor->error;
}

/* ---- encoding ---- */

static dt_status_t put_varint(dt_buf_t *buf, uint64_t value)
{
    uint8_t coded[DT_VARINT_BYTES_MAX];
    return dt_buf_append(buf, coded, (size_t)(dt_varint_put(coded, value) - coded));
}

static dt_status_t put_bytes(dt_buf_t *buf, const void *data, uint32_t count)
{
    DT_TRY(put_varint(buf, count));
    return count ? dt_buf_append(buf, data, count) : DT_OK;
}

static dt_status_t put_double(dt_buf_t *buf, double value)
{
    uint8_t coded[8];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++)
        coded[i] = (uint8_t)(bits >> 8 * i);
    return dt_buf_append(buf, coded, sizeof coded);
}

static dt_status_t put_doubles(dt_buf_t *buf, const double *doubles, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        DT_TRY(put_double(buf, doubles[i]));
    return DT_OK;
}

static dt_status_t put_value(dt_buf_t *buf, const dt_value_t *value);

static dt_status_t put_list(dt_buf_t *buf, const dt_value_t *value)
{
    DT_TRY(put_varint(buf, value->count));
    for (uint32_t i = 0; i < value->count; i++) {
        switch (value->tag) {
        case DT_VALUE_INTS:
            DT_TRY(put_varint(buf, dt_zigzag(value->ints[i])));
            break;
        case DT_VALUE_DOUBLES:
            DT_TRY(put_double(buf, value->doubles[i]));
            break;
        case DT_VALUE_BOOLS:
            DT_TRY(dt_buf_append_byte(buf, value->bools[i]));
            break;
        case DT_VALUE_TENSORS:
            DT_TRY(dt_buf_append_byte(buf, value->ids[i] == 0));
            break;
        case DT_VALUE_STRS:
            DT_TRY(put_bytes(buf, value->values[i].text, value->values[i].count));
            break;
        default:
            DT_TRY(put_value(buf, &value->values[i]));
        }
    }
    return DT_OK;
}

static dt_status_t put_value(dt_buf_t *buf, const dt_value_t *value)
{
    if (value->tag == DT_VALUE_INT && value->number >= 0 && value->number < 64)
        return dt_buf_append_byte(buf, (uint8_t)(DT_VALUE_SMALL + value->number));
    DT_TRY(dt_buf_append_byte(buf, value->tag));
    switch (value->tag) {
    case DT_VALUE_INT:
        return put_varint(buf, dt_zigzag(value->number));
    case DT_VALUE_DOUBLE:
        return put_double(buf, value->real);
    case DT_VALUE_COMPLEX:
        return put_doubles(buf, value->doubles, 2);
    case DT_VALUE_STR:
        return put_bytes(buf, value->text, value->count);
    case DT_VALUE_INTS:
    case DT_VALUE_DOUBLES:
    case DT_VALUE_BOOLS:
    case DT_VALUE_TENSORS:
    case DT_VALUE_VALUES:
    case DT_VALUE_STRS:
        return put_list(buf, value);
    case DT_VALUE_DTYPE:
    case DT_VALUE_LAYOUT:
    case DT_VALUE_MEMORY_FORMAT:
        return dt_buf_append_byte(buf, (uint8_t)value->number);
    case DT_VALUE_DEVICE:
        DT_TRY(dt_buf_append_byte(buf, (uint8_t)value->number));
        return dt_buf_append_byte(buf, (uint8_t)(value->index + 1));
    case DT_VALUE_GENERATOR:
        return put_varint(buf, (uint64_t)value->number);
    default:
        return DT_OK;
    }
}

static dt_status_t put_tensor(dt_buf_t *buf, const dt_signature_tensor_t *tensor)
{
    uint8_t coded[DT_RECORD_META_BYTES + DT_RECORD_LAYOUT_BYTES];
    uint8_t *end = dt_record_put_layout(dt_record_put_meta(coded, &tensor->meta), &tensor->layout);
    return dt_buf_append(buf, coded, (size_t)(end - coded));
}

static dt_status_t put_output(dt_buf_t *buf, const dt_signature_tensor_t *out)
{
    DT_TRY(dt_buf_append_byte(buf, out->alias));
    if (out->alias == DT_ALIAS_NONE)
        return DT_OK;
    if (out->alias != DT_ALIAS_FRESH)
        DT_TRY(put_varint(buf, out->input));
    return put_tensor(buf, out);
}

static dt_status_t check_bounds(const dt_signature_t *sig, dt_error_t *err)
{
    if (strlen(sig->name) == 0 || strlen(sig->name) > DT_RECORD_NAME_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "operator name of %zu bytes, 1 to %u are legal", strlen(sig->name),
                       DT_RECORD_NAME_MAX);
    if (sig->arg_count > DT_SIGNATURE_ARGS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: %u arguments, at most %u", sig->name,
                       sig->arg_count, DT_SIGNATURE_ARGS_MAX);
    if (sig->input_count > DT_SIGNATURE_TENSORS_MAX || sig->output_count > DT_RECORD_OUTPUTS_MAX ||
        sig->dynamic_count > DT_RECORD_SCALARS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: too many tensors or numbers", sig->name);
    return DT_OK;
}

dt_status_t dt_signature_encode(const dt_signature_t *sig, dt_buf_t *buf, dt_error_t *err)
{
    DT_TRY(check_bounds(sig, err));
    DT_TRY(put_bytes(buf, sig->name, (uint32_t)strlen(sig->name)));
    DT_TRY(put_varint(buf, sig->arg_count));
    for (uint32_t i = 0; i < sig->arg_count; i++)
        DT_TRY(put_value(buf, &sig->args[i]));
    for (uint32_t i = 0; i < sig->input_count; i++)
        DT_TRY(put_tensor(buf, &sig->inputs[i]));
    DT_TRY(put_varint(buf, sig->output_count));
    for (uint32_t i = 0; i < sig->output_count; i++)
        DT_TRY(put_output(buf, &sig->outputs[i]));
    return put_varint(buf, sig->flags);
}

/* ---- printing ---- */

static dt_status_t print_value(const dt_value_t *value, dt_buf_t *buf)
{
    static const char *const words[] = {
        [DT_VALUE_DEFAULT] = "default", [DT_VALUE_NONE] = "None",       [DT_VALUE_FALSE] = "False",
        [DT_VALUE_TRUE] = "True",       [DT_VALUE_TENSOR] = "T",        [DT_VALUE_TENSORS] = "T[]",
        [DT_VALUE_STORAGE] = "storage", [DT_VALUE_DYNAMIC] = "dynamic",
    };
    if (value->tag < sizeof words / sizeof words[0] && words[value->tag])
        return dt_buf_append_str(buf, words[value->tag]);
    switch (value->tag) {
    case DT_VALUE_DOUBLE:
        return dt_buf_printf(buf, "%.17g", value->real);
    case DT_VALUE_COMPLEX:
        return dt_buf_printf(buf, "%.17g%+.17gj", value->doubles[0], value->doubles[1]);
    case DT_VALUE_STR:
        return dt_buf_printf(buf, "\"%.*s\"", (int)value->count, value->text);
    case DT_VALUE_DTYPE:
        return dt_buf_append_str(buf, dt_dtype_name((unsigned)value->number));
    case DT_VALUE_DEVICE:
        return dt_buf_printf(buf, "device %" PRId64 ":%d", value->number, value->index);
    case DT_VALUE_INTS:
    case DT_VALUE_DOUBLES:
    case DT_VALUE_BOOLS:
    case DT_VALUE_VALUES:
    case DT_VALUE_STRS:
        break;
    default:
        return dt_buf_printf(buf, "%" PRId64, value->number);
    }
    DT_TRY(dt_buf_append_byte(buf, '['));
    for (uint32_t i = 0; i < value->count; i++) {
        DT_TRY(dt_buf_append_str(buf, i ? ", " : ""));
        if (value->tag == DT_VALUE_INTS)
            DT_TRY(dt_buf_printf(buf, "%" PRId64, value->ints[i]));
        else if (value->tag == DT_VALUE_DOUBLES)
            DT_TRY(dt_buf_printf(buf, "%.17g", value->doubles[i]));
        else if (value->tag == DT_VALUE_BOOLS)
            DT_TRY(dt_buf_append_str(buf, value->bools[i] ? "True" : "False"));
        else
            DT_TRY(print_value(&value->values[i], buf));
    }
    return dt_buf_append_byte(buf, ']');
}

static dt_status_t print_tensors(const dt_signature_tensor_t *tensors, uint32_t count,
                                 dt_buf_t *buf)
{
    static const char *const aliases[] = {"", "view of ", "in place of ", "none"};
    char text[512];
    for (uint32_t i = 0; i < count; i++) {
        DT_TRY(dt_buf_printf(buf, "%s%s", i ? ", " : "", aliases[tensors[i].alias]));
        if (tensors[i].alias == DT_ALIAS_NONE)
            continue;
        if (tensors[i].alias != DT_ALIAS_FRESH)
            DT_TRY(dt_buf_printf(buf, "input %u: ", tensors[i].input));
        dt_meta_print(&tensors[i].meta, text, sizeof text);
        DT_TRY(dt_buf_append_str(buf, text));
        if (tensors[i].layout.mesh)
            DT_TRY(dt_buf_printf(buf, " on mesh %u", tensors[i].layout.mesh));
    }
    return DT_OK;
}

dt_status_t dt_signature_print(const dt_signature_t *sig, dt_buf_t *buf)
{
    DT_TRY(dt_buf_printf(buf, "%s(", sig->name));
    for (uint32_t i = 0; i < sig->arg_count; i++) {
        DT_TRY(dt_buf_append_str(buf, i ? ", " : ""));
        DT_TRY(print_value(&sig->args[i], buf));
    }
    DT_TRY(dt_buf_append_str(buf, ") ["));
    DT_TRY(print_tensors(sig->inputs, sig->input_count, buf));
    DT_TRY(dt_buf_append_str(buf, "] -> ["));
    DT_TRY(print_tensors(sig->outputs, sig->output_count, buf));
    return dt_buf_append_byte(buf, ']');
}
