/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/walk.h: goes through up to four arrays at once, row after row.
 *
 * Dims that lie like one dim in every array are merged first, so contiguous
 * arrays are a single row. A function is called per row, never per element. */
#ifndef OARI_TENSOR_CPU_WALK_H
#define OARI_TENSOR_CPU_WALK_H

#include "tensor/tensor.h"
#include "tensor/cpu/target_clones.h"

enum { OARI_WALK_ARRAYS = 4 };

typedef struct oari_walk_row {
    int64_t count;                    /* elements, at least 1 */
    void *data[OARI_WALK_ARRAYS];     /* the first of them */
    int64_t stride[OARI_WALK_ARRAYS]; /* in elements; 0: the same one again */
} oari_walk_row;

typedef void (*oari_walk_fn)(const oari_walk_row *row, void *arg);

/* Calls fn for each row of shape, in order. Every array broadcasts to it. */
void oari_walk(oar_shape shape, int arrays, const oari_array *const *array,
               oari_walk_fn fn, void *arg);

/* Calls fn as oari_walk does, but every row has strides of 1 and halves are
 * f32, where need be by way of blocks on the stack: one plain loop per function
 * and dtype serves every layout. fn writes array 0; halves are rounded once,
 * after fn. Array 0 is read before only if `reads`. */
void oari_walk_flat(oar_shape shape, int arrays, const oari_array *const *array,
                    int reads, oari_walk_fn fn, void *arg);

/* Calls fn as oari_walk_flat does, but array 0, which is summed into, keeps its
 * own stride and is no half. */
void oari_walk_into(oar_shape shape, int arrays, const oari_array *const *array,
                    oari_walk_fn fn, void *arg);

/* Returns the dtype that flat rows of this dtype have. */
static inline oar_dtype oari_row_dtype(oar_dtype dtype)
{
    return dtype == OAR_F16 || dtype == OAR_BF16 ? OAR_F32 : dtype;
}

/* Loops over a flat row: Y is a pointer to the element to be written, A, B and
 * C are values of the types TA, TB and TC. */
#define OARI_FLAT2(row, TY, TA, body)                  \
    do {                                               \
        TY *y_ = (row)->data[0];                       \
        const TA *a_ = (row)->data[1];                 \
        const int64_t n_ = (row)->count;               \
        OARI_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
        {                                              \
            TY *Y = &y_[i_];                           \
            const TA A = a_[i_];                       \
            body;                                      \
        }                                              \
    } while (0)

#define OARI_FLAT3(row, TY, TA, TB, body)              \
    do {                                               \
        TY *y_ = (row)->data[0];                       \
        const TA *a_ = (row)->data[1];                 \
        const TB *b_ = (row)->data[2];                 \
        const int64_t n_ = (row)->count;               \
        OARI_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
        {                                              \
            TY *Y = &y_[i_];                           \
            const TA A = a_[i_];                       \
            const TB B = b_[i_];                       \
            body;                                      \
        }                                              \
    } while (0)

#define OARI_FLAT4(row, TY, TA, TB, TC, body)          \
    do {                                               \
        TY *y_ = (row)->data[0];                       \
        const TA *a_ = (row)->data[1];                 \
        const TB *b_ = (row)->data[2];                 \
        const TC *c_ = (row)->data[3];                 \
        const int64_t n_ = (row)->count;               \
        OARI_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
        {                                              \
            TY *Y = &y_[i_];                           \
            const TA A = a_[i_];                       \
            const TB B = b_[i_];                       \
            const TC C = c_[i_];                       \
            body;                                      \
        }                                              \
    } while (0)

#endif
