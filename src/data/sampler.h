/* SPDX-License-Identifier: Apache-2.0 */
/* data/sampler.h: which samples a rank sees, and in which order. Pure
 * arithmetic. */
#ifndef OARI_DATA_SAMPLER_H
#define OARI_DATA_SAMPLER_H

#include <oarsong/data.h>

/* Fills list with 0 .. samples-1 in the order of an epoch. */
void oari_sampler_order(int64_t *list, int64_t samples, uint64_t epoch,
                        const oar_sampler_opts *opts);

/* Checks the numbers: OAR_E_WORLD, OAR_E_RANK or OAR_E_ARG if one cannot be. */
oar_status oari_sampler_check(int64_t samples, int rank, int ranks);

/* Returns how many samples each rank sees; the last ranks see samples from the
 * start again. */
static inline int64_t oari_sampler_count(int64_t samples, int ranks)
{
    return samples / ranks + (samples % ranks != 0);
}

/* Returns the place in the order of a rank's k-th sample, when the ranks take
 * turns from place `first` on. */
static inline int64_t oari_sampler_place(int64_t samples, int64_t first,
                                         int rank, int ranks, int64_t k)
{
    return (first + k * ranks + rank) % samples;
}

#endif
