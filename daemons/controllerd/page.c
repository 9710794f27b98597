/* The status page's document: one JSON text of what `dtorchctl` can show, for people who look.
 *
 * It is made here, on the state thread, but only while somebody looks, a few nodes a turn, and so
 * seldom that it takes a hundredth of this thread at most: what took 20 ms is made again after 2 s.
 * lib/metrics serves it, with the files of page/, which page_files.c holds.
 *
 * Jobs, operators and events are cut to what a person can look at. Numbers of nodes are short,
 * since there may be thousands: a device is [index, health, MiB used, MiB, percent, degrees, model,
 * text], health 0 unknown, 1 ok, 2 degraded, 3 failed, 4 missing; model counts in "models". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "controllerd.h"
#include "observe.h"

#define DOCUMENT_MAX   (16u << 20)
#define ARENA_MAX      (64u << 20)
#define NODES_A_TURN   64u
#define NODES_MAX      4096u
#define JOBS_MAX       200u
#define BINDINGS_MAX   256u
#define OPERATORS_MAX  25u
#define EVENTS_MAX     60u
#define WATCHED_NS     (5 * DT_CLOCK_SECOND_NS) /* a reader that came within it is there */
#define PERIOD_NS      DT_CLOCK_SECOND_NS
#define SHARE          100 /* of this thread: one in so many */
#define MIB_SHIFT      20
#define DEVICE_MISSING 4u
#define SECRET_SIZE    256

static const char *const admin_words[] = {"enabled", "cordoned", "draining", "drained"};
static const char *const health_words[] = {"unknown", "ok",   "degraded",
                                           "suspect", "dead", "stopped"};
static const char *const severity_words[] = {"info", "debug", "info", "notice", "warning", "error"};

#define WORD(words, value)                                                                         \
    ((size_t)(value) < sizeof(words) / sizeof *(words) ? (words)[value] : "unknown")

/* ---- the head: everything but nodes ---- */

static void put_counts(dt_json_t *json, const Dtorch__V1__ClusterStatus *status)
{
    dt_json_key(json, "nodes");
    dt_json_open(json, '{');
    dt_json_put_uint(json, "total", status->nodes_total);
    dt_json_put_uint(json, "ready", status->nodes_ready);
    dt_json_put_uint(json, "suspect", status->nodes_suspect);
    dt_json_put_uint(json, "dead", status->nodes_dead);
    dt_json_put_uint(json, "unknown", status->nodes_unknown);
    dt_json_put_uint(json, "stopped", status->nodes_stopped);
    dt_json_put_uint(json, "drained", status->nodes_drained);
    dt_json_close(json, '}');
    dt_json_key(json, "devices");
    dt_json_open(json, '{');
    dt_json_put_uint(json, "total", status->devices_total);
    dt_json_put_uint(json, "ok", status->devices_ok);
    dt_json_put_uint(json, "missing", status->devices_missing);
    dt_json_put_uint(json, "failed", status->devices_failed);
    dt_json_close(json, '}');
}

static void put_cluster(dt_controllerd_t *app, dt_json_t *json,
                        const Dtorch__V1__ClusterStatus *status)
{
    const char *why = dt_controllerd_not_serving(app);
    dt_json_key(json, "cluster");
    dt_json_open(json, '{');
    dt_json_put_text(json, "name", status->name);
    dt_json_put_text(json, "controller", status->controller);
    dt_json_put_text(json, "build", status->build);
    dt_json_put_uint(json, "epoch", status->epoch);
    dt_json_put_int(json, "started", status->started_wall_ms);
    dt_json_put_text(json, "trouble", why ? why : "");
    dt_json_put_text(json, "access",
                     app->tls.is_on                        ? "TLS"
                     : dt_conf_bool(app->conf, "Insecure") ? "INSECURE"
                                                           : "private (no TLS)");
    dt_json_put_uint(json, "journal_bytes", status->journal->bytes);
    dt_json_put_text(json, "journal", status->journal->is_failing ? status->journal->text : "");
    put_counts(json, status);
    dt_json_close(json, '}');
    dt_json_key(json, "alarms");
    dt_json_open(json, '[');
    for (size_t i = 0; i < status->n_alarms; i++) {
        dt_json_open(json, '{');
        dt_json_put_text(json, "name", status->alarms[i]->name);
        dt_json_put_text(json, "text", status->alarms[i]->text);
        dt_json_put_text(json, "command", status->alarms[i]->command);
        dt_json_put_int(json, "since", status->alarms[i]->since_wall_ms);
        dt_json_close(json, '}');
    }
    dt_json_close(json, ']');
}

static void put_job(dt_json_t *json, const Dtorch__V1__Job *job)
{
    dt_json_open(json, '{');
    dt_json_put_uint(json, "id", job->id);
    dt_json_put_text(json, "program", job->program);
    dt_json_put_text(json, "key", job->key);
    dt_json_put_text(json, "state", job->state == DTORCH__V1__JOB__STATE__AWAY ? "away" : "live");
    dt_json_put_int(json, "started", job->started_wall_ms);
    dt_json_put_int(json, "grace", job->grace_left_ms);
    dt_json_put_uint(json, "devices", job->n_bindings);
    dt_json_put_uint(json, "accepted", job->operators);
    dt_json_put_uint(json, "executed", job->operators_executed);
    dt_json_put_int(json, "rate", job->operators_per_second);
    dt_json_put_int(json, "busy", job->device_percent);
    dt_json_put_uint(json, "queued", job->queued_bytes);
    dt_json_put_uint(json, "memory", job->memory_bytes);
    dt_json_put_uint(json, "tensors", job->tensors);
    dt_json_put_uint(json, "errors", job->errors);
    if (job->steps)
        dt_json_put_uint(json, "step", job->step);
    dt_json_key(json, "on"); /* name, index, name, index */
    dt_json_open(json, '[');
    for (size_t i = 0; i < job->n_bindings && i < BINDINGS_MAX; i++) {
        if (!job->bindings[i]->node[0])
            continue;
        dt_json_text(json, job->bindings[i]->node);
        dt_json_uint(json, job->bindings[i]->device);
    }
    dt_json_close(json, ']');
    dt_json_close(json, '}');
}

static dt_status_t put_jobs(dt_controllerd_t *app, dt_json_t *json)
{
    const Dtorch__V1__ListJobsRequest request = {
        .base = PROTOBUF_C_MESSAGE_INIT(&dtorch__v1__list_jobs_request__descriptor),
        .limit = JOBS_MAX};
    Dtorch__V1__JobList *list;
    Dtorch__V1__OperatorStats **operators;
    size_t count;
    DT_TRY(dt_sessions_list(app->sessions, &request, &app->page_arena, dt_loop_now_ns(), &list));
    DT_TRY(dt_sessions_operators(app->sessions, &app->page_arena, &operators, &count));
    dt_json_key(json, "jobs");
    dt_json_open(json, '[');
    for (size_t i = 0; i < list->n_jobs; i++)
        put_job(json, list->jobs[i]);
    dt_json_close(json, ']');
    dt_json_put_uint(json, "jobs_more", list->more);
    dt_json_key(json, "operators");
    dt_json_open(json, '[');
    for (size_t i = 0; i < count && i < OPERATORS_MAX; i++) {
        dt_json_open(json, '{');
        dt_json_put_text(json, "name", operators[i]->name);
        dt_json_put_uint(json, "count", operators[i]->count);
        dt_json_put_uint(json, "device_us", operators[i]->device_ns / 1000);
        dt_json_put_uint(json, "bytes", operators[i]->bytes);
        dt_json_put_uint(json, "errors", operators[i]->errors);
        dt_json_close(json, '}');
    }
    dt_json_close(json, ']');
    dt_json_put_uint(json, "operator_names", count);
    return DT_OK;
}

static dt_status_t put_events(dt_controllerd_t *app, dt_json_t *json)
{
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    Dtorch__V1__EventList *list;
    request.limit = EVENTS_MAX;
    request.severity_min = DTORCH__V1__SEVERITY__INFO;
    DT_TRY(dt_cluster_list_events(app->cluster, &request, &app->page_arena, &list));
    dt_json_key(json, "events");
    dt_json_open(json, '[');
    for (size_t i = 0; i < list->n_events; i++) {
        const Dtorch__V1__Event *event = list->events[i];
        dt_json_open(json, '{');
        dt_json_put_uint(json, "number", event->sequence);
        dt_json_put_int(json, "at", event->wall_ms);
        dt_json_put_text(json, "severity", WORD(severity_words, event->severity));
        dt_json_put_text(json, "name", event->name);
        dt_json_put_text(json, "node", event->node);
        dt_json_put_text(json, "device", event->device);
        dt_json_put_text(json, "text", event->text);
        dt_json_close(json, '}');
    }
    dt_json_close(json, ']');
    return DT_OK;
}

static dt_status_t put_head(dt_controllerd_t *app, dt_json_t *json)
{
    Dtorch__V1__ClusterStatus *status;
    int64_t now_ns = dt_loop_now_ns();
    dt_arena_reset(&app->reply_arena);
    DT_TRY(dt_cluster_get(app->cluster, &app->reply_arena, now_ns, &status));
    DT_TRY(dt_controllerd_complete_status(app, now_ns, status));
    dt_json_open(json, '{');
    dt_json_put_uint(json, "version", 1);
    dt_json_put_int(json, "now", dt_clock_wall_ms(dt_clock_system()));
    dt_json_put_int(json, "period", app->page_period_ns / DT_CLOCK_MS_NS);
    put_cluster(app, json, status);
    DT_TRY(put_jobs(app, json));
    DT_TRY(put_events(app, json));
    dt_json_key(json, "nodes");
    dt_json_open(json, '[');
    return json->status;
}

/* ---- nodes ---- */

static unsigned model_of(dt_controllerd_page_draft_t *draft, const char *name)
{
    unsigned at = 0;
    while (at < draft->model_count && strcmp(draft->models[at], name) != 0)
        at++;
    if (at == draft->model_count && at < DT_CONTROLLERD_PAGE_MODELS) {
        (void)dt_str_copy(draft->models[at], sizeof draft->models[at], name);
        draft->model_count++;
    }
    return at;
}

static void put_device(dt_controllerd_page_draft_t *draft, const Dtorch__V1__NodeDevice *shown)
{
    const Dtorch__V1__Device *device = shown->device;
    dt_json_t *json = &draft->json;
    dt_json_open(json, '[');
    dt_json_uint(json, device->index);
    dt_json_uint(json, shown->is_missing ? DEVICE_MISSING : (unsigned)device->health);
    dt_json_uint(json, device->memory_used_bytes >> MIB_SHIFT);
    dt_json_uint(json, device->memory_bytes >> MIB_SHIFT);
    dt_json_uint(json, device->utilization_percent);
    dt_json_uint(json, device->temperature_c);
    dt_json_uint(json, model_of(draft, device->name));
    if (device->health_text[0])
        dt_json_text(json, device->health_text);
    dt_json_close(json, ']');
}

static void put_node(dt_controllerd_page_draft_t *draft, const Dtorch__V1__Node *node)
{
    dt_json_t *json = &draft->json;
    dt_json_open(json, '{');
    dt_json_put_text(json, "name", node->name);
    dt_json_put_text(json, "health", WORD(health_words, node->health));
    if (node->admin != DTORCH__V1__NODE_INTENT__ADMIN__ENABLED) {
        dt_json_put_text(json, "admin", WORD(admin_words, node->admin));
        dt_json_put_text(json, "reason", node->reason);
        dt_json_put_text(json, "by", node->reason_by);
    }
    if (node->health_text[0])
        dt_json_put_text(json, "text", node->health_text);
    dt_json_put_int(json, "since", node->health_since_wall_ms);
    if (node->topology && node->topology->rack[0])
        dt_json_put_text(json, "rack", node->topology->rack);
    dt_json_key(json, "devices");
    dt_json_open(json, '[');
    for (size_t i = 0; i < node->n_devices; i++)
        put_device(draft, node->devices[i]);
    dt_json_close(json, ']');
    dt_json_close(json, '}');
}

/* Write the next nodes. *ret_is_last: there are none behind them. */
static dt_status_t put_nodes(dt_controllerd_t *app, bool *ret_is_last)
{
    dt_controllerd_page_draft_t *draft = &app->page_draft;
    const Dtorch__V1__ListNodesRequest request = {
        .base = PROTOBUF_C_MESSAGE_INIT(&dtorch__v1__list_nodes_request__descriptor),
        .with_devices = true,
        .limit = NODES_A_TURN,
        .after = draft->after};
    Dtorch__V1__NodeList *list;
    DT_TRY(
        dt_cluster_list_nodes(app->cluster, &request, &app->page_arena, dt_loop_now_ns(), &list));
    for (size_t i = 0; i < list->n_nodes; i++)
        put_node(draft, list->nodes[i]);
    draft->nodes += (uint32_t)list->n_nodes;
    if (list->n_nodes)
        (void)dt_str_copy(draft->after, sizeof draft->after, list->nodes[list->n_nodes - 1]->name);
    *ret_is_last = !list->more || draft->nodes >= NODES_MAX;
    return draft->json.status;
}

static void put_tail(dt_controllerd_page_draft_t *draft)
{
    dt_json_t *json = &draft->json;
    dt_json_close(json, ']');
    dt_json_key(json, "models");
    dt_json_open(json, '[');
    for (unsigned i = 0; i < draft->model_count; i++)
        dt_json_text(json, draft->models[i]);
    dt_json_close(json, ']');
    dt_json_close(json, '}');
}

/* ---- turns ---- */

static void drop_draft(dt_controllerd_t *app)
{
    dt_buf_fini(&app->page_draft.text);
    app->page_draft.is_open = false;
}

static int64_t period_ns(const dt_controllerd_page_draft_t *draft)
{
    int64_t pause_ns = draft->spent_ns * SHARE;
    return pause_ns > PERIOD_NS ? pause_ns : PERIOD_NS;
}

static dt_status_t publish(dt_controllerd_t *app)
{
    dt_controllerd_page_draft_t *draft = &app->page_draft;
    size_t size;
    char *text;
    put_tail(draft);
    DT_TRY(draft->json.status);
    size = draft->text.len;
    app->page_documents++;
    DT_TRY(dt_buf_take_text(&draft->text, &text));
    return dt_page_publish(app->page, text, size, 3 * period_ns(draft) + WATCHED_NS);
}

/* What this thread has computed so far: of a machine that does other things it is not to blame. */
static int64_t processor_ns(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) < 0)
        return 0;
    return now.tv_sec * DT_CLOCK_SECOND_NS + now.tv_nsec;
}

/* One turn of making the document: its head, or the next nodes; the last one publishes it. */
static void on_turn(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    dt_controllerd_page_draft_t *draft = &app->page_draft;
    int64_t from_ns = processor_ns();
    bool is_last = false;
    dt_status_t status = DT_OK;
    (void)deadline_ns;
    if (!draft->is_open) /* a reload dropped it */
        return;
    if (!draft->text.len)
        status = put_head(app, &draft->json);
    else
        status = put_nodes(app, &is_last);
    if (status == DT_OK && is_last)
        status = publish(app);
    dt_arena_reset(&app->page_arena);
    draft->spent_ns += processor_ns() - from_ns;
    app->page_period_ns = period_ns(draft);
    app->page_next_ns = draft->began_ns + app->page_period_ns;
    app->page_spent_ns = draft->spent_ns;
    app->page_spent_total_ns += processor_ns() - from_ns;
    if (status != DT_OK)
        dt_log_warn("status page not made", DT_LOG_S("why", dt_status_text(status)));
    if (status != DT_OK || is_last)
        drop_draft(app);
    else
        dt_timer_arm(app->page_timer, dt_loop_now_ns());
}

void dt_controllerd_page_look(dt_controllerd_t *app)
{
    int64_t now_ns = dt_loop_now_ns();
    dt_controllerd_page_draft_t *draft = &app->page_draft;
    if (!app->page || draft->is_open || now_ns < app->page_next_ns || !app->server ||
        !dt_page_is_watched(app->page, WATCHED_NS))
        return;
    *draft = (dt_controllerd_page_draft_t){.is_open = true, .began_ns = now_ns};
    dt_buf_init(&draft->text, DOCUMENT_MAX);
    dt_json_init(&draft->json, &draft->text);
    dt_timer_arm(app->page_timer, now_ns);
}

static void on_wanted(void *arg)
{
    dt_controllerd_page_look(arg);
}

/* ---- start and end ---- */

/* Read the first line of the file. */
static dt_status_t read_secret(const char *path, char secret[SECRET_SIZE], dt_error_t *err)
{
    FILE *file = fopen(path, "re");
    char *line = file ? fgets(secret, SECRET_SIZE, file) : NULL;
    int number = errno;
    if (file)
        (void)fclose(file);
    if (!line)
        return dt_fail(err, DT_ERR_INVALID, "errno", number, "StatusSecret=%s: %s", path,
                       file ? "the file is empty" : strerrordesc_np(number));
    secret[strcspn(secret, "\r\n")] = '\0';
    return DT_OK;
}

/* Open the port, with the certificate and the secret that there are now. */
static dt_status_t open_port(dt_controllerd_t *app, const char *listen, dt_error_t *err)
{
    bool needs_tls = !dt_controllerd_is_local(listen);
    const char *path = dt_conf_str(app->conf, "StatusSecret");
    char secret[SECRET_SIZE];
    dt_status_t status = DT_OK;
    dt_page_options_t options = {
        .struct_size = sizeof options,
        .option = "StatusListen",
        .listen = listen,
        .certificate_pem = needs_tls ? app->tls.chain : NULL,
        .key_pem = needs_tls ? app->tls.key : NULL,
    };
    options.files = dt_controllerd_page_files(&options.file_count);
    options.wanted = dt_rpc_wake;
    options.arg = app->page_wake;
    if (*path)
        status = read_secret(path, secret, err);
    options.secret = *path ? secret : NULL;
    if (status == DT_OK)
        status = dt_page_open(&options, &app->page, err);
    explicit_bzero(secret, sizeof secret);
    return status;
}

static dt_status_t open_page(dt_controllerd_t *app, const char *listen, dt_error_t *err)
{
    dt_arena_init(&app->page_arena, ARENA_MAX);
    DT_TRY(dt_rpc_wake_create(app->rpc, on_wanted, app, &app->page_wake, err));
    DT_TRY(dt_timer_create(app->loop, on_turn, app, &app->page_timer, err));
    return open_port(app, listen, err);
}

dt_status_t dt_controllerd_page_open(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    const char *listen = dt_conf_str(app->conf, "StatusListen");
    dt_status_t status = DT_OK;
    if (strcmp(listen, "none") != 0)
        status = open_page(app, listen, err);
    *ret_exit = dt_controllerd_http_exit(status);
    return status;
}

void dt_controllerd_page_renew(dt_controllerd_t *app)
{
    char address[128];
    dt_error_t err;
    if (!app->page || dt_controllerd_is_local(dt_page_address(app->page)))
        return;
    (void)dt_str_copy(address, sizeof address, dt_page_address(app->page));
    dt_page_close(app->page);
    app->page = NULL;
    drop_draft(app);
    if (open_port(app, address, &err) != DT_OK)
        dt_log_err("the status page is off", DT_LOG_E(&err));
}

void dt_controllerd_page_close(dt_controllerd_t *app)
{
    dt_page_close(app->page);
    app->page = NULL;
    if (app->page_wake)
        dt_rpc_wake_free(app->page_wake);
    dt_timer_free(app->page_timer);
    drop_draft(app);
    dt_arena_fini(&app->page_arena);
}
