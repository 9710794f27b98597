#include "engine_serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "device/device.h"
#include "device/execute.h"
#include "engine.h"
#include "engine_channel.h"
#include "engine_exec.h"
#include "engine_meta.h"
#include "engine_setup.h"
#include "shm/memfd.h"
#include "shm/seqpacket.h"
#include "transport/transport.h"
#include "wire/bulk.h"

#define DT_ENGINE_HOST_FDS 3 /* of an OPEN: arena, channel, down; and a board if there is one */

struct dt_engine_host {
    dt_engine_page_t *page;
    dt_engine_setup_t setup;
    dt_loader_run_t run;
    void *device;              /* NULL: this engine has none */
    dt_error_t refusal;        /* then why not */
    dt_exec_t *exec;           /* NULL: likewise */
    dt_transport_t *transport; /* NULL: likewise */
    dt_engine_meta_t *meta;
    void *meta_memory; /* DT_CHANNEL_META_SIZE */
};

/* What belongs to one open session, given back when it closes. */
typedef struct host_session {
    dt_engine_host_t *host;
    uint32_t instance;
    void *down;
} host_session_t;

/* ---- the device ---- */

static uint32_t dirs_of(const dt_engine_setup_t *setup, const char **dirs)
{
    uint32_t count = 0;
    const char *at = setup->dirs;
    while (count < setup->dir_count && count < DT_INVENTORY_BACKEND_MAX) {
        dirs[count++] = at;
        at += strlen(at) + 1;
    }
    return count;
}

static dt_status_t backend_open(dt_engine_host_t *host, dt_error_t *err)
{
    const dt_engine_setup_t *setup = &host->setup;
    const char *dirs[DT_INVENTORY_BACKEND_MAX];
    const dt_backend_options_t options = {
        .struct_size = sizeof options,
        .spec = setup->spec,
        .root = "",
        .seed = setup->seed,
        .faults = "",
        .library = "",
    };
    return dt_device_execute_open(setup->backend, dirs, dirs_of(setup, dirs), &options, &host->run,
                                  err);
}

static dt_status_t device_open(dt_engine_host_t *host, dt_error_t *err)
{
    const dt_engine_setup_t *setup = &host->setup;
    const dt_backend_device_options_t device_options = {
        .struct_size = sizeof device_options,
        .info = &setup->info,
        .memory = dt_exec_backend_memory(),
        .threads = setup->threads,
    };
    if (!host->run.is_open)
        DT_TRY(backend_open(host, err));
    return host->run.table.device_open(host->run.ctx, &device_options, &host->device, err);
}

/* ---- the first operators ---- */

typedef struct warm_operator {
    const char *name;
    dt_value_t args[9];
    uint32_t arg_count;
} warm_operator_t;

static void warm_run(dt_engine_host_t *host, const warm_operator_t *warm)
{
    const dt_backend_t *table = &host->run.table;
    void *op;
    void *results[2] = {NULL};
    uint32_t count = 0;
    dt_error_t err = {0};
    if (table->op_find(host->device, warm->name, &op, &err) != DT_OK ||
        table->op_execute(host->device, op, warm->args, warm->arg_count, results, 2, &count,
                          &err) != DT_OK)
        return; /* a backend need not have it */
    for (uint32_t i = 0; i < count; i++)
        table->tensor_free(host->device, results[i]);
}

/* What opens files at its first use: random generators, the matrix library, the convolutions' just
 * in time compiler. */
static void warm_up(dt_engine_host_t *host)
{
    static const int64_t image_sizes[] = {1, 4, 8, 8};
    static const int64_t filter_sizes[] = {4, 4, 3, 3};
    static const int64_t square_sizes[] = {64, 64};
    static const int64_t ones[] = {1, 1};
    static const int64_t zeros[] = {0, 0};
    const dt_backend_t *table = &host->run.table;
    dt_error_t err = {0};
    void *image = NULL;
    void *filter = NULL;
    void *square = NULL;
    dt_meta_t meta;
    if (dt_meta_set(&meta, DT_DTYPE_F32, 4, image_sizes, NULL, 0, &err) == DT_OK)
        (void)table->tensor_create(host->device, &meta, &image, &err);
    if (dt_meta_set(&meta, DT_DTYPE_F32, 4, filter_sizes, NULL, 0, &err) == DT_OK)
        (void)table->tensor_create(host->device, &meta, &filter, &err);
    if (dt_meta_set(&meta, DT_DTYPE_F32, 2, square_sizes, NULL, 0, &err) == DT_OK)
        (void)table->tensor_create(host->device, &meta, &square, &err);
    if (image && filter && square) {
        const dt_value_t a = {.tag = DT_VALUE_TENSOR, .handle = square};
        const dt_value_t pair = {.tag = DT_VALUE_INTS, .count = 2, .ints = ones};
        const dt_value_t none = {.tag = DT_VALUE_INTS, .count = 2, .ints = zeros};
        const warm_operator_t operators[] = {
            {"aten::zero_", {a}, 1},
            {"aten::mm", {a, a}, 2},
            {"aten::add.Tensor", {a, a}, 2},
            {"aten::sum", {a}, 1},
            {"aten::sort", {a}, 1},
            {"aten::rand_like", {a}, 1},
            {"aten::convolution",
             {{.tag = DT_VALUE_TENSOR, .handle = image},
              {.tag = DT_VALUE_TENSOR, .handle = filter},
              {.tag = DT_VALUE_NONE},
              pair,
              none,
              pair,
              {.tag = DT_VALUE_FALSE},
              none,
              {.tag = DT_VALUE_INT, .number = 1}},
             9},
        };
        for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
            warm_run(host, &operators[i]);
    }
    table->tensor_free(host->device, image);
    table->tensor_free(host->device, filter);
    table->tensor_free(host->device, square);
}

/* ---- coming up ---- */

/* `fd` is closed. */
static dt_status_t setup_read(dt_engine_host_t *host, int fd, dt_error_t *err)
{
    void *map;
    dt_status_t status = dt_memfd_map(fd, sizeof host->setup, DT_MEMFD_READ, &map, err);
    (void)close(fd);
    DT_TRY(status);
    memcpy(&host->setup, map, sizeof host->setup);
    dt_memfd_unmap(map, sizeof host->setup);
    if (host->setup.magic != DT_ENGINE_SETUP_MAGIC)
        return dt_fail(err, DT_ERR_INVALID, "dt", host->setup.magic, "not an engine's setup");
    return DT_OK;
}

/* The agent does not know its devices yet: load what it expects to need, then wait for its word. */
static dt_status_t setup_await(dt_engine_host_t *host, dt_error_t *err)
{
    dt_engine_setup_t *early = malloc(sizeof *early);
    dt_engine_message_t message = {0};
    int fd = -1, fd_count = 0;
    size_t size;
    if (!early)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an engine");
    *early = host->setup;
    (void)backend_open(host, NULL); /* if it fails, the second time says why */
    dt_status_t status = dt_seqpacket_recv(DT_ENGINE_FD_CONTROL, &message, sizeof message, &size,
                                           &fd, 1, &fd_count, err);
    if (status == DT_OK && (message.kind != DT_ENGINE_MESSAGE_SETUP || fd_count != 1))
        status = dt_fail(err, DT_ERR_STOPPED, "dt", message.kind, "no device is needed any more");
    if (status == DT_OK)
        status = setup_read(host, fd, err);
    bool is_same = strcmp(early->backend, host->setup.backend) == 0 &&
                   strcmp(early->spec, host->setup.spec) == 0 &&
                   strcmp(early->seed, host->setup.seed) == 0 &&
                   memcmp(early->dirs, host->setup.dirs, sizeof early->dirs) == 0;
    free(early);
    if (!host->run.is_open || !is_same) {
        dt_loader_close(&host->run);
        memset(&host->run, 0, sizeof host->run);
    }
    return status;
}

dt_status_t dt_engine_host_open(dt_engine_page_t *page, dt_engine_host_t **ret_host,
                                dt_error_t *err)
{
    dt_engine_host_t *host = calloc(1, sizeof *host);
    if (!host)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an engine");
    host->page = page;
    *ret_host = host; /* for the life of the process, whatever comes */
    DT_TRY(setup_read(host, DT_ENGINE_FD_SETUP, err));
    if (host->setup.device == DT_ENGINE_DEVICE_LATER)
        DT_TRY(setup_await(host, err));
    DT_TRY(dt_memfd_map(DT_ENGINE_FD_META, DT_CHANNEL_META_SIZE, DT_MEMFD_READ_WRITE,
                        &host->meta_memory, err));
    (void)close(DT_ENGINE_FD_META);
    if (host->setup.device < 0)
        return DT_OK;
    if (device_open(host, &host->refusal) != DT_OK)
        return DT_OK; /* it serves no session, and says why to each */
    warm_up(host);
    const dt_transport_options_t moves = {
        .wake = DT_ENGINE_FD_MOVE_WAKE, .executor = DT_ENGINE_FD_WAKE, .moved = page->moved};
    DT_TRY(dt_transport_create(&moves, &host->transport, err));
    const dt_exec_options_t options = {
        .backend = &host->run.table,
        .device = host->device,
        .page = page,
        .clock = dt_clock_system(),
        .wake = DT_ENGINE_FD_WAKE,
        .bell = DT_ENGINE_FD_BELL,
        .transport = host->transport,
        .is_serial = host->setup.is_serial,
    };
    return dt_exec_create(&options, &host->exec, err);
}

/* ---- the agent's messages ---- */

static void say(dt_engine_message_kind_t kind, uint32_t instance, const char *text)
{
    dt_engine_message_t message = {.kind = (uint32_t)kind, .value = (int32_t)instance};
    (void)dt_str_copy(message.text, sizeof message.text, text);
    (void)dt_seqpacket_send(DT_ENGINE_FD_CONTROL, &message, sizeof message, NULL, 0, NULL);
}

static void show_state(dt_engine_host_t *host)
{
    bool is_busy = dt_exec_session_count(host->exec) > 0;
    atomic_store_explicit(&host->page->state, is_busy ? DT_ENGINE_STATE_BUSY : DT_ENGINE_STATE_WARM,
                          memory_order_release);
}

static void on_session_closed(void *arg, dt_exec_memory_t *memory)
{
    host_session_t *session = arg;
    /* What a library keeps for itself must stay where it is. */
    if (dt_shm_arena_live(memory->arena) == 0)
        dt_shm_arena_close(memory->arena);
    dt_memfd_unmap(memory->channel, DT_CHANNEL_BYTES);
    dt_memfd_unmap(session->down, DT_CHANNEL_DOWN_BYTES);
    say(DT_ENGINE_MESSAGE_CLOSED, session->instance, "");
    free(session);
}

static dt_status_t session_map(host_session_t *session, int *fds, dt_exec_memory_t *ret_memory,
                               dt_error_t *err)
{
    void *channel;
    DT_TRY(dt_memfd_map(fds[1], DT_CHANNEL_BYTES, DT_MEMFD_READ_WRITE, &channel, err));
    ret_memory->channel = channel;
    DT_TRY(dt_memfd_map(fds[2], DT_CHANNEL_DOWN_BYTES, DT_MEMFD_READ, &session->down, err));
    ret_memory->down = session->down;
    DT_TRY(dt_shm_arena_open(fds[0], ret_memory->channel->arena_bytes,
                             (int64_t)ret_memory->channel->limit_bytes, &ret_memory->arena, err));
    fds[0] = -1; /* the arena's */
    return DT_OK;
}

static dt_status_t session_open(dt_engine_host_t *host, const dt_engine_message_t *message,
                                int *fds, int fd_count, dt_error_t *err)
{
    uint32_t instance = (uint32_t)message->value;
    host_session_t *session = calloc(1, sizeof *session);
    dt_exec_memory_t memory = {.closed = on_session_closed, .arg = session};
    if (!session)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a session");
    session->host = host;
    session->instance = instance;
    dt_status_t status = fd_count >= DT_ENGINE_HOST_FDS && host->exec
                             ? session_map(session, fds, &memory, err)
                             : dt_fail(err, DT_ERR_NOT_FOUND, "dt", fd_count,
                                       "backend \"%s\" executes nothing here: %s",
                                       host->setup.backend, host->refusal.text);
    if (status == DT_OK)
        status = dt_exec_open(host->exec, instance, &memory, err);
    if (status == DT_OK) {
        status = fd_count > DT_ENGINE_HOST_FDS
                     ? dt_transport_board(host->transport, instance, fds[DT_ENGINE_HOST_FDS],
                                          message->member, err)
                     : DT_OK;
        if (status != DT_OK)
            dt_exec_close(host->exec, instance); /* which gives the memory back */
        return status;
    }
    dt_shm_arena_close(memory.arena);
    dt_memfd_unmap(memory.channel, DT_CHANNEL_BYTES);
    dt_memfd_unmap(session->down, DT_CHANNEL_DOWN_BYTES);
    free(session);
    return status;
}

static void on_open(dt_engine_host_t *host, const dt_engine_message_t *message, int *fds,
                    int fd_count)
{
    dt_error_t err = {0};
    if (session_open(host, message, fds, fd_count, &err) != DT_OK)
        say(DT_ENGINE_MESSAGE_REFUSED, (uint32_t)message->value, err.text);
    for (int i = 0; i < fd_count; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    if (host->exec)
        show_state(host);
}

/* A peer that cannot be reached is as good as lost, and so are we to it. */
static void on_peer(dt_engine_host_t *host, const dt_engine_message_t *message, int *fds,
                    int fd_count)
{
    dt_error_t err = {0};
    uint32_t instance = (uint32_t)message->value;
    if (host->transport && fd_count == 2) {
        dt_status_t status =
            dt_transport_peer(host->transport, instance, message->member, fds[0], fds[1], &err);
        if (status == DT_OK)
            fds[1] = -1;                     /* taken */
        else if (status != DT_ERR_NOT_FOUND) /* the session was refused */
            say(DT_ENGINE_MESSAGE_REFUSED, instance, err.text);
    }
    for (int i = 0; i < fd_count; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* A socket that is not taken ends, which the other side sees. */
static void on_link(dt_engine_host_t *host, const dt_engine_message_t *message, int *fds,
                    int fd_count)
{
    const dt_link_secret_t secret = {.key = message->key,
                                     .is_server = message->secret == DT_ENGINE_SECRET_SERVER};
    bool is_plain = message->secret == DT_ENGINE_SECRET_NONE;
    if (host->transport && fd_count == 1 &&
        dt_transport_link(host->transport, (uint32_t)message->value, message->member, fds[0],
                          is_plain ? NULL : &secret, NULL) == DT_OK)
        return; /* taken */
    for (int i = 0; i < fd_count; i++)
        (void)close(fds[i]);
}

/* A window that cannot be mapped is none: the program's bytes come another way. */
static void on_window(dt_engine_host_t *host, const dt_engine_message_t *message, int *fds,
                      int fd_count)
{
    dt_exec_window_t window = {.number = message->window,
                               .area_bytes = message->area_bytes,
                               .area_place = message->area_place,
                               .size = DT_BULK_WINDOW_BYTES};
    void *map = NULL;
    if (fd_count == 1 && host->exec &&
        dt_memfd_map(fds[0], window.size, DT_MEMFD_READ_WRITE, &map, NULL) == DT_OK)
        window.map = map;
    if (fd_count == 1 && !window.map)
        say(DT_ENGINE_MESSAGE_NO_WINDOW, (uint32_t)message->value, "the window cannot be mapped");
    if (host->exec)
        dt_exec_window(host->exec, (uint32_t)message->value, &window);
    for (int i = 0; i < fd_count; i++)
        (void)close(fds[i]);
}

/* Perform all messages that wait. False: the end. */
static bool control_read(dt_engine_host_t *host)
{
    for (;;) {
        dt_engine_message_t message = {0};
        int fds[DT_SEQPACKET_FDS_MAX];
        size_t size;
        int fd_count = 0;
        dt_status_t status = dt_seqpacket_recv(DT_ENGINE_FD_CONTROL, &message, sizeof message,
                                               &size, fds, DT_SEQPACKET_FDS_MAX, &fd_count, NULL);
        if (status == DT_ERR_AGAIN)
            return true;
        if (status == DT_ERR_INVALID)
            continue;
        if (status != DT_OK || message.kind == DT_ENGINE_MESSAGE_EXIT)
            return false;
        if (message.kind == DT_ENGINE_MESSAGE_OPEN) {
            on_open(host, &message, fds, fd_count);
        } else if (message.kind == DT_ENGINE_MESSAGE_PEER) {
            on_peer(host, &message, fds, fd_count);
        } else if (message.kind == DT_ENGINE_MESSAGE_LINK) {
            on_link(host, &message, fds, fd_count);
        } else if (message.kind == DT_ENGINE_MESSAGE_WINDOW) {
            on_window(host, &message, fds, fd_count);
        } else if (message.kind == DT_ENGINE_MESSAGE_CLOSE && host->exec) {
            dt_exec_close(host->exec, (uint32_t)message.value);
            show_state(host);
        }
    }
}

/* Returns whether the agent has sent something. */
static bool host_sleep(int64_t deadline_ns)
{
    struct pollfd fds[] = {{.fd = DT_ENGINE_FD_CONTROL, .events = POLLIN},
                           {.fd = DT_ENGINE_FD_WAKE, .events = POLLIN}};
    int timeout_ms = -1;
    if (deadline_ns != INT64_MAX) {
        int64_t left_ns = deadline_ns - dt_clock_mono_ns(dt_clock_system());
        timeout_ms = left_ns > 0 ? (int)((left_ns + DT_CLOCK_MS_NS - 1) / DT_CLOCK_MS_NS) : 0;
    }
    (void)poll(fds, 2, timeout_ms);
    if (fds[1].revents)
        dt_ring_wake_clear(DT_ENGINE_FD_WAKE);
    return fds[0].revents != 0;
}

void dt_engine_host_serve(dt_engine_host_t *host)
{
    dt_error_t err = {0};
    (void)fcntl(DT_ENGINE_FD_CONTROL, F_SETFL, O_NONBLOCK);
    bool is_played = strcmp(host->setup.backend, "sim") == 0; /* as if it were the CPU */
    const dt_engine_meta_source_t source = {.backend = &host->run.table,
                                            .device = host->device,
                                            .kind = is_played ? "cpu" : host->setup.info.kind,
                                            .page = host->page};
    if (host->device && dt_engine_meta_start(&source, host->meta_memory, DT_ENGINE_FD_META_WAKE,
                                             DT_ENGINE_FD_BELL, &host->meta, &err) != DT_OK) {
        say(DT_ENGINE_MESSAGE_FAILED, 0, err.text);
        return;
    }
    bool has_control = true;
    while (!has_control || control_read(host)) {
        int64_t deadline_ns = INT64_MAX;
        has_control = true; /* while there is work nobody else looks */
        if (host->exec &&
            (dt_exec_turn(host->exec) || !dt_exec_prepare_sleep(host->exec, &deadline_ns)))
            continue;
        has_control = host_sleep(deadline_ns);
    }
}
