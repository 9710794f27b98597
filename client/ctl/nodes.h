/* Nodes and devices as the verbs of both nouns need them: asked for page by page, and their states
 * as words. */
#ifndef DT_CTL_NODES_H
#define DT_CTL_NODES_H
#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "hosts.h"

typedef struct dt_ctl_nodes {
    const Dtorch__V1__Node **items; /* by name; in ctl->pool */
    size_t count;
    size_t missing_count; /* names that the controller does not know; each was told on stderr */
} dt_ctl_nodes_t;

typedef struct dt_ctl_devices {
    const Dtorch__V1__NodeDevice **items; /* by node, then index; in ctl->pool */
    size_t count;
} dt_ctl_devices_t;

/* Expand the arguments from `first` to a list of names. Gives the exit code. */
int dt_ctl_names(dt_ctl_t *ctl, size_t first, size_t count, dt_ctl_hosts_t *ret_hosts);

/* Ask for nodes with their devices; no names: all. Gives the exit code: 67 when names were given
 * and none of them exists. */
int dt_ctl_fetch_nodes(dt_ctl_t *ctl, const dt_ctl_hosts_t *hosts, dt_ctl_nodes_t *ret_nodes);

/* The devices of nodes, in one list. */
dt_ctl_devices_t dt_ctl_devices_of(dt_ctl_t *ctl, const dt_ctl_nodes_t *nodes);

/* "ready", "suspect", "draining", "drained+dead": what a person set and what was observed. */
const char *dt_ctl_node_state(dt_arena_t *pool, const Dtorch__V1__Node *node);
/* "fan 2 (ana, 13:40:09); no beat since 14:02:11", or "". */
const char *dt_ctl_node_why(dt_arena_t *pool, const dt_ctl_style_t *style,
                            const Dtorch__V1__Node *node);
/* "missing", "failed", "degraded", "ok"; "unknown" while its node (NULL: any) is not heard. */
const char *dt_ctl_device_state(dt_arena_t *pool, const Dtorch__V1__Node *node,
                                const Dtorch__V1__NodeDevice *device);
const Dtorch__V1__Node *dt_ctl_nodes_find(const dt_ctl_nodes_t *nodes, const char *name);

/* Print a list of devices; `nodes` are theirs. Gives the exit code. */
int dt_ctl_print_devices(dt_ctl_t *ctl, const dt_ctl_nodes_t *nodes,
                         const dt_ctl_devices_t *devices);

/* "3.1/3.8 TiB", or "3.8 TiB" where what is used is not known. */
const char *dt_ctl_memory(dt_arena_t *pool, const dt_ctl_style_t *style, uint64_t used_bytes,
                          uint64_t bytes);

extern const dt_ctl_list_t dt_ctl_node_list_type;
extern const dt_ctl_list_t dt_ctl_device_list_type;

/* Exit code of a list of which some names were unknown. */
int dt_ctl_partial(const dt_ctl_nodes_t *nodes);

#endif
