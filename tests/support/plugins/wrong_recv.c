/* SPDX-License-Identifier: Apache-2.0 */
/* The backend sends, but does not receive. */
#define WRONG_RECV
#include "wrong.h"
