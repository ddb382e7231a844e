/* SPDX-License-Identifier: Apache-2.0 */
/* dataset: batches of samples, whatever the samples come from. A data set does
 * not change once it is made, so threads may read it at the same time. */
#include "data/dataset.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "tensor/tensor_pool.h"

oar_status oari_dataset_make(const oari_dataset_class *kind,
                             oar_dataset **dataset)
{
    oar_dataset *made = oari_alloc(1, sizeof *made);

    if (made == NULL)
        return OAR_E_NOMEM;
    made->kind = kind;
    made->file.fd = -1;
    *dataset = made;
    return OAR_OK;
}

void oar_dataset_destroy(oar_dataset *dataset)
{
    if (dataset == NULL)
        return;
    dataset->kind->close(dataset);
    oari_free(dataset);
}

int64_t oar_dataset_count(const oar_dataset *dataset)
{
    return dataset != NULL ? dataset->count : 0;
}

int oar_dataset_fields(const oar_dataset *dataset)
{
    return dataset != NULL ? dataset->fields : 0;
}

/* Makes the fields of a batch and copies the samples into them. What it has
 * made when it fails is the caller's to drop. */
static oar_status make_fields(const oar_dataset *dataset, oari_pool *pool,
                              int64_t count, const int64_t *index,
                              oar_tensor **field)
{
    for (int i = 0; i < dataset->fields; i++) {
        oar_shape shape = dataset->shape[i];

        shape.dim[0] = count;
        field[i] = oari_tensor_make(pool, dataset->dtype[i], shape);
        if (field[i] == NULL)
            return oar_last_error()->status;
    }
    if (dataset->kind->open != NULL)
        OARI_TRY(dataset->kind->open(dataset, count, index));
    for (int64_t i = 0; i < count; i++)
        OARI_TRY(dataset->kind->copy(dataset, index[i], i, field));
    return OAR_OK;
}

oar_status oari_dataset_batch(const oar_dataset *dataset, oari_pool *pool,
                              int64_t count, const int64_t *index,
                              oar_tensor **field)
{
    oar_tensor *made[OARI_DATASET_FIELDS] = { 0 };
    oar_status status;

    for (int64_t i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= dataset->count)
            return oari_fail(OAR_E_ARG, "sample %lld of a data set with %lld",
                             (long long)index[i], (long long)dataset->count);
    status = make_fields(dataset, pool, count, index, made);
    for (int i = 0; i < dataset->fields; i++)
        if (status == OAR_OK)
            field[i] = made[i];
        else
            oari_tensor_drop(pool, made[i]);
    return status;
}

oar_status oar_dataset_batch(const oar_dataset *dataset, int64_t count,
                             const int64_t *index, oar_tensor **field)
{
    if (dataset == NULL || field == NULL)
        return oari_fail(OAR_E_ARG, "dataset_batch: no data set or nowhere to "
                                    "give the fields");
    if (count < 0 || (count > 0 && index == NULL))
        return oari_fail(OAR_E_ARG, "a batch of %lld samples: none given",
                         (long long)count);
    return oari_dataset_batch(dataset, NULL, count, index, field);
}

uint64_t oari_dataset_hash(uint64_t before, const void *data, size_t bytes)
{
    return oari_hash64(data, bytes, before);
}

oar_status oar_dataset_identity(const oar_dataset *dataset, char **text)
{
    char made[OARI_IDENTITY_BYTES], *copy;

    if (dataset == NULL || text == NULL)
        return oari_fail(OAR_E_ARG, "dataset_identity: no data set or nowhere "
                                    "to give it");
    OARI_TRY(dataset->kind->identify(dataset, made));
    copy = oari_strdup(made);
    if (copy == NULL)
        return OAR_E_NOMEM;
    *text = copy;
    return OAR_OK;
}
