/* SPDX-License-Identifier: Apache-2.0 */
/* support/census.h: what this process holds, to see that it is given back. */
#ifndef TESTS_SUPPORT_CENSUS_H
#define TESTS_SUPPORT_CENSUS_H

#include <oarsong/memory.h>

typedef struct census {
    uint64_t live;   /* allocations of the library */
    int descriptors; /* open */
} census;

census census_take(void);

/* Asserts that nothing is held that was not held then. */
#define census_expect(before) census_expect_at(__FILE__, __LINE__, before)
void census_expect_at(const char *file, int line, const census *before);

/* Calls fn with its first allocation failing, then its second, and so on, until
 * it ends without having come to the one that fails. fn undoes what it did.
 * Each failure must be OAR_E_NOMEM and leave nothing behind. Asserts that there
 * was one at least. */
typedef oar_status (*census_fn)(void *arg);
#define census_fail_each(fn, arg) \
    census_fail_each_at(__FILE__, __LINE__, fn, arg)
void census_fail_each_at(const char *file, int line, census_fn fn, void *arg);

/* ---- folders ------------------------------------------------------------- */

enum { FOLDER_PATH = 128 };

/* A fresh folder under TMPDIR; its path is written into path. */
void folder_make(char path[FOLDER_PATH]);
/* Removes it with the files in it; one that is gone is fine. */
void folder_drop(const char *path);
/* How many files are in it; -1: it is not there. */
int folder_entries(const char *path);

#endif
