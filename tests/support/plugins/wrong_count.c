/* SPDX-License-Identifier: Apache-2.0 */
/* The backend says that it has more collectives than its table has room for. */
#define WRONG_COUNT
#include "wrong.h"
