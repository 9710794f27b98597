/* Redistribution, executed: every list runs on one array a device, and the result is compared with
 * the tensor. The reference cuts lists of positions as torch.chunk does and knows no boxes, cells
 * or regions. The bytes moved are compared with the least that the layouts allow, element by
 * element. DT_TEST_WHOLE=1 (make check-soak) runs ten times the random cases. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/redistribute.h"

TestSuite(shard_redistribute, .timeout = 600);

#define ELEMENT_MAX 1400 /* of a tensor here */
#define PLACE_MAX   8    /* devices of a mesh here */
#define VDEV_COUNT  24u

static uint64_t random_state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- the reference ---- */

typedef struct side {
    dt_shard_mesh_t mesh;
    dt_layout_t layout;
    uint64_t vdevs[PLACE_MAX];
    bool holds[PLACE_MAX][ELEMENT_MAX]; /* of a place: which elements */
    uint32_t part[PLACE_MAX], parts, averaged;
    int64_t local[PLACE_MAX];           /* elements */
    int64_t at[PLACE_MAX][ELEMENT_MAX]; /* local position of an element */
    unsigned reduction;                 /* SUM, MAX, MIN */
} side_t;

/* Which positions of a dimension a device has. */
static void cut_list(int64_t *list, int64_t *count, uint32_t parts, uint32_t at, int64_t unit)
{
    int64_t units = (*count + unit - 1) / unit, step = (units + parts - 1) / parts * unit;
    int64_t first = at * step < *count ? at * step : *count, n = 0;
    for (int64_t i = first; i < first + step && i < *count; i++)
        list[n++] = list[i];
    *count = n;
}

/* The same of pieces in another order, which cut a dimension alone. */
static void ordered(dt_placement_t p, uint32_t parts, uint32_t at, int64_t size, bool *ret_has)
{
    int64_t chunk = (size + parts - 1) / parts;
    if (p.order == DT_ORDER_WINDOW) { /* row i is row i + first of a longer dimension */
        chunk = ((int64_t)p.unit + parts - 1) / parts;
        for (int64_t i = 0; i < size; i++)
            ret_has[i] = (uint32_t)((i + p.groups - 1) / chunk) == at;
        return;
    }
    uint32_t piece = (at + parts - (p.order & DT_ORDER_TURN_MAX)) % parts;
    for (int64_t i = 0; i < size; i++) {
        bool is_second = i % chunk >= chunk / 2;
        uint32_t owner = (uint32_t)(i / chunk);
        if (p.order & DT_ORDER_FOLDED && is_second)
            owner = parts - 1 - owner;
        ret_has[i] = owner == piece;
    }
}

static void positions(const side_t *s, uint32_t place, unsigned dim, int64_t size, bool *ret_has)
{
    uint32_t coords[DT_RECORD_MESH_DIM_MAX];
    int64_t groups = 1, list[64];
    dt_shard_mesh_coords(&s->mesh, place, coords);
    memset(ret_has, 0, 64);
    for (unsigned j = 0; j < s->mesh.ndim; j++)
        if (s->layout.placements[j].kind == DT_PLACEMENT_SHARD &&
            s->layout.placements[j].dim == dim)
            groups = s->layout.placements[j].groups;
    for (unsigned j = 0; j < s->mesh.ndim; j++)
        if (s->layout.placements[j].dim == dim && s->layout.placements[j].order) {
            ordered(s->layout.placements[j], s->mesh.sizes[j], coords[j], size, ret_has);
            return;
        }
    for (int64_t g = 0; g < groups; g++) {
        int64_t count = size / groups;
        for (int64_t i = 0; i < count; i++)
            list[i] = g * count + i;
        for (unsigned j = 0; j < s->mesh.ndim; j++) {
            dt_placement_t p = s->layout.placements[j];
            if (p.kind == DT_PLACEMENT_SHARD && p.dim == dim)
                cut_list(list, &count, s->mesh.sizes[j], coords[j], p.unit);
        }
        for (int64_t i = 0; i < count; i++)
            ret_has[list[i]] = true;
    }
}

static void measure(side_t *s, const dt_meta_t *meta)
{
    int64_t numel = dt_meta_numel(meta);
    static bool has[DT_META_DIM_MAX][64];
    s->parts = s->averaged = 1;
    s->reduction = DT_REDUCTION_SUM;
    for (unsigned j = 0; j < s->mesh.ndim; j++) {
        dt_placement_t p = s->layout.placements[j];
        if (p.kind != DT_PLACEMENT_PARTIAL)
            continue;
        s->parts *= s->mesh.sizes[j];
        s->averaged *= p.reduction == DT_REDUCTION_AVG ? s->mesh.sizes[j] : 1;
        s->reduction = p.reduction == DT_REDUCTION_AVG ? DT_REDUCTION_SUM : p.reduction;
    }
    for (uint32_t i = 0; i < s->mesh.count; i++) {
        uint32_t coords[DT_RECORD_MESH_DIM_MAX];
        dt_shard_mesh_coords(&s->mesh, i, coords);
        s->part[i] = 0;
        for (unsigned j = 0; j < s->mesh.ndim; j++)
            if (s->layout.placements[j].kind == DT_PLACEMENT_PARTIAL)
                s->part[i] = s->part[i] * s->mesh.sizes[j] + coords[j];
        for (unsigned d = 0; d < meta->ndim; d++)
            positions(s, i, d, meta->sizes[d], has[d]);
        s->local[i] = 0;
        for (int64_t e = 0; e < numel; e++) {
            bool is_in = true;
            for (unsigned d = 0; d < meta->ndim; d++)
                is_in = is_in && has[d][e / meta->strides[d] % meta->sizes[d]];
            s->holds[i][e] = is_in;
            s->at[i][e] = is_in ? s->local[i]++ : -1; /* row-major: in the order of elements */
        }
    }
}

static double combine(unsigned reduction, double a, double b)
{
    if (reduction == DT_REDUCTION_MAX)
        return a > b ? a : b;
    if (reduction == DT_REDUCTION_MIN)
        return a < b ? a : b;
    return a + b;
}

static double identity(unsigned reduction)
{
    return reduction == DT_REDUCTION_MAX   ? -(double)INFINITY
           : reduction == DT_REDUCTION_MIN ? (double)INFINITY
                                           : 0;
}

typedef struct shards {
    double of[PLACE_MAX][ELEMENT_MAX];
} shards_t;

/* What each place holds so that the tensor is `value`. Multiples of 120 divide by every count. */
static void make_source(const side_t *s, int64_t numel, const double *value, shards_t *ret)
{
    for (int64_t e = 0; e < numel; e++) {
        double terms[PLACE_MAX], sum = 0;
        uint32_t who = draw(s->parts);
        for (uint32_t p = 0; p < s->parts; p++) {
            terms[p] = 120.0 * ((int)draw(19) - 9);
            if (s->reduction != DT_REDUCTION_SUM)
                terms[p] = p == who                           ? value[e]
                           : s->reduction == DT_REDUCTION_MAX ? value[e] - fabs(terms[p])
                                                              : value[e] + fabs(terms[p]);
            sum += p ? terms[p] : 0;
        }
        if (s->reduction == DT_REDUCTION_SUM)
            terms[0] = value[e] * s->averaged - sum;
        for (uint32_t i = 0; i < s->mesh.count; i++)
            if (s->holds[i][e])
                ret->of[i][s->at[i][e]] = terms[s->part[i]];
    }
}

/* Replicas equal, parts make the value, nothing missing. */
static bool is_value(const side_t *s, int64_t numel, const double *value, const shards_t *x)
{
    for (int64_t e = 0; e < numel; e++) {
        double parts[PLACE_MAX], total = 0;
        bool is_there[PLACE_MAX] = {false};
        for (uint32_t i = 0; i < s->mesh.count; i++) {
            if (!s->holds[i][e])
                continue;
            double v = x->of[i][s->at[i][e]];
            if (isnan(v) || (is_there[s->part[i]] && parts[s->part[i]] != v))
                return false;
            is_there[s->part[i]] = true;
            parts[s->part[i]] = v;
        }
        for (uint32_t p = 0; p < s->parts; p++) {
            if (!is_there[p])
                return false;
            total = p ? combine(s->reduction, total, parts[p]) : parts[0];
        }
        if (total / s->averaged != value[e])
            return false;
    }
    return true;
}

/* Fewest elements that must pass between devices. */
static int64_t least(const side_t *from, const side_t *to, int64_t numel, bool *ret_is_weak)
{
    int64_t total = 0;
    *ret_is_weak = from->parts > 1 && to->parts > 1 && from->reduction == to->reduction;
    for (int64_t e = 0; e < numel; e++) {
        int64_t best = INT64_MAX;
        for (uint32_t q = 0; q < to->parts; q++) {
            int64_t receivers = 0, lacking = 0;
            for (uint32_t i = 0; i < to->mesh.count; i++) {
                if (!to->holds[i][e] || to->part[i] != q)
                    continue;
                int64_t k = dt_shard_mesh_find(&from->mesh, to->vdevs[i]);
                receivers++;
                lacking += k < 0 || !from->holds[k][e];
            }
            int64_t cost = from->parts == 1
                               ? lacking
                               : (int64_t)from->parts + receivers - 1 - (lacking < receivers);
            best = cost < best ? cost : best;
        }
        total += *ret_is_weak ? 0 : best;
    }
    return total;
}

/* ---- execution ---- */

static int64_t step_of(const int64_t *sizes, unsigned ndim, unsigned dim)
{
    int64_t step = 1;
    for (unsigned d = dim + 1; d < ndim; d++)
        step *= sizes[d];
    return step;
}

/* Local position of entry `k` of a transfer's box, whose corner is `at`. */
static int64_t local_of(const dt_shard_transfer_t *t, unsigned ndim, int64_t k, const int64_t *at,
                        const int64_t *sizes)
{
    int64_t position = 0;
    for (unsigned d = 0; d < ndim; d++) {
        int64_t inside = at[d] + k / step_of(t->sizes, ndim, d) % t->sizes[d];
        cr_assert(inside >= 0 && inside < sizes[d], "outside of a local tensor");
        position += inside * step_of(sizes, ndim, d);
    }
    return position;
}

typedef struct run {
    const dt_shard_list_t *list;
    const dt_meta_t *meta;
    side_t *from, *to;
    const shards_t *old;
    shards_t *new;
    uint32_t got[PLACE_MAX][ELEMENT_MAX]; /* contributions; all bits: complete */
} run_t;

static void run_transfer(run_t *r, const dt_shard_transfer_t *t)
{
    unsigned ndim = r->meta->ndim;
    side_t *source = t->wave ? r->to : r->from;
    uint32_t from = (uint32_t)dt_shard_mesh_find(&source->mesh, t->from_vdev);
    uint32_t to = (uint32_t)dt_shard_mesh_find(&r->to->mesh, t->to_vdev);
    int64_t count = 1, from_sizes[DT_META_DIM_MAX], to_sizes[DT_META_DIM_MAX];
    for (unsigned d = 0; d < ndim; d++)
        count *= t->sizes[d];
    (void)dt_shard_sizes(&source->layout, &source->mesh, ndim, r->meta->sizes, from, from_sizes);
    (void)dt_shard_sizes(&r->to->layout, &r->to->mesh, ndim, r->meta->sizes, to, to_sizes);
    for (int64_t k = 0; k < count; k++) {
        int64_t read = local_of(t, ndim, k, t->from_at, from_sizes);
        int64_t write = local_of(t, ndim, k, t->to_at, to_sizes);
        double value = (t->wave ? r->new : r->old)->of[from][read];
        double *at = &r->new->of[to][write];
        uint32_t *got = &r->got[to][write];
        cr_assert(!isnan(value), "reads what is not there");
        if (t->wave)
            cr_assert_eq(r->got[from][read], UINT32_MAX >> (32 - r->from->parts),
                         "forwards what it has not");
        if (t->is_reduce) {
            cr_assert_lt(*got, 1u << t->part, "parts out of order");
            *at = *got ? combine(r->list->combine, *at, value) : value;
            *got |= 1u << t->part;
        } else {
            cr_assert_eq(*got, 0, "written twice");
            *at = value;
            *got = UINT32_MAX >> (32 - r->from->parts);
        }
    }
}

static void execute(run_t *r)
{
    const dt_shard_list_t *list = r->list;
    memset(r->got, 0, sizeof r->got);
    for (uint32_t i = 0; i < r->to->mesh.count; i++)
        for (int64_t k = 0; k < r->to->local[i]; k++)
            r->new->of[i][k] = list->fills ? identity(list->identity) : (double)NAN;
    for (uint32_t k = 0; k < list->count; k++)
        if (list->transfers[k].wave == 0)
            run_transfer(r, &list->transfers[k]);
    for (uint32_t i = 0; i < r->to->mesh.count; i++)
        for (int64_t k = 0; k < r->to->local[i]; k++)
            r->new->of[i][k] = r->new->of[i][k] * (double)list->scale_num / (double)list->scale_den;
    for (uint32_t k = 0; k < list->count; k++)
        if (list->transfers[k].wave == 1)
            run_transfer(r, &list->transfers[k]);
}

/* ---- a case ---- */

static struct {
    dt_shard_topology_t topology;
    uint32_t hosts[VDEV_COUNT], racks[VDEV_COUNT];
    dt_meta_t meta;
    side_t from, to, between;
    shards_t source, result, next;
    run_t run;
    double value[ELEMENT_MAX];
    int64_t weak_moved, weak_elements;
    uint32_t ordered; /* layouts whose pieces are turned or folded */
} t;

static void describe(char *text, size_t size)
{
    char from[128], to[128], shape[64];
    dt_layout_print(&t.from.layout, from, sizeof from);
    dt_layout_print(&t.to.layout, to, sizeof to);
    dt_meta_print(&t.meta, shape, sizeof shape);
    snprintf(text, size, "%s from %s on %u to %s on %u", shape, from, t.from.mesh.count, to,
             t.to.mesh.count);
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(dt_shard_transfer_t));
}

/* What each device lists for itself adds up to the whole list. */
static void check_parts(const dt_shard_pair_t *pair, const dt_shard_list_t *whole,
                        dt_arena_t *arena, const char *what)
{
    dt_shard_transfer_t *all = dt_arena_calloc(arena, 2 * whole->count + 1, sizeof *all);
    dt_shard_transfer_t *own = dt_arena_calloc(arena, 2 * whole->count + 1, sizeof *own);
    uint32_t all_count = 0, own_count = 0;
    for (uint32_t k = 0; k < whole->count; k++) {
        all[all_count++] = whole->transfers[k];
        if (whole->transfers[k].from_vdev != whole->transfers[k].to_vdev)
            all[all_count++] = whole->transfers[k];
    }
    for (uint64_t vdev = 0; vdev < VDEV_COUNT; vdev++) {
        dt_shard_list_t list;
        cr_assert_eq(dt_shard_list(pair, &t.topology, vdev, arena, &list, NULL), DT_OK);
        for (uint32_t k = 0; k < list.count; k++) {
            cr_assert_lt(own_count, all_count, "%s: a device lists too much", what);
            own[own_count++] = list.transfers[k];
        }
    }
    cr_assert_eq(own_count, all_count, "%s: devices list too little", what);
    qsort(all, all_count, sizeof *all, by_bytes);
    qsort(own, own_count, sizeof *own, by_bytes);
    cr_assert_eq(memcmp(all, own, all_count * sizeof *all), 0, "%s: the parts of the list", what);
}

/* The symbolic form, each step by the list of its two layouts. */
static void run_steps(const dt_shard_pair_t *pair, int64_t numel, dt_arena_t *arena,
                      const char *what)
{
    dt_shard_plan_t plan;
    dt_error_t err;
    cr_assert_eq(dt_shard_plan_choose(pair, &t.topology, NULL, &plan, &err), DT_OK, "%s", err.text);
    uint8_t wire[DT_SHARD_STEP_MAX * DT_SHARD_STEP_BYTES + 10];
    dt_cursor_t cursor = {.at = wire, .end = dt_shard_steps_put(wire, plan.steps, plan.step_count)};
    dt_shard_step_t steps[DT_SHARD_STEP_MAX];
    uint32_t count;
    dt_shard_steps_get(&cursor, steps, &count);
    cr_assert(!cursor.error && count == plan.step_count && cursor.at == cursor.end);
    t.between = t.from;
    t.next = t.source;
    for (uint32_t k = 0; k < count; k++) {
        dt_layout_t layout =
            dt_shard_plan_layout(&t.from.layout, &t.to.layout, steps, count, k + 1);
        static side_t after;
        after = k + 1 == count ? t.to : t.between;
        after.layout = layout;
        measure(&after, &t.meta);
        dt_shard_pair_t step = {&t.meta, &t.between.mesh, &after.mesh, &t.between.layout,
                                &after.layout};
        dt_shard_list_t list;
        cr_assert_eq(dt_shard_list(&step, &t.topology, DT_SHARD_ALL, arena, &list, &err), DT_OK,
                     "%s: %s", what, err.text);
        if (steps[k].kind <= DT_SHARD_STEP_FILL)
            cr_assert_eq(list.moved_bytes, 0, "%s: a %s moves", what,
                         dt_shard_step_name(steps[k].kind));
        t.run = (run_t){.list = &list, .meta = &t.meta, .from = &t.between, .to = &after};
        t.run.old = &t.next;
        t.run.new = &t.result;
        execute(&t.run);
        t.next = t.result;
        t.between = after;
    }
    cr_assert(is_value(&t.to, numel, t.value, &t.next), "%s: by %u steps", what, count);
}

static void run_case(bool checks_parts)
{
    char what[400];
    dt_arena_t arena;
    dt_shard_list_t list;
    dt_error_t err;
    bool is_weak;
    int64_t numel = dt_meta_numel(&t.meta);
    dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout, &t.to.layout};
    describe(what, sizeof what);
    if (dt_layout_check(&t.from.layout, &t.from.mesh, &t.meta, NULL) != DT_OK ||
        dt_layout_check(&t.to.layout, &t.to.mesh, &t.meta, NULL) != DT_OK)
        return;
    dt_arena_init(&arena, 64u << 20);
    measure(&t.from, &t.meta);
    measure(&t.to, &t.meta);
    for (int64_t e = 0; e < numel; e++)
        t.value[e] = 120.0 * ((int)draw(100) - 50);
    make_source(&t.from, numel, t.value, &t.source);
    cr_assert_eq(dt_shard_list(&pair, &t.topology, DT_SHARD_ALL, &arena, &list, &err), DT_OK,
                 "%s: %s", what, err.text);
    t.run = (run_t){.list = &list, .meta = &t.meta, .from = &t.from, .to = &t.to};
    t.run.old = &t.source;
    t.run.new = &t.result;
    execute(&t.run);
    cr_assert(is_value(&t.to, numel, t.value, &t.result), "%s: by its list", what);
    int64_t moved = list.moved_bytes / 8, bound = least(&t.from, &t.to, numel, &is_weak);
    if (!is_weak)
        cr_assert_eq(moved, bound, "%s: moves %lld elements, needs %lld", what, (long long)moved,
                     (long long)bound);
    t.weak_moved += is_weak ? moved : 0;
    t.weak_elements += is_weak ? numel : 0;
    if (checks_parts)
        check_parts(&pair, &list, &arena, what);
    run_steps(&pair, numel, &arena, what);
    dt_arena_fini(&arena);
}

/* ---- which cases ---- */

static void set_topology(uint32_t per_host, int64_t split, int64_t direct)
{
    t.topology = dt_shard_topology_default;
    t.topology.vdev_count = VDEV_COUNT;
    for (uint32_t i = 0; i < VDEV_COUNT; i++) {
        t.hosts[i] = i / per_host;
        t.racks[i] = i / per_host / 2;
    }
    t.topology.hosts = t.hosts;
    t.topology.racks = t.racks;
    t.topology.split_bytes = split;
    t.topology.direct_bytes = direct;
}

static void set_meta(unsigned ndim, const int64_t *sizes)
{
    cr_assert_eq(dt_meta_set(&t.meta, DT_DTYPE_F64, ndim, sizes, NULL, 0, NULL), DT_OK);
    for (unsigned d = 0; d < ndim; d++) /* of an empty tensor too */
        t.meta.strides[d] = t.meta.strides[d] ? t.meta.strides[d] : 1;
}

/* Distinct devices among the first `pool`. */
static void set_mesh(side_t *s, unsigned ndim, const uint32_t *sizes, uint32_t pool)
{
    uint64_t all[VDEV_COUNT];
    for (uint32_t i = 0; i < pool; i++)
        all[i] = i;
    for (uint32_t i = 0; i < PLACE_MAX; i++) {
        uint32_t k = i + draw(pool - i);
        s->vdevs[i] = all[k];
        all[k] = all[i];
    }
    cr_assert_eq(dt_shard_mesh_init(&s->mesh, ndim, sizes, s->vdevs, NULL), DT_OK);
    s->layout = dt_layout_replicate(1, ndim);
}

/* sum and avg may stand beside each other. */
static unsigned some_reduction(unsigned family)
{
    return family < 2 ? draw(2) : family;
}

static void set_by_number(side_t *s, uint32_t number, unsigned family)
{
    for (unsigned j = 0; j < s->mesh.ndim; j++, number /= 4)
        s->layout.placements[j] = number % 4 == 0   ? dt_placement_replicate()
                                  : number % 4 == 3 ? dt_placement_partial(some_reduction(family))
                                                    : dt_placement_shard(number % 4 - 1);
}

static void all_pairs(unsigned ndim, const uint32_t *sizes, const int64_t (*shapes)[2],
                      unsigned shape_count)
{
    uint32_t layouts = 1u << (2 * ndim);
    for (uint32_t a = 0; a < layouts; a++)
        for (uint32_t b = 0; b < layouts; b++)
            for (unsigned k = 0; k < shape_count; k++) {
                unsigned family = draw(4), other = draw(2) ? family : draw(4);
                set_meta(2, shapes[k]);
                set_mesh(&t.from, ndim, sizes, PLACE_MAX);
                t.to = t.from;
                t.to.mesh.vdevs = t.to.vdevs;
                set_by_number(&t.from, a, family);
                set_by_number(&t.to, b, other);
                run_case(draw(10) == 0);
            }
}

Test(shard_redistribute, all_pairs_of_layouts_on_small_meshes_are_right_at_the_bound)
{
    static const int64_t shapes[][2] = {{5, 3}, {0, 2}, {1, 1}, {4, 6}, {6, 7}};
    static const struct {
        unsigned ndim;
        uint32_t sizes[3];
    } meshes[] = {{1, {2}}, {1, {3}}, {1, {4}}, {2, {2, 3}}, {2, {3, 2}}, {3, {2, 2, 2}}};
    unsigned count = getenv("DT_TEST_WHOLE") ? 6 : 5; // NOLINT(concurrency-mt-unsafe)
    set_topology(4, 0, 0);
    for (unsigned m = 0; m < count; m++)
        all_pairs(meshes[m].ndim, meshes[m].sizes, shapes, 5);
}

static void some_placement(side_t *s, unsigned j, unsigned family)
{
    uint32_t kind = draw(2 + t.meta.ndim);
    s->layout.placements[j] = kind == 0   ? dt_placement_replicate()
                              : kind == 1 ? dt_placement_partial(some_reduction(family))
                                          : dt_placement_shard(kind - 2);
    dt_placement_t *p = &s->layout.placements[j];
    if (p->kind == DT_PLACEMENT_SHARD && draw(3) == 0)
        p->unit = 1 + draw(3);
    if (p->kind == DT_PLACEMENT_SHARD && draw(4) == 0)
        p->groups = 1 + draw(3);
}

/* One whose pieces are turned or folded, or a window, where that can be. */
static void some_order(side_t *s, unsigned j)
{
    dt_placement_t old = s->layout.placements[j];
    s->layout.placements[j] = dt_placement_shard(draw(t.meta.ndim));
    s->layout.placements[j].order =
        (uint8_t)(draw(s->mesh.sizes[j]) | (draw(2) ? DT_ORDER_FOLDED : 0));
    dt_placement_t *p = &s->layout.placements[j];
    if (draw(2) == 0) {
        uint32_t first = draw(6), size = (uint32_t)t.meta.sizes[p->dim];
        (void)dt_placement_window(p->dim, size, size + first + draw(6), first, s->mesh.sizes[j], p);
    }
    if (dt_layout_check(&s->layout, &s->mesh, &t.meta, NULL) != DT_OK)
        s->layout.placements[j] = old;
    else
        t.ordered += s->layout.placements[j].order > 0;
}

static void some_side(side_t *s, uint32_t pool)
{
    static const struct {
        unsigned ndim;
        uint32_t sizes[3];
    } meshes[] = {{1, {1}},    {1, {2}},    {1, {3}},       {1, {5}},    {2, {2, 2}}, {2, {2, 3}},
                  {2, {3, 2}}, {2, {4, 2}}, {3, {2, 2, 2}}, {2, {1, 4}}, {1, {8}}};
    unsigned m = draw(11), family = draw(4);
    set_mesh(s, meshes[m].ndim, meshes[m].sizes, pool);
    for (unsigned j = 0; j < s->mesh.ndim; j++)
        some_placement(s, j, family);
    for (unsigned j = 0; j < s->mesh.ndim && t.meta.ndim; j++)
        if (draw(4) == 0)
            some_order(s, j);
}

Test(shard_redistribute, random_meshes_units_and_groups_are_right_at_the_bound)
{
    static const uint32_t pools[] = {9, 12, 24}, hosts[] = {1, 2, 4};
    uint32_t count = getenv("DT_TEST_WHOLE") ? 30000 : 3000; // NOLINT(concurrency-mt-unsafe)
    for (uint32_t i = 0; i < count; i++) {
        int64_t sizes[3];
        unsigned ndim = draw(4);
        uint32_t pool = pools[draw(3)];
        for (unsigned d = 0; d < ndim; d++)
            sizes[d] = draw(10) == 0 ? 1 : draw(12);
        set_topology(hosts[draw(3)], draw(2) ? 32 : 0, 0);
        set_meta(ndim, sizes);
        some_side(&t.from, pool);
        some_side(&t.to, pool);
        run_case(i % 10 == 0);
    }
    cr_assert_gt(t.weak_elements, 0);
    cr_assert_gt(t.ordered, 300);
}

Test(shard_redistribute, a_ring_step_moves_each_block_once_to_the_neighbour)
{
    static const int64_t shape[] = {3, 13};
    static const uint32_t size = 4;
    dt_shard_plan_t plan;
    dt_shard_list_t list;
    dt_arena_t arena;
    set_topology(8, 0, 0);
    set_meta(2, shape);
    set_mesh(&t.from, 1, &size, 8);
    t.from.layout.placements[0] = dt_placement_shard(1);
    t.to = t.from;
    t.to.mesh.vdevs = t.to.vdevs;
    t.from.layout.placements[0].order = 2;
    t.to.layout.placements[0].order = 3;
    dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout, &t.to.layout};
    dt_arena_init(&arena, 1u << 20);
    cr_assert_eq(dt_shard_list(&pair, &t.topology, DT_SHARD_ALL, &arena, &list, NULL), DT_OK);
    cr_assert_eq(list.count, 4);
    for (uint32_t k = 0; k < list.count; k++) {
        int64_t from = dt_shard_mesh_find(&t.from.mesh, list.transfers[k].from_vdev);
        int64_t to = dt_shard_mesh_find(&t.to.mesh, list.transfers[k].to_vdev);
        cr_assert_eq((from + 1) % 4, to);
    }
    cr_assert_eq(list.moved_bytes, dt_meta_bytes(&t.meta));
    cr_assert_eq(dt_shard_plan_choose(&pair, NULL, NULL, &plan, NULL), DT_OK);
    cr_assert(plan.step_count == 1 && plan.steps[0].kind == DT_SHARD_STEP_EXCHANGE);
    cr_assert_eq(plan.recv_bytes, dt_meta_bytes(&t.meta) / 13 * 4); /* a whole chunk */
    dt_arena_fini(&arena);
}

Test(shard_redistribute, small_reductions_go_to_everyone_at_once)
{
    static const int64_t shape[] = {3};
    static const uint32_t size = 4;
    set_topology(8, 0, 4096);
    set_meta(1, shape);
    set_mesh(&t.from, 1, &size, 8);
    t.to = t.from;
    t.to.mesh.vdevs = t.to.vdevs;
    t.from.layout.placements[0] = dt_placement_partial(DT_REDUCTION_SUM);
    dt_arena_t arena;
    dt_shard_list_t list;
    dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout, &t.to.layout};
    dt_arena_init(&arena, 1u << 20);
    cr_assert_eq(dt_shard_list(&pair, &t.topology, DT_SHARD_ALL, &arena, &list, NULL), DT_OK);
    cr_assert_eq(list.count, 16);
    for (uint32_t k = 0; k < list.count; k++)
        cr_assert(list.transfers[k].wave == 0 && list.transfers[k].is_reduce);
    dt_arena_fini(&arena);
}

Test(shard_redistribute, one_collective_does_what_one_can)
{
    static const int64_t shape[] = {8192, 8192};
    static const uint32_t size = 4;
    dt_shard_plan_t plan;
    static const uint8_t kinds[4][4] = {
        {0, DT_SHARD_STEP_SLICE, DT_SHARD_STEP_SLICE, DT_SHARD_STEP_FILL},
        {DT_SHARD_STEP_ALL_GATHER, 0, DT_SHARD_STEP_ALL_TO_ALL, DT_SHARD_STEP_FILL},
        {DT_SHARD_STEP_ALL_GATHER, DT_SHARD_STEP_ALL_TO_ALL, 0, DT_SHARD_STEP_FILL},
        {DT_SHARD_STEP_ALL_REDUCE, DT_SHARD_STEP_REDUCE_SCATTER, DT_SHARD_STEP_REDUCE_SCATTER, 0}};
    set_topology(8, 0, 0);
    set_meta(2, shape);
    set_mesh(&t.from, 1, &size, 8);
    t.to = t.from;
    t.to.mesh.vdevs = t.to.vdevs;
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++) {
            dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout,
                                    &t.to.layout};
            set_by_number(&t.from, a, 2);
            set_by_number(&t.to, b, 2);
            cr_assert_eq(dt_shard_plan_choose(&pair, &t.topology, NULL, &plan, NULL), DT_OK);
            cr_assert_eq(plan.step_count, a != b);
            if (a != b)
                cr_assert_eq(plan.steps[0].kind, kinds[a][b], "%u to %u: %s", a, b,
                             dt_shard_step_name(plan.steps[0].kind));
        }
}

Test(shard_redistribute, refuses_layouts_that_no_tensor_can_have)
{
    static const int64_t shape[] = {4};
    static const uint32_t sizes[] = {2, 2};
    dt_shard_plan_t plan;
    dt_error_t err;
    set_topology(8, 0, 0);
    set_meta(1, shape);
    set_mesh(&t.from, 2, sizes, 8);
    t.to = t.from;
    t.to.mesh.vdevs = t.to.vdevs;
    t.to.layout.placements[0] = dt_placement_partial(DT_REDUCTION_SUM);
    t.to.layout.placements[1] = dt_placement_partial(DT_REDUCTION_MAX);
    dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout, &t.to.layout};
    cr_assert_eq(dt_shard_plan_choose(&pair, NULL, NULL, &plan, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "[Partial(sum), Partial(max)]"), "%s", err.text);
}

/* ---- work ---- */

static void fill_vdevs(uint64_t *vdevs, uint32_t count, uint32_t first)
{
    for (uint32_t i = 0; i < count; i++)
        vdevs[i] = (first + i) % count;
}

/* What a client may say costs so much and no more, however large it is. */
static void costs(const dt_shard_pair_t *pair, const char *what)
{
    dt_shard_plan_t plan;
    uint64_t work = UINT64_MAX;
    cr_assert_eq(dt_shard_plan_choose(pair, NULL, &work, &plan, NULL), DT_OK, "%s", what);
    cr_assert(UINT64_MAX - work <= DT_SHARD_WORK_MAX && plan.step_count > 0, "%s: %lu units", what,
              (unsigned long)(UINT64_MAX - work));
    work = 0;
    cr_assert_eq(dt_shard_plan_choose(pair, NULL, &work, &plan, NULL), DT_OK, "%s", what);
    cr_assert(work == 0 && plan.step_count == 1, "%s without work", what);
}

Test(shard_redistribute, work_is_bounded_whatever_meshes_and_layouts_are_said)
{
    enum { MANY = DT_RECORD_VDEV_MAX };
    static uint64_t one[MANY], other[MANY];
    static const uint32_t line[] = {MANY}, five[] = {4, 4, 4, 8, 8};
    static const int64_t shape[] = {INT64_C(1) << 36, 3, 2};
    dt_shard_mesh_t flat, deep, shifted;
    dt_layout_t a = {.ndim = 1}, b = {.ndim = 1}, deep_a = {.ndim = 5}, deep_b = {.ndim = 5};
    fill_vdevs(one, MANY, 0);
    fill_vdevs(other, MANY, 1);
    set_meta(3, shape);
    cr_assert_eq(dt_shard_mesh_init(&flat, 1, line, one, NULL), DT_OK);
    cr_assert_eq(dt_shard_mesh_init(&shifted, 1, line, other, NULL), DT_OK);
    cr_assert_eq(dt_shard_mesh_init(&deep, 5, five, one, NULL), DT_OK);
    a.placements[0] = dt_placement_shard(0);
    b.placements[0] = dt_placement_shard(1);
    costs(&(dt_shard_pair_t){&t.meta, &flat, &flat, &a, &b}, "one large mesh");
    costs(&(dt_shard_pair_t){&t.meta, &flat, &shifted, &a, &a}, "two large meshes");
    a.placements[0].groups = 1u << 31; /* each interval is a hair */
    b.placements[0] = dt_placement_shard(0);
    b.placements[0].groups = 1u << 30;
    costs(&(dt_shard_pair_t){&t.meta, &flat, &shifted, &a, &b}, "groups beyond number");
    for (unsigned j = 0; j < 5; j++) {
        deep_a.placements[j] = dt_placement_partial(DT_REDUCTION_SUM);
        deep_b.placements[j] = dt_placement_shard(j % 3);
    }
    costs(&(dt_shard_pair_t){&t.meta, &deep, &deep, &deep_a, &deep_b}, "a mesh of five dimensions");
}

/* Intervals of grouped shards are compared in closed form: so many as when each is looked at. */
Test(shard_redistribute, what_an_exchange_moves_of_grouped_shards_is_counted)
{
    static const int64_t shape[] = {240};
    static const struct {
        uint32_t groups;
        uint8_t order;
    } cuts[] = {{1, 0},
                {2, 0},
                {3, 0},
                {4, 0},
                {5, 0},
                {8, 0},
                {12, 0},
                {24, 0},
                {1, 1},
                {1, DT_ORDER_FOLDED},
                {1, DT_ORDER_FOLDED | 3}};
    static const uint32_t four = 4;
    enum { COUNT = sizeof cuts / sizeof *cuts };
    dt_arena_t arena;
    set_topology(8, 0, 0);
    set_meta(1, shape);
    set_mesh(&t.from, 1, &four, 8);
    set_mesh(&t.to, 1, &four, 8); /* another mesh, so that one exchange is what there is */
    for (int a = 0; a < COUNT; a++)
        for (int b = 0; b < COUNT; b++) {
            dt_shard_plan_t plan;
            dt_shard_list_t list;
            int64_t got[8] = {0}, most = 0;
            t.from.layout.placements[0] = t.to.layout.placements[0] = dt_placement_shard(0);
            t.from.layout.placements[0].groups = cuts[a].groups;
            t.from.layout.placements[0].order = cuts[a].order;
            t.to.layout.placements[0].groups = cuts[b].groups;
            t.to.layout.placements[0].order = cuts[b].order;
            dt_shard_pair_t pair = {&t.meta, &t.from.mesh, &t.to.mesh, &t.from.layout,
                                    &t.to.layout};
            dt_arena_init(&arena, 1u << 22);
            cr_assert_eq(dt_shard_list(&pair, &t.topology, DT_SHARD_ALL, &arena, &list, NULL),
                         DT_OK);
            for (uint32_t k = 0; k < list.count; k++)
                if (list.transfers[k].from_vdev != list.transfers[k].to_vdev)
                    got[list.transfers[k].to_vdev] += list.transfers[k].sizes[0];
            for (int v = 0; v < 8; v++)
                most = got[v] > most ? got[v] : most;
            cr_assert_eq(dt_shard_plan_choose(&pair, &t.topology, NULL, &plan, NULL), DT_OK);
            cr_assert_eq(plan.step_count, 1);
            cr_assert_eq(plan.recv_bytes, most * (int64_t)dt_dtype_bytes(t.meta.dtype),
                         "cut %d to cut %d", a, b);
            dt_arena_fini(&arena);
        }
}
