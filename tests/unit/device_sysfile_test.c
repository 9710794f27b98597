#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/sysfile.h"
#include "lib/temptree.h"

TestSuite(sysfile, .timeout = 60);

Test(sysfile, reads_a_file_and_cuts_the_last_newline)
{
    dt_temptree_t tree;
    char text[8];
    int64_t number;
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "sys/a", "-12\n");
    dt_temptree_write(&tree, "sys/long", "0123456789");
    dt_temptree_write(&tree, "sys/word", "word\n");
    cr_assert_eq(dt_sysfile_read(tree.root, "/sys/a", text, sizeof text), DT_OK);
    cr_assert_str_eq(text, "-12");
    cr_assert_eq(dt_sysfile_read(tree.root, "/sys/long", text, sizeof text), DT_OK);
    cr_assert_str_eq(text, "0123456");
    cr_assert_eq(dt_sysfile_read_int(tree.root, "/sys/a", &number), DT_OK);
    cr_assert_eq(number, -12);
    cr_assert_eq(dt_sysfile_read_int(tree.root, "/sys/word", &number), DT_ERR_INVALID);
    cr_assert_eq(dt_sysfile_read(tree.root, "/sys/none", text, sizeof text), DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_sysfile_read(tree.root, "/sys", text, sizeof text), DT_ERR_NOT_FOUND);
    dt_temptree_fini(&tree);
}

Test(sysfile, finds_a_field_only_at_the_start_of_a_line)
{
    const char *text = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Chip (R)\nempty\t:\n";
    char value[32];
    cr_assert_eq(dt_sysfile_field(text, "model name", value, sizeof value), DT_OK);
    cr_assert_str_eq(value, "Chip (R)");
    cr_assert_eq(dt_sysfile_field(text, "processor", value, sizeof value), DT_OK);
    cr_assert_str_eq(value, "0");
    cr_assert_eq(dt_sysfile_field(text, "name", value, sizeof value), DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_sysfile_field(text, "proc", value, sizeof value), DT_ERR_NOT_FOUND);
}

static void sum(int32_t number, void *arg)
{
    *(int64_t *)arg = *(int64_t *)arg * 100 + number;
}

Test(sysfile, reads_the_kernels_lists_and_stops_at_nonsense)
{
    int64_t got = 0;
    dt_sysfile_list("1-3,8,10-11", sum, &got);
    cr_assert_eq(got, 10203081011);
    got = 0;
    dt_sysfile_list("4,x,5", sum, &got);
    cr_assert_eq(got, 4);
    got = 0;
    dt_sysfile_list("7-3", sum, &got);
    cr_assert_eq(got, 0);
    dt_sysfile_list("", sum, &got);
    cr_assert_eq(got, 0);
}

Test(sysfile, parses_sizes_with_units_and_refuses_the_rest)
{
    static const char *const wrong[] = {
        "", "-1", "12X", "1GB", "1 GiB", "99999999999999999999", "99999999TiB", "0x10"};
    uint64_t bytes = 7;
    cr_assert(dt_sysfile_parse_size("80GiB", &bytes) == DT_OK && bytes == UINT64_C(80) << 30);
    cr_assert(dt_sysfile_parse_size("3K", &bytes) == DT_OK && bytes == 3072);
    cr_assert(dt_sysfile_parse_size("17", &bytes) == DT_OK && bytes == 17);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(dt_sysfile_parse_size(wrong[i], &bytes), DT_ERR_INVALID, "%s", wrong[i]);
    cr_assert_eq(bytes, 17, "set on success only");
    cr_assert_eq(dt_sysfile_parse_uint("65", 64, &bytes), DT_ERR_INVALID);
}

Test(sysfile, makes_uuids_that_depend_on_prefix_seed_and_number_only)
{
    char a[64], b[64];
    dt_sysfile_uuid("CPU", "node", 0, a, sizeof a);
    dt_sysfile_uuid("CPU", "node", 0, b, sizeof b);
    cr_assert_str_eq(a, b);
    cr_assert_eq(strlen(a), 3 + 1 + 36, "%s", a);
    dt_sysfile_uuid("CPU", "node", 1, b, sizeof b);
    cr_assert_str_neq(a, b);
    dt_sysfile_uuid("CPU", "nodf", 0, b, sizeof b);
    cr_assert_str_neq(a, b);
    dt_sysfile_uuid("SIM", "node", 0, b, sizeof b);
    cr_assert_str_neq(a + 4, b + 4);
}

Test(sysfile, cleans_what_would_harm_a_terminal_or_a_message)
{
    char text[16] = "a\x1b[1m\xff\xc3\xa9\n";
    char full[4] = {'a', 'b', 'c', 'd'};
    char word[8] = "a b c";
    char c1[8] = "a\xc2\x9b"
                 "b";
    char cut[3] = {'a', (char)0xc3, (char)0xa9};
    dt_sysfile_clean(text, sizeof text, false);
    cr_assert_str_eq(text, "a?[1m?\xc3\xa9?");
    dt_sysfile_clean(full, sizeof full, false);
    cr_assert_str_eq(full, "abc");
    dt_sysfile_clean(word, sizeof word, true);
    cr_assert_str_eq(word, "a_b_c");
    dt_sysfile_clean(c1, sizeof c1, false);
    cr_assert(strcmp(c1, "a?b") == 0 || strcmp(c1, "a??b") == 0, "%s", c1);
    dt_sysfile_clean(cut, sizeof cut, false);
    cr_assert_str_eq(cut, "a?");
}
