/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h: a training step that is recorded once and then started as a whole,
 * as CUDA graphs: the host starts a few graphs a step instead of some hundred
 * kernels.
 *
 *     oar_replay_create(device, one_step, &training, NULL, &replay);
 *     for (...) {
 *         oar_tensor_copy(input, batch);    // into tensors that stay
 *         oar_replay_run(replay);
 *     }
 *     oar_replay_destroy(replay);
 *
 * Threads: one thread at a time uses a replay, and runs it always.
 */
#ifndef OARSONG_REPLAY_H
#define OARSONG_REPLAY_H

#include <oarsong/span.h>

OAR_BEGIN_DECLS

typedef struct oar_replay oar_replay;
typedef oar_status (*oar_replay_fn)(void *arg);

typedef struct oar_replay_opts {
    size_t size;
    int warm;   /* steps that run as they are before one is recorded; 0: 3 */
    int strict; /* a step that cannot be recorded is an error */
} oar_replay_opts;
OAR_OPTS_INIT(oar_replay_opts);

/* Makes a replay of fn(arg), which does one whole step (forward, backward,
 * oar_optim_step_with, oar_optim_zero_grad, oar_tape_reset) on tensors that
 * are the same in every step, with memory of one GPU. Nothing runs yet. The
 * tape, the tensors and the optimizer have to live as long as the replay.
 *
 * fn runs `warm` times as it is; then once while it is recorded; after that it
 * is not called any more. What the optimizer reads each time (learning
 * rate, weight decay, number of the step) is read again in a replay, and
 * dropout draws other numbers in each, the same in every run of the program;
 * other numbers stay what they were when fn was recorded.
 * Hooks of the optimizer are not called. What the host does in fn is not done
 * in a replay: change the learning rate outside.
 *
 * A step that cannot be recorded, because it reads a result or waits for the
 * GPU, is named once in the log (OAR_LOG_WARN) and runs as it is from then on;
 * strict: oar_replay_run is OAR_E_UNSUPPORTED. fn is called again after it has
 * failed so: it has to begin with the gradients cleared and the tape reset.
 * opts may be NULL. */
OAR_API oar_status oar_replay_create(oar_device device, oar_replay_fn fn,
                                     void *arg, const oar_replay_opts *opts,
                                     oar_replay **replay);

/* Runs one step, behind what is on the current stream of the device by now and
 * before what comes there later. Does not wait for the GPU, unless it is more
 * than four steps behind. Fails as fn does; OAR_E_STATE inside of a step. */
OAR_API oar_status oar_replay_run(oar_replay *replay);

/* Returns how many graphs a step has; 0: it is not recorded. */
OAR_API int oar_replay_graphs(const oar_replay *replay);

/* Ends it when what it has started has run. NULL is fine. */
OAR_API void oar_replay_destroy(oar_replay *replay);

/* Calls fn(arg) where a step must not be recorded: a collective, whose engine
 * does more than put work on the stream. While a step is recorded this ends a
 * graph and starts it first; in each replay fn(arg) is called at the same
 * place. Elsewhere it only calls fn. Returns what fn does. */
OAR_API oar_status oar_replay_cut(oar_replay_fn fn, void *arg);

/* The same with an arg that is given up: drop(arg) is called once, when nothing
 * will call fn any more: in a recorded step with the replay's end, else before
 * this returns, also on failure. drop may be NULL. */
OAR_API oar_status oar_replay_cut_with(oar_replay_fn fn, void *arg,
                                       void (*drop)(void *arg));

OAR_END_DECLS

#endif
