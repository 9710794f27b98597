/* Fuzzes the option parser. The first byte picks the program, the rest is a file.
 * A file that is taken must survive its own dump: the same hash comes back. A secret is in no dump.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "conf/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dump(const dt_conf_table_t *table, const dt_conf_t *conf)
{
    dt_conf_t *again = NULL;
    dt_error_t err = {0};
    dt_buf_t dump;
    dt_buf_init(&dump, DT_CONF_TEXT_MAX);

    dt_check(dt_conf_dump(conf, &dump) == DT_OK);
    dt_check(dt_conf_parse(table, "dump", (const char *)dump.data, dump.len, &again, &err) ==
             DT_OK);
    dt_check(strcmp(dt_conf_hash(conf), dt_conf_hash(again)) == 0);
    for (size_t i = 0; i < dt_conf_entry_count(conf); i++) {
        dt_conf_entry_t a, b;
        dt_conf_entry(conf, i, &a);
        dt_conf_entry(again, i, &b);
        dt_check(strcmp(b.value, a.option->is_secret ? "" : a.value) == 0);
    }
    dt_conf_free(again);
    dt_buf_fini(&dump);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const dt_conf_table_t *const tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                             dt_conf_table_client()};
    dt_conf_t *conf = NULL;
    dt_error_t err = {0};

    if (!size)
        return 0;
    const dt_conf_table_t *table = tables[data[0] % 3];
    dt_status_t status =
        dt_conf_parse(table, "fuzz", (const char *)data + 1, size - 1, &conf, &err);
    if (status != DT_OK) {
        dt_check(status == DT_ERR_INVALID && err.text[0]);
        return 0;
    }
    check_dump(table, conf);
    dt_conf_free(conf);
    return 0;
}
