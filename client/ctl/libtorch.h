/* Where LibTorch is, for the torch backend of an installed worker: a link beside the backend names
 * it. */
#ifndef DT_CTL_LIBTORCH_H
#define DT_CTL_LIBTORCH_H
#include "ctl.h"

/* What a link will be made of. */
typedef struct dt_ctl_libtorch {
    const char *link;   /* PREFIX/lib/dtorch/libtorch */
    const char *folder; /* that holds libtorch_cpu.so; absolute */
} dt_ctl_libtorch_t;

/* Find LibTorch in a Python environment, in its folder torch, or in a folder of libraries. Gives
 * the exit code, after the error was told; texts live in ctl->pool. */
int dt_ctl_libtorch_find(dt_ctl_t *ctl, const char *where, dt_ctl_libtorch_t *ret_found);
/* Make the link, in place of an earlier one. Gives the exit code, after the error was told. */
int dt_ctl_libtorch_link(dt_ctl_t *ctl, const dt_ctl_libtorch_t *found);
/* Whether the backend of this installation has a link to find LibTorch by, or needs none because
 * there is no such backend. */
bool dt_ctl_libtorch_is_known(dt_ctl_t *ctl);

#endif
