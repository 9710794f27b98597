/* What Devices= selects: one source a backend, built in (ref and sim, which run in this process) or
 * in a probe's child (NVML, and every shared object). `torch` has two: NVML for NVIDIA's devices
 * and its shared object for the CPU. */
#ifndef DT_DEVICE_SOURCE_H
#define DT_DEVICE_SOURCE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "device/loader.h"
#include "device/probe.h"

typedef struct dt_source {
    char name[DT_LOADER_NAME_MAX]; /* of the devices' backend */
    const char *builtin;           /* "ref" "sim" "nvml"; NULL: a shared object */
    char path[DT_LOADER_PATH_MAX]; /* of a shared object, else empty */
    char *spec;                    /* owned */
    int32_t limit;                 /* of devices, the first ones in order; NAME:N */
    int32_t copies;                /* that each CPU is listed as; ref:N, torch:cpu:N */
    dt_loader_run_t *run;          /* owned; built in and in this process */
    dt_probe_t *probe;             /* owned; in a child */
} dt_source_t;

/* The sources of one node, with copies of all strings that they need. */
typedef struct dt_sources {
    char *root, *seed, *faults, *library, *program; /* owned; library and program may be NULL */
    int32_t count;
    dt_source_t at[DT_INVENTORY_BACKEND_MAX];
} dt_sources_t;

/* Understand Devices= and open what runs in this process; starts no child.
 * Ownership: gives what is in *ret_sources, end with dt_sources_fini(), also after an error.
 * Errors: INVALID (the text names the item), DENIED (Backends= cannot be read), LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_sources_init(const dt_device_options_t *options,
                                        dt_sources_t *ret_sources, dt_error_t *err);
void dt_sources_fini(dt_sources_t *sources);

/* What problems of this source are called: its built-in name, else its backend's. */
const char *dt_source_label(const dt_source_t *source);

/* Make the present and each later dt_source_list() of a child end at once. Threads: any. */
void dt_sources_cancel(dt_sources_t *sources);

/* List the devices of one source, as they are now, not checked.
 * Ownership: *ret_devices is valid until the next call for any source; `answer` is the room that a
 * child's answer needs.
 * Errors: of the backend, of dt_probe_ask(); NOT_FOUND says that there is no such hardware here. */
DT_MUST_USE dt_status_t dt_source_list(dt_sources_t *sources, dt_source_t *source, int64_t now_ns,
                                       dt_probe_answer_t *answer, dt_device_info_t **ret_devices,
                                       int32_t *ret_count, dt_error_t *err);

#endif
