/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/low_rank.h: a matrix M as a product P Q of two thin ones, found by
 * subspace iteration: the arithmetic of PowerSGD. */
#ifndef OARI_TENSOR_CPU_LOW_RANK_H
#define OARI_TENSOR_CPU_LOW_RANK_H

#include "tensor/tensor.h"

/* All are f32 and on one device. */
typedef struct oari_low_rank {
    oari_array m; /* rows x columns, row by row */
    float *lost;  /* of the same shape, or NULL */
    float *p;     /* rank x rows: a column of P after the other */
    float *q;     /* rank x columns */
    int rank;
} oari_low_rank;

/* M += lost, unless that is NULL; P = M Q'. */
oar_status oari_low_rank_p(const oari_low_rank *l);

/* Makes the columns of P orthonormal by Gram-Schmidt; one that depends on those
 * before it becomes zero. Then Q = P' M. */
oar_status oari_low_rank_q(const oari_low_rank *l);

/* M = P Q, and lost = what M was less that. */
oar_status oari_low_rank_back(const oari_low_rank *l);

#endif
