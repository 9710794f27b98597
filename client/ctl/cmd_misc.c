/* dtorchctl diag, version and completion, and the hidden door of the completion script. */
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/version.h"
#include "help.h"
#include "jobs.h"
#include "json.h"
#include "nodes.h"
#include "text.h"

#define COMPLETE_MS 200 /* a shell that waits longer feels stuck */

/* ---- diag dump ---- */

static const dt_ctl_column_t diag_columns[] = {
    {"part", "PART", "part", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"name", "NAME", "name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"value", "VALUE", "value", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"bound", "BOUND", "bound", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t diag_list = {
    .kind = "Diagnostics",
    .one = "value",
    .many = "values",
    .name_path = "name",
    .type = &dtorch__v1__diagnostics_item__descriptor,
    .columns = diag_columns,
    .column_count = sizeof diag_columns / sizeof diag_columns[0],
};

int dt_ctl_diag_dump(dt_ctl_t *ctl)
{
    Dtorch__V1__GetDiagnosticsRequest request = DTORCH__V1__GET_DIAGNOSTICS_REQUEST__INIT;
    int code = dt_ctl_check_list(ctl, &diag_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__Diagnostics *list =
        dt_ctl_call(ctl, "GetDiagnostics", &request, &dtorch__v1__diagnostics__descriptor, &code);
    if (!list)
        return code;
    return dt_ctl_print_list(ctl, &diag_list,
                             (const ProtobufCMessage *const *)(const void *)list->items,
                             list->n_items, &list->base);
}

/* ---- version ---- */

/* One line of `version`; a name that is not known is left out. */
static void print_version(dt_ctl_t *ctl, bool is_first, const char *program, const char *build,
                          const char *protocol)
{
    FILE *out = ctl->output.screen.file;
    switch (ctl->output.format) {
    case DT_CTL_JSON:
        (void)fprintf(out, "%s{\"program\":\"%s\",\"build\":", is_first ? "" : ",\n", program);
        dt_ctl_json_text(out, build);
        if (protocol) {
            (void)fputs(",\"version\":", out);
            dt_ctl_json_text(out, protocol);
        }
        (void)fputc('}', out);
        break;
    case DT_CTL_CSV:
        (void)fputs(is_first && ctl->output.screen.has_legend ? "program,build,version\r\n" : "",
                    out);
        (void)fprintf(out, "%s,", program);
        dt_ctl_csv_text(out, dt_ctl_safe(&ctl->pool, build));
        (void)fprintf(out, ",%s\r\n", protocol ? dt_ctl_safe(&ctl->pool, protocol) : "");
        break;
    case DT_CTL_NAME:
        (void)fprintf(out, "%s\n", dt_ctl_safe(&ctl->pool, build));
        break;
    default:
        (void)fprintf(out, "%-20s  %s", program, dt_ctl_safe(&ctl->pool, build));
        if (protocol)
            (void)fprintf(out, "  protocol %s", dt_ctl_safe(&ctl->pool, protocol));
        (void)fputc('\n', out);
    }
}

int dt_ctl_version(dt_ctl_t *ctl)
{
    int code;
    bool is_json = ctl->output.format == DT_CTL_JSON;
    FILE *out = ctl->output.screen.file;
    Dtorch__V1__GetClusterRequest request = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    if (is_json) {
        dt_ctl_json_begin(out, "VersionList");
        (void)fputs(",\"items\":[\n", out);
    }
    print_version(ctl, true, "dtorchctl", dt_version(), NULL);
    (void)fflush(out);
    const Dtorch__V1__ClusterStatus *status =
        dt_ctl_call(ctl, "GetCluster", &request, &dtorch__v1__cluster_status__descriptor, &code);
    if (status)
        print_version(ctl, false, "dtorch-controllerd", status->build, status->version);
    if (is_json) {
        (void)fputc('\n', out);
        dt_ctl_json_end(out);
    }
    return code;
}

/* ---- completion ---- */

int dt_ctl_completion_bash(dt_ctl_t *ctl)
{
    dt_ctl_completion(ctl->output.screen.file);
    return DT_CTL_EXIT_OK;
}

static void print_ids(const dt_ctl_list_t *list, const ProtobufCMessage *const *items, size_t count,
                      dt_arena_t *pool, FILE *out)
{
    dt_ctl_output_t output = {.pool = pool, .screen = {.file = out}, .format = DT_CTL_NAME};
    dt_status_t status = dt_ctl_list_print(list, items, count, NULL, &output, NULL);
    (void)status; /* names of a list without a filter cannot fail */
}

/* Ask for the ids of a noun within what is left of the time. What goes wrong is not said. */
static void complete_nodes(dt_ctl_conn_t *conn, dt_arena_t *pool, bool devices, FILE *out)
{
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply;
    const char *tried;
    const dt_ctl_request_t what = {"ListNodes", &request.base, &dtorch__v1__node_list__descriptor,
                                   COMPLETE_MS};
    request.with_devices = devices;
    if (dt_ctl_conn_call(conn, pool, &what, &reply, &tried, NULL) != DT_OK)
        return;
    const Dtorch__V1__NodeList *list = (const Dtorch__V1__NodeList *)(const void *)reply;
    if (!devices)
        print_ids(&dt_ctl_node_list_type,
                  (const ProtobufCMessage *const *)(const void *)list->nodes, list->n_nodes, pool,
                  out);
    for (size_t i = 0; devices && i < list->n_nodes; i++)
        print_ids(&dt_ctl_device_list_type,
                  (const ProtobufCMessage *const *)(const void *)list->nodes[i]->devices,
                  list->nodes[i]->n_devices, pool, out);
}

static void complete_tokens(dt_ctl_conn_t *conn, dt_arena_t *pool, FILE *out)
{
    Dtorch__V1__ListTokensRequest request = DTORCH__V1__LIST_TOKENS_REQUEST__INIT;
    ProtobufCMessage *reply;
    const char *tried;
    static const dt_ctl_list_t ids = {.one = "token",
                                      .many = "tokens",
                                      .name_path = "id",
                                      .type = &dtorch__v1__token_info__descriptor};
    const dt_ctl_request_t what = {"ListTokens", &request.base, &dtorch__v1__token_list__descriptor,
                                   COMPLETE_MS};
    if (dt_ctl_conn_call(conn, pool, &what, &reply, &tried, NULL) != DT_OK)
        return;
    const Dtorch__V1__TokenList *list = (const Dtorch__V1__TokenList *)(const void *)reply;
    print_ids(&ids, (const ProtobufCMessage *const *)(const void *)list->tokens, list->n_tokens,
              pool, out);
}

static void complete_keys(dt_ctl_conn_t *conn, dt_arena_t *pool, FILE *out)
{
    Dtorch__V1__ListKeysRequest request = DTORCH__V1__LIST_KEYS_REQUEST__INIT;
    ProtobufCMessage *reply;
    const char *tried;
    static const dt_ctl_list_t ids = {.one = "key",
                                      .many = "keys",
                                      .name_path = "name",
                                      .type = &dtorch__v1__key_info__descriptor};
    const dt_ctl_request_t what = {"ListKeys", &request.base, &dtorch__v1__key_list__descriptor,
                                   COMPLETE_MS};
    if (dt_ctl_conn_call(conn, pool, &what, &reply, &tried, NULL) != DT_OK)
        return;
    const Dtorch__V1__KeyList *list = (const Dtorch__V1__KeyList *)(const void *)reply;
    print_ids(&ids, (const ProtobufCMessage *const *)(const void *)list->keys, list->n_keys, pool,
              out);
}

static void complete_jobs(dt_ctl_conn_t *conn, dt_arena_t *pool, FILE *out)
{
    Dtorch__V1__ListJobsRequest request = DTORCH__V1__LIST_JOBS_REQUEST__INIT;
    ProtobufCMessage *reply;
    const char *tried;
    const dt_ctl_request_t what = {"ListJobs", &request.base, &dtorch__v1__job_list__descriptor,
                                   COMPLETE_MS};
    if (dt_ctl_conn_call(conn, pool, &what, &reply, &tried, NULL) != DT_OK)
        return;
    const Dtorch__V1__JobList *list = (const Dtorch__V1__JobList *)(const void *)reply;
    print_ids(&dt_ctl_job_list_type, (const ProtobufCMessage *const *)(const void *)list->jobs,
              list->n_jobs, pool, out);
}

static void give_up(int signo)
{
    (void)signo;
    _exit(DT_CTL_EXIT_OK);
}

int dt_ctl_complete(int argc, char *const *argv, FILE *out)
{
    dt_ctl_conn_t conn = {0};
    dt_arena_t pool;
    /* The whole process has this long: names may take longer to resolve than any call. */
    const struct sigaction on_alarm = {.sa_handler = give_up};
    const struct itimerval limit = {.it_value = {0, COMPLETE_MS * 1000L}};
    if (argc != 1 || sigaction(SIGALRM, &on_alarm, NULL) != 0 ||
        setitimer(ITIMER_REAL, &limit, NULL) != 0)
        return DT_CTL_EXIT_OK;
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
    if (dt_ctl_conn_open(&conn, &pool, NULL, NULL, NULL) == DT_OK) {
        if (strcmp(argv[0], "token") == 0)
            complete_tokens(&conn, &pool, out);
        else if (strcmp(argv[0], "key") == 0)
            complete_keys(&conn, &pool, out);
        else if (strcmp(argv[0], "job") == 0)
            complete_jobs(&conn, &pool, out);
        else
            complete_nodes(&conn, &pool, strcmp(argv[0], "device") == 0, out);
    }
    dt_ctl_conn_fini(&conn);
    dt_arena_fini(&pool);
    return DT_CTL_EXIT_OK;
}
