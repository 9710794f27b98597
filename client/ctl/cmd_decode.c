/* dtorchctl diag decode: a recorded session as lines. */
#include <inttypes.h>
#include <string.h>

#include "filemap.h"
#include "json.h"
#include "text.h"

#define BATCH 1024 /* lines that are laid out together */

static const char *show_sequence(const dt_ctl_view_t *view)
{
    const Dtorch__V1__RecordedItem *line = (const void *)view->items[0];
    return line->sequence ? dt_ctl_print(view->pool, "%" PRIu64, line->sequence) : "-";
}

static const dt_ctl_column_t columns[] = {
    {"item", "ITEM", "item", NULL, NULL, DT_CTL_COLUMN_WIDE, 4},
    {"offset", "OFFSET", "offset", NULL, NULL, DT_CTL_COLUMN_WIDE, 6},
    {"at", "AT", "at_ns", NULL, NULL, DT_CTL_COLUMN_WIDE, 6},
    {"sequence", "SEQUENCE", "sequence", NULL, show_sequence, 0, 8},
    {"kind", "KIND", "kind", NULL, NULL, 0, 8},
    {"operator", "OPERATOR", "op.name", NULL, NULL, DT_CTL_COLUMN_KEY, 8},
    {"signature", "SIGNATURE", "op.signature", NULL, NULL, DT_CTL_COLUMN_KEY, 8},
    {"size", "SIZE", "size_bytes", NULL, NULL, DT_CTL_COLUMN_KEY, 8},
    {"what", "WHAT", "what", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t item_list = {
    .kind = "Recording",
    .one = "line",
    .many = "lines",
    .name_path = "op.name",
    .type = &dtorch__v1__recorded_item__descriptor,
    .columns = columns,
    .column_count = sizeof columns / sizeof columns[0],
};

/* Read up to BATCH lines that pass the filter. Gives the exit code. */
static int read_batch(dt_ctl_t *ctl, dt_ctl_recorded_t *recorded, const dt_ctl_filter_t *filter,
                      size_t max, const ProtobufCMessage **items, size_t *ret_count)
{
    dt_error_t error;
    *ret_count = 0;
    while (*ret_count < max) {
        bool passes;
        const Dtorch__V1__RecordedItem *line = dt_ctl_recorded_next(recorded, &ctl->pool);
        if (!line)
            break;
        if (dt_ctl_list_passes(&item_list, &line->base, filter, &ctl->output, &passes, &error) !=
            DT_OK)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
        if (passes)
            items[(*ret_count)++] = &line->base;
    }
    return DT_CTL_EXIT_OK;
}

/* Print batch by batch, so that a recording of any length takes the memory of one. */
static int print_items(dt_ctl_t *ctl, dt_ctl_recorded_t *recorded)
{
    const ProtobufCMessage *items[BATCH];
    size_t count, left = ctl->output.limit ? ctl->output.limit : SIZE_MAX;
    dt_ctl_filter_t filter;
    dt_error_t error;
    if (dt_ctl_filter_parse(&ctl->kept, ctl->output.filter, &filter, &error) != DT_OK)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
    ctl->output.filter = NULL;
    ctl->output.is_stream = ctl->output.is_array = true;
    do {
        int code = read_batch(ctl, recorded, &filter, left < BATCH ? left : BATCH, items, &count);
        if (code == DT_CTL_EXIT_OK && count > 0)
            code = dt_ctl_print_list(ctl, &item_list, items, count, NULL);
        if (code != DT_CTL_EXIT_OK)
            return code;
        ctl->output.is_first = ctl->output.is_first && count == 0;
        left -= count;
        dt_arena_reset(&ctl->pool);
        if (ferror(ctl->output.screen.file))
            return DT_CTL_EXIT_FAILED;
    } while (count > 0 && left > 0);
    return DT_CTL_EXIT_OK;
}

static void print_json_end(dt_ctl_t *ctl, const dt_ctl_damage_t *damage)
{
    FILE *out = ctl->output.screen.file;
    (void)fputs("]", out);
    if (damage->error)
        (void)fprintf(out,
                      ",\"damage\":{\"error\":\"%s\",\"offset\":%" PRIu64 ",\"item\":%" PRIu64
                      ",\"sequence\":%" PRIu64 "}",
                      dt_frame_error_name(damage->error), damage->offset, damage->item,
                      damage->sequence);
    (void)fputs("}\n", out);
}

static int decode(dt_ctl_t *ctl, const char *path, dt_ctl_recorded_t *recorded)
{
    FILE *out = ctl->output.screen.file;
    bool is_json = ctl->output.format == DT_CTL_JSON;
    if (recorded->damage.error)
        return dt_ctl_fail_damaged(ctl, path, &recorded->damage);
    if (is_json) {
        dt_ctl_json_begin(out, item_list.kind);
        (void)fprintf(out, ",\"started_wall_ms\":%" PRId64 ",\"items\":[",
                      recorded->reader.wall_ms);
    }
    int code = print_items(ctl, recorded);
    if (is_json)
        print_json_end(ctl, &recorded->damage);
    if (code == DT_CTL_EXIT_OK && recorded->damage.error)
        return dt_ctl_fail_damaged(ctl, path, &recorded->damage);
    if (code == DT_CTL_EXIT_OK && dt_ctl_is_people(ctl) && ctl->output.screen.has_legend)
        (void)fprintf(out, "%" PRIu64 " record%s in %" PRIu64 " frame%s, recorded %s.\n",
                      recorded->record_count, recorded->record_count == 1 ? "" : "s",
                      recorded->frame_count, recorded->frame_count == 1 ? "" : "s",
                      dt_ctl_time(&ctl->pool, recorded->reader.wall_ms,
                                  ctl->output.style.now_wall_ms, ctl->output.style.is_utc));
    return code;
}

int dt_ctl_diag_decode(dt_ctl_t *ctl)
{
    dt_ctl_filemap_t file;
    dt_ctl_recorded_t recorded;
    const char *path = ctl->cli.args[0];
    int code = dt_ctl_check_list(ctl, &item_list);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_filemap_open(ctl, path, &file);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_ctl_recorded_init(&recorded, file.bytes, file.size, dt_ctl_has(ctl, DT_CTL_OPT_VERBOSE));
    code = decode(ctl, path, &recorded);
    dt_ctl_recorded_fini(&recorded);
    dt_ctl_filemap_close(&file);
    return code;
}
