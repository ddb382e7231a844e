/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_pass: what happens around the units of a module while it runs.
 *
 * A unit is whole from before its forward until after it, and again around its
 * backward; the outermost unit from its forward until the end of the pass,
 * unless the options keep more or less. While a part is recomputed, its units
 * stay whole from the second forward until their backward. Before a unit's
 * backward it gets memory for its gradients. Each gradient that is complete is
 * told to the shards, which reduce a unit when all of its gradients are there.
 *
 * A failure on one rank leaves the others waiting for its collectives: it
 * breaks the shards, on all ranks, unless nothing of this pass is shared.
 */
#include <oarsong/tape.h>

#include "base/status.h"
#include "parallel/fsdp/fsdp.h"

/* ---- parameters ---------------------------------------------------------- */

oar_status oari_fsdp_open(oari_fsdp *d, int unit)
{
    int index = d->unit[unit].index;
    const oari_shard_unit *u = &d->shards->unit[index];

    OARI_TRY(oari_fsdp_announce(d, OARI_FSDP_UNSHARD, index));
    OARI_TRY(oar_shards_unshard(d->shards, index));
    if (d->shards->resident || u->users > 1)
        return OAR_OK;
    for (int f = u->first; f < u->first + u->flats; f++)
        OARI_TRY(oar_storage_attach_read_only(
            d->flat[f], oari_shards_whole(d->shards, &d->shards->flat[f]), NULL,
            NULL));
    return OAR_OK;
}

oar_status oari_fsdp_close(oari_fsdp *d, int unit)
{
    int index = d->unit[unit].index;
    const oari_shard_unit *u = &d->shards->unit[index];

    if (!d->shards->resident && u->users == 1)
        for (int f = u->first; f < u->first + u->flats; f++)
            OARI_TRY(oar_storage_detach(d->flat[f]));
    OARI_TRY(oari_fsdp_announce(d, OARI_FSDP_RESHARD, index));
    return oar_shards_reshard(d->shards, index);
}

/* ---- gradients ----------------------------------------------------------- */

/* Gives a unit memory for its gradients. */
static oar_status open_grads(oari_fsdp *d, int unit)
{
    const oari_shard_unit *u = &d->shards->unit[d->unit[unit].index];

    if (u->trained == 0)
        return OAR_OK;
    OARI_TRY(oari_fsdp_announce(d, OARI_FSDP_GRADS, d->unit[unit].index));
    OARI_TRY(oari_shards_open_grads(d->shards, d->unit[unit].index));
    for (int f = u->first; f < u->first + u->flats; f++)
        if (d->grads[f] != NULL && oar_storage_const_data(d->grads[f]) == NULL)
            OARI_TRY(oar_storage_attach(
                d->grads[f], d->shards->flat[f].grad->data, NULL, NULL));
    return OAR_OK;
}

void oari_fsdp_close_grads(oari_fsdp *d, int unit)
{
    const oari_shard_unit *u = &d->shards->unit[d->unit[unit].index];

    for (int f = u->first; f < u->first + u->flats; f++)
        if (d->grads[f] != NULL)
            oar_storage_detach(d->grads[f]);
}

/* A gradient is complete. Its slot is empty again: the mean is the shard's. */
static oar_status gradient_ready(oar_tensor *leaf, void *arg)
{
    oari_fsdp_param *p = arg;
    oari_fsdp *d = p->fsdp;
    const oari_shard_unit *u = &d->shards->unit[d->unit[p->unit].index];

    if (d->no_sync > 0)
        return OAR_OK;
    oar_tensor_clear_grad(leaf);
    if (u->ready + 1 == u->trained) /* nothing is written there any more */
        oari_fsdp_close_grads(d, p->unit);
    return oar_shards_ready(d->shards, p->array);
}

/* ---- the end of a pass --------------------------------------------------- */

/* Gradients from passes without communication that this pass did not reach. */
static oar_status tell_left_gradients(oari_fsdp *d)
{
    for (int i = 0; i < d->params; i++) {
        oari_fsdp_param *p = &d->param[i];
        if (oar_tensor_grad(p->tensor) != NULL)
            OARI_TRY(gradient_ready(p->tensor, p));
    }
    return OAR_OK;
}

oar_status oari_fsdp_finish(oari_fsdp *d)
{
    if (d->no_sync > 0)
        return OAR_OK;
    OARI_TRY(tell_left_gradients(d));
    OARI_TRY(oar_shards_wait(d->shards));
    for (int u = 0; u < d->units; u++)
        if (!d->unit[u].joined)
            oari_fsdp_close_grads(d, u);
    d->changed = 1;
    d->unstepped = oar_storage_version(d->shards->params);
    return OAR_OK;
}

static oar_status finish_pass(void *arg)
{
    oari_fsdp *d = arg;

    d->joined = 0;
    OARI_TRY(oari_fsdp_announce(d, OARI_FSDP_FINISH, 0));
    return oari_fsdp_finish(d);
}

/* Lets go of what an unfinished pass has left open. */
static void clean_up(oari_fsdp *d)
{
    oar_error keep = *oar_last_error();

    for (int u = 0; u < d->units; u++) {
        if (d->unit[u].joined)
            continue;
        while (d->shards->unit[d->unit[u].index].users > 0 &&
               oari_fsdp_close(d, u) == OAR_OK)
            ;
        oari_fsdp_close_grads(d, u);
        d->unit[u].kept = 0;
    }
    d->recorded = 0;
    oari_fail_with(&keep);
}

/* Other ranks may be waiting for this one to gather or to reduce a unit. */
void oari_fsdp_fail(oari_fsdp *d)
{
    const oar_shards *s = d->shards;
    int begun = s->posted > 0 || !s->resident;

    d->leading = d->joined = 0;
    for (int u = 0; u < s->units; u++)
        begun |= s->unit[u].ready > 0;
    if (begun && s->fault.status == OAR_OK)
        oari_shards_break(d->shards);
    clean_up(d);
}

oar_status oari_fsdp_reduce(oari_fsdp *d)
{
    oar_status status = oari_fsdp_finish(d);

    if (status != OAR_OK)
        oari_fsdp_fail(d);
    return status;
}

static void pass_ended(void *arg, oar_status status)
{
    oari_fsdp *d = arg;
    int failed = status != OAR_OK && d->in_backward;

    d->in_backward = 0;
    if (failed) {
        oari_fsdp_fail(d);
        return;
    }
    /* also of a tape that was reset */
    for (; d->recorded > 0; d->recorded--)
        oari_fsdp_close(d, 0);
    for (int u = 0; u < d->units; u++)
        for (; d->unit[u].kept > 0; d->unit[u].kept--)
            oari_fsdp_close(d, u);
    oari_fsdp_announce(d, OARI_FSDP_END, 0);
    d->leading = 0;
}

/* ---- hooks --------------------------------------------------------------- */

static int is_recording(oar_tape *tape)
{
    int on = oar_tape_record(tape, 0); /* only asks: it is put back */

    oar_tape_record(tape, on);
    return on;
}

/* Learns whether any rank has stepped its shards since they got gradients. Each
 * sees only its own. */
static oar_status ask_for_steps(const oari_fsdp *d, int32_t *stepped)
{
    oar_shards *s = d->shards;

    *stepped = oar_storage_version(s->params) != d->unstepped;
    if (oar_all_reduce(s->reduce, oar_span_of(stepped, 1, OAR_I32), OAR_MAX,
                       OAR_OPTS(oar_call_opts, .label = "fsdp_publish"),
                       NULL) != OAR_OK)
        return oari_shards_break(s);
    return OAR_OK;
}

oar_status oari_fsdp_publish(oari_fsdp *d)
{
    int32_t stepped;

    if (!d->changed)
        return OAR_OK;
    OARI_TRY(oari_shards_check(d->shards, "fsdp_publish"));
    OARI_TRY(ask_for_steps(d, &stepped));
    oari_kept_note_change(d);
    OARI_TRY(oar_shards_publish(d->shards));
    oari_kept_end_change(d);
    d->changed = !stepped; /* the step of these gradients is still to come */
    return OAR_OK;
}

static oar_status begin_pass(oari_fsdp *d, oar_tape *tape)
{
    if (oar_tape_replays(tape))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the module that FSDP wraps cannot be recomputed as a "
                         "whole: recompute its parts");
    OARI_TRY(oari_fsdp_publish(d));
    if (!is_recording(tape))
        return OAR_OK;
    OARI_TRY(oar_tape_defer(tape, finish_pass, d));
    return oar_tape_on_end(tape, pass_ended, d);
}

static oar_status before_forward(oar_tape *tape, oar_module *module, void *arg)
{
    oari_fsdp_unit *u = arg;
    oari_fsdp *d = u->fsdp;

    if (u == d->unit)
        OARI_TRY(begin_pass(d, tape));
    u->version = oar_storage_version(d->shards->params);
    return oari_fsdp_open(d, (int)(u - d->unit));
}

static oar_status after_forward(oar_tape *tape, oar_module *module, void *arg)
{
    oari_fsdp_unit *u = arg;
    oari_fsdp *d = u->fsdp;

    if (oar_tape_replays(tape)) { /* its backward is next */
        u->kept++;
        return OAR_OK;
    }
    if (is_recording(tape) && d->opts.keep != OAR_FSDP_KEEP_NOTHING) {
        if (u == d->unit) {
            d->recorded++;
            return OAR_OK;
        }
        if (d->opts.keep == OAR_FSDP_KEEP_PASS) {
            u->kept++;
            return OAR_OK;
        }
    }
    return oari_fsdp_close(d, (int)(u - d->unit));
}

static oar_status before_backward(oar_tape *tape, oar_module *module, void *arg)
{
    oari_fsdp_unit *u = arg;
    oari_fsdp *d = u->fsdp;

    d->in_backward = 1;
    if (u->version != oar_storage_version(d->shards->params))
        return oari_fail(OAR_E_STATE,
                         "backward of unit \"%s\", whose parameters were "
                         "stepped since its forward",
                         u->name);
    if (u->kept > 0)
        u->kept--;
    else
        OARI_TRY(oari_fsdp_open(d, (int)(u - d->unit)));
    return open_grads(d, (int)(u - d->unit));
}

static oar_status after_backward(oar_tape *tape, oar_module *module, void *arg)
{
    oari_fsdp_unit *u = arg;

    return oari_fsdp_close(u->fsdp, (int)(u - u->fsdp->unit));
}

oar_status oari_fsdp_listen(oari_fsdp *d)
{
    static const oar_module_fn hooks[4] = {
        [OAR_BEFORE_FORWARD] = before_forward,
        [OAR_AFTER_FORWARD] = after_forward,
        [OAR_BEFORE_BACKWARD] = before_backward,
        [OAR_AFTER_BACKWARD] = after_backward,
    };

    for (int u = 0; u < d->units; u++)
        for (int m = 0; m < 4 && !d->unit[u].joined; m++)
            OARI_TRY(oar_module_on(d->unit[u].module, (oar_module_moment)m,
                                   hooks[m], &d->unit[u], &d->unit[u].hook[m]));
    for (int i = 0; i < d->params; i++)
        if (oar_tensor_requires_grad(d->param[i].tensor))
            OARI_TRY(oar_tensor_on_grad(d->param[i].tensor, gradient_ready,
                                        &d->param[i], &d->param[i].hook));
    return OAR_OK;
}

void oari_fsdp_unlisten(oari_fsdp *d)
{
    for (int u = 0; u < d->units; u++)
        for (int m = 0; m < 4; m++)
            oar_hook_remove(d->unit[u].hook[m]);
    for (int i = 0; i < d->params; i++)
        oar_hook_remove(d->param[i].hook);
}
