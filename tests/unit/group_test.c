/* Groups of devices by lib/backend/nccl, on a library that plays NCCL between processes. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/nccl/api.h"
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
CASE(rows_too_far_apart_for_one_copy)
CASE(a_refused_operation_changes_nothing)
CASE(groups_of_two_programs_wait_for_none_of_the_other)
CASE(who_left_writes_nothing_any_more)
CASE(generations_follow_each_other)
CASE(a_member_killed_in_a_move_ends_nothing_but_it)
CASE(a_member_killed_before_it_joins_ends_nothing_but_it)
CASE(who_leaves_in_a_move_is_an_error_of_all_others)

Test(group, a_library_that_is_loaded_is_taken_before_one_that_could_be)
{
    char other[512], loaded[512];
    dt_error_t err = {0};
    void *taken = NULL;
    (void)snprintf(other, sizeof other, "%s/fake_nvml.so", getenv("DT_TEST_SO"));
    (void)snprintf(loaded, sizeof loaded, "%s/fake_nccl.so", getenv("DT_TEST_SO"));
    const char *const names[] = {other, loaded, NULL}, *const none[] = {"/no/nccl.so", NULL};
    cr_assert_eq(dt_nccl_library_open(names, &taken, &err), DT_OK, "%s", err.text);
    cr_assert_null(dlsym(taken, "ncclSend"), "the first of those that can be loaded");
    (void)dlclose(taken);
    void *ours = dlopen(loaded, RTLD_NOW | RTLD_LOCAL);
    cr_assert_eq(dt_nccl_library_open(names, &taken, &err), DT_OK, "%s", err.text);
    cr_assert_eq(taken, ours);
    (void)dlclose(taken);
    (void)dlclose(ours);
    cr_assert_eq(dt_nccl_library_open(none, &taken, &err), DT_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.text, "/no/nccl.so"), "%s", err.text);
}

Test(group, without_a_library_there_are_none)
{
    dt_error_t err = {0};
    void *ctx = NULL;
    const dt_group_options_t none = {.library = "/no/nccl.so", .runtime = "/no/cudart.so"};
    cr_assert_eq(dt_nccl_groups()->open(&none, &ctx, &err), DT_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.text, "/no/cudart.so"), "%s", err.text);
    cr_assert_null(ctx);
}
