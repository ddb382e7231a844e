/* SPDX-License-Identifier: Apache-2.0 */
/* tape.h: records operations and runs them backward.
 *
 * The tape owns what is computed on it. An operation given a tape records
 * itself if one of its inputs needs a gradient, and its result lives until
 * oar_tape_reset or until backward has consumed it. Given a NULL tape it
 * records nothing and the caller owns the result. Several tapes may be alive at
 * once (one per micro-batch in a pipeline); they may share parameters, but a
 * result of one becomes an input of another only through oar_tape_input. One
 * thread at a time uses a tape.
 *
 * What backward consumes it gives back: what operations saved, and the memory
 * of each result it has passed. To read such a result afterwards, retain it
 * before; else oar_tensor_data is NULL and everything else OAR_E_STATE. These
 * stay: what somebody retains (a view that is retained keeps the memory, but
 * only the view can be read), the roots that backward began with, leaves and
 * inputs, and what no backward has come through. What the layers of this
 * library compute inside a module may go earlier, and backward may compute it a
 * second time, to the same bits; a module with a backward hook of its own keeps
 * its result.
 *
 * What an operation saved must not change before its backward: after
 * oar_tensor_write, oar_tensor_copy, oar_tensor_fill or oar_optim_step on that
 * storage it is OAR_E_STATE. Writes through oar_tensor_data, a span, or DLPack
 * are not seen.
 *
 * In the steady state a step allocates nothing: reset keeps tensors, nodes and
 * storage for the next step, but never recycles storage that somebody else
 * still refers to.
 */
#ifndef OARSONG_TAPE_H
#define OARSONG_TAPE_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

OAR_API oar_status oar_tape_create(oar_tape **tape);
OAR_API void oar_tape_destroy(oar_tape *tape); /* NULL is fine */

/* Forgets everything recorded and gives up every tensor the tape owns. Not from
 * inside a backward pass. */
OAR_API void oar_tape_reset(oar_tape *tape);

/* While off, operations on the tape are not recorded, but the tape still owns
 * their results. Returns what it was before. */
OAR_API int oar_tape_record(oar_tape *tape, int on);

/* Whether backward may compute matrix products again to save memory, of modules
 * that drop what flows inside them (the GPT). On by default: about 8 % slower,
 * and a quarter less memory. The numbers are the same. Returns what it was. */
OAR_API int oar_tape_rebuild(oar_tape *tape, int on);

/* Fills the gradients of everything that `loss`, a single number, was computed
 * from: leaves that require one, added to what they hold. What was saved for
 * backward and the results themselves are given back as it consumes them, so a
 * second call is OAR_E_STATE; so is one after a failure in the middle. Gradient
 * hooks run during it, when the operation that completed the gradient is done;
 * deferred functions at its end. */
#define oar_backward(tape, loss) oar_backward_at(OAR_HERE, tape, loss)
OAR_API oar_status oar_backward_at(const char *file, int line, oar_tape *tape,
                                   oar_tensor *loss);

/* The same from several roots at once, each with the gradient to start from:
 * same shape as its root, or NULL for ones. */
#define oar_backward_from(...) oar_backward_from_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_backward_from_at(const char *file, int line,
                                        oar_tape *tape, int roots,
                                        oar_tensor *const *root,
                                        oar_tensor *const *seed);

/* Backward in two halves, for zero-bubble pipelines. The first computes the
 * gradients of activations and of leaf inputs only (leaves marked as inputs,
 * see oar_tape_input); the second then those of all other leaves. Together
 * they leave exactly what oar_backward_from leaves. */
#define oar_backward_inputs(...) oar_backward_inputs_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_backward_inputs_at(const char *file, int line,
                                          oar_tape *tape, int roots,
                                          oar_tensor *const *root,
                                          oar_tensor *const *seed);
#define oar_backward_weights(tape) oar_backward_weights_at(OAR_HERE, tape)
OAR_API oar_status oar_backward_weights_at(const char *file, int line,
                                           oar_tape *tape);

/* A leaf on this tape with the numbers of `value` (same storage), whose
 * gradient can be read after backward: what a pipeline stage receives. Owned
 * by the tape. */
OAR_API oar_tensor *oar_tape_input(oar_tape *tape, oar_tensor *value);

/* Runs fn once, at the end of the next backward pass on this tape (of the
 * weights half when it is split), before the call returns; its failure becomes
 * the call's. Asked for twice with the same arg, it runs once. Dropped unrun by
 * oar_tape_reset. */
typedef oar_status (*oar_defer_fn)(void *arg);
OAR_API oar_status oar_tape_defer(oar_tape *tape, oar_defer_fn fn, void *arg);

OAR_END_DECLS

#endif
