/* SPDX-License-Identifier: Apache-2.0 */
/* tp_loss: cross entropy of logits whose classes are cut over the ranks. */
#include <oarsong/collective.h>
#include <oarsong/ops.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

static oar_status largest(void *group, int64_t count, double *number)
{
    return oar_all_reduce(
        group, oar_span_of(number, (size_t)count, OAR_F64), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "tensor parallel loss"), NULL);
}

static oar_status sums(void *group, int64_t count, double *sum)
{
    return oar_all_reduce(
        group, oar_span_of(sum, (size_t)count, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "tensor parallel loss",
                 .canonical = 1),
        NULL);
}

oar_tensor *oar_tp_cross_entropy_at(const char *file, int line, oar_tape *tape,
                                    oar_tensor *logits, oar_tensor *target,
                                    oar_group *group, int64_t classes,
                                    const oar_cross_entropy_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    oar_cross_entropy_merge merge = { .size = sizeof merge,
                                      .classes = classes,
                                      .arg = group,
                                      .largest = largest,
                                      .sums = sums };
    oar_shape shape = oar_tensor_shape(logits);
    oar_cross_entropy_opts o;
    oar_tensor *loss, *weight = NULL;
    int64_t own;

    if (logits == NULL || oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    own = oar_tp_part(classes, oar_group_rank(group), oar_group_size(group),
                      &merge.first);
    if (group == NULL || shape.ndim != 2 || shape.dim[1] != own) {
        oari_fail(group == NULL ? OAR_E_ARG : OAR_E_SHAPE,
                  "tp_cross_entropy of %lld columns and %lld classes: rank %d "
                  "of %d has %lld of them",
                  (long long)(shape.ndim == 2 ? shape.dim[1] : -1),
                  (long long)classes, oar_group_rank(group),
                  oar_group_size(group), (long long)own);
        return NULL;
    }
    o.size = sizeof o;
    if (o.weight != NULL) {
        o.weight = weight = oar_narrow(NULL, o.weight, 0, merge.first, own);
        if (weight == NULL)
            return NULL;
    }
    loss = oar_cross_entropy_merged(tape, logits, target, &o, &merge);
    oar_tensor_release(weight);
    return loss;
}
