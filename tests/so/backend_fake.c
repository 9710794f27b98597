/* The backend of tests/lib/fakebackend.h as a shared object: an engine loads it. */
#include "lib/fakebackend.h"

__attribute__((visibility("default"))) const dt_backend_t *dt_backend_get(int abi);
const dt_backend_t *dt_backend_get(int abi)
{
    return abi == DT_BACKEND_ABI ? &fake_backend : NULL;
}
