/* SPDX-License-Identifier: Apache-2.0 */
/* comm/rendezvous/pmix.h: words that rank 0 gives to all ranks of a job by way
 * of whoever started them, where that is somebody who speaks PMIx: Open MPI's
 * mpirun, or SLURM's srun --mpi=pmix.
 *
 * The client library (libpmix.so.2) is looked for when first needed, never
 * linked. Once begun, PMIx is kept until the process exits: it counts who uses
 * it, so that MPI_Init finds it as it should be, which it would not after an
 * end. From then on the launcher takes a rank that dies for the job's death.
 * Any thread.
 */
#ifndef OARI_COMM_RENDEZVOUS_PMIX_H
#define OARI_COMM_RENDEZVOUS_PMIX_H

#include <oarsong/status.h>

/* Whether the launcher speaks PMIx and calls this process by this rank. */
int oari_pmix_here(int rank);

/* Rank 0's word becomes that of all ranks, of at most `bytes` with the zero
 * byte. All of them call this, with one key, another for each word.
 * OAR_E_UNAVAILABLE: the library is not there or cannot reach the launcher. */
oar_status oari_pmix_share(int rank, const char *key, int64_t timeout_ms,
                           char *word, size_t bytes);

#endif
