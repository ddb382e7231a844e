/* SPDX-License-Identifier: Apache-2.0 */
/* support/plans.h: operations for the tests of the planners. */
#ifndef TESTS_SUPPORT_PLANS_H
#define TESTS_SUPPORT_PLANS_H

#include "support/symbolic.h"

enum { PLANS_SETTINGS = 4 }; /* of elements, slots and chunks */

/* How an operation is varied. */
typedef struct plans_variant {
    int setting, root;
    int weighted; /* 1: factors, 2: and their sum divides */
    int ragged, object;
    uint64_t seed; /* of ragged parts */
} plans_variant;

int plans_has_root(oar_coll kind);
int plans_has_parts(oar_coll kind);
int plans_can_be_object(oar_coll kind);

symbolic_op plans_make(const oari_algorithm *a, int ranks, size_t count,
                       plans_variant v);

/* Whether the library would ever run this. */
int plans_may_run(const symbolic_op *op);

/* Returns the algorithm; fails the test if there is none. */
const oari_algorithm *plans_find(const char *name, oar_coll kind);

/* Runs a case; a failure fails the test. did may be NULL. */
void plans_run(const symbolic_case *c, symbolic_counts *did);

#endif
