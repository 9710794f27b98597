#include "link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/version.h"
#include "dtorch/v1/state.pb-c.h"
#include "pki/pki.h"
#include "wire/wire.h"

#define DT_LINK_METHOD "/dtorch.v1.Worker/Stream"

typedef struct link_stream {
    dt_list_t node;
    dt_link_t *owner;
    uint64_t number; /* the agent's */
    dt_rpc_stream_t *stream;
} link_stream_t;

typedef struct link_save {
    dt_link_t *owner;
    char directory[sizeof((dt_identity_t *)0)->directory];
    uint8_t cluster_id[DT_IDENTITY_ID_BYTES];
    uint64_t epoch;
    dt_status_t status;
    dt_error_t err;
} link_save_t;

typedef struct link_resolve {
    dt_link_t *owner;
    uint64_t number;   /* of the agent's newest dial; state thread only */
    char address[256]; /* what is looked up */
    char numeric[96];  /* the answer, on this host; "" if there is none */
    char text[512];    /* why there is none */
} link_resolve_t;

struct dt_link {
    dt_link_options_t options;
    dt_agent_t *agent;
    dt_timer_t *timer;
    dt_list_t streams; /* link_stream_t; at most one is the agent's, others are closing */
    dt_strv_t addresses;
    dt_arena_t arena;
    link_resolve_t *resolve; /* a look-up that runs; NULL: none */
    link_save_t *save;       /* being written; NULL: none */
    bool is_save_wanted;     /* another one is due after it */
    uint8_t cluster_id[DT_IDENTITY_ID_BYTES];
    uint64_t epoch;
    char dialed[256];       /* where the newest stream goes, names resolved */
    char peer[112];         /* likewise, as a number; "": a unix socket, or not open yet */
    dt_agent_state_t shown; /* state that `changed` was called for last */
    void (*stopped)(void *arg);
};

static void pump(dt_link_t *link);

static int64_t wall_ms(void)
{
    return dt_clock_wall_ms(dt_clock_system());
}

/* ---- the stream ---- */

static void on_open(dt_rpc_stream_t *stream)
{
    link_stream_t *at = dt_rpc_stream_arg(stream);
    (void)dt_str_copy(at->owner->peer, sizeof at->owner->peer, dt_rpc_stream_peer(stream)->address);
    dt_agent_connected(at->owner->agent, at->number, dt_loop_now_ns(), wall_ms());
    pump(at->owner);
}

static bool is_up(const dt_agent_view_t *view)
{
    return view->state == DT_AGENT_ONLINE || view->state == DT_AGENT_SUSPECT;
}

/* What concerns sessions is for others; the agent has judged the stream. */
static void sessions_tell(dt_link_t *link, uint64_t number, const Dtorch__V1__WorkerDown *down)
{
    dt_agent_view_t view;
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    if (!is_up(&view) || view.stream != number)
        return;
    if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_OPEN && link->options.session_open)
        link->options.session_open(link->options.arg, down->open);
    else if (down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_CLOSE && link->options.session_close)
        link->options.session_close(link->options.arg, down->close);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    link_stream_t *at = dt_rpc_stream_arg(stream);
    dt_link_t *link = at->owner;
    Dtorch__V1__WorkerDown *down;
    dt_error_t err = {0};
    if (DT_WIRE_UNPACK(dtorch__v1__worker_down, &link->arena, data, size, &down, &err) == DT_OK) {
        dt_agent_received(link->agent, at->number, down, dt_loop_now_ns());
        sessions_tell(link, at->number, down);
    } else
        dt_agent_malformed(link->agent, at->number, &err, dt_loop_now_ns());
    dt_arena_reset(&link->arena);
    pump(link);
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    link_stream_t *at = dt_rpc_stream_arg(stream);
    dt_link_t *link = at->owner;
    uint64_t number = at->number;
    dt_list_remove(&at->node);
    free(at);
    dt_agent_closed(link->agent, number,
                    why->code == DT_OK ? "the controller ended the stream" : why->text,
                    dt_loop_now_ns());
    pump(link);
}

static const dt_rpc_stream_ops_t stream_ops = {
    .open = on_open, .message = on_message, .closed = on_closed};

static link_stream_t *stream_find(dt_link_t *link, uint64_t number)
{
    for (dt_list_t *at = link->streams.next; at != &link->streams; at = at->next) {
        link_stream_t *stream = DT_CONTAINER_OF(at, link_stream_t, node);
        if (stream->number == number)
            return stream;
    }
    return NULL;
}

/* ---- actions ---- */

/* Open a stream to `address` under the agent's number. */
static void stream_open(dt_link_t *link, uint64_t number, const char *address)
{
    dt_error_t err = {0};
    link_stream_t *stream = calloc(1, sizeof *stream);
    if (!stream) {
        dt_agent_closed(link->agent, number, "no memory", dt_loop_now_ns());
        return;
    }
    stream->owner = link;
    stream->number = number;
    (void)dt_str_copy(link->dialed, sizeof link->dialed, address);
    link->peer[0] = '\0';
    const dt_rpc_dial_t dial = {
        .address = address,
        .tls = address[0] == '/' ? NULL : dt_join_tls(link->options.join),
        .method = DT_LINK_METHOD,
        .ops = &stream_ops,
        .arg = stream,
        .message_bytes_max = DT_WIRE_MESSAGE_MAX,
        .queue_bytes_max = 4 * (size_t)DT_WIRE_MESSAGE_MAX,
    };
    if (dt_rpc_dial(link->options.rpc, &dial, &stream->stream, &err) != DT_OK) {
        free(stream);
        dt_agent_closed(link->agent, number, err.text, dt_loop_now_ns());
        return;
    }
    dt_list_push(&link->streams, &stream->node);
}

/* ---- names without TLS: plain text goes to this host only, so we look ourselves ---- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, address, sizeof four);
        return ntohl(four.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 six;
    memcpy(&six, address, sizeof six);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

static void resolve_work(void *arg)
{
    link_resolve_t *resolve = arg;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char host[256];
    char port[16];
    char numeric[64];
    if (!dt_join_split(resolve->address, host, sizeof host, port, sizeof port)) {
        (void)dt_str_copy(resolve->text, sizeof resolve->text, "not HOST:PORT");
        return;
    }
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc) {
        (void)snprintf(resolve->text, sizeof resolve->text, "%s: %s", resolve->address,
                       gai_strerror(rc));
        return;
    }
    for (const struct addrinfo *at = list; at && !resolve->numeric[0]; at = at->ai_next) {
        if (getnameinfo(at->ai_addr, at->ai_addrlen, numeric, sizeof numeric, NULL, 0,
                        NI_NUMERICHOST))
            continue;
        if (is_loopback(at->ai_addr))
            (void)snprintf(resolve->numeric, sizeof resolve->numeric,
                           at->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", numeric, port);
        else
            (void)snprintf(resolve->text, sizeof resolve->text,
                           "%s is %s, not this host, and this node has no certificate: name the "
                           "file of a join token in JoinTokenFile=",
                           resolve->address, numeric);
    }
    freeaddrinfo(list);
}

static void resolve_done(void *arg)
{
    link_resolve_t *resolve = arg;
    dt_link_t *link = resolve->owner;
    dt_agent_view_t view;
    link->resolve = NULL;
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    bool is_wanted = view.state == DT_AGENT_DIALING && view.stream == resolve->number;
    if (is_wanted && resolve->numeric[0])
        stream_open(link, resolve->number, resolve->numeric);
    else if (is_wanted)
        dt_agent_closed(link->agent, resolve->number, resolve->text, dt_loop_now_ns());
    free(resolve);
    pump(link);
}

static void resolve_start(dt_link_t *link, uint64_t number, const char *address)
{
    dt_error_t err = {.text = "no memory"};
    if (link->resolve && dt_str_is_equal(link->resolve->address, address)) {
        link->resolve->number = number; /* it hangs, and the agent dials again */
        return;
    }
    link_resolve_t *resolve = link->resolve ? NULL : calloc(1, sizeof *resolve);
    if (link->resolve)
        (void)snprintf(err.text, sizeof err.text, "the look-up of %s hangs",
                       link->resolve->address);
    if (resolve) {
        resolve->owner = link;
        resolve->number = number;
        (void)dt_str_copy(resolve->address, sizeof resolve->address, address);
        if (dt_tasks_run(link->options.tasks, resolve_work, resolve_done, resolve, &err) == DT_OK) {
            link->resolve = resolve;
            return;
        }
        free(resolve);
    }
    dt_agent_closed(link->agent, number, err.text, dt_loop_now_ns());
}

static void do_dial(dt_link_t *link, const dt_agent_action_t *action)
{
    const char *address = link->addresses.items[action->index];
    if (!dt_join_tls(link->options.join) && dt_join_place(address) == DT_JOIN_PLACE_NAME)
        resolve_start(link, action->stream, address);
    else
        stream_open(link, action->stream, address);
}

static void do_send(dt_link_t *link, const dt_agent_action_t *action)
{
    link_stream_t *stream = stream_find(link, action->stream);
    if (!stream || (action->is_beat && dt_rpc_stream_queued(stream->stream) > 0))
        return;
    dt_status_t status = dt_rpc_stream_send(stream->stream, action->data, action->size);
    if (status == DT_ERR_LIMIT || status == DT_ERR_NOMEM)
        dt_rpc_stream_cancel(stream->stream, status, "the controller does not read");
}

static void do_close(dt_link_t *link, const dt_agent_action_t *action)
{
    link_stream_t *stream = stream_find(link, action->stream);
    if (stream)
        dt_rpc_stream_close(stream->stream, DT_OK, action->text);
}

static void do_log(const dt_agent_action_t *action)
{
    switch (action->severity) {
    case DTORCH__V1__SEVERITY__ERROR:
        dt_log_err(action->event, DT_LOG_S("reason", action->text));
        return;
    case DTORCH__V1__SEVERITY__WARNING:
        dt_log_warn(action->event, DT_LOG_S("reason", action->text));
        return;
    case DTORCH__V1__SEVERITY__NOTICE:
        dt_log_notice(action->event, DT_LOG_S("reason", action->text));
        return;
    default:
        dt_log_info(action->event, DT_LOG_S("reason", action->text));
    }
}

/* ---- the cluster's id and epoch, written behind: fsync may take long ---- */

static void save_work(void *arg)
{
    link_save_t *save = arg;
    save->status =
        dt_identity_save_cluster(save->directory, save->cluster_id, save->epoch, &save->err);
}

static void save_start(dt_link_t *link);

static void save_done(void *arg)
{
    link_save_t *save = arg;
    dt_link_t *link = save->owner;
    if (save->status != DT_OK)
        dt_log_warn("the cluster's epoch could not be written", DT_LOG_U("epoch", save->epoch),
                    DT_LOG_E(&save->err));
    link->save = NULL;
    free(save);
    if (link->is_save_wanted)
        save_start(link);
}

static void save_start(dt_link_t *link)
{
    dt_error_t err = {0};
    link->is_save_wanted = link->save != NULL;
    if (link->save)
        return;
    link_save_t *save = calloc(1, sizeof *save);
    if (!save)
        return;
    save->owner = link;
    (void)dt_str_copy(save->directory, sizeof save->directory, link->options.identity->directory);
    memcpy(save->cluster_id, link->cluster_id, sizeof save->cluster_id);
    save->epoch = link->epoch;
    if (dt_tasks_run(link->options.tasks, save_work, save_done, save, &err) != DT_OK) {
        dt_log_warn("the cluster's epoch could not be written", DT_LOG_U("epoch", link->epoch),
                    DT_LOG_E(&err));
        free(save);
        return;
    }
    link->save = save;
}

static void do_save(dt_link_t *link, const dt_agent_action_t *action)
{
    memcpy(link->cluster_id, action->cluster_id, sizeof link->cluster_id);
    link->epoch = action->epoch;
    save_start(link);
}

static const char *admin_text(Dtorch__V1__NodeIntent__Admin admin)
{
    switch (admin) {
    case DTORCH__V1__NODE_INTENT__ADMIN__CORDONED:
        return "cordoned";
    case DTORCH__V1__NODE_INTENT__ADMIN__DRAINING:
        return "draining";
    case DTORCH__V1__NODE_INTENT__ADMIN__DRAINED:
        return "drained";
    default:
        return "enabled";
    }
}

/* Perform one action. Returns whether somebody should look at the view again. */
static bool perform(dt_link_t *link, const dt_agent_action_t *action)
{
    switch (action->kind) {
    case DT_AGENT_DO_DIAL:
        do_dial(link, action);
        return false;
    case DT_AGENT_DO_SEND:
        do_send(link, action);
        return false;
    case DT_AGENT_DO_CLOSE:
        do_close(link, action);
        return false;
    case DT_AGENT_DO_SAVE:
        do_save(link, action);
        return true;
    case DT_AGENT_DO_INTENT:
        dt_log_info("what people want of this node", DT_LOG_S("admin", admin_text(action->admin)),
                    DT_LOG_S("reason", action->text));
        return true;
    case DT_AGENT_DO_LOG:
        do_log(action);
        return true;
    case DT_AGENT_DO_STOPPED:
        return true;
    }
    return false;
}

/* Perform all that the agent wants, then set its timer. Each input ends here. */
static void pump(dt_link_t *link)
{
    dt_agent_action_t action;
    dt_agent_view_t view;
    bool is_changed = false;
    while (dt_agent_poll(link->agent, &action))
        if (perform(link, &action))
            is_changed = true;
    int64_t deadline_ns = dt_agent_deadline(link->agent);
    if (deadline_ns == INT64_MAX)
        dt_timer_disarm(link->timer);
    else
        dt_timer_arm(link->timer, deadline_ns);
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    if (view.state == DT_AGENT_STOPPED && link->stopped && dt_list_is_empty(&link->streams)) {
        void (*stopped)(void *arg) = link->stopped;
        link->stopped = NULL;
        stopped(link->options.arg);
        return;
    }
    if (is_changed || view.state != link->shown) {
        link->shown = view.state;
        link->options.changed(link->options.arg);
    }
}

static void on_timer(void *arg, int64_t deadline_ns)
{
    dt_link_t *link = arg;
    (void)deadline_ns;
    dt_agent_tick(link->agent, dt_loop_now_ns(), wall_ms());
    pump(link);
}

/* ---- the face ---- */

static dt_status_t addresses_copy(const dt_strv_t *from, dt_strv_t *ret_to, dt_error_t *err)
{
    dt_strv_t to = {0};
    for (size_t i = 0; i < from->count; i++)
        if (dt_strv_append(&to, from->items[i]) != DT_OK) {
            dt_strv_fini(&to);
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for addresses");
        }
    *ret_to = to;
    return DT_OK;
}

static dt_status_t agent_create(dt_link_t *link, dt_error_t *err)
{
    const dt_identity_t *identity = link->options.identity;
    dt_agent_options_t options = {
        .struct_size = sizeof options,
        .epoch_seen = identity->epoch_seen,
        .incarnation = identity->incarnation,
        .node_name = identity->node_name,
        .rack = link->options.rack,
        .build = dt_version(),
        .boot_id = identity->boot_id,
        .config_hash = link->options.config_hash,
        .pid = (uint32_t)getpid(),
        .address_count = (uint32_t)link->addresses.count,
    };
    memcpy(options.node_id, identity->node_id, sizeof options.node_id);
    memcpy(options.cluster_id, identity->cluster_id, sizeof options.cluster_id);
    dt_pki_random(&options.seed, sizeof options.seed);
    return dt_agent_create(&options, dt_loop_now_ns(), &link->agent, err);
}

dt_status_t dt_link_create(const dt_link_options_t *options, dt_link_t **ret_link, dt_error_t *err)
{
    dt_link_t *link = calloc(1, sizeof *link);
    if (!link)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the link");
    link->options = *options;
    dt_list_init(&link->streams);
    dt_arena_init(&link->arena, DT_WIRE_ARENA_MAX);
    dt_status_t status = addresses_copy(options->addresses, &link->addresses, err);
    if (status == DT_OK)
        status = agent_create(link, err);
    if (status == DT_OK)
        status = dt_timer_create(options->loop, on_timer, link, &link->timer, err);
    if (status != DT_OK) {
        dt_link_free(link);
        return status;
    }
    dt_timer_arm(link->timer, dt_loop_now_ns());
    *ret_link = link;
    return DT_OK;
}

dt_status_t dt_link_set_inventory(dt_link_t *link, const Dtorch__V1__Inventory *inventory,
                                  dt_error_t *err)
{
    DT_TRY(dt_agent_set_inventory(link->agent, inventory, dt_loop_now_ns(), err));
    pump(link);
    return DT_OK;
}

dt_status_t dt_link_engine_event(dt_link_t *link, const Dtorch__V1__EngineEvent *event,
                                 dt_error_t *err)
{
    DT_TRY(dt_agent_engine_event(link->agent, event, dt_loop_now_ns(), err));
    pump(link);
    return DT_OK;
}

void dt_link_set_progress(dt_link_t *link, uint64_t progress)
{
    dt_agent_set_progress(link->agent, progress);
}

void dt_link_set_busy(dt_link_t *link, const uint8_t *percents, uint32_t count)
{
    dt_agent_set_busy(link->agent, percents, count);
}

dt_status_t dt_link_set_addresses(dt_link_t *link, const dt_strv_t *addresses, dt_error_t *err)
{
    dt_strv_t copy = {0};
    dt_agent_view_t view;
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    const char *current = link->addresses.items[view.address_index];
    DT_TRY(addresses_copy(addresses, &copy, err));
    size_t at = 0;
    while (at < copy.count && !dt_str_is_equal(copy.items[at], current))
        at++;
    bool is_kept = at < copy.count && view.address_index < copy.count;
    if (is_kept) { /* the agent knows addresses by their place */
        char *other = copy.items[view.address_index];
        copy.items[view.address_index] = copy.items[at];
        copy.items[at] = other;
    }
    dt_strv_fini(&link->addresses);
    link->addresses = copy;
    dt_agent_set_addresses(link->agent, (uint32_t)copy.count, !is_kept, dt_loop_now_ns());
    pump(link);
    return DT_OK;
}

void dt_link_view(const dt_link_t *link, dt_agent_view_t *ret_view)
{
    dt_agent_view(link->agent, dt_loop_now_ns(), ret_view);
}

const char *dt_link_address(const dt_link_t *link)
{
    dt_agent_view_t view;
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    return link->addresses.items[view.address_index];
}

const char *dt_link_dialed(const dt_link_t *link)
{
    dt_agent_view_t view;
    dt_agent_view(link->agent, dt_loop_now_ns(), &view);
    return is_up(&view) ? link->dialed : NULL;
}

const char *dt_link_peer(const dt_link_t *link)
{
    return link->peer;
}

void dt_link_stop(dt_link_t *link, const char *reason, void (*stopped)(void *arg))
{
    link->stopped = stopped;
    dt_agent_stop(link->agent, reason, dt_loop_now_ns());
    pump(link);
}

void dt_link_free(dt_link_t *link)
{
    if (!link)
        return;
    dt_timer_free(link->timer);
    dt_agent_free(link->agent);
    dt_arena_fini(&link->arena);
    dt_strv_fini(&link->addresses);
    free(link);
}
