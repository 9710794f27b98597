/* Memory of one command: an arena, freed as a whole at its end.
 * A tool that has no memory left can do nothing but say so: these functions never give NULL.
 * Limits: DT_CTL_POOL_MAX bytes, so that no answer of a peer can take the machine's memory. */
#ifndef DT_CTL_POOL_H
#define DT_CTL_POOL_H
#include <stdarg.h>
#include <stddef.h>

#include "base/arena.h"

#define DT_CTL_POOL_MAX ((size_t)1 << 30)

/* Give zeroed memory that lives as long as the arena's content. Ends the process if there is none.
 */
void *dt_ctl_alloc(dt_arena_t *pool, size_t count, size_t size);

/* Give a copy of the first `len` bytes of `text`, terminated. */
char *dt_ctl_copy(dt_arena_t *pool, const char *text, size_t len);

/* Give printf's text. */
char *dt_ctl_print(dt_arena_t *pool, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);
char *dt_ctl_vprint(dt_arena_t *pool, const char *fmt, va_list args) DT_PRINTF_LIKE(2, 0);

#endif
