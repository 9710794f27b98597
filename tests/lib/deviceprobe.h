/* Lets a test program be its own probe child (lib/device/probe.h), as dtorch-workerd is. Include it
 * in one file of the program. */
#ifndef DT_TESTLIB_DEVICEPROBE_H
#define DT_TESTLIB_DEVICEPROBE_H
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"

/* Runs before main(), which belongs to the test framework. */
__attribute__((constructor)) static void be_a_probe_if_started_as_one(int argc, char **argv)
{
    if (dt_device_probe_is(argc, argv))
        exit(dt_device_probe_main(argc, argv));
}

/* Where the shared objects of tests/so are. */
static inline const char *so_dir(void)
{
    const char *dir = getenv("DT_TEST_SO");
    return dir ? dir : "build/dev/tests/so";
}

#endif
