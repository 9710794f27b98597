/* Notes in the stream: steps, ranges, places of the program, seeds, options. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/strings.h"
#include "client.h"

#define SOURCES_MAX 65536u /* different places of a program */
#define RANGE_MAX   127u

static dt_status_t note(dt_session_t *session, uint8_t kind, uint64_t what, uint64_t value,
                        uint64_t offset, const char *text, dt_error_t *err)
{
    dt_record_t record;
    record.kind = kind;
    memset(&record.note, 0, sizeof record.note);
    record.note.what = what;
    record.note.value = value;
    record.note.offset = offset;
    record.note.text = text;
    record.note.text_bytes = (uint32_t)strlen(text);
    return dt_client_append(session, &record, err);
}

static dt_status_t lock_and_note(dt_session_t *session, uint8_t kind, uint64_t what, uint64_t value,
                                 uint64_t offset, const char *text, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = note(session, kind, what, value, offset, text, err);
    pthread_mutex_unlock(&session->lock);
    return status;
}

static int64_t now_ns(void)
{
    return dt_clock_mono_ns(dt_clock_system());
}

static dt_status_t check_text(const char *text, size_t max, dt_error_t *err)
{
    size_t len = text ? strlen(text) : 0;
    if (!text || len > max || !dt_str_is_utf8(text, len))
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)len,
                       "not a text of at most %zu bytes of UTF-8", max);
    return DT_OK;
}

/* Steps and ranges carry the program's clock: a timeline shows when they were, not when their frame
 * arrived. */
dt_status_t dt_mark_step(dt_session_t *session, uint64_t step, dt_error_t *err)
{
    char now[24];
    (void)snprintf(now, sizeof now, "%" PRId64, now_ns());
    return lock_and_note(session, DT_RECORD_MARK, DT_MARK_STEP, step, 0, now, err);
}

dt_status_t dt_range_begin(dt_session_t *session, const char *name, dt_error_t *err)
{
    DT_TRY(check_text(name, RANGE_MAX, err));
    return lock_and_note(session, DT_RECORD_MARK, DT_MARK_RANGE_BEGIN, (uint64_t)now_ns(), 0, name,
                         err);
}

dt_status_t dt_range_end(dt_session_t *session, dt_error_t *err)
{
    return lock_and_note(session, DT_RECORD_MARK, DT_MARK_RANGE_END, (uint64_t)now_ns(), 0, "",
                         err);
}

dt_status_t dt_seed(dt_session_t *session, uint32_t stream, uint64_t seed, uint64_t offset,
                    dt_error_t *err)
{
    return lock_and_note(session, DT_RECORD_SEED, stream, seed, offset, "", err);
}

dt_status_t dt_option(dt_session_t *session, uint32_t key, const char *value, dt_error_t *err)
{
    DT_TRY(check_text(value, DT_RECORD_TEXT_MAX, err));
    if (key == DT_OPTION_DROP_SIGNATURE)
        return dt_fail(err, DT_ERR_INVALID, "dt", key, "signatures are dropped by the library");
    return lock_and_note(session, DT_RECORD_SET_OPTION, key, 0, 0, value, err);
}

/* ---- places of the program ---- */

static bool grow_index(dt_session_t *session)
{
    uint32_t cap = session->source_index_cap ? 2 * session->source_index_cap : 128;
    uint32_t *index = calloc(cap, sizeof *index);
    char **sources = realloc(session->sources, cap / 2 * sizeof *sources);
    if (sources)
        session->sources = sources;
    if (!sources || !index) {
        free(index);
        return false;
    }
    free(session->source_index);
    session->source_index = index;
    session->source_index_cap = cap;
    for (uint32_t i = 0; i < session->source_count; i++) {
        uint32_t at = (uint32_t)dt_hash_str(DT_HASH_SEED, session->sources[i]) & (cap - 1);
        while (index[at])
            at = (at + 1) & (cap - 1);
        index[at] = i + 1;
    }
    return true;
}

/* The number of a place, 0 when there are too many. *ret_is_new: it was not known. */
static uint32_t number_of(dt_session_t *session, const char *place, bool *ret_is_new)
{
    if (session->source_count >= session->source_index_cap / 2 && !grow_index(session))
        return 0;
    uint32_t at = (uint32_t)dt_hash_str(DT_HASH_SEED, place) & (session->source_index_cap - 1);
    for (; session->source_index[at]; at = (at + 1) & (session->source_index_cap - 1))
        if (strcmp(session->sources[session->source_index[at] - 1], place) == 0)
            return session->source_index[at];
    char *copy = session->source_count < SOURCES_MAX ? strdup(place) : NULL;
    if (!copy)
        return 0;
    session->sources[session->source_count++] = copy;
    session->source_index[at] = session->source_count;
    *ret_is_new = true;
    return session->source_count;
}

dt_status_t dt_mark_source(dt_session_t *session, const char *place, dt_error_t *err)
{
    bool is_new = false;
    uint32_t number = 0;
    dt_status_t status = DT_OK;
    if (place)
        DT_TRY(check_text(place, DT_RECORD_TEXT_MAX, err));
    DT_TRY(dt_client_lock(session, err));
    bool is_same =
        place && session->source && strcmp(session->sources[session->source - 1], place) == 0;
    if (place && !is_same)
        number = number_of(session, place, &is_new);
    if (!is_same && number != session->source) {
        session->source = number;
        status = note(session, DT_RECORD_MARK, DT_MARK_SOURCE, number, 0, is_new ? place : "", err);
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}
