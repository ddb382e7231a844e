/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is wrong with it, but it is old: it has no post array. */
#define WRONG_NOTHING
#include "wrong.h"
