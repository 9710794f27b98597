/* Tensors that move between the engines of a session, as a model of what lib/transport promises:
 * all members come to the same record, all end alike, nobody waits for a member that it knows to be
 * lost, members that do not know each other (they were bound at other times) do not wait at all.
 * How an engine learns of a loss: its connection ends, or, where a machine lost its power, the
 * controller says so and nothing else does. */
#include <inttypes.h>

#include "stream.h"

static stream_exchange_t *find(stream_t *s, uint64_t session, uint64_t sequence)
{
    for (int i = s->exchange_count - 1; i >= 0; i--)
        if (s->exchanges[i].session == session && s->exchanges[i].sequence == sequence)
            return &s->exchanges[i];
    if (s->exchange_count == STREAM_EXCHANGES) {
        stream_fail(s, "more exchanges than the simulator has");
        return NULL;
    }
    s->exchanges[s->exchange_count] = (stream_exchange_t){.session = session, .sequence = sequence};
    return &s->exchanges[s->exchange_count++];
}

static uint32_t members_of(const stream_place_t *place)
{
    uint32_t members = 0;
    for (uint32_t i = 0; i < place->count; i++)
        members |= 1u << place->vdevs[i];
    return members;
}

static void poison(stream_exchange_t *e, uint64_t cause)
{
    if (!e->cause || cause < e->cause)
        e->cause = cause;
}

static void publish(stream_t *s, stream_exchange_t *e, int instance, uint64_t input,
                    uint32_t from_members, uint32_t members)
{
    const stream_instance_t *in = &s->instances[instance];
    uint32_t storage = in->storage_of[input];
    for (uint32_t v = 0; v < s->vdev_count; v++) {
        if (!(members >> v & 1) || in->vdev_device[v] == UINT32_MAX || e->published >> v & 1)
            continue;
        e->published |= 1u << v;
        e->instances[v] = instance;
        e->values[v] = in->values[storage][v];
        if (from_members >> v & 1 && in->poison[storage][v])
            poison(e, in->poison[storage][v]);
    }
}

/* The instance that a member is looked for at; NULL: it is not there (yet, or any more). */
static const stream_instance_t *peer_of(const stream_t *s, const stream_instance_t *in, uint32_t v)
{
    for (int i = 0; i < s->instance_count; i++) {
        const stream_instance_t *peer = &s->instances[i];
        if (peer->is_used && peer->session == in->session && peer->node == in->all_node[v] &&
            peer->own >> v & 1)
            return peer;
    }
    return NULL;
}

/* Whether it knows us as we know it. */
static bool knows(const stream_t *s, const stream_instance_t *peer, const stream_instance_t *in)
{
    for (uint32_t v = 0; v < s->vdev_count; v++)
        if (in->own >> v & 1 && peer->all_node[v] != in->node)
            return false;
    return true;
}

/* 1: it has come; 0: it is waited for; -1: it never will. */
static int look_for(const stream_t *s, const stream_exchange_t *e, const stream_instance_t *in,
                    uint32_t v)
{
    const stream_instance_t *peer;
    if (in->own >> v & 1)
        return in->vdev_device[v] == UINT32_MAX ? -1 : 1;
    if (in->all_node[v] < 0 || in->gone_ns[v] <= s->now_ns)
        return -1;
    peer = peer_of(s, in, v);
    if (!peer)
        return 0;
    if (!knows(s, peer, in))
        return -1;
    if (peer->node != in->node && !(in->has_door[peer->node] && peer->has_door[in->node]))
        return 0;
    return e->published >> v & 1 ? 1 : 0;
}

static void give(const stream_t *s, stream_instance_t *in, const stream_exchange_t *e,
                 const stream_queued_t *what)
{
    uint64_t output = what->output;
    const stream_place_t *from = &s->places[what->from], *at = &s->places[what->to];
    for (uint32_t i = 0; i < at->count; i++) {
        uint32_t v = at->vdevs[i];
        if (in->vdev_device[v] == UINT32_MAX)
            continue;
        in->poison[output][v] = e->cause;
        in->values[output][v] = stream_moved(from, e->values, i);
    }
}

/* The program has said its Bye: instances end one by one. */
static bool is_over(const stream_t *s, uint64_t session)
{
    for (int i = 0; i < STREAM_CLIENTS; i++)
        if (s->clients[i].session == session)
            return s->clients[i].is_done;
    return true; /* one whose Welcome was lost */
}

bool stream_exchange_run(stream_t *s, int instance, uint64_t sequence, const stream_queued_t *what)
{
    stream_instance_t *in = &s->instances[instance];
    uint32_t sources = members_of(&s->places[what->from]);
    uint32_t members = sources | members_of(&s->places[what->to]);
    stream_exchange_t *e = find(s, in->session, sequence);
    bool is_whole = true;
    if (!e)
        return true;
    publish(s, e, instance, what->input, sources, members);
    for (uint32_t v = 0; v < s->vdev_count && !e->is_over; v++) {
        int is_there = members >> v & 1 ? look_for(s, e, in, v) : 1;
        is_whole &= is_there == 1;
        if (is_there >= 0)
            continue;
        stream_trace(s, "exchange %" PRIu64 " of session %" PRIu64 " ends without vdev %u",
                     sequence, in->session, v);
        poison(e, sequence);
        s->exchanges_cut++;
        e->is_over = true;
        if (!s->losses && !is_over(s, in->session))
            stream_fail(s, "an exchange was ended though nothing was lost");
    }
    e->is_over |= is_whole;
    if (!e->is_over)
        return false;
    give(s, in, e, what);
    return true;
}

void stream_exchange_break(stream_t *s, int instance, uint32_t vdevs)
{
    const stream_instance_t *gone = &s->instances[instance];
    for (int i = 0; i < s->instance_count; i++) {
        stream_instance_t *in = &s->instances[i];
        if (!in->is_used || i == instance || in->session != gone->session || !knows(s, gone, in))
            continue;
        for (uint32_t v = 0; v < s->vdev_count; v++) {
            int64_t at_ns = s->now_ns + (int64_t)stream_random(s, 50 * STREAM_MS);
            if (vdevs >> v & 1 && in->all_node[v] == gone->node && at_ns < in->gone_ns[v])
                in->gone_ns[v] = at_ns;
        }
    }
}
