#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>

#include "loop/mailbox.h"

struct item {
    dt_mail_t mail;
    int number;
};

static dt_mailbox_t mb;
static int wakes, seen;
static dt_error_t err;

static void count_wake(void *arg)
{
    int *count = arg;
    ++*count;
}

static void check_order(dt_mail_t *mail)
{
    cr_assert(eq(int, DT_CONTAINER_OF(mail, struct item, mail)->number, seen));
    seen++;
}

static void post_again(dt_mail_t *mail)
{
    seen++;
    mail->run = check_order;
    cr_assert(eq(int, dt_mailbox_post(&mb, mail), DT_OK));
}

static void open_mailbox(size_t depth_max)
{
    cr_assert(eq(int, dt_mailbox_init(&mb, depth_max, count_wake, &wakes, &err), DT_OK));
}

TestSuite(mailbox, .timeout = 60);

Test(mailbox, delivers_in_order_and_wakes_once_for_many)
{
    struct item items[50];
    open_mailbox(64);
    for (int i = 0; i < 50; i++) {
        items[i] = (struct item){.mail.run = check_order, .number = i};
        cr_assert(eq(int, dt_mailbox_post(&mb, &items[i].mail), DT_OK));
    }
    cr_assert(eq(int, wakes, 1));
    cr_assert(eq(sz, dt_mailbox_depth(&mb), 50));
    dt_mailbox_drain(&mb);
    cr_assert(eq(int, seen, 50));
    cr_assert(eq(sz, dt_mailbox_depth(&mb), 0));
    dt_mailbox_fini(&mb);
}

Test(mailbox, wakes_again_for_what_is_posted_while_it_drains)
{
    struct item item = {.mail.run = post_again, .number = 1};
    open_mailbox(1);
    cr_assert(eq(int, dt_mailbox_post(&mb, &item.mail), DT_OK));
    dt_mailbox_drain(&mb);
    cr_assert(eq(int, seen, 1));
    cr_assert(eq(int, wakes, 2));
    dt_mailbox_drain(&mb);
    cr_assert(eq(int, seen, 2));
    dt_mailbox_fini(&mb);
}

Test(mailbox, refuses_with_AGAIN_when_full_and_takes_no_ownership)
{
    struct item one = {.mail.run = check_order}, two = {.mail.run = check_order, .number = 1};
    open_mailbox(1);
    cr_assert(eq(int, dt_mailbox_post(&mb, &one.mail), DT_OK));
    cr_assert(eq(int, dt_mailbox_post(&mb, &two.mail), DT_ERR_AGAIN));
    dt_mailbox_drain(&mb);
    cr_assert(eq(int, seen, 1));
    cr_assert(eq(int, dt_mailbox_post(&mb, &two.mail), DT_OK));
    dt_mailbox_drain(&mb);
    dt_mailbox_fini(&mb);
}

Test(mailbox, refuses_with_STOPPED_after_close_but_runs_what_was_queued)
{
    struct item one = {.mail.run = check_order}, two = {.mail.run = check_order};
    open_mailbox(8);
    cr_assert(eq(int, dt_mailbox_post(&mb, &one.mail), DT_OK));
    dt_mailbox_close(&mb);
    cr_assert(eq(int, dt_mailbox_post(&mb, &two.mail), DT_ERR_STOPPED));
    dt_mailbox_drain(&mb);
    cr_assert(eq(int, seen, 1));
    dt_mailbox_fini(&mb);
}

Test(mailbox, without_room_is_refused_at_init)
{
    cr_assert(eq(int, dt_mailbox_init(&mb, 0, count_wake, &wakes, &err), DT_ERR_INVALID));
    cr_assert(ne(int, err.text[0], 0));
}
