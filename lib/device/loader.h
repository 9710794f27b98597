/* Backends as shared objects: found by name, accepted or refused, and one running context.
 * A shared object is opened in a probe's child only (probe.h); built-in tables pass the same
 * acceptance. */
#ifndef DT_DEVICE_LOADER_H
#define DT_DEVICE_LOADER_H
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/backend.h"

#define DT_LOADER_NAME_MAX 32 /* with the NUL */
#define DT_LOADER_PATH_MAX 512

typedef struct dt_loader_file {
    char name[DT_LOADER_NAME_MAX]; /* of the backend, from the file's name */
    char path[DT_LOADER_PATH_MAX];
} dt_loader_file_t;

/* Write the folder of backends that belongs to this program: ../lib/dtorch/backends seen from the
 * program's folder. Errors: NOT_FOUND, LIMIT. Blocking: reads a link. */
DT_MUST_USE dt_status_t dt_loader_home(char *ret_path, size_t size, dt_error_t *err);

/* List dtorch-backend-NAME.so in the directories, in the order given, within one by name; a NAME
 * that was seen before is left out, so that an earlier directory wins. A directory that does not
 * exist holds none.
 * Errors: DENIED (a directory cannot be read), LIMIT (above file_max). Blocking: reads directories.
 */
DT_MUST_USE dt_status_t dt_loader_scan(const char *const *dirs, size_t dir_count,
                                       dt_loader_file_t *ret_files, size_t file_max,
                                       size_t *ret_count, dt_error_t *err);

/* Check a table and copy what both sides know of it into *ret_table; the rest of that is NULL.
 * `file` is what messages call it. Errors: INVALID (ABI, size, name, or an entry that must be
 * there; the text names file, its ABI and size, and ours). */
DT_MUST_USE dt_status_t dt_loader_accept(const dt_backend_t *given, const char *file,
                                         dt_backend_t *ret_table, dt_error_t *err);

/* A backend at work. */
typedef struct dt_loader_run {
    dt_backend_t table;
    size_t given_size; /* struct_size as the backend has it */
    void *library;     /* of dlopen, or NULL */
    void *ctx;
    bool is_open;
    bool is_known; /* devices[] holds the last enumeration */
    int32_t count;
    dt_device_info_t devices[DT_DEVICE_MAX];
} dt_loader_run_t;

/* Accept a built-in table, or load the file at `path` when `table` is NULL, and open a context.
 * *ret_run needs no initialisation and, whatever is returned, may be given to dt_loader_close().
 * Errors: INVALID (refused, or the spec), NOT_FOUND (no such file, or no such hardware), what open
 * returns. */
DT_MUST_USE dt_status_t dt_loader_open(const dt_backend_t *table, const char *path,
                                       const dt_backend_options_t *options,
                                       dt_loader_run_t *ret_run, dt_error_t *err);

/* Bring run->devices up to date by refresh, or by enumerate where there is no refresh, it fails, or
 * it says that the set is another one. Errors: what enumerate returns; nothing is known then. */
DT_MUST_USE dt_status_t dt_loader_update(dt_loader_run_t *run, dt_error_t *err);

void dt_loader_close(dt_loader_run_t *run); /* NULL is fine */

#endif
