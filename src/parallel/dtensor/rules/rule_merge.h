/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/rules/rule_merge.h: results of parts, combined with those of
 * other ranks so that gradients find the way back. */
#ifndef OARI_PARALLEL_DTENSOR_RULES_RULE_MERGE_H
#define OARI_PARALLEL_DTENSOR_RULES_RULE_MERGE_H

#include "parallel/dtensor/rules/rule.h"

/* Combines the local results of ranks along the mesh dims that cut a letter
 * which the result does not have: max, min or prod. Of equal ones the first
 * rank's gets the gradient. Takes local, if there is no tape; NULL on failure.
 */
oar_tensor *oari_merge_local(const oari_rule_call *call,
                             const oari_decision *decision, oar_tensor *local,
                             oar_reduce_op_kind op);

/* Fills a tensor of integers or bools with what changes no max, min or prod. */
oar_status oari_fill_neutral(oar_tensor *tensor, oar_reduce_op_kind op);

#endif
