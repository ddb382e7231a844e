/* SPDX-License-Identifier: Apache-2.0 */
/* The backend cannot be opened. */
#define WRONG_OPEN
#include "wrong.h"
