/* A chip maker's backend as tests need it: well made, but it misbehaves where its spec says so.
 * Its table ends before `refresh`, as one built against the first edition of the ABI would. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/backend.h"

#define EXPORT __attribute__((visibility("default")))

static char behaviour[32];

static dt_status_t play_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    (void)snprintf(behaviour, sizeof behaviour, "%s", options->spec);
    *ret_ctx = NULL;
    if (strcmp(behaviour, "absent") != 0)
        return DT_OK;
    (void)snprintf(err->text, sizeof err->text, "no such hardware");
    return DT_ERR_NOT_FOUND;
}

static void misbehave(dt_device_info_t *devices, int32_t *ret_count)
{
    if (strcmp(behaviour, "abort") == 0)
        abort();
    if (strcmp(behaviour, "exit") == 0)
        _exit(3);
    while (strcmp(behaviour, "hang") == 0)
        (void)pause();
    if (strcmp(behaviour, "many") == 0)
        *ret_count = 1000;
    if (strcmp(behaviour, "twins") == 0)
        memcpy(devices[1].uuid, devices[0].uuid, sizeof devices[0].uuid);
    if (strcmp(behaviour, "dirty") == 0) {
        memset(devices[0].name, 'x', sizeof devices[0].name); /* no NUL */
        (void)snprintf(devices[1].name, sizeof devices[1].name, "a\x1b[31m\xff");
        devices[1].health = 99;
        devices[1].utilization_percent = 4000;
        devices[1].temperature_c = 100000;
        devices[1].numa_node = INT32_MAX;
        devices[1].link_count = 2;
        devices[0].link_count = 1;
        devices[0].links[0] =
            (dt_device_link_t){.peer = 1, .kind = DT_LINK_NVLINK, .lanes = 1U << 30};
        devices[1].links[0] = (dt_device_link_t){.peer = 77, .kind = DT_LINK_NVLINK, .lanes = 1};
        devices[1].links[1] = (dt_device_link_t){.peer = -5, .kind = 12, .lanes = 1};
    }
    if (strcmp(behaviour, "mute") == 0)
        *ret_count = -1;
    if (strcmp(behaviour, "noise") == 0)
        (void)puts("a driver that prints to standard output");
}

static dt_status_t play_enumerate(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                                  int32_t *ret_count, dt_error_t *err)
{
    (void)ctx;
    (void)err;
    (void)device_max;
    for (int32_t i = 0; i < 2; i++) {
        dt_device_info_t *device = &ret_devices[i];
        (void)snprintf(device->uuid, sizeof device->uuid, "PLAY-%d", i);
        (void)snprintf(device->kind, sizeof device->kind, "play");
        (void)snprintf(device->name, sizeof device->name, "Play %d", i);
        device->health = DT_DEVICE_OK;
        device->numa_node = -1;
    }
    *ret_count = 2;
    misbehave(ret_devices, ret_count);
    return *ret_count < 0 ? DT_ERR_DEVICE : DT_OK;
}

EXPORT const dt_backend_t *dt_backend_get(int abi);
const dt_backend_t *dt_backend_get(int abi)
{
    static const dt_backend_t table = {
        .struct_size = DT_BACKEND_SIZE_MIN,
        .abi = DT_BACKEND_ABI,
        .name = "play",
        .open = play_open,
        .enumerate = play_enumerate,
    };
    return abi == DT_BACKEND_ABI ? &table : NULL;
}
