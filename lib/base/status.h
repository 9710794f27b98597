/* Status codes, and the text that explains one.
 * A function that can fail returns dt_status_t and nothing else. Where a human will read the cause,
 * its last parameter is a dt_error_t that the caller owns; NULL is allowed. There is no last-error
 * variable of any kind. */
#ifndef DT_BASE_STATUS_H
#define DT_BASE_STATUS_H
#include <stdint.h>

#define DT_MUST_USE               __attribute__((warn_unused_result))
#define DT_PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Each code is something that a caller can do differently about.
 * X(name, value, gRPC status code on the wire, fixed text) */
#define DT_ERR_MAP(X)                                                                              \
    X(DT_OK, 0, 0, "ok")                                                                           \
    X(DT_ERR_NOMEM, -1, 8, "out of memory")                                                        \
    X(DT_ERR_INVALID, -2, 3, "invalid input")                                                      \
    X(DT_ERR_NOT_FOUND, -3, 5, "not found")                                                        \
    X(DT_ERR_EXISTS, -4, 6, "exists already")                                                      \
    X(DT_ERR_AGAIN, -5, 14, "try again later")                                                     \
    X(DT_ERR_TIMEOUT, -6, 4, "deadline passed")                                                    \
    X(DT_ERR_DENIED, -7, 7, "permission denied")                                                   \
    X(DT_ERR_LIMIT, -8, 11, "over a limit")                                                        \
    X(DT_ERR_PEER, -9, 10, "peer failed or left")                                                  \
    X(DT_ERR_DEVICE, -10, 9, "device failed")                                                      \
    X(DT_ERR_LOST, -11, 15, "lost")                                                                \
    X(DT_ERR_STOPPED, -12, 1, "shutting down")                                                     \
    X(DT_ERR_INTERNAL, -13, 13, "internal error")

typedef enum dt_status {
#define X(name, value, grpc, text) name = (value),
    DT_ERR_MAP(X)
#undef X
} dt_status_t;

typedef struct dt_error {
    dt_status_t code;
    const char *source;  /* who said it: "dt", "wire", "errno", "uv", "grpc", "cuda", "nccl",
                            "torch"; static  string */
    int64_t source_code; /* that source's own number, never lost */
    char text[512];
} dt_error_t;

/* Return the fixed text of a code. Unknown codes give "unknown status". */
const char *dt_status_text(dt_status_t code);

/* Fill `err` and return `code`, so that `return dt_fail(...)` works.
 * Ownership: borrows all; `source` must be a string literal. `err` may be NULL. Threads: any. */
dt_status_t dt_fail(dt_error_t *err, dt_status_t code, const char *source, int64_t source_code,
                    const char *fmt, ...) DT_PRINTF_LIKE(5, 6);
#ifdef __clang_analyzer__ /* it looks into no other file: this tells it what comes back */
#define dt_fail(err, code, ...) ((void)dt_fail(err, code, __VA_ARGS__), (code))
#endif

/* Stop the process if `cond` is false: a bug of ours, never input. On in every build. */
#define dt_check(cond) ((cond) ? (void)0 : dt_check_failed(#cond, __FILE__, __LINE__))
void dt_check_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* Run `fn(&variable)` when the variable leaves its scope. Never in a function with an out: label.
 */
#define DT_CLEANUP(fn) __attribute__((cleanup(fn)))

/* Hand a pointer over: the variable becomes NULL, so its cleanup finds nothing. */
#define DT_TAKE(p)                                                                                 \
    ({                                                                                             \
        __typeof__(p) taken_ = (p);                                                                \
        (p) = NULL;                                                                                \
        taken_;                                                                                    \
    })

#define DT_TRY(expr)                                                                               \
    do {                                                                                           \
        dt_status_t try_status_ = (expr);                                                          \
        if (try_status_ != DT_OK)                                                                  \
            return try_status_;                                                                    \
    } while (0)

#endif
