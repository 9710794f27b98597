#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/numbers.h"
#include "lib/temptree.h"

TestSuite(numbers, .timeout = 60);

/* One round in which the uuids of `names` (one letter each) are present; returns their numbers as
 * letters, "a" for 0. */
static const char *play_round(dt_numbers_t *numbers, const char *names)
{
    static char got[DT_DEVICE_MAX + 1];
    char uuid[2] = "";
    dt_numbers_begin(numbers);
    for (size_t i = 0; names[i]; i++) {
        uuid[0] = names[i];
        got[i] = (char)dt_numbers_find(numbers, uuid);
    }
    for (size_t i = 0; names[i]; i++) {
        uuid[0] = names[i];
        if (got[i] < 0)
            got[i] = (char)dt_numbers_add(numbers, uuid, "sim");
        got[i] = (char)(got[i] + 'a');
    }
    got[strlen(names)] = '\0';
    dt_numbers_end(numbers);
    return got;
}

Test(numbers, stay_with_their_device_and_leave_a_hole_while_it_is_absent)
{
    dt_numbers_t numbers = {0};
    cr_assert_str_eq(play_round(&numbers, "WXYZ"), "abcd");
    cr_assert_str_eq(play_round(&numbers, "ZYW"), "dca");
    cr_assert_str_eq(play_round(&numbers, "WNYZ"), "aecd", "a new device takes no known number");
    cr_assert_str_eq(play_round(&numbers, "WXYZN"), "abcde");
}

Test(numbers, go_to_another_device_only_when_all_are_taken)
{
    dt_numbers_t numbers = {0};
    char names[DT_DEVICE_MAX + 1];
    for (int i = 0; i < DT_DEVICE_MAX; i++)
        names[i] = (char)('0' + i);
    names[DT_DEVICE_MAX] = '\0';
    (void)play_round(&numbers, names);
    (void)play_round(&numbers, names + 1); /* 0 is absent the longest */
    (void)play_round(&numbers, names + 2);
    cr_assert_str_eq(play_round(&numbers, "~"), "a");
    cr_assert_eq(dt_numbers_find(&numbers, "0"), -1);
    cr_assert_eq(dt_numbers_find(&numbers, "1"), 1);
}

Test(numbers, survive_a_restart)
{
    dt_temptree_t tree;
    dt_numbers_t numbers = {0}, again;
    dt_error_t err = {0};
    dt_temptree_init(&tree);
    (void)play_round(&numbers, "ABC");
    cr_assert(numbers.is_changed);
    cr_assert_eq(dt_numbers_save(tree.root, &numbers, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_numbers_load(tree.root, &again, &err), DT_OK, "%s", err.text);
    cr_assert_str_eq(play_round(&again, "CA"), "ca");
    cr_assert_str_eq(play_round(&again, "CDA"), "cda");
    dt_temptree_fini(&tree);
}

Test(numbers, are_written_only_when_something_changed)
{
    dt_temptree_t tree;
    dt_numbers_t numbers = {0};
    dt_temptree_init(&tree);
    (void)play_round(&numbers, "AB");
    cr_assert_eq(dt_numbers_save(tree.root, &numbers, NULL), DT_OK);
    (void)play_round(&numbers, "BA");
    cr_assert_not(numbers.is_changed);
    (void)play_round(&numbers, "B");
    cr_assert(numbers.is_changed);
    dt_temptree_fini(&tree);
}

Test(numbers, start_anew_when_the_file_is_damaged_and_say_where)
{
    static const char *const wrong[] = {
        "",
        "something else\n",
        "dtorch-devices 1\n0 sim A 1\n0 sim B 1\n",
        "dtorch-devices 1\n0 sim A 1\n1 sim A 1\n",
        "dtorch-devices 1\n64 sim A 1\n",
        "dtorch-devices 1\n0 sim A\n",
        "dtorch-devices 1\n0 sim A 1 more\n",
        "dtorch-devices 1\n0 sim",
    };
    dt_temptree_t tree;
    dt_numbers_t numbers;
    dt_error_t err;
    dt_temptree_init(&tree);
    cr_assert_eq(dt_numbers_load(tree.root, &numbers, &err), DT_OK, "none is fine");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dt_temptree_write(&tree, DT_NUMBERS_FILE, wrong[i]);
        cr_assert_eq(dt_numbers_load(tree.root, &numbers, &err), DT_ERR_INVALID, "%s", wrong[i]);
        cr_assert(strstr(err.text, "/devices:"), "%s", err.text);
        cr_assert_str_eq(play_round(&numbers, "B"), "a");
    }
    dt_temptree_fini(&tree);
}

Test(numbers, say_so_when_they_cannot_be_kept)
{
    dt_numbers_t numbers = {0};
    dt_error_t err;
    (void)play_round(&numbers, "A");
    cr_assert_eq(dt_numbers_save("/nowhere", &numbers, &err), DT_ERR_DENIED);
    cr_assert(strstr(err.text, "/nowhere/devices"), "%s", err.text);
    cr_assert(numbers.is_changed);
}
