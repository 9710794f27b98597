/* From a call to its signature.
 *
 * A call is written as a key: name, tags, attributes, numbers of the inputs' metadata. Equal keys
 * are one family. Numbers that may become dynamic (below) are no part of it: a family has an entry
 * for each set of them that was seen. A number that has changed twice while the outputs stayed the
 * same becomes dynamic: from then on the family has one entry for all its values, and operators
 * bring it along. Only numbers that cannot change the outputs' metadata may: floating-point ones
 * behind a tensor, and the integers of overloads that take a Scalar; and select's index.
 *
 * Keys hold addresses of nothing, so they live for the session. Calls by handles and by operands
 * have families of their own: the latter decide themselves what is dynamic. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define KEY_HANDLES  1
#define KEY_OPERANDS 2
#define KEY_MAX      ((size_t)DT_SIGNATURE_BYTES_MAX * 2)
#define ARG_BYTES    24u /* most that an argument without a list takes */
#define CHANGES_MIN  2u

/* ---- writing keys ---- */

static bool key_room(dt_client_call_t *call, size_t bytes)
{
    size_t cap = call->key_cap ? call->key_cap : 512;
    if (call->key_bytes + bytes <= call->key_cap)
        return true;
    while (cap < call->key_bytes + bytes)
        cap *= 2;
    uint8_t *grown = cap <= KEY_MAX ? realloc(call->key, cap) : NULL;
    if (!grown)
        return false;
    call->key = grown;
    call->key_cap = cap;
    return true;
}

static void key_put(dt_client_call_t *call, const void *bytes, size_t size)
{
    memcpy(call->key + call->key_bytes, bytes, size);
    call->key_bytes += size;
}

static bool key_list(dt_client_call_t *call, const void *items, uint32_t count, size_t item_bytes)
{
    if (count > DT_VALUE_LIST_MAX || (count && !items) ||
        !key_room(call, sizeof count + count * item_bytes + ARG_BYTES))
        return false;
    key_put(call, &count, sizeof count);
    if (count)
        key_put(call, items, count * item_bytes);
    return true;
}

static bool key_values(dt_client_call_t *call, const dt_value_t *value)
{
    if (!key_list(call, NULL, 0, 0) || (value->count && !value->values) ||
        value->count > DT_VALUE_LIST_MAX)
        return false;
    memcpy(call->key + call->key_bytes - sizeof value->count, &value->count, sizeof value->count);
    for (uint32_t i = 0; i < value->count; i++) {
        const dt_value_t *item = &value->values[i];
        size_t bytes = item->tag == DT_VALUE_STR ? item->count : 16;
        if (!key_room(call, bytes + ARG_BYTES))
            return false;
        key_put(call, &item->tag, 1);
        if (item->tag == DT_VALUE_STR) {
            if (!key_list(call, item->text, item->count, 1))
                return false;
        } else if (item->tag == DT_VALUE_COMPLEX) {
            key_put(call, item->doubles, 16);
        } else if (item->tag == DT_VALUE_INT || item->tag == DT_VALUE_DOUBLE) {
            key_put(call, &item->number, sizeof item->number);
        } else if (item->tag != DT_VALUE_TRUE && item->tag != DT_VALUE_FALSE) {
            return false;
        }
    }
    return true;
}

static bool input_room(dt_client_call_t *call)
{
    uint32_t cap = call->input_cap ? 2 * call->input_cap : 64;
    uint64_t *inputs;
    dt_tensor_t **handles;
    uint32_t *metas;
    if (call->input_count < call->input_cap)
        return true;
    if (cap > 2 * DT_SIGNATURE_TENSORS_MAX)
        return false;
    if ((inputs = realloc(call->inputs, cap * sizeof *inputs)))
        call->inputs = inputs;
    if ((handles = realloc(call->handles, cap * sizeof *handles)))
        call->handles = handles;
    if ((metas = realloc(call->metas, cap * sizeof *metas)))
        call->metas = metas;
    if (!inputs || !handles || !metas)
        return false;
    call->input_cap = cap;
    return true;
}

/* ---- taking a call apart ---- */

struct parse {
    dt_session_t *session;
    dt_client_call_t *call;
    const dt_operation_t *operation; /* NULL: by handles */
    bool takes_ints;                 /* integers of this operator may become dynamic, */
    uint32_t ints_from;              /* from this argument on */
    const char *trouble;
};

static bool put_input(struct parse *p, void *handle)
{
    dt_client_call_t *call = p->call;
    uint32_t meta = DT_CLIENT_NO_META, vdev;
    if (!input_room(call) || !key_room(call, ARG_BYTES))
        return false;
    if (p->operation) {
        if (call->input_count >= p->operation->input_count) {
            p->trouble = "there are more tensors among the arguments than inputs";
            return false;
        }
        const dt_operand_t *operand = &p->operation->inputs[call->input_count];
        vdev = operand->vdev;
        if (dt_client_meta_intern(&p->session->metas, &operand->meta, &meta) != DT_OK)
            return false;
        call->handles[call->input_count] = NULL;
    } else {
        dt_tensor_t *tensor = handle;
        if (tensor->session != p->session) {
            p->trouble = "a tensor belongs to another session";
            return false;
        }
        meta = tensor->meta;
        vdev = tensor->vdev;
        if (meta == DT_CLIENT_NO_META)
            call->unknown = tensor;
        call->handles[call->input_count] = tensor;
        call->inputs[call->input_count] = tensor->id;
    }
    if (call->input_count > 0 && vdev != call->vdev && p->session->track.mesh_count == 0) {
        p->trouble = "tensors lie on different virtual devices";
        return false;
    }
    if (call->input_count == 0)
        call->vdev = vdev;
    call->metas[call->input_count++] = meta;
    key_put(call, &meta, sizeof meta);
    return true;
}

static bool put_tensors(struct parse *p, const dt_value_t *value)
{
    static const uint32_t none = UINT32_MAX - 1;
    if (!key_list(p->call, NULL, 0, 0) || (value->count && !value->handles) ||
        value->count > DT_VALUE_LIST_MAX)
        return false;
    memcpy(p->call->key + p->call->key_bytes - sizeof value->count, &value->count,
           sizeof value->count);
    for (uint32_t i = 0; i < value->count; i++) {
        if (value->handles[i]) {
            if (!put_input(p, value->handles[i]))
                return false;
        } else {
            if (!key_room(p->call, ARG_BYTES))
                return false;
            key_put(p->call, &none, sizeof none);
        }
    }
    return true;
}

static void put_number(struct parse *p, const dt_value_t *value, uint32_t position)
{
    dt_client_call_t *call = p->call;
    bool may = !p->operation && call->input_count > 0 &&
               call->number_count < DT_CLIENT_SCALARS_MAX &&
               (value->tag == DT_VALUE_DOUBLE || (p->takes_ints && position >= p->ints_from));
    if (!may) {
        key_put(call, &value->number, sizeof value->number);
        return;
    }
    memcpy(&call->bits[call->number_count], &value->number, sizeof value->number);
    call->numbers[call->number_count] = *value;
    call->positions[call->number_count++] = (uint8_t)position;
}

static bool put_arg(struct parse *p, const dt_value_t *value, uint32_t position)
{
    dt_client_call_t *call = p->call;
    if (!key_room(call, ARG_BYTES))
        return false;
    key_put(call, &value->tag, 1);
    switch (value->tag) {
    case DT_VALUE_DEFAULT:
    case DT_VALUE_NONE:
    case DT_VALUE_FALSE:
    case DT_VALUE_TRUE:
        return true;
    case DT_VALUE_DYNAMIC: /* which kind of number it is shapes results: each has its signature */
        key_put(call, &value->number, sizeof value->number);
        return p->operation != NULL;
    case DT_VALUE_TENSOR:
    case DT_VALUE_STORAGE:
        return (p->operation || value->handle) && put_input(p, value->handle);
    case DT_VALUE_TENSORS:
        return put_tensors(p, value);
    case DT_VALUE_INT:
    case DT_VALUE_DOUBLE:
        put_number(p, value, position);
        return true;
    case DT_VALUE_DTYPE:
    case DT_VALUE_LAYOUT:
    case DT_VALUE_MEMORY_FORMAT:
    case DT_VALUE_GENERATOR:
        key_put(call, &value->number, sizeof value->number);
        return true;
    case DT_VALUE_DEVICE:
        key_put(call, &value->number, sizeof value->number);
        key_put(call, &value->index, sizeof value->index);
        return true;
    case DT_VALUE_COMPLEX:
        return key_list(call, value->doubles, 2, sizeof(double));
    case DT_VALUE_STR:
        return key_list(call, value->text, value->count, 1);
    case DT_VALUE_INTS:
        return key_list(call, value->ints, value->count, sizeof(int64_t));
    case DT_VALUE_DOUBLES:
        return key_list(call, value->doubles, value->count, sizeof(double));
    case DT_VALUE_BOOLS:
        return key_list(call, value->bools, value->count, 1);
    case DT_VALUE_VALUES:
    case DT_VALUE_STRS:
        return key_values(call, value);
    default:
        return false;
    }
}

/* Integers that are Scalars in the schema, and indices: values, not sizes or dimensions. */
static void find_scalars(struct parse *p, const char *name, size_t len)
{
    bool is_select = len == 16 && memcmp(name, "aten::select.int", 16) == 0;
    p->takes_ints = is_select || (len > 7 && (memcmp(name + len - 7, ".Scalar", 7) == 0 ||
                                              memcmp(name + len - 7, "_Scalar", 7) == 0));
    p->ints_from = is_select ? 2 : 0;
}

static dt_status_t take_apart(struct parse *p, const char *name, const dt_value_t *args,
                              uint32_t arg_count, dt_error_t *err)
{
    dt_client_call_t *call = p->call;
    size_t len = strlen(name);
    uint8_t head[2] = {p->operation ? KEY_OPERANDS : KEY_HANDLES, (uint8_t)arg_count};
    call->key_bytes = 0;
    call->input_count = call->number_count = call->vdev = 0;
    call->unknown = NULL;
    if (len == 0 || len > DT_RECORD_NAME_MAX || arg_count > DT_SIGNATURE_ARGS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", arg_count,
                       "no operator has such a name, or %u arguments", arg_count);
    if (!key_room(call, len + 8))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a call");
    find_scalars(p, name, len);
    key_put(call, head, sizeof head);
    key_put(call, name, len + 1);
    for (uint32_t i = 0; i < arg_count; i++)
        if (!put_arg(p, &args[i], i))
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "%s, argument %u: %s", name, i,
                           p->trouble ? p->trouble : "a value of this kind cannot be passed");
    if (p->operation && call->input_count != p->operation->input_count)
        return dt_fail(err, DT_ERR_INVALID, "dt", call->input_count,
                       "%s: %u tensors among the arguments, %u inputs", name, call->input_count,
                       p->operation->input_count);
    if (!key_room(call, ARG_BYTES))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a call");
    key_put(call, &call->vdev, sizeof call->vdev);
    return DT_OK;
}

dt_status_t dt_client_call_handles(dt_session_t *session, const char *name, const dt_value_t *args,
                                   uint32_t arg_count, dt_error_t *err)
{
    struct parse p = {.session = session, .call = &session->cache.call};
    return take_apart(&p, name, args, arg_count, err);
}

dt_status_t dt_client_call_operands(dt_session_t *session, const dt_operation_t *operation,
                                    dt_error_t *err)
{
    struct parse p = {.session = session, .call = &session->cache.call, .operation = operation};
    return take_apart(&p, operation->name, operation->args, operation->arg_count, err);
}

/* ---- families ---- */

/* Eight bytes at a time; for tables of this process only. */
static uint64_t hash_key(const uint8_t *key, size_t size)
{
    uint64_t hash = size * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t word;
    for (; size >= 8; key += 8, size -= 8) {
        memcpy(&word, key, 8);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, key, size);
    hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 29;
}

static dt_client_family_t *find_family(const dt_client_cache_t *cache, uint64_t hash)
{
    const dt_client_call_t *call = &cache->call;
    if (!cache->bucket_count)
        return NULL;
    dt_client_family_t *family = cache->buckets[hash & (cache->bucket_count - 1)];
    while (family && (family->hash != hash || family->key_bytes != call->key_bytes ||
                      memcmp(family->key, call->key, call->key_bytes) != 0))
        family = family->next;
    return family;
}

static bool grow_buckets(dt_client_cache_t *cache)
{
    uint32_t count = cache->bucket_count ? 2 * cache->bucket_count : 256;
    dt_client_family_t **buckets = calloc(count, sizeof(void *));
    if (!buckets)
        return false;
    for (uint32_t i = 0; i < cache->bucket_count; i++)
        while (cache->buckets[i]) {
            dt_client_family_t *family = cache->buckets[i];
            dt_client_family_t **to = &buckets[family->hash & (count - 1)];
            cache->buckets[i] = family->next;
            family->next = *to;
            *to = family;
        }
    free(cache->buckets);
    cache->buckets = buckets;
    cache->bucket_count = count;
    return true;
}

dt_client_family_t *dt_client_family_new(dt_session_t *session)
{
    dt_client_cache_t *cache = &session->cache;
    const dt_client_call_t *call = &cache->call;
    if (cache->family_count >= cache->bucket_count && !grow_buckets(cache))
        return NULL;
    dt_client_family_t *family = calloc(1, sizeof *family + call->key_bytes);
    if (!family)
        return NULL;
    family->hash = hash_key(call->key, call->key_bytes);
    family->number_count = call->number_count;
    memcpy(family->last, call->bits, call->number_count * sizeof call->bits[0]);
    family->key_bytes = (uint32_t)call->key_bytes;
    memcpy(family->key, call->key, call->key_bytes);
    dt_client_family_t **bucket = &cache->buckets[family->hash & (cache->bucket_count - 1)];
    family->next = *bucket;
    *bucket = family;
    cache->family_count++;
    return family;
}

/* ---- entries ---- */

static bool fits(const dt_client_entry_t *entry, uint32_t mask, const uint64_t *bits,
                 uint32_t count)
{
    if (entry->numbers.mask != mask)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!(mask >> i & 1) && entry->numbers.bits[i] != bits[i])
            return false;
    return true;
}

dt_client_signature_t *dt_client_find_entry(const dt_client_family_t *family,
                                            const dt_client_numbers_t *numbers)
{
    for (const dt_client_entry_t *entry = family->entries; entry; entry = entry->next)
        if (fits(entry, numbers->mask, numbers->bits, family->number_count))
            return entry->signature;
    return NULL;
}

dt_client_signature_t *dt_client_lookup(dt_session_t *session, dt_client_family_t **ret_family)
{
    const dt_client_call_t *call = &session->cache.call;
    dt_client_family_t *family = find_family(&session->cache, hash_key(call->key, call->key_bytes));
    *ret_family = family;
    if (!family)
        return NULL;
    for (const dt_client_entry_t *entry = family->entries; entry; entry = entry->next)
        if (fits(entry, family->mask, call->bits, family->number_count))
            return entry->signature;
    return NULL;
}

static bool same_outputs(const dt_client_signature_t *a, const dt_client_signature_t *b)
{
    if (a->output_count != b->output_count || a->flags != b->flags)
        return false;
    for (uint32_t i = 0; i < a->output_count; i++)
        if (a->outputs[i].alias != b->outputs[i].alias ||
            a->outputs[i].input != b->outputs[i].input || a->metas[i] != b->metas[i])
            return false;
    return true;
}

static bool all_agree(const dt_client_family_t *family)
{
    for (const dt_client_entry_t *entry = family->entries; entry; entry = entry->next)
        if (!same_outputs(entry->signature, family->entries->signature))
            return false;
    return family->entries && !(family->entries->signature->flags & DT_SIGNATURE_DATA_DEPENDENT);
}

const dt_client_signature_t *dt_client_promote(dt_session_t *session, dt_client_family_t *family,
                                               dt_client_numbers_t *ret_numbers)
{
    const dt_client_call_t *call = &session->cache.call;
    uint32_t promoted = 0;
    for (uint32_t i = 0; i < family->number_count; i++) {
        if ((family->mask >> i & 1) || family->last[i] == call->bits[i])
            continue;
        family->last[i] = call->bits[i];
        if (++family->changes[i] >= CHANGES_MIN)
            promoted |= 1u << i;
        if (family->changes[i] > CHANGES_MIN) /* it keeps what it has reached */
            family->changes[i] = CHANGES_MIN;
    }
    if (promoted && all_agree(family))
        family->mask |= promoted;
    memset(ret_numbers, 0, sizeof *ret_numbers);
    ret_numbers->mask = family->mask;
    for (uint32_t i = 0; i < family->number_count; i++)
        ret_numbers->bits[i] = family->mask >> i & 1 ? 0 : call->bits[i];
    if (!family->mask || !all_agree(family))
        return NULL;
    /* One that differs in dynamic numbers only; masks never shrink. */
    for (const dt_client_entry_t *entry = family->entries; entry; entry = entry->next) {
        bool is_same = true;
        for (uint32_t i = 0; i < family->number_count; i++)
            is_same &= (family->mask >> i & 1) || entry->numbers.bits[i] == call->bits[i];
        if (is_same)
            return entry->signature;
    }
    return NULL;
}

dt_status_t dt_client_signature_add(dt_client_cache_t *cache, dt_client_signature_t *signature)
{
    if (cache->signature_count == cache->signature_cap) {
        uint32_t cap = cache->signature_cap ? 2 * cache->signature_cap : 256;
        void *grown = realloc(cache->signatures, cap * sizeof(void *));
        if (!grown)
            return DT_ERR_NOMEM;
        cache->signatures = grown;
        cache->signature_cap = cap;
    }
    signature->id = cache->signature_count;
    cache->signatures[cache->signature_count++] = signature;
    cache->live_count++;
    return DT_OK;
}

dt_status_t dt_client_cache_put(dt_client_cache_t *cache, dt_client_family_t *family,
                                const dt_client_numbers_t *numbers,
                                dt_client_signature_t *signature)
{
    dt_client_entry_t *entry = malloc(sizeof *entry);
    if (!entry || dt_client_signature_add(cache, signature) != DT_OK) {
        free(entry);
        return DT_ERR_NOMEM;
    }
    *entry = (dt_client_entry_t){*numbers, signature, family->entries};
    family->entries = entry;
    return DT_OK;
}

void dt_client_cache_forget_dropped(dt_client_cache_t *cache)
{
    for (uint32_t i = 0; i < cache->bucket_count; i++)
        for (dt_client_family_t *family = cache->buckets[i]; family; family = family->next)
            for (dt_client_entry_t **at = &family->entries; *at;) {
                dt_client_entry_t *entry = *at;
                if (!entry->signature->is_dropped) {
                    at = &entry->next;
                    continue;
                }
                *at = entry->next;
                free(entry);
            }
}

void dt_client_cache_fini(dt_client_cache_t *cache)
{
    for (uint32_t i = 0; i < cache->bucket_count; i++)
        while (cache->buckets[i]) {
            dt_client_family_t *family = cache->buckets[i];
            cache->buckets[i] = family->next;
            while (family->entries) {
                dt_client_entry_t *entry = family->entries;
                family->entries = entry->next;
                free(entry);
            }
            free(family);
        }
    for (uint32_t i = 0; i < cache->signature_count; i++) {
        dt_client_signature_free(cache->signatures[i]);
    }
    free(cache->buckets);
    free(cache->signatures);
    free(cache->call.key);
    free(cache->call.inputs);
    free(cache->call.handles);
    free(cache->call.metas);
    dt_buf_fini(&cache->body);
    *cache = (dt_client_cache_t){0};
}
