// Seeing what operators become.
#include "explain.h"

#include "internal.h"

using namespace dt_pu;

int dt_device_explain_begin(void)
{
    return guarded([] {
        dt_error_t err;
        must(dt_explain_begin(session(), &err), err);
        return DT_OK;
    });
}

int dt_device_explain_end(char **ret_json)
{
    return guarded([ret_json] {
        dt_error_t err;
        must(dt_explain_end(session(), ret_json, &err), err);
        return DT_OK;
    });
}

void dt_device_explain_free(char *json)
{
    dt_explain_free(json);
}

int dt_device_heavy_move(dt_heavy_move_t *ret_move)
{
    return guarded([ret_move] {
        dt_error_t err;
        bool is_heavy = false;
        dt_session_t *now = if_session();
        if (now)
            must(dt_heavy_move(now, ret_move, &is_heavy, &err), err);
        return is_heavy ? 1 : 0;
    });
}
