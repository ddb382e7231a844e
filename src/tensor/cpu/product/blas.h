/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/blas.h: which kernels and how many threads the CBLAS
 * library uses, and which threads of ours may call it. */
#ifndef OARI_TENSOR_CPU_PRODUCT_BLAS_H
#define OARI_TENSOR_CPU_PRODUCT_BLAS_H

/* Every call of CBLAS lies between these two; any thread. The first holds CBLAS
 * to one thread, or to OARSONG_BLAS_THREADS of them, by its own API: ranks are
 * how we scale. A CBLAS that only one thread may use at a time has a lock. */
void oari_blas_enter(void);
void oari_blas_leave(void);

/* Returns how many threads a product may use, by any library. */
int oari_blas_threads(void);

/* Returns the name of the processor whose kernels OpenBLAS uses, or NULL: the
 * CBLAS is another one. */
const char *oari_blas_core(void);
/* Returns whose kernels OpenBLAS should use where it has chosen those of `core`
 * on a processor with these instructions, or NULL: it has chosen well. */
const char *oari_blas_better_core(const char *core, int avx2, int avx512,
                                  int bf16);

#endif
