#include "store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/strings.h"
#include "store/store_internal.h"

#define IDLE_TURN_MS          500 /* the thread shows progress at least this often */
#define CLOSE_RETRY_MS        50
#define SNAPSHOT_RETRY_NS     (30 * DT_CLOCK_SECOND_NS)
#define SEGMENT_BYTES_DEFAULT (UINT64_C(64) << 20)
#define PENDING_BYTES_DEFAULT (UINT64_C(64) << 20)
#define SNAPSHOT_RECORDS      100000
#define SNAPSHOT_BYTES_MAX    (UINT64_C(1) << 30)

const int64_t dt_store_sync_bounds_ns[DT_STORE_SYNC_BUCKETS] = {
    100 * DT_CLOCK_US_NS, 250 * DT_CLOCK_US_NS,
    500 * DT_CLOCK_US_NS, 1 * DT_CLOCK_MS_NS,
    2 * DT_CLOCK_MS_NS,   5 * DT_CLOCK_MS_NS,
    20 * DT_CLOCK_MS_NS,  100 * DT_CLOCK_MS_NS,
    DT_CLOCK_SECOND_NS,   INT64_MAX,
};

/* Records as they go to the disk, places and checksums still to be filled in. */
struct queue {
    dt_buf_t bytes;
    uint64_t first; /* sequence of the first record */
    uint64_t count;
};

struct dt_store {
    dt_store_directory_t dir;
    void (*wake)(void *arg);
    void *wake_arg;
    uint64_t segment_bytes;
    uint64_t snapshot_records;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queue queue;        /* lock */
    dt_store_status_t status;  /* lock */
    bool is_closing;           /* lock */
    int64_t close_ns;          /* lock; deadline */
    dt_buf_t snapshot;         /* state thread until is_snapshot_given, then the journal thread */
    bool is_snapshot_given;    /* lock */
    uint64_t snapshot_at;      /* sequence that the snapshot stands for; state thread, then lock */
    int64_t snapshot_retry_ns; /* lock; not asked for before */
    uint64_t snapshot_count;   /* records in it; state thread */
    bool is_snapshot_open;     /* state thread */
    struct queue batch;        /* journal thread */
    dt_store_writer_t writer;  /* journal thread */
};

static int64_t now_ns(void)
{
    return dt_clock_mono_ns(dt_clock_system());
}

/* Wait for a change. The lock is held. */
static void wait_changed(dt_store_t *store, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / DT_CLOCK_SECOND_NS,
                             .tv_nsec = until_ns % DT_CLOCK_SECOND_NS};
    (void)pthread_cond_timedwait(&store->changed, &store->lock, &until);
}

static void queue_swap(struct queue *a, struct queue *b)
{
    struct queue kept = *a;
    *a = *b;
    *b = kept;
}

/* Fill in what only the batch knows: each record's place in it, and so the checksum. */
static void batch_seal(struct queue *batch)
{
    size_t at = 0;
    for (uint64_t i = 0; i < batch->count; i++) {
        uint8_t *out = batch->bytes.data + at;
        uint32_t payload_bytes;
        uint64_t epoch;
        uint16_t type;
        dt_journal_get_head(out, &payload_bytes, &type, &epoch);
        dt_journal_put_record(out, &(dt_journal_record_t){
                                       .sequence = batch->first + i,
                                       .epoch = epoch,
                                       .type = type,
                                       .place = (uint16_t)i,
                                       .payload_bytes = payload_bytes,
                                       .payload = out + DT_JOURNAL_HEAD_BYTES,
                                   });
        at += DT_JOURNAL_RECORD_BYTES + payload_bytes;
    }
    dt_check(at == batch->bytes.len);
}

/* Ask for a snapshot when enough has gathered since the last one. The lock is held. */
static void consider_snapshot(dt_store_t *store)
{
    dt_store_status_t *status = &store->status;
    status->wants_snapshot =
        !store->is_snapshot_given && !status->is_failing && now_ns() >= store->snapshot_retry_ns &&
        (status->records >= store->snapshot_records || status->bytes >= store->segment_bytes);
}

static void count_sync(dt_store_status_t *status, int64_t took_ns)
{
    size_t bucket = 0;
    while (took_ns > dt_store_sync_bounds_ns[bucket])
        bucket++;
    status->sync_buckets[bucket]++;
    status->sync_count++;
    status->sync_sum_ns += (uint64_t)took_ns;
}

/* The lock is held. */
static void set_failing(dt_store_t *store, const char *what, int number)
{
    dt_store_status_t *status = &store->status;
    const char *text = strerrordesc_np(number);
    status->failures++;
    status->is_failing = true;
    status->failing_errno = number;
    (void)snprintf(status->text, sizeof status->text, "%s: %s", what,
                   text ? text : "unknown error");
}

/* Write the batch. The lock is held, and let go meanwhile. */
static bool write_batch(dt_store_t *store)
{
    dt_store_status_t *status = &store->status;
    uint64_t bytes = store->batch.bytes.len;
    bool done;
    pthread_mutex_unlock(&store->lock);
    done = dt_store_writer_put(&store->writer, store->batch.bytes.data, (size_t)bytes,
                               store->batch.first);
    pthread_mutex_lock(&store->lock);
    if (!done) {
        set_failing(store, store->writer.failed_what, store->writer.failed_errno);
        return false;
    }
    count_sync(status, store->writer.sync_ns);
    status->is_failing = false;
    status->failing_errno = 0;
    status->text[0] = '\0';
    status->durable_sequence = store->batch.first + store->batch.count - 1;
    status->pending -= store->batch.count;
    status->pending_bytes -= bytes;
    status->records += store->batch.count;
    status->bytes += bytes;
    store->batch.count = 0;
    dt_buf_reset(&store->batch.bytes);
    consider_snapshot(store);
    return true;
}

/* Write the snapshot that was handed over; all before it is durable. The lock is held, and let go
 * meanwhile. */
static void write_snapshot(dt_store_t *store)
{
    dt_store_status_t *status = &store->status;
    bool done;
    pthread_mutex_unlock(&store->lock);
    done = dt_store_writer_snapshot(&store->writer, store->snapshot.data, store->snapshot.len,
                                    store->snapshot_at);
    dt_buf_fini(&store->snapshot);
    pthread_mutex_lock(&store->lock);
    store->is_snapshot_given = false;
    if (done) {
        status->snapshots++;
        status->records = status->durable_sequence - store->snapshot_at;
        status->bytes = 0;
        status->snapshot_errno = 0;
    } else {
        status->failures++;
        status->snapshot_errno = store->writer.failed_errno;
        store->snapshot_retry_ns = now_ns() + SNAPSHOT_RETRY_NS;
    }
    consider_snapshot(store);
}

/* Take one step. The lock is held. Returns how long to wait before the next, 0: not at all, and
 * whether the state thread has news. */
static int64_t step(dt_store_t *store, int64_t *retry_ms, bool *ret_news)
{
    bool was_failing = store->status.is_failing;
    *ret_news = false;
    store->status.turns++;
    if (!store->batch.count && store->queue.count &&
        !(store->is_snapshot_given && store->queue.first > store->snapshot_at)) {
        queue_swap(&store->batch, &store->queue);
        pthread_mutex_unlock(&store->lock);
        batch_seal(&store->batch);
        pthread_mutex_lock(&store->lock);
    }
    if (store->batch.count) {
        if (write_batch(store)) {
            *retry_ms = DT_STORE_RETRY_MIN_MS;
            *ret_news = true;
            return 0;
        }
        int64_t wait_ms = *retry_ms;
        *ret_news = !was_failing;
        *retry_ms = *retry_ms * 2 < DT_STORE_RETRY_MAX_MS ? *retry_ms * 2 : DT_STORE_RETRY_MAX_MS;
        return wait_ms;
    }
    if (store->is_snapshot_given) {
        write_snapshot(store);
        *ret_news = true;
        return 0;
    }
    if (!store->status.wants_snapshot) {
        consider_snapshot(store);
        *ret_news = store->status.wants_snapshot;
    }
    return store->queue.count ? 0 : IDLE_TURN_MS;
}

static void *journal_main(void *arg)
{
    dt_store_t *store = arg;
    int64_t retry_ms = DT_STORE_RETRY_MIN_MS;
    bool has_news;
    pthread_mutex_lock(&store->lock);
    for (;;) {
        int64_t wait_ms = step(store, &retry_ms, &has_news);
        if (has_news && store->wake) {
            pthread_mutex_unlock(&store->lock);
            store->wake(store->wake_arg);
            pthread_mutex_lock(&store->lock);
        }
        if (store->is_closing) {
            bool is_idle = !store->batch.count && !store->queue.count && !store->is_snapshot_given;
            if (is_idle || now_ns() >= store->close_ns)
                break;
            wait_ms = wait_ms < CLOSE_RETRY_MS ? wait_ms : CLOSE_RETRY_MS;
        }
        if (wait_ms > 0 && store->batch.count) {
            /* Failing: appended records must not cut the back-off short, closing may. */
            int64_t until_ns = now_ns() + wait_ms * DT_CLOCK_MS_NS;
            bool was_closing = store->is_closing;
            while (store->is_closing == was_closing && now_ns() < until_ns) {
                int64_t turn_ns = now_ns() + IDLE_TURN_MS * DT_CLOCK_MS_NS;
                wait_changed(store, turn_ns < until_ns ? turn_ns : until_ns);
                store->status.turns++;
            }
        } else if (wait_ms > 0 && !store->queue.count) {
            wait_changed(store, now_ns() + wait_ms * DT_CLOCK_MS_NS);
        }
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

static dt_status_t start_thread(dt_store_t *store, dt_error_t *err)
{
    pthread_condattr_t attr;
    int rc;
    pthread_mutex_init(&store->lock, NULL);
    pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&store->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = pthread_create(&store->thread, NULL, journal_main, store);
    if (rc == 0)
        return DT_OK;
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    return dt_fail(err, DT_ERR_NOMEM, "errno", rc, "cannot start the journal thread");
}

static void apply_options(dt_store_t *store, const dt_store_options_t *options)
{
    uint64_t pending_max = options->pending_max ? options->pending_max : DT_JOURNAL_BATCH_MAX;
    uint64_t bytes_max =
        options->pending_bytes_max ? options->pending_bytes_max : PENDING_BYTES_DEFAULT;
    store->wake = options->wake;
    store->wake_arg = options->wake_arg;
    store->segment_bytes = options->segment_bytes ? options->segment_bytes : SEGMENT_BYTES_DEFAULT;
    store->snapshot_records =
        options->snapshot_records ? options->snapshot_records : SNAPSHOT_RECORDS;
    store->status.pending_max =
        pending_max < DT_JOURNAL_BATCH_MAX ? pending_max : DT_JOURNAL_BATCH_MAX;
    store->status.pending_bytes_max = bytes_max;
    store->writer =
        (dt_store_writer_t){.dir = &store->dir, .segment_max = store->segment_bytes, .fd = -1};
    dt_buf_init(&store->queue.bytes, (size_t)bytes_max);
    dt_buf_init(&store->batch.bytes, (size_t)bytes_max);
    dt_buf_init(&store->snapshot, (size_t)SNAPSHOT_BYTES_MAX);
}

dt_status_t dt_store_open(const dt_store_options_t *options, dt_journal_record_fn *replay,
                          void *arg, dt_store_report_t *ret_report, dt_store_t **ret_store,
                          dt_error_t *err)
{
    dt_store_report_t report = {.record_count = 0};
    dt_store_replayed_t replayed;
    dt_store_listing_t listing = {.segments = NULL};
    dt_status_t status;
    dt_store_t *store = calloc(1, sizeof *store);
    dt_check(options->struct_size == sizeof *options);
    if (!store)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    apply_options(store, options);
    status = dt_store_directory_open(&store->dir, options->io ? options->io : dt_store_io_system(),
                                     options->directory, err);
    if (status != DT_OK)
        goto failed;
    status = dt_store_directory_list(&store->dir, &report.temporary_removed, &listing, err);
    if (status == DT_OK)
        status = dt_store_replay(&store->dir, &listing, replay, arg, &report, &replayed, err);
    dt_store_listing_fini(&listing);
    if (status == DT_OK)
        status = dt_store_writer_open(&store->writer, &replayed, err);
    if (status != DT_OK)
        goto failed;
    store->status.sequence = store->status.durable_sequence = replayed.next_sequence - 1;
    store->status.records = replayed.record_count;
    store->status.bytes = replayed.byte_count;
    status = start_thread(store, err);
    if (status != DT_OK)
        goto failed;
    *ret_report = report;
    *ret_store = store;
    return DT_OK;
failed:
    if (store->writer.fd >= 0)
        dt_store_writer_close(&store->writer);
    if (store->dir.path)
        dt_store_directory_close(&store->dir);
    free(store);
    return status;
}

dt_status_t dt_store_append(dt_store_t *store, uint16_t type, uint64_t epoch, const void *payload,
                            size_t payload_bytes, uint64_t *ret_sequence, dt_error_t *err)
{
    dt_store_status_t *status = &store->status;
    size_t size = DT_JOURNAL_RECORD_BYTES + payload_bytes;
    dt_status_t result = DT_OK;
    void *at;
    if (payload_bytes > DT_JOURNAL_PAYLOAD_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)payload_bytes,
                       "a journal record of %zu bytes is above %u", payload_bytes,
                       DT_JOURNAL_PAYLOAD_MAX);
    pthread_mutex_lock(&store->lock);
    if (status->pending >= status->pending_max ||
        status->pending_bytes + size > status->pending_bytes_max) {
        result = dt_fail(err, DT_ERR_LIMIT, "dt", (int64_t)status->pending,
                         "%" PRIu64 " journal records wait for the disk%s%s", status->pending,
                         status->is_failing ? ": " : "", status->text);
    } else if (dt_buf_extend(&store->queue.bytes, size, &at) != DT_OK) {
        result = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    } else {
        if (!store->queue.count)
            store->queue.first = status->sequence + 1;
        dt_journal_put_head(at, (uint32_t)payload_bytes, type, epoch);
        if (payload_bytes)
            memcpy((uint8_t *)at + DT_JOURNAL_HEAD_BYTES, payload, payload_bytes);
        store->queue.count++;
        status->pending++;
        status->pending_bytes += size;
        *ret_sequence = ++status->sequence;
        pthread_cond_signal(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    return result;
}

dt_status_t dt_store_snapshot_begin(dt_store_t *store, dt_error_t *err)
{
    void *at;
    bool is_given;
    dt_check(!store->is_snapshot_open);
    pthread_mutex_lock(&store->lock);
    is_given = store->is_snapshot_given;
    store->snapshot_at = is_given ? store->snapshot_at : store->status.sequence;
    pthread_mutex_unlock(&store->lock);
    if (is_given)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "a snapshot is being written already");
    dt_buf_reset(&store->snapshot);
    if (dt_buf_extend(&store->snapshot, DT_JOURNAL_HEADER_BYTES, &at) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    dt_journal_put_header(at, DT_JOURNAL_SNAPSHOT, store->snapshot_at);
    store->snapshot_count = 0;
    store->is_snapshot_open = true;
    return DT_OK;
}

static dt_status_t snapshot_put(dt_store_t *store, uint16_t type, uint64_t epoch,
                                const void *payload, size_t payload_bytes)
{
    void *at;
    DT_TRY(dt_buf_extend(&store->snapshot, DT_JOURNAL_RECORD_BYTES + payload_bytes, &at));
    dt_journal_put_record(at, &(dt_journal_record_t){.sequence = ++store->snapshot_count,
                                                     .epoch = epoch,
                                                     .type = type,
                                                     .payload_bytes = (uint32_t)payload_bytes,
                                                     .payload = payload});
    return DT_OK;
}

dt_status_t dt_store_snapshot_add(dt_store_t *store, uint16_t type, uint64_t epoch,
                                  const void *payload, size_t payload_bytes, dt_error_t *err)
{
    dt_check(store->is_snapshot_open && type != DT_JOURNAL_TYPE_END);
    if (payload_bytes > DT_JOURNAL_PAYLOAD_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)payload_bytes,
                       "a journal record of %zu bytes is above %u", payload_bytes,
                       DT_JOURNAL_PAYLOAD_MAX);
    if (snapshot_put(store, type, epoch, payload, payload_bytes) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    return DT_OK;
}

void dt_store_snapshot_commit(dt_store_t *store)
{
    dt_check(store->is_snapshot_open);
    if (snapshot_put(store, DT_JOURNAL_TYPE_END, 0, NULL, 0) != DT_OK) {
        dt_store_snapshot_abort(store);
        return;
    }
    store->is_snapshot_open = false;
    pthread_mutex_lock(&store->lock);
    store->is_snapshot_given = true;
    store->status.wants_snapshot = false;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

void dt_store_snapshot_abort(dt_store_t *store)
{
    if (!store->is_snapshot_open)
        return;
    store->is_snapshot_open = false;
    dt_buf_fini(&store->snapshot);
    pthread_mutex_lock(&store->lock);
    store->snapshot_retry_ns = now_ns() + SNAPSHOT_RETRY_NS;
    store->status.wants_snapshot = false;
    pthread_mutex_unlock(&store->lock);
}

void dt_store_poll(dt_store_t *store, dt_store_status_t *ret_status)
{
    pthread_mutex_lock(&store->lock);
    *ret_status = store->status;
    pthread_mutex_unlock(&store->lock);
}

uint64_t dt_store_close(dt_store_t *store, int64_t grace_ms)
{
    uint64_t lost;
    if (!store)
        return 0;
    dt_store_snapshot_abort(store);
    pthread_mutex_lock(&store->lock);
    store->is_closing = true;
    store->close_ns = now_ns() + grace_ms * DT_CLOCK_MS_NS;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->lock);
    pthread_join(store->thread, NULL);
    lost = store->status.pending;
    dt_store_writer_close(&store->writer);
    dt_store_directory_close(&store->dir);
    dt_buf_fini(&store->queue.bytes);
    dt_buf_fini(&store->batch.bytes);
    dt_buf_fini(&store->snapshot);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    free(store);
    return lost;
}
