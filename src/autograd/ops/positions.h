/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/positions.h: what models count with. */
#ifndef OARI_AUTOGRAD_OPS_POSITIONS_H
#define OARI_AUTOGRAD_OPS_POSITIONS_H

#include <oarsong/ops.h>

/* Returns 0, 1, .. count-1 as i64 on a device, as oar_arange does on the cpu.
 * On a GPU the host writes nothing. */
oar_tensor *oari_positions(oar_tape *tape, oar_device device, int64_t count);

#endif
