/* SPDX-License-Identifier: Apache-2.0 */
/* piece: what is posted, when, and how long it was under way.
 *
 * Pieces go one after the other, bucket by bucket: so all ranks post in the
 * same order, whatever order their arrays come in.
 */
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

/* ---- a bucket before it goes --------------------------------------------- */

/* An array that is not ready is zero, unless its owner has numbers for it. */
static oar_status fill_absent(oar_reducer *r, int array)
{
    oar_status status = OAR_OK;
    oar_span place = oari_bucket_place(r, array);

    r->slot[array].given = r->owner.absent != NULL &&
                           r->owner.absent(r->owner.arg, array, &status);
    if (status == OAR_OK && !r->slot[array].given && place.count != 0)
        memset(place.data, 0, oari_bytes_of(&place));
    return status;
}

static oar_status fill_bucket(oar_reducer *r, const oari_bucket *b)
{
    for (int i = 0; i < b->is.arrays; i++) {
        oari_slot *s = &r->slot[b->is.array[i]];

        if (b->told > 0)
            s->given = 1;
        else if (!s->ready)
            OARI_TRY(fill_absent(r, b->is.array[i]));
    }
    return OAR_OK;
}

/* Before its first piece goes. */
static oar_status open_bucket(oar_reducer *r, oari_bucket *b)
{
    b->is.weighted = r->opts.weighted;
    b->is.canonical = r->opts.canonical;
    b->is.weight = r->weight;
    return fill_bucket(r, b);
}

/* ---- posting ------------------------------------------------------------- */

static void note_done(void *arg, oar_status status)
{
    atomic_store(&((oari_piece *)arg)->done_ns, oari_now_ns());
}

/* The flags of all arrays are known when the last bucket goes. */
static oar_status post_flags(oar_reducer *r, oar_work **work)
{
    return oar_all_reduce(
        r->group, oar_span_of(r->flags, (size_t)r->arrays, OAR_F32), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "used gradients"), work);
}

static oar_status scatter(oar_reducer *r, const oari_bucket *b, oar_work **work)
{
    oar_span mine = oari_bucket_slice(r, b->is.index, oar_group_rank(r->group));
    int beside = work != NULL || oar_group_overlaps(r->group);

    if (b->is.index == r->buckets - 1)
        OARI_TRY(post_flags(r, beside ? &r->flags_work : NULL));
    return oar_reduce_scatter(
        r->group, b->is.data, mine, oari_bucket_op(&b->is),
        OAR_OPTS(oar_call_opts, .label = "gradients", .weight = b->is.weight,
                 .canonical = b->is.canonical),
        work);
}

static oar_span span_of(const oari_bucket *b, const oari_piece *p)
{
    const oar_span *data = &b->is.data;

    return oar_span_of((unsigned char *)data->data +
                           p->first * oar_dtype_size(data->dtype),
                       p->end - p->first, data->dtype);
}

/* now: the caller waits anyway, so it may as well do the work itself, and the
 * engine's thread is not woken. */
static oar_status post(oar_reducer *r, const oari_bucket *b, oari_piece *p,
                       int now)
{
    oar_work **work = now && !oar_batch_is_open(r->group) ? NULL : &p->work;

    if (r->scatter)
        return scatter(r, b, work);
    if (r->hook.start != NULL)
        return r->hook.start(r->hook.arg, r->group, &b->is, &p->work);
    return oar_all_reduce(r->group, span_of(b, p), oari_bucket_op(&b->is),
                          OAR_OPTS(oar_call_opts, .label = "gradients",
                                   .weight = b->is.weight,
                                   .canonical = b->is.canonical),
                          work);
}

static int is_last_piece(const oar_reducer *r)
{
    const oari_bucket *b = &r->bucket[r->begun];

    return r->begun == r->buckets - 1 && b->begun == b->pieces - 1;
}

static oar_status watch(oari_piece *p)
{
    if (p->work != NULL)
        return oar_work_then(p->work, note_done, p);
    note_done(p, OAR_OK);
    return OAR_OK;
}

static oar_status begin_piece(oar_reducer *r, int now)
{
    oari_bucket *b = &r->bucket[r->begun];
    oari_piece *p = &b->piece[b->begun];
    oar_span data = span_of(b, p);

    if (b->begun == 0)
        OARI_TRY(open_bucket(r, b));
    if (is_last_piece(r))
        oari_flags_write(r);
    p->started_ns = oari_now_ns();
    atomic_store(&p->done_ns, 0);
    OARI_TRY(post(r, b, p, now));
    b->begun++;
    r->begun += b->begun == b->pieces;
    r->stats.reduced_bytes += oari_bytes_of(&data);
    return watch(p);
}

/* The last piece has everybody's flags in it: it waits for all arrays. */
static int may_begin(const oar_reducer *r)
{
    const oari_bucket *b = &r->bucket[r->begun];

    if (is_last_piece(r) && r->owner.ends_there)
        return 0;
    if (b->ready >= b->expected)
        return 1;
    return b->told > 0 && b->piece[b->begun].end <= b->told &&
           !is_last_piece(r);
}

oar_status oari_pieces_begin(oar_reducer *r)
{
    while (r->begun < r->buckets && may_begin(r))
        OARI_TRY(begin_piece(r, 0));
    return OAR_OK;
}

oar_status oari_pieces_begin_rest(oar_reducer *r)
{
    while (r->begun < r->buckets)
        OARI_TRY(begin_piece(r, is_last_piece(r)));
    return OAR_OK;
}

size_t oari_pieces_next(const oar_reducer *r, int array, size_t elements)
{
    const oari_slot *s = &r->slot[array];
    const oari_bucket *b = &r->bucket[s->bucket];

    for (int i = 0; i < b->pieces - 1; i++)
        if (b->piece[i].end > elements && b->piece[i].end < s->array.count)
            return b->piece[i].end;
    return s->array.count;
}

/* ---- afterwards ---------------------------------------------------------- */

static oar_status wait_for_pieces(const oari_bucket *b)
{
    for (int i = 0; i < b->begun; i++)
        if (b->piece[i].work != NULL)
            OARI_TRY(oar_work_wait(b->piece[i].work));
    return OAR_OK;
}

oar_status oari_pieces_wait(oar_reducer *r)
{
    oar_status status = OAR_OK;

    if (r->flags_work != NULL)
        status = oar_work_wait(r->flags_work);
    for (int i = 0; i < r->begun && status == OAR_OK; i++) {
        oari_bucket *b = &r->bucket[i];
        status = wait_for_pieces(b);
        if (status == OAR_OK && r->hook.finish != NULL) {
            status = r->hook.finish(r->hook.arg, r->group, &b->is);
            note_done(b->piece, status);
        }
    }
    return status;
}

/* What a piece adds to the time that ended at *end. */
static int64_t time_beyond(const oari_piece *p, int64_t *end)
{
    int64_t from = p->started_ns > *end ? p->started_ns : *end;
    int64_t to = atomic_load(&p->done_ns);

    if (to <= from)
        return 0;
    *end = to;
    return to - from;
}

double oari_pieces_time(const oar_reducer *r)
{
    int64_t sum = 0, end = 0;

    for (int i = 0; i < r->begun; i++)
        for (int k = 0; k < r->bucket[i].begun; k++)
            sum += time_beyond(&r->bucket[i].piece[k], &end);
    return (double)sum * 1e-9;
}
