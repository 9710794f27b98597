#include "metrics/page.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strings.h"
#include "metrics/http.h"
#include "pki/pki.h"

#define JSON         "application/json; charset=utf-8"
#define HOST_MAX     64
#define SECRET_MAX   256
#define OK           200
#define UNAUTHORIZED 401
#define NOT_FOUND    404
#define MISDIRECTED  421
#define ACCEPTED     202 /* it is being made */

#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "                \
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
/* What every answer says, then what some say besides. */
#define SAFE                                                                                       \
    {"Content-Security-Policy", POLICY}, {"X-Content-Type-Options", "nosniff"},                    \
        {"X-Frame-Options", "DENY"}, {"Referrer-Policy", "no-referrer"},                           \
        {"Cross-Origin-Resource-Policy", "same-origin"},                                           \
        {"Cross-Origin-Opener-Policy", "same-origin"},

/* clang-format off */
static const dt_http_header_t safe[] = {SAFE {NULL, NULL}};
static const dt_http_header_t again[] = {SAFE {"Retry-After", "0"}, {NULL, NULL}};
static const dt_http_header_t ask[] = {
    SAFE {"WWW-Authenticate", "Basic realm=\"DTorch\", charset=\"UTF-8\""}, {NULL, NULL}};
/* clang-format on */

/* One published document. Whoever takes it out of the slot owns it. */
struct document {
    int64_t good_until_ns;
    size_t size;
    char *text; /* NULL: `answer` has it */
    dt_http_answer_t *answer;
};

struct dt_page {
    dt_http_t *http;
    const dt_page_file_t *files;
    size_t file_count;
    dt_http_answer_t *answers[DT_PAGE_FILES_MAX]; /* made at the start */
    char secret[SECRET_MAX];                      /* "": none is asked for */
    bool is_tls;
    void (*wanted)(void *arg);
    void *arg;
    _Atomic(struct document *) slot; /* the newest that the HTTP thread has not taken */
    struct document *shown;          /* HTTP thread */
    _Atomic int64_t asked_ns;        /* when somebody asked last, 0: never */
};

/* ---- who may read ---- */

bool dt_page_is_loopback_host(const char *host)
{
    char name[HOST_MAX];
    struct in6_addr six;
    struct in_addr four;
    size_t length;
    bool is_six = host[0] == '[';
    const char *end = is_six ? strchr(host, ']') : strchr(host, ':');
    host += is_six;
    length = end ? (size_t)(end - host) : strlen(host);
    if (length >= sizeof name || (is_six && !end))
        return false;
    if (end && end[is_six] != '\0' &&
        (end[is_six] != ':' || strspn(end + is_six + 1, "0123456789") != strlen(end + is_six + 1)))
        return false;
    memcpy(name, host, length);
    name[length] = '\0';
    if (is_six)
        return inet_pton(AF_INET6, name, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
    if (inet_pton(AF_INET, name, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return strcasecmp(name, "localhost") == 0;
}

static bool is_secret(const struct dt_page *page, const char *password)
{
    size_t length = strlen(page->secret);
    return strlen(password) == length && dt_pki_equal(password, page->secret, length);
}

/* Why it may not read, or NULL. */
static dt_http_answer_t *refusal(const struct dt_page *page, const dt_http_request_t *request)
{
    if (!page->is_tls && (!request->host || !dt_page_is_loopback_host(request->host)))
        return dt_http_answer_line(MISDIRECTED, safe,
                                   "this page is for this host only: open it as localhost");
    if (page->secret[0] && (!request->password || !is_secret(page, request->password)))
        return dt_http_answer_line(UNAUTHORIZED, ask,
                                   "the password is the text of the file StatusSecret=");
    return NULL;
}

/* ---- HTTP thread ---- */

static void document_free(struct document *document)
{
    if (!document)
        return;
    dt_http_answer_free(document->answer);
    free(document->text);
    free(document);
}

static struct document *newest(struct dt_page *page)
{
    struct document *document = atomic_exchange(&page->slot, NULL);
    if (document) {
        document_free(page->shown);
        page->shown = document;
        document->answer = dt_http_answer_take(OK, JSON, safe, document->text, document->size);
        document->text = NULL;
    }
    return page->shown;
}

static dt_http_answer_t *give_document(struct dt_page *page, bool *ret_is_kept)
{
    static const char starting[] = "{\"wait\":\"asked\"}\n";
    int64_t now_ns = dt_clock_mono_ns(dt_clock_system());
    struct document *document = newest(page);
    atomic_store(&page->asked_ns, now_ns);
    *ret_is_kept = document && document->answer && now_ns <= document->good_until_ns;
    if (*ret_is_kept)
        return document->answer;
    page->wanted(page->arg);
    return dt_http_answer_make(ACCEPTED, JSON, again, starting, sizeof starting - 1);
}

static dt_http_answer_t *handle(void *arg, const dt_http_request_t *request, bool *ret_is_kept)
{
    struct dt_page *page = arg;
    dt_http_answer_t *no = refusal(page, request);
    *ret_is_kept = false;
    if (no)
        return no;
    if (strcmp(request->path, DT_PAGE_DOCUMENT) == 0)
        return give_document(page, ret_is_kept);
    for (size_t i = 0; i < page->file_count; i++)
        if (strcmp(request->path, page->files[i].path) == 0) {
            *ret_is_kept = true;
            return page->answers[i];
        }
    return dt_http_answer_line(NOT_FOUND, safe, "nothing here; try / or " DT_PAGE_DOCUMENT);
}

/* ---- state thread ---- */

static dt_status_t start(struct dt_page *page, const dt_page_options_t *options, dt_error_t *err)
{
    const dt_http_options_t http = {
        .struct_size = sizeof http,
        .option = options->option,
        .listen = options->listen,
        .certificate_pem = options->certificate_pem,
        .key_pem = options->key_pem,
        .connection_max = DT_PAGE_CONNECTIONS_MAX,
        .handler = handle,
        .arg = page,
    };
    for (size_t i = 0; i < page->file_count; i++) {
        const dt_page_file_t *file = &page->files[i];
        page->answers[i] = dt_http_answer_make(OK, file->type, safe, file->bytes, file->size);
        if (!page->answers[i])
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    }
    if (options->secret && strlen(options->secret) < DT_PAGE_SECRET_MIN)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the secret has fewer than %d characters",
                       DT_PAGE_SECRET_MIN);
    if (options->secret && !dt_str_copy(page->secret, sizeof page->secret, options->secret))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the secret has more than %d characters",
                       SECRET_MAX - 1);
    return dt_http_open(&http, &page->http, err);
}

dt_status_t dt_page_open(const dt_page_options_t *options, dt_page_t **ret_page, dt_error_t *err)
{
    struct dt_page *page;
    dt_status_t status;
    dt_check(options->struct_size == sizeof *options);
    dt_check(options->file_count <= DT_PAGE_FILES_MAX);
    page = calloc(1, sizeof *page);
    if (!page)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    page->files = options->files;
    page->file_count = options->file_count;
    page->is_tls = options->certificate_pem != NULL;
    page->wanted = options->wanted;
    page->arg = options->arg;
    status = start(page, options, err);
    if (status == DT_OK)
        *ret_page = page;
    else
        dt_page_close(page);
    return status;
}

const char *dt_page_address(const dt_page_t *page)
{
    return dt_http_address(page->http);
}

bool dt_page_is_watched(const dt_page_t *page, int64_t within_ns)
{
    int64_t asked_ns = atomic_load(&page->asked_ns);
    return asked_ns && dt_clock_mono_ns(dt_clock_system()) - asked_ns < within_ns;
}

dt_status_t dt_page_publish(dt_page_t *page, char *text, size_t size, int64_t good_for_ns)
{
    struct document *document = calloc(1, sizeof *document);
    if (!document) {
        free(text);
        return DT_ERR_NOMEM;
    }
    document->good_until_ns = dt_clock_mono_ns(dt_clock_system()) + good_for_ns;
    document->size = size;
    document->text = text;
    document_free(atomic_exchange(&page->slot, document));
    return DT_OK;
}

void dt_page_close(dt_page_t *page)
{
    if (!page)
        return;
    dt_http_close(page->http);
    document_free(atomic_load(&page->slot));
    document_free(page->shown);
    for (size_t i = 0; i < page->file_count; i++)
        dt_http_answer_free(page->answers[i]);
    memset(page->secret, 0, sizeof page->secret);
    free(page);
}
