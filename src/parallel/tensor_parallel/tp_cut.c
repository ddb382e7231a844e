/* SPDX-License-Identifier: Apache-2.0 */
/* tp_cut: the part of a parameter that a rank has, made of the whole, and as
 * boxes in it. */
#include <string.h>

#include <oarsong/ops.h>

#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

oari_tp_cut oari_tp_cut_part(oar_shape whole, int dim, int rank, int ranks)
{
    oari_tp_cut cut = { .ranges = 1, .dim = dim, .whole = whole };

    cut.count[0] = oar_tp_part(whole.dim[dim], rank, ranks, &cut.first[0]);
    return cut;
}

int oari_tp_cut_equal(const oari_tp_cut *a, const oari_tp_cut *b)
{
    if (a->ranges != b->ranges || (a->ranges > 0 && a->dim != b->dim))
        return 0;
    for (int i = 0; i < a->ranges; i++)
        if (a->first[i] != b->first[i] || a->count[i] != b->count[i])
            return 0;
    return 1;
}

static oar_shape part_shape(const oari_tp_cut *cut)
{
    oar_shape s = cut->whole;

    s.dim[cut->dim] = 0;
    for (int i = 0; i < cut->ranges; i++)
        s.dim[cut->dim] += cut->count[i];
    return s;
}

/* Writes the part of a lazy tensor, run by run. */
static oar_status make_lazy(const oari_tp_cut *cut, const oar_tensor *whole,
                            oar_tensor *part)
{
    oari_tp_layout l = oari_tp_layout_along(NULL, cut->whole, cut->dim);
    oar_dtype dtype = oar_tensor_dtype(part);
    char *to = oar_tensor_data(part);

    for (int64_t o = 0; o < l.outer; o++)
        for (int i = 0; i < cut->ranges; i++) {
            int64_t count = cut->count[i] * l.inner;

            if (count == 0)
                continue;
            OARI_TRY(oar_tensor_make_range(
                whole, (o * l.size + cut->first[i]) * l.inner, count, dtype,
                to));
            to += (size_t)count * oar_dtype_size(dtype);
        }
    return OAR_OK;
}

static oar_status copy_range(const oari_tp_cut *cut, int i, int64_t at,
                             oar_tensor *whole, oar_tensor *part)
{
    oar_tensor *from =
        oar_narrow(NULL, whole, cut->dim, cut->first[i], cut->count[i]);
    oar_tensor *to = oar_narrow(NULL, part, cut->dim, at, cut->count[i]);
    oar_status status = from != NULL && to != NULL ? oar_tensor_copy(to, from)
                                                   : oar_last_error()->status;

    oar_tensor_release(to);
    oar_tensor_release(from);
    return status;
}

oar_status oari_tp_cut_make(const oari_tp_cut *cut, oar_tensor *whole,
                            oar_tensor **part)
{
    oar_status status = OAR_OK;
    oar_tensor *made;
    int64_t at = 0;

    if (cut->ranges == 0) {
        *part = oar_tensor_retain(whole);
        return OAR_OK;
    }
    made = oar_empty_on(NULL, oar_tensor_device(whole), oar_tensor_dtype(whole),
                        part_shape(cut));
    if (made == NULL)
        return oar_last_error()->status;
    if (oar_tensor_is_lazy(whole)) {
        status = make_lazy(cut, whole, made);
    } else {
        for (int i = 0; i < cut->ranges && status == OAR_OK; i++) {
            status = copy_range(cut, i, at, whole, made);
            at += cut->count[i];
        }
    }
    if (status != OAR_OK) {
        oar_tensor_release(made);
        return status;
    }
    *part = made;
    return OAR_OK;
}

/* ---- boxes --------------------------------------------------------------- */

/* Returns how many slices of dim 0, from `slice` of the part on, are
 * neighbours in the whole, and gives where the first of them is there. */
static int64_t neighbours(const oari_tp_cut *cut, int64_t slice, int64_t *at)
{
    if (cut->dim != 0) {
        *at = slice;
        return cut->whole.dim[0] - slice;
    }
    for (int i = 0; i < cut->ranges; i++) {
        if (slice < cut->count[i]) {
            *at = cut->first[i] + slice;
            return cut->count[i] - slice;
        }
        slice -= cut->count[i];
    }
    return 0;
}

/* A box is some elements of one slice of dim 0, or several whole slices. A
 * vector has slices of one element, a matrix those of one row. */
int oari_tp_next_box(const oari_tp_cut *cut, int64_t first, int64_t count,
                     int64_t *next, oari_tp_box *box)
{
    oar_shape part = part_shape(cut);
    int64_t slice = part.ndim > 1 ? part.dim[1] : 1;
    int64_t left = count - *next, at = first + *next, in_slice, rows;

    if (left <= 0 || slice == 0)
        return 0;
    memset(box, 0, sizeof *box);
    box->first = at;
    box->extent = part;
    in_slice = at % slice;
    rows = neighbours(cut, at / slice, &box->offset[0]);
    if (part.ndim > 1) {
        box->offset[1] = (cut->dim == 1 ? cut->first[0] : 0) + in_slice;
        box->extent.dim[1] = slice;
    }
    if (in_slice > 0 || left < slice) {
        box->extent.dim[0] = 1;
        box->extent.dim[1] = left < slice - in_slice ? left : slice - in_slice;
        *next += box->extent.dim[1];
        return 1;
    }
    box->extent.dim[0] = left / slice < rows ? left / slice : rows;
    *next += box->extent.dim[0] * slice;
    return 1;
}
