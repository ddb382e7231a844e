/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/layout.h: where the elements of a tensor lie in its storage: a shape,
 * a stride per dim and an offset, all counted in elements. Views are made here,
 * as pure arithmetic; nothing here touches memory. */
#ifndef OARI_TENSOR_LAYOUT_H
#define OARI_TENSOR_LAYOUT_H

#include <oarsong/tensor.h>

typedef struct oari_layout {
    oar_shape shape;
    int64_t stride[OAR_MAX_DIMS];
    int64_t offset;
} oari_layout;

/* "[3, 4]", for error sentences: oari_shape_text(shape).text. */
typedef struct oari_shape_string {
    char text[192];
} oari_shape_string;
oari_shape_string oari_shape_text(oar_shape shape);

/* Checks that there are tensors of this dtype: OAR_E_ARG if there is no such
 * dtype, OAR_E_UNSUPPORTED if collectives can only move it. `name` is the call
 * that asks. */
oar_status oari_check_dtype(const char *name, oar_dtype dtype);

/* Checks that a tensor of this shape can exist: 0 to OAR_MAX_DIMS dims, none of
 * them negative, and a size in bytes that fits. Else OAR_E_ARG. */
oar_status oari_shape_check(const char *name, oar_shape shape, oar_dtype dtype);

int64_t oari_shape_count(oar_shape shape);
int oari_shape_equal(oar_shape a, oar_shape b);

/* Gives the shape that a and b broadcast to, as in NumPy. Returns 0 if they do
 * not. */
int oari_shape_broadcast(oar_shape a, oar_shape b, oar_shape *shape);

/* Makes a dim that counts from the end count from the start. Returns 0 if the
 * shape has no such dim. */
int oari_shape_dim(oar_shape shape, int *dim);

/* A shape seen from one of its dims: how many there are before it, along it and
 * after it. */
typedef struct oari_around {
    int64_t before, at, after;
} oari_around;
oari_around oari_shape_around(oar_shape shape, int dim);

/* Returns the layout that goes row by row from the start of the storage. */
oari_layout oari_layout_rows(oar_shape shape);

/* Returns whether the elements lie row by row without gaps. */
int oari_layout_is_rows(const oari_layout *at);

/* Gives the first and the last element that a layout of at least one element
 * reaches, from its offset. Returns 0 if they do not fit an int64_t. */
int oari_layout_reach(const oari_layout *at, int64_t *low, int64_t *high);

/* Returns whether two elements may lie in one place, as in an expanded layout;
 * 0 for every layout whose dims lie one inside another. */
int oari_layout_overlaps(const oari_layout *at);

/* Views. Dims are in range; a reshape has the same count. */
oari_layout oari_layout_transpose(oari_layout at, int d0, int d1);
oari_layout oari_layout_narrow(oari_layout at, int dim, int64_t start,
                               int64_t length);

/* Narrows to every step-th element. */
oari_layout oari_layout_slice(oari_layout at, int dim, int64_t start,
                              int64_t length, int64_t step);
/* Dim i of the result is dim order.dim[i]. */
oari_layout oari_layout_permute(const oari_layout *at, oar_dims order);
/* Drop a dim, at its first element, and insert a dim of size 1. */
oari_layout oari_layout_drop(oari_layout at, int dim);
oari_layout oari_layout_insert(oari_layout at, int dim);

/* Gives a view of the elements in another shape. Returns 0 if no strides can
 * express it, so that a copy is needed. */
int oari_layout_reshape(const oari_layout *at, oar_shape shape,
                        oari_layout *view);

/* Repeats a layout, by strides of 0, to a shape that it broadcasts to. */
oari_layout oari_layout_expand(const oari_layout *at, oar_shape shape);

#endif
