/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: one operation in flight.
 *
 * A call given a `work` pointer returns at once with a handle. The buffers
 * belong to the operation until it is done. It goes on by itself; a thread that
 * waits for it drives it. Every handle is released exactly once, before or
 * after the operation is done, and before its group is destroyed.
 *
 * No call is a cancellation point: a thread that is cancelled (pthread_cancel)
 * while it waits for an operation ends that call first. oar_group_abort ends
 * the wait.
 */
#ifndef OARSONG_WORK_H
#define OARSONG_WORK_H

#include <oarsong/status.h>

OAR_BEGIN_DECLS

typedef struct oar_work oar_work;

/* Returns when the operation is done, with its status. May be called again.
 * Any thread; several may wait for one operation. OAR_E_ARG for NULL. */
OAR_API oar_status oar_work_wait(oar_work *work);

/* The same, but waits at most for the timeout (0: the group's; below 0: for
 * ever). OAR_E_TIMEOUT if it is not done by then: that ends neither the
 * operation, which goes on with its buffers, nor the group; the handle can be
 * waited for again. */
OAR_API oar_status oar_work_wait_for(oar_work *work, int64_t timeout_ms);

/* Device memory: what comes on the stream from now on waits for the operation;
 * the host waits only until it has been started. NULL: oar_stream_current().
 * Failures that come later are the group's (oar_group_fault). Of host memory:
 * like oar_work_wait. */
OAR_API oar_status oar_work_order(oar_work *work, void *stream);

/* Says in *done whether it is done, without waiting; if so, returns its
 * status. Drives it a little. Any thread. */
OAR_API oar_status oar_work_test(oar_work *work, int *done);

/* Waits for all, and returns the first failure in the order given. NULL
 * handles are skipped. */
OAR_API oar_status oar_work_wait_all(int count, oar_work *const *work);

/* Waits until one of them is done, says which in *index, and returns its
 * status. NULL handles are skipped; *index is -1 if all are NULL. */
OAR_API oar_status oar_work_wait_any(int count, oar_work *const *work,
                                     int *index);

/* Begins an operation that was made with `prepare` in its options; again once
 * it is done. The order in which operations are started is the order in which
 * they are posted. OAR_E_STATE if it is under way or was not prepared.
 *   Its own function (oar_work_then) may start it again, and then give it a
 * function for that run; the threads that wait for it go on waiting. */
OAR_API oar_status oar_work_start(oar_work *work);

/* Runs fn(arg, status) once when the operation is done, or now if it is; before
 * anyone who waits for the operation returns, so arg may go after that. It runs
 * on whatever thread drives; it may post operations and release handles,
 * but must not wait. If the operation failed alone (a message of a loose
 * group), the thread's last error says why. OAR_E_STATE if the work has one
 * already. */
typedef void (*oar_work_fn)(void *arg, oar_status status);
OAR_API oar_status oar_work_then(oar_work *work, oar_work_fn fn, void *arg);

/* Gives up a message of which nothing has been moved: a receive that has found
 * no message, or a send that is not done and has not been asked for its data
 * (the receiver may have copied it just now). *given_up
 * says whether it was; then it ends with OAR_E_ABORTED, and its buffer is the
 * caller's when the call returns. Any other message goes on. The function of
 * the work runs as ever, perhaps before this returns. OAR_E_ARG for anything
 * but one message, OAR_E_UNSUPPORTED on backends of others. Any thread, and
 * from inside functions (oar_work_then, oar_group_on_gone) too. */
OAR_API oar_status oar_work_cancel(oar_work *work, int *given_up);

/* Gives up the caller's handle. Legal before completion: the operation goes
 * on. NULL is fine. */
OAR_API void oar_work_release(oar_work *work);

OAR_END_DECLS

#endif
