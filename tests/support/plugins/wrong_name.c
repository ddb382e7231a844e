/* SPDX-License-Identifier: Apache-2.0 */
/* It has no name. */
#define WRONG_NAME
#include "wrong.h"
