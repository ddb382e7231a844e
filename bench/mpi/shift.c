/* SPDX-License-Identifier: Apache-2.0 */
/* shift: preloaded, takes SHIFT bytes off the heap before the program begins.
 *
 * MPICH takes the scratch memory of a reduction by malloc at every call, and
 * where that begins within a page is worth 3 % at 1 MiB: two programs that use
 * it alike differ by what else they have allocated. compare-engines moves both
 * by the same, by another amount in every round. */
#include <stdlib.h>

__attribute__((constructor)) static void shift(void)
{
    static void *volatile kept;
    const char *bytes = getenv("SHIFT");

    if (bytes != NULL)
        kept = malloc((size_t)atol(bytes));
    (void)kept;
}
