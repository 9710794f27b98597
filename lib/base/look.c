#include "base/look.h"

bool dt_look_begin(dt_look_t *look)
{
    if (look->store >= 0)
        return true;
    if (++look->store == 0)
        look->store = DT_LOOK_ANEW;
    return false;
}

void dt_look_end(dt_look_t *look, bool has_paid)
{
    look->store += has_paid ? 1 : -DT_LOOK_MISS;
    if (look->store > DT_LOOK_MOST)
        look->store = DT_LOOK_MOST;
    else if (look->store < 0)
        look->store = -DT_LOOK_REST;
}
