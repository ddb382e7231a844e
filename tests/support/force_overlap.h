/* SPDX-License-Identifier: Apache-2.0 */
/* support/force_overlap.h: a group whose operations run beside the caller's
 * work, as if there were two cores for each rank. */
#ifndef TESTS_SUPPORT_FORCE_OVERLAP_H
#define TESTS_SUPPORT_FORCE_OVERLAP_H

#include <oarsong/group.h>

/* All ranks call it before they make anything that asks oar_group_overlaps. */
void force_overlap(oar_group *group);

#endif
