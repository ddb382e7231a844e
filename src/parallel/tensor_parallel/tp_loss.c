/* SPDX-License-Identifier: Apache-2.0 */
/* tp_loss: cross entropy of logits whose classes are cut over the ranks. */
#include <oarsong/collective.h>
#include <oarsong/ops.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

#define LOSS_LABEL "tensor parallel loss (ranks are given the same targets)"

/* Between which ranks, and what they compare: the targets. */
typedef struct loss_call {
    oar_group *group;
    uint64_t key;
} loss_call;

static oar_status largest(void *arg, int64_t count, double *number)
{
    const loss_call *call = arg;

    return oar_all_reduce(
        call->group, oar_span_of(number, (size_t)count, OAR_F64), OAR_MAX,
        OAR_OPTS(oar_call_opts, .key = call->key, .label = LOSS_LABEL), NULL);
}

static oar_status sums(void *arg, int64_t count, double *sum)
{
    const loss_call *call = arg;

    return oar_all_reduce(
        call->group, oar_span_of(sum, (size_t)count, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = LOSS_LABEL, .canonical = 1), NULL);
}

oar_tensor *oar_tp_cross_entropy_at(const char *file, int line, oar_tape *tape,
                                    oar_tensor *logits, oar_tensor *target,
                                    oar_group *group, int64_t classes,
                                    const oar_cross_entropy_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    loss_call call = { group, oari_tp_key(target) };
    oar_cross_entropy_merge merge = { .size = sizeof merge,
                                      .classes = classes,
                                      .arg = &call,
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
    if (oar_tensor_device(logits).kind != OAR_CPU)
        return oari_tp_cross_entropy_on(tape, logits, target, &o, &merge,
                                        group);
    if (o.weight != NULL) {
        o.weight = weight = oar_narrow(NULL, o.weight, 0, merge.first, own);
        if (weight == NULL)
            return NULL;
    }
    loss = oar_cross_entropy_merged(tape, logits, target, &o, &merge);
    oar_tensor_release(weight);
    return loss;
}
