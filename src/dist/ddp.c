/* SPDX-License-Identifier: Apache-2.0 */
/* ddp: a module around a module whose gradients are averaged over ranks. The
 * work is in bucket.c; this ties it to forward and backward. */
#include <oarsong/ddp.h>

#include <string.h>

#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/status.h"
#include "dist/agree.h"
#include "dist/bucket.h"

typedef struct ddp {
    oari_reducer reducer;
} ddp;

static oar_status finish_backward(void *arg)
{
    return oari_reducer_finish(arg);
}

static oar_tensor *ddp_forward(oar_tape *tape, oar_module *module,
                               oar_tensor *x)
{
    ddp *d = oar_module_self(module);
    oar_tensor *y = oar_forward(tape, oar_module_child(module, 0), x);

    if (y == NULL || tape == NULL)
        return y;
    oari_reducer_reset(&d->reducer);
    if (oar_tape_defer(tape, finish_backward, &d->reducer) != OAR_OK)
        return NULL;
    return y;
}

static void ddp_destroy(void *self)
{
    oari_reducer_clear(&((ddp *)self)->reducer);
}

static const oar_module_class ddp_class = {
    .size = sizeof(oar_module_class),
    .name = "ddp",
    .self_size = sizeof(ddp),
    .forward = ddp_forward,
    .destroy = ddp_destroy,
};

/* The parameters that are trained, each once, though tied ones are listed
 * twice. Returns how many. */
static int collect(const oar_module *module, oar_tensor **param)
{
    int found = 0;

    for (int i = 0; i < oar_module_params(module); i++) {
        oar_tensor *p = oar_module_param(module, i);
        int seen = !oar_tensor_requires_grad(p);
        for (int j = 0; j < found && !seen; j++)
            seen = param[j] == p;
        if (!seen)
            param[found++] = p;
    }
    return found;
}

static oar_status make_reducer(oar_module *wrapped, oar_group *group,
                               const oar_ddp_opts *o)
{
    ddp *d = oar_module_self(wrapped);
    size_t room = (size_t)oar_module_params(wrapped) + 1;
    oar_tensor **param = oari_alloc(room, sizeof *param);
    oar_status status;

    if (param == NULL)
        return OAR_E_NOMEM;
    status = oari_reducer_init(&d->reducer, group, collect(wrapped, param),
                               param, o->bucket_bytes);
    oari_free(param);
    return status;
}

/* Takes inner's reference in any case. */
static oar_status build(oar_module *inner, oar_group *group,
                        const oar_ddp_opts *o, oar_module *wrapped)
{
    OARI_TRY(oar_module_add_child(wrapped, "module", inner));
    OARI_TRY(oari_agree_on_params(wrapped, group));
    if (!o->no_broadcast)
        OARI_TRY(oari_broadcast_state(wrapped, group));
    return make_reducer(wrapped, group, o);
}

oar_status oar_ddp_wrap(oar_module *inner, oar_group *group,
                        const oar_ddp_opts *opts, oar_module **wrapped)
{
    oar_ddp_opts o;
    oar_module *made = NULL;
    oar_status status = OAR_OK;

    if (inner == NULL || group == NULL || wrapped == NULL)
        status = oari_fail(OAR_E_ARG, "ddp_wrap without a %s",
                           inner == NULL   ? "module"
                           : group == NULL ? "group"
                                           : "place for the result");
    else if (oar_batch_is_open(group))
        status = oari_fail(OAR_E_STATE,
                           "ddp_wrap over group \"%s\" cannot be put off: a "
                           "batch is open",
                           oar_group_name(group));
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    if (status == OAR_OK)
        status = oar_module_create(&ddp_class, &made);
    if (status != OAR_OK) {
        oar_module_release(inner);
        return status;
    }
    status = build(inner, group, &o, made);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_module_release(made);
        return oari_fail_with(&why);
    }
    *wrapped = made;
    return OAR_OK;
}

oar_status oar_ddp_read_stats(const oar_module *wrapped, oar_ddp_stats *stats)
{
    oar_ddp_stats now = { .size = sizeof now };
    oar_module *module;
    const ddp *d;

    if (wrapped == NULL ||
        strcmp(oar_module_name(wrapped), ddp_class.name) != 0)
        return oari_fail(OAR_E_ARG, "ddp_read_stats of a module that is not "
                                    "wrapped");
    memcpy(&module, &wrapped, sizeof module);
    d = oar_module_self(module);
    now.reduced_bytes = d->reducer.reduced_bytes;
    now.copied_bytes = d->reducer.copied_bytes;
    now.buckets = d->reducer.buckets;
    return oari_struct_give(stats, &now, sizeof now, "ddp stats");
}
