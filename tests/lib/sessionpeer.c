#include "lib/sessionpeer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/list.h"
#include "lib/testcluster.h"
#include "loop/loop.h"
#include "rpc/rpc.h"
#include "wire/wire.h"

#define PEER_FRAME_BYTES (128u << 10)
#define PEER_WAIT_MS     DT_TESTCLUSTER_PATIENCE_MS
#define PEER_BEAT_NS     INT64_C(200000000)

typedef struct kept {
    dt_list_t link;
    Dtorch__V1__SessionDown *down;
} kept_t;

struct dt_sessionpeer {
    pthread_mutex_t lock;    /* the reader and what a beat needs; the rest is the test's thread's */
    dt_rpc_reader_t *reader; /* lock */
    dt_list_t kept;
    uint64_t id;
    uint32_t epoch;
    uint8_t token[16];
    uint64_t sequence; /* of the next record */
    uint64_t tensor, future;
    uint32_t signature;
    dt_frame_writer_t writer;
    bool has_frame;
    bool is_refused; /* a Refusal came: nothing can be sent any more */
    uint8_t *frame;
    uint64_t beats;  /* lock */
    int64_t beat_ns; /* lock; when the last one was sent */
    bool is_closing; /* lock */
    pthread_cond_t closing;
    pthread_t beater;
    bool has_beater;
};

static void die(const char *what, const char *text)
{
    fprintf(stderr, "sessionpeer: %s: %s\n", what, text);
    abort();
}

static dt_status_t send_locked(dt_sessionpeer_t *peer, const Dtorch__V1__SessionUp *up,
                               dt_error_t *err)
{
    uint8_t *bytes;
    size_t size;
    if (dt_wire_pack_new(&up->base, &bytes, &size) != DT_OK)
        die("pack", "no memory");
    dt_status_t status = dt_rpc_reader_send(peer->reader, bytes, size, PEER_WAIT_MS, err);
    free(bytes);
    return status;
}

void dt_sessionpeer_send(dt_sessionpeer_t *peer, const Dtorch__V1__SessionUp *up)
{
    dt_error_t err = {0};
    (void)pthread_mutex_lock(&peer->lock);
    dt_status_t status = send_locked(peer, up, &err);
    (void)pthread_mutex_unlock(&peer->lock);
    if (status != DT_OK)
        die("send", err.text);
}

/* Send a beat if one is due. */
static dt_status_t beat_locked(dt_sessionpeer_t *peer, dt_error_t *err)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__Beat message = DTORCH__V1__BEAT__INIT;
    int64_t now_ns = dt_loop_now_ns();
    if (now_ns - peer->beat_ns < PEER_BEAT_NS)
        return DT_OK;
    peer->beat_ns = now_ns;
    message.sequence = ++peer->beats;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BEAT;
    up.beat = &message;
    return send_locked(peer, &up, err);
}

/* A test may do other things for longer than a client may be silent: its session lives on. That
 * the stream has ended is for the test's own thread to find. */
static void *beat_on(void *arg)
{
    dt_sessionpeer_t *peer = arg;
    struct timespec until;
    (void)pthread_mutex_lock(&peer->lock);
    while (!peer->is_closing && beat_locked(peer, NULL) == DT_OK) {
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PEER_BEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&peer->closing, &peer->lock, &until);
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return NULL;
}

static void beater_end(dt_sessionpeer_t *peer)
{
    if (!peer->has_beater)
        return;
    (void)pthread_mutex_lock(&peer->lock);
    peer->is_closing = true;
    (void)pthread_cond_signal(&peer->closing);
    (void)pthread_mutex_unlock(&peer->lock);
    (void)pthread_join(peer->beater, NULL);
    peer->has_beater = false;
}

/* Read one message into `kept`. False: none within `wait_ms`. */
static bool receive(dt_sessionpeer_t *peer, int64_t wait_ms)
{
    uint8_t *bytes;
    size_t size;
    dt_error_t err = {0};
    (void)pthread_mutex_lock(&peer->lock);
    (void)beat_locked(peer, NULL); /* the lock is seldom free for the other thread while we wait */
    dt_status_t status = dt_rpc_reader_next(peer->reader, wait_ms, &bytes, &size, &err);
    (void)pthread_mutex_unlock(&peer->lock);
    if (status == DT_ERR_AGAIN || status == DT_ERR_TIMEOUT)
        return false;
    if (status != DT_OK)
        die("receive", err.text);
    kept_t *kept = calloc(1, sizeof *kept);
    kept->down = dtorch__v1__session_down__unpack(NULL, size, bytes);
    free(bytes);
    if (!kept->down)
        die("receive", "a message that is none");
    peer->is_refused |= kept->down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_REFUSAL;
    dt_list_push(&peer->kept, &kept->link);
    return true;
}

static Dtorch__V1__SessionDown *kept_take(dt_sessionpeer_t *peer,
                                          Dtorch__V1__SessionDown__KindCase kind, uint64_t future)
{
    for (dt_list_t *at = peer->kept.next; at != &peer->kept; at = at->next) {
        kept_t *kept = DT_CONTAINER_OF(at, kept_t, link);
        Dtorch__V1__SessionDown *down = kept->down;
        if (down->kind_case != kind || (future > 0 && down->result->future != future))
            continue;
        dt_list_remove(&kept->link);
        free(kept);
        return down;
    }
    return NULL;
}

static Dtorch__V1__SessionDown *wait_for(dt_sessionpeer_t *peer,
                                         Dtorch__V1__SessionDown__KindCase kind, uint64_t future,
                                         int64_t patience_ms)
{
    int64_t end_ns = dt_loop_now_ns() + patience_ms * 1000000;
    for (;;) {
        Dtorch__V1__SessionDown *down = kept_take(peer, kind, future);
        if (down || dt_loop_now_ns() > end_ns)
            return down;
        (void)receive(peer, 50);
    }
}

Dtorch__V1__SessionDown *dt_sessionpeer_wait(dt_sessionpeer_t *peer,
                                             Dtorch__V1__SessionDown__KindCase kind,
                                             int64_t patience_ms)
{
    return wait_for(peer, kind, 0, patience_ms);
}

Dtorch__V1__SessionDown *dt_sessionpeer_result(dt_sessionpeer_t *peer, uint64_t future,
                                               int64_t patience_ms)
{
    return wait_for(peer, DTORCH__V1__SESSION_DOWN__KIND_RESULT, future, patience_ms);
}

static void hello_fill(Dtorch__V1__SessionHello *hello, Dtorch__V1__ProtocolVersion *version,
                       char *backend, uint32_t device_count, uint64_t memory_bytes)
{
    static char build[] = "sessionpeer";
    dtorch__v1__session_hello__init(hello);
    dtorch__v1__protocol_version__init(version);
    version->major = DT_WIRE_VERSION_MAJOR;
    version->minor = DT_WIRE_VERSION_MINOR;
    hello->version = version;
    hello->build = build;
    hello->program = build;
    hello->backend = backend;
    hello->device_count = device_count;
    hello->memory_limit_bytes = memory_bytes;
}

dt_sessionpeer_t *dt_sessionpeer_open(const char *address, const char *backend,
                                      uint32_t device_count, uint64_t memory_bytes)
{
    dt_sessionpeer_t *peer = calloc(1, sizeof *peer);
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello;
    Dtorch__V1__ProtocolVersion version;
    uint8_t *bytes;
    size_t size;
    dt_error_t err = {0};
    char name[32];
    (void)snprintf(name, sizeof name, "%s", backend);
    hello_fill(&hello, &version, name, device_count, memory_bytes);
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    dt_list_init(&peer->kept);
    (void)pthread_mutex_init(&peer->lock, NULL);
    (void)pthread_cond_init(&peer->closing, NULL);
    peer->beat_ns = dt_loop_now_ns(); /* the hello is the first sign */
    peer->frame = malloc(PEER_FRAME_BYTES);
    if (dt_wire_pack_new(&up.base, &bytes, &size) != DT_OK)
        die("pack", "no memory");
    if (dt_rpc_reader_open(address, NULL, "/dtorch.v1.Session/Stream", true, bytes, size,
                           INT64_C(600000), &peer->reader, &err) != DT_OK)
        die("open", err.text);
    free(bytes);
    Dtorch__V1__SessionDown *down =
        wait_for(peer, DTORCH__V1__SESSION_DOWN__KIND_WELCOME, 0, PEER_WAIT_MS);
    if (!down) {
        fprintf(stderr, "sessionpeer: no Welcome\n");
        dt_sessionpeer_close(peer);
        return NULL;
    }
    peer->id = down->welcome->session;
    peer->epoch = (uint32_t)down->welcome->epoch;
    peer->sequence = down->welcome->next_sequence;
    dtorch__v1__session_down__free_unpacked(down, NULL);
    peer->has_beater = pthread_create(&peer->beater, NULL, beat_on, peer) == 0;
    if (!peer->has_beater)
        die("open", "no thread");
    return peer;
}

uint64_t dt_sessionpeer_id(const dt_sessionpeer_t *peer)
{
    return peer->id;
}

void dt_sessionpeer_close(dt_sessionpeer_t *peer)
{
    if (!peer)
        return;
    beater_end(peer);
    if (peer->id > 0 && !peer->is_refused) {
        Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
        Dtorch__V1__SessionBye bye = DTORCH__V1__SESSION_BYE__INIT;
        up.kind_case = DTORCH__V1__SESSION_UP__KIND_BYE;
        up.bye = &bye;
        dt_sessionpeer_send(peer, &up);
    }
    while (!dt_list_is_empty(&peer->kept)) {
        kept_t *kept = DT_CONTAINER_OF(peer->kept.next, kept_t, link);
        dt_list_remove(&kept->link);
        dtorch__v1__session_down__free_unpacked(kept->down, NULL);
        free(kept);
    }
    dt_rpc_reader_free(peer->reader);
    (void)pthread_cond_destroy(&peer->closing);
    (void)pthread_mutex_destroy(&peer->lock);
    free(peer->frame);
    free(peer);
}

/* ---- records ---- */

static void frame_begin(dt_sessionpeer_t *peer)
{
    if (peer->has_frame)
        return;
    dt_frame_begin(&peer->writer, peer->frame, PEER_FRAME_BYTES, peer->sequence, peer->epoch);
    peer->has_frame = true;
}

void dt_sessionpeer_flush(dt_sessionpeer_t *peer)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    if (!peer->has_frame)
        return;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame.data = peer->frame;
    up.frame.len = dt_frame_end(&peer->writer, DT_FRAME_SYNC);
    peer->sequence += peer->writer.count;
    peer->has_frame = false;
    dt_sessionpeer_send(peer, &up);
}

void dt_sessionpeer_put(dt_sessionpeer_t *peer, const dt_record_t *record)
{
    frame_begin(peer);
    if (dt_record_put(&peer->writer, record))
        return;
    dt_sessionpeer_flush(peer);
    frame_begin(peer);
    if (!dt_record_put(&peer->writer, record))
        die("put", "a record that fits no frame");
}

void dt_sessionpeer_put_op(dt_sessionpeer_t *peer, const dt_record_op_t *op)
{
    frame_begin(peer);
    if (dt_record_put_op(&peer->writer, op))
        return;
    dt_sessionpeer_flush(peer);
    frame_begin(peer);
    if (!dt_record_put_op(&peer->writer, op))
        die("put", "an operator that fits no frame");
}

uint64_t dt_sessionpeer_upload(dt_sessionpeer_t *peer, unsigned dtype, unsigned ndim,
                               const int64_t *sizes, const void *bytes)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    dt_error_t err = {0};
    if (dt_meta_set(&record.move.meta, dtype, ndim, sizes, NULL, 0, &err) != DT_OK)
        die("upload", err.text);
    record.move.output = ++peer->tensor;
    record.move.size = (uint64_t)dt_meta_bytes(&record.move.meta);
    record.move.bytes = bytes;
    dt_sessionpeer_put(peer, &record);
    return peer->tensor;
}

uint32_t dt_sessionpeer_define(dt_sessionpeer_t *peer, const dt_signature_t *signature)
{
    static dt_record_t record;
    dt_buf_t body;
    dt_error_t err = {0};
    dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
    if (dt_signature_encode(signature, &body, &err) != DT_OK)
        die("define", err.text);
    record = (dt_record_t){.kind = DT_RECORD_DEF_SIG};
    record.definition.id = peer->signature++;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    dt_sessionpeer_put(peer, &record);
    dt_buf_fini(&body);
    return record.definition.id;
}

uint32_t dt_sessionpeer_define_f32(dt_sessionpeer_t *peer, const char *name, uint32_t input_count,
                                   unsigned ndim, const int64_t *sizes, unsigned alias,
                                   uint32_t flags)
{
    dt_value_t args[8];
    dt_signature_tensor_t tensors[9];
    dt_error_t err = {0};
    memset(args, 0, sizeof args);
    memset(tensors, 0, sizeof tensors);
    for (uint32_t i = 0; i < input_count + 1; i++)
        if (dt_meta_set(&tensors[i].meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, &err) != DT_OK)
            die("define", err.text);
    for (uint32_t i = 0; i < input_count; i++)
        args[i].tag = DT_VALUE_TENSOR;
    tensors[input_count].alias = (uint8_t)alias;
    const dt_signature_t signature = {
        .name = name,
        .arg_count = input_count,
        .input_count = input_count,
        .output_count = 1,
        .id_count = alias != DT_ALIAS_IN_PLACE,
        .flags = flags,
        .args = args,
        .inputs = tensors,
        .outputs = tensors + input_count,
    };
    return dt_sessionpeer_define(peer, &signature);
}

uint64_t dt_sessionpeer_op(dt_sessionpeer_t *peer, uint32_t signature, const uint64_t *inputs,
                           uint32_t input_count, bool has_output)
{
    uint64_t output = has_output ? ++peer->tensor : 0;
    const dt_record_op_t op = {
        .signature = signature,
        .input_count = input_count,
        .output_count = has_output,
        .inputs = inputs,
        .outputs = &output,
    };
    dt_sessionpeer_put_op(peer, &op);
    return output;
}

void dt_sessionpeer_free(dt_sessionpeer_t *peer, uint64_t tensor)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_FREE};
    record.ids.ids = &tensor;
    record.ids.count = 1;
    dt_sessionpeer_put(peer, &record);
}

uint64_t dt_sessionpeer_fetch(dt_sessionpeer_t *peer, uint64_t tensor)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_FETCH};
    record.move.tensor = tensor;
    record.move.number = ++peer->future;
    dt_sessionpeer_put(peer, &record);
    dt_sessionpeer_flush(peer);
    return peer->future;
}

bool dt_sessionpeer_read(dt_sessionpeer_t *peer, uint64_t tensor, void *bytes, size_t size,
                         char *ret_kind, size_t kind_size)
{
    uint64_t future = dt_sessionpeer_fetch(peer, tensor);
    Dtorch__V1__SessionDown *down = dt_sessionpeer_result(peer, future, PEER_WAIT_MS);
    if (ret_kind)
        (void)snprintf(ret_kind, kind_size, "%s", !down ? "no answer" : "");
    if (!down)
        return false;
    Dtorch__V1__Result *result = down->result;
    bool is_fine = !result->error && result->value.len == size;
    if (is_fine)
        memcpy(bytes, result->value.data, size);
    else if (ret_kind)
        (void)snprintf(ret_kind, kind_size, "%s", result->error ? result->error->kind : "size");
    if (result->error)
        fprintf(stderr, "sessionpeer: %s: %s (operator %s, inputs %s)\n", result->error->kind,
                result->error->text, result->error->operator_name, result->error->inputs);
    dtorch__v1__session_down__free_unpacked(down, NULL);
    return is_fine;
}
