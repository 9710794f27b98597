/* dtorchctl setup: all files of a new machine in one step.
 * Everything is made in memory and checked first; then either all files are written, or those that
 * were written are removed again. A file that says something is not overwritten without --force;
 * one with comments only (the packaged example) says nothing. The cluster's CA is never made anew
 * while its files stand: all nodes would lose their certificates. */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl.h"
#include "libtorch.h"
#include "pki/pki.h"
#include "text.h"

#define SETUP_DIR       "/etc/dtorch"
#define SETUP_GROUP     "dtorch" /* the daemons' */
#define SETUP_FILE_MAX  8
#define SETUP_YEAR_MS   (INT64_C(365) * 24 * 3600 * 1000)
#define SETUP_FETCH_MS  3000
#define SETUP_DATA_PORT "7703"
#define SETUP_NAMES_MAX 4096 /* bytes of a certificate's names */
#define SETUP_TOKEN_MAX 1024 /* bytes read of a token file */

enum kind { KIND_CONFIG, KIND_CERTIFICATE, KIND_DAEMON_KEY, KIND_ADMIN_KEY };

struct file {
    const char *path;
    const char *text;
    enum kind kind;
    bool is_kept; /* it stands already and is right */
};

struct setup {
    dt_ctl_t *ctl;
    const char *dir; /* absolute */
    bool may_overwrite;
    struct file files[SETUP_FILE_MAX];
    size_t count;
};

static const char *path_in(struct setup *setup, const char *name)
{
    return dt_ctl_print(&setup->ctl->pool, "%s/%s", setup->dir, name);
}

static void add_file(struct setup *setup, const char *name, const char *text, enum kind kind)
{
    dt_check(setup->count < SETUP_FILE_MAX);
    setup->files[setup->count++] =
        (struct file){.path = path_in(setup, name),
                      .text = dt_ctl_copy(&setup->ctl->pool, text, strlen(text)),
                      .kind = kind};
}

static int fail_errno(dt_ctl_t *ctl, const char *path, int number)
{
    dt_ctl_exit_t code = number == EACCES || number == EPERM || number == EROFS
                             ? DT_CTL_EXIT_DENIED
                             : DT_CTL_EXIT_FAILED;
    return dt_ctl_fail(ctl, code, "%s: %s", path, strerror(number));
}

/* ---- before writing ---- */

/* Work out the absolute folder. It need not exist, its parent must. */
static int set_dir(struct setup *setup)
{
    dt_ctl_t *ctl = setup->ctl;
    const char *wanted = dt_ctl_option(ctl, DT_CTL_OPT_DIR);
    char cwd[PATH_MAX];
    if (!wanted)
        wanted = SETUP_DIR;
    if (*wanted == '/')
        setup->dir = wanted;
    else if (getcwd(cwd, sizeof cwd))
        setup->dir = dt_ctl_print(&ctl->pool, "%s/%s", cwd, wanted);
    else
        return fail_errno(ctl, wanted, errno);
    if (setup->dir[strcspn(setup->dir, " \t\n")] != '\0')
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--dir: no blanks in the path of a setup");
    return DT_CTL_EXIT_OK;
}

/* Whether a configuration file says anything. One that cannot be read may. */
static bool says_something(const char *path)
{
    char line[DT_CONF_LINE_MAX];
    FILE *in = fopen(path, "re");
    bool found = !in;
    while (in && !found && fgets(line, sizeof line, in)) {
        const char *text = line + strspn(line, " \t\r\n");
        found = *text != '\0' && *text != '#' && *text != ';' && *text != '[';
    }
    if (in)
        (void)fclose(in);
    return found;
}

static int refuse_existing(struct setup *setup)
{
    dt_ctl_t *ctl = setup->ctl;
    const char *found = "";
    struct stat status;
    for (size_t i = 0; i < setup->count; i++) {
        const struct file *file = &setup->files[i];
        if (file->is_kept || lstat(file->path, &status) != 0 ||
            (file->kind == KIND_CONFIG && !says_something(file->path)))
            continue;
        found = dt_ctl_print(&ctl->pool, "%s\n  exists    %s", found, file->path);
    }
    if (*found == '\0' || setup->may_overwrite || dt_ctl_has(ctl, DT_CTL_OPT_FORCE))
        return DT_CTL_EXIT_OK;
    return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED,
                       "nothing was written%s\n  next      --force overwrites%s", found,
                       setup->count > 2 ? " all but the cluster's CA" : "");
}

/* Check a configuration with the parser of the daemon that will read it. */
static int check_config(dt_ctl_t *ctl, const dt_conf_table_t *table, const char *text)
{
    dt_conf_t *conf = NULL;
    dt_error_t error;
    dt_status_t status = dt_conf_parse(table, table->file, text, strlen(text), &conf, &error);
    dt_conf_free(conf);
    return status == DT_OK ? DT_CTL_EXIT_OK : dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
}

/* ---- writing ---- */

static int make_dirs(struct setup *setup)
{
    dt_check(setup->dir);
    const char *paths[] = {setup->dir, path_in(setup, "pki")};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (mkdir(paths[i], 0755) != 0 && errno != EEXIST)
            return fail_errno(setup->ctl, paths[i], errno);
    return DT_CTL_EXIT_OK;
}

/* The daemon's group may read its keys, when root sets the machine up. */
static void give_to_daemon(const char *path)
{
    const struct group *group = geteuid() == 0 ? getgrnam(SETUP_GROUP) : NULL;
    if (group && chown(path, 0, group->gr_gid) == 0)
        (void)chmod(path, 0640);
}

static int write_files(struct setup *setup)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_error_t error;
    struct stat status;
    bool is_new[SETUP_FILE_MAX] = {false};
    int code = make_dirs(setup);
    size_t i = 0;
    for (; i < setup->count && code == DT_CTL_EXIT_OK; i++) {
        const struct file *file = &setup->files[i];
        if (file->is_kept)
            continue;
        bool is_secret = file->kind == KIND_DAEMON_KEY || file->kind == KIND_ADMIN_KEY;
        is_new[i] = lstat(file->path, &status) != 0;
        if (dt_pki_write_file(file->path, file->text, strlen(file->text), is_secret ? 0600 : 0644,
                              &error) != DT_OK) {
            is_new[i] = false;
            code = dt_ctl_fail_error(ctl, &error);
        } else if (file->kind == KIND_DAEMON_KEY) {
            give_to_daemon(file->path);
        }
    }
    for (size_t j = 0; j < i && code != DT_CTL_EXIT_OK; j++)
        if (is_new[j])
            (void)unlink(setup->files[j].path);
    return code;
}

/* Refuse, or say what would be written, or write. */
static int finish(struct setup *setup)
{
    dt_ctl_t *ctl = setup->ctl;
    int code = refuse_existing(setup);
    if (code != DT_CTL_EXIT_OK)
        return code;
    bool is_dry = dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN);
    if (!is_dry)
        code = write_files(setup);
    for (size_t i = 0; i < setup->count && code == DT_CTL_EXIT_OK; i++)
        if (!dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
            (void)fprintf(ctl->output.screen.file, "%-9s %s\n",
                          setup->files[i].is_kept ? "kept"
                          : is_dry                ? "would be"
                                                  : "written",
                          setup->files[i].path);
    return code == DT_CTL_EXIT_OK && is_dry ? DT_CTL_EXIT_WOULD : code;
}

/* ---- controller ---- */

/* Names and addresses for the server's certificate: --address, the host's name, loopback. */
static size_t server_names(dt_ctl_t *ctl, const char *given, const char **names, size_t max)
{
    size_t count = 0;
    char host[HOST_NAME_MAX + 1] = "localhost";
    (void)gethostname(host, sizeof host - 1);
    for (const char *at = given ? given : ""; *(at += strspn(at, ", ")) != '\0' && count < max;) {
        size_t len = strcspn(at, ", ");
        names[count++] = dt_ctl_copy(&ctl->pool, at, len);
        at += len;
    }
    const char *const always[] = {dt_ctl_copy(&ctl->pool, host, strlen(host)), "localhost",
                                  "127.0.0.1", "::1"};
    for (size_t i = 0; i < sizeof always / sizeof always[0] && count < max; i++) {
        size_t j = 0;
        while (j < count && strcmp(names[j], always[i]) != 0)
            j++;
        if (j == count)
            names[count++] = always[i];
    }
    return count;
}

/* Take the CA that stands in the folder, or make one. Gives the exit code. */
static int get_ca(struct setup *setup, const char *name, dt_pki_pair_t *ca)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_error_t error;
    const char *certificate = path_in(setup, "pki/ca.pem"), *key = path_in(setup, "pki/ca.key");
    bool stands = access(certificate, F_OK) == 0 && access(key, F_OK) == 0;
    dt_status_t status = DT_OK;
    if (stands) {
        status = dt_pki_read_file(certificate, &ca->certificate, &error);
        if (status == DT_OK)
            status = dt_pki_read_file(key, &ca->key, &error);
        if (status == DT_OK)
            status =
                dt_pki_check(ca->certificate, ca->key, NULL, ctl->output.style.now_wall_ms, &error);
    } else {
        status = dt_pki_make_ca(name, 0, ca, &error);
    }
    if (status != DT_OK)
        return dt_ctl_fail_error(ctl, &error);
    add_file(setup, "pki/ca.pem", ca->certificate, KIND_CERTIFICATE);
    add_file(setup, "pki/ca.key", ca->key, KIND_DAEMON_KEY);
    setup->files[setup->count - 2].is_kept = setup->files[setup->count - 1].is_kept = stands;
    return DT_CTL_EXIT_OK;
}

/* Make the certificates of the server and of an administrator. */
static int add_certificates(struct setup *setup, const dt_pki_pair_t *ca, const char *const *names,
                            size_t count)
{
    dt_error_t error;
    dt_pki_pair_t server = {0}, admin = {0};
    int code = DT_CTL_EXIT_OK;
    dt_status_t status = dt_pki_make_server(ca, names, count, 2 * SETUP_YEAR_MS, &server, &error);
    if (status == DT_OK)
        status = dt_pki_make_client(ca, DT_PKI_ROLE_ADMIN, "admin", SETUP_YEAR_MS, &admin, &error);
    if (status == DT_OK) {
        add_file(setup, "pki/controllerd.pem", server.certificate, KIND_CERTIFICATE);
        add_file(setup, "pki/controllerd.key", server.key, KIND_DAEMON_KEY);
        add_file(setup, "pki/admin.pem", admin.certificate, KIND_CERTIFICATE);
        add_file(setup, "pki/admin.key", admin.key, KIND_ADMIN_KEY);
    } else {
        code = dt_ctl_fail(setup->ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
    }
    dt_pki_pair_fini(&server);
    dt_pki_pair_fini(&admin);
    return code;
}

static int add_controller_conf(struct setup *setup, const char *name)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_arena_t *pool = &ctl->pool;
    const char *listen = dt_ctl_option(ctl, DT_CTL_OPT_LISTEN);
    const char *state = dt_ctl_option(ctl, DT_CTL_OPT_STATE_DIR);
    char *listens = listen ? dt_ctl_copy(pool, listen, strlen(listen)) : NULL;
    for (char *c = listens; c && *c; c++)
        if (*c == ',')
            *c = ' ';
    const char *text = dt_ctl_print(
        pool,
        "# Made by: dtorchctl setup controller. All keys are in dtorch.conf(5).\n"
        "[Controller]\nClusterName=%s\nListen=%s\n%s%s%sCertificate=%s/pki/controllerd.pem\n"
        "Key=%s/pki/controllerd.key\nCertificateAuthority=%s/pki/ca.pem\n"
        "CertificateAuthorityKey=%s/pki/ca.key\n",
        name, listens ? listens : "/run/dtorch/controller.sock 0.0.0.0:" DT_CTL_PORT,
        state ? "StateDirectory=" : "", state ? state : "", state ? "\n" : "", setup->dir,
        setup->dir, setup->dir, setup->dir);
    int code = check_config(ctl, dt_conf_table_controller(), text);
    add_file(setup, "controllerd.conf", text, KIND_CONFIG);
    text = dt_ctl_print(pool,
                        "# Made by: dtorchctl setup controller. On this machine the admin socket "
                        "is used;\n# with -H HOST:PORT, and elsewhere, these files say who you "
                        "are.\n[Client]\nCertificate=%s/pki/admin.pem\nKey=%s/pki/admin.key\n"
                        "CertificateAuthority=%s/pki/ca.pem\n",
                        setup->dir, setup->dir, setup->dir);
    add_file(setup, "client.conf", text, KIND_CONFIG);
    return code;
}

/* "HOST:PORT" as the workers will write it. */
static const char *public_address(dt_ctl_t *ctl, const char *host)
{
    const char *listen = dt_ctl_option(ctl, DT_CTL_OPT_LISTEN);
    const char *port = DT_CTL_PORT;
    for (const char *at = listen; at && *(at += strspn(at, ", ")) != '\0';) {
        size_t len = strcspn(at, ", ");
        const char *item = dt_ctl_copy(&ctl->pool, at, len), *colon = strrchr(item, ':');
        if (item[0] != '/' && colon && colon[1] != '\0')
            port = colon + 1;
        at += len;
    }
    return strchr(host, ':') ? dt_ctl_print(&ctl->pool, "[%s]:%s", host, port)
                             : dt_ctl_print(&ctl->pool, "%s:%s", host, port);
}

static void tell_next(struct setup *setup, const char *ca_pem, const char *host)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_pki_info_t info;
    const char *address = public_address(ctl, host);
    if (dt_pki_read(ca_pem, &info, NULL) == DT_OK)
        dt_ctl_note(ctl, "\nThe cluster's CA has the SHA-256 %s.", info.sha256);
    dt_ctl_note(ctl,
                "Next\n"
                "  here        systemctl enable --now dtorch-controllerd\n"
                "              dtorchctl token create --uses=N         (prints the join token)\n"
                "  each node   dtorchctl setup worker --controller=%s --token-file=-\n"
                "              systemctl enable --now dtorch-workerd\n"
                "  or at once  dtorchctl token create | ssh NODE dtorchctl setup worker \\\n"
                "                  --controller=%s --token-file=-\n"
                "  other desk  copy %s/pki/{ca.pem,admin.pem,admin.key} and client.conf there,\n"
                "              then dtorchctl -H %s",
                address, address, setup->dir, address);
}

/* --renew: both certificates anew, for the names of the one that stands unless others are given. */
static int renew(struct setup *setup)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_error_t error;
    dt_pki_pair_t ca = {0};
    char standing[SETUP_NAMES_MAX], *text = NULL;
    const char *names[DT_PKI_SAN_MAX], *given = dt_ctl_option(ctl, DT_CTL_OPT_ADDRESS);
    if (access(path_in(setup, "pki/ca.key"), F_OK) != 0)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                           "%s/pki/ca.key: there is no CA to renew certificates with\n"
                           "  next      dtorchctl setup controller, or --dir=DIR",
                           setup->dir);
    if (!given) {
        dt_status_t status = dt_pki_read_file(path_in(setup, "pki/controllerd.pem"), &text, &error);
        if (status == DT_OK)
            status = dt_pki_server_names(text, standing, sizeof standing, &error);
        free(text);
        if (status != DT_OK)
            return dt_ctl_fail_error(ctl, &error);
        given = standing;
    }
    size_t count = server_names(ctl, given, names, DT_PKI_SAN_MAX);
    int code = get_ca(setup, "", &ca);
    if (code == DT_CTL_EXIT_OK)
        code = add_certificates(setup, &ca, names, count);
    dt_pki_pair_fini(&ca);
    setup->may_overwrite = true;
    if (code == DT_CTL_EXIT_OK)
        code = finish(setup);
    if (code == DT_CTL_EXIT_OK)
        dt_ctl_note(ctl, "Next        systemctl restart dtorch-controllerd    (ends running jobs)");
    return code;
}

int dt_ctl_setup_controller(dt_ctl_t *ctl)
{
    struct setup setup = {.ctl = ctl};
    const char *names[DT_PKI_SAN_MAX];
    dt_pki_pair_t ca = {0};
    size_t count = server_names(ctl, dt_ctl_option(ctl, DT_CTL_OPT_ADDRESS), names, DT_PKI_SAN_MAX);
    const char *name = dt_ctl_option(ctl, DT_CTL_OPT_NAME);
    if (!name)
        name = "dtorch";
    if (!dt_str_is_name(name))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE,
                           "--name: \"%s\" is no name: 1 to 63 letters, digits, dots, hyphens",
                           name);
    int code = set_dir(&setup);
    if (code == DT_CTL_EXIT_OK && dt_ctl_has(ctl, DT_CTL_OPT_RENEW))
        return renew(&setup);
    if (code == DT_CTL_EXIT_OK)
        code = get_ca(&setup, name, &ca);
    if (code == DT_CTL_EXIT_OK)
        code = add_certificates(&setup, &ca, names, count);
    if (code == DT_CTL_EXIT_OK)
        code = add_controller_conf(&setup, name);
    if (code == DT_CTL_EXIT_OK)
        code = finish(&setup);
    if (code == DT_CTL_EXIT_OK)
        tell_next(&setup, ca.certificate, names[0]);
    dt_pki_pair_fini(&ca);
    return code;
}

/* ---- worker ---- */

/* Read the token from a file or the standard input. Gives the exit code. */
static int read_token(dt_ctl_t *ctl, char text[static DT_PKI_TOKEN_SIZE], dt_pki_token_t *token)
{
    dt_error_t error;
    char raw[SETUP_TOKEN_MAX + 1];
    const char *path = dt_ctl_option(ctl, DT_CTL_OPT_TOKEN_FILE);
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *in = is_stdin ? stdin : fopen(path, "re");
    if (!in)
        return errno == ENOENT
                   ? dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND, "%s: %s", path, strerror(errno))
                   : fail_errno(ctl, path, errno);
    if (is_stdin && isatty(STDIN_FILENO) == 1)
        dt_ctl_note(ctl, "Join token:");
    size_t len = 0;
    if (is_stdin && isatty(STDIN_FILENO) == 1)
        len = fgets(raw, sizeof raw, in) ? strlen(raw) : 0;
    else
        len = fread(raw, 1, SETUP_TOKEN_MAX, in);
    if (!is_stdin)
        (void)fclose(in);
    raw[len] = '\0';
    if (dt_pki_token_parse(raw, token, &error) != DT_OK)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_DATA, "%s: %s", is_stdin ? "standard input" : path,
                           error.text);
    dt_pki_token_format(token, text);
    return DT_CTL_EXIT_OK;
}

/* Compare the controller's CA with the token's. Not being reachable is only a remark. */
static int check_authority(dt_ctl_t *ctl, const char *address, const dt_pki_token_t *token)
{
    dt_error_t error;
    char *ca = NULL;
    dt_status_t status = dt_pki_fetch_ca(address, token->ca_sha256, SETUP_FETCH_MS, &ca, &error);
    free(ca);
    if (status == DT_OK) {
        dt_ctl_note(ctl, "%s has the CA that the token names.", address);
    } else if (status == DT_ERR_DENIED) {
        return dt_ctl_fail(ctl, DT_CTL_EXIT_DENIED,
                           "%s: %s\n  nothing was written; a token of this very cluster is needed",
                           address, error.text);
    } else {
        dt_ctl_note(ctl, "%s cannot be reached now (%s); its CA is checked when the worker joins.",
                    address, error.text);
    }
    return DT_CTL_EXIT_OK;
}

static const char *setting(dt_ctl_t *ctl, const char *key, dt_ctl_option_id_t option)
{
    const char *value = dt_ctl_option(ctl, option);
    return value ? dt_ctl_print(&ctl->pool, "%s=%s\n", key, value) : "";
}

static int add_worker_conf(struct setup *setup, bool has_token, bool is_local,
                           const char *controllers)
{
    dt_ctl_t *ctl = setup->ctl;
    dt_arena_t *pool = &ctl->pool;
    const char *text = dt_ctl_print(
        pool,
        "# Made by: dtorchctl setup worker. All keys are in dtorch.conf(5).\n"
        "[Worker]\nController=%s\n%s%s%s%s%s%s",
        controllers, setting(ctl, "NodeName", DT_CTL_OPT_NAME),
        setting(ctl, "Rack", DT_CTL_OPT_RACK), setting(ctl, "Devices", DT_CTL_OPT_DEVICES),
        setting(ctl, "StateDirectory", DT_CTL_OPT_STATE_DIR),
        /* A token gives a certificate, and so TLS there; loopback would leave all to the relay. */
        has_token && !is_local ? "DataListen=0.0.0.0:" SETUP_DATA_PORT "\n" : "",
        has_token ? dt_ctl_print(pool, "JoinTokenFile=%s/pki/join.token\n", setup->dir) : "");
    add_file(setup, "workerd.conf", text, KIND_CONFIG);
    return check_config(ctl, dt_conf_table_worker(), text);
}

/* "HOST:PORT HOST:PORT", with the usual port where none is named; *ret_first is the first one, and
 * *ret_is_local whether all are on this machine, where no certificate is needed. */
static const char *controllers_of(dt_ctl_t *ctl, const char **ret_first, bool *ret_is_local)
{
    dt_arena_t *pool = &ctl->pool;
    const char *text = "";
    *ret_first = NULL;
    *ret_is_local = true;
    for (const char *at = dt_ctl_option(ctl, DT_CTL_OPT_CONTROLLER);
         *(at += strspn(at, ", ")) != '\0';) {
        size_t len = strcspn(at, ", ");
        const char *item = dt_ctl_copy(pool, at, len);
        const char *colon = strrchr(item, ':'), *bracket = strrchr(item, ']');
        if (item[0] != '/' && (!colon || (bracket && bracket > colon)))
            item = dt_ctl_print(pool, "%s:" DT_CTL_PORT, item);
        if (!*ret_first)
            *ret_first = item;
        *ret_is_local = *ret_is_local &&
                        (item[0] == '/' || dt_str_has_prefix(item, "127.") ||
                         dt_str_has_prefix(item, "[::1]") || dt_str_has_prefix(item, "localhost:"));
        text = dt_ctl_print(pool, "%s%s%s", text, *text ? " " : "", item);
        at += len;
    }
    return text;
}

/* Say what comes next, and where tensors will be computed if LibTorch is still to be found. */
static void tell_worker_next(dt_ctl_t *ctl, bool is_linked)
{
    if (!is_linked && !dt_ctl_libtorch_is_known(ctl))
        dt_ctl_note(ctl,
                    "LibTorch is not known here: without it a CPU is a device for few "
                    "operators, and a GPU none.\n"
                    "            --torch=DIR --force names a Python environment that has PyTorch");
    dt_ctl_note(ctl, "Next        systemctl enable --now dtorch-workerd");
}

int dt_ctl_setup_worker(dt_ctl_t *ctl)
{
    struct setup setup = {.ctl = ctl};
    dt_ctl_libtorch_t libtorch;
    const char *torch = dt_ctl_option(ctl, DT_CTL_OPT_TORCH);
    char text[DT_PKI_TOKEN_SIZE] = "";
    dt_pki_token_t token;
    const char *first;
    bool is_local, has_token = dt_ctl_option(ctl, DT_CTL_OPT_TOKEN_FILE) != NULL;
    if (!dt_ctl_option(ctl, DT_CTL_OPT_CONTROLLER))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "setup worker needs --controller=HOST:PORT");
    const char *controllers = controllers_of(ctl, &first, &is_local);
    if (!first)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--controller names none");
    if (!has_token && !is_local)
        return dt_ctl_fail(
            ctl, DT_CTL_EXIT_USAGE,
            "another machine's controller wants a join token: --token-file=FILE, or "
            "- for the standard input\n  make one  dtorchctl token create   (there)");
    int code = set_dir(&setup);
    if (code == DT_CTL_EXIT_OK && torch)
        code = dt_ctl_libtorch_find(ctl, torch, &libtorch);
    if (code == DT_CTL_EXIT_OK && has_token)
        code = read_token(ctl, text, &token);
    if (code == DT_CTL_EXIT_OK)
        code = add_worker_conf(&setup, has_token, is_local, controllers);
    if (code == DT_CTL_EXIT_OK && has_token && first[0] != '/')
        code = check_authority(ctl, first, &token);
    if (code == DT_CTL_EXIT_OK && has_token) {
        add_file(&setup, "pki/join.token", dt_ctl_print(&ctl->pool, "%s\n", text), KIND_DAEMON_KEY);
    }
    if (code == DT_CTL_EXIT_OK)
        code = finish(&setup);
    if (code == DT_CTL_EXIT_OK && torch)
        code = dt_ctl_libtorch_link(ctl, &libtorch);
    if (code == DT_CTL_EXIT_OK)
        tell_worker_next(ctl, torch != NULL);
    return code;
}
