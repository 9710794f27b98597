/* dtorch-workerd: the agent of one node. Also, as child processes of itself: an engine, and a probe
 * that asks a device backend. */
#include <stdio.h>
#include <string.h>

#include "app.h"
#include "base/stdfds.h"
#include "base/strings.h"
#include "devices.h"
#include "engine.h"
#include "loop/loop.h"

/* Take a flag of ours out of the command line. Returns whether it was there. */
static bool flag_take(int *argc, char **argv, const char *flag)
{
    for (int i = 1; i < *argc; i++) {
        if (!dt_str_is_equal(argv[i], flag))
            continue;
        memmove(&argv[i], &argv[i + 1], (size_t)(*argc - i) * sizeof argv[0]);
        (*argc)--;
        return true;
    }
    return false;
}

static int check_backends(const dt_conf_t *conf)
{
    dt_devices_selection_t selection;
    dt_error_t err = {0};
    dt_devices_select(conf, NULL, &selection);
    if (dt_device_check_backends(&selection.options, stdout, &err) == DT_OK)
        return 0;
    (void)fprintf(stderr, "dtorch-workerd: %s\n", err.text);
    return 1;
}

int main(int argc, char **argv)
{
    dt_conf_cmdline_t cmdline;
    dt_conf_t *conf;
    dt_stdfds_open();
    if (argc > 1 && dt_str_is_equal(argv[1], "engine"))
        return dt_engine_main(argc, argv);
    if (dt_device_probe_is(argc, argv))
        return dt_device_probe_main(argc, argv);
    bool is_sandbox_check = flag_take(&argc, argv, "--check-sandbox");
    bool is_backend_check = flag_take(&argc, argv, "--check-backends");
    int rc = dt_conf_start(dt_conf_table_worker(), argc, argv, dt_workerd_check, &cmdline, &conf);
    if (rc != DT_CONF_GO_ON)
        return rc;
    if (is_sandbox_check)
        dt_engine_probe((uint64_t)dt_conf_size(conf, "EngineHeapMax"));
    if (is_backend_check) {
        rc = check_backends(conf);
        dt_conf_free(conf);
        return rc;
    }
    dt_signals_hold(); /* until the loop runs: no socket, lock or child may be left behind */
    return dt_workerd_run(&cmdline, conf);
}
