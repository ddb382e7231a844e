/* SPDX-License-Identifier: Apache-2.0 */
/* tp_grads: which parameters of a model are cut, and the norm of all its
 * gradients. */
#include <oarsong/parallel.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

const oari_tp_cut *oari_tp_cut_of(const oar_module *module,
                                  const oar_tensor *param)
{
    const oari_tp_layer *l = oari_tp_layer_of(module);

    for (int i = 0; l != NULL && i < OARI_TP_PARAMS; i++)
        if (oar_module_param(module, i) == param && l->cut[i].ranges > 0)
            return &l->cut[i];
    for (int i = 0; i < oar_module_children(module); i++) {
        const oari_tp_cut *cut =
            oari_tp_cut_of(oar_module_child(module, i), param);

        if (cut != NULL)
            return cut;
    }
    return NULL;
}

int oar_tp_is_cut(const oar_module *module, const oar_tensor *param)
{
    return param != NULL && oari_tp_cut_of(module, param) != NULL;
}

/* Returns what the first tensor parallel layer below the module shares with the
 * others; NULL: there is none. */
static const oari_tp *tp_of(const oar_module *module)
{
    const oari_tp_layer *l = oari_tp_layer_of(module);
    const oari_tp *tp = l != NULL ? l->tp : NULL;

    for (int i = 0; tp == NULL && i < oar_module_children(module); i++)
        tp = tp_of(oar_module_child(module, i));
    return tp;
}

int oari_tp_rank(const oar_module *module)
{
    const oari_tp *tp = tp_of(module);

    return tp != NULL ? tp->rank : 0;
}

/* ---- clipping ------------------------------------------------------------ */

/* The groups that the parameters are spread over, or the same in. */
enum { TP, DATA, REPLICAS, GROUPS };

/* Writes what this rank has of each parameter: those of the module, or the
 * shards of FSDP. Returns how many there are. */
static int list_parts(const oar_module *module, oar_clip_part *part)
{
    const oari_fsdp *fsdp = oari_fsdp_of(module);
    int count = oar_module_params(module);

    if (fsdp == NULL) {
        for (int i = 0; i < count; i++) {
            part[i].param = oar_module_param(module, i);
            part[i].cut = oar_tp_is_cut(module, part[i].param) ? 1U << TP : 0;
        }
        return count;
    }
    oar_shards_tensors(fsdp->shards, &count);
    for (int i = 0; i < count; i++) {
        int array = oari_fsdp_array_of_shard(fsdp, fsdp->clip[i].param);
        int cut = oar_tp_is_cut(module, fsdp->param[array].tensor);

        part[i] = fsdp->clip[i];
        part[i].cut = (part[i].cut & 1 ? 1U << DATA : 0) | (cut ? 1U << TP : 0);
    }
    return count;
}

oar_status oar_tp_clip_grad_norm_at(const char *file, int line,
                                    oar_module *module, double limit,
                                    double *norm)
{
    OARI_CALLED_FROM(file, line);
    const oari_tp *tp = module != NULL ? tp_of(module) : NULL;
    const oari_ddp *ddp = oari_ddp_of(module);
    const oari_fsdp *fsdp = oari_fsdp_of(module);
    oar_group *group[GROUPS] = { NULL };
    oar_clip_part *part;
    oar_status status;
    int room = oar_module_params(module), shards = 0;

    if (tp == NULL)
        return oari_fail(OAR_E_ARG, "tp_clip_grad_norm of a module in which "
                                    "nothing is tensor parallel");
    group[TP] = tp->group;
    if (ddp != NULL)
        group[DATA] = ddp->group;
    if (fsdp != NULL) {
        group[DATA] = fsdp->group;
        group[REPLICAS] = fsdp->opts.replicas;
        oar_shards_tensors(fsdp->shards, &shards);
        room = shards > room ? shards : room;
    }
    part = oari_alloc((size_t)room + 1, sizeof *part);
    if (part == NULL)
        return OAR_E_NOMEM;
    status = oar_clip_grad_norm_over(GROUPS, group, list_parts(module, part),
                                     part, limit, norm);
    oari_free(part);
    return status;
}
