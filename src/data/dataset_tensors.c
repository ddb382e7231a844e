/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_tensors: samples that are slices of tensors, of any strides. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "data/dataset.h"
#include "tensor/cpu/kernels.h"

enum { END_SAMPLES = 8 }; /* of each end, that the identity hashes */

static oar_status copy_sample(const oar_dataset *dataset, int64_t index,
                              int64_t row, oar_tensor *const *field)
{
    for (int i = 0; i < dataset->fields; i++) {
        const oar_tensor *t = dataset->tensor[i];
        oari_array slice, to;

        if (!oari_tensor_attached(t))
            return oari_fail(
                OAR_E_STATE, "a batch of a data set with tensor %d, %s %s", i,
                oari_shape_text(t->at.shape).text, oari_absence(t));
        slice = oari_array_of(t);
        slice.at.offset += index * slice.at.stride[0];
        slice.at = oari_layout_drop(slice.at, 0);
        to = oari_host_array(oari_dataset_row(field[i], row), t->dtype,
                             slice.at.shape);
        if (oari_layout_is_rows(&slice.at))
            memcpy(to.data, oari_array_data(&slice),
                   (size_t)oari_shape_count(slice.at.shape) *
                       oar_dtype_size(t->dtype));
        else
            oari_copy(&to, &slice);
    }
    return OAR_OK;
}

/* Hashes the first and last samples, row by row whatever the strides are. */
static oar_status hash_ends(const oar_dataset *d, uint64_t *hash)
{
    oar_tensor *field[OARI_DATASET_FIELDS];
    int64_t index[2 * END_SAMPLES], count = 0;

    for (int64_t i = 0; i < END_SAMPLES && i < d->count; i++) {
        index[count++] = i;
        index[count++] = d->count - 1 - i;
    }
    OARI_TRY(oari_dataset_batch(d, NULL, count, index, field));
    *hash = 0;
    for (int i = 0; i < d->fields; i++) {
        *hash = oari_dataset_hash(*hash, oar_tensor_const_data(field[i]),
                                  (size_t)field[i]->count *
                                      oar_dtype_size(field[i]->dtype));
        oar_tensor_release(field[i]);
    }
    return OAR_OK;
}

static oar_status identify_tensors(const oar_dataset *d,
                                   char text[OARI_IDENTITY_BYTES])
{
    size_t used = 0, bytes = 0;
    uint64_t hash;

    OARI_TRY(hash_ends(d, &hash));
    for (int i = 0; i < d->fields; i++) {
        used += (size_t)snprintf(text + used, OARI_IDENTITY_BYTES - used,
                                 "%s %s %s", i == 0 ? "tensors" : ",",
                                 oar_dtype_name(d->dtype[i]),
                                 oari_shape_text(d->shape[i]).text);
        bytes += (size_t)d->tensor[i]->count * oar_dtype_size(d->dtype[i]);
    }
    snprintf(text + used, OARI_IDENTITY_BYTES - used,
             ", %lld samples, %zu bytes, xxh3 %016llx", (long long)d->count,
             bytes, (unsigned long long)hash);
    return OAR_OK;
}

static void close_tensors(oar_dataset *dataset)
{
    for (int i = 0; i < dataset->fields; i++)
        oar_tensor_release(dataset->tensor[i]);
}

static const oari_dataset_class tensors_class = { .copy = copy_sample,
                                                  .identify = identify_tensors,
                                                  .close = close_tensors };

oar_status oar_dataset_tensors(int count, oar_tensor *const *tensor,
                               oar_dataset **dataset)
{
    oar_dataset *made;

    if (count < 1 || count > OARI_DATASET_FIELDS || tensor == NULL)
        return oari_fail(OAR_E_ARG, "a data set of %d tensors: 1 to %d", count,
                         OARI_DATASET_FIELDS);
    for (int i = 0; i < count; i++) {
        if (tensor[i] == NULL)
            return oari_null("a data set");
        if (tensor[i]->at.shape.ndim == 0)
            return oari_fail(OAR_E_SHAPE,
                             "a data set of a single number: tensor %d has no "
                             "dim 0",
                             i);
        if (tensor[i]->at.shape.dim[0] != tensor[0]->at.shape.dim[0])
            return oari_fail(OAR_E_SHAPE,
                             "a data set of tensors %s and %s: dims 0 differ",
                             oari_shape_text(tensor[0]->at.shape).text,
                             oari_shape_text(tensor[i]->at.shape).text);
    }
    if (dataset == NULL)
        return oari_fail(OAR_E_ARG, "dataset_tensors: nowhere to give it");
    OARI_TRY(oari_dataset_make(&tensors_class, &made));
    made->count = tensor[0]->at.shape.dim[0];
    made->fields = count;
    for (int i = 0; i < count; i++) {
        made->tensor[i] = oar_tensor_retain(tensor[i]);
        made->dtype[i] = tensor[i]->dtype;
        made->shape[i] = tensor[i]->at.shape;
    }
    *dataset = made;
    return OAR_OK;
}
