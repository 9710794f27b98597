/* Tensors by id: open addressing, linear probing, deletion by moving back, so that there are no
 * tombstones and a program that makes and frees without end keeps its table. */
#include <stdlib.h>

#include "engine_exec_internal.h"

#define DT_EXEC_TABLE_MIN 1024u
#define DT_EXEC_TABLE_MAX (UINT64_C(1) << 26)

static uint64_t home(const dt_exec_table_t *table, uint64_t id)
{
    return (id * UINT64_C(0x9E3779B97F4A7C15)) >> table->shift;
}

dt_exec_tensor_t *dt_exec_find(const dt_exec_table_t *table, uint64_t id)
{
    if (!table->places)
        return NULL;
    for (uint64_t at = home(table, id);; at = (at + 1) & table->mask) {
        dt_exec_tensor_t *place = &table->places[at];
        if (place->id == id)
            return place;
        if (place->id == 0)
            return NULL;
    }
}

static void put(dt_exec_table_t *table, const dt_exec_tensor_t *tensor)
{
    uint64_t at = home(table, tensor->id);
    while (table->places[at].id != 0)
        at = (at + 1) & table->mask;
    table->places[at] = *tensor;
}

static bool grow(dt_exec_table_t *table)
{
    uint64_t old = table->places ? table->mask + 1 : 0;
    uint64_t size = old ? 2 * old : DT_EXEC_TABLE_MIN;
    dt_exec_table_t bigger = {
        .mask = size - 1, .count = table->count, .shift = 64 - (unsigned)__builtin_ctzll(size)};
    bigger.places = size <= DT_EXEC_TABLE_MAX ? calloc(size, sizeof *bigger.places) : NULL;
    if (!bigger.places)
        return false;
    for (uint64_t i = 0; i < old; i++)
        if (table->places[i].id != 0)
            put(&bigger, &table->places[i]);
    free(table->places);
    *table = bigger;
    return true;
}

static inline void take_out(dt_exec_table_t *table, uint64_t at)
{
    uint64_t hole = at;
    table->count--;
    for (uint64_t next = (at + 1) & table->mask; table->places[next].id != 0;
         next = (next + 1) & table->mask) {
        uint64_t wanted = home(table, table->places[next].id);
        /* It may move into the hole unless its home lies behind that. */
        if (((next - wanted) & table->mask) >= ((next - hole) & table->mask)) {
            table->places[hole] = table->places[next];
            hole = next;
        }
    }
    table->places[hole] = (dt_exec_tensor_t){0};
}

static inline bool enter(dt_exec_table_t *table, const dt_exec_tensor_t *tensor)
{
    if ((!table->places || 2 * (table->count + 1) > table->mask) && !grow(table))
        return false;
    put(table, tensor);
    table->count++;
    return true;
}

/* Free what has the id in one of the tables. */
static inline bool drop_local(dt_exec_session_t *session, uint64_t id)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, id);
    if (!tensor)
        return false;
    dt_exec_local_t local = tensor->local;
    take_out(&session->tensors, (uint64_t)(tensor - session->tensors.places));
    if (local.handle &&
        (dt_move_may_write(&local.storage->mark) || !dt_exec_run_keeps(session, &local)))
        options->backend->tensor_free(options->device, local.handle);
    dt_exec_storage_unref(session, local.storage);
    return true;
}

static void drop_spread(dt_exec_session_t *session, uint64_t id)
{
    dt_exec_tensor_t *tensor = dt_exec_find(&session->spreads, id);
    if (!tensor)
        return;
    dt_exec_spread_t *spread = tensor->spread;
    take_out(&session->spreads, (uint64_t)(tensor - session->spreads.places));
    dt_exec_spread_free(session, spread);
}

void dt_exec_drop(dt_exec_session_t *session, uint64_t id)
{
    if (!drop_local(session, id) && session->spreads.count > 0)
        drop_spread(session, id);
}

bool dt_exec_enter(dt_exec_session_t *session, uint64_t id, void *handle,
                   dt_exec_storage_t *storage)
{
    if (dt_exec_find(&session->tensors, id) || session->spreads.count > 0)
        dt_exec_drop(session, id);
    return enter(&session->tensors, &(dt_exec_tensor_t){.id = id, .local = {handle, storage}});
}

bool dt_exec_enter_spread(dt_exec_session_t *session, uint64_t id, dt_exec_spread_t *spread)
{
    dt_exec_drop(session, id);
    return enter(&session->spreads, &(dt_exec_tensor_t){.id = id, .spread = spread});
}

void dt_exec_table_fini(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    dt_exec_table_t *table = &session->tensors;
    for (uint64_t i = 0; table->places && i <= table->mask; i++) {
        dt_exec_tensor_t *tensor = &table->places[i];
        if (tensor->id == 0)
            continue;
        if (tensor->handle)
            exec->options.backend->tensor_free(exec->options.device, tensor->handle);
        dt_exec_storage_unref(session, tensor->storage);
    }
    for (uint64_t i = 0; session->spreads.places && i <= session->spreads.mask; i++)
        if (session->spreads.places[i].id != 0)
            dt_exec_spread_free(session, session->spreads.places[i].spread);
    free(table->places);
    free(session->spreads.places);
    *table = session->spreads = (dt_exec_table_t){0};
}

/* ---- storages ---- */

static bool storages_add(dt_exec_t *exec)
{
    dt_exec_storage_batch_t *batch = calloc(1, sizeof *batch);
    if (!batch)
        return false;
    batch->next = exec->storage_batches;
    exec->storage_batches = batch;
    for (uint32_t i = 0; i < DT_EXEC_STORAGE_BATCH; i++) {
        batch->storages[i].next_free = exec->storage_free;
        exec->storage_free = &batch->storages[i];
    }
    return true;
}

dt_exec_storage_t *dt_exec_storage_new(dt_exec_t *exec, uint32_t vdev, uint64_t version)
{
    if (!exec->storage_free && !storages_add(exec))
        return NULL;
    dt_exec_storage_t *storage = exec->storage_free;
    exec->storage_free = storage->next_free;
    *storage = (dt_exec_storage_t){.refs = 1, .vdev = (uint16_t)vdev, .version = version};
    return storage;
}

void dt_exec_storage_unref(dt_exec_session_t *session, dt_exec_storage_t *storage)
{
    if (--storage->refs > 0)
        return;
    if (storage->upload)
        dt_exec_upload_end(session, storage->upload);
    dt_exec_cause_unref(storage->cause);
    storage->next_free = session->exec->storage_free;
    session->exec->storage_free = storage;
}

void dt_exec_poison(dt_exec_storage_t *storage, dt_exec_cause_t *cause)
{
    if (storage->cause)
        return;
    cause->refs++;
    storage->cause = cause;
}

void dt_exec_cause_unref(dt_exec_cause_t *cause)
{
    if (cause && --cause->refs == 0)
        free(cause);
}
