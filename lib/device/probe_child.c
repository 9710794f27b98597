/* The child's side of a probe: load one backend and answer until the socket closes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device/builtin.h"
#include "device/device.h"
#include "device/loader.h"
#include "device/probe_internal.h"

static const dt_backend_t *builtin_table(const char *name)
{
    const dt_backend_t *const tables[] = {dt_backend_ref(), dt_backend_sim(), dt_backend_nvml()};
    for (int i = 0; i < 3; i++)
        if (strcmp(tables[i]->name, name) == 0)
            return tables[i];
    return NULL;
}

static bool send_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

static bool answer(int fd, const dt_loader_run_t *run, dt_status_t status, const dt_error_t *err)
{
    dt_probe_reply_t reply = {
        .magic = DT_PROBE_MAGIC,
        .status = (int32_t)status,
        .count = status == DT_OK ? run->count : 0,
        .abi = run->table.abi,
        .is_last = !run->is_open,
        .table_size = run->given_size,
    };
    if (run->table.name)
        (void)snprintf(reply.name, sizeof reply.name, "%s", run->table.name);
    if (status != DT_OK) {
        reply.source_code = err->source_code;
        (void)snprintf(reply.text, sizeof reply.text, "%.511s", err->text);
    }
    return send_all(fd, &reply, sizeof reply) &&
           send_all(fd, run->devices, (size_t)reply.count * sizeof *run->devices);
}

static bool wait_request(int fd)
{
    char request;
    ssize_t got;
    do
        got = recv(fd, &request, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 1 && request == DT_PROBE_REQUEST;
}

static void serve(int fd, char **argv)
{
    const dt_backend_options_t options = {
        .struct_size = sizeof options,
        .spec = argv[DT_PROBE_ARG_SPEC],
        .root = argv[DT_PROBE_ARG_ROOT],
        .seed = argv[DT_PROBE_ARG_SEED],
        .faults = argv[DT_PROBE_ARG_FAULTS],
        .library = argv[DT_PROBE_ARG_LIBRARY],
    };
    static dt_loader_run_t run; /* large */
    dt_error_t err = {0};
    const char *what = argv[DT_PROBE_ARG_WHAT];
    const dt_backend_t *table = NULL;
    dt_status_t status = DT_OK;
    if (!wait_request(fd))
        return;
    if (strcmp(argv[DT_PROBE_ARG_KIND], "builtin") == 0 && !(table = builtin_table(what)))
        status = dt_fail(&err, DT_ERR_INVALID, "dt", 0, "there is no built-in backend %s", what);
    else
        status = dt_loader_open(table, what, &options, &run, &err);
    if (status != DT_OK) {
        (void)answer(fd, &run, status, &err);
    } else {
        do
            status = dt_loader_update(&run, &err);
        while (answer(fd, &run, status, &err) && wait_request(fd));
    }
    dt_loader_close(&run);
}

bool dt_device_probe_is(int argc, char *const *argv)
{
    return argc == DT_PROBE_ARG_COUNT && strcmp(argv[DT_PROBE_ARG_FLAG], DT_PROBE_ARGUMENT) == 0;
}

int dt_device_probe_main(int argc, char **argv)
{
    int fd, null_fd;
    if (!dt_device_probe_is(argc, argv))
        return 64;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return 71;
    /* What the agent left open is none of a driver's business. */
    if (fd > 3)
        (void)close_range(3, (unsigned)fd - 1, 0);
    (void)close_range((unsigned)fd + 1, ~0U, 0);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return 71;
    /* A driver that reads its input or closes it must not disturb the socket. */
    (void)dup2(null_fd, STDIN_FILENO);
    serve(fd, argv);
    (void)close(null_fd);
    (void)close(fd);
    return 0;
}
