/* Pack and unpack envelopes; versions; text that people see. The bounds are in validate.c. */
#include "wire/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"

dt_status_t dt_wire_unpack(const ProtobufCMessageDescriptor *type, dt_arena_t *arena,
                           const void *bytes, size_t size, ProtobufCMessage **ret_message,
                           dt_error_t *err)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    if (size > DT_WIRE_MESSAGE_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "wire", DT_WIRE_SIZE, "%s: %zu bytes, bound %u",
                       type->short_name, size, DT_WIRE_MESSAGE_MAX);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    if (!message)
        return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_SYNTAX,
                       "%s: %zu bytes that are no such message, or that take more than %zu bytes",
                       type->short_name, size, arena->cap_bytes);
    DT_TRY(dt_wire_validate(message, err));
    *ret_message = message;
    return DT_OK;
}

dt_status_t dt_wire_pack(const ProtobufCMessage *message, dt_arena_t *arena, uint8_t **ret_bytes,
                         size_t *ret_size)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = dt_arena_alloc(arena, size);
    if (!bytes)
        return DT_ERR_NOMEM;
    *ret_size = protobuf_c_message_pack(message, bytes);
    *ret_bytes = bytes;
    return DT_OK;
}

dt_status_t dt_wire_pack_new(const ProtobufCMessage *message, uint8_t **ret_bytes, size_t *ret_size)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes)
        return DT_ERR_NOMEM;
    *ret_size = protobuf_c_message_pack(message, bytes);
    *ret_bytes = bytes;
    return DT_OK;
}

dt_status_t dt_wire_check_version(const Dtorch__V1__ProtocolVersion *version, const char *who,
                                  const char *build, dt_error_t *err)
{
    uint32_t major = version ? version->major : 0;
    uint32_t minor = version ? version->minor : 0;
    if (major == DT_WIRE_VERSION_MAJOR)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                   "the %s speaks protocol %" PRIu32 ".%" PRIu32 " (build %s), this side "
                   "speaks " DT_WIRE_VERSION_TEXT "; the major versions must be equal",
                   who, major, minor, build && *build ? build : "unknown");
}

/* C0, DEL, and C1 (U+0080..U+009F, which is C2 80..C2 9F). */
static bool is_control(const char *text, size_t at, size_t len)
{
    unsigned char byte = (unsigned char)text[at];
    if (byte < 0x20 || byte == 0x7f)
        return true;
    return byte == 0xc2 && at + 1 < len && (unsigned char)text[at + 1] < 0xa0;
}

bool dt_wire_text_is_clean(const char *text, size_t len)
{
    if (!dt_str_is_utf8(text, len))
        return false;
    for (size_t i = 0; i < len; i++)
        if (is_control(text, i, len))
            return false;
    return true;
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool dt_wire_node_name_is_valid(const char *name)
{
    size_t len = strlen(name);
    if (len < 1 || len > 63 || !is_name_byte(name[0]) || !is_name_byte(name[len - 1]))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_name_byte(name[i]) && name[i] != '-')
            return false;
    return true;
}

/* Length of the clean character at `text`, 0 if there is none. */
static size_t clean_character(const char *text, size_t len)
{
    for (size_t size = 1; size <= 4 && size <= len; size++)
        if (dt_wire_text_is_clean(text, size))
            return size;
    return 0;
}

void dt_wire_text_copy(char *out, size_t out_size, const char *text)
{
    size_t at = 0, len = strlen(text);
    for (size_t i = 0; i < len;) {
        size_t size = clean_character(text + i, len - i);
        if (at + (size ? size : 1) >= out_size)
            break;
        if (size)
            memcpy(out + at, text + i, size);
        else
            out[at] = '?';
        at += size ? size : 1;
        i += size ? size : 1;
    }
    out[at] = '\0';
}
