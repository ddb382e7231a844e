/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/blas.h: how many threads the CBLAS library may use. */
#ifndef OARI_TENSOR_BLAS_H
#define OARI_TENSOR_BLAS_H

/* Holds CBLAS to one thread, or to OARSONG_BLAS_THREADS of them, by its own
 * API: ranks are how we scale. The first call does it; any thread. */
void oari_blas_settle(void);

#endif
