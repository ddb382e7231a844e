/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/tensor_parallel/tp_plan.h: what becomes of which module, by the
 * rules. */
#ifndef OARI_PARALLEL_TENSOR_PARALLEL_TP_PLAN_H
#define OARI_PARALLEL_TENSOR_PARALLEL_TP_PLAN_H

#include "base/vec.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

enum { OARI_TP_NAME = 256 }; /* bytes of a dotted name */

/* A module that a rule names, or a linear layer inside one. */
typedef struct oari_tp_plan_entry {
    char *name;
    oar_module *module; /* borrowed: as it is now */
    oari_tp_layer layer;
    int heads, first_head; /* of an attention */
    oar_module *made;      /* what takes its place; NULL: it is changed */
} oari_tp_plan_entry;

typedef struct oari_tp_plan {
    oar_module *root;
    oari_tp *tp;
    int rules;
    const oar_tp_rule *rule;
    OARI_VEC(oari_tp_plan_entry) entry;
} oari_tp_plan;

/* Fills the plan for root, tp and rules, which are set. The model is not
 * changed. */
oar_status oari_tp_plan_make(oari_tp_plan *p);
void oari_tp_plan_drop(oari_tp_plan *p); /* also one that is half made */

/* Fails if the module, or one below it, is wrapped or parallel already. */
oar_status oari_tp_refuse_wrapped(const oar_module *module);

/* Returns the name of a style, which there is. */
const char *oari_tp_style_name(oar_tp_style style);

#endif
