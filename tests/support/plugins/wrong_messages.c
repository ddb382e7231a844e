/* SPDX-License-Identifier: Apache-2.0 */
/* It neither sends nor receives. */
#define WRONG_MESSAGES
#include "wrong.h"
