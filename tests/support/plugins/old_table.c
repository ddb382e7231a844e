/* SPDX-License-Identifier: Apache-2.0 */
/* old_table: a valid backend with an older, shorter table: it has no post
 * array. */
#define OLD_TABLE
#include "wrong.h"
