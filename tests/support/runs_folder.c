/* SPDX-License-Identifier: Apache-2.0 */
#include "support/runs_folder.h"

#include <stdio.h>

char runs_folder[FOLDER_PATH], runs_path[FOLDER_PATH + 8];

int runs_folder_make(void **state)
{
    (void)state;
    folder_make(runs_folder);
    snprintf(runs_path, sizeof runs_path, "%s/runs", runs_folder);
    return 0;
}

int runs_folder_remove(void **state)
{
    (void)state;
    return folder_remove(runs_folder);
}

void runs_folder_renew(void)
{
    runs_folder_remove(NULL);
    runs_folder_make(NULL);
}
