#include "json.h"

#include <inttypes.h>
#include <string.h>

#include "text.h"
#include "value.h"

/* Which fields to write, and where in the message we are. */
struct writer {
    dt_arena_t *pool;
    FILE *file;
    const char *const *paths;
    size_t path_count;
};

void dt_ctl_json_text(FILE *file, const char *text)
{
    size_t len = strlen(text);
    uint32_t code;
    (void)fputc('"', file);
    for (size_t at = 0; at < len;) {
        size_t step = dt_ctl_utf8_next(text + at, len - at, &code);
        if (code == '"' || code == '\\')
            (void)fprintf(file, "\\%c", (char)code);
        else if (code == UINT32_MAX)
            (void)fputs("\\ufffd", file);
        else if (dt_ctl_is_obeyed(code))
            (void)fprintf(file, "\\u%04" PRIx32, code);
        else
            (void)fwrite(text + at, 1, step, file);
        at += step;
    }
    (void)fputc('"', file);
}

static bool is_under(const char *path, const char *root)
{
    size_t len = strlen(root);
    return strncmp(path, root, len) == 0 && (path[len] == '\0' || path[len] == '.');
}

static bool is_wanted(const struct writer *w, const char *path)
{
    for (size_t i = 0; i < w->path_count; i++)
        if (is_under(path, w->paths[i]) || is_under(w->paths[i], path))
            return true;
    return w->path_count == 0;
}

static void write_message(const struct writer *w, const ProtobufCMessage *message,
                          const char *prefix);

static void write_value(const struct writer *w, const dt_ctl_value_t *value, const char *path)
{
    if (value->kind == DT_CTL_MESSAGE)
        write_message(w, value->message, dt_ctl_print(w->pool, "%s.", path));
    else if (value->kind == DT_CTL_TEXT || value->kind == DT_CTL_ENUM)
        dt_ctl_json_text(w->file, value->text);
    else if (value->kind == DT_CTL_ABSENT)
        (void)fputs("\"\"", w->file); /* an empty element of a list */
    else
        (void)fputs(dt_ctl_raw(w->pool, value), w->file);
}

static void write_field(const struct writer *w, const ProtobufCMessage *message,
                        const ProtobufCFieldDescriptor *field, const char *path)
{
    dt_ctl_value_t value = dt_ctl_field(w->pool, message, field, 0);
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        write_value(w, &value, path);
        return;
    }
    (void)fputc('[', w->file);
    for (size_t i = 0; i < dt_ctl_field_count(message, field); i++) {
        value = dt_ctl_field(w->pool, message, field, i);
        (void)fputs(i > 0 ? "," : "", w->file);
        write_value(w, &value, path);
    }
    (void)fputc(']', w->file);
}

static void write_message(const struct writer *w, const ProtobufCMessage *message,
                          const char *prefix)
{
    const char *separator = "";
    (void)fputc('{', w->file);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *path = dt_ctl_print(w->pool, "%s%s", prefix, field->name);
        bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
        if (!is_wanted(w, path) ||
            (!is_list && dt_ctl_field(w->pool, message, field, 0).kind == DT_CTL_ABSENT))
            continue;
        (void)fprintf(w->file, "%s\"%s\":", separator, field->name);
        write_field(w, message, field, path);
        separator = ",";
    }
    (void)fputc('}', w->file);
}

void dt_ctl_json_message(dt_arena_t *pool, FILE *file, const ProtobufCMessage *message,
                         const char *const *paths, size_t path_count)
{
    write_message(&(struct writer){pool, file, paths, path_count}, message, "");
}

void dt_ctl_json_field(dt_arena_t *pool, FILE *file, const ProtobufCMessage *message,
                       const ProtobufCFieldDescriptor *field)
{
    write_field(&(struct writer){pool, file, NULL, 0}, message, field, field->name);
}
