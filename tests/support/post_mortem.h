/* SPDX-License-Identifier: Apache-2.0 */
/* support/post_mortem.h: the recorder files of a job that its launcher ended as
 * a whole because one of its ranks died. They are in a folder of the job. */
#ifndef TESTS_SUPPORT_POST_MORTEM_H
#define TESTS_SUPPORT_POST_MORTEM_H

#include "support/test_job.h"
#include "support/rank_outcome.h"

/* In a rank, before it makes a group: keeps its recorder file. */
void post_mortem_keep(const test_job *c);

/* Returns 1 if the autopsy names that rank, or if no rank has got as far as a
 * recorder file; else 0 with the reason. */
int post_mortem_names(const test_job *c, int rank, failure_text why);

/* Removes the recorder files. */
void post_mortem_clear(const test_job *c);

#endif
