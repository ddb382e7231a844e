/* SPDX-License-Identifier: Apache-2.0 */
/* The backend cannot be closed. */
#define WRONG_CLOSE
#include "wrong.h"
