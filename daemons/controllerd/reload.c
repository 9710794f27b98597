/* SIGHUP: the configuration and the certificates again, all or nothing, no connection dropped. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controllerd.h"

/* Make the new certificates serve; on an error the old ones go on. */
static dt_status_t use_tls(dt_controllerd_t *app, dt_controllerd_tls_t *tls, dt_error_t *err)
{
    dt_controllerd_tls_t old = app->tls;
    const dt_rpc_tls_t pem = {.ca = tls->ca, .certificate = tls->chain, .key = tls->key};
    if (tls->is_on != app->tls.is_on)
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "Certificate=: turning TLS on or off needs a restart");
    if (tls->is_on && app->has_tls_listener)
        DT_TRY(dt_rpc_server_reload_tls(app->server, &pem, err));
    app->tls = *tls;
    *tls = (dt_controllerd_tls_t){.is_on = false};
    dt_controllerd_tls_fini(&old);
    return DT_OK;
}

/* The HTTP door keeps its certificate for life: open it again, at the address that it has. */
static void renew_metrics(dt_controllerd_t *app)
{
    char address[128];
    dt_error_t err;
    int code;
    if (!app->metrics || !app->tls.is_on ||
        dt_controllerd_is_local(dt_metrics_address(app->metrics)))
        return;
    (void)dt_str_copy(address, sizeof address, dt_metrics_address(app->metrics));
    dt_metrics_close(app->metrics);
    app->metrics = NULL;
    if (dt_controllerd_metrics_open(app, address, &code, &err) != DT_OK)
        dt_log_err("metrics are off", DT_LOG_E(&err));
}

static dt_status_t reload(dt_controllerd_t *app, dt_strv_t *ret_changed, dt_error_t *err)
{
    dt_controllerd_tls_t tls = {.is_on = false};
    dt_cluster_options_t options;
    dt_log_level_t level;
    dt_conf_t *conf;
    dt_status_t status;
    DT_TRY(dt_conf_reload(app->conf, app->sources, &conf, ret_changed, err));
    status = dt_controllerd_tls_load(conf, dt_clock_wall_ms(dt_clock_system()), &tls, err);
    if (status == DT_OK)
        status = dt_log_level_from_text(dt_conf_enum(conf, "LogLevel"), &level);
    if (status == DT_OK)
        status = use_tls(app, &tls, err);
    if (status == DT_OK) {
        dt_controllerd_cluster_options(app, conf, &options);
        status = dt_cluster_set_options(app->cluster, &options, dt_loop_now_ns(), err);
    }
    dt_controllerd_tls_fini(&tls);
    if (status != DT_OK) {
        dt_conf_free(conf);
        return status;
    }
    dt_conf_free(app->conf);
    app->conf = conf;
    dt_controllerd_session_reload(app);
    dt_log_set_level(level);
    renew_metrics(app);
    dt_controllerd_page_renew(app);
    return DT_OK;
}

void dt_controllerd_reload(dt_controllerd_t *app)
{
    dt_strv_t changed = {.items = NULL};
    dt_error_t err = {.text = "out of memory"};
    if (app->is_stopping)
        return;
    (void)dt_sysd_reloading(dt_loop_now_ns(), NULL);
    if (reload(app, &changed, &err) == DT_OK) {
        dt_log_notice("configuration reloaded", DT_LOG_U("keys_changed", changed.count),
                      DT_LOG_S("config_hash", dt_conf_hash(app->conf)));
        for (size_t i = 0; i < changed.count; i++)
            dt_log_info("configuration changed", DT_LOG_S("key", changed.items[i]));
    } else {
        dt_log_err("configuration not reloaded, the old one goes on", DT_LOG_E(&err));
    }
    dt_strv_fini(&changed);
    app->status_line[0] = '\0';
    if (app->is_ready)
        (void)dt_sysd_ready("serving", NULL);
    dt_controllerd_pump(app);
}
