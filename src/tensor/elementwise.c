/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise: each result depends on the inputs at its own place only. The
 * dtype is chosen once per row, never per element. */
#include "tensor/dispatch.h"
#include "tensor/kernels.h"
#include "tensor/walk.h"

typedef struct job {
    oar_dtype dtype;
    int add;
    double factor;
} job;

static void add_row(const oari_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_NUMBER(j->dtype, {
        if (j->add)
            OARI_ROW3(row, *Y = (T)((W)*Y + (W)A + (W)B));
        else
            OARI_ROW3(row, *Y = (T)((W)A + (W)B));
    })
}

void oari_add(const oari_array *to, int add, const oari_array *a,
              const oari_array *b)
{
    oari_walk(to->at.shape, 3, (const oari_array *[]){ to, a, b }, add_row,
              &(job){ .dtype = to->dtype, .add = add });
}

static void mul_row(const oari_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_NUMBER(j->dtype, {
        if (j->add)
            OARI_ROW3(row, *Y = (T)((W)*Y + (W)A * (W)B));
        else
            OARI_ROW3(row, *Y = (T)((W)A * (W)B));
    })
}

void oari_mul(const oari_array *to, int add, const oari_array *a,
              const oari_array *b)
{
    oari_walk(to->at.shape, 3, (const oari_array *[]){ to, a, b }, mul_row,
              &(job){ .dtype = to->dtype, .add = add });
}

static void scale_row(const oari_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T factor = (T)j->factor;
        if (j->add)
            OARI_ROW2(row, *Y += factor * A);
        else
            OARI_ROW2(row, *Y = factor * A);
    })
}

void oari_scale(const oari_array *to, int add, const oari_array *a,
                double factor)
{
    oari_walk(to->at.shape, 2, (const oari_array *[]){ to, a }, scale_row,
              &(job){ .dtype = to->dtype, .add = add, .factor = factor });
}

/* Written so that a NaN stays one. */
static void relu_row(const oari_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_NUMBER(j->dtype, { OARI_ROW2(row, *Y = A <= 0 ? (T)0 : A); })
}

void oari_relu(const oari_array *to, const oari_array *a)
{
    oari_walk(to->at.shape, 2, (const oari_array *[]){ to, a }, relu_row,
              &(job){ .dtype = to->dtype });
}

static void relu_back_row(const oari_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        if (j->add)
            OARI_ROW3(row, *Y += B <= 0 ? (T)0 : A);
        else
            OARI_ROW3(row, *Y = B <= 0 ? (T)0 : A);
    })
}

void oari_relu_back(const oari_array *to, int add, const oari_array *grad,
                    const oari_array *result)
{
    oari_walk(to->at.shape, 3, (const oari_array *[]){ to, grad, result },
              relu_back_row, &(job){ .dtype = to->dtype, .add = add });
}
