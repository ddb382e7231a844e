/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/record.h: what every operation goes through: the checks of its
 * inputs before, and the hand-over of its result after. */
#ifndef OARI_AUTOGRAD_RECORD_H
#define OARI_AUTOGRAD_RECORD_H

#include "autograd/tape.h"

/* Checks that the inputs are there, that their data is attached, that they are
 * on one device, and that none was computed on another tape. Optional ones may
 * be NULL: leave them out. */
oar_status oari_check_inputs(const char *name, oar_tape *tape, int inputs,
                             oar_tensor *const *input);

/* Check that an operation computes in a's dtype: any number, or floats only; or
 * that two inputs have one dtype. `name` is the operation's. */
oar_status oari_check_number(const char *name, const oar_tensor *a);
oar_status oari_check_float(const char *name, const oar_tensor *a);
oar_status oari_check_same_dtype(const char *name, const oar_tensor *a,
                                 const oar_tensor *b);

/* Returns whether an operation on this tape will be asked for the gradient of
 * a. */
int oari_grad_wanted(const oar_tape *tape, const oar_tensor *a);

/* An operation that has been computed. */
typedef struct oari_node_record {
    const oari_op_class *op;
    int inputs;
    oar_tensor *input[OARI_MAX_INPUTS]; /* borrowed; NULL where absent */
    oar_tensor *saved[OARI_MAX_SAVED];  /* borrowed; a reference is taken */
    oari_extra extra;
} oari_node_record;

/* Takes the reference to out, records the recipe if an input wants a gradient,
 * and returns out to be given to the caller; NULL on failure, or if out was
 * NULL already. */
oar_tensor *oari_emit(oar_tape *tape, oar_tensor *out,
                      const oari_node_record *recipe);

/* The same for a tensor that the tape owns already, or that stays the caller's
 * without a tape. */
oar_tensor *oari_record(oar_tape *tape, oar_tensor *out,
                        const oari_node_record *recipe);

/* Takes the reference to a tensor that no operation made, for the tape if there
 * is one, and returns it; NULL on failure, or if out was NULL already. */
oar_tensor *oari_keep(oar_tape *tape, oar_tensor *out);

/* Gives up a result that could not be computed. Returns NULL. */
oar_tensor *oari_abandon(oar_tape *tape, oar_tensor *out);

/* Checks that inputs are on the cpu: for operations that no other device has.
 * OAR_E_DEVICE if not. */
oar_status oari_check_on_cpu(const char *name, const oar_tensor *a);

#endif
