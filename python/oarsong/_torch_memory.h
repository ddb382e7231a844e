/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of PyTorch's CPU tensors: shared by the ranks of a host, or kept. */
#ifndef OARSONG_TORCH_MEMORY_H
#define OARSONG_TORCH_MEMORY_H

#include <cstddef>
#include <cstdint>

/* Puts the storage of CPU tensors of at least so many bytes (a page or more) in
 * shared memory from now on; 0: no longer. Any thread. */
void share_memory(size_t least);

struct Shared_stats {
    uint64_t allocations; /* calls of oar_shared_alloc so far */
    size_t used_bytes;    /* in tensors */
    size_t kept_bytes;    /* of freed tensors, for later ones */
};

/* Lets malloc keep what is freed, up to 2 GiB in blocks of up to 32 MiB, so
 * that a step of training finds the memory of the step before. It does nothing
 * where the environment sets malloc's thresholds, and without glibc. */
void keep_freed_memory();

/* Returns what this process has in shared memory for tensors. */
Shared_stats shared_stats();

#endif
