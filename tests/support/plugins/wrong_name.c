/* SPDX-License-Identifier: Apache-2.0 */
/* The backend has no name. */
#define WRONG_NAME
#include "wrong.h"
