/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/move_op.h: moves of tensors as operations on a tape. */
#ifndef OARI_PARALLEL_DTENSOR_MOVE_OP_H
#define OARI_PARALLEL_DTENSOR_MOVE_OP_H

#include "parallel/dtensor/move_run.h"

/* Checks that a tensor can be this rank's part. call is for messages. */
oar_status oari_check_local(const oar_tensor *local, const oar_spec *spec,
                            const char *call);

/* Gives the moved tensor: the tape's, or without one a new reference. grad:
 * where the gradient of the result lies; NULL: as every gradient does. Counts
 * it in the mesh's scope. NULL on failure. */
oar_tensor *oari_move_tensor(oar_tape *tape, oar_tensor *local,
                             oari_move_path *path, const oar_spec *grad,
                             int implicit);

/* Gives the tensor itself, whose gradient then comes as `grad` lies. With a
 * tape only. NULL on failure. */
oar_tensor *oari_take_grad_from(oar_tape *tape, oar_tensor *local,
                                const oar_spec *spec, const oar_spec *grad);

#endif
