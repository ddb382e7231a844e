/* SPDX-License-Identifier: Apache-2.0 */
/* nn/build.h: what layers are put together with. */
#ifndef OARI_NN_BUILD_H
#define OARI_NN_BUILD_H

#include <oarsong/module.h>

/* Checks that a layer called name can have numbers of this dtype. */
oar_status oari_layer_dtype(const char *name, oar_dtype dtype);

/* Register what the call before has made: NULL is that call's failure. */
oar_status oari_layer_param(oar_module *module, const char *name,
                            oar_tensor *made);
oar_status oari_layer_buffer(oar_module *module, const char *name,
                             oar_tensor *made);
oar_status oari_layer_child(oar_module *module, const char *name,
                            oar_status status, oar_module *made);

/* The end of a constructor: gives made, or releases it if status is bad. */
oar_status oari_layer_give(oar_status status, oar_module *made,
                           oar_module **module);

/* Drops x, which child made inside the module that calls this: only backward
 * may read it again. A child with backward hooks keeps it, because its
 * parameters may be away when x would have to be computed again. */
void oari_layer_drop(oar_tape *tape, const oar_module *child, oar_tensor *x);

/* Runs a forward of several operations without a tape: on one of its own that
 * does not record. The caller owns the result. */
typedef oar_tensor *(*oari_forward_fn)(oar_tape *tape, oar_module *module,
                                       oar_tensor *x);
oar_tensor *oari_forward_alone(oari_forward_fn forward, oar_module *module,
                               oar_tensor *x);

#endif
