/* Tables of one session: which ids live, on which storage and vdev, what signatures mean. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"

#define MAP_FIRST   256u /* a power of two */
#define GROUP_BITS  4    /* ids in a row that share a group of entries: 16 of 16 bytes */
#define GROUP_MASK  ((UINT64_C(1) << GROUP_BITS) - 1)
#define INDEX_SHIFT 20

/* ---- id -> value ---- */

static uint64_t home_of(const dt_session_map_t *map, uint64_t id)
{
    uint64_t group = (id >> GROUP_BITS) * map->factor;
    return (group >> INDEX_SHIFT << GROUP_BITS | (id & GROUP_MASK)) & map->mask;
}

dt_session_entry_t *dt_session_map_find(const dt_session_map_t *map, uint64_t id)
{
    if (!map->entries || id == 0)
        return NULL;
    for (uint64_t at = home_of(map, id);; at = (at + 1) & map->mask) {
        dt_session_entry_t *entry = &map->entries[at];
        if (entry->id == id)
            return entry;
        if (entry->id == 0)
            return NULL;
    }
}

static void map_insert(dt_session_map_t *map, const dt_session_entry_t *entry)
{
    uint64_t at = home_of(map, entry->id);
    while (map->entries[at].id != 0)
        at = (at + 1) & map->mask;
    map->entries[at] = *entry;
    map->count++;
}

static bool map_grow(dt_session_map_t *map)
{
    dt_session_map_t grown = {.factor = map->factor};
    grown.mask = map->entries ? 2 * map->mask + 1 : MAP_FIRST - 1;
    grown.entries = calloc(grown.mask + 1, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    for (uint64_t i = 0; map->entries && i <= map->mask; i++)
        if (map->entries[i].id != 0)
            map_insert(&grown, &map->entries[i]);
    free(map->entries);
    *map = grown;
    return true;
}

bool dt_session_map_put(dt_session_map_t *map, uint64_t id, uint32_t value, uint32_t extra)
{
    if ((!map->entries || 2 * map->count >= map->mask) && !map_grow(map)) /* runs stay short */
        return false;
    map_insert(map, &(dt_session_entry_t){.id = id, .value = value, .extra = extra});
    return true;
}

/* Close the gap, so that no find ends early: later entries of the run move up where they may. */
void dt_session_map_remove(dt_session_map_t *map, dt_session_entry_t *entry)
{
    uint64_t gap = (uint64_t)(entry - map->entries);
    for (uint64_t at = (gap + 1) & map->mask; map->entries[at].id != 0; at = (at + 1) & map->mask) {
        uint64_t home = home_of(map, map->entries[at].id);
        if (((at - home) & map->mask) >= ((at - gap) & map->mask)) {
            map->entries[gap] = map->entries[at];
            gap = at;
        }
    }
    map->entries[gap] = (dt_session_entry_t){0};
    map->count--;
}

/* ---- storages ---- */

uint32_t dt_session_storage_new(dt_session_t *session, uint32_t spot, uint64_t version,
                                uint32_t cause)
{
    uint32_t index = session->storage_free;
    if (index != UINT32_MAX) {
        session->storage_free = session->storages[index].refs;
    } else {
        if (session->storage_count == session->storage_cap) {
            uint32_t cap = session->storage_cap ? 2 * session->storage_cap : MAP_FIRST;
            dt_session_storage_t *grown =
                realloc(session->storages, cap * sizeof *session->storages);
            if (!grown)
                return UINT32_MAX;
            session->storages = grown;
            session->storage_cap = cap;
        }
        index = session->storage_count++;
    }
    session->storages[index] =
        (dt_session_storage_t){.version = version, .refs = 1, .cause = cause, .spot = spot};
    session->storages_live++;
    return index;
}

void dt_session_storage_unref(dt_session_t *session, uint32_t storage)
{
    dt_session_storage_t *s = &session->storages[storage];
    if (--s->refs > 0)
        return;
    s->version = 0;
    s->refs = session->storage_free;
    session->storage_free = storage;
    session->storages_live--;
}

/* ---- causes ---- */

uint32_t dt_session_cause(dt_session_t *session, const Dtorch__V1__OperatorError *error)
{
    Dtorch__V1__OperatorError *kept;
    uint8_t *packed;
    size_t size;
    if (session->cause_count == DT_SESSION_CAUSES_MAX)
        return session->cause_count;
    if (!session->causes)
        session->causes = calloc(DT_SESSION_CAUSES_MAX, sizeof(void *));
    if (!session->causes || dt_wire_pack_new(&error->base, &packed, &size) != DT_OK)
        return session->cause_count;
    kept = dtorch__v1__operator_error__unpack(NULL, size, packed);
    free(packed);
    if (kept)
        session->causes[session->cause_count++] = kept;
    return session->cause_count;
}

const Dtorch__V1__OperatorError *dt_session_cause_of(const dt_session_t *session, uint32_t cause)
{
    static const Dtorch__V1__OperatorError none = DTORCH__V1__OPERATOR_ERROR__INIT;
    return cause && cause <= session->cause_count ? session->causes[cause - 1] : &none;
}

/* ---- signatures ---- */

/* Numbers of its layouts, inputs and then outputs with an id. Returns an E_ number for what is
 * malformed. */
static int find_spots(dt_session_t *session, const dt_signature_t *decoded, uint32_t *spots,
                      bool *ret_is_uniform)
{
    uint32_t at = 0;
    *ret_is_uniform = true;
    for (uint32_t i = 0; i < decoded->input_count + decoded->output_count; i++) {
        const dt_signature_tensor_t *tensor = i < decoded->input_count
                                                  ? &decoded->inputs[i]
                                                  : &decoded->outputs[i - decoded->input_count];
        uint32_t spot;
        int error;
        if (i >= decoded->input_count && tensor->alias == DT_ALIAS_NONE)
            continue;
        error = dt_session_spot(session, &tensor->layout, &spot);
        if (error)
            return error;
        if (i < decoded->input_count || tensor->alias != DT_ALIAS_IN_PLACE)
            spots[at++] = spot;
        *ret_is_uniform &= spot == spots[0];
    }
    return 0;
}

/* What an OP with it does to the tables. NULL without memory. */
static dt_session_signature_t *compile_signature(const dt_signature_t *decoded,
                                                 const uint32_t *spots, bool is_uniform)
{
    uint32_t writes = 0, views = 0, at_view = 0, at_write = 0, behind = 0;
    uint32_t spot_count = decoded->input_count + decoded->id_count;
    dt_session_signature_t *sig;
    for (uint32_t i = 0; i < decoded->output_count; i++) {
        writes += decoded->outputs[i].alias == DT_ALIAS_IN_PLACE;
        views += decoded->outputs[i].alias == DT_ALIAS_VIEW;
    }
    behind = writes + (views ? decoded->id_count : 0);
    sig = calloc(1, sizeof *sig + (behind + (is_uniform ? 0 : spot_count)) * sizeof(uint32_t));
    if (!sig)
        return NULL;
    sig->input_count = decoded->input_count;
    sig->output_count = decoded->id_count;
    sig->scalar_count = decoded->dynamic_count;
    sig->is_uniform = is_uniform;
    sig->spot = spot_count ? spots[0] : 0;
    sig->write_count = writes;
    sig->has_views = views > 0;
    for (uint32_t i = 0; i < decoded->output_count; i++) {
        const dt_signature_tensor_t *out = &decoded->outputs[i];
        if (out->alias == DT_ALIAS_IN_PLACE)
            sig->links[at_write++] = out->input;
        else if (views && out->alias != DT_ALIAS_NONE)
            sig->links[writes + at_view++] = out->alias == DT_ALIAS_VIEW ? 1 + out->input : 0;
    }
    if (!is_uniform)
        memcpy(sig->links + behind, spots, spot_count * sizeof *spots);
    return sig;
}

static bool signature_room(dt_session_t *session, uint32_t id)
{
    uint32_t cap = session->signature_cap ? session->signature_cap : MAP_FIRST;
    dt_session_signature_t **grown;
    if (id < session->signature_cap)
        return true;
    while (cap <= id)
        cap *= 2;
    grown = realloc(session->signatures, cap * sizeof(void *));
    if (!grown)
        return false;
    memset(grown + session->signature_cap, 0, (cap - session->signature_cap) * sizeof(void *));
    session->signatures = grown;
    session->signature_cap = cap;
    return true;
}

static void signature_free(dt_session_signature_t *sig)
{
    if (!sig)
        return;
    free(sig->name);
    free((void *)(uintptr_t)sig->plan.body);
    dt_session_steps_free(&sig->plan);
    free(sig);
}

/* Refuse by name: what it is, and why it is not served. */
static uint32_t refuse_signature(dt_session_t *session, const dt_record_t *record, const char *name,
                                 const dt_error_t *err)
{
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    error.code = err->code;
    error.kind = DT_SESSION_TEXT("LayoutError");
    error.text = DT_SESSION_TEXT(err->text);
    error.sequence = record->sequence;
    error.operator_name = DT_SESSION_TEXT(name);
    return dt_session_cause(session, &error);
}

static int add_signature(dt_sessions_t *sessions, dt_session_t *session, const dt_record_t *record,
                         const dt_signature_t *decoded)
{
    dt_session_signature_t *sig;
    bool is_uniform;
    dt_error_t err;
    uint32_t *spots = dt_arena_calloc(
        &sessions->sig_arena, decoded->input_count + decoded->output_count + 1, sizeof *spots);
    int error = spots ? find_spots(session, decoded, spots, &is_uniform) : DT_FRAME_E_NOMEM;
    if (error)
        return error;
    sig = compile_signature(decoded, spots, is_uniform);
    if (!sig || !signature_room(session, record->definition.id)) {
        free(sig);
        return DT_FRAME_E_NOMEM;
    }
    uint8_t *body = malloc(record->definition.body_bytes);
    sig->name = strdup(decoded->name);
    sig->plan = (dt_session_plan_t){.body = body, .body_bytes = record->definition.body_bytes};
    if (!sig->name || !body) {
        signature_free(sig);
        return DT_FRAME_E_NOMEM;
    }
    memcpy(body, record->definition.body, record->definition.body_bytes);
    if ((!is_uniform || sig->spot >= session->vdev_count) &&
        dt_session_check_layouts(sessions, session, decoded, &sig->plan, &err) != DT_OK)
        sig->cause = refuse_signature(session, record, decoded->name, &err);
    session->signatures[record->definition.id] = sig;
    session->signatures_live++;
    session->definition_bytes += sig->plan.body_bytes;
    return 0;
}

int dt_session_define_signature(dt_sessions_t *sessions, dt_session_t *session,
                                const dt_record_t *record)
{
    uint32_t id = record->definition.id;
    dt_cursor_t cursor = {.at = record->definition.body,
                          .end = record->definition.body + record->definition.body_bytes};
    dt_signature_t *decoded = NULL;
    int error;
    if (id < session->signature_cap && session->signatures[id])
        return DT_FRAME_E_DUP;
    if (session->signatures_live >= DT_SESSION_LIVE_SIGS_MAX ||
        record->definition.body_bytes > DT_SIGNATURE_BYTES_MAX ||
        session->definition_bytes + record->definition.body_bytes > DT_SESSION_SIG_BYTES)
        return DT_FRAME_E_LIMIT;
    dt_arena_reset(&sessions->sig_arena);
    error = dt_signature_decode(&cursor, &sessions->sig_arena, &decoded);
    if (error)
        return error;
    if (dt_cursor_left(&cursor) > 0)
        return DT_FRAME_E_BODY;
    if (decoded->flags & DT_SIGNATURE_UNKNOWN)
        return DT_FRAME_E_SIG;
    return add_signature(sessions, session, record, decoded);
}

void dt_session_drop_signature(dt_session_t *session, uint32_t id)
{
    if (id >= session->signature_cap || !session->signatures[id])
        return;
    session->definition_bytes -= session->signatures[id]->plan.body_bytes;
    signature_free(DT_TAKE(session->signatures[id]));
    session->signatures_live--;
}

/* ---- random streams ---- */

int dt_session_seed(dt_session_t *session, const dt_record_t *record)
{
    dt_session_seed_t *seed = NULL;
    for (uint32_t i = 0; i < session->seed_count && !seed; i++)
        if (session->seeds[i].stream == record->note.what)
            seed = &session->seeds[i];
    if (!seed) {
        if (session->seed_count == DT_SESSION_SEEDS_MAX)
            return DT_FRAME_E_LIMIT;
        if (!session->seeds)
            session->seeds = calloc(DT_SESSION_SEEDS_MAX, sizeof *session->seeds);
        if (!session->seeds)
            return DT_FRAME_E_NOMEM;
        seed = &session->seeds[session->seed_count++];
    }
    *seed = (dt_session_seed_t){
        .stream = record->note.what, .seed = record->note.value, .offset = record->note.offset};
    return 0;
}

/* ---- futures: rising, confirmed from the front ---- */

static bool future_room(dt_session_t *session)
{
    dt_session_future_t *grown;
    uint32_t cap;
    if (session->future_head + session->future_count < session->future_cap)
        return true;
    if (session->future_head > session->future_cap / 2) {
        memmove(session->futures, session->futures + session->future_head,
                session->future_count * sizeof *session->futures);
        session->future_head = 0;
        return true;
    }
    cap = session->future_cap ? 2 * session->future_cap : MAP_FIRST;
    grown = realloc(session->futures, cap * sizeof *grown);
    if (!grown)
        return false;
    session->futures = grown;
    session->future_cap = cap;
    return true;
}

int dt_session_future_add(dt_session_t *session, uint64_t future, uint32_t vdev, uint64_t sequence)
{
    if (future <= session->last_future)
        return DT_FRAME_E_DUP;
    if (session->future_count >= DT_SESSION_FUTURES_MAX)
        return DT_FRAME_E_LIMIT;
    if (!future_room(session))
        return DT_FRAME_E_NOMEM;
    session->futures[session->future_head + session->future_count++] =
        (dt_session_future_t){.future = future, .vdev = vdev, .sequence = sequence};
    session->last_future = future;
    return 0;
}

dt_session_future_t *dt_session_future_find(dt_session_t *session, uint64_t future)
{
    uint32_t low = 0, high = session->future_count;
    if (high == 0)
        return NULL;
    dt_session_future_t *from = session->futures + session->future_head;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (from[middle].future < future)
            low = middle + 1;
        else
            high = middle;
    }
    return low < session->future_count && from[low].future == future ? &from[low] : NULL;
}

const dt_session_future_t *dt_session_future_open(dt_session_t *session)
{
    if (session->future_count == 0)
        return NULL;
    const dt_session_future_t *from = session->futures + session->future_head;
    while (session->future_answered < session->future_count &&
           from[session->future_answered].result)
        session->future_answered++;
    return session->future_answered < session->future_count ? &from[session->future_answered]
                                                            : NULL;
}

void dt_session_futures_done(dt_session_t *session, uint64_t future)
{
    while (session->future_count) {
        dt_session_future_t *first = &session->futures[session->future_head];
        if (first->future > future)
            break;
        session->results_bytes -= first->result ? first->size : 0;
        free(first->result);
        session->future_head++;
        session->future_count--;
        session->future_answered -= session->future_answered > 0;
    }
    if (session->future_count == 0)
        session->future_head = 0;
    if (future > session->futures_done)
        session->futures_done = future < session->last_future ? future : session->last_future;
}

/* ---- uploads: rising, over in any order ---- */

static bool transfer_room(dt_session_t *session)
{
    dt_session_transfer_t *grown;
    uint32_t cap;
    if (session->transfer_head + session->transfer_count < session->transfer_cap)
        return true;
    if (session->transfer_head > session->transfer_cap / 2) {
        memmove(session->transfers, session->transfers + session->transfer_head,
                session->transfer_count * sizeof *session->transfers);
        session->transfer_head = 0;
        return true;
    }
    cap = session->transfer_cap ? 2 * session->transfer_cap : MAP_FIRST;
    grown = realloc(session->transfers, cap * sizeof *grown);
    if (!grown)
        return false;
    session->transfers = grown;
    session->transfer_cap = cap;
    return true;
}

int dt_session_transfer_add(dt_session_t *session, uint64_t transfer, uint64_t size, uint32_t vdev)
{
    if (transfer <= session->last_transfer)
        return DT_FRAME_E_DUP;
    if (session->transfer_count >= DT_SESSION_TRANSFERS_MAX)
        return DT_FRAME_E_LIMIT;
    if (!transfer_room(session))
        return DT_FRAME_E_NOMEM;
    session->transfers[session->transfer_head + session->transfer_count++] =
        (dt_session_transfer_t){.transfer = transfer, .size = size, .vdev = vdev};
    session->last_transfer = transfer;
    return 0;
}

dt_session_transfer_t *dt_session_transfer_find(dt_session_t *session, uint64_t transfer)
{
    uint32_t low = 0, high = session->transfer_count;
    if (high == 0)
        return NULL;
    dt_session_transfer_t *from = session->transfers + session->transfer_head;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (from[middle].transfer < transfer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < session->transfer_count && from[low].transfer == transfer &&
                   from[low].vdev != UINT32_MAX
               ? &from[low]
               : NULL;
}

void dt_session_transfer_end(dt_session_t *session, dt_session_transfer_t *transfer)
{
    transfer->vdev = UINT32_MAX;
    while (session->transfer_count &&
           session->transfers[session->transfer_head].vdev == UINT32_MAX) {
        session->transfer_head++;
        session->transfer_count--;
    }
    if (session->transfer_count == 0)
        session->transfer_head = 0;
}

/* ---- life ---- */

dt_status_t dt_session_tables_init(dt_session_t *session, uint64_t factor)
{
    session->tensors.factor = factor | 1;
    session->storage_free = UINT32_MAX;
    return dt_session_meshes_init(session);
}

void dt_session_tables_fini(dt_session_t *session)
{
    free(session->tensors.entries);
    free(session->transfers);
    free(session->storages);
    for (uint32_t i = 0; i < session->signature_cap; i++)
        signature_free(session->signatures[i]);
    free(session->signatures);
    dt_session_meshes_fini(session);
    free(session->seeds);
    dt_session_futures_done(session, UINT64_MAX);
    free(session->futures);
    for (uint32_t i = 0; i < session->cause_count; i++)
        dtorch__v1__operator_error__free_unpacked(session->causes[i], NULL);
    free(session->causes);
}
