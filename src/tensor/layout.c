/* SPDX-License-Identifier: Apache-2.0 */
/* layout: shapes, strides and offsets. Pure functions of their arguments. */
#include "tensor/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

oari_shape_string oari_shape_text(oar_shape shape)
{
    oari_shape_string out;
    int used = snprintf(out.text, sizeof out.text, "[");

    for (int i = 0; i < shape.ndim && i < OAR_MAX_DIMS; i++)
        used += snprintf(out.text + used, sizeof out.text - (size_t)used,
                         "%s%" PRId64, i > 0 ? ", " : "", shape.dim[i]);
    snprintf(out.text + used, sizeof out.text - (size_t)used, "]");
    return out;
}

oar_status oari_check_dtype(const char *name, oar_dtype dtype)
{
    if ((unsigned)dtype < OAR_DTYPE_COUNT)
        return OAR_OK;
    if ((unsigned)dtype >= OAR_DTYPE_COUNT_ALL)
        return oari_fail(OAR_E_ARG, "%s: there is no dtype %d", name,
                         (int)dtype);
    return oari_fail(OAR_E_UNSUPPORTED,
                     "%s of %s: there are no tensors of it, collectives only "
                     "move it",
                     name, oar_dtype_name(dtype));
}

oar_status oari_shape_check(const char *name, oar_shape shape, oar_dtype dtype)
{
    int64_t most, count = 1;

    OARI_TRY(oari_check_dtype(name, dtype));
    if (shape.ndim < 0 || shape.ndim > OAR_MAX_DIMS)
        return oari_fail(OAR_E_ARG, "%s of %d dims: from 0 to %d", name,
                         shape.ndim, (int)OAR_MAX_DIMS);
    most = INT64_MAX / 4 / (int64_t)oar_dtype_size(dtype);
    for (int i = 0; i < shape.ndim; i++) {
        if (shape.dim[i] < 0)
            return oari_fail(OAR_E_ARG, "%s of %s: dim %d is negative", name,
                             oari_shape_text(shape).text, i);
        if (shape.dim[i] > 0 && count > most / shape.dim[i])
            return oari_fail(OAR_E_ARG, "%s of %s: too many elements", name,
                             oari_shape_text(shape).text);
        if (shape.dim[i] > 0) /* a 0 must not hide an overflow of strides */
            count *= shape.dim[i];
    }
    return OAR_OK;
}

int64_t oari_shape_count(oar_shape shape)
{
    int64_t count = 1;

    for (int i = 0; i < shape.ndim; i++)
        count *= shape.dim[i];
    return count;
}

int oari_shape_equal(oar_shape a, oar_shape b)
{
    if (a.ndim != b.ndim)
        return 0;
    for (int i = 0; i < a.ndim; i++)
        if (a.dim[i] != b.dim[i])
            return 0;
    return 1;
}

int oari_shape_broadcast(oar_shape a, oar_shape b, oar_shape *shape)
{
    oar_shape out = { .ndim = a.ndim > b.ndim ? a.ndim : b.ndim };

    for (int i = 1; i <= out.ndim; i++) { /* aligned at the last dim */
        int64_t x = i <= a.ndim ? a.dim[a.ndim - i] : 1;
        int64_t y = i <= b.ndim ? b.dim[b.ndim - i] : 1;

        if (x != y && x != 1 && y != 1)
            return 0;
        out.dim[out.ndim - i] = x == 1 ? y : x;
    }
    *shape = out;
    return 1;
}

int oari_shape_dim(oar_shape shape, int *dim)
{
    int d = *dim < 0 ? *dim + shape.ndim : *dim;

    if (d < 0 || d >= shape.ndim)
        return 0;
    *dim = d;
    return 1;
}

oari_around oari_shape_around(oar_shape shape, int dim)
{
    oari_around s = { 1, shape.dim[dim], 1 };

    for (int i = 0; i < dim; i++)
        s.before *= shape.dim[i];
    for (int i = dim + 1; i < shape.ndim; i++)
        s.after *= shape.dim[i];
    return s;
}

oari_layout oari_layout_rows(oar_shape shape)
{
    oari_layout at = { .shape = shape };
    int64_t step = 1;

    for (int i = shape.ndim - 1; i >= 0; i--) {
        at.stride[i] = step;
        step *= shape.dim[i] > 0 ? shape.dim[i] : 1;
    }
    return at;
}

int oari_layout_is_rows(const oari_layout *at)
{
    int64_t step = 1;

    if (oari_shape_count(at->shape) == 0)
        return 1;
    for (int i = at->shape.ndim - 1; i >= 0; i--) {
        if (at->shape.dim[i] != 1 && at->stride[i] != step)
            return 0;
        step *= at->shape.dim[i];
    }
    return 1;
}

int oari_layout_reach(const oari_layout *at, int64_t *low, int64_t *high)
{
    const int64_t most = INT64_MAX / 32;

    *low = *high = 0;
    for (int i = 0; i < at->shape.ndim; i++) {
        int64_t steps = at->shape.dim[i] - 1, far;

        if (__builtin_mul_overflow(steps, at->stride[i], &far) || far > most ||
            far < -most)
            return 0;
        *(far < 0 ? low : high) += far;
    }
    return *high - *low < most;
}

/* From the smallest stride to the largest, each has to step over everything
 * that the ones before it reach. */
int oari_layout_overlaps(const oari_layout *at)
{
    int64_t reached = 0;
    unsigned done = 0;

    if (oari_shape_count(at->shape) == 0)
        return 0;
    for (;;) {
        int least = -1;

        for (int i = 0; i < at->shape.ndim; i++)
            if (at->shape.dim[i] > 1 && (done & 1u << i) == 0 &&
                (least < 0 || llabs(at->stride[i]) < llabs(at->stride[least])))
                least = i;
        if (least < 0)
            return 0;
        if (llabs(at->stride[least]) <= reached)
            return 1;
        reached += llabs(at->stride[least]) * (at->shape.dim[least] - 1);
        done |= 1u << least;
    }
}

oari_layout oari_layout_transpose(oari_layout at, int d0, int d1)
{
    int64_t dim = at.shape.dim[d0], stride = at.stride[d0];

    at.shape.dim[d0] = at.shape.dim[d1];
    at.stride[d0] = at.stride[d1];
    at.shape.dim[d1] = dim;
    at.stride[d1] = stride;
    return at;
}

oari_layout oari_layout_narrow(oari_layout at, int dim, int64_t start,
                               int64_t length)
{
    at.offset += start * at.stride[dim];
    at.shape.dim[dim] = length;
    return at;
}

oari_layout oari_layout_slice(oari_layout at, int dim, int64_t start,
                              int64_t length, int64_t step)
{
    at = oari_layout_narrow(at, dim, start, length);
    at.stride[dim] *= step;
    return at;
}

oari_layout oari_layout_permute(const oari_layout *at, oar_dims order)
{
    oari_layout out = *at;

    for (int i = 0; i < order.count; i++) {
        out.shape.dim[i] = at->shape.dim[order.dim[i]];
        out.stride[i] = at->stride[order.dim[i]];
    }
    return out;
}

oari_layout oari_layout_drop(oari_layout at, int dim)
{
    at.shape.ndim--;
    for (int i = dim; i < at.shape.ndim; i++) {
        at.shape.dim[i] = at.shape.dim[i + 1];
        at.stride[i] = at.stride[i + 1];
    }
    return at;
}

oari_layout oari_layout_insert(oari_layout at, int dim)
{
    for (int i = at.shape.ndim; i > dim; i--) {
        at.shape.dim[i] = at.shape.dim[i - 1];
        at.stride[i] = at.stride[i - 1];
    }
    at.stride[dim] =
        dim < at.shape.ndim ? at.shape.dim[dim] * at.stride[dim] : 1;
    at.shape.dim[dim] = 1;
    at.shape.ndim++;
    return at;
}

/* Sets the strides of view's dims from `first` on, as many as divide a run of
 * `count` elements that lie `stride` apart. Returns the dim after them, or -1
 * if the dims do not divide the run. */
static int split_run(oari_layout *view, int first, int64_t count,
                     int64_t stride)
{
    int end = first;
    int64_t product = 1;

    while (product < count && end < view->shape.ndim)
        product *= view->shape.dim[end++];
    if (product != count)
        return -1;
    while (end < view->shape.ndim && view->shape.dim[end] == 1)
        end++;
    for (int i = end - 1; i >= first; i--) {
        view->stride[i] = stride;
        stride *= view->shape.dim[i];
    }
    return end;
}

int oari_layout_reshape(const oari_layout *at, oar_shape shape,
                        oari_layout *view)
{
    oari_layout out = oari_layout_rows(shape), from = { .offset = at->offset };
    int dims, next = 0, end;

    for (int i = 0; i < at->shape.ndim; i++)
        if (at->shape.dim[i] != 1) { /* any stride suits a dim of size 1 */
            from.shape.dim[from.shape.ndim] = at->shape.dim[i];
            from.stride[from.shape.ndim++] = at->stride[i];
        }
    out.offset = at->offset;
    dims = oari_shape_count(shape) > 0 ? from.shape.ndim : 0;
    for (int first = 0; first < dims; first = end) {
        int64_t count = from.shape.dim[first];

        /* The dims from `first` to `end` lie in memory like one dim. */
        for (end = first + 1;
             end < dims &&
             from.stride[end - 1] == from.stride[end] * from.shape.dim[end];
             end++)
            count *= from.shape.dim[end];
        next = split_run(&out, next, count, from.stride[end - 1]);
        if (next < 0)
            return 0;
    }
    *view = out;
    return 1;
}

oari_layout oari_layout_expand(const oari_layout *at, oar_shape shape)
{
    oari_layout out = { .shape = shape, .offset = at->offset };
    int shift = shape.ndim - at->shape.ndim;

    for (int i = shift; i < shape.ndim; i++)
        if (at->shape.dim[i - shift] == shape.dim[i])
            out.stride[i] = at->stride[i - shift];
    return out;
}
