/* The operator stream through real daemons: a test's own client, the controller, the agent, an
 * engine. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "lib/sessionpeer.h"
#include "lib/testcluster.h"

TestSuite(session, .timeout = 100);

static const char conf[] = "Devices=ref\nEngines=1\n";

static dt_testcluster_t *start(const char *worker_conf)
{
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = worker_conf});
}

static dt_sessionpeer_t *connect_to(dt_testcluster_t *tc, uint64_t memory_bytes)
{
    dt_sessionpeer_t *peer =
        dt_sessionpeer_open(dt_testcluster_controller_socket(tc), "", 1, memory_bytes);
    cr_assert_not_null(peer, "%s", dt_testcluster_logs(tc));
    return peer;
}

Test(session, a_product_comes_back_with_the_right_bytes)
{
    dt_testcluster_t *tc = start(conf);
    dt_sessionpeer_t *peer = connect_to(tc, 0);
    const int64_t sizes[] = {2, 2};
    const float a[] = {1, 2, 3, 4};
    const float b[] = {5, 6, 7, 8};
    const float wanted[] = {19, 22, 43, 50};
    float is[4] = {0};
    char kind[64];
    uint32_t mm = dt_sessionpeer_define_f32(peer, "aten::mm", 2, 2, sizes, DT_ALIAS_FRESH, 0);
    uint64_t inputs[] = {dt_sessionpeer_upload(peer, DT_DTYPE_F32, 2, sizes, a),
                         dt_sessionpeer_upload(peer, DT_DTYPE_F32, 2, sizes, b)};
    uint64_t product = dt_sessionpeer_op(peer, mm, inputs, 2, true);
    bool is_read = dt_sessionpeer_read(peer, product, is, sizeof is, kind, sizeof kind);
    cr_assert(is_read, "%s\n%s", kind, dt_testcluster_logs(tc));
    cr_assert_arr_eq(is, wanted, sizeof wanted);
    dt_sessionpeer_close(peer);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
