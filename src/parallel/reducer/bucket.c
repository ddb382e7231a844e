/* SPDX-License-Identifier: Apache-2.0 */
/* bucket: which array lies where. Arrays of one dtype go into a bucket until it
 * is full, each on a cache line of its own. Behind the last bucket's arrays lie
 * the flags: one number for each array, 1 on ranks that have one. They are
 * reduced with the rest, and what comes out zero was used nowhere. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

enum {
    LINE = 64,
    DEFAULT_FIRST = 1 << 20,
    DEFAULT_MOST = 25 << 20,
    DEFAULT_LEAST = 256 << 10,
    DEFAULT_PARTS = 16
};

static size_t rounded(size_t count, oar_dtype dtype)
{
    size_t unit = LINE / oar_dtype_size(dtype);

    return (count + unit - 1) / unit * unit;
}

/* A small part of all, because what is in the last bucket cannot be hidden
 * behind the rest of the pass. Where nothing can be hidden, the fewer the
 * better. */
static size_t usual_limit(const oar_reducer *r)
{
    size_t all = 0, part;

    if (!oar_group_overlaps(r->group))
        return DEFAULT_MOST;
    for (int i = 0; i < r->arrays; i++)
        all += r->slot[i].array.count * oar_dtype_size(r->slot[i].array.dtype);
    part = all / DEFAULT_PARTS;
    if (part < DEFAULT_LEAST)
        return DEFAULT_LEAST;
    return part < DEFAULT_MOST ? part : DEFAULT_MOST;
}

void oari_buckets_settle(oar_reducer *r)
{
    oar_reducer_opts *o = &r->opts;
    size_t first = DEFAULT_FIRST;

    if (o->bucket_bytes == 0) {
        o->bucket_bytes = usual_limit(r);
        if (!oar_group_overlaps(r->group))
            first = o->bucket_bytes;
    }
    if (o->first_bucket_bytes == 0)
        o->first_bucket_bytes = first;
}

/* Bytes that a bucket may hold. The first is small: it can go early. */
static size_t limit_of(const oar_reducer *r, int index)
{
    size_t limit = r->opts.bucket_bytes, first = r->opts.first_bucket_bytes;

    if (index > 0 || limit == SIZE_MAX)
        return limit;
    return first < limit ? first : limit;
}

/* The open bucket of this dtype if the array fits, else a new one. Only the
 * newest of a dtype is open. */
static int bucket_for(const oar_reducer *r, oari_bucket *bucket, int *buckets,
                      const oar_span *array)
{
    size_t size = oar_dtype_size(array->dtype);
    size_t bytes = rounded(array->count, array->dtype) * size;

    for (int i = *buckets - 1; i >= 0; i--) {
        if (bucket[i].is.data.dtype != array->dtype)
            continue;
        if (bucket[i].is.data.count * size + bytes <= limit_of(r, i))
            return i;
        break;
    }
    bucket[*buckets].is.data.dtype = array->dtype;
    return (*buckets)++;
}

static int deal_out(oar_reducer *r, oari_bucket *bucket)
{
    int buckets = 0;

    for (int i = 0; i < r->arrays; i++) {
        oari_slot *s = &r->slot[r->order[i]];
        oari_bucket *b;

        s->bucket = bucket_for(r, bucket, &buckets, &s->array);
        b = &bucket[s->bucket];
        s->at = b->is.data.count;
        b->is.data.count += rounded(s->array.count, s->array.dtype);
        b->is.arrays++;
        b->expected += !s->skipped;
    }
    return buckets;
}

/* Lists the arrays bucket by bucket, as hooks see them. */
static void list_arrays(oar_reducer *r, oari_bucket *bucket, int buckets)
{
    int *listed = r->came; /* is free between passes */
    int n = 0;

    for (int b = 0; b < buckets; b++) {
        bucket[b].is.array = r->order + n;
        bucket[b].is.at = r->at + n;
        bucket[b].is.count = r->count + n;
        for (int i = 0; i < r->arrays; i++) {
            const oari_slot *s = &r->slot[r->order[i]];
            if (s->bucket != b)
                continue;
            listed[n] = r->order[i];
            r->at[n] = s->at;
            r->count[n++] = s->array.count;
        }
    }
    memcpy(r->order, listed, (size_t)n * sizeof *listed);
}

/* Pieces cost operations, and are for a gradient that is computed row by row
 * while they go. Hooks and slices want whole buckets; and how a product is cut
 * may show in its bits, which the canonical ones do not allow. */
static int in_pieces(const oar_reducer *r)
{
    return oar_group_overlaps(r->group) && r->opts.hook == NULL &&
           !r->opts.canonical && !r->scatter;
}

/* How many equal ones a bucket of so many bytes makes. An array that is larger
 * than the limit is alone in its bucket. */
static size_t pieces_of(const oar_reducer *r, size_t bytes)
{
    size_t limit = r->opts.bucket_bytes, most = OARI_MAX_PIECES - 1;

    if (!in_pieces(r) || bytes <= limit)
        return 1;
    return bytes / limit < most ? (bytes + limit - 1) / limit : most;
}

static void add_piece(oari_bucket *b, size_t end)
{
    oari_piece *p = &b->piece[b->pieces];

    p->first = b->pieces > 0 ? b->piece[b->pieces - 1].end : 0;
    p->end = end;
    b->pieces += end > p->first || b->is.data.count == 0;
}

/* Equal ones, on lines; but of the last, behind which nothing is left to be
 * computed, three quarters go before the rest. The flags go with that. */
static void cut_pieces(const oar_reducer *r, oari_bucket *b)
{
    const oar_span *data = &b->is.data;
    int last = b->is.index == b->is.buckets - 1;
    size_t count = last ? r->flags_at : data->count;
    size_t n = pieces_of(r, count * oar_dtype_size(data->dtype));

    for (size_t i = 1; i < n; i++)
        add_piece(b, rounded(count / n * i, data->dtype));
    if (n > 1)
        add_piece(b, rounded(count - count / n / 4, data->dtype));
    add_piece(b, data->count);
}

static oar_status take_memory(oari_bucket *b, int index, int buckets)
{
    oar_span *data = &b->is.data;

    OARI_TRY(oar_storage_create(data->count * oar_dtype_size(data->dtype), 1,
                                &b->storage));
    *data = oar_span_of(oar_storage_data(b->storage), data->count, data->dtype);
    memset(data->data, 0, data->count * oar_dtype_size(data->dtype));
    b->is.size = sizeof b->is;
    b->is.index = index;
    b->is.buckets = buckets;
    return OAR_OK;
}

void oari_buckets_drop(oari_bucket *bucket, int buckets)
{
    for (int i = 0; i < buckets; i++)
        oar_storage_release(bucket[i].storage);
    oari_free(bucket);
}

/* So that all slices are equal, and begin on a line. */
static void even_out(const oar_reducer *r, oar_span *data)
{
    size_t ranks = (size_t)oar_group_size(r->group);
    size_t part = (data->count + ranks - 1) / ranks;

    data->count = rounded(part, data->dtype) * ranks;
}

oar_status oari_buckets_cut(oar_reducer *r, oari_bucket **old, int *olds)
{
    oari_bucket *bucket = oari_alloc((size_t)r->arrays + 1, sizeof *bucket);
    oar_status status = OAR_OK;
    oar_span *last;
    int buckets;

    if (bucket == NULL)
        return OAR_E_NOMEM;
    buckets = deal_out(r, bucket);
    if (buckets > 0) {
        last = &bucket[buckets - 1].is.data;
        r->flags_at = last->count;
        last->count += rounded((size_t)r->arrays, last->dtype);
    }
    for (int i = 0; i < buckets && r->scatter; i++)
        even_out(r, &bucket[i].is.data);
    list_arrays(r, bucket, buckets);
    for (int i = 0; i < buckets && status == OAR_OK; i++)
        status = take_memory(&bucket[i], i, buckets);
    if (status != OAR_OK) {
        oari_buckets_drop(bucket, buckets);
        return status;
    }
    for (int i = 0; i < buckets; i++)
        cut_pieces(r, &bucket[i]);
    *old = r->bucket;
    *olds = r->buckets;
    r->bucket = bucket;
    r->buckets = buckets;
    return OAR_OK;
}

oar_span oari_bucket_place(const oar_reducer *r, int array)
{
    const oari_slot *s = &r->slot[array];
    const oar_span *data = &r->bucket[s->bucket].is.data;

    return oar_span_of((unsigned char *)data->data +
                           s->at * oar_dtype_size(data->dtype),
                       s->array.count, data->dtype);
}

oar_span oari_bucket_slice(const oar_reducer *r, int bucket, int rank)
{
    const oar_span *data = &r->bucket[bucket].is.data;
    size_t part = data->count / (size_t)oar_group_size(r->group);

    return oar_span_of((unsigned char *)data->data +
                           part * (size_t)rank * oar_dtype_size(data->dtype),
                       part, data->dtype);
}

/* ---- flags --------------------------------------------------------------- */

static unsigned char *flag_of(const oar_reducer *r, int array)
{
    const oar_span *data = &r->bucket[r->buckets - 1].is.data;

    return (unsigned char *)data->data +
           (r->flags_at + (size_t)array) * oar_dtype_size(data->dtype);
}

void oari_flags_write(oar_reducer *r)
{
    oar_dtype dtype = r->bucket[r->buckets - 1].is.data.dtype;

    for (int i = 0; i < r->arrays; i++) {
        float flag = r->slot[i].given ? 1.0f : 0.0f;
        if (r->scatter) {
            r->flags[i] = r->weight > 0 ? flag : 0;
            continue;
        }
        oari_convert(flag_of(r, i), dtype, &flag, OAR_F32, 1);
    }
}

void oari_flags_read(oar_reducer *r)
{
    oar_dtype dtype = r->bucket[r->buckets - 1].is.data.dtype;

    for (int i = 0; i < r->arrays; i++) {
        float flag = r->scatter ? r->flags[i] : 0;
        if (!r->scatter)
            oari_convert(&flag, OAR_F32, flag_of(r, i), dtype, 1);
        r->slot[i].used = flag != 0;
    }
}
