/* Groups of NVIDIA devices by NCCL: the table of device/group.h.
 *
 * The libraries are opened at run time, libnccl.so.2 and libcudart.so.13 as they come with PyTorch;
 * our own declarations of what we call are in api.h, so nothing of NVIDIA's is needed to build
 * this. Where its headers are, the build compares the two and links against the libraries.
 *
 * Communicators are non-blocking. All work of a context runs on one stream of its own; it is for
 * the caller to see that what it moves has been computed, and to wait before it computes on.
 *
 * It was run against a library of our own that plays NCCL between processes (tests/so/fake_nccl.c),
 * and NCCL itself as far as that goes without a device; it has NOT been run on NVIDIA hardware. */
#ifndef DT_BACKEND_NCCL_NCCL_H
#define DT_BACKEND_NCCL_NCCL_H
#include "device/group.h"

const dt_group_table_t *dt_nccl_groups(void);

#endif
