/* SPDX-License-Identifier: Apache-2.0 */
/* low_rank: the arithmetic of PowerSGD on the host. This file has no state. */
#include "tensor/cpu/low_rank.h"

#include <math.h>
#include <string.h>

static float dot(const float *a, const float *b, int64_t n)
{
    float sum[8] = { 0 }, all = 0;
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    for (int k = 0; k < 8; k++)
        all += sum[k];
    return all;
}

static void add_scaled(float *to, const float *from, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

oar_status oari_low_rank_p(const oari_low_rank *l)
{
    int64_t rows = l->m.at.shape.dim[0], columns = l->m.at.shape.dim[1];
    float *m = oari_array_data(&l->m);

    if (l->lost != NULL)
        add_scaled(m, l->lost, 1, rows * columns);
    for (int c = 0; c < l->rank; c++)
        for (int64_t r = 0; r < rows; r++)
            l->p[c * rows + r] =
                dot(m + r * columns, l->q + c * columns, columns);
    return OAR_OK;
}

static void make_orthonormal(float *p, int64_t n, int rank)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + k * n, length;

        for (int j = 0; j < k; j++)
            add_scaled(column, p + j * n, -dot(p + j * n, column, n), n);
        length = sqrtf(dot(column, column, n));
        for (int64_t i = 0; i < n; i++)
            column[i] = length > 1e-30f ? column[i] / length : 0;
    }
}

oar_status oari_low_rank_q(const oari_low_rank *l)
{
    int64_t rows = l->m.at.shape.dim[0], columns = l->m.at.shape.dim[1];
    const float *m = oari_array_data(&l->m);

    make_orthonormal(l->p, rows, l->rank);
    memset(l->q, 0, (size_t)(l->rank * columns) * sizeof *l->q);
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < l->rank; c++)
            add_scaled(l->q + c * columns, m + r * columns, l->p[c * rows + r],
                       columns);
    return OAR_OK;
}

oar_status oari_low_rank_back(const oari_low_rank *l)
{
    int64_t rows = l->m.at.shape.dim[0], columns = l->m.at.shape.dim[1];
    float *m = oari_array_data(&l->m);

    for (int64_t r = 0; r < rows; r++) {
        float *row = m + r * columns;
        float *lost = l->lost != NULL ? l->lost + r * columns : NULL;

        if (lost != NULL)
            memcpy(lost, row, (size_t)columns * sizeof *row);
        memset(row, 0, (size_t)columns * sizeof *row);
        for (int c = 0; c < l->rank; c++)
            add_scaled(row, l->q + c * columns, l->p[c * rows + r], columns);
        if (lost != NULL)
            add_scaled(lost, row, -1, columns);
    }
    return OAR_OK;
}
