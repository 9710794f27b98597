#include "backend/nccl/api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static const char *why(void)
{
    const char *text = dlerror(); /* NOLINT(concurrency-mt-unsafe): glibc's is one a thread */
    return text ? text : "unknown";
}

dt_status_t dt_nccl_library_open(const char *const *names, void **ret_library, dt_error_t *err)
{
    void *library = NULL;
    for (size_t i = 0; !library && names[i]; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; !library && names[i]; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    *ret_library = library;
    return library ? DT_OK : dt_fail(err, DT_ERR_NOT_FOUND, "nccl", 0, "no NCCL: %s", why());
}

static dt_status_t find(void *library, const char *symbol, void *ret_field, dt_error_t *err)
{
    void *at = dlsym(library, symbol);
    if (!at)
        return dt_fail(err, DT_ERR_NOT_FOUND, "nccl", 0, "the NCCL or CUDA here is too old: %s",
                       why());
    memcpy(ret_field, &at, sizeof at);
    return DT_OK;
}

static dt_status_t find_all(dt_nccl_api_t *api, dt_error_t *err)
{
#define X(field, symbol, result, parameters) DT_TRY(find(api->library, #symbol, &api->field, err));
    DT_NCCL_SYMBOLS(X)
#undef X
#define X(field, symbol, result, parameters) DT_TRY(find(api->runtime, #symbol, &api->field, err));
    DT_NCCL_RUNTIME_SYMBOLS(X)
#undef X
    return DT_OK;
}

dt_status_t dt_nccl_api_open(dt_nccl_api_t *api, const char *library, const char *runtime,
                             dt_error_t *err)
{
    static const char *const usual_runtimes[] = {DT_NCCL_RUNTIME, DT_NCCL_RUNTIME_PAST, NULL};
    static const char *const usual_libraries[] = {DT_NCCL_LIBRARY, NULL};
    const char *const runtimes[] = {runtime, NULL}, *const libraries[] = {library, NULL};
    memset(api, 0, sizeof *api);
    dt_status_t status =
        dt_nccl_library_open(runtime && *runtime ? runtimes : usual_runtimes, &api->runtime, err);
    if (status == DT_OK)
        status = dt_nccl_library_open(library && *library ? libraries : usual_libraries,
                                      &api->library, err);
    if (status == DT_OK)
        status = find_all(api, err);
    if (status != DT_OK)
        dt_nccl_api_close(api);
    return status;
}

void dt_nccl_api_close(dt_nccl_api_t *api)
{
    if (api->library)
        (void)dlclose(api->library);
    if (api->runtime)
        (void)dlclose(api->runtime);
    memset(api, 0, sizeof *api);
}
