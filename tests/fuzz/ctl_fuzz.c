/* What dtorchctl reads of people and of peers: command lines, filters, times, name lists, and texts
 * that go to a terminal. The input is lines; each is read as all of these. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/cli.h"
#include "client/ctl/filter.h"
#include "client/ctl/hosts.h"
#include "client/ctl/text.h"

#define FUZZ_SIZE_MAX 4096
#define FUZZ_WORD_MAX 32
#define FUZZ_NOW_MS   INT64_C(1796047331500)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_command(dt_arena_t *pool, const char *line)
{
    char *argv[FUZZ_WORD_MAX + 1] = {dt_ctl_copy(pool, "dtorchctl", 9)}, *rest;
    char *text = dt_ctl_copy(pool, line, strlen(line));
    int argc = 1;
    dt_ctl_cli_t cli;
    dt_error_t error;
    for (char *word = strtok_r(text, " ", &rest); word && argc < FUZZ_WORD_MAX;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    dt_status_t status = dt_ctl_cli_parse(pool, argc, argv, &cli, &error);
    bool has_verb =
        cli.verb || cli.settings[DT_CTL_OPT_HELP].is_set || cli.settings[DT_CTL_OPT_VERSION].is_set;
    dt_check(status != DT_OK || has_verb);
}

/* A value of each kind against each term. */
static void read_filter(dt_arena_t *pool, const char *line)
{
    const dt_ctl_value_t values[] = {dt_ctl_absent(), dt_ctl_text("gpu001"),
                                     dt_ctl_int(-5, DT_CTL_MS), dt_ctl_uint(1 << 20, DT_CTL_BYTES),
                                     dt_ctl_int(FUZZ_NOW_MS, DT_CTL_WALL_MS)};
    dt_ctl_filter_t filter;
    dt_error_t error;
    bool holds;
    if (dt_ctl_filter_parse(pool, line, &filter, &error) != DT_OK)
        return;
    for (size_t i = 0; i < filter.count; i++)
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++)
            if (dt_ctl_term_holds(pool, &filter.terms[i], &values[j], FUZZ_NOW_MS, &holds,
                                  &error) != DT_OK)
                dt_check(error.code == DT_ERR_INVALID);
}

static void read_text(dt_arena_t *pool, const char *line)
{
    const char *safe = dt_ctl_safe(pool, line);
    const char *cut = dt_ctl_ellipsis(pool, safe, 10);
    uint32_t code;
    dt_check(dt_ctl_columns(cut) <= 10);
    for (size_t at = 0, len = strlen(safe); at < len;) {
        at += dt_ctl_utf8_next(safe + at, len - at, &code);
        dt_check(!dt_ctl_is_obeyed(code));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_arena_t pool;
    dt_error_t error;
    int64_t time_ms;
    dt_ctl_hosts_t hosts = {0};
    if (size > FUZZ_SIZE_MAX)
        return 0;
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
    char *text = dt_ctl_copy(&pool, (const char *)data, size), *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        read_command(&pool, line);
        read_filter(&pool, line);
        read_text(&pool, line);
        if (dt_ctl_hosts_add(&pool, line, &hosts, &error) == DT_OK)
            dt_check(hosts.count <= DT_CTL_HOST_MAX);
        if (dt_ctl_parse_time(line, FUZZ_NOW_MS, &time_ms, &error) != DT_OK)
            dt_check(error.code == DT_ERR_INVALID);
    }
    dt_arena_fini(&pool);
    return 0;
}
