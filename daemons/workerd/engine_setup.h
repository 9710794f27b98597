/* What an agent tells an engine before it starts: which device, which backend runs it. It lies in a
 * memory of its own at DT_ENGINE_FD_SETUP, read-only for the engine. An engine that is started
 * before the devices are known loads the backend meanwhile; DT_ENGINE_MESSAGE_SETUP brings a second
 * one. */
#ifndef DT_WORKERD_ENGINE_SETUP_H
#define DT_WORKERD_ENGINE_SETUP_H
#include <stdbool.h>
#include <stdint.h>

#include "device/backend.h"

#define DT_ENGINE_SETUP_MAGIC  UINT32_C(0x53455444) /* "DTES" */
#define DT_ENGINE_DEVICE_LATER (-2)

typedef struct dt_engine_setup {
    uint32_t magic;
    int32_t device;   /* index in the node, -1: none, the engine serves no session;
                         DT_ENGINE_DEVICE_LATER: another setup comes */
    int32_t threads;  /* that one operator may use */
    bool is_serial;   /* Overlap=no */
    char backend[32]; /* its name */
    char dirs[2048];  /* where shared objects lie, one behind the other, each with its NUL */
    uint32_t dir_count;
    char spec[512]; /* of Devices= */
    char seed[64];
    dt_device_info_t info;
} dt_engine_setup_t;

#endif
