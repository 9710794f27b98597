/* The configuration object: values, getters, hash, reload. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/nearest.h"
#include "conf/conf_internal.h"

enum { CONF_VALUE_SHOWN = 128, CONF_OPTIONS_MAX = 80 };

size_t dt_conf_find(const dt_conf_table_t *table, const char *key)
{
    size_t i = 0;
    while (i < table->option_count && strcmp(table->options[i].name, key) != 0)
        i++;
    return i;
}

const char *dt_conf_nearest_key(const dt_conf_table_t *table, const char *word)
{
    const char *names[CONF_OPTIONS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < table->option_count && count < CONF_OPTIONS_MAX; i++)
        names[count++] = table->options[i].name;
    return dt_nearest(word, names, count);
}

static dt_status_t out_of_memory(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory while reading the configuration");
}

dt_status_t dt_conf_create(const dt_conf_table_t *table, dt_conf_t **ret_conf, dt_error_t *err)
{
    dt_status_t status = DT_OK;
    dt_conf_t *conf = calloc(1, sizeof *conf + table->option_count * sizeof *conf->values);
    if (!conf)
        return out_of_memory(err);
    conf->table = table;
    for (size_t i = 0; i < table->option_count && status == DT_OK; i++)
        status = dt_conf_set(conf, i, "", "default", err);
    if (status != DT_OK) {
        dt_conf_free(conf);
        return status;
    }
    *ret_conf = conf;
    return DT_OK;
}

void dt_conf_free(dt_conf_t *conf)
{
    if (!conf)
        return;
    for (size_t i = 0; i < conf->table->option_count; i++)
        dt_conf_value_fini(&conf->values[i]);
    free(conf);
}

void dt_conf_freep(dt_conf_t **conf)
{
    dt_conf_free(*conf);
}

dt_status_t dt_conf_set(dt_conf_t *conf, size_t index, const char *text, const char *origin,
                        dt_error_t *err)
{
    const dt_conf_option_t *option = &conf->table->options[index];
    char reason[DT_CONF_REASON_MAX];
    dt_conf_value_t value;
    bool is_default = !*text;

    dt_status_t status =
        dt_conf_value_parse(option, is_default ? option->dflt : text, &value, reason);
    if (status == DT_ERR_INVALID && option->is_secret)
        return dt_fail(err, status, "dt", 0, "%s: %s: %s", origin, option->name, reason);
    if (status == DT_ERR_INVALID) {
        const char *shown = strlen(text) > CONF_VALUE_SHOWN ? "…" : "";
        return dt_fail(err, status, "dt", 0, "%s: %s=%.*s%s: %s", origin, option->name,
                       CONF_VALUE_SHOWN, text, shown, reason);
    }
    if (status != DT_OK)
        return out_of_memory(err);
    value.is_default = is_default;
    value.origin = strdup(is_default ? "default" : origin);
    if (!value.origin) {
        dt_conf_value_fini(&value);
        return out_of_memory(err);
    }
    dt_conf_value_fini(&conf->values[index]);
    conf->values[index] = value;
    return DT_OK;
}

void dt_conf_seal(dt_conf_t *conf)
{
    uint64_t hash = dt_hash_str(DT_HASH_SEED, conf->table->section);

    for (size_t i = 0; i < conf->table->option_count; i++) {
        if (conf->table->options[i].is_local || conf->table->options[i].is_secret)
            continue;
        hash = dt_hash_str(hash, conf->table->options[i].name);
        hash = dt_hash_str(hash, conf->values[i].text);
    }
    (void)snprintf(conf->hash, sizeof conf->hash, "%016" PRIx64, hash);
}

dt_status_t dt_conf_load(const dt_conf_table_t *table, const dt_conf_sources_t *sources,
                         dt_conf_t **ret_conf, dt_error_t *err)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;

    DT_TRY(dt_conf_create(table, &conf, err));
    DT_TRY(dt_conf_apply_sources(conf, sources, err));
    dt_conf_seal(conf);
    if (sources->check)
        DT_TRY(sources->check(conf, err));
    *ret_conf = DT_TAKE(conf);
    return DT_OK;
}

dt_status_t dt_conf_parse(const dt_conf_table_t *table, const char *name, const char *text,
                          size_t len, dt_conf_t **ret_conf, dt_error_t *err)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;

    DT_TRY(dt_conf_create(table, &conf, err));
    DT_TRY(dt_conf_apply_text(conf, name, text, len, err));
    dt_conf_seal(conf);
    *ret_conf = DT_TAKE(conf);
    return DT_OK;
}

/* The value of a key that must be in the table with this type. */
static const dt_conf_value_t *get(const dt_conf_t *conf, const char *key, dt_conf_type_t type)
{
    size_t index = dt_conf_find(conf->table, key);
    dt_check(index < conf->table->option_count);
    dt_check(conf->table->options[index].type == type);
    return &conf->values[index];
}

bool dt_conf_bool(const dt_conf_t *conf, const char *key)
{
    return get(conf, key, DT_CONF_BOOL)->num != 0;
}

int64_t dt_conf_int(const dt_conf_t *conf, const char *key)
{
    return get(conf, key, DT_CONF_INT)->num;
}

int64_t dt_conf_duration_ns(const dt_conf_t *conf, const char *key)
{
    return get(conf, key, DT_CONF_DURATION)->num;
}

int64_t dt_conf_size(const dt_conf_t *conf, const char *key)
{
    return get(conf, key, DT_CONF_SIZE)->num;
}

const char *dt_conf_str(const dt_conf_t *conf, const char *key)
{
    size_t index = dt_conf_find(conf->table, key);
    dt_check(index < conf->table->option_count);
    bool is_path = conf->table->options[index].type == DT_CONF_PATH;
    return get(conf, key, is_path ? DT_CONF_PATH : DT_CONF_STRING)->text;
}

const dt_strv_t *dt_conf_list(const dt_conf_t *conf, const char *key)
{
    return &get(conf, key, DT_CONF_LIST)->list;
}

const char *dt_conf_enum(const dt_conf_t *conf, const char *key)
{
    return get(conf, key, DT_CONF_ENUM)->text;
}

bool dt_conf_is_default(const dt_conf_t *conf, const char *key)
{
    size_t index = dt_conf_find(conf->table, key);
    dt_check(index < conf->table->option_count);
    return conf->values[index].is_default;
}

size_t dt_conf_entry_count(const dt_conf_t *conf)
{
    return conf->table->option_count;
}

void dt_conf_entry(const dt_conf_t *conf, size_t index, dt_conf_entry_t *ret_entry)
{
    dt_check(index < conf->table->option_count);
    *ret_entry = (dt_conf_entry_t){
        .option = &conf->table->options[index],
        .section = conf->table->section,
        .value = conf->table->options[index].is_secret && *conf->values[index].text
                     ? "(secret)"
                     : conf->values[index].text,
        .origin = conf->values[index].origin,
    };
}

const char *dt_conf_hash(const dt_conf_t *conf)
{
    return conf->hash;
}

dt_status_t dt_conf_dump(const dt_conf_t *conf, dt_buf_t *out)
{
    DT_TRY(dt_buf_printf(out, "# %s, configuration hash %s\n[%s]\n", conf->table->program,
                         conf->hash, conf->table->section));
    for (size_t i = 0; i < conf->table->option_count; i++) {
        const dt_conf_value_t *value = &conf->values[i];
        bool is_hidden = conf->table->options[i].is_secret && *value->text;
        DT_TRY(dt_buf_printf(out, "# from: %s\n%s%s=%s\n", value->origin, is_hidden ? "#" : "",
                             conf->table->options[i].name, is_hidden ? "(secret)" : value->text));
    }
    return DT_OK;
}

dt_status_t dt_conf_fail(const dt_conf_t *conf, const char *key, dt_error_t *err, const char *fmt,
                         ...)
{
    char text[sizeof err->text];
    size_t index = dt_conf_find(conf->table, key);
    dt_check(index < conf->table->option_count);
    dt_conf_entry_t entry;
    dt_conf_entry(conf, index, &entry);

    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: %s=%.*s: %s", entry.origin, key,
                   CONF_VALUE_SHOWN, entry.value, text);
}

/* Name what differs, and in *ret_fixed what of it needs a restart. */
static dt_status_t compare(const dt_conf_t *a, const dt_conf_t *b, dt_strv_t *ret_changed,
                           dt_buf_t *ret_fixed)
{
    for (size_t i = 0; i < a->table->option_count; i++) {
        const dt_conf_option_t *option = &a->table->options[i];
        if (strcmp(a->values[i].text, b->values[i].text) == 0)
            continue;
        DT_TRY(dt_strv_append(ret_changed, option->name));
        if (!option->is_reloadable)
            DT_TRY(dt_buf_printf(ret_fixed, "%s%s", ret_fixed->len ? ", " : "", option->name));
    }
    return DT_OK;
}

dt_status_t dt_conf_reload(const dt_conf_t *current, const dt_conf_sources_t *sources,
                           dt_conf_t **ret_conf, dt_strv_t *ret_changed, dt_error_t *err)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;
    DT_CLEANUP(dt_strv_fini) dt_strv_t changed = {0};
    DT_CLEANUP(dt_buf_fini) dt_buf_t fixed;
    const char *text;
    dt_buf_init(&fixed, DT_CONF_TEXT_MAX);

    DT_TRY(dt_conf_load(current->table, sources, &conf, err));
    if (compare(current, conf, &changed, &fixed) != DT_OK || dt_buf_text(&fixed, &text) != DT_OK)
        return out_of_memory(err);
    if (fixed.len)
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "nothing was reloaded, as these keys need a restart: %s", text);
    *ret_conf = DT_TAKE(conf);
    *ret_changed = changed;
    changed = (dt_strv_t){0};
    return DT_OK;
}
