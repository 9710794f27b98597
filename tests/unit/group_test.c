/* Groups of devices by lib/backend/nccl, on a library that plays NCCL between processes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/nccl/nccl.h"
#include "lib/grouprig.h"

#define GROUP_RANKS 4

TestSuite(group, .timeout = 300);

static void run(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/fake_nccl.so", getenv("DT_TEST_SO"));
    const dt_grouprig_options_t options = {.library = path, .runtime = path, .count = GROUP_RANKS};
    for (const dt_grouprig_case_t *it = dt_grouprig_cases; it->name; it++)
        if (strcmp(it->name, name) == 0) {
            const char *why = dt_grouprig_run(&options, it);
            cr_assert_null(why, "%s: %s", name, why);
            return;
        }
    cr_assert_fail("no case %s", name);
}

#define CASE(name)                                                                                 \
    Test(group, name)                                                                              \
    {                                                                                              \
        run(#name);                                                                                \
    }
CASE(every_collective)
CASE(boxes_of_uneven_sizes)
CASE(a_refused_operation_changes_nothing)
CASE(generations_follow_each_other)
CASE(a_member_killed_in_a_move_ends_nothing_but_it)
CASE(a_member_killed_before_it_joins_ends_nothing_but_it)
CASE(who_leaves_in_a_move_is_an_error_of_all_others)

Test(group, without_a_library_there_are_none)
{
    dt_error_t err = {0};
    void *ctx = NULL;
    const dt_group_options_t none = {.library = "/no/nccl.so", .runtime = "/no/cudart.so"};
    cr_assert_eq(dt_nccl_groups()->open(&none, &ctx, &err), DT_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.text, "/no/cudart.so"), "%s", err.text);
    cr_assert_null(ctx);
}
