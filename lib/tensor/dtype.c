#include "tensor/dtype.h"

static const struct {
    uint8_t bytes;
    const char *name;
} table[DT_DTYPE_NUMBER_MAX + 1] = {
#define X(name, number, bytes, text) [number] = {bytes, text},
    DT_DTYPE_MAP(X)
#undef X
};

size_t dt_dtype_bytes(unsigned number)
{
    return number <= DT_DTYPE_NUMBER_MAX ? table[number].bytes : 0;
}

const char *dt_dtype_name(unsigned number)
{
    return dt_dtype_bytes(number) ? table[number].name : "unknown dtype";
}
