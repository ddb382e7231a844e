/* SPDX-License-Identifier: Apache-2.0 */
/* models.h: whole models as modules. */
#ifndef OARSONG_MODELS_H
#define OARSONG_MODELS_H

#include <oarsong/layers.h>

OAR_BEGIN_DECLS

typedef struct oar_gpt_opts {
    size_t size;
    int64_t vocabulary;        /* 0 means 256 */
    int64_t context;           /* longest sequence; 0 means 64 */
    int64_t width;             /* 0 means 128 */
    int layers;                /* 0 means 4 */
    int heads;                 /* 0 means 4 */
    int64_t hidden;            /* of the MLP; 0 means 4 width */
    oar_activation activation; /* default: OAR_GELU */
    int tied;                  /* the head is the token table */
    int rotary;                /* instead of learned positions */
    double dropout;
    uint64_t seed;
    oar_dtype dtype;
    int recompute; /* recompute each block in backward */
    int kv_heads;  /* of k and of v, which divide the heads; 0: all */
    double attention_dropout; /* of the attention's probabilities */
} oar_gpt_opts;
OAR_OPTS_INIT(oar_gpt_opts);

/* Pre-norm transformer decoder. Takes tokens [n, t] (i64), gives logits
 * [n * t, vocabulary]. Names: "tok.weight", "pos.weight", "blocks.0.norm1...",
 * "blocks.0.attention.qkv...", "blocks.0.norm2...", "blocks.0.up...",
 * "blocks.0.down...", "norm...", "head.weight". */
OAR_API oar_status oar_gpt_create(const oar_gpt_opts *opts,
                                  oar_module **module);

/* Makes a stage of that model for a pipeline: `count` of its parts, `first` and
 * those after it. Part 0 is the embedding (tok, pos, drop), parts 1 to `layers`
 * are the blocks, part `layers` + 1 is norm and head. Names, initial values and
 * dropout are those of the whole model, whatever its cuts: a checkpoint fits
 * all of them. Without part 0 it takes [n, t, width], and without the last part
 * it gives that; all parts one after the other are the model. The last part of
 * a tied model has a "tok.weight" of its own, with the same values: see
 * docs/pipeline.md. OAR_E_ARG: there are no such parts. */
OAR_API oar_status oar_gpt_stage_create(const oar_gpt_opts *opts, int first,
                                        int count, oar_module **module);

/* The cross entropy of a model of oar_gpt_create for tokens [n, t] against
 * target [n * t], as oar_cross_entropy_with gives it of the model's logits, but
 * without the logits of all tokens in memory (oar_linear_cross_entropy), unless
 * the head has hooks or the options want what that cannot do. Hooks of the
 * model itself do not run. */
OAR_API oar_tensor *oar_gpt_loss(oar_tape *tape, oar_module *gpt,
                                 oar_tensor *tokens, oar_tensor *target,
                                 const oar_cross_entropy_opts *opts);

/* Gives the options that a module of oar_gpt_create was made with, defaults
 * filled in. *opts has its size set. OAR_E_ARG for any other module. */
OAR_API oar_status oar_gpt_describe(const oar_module *module,
                                    oar_gpt_opts *opts);

typedef struct oar_cnn_opts {
    size_t size;
    int64_t channels; /* of the image; 0 means 1 */
    int64_t image;    /* height and width; 0 means 28 */
    int64_t classes;  /* 0 means 10 */
    int64_t width;    /* channels of the first layer; 0 means 16 */
    uint64_t seed;
    oar_dtype dtype;
} oar_cnn_opts;
OAR_OPTS_INIT(oar_cnn_opts);

/* conv 3x3 - batch norm - relu - max pool 2, twice (the second with twice the
 * channels), then flatten and linear: children "0" to "9". The convolutions pad
 * by 1. Takes [n, channels, image, image]. */
OAR_API oar_status oar_cnn_create(const oar_cnn_opts *opts,
                                  oar_module **module);

OAR_END_DECLS

#endif
