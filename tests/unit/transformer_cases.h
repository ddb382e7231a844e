/* SPDX-License-Identifier: Apache-2.0 */
/* unit/transformer_cases.h: attention with masks, dropout and fewer heads of k
 * and v, and embeddings with padding: the cases of goldens and of gradient
 * checks. For tests, one file each. */
#ifndef OARI_TESTS_TRANSFORMER_CASES_H
#define OARI_TESTS_TRANSFORMER_CASES_H

#include <oarsong/models.h>

#include "golden/golden.h"
#include "unit/gradcheck.h"

/* As in make_transformer.py, on the device of another tensor. */
static oar_tensor *shows(oar_tape *tape, const oar_tensor *other,
                         oar_shape shape)
{
    oar_tensor *mask = oar_empty(tape, OAR_BOOL, shape);
    uint8_t *shown = oar_tensor_data(mask);

    for (int64_t i = 0; i < oar_tensor_count(mask); i++)
        shown[i] = i * 7 % 3 != 0;
    return beside(tape, mask, other);
}

static oar_tensor *attend(oar_tape *tape, oar_tensor *const *in,
                          oar_tensor *mask, int causal)
{
    return oar_attention(
        tape, in[0], in[1], in[2],
        OAR_OPTS(oar_attention_opts, .mask = mask, .causal = causal));
}

static oar_tensor *pad(oar_tape *tape, oar_tensor *table, oar_tensor *index,
                       int64_t row)
{
    return oar_embedding_with(
        tape, table, index,
        OAR_OPTS(oar_embedding_opts, .has_padding = 1, .padding = row));
}

/* ---- against PyTorch ----------------------------------------------------- */

OP(bool_all, attend(tape, in, shows(tape, in[0], OAR_SHAPE(2, 4, 5, 7)), 0))
OP(bool_shared, attend(tape, in, shows(tape, in[0], OAR_SHAPE(5, 7)), 0))
OP(bool_keys, attend(tape, in, shows(tape, in[0], OAR_SHAPE(2, 1, 1, 7)), 0))
OP(added, attend(tape, in, in[3], 0))
OP(both, attend(tape, in, in[3], 1))
OP(plain, attend(tape, in, NULL, 0))
OP(causal, attend(tape, in, NULL, 1))
OP(padding, pad(tape, in[0], in[1], 2))

static const golden_case transformer_cases[] = {
    { "bool", bool_all },        { "bool_shared", bool_shared },
    { "bool_keys", bool_keys },  { "bool_flat", bool_shared },
    { "added", added },          { "added_shared", added },
    { "added_keys", added },     { "added_rows", added },
    { "added_blocks", added },   { "both", both },
    { "grouped", plain },        { "one_key_head", causal },
    { "grouped_masked", added }, { "grouped_blocks", causal },
    { "deep", added },           { "padding", padding },
};

enum {
    TRANSFORMER_CASES = sizeof transformer_cases / sizeof *transformer_cases
};

/* ---- against differences ------------------------------------------------- */

/* Leaves: q, k which is v too, and what is added. */
static oar_tensor *drop(oar_tape *tape, oar_tensor *const *in, int causal)
{
    return oar_attention(tape, in[0], in[1], in[1],
                         OAR_OPTS(oar_attention_opts, .mask = in[2],
                                  .causal = causal, .dropout = 0.4, .seed = 5));
}

static oar_tensor *t(oar_tape *tape, oar_tensor *a)
{
    return oar_transpose(tape, a, -1, -2);
}

/* A learned offset for some keys; others are hidden for good. */
static oar_tensor *hidden(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *mask = oar_masked_fill(
        tape, in[2],
        oar_logical_not(tape, shows(tape, in[2], oar_tensor_shape(in[2]))),
        -INFINITY);

    return oar_attention(tape, in[0], in[1], in[1],
                         OAR_OPTS(oar_attention_opts, .mask = mask));
}

OP(mask_added,
   oar_attention(tape, in[0], in[1], in[1],
                 OAR_OPTS(oar_attention_opts, .mask = in[2], .scale = 0.3)))
OP(mask_view,
   oar_attention(tape, t(tape, in[0]), t(tape, in[1]), t(tape, in[1]),
                 OAR_OPTS(oar_attention_opts, .mask = t(tape, in[2]))))
OP(dropped, drop(tape, in, 0))
OP(dropped_causal, drop(tape, in, 1))
OP(three, attend(tape, in, NULL, 1))
OP(three_dropped, oar_attention(tape, in[0], in[1], in[2],
                                OAR_OPTS(oar_attention_opts, .dropout = 0.4)))

static const gradcheck checks[] = {
    { "mask", mask_added, { S(2, 3, 5, 2), S(2, 3, 4, 2), S(2, 3, 5, 4) } },
    { "mask of heads",
      mask_added,
      { S(2, 3, 5, 2), S(2, 3, 4, 2), S(3, 5, 4) } },
    { "mask of keys", mask_added, { S(2, 3, 5, 2), S(2, 1, 4, 2), S(4) } },
    { "mask of rows", mask_added, { S(2, 3, 5, 2), S(2, 3, 4, 2), S(5, 1) } },
    { "mask number", mask_added, { S(3, 5, 2), S(3, 4, 2), NUMBER } },
    { "mask flat", mask_added, { S(5, 2), S(4, 2), S(5, 4) } },
    { "mask deep",
      mask_added,
      { S(2, 3, 2, 3, 2), S(2, 3, 1, 2, 2), S(3, 1, 3, 2) } },
    { "mask view", mask_view, { S(2, 4, 2, 5), S(2, 2, 2, 3), S(4, 3, 5) } },
    { "mask blocks", mask_added, { S(1, 35, 2), S(1, 5, 2), S(35, 5) } },
    { "mask empty", mask_added, { S(0, 3, 5, 2), S(0, 3, 4, 2), S(5, 4) } },
    { "mask no rows", mask_added, { S(2, 0, 2), S(2, 4, 2), S(0, 4) } },
    { "mask no keys", mask_added, { S(2, 3, 2), S(2, 0, 2), S(3, 0) } },
    { "mask hides", hidden, { S(2, 5, 2), S(2, 4, 2), S(5, 4) } },
    { "dropout", dropped, { S(2, 4, 5, 2), S(2, 2, 7, 2), S(5, 7) } },
    { "dropout causal",
      dropped_causal,
      { S(3, 19, 2), S(1, 19, 2), S(1, 19) } },
    { "dropout of three",
      three_dropped,
      { S(2, 5, 3), S(2, 7, 3), S(2, 7, 2) } },
    { "grouped", three, { S(2, 6, 5, 2), S(2, 2, 5, 2), S(2, 2, 5, 3) } },
    { "grouped one", three, { S(4, 7, 2), S(1, 5, 2), S(1, 5, 1) } },
    { "grouped blocks", three, { S(4, 19, 2), S(2, 23, 2), S(2, 23, 1) } },
    { "grouped empty", three, { S(0, 5, 2), S(0, 5, 2), S(0, 5, 3) } },
};

enum { CHECKS = sizeof checks / sizeof *checks };

#endif
