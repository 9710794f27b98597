/* State to and from journal records: restore before the start, snapshots at any time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/cluster_internal.h"

/* ---- a node's record ---- */

static dt_status_t fill_labels(dt_node_t *node, dt_arena_t *arena, Dtorch__V1__NodeState *state)
{
    state->labels = dt_arena_calloc(arena, node->label_count, sizeof(Dtorch__V1__Label *));
    if (!state->labels)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < node->label_count; i++) {
        Dtorch__V1__Label *label = dt_arena_alloc(arena, sizeof *label);
        if (!label)
            return DT_ERR_NOMEM;
        dtorch__v1__label__init(label);
        label->key = node->labels[i].key;
        label->value = node->labels[i].value;
        state->labels[i] = label;
    }
    state->n_labels = node->label_count;
    return DT_OK;
}

static dt_status_t fill_devices(const dt_node_t *node, dt_arena_t *arena,
                                Dtorch__V1__NodeState *state)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    state->devices = dt_arena_calloc(arena, node->device_count, sizeof(Dtorch__V1__Device *));
    state->missing_since_wall_ms = dt_arena_calloc(arena, node->device_count, sizeof(int64_t));
    if (!state->devices || !state->missing_since_wall_ms)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < node->device_count; i++) {
        const dt_known_device_t *known = &node->devices[i];
        state->devices[i] =
            dtorch__v1__device__unpack(&allocator, known->packed_size, known->packed);
        if (!state->devices[i])
            return DT_ERR_NOMEM;
        state->missing_since_wall_ms[i] = known->is_missing ? known->missing_since_wall_ms : 0;
    }
    state->n_devices = state->n_missing_since_wall_ms = node->device_count;
    return DT_OK;
}

dt_status_t dt_cluster_node_fill_state(dt_node_t *node, dt_arena_t *arena,
                                       Dtorch__V1__NodeState *ret_state)
{
    uint8_t *id = dt_arena_alloc(arena, sizeof node->id);
    if (!id)
        return DT_ERR_NOMEM;
    memcpy(id, node->id, sizeof node->id);
    dtorch__v1__node_state__init(ret_state);
    ret_state->node_id = (ProtobufCBinaryData){sizeof node->id, id};
    ret_state->name = node->name;
    ret_state->admin = node->admin;
    ret_state->reason = node->reason;
    ret_state->reason_by = node->reason_by;
    ret_state->reason_wall_ms = node->reason_wall_ms;
    ret_state->incarnation = node->incarnation;
    ret_state->is_stopped = node->health == DTORCH__V1__NODE_HEALTH__NODE_STOPPED;
    ret_state->is_dead = node->health == DTORCH__V1__NODE_HEALTH__NODE_DEAD;
    ret_state->rack = node->rack;
    DT_TRY(fill_labels(node, arena, ret_state));
    return fill_devices(node, arena, ret_state);
}

/* ---- restore ---- */

static dt_status_t restore_labels(dt_node_t *node, const Dtorch__V1__NodeState *state)
{
    free(DT_TAKE(node->labels));
    node->label_count = 0;
    node->labels = calloc(state->n_labels ? state->n_labels : 1, sizeof *node->labels);
    if (!node->labels)
        return DT_ERR_NOMEM;
    for (size_t i = 0; i < state->n_labels; i++) {
        (void)dt_str_copy(node->labels[i].key, sizeof node->labels[i].key, state->labels[i]->key);
        (void)dt_str_copy(node->labels[i].value, sizeof node->labels[i].value,
                          state->labels[i]->value);
    }
    node->label_count = (uint32_t)state->n_labels;
    return DT_OK;
}

static dt_status_t restore_devices(dt_node_t *node, const Dtorch__V1__NodeState *state)
{
    dt_cluster_devices_free(node);
    for (size_t i = 0; i < state->n_devices; i++)
        DT_TRY(dt_cluster_device_restore(node, state->devices[i], state->missing_since_wall_ms[i]));
    dt_cluster_devices_count(node);
    return DT_OK;
}

static dt_status_t find_or_add(dt_cluster_t *cluster, const Dtorch__V1__NodeState *state,
                               dt_node_t **ret_node, dt_error_t *err)
{
    dt_node_t *node = dt_cluster_node_by_id(cluster, state->node_id.data);
    const dt_node_t *holder = dt_cluster_node_by_name(cluster, state->name);
    if (holder && holder != node)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the journal has two nodes named %s",
                       state->name);
    if (!node) {
        if (cluster->node_count == cluster->nodes_max)
            return dt_fail(err, DT_ERR_LIMIT, "dt", cluster->nodes_max,
                           "the journal has more nodes than NodesMax=%" PRIu32, cluster->nodes_max);
        node = dt_cluster_node_add(cluster, state->node_id.data, state->name);
    } else if (!holder) {
        DT_TRY(dt_cluster_node_rename(cluster, node, state->name));
    }
    if (!node)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for node %s", state->name);
    *ret_node = node;
    return DT_OK;
}

static dt_status_t restore_node(dt_cluster_t *cluster, const Dtorch__V1__NodeState *state,
                                dt_error_t *err)
{
    dt_node_t *node = NULL;
    DT_TRY(find_or_add(cluster, state, &node, err));
    node->admin = state->admin;
    (void)dt_str_copy(node->reason, sizeof node->reason, state->reason);
    (void)dt_str_copy(node->reason_by, sizeof node->reason_by, state->reason_by);
    (void)dt_str_copy(node->rack, sizeof node->rack, state->rack);
    node->reason_wall_ms = state->reason_wall_ms;
    node->incarnation = state->incarnation;
    node->is_recorded = true;
    node->health = DTORCH__V1__NODE_HEALTH__NODE_UNKNOWN;
    (void)dt_str_copy(node->health_text, sizeof node->health_text,
                      "not heard of since the controller started");
    if (state->is_stopped) {
        node->health = DTORCH__V1__NODE_HEALTH__NODE_STOPPED;
        (void)dt_str_copy(node->health_text, sizeof node->health_text, "ended as planned");
    } else if (state->is_dead) {
        node->health = DTORCH__V1__NODE_HEALTH__NODE_DEAD;
        (void)dt_str_copy(node->health_text, sizeof node->health_text,
                          "was dead before the controller started");
    }
    if (restore_labels(node, state) != DT_OK || restore_devices(node, state) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for node %s", state->name);
    return DT_OK;
}

static dt_status_t restore_cluster(dt_cluster_t *cluster, const Dtorch__V1__ClusterState *state,
                                   dt_error_t *err)
{
    if (state->epoch < cluster->epoch)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)state->epoch,
                       "the journal's epochs fall from %" PRIu64 " to %" PRIu64, cluster->epoch,
                       state->epoch);
    memcpy(cluster->id, state->cluster_id.data, sizeof cluster->id);
    cluster->epoch = state->epoch;
    if (state->session_numbers > cluster->session_reserved)
        cluster->session_reserved = state->session_numbers;
    return DT_OK;
}

dt_status_t dt_cluster_restore(dt_cluster_t *cluster, const Dtorch__V1__StateRecord *record,
                               dt_error_t *err)
{
    dt_node_t *node;
    dt_status_t status = DT_OK;
    dt_check(!cluster->is_started);
    DT_TRY(dt_wire_validate(&record->base, err));
    switch (record->kind_case) {
    case DTORCH__V1__STATE_RECORD__KIND_CLUSTER:
        return restore_cluster(cluster, record->cluster, err);
    case DTORCH__V1__STATE_RECORD__KIND_NODE:
        return restore_node(cluster, record->node, err);
    case DTORCH__V1__STATE_RECORD__KIND_FORGOTTEN:
        node = dt_cluster_node_by_id(cluster, record->forgotten->node_id.data);
        if (node)
            dt_cluster_node_remove(cluster, node);
        return DT_OK;
    case DTORCH__V1__STATE_RECORD__KIND_EVENT:
        status = dt_cluster_event_restore(cluster, record->event);
        break;
    case DTORCH__V1__STATE_RECORD__KIND_TOKEN:
        status = dt_cluster_token_restore(cluster, record->token);
        break;
    case DTORCH__V1__STATE_RECORD__KIND_KEY:
        status = dt_cluster_key_restore(cluster, record->key);
        break;
    case DTORCH__V1__STATE_RECORD__KIND_REQUEST:
        status = dt_cluster_request_restore(cluster, record->request);
        break;
    default:
        break; /* of a newer minor version */
    }
    if (status != DT_OK)
        return dt_fail(err, status, "dt", 0, "no room for a record of the journal");
    return DT_OK;
}

/* ---- snapshot ---- */

enum snapshot_part {
    PART_CLUSTER = 0,
    PART_NODES,
    PART_EVENTS,
    PART_TOKENS,
    PART_REQUESTS,
    PART_KEYS,
    PART_END,
};

static bool give(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                 const Dtorch__V1__StateRecord *record, const uint8_t **ret_data, size_t *ret_size)
{
    free(DT_TAKE(cluster->snapshot_data));
    if (dt_wire_pack_new(&record->base, &cluster->snapshot_data, ret_size) != DT_OK) {
        cursor->is_failed = true;
        return false;
    }
    *ret_data = cluster->snapshot_data;
    return true;
}

static bool give_cluster(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                         Dtorch__V1__StateRecord *record, const uint8_t **ret_data,
                         size_t *ret_size)
{
    Dtorch__V1__ClusterState state;
    if (cursor->next++ || cluster->epoch == 0)
        return false;
    dt_cluster_fill_state(cluster, &state);
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_CLUSTER;
    record->cluster = &state;
    return give(cluster, cursor, record, ret_data, ret_size);
}

static bool give_node(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                      Dtorch__V1__StateRecord *record, const uint8_t **ret_data, size_t *ret_size)
{
    Dtorch__V1__NodeState state;
    dt_arena_t arena;
    uint32_t at = dt_cluster_node_index_above(cluster, cursor->name);
    if (at >= cluster->node_count)
        return false;
    (void)dt_str_copy(cursor->name, sizeof cursor->name, cluster->nodes[at]->name);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_NODE;
    record->node = &state;
    cursor->is_failed = dt_cluster_node_fill_state(cluster->nodes[at], &arena, &state) != DT_OK;
    bool is_given = !cursor->is_failed && give(cluster, cursor, record, ret_data, ret_size);
    dt_arena_fini(&arena);
    return is_given;
}

static bool give_event(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                       Dtorch__V1__StateRecord *record, const uint8_t **ret_data, size_t *ret_size)
{
    /* The cursor is a sequence: the ring may move on between two calls. */
    uint32_t at = dt_cluster_event_index_above(cluster, cursor->next);
    if (at >= cluster->events_count)
        return false;
    const dt_stored_event_t *stored = dt_cluster_event_at(cluster, at);
    cursor->next = stored->sequence;
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_EVENT;
    record->event = dtorch__v1__event__unpack(NULL, stored->packed_size, stored->packed);
    cursor->is_failed = !record->event;
    bool is_given = record->event && give(cluster, cursor, record, ret_data, ret_size);
    if (record->event)
        dtorch__v1__event__free_unpacked(record->event, NULL);
    return is_given;
}

static bool give_token(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                       Dtorch__V1__StateRecord *record, const uint8_t **ret_data, size_t *ret_size)
{
    Dtorch__V1__TokenState state;
    Dtorch__V1__TokenInfo info;
    if (cursor->next >= cluster->token_count)
        return false;
    dt_cluster_token_state(&cluster->tokens[cursor->next++], &info, &state);
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_TOKEN;
    record->token = &state;
    return give(cluster, cursor, record, ret_data, ret_size);
}

static bool give_key(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                     Dtorch__V1__StateRecord *record, const uint8_t **ret_data, size_t *ret_size)
{
    Dtorch__V1__KeyState state;
    Dtorch__V1__KeyInfo info;
    if (cursor->next >= cluster->key_count)
        return false;
    dt_cluster_key_state(&cluster->keys[cursor->next++], &info, &state);
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_KEY;
    record->key = &state;
    return give(cluster, cursor, record, ret_data, ret_size);
}

static bool give_request(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                         Dtorch__V1__StateRecord *record, const uint8_t **ret_data,
                         size_t *ret_size)
{
    Dtorch__V1__RequestState state = DTORCH__V1__REQUEST_STATE__INIT;
    if (cursor->next >= cluster->requests_count)
        return false;
    dt_cluster_request_fill(cluster, (uint32_t)cursor->next++, &state);
    record->kind_case = DTORCH__V1__STATE_RECORD__KIND_REQUEST;
    record->request = &state;
    return give(cluster, cursor, record, ret_data, ret_size);
}

bool dt_cluster_snapshot_next(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                              const uint8_t **ret_data, size_t *ret_size)
{
    typedef bool give_part_fn(dt_cluster_t *, dt_cluster_cursor_t *, Dtorch__V1__StateRecord *,
                              const uint8_t **, size_t *);
    static give_part_fn *const parts[] = {
        [PART_CLUSTER] = give_cluster, [PART_NODES] = give_node,       [PART_EVENTS] = give_event,
        [PART_TOKENS] = give_token,    [PART_REQUESTS] = give_request, [PART_KEYS] = give_key,
    };
    for (; cursor->part < PART_END; cursor->part++, cursor->next = 0) {
        Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
        if (parts[cursor->part](cluster, cursor, &record, ret_data, ret_size))
            return true;
        if (cursor->is_failed)
            return false;
    }
    return false;
}
