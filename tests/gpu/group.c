/* Groups of devices on NCCL itself: the cases of tests/lib/grouprig.h on as many devices as there
 * are, and what needs no device on every machine that has the library.
 * usage: group [LIBRARY RUNTIME]. Exits 0 where there is no device, and says so. */
#include <stdio.h>
#include <string.h>

#include "backend/nccl/nccl.h"
#include "lib/grouprig.h"

static unsigned passed, failed, skipped;

static void say(const char *name, const char *why)
{
    *(why ? &failed : &passed) += 1;
    (void)printf("%s %s%s%s\n", why ? "FAILED" : "ok", name, why ? ": " : "", why ? why : "");
}

static void skip(const char *name, const char *why)
{
    skipped++;
    (void)printf("skipped %s: %s\n", name, why);
}

static void cases(const dt_grouprig_options_t *said, uint32_t devices, const char *none)
{
    dt_grouprig_options_t options = *said;
    options.count = devices < DT_GROUPRIG_RANK_MAX ? devices : DT_GROUPRIG_RANK_MAX;
    for (const dt_grouprig_case_t *it = dt_grouprig_cases; it->name; it++) {
        char why[160];
        (void)snprintf(why, sizeof why, "it needs %u devices, there are %u", it->least, devices);
        if (devices == 0)
            skip(it->name, none);
        else if (devices < it->least)
            skip(it->name, why);
        else
            say(it->name, dt_grouprig_run(&options, it));
    }
}

/* Without a device NCCL is refused with a cause, not by a crash. */
static void refusal(const dt_grouprig_options_t *said)
{
    const dt_group_options_t options = {.library = said->library, .runtime = said->runtime};
    dt_error_t err = {0};
    void *ctx = NULL;
    dt_status_t status = dt_nccl_groups()->open(&options, &ctx, &err);
    bool is_told = (status == DT_ERR_DEVICE || status == DT_ERR_NOT_FOUND) && err.text[0];
    say("without_a_device_the_cause_is_told", is_told ? NULL : dt_status_text(status));
    if (status == DT_OK)
        dt_nccl_groups()->close(ctx);
}

int main(int argc, char **argv)
{
    const dt_grouprig_options_t options = {.library = argc > 2 ? argv[1] : "",
                                           .runtime = argc > 2 ? argv[2] : ""};
    char why[512];
    int version = 0;
    dt_nccl_api_t api;
    dt_error_t err = {0};
    uint32_t devices = dt_grouprig_devices(&options, why, sizeof why);
    if (dt_nccl_api_open(&api, options.library, options.runtime, &err) != DT_OK) {
        skip("all", err.text);
    } else {
        say("every_call_is_there", NULL);
        (void)api.get_version(&version);
        (void)printf("NCCL %d, %u devices\n", version, devices);
        cases(&options, devices, why);
        if (devices == 0)
            refusal(&options);
        dt_nccl_api_close(&api);
    }
    if (devices == 0)
        (void)printf("NOT run on a GPU: %s\n", why);
    (void)printf("gpu: %u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed > 0;
}
