/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/walk.h: goes through up to three arrays at once, row after row.
 *
 * Dims that lie like one dim in every array are merged first, so contiguous
 * arrays are a single row. A function is called per row, never per element. */
#ifndef OARI_TENSOR_WALK_H
#define OARI_TENSOR_WALK_H

#include "tensor/tensor.h"

enum { OARI_WALK_ARRAYS = 3 };

typedef struct oari_row {
    int64_t count;                    /* elements, at least 1 */
    void *data[OARI_WALK_ARRAYS];     /* the first of them */
    int64_t stride[OARI_WALK_ARRAYS]; /* in elements; 0: the same one again */
} oari_row;

typedef void (*oari_row_fn)(const oari_row *row, void *arg);

/* Calls fn for each row of shape, in order. Every array broadcasts to it. */
void oari_walk(oar_shape shape, int arrays, const oari_array *const *array,
               oari_row_fn fn, void *arg);

/* Loops over a row with y (to be written) and a, b at each element: Y is a
 * pointer, A and B are values. Strides of 1 and 0 have loops of their own,
 * which the compiler turns into vectors. Need T from dispatch.h. */
#define OARI_ROW2(row, body)                                          \
    do {                                                              \
        T *y_ = (row)->data[0];                                       \
        const T *a_ = (row)->data[1];                                 \
        const int64_t sy_ = (row)->stride[0], sa_ = (row)->stride[1]; \
        const int64_t n_ = (row)->count;                              \
        if (sy_ == 1 && sa_ == 1)                                     \
            OARI_ROW2_AT(i_, i_, body)                                \
        else if (sy_ == 1 && sa_ == 0)                                \
            OARI_ROW2_AT(i_, 0, body)                                 \
        else                                                          \
            OARI_ROW2_AT(i_ *sy_, i_ *sa_, body)                      \
    } while (0)

#define OARI_ROW2_AT(iy, ia, body)        \
    for (int64_t i_ = 0; i_ < n_; i_++) { \
        T *Y = &y_[iy];                   \
        const T A = a_[ia];               \
        body;                             \
    }

#define OARI_ROW3(row, body)                                          \
    do {                                                              \
        T *y_ = (row)->data[0];                                       \
        const T *a_ = (row)->data[1], *b_ = (row)->data[2];           \
        const int64_t sy_ = (row)->stride[0], sa_ = (row)->stride[1]; \
        const int64_t sb_ = (row)->stride[2], n_ = (row)->count;      \
        if (sy_ == 1 && sa_ == 1 && sb_ == 1)                         \
            OARI_ROW3_AT(i_, i_, i_, body)                            \
        else if (sy_ == 1 && sa_ == 1 && sb_ == 0)                    \
            OARI_ROW3_AT(i_, i_, 0, body)                             \
        else if (sy_ == 1 && sa_ == 0 && sb_ == 1)                    \
            OARI_ROW3_AT(i_, 0, i_, body)                             \
        else                                                          \
            OARI_ROW3_AT(i_ *sy_, i_ *sa_, i_ *sb_, body)             \
    } while (0)

#define OARI_ROW3_AT(iy, ia, ib, body)    \
    for (int64_t i_ = 0; i_ < n_; i_++) { \
        T *Y = &y_[iy];                   \
        const T A = a_[ia], B = b_[ib];   \
        body;                             \
    }

#endif
