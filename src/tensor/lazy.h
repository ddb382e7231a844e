/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/lazy.h: tensors that are filled by a rule, at once or later.
 *
 * A number depends on the rule and on its position only, so any range of the
 * elements can be made alone, with the bits that it has in the whole. A lazy
 * tensor's storage is detached and remembers the rule (`initializer`) until it
 * gets memory. */
#ifndef OARI_TENSOR_LAZY_H
#define OARI_TENSOR_LAZY_H

#include "tensor/tensor.h"

typedef enum oari_distribution {
    OARI_CONSTANT = 0,
    OARI_UNIFORM,
    OARI_NORMAL
} oari_distribution;

typedef struct oari_initializer {
    oari_distribution distribution;
    oar_dtype dtype;
    /* The constant, or low and high, or mean and deviation. */
    double number[2];
    uint64_t seed;
    int64_t first; /* which number of the seed's element 0 gets */
    int64_t zero_first, zero_count; /* elements that are 0 all the same */
} oari_initializer;

/* Makes a tensor that is filled by the rule, of which it keeps a copy. Without
 * a pool, and while oar_lazy is on, it is lazy. */
oar_tensor *oari_tensor_initialized(oari_pool *pool, oar_shape shape,
                                    const oari_initializer *rule);

#endif
