/* The pure parts of dtorch-workerd: identity, names, back-off, where plain text may go, status
 * line. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemons/workerd/app.h"
#include "daemons/workerd/engines.h"
#include "daemons/workerd/identity.h"
#include "daemons/workerd/join.h"
#include "daemons/workerd/report.h"

TestSuite(identity, .timeout = 60);
TestSuite(workerd, .timeout = 60);

static char *folder(void)
{
    static char path[256];
    const char *base = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/dtorch-test-XXXXXX", base ? base : "/tmp");
    cr_assert_not_null(mkdtemp(path));
    return path;
}

static void file_put(const char *directory, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static bool file_is(const char *directory, const char *name)
{
    char path[512];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    return stat(path, &info) == 0;
}

static void folder_remove(const char *directory)
{
    static const char *const names[] = {"lock", "node-id", "cluster"};
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        (void)unlink(path);
    }
    cr_assert_eq(rmdir(directory), 0, "a temporary file was left behind");
}

Test(identity, is_made_once_and_stays)
{
    char *directory = folder();
    dt_identity_t first, second;
    dt_error_t err;
    cr_assert_eq(dt_identity_open(directory, "a", &first, &err), DT_OK, "%s", err.text);
    dt_identity_close(&first);
    cr_assert(!file_is(directory, "lock"), "the lock goes at the end");
    cr_assert_eq(dt_identity_open(directory, "a", &second, &err), DT_OK, "%s", err.text);
    cr_assert_eq(memcmp(first.node_id, second.node_id, sizeof first.node_id), 0);
    cr_assert_neq(first.incarnation, second.incarnation);
    cr_assert_neq(second.incarnation, 0);
    cr_assert_eq(strlen(second.boot_id), 36);
    dt_identity_close(&second);
    folder_remove(directory);
}

Test(identity, of_a_directory_that_is_held_names_the_holder)
{
    char *directory = folder();
    char pid[32];
    dt_identity_t first, second = {.lock_fd = -1};
    dt_error_t err;
    cr_assert_eq(dt_identity_open(directory, "a", &first, &err), DT_OK);
    cr_assert_eq(dt_identity_open(directory, "a", &second, &err), DT_ERR_EXISTS);
    (void)snprintf(pid, sizeof pid, "pid %d on ", (int)getpid());
    cr_assert_not_null(strstr(err.text, pid), "%s", err.text);
    cr_assert(file_is(directory, "lock"), "the holder was disturbed");
    dt_identity_close(&first);
    cr_assert_eq(dt_identity_open(directory, "a", &second, &err), DT_OK, "free again");
    dt_identity_close(&second);
    folder_remove(directory);
}

Test(identity, does_not_mind_the_lock_of_a_crashed_process)
{
    char *directory = folder();
    dt_identity_t identity;
    dt_error_t err;
    file_put(directory, "lock", "pid 1 on nowhere\n");
    cr_assert_eq(dt_identity_open(directory, "a", &identity, &err), DT_OK, "%s", err.text);
    dt_identity_close(&identity);
    folder_remove(directory);
}

Test(identity, remembers_the_cluster_and_its_epoch)
{
    char *directory = folder();
    uint8_t cluster[16] = {1, 2, 0xff};
    dt_identity_t identity;
    dt_error_t err;
    cr_assert_eq(dt_identity_save_cluster(directory, cluster, 77, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_identity_open(directory, "a", &identity, &err), DT_OK, "%s", err.text);
    cr_assert_eq(identity.epoch_seen, 77);
    cr_assert_eq(memcmp(identity.cluster_id, cluster, sizeof cluster), 0);
    dt_identity_close(&identity);
    folder_remove(directory);
}

Test(identity, that_is_damaged_is_refused_with_what_to_do)
{
    static const char *const ids[] = {"", "zz", "0123456789abcdef0123456789abcdeg",
                                      "0123456789abcdef0123456789abcdef0"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char *directory = folder();
        dt_identity_t identity;
        dt_error_t err;
        file_put(directory, "node-id", ids[i]);
        cr_assert_eq(dt_identity_open(directory, "a", &identity, &err), DT_ERR_INVALID);
        cr_assert_not_null(strstr(err.text, "node-id is damaged"), "%s", err.text);
        cr_assert_not_null(strstr(err.text, "remove it"), "%s", err.text);
        cr_assert(!file_is(directory, "lock"), "a lock was left behind");
        folder_remove(directory);
    }
}

Test(identity, with_a_damaged_cluster_file_is_refused)
{
    static const char *const texts[] = {"x", "0123456789abcdef0123456789abcdef",
                                        "0123456789abcdef0123456789abcdef -1",
                                        "0123456789abcdef0123456789abcdef 1x"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *directory = folder();
        dt_identity_t identity;
        dt_error_t err;
        file_put(directory, "cluster", texts[i]);
        cr_assert_eq(dt_identity_open(directory, "a", &identity, &err), DT_ERR_INVALID, "%s",
                     texts[i]);
        cr_assert_not_null(strstr(err.text, "cluster is damaged"), "%s", err.text);
        folder_remove(directory);
    }
}

Test(identity, without_a_parent_folder_says_which_option_it_is)
{
    dt_identity_t identity;
    dt_error_t err;
    cr_assert_eq(dt_identity_open("/nonexistent/dtorch/workerd", "a", &identity, &err),
                 DT_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(err.text, "StateDirectory="), "%s", err.text);
}

Test(identity, takes_a_legal_name_from_any_host_name)
{
    static const struct {
        const char *host, *name;
    } cases[] = {{"gpu001", "gpu001"},
                 {"GPU001.example.com", "gpu001"},
                 {"my_host", "my-host"},
                 {"-x-", "x"},
                 {"...", ""},
                 {"", ""},
                 {"\xc3\xa4"
                  "b",
                  "b"}};
    char name[DT_IDENTITY_NAME_SIZE];
    char big[300];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_identity_name_from_host(cases[i].host, name);
        cr_assert_str_eq(name, cases[i].name);
    }
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    dt_identity_name_from_host(big, name);
    cr_assert_eq(strlen(name), 63);
}

Test(identity, refuses_an_illegal_configured_name)
{
    char *directory = folder();
    dt_identity_t identity;
    dt_error_t err;
    cr_assert_eq(dt_identity_open(directory, "Node_1", &identity, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "NodeName=Node_1"), "%s", err.text);
    folder_remove(directory);
}

Test(workerd, puts_another_engine_in_place_at_once_and_then_more_slowly)
{
    cr_assert_eq(dt_engines_backoff_ns(0, 7), 0);
    cr_assert_eq(dt_engines_backoff_ns(1, 7), 0, "a first death is nobody's fault");
    for (uint32_t failures = 2; failures < 100; failures++) {
        int64_t least_ns = dt_engines_backoff_ns(failures, 0);
        int64_t most_ns = dt_engines_backoff_ns(failures, 1023);
        cr_assert_geq(least_ns, DT_ENGINES_BACKOFF_MIN_NS / 2);
        cr_assert_leq(most_ns, DT_ENGINES_BACKOFF_MAX_NS);
        cr_assert_leq(least_ns, most_ns);
        cr_assert_geq(least_ns, dt_engines_backoff_ns(failures - 1, 0));
    }
    cr_assert_eq(dt_engines_backoff_ns(UINT32_MAX, 0), DT_ENGINES_BACKOFF_MAX_NS / 2);
}

Test(workerd, sends_plain_text_to_this_host_only)
{
    static const struct {
        const char *address;
        dt_join_place_t place;
    } cases[] = {
        {"/run/dtorch/controller.sock", DT_JOIN_PLACE_HERE},
        {"127.0.0.1:7700", DT_JOIN_PLACE_HERE},
        {"127.8.8.8:1", DT_JOIN_PLACE_HERE},
        {"localhost:7700", DT_JOIN_PLACE_HERE},
        {"[::1]:7700", DT_JOIN_PLACE_HERE},
        {"10.0.0.1:7700", DT_JOIN_PLACE_ELSEWHERE},
        {"[::]:7700", DT_JOIN_PLACE_ELSEWHERE},
        {"[2001:db8::1]:7700", DT_JOIN_PLACE_ELSEWHERE},
        {"localhost.example.com:7700", DT_JOIN_PLACE_NAME},
        {"127.example.com:7700", DT_JOIN_PLACE_NAME},
        {"head:7700", DT_JOIN_PLACE_NAME},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(dt_join_place(cases[i].address), cases[i].place, "%s", cases[i].address);
}

Test(workerd, splits_an_address_into_host_and_port)
{
    char host[16];
    char port[8];
    cr_assert(dt_join_split("[::1]:7700", host, sizeof host, port, sizeof port));
    cr_assert_str_eq(host, "::1");
    cr_assert_str_eq(port, "7700");
    cr_assert(dt_join_split("head:1", host, sizeof host, port, sizeof port));
    cr_assert_str_eq(host, "head");
    cr_assert(!dt_join_split("head", host, sizeof host, port, sizeof port));
    cr_assert(!dt_join_split("a-name-that-is-long:1", host, sizeof host, port, sizeof port));
}

Test(workerd, tells_the_service_manager_whom_it_is_connected_to)
{
    dt_agent_view_t view = {
        .state = DT_AGENT_ONLINE, .cluster_name = "lab", .epoch = 3, .last_error = ""};
    dt_report_t report = {.node_name = "n1", .address = "head:7700", .link = &view};
    char line[256];
    dt_report_status(&report, line, sizeof line);
    cr_assert_str_eq(
        line, "Connected to head:7700 as node n1, cluster lab, epoch 3; looking for devices");
    view.state = DT_AGENT_WAITING;
    view.last_error = "connection refused";
    dt_report_status(&report, line, sizeof line);
    cr_assert_str_eq(line,
                     "Connecting to head:7700 as node n1; looking for devices; connection refused");
    report.link = NULL;
    dt_report_status(&report, line, sizeof line);
    cr_assert_str_eq(line, "Joining the cluster as node n1; looking for devices");
}

Test(workerd, has_an_exit_status_for_each_cause)
{
    cr_assert_eq(dt_workerd_exit_code(DT_OK), 0);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_INVALID), 65);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_INTERNAL), 70);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_EXISTS), 75);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_LIMIT), 75);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_DENIED), 77);
    cr_assert_eq(dt_workerd_exit_code(DT_ERR_NOT_FOUND), 78);
}
