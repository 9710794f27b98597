/* The environment. The only door to it: nobody else calls getenv(). */
#ifndef DT_CONF_ENV_H
#define DT_CONF_ENV_H

/* The value of a variable, or NULL when it is not set or empty.
 * Ownership: borrowed until the environment changes. Threads: any, while none changes it. */
const char *dt_env_get(const char *name);

/* Remove a variable, so that children do not see it. Threads: before there are others. */
void dt_env_unset(const char *name);

/* All variables, as in environ(7). */
char **dt_env_all(void);

#endif
