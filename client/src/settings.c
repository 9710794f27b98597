/* Where a session's settings come from: options, client.conf(5), the environment. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "base/version.h"
#include "client.h"
#include "conf/conf.h"
#include "conf/env.h"

#define PEM_MAX            (1u << 20)
#define KEY_MAX            127u
#define FILE_KEY_MAX       4096u
#define CONNECT_TIMEOUT_MS 10000
#define PRIVATE_TIMEOUT_MS 60000 /* two daemons start, and a backend is loaded from a cold disk */
#define VDEVS_MAX          4096u
#define SAME_DEVICE_COUNT  8u /* that DtensorInSameDevice=1 stands for */
#define DEFAULT_PORT       "7700"

/* Options of an older program end earlier: what they lack is zero. */
static dt_status_t take_options(const dt_connect_options_t *from, dt_connect_options_t *ret_options,
                                dt_error_t *err)
{
    memset(ret_options, 0, sizeof *ret_options);
    if (!from)
        return DT_OK;
    if (from->struct_size < sizeof from->struct_size || from->struct_size > sizeof *ret_options)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)from->struct_size,
                       "dt_connect_options_t of %zu bytes, this library knows %zu",
                       from->struct_size, sizeof *ret_options);
    memcpy(ret_options, from, from->struct_size);
    if (ret_options->vdev_count > VDEVS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", ret_options->vdev_count,
                       "%u virtual devices, at most %u", ret_options->vdev_count, VDEVS_MAX);
    return DT_OK;
}

static dt_status_t read_fd(int fd, char *text, size_t size, size_t *ret_len)
{
    size_t len = 0;
    while (len < size) {
        ssize_t n = read(fd, text + len, size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DT_ERR_INVALID;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    *ret_len = len;
    return DT_OK;
}

static dt_status_t read_file(const char *path, size_t max, char **ret_text, dt_error_t *err)
{
    char *text = malloc(max + 1);
    size_t len = 0;
    if (!text)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for %s", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    dt_status_t status = fd < 0 ? DT_ERR_NOT_FOUND : read_fd(fd, text, max, &len);
    if (status != DT_OK)
        status = dt_fail(err, errno == EACCES ? DT_ERR_DENIED : status, "errno", errno, "%s: %s",
                         path, strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    if (status != DT_OK) {
        free(text);
        return status;
    }
    text[len] = '\0';
    *ret_text = text;
    return DT_OK;
}

/* "host" gets the usual port, "::1" its brackets too. */
static dt_status_t add_address(dt_client_settings_t *settings, const char *text, dt_error_t *err)
{
    const char *colon = strrchr(text, ':');
    bool is_path = text[0] == '/' || dt_str_has_prefix(text, "unix:");
    bool is_bare_v6 = text[0] != '[' && colon && strchr(text, ':') != colon;
    bool has_port = colon && (text[0] != '[' || strchr(text, ']') < colon);
    size_t size = strlen(text) + sizeof "[]:" DEFAULT_PORT;
    char *address = malloc(size);
    if (!address)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an address");
    if (settings->address_count == DT_CLIENT_ADDRESSES_MAX) {
        free(address);
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "more than %u addresses",
                       DT_CLIENT_ADDRESSES_MAX);
    }
    (void)dt_str_copy(address, size, !is_path && is_bare_v6 ? "[" : "");
    size_t at = strlen(address);
    (void)dt_str_copy(address + at, size - at, text);
    at += strlen(text);
    if (!is_path && is_bare_v6)
        (void)dt_str_copy(address + at, size - at, "]:" DEFAULT_PORT);
    else if (!is_path && !has_port)
        (void)dt_str_copy(address + at, size - at, ":" DEFAULT_PORT);
    settings->addresses[settings->address_count++] = address;
    return DT_OK;
}

static dt_status_t find_addresses(dt_client_settings_t *settings,
                                  const dt_connect_options_t *options, const dt_conf_t *conf,
                                  dt_error_t *err)
{
    const dt_strv_t *list = dt_conf_list(conf, "Address");
    if (options->flags & DT_CONNECT_PRIVATE) {
        settings->is_private = true;
        return DT_OK;
    }
    if (options->address)
        return add_address(settings, options->address, err);
    for (size_t i = 0; i < list->count; i++)
        DT_TRY(add_address(settings, list->items[i], err));
    settings->is_private = list->count == 0;
    return DT_OK;
}

static bool is_all_unix(const dt_client_settings_t *settings)
{
    for (size_t i = 0; i < settings->address_count; i++)
        if (settings->addresses[i][0] != '/' && !dt_str_has_prefix(settings->addresses[i], "unix:"))
            return false;
    return true;
}

static dt_status_t read_pem(const char *option, const dt_conf_t *conf, const char *key,
                            char **ret_text, dt_error_t *err)
{
    const char *path = option ? option : dt_conf_str(conf, key);
    return *path ? read_file(path, PEM_MAX, ret_text, err) : DT_OK;
}

static dt_status_t find_tls(dt_client_settings_t *settings, const dt_connect_options_t *options,
                            const dt_conf_t *conf, dt_error_t *err)
{
    if (is_all_unix(settings))
        return DT_OK;
    DT_TRY(
        read_pem(options->certificate_authority, conf, "CertificateAuthority", &settings->ca, err));
    if (!settings->ca)
        return DT_OK;
    /* A key says who the program is; client.conf's certificate is often for administrators only. */
    if (!settings->api_key || options->certificate) {
        DT_TRY(read_pem(options->certificate, conf, "Certificate", &settings->certificate, err));
        DT_TRY(read_pem(options->key, conf, "Key", &settings->key, err));
    }
    if (!settings->certificate != !settings->key)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "a certificate and its key belong together");
    settings->tls = (dt_rpc_tls_t){settings->ca, settings->certificate, settings->key};
    settings->has_tls = true;
    return DT_OK;
}

/* Loopback without TLS, and what a key is not needed for. */
static bool is_here(const char *address)
{
    static const char *const hosts[] = {"127.", "localhost:", "[::1]:"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (dt_str_has_prefix(address, hosts[i]))
            return true;
    return address[0] == '/' || dt_str_has_prefix(address, "unix:");
}

/* The key without the white space around it. */
static dt_status_t take_key(dt_client_settings_t *settings, char *text, const char *where,
                            dt_error_t *err)
{
    size_t len = strlen(text), skip = strspn(text, " \t\r\n");
    while (len > skip && strchr(" \t\r\n", text[len - 1]))
        text[--len] = '\0';
    settings->api_key = strdup(text + skip);
    if (!settings->api_key)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an API key");
    if (!dt_str_has_prefix(settings->api_key, "dtk_") || len - skip > KEY_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "%s is no API key: one begins with dtk_ and comes from dtorchctl key create",
                       where);
    return DT_OK;
}

static dt_status_t read_key(dt_client_settings_t *settings, const char *path, dt_error_t *err)
{
    char *text = NULL;
    DT_TRY(read_file(path, FILE_KEY_MAX, &text, err));
    dt_status_t status = take_key(settings, text, path, err);
    explicit_bzero(text, strlen(text));
    free(text);
    return status;
}

static dt_status_t find_key(dt_client_settings_t *settings, const dt_connect_options_t *options,
                            const dt_conf_t *conf, dt_error_t *err)
{
    char text[KEY_MAX + 64];
    const char *given = options->api_key ? options->api_key : dt_conf_str(conf, "ApiKey");
    if (!options->api_key && !*given && *dt_conf_str(conf, "ApiKeyFile"))
        DT_TRY(read_key(settings, dt_conf_str(conf, "ApiKeyFile"), err));
    if (*given) {
        bool fits = dt_str_copy(text, sizeof text, given);
        DT_TRY(take_key(settings, fits ? text : (char[]){""},
                        options->api_key ? "api_key" : "ApiKey", err));
        explicit_bzero(text, sizeof text);
    }
    return DT_OK;
}

static dt_status_t check_key(const dt_client_settings_t *settings, dt_error_t *err)
{
    for (size_t i = 0; settings->api_key && !settings->has_tls && i < settings->address_count; i++)
        if (!is_here(settings->addresses[i]))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "an API key is not sent to %s without TLS: set CertificateAuthority= in "
                           "client.conf (or DTORCH_CERTIFICATE_AUTHORITY, "
                           "dt_connect_options_t.certificate_authority) to the cluster's CA",
                           settings->addresses[i]);
    return DT_OK;
}

static dt_status_t find_record_file(dt_client_settings_t *settings,
                                    const dt_connect_options_t *options, const dt_conf_t *conf,
                                    dt_error_t *err)
{
    const char *path = options->record_file ? options->record_file : dt_conf_str(conf, "Record");
    if (*path && !(settings->record_file = strdup(path)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a path");
    return DT_OK;
}

static dt_status_t take_text(char *to, size_t size, const char *from, const char *what,
                             dt_error_t *err)
{
    if (!from || dt_str_copy(to, size, from))
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s is longer than %zu bytes", what, size - 1);
}

static dt_status_t take_texts(dt_client_settings_t *settings, const dt_connect_options_t *options,
                              dt_error_t *err)
{
    char *boot_id = NULL;
    DT_TRY(take_text(settings->device_kind, sizeof settings->device_kind, options->device_kind,
                     "device_kind", err));
    DT_TRY(
        take_text(settings->backend, sizeof settings->backend, options->backend, "backend", err));
    (void)dt_str_copy(settings->program, sizeof settings->program,
                      options->program ? options->program : program_invocation_short_name);
    (void)dt_str_copy(settings->build, sizeof settings->build, dt_version());
    if (read_file("/proc/sys/kernel/random/boot_id", 128, &boot_id, NULL) == DT_OK)
        (void)dt_str_copy(settings->host, 36 + 1, boot_id);
    free(boot_id);
    if (options->bin_dir && !(settings->bin_dir = strdup(options->bin_dir)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a path");
    if (options->private_devices && !(settings->private_devices = strdup(options->private_devices)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a device list");
    return DT_OK;
}

static void find_devices(dt_client_settings_t *settings, const dt_connect_options_t *options,
                         const dt_conf_t *conf)
{
    uint32_t same = (uint32_t)dt_conf_int(conf, "DtensorInSameDevice");
    uint32_t least = same == 1 ? SAME_DEVICE_COUNT : same;
    settings->vdev_count =
        options->vdev_count ? options->vdev_count : (uint32_t)dt_conf_int(conf, "Devices");
    if (settings->vdev_count < least)
        settings->vdev_count = least;
    settings->is_one_device = same > 0;
}

static int64_t connect_timeout_ms(const dt_client_settings_t *settings,
                                  const dt_connect_options_t *options)
{
    if (options->connect_timeout_ms > 0)
        return options->connect_timeout_ms;
    return settings->is_private ? PRIVATE_TIMEOUT_MS : CONNECT_TIMEOUT_MS;
}

dt_status_t dt_client_settings(dt_client_settings_t *settings, const dt_connect_options_t *given,
                               dt_error_t *err)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;
    dt_connect_options_t options;
    DT_TRY(take_options(given, &options, err));
    dt_conf_sources_t sources = {.config_path = options.config_file};
    DT_TRY(dt_conf_load(dt_conf_table_client(), &sources, &conf, err));
    find_devices(settings, &options, conf);
    settings->memory_limit_bytes = options.memory_limit_bytes;
    settings->linger_ns = settings->linger_max_ns = options.linger_us * DT_CLOCK_US_NS;
    if (!options.linger_us) {
        settings->linger_ns = DT_CLIENT_LINGER_NS;
        settings->linger_max_ns = DT_CLIENT_LINGER_MAX_NS;
    }
    DT_TRY(find_addresses(settings, &options, conf, err));
    settings->connect_timeout_ns = connect_timeout_ms(settings, &options) * DT_CLOCK_MS_NS;
    DT_TRY(find_key(settings, &options, conf, err));
    DT_TRY(find_tls(settings, &options, conf, err));
    DT_TRY(check_key(settings, err));
    DT_TRY(find_record_file(settings, &options, conf, err));
    settings->move_warning_percent = (uint32_t)dt_conf_int(conf, "MoveWarning");
    settings->uses_direct = !dt_str_is_equal(dt_conf_enum(conf, "DataPath"), "relay");
    settings->uses_window = dt_str_is_equal(dt_conf_enum(conf, "DataPath"), "auto");
    return take_texts(settings, &options, err);
}

void dt_client_settings_fini(dt_client_settings_t *settings)
{
    for (size_t i = 0; i < settings->address_count; i++)
        free(settings->addresses[i]);
    free(settings->ca);
    free(settings->certificate);
    if (settings->key)
        explicit_bzero(settings->key, strlen(settings->key));
    free(settings->key);
    if (settings->api_key)
        explicit_bzero(settings->api_key, strlen(settings->api_key));
    free(settings->api_key);
    free(settings->bin_dir);
    free(settings->private_devices);
    free(settings->record_file);
    *settings = (dt_client_settings_t){0};
}
