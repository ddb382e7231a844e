/* SPDX-License-Identifier: Apache-2.0 */
/* unit/gradcheck_cases.h: operations on odd, strided, broadcast, single and
 * empty shapes, for the tests that compare their gradients with differences of
 * their values. For tests, one file each. */
#ifndef OARI_TESTS_GRADCHECK_CASES_H
#define OARI_TESTS_GRADCHECK_CASES_H

#include "unit/gradcheck.h"

/* ---- what is checked ----------------------------------------------------- */

static oar_tensor *t(oar_tape *tape, oar_tensor *a)
{
    return oar_transpose(tape, a, 0, 1);
}

/* Every second row: strides that no transposition explains. */
static oar_tensor *odd_rows(oar_tape *tape, oar_tensor *a)
{
    oar_shape s = oar_tensor_shape(a);
    oar_tensor *pairs =
        oar_reshape(tape, a, OAR_SHAPE(s.dim[0] / 2, 2, s.dim[1]));

    return oar_reshape(tape, oar_narrow(tape, pairs, 1, 1, 1),
                       OAR_SHAPE(s.dim[0] / 2, s.dim[1]));
}

OP(add, oar_add(tape, in[0], in[1]))
OP(add_view, oar_add(tape, t(tape, in[0]), in[1]))
OP(add_itself, oar_add(tape, in[0], in[0]))
OP(mul, oar_mul(tape, in[0], in[1]))
OP(mul_view, oar_mul(tape, in[0], t(tape, in[1])))
OP(square, oar_mul(tape, in[0], in[0]))
OP(scale, oar_scale(tape, in[0], -0.7))
OP(relu, oar_relu(tape, in[0]))
OP(relu_view, oar_relu(tape, odd_rows(tape, in[0])))
OP(sum, oar_sum(tape, in[0]))
OP(sum_view, oar_sum(tape, oar_narrow(tape, t(tape, in[0]), 0, 1, 2)))
OP(mean, oar_mean(tape, in[0]))
OP(reshape, oar_reshape(tape, in[0], OAR_SHAPE(-1)))
OP(reshape_copy, oar_reshape(tape, t(tape, in[0]), OAR_SHAPE(-1)))
OP(reshape_twice, oar_mul(tape, oar_reshape(tape, in[0], OAR_SHAPE(-1)),
                          oar_reshape(tape, t(tape, in[0]), OAR_SHAPE(-1))))
OP(transpose, oar_transpose(tape, in[0], 0, -1))
OP(narrow, oar_narrow(tape, in[0], -1, 1, 2))
OP(narrow_nothing, oar_narrow(tape, in[0], 0, 1, 0))
OP(narrow_twice, oar_mul(tape, oar_narrow(tape, in[0], 0, 0, 2),
                         oar_narrow(tape, in[0], 0, 1, 2)))
OP(matmul, oar_matmul(tape, in[0], in[1]))
OP(matmul_left, oar_matmul(tape, t(tape, in[0]), in[1]))
OP(matmul_right, oar_matmul(tape, in[0], t(tape, in[1])))
OP(matmul_strided, oar_matmul(tape, odd_rows(tape, in[0]),
                              t(tape, odd_rows(tape, t(tape, in[1])))))
OP(gram, oar_matmul(tape, in[0], t(tape, in[0])))
OP(linear, oar_linear(tape, in[0], in[1], in[2]))
OP(linear_bare, oar_linear(tape, in[0], in[1], NULL))
OP(linear_view,
   oar_linear(tape, oar_transpose(tape, in[0], 0, 1), in[1], in[2]))
OP(softmax, oar_softmax(tape, in[0]))
OP(softmax_view, oar_softmax(tape, t(tape, in[0])))
OP(cross_entropy,
   oar_cross_entropy(tape, in[0], gradcheck_targets(tape, in[0])))
OP(residual, oar_add(tape, oar_relu(tape, oar_scale(tape, in[0], 2)),
                     oar_scale(tape, in[0], 3)))
OP(two_layers,
   oar_linear(tape, oar_relu(tape, oar_linear(tape, in[0], in[1], in[2])),
              t(tape, in[1]), NULL))

static const gradcheck checks[] = {
    { "add", add, { S(3, 5), S(3, 5), END } },
    { "add row", add, { S(7, 5), S(5), END } },
    { "add column", add, { S(7, 5), S(7, 1), END } },
    { "add both ways", add, { S(3, 1, 5), S(7, 1), END } },
    { "add a number", add, { NUMBER, S(3, 2), END } },
    { "add ones", add, { S(1, 3), S(3), END } },
    { "add nothing", add, { S(0, 3), S(3), END } },
    { "add view", add_view, { S(5, 3), S(3, 5), END } },
    { "add itself", add_itself, { S(3, 5), END } },
    { "mul", mul, { S(3, 5), S(3, 5), END } },
    { "mul row", mul, { S(7, 5), S(5), END } },
    { "mul both ways", mul, { S(3, 1, 5), S(7, 1), END } },
    { "mul a number", mul, { S(3, 2), NUMBER, END } },
    { "mul nothing", mul, { S(3, 0), S(1, 1), END } },
    { "mul view", mul_view, { S(3, 5), S(5, 3), END } },
    { "square", square, { S(2, 3, 5), END } },
    { "scale", scale, { S(11), END } },
    { "scale a number", scale, { NUMBER, END } },
    { "relu", relu, { S(5, 7), END } },
    { "relu view", relu_view, { S(6, 5), END } },
    { "sum", sum, { S(3, 5, 7), END } },
    { "sum nothing", sum, { S(3, 0), END } },
    { "sum view", sum_view, { S(5, 3), END } },
    { "mean", mean, { S(3, 11), END } },
    { "reshape", reshape, { S(3, 5, 1), END } },
    { "reshape copy", reshape_copy, { S(3, 5), END } },
    { "reshape twice", reshape_twice, { S(3, 5), END } },
    { "transpose", transpose, { S(3, 5, 7), END } },
    { "narrow", narrow, { S(3, 4), END } },
    { "narrow to nothing", narrow_nothing, { S(3, 4), END } },
    { "narrow twice", narrow_twice, { S(3, 4), END } },
    { "matmul", matmul, { S(3, 5), S(5, 7), END } },
    { "matmul of one", matmul, { S(1, 1), S(1, 1), END } },
    { "matmul column", matmul, { S(3, 1), S(1, 5), END } },
    { "matmul row", matmul, { S(1, 5), S(5, 1), END } },
    { "matmul no rows", matmul, { S(0, 5), S(5, 3), END } },
    { "matmul no inner", matmul, { S(3, 0), S(0, 5), END } },
    { "matmul left", matmul_left, { S(5, 3), S(5, 7), END } },
    { "matmul right", matmul_right, { S(3, 5), S(7, 5), END } },
    { "matmul strided", matmul_strided, { S(6, 5), S(5, 6), END } },
    { "gram", gram, { S(3, 5), END } },
    { "linear", linear, { S(5, 7), S(3, 7), S(3) } },
    { "linear deep", linear, { S(2, 5, 7), S(3, 7), S(3) } },
    { "linear vector", linear, { S(7), S(3, 7), S(3) } },
    { "linear of one", linear, { S(1, 1), S(1, 1), S(1) } },
    { "linear nothing", linear, { S(0, 7), S(3, 7), S(3) } },
    { "linear bare", linear_bare, { S(5, 7), S(3, 7), END } },
    { "linear view", linear_view, { S(5, 2, 7), S(3, 7), S(3) } },
    { "softmax", softmax, { S(3, 5, 7), END } },
    { "softmax of one", softmax, { S(3, 1), END } },
    { "softmax number", softmax, { NUMBER, END } },
    { "softmax nothing", softmax, { S(3, 0), END } },
    { "softmax view", softmax_view, { S(5, 3), END } },
    { "cross entropy", cross_entropy, { S(7, 5), END } },
    { "cross entropy of one", cross_entropy, { S(1, 1), END } },
    { "residual", residual, { S(3, 5), END } },
    { "two layers", two_layers, { S(5, 7), S(3, 7), S(3) } },
};

enum { CHECKS = sizeof checks / sizeof *checks };

#endif
