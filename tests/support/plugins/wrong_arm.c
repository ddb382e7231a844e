/* SPDX-License-Identifier: Apache-2.0 */
/* The backend gives a descriptor that is never armed. */
#define WRONG_ARM
#include "wrong.h"
