/* The thread that asks the devices, so that the state thread never waits for a driver.
 * Shared between the two: one snapshot pointer and a few words, under one lock that is held for
 * moments only. Order of the end: stop is set, children are cancelled, the thread is joined. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"
#include "device/inventory_internal.h"
#include "device/sysfile.h"

#define NS_S  INT64_C(1000000000)
#define NS_MS INT64_C(1000000)

struct dt_device_monitor {
    dt_inventory_t *inventory; /* the thread's, but for cancel */
    dt_device_monitor_options_t options;
    int64_t handed_ns;  /* the thread's; when a snapshot was handed over last */
    bool is_drift_owed; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_stopping;                 /* lock */
    bool is_kicked;                   /* lock */
    int64_t busy_since_ns;            /* lock; 0: not refreshing */
    dt_inventory_snapshot_t *waiting; /* lock; owned until taken */
};

static int64_t mono_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_S + now.tv_nsec;
}

/* Hand over, or drop what is not worth it now. Drift that is dropped is owed: it goes out when its
 * time has come, even if the figures have stopped moving. */
static void publish(dt_device_monitor_t *monitor, dt_inventory_snapshot_t *snapshot,
                    dt_inventory_change_t change)
{
    dt_inventory_snapshot_t *old;
    int64_t now = mono_ns();
    bool is_due = now - monitor->handed_ns >= monitor->options.drift_ms * NS_MS;
    monitor->is_drift_owed |= change != DT_INVENTORY_SAME;
    if (change != DT_INVENTORY_CHANGED && !(monitor->is_drift_owed && is_due)) {
        dt_inventory_snapshot_free(snapshot);
        return;
    }
    monitor->is_drift_owed = false;
    monitor->handed_ns = now;
    (void)pthread_mutex_lock(&monitor->lock);
    old = monitor->waiting;
    monitor->waiting = snapshot;
    (void)pthread_mutex_unlock(&monitor->lock);
    dt_inventory_snapshot_free(old);
    monitor->options.notify(monitor->options.arg);
}

/* Wait for the interval's end, a kick or the stop. False: stop. Called and left with the lock. */
static bool wait_turn(dt_device_monitor_t *monitor, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / NS_S, .tv_nsec = until_ns % NS_S};
    int rc = 0;
    while (!monitor->is_stopping && !monitor->is_kicked && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&monitor->wake, &monitor->lock, &until);
    monitor->is_kicked = false;
    return !monitor->is_stopping;
}

static void *run(void *arg)
{
    dt_device_monitor_t *monitor = arg;
    int64_t next_ns = mono_ns();
    (void)pthread_mutex_lock(&monitor->lock);
    while (wait_turn(monitor, next_ns)) {
        dt_inventory_snapshot_t *snapshot = NULL;
        dt_inventory_change_t change = DT_INVENTORY_SAME;
        monitor->busy_since_ns = mono_ns();
        next_ns = monitor->busy_since_ns + monitor->options.refresh_ms * NS_MS;
        (void)pthread_mutex_unlock(&monitor->lock);
        if (dt_inventory_refresh(monitor->inventory, &snapshot, &change, NULL) == DT_OK)
            publish(monitor, snapshot, change);
        (void)pthread_mutex_lock(&monitor->lock);
        monitor->busy_since_ns = 0;
    }
    (void)pthread_mutex_unlock(&monitor->lock);
    return NULL;
}

static int init_wake(pthread_cond_t *wake)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc != 0)
        return rc;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_cond_init(wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    return rc;
}

dt_status_t dt_device_monitor_start(dt_inventory_t *inventory,
                                    const dt_device_monitor_options_t *options,
                                    dt_device_monitor_t **ret_monitor, dt_error_t *err)
{
    dt_device_monitor_t *monitor;
    int rc;
    dt_check(options->notify && options->refresh_ms >= 10);
    monitor = calloc(1, sizeof *monitor);
    if (!monitor)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the device monitor");
    monitor->inventory = inventory;
    monitor->options = *options;
    rc = init_wake(&monitor->wake);
    if (rc == 0)
        rc = pthread_mutex_init(&monitor->lock, NULL);
    if (rc == 0)
        rc = pthread_create(&monitor->thread, NULL, run, monitor);
    if (rc != 0) {
        free(monitor);
        return dt_fail(err, DT_ERR_AGAIN, "errno", rc, "the device monitor's thread: %s",
                       dt_sysfile_errno_text(rc));
    }
    *ret_monitor = monitor;
    return DT_OK;
}

dt_inventory_snapshot_t *dt_device_monitor_take(dt_device_monitor_t *monitor)
{
    dt_inventory_snapshot_t *snapshot;
    (void)pthread_mutex_lock(&monitor->lock);
    snapshot = monitor->waiting;
    monitor->waiting = NULL;
    (void)pthread_mutex_unlock(&monitor->lock);
    return snapshot;
}

void dt_device_monitor_kick(dt_device_monitor_t *monitor)
{
    (void)pthread_mutex_lock(&monitor->lock);
    monitor->is_kicked = true;
    (void)pthread_cond_signal(&monitor->wake);
    (void)pthread_mutex_unlock(&monitor->lock);
}

int64_t dt_device_monitor_busy_since_ns(dt_device_monitor_t *monitor)
{
    int64_t since;
    (void)pthread_mutex_lock(&monitor->lock);
    since = monitor->busy_since_ns;
    (void)pthread_mutex_unlock(&monitor->lock);
    return since;
}

void dt_device_monitor_stop(dt_device_monitor_t *monitor)
{
    if (!monitor)
        return;
    (void)pthread_mutex_lock(&monitor->lock);
    monitor->is_stopping = true;
    (void)pthread_cond_signal(&monitor->wake);
    (void)pthread_mutex_unlock(&monitor->lock);
    dt_inventory_cancel(monitor->inventory);
    (void)pthread_join(monitor->thread, NULL);
    dt_inventory_free(monitor->inventory);
    dt_inventory_snapshot_free(monitor->waiting);
    (void)pthread_cond_destroy(&monitor->wake);
    (void)pthread_mutex_destroy(&monitor->lock);
    free(monitor);
}
