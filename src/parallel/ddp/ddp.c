/* SPDX-License-Identifier: Apache-2.0 */
/* ddp: wraps a module so that its gradients are averaged over ranks. */
#include <oarsong/ddp.h>

#include <stdio.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/replay.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/reducer/agreement.h"
#include "parallel/ddp/ddp.h"
#include "parallel/syncbn/syncbn.h"

enum { NAME = 200 };

static oar_status broadcast_buffers(void *arg)
{
    const oari_ddp *d = arg;

    for (int i = 0; i < oar_module_buffers(d->module); i++) {
        oar_span span;

        OARI_TRY(oar_tensor_span(oar_module_buffer(d->module, i), &span));
        OARI_TRY(oar_broadcast(d->group, span, d->source, NULL, NULL));
    }
    return OAR_OK;
}

static int wants_broadcast(const oari_ddp *d)
{
    return d->opts.broadcast_buffers && d->no_sync == 0;
}

static oar_tensor *ddp_forward(oar_tape *tape, oar_module *module,
                               oar_tensor *x)
{
    oari_ddp *d = oar_module_self(module);
    int recorded = oar_tape_record(tape, 0); /* only asks: it is put back */
    oar_tensor *y;

    oar_tape_record(tape, recorded);
    if (recorded && wants_broadcast(d) &&
        oar_replay_cut(broadcast_buffers, d) != OAR_OK)
        return NULL;
    y = oar_forward(tape, oar_module_child(module, 0), x);
    if (y == NULL || !recorded)
        return y;
    oari_ddp_begin(d, tape);
    return oar_tape_defer(tape, oari_ddp_finish, d) == OAR_OK ? y : NULL;
}

static void ddp_destroy(void *self)
{
    oari_ddp_clear(self);
}

static const oar_module_class ddp_class = {
    .size = sizeof(oar_module_class),
    .name = "ddp",
    .self_size = sizeof(oari_ddp),
    .forward = ddp_forward,
    .destroy = ddp_destroy,
};

/* ---- wrapping ------------------------------------------------------------ */

/* The trained parameters of a module and their names. */
typedef struct listing {
    int count;
    int *index;
    oar_tensor **param;
    const char **name;
    char (*text)[NAME];
} listing;

static void drop_listing(listing *l)
{
    oari_free(l->index);
    oari_free(l->param);
    oari_free(l->name);
    oari_free(l->text);
}

/* Lists the parameters that are trained, each once, though the module lists
 * tied ones twice. */
static oar_status list_params(const oar_module *module, listing *l)
{
    size_t room = (size_t)oar_module_params(module) + 1;

    l->index = oari_alloc(room, sizeof *l->index);
    l->param = oari_alloc(room, sizeof(oar_tensor *));
    l->name = oari_alloc(room, sizeof *l->name);
    l->text = oari_alloc(room, sizeof *l->text);
    if (l->index == NULL || l->param == NULL || l->name == NULL ||
        l->text == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < oar_module_params(module); i++) {
        oar_tensor *p = oar_module_param(module, i);
        int n = l->count, seen = !oar_tensor_requires_grad(p);
        for (int j = 0; j < n && !seen; j++)
            seen = l->param[j] == p;
        if (seen)
            continue;
        OARI_TRY(oar_module_param_name(module, i, l->text[n], NAME));
        l->index[n] = i;
        l->param[n] = p;
        l->name[n] = l->text[n];
        l->count++;
    }
    return OAR_OK;
}

static oar_status listen_to_gradients(oar_module *wrapped)
{
    oari_ddp *d = oar_module_self(wrapped);
    int all = oar_module_params(wrapped);
    listing l = { 0 };
    oar_status status;

    d->frozen_index = oari_alloc((size_t)all + 1, sizeof *d->frozen_index);
    if (d->frozen_index == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < all; i++)
        if (!oar_tensor_requires_grad(oar_module_param(wrapped, i)))
            d->frozen_index[d->frozen++] = i;
    status = list_params(wrapped, &l);
    if (status == OAR_OK)
        status = oari_ddp_listen(d, l.count, l.param, l.name);
    drop_listing(&l);
    return status;
}

/* Adds an option that is not its default. */
static void add_option(char text[NAME], const char *name, uint64_t value)
{
    size_t n = strlen(text);

    if (value != 0)
        snprintf(text + n, NAME - n, "%s%s %llu", n > 0 ? ", " : "", name,
                 (unsigned long long)value);
}

/* Checks the options that must be the same on all ranks, or their collectives
 * would not match. */
static oar_status agree_on_options(const oar_module *wrapped, oar_group *group,
                                   const oar_ddp_opts *o)
{
    char text[NAME] = "";

    add_option(text, "weighted", o->weighted != 0);
    add_option(text, "accumulate",
               o->accumulate > 1 ? (uint64_t)o->accumulate : 0);
    add_option(text, "bucket_bytes", o->bucket_bytes);
    add_option(text, "first_bucket_bytes", o->first_bucket_bytes);
    add_option(text, "no_broadcast", o->no_broadcast != 0);
    add_option(text, "keep_order", o->keep_order != 0);
    add_option(text, "static_graph", o->static_graph != 0);
    add_option(text, "hook", o->hook != NULL);
    add_option(text, "check_every",
               o->check_every > 0 ? (uint64_t)o->check_every : 0);
    add_option(text, "no check", o->check_every < 0);
    add_option(text, "broadcast_buffers", o->broadcast_buffers != 0);
    add_option(text, "canonical", o->canonical != 0);
    return oari_agree_on_model(wrapped, text[0] != 0 ? text : "none", group);
}

/* Two wrappers, one inside the other, would each reduce every gradient. */
static oar_status refuse_wrapped(const oar_module *module)
{
    if (oar_module_is(module, &ddp_class))
        return oari_fail(OAR_E_STATE, "ddp_wrap of a module that is wrapped "
                                      "already, or has a part that is");
    for (int i = 0; i < oar_module_children(module); i++)
        OARI_TRY(refuse_wrapped(oar_module_child(module, i)));
    return OAR_OK;
}

/* Takes inner's reference in any case. */
static oar_status build_wrapper(oar_module *inner, oar_group *group,
                                const oar_ddp_opts *o, oar_module *wrapped)
{
    oari_ddp *d = oar_module_self(wrapped);

    d->group = group;
    d->module = wrapped;
    d->opts = *o;
    d->weight = 1;
    OARI_TRY(oar_module_add_child(wrapped, "module", inner));
    OARI_TRY(agree_on_options(wrapped, group, o));
    if (!o->no_broadcast)
        OARI_TRY(oari_broadcast_state(wrapped, group));
    return listen_to_gradients(wrapped);
}

oar_status oar_ddp_wrap_at(const char *file, int line, oar_module *inner,
                           oar_group *group, const oar_ddp_opts *opts,
                           oar_module **wrapped)
{
    OARI_CALLED_FROM(file, line);
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
    else
        status = refuse_wrapped(inner);
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    if (status == OAR_OK)
        status = oar_module_create(&ddp_class, &made);
    if (status != OAR_OK) {
        oar_module_release(inner);
        return status;
    }
    status = build_wrapper(inner, group, &o, made);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_module_release(made);
        return oari_fail_with(&why);
    }
    *wrapped = made;
    return OAR_OK;
}

/* ---- PowerSGD ------------------------------------------------------------ */

static oar_status make_power_sgd(const listing *l,
                                 const oar_power_sgd_opts *opts,
                                 oar_reduce_hook *hook)
{
    int64_t(*shape)[2] = oari_alloc((size_t)l->count + 1, sizeof *shape);
    oar_status status;

    if (shape == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < l->count; i++) {
        oar_shape s = oar_tensor_shape(l->param[i]);
        if (s.ndim > 1 && s.dim[0] > 0) {
            shape[i][0] = s.dim[0];
            shape[i][1] = oar_tensor_count(l->param[i]) / s.dim[0];
        }
    }
    status =
        oar_hook_power_sgd(l->count, (const int64_t(*)[2])shape, opts, hook);
    oari_free(shape);
    return status;
}

oar_status oar_hook_power_sgd_for(const oar_module *module,
                                  const oar_power_sgd_opts *opts,
                                  oar_reduce_hook *hook)
{
    listing l = { 0 };
    oar_status status;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "hook_power_sgd_for without a module");
    status = list_params(module, &l);
    if (status == OAR_OK)
        status = make_power_sgd(&l, opts, hook);
    drop_listing(&l);
    return status;
}

/* ---- public functions of a wrapped module -------------------------------- */

oari_ddp *oari_ddp_of(const oar_module *module)
{
    oar_module *mine;

    if (!oar_module_is(module, &ddp_class))
        return NULL;
    memcpy(&mine, &module, sizeof mine);
    return oar_module_self(mine);
}

/* Returns NULL and fails if the module is not wrapped. */
static oari_ddp *ddp_of(const oar_module *wrapped, const char *what)
{
    oari_ddp *d = oari_ddp_of(wrapped);

    if (d == NULL)
        oari_fail(OAR_E_ARG, "%s of a module that is not wrapped", what);
    return d;
}

oar_status oar_ddp_no_sync_begin(oar_module *wrapped)
{
    oari_ddp *d = ddp_of(wrapped, "ddp_no_sync_begin");

    if (d == NULL)
        return OAR_E_ARG;
    d->no_sync++;
    return OAR_OK;
}

oar_status oar_ddp_no_sync_end(oar_module *wrapped)
{
    oari_ddp *d = ddp_of(wrapped, "ddp_no_sync_end");

    if (d == NULL)
        return OAR_E_ARG;
    if (d->no_sync == 0)
        return oari_fail(OAR_E_STATE, "ddp_no_sync_end without a beginning");
    d->no_sync--;
    return OAR_OK;
}

oar_status oar_ddp_weigh(oar_module *wrapped, double weight)
{
    oari_ddp *d = ddp_of(wrapped, "ddp_weigh");

    if (d == NULL)
        return OAR_E_ARG;
    OARI_TRY(oar_reducer_weigh(d->reducer, weight));
    oari_syncbn_weigh(d->module, weight);
    d->weight = weight;
    return OAR_OK;
}

/* Counts the ranks that have input; the first of them gives its buffers to all.
 */
static oar_status count_active(oari_ddp *d, int has_input, int *active)
{
    int32_t count = has_input != 0, ranks = oar_group_size(d->group);
    int32_t first = has_input ? oar_group_rank(d->group) : ranks;

    OARI_TRY(oar_all_reduce(d->group, oar_span_of(&count, 1, OAR_I32), OAR_SUM,
                            OAR_OPTS(oar_call_opts, .label = "join"), NULL));
    *active = count;
    d->source = 0;
    if (count == 0 || count == ranks || !d->opts.broadcast_buffers)
        return OAR_OK;
    OARI_TRY(oar_all_reduce(d->group, oar_span_of(&first, 1, OAR_I32), OAR_MIN,
                            OAR_OPTS(oar_call_opts, .label = "join"), NULL));
    d->source = first;
    return OAR_OK;
}

/* A replay would not ask again. */
static oar_status check_not_recorded(const oari_ddp *d)
{
    oar_device device = d->reducer->device;
    int done;

    if (device.kind == OAR_CPU ||
        oar_stream_query(device, oar_stream_current(device), &done) == OAR_OK)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED,
                     "ddp_join: inside of a step that is recorded for a "
                     "replay: call it before oar_replay_run; or the GPU has "
                     "failed: %.200s",
                     oar_last_error_text());
}

oar_status oar_ddp_join_at(const char *file, int line, oar_module *wrapped,
                           int has_input, int *active)
{
    OARI_CALLED_FROM(file, line);
    oari_ddp *d = ddp_of(wrapped, "ddp_join");
    int count;

    if (d == NULL)
        return OAR_E_ARG;
    if (active == NULL || !d->opts.weighted)
        return oari_fail(OAR_E_ARG, "ddp_join without %s",
                         active == NULL ? "a place for the answer"
                                        : "weighted in the options");
    OARI_TRY(check_not_recorded(d));
    OARI_TRY(oari_ddp_dismiss(d)); /* of a step that was given up */
    OARI_TRY(count_active(d, has_input, &count));
    d->reducer->asks_flags = 1; /* of ranks that replay the pass, too */
    if (has_input && count < oar_group_size(d->group))
        d->called = d->reducer->holds = oari_syncbn_announce_all(d->module);
    if (!has_input && count > 0 && wants_broadcast(d))
        OARI_TRY(broadcast_buffers(d));
    if (!has_input && count > 0)
        OARI_TRY(oari_ddp_follow(d));
    *active = count;
    return OAR_OK;
}

oar_status oar_ddp_check_replicas_at(const char *file, int line,
                                     oar_module *wrapped)
{
    OARI_CALLED_FROM(file, line);
    oari_ddp *d = ddp_of(wrapped, "ddp_check_replicas");
    oari_replica_check question = { { 0 }, NULL };
    oar_status status;

    if (d == NULL)
        return OAR_E_ARG;
    OARI_TRY(oari_replica_check_begin(d, &question));
    status = oari_replica_check_end(d, &question);
    oar_work_release(question.work);
    return status;
}

oar_status oar_ddp_read_stats(const oar_module *wrapped, oar_ddp_stats *stats)
{
    oar_reducer_stats r = oar_reducer_stats_init();
    oar_ddp_stats now = { .size = sizeof now };
    const oari_ddp *d = ddp_of(wrapped, "ddp_read_stats");

    if (d == NULL)
        return OAR_E_ARG;
    OARI_TRY(oar_reducer_read_stats(d->reducer, &r));
    now.buckets = r.buckets;
    now.passes = r.passes;
    if (d->last == OARI_PASS_REDUCES) {
        now.reduced_bytes = r.reduced_bytes;
        now.copied_bytes = d->copied_bytes;
        now.communication_s = r.communication_s;
        now.exposed_s = r.exposed_s;
    }
    now.unused = d->unused;
    return oari_struct_give(stats, &now, sizeof now, "ddp stats");
}
