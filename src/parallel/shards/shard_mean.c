/* SPDX-License-Identifier: Apache-2.0 */
/* shard_mean: where a reduction leaves the mean of gradients, and how it gets
 * into the shards.
 *
 * The mean goes straight to the shards if they have no gradient yet and its
 * dtype. Else it is left in this rank's part of the whole gradient or, if that
 * is a half and the sum is not, in memory of its own, and then added. For
 * shards in memory of the host it is always in memory of its own on the GPU.
 */
#include "base/dtype.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "parallel/shards/shards.h"

enum { BLOCK = 256 };

int oari_flat_has_grads(const oar_shards *s, const oari_flat *flat)
{
    for (int i = 0; i < flat->shards; i++)
        if (oar_tensor_grad(s->shard[flat->first_shard + i].tensor) != NULL)
            return 1;
    return 0;
}

/* Whether the mean is reduced straight into the gradients of the shards. */
static int stores_mean(const oar_shards *s, const oari_flat *flat)
{
    return flat->mean_dtype == flat->dtype && !s->opts.host_state &&
           !oari_flat_has_grads(s, flat);
}

oar_span oari_mean_of(const oar_shards *s, const oari_flat *flat)
{
    unsigned char *data;

    if (stores_mean(s, flat))
        data = (unsigned char *)oar_storage_data(s->grads) + flat->grad_at;
    else if (flat->mean != NULL)
        data = flat->mean->data;
    else
        data = (unsigned char *)flat->grad->data +
               flat->first * oar_dtype_size(flat->whole_dtype);
    return oari_span_on(s->device, data, flat->counts[s->part],
                        flat->mean_dtype);
}

/* Adds numbers of the same dtype. */
static void add_same(oar_span to, const void *from)
{
    const void *source[2] = { to.data, from };
    oari_reduction sum = { .kind = OAR_REDUCE_OP_SUM,
                           .dtype = to.dtype,
                           .sources = 2,
                           .source = source,
                           .destinations = 1,
                           .destination = &to.data };

    oari_reduce(&sum, to.count);
}

static void add_to(oar_span to, const unsigned char *from, oar_dtype dtype)
{
    size_t size = oar_dtype_size(dtype), width = oar_dtype_size(to.dtype);
    double wide[BLOCK]; /* of to's dtype */

    if (to.dtype == dtype) {
        add_same(to, from);
        return;
    }
    for (size_t i = 0; i < to.count; i += BLOCK) {
        size_t count = to.count - i < BLOCK ? to.count - i : BLOCK;

        oari_convert(wide, to.dtype, from + i * size, dtype, count);
        add_same(
            oar_span_of((unsigned char *)to.data + i * width, count, to.dtype),
            wide);
    }
}

void oari_shards_add_mean(const oar_shards *s, const oari_flat *flat,
                          oar_span mean)
{
    size_t size = oar_dtype_size(mean.dtype);

    for (int i = 0; i < flat->shards; i++) {
        const oar_shard *shard = &s->shard[flat->first_shard + i];
        size_t at = s->array[shard->array].at + shard->first - flat->first;
        const unsigned char *from = (unsigned char *)mean.data + at * size;

        if (oar_tensor_grad(shard->tensor) != NULL)
            add_to(shard->grad, from, mean.dtype);
        else
            oari_convert(shard->grad.data, shard->grad.dtype, from, mean.dtype,
                         shard->grad.count);
    }
}

/* The same on a GPU. */
static oar_status add_gpu_mean(oar_shards *s, const oari_flat *flat)
{
    oari_whole_buffer *in = flat->mean != NULL ? flat->mean : flat->grad;
    oar_span mean = oari_mean_of(s, flat);
    size_t begin =
        (size_t)((unsigned char *)mean.data - (unsigned char *)in->data);

    for (int i = 0; i < flat->shards; i++) {
        const oar_shard *shard = &s->shard[flat->first_shard + i];
        size_t at = s->array[shard->array].at + shard->first - flat->first;
        oari_numbers from = { in->storage,
                              begin + at * oar_dtype_size(mean.dtype),
                              shard->count, mean.dtype };
        oari_numbers to = { s->grads,
                            flat->grad_at + at * oar_dtype_size(flat->dtype),
                            shard->count, flat->dtype };

        OARI_TRY(oar_tensor_grad(shard->tensor) != NULL
                     ? oari_numbers_add(&to, &from)
                     : oari_numbers_copy(&to, &from));
    }
    return OAR_OK;
}

oar_status oari_mean_give(oar_shards *s, oari_flat *flat)
{
    if (s->opts.host_state)
        return oari_offload_land(s, flat);
    if (stores_mean(s, flat))
        return OAR_OK;
    if (oari_shards_on_gpu(s))
        return add_gpu_mean(s, flat);
    oari_shards_add_mean(s, flat, oari_mean_of(s, flat));
    return OAR_OK;
}

oar_status oari_mean_open(oar_shards *s, oari_flat *flat)
{
    size_t bytes = flat->counts[s->part] * oar_dtype_size(flat->mean_dtype);

    if (!s->opts.host_state &&
        (stores_mean(s, flat) || flat->mean_dtype == flat->whole_dtype))
        return OAR_OK;
    return oari_buffer_take(&s->grads_pool, bytes, &flat->mean);
}
