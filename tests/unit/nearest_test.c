#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/nearest.h"

TestSuite(nearest, .timeout = 60);

static const char *const keys[] = {"HeartbeatInterval", "Listen", "LogLevel", NULL, "NodesMax"};

#define NEAREST(word) dt_nearest(word, keys, sizeof keys / sizeof *keys)

Test(nearest, counts_one_for_each_kind_of_mistake)
{
    cr_assert_eq(dt_nearest_distance("listen", "listen"), 0);
    cr_assert_eq(dt_nearest_distance("listn", "listen"), 1);
    cr_assert_eq(dt_nearest_distance("listeen", "listen"), 1);
    cr_assert_eq(dt_nearest_distance("listan", "listen"), 1);
    cr_assert_eq(dt_nearest_distance("lisetn", "listen"), 1);
    cr_assert_eq(dt_nearest_distance("", "listen"), 6);
    cr_assert_eq(dt_nearest_distance("LISTEN", "listen"), 0);
}

Test(nearest, is_the_same_in_both_directions)
{
    const char *words[] = {"", "a", "ab", "ba", "kitten", "sitting", "saturday", "sunday"};
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < 8; k++)
            cr_assert_eq(dt_nearest_distance(words[i], words[k]),
                         dt_nearest_distance(words[k], words[i]));
}

Test(nearest, finds_the_key_that_was_meant)
{
    cr_assert_str_eq(NEAREST("HeartbeatIntervall"), "HeartbeatInterval");
    cr_assert_str_eq(NEAREST("listne"), "Listen");
    cr_assert_str_eq(NEAREST("Heartbeat"), "HeartbeatInterval");
    cr_assert_str_eq(NEAREST("Loglevle"), "LogLevel");
}

Test(nearest, finds_nothing_for_a_word_that_is_far_from_all)
{
    cr_assert(NEAREST("Certificate") == NULL);
    cr_assert(NEAREST("x") == NULL);
    cr_assert(NEAREST("") == NULL);
    cr_assert(dt_nearest("Listen", NULL, 0) == NULL);
}

Test(nearest, ignores_words_over_the_limit)
{
    char word[DT_NEAREST_WORD_MAX + 2];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    cr_assert_eq(dt_nearest_distance(word, "a"), SIZE_MAX);
    cr_assert(NEAREST(word) == NULL);
    word[DT_NEAREST_WORD_MAX] = '\0';
    cr_assert_eq(dt_nearest_distance(word, "a"), DT_NEAREST_WORD_MAX - 1);
}
