/* SPDX-License-Identifier: Apache-2.0 */
/* support/wreck.h: what can be told of a job that was ended as a whole, because
 * one of its ranks died: the boxes of all, in a folder of the crew's. */
#ifndef TESTS_SUPPORT_WRECK_H
#define TESTS_SUPPORT_WRECK_H

#include "support/crew.h"
#include "support/verdict.h"

/* In a rank, before it makes a group: its box will be kept. */
void wreck_keep_box(const crew *c);

/* 1 if the autopsy's verdict is about that rank, or no rank got so far as to
 * have a box; else 0 with the reason. */
int wreck_names(const crew *c, int rank, reason why);

/* The boxes go. */
void wreck_clear(const crew *c);

#endif
