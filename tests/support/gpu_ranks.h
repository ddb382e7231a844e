/* SPDX-License-Identifier: Apache-2.0 */
/* support/gpu_ranks.h: jobs whose ranks have a GPU each, and buffers on it.
 *
 * With the stand-ins there are as many GPUs as ranks; with OARSONG_TEST_GPU=1
 * those of the machine count (OARSONG_TEST_GPUS, 1), and tests that need more
 * are skipped. The parent never touches the driver, or its children could not.
 */
#ifndef TESTS_SUPPORT_GPU_RANKS_H
#define TESTS_SUPPORT_GPU_RANKS_H

#include <oarsong/device.h>

#include "support/test_job.h"

enum { GPU_RANKS_MAX = 4, GPU_RANKS_TIMEOUT_MS = 20000 };

/* main calls it before anything else. */
void gpu_ranks_init(void);
/* Returns whether tests run on real GPUs. */
int gpu_ranks_are_real(void);
/* Returns how many ranks can have a GPU each, at most GPU_RANKS_MAX. */
int gpu_ranks_max(void);
/* Skips the test, and says so, if fewer ranks can have a GPU each. */
void gpu_ranks_need(int ranks);

/* In a rank: makes its group on "nccl" (unless opts name another backend), on
 * GPU number rank, with a timeout of 20 s, times OARSONG_TEST_SLOWER. */
oar_status gpu_ranks_join(const test_job *c, int rank,
                          const oar_group_opts *opts, oar_group **group);
/* The same where the ranks of all backends but nccl share the first GPU, which
 * becomes the current device. Gives the rank's GPU. */
oar_status gpu_ranks_open(const test_job *c, int rank, const char *backend,
                          oar_device *device, oar_group **group);
/* Returns whether all ranks have the same bits. */
int gpu_same_on_all(oar_group *group, const double *mine, int count);
/* Returns how often this thread has waited for the GPU, as the stand-in counts
 * it; 0 on a real one. */
long gpu_host_waits(void);
/* Returns how many bytes of a GPU this process has in use, once it has what it
 * keeps for good: memory for products, and for errors of indices. What nobody
 * uses goes back to the driver. */
size_t gpu_used_bytes(oar_device device);
/* Returns the GPU of a rank. */
oar_device gpu_of_rank(int rank);

/* Allocates memory on the GPU of a rank and copies `from` into it; NULL: every
 * byte is 0xee. */
void *gpu_put(int rank, const void *from, size_t bytes);
/* Copies it to the host after everything on the default stream. */
void gpu_get(int rank, void *into, const void *memory, size_t bytes);
void gpu_free(int rank, void *memory);

/* Returns a span of such memory. */
oar_span gpu_span(int rank, void *memory, size_t count, oar_dtype dtype);

#endif
