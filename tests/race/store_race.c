/* The store's two threads and a third that polls: appends, snapshots, failing syncs, close while
 * all goes on. Ends with what was appended all there. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/store.h"

#define RECORDS 3000

static sem_t woken;
static _Atomic bool is_over;
static _Atomic unsigned syncs;

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static int flaky_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    if (atomic_fetch_add(&syncs, 1) % 64 != 63)
        return 0;
    errno = EIO;
    return -1;
}

static dt_status_t count(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    uint64_t *seen = arg;
    (void)err;
    ++*seen;
    return record->payload_bytes == sizeof(uint64_t) ? DT_OK : DT_ERR_INVALID;
}

static void *poll_it(void *arg)
{
    dt_store_t *store = arg;
    dt_store_status_t status;
    while (!is_over) {
        dt_store_poll(store, &status);
        if (status.durable_sequence > status.sequence)
            abort();
    }
    return NULL;
}

static dt_store_t *open_at(const char *path, const dt_store_io_t *io, uint64_t *seen)
{
    dt_store_options_t options = {.struct_size = sizeof options,
                                  .directory = path,
                                  .segment_bytes = 8192,
                                  .pending_max = 64,
                                  .io = io,
                                  .wake = wake};
    dt_store_report_t report;
    dt_store_t *store;
    dt_error_t err;
    if (dt_store_open(&options, count, seen, &report, &store, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return store;
}

static void append_all(dt_store_t *store)
{
    for (uint64_t i = 1, sequence; i <= RECORDS;) {
        dt_store_status_t status;
        dt_status_t done =
            dt_store_append(store, DT_JOURNAL_TYPE_STATE, 1, &i, sizeof i, &sequence, NULL);
        if (done == DT_OK && sequence != i++)
            abort();
        if (done == DT_ERR_LIMIT)
            sem_wait(&woken);
        dt_store_poll(store, &status);
        if (status.wants_snapshot && dt_store_snapshot_begin(store, NULL) == DT_OK) {
            for (uint64_t n = 1; n <= status.sequence; n++)
                (void)!dt_store_snapshot_add(store, DT_JOURNAL_TYPE_STATE, 1, &n, sizeof n, NULL);
            dt_store_snapshot_commit(store);
        }
    }
}

int main(void)
{
    char path[] = "/tmp/dtorch-store-race-XXXXXX", command[128];
    dt_store_io_t io = *dt_store_io_system();
    uint64_t seen = 0;
    dt_store_t *store;
    pthread_t poller;
    if (!mkdtemp(path))
        return 1;
    io.data_sync = flaky_sync;
    sem_init(&woken, 0, 0);
    store = open_at(path, &io, &seen);
    if (pthread_create(&poller, NULL, poll_it, store) != 0)
        return 1;
    append_all(store);
    is_over = true;
    pthread_join(poller, NULL);
    if (dt_store_close(store, 10000) != 0)
        return 1;
    store = open_at(path, &io, &seen);
    (void)dt_store_close(store, 1000);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0 || seen != RECORDS) {
        fprintf(stderr, "%llu records came back, not %d\n", (unsigned long long)seen, RECORDS);
        return 1;
    }
    return 0;
}
