/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec/exec_run.h: how the executor does each kind of step. Each function
 * does its step and moves on to the next, or returns OARI_PENDING and is called
 * again. Only for exec*.c. */
#ifndef OARI_COMM_EXEC_EXEC_RUN_H
#define OARI_COMM_EXEC_EXEC_RUN_H

#include "comm/exec/exec.h"

/* exec.c */
oar_status oari_exec_reserve_scratch(oari_exec *exec, const oari_plan *plan);

/* exec_sync.c */
/* Fails with OAR_E_MISMATCH, because rank `peer` does something else. The text
 * says what does not fit; "": only that the fingerprints differ. */
oar_status oari_exec_report_mismatch(oari_exec *exec, int peer,
                                     const char *format, ...) OAR_PRINTF(3, 4);
/* Returns whether the last sync point must be completed before a plan begins,
 * because there is no slot left. */
int oari_exec_must_settle(const oari_exec *exec);
/* Completes the last sync point: all ranks have reached it, and agree. */
oari_progress oari_run_settle(oari_exec *exec);
oari_progress oari_run_sync(oari_exec *exec, const oari_step *step);
void oari_run_unless_reachable(oari_exec *exec, const oari_step *step);

/* exec_memory.c */
unsigned char *oari_exec_locate(oari_exec *exec, oari_buffer buffer, int peer,
                                size_t at);
oari_progress oari_run_copy(oari_exec *exec, const oari_step *step);
oari_progress oari_run_reduce(oari_exec *exec, const oari_step *step);

/* exec_combine.c: partial results. */
oar_dtype oari_partial_dtype(oar_reduce_op_kind op, oar_dtype dtype);
double oari_exec_divisor(const oari_exec *exec);
void oari_exec_combine(oari_exec *exec, const oari_step *step);
/* Combines the sources of a reduction, with their factors, into WORK. */
void oari_exec_reduce_partial(oari_exec *exec, int sources, void *to,
                              size_t count);
/* The same, finished, into an output that is wider than the sources. */
void oari_exec_reduce_wide(oari_exec *exec, int sources, void *to,
                           size_t count);

/* exec_message.c */
size_t oari_exec_element(const oari_exec *exec, oari_buffer buffer);
oari_progress oari_run_message(oari_exec *exec, const oari_step *step);
oari_progress oari_run_wait(oari_exec *exec, const oari_step *step);

/* exec_post.c */
/* Tells the peers what is begun, and posts it to the external engine if that
 * takes it; then returns 1. */
int oari_exec_post(oari_exec *exec);
oari_progress oari_run_post(oari_exec *exec);

/* exec_replan.c */
void oari_exec_make_request(oari_exec *exec, oari_plan_request *req);
oari_progress oari_run_replan(oari_exec *exec);
void oari_exec_give_object(oari_exec *exec);

#endif
