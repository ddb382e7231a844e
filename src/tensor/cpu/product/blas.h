/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/blas.h: how many threads the CBLAS library may use, and
 * which of ours may call it. */
#ifndef OARI_TENSOR_CPU_PRODUCT_BLAS_H
#define OARI_TENSOR_CPU_PRODUCT_BLAS_H

/* Every call of CBLAS lies between these two; any thread. The first holds CBLAS
 * to one thread, or to OARSONG_BLAS_THREADS of them, by its own API: ranks are
 * how we scale. A CBLAS that only one thread may use at a time has a lock. */
void oari_blas_enter(void);
void oari_blas_leave(void);

#endif
