/* SPDX-License-Identifier: Apache-2.0 */
/* tp_rows: activations between the layers that are cut: the same on all ranks,
 * or spread by rows. What was spread last says what a row belongs to. */
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

oari_tp *oari_tp_retain(oari_tp *tp)
{
    tp->users++;
    return tp;
}

void oari_tp_release(void *arg)
{
    oari_tp *tp = arg;

    if (tp != NULL && --tp->users == 0)
        oari_free(tp);
}

int64_t oari_tp_rows(const oari_tp *tp, int64_t *first, int64_t *all)
{
    int64_t rows = 1;

    for (int d = 0; d < tp->lead.ndim; d++)
        rows *= tp->lead.dim[d];
    if (all != NULL)
        *all = rows;
    return oar_tp_part(rows, tp->rank, tp->ranks, first);
}

/* Fails unless x has the rows of this rank in dim 0. */
static oar_status check_rows(const oari_tp *tp, const oar_tensor *x)
{
    oar_shape shape = oar_tensor_shape(x);
    int64_t all, own = oari_tp_rows(tp, NULL, &all);

    if (tp->lead.ndim == 0)
        return oari_fail(OAR_E_STATE,
                         "sequence parallel: nothing was spread by rows "
                         "before: begin with a layer of OAR_TP_VOCABULARY or "
                         "OAR_TP_ROW");
    if (shape.ndim < 2 || shape.dim[0] != own)
        return oari_fail(OAR_E_SHAPE,
                         "sequence parallel: rank %d has %lld of %lld rows, "
                         "the input of a layer has %lld",
                         tp->rank, (long long)own, (long long)all,
                         (long long)(shape.ndim > 0 ? shape.dim[0] : 1));
    return OAR_OK;
}

oar_tensor *oari_tp_enter(oari_tp *tp, oar_tape *tape, oar_tensor *x)
{
    oar_shape shape = tp->lead;
    int64_t all;

    if (x == NULL || !tp->sequence)
        return oar_tp_copy(tape, x, tp->group);
    if (check_rows(tp, x) != OAR_OK)
        return NULL;
    if (shape.ndim == OAR_MAX_DIMS) {
        oari_fail(OAR_E_SHAPE, "sequence parallel: too many dims");
        return NULL;
    }
    shape.dim[shape.ndim++] = oar_tensor_shape(x).dim[1];
    oari_tp_rows(tp, NULL, &all);
    x = oar_tp_all_gather(tape, x, tp->group, 0, all);
    return oar_reshape(tape, x, shape);
}

oar_tensor *oari_tp_leave(oari_tp *tp, oar_tape *tape, oar_tensor *x,
                          uint64_t key)
{
    oar_shape shape = oar_tensor_shape(x);
    int64_t rows;

    if (x == NULL || !tp->sequence)
        return oari_tp_all_reduce_own(tape, x, tp->group, key);
    if (shape.ndim < 2) {
        oari_fail(OAR_E_SHAPE, "sequence parallel of %d dims: at least 2",
                  shape.ndim);
        return NULL;
    }
    tp->lead = shape;
    tp->lead.ndim--;
    oari_tp_rows(tp, NULL, &rows);
    x = oar_reshape(tape, x, OAR_SHAPE(rows, shape.dim[shape.ndim - 1]));
    return oari_tp_reduce_scatter_rows(tape, x, tp->group, key);
}

oar_status oari_tp_place_rows(void *arg, const oar_tensor *x,
                              oar_part_place *place)
{
    const oari_tp *tp = arg;
    int64_t first;

    OARI_TRY(check_rows(tp, x));
    oari_tp_rows(tp, &first, NULL);
    place->first = first * oar_tensor_shape(x).dim[1];
    return OAR_OK;
}
