/* SPDX-License-Identifier: Apache-2.0 */
/* base/hash.h: XXH3, of bytes in memory of any type. */
#ifndef OARI_BASE_HASH_H
#define OARI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Returns the hash of 64 bits. Seed 0 gives what XXH3_64bits returns. */
uint64_t oari_hash64(const void *data, size_t bytes, uint64_t seed);

/* Gives the hash of 128 bits, its low half first. */
void oari_hash128(const void *data, size_t bytes, uint64_t hash[2]);

#endif
