/* Which number each device of this node has, for as long as the node knows the device.
 * Kept in the text file "devices" of the state directory:
 *     dtorch-devices 1
 *     NUMBER BACKEND UUID SEEN
 * SEEN rises each time the set of present devices changes; the lowest was absent the longest.
 * Invariant: a uuid is in the table at most once. Limit: DT_DEVICE_MAX. */
#ifndef DT_DEVICE_NUMBERS_H
#define DT_DEVICE_NUMBERS_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/backend.h"

#define DT_NUMBERS_FILE "devices"

typedef struct dt_numbers {
    uint64_t seen;   /* the last one given */
    bool is_changed; /* since the last load or save */
    struct dt_numbers_entry {
        char uuid[64]; /* empty: the number is free */
        char backend[32];
        uint64_t seen;
        bool is_present;
        bool was_present; /* at the last dt_numbers_end */
    } at[DT_DEVICE_MAX];
} dt_numbers_t;

/* Read the file. Without one the table is empty, which is no error.
 * Errors: INVALID (damaged, with file and line; *ret_numbers is then empty), DENIED (cannot be
 * read; likewise). Blocking: reads a file. */
DT_MUST_USE dt_status_t dt_numbers_load(const char *dir, dt_numbers_t *ret_numbers,
                                        dt_error_t *err);

/* Replace the file in one step; it is on the disk when this returns, and is_changed is false.
 * Errors: DENIED, LIMIT (no space); the old file is then as it was. Blocking: fsync. */
DT_MUST_USE dt_status_t dt_numbers_save(const char *dir, dt_numbers_t *numbers, dt_error_t *err);

/* A round: begin, then find each device that is present, then add those that were not found, then
 * end. find returns -1 for a uuid that is not known. add takes the lowest free number, else that of
 * the absent device with the lowest SEEN; -1 if all are present. */
void dt_numbers_begin(dt_numbers_t *numbers);
int32_t dt_numbers_find(dt_numbers_t *numbers, const char *uuid);
int32_t dt_numbers_add(dt_numbers_t *numbers, const char *uuid, const char *backend);
void dt_numbers_end(dt_numbers_t *numbers);

#endif
