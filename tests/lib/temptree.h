/* A temporary folder that a test fills with files, links and folders, and that plays /sys and
 * /proc. Paths are relative; folders on the way are made. Failures stop the test program with a
 * message: they are the machine's, not the test's. */
#ifndef DT_TESTLIB_TEMPTREE_H
#define DT_TESTLIB_TEMPTREE_H
#include <stddef.h>

typedef struct dt_temptree {
    char root[256];
} dt_temptree_t;

/* Make an empty folder under $TMPDIR or /tmp. */
void dt_temptree_init(dt_temptree_t *tree);
/* Remove it and all that is in it. */
void dt_temptree_fini(dt_temptree_t *tree);

/* Write a file in one step: a reader sees the old text or the new. */
void dt_temptree_write(const dt_temptree_t *tree, const char *path, const char *text);
void dt_temptree_link(const dt_temptree_t *tree, const char *path, const char *target);
void dt_temptree_remove(const dt_temptree_t *tree, const char *path);
/* The full path, in a ring of 8 buffers. */
const char *dt_temptree_path(const dt_temptree_t *tree, const char *path);

#endif
