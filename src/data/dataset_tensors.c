/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_tensors: samples that are slices of tensors, of any strides. */
#include <string.h>

#include "base/status.h"
#include "data/dataset.h"
#include "tensor/cpu/kernels.h"

static oar_status copy_sample(const oar_dataset *dataset, int64_t index,
                              int64_t row, oar_tensor *const *field)
{
    for (int i = 0; i < dataset->fields; i++) {
        const oar_tensor *t = dataset->tensor[i];
        oari_array slice, to;

        if (!oari_tensor_attached(t))
            return oari_fail(OAR_E_STATE,
                             "a batch of a data set whose tensor %d %s is "
                             "detached",
                             i, oari_shape_text(t->at.shape).text);
        slice = oari_array_of(t);
        slice.at.offset += index * slice.at.stride[0];
        slice.at = oari_layout_drop(slice.at, 0);
        to = (oari_array){ oari_dataset_row(field[i], row), t->dtype,
                           oari_layout_rows(slice.at.shape) };
        if (oari_layout_is_rows(&slice.at))
            memcpy(to.data, oari_array_data(&slice),
                   (size_t)oari_shape_count(slice.at.shape) *
                       oar_dtype_size(t->dtype));
        else
            oari_copy(&to, &slice);
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
