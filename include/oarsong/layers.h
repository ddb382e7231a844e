/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h: ready-made modules. Each gives one reference to a new module. */
#ifndef OARSONG_LAYERS_H
#define OARSONG_LAYERS_H

#include <oarsong/module.h>

OAR_BEGIN_DECLS

typedef struct oar_linear_opts {
    size_t size;
    int no_bias;
    oar_dtype dtype; /* f32, the zero, or f64 */
} oar_linear_opts;
OAR_OPTS_INIT(oar_linear_opts);

/* Parameters "weight" [out, in] and "bias" [out], both uniform within
 * 1/sqrt(in) of zero: weight from seed, bias from seed + 1. */
OAR_API oar_status oar_linear_create(int64_t in, int64_t out, uint64_t seed,
                                     const oar_linear_opts *opts,
                                     oar_module **module);

OAR_API oar_status oar_relu_create(oar_module **module);

/* Runs its children one after the other; they are named "0", "1", ... Takes
 * the children's references, also on failure; a NULL child is OAR_E_ARG. */
OAR_API oar_status oar_sequential_create(int count, oar_module *const *child,
                                         oar_module **module);

OAR_END_DECLS

#endif
