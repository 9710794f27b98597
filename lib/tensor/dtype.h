/* Element types. The numbers are PyTorch's c10::ScalarType, on the wire and everywhere else; a
 * number once given out is never used for another type. */
#ifndef DT_TENSOR_DTYPE_H
#define DT_TENSOR_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, number, bytes of one element, PyTorch's name) */
#define DT_DTYPE_MAP(X)                                                                            \
    X(DT_DTYPE_U8, 0, 1, "uint8")                                                                  \
    X(DT_DTYPE_I8, 1, 1, "int8")                                                                   \
    X(DT_DTYPE_I16, 2, 2, "int16")                                                                 \
    X(DT_DTYPE_I32, 3, 4, "int32")                                                                 \
    X(DT_DTYPE_I64, 4, 8, "int64")                                                                 \
    X(DT_DTYPE_F16, 5, 2, "float16")                                                               \
    X(DT_DTYPE_F32, 6, 4, "float32")                                                               \
    X(DT_DTYPE_F64, 7, 8, "float64")                                                               \
    X(DT_DTYPE_C32, 8, 4, "complex32")                                                             \
    X(DT_DTYPE_C64, 9, 8, "complex64")                                                             \
    X(DT_DTYPE_C128, 10, 16, "complex128")                                                         \
    X(DT_DTYPE_BOOL, 11, 1, "bool")                                                                \
    X(DT_DTYPE_BF16, 15, 2, "bfloat16")                                                            \
    X(DT_DTYPE_F8_E5M2, 23, 1, "float8_e5m2")                                                      \
    X(DT_DTYPE_F8_E4M3FN, 24, 1, "float8_e4m3fn")                                                  \
    X(DT_DTYPE_F8_E5M2FNUZ, 25, 1, "float8_e5m2fnuz")                                              \
    X(DT_DTYPE_F8_E4M3FNUZ, 26, 1, "float8_e4m3fnuz")                                              \
    X(DT_DTYPE_U16, 27, 2, "uint16")                                                               \
    X(DT_DTYPE_U32, 28, 4, "uint32")                                                               \
    X(DT_DTYPE_U64, 29, 8, "uint64")

typedef enum dt_dtype {
#define X(name, number, bytes, text) name = (number),
    DT_DTYPE_MAP(X)
#undef X
} dt_dtype_t;

#define DT_DTYPE_NUMBER_MAX 29u

/* Bytes of one element; 0 for a number that is no type of ours (from a peer, say). */
size_t dt_dtype_bytes(unsigned number);
/* PyTorch's name without "torch."; "unknown dtype" for others. */
const char *dt_dtype_name(unsigned number);

#endif
