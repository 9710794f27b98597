/* Protobuf messages as JSON: field names of the .proto, integers as they are, enums as words, bytes
 * as hex. What is absent (value.h) has no key; a list without elements is []. Output is ASCII where
 * a terminal would obey a character, so it is safe to look at. */
#ifndef DT_CTL_JSON_H
#define DT_CTL_JSON_H
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>

#include "pool.h"

/* Write a JSON string with its quotes. What is not UTF-8 becomes U+FFFD. */
void dt_ctl_json_text(FILE *file, const char *text);

/* Write a message as an object on one line. `paths` (`path_count` of them; 0: everything) says
 * which fields: those it names, those under them, those above them. */
void dt_ctl_json_message(dt_arena_t *pool, FILE *file, const ProtobufCMessage *message,
                         const char *const *paths, size_t path_count);

/* Write one field's value (a single one or a list) without its name. */
void dt_ctl_json_field(dt_arena_t *pool, FILE *file, const ProtobufCMessage *message,
                       const ProtobufCFieldDescriptor *field);

#endif
