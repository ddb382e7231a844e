/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/gpu_copy.h: arrays of a GPU, brought into pinned memory
 * by a stream of their own. The copies begin behind what is on the current
 * stream, which waits for them: what comes on it later may change the arrays.
 * The host and the other streams do not wait. */
#ifndef OARI_PARALLEL_CHECKPOINT_GPU_COPY_H
#define OARI_PARALLEL_CHECKPOINT_GPU_COPY_H

#include <oarsong/tensor.h>

/* Memory and stream, kept for the next save. */
typedef struct oari_ckpt_gpu_copy {
    unsigned char *memory; /* pinned */
    size_t bytes;
    oar_device device; /* whose stream and events these are; or the cpu */
    void *stream;
    void *begun, *over; /* events */
} oari_ckpt_gpu_copy;

void oari_ckpt_gpu_copy_free(oari_ckpt_gpu_copy *fetch);

/* One array: which dtype it is to have, and where it will be. */
typedef struct oari_ckpt_gpu_array {
    oar_tensor *tensor; /* on the device; NULL: nothing */
    oar_dtype dtype;
    const void *array;
} oari_ckpt_gpu_array;

/* Begins to bring arrays. Fails before anything is changed if there is no such
 * memory (OAR_E_NOMEM, OAR_E_GPU). */
oar_status oari_ckpt_gpu_copy_start(oari_ckpt_gpu_copy *fetch,
                                    oar_device device, int64_t count,
                                    oari_ckpt_gpu_array *array);

/* Waits until they are there. Any thread may call it, also again. */
oar_status oari_ckpt_gpu_copy_wait(const oari_ckpt_gpu_copy *fetch);

#endif
