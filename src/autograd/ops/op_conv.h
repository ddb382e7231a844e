/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/op_conv.h: what convolutions and transposed ones share. */
#ifndef OARI_AUTOGRAD_OPS_OP_CONV_H
#define OARI_AUTOGRAD_OPS_OP_CONV_H

#include "autograd/record.h"
#include "tensor/cpu/nn/conv.h"

/* The kind of convolution and its inputs. */
typedef struct oari_conv_operands {
    const oari_op_class *op;
    oar_tensor *x, *weight, *bias; /* bias may be NULL */
} oari_conv_operands;

/* Checks that the tensors are there, and floats of one dtype. */
oar_status oari_conv_check(oar_tape *tape, const oari_conv_operands *in);

/* Returns OAR_E_SHAPE, with an error that names all shapes. */
oar_status oari_conv_mismatch(const oari_conv_operands *in, const char *why);

/* Returns the options with their defaults (a stride, a dilation or groups of 0
 * are 1), and the kernel's size. */
oari_extra oari_conv_extra(const oari_conv_operands *in, const int *stride,
                           const int *padding, const int *dilation, int groups);

/* Returns the convolution that goes from planes of shape x to `out` channels.
 */
oari_conv oari_conv_of(const oari_extra *e, oar_shape x, int64_t out);

/* Computes the convolution from x to out, or the transposed one, and records it
 * with extra. Takes out, which may be NULL; NULL on failure. */
oar_tensor *oari_conv_apply(oar_tape *tape, const oari_conv_operands *in,
                            oar_tensor *out, oari_conv c, int transposed,
                            const oari_extra *extra);

/* to (+)= the gradient of the bias. */
oar_status oari_conv_bias_back(oari_node *node, const oari_array *to, int add);

#endif
