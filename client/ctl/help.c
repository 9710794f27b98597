#include "help.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "ctl.h"

#define HELP_COLUMNS   80
#define OPTION_COLUMNS 28 /* where an option's text begins */
#define VERB_COLUMNS   30

/* Print words, wrapped before HELP_COLUMNS, each line but the first after `indent` blanks. `used`
 * columns of the first line are taken. */
static void wrap(FILE *out, const char *text, int used, int indent)
{
    int column = used;
    const char *gap = "";
    while (*text != '\0') {
        int len = (int)strcspn(text, " ");
        if (column + (*gap != '\0') + len > HELP_COLUMNS && *gap != '\0') {
            (void)fprintf(out, "\n%*s", indent, "");
            column = indent;
            gap = "";
        }
        (void)fprintf(out, "%s%.*s", gap, len, text);
        column += (*gap != '\0') + len;
        gap = " ";
        text += len + (text[len] == ' ');
    }
    (void)fputc('\n', out);
}

/* Print "  left       text" with the text at `indent`. */
static void print_entry(FILE *out, const char *left, const char *text, int indent)
{
    int used = fprintf(out, "  %-*s", indent - 3, left);
    if (used >= indent)
        used = fprintf(out, "\n%*s", indent, "") - 1;
    else
        used += fprintf(out, "%*s", indent - used, "");
    wrap(out, text, used, indent);
}

static void option_left(const dt_ctl_option_t *option, char *text, size_t size)
{
    char letter[8] = "    ";
    if (option->letter)
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    (void)snprintf(text, size, "%s--%s%s%s%s%s", letter, option->name,
                   option->is_optional ? "[" : "", option->placeholder ? "=" : "",
                   option->placeholder ? option->placeholder : "", option->is_optional ? "]" : "");
}

static void print_options(FILE *out, uint64_t mask)
{
    char left[64], help[256];
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        if (!(mask & DT_CTL_BIT(i)))
            continue;
        option_left(option, left, sizeof left);
        (void)snprintf(help, sizeof help, "%s%s%s", option->help, option->choices ? ": " : "",
                       option->choices ? option->choices : "");
        print_entry(out, left, help, OPTION_COLUMNS);
    }
}

static void print_verb_line(FILE *out, const dt_ctl_verb_t *verb)
{
    char left[96];
    (void)snprintf(left, sizeof left, "%s%s%s%s%s", verb->noun, *verb->name ? " " : "", verb->name,
                   *verb->args ? " " : "", verb->args);
    print_entry(out, left, verb->help, VERB_COLUMNS);
}

static void help_verb(FILE *out, const dt_ctl_verb_t *verb)
{
    (void)fprintf(out, "usage: dtorchctl [OPTIONS] %s%s%s%s%s\n\n", verb->noun,
                  *verb->name ? " " : "", verb->name, *verb->args ? " " : "", verb->args);
    char text[1024];
    (void)snprintf(text, sizeof text, "%s.%s%s", verb->help, verb->more ? " " : "",
                   verb->more ? verb->more : "");
    wrap(out, text, 0, 0);
    (void)fprintf(out, "\nNeeds the role: %s\n", verb->role);
    if (verb->options) {
        (void)fputs("\nOptions:\n", out);
        print_options(out, verb->options);
    }
    (void)fputs("\nOptions of every verb:\n", out);
    print_options(out, dt_ctl_common_options);
    if (verb->examples[0])
        (void)fputs("\nExamples:\n", out);
    for (size_t i = 0; i < DT_CTL_EXAMPLE_MAX && verb->examples[i]; i++)
        (void)fprintf(out, "  dtorchctl %s\n", verb->examples[i]);
}

static void help_noun(FILE *out, const dt_ctl_noun_t *noun)
{
    (void)fprintf(out, "usage: dtorchctl [OPTIONS] %s VERB [ARGS]\n\n%s.\n", noun->name,
                  noun->help);
    if (noun->bare && *noun->bare != '\0')
        (void)fprintf(out, "Without a verb: %s.\n", noun->bare);
    (void)fputs("\nVerbs:\n", out);
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        if (strcmp(dt_ctl_verbs[i].noun, noun->name) == 0)
            print_verb_line(out, &dt_ctl_verbs[i]);
    (void)fprintf(out, "\ndtorchctl %s VERB --help says more.\n", noun->name);
}

static void help_all(FILE *out)
{
    (void)fputs("usage: dtorchctl [OPTIONS] NOUN VERB [ARGS]\n\n"
                "Look at and operate a DTorch cluster. Without words: cluster status.\n"
                "A noun alone lists, NOUN ID shows. Unique prefixes of nouns and verbs work.\n\n"
                "Commands:\n",
                out);
    for (size_t i = 0; i < dt_ctl_verb_count; i++)
        print_verb_line(out, &dt_ctl_verbs[i]);
    (void)fputs("\nOptions of every verb:\n", out);
    print_options(out, dt_ctl_common_options);
    (void)fputs("\nOptions of lists:\n", out);
    print_options(out, dt_ctl_verb_find("events", "list")->options & ~dt_ctl_common_options);
    (void)fputs("\ndtorchctl NOUN VERB --help says more; so does dtorchctl(1).\n", out);
}

void dt_ctl_help(FILE *out, const dt_ctl_noun_t *noun, const dt_ctl_verb_t *verb)
{
    if (verb)
        help_verb(out, verb);
    else if (noun && !dt_ctl_verb_find(noun->name, ""))
        help_noun(out, noun);
    else if (noun)
        help_verb(out, dt_ctl_verb_find(noun->name, ""));
    else
        help_all(out);
}

/* ---- the manual page ---- */

/* Print text for mdoc: a backslash, and a line's first dot or quote, are escaped; hyphens stay. */
static void print_mdoc(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        (void)fputs("\\&", out);
    for (const char *c = text; *c; c++) {
        if (*c == '\\')
            (void)fputs("\\e", out);
        else
            (void)fputc(*c, out);
        if (*c == '.' && c[1] == ' ' && isupper((unsigned char)c[2])) {
            (void)fputc('\n', out); /* mdoc wants a new sentence on a new line */
            c++;
        }
    }
}

static void print_sentence(FILE *out, const char *text)
{
    if (islower((unsigned char)*text))
        (void)fputc(toupper((unsigned char)*text++), out);
    print_mdoc(out, text);
    (void)fputs(text[strlen(text) - 1] == '.' ? "\n" : ".\n", out);
}

void dt_ctl_man_options(FILE *out)
{
    (void)fputs(".Bl -tag -width Ds\n", out);
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        (void)fputs(".It", out);
        if (option->letter)
            (void)fprintf(out, " Fl %c ,", option->letter);
        (void)fprintf(out, " Fl -%s", option->name);
        if (option->is_optional)
            (void)fprintf(out, " Ns Op = Ns Ar %s", option->placeholder);
        else if (option->placeholder)
            (void)fprintf(out, " Ns = Ns Ar %s", option->placeholder);
        (void)fputc('\n', out);
        print_sentence(out, option->help);
        if (option->choices)
            (void)fprintf(out, "One of: %s.\n", option->choices);
    }
    (void)fputs(".El\n", out);
}

static void man_verb(FILE *out, const dt_ctl_verb_t *verb)
{
    (void)fprintf(out, ".It Cm %s%s%s%s%s\n", verb->noun, *verb->name ? " " : "", verb->name,
                  *verb->args ? " Ar " : "", verb->args);
    print_sentence(out, verb->help);
    if (verb->more)
        print_sentence(out, verb->more);
    if (strcmp(verb->role, "none") != 0)
        (void)fprintf(out, "Needs the role %s.\n", verb->role);
    bool has_own = false;
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        if (!(verb->options & DT_CTL_BIT(i)))
            continue;
        (void)fprintf(out, "%s -%s", has_own ? " , Fl" : "Options:\n.Fl", dt_ctl_options[i].name);
        has_own = true;
    }
    if (has_own)
        (void)fputs(" .\n", out);
    for (size_t i = 0; i < DT_CTL_EXAMPLE_MAX && verb->examples[i]; i++) {
        (void)fputs(i == 0 ? ".Bd -literal -offset indent\n" : "", out);
        (void)fprintf(out, "dtorchctl %s\n", verb->examples[i]);
    }
    (void)fputs(verb->examples[0] ? ".Ed\n" : "", out);
}

void dt_ctl_man_verbs(FILE *out)
{
    for (size_t noun = 0; noun < dt_ctl_noun_count; noun++) {
        const dt_ctl_noun_t *of = &dt_ctl_nouns[noun];
        (void)fprintf(out, ".Ss %s\n", of->name);
        print_sentence(out, of->help);
        (void)fputs(".Bl -tag -width Ds\n", out);
        for (size_t i = 0; i < dt_ctl_verb_count; i++)
            if (strcmp(dt_ctl_verbs[i].noun, of->name) == 0)
                man_verb(out, &dt_ctl_verbs[i]);
        (void)fputs(".El\n", out);
    }
}

int dt_ctl_man(const char *template_path, FILE *out, FILE *err)
{
    char line[1024];
    FILE *in = fopen(template_path, "re");
    if (!in) {
        (void)fprintf(err, "dtorchctl: %s: %s\n", template_path, strerror(errno));
        return DT_CTL_EXIT_NOT_FOUND;
    }
    while (fgets(line, sizeof line, in)) {
        if (strcmp(line, ".\\\" OPTIONS\n") == 0)
            dt_ctl_man_options(out);
        else if (strcmp(line, ".\\\" VERBS\n") == 0)
            dt_ctl_man_verbs(out);
        else
            (void)fputs(line, out);
    }
    (void)fclose(in);
    return fflush(out) == 0 ? DT_CTL_EXIT_OK : DT_CTL_EXIT_FAILED;
}

/* ---- bash ---- */

static void print_option_words(FILE *out, uint64_t mask)
{
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++)
        if (mask & DT_CTL_BIT(i))
            (void)fprintf(out, " --%s%s", dt_ctl_options[i].name,
                          dt_ctl_options[i].placeholder && !dt_ctl_options[i].is_optional ? "="
                                                                                          : "");
}

/* The verbs of each noun, by their first word; second words follow as "noun first". */
static void print_verb_cases(FILE *out)
{
    for (size_t noun = 0; noun < dt_ctl_noun_count; noun++) {
        (void)fprintf(out, "    %s) words=\"", dt_ctl_nouns[noun].name);
        for (size_t i = 0; i < dt_ctl_verb_count; i++)
            if (strcmp(dt_ctl_verbs[i].noun, dt_ctl_nouns[noun].name) == 0)
                (void)fprintf(out, "%.*s ", (int)strcspn(dt_ctl_verbs[i].name, " "),
                              dt_ctl_verbs[i].name);
        (void)fputs("\" ;;\n", out);
    }
}

static void print_argument_cases(FILE *out)
{
    for (size_t i = 0; i < dt_ctl_verb_count; i++) {
        const dt_ctl_verb_t *verb = &dt_ctl_verbs[i];
        const char *second = strchr(verb->name, ' ');
        (void)fprintf(out, "    \"%s %.*s\")", verb->noun, (int)strcspn(verb->name, " "),
                      verb->name);
        if (verb->ids)
            (void)fprintf(out, " ids=%s;", verb->ids);
        if (second)
            (void)fprintf(out, " words=\"%s\";", second + 1);
        (void)fputs(" options=\"", out);
        print_option_words(out, verb->options);
        (void)fputs("\" ;;\n", out);
    }
}

void dt_ctl_completion(FILE *out)
{
    (void)fputs("# bash completion for dtorchctl(1), made by: dtorchctl completion bash\n"
                "_dtorchctl()\n{\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                "    local noun= verb= words= ids= options= word i skip=\n"
                "    COMPREPLY=()\n"
                "    [[ $cur == \"=\" ]] && cur=\n"
                "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "        word=${COMP_WORDS[i]}\n"
                "        if [[ -n $skip ]]; then skip=; continue; fi\n"
                "        case $word in\n",
                out);
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        if (option->letter && option->placeholder && !option->is_optional)
            (void)fprintf(out, "        -%c) skip=1 ;;\n", option->letter);
    }
    (void)fputs(
        "        -*|=) [[ $word == \"=\" ]] && skip=1 ;;\n"
        "        *) if [[ -z $noun ]]; then noun=$word; elif [[ -z $verb ]]; then verb=$word; fi "
        ";;\n"
        "        esac\n    done\n"
        "    case $prev in\n",
        out);
    for (size_t i = 0; i < DT_CTL_OPT_COUNT; i++) {
        const dt_ctl_option_t *option = &dt_ctl_options[i];
        if (option->choices && option->letter)
            (void)fprintf(out,
                          "    -%c|--%s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n",
                          option->letter, option->name, option->choices);
        else if (option->choices)
            (void)fprintf(out,
                          "    --%s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n",
                          option->name, option->choices);
    }
    (void)fputs(
        "    --config|--dir|--token-file) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
        "    esac\n",
        out);
    (void)fputs("    case \"$noun $verb\" in\n", out);
    print_argument_cases(out);
    (void)fputs("    esac\n    if [[ $cur == -* ]]; then\n        options+=\"", out);
    print_option_words(out, dt_ctl_common_options);
    (void)fputs(
        "\"\n        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
        "        [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n        return\n    fi\n"
        "    if [[ -z $noun ]]; then\n        words=\"",
        out);
    for (size_t i = 0; i < dt_ctl_noun_count; i++)
        (void)fprintf(out, "%s ", dt_ctl_nouns[i].name);
    (void)fputs("\"\n    elif [[ -z $verb ]]; then\n        case $noun in\n", out);
    print_verb_cases(out);
    (void)fputs("        esac\n    elif [[ -n $ids ]]; then\n"
                "        words=$(dtorchctl __complete \"$ids\" 2>/dev/null)\n    fi\n"
                "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
                "complete -F _dtorchctl dtorchctl\n",
                out);
}
