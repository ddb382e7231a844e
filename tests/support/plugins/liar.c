/* SPDX-License-Identifier: Apache-2.0 */
/* liar: the example backend, except that the last byte of what is read in one
 * go of more than 200 bytes is changed. `oarsong conform` must see it. */
#include <sys/socket.h>
#include <sys/types.h>

__attribute__((noinline)) static ssize_t lying_recv(int fd, void *to,
                                                    size_t bytes, int flags)
{
    ssize_t got = recv(fd, to, bytes, flags);

    if (bytes > 200 && got > 200)
        ((unsigned char *)to)[got - 1] ^= 1;
    return got;
}

#define recv lying_recv
#include "../../../examples/backend_plugin/carrier.c"
