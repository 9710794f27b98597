/* The environment. */
#include "conf/env.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

const char *dt_env_get(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void dt_env_unset(const char *name)
{
    (void)unsetenv(name);
}

char **dt_env_all(void)
{
    return environ;
}
