/* The devices of this node: found through backends, kept in one stable order, watched for changes.
 *
 *     dt_inventory_t           opens backends, refreshes them, numbers devices   (blocks: own
 * thread) dt_device_monitor_t      that thread: refreshes at an interval and hands snapshots over
 *     dt_inventory_snapshot_t  one state of all devices, immutable, owned by whoever holds it
 *     dt_inventory_message_t   a snapshot as the protobuf message Inventory
 *
 * Order and numbers. When devices are first seen they are ordered by backend (as in Devices=), then
 * PCI address, then uuid, and numbered from 0. A number belongs to a uuid for as long as the node
 * knows it: it is written to `devices` in the state directory, survives restarts, re-ordering and
 * the device's absence (then there is a hole), and goes to another device only when all
 * DT_DEVICE_MAX numbers are taken and it has been absent the longest.
 *
 * Changes. A refresh tells two kinds apart: DT_INVENTORY_CHANGED (a device came or went, health,
 * ECC, throttling, links, name, memory size, driver) is worth a message at once;
 * DT_INVENTORY_DRIFTED (memory used, utilisation, temperature) is noise that is worth one now and
 * then.
 *
 * Faults. A backend that cannot be loaded, crashes or hangs is a `problem` in the snapshot, and its
 * devices are absent until it works again; the other backends are not disturbed. Only Devices= and
 * SimTopology= that cannot be understood make dt_inventory_open fail.
 *
 * Nothing here logs. Limits: DT_DEVICE_MAX devices, DT_INVENTORY_BACKEND_MAX backends. */
#ifndef DT_DEVICE_DEVICE_H
#define DT_DEVICE_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "device/backend.h"
#include "dtorch/v1/worker.pb-c.h"

#define DT_INVENTORY_BACKEND_MAX 16
#define DT_INVENTORY_LINK_MAX    (DT_DEVICE_MAX * (DT_DEVICE_MAX - 1))

/* Where devices come from. All strings are borrowed for the call; NULL means the default. */
typedef struct dt_device_options {
    size_t struct_size;
    const char *const *devices; /* Devices=: "all", "none", or "NAME[:SPEC]" each */
    size_t device_count; /* 0: as "all": the CPU (torch's if its library is there, else ref's),
                            NVIDIA's devices and those of every loaded backend */
    const char *const *backend_dirs; /* Backends=: directories with dtorch-backend-NAME.so */
    size_t backend_dir_count;
    const char *sim_topology;  /* SimTopology=, appended to the spec of sim; docs: sim.h */
    const char *sim_faults;    /* SimFaults=, a file read at each refresh; see sim.h */
    const char *state_dir;     /* StateDirectory=; NULL: numbers are not kept over restarts */
    const char *seed;          /* the node's id as hex digits; NULL: a fixed one (tests) */
    const char *root;          /* prefix for /proc, /sys, /etc; NULL: none */
    const char *rack;          /* Rack= */
    const char *nvml_path;     /* NULL: libnvidia-ml.so.1 */
    const char *probe_program; /* runs dt_device_probe_main(); NULL: this program */
} dt_device_options_t;
#define DT_DEVICE_OPTIONS_INIT                                                                     \
    {                                                                                              \
        .struct_size = sizeof(dt_device_options_t)                                                 \
    }

/* A backend that does not work, for a log line at the edge when it comes and when it ends. Code
 * NOT_FOUND is no fault: such hardware, or its driver, is not on this machine. */
typedef struct dt_device_problem {
    char backend[32]; /* or "nvml", or "state" for the file of numbers */
    dt_error_t error;
} dt_device_problem_t;

typedef struct dt_device {
    int32_t index; /* 0..DT_DEVICE_MAX-1, rising in a snapshot, with holes for absent devices */
    char backend[32];
    dt_device_info_t info; /* links: to all other devices, peer is a device index */
} dt_device_t;

typedef struct dt_inventory_snapshot {
    int32_t device_count;
    int32_t problem_count;
    uint32_t numa_nodes;   /* 0 unknown */
    uint32_t cpu_count;    /* that this process may use */
    uint64_t memory_bytes; /* of the host, or of the cgroup where that is less */
    uint64_t generation;   /* rises by one with each DT_INVENTORY_CHANGED */
    char kernel[65];
    char rack[64];
    char nvlink_domain[64];
    dt_device_problem_t problems[DT_INVENTORY_BACKEND_MAX + 1];
    dt_device_t devices[]; /* device_count of them, by index */
} dt_inventory_snapshot_t;

typedef enum dt_inventory_change {
    DT_INVENTORY_SAME = 0,
    DT_INVENTORY_DRIFTED = 1, /* only figures that move all the time */
    DT_INVENTORY_CHANGED = 2, /* worth telling at once; also a problem that came or went */
} dt_inventory_change_t;

typedef struct dt_inventory dt_inventory_t;

/* Check the selection and open what it names; enumerates nothing yet.
 * Ownership: borrows options; gives *ret_inventory, free with dt_inventory_free().
 * Errors: INVALID (Devices= or SimTopology=, the text says what and where), NOMEM.
 * Threads: any one at a time. Blocking: reads files. */
DT_MUST_USE dt_status_t dt_inventory_open(const dt_device_options_t *options,
                                          dt_inventory_t **ret_inventory, dt_error_t *err);
void dt_inventory_free(dt_inventory_t *inventory); /* NULL is fine; ends its children */

/* Ask all backends and compare with the last time; the first call is a CHANGED.
 * Ownership: gives *ret_snapshot, free with dt_inventory_snapshot_free().
 * Errors: NOMEM only; what a backend does is in the snapshot's problems.
 * Threads: any one at a time. Blocking: as long as drivers take, at most DT_PROBE_LOAD_MS a
 * backend. */
DT_MUST_USE dt_status_t dt_inventory_refresh(dt_inventory_t *inventory,
                                             dt_inventory_snapshot_t **ret_snapshot,
                                             dt_inventory_change_t *ret_change, dt_error_t *err);
void dt_inventory_snapshot_free(dt_inventory_snapshot_t *snapshot); /* NULL is fine */

/* A snapshot as a message. Large (about 300 KiB): keep one, on the heap. */
typedef struct dt_inventory_message {
    Dtorch__V1__Inventory inventory; /* engines are left to the caller */
    Dtorch__V1__NodeTopology topology;
    Dtorch__V1__Device *device_at[DT_DEVICE_MAX];
    Dtorch__V1__Device devices[DT_DEVICE_MAX];
    Dtorch__V1__Link *link_at[DT_INVENTORY_LINK_MAX];
    Dtorch__V1__Link links[DT_INVENTORY_LINK_MAX];
} dt_inventory_message_t;

/* Fill `message` from `snapshot`; allocates nothing and cannot fail.
 * Ownership: `message` keeps pointers into `snapshot` until it is filled again. Blocking: never. */
void dt_inventory_message_fill(dt_inventory_message_t *message, dt_inventory_snapshot_t *snapshot);

/* ---- the thread ---- */
typedef struct dt_device_monitor dt_device_monitor_t;

/* Called on the monitor's thread when a snapshot waits to be taken: post to the state thread, which
 * calls dt_device_monitor_take(). Must not block. */
typedef void (*dt_device_notify_fn)(void *arg);

typedef struct dt_device_monitor_options {
    int32_t refresh_ms; /* between refreshes, 10 or more */
    int32_t drift_ms;   /* DRIFTED is handed over at most this often */
    dt_device_notify_fn notify;
    void *arg;
} dt_device_monitor_options_t;

/* Start a thread that refreshes at once and then at the interval. A CHANGED snapshot is handed over
 * at once, a DRIFTED one at most each drift_ms; a newer one replaces one that nobody took.
 * Ownership: takes `inventory` on success only; gives *ret_monitor.
 * Errors: NOMEM, AGAIN (no thread). Threads: any. Blocking: never. */
DT_MUST_USE dt_status_t dt_device_monitor_start(dt_inventory_t *inventory,
                                                const dt_device_monitor_options_t *options,
                                                dt_device_monitor_t **ret_monitor, dt_error_t *err);
/* Take the newest snapshot, or NULL if none came since the last take.
 * Ownership: gives it. Threads: any. Blocking: never (a lock held for a pointer's exchange). */
dt_inventory_snapshot_t *dt_device_monitor_take(dt_device_monitor_t *monitor);
/* Refresh now rather than at the next interval. Threads: any. Blocking: never. */
void dt_device_monitor_kick(dt_device_monitor_t *monitor);
/* Monotonic ns since which the present refresh runs, 0 if none does: tells a driver that hangs.
 * Threads: any. Blocking: never. */
int64_t dt_device_monitor_busy_since_ns(dt_device_monitor_t *monitor);
/* End the thread and free all; a refresh that runs is cut short by killing its child.
 * Errors: none. Threads: not the monitor's. Blocking: until the built-in backends return
 * (milliseconds). NULL is fine. */
void dt_device_monitor_stop(dt_device_monitor_t *monitor);

/* ---- for main() ---- */
/* argv[1] of the child that runs a shared object or NVML. main() hands over before anything else:
 *     if (dt_device_probe_is(argc, argv)) return dt_device_probe_main(argc, argv); */
bool dt_device_probe_is(int argc, char *const *argv);
int dt_device_probe_main(int argc, char **argv);

/* For `dtorch-workerd --check-backends`: load each backend (built in, and those of backend_dirs) in
 * a child, enumerate, and print one line each to `out`:
 *     NAME  ok      ABI 1, size 56, 8 devices  PATH
 *     NAME  failed  reason
 * Errors: INVALID if one or more failed; the lines say why. Blocking: yes. */
DT_MUST_USE dt_status_t dt_device_check_backends(const dt_device_options_t *options, FILE *out,
                                                 dt_error_t *err);

#endif
