/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: operations on tensors.
 *
 * Each takes the tape first (NULL: nothing is recorded and the caller owns the
 * result), and returns a tensor, or NULL with a sentence in the last error that
 * contains both shapes. A NULL input gives NULL and keeps the error that is
 * there, so that a chain is checked once at its end. Inputs may be strided
 * views. Results are contiguous unless said otherwise.
 *
 * Views are for every dtype. add, mul, relu and sum are for integers, which
 * wrap, and f32 and f64; all others for f32 and f64 only. There is no
 * arithmetic in f16, bf16 and bool yet: OAR_E_UNSUPPORTED.
 */
#ifndef OARSONG_OPS_H
#define OARSONG_OPS_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

/* ---- views: share the input's storage; differentiable ------------------- */

/* One dim may be -1: what is left. Copies if the strides do not allow a view.*/
OAR_API oar_tensor *oar_reshape(oar_tape *tape, oar_tensor *a, oar_shape shape);
/* Swaps two dims; negative ones count from the end. */
OAR_API oar_tensor *oar_transpose(oar_tape *tape, oar_tensor *a, int d0,
                                  int d1);
/* Elements start .. start+length-1 of one dim. */
OAR_API oar_tensor *oar_narrow(oar_tape *tape, oar_tensor *a, int dim,
                               int64_t start, int64_t length);

/* ---- arithmetic: shapes broadcast as in NumPy, dtypes must be equal ------ */

OAR_API oar_tensor *oar_add(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_mul(oar_tape *tape, oar_tensor *a, oar_tensor *b);
OAR_API oar_tensor *oar_scale(oar_tape *tape, oar_tensor *a, double factor);
OAR_API oar_tensor *oar_relu(oar_tape *tape, oar_tensor *a);

/* The sum, or mean, of all elements: a single number. The mean of none is NaN.
 */
OAR_API oar_tensor *oar_sum(oar_tape *tape, oar_tensor *a);
OAR_API oar_tensor *oar_mean(oar_tape *tape, oar_tensor *a);

/* ---- products ------------------------------------------------------------ */

/* [m, k] x [k, n] -> [m, n]; f32 or f64. Transposed views cost no copy. */
OAR_API oar_tensor *oar_matmul(oar_tape *tape, oar_tensor *a, oar_tensor *b);

/* x [.., in] times weight [out, in] transposed, plus bias [out] or NULL. */
OAR_API oar_tensor *oar_linear(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias);

/* ---- losses -------------------------------------------------------------- */

/* Mean over the rows of logits [rows, classes] of minus the log of the
 * softmax's entry at target [rows] (i64). A target outside [0, classes) is
 * OAR_E_ARG. */
OAR_API oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                      oar_tensor *target);

/* Softmax over the last dim. */
OAR_API oar_tensor *oar_softmax(oar_tape *tape, oar_tensor *a);

OAR_END_DECLS

#endif
