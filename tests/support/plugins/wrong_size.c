/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's table ends too early. */
#define WRONG_SIZE
#include "wrong.h"
