#include "hosts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 9 /* of a number in a range */

static dt_status_t add_name(dt_arena_t *pool, const char *name, size_t len, dt_ctl_hosts_t *hosts,
                            dt_error_t *err)
{
    if (!hosts->names)
        hosts->names = dt_ctl_alloc(pool, DT_CTL_HOST_MAX, sizeof *hosts->names);
    if (len == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "an empty name");
    for (size_t i = 0; i < hosts->count; i++)
        if (strlen(hosts->names[i]) == len && strncmp(hosts->names[i], name, len) == 0)
            return DT_OK;
    if (hosts->count == DT_CTL_HOST_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "more than %d names", DT_CTL_HOST_MAX);
    hosts->names[hosts->count++] = dt_ctl_copy(pool, name, len);
    return DT_OK;
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* Add prefix + number + suffix for every number of one bracket's content. */
static dt_status_t add_ranges(dt_arena_t *pool, const char *prefix, const char *inside,
                              const char *suffix, dt_ctl_hosts_t *hosts, dt_error_t *err)
{
    for (const char *at = inside;; at++) {
        size_t width = digits(at), last_width = width;
        long first = strtol(at, NULL, 10), last = first;
        const char *end = at + width;
        if (*end == '-') {
            last_width = digits(end + 1);
            last = strtol(end + 1, NULL, 10);
            end += 1 + last_width;
        }
        if (width == 0 || last_width == 0 || width > DIGITS_MAX || last_width > DIGITS_MAX ||
            last < first || (*end != ',' && *end != '\0'))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "%s[%s]%s: write a range like gpu[001-016,020]", prefix, inside, suffix);
        for (long number = first; number <= last; number++) {
            const char *name = dt_ctl_print(pool, "%s%0*ld%s", prefix, (int)width, number, suffix);
            DT_TRY(add_name(pool, name, strlen(name), hosts, err));
        }
        at = end;
        if (*at == '\0')
            return DT_OK;
    }
}

/* The end of one item: a comma outside brackets, or the end. */
static size_t item_length(const char *text)
{
    size_t len = 0;
    for (int depth = 0; text[len] != '\0' && (text[len] != ',' || depth > 0); len++)
        depth += (text[len] == '[') - (text[len] == ']');
    return len;
}

dt_status_t dt_ctl_hosts_add(dt_arena_t *pool, const char *text, dt_ctl_hosts_t *hosts,
                             dt_error_t *err)
{
    for (const char *at = text;; at++) {
        size_t len = item_length(at);
        char *item = dt_ctl_copy(pool, at, len), *open = strchr(item, '[');
        char *close = open ? strchr(open, ']') : NULL;
        if (!open) {
            DT_TRY(add_name(pool, item, len, hosts, err));
        } else if (!close || strchr(close, '[')) {
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: one pair of brackets in a name",
                           item);
        } else {
            *open = *close = '\0';
            DT_TRY(add_ranges(pool, item, open + 1, close + 1, hosts, err));
        }
        at += len;
        if (*at == '\0')
            return DT_OK;
    }
}

/* Where the final number of a name begins. */
static size_t number_at(const char *name)
{
    size_t at = strlen(name);
    while (at > 0 && isdigit((unsigned char)name[at - 1]))
        at--;
    return at;
}

bool dt_ctl_hosts_follow(const char *last, const char *next)
{
    size_t at = number_at(last), width = strlen(last) - at;
    if (width == 0 || width > DIGITS_MAX || number_at(next) != at || strncmp(last, next, at) != 0)
        return false;
    char wanted[24];
    (void)snprintf(wanted, sizeof wanted, "%0*ld", (int)width, strtol(last + at, NULL, 10) + 1);
    return strcmp(next + at, wanted) == 0;
}

const char *dt_ctl_hosts_range(dt_arena_t *pool, const char *first, const char *last)
{
    size_t at = number_at(first);
    if (strcmp(first, last) == 0)
        return first;
    return dt_ctl_print(pool, "%.*s[%s-%s]", (int)at, first, first + at, last + at);
}
