/* One exchange, as a state machine. See transport.h for its phases. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "transport/transport_internal.h"

/* ---- words ---- */

static dt_board_slot_t *own_slot(dt_transport_session_t *session)
{
    return &session->board->slots[session->world.self];
}

static void wake(dt_transport_session_t *session, uint32_t member)
{
    dt_transport_peer_t *peer = &session->peers[member];
    dt_board_slot_t *slot = &session->board->slots[member];
    if (!atomic_load_explicit(&peer->is_here, memory_order_acquire) || peer->wake < 0)
        return;
    if (atomic_load_explicit(&slot->is_asleep, memory_order_seq_cst) &&
        atomic_exchange_explicit(&slot->is_asleep, 0, memory_order_seq_cst))
        dt_ring_wake(peer->wake);
}

/* Move our word, and wake those who wait for it. */
static void arrive(dt_transport_session_t *session, dt_board_phase_t phase)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    dt_reduce_fence();
    atomic_store_explicit(&own_slot(session)->word, dt_board_word(session->run.number, phase),
                          memory_order_seq_cst);
    for (uint32_t i = 0; i < plan->member_count; i++)
        if (plan->members[i] != session->world.self)
            wake(session, plan->members[i]);
}

void dt_exchange_quit(dt_transport_session_t *session)
{
    if (!session->board)
        return;
    atomic_store_explicit(&own_slot(session)->word, DT_BOARD_QUIT, memory_order_seq_cst);
    for (uint32_t i = 0; i < session->member_count; i++)
        if (i != session->world.self)
            wake(session, i);
}

void dt_exchange_set_asleep(dt_transport_session_t *session, bool is_asleep)
{
    atomic_store_explicit(&own_slot(session)->is_asleep, is_asleep, memory_order_seq_cst);
}

typedef enum arrival {
    ARRIVAL_NOT_YET,
    ARRIVAL_THERE,
    ARRIVAL_FAILED, /* it says so itself */
    ARRIVAL_GONE,   /* and will not come any more */
} arrival_t;

static arrival_t look(dt_transport_session_t *session, uint32_t member, dt_board_phase_t phase)
{
    uint64_t wanted = dt_board_word(session->run.number, phase);
    const dt_board_slot_t *slot = &session->board->slots[member];
    const dt_board_member_t *it = &session->board->members[member];
    /* In this order: what it did before it was lost counts. */
    bool is_lost = atomic_load_explicit(&it->is_lost, memory_order_seq_cst);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_seq_cst);
    if (word == DT_BOARD_QUIT)
        return ARRIVAL_GONE;
    if (word == dt_board_word(session->run.number, DT_BOARD_FAILED))
        return ARRIVAL_FAILED;
    if (word >= wanted)
        return ARRIVAL_THERE;
    return is_lost ? ARRIVAL_GONE : ARRIVAL_NOT_YET;
}

/* ---- failing ---- */

static void text_copy(char *out, size_t size, const char *text)
{
    size_t length = strnlen(text, size - 1);
    for (size_t i = 0; i < length; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] < 127 ? text[i] : '?');
    out[length] = '\0';
}

/* The first failure counts; the end is waited for all the same. */
static void fail(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_board_slot_t *slot = own_slot(session);
    run->result.status = run->result.err.code;
    slot->failed_code = run->result.status;
    text_copy(slot->text, sizeof slot->text, run->result.err.text);
    run->state = DT_TRANSPORT_WAIT_DONE;
    run->wait = 0;
    arrive(session, DT_BOARD_FAILED);
}

/* It is we who cannot go on: say who that is. */
static void fail_here(dt_transport_session_t *session)
{
    const dt_board_member_t *it = &session->board->members[session->world.self];
    char node[sizeof it->node];
    dt_error_t why = session->run.result.err;
    text_copy(node, sizeof node, it->node);
    (void)dt_fail(&session->run.result.err, why.code, "dt", why.source_code,
                  "%.300s (device %" PRIu32 " on node %s)", why.text, it->device, node);
    fail(session);
}

/* All end with the words of who failed first. */
static void fail_of(dt_transport_session_t *session, uint32_t member, arrival_t arrival)
{
    dt_transport_run_t *run = &session->run;
    const dt_board_member_t *it = &session->board->members[member];
    const dt_board_slot_t *slot = &session->board->slots[member];
    char node[sizeof it->node];
    char text[sizeof slot->text];
    if (run->result.status != DT_OK)
        return;
    text_copy(node, sizeof node, it->node);
    text_copy(text, sizeof text, slot->text);
    int32_t code = slot->failed_code;
    if (arrival == ARRIVAL_GONE)
        (void)dt_fail(&run->result.err, DT_ERR_LOST, "dt", it->device,
                      "%s: the engine of device %" PRIu32 " on node %s was lost in it",
                      run->plan->text, it->device, node);
    else
        (void)dt_fail(&run->result.err,
                      code < 0 && code >= DT_ERR_INTERNAL ? (dt_status_t)code : DT_ERR_PEER, "dt",
                      it->device, "%s", text);
    run->result.status = run->result.err.code;
}

/* Whether all members have come to `phase`; a failure on the way ends the exchange. */
static bool all_there(dt_transport_session_t *session, dt_board_phase_t phase)
{
    dt_transport_run_t *run = &session->run;
    for (; run->wait < run->plan->member_count; run->wait++) {
        uint32_t member = run->plan->members[run->wait];
        arrival_t arrival =
            member == session->world.self ? ARRIVAL_THERE : look(session, member, phase);
        if (arrival == ARRIVAL_NOT_YET)
            return false;
        if (arrival == ARRIVAL_THERE)
            continue;
        fail_of(session, member, arrival);
        if (phase < DT_BOARD_DONE) {
            fail(session);
            return false;
        }
    }
    run->wait = 0;
    return true;
}

/* ---- buffers ---- */

static bool is_in_arena(const dt_transport_session_t *session, const void *block)
{
    return session->arena && dt_shm_arena_of(block) == session->arena;
}

static dt_exchange_place_t *place_of(dt_exchange_plan_t *plan, uint32_t vdev)
{
    for (uint32_t i = 0; i < plan->place_count; i++)
        if (plan->places[i].vdev == vdev)
            return &plan->places[i];
    return NULL;
}

static void buffers_forget(dt_exchange_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->place_count; i++) {
        plan->places[i].source = NULL;
        plan->places[i].target = NULL;
    }
    for (uint32_t i = 0; i < plan->piece_count; i++) {
        plan->pieces[i].is_done = false;
        plan->pieces[i].staged = 0;
    }
}

static bool buffers_set(dt_transport_run_t *run)
{
    dt_exchange_plan_t *plan = run->plan;
    buffers_forget(plan);
    for (uint32_t i = 0; i < run->buffer_count; i++) {
        dt_exchange_place_t *place = place_of(plan, run->buffers[i].vdev);
        if (!place)
            continue;
        place->source = run->buffers[i].source;
        place->target = run->buffers[i].target;
    }
    for (uint32_t i = 0; i < plan->place_count; i++) {
        const dt_exchange_place_t *place = &plan->places[i];
        if (place->reach == DT_EXCHANGE_OWN && ((place->source_count > 0 && !place->source) ||
                                                (place->target_count > 0 && !place->target))) {
            (void)dt_fail(&run->result.err, DT_ERR_INVALID, "dt", (int64_t)place->vdev,
                          "%s: virtual device %" PRIu64 " has no buffer", plan->text, place->vdev);
            return false;
        }
    }
    return true;
}

/* Where peers can reach it: in the arena, else in a block that stands for it. */
static void *reachable(dt_transport_session_t *session, const void *bytes, size_t size,
                       bool is_source, void **ret_stage)
{
    void *block;
    memcpy(&block, &bytes, sizeof block); /* a source is only read */
    if (is_in_arena(session, bytes))
        return block;
    block = *ret_stage = session->arena ? dt_shm_arena_alloc(session->arena, size) : NULL;
    if (block && is_source)
        memcpy(block, bytes, size);
    return block;
}

static bool stages_make(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; i < run->buffer_count; i++) {
        dt_exchange_place_t *place = place_of(run->plan, run->buffers[i].vdev);
        dt_transport_stage_t *stage = &run->stages[i];
        *stage = (dt_transport_stage_t){NULL, NULL};
        if (!place || place->reach != DT_EXCHANGE_OWN)
            continue;
        size_t source = (size_t)place->source_count * run->plan->item_bytes;
        size_t target = (size_t)place->target_count * run->plan->item_bytes;
        if (source > 0)
            place->source = reachable(session, place->source, source, true, &stage->source);
        if (target > 0)
            place->target = reachable(session, place->target, target, false, &stage->target);
        if ((source > 0 && !place->source) || (target > 0 && !place->target)) {
            (void)dt_fail(&run->result.err, DT_ERR_LIMIT, "dt", (int64_t)(source + target),
                          "%s: no room for %zu bytes on their way", run->plan->text,
                          source + target);
            return false;
        }
    }
    return true;
}

static void stages_drop(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; i < run->buffer_count; i++) {
        const dt_exchange_place_t *place = place_of(run->plan, run->buffers[i].vdev);
        dt_transport_stage_t *stage = &run->stages[i];
        if (stage->target && place && run->result.status == DT_OK)
            memcpy(run->buffers[i].target, stage->target,
                   (size_t)place->target_count * run->plan->item_bytes);
        if (stage->source)
            dt_shm_arena_free(session->arena, stage->source);
        if (stage->target)
            dt_shm_arena_free(session->arena, stage->target);
        *stage = (dt_transport_stage_t){NULL, NULL};
    }
}

static uint64_t offset_of(const dt_transport_session_t *session, const void *block)
{
    return block ? dt_shm_arena_offset(session->arena, block) : DT_BOARD_NOWHERE;
}

static void publish(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_board_slot_t *slot = own_slot(session);
    slot->cause_bytes = run->result.cause.size;
    slot->cause_sequence = run->result.cause.sequence;
    if (run->result.cause.size > 0) {
        memcpy(slot->cause, run->cause, run->result.cause.size);
    } else if (!buffers_set(run) || !stages_make(session)) {
        fail_here(session);
        return;
    }
    for (uint32_t i = 0; run->result.cause.size == 0 && i < run->plan->place_count; i++) {
        const dt_exchange_place_t *place = &run->plan->places[i];
        dt_board_buffer_t *buffer = &session->board->buffers[place->vdev];
        if (place->reach != DT_EXCHANGE_OWN)
            continue;
        atomic_store_explicit(&buffer->source, offset_of(session, place->source),
                              memory_order_relaxed);
        atomic_store_explicit(&buffer->target, offset_of(session, place->target),
                              memory_order_relaxed);
    }
    run->state = DT_TRANSPORT_WAIT_PUBLISHED;
    run->wait = 0;
    arrive(session, DT_BOARD_PUBLISHED);
}

/* ---- what the others have published ---- */

/* Take the cause with the smallest sequence. Returns whether there is one. */
static bool causes_read(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        const dt_board_slot_t *slot = &session->board->slots[member];
        uint32_t bytes = slot->cause_bytes;
        uint64_t sequence = slot->cause_sequence;
        if (member == session->world.self || bytes == 0 || bytes > DT_BOARD_CAUSE_MAX)
            continue;
        if (run->result.cause.size > 0 && run->result.cause.sequence <= sequence)
            continue;
        memcpy(run->cause, slot->cause, bytes);
        run->result.cause = (dt_exchange_cause_t){sequence, bytes, run->cause};
    }
    return run->result.cause.size > 0;
}

/* A place in a peer's arena; NULL: it is not inside. */
static uint8_t *peer_memory(const dt_transport_peer_t *peer, uint64_t offset, uint64_t size,
                            uint32_t item_bytes)
{
    if (!peer->arena || offset > peer->arena_bytes || size > peer->arena_bytes - offset ||
        offset % item_bytes != 0)
        return NULL;
    return peer->arena + offset;
}

static bool peers_resolve(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_exchange_plan_t *plan = run->plan;
    for (uint32_t i = 0; i < plan->place_count; i++) {
        dt_exchange_place_t *place = &plan->places[i];
        const dt_board_buffer_t *buffer = &session->board->buffers[place->vdev];
        if (place->reach != DT_EXCHANGE_SHARED)
            continue;
        const dt_transport_peer_t *peer = &session->peers[place->member];
        uint64_t source = (uint64_t)place->source_count * plan->item_bytes;
        uint64_t target = (uint64_t)place->target_count * plan->item_bytes;
        if (source > 0)
            place->source =
                peer_memory(peer, atomic_load_explicit(&buffer->source, memory_order_relaxed),
                            source, plan->item_bytes);
        if (target > 0)
            place->target =
                peer_memory(peer, atomic_load_explicit(&buffer->target, memory_order_relaxed),
                            target, plan->item_bytes);
        if ((source > 0 && !place->source) || (target > 0 && !place->target)) {
            (void)dt_fail(&run->result.err, DT_ERR_PEER, "dt", (int64_t)place->vdev,
                          "%s: virtual device %" PRIu64 " says a place outside of its memory",
                          plan->text, place->vdev);
            return false;
        }
    }
    return true;
}

/* Everybody's arena must be mapped before anything is read. */
static bool peers_are_here(dt_transport_session_t *session)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    for (uint32_t i = 0; i < plan->member_count; i++) {
        uint32_t member = plan->members[i];
        if (member != session->world.self &&
            !atomic_load_explicit(&session->peers[member].is_here, memory_order_acquire))
            return false;
    }
    return true;
}

static bool begin(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (!all_there(session, DT_BOARD_PUBLISHED))
        return run->state != DT_TRANSPORT_WAIT_PUBLISHED;
    if (!peers_are_here(session))
        return false;
    run->next = 0;
    if (causes_read(session)) {
        run->state = DT_TRANSPORT_WAIT_DONE;
        arrive(session, DT_BOARD_DONE);
    } else if (!peers_resolve(session)) {
        fail_here(session);
    } else {
        dt_exchange_plan_fill(run->plan);
        run->state = DT_TRANSPORT_WAVE0;
    }
    return true;
}

/* ---- pieces ---- */

/* Make some pieces of a wave. Returns whether all of it is done. */
static bool pieces_run(dt_transport_run_t *run, unsigned wave, uint32_t most)
{
    const dt_exchange_plan_t *plan = run->plan;
    for (; run->next < plan->piece_count && plan->pieces[run->next].wave == wave; run->next++) {
        if (most-- == 0)
            return false;
        dt_exchange_piece_run(plan, &plan->pieces[run->next]);
    }
    return true;
}

static bool wave0(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (!pieces_run(run, 0, DT_TRANSPORT_TURN_PIECES))
        return true;
    run->wait = 0;
    if (run->plan->has_pulls) {
        run->state = DT_TRANSPORT_WAIT_WAVE0;
        arrive(session, DT_BOARD_WAVE0);
    } else {
        run->state = DT_TRANSPORT_WAVE1;
    }
    return true;
}

static bool wave1(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (!pieces_run(run, 1, DT_TRANSPORT_TURN_PIECES))
        return true;
    run->state = DT_TRANSPORT_WAIT_DONE;
    arrive(session, DT_BOARD_DONE);
    return true;
}

static bool wait_wave0(dt_transport_session_t *session)
{
    if (!all_there(session, DT_BOARD_WAVE0))
        return session->run.state != DT_TRANSPORT_WAIT_WAVE0;
    session->run.state = DT_TRANSPORT_WAVE1;
    return true;
}

static bool wait_done(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (!all_there(session, DT_BOARD_DONE))
        return false;
    stages_drop(session);
    if (run->result.cause.size > 0)
        run->result.status = DT_ERR_PEER;
    run->state = DT_TRANSPORT_ENDED;
    return true;
}

bool dt_exchange_step(dt_transport_session_t *session)
{
    switch (session->run.state) {
    case DT_TRANSPORT_PUBLISH:
        publish(session);
        return true;
    case DT_TRANSPORT_WAIT_PUBLISHED:
        return begin(session);
    case DT_TRANSPORT_WAVE0:
        return wave0(session);
    case DT_TRANSPORT_WAIT_WAVE0:
        return wait_wave0(session);
    case DT_TRANSPORT_WAVE1:
        return wave1(session);
    case DT_TRANSPORT_WAIT_DONE:
        return wait_done(session);
    default:
        return false;
    }
}

void dt_exchange_run_here(dt_transport_run_t *run)
{
    run->next = 0;
    if (run->result.cause.size > 0) {
        run->result.status = DT_ERR_PEER;
    } else if (buffers_set(run)) {
        dt_exchange_plan_fill(run->plan);
        (void)pieces_run(run, 0, UINT32_MAX);
        (void)pieces_run(run, 1, UINT32_MAX);
        dt_reduce_fence();
    }
    run->result.status = run->result.err.code != DT_OK ? run->result.err.code : run->result.status;
    run->state = DT_TRANSPORT_ENDED;
}
