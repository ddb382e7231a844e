/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/picked.h: operations that pick elements along one dim of a
 * tensor and give the places where the elements were. */
#ifndef OARI_AUTOGRAD_OPS_PICKED_H
#define OARI_AUTOGRAD_OPS_PICKED_H

#include "autograd/record.h"

/* Checks that a has this dim, and makes *dim count from the start. */
oar_status oari_check_dim(const char *name, oar_tape *tape, oar_tensor *a,
                          int *dim);

/* Returns a with `dim` last, row by row, no half and no bool: a itself if it is
 * so, or a copy. Gives a reference. */
oar_tensor *oari_rows_of_dim(oari_pool *pool, oar_tensor *a, int dim);

/* The backward of these operations: adds each gradient to the place where its
 * element was. */
oar_status oari_picked_back(oari_node *node, int i, const oari_array *to,
                            int add);

/* What such an operation has computed. */
typedef struct oari_picked {
    const oari_op_class *op;
    oar_tensor *a;
    int dim;
    int drops;                  /* the results do not have the dim */
    oar_tensor *picked, *place; /* references: NULL if memory was short */
} oari_picked;

/* Takes both references and gives the tensors to the tape or the caller; index
 * may be NULL. */
oar_status oari_emit_picked(oar_tape *tape, const oari_picked *made,
                            oar_tensor **value, oar_tensor **index);

#endif
