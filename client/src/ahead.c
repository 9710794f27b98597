/* Questions that the program will probably ask: shapes that grow.
 *
 * A cache that grows by a row a step makes signatures that nobody has seen, step by step, and each
 * would be waited for. Signatures that are alike but for their integers (sizes, strides, numbers
 * and lists of them) are a course, and each is a vector of its integers. When a new one is the
 * third in an arithmetic progression, those that continue it are asked in one message that nobody
 * waits for; the answers lie here until the program comes to them. Half-way through them the next
 * ones are asked, twice as many.
 *
 * What is foretold is questions, never answers: the cluster answers each for itself, and an answer
 * is used for exactly the bytes that were asked. A wrong guess is a question in vain. What has no
 * plain answer (an error, an operator that only its execution can tell of) is asked again when it
 * is wanted, and its course is left alone.
 *
 * Limits: COURSE_MAX courses with PAST_MAX vectors of at most INTS_MAX integers, BATCHES_MAX
 * messages, of which PENDING_MAX are not answered. The oldest go first. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "client.h"
#include "wire/wire.h"

#define COURSE_MAX  256u /* a power of two */
#define COURSE_TRY  4u
#define PAST_MAX    16u /* so courses that mix a few progressions are seen through */
#define INTS_MAX    128u
#define INPUTS_MAX  64u
#define AHEAD_FIRST 16u
#define BATCHES_MAX 256u
#define PENDING_MAX 64u

typedef struct course {
    uint64_t key; /* 0: free */
    uint64_t used;
    int64_t *past; /* (PAST_MAX, length) a ring: `next` is written next */
    uint32_t length, count, next;
    uint32_t ahead;   /* how many are asked; 0: none were yet */
    bool is_hopeless; /* asked, and none had an answer */
} course_t;

/* One message. */
typedef struct dt_client_batch {
    dt_list_t link; /* in ahead.batches, oldest first */
    dt_client_query_t query;
    uint64_t course;
    uint32_t left;                           /* not taken */
    uint32_t waits;                          /* threads that wait for it */
    bool is_stale;                           /* asked before the devices changed */
    uint64_t hashes[DT_WIRE_AHEAD_MAX];      /* of each question; 0: taken */
    uint32_t ends[DT_WIRE_AHEAD_MAX];        /* of each question, */
    uint32_t answer_ends[DT_WIRE_AHEAD_MAX]; /* and of its answer in query.answer */
    uint8_t bodies[];
} batch_t;

/* A signature and its integers. */
typedef struct vector {
    uint64_t key;
    uint32_t length;
    int64_t ints[INTS_MAX];
} vector_t;

struct dt_client_ahead {
    course_t courses[COURSE_MAX];
    dt_list_t batches;
    uint32_t batch_count, pending_count;
    uint64_t clock;
    vector_t now; /* scratch, of whoever holds the lock */
    int64_t step[INTS_MAX];
    int64_t next[INTS_MAX];
    int64_t lists[INTS_MAX];
    dt_value_t args[DT_SIGNATURE_ARGS_MAX];
    dt_signature_tensor_t inputs[INPUTS_MAX];
    dt_buf_t body;
};

/* ---- courses ---- */

static bool add_int(vector_t *to, int64_t number)
{
    if (to->length == INTS_MAX)
        return false;
    to->ints[to->length++] = number;
    return true;
}

static uint64_t mix(uint64_t hash, uint64_t more)
{
    return dt_hash_u64(hash ^ more) + more;
}

static uint64_t hash_values(uint64_t hash, const dt_value_t *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const dt_value_t *value = &list->values[i];
        hash = mix(hash, value->tag);
        if (value->tag == DT_VALUE_STR)
            hash = dt_hash_bytes(hash, value->text, value->count);
        else if (value->tag == DT_VALUE_COMPLEX)
            hash = dt_hash_bytes(hash, value->doubles, 2 * sizeof(double));
        else if (value->tag == DT_VALUE_INT || value->tag == DT_VALUE_DOUBLE)
            hash = mix(hash, (uint64_t)value->number);
    }
    return hash;
}

/* Integers go to the vector, the rest into its key. */
static bool take_arg(vector_t *to, const dt_value_t *arg)
{
    to->key = mix(mix(to->key, arg->tag), arg->count);
    switch (arg->tag) {
    case DT_VALUE_INT:
        return add_int(to, arg->number);
    case DT_VALUE_INTS:
        for (uint32_t i = 0; i < arg->count; i++)
            if (!add_int(to, arg->ints[i]))
                return false;
        return true;
    case DT_VALUE_DOUBLE:
    case DT_VALUE_DTYPE:
    case DT_VALUE_LAYOUT:
    case DT_VALUE_MEMORY_FORMAT:
    case DT_VALUE_GENERATOR:
    case DT_VALUE_DEVICE:
        to->key = mix(mix(to->key, (uint64_t)arg->number), (uint64_t)arg->index);
        return true;
    case DT_VALUE_COMPLEX:
        to->key = dt_hash_bytes(to->key, arg->doubles, 2 * sizeof(double));
        return true;
    case DT_VALUE_STR:
        to->key = dt_hash_bytes(to->key, arg->text, arg->count);
        return true;
    case DT_VALUE_DOUBLES:
        to->key = dt_hash_bytes(to->key, arg->doubles, arg->count * sizeof(double));
        return true;
    case DT_VALUE_BOOLS:
        to->key = dt_hash_bytes(to->key, arg->bools, arg->count);
        return true;
    case DT_VALUE_TENSORS:
        to->key = dt_hash_bytes(to->key, arg->ids, arg->count * sizeof *arg->ids);
        return true;
    case DT_VALUE_VALUES:
    case DT_VALUE_STRS:
        to->key = hash_values(to->key, arg);
        return true;
    default:
        return true;
    }
}

static bool is_explicit(const dt_meta_t *meta)
{
    return (meta->layout & DT_META_CLASS_MASK) == DT_META_EXPLICIT;
}

/* False: it has too many integers to be foretold. */
static bool take_apart(vector_t *to, const dt_signature_t *sig, uint32_t vdev)
{
    to->key = mix(dt_hash_str(DT_HASH_SEED, sig->name), vdev);
    to->length = 0;
    if (sig->input_count > INPUTS_MAX || sig->arg_count > DT_SIGNATURE_ARGS_MAX)
        return false;
    for (uint32_t i = 0; i < sig->arg_count; i++)
        if (!take_arg(to, &sig->args[i]))
            return false;
    for (uint32_t i = 0; i < sig->input_count; i++) {
        const dt_meta_t *meta = &sig->inputs[i].meta;
        to->key =
            mix(to->key, (uint64_t)meta->dtype << 16 | (uint64_t)meta->ndim << 8 | meta->layout);
        for (unsigned k = 0; k < meta->ndim; k++)
            if (!add_int(to, meta->sizes[k]) ||
                (is_explicit(meta) && !add_int(to, meta->strides[k])))
                return false;
    }
    to->key += to->key == 0;
    return to->length > 0;
}

/* Its course, or the one least used of where it may lie. NULL: no memory. */
static course_t *course_of(dt_client_ahead_t *ahead)
{
    const vector_t *now = &ahead->now;
    course_t *oldest = NULL;
    for (uint32_t i = 0; i < COURSE_TRY; i++) {
        course_t *course = &ahead->courses[(now->key + i) & (COURSE_MAX - 1)];
        if (course->key == now->key && course->length == now->length)
            return course;
        if (!oldest || course->used < oldest->used)
            oldest = course;
    }
    free(oldest->past);
    *oldest = (course_t){.key = now->key, .length = now->length};
    oldest->past = malloc(PAST_MAX * (size_t)now->length * sizeof *oldest->past);
    if (oldest->past)
        return oldest;
    *oldest = (course_t){0};
    return NULL;
}

static const int64_t *past_at(const course_t *course, uint32_t i)
{
    return course->past + (size_t)i * course->length;
}

static bool has_past(const course_t *course, const int64_t *vector)
{
    for (uint32_t i = 0; i < course->count; i++)
        if (memcmp(past_at(course, i), vector, course->length * sizeof *vector) == 0)
            return true;
    return false;
}

static void note(course_t *course, const int64_t *vector)
{
    memcpy(course->past + (size_t)course->next * course->length, vector,
           course->length * sizeof *vector);
    course->next = (course->next + 1) % PAST_MAX;
    if (course->count < PAST_MAX)
        course->count++;
}

/* `by` steps behind the signature of now. False: integers end there. */
static bool go(dt_client_ahead_t *ahead, int64_t by)
{
    for (uint32_t i = 0; i < ahead->now.length; i++) {
        int64_t way;
        if (__builtin_mul_overflow(ahead->step[i], by, &way) ||
            __builtin_add_overflow(ahead->now.ints[i], way, &ahead->next[i]))
            return false;
    }
    return true;
}

/* The step that leads here from two signatures of before, the latest ones first. */
static bool find_step(dt_client_ahead_t *ahead, const course_t *course)
{
    for (uint32_t i = 1; i <= course->count; i++) {
        const int64_t *before = past_at(course, (course->next + PAST_MAX - i) % PAST_MAX);
        bool fits = true, moves = false;
        for (uint32_t k = 0; k < course->length && fits; k++) {
            fits = !__builtin_sub_overflow(ahead->now.ints[k], before[k], &ahead->step[k]);
            moves |= ahead->step[k] != 0;
        }
        if (fits && moves && go(ahead, -2) && has_past(course, ahead->next))
            return true;
    }
    return false;
}

/* ---- questions to come ---- */

/* Sizes that shrink end before there is nothing: what kernels do with that is another matter. */
static bool foretell_meta(const dt_meta_t *from, const int64_t **at, dt_meta_t *to)
{
    int64_t sizes[DT_META_DIM_MAX], strides[DT_META_DIM_MAX];
    unsigned bits = from->layout & ~(unsigned)DT_META_CLASS_MASK;
    bool has_strides = is_explicit(from);
    for (unsigned i = 0; i < from->ndim; i++) {
        sizes[i] = *(*at)++;
        strides[i] = has_strides ? *(*at)++ : 0;
        if (sizes[i] < (from->sizes[i] > 0))
            return false;
    }
    if (dt_meta_set(to, from->dtype, from->ndim, sizes, has_strides ? strides : NULL, bits, NULL) !=
        DT_OK)
        return false;
    if ((from->layout & DT_META_CLASS_MASK) != DT_META_CHANNELS_LAST)
        return true;
    dt_meta_t last = *to;
    last.layout = from->layout;
    return dt_meta_fill_strides(&last) &&
           dt_meta_set(to, from->dtype, from->ndim, last.sizes, last.strides, bits, NULL) == DT_OK;
}

/* Write the question `by` steps behind `sig` to ahead->body. */
static bool foretell(dt_client_ahead_t *ahead, const dt_signature_t *sig, uint32_t by)
{
    dt_signature_t next = *sig;
    const int64_t *at = ahead->next;
    uint32_t listed = 0;
    if (!go(ahead, by))
        return false;
    for (uint32_t i = 0; i < sig->arg_count; i++) {
        dt_value_t *arg = &ahead->args[i];
        *arg = sig->args[i];
        if (arg->tag == DT_VALUE_INT)
            arg->number = *at++;
        if (arg->tag != DT_VALUE_INTS)
            continue;
        arg->ints = ahead->lists + listed;
        for (uint32_t k = 0; k < arg->count; k++)
            ahead->lists[listed++] = *at++;
    }
    for (uint32_t i = 0; i < sig->input_count; i++) {
        ahead->inputs[i] = sig->inputs[i];
        if (!foretell_meta(&sig->inputs[i].meta, &at, &ahead->inputs[i].meta))
            return false;
    }
    next.args = ahead->args;
    next.inputs = ahead->inputs;
    dt_buf_reset(&ahead->body);
    return dt_signature_encode(&next, &ahead->body, NULL) == DT_OK;
}

/* ---- messages ---- */

static uint64_t hash_body(const uint8_t *body, size_t size)
{
    uint64_t hash = dt_hash_bytes(DT_HASH_SEED, body, size);
    return hash + (hash == 0);
}

/* Where a question is: *ret_at in the batch. NULL: nowhere. */
static batch_t *find(dt_client_ahead_t *ahead, uint64_t course, const uint8_t *body, size_t size,
                     uint32_t *ret_at)
{
    uint64_t hash = hash_body(body, size);
    for (dt_list_t *link = ahead->batches.prev; link != &ahead->batches; link = link->prev) {
        batch_t *batch = DT_CONTAINER_OF(link, batch_t, link);
        if (batch->course != course || batch->is_stale)
            continue;
        for (uint32_t i = 0; i < batch->query.body_count; i++) {
            uint32_t from = i ? batch->ends[i - 1] : 0;
            if (batch->hashes[i] == hash && batch->ends[i] - from == size &&
                memcmp(batch->bodies + from, body, size) == 0) {
                *ret_at = i;
                return batch;
            }
        }
    }
    return NULL;
}

static void batch_free(dt_client_ahead_t *ahead, batch_t *batch)
{
    dt_list_remove(&batch->query.link);
    dt_list_remove(&batch->link);
    dt_buf_fini(&batch->query.answer);
    ahead->batch_count--;
    ahead->pending_count -= !batch->query.is_done;
    free(batch);
}

static void free_oldest(dt_client_ahead_t *ahead)
{
    for (dt_list_t *link = ahead->batches.next; link != &ahead->batches; link = link->next) {
        batch_t *batch = DT_CONTAINER_OF(link, batch_t, link);
        if (!batch->query.is_done || batch->waits)
            continue;
        batch_free(ahead, batch);
        return;
    }
}

/* Ask what follows `sig`, if it is not asked yet. */
static void ask(dt_session_t *session, const dt_signature_t *sig, course_t *course, uint32_t vdev)
{
    dt_client_ahead_t *ahead = session->ahead;
    uint32_t count = course->ahead ? 2 * course->ahead : AHEAD_FIRST, size = 0, at;
    count = count < DT_WIRE_AHEAD_MAX ? count : DT_WIRE_AHEAD_MAX;
    if (ahead->batch_count >= BATCHES_MAX)
        free_oldest(ahead);
    batch_t *batch = ahead->pending_count < PENDING_MAX && ahead->batch_count < BATCHES_MAX
                         ? calloc(1, sizeof *batch + DT_WIRE_AHEAD_BYTES)
                         : NULL;
    if (!batch)
        return; /* then each is waited for */
    dt_client_query_t *query = &batch->query;
    for (uint32_t i = 1; i <= 2 * count && query->body_count < count && foretell(ahead, sig, i);
         i++) {
        const dt_buf_t *body = &ahead->body;
        if (find(ahead, course->key, body->data, body->len, &at))
            continue;
        if (size + body->len > DT_WIRE_AHEAD_BYTES)
            break;
        memcpy(batch->bodies + size, body->data, body->len);
        size += (uint32_t)body->len;
        batch->hashes[query->body_count] = hash_body(body->data, body->len);
        batch->ends[query->body_count++] = size;
    }
    course->ahead = count;
    if (query->body_count < 2) { /* alone it would be a question of somebody who waits */
        free(batch);
        return;
    }
    batch->course = course->key;
    batch->left = query->body_count;
    query->body = batch->bodies;
    query->body_bytes = size;
    query->ends = batch->ends;
    query->vdev = vdev;
    query->batch = batch;
    dt_buf_init(&query->answer, DT_SIGNATURE_BYTES_MAX);
    dt_list_push(&ahead->batches, &batch->link);
    dt_list_push(&session->queries, &query->link);
    ahead->batch_count++;
    ahead->pending_count++;
    dt_client_io_kick(session);
}

static dt_client_ahead_t *ahead_of(dt_session_t *session)
{
    if (!session->ahead && (session->ahead = calloc(1, sizeof *session->ahead)) != NULL) {
        dt_list_init(&session->ahead->batches);
        dt_buf_init(&session->ahead->body, DT_WIRE_AHEAD_BYTES);
    }
    return session->ahead;
}

uint64_t dt_client_ahead_learn(dt_session_t *session, const dt_signature_t *sig, uint32_t vdev)
{
    dt_client_ahead_t *ahead = ahead_of(session);
    course_t *course;
    uint32_t at;
    if (!ahead || !take_apart(&ahead->now, sig, vdev) || !(course = course_of(ahead)))
        return 0;
    course->used = ++ahead->clock;
    uint64_t key = course->key;
    if (has_past(course, ahead->now.ints))
        return key;
    if (!course->is_hopeless && find_step(ahead, course)) {
        bool goes_on = foretell(ahead, sig, course->ahead ? course->ahead / 2 : 1);
        if (goes_on && !find(ahead, key, ahead->body.data, ahead->body.len, &at))
            ask(session, sig, course, vdev);
    }
    note(course, ahead->now.ints);
    return key;
}

dt_status_t dt_client_ahead_take(dt_session_t *session, uint64_t course, const dt_buf_t *body,
                                 dt_buf_t *answer)
{
    dt_client_ahead_t *ahead = session->ahead;
    uint32_t at;
    bool is_waiting = true;
    batch_t *batch = course ? find(ahead, course, body->data, body->len, &at) : NULL;
    if (!batch)
        return DT_ERR_NOT_FOUND;
    const dt_client_query_t *query = &batch->query;
    batch->waits++;
    while (!query->is_done && session->state != DT_CLIENT_ENDED && is_waiting)
        is_waiting = dt_client_await(session, INT64_MAX);
    batch->waits--;
    if (!query->is_done || session->state == DT_CLIENT_ENDED)
        return DT_ERR_NOT_FOUND; /* asking says why */
    uint32_t from = at ? batch->answer_ends[at - 1] : 0, size = batch->answer_ends[at] - from;
    bool is_known = !batch->is_stale && batch->hashes[at] && size > 0 &&
                    dt_buf_append(answer, query->answer.data + from, size) == DT_OK;
    batch->left -= batch->hashes[at] != 0;
    batch->hashes[at] = 0;
    if (batch->left == 0 && batch->waits == 0)
        batch_free(ahead, batch);
    return is_known ? DT_OK : DT_ERR_NOT_FOUND;
}

/* The message's first question is its `signature`, the others are its `ahead`. */
static void keep_answer(batch_t *batch, uint32_t at, const ProtobufCBinaryData *said)
{
    dt_buf_t *to = &batch->query.answer;
    if (said && said->len && dt_buf_append(to, said->data, said->len) != DT_OK)
        said = NULL;
    batch->answer_ends[at] = (uint32_t)to->len;
}

void dt_client_ahead_answered(dt_session_t *session, dt_client_batch_t *batch,
                              const Dtorch__V1__SigAnswer *answer)
{
    dt_client_ahead_t *ahead = session->ahead;
    bool is_plain = !answer->error && !answer->needs_execution;
    keep_answer(batch, 0, is_plain ? &answer->signature : NULL);
    for (uint32_t i = 1; i < batch->query.body_count; i++)
        keep_answer(batch, i, i <= answer->n_ahead ? &answer->ahead[i - 1] : NULL);
    dt_list_remove(&batch->query.link);
    ahead->pending_count--;
    for (uint32_t i = 0; i < COURSE_MAX && batch->query.answer.len == 0; i++)
        if (ahead->courses[i].key == batch->course)
            ahead->courses[i].is_hopeless = true;
    if (batch->is_stale && batch->waits == 0)
        batch_free(ahead, batch);
}

void dt_client_ahead_forget(dt_session_t *session)
{
    dt_client_ahead_t *ahead = session->ahead;
    for (uint32_t i = 0; ahead && i < COURSE_MAX; i++)
        ahead->courses[i].is_hopeless = false;
    for (dt_list_t *link = ahead ? ahead->batches.next : NULL; ahead && link != &ahead->batches;) {
        batch_t *batch = DT_CONTAINER_OF(link, batch_t, link);
        link = link->next;
        batch->is_stale = true;
        if (batch->query.is_done && batch->waits == 0)
            batch_free(ahead, batch);
    }
}

void dt_client_ahead_fini(dt_session_t *session)
{
    dt_client_ahead_t *ahead = session->ahead;
    if (!ahead)
        return;
    while (!dt_list_is_empty(&ahead->batches))
        batch_free(ahead, DT_CONTAINER_OF(dt_list_pop(&ahead->batches), batch_t, link));
    for (uint32_t i = 0; i < COURSE_MAX; i++)
        free(ahead->courses[i].past);
    dt_buf_fini(&ahead->body);
    free(ahead);
    session->ahead = NULL;
}
