/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_replay.h: what the rest of the library does differently
 * while this thread records a step. */
#ifndef OARI_DEVICE_CUDA_CUDA_REPLAY_H
#define OARI_DEVICE_CUDA_CUDA_REPLAY_H

#include <oarsong/replay.h>

/* Returns whether this thread records a step on that device. */
int oari_replay_records(int device);

/* Gives device memory that holds numbers which the host decides on in each
 * step: `first` in the step that is recorded; in each replay fill(arg, to)
 * writes them, in the order of these calls. Takes arg, which oari_free frees;
 * on failure too. Only while a step is recorded. */
typedef void (*oari_replay_fill_fn)(void *arg, void *to);
oar_status oari_replay_number(const void *first, size_t bytes,
                              oari_replay_fill_fn fill, void *arg, void **at);

/* Gives device memory whose number kernels add to their seeds, so that each
 * replay draws others: 0 in the step that is recorded. NULL where this thread
 * does not record one on that device. */
oar_status oari_replay_salt(int device, const uint64_t **salt);

/* Memory that is freed while a step is recorded stays with the replay, whose
 * graphs use it. Returns whether it was taken. */
int oari_replay_keep(int device, void *memory);

/* Lets the pool ask events and allocate while a step is recorded; begin
 * returns what end takes. */
int oari_replay_alloc_begin(int device);
void oari_replay_alloc_end(int device, int before);

#endif
