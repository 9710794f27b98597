/* The communication queue under simulation: lib/core/moves.[ch], same object code as the engines',
 * in engines that are models. A seed makes a random program on meshes that overlap partly (so an
 * engine is in some moves and not in others), and engines of random speeds, the slowest 16 times
 * slower than the fastest; each runs some of the devices.
 * What must hold: every engine comes to its end; moves begin on all devices in one order, the
 * stream's; what a move reads stays as it is from its begin to its end; values are those of the
 * program run record by record; what is acknowledged never falls and has nothing open before it. */
#ifndef SIM_OVERLAP_H
#define SIM_OVERLAP_H
#include <stdbool.h>
#include <stdint.h>

/* Run the programs of one seed. False: *failure (512 bytes) says what broke. */
bool overlap_run(uint64_t seed, bool is_traced, char *failure, uint64_t *ret_steps);

#endif
