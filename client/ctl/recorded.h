/* A recording (wire/recording.h) as lines: each record and each other item becomes a RecordedItem
 * message, which is then printed as all lists are. Signatures that the stream defined are looked
 * up, so an operator shows its name and the metadata of its inputs. A damaged file gives everything
 * that is whole before the damage. Threads: one. */
#ifndef DT_CTL_RECORDED_H
#define DT_CTL_RECORDED_H
#include "conn.h"
#include "dtorch/v1/tool.pb-c.h"
#include "wire/recording.h"
#include "wire/signature.h"

/* Where reading stopped, and why. */
typedef struct dt_ctl_damage {
    int error;         /* dt_frame_error_t; 0: the file is whole */
    uint64_t offset;   /* of the item in the file */
    uint64_t item;     /* its number, from 1; 0: the file's head */
    uint64_t sequence; /* of the record; 0: not within a record */
} dt_ctl_damage_t;

typedef struct dt_ctl_recorded {
    dt_recording_reader_t reader;
    dt_recording_item_t item; /* the one that is read */
    dt_frame_reader_t frame;
    dt_record_t record;
    dt_arena_t kept;             /* signatures */
    dt_signature_t **signatures; /* (signature_cap) by id; NULL: not defined */
    size_t signature_cap;
    uint64_t frame_count, record_count; /* read so far */
    bool is_in_frame;
    bool with_frames; /* frames are lines too */
    dt_ctl_damage_t damage;
} dt_ctl_recorded_t;

/* Begin with a file's bytes, which are borrowed. dt_ctl_recorded_fini() in any case. */
void dt_ctl_recorded_init(dt_ctl_recorded_t *recorded, const uint8_t *bytes, size_t size,
                          bool with_frames);
void dt_ctl_recorded_fini(dt_ctl_recorded_t *recorded);

/* Give the next line, in `pool`; NULL at the end and at the first damage. */
Dtorch__V1__RecordedItem *dt_ctl_recorded_next(dt_ctl_recorded_t *recorded, dt_arena_t *pool);

#endif
