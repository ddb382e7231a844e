/* SPDX-License-Identifier: Apache-2.0 */
/* support/held_disk.h: the system's files, whose writes can be held up until a
 * test lets them go, or made to fail. One for each process. */
#ifndef TESTS_SUPPORT_HELD_DISK_H
#define TESTS_SUPPORT_HELD_DISK_H

/* Put the table in place, and the system's back. Writes go through at first. */
void held_disk_use(void);
void held_disk_stop(void);

/* From now on writes of 4096 bytes and more wait, or no longer. */
void held_disk_hold(void);
void held_disk_let_go(void);

/* So many of the next such writes fail with this errno. */
void held_disk_fail(int writes, int error);

/* Returns the nice value of the thread that made the last such write. */
int held_disk_nice(void);

#endif
