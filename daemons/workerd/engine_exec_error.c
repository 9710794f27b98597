/* What a failure looks like to people and programs: OperatorError, packed once where it happened.
 * A program may fail as often as it calls, so this is written by hand and prints nothing twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

#define DT_EXEC_META_TEXT 128
#define DT_EXEC_KIND_MAX  31 /* of the .proto */

const char *dt_exec_error_kind(const dt_error_t *err)
{
    static const char *const kinds[] = {
        [DT_BACKEND_RUNTIME_ERROR] = "RuntimeError",
        [DT_BACKEND_INDEX_ERROR] = "IndexError",
        [DT_BACKEND_VALUE_ERROR] = "ValueError",
        [DT_BACKEND_TYPE_ERROR] = "TypeError",
        [DT_BACKEND_NOT_IMPLEMENTED] = "NotImplementedError",
        [DT_BACKEND_OUT_OF_MEMORY] = "OutOfMemoryError",
        [DT_BACKEND_LINALG_ERROR] = "LinAlgError",
    };
    if (err->code == DT_ERR_INVALID && err->source_code > 0 &&
        err->source_code < (int64_t)(sizeof kinds / sizeof kinds[0]))
        return kinds[err->source_code];
    if (err->code == DT_ERR_LIMIT || err->code == DT_ERR_NOMEM)
        return "OutOfMemoryError";
    if (err->code == DT_ERR_NOT_FOUND)
        return "NotImplementedError";
    return "RuntimeError";
}

/* Backends write lines; a message has none. What is not UTF-8 becomes '?'. */
void dt_exec_text_clean(char *out, size_t size, const char *text)
{
    size_t length = strnlen(text, size * 2);
    size_t at = 0;
    for (size_t i = 0; i < length && at + 4 < size;) {
        unsigned char c = (unsigned char)text[i];
        size_t bytes = c < 0x80 ? 1 : dt_str_utf8_length(text + i, length - i);
        if (bytes == 1) {
            out[at++] = text[i];
            if (c < ' ' || c == 0x7f)
                out[at - 1] = ' ';
        } else if (bytes > 1) {
            memcpy(out + at, text + i, bytes);
            at += bytes;
        } else {
            out[at++] = '?';
        }
        i += bytes ? bytes : 1;
    }
    while (at > 0 && out[at - 1] == ' ')
        at--;
    out[at] = '\0';
}

/* The metadata of input `i` as it is now: of the handle that the plan's place holds. */
static const dt_meta_t *input_meta(const dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                   uint32_t i, dt_backend_tensor_t *info)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_error_t err;
    void *handle = plan->input_at && plan->input_at[i] ? *plan->input_at[i] : NULL;
    if (handle && options->backend->tensor_info(options->device, handle, info, &err) == DT_OK)
        return &info->meta;
    return &plan->signature->inputs[i].meta;
}

/* Write "float32 (4, 3), int64 (2,)" of a plan's inputs. Of a program that fails on and on they are
 * mostly those of the failure before: printing costs more than comparing. */
static const char *inputs_print(const dt_exec_session_t *session, const dt_exec_plan_t *plan)
{
    dt_exec_inputs_t *known = &session->exec->inputs;
    uint32_t count = plan->signature->input_count;
    bool is_same = known->count == count && count <= DT_EXEC_INPUTS_KNOWN;
    size_t at = 0;
    dt_backend_tensor_t info;
    for (uint32_t i = 0; is_same && i < count; i++)
        is_same = dt_meta_equal(&known->metas[i], input_meta(session, plan, i, &info));
    if (is_same)
        return known->text;
    known->count = count;
    known->text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        char text[DT_EXEC_META_TEXT];
        const dt_meta_t *meta = input_meta(session, plan, i, &info);
        if (i < DT_EXEC_INPUTS_KNOWN)
            known->metas[i] = *meta;
        dt_meta_print(meta, text, sizeof text);
        if (at + strlen(text) + 8 > sizeof known->text) {
            (void)snprintf(known->text + at, sizeof known->text - at, ", ...");
            break;
        }
        at += (size_t)snprintf(known->text + at, sizeof known->text - at, "%s%s", i ? ", " : "",
                               text);
    }
    return known->text;
}

static uint8_t *put_text(uint8_t *at, unsigned field, const char *text, size_t max)
{
    return dt_pack_bytes(at, field, text, strnlen(text, max));
}

dt_exec_cause_t *dt_exec_cause_new(dt_exec_session_t *session, uint64_t sequence,
                                   const dt_exec_plan_t *plan, const char *what, uint32_t vdev,
                                   const char *kind, const dt_error_t *err)
{
    char text[sizeof err->text];
    char name[DT_RECORD_NAME_MAX + 1];
    const dt_exec_origin_t *origin = session->origin;
    uint32_t depth =
        origin->range_depth < DT_EXEC_RANGES_MAX ? origin->range_depth : DT_EXEC_RANGES_MAX;
    dt_exec_text_clean(text, sizeof text, err->text);
    dt_exec_text_clean(name, sizeof name, plan ? plan->signature->name : what);
    uint8_t *body = session->exec->cause;
    uint8_t *at = dt_pack_number(body, DT_PACK_ERROR_CODE, (uint64_t)(int64_t)err->code);
    at = put_text(at, DT_PACK_ERROR_KIND, kind, DT_EXEC_KIND_MAX);
    at = put_text(at, DT_PACK_ERROR_TEXT, text, sizeof text);
    at = dt_pack_number(at, DT_PACK_ERROR_SEQUENCE, sequence);
    at = put_text(at, DT_PACK_ERROR_OPERATOR, name, sizeof name);
    if (plan)
        at = put_text(at, DT_PACK_ERROR_INPUTS, inputs_print(session, plan), DT_EXEC_INPUTS_TEXT);
    if (origin->source)
        at = put_text(at, DT_PACK_ERROR_SOURCE, origin->source, DT_RECORD_TEXT_MAX);
    at = put_text(at, DT_PACK_ERROR_NODE, session->node, sizeof session->node);
    at = dt_pack_number(at, DT_PACK_ERROR_DEVICE, session->device);
    at = dt_pack_number(at, DT_PACK_ERROR_VDEV, vdev);
    at = dt_pack_number(at, DT_PACK_ERROR_SOURCE_CODE, (uint64_t)err->source_code);
    for (uint32_t i = 0; i < depth; i++) {
        size_t size = strnlen(origin->ranges[i], sizeof origin->ranges[i]);
        at = dt_pack_head(at, DT_PACK_ERROR_RANGE, size); /* an empty one counts too */
        memcpy(at, origin->ranges[i], size);
        at += size;
    }
    size_t size = (size_t)(at - body);
    dt_exec_cause_t *cause = malloc(sizeof *cause + size);
    if (!cause)
        return NULL;
    *cause = (dt_exec_cause_t){.refs = 1, .size = (uint32_t)size, .sequence = sequence};
    memcpy(cause->bytes, body, size);
    return cause;
}
