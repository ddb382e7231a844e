/* SPDX-License-Identifier: Apache-2.0 */
/* accumulate: multiples of an array, stored or added to what is there. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/walk.h"

typedef struct job {
    oar_dtype dtype;
    int add;
    double factor;
} job;

/* Integers: factor is a whole number. */
OARI_TARGET_CLONES static void scale_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T factor = (T)j->factor;
        if (j->add)
            OARI_FLAT2(row, T, T, *Y += factor * A);
        else
            OARI_FLAT2(row, T, T, *Y = factor * A);
    })
    OARI_BY_INTEGER(j->dtype, {
        const W factor = (W)(int64_t)j->factor;
        if (j->add)
            OARI_FLAT2(row, T, T, *Y = (T)((W)*Y + factor * (W)A));
        else
            OARI_FLAT2(row, T, T, *Y = (T)(factor * (W)A));
    })
}

oar_status oari_scale(const oari_array *to, int add, const oari_array *a,
                      double factor)
{
    if (!add && factor == 1) {
        if (oari_array_data(to) != oari_array_data(a))
            oari_copy(to, a);
        return OAR_OK;
    }
    oari_walk_flat(to->at.shape, 2, (const oari_array *[]){ to, a }, add,
                   scale_row, &(job){ oari_row_dtype(to->dtype), add, factor });
    return OAR_OK;
}
