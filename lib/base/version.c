/* The only file that is compiled again when the version changes. */
#include "base/version.h"

const char *dt_version(void)
{
    return DT_VERSION_TEXT;
}
