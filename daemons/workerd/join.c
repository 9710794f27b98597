#include "join.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "dtorch/v1/worker.pb-c.h"
#include "pki/pki.h"
#include "sysd/sysd.h"
#include "wire/wire.h"

#define DT_JOIN_METHOD       "/dtorch.v1.Worker/Join"
#define DT_JOIN_FETCH_MS     3000
#define DT_JOIN_ASK_MS       10000
#define DT_JOIN_RETRY_MIN_NS INT64_C(500000000)
#define DT_JOIN_RETRY_MAX_NS INT64_C(5000000000)
#define DT_JOIN_WATCH_NS     INT64_C(60000000000) /* how often the certificate's age is looked at */
#define DT_JOIN_RENEWAL_MARKER                                                                     \
    "renew" /* in place of a token: the certificate shown is the reason */

/* What the node shows. All three or none. */
typedef struct join_pair {
    char *certificate;
    char *key;
    char *ca;
    dt_pki_info_t info;
} join_pair_t;

typedef enum join_source {
    JOIN_PLAIN,      /* controllers on this host only */
    JOIN_CONFIGURED, /* files of the configuration */
    JOIN_STORED,     /* files of the state directory */
    JOIN_NEEDED,     /* there is a token */
} join_source_t;

/* A turn of joining or renewing, handed from step to step: fetch (a task), ask (an RPC), store (a
 * task). Belongs to the step that runs. */
typedef struct join_turn {
    dt_join_t *owner;
    char address[256];
    bool is_renewal;
    dt_pki_token_t token;
    char node_name[DT_IDENTITY_NAME_SIZE];
    char directory[sizeof((dt_identity_t *)0)->directory];
    join_pair_t pair; /* as far as it got */
    char *csr;
    dt_status_t status;
    dt_error_t err;
} join_turn_t;

struct dt_join {
    dt_join_options_t options;
    join_source_t source;
    join_pair_t pair;
    dt_rpc_tls_t tls; /* points into `pair` */
    dt_pki_token_t token;
    dt_timer_t *timer; /* the next turn, or the next look at the certificate */
    join_turn_t *turn; /* runs; NULL: none */
    size_t address_index;
    int64_t retry_ns;
    bool is_stopping;
    void (*stopped)(void *arg);
    char logged[sizeof((dt_error_t *)0)->text]; /* each failure is said once */
};

static void pair_fini(join_pair_t *pair)
{
    free(pair->certificate);
    free(pair->ca);
    dt_pki_key_free(pair->key);
    *pair = (join_pair_t){0};
}

static void turn_free(join_turn_t *turn)
{
    pair_fini(&turn->pair);
    free(turn->csr);
    explicit_bzero(turn, sizeof *turn);
    free(turn);
}

static int64_t wall_ms(void)
{
    return dt_clock_wall_ms(dt_clock_system());
}

static bool is_unix(const char *address)
{
    return dt_str_has_prefix(address, "/") || dt_str_has_prefix(address, "unix:");
}

bool dt_join_split(const char *address, char *host, size_t host_size, char *port, size_t port_size)
{
    const char *colon = strrchr(address, ':');
    if (!colon || !dt_str_copy(port, port_size, colon + 1))
        return false;
    bool has_brackets = address[0] == '[' && colon > address && colon[-1] == ']';
    int length = (int)(colon - address) - 2 * has_brackets;
    return snprintf(host, host_size, "%.*s", length, address + has_brackets) < (int)host_size;
}

dt_join_place_t dt_join_place(const char *address)
{
    char host[256];
    char port[16];
    struct in_addr four;
    struct in6_addr six;
    if (is_unix(address) || dt_str_has_prefix(address, "localhost:"))
        return DT_JOIN_PLACE_HERE;
    if (!dt_join_split(address, host, sizeof host, port, sizeof port))
        return DT_JOIN_PLACE_NAME;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127 ? DT_JOIN_PLACE_HERE : DT_JOIN_PLACE_ELSEWHERE;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six) ? DT_JOIN_PLACE_HERE : DT_JOIN_PLACE_ELSEWHERE;
    return DT_JOIN_PLACE_NAME;
}

/* ---- reading ---- */

static dt_status_t pair_read(const char *certificate, const char *key, const char *ca,
                             join_pair_t *ret_pair, dt_error_t *err)
{
    join_pair_t pair = {0};
    dt_status_t status = dt_pki_read_file(certificate, &pair.certificate, err);
    if (status == DT_OK)
        status = dt_pki_read_file(key, &pair.key, err);
    if (status == DT_OK)
        status = dt_pki_read_file(ca, &pair.ca, err);
    if (status == DT_OK)
        status = dt_pki_read(pair.certificate, &pair.info, err);
    if (status != DT_OK) {
        pair_fini(&pair);
        return status;
    }
    *ret_pair = pair;
    return DT_OK;
}

/* Time apart: a clock that is set back, as at a machine's start, must not stop a node. */
static dt_status_t pair_check(const join_pair_t *pair, const char *node_name, dt_error_t *err)
{
    char when[DT_CLOCK_TEXT_SIZE];
    DT_TRY(dt_pki_check(pair->certificate, pair->key, pair->ca, pair->info.not_before_ms, err));
    if (pair->info.role != DT_PKI_ROLE_NODE || !dt_str_is_equal(pair->info.name, node_name))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "the certificate is for \"%s\", and this node is \"%s\"; set NodeName=, or "
                       "join again under the new name",
                       pair->info.name[0] ? pair->info.name : pair->info.common_name, node_name);
    int64_t now_ms = wall_ms();
    if (now_ms > pair->info.not_after_ms) {
        dt_clock_format_wall(pair->info.not_after_ms, when);
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "the certificate of node %s expired at %s; make a join token with "
                       "\"dtorchctl token create\" on the controller and name its file in "
                       "JoinTokenFile=",
                       node_name, when);
    }
    if (now_ms < pair->info.not_before_ms) {
        dt_clock_format_wall(pair->info.not_before_ms, when);
        dt_log_warn("the certificate is not valid yet; is the clock right?",
                    DT_LOG_S("not_before", when));
    }
    return DT_OK;
}

static dt_status_t configured_read(const dt_join_t *join, const dt_conf_t *conf,
                                   join_pair_t *ret_pair, dt_error_t *err)
{
    const char *certificate = dt_conf_str(conf, "Certificate");
    const char *key = dt_conf_str(conf, "Key");
    const char *ca = dt_conf_str(conf, "CertificateAuthority");
    char credential[DT_SYSD_PATH_MAX];
    if (!certificate[0])
        return DT_ERR_NOT_FOUND;
    if (!key[0]) {
        DT_TRY(dt_sysd_credential_path("tls.key", credential, err));
        key = credential;
    }
    DT_TRY(pair_read(certificate, key, ca, ret_pair, err));
    dt_status_t status = pair_check(ret_pair, join->options.identity->node_name, err);
    if (status != DT_OK)
        pair_fini(ret_pair);
    return status == DT_OK ? DT_OK : DT_ERR_INVALID;
}

static void stored_path(const char *directory, const char *name, char path[static 4160])
{
    (void)snprintf(path, 4160, "%s/%s", directory, name);
}

static dt_status_t stored_read(const dt_join_t *join, join_pair_t *ret_pair, dt_error_t *err)
{
    char certificate[4160];
    char key[4160];
    char ca[4160];
    const char *directory = join->options.identity->directory;
    stored_path(directory, "node.crt", certificate);
    stored_path(directory, "node.key", key);
    stored_path(directory, "ca.crt", ca);
    DT_TRY(pair_read(certificate, key, ca, ret_pair, err));
    dt_status_t status = pair_check(ret_pair, join->options.identity->node_name, err);
    if (status != DT_OK)
        pair_fini(ret_pair);
    return status;
}

static dt_status_t token_read(dt_join_t *join, dt_error_t *err)
{
    char path[DT_SYSD_PATH_MAX];
    char text[1024] = "";
    const char *configured = dt_conf_str(join->options.conf, "JoinTokenFile");
    if (configured[0])
        (void)dt_str_copy(path, sizeof path, configured);
    else
        DT_TRY(dt_sysd_credential_path("join.token", path, err));
    FILE *file = fopen(path, "re");
    if (!file)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "JoinTokenFile=%s cannot be opened: %m",
                       path);
    if (!fgets(text, sizeof text, file))
        text[0] = '\0'; /* empty is none */
    (void)fclose(file);
    const char *token = dt_str_trim(text);
    dt_status_t status = token[0] == '\0' || dt_str_is_equal(token, "none")
                             ? dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "%s holds no token", path)
                             : dt_pki_token_parse(token, &join->token, err);
    explicit_bzero(text, sizeof text);
    return status;
}

static dt_status_t plain_check(const dt_conf_t *conf, dt_error_t *err)
{
    const dt_strv_t *addresses = dt_conf_list(conf, "Controller");
    for (size_t i = 0; i < addresses->count; i++)
        if (dt_join_place(addresses->items[i]) == DT_JOIN_PLACE_ELSEWHERE)
            return dt_conf_fail(
                conf, "Controller", err,
                "%s is not on this host, and this node has no certificate: make a token with "
                "\"dtorchctl token create\" on the controller and name its file in JoinTokenFile=",
                addresses->items[i]);
    return DT_OK;
}

static void pair_use(dt_join_t *join, join_source_t source, join_pair_t *pair)
{
    pair_fini(&join->pair);
    join->pair = *pair;
    *pair = (join_pair_t){0};
    join->source = source;
    join->tls = (dt_rpc_tls_t){
        .ca = join->pair.ca, .certificate = join->pair.certificate, .key = join->pair.key};
}

/* The header's order of sources. */
static dt_status_t find(dt_join_t *join, dt_error_t *err)
{
    join_pair_t pair;
    dt_error_t stored_err = {0};
    dt_error_t token_err = {0};
    dt_status_t status = configured_read(join, join->options.conf, &pair, err);
    if (status == DT_OK)
        pair_use(join, JOIN_CONFIGURED, &pair);
    if (status != DT_ERR_NOT_FOUND || err->code == DT_ERR_NOT_FOUND)
        return status;
    status = stored_read(join, &pair, &stored_err);
    if (status == DT_OK) {
        pair_use(join, JOIN_STORED, &pair);
        return DT_OK;
    }
    dt_status_t token_status = token_read(join, &token_err);
    if (token_status == DT_OK && (status == DT_ERR_NOT_FOUND || status == DT_ERR_DENIED)) {
        join->source = JOIN_NEEDED;
        return DT_OK;
    }
    if (status != DT_ERR_NOT_FOUND) {
        *err = stored_err;
        return DT_ERR_INVALID;
    }
    if (token_status != DT_ERR_NOT_FOUND) {
        *err = token_err;
        return token_status;
    }
    join->source = JOIN_PLAIN;
    return plain_check(join->options.conf, err);
}

/* ---- one turn ---- */

static void turn_failed(join_turn_t *turn);
static void turn_next(dt_join_t *join);

/* A turn has ended, one way or the other. */
static void turn_end(join_turn_t *turn)
{
    dt_join_t *join = turn->owner;
    join->turn = NULL;
    turn_free(turn);
    if (join->stopped) {
        void (*stopped)(void *arg) = join->stopped;
        join->stopped = NULL;
        stopped(join->options.arg);
    }
}

/* Step 1, on a thread: the authority, a key and a request. */
static void fetch_work(void *arg)
{
    join_turn_t *turn = arg;
    turn->status = DT_OK;
    if (!turn->is_renewal)
        turn->status = dt_pki_fetch_ca(turn->address, turn->token.ca_sha256, DT_JOIN_FETCH_MS,
                                       &turn->pair.ca, &turn->err);
    if (turn->status == DT_OK)
        turn->status = dt_pki_make_csr(turn->node_name, &turn->csr, &turn->pair.key, &turn->err);
}

/* Step 3, on a thread: the certificate goes last, so that a crash leaves nothing half. */
static void store_work(void *arg)
{
    join_turn_t *turn = arg;
    char path[4160];
    stored_path(turn->directory, "ca.crt", path);
    turn->status = dt_pki_write_file(path, turn->pair.ca, strlen(turn->pair.ca), 0644, &turn->err);
    stored_path(turn->directory, "node.key", path);
    if (turn->status == DT_OK)
        turn->status =
            dt_pki_write_file(path, turn->pair.key, strlen(turn->pair.key), 0600, &turn->err);
    stored_path(turn->directory, "node.crt", path);
    if (turn->status == DT_OK)
        turn->status = dt_pki_write_file(path, turn->pair.certificate,
                                         strlen(turn->pair.certificate), 0644, &turn->err);
}

static void store_done(void *arg)
{
    join_turn_t *turn = arg;
    dt_join_t *join = turn->owner;
    char when[DT_CLOCK_TEXT_SIZE];
    if (turn->status != DT_OK) /* used all the same: it is valid, and a token works once */
        dt_log_err("the node's certificate could not be stored", DT_LOG_E(&turn->err));
    dt_clock_format_wall(turn->pair.info.not_after_ms, when);
    dt_log_notice(turn->is_renewal ? "certificate renewed" : "joined the cluster",
                  DT_LOG_S("node", turn->node_name), DT_LOG_S("not_after", when));
    bool was_ready = dt_join_is_ready(join);
    pair_use(join, JOIN_STORED, &turn->pair);
    turn_end(turn);
    join->retry_ns = DT_JOIN_RETRY_MIN_NS;
    join->logged[0] = '\0';
    if (join->is_stopping)
        return;
    dt_timer_arm(join->timer, dt_loop_now_ns() + DT_JOIN_WATCH_NS);
    if (!was_ready)
        join->options.ready(join->options.arg);
}

static dt_status_t reply_take(join_turn_t *turn, const uint8_t *data, size_t size)
{
    dt_arena_t arena;
    Dtorch__V1__JoinReply *reply;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_status_t status =
        DT_WIRE_UNPACK(dtorch__v1__join_reply, &arena, data, size, &reply, &turn->err);
    if (status == DT_OK) {
        turn->pair.certificate = strdup(reply->certificate_pem);
        if (!turn->pair.certificate)
            status = dt_fail(&turn->err, DT_ERR_NOMEM, "dt", 0, "no memory for a certificate");
    }
    dt_arena_fini(&arena);
    if (status == DT_OK)
        status = dt_pki_read(turn->pair.certificate, &turn->pair.info, &turn->err);
    if (status == DT_OK)
        status = pair_check(&turn->pair, turn->node_name, &turn->err);
    return status;
}

static void ask_done(void *arg, const dt_error_t *why, const uint8_t *data, size_t size)
{
    join_turn_t *turn = arg;
    dt_error_t err;
    if (why && why->code != DT_OK) {
        turn->err = *why;
        turn->status = why->code;
    } else {
        turn->status = reply_take(turn, data, size);
    }
    if (turn->status == DT_OK) {
        dt_status_t status =
            dt_tasks_run(turn->owner->options.tasks, store_work, store_done, turn, &err);
        if (status == DT_OK)
            return; /* the turn is the thread's now */
        turn->status = status;
        turn->err = err;
    }
    turn_failed(turn);
}

/* Step 2: the request. A renewal shows the certificate that it renews. */
static dt_status_t ask(join_turn_t *turn)
{
    dt_join_t *join = turn->owner;
    char token[DT_PKI_TOKEN_SIZE] = DT_JOIN_RENEWAL_MARKER;
    uint8_t node_id[DT_IDENTITY_ID_BYTES];
    uint8_t *data;
    size_t size;
    Dtorch__V1__ProtocolVersion version;
    Dtorch__V1__JoinRequest request;
    const dt_rpc_tls_t anonymous = {.ca = turn->pair.ca};
    if (!turn->is_renewal)
        dt_pki_token_format(&turn->token, token);
    memcpy(node_id, join->options.identity->node_id, sizeof node_id);
    dtorch__v1__protocol_version__init(&version);
    dtorch__v1__join_request__init(&request);
    version.major = DT_WIRE_VERSION_MAJOR;
    version.minor = DT_WIRE_VERSION_MINOR;
    request.version = &version;
    request.token = token;
    request.node_name = turn->node_name;
    request.node_id = (ProtobufCBinaryData){sizeof node_id, node_id};
    request.csr_pem = turn->csr;
    dt_status_t status = dt_wire_pack_new(&request.base, &data, &size);
    if (status != DT_OK)
        return dt_fail(&turn->err, status, "dt", 0, "no memory for a request");
    status =
        dt_rpc_unary(join->options.rpc, turn->address, turn->is_renewal ? &join->tls : &anonymous,
                     DT_JOIN_METHOD, data, size, DT_JOIN_ASK_MS, ask_done, turn, &turn->err);
    explicit_bzero(data, size);
    explicit_bzero(token, sizeof token);
    free(data);
    return status;
}

static void fetch_done(void *arg)
{
    join_turn_t *turn = arg;
    if (turn->owner->is_stopping) {
        turn_end(turn);
        return;
    }
    if (turn->status == DT_OK)
        turn->status = ask(turn);
    if (turn->status != DT_OK)
        turn_failed(turn);
}

/* Try again later, or give up when a person has to act. */
static void turn_failed(join_turn_t *turn)
{
    dt_join_t *join = turn->owner;
    bool is_refused = turn->status == DT_ERR_DENIED || turn->status == DT_ERR_INVALID;
    bool is_final = is_refused && !turn->is_renewal;
    dt_error_t why = turn->err;
    why.code = turn->status;
    if (!is_final && !dt_str_is_equal(why.text, join->logged))
        dt_log_warn(turn->is_renewal ? "certificate not renewed" : "not joined yet, trying on",
                    DT_LOG_S("controller", turn->address), DT_LOG_E(&why));
    (void)dt_str_copy(join->logged, sizeof join->logged, why.text);
    bool is_renewal = turn->is_renewal;
    turn_end(turn);
    join->address_index++;
    if (join->is_stopping)
        return;
    if (is_final) {
        join->options.failed(join->options.arg, &why);
        return;
    }
    dt_timer_arm(join->timer, dt_loop_now_ns() + (is_renewal ? DT_JOIN_WATCH_NS : join->retry_ns));
    join->retry_ns =
        2 * join->retry_ns < DT_JOIN_RETRY_MAX_NS ? 2 * join->retry_ns : DT_JOIN_RETRY_MAX_NS;
}

/* The next controller that is reached by TCP; NULL: there is none. */
static const char *address_next(dt_join_t *join)
{
    const dt_strv_t *addresses = dt_conf_list(join->options.conf, "Controller");
    for (size_t i = 0; i < addresses->count; i++) {
        const char *address = addresses->items[join->address_index % addresses->count];
        if (!is_unix(address))
            return address;
        join->address_index++;
    }
    return NULL;
}

static void turn_start(dt_join_t *join, bool is_renewal)
{
    dt_error_t err = {0};
    const char *address = address_next(join);
    join_turn_t *turn = address ? calloc(1, sizeof *turn) : NULL;
    if (!turn) {
        dt_timer_arm(join->timer, dt_loop_now_ns() + DT_JOIN_WATCH_NS);
        return;
    }
    turn->owner = join;
    turn->is_renewal = is_renewal;
    turn->token = join->token;
    (void)dt_str_copy(turn->address, sizeof turn->address, address);
    (void)dt_str_copy(turn->node_name, sizeof turn->node_name, join->options.identity->node_name);
    (void)dt_str_copy(turn->directory, sizeof turn->directory, join->options.identity->directory);
    if (is_renewal)
        turn->pair.ca = strdup(join->pair.ca);
    join->turn = turn;
    if (dt_tasks_run(join->options.tasks, fetch_work, fetch_done, turn, &err) != DT_OK) {
        turn->status = err.code;
        turn->err = err;
        turn_failed(turn);
    }
}

static void turn_next(dt_join_t *join)
{
    if (join->turn)
        return;
    if (join->source == JOIN_NEEDED)
        turn_start(join, false);
    else if (join->source == JOIN_STORED && dt_pki_is_due(&join->pair.info, wall_ms()))
        turn_start(join, true);
    else
        dt_timer_arm(join->timer, dt_loop_now_ns() + DT_JOIN_WATCH_NS);
}

static void on_timer(void *arg, int64_t deadline_ns)
{
    (void)deadline_ns;
    turn_next(arg);
}

/* ---- the face ---- */

dt_status_t dt_join_create(const dt_join_options_t *options, dt_join_t **ret_join, dt_error_t *err)
{
    dt_error_t local = {0};
    dt_join_t *join = calloc(1, sizeof *join);
    if (!join)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for credentials");
    join->options = *options;
    join->retry_ns = DT_JOIN_RETRY_MIN_NS;
    dt_status_t status = find(join, &local);
    if (status == DT_OK)
        status = dt_timer_create(options->loop, on_timer, join, &join->timer, &local);
    if (status != DT_OK) {
        if (err)
            *err = local;
        dt_join_free(join);
        return status;
    }
    *ret_join = join;
    return DT_OK;
}

void dt_join_start(dt_join_t *join)
{
    if (join->source == JOIN_NEEDED)
        dt_log_notice("joining the cluster by token",
                      DT_LOG_S("node", join->options.identity->node_name));
    turn_next(join);
}

bool dt_join_is_ready(const dt_join_t *join)
{
    return join->source != JOIN_NEEDED;
}

const dt_rpc_tls_t *dt_join_tls(const dt_join_t *join)
{
    return join->pair.certificate ? &join->tls : NULL;
}

int64_t dt_join_not_after_ms(const dt_join_t *join)
{
    return join->pair.certificate ? join->pair.info.not_after_ms : 0;
}

dt_status_t dt_join_reload(dt_join_t *join, const dt_conf_t *conf, dt_error_t *err)
{
    join_pair_t pair;
    dt_error_t local = {0};
    if (join->source == JOIN_CONFIGURED) {
        dt_status_t status = configured_read(join, conf, &pair, &local);
        if (status != DT_OK) {
            if (err)
                *err = local;
            return status;
        }
        pair_use(join, JOIN_CONFIGURED, &pair);
    } else if (join->source == JOIN_PLAIN) {
        DT_TRY(plain_check(conf, err));
    }
    join->options.conf = conf;
    return DT_OK;
}

void dt_join_stop(dt_join_t *join, void (*stopped)(void *arg))
{
    join->is_stopping = true;
    dt_timer_disarm(join->timer);
    if (join->turn)
        join->stopped = stopped;
    else
        stopped(join->options.arg);
}

void dt_join_free(dt_join_t *join)
{
    if (!join)
        return;
    dt_timer_free(join->timer);
    pair_fini(&join->pair);
    explicit_bzero(&join->token, sizeof join->token);
    free(join);
}
