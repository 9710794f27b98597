/* The file functions that lib/store uses, as a table, so that a test can make any of them fail.
 * Each has the shape and the errno of the system call that it is named after; `arg` is the table's
 * own. Nothing else in lib/store writes to a file. */
#ifndef DT_STORE_IO_H
#define DT_STORE_IO_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct dt_store_io {
    void *arg;
    int (*open_at)(void *arg, int dir_fd, const char *name, int flags, mode_t mode);
    ssize_t (*write_at)(void *arg, int fd, const void *data, size_t size, off_t at); /* pwrite */
    int (*data_sync)(void *arg, int fd);                                             /* fdatasync */
    int (*sync)(void *arg, int fd);                 /* fsync, of files and of the directory */
    int (*truncate)(void *arg, int fd, off_t size); /* ftruncate */
    int (*reserve)(void *arg, int fd, off_t at, off_t size); /* fallocate, size kept */
    int (*rename_at)(void *arg, int dir_fd, const char *from, const char *to);
    int (*unlink_at)(void *arg, int dir_fd, const char *name);
} dt_store_io_t;

/* Return the system's own functions. Threads: any. */
const dt_store_io_t *dt_store_io_system(void);

#endif
