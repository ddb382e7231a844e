/* SPDX-License-Identifier: Apache-2.0 */
/* resources: memory and descriptors of this process. */
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "soak.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 }; /* they keep what was freed */
#else
enum { IS_SANITIZED = 0 };
#endif

static int64_t count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int64_t n = 0;

    if (folder == NULL)
        return -1;
    while (readdir(folder) != NULL)
        n++;
    closedir(folder);
    return n - 3; /* ".", "..", and the folder itself */
}

static int64_t count_mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int64_t n = 0;
    int c;

    if (file == NULL)
        return -1;
    while ((c = fgetc(file)) != EOF)
        n += c == '\n';
    fclose(file);
    return n;
}

/* A line of /proc/self/status, in bytes. */
static int64_t read_status(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[200];
    long long found = -1;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0 &&
            sscanf(line + strlen(name), ": %lld kB", &found) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return found < 0 ? -1 : found * 1024;
}

soak_resources resources_read(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    malloc_trim(0);
    oar_memory_read(&stats);
    return (soak_resources){ .rss = read_status("VmRSS"),
                             .shared = read_status("RssShmem"),
                             .mappings = count_mappings(),
                             .descriptors = count_descriptors(),
                             .allocations = (int64_t)stats.live,
                             .allocated_bytes = (int64_t)stats.live_bytes };
}

int resources_are_flat(const soak_resources *warm, const soak_resources *end,
                       char *text, size_t bytes)
{
    if (end->descriptors != warm->descriptors)
        snprintf(text, bytes, "descriptors from %lld to %lld",
                 (long long)warm->descriptors, (long long)end->descriptors);
    else if (end->allocations > warm->allocations + SOAK_MORE_ALLOCATIONS)
        snprintf(text, bytes, "allocations from %lld to %lld",
                 (long long)warm->allocations, (long long)end->allocations);
    else if (!IS_SANITIZED &&
             end->mappings > warm->mappings + SOAK_MORE_MAPPINGS)
        snprintf(text, bytes, "mappings from %lld to %lld",
                 (long long)warm->mappings, (long long)end->mappings);
    else if (!IS_SANITIZED && end->rss > warm->rss + SOAK_MORE_RSS)
        snprintf(text, bytes, "resident memory from %lld to %lld bytes",
                 (long long)warm->rss, (long long)end->rss);
    else
        return 1;
    return 0;
}
