/* dtorchctl device: the devices of all nodes, and how near they are to each other. */
#include <inttypes.h>
#include <string.h>

#include "nodes.h"
#include "text.h"

int dt_ctl_device_list(dt_ctl_t *ctl)
{
    dt_ctl_hosts_t hosts;
    dt_ctl_nodes_t nodes;
    int code = dt_ctl_check_list(ctl, &dt_ctl_device_list_type);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_names(ctl, 0, ctl->cli.arg_count, &hosts);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_fetch_nodes(ctl, &hosts, &nodes);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_ctl_devices_t devices = dt_ctl_devices_of(ctl, &nodes);
    code = dt_ctl_print_devices(ctl, &nodes, &devices);
    return code != DT_CTL_EXIT_OK ? code : dt_ctl_partial(&nodes);
}

/* ---- show ---- */

/* Choose the devices that the ids name, in their order, and say which are unknown. */
static size_t pick(dt_ctl_t *ctl, const dt_ctl_hosts_t *ids, const dt_ctl_devices_t *all,
                   dt_ctl_devices_t *picked)
{
    size_t unknown = 0;
    picked->items = dt_ctl_alloc(&ctl->pool, ids->count + 1, sizeof *picked->items);
    picked->count = 0;
    for (size_t i = 0; i < ids->count; i++) {
        size_t j = 0;
        while (j < all->count && strcmp(all->items[j]->id, ids->names[i]) != 0)
            j++;
        if (j < all->count) {
            picked->items[picked->count++] = all->items[j];
        } else {
            dt_ctl_say(ctl, "no device \"%s\"; dtorchctl device list shows them", ids->names[i]);
            unknown++;
        }
    }
    return unknown;
}

/* The nodes of the ids. */
static int hosts_of(dt_ctl_t *ctl, const dt_ctl_hosts_t *ids, dt_ctl_hosts_t *ret_hosts)
{
    dt_error_t error;
    *ret_hosts = (dt_ctl_hosts_t){0};
    for (size_t i = 0; i < ids->count; i++) {
        size_t len = strcspn(ids->names[i], ":");
        if (ids->names[i][len] == '\0' || len == 0)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE,
                               "\"%s\" is no device: write NODE:INDEX, as device list shows it",
                               ids->names[i]);
        if (dt_ctl_hosts_add(&ctl->pool, dt_ctl_copy(&ctl->pool, ids->names[i], len), ret_hosts,
                             &error) != DT_OK)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
    }
    return DT_CTL_EXIT_OK;
}

static void show_hardware(dt_ctl_t *ctl, const Dtorch__V1__Device *device)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    dt_ctl_line(pool, screen, "model", DT_CTL_COLOUR_NONE, "%s  %s  backend %s%s%s",
                dt_ctl_safe(pool, device->name), dt_ctl_safe(pool, device->kind),
                dt_ctl_safe(pool, device->backend), device->driver[0] ? "  driver " : "",
                dt_ctl_safe(pool, device->driver));
    if (device->uuid[0] != '\0')
        dt_ctl_line(pool, screen, "uuid", DT_CTL_COLOUR_NONE, "%s",
                    dt_ctl_safe(pool, device->uuid));
    dt_ctl_line(
        pool, screen, "memory", DT_CTL_COLOUR_NONE, "%s",
        dt_ctl_memory(pool, &ctl->output.style, device->memory_used_bytes, device->memory_bytes));
    dt_ctl_line(pool, screen, "load", DT_CTL_COLOUR_NONE, "%u%%%s", device->utilization_percent,
                device->temperature_c > 0
                    ? dt_ctl_print(pool, "  %u degrees Celsius", device->temperature_c)
                    : "");
    if (device->ecc_uncorrected > 0)
        dt_ctl_line(pool, screen, "ecc", DT_CTL_COLOUR_WARN, "%" PRIu64 " uncorrected errors",
                    device->ecc_uncorrected);
    if (device->throttle_reasons > 0)
        dt_ctl_line(pool, screen, "throttled", DT_CTL_COLOUR_WARN, "reasons 0x%" PRIx64,
                    device->throttle_reasons);
    if (device->pci_address[0] != '\0' || device->numa_node >= 0)
        dt_ctl_line(pool, screen, "place", DT_CTL_COLOUR_NONE, "PCI %s%s",
                    device->pci_address[0] ? dt_ctl_safe(pool, device->pci_address) : "unknown",
                    device->numa_node >= 0 ? dt_ctl_print(pool, "  NUMA node %d", device->numa_node)
                                           : "");
}

static void show_links(dt_ctl_t *ctl, const Dtorch__V1__Device *device)
{
    dt_arena_t *pool = &ctl->pool;
    const char *text = "";
    for (size_t i = 0; i < device->n_links; i++) {
        const Dtorch__V1__Link *link = device->links[i];
        if (link->kind != DTORCH__V1__LINK__KIND__NVLINK)
            continue;
        text = dt_ctl_print(pool, "%s%s%u (%u lanes)", text, *text ? ", " : "", link->peer,
                            link->lanes);
    }
    if (*text != '\0')
        dt_ctl_line(pool, &ctl->output.screen, "nvlink", DT_CTL_COLOUR_NONE, "to %s", text);
}

static void show_engines_of(dt_ctl_t *ctl, const Dtorch__V1__Node *node, int64_t index)
{
    dt_arena_t *pool = &ctl->pool;
    size_t shown = 0;
    for (size_t i = 0; i < node->n_engines; i++) {
        const Dtorch__V1__Engine *engine = node->engines[i];
        if (engine->device != index)
            continue;
        dt_ctl_line(
            pool, &ctl->output.screen, shown++ == 0 ? "engines" : "", DT_CTL_COLOUR_NONE,
            "%u  %s  pid %u  %" PRIu64 " operators  since %s", engine->id,
            dt_ctl_enum_word(pool, &dtorch__v1__engine__state__descriptor, (int)engine->state),
            engine->pid, engine->progress,
            dt_ctl_time(pool, engine->started_wall_ms, ctl->output.style.now_wall_ms,
                        ctl->output.style.is_utc));
    }
    size_t spare = 0;
    for (size_t i = 0; i < node->n_engines; i++)
        spare += node->engines[i]->device < 0;
    if (shown == 0)
        dt_ctl_line(pool, &ctl->output.screen, "engines", DT_CTL_COLOUR_NONE,
                    "none on this device; %zu spare on the node", spare);
}

static void show_device(dt_ctl_t *ctl, const Dtorch__V1__NodeDevice *device,
                        const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const char *state = dt_ctl_device_state(pool, node, device);
    const char *why = device->device ? dt_ctl_safe(pool, device->device->health_text) : "";
    dt_ctl_line(pool, screen, "device", DT_CTL_COLOUR_NONE, "%s", dt_ctl_safe(pool, device->id));
    if (device->is_missing)
        why = dt_ctl_print(pool, "since %s",
                           dt_ctl_time(pool, device->missing_since_wall_ms,
                                       ctl->output.style.now_wall_ms, ctl->output.style.is_utc));
    if (strcmp(state, "unknown") == 0 && node)
        why = dt_ctl_print(pool, "the node is %s", dt_ctl_node_state(pool, node));
    dt_ctl_line(pool, screen, "state", dt_ctl_state_colour(state), "%s%s%s", state,
                *why ? ": " : "", why);
    if (!device->device)
        return;
    show_hardware(ctl, device->device);
    show_links(ctl, device->device);
    if (node)
        show_engines_of(ctl, node, device->device->index);
}

int dt_ctl_device_show(dt_ctl_t *ctl)
{
    dt_ctl_hosts_t ids, hosts;
    dt_ctl_nodes_t nodes;
    dt_ctl_devices_t picked;
    int code = dt_ctl_check_list(ctl, &dt_ctl_device_list_type);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_names(ctl, 0, ctl->cli.arg_count, &ids);
    if (code == DT_CTL_EXIT_OK)
        code = hosts_of(ctl, &ids, &hosts);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_fetch_nodes(ctl, &hosts, &nodes);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_ctl_devices_t all = dt_ctl_devices_of(ctl, &nodes);
    size_t unknown = pick(ctl, &ids, &all, &picked);
    if (picked.count == 0)
        return DT_CTL_EXIT_NOT_FOUND;
    if (!dt_ctl_is_people(ctl) || ctl->output.fields)
        code = dt_ctl_print_devices(ctl, &nodes, &picked);
    for (size_t i = 0; dt_ctl_is_people(ctl) && !ctl->output.fields && i < picked.count; i++) {
        (void)fputs(i > 0 ? "\n" : "", ctl->output.screen.file);
        show_device(ctl, picked.items[i], dt_ctl_nodes_find(&nodes, picked.items[i]->node));
    }
    return code == DT_CTL_EXIT_OK && unknown > 0 ? DT_CTL_EXIT_PARTIAL : code;
}

/* ---- topology ---- */

static const char *link_word(dt_arena_t *pool, const Dtorch__V1__Device *from,
                             const Dtorch__V1__Device *to)
{
    if (from->index == to->index)
        return "X";
    for (size_t i = 0; i < from->n_links; i++) {
        if (from->links[i]->peer != to->index)
            continue;
        switch (from->links[i]->kind) {
        case DTORCH__V1__LINK__KIND__NVLINK:
            return dt_ctl_print(pool, "NV%u", from->links[i]->lanes);
        case DTORCH__V1__LINK__KIND__PCI_SWITCH:
            return "PIX";
        case DTORCH__V1__LINK__KIND__NUMA:
            return "NODE";
        default:
            return "SYS";
        }
    }
    return "-";
}

/* One word for each pair of devices, and what else a line shows: equal for nodes that are alike. */
static const char *shape_of(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    const char *shape = "";
    for (size_t i = 0; i < node->n_devices; i++) {
        const Dtorch__V1__Device *from = node->devices[i]->device;
        if (!from || node->devices[i]->is_missing)
            continue;
        const char *line = dt_ctl_print(pool, "%u %d", from->index, from->numa_node);
        for (size_t j = 0; j < node->n_devices; j++)
            if (node->devices[j]->device && !node->devices[j]->is_missing)
                line = dt_ctl_print(pool, "%s %s", line,
                                    link_word(pool, from, node->devices[j]->device));
        shape = dt_ctl_print(pool, "%s%s\n", shape, line);
    }
    return shape;
}

/* Print the matrix in blocks of as many columns as the screen is wide. */
static void print_matrix(dt_ctl_t *ctl, const Dtorch__V1__Node *node)
{
    dt_arena_t *pool = &ctl->pool;
    const Dtorch__V1__Device *devices[DT_CTL_GRID_COLUMN_MAX];
    size_t count = 0, block;
    for (size_t i = 0; i < node->n_devices && count < DT_CTL_GRID_COLUMN_MAX - 2; i++)
        if (node->devices[i]->device && !node->devices[i]->is_missing)
            devices[count++] = node->devices[i]->device;
    block = ctl->output.screen.columns > 20 ? (ctl->output.screen.columns - 12) / 6 : count;
    for (size_t from = 0; from < count; from += block) {
        dt_ctl_grid_t grid;
        size_t to = from + block < count ? from + block : count;
        dt_ctl_grid_init(&grid, pool);
        grid.column_count = to - from + 2;
        grid.columns[0].head = "";
        for (size_t j = from; j < to; j++)
            grid.columns[1 + j - from].head = dt_ctl_print(pool, "%u", devices[j]->index);
        grid.columns[1 + to - from].head = "NUMA";
        for (size_t i = 0; i < count; i++) {
            dt_ctl_cell_t *row = dt_ctl_grid_row(&grid);
            row[0].text = dt_ctl_print(pool, "%u", devices[i]->index);
            for (size_t j = from; j < to; j++)
                row[1 + j - from].text = link_word(pool, devices[i], devices[j]);
            row[1 + to - from].text =
                devices[i]->numa_node < 0 ? "-" : dt_ctl_print(pool, "%d", devices[i]->numa_node);
        }
        dt_ctl_grid_print(&grid, &ctl->output.screen);
    }
}

static void print_legend(dt_ctl_t *ctl)
{
    if (!ctl->output.screen.has_legend)
        return;
    (void)fputs("\nNV# NVLink with # lanes   PIX same PCI switch   NODE same NUMA node\n"
                "SYS across NUMA nodes   X itself   - not known\n",
                ctl->output.screen.file);
}

static void print_topologies(dt_ctl_t *ctl, const dt_ctl_nodes_t *nodes)
{
    dt_arena_t *pool = &ctl->pool;
    bool *done = dt_ctl_alloc(pool, nodes->count + 1, sizeof *done);
    const char **shapes = dt_ctl_alloc(pool, nodes->count + 1, sizeof *shapes);
    size_t printed = 0;
    for (size_t i = 0; i < nodes->count; i++)
        shapes[i] = shape_of(ctl, nodes->items[i]);
    for (size_t i = 0; i < nodes->count; i++) {
        if (done[i] || *shapes[i] == '\0')
            continue;
        const char *names = "", *first = nodes->items[i]->name, *last = first;
        for (size_t j = i + 1; j < nodes->count; j++) {
            if (strcmp(shapes[i], shapes[j]) != 0)
                continue;
            done[j] = true;
            if (!dt_ctl_hosts_follow(last, nodes->items[j]->name)) {
                names = dt_ctl_print(pool, "%s%s, ", names, dt_ctl_hosts_range(pool, first, last));
                first = nodes->items[j]->name;
            }
            last = nodes->items[j]->name;
        }
        names = dt_ctl_print(pool, "%s%s", names, dt_ctl_hosts_range(pool, first, last));
        (void)fprintf(ctl->output.screen.file, "%s%s\n", printed++ > 0 ? "\n" : "",
                      dt_ctl_safe(pool, names));
        print_matrix(ctl, nodes->items[i]);
    }
    if (printed > 0)
        print_legend(ctl);
    else
        (void)fputs("No device is there.\n", ctl->output.screen.file);
}

int dt_ctl_device_topology(dt_ctl_t *ctl)
{
    dt_ctl_hosts_t hosts;
    dt_ctl_nodes_t nodes;
    int code = dt_ctl_names(ctl, 0, ctl->cli.arg_count, &hosts);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_fetch_nodes(ctl, &hosts, &nodes);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (dt_ctl_is_people(ctl)) {
        print_topologies(ctl, &nodes);
    } else {
        dt_ctl_devices_t devices = dt_ctl_devices_of(ctl, &nodes);
        code = dt_ctl_print_devices(ctl, &nodes, &devices);
    }
    return code != DT_CTL_EXIT_OK ? code : dt_ctl_partial(&nodes);
}
