/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.h: CUDA's driver as the library uses it: found at run time,
 * one primary context a device, kernels of our own.
 *
 *     const oari_cuda *cu;
 *     OARI_TRY(oari_cuda_enter(device, &cu));
 *     status = oari_cuda_check(cu->StreamQuery(stream), "ask a stream");
 *     oari_cuda_leave();
 */
#ifndef OARI_DEVICE_CUDA_CUDA_H
#define OARI_DEVICE_CUDA_CUDA_H

#include <oarsong/device.h>

#include "device/cuda/symbols.h"

/* The driver, initialised. Once per process; a failure is kept, and said again
 * in the same words. OAR_E_STATE in a child of a process that had it. */
oar_status oari_cuda_load(const oari_cuda **cu);

/* The same, with the device's primary context current to this thread until
 * oari_cuda_leave, which puts back what was. Enters nest. OAR_E_DEVICE for a
 * device that is not there. */
oar_status oari_cuda_enter(int device, const oari_cuda **cu);
void oari_cuda_leave(void);

/* OAR_OK for success; else the driver's own words after ours, as OAR_E_NOMEM,
 * OAR_E_UNAVAILABLE or OAR_E_GPU. Unknown codes are numbers in the text. */
oar_status oari_cuda_check(int result, const char *what);

/* Events that order streams (no timing), kept for the next one. Current context
 * not needed. */
oar_status oari_cuda_event_take(int device, oari_cu_event *event);
void oari_cuda_event_give(int device, oari_cu_event event);

/* ---- memory -------------------------------------------------------------- */

/* What a device pointer is. base and bytes: of the whole allocation; id: no
 * other in this process ever has it; device: where it lies. OAR_E_ARG if it is
 * no device memory. */
typedef struct oari_cuda_block {
    oari_cu_memory base;
    size_t bytes;
    uint64_t id;
    int device;
} oari_cuda_block;
oar_status oari_cuda_find(const void *memory, oari_cuda_block *block);

/* OAR_OK if the span's bytes all lie in one allocation on its device;
 * OAR_E_DEVICE or OAR_E_ARG with a sentence that begins with what. */
oar_status oari_cuda_check_span(const char *what, const oar_span *span);

/* Peers may have this allocation mapped: the pool does not give it back to the
 * driver before as many releases. Of memory that is not the pool's: nothing. */
void oari_cuda_hold(oari_cu_memory base);
void oari_cuda_unhold(oari_cu_memory base);

/* ---- kernels ------------------------------------------------------------- */

/* A kernel by the file it is in (src/device/cuda/FILE.cu, built to FILE.fatbin
 * in the folder oarsong/ beside the library, or in OARSONG_KERNELS) and its
 * name. OAR_E_UNAVAILABLE with the reason: no nvcc when this was built, ...
 * Both texts are borrowed for good. The first time loads it, which may wait
 * until the device has run all it has: look it up before a stream waits for a
 * peer. */
oar_status oari_cuda_kernel(int device, const char *file, const char *name,
                            oari_cu_function *kernel);

/* Starts it in one dimension; parameter: addresses of its arguments. */
oar_status oari_cuda_launch(int device, oari_cu_function kernel,
                            unsigned blocks, unsigned threads,
                            oari_cu_stream stream, void **parameter);

#endif
