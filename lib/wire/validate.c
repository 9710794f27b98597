/* Every bound that the .proto comments state, as tables: one row a field, in the order of the field
 * numbers (a test compares the names). A field of a message without a table must be clean text if
 * it is a string, and is free otherwise. What concerns several fields is in the checks below. */
#include <inttypes.h>
#include <string.h>

#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/session.pb-c.h"
#include "dtorch/v1/state.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/validate_internal.h"
#include "wire/wire.h"

#define FRAME_MAX            (256 << 10)
#define SIGNATURE_MAX        (128 << 10)
#define META_MAX             512 /* of a tensor, as lib/wire/record.h codes it */
#define CHUNK_MAX            (1 << 20)
#define TOKEN_LIFETIME_MAX   (INT64_C(30) * 24 * 3600 * 1000)
#define KEY_LIFETIME_MAX     (INT64_C(3650) * 24 * 3600 * 1000)
#define DT_VALIDATE_WALL_MAX INT64_C(253402300799999) /* the year 9999 */
#define ROW(name, ...)                                                                             \
    {                                                                                              \
        .field = #name, __VA_ARGS__                                                                \
    }
#define FREE(name)        ROW(name, .kind = DT_VALIDATE_FREE)
#define INT(name, lo, hi) ROW(name, .kind = DT_VALIDATE_INT, .min = (lo), .max = (hi))
#define WALL(name)        INT(name, 0, DT_VALIDATE_WALL_MAX)
#define TEXT(name, hi)    ROW(name, .kind = DT_VALIDATE_TEXT, .max = (hi))
#define TEXT1(name, hi)   ROW(name, .kind = DT_VALIDATE_TEXT, .min = 1, .max = (hi))
#define TEXTS(name, hi, n)                                                                         \
    ROW(name, .kind = DT_VALIDATE_TEXT, .min = 1, .max = (hi), .count_max = (n))
#define LINES(name, hi)     ROW(name, .kind = DT_VALIDATE_LINES, .max = (hi))
#define NODE(name)          ROW(name, .kind = DT_VALIDATE_NODE)
#define NODE1(name)         ROW(name, .kind = DT_VALIDATE_NODE, .min = 1)
#define BYTES(name, lo, hi) ROW(name, .kind = DT_VALIDATE_BYTES, .min = (lo), .max = (hi))
#define BYTES_LIST(name, lo, hi, n)                                                                \
    ROW(name, .kind = DT_VALIDATE_BYTES, .min = (lo), .max = (hi), .count_max = (n))
#define BYTES0(name, n) ROW(name, .kind = DT_VALIDATE_BYTES_OR_NONE, .max = (n))
#define MESSAGE(name)   ROW(name, .kind = DT_VALIDATE_MESSAGE)
#define MESSAGE1(name)  ROW(name, .kind = DT_VALIDATE_MESSAGE, .min = 1)
#define LIST(name, n)   ROW(name, .kind = DT_VALIDATE_MESSAGE, .count_max = (n))
#define ENUM(name)      ROW(name, .kind = DT_VALIDATE_ENUM)

static const dt_validate_row_t version_rows[] = {FREE(major), INT(minor, 0, 1000)};
static const dt_validate_row_t beat_rows[] = {FREE(sequence), FREE(progress),
                                              INT(late_ns, 0, INT64_MAX), BYTES(busy, 0, 64)};
static const dt_validate_row_t refusal_rows[] = {ENUM(code), TEXT(text, 512), FREE(retry)};
static const dt_validate_row_t label_rows[] = {
    ROW(key, .kind = DT_VALIDATE_LABEL_KEY),
    ROW(value, .kind = DT_VALIDATE_LABEL_VALUE, .max = 63)};

static const dt_validate_row_t worker_up_rows[] = {MESSAGE(hello), MESSAGE(inventory),
                                                   MESSAGE(beat), MESSAGE(engine), MESSAGE(bye)};
static const dt_validate_row_t worker_down_rows[] = {
    MESSAGE(welcome),    MESSAGE(refusal), MESSAGE(beat), MESSAGE(intent),
    MESSAGE(engine_ack), MESSAGE(open),    MESSAGE(close)};
static const dt_validate_row_t session_open_rows[] = {
    INT(session, 1, -1),      BYTES(key, 16, 16), TEXT(tenant, 63),   LIST(bindings, 4096),
    FREE(memory_limit_bytes), INT(epoch, 1, -1),  TEXT(program, 127), LIST(all, 4096),
};
static const dt_validate_row_t session_close_rows[] = {INT(session, 1, -1), TEXT(reason, 256),
                                                       BYTES0(key, 16)};
static const dt_validate_row_t worker_hello_rows[] = {
    MESSAGE(version),  FREE(features),          TEXT(build, 64),  BYTES(node_id, 16, 16),
    NODE1(node_name),  INT(incarnation, 1, -1), FREE(epoch_seen), BYTES0(cluster_id, 16),
    TEXT(boot_id, 36), TEXT(config_hash, 16),   WALL(wall_ms),    FREE(pid),
    TEXT(rack, 63),
};
static const dt_validate_row_t worker_welcome_rows[] = {
    MESSAGE(version),
    FREE(features),
    TEXT(build, 64),
    BYTES(cluster_id, 16, 16),
    TEXT(cluster_name, 63),
    INT(epoch, 1, -1),
    FREE(stream),
    INT(heartbeat_ms, 50, 60000),
    INT(suspect_beats, 2, 100),
    INT(dead_beats, 3, 1000),
};
static const dt_validate_row_t intent_rows[] = {ENUM(admin), TEXT(reason, 256)};
static const dt_validate_row_t engine_ack_rows[] = {FREE(sequence)};
static const dt_validate_row_t bye_rows[] = {TEXT(reason, 256)};
static const dt_validate_row_t inventory_rows[] = {
    LIST(devices, 64), MESSAGE(topology), LIST(engines, 256),    FREE(memory_bytes),
    FREE(cpu_count),   TEXT(kernel, 64),  TEXT(config_hash, 16),
};
static const dt_validate_row_t device_rows[] = {
    INT(index, 0, 63),
    TEXT(backend, 31),
    TEXT(kind, 15),
    TEXT(name, 95),
    TEXT(uuid, 63),
    FREE(memory_bytes),
    FREE(memory_used_bytes),
    TEXT(pci_address, 31),
    INT(numa_node, -1, 65535),
    LIST(links, 64),
    FREE(ecc_uncorrected),
    FREE(throttle_reasons),
    ENUM(health),
    TEXT(health_text, 256),
    TEXT(driver, 63),
    INT(utilization_percent, 0, 100),
    INT(temperature_c, 0, 1000),
};
static const dt_validate_row_t link_rows[] = {INT(peer, 0, 63), ENUM(kind), INT(lanes, 0, 1024)};
static const dt_validate_row_t topology_rows[] = {INT(numa_nodes, 0, 65535), TEXT(rack, 63),
                                                  TEXT(nvlink_domain, 63)};
static const dt_validate_row_t engine_rows[] = {
    FREE(id),          FREE(pid),      INT(device, -1, 63),
    ENUM(state),       FREE(progress), WALL(started_wall_ms),
    TEXT(backend, 31),
};
static const dt_validate_row_t engine_event_rows[] = {
    ENUM(kind),
    FREE(engine),
    FREE(pid),
    INT(device, -1, 63),
    INT(signo, 0, 128),
    FREE(exit_status),
    TEXT(operator_name, 127),
    INT(noticed_ns, -1, INT64_MAX),
    TEXT(noticed_by, 15),
    TEXT(text, 512),
    INT(sequence, 1, -1),
};
static const dt_validate_row_t join_rows[] = {MESSAGE(version), TEXT1(token, 128), NODE1(node_name),
                                              BYTES(node_id, 16, 16), LINES(csr_pem, 8192)};
static const dt_validate_row_t join_reply_rows[] = {LINES(certificate_pem, 16384),
                                                    LINES(ca_pem, 16384), TEXT(cluster_name, 63),
                                                    WALL(not_after_wall_ms)};

static const dt_validate_row_t session_up_rows[] = {
    MESSAGE(hello), BYTES(frame, 0, FRAME_MAX), MESSAGE(beat), MESSAGE(bye), MESSAGE(query),
    MESSAGE(done),
};
static const dt_validate_row_t session_down_rows[] = {
    MESSAGE(welcome), MESSAGE(refusal), MESSAGE(beat),  MESSAGE(ack),  MESSAGE(result),
    MESSAGE(answer),  MESSAGE(poison),  MESSAGE(fault), MESSAGE(door),
};
static const dt_validate_row_t session_hello_rows[] = {
    MESSAGE(version),         FREE(features),
    TEXT(build, 64),          FREE(session),
    BYTES0(resume_token, 16), FREE(acked_sequence),
    TEXT(program, 127),       INT(device_count, 0, 4096),
    FREE(memory_limit_bytes), TEXT(host, 36),
    TEXT(device_kind, 15),    TEXT(backend, 31),
    FREE(one_device),
};
static const dt_validate_row_t session_welcome_rows[] = {
    MESSAGE(version),
    FREE(features),
    TEXT(build, 64),
    INT(session, 1, -1),
    BYTES(resume_token, 16, 16),
    INT(epoch, 1, UINT32_MAX),
    INT(next_sequence, 1, -1),
    FREE(credit_bytes),
    INT(heartbeat_ms, 50, 60000),
    INT(dead_beats, 3, 1000),
    INT(grace_ms, 0, INT64_MAX),
    LIST(bindings, 4096),
    FREE(results_done),
};
static const dt_validate_row_t vdev_binding_rows[] = {
    INT(vdev, 0, 4095), NODE(node),        INT(device, 0, 63),
    TEXT(kind, 15),     TEXT(backend, 31), TEXT(boot_id, 36),
};
static const dt_validate_row_t session_bye_rows[] = {TEXT(reason, 256)};
static const dt_validate_row_t ack_rows[] = {FREE(sequence), FREE(credit_bytes)};
static const dt_validate_row_t sig_query_rows[] = {
    INT(query, 1, -1), BYTES(signature, 1, SIGNATURE_MAX), INT(vdev, 0, 4095),
    BYTES_LIST(ahead, 1, DT_WIRE_AHEAD_BYTES, DT_WIRE_AHEAD_MAX)};
static const dt_validate_row_t sig_answer_rows[] = {
    INT(query, 1, -1), BYTES(signature, 0, SIGNATURE_MAX), MESSAGE(error), FREE(needs_execution),
    BYTES_LIST(ahead, 0, SIGNATURE_MAX, DT_WIRE_AHEAD_MAX)};
static const dt_validate_row_t result_rows[] = {
    INT(future, 1, -1), BYTES(meta, 0, META_MAX), BYTES(value, 0, 4096),      FREE(transfer),
    FREE(size_bytes),   MESSAGE(error),           BYTES(layout, 0, META_MAX),
};
static const dt_validate_row_t futures_done_rows[] = {FREE(future)};
static const dt_validate_row_t operator_error_rows[] = {
    FREE(code),
    TEXT(kind, 31),
    LINES(text, 4096),
    FREE(sequence),
    TEXT(operator_name, 255),
    TEXT(inputs, 1024),
    TEXT(source, 1023),
    TEXT(node, 63),
    INT(device, 0, 63),
    INT(vdev, 0, 4095),
    FREE(source_code),
    FREE(skipped),
    ROW(range, .kind = DT_VALIDATE_TEXT, .max = 127, .count_max = 16),
};
static const dt_validate_row_t poison_rows[] = {FREE(sequence), MESSAGE1(error)};
static const dt_validate_row_t fault_rows[] = {
    MESSAGE1(error),      ROW(tensors, .kind = DT_VALIDATE_FREE, .count_max = 10000),
    FREE(tensor_count),   FREE(size_bytes),
    LIST(bindings, 4096), FREE(operators_lost),
};
static const dt_validate_row_t bulk_chunk_rows[] = {
    FREE(session),  BYTES0(token, 16), FREE(transfer),
    FREE(offset),   FREE(crc32c),      BYTES(data, 0, CHUNK_MAX),
    FREE(received), MESSAGE(error),    FREE(restart),
    FREE(total),    FREE(done),        FREE(place),
    FREE(size),     FREE(window),
};
static const dt_validate_row_t data_door_rows[] = {
    BYTES(instance, 8, 8),
    BYTES(token, 16, 16),
    NODE1(node),
    TEXT(boot_id, 36),
    TEXT(local, 63),
    TEXT(address, 63),
    FREE(uid),
    ROW(vdevs, .kind = DT_VALIDATE_INT, .max = 4095, .count_max = 4096),
    FREE(tls),
};

static const dt_validate_row_t peer_door_rows[] = {
    NODE1(node), BYTES0(token, 16), TEXT(address, 63), TEXT(reason, 256), FREE(tls),
};

static const dt_validate_row_t worker_session_up_rows[] = {
    MESSAGE(hello),  MESSAGE(executed), MESSAGE(result), MESSAGE(answer),
    MESSAGE(poison), MESSAGE(chunk),    MESSAGE(stats),  MESSAGE(lost),
    MESSAGE(door),   MESSAGE(trace),    MESSAGE(peer),
};
static const dt_validate_row_t worker_session_down_rows[] = {
    BYTES(frame, 0, FRAME_MAX), MESSAGE(query), MESSAGE(chunk), FREE(close), MESSAGE(list),
    FREE(up_received),          MESSAGE(trace), MESSAGE(peer),
};
static const dt_validate_row_t worker_session_hello_rows[] = {
    INT(session, 1, -1), INT(epoch, 1, -1), BYTES(key, 16, 16), FREE(received)};
static const dt_validate_row_t executed_rows[] = {FREE(sequence), INT(vdev, 0, 4095)};
static const dt_validate_row_t engine_lost_rows[] = {
    ROW(vdevs, .kind = DT_VALIDATE_INT, .max = 4095, .count_max = 4096), MESSAGE(error),
    FREE(executed)};
static const dt_validate_row_t session_stats_rows[] = {
    LIST(operators, 1000), FREE(memory_bytes), FREE(memory_peak_bytes),
    FREE(tensors),         LIST(list, 10000),  FREE(memory_limit_bytes),
    FREE(is_list),         FREE(list_follows), FREE(list_is_cut),
    FREE(engine),
};
static const dt_validate_row_t operator_stats_rows[] = {TEXT(name, 255), FREE(count),
                                                        FREE(device_ns), FREE(bytes), FREE(errors)};
static const dt_validate_row_t want_trace_rows[] = {INT(duration_ms, 1, 60000)};
static const dt_validate_row_t trace_batch_rows[] = {LIST(names, 128), LIST(events, 512),
                                                     FREE(dropped), INT(begun_ns, 0, INT64_MAX),
                                                     INT(sent_ns, 0, INT64_MAX)};
static const dt_validate_row_t trace_name_rows[] = {FREE(signature), TEXT(operator_name, 255),
                                                    TEXT(text, 511), INT(vdev, 0, 4095)};
static const dt_validate_row_t trace_event_rows[] = {ENUM(kind),
                                                     FREE(sequence),
                                                     FREE(signature),
                                                     INT(begin_ns, 0, INT64_MAX),
                                                     INT(duration_ns, 0, INT64_MAX),
                                                     TEXT(text, 1023),
                                                     FREE(failed),
                                                     FREE(count),
                                                     FREE(size_bytes),
                                                     INT(vdev, 0, 4095),
                                                     INT(client_ns, 0, INT64_MAX)};
static const dt_validate_row_t list_tensors_rows[] = {INT(limit, 1, 10000)};
static const dt_validate_row_t tensor_info_rows[] = {
    FREE(id),
    TEXT(meta, 1023),
    FREE(size_bytes),
    INT(vdev, 0, 4095),
    FREE(version),
    TEXT(state, 15),
    FREE(session),
    ROW(sizes, .kind = DT_VALIDATE_INT, .max = INT64_C(1) << 46, .count_max = 16),
    TEXT(global, 511),
    TEXT(mesh, 191),
    TEXT(placements, 511),
};

static const dt_validate_row_t list_jobs_rows[] = {INT(limit, 0, 1000), FREE(after)};
static const dt_validate_row_t get_timeline_rows[] = {INT(job, 1, -1), INT(begin_ms, 0, 60000),
                                                      FREE(after)};
static const dt_validate_row_t get_plans_rows[] = {INT(job, 1, -1), FREE(from)};
static const dt_validate_row_t get_job_rows[] = {INT(id, 1, -1)};
static const dt_validate_row_t end_job_rows[] = {INT(id, 1, -1), TEXT1(reason, 256), TEXT(by, 127)};
static const dt_validate_row_t list_job_tensors_rows[] = {FREE(job), INT(limit, 0, 10000)};
static const dt_validate_row_t list_nodes_rows[] = {TEXTS(names, 63, 1000), FREE(with_devices),
                                                    INT(limit, 0, 1000), TEXT(after, 63)};
static const dt_validate_row_t set_node_rows[] = {
    TEXTS(names, 63, 1000),
    ENUM(change),
    TEXT(reason, 256),
    LIST(set_labels, 64),
    ROW(remove_labels, .kind = DT_VALIDATE_LABEL_KEY, .count_max = 64),
    FREE(dry_run),
    TEXT(request_id, 64),
    TEXT(by, 127),
};
static const dt_validate_row_t list_events_rows[] = {FREE(after_sequence), WALL(since_wall_ms),
                                                     TEXT(node, 63), ENUM(severity_min),
                                                     INT(limit, 0, 10000)};
static const dt_validate_row_t create_token_rows[] = {INT(lifetime_ms, 0, TOKEN_LIFETIME_MAX),
                                                      INT(uses, 0, 10000), NODE(node_name),
                                                      TEXT(by, 127), TEXT(request_id, 64)};
static const dt_validate_row_t revoke_token_rows[] = {TEXT1(id, 31), TEXT(by, 127),
                                                      TEXT(request_id, 64)};
static const dt_validate_row_t token_info_rows[] = {
    TEXT1(id, 31),   WALL(created_wall_ms), WALL(expires_wall_ms), INT(uses_left, 0, 10000),
    NODE(node_name), TEXT(by, 255),         FREE(revoked)};
static const dt_validate_row_t create_key_rows[] = {
    NODE1(name), INT(lifetime_ms, 0, KEY_LIFETIME_MAX), TEXT(reason, 256), TEXT(by, 127),
    TEXT(request_id, 64)};
static const dt_validate_row_t revoke_key_rows[] = {
    TEXT1(key, 63), FREE(end_jobs), TEXT(reason, 256), TEXT(by, 127), TEXT(request_id, 64)};
static const dt_validate_row_t key_info_rows[] = {
    TEXT1(id, 31),
    NODE1(name),
    WALL(created_wall_ms),
    WALL(expires_wall_ms),
    TEXT(by, 255),
    TEXT(reason, 256),
    FREE(revoked),
    WALL(revoked_wall_ms),
    TEXT(revoked_by, 255),
    TEXT(revoked_reason, 256),
    FREE(uses),
    WALL(used_wall_ms),
    TEXT(used_from, 95),
    FREE(jobs),
};
static const dt_validate_row_t event_rows[] = {
    INT(sequence, 0, INT64_MAX),
    WALL(wall_ms),
    FREE(epoch),
    ENUM(severity),
    TEXT1(name, 63),
    TEXT(node, 63),
    TEXT(device, 127),
    TEXT(text, 512),
    LIST(fields, 16),
};
static const dt_validate_row_t event_field_rows[] = {TEXT1(key, 31), TEXT(value, 255)};

static const dt_validate_row_t state_rows[] = {MESSAGE(cluster), MESSAGE(node),  MESSAGE(forgotten),
                                               MESSAGE(event),   MESSAGE(token), MESSAGE(request),
                                               MESSAGE(key)};
static const dt_validate_row_t cluster_state_rows[] = {
    BYTES(cluster_id, 16, 16), INT(epoch, 1, INT64_MAX), WALL(wall_ms), FREE(session_numbers)};
static const dt_validate_row_t node_state_rows[] = {
    BYTES(node_id, 16, 16),
    NODE1(name),
    ENUM(admin),
    TEXT(reason, 256),
    TEXT(reason_by, 255),
    WALL(reason_wall_ms),
    LIST(labels, 64),
    FREE(incarnation),
    LIST(devices, 128),
    ROW(missing_since_wall_ms, .kind = DT_VALIDATE_INT, .max = DT_VALIDATE_WALL_MAX,
        .count_max = 128),
    FREE(is_stopped),
    TEXT(rack, 63),
    FREE(is_dead),
};
static const dt_validate_row_t forgotten_rows[] = {BYTES(node_id, 16, 16)};
static const dt_validate_row_t token_state_rows[] = {MESSAGE1(info), BYTES(secret_sha256, 32, 32),
                                                     BYTES0(user_id, 16), TEXT(user_name, 63)};
static const dt_validate_row_t key_state_rows[] = {MESSAGE1(info), BYTES(secret_sha256, 32, 32)};
static const dt_validate_row_t request_state_rows[] = {TEXT1(request_id, 64), WALL(wall_ms),
                                                       TEXT(summary, 512)};

static dt_status_t out_of_bound(dt_error_t *err, const char *where, const char *what)
{
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND, "%s: %s", where, what);
}

/* An envelope says something: one of its kinds, or one that a newer minor version knows. */
static dt_status_t check_kind(const ProtobufCMessage *message, dt_error_t *err)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    int kind;
    memcpy(&kind, (const char *)message + type->fields[0].quantifier_offset, sizeof kind);
    if (kind != 0 || message->n_unknown_fields > 0)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_MISSING, "%s.kind: missing",
                   type->short_name);
}

static dt_status_t check_welcome(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__WorkerWelcome *welcome = (const void *)message;
    if (welcome->dead_beats > welcome->suspect_beats)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                   "WorkerWelcome.dead_beats: %" PRIu32 ", must be above suspect_beats %" PRIu32,
                   welcome->dead_beats, welcome->suspect_beats);
}

static dt_status_t check_inventory(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__Inventory *inventory = (const void *)message;
    for (size_t i = 0; i < inventory->n_devices; i++) {
        const Dtorch__V1__Device *device = inventory->devices[i];
        if (i && device->index <= inventory->devices[i - 1]->index)
            return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                           "Inventory.devices[%zu].index: %" PRIu32 ", must rise", i,
                           device->index);
        for (size_t k = 0; device->uuid[0] && k < i; k++)
            if (strcmp(device->uuid, inventory->devices[k]->uuid) == 0)
                return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                               "Device.uuid: devices %zu and %zu both say %s", k, i, device->uuid);
    }
    return DT_OK;
}

static dt_status_t check_node_state(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__NodeState *node = (const void *)message;
    if (node->n_devices == node->n_missing_since_wall_ms)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                   "NodeState.missing_since_wall_ms: %zu entries for %zu devices",
                   node->n_missing_since_wall_ms, node->n_devices);
}

static dt_status_t check_set_node(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__SetNodeRequest *request = (const void *)message;
    if (request->n_names == 0)
        return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_MISSING,
                       "SetNodeRequest.names: missing, name 1 to 1000 nodes");
    if (request->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__NONE)
        return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_MISSING,
                       "SetNodeRequest.change: missing");
    bool needs_reason = request->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN ||
                        request->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__CORDON;
    if (needs_reason && !request->reason[0])
        return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_MISSING,
                       "SetNodeRequest.reason: missing, a drain or cordon needs one");
    bool is_label = request->change == DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL;
    if (is_label != (request->n_set_labels + request->n_remove_labels > 0))
        return out_of_bound(err, "SetNodeRequest.set_labels",
                            is_label ? "missing, a label change sets or removes some"
                                     : "only with a label change");
    return DT_OK;
}

static dt_status_t check_lifetime(int64_t lifetime_ms, const char *message, int64_t max,
                                  dt_error_t *err)
{
    if (lifetime_ms == 0 || lifetime_ms >= 60000)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                   "%s.lifetime_ms: %" PRId64 ", bound 60000..%" PRId64 ", or 0", message,
                   lifetime_ms, max);
}

static dt_status_t check_create_token(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__CreateTokenRequest *request = (const void *)message;
    return check_lifetime(request->lifetime_ms, "CreateTokenRequest", TOKEN_LIFETIME_MAX, err);
}

static dt_status_t check_create_key(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__CreateKeyRequest *request = (const void *)message;
    return check_lifetime(request->lifetime_ms, "CreateKeyRequest", KEY_LIFETIME_MAX, err);
}

static dt_status_t check_query(const ProtobufCMessage *message, dt_error_t *err)
{
    const Dtorch__V1__SigQuery *query = (const void *)message;
    size_t bytes = 0;
    for (size_t i = 0; i < query->n_ahead; i++)
        bytes += query->ahead[i].len;
    if (bytes <= DT_WIRE_AHEAD_BYTES)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "wire", DT_WIRE_BOUND,
                   "SigQuery.ahead: %zu bytes in all, bound %u", bytes, DT_WIRE_AHEAD_BYTES);
}

#define TABLE(prefix, rows, check)                                                                 \
    {                                                                                              \
        &dtorch__v1__##prefix##__descriptor, rows, sizeof(rows) / sizeof((rows)[0]), check         \
    }
static const dt_validate_table_t tables[] = {
    TABLE(beat, beat_rows, NULL), /* the most frequent first */
    TABLE(worker_session_up, worker_session_up_rows, check_kind),
    TABLE(executed, executed_rows, NULL),
    TABLE(result, result_rows, NULL),
    TABLE(ack, ack_rows, NULL),
    TABLE(worker_up, worker_up_rows, check_kind),
    TABLE(worker_down, worker_down_rows, check_kind),
    TABLE(device, device_rows, NULL),
    TABLE(link, link_rows, NULL),
    TABLE(engine, engine_rows, NULL),
    TABLE(protocol_version, version_rows, NULL),
    TABLE(refusal, refusal_rows, NULL),
    TABLE(label, label_rows, NULL),
    TABLE(worker_hello, worker_hello_rows, NULL),
    TABLE(worker_welcome, worker_welcome_rows, check_welcome),
    TABLE(node_intent, intent_rows, NULL),
    TABLE(bye, bye_rows, NULL),
    TABLE(engine_ack, engine_ack_rows, NULL),
    TABLE(inventory, inventory_rows, check_inventory),
    TABLE(node_topology, topology_rows, NULL),
    TABLE(engine_event, engine_event_rows, NULL),
    TABLE(join_request, join_rows, NULL),
    TABLE(join_reply, join_reply_rows, NULL),
    TABLE(session_open, session_open_rows, NULL),
    TABLE(session_close, session_close_rows, NULL),
    TABLE(session_up, session_up_rows, check_kind),
    TABLE(session_down, session_down_rows, check_kind),
    TABLE(session_hello, session_hello_rows, NULL),
    TABLE(session_welcome, session_welcome_rows, NULL),
    TABLE(vdev_binding, vdev_binding_rows, NULL),
    TABLE(session_bye, session_bye_rows, NULL),
    TABLE(sig_query, sig_query_rows, check_query),
    TABLE(sig_answer, sig_answer_rows, NULL),
    TABLE(futures_done, futures_done_rows, NULL),
    TABLE(operator_error, operator_error_rows, NULL),
    TABLE(poison, poison_rows, NULL),
    TABLE(fault, fault_rows, NULL),
    TABLE(bulk_chunk, bulk_chunk_rows, NULL),
    TABLE(data_door, data_door_rows, NULL),
    TABLE(peer_door, peer_door_rows, NULL),
    TABLE(worker_session_down, worker_session_down_rows, check_kind),
    TABLE(worker_session_hello, worker_session_hello_rows, NULL),
    TABLE(engine_lost, engine_lost_rows, NULL),
    TABLE(session_stats, session_stats_rows, NULL),
    TABLE(operator_stats, operator_stats_rows, NULL),
    TABLE(list_tensors, list_tensors_rows, NULL),
    TABLE(want_trace, want_trace_rows, NULL),
    TABLE(trace_batch, trace_batch_rows, NULL),
    TABLE(trace_name, trace_name_rows, NULL),
    TABLE(trace_event, trace_event_rows, NULL),
    TABLE(get_timeline_request, get_timeline_rows, NULL),
    TABLE(get_plans_request, get_plans_rows, NULL),
    TABLE(tensor_info, tensor_info_rows, NULL),
    TABLE(list_jobs_request, list_jobs_rows, NULL),
    TABLE(get_job_request, get_job_rows, NULL),
    TABLE(end_job_request, end_job_rows, NULL),
    TABLE(list_tensors_request, list_job_tensors_rows, NULL),
    TABLE(list_nodes_request, list_nodes_rows, NULL),
    TABLE(set_node_request, set_node_rows, check_set_node),
    TABLE(list_events_request, list_events_rows, NULL),
    TABLE(create_token_request, create_token_rows, check_create_token),
    TABLE(revoke_token_request, revoke_token_rows, NULL),
    TABLE(token_info, token_info_rows, NULL),
    TABLE(create_key_request, create_key_rows, check_create_key),
    TABLE(revoke_key_request, revoke_key_rows, NULL),
    TABLE(key_info, key_info_rows, NULL),
    TABLE(key_state, key_state_rows, NULL),
    TABLE(event, event_rows, NULL),
    TABLE(event_field, event_field_rows, NULL),
    TABLE(state_record, state_rows, check_kind),
    TABLE(cluster_state, cluster_state_rows, NULL),
    TABLE(node_state, node_state_rows, check_node_state),
    TABLE(node_forgotten, forgotten_rows, NULL),
    TABLE(token_state, token_state_rows, NULL),
    TABLE(request_state, request_state_rows, NULL),
};

const dt_validate_table_t *dt_validate_tables_for_test(size_t *ret_count)
{
    *ret_count = sizeof tables / sizeof tables[0];
    return tables;
}

const dt_validate_table_t *dt_validate_table(const ProtobufCMessageDescriptor *type)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (tables[i].type == type)
            return &tables[i];
    return NULL;
}
