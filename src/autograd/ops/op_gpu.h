/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/op_gpu.h: the operations that can have inputs on a GPU. */
#ifndef OARI_AUTOGRAD_OPS_OP_GPU_H
#define OARI_AUTOGRAD_OPS_OP_GPU_H

#include "autograd/record.h"
#include "tensor/tensor_gpu.h"

oar_tensor *oari_contiguous_on_gpu(oar_tape *tape, oar_tensor *a);
oar_tensor *oari_cast_on_gpu(oar_tape *tape, oar_tensor *a, oar_dtype dtype);
oar_tensor *oari_scale_on_gpu(oar_tape *tape, oar_tensor *a, double factor);
oar_tensor *oari_add_on_gpu(oar_tape *tape, oar_tensor *a, oar_tensor *b);

#endif
