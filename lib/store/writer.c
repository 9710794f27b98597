/* Writing segments and snapshots. All of it runs on the journal thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "store/store_internal.h"

static bool failed(dt_store_writer_t *writer, const char *what)
{
    writer->failed_errno = errno;
    writer->failed_what = what;
    return false;
}

/* Write all of it; a short write is followed up, so that its cause shows. */
static bool write_all(const dt_store_io_t *io, int fd, const uint8_t *data, size_t size,
                      uint64_t at)
{
    size_t done = 0;
    while (done < size) {
        ssize_t put = io->write_at(io->arg, fd, data + done, size - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            errno = put == 0 ? EIO : errno;
            return false;
        }
        done += (size_t)put;
    }
    return true;
}

/* Make a file that appears whole or not at all. Gives the descriptor, open for more. */
static bool file_make(dt_store_writer_t *writer, const char *name, const uint8_t *data, size_t size,
                      int *ret_fd)
{
    const dt_store_io_t *io = writer->dir->io;
    char temporary[DT_STORE_NAME_MAX + 4];
    int fd, number;
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", name);
    fd = io->open_at(io->arg, writer->dir->fd, temporary,
                     O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return failed(writer, "cannot make a file");
    if (!write_all(io, fd, data, size, 0))
        (void)failed(writer, "cannot write");
    else if (io->sync(io->arg, fd) < 0)
        (void)failed(writer, "cannot sync");
    else if (io->rename_at(io->arg, writer->dir->fd, temporary, name) < 0)
        (void)failed(writer, "cannot rename");
    else if (io->sync(io->arg, writer->dir->fd) < 0)
        (void)failed(writer, "cannot sync the directory");
    else {
        *ret_fd = fd;
        return true;
    }
    number = errno;
    (void)io->unlink_at(io->arg, writer->dir->fd, temporary);
    close(fd);
    errno = number;
    return false;
}

static bool segment_begin(dt_store_writer_t *writer, uint64_t sequence)
{
    char name[DT_STORE_NAME_MAX];
    uint8_t header[DT_JOURNAL_HEADER_BYTES];
    int fd;
    dt_store_file_name(DT_JOURNAL_SEGMENT, sequence, name);
    dt_journal_put_header(header, DT_JOURNAL_SEGMENT, sequence);
    if (!file_make(writer, name, header, sizeof header, &fd))
        return false;
    if (writer->fd >= 0)
        close(writer->fd);
    writer->fd = fd;
    writer->segment_sequence = sequence;
    writer->offset = sizeof header;
    writer->must_rotate = false;
    return true;
}

dt_status_t dt_store_writer_open(dt_store_writer_t *writer, const dt_store_replayed_t *replayed,
                                 dt_error_t *err)
{
    const dt_store_io_t *io = writer->dir->io;
    char name[DT_STORE_NAME_MAX];
    dt_store_file_name(
        DT_JOURNAL_SEGMENT,
        replayed->segment_sequence ? replayed->segment_sequence : replayed->next_sequence, name);
    writer->fd = -1;
    if (!replayed->segment_sequence) {
        if (!segment_begin(writer, replayed->next_sequence))
            return dt_store_fail_errno(err, writer->failed_errno, writer->failed_what,
                                       writer->dir->path, name);
    } else {
        writer->fd =
            io->open_at(io->arg, writer->dir->fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0);
        if (writer->fd < 0)
            return dt_store_fail_errno(err, errno, "cannot open", writer->dir->path, name);
        writer->segment_sequence = replayed->segment_sequence;
        writer->offset = replayed->segment_bytes;
    }
    /* A full disk shows here, before anybody is told that the daemon is ready. */
    if (io->reserve(io->arg, writer->fd, (off_t)writer->offset, DT_STORE_RESERVE_BYTES) < 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EROFS || errno == EIO || errno == EFBIG)) {
        int number = errno;
        dt_store_writer_close(writer);
        return dt_store_fail_errno(err, number, "no room to write", writer->dir->path, name);
    }
    (void)io->truncate(io->arg, writer->fd, (off_t)writer->offset); /* gives it back */
    return DT_OK;
}

void dt_store_writer_close(dt_store_writer_t *writer)
{
    if (writer->fd < 0)
        return;
    close(writer->fd);
    writer->fd = -1;
}

static bool is_removed(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && info.st_nlink == 0;
}

bool dt_store_writer_put(dt_store_writer_t *writer, const uint8_t *data, size_t size,
                         uint64_t sequence)
{
    const dt_store_io_t *io = writer->dir->io;
    int64_t before_ns;
    int done;
    if (writer->fd < 0 || writer->must_rotate ||
        (writer->offset + size > writer->segment_max && writer->offset > DT_JOURNAL_HEADER_BYTES)) {
        if (!segment_begin(writer, sequence))
            return false;
    }
    if (!write_all(io, writer->fd, data, size, writer->offset)) {
        int number = errno;
        /* No room: these bytes, which stay the same, go to this place again. Anything else: what
         * the file holds from here on is not known, and it is left behind. */
        writer->must_rotate = number != ENOSPC && number != EDQUOT && number != EFBIG;
        (void)io->truncate(io->arg, writer->fd, (off_t)writer->offset);
        errno = number;
        return failed(writer, "cannot write the journal");
    }
    before_ns = dt_clock_mono_ns(dt_clock_system());
    done = io->data_sync(io->arg, writer->fd);
    writer->sync_ns = dt_clock_mono_ns(dt_clock_system()) - before_ns;
    if (done < 0) {
        int number = errno;
        /* The kernel may have dropped the pages and marked them clean: never sync them again. */
        writer->must_rotate = true;
        (void)io->truncate(io->arg, writer->fd, (off_t)writer->offset);
        errno = number;
        return failed(writer, "cannot sync the journal");
    }
    if (is_removed(writer->fd)) { /* what is in it now, nobody will find again */
        errno = ENOENT;
        return failed(writer, "cannot write the journal, whose file was removed");
    }
    writer->offset += size;
    return true;
}

static void remove_file(dt_store_writer_t *writer, dt_journal_kind_t kind, uint64_t sequence)
{
    char name[DT_STORE_NAME_MAX];
    dt_store_file_name(kind, sequence, name);
    (void)writer->dir->io->unlink_at(writer->dir->io->arg, writer->dir->fd, name);
}

/* Keep the newest snapshots, and the segments that the oldest of them needs. */
static void remove_old(dt_store_writer_t *writer)
{
    dt_store_listing_t listing;
    uint32_t removed;
    uint64_t oldest;
    if (dt_store_directory_list(writer->dir, &removed, &listing, NULL) != DT_OK)
        return;
    if (listing.snapshot_count >= DT_STORE_SNAPSHOTS_KEPT) {
        size_t old_count = listing.snapshot_count - DT_STORE_SNAPSHOTS_KEPT;
        oldest = listing.snapshots[old_count].sequence;
        for (size_t i = 0; i < old_count; i++)
            remove_file(writer, DT_JOURNAL_SNAPSHOT, listing.snapshots[i].sequence);
        for (size_t i = 0; i + 1 < listing.segment_count; i++) {
            if (listing.segments[i + 1].sequence <= oldest + 1)
                remove_file(writer, DT_JOURNAL_SEGMENT, listing.segments[i].sequence);
        }
    }
    dt_store_listing_fini(&listing);
}

bool dt_store_writer_snapshot(dt_store_writer_t *writer, const uint8_t *data, size_t size,
                              uint64_t sequence)
{
    char name[DT_STORE_NAME_MAX];
    int fd;
    dt_store_file_name(DT_JOURNAL_SNAPSHOT, sequence, name);
    if (!file_make(writer, name, data, size, &fd))
        return false;
    close(fd);
    writer->must_rotate = true; /* so that the segment up to here can go, one snapshot later */
    remove_old(writer);
    return true;
}
