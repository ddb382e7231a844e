/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/picked.h: operations that pick elements along one dim of a
 * tensor and give the places where the elements were. */
#ifndef OARI_AUTOGRAD_OPS_PICKED_H
#define OARI_AUTOGRAD_OPS_PICKED_H

#include "autograd/record.h"

/* Whether a has this dim, which then counts from the start. */
oar_status oari_check_dim(const char *name, oar_tape *tape, oar_tensor *a,
                          int *dim);

/* a with `dim` last, row by row, no half and no bool: itself if it is so, or a
 * copy. Gives a reference. */
oar_tensor *oari_rows_of_dim(oari_pool *pool, oar_tensor *a, int dim);

/* The backward of them all: the gradient goes to where each element was. */
oar_status oari_picked_back(oari_node *node, int i, const oari_array *to,
                            int add);

/* What one of them has computed. */
typedef struct oari_picked {
    const oari_op_class *op;
    oar_tensor *a;
    int dim;
    int drops;                  /* the results do not have the dim */
    oar_tensor *picked, *place; /* references: NULL if memory was short */
} oari_picked;

/* Takes both references and hands them to the tape or the caller; index may be
 * NULL. */
oar_status oari_emit_picked(oar_tape *tape, const oari_picked *made,
                            oar_tensor **value, oar_tensor **index);

#endif
