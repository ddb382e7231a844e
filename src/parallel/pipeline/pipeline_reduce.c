/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_reduce: stages that DDP or FSDP wraps. Their backward passes leave
 * this rank's own gradients; what they have added up is reduced once, where the
 * schedule has REDUCE_GRAD, else after the stage's last backward. DDP's
 * reductions go on beside the rest of the row. */
#include "base/status.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/pipeline/pipeline.h"

static oari_ddp *ddp_of(const oari_pipe_stage *s)
{
    return s->given.module != NULL ? oari_ddp_of(s->given.module) : NULL;
}

static oari_fsdp *fsdp_of(const oari_pipe_stage *s)
{
    return s->given.module != NULL ? oari_fsdp_of(s->given.module) : NULL;
}

oar_status oari_stage_check_wrapper(const oari_pipe_stage *s)
{
    if (fsdp_of(s) != NULL && s->given.recompute)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "pipeline_create: stage %d is wrapped by FSDP, which "
                         "cannot be recomputed as a whole: recompute its parts",
                         s->index);
    return OAR_OK;
}

oar_status oari_stages_begin(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++) {
        oari_pipe_stage *s = &p->stage[i];
        s->local = s->reducing = 0;
        if (ddp_of(s) != NULL)
            OARI_TRY(oar_ddp_no_sync_begin(s->given.module));
        else if (fsdp_of(s) != NULL)
            OARI_TRY(oar_fsdp_no_sync_begin(s->given.module));
        else
            continue;
        s->local = 1;
    }
    return OAR_OK;
}

static oar_status end_local(oari_pipe_stage *s)
{
    if (!s->local)
        return OAR_OK;
    s->local = 0;
    return ddp_of(s) != NULL ? oar_ddp_no_sync_end(s->given.module)
                             : oar_fsdp_no_sync_end(s->given.module);
}

oar_status oari_stage_reduce(oari_pipe_stage *s)
{
    oari_ddp *ddp = ddp_of(s);
    oari_fsdp *fsdp = fsdp_of(s);

    if (!s->local)
        return OAR_OK;
    OARI_TRY(end_local(s));
    if (ddp != NULL && ddp->no_sync == 0) {
        OARI_TRY(oari_ddp_reduce_begin(ddp));
        s->reducing = 1;
    }
    return fsdp != NULL && fsdp->no_sync == 0 ? oari_fsdp_reduce(fsdp) : OAR_OK;
}

oar_status oari_stages_finish(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++) {
        oari_pipe_stage *s = &p->stage[i];
        if (s->reducing)
            OARI_TRY(oari_ddp_reduce_end(ddp_of(s)));
        s->reducing = 0;
    }
    return OAR_OK;
}

/* Ranks of other pipelines wait for this one's gradients, or for its part of a
 * parameter: their groups end, too. */
void oari_stages_give_up(oar_pipeline *p, const oar_error *why)
{
    for (int i = 0; i < p->stages; i++) {
        oari_pipe_stage *s = &p->stage[i];
        end_local(s);
        oari_fail_with(why);
        if (ddp_of(s) != NULL)
            oar_group_abort(ddp_of(s)->group, why->text);
        if (fsdp_of(s) != NULL)
            oari_shards_break(fsdp_of(s)->shards);
        if (s->reducing)
            oari_ddp_reduce_end(ddp_of(s));
        s->reducing = 0;
    }
}

int oari_stage_is_sharded(const oari_pipe_stage *s)
{
    return fsdp_of(s) != NULL;
}

oar_module *oari_stage_inner(const oari_pipe_stage *s)
{
    return ddp_of(s) != NULL ? oar_module_child(s->given.module, 0)
                             : s->given.module;
}

oar_status oari_stage_unshard(oari_pipe_stage *s, int whole)
{
    if (fsdp_of(s) == NULL)
        return OAR_OK;
    return whole ? oar_fsdp_unshard(s->given.module, NULL)
                 : oar_fsdp_reshard(s->given.module, NULL);
}
