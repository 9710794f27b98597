/* A library that plays NCCL and the CUDA runtime: the calls of lib/backend/nccl/api.h on host
 * memory, between threads or processes of one machine. A communicator is a file that all members
 * map, with a ring of bytes from each to each; every collective is sends and receives over these.
 * Nothing runs by itself: work goes on when its stream's event or its communicator is asked, as
 * far as the others have come.
 *
 * As NCCL, it does not notice that a peer is dead. It notices one that aborted while something
 * runs. It says IN_PROGRESS for a while after each call, so that callers must wait for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/nccl/api.h"

#define PLAY_RANK_MAX   16
#define PLAY_RING_BYTES ((uint64_t)32 << 10)
#define PLAY_OP_MAX     1024
#define PLAY_LOOKS      2 /* IN_PROGRESS so often */
#define PLAY_BIG        ((size_t)1 << 40)

#define X(field, symbol, result, parameters)                                                       \
    __attribute__((visibility("default"))) result symbol parameters;
DT_NCCL_SYMBOLS(X)
DT_NCCL_RUNTIME_SYMBOLS(X)
#undef X

typedef struct ring {
    _Atomic uint64_t written, read; /* bytes ever */
    uint8_t bytes[PLAY_RING_BYTES];
} ring_t;

typedef struct room {
    _Atomic uint32_t arrived, aborted;
    ring_t rings[]; /* (count, count) from, to */
} room_t;

struct dt_nccl_comm {
    room_t *room;
    size_t room_bytes;
    int rank, count, looks;
    char path[sizeof(dt_nccl_id_t)];
    struct dt_nccl_stream *stream; /* where its work is; NULL before the first */
};

typedef struct xfer {
    int peer;
    bool is_send;
    uint8_t *at;
    size_t left;
} xfer_t;

/* What is done when all has come: parts combined, or the first of them copied. */
typedef struct finish {
    uint8_t *to;
    const uint8_t *parts[PLAY_RANK_MAX];
    int part_count, dtype, op;
    size_t count; /* elements */
} finish_t;

typedef struct task {
    struct task *next;
    enum { TASK_COPY, TASK_EVENT, TASK_GROUP } kind;
    /* COPY */
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, width, rows;
    struct dt_nccl_event *event;
    /* GROUP */
    dt_nccl_comm_t comm;
    xfer_t *xfers;
    finish_t *finishes;
    void **temps;
    uint32_t xfer_count, finish_count, temp_count;
} task_t;

struct dt_nccl_event {
    dt_nccl_stream_t stream;
    bool is_done;
};

struct dt_nccl_stream {
    task_t *head, **tail;
};

/* The group that is being made. */
static _Thread_local struct {
    int depth;
    task_t *task;
    dt_nccl_stream_t stream;
    dt_nccl_result_t wrong;
} making;

/* ---- arithmetic ---- */

static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static double combine(double a, double b, int op)
{
    if (op == DT_NCCL_MAX)
        return a > b ? a : b;
    if (op == DT_NCCL_MIN)
        return a < b ? a : b;
    return a + b;
}

static int64_t combine_integer(int64_t a, int64_t b, int op)
{
    if (op == DT_NCCL_MAX)
        return a > b ? a : b;
    if (op == DT_NCCL_MIN)
        return a < b ? a : b;
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static void finish_floats(const finish_t *it)
{
    for (size_t i = 0; i < it->count; i++) {
        float sum = ((const float *)(const void *)it->parts[0])[i];
        for (int k = 1; k < it->part_count; k++)
            sum = (float)combine(sum, ((const float *)(const void *)it->parts[k])[i], it->op);
        ((float *)(void *)it->to)[i] = it->op == DT_NCCL_AVG ? sum / (float)it->part_count : sum;
    }
}

static void finish_integers(const finish_t *it)
{
    for (size_t i = 0; i < it->count; i++) {
        int64_t sum = ((const int64_t *)(const void *)it->parts[0])[i];
        for (int k = 1; k < it->part_count; k++)
            sum = combine_integer(sum, ((const int64_t *)(const void *)it->parts[k])[i], it->op);
        ((int64_t *)(void *)it->to)[i] = it->op == DT_NCCL_AVG ? sum / it->part_count : sum;
    }
}

static void finish(const finish_t *it)
{
    if (it->part_count == 1)
        memmove(it->to, it->parts[0], it->count * widths[it->dtype]);
    else if (it->dtype == DT_NCCL_F32)
        finish_floats(it);
    else
        finish_integers(it);
}

/* ---- moving ---- */

static ring_t *ring_of(dt_nccl_comm_t comm, int from, int to)
{
    return &comm->room->rings[from * comm->count + to];
}

static void xfer_step(dt_nccl_comm_t comm, xfer_t *it)
{
    ring_t *ring =
        it->is_send ? ring_of(comm, comm->rank, it->peer) : ring_of(comm, it->peer, comm->rank);
    while (it->left > 0) {
        uint64_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
        uint64_t place = (it->is_send ? written : read) % PLAY_RING_BYTES;
        uint64_t ready = it->is_send ? PLAY_RING_BYTES - (written - read) : written - read;
        uint64_t most = PLAY_RING_BYTES - place;
        uint64_t size = ready < most ? ready : most;
        size = size < it->left ? size : it->left;
        if (size == 0)
            return;
        if (it->is_send)
            memcpy(ring->bytes + place, it->at, size);
        else
            memcpy(it->at, ring->bytes + place, size);
        atomic_fetch_add(it->is_send ? &ring->written : &ring->read, size);
        it->at += size;
        it->left -= size;
    }
}

/* One after the other between the same two. */
static bool is_behind(const task_t *task, uint32_t index)
{
    const xfer_t *it = &task->xfers[index];
    for (uint32_t i = 0; i < index; i++)
        if (task->xfers[i].left > 0 && task->xfers[i].peer == it->peer &&
            task->xfers[i].is_send == it->is_send)
            return true;
    return false;
}

static bool group_step(task_t *task)
{
    bool is_over = true;
    for (uint32_t i = 0; i < task->xfer_count; i++) {
        if (!is_behind(task, i))
            xfer_step(task->comm, &task->xfers[i]);
        is_over &= task->xfers[i].left == 0;
    }
    for (uint32_t i = 0; is_over && i < task->finish_count; i++)
        finish(&task->finishes[i]);
    return is_over;
}

static void task_free(task_t *task)
{
    for (uint32_t i = 0; i < task->temp_count; i++)
        free(task->temps[i]);
    free(task->temps);
    free(task->xfers);
    free(task->finishes);
    free(task);
}

static bool task_step(task_t *task)
{
    switch (task->kind) {
    case TASK_COPY:
        for (size_t i = 0; i < task->rows; i++)
            memmove(task->to + i * task->to_pitch, task->from + i * task->from_pitch, task->width);
        return true;
    case TASK_EVENT:
        task->event->is_done = true;
        return true;
    default:
        return group_step(task);
    }
}

static void stream_go_on(dt_nccl_stream_t stream)
{
    while (stream && stream->head && task_step(stream->head)) {
        task_t *task = stream->head;
        stream->head = task->next;
        if (!stream->head)
            stream->tail = &stream->head;
        task_free(task);
    }
}

static task_t *task_new(int kind)
{
    task_t *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    task->kind = kind;
    return task;
}

static void stream_add(dt_nccl_stream_t stream, task_t *task)
{
    *stream->tail = task;
    stream->tail = &task->next;
}

/* ---- the runtime ---- */

dt_nccl_error_t cudaGetDeviceCount(int *count)
{
    *count = PLAY_RANK_MAX;
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaSetDevice(int device)
{
    return device < PLAY_RANK_MAX ? DT_NCCL_CUDA_SUCCESS : 101;
}

const char *cudaGetErrorString(dt_nccl_error_t error)
{
    return error == DT_NCCL_CUDA_NO_MEMORY ? "out of memory" : "a played error";
}

dt_nccl_error_t cudaStreamCreateWithFlags(dt_nccl_stream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return DT_NCCL_CUDA_NO_MEMORY;
    (*stream)->tail = &(*stream)->head;
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaStreamSynchronize(dt_nccl_stream_t stream)
{
    while (stream->head)
        stream_go_on(stream);
    return DT_NCCL_CUDA_SUCCESS;
}

/* CUDA would go on with what is left, in buffers that may be another's by then. */
dt_nccl_error_t cudaStreamDestroy(dt_nccl_stream_t stream)
{
    if (stream->head)
        abort();
    free(stream);
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaEventCreateWithFlags(dt_nccl_event_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? DT_NCCL_CUDA_SUCCESS : DT_NCCL_CUDA_NO_MEMORY;
}

dt_nccl_error_t cudaEventRecord(dt_nccl_event_t event, dt_nccl_stream_t stream)
{
    task_t *task = task_new(TASK_EVENT);
    event->stream = stream;
    event->is_done = false;
    task->event = event;
    stream_add(stream, task);
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaEventQuery(dt_nccl_event_t event)
{
    stream_go_on(event->stream);
    return !event->stream || event->is_done ? DT_NCCL_CUDA_SUCCESS : DT_NCCL_CUDA_NOT_READY;
}

/* What is still to happen to it does not. */
dt_nccl_error_t cudaEventDestroy(dt_nccl_event_t event)
{
    for (task_t **at = event->stream ? &event->stream->head : NULL; at && *at;) {
        task_t *task = *at;
        if (task->kind != TASK_EVENT || task->event != event) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        if (!task->next)
            event->stream->tail = at;
        task_free(task);
    }
    free(event);
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaMalloc(void **block, size_t size)
{
    *block = size < PLAY_BIG ? malloc(size ? size : 1) : NULL;
    return *block ? DT_NCCL_CUDA_SUCCESS : DT_NCCL_CUDA_NO_MEMORY;
}

dt_nccl_error_t cudaFree(void *block)
{
    free(block);
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaMemcpy(void *to, const void *from, size_t size, dt_nccl_copy_t kind)
{
    (void)kind;
    memmove(to, from, size);
    return DT_NCCL_CUDA_SUCCESS;
}

dt_nccl_error_t cudaMemcpyAsync(void *to, const void *from, size_t size, dt_nccl_copy_t kind,
                                dt_nccl_stream_t stream)
{
    task_t *task = task_new(TASK_COPY);
    (void)kind;
    task->to = to;
    task->from = from;
    task->width = size;
    task->rows = 1;
    stream_add(stream, task);
    return DT_NCCL_CUDA_SUCCESS;
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the call it plays */
dt_nccl_error_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                  size_t width, size_t rows, dt_nccl_copy_t kind,
                                  dt_nccl_stream_t stream)
{
    task_t *task = task_new(TASK_COPY);
    (void)kind;
    if (width > to_pitch || width > from_pitch || to_pitch > DT_NCCL_CUDA_PITCH_MAX ||
        from_pitch > DT_NCCL_CUDA_PITCH_MAX) {
        task_free(task);
        return 12; /* cudaErrorInvalidPitchValue */
    }
    task->to = to;
    task->from = from;
    task->to_pitch = to_pitch;
    task->from_pitch = from_pitch;
    task->width = width;
    task->rows = rows;
    stream_add(stream, task);
    return DT_NCCL_CUDA_SUCCESS;
}

/* ---- communicators ---- */

dt_nccl_result_t ncclGetVersion(int *version)
{
    *version = DT_NCCL_CONFIG_VERSION;
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclGetUniqueId(dt_nccl_id_t *id)
{
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    (void)snprintf(id->bytes, sizeof id->bytes, "%.80s/fake-nccl.XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(id->bytes);
    if (fd < 0)
        return DT_NCCL_SYSTEM_ERROR;
    (void)close(fd);
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclCommInitRankConfig(dt_nccl_comm_t *ret_comm, int count, dt_nccl_id_t id,
                                        int rank, dt_nccl_config_arg_t *config)
{
    size_t bytes = sizeof(room_t) + (size_t)count * (size_t)count * sizeof(ring_t);
    if (config->magic != DT_NCCL_CONFIG_MAGIC || config->size != sizeof *config ||
        config->blocking != 0 || count > PLAY_RANK_MAX || rank >= count)
        return DT_NCCL_INVALID_ARGUMENT;
    id.bytes[sizeof id.bytes - 1] = '\0';
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        if (fd >= 0)
            (void)close(fd);
        return DT_NCCL_SYSTEM_ERROR;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    dt_nccl_comm_t comm = map == MAP_FAILED ? NULL : calloc(1, sizeof *comm);
    if (!comm)
        return DT_NCCL_SYSTEM_ERROR;
    comm->room = map;
    comm->room_bytes = bytes;
    comm->rank = rank;
    comm->count = count;
    comm->looks = PLAY_LOOKS;
    memcpy(comm->path, id.bytes, sizeof comm->path);
    if (atomic_fetch_add(&comm->room->arrived, 1) + 1 == (uint32_t)count)
        (void)unlink(comm->path);
    *ret_comm = comm;
    return DT_NCCL_IN_PROGRESS;
}

static bool has_work(dt_nccl_comm_t comm)
{
    for (const task_t *at = comm->stream ? comm->stream->head : NULL; at; at = at->next)
        if (at->kind == TASK_GROUP && at->comm == comm)
            return true;
    return false;
}

dt_nccl_result_t ncclCommGetAsyncError(dt_nccl_comm_t comm, dt_nccl_result_t *ret_result)
{
    bool is_joining = atomic_load(&comm->room->arrived) < (uint32_t)comm->count;
    *ret_result = DT_NCCL_IN_PROGRESS;
    stream_go_on(comm->stream);
    if (atomic_load(&comm->room->aborted) > 0 && (is_joining || has_work(comm)))
        *ret_result = DT_NCCL_REMOTE_ERROR;
    else if (!is_joining && comm->looks-- <= 0)
        *ret_result = DT_NCCL_SUCCESS;
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclCommAbort(dt_nccl_comm_t comm)
{
    atomic_fetch_add(&comm->room->aborted, 1);
    for (task_t **at = comm->stream ? &comm->stream->head : NULL; at && *at;) {
        task_t *task = *at;
        if (task->kind != TASK_GROUP || task->comm != comm) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        if (!task->next)
            comm->stream->tail = at;
        task_free(task);
    }
    if (atomic_load(&comm->room->arrived) < (uint32_t)comm->count)
        (void)unlink(comm->path);
    (void)munmap(comm->room, comm->room_bytes);
    free(comm);
    return DT_NCCL_SUCCESS;
}

const char *ncclGetErrorString(dt_nccl_result_t result)
{
    return result == DT_NCCL_REMOTE_ERROR ? "remote process exited" : "a played error";
}

const char *ncclGetLastError(dt_nccl_comm_t comm)
{
    (void)comm;
    return "";
}

/* ---- operations ---- */

dt_nccl_result_t ncclGroupStart(void)
{
    if (making.depth++ == 0) {
        making.task = task_new(TASK_GROUP);
        making.task->xfers = calloc(PLAY_OP_MAX, sizeof *making.task->xfers);
        making.task->finishes = calloc(PLAY_OP_MAX, sizeof *making.task->finishes);
        making.task->temps = calloc(PLAY_OP_MAX, sizeof *making.task->temps);
        making.wrong = DT_NCCL_SUCCESS;
    }
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclGroupEnd(void)
{
    if (making.depth == 0)
        return DT_NCCL_INVALID_USAGE;
    if (--making.depth > 0)
        return DT_NCCL_SUCCESS;
    if (making.wrong != DT_NCCL_SUCCESS || !making.task->comm) {
        task_free(making.task);
        return making.wrong;
    }
    making.task->comm->stream = making.stream;
    making.task->comm->looks = PLAY_LOOKS;
    stream_add(making.stream, making.task);
    return DT_NCCL_IN_PROGRESS;
}

static bool begin(size_t count, dt_nccl_dtype_t dtype, dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    bool is_good = making.depth > 0 && dtype >= 0 && dtype <= DT_NCCL_BF16 && count < PLAY_BIG &&
                   making.task->xfer_count + 2 * PLAY_RANK_MAX < PLAY_OP_MAX;
    if (!is_good) {
        making.wrong = DT_NCCL_INVALID_USAGE;
        return false;
    }
    making.task->comm = comm;
    making.stream = stream;
    return true;
}

static void add(int peer, bool is_send, const void *bytes, size_t size)
{
    uint8_t *at;
    memcpy(&at, &bytes, sizeof at);
    making.task->xfers[making.task->xfer_count++] = (xfer_t){peer, is_send, at, size};
}

static void *temp(size_t size)
{
    void *block = malloc(size ? size : 1);
    if (!block)
        abort();
    return making.task->temps[making.task->temp_count++] = block;
}

static finish_t *last(void *to, size_t count, dt_nccl_dtype_t dtype)
{
    finish_t *it = &making.task->finishes[making.task->finish_count++];
    *it = (finish_t){.to = to, .count = count, .dtype = dtype};
    return it;
}

dt_nccl_result_t ncclSend(const void *from, size_t count, dt_nccl_dtype_t dtype, int peer,
                          dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    if (!begin(count, dtype, comm, stream) || peer == comm->rank)
        return DT_NCCL_INVALID_USAGE;
    add(peer, true, from, count * widths[dtype]);
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclRecv(void *to, size_t count, dt_nccl_dtype_t dtype, int peer,
                          dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    if (!begin(count, dtype, comm, stream) || peer == comm->rank)
        return DT_NCCL_INVALID_USAGE;
    add(peer, false, to, count * widths[dtype]);
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclBroadcast(const void *from, void *to, size_t count, dt_nccl_dtype_t dtype,
                               int root, dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    if (!begin(count, dtype, comm, stream))
        return DT_NCCL_INVALID_USAGE;
    for (int i = 0; root == comm->rank && i < comm->count; i++)
        if (i != root)
            add(i, true, from, count * widths[dtype]);
    if (root == comm->rank) {
        finish_t *it = last(to, count, dtype);
        it->parts[it->part_count++] = from;
    } else {
        add(root, false, to, count * widths[dtype]);
    }
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclAllGather(const void *from, void *to, size_t count, dt_nccl_dtype_t dtype,
                               dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    size_t size = begin(count, dtype, comm, stream) ? count * widths[dtype] : 0;
    if (making.wrong != DT_NCCL_SUCCESS)
        return making.wrong;
    for (int i = 0; i < comm->count; i++) {
        if (i == comm->rank)
            continue;
        add(i, true, from, size);
        add(i, false, (uint8_t *)to + (size_t)i * size, size);
    }
    finish_t *it = last((uint8_t *)to + (size_t)comm->rank * size, count, dtype);
    it->parts[it->part_count++] = from;
    return DT_NCCL_SUCCESS;
}

/* Everybody's block `rank` of `from`, or all of it, to everybody, who combine in the order of
 * ranks. */
static void reduce(const uint8_t *from, size_t stride, const finish_t *said, dt_nccl_comm_t comm)
{
    size_t size = said->count * widths[said->dtype];
    finish_t *it = last(said->to, said->count, said->dtype);
    it->op = said->op;
    for (int i = 0; i < comm->count; i++) {
        if (i == comm->rank) {
            it->parts[it->part_count++] = from + (size_t)i * stride;
            continue;
        }
        void *block = temp(size);
        add(i, true, from + (size_t)i * stride, size);
        add(i, false, block, size);
        it->parts[it->part_count++] = block;
    }
}

dt_nccl_result_t ncclAllReduce(const void *from, void *to, size_t count, dt_nccl_dtype_t dtype,
                               dt_nccl_op_t op, dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    if (!begin(count, dtype, comm, stream) || (dtype != DT_NCCL_F32 && dtype != DT_NCCL_I64))
        return making.wrong = DT_NCCL_INVALID_USAGE;
    const finish_t said = {.to = to, .count = count, .dtype = dtype, .op = op};
    reduce(from, 0, &said, comm);
    return DT_NCCL_SUCCESS;
}

dt_nccl_result_t ncclReduceScatter(const void *from, void *to, size_t count, dt_nccl_dtype_t dtype,
                                   dt_nccl_op_t op, dt_nccl_comm_t comm, dt_nccl_stream_t stream)
{
    if (!begin(count, dtype, comm, stream) || (dtype != DT_NCCL_F32 && dtype != DT_NCCL_I64))
        return making.wrong = DT_NCCL_INVALID_USAGE;
    const finish_t said = {.to = to, .count = count, .dtype = dtype, .op = op};
    reduce(from, count * widths[dtype], &said, comm);
    return DT_NCCL_SUCCESS;
}
