/* Envelopes: any bytes are unpacked within the arena's cap or refused with a text; what passes the
 * bounds is packed to a message that passes them again.
 * Input: a byte that chooses the message, then its bytes. */
#include <stdlib.h>
#include <string.h>

#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/session.pb-c.h"
#include "dtorch/v1/state.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int is_true)
{
    if (!is_true)
        abort();
}

static void try_again(const ProtobufCMessage *message)
{
    dt_arena_t arena;
    dt_error_t error = {0};
    ProtobufCMessage *back;
    uint8_t *bytes;
    size_t size;
    must(dt_wire_pack_new(message, &bytes, &size) == DT_OK);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    /* protobuf-c keeps unknown fields with numbers that it then refuses to read: not our bounds. */
    must(dt_wire_unpack(message->descriptor, &arena, bytes, size, &back, &error) == DT_OK ||
         error.source_code == DT_WIRE_SYNTAX || error.source_code == DT_WIRE_SIZE);
    dt_arena_fini(&arena);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &dtorch__v1__worker_up__descriptor,
        &dtorch__v1__worker_down__descriptor,
        &dtorch__v1__join_request__descriptor,
        &dtorch__v1__session_up__descriptor,
        &dtorch__v1__set_node_request__descriptor,
        &dtorch__v1__list_events_request__descriptor,
        &dtorch__v1__create_token_request__descriptor,
        &dtorch__v1__state_record__descriptor,
    };
    dt_arena_t arena;
    dt_error_t error = {0};
    ProtobufCMessage *message;
    if (size < 1)
        return 0;
    const ProtobufCMessageDescriptor *type = types[data[0] % (sizeof types / sizeof types[0])];
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_status_t status = dt_wire_unpack(type, &arena, data + 1, size - 1, &message, &error);
    must(arena.used_bytes <= arena.cap_bytes);
    if (status == DT_OK)
        try_again(message);
    else
        must(error.text[0] && strcmp(error.source, "wire") == 0 &&
             dt_wire_text_is_clean(error.text, strlen(error.text)));
    dt_arena_fini(&arena);
    return 0;
}
