/* A recorded file in memory, and its damage in words. */
#ifndef DT_CTL_FILEMAP_H
#define DT_CTL_FILEMAP_H
#include "ctl.h"
#include "recorded.h"

typedef struct dt_ctl_filemap {
    uint8_t *bytes;
    size_t size;
} dt_ctl_filemap_t;

/* Map a file that is not empty. Gives the exit code, after the error was told. */
int dt_ctl_filemap_open(dt_ctl_t *ctl, const char *path, dt_ctl_filemap_t *ret_file);
void dt_ctl_filemap_close(dt_ctl_filemap_t *file);

/* Say "FILE: at byte 1234 (item 7), record 18: checksum differs (E_CRC)". Gives the exit code. */
int dt_ctl_fail_damaged(dt_ctl_t *ctl, const char *path, const dt_ctl_damage_t *damage);

#endif
