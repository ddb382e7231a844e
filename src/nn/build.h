/* SPDX-License-Identifier: Apache-2.0 */
/* nn/build.h: what layers are put together with. */
#ifndef OARI_NN_BUILD_H
#define OARI_NN_BUILD_H

#include <oarsong/module.h>

/* The classes that oar_layer_kind_of tells apart. */
extern const oar_module_class oari_linear_class, oari_embedding_class,
    oari_layer_norm_class, oari_rms_norm_class, oari_dropout_class,
    oari_attention_class;

/* Checks that a layer called name can have numbers of this dtype. */
oar_status oari_layer_dtype(const char *name, oar_dtype dtype);

/* Register what the call before has made: NULL is that call's failure. */
oar_status oari_layer_param(oar_module *module, const char *name,
                            oar_tensor *made);
oar_status oari_layer_buffer(oar_module *module, const char *name,
                             oar_tensor *made);
oar_status oari_layer_child(oar_module *module, const char *name,
                            oar_status status, oar_module *made);

/* Add a weight, and a bias of so many numbers (below 0: none): uniform within
 * 1 / sqrt(what one result is summed from), as in PyTorch; or ones and zeros.
 */
oar_status oari_layer_uniform(oar_module *module, oar_dtype dtype,
                              oar_shape weight, int64_t biases, uint64_t seed);
oar_status oari_layer_affine(oar_module *module, oar_dtype dtype, int64_t width,
                             int has_bias);

/* The end of a constructor: gives made, or releases it if status is bad. */
oar_status oari_layer_give(oar_status status, oar_module *made,
                           oar_module **module);

/* Drops x, which `maker` made inside the module that calls this (NULL: that
 * module's own operation did) and `user` has taken: only backward may read it
 * again. A maker with backward hooks keeps it, because its parameters may be
 * away when x would have to be computed again. So does a maker or user that is
 * open: code outside the library may know x, or give it on. */
void oari_layer_drop(oar_tape *tape, const oar_module *maker,
                     const oar_module *user, oar_tensor *x);

/* Returns whether the module, or one below it, has maps or was replaced. */
int oari_layer_is_open(const oar_module *module);

/* Returns whether nobody outside the library can see that the module's forward
 * is not called: it is not open and has no hooks. */
int oari_layer_is_plain(const oar_module *module);

/* Returns whether a layer norm of a sum with x may be one operation with the
 * sum: on a GPU, and the module is plain. */
int oari_norm_fuses(const oar_module *module, const oar_tensor *x);
/* Returns norm of a + b, and gives a + b. */
oar_tensor *oari_norm_of_sum(oar_tape *tape, oar_module *module, oar_tensor *a,
                             oar_tensor *b, oar_tensor **sum);

/* Returns whether a linear layer and the activation after it may be computed as
 * one operation on x: that is on a GPU, and both modules are plain. */
int oari_layers_fuse(const oar_module *linear, const oar_module *activation,
                     const oar_tensor *x);
oar_tensor *oari_layers_fused(oar_tape *tape, const oar_module *linear,
                              const oar_module *activation, oar_tensor *x);

/* Runs a forward of several operations without a tape: on one of its own that
 * does not record. The caller owns the result. */
typedef oar_tensor *(*oari_forward_fn)(oar_tape *tape, oar_module *module,
                                       oar_tensor *x);
oar_tensor *oari_forward_alone(oari_forward_fn forward, oar_module *module,
                               oar_tensor *x);

#endif
