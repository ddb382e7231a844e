/* SPDX-License-Identifier: Apache-2.0 */
/* The moves that tensor parallel models are made of: what they give, and what
 * they give back in backward, over dims of any size, cut into parts of which
 * some are empty. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/mesh.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>
#include <oarsong/tensor_parallel.h>

#include "support/last_error.h"

typedef enum move {
    COPY,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    GATHER,
    SCATTER,
    MOVES
} move;

typedef struct move_case {
    move move;
    int dim;
    int64_t whole;
    oar_dtype dtype;
} move_case;

/* A whole is [3, 2, 2] with another size in the dim that is cut. */
enum { NDIM = 3, MOST = 12 * 11 };

static oar_shape whole_shape(const move_case *c)
{
    oar_shape s = OAR_SHAPE(3, 2, 2);

    s.dim[c->dim] = c->whole;
    return s;
}

/* What rank r has at element i of a whole: small whole numbers, so that every
 * sum is exact. */
static double number_at(int r, int64_t i)
{
    return (double)((r + 1) * 10 + i % 7);
}

static double sum_at(int ranks, int64_t i)
{
    double sum = 0;

    for (int r = 0; r < ranks; r++)
        sum += number_at(r, i);
    return sum;
}

/* Returns the element of the whole that element i of a rank's part is, and the
 * rank that has element i of the whole. */
static int64_t place_of(const move_case *c, int rank, int ranks, int64_t i)
{
    oar_shape s = whole_shape(c);
    int64_t first = 0, size = oar_tp_part(c->whole, rank, ranks, &first);
    int64_t inner = 1, at, rest;

    for (int d = c->dim + 1; d < NDIM; d++)
        inner *= s.dim[d];
    rest = i % inner;
    at = i / inner % size;
    return (i / inner / size * c->whole + first + at) * inner + rest;
}

static int owner_of(const move_case *c, int ranks, int64_t i)
{
    oar_shape s = whole_shape(c);
    int64_t inner = 1, first = 0;

    for (int d = c->dim + 1; d < NDIM; d++)
        inner *= s.dim[d];
    for (int r = 0; r < ranks; r++) {
        int64_t size = oar_tp_part(c->whole, r, ranks, &first);
        int64_t at = i / inner % c->whole;

        if (at >= first && at < first + size)
            return r;
    }
    return -1;
}

static oar_tensor *run_move(oar_tape *tape, const move_case *c, oar_group *g,
                            oar_tensor *x)
{
    switch (c->move) {
    case COPY: return oar_tp_copy(tape, x, g);
    case ALL_REDUCE: return oar_tp_all_reduce(tape, x, g);
    case ALL_GATHER: return oar_tp_all_gather(tape, x, g, c->dim, c->whole);
    case REDUCE_SCATTER:
        return oar_tp_reduce_scatter(tape, x, g, c->dim - NDIM);
    case GATHER: return oar_tp_gather(tape, x, g, c->dim - NDIM, c->whole);
    default: return oar_tp_scatter(tape, x, g, c->dim);
    }
}

static int takes_part(move m)
{
    return m == ALL_GATHER || m == GATHER;
}

static int gives_part(move m)
{
    return m == REDUCE_SCATTER || m == SCATTER;
}

/* Element i of the result; and of the input's gradient, if the gradient of
 * every rank's result is what number_at says. */
static double result_at(const move_case *c, int rank, int ranks, int64_t i)
{
    int64_t at = gives_part(c->move) ? place_of(c, rank, ranks, i) : i;

    if (c->move == ALL_REDUCE || c->move == REDUCE_SCATTER)
        return sum_at(ranks, at);
    if (takes_part(c->move))
        return number_at(owner_of(c, ranks, at), at);
    return number_at(rank, at);
}

static double grad_at(const move_case *c, int rank, int ranks, int64_t i)
{
    int64_t at = takes_part(c->move) ? place_of(c, rank, ranks, i) : i;

    if (c->move == COPY || c->move == ALL_GATHER)
        return sum_at(ranks, at);
    if (gives_part(c->move))
        return number_at(owner_of(c, ranks, at), at);
    return number_at(rank, at);
}

/* A tensor with this rank's numbers, of a whole or of this rank's part. */
static oar_tensor *numbers(oar_tape *tape, const move_case *c, int part,
                           int rank, int ranks)
{
    oar_shape s = whole_shape(c);
    double data[MOST];
    oar_tensor *wide, *made;

    if (part)
        s.dim[c->dim] = oar_tp_part(c->whole, rank, ranks, NULL);
    for (int64_t i = 0; i < s.dim[0] * s.dim[1] * s.dim[2]; i++)
        data[i] = number_at(rank, part ? place_of(c, rank, ranks, i) : i);
    wide = oar_from_data(tape, OAR_F64, s, data);
    made = oar_cast(tape, wide, c->dtype);
    if (tape == NULL)
        oar_tensor_release(wide);
    return made;
}

/* The move is used twice: the second gradient is added to the first. */
static oar_status move_both_ways(oar_group *g, void *arg)
{
    const move_case *c = arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_tensor *x, *seed[2], *y[2];
    double found[MOST];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    oar_tape_share(tape, c->whole % 2 == 0 ? 1 : 0);
    x = oar_tape_input(tape,
                       numbers(tape, c, takes_part(c->move), rank, ranks));
    for (int i = 0; i < 2; i++) {
        y[i] = run_move(tape, c, g, x);
        seed[i] = numbers(tape, c, gives_part(c->move), rank, ranks);
        CHECK(y[i] != NULL);
    }
    CHECK_OK(oar_tensor_read(y[1], OAR_F64, found));
    for (int64_t i = 0; i < oar_tensor_count(y[1]); i++)
        CHECK(found[i] == result_at(c, rank, ranks, i));
    CHECK_OK(oar_backward_from(tape, 2, y, seed));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(x), OAR_F64, found));
    for (int64_t i = 0; i < oar_tensor_count(x); i++)
        CHECK(found[i] == 2 * grad_at(c, rank, ranks, i));
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void every_move_is_right_both_ways(void **state)
{
    static const int64_t size[] = { 0, 1, 2, 5, 8, 11 };

    for (int n = 1; n <= 4; n++)
        for (int m = 0; m < MOVES; m++)
            for (int dim = 0; dim < NDIM; dim++)
                for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
                    move_case c = { (move)m, dim, size[k],
                                    k % 2 ? OAR_F64 : OAR_F32 };

                    assert_int_equal(
                        ranks_run("sim", n, NULL, move_both_ways, &c), OAR_OK);
                    if (n == 3 && dim == 1 && size[k] == 5)
                        ranks_all(n, move_both_ways, &c);
                }
}

/* Without a tape the caller owns what it gets; a strided input is fine. */
static oar_status move_without_tape(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);

    for (int m = 0; m < MOVES; m++) {
        move_case c = { (move)m, 1, 5, OAR_F64 };
        oar_tensor *rows = numbers(NULL, &c, takes_part(c.move), rank, ranks);
        oar_tensor *turned = oar_transpose(NULL, rows, 1, 2);
        oar_tensor *kept = oar_contiguous(NULL, turned);
        oar_tensor *x = oar_transpose(NULL, kept, 1, 2);
        oar_tensor *y = run_move(NULL, &c, g, x);
        double found[MOST];

        CHECK(y != NULL && !oar_tensor_is_contiguous(x));
        CHECK_OK(oar_tensor_read(y, OAR_F64, found));
        for (int64_t i = 0; i < oar_tensor_count(y); i++)
            CHECK(found[i] == result_at(&c, rank, ranks, i));
        oar_tensor_release(y);
        oar_tensor_release(x);
        oar_tensor_release(kept);
        oar_tensor_release(turned);
        oar_tensor_release(rows);
    }
    return OAR_OK;
}

static void moves_work_without_a_tape_and_on_strided_tensors(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, move_without_tape, NULL),
                     OAR_OK);
}

/* A bf16 leaf whose gradient is f32. */
static oar_status wide_gradient(oar_group *g, void *arg)
{
    oar_tensor *x = oar_full(NULL, OAR_BF16, OAR_SHAPE(5), 1), *y;
    oar_tape *tape;
    float grad[5];

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_tensor_require_grad(x, 1));
    CHECK_OK(oar_tensor_set_grad_dtype(x, OAR_F32));
    y = oar_tp_copy(tape, x, g);
    CHECK_OK(oar_backward(tape, oar_sum(tape, y)));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(x), OAR_F32, grad));
    CHECK(grad[0] == 3 && grad[4] == 3);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    return OAR_OK;
}

static void gradients_of_halves_may_be_wider(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, wide_gradient, NULL), OAR_OK);
}

static int failed_with(oar_status status, const char *text)
{
    return fails_with(oar_last_error()->status, status, text);
}

static oar_status refuse(oar_group *g, void *arg)
{
    oar_tensor *x = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3));
    oar_tensor *word = oar_zeros(NULL, OAR_I64, OAR_SHAPE(2, 3));

    CHECK(oar_tp_copy(NULL, NULL, g) == NULL);
    CHECK(oar_tp_copy(NULL, x, NULL) == NULL);
    CHECK(failed_with(OAR_E_ARG, "the group is NULL"));
    CHECK(oar_tp_all_reduce(NULL, word, g) == NULL);
    CHECK(failed_with(OAR_E_DTYPE, "tp_all_reduce of i64"));
    CHECK(oar_tp_scatter(NULL, x, g, 2) == NULL);
    CHECK(failed_with(OAR_E_ARG, "along dim 2 of a tensor with 2 dims"));
    CHECK(oar_tp_gather(NULL, x, g, 0, 9) == NULL);
    CHECK(failed_with(OAR_E_SHAPE, " there, not 2"));
    oar_tensor_release(word);
    oar_tensor_release(x);
    return OAR_OK;
}

static void what_does_not_fit_is_refused(void **state)
{
    int64_t first;

    assert_int_equal(ranks_run("sim", 2, NULL, refuse, NULL), OAR_OK);
    assert_int_equal(oar_tp_part(5, 1, 2, &first), 2);
    assert_int_equal(first, 3);
    assert_int_equal(oar_tp_part(2, 2, 3, NULL), 0);
    assert_int_equal(oar_tp_part(5, 2, 2, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_move_is_right_both_ways),
        cmocka_unit_test(moves_work_without_a_tape_and_on_strided_tensors),
        cmocka_unit_test(gradients_of_halves_may_be_wider),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
