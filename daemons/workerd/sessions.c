#include "sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strings.h"
#include "engine.h"
#include "sessions_internal.h"
#include "shm/arena.h"
#include "shm/engine_page.h"
#include "shm/memfd.h"
#include "wire/wire.h"

/* ---- engines that are shared ---- */

static dt_node_host_t *host_find(dt_node_sessions_t *sessions, uint32_t device, const char *key)
{
    for (dt_list_t *at = sessions->hosts.next; at != &sessions->hosts; at = at->next) {
        dt_node_host_t *host = DT_CONTAINER_OF(at, dt_node_host_t, link);
        if (host->device == device && dt_str_is_equal(host->key, key) &&
            dt_engines_door(sessions->options.engines, host->engine)) /* not one that is gone */
            return host;
    }
    return NULL;
}

static dt_status_t host_take(dt_node_sessions_t *sessions, uint32_t device, const char *key,
                             dt_node_host_t **ret_host, dt_error_t *err)
{
    dt_node_host_t *host = host_find(sessions, device, key);
    if (host) {
        if (host->users++ == 0)
            dt_engines_use(sessions->options.engines, host->engine, true);
        *ret_host = host;
        return DT_OK;
    }
    host = calloc(1, sizeof *host);
    if (!host)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    dt_status_t status =
        dt_engines_take(sessions->options.engines, (int32_t)device, &host->engine, err);
    if (status != DT_OK) {
        free(host);
        return status;
    }
    host->device = device;
    host->users = 1;
    (void)dt_str_copy(host->key, sizeof host->key, key);
    dt_list_push(&sessions->hosts, &host->link);
    *ret_host = host;
    return DT_OK;
}

static void host_free(dt_node_host_t *host)
{
    dt_list_remove(&host->link);
    free(host);
}

/* A session leaves. An engine of one session goes with it, others stay for a while. */
static void host_leave(dt_node_sessions_t *sessions, dt_node_host_t *host)
{
    if (--host->users > 0)
        return;
    if (sessions->options.isolation == DT_NODE_ISOLATION_SESSION || sessions->is_stopping) {
        dt_engines_end(sessions->options.engines, host->engine);
        host_free(host);
        return;
    }
    dt_engines_use(sessions->options.engines, host->engine, false);
    host->linger_ns = dt_loop_now_ns() + DT_NODE_SESSIONS_LINGER_NS;
}

/* ---- one engine of an instance ---- */

static dt_status_t channel_make(dt_node_instance_t *instance, dt_node_member_t *member,
                                uint64_t limit_bytes, dt_error_t *err)
{
    void *map;
    dt_ring_writer_t first; /* the engine writes the ring's head once more; it is the same */
    DT_TRY(dt_memfd_create("dtorch-channel", DT_CHANNEL_BYTES, &member->channel_fd, err));
    DT_TRY(dt_memfd_map(member->channel_fd, DT_CHANNEL_BYTES, DT_MEMFD_READ_WRITE, &map, err));
    dt_channel_t *channel = member->channel = map;
    channel->session = instance->session;
    channel->limit_bytes = limit_bytes * member->vdev_count;
    channel->arena_bytes = dt_shm_arena_size(channel->limit_bytes);
    channel->device = member->device;
    (void)dt_str_copy(channel->node, sizeof channel->node, instance->owner->options.node_name);
    channel->vdev_count = member->vdev_count;
    memcpy(channel->vdevs, member->vdevs, member->vdev_count * sizeof *member->vdevs);
    DT_TRY(dt_memfd_create("dtorch-arena", channel->arena_bytes, &member->arena_fd, err));
    DT_TRY(dt_ring_writer_init(&first, (uint8_t *)map + DT_CHANNEL_CONTROL_BYTES,
                               DT_CHANNEL_UP_BYTES, err));
    return DT_OK;
}

static dt_status_t rings_join(dt_node_instance_t *instance, dt_node_member_t *member,
                              dt_error_t *err)
{
    const dt_engine_door_t *door =
        dt_engines_door(instance->owner->options.engines, member->host->engine);
    dt_channel_t *channel = member->channel;
    int wake = door ? door->wake : -1;
    DT_TRY(dt_ring_join(&instance->frames, &channel->frames, wake, &member->frames_reader, err));
    DT_TRY(dt_ring_join(&instance->bulk, &channel->bulk, wake, &member->bulk_reader, err));
    DT_TRY(dt_ring_reader_init(&member->up, (uint8_t *)channel + DT_CHANNEL_CONTROL_BYTES,
                               DT_RING_HEAD_BYTES + DT_CHANNEL_UP_BYTES, &channel->up, wake, err));
    (void)dt_ring_prepare_sleep(&member->up);
    return DT_OK;
}

/* Tell the engine of its session, once it is warm. */
static void member_open(dt_node_instance_t *instance, dt_node_member_t *member)
{
    dt_engines_t *engines = instance->owner->options.engines;
    const int fds[] = {member->arena_fd, member->channel_fd, instance->down_readonly_fd,
                       instance->board_fd};
    const dt_engine_message_t message = {.kind = DT_ENGINE_MESSAGE_OPEN,
                                         .value = (int32_t)instance->number,
                                         .member = member->board};
    if (!member->host || member->is_opened || !dt_engines_is_ready(engines, member->host->engine))
        return;
    member->is_opened = true;
    if (dt_engines_send(engines, member->host->engine, &message, fds, instance->board ? 4 : 3) !=
        DT_OK)
        dt_engines_kill(engines, member->host->engine); /* it does not read its messages */
    dt_node_peers_show(instance, member);
    dt_node_data_show(instance, member);
}

static dt_status_t member_start(dt_node_instance_t *instance, dt_node_member_t *member,
                                uint64_t limit_bytes, dt_error_t *err)
{
    dt_node_host_t *host = NULL;
    DT_TRY(host_take(instance->owner, member->device, instance->isolation, &host, err));
    member->host = host;
    DT_TRY(channel_make(instance, member, limit_bytes, err));
    return rings_join(instance, member, err);
}

/* Its engine is gone, or the instance ends. */
static void member_leave(dt_node_instance_t *instance, dt_node_member_t *member)
{
    if (member->channel && member->host) {
        dt_ring_leave(&instance->frames, member->frames_reader);
        dt_ring_leave(&instance->bulk, member->bulk_reader);
    }
    dt_node_peers_lose(instance, member);
    member->host = NULL;
    dt_memfd_unmap(member->channel, DT_CHANNEL_BYTES);
    member->channel = NULL;
    if (member->channel_fd >= 0)
        (void)close(member->channel_fd);
    if (member->arena_fd >= 0)
        (void)close(member->arena_fd);
    member->channel_fd = member->arena_fd = -1;
}

dt_node_member_t *dt_node_member_of(dt_node_instance_t *instance, uint32_t vdev)
{
    for (uint32_t i = 0; i < instance->member_count; i++)
        for (uint32_t k = 0; k < instance->members[i].vdev_count; k++)
            if (instance->members[i].vdevs[k] == vdev)
                return &instance->members[i];
    return NULL;
}

void dt_node_member_misbehaves(dt_node_instance_t *instance, uint32_t reader, bool is_frames)
{
    for (uint32_t i = 0; i < instance->member_count; i++) {
        dt_node_member_t *member = &instance->members[i];
        if (!member->host || (is_frames ? member->frames_reader : member->bulk_reader) != reader)
            continue;
        dt_log_err("an engine broke its cursor and is ended",
                   DT_LOG_U("engine", member->host->engine));
        dt_engines_kill(instance->owner->options.engines, member->host->engine);
        /* Until its end is seen it must not hold the others up. */
        dt_ring_leave(&instance->frames, member->frames_reader);
        dt_ring_leave(&instance->bulk, member->bulk_reader);
    }
}

/* ---- loss ---- */

/* What ran of the session on an engine that died: an operator, else the move that it was in. The
 * texts are (DT_ENGINE_PAGE_NAME_MAX + 1) and (DT_CHANNEL_SOURCE_BYTES) bytes. Returns its
 * sequence; 0: nothing. */
static uint64_t ran(const dt_node_instance_t *instance, dt_channel_t *channel,
                    const Dtorch__V1__EngineEvent *event, char *ret_name, char *ret_source)
{
    uint64_t running = atomic_load_explicit(&channel->running, memory_order_relaxed);
    uint64_t moving = atomic_load_explicit(&channel->moving, memory_order_acquire);
    channel->source[sizeof channel->source - 1] = '\0';
    channel->move_name[sizeof channel->move_name - 1] = '\0';
    channel->move_source[sizeof channel->move_source - 1] = '\0';
    bool is_move = moving > 0 && (running == 0 || !event->operator_name[0]);
    uint64_t sequence = is_move ? moving : running;
    if (sequence == 0 || sequence > instance->received)
        return 0;
    dt_wire_text_copy(ret_name, DT_ENGINE_PAGE_NAME_MAX + 1,
                      is_move ? channel->move_name : event->operator_name);
    dt_wire_text_copy(ret_source, DT_CHANNEL_SOURCE_BYTES,
                      is_move ? channel->move_source : channel->source);
    return sequence;
}

/* Tell which devices are gone and what ran on them. `event` NULL: they never came up. */
static void tell_lost(dt_node_instance_t *instance, dt_node_member_t *member, const char *text,
                      const Dtorch__V1__EngineEvent *event)
{
    Dtorch__V1__WorkerSessionUp up;
    Dtorch__V1__EngineLost lost;
    Dtorch__V1__OperatorError error;
    char kind[] = "EngineLost";
    char words[512];
    char name[DT_ENGINE_PAGE_NAME_MAX + 1] = "";
    char source[DT_CHANNEL_SOURCE_BYTES] = "";
    char node[64];
    dtorch__v1__worker_session_up__init(&up);
    dtorch__v1__engine_lost__init(&lost);
    dtorch__v1__operator_error__init(&error);
    (void)dt_str_copy(node, sizeof node, instance->owner->options.node_name);
    dt_wire_text_copy(words, sizeof words, text);
    if (member->channel) {
        uint64_t executed = atomic_load_explicit(&member->channel->executed, memory_order_relaxed);
        lost.executed = executed <= instance->received ? executed : instance->received;
        if (event)
            error.sequence = ran(instance, member->channel, event, name, source);
        if (name[0] && !event->operator_name[0])
            (void)snprintf(words, sizeof words, "%.255s; %s had begun", text, name);
    }
    error.code = DT_ERR_LOST;
    error.kind = kind;
    error.text = words;
    error.operator_name = name;
    error.source = source;
    error.node = node;
    error.device = member->device;
    error.vdev = member->vdevs[0];
    error.source_code = event ? event->signo : 0;
    lost.vdevs = member->vdevs;
    lost.n_vdevs = member->vdev_count;
    lost.error = &error;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_LOST;
    up.lost = &lost;
    (void)dt_node_up_pack(instance, &up);
    instance->owner->stats.lost++;
    dt_log_warn("a session lost an engine", DT_LOG_U("session", instance->session),
                DT_LOG_U("device", member->device), DT_LOG_S("operator", name),
                DT_LOG_S("reason", words));
}

/* ---- instances ---- */

static void instance_free(dt_node_instance_t *instance)
{
    for (uint32_t i = 0; i < instance->member_count; i++) {
        member_leave(instance, &instance->members[i]);
        free(instance->members[i].vdevs);
    }
    dt_node_up_free(instance);
    dt_node_peers_free(instance);
    dt_memfd_unmap(instance->down, DT_CHANNEL_DOWN_BYTES);
    if (instance->down_fd >= 0)
        (void)close(instance->down_fd);
    if (instance->down_readonly_fd >= 0)
        (void)close(instance->down_readonly_fd);
    free(instance->members);
    free(instance);
}

void dt_node_instance_end(dt_node_instance_t *instance, const char *why)
{
    dt_node_sessions_t *sessions = instance->owner;
    dt_engines_t *engines = sessions->options.engines;
    dt_log_info("session closed", DT_LOG_U("session", instance->session), DT_LOG_S("reason", why));
    for (uint32_t i = 0; i < instance->member_count; i++) {
        dt_node_member_t *member = &instance->members[i];
        dt_node_host_t *host = member->host;
        if (!host)
            continue;
        if (member->is_opened)
            (void)!dt_engines_say(engines, host->engine, DT_ENGINE_MESSAGE_CLOSE, instance->number,
                                  NULL, 0);
        member_leave(instance, member);
        host_leave(sessions, host);
    }
    dt_node_data_leave(instance, why);
    dt_node_links_leave(instance);
    dt_node_stream_leave(instance, why);
    dt_list_remove(&instance->link);
    sessions->instance_count--;
    sessions->stats.closed++;
    instance_free(instance);
    dt_node_schedule(sessions);
}

static dt_node_instance_t *instance_find(dt_node_sessions_t *sessions, const uint8_t *key)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        if (memcmp(instance->key, key, sizeof instance->key) == 0)
            return instance;
    }
    return NULL;
}

static dt_node_instance_t *instance_numbered(dt_node_sessions_t *sessions, uint32_t number)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        if (instance->number == number)
            return instance;
    }
    return NULL;
}

static void isolation_fill(const dt_node_sessions_t *sessions, dt_node_instance_t *instance,
                           const char *tenant)
{
    if (sessions->options.isolation == DT_NODE_ISOLATION_SESSION)
        (void)snprintf(instance->isolation, sizeof instance->isolation, "session %" PRIu64 " %u",
                       instance->session, instance->number);
    else if (sessions->options.isolation == DT_NODE_ISOLATION_TENANT)
        (void)snprintf(instance->isolation, sizeof instance->isolation, "tenant %.63s", tenant);
    else
        (void)snprintf(instance->isolation, sizeof instance->isolation, "device");
}

static int vdev_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* One member for each device of the bindings, its vdevs rising. */
static dt_status_t members_fill(dt_node_instance_t *instance, const Dtorch__V1__SessionOpen *open,
                                dt_error_t *err)
{
    instance->members = calloc(open->n_bindings, sizeof *instance->members);
    if (!instance->members)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    for (size_t i = 0; i < open->n_bindings; i++) {
        uint32_t at = 0;
        while (at < instance->member_count &&
               instance->members[at].device != open->bindings[i]->device)
            at++;
        dt_node_member_t *member = &instance->members[at];
        if (at == instance->member_count) {
            member->device = open->bindings[i]->device;
            member->arena_fd = member->channel_fd = -1;
            member->vdevs = calloc(open->n_bindings, sizeof *member->vdevs);
            if (!member->vdevs)
                return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
            instance->member_count++;
        }
        dt_check(member->vdevs != NULL);
        member->vdevs[member->vdev_count++] = open->bindings[i]->vdev;
    }
    if (instance->member_count == 0)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    for (uint32_t i = 0; i < instance->member_count; i++) {
        dt_check(instance->members[i].vdevs != NULL);
        qsort(instance->members[i].vdevs, instance->members[i].vdev_count, sizeof(uint32_t),
              vdev_compare);
    }
    return DT_OK;
}

static dt_status_t down_make(dt_node_instance_t *instance, dt_error_t *err)
{
    DT_TRY(dt_memfd_create("dtorch-down", DT_CHANNEL_DOWN_BYTES, &instance->down_fd, err));
    DT_TRY(dt_memfd_reopen_readonly(instance->down_fd, &instance->down_readonly_fd, err));
    DT_TRY(dt_memfd_map(instance->down_fd, DT_CHANNEL_DOWN_BYTES, DT_MEMFD_READ_WRITE,
                        &instance->down, err));
    DT_TRY(dt_ring_writer_init(&instance->frames, instance->down, DT_CHANNEL_FRAMES_BYTES, err));
    return dt_ring_writer_init(&instance->bulk, (uint8_t *)instance->down + DT_CHANNEL_BULK_AT,
                               DT_CHANNEL_BULK_BYTES, err);
}

static uint64_t limit_of(const Dtorch__V1__SessionOpen *open)
{
    return open->memory_limit_bytes ? open->memory_limit_bytes : DT_NODE_SESSIONS_MEMORY;
}

static dt_status_t instance_make(dt_node_sessions_t *sessions, const Dtorch__V1__SessionOpen *open,
                                 dt_node_instance_t **ret_instance, dt_error_t *err)
{
    if (sessions->instance_count == DT_NODE_SESSIONS_MAX || open->n_bindings == 0 ||
        open->n_bindings > DT_CHANNEL_VDEVS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_NODE_SESSIONS_MAX,
                       "%u sessions are here, or one without devices", sessions->instance_count);
    dt_node_instance_t *instance = calloc(1, sizeof *instance);
    if (!instance)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    instance->owner = sessions;
    instance->number = ++sessions->last_number;
    instance->session = open->session;
    instance->epoch = open->epoch;
    instance->down_fd = instance->down_readonly_fd = instance->board_fd = -1;
    memcpy(instance->key, open->key.data, sizeof instance->key);
    isolation_fill(sessions, instance, open->tenant);
    dt_list_init(&instance->kept);
    dt_status_t status = members_fill(instance, open, err);
    if (status == DT_OK)
        status = down_make(instance, err);
    if (status != DT_OK) {
        instance_free(instance);
        return status;
    }
    dt_node_peers_create(instance, open, limit_of(open));
    dt_list_push(&sessions->instances, &instance->link);
    sessions->instance_count++;
    sessions->stats.opened++;
    *ret_instance = instance;
    return DT_OK;
}

void dt_node_sessions_open(dt_node_sessions_t *sessions, const Dtorch__V1__SessionOpen *open)
{
    dt_node_instance_t *instance;
    dt_error_t err = {0};
    if (sessions->is_stopping || open->key.len != DT_NODE_SESSION_KEY_BYTES)
        return;
    instance = instance_find(sessions, open->key.data);
    if (instance) {
        if (!instance->stream)
            dt_node_stream_dial(instance);
        dt_node_schedule(sessions);
        return;
    }
    if (instance_make(sessions, open, &instance, &err) != DT_OK) {
        dt_log_err("a session cannot be served", DT_LOG_U("session", open->session),
                   DT_LOG_E(&err));
        return;
    }
    for (uint32_t i = 0; i < instance->member_count; i++) {
        dt_node_member_t *member = &instance->members[i];
        if (member_start(instance, member, limit_of(open), &err) == DT_OK)
            continue;
        tell_lost(instance, member, err.text, NULL);
        dt_node_host_t *host = member->host;
        member_leave(instance, member);
        if (host)
            host_leave(sessions, host);
    }
    for (uint32_t i = 0; i < instance->member_count; i++)
        member_open(instance, &instance->members[i]); /* now that all have what the others need */
    dt_log_info("session opened", DT_LOG_U("session", open->session),
                DT_LOG_S("program", open->program), DT_LOG_U("devices", instance->member_count),
                DT_LOG_U("instance", instance->number));
    dt_node_door_tell(instance);
    dt_node_links_tell(instance);
    dt_node_stream_dial(instance);
    dt_node_schedule(sessions);
}

void dt_node_sessions_close(dt_node_sessions_t *sessions, const Dtorch__V1__SessionClose *close)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances;) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        at = at->next;
        if (instance->session == close->session &&
            (close->key.len == 0 ||
             (close->key.len == sizeof instance->key &&
              memcmp(instance->key, close->key.data, sizeof instance->key) == 0)))
            dt_node_instance_end(instance, close->reason);
    }
}

void dt_node_sessions_epoch(dt_node_sessions_t *sessions, uint64_t epoch)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances;) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        at = at->next;
        if (instance->epoch != epoch)
            dt_node_instance_end(instance, "the controller was started anew");
    }
}

/* ---- what engines do ---- */

void dt_node_sessions_engine_ready(dt_node_sessions_t *sessions, uint32_t engine)
{
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        for (uint32_t i = 0; i < instance->member_count; i++)
            if (instance->members[i].host && instance->members[i].host->engine == engine)
                member_open(instance, &instance->members[i]);
    }
}

static void member_lost(dt_node_instance_t *instance, dt_node_member_t *member, const char *text,
                        const Dtorch__V1__EngineEvent *event)
{
    dt_node_up_drain(instance, member);
    tell_lost(instance, member, text, event);
    member_leave(instance, member);
    dt_node_up_pump(instance);
}

void dt_node_sessions_engine_lost(dt_node_sessions_t *sessions, uint32_t engine,
                                  const Dtorch__V1__EngineEvent *event)
{
    char text[512];
    (void)snprintf(text, sizeof text, "engine %" PRIu32 " %.400s", engine, event->text);
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        for (uint32_t i = 0; i < instance->member_count; i++)
            if (instance->members[i].host && instance->members[i].host->engine == engine)
                member_lost(instance, &instance->members[i], text, event);
    }
    for (dt_list_t *at = sessions->hosts.next; at != &sessions->hosts;) {
        dt_node_host_t *host = DT_CONTAINER_OF(at, dt_node_host_t, link);
        at = at->next;
        if (host->engine == engine)
            host_free(host);
    }
}

void dt_node_sessions_engine_refused(dt_node_sessions_t *sessions, uint32_t engine,
                                     uint32_t instance_number, const char *text)
{
    dt_node_instance_t *instance = instance_numbered(sessions, instance_number);
    for (uint32_t i = 0; instance && i < instance->member_count; i++) {
        dt_node_host_t *host = instance->members[i].host;
        if (!host || host->engine != engine)
            continue;
        member_lost(instance, &instance->members[i], text, NULL);
        host_leave(sessions, host);
    }
    dt_node_schedule(sessions);
}

void dt_node_sessions_no_window(dt_node_sessions_t *sessions, uint32_t instance_number,
                                const char *text)
{
    dt_node_instance_t *instance = instance_numbered(sessions, instance_number);
    if (instance)
        dt_node_data_no_window(instance, text);
}

/* Answers of the metadata thread. */
static void answers_read(dt_node_sessions_t *sessions, dt_engine_door_t *door)
{
    dt_ring_message_t message;
    do {
        while (dt_ring_peek(&door->answers, &message) == DT_OK) {
            dt_node_instance_t *instance = instance_numbered(sessions, message.kind);
            if (instance && dt_node_up_keep(instance, message.bytes, message.size))
                dt_node_up_pump(instance);
            dt_ring_pass(&door->answers);
        }
    } while (dt_ring_prepare_sleep(&door->answers));
}

void dt_node_sessions_engine_bell(dt_node_sessions_t *sessions, uint32_t engine)
{
    dt_engine_door_t *door = dt_engines_door(sessions->options.engines, engine);
    if (door)
        answers_read(sessions, door);
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        for (uint32_t i = 0; i < instance->member_count; i++)
            if (instance->members[i].host && instance->members[i].host->engine == engine) {
                dt_node_up_pump(instance);
                dt_node_data_resume(instance);
                break;
            }
    }
}

/* ---- time ---- */

void dt_node_schedule(dt_node_sessions_t *sessions)
{
    int64_t due_ns = INT64_MAX;
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        const dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        if (instance->redial_ns > 0 && instance->redial_ns < due_ns)
            due_ns = instance->redial_ns;
    }
    for (dt_list_t *at = sessions->hosts.next; at != &sessions->hosts; at = at->next) {
        const dt_node_host_t *host = DT_CONTAINER_OF(at, dt_node_host_t, link);
        if (host->users == 0 && host->linger_ns < due_ns)
            due_ns = host->linger_ns;
    }
    if (due_ns == INT64_MAX)
        dt_timer_disarm(sessions->timer);
    else
        dt_timer_arm(sessions->timer, due_ns);
    if (sessions->stopped && dt_list_is_empty(&sessions->streams)) {
        void (*stopped)(void *arg) = sessions->stopped;
        sessions->stopped = NULL;
        stopped(sessions->stopped_arg);
    }
}

static void on_timer(void *arg, int64_t deadline_ns)
{
    dt_node_sessions_t *sessions = arg;
    int64_t now_ns = dt_loop_now_ns();
    (void)deadline_ns;
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        if (instance->redial_ns > 0 && instance->redial_ns <= now_ns)
            dt_node_stream_dial(instance);
    }
    for (dt_list_t *at = sessions->hosts.next; at != &sessions->hosts;) {
        dt_node_host_t *host = DT_CONTAINER_OF(at, dt_node_host_t, link);
        at = at->next;
        if (host->users > 0 || host->linger_ns > now_ns)
            continue;
        dt_engines_end(sessions->options.engines, host->engine);
        host_free(host);
    }
    dt_node_schedule(sessions);
}

/* ---- life ---- */

dt_status_t dt_node_sessions_create(const dt_node_sessions_options_t *options,
                                    dt_node_sessions_t **ret_sessions, dt_error_t *err)
{
    dt_node_sessions_t *sessions = calloc(1, sizeof *sessions);
    if (!sessions)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for sessions");
    sessions->options = *options;
    dt_list_init(&sessions->instances);
    dt_list_init(&sessions->hosts);
    dt_list_init(&sessions->streams);
    dt_arena_init(&sessions->arena, DT_WIRE_ARENA_MAX);
    dt_status_t status = dt_timer_create(options->loop, on_timer, sessions, &sessions->timer, err);
    if (status == DT_OK)
        status = dt_node_data_create(sessions, err);
    if (status == DT_OK)
        status = dt_node_links_create(sessions, err);
    if (status != DT_OK) {
        dt_node_links_free(sessions);
        dt_node_data_free(sessions);
        dt_timer_free(sessions->timer);
        free(sessions);
        return status;
    }
    *ret_sessions = sessions;
    return DT_OK;
}

/* What an engine writes is clamped: it is only shown. */
static void count_members(const dt_node_instance_t *instance, dt_node_sessions_stats_t *stats)
{
    for (uint32_t i = 0; i < instance->member_count; i++) {
        const dt_channel_t *channel = instance->members[i].channel;
        uint64_t executed =
            channel ? atomic_load_explicit(&channel->executed, memory_order_relaxed) : 0;
        if (!channel)
            continue;
        if (executed < instance->received)
            stats->queued_records += instance->received - executed;
        stats->memory_limit_bytes += channel->limit_bytes;
    }
}

void dt_node_sessions_stats(const dt_node_sessions_t *sessions, dt_node_sessions_stats_t *ret_stats)
{
    *ret_stats = sessions->stats;
    ret_stats->sessions = sessions->instance_count;
    for (dt_list_t *at = sessions->instances.next; at != &sessions->instances; at = at->next) {
        const dt_node_instance_t *instance = DT_CONTAINER_OF(at, dt_node_instance_t, link);
        ret_stats->streams += instance->stream && instance->stream->is_heard;
        ret_stats->kept_bytes += instance->kept_bytes;
        count_members(instance, ret_stats);
    }
    ret_stats->connections = dt_node_data_count(sessions);
    for (dt_list_t *at = sessions->hosts.next; at != &sessions->hosts; at = at->next)
        ret_stats->engines++;
}

void dt_node_sessions_stop(dt_node_sessions_t *sessions, void (*stopped)(void *arg), void *arg)
{
    dt_list_t *at;
    sessions->is_stopping = true;
    sessions->stopped = stopped;
    sessions->stopped_arg = arg;
    while ((at = dt_list_pop(&sessions->instances)) != NULL)
        dt_node_instance_end(DT_CONTAINER_OF(at, dt_node_instance_t, link), "the node stops");
    while ((at = dt_list_pop(&sessions->hosts)) != NULL)
        host_free(DT_CONTAINER_OF(at, dt_node_host_t, link));
    dt_node_schedule(sessions);
}

void dt_node_sessions_free(dt_node_sessions_t *sessions)
{
    dt_list_t *at;
    if (!sessions)
        return;
    while ((at = dt_list_pop(&sessions->instances)) != NULL)
        dt_node_instance_end(DT_CONTAINER_OF(at, dt_node_instance_t, link), "the end");
    while ((at = dt_list_pop(&sessions->hosts)) != NULL)
        host_free(DT_CONTAINER_OF(at, dt_node_host_t, link));
    dt_node_data_free(sessions);
    dt_node_links_free(sessions);
    dt_timer_free(sessions->timer);
    dt_arena_fini(&sessions->arena);
    free(sessions);
}
