#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/conf.h"
#include "lib/temptree.h"

TestSuite(conf_sources, .timeout = 60);

static dt_temptree_t tree;
static const char *root; /* of the tree */
static dt_error_t error;

static void write_text(const char *path, const char *text)
{
    dt_temptree_write(&tree, path + 1, text);
}

static void setup(void)
{
    dt_temptree_init(&tree);
    root = tree.root;
}

static void cleanup(void)
{
    dt_temptree_fini(&tree);
}

static char *no_environment[] = {NULL};

static dt_conf_t *load(dt_conf_sources_t sources)
{
    dt_conf_t *conf = NULL;
    error = (dt_error_t){0};
    sources.root = root;
    if (!sources.environment)
        sources.environment = no_environment;
    return dt_conf_load(dt_conf_table_controller(), &sources, &conf, &error) == DT_OK ? conf : NULL;
}

static void expect(const dt_conf_t *conf, const char *key, const char *value, const char *origin)
{
    for (size_t i = 0; i < dt_conf_entry_count(conf); i++) {
        dt_conf_entry_t entry;
        dt_conf_entry(conf, i, &entry);
        if (strcmp(entry.option->name, key) != 0)
            continue;
        cr_assert_str_eq(entry.value, value);
        const char *tail = strncmp(entry.origin, root, strlen(root)) == 0
                               ? entry.origin + strlen(root)
                               : entry.origin;
        cr_assert_str_eq(tail, origin);
        return;
    }
    cr_assert_fail("no key %s", key);
}

Test(conf_sources, files_that_are_not_there_mean_the_defaults, .init = setup, .fini = cleanup)
{
    dt_conf_t *conf = load((dt_conf_sources_t){0});
    cr_assert(conf, "%s", error.text);
    expect(conf, "DeadBeats", "8", "default");
    dt_conf_free(conf);
}

Test(conf_sources, each_source_wins_over_the_ones_before, .init = setup, .fini = cleanup)
{
    char *environment[] = {(char[]){"DTORCH_HELLO_TIMEOUT=9s"}, (char[]){"DTORCH_NODES_MAX=7"},
                           (char[]){"DTORCH_UNHEARD_OF=1"}, NULL};
    dt_conf_flag_t flags[] = {{"NodesMax", "6", NULL}, {"NodesMax", "5", "-n"}};
    write_text("/usr/lib/dtorch/controllerd.conf",
               "[Controller]\nDeadBeats=10\nSuspectBeats=5\nRejoinGrace=10s\nHelloTimeout=1s\n");
    write_text("/etc/dtorch/controllerd.conf",
               "[Controller]\nSuspectBeats=6\nRejoinGrace=11s\nHelloTimeout=2s\n");
    write_text("/etc/dtorch/controllerd.conf.d/10-site.conf",
               "[Controller]\n\nRejoinGrace=12s\nHelloTimeout=3s\n");
    dt_conf_t *conf =
        load((dt_conf_sources_t){.environment = environment, .flags = flags, .flag_count = 2});
    cr_assert(conf, "%s", error.text);
    expect(conf, "DeadBeats", "10", "/usr/lib/dtorch/controllerd.conf:2");
    expect(conf, "SuspectBeats", "6", "/etc/dtorch/controllerd.conf:2");
    expect(conf, "RejoinGrace", "12s", "/etc/dtorch/controllerd.conf.d/10-site.conf:3");
    expect(conf, "HelloTimeout", "9s", "environment DTORCH_HELLO_TIMEOUT");
    expect(conf, "NodesMax", "5", "flag -n");
    expect(conf, "EventsMax", "10000", "default");
    dt_conf_free(conf);
}

Test(conf_sources, dropins_of_both_folders_come_in_the_order_of_their_names, .init = setup,
     .fini = cleanup)
{
    write_text("/usr/lib/dtorch/controllerd.conf.d/50-b.conf",
               "[Controller]\nDeadBeats=50\nSuspectBeats=20\n");
    write_text("/etc/dtorch/controllerd.conf.d/20-a.conf",
               "[Controller]\nDeadBeats=20\nSuspectBeats=21\nEventsMax=500\n");
    write_text("/usr/lib/dtorch/controllerd.conf.d/10-c.conf",
               "[Controller]\nEventsMax=400\nNodesMax=3\n");
    dt_conf_t *conf = load((dt_conf_sources_t){0});
    cr_assert(conf, "%s", error.text);
    expect(conf, "DeadBeats", "50", "/usr/lib/dtorch/controllerd.conf.d/50-b.conf:2");
    expect(conf, "EventsMax", "500", "/etc/dtorch/controllerd.conf.d/20-a.conf:4");
    expect(conf, "NodesMax", "3", "/usr/lib/dtorch/controllerd.conf.d/10-c.conf:3");
    dt_conf_free(conf);
}

Test(conf_sources, a_dropin_of_the_site_hides_the_vendors_of_the_same_name, .init = setup,
     .fini = cleanup)
{
    write_text("/usr/lib/dtorch/controllerd.conf.d/50.conf", "[Controller]\nDeadBeats=50\n");
    write_text("/etc/dtorch/controllerd.conf.d/50.conf", "[Controller]\nSuspectBeats=4\n");
    dt_conf_t *conf = load((dt_conf_sources_t){0});
    cr_assert(conf, "%s", error.text);
    expect(conf, "DeadBeats", "8", "default");
    dt_conf_free(conf);
}

Test(conf_sources, other_files_in_a_dropin_folder_are_ignored, .init = setup, .fini = cleanup)
{
    write_text("/etc/dtorch/controllerd.conf.d/50.conf.bak", "nonsense");
    write_text("/etc/dtorch/controllerd.conf.d/.50.conf", "nonsense");
    dt_conf_t *conf = load((dt_conf_sources_t){0});
    cr_assert(conf, "%s", error.text);
    dt_conf_free(conf);
}

Test(conf_sources, a_named_file_stands_in_place_of_the_systems, .init = setup, .fini = cleanup)
{
    char path[512];
    write_text("/etc/dtorch/controllerd.conf", "[Controller]\nSuspectBeats=6\n");
    write_text("/etc/dtorch/controllerd.conf.d/1.conf", "[Controller]\nSuspectBeats=7\n");
    write_text("/mine.conf", "[Controller]\nDeadBeats=9\n");
    (void)snprintf(path, sizeof path, "%s/mine.conf", root);
    dt_conf_t *conf = load((dt_conf_sources_t){.config_path = path});
    cr_assert(conf, "%s", error.text);
    expect(conf, "DeadBeats", "9", "/mine.conf:2");
    expect(conf, "SuspectBeats", "3", "default");
    dt_conf_free(conf);
    cr_assert(load((dt_conf_sources_t){.config_path = "/nonexistent/x.conf"}) == NULL);
    cr_assert_eq(error.code, DT_ERR_NOT_FOUND);
    cr_assert_str_eq(error.text, "/nonexistent/x.conf: No such file or directory");
    cr_assert(load((dt_conf_sources_t){.config_path = root}) == NULL);
    cr_assert(strstr(error.text, ": not a regular file"));
}

Test(conf_sources, a_fifo_does_not_hang_and_an_endless_file_ends, .init = setup, .fini = cleanup)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/fifo", root);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert(load((dt_conf_sources_t){.config_path = path}) == NULL);
    cr_assert_eq(error.code, DT_ERR_INVALID);
    cr_assert(load((dt_conf_sources_t){.config_path = "/dev/zero"}) == NULL);
    cr_assert_eq(error.code, DT_ERR_LIMIT);
}

Test(conf_sources, wrong_values_name_the_variable_or_the_flag, .init = setup, .fini = cleanup)
{
    char *environment[] = {(char[]){"DTORCH_DEAD_BEATS=2"}, NULL};
    dt_conf_flag_t flag = {"LogLevel", "loud", NULL};
    cr_assert(load((dt_conf_sources_t){.environment = environment}) == NULL);
    cr_assert_str_eq(error.text, "environment DTORCH_DEAD_BEATS: DeadBeats=2: not in 3..1000");
    cr_assert(load((dt_conf_sources_t){.flags = &flag, .flag_count = 1}) == NULL);
    cr_assert_str_eq(error.text, "flag --log-level: LogLevel=loud: not one of: err warning notice "
                                 "info debug");
}

Test(conf_sources, an_empty_variable_is_no_value, .init = setup, .fini = cleanup)
{
    char *environment[] = {(char[]){"DTORCH_DEAD_BEATS="}, NULL};
    dt_conf_t *conf = load((dt_conf_sources_t){.environment = environment});
    expect(conf, "DeadBeats", "8", "default");
    dt_conf_free(conf);
}

static dt_status_t refuse_all(const dt_conf_t *conf, dt_error_t *err)
{
    return dt_conf_fail(conf, "DeadBeats", err, "no");
}

Test(conf_sources, the_programs_own_check_is_part_of_a_load, .init = setup, .fini = cleanup)
{
    cr_assert(load((dt_conf_sources_t){.check = refuse_all}) == NULL);
    cr_assert_str_eq(error.text, "default: DeadBeats=8: no");
}

/* Load `before`, write `after`, and reload. */
static dt_status_t reload(const char *before, const char *after, dt_conf_t **ret_conf,
                          dt_strv_t *ret_changed)
{
    dt_conf_sources_t sources = {.root = root, .environment = no_environment};
    write_text("/etc/dtorch/controllerd.conf", before);
    dt_conf_t *conf = load(sources);
    cr_assert(conf, "%s", error.text);
    write_text("/etc/dtorch/controllerd.conf", after);
    dt_status_t status = dt_conf_reload(conf, &sources, ret_conf, ret_changed, &error);
    dt_conf_free(conf);
    return status;
}

Test(conf_sources, a_reload_names_what_changed, .init = setup, .fini = cleanup)
{
    dt_conf_t *conf = NULL;
    dt_strv_t changed = {0};
    cr_assert_eq(reload("[Controller]\nLogLevel=info\n",
                        "[Controller]\nDeadBeats=8\nLogLevel=debug\n", &conf, &changed),
                 DT_OK, "%s", error.text);
    cr_assert_eq(changed.count, 1);
    cr_assert_str_eq(changed.items[0], "LogLevel");
    cr_assert_str_eq(dt_conf_enum(conf, "LogLevel"), "debug");
    dt_strv_fini(&changed);
    dt_conf_free(conf);
}

Test(conf_sources, a_reload_with_a_key_that_needs_a_restart_changes_nothing, .init = setup,
     .fini = cleanup)
{
    dt_conf_t *conf = NULL;
    dt_strv_t changed = {0};
    cr_assert_eq(
        reload("", "[Controller]\nLogLevel=debug\nClusterName=x\nNodesMax=4\n", &conf, &changed),
        DT_ERR_DENIED);
    cr_assert_str_eq(error.text, "nothing was reloaded, as these keys need a restart: ClusterName, "
                                 "NodesMax");
    cr_assert(conf == NULL && changed.count == 0);
}

Test(conf_sources, a_reload_of_a_wrong_file_changes_nothing, .init = setup, .fini = cleanup)
{
    dt_conf_t *conf = NULL;
    dt_strv_t changed = {0};
    cr_assert_eq(reload("", "[Controller]\nLogLevel=debug\nX=1\n", &conf, &changed),
                 DT_ERR_INVALID);
    cr_assert(strstr(error.text, "controllerd.conf:3: unknown key \"X\""), "%s", error.text);
    cr_assert(conf == NULL && changed.count == 0);
}

Test(conf_sources, a_path_that_a_person_types_begins_in_the_current_folder, .init = setup,
     .fini = cleanup)
{
    char *environment[] = {(char[]){"DTORCH_STATE_DIRECTORY=var/x"}, NULL};
    dt_conf_flag_t flag = {"AdminSocket", "admin.sock", NULL};
    char here[4096], wanted[4200];
    cr_assert_not_null(getcwd(here, sizeof here));
    dt_conf_t *conf =
        load((dt_conf_sources_t){.environment = environment, .flags = &flag, .flag_count = 1});
    cr_assert(conf, "%s", error.text);
    (void)snprintf(wanted, sizeof wanted, "%s/var/x", here);
    expect(conf, "StateDirectory", wanted, "environment DTORCH_STATE_DIRECTORY");
    (void)snprintf(wanted, sizeof wanted, "%s/admin.sock", here);
    expect(conf, "AdminSocket", wanted, "flag --admin-socket");
    dt_conf_free(conf);
    write_text("/etc/dtorch/controllerd.conf", "[Controller]\nStateDirectory=var/x\n");
    cr_assert(load((dt_conf_sources_t){0}) == NULL, "a file does not know where it is read");
    cr_assert(strstr(error.text, "not an absolute path"), "%s", error.text);
}
