/* SPDX-License-Identifier: Apache-2.0 */
/* pss.h: resident memory of this process, pages that are shared counted in
 * part. */
#ifndef BENCH_PSS_H
#define BENCH_PSS_H

#include <stdio.h>

static inline long pss_kib(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Pss: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

#endif
