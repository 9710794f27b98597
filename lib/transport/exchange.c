/* One exchange, as a state machine. See transport.h for its phases. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "transport/grouped.h"
#include "transport/transport_internal.h"

static void text_copy(char *out, size_t size, const char *text)
{
    size_t length = strnlen(text, size - 1);
    for (size_t i = 0; i < length; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] < 127 ? text[i] : '?');
    out[length] = '\0';
}

/* ---- words ---- */

static dt_board_slot_t *own_slot(dt_transport_session_t *session)
{
    return &session->board->slots[session->world.self];
}

static void wake(dt_transport_session_t *session, uint32_t member)
{
    dt_transport_peer_t *peer = &session->peers[member];
    dt_board_slot_t *slot = &session->board->slots[member];
    if (!atomic_load_explicit(&peer->is_here, memory_order_acquire) || peer->link)
        return;
    if (atomic_load_explicit(&slot->is_asleep, memory_order_seq_cst) &&
        atomic_exchange_explicit(&slot->is_asleep, 0, memory_order_seq_cst))
        dt_ring_wake(peer->wake);
}

/* Say our word to a member on another host, with what belongs to it. */
static void tell(dt_transport_session_t *session, uint32_t member)
{
    dt_transport_peer_t *peer = &session->peers[member];
    const dt_board_slot_t *slot = own_slot(session);
    uint64_t number = session->run.number;
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    uint64_t published = dt_board_word(number, DT_BOARD_PUBLISHED);
    dt_link_head_t head = {.kind = DT_LINK_WORD, .phase = word & 7, .number = number};
    if (!atomic_load_explicit(&peer->is_here, memory_order_acquire) || peer->told >= word ||
        word < published)
        return;
    if (peer->told < published && head.phase != DT_BOARD_FAILED) {
        const dt_link_head_t first = {.kind = DT_LINK_WORD,
                                      .phase = DT_BOARD_PUBLISHED,
                                      .number = number,
                                      .sequence = slot->cause_sequence,
                                      .size = slot->cause_bytes};
        (void)dt_link_say(peer->link, &first, slot->cause);
    }
    if (head.phase == DT_BOARD_FAILED) {
        head.code = slot->failed_code;
        head.size = (uint32_t)strnlen(slot->text, DT_LINK_TEXT_MAX - 1);
    }
    if (head.phase >= DT_BOARD_DONE)
        (void)dt_link_say(peer->link, &head, slot->text);
    peer->told = word;
}

/* Move our word, and wake those who wait for it. */
static void arrive(dt_transport_session_t *session, dt_board_phase_t phase)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    dt_reduce_fence();
    atomic_store_explicit(&own_slot(session)->word, dt_board_word(session->run.number, phase),
                          memory_order_seq_cst);
    for (uint32_t i = 0; i < plan->member_count; i++)
        if (session->is_remote[plan->members[i]])
            tell(session, plan->members[i]);
        else if (plan->members[i] != session->world.self)
            wake(session, plan->members[i]);
}

void dt_exchange_quit(dt_transport_session_t *session, const char *why)
{
    if (!session->board)
        return;
    text_copy(own_slot(session)->text, sizeof own_slot(session)->text, why);
    atomic_store_explicit(&own_slot(session)->word, DT_BOARD_QUIT, memory_order_seq_cst);
    for (uint32_t i = 0; i < session->member_count; i++)
        if (session->peers[i].link)
            dt_link_close(session->peers[i].link);
        else if (i != session->world.self)
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

/* What a member has said. */
static uint64_t word_of(dt_transport_session_t *session, uint32_t member, bool *ret_is_lost)
{
    const dt_transport_peer_t *peer = &session->peers[member];
    const dt_board_member_t *it = &session->board->members[member];
    /* In this order: what it did before it was lost counts. */
    *ret_is_lost = atomic_load_explicit(&it->is_lost, memory_order_seq_cst);
    if (!session->is_remote[member])
        return atomic_load_explicit(&session->board->slots[member].word, memory_order_seq_cst);
    if (!atomic_load_explicit(&peer->is_here, memory_order_acquire))
        return 0;
    *ret_is_lost |= peer->link->is_broken;
    return peer->link->word;
}

static arrival_t look(dt_transport_session_t *session, uint32_t member, dt_board_phase_t phase)
{
    bool is_lost;
    uint64_t word = word_of(session, member, &is_lost);
    if (word == DT_BOARD_QUIT)
        return ARRIVAL_GONE;
    if (word == dt_board_word(session->run.number, DT_BOARD_FAILED))
        return ARRIVAL_FAILED;
    if (word >= dt_board_word(session->run.number, phase))
        return ARRIVAL_THERE;
    return is_lost ? ARRIVAL_GONE : ARRIVAL_NOT_YET;
}

/* ---- failing ---- */

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
    const dt_link_t *link = session->peers[member].link;
    char node[sizeof it->node];
    char text[sizeof slot->text];
    if (run->result.status != DT_OK)
        return;
    text_copy(node, sizeof node, it->node);
    text_copy(text, sizeof text, link ? link->text : slot->text);
    int32_t code = link ? link->failed_code : slot->failed_code;
    bool is_lost = atomic_load_explicit(&it->is_lost, memory_order_seq_cst);
    bool is_known = is_lost && it->why[0];
    bool has_said = !is_lost && !link && text[0]; /* it has left by itself */
    if (arrival == ARRIVAL_GONE && is_known)
        text_copy(text, sizeof text, it->why);
    if (arrival == ARRIVAL_GONE && is_known)
        (void)dt_fail(&run->result.err, DT_ERR_LOST, "dt", it->device,
                      "%s: device %" PRIu32 " on node %s cannot be reached: %.128s",
                      run->plan->text, it->device, node, text);
    else if (arrival == ARRIVAL_GONE && has_said)
        (void)dt_fail(&run->result.err, DT_ERR_LOST, "dt", it->device,
                      "%s: device %" PRIu32 " on node %s has left: %.300s", run->plan->text,
                      it->device, node, text);
    else if (arrival == ARRIVAL_GONE)
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
        if (member == session->world.self ||
            (phase == DT_BOARD_WAVE0 && session->is_remote[member]))
            continue; /* what is made on other hosts comes by itself */
        arrival_t arrival = look(session, member, phase);
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
    for (uint32_t i = 0; i < plan->piece_count; i++)
        plan->pieces[i].is_done = false;
    dt_exchange_stages_free(plan);
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

static void links_begin(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    run->has_links = run->has_wave0 = false;
    for (uint32_t i = 0; i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        run->has_links |= session->is_remote[member];
        if (session->is_remote[member] &&
            atomic_load_explicit(&session->peers[member].is_here, memory_order_acquire))
            dt_link_begin(session->peers[member].link);
    }
}

static void publish(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_board_slot_t *slot = own_slot(session);
    links_begin(session);
    slot->cause_bytes = run->result.cause.size;
    slot->cause_sequence = run->result.cause.sequence;
    if (run->result.cause.size > 0) {
        memcpy(slot->cause, run->cause, run->result.cause.size);
    } else if (!buffers_set(run) ||
               !(run->is_grouped ? dt_exchange_group_offer(session) : stages_make(session))) {
        fail_here(session);
        return;
    }
    bool has_places = run->result.cause.size == 0 && !run->is_grouped;
    for (uint32_t i = 0; has_places && i < run->plan->place_count; i++) {
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

static void cause_take(dt_transport_run_t *run, const uint8_t *cause, uint32_t bytes,
                       uint64_t sequence)
{
    if (bytes == 0 || bytes > DT_BOARD_CAUSE_MAX ||
        (run->result.cause.size > 0 && run->result.cause.sequence <= sequence))
        return;
    memcpy(run->cause, cause, bytes);
    run->result.cause = (dt_exchange_cause_t){sequence, bytes, run->cause};
}

/* Take the cause with the smallest sequence. Returns whether there is one. */
static bool causes_read(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        const dt_board_slot_t *slot = &session->board->slots[member];
        const dt_link_t *link = session->peers[member].link;
        if (link)
            cause_take(run, link->cause, link->cause_bytes, link->cause_sequence);
        else if (member != session->world.self)
            cause_take(run, slot->cause, slot->cause_bytes, slot->cause_sequence);
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

/* Everybody's arena must be mapped before anything is read. That of a member which was lost before
 * we came to the session will not be: it has published all the same. */
static bool peers_are_here(dt_transport_session_t *session)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    for (uint32_t i = 0; i < plan->member_count; i++) {
        uint32_t member = plan->members[i];
        bool is_lost;
        if (member == session->world.self ||
            atomic_load_explicit(&session->peers[member].is_here, memory_order_acquire))
            continue;
        (void)word_of(session, member, &is_lost);
        if (is_lost) {
            fail_of(session, member, ARRIVAL_GONE);
            fail(session);
        }
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
        return run->state != DT_TRANSPORT_WAIT_PUBLISHED;
    run->next = 0;
    if (causes_read(session)) {
        run->state = DT_TRANSPORT_WAIT_DONE;
        arrive(session, DT_BOARD_DONE);
    } else if (run->is_grouped) {
        run->state = DT_TRANSPORT_GROUP;
        if (!dt_exchange_group_begin(session))
            fail_here(session);
    } else if (!peers_resolve(session)) {
        fail_here(session);
    } else {
        dt_exchange_plan_fill(run->plan);
        run->state = DT_TRANSPORT_WAVE0;
    }
    return true;
}

/* ---- pieces ---- */

/* What a piece brings from one device of this host to another. Parts go to one device, which gives
 * what they make to the others; one part goes to all at once. */
static void count_moved(const dt_transport_session_t *session, const dt_exchange_piece_t *piece)
{
    const dt_exchange_place_t *places = session->run.plan->places;
    const dt_exchange_plan_t *plan = session->run.plan;
    uint32_t to = places[piece->to.place].vdev, giver = to;
    uint64_t boxes = 0;
    if (!session->moved)
        return;
    if (piece->part_count == 1)
        giver = places[piece->parts[0].place].vdev;
    for (uint32_t i = 0; i < piece->part_count; i++)
        boxes += !(piece->stages && piece->stages[i]) && places[piece->parts[i].place].vdev != to;
    for (uint32_t i = 0; i < piece->push_count; i++)
        boxes += places[piece->pushes[i].place].vdev != giver;
    (void)atomic_fetch_add_explicit(&session->moved[DT_ENGINE_MOVED_MEMORY],
                                    boxes * dt_exchange_box_bytes(plan, piece->sizes),
                                    memory_order_relaxed);
}

static void piece_make(dt_transport_session_t *session, dt_exchange_piece_t *piece)
{
    const dt_exchange_plan_t *plan = session->run.plan;
    dt_exchange_piece_run(plan, piece);
    count_moved(session, piece);
    piece->is_done = true;
    for (uint32_t i = 0; piece->stages && i < piece->part_count; i++) {
        if (!piece->stages[i])
            continue;
        free(piece->stages[i]);
        piece->stages[i] = NULL;
        session->peers[plan->places[piece->parts[i].place].member].link->ahead--;
    }
}

typedef enum progress { PROGRESS_NONE, PROGRESS_SOME, PROGRESS_ALL } progress_t;

/* Make some pieces of a wave, those whose parts are here. */
static progress_t pieces_run(dt_transport_session_t *session, unsigned wave, uint32_t most)
{
    dt_transport_run_t *run = &session->run;
    dt_exchange_plan_t *plan = run->plan;
    progress_t progress = PROGRESS_NONE;
    uint32_t looks = DT_TRANSPORT_LOOK_PIECES;
    for (uint32_t i = run->next; i < plan->piece_count && plan->pieces[i].wave == wave; i++) {
        dt_exchange_piece_t *piece = &plan->pieces[i];
        if (looks == 0 || most == 0)
            return progress;
        if (!piece->is_done && piece->staged == piece->remote_count) {
            piece_make(session, piece);
            progress = PROGRESS_SOME;
            most--;
        }
        if (piece->is_done && i == run->next)
            run->next++;
        else
            looks--;
    }
    bool is_all = run->next == plan->piece_count || plan->pieces[run->next].wave != wave;
    return is_all ? PROGRESS_ALL : progress;
}

static bool wave0(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    progress_t progress = pieces_run(session, 0, DT_TRANSPORT_TURN_PIECES);
    if (progress != PROGRESS_ALL)
        return progress == PROGRESS_SOME;
    run->wait = 0;
    run->has_wave0 = true;
    if (run->plan->has_pulls) {
        run->state = DT_TRANSPORT_WAIT_WAVE0;
        arrive(session, DT_BOARD_WAVE0);
    } else {
        run->state = DT_TRANSPORT_WAVE1;
    }
    return true;
}

static bool wait_wave0(dt_transport_session_t *session)
{
    if (!all_there(session, DT_BOARD_WAVE0))
        return session->run.state != DT_TRANSPORT_WAIT_WAVE0;
    session->run.state = DT_TRANSPORT_WAVE1;
    return true;
}

/* ---- links ---- */

static dt_link_turn_t turn_of(const dt_transport_session_t *session, uint32_t member)
{
    const dt_transport_run_t *run = &session->run;
    bool has_failed = run->result.err.code != DT_OK;
    bool is_moving = run->state >= DT_TRANSPORT_WAVE0 && run->state <= DT_TRANSPORT_WAVE1;
    return (dt_link_turn_t){.plan = run->plan,
                            .number = run->number,
                            .member = member,
                            .may_send = is_moving && !has_failed,
                            .has_wave0 = run->has_wave0,
                            .is_discarded = has_failed,
                            .came = session->moved ? &session->moved[DT_ENGINE_MOVED_LINK] : NULL};
}

/* The link to a member of the exchange; NULL: it is on this host, or not connected yet. */
static dt_link_t *link_of(const dt_transport_session_t *session, uint32_t member)
{
    const dt_transport_peer_t *peer = &session->peers[member];
    bool is_here =
        session->is_remote[member] && atomic_load_explicit(&peer->is_here, memory_order_acquire);
    return is_here ? peer->link : NULL;
}

static bool links_pump(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    bool has_moved = false;
    for (uint32_t i = 0; run->has_links && i < run->plan->member_count; i++) {
        dt_link_t *link = link_of(session, run->plan->members[i]);
        if (!link)
            continue;
        tell(session, run->plan->members[i]);
        dt_link_turn_t turn = turn_of(session, run->plan->members[i]);
        has_moved |= dt_link_pump(link, &turn);
    }
    return has_moved;
}

/* Who waits for boxes from another host sees here that they will not come. */
static bool links_are_sound(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; run->has_links && i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        arrival_t arrival =
            session->is_remote[member] ? look(session, member, DT_BOARD_DONE) : ARRIVAL_NOT_YET;
        if (arrival != ARRIVAL_FAILED && arrival != ARRIVAL_GONE)
            continue;
        fail_of(session, member, arrival);
        fail(session);
        return false;
    }
    return true;
}

static bool links_are_sent(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; run->has_links && i < run->plan->member_count; i++) {
        dt_link_t *link = link_of(session, run->plan->members[i]);
        dt_link_turn_t turn = turn_of(session, run->plan->members[i]);
        if (link && !dt_link_is_sent(link, &turn))
            return false;
    }
    return true;
}

/* ---- groups ---- */

/* The library does not notice that a member is gone; the board does. */
static bool group_is_whole(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    for (uint32_t i = 0; i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        arrival_t arrival =
            member == session->world.self ? ARRIVAL_NOT_YET : look(session, member, DT_BOARD_DONE);
        if (arrival != ARRIVAL_FAILED && arrival != ARRIVAL_GONE)
            continue;
        dt_exchange_group_leave(session);
        fail_of(session, member, arrival);
        fail(session);
        return false;
    }
    return true;
}

static bool group_step(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    bool has_moved;
    if (!group_is_whole(session))
        return true;
    dt_status_t status = dt_exchange_group_step(session, &has_moved);
    if (status == DT_ERR_AGAIN)
        return has_moved;
    if (status != DT_OK) {
        dt_exchange_group_leave(session);
        fail_here(session);
        return true;
    }
    run->state = DT_TRANSPORT_WAIT_DONE;
    run->wait = 0;
    arrive(session, DT_BOARD_DONE);
    return true;
}

/* ---- the end ---- */

static bool wave1(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    progress_t progress = pieces_run(session, 1, DT_TRANSPORT_TURN_PIECES);
    if (progress != PROGRESS_ALL || !links_are_sent(session))
        return progress == PROGRESS_SOME;
    run->state = DT_TRANSPORT_WAIT_DONE;
    run->wait = 0;
    arrive(session, DT_BOARD_DONE);
    return true;
}

static bool has_failed_word(dt_transport_session_t *session)
{
    return atomic_load_explicit(&own_slot(session)->word, memory_order_relaxed) ==
           dt_board_word(session->run.number, DT_BOARD_FAILED);
}

static bool wait_done(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (!all_there(session, DT_BOARD_DONE))
        return false;
    stages_drop(session);
    if (run->result.cause.size > 0)
        run->result.status = DT_ERR_PEER;
    else if (run->result.status == DT_OK)
        dt_exchange_group_decide(session);
    else if (run->is_grouped)
        dt_exchange_group_leave(session);
    run->state = DT_TRANSPORT_LEAVE;
    if (!has_failed_word(session))
        arrive(session, DT_BOARD_ENDED);
    return true;
}

/* Who has failed stays until nobody can miss it; words to other hosts are on their way first. */
static bool leave(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    if (has_failed_word(session) && !all_there(session, DT_BOARD_FAILED))
        return false;
    for (uint32_t i = 0; run->has_links && i < run->plan->member_count; i++) {
        uint32_t member = run->plan->members[i];
        const dt_link_t *link = link_of(session, member);
        bool is_lost =
            atomic_load_explicit(&session->board->members[member].is_lost, memory_order_acquire);
        if (link && !link->is_broken && !is_lost && dt_link_has_more(link))
            return false;
    }
    dt_exchange_stages_free(run->plan);
    run->state = DT_TRANSPORT_ENDED;
    return true;
}

uint32_t dt_exchange_polls(const dt_transport_session_t *session, struct pollfd *fds, uint32_t max)
{
    const dt_transport_run_t *run = &session->run;
    uint32_t count = 0;
    for (uint32_t i = 0; run->has_links && i < run->plan->member_count && count < max; i++) {
        const dt_link_t *link = link_of(session, run->plan->members[i]);
        if (link && !link->is_broken)
            fds[count++] = (struct pollfd){.fd = link->fd, .events = dt_link_events(link)};
    }
    return count;
}

static bool state_step(dt_transport_session_t *session)
{
    switch (session->run.state) {
    case DT_TRANSPORT_PUBLISH:
        publish(session);
        return true;
    case DT_TRANSPORT_WAIT_PUBLISHED:
        return begin(session);
    case DT_TRANSPORT_WAVE0:
        return !links_are_sound(session) || wave0(session);
    case DT_TRANSPORT_WAIT_WAVE0:
        return wait_wave0(session);
    case DT_TRANSPORT_WAVE1:
        return !links_are_sound(session) || wave1(session);
    case DT_TRANSPORT_WAIT_DONE:
        return wait_done(session);
    case DT_TRANSPORT_LEAVE:
        return leave(session);
    case DT_TRANSPORT_GROUP:
        return group_step(session);
    default:
        return false;
    }
}

bool dt_exchange_step(dt_transport_session_t *session)
{
    bool has_moved = links_pump(session);
    return state_step(session) || has_moved;
}

void dt_exchange_run_here(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    run->next = 0;
    if (run->result.cause.size > 0) {
        run->result.status = DT_ERR_PEER;
    } else if (buffers_set(run)) {
        dt_exchange_plan_fill(run->plan);
        while (pieces_run(session, 0, UINT32_MAX) != PROGRESS_ALL)
            ;
        while (pieces_run(session, 1, UINT32_MAX) != PROGRESS_ALL)
            ;
        dt_reduce_fence();
    }
    run->result.status = run->result.err.code != DT_OK ? run->result.err.code : run->result.status;
    run->state = DT_TRANSPORT_ENDED;
}
