#include "transport/transport.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/memfd.h"
#include "shm/ring.h"
#include "transport/grouped.h"
#include "transport/transport_internal.h"

/* Turns without progress before the thread sleeps: first it only pauses, then it gives the core to
 * whoever is late. A peer is never spun for long: it may need this very core. */
#define DT_TRANSPORT_PAUSES 50u
#define DT_TRANSPORT_YIELDS 200u
/* What an executor does itself: two hand-overs to the thread would take longer. */
#define DT_TRANSPORT_SMALL_BYTES ((uint64_t)256 << 10)
/* How often an executor that sleeps is woken to look at its groups: a device wakes nobody. */
#define DT_TRANSPORT_GROUP_MS 1

struct dt_transport {
    dt_transport_options_t options;
    int wake;
    bool owns_wake;
    dt_list_t sessions; /* executor */
    dt_list_t grouped;  /* executor: sessions whose exchange goes by a group */
    _Atomic uint32_t grouped_count;
    pthread_t thread;
    bool has_thread; /* executor */
    uint32_t cores;
    _Atomic bool is_asleep;
    _Atomic bool has_ended; /* something is in `ended` */
    pthread_mutex_t lock;   /* the rest */
    pthread_cond_t left;    /* a session that closes has left the thread */
    dt_list_t mails;        /* sessions whose run begins */
    dt_list_t ended;
    bool is_stopping;
    struct pollfd polls[DT_TRANSPORT_POLLS_MAX]; /* the thread's */
};

/* ---- the thread ---- */

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Turns to only pause in: none where there are more engines than cores, as one of them is late for
 * want of ours. */
static uint32_t pauses_of(const dt_transport_t *transport, const dt_transport_session_t *session)
{
    return session->run.plan->member_count > transport->cores ? 0 : DT_TRANSPORT_PAUSES;
}

static void rest(uint32_t idle, uint32_t pauses)
{
    if (idle >= pauses)
        (void)sched_yield();
    else
        cpu_pause();
}

/* Take what the executor has handed over. False: the end. */
static bool mails_take(dt_transport_t *transport, dt_list_t *running)
{
    dt_list_t *at;
    pthread_mutex_lock(&transport->lock);
    while ((at = dt_list_pop(&transport->mails)) != NULL)
        dt_list_push(running, at);
    bool goes_on = !transport->is_stopping;
    pthread_mutex_unlock(&transport->lock);
    return goes_on;
}

/* Give a session back to the executor. */
static void hand_back(dt_transport_t *transport, dt_transport_session_t *session)
{
    dt_list_remove(&session->run_link);
    dt_exchange_set_asleep(session, false);
    pthread_mutex_lock(&transport->lock);
    session->is_running = false;
    dt_list_push(&transport->ended, &session->run_link);
    atomic_store_explicit(&transport->has_ended, true, memory_order_release);
    pthread_cond_broadcast(&transport->left);
    pthread_mutex_unlock(&transport->lock);
    if (transport->options.executor >= 0)
        dt_ring_wake(transport->options.executor);
}

static bool step_all(dt_transport_t *transport, dt_list_t *running)
{
    bool has_progressed = false;
    for (dt_list_t *at = running->next; at != running;) {
        dt_transport_session_t *session = DT_CONTAINER_OF(at, dt_transport_session_t, run_link);
        at = at->next;
        if (atomic_load_explicit(&session->is_closing, memory_order_acquire)) {
            hand_back(transport, session);
            has_progressed = true;
            continue;
        }
        has_progressed |= dt_exchange_step(session);
        if (session->run.state == DT_TRANSPORT_ENDED)
            hand_back(transport, session);
    }
    return has_progressed;
}

static void say_asleep(dt_list_t *running, bool is_asleep)
{
    for (dt_list_t *at = running->next; at != running; at = at->next)
        dt_exchange_set_asleep(DT_CONTAINER_OF(at, dt_transport_session_t, run_link), is_asleep);
}

/* Sleep until somebody has moved, or the executor has brought something. */
static void thread_sleep(dt_transport_t *transport, dt_list_t *running)
{
    struct pollfd *fds = transport->polls;
    uint32_t count = 1;
    fds[0] = (struct pollfd){.fd = transport->wake, .events = POLLIN};
    /* Who moves from now on wakes us; who moved before is seen here. What the executor brings may
     * wait for a peer already, so it is said of that, too. */
    atomic_store_explicit(&transport->is_asleep, true, memory_order_seq_cst);
    bool goes_on = mails_take(transport, running);
    say_asleep(running, true);
    bool is_idle = goes_on && !step_all(transport, running);
    for (dt_list_t *at = running->next; at != running; at = at->next)
        count += dt_exchange_polls(DT_CONTAINER_OF(at, dt_transport_session_t, run_link),
                                   fds + count, DT_TRANSPORT_POLLS_MAX - count);
    bool has_groups = atomic_load_explicit(&transport->grouped_count, memory_order_seq_cst) > 0;
    int patience_ms = has_groups ? DT_TRANSPORT_GROUP_MS : -1;
    if (is_idle) /* sockets that there is no room for are looked at often */
        (void)poll(fds, count, count < DT_TRANSPORT_POLLS_MAX ? patience_ms : 1);
    if (has_groups && transport->options.executor >= 0)
        dt_ring_wake(transport->options.executor);
    if (fds[0].revents)
        dt_ring_wake_clear(transport->wake);
    atomic_store_explicit(&transport->is_asleep, false, memory_order_seq_cst);
    say_asleep(running, false);
}

/* How long to look before sleeping. Looking at sockets costs system calls. */
static uint32_t tries_of(const dt_transport_t *transport, dt_list_t *running, uint32_t *ret_pauses)
{
    *ret_pauses = DT_TRANSPORT_PAUSES;
    if (dt_list_is_empty(running))
        return 0;
    for (dt_list_t *at = running->next; at != running; at = at->next) {
        const dt_transport_session_t *session =
            DT_CONTAINER_OF(at, dt_transport_session_t, run_link);
        uint32_t pauses = pauses_of(transport, session);
        *ret_pauses = pauses < *ret_pauses ? pauses : *ret_pauses;
        if (session->run.has_links)
            return 2;
    }
    return *ret_pauses + DT_TRANSPORT_YIELDS;
}

static void *thread_main(void *arg)
{
    dt_transport_t *transport = arg;
    dt_list_t running;
    uint32_t idle = 0;
    dt_list_init(&running);
    while (mails_take(transport, &running)) {
        if (step_all(transport, &running)) {
            idle = 0;
            continue;
        }
        uint32_t pauses;
        idle++;
        if (idle >= tries_of(transport, &running, &pauses)) {
            thread_sleep(transport, &running);
            idle = 0;
        } else {
            rest(idle, pauses);
        }
    }
    while (!dt_list_is_empty(&running))
        hand_back(transport, DT_CONTAINER_OF(running.next, dt_transport_session_t, run_link));
    return NULL;
}

static void thread_wake(dt_transport_t *transport)
{
    if (atomic_load_explicit(&transport->is_asleep, memory_order_seq_cst))
        dt_ring_wake(transport->wake);
}

/* ---- life ---- */

dt_status_t dt_transport_create(const dt_transport_options_t *options,
                                dt_transport_t **ret_transport, dt_error_t *err)
{
    dt_transport_t *transport = calloc(1, sizeof *transport);
    if (!transport)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the transport");
    transport->options = *options;
    transport->wake = options->wake;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    transport->cores = cores > 0 ? (uint32_t)cores : 1;
    if (transport->wake < 0) {
        dt_status_t status = dt_ring_wake_create(&transport->wake, err);
        if (status != DT_OK) {
            free(transport);
            return status;
        }
        transport->owns_wake = true;
    }
    dt_list_init(&transport->sessions);
    dt_list_init(&transport->grouped);
    dt_list_init(&transport->mails);
    dt_list_init(&transport->ended);
    (void)pthread_mutex_init(&transport->lock, NULL);
    (void)pthread_cond_init(&transport->left, NULL);
    *ret_transport = transport;
    return DT_OK;
}

void dt_transport_free(dt_transport_t *transport)
{
    if (!transport)
        return;
    while (!dt_list_is_empty(&transport->sessions))
        dt_transport_close(
            transport,
            DT_CONTAINER_OF(transport->sessions.next, dt_transport_session_t, link)->instance);
    if (transport->has_thread) {
        pthread_mutex_lock(&transport->lock);
        transport->is_stopping = true;
        pthread_mutex_unlock(&transport->lock);
        dt_ring_wake(transport->wake);
        (void)pthread_join(transport->thread, NULL);
    }
    (void)pthread_cond_destroy(&transport->left);
    (void)pthread_mutex_destroy(&transport->lock);
    if (transport->owns_wake)
        (void)close(transport->wake);
    free(transport);
}

static dt_status_t thread_start(dt_transport_t *transport, dt_error_t *err)
{
    if (transport->has_thread)
        return DT_OK;
    int code = pthread_create(&transport->thread, NULL, thread_main, transport);
    if (code)
        return dt_fail(err, DT_ERR_LIMIT, "errno", code, "no thread for the transport: %s",
                       strerror(code));
    transport->has_thread = true;
    return DT_OK;
}

/* ---- sessions ---- */

static dt_transport_session_t *session_find(dt_transport_t *transport, uint32_t instance)
{
    for (dt_list_t *at = transport->sessions.next; at != &transport->sessions; at = at->next) {
        dt_transport_session_t *session = DT_CONTAINER_OF(at, dt_transport_session_t, link);
        if (session->instance == instance)
            return session;
    }
    return NULL;
}

static void session_free(dt_transport_session_t *session)
{
    for (uint32_t i = 0; session->peers && i < session->member_count; i++) {
        dt_memfd_unmap(session->peers[i].arena, session->peers[i].arena_bytes);
        dt_transport_link_free(session->peers[i].link);
        if (session->peers[i].wake >= 0)
            (void)close(session->peers[i].wake);
    }
    dt_exchange_groups_free(session);
    dt_board_close(session->board);
    free(session->peers);
    free(session->members);
    free(session->hosts);
    free(session->is_remote);
    free(session->run.buffers);
    free(session->run.stages);
    free(session->run.cause);
    free(session);
}

dt_status_t dt_transport_open(dt_transport_t *transport, uint32_t instance, dt_shm_arena_t *arena,
                              const uint32_t *vdevs, uint32_t vdev_count, dt_error_t *err)
{
    if (session_find(transport, instance))
        return dt_fail(err, DT_ERR_EXISTS, "dt", instance, "instance %u is open", instance);
    dt_transport_session_t *session = calloc(1, sizeof *session);
    if (session) {
        session->members = malloc(DT_BOARD_VDEVS_MAX * sizeof *session->members);
        session->run.cause = malloc(DT_TRANSPORT_CAUSE_MAX);
    }
    if (!session || !session->members || !session->run.cause) {
        if (session)
            session_free(session);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    }
    session->owner = transport;
    session->moved = transport->options.moved;
    session->owner_groups = transport->options.groups;
    session->group_ctx = transport->options.group_ctx;
    session->instance = instance;
    session->arena = arena;
    memset(session->members, 0xff, DT_BOARD_VDEVS_MAX * sizeof *session->members);
    for (uint32_t i = 0; i < vdev_count; i++)
        if (vdevs[i] < DT_BOARD_VDEVS_MAX)
            session->members[vdevs[i]] = 0;
    session->world.vdev_count = DT_BOARD_VDEVS_MAX;
    session->world.members = session->members;
    dt_list_init(&session->run_link);
    dt_list_push(&transport->sessions, &session->link);
    return DT_OK;
}

/* Take the agent's word for who runs what; what is in the board may change, this does not. */
static bool world_read(dt_transport_session_t *session, const dt_board_t *board, uint32_t self)
{
    session->member_count = board->member_count;
    session->peers = calloc(session->member_count, sizeof *session->peers);
    session->hosts = calloc(DT_BOARD_VDEVS_MAX, sizeof *session->hosts);
    session->is_remote = calloc(DT_EXCHANGE_MEMBERS_MAX, sizeof *session->is_remote);
    if (!session->peers || !session->hosts || !session->is_remote)
        return false;
    for (uint32_t i = 0; i < session->member_count; i++) {
        session->peers[i].wake = -1;
        session->is_remote[i] = board->members[i].host != board->members[self].host;
    }
    for (uint32_t i = 0; i < DT_BOARD_VDEVS_MAX; i++) {
        uint16_t member = board->member_of[i];
        bool is_there = member < session->member_count;
        session->members[i] = is_there ? member : DT_EXCHANGE_NOBODY;
        session->hosts[i] = is_there ? board->members[member].host : 0;
    }
    session->world.self = self;
    session->world.hosts = session->hosts;
    session->world.is_remote = session->is_remote;
    return true;
}

dt_status_t dt_transport_board(dt_transport_t *transport, uint32_t instance, int board_fd,
                               uint32_t self, dt_error_t *err)
{
    dt_transport_session_t *session = session_find(transport, instance);
    dt_board_t *board;
    if (!session)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", instance, "instance %u is not open", instance);
    if (session->board)
        return dt_fail(err, DT_ERR_EXISTS, "dt", instance, "instance %u has a board", instance);
    DT_TRY(dt_board_open(board_fd, &board, err));
    if (self >= board->member_count) {
        dt_board_close(board);
        return dt_fail(err, DT_ERR_INVALID, "dt", self, "the board has no member %u", self);
    }
    if (!world_read(session, board, self)) {
        dt_board_close(board);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    }
    session->board = board;
    atomic_store_explicit(&board->slots[self].has_groups, session->owner_groups != NULL,
                          memory_order_release);
    return DT_OK;
}

dt_status_t dt_transport_peer(dt_transport_t *transport, uint32_t instance, uint32_t member,
                              int arena_fd, int wake_fd, dt_error_t *err)
{
    dt_transport_session_t *session = session_find(transport, instance);
    void *map;
    if (!session || !session->board || member >= session->member_count ||
        member == session->world.self || session->is_remote[member])
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", member, "instance %u has no member %u here",
                       instance, member);
    dt_transport_peer_t *peer = &session->peers[member];
    if (atomic_load_explicit(&peer->is_here, memory_order_relaxed))
        return dt_fail(err, DT_ERR_EXISTS, "dt", member, "member %u is here", member);
    size_t bytes = session->board->members[member].arena_bytes;
    DT_TRY(dt_memfd_map(arena_fd, bytes, DT_MEMFD_READ_WRITE, &map, err));
    peer->arena = map;
    peer->arena_bytes = bytes;
    peer->wake = wake_fd;
    atomic_store_explicit(&peer->is_here, true, memory_order_release);
    dt_ring_wake(transport->wake);
    return DT_OK;
}

dt_status_t dt_transport_link(dt_transport_t *transport, uint32_t instance, uint32_t member, int fd,
                              const dt_link_secret_t *secret, dt_error_t *err)
{
    dt_transport_session_t *session = session_find(transport, instance);
    if (!session || !session->board || member >= session->member_count ||
        !session->is_remote[member])
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", member,
                       "instance %u has no member %u on another host", instance, member);
    dt_transport_peer_t *peer = &session->peers[member];
    if (atomic_load_explicit(&peer->is_here, memory_order_relaxed))
        return dt_fail(err, DT_ERR_EXISTS, "dt", member, "member %u is here", member);
    DT_TRY(dt_transport_link_create(fd, secret, &peer->link, err));
    atomic_store_explicit(&peer->is_here, true, memory_order_release);
    dt_ring_wake(transport->wake);
    return DT_OK;
}

void dt_transport_close(dt_transport_t *transport, uint32_t instance)
{
    dt_transport_session_t *session = session_find(transport, instance);
    if (!session)
        return;
    atomic_store_explicit(&session->is_closing, true, memory_order_release);
    pthread_mutex_lock(&transport->lock);
    if (session->is_running)
        dt_ring_wake(transport->wake);
    while (session->is_running)
        (void)pthread_cond_wait(&transport->left, &transport->lock);
    dt_list_remove(&session->run_link); /* not collected any more */
    pthread_mutex_unlock(&transport->lock);
    if (session->is_busy && session->run.is_grouped)
        (void)atomic_fetch_sub_explicit(&transport->grouped_count, 1, memory_order_seq_cst);
    if (!session->has_quit)
        dt_exchange_quit(session, "");
    dt_list_remove(&session->link);
    session_free(session);
}

void dt_transport_quit(dt_transport_t *transport, uint32_t instance, const char *why)
{
    dt_transport_session_t *session = session_find(transport, instance);
    if (!session || session->is_busy || session->has_quit)
        return;
    session->has_quit = true;
    dt_exchange_quit(session, why);
}

/* ---- exchanges ---- */

static dt_status_t run_fill(dt_transport_session_t *session, const dt_exchange_t *exchange)
{
    dt_transport_run_t *run = &session->run;
    dt_error_t *err = &run->result.err;
    run->result = (dt_exchange_result_t){.status = DT_OK};
    if (exchange->buffer_count > run->buffer_cap) {
        dt_exchange_buffer_t *buffers =
            realloc(run->buffers, exchange->buffer_count * sizeof *buffers);
        run->buffers = buffers ? buffers : run->buffers;
        dt_transport_stage_t *stages =
            realloc(run->stages, exchange->buffer_count * sizeof *stages);
        run->stages = stages ? stages : run->stages;
        if (!buffers || !stages)
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a redistribution");
        run->buffer_cap = exchange->buffer_count;
    }
    run->is_grouped = exchange->is_grouped;
    run->is_issued = false;
    run->plan = exchange->plan;
    run->number = exchange->number;
    run->done = exchange->done;
    run->arg = exchange->arg;
    run->buffer_count = exchange->buffer_count;
    run->next = run->wait = 0;
    if (exchange->buffer_count > 0) {
        memcpy(run->buffers, exchange->buffers, exchange->buffer_count * sizeof *run->buffers);
        memset(run->stages, 0, exchange->buffer_count * sizeof *run->stages);
    }
    if (exchange->cause.size > 0) {
        uint32_t size = exchange->cause.size < DT_TRANSPORT_CAUSE_MAX ? exchange->cause.size
                                                                      : DT_TRANSPORT_CAUSE_MAX;
        memcpy(run->cause, exchange->cause.bytes, size);
        run->result.cause = (dt_exchange_cause_t){exchange->cause.sequence, size, run->cause};
    }
    if (exchange->is_grouped != dt_exchange_plan_is_grouped(exchange->plan))
        return dt_fail(err, DT_ERR_INVALID, "dt", exchange->is_grouped,
                       "%s: the others expect memory of the %s", exchange->plan->text,
                       exchange->is_grouped ? "host" : "device");
    if (!exchange->plan->is_prepared)
        return dt_exchange_plan_prepare(exchange->plan, &session->world, err);
    return DT_OK;
}

static bool is_all_ours(const dt_transport_session_t *session, const dt_exchange_plan_t *plan)
{
    return plan->member_count == 1 && plan->members[0] == session->world.self;
}

static void run_end(dt_transport_session_t *session)
{
    dt_transport_run_t *run = &session->run;
    dt_exchange_result_t result = run->result;
    session->is_busy = false;
    run->plan = NULL;
    run->done(run->arg, &result); /* may start the next one, or close the session */
}

/* It cannot be tried here, which the others cannot know: they must not wait for us. What is wrong
 * with the devices themselves is wrong for all. */
static void run_refuse(dt_transport_session_t *session, dt_status_t status)
{
    session->run.result.status = status;
    if (status != DT_ERR_NOT_FOUND && !session->has_quit) {
        session->has_quit = true;
        dt_exchange_quit(session, session->run.result.err.text);
    }
    run_end(session);
}

/* A small exchange between engines of this host: go through it here, as long as nobody is late.
 * False: the thread has to wait for somebody. */
static bool run_small(const dt_transport_t *transport, dt_transport_session_t *session)
{
    const dt_transport_run_t *run = &session->run;
    uint32_t pauses = pauses_of(transport, session);
    bool is_big = run->plan->work_bytes > DT_TRANSPORT_SMALL_BYTES && !run->is_grouped;
    if (is_big || run->plan->has_remotes)
        return false;
    for (uint32_t idle = 0; idle < pauses + DT_TRANSPORT_YIELDS;) {
        if (dt_exchange_step(session))
            idle = 0;
        else
            rest(idle++, pauses);
        if (run->state == DT_TRANSPORT_ENDED)
            return true;
    }
    return false;
}

bool dt_transport_start(dt_transport_t *transport, uint32_t instance, const dt_exchange_t *exchange)
{
    dt_transport_session_t *session = session_find(transport, instance);
    dt_exchange_result_t refused = {.status = DT_ERR_NOT_FOUND};
    if (!session || session->is_busy) {
        refused.status = dt_fail(&refused.err, session ? DT_ERR_EXISTS : DT_ERR_NOT_FOUND, "dt",
                                 instance, "instance %u %s", instance,
                                 session ? "moves something already" : "is not open");
        exchange->done(exchange->arg, &refused);
        return true;
    }
    session->is_busy = true;
    session->run.done = exchange->done;
    session->run.arg = exchange->arg;
    dt_status_t status = run_fill(session, exchange);
    if (status == DT_OK && is_all_ours(session, exchange->plan)) {
        dt_exchange_run_here(session);
        run_end(session);
        return true;
    }
    if (status == DT_OK && session->has_quit)
        status =
            dt_fail(&session->run.result.err, DT_ERR_LOST, "dt", instance,
                    "%s: this engine has left the session's redistributions", exchange->plan->text);
    if (status == DT_OK)
        status = thread_start(transport, &session->run.result.err);
    if (status != DT_OK) {
        run_refuse(session, status);
        return true;
    }
    session->run.state = DT_TRANSPORT_PUBLISH;
    if (run_small(transport, session)) {
        run_end(session);
        return true;
    }
    if (session->run.is_grouped) { /* all calls of a group are ours */
        dt_list_push(&transport->grouped, &session->run_link);
        (void)atomic_fetch_add_explicit(&transport->grouped_count, 1, memory_order_seq_cst);
        thread_wake(transport);
        return false;
    }
    pthread_mutex_lock(&transport->lock);
    session->is_running = true;
    dt_list_push(&transport->mails, &session->run_link);
    pthread_mutex_unlock(&transport->lock);
    thread_wake(transport);
    return false;
}

/* Go on with what groups move. Returns whether any of it has ended. */
static bool grouped_step(dt_transport_t *transport)
{
    bool has_ended = false;
    for (dt_list_t *at = transport->grouped.next; at != &transport->grouped;) {
        dt_transport_session_t *session = DT_CONTAINER_OF(at, dt_transport_session_t, run_link);
        at = at->next;
        while (dt_exchange_step(session))
            ;
        if (session->run.state != DT_TRANSPORT_ENDED)
            continue;
        dt_list_remove(&session->run_link);
        (void)atomic_fetch_sub_explicit(&transport->grouped_count, 1, memory_order_seq_cst);
        run_end(session); /* which may start or close others: from the start again */
        at = transport->grouped.next;
        has_ended = true;
    }
    return has_ended;
}

bool dt_transport_collect(dt_transport_t *transport)
{
    bool has_any = !dt_list_is_empty(&transport->grouped) && grouped_step(transport);
    if (!atomic_load_explicit(&transport->has_ended, memory_order_acquire))
        return has_any;
    for (;;) {
        pthread_mutex_lock(&transport->lock);
        dt_list_t *at = dt_list_pop(&transport->ended);
        if (!at)
            atomic_store_explicit(&transport->has_ended, false, memory_order_release);
        pthread_mutex_unlock(&transport->lock);
        if (!at)
            return has_any;
        has_any = true;
        run_end(DT_CONTAINER_OF(at, dt_transport_session_t, run_link));
    }
}
