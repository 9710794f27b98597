/* Four threads post into one mailbox that a loop drains. A plain main(), since ThreadSanitizer
 * cannot run Criterion. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "loop/loop.h"
#include "loop/mailbox.h"

#define PRODUCER_COUNT 4
#define ITEM_COUNT     20000

struct item {
    dt_mail_t mail;
    int producer;
    int number;
};

struct producer {
    pthread_t thread;
    int index;
};

static dt_loop_t *loop;
static dt_mailbox_t mb;
static int seen[PRODUCER_COUNT], total;

static void on_item(dt_mail_t *mail)
{
    struct item *item = DT_CONTAINER_OF(mail, struct item, mail);
    dt_check(item->number == seen[item->producer]++); /* in the order of post */
    free(item);
    total++;
}

static void wake(void *arg)
{
    dt_loop_wake(arg);
}

static void *produce(void *arg)
{
    struct producer *producer = arg;
    for (int i = 0; i < ITEM_COUNT; i++) {
        struct item *item = malloc(sizeof *item);
        dt_check(item != NULL);
        item->mail.run = on_item;
        item->producer = producer->index;
        item->number = i;
        while (dt_mailbox_post(&mb, &item->mail) == DT_ERR_AGAIN)
            (void)sched_yield();
    }
    return NULL;
}

static void on_tick(void *arg, int64_t deadline_ns)
{
    dt_timer_t **timer = arg;
    dt_mailbox_drain(&mb);
    if (total == PRODUCER_COUNT * ITEM_COUNT)
        dt_loop_stop(loop);
    else
        dt_timer_arm(*timer, deadline_ns + 1000000);
}

int main(void)
{
    struct producer producers[PRODUCER_COUNT];
    dt_timer_t *timer;
    dt_error_t err;
    if (dt_loop_create(&loop, &err) != DT_OK ||
        dt_mailbox_init(&mb, 64, wake, loop, &err) != DT_OK ||
        dt_timer_create(loop, on_tick, &timer, &timer, &err) != DT_OK)
        return 1;
    dt_timer_arm(timer, dt_loop_now_ns());
    for (int i = 0; i < PRODUCER_COUNT; i++) {
        producers[i].index = i;
        if (pthread_create(&producers[i].thread, NULL, produce, &producers[i]) != 0)
            return 1;
    }
    dt_loop_run(loop);
    for (int i = 0; i < PRODUCER_COUNT; i++)
        (void)pthread_join(producers[i].thread, NULL);
    dt_timer_free(timer);
    dt_mailbox_fini(&mb);
    if (dt_loop_free(loop) != DT_OK || total != PRODUCER_COUNT * ITEM_COUNT) {
        fprintf(stderr, "saw %d mails, or a handle leaked\n", total);
        return 1;
    }
    return 0;
}
