/* SPDX-License-Identifier: Apache-2.0 */
/* zero: an optimizer over this rank's slice of every bucket.
 *
 * A slice may begin or end in the middle of a parameter. The part of a
 * parameter in the slice is a shard: a flat tensor over the parameter's own
 * memory, whose gradient is a view of the bucket. The parameters of a bucket
 * are moved to one storage, in which they lie as their gradients lie in the
 * bucket: after the step the slices of all ranks are gathered there, in place.
 */
#include <oarsong/zero.h>

#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"

typedef struct shard {
    int array;    /* of the reducer */
    size_t first; /* element of the parameter */
    size_t at;    /* of the bucket */
    size_t count;
    oar_tensor *param, *grad; /* views */
} shard;

struct oar_zero {
    oar_module *wrapped; /* a reference */
    oari_ddp *ddp;
    int shards;
    shard *shard;
    oar_storage **home; /* by bucket: its parameters */
    oar_work **work;    /* by bucket */
    oar_optim *optim;
};

/* ---- parameters ---------------------------------------------------------- */

/* Two parameters over one memory would be torn apart. */
static oar_status check_memory(const oar_zero *z)
{
    const oari_ddp *d = z->ddp;

    for (int i = 0; i < d->reducer->arrays; i++)
        for (int k = 0; k < i; k++)
            if (oar_tensor_storage(d->slot[i].param) ==
                oar_tensor_storage(d->slot[k].param))
                return oari_fail(OAR_E_UNSUPPORTED,
                                 "zero_create: the parameters \"%s\" and "
                                 "\"%s\" are views of one memory",
                                 d->reducer->slot[k].name,
                                 d->reducer->slot[i].name);
    return OAR_OK;
}

/* Moves a parameter to its place; its gradient stays in the bucket. */
static oar_status move_param(oar_zero *z, int array)
{
    const oari_reducer_array *s = &z->ddp->reducer->slot[array];
    oar_tensor *param = z->ddp->slot[array].param;
    oar_tensor *grad = z->ddp->slot[array].home;
    int written = oar_tensor_grad(param) == grad;
    oar_tensor *to =
        oar_view_of(NULL, z->home[s->bucket], (int64_t)s->at,
                    oar_tensor_dtype(param), oar_tensor_shape(param));
    oar_status status =
        to != NULL ? oar_tensor_copy(to, param) : oar_last_error()->status;

    oar_tensor_release(to);
    OARI_TRY(status);
    OARI_TRY(oar_tensor_rebase(param, z->home[s->bucket], (int64_t)s->at,
                               oar_tensor_dtype(param)));
    OARI_TRY(oar_tensor_bind_grad(param, grad));
    return written ? oar_tensor_mark_grad(param) : OAR_OK;
}

static oar_status move_params(oar_zero *z)
{
    const oar_reducer *r = z->ddp->reducer;

    OARI_TRY(check_memory(z));
    for (int b = 0; b < r->buckets; b++) {
        size_t bytes = oar_storage_bytes(r->bucket[b].storage);

        OARI_TRY(oar_storage_create(bytes, 1, &z->home[b]));
        memset(oar_storage_data(z->home[b]), 0, bytes); /* gaps travel, too */
    }
    for (int i = 0; i < r->arrays; i++)
        OARI_TRY(move_param(z, i));
    return OAR_OK;
}

/* ---- shards -------------------------------------------------------------- */

static oar_status make_views(const oar_zero *z, shard *p)
{
    const oar_reducer *r = z->ddp->reducer;
    oar_tensor *param = z->ddp->slot[p->array].param;
    oar_dtype dtype = oar_tensor_dtype(param);
    oar_shape shape = OAR_SHAPE((int64_t)p->count);
    int bucket = r->slot[p->array].bucket;

    p->param = oar_view_of(NULL, z->home[bucket], (int64_t)p->at, dtype, shape);
    p->grad = oar_view_of(NULL, r->bucket[bucket].storage, (int64_t)p->at,
                          dtype, shape);
    if (p->param == NULL || p->grad == NULL)
        return oar_last_error()->status;
    OARI_TRY(oar_tensor_require_grad(p->param, 1));
    return oar_tensor_bind_grad(p->param, p->grad);
}

/* Makes the shard of an array in this rank's slice of its bucket, if any. */
static oar_status make_shard(oar_zero *z, int array)
{
    const oar_reducer *r = z->ddp->reducer;
    const oari_reducer_array *s = &r->slot[array];
    oar_span mine = oari_bucket_slice(r, s->bucket, oar_group_rank(r->group));
    size_t low = (size_t)((unsigned char *)mine.data -
                          (unsigned char *)r->bucket[s->bucket].is.data.data) /
                 oar_dtype_size(mine.dtype);
    size_t high = low + mine.count, stop = s->at + s->array.count;
    size_t first = low > s->at ? low : s->at, end = high < stop ? high : stop;
    shard *p = &z->shard[z->shards];

    if (first >= end)
        return OAR_OK;
    *p = (shard){ .array = array,
                  .first = first - s->at,
                  .at = first,
                  .count = end - first };
    z->shards++;
    return make_views(z, p);
}

static oar_status make_optim(oar_zero *z, oar_zero_make_fn make, void *arg)
{
    size_t n = (size_t)z->shards + 1;
    oar_tensor **param = oari_alloc(n, sizeof *param);
    const char **name = oari_alloc(n, sizeof *name);
    oar_status status = OAR_E_NOMEM;

    for (int i = 0; param != NULL && name != NULL && i < z->shards; i++) {
        param[i] = z->shard[i].param;
        name[i] = z->ddp->reducer->slot[z->shard[i].array].name;
    }
    if (param != NULL && name != NULL)
        status = make(arg, z->shards, param, name, &z->optim);
    oari_free(param);
    oari_free(name);
    return status;
}

static oar_status build_zero(oar_zero *z, oar_zero_make_fn make, void *arg)
{
    const oar_reducer *r = z->ddp->reducer;
    size_t buckets = (size_t)r->buckets + 1;

    z->shard = oari_alloc((size_t)r->arrays + 1, sizeof *z->shard);
    z->home = oari_alloc(buckets, sizeof(oar_storage *));
    z->work = oari_alloc(buckets, sizeof(oar_work *));
    if (z->shard == NULL || z->home == NULL || z->work == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(move_params(z));
    for (int i = 0; i < r->arrays; i++)
        OARI_TRY(make_shard(z, i));
    return make_optim(z, make, arg);
}

oar_status oar_zero_create(oar_module *wrapped, oar_zero_make_fn make,
                           void *arg, oar_zero **zero)
{
    oari_ddp *ddp = oari_ddp_of(wrapped);
    oar_zero *z;
    oar_status status;

    if (make == NULL || zero == NULL)
        return oari_fail(OAR_E_ARG, "zero_create without a %s",
                         make == NULL ? "function" : "place for it");
    if (ddp == NULL || !ddp->opts.sharded)
        return oari_fail(OAR_E_STATE, "zero_create over a module that is not "
                                      "wrapped with `sharded`");
    z = oari_alloc(1, sizeof *z);
    if (z == NULL)
        return OAR_E_NOMEM;
    z->wrapped = oar_module_retain(wrapped);
    z->ddp = ddp;
    status = build_zero(z, make, arg);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_zero_destroy(z);
        return oari_fail_with(&why);
    }
    *zero = z;
    return OAR_OK;
}

void oar_zero_destroy(oar_zero *zero)
{
    if (zero == NULL)
        return;
    oar_optim_destroy(zero->optim);
    for (int i = 0; i < zero->shards; i++) {
        oar_tensor_release(zero->shard[i].param);
        oar_tensor_release(zero->shard[i].grad);
    }
    for (int b = 0; zero->home != NULL && b < zero->ddp->reducer->buckets; b++)
        oar_storage_release(zero->home[b]);
    oari_free(zero->shard);
    oari_free(zero->home);
    oari_free(zero->work);
    oar_module_release(zero->wrapped);
    oari_free(zero);
}

/* ---- a step -------------------------------------------------------------- */

/* A shard has a gradient if any rank used its parameter. */
static oar_status mark_shards(oar_zero *z)
{
    for (int i = 0; i < z->shards; i++) {
        oar_tensor *param = z->shard[i].param;
        if (oar_reducer_used(z->ddp->reducer, z->shard[i].array) &&
            oar_tensor_grad(z->ddp->slot[z->shard[i].array].param) != NULL)
            OARI_TRY(oar_tensor_mark_grad(param));
        else
            oar_tensor_clear_grad(param);
    }
    return OAR_OK;
}

/* Returns where the parameters of a span of gradients lie. */
static oar_span home_span(const oar_zero *z, oar_span span, int bucket)
{
    const oar_span *data = &z->ddp->reducer->bucket[bucket].is.data;
    size_t at =
        (size_t)((unsigned char *)span.data - (unsigned char *)data->data);

    span.data = (unsigned char *)oar_storage_data(z->home[bucket]) + at;
    return span;
}

static oar_status gather_params(oar_zero *z)
{
    const oar_reducer *r = z->ddp->reducer;
    oar_status status = OAR_OK, waited;
    int begun = 0;

    while (begun < r->buckets && status == OAR_OK) {
        oar_span mine = oari_bucket_slice(r, begun, oar_group_rank(r->group));
        status = oar_all_gather(r->group, home_span(z, mine, begun),
                                home_span(z, r->bucket[begun].is.data, begun),
                                OAR_OPTS(oar_call_opts, .label = "parameters"),
                                &z->work[begun]);
        begun += status == OAR_OK;
    }
    waited = oar_work_wait_all(begun, z->work);
    for (int b = 0; b < begun; b++)
        oar_work_release(z->work[b]);
    return status != OAR_OK ? status : waited;
}

oar_status oar_zero_step_at(const char *file, int line, oar_zero *zero)
{
    OARI_CALLED_FROM(file, line);
    if (zero == NULL)
        return oari_fail(OAR_E_ARG, "zero_step without an optimizer");
    OARI_TRY(mark_shards(zero));
    OARI_TRY(oar_optim_step(zero->optim));
    OARI_TRY(gather_params(zero));
    for (int i = 0; i < zero->ddp->reducer->arrays; i++)
        OARI_TRY(oar_tensor_touch(zero->ddp->slot[i].param));
    return OAR_OK;
}

void oar_zero_zero_grad(oar_zero *zero)
{
    for (int i = 0; zero != NULL && i < zero->ddp->slots; i++)
        oar_tensor_clear_grad(zero->ddp->slot[i].param);
}

oar_optim *oar_zero_optim(const oar_zero *zero)
{
    return zero != NULL ? zero->optim : NULL;
}

int oar_zero_pieces(const oar_zero *zero)
{
    return zero != NULL ? zero->shards : 0;
}

oar_status oar_zero_piece_at(const oar_zero *zero, int index,
                             oar_zero_piece *piece)
{
    oar_zero_piece made = { .size = sizeof made, .index = -1 };
    const shard *p;

    if (zero == NULL || index < 0 || index >= zero->shards)
        return oari_fail(OAR_E_ARG, "zero_piece_at: piece %d of %d", index,
                         oar_zero_pieces(zero));
    p = &zero->shard[index];
    made.param = zero->ddp->slot[p->array].param;
    made.first = (int64_t)p->first;
    made.count = (int64_t)p->count;
    made.view = p->param;
    for (int i = 0; i < oar_optim_params(zero->optim); i++)
        if (oar_optim_param(zero->optim, i) == p->param)
            made.index = i;
    return oari_struct_give(piece, &made, sizeof made, "piece");
}
