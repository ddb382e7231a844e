/* SPDX-License-Identifier: Apache-2.0 */
/* support/overlap.h: a group whose operations go on beside the caller's work,
 * as if there were two cores for each rank. */
#ifndef TESTS_SUPPORT_OVERLAP_H
#define TESTS_SUPPORT_OVERLAP_H

#include <oarsong/group.h>

/* All ranks call it, before they make what asks oar_group_overlaps. */
void overlap(oar_group *group);

#endif
