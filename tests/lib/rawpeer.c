/* See rawpeer.h. Source: RFC 9113 (frames), RFC 7541 (header fields, without compression), and
 * gRPC's PROTOCOL-HTTP2 (the five bytes before a message). */
#include "lib/rawpeer.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/testproc.h"

enum frame_kind { FRAME_DATA = 0, FRAME_HEADERS = 1, FRAME_SETTINGS = 4 };
#define END_HEADERS          0x4
#define SETTING_WINDOW       4
#define FRAME_HEAD           9
#define HEADERS_MAX          512
#define PREFACE              "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define HPACK_METHOD_POST    0x83
#define HPACK_SCHEME_HTTP    0x86
#define HPACK_NAME_AUTHORITY 0x01
#define HPACK_NAME_PATH      0x04

int dt_rawpeer_connect(const char *target)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool is_unix = target[0] == '/';
    int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc;
    if (fd < 0)
        return -1;
    if (is_unix) {
        memcpy(un.sun_path, target, strnlen(target, sizeof un.sun_path - 1));
        rc = connect(fd, (struct sockaddr *)&un, sizeof un);
    } else {
        in.sin_port = htons((uint16_t)strtol(target, NULL, 10));
        rc = connect(fd, (struct sockaddr *)&in, sizeof in);
    }
    if (rc < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool send_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static bool send_frame(int fd, enum frame_kind kind, uint8_t flags, uint32_t stream,
                       const void *data, uint32_t size)
{
    uint8_t head[FRAME_HEAD] = {(uint8_t)(size >> 16),
                                (uint8_t)(size >> 8),
                                (uint8_t)size,
                                (uint8_t)kind,
                                flags,
                                (uint8_t)(stream >> 24),
                                (uint8_t)(stream >> 16),
                                (uint8_t)(stream >> 8),
                                (uint8_t)stream};
    return send_all(fd, head, sizeof head) && send_all(fd, data, size);
}

bool dt_rawpeer_preface(int fd, uint32_t window)
{
    uint8_t setting[6] = {0,
                          SETTING_WINDOW,
                          (uint8_t)(window >> 24),
                          (uint8_t)(window >> 16),
                          (uint8_t)(window >> 8),
                          (uint8_t)window};
    return send_all(fd, PREFACE, sizeof PREFACE - 1) &&
           send_frame(fd, FRAME_SETTINGS, 0, 0, setting, sizeof setting);
}

static size_t put_text(uint8_t *at, const char *text)
{
    size_t len = strnlen(text, 126);
    at[0] = (uint8_t)len;
    memcpy(at + 1, text, len);
    return len + 1;
}

bool dt_rawpeer_open(int fd, const char *method)
{
    static const char *const fields[][2] = {{"te", "trailers"},
                                            {"content-type", "application/grpc"}};
    uint8_t block[HEADERS_MAX];
    size_t len = 0;
    block[len++] = HPACK_METHOD_POST;
    block[len++] = HPACK_SCHEME_HTTP;
    block[len++] = HPACK_NAME_PATH;
    len += put_text(block + len, method);
    block[len++] = HPACK_NAME_AUTHORITY;
    len += put_text(block + len, "localhost");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        block[len++] = 0;
        len += put_text(block + len, fields[i][0]);
        len += put_text(block + len, fields[i][1]);
    }
    return send_frame(fd, FRAME_HEADERS, END_HEADERS, 1, block, (uint32_t)len);
}

bool dt_rawpeer_message(int fd, const void *data, uint32_t size, uint32_t claimed)
{
    uint8_t *frame = malloc((size_t)size + 5);
    bool ok;
    if (!frame)
        dt_test_die("out of memory");
    frame[0] = 0;
    frame[1] = (uint8_t)(claimed >> 24);
    frame[2] = (uint8_t)(claimed >> 16);
    frame[3] = (uint8_t)(claimed >> 8);
    frame[4] = (uint8_t)claimed;
    if (size)
        memcpy(frame + 5, data, size);
    ok = send_frame(fd, FRAME_DATA, 0, 1, frame, size + 5);
    free(frame);
    return ok;
}

bool dt_rawpeer_wait_closed(int fd, int64_t patience_ms)
{
    int64_t deadline = dt_test_now_ms() + patience_ms;
    char dropped[4096];
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - dt_test_now_ms();
        if (left <= 0)
            return false;
        if (poll(&poll_fd, 1, (int)left) > 0 && recv(fd, dropped, sizeof dropped, 0) <= 0)
            return true;
    }
}
