/* Groups of devices (device/group.h) between processes: each rank is a child process with a device
 * of its own, and a page that all share stands for the control path: ids, who is lost. The same
 * cases run on a library that plays NCCL and on NCCL itself. */
#ifndef DT_TESTS_LIB_GROUPRIG_H
#define DT_TESTS_LIB_GROUPRIG_H
#include <stdint.h>

#include "backend/nccl/api.h"
#include "device/group.h"

#define DT_GROUPRIG_RANK_MAX 8u

typedef struct dt_grouprig_page dt_grouprig_page_t;

/* One rank, in its process. */
typedef struct dt_grouprig {
    const dt_group_table_t *table;
    void *ctx;
    dt_nccl_api_t api; /* for bytes in and out */
    uint32_t rank, count;
    dt_grouprig_page_t *page;
} dt_grouprig_t;

typedef struct dt_grouprig_case {
    const char *name;
    uint32_t least; /* ranks that it needs */
    void (*run)(dt_grouprig_t *rig);
} dt_grouprig_case_t;
/* Ends with a row without a name. */
extern const dt_grouprig_case_t dt_grouprig_cases[];

typedef struct dt_grouprig_options {
    const char *library, *runtime; /* "": the usual ones */
    uint32_t count;                /* ranks, with devices 0, 1, 2... */
} dt_grouprig_options_t;

/* How a case ended: NULL, or what the first rank said that failed. Ownership: static storage, until
 * the next call. */
const char *dt_grouprig_run(const dt_grouprig_options_t *options, const dt_grouprig_case_t *it);

/* Devices that there are; 0 with the cause in `ret_why`. In a process of its own, as a process that
 * has used a device cannot be forked. */
uint32_t dt_grouprig_devices(const dt_grouprig_options_t *options, char *ret_why, size_t size);

#endif
