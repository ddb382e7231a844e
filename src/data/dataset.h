/* SPDX-License-Identifier: Apache-2.0 */
/* data/dataset.h: what a data set is inside the library: how many samples, what
 * the fields of one look like, and a function that copies one sample into its
 * row of a batch. */
#ifndef OARI_DATA_DATASET_H
#define OARI_DATA_DATASET_H

#include <oarsong/data.h>

#include "tensor/tensor.h"

enum { OARI_DATASET_FIELDS = 4, OARI_IDENTITY_BYTES = 2048 };

typedef struct oari_dataset_class {
    /* (optional) Called before a batch of these samples, which exist. */
    oar_status (*open)(const oar_dataset *dataset, int64_t count,
                       const int64_t *index);
    /* Writes sample `index`, which exists, to row `row` of each field. */
    oar_status (*copy)(const oar_dataset *dataset, int64_t index, int64_t row,
                       oar_tensor *const *field);
    /* Writes oar_dataset_identity's text. */
    oar_status (*identify)(const oar_dataset *dataset,
                           char text[OARI_IDENTITY_BYTES]);
    void (*close)(oar_dataset *dataset); /* copes with a half-made one */
} oari_dataset_class;

struct oar_dataset {
    const oari_dataset_class *kind;
    int64_t count;
    int fields;
    oar_dtype dtype[OARI_DATASET_FIELDS];
    oar_shape shape[OARI_DATASET_FIELDS];    /* of a batch; dim 0 is its size */
    oar_tensor *tensor[OARI_DATASET_FIELDS]; /* of a tensor set */
    struct {                                 /* of a token set */
        int fd;
        char *map; /* bytes of it, to read only; or NULL */
        size_t bytes;
        size_t header; /* of these bytes, before the first token */
        oar_dtype dtype;
        int64_t length, stride;
        char *path;
    } file;
};

/* Makes an empty data set of a kind, to be filled in. */
oar_status oari_dataset_make(const oari_dataset_class *kind,
                             oar_dataset **dataset);

/* Does what oar_dataset_batch does, with tensors from a pool (NULL: from the
 * system). */
oar_status oari_dataset_batch(const oar_dataset *dataset, oari_pool *pool,
                              int64_t count, const int64_t *index,
                              oar_tensor **field);

/* Returns a hash of bytes, and of what was hashed before (0: nothing). */
uint64_t oari_dataset_hash(uint64_t before, const void *data, size_t bytes);

/* Returns where row `row` of a contiguous field begins. */
static inline void *oari_dataset_row(const oar_tensor *field, int64_t row)
{
    int64_t rows = field->at.shape.dim[0];
    int64_t each = rows > 0 ? field->count / rows : 0;

    return (char *)oar_tensor_data(field) +
           row * each * (int64_t)oar_dtype_size(field->dtype);
}

#endif
