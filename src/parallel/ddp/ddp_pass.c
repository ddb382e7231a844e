/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_pass: makes gradients views of buckets and reports them to the reducer as
 * backward finishes them. A gradient that is bound elsewhere is copied. */
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/replay.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"
#include "parallel/syncbn/syncbn.h"

/* ---- places of gradients ------------------------------------------------- */

static uint64_t bytes_of(const oar_tensor *t)
{
    return (uint64_t)oar_tensor_count(t) * oar_dtype_size(oar_tensor_dtype(t));
}

/* Returns the gradient if it is not in its bucket, because the program has
 * bound it elsewhere or removed the binding; else NULL. */
static oar_tensor *gradient_elsewhere(const oari_ddp_slot *s)
{
    oar_tensor *grad = oar_tensor_grad(s->param);

    return grad != NULL &&
                   oar_tensor_const_data(grad) != oar_tensor_const_data(s->home)
               ? grad
               : NULL;
}

static oar_status copy_in(oari_ddp_slot *s)
{
    oar_tensor *grad = gradient_elsewhere(s);

    if (grad == NULL || s->copied)
        return OAR_OK;
    OARI_TRY(oar_tensor_copy(s->home, grad));
    s->copied = 1;
    s->owner->copied_bytes += bytes_of(grad);
    return OAR_OK;
}

/* Gives this rank the gradient that only other ranks had. */
static oar_status receive_gradient(oari_ddp_slot *s)
{
    oar_error before = *oar_last_error();

    if (oar_tensor_grad(s->param) != NULL ||
        !oar_tensor_requires_grad(s->param) ||
        oar_tensor_mark_grad(s->param) == OAR_OK)
        return OAR_OK;
    oari_fail_with(&before); /* it had no home, which is no failure */
    OARI_TRY(oar_tensor_bind_grad(s->param, s->home));
    return oar_tensor_mark_grad(s->param);
}

/* ---- callbacks of the reducer -------------------------------------------- */

/* The parameter may have a gradient from passes that did not reduce. */
static int gradient_absent(void *arg, int array, oar_status *status)
{
    oari_ddp_slot *s = &((oari_ddp *)arg)->slot[array];

    if (oar_tensor_grad(s->param) == NULL)
        return 0;
    *status = copy_in(s);
    return 1;
}

static oar_status buckets_ended(void *arg)
{
    return oari_replica_gpu_pass(arg);
}

static oar_status make_home(oari_ddp_slot *s, oar_tensor **home)
{
    const oar_reducer *r = s->owner->reducer;
    const oari_reducer_array *place = &r->slot[s->index];

    *home =
        oar_view_of(NULL, r->bucket[place->bucket].storage, (int64_t)place->at,
                    oar_tensor_dtype(s->param), oar_tensor_shape(s->param));
    return *home != NULL ? OAR_OK : oar_last_error()->status;
}

static oar_status buckets_moved(void *arg)
{
    oari_ddp *d = arg;

    for (int i = 0; i < d->slots; i++) {
        oari_ddp_slot *s = &d->slot[i];
        oar_tensor *home, *old = s->home;
        int elsewhere = gradient_elsewhere(s) != NULL;
        oar_status status = OAR_OK;

        OARI_TRY(make_home(s, &home));
        s->home = home;
        if (!elsewhere && oar_tensor_requires_grad(s->param))
            status = oar_tensor_bind_grad(s->param, home);
        oar_tensor_release(old);
        OARI_TRY(status);
    }
    return OAR_OK;
}

/* ---- a pass -------------------------------------------------------------- */

static void begin_pass(oari_ddp *d)
{
    int every = d->opts.accumulate > 1 ? d->opts.accumulate : 1;

    if (d->pass != OARI_PASS_NONE)
        return;
    d->pass = d->no_sync == 0 && d->pending + 1 >= every ? OARI_PASS_REDUCES
                                                         : OARI_PASS_LOCAL;
    d->copied_bytes = 0;
}

/* The buckets stay where the parameters were when the module was wrapped. */
static oar_status check_device(const oari_ddp_slot *s)
{
    oar_device at = oar_tensor_device(s->param),
               home = s->owner->reducer->device;

    if (at.kind == home.kind && at.index == home.index)
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE,
                     "ddp: parameter %s is on %s, but was on %s when the "
                     "module was wrapped: move it first, then wrap it",
                     s->owner->reducer->slot[s->index].name,
                     oar_device_text(at).text, oar_device_text(home).text);
}

/* Called in passes of other modules too: of the module that is wrapped, or of
 * another wrapper around the same parameters. These are ignored. */
static oar_status gradient_ready(oar_tensor *leaf, void *arg)
{
    oari_ddp_slot *s = arg;
    oari_ddp *d = s->owner;

    if (d->open == 0)
        return OAR_OK;
    begin_pass(d);
    if (d->pass == OARI_PASS_LOCAL)
        return OAR_OK;
    OARI_TRY(check_device(s));
    OARI_TRY(copy_in(s));
    return oar_reducer_ready(d->reducer, s->index);
}

/* Lets the reducer begin with the part of a gradient that is in its bucket, and
 * asks for the next part up to the end of the next piece. */
static oar_status gradient_part(oar_tensor *leaf, const oar_tensor *grad,
                                int64_t done, int64_t *next, void *arg)
{
    oari_ddp_slot *s = arg;
    oari_ddp *d = s->owner;

    if (d->open == 0)
        return OAR_OK;
    begin_pass(d);
    if (d->pass == OARI_PASS_LOCAL ||
        oar_tensor_const_data(grad) != oar_tensor_const_data(s->home))
        return OAR_OK;
    *next = (int64_t)oari_pieces_next(d->reducer, s->index, (size_t)done);
    return done > 0
               ? oari_reducer_part_ready(d->reducer, s->index, (size_t)done)
               : OAR_OK;
}

void oari_ddp_begin(oari_ddp *d, const oar_tape *tape)
{
    if (d->pass != OARI_PASS_NONE) { /* it failed in the middle */
        oari_reducer_reset(d->reducer);
        d->pass = OARI_PASS_NONE;
    }
    if (d->open == 0 || d->tape != tape)
        d->open++;
    d->tape = tape;
}

static oar_status take_means(oari_ddp *d)
{
    d->unused = 0;
    for (int i = 0; i < d->slots; i++) {
        oari_ddp_slot *s = &d->slot[i];
        oar_tensor *grad;
        if (oar_reducer_used(d->reducer, i))
            OARI_TRY(receive_gradient(s));
        else
            d->unused++;
        s->copied = 0;
        if ((grad = gradient_elsewhere(s)) == NULL)
            continue;
        OARI_TRY(oar_tensor_copy(grad, s->home));
        d->copied_bytes += bytes_of(grad);
    }
    for (int i = 0; d->unused != 0 && !d->told && i < d->slots; i++)
        if (!oar_reducer_used(d->reducer, i))
            oari_log(OAR_LOG_WARN,
                     "ddp: no rank's loss depends on parameter %s: it gets no "
                     "gradient",
                     d->reducer->slot[i].name);
    d->told |= d->unused != 0;
    return OAR_OK;
}

static oar_status reduce_gradients(oari_ddp *d)
{
    oari_replica_check question = { { 0 }, NULL };
    int every = oari_replica_interval(d);
    int due = every > 0 && d->reducer->passes % every == every - 1 &&
              !oari_reducer_on_gpu(d->reducer);
    oar_status status = OAR_OK;

    if (due) /* after all buckets: ranks differ in how many they have posted */
        status = oari_reducer_begin_rest(d->reducer);
    if (status == OAR_OK && due)
        status = oari_replica_check_begin(d, &question);
    if (status == OAR_OK)
        status = oar_reducer_wait(d->reducer);
    if (status == OAR_OK && due)
        status = oari_replica_check_end(d, &question);
    if (status != OAR_OK)
        oari_reducer_reset(d->reducer);
    oar_work_release(question.work);
    return status;
}

/* A parameter that was frozen when the module was wrapped has no place in the
 * buckets: if it is trained now, its gradient would be local to each rank. */
static oar_status check_frozen(const oari_ddp *d)
{
    for (int i = 0; i < d->frozen; i++) {
        int index = d->frozen_index[i];
        char name[200] = "?";

        if (!oar_tensor_requires_grad(oar_module_param(d->module, index)))
            continue;
        oar_module_param_name(d->module, index, name, sizeof name);
        return oari_fail(OAR_E_STATE,
                         "ddp: parameter %s was frozen when the module was "
                         "wrapped, and is trained now: wrap it again",
                         name);
    }
    return OAR_OK;
}

static oar_status end_pass(oari_ddp *d)
{
    begin_pass(d);
    d->last = d->pass;
    d->pass = OARI_PASS_NONE;
    if (d->last == OARI_PASS_LOCAL) {
        d->pending++;
        return OAR_OK;
    }
    d->pending = d->own = 0;
    OARI_TRY(reduce_gradients(d));
    OARI_TRY(take_means(d));
    return check_frozen(d);
}

oar_status oari_ddp_dismiss(void *arg)
{
    oari_ddp *d = arg;

    if (!d->called)
        return OAR_OK;
    d->called = d->reducer->holds = 0;
    return oari_syncbn_dismiss(d->module);
}

oar_status oari_ddp_finish(void *arg)
{
    oari_ddp *d = arg;

    d->open -= d->open > 0;
    d->tape = NULL;
    d->own = 1;
    if (oari_syncbn_is_in(d->module)) /* a replay may have to */
        OARI_TRY(oar_replay_cut(oari_ddp_dismiss, d));
    return end_pass(d);
}

oar_status oari_ddp_reduce_begin(oari_ddp *d)
{
    if (d->pass != OARI_PASS_NONE) /* it failed in the middle */
        oari_reducer_reset(d->reducer);
    d->pass = OARI_PASS_REDUCES;
    d->copied_bytes = 0;
    return oari_reducer_begin_rest(d->reducer);
}

oar_status oari_ddp_reduce_end(oari_ddp *d)
{
    return end_pass(d);
}

/* The gradients that this rank added up before it ran out of input do count. */
oar_status oari_ddp_follow(oari_ddp *d)
{
    oar_status status;

    if (!d->own)
        OARI_TRY(oar_reducer_weigh(d->reducer, 0));
    OARI_TRY(oari_syncbn_follow(d->module));
    status = end_pass(d);
    OARI_TRY(oar_reducer_weigh(d->reducer, d->weight));
    return status;
}

/* ---- making -------------------------------------------------------------- */

static oar_status make_reducer(oari_ddp *d, const char *const *name)
{
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_span *array = oari_alloc((size_t)d->slots + 1, sizeof *array);
    oar_status status;

    if (array == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < d->slots; i++) {
        array[i] = oar_span_of(NULL, (size_t)oar_tensor_count(d->slot[i].param),
                               oar_tensor_dtype(d->slot[i].param));
        array[i].device = oar_tensor_device(d->slot[i].param);
    }
    o.bucket_bytes = d->opts.bucket_bytes;
    o.first_bucket_bytes = d->opts.first_bucket_bytes;
    o.reorder = !d->opts.keep_order;
    o.weighted = d->opts.weighted;
    o.static_graph = d->opts.static_graph;
    o.canonical = d->opts.canonical;
    o.hook = d->opts.hook;
    o.names = name;
    status = oari_reducer_make(d->group, d->slots, array, &o, &d->reducer);
    oari_free(array);
    if (status == OAR_OK)
        d->reducer->owner =
            (oari_reducer_owner){ d, gradient_absent, buckets_moved, 1,
                                  buckets_ended };
    return status;
}

oar_status oari_ddp_listen(oari_ddp *d, int params, oar_tensor *const *param,
                           const char *const *name)
{
    d->slot = oari_alloc((size_t)params + 1, sizeof *d->slot);
    if (d->slot == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < params; i++) {
        d->slot[i].owner = d;
        d->slot[i].index = i;
        d->slot[i].param = oar_tensor_retain(param[i]);
        d->slots++;
    }
    OARI_TRY(make_reducer(d, name));
    for (int i = 0; i < params; i++) {
        oari_ddp_slot *s = &d->slot[i];
        OARI_TRY(make_home(s, &s->home));
        OARI_TRY(oar_tensor_bind_grad(s->param, s->home));
        OARI_TRY(oar_tensor_on_grad_parts(s->param, gradient_ready,
                                          gradient_part, s, &s->hook));
    }
    return OAR_OK;
}

void oari_ddp_clear(oari_ddp *d)
{
    if (d->reducer != NULL)
        oari_replica_gpu_close(d);
    for (int i = 0; i < d->slots; i++) {
        oar_hook_remove(d->slot[i].hook);
        oar_tensor_release(d->slot[i].home);
        oar_tensor_release(d->slot[i].param);
    }
    oar_reducer_destroy(d->reducer);
    oari_free(d->slot);
    oari_free(d->frozen_index);
}
