#include "shard/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- meshes ---- */

dt_status_t dt_shard_mesh_init(dt_shard_mesh_t *ret_mesh, unsigned ndim, const uint32_t *sizes,
                               const uint64_t *vdevs, dt_error_t *err)
{
    dt_shard_mesh_t mesh = {.ndim = (uint8_t)ndim, .count = 1, .vdevs = vdevs};
    if (ndim < 1 || ndim > DT_RECORD_MESH_DIM_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", ndim, "a mesh of %u dimensions: not in 1..%u",
                       ndim, DT_RECORD_MESH_DIM_MAX);
    for (unsigned j = 0; j < ndim; j++) {
        if (sizes[j] == 0)
            return dt_fail(err, DT_ERR_INVALID, "dt", j, "dimension %u of a mesh has size 0", j);
        if (sizes[j] > DT_RECORD_VDEV_MAX || mesh.count * sizes[j] > DT_RECORD_VDEV_MAX)
            return dt_fail(err, DT_ERR_LIMIT, "dt", sizes[j], "a mesh of more than %u devices",
                           DT_RECORD_VDEV_MAX);
        mesh.sizes[j] = sizes[j];
        mesh.count *= sizes[j];
    }
    *ret_mesh = mesh;
    return DT_OK;
}

dt_shard_mesh_t dt_shard_mesh_single(const uint64_t *vdev)
{
    return (dt_shard_mesh_t){.ndim = 0, .count = 1, .vdevs = vdev};
}

void dt_shard_mesh_coords(const dt_shard_mesh_t *mesh, uint32_t index, uint32_t *ret_coords)
{
    for (int j = mesh->ndim - 1; j >= 0; index /= mesh->sizes[j--])
        ret_coords[j] = index % mesh->sizes[j];
}

int64_t dt_shard_mesh_find(const dt_shard_mesh_t *mesh, uint64_t vdev)
{
    for (uint32_t i = 0; i < mesh->count; i++)
        if (mesh->vdevs[i] == vdev)
            return i;
    return -1;
}

bool dt_shard_mesh_equal(const dt_shard_mesh_t *a, const dt_shard_mesh_t *b)
{
    return a->ndim == b->ndim && memcmp(a->sizes, b->sizes, a->ndim * sizeof a->sizes[0]) == 0 &&
           (a->vdevs == b->vdevs || memcmp(a->vdevs, b->vdevs, a->count * sizeof a->vdevs[0]) == 0);
}

/* ---- placements ---- */

dt_placement_t dt_placement_replicate(void)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_REPLICATE, .unit = 1, .groups = 1};
}

dt_placement_t dt_placement_shard(unsigned dim)
{
    return (dt_placement_t){
        .kind = DT_PLACEMENT_SHARD, .dim = (uint8_t)dim, .unit = 1, .groups = 1};
}

bool dt_placement_window(unsigned dim, int64_t size, int64_t of, int64_t first, uint32_t parts,
                         dt_placement_t *ret_placement)
{
    int64_t own = (size + parts - 1) / parts, piece = (of + parts - 1) / parts;
    *ret_placement = dt_placement_shard(dim);
    if (size == 0 || (first == 0 && own == piece))
        return true;
    if (of > UINT32_MAX || first + 1 > UINT32_MAX)
        return false;
    ret_placement->order = DT_ORDER_WINDOW;
    ret_placement->unit = (uint32_t)of;
    ret_placement->groups = (uint32_t)first + 1;
    return true;
}

bool dt_placement_is_window(dt_placement_t p)
{
    return p.kind == DT_PLACEMENT_SHARD && p.order == DT_ORDER_WINDOW;
}

dt_placement_t dt_placement_partial(unsigned reduction)
{
    return (dt_placement_t){
        .kind = DT_PLACEMENT_PARTIAL, .reduction = (uint8_t)reduction, .unit = 1, .groups = 1};
}

bool dt_placement_equal(dt_placement_t a, dt_placement_t b)
{
    if (a.kind != b.kind)
        return false;
    if (a.kind == DT_PLACEMENT_SHARD)
        return a.dim == b.dim && a.unit == b.unit && a.groups == b.groups && a.order == b.order;
    return a.kind != DT_PLACEMENT_PARTIAL || a.reduction == b.reduction;
}

dt_layout_t dt_layout_replicate(uint32_t mesh, unsigned ndim)
{
    dt_layout_t layout = {.mesh = mesh, .ndim = (uint8_t)ndim};
    for (unsigned j = 0; j < ndim; j++)
        layout.placements[j] = dt_placement_replicate();
    return layout;
}

bool dt_layout_equal(const dt_layout_t *a, const dt_layout_t *b)
{
    if (a->mesh != b->mesh || a->ndim != b->ndim)
        return false;
    for (unsigned j = 0; j < a->ndim; j++)
        if (!dt_placement_equal(a->placements[j], b->placements[j]))
            return false;
    return true;
}

bool dt_layout_is_replicate(const dt_layout_t *layout)
{
    for (unsigned j = 0; j < layout->ndim; j++)
        if (layout->placements[j].kind != DT_PLACEMENT_REPLICATE)
            return false;
    return true;
}

static const char *reduction_name(unsigned reduction)
{
    static const char *const names[] = {"sum", "avg", "max", "min"};
    return reduction <= DT_REDUCTION_MIN ? names[reduction] : "?";
}

static void append(char *text, size_t size, size_t *at, const char *fmt, ...) DT_PRINTF_LIKE(4, 5);
static void append(char *text, size_t size, size_t *at, const char *fmt, ...)
{
    va_list args;
    if (*at + 1 >= size)
        return;
    va_start(args, fmt);
    int n = vsnprintf(text + *at, size - *at, fmt, args);
    va_end(args);
    *at += n > 0 ? (size_t)n : 0;
}

void dt_layout_print(const dt_layout_t *layout, char *text, size_t size)
{
    size_t at = 0;
    append(text, size, &at, "[");
    for (unsigned j = 0; j < layout->ndim; j++) {
        dt_placement_t p = layout->placements[j];
        append(text, size, &at, j ? ", " : "");
        if (p.kind == DT_PLACEMENT_REPLICATE)
            append(text, size, &at, "Replicate()");
        else if (p.kind == DT_PLACEMENT_PARTIAL)
            append(text, size, &at, "Partial(%s)", reduction_name(p.reduction));
        else
            append(text, size, &at, "Shard(%u", p.dim);
        if (dt_placement_is_window(p)) {
            append(text, size, &at, ", first=%" PRIu32 ", of=%" PRIu32 ")", p.groups - 1, p.unit);
            continue;
        }
        if (p.kind == DT_PLACEMENT_SHARD && p.unit > 1)
            append(text, size, &at, ", unit=%" PRIu32, p.unit);
        if (p.kind == DT_PLACEMENT_SHARD && p.groups > 1)
            append(text, size, &at, ", groups=%" PRIu32, p.groups);
        if (p.kind == DT_PLACEMENT_SHARD && p.order & DT_ORDER_TURN_MAX)
            append(text, size, &at, ", turn=%u", p.order & DT_ORDER_TURN_MAX);
        if (p.kind == DT_PLACEMENT_SHARD && p.order & DT_ORDER_FOLDED)
            append(text, size, &at, ", folded");
        if (p.kind == DT_PLACEMENT_SHARD)
            append(text, size, &at, ")");
    }
    append(text, size, &at, "]");
}

/* ---- what is legal ---- */

static bool is_complex(unsigned dtype)
{
    return dtype == DT_DTYPE_C32 || dtype == DT_DTYPE_C64 || dtype == DT_DTYPE_C128;
}

static bool is_integer(unsigned dtype)
{
    return dtype <= DT_DTYPE_I64 || (dtype >= DT_DTYPE_U16 && dtype <= DT_DTYPE_U64);
}

/* Another mesh dimension cuts the same dimension of the tensor? */
static bool is_cut_again(const dt_layout_t *layout, unsigned j)
{
    for (unsigned i = 0; i < layout->ndim; i++)
        if (i != j && layout->placements[i].kind == DT_PLACEMENT_SHARD &&
            layout->placements[i].dim == layout->placements[j].dim)
            return true;
    return false;
}

static const char *window_fault(const dt_layout_t *layout, unsigned j, const dt_meta_t *meta)
{
    dt_placement_t p = layout->placements[j];
    if ((int64_t)p.groups - 1 + meta->sizes[p.dim] > (int64_t)p.unit)
        return "more rows than there are behind the first";
    return is_cut_again(layout, j) ? "another shard of a dimension that is a part of a longer one"
                                   : NULL;
}

static const char *order_fault(const dt_layout_t *layout, unsigned j, const dt_shard_mesh_t *mesh,
                               const dt_meta_t *meta)
{
    dt_placement_t p = layout->placements[j];
    if ((p.order & DT_ORDER_TURN_MAX) >= mesh->sizes[j])
        return "turned by more than there are pieces";
    if (p.unit != 1 || p.groups != 1)
        return "a unit or groups in another order";
    if (p.order & DT_ORDER_FOLDED && meta->sizes[p.dim] % (2 * (int64_t)mesh->sizes[j]))
        return "its halves are not equal";
    return is_cut_again(layout, j) ? "another shard of a dimension in another order" : NULL;
}

static const char *shard_fault(const dt_layout_t *layout, unsigned j, const dt_shard_mesh_t *mesh,
                               const dt_meta_t *meta)
{
    dt_placement_t p = layout->placements[j];
    if (p.dim >= meta->ndim)
        return "the tensor has no such dimension";
    if (p.unit == 0 || p.groups == 0)
        return "a unit or groups of 0";
    if (dt_placement_is_window(p))
        return window_fault(layout, j, meta);
    if (meta->sizes[p.dim] % p.groups)
        return "groups do not divide the dimension";
    if (p.order)
        return order_fault(layout, j, mesh, meta);
    for (unsigned i = j; i-- > 0;) {
        dt_placement_t outer = layout->placements[i];
        if (outer.kind != DT_PLACEMENT_SHARD || outer.dim != p.dim)
            continue;
        if (outer.groups != p.groups)
            return "another number of groups than an outer shard of this dimension";
        return NULL;
    }
    return NULL;
}

static const char *partial_fault(const dt_layout_t *layout, unsigned j, const dt_meta_t *meta)
{
    dt_placement_t p = layout->placements[j];
    bool is_extreme = p.reduction > DT_REDUCTION_AVG;
    if (p.reduction > DT_REDUCTION_MIN)
        return "no such reduction";
    if (meta->dtype == DT_DTYPE_BOOL && !is_extreme)
        return "truth values have no sum";
    if (is_extreme && is_complex(meta->dtype))
        return "complex numbers have no order";
    if (p.reduction == DT_REDUCTION_AVG && is_integer(meta->dtype))
        return "integers have no average";
    for (unsigned i = 0; i < j; i++) {
        dt_placement_t other = layout->placements[i];
        if (other.kind == DT_PLACEMENT_PARTIAL && other.reduction != p.reduction &&
            (is_extreme || other.reduction > DT_REDUCTION_AVG))
            return "a maximum or minimum beside another reduction";
    }
    return NULL;
}

dt_status_t dt_layout_check(const dt_layout_t *layout, const dt_shard_mesh_t *mesh,
                            const dt_meta_t *meta, dt_error_t *err)
{
    const char *fault = NULL;
    char placements[160], shape[160];
    if (layout->ndim != mesh->ndim)
        fault = "not one placement for each dimension of the mesh";
    for (unsigned j = 0; j < layout->ndim && !fault; j++) {
        if (layout->placements[j].kind == DT_PLACEMENT_SHARD)
            fault = shard_fault(layout, j, mesh, meta);
        else if (layout->placements[j].kind == DT_PLACEMENT_PARTIAL)
            fault = partial_fault(layout, j, meta);
        else if (layout->placements[j].kind != DT_PLACEMENT_REPLICATE)
            fault = "no such kind of placement";
    }
    if (!fault)
        return DT_OK;
    dt_layout_print(layout, placements, sizeof placements);
    dt_meta_print(meta, shape, sizeof shape);
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "a tensor %s cannot lie as %s on a mesh of %u "
                   "dimension(s): %s",
                   shape, placements, mesh->ndim, fault);
}

/* ---- boxes ---- */

/* [lo, hi) becomes its piece `at` of `parts`, borders at multiples of `unit`. */
static void cut(int64_t *lo, int64_t *hi, int64_t parts, int64_t at, int64_t unit)
{
    int64_t units = (*hi - *lo + unit - 1) / unit, step = (units + parts - 1) / parts * unit;
    int64_t first = *lo + at * step, last = first + step;
    *lo = first < *hi ? first : *hi;
    *hi = last < *hi ? last : *hi;
}

/* What device `at` of `parts` has of the longer dimension, as rows of the window. */
static void look_through(dt_shard_span_t *span, const dt_placement_t *p, int64_t parts, int64_t at)
{
    int64_t first = (int64_t)p->groups - 1, size = span->length, lo = 0, hi = p->unit;
    cut(&lo, &hi, parts, at, 1);
    lo = lo - first < 0 ? 0 : lo - first > size ? size : lo - first;
    hi = hi - first < lo ? lo : hi - first > size ? size : hi - first;
    span->lo = lo;
    span->length = hi - lo;
}

/* The two halves that device `at` of `parts` has of a folded dimension. */
static void fold(dt_shard_span_t *span, int64_t parts, int64_t at)
{
    int64_t half = span->length / (2 * parts), first = 2 * half * at;
    int64_t second = 2 * half * (parts - 1 - at) + half;
    span->lo = first < second ? first : second;
    span->length = half;
    span->groups = 2;
    span->stride = first < second ? second - first : first - second;
}

bool dt_shard_box(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, unsigned ndim,
                  const int64_t *sizes, uint32_t index, dt_shard_box_t *ret_box)
{
    uint32_t coords[DT_RECORD_MESH_DIM_MAX] = {0};
    bool is_full = true;
    ret_box->ndim = (uint8_t)ndim;
    for (unsigned d = 0; d < ndim; d++)
        ret_box->spans[d] = (dt_shard_span_t){0, sizes[d], 1, sizes[d]};
    dt_shard_mesh_coords(mesh, index, coords);
    for (unsigned j = 0; j < layout->ndim; j++) {
        const dt_placement_t *p = &layout->placements[j];
        if (p->kind != DT_PLACEMENT_SHARD)
            continue;
        dt_shard_span_t *span = &ret_box->spans[p->dim];
        if (dt_placement_is_window(*p)) {
            look_through(span, p, mesh->sizes[j], coords[j]);
            continue;
        }
        uint32_t turn = p->order & DT_ORDER_TURN_MAX, parts = mesh->sizes[j];
        uint32_t piece = turn ? (coords[j] + parts - turn) % parts : coords[j];
        if (p->order & DT_ORDER_FOLDED) {
            fold(span, parts, piece);
            continue;
        }
        if (span->groups != p->groups)
            *span = (dt_shard_span_t){0, sizes[p->dim] / p->groups, p->groups,
                                      sizes[p->dim] / p->groups};
        int64_t hi = span->lo + span->length;
        cut(&span->lo, &hi, parts, piece, p->unit);
        span->length = hi - span->lo;
    }
    for (unsigned d = 0; d < ndim; d++)
        is_full = is_full && ret_box->spans[d].length > 0;
    return is_full;
}

int64_t dt_shard_span_local(const dt_shard_span_t *span, int64_t at)
{
    if (at < span->lo)
        return -1;
    int64_t run = span->stride ? (at - span->lo) / span->stride : 0;
    int64_t inside = at - run * span->stride - span->lo;
    if (run >= span->groups || inside >= span->length)
        return -1;
    return run * span->length + inside;
}

bool dt_shard_sizes(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, unsigned ndim,
                    const int64_t *sizes, uint32_t index, int64_t *ret_sizes)
{
    dt_shard_box_t box;
    bool is_full = dt_shard_box(layout, mesh, ndim, sizes, index, &box);
    for (unsigned d = 0; d < ndim; d++)
        ret_sizes[d] = dt_shard_span_size(&box.spans[d]);
    return is_full;
}

void dt_shard_local_meta(const dt_meta_t *global, const dt_layout_t *layout,
                         const dt_shard_mesh_t *mesh, uint32_t index, dt_meta_t *ret_local)
{
    int64_t sizes[DT_META_DIM_MAX], strides[DT_META_DIM_MAX], step = 1;
    unsigned order[DT_META_DIM_MAX], ndim = global->ndim;
    (void)dt_shard_sizes(layout, mesh, ndim, global->sizes, index, sizes);
    for (unsigned d = 0; d < ndim; d++) { /* outermost first; few, so by insertion */
        unsigned at = d;
        for (; at > 0 && global->strides[order[at - 1]] < global->strides[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (unsigned i = ndim; i-- > 0;) {
        unsigned d = order[i];
        bool is_expanded = global->strides[d] == 0 && global->sizes[d] > 1;
        strides[d] = is_expanded ? 0 : step;
        step *= is_expanded || sizes[d] == 0 ? 1 : sizes[d];
    }
    /* Less than the global tensor, which passed: it cannot fail. */
    dt_check(dt_meta_set(ret_local, global->dtype, ndim, sizes, strides,
                         global->layout & (DT_META_CONJ | DT_META_NEG), NULL) == DT_OK);
}

bool dt_shard_keeps_value(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, uint32_t index)
{
    uint32_t coords[DT_RECORD_MESH_DIM_MAX] = {0};
    dt_shard_mesh_coords(mesh, index, coords);
    for (unsigned j = 0; j < layout->ndim; j++)
        if (layout->placements[j].kind == DT_PLACEMENT_PARTIAL &&
            layout->placements[j].reduction <= DT_REDUCTION_AVG && coords[j] != 0)
            return false;
    return true;
}

uint32_t dt_layout_avg_count(const dt_layout_t *layout, const dt_shard_mesh_t *mesh)
{
    uint32_t count = 1;
    for (unsigned j = 0; j < layout->ndim; j++)
        if (layout->placements[j].kind == DT_PLACEMENT_PARTIAL &&
            layout->placements[j].reduction == DT_REDUCTION_AVG)
            count *= mesh->sizes[j];
    return count;
}
