/* Readers of tensor bytes' messages: heads of data connections, chunks as the agent and the program
 * read them. What they accept lies within the input, and within its bounds. */
#include <stdlib.h>
#include <string.h>

#include "client/src/client.h"
#include "daemons/workerd/chunk.h"
#include "wire/bulk.h"

static void read_head(const uint8_t *data, size_t size)
{
    uint8_t bytes[DT_BULK_HEAD_BYTES] = {0}, again[DT_BULK_HEAD_BYTES];
    dt_bulk_head_t head, second;
    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    if (dt_bulk_get(bytes, &head, NULL) != DT_OK)
        return;
    if (dt_bulk_body(&head) > DT_BULK_BODY_MAX)
        abort();
    if (head.kind == DT_BULK_PLACED && (uint64_t)head.place + head.size > DT_BULK_WINDOW_BYTES)
        abort();
    dt_bulk_put(again, &head);
    if (dt_bulk_get(again, &second, NULL) != DT_OK || second.transfer != head.transfer ||
        second.offset != head.offset || second.place != head.place || second.size != head.size)
        abort();
}

static bool is_inside(const uint8_t *part, size_t part_bytes, const uint8_t *data, size_t size)
{
    return part_bytes == 0 || (part >= data && part + part_bytes <= data + size);
}

static void read_chunk(const uint8_t *data, size_t size)
{
    dt_node_chunk_t node;
    dt_client_chunk_t client;
    if (dt_node_chunk_read(data, size, &node) &&
        (node.size > DT_NODE_CHUNK_DATA_MAX || !is_inside(node.data, node.size, data, size) ||
         !is_inside(node.error, node.error_bytes, data, size)))
        abort();
    if (dt_client_chunk_read(data, size, &client) &&
        (!is_inside(client.data, client.data_bytes, data, size) ||
         !is_inside(client.error, client.error_bytes, data, size)))
        abort();
}

/* Units are taken and given as the input says; none is given out twice. */
static void use_units(const uint8_t *data, size_t size)
{
    dt_bulk_units_t units = {.count = size ? data[0] % (DT_BULK_UNITS_MAX + 1) : 0};
    uint8_t owner[DT_BULK_UNITS_MAX] = {0};
    for (size_t i = 1; i < size; i++) {
        uint32_t first, count = data[i] % 9;
        if (data[i] & 128) {
            for (uint32_t u = 0; u < units.count; u++)
                if (owner[u] == (uint8_t)(i / 2 % 250 + 1)) {
                    owner[u] = 0;
                    dt_bulk_units_give(&units, u, 1);
                }
        } else if (dt_bulk_units_take(&units, count, &first)) {
            for (uint32_t u = first; u < first + count; u++) {
                if (u >= units.count || owner[u])
                    abort();
                owner[u] = (uint8_t)(i % 250 + 1);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_head(data, size);
    read_chunk(data, size);
    use_units(data, size);
    return 0;
}
