/* dtorchctl events: what happened, and what happens now. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "text.h"

#define LIMIT_MAX 10000 /* of one answer (admin.proto) */
#define NEXT_MS   1000  /* a turn of following */
#define RETRY_MS  2000  /* between tries while the controller is away */

static const dt_ctl_column_t event_columns[] = {
    {"sequence", "SEQUENCE", "sequence", NULL, NULL, DT_CTL_COLUMN_WIDE, 8},
    {"time", "TIME", "wall_ms", NULL, NULL, 0, 8},
    {"severity", "SEVERITY", "severity", NULL, NULL, DT_CTL_COLUMN_STATE, 8},
    {"node", "NODE", "node", NULL, NULL, DT_CTL_COLUMN_WIDE, 8},
    {"device", "DEVICE", "device", NULL, NULL, DT_CTL_COLUMN_WIDE, 8},
    {"event", "EVENT", "name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 16},
    {"text", "TEXT", "text", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"fields", "FIELDS", "fields", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
};

static const dt_ctl_list_t event_list = {
    .kind = "EventList",
    .one = "event",
    .many = "events",
    .name_path = "sequence",
    .type = &dtorch__v1__event__descriptor,
    .columns = event_columns,
    .column_count = sizeof event_columns / sizeof event_columns[0],
};

static int print_events(dt_ctl_t *ctl, const Dtorch__V1__EventList *list)
{
    return dt_ctl_print_list(ctl, &event_list,
                             (const ProtobufCMessage *const *)(const void *)list->events,
                             list->n_events, &list->base);
}

/* Fill the request from the command line; gives the exit code. */
static int make_request(dt_ctl_t *ctl, Dtorch__V1__ListEventsRequest *request)
{
    dt_error_t error;
    const char *since = dt_ctl_option(ctl, DT_CTL_OPT_SINCE);
    int code = dt_ctl_check_list(ctl, &event_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (since && dt_ctl_parse_time(since, ctl->output.style.now_wall_ms, &request->since_wall_ms,
                                   &error) != DT_OK)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--since: %s", error.text);
    if (ctl->cli.arg_count > 0)
        request->node = dt_ctl_copy(&ctl->kept, ctl->cli.args[0], strlen(ctl->cli.args[0]));
    /* A filter here may drop some, so -n can be left to the controller only without one. */
    if (!ctl->output.filter && ctl->output.limit > 0)
        request->limit = (uint32_t)(ctl->output.limit < LIMIT_MAX ? ctl->output.limit : LIMIT_MAX);
    else if (since || ctl->output.limit > 0 || ctl->output.filter)
        request->limit = LIMIT_MAX;
    return DT_CTL_EXIT_OK;
}

/* Of a list that is longer than -n, the newest are wanted: drop the oldest that pass the filter. */
static int keep_newest(dt_ctl_t *ctl, Dtorch__V1__EventList *list)
{
    dt_ctl_filter_t filter;
    dt_error_t error;
    size_t limit = ctl->output.limit, kept = 0;
    if (limit == 0 || ctl->output.sort || !ctl->output.filter)
        return DT_CTL_EXIT_OK;
    dt_status_t status = dt_ctl_filter_parse(&ctl->pool, ctl->output.filter, &filter, &error);
    for (size_t i = list->n_events; i > 0 && kept < limit && status == DT_OK; i--) {
        bool passes = false;
        status = dt_ctl_list_passes(&event_list, &list->events[i - 1]->base, &filter, &ctl->output,
                                    &passes, &error);
        kept += passes;
        if (kept == limit) {
            list->events += i - 1;
            list->n_events -= i - 1;
        }
    }
    return status == DT_OK ? DT_CTL_EXIT_OK : dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
}

/* ---- follow ---- */

/* Print one batch; remembers the newest sequence, so that a new stream goes on behind it. */
static int print_batch(dt_ctl_t *ctl, const Dtorch__V1__EventList *list,
                       Dtorch__V1__ListEventsRequest *request)
{
    int code = DT_CTL_EXIT_OK;
    if (list->n_events > 0) {
        ctl->output.is_stream = true;
        code = print_events(ctl, list);
        ctl->output.is_first = false;
        request->after_sequence = list->events[list->n_events - 1]->sequence;
    }
    if (fflush(ctl->output.screen.file) != 0)
        return DT_CTL_EXIT_FAILED;
    return code;
}

/* Whether there was just no message within the turn. A lost connection has the same status (gRPC's
 * UNAVAILABLE), but gRPC as its source. */
static bool is_quiet(dt_status_t status, const dt_error_t *error)
{
    return status == DT_ERR_AGAIN && error->source && strcmp(error->source, "grpc") != 0;
}

/* Read one stream until it ends. DT_OK when it should be opened again. */
static dt_status_t follow_stream(dt_ctl_t *ctl, Dtorch__V1__ListEventsRequest *request, int *code,
                                 dt_error_t *err)
{
    dt_rpc_reader_t *reader = NULL;
    dt_status_t status =
        dt_ctl_conn_follow(&ctl->conn, &ctl->pool, "FollowEvents", &request->base, &reader, err);
    while (status == DT_OK || is_quiet(status, err)) {
        uint8_t *data;
        size_t size;
        ProtobufCMessage *message;
        ctl->output.style.now_wall_ms = dt_clock_wall_ms(dt_clock_system());
        status = dt_rpc_reader_next(reader, NEXT_MS, &data, &size, err);
        if (status != DT_OK)
            continue;
        status = dt_ctl_unpack(&ctl->pool, &dtorch__v1__event_list__descriptor, data, size,
                               &message, err);
        free(data);
        if (status == DT_OK)
            *code = print_batch(ctl, (const Dtorch__V1__EventList *)(const void *)message, request);
        dt_arena_reset(&ctl->pool);
        if (*code != DT_CTL_EXIT_OK)
            break;
    }
    dt_rpc_reader_free(reader);
    return status;
}

/* Follow for ever; a controller that restarts is waited for. */
static int follow(dt_ctl_t *ctl, Dtorch__V1__ListEventsRequest *request)
{
    const struct timespec pause = {RETRY_MS / 1000, RETRY_MS % 1000 * DT_CLOCK_MS_NS};
    bool was_lost = false;
    request->limit = 0;
    for (;;) {
        dt_error_t error = {.code = DT_OK};
        int code = DT_CTL_EXIT_OK;
        dt_status_t status = follow_stream(ctl, request, &code, &error);
        if (code != DT_CTL_EXIT_OK)
            return code;
        if (status == DT_ERR_DENIED || status == DT_ERR_INVALID || status == DT_ERR_INTERNAL)
            return dt_ctl_fail_error(ctl, &error);
        if (!was_lost)
            dt_ctl_note(ctl, "the controller is away; going on when it is back");
        was_lost = true;
        (void)nanosleep(&pause, NULL);
    }
}

static int list_events(dt_ctl_t *ctl, bool goes_on, bool only_new)
{
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    int code = make_request(ctl, &request);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (only_new)
        request.limit = 1; /* only to know where now is */
    Dtorch__V1__EventList *list =
        dt_ctl_call(ctl, "ListEvents", &request, &dtorch__v1__event_list__descriptor, &code);
    if (!list)
        return code;
    code = keep_newest(ctl, list);
    if (code != DT_CTL_EXIT_OK || !goes_on)
        return code != DT_CTL_EXIT_OK ? code : print_events(ctl, list);
    if (list->n_events > 0)
        request.after_sequence = list->events[list->n_events - 1]->sequence;
    if (!only_new)
        code = print_batch(ctl, list, &request);
    ctl->output.is_stream = true;
    ctl->output.limit = 0;
    return code != DT_CTL_EXIT_OK ? code : follow(ctl, &request);
}

int dt_ctl_events_list(dt_ctl_t *ctl)
{
    return list_events(ctl, dt_ctl_has(ctl, DT_CTL_OPT_FOLLOW), false);
}

int dt_ctl_events_follow(dt_ctl_t *ctl)
{
    return list_events(ctl, true, !dt_ctl_has(ctl, DT_CTL_OPT_SINCE) && ctl->output.limit == 0);
}
