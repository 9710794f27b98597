#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/agent.h"
#include "dtorch/v1/admin.pb-c.h"
#include "wire/wire.h"

#define MS_NS       INT64_C(1000000)
#define REFUSAL(id) DTORCH__V1__REFUSAL__CODE__##id

static dt_agent_t *agent;
static int64_t now_ns;
static dt_agent_action_t last_dial, last_save, last_intent;
static uint32_t counts[8], beats, errors;
static char last_close[600];
static Dtorch__V1__WorkerUp *sent[512];
static uint32_t sent_count;

static void forget_sent(void)
{
    while (sent_count)
        dtorch__v1__worker_up__free_unpacked(sent[--sent_count], NULL);
}

static uint8_t last_busy[DT_AGENT_DEVICES_MAX]; /* of the beat that was sent last */
static size_t last_busy_count;

static void take_beat(const dt_agent_action_t *action)
{
    Dtorch__V1__WorkerUp *up = dtorch__v1__worker_up__unpack(NULL, action->size, action->data);
    cr_assert(up && dt_wire_validate(&up->base, NULL) == DT_OK);
    beats++;
    last_busy_count = up->beat->busy.len;
    if (last_busy_count > 0)
        memcpy(last_busy, up->beat->busy.data, last_busy_count);
    dtorch__v1__worker_up__free_unpacked(up, NULL);
}

static void perform(void)
{
    dt_agent_action_t action;
    while (dt_agent_poll(agent, &action)) {
        counts[action.kind]++;
        if (action.kind == DT_AGENT_DO_DIAL)
            last_dial = action;
        else if (action.kind == DT_AGENT_DO_SAVE)
            last_save = action;
        else if (action.kind == DT_AGENT_DO_INTENT)
            last_intent = action;
        else if (action.kind == DT_AGENT_DO_CLOSE)
            (void)snprintf(last_close, sizeof last_close, "%s", action.text);
        else if (action.kind == DT_AGENT_DO_LOG && action.severity == DTORCH__V1__SEVERITY__ERROR)
            errors++;
        else if (action.kind == DT_AGENT_DO_SEND && action.is_beat)
            take_beat(&action);
        else if (action.kind == DT_AGENT_DO_SEND) {
            sent[sent_count] = dtorch__v1__worker_up__unpack(NULL, action.size, action.data);
            cr_assert(sent[sent_count] != NULL);
            cr_assert_eq(dt_wire_validate(&sent[sent_count]->base, NULL), DT_OK);
            cr_assert_lt(++sent_count, 512);
        }
    }
}

static void pass(int64_t ms)
{
    int64_t end_ns = now_ns + ms * MS_NS;
    while (now_ns < end_ns) {
        int64_t due_ns = dt_agent_deadline(agent);
        now_ns = due_ns > now_ns && due_ns < end_ns ? due_ns : end_ns;
        dt_agent_tick(agent, now_ns, 1790000000000);
        perform();
    }
}

static dt_agent_options_t options(void)
{
    return (dt_agent_options_t){
        .struct_size = sizeof(dt_agent_options_t),
        .node_id = "node-id-1234567",
        .incarnation = 7,
        .seed = 1,
        .node_name = "gpu001",
        .address_count = 1,
    };
}

static void setup(void)
{
    dt_agent_options_t made = options();
    now_ns = 5000 * MS_NS;
    cr_assert_eq(dt_agent_create(&made, now_ns, &agent, NULL), DT_OK);
}

static void teardown(void)
{
    forget_sent();
    dt_agent_free(agent);
}

static dt_agent_state_t state(void)
{
    dt_agent_view_t view;
    dt_agent_view(agent, now_ns, &view);
    return view.state;
}

static void receive(Dtorch__V1__WorkerDown *down)
{
    cr_assert_eq(dt_wire_validate(&down->base, NULL), DT_OK);
    dt_agent_received(agent, last_dial.stream, down, now_ns);
    perform();
}

static void welcome(uint64_t epoch, const char *cluster_id)
{
    uint8_t id[16] = {0};
    char name[] = "lab";
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerWelcome message = DTORCH__V1__WORKER_WELCOME__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    memcpy(id, cluster_id, strlen(cluster_id));
    version.major = 1;
    message.version = &version;
    message.cluster_id = (ProtobufCBinaryData){sizeof id, id};
    message.cluster_name = name;
    message.epoch = epoch;
    message.heartbeat_ms = 250;
    message.suspect_beats = 3;
    message.dead_beats = 8;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_WELCOME;
    down.welcome = &message;
    receive(&down);
}

static void beat(void)
{
    Dtorch__V1__Beat message = DTORCH__V1__BEAT__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_BEAT;
    down.beat = &message;
    receive(&down);
}

static void refuse(int code, bool retry)
{
    char text[] = "because of a test";
    Dtorch__V1__Refusal message = DTORCH__V1__REFUSAL__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    message.code = (Dtorch__V1__Refusal__Code)code;
    message.retry = retry;
    message.text = text;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_REFUSAL;
    down.refusal = &message;
    receive(&down);
}

static void wait_for_dial(void)
{
    uint32_t before = counts[DT_AGENT_DO_DIAL];
    for (int i = 0; i < 1000 && counts[DT_AGENT_DO_DIAL] == before; i++)
        pass(10);
    cr_assert_eq(counts[DT_AGENT_DO_DIAL], before + 1);
}

static void connect_now(void)
{
    wait_for_dial();
    dt_agent_connected(agent, last_dial.stream, now_ns, 1790000000000);
    perform();
    cr_assert_eq(state(), DT_AGENT_HELLO);
}

static void go_online(void)
{
    connect_now();
    welcome(3, "cluster-1");
    cr_assert_eq(state(), DT_AGENT_ONLINE);
}

static void inventory(uint32_t cpus)
{
    Dtorch__V1__Inventory message = DTORCH__V1__INVENTORY__INIT;
    message.cpu_count = cpus;
    cr_assert_eq(dt_agent_set_inventory(agent, &message, now_ns, NULL), DT_OK);
    perform();
}

static void engine_event(void)
{
    Dtorch__V1__EngineEvent message = DTORCH__V1__ENGINE_EVENT__INIT;
    message.kind = DTORCH__V1__ENGINE_EVENT__KIND__STARTED;
    cr_assert_eq(dt_agent_engine_event(agent, &message, now_ns, NULL), DT_OK);
    perform();
}

static uint32_t count_sent(int kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sent_count; i++)
        count += (int)sent[i]->kind_case == kind;
    return count;
}

TestSuite(agent, .init = setup, .fini = teardown, .timeout = 60);

Test(agent, says_hello_with_its_identity_and_saves_the_cluster_it_is_welcomed_to)
{
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_HELLO), 1);
    cr_assert_str_eq(sent[0]->hello->node_name, "gpu001");
    cr_assert_eq(sent[0]->hello->incarnation, 7);
    cr_assert_eq(sent[0]->hello->cluster_id.len, 0);
    cr_assert_eq(counts[DT_AGENT_DO_SAVE], 1);
    cr_assert_eq(last_save.epoch, 3);
}

Test(agent, dials_again_with_growing_waits_at_most_five_seconds_apart)
{
    int64_t longest_ns = 0;
    uint32_t early = 0;
    for (int i = 0; i < 200; i++) {
        int64_t before_ns = now_ns;
        wait_for_dial();
        if (now_ns - before_ns > longest_ns)
            longest_ns = now_ns - before_ns;
        early += now_ns < 10000 * MS_NS;
        dt_agent_closed(agent, last_dial.stream, "Connection refused", now_ns);
        perform();
    }
    cr_assert_leq(longest_ns, 5010 * MS_NS);
    cr_assert_gt(longest_ns, 2500 * MS_NS);
    cr_assert_gt(early, 5);
    cr_assert_lt(early, 40);
    cr_assert_leq(counts[DT_AGENT_DO_LOG], 1, "one failure is logged once");
}

Test(agent, tries_all_addresses_before_it_waits)
{
    dt_agent_options_t made = options();
    dt_agent_free(agent);
    made.address_count = 3;
    cr_assert_eq(dt_agent_create(&made, now_ns, &agent, NULL), DT_OK);
    wait_for_dial();
    uint32_t seen = 0;
    for (int i = 0; i < 3; i++) {
        seen |= 1u << last_dial.index;
        dt_agent_closed(agent, last_dial.stream, "refused", now_ns);
        perform();
    }
    cr_assert_eq(seen, 7);
    cr_assert_eq(counts[DT_AGENT_DO_DIAL], 3);
    cr_assert_eq(state(), DT_AGENT_WAITING);
}

Test(agent, beats_each_interval_once_it_is_welcomed)
{
    go_online();
    for (int i = 0; i < 40; i++) {
        pass(250);
        beat();
    }
    cr_assert_geq(beats, 39);
    cr_assert_leq(beats, 41);
}

Test(agent, tells_how_busy_devices_are_with_the_beat_after_a_change_and_after_an_inventory)
{
    static const uint8_t percents[] = {3, 100};
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    go_online();
    dt_agent_set_busy(agent, percents, 2);
    pass(250);
    cr_assert_eq(last_busy_count, 0, "without an inventory nobody knows of which devices");
    inventory.cpu_count = 1;
    cr_assert_eq(dt_agent_set_inventory(agent, &inventory, now_ns, NULL), DT_OK);
    for (int i = 0; i < 3; i++) {
        beat();
        pass(250);
        cr_assert_eq(last_busy_count, i == 0 ? 2 : 0, "once, at its change");
        cr_assert(i > 0 || memcmp(last_busy, percents, 2) == 0);
    }
    dt_agent_set_busy(agent, percents, 2);
    beat();
    pass(250);
    cr_assert_eq(last_busy_count, 0, "it is the same");
    inventory.cpu_count = 2;
    cr_assert_eq(dt_agent_set_inventory(agent, &inventory, now_ns, NULL), DT_OK);
    beat();
    pass(250);
    cr_assert_eq(last_busy_count, 2, "the controller forgot it with the old inventory");
}

Test(agent, suspects_a_silent_controller_then_drops_it_and_dials_at_once)
{
    go_online();
    pass(1000);
    cr_assert_eq(state(), DT_AGENT_SUSPECT);
    beat();
    cr_assert_eq(state(), DT_AGENT_ONLINE);
    uint32_t dials = counts[DT_AGENT_DO_DIAL];
    pass(2400);
    cr_assert_eq(counts[DT_AGENT_DO_DIAL], dials + 1);
    cr_assert_str_eq(last_close, "the controller is silent");
}

Test(agent, does_not_drop_the_controller_when_it_was_starved_itself)
{
    go_online();
    for (int i = 0; i < 2; i++) {
        now_ns += 60000 * MS_NS;
        dt_agent_tick(agent, now_ns, 0);
        perform();
    }
    cr_assert(state() == DT_AGENT_ONLINE || state() == DT_AGENT_SUSPECT);
}

Test(agent, refuses_a_controller_with_a_lower_epoch)
{
    go_online();
    dt_agent_closed(agent, last_dial.stream, "gone", now_ns);
    connect_now();
    welcome(2, "cluster-1");
    cr_assert_eq(state(), DT_AGENT_WAITING);
    cr_assert(strstr(last_close, "epoch 2, this node has seen 3") != NULL);
}

Test(agent, refuses_a_controller_of_another_cluster)
{
    go_online();
    dt_agent_closed(agent, last_dial.stream, "gone", now_ns);
    connect_now();
    welcome(9, "cluster-2");
    cr_assert_eq(state(), DT_AGENT_WAITING);
    cr_assert(strstr(last_close, "another cluster") != NULL);
    cr_assert_eq(counts[DT_AGENT_DO_SAVE], 1);
}

Test(agent, saves_a_higher_epoch)
{
    go_online();
    dt_agent_closed(agent, last_dial.stream, "gone", now_ns);
    connect_now();
    welcome(4, "cluster-1");
    cr_assert_eq(counts[DT_AGENT_DO_SAVE], 2);
    cr_assert_eq(last_save.epoch, 4);
}

Test(agent, retries_slowly_and_logs_once_when_it_is_refused_for_good)
{
    for (int i = 0; i < 5; i++) {
        int64_t before_ns = now_ns;
        connect_now();
        if (i)
            cr_assert_geq(now_ns - before_ns, 2400 * MS_NS);
        refuse(REFUSAL(IDENTITY), false);
        cr_assert_eq(state(), DT_AGENT_WAITING);
    }
    cr_assert_eq(errors, 1);
}

Test(agent, retries_soon_when_the_controller_stops)
{
    connect_now();
    refuse(REFUSAL(STOPPING), true);
    int64_t before_ns = now_ns;
    wait_for_dial();
    cr_assert_lt(now_ns - before_ns, 200 * MS_NS);
}

Test(agent, sends_its_inventory_after_each_welcome_and_when_it_changes)
{
    inventory(8);
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_INVENTORY), 1);
    inventory(8);
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_INVENTORY), 1);
    inventory(9);
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_INVENTORY), 2);
    dt_agent_closed(agent, last_dial.stream, "gone", now_ns);
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_INVENTORY), 3);
}

Test(agent, sends_engine_events_again_until_they_are_acknowledged)
{
    Dtorch__V1__EngineAck ack = DTORCH__V1__ENGINE_ACK__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    engine_event();
    engine_event();
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_ENGINE), 2);
    ack.sequence = 1;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK;
    down.engine_ack = &ack;
    receive(&down);
    dt_agent_closed(agent, last_dial.stream, "gone", now_ns);
    forget_sent();
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_ENGINE), 1);
    cr_assert_eq(sent[sent_count - 1]->engine->sequence, 2);
}

Test(agent, keeps_the_newest_engine_events_when_there_are_too_many)
{
    dt_agent_view_t view;
    for (uint32_t i = 0; i < DT_AGENT_EVENTS_MAX + 10; i++)
        engine_event();
    dt_agent_view(agent, now_ns, &view);
    cr_assert_eq(view.events_queued, DT_AGENT_EVENTS_MAX);
    cr_assert_eq(view.events_dropped, 10);
    go_online();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_ENGINE), DT_AGENT_EVENTS_MAX);
    cr_assert_eq(sent[sent_count - 1]->engine->sequence, DT_AGENT_EVENTS_MAX + 10);
}

Test(agent, says_bye_when_it_stops)
{
    go_online();
    dt_agent_stop(agent, "SIGTERM", now_ns);
    perform();
    cr_assert_eq(count_sent(DTORCH__V1__WORKER_UP__KIND_BYE), 1);
    cr_assert_eq(counts[DT_AGENT_DO_CLOSE], 1);
    cr_assert_eq(counts[DT_AGENT_DO_STOPPED], 1);
    cr_assert_eq(dt_agent_deadline(agent), INT64_MAX);
}

Test(agent, stops_in_any_state)
{
    wait_for_dial();
    dt_agent_stop(agent, "SIGTERM", now_ns);
    perform();
    cr_assert_eq(counts[DT_AGENT_DO_STOPPED], 1);
    dt_agent_connected(agent, last_dial.stream, now_ns, 0);
    dt_agent_closed(agent, last_dial.stream, "", now_ns);
    dt_agent_tick(agent, now_ns + 1, 0);
    perform();
    cr_assert_eq(counts[DT_AGENT_DO_STOPPED], 1);
}

Test(agent, gives_up_a_dial_and_a_hello_that_nobody_answers)
{
    wait_for_dial();
    pass(3100);
    cr_assert_str_eq(last_close, "no connection in time");
    dt_agent_connected(agent, last_dial.stream, now_ns, 0);
    perform();
    uint32_t closes = counts[DT_AGENT_DO_CLOSE];
    pass(3100);
    cr_assert_geq(counts[DT_AGENT_DO_CLOSE], closes + 1);
}

Test(agent, passes_on_what_people_want)
{
    char reason[] = "fan 2";
    Dtorch__V1__NodeIntent intent = DTORCH__V1__NODE_INTENT__INIT;
    Dtorch__V1__WorkerDown down = DTORCH__V1__WORKER_DOWN__INIT;
    go_online();
    intent.admin = DTORCH__V1__NODE_INTENT__ADMIN__DRAINING;
    intent.reason = reason;
    down.kind_case = DTORCH__V1__WORKER_DOWN__KIND_INTENT;
    down.intent = &intent;
    receive(&down);
    cr_assert_eq(last_intent.admin, DTORCH__V1__NODE_INTENT__ADMIN__DRAINING);
}

Test(agent, ignores_news_of_a_stream_that_it_has_left)
{
    go_online();
    uint64_t old = last_dial.stream;
    dt_agent_closed(agent, old, "gone", now_ns);
    go_online();
    dt_agent_closed(agent, old, "gone again", now_ns);
    cr_assert_eq(state(), DT_AGENT_ONLINE);
}

Test(agent, refuses_bad_options_by_name)
{
    dt_agent_t *other;
    dt_error_t error;
    dt_agent_options_t made = options();
    made.node_name = "GPU_1";
    cr_assert_eq(dt_agent_create(&made, now_ns, &other, &error), DT_ERR_INVALID);
    cr_assert(strstr(error.text, "GPU_1") != NULL);
}
