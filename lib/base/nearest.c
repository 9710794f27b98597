/* Edit distance with swaps (optimal string alignment), for short words. */
#include "base/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { NEAREST_PREFIX_MIN = 3 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

static bool is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t dt_nearest_distance(const char *a, const char *b)
{
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);
    if (a_len > DT_NEAREST_WORD_MAX || b_len > DT_NEAREST_WORD_MAX)
        return SIZE_MAX;

    /* rows[i % 3][j]: the distance of the first i letters of a and the first j of b */
    size_t rows[3][DT_NEAREST_WORD_MAX + 1];
    for (size_t j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i - 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = above[j - 1] + !is_same(a[i - 1], b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, change);
            if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1])) {
                size_t swap = rows[(i - 2) % 3][j - 2] + 1;
                row[j] = swap < row[j] ? swap : row[j];
            }
        }
    }
    return rows[a_len % 3][b_len];
}

static bool is_prefix(const char *word, size_t len, const char *candidate)
{
    return len >= NEAREST_PREFIX_MIN && strncasecmp(word, candidate, len) == 0;
}

const char *dt_nearest(const char *word, const char *const *candidates, size_t candidate_count)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    size_t len = strlen(word);

    for (size_t i = 0; i < candidate_count; i++) {
        if (!candidates[i])
            continue;
        size_t distance = dt_nearest_distance(word, candidates[i]);
        size_t candidate_len = strlen(candidates[i]);
        size_t longer = len > candidate_len ? len : candidate_len;
        size_t allowed = longer / 3 ? longer / 3 : 1;
        if (distance == SIZE_MAX || longer < 2)
            continue;
        if (distance > allowed && !is_prefix(word, len, candidates[i]))
            continue;
        if (distance < best_distance) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}
