/* SPDX-License-Identifier: Apache-2.0 */
/* bucket: assigns arrays to buckets. Arrays of one dtype fill a bucket, each on
 * cache lines of its own. After the last bucket's arrays come the flags: one
 * number for each array, 1 on ranks that have a gradient. They are reduced with
 * the rest; a flag that is zero then belongs to an array that no rank used. On
 * a GPU the flags are exchanged by the host (gpu_bucket.c). */
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

static size_t round_to_line(size_t count, oar_dtype dtype)
{
    size_t unit = LINE / oar_dtype_size(dtype);

    return (count + unit - 1) / unit * unit;
}

/* By default a bucket holds a small part of all, because the reduction of the
 * last bucket cannot overlap the rest of the pass. Without overlap, the fewer
 * buckets the better. */
void oari_buckets_set_limits(oar_reducer *r)
{
    oar_reducer_opts *o = &r->opts;
    int overlaps = oar_group_overlaps(r->group);
    size_t first = DEFAULT_FIRST, part = 0;

    if (oari_reducer_on_gpu(r) && o->bucket_bytes == 0)
        o->bucket_bytes = DEFAULT_MOST;

    if (o->bucket_bytes == 0) {
        for (int i = 0; i < r->arrays; i++)
            part += oari_span_bytes(&r->slot[i].array);
        part /= DEFAULT_PARTS;
        if (part < DEFAULT_LEAST)
            part = DEFAULT_LEAST;
        if (part > DEFAULT_MOST || !overlaps)
            part = DEFAULT_MOST;
        o->bucket_bytes = part;
        if (!overlaps)
            first = part;
    }
    if (o->first_bucket_bytes == 0)
        o->first_bucket_bytes = first;
}

/* Returns the newest bucket of this dtype if the array fits, else a new one.
 * The first bucket is small, so that it can be reduced early. */
static int bucket_for(const oar_reducer *r, oari_bucket *bucket, int *buckets,
                      const oar_span *array)
{
    size_t size = oar_dtype_size(array->dtype);
    size_t bytes = round_to_line(array->count, array->dtype) * size;

    for (int i = *buckets - 1; i >= 0; i--) {
        size_t limit = r->opts.bucket_bytes, first = r->opts.first_bucket_bytes;

        if (bucket[i].is.data.dtype != array->dtype)
            continue;
        if (i == 0 && limit != SIZE_MAX && first < limit)
            limit = first;
        if (bucket[i].is.data.count * size + bytes <= limit)
            return i;
        break;
    }
    bucket[*buckets].is.data.dtype = array->dtype;
    return (*buckets)++;
}

static int assign_arrays(oar_reducer *r, oari_bucket *bucket)
{
    int buckets = 0;

    for (int i = 0; i < r->arrays; i++) {
        oari_reducer_array *s = &r->slot[r->order[i]];
        oari_bucket *b;

        s->bucket = bucket_for(r, bucket, &buckets, &s->array);
        b = &bucket[s->bucket];
        s->at = b->is.data.count;
        b->is.data.count += round_to_line(s->array.count, s->array.dtype);
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
            const oari_reducer_array *s = &r->slot[r->order[i]];
            if (s->bucket != b)
                continue;
            listed[n] = r->order[i];
            r->at[n] = s->at;
            r->count[n++] = s->array.count;
        }
    }
    memcpy(r->order, listed, (size_t)n * sizeof *listed);
}

static void add_piece(oari_bucket *b, size_t end)
{
    oari_piece *p = &b->piece[b->pieces];

    p->first = b->pieces > 0 ? b->piece[b->pieces - 1].end : 0;
    p->end = end;
    b->pieces += end > p->first || b->is.data.count == 0;
}

/* Divides a bucket into equal pieces that begin on cache lines, if its gradient
 * can be computed row by row while the first pieces are reduced: the bucket is
 * larger than the limit, so it has one array. Hooks need whole buckets, and
 * `canonical` does not allow pieces, because they may change the bits of a
 * product. Of the last piece, after which nothing is left to compute, three
 * quarters go before the rest. The flags go with that rest. */
static void cut_pieces(const oar_reducer *r, oari_bucket *b)
{
    const oar_span *data = &b->is.data;
    int last = b->is.index == b->is.buckets - 1;
    int may_cut = oar_group_overlaps(r->group) && r->opts.hook == NULL &&
                  !r->opts.canonical && !oari_reducer_on_gpu(r);
    size_t count = last ? r->flags_at : data->count;
    size_t bytes = count * oar_dtype_size(data->dtype), n = 1;
    size_t limit = r->opts.bucket_bytes, most = OARI_MAX_PIECES - 1;

    if (may_cut && bytes > limit)
        n = bytes / limit < most ? (bytes + limit - 1) / limit : most;
    for (size_t i = 1; i < n; i++)
        add_piece(b, round_to_line(count / n * i, data->dtype));
    if (n > 1)
        add_piece(b, round_to_line(count - count / n / 4, data->dtype));
    add_piece(b, data->count);
}

static oar_status alloc_bucket(oar_reducer *r, oari_bucket *b, int index,
                               int buckets)
{
    oar_span *data = &b->is.data;

    if (oari_reducer_on_gpu(r))
        OARI_TRY(oar_storage_create_on(r->device, oari_span_bytes(data),
                                       &b->storage));
    else
        OARI_TRY(oar_storage_create(oari_span_bytes(data), 1, &b->storage));
    *data = oar_span_of(oar_storage_data(b->storage), data->count, data->dtype);
    data->device = r->device;
    b->is.storage = b->storage;
    b->is.size = sizeof b->is;
    b->is.index = index;
    b->is.buckets = buckets;
    for (int i = 0; i < OARI_MAX_PIECES; i++) {
        b->piece[i].reducer = r;
        b->piece[i].bucket = index;
    }
    return oari_span_clear(data);
}

void oari_buckets_drop(oari_bucket *bucket, int buckets)
{
    for (int i = 0; i < buckets; i++)
        oar_storage_release(bucket[i].storage);
    oari_free(bucket);
}

oar_status oari_buckets_make(oar_reducer *r, oari_bucket **old, int *olds)
{
    oari_bucket *bucket = oari_alloc((size_t)r->arrays + 1, sizeof *bucket);
    oar_status status = OAR_OK;
    oar_span *last;
    int buckets;

    if (bucket == NULL)
        return OAR_E_NOMEM;
    buckets = assign_arrays(r, bucket);
    if (buckets > 0 && oari_reducer_on_gpu(r))
        r->flags_at = bucket[buckets - 1].is.data.count;
    else if (buckets > 0) {
        last = &bucket[buckets - 1].is.data;
        r->flags_at = last->count;
        last->count += round_to_line((size_t)r->arrays, last->dtype);
    }
    list_arrays(r, bucket, buckets);
    for (int i = 0; i < buckets && status == OAR_OK; i++)
        status = alloc_bucket(r, &bucket[i], i, buckets);
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
    const oari_reducer_array *s = &r->slot[array];
    const oar_span *data = &r->bucket[s->bucket].is.data;
    oar_span place = oar_span_of((unsigned char *)data->data +
                                     s->at * oar_dtype_size(data->dtype),
                                 s->array.count, data->dtype);

    place.device = data->device;
    return place;
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
        oari_convert(flag_of(r, i), dtype, &flag, OAR_F32, 1);
    }
}

void oari_flags_read(oar_reducer *r)
{
    oar_dtype dtype = r->bucket[r->buckets - 1].is.data.dtype;

    for (int i = 0; i < r->arrays; i++) {
        float flag;
        oari_convert(&flag, OAR_F32, flag_of(r, i), dtype, 1);
        r->slot[i].used = flag != 0;
    }
}
