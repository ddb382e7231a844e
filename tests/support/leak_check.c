/* SPDX-License-Identifier: Apache-2.0 */
#include "support/leak_check.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

int folder_entries(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *item;
    int entries = 0;

    if (folder == NULL)
        return -1;
    while ((item = readdir(folder)) != NULL)
        entries += item->d_name[0] != '.'; /* what is hidden is not ours */
    closedir(folder);
    return entries;
}

oar_memory_stats memory_now(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    if (oar_memory_read(&stats) != OAR_OK)
        fail_msg("memory_read: %s", oar_last_error_text());
    return stats;
}

leak_check leak_check_begin(void)
{
    return (leak_check){ memory_now().live, folder_entries("/proc/self/fd") };
}

void leak_check_end_at(const char *file, int line, const leak_check *before)
{
    leak_check now = leak_check_begin();

    if (now.live != before->live || now.descriptors != before->descriptors)
        fail_msg("%s:%d: %lld allocations and %d descriptors more than before",
                 file, line, (long long)(now.live - before->live),
                 now.descriptors - before->descriptors);
}

void fail_each_allocation_at(const char *file, int line, allocating_fn fn,
                             void *arg)
{
    oar_memory_stats stats = oar_memory_stats_init();
    uint64_t n = 1, first;
    oar_status status;

    for (;; n++) {
        leak_check before = leak_check_begin();
        oar_memory_read(&stats);
        first = stats.allocations;
        oar_memory_fail_after(n);
        status = fn(arg);
        oar_memory_fail_after(0);
        oar_memory_read(&stats);
        if (status == OAR_OK)
            break;
        if (status != OAR_E_NOMEM || oar_last_error()->status != OAR_E_NOMEM)
            fail_msg("%s:%d: allocation %llu of %llu fails: %s, and the last "
                     "error is %s: %s",
                     file, line, (unsigned long long)n,
                     (unsigned long long)(stats.allocations - first),
                     oar_status_name(status),
                     oar_status_name(oar_last_error()->status),
                     oar_last_error_text());
        leak_check_end_at(file, line, &before);
    }
    if (n == 1)
        fail_msg("%s:%d: nothing was allocated", file, line);
}

void folder_make(char path[FOLDER_PATH])
{
    const char *base = getenv("TMPDIR");

    snprintf(path, FOLDER_PATH, "%s/oarsong-test-XXXXXX",
             base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL)
        fail_msg("no folder %s", path);
}

static int remove_one(const char *path, const struct stat *is, int kind,
                      struct FTW *where)
{
    return remove(path);
}

int folder_remove(const char *path)
{
    int failed = nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);

    return failed != 0 && errno != ENOENT ? -1 : 0;
}
