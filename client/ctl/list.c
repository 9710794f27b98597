#include "list.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/strings.h"
#include "json.h"
#include "text.h"

/* The columns of one output: rows of the list's table, and rows made for paths. */
struct chosen {
    dt_ctl_column_t columns[DT_CTL_GRID_COLUMN_MAX];
    size_t count;
};

static const dt_ctl_column_t *column_by_key(const dt_ctl_list_t *list, const char *key)
{
    for (size_t i = 0; i < list->column_count; i++)
        if (strcmp(list->columns[i].key, key) == 0)
            return &list->columns[i];
    return NULL;
}

static void tell_unknown(dt_arena_t *pool, const dt_ctl_list_t *list, const char *key,
                         dt_error_t *err)
{
    const char *names[2 * DT_CTL_GRID_COLUMN_MAX];
    size_t count = dt_ctl_paths(pool, list->type, names, DT_CTL_GRID_COLUMN_MAX);
    for (size_t i = 0; i < list->column_count && i < DT_CTL_GRID_COLUMN_MAX; i++)
        names[count++] = list->columns[i].key;
    const char *nearest = dt_nearest(key, names, count);
    if (nearest) {
        (void)dt_fail(err, DT_ERR_INVALID, "dt", 0,
                      "a %s has no field \"%s\"; did you mean \"%s\"?", list->one, key, nearest);
        return;
    }
    const char *known = "";
    for (size_t i = 0; i < list->column_count; i++)
        known = dt_ctl_print(pool, "%s%s%s", known, i > 0 ? " " : "", list->columns[i].key);
    (void)dt_fail(err, DT_ERR_INVALID, "dt", 0, "a %s has no field \"%s\"; it has: %s", list->one,
                  key, known);
}

static const char *head_of(dt_arena_t *pool, const char *path)
{
    char *head = dt_ctl_copy(pool, path, strlen(path));
    for (char *c = head; *c; c++)
        *c = (char)(*c == '_' ? ' ' : toupper((unsigned char)*c));
    return head;
}

/* Make the column that a user's word means: a column's key, else a path. */
static dt_status_t column_of(dt_arena_t *pool, const dt_ctl_list_t *list, const char *key,
                             dt_ctl_column_t *ret_column, dt_error_t *err)
{
    const dt_ctl_column_t *column = column_by_key(list, key);
    if (column) {
        *ret_column = *column;
        return DT_OK;
    }
    if (!dt_ctl_path_exists(list->type, key)) {
        tell_unknown(pool, list, key, err);
        return DT_ERR_INVALID;
    }
    *ret_column = (dt_ctl_column_t){
        .key = key, .path = key, .head = head_of(pool, key), .flags = DT_CTL_COLUMN_SHRINK};
    return DT_OK;
}

static dt_status_t choose(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                          struct chosen *ret_chosen, dt_error_t *err)
{
    dt_arena_t *pool = output->pool;
    ret_chosen->count = 0;
    if (output->fields) {
        for (const char *at = output->fields; *(at += strspn(at, ", ")) != '\0';) {
            size_t len = strcspn(at, ", ");
            if (ret_chosen->count == DT_CTL_GRID_COLUMN_MAX)
                return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "-p: at most %d fields",
                               DT_CTL_GRID_COLUMN_MAX);
            DT_TRY(column_of(pool, list, dt_ctl_copy(pool, at, len),
                             &ret_chosen->columns[ret_chosen->count++], err));
            at += len;
        }
        return DT_OK;
    }
    if (output->format == DT_CTL_CSV) {
        const char *paths[DT_CTL_GRID_COLUMN_MAX];
        size_t count = dt_ctl_paths(pool, list->type, paths, DT_CTL_GRID_COLUMN_MAX);
        for (size_t i = 0; i < count; i++)
            ret_chosen->columns[ret_chosen->count++] =
                (dt_ctl_column_t){.key = paths[i], .path = paths[i], .head = paths[i]};
        return DT_OK;
    }
    unsigned hidden = DT_CTL_COLUMN_KEY |
                      (output->format == DT_CTL_WIDE ? DT_CTL_COLUMN_NARROW : DT_CTL_COLUMN_WIDE);
    for (size_t i = 0; i < list->column_count; i++)
        if (!(list->columns[i].flags & hidden))
            ret_chosen->columns[ret_chosen->count++] = list->columns[i];
    return DT_OK;
}

static dt_ctl_value_t value_of(const dt_ctl_column_t *column, const dt_ctl_view_t *view)
{
    if (column->path)
        return dt_ctl_path(view->pool, view->items[0], column->path);
    dt_check(column->value);
    return column->value(view);
}

/* ---- filter and sort ---- */

struct order {
    dt_ctl_column_t column;
    bool is_descending;
};

static dt_status_t parse_sort(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                              struct order orders[static DT_CTL_SORT_MAX], size_t *ret_count,
                              dt_error_t *err)
{
    *ret_count = 0;
    for (const char *at = output->sort ? output->sort : ""; *(at += strspn(at, ", ")) != '\0';) {
        if (*ret_count == DT_CTL_SORT_MAX)
            return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "--sort: at most %d fields",
                           DT_CTL_SORT_MAX);
        struct order *order = &orders[(*ret_count)++];
        order->is_descending = *at == '-';
        at += order->is_descending;
        size_t len = strcspn(at, ", ");
        DT_TRY(
            column_of(output->pool, list, dt_ctl_copy(output->pool, at, len), &order->column, err));
        at += len;
    }
    return DT_OK;
}

struct sortable {
    const ProtobufCMessage *item;
    size_t place; /* keeps the sort stable */
    const struct order *orders;
    dt_ctl_value_t keys[DT_CTL_SORT_MAX];
    size_t key_count;
};

static int compare_sortable(const void *left, const void *right)
{
    const struct sortable *a = left, *b = right;
    for (size_t i = 0; i < a->key_count; i++) {
        int order = dt_ctl_compare(&a->keys[i], &b->keys[i]);
        if (order != 0)
            return a->orders[i].is_descending ? -order : order;
    }
    return (a->place > b->place) - (a->place < b->place);
}

static dt_status_t sort_items(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                              const ProtobufCMessage **items, size_t count, dt_error_t *err)
{
    struct order orders[DT_CTL_SORT_MAX];
    size_t order_count;
    DT_TRY(parse_sort(list, output, orders, &order_count, err));
    if (order_count == 0 || count < 2)
        return DT_OK;
    struct sortable *sortables = dt_ctl_alloc(output->pool, count, sizeof *sortables);
    for (size_t i = 0; i < count; i++) {
        dt_ctl_view_t view = {output->pool, &output->style, &items[i], 1, output->context};
        sortables[i] = (struct sortable){
            .item = items[i], .place = i, .orders = orders, .key_count = order_count};
        for (size_t key = 0; key < order_count; key++)
            sortables[i].keys[key] = value_of(&orders[key].column, &view);
    }
    qsort(sortables, count, sizeof *sortables, compare_sortable);
    for (size_t i = 0; i < count; i++)
        items[i] = sortables[i].item;
    return DT_OK;
}

dt_status_t dt_ctl_list_passes(const dt_ctl_list_t *list, const ProtobufCMessage *item,
                               const dt_ctl_filter_t *filter, const dt_ctl_output_t *output,
                               bool *ret_passes, dt_error_t *err)
{
    dt_ctl_view_t view = {output->pool, &output->style, &item, 1, output->context};
    *ret_passes = true;
    for (size_t i = 0; i < filter->count && *ret_passes; i++) {
        dt_ctl_column_t column;
        DT_TRY(column_of(output->pool, list, filter->terms[i].key, &column, err));
        dt_ctl_value_t value = value_of(&column, &view);
        DT_TRY(dt_ctl_term_holds(output->pool, &filter->terms[i], &value, output->style.now_wall_ms,
                                 ret_passes, err));
    }
    return DT_OK;
}

static dt_status_t filter_items(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                                const ProtobufCMessage *const *items, size_t count,
                                const ProtobufCMessage **ret_items, size_t *ret_count,
                                dt_error_t *err)
{
    dt_ctl_filter_t filter;
    DT_TRY(dt_ctl_filter_parse(output->pool, output->filter, &filter, err));
    *ret_count = 0;
    for (size_t i = 0; i < count; i++) {
        bool passes;
        DT_TRY(dt_ctl_list_passes(list, items[i], &filter, output, &passes, err));
        if (passes)
            ret_items[(*ret_count)++] = items[i];
    }
    return DT_OK;
}

dt_status_t dt_ctl_list_check(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                              dt_error_t *err)
{
    struct chosen chosen;
    struct order orders[DT_CTL_SORT_MAX];
    dt_ctl_filter_t filter;
    dt_ctl_column_t column;
    size_t count;
    DT_TRY(choose(list, output, &chosen, err));
    DT_TRY(parse_sort(list, output, orders, &count, err));
    DT_TRY(dt_ctl_filter_parse(output->pool, output->filter, &filter, err));
    for (size_t i = 0; i < filter.count; i++)
        DT_TRY(column_of(output->pool, list, filter.terms[i].key, &column, err));
    for (size_t i = 0; output->fields && output->format == DT_CTL_JSON && i < chosen.count; i++)
        if (!chosen.columns[i].path)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "-p: %s is worked out for tables; json has the fields it comes from",
                           chosen.columns[i].key);
    return DT_OK;
}

/* ---- formats ---- */

void dt_ctl_csv_text(FILE *file, const char *text)
{
    if (!text[strcspn(text, "\",\r\n")]) {
        (void)fputs(text, file);
        return;
    }
    (void)fputc('"', file);
    for (const char *c = text; *c; c++) {
        if (*c == '"')
            (void)fputc('"', file);
        (void)fputc(*c, file);
    }
    (void)fputc('"', file);
}

static void print_csv(const struct chosen *chosen, const ProtobufCMessage *const *items,
                      size_t count, const dt_ctl_output_t *output)
{
    FILE *file = output->screen.file;
    bool has_header = output->screen.has_legend && (!output->is_stream || output->is_first);
    for (size_t i = 0; has_header && i < chosen->count; i++) {
        (void)fputs(i > 0 ? "," : "", file);
        dt_ctl_csv_text(file, chosen->columns[i].key);
    }
    (void)fputs(has_header ? "\r\n" : "", file);
    for (size_t row = 0; row < count; row++) {
        dt_ctl_view_t view = {output->pool, &output->style, &items[row], 1, output->context};
        for (size_t i = 0; i < chosen->count; i++) {
            dt_ctl_value_t value = value_of(&chosen->columns[i], &view);
            (void)fputs(i > 0 ? "," : "", file);
            dt_ctl_csv_text(file, dt_ctl_safe(output->pool, dt_ctl_raw(output->pool, &value)));
        }
        (void)fputs("\r\n", file);
    }
}

void dt_ctl_json_begin(FILE *file, const char *kind)
{
    (void)fprintf(file, "{\"schema\":\"dtorch/v1\",\"kind\":\"%s\"", kind);
}

void dt_ctl_json_end(FILE *file)
{
    (void)fputs("]}\n", file);
}

/* The reply's own single fields, so that a hash or a gap is not lost. */
static void print_envelope(const dt_ctl_output_t *output, const ProtobufCMessage *reply)
{
    FILE *file = output->screen.file;
    for (unsigned i = 0; reply && i < reply->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &reply->descriptor->fields[i];
        dt_ctl_value_t value = dt_ctl_field(output->pool, reply, field, 0);
        bool is_zero = value.kind != DT_CTL_TEXT && value.integer == 0 && value.natural == 0;
        if (field->label == PROTOBUF_C_LABEL_REPEATED || value.kind == DT_CTL_MESSAGE || is_zero)
            continue;
        (void)fprintf(file, ",\"%s\":", field->name);
        dt_ctl_json_field(output->pool, file, reply, field);
    }
}

static void print_json(const dt_ctl_list_t *list, const struct chosen *chosen,
                       const ProtobufCMessage *const *items, size_t count,
                       const ProtobufCMessage *reply, const dt_ctl_output_t *output)
{
    FILE *file = output->screen.file;
    const char *paths[DT_CTL_GRID_COLUMN_MAX];
    size_t path_count = output->fields ? chosen->count : 0;
    for (size_t i = 0; i < path_count; i++)
        paths[i] = chosen->columns[i].path;
    if (!output->is_stream) {
        dt_ctl_json_begin(file, list->kind);
        print_envelope(output, reply);
        (void)fputs(count > 0 ? ",\"items\":[\n" : ",\"items\":[", file);
    }
    for (size_t i = 0; i < count; i++) {
        if (output->is_array)
            (void)fputs(i > 0 || !output->is_first ? ",\n" : "\n", file);
        dt_ctl_json_message(output->pool, file, items[i], paths, path_count);
        if (!output->is_array)
            (void)fputs(!output->is_stream && i + 1 < count ? ",\n" : "\n", file);
    }
    if (!output->is_stream)
        dt_ctl_json_end(file);
}

static void fill_row(const struct chosen *chosen, const dt_ctl_view_t *view, dt_ctl_cell_t *cells)
{
    for (size_t i = 0; i < chosen->count; i++) {
        const dt_ctl_column_t *column = &chosen->columns[i];
        dt_ctl_value_t value = value_of(column, view);
        cells[i].text = column->show ? dt_ctl_safe(view->pool, column->show(view))
                                     : dt_ctl_show(view->pool, &value, view->style);
        cells[i].is_number =
            (value.kind == DT_CTL_INT || value.kind == DT_CTL_UINT) && value.unit != DT_CTL_WALL_MS;
        if (column->flags & DT_CTL_COLUMN_STATE)
            cells[i].colour = dt_ctl_state_colour(cells[i].text);
    }
}

static void print_footer(const dt_ctl_list_t *list, size_t shown, size_t total,
                         const dt_ctl_output_t *output)
{
    if (!output->screen.has_legend || output->is_stream)
        return;
    const char *word = (shown == total ? shown : total) == 1 ? list->one : list->many;
    if (shown == total)
        (void)fprintf(output->screen.file, "%zu %s listed.\n", shown, word);
    else
        (void)fprintf(output->screen.file, "%zu of %zu %s listed.\n", shown, total, word);
}

/* Leave out columns that would be empty, so that nothing is printed that says nothing. */
static void drop_empty(struct chosen *chosen, const ProtobufCMessage *const *items, size_t count,
                       const dt_ctl_output_t *output)
{
    size_t kept = 0;
    for (size_t i = 0; i < chosen->count; i++) {
        bool has_value = !(chosen->columns[i].flags & DT_CTL_COLUMN_SPARSE);
        for (size_t row = 0; row < count && !has_value; row++) {
            dt_ctl_view_t view = {output->pool, &output->style, &items[row], 1, output->context};
            has_value = value_of(&chosen->columns[i], &view).kind != DT_CTL_ABSENT;
        }
        if (has_value)
            chosen->columns[kept++] = chosen->columns[i];
    }
    chosen->count = kept;
}

static void print_table(const dt_ctl_list_t *list, const struct chosen *chosen,
                        const ProtobufCMessage *const *items, size_t count,
                        const dt_ctl_output_t *output)
{
    dt_ctl_grid_t grid;
    dt_ctl_screen_t screen = output->screen;
    bool may_fold = list->folds && output->format == DT_CTL_TABLE && !output->fields;
    dt_ctl_grid_init(&grid, output->pool);
    grid.column_count = chosen->count;
    for (size_t i = 0; i < chosen->count; i++)
        grid.columns[i] = (dt_ctl_grid_column_t){
            .head = chosen->columns[i].head,
            .can_shrink = (chosen->columns[i].flags & DT_CTL_COLUMN_SHRINK) != 0,
            .columns_min = output->is_stream ? chosen->columns[i].columns_min : 0};
    for (size_t at = 0, step; at < count; at += step) {
        step = 1;
        while (may_fold && at + step < count &&
               list->folds(output->pool, items[at + step - 1], items[at + step]))
            step++;
        dt_ctl_view_t view = {output->pool, &output->style, &items[at], step, output->context};
        fill_row(chosen, &view, dt_ctl_grid_row(&grid));
    }
    screen.has_legend = screen.has_legend && (!output->is_stream || output->is_first);
    dt_ctl_grid_print(&grid, &screen);
}

static void print_names(const dt_ctl_list_t *list, const ProtobufCMessage *const *items,
                        size_t count, const dt_ctl_output_t *output)
{
    for (size_t i = 0; i < count; i++) {
        dt_ctl_value_t name = dt_ctl_path(output->pool, items[i], list->name_path);
        (void)fprintf(output->screen.file, "%s\n",
                      dt_ctl_safe(output->pool, dt_ctl_raw(output->pool, &name)));
    }
}

dt_status_t dt_ctl_list_print(const dt_ctl_list_t *list, const ProtobufCMessage *const *items,
                              size_t count, const ProtobufCMessage *reply,
                              const dt_ctl_output_t *output, dt_error_t *err)
{
    struct chosen chosen;
    size_t shown;
    const ProtobufCMessage **kept = dt_ctl_alloc(output->pool, count + 1, sizeof *kept);
    DT_TRY(choose(list, output, &chosen, err));
    DT_TRY(filter_items(list, output, items, count, kept, &shown, err));
    DT_TRY(sort_items(list, output, kept, shown, err));
    if (output->limit > 0 && shown > output->limit)
        shown = output->limit;
    switch (output->format) {
    case DT_CTL_JSON:
        print_json(list, &chosen, kept, shown, reply, output);
        break;
    case DT_CTL_CSV:
        print_csv(&chosen, kept, shown, output);
        break;
    case DT_CTL_NAME:
        print_names(list, kept, shown, output);
        break;
    default:
        if (output->format == DT_CTL_TABLE && !output->fields && !output->is_stream)
            drop_empty(&chosen, kept, shown, output);
        print_table(list, &chosen, kept, shown, output);
        print_footer(list, shown, count, output);
    }
    return DT_OK;
}
