/* SPDX-License-Identifier: Apache-2.0 */
/* comm/rendezvous/pmix.h: texts that all ranks of a job get from rank 0,
 * through a launcher that speaks PMIx: Open MPI's mpirun, or SLURM's srun
 * --mpi=pmix.
 *
 * The client library (libpmix.so.2) is loaded when first needed, never linked.
 * Once initialised, PMIx is kept until the process exits: it counts its users,
 * and MPI_Init could not use it after a finalisation. From then on the launcher
 * takes the death of a rank for the death of the job. Any thread may call these
 * functions.
 */
#ifndef OARI_COMM_RENDEZVOUS_PMIX_H
#define OARI_COMM_RENDEZVOUS_PMIX_H

#include <oarsong/status.h>

/* Returns whether the launcher speaks PMIx and has this process as this rank.
 */
int oari_pmix_here(int rank);

/* Gives all ranks rank 0's word, of at most `bytes` with the zero byte. All of
 * them call it with the same key, another for each word. Fails with
 * OAR_E_UNAVAILABLE if the library is missing or cannot reach the launcher. */
oar_status oari_pmix_share(int rank, const char *key, int64_t timeout_ms,
                           char *word, size_t bytes);

#endif
