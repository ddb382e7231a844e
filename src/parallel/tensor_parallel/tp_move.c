/* SPDX-License-Identifier: Apache-2.0 */
/* tp_move: collectives over tensors that are cut along any dim. Where the parts
 * of the ranks are not one after the other in the whole, it goes through a copy
 * in which they are. */
#include <string.h>

#include <oarsong/collective.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"
#include "parallel/reducer/stream_call.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

/* The sums that begin a model: all ranks have been given the same tokens. */
#define TOKENS_LABEL "tensor parallel tokens (ranks are given the same)"

int64_t oar_tp_part(int64_t whole, int rank, int ranks, int64_t *first)
{
    int64_t each, rest;

    if (whole < 0 || rank < 0 || rank >= ranks)
        return 0;
    each = whole / ranks;
    rest = whole % ranks;
    if (first != NULL)
        *first = each * rank + (rank < rest ? rank : rest);
    return each + (rank < rest);
}

oari_tp_layout oari_tp_layout_along(oar_group *group, oar_shape whole, int dim)
{
    oari_tp_layout l = { group, 1, whole.dim[dim], 1, 0 };

    for (int d = 0; d < whole.ndim; d++)
        if (d < dim)
            l.outer *= whole.dim[d];
        else if (d > dim)
            l.inner *= whole.dim[d];
    return l;
}

/* Shapes that do not differ are those of the first of several ranks, which has
 * everything, or of the only one: then any dim of at most one run will do. */
oari_tp_layout oari_tp_layout_of(oar_group *group, oar_shape whole,
                                 oar_shape part)
{
    oari_tp_layout l = { group, 1, 1, 1, 0 };

    for (int d = 0; d < whole.ndim; d++)
        if (whole.dim[d] != part.dim[d])
            return oari_tp_layout_along(group, whole, d);
    for (int d = 0; d < whole.ndim; d++)
        l.inner *= whole.dim[d];
    return l;
}

/* ---- the order of ranks -------------------------------------------------- */

/* Whether the parts of the ranks are one after the other in the whole. */
static int is_in_order(const oari_tp_layout *l)
{
    return l->outer <= 1 || oar_group_size(l->group) == 1;
}

/* Gives the elements that each rank has; NULL if all have the same. */
static oar_status count_parts(const oari_tp_layout *l, size_t **counts)
{
    int ranks = oar_group_size(l->group);
    size_t *made;

    *counts = NULL;
    if (l->size % ranks == 0)
        return OAR_OK;
    made = oari_alloc((size_t)ranks, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < ranks; r++)
        made[r] = (size_t)(l->outer * oar_tp_part(l->size, r, ranks, NULL) *
                           l->inner);
    *counts = made;
    return OAR_OK;
}

/* Copies rank r's part between the whole and `apart`, where a rank's ranges
 * follow each other. Returns the bytes of the part. */
static size_t copy_part(const oari_tp_layout *l, int r, size_t element,
                        char *whole, char *apart, int out)
{
    int64_t first = 0;
    int64_t count = oar_tp_part(l->size, r, oar_group_size(l->group), &first);
    size_t slice = (size_t)l->inner * element, run = (size_t)count * slice;

    for (int64_t o = 0; o < l->outer && run > 0; o++) {
        char *in_whole = whole + (size_t)(o * l->size + first) * slice;

        if (out)
            memcpy(apart + (size_t)o * run, in_whole, run);
        else
            memcpy(in_whole, apart + (size_t)o * run, run);
    }
    return (size_t)l->outer * run;
}

/* Gives up a view for the next one, made of it. */
static oar_tensor *next_view(oar_tensor *view, oar_tensor *made)
{
    oar_tensor_release(view);
    return made;
}

/* Copies rank r's part between two tensors on a GPU, in the order of the
 * current stream. at: where the part begins in `apart`. */
static oar_status copy_part_on(const oari_tp_layout *l, int r,
                               oar_tensor *whole, oar_tensor *apart, int64_t at,
                               int out)
{
    int64_t first = 0;
    int64_t count = oar_tp_part(l->size, r, oar_group_size(l->group), &first);
    oar_tensor *a, *b;
    oar_status status;

    if (l->outer * count * l->inner == 0)
        return OAR_OK;
    a = oar_reshape(NULL, whole, OAR_SHAPE(l->outer, l->size, l->inner));
    a = next_view(a, oar_narrow(NULL, a, 1, first, count));
    b = oar_reshape(NULL, apart, OAR_SHAPE(oar_tensor_count(apart)));
    b = next_view(b, oar_narrow(NULL, b, 0, at, l->outer * count * l->inner));
    b = next_view(b,
                  oar_reshape(NULL, b, OAR_SHAPE(l->outer, count, l->inner)));
    status = a != NULL && b != NULL ? oar_tensor_copy(out ? b : a, out ? a : b)
                                    : oar_last_error()->status;
    oar_tensor_release(a);
    oar_tensor_release(b);
    return status;
}

/* Copies all parts between the whole and `apart`, which has them in order. */
static oar_status copy_parts(const oari_tp_layout *l, const oar_tensor *whole,
                             oar_tensor *apart, int out)
{
    int ranks = oar_group_size(l->group);
    size_t element = oar_dtype_size(oar_tensor_dtype(whole));
    oar_tensor *of;
    const void *from;
    char *data, *to;
    int64_t at = 0;

    if (oar_tensor_device(whole).kind != OAR_CPU) {
        memcpy(&of, &whole, sizeof of); /* written only if it is `out` of */
        for (int r = 0; r < ranks; r++) {
            OARI_TRY(copy_part_on(l, r, of, apart, at, out));
            at += l->outer * oar_tp_part(l->size, r, ranks, NULL) * l->inner;
        }
        return OAR_OK;
    }
    from = oar_tensor_const_data(whole);
    to = oar_tensor_data(apart);
    memcpy(&data, &from, sizeof data);
    for (int r = 0; r < ranks; r++)
        to += copy_part(l, r, element, data, to, out);
    return OAR_OK;
}

/* Gives memory for the whole in the order of ranks: its own, or a copy's. */
static oar_status order_memory(const oari_tp_layout *l, const oar_tensor *whole,
                               oar_tensor **apart)
{
    *apart = NULL;
    if (is_in_order(l))
        return OAR_OK;
    *apart =
        oar_empty_on(NULL, oar_tensor_device(whole), oar_tensor_dtype(whole),
                     OAR_SHAPE(oar_tensor_count(whole)));
    return *apart != NULL ? OAR_OK : oar_last_error()->status;
}

/* What is on a GPU is not compared: the host would have to wait for it. */
uint64_t oari_tp_key(const oar_tensor *t)
{
    const void *data = t != NULL && oar_tensor_device(t).kind == OAR_CPU
                           ? oar_tensor_const_data(t)
                           : NULL;

    return data != NULL && oar_tensor_is_contiguous(t)
               ? oari_hash64(data,
                             (size_t)oar_tensor_count(t) *
                                 oar_dtype_size(oar_tensor_dtype(t)),
                             0)
               : 0;
}

/* ---- moving -------------------------------------------------------------- */

oar_status oari_tp_move_gather(const oari_tp_layout *l, const oar_tensor *part,
                               oar_tensor *whole)
{
    oar_tensor *apart = NULL;
    size_t *counts = NULL;
    oar_span in, out;
    oar_status status;

    OARI_TRY(oar_tensor_const_span(part, &in));
    OARI_TRY(order_memory(l, whole, &apart));
    status = oar_tensor_span(apart != NULL ? apart : whole, &out);
    if (status == OAR_OK)
        status = count_parts(l, &counts);
    if (status == OAR_OK)
        status = oari_stream_call_run(&(oari_stream_call){
            .kind = OARI_CALL_ALL_GATHER,
            .group = l->group,
            .in = in,
            .out = out,
            .out_counts = counts,
            .opts =
                *OAR_OPTS(oar_call_opts, .label = "tensor parallel gather") });
    if (status == OAR_OK && apart != NULL)
        status = copy_parts(l, whole, apart, 0);
    oari_free(counts);
    oar_tensor_release(apart);
    return status;
}

oar_status oari_tp_move_reduce_scatter(const oari_tp_layout *l,
                                       const oar_tensor *whole,
                                       oar_tensor *part)
{
    oar_tensor *apart = NULL;
    size_t *counts = NULL;
    oar_span in, out;
    oar_status status;

    OARI_TRY(oar_tensor_span(part, &out));
    OARI_TRY(order_memory(l, whole, &apart));
    status = apart != NULL ? copy_parts(l, whole, apart, 1) : OAR_OK;
    if (status == OAR_OK)
        status = oar_tensor_const_span(apart != NULL ? apart : whole, &in);
    if (status == OAR_OK)
        status = count_parts(l, &counts);
    if (status == OAR_OK)
        status = oari_stream_call_run(&(oari_stream_call){
            .kind = OARI_CALL_REDUCE_SCATTER,
            .group = l->group,
            .in = in,
            .in_counts = counts,
            .out = out,
            .op = OAR_SUM,
            .opts =
                *OAR_OPTS(oar_call_opts, .key = l->key,
                          .label = l->key != 0 ? TOKENS_LABEL
                                               : "tensor parallel scatter") });
    oari_free(counts);
    oar_tensor_release(apart);
    return status;
}

oar_status oari_tp_move_own(const oari_tp_layout *l, const oar_tensor *whole,
                            oar_tensor *part)
{
    oar_tensor *of;
    const void *from;
    char *data;

    if (oar_tensor_count(part) == 0)
        return OAR_OK;
    if (oar_tensor_device(part).kind != OAR_CPU) {
        memcpy(&of, &whole, sizeof of); /* it is only read */
        return copy_part_on(l, oar_group_rank(l->group), of, part, 0, 1);
    }
    from = oar_tensor_const_data(whole);
    memcpy(&data, &from, sizeof data);
    copy_part(l, oar_group_rank(l->group),
              oar_dtype_size(oar_tensor_dtype(part)), data,
              oar_tensor_data(part), 1);
    return OAR_OK;
}

oar_status oari_tp_move_all_reduce(oar_group *group, uint64_t key,
                                   const oar_tensor *from, oar_tensor *to)
{
    oar_span in, out;

    OARI_TRY(oar_tensor_span(to, &out));
    OARI_TRY(oar_tensor_const_span(from, &in));
    return oari_stream_call_run(&(oari_stream_call){
        .kind = OARI_CALL_ALL_REDUCE,
        .group = group,
        .in = in,
        .out = out,
        .op = OAR_SUM,
        .opts = *OAR_OPTS(oar_call_opts, .key = key,
                          .label = key != 0 ? TOKENS_LABEL
                                            : "tensor parallel sum") });
}
