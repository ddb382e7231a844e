/* SPDX-License-Identifier: Apache-2.0 */
/* support/faulty_disk.h: the system's files, with one fault at one call. The
 * calls of the process are counted from 1; the fault strikes once. */
#ifndef TESTS_SUPPORT_FAULTY_DISK_H
#define TESTS_SUPPORT_FAULTY_DISK_H

typedef enum disk_fault {
    DISK_FAULT_NONE,
    DISK_FAULT_ERROR,       /* the call does nothing and fails */
    DISK_FAULT_ERROR_AFTER, /* the call does its work, then fails: sync, close
                               and rename can */
    DISK_FAULT_SHORT,       /* a write or read moves one byte only, or half */
    DISK_FAULT_KILL,        /* SIGKILL before the call */
    DISK_FAULT_KILL_AFTER,  /* SIGKILL after it */
    DISK_FAULT_STOP,        /* SIGSTOP before the call */
    DISK_FAULT_SLOW /* this call and the next five each take `error` ms */
} disk_fault;

/* Puts the table in place: at call `at` (0: never) the fault strikes, with this
 * errno. Counting begins again. */
void faulty_disk_use(disk_fault fault, long at, int error);

/* Puts the system's table back. */
void faulty_disk_stop(void);

/* How many calls there were, and the name of the one that the fault struck
 * (NULL: none yet). */
long faulty_disk_calls(void);
const char *faulty_disk_struck(void);
/* The name of a call, from 1; NULL: it was not made, or is beyond the 400th. */
const char *faulty_disk_call(long number);

#endif
