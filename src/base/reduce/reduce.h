/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce.h: the arithmetic of collectives: combine n sources
 * element by element and store the result into m destinations, in one pass.
 *
 * The order is fixed: source 0, then 1, then 2, ... for every element, whatever
 * the count, the alignment or the instruction set, so that results do not
 * depend on how a buffer was cut. Half types are combined in f32 and rounded
 * once. Rules for NaN, zeros, integers and booleans: oarsong/span.h.
 */
#ifndef OARI_BASE_REDUCE_REDUCE_H
#define OARI_BASE_REDUCE_REDUCE_H

#include <oarsong/span.h>

#include "base/plugin.h"

enum { OARI_REDUCE_MAX = 1024 }; /* sources or destinations at once */

typedef struct oari_reduction {
    oar_op_kind kind; /* SUM for AVG, PREMUL_SUM and WEIGHTED_MEAN too: what
                         makes them differ is factor and divisor */
    oar_dtype dtype;
    int sources;
    const void *const *source;
    /* NULL, or one factor per source (sums only), applied before adding: in
     * f32 for f32 and halves, in f64 for f64; integers by f64, truncated. */
    const double *factor;
    /* 0 for none; else the sum is divided by it before it is stored (integers
     * truncate toward zero). */
    double divisor;
    int destinations;
    void *const *destination; /* each may be exactly a source, or apart */
} oari_reduction;

/* Combines count elements. One source without factor or divisor is a copy.
 * The operator must suit the dtype (oar_op_check). Cannot fail. */
OARI_FOR_PLUGINS void oari_reduce(const oari_reduction *r, size_t count);

/* What operators are made of: whether each source has a factor of its own (its
 * weight), the kind that is computed, and what the result is divided by. */
static inline int oari_needs_factors(oar_op_kind kind)
{
    return kind == OAR_OP_PREMUL_SUM || kind == OAR_OP_WEIGHTED_MEAN;
}
static inline oar_op_kind oari_computed_kind(oar_op_kind kind)
{
    return oari_needs_factors(kind) || kind == OAR_OP_AVG ? OAR_OP_SUM : kind;
}
double oari_divisor(oar_op_kind kind, int sources, const double *factor);

/* "neon", "avx512", ...: the instruction set in use. */
const char *oari_reduce_isa(void);

/* For tests and benchmarks: use this instruction set from now on ("scalar" is
 * always there). OAR_E_UNAVAILABLE if this machine does not have it. */
oar_status oari_reduce_use(const char *isa);

#endif
