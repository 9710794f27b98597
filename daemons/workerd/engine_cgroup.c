#include "engine_cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/strings.h"

#define DT_ENGINE_PROCESSES_MAX "1024"

static bool file_write(const char *directory, const char *name, const char *text)
{
    char path[4224];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = length < (int)sizeof path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t wrote = write(fd, text, strlen(text));
    (void)close(fd);
    return wrote == (ssize_t)strlen(text);
}

/* Find a line that begins with `prefix` in a file of the kernel; give what follows. */
static bool line_find(const char *path, const char *prefix, char *rest, size_t size)
{
    char text[16384];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!dt_str_has_prefix(line, prefix))
            continue;
        line += strlen(prefix);
        return snprintf(rest, size, "%.*s", (int)strcspn(line, "\n"), line) < (int)size;
    }
    return false;
}

/* systemd marks what it delegates by an attribute, whose name depends on who may read it. */
static bool is_delegated(const char *path)
{
    char value[8];
    static const char *const names[] = {"trusted.delegate", "user.delegate"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getxattr(path, names[i], value, sizeof value) == 1 && value[0] == '1')
            return true;
    return false;
}

static void remove_stale(const char *directory)
{
    char path[4096 + 256];
    DIR *folder = opendir(directory);
    if (!folder)
        return;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (dt_str_has_prefix(entry->d_name, "engine-") &&
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) < (int)sizeof path)
            (void)rmdir(path);
    (void)closedir(folder);
}

/* A restarted agent may find itself in `agent` already. */
static void own_group_cut(char *own)
{
    size_t length = strlen(own);
    if (dt_str_has_suffix(own, "/agent"))
        own[length - strlen("/agent")] = '\0';
}

dt_status_t dt_engine_cgroup_open(dt_engine_cgroup_t *ret_cgroup, dt_error_t *err)
{
    char own[2048];
    char path[4096];
    char agent[4160];
    struct stat info;
    ret_cgroup->path[0] = '\0';
    if (!line_find("/proc/self/cgroup", "0::", own, sizeof own))
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "no unified cgroup hierarchy");
    own_group_cut(own);
    /* On a host with both hierarchies the unified one has no controllers, but groups all the same.
     */
    bool is_unified = stat("/sys/fs/cgroup/cgroup.procs", &info) == 0;
    (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s%s", is_unified ? "" : "/unified", own);
    if (stat(path, &info))
        return dt_fail(err, DT_ERR_NOT_FOUND, "errno", errno, "%s: %s", path, strerror(errno));
    if (!is_delegated(path))
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0,
                       "%s is not delegated; Delegate=yes in the unit would", path);
    (void)snprintf(agent, sizeof agent, "%s/agent", path);
    if ((mkdir(agent, 0755) && errno != EEXIST) || !file_write(agent, "cgroup.procs", "0"))
        return dt_fail(err, DT_ERR_NOT_FOUND, "errno", errno, "%s cannot be made and joined: %s",
                       agent, strerror(errno));
    remove_stale(path);
    /* Each may be missing here; without one its bound is. */
    (void)file_write(path, "cgroup.subtree_control", "+memory");
    (void)file_write(path, "cgroup.subtree_control", "+pids");
    (void)file_write(path, "cgroup.subtree_control", "+cpu");
    (void)dt_str_copy(ret_cgroup->path, sizeof ret_cgroup->path, path);
    return DT_OK;
}

dt_status_t dt_engine_cgroup_make(const dt_engine_cgroup_t *cgroup, uint32_t id, char *path,
                                  size_t size, dt_error_t *err)
{
    if (cgroup->path[0] == '\0') {
        (void)dt_str_copy(path, size, "-");
        return DT_OK;
    }
    if (snprintf(path, size, "%s/engine-%" PRIu32, cgroup->path, id) >= (int)size)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "%s: the path is too long", cgroup->path);
    if (mkdir(path, 0755) && errno != EEXIST)
        return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", path, strerror(errno));
    (void)file_write(path, "pids.max", DT_ENGINE_PROCESSES_MAX);
    (void)file_write(path, "memory.oom.group", "1");
    return DT_OK;
}

bool dt_engine_cgroup_had_oom(const dt_engine_cgroup_t *cgroup, uint32_t id)
{
    char path[4224];
    char count[32];
    if (cgroup->path[0] == '\0')
        return false;
    (void)snprintf(path, sizeof path, "%s/engine-%" PRIu32 "/memory.events", cgroup->path, id);
    return line_find(path, "oom_kill ", count, sizeof count) && !dt_str_is_equal(count, "0");
}

void dt_engine_cgroup_remove(const dt_engine_cgroup_t *cgroup, uint32_t id)
{
    char path[4224];
    if (cgroup->path[0] == '\0')
        return;
    (void)snprintf(path, sizeof path, "%s/engine-%" PRIu32, cgroup->path, id);
    (void)rmdir(path);
}
