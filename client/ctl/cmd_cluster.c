/* dtorchctl cluster: the whole at a glance, for people and for a monitoring system. */
#include <inttypes.h>
#include <string.h>

#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "text.h"

#define WARNING_MAX 5 /* shown; -o wide shows all */

static const dt_ctl_column_t cluster_columns[] = {
    {"name", "NAME", "name", NULL, NULL, 0, 0},
    {"epoch", "EPOCH", "epoch", NULL, NULL, 0, 0},
    {"nodes", "NODES", "nodes_total", NULL, NULL, 0, 0},
    {"ready", "READY", "nodes_ready", NULL, NULL, 0, 0},
    {"devices", "DEVICES", "devices_total", NULL, NULL, 0, 0},
};

static const dt_ctl_list_t cluster_list = {
    .kind = "ClusterStatus",
    .one = "cluster",
    .many = "clusters",
    .name_path = "name",
    .type = &dtorch__v1__cluster_status__descriptor,
    .columns = cluster_columns,
    .column_count = sizeof cluster_columns / sizeof cluster_columns[0],
};

/* "15 ready  1 suspect": what is zero is left out. */
struct part {
    uint64_t count;
    const char *word;
};

static const char *parts_text(dt_arena_t *pool, const struct part *parts, size_t count)
{
    const char *text = "";
    for (size_t i = 0; i < count; i++)
        if (parts[i].count > 0)
            text = dt_ctl_print(pool, "%s  %" PRIu64 " %s", text, parts[i].count, parts[i].word);
    return text;
}

static const char *nodes_text(dt_arena_t *pool, const Dtorch__V1__ClusterStatus *status)
{
    const struct part parts[] = {
        {status->nodes_ready, "ready"},     {status->nodes_suspect, "suspect"},
        {status->nodes_dead, "dead"},       {status->nodes_unknown, "unknown"},
        {status->nodes_stopped, "stopped"}, {status->nodes_drained, "out of service"}};
    return parts_text(pool, parts, sizeof parts / sizeof parts[0]);
}

static const char *devices_text(dt_arena_t *pool, const Dtorch__V1__ClusterStatus *status)
{
    uint64_t known =
        (uint64_t)status->devices_ok + status->devices_failed + status->devices_missing;
    const struct part parts[] = {
        {status->devices_ok, "ok"},
        {status->devices_failed, "failed"},
        {status->devices_missing, "missing"},
        {status->devices_total > known ? status->devices_total - known : 0, "unknown"}};
    return parts_text(pool, parts, sizeof parts / sizeof parts[0]);
}

/* "16    15 ready  1 suspect", or "0" alone. */
static const char *counted(dt_arena_t *pool, uint32_t total, const char *parts)
{
    return *parts ? dt_ctl_print(pool, "%-4u%s", total, parts) : dt_ctl_print(pool, "%u", total);
}

static void show_head(dt_ctl_t *ctl, const Dtorch__V1__ClusterStatus *status)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    dt_ctl_line(pool, screen, "cluster", DT_CTL_COLOUR_NONE,
                "%s  epoch %" PRIu64 "  controller %s up %s%s", dt_ctl_safe(pool, status->name),
                status->epoch, dt_ctl_safe(pool, status->controller),
                dt_ctl_duration(pool, status->uptime_ms),
                status->is_private ? "  private: this machine only" : "");
    dt_ctl_line(pool, screen, "nodes",
                status->nodes_dead + status->nodes_suspect > 0 ? DT_CTL_COLOUR_WARN
                                                               : DT_CTL_COLOUR_NONE,
                "%s", counted(pool, status->nodes_total, nodes_text(pool, status)));
    dt_ctl_line(pool, screen, "devices",
                status->devices_failed + status->devices_missing > 0 ? DT_CTL_COLOUR_WARN
                                                                     : DT_CTL_COLOUR_NONE,
                "%s", counted(pool, status->devices_total, devices_text(pool, status)));
}

static void show_journal(dt_ctl_t *ctl, const Dtorch__V1__JournalStatus *journal)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    if (!journal) {
        dt_ctl_line(pool, screen, "journal", DT_CTL_COLOUR_NONE, "not known");
        return;
    }
    const char *pending = journal->pending > 0
                              ? dt_ctl_print(pool, ", %" PRIu64 " of %" PRIu64 " waiting",
                                             journal->pending, journal->pending_max)
                              : "";
    if (journal->is_failing)
        dt_ctl_line(pool, screen, "journal", DT_CTL_COLOUR_BAD, "failing: %s%s",
                    dt_ctl_safe(pool, journal->text), pending);
    else
        dt_ctl_line(pool, screen, "journal", DT_CTL_COLOUR_NONE,
                    "ok, %s in %" PRIu64 " records since snapshot%s",
                    dt_ctl_bytes(pool, journal->bytes), journal->records, pending);
}

static void show_warnings(dt_ctl_t *ctl, const Dtorch__V1__ClusterStatus *status)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    size_t max = ctl->output.format == DT_CTL_WIDE ? status->n_alarms : WARNING_MAX;
    if (status->n_alarms == 0)
        dt_ctl_line(pool, screen, "warnings", DT_CTL_COLOUR_NONE, "none");
    for (size_t i = 0; i < status->n_alarms && i < max; i++) {
        const Dtorch__V1__Alarm *alarm = status->alarms[i];
        bool has_command = alarm->command[0] != '\0';
        dt_ctl_line(pool, screen, i == 0 ? "warnings" : "", DT_CTL_COLOUR_WARN, "%s%s%s%s",
                    dt_ctl_safe(pool, alarm->text), has_command ? " (" : "",
                    dt_ctl_safe(pool, alarm->command), has_command ? ")" : "");
    }
    if (status->n_alarms > max)
        dt_ctl_line(pool, screen, "", DT_CTL_COLOUR_NONE,
                    "%zu more (dtorchctl cluster status -o wide)", status->n_alarms - max);
}

static const Dtorch__V1__ClusterStatus *get_cluster(dt_ctl_t *ctl, int *ret_code)
{
    Dtorch__V1__GetClusterRequest request = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    return dt_ctl_call(ctl, "GetCluster", &request, &dtorch__v1__cluster_status__descriptor,
                       ret_code);
}

static void show_details(dt_ctl_t *ctl, const Dtorch__V1__ClusterStatus *status)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    for (size_t i = 0; i < status->n_listens; i++)
        dt_ctl_line(pool, screen, i == 0 ? "listens" : "", DT_CTL_COLOUR_NONE, "%s",
                    dt_ctl_safe(pool, status->listens[i]));
    dt_ctl_line(pool, screen, "build", DT_CTL_COLOUR_NONE, "%s  protocol %s  configuration %s",
                dt_ctl_safe(pool, status->build), dt_ctl_safe(pool, status->version),
                dt_ctl_safe(pool, status->config_hash));
    dt_ctl_line(pool, screen, "id", DT_CTL_COLOUR_NONE, "%s",
                dt_ctl_hex(pool, status->cluster_id.data, status->cluster_id.len));
}

int dt_ctl_cluster_status(dt_ctl_t *ctl)
{
    int code = dt_ctl_check_list(ctl, &cluster_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__ClusterStatus *status = get_cluster(ctl, &code);
    if (!status)
        return code;
    if (!dt_ctl_is_people(ctl) || ctl->output.fields) {
        const ProtobufCMessage *items[] = {&status->base};
        return dt_ctl_print_list(ctl, &cluster_list, items, 1, NULL);
    }
    show_head(ctl, status);
    show_journal(ctl, status->journal);
    if (ctl->output.format == DT_CTL_WIDE)
        show_details(ctl, status);
    show_warnings(ctl, status);
    return DT_CTL_EXIT_OK;
}

/* ---- check ---- */

enum check { CHECK_OK = 0, CHECK_WARNING = 1, CHECK_CRITICAL = 2, CHECK_UNKNOWN = 3 };

/* The stages after "reachable", from the ground up; the first that fails is the sentence. */
static enum check judge(dt_ctl_t *ctl, const Dtorch__V1__ClusterStatus *status,
                        const char **ret_text)
{
    dt_arena_t *pool = &ctl->pool;
    const Dtorch__V1__JournalStatus *journal = status->journal;
    if (status->epoch == 0) {
        *ret_text = "the controller does not lead yet";
        return CHECK_CRITICAL;
    }
    if (journal && journal->is_failing) {
        *ret_text = dt_ctl_print(pool, "the journal fails: %s", journal->text);
        return CHECK_CRITICAL;
    }
    if (status->nodes_total > 0 && status->nodes_ready == 0) {
        *ret_text = dt_ctl_print(pool, "none of %u nodes is ready", status->nodes_total);
        return CHECK_CRITICAL;
    }
    if (status->n_alarms > 0) {
        *ret_text = dt_ctl_print(pool, "%s%s", status->alarms[0]->text,
                                 status->n_alarms > 1
                                     ? dt_ctl_print(pool, " (and %zu more)", status->n_alarms - 1)
                                     : "");
        return CHECK_WARNING;
    }
    if (status->nodes_dead + status->nodes_suspect + status->nodes_unknown > 0) {
        *ret_text = dt_ctl_print(pool, "%u of %u nodes ready%s", status->nodes_ready,
                                 status->nodes_total, nodes_text(pool, status));
        return CHECK_WARNING;
    }
    *ret_text = dt_ctl_print(pool, "%u of %u nodes ready, %u devices", status->nodes_ready,
                             status->nodes_total, status->devices_total);
    return CHECK_OK;
}

int dt_ctl_cluster_check(dt_ctl_t *ctl)
{
    static const char *const words[] = {"OK", "WARNING", "CRITICAL", "UNKNOWN"};
    int code;
    const char *text;
    FILE *out = ctl->output.screen.file;
    const Dtorch__V1__ClusterStatus *status = get_cluster(ctl, &code);
    if (!status) {
        enum check result = code == DT_CTL_EXIT_UNAVAILABLE || code == DT_CTL_EXIT_AGAIN ||
                                    code == DT_CTL_EXIT_TIMEOUT
                                ? CHECK_CRITICAL
                                : CHECK_UNKNOWN;
        (void)fprintf(out, "DTORCH %s: the controller cannot be asked (exit code %d)\n",
                      words[result], code);
        return (int)result;
    }
    enum check result = judge(ctl, status, &text);
    (void)fprintf(out,
                  "DTORCH %s: %s | nodes=%u;;;0 nodes_ready=%u;;;0 nodes_suspect=%u;;;0 "
                  "nodes_dead=%u;;;0 devices=%u;;;0 devices_failed=%u;;;0 devices_missing=%u;;;0 "
                  "alarms=%zu;;;0 journal_pending=%" PRIu64 ";;;0\n",
                  words[result], dt_ctl_safe(&ctl->pool, text), status->nodes_total,
                  status->nodes_ready, status->nodes_suspect, status->nodes_dead,
                  status->devices_total, status->devices_failed, status->devices_missing,
                  status->n_alarms, status->journal ? status->journal->pending : 0);
    for (size_t i = 1; i < status->n_alarms; i++)
        (void)fprintf(out, "%s\n", dt_ctl_safe(&ctl->pool, status->alarms[i]->text));
    return (int)result;
}

/* ---- config show ---- */

static const dt_ctl_column_t config_columns[] = {
    {"section", "SECTION", "section", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"key", "KEY", "key", NULL, NULL, 0, 0},
    {"value", "VALUE", "value", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"origin", "ORIGIN", "origin", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"reloadable", "RELOAD", "reloadable", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
};

static const dt_ctl_list_t config_list = {
    .kind = "ConfigList",
    .one = "option",
    .many = "options",
    .name_path = "key",
    .type = &dtorch__v1__config_item__descriptor,
    .columns = config_columns,
    .column_count = sizeof config_columns / sizeof config_columns[0],
};

int dt_ctl_cluster_config(dt_ctl_t *ctl)
{
    Dtorch__V1__GetConfigRequest request = DTORCH__V1__GET_CONFIG_REQUEST__INIT;
    int code = dt_ctl_check_list(ctl, &config_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__ConfigList *list =
        dt_ctl_call(ctl, "GetConfig", &request, &dtorch__v1__config_list__descriptor, &code);
    if (!list)
        return code;
    return dt_ctl_print_list(ctl, &config_list,
                             (const ProtobufCMessage *const *)(const void *)list->items,
                             list->n_items, &list->base);
}
