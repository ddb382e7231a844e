/* SPDX-License-Identifier: Apache-2.0 */
/* support/verdict.h: whether the ranks of a scenario saw what they must have
 * seen: all survivors the same, and the right thing. */
#ifndef TESTS_SUPPORT_VERDICT_H
#define TESTS_SUPPORT_VERDICT_H

#include "support/scenario.h"

/* What one rank has seen. */
typedef struct witness {
    int calls; /* begun; also the line of the site that is named */
    oar_coll kind;
    int joined, failed;
    int spared; /* nothing has gone wrong for it, and need not have */
    oar_status status;
    oar_error record;
} witness;

/* Why a scenario failed; empty: it did not. */
typedef char reason[1024];

/* Writes it and returns 0. */
int verdict_say(reason why, const char *format, ...) OAR_PRINTF(2, 3);

/* 1, or 0 with the reason. of: by rank. */
int verdict_reach(const scenario *s, const witness *of, reason why);

/* The same where survivors may have been ended before they saw anything: what
 * those say that have seen something is right. */
int verdict_reach_partly(const scenario *s, const witness *of, reason why);

#endif
