/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_tie: parameters that stages of several ranks have in common. Each
 * holder has a tensor of its own, and a step leaves the sum of all holders'
 * gradients in each, added in the order of ranks: so they have the same bits,
 * and optimizers that are alike leave the same parameters. */
#include <string.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"

#include <oarsong/ops.h>

/* What each rank tells of its tensor. */
typedef struct tie_told {
    int64_t status, holds;
    uint64_t name;
    oari_flow_spec spec;
} tie_told;

static oar_status check_param(const char *name, const oar_tensor *param)
{
    if (name == NULL)
        return oari_fail(OAR_E_ARG, "pipeline_tie without a name");
    if (param == NULL)
        return OAR_OK;
    if (!oar_tensor_requires_grad(param))
        return oari_fail(OAR_E_ARG, "pipeline_tie: %s has no gradient", name);
    if (!oar_tensor_is_contiguous(param) ||
        oar_tensor_const_data(param) == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "pipeline_tie: %s is strided, or its numbers are not "
                         "here, as those of FSDP",
                         name);
    return OAR_OK;
}

static int same_spec(const oari_flow_spec *a, const oari_flow_spec *b)
{
    int same = a->dtype == b->dtype && a->shape.ndim == b->shape.ndim;

    for (int d = 0; same && d < a->shape.ndim; d++)
        same = a->shape.dim[d] == b->shape.dim[d];
    return same;
}

/* Compares what all ranks have told; gives the number of holders. */
static oar_status compare_told(const oar_pipeline *p, const char *name,
                               const tie_told *told, int *holders)
{
    int first = -1;

    *holders = 0;
    for (int r = 0; r < p->ranks; r++) {
        if (told[r].status != OAR_OK)
            return oari_about(
                r, oari_fail((oar_status)told[r].status,
                             "pipeline_tie: rank %d cannot take part: %s", r,
                             oar_status_text((oar_status)told[r].status)));
        if (told[r].name != told[0].name)
            return oari_about(
                r, oari_fail(OAR_E_MISMATCH,
                             "pipeline_tie: ranks 0 and %d give different "
                             "names",
                             r));
        if (!told[r].holds)
            continue;
        first = first < 0 ? r : first;
        if (!same_spec(&told[first].spec, &told[r].spec))
            return oari_about(
                r, oari_fail(OAR_E_SHAPE,
                             "pipeline_tie: %s has another shape or dtype on "
                             "rank %d than on rank %d",
                             name, r, first));
        (*holders)++;
    }
    if (*holders == 0)
        return oari_fail(OAR_E_ARG, "pipeline_tie: no rank has %s", name);
    return OAR_OK;
}

static oar_status exchange(oar_pipeline *p, const char *name, oar_tensor *param,
                           tie_told *told, int *holders)
{
    tie_told mine = { .holds = param != NULL };
    oar_status status = check_param(name, param);
    oar_error why = *oar_last_error();

    mine.status = (int64_t)status;
    for (const char *c = name; c != NULL && *c != 0; c++)
        mine.name = oari_pipeline_hash(mine.name, (uint64_t)*c);
    mine.spec.dtype = oar_tensor_dtype(param);
    mine.spec.shape = oar_tensor_shape(param);
    status = oar_all_gather(
        p->group, oar_span_of(&mine, sizeof mine, OAR_U8),
        oar_span_of(told, (size_t)p->ranks * sizeof mine, OAR_U8),
        OAR_OPTS(oar_call_opts, .label = "pipeline tie"), NULL);
    if (status != OAR_OK)
        return status;
    return mine.status != OAR_OK ? oari_fail_with(&why)
                                 : compare_told(p, name, told, holders);
}

/* Gives all holders the first one's numbers. */
static oar_status copy_first(oar_group *holders, oar_tensor *param)
{
    oar_span span;

    OARI_TRY(oar_tensor_span(param, &span));
    OARI_TRY(oar_broadcast(holders, span, 0,
                           OAR_OPTS(oar_call_opts, .label = "pipeline tie"),
                           NULL));
    return oar_tensor_touch(param);
}

/* Makes the group of the holders, and gives them the same numbers. */
static oar_status add_tie(oar_pipeline *p, oar_tensor *param)
{
    oari_tie tie = { .param = param };

    OARI_TRY(oari_vec_reserve(&p->tie, 1));
    OARI_TRY(oar_group_split(p->group, param != NULL ? 0 : -1, 0, &tie.group));
    if (param == NULL)
        return OAR_OK;
    oar_tensor_retain(param);
    p->tie.data[p->tie.count++] = tie;
    return copy_first(tie.group, param);
}

oar_status oar_pipeline_tie_at(const char *file, int line, oar_pipeline *p,
                               const char *name, oar_tensor *param)
{
    OARI_CALLED_FROM(file, line);
    tie_told *told;
    oar_status status;
    int holders = 0;

    if (p == NULL || p->over)
        return oari_fail(p == NULL ? OAR_E_ARG : OAR_E_STATE,
                         "pipeline_tie without a pipeline that can go on");
    told = oari_alloc((size_t)p->ranks, sizeof *told);
    if (told == NULL)
        return oari_pipeline_give_up(p);
    status = exchange(p, name, param, told, &holders);
    oari_free(told);
    if (status != OAR_OK || holders < 2)
        return status;
    if (add_tie(p, param) != OAR_OK)
        return oari_pipeline_give_up(p);
    return OAR_OK;
}

void oari_ties_free(oar_pipeline *p)
{
    for (int64_t i = 0; i < p->tie.count; i++) {
        oar_group_destroy(p->tie.data[i].group);
        oar_tensor_release(p->tie.data[i].param);
        oar_tensor_release(p->tie.data[i].before);
        oar_tensor_release(p->tie.data[i].home);
    }
    oari_vec_free(&p->tie);
}

/* ---- in a step ----------------------------------------------------------- */

static oar_status make_like(oar_tensor **tensor, const oar_tensor *param)
{
    if (*tensor == NULL)
        *tensor =
            oari_zeros_on(oar_tensor_device(param), NULL,
                          oar_tensor_dtype(param), oar_tensor_shape(param));
    return *tensor != NULL ? OAR_OK : oar_last_error()->status;
}

oar_status oari_ties_begin(oar_pipeline *p)
{
    for (int64_t i = 0; i < p->tie.count; i++) {
        oari_tie *t = &p->tie.data[i];
        oar_tensor *grad = oar_tensor_grad(t->param);
        t->had = grad != NULL;
        if (!t->had)
            continue;
        OARI_TRY(make_like(&t->before, t->param));
        OARI_TRY(oar_tensor_copy(t->before, grad));
        oar_tensor_clear_grad(t->param);
    }
    return OAR_OK;
}

/* Gives a holder that no loss has reached a gradient of zeros. */
static oar_status make_gradient(oari_tie *t)
{
    if (oar_tensor_grad(t->param) != NULL)
        return OAR_OK;
    OARI_TRY(make_like(&t->home, t->param));
    OARI_TRY(oar_tensor_bind_grad(t->param, t->home));
    OARI_TRY(oar_tensor_fill(t->home, 0));
    return oar_tensor_mark_grad(t->param);
}

static oar_status sum_tie(oari_tie *t)
{
    oar_tensor *grad, *sum;
    oar_status status;
    oar_span span;

    OARI_TRY(make_gradient(t));
    grad = oar_tensor_grad(t->param);
    OARI_TRY(oar_tensor_span(grad, &span));
    OARI_TRY(oar_all_reduce(
        t->group, span, OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "pipeline tie", .canonical = 1),
        NULL));
    if (!t->had)
        return OAR_OK;
    sum = oar_add(NULL, t->before, grad);
    status = oar_tensor_copy(grad, sum);
    oar_tensor_release(sum);
    return status;
}

oar_status oari_ties_sum(oar_pipeline *p)
{
    for (int64_t i = 0; i < p->tie.count; i++)
        OARI_TRY(sum_tie(&p->tie.data[i]));
    return OAR_OK;
}
