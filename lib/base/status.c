#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *dt_status_text(dt_status_t code)
{
    switch (code) {
#define X(name, value, grpc, text)                                                                 \
    case name:                                                                                     \
        return text;
        DT_ERR_MAP(X)
#undef X
    }
    return "unknown status";
}

#undef dt_fail
dt_status_t dt_fail(dt_error_t *err, dt_status_t code, const char *source, int64_t source_code,
                    const char *fmt, ...)
{
    if (err) {
        va_list args;
        err->code = code;
        err->source = source;
        err->source_code = source_code;
        va_start(args, fmt);
        (void)vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
    }
    return code;
}

void dt_check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "dtorch: bug: %s is false at %s:%d\n", cond, file, line);
    abort();
}
