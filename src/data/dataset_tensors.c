/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_tensors: samples that are slices of tensors, of any strides. */
#include <string.h>

#include "base/status.h"
#include "data/dataset.h"
#include "tensor/cpu/kernels.h"

/* Slice `index` of dim 0, without that dim. */
static oari_array slice_of(const oar_tensor *tensor, int64_t index)
{
    oari_array a = oari_array_of(tensor);
    oari_array slice = { a.data, a.dtype, { .offset = a.at.offset } };

    slice.at.offset += index * a.at.stride[0];
    slice.at.shape.ndim = a.at.shape.ndim - 1;
    for (int d = 1; d < a.at.shape.ndim; d++) {
        slice.at.shape.dim[d - 1] = a.at.shape.dim[d];
        slice.at.stride[d - 1] = a.at.stride[d];
    }
    return slice;
}

static void copy_slice(const oari_array *from, void *row)
{
    oari_array to = { row, from->dtype, oari_layout_rows(from->at.shape) };

    if (oari_layout_is_rows(&from->at))
        memcpy(row, oari_array_data(from),
               (size_t)oari_shape_count(from->at.shape) *
                   oar_dtype_size(from->dtype));
    else
        oari_copy(&to, from);
}

static oar_status copy_sample(const oar_dataset *dataset, int64_t index,
                              int64_t row, oar_tensor *const *field)
{
    for (int i = 0; i < dataset->fields; i++) {
        const oar_tensor *t = dataset->tensor[i];
        oari_array slice = slice_of(t, index);

        if (!oari_tensor_attached(t))
            return oari_fail(OAR_E_STATE,
                             "a batch of a data set whose tensor %d %s is "
                             "detached",
                             i, oari_shape_text(t->at.shape).text);
        copy_slice(&slice, oari_dataset_row(field[i], row));
    }
    return OAR_OK;
}

static void close_tensors(oar_dataset *dataset)
{
    for (int i = 0; i < dataset->fields; i++)
        oar_tensor_release(dataset->tensor[i]);
}

static const oari_dataset_class tensors_class = { .copy = copy_sample,
                                                  .close = close_tensors };

static oar_status check_tensors(int count, oar_tensor *const *tensor)
{
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
    return OAR_OK;
}

oar_status oar_dataset_tensors(int count, oar_tensor *const *tensor,
                               oar_dataset **dataset)
{
    oar_dataset *made;

    OARI_TRY(check_tensors(count, tensor));
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
