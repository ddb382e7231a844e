/* SPDX-License-Identifier: Apache-2.0 */
#include "support/overlap.h"

#include "comm/board.h"
#include "comm/group.h"

void overlap(oar_group *group)
{
    if (group->board != NULL)
        group->board->spare = 1;
}
