/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/stash.h: gradients of several inputs made in one pass. The backward
 * of the first input asked for makes them all; the others wait in the node. */
#ifndef OARI_AUTOGRAD_STASH_H
#define OARI_AUTOGRAD_STASH_H

#include "autograd/tape.h"

/* Whether anybody wants the gradient of input i. */
static inline int oari_stash_wanted(const oari_node *node, int i)
{
    return i < node->inputs && node->input[i].kind != OARI_EDGE_NONE;
}

/* Room for the gradient of input i, if it is wanted: *to is that, in the dtype
 * numbers of `dtype` are computed in; else to is left alone. */
oar_status oari_stash_open(oari_node *node, int i, oar_dtype dtype,
                           oar_shape shape, oari_array *to);

/* The backward of an operation whose function `all` makes every gradient: that
 * of input 0, which is saved[0], goes to its `to` (NULL: nowhere), the others
 * into the stash. It is called once, whatever the order of the inputs. */
typedef oar_status (*oari_stash_fn)(oari_node *node, const oari_array *to,
                                    int add);
oar_status oari_stash_backward(oari_node *node, int i, const oari_array *to,
                               int add, oari_stash_fn all);

#endif
