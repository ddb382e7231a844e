/* SPDX-License-Identifier: Apache-2.0 */
/* support/rank_outcome.h: whether the ranks of a fault scenario saw what they
 * must have seen: all survivors the same, and the right thing. */
#ifndef TESTS_SUPPORT_RANK_OUTCOME_H
#define TESTS_SUPPORT_RANK_OUTCOME_H

#include "support/scenario.h"

/* What one rank has seen. */
typedef struct rank_outcome {
    int calls; /* begun; also the line of the call site that it passes */
    oar_coll kind;
    int joined, failed;
    int spared; /* nothing went wrong for it, which is allowed */
    oar_status status;
    oar_error record;
} rank_outcome;

/* Why a scenario failed; empty: it did not. */
typedef char failure_text[1024];

/* Writes the reason and returns 0. */
int failure_write(failure_text why, const char *format, ...) OAR_PRINTF(2, 3);

/* Returns 1, or 0 with the reason. of: by rank. */
int outcomes_check(const scenario *s, const rank_outcome *of, failure_text why);

/* Checks only the ranks that saw something, where survivors may have been ended
 * before they did. Returns as outcomes_check does. */
int outcomes_check_partial(const scenario *s, const rank_outcome *of,
                           failure_text why);

#endif
