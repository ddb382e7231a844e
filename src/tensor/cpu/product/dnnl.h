/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/dnnl.h: products of matrices by oneDNN, which is found at
 * run time: OARSONG_DNNL_LIBRARY, else one that is loaded already, else
 * libdnnl.so.3 or .2. It multiplies bf16 as it is, with sums in f32, where
 * CBLAS needs copies in f32. OARSONG_DNNL says for which products it is used:
 *
 *   off   none: the library is not even looked for
 *   auto  if the processor has AVX512-BF16 (all with AMX-BF16 do), of bf16, and
 *         of f32 if they are large; the default
 *   bf16  of bf16 on any processor, however slow
 *   all   of bf16 and f32 of any size on any processor
 */
#ifndef OARI_TENSOR_CPU_PRODUCT_DNNL_H
#define OARI_TENSOR_CPU_PRODUCT_DNNL_H

#include "tensor/cpu/product/gemm.h"
#include "tensor/tensor.h"

/* Returns whether oneDNN is to be asked for products of [m, k] and [k, n] of
 * this dtype. That depends on these alone, and so do the bits of the results.
 * The first call that might want the library loads it. Any thread. */
int oari_dnnl_takes(oar_dtype dtype, int64_t m, int64_t n, int64_t k);

/* Does job->a times job->b, of dtype bf16 or f32, into job->c of dtype `to`:
 * the same, or f32. Factor is 1, sizes are at least 1. Scratch memory comes
 * from the pool. OAR_E_UNSUPPORTED: oneDNN has no fast way; c is as it was, and
 * no error is set. Any thread, after oari_dnnl_takes. */
oar_status oari_dnnl_multiply(oari_pool *pool, const oari_gemm_job *job,
                              oar_dtype to);

#endif
