/* SPDX-License-Identifier: Apache-2.0 */
/* data/loader_gpu.h: a loader's batches on a GPU: each slot of the loader has
 * pinned memory and tensors there. The maker of batches sends, on a stream of
 * the loader's own; the caller takes them and gives them back, and only streams
 * wait. The loader's lock comes between the two. */
#ifndef OARI_DATA_LOADER_GPU_H
#define OARI_DATA_LOADER_GPU_H

#include <oarsong/tensor.h>

typedef struct oari_loader_gpu oari_loader_gpu;

/* Makes it, for batches of so many fields. */
oar_status oari_loader_gpu_open(oar_device device, int slots, int fields,
                                oari_loader_gpu **gpu);
/* Waits for what is under way. NULL is fine. */
void oari_loader_gpu_close(oari_loader_gpu *gpu);

/* Begins to copy a batch, whose fields may be used again when this returns,
 * behind what has used the batch of the slot before. */
oar_status oari_loader_gpu_send(oari_loader_gpu *gpu, int slot,
                                oar_tensor *const *field);

/* Orders the caller's current stream behind the copies and gives the tensors,
 * which stay the loader's. */
oar_status oari_loader_gpu_take(oari_loader_gpu *gpu, int slot,
                                oar_tensor **field);

/* Notes that what is on the caller's current stream by now is the last that
 * uses the tensors of a slot. */
oar_status oari_loader_gpu_give_back(oari_loader_gpu *gpu, int slot);

#endif
