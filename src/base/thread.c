/* SPDX-License-Identifier: Apache-2.0 */
/* thread: the cores that are really ours. */
#include "base/thread.h"

#include <sched.h>
#include <stdio.h>

/* The quota of cgroup v2 in whole cores, rounded up; 0: none. */
static int quota_cpus(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota, period;
    int cpus = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%ld %ld", &quota, &period) == 2 && quota > 0 &&
        period > 0)
        cpus = (int)((quota + period - 1) / period);
    fclose(file);
    return cpus;
}

int oari_cpus(void)
{
    cpu_set_t mask;
    int cpus = 1, quota = quota_cpus();

    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        cpus = CPU_COUNT(&mask);
    if (quota != 0 && quota < cpus)
        cpus = quota;
    return cpus > 0 ? cpus : 1;
}
