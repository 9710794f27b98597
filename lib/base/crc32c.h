/* CRC-32C (Castagnoli), as in iSCSI, ext4 and the journal.
 * Source: RFC 3720 appendix B.4. Uses the CPU's instruction where there is one. */
#ifndef DT_BASE_CRC32C_H
#define DT_BASE_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* Continue a checksum over more bytes. Start with 0. Threads: any. */
uint32_t dt_crc32c(uint32_t crc, const void *data, size_t size);

/* The table-driven form, which must agree with the one above. */
uint32_t dt_crc32c_portable_for_test(uint32_t crc, const void *data, size_t size);

#endif
