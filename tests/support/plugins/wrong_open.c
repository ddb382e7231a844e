/* SPDX-License-Identifier: Apache-2.0 */
/* It cannot be opened. */
#define WRONG_OPEN
#include "wrong.h"
