/* A table of texts on a screen: headings, rows, columns two spaces apart, text left, numbers right.
 * When the screen has a width, columns that may shrink are cut with an ellipsis until a line fits.
 * Colour marks states only. Texts must be safe (text.h). */
#ifndef DT_CTL_GRID_H
#define DT_CTL_GRID_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "pool.h"

#define DT_CTL_GRID_COLUMN_MAX 96 /* 64 devices of a topology, and every field of a node */

typedef enum dt_ctl_colour {
    DT_CTL_COLOUR_NONE,
    DT_CTL_COLOUR_GOOD, /* green */
    DT_CTL_COLOUR_WARN, /* yellow */
    DT_CTL_COLOUR_BAD,  /* red */
} dt_ctl_colour_t;

/* Where output goes. */
typedef struct dt_ctl_screen {
    FILE *file;
    size_t columns; /* width of a terminal; 0: no limit */
    bool has_colour;
    bool has_legend; /* headings and footers */
} dt_ctl_screen_t;

typedef struct dt_ctl_cell {
    const char *text; /* "" for nothing */
    dt_ctl_colour_t colour;
    bool is_number;
} dt_ctl_cell_t;

typedef struct dt_ctl_grid_column {
    const char *head;
    bool can_shrink;
    size_t columns_min; /* so that rows printed later line up */
} dt_ctl_grid_column_t;

typedef struct dt_ctl_grid {
    dt_arena_t *pool;
    size_t column_count, row_count, row_cap;
    dt_ctl_grid_column_t columns[DT_CTL_GRID_COLUMN_MAX];
    dt_ctl_cell_t **rows;
} dt_ctl_grid_t;

/* Start a grid in `pool`; the caller sets `columns` and `column_count` before the first row. */
void dt_ctl_grid_init(dt_ctl_grid_t *grid, dt_arena_t *pool);

/* Add a row; the caller fills its `column_count` cells, which are empty texts. */
dt_ctl_cell_t *dt_ctl_grid_row(dt_ctl_grid_t *grid);

/* Print headings (if the screen has a legend and there are rows) and rows. */
void dt_ctl_grid_print(const dt_ctl_grid_t *grid, const dt_ctl_screen_t *screen);

/* The colour of a state's word, by its first word: "ready", "draining", "dead+drained". */
dt_ctl_colour_t dt_ctl_state_colour(const char *state);

/* Print text in a colour, if the screen has any. */
void dt_ctl_coloured(const dt_ctl_screen_t *screen, dt_ctl_colour_t colour, const char *text);

/* Print "key       text", the text wrapped at the screen's width with the key's indent. */
#define DT_CTL_KEY_COLUMNS 10
void dt_ctl_line(dt_arena_t *pool, const dt_ctl_screen_t *screen, const char *key,
                 dt_ctl_colour_t colour, const char *fmt, ...) DT_PRINTF_LIKE(5, 6);

#endif
