/* SPDX-License-Identifier: Apache-2.0 */
/* Its instances have no size. */
#define WRONG_SELF
#include "wrong.h"
