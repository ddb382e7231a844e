/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/rules/cut_ranks.h: for rules whose local operations meet
 * other ranks, or have nothing to compute. */
#ifndef OARI_PARALLEL_DTENSOR_RULES_CUT_RANKS_H
#define OARI_PARALLEL_DTENSOR_RULES_CUT_RANKS_H

#include <oarsong/collective.h>

#include "parallel/dtensor/rules/rule.h"

/* The ranks between which some letters are cut. */
typedef struct oari_cut_ranks {
    oar_mesh *mesh;
    const oari_decision *decision;
    unsigned letters; /* bits */
} oari_cut_ranks;

/* Combines numbers over these ranks: bitwise the same on all of them. */
oar_status oari_cut_ranks_reduce(const oari_cut_ranks *ranks, oar_reduce_op op,
                                 int64_t count, double *number);

/* Returns how many ranks there are, and gathers f64 numbers of all of them on
 * the current stream of a GPU, in the same order on all. `all` has room for
 * those of each. */
int oari_cut_ranks_count(const oari_cut_ranks *ranks);
oar_status oari_cut_ranks_gather(const oari_cut_ranks *ranks, oar_span mine,
                                 oar_span all);

/* Returns whether some mesh dim cuts one of the letters. */
int oari_letters_are_cut(const oari_decision *decision, unsigned letters);

/* Returns whether this rank is the first of those between which the letters are
 * cut. */
int oari_cut_ranks_is_first(const oari_cut_ranks *ranks);

/* Returns zeros in the shape of the local result, for ranks on which the local
 * operation has nothing to compute. Recorded, so that backward meets the other
 * ranks; gradients are zeros. NULL on failure. */
oar_tensor *oari_rule_zeros(const oari_rule_call *call,
                            const oari_decision *decision,
                            oar_tensor *const *in);

/* Returns the bias on the first of the ranks that add up the result, and zeros
 * on the others, which take part in its gradient. NULL if bias is NULL or on
 * failure. */
oar_tensor *oari_rule_bias_once(const oari_rule_call *call,
                                const oari_cut_ranks *ranks, oar_tensor *bias);

/* Returns a * factor, and releases a if it is the caller's. */
oar_tensor *oari_rule_scaled(oar_tape *tape, oar_tensor *a, double factor);

#endif
