#include "lib/execrig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "shm/memfd.h"

static void die(const char *what, const char *text)
{
    fprintf(stderr, "execrig: %s: %s\n", what, text);
    abort();
}

static void *memory_new(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        die("memory", "none");
    return memory;
}

static int64_t fake_now(void *arg)
{
    return ((dt_execrig_t *)arg)->now_ns;
}

static void init(dt_execrig_t *rig, const dt_backend_t *backend, void *device, bool is_fake_clock,
                 bool is_serial)
{
    dt_error_t err = {0};
    memset(rig, 0, sizeof *rig);
    rig->now_ns = INT64_C(1000000000);
    rig->clock = (dt_clock_t){.mono_ns = fake_now, .wall_ms = fake_now, .arg = rig};
    rig->page = memory_new(DT_ENGINE_PAGE_BYTES);
    if (dt_ring_wake_create(&rig->wake, &err) != DT_OK)
        die("eventfd", err.text);
    const dt_transport_options_t transport = {.wake = rig->wake, .executor = -1};
    if (dt_transport_create(&transport, &rig->transport, &err) != DT_OK)
        die("transport", err.text);
    const dt_exec_options_t options = {
        .backend = backend,
        .device = device,
        .page = rig->page,
        .clock = is_fake_clock ? &rig->clock : dt_clock_system(),
        .wake = -1,
        .bell = -1,
        .transport = rig->transport,
        .is_serial = is_serial,
    };
    if (dt_exec_create(&options, &rig->exec, &err) != DT_OK)
        die("create", err.text);
}

void dt_execrig_init(dt_execrig_t *rig, const dt_backend_t *backend, void *device,
                     bool is_fake_clock)
{
    init(rig, backend, device, is_fake_clock, false);
}

void dt_execrig_init_serial(dt_execrig_t *rig, const dt_backend_t *backend, void *device,
                            bool is_fake_clock)
{
    init(rig, backend, device, is_fake_clock, true);
}

void dt_execrig_fini(dt_execrig_t *rig)
{
    dt_exec_free(rig->exec);
    dt_transport_free(rig->transport);
    (void)close(rig->wake);
    (void)munmap(rig->page, DT_ENGINE_PAGE_BYTES);
}

static dt_shm_arena_t *arena_new(uint64_t limit_bytes, dt_channel_t *channel, int *ret_fd)
{
    int fd;
    dt_shm_arena_t *arena = NULL;
    dt_error_t err = {0};
    channel->limit_bytes = limit_bytes;
    channel->arena_bytes = dt_shm_arena_size(limit_bytes);
    if (dt_memfd_create("execrig", channel->arena_bytes, &fd, &err) != DT_OK ||
        (*ret_fd = dup(fd)) < 0 ||
        dt_shm_arena_open(fd, channel->arena_bytes, (int64_t)limit_bytes, &arena, &err) != DT_OK)
        die("arena", err.text);
    return arena;
}

static void on_closed(void *arg, dt_exec_memory_t *memory)
{
    (void)arg;
    dt_shm_arena_close(memory->arena);
}

void dt_execrig_open(dt_execrig_t *rig, dt_execrig_session_t *session, uint32_t instance,
                     uint32_t vdev_count, uint64_t limit_bytes)
{
    uint32_t vdevs[DT_CHANNEL_VDEVS_MAX];
    for (uint32_t i = 0; i < vdev_count; i++)
        vdevs[i] = i;
    dt_execrig_open_on(rig, session, instance, vdevs, vdev_count, limit_bytes);
}

void dt_execrig_open_on(dt_execrig_t *rig, dt_execrig_session_t *session, uint32_t instance,
                        const uint32_t *vdevs, uint32_t vdev_count, uint64_t limit_bytes)
{
    dt_error_t err = {0};
    uint32_t reader;
    memset(session, 0, sizeof *session);
    session->rig = rig;
    session->instance = instance;
    session->arena_fd = -1;
    session->sequence = 1;
    session->channel = memory_new(DT_CHANNEL_BYTES);
    session->down = memory_new(DT_CHANNEL_DOWN_BYTES);
    session->frame = malloc(DT_EXECRIG_FRAME_BYTES);
    session->channel->session = 100 + instance;
    session->channel->vdev_count = vdev_count;
    (void)snprintf(session->channel->node, sizeof session->channel->node, "w0");
    memcpy(session->channel->vdevs, vdevs, vdev_count * sizeof *vdevs);
    if (dt_ring_writer_init(&session->frames, session->down, DT_CHANNEL_FRAMES_BYTES, &err) ||
        dt_ring_writer_init(&session->bulk, (uint8_t *)session->down + DT_CHANNEL_BULK_AT,
                            DT_CHANNEL_BULK_BYTES, &err) ||
        dt_ring_join(&session->frames, &session->channel->frames, -1, &reader, &err) ||
        dt_ring_join(&session->bulk, &session->channel->bulk, -1, &reader, &err))
        die("rings", err.text);
    const dt_exec_memory_t memory = {
        .channel = session->channel,
        .down = session->down,
        .arena = limit_bytes ? arena_new(limit_bytes, session->channel, &session->arena_fd) : NULL,
        .closed = on_closed,
    };
    if (dt_exec_open(rig->exec, instance, &memory, &err) != DT_OK ||
        dt_ring_reader_init(&session->up, (uint8_t *)session->channel + DT_CHANNEL_CONTROL_BYTES,
                            DT_RING_HEAD_BYTES + DT_CHANNEL_UP_BYTES, &session->channel->up, -1,
                            &err) != DT_OK)
        die("open", err.text);
}

dt_board_t *dt_execrig_join(dt_execrig_session_t *const *sessions, uint32_t count)
{
    dt_error_t err = {0};
    dt_board_t *board;
    int fd;
    if (dt_board_create(&fd, &board, &err) != DT_OK)
        die("board", err.text);
    for (uint32_t i = 0; i < count; i++) {
        const dt_channel_t *channel = sessions[i]->channel;
        char node[16];
        uint32_t member;
        (void)snprintf(node, sizeof node, "node%u", i);
        const dt_board_entry_t entry = {
            node, 0, i, channel->arena_bytes, channel->vdevs, channel->vdev_count};
        if (dt_board_add(board, &entry, &member, &err) != DT_OK)
            die("board", err.text);
    }
    for (uint32_t i = 0; i < count; i++) {
        dt_transport_t *transport = sessions[i]->rig->transport;
        if (dt_transport_board(transport, sessions[i]->instance, fd, i, &err) != DT_OK)
            die("board", err.text);
        for (uint32_t k = 0; k < count; k++)
            if (k != i &&
                dt_transport_peer(transport, sessions[i]->instance, k, sessions[k]->arena_fd,
                                  dup(sessions[k]->rig->wake), &err) != DT_OK)
                die("peer", err.text);
    }
    (void)close(fd);
    return board;
}

void dt_execrig_close(dt_execrig_session_t *session)
{
    dt_exec_close(session->rig->exec, session->instance);
    if (session->arena_fd >= 0)
        (void)close(session->arena_fd);
    (void)munmap(session->channel, DT_CHANNEL_BYTES);
    (void)munmap(session->down, DT_CHANNEL_DOWN_BYTES);
    free(session->frame);
}

/* ---- records ---- */

static void frame_begin(dt_execrig_session_t *session)
{
    if (!session->has_frame)
        dt_frame_begin(&session->writer, session->frame, DT_EXECRIG_FRAME_BYTES, session->sequence,
                       1);
    session->has_frame = true;
}

void dt_execrig_flush(dt_execrig_session_t *session)
{
    if (!session->has_frame)
        return;
    size_t size = dt_frame_end(&session->writer, 0);
    session->sequence += session->writer.count;
    session->has_frame = false;
    if (dt_ring_write(&session->frames, DT_CHANNEL_FRAME, session->frame, size, NULL) != DT_OK)
        die("flush", "no room in the ring");
}

void dt_execrig_put(dt_execrig_session_t *session, const dt_record_t *record)
{
    frame_begin(session);
    if (dt_record_put(&session->writer, record))
        return;
    dt_execrig_flush(session);
    frame_begin(session);
    if (!dt_record_put(&session->writer, record))
        die("put", "a record that fits no frame");
}

uint64_t dt_execrig_upload(dt_execrig_session_t *session, unsigned dtype, unsigned ndim,
                           const int64_t *sizes, const void *bytes)
{
    static dt_record_t record;
    dt_error_t err = {0};
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    if (dt_meta_set(&record.move.meta, dtype, ndim, sizes, NULL, 0, &err) != DT_OK)
        die("upload", err.text);
    record.move.output = ++session->tensor;
    record.move.size = (uint64_t)dt_meta_bytes(&record.move.meta);
    record.move.bytes = bytes;
    record.move.number = bytes ? 0 : session->tensor; /* a transfer of the tensor's number */
    dt_execrig_put(session, &record);
    return session->tensor;
}

uint32_t dt_execrig_define(dt_execrig_session_t *session, const dt_signature_t *signature)
{
    static dt_record_t record;
    dt_buf_t body;
    dt_error_t err = {0};
    dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
    if (dt_signature_encode(signature, &body, &err) != DT_OK || /* and no steps */
        dt_buf_append_byte(&body, 0) != DT_OK)
        die("define", err.text);
    record = (dt_record_t){.kind = DT_RECORD_DEF_PLAN};
    record.definition.id = session->signature++;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    dt_execrig_put(session, &record);
    dt_buf_fini(&body);
    return record.definition.id;
}

uint32_t dt_execrig_define_f32(dt_execrig_session_t *session, const char *name,
                               uint32_t input_count, unsigned ndim, const int64_t *sizes,
                               unsigned alias, uint32_t flags)
{
    dt_value_t args[8];
    dt_signature_tensor_t tensors[9];
    dt_error_t err = {0};
    memset(args, 0, sizeof args);
    memset(tensors, 0, sizeof tensors);
    for (uint32_t i = 0; i < input_count + 1; i++)
        if (dt_meta_set(&tensors[i].meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, &err) != DT_OK)
            die("define", err.text);
    for (uint32_t i = 0; i < input_count; i++)
        args[i].tag = DT_VALUE_TENSOR;
    tensors[input_count].alias = (uint8_t)alias;
    const dt_signature_t signature = {
        .name = name,
        .arg_count = input_count,
        .input_count = input_count,
        .output_count = 1,
        .id_count = alias != DT_ALIAS_IN_PLACE,
        .flags = flags,
        .args = args,
        .inputs = tensors,
        .outputs = tensors + input_count,
    };
    return dt_execrig_define(session, &signature);
}

uint64_t dt_execrig_op(dt_execrig_session_t *session, uint32_t signature, const uint64_t *inputs,
                       uint32_t input_count, bool has_output)
{
    uint64_t output = has_output ? ++session->tensor : 0;
    const dt_record_op_t op = {
        .signature = signature,
        .input_count = input_count,
        .output_count = has_output,
        .inputs = inputs,
        .outputs = &output,
    };
    frame_begin(session);
    if (!dt_record_put_op(&session->writer, &op)) {
        dt_execrig_flush(session);
        frame_begin(session);
        if (!dt_record_put_op(&session->writer, &op))
            die("op", "an operator that fits no frame");
    }
    return output;
}

void dt_execrig_free(dt_execrig_session_t *session, uint64_t tensor)
{
    static dt_record_t record;
    record.kind = DT_RECORD_FREE;
    record.ids.ids = &tensor;
    record.ids.count = 1;
    dt_execrig_put(session, &record);
}

uint64_t dt_execrig_fetch(dt_execrig_session_t *session, uint64_t tensor)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_FETCH};
    record.move.tensor = tensor;
    record.move.number = ++session->future;
    dt_execrig_put(session, &record);
    return session->future;
}

static void bulk_put(dt_execrig_session_t *session, const dt_channel_chunk_t *head,
                     const void *bytes, size_t size)
{
    uint8_t *at;
    if (dt_ring_reserve(&session->bulk, sizeof *head + size, &at, NULL) != DT_OK)
        die("chunk", "no room in the ring");
    memcpy(at, head, sizeof *head);
    if (size)
        memcpy(at + sizeof *head, bytes, size);
    dt_ring_commit(&session->bulk, sizeof *head + size, DT_CHANNEL_CHUNK);
}

void dt_execrig_chunk(dt_execrig_session_t *session, uint64_t transfer, uint64_t offset,
                      const void *bytes, size_t size)
{
    const dt_channel_chunk_t head = {
        .transfer = transfer, .offset = offset, .crc32c = dt_crc32c(0, bytes, size)};
    bulk_put(session, &head, bytes, size);
}

void dt_execrig_ack(dt_execrig_session_t *session, uint64_t transfer, uint64_t received,
                    bool is_restart)
{
    const dt_channel_chunk_t head = {.transfer = transfer,
                                     .received = received,
                                     .flags = DT_CHANNEL_CHUNK_ACK |
                                              (is_restart ? DT_CHANNEL_CHUNK_RESTART : 0)};
    bulk_put(session, &head, NULL, 0);
}

/* ---- running ---- */

void dt_execrig_run(dt_execrig_session_t *session)
{
    int64_t deadline_ns;
    dt_execrig_flush(session);
    do {
        session->rig->now_ns += 1000;
    } while (dt_exec_turn(session->rig->exec) ||
             !dt_exec_prepare_sleep(session->rig->exec, &deadline_ns));
}

Dtorch__V1__WorkerSessionUp *dt_execrig_next(dt_execrig_session_t *session)
{
    dt_ring_message_t message;
    if (dt_ring_peek(&session->up, &message) != DT_OK)
        return NULL;
    Dtorch__V1__WorkerSessionUp *up =
        dtorch__v1__worker_session_up__unpack(NULL, message.size, message.bytes);
    if (!up || message.kind != DT_CHANNEL_UP)
        die("next", "a message that is none");
    dt_ring_pass(&session->up);
    return up;
}

Dtorch__V1__WorkerSessionUp *dt_execrig_result(dt_execrig_session_t *session, uint64_t future)
{
    dt_execrig_run(session);
    for (;;) {
        Dtorch__V1__WorkerSessionUp *up = dt_execrig_next(session);
        if (!up || (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT &&
                    up->result->future == future))
            return up;
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
}
