/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/move.h: numbers from one device to another. */
#ifndef OARI_TENSOR_MOVE_H
#define OARI_TENSOR_MOVE_H

#include "tensor/tensor.h"

/* Copies `from` to `to`, of the same shape, whatever their devices, dtypes and
 * strides, in the order of the current stream of the GPU that is one of them. A
 * copy to the cpu has ended when this returns. The pool (NULL: the system) is
 * for scratch memory. */
oar_status oari_move(oari_pool *pool, const oari_array *to,
                     const oari_array *from);

#endif
