/* SPDX-License-Identifier: Apache-2.0 */
/* rng: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3"). The key is the seed; the counter is the block in its low half and
 * the stream in its high half.
 *
 * A block makes a fixed number of results: four f32 (one word each) or two f64
 * (two words each). A range that starts or ends inside a block makes the whole
 * block and keeps its part, so that results do not depend on the range. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { BATCH = 8 }; /* blocks made side by side, so that loops vectorise */

/* The same word of every block of a batch. */
typedef uint32_t lanes[BATCH];

static void round_once(lanes word[4], uint32_t low_key, uint32_t high_key)
{
    for (int i = 0; i < BATCH; i++) {
        uint64_t first = (uint64_t)0xd2511f53u * word[0][i];
        uint64_t second = (uint64_t)0xcd9e8d57u * word[2][i];

        word[0][i] = (uint32_t)(second >> 32) ^ word[1][i] ^ low_key;
        word[1][i] = (uint32_t)second;
        word[2][i] = (uint32_t)(first >> 32) ^ word[3][i] ^ high_key;
        word[3][i] = (uint32_t)first;
    }
}

/* Makes the words of blocks block, block + 1, ... */
static void make_batch(oari_rng rng, uint64_t block, uint32_t out[BATCH][4])
{
    uint32_t low_key = (uint32_t)rng.seed,
             high_key = (uint32_t)(rng.seed >> 32);
    lanes word[4];

    for (int i = 0; i < BATCH; i++) {
        word[0][i] = (uint32_t)(block + (unsigned)i);
        word[1][i] = (uint32_t)((block + (unsigned)i) >> 32);
        word[2][i] = (uint32_t)rng.stream;
        word[3][i] = (uint32_t)(rng.stream >> 32);
    }
    for (uint32_t turn = 0; turn < 10; turn++)
        round_once(word, low_key + turn * 0x9e3779b9u,
                   high_key + turn * 0xbb67ae85u);
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < 4; k++)
            out[i][k] = word[k][i];
}

void oari_rng_block(oari_rng rng, uint64_t block, uint32_t word[4])
{
    uint32_t made[BATCH][4];

    make_batch(rng, block, made);
    memcpy(word, made[0], sizeof made[0]);
}

static uint64_t join_words(const uint32_t word[2])
{
    return (uint64_t)word[1] << 32 | word[0];
}

/* Makes two normal numbers of two uniform ones; u is in (0, 1]. */
static void box_muller(double u, double v, double normal[2])
{
    const double two_pi = 6.283185307179586476925286766559;
    double radius = sqrt(-2.0 * log(u));

    normal[0] = radius * cos(two_pi * v);
    normal[1] = radius * sin(two_pi * v);
}

static void uniform_four(const uint32_t word[4], float made[4])
{
    for (int i = 0; i < 4; i++)
        made[i] = (float)(word[i] >> 8) * 0x1p-24f;
}

static void uniform_two(const uint32_t word[4], double made[2])
{
    for (int i = 0; i < 2; i++)
        made[i] = (double)(join_words(word + 2 * i) >> 11) * 0x1p-53;
}

static void normal_four(const uint32_t word[4], float made[4])
{
    double pair[2];

    for (int i = 0; i < 4; i += 2) {
        box_muller(((double)word[i] + 1.0) * 0x1p-32,
                   (double)word[i + 1] * 0x1p-32, pair);
        made[i] = (float)pair[0];
        made[i + 1] = (float)pair[1];
    }
}

static void normal_two(const uint32_t word[4], double made[2])
{
    box_muller((double)((join_words(word) >> 11) + 1) * 0x1p-53,
               (double)(join_words(word + 2) >> 11) * 0x1p-53, made);
}

/* Defines one public function: from each block, `make` makes `per` numbers. */
#define FILL(name, type, per, make)                                  \
    void name(oari_rng rng, uint64_t first, type *out, size_t count) \
    {                                                                \
        uint32_t word[BATCH][4];                                     \
        type made[BATCH * per];                                      \
        size_t done = 0, n;                                          \
                                                                     \
        for (; done < count; done += n) {                            \
            size_t skip = (first + done) % per;                      \
                                                                     \
            n = BATCH * per - skip;                                  \
            n = n < count - done ? n : count - done;                 \
            make_batch(rng, (first + done) / per, word);             \
            for (size_t i = 0; i < (skip + n + per - 1) / per; i++)  \
                make(word[i], made + i * per);                       \
            memcpy(out + done, made + skip, n * sizeof *out);        \
        }                                                            \
    }

FILL(oari_rng_uniform_f32, float, 4, uniform_four)
FILL(oari_rng_uniform_f64, double, 2, uniform_two)
FILL(oari_rng_normal_f32, float, 4, normal_four)
FILL(oari_rng_normal_f64, double, 2, normal_two)
