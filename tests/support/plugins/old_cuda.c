/* SPDX-License-Identifier: Apache-2.0 */
/* A driver of CUDA that is too old: most of its functions are not there yet. */

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
