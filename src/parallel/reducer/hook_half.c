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

static oar_status make_room(const half *h, const oar_bucket *b,
                            oar_storage **room)
{
    size_t bytes = b->data.count * oar_dtype_size(h->dtype);

    return b->data.device.kind == OAR_CPU
               ? oar_storage_create(bytes, 1, room)
               : oar_storage_create_on(b->data.device, bytes, room);
}

/* Gives memory for the bucket's numbers as half, made at its first pass. */
static oar_status room_for(half *h, const oar_bucket *b, oar_span *room)
{

    if (h->storage == NULL) {
        h->storage = oari_alloc((size_t)b->buckets, sizeof(oar_storage *));
        if (h->storage == NULL)
            return OAR_E_NOMEM;
        h->buckets = b->buckets;
    }
    if (h->storage[b->index] == NULL)
        OARI_TRY(make_room(h, b, &h->storage[b->index]));
    *room = oar_span_of(oar_storage_data(h->storage[b->index]), b->data.count,
                        h->dtype);
    room->device = b->data.device;
    return OAR_OK;
}

static oar_tensor *view_of(oar_storage *storage, oar_dtype dtype,
                           const oar_bucket *b)
{
    return oar_view_of(NULL, storage, 0, dtype,
                       OAR_SHAPE((int64_t)b->data.count));
}

/* Copies the bucket to its room, or back, on either device. */
static oar_status convert_bucket(const half *h, const oar_bucket *b, int back)
{
    oar_tensor *room = view_of(h->storage[b->index], h->dtype, b);
    oar_tensor *data = view_of(b->storage, b->data.dtype, b);
    oar_status status =
        room == NULL || data == NULL
            ? oar_last_error()->status
            : oar_tensor_copy(back ? data : room, back ? room : data);

    oar_tensor_release(room);
    oar_tensor_release(data);
    return status;
}

static oar_status start_half(void *arg, oar_group *group, const oar_bucket *b,
                             oar_work **work)
{
    half *h = arg;
    oar_span room = b->data;

    if (oar_dtype_size(b->data.dtype) > 2) {
        OARI_TRY(room_for(h, b, &room));
        OARI_TRY(convert_bucket(h, b, 0));
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

    return oar_dtype_size(b->data.dtype) > 2 ? convert_bucket(h, b, 1) : OAR_OK;
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
