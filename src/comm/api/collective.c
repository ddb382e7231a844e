/* SPDX-License-Identifier: Apache-2.0 */
/* collective: the public calls of collectives. Each checks its arguments and
 * posts a call. */
#include <oarsong/collective.h>

#include "base/status.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/fault/fault.h"

oar_status oar_barrier_at(const char *file, int line, oar_group *group,
                          const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_BARRIER, file, line, group, opts));
    return oari_post(group, &call, work);
}

oar_status oar_broadcast_at(const char *file, int line, oar_group *group,
                            oar_span buf, int root, const oar_call_opts *opts,
                            oar_work **work)
{
    oari_call call;

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_BROADCAST, file, line, group, opts));
    OARI_TRY(oari_check_span("broadcast", &buf));
    OARI_TRY(oari_check_rank("broadcast", group, root));
    call.in = call.out = buf;
    call.agreed = buf.count;
    call.root = root;
    return oari_post(group, &call, work);
}

/* Checks in and out of a reduction that leaves as many elements. */
static oar_status check_reduction(const char *what, const oar_span *in,
                                  const oar_span *out)
{
    OARI_TRY(oari_check_span(what, out));
    if (in->data == out->data && in->count == out->count &&
        in->dtype == out->dtype)
        return OAR_OK;
    OARI_TRY(oari_check_span(what, in));
    if (in->count != out->count || in->dtype != out->dtype)
        return oari_fail(OAR_E_ARG, "%s of %zu %s into %zu %s", what, in->count,
                         oar_dtype_name(in->dtype), out->count,
                         oar_dtype_name(out->dtype));
    return oari_check_apart(what, out, 0, in);
}

oar_status oar_all_reduce_into_at(const char *file, int line, oar_group *group,
                                  oar_span in, oar_span out, oar_reduce_op op,
                                  const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_ALL_REDUCE, file, line, group, opts));
    OARI_TRY(check_reduction("all_reduce", &in, &out));
    call.in = in;
    call.out = out;
    call.agreed = out.count;
    call.op = op;
    OARI_TRY(oari_check_op(&call, opts));
    return oari_post(group, &call, work);
}

oar_status oar_all_reduce_at(const char *file, int line, oar_group *group,
                             oar_span buf, oar_reduce_op op,
                             const oar_call_opts *opts, oar_work **work)
{
    return oar_all_reduce_into_at(file, line, group, buf, buf, op, opts, work);
}

oar_status oar_reduce_at(const char *file, int line, oar_group *group,
                         oar_span in, oar_span out, oar_reduce_op op, int root,
                         const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_REDUCE, file, line, group, opts));
    OARI_TRY(oari_check_rank("reduce", group, root));
    OARI_TRY(oari_check_span("reduce", &in));
    if (group->rank == root)
        OARI_TRY(check_reduction("reduce", &in, &out));
    else
        out = (oar_span){ .dtype = in.dtype, .device = in.device };
    call.in = in;
    call.out = out;
    call.agreed = in.count;
    call.op = op;
    call.root = root;
    OARI_TRY(oari_check_op(&call, opts));
    return oari_post(group, &call, work);
}

/* ---- rows of parts ------------------------------------------------------- */

/* Checks a row against the part of it that this rank has in a buffer of its
 * own. counts == NULL: every part is as long as that one. */
static oar_status check_parts(const char *what, const oar_group *g,
                              const oar_span *row, const size_t *counts,
                              const oar_span *part)
{
    size_t total = oari_parts_total(counts, g->ranks, part->count);

    OARI_TRY(oari_check_span(what, row));
    OARI_TRY(oari_check_span(what, part));
    OARI_TRY(oari_check_same(what, row, part));
    if (row->count != total)
        return oari_fail(OAR_E_ARG,
                         "%s: a row of %zu elements, but the parts of %d ranks "
                         "have %zu",
                         what, row->count, g->ranks, total);
    if (counts != NULL && counts[g->rank] != part->count)
        return oari_fail(OAR_E_ARG,
                         "%s: %zu elements, but the counts give rank %d %zu",
                         what, part->count, g->rank, counts[g->rank]);
    return oari_check_apart(
        what, row, oari_parts_total(counts, g->rank, part->count), part);
}

static oar_status post_gather(oari_call *call, oar_group *group, oar_span in,
                              oar_span out, const size_t *counts, int root,
                              oar_work **work)
{
    int mine = group->rank == root;

    OARI_TRY(oari_check_span("gather", &in));
    if (mine)
        OARI_TRY(check_parts("gather", group, &out, counts, &in));
    else
        out = (oar_span){ .dtype = in.dtype, .device = in.device };
    call->in = in;
    call->out = out;
    call->out_counts = mine ? counts : NULL;
    call->agreed = call->ragged ? 0 : in.count;
    call->root = root;
    return oari_post(group, call, work);
}

oar_status oar_gather_at(const char *file, int line, oar_group *group,
                         oar_span in, oar_span out, int root,
                         const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_GATHER, file, line, group, opts));
    OARI_TRY(oari_check_rank("gather", group, root));
    return post_gather(&call, group, in, out, NULL, root, work);
}

oar_status oar_gather_v_at(const char *file, int line, oar_group *group,
                           oar_span in, oar_span out, const size_t *counts,
                           int root, const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_GATHER, file, line, group, opts));
    OARI_TRY(oari_check_rank("gather_v", group, root));
    if (counts == NULL && group->rank == root)
        return oari_fail(OAR_E_ARG, "gather_v: root gives no counts");
    call.ragged = 1;
    return post_gather(&call, group, in, out, counts, root, work);
}

static oar_status post_scatter(oari_call *call, oar_group *group, oar_span in,
                               const size_t *counts, oar_span out, int root,
                               oar_work **work)
{
    int mine = group->rank == root;

    OARI_TRY(oari_check_span("scatter", &out));
    if (mine)
        OARI_TRY(check_parts("scatter", group, &in, counts, &out));
    else
        in = (oar_span){ .dtype = out.dtype, .device = out.device };
    call->in = in;
    call->out = out;
    call->in_counts = mine ? counts : NULL;
    call->agreed = call->ragged ? 0 : out.count;
    call->root = root;
    return oari_post(group, call, work);
}

oar_status oar_scatter_at(const char *file, int line, oar_group *group,
                          oar_span in, oar_span out, int root,
                          const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_SCATTER, file, line, group, opts));
    OARI_TRY(oari_check_rank("scatter", group, root));
    return post_scatter(&call, group, in, NULL, out, root, work);
}

oar_status oar_scatter_v_at(const char *file, int line, oar_group *group,
                            oar_span in, const size_t *counts, oar_span out,
                            int root, const oar_call_opts *opts,
                            oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_SCATTER, file, line, group, opts));
    OARI_TRY(oari_check_rank("scatter_v", group, root));
    if (counts == NULL && group->rank == root)
        return oari_fail(OAR_E_ARG, "scatter_v: root gives no counts");
    call.ragged = 1;
    return post_scatter(&call, group, in, counts, out, root, work);
}

oar_status oar_all_gather_v_at(const char *file, int line, oar_group *group,
                               oar_span in, oar_span out, const size_t *counts,
                               const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_ALL_GATHER, file, line, group, opts));
    OARI_TRY(check_parts("all_gather", group, &out, counts, &in));
    call.in = in;
    call.out = out;
    call.out_counts = counts;
    call.ragged = counts != NULL;
    call.agreed =
        counts != NULL ? oari_parts_hash(counts, group->ranks) : in.count;
    return oari_post(group, &call, work);
}

/* Checks what is wrong only in a reduce_scatter of half types into f32. */
static oar_status check_widening(const oar_span *in, const oar_span *out)
{
    uintptr_t x = (uintptr_t)in->data, y = (uintptr_t)out->data;

    if (in->device.kind != OAR_CPU || out->device.kind != OAR_CPU)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "reduce_scatter of %s into f32 on device memory",
                         oar_dtype_name(in->dtype));
    if (in->count != 0 && out->count != 0 && x < y + oari_span_bytes(out) &&
        y < x + oari_span_bytes(in))
        return oari_fail(OAR_E_ARG,
                         "reduce_scatter of %s into f32: in and out overlap",
                         oar_dtype_name(in->dtype));
    return OAR_OK;
}

oar_status oar_reduce_scatter_v_at(const char *file, int line, oar_group *group,
                                   oar_span in, const size_t *counts,
                                   oar_span out, oar_reduce_op op,
                                   const oar_call_opts *opts, oar_work **work)
{
    int widens = oari_dtype_is_half(in.dtype) && out.dtype == OAR_F32;
    oar_span part = out;
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_REDUCE_SCATTER, file, line, group,
                             opts));
    if (widens)
        part.dtype = in.dtype;
    OARI_TRY(check_parts("reduce_scatter", group, &in, counts, &part));
    if (widens)
        OARI_TRY(check_widening(&in, &out));
    call.in = in;
    call.out = out;
    call.in_counts = counts;
    call.op = op;
    call.ragged = counts != NULL;
    call.agreed =
        counts != NULL ? oari_parts_hash(counts, group->ranks) : out.count;
    OARI_TRY(oari_check_op(&call, opts));
    return oari_post(group, &call, work);
}

/* Checks one side of an all_to_all. */
static oar_status check_row(const oar_group *g, const oar_span *row,
                            const size_t *counts)
{
    size_t total = counts != NULL
                       ? oari_parts_total(counts, g->ranks, 0)
                       : row->count / (size_t)g->ranks * (size_t)g->ranks;

    OARI_TRY(oari_check_span("all_to_all", row));
    if (row->count == total)
        return OAR_OK;
    return counts != NULL
               ? oari_fail(OAR_E_ARG,
                           "all_to_all: a row of %zu elements, but the counts "
                           "add up to %zu",
                           row->count, total)
               : oari_fail(OAR_E_ARG,
                           "all_to_all: %zu elements cannot be cut into %d "
                           "equal parts",
                           row->count, g->ranks);
}

oar_status oar_all_to_all_v_at(const char *file, int line, oar_group *group,
                               oar_span in, const size_t *in_counts,
                               oar_span out, const size_t *out_counts,
                               const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_ALL_TO_ALL, file, line, group, opts));
    if ((in_counts == NULL) != (out_counts == NULL))
        return oari_fail(OAR_E_ARG, "all_to_all_v with counts of one side");
    OARI_TRY(check_row(group, &in, in_counts));
    OARI_TRY(check_row(group, &out, out_counts));
    OARI_TRY(oari_check_same("all_to_all", &in, &out));
    if (in_counts == NULL && in.count != out.count)
        return oari_fail(OAR_E_ARG, "all_to_all of %zu elements into %zu",
                         in.count, out.count);
    if (in.data == out.data && in.count != 0 && out.count != 0)
        return oari_fail(OAR_E_ARG, "all_to_all: in and out are the same");
    OARI_TRY(oari_check_apart("all_to_all", &out, 0, &in));
    call.in = in;
    call.out = out;
    call.in_counts = in_counts;
    call.out_counts = out_counts;
    call.ragged = in_counts != NULL;
    call.agreed = in_counts != NULL ? 0 : in.count;
    return oari_post(group, &call, work);
}
