/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_bucket: buckets on a GPU. A bucket is posted behind what is on the
 * current stream, and at the end of a pass that stream is ordered behind all
 * buckets, so the host never waits for the GPU.
 *
 * Whatever talks to the group is called by oar_replay_cut: a step that is
 * recorded becomes a row of graphs with these calls between them. So they read
 * what may change from pass to pass (the weight) themselves. */
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>
#include <oarsong/replay.h>

#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

oar_status oari_span_clear(const oar_span *span)
{
    if (span->count == 0)
        return OAR_OK;
    if (span->device.kind == OAR_CPU) {
        memset(span->data, 0, oari_span_bytes(span));
        return OAR_OK;
    }
    return oar_device_fill(*span, 0, oar_stream_current(span->device));
}

oar_status oari_span_copy(const oar_span *to, const oar_span *from)
{
    if (to->count == 0)
        return OAR_OK;
    return oar_device_copy(
        to->data, to->device, from->data, from->device, oari_span_bytes(to),
        to->device.kind != OAR_CPU ? oar_stream_current(to->device) : NULL);
}

/* ---- posting ------------------------------------------------------------- */

/* Engines without a weighted mean take the plain one of numbers that are scaled
 * before: by this rank's weight over the mean of all weights. */
static oar_status find_factor(oar_reducer *r)
{
    double sum = r->weight;

    OARI_TRY(oar_all_reduce(
        r->group, oar_span_of(&sum, 1, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "weights", .canonical = 1), NULL));
    r->factor = sum > 0 ? r->weight * oar_group_size(r->group) / sum : 0;
    return OAR_OK;
}

static oar_status scale_bucket(const oari_bucket *b, double factor)
{
    oar_tensor *all = oar_view_of(NULL, b->storage, 0, b->is.data.dtype,
                                  OAR_SHAPE((int64_t)b->is.data.count));
    oar_tensor *scaled = all != NULL ? oar_scale(NULL, all, factor) : NULL;
    oar_status status = scaled != NULL ? oar_tensor_copy(all, scaled)
                                       : oar_last_error()->status;

    oar_tensor_release(scaled);
    oar_tensor_release(all);
    return status;
}

static oar_status start_bucket(oar_reducer *r, const oari_bucket *b,
                               oar_work **work)
{
    if (r->hook.start != NULL)
        return r->hook.start(r->hook.arg, r->group, &b->is, work);
    return oar_all_reduce(r->group, b->is.data, oari_bucket_op(&b->is),
                          OAR_OPTS(oar_call_opts, .label = "gradients",
                                   .weight = b->is.weight,
                                   .canonical = b->is.canonical),
                          work);
}

/* Whether the engine has weighted means is known once it has refused the first,
 * which all ranks see alike, before anything is posted. */
static oar_status post_bucket(void *arg)
{
    oari_piece *piece = arg;
    oar_reducer *r = piece->reducer;
    oari_bucket *b = &r->bucket[piece->bucket];

    b->is.weight = r->weight;
    b->is.weighted = r->opts.weighted && !r->scales;
    if (b->is.weighted) {
        oar_status status = start_bucket(r, b, &piece->work);

        if (status != OAR_E_UNSUPPORTED || piece->bucket > 0)
            return status;
        oar_clear_error();
        r->scales = 1;
        b->is.weighted = 0;
    }
    if (r->scales && piece->bucket == 0)
        OARI_TRY(find_factor(r));
    if (r->scales)
        OARI_TRY(scale_bucket(b, r->factor));
    return start_bucket(r, b, &piece->work);
}

oar_status oari_gpu_bucket_post(oari_piece *piece)
{
    return oar_replay_cut(post_bucket, piece);
}

/* ---- the end of a pass --------------------------------------------------- */

/* A graph that is replayed has the same arrays each time: no flags then. */
static oar_status exchange_flags(oar_reducer *r)
{
    size_t arrays = (size_t)r->arrays;

    if (!r->asks_flags)
        return OAR_OK;
    r->asks_flags = 0;
    for (size_t i = 0; i < arrays; i++)
        r->flag[i] = r->slot[i].given != 0;
    OARI_TRY(oar_all_reduce(
        r->group, oar_span_of(r->flag, arrays, OAR_U8), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "used gradients"), NULL));
    for (size_t i = 0; i < arrays; i++)
        r->slot[i].used = r->flag[i];
    return OAR_OK;
}

static oar_status order_buckets(oar_reducer *r)
{
    for (int i = 0; i < r->buckets; i++) {
        oari_bucket *b = &r->bucket[i];
        oar_work *work = b->piece[0].work;

        if (work != NULL)
            OARI_TRY(oar_work_order(work, oar_stream_current(r->device)));
        oar_work_release(work);
        b->piece[0].work = NULL;
        if (r->hook.finish != NULL)
            OARI_TRY(r->hook.finish(r->hook.arg, r->group, &b->is));
    }
    return OAR_OK;
}

static oar_status end_buckets(void *arg)
{
    oar_reducer *r = arg;
    oar_status status = post_bucket(r->bucket[r->buckets - 1].piece);

    if (status == OAR_OK)
        status = exchange_flags(r);
    if (status == OAR_OK)
        status = order_buckets(r);
    if (status == OAR_OK && r->owner.ended != NULL)
        status = r->owner.ended(r->owner.arg);
    r->passes += status == OAR_OK;
    if (status != OAR_OK)
        oari_reducer_reset(r);
    return status;
}

oar_status oari_gpu_buckets_end(oar_reducer *r)
{
    r->asks_flags = 1;
    return oar_replay_cut(end_buckets, r);
}
