/* SPDX-License-Identifier: Apache-2.0 */
/* hash: the one place that includes xxHash.
 *
 * Its NEON code reads memory as if it were an array of uint64_t. Inlined into
 * a function that has just written an int there, it may read what was there
 * before: compilers assume that the two do not overlap. So this file is
 * compiled without that assumption, and nothing in it is inlined elsewhere. */
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

__attribute__((noinline)) uint64_t oari_hash64(const void *data, size_t bytes,
                                               uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

__attribute__((noinline)) void oari_hash128(const void *data, size_t bytes,
                                            uint64_t hash[2])
{
    XXH128_hash_t both = XXH3_128bits(data, bytes);

    hash[0] = both.low64;
    hash[1] = both.high64;
}
