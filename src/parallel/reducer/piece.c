/* SPDX-License-Identifier: Apache-2.0 */
/* piece: posts the pieces of buckets and measures how long they took.
 *
 * Pieces are posted one after the other, bucket by bucket: so all ranks post in
 * the same order, whatever the order in which their arrays get ready.
 */
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

/* ---- a bucket before it is posted ---------------------------------------- */

/* Prepares a bucket before its first piece is posted. An array that is not
 * ready is zero, unless its owner has numbers for it. */
static oar_status open_bucket(oar_reducer *r, oari_bucket *b)
{
    b->is.weighted = r->opts.weighted;
    b->is.canonical = r->opts.canonical;
    b->is.weight = r->weight;
    for (int i = 0; i < b->is.arrays; i++) {
        int array = b->is.array[i];
        oari_reducer_array *s = &r->slot[array];
        oar_span place = oari_bucket_place(r, array);
        oar_status status = OAR_OK;

        if (b->told > 0)
            s->given = 1;
        if (b->told > 0 || s->ready)
            continue;
        s->given = r->owner.absent != NULL &&
                   r->owner.absent(r->owner.arg, array, &status);
        OARI_TRY(status);
        if (!s->given)
            OARI_TRY(oari_span_clear(&place));
    }
    return OAR_OK;
}

/* ---- posting ------------------------------------------------------------- */

static void note_done(void *arg, oar_status status)
{
    atomic_store(&((oari_piece *)arg)->done_ns, oari_now_ns());
}

static oar_span span_of(const oari_bucket *b, const oari_piece *p)
{
    const oar_span *data = &b->is.data;

    return oar_span_of((unsigned char *)data->data +
                           p->first * oar_dtype_size(data->dtype),
                       p->end - p->first, data->dtype);
}

/* The last bucket of a GPU is posted by what ends the pass. */
static oar_status begin_on_gpu(oar_reducer *r)
{
    oari_bucket *b = &r->bucket[r->begun];

    OARI_TRY(open_bucket(r, b));
    if (r->begun < r->buckets - 1)
        OARI_TRY(oari_gpu_bucket_post(b->piece));
    b->begun = 1;
    r->begun++;
    r->stats.reduced_bytes += oari_span_bytes(&b->is.data);
    return OAR_OK;
}

/* now: the caller waits for it anyway, so it does the work itself, and the
 * engine's thread is not woken. */
static oar_status post_piece(oar_reducer *r, const oari_bucket *b,
                             oari_piece *p, int now)
{
    oar_work **work = now && !oar_batch_is_open(r->group) ? NULL : &p->work;

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

static oar_status begin_piece(oar_reducer *r, int now)
{
    oari_bucket *b = &r->bucket[r->begun];
    oari_piece *p = &b->piece[b->begun];
    oar_span data = span_of(b, p);

    if (oari_reducer_on_gpu(r))
        return begin_on_gpu(r);
    if (b->begun == 0)
        OARI_TRY(open_bucket(r, b));
    if (is_last_piece(r))
        oari_flags_write(r);
    p->started_ns = oari_now_ns();
    atomic_store(&p->done_ns, 0);
    OARI_TRY(post_piece(r, b, p, now));
    b->begun++;
    r->begun += b->begun == b->pieces;
    r->stats.reduced_bytes += oari_span_bytes(&data);
    if (p->work != NULL)
        return oar_work_then(p->work, note_done, p);
    note_done(p, OAR_OK);
    return OAR_OK;
}

/* Returns whether the next piece may be posted. The last one, which has the
 * flags of all arrays, waits for all of them. */
static int may_begin(const oar_reducer *r)
{
    const oari_bucket *b = &r->bucket[r->begun];

    if (is_last_piece(r) && (r->owner.ends_there || oari_reducer_on_gpu(r)))
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
    const oari_reducer_array *s = &r->slot[array];
    const oari_bucket *b = &r->bucket[s->bucket];

    for (int i = 0; i < b->pieces - 1; i++)
        if (b->piece[i].end > elements && b->piece[i].end < s->array.count)
            return b->piece[i].end;
    return s->array.count;
}

/* ---- afterwards ---------------------------------------------------------- */

oar_status oari_pieces_wait(oar_reducer *r)
{
    oar_status status = OAR_OK;

    if (oari_reducer_on_gpu(r))
        return oari_gpu_buckets_end(r);
    for (int i = 0; i < r->begun && status == OAR_OK; i++) {
        oari_bucket *b = &r->bucket[i];

        for (int k = 0; k < b->begun && status == OAR_OK; k++)
            if (b->piece[k].work != NULL)
                status = oar_work_wait(b->piece[k].work);
        if (status == OAR_OK && r->hook.finish != NULL) {
            status = r->hook.finish(r->hook.arg, r->group, &b->is);
            note_done(b->piece, status);
        }
    }
    return status;
}

double oari_pieces_time(const oar_reducer *r)
{
    int64_t sum = 0, end = 0;

    for (int i = 0; i < r->begun; i++)
        for (int k = 0; k < r->bucket[i].begun; k++) {
            const oari_piece *p = &r->bucket[i].piece[k];
            int64_t from = p->started_ns > end ? p->started_ns : end;
            int64_t to = atomic_load(&p->done_ns);

            if (to > from) { /* only the time that no piece before it has */
                sum += to - from;
                end = to;
            }
        }
    return (double)sum * 1e-9;
}
