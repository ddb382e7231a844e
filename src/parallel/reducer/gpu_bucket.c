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

#include "base/alloc.h"
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

oar_status oari_weight_factor(oar_group *group, double weight, double *factor)
{
    double sum = weight;

    OARI_TRY(oar_all_reduce(
        group, oar_span_of(&sum, 1, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "weights", .canonical = 1), NULL));
    *factor = sum > 0 ? weight * oar_group_size(group) / sum : 0;
    return OAR_OK;
}

oar_status oari_storage_scale(oar_storage *storage, const oar_span *span,
                              double factor)
{
    oar_tensor *all = oar_view_of(NULL, storage, 0, span->dtype,
                                  OAR_SHAPE((int64_t)span->count));
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
static oar_status post_piece(oari_piece *piece)
{
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
        OARI_TRY(oari_weight_factor(r->group, r->weight, &r->factor));
    if (r->scales)
        OARI_TRY(oari_storage_scale(b->storage, &b->is.data, r->factor));
    return start_bucket(r, b, &piece->work);
}

/* All ranks have the same order of collectives, also where others come between
 * backward and these on a rank without input. */
static oar_status post_bucket(void *arg)
{
    oari_piece *piece = arg;

    piece->held = piece->reducer->holds;
    return piece->held ? OAR_OK : post_piece(piece);
}

static oar_status post_held(oar_reducer *r)
{
    for (int i = 0; i < r->buckets; i++) {
        oari_piece *piece = r->bucket[i].piece;

        if (!piece->held)
            continue;
        piece->held = 0;
        OARI_TRY(post_piece(piece));
    }
    return OAR_OK;
}

oar_status oari_gpu_bucket_post(oari_piece *piece)
{
    return oar_replay_cut(post_bucket, piece);
}

/* ---- the end of a pass --------------------------------------------------- */

/* What a replay needs of the pass that was recorded: which arrays this rank has
 * numbers for, since a pass in between may be another's. */
typedef struct pass_end {
    oar_reducer *reducer;
    unsigned char given[];
} pass_end;

/* Replays have the same arrays each time: flags then only for ranks that do not
 * replay the pass. */
static oar_status exchange_flags(oar_reducer *r, const unsigned char *given)
{
    size_t arrays = (size_t)r->arrays;

    if (!r->asks_flags)
        return OAR_OK;
    r->asks_flags = 0;
    memcpy(r->flag, given, arrays);
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
    const pass_end *e = arg;
    oar_reducer *r = e->reducer;
    oar_status status = post_held(r);

    if (status == OAR_OK)
        status = post_piece(r->bucket[r->buckets - 1].piece);
    if (status == OAR_OK)
        status = exchange_flags(r, e->given);
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
    pass_end *e = oari_alloc(1, sizeof *e + (size_t)r->arrays);

    if (e == NULL)
        return OAR_E_NOMEM;
    e->reducer = r;
    for (int i = 0; i < r->arrays; i++)
        e->given[i] = r->slot[i].given != 0;
    r->asks_flags = 1;
    return oar_replay_cut_with(end_buckets, e, oari_free);
}
