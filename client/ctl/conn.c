#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "pki/pki.h"

#define SERVICE "/dtorch.v1.Admin/"

/* ---- addresses ---- */

static dt_status_t add_address(dt_ctl_conn_t *conn, dt_arena_t *kept, const char *text,
                               dt_error_t *err)
{
    if (conn->address_count == DT_CTL_ADDRESS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "more than %d controller addresses",
                       DT_CTL_ADDRESS_MAX);
    const char *address = dt_ctl_copy(kept, text, strlen(text));
    const char *colon = strrchr(text, ':');
    bool is_path = text[0] == '/' || strncmp(text, "unix:", 5) == 0;
    bool is_bare_v6 = text[0] != '[' && colon && strchr(text, ':') != colon;
    if (is_bare_v6 && !is_path)
        address = dt_ctl_print(kept, "[%s]:" DT_CTL_PORT, text);
    else if (!is_path && (!colon || (text[0] == '[' && strchr(text, ']') > colon)))
        address = dt_ctl_print(kept, "%s:" DT_CTL_PORT, text);
    conn->addresses[conn->address_count++] = address;
    return DT_OK;
}

static dt_status_t add_hosts(dt_ctl_conn_t *conn, dt_arena_t *kept, const char *hosts,
                             dt_error_t *err)
{
    for (const char *at = hosts; *(at += strspn(at, ", ")) != '\0';) {
        size_t len = strcspn(at, ", ");
        DT_TRY(add_address(conn, kept, dt_ctl_copy(kept, at, len), err));
        at += len;
    }
    if (conn->address_count == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "-H names no controller");
    return DT_OK;
}

static dt_status_t read_pem(const dt_conf_t *conf, const char *key, char **ret_text,
                            dt_error_t *err)
{
    const char *path = dt_conf_str(conf, key);
    if (*path == '\0')
        return DT_OK;
    return dt_pki_read_file(path, ret_text, err);
}

static dt_status_t load_tls(dt_ctl_conn_t *conn, dt_error_t *err)
{
    DT_TRY(read_pem(conn->conf, "CertificateAuthority", &conn->ca, err));
    if (!conn->ca)
        return DT_OK;
    DT_TRY(read_pem(conn->conf, "Certificate", &conn->certificate, err));
    DT_TRY(read_pem(conn->conf, "Key", &conn->key, err));
    if (!conn->certificate != !conn->key)
        return dt_conf_fail(conn->conf, conn->key ? "Key" : "Certificate", err,
                            "Certificate= and Key= belong together");
    conn->tls = (dt_rpc_tls_t){conn->ca, conn->certificate, conn->key};
    conn->has_tls = true;
    return DT_OK;
}

static bool needs_tls(const dt_ctl_conn_t *conn)
{
    for (size_t i = 0; i < conn->address_count; i++)
        if (conn->addresses[i][0] != '/' && strncmp(conn->addresses[i], "unix:", 5) != 0)
            return true;
    return false;
}

dt_status_t dt_ctl_conn_open(dt_ctl_conn_t *conn, dt_arena_t *kept, const char *hosts,
                             const char *config_path, dt_error_t *err)
{
    dt_conf_sources_t sources = {.config_path = config_path};
    if (conn->conf)
        return DT_OK;
    DT_TRY(dt_conf_load(dt_conf_table_client(), &sources, &conn->conf, err));
    const dt_strv_t *addresses = dt_conf_list(conn->conf, "Address");
    /* A socket that somebody named is for people, an address for programs too: who has set both, as
     * in a shell that runs programs, wants to administrate. */
    bool is_local = !dt_conf_is_default(conn->conf, "AdminSocket");
    if (hosts)
        DT_TRY(add_hosts(conn, kept, hosts, err));
    for (size_t i = 0; !hosts && !is_local && i < addresses->count; i++)
        DT_TRY(add_address(conn, kept, addresses->items[i], err));
    if (conn->address_count == 0)
        DT_TRY(add_address(conn, kept, dt_conf_str(conn->conf, "AdminSocket"), err));
    return needs_tls(conn) ? load_tls(conn, err) : DT_OK;
}

void dt_ctl_conn_fini(dt_ctl_conn_t *conn)
{
    dt_conf_free(conn->conf);
    free(conn->ca);
    free(conn->certificate);
    dt_pki_key_free(conn->key);
    *conn = (dt_ctl_conn_t){0};
}

const char *dt_ctl_conn_address(const dt_ctl_conn_t *conn)
{
    return conn->address_count > 0 ? conn->addresses[conn->current] : "";
}

/* ---- calls ---- */

/* Why a unix socket cannot be used, by trying: gRPC's own texts do not say. */
static dt_status_t probe_unix(const char *address, dt_error_t *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : address;
    if (path[0] != '/')
        return DT_OK;
    if (strlen(path) >= sizeof to.sun_path)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the path is longer than %zu bytes",
                       sizeof to.sun_path - 1);
    memcpy(to.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return DT_OK; /* gRPC will say what is wrong */
    int rc = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    (void)close(fd);
    switch (rc) {
    case ENOENT:
    case ENOTDIR:
        return dt_fail(err, DT_ERR_PEER, "errno", rc,
                       "no such socket; is dtorch-controllerd running on this machine?");
    case ECONNREFUSED:
        return dt_fail(err, DT_ERR_PEER, "errno", rc,
                       "nobody listens; dtorch-controllerd is not running");
    case EACCES:
    case EPERM:
        return dt_fail(err, DT_ERR_DENIED, "errno", rc,
                       "permission denied; be root or in the group dtorch-admin");
    default:
        return DT_OK;
    }
}

/* Whether an error means that no controller was reached, so that the next address is worth a try.
 * A controller's own answer counts as reached. gRPC has one code for both (UNAVAILABLE), so its
 * client's own texts tell them apart; a mistake costs one try more, or exit code 75 for 69. */
static bool is_unreached(const dt_error_t *error)
{
    static const char *const texts[] = {"failed to connect", "resolution", "ocket closed",
                                        "onnection reset",   "address",    "andshake",
                                        "recvmsg",           "GOAWAY",     "transport"};
    if (error->code == DT_ERR_PEER || error->code == DT_ERR_TIMEOUT ||
        strcmp(error->source ? error->source : "", "errno") == 0)
        return true;
    for (size_t i = 0; error->code == DT_ERR_AGAIN && i < sizeof texts / sizeof texts[0]; i++)
        if (strstr(error->text, texts[i]))
            return true;
    return false;
}

/* The end of gRPC's text, which says what happened. */
static const char *cause_of(const dt_error_t *error)
{
    static const char *const prefixes[] = {"last error: ", "UNKNOWN: ", "UNAVAILABLE: "};
    const char *text = error->text;
    if (error->code == DT_ERR_TIMEOUT)
        return DT_CTL_LATE;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const char *at = strstr(text, prefixes[i]);
        if (at && (i == 0 || at == text))
            text = at + strlen(prefixes[i]);
    }
    return text;
}

dt_status_t dt_ctl_unpack(dt_arena_t *pool, const ProtobufCMessageDescriptor *type,
                          const uint8_t *data, size_t size, ProtobufCMessage **ret_message,
                          dt_error_t *err)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, pool};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, data);
    if (!message)
        return dt_fail(err, DT_ERR_INTERNAL, "wire", 0, "the controller's answer is not a %s",
                       type->short_name);
    *ret_message = message;
    return DT_OK;
}

static const uint8_t *pack(dt_arena_t *pool, const ProtobufCMessage *message, size_t *ret_size)
{
    *ret_size = protobuf_c_message_get_packed_size(message);
    uint8_t *data = dt_ctl_alloc(pool, *ret_size + 1, 1);
    (void)protobuf_c_message_pack(message, data);
    return data;
}

static dt_status_t call_address(dt_ctl_conn_t *conn, dt_arena_t *pool, const char *address,
                                const dt_ctl_request_t *request, ProtobufCMessage **ret_reply,
                                dt_error_t *err)
{
    size_t size, reply_size;
    uint8_t *reply;
    const uint8_t *data = pack(pool, request->message, &size);
    const char *path = dt_ctl_print(pool, SERVICE "%s", request->method);
    DT_TRY(probe_unix(address, err));
    DT_TRY(dt_rpc_call_blocking(address, conn->has_tls ? &conn->tls : NULL, path, data, size,
                                request->timeout_ms, &reply, &reply_size, err));
    dt_status_t status =
        dt_ctl_unpack(pool, request->reply_type, reply, reply_size, ret_reply, err);
    free(reply);
    return status;
}

dt_status_t dt_ctl_conn_call(dt_ctl_conn_t *conn, dt_arena_t *pool, const dt_ctl_request_t *request,
                             ProtobufCMessage **ret_reply, const char **ret_tried, dt_error_t *err)
{
    const char *tried = "";
    dt_status_t worst = DT_ERR_PEER;
    *ret_tried = NULL;
    for (size_t i = 0; i < conn->address_count; i++) {
        size_t at = (conn->current + i) % conn->address_count;
        dt_error_t error = {.code = DT_OK};
        dt_status_t status =
            call_address(conn, pool, conn->addresses[at], request, ret_reply, &error);
        if (status == DT_OK || !is_unreached(&error)) {
            conn->current = at;
            conn->has_answered = true;
            if (status != DT_OK && err)
                *err = error;
            return status;
        }
        if (status == DT_ERR_DENIED)
            worst = DT_ERR_DENIED;
        bool may_want_tls = !conn->has_tls && conn->addresses[at][0] != '/' &&
                            strstr(error.text, "ocket closed") != NULL;
        tried = dt_ctl_print(
            pool, "%s  tried     %s: %s%s\n", tried, conn->addresses[at], cause_of(&error),
            may_want_tls ? " (for TLS set CertificateAuthority= in client.conf)" : "");
    }
    *ret_tried = tried;
    return dt_fail(err, worst, "dt", 0, "no controller answers");
}

dt_status_t dt_ctl_conn_follow(dt_ctl_conn_t *conn, dt_arena_t *pool, const char *method,
                               const ProtobufCMessage *request, dt_rpc_reader_t **ret_reader,
                               dt_error_t *err)
{
    size_t size;
    const uint8_t *data = pack(pool, request, &size);
    return dt_rpc_reader_open(dt_ctl_conn_address(conn), conn->has_tls ? &conn->tls : NULL,
                              dt_ctl_print(pool, SERVICE "%s", method), false, data, size,
                              DT_CTL_CALL_MS, ret_reader, err);
}
