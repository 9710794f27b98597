/* dtorchctl diag replay: a recorded session runs again, and its results are compared. */
#include <inttypes.h>
#include <string.h>

#include "filemap.h"
#include "json.h"
#include "replay.h"
#include "text.h"

#define PATIENCE_MS 60000

static const dt_ctl_column_t columns[] = {
    {"future", "FUTURE", "future", NULL, NULL, 0, 0},
    {"state", "STATE", "state", NULL, NULL, DT_CTL_COLUMN_STATE, 0},
    {"size", "SIZE", "size_bytes", NULL, NULL, 0, 0},
    {"what", "WHAT", "what", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t result_list = {
    .kind = "Replay",
    .one = "result",
    .many = "results",
    .name_path = "future",
    .type = &dtorch__v1__replayed_result__descriptor,
    .columns = columns,
    .column_count = sizeof columns / sizeof columns[0],
};

/* Results that are not equal; with -v, or for programs, all. */
static size_t choose(dt_ctl_t *ctl, const dt_ctl_replayed_t *replayed,
                     const ProtobufCMessage **items)
{
    size_t count = 0;
    bool is_all = !dt_ctl_is_people(ctl) || dt_ctl_has(ctl, DT_CTL_OPT_VERBOSE);
    for (size_t i = 0; i < replayed->result_count; i++)
        if (is_all || strcmp(replayed->results[i]->state, "equal") != 0)
            items[count++] = &replayed->results[i]->base;
    return count;
}

static int print_replayed(dt_ctl_t *ctl, const dt_ctl_replayed_t *replayed)
{
    FILE *out = ctl->output.screen.file;
    bool is_json = ctl->output.format == DT_CTL_JSON;
    const ProtobufCMessage **items =
        dt_ctl_alloc(&ctl->pool, replayed->result_count + 1, sizeof *items);
    size_t count = choose(ctl, replayed, items);
    if (is_json) {
        dt_ctl_json_begin(out, result_list.kind);
        (void)fprintf(out,
                      ",\"session\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"records\":%" PRIu64
                      ",\"upload_bytes\":%" PRIu64 ",\"results\":%zu,\"equal\":%zu,\"items\":[",
                      replayed->session, replayed->frame_count, replayed->record_count,
                      replayed->upload_bytes, replayed->result_count, replayed->equal_count);
    }
    ctl->output.is_stream = ctl->output.is_array = true;
    int code =
        count > 0 ? dt_ctl_print_list(ctl, &result_list, items, count, NULL) : DT_CTL_EXIT_OK;
    if (is_json)
        dt_ctl_json_end(out);
    if (dt_ctl_is_people(ctl) && ctl->output.screen.has_legend)
        (void)fprintf(out,
                      "%zu of %zu results equal; %" PRIu64 " records in %" PRIu64
                      " frames, %s uploaded, as job %" PRIu64 ".\n",
                      replayed->equal_count, replayed->result_count, replayed->record_count,
                      replayed->frame_count,
                      dt_ctl_size(&ctl->pool, &ctl->output.style, replayed->upload_bytes),
                      replayed->session);
    return code;
}

/* Play it at the first address that answers. */
static dt_status_t play(dt_ctl_t *ctl, const dt_ctl_filemap_t *file, dt_ctl_replayed_t *replayed,
                        dt_error_t *error)
{
    dt_ctl_replay_options_t options = {
        .tls = ctl->conn.has_tls ? &ctl->conn.tls : NULL,
        .bytes = file->bytes,
        .size = file->size,
        .patience_ms = dt_ctl_number(ctl, DT_CTL_OPT_TIMEOUT, PATIENCE_MS),
    };
    dt_status_t status = DT_ERR_PEER;
    for (size_t i = 0; i < ctl->conn.address_count; i++) {
        options.address = ctl->conn.addresses[i];
        status = dt_ctl_replay(&ctl->pool, &options, replayed, error);
        if (status == DT_OK || replayed->session > 0 || status == DT_ERR_INVALID)
            break;
    }
    return status;
}

static int replay(dt_ctl_t *ctl, const char *path, const dt_ctl_filemap_t *file)
{
    dt_ctl_replayed_t replayed = {0};
    dt_error_t error;
    int code = dt_ctl_connect(ctl);
    if (code != DT_CTL_EXIT_OK)
        return code;
    dt_status_t status = play(ctl, file, &replayed, &error);
    if (replayed.damage.error)
        code = dt_ctl_fail_damaged(ctl, path, &replayed.damage);
    if (status != DT_OK && replayed.session == 0)
        return code != DT_CTL_EXIT_OK
                   ? code
                   : dt_ctl_fail(ctl, dt_ctl_exit_of(status), "%s: %s", path, error.text);
    int printed = print_replayed(ctl, &replayed);
    if (status != DT_OK)
        return dt_ctl_fail(ctl, dt_ctl_exit_of(status), "%s: %s", path, error.text);
    if (code != DT_CTL_EXIT_OK || printed != DT_CTL_EXIT_OK)
        return code != DT_CTL_EXIT_OK ? code : printed;
    return replayed.equal_count == replayed.result_count ? DT_CTL_EXIT_OK : DT_CTL_EXIT_FAILED;
}

int dt_ctl_diag_replay(dt_ctl_t *ctl)
{
    dt_ctl_filemap_t file;
    int code = dt_ctl_check_list(ctl, &result_list);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_filemap_open(ctl, ctl->cli.args[0], &file);
    if (code != DT_CTL_EXIT_OK)
        return code;
    code = replay(ctl, ctl->cli.args[0], &file);
    dt_ctl_filemap_close(&file);
    return code;
}
