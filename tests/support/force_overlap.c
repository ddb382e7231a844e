/* SPDX-License-Identifier: Apache-2.0 */
#include "support/force_overlap.h"

#include "link/shm/board.h"
#include "comm/group/group.h"

void force_overlap(oar_group *group)
{
    if (group->board != NULL)
        group->board->spare = 1;
}
