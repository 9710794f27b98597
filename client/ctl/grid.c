#include "grid.h"

#include <stdarg.h>
#include <string.h>

#include "text.h"

#define GAP            2 /* columns between columns */
#define SHRINK_MIN     6 /* a column is not made narrower than this */
#define SHRINK_ONE_MIN 3 /* nor is any when nothing else helps */

void dt_ctl_grid_init(dt_ctl_grid_t *grid, dt_arena_t *pool)
{
    *grid = (dt_ctl_grid_t){.pool = pool};
}

dt_ctl_cell_t *dt_ctl_grid_row(dt_ctl_grid_t *grid)
{
    if (grid->row_count == grid->row_cap) {
        size_t cap = grid->row_cap ? grid->row_cap * 2 : 32;
        dt_ctl_cell_t **rows = dt_ctl_alloc(grid->pool, cap, sizeof(dt_ctl_cell_t *));
        if (grid->row_count > 0)
            memcpy(rows, grid->rows, grid->row_count * sizeof *rows);
        grid->rows = rows;
        grid->row_cap = cap;
    }
    dt_ctl_cell_t *row = dt_ctl_alloc(grid->pool, grid->column_count + 1, sizeof *row);
    for (size_t i = 0; i < grid->column_count; i++)
        row[i].text = "";
    grid->rows[grid->row_count++] = row;
    return row;
}

static size_t max_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Take columns away from the widest cells until a line fits: first from those that may shrink, then
 * from any. */
static void shrink(const dt_ctl_grid_t *grid, size_t *widths, size_t total, size_t limit)
{
    for (int pass = 0; pass < 2; pass++) {
        size_t smallest = pass == 0 ? SHRINK_MIN : SHRINK_ONE_MIN;
        while (total > limit) {
            size_t widest = SIZE_MAX;
            for (size_t i = 0; i < grid->column_count; i++) {
                bool may = (pass == 1 || grid->columns[i].can_shrink) && widths[i] > smallest;
                if (may && (widest == SIZE_MAX || widths[i] > widths[widest]))
                    widest = i;
            }
            if (widest == SIZE_MAX)
                break;
            widths[widest]--;
            total--;
        }
    }
}

static void measure(const dt_ctl_grid_t *grid, const dt_ctl_screen_t *screen, size_t *widths)
{
    size_t total = 0;
    for (size_t i = 0; i < grid->column_count; i++) {
        const dt_ctl_grid_column_t *column = &grid->columns[i];
        widths[i] = column->columns_min;
        if (screen->has_legend)
            widths[i] = max_of(widths[i], dt_ctl_columns(column->head));
        for (size_t row = 0; row < grid->row_count; row++)
            widths[i] = max_of(widths[i], dt_ctl_columns(grid->rows[row][i].text));
        total += widths[i] + (i > 0 ? GAP : 0);
    }
    if (screen->columns > 0)
        shrink(grid, widths, total, screen->columns);
}

void dt_ctl_coloured(const dt_ctl_screen_t *screen, dt_ctl_colour_t colour, const char *text)
{
    static const char *const codes[] = {[DT_CTL_COLOUR_GOOD] = "\033[32m",
                                        [DT_CTL_COLOUR_WARN] = "\033[33m",
                                        [DT_CTL_COLOUR_BAD] = "\033[1;31m"};
    if (screen->has_colour && colour != DT_CTL_COLOUR_NONE)
        (void)fprintf(screen->file, "%s%s\033[0m", codes[colour], text);
    else
        (void)fputs(text, screen->file);
}

static void pad(FILE *file, size_t columns)
{
    (void)fprintf(file, "%*s", (int)columns, "");
}

static void print_row(const dt_ctl_grid_t *grid, const dt_ctl_screen_t *screen,
                      const size_t *widths, const dt_ctl_cell_t *cells)
{
    size_t last = 0, owed = 0; /* blanks come only before something, so no line ends in one */
    for (size_t i = 0; i < grid->column_count; i++)
        if (cells[i].text[0] != '\0')
            last = i;
    for (size_t i = 0; i <= last && i < grid->column_count; i++) {
        const char *text = dt_ctl_ellipsis(grid->pool, cells[i].text, widths[i]);
        size_t columns = dt_ctl_columns(text), spare = widths[i] - columns;
        size_t before = cells[i].is_number ? spare : 0;
        if (columns > 0) {
            pad(screen->file, owed + before);
            dt_ctl_coloured(screen, cells[i].colour, text);
            owed = spare - before + GAP;
        } else {
            owed += spare + GAP;
        }
    }
    (void)fputc('\n', screen->file);
}

void dt_ctl_grid_print(const dt_ctl_grid_t *grid, const dt_ctl_screen_t *screen)
{
    size_t widths[DT_CTL_GRID_COLUMN_MAX] = {0};
    dt_ctl_cell_t heads[DT_CTL_GRID_COLUMN_MAX] = {0};
    if (grid->row_count == 0)
        return;
    measure(grid, screen, widths);
    for (size_t i = 0; i < grid->column_count; i++) {
        heads[i].text = grid->columns[i].head;
        for (size_t row = 0; row < grid->row_count && !heads[i].is_number; row++)
            heads[i].is_number = grid->rows[row][i].is_number;
    }
    if (screen->has_legend)
        print_row(grid, screen, widths, heads);
    for (size_t row = 0; row < grid->row_count; row++) {
        dt_ctl_cell_t cells[DT_CTL_GRID_COLUMN_MAX];
        memcpy(cells, grid->rows[row], grid->column_count * sizeof *cells);
        for (size_t i = 0; i < grid->column_count; i++)
            cells[i].is_number = heads[i].is_number;
        print_row(grid, screen, widths, cells);
    }
}

dt_ctl_colour_t dt_ctl_state_colour(const char *state)
{
    static const struct {
        const char *word;
        dt_ctl_colour_t colour;
    } words[] = {
        {"ready", DT_CTL_COLOUR_GOOD},    {"ok", DT_CTL_COLOUR_GOOD},
        {"enabled", DT_CTL_COLOUR_GOOD},  {"live", DT_CTL_COLOUR_GOOD},
        {"away", DT_CTL_COLOUR_WARN},     {"poisoned", DT_CTL_COLOUR_BAD},
        {"equal", DT_CTL_COLOUR_GOOD},    {"differs", DT_CTL_COLOUR_BAD},
        {"valid", DT_CTL_COLOUR_GOOD},    {"degraded", DT_CTL_COLOUR_WARN},
        {"suspect", DT_CTL_COLOUR_WARN},  {"cordoned", DT_CTL_COLOUR_WARN},
        {"draining", DT_CTL_COLOUR_WARN}, {"drained", DT_CTL_COLOUR_WARN},
        {"unknown", DT_CTL_COLOUR_WARN},  {"stopped", DT_CTL_COLOUR_WARN},
        {"warning", DT_CTL_COLOUR_WARN},  {"dead", DT_CTL_COLOUR_BAD},
        {"failed", DT_CTL_COLOUR_BAD},    {"missing", DT_CTL_COLOUR_BAD},
        {"error", DT_CTL_COLOUR_BAD},     {"crashed", DT_CTL_COLOUR_BAD},
    };
    size_t len = strcspn(state, " +,");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i].word) == len && strncmp(words[i].word, state, len) == 0)
            return words[i].colour;
    return DT_CTL_COLOUR_NONE;
}

void dt_ctl_line(dt_arena_t *pool, const dt_ctl_screen_t *screen, const char *key,
                 dt_ctl_colour_t colour, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *text = dt_ctl_vprint(pool, fmt, args);
    va_end(args);
    size_t room =
        screen->columns > DT_CTL_KEY_COLUMNS + 20 ? screen->columns - DT_CTL_KEY_COLUMNS : SIZE_MAX;
    (void)fprintf(screen->file, "%-*s", DT_CTL_KEY_COLUMNS, key);
    while (dt_ctl_columns(text) > room) {
        size_t cut = 0, fits = strlen(dt_ctl_ellipsis(pool, text, room)) - strlen("…");
        for (size_t i = 0; i <= fits; i++)
            if (text[i] == ' ' && i > 0)
                cut = i;
        if (cut == 0)
            cut = fits;
        dt_ctl_coloured(screen, colour, dt_ctl_copy(pool, text, cut));
        (void)fprintf(screen->file, "\n%*s", DT_CTL_KEY_COLUMNS, "");
        text += cut + strspn(text + cut, " ");
    }
    dt_ctl_coloured(screen, colour, text);
    (void)fputc('\n', screen->file);
}
