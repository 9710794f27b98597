/* The agent's states and their inputs. What it sends is in agent_out.c. */
#include "core/agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/agent_internal.h"

#define MS_NS                INT64_C(1000000)
#define SECOND_NS            (1000 * MS_NS)
#define BACKOFF_FIRST_NS     (50 * MS_NS)
#define BACKOFF_SOON_NS      SECOND_NS        /* bound while offline for less than … */
#define BACKOFF_SOON_TIME_NS (30 * SECOND_NS) /* … this */
#define BACKOFF_LATE_NS      (5 * SECOND_NS)
#define BACKOFF_MIN_NS       (5 * MS_NS)
#define DIAL_TIMEOUT_NS      (3 * SECOND_NS)
#define STABLE_NS            (2 * SECOND_NS) /* online for this long: the back-off begins anew */

/* Which moves are right; a bug of ours otherwise. */
#define TO(state) (1u << (state))
static const struct {
    const char *name;
    unsigned next;
} states[] = {
    [DT_AGENT_WAITING] = {"waiting", TO(DT_AGENT_DIALING) | TO(DT_AGENT_STOPPED)},
    [DT_AGENT_DIALING] = {"dialing", TO(DT_AGENT_DIALING) | TO(DT_AGENT_HELLO) |
                                         TO(DT_AGENT_WAITING) | TO(DT_AGENT_STOPPED)},
    [DT_AGENT_HELLO] = {"hello", TO(DT_AGENT_ONLINE) | TO(DT_AGENT_DIALING) | TO(DT_AGENT_WAITING) |
                                     TO(DT_AGENT_STOPPED)},
    [DT_AGENT_ONLINE] = {"online", TO(DT_AGENT_SUSPECT) | TO(DT_AGENT_DIALING) |
                                       TO(DT_AGENT_WAITING) | TO(DT_AGENT_STOPPED)},
    [DT_AGENT_SUSPECT] = {"suspect", TO(DT_AGENT_ONLINE) | TO(DT_AGENT_DIALING) |
                                         TO(DT_AGENT_WAITING) | TO(DT_AGENT_STOPPED)},
    [DT_AGENT_STOPPED] = {"stopped", 0},
};

const char *dt_agent_state_text(dt_agent_state_t state)
{
    return states[state].name;
}

static void move(dt_agent_t *agent, dt_agent_state_t to)
{
    dt_check(states[agent->state].next & TO(to));
    agent->state = to;
}

static bool is_online(const dt_agent_t *agent)
{
    return agent->state == DT_AGENT_ONLINE || agent->state == DT_AGENT_SUSPECT;
}

static bool has_stream(const dt_agent_t *agent)
{
    return agent->state != DT_AGENT_WAITING && agent->state != DT_AGENT_STOPPED;
}

static int64_t jitter(dt_agent_t *agent, int64_t bound_ns)
{
    agent->random = dt_hash_u64(agent->random + UINT64_C(0x9e3779b97f4a7c15));
    return (int64_t)(agent->random % (uint64_t)bound_ns);
}

static void dial(dt_agent_t *agent)
{
    move(agent, DT_AGENT_DIALING);
    agent->stream++;
    agent->attempts++;
    agent->round_tried++;
    agent->due_ns = agent->now_ns + agent->dial_timeout_ns;
    dt_agent_push(agent, DT_AGENT_DO_DIAL)->action.index = agent->address_index;
}

static void close_stream(dt_agent_t *agent, const char *text)
{
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_CLOSE);
    (void)dt_str_copy(slot->text, sizeof slot->text, text);
}

static void wait(dt_agent_t *agent, int64_t wait_ns)
{
    move(agent, DT_AGENT_WAITING);
    agent->round_tried = 0;
    agent->due_ns = agent->now_ns + wait_ns;
}

/* After a loss or a failure: the next address of this round at once, else wait. A refusal that
 * cannot succeed by itself waits long, whatever the round. */
static void retry(dt_agent_t *agent, bool is_slow)
{
    bool was_online = is_online(agent);
    if (was_online && agent->now_ns - agent->online_since_ns >= STABLE_NS) {
        agent->backoff_ns = BACKOFF_FIRST_NS;
        agent->offline_since_ns = agent->now_ns;
        agent->round_tried = 0;
    }
    if (!was_online)
        agent->address_index = (agent->address_index + 1) % agent->address_count;
    if (is_slow) {
        wait(agent, BACKOFF_LATE_NS / 2 + jitter(agent, BACKOFF_LATE_NS / 2));
        return;
    }
    if (!was_online && agent->round_tried < agent->address_count) {
        dial(agent);
        return;
    }
    wait(agent, BACKOFF_MIN_NS + jitter(agent, agent->backoff_ns));
    bool is_soon = agent->now_ns - agent->offline_since_ns < BACKOFF_SOON_TIME_NS;
    int64_t bound_ns = is_soon ? BACKOFF_SOON_NS : BACKOFF_LATE_NS;
    agent->backoff_ns = agent->backoff_ns * 2 < bound_ns ? agent->backoff_ns * 2 : bound_ns;
}

/* Log a failure once, until its text changes or a Welcome comes between. */
static void log_failure(dt_agent_t *agent, int severity, const char *event, const char *text)
{
    (void)dt_str_copy(agent->last_error, sizeof agent->last_error, text);
    if (strcmp(agent->logged_error, text) == 0)
        return;
    (void)dt_str_copy(agent->logged_error, sizeof agent->logged_error, text);
    dt_agent_log(agent, severity, event, "%s", text);
}

static void lose(dt_agent_t *agent, const char *why, bool must_close)
{
    char text[600];
    if (must_close)
        close_stream(agent, why);
    if (is_online(agent)) {
        (void)snprintf(text, sizeof text, "connection to the controller lost: %.500s", why);
        (void)dt_str_copy(agent->last_error, sizeof agent->last_error, text);
        agent->logged_error[0] = '\0';
        dt_agent_log(agent, DTORCH__V1__SEVERITY__WARNING, "controller-lost", "%s", text);
    } else {
        (void)snprintf(text, sizeof text, "no controller at address %" PRIu32 ": %.500s",
                       agent->address_index + 1, why);
        log_failure(agent, DTORCH__V1__SEVERITY__WARNING, "controller-unreachable", text);
    }
    retry(agent, false);
}

/* ---- Welcome, refusal ---- */

static void refuse_controller(dt_agent_t *agent, const char *text)
{
    log_failure(agent, DTORCH__V1__SEVERITY__ERROR, "controller-refused", text);
    close_stream(agent, text);
    retry(agent, true);
}

static bool welcome_is_acceptable(dt_agent_t *agent, const Dtorch__V1__WorkerWelcome *welcome,
                                  char *text, size_t text_size)
{
    dt_error_t error;
    if (dt_wire_check_version(welcome->version, "controller", welcome->build, &error) != DT_OK) {
        (void)dt_str_copy(text, text_size, error.text);
        return false;
    }
    if (agent->has_cluster_id &&
        memcmp(welcome->cluster_id.data, agent->cluster_id, sizeof agent->cluster_id) != 0) {
        (void)snprintf(text, text_size,
                       "this node belongs to another cluster than \"%s\"; to move it, remove the "
                       "cluster file in its state directory",
                       welcome->cluster_name);
        return false;
    }
    if (agent->has_cluster_id && welcome->epoch < agent->epoch_seen) {
        (void)snprintf(text, text_size,
                       "the controller is at epoch %" PRIu64 ", this node has seen %" PRIu64
                       ": an old controller, or one whose state was put back",
                       welcome->epoch, agent->epoch_seen);
        return false;
    }
    return true;
}

static void take_rules(dt_agent_t *agent, const Dtorch__V1__WorkerWelcome *welcome)
{
    agent->rules = (dt_lease_rules_t){
        .interval_ns = welcome->heartbeat_ms * MS_NS,
        .suspect_beats = welcome->suspect_beats,
        .dead_beats = welcome->dead_beats,
    };
    dt_lease_clock_set_rules(&agent->clock, &agent->rules);
    dt_lease_init(&agent->lease, &agent->clock, agent->now_ns);
    agent->beat_sequence = 0;
    agent->next_beat_ns = agent->now_ns + jitter(agent, agent->rules.interval_ns);
}

static void save_membership(dt_agent_t *agent, const Dtorch__V1__WorkerWelcome *welcome)
{
    if (agent->has_cluster_id && welcome->epoch == agent->epoch_seen)
        return;
    memcpy(agent->cluster_id, welcome->cluster_id.data, sizeof agent->cluster_id);
    agent->has_cluster_id = true;
    agent->epoch_seen = welcome->epoch;
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_SAVE);
    memcpy(slot->action.cluster_id, agent->cluster_id, sizeof agent->cluster_id);
    slot->action.epoch = agent->epoch_seen;
}

static void on_welcome(dt_agent_t *agent, const Dtorch__V1__WorkerWelcome *welcome)
{
    char text[512];
    if (agent->state != DT_AGENT_HELLO) {
        refuse_controller(agent, "the controller sent a second Welcome");
        return;
    }
    if (!welcome_is_acceptable(agent, welcome, text, sizeof text)) {
        refuse_controller(agent, text);
        return;
    }
    save_membership(agent, welcome);
    take_rules(agent, welcome);
    move(agent, DT_AGENT_ONLINE);
    (void)dt_str_copy(agent->cluster_name, sizeof agent->cluster_name, welcome->cluster_name);
    (void)dt_str_copy(agent->controller_build, sizeof agent->controller_build, welcome->build);
    agent->online_since_ns = agent->now_ns;
    agent->attempts = 0;
    agent->welcomes++;
    agent->last_error[0] = agent->logged_error[0] = '\0';
    agent->inventory_is_sent = false;
    agent->events_sent_sequence = 0;
    dt_agent_log(agent, DTORCH__V1__SEVERITY__NOTICE, "controller-found",
                 "registered with cluster \"%s\" at epoch %" PRIu64 ", stream %" PRIu64,
                 agent->cluster_name, agent->epoch_seen, welcome->stream);
    dt_agent_send_inventory(agent);
}

static const char *refusal_name(Dtorch__V1__Refusal__Code code)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&dtorch__v1__refusal__code__descriptor, (int)code);
    return value ? value->name : "UNKNOWN";
}

static void on_refusal(dt_agent_t *agent, const Dtorch__V1__Refusal *refusal)
{
    char text[600];
    (void)snprintf(text, sizeof text, "the controller refused this node (%s): %.512s",
                   refusal_name(refusal->code), refusal->text);
    log_failure(agent, refusal->retry ? DTORCH__V1__SEVERITY__WARNING : DTORCH__V1__SEVERITY__ERROR,
                "controller-refused", text);
    close_stream(agent, "refused");
    retry(agent, !refusal->retry);
}

static void on_intent(dt_agent_t *agent, const Dtorch__V1__NodeIntent *intent)
{
    if (!is_online(agent))
        return;
    agent->admin = intent->admin;
    (void)dt_str_copy(agent->reason, sizeof agent->reason, intent->reason);
    dt_agent_slot_t *slot = dt_agent_push(agent, DT_AGENT_DO_INTENT);
    slot->action.admin = intent->admin;
    (void)dt_str_copy(slot->text, sizeof slot->text, intent->reason);
}

/* ---- inputs ---- */

void dt_agent_connected(dt_agent_t *agent, uint64_t stream, int64_t now_ns, int64_t wall_ms)
{
    if (stream != agent->stream || agent->state != DT_AGENT_DIALING)
        return;
    agent->now_ns = now_ns;
    agent->wall_ms = wall_ms;
    if (!dt_agent_send_hello(agent)) {
        lose(agent, "out of memory", true);
        return;
    }
    move(agent, DT_AGENT_HELLO);
    agent->due_ns = now_ns + agent->dial_timeout_ns;
}

void dt_agent_received(dt_agent_t *agent, uint64_t stream, const Dtorch__V1__WorkerDown *message,
                       int64_t now_ns)
{
    if (stream != agent->stream || (agent->state != DT_AGENT_HELLO && !is_online(agent)))
        return;
    agent->now_ns = now_ns;
    if (is_online(agent) && dt_lease_heard(&agent->lease, &agent->clock, now_ns)) {
        move(agent, DT_AGENT_ONLINE);
        dt_agent_log(agent, DTORCH__V1__SEVERITY__NOTICE, "controller-back",
                     "the controller is heard again");
    }
    switch (message->kind_case) {
    case DTORCH__V1__WORKER_DOWN__KIND_WELCOME:
        on_welcome(agent, message->welcome);
        break;
    case DTORCH__V1__WORKER_DOWN__KIND_REFUSAL:
        on_refusal(agent, message->refusal);
        break;
    case DTORCH__V1__WORKER_DOWN__KIND_BEAT:
        dt_lease_beat(&agent->lease, &agent->rules, message->beat->sequence,
                      message->beat->progress, message->beat->late_ns);
        break;
    case DTORCH__V1__WORKER_DOWN__KIND_INTENT:
        on_intent(agent, message->intent);
        break;
    case DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK:
        dt_agent_forget_events(agent, message->engine_ack->sequence);
        break;
    default:
        break; /* of a newer minor version */
    }
}

void dt_agent_malformed(dt_agent_t *agent, uint64_t stream, const dt_error_t *error, int64_t now_ns)
{
    char text[600];
    if (stream != agent->stream || !has_stream(agent))
        return;
    agent->now_ns = now_ns;
    (void)snprintf(text, sizeof text, "the controller sent a malformed message: %s", error->text);
    refuse_controller(agent, text);
}

void dt_agent_closed(dt_agent_t *agent, uint64_t stream, const char *text, int64_t now_ns)
{
    if (stream != agent->stream || !has_stream(agent))
        return;
    agent->now_ns = now_ns;
    lose(agent, text, false);
}

static void check_lease(dt_agent_t *agent)
{
    switch (dt_lease_check(&agent->lease, &agent->rules, &agent->clock)) {
    case DT_LEASE_SUSPECT:
        if (agent->state == DT_AGENT_SUSPECT)
            return;
        move(agent, DT_AGENT_SUSPECT);
        dt_agent_log(agent, DTORCH__V1__SEVERITY__WARNING, "controller-suspect",
                     "the controller is silent for %" PRId64 " ms",
                     dt_lease_silence_ns(&agent->lease, agent->now_ns) / MS_NS);
        return;
    case DT_LEASE_DEAD:
        lose(agent, "the controller is silent", true);
        agent->due_ns = agent->now_ns; /* dial at once, with a fresh look-up */
        return;
    default:
        return;
    }
}

static void beat_if_due(dt_agent_t *agent)
{
    if (!is_online(agent) || agent->now_ns < agent->next_beat_ns)
        return;
    dt_agent_send_beat(agent);
    agent->next_beat_ns += agent->rules.interval_ns;
    if (agent->next_beat_ns <= agent->now_ns)
        agent->next_beat_ns = agent->now_ns + agent->rules.interval_ns;
}

void dt_agent_tick(dt_agent_t *agent, int64_t now_ns, int64_t wall_ms)
{
    if (agent->state == DT_AGENT_STOPPED)
        return;
    agent->now_ns = now_ns;
    agent->wall_ms = wall_ms;
    agent->turns++;
    if (dt_lease_clock_turn(&agent->clock, now_ns) && is_online(agent)) {
        check_lease(agent);
        if (is_online(agent))
            dt_agent_send_inventory(agent);
    }
    beat_if_due(agent);
    if (is_online(agent) || now_ns < agent->due_ns)
        return;
    if (agent->state == DT_AGENT_WAITING)
        dial(agent);
    else if (agent->state == DT_AGENT_DIALING)
        lose(agent, "no connection in time", true);
    else
        lose(agent, "no answer to the hello in time", true);
}

int64_t dt_agent_deadline(const dt_agent_t *agent)
{
    if (agent->state == DT_AGENT_STOPPED)
        return INT64_MAX;
    int64_t deadline_ns = agent->clock.deadline_ns;
    int64_t other_ns = is_online(agent) ? agent->next_beat_ns : agent->due_ns;
    return other_ns < deadline_ns ? other_ns : deadline_ns;
}

dt_status_t dt_agent_set_inventory(dt_agent_t *agent, const Dtorch__V1__Inventory *inventory,
                                   int64_t now_ns, dt_error_t *err)
{
    Dtorch__V1__Inventory copy = *inventory; /* shallow, for a pointer that is not const */
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    uint8_t *data;
    size_t size;
    agent->now_ns = now_ns;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_INVENTORY;
    up.inventory = &copy;
    DT_TRY(dt_wire_validate(&up.base, err));
    if (dt_wire_pack_new(&up.base, &data, &size) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the inventory");
    if (agent->inventory && size == agent->inventory_size &&
        memcmp(data, agent->inventory, size) == 0) {
        free(data);
        return DT_OK;
    }
    if (inventory->config_hash[0])
        dt_wire_text_copy(agent->config_hash, sizeof agent->config_hash, inventory->config_hash);
    free(agent->inventory);
    agent->inventory = data;
    agent->inventory_size = size;
    agent->inventory_is_sent = false;
    if (is_online(agent))
        dt_agent_send_inventory(agent);
    return DT_OK;
}

void dt_agent_set_progress(dt_agent_t *agent, uint64_t progress)
{
    agent->progress = progress;
    agent->has_progress = true;
}

void dt_agent_set_busy(dt_agent_t *agent, const uint8_t *percents, uint32_t count)
{
    dt_check(count <= DT_AGENT_DEVICES_MAX);
    if (count == agent->busy_count && memcmp(percents, agent->busy, count) == 0)
        return;
    memcpy(agent->busy, percents, count);
    agent->busy_count = count;
    agent->busy_is_sent = false;
}

void dt_agent_set_addresses(dt_agent_t *agent, uint32_t address_count, bool redial, int64_t now_ns)
{
    dt_check(address_count >= 1 && address_count <= DT_AGENT_ADDRESS_MAX);
    agent->now_ns = now_ns;
    agent->address_count = address_count;
    if (redial || agent->address_index >= address_count) {
        agent->address_index = 0;
        if (has_stream(agent)) {
            close_stream(agent, "the controller's address was changed");
            dt_agent_log(agent, DTORCH__V1__SEVERITY__NOTICE, "controller-changed",
                         "the controller's address was changed, dialing again");
            wait(agent, 0);
        }
        agent->due_ns = now_ns;
    }
}

void dt_agent_stop(dt_agent_t *agent, const char *reason, int64_t now_ns)
{
    if (agent->state == DT_AGENT_STOPPED)
        return;
    agent->now_ns = now_ns;
    if (is_online(agent)) {
        char text[257];
        Dtorch__V1__Bye bye = DTORCH__V1__BYE__INIT;
        Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
        dt_wire_text_copy(text, sizeof text, reason);
        bye.reason = text;
        up.kind_case = DTORCH__V1__WORKER_UP__KIND_BYE;
        up.bye = &bye;
        (void)dt_agent_send(agent, &up, false); /* without it we are lost instead of stopped */
    }
    if (has_stream(agent))
        close_stream(agent, reason);
    move(agent, DT_AGENT_STOPPED);
    (void)dt_agent_push(agent, DT_AGENT_DO_STOPPED);
}

/* ---- life ---- */

static dt_status_t check_options(const dt_agent_options_t *options, dt_error_t *err)
{
    if (options->struct_size != sizeof *options)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)options->struct_size,
                       "agent options of %zu bytes", options->struct_size);
    if (!dt_wire_node_name_is_valid(options->node_name))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "node name \"%.80s\": it must be 1..63 bytes of [a-z0-9-] that begin and "
                       "end with a letter or digit",
                       options->node_name);
    if (options->address_count < 1 || options->address_count > DT_AGENT_ADDRESS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", options->address_count,
                       "%" PRIu32 " controller addresses, bound 1..%u", options->address_count,
                       DT_AGENT_ADDRESS_MAX);
    if (options->incarnation == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "an incarnation of 0");
    return DT_OK;
}

static void take_options(dt_agent_t *agent, const dt_agent_options_t *options)
{
    static const uint8_t none[16];
    memcpy(agent->node_id, options->node_id, sizeof agent->node_id);
    memcpy(agent->cluster_id, options->cluster_id, sizeof agent->cluster_id);
    agent->has_cluster_id = memcmp(options->cluster_id, none, sizeof none) != 0;
    agent->epoch_seen = agent->has_cluster_id ? options->epoch_seen : 0;
    agent->incarnation = options->incarnation;
    agent->random = options->seed;
    agent->pid = options->pid;
    agent->address_count = options->address_count;
    agent->dial_timeout_ns =
        options->dial_timeout_ns > 0 ? options->dial_timeout_ns : DIAL_TIMEOUT_NS;
    dt_wire_text_copy(agent->node_name, sizeof agent->node_name, options->node_name);
    dt_wire_text_copy(agent->rack, sizeof agent->rack, options->rack ? options->rack : "");
    dt_wire_text_copy(agent->build, sizeof agent->build, options->build ? options->build : "");
    dt_wire_text_copy(agent->boot_id, sizeof agent->boot_id,
                      options->boot_id ? options->boot_id : "");
    dt_wire_text_copy(agent->config_hash, sizeof agent->config_hash,
                      options->config_hash ? options->config_hash : "");
}

dt_status_t dt_agent_create(const dt_agent_options_t *options, int64_t now_ns,
                            dt_agent_t **ret_agent, dt_error_t *err)
{
    DT_TRY(check_options(options, err));
    dt_agent_t *agent = calloc(1, sizeof *agent);
    if (!agent)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the agent");
    take_options(agent, options);
    agent->now_ns = agent->due_ns = agent->offline_since_ns = now_ns;
    agent->backoff_ns = BACKOFF_FIRST_NS;
    agent->rules = (dt_lease_rules_t){250 * MS_NS, 3, 8}; /* until a Welcome says otherwise */
    dt_lease_clock_init(&agent->clock, &agent->rules, now_ns);
    dt_lease_init(&agent->lease, &agent->clock, now_ns);
    *ret_agent = agent;
    return DT_OK;
}

void dt_agent_free(dt_agent_t *agent)
{
    if (!agent)
        return;
    dt_agent_forget_events(agent, UINT64_MAX);
    while (agent->slots_count) {
        free(agent->slots[agent->slots_head].owned);
        agent->slots_head = (agent->slots_head + 1) % DT_AGENT_ACTIONS_MAX;
        agent->slots_count--;
    }
    free(agent->polled);
    free(agent->inventory);
    free(agent);
}

void dt_agent_view(const dt_agent_t *agent, int64_t now_ns, dt_agent_view_t *ret_view)
{
    *ret_view = (dt_agent_view_t){
        .state = agent->state,
        .state_text = states[agent->state].name,
        .stream = agent->stream,
        .address_index = agent->address_index,
        .attempts = agent->attempts,
        .reconnects = agent->welcomes > 1 ? agent->welcomes - 1 : 0,
        .epoch = agent->epoch_seen,
        .cluster_name = agent->cluster_name,
        .controller_build = agent->controller_build,
        .admin = agent->admin,
        .reason = agent->reason,
        .silence_ns = is_online(agent) ? dt_lease_silence_ns(&agent->lease, now_ns) : -1,
        .late_ns = agent->clock.late_ns,
        .events_queued = agent->events_count,
        .events_dropped = agent->events_dropped,
        .beats_sent = agent->beats_sent,
        .last_error = agent->last_error,
        .rules = agent->rules,
    };
}
