/* A snapshot as the message Inventory of proto/dtorch/v1/worker.proto. */
#include "device/device.h"

static Dtorch__V1__Link **fill_links(dt_inventory_message_t *message, const dt_device_info_t *info,
                                     int32_t *used)
{
    Dtorch__V1__Link **first = &message->link_at[*used];
    for (int32_t i = 0; i < info->link_count; i++) {
        Dtorch__V1__Link *link = &message->links[*used];
        dtorch__v1__link__init(link);
        link->peer = (uint32_t)info->links[i].peer;
        link->kind = (Dtorch__V1__Link__Kind)info->links[i].kind;
        link->lanes = info->links[i].lanes;
        message->link_at[(*used)++] = link;
    }
    return first;
}

static void fill_device(dt_inventory_message_t *message, dt_device_t *from, Dtorch__V1__Device *to,
                        int32_t *used)
{
    dt_device_info_t *info = &from->info;
    dtorch__v1__device__init(to);
    to->index = (uint32_t)from->index;
    to->backend = from->backend;
    to->kind = info->kind;
    to->name = info->name;
    to->uuid = info->uuid;
    to->memory_bytes = info->memory_bytes;
    to->memory_used_bytes = info->memory_used_bytes;
    to->pci_address = info->pci_address;
    to->numa_node = info->numa_node;
    to->n_links = (size_t)info->link_count;
    to->links = fill_links(message, info, used);
    to->ecc_uncorrected = info->ecc_uncorrected;
    to->throttle_reasons = info->throttle_reasons;
    to->health = (Dtorch__V1__Device__Health)info->health;
    to->health_text = info->health_text;
    to->driver = info->driver;
    to->utilization_percent = info->utilization_percent;
    to->temperature_c = info->temperature_c;
}

void dt_inventory_message_fill(dt_inventory_message_t *message, dt_inventory_snapshot_t *snapshot)
{
    int32_t used = 0;
    dtorch__v1__inventory__init(&message->inventory);
    dtorch__v1__node_topology__init(&message->topology);
    message->topology.numa_nodes = snapshot->numa_nodes;
    message->topology.rack = snapshot->rack;
    message->topology.nvlink_domain = snapshot->nvlink_domain;
    for (int32_t i = 0; i < snapshot->device_count; i++) {
        fill_device(message, &snapshot->devices[i], &message->devices[i], &used);
        message->device_at[i] = &message->devices[i];
    }
    message->inventory.n_devices = (size_t)snapshot->device_count;
    message->inventory.devices = message->device_at;
    message->inventory.topology = &message->topology;
    message->inventory.memory_bytes = snapshot->memory_bytes;
    message->inventory.cpu_count = snapshot->cpu_count;
    message->inventory.kernel = snapshot->kernel;
}
