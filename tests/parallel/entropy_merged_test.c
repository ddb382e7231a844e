/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of logits whose classes are spread over ranks is that of the
 * whole, with the same bits on all ranks. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { ROWS = 6, CLASSES = 17 };

typedef struct entropy_case {
    oar_dtype dtype;
    int smooth, weighed, ignores, offset; /* offset: large logits */
    oar_loss_reduction reduction;
    double tolerance;
} entropy_case;

static const int64_t chosen[ROWS] = { 3, 16, 0, 9, 3, 12 };

/* Where a rank's classes begin. The last but one of four ranks has none. */
static int64_t cut_at(int rank, int ranks)
{
    static const int64_t four[] = { 0, 5, 11, 11, CLASSES };

    return ranks == 4 ? four[rank] : (int64_t)CLASSES * rank / ranks;
}

static oar_status largest(void *arg, int64_t count, double *number)
{
    return oar_all_reduce(arg, oar_span_of(number, (size_t)count, OAR_F64),
                          OAR_MAX, NULL, NULL);
}

static oar_status sums(void *arg, int64_t count, double *sum)
{
    return oar_all_reduce(arg, oar_span_of(sum, (size_t)count, OAR_F64),
                          OAR_SUM, OAR_OPTS(oar_call_opts, .canonical = 1),
                          NULL);
}

static oar_cross_entropy_opts opts_of(const entropy_case *c, oar_tensor *weight)
{
    return (oar_cross_entropy_opts){ .size = sizeof(oar_cross_entropy_opts),
                                     .has_ignore = c->ignores,
                                     .ignore = 9,
                                     .label_smoothing = c->smooth ? 0.15 : 0,
                                     .reduction = c->reduction,
                                     .weight = c->weighed ? weight : NULL };
}

static int near(const double *a, const double *b, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i]))))
            return 0;
    return 1;
}

/* Loss and gradient of the whole on every rank, and of this rank's part. */
static oar_status merge_as_whole(oar_group *g, void *arg)
{
    const entropy_case *c = arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    int64_t first = cut_at(rank, ranks),
            count = cut_at(rank + 1, ranks) - first;
    oar_tensor *x = oar_uniform(NULL, c->dtype, OAR_SHAPE(ROWS, CLASSES), 1,
                                c->offset - 4, c->offset + 4);
    oar_tensor *weight =
        oar_uniform(NULL, c->dtype, OAR_SHAPE(CLASSES), 2, 0.5, 2);
    oar_tensor *target = oar_from_data(NULL, OAR_I64, OAR_SHAPE(ROWS), chosen);
    oar_tensor *part = oar_narrow(NULL, x, 1, first, count);
    oar_tensor *own = oar_narrow(NULL, weight, 0, first, count);
    oar_tensor *in[2], *loss[2], *slice;
    oar_cross_entropy_opts o = opts_of(c, weight);
    double value[2][ROWS], grad[2][ROWS * CLASSES], all[4 * ROWS];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    in[0] = oar_tape_input(tape, x);
    loss[0] = oar_cross_entropy_with(tape, in[0], target, &o);
    in[1] = oar_tape_input(tape, part);
    o.weight = c->weighed ? own : NULL;
    loss[1] = oar_cross_entropy_merged(
        tape, in[1], target, &o,
        OAR_OPTS(oar_cross_entropy_merge, .first = first, .classes = CLASSES,
                 .arg = g, .largest = largest, .sums = sums));
    CHECK(loss[0] != NULL && loss[1] != NULL);
    memset(value, 0, sizeof value);
    for (int i = 0; i < 2; i++)
        CHECK_OK(oar_tensor_read(loss[i], OAR_F64, value[i]));
    CHECK(near(value[1], value[0], oar_tensor_count(loss[0]), c->tolerance));
    for (int i = 0; i < 2; i++)
        CHECK_OK(oar_backward(tape, oar_sum(tape, loss[i])));
    slice = oar_narrow(NULL, oar_tensor_grad(in[0]), 1, first, count);
    CHECK_OK(oar_tensor_read(slice, OAR_F64, grad[0]));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(in[1]), OAR_F64, grad[1]));
    CHECK(near(grad[1], grad[0], ROWS * count, c->tolerance));
    CHECK_OK(oar_all_gather(g, oar_span_of(value[1], ROWS, OAR_F64),
                            oar_span_of(all, (size_t)(ROWS * ranks), OAR_F64),
                            NULL, NULL));
    for (int r = 1; r < ranks; r++)
        CHECK(memcmp(all, all + r * ROWS, sizeof value[1]) == 0);
    oar_tape_destroy(tape);
    oar_tensor_release(slice);
    oar_tensor_release(own);
    oar_tensor_release(part);
    oar_tensor_release(target);
    oar_tensor_release(weight);
    oar_tensor_release(x);
    return OAR_OK;
}

static void classes_over_ranks_have_the_loss_of_the_whole(void **state)
{
    static const struct {
        oar_dtype dtype;
        double tolerance;
    } type[] = { { OAR_F64, 1e-13 }, { OAR_F32, 1e-5 }, { OAR_BF16, 2e-2 } };

    for (int n = 1; n <= 4; n++)
        for (size_t d = 0; d < sizeof type / sizeof *type; d++)
            for (int k = 0; k < 8; k++) {
                entropy_case c = { .dtype = type[d].dtype,
                                   .smooth = k & 1,
                                   .weighed = k >> 1 & 1,
                                   .ignores = k >> 2,
                                   .offset = k % 3 == 0 ? 1000 : 0,
                                   .reduction = (oar_loss_reduction)(k % 3),
                                   .tolerance = type[d].tolerance };

                if (c.offset != 0 && c.dtype == OAR_BF16)
                    c.offset = 0;
                if (c.offset != 0 && c.dtype == OAR_F32)
                    c.tolerance = 1e-3; /* of numbers near 1000 */
                assert_int_equal(ranks_run("sim", n, NULL, merge_as_whole, &c),
                                 OAR_OK);
                if (k == 7)
                    ranks_all(n, merge_as_whole, &c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_over_ranks_have_the_loss_of_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
