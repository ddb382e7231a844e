/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/fused_backward.h: operations whose backward computes the gradients
 * of several inputs in one pass. The first input that backward asks for runs
 * the pass; the other gradients wait in the node until they are asked for. */
#ifndef OARI_AUTOGRAD_FUSED_BACKWARD_H
#define OARI_AUTOGRAD_FUSED_BACKWARD_H

#include "autograd/tape.h"

/* Makes node->fused_grad[i] and sets *to to it if the gradient of input i is
 * wanted; else leaves *to alone. Its dtype is the one that numbers of `dtype`
 * are computed in. */
oar_status oari_fused_grad_open(oari_node *node, int i, oar_dtype dtype,
                                oar_shape shape, oari_array *to);

/* to (+)= the gradient of input i, by op->fused_backward, which runs once for a
 * node, whatever the order of the inputs. It writes the gradient of input 0,
 * which is saved[0], to its own `to` (NULL: nowhere) and the others into
 * node->fused_grad. */
oar_status oari_fused_backward(oari_node *node, int i, const oari_array *to,
                               int add);

#endif
