/* The version of this build. mk/version.sh is the one place that makes it. */
#ifndef DT_BASE_VERSION_H
#define DT_BASE_VERSION_H

/* Return the version as text, "0.1.0" or "0.1.0+g0123456789": a static string. Threads: any. */
const char *dt_version(void);

#endif
