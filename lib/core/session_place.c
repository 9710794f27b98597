/* Nodes as sessions see them: which device a vdev is bound to, and what happens when one is lost.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/session_internal.h"

#define REBINDS_MAX   16u /* of one session, in a minute */
#define STILLBORN_MAX 3u  /* in a row */
#define REBINDS_NS    (60 * DT_SESSION_SECOND_NS)

/* ---- devices ---- */

static uint32_t position_of(const dt_session_place_t *place, uint32_t device)
{
    for (uint32_t i = 0; i < place->device_count; i++)
        if (place->devices[i].index == device)
            return i;
    return UINT32_MAX;
}

static void count_bound(dt_session_place_t *place, uint32_t device, int by)
{
    uint32_t at = position_of(place, device);
    if (at != UINT32_MAX)
        place->bound[at] = (uint32_t)((int)place->bound[at] + by);
}

/* Backends that a program that names none gets, best first. */
static int rank_of(const dt_session_device_t *device)
{
    static const char *const last[] = {"ref", "sim"};
    int rank = dt_str_is_equal(device->backend, "torch") ? 0 : 1;
    for (int i = 0; i < 2; i++)
        if (dt_str_is_equal(device->backend, last[i]))
            rank = 2 + i;
    return 2 * rank + dt_str_is_equal(device->kind, "cpu");
}

static bool fits(const dt_session_device_t *device, const char *kind, const char *backend)
{
    return device->is_usable && (!*kind || dt_str_is_equal(device->kind, kind)) &&
           (!*backend || dt_str_is_equal(device->backend, backend));
}

/* The device that fits, has the best rank, and the fewest vdevs. */
static dt_session_place_t *pick(const dt_sessions_t *sessions, const char *kind,
                                const char *backend, uint32_t *ret_at)
{
    dt_session_place_t *best = NULL;
    int best_rank = 0;
    for (uint32_t i = 0; i < sessions->place_count; i++) {
        dt_session_place_t *place = sessions->places[i];
        if (!place->takes_work || !place->stream)
            continue;
        for (uint32_t k = 0; k < place->device_count; k++) {
            int rank = rank_of(&place->devices[k]);
            if (!fits(&place->devices[k], kind, backend))
                continue;
            if (best && (rank > best_rank ||
                         (rank == best_rank && place->bound[k] >= best->bound[*ret_at])))
                continue;
            best = place;
            best_rank = rank;
            *ret_at = k;
        }
    }
    return best;
}

static dt_session_link_t *link_at(const dt_session_t *session, const dt_session_place_t *place)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (link->place == place && link->round == session->bind_round)
            return link;
    }
    return NULL;
}

/* With one device for all: that of any vdev that has one. */
static dt_session_place_t *same_as_others(const dt_session_t *session, uint32_t *ret_at)
{
    for (uint32_t i = 0; session->is_one_device && i < session->vdev_count; i++)
        if (session->vdevs[i].link) {
            *ret_at = position_of(session->vdevs[i].place, session->vdevs[i].device);
            return *ret_at == UINT32_MAX ? NULL : session->vdevs[i].place;
        }
    return NULL;
}

/* Bind one vdev; vdevs that are bound to one node in one round share a link. A node is told once
 * which vdevs an instance has; later it can only lose some. */
static dt_status_t bind_one(dt_sessions_t *sessions, dt_session_t *session, uint32_t index,
                            const char *kind, const char *backend)
{
    dt_session_vdev_t *vdev = &session->vdevs[index];
    uint32_t at = 0;
    dt_session_place_t *place = same_as_others(session, &at);
    dt_session_link_t *link;
    if (!place)
        place = pick(sessions, kind, backend, &at);
    if (!place)
        return DT_ERR_AGAIN;
    link = link_at(session, place);
    if (!link)
        link = dt_session_link_new(sessions, session, place);
    if (!link)
        return DT_ERR_NOMEM;
    vdev->place = place;
    vdev->link = link;
    vdev->device = place->devices[at].index;
    session->unbound -= vdev->cause != 0;
    vdev->cause = 0;
    (void)dt_str_copy(vdev->kind, sizeof vdev->kind, place->devices[at].kind);
    (void)dt_str_copy(vdev->backend, sizeof vdev->backend, place->devices[at].backend);
    place->bound[at]++;
    return DT_OK;
}

static void links_engines(dt_session_t *session)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next)
        dt_session_link_engines(DT_CONTAINER_OF(at, dt_session_link_t, list));
}

static dt_status_t nothing_fits(const dt_sessions_t *sessions, const char *kind,
                                const char *backend, dt_error_t *err)
{
    uint32_t ready = 0, devices = 0;
    for (uint32_t i = 0; i < sessions->place_count; i++) {
        const dt_session_place_t *place = sessions->places[i];
        if (!place->takes_work || !place->stream)
            continue;
        ready++;
        for (uint32_t k = 0; k < place->device_count; k++)
            devices += place->devices[k].is_usable;
    }
    return dt_fail(err, DT_ERR_AGAIN, "dt", 0,
                   "no ready device%s%.15s%s%.31s: %" PRIu32 " nodes take work, with %" PRIu32
                   " usable devices",
                   *kind ? " of kind " : "", kind, *backend ? " with backend " : "", backend, ready,
                   devices);
}

dt_status_t dt_session_bind(dt_sessions_t *sessions, dt_session_t *session,
                            const Dtorch__V1__SessionHello *hello, dt_error_t *err)
{
    const char *kind = hello->device_kind, *backend = hello->backend;
    for (uint32_t i = 0; i < session->vdev_count; i++) {
        dt_status_t status = bind_one(sessions, session, i, kind, backend);
        if (status == DT_ERR_AGAIN)
            return nothing_fits(sessions, kind, backend, err);
        if (status != DT_OK)
            return dt_fail(err, status, "dt", 0, "out of memory");
        kind = session->vdevs[0].kind; /* all of a session are alike */
        backend = session->vdevs[0].backend;
    }
    links_engines(session);
    return DT_OK;
}

void dt_session_unbind(dt_session_t *session)
{
    for (uint32_t i = 0; i < session->vdev_count; i++)
        if (session->vdevs[i].place)
            count_bound(session->vdevs[i].place, session->vdevs[i].device, -1);
    for (uint32_t i = 0; i < session->vdev_count; i++)
        session->vdevs[i].place = NULL;
}

Dtorch__V1__VdevBinding **dt_session_bindings(const dt_session_t *session,
                                              const dt_session_link_t *only, dt_arena_t *arena,
                                              size_t *ret_count)
{
    Dtorch__V1__VdevBinding **list =
        dt_arena_calloc(arena, session->vdev_count ? session->vdev_count : 1, sizeof *list);
    Dtorch__V1__VdevBinding *all = dt_arena_calloc(arena, session->vdev_count, sizeof *all);
    size_t count = 0;
    if (!list || !all)
        return NULL;
    for (uint32_t i = 0; i < session->vdev_count; i++) {
        const dt_session_vdev_t *vdev = &session->vdevs[i];
        if (only ? vdev->link != only : !vdev->place)
            continue;
        dtorch__v1__vdev_binding__init(&all[count]);
        all[count].vdev = i;
        all[count].node = vdev->place->name;
        all[count].device = vdev->device;
        all[count].kind = DT_SESSION_TEXT(vdev->kind);
        all[count].backend = DT_SESSION_TEXT(vdev->backend);
        all[count].boot_id = vdev->place->boot_id;
        list[count] = &all[count];
        count++;
    }
    *ret_count = count;
    return list;
}

/* ---- loss ---- */

struct loss {
    dt_sessions_t *sessions;
    dt_session_t *session;
    uint32_t cause;
    bool *is_lost; /* (vdev_count) */
    uint64_t *ids; /* (DT_SESSION_FAULT_IDS) */
    uint32_t id_count;
    uint64_t tensors;
    uint64_t operators;
};

/* A tensor on several devices is lost with any of them. */
static bool is_lost_spot(const struct loss *loss, uint32_t spot)
{
    const dt_session_mesh_t *mesh = dt_session_spot_mesh(loss->session, spot);
    if (!mesh)
        return loss->is_lost[spot];
    for (uint32_t i = 0; i < mesh->shard.count; i++)
        if (loss->is_lost[mesh->vdevs[i]])
            return true;
    return false;
}

/* Found out once for each place, as there may be a million tensors on a mesh of thousands. */
static bool *lost_spots(const struct loss *loss)
{
    uint32_t count = loss->session->vdev_count + loss->session->spot_count;
    bool *is_lost = calloc(count, sizeof *is_lost);
    for (uint32_t spot = 0; is_lost && spot < count; spot++)
        is_lost[spot] = is_lost_spot(loss, spot);
    return is_lost;
}

static void lose_tensors(struct loss *loss)
{
    dt_session_t *session = loss->session;
    const dt_session_map_t *map = &session->tensors;
    bool *is_lost = lost_spots(loss);
    for (uint64_t i = 0; map->entries && i <= map->mask; i++) {
        dt_session_storage_t *storage;
        if (map->entries[i].id == 0)
            continue;
        storage = &session->storages[map->entries[i].value];
        bool is_gone = is_lost ? is_lost[storage->spot] : is_lost_spot(loss, storage->spot);
        if (!is_gone || (storage->cause && storage->cause != loss->cause))
            continue;
        storage->cause = loss->cause;
        loss->tensors++;
        if (loss->id_count < DT_SESSION_FAULT_IDS)
            loss->ids[loss->id_count++] = map->entries[i].id;
    }
    free(is_lost);
}

static void lose_answers(struct loss *loss)
{
    dt_session_t *session = loss->session;
    for (uint32_t i = 0; i < session->future_count; i++) {
        dt_session_future_t *f = &session->futures[session->future_head + i];
        if (f->result && f->has_transfer && loss->is_lost[f->vdev]) {
            /* Its bytes may not be whole. A client that has them all forgets this answer. */
            session->results_bytes -= f->size;
            free(DT_TAKE(f->result));
            f->has_transfer = false;
        }
        if (!f->result && loss->is_lost[f->vdev])
            dt_session_answer(loss->sessions, session, f->future, loss->cause);
    }
    for (uint32_t i = 0; i < session->transfer_count; i++) {
        dt_session_transfer_t *t = &session->transfers[session->transfer_head + i];
        if (t->vdev == UINT32_MAX || !loss->is_lost[t->vdev])
            continue;
        dt_session_bulk_fail(loss->sessions, session, t->transfer,
                             dt_session_cause_of(session, loss->cause));
        t->vdev = UINT32_MAX;
    }
}

/* Take the lost vdevs off their devices and their link, and end that when none is left. */
static void release(struct loss *loss, dt_session_link_t *link, const char *reason)
{
    dt_session_t *session = loss->session;
    bool is_empty = true;
    for (uint32_t i = 0; i < session->vdev_count; i++) {
        dt_session_vdev_t *vdev = &session->vdevs[i];
        if (!loss->is_lost[i]) {
            is_empty &= vdev->link != link;
            continue;
        }
        count_bound(vdev->place, vdev->device, -1);
        vdev->place = NULL;
        vdev->link = NULL;
        vdev->cause = loss->cause;
        session->unbound++;
    }
    dt_session_spots_update(session);
    if (is_empty)
        dt_session_link_remove(loss->sessions, link, reason);
}

/* Bind what has no device, if there is one. */
static bool rebind(dt_sessions_t *sessions, dt_session_t *session)
{
    uint32_t unbound = session->unbound;
    session->bind_round++;
    if (sessions->now_ns - session->rebinds.since_ns >= REBINDS_NS) {
        session->rebinds = (dt_session_bucket_t){.since_ns = sessions->now_ns};
        session->stillborn = 0;
    }
    if (session->rebinds.count >= REBINDS_MAX || session->stillborn >= STILLBORN_MAX ||
        sessions->is_stopping)
        return false;
    for (uint32_t i = 0; i < session->vdev_count; i++) {
        char kind[16], backend[32];
        if (session->vdevs[i].link)
            continue;
        (void)dt_str_copy(kind, sizeof kind, session->vdevs[i].kind);
        (void)dt_str_copy(backend, sizeof backend, session->vdevs[i].backend);
        (void)!bind_one(sessions, session, i, kind, backend);
    }
    links_engines(session);
    dt_session_spots_update(session);
    if (session->unbound == unbound)
        return false;
    session->rebinds.count++;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (!link->stream)
            dt_session_link_open(sessions, link);
    }
    return true;
}

static void tell(struct loss *loss, const char *node)
{
    dt_sessions_t *sessions = loss->sessions;
    dt_session_t *session = loss->session;
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Fault fault = DTORCH__V1__FAULT__INIT;
    Dtorch__V1__OperatorError error = *dt_session_cause_of(session, loss->cause);
    uint8_t *packed;
    size_t size;
    dt_arena_reset(&sessions->sig_arena);
    fault.error = &error;
    fault.tensors = loss->ids;
    fault.n_tensors = loss->id_count;
    fault.tensor_count = loss->tensors;
    fault.operators_lost = loss->operators;
    fault.bindings = dt_session_bindings(session, NULL, &sessions->sig_arena, &fault.n_bindings);
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_FAULT;
    down.fault = &fault;
    if (*node)
        dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-fault", session, node,
                         error.kind, "job %" PRIu64 " lost %" PRIu64 " tensors on %s: %s",
                         session->id, loss->tensors, node, error.text);
    if (session->stream) {
        dt_sessions_send(sessions, session->stream->id, &down.base);
    } else if (session->fault_count < DT_SESSION_FAULTS_MAX &&
               dt_wire_pack_new(&down.base, &packed, &size) == DT_OK) {
        session->faults[session->fault_count].packed = packed;
        session->faults[session->fault_count++].size = (uint32_t)size;
    }
}

/* How many records the engine of a lost vdev had and did not execute. */
static void count_operators(struct loss *loss, const dt_session_link_t *link)
{
    for (uint32_t i = 0; i < link->engine_count; i++) {
        uint64_t lost = loss->session->next_sequence - 1 - link->engines[i].executed;
        if (!loss->is_lost[link->engines[i].vdev])
            continue;
        if (lost > loss->operators)
            loss->operators = lost;
        if (link->engines[i].executed >= link->join)
            loss->session->stillborn = 0;
        else
            loss->session->stillborn++;
    }
}

static bool mark_lost(struct loss *loss, const dt_session_link_t *link, const uint32_t *vdevs,
                      size_t count)
{
    bool is_any = false;
    for (uint32_t i = 0; i < loss->session->vdev_count; i++) {
        bool is_named = vdevs == NULL;
        for (size_t k = 0; k < count && !is_named; k++)
            is_named = vdevs[k] == i;
        loss->is_lost[i] = is_named && loss->session->vdevs[i].link == link;
        is_any |= loss->is_lost[i];
    }
    return is_any;
}

static void lose(struct loss *loss, dt_session_link_t *link, const Dtorch__V1__OperatorError *error)
{
    dt_sessions_t *sessions = loss->sessions;
    dt_session_t *session = loss->session;
    char node[64];
    (void)dt_str_copy(node, sizeof node, link->place->name);
    loss->cause = dt_session_cause(session, error);
    count_operators(loss, link);
    lose_tensors(loss);
    release(loss, link, error->text);
    /* One of them may be what the engine died of: asked again, they would end the next one too. */
    dt_session_answer_queries(sessions, session);
    (void)rebind(sessions, session);
    tell(loss, node); /* before the answers, so that the program knows why */
    lose_answers(loss);
    dt_session_settle(sessions, session);
    dt_session_pump(sessions, session);
}

void dt_session_lose(dt_sessions_t *sessions, dt_session_link_t *link, const uint32_t *vdevs,
                     size_t count, const Dtorch__V1__OperatorError *error)
{
    dt_session_t *session = link->session;
    struct loss loss = {.sessions = sessions, .session = session};
    loss.is_lost = calloc(session->vdev_count, sizeof *loss.is_lost);
    loss.ids = malloc(DT_SESSION_FAULT_IDS * sizeof *loss.ids);
    if (!loss.is_lost || !loss.ids)
        dt_session_finish(sessions, session, "out of memory");
    else if (mark_lost(&loss, link, vdevs, count))
        lose(&loss, link, error);
    free(loss.is_lost);
    free(loss.ids);
}

static void lose_place(dt_sessions_t *sessions, dt_session_place_t *place, const char *why)
{
    Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
    char text[256];
    (void)snprintf(text, sizeof text, "node %s %s", place->name, why);
    error.code = DT_ERR_LOST;
    error.kind = DT_SESSION_TEXT("WorkerLost");
    error.text = text;
    error.node = place->name;
    while (!dt_list_is_empty(&place->links)) {
        dt_session_link_t *link = DT_CONTAINER_OF(place->links.next, dt_session_link_t, node_list);
        bool takes_work = place->takes_work;
        dt_list_t *first = place->links.next;
        place->takes_work = false; /* while its old life is buried, none is bound to the new one */
        dt_session_lose(sessions, link, NULL, 0, &error);
        place->takes_work = takes_work;
        if (place->links.next == first)
            return; /* no memory: the session was ended, or keeps what cannot be helped */
    }
}

/* ---- nodes ---- */

static dt_session_place_t *place_of(dt_sessions_t *sessions, const char *name)
{
    dt_session_place_t *place, **grown;
    for (uint32_t i = 0; i < sessions->place_count; i++)
        if (dt_str_is_equal(sessions->places[i]->name, name))
            return sessions->places[i];
    if (sessions->place_count == sessions->place_cap) {
        uint32_t cap = sessions->place_cap ? 2 * sessions->place_cap : 16;
        grown = realloc(sessions->places, cap * sizeof(void *));
        if (!grown)
            return NULL;
        sessions->places = grown;
        sessions->place_cap = cap;
    }
    place = calloc(1, sizeof *place);
    if (!place)
        return NULL;
    dt_list_init(&place->links);
    (void)dt_str_copy(place->name, sizeof place->name, name);
    sessions->places[sessions->place_count++] = place;
    return place;
}

/* Without memory the place keeps those that it had. */
static void take_devices(dt_session_place_t *place, const dt_session_node_t *node)
{
    uint32_t count = node->device_count < 64 ? node->device_count : 64;
    dt_session_device_t *devices = calloc(count + 1, sizeof *devices);
    uint32_t *bound = calloc(count + 1, sizeof *bound);
    if (!devices || !bound) {
        free(devices);
        free(bound);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before = position_of(place, node->devices[i].index);
        devices[i] = node->devices[i];
        bound[i] = before == UINT32_MAX ? 0 : place->bound[before];
    }
    free(place->devices);
    free(place->bound);
    place->devices = devices;
    place->bound = bound;
    place->device_count = count;
}

void dt_session_place_free(dt_session_place_t *place)
{
    free(place->devices);
    free(place->bound);
    free(place);
}

/* A device came: sessions that lack one get it, and their clients are told. */
static void heal(dt_sessions_t *sessions)
{
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next) {
        dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        struct loss loss = {.sessions = sessions, .session = session};
        if (!session->unbound)
            continue;
        for (uint32_t i = 0; i < session->vdev_count; i++)
            if (session->vdevs[i].cause)
                loss.cause = session->vdevs[i].cause;
        if (rebind(sessions, session))
            tell(&loss, "");
    }
}

static void forget_place(dt_sessions_t *sessions, dt_session_place_t *place)
{
    for (uint32_t i = 0; i < sessions->place_count; i++)
        if (sessions->places[i] == place) {
            sessions->places[i] = sessions->places[--sessions->place_count];
            dt_session_place_free(place);
            return;
        }
}

void dt_sessions_node(dt_sessions_t *sessions, const dt_session_node_t *node, int64_t now_ns)
{
    dt_session_place_t *place = place_of(sessions, node->name);
    bool is_new_life, is_new_stream;
    dt_sessions_set_now(sessions, now_ns);
    if (!place)
        return;
    is_new_life = place->incarnation && node->incarnation != place->incarnation;
    is_new_stream = node->stream && node->stream != place->stream;
    place->incarnation = node->incarnation;
    place->stream = node->stream;
    place->takes_work = node->takes_work;
    place->is_stopped = node->is_stopped;
    (void)dt_str_copy(place->boot_id, sizeof place->boot_id, node->boot_id);
    take_devices(place, node);
    if (is_new_life)
        lose_place(sessions, place, "began a new life");
    if (node->stream)
        place->away_since_ns = 0;
    else if (!place->away_since_ns)
        place->away_since_ns = now_ns;
    if (is_new_stream)
        for (dt_list_t *at = place->links.next; at != &place->links; at = at->next)
            dt_session_link_open(sessions, DT_CONTAINER_OF(at, dt_session_link_t, node_list));
    if (place->is_stopped && !place->stream) {
        lose_place(sessions, place, "was stopped");
        if (dt_list_is_empty(&place->links))
            forget_place(sessions, place);
    } else if (place->takes_work && place->stream) {
        heal(sessions);
    }
}

static void check_place(dt_sessions_t *sessions, dt_session_place_t *place)
{
    bool is_connected = false;
    for (dt_list_t *at = place->links.next; at != &place->links; at = at->next)
        is_connected |= DT_CONTAINER_OF(at, dt_session_link_t, node_list)->stream != 0;
    if (!place->stream && !is_connected &&
        sessions->now_ns - place->away_since_ns >= sessions->options.lost_ns)
        lose_place(sessions, place, "is dead");
}

/* A node that is there and does not serve what it was asked to. */
static dt_session_link_t *unserved(const dt_sessions_t *sessions, dt_session_place_t *place)
{
    for (dt_list_t *at = place->links.next; at != &place->links; at = at->next) {
        dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, node_list);
        if (!link->stream && sessions->now_ns - link->unserved_ns >= DT_SESSION_UNSERVED_NS)
            return link;
    }
    return NULL;
}

void dt_sessions_places_turn(dt_sessions_t *sessions)
{
    heal(sessions);
    for (uint32_t i = 0; i < sessions->place_count; i++) {
        dt_session_place_t *place = sessions->places[i];
        Dtorch__V1__OperatorError error = DTORCH__V1__OPERATOR_ERROR__INIT;
        dt_session_link_t *link;
        if (dt_list_is_empty(&place->links))
            continue;
        check_place(sessions, place);
        link = unserved(sessions, place);
        if (!link)
            continue;
        error.code = DT_ERR_LOST;
        error.kind = DT_SESSION_TEXT("WorkerLost");
        error.text = DT_SESSION_TEXT("the node does not serve the session");
        error.node = place->name;
        dt_session_lose(sessions, link, NULL, 0, &error);
    }
}
