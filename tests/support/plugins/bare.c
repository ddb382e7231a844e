/* SPDX-License-Identifier: Apache-2.0 */
/* bare: the example backend without links of ours beside it: a backend that
 * only sends and receives. */
#include <oarsong/backend.h>

#define OAR_WANTS_LINKS 0
#include "../../../examples/backend_plugin/carrier.c"
