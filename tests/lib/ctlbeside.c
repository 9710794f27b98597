#include "lib/ctlbeside.h"

#include <criterion/criterion.h>
#include <stdio.h>

void dt_ctlbeside_job(dt_ctlbeside_t *beside, dt_session_t *session)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    (void)snprintf(beside->job, sizeof beside->job, "%lu", (unsigned long)info.session);
}

static void *ask(void *arg)
{
    dt_ctlbeside_t *beside = arg;
    char variable[600];
    const char *env[] = {variable, NULL};
    (void)snprintf(variable, sizeof variable, "DTORCH_ADMIN_SOCKET=%s",
                   dt_testcluster_admin_socket(beside->tc));
    beside->said = dt_testrun_program("dtorchctl", beside->args, env);
    atomic_store(&beside->is_done, true);
    return NULL;
}

void dt_ctlbeside_begin(dt_ctlbeside_t *beside, const char *verb, const char *seconds,
                        const char *output)
{
    const char *args[] = {"job", verb, beside->job, seconds, output ? "-o" : NULL, output, NULL};
    for (size_t i = 0; i < sizeof args / sizeof args[0]; i++)
        beside->args[i] = args[i];
    atomic_store(&beside->is_done, false);
    cr_assert_eq(pthread_create(&beside->thread, NULL, ask, beside), 0);
}

void dt_ctlbeside_end(dt_ctlbeside_t *beside)
{
    (void)pthread_join(beside->thread, NULL);
    cr_assert_eq(beside->said.code, 0, "%s%s", beside->said.err, dt_testcluster_logs(beside->tc));
}
