#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/state.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/validate_internal.h"
#include "wire/wire.h"

static dt_error_t error;
static uint8_t id[16] = {1};
static char name[] = "gpu001";

static Dtorch__V1__WorkerHello good_hello(void)
{
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    hello.node_id = (ProtobufCBinaryData){sizeof id, id};
    hello.node_name = name;
    hello.incarnation = 1;
    return hello;
}

static bool is_refused(const ProtobufCMessage *message, const char *words)
{
    dt_status_t status = dt_wire_validate(message, &error);
    if (status == DT_ERR_INVALID && strcmp(error.source, "wire") == 0 && strstr(error.text, words))
        return true;
    (void)fprintf(stderr, "got %d: %s\n", (int)status, error.text);
    return false;
}

TestSuite(wire, .timeout = 60);

Test(wire, has_a_row_for_each_field_of_each_table_in_order)
{
    size_t count;
    const dt_validate_table_t *tables = dt_validate_tables_for_test(&count);
    for (size_t i = 0; i < count; i++) {
        const ProtobufCMessageDescriptor *type = tables[i].type;
        cr_assert_eq(tables[i].row_count, type->n_fields, "%s", type->short_name);
        for (unsigned k = 0; k < type->n_fields; k++)
            cr_assert_str_eq(tables[i].rows[k].field, type->fields[k].name, "%s", type->short_name);
    }
}

/* Walk all messages that can be reached from an envelope, with a cycle's end by depth. */
static void each_has_a_table(const ProtobufCMessageDescriptor *type, int depth)
{
    cr_assert(dt_validate_table(type) != NULL, "%s has no table", type->short_name);
    for (unsigned i = 0; depth < 6 && i < type->n_fields; i++)
        if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            each_has_a_table(type->fields[i].descriptor, depth + 1);
}

Test(wire, has_a_table_for_each_message_that_comes_from_outside)
{
    each_has_a_table(&dtorch__v1__worker_up__descriptor, 0);
    each_has_a_table(&dtorch__v1__worker_down__descriptor, 0);
    each_has_a_table(&dtorch__v1__join_request__descriptor, 0);
    each_has_a_table(&dtorch__v1__join_reply__descriptor, 0);
    each_has_a_table(&dtorch__v1__state_record__descriptor, 0);
    each_has_a_table(&dtorch__v1__set_node_request__descriptor, 0);
    each_has_a_table(&dtorch__v1__list_nodes_request__descriptor, 0);
    each_has_a_table(&dtorch__v1__list_events_request__descriptor, 0);
    each_has_a_table(&dtorch__v1__create_token_request__descriptor, 0);
    each_has_a_table(&dtorch__v1__revoke_token_request__descriptor, 0);
}

Test(wire, packs_and_unpacks_an_envelope_in_an_arena)
{
    dt_arena_t arena;
    uint8_t *bytes;
    size_t size;
    Dtorch__V1__WorkerHello hello = good_hello();
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT, *back;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(dt_wire_pack(&up.base, &arena, &bytes, &size), DT_OK);
    cr_assert_eq(DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, bytes, size, &back, &error), DT_OK);
    cr_assert_str_eq(back->hello->node_name, "gpu001");
    dt_arena_fini(&arena);
}

Test(wire, stops_at_the_arenas_cap)
{
    dt_arena_t arena;
    uint8_t bytes[2 * 20000];
    Dtorch__V1__WorkerUp *back;
    for (size_t i = 0; i < sizeof bytes; i += 2) { /* 20,000 empty fields 2: merged inventories */
        bytes[i] = 0x12;
        bytes[i + 1] = 0;
    }
    dt_arena_init(&arena, 64 * 1024);
    cr_assert_eq(DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, bytes, sizeof bytes, &back, &error),
                 DT_ERR_INVALID);
    cr_assert_leq(arena.used_bytes, arena.cap_bytes);
    dt_arena_fini(&arena);
}

Test(wire, refuses_a_message_over_its_size)
{
    dt_arena_t arena;
    Dtorch__V1__WorkerUp *back;
    uint8_t *bytes = calloc(1, DT_WIRE_MESSAGE_MAX + 1);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, bytes, DT_WIRE_MESSAGE_MAX + 1,
                                &back, &error),
                 DT_ERR_LIMIT);
    cr_assert(back == NULL);
    dt_arena_fini(&arena);
    free(bytes);
}

Test(wire, names_field_value_and_bound)
{
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    beat.late_ns = -5;
    cr_assert(is_refused(&beat.base, "Beat.late_ns: -5, bound 0.."));
    cr_assert_eq(error.source_code, DT_WIRE_BOUND);
}

Test(wire, refuses_a_hello_with_a_field_out_of_bounds)
{
    char bad_name[] = "GPU_1", long_build[66], bell[] = "r\a";
    Dtorch__V1__WorkerHello hello = good_hello();
    hello.node_id.len = 15;
    cr_assert(is_refused(&hello.base, "WorkerHello.node_id: 15 bytes, bound 16..16"));
    hello = good_hello();
    hello.node_name = bad_name;
    cr_assert(is_refused(&hello.base, "WorkerHello.node_name: \"GPU_1\""));
    hello = good_hello();
    hello.incarnation = 0;
    cr_assert(is_refused(&hello.base, "WorkerHello.incarnation: 0, bound 1.."));
    hello = good_hello();
    memset(long_build, 'x', sizeof long_build);
    long_build[65] = '\0';
    hello.build = long_build;
    cr_assert(is_refused(&hello.base, "WorkerHello.build: 65 bytes, bound 0..64"));
    hello = good_hello();
    hello.rack = bell;
    cr_assert(is_refused(&hello.base, "WorkerHello.rack: 2 bytes that are not UTF-8"));
    hello = good_hello();
    hello.cluster_id = (ProtobufCBinaryData){3, id};
    cr_assert(is_refused(&hello.base, "WorkerHello.cluster_id: 3 bytes, bound 16..16 or none"));
}

Test(wire, refuses_an_envelope_that_says_nothing)
{
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    cr_assert(is_refused(&up.base, "WorkerUp.kind: missing"));
}

Test(wire, lets_a_kind_of_a_newer_minor_version_pass)
{
    dt_arena_t arena;
    const uint8_t bytes[] = {0xfa, 0x01, 0x00}; /* field 31, empty */
    Dtorch__V1__WorkerUp *up;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(DT_WIRE_UNPACK(dtorch__v1__worker_up, &arena, bytes, sizeof bytes, &up, &error),
                 DT_OK);
    cr_assert_eq(up->kind_case, 0);
    dt_arena_fini(&arena);
}

Test(wire, refuses_device_indexes_that_do_not_rise_and_uuids_that_repeat)
{
    char uuid[] = "GPU-1";
    Dtorch__V1__Device a = DTORCH__V1__DEVICE__INIT, b = DTORCH__V1__DEVICE__INIT;
    Dtorch__V1__Device *devices[] = {&a, &b};
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    inventory.devices = devices;
    inventory.n_devices = 2;
    a.index = b.index = 3;
    cr_assert(is_refused(&inventory.base, "Inventory.devices[1].index: 3, must rise"));
    b.index = 5;
    cr_assert_eq(dt_wire_validate(&inventory.base, &error), DT_OK);
    a.uuid = b.uuid = uuid;
    cr_assert(is_refused(&inventory.base, "devices 0 and 1 both say GPU-1"));
    b.index = 64;
    cr_assert(is_refused(&inventory.base, "Device.index: 64, bound 0..63"));
}

Test(wire, refuses_too_many_entries_and_unknown_enumerators)
{
    Dtorch__V1__Engine engine = DTORCH__V1__ENGINE__INIT, *engines[257];
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    for (int i = 0; i < 257; i++)
        engines[i] = &engine;
    inventory.engines = engines;
    inventory.n_engines = 257;
    cr_assert(is_refused(&inventory.base, "Inventory.engines: 257 entries, bound 256"));
    engine.state = (Dtorch__V1__Engine__State)9;
    inventory.n_engines = 1;
    cr_assert(is_refused(&inventory.base, "Engine.state: 9 is not one of the known values"));
}

Test(wire, refuses_rules_that_make_no_sense)
{
    Dtorch__V1__WorkerWelcome welcome = DTORCH__V1__WORKER_WELCOME__INIT;
    welcome.cluster_id = (ProtobufCBinaryData){sizeof id, id};
    welcome.epoch = 1;
    welcome.heartbeat_ms = 49;
    cr_assert(is_refused(&welcome.base, "WorkerWelcome.heartbeat_ms: 49, bound 50..60000"));
    welcome.heartbeat_ms = 50;
    welcome.suspect_beats = 5;
    welcome.dead_beats = 5;
    cr_assert(is_refused(&welcome.base, "dead_beats: 5, must be above suspect_beats 5"));
}

Test(wire, checks_what_people_ask_for)
{
    char *names[] = {name}, key[] = "Zone", value[] = "a b", reason[] = "x";
    Dtorch__V1__Label label = DTORCH__V1__LABEL__INIT, *labels[] = {&label};
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    cr_assert(is_refused(&request.base, "SetNodeRequest.names: missing"));
    request.names = names;
    request.n_names = 1;
    cr_assert(is_refused(&request.base, "SetNodeRequest.change: missing"));
    request.change = DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN;
    cr_assert(is_refused(&request.base, "SetNodeRequest.reason: missing"));
    request.reason = reason;
    cr_assert_eq(dt_wire_validate(&request.base, &error), DT_OK);
    request.change = DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL;
    label.key = key;
    request.set_labels = labels;
    request.n_set_labels = 1;
    cr_assert(is_refused(&request.base, "Label.key: \"Zone\""));
    key[0] = 'z';
    label.value = value;
    cr_assert(is_refused(&request.base, "Label.value: \"a b\""));
    Dtorch__V1__CreateTokenRequest token = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    token.lifetime_ms = 59999;
    cr_assert(is_refused(&token.base, "CreateTokenRequest.lifetime_ms: 59999"));
}

Test(wire, takes_pem_with_newlines_and_no_other_control_characters)
{
    char token[] = "dtj_a_b", pem[] = "-----BEGIN\r\nabc\n-----END\n", bad[] = "a\n\033[2J";
    Dtorch__V1__JoinRequest join = DTORCH__V1__JOIN_REQUEST__INIT;
    join.token = token;
    join.node_name = name;
    join.node_id = (ProtobufCBinaryData){sizeof id, id};
    join.csr_pem = pem;
    cr_assert_eq(dt_wire_validate(&join.base, &error), DT_OK);
    join.csr_pem = bad;
    cr_assert(is_refused(&join.base, "JoinRequest.csr_pem: not clean text"));
}

Test(wire, names_both_versions_when_it_refuses_one)
{
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    version.major = 2;
    version.minor = 7;
    cr_assert_eq(dt_wire_check_version(&version, "worker", "9.9", &error), DT_ERR_INVALID);
    cr_assert(strstr(error.text, "protocol 2.7 (build 9.9)") && strstr(error.text, "1.0"));
    cr_assert_eq(dt_wire_check_version(NULL, "worker", "", &error), DT_ERR_INVALID);
    version.major = 1;
    cr_assert_eq(dt_wire_check_version(&version, "worker", "", &error), DT_OK);
}

Test(wire, cuts_text_at_a_characters_boundary_and_replaces_what_is_not_clean)
{
    char out[8];
    dt_wire_text_copy(out, sizeof out, "aäöü€");
    cr_assert_str_eq(out, "aäöü");
    dt_wire_text_copy(out, sizeof out, "a\nb\xff\x80z");
    cr_assert_str_eq(out, "a?b??z");
    dt_wire_text_copy(out, 1, "abc");
    cr_assert_str_eq(out, "");
}
