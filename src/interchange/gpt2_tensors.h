/* SPDX-License-Identifier: Apache-2.0 */
/* interchange/gpt2_tensors.h: the tensors of a GPT-2, by the names that Hugging
 * Face gives them and by ours. */
#ifndef OARI_INTERCHANGE_GPT2_TENSORS_H
#define OARI_INTERCHANGE_GPT2_TENSORS_H

#include <oarsong/models.h>

enum { OARI_GPT2_MOST_LAYERS = 1000, OARI_GPT2_NAME = 64 };

/* What the length of a dim is. */
typedef enum oari_gpt2_dim {
    OARI_GPT2_NO_DIM = 0, /* the tensor has one dim only */
    OARI_GPT2_VOCABULARY,
    OARI_GPT2_CONTEXT,
    OARI_GPT2_WIDTH,
    OARI_GPT2_QKV, /* 3 width */
    OARI_GPT2_HIDDEN
} oari_gpt2_dim;

/* A tensor of the model, or one that every layer has. */
typedef struct oari_gpt2_row {
    const char *theirs, *ours; /* behind "h.0." and "blocks.0." of a layer's */
    oari_gpt2_dim dim[2];      /* of ours */
    unsigned char layered, transposed; /* theirs is [dim 1, dim 0] */
} oari_gpt2_row;

enum {
    OARI_GPT2_WTE = 0,
    OARI_GPT2_WPE = 1,
    OARI_GPT2_UP = 10, /* its weight */
    OARI_GPT2_HEAD = 16,
    OARI_GPT2_ROWS = 17
};

/* In the order of llm.c's files, with the head, which those lack, last. */
extern const oari_gpt2_row oari_gpt2_rows[OARI_GPT2_ROWS];

/* Returns how many tensors of a row a model has: 1, one for each layer, or none
 * for the head of a tied model. */
int oari_gpt2_tensors(int row, const oar_gpt_opts *opts);

/* Returns the shape of our tensor. */
oar_shape oari_gpt2_shape(int row, const oar_gpt_opts *opts);

/* Writes Hugging Face's name of a tensor, without "transformer.". */
void oari_gpt2_their_name(int row, int layer, char name[OARI_GPT2_NAME]);

/* Gives the parameter of a module, borrowed. */
oar_status oari_gpt2_param(const oar_module *module, int row, int layer,
                           oar_tensor **param);

/* Makes a gpt that is about to be filled: never lazy. */
oar_status oari_gpt2_create(const oar_gpt_opts *opts, oar_module **module);

/* Gives the options of a module that is to be written. OAR_E_UNSUPPORTED if
 * GPT-2 differs from it in more than sizes. */
oar_status oari_gpt2_describe(const oar_module *module, oar_gpt_opts *opts);

/* Ends the reading of a model: on success gives the module and its options to
 * the caller, else releases the module, which may be NULL. */
oar_status oari_gpt2_give(oar_status status, oar_module *made,
                          const oar_gpt_opts *made_opts, oar_module **module,
                          oar_gpt_opts *opts);

#endif
