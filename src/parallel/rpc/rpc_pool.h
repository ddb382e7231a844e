/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_pool.h: threads that run jobs in the order they are posted.
 * A job that is about to wait for another one says so, and another thread takes
 * its place meanwhile, up to a bound: so jobs that wait for jobs cannot use up
 * all threads. */
#ifndef OARI_PARALLEL_RPC_RPC_POOL_H
#define OARI_PARALLEL_RPC_RPC_POOL_H

#include "base/worker.h"

typedef struct oari_rpc_pool oari_rpc_pool;

/* Makes a pool; its threads are started as they are needed. */
oar_status oari_rpc_pool_create(int threads, int most, oari_rpc_pool **pool);

/* Gives it a job, which lies in the caller's memory until it is begun. Never
 * blocks. Without a thread, when none can be started, the job waits for the
 * next that is posted. */
void oari_rpc_pool_post(oari_rpc_pool *pool, oari_job *job);

/* Around a wait inside a job; outside of one both do nothing. OAR_E_BUSY if the
 * wait would leave no thread. */
oar_status oari_rpc_pool_block_begin(oari_rpc_pool *pool);
void oari_rpc_pool_block_end(oari_rpc_pool *pool);

/* Says how many threads there are, have been, and jobs that wait. */
void oari_rpc_pool_count(oari_rpc_pool *pool, int *threads, int *most,
                         int *waiting);

/* Runs what is left, and joins the threads; NULL is fine. Not from a job. */
void oari_rpc_pool_destroy(oari_rpc_pool *pool);

#endif
