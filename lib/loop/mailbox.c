#include "loop/mailbox.h"

dt_status_t dt_mailbox_init(dt_mailbox_t *mb, size_t depth_max, void (*wake)(void *arg),
                            void *wake_arg, dt_error_t *err)
{
    if (depth_max == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "a mailbox needs room for one mail");
    *mb = (dt_mailbox_t){.depth_max = depth_max, .wake = wake, .wake_arg = wake_arg};
    pthread_mutex_init(&mb->lock, NULL);
    dt_list_init(&mb->queue);
    return DT_OK;
}

dt_status_t dt_mailbox_post(dt_mailbox_t *mb, dt_mail_t *mail)
{
    dt_status_t status = DT_OK;
    pthread_mutex_lock(&mb->lock);
    if (mb->is_closed) {
        status = DT_ERR_STOPPED;
    } else if (mb->depth == mb->depth_max) {
        status = DT_ERR_AGAIN;
    } else {
        dt_list_push(&mb->queue, &mail->link);
        if (mb->depth++ == 0)
            mb->wake(mb->wake_arg); /* under the lock, so that close and fini cannot come between */
    }
    pthread_mutex_unlock(&mb->lock);
    return status;
}

void dt_mailbox_drain(dt_mailbox_t *mb)
{
    dt_list_t batch;
    dt_list_t *link;
    pthread_mutex_lock(&mb->lock);
    dt_list_move(&batch, &mb->queue); /* all of it: one wake may stand for many posts */
    mb->depth = 0;
    pthread_mutex_unlock(&mb->lock);
    while ((link = dt_list_pop(&batch)) != NULL) {
        dt_mail_t *mail = DT_CONTAINER_OF(link, dt_mail_t, link);
        mail->run(mail);
    }
}

void dt_mailbox_close(dt_mailbox_t *mb)
{
    pthread_mutex_lock(&mb->lock);
    mb->is_closed = true;
    pthread_mutex_unlock(&mb->lock);
}

void dt_mailbox_fini(dt_mailbox_t *mb)
{
    dt_check(dt_list_is_empty(&mb->queue));
    pthread_mutex_destroy(&mb->lock);
}

size_t dt_mailbox_depth(dt_mailbox_t *mb)
{
    pthread_mutex_lock(&mb->lock);
    size_t depth = mb->depth;
    pthread_mutex_unlock(&mb->lock);
    return depth;
}
