/* SPDX-License-Identifier: Apache-2.0 */
/* It gives no table. */
#define WRONG_TABLE
#include "wrong.h"
