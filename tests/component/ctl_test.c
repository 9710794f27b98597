/* dtorchctl as people and scripts use it: the real program against real daemons. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/temptree.h"
#include "lib/testcluster.h"
#include "lib/testproc.h"

#define LINE_WORD_MAX 24
#define PATIENCE_MS   DT_TESTCLUSTER_PATIENCE_MS
#define TABLE_COLUMNS 80

TestSuite(ctl, .timeout = 600);

/* ---- running lines ---- */

/* Run "dtorchctl LINE", words with one blank between; ^ stands for a blank within a word. */
static dt_testrun_t run_env(const char *const *env, const char *line)
{
    char *text = strdup(line), *rest, *words[LINE_WORD_MAX + 1] = {NULL};
    const char *args[LINE_WORD_MAX + 1] = {NULL};
    size_t count = 0;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        cr_assert_lt(count, LINE_WORD_MAX);
        for (char *c = word; *c; c++)
            *c = *c == '^' ? ' ' : *c;
        words[count] = word;
        args[count] = words[count];
        count++;
    }
    dt_testrun_t run = dt_testrun_program("dtorchctl", args, env);
    cr_assert(run.out && run.err, "no output of: %s", line);
    free(text);
    return run;
}

static dt_testrun_t run_at(const char *socket, const char *line)
{
    char variable[600];
    const char *env[] = {variable, "NO_COLOR=1", "TZ=UTC", NULL};
    (void)snprintf(variable, sizeof variable, "DTORCH_ADMIN_SOCKET=%s", socket);
    return run_env(env, line);
}

static dt_testrun_t run_on(dt_testcluster_t *tc, const char *line)
{
    return run_at(dt_testcluster_admin_socket(tc), line);
}

/* What a line must give: its exit code, and words of its output and of its messages (NULL: any,
 * "": none). */
struct probe {
    const char *line;
    int code;
    const char *out;
    const char *err;
};

static bool fits(const char *text, const char *wanted)
{
    return !wanted || (*wanted ? strstr(text, wanted) != NULL : *text == '\0');
}

/* A completion answers within 200 ms or says nothing, so that no shell feels stuck. */
static dt_testrun_t run_until_said(dt_testcluster_t *tc, const struct probe *probe)
{
    bool is_completion = strncmp(probe->line, "__complete", 10) == 0;
    int64_t until_ms = dt_test_now_ms() + PATIENCE_MS;
    for (;;) {
        dt_testrun_t run = run_on(tc, probe->line);
        if (!is_completion || *run.out || dt_test_now_ms() > until_ms)
            return run;
        dt_testrun_fini(&run);
    }
}

static void check_run(dt_testrun_t run, const struct probe *probe)
{
    cr_assert(run.code == probe->code && fits(run.out, probe->out) && fits(run.err, probe->err),
              "dtorchctl %s: exit code %d, wanted %d; out \"%s\", err \"%s\"\n%s%s", probe->line,
              run.code, probe->code, probe->out ? probe->out : "any",
              probe->err ? probe->err : "any", run.out, run.err);
    dt_testrun_fini(&run);
}

static void check_all(dt_testcluster_t *tc, const struct probe *probes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_run(run_until_said(tc, &probes[i]), &probes[i]);
}

static void check(dt_testcluster_t *tc, const char *line, int code, const char *out,
                  const char *err)
{
    check_run(run_on(tc, line), &(struct probe){line, code, out, err});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon left something behind");
}

/* ---- a JSON reader, strict enough to find what is broken ---- */

static const char *json_value(const char *at);

static const char *json_blank(const char *at)
{
    return at ? at + strspn(at, " \n") : NULL;
}

static const char *json_string(const char *at)
{
    if (!at || *at++ != '"')
        return NULL;
    while (*at != '"') {
        if ((unsigned char)*at < 0x20)
            return NULL; /* and the end of the text */
        if (*at == '\\' && !strchr("\"\\/bfnrtu", *++at))
            return NULL;
        at++;
    }
    return at + 1;
}

/* The inside of {} or []. */
static const char *json_many(const char *at, char end, bool has_keys)
{
    at = json_blank(at + 1);
    if (*at == end)
        return at + 1;
    for (;; at++) {
        at = json_blank(at);
        if (has_keys) {
            at = json_blank(json_string(at));
            if (!at || *at++ != ':')
                return NULL;
        }
        at = json_blank(json_value(at));
        if (!at || (*at != ',' && *at != end))
            return NULL;
        if (*at == end)
            return at + 1;
    }
}

static const char *json_value(const char *at)
{
    char *end;
    at = json_blank(at);
    if (*at == '{' || *at == '[')
        return json_many(at, *at == '{' ? '}' : ']', *at == '{');
    if (*at == '"')
        return json_string(at);
    if (strncmp(at, "true", 4) == 0)
        return at + 4;
    if (strncmp(at, "false", 5) == 0)
        return at + 5;
    (void)strtod(at, &end);
    return end > at ? end : NULL;
}

static bool is_json(const char *text)
{
    const char *end = json_blank(json_value(text));
    return end && *end == '\0';
}

/* Every record of a csv text has as many fields as the first. */
static bool is_csv(const char *text)
{
    size_t wanted = 0, fields = 1, records = 0;
    bool is_quoted = false;
    for (const char *c = text; *c; c++) {
        if (*c == '"')
            is_quoted = !is_quoted;
        else if (!is_quoted && *c == ',')
            fields++;
        else if (!is_quoted && c[0] == '\r' && c[1] == '\n') {
            if (records++ == 0)
                wanted = fields;
            if (fields != wanted)
                return false;
            fields = 1;
        }
    }
    return records > 0 && !is_quoted && text[strlen(text) - 1] == '\n';
}

/* ---- an empty cluster ---- */

Test(ctl, every_verb_works_on_an_empty_cluster)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0});
    static const struct probe probes[] = {
        {"", 0, "warnings  ", ""},
        {"cluster status", 0, "nodes     0\n", ""},
        {"cluster status -o wide", 0, "listens   ", ""},
        {"cluster check", 0, "DTORCH OK: 0 of 0 nodes ready, 0 devices | nodes=0;;;0", ""},
        {"cluster config show", 0, "StateDirectory", ""},
        {"cluster config show --filter=key=HeartbeatInterval -p value --no-legend", 0, NULL, ""},
        {"node", 0, "0 nodes listed.\n", ""},
        {"node reason", 0, "0 nodes listed.\n", ""},
        {"node list --no-legend", 0, "", ""},
        {"device list", 0, "0 devices listed.\n", ""},
        {"device topology", 0, "No device", ""},
        {"report usage", 0, "0 programs listed.\n", ""},
        {"report usage -o json", 0, "\"since_wall_ms\":", ""},
        {"events list", 0, "cluster-started", ""},
        {"events -n1 -o name", 0, "1\n", ""},
        {"token list", 0, "0 tokens listed.\n", ""},
        {"diag dump", 0, "BOUND", ""},
        {"version", 0, "protocol 1.", ""},
        {"completion bash", 0, "complete -F", ""},
        {"--version", 0, "dtorchctl ", ""},
        {"--help", 0, "usage: dtorchctl", ""},
        {"node drain --help", 0, "usage: dtorchctl [OPTIONS] node drain NODE...", ""},
        {"-v node", 0, NULL, "controller at "},
        {"node show n1", 67, "", "no node \"n1\""},
        {"node n1", 67, "", "no node \"n1\""},
        {"node drain n1 -m x", 67, "", "n1"},
        {"node drain n1 -m x --dry-run", 67, "", "n1"},
        {"node undrain n1", 67, "", "n1"},
        {"node label n1 a=b", 67, "", "n1"},
        {"node forget n1", 67, "", "n1"},
        {"device show n1:0", 67, "", "no node \"n1\""},
        {"token revoke abc", 67, "", "abc"},
        {"token create", 77, "", "dtorchctl setup controller"},
    };
    check_all(tc, probes, sizeof probes / sizeof probes[0]);
    stop(tc);
}

Test(ctl, the_status_of_a_quiet_cluster_is_five_lines)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0});
    dt_testrun_t run = run_on(tc, "");
    size_t lines = 0;
    for (const char *c = run.out; *c; c++)
        lines += *c == '\n';
    cr_assert_eq(lines, 5, "%s", run.out);
    dt_testrun_fini(&run);
    stop(tc);
}

/* ---- wrong lines ---- */

Test(ctl, wrong_words_are_told_with_the_nearest_right_one_and_give_64)
{
    static const struct probe probes[] = {
        {"nodes", 64, "", "did you mean \"node\"?"},
        {"node lsit", 64, "", "did you mean \"node list\"?"},
        {"node list --fliter=x=y", 64, "", "did you mean --filter?"},
        {"node list --filter=stat=ready", 64, "", "did you mean \"state\"?"},
        {"node list -p nmae", 64, "", "did you mean \"name\"?"},
        {"node list -o yaml", 64, "", "table wide json csv name"},
        {"events --since=soon", 64, "", "is no time"},
        {"node drain w0", 64, "", "-m TEXT"},
        {"node cordon w0", 64, "", "-m TEXT"},
        {"node show w[1-", 64, "", "brackets"},
        {"node label w0", 64, "", "needs"},
        {"node label w0 y=z x", 64, "", "is no label"},
        {"device show w0", 64, "", "NODE:INDEX"},
        {"token create --lifetime=5s", 64, "", "1min to 30d"},
        {"setup worker", 64, "", "--controller"},
        {"setup worker --controller=10.0.0.1", 64, "", "join token"},
        {"setup controller --name=a^b --dir=/nonexistent/x", 64, "", "is no name"},
    };
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++)
        check_run(run_at("/nonexistent/admin.sock", probes[i].line), &probes[i]);
}

Test(ctl, a_controller_that_does_not_answer_is_named_with_the_reason_and_gives_69)
{
    static const struct probe probes[] = {
        {"node list", 69, "", "tried     /nonexistent/admin.sock: no such socket"},
        {"-H 127.0.0.1:1 node list", 69, "", "tried     127.0.0.1:1: "},
        {"-H 127.0.0.1:1,/nonexistent/b node list", 69, "", "tried     /nonexistent/b: "},
        {"-H 127.0.0.1:1", 69, "", "next      "},
        {"version", 69, "dtorchctl ", "no controller answers"},
        {"cluster check", 2, "DTORCH CRITICAL: ", NULL},
        {"__complete node", 0, "", ""},
        {"__complete device", 0, "", ""},
    };
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++)
        check_run(run_at("/nonexistent/admin.sock", probes[i].line), &probes[i]);
}

Test(ctl, a_wrong_client_conf_gives_78_with_its_line)
{
    dt_temptree_t tree;
    char line[600];
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "client.conf", "[Client]\nAdress=ctl1\n");
    (void)snprintf(line, sizeof line, "--config=%s node", dt_temptree_path(&tree, "client.conf"));
    check_run(run_at("/x", line), &(struct probe){line, 78, "", "client.conf:2: "});
    check_run(run_at("/x", line), &(struct probe){line, 78, "", "\"Address\""});
    (void)snprintf(line, sizeof line, "--config=%s node", dt_temptree_path(&tree, "none"));
    check_run(run_at("/x", line), &(struct probe){line, 78, "", "none: "});
    dt_temptree_fini(&tree);
}

/* ---- three nodes ---- */

Test(ctl, every_list_is_right_in_every_format)
{
    static const char *const lists[] = {
        "cluster status",  "cluster config show", "node list",        "node show w0",
        "node reason",     "device list",         "device show w1:0", "events",
        "device topology", "token list",          "diag dump",        "version"};
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 3});
    check(tc, "node cordon w1 -m \"quotes\",^commas", 0, NULL, "");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char line[100];
        (void)snprintf(line, sizeof line, "%s -o json", lists[i]);
        dt_testrun_t run = run_on(tc, line);
        cr_assert(run.code == 0 && is_json(run.out), "%s: %d\n%s%s", line, run.code, run.out,
                  run.err);
        cr_assert_eq(strncmp(run.out, "{\"schema\":\"dtorch/v1\",\"kind\":\"", 29), 0, "%s",
                     run.out);
        dt_testrun_fini(&run);
        (void)snprintf(line, sizeof line, "%s -o csv", lists[i]);
        run = run_on(tc, line);
        cr_assert(run.code == 0 && is_csv(run.out), "%s: %d\n%s%s", line, run.code, run.out,
                  run.err);
        cr_assert_null(strchr(run.out, '\033'), "%s", run.out);
        dt_testrun_fini(&run);
        (void)snprintf(line, sizeof line, "%s -o name", lists[i]);
        check(tc, line, 0, NULL, "");
        (void)snprintf(line, sizeof line, "%s -o wide --utc --bytes", lists[i]);
        run = run_on(tc, line);
        cr_assert(run.code == 0 && !strchr(run.out, '\033'), "%s\n%s", line, run.out);
        dt_testrun_fini(&run);
    }
    stop(tc);
}

Test(ctl, lists_can_be_filtered_sorted_cut_and_folded)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 3});
    static const struct probe probes[] = {
        {"node list", 0, "w[0-2]  ready", ""},
        {"node list", 0, "3 nodes listed.\n", ""},
        {"node list -o name", 0, "w0\nw1\nw2\n", ""},
        {"node list -o name --sort=-name", 0, "w2\nw1\nw0\n", ""},
        {"node list -o name -n 2", 0, "w0\nw1\n", ""},
        {"node list w[1-2] -o name", 0, "w1\nw2\n", ""},
        {"node list --filter=name=w1", 0, "1 of 3 nodes listed.\n", ""},
        {"node list --filter=state=ready^devices>=3 -o name", 0, "", ""},
        {"node list --filter=health=ok -p name,devices --no-legend", 0, "w1  2\n", ""},
        {"device list --filter=node=w2 -o name", 0, "w2:0\nw2:1\n", ""},
        {"device list w1 -o name", 0, "w1:0\nw1:1\n", ""},
        {"device list --filter=kind=sim -o name", 0, "w0:0\n", ""},
        {"node show w0 w9 -o name", 2, "w0\n", "no node \"w9\""},
        {"node show w0,w9 -p name", 2, "w0", "did you mean"},
        {"device show w0:0 w0:7", 2, "device    w0:0\n", "no device \"w0:7\""},
        {"device show w0:7", 67, "", "no device"},
        {"device topology w0", 0, "NUMA", ""},
        {"node list -o json -p name", 0, "{\"name\":\"w1\"}", ""},
        {"events --filter=event=node-joined -o csv -p node,name", 0, "w2,node-joined\r\n", ""},
        {"events w1 --since=10min --filter=severity>=notice", 0, "w1", ""},
        {"__complete node", 0, "w0\nw1\nw2\n", ""},
        {"__complete device", 0, "w2:1\n", ""},
        {"cluster check", 0, "3 of 3 nodes ready, 6 devices", ""},
    };
    check_all(tc, probes, sizeof probes / sizeof probes[0]);
    stop(tc);
}

Test(ctl, a_drain_is_planned_done_seen_and_taken_back)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 3});
    static const struct probe probes[] = {
        {"node drain w[0-1] -m fan^2 --dry-run", 3, "w1  would be ", ""},
        {"node list --filter=state=ready -o name", 0, "w0\nw1\nw2\n", ""},
        {"node drain w[0-1] -m fan^2 --wait --timeout=20s", 0, "w0  drain", ""},
        {"node list --filter=admin=drained -o name", 0, "w0\nw1\n", ""},
        {"node drain w0 -m fan^2 --dry-run", 0, "is already drained", ""},
        {"node reason", 0, "fan 2", ""},
        {"node show w0", 0, "admin     drained since ", ""},
        {"node list", 0, "fan 2 (", ""},
        {"node drain w0,nope -m x", 67, "", "nope"},
        {"node list --filter=state=ready -o name", 0, "w2\n", ""},
        {"node undrain w[0-1] -o json", 0, "\"admin\":\"enabled\"", ""},
        {"node reason", 0, "0 nodes listed.\n", ""},
        {"node cordon w2 -m \033]0;evil\a", 65, "", "control characters"},
        {"node cordon w2 -m look", 0, "w2  cordoned\n", ""},
        {"node uncordon w2 -q", 0, "", ""},
        {"node label w[0-2] zone=b gen=4", 0, "zone=b", ""},
        {"node label w0 gen-", 0, "w0  zone=b\n", ""},
        {"node label w0 gen- --dry-run", 0, "w0  is already", ""},
        {"node list --filter=labels.gen=4 -o name", 0, "w1\nw2\n", ""},
        {"node forget w0 -y", 65, "", "only a dead or stopped node"},
    };
    check_all(tc, probes, sizeof probes / sizeof probes[0]);
    stop(tc);
}

Test(ctl, a_request_id_makes_a_retry_change_nothing)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    check(tc, "node cordon w0 -m x --request-id=r1", 0, "cordoned", "");
    check(tc, "node uncordon w0", 0, "ready", "");
    check(tc, "node cordon w0 -m x --request-id=r1", 0, NULL, NULL);
    check(tc, "node list --filter=admin=enabled -o name", 0, "w0\n", "");
    stop(tc);
}

Test(ctl, a_node_that_is_lost_is_seen_in_every_place)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2, .is_strict = true});
    dt_testcluster_kill(tc, 1, SIGSTOP);
    /* By its event: who is late to look finds it dead already. */
    cr_assert(dt_testcluster_wait_event(tc, "node-suspect", 1, 0, PATIENCE_MS, NULL));
    check(tc, "node list", 0, NULL, "");
    dt_testcluster_kill(tc, 1, SIGKILL);
    cr_assert(dt_testcluster_wait_health(tc, 1, DTORCH__V1__NODE_HEALTH__NODE_DEAD, PATIENCE_MS));
    static const struct probe probes[] = {
        {"node list --filter=state=dead -o name", 0, "w1\n", ""},
        {"node show w1", 0, "health    dead since ", ""},
        {"", 0, "1 dead", ""},
        {"cluster status", 0, "w1", ""},
        {"device list w1 --filter=state=unknown -o name", 0, "w1:0\nw1:1\n", ""},
        {"device show w1:0", 0, "state     unknown: the node is dead\n", ""},
        {"cluster check", 1, "DTORCH WARNING: ", ""},
        {"events w1 --filter=severity>=warning -o csv", 0, "node-dead", ""},
        {"node forget w1 --dry-run", 3, "would be forgotten", ""},
        {"node forget w1", 0, "w1  forgotten\n", ""},
        {"node list -o name", 0, "w0\n", ""},
    };
    check_all(tc, probes, sizeof probes / sizeof probes[0]);
    stop(tc);
}

/* ---- a terminal ---- */

/* Run on a terminal of 80 columns; gives what it showed, free(). */
static char *run_terminal(const char *socket, const char *const *args, bool has_colour)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    const struct winsize size = {.ws_row = 25, .ws_col = TABLE_COLUMNS};
    char name[64], path[600], *shown = NULL;
    size_t shown_size;
    const char *argv[LINE_WORD_MAX + 2] = {"dtorchctl"};
    dt_testproc_t proc = {.pidfd = -1, .notify_fd = -1};
    dt_testproc_env_t env;
    FILE *copy = open_memstream(&shown, &shown_size);
    cr_assert(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 && copy);
    cr_assert(ptsname_r(master, name, sizeof name) == 0 && ioctl(master, TIOCSWINSZ, &size) == 0);
    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    dt_testproc_env_init(&env, NULL);
    dt_testproc_env_add(&env, "DTORCH_ADMIN_SOCKET=%s", socket);
    dt_testproc_env_add(&env, "TERM=xterm");
    dt_testproc_env_add(&env, "%s=1", has_colour ? "UNUSED" : "NO_COLOR");
    (void)snprintf(path, sizeof path, "%s/dtorchctl", getenv("DT_TEST_BIN"));
    dt_testproc_spawn(&proc, path, argv, &env, name, NULL, NULL);
    for (bool is_over = false; !is_over;) {
        char buf[4096];
        struct pollfd fd = {.fd = master, .events = POLLIN};
        is_over = dt_testproc_wait_exit(&proc, 0);
        while (poll(&fd, 1, 20) > 0 && (fd.revents & POLLIN)) {
            ssize_t len = read(master, buf, sizeof buf);
            if (len > 0)
                (void)fwrite(buf, 1, (size_t)len, copy);
            else
                break;
        }
    }
    dt_testproc_close(&proc);
    dt_testproc_env_fini(&env);
    (void)close(master);
    (void)fclose(copy);
    return shown;
}

/* Columns of a line: characters, without colours. */
static size_t columns_of(const char *line, size_t len)
{
    size_t columns = 0;
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\033')
            i += strcspn(line + i, "m");
        else if ((line[i] & 0xc0) != 0x80 && line[i] != '\r')
            columns++;
    }
    return columns;
}

Test(ctl, every_table_fits_a_terminal_of_80_columns)
{
    static const char *const lists[][4] = {
        {"cluster", "status"},      {"cluster", "config", "show"},
        {"node", "list"},           {"node", "show", "w0"},
        {"node", "reason"},         {"device", "list"},
        {"device", "show", "w0:0"}, {"device", "topology"},
        {"events", "list"},         {"token", "list"},
        {"diag", "dump"},           {"version"},
        {"report", "usage"}};
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 3});
    check(tc, "node cordon w1 -m a^long^reason^that^fills^a^line^of^eighty^columns^all^by^itself",
          0, NULL, "");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char *shown = run_terminal(dt_testcluster_admin_socket(tc), lists[i], true);
        cr_assert_gt(strlen(shown), 0, "%s %s", lists[i][0], lists[i][1]);
        for (const char *line = shown; *line != '\0';) {
            size_t len = strcspn(line, "\n");
            cr_assert_leq(columns_of(line, len), TABLE_COLUMNS, "%s %s: %.*s", lists[i][0],
                          lists[i][1], (int)len, line);
            line += len + (line[len] == '\n');
        }
        free(shown);
    }
    stop(tc);
}

Test(ctl, colour_is_for_terminals_and_NO_COLOR_is_respected)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    const char *socket = dt_testcluster_admin_socket(tc);
    static const char *const list[] = {"node", "list", NULL};
    static const char *const always[] = {"node", "list", "--color=always", NULL};
    char *shown = run_terminal(socket, list, true);
    cr_assert_not_null(strstr(shown, "\033[32mready"), "%s", shown);
    free(shown);
    shown = run_terminal(socket, list, false);
    cr_assert_null(strchr(shown, '\033'), "%s", shown);
    free(shown);
    shown = run_terminal(socket, always, false);
    cr_assert_not_null(strchr(shown, '\033'), "%s", shown);
    free(shown);
    check(tc, "node list --color=never", 0, "ready", "");
    stop(tc);
}

/* ---- what goes on ---- */

struct background {
    dt_testproc_t proc;
    dt_temptree_t tree;
};

static void background_start(struct background *bg, dt_testcluster_t *tc, const char *const *args)
{
    const char *argv[LINE_WORD_MAX + 2] = {"dtorchctl"};
    char path[600];
    dt_testproc_env_t env;
    bg->proc = (dt_testproc_t){.pidfd = -1, .notify_fd = -1};
    dt_temptree_init(&bg->tree);
    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    dt_testproc_env_init(&env, NULL);
    dt_testproc_env_add(&env, "DTORCH_ADMIN_SOCKET=%s", dt_testcluster_admin_socket(tc));
    (void)snprintf(path, sizeof path, "%s/dtorchctl", getenv("DT_TEST_BIN"));
    dt_testproc_spawn(&bg->proc, path, argv, &env, dt_temptree_path(&bg->tree, "out"),
                      dt_temptree_path(&bg->tree, "err"), NULL);
    dt_testproc_env_fini(&env);
}

/* Wait until the output holds `text` `times` times. */
static bool background_said(struct background *bg, const char *file, const char *text, int times)
{
    int64_t deadline_ms = dt_test_now_ms() + PATIENCE_MS;
    while (dt_test_now_ms() < deadline_ms) {
        char *out = dt_test_read_file(dt_temptree_path(&bg->tree, file));
        int found = 0;
        for (const char *at = out; at && (at = strstr(at, text)); at++)
            found++;
        free(out);
        if (found >= times)
            return true;
        dt_test_pause_ms(10);
    }
    return false;
}

static void background_stop(struct background *bg)
{
    dt_testproc_close(&bg->proc);
    dt_temptree_fini(&bg->tree);
}

Test(ctl, events_are_followed_one_a_line_and_over_a_restart_of_the_controller)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    static const char *const args[] = {"events", "--follow", "-o", "json", NULL};
    struct background bg;
    background_start(&bg, tc, args);
    cr_assert(background_said(&bg, "out", "\"name\":\"node-joined\"", 1));
    check(tc, "node cordon w0 -m followed", 0, NULL, "");
    cr_assert(background_said(&bg, "out", "\"name\":\"node-cordon\"", 1));
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    int code;
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE_MS, &code));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    cr_assert(background_said(&bg, "out", "\"name\":\"cluster-started\"", 2), "%s",
              dt_testcluster_logs(tc));
    char *out = dt_test_read_file(dt_temptree_path(&bg.tree, "out"));
    for (char *line = out, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        cr_assert(is_json(line), "%s", line);
    }
    free(out);
    background_stop(&bg);
    stop(tc);
}

Test(ctl, watch_draws_again_and_again)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0});
    static const char *const args[] = {"node", "list", "-w0.05", NULL};
    struct background bg;
    background_start(&bg, tc, args);
    cr_assert(background_said(&bg, "out", "0 nodes listed.", 3));
    background_stop(&bg);
    stop(tc);
}

/* ---- completion ---- */

static void check_completion(dt_testcluster_t *tc, const char *script, const char *words,
                             const char *wanted)
{
    char command[2000], socket[600], path[600];
    const char *env[] = {socket, path, NULL};
    (void)snprintf(socket, sizeof socket, "DTORCH_ADMIN_SOCKET=%s",
                   dt_testcluster_admin_socket(tc));
    (void)snprintf(path, sizeof path, "PATH=%s:/usr/bin:/bin", getenv("DT_TEST_BIN"));
    (void)snprintf(command, sizeof command,
                   "compopt() { :; }; source %s; COMP_WORDS=(%s); "
                   "COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _dtorchctl; echo \" ${COMPREPLY[*]} \"",
                   script, words);
    const char *args[] = {"--norc", "-c", command, NULL};
    dt_testrun_t run = dt_testrun_program("/bin/bash", args, env);
    int64_t until_ms = dt_test_now_ms() + PATIENCE_MS;
    while (!strstr(run.out, wanted) && dt_test_now_ms() < until_ms) { /* it says nothing if late */
        dt_testrun_fini(&run);
        run = dt_testrun_program("/bin/bash", args, env);
    }
    cr_assert(run.code == 0 && strstr(run.out, wanted) && *run.err == '\0', "%s gives %s%s", words,
              run.out, run.err);
    dt_testrun_fini(&run);
}

Test(ctl, bash_completes_nouns_verbs_options_and_ids)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2});
    dt_temptree_t tree;
    dt_temptree_init(&tree);
    dt_testrun_t run = run_on(tc, "completion bash");
    dt_temptree_write(&tree, "completion", run.out);
    dt_testrun_fini(&run);
    const char *script = dt_temptree_path(&tree, "completion");
    const char *args[] = {"-n", script, NULL};
    run = dt_testrun_program("/bin/bash", args, NULL);
    cr_assert(run.code == 0 && *run.err == '\0', "%s", run.err);
    dt_testrun_fini(&run);
    check_completion(tc, script, "dtorchctl no", " node ");
    check_completion(tc, script, "dtorchctl node dr", " drain ");
    check_completion(tc, script, "dtorchctl -o json node dr", " drain ");
    check_completion(tc, script, "dtorchctl node drain ''", " w0 w1 ");
    check_completion(tc, script, "dtorchctl device show w1", " w1:0 w1:1 ");
    check_completion(tc, script, "dtorchctl node drain --re", "--reason=");
    check_completion(tc, script, "dtorchctl node list -o j", " json ");
    check_completion(tc, script, "dtorchctl cluster config ''", " show ");
    dt_temptree_fini(&tree);
    stop(tc);
}

/* ---- a thousand nodes ---- */

/* Play so many nodes with eight devices each, load00000 and on, until the process is killed. */
static pid_t play_nodes(dt_testcluster_t *tc, const char *count)
{
    char socket[512], pid[16], forever[] = "100000", number[16];
    char *args[] = {getenv("DT_TEST_LOAD"), socket, number, forever, pid, NULL};
    struct rlimit limit;
    pid_t player;
    cr_assert(args[0] != NULL, "DT_TEST_LOAD is not set");
    (void)snprintf(socket, sizeof socket, "%s", dt_testcluster_controller_socket(tc));
    (void)snprintf(number, sizeof number, "%s", count);
    (void)snprintf(pid, sizeof pid, "%d", (int)dt_testcluster_pid(tc, DT_TESTCLUSTER_CONTROLLER));
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(posix_spawn(&player, args[0], NULL, NULL, args, environ), 0);
    return player;
}

static bool all_have_devices(dt_testcluster_t *tc, void *arg)
{
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    bool holds = status && status->nodes_ready == 1000 && status->devices_ok == 8000;
    (void)arg;
    if (status)
        dtorch__v1__cluster_status__free_unpacked(status, NULL);
    return holds;
}

Test(ctl, every_verb_works_on_a_thousand_nodes)
{
    static const struct probe probes[] = {
        {"cluster status", 0, "nodes     1000  1000 ready\ndevices   8000  8000 ok\n", ""},
        {"cluster check", 0, "1000 of 1000 nodes ready, 8000 devices", ""},
        {"cluster config show", 0, "NodesMax", ""},
        {"node list", 0, "load[00000-00999]  ready", ""},
        {"node list", 0, "1000 nodes listed.\n", ""},
        {"node list -o name -n 2", 0, "load00000\nload00001\n", NULL},
        {"node show load00999", 0, "rack", ""},
        {"node show load01000", 67, "", "no node \"load01000\""},
        {"node cordon load[00100-00199] -m fans", 0, NULL, NULL},
        {"node list --filter=state=cordoned", 0, "100 of 1000 nodes listed.\n", ""},
        {"node reason -o name", 0, "load00150\n", ""},
        {"node uncordon load[00100-00199]", 0, NULL, NULL},
        {"node label load[00000-00009] zone=a", 0, NULL, NULL},
        {"node drain load00005 -m test", 0, NULL, NULL},
        {"node undrain load00005", 0, NULL, NULL},
        {"node forget load00005", 65, "", "load00005"},
        {"device list -n 3", 0, "load00000:2", ""},
        {"device list --filter=load>=99 -o name", 0, "load", ""},
        {"device list load00500", 0, "8 devices listed.\n", ""},
        {"device show load00500:7", 0, "load00500:7", ""},
        {"device topology", 0, "load[00000-00999]", ""},
        {"job list", 0, "0 jobs listed.\n", ""},
        {"tensor list", 0, "0 tensors listed.\n", ""},
        {"top -n 3", 0, "0 jobs  8000 devices", ""},
        {"top -o json", 0, "\"items\":[", ""},
        {"report usage", 0, "0 programs listed.\n", ""},
        {"events list -n 3", 0, "3 ", ""},
        {"events load00150", 0, "node-cordon", ""},
        {"token list", 0, "0 tokens listed.\n", ""},
        {"key list", 0, "0 keys listed.\n", ""},
        {"diag dump -n 3", 0, "loop", ""},
        {"version", 0, "protocol 1.", ""},
    };
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .controller_conf = "HeartbeatInterval=2s\nEventsMax=20000\nLogLevel=notice"});
    pid_t player = play_nodes(tc, "1000");
    bool is_there = dt_testcluster_wait(tc, all_have_devices, NULL, 5 * PATIENCE_MS);
    if (is_there)
        check_all(tc, probes, sizeof probes / sizeof probes[0]);
    (void)kill(player, SIGKILL);
    (void)waitpid(player, NULL, 0);
    cr_assert(is_there, "not all nodes came");
    stop(tc);
}
