/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.h: the library's interface to CUDA's driver, which it finds
 * at run time: one primary context for each device, and the library's kernels.
 *
 *     const oari_cuda *cu;
 *     OARI_TRY(oari_cuda_enter(device, &cu));
 *     status = oari_cuda_check(cu->StreamQuery(stream), "ask a stream");
 *     oari_cuda_leave();
 */
#ifndef OARI_DEVICE_CUDA_CUDA_H
#define OARI_DEVICE_CUDA_CUDA_H

#include <stdatomic.h>

#include <oarsong/device.h>

#include "device/cuda/cuda_symbols.h"

enum { OARI_CUDA_DEVICES = 64 }; /* the library ignores further ones */

/* Gives the driver, initialised. The first call of a process loads it; if that
 * fails, every later call fails with the same text. OAR_E_STATE in a child of a
 * process that had loaded it. */
oar_status oari_cuda_load(const oari_cuda **cu);

/* Gives the driver and makes the device's primary context current to this
 * thread until oari_cuda_leave. Enters nest. OAR_E_DEVICE if there is no such
 * device. */
oar_status oari_cuda_enter(int device, const oari_cuda **cu);

/* Restores the context that was current before oari_cuda_enter. */
void oari_cuda_leave(void);

/* Returns OAR_OK for success; else fails with `what` and the driver's text, as
 * OAR_E_NOMEM, OAR_E_UNAVAILABLE or OAR_E_GPU. An unknown code is a number in
 * the text. */
oar_status oari_cuda_check(int result, const char *what);

/* Gives an event that orders streams (without timing), one from the cache if it
 * has one. No context needs to be current. */
oar_status oari_cuda_event_take(int device, oari_cu_event *event);

/* Puts an event of oari_cuda_event_take into the cache. NULL is fine. */
void oari_cuda_event_give(int device, oari_cu_event event);

/* ---- memory -------------------------------------------------------------- */

/* The allocation that a device pointer points into. */
typedef struct oari_cuda_block {
    oari_cu_memory base;
    size_t bytes;
    uint64_t id; /* no other allocation of this process ever has it */
    int device;
} oari_cuda_block;

/* Finds the allocation of a pointer; OAR_E_ARG if it is not device memory. */
oar_status oari_cuda_find(const void *memory, oari_cuda_block *block);

/* Checks that the span's bytes all lie in one allocation on its device;
 * OAR_E_DEVICE or OAR_E_ARG, with a text that begins with `what`, if not. */
oar_status oari_cuda_check_span(const char *what, const oar_span *span);

/* Keeps the pool from returning an allocation to the driver, because peers may
 * have it mapped. Does nothing for memory that is not the pool's. */
void oari_cuda_hold(oari_cu_memory base);

/* Undoes one oari_cuda_hold. */
void oari_cuda_unhold(oari_cu_memory base);

/* ---- kernels ------------------------------------------------------------- */

/* Gives a kernel by its file (FILE.cu of src/device/cuda or src/tensor/cuda,
 * built to FILE.fatbin in the folder oarsong/ beside the library, or in
 * OARSONG_KERNELS) and its name. OAR_E_UNAVAILABLE with the reason: no nvcc at
 * build time, ... Both texts are borrowed for good. The first call loads it,
 * which may block until the device has run all its work: look a kernel up
 * before a stream waits for a peer. */
oar_status oari_cuda_kernel(int device, const char *file, const char *name,
                            oari_cu_function *kernel);

/* Starts a kernel in one dimension; parameter: addresses of its arguments. */
oar_status oari_cuda_launch(int device, oari_cu_function kernel,
                            unsigned blocks, unsigned threads,
                            oari_cu_stream stream, void **parameter);

/* A kernel as a call site knows it: a static object that remembers where the
 * kernel is on each device, so that only the first start there looks for it.
 *
 *     static oari_cuda_kernel_ref ref = { .file = "norm",
 *                                         .name = "oari_layer_norm" };
 *     oari_cuda_grid grid = { { rows, 1, 1 }, { 256, 1, 1 }, 0 };
 *     return oari_cuda_start(device, &ref, &grid, stream, parameter);
 */
typedef struct oari_cuda_kernel_ref {
    const char *file, *name;
    _Atomic(struct oari_cuda_kernel_entry *) entry[OARI_CUDA_DEVICES];
} oari_cuda_kernel_ref;

/* Blocks of a grid, threads of a block, bytes of dynamic shared memory. */
typedef struct oari_cuda_grid {
    unsigned blocks[3], threads[3], shared_bytes;
} oari_cuda_grid;

/* Starts a kernel; parameter: addresses of its arguments. Fails as
 * oari_cuda_kernel does, and where the device has not so much shared memory
 * for a block. Any number of threads may use one ref. */
oar_status oari_cuda_start(int device, oari_cuda_kernel_ref *ref,
                           const oari_cuda_grid *grid, oari_cu_stream stream,
                           void **parameter);

#endif
