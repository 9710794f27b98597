/* A value's text: parsing, bounds, shape, canonical form. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "conf/conf_internal.h"

#define VALUE_HOST_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
#define VALUE_V6_CHARS   VALUE_HOST_CHARS ":%" /* with a zone: fe80::1%eth0 */

static dt_status_t refuse(char *reason, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);

static dt_status_t refuse(char *reason, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(reason, DT_CONF_REASON_MAX, fmt, args);
    va_end(args);
    return DT_ERR_INVALID;
}

static void number_text(dt_conf_type_t type, int64_t value, char text[DT_STR_UNIT_TEXT_SIZE])
{
    if (type == DT_CONF_DURATION)
        dt_str_format_duration(value, text);
    else if (type == DT_CONF_SIZE)
        dt_str_format_size(value, text);
    else
        (void)snprintf(text, DT_STR_UNIT_TEXT_SIZE, "%" PRId64, value);
}

bool dt_conf_is_counted(const dt_conf_option_t *option)
{
    return option->type == DT_CONF_STRING || option->type == DT_CONF_PATH ||
           option->type == DT_CONF_LIST;
}

void dt_conf_bounds_text(const dt_conf_option_t *option, char *text, size_t size)
{
    char min[DT_STR_UNIT_TEXT_SIZE];
    char max[DT_STR_UNIT_TEXT_SIZE];

    text[0] = '\0';
    if (option->type == DT_CONF_ENUM) {
        (void)snprintf(text, size, "%s", option->choices);
        return;
    }
    if (option->type == DT_CONF_BOOL || (!option->min && !option->max))
        return;
    number_text(option->type, option->min, min);
    number_text(option->type, option->max, max);
    if (dt_conf_is_counted(option))
        (void)snprintf(text, size, "at most %s %s", max,
                       option->type == DT_CONF_LIST ? "words" : "bytes");
    else
        (void)snprintf(text, size, "%s..%s", min, max);
}

static dt_status_t check_bounds(const dt_conf_option_t *option, int64_t value, char *reason)
{
    char bounds[2 * DT_STR_UNIT_TEXT_SIZE + 16];

    if ((!option->min && !option->max) || (value >= option->min && value <= option->max))
        return DT_OK;
    if (value < option->min && dt_conf_is_counted(option))
        return refuse(reason, "needs at least %" PRId64 " %s", option->min,
                      option->type == DT_CONF_LIST ? "words" : "bytes");
    dt_conf_bounds_text(option, bounds, sizeof bounds);
    return refuse(reason, "%s%s", dt_conf_is_counted(option) ? "" : "not in ", bounds);
}

static dt_status_t parse_number(const dt_conf_option_t *option, const char *text, int64_t *ret_num,
                                char *reason)
{
    bool truth = false;
    dt_status_t status = DT_ERR_INVALID;
    const char *wanted = "";

    switch (option->type) {
    case DT_CONF_BOOL:
        wanted = "yes or no";
        status = dt_str_to_bool(text, &truth);
        *ret_num = truth;
        break;
    case DT_CONF_DURATION:
        wanted = "a duration with its unit, such as 250ms or 1min 30s";
        status = dt_str_to_duration_ns(text, ret_num);
        break;
    case DT_CONF_SIZE:
        wanted = "a size with its unit, such as 64MiB";
        status = dt_str_to_size(text, ret_num);
        break;
    default:
        wanted = "a whole number";
        status = dt_str_to_i64(text, ret_num);
        break;
    }
    if (status == DT_ERR_LIMIT)
        return refuse(reason, "far too large");
    if (status != DT_OK)
        return refuse(reason, "not %s", wanted);
    return option->type == DT_CONF_BOOL ? DT_OK : check_bounds(option, *ret_num, reason);
}

static dt_status_t check_path(const char *text, char *reason)
{
    return text[0] == '/' ? DT_OK : refuse(reason, "not an absolute path");
}

static dt_status_t check_port(const char *text, bool may_be_zero, char *reason)
{
    int64_t port;
    if (dt_str_to_i64(text, &port) != DT_OK || text[0] == '-' || text[0] == '+')
        return refuse(reason, "\"%.32s\" is not a port number", text);
    if (port < (may_be_zero ? 0 : 1) || port > 65535)
        return refuse(reason, "port %.32s is not in %d..65535", text, may_be_zero ? 0 : 1);
    return DT_OK;
}

/* Check HOST[:PORT], [V6][:PORT] or a socket's path. Sets *ret_has_port. */
static dt_status_t check_address(const char *word, bool is_listen, bool *ret_has_port, char *reason)
{
    *ret_has_port = true;
    if (word[0] == '/') {
        if (strlen(word) > DT_CONF_SUN_PATH)
            return refuse(reason, "the path of a unix socket has at most %d bytes, this has %zu",
                          DT_CONF_SUN_PATH, strlen(word));
        return DT_OK;
    }
    bool is_v6 = word[0] == '[';
    const char *host = word + is_v6;
    size_t host_len = strspn(host, is_v6 ? VALUE_V6_CHARS : VALUE_HOST_CHARS);
    const char *rest = host + host_len;
    if (host_len > DT_CONF_HOST_MAX)
        return refuse(reason, "a host's name has at most %d bytes", DT_CONF_HOST_MAX);
    if (!host_len || (is_v6 && (*rest != ']' || !memchr(host, ':', host_len))))
        return refuse(reason, "\"%.64s\" is not a unix socket's path, HOST:PORT or [IPV6]:PORT",
                      word);
    rest += is_v6;
    if (!*rest && !is_listen) {
        *ret_has_port = false;
        return DT_OK;
    }
    if (*rest == ':' && strchr(rest + 1, ':'))
        return refuse(reason, "\"%.64s\": an IPv6 address stands in brackets: [IPV6]:PORT", word);
    if (*rest != ':')
        return refuse(reason, "\"%.64s\" is not a unix socket's path, HOST:PORT or [IPV6]:PORT",
                      word);
    return check_port(rest + 1, is_listen, reason);
}

/* Check one word and give its canonical form. Ownership: gives *ret_word. */
static dt_status_t shape_word(const dt_conf_option_t *option, const char *word, char **ret_word,
                              char *reason)
{
    bool has_port = true;

    switch (option->shape) {
    case DT_CONF_SHAPE_ANY:
        break;
    case DT_CONF_SHAPE_NAME:
        if (!dt_str_is_name(word))
            return refuse(reason,
                          "\"%.64s\" is not a name: 1..63 of a-z 0-9 -, no dash at the ends", word);
        break;
    case DT_CONF_SHAPE_PATHS:
        DT_TRY(check_path(word, reason));
        break;
    case DT_CONF_SHAPE_HTTP:
        if (word[0] == '/')
            return refuse(reason, "not HOST:PORT, [IPV6]:PORT or none");
        __attribute__((fallthrough));
    case DT_CONF_SHAPE_LISTEN:
        if (strcmp(word, "none") != 0)
            DT_TRY(check_address(word, true, &has_port, reason));
        break;
    case DT_CONF_SHAPE_ADDRESS:
        DT_TRY(check_address(word, false, &has_port, reason));
        break;
    }
    if (has_port)
        *ret_word = strdup(word);
    else if (asprintf(ret_word, "%s:%d", word, DT_CONF_PORT) < 0)
        *ret_word = NULL;
    return *ret_word ? DT_OK : DT_ERR_NOMEM;
}

/* Append one word of a list, and its text to `joined`. */
static dt_status_t add_word(const dt_conf_option_t *option, const char *text,
                            dt_conf_value_t *value, dt_buf_t *joined, char *reason)
{
    const char *space = value->list.count ? " " : "";
    char *word = NULL;
    DT_TRY(shape_word(option, text, &word, reason));
    dt_status_t status = dt_strv_append(&value->list, word);
    if (status == DT_OK)
        status = dt_buf_printf(joined, "%s%s", space, word);
    free(word);
    return status;
}

static dt_status_t parse_list(const dt_conf_option_t *option, const char *text,
                              dt_conf_value_t *value, char *reason)
{
    bool has_commas =
        option->shape == DT_CONF_SHAPE_ADDRESS || option->shape == DT_CONF_SHAPE_LISTEN;
    DT_CLEANUP(dt_strv_fini) dt_strv_t words = {0};
    DT_CLEANUP(dt_buf_fini) dt_buf_t joined;
    dt_buf_init(&joined, DT_CONF_TEXT_MAX);

    DT_TRY(dt_strv_split(&words, text, has_commas ? " \t," : " \t"));
    DT_TRY(check_bounds(option, (int64_t)words.count, reason));
    for (size_t i = 0; i < words.count; i++)
        DT_TRY(add_word(option, words.items[i], value, &joined, reason));
    return dt_buf_take_text(&joined, &value->text);
}

static dt_status_t parse_text(const dt_conf_option_t *option, const char *text,
                              dt_conf_value_t *value, char *reason)
{
    DT_TRY(check_bounds(option, (int64_t)strlen(text), reason));
    if (!*text) {
        value->text = strdup("");
        return value->text ? DT_OK : DT_ERR_NOMEM;
    }
    if (option->type == DT_CONF_PATH)
        DT_TRY(check_path(text, reason));
    return shape_word(option, text, &value->text, reason);
}

static dt_status_t parse_enum(const dt_conf_option_t *option, const char *text,
                              dt_conf_value_t *value, char *reason)
{
    DT_CLEANUP(dt_strv_fini) dt_strv_t choices = {0};

    DT_TRY(dt_strv_split(&choices, option->choices, " "));
    if (!dt_strv_has(&choices, text)) {
        const char *near = dt_nearest(text, (const char *const *)choices.items, choices.count);
        return refuse(reason, "not one of: %s%s%s%s", option->choices,
                      near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    value->text = strdup(text);
    return value->text ? DT_OK : DT_ERR_NOMEM;
}

static dt_status_t parse_any(const dt_conf_option_t *option, const char *text,
                             dt_conf_value_t *value, char *reason)
{
    char number[DT_STR_UNIT_TEXT_SIZE];

    switch (option->type) {
    case DT_CONF_STRING:
    case DT_CONF_PATH:
        return parse_text(option, text, value, reason);
    case DT_CONF_LIST:
        return parse_list(option, text, value, reason);
    case DT_CONF_ENUM:
        return parse_enum(option, text, value, reason);
    case DT_CONF_BOOL:
    case DT_CONF_INT:
    case DT_CONF_DURATION:
    case DT_CONF_SIZE:
        break;
    }
    DT_TRY(parse_number(option, text, &value->num, reason));
    number_text(option->type, value->num, number);
    value->text = strdup(option->type == DT_CONF_BOOL ? (value->num ? "yes" : "no") : number);
    return value->text ? DT_OK : DT_ERR_NOMEM;
}

/* Whether a text is UTF-8 and free of control bytes (a tab is fine). */
static bool is_clean(const char *text)
{
    for (const char *at = text; *at; at++)
        if (((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7f)
            return false;
    return dt_str_is_utf8(text, strlen(text));
}

dt_status_t dt_conf_value_parse(const dt_conf_option_t *option, const char *text,
                                dt_conf_value_t *ret_value, char reason[static DT_CONF_REASON_MAX])
{
    dt_conf_value_t value = {0};
    dt_status_t status;

    reason[0] = '\0';
    if (strlen(text) > DT_CONF_VALUE_MAX)
        status = refuse(reason, "longer than %d bytes", DT_CONF_VALUE_MAX);
    else if (!is_clean(text))
        status = refuse(reason, "holds control characters or invalid UTF-8");
    else
        status = parse_any(option, text, &value, reason);
    dt_check(status != DT_OK || value.text);
    /* The ports that are added to addresses must not make a value that no line could hold. */
    if (status == DT_OK && strlen(value.text) > DT_CONF_VALUE_MAX)
        status = refuse(reason, "longer than %d bytes", DT_CONF_VALUE_MAX);
    if (status != DT_OK)
        dt_conf_value_fini(&value);
    else
        *ret_value = value;
    return status;
}

void dt_conf_value_fini(dt_conf_value_t *value)
{
    free(value->text);
    free(value->origin);
    dt_strv_fini(&value->list);
    *value = (dt_conf_value_t){0};
}
