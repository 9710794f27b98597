#include "nodes.h"

#include <string.h>

#include "base/nearest.h"
#include "text.h"

#define PAGE                                                                                       \
    200 /* nodes of one answer; with 64 devices each it stays far below a message's bound */

int dt_ctl_names(dt_ctl_t *ctl, size_t first, size_t count, dt_ctl_hosts_t *ret_hosts)
{
    dt_error_t error;
    *ret_hosts = (dt_ctl_hosts_t){0};
    for (size_t i = first; i < first + count; i++)
        if (dt_ctl_hosts_add(&ctl->pool, ctl->cli.args[i], ret_hosts, &error) != DT_OK)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
    return DT_CTL_EXIT_OK;
}

static void add_page(dt_ctl_t *ctl, const Dtorch__V1__NodeList *page, dt_ctl_nodes_t *nodes,
                     size_t *cap)
{
    if (nodes->count + page->n_nodes > *cap) {
        *cap = (nodes->count + page->n_nodes) * 2 + PAGE;
        const Dtorch__V1__Node **items = dt_ctl_alloc(&ctl->pool, *cap, sizeof *items);
        if (nodes->count > 0)
            memcpy(items, nodes->items, nodes->count * sizeof *items);
        nodes->items = items;
    }
    for (size_t i = 0; i < page->n_nodes; i++)
        nodes->items[nodes->count++] = page->nodes[i];
}

/* Say that a node does not exist, with the nearest name that does. */
static void tell_missing(dt_ctl_t *ctl, const char *name)
{
    int code;
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    const Dtorch__V1__NodeList *all =
        dt_ctl_call(ctl, "ListNodes", &request, &dtorch__v1__node_list__descriptor, &code);
    const char *nearest = NULL;
    if (all && all->n_nodes > 0) {
        const char **names = dt_ctl_alloc(&ctl->pool, all->n_nodes, sizeof *names);
        for (size_t i = 0; i < all->n_nodes; i++)
            names[i] = all->nodes[i]->name;
        nearest = dt_nearest(name, names, all->n_nodes);
    }
    if (nearest)
        dt_ctl_say(ctl, "no node \"%s\"; did you mean \"%s\"?", name, nearest);
    else
        dt_ctl_say(ctl, "no node \"%s\"; dtorchctl node list shows them", name);
}

int dt_ctl_fetch_nodes(dt_ctl_t *ctl, const dt_ctl_hosts_t *hosts, dt_ctl_nodes_t *ret_nodes)
{
    int code;
    size_t cap = 0;
    const Dtorch__V1__NodeList *page = NULL;
    *ret_nodes = (dt_ctl_nodes_t){0};
    do {
        Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
        request.names = hosts->names;
        request.n_names = hosts->count;
        request.with_devices = 1;
        request.limit = PAGE;
        if (page)
            request.after = page->nodes[page->n_nodes - 1]->name;
        page = dt_ctl_call(ctl, "ListNodes", &request, &dtorch__v1__node_list__descriptor, &code);
        if (!page)
            return code;
        add_page(ctl, page, ret_nodes, &cap);
        for (size_t i = 0; i < page->n_not_found; i++)
            tell_missing(ctl, page->not_found[i]);
        ret_nodes->missing_count += page->n_not_found;
    } while (page->more && page->n_nodes > 0);
    return ret_nodes->missing_count > 0 && ret_nodes->count == 0 ? DT_CTL_EXIT_NOT_FOUND
                                                                 : DT_CTL_EXIT_OK;
}

int dt_ctl_partial(const dt_ctl_nodes_t *nodes)
{
    return nodes->missing_count > 0 ? DT_CTL_EXIT_PARTIAL : DT_CTL_EXIT_OK;
}

dt_ctl_devices_t dt_ctl_devices_of(dt_ctl_t *ctl, const dt_ctl_nodes_t *nodes)
{
    dt_ctl_devices_t devices = {0};
    size_t total = 0;
    for (size_t i = 0; i < nodes->count; i++)
        total += nodes->items[i]->n_devices;
    devices.items = dt_ctl_alloc(&ctl->pool, total + 1, sizeof *devices.items);
    for (size_t i = 0; i < nodes->count; i++)
        for (size_t j = 0; j < nodes->items[i]->n_devices; j++)
            devices.items[devices.count++] = nodes->items[i]->devices[j];
    return devices;
}

int dt_ctl_print_devices(dt_ctl_t *ctl, const dt_ctl_nodes_t *nodes,
                         const dt_ctl_devices_t *devices)
{
    ctl->output.context = nodes;
    int code = dt_ctl_print_list(ctl, &dt_ctl_device_list_type,
                                 (const ProtobufCMessage *const *)(const void *)devices->items,
                                 devices->count, NULL);
    ctl->output.context = NULL;
    return code;
}

/* ---- words ---- */

const char *dt_ctl_node_state(dt_arena_t *pool, const Dtorch__V1__Node *node)
{
    const char *admin =
        dt_ctl_enum_word(pool, &dtorch__v1__node_intent__admin__descriptor, (int)node->admin);
    const char *health =
        dt_ctl_enum_word(pool, &dtorch__v1__node_health__descriptor, (int)node->health);
    bool is_ok = node->health == DTORCH__V1__NODE_HEALTH__NODE_OK;
    if (node->admin == DTORCH__V1__NODE_INTENT__ADMIN__ENABLED)
        return is_ok ? "ready" : health;
    return is_ok ? admin : dt_ctl_print(pool, "%s+%s", admin, health);
}

const char *dt_ctl_node_why(dt_arena_t *pool, const dt_ctl_style_t *style,
                            const Dtorch__V1__Node *node)
{
    const char *why = "";
    if (node->admin != DTORCH__V1__NODE_INTENT__ADMIN__ENABLED && node->reason[0] != '\0')
        why = dt_ctl_print(
            pool, "%s (%.*s%s%s)", node->reason, (int)strcspn(node->reason_by, " (,@"),
            node->reason_by, node->reason_by[0] ? ", " : "",
            dt_ctl_time(pool, node->reason_wall_ms, style->now_wall_ms, style->is_utc));
    if (node->health_text[0] != '\0')
        why = dt_ctl_print(pool, "%s%s%s", why, *why ? "; " : "", node->health_text);
    return why;
}

/* Whether what the node said last can be taken for what is. */
static bool is_heard(const Dtorch__V1__Node *node)
{
    return node->health == DTORCH__V1__NODE_HEALTH__NODE_OK ||
           node->health == DTORCH__V1__NODE_HEALTH__NODE_DEGRADED;
}

const Dtorch__V1__Node *dt_ctl_nodes_find(const dt_ctl_nodes_t *nodes, const char *name)
{
    for (size_t i = 0; nodes && i < nodes->count; i++)
        if (strcmp(nodes->items[i]->name, name) == 0)
            return nodes->items[i];
    return NULL;
}

const char *dt_ctl_device_state(dt_arena_t *pool, const Dtorch__V1__Node *node,
                                const Dtorch__V1__NodeDevice *device)
{
    if (device->is_missing)
        return "missing";
    if (!device->device || (node && !is_heard(node)))
        return "unknown";
    return dt_ctl_enum_word(pool, &dtorch__v1__device__health__descriptor,
                            (int)device->device->health);
}

const char *dt_ctl_memory(dt_arena_t *pool, const dt_ctl_style_t *style, uint64_t used_bytes,
                          uint64_t bytes)
{
    const char *total = style->raw_bytes ? dt_ctl_print(pool, "%llu", (unsigned long long)bytes)
                                         : dt_ctl_bytes(pool, bytes);
    if (bytes == 0)
        return "-";
    if (used_bytes == 0)
        return total;
    if (style->raw_bytes)
        return dt_ctl_print(pool, "%llu/%s", (unsigned long long)used_bytes, total);
    uint64_t scale = 1; /* one of the total's units */
    while (bytes / scale >= 1024)
        scale *= 1024;
    return dt_ctl_print(pool, "%.1f/%s", (double)used_bytes / (double)scale, total);
}

/* ---- columns of nodes ---- */

static const Dtorch__V1__Node *node_of(const dt_ctl_view_t *view, size_t index)
{
    return (const Dtorch__V1__Node *)(const void *)view->items[index];
}

static const char *node_name(const dt_ctl_view_t *view)
{
    const char *range = dt_ctl_hosts_range(view->pool, node_of(view, 0)->name,
                                           node_of(view, view->count - 1)->name);
    bool is_late = node_of(view, 0)->health == DTORCH__V1__NODE_HEALTH__NODE_SUSPECT;
    return dt_ctl_print(view->pool, "%s%s", range, is_late ? "*" : "");
}

static dt_ctl_value_t node_state(const dt_ctl_view_t *view)
{
    return dt_ctl_text(dt_ctl_node_state(view->pool, node_of(view, 0)));
}

static dt_ctl_value_t node_why(const dt_ctl_view_t *view)
{
    return dt_ctl_text(dt_ctl_node_why(view->pool, view->style, node_of(view, 0)));
}

/* Sums over the devices of all nodes of a line. */
struct sums {
    uint64_t devices, heard, used_bytes, bytes, percent; /* all but devices: of heard ones */
};

static struct sums sum_of(const dt_ctl_view_t *view)
{
    struct sums sums = {0};
    for (size_t i = 0; i < view->count; i++)
        for (size_t j = 0; j < node_of(view, i)->n_devices; j++) {
            const Dtorch__V1__NodeDevice *device = node_of(view, i)->devices[j];
            if (device->is_missing || !device->device)
                continue;
            sums.devices++;
            if (!is_heard(node_of(view, i)))
                continue;
            sums.heard++;
            sums.used_bytes += device->device->memory_used_bytes;
            sums.bytes += device->device->memory_bytes;
            sums.percent += device->device->utilization_percent;
        }
    return sums;
}

static dt_ctl_value_t node_devices(const dt_ctl_view_t *view)
{
    return dt_ctl_uint(sum_of(view).devices, DT_CTL_PLAIN);
}

static dt_ctl_value_t node_memory_value(const dt_ctl_view_t *view)
{
    struct sums sums = sum_of(view);
    return sums.heard > 0 ? dt_ctl_uint(sums.used_bytes, DT_CTL_BYTES) : dt_ctl_absent();
}

static const char *node_memory(const dt_ctl_view_t *view)
{
    struct sums sums = sum_of(view);
    return dt_ctl_memory(view->pool, view->style, sums.used_bytes, sums.bytes);
}

static dt_ctl_value_t node_load(const dt_ctl_view_t *view)
{
    struct sums sums = sum_of(view);
    return sums.heard > 0 ? dt_ctl_uint(sums.percent / sums.heard, DT_CTL_PERCENT)
                          : dt_ctl_absent();
}

static dt_ctl_value_t node_beat(const dt_ctl_view_t *view)
{
    int64_t oldest_ms = -1;
    for (size_t i = 0; i < view->count; i++)
        if (node_of(view, i)->beat_age_ms > oldest_ms)
            oldest_ms = node_of(view, i)->beat_age_ms;
    return oldest_ms < 0 ? dt_ctl_absent() : dt_ctl_int(oldest_ms, DT_CTL_MS);
}

static dt_ctl_value_t node_engines(const dt_ctl_view_t *view)
{
    return dt_ctl_uint(node_of(view, 0)->n_engines, DT_CTL_PLAIN);
}

static bool node_folds(dt_arena_t *pool, const ProtobufCMessage *last, const ProtobufCMessage *next)
{
    const Dtorch__V1__Node *a = (const Dtorch__V1__Node *)(const void *)last;
    const Dtorch__V1__Node *b = (const Dtorch__V1__Node *)(const void *)next;
    static const dt_ctl_style_t style = {0};
    return dt_ctl_hosts_follow(a->name, b->name) && a->admin == b->admin &&
           a->health == b->health && a->n_devices == b->n_devices &&
           strcmp(dt_ctl_node_why(pool, &style, a), dt_ctl_node_why(pool, &style, b)) == 0;
}

/* {key, head, path, value, show, flags, columns_min} */
static const dt_ctl_column_t node_columns[] = {
    {"name", "NAME", "name", NULL, node_name, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", NULL, node_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"admin", "ADMIN", "admin", NULL, NULL, DT_CTL_COLUMN_STATE | DT_CTL_COLUMN_WIDE, 0},
    {"health", "HEALTH", "health", NULL, NULL, DT_CTL_COLUMN_STATE | DT_CTL_COLUMN_WIDE, 0},
    {"devices", "DEVICES", NULL, node_devices, NULL, 0, 0},
    {"engines", "ENGINES", NULL, node_engines, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"mem_used", "MEM USED", NULL, node_memory_value, node_memory, 0, 0},
    {"load", "LOAD", NULL, node_load, NULL, 0, 0},
    {"beat", "BEAT", NULL, node_beat, NULL, 0, 0},
    {"address", "ADDRESS", "address", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"rack", "RACK", "topology.rack", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"labels", "LABELS", "labels", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"build", "BUILD", "build", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"reason", "REASON", NULL, node_why, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
};

const dt_ctl_list_t dt_ctl_node_list_type = {
    .kind = "NodeList",
    .one = "node",
    .many = "nodes",
    .name_path = "name",
    .type = &dtorch__v1__node__descriptor,
    .columns = node_columns,
    .column_count = sizeof node_columns / sizeof node_columns[0],
    .folds = node_folds,
};

/* ---- columns of devices ---- */

static const Dtorch__V1__NodeDevice *device_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__NodeDevice *)(const void *)view->items[0];
}

/* The context of a list of devices is their nodes. */
static const Dtorch__V1__Node *host_of(const dt_ctl_view_t *view)
{
    return dt_ctl_nodes_find(view->context, device_of(view)->node);
}

static dt_ctl_value_t device_state(const dt_ctl_view_t *view)
{
    return dt_ctl_text(dt_ctl_device_state(view->pool, host_of(view), device_of(view)));
}

static dt_ctl_value_t device_memory_value(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Device *device = device_of(view)->device;
    return device ? dt_ctl_uint(device->memory_used_bytes, DT_CTL_BYTES) : dt_ctl_absent();
}

static const char *device_memory(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Device *device = device_of(view)->device;
    return device ? dt_ctl_memory(view->pool, view->style, device->memory_used_bytes,
                                  device->memory_bytes)
                  : "-";
}

static dt_ctl_value_t device_temperature(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Device *device = device_of(view)->device;
    return device && device->temperature_c > 0 ? dt_ctl_uint(device->temperature_c, DT_CTL_PLAIN)
                                               : dt_ctl_absent();
}

static dt_ctl_value_t device_why(const dt_ctl_view_t *view)
{
    const Dtorch__V1__NodeDevice *device = device_of(view);
    const Dtorch__V1__Node *node = host_of(view);
    if (node && !is_heard(node))
        return dt_ctl_text(
            dt_ctl_print(view->pool, "the node is %s", dt_ctl_node_state(view->pool, node)));
    if (device->is_missing)
        return dt_ctl_text(
            dt_ctl_print(view->pool, "missing since %s",
                         dt_ctl_time(view->pool, device->missing_since_wall_ms,
                                     view->style->now_wall_ms, view->style->is_utc)));
    return dt_ctl_text(device->device ? device->device->health_text : NULL);
}

static const dt_ctl_column_t device_columns[] = {
    {"id", "ID", "id", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"node", "NODE", "node", NULL, NULL, DT_CTL_COLUMN_KEY, 0},
    {"state", "STATE", NULL, device_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"health", "HEALTH", "device.health", NULL, NULL, DT_CTL_COLUMN_KEY, 0},
    {"kind", "KIND", "device.kind", NULL, NULL, 0, 0},
    {"model", "MODEL", "device.name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"mem_used", "MEM USED", NULL, device_memory_value, device_memory, 0, 0},
    {"memory", "MEMORY", "device.memory_bytes", NULL, NULL, DT_CTL_COLUMN_KEY, 0},
    {"load", "LOAD", "device.utilization_percent", NULL, NULL, 0, 0},
    {"temp", "TEMP", NULL, device_temperature, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"backend", "BACKEND", "device.backend", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"pci", "PCI", "device.pci_address", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"numa", "NUMA", "device.numa_node", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"uuid", "UUID", "device.uuid", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"driver", "DRIVER", "device.driver", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"ecc", "ECC", "device.ecc_uncorrected", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"reason", "REASON", NULL, device_why, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
};

const dt_ctl_list_t dt_ctl_device_list_type = {
    .kind = "DeviceList",
    .one = "device",
    .many = "devices",
    .name_path = "id",
    .type = &dtorch__v1__node_device__descriptor,
    .columns = device_columns,
    .column_count = sizeof device_columns / sizeof device_columns[0],
};
