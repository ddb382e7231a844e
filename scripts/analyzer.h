/* SPDX-License-Identifier: Apache-2.0 */
/* For scripts/check-tidy only: what the analyzer cannot see for itself, since
 * it looks at one file at a time. Memory comes zeroed, and a failure is never
 * OAR_OK. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/status.h"

#define oari_alloc(count, size) calloc(count, size)
#define oari_fail(status, ...)  ((oari_fail)(status, __VA_ARGS__), (status))
