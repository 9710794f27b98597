/* What the package calls to see what operators become (beside dtorch_device.h, whose words hold).
 * The texts are those of dtorch/explain.h. */
#ifndef DTORCH_EXPLAIN_H
#define DTORCH_EXPLAIN_H
#include <dtorch/explain.h>

extern "C" {

/* Note operators from now on; begins the session if there is none. */
DT_API int dt_device_explain_begin(void);
/* End; gives JSON, free with dt_device_explain_free(). */
DT_API int dt_device_explain_end(char **ret_json);
DT_API void dt_device_explain_free(char *json);
/* End a step. 1: one of its redistributions was heavy, and *ret_move says which; 0: none, or there
 * is no session. */
DT_API int dt_device_heavy_move(dt_heavy_move_t *ret_move);
}
#endif
