/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce.h: the arithmetic of collectives: combines n sources
 * element by element and stores the result into m destinations, in one pass.
 *
 * The order is fixed: source 0, then 1, then 2, ... for every element, whatever
 * the count, the alignment or the instruction set, so that results do not
 * depend on how a buffer was split. Half types are combined in f32 and rounded
 * once. Rules for NaN, zeros, integers and booleans: oarsong/span.h.
 */
#ifndef OARI_BASE_REDUCE_REDUCE_H
#define OARI_BASE_REDUCE_REDUCE_H

#include <oarsong/span.h>

#include "base/plugin_export.h"

enum { OARI_REDUCE_MAX = 1024 }; /* sources or destinations at once */

typedef struct oari_reduction {
    oar_reduce_op_kind
        kind; /* SUM for AVG, PREMUL_SUM and WEIGHTED_MEAN too, which
                         differ by factor and divisor */
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
 * The operator must suit the dtype (oar_reduce_op_check). Cannot fail. */
OARI_FOR_PLUGINS void oari_reduce(const oari_reduction *r, size_t count);

/* Returns whether each source of an operator has a factor (its weight). */
static inline int oari_needs_factors(oar_reduce_op_kind kind)
{
    return kind == OAR_REDUCE_OP_PREMUL_SUM ||
           kind == OAR_REDUCE_OP_WEIGHTED_MEAN;
}

/* Returns the kind that is computed for an operator: SUM for all means. */
static inline oar_reduce_op_kind oari_computed_kind(oar_reduce_op_kind kind)
{
    return oari_needs_factors(kind) || kind == OAR_REDUCE_OP_AVG
               ? OAR_REDUCE_OP_SUM
               : kind;
}

/* Returns the number by which an operator's result is divided; 0: none. */
double oari_divisor(oar_reduce_op_kind kind, int sources, const double *factor);

/* Returns the name of the instruction set in use: "neon", "avx512", ... */
const char *oari_reduce_isa(void);

/* Uses this instruction set from now on ("scalar" is always there), for tests
 * and benchmarks. OAR_E_UNAVAILABLE if this machine does not have it. */
oar_status oari_reduce_use(const char *isa);

#endif
