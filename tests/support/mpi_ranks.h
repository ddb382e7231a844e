/* SPDX-License-Identifier: Apache-2.0 */
/* support/mpi_ranks.h: a test job whose ranks are started by another launcher
 * (mpirun). A rank is this program again, whose main calls mpi_ranks_run_child
 * first. The ranks share one page with the test, in which pointers are not
 * valid.
 *
 * A rank that is done stays until all are, because a launcher may end the
 * others when the first one exits.
 */
#ifndef TESTS_SUPPORT_MPI_RANKS_H
#define TESTS_SUPPORT_MPI_RANKS_H

#include "support/test_job.h"

/* Returns whether this process is a rank of such a job. Then it has run, and
 * *code is what its function returned, for main to return. */
int mpi_ranks_run_child(int *code);

/* Does what test_job_start does; page: from shared_page; fn: a function of this
 * program. What the launcher and the ranks print is kept for
 * mpi_ranks_print_output. */
void mpi_ranks_start(test_job *c, const char *launcher, int ranks,
                     test_job_fn fn, void *page, const char *format, ...)
    OAR_PRINTF(6, 7);

/* Prints what the ranks of the last job have printed. */
void mpi_ranks_print_output(void);

/* Waits for the launcher and so for all ranks. Returns whether it ends by
 * itself. */
int mpi_ranks_await_end(test_job *c, int timeout_ms);

/* Lets the ranks exit that are done, and waits for the launcher. Returns
 * whether it ends by itself. */
int mpi_ranks_release(test_job *c, int timeout_ms);

/* Tells Open MPI to allow more ranks than cores, and root. */
void mpi_ranks_allow_root(void);

/* ---- for test_job.c ------------------------------------------------------ */

/* Returns how the rank ended; TEST_JOB_LATE if it has not. */
int mpi_ranks_exit_code(test_job *c, int rank);
int mpi_ranks_is_stopped(test_job *c, int rank);
/* Kills the ranks that are left, and the launcher. Returns how many ranks that
 * were. */
int mpi_ranks_kill(test_job *c);

#endif
