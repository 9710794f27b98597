#include "libtorch.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strings.h"
#include "text.h"

#define LIBRARY "libtorch_cpu.so"
#define BACKEND "backends/dtorch-backend-torch.so"

/* "PREFIX/lib/dtorch/NAME" of this installation. */
static const char *beside_backends(dt_ctl_t *ctl, const char *name)
{
    char program[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    program[len > 0 ? len : 0] = '\0';
    for (int up = 0; up < 2; up++) { /* the file's name, bin */
        char *slash = strrchr(program, '/');
        if (slash)
            *slash = '\0';
    }
    return dt_ctl_print(&ctl->pool, "%s/lib/dtorch/%s", program, name);
}

/* The folder of the first file that matches, absolute, or NULL. */
static const char *folder_of(dt_ctl_t *ctl, const char *where, const char *pattern)
{
    glob_t found;
    char path[PATH_MAX];
    const char *folder = NULL;
    if (glob(dt_ctl_print(&ctl->pool, "%s/%s", where, pattern), 0, NULL, &found) == 0 &&
        realpath(found.gl_pathv[0], path)) {
        *strrchr(path, '/') = '\0';
        folder = dt_ctl_copy(&ctl->pool, path, strlen(path));
    }
    globfree(&found);
    return folder;
}

int dt_ctl_libtorch_find(dt_ctl_t *ctl, const char *where, dt_ctl_libtorch_t *ret_found)
{
    static const char *const patterns[] = {LIBRARY, "lib/" LIBRARY, "torch/lib/" LIBRARY,
                                           "lib/python3*/site-packages/torch/lib/" LIBRARY};
    static const char *const hidden[] = {"/home/", "/root/", "/tmp/", "/var/tmp/"};
    const char *folder = NULL;
    if (access(beside_backends(ctl, BACKEND), F_OK) != 0)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                           "--torch: the torch backend is not installed here (%s)",
                           beside_backends(ctl, BACKEND));
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0] && !folder; i++)
        folder = folder_of(ctl, where, patterns[i]);
    if (!folder)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                           "--torch=%s: there is no " LIBRARY " in it\n"
                           "  wanted    a Python environment with PyTorch, or its folder torch",
                           where);
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
        if (dt_str_has_prefix(folder, hidden[i]) && !dt_ctl_option(ctl, DT_CTL_OPT_DIR))
            return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED,
                               "--torch: %s is not seen by the daemon, for which %s is hidden\n"
                               "  next      a place for all, such as /opt/torch",
                               folder, hidden[i]);
    *ret_found = (dt_ctl_libtorch_t){beside_backends(ctl, "libtorch"), folder};
    return DT_CTL_EXIT_OK;
}

int dt_ctl_libtorch_link(dt_ctl_t *ctl, const dt_ctl_libtorch_t *found)
{
    struct stat status;
    if (lstat(found->link, &status) == 0 && S_ISLNK(status.st_mode))
        (void)unlink(found->link);
    if (symlink(found->folder, found->link) == 0)
        return DT_CTL_EXIT_OK;
    int number = errno;
    return dt_ctl_fail(ctl,
                       number == EACCES || number == EPERM || number == EROFS ? DT_CTL_EXIT_DENIED
                                                                              : DT_CTL_EXIT_FAILED,
                       "%s: %s", found->link, strerror(number));
}

bool dt_ctl_libtorch_is_known(dt_ctl_t *ctl)
{
    return access(beside_backends(ctl, BACKEND), F_OK) != 0 ||
           access(dt_ctl_print(&ctl->pool, "%s/" LIBRARY, beside_backends(ctl, "libtorch")),
                  F_OK) == 0;
}
