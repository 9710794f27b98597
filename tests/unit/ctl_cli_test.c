#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/help.h"

#define WORD_MAX 16

static dt_arena_t pool;
static dt_ctl_cli_t cli;
static dt_error_t error;

static void start(void)
{
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
}

static void stop(void)
{
    dt_arena_fini(&pool);
}

TestSuite(ctl_cli, .init = start, .fini = stop, .timeout = 60);
TestSuite(ctl_help, .init = start, .fini = stop, .timeout = 60);

/* Parse a line of words with single blanks between; '_' stands for a blank in a word. */
static dt_status_t parse(const char *line)
{
    char *argv[WORD_MAX + 1] = {0}, *text = dt_ctl_print(&pool, "dtorchctl %s", line), *rest;
    int argc = 0;
    for (char *word = strtok_r(text, " ", &rest); word && argc < WORD_MAX;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    char **kept = dt_ctl_alloc(&pool, WORD_MAX + 1, sizeof *kept);
    memcpy(kept, argv, sizeof argv);
    error.text[0] = '\0';
    return dt_ctl_cli_parse(&pool, argc, kept, &cli, &error);
}

static void check_verb(const char *line, const char *noun, const char *verb, size_t args)
{
    cr_assert_eq(parse(line), DT_OK, "%s: %s", line, error.text);
    cr_assert_not_null(cli.verb, "%s", line);
    cr_assert_str_eq(cli.verb->noun, noun, "%s", line);
    cr_assert_str_eq(cli.verb->name, verb, "%s", line);
    cr_assert_eq(cli.arg_count, args, "%s: %zu", line, cli.arg_count);
}

static void check_wrong(const char *line, const char *wanted)
{
    cr_assert_eq(parse(line), DT_ERR_INVALID, "%s", line);
    cr_assert_not_null(strstr(error.text, wanted), "%s: %s", line, error.text);
}

Test(ctl_cli, no_words_are_the_clusters_status)
{
    check_verb("", "cluster", "status", 0);
    check_verb("-o json", "cluster", "status", 0);
}

Test(ctl_cli, a_noun_alone_lists_and_with_an_id_shows)
{
    check_verb("node", "node", "list", 0);
    check_verb("node gpu001", "node", "show", 1);
    check_verb("node gpu[001-004] gpu9", "node", "show", 2);
    check_verb("node zeus", "node", "show", 1);
    check_verb("device gpu001:3", "device", "show", 1);
    check_verb("events", "events", "list", 0);
    check_verb("events gpu001", "events", "list", 1);
    check_verb("version", "version", "", 0);
    check_verb("diag", "diag", "dump", 0);
}

Test(ctl_cli, unique_prefixes_work)
{
    check_verb("n li", "node", "list", 0);
    check_verb("cl st", "cluster", "status", 0);
    check_verb("cluster conf sh", "cluster", "config show", 0);
    check_verb("cluster config", "cluster", "config show", 0);
    check_verb("dev topo", "device", "topology", 0);
    check_verb("node drain gpu1 -m x", "node", "drain", 1);
    check_wrong("node l", "may be: list, label");
    check_wrong("c", "may be: cluster, completion");
}

Test(ctl_cli, unknown_words_are_told_with_the_nearest_one)
{
    check_wrong("nodes", "did you mean \"node\"?");
    check_wrong("clutser", "did you mean \"cluster\"?");
    check_wrong("node drian gpu001", "did you mean \"node drain\"?");
    check_wrong("node lst", "did you mean \"node list\"?");
    check_wrong("events lits", "did you mean \"events list\"?");
    check_wrong("token zzz", "token has: create, list, revoke");
    check_wrong("xyzzy", "--help lists them");
    check_wrong("node --otuput=json", "did you mean --output?");
    check_wrong("node --xyzzy", "--help lists them");
    check_wrong("node -Z", "unknown option \"-Z\"");
    check_wrong("cluster config shwo", "did you mean");
}

Test(ctl_cli, options_stand_anywhere_and_end_at_two_hyphens)
{
    check_verb("-q node -o csv list --no-legend -- -strange", "node", "list", 1);
    cr_assert(cli.settings[DT_CTL_OPT_QUIET].is_set);
    cr_assert(cli.settings[DT_CTL_OPT_NO_LEGEND].is_set);
    cr_assert_eq(cli.settings[DT_CTL_OPT_OUTPUT].number, DT_CTL_CSV);
    cr_assert_str_eq(cli.args[0], "-strange");
}

Test(ctl_cli, options_take_their_values_in_every_usual_form)
{
    check_verb("events -qvn5 -ojson", "events", "list", 0);
    cr_assert_eq(cli.settings[DT_CTL_OPT_LIMIT].number, 5);
    cr_assert_eq(cli.settings[DT_CTL_OPT_OUTPUT].number, DT_CTL_JSON);
    check_verb("events -n 7 --output wide", "events", "list", 0);
    cr_assert_eq(cli.settings[DT_CTL_OPT_LIMIT].number, 7);
    check_verb("-H a,b:1 --reason=x node cordon n1", "node", "cordon", 1);
    cr_assert_str_eq(cli.settings[DT_CTL_OPT_HOST].text, "a,b:1");
}

Test(ctl_cli, watch_takes_a_value_only_when_it_is_joined)
{
    check_verb("node list -w", "node", "list", 0);
    cr_assert(cli.settings[DT_CTL_OPT_WATCH].is_set);
    cr_assert_null(cli.settings[DT_CTL_OPT_WATCH].text);
    check_verb("node -w list", "node", "list", 0);
    check_verb("node list -w5", "node", "list", 0);
    cr_assert_eq(cli.settings[DT_CTL_OPT_WATCH].number, 5000);
    check_verb("node list --watch=500ms", "node", "list", 0);
    cr_assert_eq(cli.settings[DT_CTL_OPT_WATCH].number, 500);
    check_verb("node list --watch=0.5", "node", "list", 0);
    cr_assert_eq(cli.settings[DT_CTL_OPT_WATCH].number, 500);
}

Test(ctl_cli, wrong_values_are_told)
{
    check_wrong("node -o xml", "not one of: table wide json csv name");
    check_wrong("events -n 0", "a number from 1 on");
    check_wrong("events -n many", "a number from 1 on");
    check_wrong("node --watch=soon", "a duration");
    check_wrong("node --watch=0", "a duration");
    check_wrong("node list -o", "needs a value");
    check_wrong("node list --filter", "needs a value");
    check_wrong("node list --utc=yes", "takes no value");
}

Test(ctl_cli, a_verb_takes_its_own_options_and_arguments_only)
{
    check_wrong("node list -m x", "node list does not take --reason");
    check_wrong("node drain gpu1 --filter=x=y", "does not take --filter");
    check_wrong("node drain", "node drain needs NODE...");
    check_wrong("node show", "node show needs NODE...");
    check_wrong("token list x", "does not take \"x\"");
    check_wrong("events list a b", "does not take \"b\"");
    check_wrong("setup", "needs a verb");
}

Test(ctl_cli, help_and_version_need_no_right_arguments)
{
    cr_assert_eq(parse("--help"), DT_OK);
    cr_assert(cli.noun == NULL && cli.verb == NULL);
    cr_assert_eq(parse("node --help"), DT_OK);
    cr_assert_str_eq(cli.noun->name, "node");
    cr_assert_null(cli.verb);
    check_verb("node drain -h", "node", "drain", 0);
    cr_assert_eq(parse("--version"), DT_OK);
}

/* ---- the tables themselves ---- */

Test(ctl_cli, every_row_of_the_tables_is_complete)
{
    for (size_t i = 0; i < dt_ctl_verb_count; i++) {
        const dt_ctl_verb_t *verb = &dt_ctl_verbs[i];
        cr_assert_not_null(dt_ctl_noun_find(verb->noun), "%s", verb->noun);
        cr_assert(verb->run && verb->help && verb->role && verb->args, "%s %s", verb->noun,
                  verb->name);
        cr_assert_not_null(verb->examples[0], "%s %s has no example", verb->noun, verb->name);
        cr_assert(isupper((unsigned char)verb->help[0]));
        cr_assert_neq(verb->help[strlen(verb->help) - 1], '.');
        cr_assert(dt_ctl_verb_find(verb->noun, verb->name) == verb, "twice");
    }
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        cr_assert(option->name && option->help, "option %zu", i);
        cr_assert_eq(option->type == DT_CTL_TYPE_FLAG, option->placeholder == NULL, "%s",
                     option->name);
        for (size_t j = 0; j < i; j++)
            cr_assert(!option->letter || option->letter != dt_ctl_options[j].letter, "-%c twice",
                      option->letter);
    }
    for (size_t i = 0; i < dt_ctl_noun_count; i++) {
        const dt_ctl_noun_t *noun = &dt_ctl_nouns[i];
        cr_assert(!noun->bare || dt_ctl_verb_find(noun->name, noun->bare), "%s", noun->name);
        cr_assert(!noun->show || dt_ctl_verb_find(noun->name, noun->show), "%s", noun->name);
    }
}

Test(ctl_cli, every_example_is_a_right_command_line)
{
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        for (size_t j = 0; j < DT_CTL_EXAMPLE_MAX && dt_ctl_verbs[i].examples[j]; j++) {
            char *line = dt_ctl_copy(&pool, dt_ctl_verbs[i].examples[j],
                                     strlen(dt_ctl_verbs[i].examples[j]));
            bool is_quoted = false;
            for (char *c = line; *c; c++) { /* the shell's work */
                is_quoted = is_quoted != (*c == '\'');
                if (is_quoted && *c == ' ')
                    *c = '_';
                if (*c == '>')
                    *c = '\0';
                if (*c == '\0')
                    break;
            }
            cr_assert_eq(parse(line), DT_OK, "%s: %s", line, error.text);
            cr_assert(cli.verb == &dt_ctl_verbs[i], "%s is %s %s", line, cli.verb->noun,
                      cli.verb->name);
        }
}

/* The .proto says which role a method needs; the verb that calls it must say the same. */
Test(ctl_cli, roles_are_those_of_the_protocol)
{
    static char proto[65536];
    FILE *file = fopen("proto/dtorch/v1/admin.proto", "re");
    cr_assert_not_null(file);
    proto[fread(proto, 1, sizeof proto - 1, file)] = '\0';
    (void)fclose(file);
    for (size_t i = 0; i < dt_ctl_verb_count; i++) {
        const dt_ctl_verb_t *verb = &dt_ctl_verbs[i];
        if (!verb->method)
            continue;
        char *at = strstr(proto, dt_ctl_print(&pool, "rpc %s(", verb->method));
        cr_assert_not_null(at, "%s", verb->method);
        at = strstr(at, "// Role: ");
        cr_assert_not_null(at);
        cr_assert_eq(strncmp(at + 9, verb->role, strlen(verb->role)), 0, "%s %s", verb->noun,
                     verb->name);
    }
}

Test(ctl_cli, statuses_have_their_sysexits)
{
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_NOT_FOUND), 67);
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_PEER), 69);
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_AGAIN), 75);
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_DENIED), 77);
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_TIMEOUT), 124);
    cr_assert_eq(dt_ctl_exit_of(DT_ERR_EXISTS), 1);
}

/* ---- help ---- */

static char *caught;
static size_t caught_size;

static const char *help(const dt_ctl_noun_t *noun, const dt_ctl_verb_t *verb)
{
    free(caught);
    caught = NULL;
    FILE *out = open_memstream(&caught, &caught_size);
    dt_ctl_help(out, noun, verb);
    (void)fclose(out);
    return caught;
}

static void check_width(const char *text)
{
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        cr_assert_leq(len, 80, "%.*s", (int)len, line);
        cr_assert(len == 0 || line[len - 1] != ' ', "blank at the end: %.*s", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

Test(ctl_help, every_help_text_fits_80_columns)
{
    check_width(help(NULL, NULL));
    for (size_t i = 0; i < dt_ctl_noun_count; i++)
        check_width(help(&dt_ctl_nouns[i], NULL));
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        check_width(help(dt_ctl_noun_find(dt_ctl_verbs[i].noun), &dt_ctl_verbs[i]));
    free(caught);
}

Test(ctl_help, the_whole_help_names_every_verb)
{
    help(NULL, NULL);
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        cr_assert_not_null(strstr(caught, dt_ctl_print(&pool, "  %s %s", dt_ctl_verbs[i].noun,
                                                       dt_ctl_verbs[i].name)),
                           "%s %s", dt_ctl_verbs[i].noun, dt_ctl_verbs[i].name);
    free(caught);
}

Test(ctl_help, a_verbs_help_names_its_options_and_role)
{
    help(dt_ctl_noun_find("node"), dt_ctl_verb_find("node", "drain"));
    cr_assert_not_null(strstr(caught, "-m, --reason=TEXT"), "%s", caught);
    cr_assert_not_null(strstr(caught, "Needs the role: operator"));
    cr_assert_not_null(strstr(caught, "dtorchctl node drain gpu007"));
    cr_assert_null(strstr(caught, "--filter"));
    free(caught);
}
