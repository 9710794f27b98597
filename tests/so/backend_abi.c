/* A backend of another ABI. */
#include "device/backend.h"

__attribute__((visibility("default"))) const dt_backend_t *dt_backend_get(int abi);
const dt_backend_t *dt_backend_get(int abi)
{
    static const dt_backend_t table = {
        .struct_size = sizeof(dt_backend_t), .abi = DT_BACKEND_ABI + 7, .name = "abi"};
    (void)abi;
    return &table;
}
