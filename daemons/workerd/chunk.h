/* A BulkChunk read in place, so that its bytes are copied once: into a ring, or to a socket. */
#ifndef DT_WORKERD_CHUNK_H
#define DT_WORKERD_CHUNK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine_channel.h"

#define DT_NODE_CHUNK_DATA_MAX (1u << 20)

typedef struct dt_node_chunk {
    dt_channel_chunk_t head; /* size is 0 unless it is PLACED */
    const uint8_t *data;
    size_t size;
    const uint8_t *error; /* a packed OperatorError; NULL: none */
    size_t error_bytes;
    uint64_t total;
    bool is_done;
} dt_node_chunk_t;

/* Read a packed BulkChunk. Ownership: *ret_chunk points into `bytes`. False: malformed, or more
 * data than a chunk may have. */
bool dt_node_chunk_read(const uint8_t *bytes, size_t size, dt_node_chunk_t *ret_chunk);

#endif
