/* Changes by people: nodes' admin state, labels, forgetting; request ids; replies that wait until
 * what they say is durable. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

#define CHANGE(name) DTORCH__V1__SET_NODE_REQUEST__CHANGE__##name
#define ADMIN(name)  DTORCH__V1__NODE_INTENT__ADMIN__##name

/* ---- replies ---- */

void dt_cluster_reply_error(dt_cluster_t *cluster, uint64_t ticket, dt_status_t status,
                            const char *fmt, ...)
{
    char text[1024];
    dt_queued_action_t *queued = dt_cluster_action_new(cluster, DT_CLUSTER_DO_REPLY, 0);
    if (!queued)
        return; /* the caller's deadline answers */
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dt_wire_text_copy(queued->text, sizeof queued->text, text);
    queued->action.ticket = ticket;
    queued->action.status = status;
    dt_cluster_push(cluster, queued);
}

#define TEXT_PENDING "%" PRIu32 " changes wait for the journal, which is the bound"

void dt_cluster_reply_when_durable(dt_cluster_t *cluster, uint64_t ticket,
                                   uint64_t journal_sequence, const ProtobufCMessage *message)
{
    size_t size = message ? protobuf_c_message_get_packed_size(message) : 0;
    dt_queued_action_t *reply = dt_cluster_action_new(cluster, DT_CLUSTER_DO_REPLY, size);
    dt_pending_t *pending = calloc(1, sizeof *pending);
    if (!reply || !pending) {
        free(reply);
        free(pending);
        return; /* the caller's deadline answers */
    }
    if (message)
        (void)protobuf_c_message_pack(message, reply->data);
    reply->action.ticket = ticket;
    if (journal_sequence <= cluster->journal_durable) {
        free(pending);
        dt_cluster_push(cluster, reply);
        return;
    }
    /* A change made sure of its place first; what is left is a request that was sent again. */
    if (cluster->pending_count >= cluster->admin_pending_max) {
        free(pending);
        free(reply);
        dt_cluster_reply_error(cluster, ticket, DT_ERR_AGAIN, TEXT_PENDING, cluster->pending_count);
        return;
    }
    dt_list_init(&pending->link);
    pending->journal_sequence = journal_sequence;
    pending->reply = reply;
    dt_list_push(&cluster->pending, &pending->link);
    cluster->pending_count++;
}

void dt_cluster_replies_durable(dt_cluster_t *cluster)
{
    dt_list_t *link = cluster->pending.next;
    while (link != &cluster->pending) {
        dt_pending_t *pending = DT_CONTAINER_OF(link, dt_pending_t, link);
        link = link->next;
        if (pending->journal_sequence > cluster->journal_durable)
            continue;
        dt_list_remove(&pending->link);
        cluster->pending_count--;
        dt_cluster_push(cluster, pending->reply);
        free(pending);
    }
}

bool dt_cluster_admin_may_change(dt_cluster_t *cluster, uint64_t ticket, uint32_t records)
{
    if (!cluster->is_started || cluster->is_stopping) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_AGAIN, "the controller %s",
                               cluster->is_stopping ? "stops" : "starts");
        return false;
    }
    if (cluster->journal_is_failing) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_AGAIN,
                               "nothing can be changed while the journal cannot be written: %s",
                               cluster->journal_text);
        return false;
    }
    if (records > cluster->journal_pending_max) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_LIMIT,
                               "a change of %" PRIu32 " records, the bound is %" PRIu32
                               "; change fewer at once",
                               records, cluster->journal_pending_max);
        return false;
    }
    if (!dt_cluster_journal_has_room(cluster, DT_JOURNAL_ADMIN, records)) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_AGAIN,
                               "the journal is behind by %" PRIu64 " records",
                               cluster->journal_issued - cluster->journal_durable);
        return false;
    }
    if (cluster->pending_count >= cluster->admin_pending_max) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_AGAIN, TEXT_PENDING, cluster->pending_count);
        return false;
    }
    return true;
}

bool dt_cluster_admin_may_issue(dt_cluster_t *cluster, uint64_t ticket,
                                const ProtobufCMessage *request, const char *request_id,
                                const char *what)
{
    dt_error_t error;
    if (dt_wire_validate(request, &error) != DT_OK) {
        dt_cluster_reply_error(cluster, ticket, error.code, "%s", error.text);
        return false;
    }
    if (dt_cluster_request_find(cluster, request_id)) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_EXISTS,
                               "request %s was carried out already; a %s is shown only once: "
                               "revoke it and create another",
                               request_id, what);
        return false;
    }
    return dt_cluster_admin_may_change(cluster, ticket, 3); /* record, event, request id */
}

void dt_cluster_person(char *out, size_t out_size, const char *known, const char *said)
{
    char text[600];
    (void)snprintf(text, sizeof text, "%s%s%s", known ? known : "",
                   known && *known && *said ? ", " : "", said);
    dt_wire_text_copy(out, out_size, text[0] ? text : "unknown");
}

/* ---- request ids ---- */

static dt_request_t *request_at(const dt_cluster_t *cluster, uint32_t index)
{
    return &cluster->requests[(cluster->requests_head + index) % DT_CLUSTER_REQUESTS_MAX];
}

const dt_request_t *dt_cluster_request_find(const dt_cluster_t *cluster, const char *id)
{
    for (uint32_t i = cluster->requests_count; *id && i-- > 0;)
        if (strcmp(request_at(cluster, i)->id, id) == 0)
            return request_at(cluster, i);
    return NULL;
}

static dt_request_t *request_add(dt_cluster_t *cluster, const char *id)
{
    if (cluster->requests_count == DT_CLUSTER_REQUESTS_MAX) {
        cluster->requests_head = (cluster->requests_head + 1) % DT_CLUSTER_REQUESTS_MAX;
        cluster->requests_count--;
    }
    dt_request_t *request = request_at(cluster, cluster->requests_count++);
    *request = (dt_request_t){.wall_ms = cluster->wall_ms};
    (void)dt_str_copy(request->id, sizeof request->id, id);
    return request;
}

static void fill_request(dt_request_t *request, char summary[static 64],
                         Dtorch__V1__RequestState *ret_state)
{
    dtorch__v1__request_state__init(ret_state);
    (void)snprintf(summary, 64, "%016" PRIx64, request->hash);
    ret_state->request_id = request->id;
    ret_state->wall_ms = request->wall_ms;
    ret_state->summary = summary;
}

void dt_cluster_request_fill(dt_cluster_t *cluster, uint32_t index,
                             Dtorch__V1__RequestState *ret_state)
{
    fill_request(request_at(cluster, index), cluster->request_summary, ret_state);
}

uint64_t dt_cluster_request_record(dt_cluster_t *cluster, const char *id, uint64_t hash)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    Dtorch__V1__RequestState state;
    char summary[64];
    if (!*id)
        return cluster->journal_issued;
    dt_request_t *request = request_add(cluster, id);
    request->hash = hash;
    fill_request(request, summary, &state);
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_REQUEST;
    record.request = &state;
    request->journal_sequence = dt_cluster_journal(cluster, DT_JOURNAL_ADMIN, &record);
    return request->journal_sequence;
}

dt_status_t dt_cluster_request_restore(dt_cluster_t *cluster, const Dtorch__V1__RequestState *state)
{
    if (dt_cluster_request_find(cluster, state->request_id))
        return DT_OK; /* a snapshot and the segment behind it may both have it */
    dt_request_t *request = request_add(cluster, state->request_id);
    request->wall_ms = state->wall_ms;
    request->hash = strtoull(state->summary, NULL, 16);
    return DT_OK;
}

/* ---- nodes ---- */

/* What a change would do to one node; the text says why it cannot. */
static bool node_allows(const dt_node_t *node, Dtorch__V1__SetNodeRequest__Change change,
                        char *text, size_t size)
{
    bool is_drain = node->admin == ADMIN(DRAINING) || node->admin == ADMIN(DRAINED);
    if (change == CHANGE(UNDRAIN) && node->admin == ADMIN(CORDONED))
        (void)snprintf(text, size, "%s is cordoned, not drained: dtorchctl node uncordon %s",
                       node->name, node->name);
    else if (change == CHANGE(CORDON) && is_drain)
        (void)snprintf(text, size, "%s is %s, which is more than cordoned", node->name,
                       dt_cluster_admin_text(node->admin));
    else if (change == CHANGE(UNCORDON) && is_drain)
        (void)snprintf(text, size, "%s is %s: dtorchctl node undrain %s", node->name,
                       dt_cluster_admin_text(node->admin), node->name);
    else if (change == CHANGE(FORGET) && node->health != DTORCH__V1__NODE_HEALTH__NODE_DEAD &&
             node->health != DTORCH__V1__NODE_HEALTH__NODE_STOPPED)
        (void)snprintf(text, size, "%s is %s; only a dead or stopped node can be forgotten",
                       node->name, dt_cluster_health_text(node->health));
    else
        return true;
    return false;
}

static int find_label(const dt_node_t *node, const char *key)
{
    for (uint32_t i = 0; i < node->label_count; i++)
        if (strcmp(node->labels[i].key, key) == 0)
            return (int)i;
    return -1;
}

/* The labels as they would be after the request, in new memory. */
static dt_status_t merge_labels(const dt_node_t *node, const Dtorch__V1__SetNodeRequest *request,
                                dt_label_t **ret_labels, uint32_t *ret_count)
{
    dt_node_t draft = {.label_count = 0};
    draft.labels = calloc(node->label_count + request->n_set_labels + 1, sizeof *draft.labels);
    if (!draft.labels)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < node->label_count; i++) {
        bool is_removed = false;
        for (size_t k = 0; k < request->n_remove_labels; k++)
            is_removed |= strcmp(request->remove_labels[k], node->labels[i].key) == 0;
        if (!is_removed)
            draft.labels[draft.label_count++] = node->labels[i];
    }
    for (size_t i = 0; i < request->n_set_labels; i++) {
        const Dtorch__V1__Label *label = request->set_labels[i];
        int at = find_label(&draft, label->key);
        dt_label_t *place = &draft.labels[at >= 0 ? (uint32_t)at : draft.label_count++];
        (void)dt_str_copy(place->key, sizeof place->key, label->key);
        (void)dt_str_copy(place->value, sizeof place->value, label->value);
    }
    *ret_labels = draft.labels;
    *ret_count = draft.label_count;
    return DT_OK;
}

static int compare_labels(const void *a, const void *b)
{
    return strcmp(((const dt_label_t *)a)->key, ((const dt_label_t *)b)->key);
}

static bool labels_fit(const dt_node_t *node, const Dtorch__V1__SetNodeRequest *request, char *text,
                       size_t size)
{
    dt_label_t *labels;
    uint32_t count;
    if (merge_labels(node, request, &labels, &count) != DT_OK) {
        (void)snprintf(text, size, "out of memory");
        return false;
    }
    free(labels);
    if (count <= DT_CLUSTER_LABELS_MAX)
        return true;
    (void)snprintf(text, size, "%s would have %" PRIu32 " labels, the bound is %u", node->name,
                   count, DT_CLUSTER_LABELS_MAX);
    return false;
}

/* All nodes of the request exist and allow the change, else the ticket is answered. */
static bool request_is_allowed(dt_cluster_t *cluster, uint64_t ticket,
                               const Dtorch__V1__SetNodeRequest *request)
{
    char text[512];
    for (size_t i = 0; i < request->n_names; i++) {
        const dt_node_t *node = dt_cluster_node_by_name(cluster, request->names[i]);
        if (!node) {
            dt_cluster_reply_error(cluster, ticket, DT_ERR_NOT_FOUND,
                                   "no node %s; nothing was changed", request->names[i]);
            return false;
        }
        bool is_allowed = node_allows(node, request->change, text, sizeof text);
        if (is_allowed && request->change == CHANGE(LABEL))
            is_allowed = labels_fit(node, request, text, sizeof text);
        if (!is_allowed) {
            dt_cluster_reply_error(cluster, ticket, DT_ERR_INVALID, "%s; nothing was changed",
                                   text);
            return false;
        }
    }
    return true;
}

static void tell_change(dt_cluster_t *cluster, dt_node_t *node, const char *name, const char *what,
                        const char *who, const char *reason)
{
    dt_event_draft_t draft;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, name, node);
    draft.is_unbounded = true;
    dt_event_field(&draft, "by", "%s", who);
    if (*reason)
        dt_event_field(&draft, "reason", "%s", reason);
    (void)dt_event_end(cluster, &draft, "%s was %s by %s%s%s", node->name, what, who,
                       *reason ? ": " : "", reason);
}

static void set_admin(dt_cluster_t *cluster, dt_node_t *node, Dtorch__V1__NodeIntent__Admin admin,
                      const char *reason, const char *who)
{
    node->admin = admin;
    dt_cluster_node_moved(cluster, node);
    (void)dt_str_copy(node->reason, sizeof node->reason, reason);
    (void)dt_str_copy(node->reason_by, sizeof node->reason_by, who);
    node->reason_wall_ms = cluster->wall_ms;
}

static void change_labels(dt_node_t *node, const Dtorch__V1__SetNodeRequest *request)
{
    dt_label_t *labels;
    uint32_t count;
    if (merge_labels(node, request, &labels, &count) != DT_OK)
        return;
    qsort(labels, count, sizeof *labels, compare_labels);
    free(node->labels);
    node->labels = labels;
    node->label_count = count;
}

static void forget(dt_cluster_t *cluster, dt_node_t *node)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    Dtorch__V1__NodeForgotten forgotten = DTORCH__V1__NODE_FORGOTTEN__INIT;
    forgotten.node_id = (ProtobufCBinaryData){sizeof node->id, node->id};
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_FORGOTTEN;
    record.forgotten = &forgotten;
    (void)dt_cluster_journal(cluster, DT_JOURNAL_ADMIN, &record);
    dt_cluster_node_remove(cluster, node);
}

/* Change one node: its record, its event, what the worker is told. */
static void change_node(dt_cluster_t *cluster, dt_node_t *node,
                        const Dtorch__V1__SetNodeRequest *request, const char *who)
{
    static const struct {
        const char *event, *text;
    } names[] = {
        [CHANGE(DRAIN)] = {"node-drain", "drained"},
        [CHANGE(UNDRAIN)] = {"node-undrain", "undrained"},
        [CHANGE(CORDON)] = {"node-cordon", "cordoned"},
        [CHANGE(UNCORDON)] = {"node-uncordon", "uncordoned"},
        [CHANGE(LABEL)] = {"node-label", "labelled"},
        [CHANGE(FORGET)] = {"node-forgotten", "forgotten"},
    };
    tell_change(cluster, node, names[request->change].event, names[request->change].text, who,
                request->reason);
    switch (request->change) {
    case CHANGE(DRAIN):
        set_admin(cluster, node, node->admin == ADMIN(DRAINED) ? ADMIN(DRAINED) : ADMIN(DRAINING),
                  request->reason, who);
        break;
    case CHANGE(CORDON):
        set_admin(cluster, node, ADMIN(CORDONED), request->reason, who);
        break;
    case CHANGE(UNDRAIN):
    case CHANGE(UNCORDON):
        set_admin(cluster, node, ADMIN(ENABLED), request->reason, who);
        break;
    case CHANGE(LABEL):
        change_labels(node, request);
        break;
    default:
        forget(cluster, node);
        return;
    }
    dt_cluster_node_settle_drain(cluster, node);
    if (!dt_cluster_node_record(cluster, node, DT_JOURNAL_ADMIN))
        return;
    if (request->change != CHANGE(LABEL))
        dt_cluster_node_send_intent(cluster, node);
}

static uint64_t hash_set_node(const Dtorch__V1__SetNodeRequest *request)
{
    uint64_t hash = dt_hash_str(DT_HASH_SEED, "set-node");
    hash = dt_hash_bytes(hash, &request->change, sizeof request->change);
    hash = dt_hash_str(hash, request->reason);
    for (size_t i = 0; i < request->n_names; i++)
        hash = dt_hash_str(hash, request->names[i]);
    for (size_t i = 0; i < request->n_set_labels; i++)
        hash = dt_hash_str(dt_hash_str(hash, request->set_labels[i]->key),
                           request->set_labels[i]->value);
    for (size_t i = 0; i < request->n_remove_labels; i++)
        hash = dt_hash_str(hash, request->remove_labels[i]);
    return hash;
}

/* For a dry run: what the list would show after the change. */
static void show_as_if(const dt_cluster_t *cluster, const Dtorch__V1__SetNodeRequest *request,
                       Dtorch__V1__NodeList *list)
{
    for (size_t i = 0; i < list->n_nodes; i++) {
        Dtorch__V1__Node *shown = list->nodes[i];
        const dt_node_t *node = dt_cluster_node_by_name(cluster, shown->name);
        if (request->change == CHANGE(DRAIN))
            shown->admin = node && node->engines_busy ? ADMIN(DRAINING) : ADMIN(DRAINED);
        else if (request->change == CHANGE(CORDON))
            shown->admin = ADMIN(CORDONED);
        else if (request->change == CHANGE(UNDRAIN) || request->change == CHANGE(UNCORDON))
            shown->admin = ADMIN(ENABLED);
        if (request->change != CHANGE(LABEL) && request->change != CHANGE(FORGET))
            shown->reason = request->reason;
        if (request->change == CHANGE(LABEL) && request->n_set_labels) {
            shown->labels = request->set_labels; /* those that would be set */
            shown->n_labels = request->n_set_labels;
        }
    }
    if (request->change == CHANGE(FORGET))
        list->n_nodes = 0;
}

/* The nodes as they are now (or would be), once `sequence` is durable. */
static void reply_nodes(dt_cluster_t *cluster, uint64_t ticket, uint64_t sequence,
                        const Dtorch__V1__SetNodeRequest *request)
{
    dt_arena_t arena;
    Dtorch__V1__NodeList *list;
    dt_arena_init(&arena, DT_CLUSTER_REPLY_MAX);
    if (dt_cluster_node_list_of(cluster, request->names, request->n_names, false, &arena,
                                cluster->now_ns, &list) == DT_OK) {
        if (request->dry_run)
            show_as_if(cluster, request, list);
        dt_cluster_reply_when_durable(cluster, ticket, sequence, &list->base);
    } else {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the answer");
    }
    dt_arena_fini(&arena);
}

/* The request was carried out before, or its id was used for something else. */
static bool is_repeated(dt_cluster_t *cluster, uint64_t ticket,
                        const Dtorch__V1__SetNodeRequest *request)
{
    const dt_request_t *before = dt_cluster_request_find(cluster, request->request_id);
    if (!before)
        return false;
    if (before->hash == hash_set_node(request))
        reply_nodes(cluster, ticket, before->journal_sequence, request);
    else
        dt_cluster_reply_error(cluster, ticket, DT_ERR_INVALID,
                               "request id %s was used for another change", request->request_id);
    return true;
}

void dt_cluster_set_node(dt_cluster_t *cluster, uint64_t ticket,
                         const Dtorch__V1__SetNodeRequest *request, const char *by, int64_t now_ns)
{
    dt_error_t error;
    char who[DT_CLUSTER_PERSON_MAX + 1];
    dt_cluster_set_now(cluster, now_ns);
    if (dt_wire_validate(&request->base, &error) != DT_OK) {
        dt_cluster_reply_error(cluster, ticket, error.code, "%s", error.text);
        return;
    }
    if (is_repeated(cluster, ticket, request) || !request_is_allowed(cluster, ticket, request))
        return;
    if (request->dry_run) {
        reply_nodes(cluster, ticket, 0, request);
        return;
    }
    /* A node takes its record, its event, and perhaps the event that it is drained. */
    if (!dt_cluster_admin_may_change(cluster, ticket, 3 * (uint32_t)request->n_names + 1))
        return;
    dt_cluster_person(who, sizeof who, by, request->by);
    for (size_t i = 0; i < request->n_names; i++) {
        dt_node_t *node = dt_cluster_node_by_name(cluster, request->names[i]);
        if (node) /* a name may stand twice in a request to forget */
            change_node(cluster, node, request, who);
    }
    (void)dt_cluster_request_record(cluster, request->request_id, hash_set_node(request));
    reply_nodes(cluster, ticket, cluster->journal_issued, request);
}
