/* All devices of the node in one stable order, compared with the last time.
 * One refresh: ask each source, clean what it says, order by (source, PCI address, uuid), give
 * numbers, complete the links, compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "device/device.h"
#include "device/host.h"
#include "device/inventory_internal.h"
#include "device/numbers.h"
#include "device/nvml.h"
#include "device/source.h"
#include "device/sysfile.h"
#include "device/topology.h"

/* What the wire takes; beyond is nonsense. */
#define TEMPERATURE_MAX 1000
#define LANES_MAX       1024

/* A device on its way into a snapshot. */
struct candidate {
    int32_t source;
    int32_t position; /* in what the source listed; what links of its devices refer to */
    int32_t index;    /* the number, -1 before it has one */
    dt_device_info_t info;
};

struct dt_inventory {
    dt_sources_t sources;
    dt_numbers_t numbers;
    char *state_dir; /* NULL: not kept */
    char rack[64];
    dt_inventory_snapshot_t *last;    /* a copy of what was given last, NULL before */
    dt_device_problem_t load_problem; /* of the numbers' file, shown until it is saved again */
    dt_probe_answer_t answer;
    int32_t count;
    struct candidate candidates[DT_DEVICE_MAX];
    const struct candidate *by_number[DT_DEVICE_MAX];
    int32_t number_of[DT_INVENTORY_BACKEND_MAX][DT_DEVICE_MAX]; /* by source and position, or -1 */
    int32_t problem_count;
    dt_device_problem_t problems[DT_INVENTORY_BACKEND_MAX + 1];
};

/* ---- life ---- */
dt_status_t dt_inventory_open(const dt_device_options_t *options, dt_inventory_t **ret_inventory,
                              dt_error_t *err)
{
    dt_inventory_t *inv = calloc(1, sizeof *inv);
    dt_status_t status;
    if (!inv)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the inventory");
    status = dt_sources_init(options, &inv->sources, err);
    if (status == DT_OK && options->state_dir && !(inv->state_dir = strdup(options->state_dir)))
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the inventory");
    if (status != DT_OK) {
        dt_inventory_free(inv);
        return status;
    }
    (void)snprintf(inv->rack, sizeof inv->rack, "%s", options->rack ? options->rack : "");
    if (inv->state_dir &&
        dt_numbers_load(inv->state_dir, &inv->numbers, &inv->load_problem.error) != DT_OK)
        (void)snprintf(inv->load_problem.backend, sizeof inv->load_problem.backend, "state");
    *ret_inventory = inv;
    return DT_OK;
}

void dt_inventory_free(dt_inventory_t *inventory)
{
    if (!inventory)
        return;
    dt_sources_fini(&inventory->sources);
    dt_inventory_snapshot_free(inventory->last);
    free(inventory->state_dir);
    free(inventory);
}

void dt_inventory_cancel(dt_inventory_t *inventory)
{
    dt_sources_cancel(&inventory->sources);
}

void dt_inventory_snapshot_free(dt_inventory_snapshot_t *snapshot)
{
    free(snapshot);
}

/* ---- candidates ---- */
static void add_problem(dt_inventory_t *inv, const char *backend, const dt_error_t *error)
{
    dt_device_problem_t *problem;
    if (inv->problem_count > 0 &&
        strcmp(inv->problems[inv->problem_count - 1].backend, backend) == 0)
        return; /* one a backend: the first is the cause */
    problem = &inv->problems[inv->problem_count++];
    memset(problem, 0, sizeof *problem);
    (void)snprintf(problem->backend, sizeof problem->backend, "%s", backend);
    problem->error = *error;
    dt_sysfile_clean(problem->error.text, sizeof problem->error.text, false);
}

static void clean_info(const char *root, dt_device_info_t *info)
{
    dt_sysfile_clean(info->uuid, sizeof info->uuid, true);
    dt_sysfile_clean(info->kind, sizeof info->kind, true);
    dt_sysfile_clean(info->name, sizeof info->name, false);
    dt_sysfile_clean(info->pci_address, sizeof info->pci_address, true);
    dt_sysfile_clean(info->driver, sizeof info->driver, false);
    dt_sysfile_clean(info->nvlink_domain, sizeof info->nvlink_domain, true);
    dt_sysfile_clean(info->health_text, sizeof info->health_text, false);
    if (dt_topology_pci_normal(info->pci_address, info->pci_address, sizeof info->pci_address) !=
        DT_OK)
        info->pci_address[0] = '\0';
    if (info->numa_node < -1 || info->numa_node > INT16_MAX)
        info->numa_node = -1;
    if (info->numa_node < 0 && *info->pci_address)
        info->numa_node = dt_topology_pci_numa(root, info->pci_address);
    if (info->health < DT_DEVICE_UNKNOWN || info->health > DT_DEVICE_FAILED)
        info->health = DT_DEVICE_UNKNOWN;
    if (info->utilization_percent > 100)
        info->utilization_percent = 100;
    if (info->temperature_c > TEMPERATURE_MAX)
        info->temperature_c = 0;
    if (info->link_count < 0 || info->link_count > DT_DEVICE_LINK_MAX)
        info->link_count = 0;
}

static bool is_taken(const dt_inventory_t *inv, const char *uuid)
{
    for (int32_t i = 0; i < inv->count; i++)
        if (strcmp(inv->candidates[i].info.uuid, uuid) == 0)
            return true;
    return false;
}

static int by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    int order = strcmp(x->info.pci_address, y->info.pci_address);
    return order != 0 ? order : strcmp(x->info.uuid, y->info.uuid);
}

/* Enter a device, if there is room. */
static bool add_candidate(dt_inventory_t *inv, int32_t at, int32_t position,
                          const dt_device_info_t *device)
{
    struct candidate *candidate = &inv->candidates[inv->count];
    const dt_source_t *source = &inv->sources.at[at];
    dt_error_t error;
    if (inv->count == DT_DEVICE_MAX) {
        (void)dt_fail(&error, DT_ERR_LIMIT, "dt", position,
                      "%s: more than %d devices in all; the rest is left out", source->name,
                      DT_DEVICE_MAX);
        add_problem(inv, dt_source_label(source), &error);
        return false;
    }
    candidate->source = at;
    candidate->position = position;
    candidate->index = -1;
    candidate->info = *device;
    clean_info(inv->sources.root, &candidate->info);
    if (!*candidate->info.uuid || !*candidate->info.kind || is_taken(inv, candidate->info.uuid)) {
        (void)dt_fail(&error, DT_ERR_DEVICE, "dt", position,
                      "%s: device %d has no kind, or no uuid of its own (\"%s\"); it is left out",
                      source->name, position, candidate->info.uuid);
        add_problem(inv, dt_source_label(source), &error);
        return true;
    }
    inv->count++;
    return true;
}

/* A CPU that is to be several devices: each is one with an engine of its own, and a part of the
 * memory. Which is which follows from the uuid. */
static bool add_copies(dt_inventory_t *inv, int32_t at, int32_t position,
                       const dt_device_info_t *device)
{
    int32_t copies = inv->sources.at[at].copies;
    for (int32_t i = 0; i < copies; i++) {
        dt_device_info_t copy = *device;
        copy.memory_bytes /= (uint64_t)copies;
        copy.memory_used_bytes /= (uint64_t)copies;
        if (i > 0)
            (void)snprintf(copy.uuid, sizeof copy.uuid, "%.50s-%02d", device->uuid, i);
        if (!add_candidate(inv, at, position, &copy))
            return false;
    }
    return true;
}

static void collect_one(dt_inventory_t *inv, int32_t at, const dt_device_info_t *devices,
                        int32_t count)
{
    const dt_source_t *source = &inv->sources.at[at];
    int32_t first = inv->count;
    bool has_room = true;
    for (int32_t i = 0; has_room && i < count; i++)
        has_room = source->copies > 1 && strcmp(devices[i].kind, "cpu") == 0
                       ? add_copies(inv, at, i, &devices[i])
                       : add_candidate(inv, at, i, &devices[i]);
    qsort(&inv->candidates[first], (size_t)(inv->count - first), sizeof *inv->candidates, by_place);
    if (inv->count - first > source->limit)
        inv->count = first + source->limit;
}

static void collect(dt_inventory_t *inv)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    inv->count = inv->problem_count = 0;
    for (int32_t i = 0; i < inv->sources.count; i++) {
        dt_device_info_t *devices;
        dt_error_t error = {0};
        int32_t count;
        if (dt_source_list(&inv->sources, &inv->sources.at[i],
                           (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, &inv->answer, &devices,
                           &count, &error) == DT_OK)
            collect_one(inv, i, devices, count);
        else
            add_problem(inv, dt_source_label(&inv->sources.at[i]), &error);
    }
}

/* ---- numbers ---- */
static void index_candidates(dt_inventory_t *inv)
{
    memset(inv->by_number, 0, sizeof inv->by_number);
    memset(inv->number_of, 0xff, sizeof inv->number_of);
    for (int32_t i = 0; i < inv->count; i++) {
        const struct candidate *candidate = &inv->candidates[i];
        inv->by_number[candidate->index] = candidate;
        inv->number_of[candidate->source][candidate->position] = candidate->index;
    }
}

static void give_numbers(dt_inventory_t *inv)
{
    dt_error_t error;
    dt_numbers_begin(&inv->numbers);
    for (int32_t i = 0; i < inv->count; i++)
        inv->candidates[i].index = dt_numbers_find(&inv->numbers, inv->candidates[i].info.uuid);
    for (int32_t i = 0; i < inv->count; i++) {
        struct candidate *candidate = &inv->candidates[i];
        if (candidate->index < 0)
            candidate->index = dt_numbers_add(&inv->numbers, candidate->info.uuid,
                                              inv->sources.at[candidate->source].name);
        dt_check(candidate->index >= 0); /* as many numbers as candidates */
    }
    dt_numbers_end(&inv->numbers);
    index_candidates(inv);
    if (!inv->state_dir)
        return;
    if (inv->numbers.is_changed && dt_numbers_save(inv->state_dir, &inv->numbers, &error) != DT_OK)
        add_problem(inv, "state", &error);
    else if (*inv->load_problem.backend) {
        add_problem(inv, "state", &inv->load_problem.error);
        memset(&inv->load_problem, 0, sizeof inv->load_problem); /* told, and put right by now */
    }
}

/* ---- snapshot ---- */
/* The link that a backend states between two of its own devices, or NULL. */
static const dt_device_link_t *stated_link(const dt_inventory_t *inv, const struct candidate *from,
                                           const struct candidate *to)
{
    if (from->source != to->source)
        return NULL;
    for (int32_t i = 0; i < from->info.link_count; i++) {
        const dt_device_link_t *link = &from->info.links[i];
        if (link->kind >= DT_LINK_SYSTEM && link->kind <= DT_LINK_NVLINK && link->peer >= 0 &&
            link->peer < DT_DEVICE_MAX && inv->number_of[from->source][link->peer] == to->index)
            return link;
    }
    return NULL;
}

static void fill_links(const dt_inventory_t *inv, const struct candidate *from, dt_device_t *device)
{
    device->info.link_count = 0;
    memset(device->info.links, 0, sizeof device->info.links);
    for (int32_t index = 0; index < DT_DEVICE_MAX; index++) {
        const struct candidate *to = inv->by_number[index];
        const dt_device_link_t *stated;
        if (!to || to == from)
            continue;
        stated = stated_link(inv, from, to);
        device->info.links[device->info.link_count++] = (dt_device_link_t){
            .peer = index,
            .kind = stated ? stated->kind
                           : (int32_t)dt_topology_link(inv->sources.root, &from->info, &to->info),
            .lanes = stated && stated->kind == DT_LINK_NVLINK && stated->lanes <= LANES_MAX
                         ? stated->lanes
                         : 0,
        };
    }
}

static int by_index(const void *a, const void *b)
{
    return ((const dt_device_t *)a)->index - ((const dt_device_t *)b)->index;
}

static void fill_host(const dt_inventory_t *inv, dt_inventory_snapshot_t *snapshot)
{
    dt_topology_nodes_t nodes;
    struct utsname host;
    uint64_t used;
    dt_topology_nodes(inv->sources.root, &nodes);
    snapshot->numa_nodes = (uint32_t)nodes.count;
    snapshot->cpu_count = dt_host_cpu_count();
    dt_host_memory(inv->sources.root, &snapshot->memory_bytes, &used);
    if (uname(&host) == 0)
        (void)snprintf(snapshot->kernel, sizeof snapshot->kernel, "%.64s", host.release);
    (void)snprintf(snapshot->rack, sizeof snapshot->rack, "%s", inv->rack);
}

static dt_inventory_snapshot_t *make_snapshot(const dt_inventory_t *inv)
{
    size_t size = sizeof(dt_inventory_snapshot_t) + (size_t)inv->count * sizeof(dt_device_t);
    dt_inventory_snapshot_t *snapshot = calloc(1, size);
    if (!snapshot)
        return NULL;
    fill_host(inv, snapshot);
    snapshot->device_count = inv->count;
    snapshot->problem_count = inv->problem_count;
    memcpy(snapshot->problems, inv->problems, sizeof inv->problems);
    for (int32_t i = 0; i < inv->count; i++) {
        const struct candidate *from = &inv->candidates[i];
        dt_device_t *device = &snapshot->devices[i];
        device->index = from->index;
        (void)snprintf(device->backend, sizeof device->backend, "%s",
                       inv->sources.at[from->source].name);
        device->info = from->info;
        fill_links(inv, from, device);
        if (!*snapshot->nvlink_domain)
            (void)snprintf(snapshot->nvlink_domain, sizeof snapshot->nvlink_domain, "%s",
                           from->info.nvlink_domain);
    }
    qsort(snapshot->devices, (size_t)inv->count, sizeof *snapshot->devices, by_index);
    return snapshot;
}

/* ---- comparison ---- */
static bool links_differ(const dt_device_info_t *a, const dt_device_info_t *b)
{
    if (a->link_count != b->link_count)
        return true;
    for (int32_t i = 0; i < a->link_count; i++)
        if (a->links[i].peer != b->links[i].peer || a->links[i].kind != b->links[i].kind ||
            a->links[i].lanes != b->links[i].lanes)
            return true;
    return false;
}

static dt_inventory_change_t compare_device(const dt_device_t *x, const dt_device_t *y)
{
    const dt_device_info_t *a = &x->info, *b = &y->info;
    if (x->index != y->index || strcmp(x->backend, y->backend) != 0 ||
        strcmp(a->uuid, b->uuid) != 0 || strcmp(a->kind, b->kind) != 0 ||
        strcmp(a->name, b->name) != 0 || strcmp(a->pci_address, b->pci_address) != 0 ||
        strcmp(a->driver, b->driver) != 0 || strcmp(a->health_text, b->health_text) != 0 ||
        a->health != b->health || a->memory_bytes != b->memory_bytes ||
        a->ecc_uncorrected != b->ecc_uncorrected || a->numa_node != b->numa_node ||
        (a->throttle_reasons ^ b->throttle_reasons) & DT_NVML_THROTTLE_FAULTS || links_differ(a, b))
        return DT_INVENTORY_CHANGED;
    if (a->memory_used_bytes != b->memory_used_bytes ||
        a->utilization_percent != b->utilization_percent || a->temperature_c != b->temperature_c ||
        a->throttle_reasons != b->throttle_reasons)
        return DT_INVENTORY_DRIFTED;
    return DT_INVENTORY_SAME;
}

static bool problems_differ(const dt_inventory_snapshot_t *a, const dt_inventory_snapshot_t *b)
{
    if (a->problem_count != b->problem_count)
        return true;
    for (int32_t i = 0; i < a->problem_count; i++)
        if (strcmp(a->problems[i].backend, b->problems[i].backend) != 0 ||
            a->problems[i].error.code != b->problems[i].error.code ||
            strcmp(a->problems[i].error.text, b->problems[i].error.text) != 0)
            return true;
    return false;
}

dt_inventory_change_t dt_inventory_compare(const dt_inventory_snapshot_t *a,
                                           const dt_inventory_snapshot_t *b)
{
    dt_inventory_change_t most = DT_INVENTORY_SAME;
    if (a->device_count != b->device_count || a->numa_nodes != b->numa_nodes ||
        a->cpu_count != b->cpu_count || a->memory_bytes != b->memory_bytes ||
        strcmp(a->nvlink_domain, b->nvlink_domain) != 0 || problems_differ(a, b))
        return DT_INVENTORY_CHANGED;
    for (int32_t i = 0; i < a->device_count; i++) {
        dt_inventory_change_t change = compare_device(&a->devices[i], &b->devices[i]);
        if (change > most)
            most = change;
    }
    return most;
}

static dt_inventory_snapshot_t *copy_snapshot(const dt_inventory_snapshot_t *from)
{
    size_t size = sizeof *from + (size_t)from->device_count * sizeof *from->devices;
    dt_inventory_snapshot_t *copy = malloc(size);
    if (copy)
        memcpy(copy, from, size);
    return copy;
}

dt_status_t dt_inventory_refresh(dt_inventory_t *inventory, dt_inventory_snapshot_t **ret_snapshot,
                                 dt_inventory_change_t *ret_change, dt_error_t *err)
{
    dt_inventory_snapshot_t *snapshot, *copy;
    dt_inventory_change_t change = DT_INVENTORY_CHANGED;
    collect(inventory);
    give_numbers(inventory);
    snapshot = make_snapshot(inventory);
    copy = snapshot ? copy_snapshot(snapshot) : NULL;
    if (!copy) {
        dt_inventory_snapshot_free(snapshot);
        return dt_fail(err, DT_ERR_NOMEM, "dt", inventory->count, "no memory for a snapshot");
    }
    if (inventory->last)
        change = dt_inventory_compare(inventory->last, snapshot);
    snapshot->generation = inventory->last ? inventory->last->generation : 0;
    snapshot->generation += change == DT_INVENTORY_CHANGED;
    copy->generation = snapshot->generation;
    dt_inventory_snapshot_free(inventory->last);
    inventory->last = copy;
    *ret_snapshot = snapshot;
    *ret_change = change;
    return DT_OK;
}
