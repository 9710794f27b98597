/* Temporary folders for tests. */
#include "lib/temptree.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int ok, const char *what, const char *path)
{
    if (ok)
        return;
    fprintf(stderr, "temptree: %s %s: %s\n", what, path, strerror(errno));
    abort();
}

void dt_temptree_init(dt_temptree_t *tree)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(tree->root, sizeof tree->root, "%s/dtorch-test-XXXXXX", base ? base : "/tmp");
    must(mkdtemp(tree->root) != NULL, "mkdtemp", tree->root);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void dt_temptree_fini(dt_temptree_t *tree)
{
    (void)nftw(tree->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *dt_temptree_path(const dt_temptree_t *tree, const char *path)
{
    static char ring[8][512];
    static unsigned next;
    char *full = ring[next++ % 8];
    (void)snprintf(full, sizeof ring[0], "%s/%s", tree->root, path);
    return full;
}

static void make_parents(const char *full)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s", full);
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        must(mkdir(path, 0755) == 0 || errno == EEXIST, "mkdir", path);
        *at = '/';
    }
}

void dt_temptree_write(const dt_temptree_t *tree, const char *path, const char *text)
{
    char full[512], next[520];
    FILE *file;
    (void)snprintf(full, sizeof full, "%s", dt_temptree_path(tree, path));
    (void)snprintf(next, sizeof next, "%s.next", full);
    make_parents(full);
    file = fopen(next, "we");
    must(file != NULL, "open", next);
    must(fputs(text, file) >= 0, "write", next);
    must(fclose(file) == 0, "close", next);
    must(rename(next, full) == 0, "rename", full);
}

void dt_temptree_link(const dt_temptree_t *tree, const char *path, const char *target)
{
    const char *full = dt_temptree_path(tree, path);
    make_parents(full);
    must(symlink(target, full) == 0, "symlink", full);
}

void dt_temptree_remove(const dt_temptree_t *tree, const char *path)
{
    const char *full = dt_temptree_path(tree, path);
    must(unlink(full) == 0, "unlink", full);
}
