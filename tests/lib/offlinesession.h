/* A session of libdtorch as it is after its welcome, without an I/O thread or a connection: for
 * tests that are both sides themselves. */
#ifndef DT_TESTS_OFFLINESESSION_H
#define DT_TESTS_OFFLINESESSION_H
#include "client/src/client.h"

/* On one device, with so much credit. Ownership: gives; fini its io.arena, and it as any session.
 * Errors: none, the process ends. */
dt_session_t *dt_offlinesession_new(uint64_t credit_bytes);

#endif
