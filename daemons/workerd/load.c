#include "load.h"

#include <string.h>

static uint8_t percent_of(uint64_t now, uint64_t before, int64_t between_ns)
{
    double part =
        now > before ? (double)(now - before) / (double)between_ns : 0; /* an engine ended */
    return (uint8_t)(part < 1 ? part * 100 + 0.5 : 100);
}

bool dt_load_look(dt_load_t *load, const dt_engines_t *engines,
                  const dt_inventory_snapshot_t *devices, int64_t now_ns,
                  uint8_t percents[DT_DEVICE_MAX])
{
    uint64_t now[DT_DEVICE_MAX];
    int64_t between_ns = now_ns - load->at_ns;
    bool is_first = load->at_ns == 0;
    if (!devices || (!is_first && between_ns < DT_LOAD_PERIOD_NS))
        return false;
    dt_engines_computed(engines, now_ns, now, DT_DEVICE_MAX);
    for (int32_t i = 0; i < devices->device_count && !is_first; i++) {
        int32_t index = devices->devices[i].index;
        percents[i] = percent_of(now[index], load->before[index], between_ns);
    }
    memcpy(load->before, now, sizeof now);
    load->at_ns = now_ns;
    return !is_first;
}
