/* SPDX-License-Identifier: Apache-2.0 */
/* The backend gives no table. */
#define WRONG_TABLE
#include "wrong.h"
