/* The state directory: its mode, its lock, the names in it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strings.h"
#include "store/store_internal.h"

#define LOCK_NAME  "lock"
#define LOCK_TRIES 16

dt_status_t dt_store_status_from_errno(int number)
{
    switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
        return DT_ERR_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
        return DT_ERR_LIMIT;
    case ENOENT:
        return DT_ERR_NOT_FOUND;
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
        return DT_ERR_INVALID;
    case ENOMEM:
        return DT_ERR_NOMEM;
    default:
        return DT_ERR_INTERNAL;
    }
}

dt_status_t dt_store_fail_errno(dt_error_t *err, int number, const char *what, const char *path,
                                const char *name)
{
    const char *text = strerrordesc_np(number);
    return dt_fail(err, dt_store_status_from_errno(number), "errno", number, "%s %s%s%s: %s", what,
                   path, name ? "/" : "", name ? name : "", text ? text : "unknown error");
}

void dt_store_file_name(dt_journal_kind_t kind, uint64_t sequence, char name[DT_STORE_NAME_MAX])
{
    (void)snprintf(name, DT_STORE_NAME_MAX,
                   kind == DT_JOURNAL_SEGMENT ? "journal-%020" PRIu64 ".log"
                                              : "snapshot-%020" PRIu64 ".snap",
                   sequence);
}

/* Say who holds the lock, from what the holder wrote into it. */
static dt_status_t fail_held(const dt_store_directory_t *dir, int fd, dt_error_t *err)
{
    char holder[128];
    ssize_t size = pread(fd, holder, sizeof holder - 1, 0);
    char *host;
    holder[size > 0 ? size : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    host = strchr(holder, ' ');
    if (!host || !dt_str_is_utf8(holder, strlen(holder)))
        return dt_fail(err, DT_ERR_EXISTS, "dt", 0,
                       "state directory %s is held by another process that just started",
                       dir->path);
    *host++ = '\0';
    return dt_fail(err, DT_ERR_EXISTS, "dt", 0,
                   "state directory %s is held by process %s on host %s; stop that one first, or "
                   "give this one a StateDirectory= of its own",
                   dir->path, holder, host);
}

static int write_holder(const dt_store_io_t *io, int fd)
{
    char host[65] = "?", text[128];
    int size;
    if (gethostname(host, sizeof host - 1) < 0)
        (void)dt_str_copy(host, sizeof host, "?");
    size = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    if (io->truncate(io->arg, fd, 0) < 0)
        return -1;
    return io->write_at(io->arg, fd, text, (size_t)size, 0) == size ? 0 : -1;
}

/* A clean end removes the lock file, so the name may have gone while we waited: look again. */
static bool is_still_named(const dt_store_directory_t *dir, int fd)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 &&
           fstatat(dir->fd, LOCK_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

static dt_status_t take_lock(dt_store_directory_t *dir, dt_error_t *err)
{
    const dt_store_io_t *io = dir->io;
    for (int i = 0; i < LOCK_TRIES; i++) {
        int fd = io->open_at(io->arg, dir->fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                             0600);
        if (fd < 0)
            return dt_store_fail_errno(err, errno, "cannot open", dir->path, LOCK_NAME);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int number = errno;
            dt_status_t status =
                number == EWOULDBLOCK
                    ? fail_held(dir, fd, err)
                    : dt_store_fail_errno(err, number, "cannot lock", dir->path, LOCK_NAME);
            close(fd);
            return status;
        }
        if (!is_still_named(dir, fd)) {
            close(fd);
            continue;
        }
        if (write_holder(io, fd) < 0) {
            int number = errno;
            (void)io->unlink_at(io->arg, dir->fd, LOCK_NAME);
            close(fd);
            return dt_store_fail_errno(err, number, "cannot write", dir->path, LOCK_NAME);
        }
        dir->lock_fd = fd;
        return DT_OK;
    }
    return dt_fail(err, DT_ERR_EXISTS, "dt", 0,
                   "state directory %s: the lock file keeps being replaced by other processes",
                   dir->path);
}

dt_status_t dt_store_directory_open(dt_store_directory_t *dir, const dt_store_io_t *io,
                                    const char *path, dt_error_t *err)
{
    struct stat st;
    dt_status_t status;
    *dir = (dt_store_directory_t){.io = io, .fd = -1, .lock_fd = -1, .path = strdup(path)};
    if (!dir->path)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    if (mkdir(path, DT_STORE_DIRECTORY_MODE) < 0 && errno != EEXIST) {
        status = dt_store_fail_errno(err, errno, "cannot make the state directory", path, NULL);
        goto failed;
    }
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0 || fstat(dir->fd, &st) < 0) {
        status = dt_store_fail_errno(err, errno, "cannot open the state directory", path, NULL);
        goto failed;
    }
    if ((st.st_mode & 07777) != DT_STORE_DIRECTORY_MODE &&
        fchmod(dir->fd, DT_STORE_DIRECTORY_MODE) < 0) {
        status = dt_store_fail_errno(err, errno, "cannot set mode 0700 of", path, NULL);
        goto failed;
    }
    status = take_lock(dir, err);
    if (status == DT_OK)
        return DT_OK;
failed:
    dt_store_directory_close(dir);
    return status;
}

void dt_store_directory_close(dt_store_directory_t *dir)
{
    if (dir->lock_fd >= 0) {
        if (is_still_named(dir, dir->lock_fd))
            (void)dir->io->unlink_at(dir->io->arg, dir->fd, LOCK_NAME);
        close(dir->lock_fd);
    }
    if (dir->fd >= 0)
        close(dir->fd);
    free(dir->path);
    *dir = (dt_store_directory_t){.io = dir->io, .fd = -1, .lock_fd = -1};
}

/* Whether `name` is prefix, 20 digits, suffix. */
static bool name_parse(const char *name, dt_journal_kind_t kind, uint64_t *ret_sequence)
{
    char again[DT_STORE_NAME_MAX];
    uint64_t sequence = 0;
    const char *digit = strchr(name, '-');
    if (!digit)
        return false;
    for (int i = 0; i < 20; i++) {
        unsigned value = (unsigned char)*++digit - '0';
        if (value > 9 || __builtin_mul_overflow(sequence, 10, &sequence) ||
            __builtin_add_overflow(sequence, value, &sequence))
            return false;
    }
    dt_store_file_name(kind, sequence, again);
    *ret_sequence = sequence;
    return dt_str_is_equal(name, again);
}

static dt_status_t listing_add(dt_store_file_t **files, size_t *count, uint64_t sequence)
{
    dt_store_file_t *grown = *files;
    if ((*count & (*count - 1)) == 0) { /* at 0 and at powers of two the room is used up */
        grown = realloc(*files, (*count ? *count * 2 : 1) * sizeof **files);
        if (!grown)
            return DT_ERR_NOMEM;
        *files = grown;
    }
    grown[(*count)++] = (dt_store_file_t){.sequence = sequence};
    return DT_OK;
}

static int by_sequence(const void *a, const void *b)
{
    const dt_store_file_t *x = a, *y = b;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

static dt_status_t listing_take(dt_store_directory_t *dir, const char *name, uint32_t *removed,
                                dt_store_listing_t *listing, dt_error_t *err)
{
    uint64_t sequence;
    dt_status_t status = DT_OK;
    if (dt_str_has_suffix(name, ".tmp")) {
        if (!dt_str_has_prefix(name, "journal-") && !dt_str_has_prefix(name, "snapshot-"))
            return DT_OK;
        if (dir->io->unlink_at(dir->io->arg, dir->fd, name) < 0)
            return dt_store_fail_errno(err, errno, "cannot remove", dir->path, name);
        ++*removed;
    } else if (name_parse(name, DT_JOURNAL_SEGMENT, &sequence)) {
        status = listing_add(&listing->segments, &listing->segment_count, sequence);
    } else if (name_parse(name, DT_JOURNAL_SNAPSHOT, &sequence)) {
        status = listing_add(&listing->snapshots, &listing->snapshot_count, sequence);
    }
    return status == DT_OK ? DT_OK : dt_fail(err, status, "dt", 0, "out of memory");
}

dt_status_t dt_store_directory_list(dt_store_directory_t *dir, uint32_t *ret_removed,
                                    dt_store_listing_t *ret_listing, dt_error_t *err)
{
    dt_store_listing_t listing = {.segments = NULL};
    dt_status_t status = DT_OK;
    struct dirent *entry;
    int fd = dup(dir->fd);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    *ret_removed = 0;
    if (!stream) {
        status = dt_store_fail_errno(err, errno, "cannot list", dir->path, NULL);
        if (fd >= 0)
            close(fd);
        return status;
    }
    rewinddir(stream); /* the descriptor shares its position with dir->fd */
    errno = 0;
    while (status == DT_OK && (entry = readdir(stream)) != NULL) {
        status = listing_take(dir, entry->d_name, ret_removed, &listing, err);
        errno = 0;
    }
    if (status == DT_OK && errno != 0)
        status = dt_store_fail_errno(err, errno, "cannot list", dir->path, NULL);
    closedir(stream);
    if (status != DT_OK) {
        dt_store_listing_fini(&listing);
        return status;
    }
    if (listing.segment_count)
        qsort(listing.segments, listing.segment_count, sizeof *listing.segments, by_sequence);
    if (listing.snapshot_count)
        qsort(listing.snapshots, listing.snapshot_count, sizeof *listing.snapshots, by_sequence);
    *ret_listing = listing;
    return DT_OK;
}

void dt_store_listing_fini(dt_store_listing_t *listing)
{
    free(listing->segments);
    free(listing->snapshots);
    *listing = (dt_store_listing_t){.segments = NULL};
}
