/* Metadata by number, so that a call compares numbers. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "client.h"

#define METAS_MAX (1u << 22)

static uint64_t hash_of(const dt_meta_t *meta)
{
    uint64_t hash =
        dt_hash_u64((uint64_t)meta->dtype << 16 | (uint64_t)meta->ndim << 8 | meta->layout);
    bool is_explicit = (meta->layout & DT_META_CLASS_MASK) == DT_META_EXPLICIT;
    for (int i = 0; i < meta->ndim; i++) {
        hash = dt_hash_u64(hash ^ (uint64_t)meta->sizes[i]);
        if (is_explicit)
            hash = dt_hash_u64(hash + (uint64_t)meta->strides[i]);
    }
    return hash;
}

static void put_index(dt_client_metas_t *metas, uint32_t item)
{
    uint32_t at = (uint32_t)hash_of(metas->items[item]) & (metas->index_cap - 1);
    while (metas->index[at])
        at = (at + 1) & (metas->index_cap - 1);
    metas->index[at] = item + 1;
}

static bool grow(dt_client_metas_t *metas)
{
    uint32_t cap = metas->cap ? 2 * metas->cap : 64;
    dt_meta_t **items = realloc(metas->items, cap * sizeof *items);
    if (!items)
        return false;
    metas->items = items;
    uint32_t *index = calloc(2 * (size_t)cap, sizeof *index);
    if (!index)
        return false;
    free(metas->index);
    metas->index = index;
    metas->index_cap = 2 * cap;
    metas->cap = cap;
    for (uint32_t i = 0; i < metas->count; i++)
        put_index(metas, i);
    return true;
}

dt_status_t dt_client_meta_intern(dt_client_metas_t *metas, const dt_meta_t *meta,
                                  uint32_t *ret_index)
{
    if (metas->index_cap) {
        uint32_t at = (uint32_t)hash_of(meta) & (metas->index_cap - 1);
        for (; metas->index[at]; at = (at + 1) & (metas->index_cap - 1))
            if (dt_meta_equal(metas->items[metas->index[at] - 1], meta)) {
                *ret_index = metas->index[at] - 1;
                return DT_OK;
            }
    }
    if (metas->count == METAS_MAX)
        return DT_ERR_LIMIT;
    if (metas->count == metas->cap && !grow(metas))
        return DT_ERR_NOMEM;
    dt_meta_t *copy = malloc(sizeof *copy);
    if (!copy)
        return DT_ERR_NOMEM;
    *copy = *meta;
    metas->items[metas->count] = copy;
    put_index(metas, metas->count);
    *ret_index = metas->count++;
    return DT_OK;
}

void dt_client_metas_fini(dt_client_metas_t *metas)
{
    for (uint32_t i = 0; i < metas->count; i++)
        free(metas->items[i]);
    free(metas->items);
    free(metas->index);
    *metas = (dt_client_metas_t){0};
}
