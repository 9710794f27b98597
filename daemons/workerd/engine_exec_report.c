/* What goes up, as packed WorkerSessionUp messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

#define DT_EXEC_STATS_MESSAGE 256u   /* operators in one message, so that it fits the ring */
#define DT_EXEC_LIST_MESSAGE  4000u  /* what a message of the stream can hold */
#define DT_EXEC_LIST_MAX      10000u /* tensors in all messages of an answer */
#define DT_EXEC_LIST_TEXT     96
#define DT_EXEC_SECOND_NS     DT_CLOCK_SECOND_NS

void dt_exec_up(dt_exec_session_t *session, unsigned field, const void *body, size_t size)
{
    uint8_t *bytes;
    session->has_emitted = true;
    if (dt_ring_reserve(&session->up, size + DT_PACK_NUMBER_MAX, &bytes, NULL) != DT_OK)
        return;
    uint8_t *end = dt_pack_head(bytes, field, size);
    if (size)
        memcpy(end, body, size);
    dt_ring_put(&session->up, (size_t)(end - bytes) + size, DT_CHANNEL_UP);
    session->must_kick = true;
}

void dt_exec_kick(dt_exec_session_t *session)
{
    if (session->must_kick)
        dt_ring_kick(&session->up);
    session->must_kick = false;
}

bool dt_exec_has_room(dt_exec_session_t *session)
{
    session->is_blocked = false;
    session->has_emitted = false;
    if (dt_ring_room(&session->up) >= DT_EXEC_ROOM_BYTES)
        return true;
    dt_ring_want_room(&session->up);
    if (dt_ring_room(&session->up) >= DT_EXEC_ROOM_BYTES)
        return true;
    session->is_blocked = true;
    session->has_emitted = true;
    return false;
}

/* The error with the number of operators skipped so far; a later field is what a reader takes. */
static uint8_t *put_error(uint8_t *at, unsigned field, const dt_exec_cause_t *cause)
{
    uint8_t skipped[DT_PACK_NUMBER_MAX];
    size_t more =
        (size_t)(dt_pack_number(skipped, DT_PACK_ERROR_SKIPPED, cause->skipped) - skipped);
    at = dt_pack_head(at, field, cause->size + more);
    memcpy(at, cause->bytes, cause->size);
    memcpy(at + cause->size, skipped, more);
    return at + cause->size + more;
}

void dt_exec_result_error(dt_exec_session_t *session, uint64_t future, dt_exec_cause_t *cause)
{
    uint8_t *body = session->exec->scratch;
    uint8_t *at = dt_pack_number(body, DT_PACK_RESULT_FUTURE, future);
    at = put_error(at, DT_PACK_RESULT_ERROR, cause);
    dt_exec_up(session, DT_PACK_UP_RESULT, body, (size_t)(at - body));
}

void dt_exec_tell_poison(dt_exec_session_t *session, dt_exec_cause_t *cause)
{
    uint8_t *body = session->exec->scratch;
    int64_t now_ns = session->exec->now_ns;
    if (now_ns - session->poison_since_ns >= DT_EXEC_SECOND_NS) {
        session->poison_since_ns = now_ns;
        session->poison_count = 0;
    }
    if (++session->poison_count > DT_EXEC_POISONS_RATE)
        return;
    uint8_t *at = dt_pack_number(body, DT_PACK_POISON_SEQUENCE, cause->sequence);
    at = put_error(at, DT_PACK_POISON_ERROR, cause);
    dt_exec_up(session, DT_PACK_UP_POISON, body, (size_t)(at - body));
}

void dt_exec_report(dt_exec_session_t *session)
{
    uint8_t body[2 * DT_PACK_NUMBER_MAX];
    uint64_t executed = dt_exec_executed(session);
    session->payload = 0;
    session->unreported_ns = 0;
    if (executed == session->reported)
        return;
    session->reported = executed;
    uint8_t *at = dt_pack_number(body, DT_PACK_EXECUTED_SEQUENCE, executed);
    at = dt_pack_number(at, DT_PACK_EXECUTED_VDEV, session->vdevs[0]);
    dt_exec_up(session, DT_PACK_UP_EXECUTED, body, (size_t)(at - body));
}

/* ---- statistics ---- */

dt_exec_stat_t *dt_exec_stat(dt_exec_session_t *session, const char *name)
{
    for (uint32_t i = 0; i < session->stat_count; i++)
        if (strcmp(session->stats[i]->name, name) == 0)
            return session->stats[i];
    if (session->stat_count == DT_EXEC_OPERATORS_MAX)
        return session->stats[DT_EXEC_OPERATORS_MAX - 1]; /* the rest is counted under the last */
    if (!session->stats)
        session->stats = calloc(DT_EXEC_OPERATORS_MAX, sizeof(dt_exec_stat_t *));
    dt_exec_stat_t *stat = session->stats ? calloc(1, sizeof *stat) : NULL;
    if (!stat)
        return NULL;
    stat->name = strdup(name);
    if (!stat->name) {
        free(stat);
        return NULL;
    }
    session->stats[session->stat_count++] = stat;
    return stat;
}

static void up_stats(dt_exec_session_t *session, Dtorch__V1__SessionStats *stats)
{
    uint8_t *bytes;
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_STATS;
    up.stats = stats;
    size_t size = dtorch__v1__worker_session_up__get_packed_size(&up);
    if (dt_ring_reserve(&session->up, size, &bytes, NULL) != DT_OK)
        return;
    (void)dtorch__v1__worker_session_up__pack(&up, bytes);
    dt_ring_commit(&session->up, size, DT_CHANNEL_UP);
}

static void fill_memory(const dt_exec_session_t *session, Dtorch__V1__SessionStats *stats)
{
    dt_shm_arena_stats_t memory = {0};
    if (session->memory.arena)
        dt_shm_arena_stats(session->memory.arena, &memory);
    stats->memory_bytes = (uint64_t)memory.live_bytes;
    stats->memory_peak_bytes = (uint64_t)memory.peak_bytes;
    stats->memory_limit_bytes = (uint64_t)memory.limit_bytes;
    stats->tensors = session->tensors.count + session->spreads.count;
    stats->engine = (uint32_t)getpid();
}

void dt_exec_report_stats(dt_exec_session_t *session)
{
    Dtorch__V1__OperatorStats operators[DT_EXEC_STATS_MESSAGE];
    Dtorch__V1__OperatorStats *operator_at[DT_EXEC_STATS_MESSAGE];
    session->has_stats = false;
    session->stats_told_ns = session->exec->now_ns;
    for (uint32_t i = 0; i < session->stat_count;) {
        Dtorch__V1__SessionStats stats = DTORCH__V1__SESSION_STATS__INIT;
        uint32_t n = 0;
        for (; i < session->stat_count && n < DT_EXEC_STATS_MESSAGE; i++) {
            dt_exec_stat_t *stat = session->stats[i];
            if (!stat->is_changed)
                continue;
            stat->is_changed = false;
            dtorch__v1__operator_stats__init(&operators[n]);
            operators[n].name = stat->name;
            operators[n].count = stat->count;
            operators[n].device_ns = stat->device_ns;
            operators[n].bytes = stat->bytes;
            operators[n].errors = stat->errors;
            operator_at[n] = &operators[n];
            n++;
        }
        stats.operators = operator_at;
        stats.n_operators = n;
        fill_memory(session, &stats);
        up_stats(session, &stats);
    }
}

/* ---- a list of tensors for people ---- */

typedef struct list_text {
    char meta[DT_EXEC_LIST_TEXT];
    int64_t sizes[DT_META_DIM_MAX];
} list_text_t;

static void list_fill(dt_exec_session_t *session, uint64_t id, const dt_exec_local_t *local,
                      Dtorch__V1__TensorInfo *info, list_text_t *text)
{
    static char ready[] = "ready";
    static char poisoned[] = "poisoned";
    const dt_exec_options_t *options = &session->exec->options;
    dt_backend_tensor_t seen;
    dt_error_t err = {0};
    dtorch__v1__tensor_info__init(info);
    (void)snprintf(text->meta, sizeof text->meta, "?");
    if (local->handle &&
        options->backend->tensor_info(options->device, local->handle, &seen, &err) == DT_OK) {
        dt_meta_print(&seen.meta, text->meta, sizeof text->meta);
        info->size_bytes = (uint64_t)dt_meta_bytes(&seen.meta);
        memcpy(text->sizes, seen.meta.sizes, seen.meta.ndim * sizeof text->sizes[0]);
        info->sizes = text->sizes;
        info->n_sizes = seen.meta.ndim;
    }
    info->id = id;
    info->meta = text->meta;
    info->vdev = local->storage->vdev;
    info->version = local->storage->version;
    info->state = local->storage->cause ? poisoned : ready;
    info->session = session->id;
}

typedef struct list_work {
    Dtorch__V1__TensorInfo infos[DT_EXEC_LIST_MESSAGE];
    Dtorch__V1__TensorInfo *info_at[DT_EXEC_LIST_MESSAGE];
    list_text_t texts[DT_EXEC_LIST_MESSAGE];
    uint32_t count; /* in this message */
    uint32_t left;  /* that may come before what remains is cut off */
    bool is_cut;
} list_work_t;

static void up_list(dt_exec_session_t *session, list_work_t *work, bool follows)
{
    Dtorch__V1__SessionStats stats = DTORCH__V1__SESSION_STATS__INIT;
    stats.is_list = true;
    stats.list_follows = follows;
    stats.list_is_cut = !work || work->is_cut;
    stats.list = work ? work->info_at : NULL;
    stats.n_list = work ? work->count : 0;
    fill_memory(session, &stats);
    up_stats(session, &stats);
}

static void list_add(dt_exec_session_t *session, list_work_t *work, uint64_t id,
                     const dt_exec_local_t *local)
{
    if (!local->storage || local->storage->mark.is_coming)
        return;
    work->is_cut = work->left == 0;
    if (work->is_cut)
        return;
    if (work->count == DT_EXEC_LIST_MESSAGE) {
        up_list(session, work, true);
        work->count = 0;
    }
    uint32_t n = work->count++;
    list_fill(session, id, local, &work->infos[n], &work->texts[n]);
    work->info_at[n] = &work->infos[n];
    work->left--;
}

/* Each local tensor has a line of its own, with its vdev. */
static void list_all(dt_exec_session_t *session, list_work_t *work)
{
    const dt_exec_table_t *table = &session->tensors;
    for (uint64_t i = 0; table->places && i <= table->mask && !work->is_cut; i++)
        if (table->places[i].id != 0)
            list_add(session, work, table->places[i].id, &table->places[i].local);
    table = &session->spreads;
    for (uint64_t i = 0; table->places && i <= table->mask && !work->is_cut; i++)
        if (table->places[i].id != 0)
            for (uint32_t k = 0; k < table->places[i].spread->mesh->own_count; k++)
                list_add(session, work, table->places[i].id, &table->places[i].spread->locals[k]);
}

/* Which are the largest the controller finds out, so the question's limit is none here; ours bounds
 * how long the session waits for it. */
void dt_exec_list(dt_exec_session_t *session)
{
    list_work_t *work = malloc(sizeof *work);
    if (work) {
        work->count = 0;
        work->left = DT_EXEC_LIST_MAX;
        work->is_cut = false;
        list_all(session, work);
    }
    up_list(session, work, false);
    free(work);
}
