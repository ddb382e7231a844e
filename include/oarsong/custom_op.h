/* SPDX-License-Identifier: Apache-2.0 */
/* custom_op.h: operations of the caller's own, with a backward of their own.
 *
 * The caller computes the result in any way, a collective included, and then
 * records on the tape what it was computed from:
 *
 *     static oar_status sum_back(void *arg, int i, const oar_tensor *grad,
 *                                oar_tensor *to, int add);
 *     static const oar_custom_op all_sum = { .size = sizeof all_sum,
 *                                            .name = "all_sum",
 *                                            .backward = sum_back };
 *
 *     y = oar_zeros(tape, OAR_F32, oar_tensor_shape(x));
 *     ... all_reduce a copy of x to y ...
 *     y = oar_record_op(tape, &all_sum, group, 1, &x, y);
 *
 * What backward needs of the forward pass, arg holds: the tape saves nothing
 * for it. It may hold tensors that it has retained (oar_tensor_retain) and that
 * drop releases.
 */
#ifndef OARSONG_CUSTOM_OP_H
#define OARSONG_CUSTOM_OP_H

#include <oarsong/tape.h>

OAR_BEGIN_DECLS

enum { OAR_CUSTOM_OP_INPUTS = 8 }; /* that one operation may have at most */

typedef struct oar_custom_op {
    size_t size;      /* sizeof, for the ABI */
    const char *name; /* for messages; kept by pointer until drop */
    /* Writes the gradient of input i to `to`, or adds it to what `to` holds if
     * `add` is set, given that of the result, `grad`, which others read too.
     * Both are contiguous; `to` has the shape and dtype of the input, and while
     * `add` is 0 its numbers mean nothing. Called once for each input
     * that needs a gradient, in the order of the inputs; of a pass in halves,
     * in the weights half for leaves and in the inputs half for others. May
     * wait, run collectives, and compute on no tape or on another one. A
     * failure ends the pass and is its status. */
    oar_status (*backward)(void *arg, int i, const oar_tensor *grad,
                           oar_tensor *to, int add);
    void (*drop)(void *arg); /* (optional) nothing will need arg any more */
} oar_custom_op;

/* Records that `out` was computed from the inputs, and returns out; NULL on
 * failure, or if out is NULL. As with every operation, nothing is recorded
 * without a tape, on a tape that does not record, or if no input needs a
 * gradient; then, and on failure, drop is called at once, else when backward
 * has run or at the tape's reset. Only where op itself is refused the caller
 * keeps arg.
 *
 * out is a tensor that the tape owns already (oar_zeros(tape, ...), or a result
 * that was computed while the tape did not record), whose memory the tape then
 * reuses; or one of the caller's, whose reference is taken, also on failure.
 * With a NULL tape the caller gets it back. It must not be a leaf that requires
 * a gradient, nor recorded already (OAR_E_STATE). It may be a view of an
 * input. */
OAR_API oar_tensor *oar_record_op(oar_tape *tape, const oar_custom_op *op,
                                  void *arg, int inputs,
                                  oar_tensor *const *input, oar_tensor *out);

/* ---- checking a backward ------------------------------------------------- */

/* Computes something from the inputs on a tape: any shape, the same numbers
 * each time it is called with the same inputs. NULL with the last error set if
 * it fails. */
typedef oar_tensor *(*oar_gradcheck_fn)(oar_tape *tape,
                                        oar_tensor *const *input, void *arg);

typedef struct oar_gradcheck_opts {
    size_t size;
    double step;      /* by which a number is moved; 0: 1e-5, f32 1e-2 */
    double tolerance; /* relative above 1, absolute below; 0: 1e-7, f32 1e-2 */
} oar_gradcheck_opts;
OAR_OPTS_INIT(oar_gradcheck_opts);

/* Compares the gradients that backward gives with differences of values, for
 * every element of every input: OAR_E_DATA if two differ, with a sentence that
 * names input, element and both numbers. Every element of fn's result counts,
 * and so does the adding to a gradient that is there already: fn is called
 * twice for one pass. Borrows the inputs: f64 (better) or f32, contiguous. They
 * are moved, and put back before the call returns; fn sees other tensors over
 * the same memory, so gradients and hooks of the inputs are left alone. For
 * functions of this process alone: collectives would see the differences of
 * other ranks. opts may be NULL. */
OAR_API oar_status oar_gradcheck(oar_gradcheck_fn fn, void *arg, int inputs,
                                 oar_tensor *const *input,
                                 const oar_gradcheck_opts *opts);

OAR_END_DECLS

#endif
