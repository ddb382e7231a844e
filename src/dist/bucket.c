/* SPDX-License-Identifier: Apache-2.0 */
/* bucket: gradients as views of shared memory, reduced while backward runs.
 *
 * A bucket is reduced as soon as the last of its gradients is there, but never
 * before the bucket in front of it: so all ranks post in the same order,
 * whatever order their gradients come in.
 */
#include "dist/bucket.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum { ALIGN_BYTES = 64 }; /* where gradients begin */

/* ---- cutting ----------------------------------------------------------- */

/* Elements that a gradient takes, rounded up to a cache line. */
static int64_t room_of(const oar_tensor *param)
{
    int64_t unit =
        ALIGN_BYTES / (int64_t)oar_dtype_size(oar_tensor_dtype(param));

    return (oar_tensor_count(param) + unit - 1) / unit * unit;
}

/* The open bucket of this dtype, if the parameter still fits; else a new one.
 */
static int bucket_for(oari_reducer *r, const oar_tensor *param, size_t limit)
{
    oar_dtype dtype = oar_tensor_dtype(param);
    size_t bytes = (size_t)room_of(param) * oar_dtype_size(dtype);

    for (int i = r->buckets - 1; i >= 0; i--) {
        oari_bucket *b = &r->bucket[i];
        if (b->dtype != dtype)
            continue;
        if (limit == 0 ||
            (size_t)b->count * oar_dtype_size(dtype) + bytes <= limit)
            return i;
        break; /* only the newest is open */
    }
    r->bucket[r->buckets].dtype = dtype;
    return r->buckets++;
}

static void cut(oari_reducer *r, size_t bucket_bytes)
{
    for (int i = r->slots - 1; i >= 0; i--) {
        oari_slot *s = &r->slot[i];
        s->bucket = bucket_for(r, s->param, bucket_bytes);
        s->first = r->bucket[s->bucket].count;
        r->bucket[s->bucket].count += room_of(s->param);
        r->bucket[s->bucket].params++;
    }
}

/* ---- reducing ---------------------------------------------------------- */

static oar_span span_of(const oari_bucket *b)
{
    return oar_span_of(oar_storage_data(b->storage), (size_t)b->count,
                       b->dtype);
}

static oar_status launch(oari_reducer *r)
{
    oari_bucket *b = &r->bucket[r->launched];

    OARI_TRY(oar_all_reduce(r->group, span_of(b), OAR_AVG,
                            OAR_OPTS(oar_call_opts, .label = "gradients"),
                            &b->work));
    r->launched++;
    r->reduced_bytes += (uint64_t)b->count * oar_dtype_size(b->dtype);
    return OAR_OK;
}

static oar_status launch_ready(oari_reducer *r)
{
    while (r->launched < r->buckets &&
           r->bucket[r->launched].ready == r->bucket[r->launched].params)
        OARI_TRY(launch(r));
    return OAR_OK;
}

/* The gradient, if it is not where it was bound: somebody has bound it
 * elsewhere since, or taken the binding away. Else NULL. */
static oar_tensor *gradient_elsewhere(const oari_slot *s)
{
    oar_tensor *grad = oar_tensor_grad(s->param);

    return oar_tensor_const_data(grad) != oar_tensor_const_data(s->home) ? grad
                                                                         : NULL;
}

static uint64_t bytes_of(const oar_tensor *t)
{
    return (uint64_t)oar_tensor_count(t) * oar_dtype_size(oar_tensor_dtype(t));
}

static oar_status copy_in(oari_slot *s)
{
    oar_tensor *grad = gradient_elsewhere(s);

    if (grad == NULL || s->copied)
        return OAR_OK;
    OARI_TRY(oar_tensor_copy(s->home, grad));
    s->copied = 1;
    s->owner->copied_bytes += bytes_of(grad);
    return OAR_OK;
}

static oar_status copy_out(oari_reducer *r)
{
    for (int i = 0; i < r->slots; i++) {
        oar_tensor *grad = gradient_elsewhere(&r->slot[i]);

        if (grad == NULL)
            continue;
        OARI_TRY(oar_tensor_copy(grad, r->slot[i].home));
        r->copied_bytes += bytes_of(grad);
    }
    return OAR_OK;
}

/* Called by every gradient, and at the end of a pass. */
static void begin_pass(oari_reducer *r)
{
    if (r->ready == 0)
        r->reduced_bytes = r->copied_bytes = 0;
}

static oar_status gradient_ready(oar_tensor *leaf, void *arg)
{
    oari_slot *s = arg;
    oari_reducer *r = s->owner;

    begin_pass(r);
    r->ready++;
    OARI_TRY(copy_in(s));
    r->bucket[s->bucket].ready++;
    return launch_ready(r);
}

/* A gradient that this pass did not reach counts as zero here; the others may
 * have one. Frozen since: it has a place in the bucket, but no gradient. */
static oar_status fill_one(oari_slot *s)
{
    oar_error before = *oar_last_error();

    OARI_TRY(oar_tensor_fill(s->home, 0));
    if (!oar_tensor_requires_grad(s->param) ||
        oar_tensor_mark_grad(s->param) == OAR_OK)
        return OAR_OK;
    oari_fail_with(&before); /* it had no home, which is no failure */
    OARI_TRY(oar_tensor_bind_grad(s->param, s->home));
    return oar_tensor_mark_grad(s->param);
}

static oar_status fill_missing(oari_reducer *r)
{
    for (int i = 0; i < r->slots; i++) {
        oari_slot *s = &r->slot[i];

        if (s->bucket < r->launched)
            continue;
        OARI_TRY(oar_tensor_grad(s->param) != NULL ? copy_in(s) : fill_one(s));
    }
    return OAR_OK;
}

oar_status oari_reducer_finish(oari_reducer *r)
{
    oar_status status;

    begin_pass(r);
    status = fill_missing(r);
    while (status == OAR_OK && r->launched < r->buckets)
        status = launch(r);
    for (int i = 0; i < r->launched; i++)
        if (status == OAR_OK)
            status = oar_work_wait(r->bucket[i].work);
    if (status == OAR_OK)
        status = copy_out(r);
    oari_reducer_reset(r);
    return status;
}

void oari_reducer_reset(oari_reducer *r)
{
    for (int i = 0; i < r->buckets; i++) {
        oari_bucket *b = &r->bucket[i];
        if (b->work != NULL) {
            oar_error keep = *oar_last_error();
            oar_work_wait(b->work);
            oar_work_release(b->work);
            oari_fail_with(&keep);
        }
        b->work = NULL;
        b->ready = 0;
    }
    for (int i = 0; i < r->slots; i++)
        r->slot[i].copied = 0;
    r->launched = r->ready = 0;
}

/* ---- making ------------------------------------------------------------ */

static oar_status make_storage(oari_reducer *r)
{
    for (int i = 0; i < r->buckets; i++) {
        oari_bucket *b = &r->bucket[i];
        OARI_TRY(oar_storage_create((size_t)b->count * oar_dtype_size(b->dtype),
                                    1, &b->storage));
    }
    return OAR_OK;
}

/* Moves the gradient into its bucket and listens for it. */
static oar_status bind(oari_slot *s)
{
    oari_bucket *b = &s->owner->bucket[s->bucket];

    s->home = oar_view_of(NULL, b->storage, s->first, b->dtype,
                          oar_tensor_shape(s->param));
    if (s->home == NULL)
        return oar_last_error()->status;
    OARI_TRY(oar_tensor_bind_grad(s->param, s->home));
    return oar_tensor_on_grad(s->param, gradient_ready, s, &s->hook);
}

oar_status oari_reducer_init(oari_reducer *r, oar_group *group, int params,
                             oar_tensor *const *param, size_t bucket_bytes)
{
    memset(r, 0, sizeof *r);
    r->group = group;
    r->slot = oari_alloc((size_t)params, sizeof *r->slot);
    r->bucket = oari_alloc((size_t)params, sizeof *r->bucket);
    if (r->slot == NULL || r->bucket == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < params; i++) {
        r->slot[i].owner = r;
        r->slot[i].param = oar_tensor_retain(param[i]);
        r->slots++;
    }
    cut(r, bucket_bytes);
    OARI_TRY(make_storage(r));
    for (int i = 0; i < r->slots; i++)
        OARI_TRY(bind(&r->slot[i]));
    return OAR_OK;
}

void oari_reducer_clear(oari_reducer *r)
{
    if (r->bucket != NULL)
        oari_reducer_reset(r);
    for (int i = 0; i < r->slots; i++) {
        oar_hook_remove(r->slot[i].hook);
        oar_tensor_release(r->slot[i].home);
        oar_tensor_release(r->slot[i].param);
    }
    for (int i = 0; r->bucket != NULL && i < r->buckets; i++)
        oar_storage_release(r->bucket[i].storage);
    oari_free(r->slot);
    oari_free(r->bucket);
    memset(r, 0, sizeof *r);
}
