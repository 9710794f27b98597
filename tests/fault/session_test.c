/* Programs' streams at a real controller: broken ones, hostile ones, and a restart under them. What
 * operators do is not looked at here. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/rawpeer.h"
#include "lib/testcluster.h"
#include "rpc/rpc.h"
#include "wire/record.h"
#include "wire/wire.h"

#define LONG_MS DT_TESTCLUSTER_PATIENCE_MS
#define BEAT_MS 200
#define STREAM  "/dtorch.v1.Session/Stream"

TestSuite(session_fault, .timeout = 600);

/* These clients send no beats, or late ones: silence must not be what ends a stream. */
static dt_testcluster_t *start(void)
{
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .controller_conf = "DeadBeats=1000"});
}

/* A client that says what it likes. */
typedef struct peer {
    dt_rpc_reader_t *reader;
    uint64_t session, epoch;
    uint8_t token[16];
} peer_t;

static void hello_fill(Dtorch__V1__SessionHello *hello, Dtorch__V1__ProtocolVersion *version)
{
    dtorch__v1__session_hello__init(hello);
    dtorch__v1__protocol_version__init(version);
    version->major = DT_WIRE_VERSION_MAJOR;
    hello->version = version;
    hello->program = (char *)(uintptr_t) "hostile.py";
}

static uint8_t *pack_hello(uint64_t session, const uint8_t *token, size_t *ret_size)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello;
    Dtorch__V1__ProtocolVersion version;
    uint8_t *data;
    hello_fill(&hello, &version);
    hello.session = session;
    if (token)
        hello.resume_token = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)token};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    cr_assert_eq(dt_wire_pack_new(&up.base, &data, ret_size), DT_OK);
    return data;
}

/* Wait for a message of a kind. Gives; NULL: the stream ended before. */
static Dtorch__V1__SessionDown *wait_down(peer_t *peer, int kind)
{
    for (int i = 0; i < 1000; i++) {
        Dtorch__V1__SessionDown *down;
        uint8_t *data;
        size_t size;
        dt_error_t err;
        dt_status_t status = dt_rpc_reader_next(peer->reader, LONG_MS, &data, &size, &err);
        if (status != DT_OK)
            return NULL;
        down = dtorch__v1__session_down__unpack(NULL, size, data);
        free(data);
        cr_assert_not_null(down);
        if ((int)down->kind_case == kind)
            return down;
        dtorch__v1__session_down__free_unpacked(down, NULL);
    }
    return NULL;
}

static void connect_as(dt_testcluster_t *tc, peer_t *peer, uint64_t session, const uint8_t *token)
{
    size_t size;
    dt_error_t err;
    uint8_t *data = pack_hello(session, token, &size);
    cr_assert_eq(dt_rpc_reader_open(dt_testcluster_controller_socket(tc), NULL, STREAM, true, data,
                                    size, LONG_MS, &peer->reader, &err),
                 DT_OK, "%s", err.text);
    free(data);
}

static peer_t join(dt_testcluster_t *tc)
{
    peer_t peer = {.reader = NULL};
    Dtorch__V1__SessionDown *down;
    connect_as(tc, &peer, 0, NULL);
    down = wait_down(&peer, DTORCH__V1__SESSION_DOWN__KIND_WELCOME);
    cr_assert_not_null(down, "%s", dt_testcluster_logs(tc));
    peer.session = down->welcome->session;
    peer.epoch = down->welcome->epoch;
    memcpy(peer.token, down->welcome->resume_token.data, sizeof peer.token);
    dtorch__v1__session_down__free_unpacked(down, NULL);
    return peer;
}

/* Send a frame of one MARK at a sequence. */
static void send_mark(peer_t *peer, uint64_t sequence, bool is_broken)
{
    uint8_t bytes[256], *data;
    dt_record_t *record = calloc(1, sizeof *record);
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    dt_frame_writer_t writer;
    size_t size;
    dt_error_t err;
    cr_assert_not_null(record);
    record->kind = is_broken ? DT_RECORD_BIND : DT_RECORD_MARK;
    record->note.what = DT_MARK_STEP;
    record->note.value = 7;
    dt_frame_begin(&writer, bytes, sizeof bytes, sequence, (uint32_t)peer->epoch);
    cr_assert(dt_record_put(&writer, record));
    free(record);
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_FRAME;
    up.frame = (ProtobufCBinaryData){dt_frame_end(&writer, DT_FRAME_SYNC), bytes};
    cr_assert_eq(dt_wire_pack_new(&up.base, &data, &size), DT_OK);
    (void)!dt_rpc_reader_send(peer->reader, data, size, LONG_MS, &err);
    free(data);
}

static void expect_ack(peer_t *peer, uint64_t sequence)
{
    for (;;) {
        Dtorch__V1__SessionDown *down = wait_down(peer, DTORCH__V1__SESSION_DOWN__KIND_ACK);
        cr_assert_not_null(down, "no ack of record %llu", (unsigned long long)sequence);
        uint64_t acked = down->ack->sequence;
        dtorch__v1__session_down__free_unpacked(down, NULL);
        if (acked == sequence)
            return;
    }
}

static void expect_refusal(peer_t *peer, int code, const char *words)
{
    Dtorch__V1__SessionDown *down = wait_down(peer, DTORCH__V1__SESSION_DOWN__KIND_REFUSAL);
    cr_assert_not_null(down, "not refused");
    cr_assert_eq((int)down->refusal->code, code, "%s", down->refusal->text);
    cr_assert_not_null(strstr(down->refusal->text, words), "%s", down->refusal->text);
    dtorch__v1__session_down__free_unpacked(down, NULL);
}

Test(session_fault, a_malformed_frame_ends_its_stream_and_no_other)
{
    dt_testcluster_t *tc = start();
    peer_t good = join(tc), bad = join(tc);
    send_mark(&good, 1, false);
    expect_ack(&good, 1);
    send_mark(&bad, 1, true);
    expect_refusal(&bad, DTORCH__V1__REFUSAL__CODE__MALFORMED, "record 1: ");
    cr_assert(dt_testcluster_wait_event(tc, "session-misbehaves", DT_TESTCLUSTER_CONTROLLER, 0,
                                        LONG_MS, NULL),
              "%s", dt_testcluster_logs(tc));
    send_mark(&good, 2, false);
    expect_ack(&good, 2);
    dt_rpc_reader_free(bad.reader);
    dt_rpc_reader_free(good.reader);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(session_fault, a_cut_stream_is_resumed_where_it_was)
{
    dt_testcluster_t *tc = start();
    peer_t peer = join(tc), again = {.epoch = peer.epoch}, thief = {.epoch = peer.epoch};
    Dtorch__V1__SessionDown *down;
    uint8_t wrong[16] = {1};
    send_mark(&peer, 1, false);
    expect_ack(&peer, 1);
    dt_rpc_reader_free(peer.reader);
    connect_as(tc, &thief, peer.session, wrong);
    expect_refusal(&thief, DTORCH__V1__REFUSAL__CODE__DENIED, "token");
    dt_rpc_reader_free(thief.reader);
    connect_as(tc, &again, peer.session, peer.token);
    down = wait_down(&again, DTORCH__V1__SESSION_DOWN__KIND_WELCOME);
    cr_assert_not_null(down);
    cr_assert_eq(down->welcome->next_sequence, 2);
    cr_assert_neq(memcmp(down->welcome->resume_token.data, peer.token, sizeof peer.token), 0);
    dtorch__v1__session_down__free_unpacked(down, NULL);
    send_mark(&again, 1, false); /* sent again: acknowledged, not done twice */
    send_mark(&again, 2, false);
    expect_ack(&again, 2);
    dt_rpc_reader_free(again.reader);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(session_fault, a_restarted_controller_refuses_old_sessions_and_gives_new_numbers)
{
    dt_testcluster_t *tc = start();
    peer_t old = join(tc), again = {.reader = NULL}, fresh;
    int code;
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, LONG_MS, &code));
    dt_rpc_reader_free(old.reader);
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    cr_assert(dt_testcluster_wait_here(tc, 0, LONG_MS));
    connect_as(tc, &again, old.session, old.token);
    expect_refusal(&again, DTORCH__V1__REFUSAL__CODE__EPOCH, "earlier start");
    fresh = join(tc);
    cr_assert_gt(fresh.session, old.session);
    cr_assert_gt(fresh.epoch, old.epoch);
    dt_rpc_reader_free(again.reader);
    dt_rpc_reader_free(fresh.reader);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* Go on sending, so that it is no silence that ends the stream. */
static bool beats_until_named(dt_testcluster_t *tc, int fd, Dtorch__V1__Event **ret_event)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BEAT;
    up.beat = &beat;
    for (int i = 0; i < LONG_MS / BEAT_MS; i++) {
        uint8_t *data;
        size_t size;
        beat.sequence++;
        cr_assert_eq(dt_wire_pack_new(&up.base, &data, &size), DT_OK);
        (void)!dt_rawpeer_message(fd, data, (uint32_t)size, (uint32_t)size);
        free(data);
        if (dt_testcluster_wait_event(tc, "session-misbehaves", DT_TESTCLUSTER_CONTROLLER, 0,
                                      BEAT_MS, ret_event))
            return true;
    }
    return false;
}

Test(session_fault, a_program_that_never_reads_is_ended_and_named)
{
    dt_testcluster_t *tc = start();
    size_t size;
    uint8_t *data = pack_hello(0, NULL, &size);
    Dtorch__V1__Event *event;
    int fd = dt_rawpeer_connect(dt_testcluster_controller_socket(tc));
    cr_assert_geq(fd, 0);
    cr_assert(dt_rawpeer_preface(fd, 0));
    cr_assert(dt_rawpeer_open(fd, STREAM));
    cr_assert(dt_rawpeer_message(fd, data, (uint32_t)size, (uint32_t)size));
    free(data);
    cr_assert(beats_until_named(tc, fd, &event), "%s", dt_testcluster_logs(tc));
    cr_assert_not_null(strstr(event->text, "does not read"), "%s", event->text);
    dtorch__v1__event__free_unpacked(event, NULL);
    (void)close(fd);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(session_fault, the_bulk_stream_needs_the_sessions_token)
{
    dt_testcluster_t *tc = start();
    peer_t peer = join(tc);
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    uint8_t token[16] = {9}, *data;
    size_t size;
    dt_rpc_reader_t *reader;
    dt_error_t err;
    chunk.session = peer.session;
    chunk.token = (ProtobufCBinaryData){sizeof token, token};
    cr_assert_eq(dt_wire_pack_new(&chunk.base, &data, &size), DT_OK);
    cr_assert_eq(dt_rpc_reader_open(dt_testcluster_controller_socket(tc), NULL,
                                    "/dtorch.v1.Session/Bulk", true, data, size, LONG_MS, &reader,
                                    &err),
                 DT_OK);
    free(data);
    cr_assert_eq(dt_rpc_reader_next(reader, LONG_MS, &data, &size, &err), DT_ERR_DENIED, "%s",
                 err.text);
    dt_rpc_reader_free(reader);
    dt_rpc_reader_free(peer.reader);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(session_fault, a_job_is_seen_and_can_be_ended)
{
    dt_testcluster_t *tc = start();
    peer_t peer = join(tc);
    Dtorch__V1__ListJobsRequest list = DTORCH__V1__LIST_JOBS_REQUEST__INIT;
    Dtorch__V1__EndJobRequest end = DTORCH__V1__END_JOB_REQUEST__INIT;
    Dtorch__V1__JobList *jobs;
    uint8_t *data;
    size_t size;
    dt_error_t err;
    send_mark(&peer, 1, false);
    expect_ack(&peer, 1);
    cr_assert_eq(dt_testcluster_admin_call(tc, "ListJobs", &list.base, &data, &size, &err), DT_OK,
                 "%s", err.text);
    jobs = dtorch__v1__job_list__unpack(NULL, size, data);
    free(data);
    cr_assert_not_null(jobs);
    cr_assert_eq(jobs->n_jobs, 1);
    cr_assert_eq(jobs->jobs[0]->id, peer.session);
    cr_assert_str_eq(jobs->jobs[0]->program, "hostile.py");
    cr_assert_eq(jobs->jobs[0]->sequence, 1);
    cr_assert_eq(jobs->jobs[0]->step, 7);
    dtorch__v1__job_list__free_unpacked(jobs, NULL);
    end.id = peer.session;
    end.reason = (char *)(uintptr_t) "the rack goes dark";
    cr_assert_eq(dt_testcluster_admin_call(tc, "EndJob", &end.base, &data, &size, &err), DT_OK,
                 "%s", err.text);
    free(data);
    expect_refusal(&peer, DTORCH__V1__REFUSAL__CODE__DENIED, "the rack goes dark");
    dt_rpc_reader_free(peer.reader);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
