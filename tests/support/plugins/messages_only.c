/* SPDX-License-Identifier: Apache-2.0 */
/* messages_only: the example backend with nothing but send and recv: no
 * wildcards, no probes, none of the library's links beside it. */
#include <oarsong/backend.h>

#define OAR_CAN_ANY     0
#define OAR_CAN_PROBE   0
#define OAR_WANTS_LINKS 0
#include "../../../examples/backend_plugin/carrier.c"
