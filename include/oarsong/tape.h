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
 * inside a backward pass. A tensor that was given up is refused from then on:
 * operations and everything else on it are OAR_E_STATE. That holds for the next
 * three steps at least, up to the third reset that follows; after that the
 * pointer may be another tensor's. */
OAR_API void oar_tape_reset(oar_tape *tape);

/* While off, operations on the tape are not recorded, but the tape still owns
 * their results. Returns what it was before. */
OAR_API int oar_tape_record(oar_tape *tape, int on);

/* Whether backward may compute matrix products again to save memory, of modules
 * that drop what flows inside them (the GPT). On by default: about 8 % slower,
 * and a quarter less memory. The numbers are the same. Returns what it was. */
OAR_API int oar_tape_rebuild(oar_tape *tape, int on);

/* From now on, what is computed on the tape lies in shared memory (shared.h) if
 * it has at least so many bytes, results and gradients of results alike, so
 * that collectives act on it in place; 0: nothing does, as at first. Each takes
 * whole pages. The tape reuses this memory like any other. Returns what it was;
 * 0 for NULL. */
OAR_API size_t oar_tape_share(oar_tape *tape, size_t least_bytes);

/* Returns the bytes of all results, and of all that operations have saved or
 * computed for backward, that are on the tape now. Memory that it has for reuse
 * does not count. 0 for NULL. Takes time with the number of operations. */
OAR_API size_t oar_tape_bytes(const oar_tape *tape);

/* Fills the gradients of everything that `loss`, a single number, was computed
 * from: leaves that require one, added to what they hold. What was saved for
 * backward and the results themselves are given back as it consumes them, so a
 * second call is OAR_E_STATE; so is one after a failure in the middle. Gradient
 * hooks run during it, when the operation that completed the gradient is done;
 * deferred functions at its end. A forward pass that failed gives a NULL loss:
 * backward then returns the status of that failure, which is the last error. */
#define oar_backward(tape, loss) oar_backward_at(OAR_HERE, tape, loss)
OAR_API oar_status oar_backward_at(const char *file, int line, oar_tape *tape,
                                   oar_tensor *loss);

/* The same from several roots at once, each with the gradient to start from:
 * same shape and dtype as its root, or NULL for ones. */
#define oar_backward_from(...) oar_backward_from_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_backward_from_at(const char *file, int line,
                                        oar_tape *tape, int roots,
                                        oar_tensor *const *root,
                                        oar_tensor *const *seed);

/* Backward in two halves, for zero-bubble pipelines. The first computes the
 * gradients of activations and of leaf inputs only (leaves marked as inputs,
 * see oar_tape_input); the second then those of all other leaves. Together
 * they leave exactly what oar_backward_from leaves. What is recomputed
 * (oar_recompute) gets all its gradients in the first half. Between the halves
 * the tape keeps only what the second reads: of a linear layer its input and
 * the gradient of its result. The parameters of layers may be detached then.
 * The second half runs the deferred functions, and is fine with nothing else to
 * do; OAR_E_STATE without a first half before it. */
#define oar_backward_inputs(...) oar_backward_inputs_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_status oar_backward_inputs_at(const char *file, int line,
                                          oar_tape *tape, int roots,
                                          oar_tensor *const *root,
                                          oar_tensor *const *seed);
#define oar_backward_weights(tape) oar_backward_weights_at(OAR_HERE, tape)
OAR_API oar_status oar_backward_weights_at(const char *file, int line,
                                           oar_tape *tape);

/* Which backward pass runs on the tape now. What is recomputed (oar_recompute)
 * runs on a tape of its own, whose pass is always a whole one. */
typedef enum oar_pass {
    OAR_PASS_NONE = 0,   /* none: forward, or nothing at all */
    OAR_PASS_WHOLE = 1,  /* oar_backward, oar_backward_from */
    OAR_PASS_INPUTS = 2, /* oar_backward_inputs */
    OAR_PASS_WEIGHTS = 3 /* oar_backward_weights */
} oar_pass;

/* For hooks and for operations of the caller's. NULL: OAR_PASS_NONE. */
OAR_API oar_pass oar_tape_pass(const oar_tape *tape);

/* Whether what runs on the tape now runs for the second time (oar_recompute):
 * in the forward pass of it, and in the backward pass that follows. NULL: 0. */
OAR_API int oar_tape_replays(const oar_tape *tape);

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

/* Calls fn once when the next backward pass on this tape has ended, whatever
 * became of it, before the call that ran it returns and after the deferred
 * functions: with OAR_OK, or with the status of the failure, which is then the
 * last error. A pass in halves ends with its second half, or with a failure in
 * the first. A call that was refused and left the record as it was is no pass.
 * If the tape is reset or destroyed before, fn is called with OAR_E_STATE.
 * Asked for twice with the same arg, it is called once; asked for from inside
 * fn, after the next pass. On the tape of what is recomputed, the pass of the
 * tape outside is meant. */
typedef void (*oar_pass_end_fn)(void *arg, oar_status status);
OAR_API oar_status oar_tape_on_end(oar_tape *tape, oar_pass_end_fn fn,
                                   void *arg);

/* Takes object: the tape calls drop(object) at its next reset, last owned
 * first, after it has given up everything recorded. OAR_E_NOMEM: drop is called
 * at once. OAR_E_ARG without a tape or a drop: the caller keeps object. */
OAR_API oar_status oar_tape_own(oar_tape *tape, void *object,
                                void (*drop)(void *object));

OAR_END_DECLS

#endif
