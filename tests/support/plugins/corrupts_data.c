/* SPDX-License-Identifier: Apache-2.0 */
/* corrupts_data: the example backend, except that it changes the last byte of
 * every copy of more than 1000 bytes. `oarsong conform` must notice. */
#include <string.h>

__attribute__((noinline)) static void *lying_memcpy(void *to, const void *from,
                                                    size_t bytes)
{
    memcpy(to, from, bytes);
    if (bytes > 1000)
        ((unsigned char *)to)[bytes - 1] ^= 1;
    return to;
}

#define memcpy lying_memcpy
#include "../../../examples/backend_plugin/carrier.c"
