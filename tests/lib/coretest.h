/* A cluster core under a clock of the test's own: builds messages, performs actions by writing them
 * down, and keeps what a disk would keep. For unit tests of lib/core; the simulator has its own. */
#ifndef DT_CORETEST_H
#define DT_CORETEST_H
#include <stdbool.h>
#include <stdint.h>

#include "core/cluster.h"

#define DT_CORETEST_ACTIONS_MAX 4096
#define DT_CORETEST_MS          INT64_C(1000000)

/* What came out, with its own copies. */
typedef struct dt_coretest_action {
    dt_cluster_action_kind_t kind;
    uint64_t stream, sequence, ticket;
    uint8_t *data;
    size_t size;
    dt_status_t status;
    char text[600];
    char event[64]; /* its name */
} dt_coretest_action_t;

typedef struct dt_coretest {
    dt_cluster_t *cluster;
    dt_cluster_options_t options;
    int64_t now_ns, wall_ms;
    dt_arena_t arena; /* of what dt_coretest_sent() gave */
    bool is_holding;  /* journal records wait for dt_coretest_sync() */
    uint64_t issued;  /* of this start */
    struct {
        uint8_t *data;
        size_t size;
    } records[DT_CORETEST_ACTIONS_MAX]; /* all that a disk would have, of all starts */
    uint32_t record_count;
    uint32_t durable_count; /* of them */
    dt_coretest_action_t actions[DT_CORETEST_ACTIONS_MAX];
    uint32_t action_count;
} dt_coretest_t;

/* A started and ready cluster with 250 ms, 3, 8. Free with dt_coretest_free(). */
dt_coretest_t *dt_coretest_new(void);
/* The same, not started; options may be changed before dt_coretest_start(). */
dt_coretest_t *dt_coretest_new_stopped(void);
void dt_coretest_start(dt_coretest_t *test);
/* Throw the core away and start another from the durable records. */
void dt_coretest_restart(dt_coretest_t *test);
void dt_coretest_free(dt_coretest_t *test);

/* Take the actions; done by each function below too. */
void dt_coretest_perform(dt_coretest_t *test);
void dt_coretest_sync(dt_coretest_t *test);
void dt_coretest_forget_actions(dt_coretest_t *test);
/* Let time pass in turns of 62.5 ms. */
void dt_coretest_pass(dt_coretest_t *test, int64_t ms);
/* Let time pass at once, with one turn at its end. */
void dt_coretest_starve(dt_coretest_t *test, int64_t ms);

void dt_coretest_open(dt_coretest_t *test, uint64_t stream, const char *certificate_name);
/* node: its id is 16 times that byte, its name "n<node>" unless given. */
void dt_coretest_hello(dt_coretest_t *test, uint64_t stream, uint8_t node, uint64_t incarnation,
                       const char *name);
/* open and hello */
void dt_coretest_join(dt_coretest_t *test, uint64_t stream, uint8_t node, uint64_t incarnation);
void dt_coretest_beat(dt_coretest_t *test, uint64_t stream, uint64_t progress, int64_t late_ns);
void dt_coretest_beat_busy(dt_coretest_t *test, uint64_t stream, const uint8_t *percents,
                           size_t count);
/* `devices` is a bit set of the indexes that are there; `busy` engines work. */
void dt_coretest_inventory(dt_coretest_t *test, uint64_t stream, uint64_t devices, uint32_t busy);
void dt_coretest_engine(dt_coretest_t *test, uint64_t stream, uint64_t sequence);
void dt_coretest_set(dt_coretest_t *test, uint64_t ticket, int change, const char *name,
                     const char *reason, const char *request_id);

/* What came out since the last dt_coretest_forget_actions(). */
const dt_coretest_action_t *dt_coretest_find(const dt_coretest_t *test,
                                             dt_cluster_action_kind_t kind, uint64_t which);
uint32_t dt_coretest_count(const dt_coretest_t *test, dt_cluster_action_kind_t kind,
                           uint64_t which);
uint32_t dt_coretest_count_events(const dt_coretest_t *test, const char *name);
/* Unpacked WorkerDown of a kind that was sent on a stream, or NULL. Lives as long as the test. */
const Dtorch__V1__WorkerDown *dt_coretest_sent(dt_coretest_t *test, uint64_t stream, int kind_case);
bool dt_coretest_was_refused(dt_coretest_t *test, uint64_t stream, int code, const char *words);
/* One node as a query shows it; lives in the arena. */
Dtorch__V1__Node *dt_coretest_node(dt_coretest_t *test, dt_arena_t *arena, const char *name);
int dt_coretest_health(dt_coretest_t *test, const char *name); /* -1: no such node */
int dt_coretest_admin(dt_coretest_t *test, const char *name);

#endif
