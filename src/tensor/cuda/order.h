/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/order.h: sorting on a GPU, and indices that are checked there. */
#ifndef OARI_TENSOR_CUDA_ORDER_H
#define OARI_TENSOR_CUDA_ORDER_H

#include "tensor/tensor.h"

/* As the cpu's; scratch is unused. */
oar_status oari_cuda_sort(const oari_array *index, const oari_array *a,
                          int descending, uint64_t *scratch);
oar_status oari_cuda_topk(const oari_array *value, const oari_array *index,
                          const oari_array *a);

/* to, row-major, = index with 0 for each number that is not from 0 to limit
 * - 1: the first of them is the error of the next call that waits. op: an
 * oari_index_op. */
oar_status oari_cuda_checked_index(const oari_array *to,
                                   const oari_array *index, int op,
                                   int64_t limit);

#endif
