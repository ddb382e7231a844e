/* SPDX-License-Identifier: Apache-2.0 */
/* It cannot be closed. */
#define WRONG_CLOSE
#include "wrong.h"
