/* Frames from an engine on another host: heads by themselves, then a whole stream into one side of
 * a link that waits for the boxes of an exchange. Whatever comes, what is taken are the boxes that
 * were expected. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/board.h"
#include "transport/link.h"

static void read_head(const uint8_t *data, size_t size)
{
    uint8_t bytes[DT_LINK_HEAD_BYTES] = {0}, again[DT_LINK_HEAD_BYTES];
    dt_link_head_t head, second;
    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    if (!dt_link_get(bytes, &head))
        return;
    if (head.size > DT_LINK_BODY_MAX || head.number >> 60)
        abort();
    dt_link_put(again, &head);
    if (!dt_link_get(again, &second) || second.number != head.number || second.size != head.size ||
        second.from != head.from || second.to != head.to)
        abort();
}

/* Two devices, one here and one far: parts that are summed. */
static dt_exchange_plan_t *plan_make(void)
{
    static const uint64_t vdevs[] = {0, 1};
    static const uint32_t members[] = {0, 1};
    static const uint32_t hosts[] = {0, 1};
    static const uint8_t is_remote[] = {0, 1};
    static const dt_exchange_world_t world = {0, 2, members, hosts, is_remote};
    const uint32_t two = 2;
    dt_meta_t meta;
    dt_shard_mesh_t mesh;
    dt_layout_t from = {.ndim = 1, .placements = {dt_placement_partial(DT_REDUCTION_SUM)}};
    dt_layout_t to = dt_layout_replicate(1, 1);
    dt_exchange_plan_t *plan;
    if (dt_meta_set(&meta, DT_DTYPE_F32, 1, (const int64_t[]){6}, NULL, 0, NULL) != DT_OK ||
        dt_shard_mesh_init(&mesh, 1, &two, vdevs, NULL) != DT_OK)
        abort();
    const dt_shard_pair_t pair = {&meta, &mesh, &mesh, &from, &to};
    if (dt_exchange_plan_create("fuzz", &pair, &plan, NULL) != DT_OK ||
        dt_exchange_plan_prepare(plan, &world, NULL) != DT_OK)
        abort();
    return plan;
}

static void read_stream(const uint8_t *data, size_t size)
{
    int pair[2];
    dt_link_t *link;
    dt_exchange_plan_t *plan = plan_make();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) ||
        dt_transport_link_create(pair[0], NULL, &link, NULL) != DT_OK)
        abort();
    (void)!write(pair[1], data, size);
    (void)close(pair[1]);
    dt_link_begin(link);
    const dt_link_turn_t turn = {.plan = plan, .number = 1, .member = 1};
    while (!link->is_broken && dt_link_pump(link, &turn))
        ;
    if (link->cause_bytes > DT_TRANSPORT_CAUSE_MAX || !memchr(link->text, '\0', sizeof link->text))
        abort();
    for (uint32_t i = 0; i < plan->piece_count; i++)
        if (plan->pieces[i].staged > plan->pieces[i].remote_count)
            abort();
    dt_transport_link_free(link);
    dt_exchange_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_head(data, size);
    read_stream(data, size < 65536 ? size : 65536);
    return 0;
}
