/* SPDX-License-Identifier: Apache-2.0 */
/* hook_half: sends buckets as f16 or bf16. Half types are summed in f32 and
 * rounded once, so each number is rounded twice: before and after the sum. */
#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"

typedef struct half {
    oar_dtype dtype;
    int buckets;
    oar_storage **storage; /* by bucket */
} half;

/* Gives memory for the bucket's numbers as half, made at its first pass. */
static oar_status room_for(half *h, const oar_bucket *b, oar_span *room)
{
    size_t bytes = b->data.count * oar_dtype_size(h->dtype);

    if (h->storage == NULL) {
        h->storage = oari_alloc((size_t)b->buckets, sizeof(oar_storage *));
        if (h->storage == NULL)
            return OAR_E_NOMEM;
        h->buckets = b->buckets;
    }
    if (h->storage[b->index] == NULL)
        OARI_TRY(oar_storage_create(bytes, 1, &h->storage[b->index]));
    *room = oar_span_of(oar_storage_data(h->storage[b->index]), b->data.count,
                        h->dtype);
    return OAR_OK;
}

static oar_status start_half(void *arg, oar_group *group, const oar_bucket *b,
                             oar_work **work)
{
    half *h = arg;
    oar_span room = b->data;

    if (oar_dtype_size(b->data.dtype) > 2) {
        OARI_TRY(room_for(h, b, &room));
        oari_convert(room.data, room.dtype, b->data.data, b->data.dtype,
                     room.count);
    }
    return oar_all_reduce(group, room, oari_bucket_op(b),
                          OAR_OPTS(oar_call_opts, .label = "half gradients",
                                   .weight = b->weight,
                                   .canonical = b->canonical),
                          work);
}

static oar_status finish_half(void *arg, oar_group *group, const oar_bucket *b)
{
    half *h = arg;

    if (oar_dtype_size(b->data.dtype) > 2)
        oari_convert(b->data.data, b->data.dtype,
                     oar_storage_data(h->storage[b->index]), h->dtype,
                     b->data.count);
    return OAR_OK;
}

static void forget_half(void *arg, int for_good)
{
    half *h = arg;

    for (int i = 0; i < h->buckets; i++)
        oar_storage_release(h->storage[i]);
    oari_free(h->storage);
    h->storage = NULL;
    h->buckets = 0;
    if (for_good)
        oari_free(h);
}

oar_status oar_hook_half(oar_dtype dtype, oar_reduce_hook *hook)
{
    oar_reduce_hook made = { .size = sizeof made,
                             .start = start_half,
                             .finish = finish_half,
                             .forget = forget_half };
    half *h;

    if (hook == NULL || (dtype != OAR_F16 && dtype != OAR_BF16))
        return oari_fail(OAR_E_ARG, "hook_half %s",
                         hook == NULL ? "without a place for it"
                                      : "of a dtype that is not f16 or "
                                        "bf16");
    if ((h = oari_alloc(1, sizeof *h)) == NULL)
        return OAR_E_NOMEM;
    h->dtype = dtype;
    made.arg = h;
    return oari_struct_give(hook, &made, sizeof made, "hook");
}
