/* The nearest match for a mistyped word, for "did you mean". */
#ifndef DT_BASE_NEAREST_H
#define DT_BASE_NEAREST_H
#include <stddef.h>

#define DT_NEAREST_WORD_MAX 64 /* longer words match nothing */

/* Count the insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`,
 * without regard to case. Words above DT_NEAREST_WORD_MAX bytes give SIZE_MAX. */
size_t dt_nearest_distance(const char *a, const char *b);

/* Find the candidate nearest to `word`; the first one wins a tie.
 * A candidate counts when it needs at most a third of the longer word's letters changed (at least
 * one), or when `word` is a prefix of at least three letters. Ownership: borrows all; the result
 * is one of the candidates, or NULL. NULL candidates are skipped. */
const char *dt_nearest(const char *word, const char *const *candidates, size_t candidate_count);

#endif
