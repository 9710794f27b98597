/* dtorch-controllerd: the cluster's controller. See dtorch-controllerd(8). */
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>

#include "controllerd.h"

int main(int argc, char **argv)
{
    static dt_conf_cmdline_t cmdline; /* a reload needs it again */
    dt_conf_t *conf;
    sigset_t held;
    int rc;
    /* From here to the end of the start signals wait: no socket or lock may be left behind. */
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &held, NULL);
    (void)umask(0077);
    rc = dt_conf_start(dt_conf_table_controller(), argc, argv, dt_controllerd_check_conf, &cmdline,
                       &conf);
    if (rc != DT_CONF_GO_ON)
        return rc;
    return dt_controllerd_run(&cmdline.sources, conf);
}
