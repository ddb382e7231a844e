/* SPDX-License-Identifier: Apache-2.0 */
/* support/runs_folder.h: the folder of a test that saves checkpoints, to be
 * made and removed as cmocka's setup and teardown. */
#ifndef TESTS_SUPPORT_RUNS_FOLDER_H
#define TESTS_SUPPORT_RUNS_FOLDER_H

#include "support/leak_check.h"

extern char runs_folder[FOLDER_PATH];
extern char runs_path[FOLDER_PATH + 8]; /* "runs" in it, which is not made */

int runs_folder_make(void **state);
int runs_folder_remove(void **state);
/* Removes what is there, and makes another. */
void runs_folder_renew(void);

#endif
