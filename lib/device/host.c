/* Memory and processor of the host. */
#include "device/host.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "device/sysfile.h"

/* "KEY: 123 kB" in bytes, 0 if it is not there. */
static uint64_t field_bytes(const char *text, const char *key)
{
    char value[64];
    uint64_t kib;
    if (dt_sysfile_field(text, key, value, sizeof value) != DT_OK)
        return 0;
    value[strcspn(value, " ")] = '\0';
    return dt_sysfile_parse_uint(value, UINT64_MAX >> 10, &kib) == DT_OK ? kib << 10 : 0;
}

/* The smallest limit from this process's cgroup up to the root, UINT64_MAX if there is none. */
static uint64_t cgroup_limit(const char *root)
{
    char text[1024], path[DT_SYSFILE_PATH_MAX], limit[32];
    uint64_t least = UINT64_MAX, bytes;
    char *group, *slash;
    if (dt_sysfile_read(root, "/proc/self/cgroup", text, sizeof text) != DT_OK)
        return least;
    group = strstr(text, "0::/");
    if (!group)
        return least;
    group += strlen("0::");
    group[strcspn(group, "\n")] = '\0';
    for (;;) {
        if ((size_t)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group) <
                sizeof path &&
            dt_sysfile_read(root, path, limit, sizeof limit) == DT_OK &&
            dt_sysfile_parse_uint(limit, UINT64_MAX, &bytes) == DT_OK && bytes < least)
            least = bytes;
        slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

void dt_host_memory(const char *root, uint64_t *ret_total, uint64_t *ret_used)
{
    char text[4096];
    uint64_t limit = cgroup_limit(root), available;
    *ret_total = *ret_used = 0;
    if (dt_sysfile_read(root, "/proc/meminfo", text, sizeof text) != DT_OK)
        return;
    *ret_total = field_bytes(text, "MemTotal");
    available = field_bytes(text, "MemAvailable");
    *ret_used = *ret_total > available ? *ret_total - available : 0;
    if (limit < *ret_total)
        *ret_total = limit;
    if (*ret_used > *ret_total)
        *ret_used = *ret_total;
}

void dt_host_node_memory(const char *root, int32_t node, uint64_t *ret_total, uint64_t *ret_used)
{
    char text[4096], path[64], key[32];
    *ret_total = *ret_used = 0;
    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    if (dt_sysfile_read(root, path, text, sizeof text) != DT_OK)
        return;
    (void)snprintf(key, sizeof key, "Node %d MemTotal", node);
    *ret_total = field_bytes(text, key);
    (void)snprintf(key, sizeof key, "Node %d MemUsed", node);
    *ret_used = field_bytes(text, key);
}

void dt_host_cpu_name(const char *root, char *ret_name, size_t size)
{
    static const char *const keys[] = {"model name", "Model", "cpu model", "cpu", "Hardware"};
    char text[8192];
    struct utsname host;
    if (dt_sysfile_read(root, "/proc/cpuinfo", text, sizeof text) == DT_OK)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (dt_sysfile_field(text, keys[i], ret_name, size) == DT_OK && *ret_name)
                return;
    (void)snprintf(ret_name, size, "%s processor", uname(&host) == 0 ? host.machine : "unknown");
}

uint32_t dt_host_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    return (uint32_t)CPU_COUNT(&set);
}
