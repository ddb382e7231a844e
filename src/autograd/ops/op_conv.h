/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/op_conv.h: what convolutions and transposed ones share. */
#ifndef OARI_AUTOGRAD_OPS_OP_CONV_H
#define OARI_AUTOGRAD_OPS_OP_CONV_H

#include "autograd/record.h"

/* The kind of convolution and its inputs. */
typedef struct oari_conv_operands {
    const oari_op_class *op;
    oar_tensor *x, *weight, *bias; /* bias may be NULL */
} oari_conv_operands;

/* Checks that the tensors are there, and floats of one dtype. */
oar_status oari_conv_check(oar_tape *tape, const oari_conv_operands *in);

/* Returns OAR_E_SHAPE, with an error that names all shapes. */
oar_status oari_conv_mismatch(const oari_conv_operands *in, const char *why);

/* to (+)= the gradient of the bias. */
oar_status oari_conv_bias_back(oari_node *node, const oari_array *to, int add);

#endif
