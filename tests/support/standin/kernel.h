/* SPDX-License-Identifier: Apache-2.0 */
/* standin/kernel.h: how a kernel that was compiled for the host is known to the
 * stand-in, and how it is run. Read by C and by C++. */
#ifndef TESTS_STANDIN_KERNEL_H
#define TESTS_STANDIN_KERNEL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

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
    /* Runs one thread of one block. */
    void (*call)(void (*function)(void), void *const *argument);
    void (*function)(void);
    /* The static shared memory of all kernels of the file; NULL: none. There is
     * one for the process, so the lock lets one launch of them run. */
    char *shared, *shared_end;
    pthread_mutex_t *shared_lock;
} standin_kernel;

void standin_kernel_add(standin_kernel *kernel);

typedef struct standin_grid {
    unsigned blocks[3], threads[3], shared_bytes;
    uint64_t seed; /* decides on the order of blocks and of their threads */
} standin_grid;

/* Runs all threads of all blocks on the calling thread (block.cc). */
void standin_run_blocks(const standin_kernel *kernel, void *const *argument,
                        const standin_grid *grid);

#ifdef __cplusplus
__attribute__((noreturn, format(printf, 1, 2))) void
standin_die(const char *format, ...);
}
#endif

#endif
