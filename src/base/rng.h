/* SPDX-License-Identifier: Apache-2.0 */
/* base/rng.h: Philox 4x32-10, a counter-based generator. Number i of stream s
 * under seed k is a pure function of (k, s, i): any rank can make any part of a
 * sequence, so results do not depend on how work is divided among ranks. */
#ifndef OARI_BASE_RNG_H
#define OARI_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct oari_rng {
    uint64_t seed;
    uint64_t stream;
} oari_rng;

/* Makes the four 32-bit words of a block. */
void oari_rng_block(oari_rng rng, uint64_t block, uint32_t word[4]);

/* Fill out with numbers first .. first+count-1 of the sequence. Uniform: in
 * [0, 1) with 24 (f32) or 53 (f64) random bits. Normal: mean 0, deviation 1
 * (Box-Muller, computed in f64). */
void oari_rng_uniform_f32(oari_rng rng, uint64_t first, float *out,
                          size_t count);
void oari_rng_uniform_f64(oari_rng rng, uint64_t first, double *out,
                          size_t count);
void oari_rng_normal_f32(oari_rng rng, uint64_t first, float *out,
                         size_t count);
void oari_rng_normal_f64(oari_rng rng, uint64_t first, double *out,
                         size_t count);

#endif
