/* `sim`: devices that do not exist, so that one machine stands for many GPUs.
 *
 * Spec: "N[,KEY=VALUE]…", N devices, 1..DT_DEVICE_MAX (default 1), in any order:
 *     nvlink=K   islands of K devices that are all linked to each other   (default 0: none)
 *     lanes=L    active links between two devices of an island            (default 18)
 *     switch=K   PCI switches with K devices each                         (default 2)
 *     numa=M     NUMA nodes that the devices are spread over in order     (default 1)
 *     memory=S   of each device, such as 80GiB                            (default 80GiB)
 *     tflops=F   TFLOP/s that operators take time by                      (default 0: none)
 *     gbs=B      GB/s of its memory, likewise                             (default 0: none)
 *     name=TEXT  model                                                    (default "DTorch
 * simulated device") Example: sim:8,nvlink=4,numa=2,memory=80GiB,name=H100
 *
 * PCI addresses are in domain feed, which no machine has, so that sysfs is never asked about them.
 *
 * Faults: the file named by SimFaults= is read at each refresh; where it is missing or empty, all
 * is well. One fault a line, "DEVICE FAULT [VALUE]", DEVICE is a number of 0..N-1 or "*", "#"
 * begins a comment: gone             it is not seen any more failed [TEXT]    health FAILED, with
 * the reason degraded [TEXT]  health DEGRADED throttle [BITS]  NVML's reasons as a number, default
 * 8 (hardware slowdown); DEGRADED ecc N            N uncorrected errors; DEGRADED used SIZE memory
 * in use busy PERCENT     utilisation Whoever writes the file renames it into place, so that no
 * half of it is read. */
#ifndef DT_DEVICE_SIM_H
#define DT_DEVICE_SIM_H
#include <stdint.h>

#include "base/status.h"
#include "device/backend.h"

#define DT_SIM_FAULTS_MAX 16384 /* bytes of the faults file */

typedef struct dt_sim_spec {
    int32_t device_count;
    int32_t nvlink;
    int32_t lanes;
    int32_t switch_size;
    int32_t numa_nodes;
    int32_t tflops;
    int32_t gbs;
    uint64_t memory_bytes;
    char name[96];
} dt_sim_spec_t;

/* Parse a spec. Errors: INVALID; the text names the item and its place. *ret_spec is set on success
 * only. Blocking: never. */
DT_MUST_USE dt_status_t dt_sim_spec_parse(const char *text, dt_sim_spec_t *ret_spec,
                                          dt_error_t *err);

/* Apply the faults in `text` (called `file` in messages) to devices[0 .. count) and set is_gone[i]
 * for those that are not seen. Errors: INVALID with file and line. Blocking: never. */
DT_MUST_USE dt_status_t dt_sim_faults_apply(const char *file, const char *text,
                                            dt_device_info_t *devices, bool *is_gone, int32_t count,
                                            dt_error_t *err);

/* ---- executing nothing (sim_execute.c) ----
 * Tensors have shapes and no data: what is written is dropped, what is read is zeros. Results are
 * what op_expect said, else what `ref` would return, else refused. An operator takes as long as its
 * bytes at `gbs` or its floating point operations at `tflops` do, whichever is longer; the executor
 * sleeps that time in portions of a millisecond, so that rates are right and tiny operators cheap.
 */
DT_MUST_USE dt_status_t dt_sim_device_make(const dt_sim_spec_t *spec, void **ret_device,
                                           dt_error_t *err);
/* Entries of the table; `arg` is the device. */
void dt_sim_device_close(void *arg);
dt_status_t dt_sim_op_find(void *arg, const char *name, void **ret_op, dt_error_t *err);
dt_status_t dt_sim_op_execute(void *arg, void *op, const dt_value_t *args, uint32_t arg_count,
                              void **ret_results, uint32_t result_max, uint32_t *ret_count,
                              dt_error_t *err);
dt_status_t dt_sim_op_infer(void *device, void *arg, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err);
void dt_sim_op_expect(void *arg, void *op, const dt_backend_output_t *outputs, uint32_t count);
dt_status_t dt_sim_tensor_create(void *device, const dt_meta_t *meta, void **ret_tensor,
                                 dt_error_t *err);
dt_status_t dt_sim_tensor_info(void *device, void *tensor, dt_backend_tensor_t *ret_info,
                               dt_error_t *err);
dt_status_t dt_sim_tensor_write(void *device, void *tensor, uint64_t offset, const void *bytes,
                                size_t size, dt_error_t *err);
dt_status_t dt_sim_tensor_read(void *device, void *tensor, uint64_t offset, void *ret_bytes,
                               size_t size, dt_error_t *err);
dt_status_t dt_sim_device_sync(void *arg, dt_error_t *err);

#endif
