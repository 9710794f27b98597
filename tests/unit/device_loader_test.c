#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "device/loader.h"
#include "device/probe.h"
#include "lib/deviceprobe.h"
#include "lib/temptree.h"

TestSuite(loader, .timeout = 60);

#define SECOND INT64_C(1000000000)

/* Backends=: links to the test's shared objects under the names that backends must have. */
static void make_dir(dt_temptree_t *tree)
{
    static const char *const names[] = {"play", "abi", "small", "other"};
    char to[600], target[512];
    dt_temptree_init(tree);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *real;
        (void)snprintf(target, sizeof target, "%s/backend_%s.so", so_dir(), names[i]);
        real = realpath(target, NULL);
        cr_assert(real, "%s is not built", target);
        (void)snprintf(to, sizeof to, "dtorch-backend-%s.so", names[i]);
        dt_temptree_link(tree, to, real);
        free(real);
    }
    dt_temptree_write(tree, "dtorch-backend-text.so", "no library\n");
    dt_temptree_write(tree, "dtorch-backend-Bad_Name.so", "");
    dt_temptree_write(tree, "libother.so", "");
}

static dt_probe_t *make_probe(const dt_temptree_t *tree, const char *name, const char *spec,
                              int32_t timeout_ms)
{
    char file[64];
    dt_probe_t *probe = NULL;
    (void)snprintf(file, sizeof file, "dtorch-backend-%s.so", name);
    dt_probe_options_t options = {
        .path = dt_temptree_path(tree, file),
        .timeout_ms = timeout_ms,
        .backend = {sizeof options.backend, spec, "", "seed", "", ""},
    };
    cr_assert_eq(dt_probe_create(&options, &probe, NULL), DT_OK);
    return probe;
}

static dt_probe_answer_t answer;

/* Ask once in a fresh child. */
static dt_status_t ask_once(const dt_temptree_t *tree, const char *name, const char *spec,
                            int32_t timeout_ms, dt_error_t *err)
{
    dt_probe_t *probe = make_probe(tree, name, spec, timeout_ms);
    dt_status_t status = dt_probe_ask(probe, SECOND, &answer, err);
    dt_probe_free(probe);
    return status;
}

Test(loader, finds_backends_by_name_and_prefers_the_first_directory)
{
    static dt_loader_file_t files[8];
    dt_temptree_t tree, second;
    size_t count;
    dt_error_t err = {0};
    make_dir(&tree);
    dt_temptree_init(&second);
    dt_temptree_write(&second, "dtorch-backend-aaa.so", "");
    dt_temptree_write(&second, "dtorch-backend-play.so", "");
    const char *dirs[] = {"/nowhere", tree.root, second.root};
    cr_assert_eq(dt_loader_scan(dirs, 3, files, 8, &count, &err), DT_OK, "%s", err.text);
    cr_assert_eq(count, 6);
    cr_assert_str_eq(files[0].name, "abi");
    cr_assert_str_eq(files[4].name, "text");
    cr_assert_str_eq(files[5].name, "aaa");
    cr_assert_str_eq(files[2].path, dt_temptree_path(&tree, "dtorch-backend-play.so"));
    cr_assert_eq(dt_loader_scan(dirs, 3, files, 5, &count, &err), DT_ERR_LIMIT);
    dt_temptree_fini(&tree);
    dt_temptree_fini(&second);
}

Test(loader, copies_only_what_both_sides_know)
{
    struct {
        dt_backend_t table;
        void *from_the_future;
    } larger = {*dt_backend_ref(), (void *)0x1};
    dt_backend_t smaller = *dt_backend_ref(), got;
    larger.table.struct_size = sizeof larger;
    smaller.struct_size = DT_BACKEND_SIZE_MIN;
    cr_assert_eq(dt_loader_accept(&larger.table, "x.so", &got, NULL), DT_OK);
    cr_assert(got.refresh == dt_backend_ref()->refresh);
    cr_assert_eq(dt_loader_accept(&smaller, "x.so", &got, NULL), DT_OK);
    cr_assert(got.enumerate && !got.refresh && !got.close);
}

Test(loader, refuses_a_table_without_what_it_needs)
{
    dt_backend_t table = *dt_backend_ref(), got;
    dt_error_t err;
    table.enumerate = NULL;
    cr_assert_eq(dt_loader_accept(&table, "x.so", &got, &err), DT_ERR_INVALID);
    cr_assert(strstr(err.text, "x.so: the table has no enumerate"), "%s", err.text);
    table = *dt_backend_ref();
    table.name = "Two Words";
    cr_assert_eq(dt_loader_accept(&table, "x.so", &got, &err), DT_ERR_INVALID);
    table.name = NULL;
    cr_assert_eq(dt_loader_accept(&table, "x.so", &got, &err), DT_ERR_INVALID);
}

Test(loader, refuses_another_abi_and_names_file_and_both_sides)
{
    static const struct {
        const char *name, *says;
    } refused[] = {
        {"abi", "dtorch-backend-abi.so: built for backend ABI 8"},
        {"abi", "this program has ABI 1"},
        {"small", "dtorch-backend-small.so: built for backend ABI 1 with a table of 16 bytes"},
        {"other", "dtorch-backend-other.so: exports no dt_backend_get"},
        {"text", "dtorch-backend-text.so: cannot be loaded"},
        {"none", "dtorch-backend-none.so: cannot be loaded"},
    };
    dt_temptree_t tree;
    dt_error_t err;
    make_dir(&tree);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_assert_eq(ask_once(&tree, refused[i].name, "", 0, &err), DT_ERR_INVALID, "%s",
                     refused[i].name);
        cr_assert(strstr(err.text, refused[i].says), "%s", err.text);
    }
    dt_temptree_fini(&tree);
}

Test(loader, runs_a_backend_of_another_maker_in_a_child)
{
    dt_temptree_t tree;
    dt_probe_t *probe;
    dt_error_t err = {0};
    make_dir(&tree);
    probe = make_probe(&tree, "play", "noise", 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(dt_probe_ask(probe, SECOND, &answer, &err), DT_OK, "%s", err.text);
    cr_assert_eq(answer.count, 2);
    cr_assert_str_eq(answer.name, "play");
    cr_assert_eq(answer.table_size, DT_BACKEND_SIZE_MIN);
    cr_assert_str_eq(answer.devices[1].uuid, "PLAY-1");
    dt_probe_free(probe);
    dt_temptree_fini(&tree);
}

Test(loader, survives_a_backend_that_crashes_ends_hangs_or_lies)
{
    dt_temptree_t tree;
    dt_error_t err;
    make_dir(&tree);
    cr_assert_eq(ask_once(&tree, "play", "abort", 0, &err), DT_ERR_PEER);
    cr_assert(strstr(err.text, "killed by signal 6"), "%s", err.text);
    cr_assert_eq(ask_once(&tree, "play", "exit", 0, &err), DT_ERR_PEER);
    cr_assert(strstr(err.text, "status 3"), "%s", err.text);
    cr_assert_eq(ask_once(&tree, "play", "hang", 300, &err), DT_ERR_TIMEOUT);
    cr_assert_eq(ask_once(&tree, "play", "many", 0, &err), DT_ERR_DEVICE);
    cr_assert(strstr(err.text, "returned 1000 devices"), "%s", err.text);
    cr_assert_eq(ask_once(&tree, "play", "mute", 0, &err), DT_ERR_DEVICE);
    cr_assert_str_eq(err.text, "play: enumerate: device failed");
    cr_assert_eq(ask_once(&tree, "play", "absent", 0, &err), DT_ERR_NOT_FOUND);
    cr_assert_str_eq(err.text, "no such hardware");
    dt_temptree_fini(&tree);
}

Test(loader, starts_a_dead_child_again_after_a_back_off_that_grows)
{
    dt_temptree_t tree;
    dt_probe_t *probe;
    dt_error_t err;
    int64_t now = SECOND;
    make_dir(&tree);
    probe = make_probe(&tree, "play", "exit", 0);
    cr_assert_eq(dt_probe_ask(probe, now, &answer, &err), DT_ERR_PEER);
    /* Were it started again here, it would not be found: the error is repeated instead. */
    dt_temptree_remove(&tree, "dtorch-backend-play.so");
    cr_assert_eq(dt_probe_ask(probe, now + SECOND - 1, &answer, &err), DT_ERR_PEER);
    cr_assert(strstr(err.text, "status 3"), "%s", err.text);
    cr_assert_eq(dt_probe_ask(probe, now + SECOND, &answer, &err), DT_ERR_INVALID);
    cr_assert(strstr(err.text, "cannot be loaded"), "%s", err.text);
    dt_probe_free(probe);
    dt_temptree_fini(&tree);
}

Test(loader, ends_at_once_when_cancelled)
{
    dt_temptree_t tree;
    dt_probe_t *probe;
    dt_error_t err;
    make_dir(&tree);
    probe = make_probe(&tree, "play", "hang", 0);
    dt_probe_cancel(probe);
    cr_assert_eq(dt_probe_ask(probe, SECOND, &answer, &err), DT_ERR_STOPPED);
    dt_probe_free(probe);
    dt_temptree_fini(&tree);
}

Test(loader, says_when_the_child_cannot_be_started)
{
    dt_probe_options_t options = {.program = "/nowhere/program",
                                  .builtin = "ref",
                                  .backend = {sizeof options.backend, "", "", "seed", "", ""}};
    dt_probe_t *probe;
    dt_error_t err;
    cr_assert_eq(dt_probe_create(&options, &probe, NULL), DT_OK);
    cr_assert_eq(dt_probe_ask(probe, SECOND, &answer, &err), DT_ERR_AGAIN);
    cr_assert(strstr(err.text, "could not be started"), "%s", err.text);
    dt_probe_free(probe);
    options.program = "/bin/true";
    cr_assert_eq(dt_probe_create(&options, &probe, NULL), DT_OK);
    cr_assert_eq(dt_probe_ask(probe, SECOND, &answer, &err), DT_ERR_PEER, "no probe at all");
    dt_probe_free(probe);
}

Test(loader, prints_a_line_a_backend_for_check_backends)
{
    dt_temptree_t tree;
    dt_device_options_t options = DT_DEVICE_OPTIONS_INIT;
    dt_error_t err;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    make_dir(&tree);
    const char *dirs[] = {tree.root};
    options.nvml_path = "/nowhere/libnvidia-ml.so.1";
    options.backend_dirs = dirs;
    options.backend_dir_count = 1;
    cr_assert_eq(dt_device_check_backends(&options, out, &err), DT_ERR_INVALID);
    cr_assert_str_eq(err.text, "4 backends failed");
    (void)fclose(out);
    cr_assert(strstr(text, "ref          ok       ABI 1"), "%s", text);
    cr_assert(strstr(text, "nvml         absent   no NVIDIA driver"), "%s", text);
    cr_assert(strstr(text, "play         ok       ABI 1, table 40 bytes, 2 devices"), "%s", text);
    cr_assert(strstr(text, "abi          failed   "), "%s", text);
    free(text);
    options.backend_dir_count = 0;
    out = fopen("/dev/null", "we");
    cr_assert_eq(dt_device_check_backends(&options, out, &err), DT_OK);
    (void)fclose(out);
    dt_temptree_fini(&tree);
}
