/* SPDX-License-Identifier: Apache-2.0 */
/* Its table ends too early. */
#define WRONG_SIZE
#include "wrong.h"
