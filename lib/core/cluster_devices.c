/* Inventories: which devices a node has, which it had and misses, which are not healthy. A device
 * is known by its uuid, or by backend and index if it has none. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

/* What changed in one inventory, for one event of each kind. */
struct changes {
    char missing[256], back[256], added[256], failed[256], healthy[256];
};

void dt_cluster_devices_free(dt_node_t *node)
{
    for (uint32_t i = 0; i < node->device_count; i++)
        free(node->devices[i].packed);
    free(DT_TAKE(node->devices));
    node->device_count = 0;
}

void dt_cluster_devices_count(dt_node_t *node)
{
    node->devices_missing = node->devices_failed = node->devices_degraded = 0;
    for (uint32_t i = 0; i < node->device_count; i++) {
        const dt_known_device_t *known = &node->devices[i];
        if (known->is_missing)
            node->devices_missing++;
        else if (known->health == DTORCH__V1__DEVICE__HEALTH__FAILED)
            node->devices_failed++;
        else if (known->health == DTORCH__V1__DEVICE__HEALTH__DEGRADED)
            node->devices_degraded++;
    }
}

/* Keep what does not change by itself; replaces what was kept. */
static dt_status_t keep_device(dt_known_device_t *known, const Dtorch__V1__Device *device,
                               bool *ret_is_changed)
{
    Dtorch__V1__Device kept = *device; /* shallow, while it is packed */
    uint8_t *packed;
    size_t size;
    kept.memory_used_bytes = 0;
    kept.utilization_percent = 0;
    kept.temperature_c = 0;
    kept.throttle_reasons = 0;
    kept.n_links = 0;
    DT_TRY(dt_wire_pack_new(&kept.base, &packed, &size));
    uint64_t hash = dt_hash_bytes(DT_HASH_SEED, packed, size);
    *ret_is_changed = !known->packed || known->hash != hash;
    free(known->packed);
    known->packed = packed;
    known->packed_size = size;
    known->hash = hash;
    known->index = device->index;
    known->health = device->health;
    (void)dt_str_copy(known->uuid, sizeof known->uuid, device->uuid);
    (void)dt_str_copy(known->backend, sizeof known->backend, device->backend);
    (void)dt_str_copy(known->kind, sizeof known->kind, device->kind);
    return DT_OK;
}

static dt_known_device_t *find_device(dt_node_t *node, const Dtorch__V1__Device *device)
{
    for (uint32_t i = 0; i < node->device_count; i++) {
        dt_known_device_t *known = &node->devices[i];
        if (device->uuid[0] ? strcmp(known->uuid, device->uuid) == 0
                            : !known->uuid[0] && known->index == device->index &&
                                  strcmp(known->backend, device->backend) == 0)
            return known;
    }
    return NULL;
}

/* Make room at the bound by dropping the device that is missing for longest. */
static bool drop_longest_missing(dt_node_t *node)
{
    dt_known_device_t *oldest = NULL;
    for (uint32_t i = 0; i < node->device_count; i++) {
        dt_known_device_t *known = &node->devices[i];
        if (known->is_missing &&
            (!oldest || known->missing_since_wall_ms < oldest->missing_since_wall_ms))
            oldest = known;
    }
    if (!oldest)
        return false;
    free(oldest->packed);
    *oldest = node->devices[--node->device_count];
    return true;
}

static dt_known_device_t *add_device(dt_node_t *node)
{
    if (node->device_count == DT_CLUSTER_DEVICES_MAX && !drop_longest_missing(node))
        return NULL;
    dt_known_device_t *devices = realloc(node->devices, (node->device_count + 1) * sizeof *devices);
    if (!devices)
        return NULL;
    node->devices = devices;
    devices[node->device_count] = (dt_known_device_t){0};
    return &devices[node->device_count++];
}

dt_status_t dt_cluster_device_restore(dt_node_t *node, const Dtorch__V1__Device *device,
                                      int64_t missing_since_wall_ms)
{
    bool is_changed;
    dt_known_device_t *known = add_device(node);
    if (!known)
        return DT_ERR_NOMEM;
    known->is_missing = missing_since_wall_ms != 0;
    known->missing_since_wall_ms = missing_since_wall_ms;
    return keep_device(known, device, &is_changed);
}

/* Append "node:index " to a list for an event; what does not fit is cut. */
static void append(char *list, size_t size, const dt_node_t *node, uint32_t index, const char *more)
{
    size_t len = strlen(list);
    (void)snprintf(list + len, size - len, "%s%s:%" PRIu32 "%s%.80s", len ? ", " : "", node->name,
                   index, *more ? " " : "", more);
}

static bool is_bad(Dtorch__V1__Device__Health health)
{
    return health == DTORCH__V1__DEVICE__HEALTH__FAILED ||
           health == DTORCH__V1__DEVICE__HEALTH__DEGRADED;
}

static bool take_device(dt_node_t *node, const Dtorch__V1__Device *device, struct changes *changes)
{
    bool is_changed = false;
    dt_known_device_t *known = find_device(node, device);
    bool is_new = known == NULL;
    if (is_new && !(known = add_device(node)))
        return false;
    Dtorch__V1__Device__Health before = known->health;
    if (keep_device(known, device, &is_changed) != DT_OK)
        return false;
    if (is_new)
        append(changes->added, sizeof changes->added, node, device->index, "");
    if (known->is_missing)
        append(changes->back, sizeof changes->back, node, device->index, "");
    if (is_bad(device->health) && device->health != before)
        append(changes->failed, sizeof changes->failed, node, device->index, device->health_text);
    if (!is_bad(device->health) && is_bad(before))
        append(changes->healthy, sizeof changes->healthy, node, device->index, "");
    is_changed = is_changed || is_new || known->is_missing;
    known->is_missing = false;
    known->missing_since_wall_ms = 0;
    return is_changed;
}

static bool find_missing(dt_cluster_t *cluster, dt_node_t *node,
                         const Dtorch__V1__Inventory *inventory, struct changes *changes)
{
    bool is_changed = false;
    bool seen[DT_CLUSTER_DEVICES_MAX] = {false};
    for (size_t i = 0; i < inventory->n_devices; i++) {
        const dt_known_device_t *known = find_device(node, inventory->devices[i]);
        if (known)
            seen[known - node->devices] = true;
    }
    for (uint32_t i = 0; i < node->device_count; i++) {
        dt_known_device_t *known = &node->devices[i];
        if (seen[i] || known->is_missing)
            continue;
        known->is_missing = true;
        known->missing_since_wall_ms = cluster->wall_ms ? cluster->wall_ms : 1;
        append(changes->missing, sizeof changes->missing, node, known->index, "");
        is_changed = true;
    }
    return is_changed;
}

static void tell(dt_cluster_t *cluster, dt_node_t *node, Dtorch__V1__Severity severity,
                 const char *name, const char *what, const char *list)
{
    dt_event_draft_t draft;
    if (!*list)
        return;
    dt_event_begin(&draft, severity, name, node);
    dt_event_field(&draft, "devices", "%s", list);
    (void)dt_event_end(cluster, &draft, "%s: %s", what, list);
}

static void tell_changes(dt_cluster_t *cluster, dt_node_t *node, const struct changes *changes)
{
    tell(cluster, node, DTORCH__V1__SEVERITY__WARNING, "device-missing", "devices are missing",
         changes->missing);
    tell(cluster, node, DTORCH__V1__SEVERITY__NOTICE, "device-back", "devices are back",
         changes->back);
    tell(cluster, node, DTORCH__V1__SEVERITY__NOTICE, "device-added", "new devices",
         changes->added);
    tell(cluster, node, DTORCH__V1__SEVERITY__ERROR, "device-failed", "devices are not healthy",
         changes->failed);
    tell(cluster, node, DTORCH__V1__SEVERITY__NOTICE, "device-ok", "devices are healthy again",
         changes->healthy);
}

static void count_engines(dt_node_t *node, const Dtorch__V1__Inventory *inventory)
{
    node->engines_busy = 0;
    for (size_t i = 0; i < inventory->n_engines; i++)
        if (inventory->engines[i]->state == DTORCH__V1__ENGINE__STATE__BUSY)
            node->engines_busy++;
}

void dt_cluster_take_busy(dt_node_t *node, const uint8_t *percents, uint32_t count)
{
    node->busy_count = count < DT_CLUSTER_DEVICES_MAX ? count : DT_CLUSTER_DEVICES_MAX;
    for (uint32_t i = 0; i < node->busy_count; i++)
        node->busy[i] = percents[i] < 100 ? percents[i] : 100;
}

void dt_cluster_take_inventory(dt_cluster_t *cluster, dt_node_t *node,
                               const Dtorch__V1__Inventory *inventory)
{
    struct changes changes;
    uint8_t *packed;
    size_t size;
    bool is_changed = false;
    bool is_first = node->device_count == 0; /* all are new then: no news */
    memset(&changes, 0, sizeof changes);
    if (dt_wire_pack_new(&inventory->base, &packed, &size) != DT_OK)
        return; /* the next one is complete too */
    for (size_t i = 0; i < inventory->n_devices; i++)
        is_changed = take_device(node, inventory->devices[i], &changes) || is_changed;
    is_changed = find_missing(cluster, node, inventory, &changes) || is_changed;
    if (!node->inventory)
        dt_cluster_node_moved(cluster, node);
    free(node->inventory);
    node->inventory = packed;
    node->inventory_size = size;
    node->busy_count = 0;
    if (inventory->config_hash[0])
        (void)dt_str_copy(node->config_hash, sizeof node->config_hash, inventory->config_hash);
    dt_cluster_devices_count(node);
    count_engines(node, inventory);
    if (is_first)
        changes.added[0] = '\0';
    tell_changes(cluster, node, &changes);
    if (is_changed)
        dt_cluster_node_dirty(cluster, node);
    if (dt_cluster_node_is_heard(node))
        dt_cluster_node_judge(cluster, node);
    dt_cluster_node_settle_drain(cluster, node);
}
