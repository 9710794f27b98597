/* Engines' communication threads beside their executors: sessions in opposite order, peers on one
 * host and on others, sessions that close in the middle. Values are right and nobody hangs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transportrig.h"
#include "shm/ring.h"

#define ROUNDS 60u

static const uint8_t engine_of[DT_RIG_VDEVS_MAX] = {0, 1, 2, 0};

static void die(const char *what)
{
    fprintf(stderr, "transport_race: %s\n", what);
    exit(1);
}

static void check(dt_rig_t *rig, uint32_t session, const dt_rig_case_t *c)
{
    char what[600];
    if (!dt_rig_compare(rig, session, c, what, sizeof what))
        die(what);
    dt_rig_drop(rig, session);
}

static void opposite_orders(const uint8_t *host_of, dt_rig_how_t how)
{
    static const char *const pairs[][2] = {
        {"Psum", "R"}, {"S0", "R"}, {"Psum", "S0"}, {"S0", "S1"}};
    const uint32_t four = 4;
    dt_rig_t rig;
    dt_rig_open_hosts(&rig, 3, 2, engine_of, host_of, how);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        dt_rig_case_t c;
        const int64_t sizes[] = {5 + round % 7, round % 16 ? 3 : 3000};
        dt_rig_case(&c, DT_DTYPE_F32, 2, sizes, 1, &four, pairs[round % 4][0], pairs[round % 4][1],
                    round);
        for (uint32_t e = 0; e < 3; e++)
            dt_rig_start(&rig, e, (e + round) % 2, &c, round, NULL);
        for (uint32_t e = 0; e < 3; e++)
            dt_rig_start(&rig, e, (e + round + 1) % 2, &c, round, NULL);
        dt_rig_finish(&rig);
        check(&rig, 0, &c);
        check(&rig, 1, &c);
    }
    dt_rig_close(&rig);
}

/* One session closes on an engine while the others wait for it, or have just begun. */
static void closing(const uint8_t *host_of, dt_rig_how_t how, uint32_t round)
{
    const uint32_t four = 4;
    dt_rig_t rig;
    dt_rig_case_t c;
    dt_rig_open_hosts(&rig, 3, 1, engine_of, host_of, how);
    dt_rig_case(&c, DT_DTYPE_F32, 2, (const int64_t[]){40, 1000}, 1, &four, "Psum", "R", round);
    for (uint32_t e = 0; e < 3; e++)
        if (e != 1 || round % 2)
            dt_rig_start(&rig, e, 0, &c, 1, NULL);
    dt_transport_close(rig.engines[1].transport, 0);
    rig.engines[1].moves[0].is_started = false;
    dt_rig_finish(&rig);
    if (round % 2 == 0 && rig.engines[0].moves[0].status != DT_ERR_LOST)
        die("who closed was not missed");
    dt_rig_close(&rig);
}

int main(void)
{
    static const uint8_t together[] = {0, 0, 0};
    static const uint8_t apart[] = {0, 1, 2};
    static const uint8_t two[] = {0, 1, 0};
    opposite_orders(together, DT_RIG_PLAIN);
    opposite_orders(apart, DT_RIG_PLAIN);
    opposite_orders(two, DT_RIG_PLAIN);
    opposite_orders(apart, DT_RIG_TLS);
    for (uint32_t round = 0; round < 8; round++) {
        closing(together, DT_RIG_PLAIN, round);
        closing(two, DT_RIG_PLAIN, round);
        closing(two, DT_RIG_TLS, round);
    }
    printf("transport_race: %u rounds of two sessions on three engines, four ways\n", ROUNDS);
    return 0;
}
