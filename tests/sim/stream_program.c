/* A program, as a model that knows what each fetch must give. Without meshes its records are those
 * of a session of single devices; with them tensors lie in places (a device, or a layout on a
 * mesh), move between them, are taken apart and put together, and now and then the program claims
 * what is not so. What a tensor is on each device is a number of its own, so that a part that was
 * made in another order, or taken from another device, gives another value in the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/layout.h"
#include "stream.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define SIZE 4 /* elements of a tensor in the world with meshes */

/* ---- places ---- */

static stream_place_t *place_new(stream_t *s, uint32_t mesh, unsigned ndim)
{
    stream_place_t *place = &s->places[s->place_count++];
    if (s->place_count > STREAM_PLACES)
        abort();
    *place = (stream_place_t){.mesh = mesh, .count = 1};
    place->layout.mesh = mesh;
    place->layout.ndim = (uint8_t)ndim;
    return place;
}

static bool has_kind(const stream_place_t *place, unsigned kind)
{
    for (int i = 0; i < place->layout.ndim; i++)
        if (place->layout.placements[i].kind == kind)
            return true;
    return false;
}

/* Some vdevs in some order. */
static uint32_t choose_vdevs(stream_t *s, uint32_t *vdevs)
{
    for (uint32_t i = 0; i < s->vdev_count; i++) {
        uint32_t at = (uint32_t)stream_random(s, i + 1);
        vdevs[i] = vdevs[at];
        vdevs[at] = i;
    }
    return 2 + (uint32_t)stream_random(s, s->vdev_count - 1);
}

/* A mesh in its layouts: Replicate, Shard(0), Partial(sum); on two dimensions one of each kind for
 * each of them. */
static void mesh_make(stream_t *s, uint32_t mesh)
{
    static const uint8_t wide[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 1}};
    uint32_t vdevs[STREAM_VDEVS], count = choose_vdevs(s, vdevs);
    bool is_square = count == 4 && stream_chance(s, 50);
    for (uint32_t k = 0; k < (is_square ? 4u : 3u); k++) {
        stream_place_t *place = place_new(s, mesh, is_square ? 2 : 1);
        place->count = count;
        memcpy(place->vdevs, vdevs, sizeof vdevs);
        for (int i = 0; i < place->layout.ndim; i++) {
            unsigned kind = is_square ? wide[k][i] : k;
            place->layout.placements[i] = kind == 0   ? dt_placement_replicate()
                                          : kind == 1 ? dt_placement_shard(0)
                                                      : dt_placement_partial(DT_REDUCTION_SUM);
        }
    }
}

void stream_places_make(stream_t *s)
{
    for (uint32_t v = 0; v < s->vdev_count; v++)
        place_new(s, v, 0)->vdevs[0] = v;
    for (uint32_t k = 0; s->has_meshes && k < s->mesh_count; k++)
        mesh_make(s, s->vdev_count + k);
}

/* Sizes of a mesh by the layouts that it has. */
static dt_record_mesh_t mesh_record(const stream_t *s, uint32_t mesh, uint64_t *vdevs)
{
    dt_record_mesh_t record = {.id = mesh, .names = {"", ""}};
    for (uint32_t p = 0; p < s->place_count; p++) {
        const stream_place_t *place = &s->places[p];
        if (place->mesh != mesh)
            continue;
        record.ndim = place->layout.ndim > 0 ? place->layout.ndim : 1;
        record.vdev_count = place->count;
        record.sizes[0] = place->layout.ndim == 2 ? 2 : place->count;
        record.sizes[1] = 2;
        for (uint32_t i = 0; i < place->count; i++)
            vdevs[i] = place->vdevs[i];
    }
    return record;
}

static void put_mesh(stream_t *s, dt_frame_writer_t *w, uint32_t mesh)
{
    uint64_t vdevs[STREAM_VDEVS];
    s->record.kind = DT_RECORD_DEF_MESH;
    s->record.mesh = mesh_record(s, mesh, vdevs);
    s->record.mesh.vdevs = vdevs;
    if (!dt_record_put(w, &s->record))
        abort();
}

/* ---- signatures ---- */

static void set_sizes(dt_signature_tensor_t *tensor, int64_t size)
{
    if (dt_meta_set(&tensor->meta, DT_DTYPE_I64, 1, &size, NULL, 0, NULL) != DT_OK)
        abort();
}

/* A tensor in a place; in the world without meshes of one element. */
static dt_signature_tensor_t tensor_in(const stream_t *s, uint32_t place)
{
    dt_signature_tensor_t tensor = {.layout = s->places[place].layout};
    set_sizes(&tensor, s->has_meshes ? SIZE : 1);
    return tensor;
}

/* Part `index` of what lies in a place, on its own device. */
static dt_signature_tensor_t part_of(const stream_t *s, uint32_t place, uint32_t index)
{
    const stream_place_t *whole = &s->places[place];
    uint64_t vdevs[STREAM_VDEVS];
    dt_record_mesh_t record = mesh_record(s, whole->mesh, vdevs);
    dt_shard_mesh_t mesh;
    int64_t size = SIZE;
    dt_signature_tensor_t part = {.layout = s->places[whole->vdevs[index]].layout};
    if (dt_shard_mesh_init(&mesh, record.ndim, record.sizes, vdevs, NULL) != DT_OK)
        abort();
    (void)dt_shard_sizes(&whole->layout, &mesh, 1, &(int64_t){SIZE}, index, &size);
    set_sizes(&part, size);
    return part;
}

/* What no operator gives for inputs in this place. */
static dt_layout_t false_layout(const stream_place_t *place)
{
    dt_layout_t layout = place->layout;
    bool is_whole = dt_layout_is_replicate(&layout), is_partial = has_kind(place, 2);
    for (int i = 0; i < layout.ndim; i++) {
        if (is_partial)
            layout.placements[i] = dt_placement_replicate();
        else if (is_whole)
            layout.placements[i] = dt_placement_shard(0);
        else if (layout.placements[i].kind == DT_PLACEMENT_SHARD)
            layout.placements[i] = dt_placement_partial(DT_REDUCTION_SUM);
    }
    return layout;
}

/* The signature of a number, into `sig` whose arrays have room. */
static void describe(const stream_t *s, uint32_t number, dt_signature_t *sig,
                     dt_signature_tensor_t *in, dt_signature_tensor_t *out)
{
    static const char *const names[STREAM_KINDS] = {"aten::add.Tensor", "aten::neg_",
                                                    "aten::alias"};
    static const uint8_t aliases[STREAM_KINDS] = {DT_ALIAS_FRESH, DT_ALIAS_IN_PLACE, DT_ALIAS_VIEW};
    sig->input_count = 1;
    if (number < STREAM_SIG_MOVE) {
        uint32_t place = number / STREAM_KINDS, kind = number % STREAM_KINDS;
        sig->name = s->has_meshes ? names[kind] : "sim::op";
        sig->input_count = kind == 0 ? 2 : 1;
        in[0] = in[1] = *out = tensor_in(s, place);
        out->alias = aliases[kind];
    } else if (number < STREAM_SIG_LOCAL) {
        sig->name = "dtorch::redistribute";
        in[0] = tensor_in(s, (number - STREAM_SIG_MOVE) / STREAM_PLACES);
        *out = tensor_in(s, (number - STREAM_SIG_MOVE) % STREAM_PLACES);
    } else if (number < STREAM_SIG_JOIN) {
        uint32_t index = (number - STREAM_SIG_LOCAL) % STREAM_VDEVS;
        sig->name = "dtorch::local";
        in[0] = tensor_in(s, (number - STREAM_SIG_LOCAL) / STREAM_VDEVS);
        *out = part_of(s, (number - STREAM_SIG_LOCAL) / STREAM_VDEVS, index);
        out->alias = index % 2 ? DT_ALIAS_VIEW : DT_ALIAS_FRESH;
    } else if (number < STREAM_SIG_LIE) {
        uint32_t place = number - STREAM_SIG_JOIN;
        sig->name = "dtorch::assemble";
        sig->input_count = s->places[place].count;
        for (uint32_t i = 0; i < sig->input_count; i++)
            in[i] = part_of(s, place, i);
        *out = tensor_in(s, place);
    } else {
        sig->name = names[0];
        sig->input_count = 2;
        in[0] = in[1] = *out = tensor_in(s, number - STREAM_SIG_LIE);
        out->layout = false_layout(&s->places[number - STREAM_SIG_LIE]);
    }
}

static void put_definition(stream_t *s, dt_frame_writer_t *w, uint32_t number)
{
    dt_value_t args[STREAM_VDEVS] = {{.tag = DT_VALUE_TENSOR}};
    uint64_t present[STREAM_VDEVS] = {1, 1, 1, 1};
    dt_signature_tensor_t in[STREAM_VDEVS], out;
    dt_signature_t sig = {.args = args, .inputs = in, .outputs = &out, .output_count = 1};
    dt_buf_t body;
    memset(in, 0, sizeof in);
    memset(&out, 0, sizeof out);
    describe(s, number, &sig, in, &out);
    sig.arg_count = sig.input_count;
    for (uint32_t i = 0; i < sig.arg_count; i++)
        args[i].tag = DT_VALUE_TENSOR;
    if (number >= STREAM_SIG_JOIN && number < STREAM_SIG_LIE) {
        args[0] = (dt_value_t){.tag = DT_VALUE_TENSORS, .count = sig.input_count, .ids = present};
        sig.arg_count = 1;
    }
    dt_buf_init(&body, 4096);
    if (dt_signature_encode(&sig, &body, NULL) != DT_OK)
        abort();
    s->record.kind = DT_RECORD_DEF_SIG;
    s->record.definition.id = number;
    s->record.definition.body = body.data;
    s->record.definition.body_bytes = (uint32_t)body.len;
    if (!dt_record_put(w, &s->record))
        abort();
    dt_buf_fini(&body);
}

/* ---- tensors ---- */

static bool pick(stream_t *s, const stream_client_t *c, uint32_t place, uint64_t *ret_id)
{
    uint64_t from = stream_random(s, c->next_id);
    for (uint64_t i = 0; i < c->next_id; i++) {
        uint64_t id = (from + i) % c->next_id;
        if (id && c->is_live[id] && c->place_of[id] == place) {
            *ret_id = id;
            return true;
        }
    }
    return false;
}

static bool pick_any(stream_t *s, const stream_client_t *c, uint64_t *ret_id)
{
    uint64_t from = stream_random(s, c->next_id);
    for (uint64_t i = 0; i < c->next_id; i++) {
        *ret_id = (from + i) % c->next_id;
        if (*ret_id && c->is_live[*ret_id])
            return true;
    }
    return false;
}

static uint64_t give_id(stream_client_t *c, uint32_t place, uint32_t storage)
{
    uint64_t id = c->next_id++;
    c->is_live[id] = true;
    c->place_of[id] = place;
    c->storage_of[id] = storage;
    return id;
}

/* A tensor of its own, made of that of `from`, 0: of none. */
static uint64_t give_fresh(stream_client_t *c, uint32_t place, uint64_t from)
{
    uint64_t id = give_id(c, place, (uint32_t)c->next_id);
    c->is_bad[id] = from && c->is_bad[c->storage_of[from]];
    return id;
}

uint64_t stream_moved(const stream_place_t *from, const uint64_t values[STREAM_VDEVS],
                      uint32_t index)
{
    uint64_t all = 2;
    for (uint32_t i = 0; i < from->count; i++)
        all = stream_mix(2, all, values[from->vdevs[i]]);
    return stream_mix(3, all, index);
}

/* ---- records ---- */

static void put_upload(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t place)
{
    const stream_place_t *at = &s->places[place];
    uint64_t bytes[SIZE] = {stream_random(s, UINT64_MAX)};
    int64_t size = s->has_meshes ? SIZE : 1;
    dt_record_t *r = &s->record;
    memset(&r->move, 0, sizeof r->move);
    r->kind = DT_RECORD_UPLOAD;
    r->move.layout = at->layout;
    r->move.size = (uint64_t)size * sizeof bytes[0];
    r->move.bytes = (const uint8_t *)bytes;
    r->move.output = give_fresh(c, place, 0);
    for (uint32_t i = 0; i < at->count; i++)
        c->values[r->move.output][at->vdevs[i]] =
            at->count == 1 ? bytes[0] : stream_mix(5, bytes[0], i);
    c->is_bad[r->move.output] = has_kind(at, DT_PLACEMENT_PARTIAL); /* refused */
    if (dt_meta_set(&r->move.meta, DT_DTYPE_I64, 1, &size, NULL, 0, NULL) != DT_OK)
        abort();
    if (!dt_record_put(w, r))
        abort();
}

static void define(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t number)
{
    if (c->is_defined[number])
        return;
    c->is_defined[number] = true;
    put_definition(s, w, number);
}

static void put_op(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t place,
                   uint32_t kind)
{
    const stream_place_t *at = &s->places[place];
    uint64_t inputs[2], output;
    dt_record_op_t op = {.signature = place * STREAM_KINDS + kind, .inputs = inputs};
    if (!pick(s, c, place, &inputs[0]) || !pick(s, c, place, &inputs[1])) {
        put_upload(s, c, w, place);
        return;
    }
    define(s, c, w, op.signature);
    uint32_t storage = c->storage_of[inputs[0]], second = c->storage_of[inputs[1]];
    op.input_count = kind == 0 ? 2 : 1;
    op.output_count = kind == 1 ? 0 : 1;
    op.outputs = &output;
    if (kind == 0) {
        output = give_fresh(c, place, inputs[0]);
        c->is_bad[output] |= c->is_bad[second];
    } else if (kind == 2) {
        output = give_id(c, place, storage);
    }
    for (uint32_t i = 0; i < at->count; i++) {
        uint32_t v = at->vdevs[i];
        if (kind == 0)
            c->values[output][v] = stream_mix(0, c->values[storage][v], c->values[second][v]);
        else if (kind == 1)
            c->values[storage][v] = stream_mix(1, c->values[storage][v], 0);
    }
    if (!dt_record_put_op(w, &op))
        abort();
}

/* One tensor in, one out. */
static void put_single(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t number,
                       const uint64_t *input, const uint64_t *output)
{
    dt_record_op_t op = {.signature = number,
                         .input_count = 1,
                         .output_count = 1,
                         .inputs = input,
                         .outputs = output};
    define(s, c, w, number);
    if (!dt_record_put_op(w, &op))
        abort();
}

static void put_move(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id,
                     uint32_t place)
{
    uint32_t from = c->place_of[id];
    const stream_place_t *to = &s->places[place];
    uint64_t output = give_fresh(c, place, id);
    for (uint32_t i = 0; i < to->count; i++)
        c->values[output][to->vdevs[i]] =
            stream_moved(&s->places[from], c->values[c->storage_of[id]], i);
    put_single(s, c, w, STREAM_SIG_MOVE + from * STREAM_PLACES + place, &id, &output);
}

/* One device's part, alike or a copy. */
static void put_local(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    uint32_t place = c->place_of[id], storage = c->storage_of[id];
    uint32_t index = (uint32_t)stream_random(s, s->places[place].count);
    uint32_t vdev = s->places[place].vdevs[index];
    uint64_t output = index % 2 ? give_id(c, vdev, storage) : give_fresh(c, vdev, id);
    c->values[c->storage_of[output]][vdev] = c->values[storage][vdev];
    put_single(s, c, w, STREAM_SIG_LOCAL + place * STREAM_VDEVS + index, &id, &output);
}

static void put_join(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t place)
{
    const stream_place_t *at = &s->places[place];
    uint64_t inputs[STREAM_VDEVS], output;
    dt_record_op_t op = {.signature = STREAM_SIG_JOIN + place,
                         .input_count = at->count,
                         .output_count = 1,
                         .inputs = inputs,
                         .outputs = &output};
    for (uint32_t i = 0; i < at->count; i++)
        if (!pick(s, c, at->vdevs[i], &inputs[i])) {
            put_upload(s, c, w, at->vdevs[i]);
            return;
        }
    define(s, c, w, op.signature);
    output = give_fresh(c, place, 0);
    c->is_bad[output] = has_kind(at, DT_PLACEMENT_PARTIAL);
    for (uint32_t i = 0; i < at->count; i++) {
        uint32_t v = at->vdevs[i];
        c->values[output][v] = c->values[c->storage_of[inputs[i]]][v];
        c->is_bad[output] |= c->is_bad[c->storage_of[inputs[i]]];
    }
    if (!dt_record_put_op(w, &op))
        abort();
}

/* A signature that promises another layout, or one that is right for tensors that lie elsewhere. */
static void put_lie(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    uint32_t place = c->place_of[id], other = (uint32_t)stream_random(s, s->place_count);
    uint32_t number = STREAM_SIG_LIE + place;
    if (s->places[place].count == 1 || stream_chance(s, 50)) {
        if (other == place)
            return;
        number = other * STREAM_KINDS + (uint32_t)stream_random(s, 2);
    }
    uint64_t inputs[] = {id, id}, output = 0;
    bool is_in_place = number < STREAM_SIG_MOVE && number % STREAM_KINDS == 1;
    dt_record_op_t op = {.signature = number,
                         .input_count = is_in_place ? 1 : 2,
                         .output_count = is_in_place ? 0 : 1,
                         .inputs = inputs,
                         .outputs = &output};
    define(s, c, w, number);
    if (!is_in_place)
        output = give_fresh(c, place, 0);
    c->is_bad[is_in_place ? c->storage_of[id] : output] = true;
    if (!dt_record_put_op(w, &op))
        abort();
}

static void put_drop(stream_t *s, stream_client_t *c, dt_frame_writer_t *w)
{
    uint32_t from = (uint32_t)stream_random(s, STREAM_SIG_COUNT), number = STREAM_SIG_COUNT;
    char text[16];
    for (uint32_t i = 0; i < STREAM_SIG_COUNT && number == STREAM_SIG_COUNT; i++)
        if (c->is_defined[(from + i) % STREAM_SIG_COUNT])
            number = (from + i) % STREAM_SIG_COUNT;
    if (number == STREAM_SIG_COUNT)
        return;
    c->is_defined[number] = false;
    memset(&s->record.note, 0, sizeof s->record.note);
    s->record.kind = DT_RECORD_SET_OPTION;
    s->record.note.what = DT_OPTION_DROP_SIGNATURE;
    s->record.note.text_bytes = (uint32_t)snprintf(text, sizeof text, "%u", number);
    s->record.note.text = text;
    if (!dt_record_put(w, &s->record))
        abort();
}

static void put_fetch(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    uint32_t storage = c->storage_of[id];
    memset(&s->record.move, 0, sizeof s->record.move);
    s->record.kind = DT_RECORD_FETCH;
    s->record.move.tensor = id;
    s->record.move.number = c->next_future;
    c->is_error[c->next_future] = c->is_bad[storage];
    c->expected[c->next_future++] = c->values[storage][s->places[c->place_of[id]].vdevs[0]];
    if (!dt_record_put(w, &s->record))
        abort();
}

static void put_free(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint64_t id)
{
    c->is_live[id] = false;
    s->record.kind = DT_RECORD_FREE;
    s->record.ids.ids = &id;
    s->record.ids.count = 1;
    if (!dt_record_put(w, &s->record))
        abort();
}

/* ---- the program ---- */

/* Without meshes all definitions come first. */
static void put_plain(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t at)
{
    uint32_t vdev = (uint32_t)stream_random(s, s->vdev_count);
    uint64_t id, what = stream_random(s, 100);
    if (at < s->vdev_count - 1)
        put_mesh(s, w, at + 1);
    else if (at < s->vdev_count - 1 + s->vdev_count * STREAM_KINDS)
        define(s, c, w, at - (s->vdev_count - 1));
    else if (what < 8 || !pick(s, c, vdev, &id))
        put_upload(s, c, w, vdev);
    else if (what < 50)
        put_op(s, c, w, vdev, 0);
    else if (what < 65)
        put_op(s, c, w, vdev, 1);
    else if (what < 73)
        put_op(s, c, w, vdev, 2);
    else if (what < 88)
        put_fetch(s, c, w, id);
    else
        put_free(s, c, w, id);
}

/* On meshes definitions come with their first use; they are dropped and made again. */
static void put_meshed(stream_t *s, stream_client_t *c, dt_frame_writer_t *w, uint32_t at)
{
    uint32_t place = (uint32_t)stream_random(s, s->place_count);
    uint64_t id, what = stream_random(s, 100);
    if (at < s->vdev_count - 1 + s->mesh_count) {
        put_mesh(s, w, at + 1);
        return;
    }
    if (what < 10 || !pick_any(s, c, &id)) {
        put_upload(s, c, w, place);
        return;
    }
    if (what < 41)
        put_op(s, c, w, c->place_of[id], what < 26 ? 0 : what < 36 ? 1 : 2);
    else if (what < 61)
        put_move(s, c, w, id, place);
    else if (what < 66 && s->places[c->place_of[id]].count > 1)
        put_local(s, c, w, id);
    else if (what < 69 && s->places[place].count > 1)
        put_join(s, c, w, place);
    else if (what < 71)
        put_lie(s, c, w, id);
    else if (what < 73)
        put_drop(s, c, w);
    else if (what < 88 && pick(s, c, place % s->vdev_count, &id))
        put_fetch(s, c, w, id);
    else
        put_free(s, c, w, id);
}

void stream_put_next(stream_t *s, stream_client_t *c, dt_frame_writer_t *w)
{
    uint32_t at = c->made++;
    if (s->has_meshes)
        put_meshed(s, c, w, at);
    else
        put_plain(s, c, w, at);
}
