#include "cli.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/strings.h"

#define WORD_MAX 64 /* candidates for "did you mean" */

const dt_ctl_noun_t *dt_ctl_noun_find(const char *name)
{
    for (size_t i = 0; i < dt_ctl_noun_count; i++)
        if (strcmp(dt_ctl_nouns[i].name, name) == 0)
            return &dt_ctl_nouns[i];
    return NULL;
}

const dt_ctl_verb_t *dt_ctl_verb_find(const char *noun, const char *name)
{
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        if (strcmp(dt_ctl_verbs[i].noun, noun) == 0 && strcmp(dt_ctl_verbs[i].name, name) == 0)
            return &dt_ctl_verbs[i];
    return NULL;
}

dt_ctl_exit_t dt_ctl_exit_of(dt_status_t status)
{
    switch (status) {
    case DT_OK:
        return DT_CTL_EXIT_OK;
    case DT_ERR_INVALID:
        return DT_CTL_EXIT_DATA;
    case DT_ERR_NOT_FOUND:
        return DT_CTL_EXIT_NOT_FOUND;
    case DT_ERR_AGAIN:
    case DT_ERR_LIMIT:
    case DT_ERR_STOPPED:
        return DT_CTL_EXIT_AGAIN;
    case DT_ERR_TIMEOUT:
        return DT_CTL_EXIT_TIMEOUT;
    case DT_ERR_DENIED:
        return DT_CTL_EXIT_DENIED;
    case DT_ERR_PEER:
    case DT_ERR_LOST:
        return DT_CTL_EXIT_UNAVAILABLE;
    case DT_ERR_INTERNAL:
    case DT_ERR_NOMEM:
        return DT_CTL_EXIT_INTERNAL;
    default:
        return DT_CTL_EXIT_FAILED;
    }
}

/* ---- options ---- */

static dt_status_t unknown_option(const char *word, dt_error_t *err)
{
    const char *names[DT_CTL_OPT_COUNT];
    char given[64];
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++)
        names[i] = dt_ctl_options[i].name;
    (void)dt_str_copy(given, sizeof given, word + strspn(word, "-"));
    given[strcspn(given, "=")] = '\0';
    const char *nearest = dt_nearest(given, names, DT_CTL_OPT_COUNT);
    if (nearest)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "unknown option \"%s\"; did you mean --%s?",
                       word, nearest);
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "unknown option \"%s\"; dtorchctl --help lists them", word);
}

static dt_status_t wrong_value(const dt_ctl_option_t *option, const char *value, const char *wanted,
                               dt_error_t *err)
{
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "--%s: \"%s\" is not %s", option->name, value,
                   wanted);
}

static dt_status_t set_choice(const dt_ctl_option_t *option, const char *value,
                              dt_ctl_setting_t *setting, dt_error_t *err)
{
    const char *word = option->choices;
    size_t len = strlen(value);
    for (int64_t i = 0; *word != '\0'; i++) {
        size_t size = strcspn(word, " ");
        if (size == len && strncmp(word, value, len) == 0) {
            setting->number = i;
            return DT_OK;
        }
        word += size + strspn(word + size, " ");
    }
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "--%s: \"%s\" is not one of: %s", option->name,
                   value, option->choices);
}

static dt_status_t set_option(dt_ctl_option_id_t id, const char *value, dt_ctl_cli_t *cli,
                              dt_error_t *err)
{
    const dt_ctl_option_t *option = &dt_ctl_options[id];
    dt_ctl_setting_t *setting = &cli->settings[id];
    *setting = (dt_ctl_setting_t){.is_set = true, .text = value};
    if (!value)
        return DT_OK;
    switch (option->type) {
    case DT_CTL_TYPE_COUNT:
        if (dt_str_to_i64(value, &setting->number) != DT_OK || setting->number < 1)
            return wrong_value(option, value, "a number from 1 on", err);
        return DT_OK;
    case DT_CTL_TYPE_DURATION: {
        double seconds;
        int used = 0;
        if (dt_str_to_duration_ns(value, &setting->number) == DT_OK && setting->number > 0)
            setting->number = (setting->number + 999999) / 1000000;
        else if (sscanf(value, "%lf%n", &seconds, &used) == 1 && value[used] == '\0' &&
                 seconds > 0 && seconds < 1e9)
            setting->number = (int64_t)(seconds * 1000 + 0.5); /* as in: watch -n 2 */
        else
            return wrong_value(option, value, "a duration like 500ms, 2s, 10min", err);
        return setting->number > 0 ? DT_OK : wrong_value(option, value, "1ms or more", err);
    }
    case DT_CTL_TYPE_CHOICE:
        return set_choice(option, value, setting, err);
    default:
        return DT_OK;
    }
}

/* --name, --name=value, --name value. *at is the place in argv. */
static dt_status_t parse_long(int argc, char *const *argv, int *at, dt_ctl_cli_t *cli,
                              dt_error_t *err)
{
    const char *word = argv[*at] + 2;
    size_t len = strcspn(word, "=");
    const char *value = word[len] == '=' ? word + len + 1 : NULL;
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        if (strlen(option->name) != len || strncmp(option->name, word, len) != 0)
            continue;
        if (value && option->type == DT_CTL_TYPE_FLAG)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "--%s takes no value", option->name);
        if (!value && option->type != DT_CTL_TYPE_FLAG && !option->is_optional) {
            if (*at + 1 >= argc)
                return dt_fail(err, DT_ERR_INVALID, "dt", 0, "--%s needs a value: %s", option->name,
                               option->placeholder);
            value = argv[++*at];
        }
        return set_option((dt_ctl_option_id_t)i, value, cli, err);
    }
    return unknown_option(argv[*at], err);
}

/* -q, -qv, -n5, -n 5, -w2. */
static dt_status_t parse_short(int argc, char *const *argv, int *at, dt_ctl_cli_t *cli,
                               dt_error_t *err)
{
    const char *word = argv[*at];
    for (const char *c = word + 1; *c; c++) {
        size_t i = 0;
        while (i < DT_CTL_OPT_COUNT && dt_ctl_options[i].letter != *c)
            i++;
        if (i == DT_CTL_OPT_COUNT)
            return unknown_option(word, err);
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        const char *value = NULL;
        if (option->type != DT_CTL_TYPE_FLAG) {
            if (c[1] != '\0')
                value = c + 1 + (c[1] == '=');
            else if (!option->is_optional && *at + 1 >= argc)
                return dt_fail(err, DT_ERR_INVALID, "dt", 0, "-%c needs a value: %s", *c,
                               option->placeholder);
            else if (!option->is_optional)
                value = argv[++*at];
        }
        DT_TRY(set_option((dt_ctl_option_id_t)i, value, cli, err));
        if (value || (option->type != DT_CTL_TYPE_FLAG && c[1] != '\0'))
            break;
    }
    return DT_OK;
}

/* ---- nouns and verbs ---- */

static dt_status_t find_noun(dt_arena_t *pool, const char *word, const dt_ctl_noun_t **ret_noun,
                             dt_error_t *err)
{
    const char *names[WORD_MAX], *matches = "";
    size_t found = 0;
    *ret_noun = dt_ctl_noun_find(word);
    if (*ret_noun)
        return DT_OK;
    for (size_t i = 0; i < dt_ctl_noun_count; i++) {
        names[i] = dt_ctl_nouns[i].name;
        if (!dt_str_has_prefix(names[i], word))
            continue;
        *ret_noun = &dt_ctl_nouns[i];
        matches = dt_ctl_print(pool, "%s%s%s", matches, found++ > 0 ? ", " : "", names[i]);
    }
    if (found == 1)
        return DT_OK;
    if (found > 1)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "\"%s\" may be: %s", word, matches);
    const char *nearest = dt_nearest(word, names, dt_ctl_noun_count);
    if (nearest)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "unknown command \"%s\"; did you mean \"%s\"?",
                       word, nearest);
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "unknown command \"%s\"; dtorchctl --help lists them", word);
}

/* Whether the words begin with a verb's name, each word of it cut to a prefix. *ret_used is how
 * many words that took, *ret_is_exact whether nothing was cut. The second word of a verb may be
 * missing at the end of the line. */
static bool verb_matches(const dt_ctl_verb_t *verb, const char *const *words, size_t count,
                         size_t *ret_used, bool *ret_is_exact)
{
    const char *name = verb->name;
    *ret_used = 0;
    *ret_is_exact = true;
    while (*name != '\0') {
        size_t len = strcspn(name, " ");
        if (*ret_used == count)
            return *ret_used > 0;
        const char *word = words[*ret_used];
        if (strlen(word) > len || strncmp(name, word, strlen(word)) != 0 || *word == '\0')
            return false;
        *ret_is_exact = *ret_is_exact && strlen(word) == len;
        ++*ret_used;
        name += len + strspn(name + len, " ");
    }
    return *ret_used > 0;
}

/* Whether a word that is no verb can be meant as an id: it has a digit or a bracket, or no verb is
 * near. */
static const char *nearest_verb(const dt_ctl_noun_t *noun, const char *word)
{
    const char *names[WORD_MAX];
    size_t count = 0;
    for (size_t i = 0; i < dt_ctl_verb_count && count < WORD_MAX; i++)
        if (strcmp(dt_ctl_verbs[i].noun, noun->name) == 0)
            names[count++] = dt_ctl_verbs[i].name;
    return dt_nearest(word, names, count);
}

static dt_status_t unknown_verb(dt_arena_t *pool, const dt_ctl_noun_t *noun, const char *word,
                                dt_error_t *err)
{
    const char *nearest = nearest_verb(noun, word), *known = "";
    if (nearest && noun->show)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "unknown verb \"%s\"; did you mean \"%s %s\"? (if it is a name: %s %s %s)",
                       word, noun->name, nearest, noun->name, noun->show, word);
    if (nearest)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "unknown verb \"%s\"; did you mean \"%s %s\"?",
                       word, noun->name, nearest);
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        if (strcmp(dt_ctl_verbs[i].noun, noun->name) == 0)
            known = dt_ctl_print(pool, "%s%s%s", known, *known ? ", " : "", dt_ctl_verbs[i].name);
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "unknown verb \"%s\"; %s has: %s", word,
                   noun->name, known);
}

/* Find the verb that the words after the noun mean, and how many of them it took. */
static dt_status_t find_verb(dt_arena_t *pool, const dt_ctl_noun_t *noun, const char *const *words,
                             size_t count, const dt_ctl_verb_t **ret_verb, size_t *ret_used,
                             dt_error_t *err)
{
    const char *matches = "";
    size_t found = 0;
    *ret_verb = NULL;
    *ret_used = 0;
    const dt_ctl_verb_t *plain = dt_ctl_verb_find(noun->name, "");
    if (plain || (count == 0 && noun->bare)) {
        *ret_verb = plain ? plain : dt_ctl_verb_find(noun->name, noun->bare);
        return DT_OK;
    }
    for (size_t i = 0; i < dt_ctl_verb_count && count > 0; i++) {
        const dt_ctl_verb_t *verb = &dt_ctl_verbs[i];
        size_t used;
        bool is_exact;
        if (strcmp(verb->noun, noun->name) != 0 ||
            !verb_matches(verb, words, count, &used, &is_exact))
            continue;
        *ret_verb = verb;
        *ret_used = used;
        if (is_exact)
            return DT_OK;
        matches = dt_ctl_print(pool, "%s%s%s", matches, found++ > 0 ? ", " : "", verb->name);
    }
    if (found == 1)
        return DT_OK;
    if (found > 1)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "\"%s %s\" may be: %s", noun->name, words[0],
                       matches);
    if (count == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "%s needs a verb; dtorchctl %s --help lists them", noun->name, noun->name);
    bool is_id = words[0][strcspn(words[0], "0123456789:[,")] != '\0';
    if (!noun->show || (!is_id && nearest_verb(noun, words[0])))
        return unknown_verb(pool, noun, words[0], err);
    *ret_verb = dt_ctl_verb_find(noun->name, noun->show);
    return DT_OK;
}

static dt_status_t check_options(const dt_ctl_cli_t *cli, dt_error_t *err)
{
    const dt_ctl_verb_t *verb = cli->verb;
    dt_check(verb);
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++)
        if (cli->settings[i].is_set && !((verb->options | dt_ctl_common_options) & DT_CTL_BIT(i)))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s%s%s does not take --%s", verb->noun,
                           *verb->name ? " " : "", verb->name, dt_ctl_options[i].name);
    return DT_OK;
}

static dt_status_t check_arguments(const dt_ctl_cli_t *cli, dt_error_t *err)
{
    const dt_ctl_verb_t *verb = cli->verb;
    dt_check(verb);
    const char *space = *verb->name ? " " : "";
    if (cli->arg_count > verb->arg_max)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s%s%s does not take \"%s\"%s%s", verb->noun,
                       space, verb->name, cli->args[verb->arg_max],
                       *verb->args ? "; it takes " : "", verb->args);
    if (cli->arg_count < verb->arg_min)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s%s%s needs %s", verb->noun, space,
                       verb->name, verb->args);
    return DT_OK;
}

/* Split argv in options, which are set, and words. */
static dt_status_t split_words(int argc, char *const *argv, dt_ctl_cli_t *cli, const char **words,
                               size_t *ret_count, dt_error_t *err)
{
    bool options_end = false;
    *ret_count = 0;
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        if (options_end || word[0] != '-' || word[1] == '\0') {
            if (*ret_count == DT_CTL_ARG_MAX)
                return dt_fail(err, DT_ERR_INVALID, "dt", 0, "more than %d words", DT_CTL_ARG_MAX);
            words[(*ret_count)++] = word;
        } else if (strcmp(word, "--") == 0) {
            options_end = true;
        } else if (word[1] == '-') {
            DT_TRY(parse_long(argc, argv, &at, cli, err));
        } else {
            DT_TRY(parse_short(argc, argv, &at, cli, err));
        }
    }
    return DT_OK;
}

dt_status_t dt_ctl_cli_parse(dt_arena_t *pool, int argc, char *const *argv, dt_ctl_cli_t *ret_cli,
                             dt_error_t *err)
{
    const char **words = dt_ctl_alloc(pool, DT_CTL_ARG_MAX, sizeof *words);
    size_t count, used = 0;
    *ret_cli = (dt_ctl_cli_t){0};
    DT_TRY(split_words(argc, argv, ret_cli, words, &count, err));
    bool is_help = ret_cli->settings[DT_CTL_OPT_HELP].is_set;
    if (ret_cli->settings[DT_CTL_OPT_VERSION].is_set)
        return DT_OK;
    if (count > 0)
        DT_TRY(find_noun(pool, words[0], &ret_cli->noun, err));
    if (is_help && count < 2)
        return DT_OK;
    const dt_ctl_noun_t *noun = count > 0 ? ret_cli->noun : dt_ctl_noun_find("cluster");
    size_t rest = count > 0 ? count - 1 : 0;
    DT_TRY(find_verb(pool, noun, words + 1, rest, &ret_cli->verb, &used, err));
    ret_cli->args = words + 1 + used;
    ret_cli->arg_count = rest - used;
    if (is_help)
        return DT_OK;
    DT_TRY(check_options(ret_cli, err));
    return check_arguments(ret_cli, err);
}
