#include "pool.h"

#include <stdio.h>
#include <stdlib.h>

static void *demand(void *memory)
{
    if (!memory) {
        (void)fprintf(stderr, "dtorchctl: out of memory\n");
        abort();
    }
    return memory;
}

void *dt_ctl_alloc(dt_arena_t *pool, size_t count, size_t size)
{
    return demand(dt_arena_calloc(pool, count, size));
}

char *dt_ctl_copy(dt_arena_t *pool, const char *text, size_t len)
{
    return demand(dt_arena_strndup(pool, text, len));
}

char *dt_ctl_vprint(dt_arena_t *pool, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    dt_check(len >= 0);
    char *text = dt_ctl_alloc(pool, (size_t)len + 1, 1);
    (void)vsnprintf(text, (size_t)len + 1, fmt, args);
    return text;
}

char *dt_ctl_print(dt_arena_t *pool, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = dt_ctl_vprint(pool, fmt, args);
    va_end(args);
    return text;
}
