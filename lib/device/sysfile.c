/* Reading small kernel files, and the few text helpers of this folder. */
#include "device/sysfile.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/wire.h"

dt_status_t dt_sysfile_read(const char *root, const char *path, char *ret_text, size_t size)
{
    char full[DT_SYSFILE_PATH_MAX];
    size_t used = 0;
    ssize_t got = 0;
    int fd;
    if ((size_t)snprintf(full, sizeof full, "%s%s", root, path) >= sizeof full)
        return DT_ERR_LIMIT;
    fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return DT_ERR_NOT_FOUND;
    while (used < size - 1) {
        got = read(fd, ret_text + used, size - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    (void)close(fd);
    if (got < 0)
        return DT_ERR_NOT_FOUND;
    if (used > 0 && ret_text[used - 1] == '\n')
        used--;
    ret_text[used] = '\0';
    return DT_OK;
}

dt_status_t dt_sysfile_read_int(const char *root, const char *path, int64_t *ret_value)
{
    char text[32], *end;
    long long value;
    DT_TRY(dt_sysfile_read(root, path, text, sizeof text));
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return DT_ERR_INVALID;
    *ret_value = value;
    return DT_OK;
}

dt_status_t dt_sysfile_field(const char *text, const char *key, char *ret_value, size_t size)
{
    size_t key_len = strlen(key), len;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += line != text;
        if (strncmp(line, key, key_len) != 0)
            continue;
        const char *value = line + key_len;
        if (!strchr(" \t:", *value) || *value == '\0')
            continue;
        value += strspn(value, " \t:");
        len = strcspn(value, "\n");
        (void)snprintf(ret_value, size, "%.*s", (int)len, value);
        return DT_OK;
    }
    return DT_ERR_NOT_FOUND;
}

void dt_sysfile_list(const char *text, void (*each)(int32_t number, void *arg), void *arg)
{
    const char *at = text;
    while (isdigit((unsigned char)*at)) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-' && isdigit((unsigned char)end[1]))
            last = strtoul(end + 1, &end, 10);
        for (unsigned long n = first; n <= last && n <= UINT16_MAX; n++)
            each((int32_t)n, arg);
        if (*end != ',')
            return;
        at = end + 1;
    }
}

const char *dt_sysfile_word(char **at)
{
    char *word = *at + strspn(*at, " \t");
    char *end = word + strcspn(word, " \t");
    *at = end + strspn(end, " \t");
    *end = '\0';
    return word;
}

static dt_status_t parse_digits(const char *text, char **ret_end, uint64_t *ret_value)
{
    if (!isdigit((unsigned char)*text))
        return DT_ERR_INVALID;
    errno = 0;
    *ret_value = strtoull(text, ret_end, 10);
    return errno == 0 ? DT_OK : DT_ERR_INVALID;
}

dt_status_t dt_sysfile_parse_uint(const char *text, uint64_t max, uint64_t *ret_value)
{
    uint64_t value;
    char *end;
    DT_TRY(parse_digits(text, &end, &value));
    if (*end != '\0' || value > max)
        return DT_ERR_INVALID;
    *ret_value = value;
    return DT_OK;
}

dt_status_t dt_sysfile_parse_size(const char *text, uint64_t *ret_bytes)
{
    static const char units[] = "KMGT";
    uint64_t value;
    char *end;
    DT_TRY(parse_digits(text, &end, &value));
    if (*end != '\0') {
        const char *unit = strchr(units, *end);
        if (!unit || (strcmp(end + 1, "") != 0 && strcmp(end + 1, "iB") != 0))
            return DT_ERR_INVALID;
        if (__builtin_mul_overflow(value, UINT64_C(1) << (10 * (unit - units + 1)), &value))
            return DT_ERR_INVALID;
    }
    *ret_bytes = value;
    return DT_OK;
}

/* FNV-1a over the text and the number, with a final mix so that close inputs differ in all bits. */
static uint64_t hash(uint64_t start, const char *text, uint64_t number)
{
    uint64_t h = start;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    h = (h ^ number) * UINT64_C(0x100000001b3);
    h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 31);
}

void dt_sysfile_uuid(const char *prefix, const char *seed, int64_t number, char *ret_uuid,
                     size_t size)
{
    uint64_t base = hash(UINT64_C(0xcbf29ce484222325), prefix, 0);
    uint64_t a = hash(base, seed, (uint64_t)number);
    uint64_t b = hash(~base, seed, (uint64_t)number);
    (void)snprintf(ret_uuid, size, "%s-%08x-%04x-%04x-%04x-%012" PRIx64, prefix,
                   (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff, (unsigned)a & 0xffff,
                   (unsigned)(b >> 48), b & UINT64_C(0xffffffffffff));
}

void dt_sysfile_clean(char *text, size_t size, bool is_word)
{
    char raw[DT_SYSFILE_TEXT_MAX];
    dt_check(size <= sizeof raw);
    text[size - 1] = '\0';
    memcpy(raw, text, strlen(text) + 1);
    dt_wire_text_copy(text, size, raw);
    for (char *at = text; is_word && *at; at++)
        if (*at == ' ')
            *at = '_';
}

const char *dt_sysfile_errno_text(int number)
{
    const char *text = strerrordesc_np(number);
    return text ? text : "unknown error";
}
