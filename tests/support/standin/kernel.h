/* SPDX-License-Identifier: Apache-2.0 */
/* standin/kernel.h: how a kernel that was compiled for the host is known to the
 * stand-in. Read by C and by C++. */
#ifndef TESTS_STANDIN_KERNEL_H
#define TESTS_STANDIN_KERNEL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STANDIN_MOST_PARAMETERS = 32 };

typedef struct standin_kernel {
    struct standin_kernel *next;
    const char *file, *name;
    int count; /* of parameters */
    size_t bytes[STANDIN_MOST_PARAMETERS];
    int is_pointer[STANDIN_MOST_PARAMETERS];
    unsigned allowed_bytes; /* of dynamic shared memory; 0: the usual limit */
    /* Runs all threads of all blocks, one after the other. */
    void (*run)(void (*function)(void), void *const *argument,
                const unsigned grid[3], const unsigned block[3]);
    void (*function)(void);
} standin_kernel;

void standin_kernel_add(standin_kernel *kernel);

#ifdef __cplusplus
}
#endif

#endif
