/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h: ready-made modules. Each gives one reference to a new module. */
#ifndef OARSONG_LAYERS_H
#define OARSONG_LAYERS_H

#include <oarsong/module.h>
#include <oarsong/ops.h>

OAR_BEGIN_DECLS

typedef struct oar_linear_opts {
    size_t size;
    int no_bias;
    oar_dtype dtype; /* f32, the zero, or another float */
} oar_linear_opts;
OAR_OPTS_INIT(oar_linear_opts);

/* Parameters "weight" [out, in] and "bias" [out], both uniform within
 * 1/sqrt(in) of zero: weight from seed, bias from seed + 1. */
OAR_API oar_status oar_linear_create(int64_t in, int64_t out, uint64_t seed,
                                     const oar_linear_opts *opts,
                                     oar_module **module);

OAR_API oar_status oar_relu_create(oar_module **module);

/* One module for each function of one input in ops.h. The default is for
 * options of models; no module is made of it. */
OAR_API oar_status oar_activation_create(oar_activation kind,
                                         oar_module **module);

/* oar_leaky_relu with this slope (PyTorch's default is 0.01). */
OAR_API oar_status oar_leaky_relu_create(double slope, oar_module **module);

/* Parameter "weight" [count, width], normal with deviation 1 (0: that). Takes
 * i64 indices. */
OAR_API oar_status oar_embedding_create(int64_t count, int64_t width,
                                        uint64_t seed, double deviation,
                                        oar_dtype dtype, oar_module **module);

typedef struct oar_embedding_layer_opts {
    size_t size;
    double deviation; /* 0 means 1 */
    oar_dtype dtype;
    int has_padding;
    int64_t padding;    /* this row is zero and gets no gradient (has_padding);
                        negative: from the end */
    int64_t vocabulary; /* above 0: the table is rows first, first + 1, .. of
                           one of so many (ops.h), and begins with their
                           numbers */
    int64_t first;
} oar_embedding_layer_opts;
OAR_OPTS_INIT(oar_embedding_layer_opts);

/* The same with options; count is the rows of this table. A padding that is no
 * row is OAR_E_ARG, and so is a table that does not lie in the vocabulary. */
OAR_API oar_status oar_embedding_create_with(
    int64_t count, int64_t width, uint64_t seed,
    const oar_embedding_layer_opts *opts, oar_module **module);

/* "weight" ones and "bias" zeros [width]; rms has no bias. eps 0 means 1e-5. */
OAR_API oar_status oar_layer_norm_create(int64_t width, double eps,
                                         oar_dtype dtype, oar_module **module);
OAR_API oar_status oar_rms_norm_create(int64_t width, double eps,
                                       oar_dtype dtype, oar_module **module);

typedef struct oar_group_norm_opts {
    size_t size;
    double eps; /* 0 means 1e-5 */
    int no_affine;
    oar_dtype dtype;
} oar_group_norm_opts;
OAR_OPTS_INIT(oar_group_norm_opts);

/* Takes [n, channels, ..]. Parameters "weight", ones, and "bias", zeros, both
 * [channels]; none if no_affine. groups that do not divide the channels are
 * OAR_E_ARG. */
OAR_API oar_status oar_group_norm_create(int64_t groups, int64_t channels,
                                         const oar_group_norm_opts *opts,
                                         oar_module **module);

typedef struct oar_batch_norm_opts {
    size_t size;
    double eps;      /* 0 means 1e-5 unless no_eps */
    double momentum; /* 0 means 0.1 unless no_momentum; below 0: cumulative
                        average */
    int no_affine;
    int no_running; /* always by the batch's own statistics */
    oar_dtype dtype;
    int no_eps;      /* eps really is 0 */
    int no_momentum; /* momentum really is 0: the running statistics stay */
} oar_batch_norm_opts;
OAR_OPTS_INIT(oar_batch_norm_opts);

/* dims 1, 2 or 3: takes [n, c] or [n, c, l], [n, c, h, w], [n, c, d, h, w].
 * Parameters "weight", "bias"; buffers "running_mean", "running_var",
 * "num_batches_tracked" (i64). */
OAR_API oar_status oar_batch_norm_create(int dims, int64_t channels,
                                         const oar_batch_norm_opts *opts,
                                         oar_module **module);

/* From now on such a layer's statistics in training are those of more than its
 * own batch (ops.h). merge is copied; drop(merge->arg) is called when it is
 * replaced or the layer is freed (may be NULL). merge NULL: its own again.
 * OAR_E_ARG if the module is no batch norm. */
OAR_API oar_status oar_batch_norm_merge_by(oar_module *batch_norm,
                                           const oar_batch_norm_merge *merge,
                                           void (*drop)(void *arg));

/* How many dims behind the channels it was made for: 1, 2 or 3; 0 if the module
 * is no batch norm. */
OAR_API int oar_batch_norm_dims(const oar_module *module);

/* How it merges; NULL: it does not, or is no batch norm. Borrowed. */
OAR_API const oar_batch_norm_merge *
oar_batch_norm_merge_of(const oar_module *module);

typedef struct oar_conv2d_layer_opts {
    size_t size;
    int stride[2], padding[2], dilation[2], groups;
    int no_bias;
    oar_dtype dtype;
} oar_conv2d_layer_opts;
OAR_OPTS_INIT(oar_conv2d_layer_opts);

/* "weight" [out, in/groups, kh, kw], "bias" [out], uniform within 1/sqrt(fan
 * in) of zero: weight from seed, bias from seed + 1. */
OAR_API oar_status oar_conv2d_create(int64_t in, int64_t out, int kh, int kw,
                                     uint64_t seed,
                                     const oar_conv2d_layer_opts *opts,
                                     oar_module **module);
typedef struct oar_conv1d_layer_opts {
    size_t size;
    int stride, padding, dilation, groups;
    int no_bias;
    oar_dtype dtype;
} oar_conv1d_layer_opts;
OAR_OPTS_INIT(oar_conv1d_layer_opts);

/* Parameters "weight" [out, in/groups, kernel] and "bias" [out], which begin as
 * those of conv2d. */
OAR_API oar_status oar_conv1d_create(int64_t in, int64_t out, int kernel,
                                     uint64_t seed,
                                     const oar_conv1d_layer_opts *opts,
                                     oar_module **module);

typedef struct oar_conv_transpose1d_layer_opts {
    size_t size;
    int stride, padding, output_padding, dilation, groups;
    int no_bias;
    oar_dtype dtype;
} oar_conv_transpose1d_layer_opts;
OAR_OPTS_INIT(oar_conv_transpose1d_layer_opts);

typedef struct oar_conv_transpose2d_layer_opts {
    size_t size;
    int stride[2], padding[2], output_padding[2], dilation[2], groups;
    int no_bias;
    oar_dtype dtype;
} oar_conv_transpose2d_layer_opts;
OAR_OPTS_INIT(oar_conv_transpose2d_layer_opts);

/* Parameters "weight" [in, out/groups, kernel] or [in, out/groups, kh, kw] and
 * "bias" [out], both uniform within 1/sqrt(out/groups times the kernel's size)
 * of zero, as PyTorch has it: weight from seed, bias from seed + 1. */
OAR_API oar_status oar_conv_transpose1d_create(
    int64_t in, int64_t out, int kernel, uint64_t seed,
    const oar_conv_transpose1d_layer_opts *opts, oar_module **module);
OAR_API oar_status oar_conv_transpose2d_create(
    int64_t in, int64_t out, int kh, int kw, uint64_t seed,
    const oar_conv_transpose2d_layer_opts *opts, oar_module **module);
OAR_API oar_status oar_max_pool2d_create(int height, int width,
                                         const oar_pool2d_opts *opts,
                                         oar_module **module);
OAR_API oar_status oar_avg_pool2d_create(int height, int width,
                                         const oar_pool2d_opts *opts,
                                         oar_module **module);

/* oar_adaptive_avg_pool1d and 2d with a result of this size. */
OAR_API oar_status oar_adaptive_avg_pool1d_create(int length,
                                                  oar_module **module);
OAR_API oar_status oar_adaptive_avg_pool2d_create(int height, int width,
                                                  oar_module **module);

/* Only while training; every forward takes the next seed. */
OAR_API oar_status oar_dropout_create(double p, uint64_t seed,
                                      oar_module **module);

/* Writes where x, the input of a dropout, lies in a whole; the size of *place
 * is set, and all else is 0. */
typedef oar_status (*oar_dropout_place_fn)(void *arg, const oar_tensor *x,
                                           oar_part_place *place);
/* From now on the input of such a layer is a part of a whole, of whose mask it
 * takes its part (oar_dropout_part in ops.h): place is asked in every forward
 * that leaves something out. drop(arg) is called when it is replaced or the
 * layer is freed (may be NULL). place NULL: a whole again. OAR_E_ARG if the
 * module is no dropout; then drop is not called. */
OAR_API oar_status oar_dropout_place_by(oar_module *dropout,
                                        oar_dropout_place_fn place, void *arg,
                                        void (*drop)(void *arg));
/* All dims from `from` on become one; the input has that dim, else forward is
 * OAR_E_SHAPE. */
OAR_API oar_status oar_flatten_create(int from, oar_module **module);

typedef struct oar_attention_layer_opts {
    size_t size;
    int causal;
    int no_bias;
    double rotary_base; /* 0: no rotation */
    oar_dtype dtype;
    int kv_heads;   /* heads of k and of v, which divide the heads; 0: all */
    double dropout; /* of the probabilities, only while training */
    uint64_t dropout_seed; /* for it; every forward takes the next */
    int64_t inner; /* width of all heads together, which they divide; 0: that
                       of the input */
    int all_heads; /* as in oar_attention_opts */
    int first_head;
} oar_attention_layer_opts;
OAR_OPTS_INIT(oar_attention_layer_opts);

/* Self-attention on [n, t, width]: children "qkv" (linear, to 3 inner, or less
 * with fewer kv_heads: first q, then k, then v) and "out" (linear, from inner
 * to width). */
OAR_API oar_status oar_attention_create(int64_t width, int heads, uint64_t seed,
                                        const oar_attention_layer_opts *opts,
                                        oar_module **module);

/* Give how many heads the layer has (either may be NULL), and leave it with
 * `count` of them, from `first` on: it then takes from "qkv", and gives to
 * "out", what those heads have; the caller replaces these two. Heads that share
 * one of k and v stay together. What dropout leaves out is what it would with
 * all heads. None is fine. OAR_E_ARG: no attention, no such heads. */
OAR_API oar_status oar_attention_heads(const oar_module *attention, int *heads,
                                       int *kv_heads);
OAR_API oar_status oar_attention_keep_heads(oar_module *attention, int first,
                                            int count);

/* Runs its children one after the other; they are named "0", "1", ... Takes
 * the children's references, also on failure; a NULL child is OAR_E_ARG. */
OAR_API oar_status oar_sequential_create(int count, oar_module *const *child,
                                         oar_module **module);
/* Makes a stage of such a module for a pipeline: the same, with children named
 * from `first` on, as they are in the whole. OAR_E_ARG if first is negative. */
OAR_API oar_status oar_sequential_stage_create(int first, int count,
                                               oar_module *const *child,
                                               oar_module **module);

/* ---- what a layer is ----------------------------------------------------- */

typedef enum oar_layer_kind {
    OAR_LAYER_OTHER = 0, /* none of these, or NULL */
    OAR_LAYER_LINEAR = 1,
    OAR_LAYER_EMBEDDING = 2,
    OAR_LAYER_LAYER_NORM = 3,
    OAR_LAYER_RMS_NORM = 4,
    OAR_LAYER_DROPOUT = 5,
    OAR_LAYER_ATTENTION = 6
} oar_layer_kind;

/* Returns what kind of layer of this header a module is. */
OAR_API oar_layer_kind oar_layer_kind_of(const oar_module *module);

/* Gives how an embedding looks rows up. *opts has its size set. OAR_E_ARG for
 * any other module. */
OAR_API oar_status oar_embedding_describe(const oar_module *module,
                                          oar_embedding_opts *opts);
/* Returns the eps of a layer norm or RMS norm; 0 for any other module. */
OAR_API double oar_norm_eps(const oar_module *module);

OAR_END_DECLS

#endif
