/* The public header as a program sees it: nothing of lib/ before it. */
#include "lib/publicheader.h"

#include <dtorch/dtorch.h>

#define ITEM(expression) {#expression, (int64_t)(expression)},
const dt_publicheader_item_t dt_publicheader_items[] = {DT_PUBLICHEADER_MAP(ITEM)};
const size_t dt_publicheader_count = sizeof dt_publicheader_items / sizeof *dt_publicheader_items;
