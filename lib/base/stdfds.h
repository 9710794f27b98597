/* The three standard descriptors. */
#ifndef DT_BASE_STDFDS_H
#define DT_BASE_STDFDS_H

/* Open those of 0, 1 and 2 that are closed, on /dev/null. Else the next file or socket gets such a
 * number, what is printed goes into it, and libuv does not close it. First thing in main(); a
 * library's constructor may have taken 0 before, which nothing reads.
 * Errors: none; without /dev/null and / the process goes on as it is. */
void dt_stdfds_open(void);

#endif
