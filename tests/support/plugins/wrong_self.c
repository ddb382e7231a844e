/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of the backend have no size. */
#define WRONG_SELF
#include "wrong.h"
