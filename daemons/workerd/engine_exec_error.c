/* What a failure looks like to people and programs: OperatorError, packed once where it happened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"

#define DT_EXEC_INPUTS_TEXT 1024 /* of the .proto, without the NUL */
#define DT_EXEC_META_TEXT   128

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
        size_t bytes = dt_str_utf8_length(text + i, length - i);
        if (bytes == 1) {
            unsigned char c = (unsigned char)text[i];
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

/* Write "float32 (4, 3), int64 (2,)" of the handles that the plan's places hold now. */
static void inputs_print(dt_exec_session_t *session, const dt_exec_plan_t *plan, char *text,
                         size_t size)
{
    const dt_exec_options_t *options = &session->exec->options;
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < plan->signature->input_count; i++) {
        char meta[DT_EXEC_META_TEXT];
        dt_backend_tensor_t info;
        dt_error_t err = {0};
        void *handle = plan->input_at && plan->input_at[i] ? *plan->input_at[i] : NULL;
        if (handle && options->backend->tensor_info(options->device, handle, &info, &err) == DT_OK)
            dt_meta_print(&info.meta, meta, sizeof meta);
        else
            dt_meta_print(&plan->signature->inputs[i].meta, meta, sizeof meta);
        if (at + strlen(meta) + 8 > size) {
            (void)snprintf(text + at, size - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", meta);
    }
}

static dt_exec_cause_t *cause_pack(const Dtorch__V1__OperatorError *error)
{
    size_t size = dtorch__v1__operator_error__get_packed_size(error);
    dt_exec_cause_t *cause = malloc(sizeof *cause + size);
    if (!cause)
        return NULL;
    *cause = (dt_exec_cause_t){.refs = 1, .size = (uint32_t)size, .sequence = error->sequence};
    (void)dtorch__v1__operator_error__pack(error, cause->bytes);
    return cause;
}

dt_exec_cause_t *dt_exec_cause_new(dt_exec_session_t *session, uint64_t sequence,
                                   const dt_exec_plan_t *plan, const char *what, uint32_t vdev,
                                   const char *kind, const dt_error_t *err)
{
    Dtorch__V1__OperatorError error;
    char text[sizeof err->text];
    char inputs[DT_EXEC_INPUTS_TEXT + 1];
    char name[DT_RECORD_NAME_MAX + 1];
    char word[32];
    char empty[] = "";
    char source[DT_RECORD_TEXT_MAX + 1];
    char *ranges[DT_EXEC_RANGES_MAX];
    uint32_t depth =
        session->range_depth < DT_EXEC_RANGES_MAX ? session->range_depth : DT_EXEC_RANGES_MAX;
    inputs[0] = source[0] = '\0'; /* the rest is not read, and zeroing it costs */
    dtorch__v1__operator_error__init(&error);
    dt_exec_text_clean(text, sizeof text, err->text);
    dt_exec_text_clean(name, sizeof name, plan ? plan->signature->name : what);
    (void)dt_str_copy(word, sizeof word, kind);
    if (session->source)
        (void)dt_str_copy(source, sizeof source, session->source);
    if (plan)
        inputs_print(session, plan, inputs, sizeof inputs);
    for (uint32_t i = 0; i < depth; i++)
        ranges[i] = session->ranges[i];
    error.code = err->code;
    error.kind = word;
    error.text = text;
    error.sequence = sequence;
    error.operator_name = name;
    error.inputs = inputs;
    error.source = source;
    error.node = session->node[0] ? session->node : empty;
    error.device = session->device;
    error.vdev = vdev;
    error.source_code = err->source_code;
    error.range = ranges;
    error.n_range = depth;
    return cause_pack(&error);
}
