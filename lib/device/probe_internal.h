/* What the two ends of a probe agree on. Both are the same program, so structs travel as they are.
 */
#ifndef DT_DEVICE_PROBE_INTERNAL_H
#define DT_DEVICE_PROBE_INTERNAL_H
#include <stdint.h>

#define DT_PROBE_ARGUMENT "--device-probe"
#define DT_PROBE_MAGIC    UINT32_C(0x64745031)
#define DT_PROBE_REQUEST  'u' /* update and tell */

/* argv of the child. */
enum dt_probe_arg {
    DT_PROBE_ARG_FLAG = 1, /* DT_PROBE_ARGUMENT */
    DT_PROBE_ARG_KIND,     /* "so" or "builtin" */
    DT_PROBE_ARG_WHAT,     /* path or name */
    DT_PROBE_ARG_SPEC,
    DT_PROBE_ARG_ROOT,
    DT_PROBE_ARG_SEED,
    DT_PROBE_ARG_FAULTS,
    DT_PROBE_ARG_LIBRARY,
    DT_PROBE_ARG_COUNT,
};

/* The answer; `count` dt_device_info_t follow. */
typedef struct dt_probe_reply {
    uint32_t magic;
    int32_t status; /* dt_status_t */
    int32_t count;  /* 0 unless status is DT_OK */
    int32_t abi;
    int32_t is_last; /* the child ends now */
    uint64_t table_size;
    int64_t source_code;
    char name[32];
    char text[512];
} dt_probe_reply_t;

#endif
