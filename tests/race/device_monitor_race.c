/* The monitor's thread against a state thread that takes snapshots, kicks and stops, while faults
 * come and go. Each change of the faults brings exactly one snapshot, so that no wait is in vain.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "lib/temptree.h"

#define ROUNDS 200

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static int waiting;

static void post(void *arg)
{
    (void)arg;
    (void)pthread_mutex_lock(&lock);
    waiting++;
    (void)pthread_cond_signal(&posted);
    (void)pthread_mutex_unlock(&lock);
}

/* Wait for a post and take what it stands for; NULL if an earlier take had it. */
static dt_inventory_snapshot_t *wait_and_take(dt_device_monitor_t *monitor)
{
    (void)pthread_mutex_lock(&lock);
    while (waiting == 0)
        (void)pthread_cond_wait(&posted, &lock);
    waiting--;
    (void)pthread_mutex_unlock(&lock);
    return dt_device_monitor_take(monitor);
}

static int play(dt_device_monitor_t *monitor, const dt_temptree_t *tree)
{
    uint64_t generation = 0;
    for (int round = 0; round < ROUNDS;) {
        dt_inventory_snapshot_t *snapshot = wait_and_take(monitor);
        if (!snapshot)
            continue;
        if (snapshot->generation < generation) {
            fprintf(stderr, "an older snapshot came after a newer one\n");
            dt_inventory_snapshot_free(snapshot);
            return 1;
        }
        generation = snapshot->generation;
        dt_inventory_snapshot_free(snapshot);
        dt_temptree_write(tree, "faults", round % 2 ? "1 gone\n" : "0 used 1GiB\n2 failed\n");
        dt_device_monitor_kick(monitor);
        (void)dt_device_monitor_busy_since_ns(monitor);
        round++;
    }
    return 0;
}

int main(void)
{
    const char *const devices[] = {"sim:4"};
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    const dt_device_monitor_options_t monitor_options = {
        .refresh_ms = 10, .drift_ms = 10, .notify = post};
    dt_temptree_t tree;
    dt_inventory_t *inventory = NULL;
    dt_device_monitor_t *monitor = NULL;
    dt_error_t err = {0};
    int rc;
    dt_temptree_init(&tree);
    options.devices = devices;
    options.device_count = 1;
    options.sim_faults = dt_temptree_path(&tree, "faults");
    if (dt_inventory_open(&options, &inventory, &err) != DT_OK ||
        dt_device_monitor_start(inventory, &monitor_options, &monitor, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rc = play(monitor, &tree);
    dt_device_monitor_stop(monitor);
    dt_temptree_fini(&tree);
    return rc;
}
