/* Windows: memory of a session's program that it and this engine share. Uploads are read from it;
 * fetched values are put into this engine's area of it. A window that was replaced stays mapped
 * until the last download that lies in it is over: its bytes may be wanted again, another way.
 *
 * The program may write all of it at any time: nothing here is read twice, and what it says of
 * places is checked against what we mapped. It cannot shrink it, which its seals forbid. */
#include <stdlib.h>

#include "engine_exec_internal.h"
#include "shm/memfd.h"

static void window_unref(dt_exec_view_t *view)
{
    if (!view || --view->refs > 0)
        return;
    dt_memfd_unmap(view->given.map, view->given.size);
    free(view);
}

void dt_exec_window_drop(dt_exec_session_t *session)
{
    window_unref(session->view);
    session->view = NULL;
}

static bool is_sound(const dt_exec_window_t *window)
{
    uint64_t end;
    return window->map && window->size >= DT_BULK_UPLOAD_BYTES &&
           !__builtin_add_overflow(window->area_place, window->area_bytes, &end) &&
           end <= window->size &&
           (window->area_bytes == 0 || window->area_place >= DT_BULK_UPLOAD_BYTES) &&
           window->area_bytes / DT_BULK_UNIT_BYTES <= DT_BULK_UNITS_MAX;
}

static void window_set(dt_exec_session_t *session, const dt_exec_window_t *window)
{
    dt_exec_view_t *view = NULL;
    if (window->map && window->number > session->window_number && is_sound(window))
        view = calloc(1, sizeof *view);
    if (window->map && !view)
        dt_memfd_unmap(window->map, window->size);
    if (window->number < session->window_number)
        return;
    session->window_number = window->number;
    dt_exec_window_drop(session);
    session->is_stuck = false; /* it may have waited for this */
    if (!view)
        return;
    view->refs = 1;
    view->given = *window;
    view->units.count = window->area_bytes / DT_BULK_UNIT_BYTES;
    session->view = view;
}

void dt_exec_window(dt_exec_t *exec, uint32_t instance, const dt_exec_window_t *window)
{
    for (uint32_t i = 0; i < exec->session_count; i++)
        if (exec->sessions[i]->instance == instance) {
            window_set(exec->sessions[i], window);
            return;
        }
    if (window->map)
        dt_memfd_unmap(window->map, window->size);
}

/* ---- uploads ---- */

dt_exec_placed_t dt_exec_window_find(const dt_exec_session_t *session,
                                     const dt_channel_chunk_t *head, const uint8_t **ret_bytes)
{
    const dt_exec_view_t *view = session->view;
    if (head->window > session->window_number)
        return DT_EXEC_PLACED_LATER;
    if (!view || head->window != view->given.number || head->place > DT_BULK_UPLOAD_BYTES ||
        head->size > DT_BULK_UPLOAD_BYTES - head->place)
        return DT_EXEC_PLACED_NEVER;
    *ret_bytes = view->given.map + head->place;
    return DT_EXEC_PLACED_HERE;
}

/* ---- downloads ---- */

bool dt_exec_area_take(dt_exec_session_t *session, uint64_t size, dt_exec_area_t *ret_area)
{
    dt_exec_view_t *view = session->view;
    uint32_t count = dt_bulk_units_of(size);
    uint32_t first;
    if (!view || !dt_bulk_units_take(&view->units, count, &first))
        return false;
    view->refs++;
    ret_area->view = view;
    ret_area->first = first;
    ret_area->count = count;
    ret_area->place = view->given.area_place + (uint64_t)first * DT_BULK_UNIT_BYTES;
    ret_area->bytes = view->given.map + ret_area->place;
    return true;
}

void dt_exec_area_give(dt_exec_area_t *area)
{
    if (!area->view)
        return;
    dt_bulk_units_give(&area->view->units, area->first, area->count);
    window_unref(area->view);
    area->view = NULL;
}
