/* dtorch-controllerd: the cluster's controller. See dtorch-controllerd(8). */
#include <stddef.h>
#include <sys/stat.h>

#include "base/stdfds.h"
#include "controllerd.h"
#include "loop/loop.h"

int main(int argc, char **argv)
{
    static dt_conf_cmdline_t cmdline; /* a reload needs it again */
    dt_conf_t *conf;
    int rc;
    dt_stdfds_open();
    /* From here to the end of the start signals wait: no socket or lock may be left behind. */
    dt_signals_hold();
    (void)umask(0077);
    rc = dt_conf_start(dt_conf_table_controller(), argc, argv, dt_controllerd_check_conf, &cmdline,
                       &conf);
    if (rc != DT_CONF_GO_ON)
        return rc;
    return dt_controllerd_run(&cmdline.sources, conf);
}
