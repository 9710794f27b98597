/* dtorchctl job explain-plan: for each operator that a job runs, the rule by which it is placed,
 * where its tensors lie, what is moved for it and how, how long all that takes, and the program's
 * line.
 *
 * The controller gives the signatures as the program defined them; what they mean is worked out
 * here. Times, lines and the order come of a trace of some seconds. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "shard/explain.h"
#include "text.h"
#include "trace.h"
#include "wire/signature.h"

#define PLANS_MAX  65536u
#define MESHES_MAX 65536u
#define ARENA_MAX  (8u << 20)
#define MOVES_NEAR 16u /* before one operator; more are lines of their own */

typedef struct plan {
    bool is_known;
    dt_shard_explained_t is;
    char name[256];
    const char *shape; /* of its mesh */
    const Dtorch__V1__PlanInfo *info;
} plan_t;

/* One run of a signature on one virtual device. */
typedef struct event {
    uint64_t sequence;
    uint32_t signature, vdev;
    int64_t spent_ns;
    const char *line;
} event_t;

/* What is told of (line, signature); sums are of the device that the walk is at. */
typedef struct row {
    const char *line;
    uint32_t signature;
    uint64_t sequence; /* of the first run */
    const char *moves;
    uint64_t moved_bytes;
    uint32_t vdev;
    uint64_t runs, spent_ns, moves_ns;
    uint64_t most_runs, most_ns, most_moves_ns; /* of the busiest one */
} row_t;

typedef struct explanation {
    dt_ctl_t *ctl;
    dt_ctl_trace_t trace;
    plan_t **plans; /* (plan_cap) by signature */
    uint32_t plan_cap, plan_count;
    dt_shard_mesh_t *meshes; /* (mesh_cap) by number; count 0: not known */
    const char **shapes;     /* (mesh_cap) */
    uint32_t mesh_cap;
    event_t *events;
    size_t event_count;
    row_t *rows;
    size_t row_count, row_cap;
    uint32_t *index; /* open addressing, 1 + row; (index_cap) */
    size_t index_cap;
} explanation_t;

/* ---- what the controller knows ---- */

static const dt_shard_mesh_t *mesh_of(void *arg, uint32_t mesh)
{
    const explanation_t *x = arg;
    return mesh < x->mesh_cap && x->meshes[mesh].count ? &x->meshes[mesh] : NULL;
}

static void take_meshes(explanation_t *x, const Dtorch__V1__PlanList *list)
{
    for (size_t i = 0; i < list->n_meshes; i++)
        if (list->meshes[i]->id < MESHES_MAX && list->meshes[i]->id >= x->mesh_cap)
            x->mesh_cap = list->meshes[i]->id + 1;
    x->meshes = dt_ctl_alloc(&x->ctl->pool, x->mesh_cap + 1, sizeof *x->meshes);
    x->shapes = dt_ctl_alloc(&x->ctl->pool, x->mesh_cap + 1, sizeof *x->shapes);
    memset(x->meshes, 0, (x->mesh_cap + 1) * sizeof *x->meshes);
    for (size_t i = 0; i < list->n_meshes; i++) {
        const Dtorch__V1__PlanMesh *from = list->meshes[i];
        dt_shard_mesh_t mesh;
        if (from->id >= x->mesh_cap || from->n_vdevs == 0)
            continue;
        uint64_t *vdevs = dt_ctl_alloc(&x->ctl->pool, from->n_vdevs, sizeof *vdevs);
        for (size_t k = 0; k < from->n_vdevs; k++)
            vdevs[k] = from->vdevs[k];
        if (from->n_sizes == 0)
            mesh = dt_shard_mesh_single(vdevs);
        else if (dt_shard_mesh_init(&mesh, (unsigned)from->n_sizes, from->sizes, vdevs, NULL) !=
                 DT_OK)
            continue;
        if (mesh.count == from->n_vdevs)
            x->meshes[from->id] = mesh;
        x->shapes[from->id] = dt_ctl_safe(&x->ctl->pool, from->shape);
    }
}

/* The controller's steps count, not what would be chosen here. */
static void take_steps(plan_t *plan, const Dtorch__V1__PlanInfo *info)
{
    char *text = plan->is.steps;
    size_t at = 0;
    plan->is.bytes = 0;
    if (info->n_steps == 0)
        return;
    for (size_t i = 0; i < info->n_steps; i++) {
        int size = snprintf(text + at, DT_SHARD_EXPLAIN_TEXT - at, "%s%s", i ? ", " : "",
                            dt_shard_step_name(info->steps[i]->kind));
        at += size > 0 && (size_t)size < DT_SHARD_EXPLAIN_TEXT - at ? (size_t)size : 0;
        plan->is.bytes += (int64_t)info->steps[i]->bytes;
    }
}

static void explain(explanation_t *x, const dt_shard_rules_t *rules, dt_arena_t *arena,
                    const Dtorch__V1__PlanInfo *info)
{
    dt_cursor_t cursor = {.at = info->body.data, .end = info->body.data + info->body.len};
    dt_signature_t *signature;
    if (info->signature >= x->plan_cap || !info->body.data)
        return;
    plan_t *plan = dt_ctl_alloc(&x->ctl->pool, 1, sizeof *plan);
    memset(plan, 0, sizeof *plan);
    plan->info = info;
    dt_arena_reset(arena);
    if (dt_signature_decode(&cursor, arena, &signature) != 0)
        return;
    (void)snprintf(plan->name, sizeof plan->name, "%s", signature->name);
    plan->is_known = dt_shard_explain(rules, signature, mesh_of, x, &plan->is, NULL) == DT_OK;
    if (plan->is_known && plan->is.is_move)
        take_steps(plan, info);
    const dt_shard_mesh_t *mesh = mesh_of(x, plan->is.mesh);
    plan->shape = mesh && mesh->count > 1 ? x->shapes[plan->is.mesh] : "";
    x->plans[info->signature] = plan;
    x->plan_count++;
}

static int take_plans(explanation_t *x, uint64_t job)
{
    Dtorch__V1__GetPlansRequest request = DTORCH__V1__GET_PLANS_REQUEST__INIT;
    dt_shard_rules_t *rules;
    dt_arena_t arena;
    dt_error_t err;
    int code = DT_CTL_EXIT_OK;
    if (dt_shard_rules_create(&rules, &err) != DT_OK)
        return dt_ctl_fail(x->ctl, DT_CTL_EXIT_INTERNAL, "%s", err.text);
    dt_arena_init(&arena, ARENA_MAX);
    x->plan_cap = PLANS_MAX;
    x->plans = dt_ctl_alloc(&x->ctl->pool, x->plan_cap, sizeof(void *));
    memset(x->plans, 0, x->plan_cap * sizeof(void *));
    request.job = job;
    do {
        const Dtorch__V1__PlanList *list =
            dt_ctl_call(x->ctl, "GetPlans", &request, &dtorch__v1__plan_list__descriptor, &code);
        if (!list)
            break;
        if (request.from == 0)
            take_meshes(x, list);
        for (size_t i = 0; i < list->n_plans; i++)
            explain(x, rules, &arena, list->plans[i]);
        request.from = list->next > request.from ? list->next : 0;
    } while (request.from != 0);
    dt_arena_fini(&arena);
    dt_shard_rules_free(rules);
    return code;
}

/* ---- what ran ---- */

static int by_device_and_order(const void *a, const void *b)
{
    const event_t *x = a, *y = b;
    if (x->vdev != y->vdev)
        return x->vdev > y->vdev ? 1 : -1;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

/* The batches of one engine come in order; its program's line goes on from one to the next. */
static const char **line_of(explanation_t *x, size_t batch, const char **lines)
{
    const Dtorch__V1__TimelineBatch *at = x->trace.batches[batch];
    for (size_t i = batch; i-- > 0;)
        if (x->trace.batches[i]->trace->begun_ns == at->trace->begun_ns &&
            strcmp(x->trace.batches[i]->node, at->node) == 0) {
            lines[batch] = lines[i];
            break;
        }
    return &lines[batch];
}

static void take_events(explanation_t *x)
{
    dt_arena_t *pool = &x->ctl->pool;
    size_t room = 0;
    const char **lines = dt_ctl_alloc(pool, x->trace.batch_count + 1, sizeof *lines);
    for (size_t i = 0; i < x->trace.batch_count; i++) {
        room += x->trace.batches[i]->trace->n_events;
        lines[i] = "";
    }
    x->events = dt_ctl_alloc(pool, room + 1, sizeof *x->events);
    for (size_t i = 0; i < x->trace.batch_count; i++) {
        const Dtorch__V1__TraceBatch *batch = x->trace.batches[i]->trace;
        const char **line = line_of(x, i, lines);
        for (size_t k = 0; k < batch->n_events; k++) {
            const Dtorch__V1__TraceEvent *from = batch->events[k];
            if (from->kind != DTORCH__V1__TRACE_EVENT__KIND__OPERATOR)
                continue;
            if (*from->text)
                *line = dt_ctl_safe(pool, from->text);
            x->events[x->event_count++] = (event_t){.sequence = from->sequence,
                                                    .signature = from->signature,
                                                    .vdev = from->vdev,
                                                    .spent_ns = from->duration_ns,
                                                    .line = *line};
        }
    }
    qsort(x->events, x->event_count, sizeof *x->events, by_device_and_order);
}

/* ---- lines ---- */

static size_t home_of(const explanation_t *x, const char *line, uint32_t signature)
{
    return (size_t)(dt_hash_str(DT_HASH_SEED, line) ^ dt_hash_u64(signature)) & (x->index_cap - 1);
}

static void grow_rows(explanation_t *x)
{
    size_t cap = x->row_cap ? 2 * x->row_cap : 256;
    row_t *rows = dt_ctl_alloc(&x->ctl->pool, cap, sizeof *rows);
    if (x->row_count > 0)
        memcpy(rows, x->rows, x->row_count * sizeof *rows);
    x->rows = rows;
    x->row_cap = cap;
    x->index_cap = 2 * cap;
    x->index = dt_ctl_alloc(&x->ctl->pool, x->index_cap, sizeof *x->index);
    memset(x->index, 0, x->index_cap * sizeof *x->index);
    for (size_t i = 0; i < x->row_count; i++) {
        size_t at = home_of(x, rows[i].line, rows[i].signature);
        while (x->index[at])
            at = (at + 1) & (x->index_cap - 1);
        x->index[at] = (uint32_t)i + 1;
    }
}

static row_t *row_of(explanation_t *x, const char *line, uint32_t signature, uint64_t sequence)
{
    if (x->row_count == x->row_cap)
        grow_rows(x);
    size_t at = home_of(x, line, signature);
    for (; x->index[at]; at = (at + 1) & (x->index_cap - 1)) {
        row_t *row = &x->rows[x->index[at] - 1];
        if (row->signature == signature && strcmp(row->line, line) == 0)
            return row;
    }
    x->rows[x->row_count] =
        (row_t){.line = line, .signature = signature, .sequence = sequence, .moves = ""};
    x->index[at] = (uint32_t)++x->row_count;
    return &x->rows[x->row_count - 1];
}

static void leave_device(row_t *row)
{
    if (row->spent_ns + row->moves_ns >= row->most_ns + row->most_moves_ns) {
        row->most_runs = row->runs;
        row->most_ns = row->spent_ns;
        row->most_moves_ns = row->moves_ns;
    }
    row->runs = row->spent_ns = row->moves_ns = 0;
}

static row_t *add_run(explanation_t *x, const event_t *event)
{
    row_t *row = row_of(x, event->line, event->signature, event->sequence);
    if (row->vdev != event->vdev)
        leave_device(row);
    row->vdev = event->vdev;
    row->sequence = event->sequence < row->sequence ? event->sequence : row->sequence;
    row->runs++;
    row->spent_ns += event->spent_ns > 0 ? (uint64_t)event->spent_ns : 0;
    return row;
}

static const plan_t *plan_of(const explanation_t *x, uint32_t signature)
{
    const plan_t *plan = signature < x->plan_cap ? x->plans[signature] : NULL;
    return plan && plan->is_known ? plan : NULL;
}

/* "[Replicate()]" of "float32 (4, 2) [Replicate()]". */
static const char *place_in(const char *operand)
{
    const char *at = strrchr(operand, '[');
    return at ? at : (at = strstr(operand, " on ")) ? at + 1 : operand;
}

static const char *describe_move(dt_arena_t *pool, const plan_t *move)
{
    return dt_ctl_print(pool, "%s to %s: %s", move->is.inputs, place_in(move->is.outputs),
                        move->is.steps);
}

/* Was it moved for this operator? Then it is issued at the same line, right before, and the
 * operator takes a tensor that lies as it does. */
static bool is_for(const event_t *event, const plan_t *plan, const event_t *move_event,
                   const plan_t *move)
{
    return strcmp(event->line, move_event->line) == 0 && plan && move && !plan->is.is_move &&
           strstr(plan->is.inputs, move->is.outputs) != NULL;
}

/* An operator, and the moves that stand before it: those that were for it, and others. */
static void add_operator(explanation_t *x, const event_t *event, const event_t *const *moves,
                         size_t move_count)
{
    dt_arena_t *pool = &x->ctl->pool;
    const plan_t *plan = plan_of(x, event->signature);
    uint64_t bytes = 0, spent_ns = 0;
    const char *text = "";
    for (size_t i = 0; i < move_count; i++) {
        const plan_t *move = plan_of(x, moves[i]->signature);
        if (!is_for(event, plan, moves[i], move)) {
            (void)add_run(x, moves[i]);
            continue;
        }
        spent_ns += moves[i]->spent_ns > 0 ? (uint64_t)moves[i]->spent_ns : 0;
        bytes += (uint64_t)move->is.bytes;
        text = dt_ctl_print(pool, "%s%s%s", text, *text ? "; " : "", describe_move(pool, move));
    }
    row_t *row = add_run(x, event);
    row->moves_ns += spent_ns;
    if (bytes >= row->moved_bytes && *text) { /* not every run needs them */
        row->moved_bytes = bytes;
        row->moves = text;
    }
}

static void add_up(explanation_t *x)
{
    const event_t *moves[MOVES_NEAR];
    size_t move_count = 0;
    for (size_t i = 0; i < x->event_count; i++) {
        const event_t *event = &x->events[i];
        const plan_t *plan = plan_of(x, event->signature);
        bool is_other = move_count > 0 && moves[0]->vdev != event->vdev;
        if (is_other || move_count == MOVES_NEAR) {
            for (size_t k = 0; k < move_count; k++)
                (void)add_run(x, moves[k]);
            move_count = 0;
        }
        if (plan && plan->is.is_move) {
            moves[move_count++] = event;
            continue;
        }
        add_operator(x, event, moves, move_count);
        move_count = 0;
    }
    for (size_t k = 0; k < move_count; k++)
        (void)add_run(x, moves[k]);
    for (size_t i = 0; i < x->row_count; i++)
        leave_device(&x->rows[i]);
}

/* Nothing ran: what is defined, in the order in which it was. */
static void add_defined(explanation_t *x)
{
    for (uint32_t i = 0; i < x->plan_cap; i++)
        if (x->plans[i])
            (void)row_of(x, "", i, i);
}

/* ---- showing ---- */

static const Dtorch__V1__PlanLine *line_at(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__PlanLine *)(const void *)view->items[0];
}

static dt_ctl_value_t text_value(const char *text)
{
    return *text ? (dt_ctl_value_t){.kind = DT_CTL_TEXT, .text = text} : dt_ctl_absent();
}

static dt_ctl_value_t moves_or_steps(const dt_ctl_view_t *view)
{
    const Dtorch__V1__PlanLine *line = line_at(view);
    return text_value(*line->moves ? line->moves : line->algorithm);
}

static dt_ctl_value_t unless_zero(uint64_t number, dt_ctl_unit_t unit)
{
    return number ? dt_ctl_uint(number, unit) : dt_ctl_absent();
}

static dt_ctl_value_t bytes_moved(const dt_ctl_view_t *view)
{
    return unless_zero(line_at(view)->moved_bytes, DT_CTL_BYTES);
}

static dt_ctl_value_t runs(const dt_ctl_view_t *view)
{
    return unless_zero(line_at(view)->runs, DT_CTL_PLAIN);
}

static dt_ctl_value_t time_spent(const dt_ctl_view_t *view)
{
    const Dtorch__V1__PlanLine *line = line_at(view);
    return line->runs ? dt_ctl_uint(line->time_ns, DT_CTL_NS) : dt_ctl_absent();
}

static dt_ctl_value_t time_moving(const dt_ctl_view_t *view)
{
    return unless_zero(line_at(view)->moves_ns, DT_CTL_NS);
}

static dt_ctl_value_t time_planned(const dt_ctl_view_t *view)
{
    return unless_zero(line_at(view)->planned_ns, DT_CTL_NS);
}

static const dt_ctl_column_t columns[] = {
    {"line", "LINE", "line", NULL, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
    {"operator", "OPERATOR", "operator_name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"rule", "RULE", "rule", NULL, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
    {"inputs", "INPUTS", "inputs", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"outputs", "OUTPUTS", "outputs", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"moves", "MOVES", NULL, moves_or_steps, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
    {"bytes", "BYTES", NULL, bytes_moved, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"runs", "RUNS", NULL, runs, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"time", "TIME", NULL, time_spent, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"moving", "MOVING", NULL, time_moving, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"planned", "PLANNED", NULL, time_planned, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"mesh", "MESH", "mesh", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
};

static const dt_ctl_list_t plan_list = {
    .kind = "Plan",
    .one = "operator",
    .many = "operators",
    .name_path = "operator_name",
    .type = &dtorch__v1__plan_line__descriptor,
    .columns = columns,
    .column_count = sizeof columns / sizeof columns[0],
};

static int by_order(const void *a, const void *b)
{
    const row_t *x = a, *y = b;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

static Dtorch__V1__PlanLine *plan_line(explanation_t *x, const row_t *row)
{
    dt_arena_t *pool = &x->ctl->pool; /* messages want what they could write to */
    const plan_t *plan = row->signature < x->plan_cap ? x->plans[row->signature] : NULL;
    Dtorch__V1__PlanLine *line = dt_ctl_alloc(pool, 1, sizeof *line);
    dtorch__v1__plan_line__init(line);
    line->line = dt_ctl_copy(pool, row->line, strlen(row->line));
    line->moves = dt_ctl_copy(pool, row->moves, strlen(row->moves));
    line->moved_bytes = row->moved_bytes;
    line->runs = row->most_runs;
    line->time_ns = row->most_runs ? row->most_ns / row->most_runs : 0;
    line->moves_ns = row->most_runs ? row->most_moves_ns / row->most_runs : 0;
    line->operator_name = dt_ctl_print(pool, "signature %" PRIu32, row->signature);
    if (!plan)
        return line; /* dropped since */
    line->operator_name = (char *)(uintptr_t)dt_ctl_safe(pool, plan->name);
    line->rule = (char *)(uintptr_t)dt_ctl_safe(pool, plan->is.rule);
    line->inputs = (char *)(uintptr_t)dt_ctl_safe(pool, plan->is.inputs);
    line->outputs = (char *)(uintptr_t)dt_ctl_safe(pool, plan->is.outputs);
    line->algorithm = (char *)(uintptr_t)dt_ctl_safe(pool, plan->is.steps);
    line->mesh = dt_ctl_copy(pool, plan->shape, strlen(plan->shape));
    if (plan->is.is_move) {
        line->moved_bytes = (uint64_t)plan->is.bytes;
        line->planned_ns = (uint64_t)(plan->is.cost_us * 1000);
    }
    return line;
}

static int show(explanation_t *x)
{
    Dtorch__V1__PlanLine **lines = dt_ctl_alloc(&x->ctl->pool, x->row_count + 1, sizeof *lines);
    if (x->row_count > 0)
        qsort(x->rows, x->row_count, sizeof *x->rows, by_order);
    for (size_t i = 0; i < x->row_count; i++)
        lines[i] = plan_line(x, &x->rows[i]);
    return dt_ctl_print_list(x->ctl, &plan_list,
                             (const ProtobufCMessage *const *)(const void *)lines, x->row_count,
                             NULL);
}

int dt_ctl_job_explain_plan(dt_ctl_t *ctl)
{
    uint64_t job;
    uint32_t duration_ms;
    int code = dt_ctl_check_list(ctl, &plan_list);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_trace_args(ctl, &job, &duration_ms);
    if (code != DT_CTL_EXIT_OK)
        return code;
    explanation_t *x = dt_ctl_alloc(&ctl->pool, 1, sizeof *x);
    memset(x, 0, sizeof *x);
    x->ctl = ctl;
    code = dt_ctl_trace_collect(ctl, job, duration_ms, &x->trace);
    if (code == DT_CTL_EXIT_OK)
        code = take_plans(x, job);
    if (code != DT_CTL_EXIT_OK)
        return code;
    take_events(x);
    if (x->event_count > 0) {
        add_up(x);
    } else {
        add_defined(x);
        dt_ctl_note(ctl, "nothing ran in the time looked at: this is all that the job has defined");
    }
    uint64_t dropped = dt_ctl_trace_dropped(&x->trace);
    if (dropped + x->trace.dropped_batches > 0)
        dt_ctl_note(ctl, "%" PRIu64 " events and %" PRIu64 " batches had no room and are missing",
                    dropped, x->trace.dropped_batches);
    return show(x);
}
