/* SPDX-License-Identifier: Apache-2.0 */
/* The backend neither sends nor receives. */
#define WRONG_MESSAGES
#include "wrong.h"
