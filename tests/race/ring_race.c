/* One writer and two readers in threads of their own: every message comes to both, in order and
 * whole, nobody sleeps through one, and no wake is written to who is awake. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"

#define MESSAGES  200000u
#define CAPACITY  16384u
#define SIZE_MAX_ 600u

typedef struct side {
    dt_ring_reader_t reader;
    dt_ring_cursor_t cursor;
    int wake;
    uint64_t sleeps;
    unsigned slow; /* reads slowly each so many messages */
} side_t;

static dt_ring_writer_t writer;
static int writer_wake;

static void die(const char *what)
{
    fprintf(stderr, "ring_race: %s\n", what);
    exit(1);
}

static void sleep_on(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, 20000) != 1)
        die("slept through a wake");
    dt_ring_wake_clear(fd);
}

static void *read_all(void *arg)
{
    side_t *side = arg;
    dt_ring_message_t message;
    for (uint32_t next = 0; next < MESSAGES;) {
        dt_status_t status = dt_ring_peek(&side->reader, &message);
        if (status == DT_ERR_PEER)
            die("a sound ring is said to be broken");
        if (status != DT_OK) {
            if (!dt_ring_prepare_sleep(&side->reader)) {
                side->sleeps++;
                sleep_on(side->wake);
            }
            continue;
        }
        if (message.kind != next || message.size != next * 7 % SIZE_MAX_)
            die("a message is out of order");
        for (uint32_t i = 0; i < message.size; i++)
            if (message.bytes[i] != (uint8_t)next)
                die("a message is torn");
        dt_ring_pass(&side->reader);
        next++;
        if (side->slow && next % side->slow == 0)
            (void)poll(NULL, 0, 1);
    }
    return NULL;
}

int main(void)
{
    static side_t sides[2] = {{.slow = 0}, {.slow = 997}};
    pthread_t threads[2];
    dt_error_t err = {0};
    uint32_t reader;
    uint64_t waits = 0;
    uint8_t bytes[SIZE_MAX_];
    void *memory = aligned_alloc(4096, dt_ring_body_bytes(CAPACITY));
    memset(memory, 0, dt_ring_body_bytes(CAPACITY));
    if (dt_ring_writer_init(&writer, memory, CAPACITY, &err) != DT_OK ||
        dt_ring_wake_create(&writer_wake, &err) != DT_OK)
        die(err.text);
    for (int i = 0; i < 2; i++)
        if (dt_ring_wake_create(&sides[i].wake, &err) != DT_OK ||
            dt_ring_join(&writer, &sides[i].cursor, sides[i].wake, &reader, &err) != DT_OK ||
            dt_ring_reader_init(&sides[i].reader, memory, dt_ring_body_bytes(CAPACITY),
                                &sides[i].cursor, writer_wake, &err) != DT_OK)
            die(err.text);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, read_all, &sides[i]))
            die("no thread");
    for (uint32_t i = 0; i < MESSAGES;) {
        uint32_t size = i * 7 % SIZE_MAX_;
        memset(bytes, (int)(uint8_t)i, size);
        dt_status_t status = dt_ring_write(&writer, i, bytes, size, NULL);
        if (status == DT_OK) {
            i++;
            continue;
        }
        if (status != DT_ERR_AGAIN)
            die("a sound reader is said to be broken");
        dt_ring_want_room(&writer);
        if (dt_ring_room(&writer) < SIZE_MAX_) {
            waits++;
            sleep_on(writer_wake);
        }
    }
    for (int i = 0; i < 2; i++)
        (void)pthread_join(threads[i], NULL);
    if (!dt_ring_is_drained(&writer))
        die("something is left");
    printf("ring_race: %u messages, the writer slept %llu times, the readers %llu and %llu\n",
           MESSAGES, (unsigned long long)waits, (unsigned long long)sides[0].sleeps,
           (unsigned long long)sides[1].sleeps);
    free(memory);
    return 0;
}
