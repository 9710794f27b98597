#include "lib/offlinesession.h"

#include <stdlib.h>

#include "wire/wire.h"

dt_session_t *dt_offlinesession_new(uint64_t credit_bytes)
{
    dt_session_t *session = dt_client_create(NULL);
    if (!session)
        abort();
    session->settings.vdev_count = 1;
    session->settings.linger_ns = INT64_MAX;
    session->has_mesh = calloc(1, 1);
    session->sync_tensors = calloc(1, sizeof *session->sync_tensors);
    if (!session->has_mesh || !session->sync_tensors)
        abort();
    session->state = DT_CLIENT_LIVE;
    session->credit_bytes = credit_bytes;
    session->is_ticking = true;
    dt_arena_init(&session->io.arena, DT_WIRE_ARENA_MAX);
    return session;
}
