/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_hash: one number that tells whether tensors hold the same bytes. */
#include <oarsong/device.h>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

oar_status oari_hash_add(const oari_array *to, const oari_array *a,
                         uint64_t seed)
{
    uint64_t *sum = oari_array_data(to);

    *sum += oari_hash64(
        oari_array_data(a),
        (size_t)oari_shape_count(a->at.shape) * oar_dtype_size(a->dtype), seed);
    return OAR_OK;
}

static oar_status check_tensor(const oar_tensor *t, const oar_tensor *to)
{
    if (t == NULL)
        return oari_null("tensor_hash");
    if (!oari_tensor_attached(t) || !oari_layout_is_rows(&t->at))
        return oari_fail(OAR_E_STATE,
                         "tensor_hash of a tensor %s that is not contiguous, "
                         "or whose data is away",
                         oari_shape_text(t->at.shape).text);
    if (!oari_device_equal(oari_device_of(t), oari_device_of(to)))
        return oari_fail(OAR_E_DEVICE,
                         "tensor_hash of a tensor %s on %s into one on %s",
                         oari_shape_text(t->at.shape).text,
                         oar_device_text(oari_device_of(t)).text,
                         oar_device_text(oari_device_of(to)).text);
    return OAR_OK;
}

oar_status oar_tensor_hash(int count, oar_tensor *const *tensor, oar_tensor *to)
{
    oari_array sum;

    if (to == NULL || (count > 0 && tensor == NULL))
        return oari_null("tensor_hash");
    if (to->dtype != OAR_U64 || to->count != 1)
        return oari_fail(OAR_E_ARG, "tensor_hash into %s %s: it is one u64",
                         oar_dtype_name(to->dtype),
                         oari_shape_text(to->at.shape).text);
    for (int i = 0; i < count; i++)
        OARI_TRY(check_tensor(tensor[i], to));
    OARI_TRY(oar_tensor_fill(to, 0));
    sum = oari_array_of(to);
    for (int i = 0; i < count; i++) {
        oari_array a = oari_array_of(tensor[i]);

        if (tensor[i]->count > 0)
            OARI_TRY(OARI_KERNEL(&sum, hash_add, &sum, &a, (uint64_t)i));
    }
    return OAR_OK;
}
