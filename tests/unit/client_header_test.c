/* The public header repeats what lib/ defines, since it cannot include it: both must be the same.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/status.h"
#include "lib/publicheader.h"
#include "tensor/dtype.h"
#include "tensor/meta.h"
#include "tensor/value.h"

TestSuite(client_header, .timeout = 60);

Test(client_header, says_the_same_as_lib)
{
#define ITEM(expression) (int64_t)(expression),
    static const int64_t wanted[] = {DT_PUBLICHEADER_MAP(ITEM)};
    size_t count = sizeof wanted / sizeof *wanted;
    cr_assert_eq(count, dt_publicheader_count);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(dt_publicheader_items[i].value, wanted[i], "%s",
                     dt_publicheader_items[i].name);
}

Test(client_header, has_every_status_and_type_of_lib)
{
    size_t statuses = 0, types = 0, found_statuses = 0, found_types = 0;
#define X(...) statuses++;
    DT_ERR_MAP(X)
#undef X
#define X(...) types++;
    DT_DTYPE_MAP(X)
#undef X
    for (size_t i = 0; i < dt_publicheader_count; i++) {
        const char *name = dt_publicheader_items[i].name;
        found_statuses += strncmp(name, "DT_ERR_", 7) == 0 || strcmp(name, "DT_OK") == 0;
        found_types += strncmp(name, "DT_DTYPE_", 9) == 0;
    }
    cr_assert_eq(statuses, found_statuses, "a new status belongs into the public header too");
    cr_assert_eq(types, found_types, "a new type belongs into the public header too");
}
