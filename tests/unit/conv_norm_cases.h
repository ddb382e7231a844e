/* SPDX-License-Identifier: Apache-2.0 */
/* unit/conv_norm_cases.h: convolution over one dim, transposed convolution,
 * adaptive pooling and group norm, with the inputs that make_layers.py gave
 * them, and on other shapes. For tests, one file each. */
#ifndef OARI_TESTS_CONV_NORM_CASES_H
#define OARI_TESTS_CONV_NORM_CASES_H

#include "golden/golden.h"
#include "unit/gradcheck.h"

#define ALL in[0], in[1], in[2]

OP(conv1d, oar_conv1d(tape, ALL, NULL))
OP(conv1d_with, oar_conv1d(tape, ALL,
                           OAR_OPTS(oar_conv1d_opts, .stride = 2, .padding = 3,
                                    .dilation = 2, .groups = 2)))
OP(transpose1d, oar_conv_transpose1d(tape, ALL, NULL))
OP(transpose1d_with,
   oar_conv_transpose1d(tape, ALL,
                        OAR_OPTS(oar_conv_transpose1d_opts, .stride = 3,
                                 .padding = 1, .output_padding = 2,
                                 .dilation = 2, .groups = 2)))
OP(transpose2d, oar_conv_transpose2d(tape, ALL, NULL))
OP(transpose2d_with,
   oar_conv_transpose2d(tape, ALL,
                        OAR_OPTS(oar_conv_transpose2d_opts, .stride = { 2, 3 },
                                 .padding = { 1, 0 },
                                 .output_padding = { 1, 2 },
                                 .dilation = { 1, 2 }, .groups = 2)))
OP(transpose2d_far, oar_conv_transpose2d(tape, in[0], in[1], NULL,
                                         OAR_OPTS(oar_conv_transpose2d_opts,
                                                  .output_padding = { 1, 2 },
                                                  .dilation = { 3, 3 })))
OP(pool1d, oar_adaptive_avg_pool1d(tape, in[0], 3))
OP(pool2d, oar_adaptive_avg_pool2d(tape, in[0], 3, 4))
OP(pool2d_one, oar_adaptive_avg_pool2d(tape, in[0], 1, 1))
OP(pool2d_more, oar_adaptive_avg_pool2d(tape, in[0], 5, 7))
OP(group_norm, oar_group_norm(tape, in[0], 3, in[1], in[2], 1e-3))
OP(group_norm_bare, oar_group_norm(tape, in[0], 2, NULL, NULL, 1e-3))

/* ---- PyTorch ------------------------------------------------------------- */

static const golden_case goldens[] = {
    { "conv1d", conv1d },
    { "conv1d_with", conv1d_with },
    { "conv1d_point", conv1d },
    { "conv_transpose1d", transpose1d },
    { "conv_transpose1d_with", transpose1d_with },
    { "conv_transpose2d", transpose2d },
    { "conv_transpose2d_with", transpose2d_with },
    { "conv_transpose2d_point", transpose2d },
    { "conv_transpose2d_far", transpose2d_far },
    { "adaptive_avg_pool1d", pool1d },
    { "adaptive_avg_pool2d", pool2d },
    { "adaptive_avg_pool2d_one", pool2d_one },
    { "adaptive_avg_pool2d_more", pool2d_more },
    { "group_norm", group_norm },
    { "group_norm_flat", group_norm },
    { "group_norm_line", group_norm },
    { "group_norm_bare", group_norm_bare },
};

enum { GOLDENS = sizeof goldens / sizeof *goldens };

/* ---- differences --------------------------------------------------------- */

static const gradcheck checks[] = {
    { "conv1d", conv1d, { S(2, 3, 7), S(4, 3, 2), S(4) } },
    { "conv1d with", conv1d_with, { S(1, 4, 6), S(2, 2, 3), S(2) } },
    { "conv1d of one", conv1d, { S(1, 1, 1), S(1, 1, 1), S(1) } },
    { "conv1d nothing", conv1d, { S(0, 2, 5), S(3, 2, 2), S(3) } },
    { "transpose1d", transpose1d, { S(2, 3, 4), S(3, 2, 3), S(2) } },
    { "transpose1d with", transpose1d_with, { S(1, 4, 3), S(4, 1, 2), S(2) } },
    { "transpose1d nothing", transpose1d, { S(0, 3, 4), S(3, 2, 3), S(2) } },
    { "transpose2d", transpose2d, { S(2, 2, 3, 2), S(2, 3, 2, 3), S(3) } },
    { "transpose2d with",
      transpose2d_with,
      { S(1, 4, 3, 2), S(4, 1, 3, 2), S(2) } },
    { "transpose2d far",
      transpose2d_far,
      { S(2, 2, 2, 3), S(2, 1, 1, 1), END } },
    { "transpose2d of one",
      transpose2d,
      { S(1, 1, 1, 1), S(1, 1, 1, 1), S(1) } },
    { "adaptive pool1d", pool1d, { S(2, 2, 7), END } },
    { "adaptive pool2d", pool2d, { S(1, 2, 5, 6), END } },
    { "adaptive pool2d nothing", pool2d, { S(0, 2, 5, 6), END } },
    { "adaptive pool2d more", pool2d_more, { S(1, 2, 3, 4), END } },
    { "group norm", group_norm, { S(2, 6, 5), S(6), S(6) } },
    { "group norm long", group_norm, { S(1, 3, 19), S(3), S(3) } },
    { "group norm flat", group_norm, { S(3, 9), S(9), S(9) } },
    { "group norm bare", group_norm_bare, { S(2, 4, 3), END } },
    { "group norm empty", group_norm, { S(0, 3, 2), S(3), S(3) } },
    { "group norm nothing", group_norm, { S(2, 3, 0), S(3), S(3) } },
};

enum { CHECKS = sizeof checks / sizeof *checks };

#endif
