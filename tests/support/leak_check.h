/* SPDX-License-Identifier: Apache-2.0 */
/* support/leak_check.h: counts allocations and descriptors of this process, to
 * see that all are given back. */
#ifndef TESTS_SUPPORT_LEAK_CHECK_H
#define TESTS_SUPPORT_LEAK_CHECK_H

#include <oarsong/memory.h>

typedef struct leak_check {
    uint64_t live;   /* allocations of the library */
    int descriptors; /* open */
} leak_check;

/* Returns the library's allocation counts as they are now. */
oar_memory_stats memory_now(void);

/* Counts now. */
leak_check leak_check_begin(void);

/* Asserts that the counts are what they were then. */
#define leak_check_end(before) leak_check_end_at(__FILE__, __LINE__, before)
void leak_check_end_at(const char *file, int line, const leak_check *before);

/* Calls fn with its first allocation failing, then its second, and so on, until
 * it succeeds because it allocates less often than that. fn undoes what it did.
 * Each failure must be OAR_E_NOMEM and leave nothing behind. Asserts that there
 * was at least one. */
typedef oar_status (*allocating_fn)(void *arg);
#define fail_each_allocation(fn, arg) \
    fail_each_allocation_at(__FILE__, __LINE__, fn, arg)
void fail_each_allocation_at(const char *file, int line, allocating_fn fn,
                             void *arg);

/* ---- folders ------------------------------------------------------------- */

enum { FOLDER_PATH = 128 };

/* Makes a folder under TMPDIR and writes its path into path. */
void folder_make(char path[FOLDER_PATH]);
/* Removes a folder with all that is in it, if it exists. Returns 0, or -1 if
 * something stays. */
int folder_remove(const char *path);
/* Returns how many files are in a folder, or -1 if it does not exist. */
int folder_entries(const char *path);

#endif
