/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp: wraps a module, moves its parameters to shards, and answers questions.
 */
#include "parallel/fsdp/fsdp.h"

#include <stdio.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"
#include "parallel/reducer/agreement.h"

/* Leaves what is no float as it is. */
static oar_tensor *cast_float(oar_tape *tape, oar_tensor *x, oar_dtype dtype)
{
    if (x == NULL || oar_tensor_dtype(x) == dtype ||
        !oari_dtype_is_float(oar_tensor_dtype(x)))
        return x;
    return oar_cast(tape, x, dtype);
}

static oar_tensor *fsdp_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    oari_fsdp *d = oar_module_self(module);
    oar_tensor *y;

    if (oari_shards_are_recorded(d->shards)) {
        oari_fail(OAR_E_UNSUPPORTED,
                  "a step of a module that FSDP wraps cannot be replayed: the "
                  "memory of units and the collectives between them are not "
                  "the same in every step");
        return NULL;
    }
    if (d->opts.mixed)
        x = cast_float(tape, x, d->opts.param_dtype);
    y = oar_forward(tape, oar_module_child(module, 0), x);
    if (d->opts.mixed)
        y = cast_float(tape, y, d->opts.output_dtype);
    if (y == NULL)
        oari_fsdp_fail(d);
    return y;
}

/* The module inside may outlive the wrapper: its parameters are without memory
 * then. */
static void fsdp_destroy(void *self)
{
    oari_fsdp *d = self;

    oari_fsdp_unlisten(d);
    for (int f = 0; d->shards != NULL && f < d->shards->flats; f++) {
        if (d->flat != NULL && d->flat[f] != NULL) {
            oar_storage_detach(d->flat[f]);
            oar_storage_explain_absence(d->flat[f], NULL);
            oar_storage_release(d->flat[f]);
        }
        if (d->grads != NULL && d->grads[f] != NULL) {
            oar_storage_detach(d->grads[f]);
            oar_storage_release(d->grads[f]);
        }
    }
    for (int i = 0; i < d->params; i++)
        oar_tensor_guard(d->param[i].tensor, NULL);
    oari_free(d->flat);
    oari_free(d->grads);
    oari_free(d->clip);
    oari_free(d->has_input);
    oari_kept_free(d->kept);
    oar_shards_destroy(d->shards);
    oari_fsdp_forget_units(d);
}

static const oar_module_class fsdp_class = {
    .size = sizeof(oar_module_class),
    .name = "fsdp",
    .self_size = sizeof(oari_fsdp),
    .forward = fsdp_forward,
    .destroy = fsdp_destroy,
};

/* ---- what can be wrapped ------------------------------------------------- */

static oar_status refuse_wrapped(const oar_module *module)
{
    if (oar_module_is(module, &fsdp_class) || oari_ddp_of(module) != NULL)
        return oari_fail(OAR_E_STATE, "fsdp_wrap of a module that is wrapped "
                                      "already, or has a part that is");
    for (int i = 0; i < oar_module_children(module); i++)
        OARI_TRY(refuse_wrapped(oar_module_child(module, i)));
    return OAR_OK;
}

static oar_status check_options(const oar_fsdp_opts *o)
{
    if ((int)o->keep < OAR_FSDP_KEEP_OUTERMOST || o->keep > OAR_FSDP_KEEP_PASS)
        return oari_fail(OAR_E_ARG, "fsdp_wrap: keep %d", (int)o->keep);
    if (!o->mixed)
        return OAR_OK;
    if (!oari_dtype_is_float(o->param_dtype) ||
        !oari_dtype_is_float(o->output_dtype))
        return oari_fail(OAR_E_DTYPE,
                         "fsdp_wrap: param_dtype %s and output_dtype %s must "
                         "be floats",
                         oar_dtype_name(o->param_dtype),
                         oar_dtype_name(o->output_dtype));
    if (o->reduce_dtype != o->param_dtype &&
        (o->reduce_dtype != OAR_F32 || !oari_dtype_is_half(o->param_dtype)))
        return oari_fail(OAR_E_DTYPE,
                         "fsdp_wrap: gradients in %s cannot be added in %s: "
                         "reduce_dtype is %s%s",
                         oar_dtype_name(o->param_dtype),
                         oar_dtype_name(o->reduce_dtype),
                         oar_dtype_name(o->param_dtype),
                         oari_dtype_is_half(o->param_dtype) ? " or f32" : "");
    return OAR_OK;
}

static oar_status check_param(const oari_fsdp *d, int index)
{
    const oari_fsdp_param *p = &d->param[index];
    oar_dtype dtype = oar_tensor_dtype(p->tensor);
    oar_device device = oar_tensor_device(p->tensor);
    oar_device first = oar_tensor_device(d->param[0].tensor);

    if (d->opts.mixed && dtype != OAR_F32 && dtype != OAR_F64)
        return oari_fail(OAR_E_DTYPE,
                         "fsdp_wrap: parameter \"%s\" is %s: with mixed "
                         "precision the model must be f32 or f64, for the "
                         "master weights",
                         p->name, oar_dtype_name(dtype));
    if (memcmp(&device, &first, sizeof device) != 0)
        return oari_fail(OAR_E_DEVICE,
                         "fsdp_wrap: parameter \"%s\" is on %s, parameter "
                         "\"%s\" on %s: all must be on one device",
                         d->param[0].name, oar_device_text(first).text, p->name,
                         oar_device_text(device).text);
    if (oar_tensor_is_lazy(p->tensor))
        return OAR_OK;
    if (!oar_tensor_is_contiguous(p->tensor))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "fsdp_wrap: parameter \"%s\" is strided", p->name);
    if (oar_tensor_count(p->tensor) > 0 &&
        (oar_tensor_const_data(p->tensor) == NULL ||
         oar_tensor_is_read_only(p->tensor)))
        return oari_fail(OAR_E_STATE,
                         "fsdp_wrap: parameter \"%s\" %s: is the module, or "
                         "one around it, wrapped already?",
                         p->name,
                         oar_tensor_is_read_only(p->tensor) ? "is read-only"
                                                            : "has no numbers");
    for (int i = 0; i < index; i++)
        if (oar_tensor_storage(d->param[i].tensor) ==
            oar_tensor_storage(p->tensor))
            return oari_fail(OAR_E_UNSUPPORTED,
                             "fsdp_wrap: the parameters \"%s\" and \"%s\" are "
                             "views of one memory",
                             d->param[i].name, p->name);
    return OAR_OK;
}

static oar_status check_params(const oari_fsdp *d)
{
    for (int i = 0; i < d->params; i++)
        OARI_TRY(check_param(d, i));
    return OAR_OK;
}

static oar_status agree_on_options(const oari_fsdp *d,
                                   const oar_module *wrapped)
{
    const oar_fsdp_opts *o = &d->opts;
    char text[320];

    snprintf(text, sizeof text,
             "stage %d, hold %d, keep %d, prefetch %d, weighted %d, canonical "
             "%d, "
             "no_scatter %d, replicas %d, units %d, host_state %d, mixed %d: "
             "%s, %s, %s",
             (int)o->stage, (int)o->hold, (int)o->keep, o->prefetch,
             o->weighted != 0, o->canonical != 0, o->no_scatter != 0,
             o->replicas != NULL, d->units, o->host_state != 0, o->mixed != 0,
             oar_dtype_name(o->param_dtype), oar_dtype_name(o->reduce_dtype),
             oar_dtype_name(o->output_dtype));
    return oari_agree_on_model(wrapped, text, d->group);
}

/* ---- moving parameters to shards ----------------------------------------- */

/* The lists that oar_shards_create reads. */
typedef struct array_lists {
    oar_span *array;
    int *unit;
    unsigned char *frozen;
    const char **name, **unit_name;
} array_lists;

static void drop_lists(array_lists *l)
{
    oari_free(l->array);
    oari_free(l->unit);
    oari_free(l->frozen);
    oari_free(l->name);
    oari_free(l->unit_name);
}

/* Gives the numbers of a parameter; none: of a lazy one, or where old shards
 * are apart from whole arrays. */
static oar_span span_of_param(const oari_fsdp_param *p, const oar_shards *old)
{
    size_t count = (size_t)oar_tensor_count(p->tensor);
    const void *data = NULL;
    oar_span span;

    if (old == NULL) {
        if (!oar_tensor_is_lazy(p->tensor))
            data = oar_tensor_const_data(p->tensor);
        span = oar_span_of_const(data, count, oar_tensor_dtype(p->tensor));
        span.device = oar_tensor_device(p->tensor);
        return span;
    }
    if (!old->apart)
        data = oar_shards_array(old, p->array).data;
    return oar_span_of_const(data, count,
                             old->flat[old->array[p->array].flat].dtype);
}

static oar_status make_lists(const oari_fsdp *d, const oar_shards *old,
                             array_lists *l)
{
    size_t n = (size_t)d->params + 1;

    l->array = oari_alloc(n, sizeof *l->array);
    l->unit = oari_alloc(n, sizeof *l->unit);
    l->frozen = oari_alloc(n, 1);
    l->name = oari_alloc(n, sizeof *l->name);
    l->unit_name = oari_alloc((size_t)d->units, sizeof *l->unit_name);
    if (l->array == NULL || l->unit == NULL || l->frozen == NULL ||
        l->name == NULL || l->unit_name == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < d->params; i++) {
        const oari_fsdp_param *p = &d->param[i];

        l->array[i] = span_of_param(p, old);
        l->unit[i] = d->unit[p->unit].index;
        l->frozen[i] = old != NULL ? old->flat[old->array[i].flat].frozen != 0
                                   : !oar_tensor_requires_grad(p->tensor);
        l->name[i] = p->name;
    }
    for (int u = 0; u < d->units; u++)
        if (!d->unit[u].joined)
            l->unit_name[d->unit[u].index] =
                u == 0 ? "(outermost)" : d->unit[u].name;
    return OAR_OK;
}

/* Writes this rank's shards of lazy parameters; nothing is sent. */
static oar_status make_lazy_shards(oari_fsdp *d)
{
    oar_shard shard = oar_shard_init();
    int any = 0;

    for (int i = 0; i < d->params; i++)
        any |= oar_tensor_is_lazy(d->param[i].tensor);
    for (int i = 0; any && i < oar_shards_count(d->shards); i++) {
        const oar_tensor *param;

        OARI_TRY(oar_shards_shard(d->shards, i, &shard));
        param = d->param[shard.array].tensor;
        if (oar_tensor_is_lazy(param))
            OARI_TRY(oari_fsdp_make_shard(param, &shard));
    }
    return any ? oar_shards_publish(d->shards) : OAR_OK;
}

oar_status oari_fsdp_make_shards(const oari_fsdp *d, oar_group *group,
                                 const oar_shards *old, oar_shards **shards)
{
    oar_shards_opts o = oar_shards_opts_init();
    array_lists l = { 0 };
    oar_status status = oari_agree_on_status(group, make_lists(d, old, &l),
                                             "fsdp: the list of parameters");
    int lazy = 1;

    for (int i = 0; i < d->params; i++)
        lazy &= oar_tensor_is_lazy(d->param[i].tensor);
    o.stage = d->opts.stage;
    o.hold = old != NULL ? oar_shards_hold(old) : d->opts.hold;
    o.prefetch = d->opts.prefetch;
    o.replicas = d->opts.replicas;
    o.weighted = d->opts.weighted;
    o.canonical = d->opts.canonical;
    o.no_scatter = d->opts.no_scatter || lazy || old != NULL;
    o.host_state = d->opts.host_state;
    o.mixed = d->opts.mixed;
    o.whole_dtype = d->opts.param_dtype;
    o.reduce_dtype = d->opts.reduce_dtype;
    o.frozen = l.frozen;
    o.names = l.name;
    o.unit_names = l.unit_name;
    if (status == OAR_OK)
        status =
            oar_shards_create(group, d->params, l.array, l.unit, &o, shards);
    drop_lists(&l);
    return status;
}

/* Makes the storages of a flat, without memory unless it is always there. */
static oar_status make_flat(oari_fsdp *d, int f, const char *absent)
{
    const oari_flat *flat = &d->shards->flat[f];
    size_t bytes = flat->count * oar_dtype_size(flat->whole_dtype);

    OARI_TRY(
        oar_storage_create_detached_on(d->shards->device, bytes, &d->flat[f]));
    oar_storage_explain_absence(d->flat[f], absent);
    if (d->shards->resident)
        OARI_TRY(oar_storage_attach_read_only(
            d->flat[f], oari_shards_whole(d->shards, flat), NULL, NULL));
    if (flat->frozen)
        return OAR_OK;
    return oari_shards_on_gpu(d->shards)
               ? oar_storage_create_detached_on(d->shards->device, bytes,
                                                &d->grads[f])
               : oar_storage_create_detached(bytes, 1, &d->grads[f]);
}

static oar_status move_param(oari_fsdp *d, const oari_fsdp_param *p)
{
    static const char *const why =
        "is spread over the ranks by FSDP: give the optimizer, clipping or "
        "scaler oar_fsdp_params instead, and write to it by "
        "oar_fsdp_write_param";
    const oari_sharded_array *a = &d->shards->array[p->array];
    oar_dtype dtype = d->shards->flat[a->flat].whole_dtype;
    oar_tensor *grad;
    oar_status status;

    OARI_TRY(
        oar_tensor_rebase(p->tensor, d->flat[a->flat], (int64_t)a->at, dtype));
    oar_tensor_guard(p->tensor, why);
    if (!oar_tensor_requires_grad(p->tensor))
        return OAR_OK;
    grad = oar_view_of(NULL, d->grads[a->flat], (int64_t)a->at, dtype,
                       oar_tensor_shape(p->tensor));
    if (grad == NULL)
        return oar_last_error()->status;
    status = oar_tensor_bind_grad(p->tensor, grad);
    oar_tensor_release(grad);
    return status;
}

oar_status oari_fsdp_list_clipped(const oar_shards *shards,
                                  oar_clip_part **clip)
{
    int count;
    oar_tensor *const *tensor = oar_shards_tensors(shards, &count);
    oar_clip_part *list = oari_alloc((size_t)count + 1, sizeof *list);

    if (list == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++)
        list[i] = (oar_clip_part){ .param = tensor[i], .cut = 1 };
    *clip = list;
    return OAR_OK;
}

static oar_status move_params(oari_fsdp *d)
{
    size_t flats = (size_t)d->shards->flats + 1;

    d->flat = oari_alloc(flats, sizeof(oar_storage *));
    d->grads = oari_alloc(flats, sizeof(oar_storage *));
    d->has_input = oari_alloc((size_t)oar_group_size(d->group), 1);
    if (d->flat == NULL || d->grads == NULL || d->has_input == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_fsdp_list_clipped(d->shards, &d->clip));
    for (int u = 0; u < d->units; u++) {
        const oari_shard_unit *unit = &d->shards->unit[d->unit[u].index];
        for (int k = 0; !d->unit[u].joined && k < unit->flats; k++)
            OARI_TRY(make_flat(d, unit->first + k, d->unit[u].absent));
    }
    for (int i = 0; i < d->params; i++)
        OARI_TRY(move_param(d, &d->param[i]));
    return OAR_OK;
}

/* ---- wrapping ------------------------------------------------------------ */

static oar_status broadcast_buffers(const oari_fsdp *d,
                                    const oar_module *module)
{
    for (int i = 0; i < oar_module_buffers(module); i++) {
        oar_tensor *buffer = oar_module_buffer(module, i);
        oar_span span;

        if (oar_tensor_is_lazy(buffer)) {
            OARI_TRY(oar_tensor_realize(buffer));
            continue;
        }
        OARI_TRY(oar_tensor_span(buffer, &span));
        if (!d->opts.no_scatter)
            OARI_TRY(oar_broadcast(d->group, span, 0, NULL, NULL));
    }
    return OAR_OK;
}

/* Does what needs no other rank. Takes inner's reference in any case. */
static oar_status prepare_wrapper(oar_module *inner, oar_module *wrapped)
{
    oari_fsdp *d = oar_module_self(wrapped);

    OARI_TRY(oar_module_add_child(wrapped, "module", inner));
    OARI_TRY(oari_fsdp_find_units(d, inner));
    return check_params(d);
}

/* A failure on one rank is told to all before they go on. */
static oar_status build_wrapper(oar_module *inner, oar_module *wrapped)
{
    oari_fsdp *d = oar_module_self(wrapped);
    oar_status status = prepare_wrapper(inner, wrapped);

    OARI_TRY(oari_agree_on_status(d->group, status, "fsdp_wrap"));
    OARI_TRY(agree_on_options(d, wrapped));
    OARI_TRY(broadcast_buffers(d, inner));
    OARI_TRY(oari_fsdp_make_shards(d, d->group, NULL, &d->shards));
    OARI_TRY(make_lazy_shards(d));
    d->opts.units = d->opts.ignored = NULL; /* the caller's */
    status = move_params(d);
    if (status == OAR_OK)
        status = oari_fsdp_listen(d);
    return oari_agree_on_status(d->group, status, "fsdp_wrap");
}

oar_status oar_fsdp_wrap_at(const char *file, int line, oar_module *inner,
                            oar_group *group, const oar_fsdp_opts *opts,
                            oar_module **wrapped)
{
    OARI_CALLED_FROM(file, line);
    oar_fsdp_opts o;
    oar_module *made = NULL;
    oar_status status;

    if (inner == NULL || group == NULL || wrapped == NULL)
        status = oari_fail(OAR_E_ARG, "fsdp_wrap without a %s",
                           inner == NULL   ? "module"
                           : group == NULL ? "group"
                                           : "place for the result");
    else if (oar_batch_is_open(group))
        status = oari_fail(OAR_E_STATE, "fsdp_wrap inside a batch");
    else
        status = refuse_wrapped(inner);
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    if (status == OAR_OK)
        status = check_options(&o);
    if (status == OAR_OK)
        status = oar_module_create(&fsdp_class, &made);
    if (status != OAR_OK) {
        oar_module_release(inner);
        return status;
    }
    ((oari_fsdp *)oar_module_self(made))->group = group;
    ((oari_fsdp *)oar_module_self(made))->opts = o;
    status = build_wrapper(inner, made);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_module_release(made);
        return oari_fail_with(&why);
    }
    *wrapped = made;
    return OAR_OK;
}

/* ---- public functions of a wrapped module -------------------------------- */

oari_fsdp *oari_fsdp_of(const oar_module *module)
{
    oar_module *mine;

    memcpy(&mine, &module, sizeof mine);
    return oar_module_is(module, &fsdp_class) ? oar_module_self(mine) : NULL;
}

/* Returns NULL and fails if the module is not wrapped. */
static oari_fsdp *fsdp_of(const oar_module *wrapped, const char *what)
{
    oari_fsdp *d = oari_fsdp_of(wrapped);

    if (d == NULL)
        oari_fail(OAR_E_ARG, "%s of a module that FSDP does not wrap", what);
    return d;
}

oar_tensor *const *oar_fsdp_params(const oar_module *wrapped, int *count)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_params");

    return oar_shards_tensors(d != NULL ? d->shards : NULL, count);
}

oar_shards *oar_fsdp_shards(const oar_module *wrapped)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_shards");

    return d != NULL ? d->shards : NULL;
}

int oar_fsdp_param_index(const oar_module *wrapped, int array)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_param_index");

    return d != NULL && array >= 0 && array < d->params ? d->param[array].first
                                                        : -1;
}

int oar_fsdp_units(const oar_module *wrapped)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_units");

    return d != NULL ? oar_shards_units(d->shards) : 0;
}

const char *oar_fsdp_unit_name(const oar_module *wrapped, int unit)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_unit_name");

    for (int u = 0; d != NULL && u < d->units; u++)
        if (!d->unit[u].joined && d->unit[u].index == unit)
            return d->unit[u].name;
    return NULL;
}

/* Calls fn for the unit of this name, or for all. */
static oar_status for_units(oar_module *wrapped, const char *what,
                            const char *name,
                            oar_status (*fn)(oari_fsdp *d, int unit))
{
    oari_fsdp *d = fsdp_of(wrapped, what);

    if (d == NULL)
        return OAR_E_ARG;
    if (name != NULL && oari_fsdp_find(d, name) < 0)
        return oari_fail(OAR_E_NOT_FOUND, "%s: no unit is called \"%s\"", what,
                         name);
    for (int u = 0; u < d->units; u++)
        if (!d->unit[u].joined &&
            (name == NULL || strcmp(d->unit[u].name, name) == 0))
            OARI_TRY(fn(d, u));
    return OAR_OK;
}

oar_status oar_fsdp_unshard_at(const char *file, int line, oar_module *wrapped,
                               const char *unit)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_unshard");

    if (d != NULL)
        OARI_TRY(oari_fsdp_publish(d));
    return for_units(wrapped, "fsdp_unshard", unit, oari_fsdp_open);
}

oar_status oar_fsdp_reshard_at(const char *file, int line, oar_module *wrapped,
                               const char *unit)
{
    OARI_CALLED_FROM(file, line);
    return for_units(wrapped, "fsdp_reshard", unit, oari_fsdp_close);
}

oar_status oar_fsdp_no_sync_begin(oar_module *wrapped)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_no_sync_begin");

    if (d == NULL)
        return OAR_E_ARG;
    d->no_sync++;
    return OAR_OK;
}

oar_status oar_fsdp_no_sync_end(oar_module *wrapped)
{
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_no_sync_end");

    if (d == NULL)
        return OAR_E_ARG;
    if (d->no_sync == 0)
        return oari_fail(OAR_E_STATE, "fsdp_no_sync_end without a beginning");
    d->no_sync--;
    return OAR_OK;
}

oar_status oar_fsdp_join_at(const char *file, int line, oar_module *wrapped,
                            int has_input, int *active)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_join");

    return d != NULL ? oari_fsdp_join(d, has_input, active) : OAR_E_ARG;
}

oar_status oar_fsdp_clip_grad_norm_at(const char *file, int line,
                                      oar_module *wrapped, double limit,
                                      double *norm)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = fsdp_of(wrapped, "fsdp_clip_grad_norm");
    int count;

    if (d == NULL)
        return OAR_E_ARG;
    oar_shards_tensors(d->shards, &count);
    return oar_clip_grad_norm_over(1, &d->group, count, d->clip, limit, norm);
}
