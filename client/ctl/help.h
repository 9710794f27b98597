/* What is printed from the tables of cli.h: help texts, the manual page's lists, bash completion.
 */
#ifndef DT_CTL_HELP_H
#define DT_CTL_HELP_H
#include <stdio.h>

#include "cli.h"

/* Print the help of a verb, of a noun (`verb` NULL), or of everything (both NULL). At most 80
 * columns wide. */
void dt_ctl_help(FILE *out, const dt_ctl_noun_t *noun, const dt_ctl_verb_t *verb);

/* Print the completion script for bash: words of the tables, ids by `dtorchctl __complete`. */
void dt_ctl_completion(FILE *out);

/* Print the mdoc lists of options and of verbs. */
void dt_ctl_man_options(FILE *out);
void dt_ctl_man_verbs(FILE *out);

#endif
