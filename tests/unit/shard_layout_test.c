/* Layouts against lists of positions that are cut as torch.chunk does. */
#include <criterion/criterion.h>
#include <string.h>

#include "shard/layout.h"

TestSuite(shard_layout, .timeout = 60);

static dt_shard_mesh_t mesh_of(unsigned ndim, const uint32_t *sizes)
{
    dt_shard_mesh_t mesh;
    cr_assert_eq(dt_shard_mesh_init(&mesh, ndim, sizes, NULL, NULL), DT_OK);
    return mesh;
}

static dt_meta_t meta_of(unsigned dtype, unsigned ndim, const int64_t *sizes,
                         const int64_t *strides)
{
    dt_meta_t meta;
    cr_assert_eq(dt_meta_set(&meta, dtype, ndim, sizes, strides, 0, NULL), DT_OK);
    return meta;
}

/* Positions of one dimension that a device keeps: a list, cut once for each mesh dimension. */
static int64_t keep(int64_t *list, int64_t count, uint32_t parts, uint32_t at, int64_t unit)
{
    int64_t step = ((count + unit - 1) / unit + parts - 1) / parts * unit, kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (i / (step ? step : 1) == at)
            list[kept++] = list[i];
    return kept;
}

static void compare(const dt_layout_t *layout, const dt_shard_mesh_t *mesh, int64_t size,
                    int64_t groups)
{
    dt_meta_t meta = meta_of(DT_DTYPE_F32, 1, &size, NULL);
    int64_t seen[64] = {0}, sizes[1];
    cr_assert_eq(dt_layout_check(layout, mesh, &meta, NULL), DT_OK);
    for (uint32_t i = 0; i < mesh->count; i++) {
        int64_t list[64], local = 0;
        uint32_t coords[DT_RECORD_MESH_DIM_MAX];
        dt_shard_box_t box;
        dt_shard_mesh_coords(mesh, i, coords);
        bool is_full = dt_shard_box(layout, mesh, 1, &size, i, &box);
        cr_assert_eq(dt_shard_sizes(layout, mesh, 1, &size, i, sizes), is_full);
        for (int64_t g = 0; g < groups; g++) {
            int64_t count = size / groups;
            for (int64_t k = 0; k < count; k++)
                list[k] = g * count + k;
            for (unsigned j = 0; j < mesh->ndim; j++)
                if (layout->placements[j].kind == DT_PLACEMENT_SHARD)
                    count =
                        keep(list, count, mesh->sizes[j], coords[j], layout->placements[j].unit);
            for (int64_t k = 0; k < count; k++) {
                cr_assert_eq(dt_shard_span_local(&box.spans[0], list[k]), local++);
                seen[list[k]]++;
            }
        }
        cr_assert_eq(sizes[0], local);
        cr_assert_eq(is_full, local > 0);
        cr_assert_eq(dt_shard_span_size(&box.spans[0]), local);
    }
    for (int64_t k = 1; k < size; k++)
        cr_assert_eq(seen[k], seen[0], "an element has more holders than another");
}

Test(shard_layout, cuts_as_lists_are_cut_for_every_size_mesh_unit_and_group)
{
    static const uint32_t meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1},
                                         {8, 1}, {2, 2}, {2, 3}, {3, 2}};
    for (unsigned m = 0; m < 8; m++)
        for (int64_t size = 0; size <= 26; size++)
            for (uint32_t unit = 1; unit <= 4; unit++)
                for (uint32_t groups = 1; groups <= 3; groups++) {
                    dt_shard_mesh_t mesh = mesh_of(2, meshes[m]);
                    dt_layout_t layout = dt_layout_replicate(1, 2);
                    if (size % groups)
                        continue;
                    for (unsigned j = 0; j < 2; j++) {
                        layout.placements[j] = dt_placement_shard(0);
                        layout.placements[j].unit = unit;
                        layout.placements[j].groups = groups;
                    }
                    compare(&layout, &mesh, size, groups);
                    layout.placements[m % 2] = dt_placement_replicate();
                    compare(&layout, &mesh, size, groups);
                }
}

/* How much of a triangle of `size` rows the rows of a device are. */
static int64_t triangle_of(const dt_shard_span_t *span)
{
    int64_t sum = 0;
    for (int64_t g = 0; g < span->groups; g++)
        for (int64_t i = 0; i < span->length; i++)
            sum += span->lo + g * span->stride + i;
    return sum;
}

Test(shard_layout, pieces_in_another_order_are_all_there_once_and_folded_ones_share_a_triangle)
{
    for (uint32_t parts = 2; parts <= 5; parts++)
        for (int64_t size = 0; size <= 40; size++)
            for (uint32_t order = 0; order < 2 * parts; order++) {
                dt_shard_mesh_t mesh = mesh_of(1, &parts);
                dt_layout_t layout = dt_layout_replicate(1, 1);
                dt_meta_t meta = meta_of(DT_DTYPE_F32, 1, &size, NULL);
                int64_t seen[64] = {0}, sizes[1], share = 0;
                bool is_folded = order >= parts;
                layout.placements[0] = dt_placement_shard(0);
                layout.placements[0].order =
                    (uint8_t)(order % parts | (is_folded ? DT_ORDER_FOLDED : 0));
                bool is_legal = dt_layout_check(&layout, &mesh, &meta, NULL) == DT_OK;
                cr_assert_eq(is_legal, !is_folded || size % (2 * parts) == 0);
                for (uint32_t i = 0; i < parts && is_legal; i++) {
                    dt_shard_box_t box;
                    int64_t local = 0;
                    (void)dt_shard_box(&layout, &mesh, 1, &size, i, &box);
                    (void)dt_shard_sizes(&layout, &mesh, 1, &size, i, sizes);
                    for (int64_t k = 0; k < size; k++)
                        if (dt_shard_span_local(&box.spans[0], k) >= 0) {
                            cr_assert_eq(dt_shard_span_local(&box.spans[0], k), local++);
                            seen[k]++;
                        }
                    cr_assert_eq(local, sizes[0]);
                    share = i ? share : triangle_of(&box.spans[0]);
                    cr_assert(!is_folded || triangle_of(&box.spans[0]) == share);
                }
                for (int64_t k = 0; k < size && is_legal; k++)
                    cr_assert_eq(seen[k], 1);
            }
}

Test(shard_layout, rows_of_a_window_are_where_those_of_the_longer_dimension_are)
{
    for (uint32_t parts = 1; parts <= 5; parts++)
        for (int64_t of = 1; of <= 12; of++)
            for (int64_t first = 0; first <= of; first++)
                for (int64_t size = 0; size <= of - first; size++) {
                    dt_shard_mesh_t mesh = mesh_of(1, &parts);
                    dt_layout_t layout = dt_layout_replicate(1, 1), whole = layout;
                    dt_meta_t meta = meta_of(DT_DTYPE_F32, 1, &size, NULL);
                    whole.placements[0] = dt_placement_shard(0);
                    cr_assert(
                        dt_placement_window(0, size, of, first, parts, &layout.placements[0]));
                    cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, NULL), DT_OK);
                    for (uint32_t i = 0; i < parts; i++) {
                        dt_shard_box_t box, all;
                        int64_t local = 0;
                        (void)dt_shard_box(&layout, &mesh, 1, &size, i, &box);
                        (void)dt_shard_box(&whole, &mesh, 1, &of, i, &all);
                        for (int64_t k = 0; k < size; k++) {
                            bool is_here = dt_shard_span_local(&all.spans[0], k + first) >= 0;
                            cr_assert_eq(dt_shard_span_local(&box.spans[0], k),
                                         is_here ? local : -1);
                            local += is_here;
                        }
                        cr_assert_eq(dt_shard_span_size(&box.spans[0]), local);
                    }
                }
}

Test(shard_layout, a_window_must_fit_and_cuts_its_dimension_alone)
{
    static const uint32_t sizes[] = {2, 2};
    static const int64_t shape[] = {5, 3};
    dt_shard_mesh_t mesh = mesh_of(2, sizes);
    dt_layout_t layout = dt_layout_replicate(1, 2);
    dt_meta_t meta = meta_of(DT_DTYPE_F32, 2, shape, NULL);
    cr_assert(dt_placement_window(0, 5, 9, 4, 2, &layout.placements[0]));
    cr_assert(dt_placement_is_window(layout.placements[0]));
    cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, NULL), DT_OK);
    layout.placements[1] = dt_placement_shard(1);
    cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, NULL), DT_OK);
    layout.placements[1] = dt_placement_shard(0);
    cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, NULL), DT_ERR_INVALID);
    layout.placements[1] = dt_placement_replicate();
    layout.placements[0].groups++; /* rows 5..9 of 9 */
    cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, NULL), DT_ERR_INVALID);
    cr_assert_not(dt_placement_window(0, 5, INT64_C(1) << 33, 4, 2, &layout.placements[0]));
}

Test(shard_layout, nested_is_not_flat)
{
    static const uint32_t square[] = {2, 2}, four[] = {4};
    static const int64_t size = 5, nested[] = {2, 1, 1, 1}, flat[] = {2, 2, 1, 0};
    dt_shard_mesh_t a = mesh_of(2, square), b = mesh_of(1, four);
    dt_layout_t x = dt_layout_replicate(1, 2), y = dt_layout_replicate(1, 1);
    x.placements[0] = x.placements[1] = y.placements[0] = dt_placement_shard(0);
    for (uint32_t i = 0; i < 4; i++) {
        int64_t local;
        (void)dt_shard_sizes(&x, &a, 1, &size, i, &local);
        cr_assert_eq(local, nested[i]);
        (void)dt_shard_sizes(&y, &b, 1, &size, i, &local);
        cr_assert_eq(local, flat[i]);
    }
}

Test(shard_layout, local_strides_are_dense_in_the_global_order)
{
    static const uint32_t two[] = {2};
    static const int64_t sizes[] = {4, 6, 3, 5}, last[] = {90, 1, 30, 6};
    static const int64_t expanded[] = {0, 15, 5, 1};
    dt_shard_mesh_t mesh = mesh_of(1, two);
    dt_layout_t layout = dt_layout_replicate(1, 1);
    dt_meta_t local, meta = meta_of(DT_DTYPE_F32, 4, sizes, last);
    layout.placements[0] = dt_placement_shard(1);
    dt_shard_local_meta(&meta, &layout, &mesh, 1, &local);
    cr_assert_eq(local.layout & DT_META_CLASS_MASK, DT_META_CHANNELS_LAST);
    cr_assert(local.sizes[1] == 3 && local.strides[1] == 1 && local.strides[3] == 3);
    meta = meta_of(DT_DTYPE_F32, 4, sizes, NULL);
    dt_shard_local_meta(&meta, &layout, &mesh, 0, &local);
    cr_assert_eq(local.layout & DT_META_CLASS_MASK, DT_META_CONTIGUOUS);
    meta = meta_of(DT_DTYPE_F32, 4, sizes, expanded);
    dt_shard_local_meta(&meta, &layout, &mesh, 0, &local);
    cr_assert(local.strides[0] == 0 && local.strides[1] == 15);
}

Test(shard_layout, refuses_what_no_tensor_can_have)
{
    static const uint32_t square[] = {2, 2};
    static const int64_t sizes[] = {6, 4};
    dt_shard_mesh_t mesh = mesh_of(2, square);
    dt_placement_t r = dt_placement_replicate(), odd = dt_placement_shard(1);
    dt_placement_t fused = dt_placement_shard(0);
    odd.groups = 3;
    fused.groups = 2;
    const struct {
        dt_placement_t first, second;
        unsigned dtype;
        const char *text;
    } bad[] = {
        {dt_placement_shard(2), r, DT_DTYPE_F32, "no such dimension"},
        {odd, r, DT_DTYPE_F32, "groups do not divide"},
        {fused, dt_placement_shard(0), DT_DTYPE_F32, "number of groups"},
        {dt_placement_partial(DT_REDUCTION_MAX), dt_placement_partial(DT_REDUCTION_SUM),
         DT_DTYPE_F32, "beside another reduction"},
        {dt_placement_partial(DT_REDUCTION_AVG), r, DT_DTYPE_I64, "no average"},
        {dt_placement_partial(DT_REDUCTION_SUM), r, DT_DTYPE_BOOL, "no sum"},
        {dt_placement_partial(DT_REDUCTION_MIN), r, DT_DTYPE_C64, "no order"},
        {dt_placement_partial(4), r, DT_DTYPE_F32, "no such reduction"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_error_t err;
        dt_meta_t meta = meta_of(bad[i].dtype, 2, sizes, NULL);
        dt_layout_t layout = {.ndim = 2, .placements = {bad[i].first, bad[i].second}};
        cr_assert_eq(dt_layout_check(&layout, &mesh, &meta, &err), DT_ERR_INVALID);
        cr_assert_not_null(strstr(err.text, bad[i].text), "%s", err.text);
    }
}

Test(shard_layout, prints_as_people_write_and_fits_any_buffer)
{
    dt_layout_t layout = dt_layout_replicate(1, 3);
    char text[80], small[7];
    layout.placements[1] = dt_placement_shard(2);
    layout.placements[1].unit = 8;
    layout.placements[1].groups = 3;
    layout.placements[2] = dt_placement_partial(DT_REDUCTION_AVG);
    dt_layout_print(&layout, text, sizeof text);
    cr_assert_str_eq(text, "[Replicate(), Shard(2, unit=8, groups=3), Partial(avg)]");
    dt_layout_print(&layout, small, sizeof small);
    cr_assert_str_eq(small, "[Repli");
}

Test(shard_layout, who_keeps_the_value_of_a_partial_tensor)
{
    static const uint32_t sizes[] = {2, 3};
    dt_shard_mesh_t mesh = mesh_of(2, sizes);
    dt_layout_t layout = dt_layout_replicate(1, 2);
    layout.placements[1] = dt_placement_partial(DT_REDUCTION_AVG);
    cr_assert_eq(dt_layout_avg_count(&layout, &mesh), 3);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(dt_shard_keeps_value(&layout, &mesh, i), i % 3 == 0);
    layout.placements[1] = dt_placement_partial(DT_REDUCTION_MAX);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert(dt_shard_keeps_value(&layout, &mesh, i));
}

Test(shard_layout, bounds_of_meshes)
{
    static const uint32_t none[] = {2, 0}, many[] = {64, 65};
    dt_shard_mesh_t mesh;
    cr_assert_eq(dt_shard_mesh_init(&mesh, 2, none, NULL, NULL), DT_ERR_INVALID);
    cr_assert_eq(dt_shard_mesh_init(&mesh, 0, none, NULL, NULL), DT_ERR_INVALID);
    cr_assert_eq(dt_shard_mesh_init(&mesh, 9, none, NULL, NULL), DT_ERR_INVALID);
    cr_assert_eq(dt_shard_mesh_init(&mesh, 2, many, NULL, NULL), DT_ERR_LIMIT);
}
