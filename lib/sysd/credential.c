/* Credentials of the unit: LoadCredential= and SetCredential=. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/strings.h"
#include "conf/env.h"
#include "sysd/sysd.h"

#define CREDENTIAL_NONE "none" /* what our units set where there is none yet */

enum { CREDENTIAL_PEEK = 16 };

dt_status_t dt_sysd_credential_path(const char *name, char ret_path[static DT_SYSD_PATH_MAX],
                                    dt_error_t *err)
{
    const char *dir = dt_env_get("CREDENTIALS_DIRECTORY");
    char path[DT_SYSD_PATH_MAX];
    char begin[CREDENTIAL_PEEK + 1];

    if (!*name || strchr(name, '/') || name[0] == '.')
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "\"%.64s\" is not a credential's name", name);
    if (!dir)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "no credential %s: none were passed", name);
    int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (len < 0 || (size_t)len >= sizeof path)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "credential %s: path too long", name);

    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return dt_fail(err, errno == ENOENT ? DT_ERR_NOT_FOUND : DT_ERR_DENIED, "errno", errno,
                       "%s: %s", path, strerrordesc_np(errno));
    ssize_t got = read(fd, begin, CREDENTIAL_PEEK);
    int code = errno;
    (void)close(fd);
    if (got < 0)
        return dt_fail(err, DT_ERR_DENIED, "errno", code, "%s: %s", path, strerrordesc_np(code));
    begin[got] = '\0';
    bool is_none = strcmp(dt_str_trim(begin), CREDENTIAL_NONE) == 0;
    explicit_bzero(begin, sizeof begin);
    if (is_none)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "credential %s: none yet", name);
    memcpy(ret_path, path, (size_t)len + 1);
    return DT_OK;
}
