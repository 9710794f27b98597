#include "shm/engine_page.h"

#include <string.h>
#include <unistd.h>

#include "shm/memfd.h"

dt_status_t dt_engine_page_create(int *ret_fd, const dt_engine_page_t **ret_page, dt_error_t *err)
{
    int fd = -1;
    int readonly = -1;
    void *map = NULL;
    dt_status_t status = dt_memfd_create("dtorch-engine-page", DT_ENGINE_PAGE_BYTES, &fd, err);
    if (status != DT_OK)
        return status;
    status = dt_memfd_map(fd, DT_ENGINE_PAGE_BYTES, DT_MEMFD_READ_WRITE, &map, err);
    if (status != DT_OK)
        goto out;
    ((dt_engine_page_t *)map)->magic = DT_ENGINE_PAGE_MAGIC;
    ((dt_engine_page_t *)map)->version = DT_ENGINE_PAGE_VERSION;
    dt_memfd_unmap(map, DT_ENGINE_PAGE_BYTES);
    status = dt_memfd_reopen_readonly(fd, &readonly, err);
    if (status != DT_OK)
        goto out;
    status = dt_memfd_map(readonly, DT_ENGINE_PAGE_BYTES, DT_MEMFD_READ, &map, err);
    if (status != DT_OK)
        goto out;
    *ret_page = map;
    *ret_fd = fd;
    fd = -1;
out:
    if (readonly >= 0)
        (void)close(readonly);
    if (fd >= 0)
        (void)close(fd);
    return status;
}

dt_status_t dt_engine_page_open(int fd, dt_engine_page_t **ret_page, dt_error_t *err)
{
    void *map;
    DT_TRY(dt_memfd_map(fd, DT_ENGINE_PAGE_BYTES, DT_MEMFD_READ_WRITE, &map, err));
    dt_engine_page_t *page = map;
    if (page->magic != DT_ENGINE_PAGE_MAGIC || page->version != DT_ENGINE_PAGE_VERSION) {
        dt_status_t status =
            dt_fail(err, DT_ERR_INVALID, "dt", page->version,
                    "not an engine's page of version %d: magic %08x, version %u",
                    DT_ENGINE_PAGE_VERSION, (unsigned)page->magic, (unsigned)page->version);
        dt_memfd_unmap(map, DT_ENGINE_PAGE_BYTES);
        return status;
    }
    *ret_page = page;
    return DT_OK;
}

void dt_engine_page_unmap(const dt_engine_page_t *page)
{
    void *map;
    memcpy(&map, &page, sizeof map); /* unmapping is not writing */
    dt_memfd_unmap(map, DT_ENGINE_PAGE_BYTES);
}

void dt_engine_page_op_begin(dt_engine_page_t *page, const char *name, int64_t now_ns)
{
    uint64_t words[sizeof page->op_name / sizeof page->op_name[0]] = {0};
    memcpy(words, name, strnlen(name, DT_ENGINE_PAGE_NAME_MAX));
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        atomic_store_explicit(&page->op_name[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&page->op_begin_ns, now_ns, memory_order_release);
}

void dt_engine_page_op_end(dt_engine_page_t *page, int64_t now_ns)
{
    int64_t begin_ns = atomic_load_explicit(&page->op_begin_ns, memory_order_relaxed);
    uint64_t spent_ns = now_ns > begin_ns ? (uint64_t)(now_ns - begin_ns) : 0;
    atomic_store_explicit(&page->device_ns,
                          atomic_load_explicit(&page->device_ns, memory_order_relaxed) + spent_ns,
                          memory_order_relaxed);
    atomic_store_explicit(&page->op_begin_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&page->progress,
                          atomic_load_explicit(&page->progress, memory_order_relaxed) + 1,
                          memory_order_release);
}

void dt_engine_page_answered(dt_engine_page_t *page, dt_engine_answerer_t answerer)
{
    (void)atomic_fetch_add_explicit(&page->answers[answerer], 1, memory_order_relaxed);
}

void dt_engine_page_crashed(dt_engine_page_t *page, int signo, uint64_t addr, int64_t now_ns)
{
    atomic_store_explicit(&page->crash_addr, addr, memory_order_relaxed);
    atomic_store_explicit(&page->crash_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&page->crash_signo, (uint32_t)signo, memory_order_relaxed);
    atomic_store_explicit(&page->state, DT_ENGINE_STATE_CRASHED, memory_order_release);
}

static int64_t past_ns(int64_t value_ns, int64_t now_ns)
{
    return value_ns < 0 || value_ns > now_ns ? 0 : value_ns;
}

void dt_engine_page_read(const dt_engine_page_t *page, int64_t now_ns,
                         dt_engine_snapshot_t *ret_snapshot)
{
    uint64_t words[sizeof page->op_name / sizeof page->op_name[0]];
    uint32_t state = atomic_load_explicit(&page->state, memory_order_acquire);
    uint32_t signo = atomic_load_explicit(&page->crash_signo, memory_order_relaxed);
    *ret_snapshot = (dt_engine_snapshot_t){
        .state =
            state <= DT_ENGINE_STATE_CRASHED ? (dt_engine_state_t)state : DT_ENGINE_STATE_CRASHED,
        .crash_signo = signo <= 64 ? (int32_t)signo : 0,
        .crash_addr = atomic_load_explicit(&page->crash_addr, memory_order_relaxed),
        .crash_ns = past_ns(atomic_load_explicit(&page->crash_ns, memory_order_relaxed), now_ns),
        .progress = atomic_load_explicit(&page->progress, memory_order_acquire),
        .op_begin_ns =
            past_ns(atomic_load_explicit(&page->op_begin_ns, memory_order_acquire), now_ns),
        .device_ns = atomic_load_explicit(&page->device_ns, memory_order_relaxed),
    };
    for (size_t i = 0; i < DT_ENGINE_ANSWERER_COUNT; i++)
        ret_snapshot->answers[i] = atomic_load_explicit(&page->answers[i], memory_order_relaxed);
    for (size_t i = 0; i < DT_ENGINE_MOVED_COUNT; i++)
        ret_snapshot->moved[i] = atomic_load_explicit(&page->moved[i], memory_order_relaxed);
    for (size_t i = 0; i < DT_ENGINE_MOVE_TIME_COUNT; i++)
        ret_snapshot->move_ns[i] = atomic_load_explicit(&page->move_ns[i], memory_order_relaxed);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = atomic_load_explicit(&page->op_name[i], memory_order_relaxed);
    memcpy(ret_snapshot->op_name, words, DT_ENGINE_PAGE_NAME_MAX);
    for (char *c = ret_snapshot->op_name; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}
