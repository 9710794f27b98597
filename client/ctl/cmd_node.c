/* dtorchctl node: what nodes there are, and what a person wants of them. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "nodes.h"
#include "text.h"

#define WAIT_STEP_MS 200

/* ---- list, reason, show ---- */

static int print_nodes(dt_ctl_t *ctl, const dt_ctl_list_t *list, const dt_ctl_nodes_t *nodes)
{
    int code = dt_ctl_print_list(
        ctl, list, (const ProtobufCMessage *const *)(const void *)nodes->items, nodes->count, NULL);
    return code != DT_CTL_EXIT_OK ? code : dt_ctl_partial(nodes);
}

/* Fetch what the arguments name, or all. */
static int fetch(dt_ctl_t *ctl, const dt_ctl_list_t *list, dt_ctl_nodes_t *nodes)
{
    dt_ctl_hosts_t hosts;
    int code = dt_ctl_check_list(ctl, list);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_names(ctl, 0, ctl->cli.arg_count, &hosts);
    return code != DT_CTL_EXIT_OK ? code : dt_ctl_fetch_nodes(ctl, &hosts, nodes);
}

int dt_ctl_node_list(dt_ctl_t *ctl)
{
    dt_ctl_nodes_t nodes;
    int code = fetch(ctl, &dt_ctl_node_list_type, &nodes);
    return code != DT_CTL_EXIT_OK ? code : print_nodes(ctl, &dt_ctl_node_list_type, &nodes);
}

static dt_ctl_value_t reason_state(const dt_ctl_view_t *view)
{
    return dt_ctl_text(
        dt_ctl_node_state(view->pool, (const Dtorch__V1__Node *)(const void *)view->items[0]));
}

static const dt_ctl_column_t reason_columns[] = {
    {"name", "NAME", "name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", NULL, reason_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"since", "SINCE", "reason_wall_ms", NULL, NULL, 0, 0},
    {"by", "BY", "reason_by", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"reason", "REASON", "reason", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

int dt_ctl_node_reason(dt_ctl_t *ctl)
{
    dt_ctl_list_t list = dt_ctl_node_list_type;
    dt_ctl_nodes_t nodes;
    list.columns = reason_columns;
    list.column_count = sizeof reason_columns / sizeof reason_columns[0];
    list.folds = NULL;
    int code = fetch(ctl, &list, &nodes);
    if (code != DT_CTL_EXIT_OK)
        return code;
    size_t kept = 0;
    for (size_t i = 0; i < nodes.count; i++)
        if (nodes.items[i]->admin != DTORCH__V1__NODE_INTENT__ADMIN__ENABLED)
            nodes.items[kept++] = nodes.items[i];
    nodes.count = kept;
    return print_nodes(ctl, &list, &nodes);
}

static const char *time_of(dt_ctl_t *ctl, int64_t wall_ms)
{
    return dt_ctl_time(&ctl->pool, wall_ms, ctl->output.style.now_wall_ms,
                       ctl->output.style.is_utc);
}

static void show_state(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const char *state = dt_ctl_node_state(pool, node);
    dt_ctl_line(pool, screen, "node", DT_CTL_COLOUR_NONE, "%s", dt_ctl_safe(pool, node->name));
    dt_ctl_line(pool, screen, "state", dt_ctl_state_colour(state), "%s", state);
    if (node->admin != DTORCH__V1__NODE_INTENT__ADMIN__ENABLED)
        dt_ctl_line(
            pool, screen, "admin", DT_CTL_COLOUR_NONE, "%s since %s by %s: %s",
            dt_ctl_enum_word(pool, &dtorch__v1__node_intent__admin__descriptor, (int)node->admin),
            time_of(ctl, node->reason_wall_ms),
            node->reason_by[0] ? dt_ctl_safe(pool, node->reason_by) : "?",
            node->reason[0] ? dt_ctl_safe(pool, node->reason) : "no reason was given");
    dt_ctl_line(pool, screen, "health", DT_CTL_COLOUR_NONE, "%s%s%s%s%s",
                dt_ctl_enum_word(pool, &dtorch__v1__node_health__descriptor, (int)node->health),
                node->health_since_wall_ms > 0 ? " since " : "",
                node->health_since_wall_ms > 0 ? time_of(ctl, node->health_since_wall_ms) : "",
                node->health_text[0] ? ": " : "", dt_ctl_safe(pool, node->health_text));
    if (node->beat_age_ms >= 0)
        dt_ctl_line(pool, screen, "beat", DT_CTL_COLOUR_NONE,
                    "%s ago  progress %" PRIu64 "  timers late by %" PRId64 " ms",
                    dt_ctl_duration(pool, node->beat_age_ms), node->progress, node->late_ms);
}

static void show_place(dt_ctl_t *ctl, const Dtorch__V1__NodeTopology *topology)
{
    dt_arena_t *pool = &ctl->pool;
    const char *text = "";
    if (topology && topology->numa_nodes > 0)
        text = dt_ctl_print(pool, "  %u NUMA node%s", topology->numa_nodes,
                            topology->numa_nodes == 1 ? "" : "s");
    if (topology && topology->rack[0] != '\0')
        text = dt_ctl_print(pool, "%s  rack %s", text, dt_ctl_safe(pool, topology->rack));
    if (topology && topology->nvlink_domain[0] != '\0')
        text = dt_ctl_print(pool, "%s  NVLink domain %s", text,
                            dt_ctl_safe(pool, topology->nvlink_domain));
    if (*text != '\0')
        dt_ctl_line(pool, &ctl->output.screen, "topology", DT_CTL_COLOUR_NONE, "%s", text + 2);
}

static void show_worker(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    if (node->address[0] != '\0')
        dt_ctl_line(pool, screen, "address", DT_CTL_COLOUR_NONE, "%s%s%s",
                    dt_ctl_safe(pool, node->address),
                    node->connected_wall_ms > 0 ? "  connected " : "",
                    node->connected_wall_ms > 0 ? time_of(ctl, node->connected_wall_ms) : "");
    if (node->build[0] != '\0')
        dt_ctl_line(pool, screen, "worker", DT_CTL_COLOUR_NONE,
                    "%s  pid %u  incarnation %016" PRIx64 "  %u stream%s so far",
                    dt_ctl_safe(pool, node->build), node->pid, node->incarnation,
                    node->session_count, node->session_count == 1 ? "" : "s");
    if (node->kernel[0] != '\0')
        dt_ctl_line(pool, screen, "host", DT_CTL_COLOUR_NONE, "%u CPUs  %s  kernel %s",
                    node->cpu_count, dt_ctl_bytes(pool, node->memory_bytes),
                    dt_ctl_safe(pool, node->kernel));
    show_place(ctl, node->topology);
    if (node->n_labels > 0) {
        dt_ctl_value_t labels = dt_ctl_path(pool, &node->base, "labels");
        dt_ctl_line(pool, screen, "labels", DT_CTL_COLOUR_NONE, "%s",
                    dt_ctl_safe(pool, dt_ctl_raw(pool, &labels)));
    }
    if (node->certificate_not_after_wall_ms > 0)
        dt_ctl_line(pool, screen, "cert", DT_CTL_COLOUR_NONE, "good until %s, for %s",
                    time_of(ctl, node->certificate_not_after_wall_ms),
                    dt_ctl_duration(pool, node->certificate_not_after_wall_ms -
                                              ctl->output.style.now_wall_ms));
    if (node->clock_offset_ms > 1000 || node->clock_offset_ms < -1000)
        dt_ctl_line(pool, screen, "clock", DT_CTL_COLOUR_WARN, "%s %s the controller's",
                    dt_ctl_duration(pool, node->clock_offset_ms < 0 ? -node->clock_offset_ms
                                                                    : node->clock_offset_ms),
                    node->clock_offset_ms < 0 ? "behind" : "ahead of");
    if (node->config_hash[0] != '\0')
        dt_ctl_line(pool, screen, "config",
                    node->config_differs ? DT_CTL_COLOUR_WARN : DT_CTL_COLOUR_NONE, "hash %s%s",
                    dt_ctl_safe(pool, node->config_hash),
                    node->config_differs ? ", differs from that of most nodes" : "");
}

static void show_engines(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < node->n_engines; i++) {
        const Dtorch__V1__Engine *engine = node->engines[i];
        dt_ctl_line(
            pool, &ctl->output.screen, i == 0 ? "engines" : "", DT_CTL_COLOUR_NONE,
            "%u  %s  %s  pid %u  %s  %" PRIu64 " operators  since %s", engine->id,
            dt_ctl_enum_word(pool, &dtorch__v1__engine__state__descriptor, (int)engine->state),
            engine->device < 0
                ? "spare"
                : dt_ctl_print(pool, "device %s:%d", dt_ctl_safe(pool, node->name), engine->device),
            engine->pid, dt_ctl_safe(pool, engine->backend), engine->progress,
            time_of(ctl, engine->started_wall_ms));
    }
}

static int show_node(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    show_state(ctl, node);
    show_worker(ctl, node);
    show_engines(ctl, node);
    if (node->n_devices == 0)
        return DT_CTL_EXIT_OK;
    dt_ctl_nodes_t one = {.items = &node, .count = 1};
    dt_ctl_devices_t devices = dt_ctl_devices_of(ctl, &one);
    (void)fputc('\n', ctl->output.screen.file);
    return dt_ctl_print_devices(ctl, &one, &devices);
}

int dt_ctl_node_show(dt_ctl_t *ctl)
{
    dt_ctl_nodes_t nodes;
    int code = fetch(ctl, &dt_ctl_node_list_type, &nodes);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (!dt_ctl_is_people(ctl) || ctl->output.fields)
        return print_nodes(ctl, &dt_ctl_node_list_type, &nodes);
    for (size_t i = 0; i < nodes.count && code == DT_CTL_EXIT_OK; i++) {
        (void)fputs(i > 0 ? "\n" : "", ctl->output.screen.file);
        code = show_node(ctl, nodes.items[i]);
    }
    return code != DT_CTL_EXIT_OK ? code : dt_ctl_partial(&nodes);
}

/* ---- changes ---- */

static const struct change {
    const char *verb;
    Dtorch__V1__SetNodeRequest__Change change;
    bool needs_reason;
    bool has_target; /* --wait has something to wait for */
    Dtorch__V1__NodeIntent__Admin target;
} changes[] = {
    {"drain", DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN, true, true,
     DTORCH__V1__NODE_INTENT__ADMIN__DRAINED},
    {"undrain", DTORCH__V1__SET_NODE_REQUEST__CHANGE__UNDRAIN, false, true,
     DTORCH__V1__NODE_INTENT__ADMIN__ENABLED},
    {"cordon", DTORCH__V1__SET_NODE_REQUEST__CHANGE__CORDON, true, true,
     DTORCH__V1__NODE_INTENT__ADMIN__CORDONED},
    {"uncordon", DTORCH__V1__SET_NODE_REQUEST__CHANGE__UNCORDON, false, true,
     DTORCH__V1__NODE_INTENT__ADMIN__ENABLED},
    {"label", DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL, false, false,
     DTORCH__V1__NODE_INTENT__ADMIN__ENABLED},
    {"forget", DTORCH__V1__SET_NODE_REQUEST__CHANGE__FORGET, false, false,
     DTORCH__V1__NODE_INTENT__ADMIN__ENABLED},
};

/* "draining", and with labels or for a node that is gone what that means. */
static const char *outcome(dt_ctl_t *ctl, const struct change *change, const Dtorch__V1__Node *node)
{
    if (change->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__FORGET)
        return "forgotten";
    if (change->change != DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL)
        return dt_ctl_node_state(&ctl->pool, node);
    dt_ctl_value_t labels = dt_ctl_path(&ctl->pool, &node->base, "labels");
    return dt_ctl_safe(&ctl->pool, node->n_labels ? dt_ctl_raw(&ctl->pool, &labels) : "no labels");
}

/* Whether the node differs from what it was in what this kind of change can change. */
static bool is_changed(dt_ctl_t *ctl, const struct change *change, const Dtorch__V1__Node *before,
                       const Dtorch__V1__Node *after)
{
    if (change->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__FORGET)
        return true;
    dt_ctl_value_t was = dt_ctl_path(&ctl->pool, &before->base, "labels");
    dt_ctl_value_t is = dt_ctl_path(&ctl->pool, &after->base, "labels");
    return before->admin != after->admin || strcmp(before->reason, after->reason) != 0 ||
           strcmp(dt_ctl_raw(&ctl->pool, &was), dt_ctl_raw(&ctl->pool, &is)) != 0;
}

/* The nodes to tell of: those of the answer, but what is forgotten is in no answer. */
static dt_ctl_nodes_t nodes_to_tell(dt_ctl_t *ctl, const struct change *change,
                                    const dt_ctl_nodes_t *before, const Dtorch__V1__NodeList *after)
{
    if (change->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__FORGET)
        return *before;
    dt_ctl_nodes_t nodes = {.items =
                                dt_ctl_alloc(&ctl->pool, after->n_nodes + 1, sizeof *nodes.items),
                            .count = after->n_nodes};
    for (size_t i = 0; i < after->n_nodes; i++)
        nodes.items[i] = after->nodes[i];
    return nodes;
}

static int tell_dry_run(dt_ctl_t *ctl, const struct change *change, const dt_ctl_nodes_t *before,
                        const dt_ctl_nodes_t *nodes)
{
    size_t count = 0;
    for (size_t i = 0; i < nodes->count; i++) {
        const Dtorch__V1__Node *was = dt_ctl_nodes_find(before, nodes->items[i]->name);
        bool differs = !was || is_changed(ctl, change, was, nodes->items[i]);
        count += differs;
        if (!dt_ctl_is_people(ctl) || dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
            continue;
        (void)fprintf(ctl->output.screen.file, "%s  %s%s\n",
                      dt_ctl_safe(&ctl->pool, nodes->items[i]->name),
                      differs ? "would be " : "is already ", outcome(ctl, change, nodes->items[i]));
    }
    return count > 0 ? DT_CTL_EXIT_WOULD : DT_CTL_EXIT_OK;
}

/* Wait until all nodes are in the state that the change leads to. */
static int wait_target(dt_ctl_t *ctl, const struct change *change, const dt_ctl_hosts_t *hosts)
{
    const dt_clock_t *clock = dt_clock_system();
    int64_t timeout_ms = dt_ctl_number(ctl, DT_CTL_OPT_TIMEOUT, INT32_MAX);
    int64_t deadline_ns = dt_clock_mono_ns(clock) + timeout_ms * DT_CLOCK_MS_NS;
    const struct timespec pause = {0, WAIT_STEP_MS * DT_CLOCK_MS_NS};
    while (change->has_target) {
        dt_ctl_nodes_t nodes;
        size_t done = 0;
        int code = dt_ctl_fetch_nodes(ctl, hosts, &nodes);
        if (code != DT_CTL_EXIT_OK)
            return code;
        for (size_t i = 0; i < nodes.count; i++)
            done += nodes.items[i]->admin == change->target;
        if (done == nodes.count)
            return DT_CTL_EXIT_OK;
        if (dt_clock_mono_ns(clock) >= deadline_ns)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_TIMEOUT, "%zu of %zu nodes are not %s after %s",
                               nodes.count - done, nodes.count,
                               dt_ctl_enum_word(&ctl->pool,
                                                &dtorch__v1__node_intent__admin__descriptor,
                                                (int)change->target),
                               dt_ctl_duration(&ctl->pool, timeout_ms));
        (void)nanosleep(&pause, NULL);
    }
    return DT_CTL_EXIT_OK;
}

static int tell_change(dt_ctl_t *ctl, const struct change *change, const dt_ctl_nodes_t *nodes)
{
    if (!dt_ctl_is_people(ctl))
        return print_nodes(ctl, &dt_ctl_node_list_type, nodes);
    for (size_t i = 0; i < nodes->count && !dt_ctl_has(ctl, DT_CTL_OPT_QUIET); i++)
        (void)fprintf(ctl->output.screen.file, "%s  %s\n",
                      dt_ctl_safe(&ctl->pool, nodes->items[i]->name),
                      outcome(ctl, change, nodes->items[i]));
    return DT_CTL_EXIT_OK;
}

/* Look at the nodes before a change, where that is needed, and ask; gives the exit code. */
static int prepare(dt_ctl_t *ctl, const struct change *change, const dt_ctl_hosts_t *hosts,
                   dt_ctl_nodes_t *before)
{
    const char *reason = dt_ctl_option(ctl, DT_CTL_OPT_REASON);
    bool is_dry = dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN);
    bool forgets = change->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__FORGET;
    if (change->needs_reason && (!reason || !*reason))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE,
                           "node %s needs a reason: -m TEXT; the next shift reads it",
                           change->verb);
    if (!is_dry && !forgets)
        return DT_CTL_EXIT_OK;
    int code = dt_ctl_fetch_nodes(ctl, hosts, before);
    if (code == DT_CTL_EXIT_OK && before->missing_count > 0)
        return DT_CTL_EXIT_NOT_FOUND;
    if (code == DT_CTL_EXIT_OK && !is_dry &&
        !dt_ctl_confirm(ctl, "Forget %zu node%s?", hosts->count, hosts->count == 1 ? "" : "s"))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "nothing was changed");
    return code;
}

/* Send the change for `hosts`; `request` holds what is special to it. */
static int change_nodes(dt_ctl_t *ctl, const struct change *change, dt_ctl_hosts_t *hosts,
                        Dtorch__V1__SetNodeRequest *request)
{
    dt_ctl_nodes_t before = {0};
    char none[] = "";
    const char *reason = dt_ctl_option(ctl, DT_CTL_OPT_REASON);
    int code = prepare(ctl, change, hosts, &before);
    if (code != DT_CTL_EXIT_OK)
        return code;
    request->names = hosts->names;
    request->n_names = hosts->count;
    request->change = change->change;
    request->reason = reason ? dt_ctl_copy(&ctl->pool, reason, strlen(reason)) : none;
    request->dry_run = dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN);
    request->request_id = dt_ctl_request_id(ctl);
    request->by = dt_ctl_by(ctl);
    const Dtorch__V1__NodeList *after =
        dt_ctl_call(ctl, "SetNode", request, &dtorch__v1__node_list__descriptor, &code);
    if (!after)
        return code;
    dt_ctl_nodes_t nodes = nodes_to_tell(ctl, change, &before, after);
    if (request->dry_run)
        return tell_dry_run(ctl, change, &before, &nodes);
    code = tell_change(ctl, change, &nodes);
    if (code == DT_CTL_EXIT_OK && dt_ctl_has(ctl, DT_CTL_OPT_WAIT))
        code = wait_target(ctl, change, hosts);
    return code;
}

static const struct change *change_of(const char *verb)
{
    size_t i = 0;
    while (strcmp(changes[i].verb, verb) != 0)
        i++; /* every verb that comes here is in the table */
    return &changes[i];
}

int dt_ctl_node_change(dt_ctl_t *ctl)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    dt_ctl_hosts_t hosts;
    int code = dt_ctl_names(ctl, 0, ctl->cli.arg_count, &hosts);
    if (code != DT_CTL_EXIT_OK)
        return code;
    return change_nodes(ctl, change_of(ctl->cli.verb->name), &hosts, &request);
}

/* Whether an argument is KEY=VALUE or KEY-; a node's name never ends in - or holds =. */
static bool is_label(const char *arg)
{
    size_t len = strlen(arg);
    return strchr(arg, '=') || (len > 1 && arg[len - 1] == '-');
}

int dt_ctl_node_label(dt_ctl_t *ctl)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    dt_ctl_hosts_t hosts;
    size_t name_count = 0, count = ctl->cli.arg_count;
    request.set_labels = dt_ctl_alloc(&ctl->pool, count, sizeof *request.set_labels);
    request.remove_labels = dt_ctl_alloc(&ctl->pool, count, sizeof *request.remove_labels);
    for (size_t i = 0; i < count; i++) {
        const char *arg = ctl->cli.args[i], *equals = strchr(arg, '=');
        if (!is_label(arg) && name_count == i) {
            name_count++;
        } else if (!is_label(arg)) {
            return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE,
                               "\"%s\" is no label: write KEY=VALUE to set, KEY- to remove", arg);
        } else if (!equals) {
            request.remove_labels[request.n_remove_labels++] =
                dt_ctl_copy(&ctl->pool, arg, strlen(arg) - 1);
        } else {
            Dtorch__V1__Label *label = dt_ctl_alloc(&ctl->pool, 1, sizeof *label);
            dtorch__v1__label__init(label);
            label->key = dt_ctl_copy(&ctl->pool, arg, (size_t)(equals - arg));
            label->value = dt_ctl_copy(&ctl->pool, equals + 1, strlen(equals + 1));
            request.set_labels[request.n_set_labels++] = label;
        }
    }
    if (name_count == 0 || name_count == count)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "node label needs %s", ctl->cli.verb->args);
    int code = dt_ctl_names(ctl, 0, name_count, &hosts);
    if (code != DT_CTL_EXIT_OK)
        return code;
    return change_nodes(ctl, change_of("label"), &hosts, &request);
}
