#include "base/stdfds.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

void dt_stdfds_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        /* The lowest free number is this one. A folder takes nothing, but it keeps the place. */
        if (open("/dev/null", O_RDWR) <
            0) /* NOLINT(android-cloexec-open): children need them too */
            (void)open("/", O_RDONLY | O_DIRECTORY);
    }
}
