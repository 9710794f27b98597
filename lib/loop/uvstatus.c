#include "loop/uvstatus.h"

#include <uv.h>

dt_status_t dt_status_from_uv(int rc)
{
    if (rc >= 0)
        return DT_OK;
    switch (rc) {
    case UV_ENOMEM:
    case UV_ENOBUFS:
        return DT_ERR_NOMEM;
    case UV_EAGAIN:
    case UV_EMFILE:
    case UV_ENFILE:
        return DT_ERR_AGAIN;
    case UV_ENOENT:
        return DT_ERR_NOT_FOUND;
    case UV_EEXIST:
        return DT_ERR_EXISTS;
    case UV_EACCES:
    case UV_EPERM:
        return DT_ERR_DENIED;
    case UV_ECANCELED:
        return DT_ERR_STOPPED;
    case UV_EOF:
    case UV_EPIPE:
    case UV_ECONNRESET:
    case UV_ECONNREFUSED:
    case UV_ETIMEDOUT:
        return DT_ERR_PEER;
    default:
        return DT_ERR_INVALID;
    }
}
