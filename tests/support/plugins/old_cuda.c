/* SPDX-License-Identifier: Apache-2.0 */
/* old_cuda: a CUDA driver that is too old: it lacks most functions. */

#define SEEN __attribute__((visibility("default")))

SEEN int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

SEEN int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = 11040;
    return 0;
}
