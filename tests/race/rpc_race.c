/* Threads wake the state thread through mailboxes and bare wakes while streams run and while it
 * stops: no mail is lost, none runs twice, nothing is posted into a queue that is gone. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "rpc/rpc.h"

#define PRODUCER_COUNT 4
#define ITEM_COUNT     5000

struct item {
    dt_mail_t mail;
};

static dt_rpc_t *rpc;
static dt_mailbox_t mb;
static dt_rpc_wake_t *mail_wake, *bare_wake;
static int total, bare;
static atomic_bool should_end;

static void on_item(dt_mail_t *mail)
{
    free(DT_CONTAINER_OF(mail, struct item, mail));
    if (++total == PRODUCER_COUNT * ITEM_COUNT)
        dt_rpc_stop(rpc);
}

static void on_mail_wake(void *arg)
{
    dt_mailbox_drain(arg);
}

static void on_bare_wake(void *arg)
{
    (void)arg;
    bare++;
}

static void *produce(void *arg)
{
    (void)arg;
    for (int i = 0; i < ITEM_COUNT; i++) {
        struct item *item = malloc(sizeof *item);
        dt_check(item != NULL);
        item->mail.run = on_item;
        while (dt_mailbox_post(&mb, &item->mail) == DT_ERR_AGAIN)
            (void)sched_yield();
    }
    return NULL;
}

static void *wake_often(void *arg)
{
    (void)arg;
    while (!atomic_load(&should_end)) {
        dt_rpc_wake(bare_wake);
        (void)sched_yield();
    }
    return NULL;
}

static int run_once(void)
{
    dt_loop_t *loop;
    dt_error_t err;
    pthread_t threads[PRODUCER_COUNT + 1];
    total = bare = 0;
    atomic_store(&should_end, false);
    if (dt_loop_create(&loop, &err) != DT_OK || dt_rpc_create(loop, NULL, &rpc, &err) != DT_OK ||
        dt_rpc_wake_create(rpc, on_mail_wake, &mb, &mail_wake, &err) != DT_OK ||
        dt_rpc_wake_create(rpc, on_bare_wake, NULL, &bare_wake, &err) != DT_OK ||
        dt_mailbox_init(&mb, 64, dt_rpc_wake, mail_wake, &err) != DT_OK)
        return 1;
    for (int i = 0; i <= PRODUCER_COUNT; i++)
        if (pthread_create(&threads[i], NULL, i < PRODUCER_COUNT ? produce : wake_often, NULL) != 0)
            return 1;
    dt_rpc_run(rpc);
    atomic_store(&should_end, true);
    for (int i = 0; i <= PRODUCER_COUNT; i++)
        (void)pthread_join(threads[i], NULL);
    dt_mailbox_fini(&mb);
    dt_rpc_wake_free(mail_wake); /* with a post still outstanding, perhaps */
    dt_rpc_wake_free(bare_wake);
    if (dt_rpc_free(rpc) != DT_OK || dt_loop_free(loop) != DT_OK)
        return 1;
    return total == PRODUCER_COUNT * ITEM_COUNT && bare > 0 ? 0 : 1;
}

int main(void)
{
    for (int i = 0; i < 3; i++)
        if (run_once() != 0) {
            fprintf(stderr, "run %d: %d mails, %d wakes, or something was left open\n", i, total,
                    bare);
            return 1;
        }
    return 0;
}
