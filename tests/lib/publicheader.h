/* What the public header and lib/ both define, as numbers: client_header_test compares the two. One
 * file sees the public header alone, the other lib/. */
#ifndef DT_TESTS_LIB_PUBLICHEADER_H
#define DT_TESTS_LIB_PUBLICHEADER_H
#include <stddef.h>
#include <stdint.h>

typedef struct dt_publicheader_item {
    const char *name;
    int64_t value;
} dt_publicheader_item_t;

extern const dt_publicheader_item_t dt_publicheader_items[];
extern const size_t dt_publicheader_count;

/* X(expression) */
#define DT_PUBLICHEADER_MAP(X)                                                                     \
    X(DT_OK)                                                                                       \
    X(DT_ERR_NOMEM)                                                                                \
    X(DT_ERR_INVALID)                                                                              \
    X(DT_ERR_NOT_FOUND)                                                                            \
    X(DT_ERR_EXISTS)                                                                               \
    X(DT_ERR_AGAIN)                                                                                \
    X(DT_ERR_TIMEOUT)                                                                              \
    X(DT_ERR_DENIED)                                                                               \
    X(DT_ERR_LIMIT)                                                                                \
    X(DT_ERR_PEER)                                                                                 \
    X(DT_ERR_DEVICE)                                                                               \
    X(DT_ERR_LOST)                                                                                 \
    X(DT_ERR_STOPPED)                                                                              \
    X(DT_ERR_INTERNAL)                                                                             \
    X(sizeof(dt_error_t))                                                                          \
    X(offsetof(dt_error_t, code))                                                                  \
    X(offsetof(dt_error_t, source))                                                                \
    X(offsetof(dt_error_t, source_code))                                                           \
    X(offsetof(dt_error_t, text))                                                                  \
    X(DT_DTYPE_U8)                                                                                 \
    X(DT_DTYPE_I8)                                                                                 \
    X(DT_DTYPE_I16)                                                                                \
    X(DT_DTYPE_I32)                                                                                \
    X(DT_DTYPE_I64)                                                                                \
    X(DT_DTYPE_F16)                                                                                \
    X(DT_DTYPE_F32)                                                                                \
    X(DT_DTYPE_F64)                                                                                \
    X(DT_DTYPE_C32)                                                                                \
    X(DT_DTYPE_C64)                                                                                \
    X(DT_DTYPE_C128)                                                                               \
    X(DT_DTYPE_BOOL)                                                                               \
    X(DT_DTYPE_BF16)                                                                               \
    X(DT_DTYPE_F8_E5M2)                                                                            \
    X(DT_DTYPE_F8_E4M3FN)                                                                          \
    X(DT_DTYPE_F8_E5M2FNUZ)                                                                        \
    X(DT_DTYPE_F8_E4M3FNUZ)                                                                        \
    X(DT_DTYPE_U16)                                                                                \
    X(DT_DTYPE_U32)                                                                                \
    X(DT_DTYPE_U64)                                                                                \
    X(DT_META_DIM_MAX)                                                                             \
    X(DT_META_CONTIGUOUS)                                                                          \
    X(DT_META_CHANNELS_LAST)                                                                       \
    X(DT_META_EXPLICIT)                                                                            \
    X(DT_META_CLASS_MASK)                                                                          \
    X(DT_META_CONJ)                                                                                \
    X(DT_META_NEG)                                                                                 \
    X(sizeof(dt_meta_t))                                                                           \
    X(offsetof(dt_meta_t, dtype))                                                                  \
    X(offsetof(dt_meta_t, ndim))                                                                   \
    X(offsetof(dt_meta_t, layout))                                                                 \
    X(offsetof(dt_meta_t, sizes))                                                                  \
    X(offsetof(dt_meta_t, strides))                                                                \
    X(DT_VALUE_DEFAULT)                                                                            \
    X(DT_VALUE_NONE)                                                                               \
    X(DT_VALUE_FALSE)                                                                              \
    X(DT_VALUE_TRUE)                                                                               \
    X(DT_VALUE_INT)                                                                                \
    X(DT_VALUE_DOUBLE)                                                                             \
    X(DT_VALUE_COMPLEX)                                                                            \
    X(DT_VALUE_STR)                                                                                \
    X(DT_VALUE_TENSOR)                                                                             \
    X(DT_VALUE_INTS)                                                                               \
    X(DT_VALUE_DOUBLES)                                                                            \
    X(DT_VALUE_BOOLS)                                                                              \
    X(DT_VALUE_TENSORS)                                                                            \
    X(DT_VALUE_VALUES)                                                                             \
    X(DT_VALUE_STRS)                                                                               \
    X(DT_VALUE_DTYPE)                                                                              \
    X(DT_VALUE_LAYOUT)                                                                             \
    X(DT_VALUE_MEMORY_FORMAT)                                                                      \
    X(DT_VALUE_DEVICE)                                                                             \
    X(DT_VALUE_GENERATOR)                                                                          \
    X(DT_VALUE_STORAGE)                                                                            \
    X(DT_VALUE_DYNAMIC)                                                                            \
    X(DT_VALUE_SMALL)                                                                              \
    X(DT_VALUE_LIST_MAX)                                                                           \
    X(sizeof(dt_value_t))                                                                          \
    X(offsetof(dt_value_t, tag))                                                                   \
    X(offsetof(dt_value_t, index))                                                                 \
    X(offsetof(dt_value_t, count))                                                                 \
    X(offsetof(dt_value_t, number))                                                                \
    X(offsetof(dt_value_t, real))                                                                  \
    X(offsetof(dt_value_t, handle))                                                                \
    X(offsetof(dt_value_t, values))                                                                \
    X(DT_ALIAS_FRESH)                                                                              \
    X(DT_ALIAS_VIEW)                                                                               \
    X(DT_ALIAS_IN_PLACE)                                                                           \
    X(DT_ALIAS_NONE)

#endif
