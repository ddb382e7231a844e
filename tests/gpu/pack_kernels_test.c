/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a GPU that read in packs of 16 bytes, against the cpu's: sizes
 * of several tiles and a rest, rows and columns that are repeated, views that
 * are not aligned, strides, nothing at all; rows of a warp, of a block, and
 * longer ones. */
#include "gpu/layer_cases.h"

/* ---- element by element -------------------------------------------------- */

#define UNARY(name)                                                      \
    static oar_tensor *run_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                    \
        return oar_##name(tape, in[0]);                                  \
    }
UNARY(gelu)
UNARY(gelu_tanh)
UNARY(silu)
UNARY(sigmoid)
UNARY(tanh)
UNARY(relu)
UNARY(sin)

#define BINARY(name)                                                     \
    static oar_tensor *run_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                    \
        return oar_##name(tape, in[0], in[1]);                           \
    }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(maximum)

/* Its gradient is added to one that is there. */
static oar_tensor *gated(oar_tape *tape, oar_tensor *const *in)
{
    return oar_mul(tape, in[0], oar_gelu(tape, in[0]));
}

/* Views that begin one element behind an aligned address. */
static oar_tensor *shifted(oar_tape *tape, oar_tensor *const *in)
{
    int64_t length = oar_tensor_count(in[0]) - 1;
    oar_tensor *a = oar_narrow(tape, in[0], 0, 1, length);

    return oar_silu(tape, oar_mul(tape, a, in[1]));
}

static oar_tensor *transposed(oar_tape *tape, oar_tensor *const *in)
{
    return oar_add(tape, oar_transpose(tape, in[0], 0, 1), in[1]);
}

static oar_tensor *turned(oar_tape *tape, oar_tensor *const *in)
{
    return oar_contiguous(tape, oar_transpose(tape, in[0], -1, -2));
}

/* Rows with gaps between them, of elements that go in larger units. */
static oar_tensor *cut(oar_tape *tape, oar_tensor *const *in)
{
    return oar_contiguous(tape, oar_narrow(tape, in[0], 1, 8, 24));
}

static oar_tensor *with_numbers(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *a = oar_clamp(tape, oar_scale(tape, in[0], 1.5), -1, 2);

    return oar_shift(tape, oar_leaky_relu(tape, a, 0.1), 0.25);
}

static int elements_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "gelu", run_gelu, { OAR_SHAPE(9003) } },
        { "gelu_tanh", run_gelu_tanh, { OAR_SHAPE(2, 4100) } },
        { "silu", run_silu, { OAR_SHAPE(4096) } },
        { "sigmoid", run_sigmoid, { OAR_SHAPE(4097) } },
        { "tanh", run_tanh, { OAR_SHAPE(4104) } },
        { "relu", run_relu, { OAR_SHAPE(8192) } },
        { "sin", run_sin, { OAR_SHAPE(4100) } },
        { "silu of nothing", run_silu, { OAR_SHAPE(3, 0) } },
        { "add", run_add, { OAR_SHAPE(9000), OAR_SHAPE(9000) } },
        { "sub of a row", run_sub, { OAR_SHAPE(300, 24), OAR_SHAPE(24) } },
        { "add of a row of 4s",
          run_add,
          { OAR_SHAPE(500, 20), OAR_SHAPE(20) } },
        { "mul by an odd row", run_mul, { OAR_SHAPE(900, 5), OAR_SHAPE(5) } },
        { "mul by a column",
          run_mul,
          { OAR_SHAPE(200, 24), OAR_SHAPE(200, 1) } },
        { "mul of all by all",
          run_mul,
          { OAR_SHAPE(90, 1), OAR_SHAPE(1, 56) } },
        { "maximum with one", run_maximum, { OAR_SHAPE(5000), OAR_SHAPE(1) } },
        { "a product with itself", gated, { OAR_SHAPE(8200) } },
        { "views that are not aligned",
          shifted,
          { OAR_SHAPE(4200), OAR_SHAPE(4199) } },
        { "a transposed sum",
          transposed,
          { OAR_SHAPE(64, 72), OAR_SHAPE(72, 64) } },
        { "a transposed copy", turned, { OAR_SHAPE(100, 70) } },
        { "transposed copies", turned, { OAR_SHAPE(3, 65, 40) } },
        { "transposed packs", turned, { OAR_SHAPE(72, 136) } },
        { "transposed packs of parts", turned, { OAR_SHAPE(2, 64, 40) } },
        { "a product with a row of several tiles",
          run_mul,
          { OAR_SHAPE(12, 1000), OAR_SHAPE(1000) } },
        { "a copy of columns", cut, { OAR_SHAPE(30, 40) } },
        { "numbers", with_numbers, { OAR_SHAPE(8200) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void elements_are_the_cpus(void **state)
{
    run(elements_agree, "element by element");
}

/* ---- sums ---------------------------------------------------------------- */

static oar_tensor *sum_columns(oar_tape *tape, oar_tensor *const *in)
{
    return oar_sum_over(tape, in[0], OAR_DIMS(0), 0);
}

static oar_tensor *mean_rows(oar_tape *tape, oar_tensor *const *in)
{
    return oar_mean_over(tape, in[0], OAR_DIMS(1), 0);
}

static oar_tensor *sum_part(oar_tape *tape, oar_tensor *const *in)
{
    return oar_sum_over(tape, oar_narrow(tape, in[0], 1, 8, 16), OAR_DIMS(0),
                        1);
}

static oar_tensor *sum_all(oar_tape *tape, oar_tensor *const *in)
{
    return oar_sum(tape, in[0]);
}

static int sums_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "sums of columns", sum_columns, { OAR_SHAPE(301, 24) } },
        { "sums of many columns", sum_columns, { OAR_SHAPE(16, 520) } },
        { "sums of odd columns", sum_columns, { OAR_SHAPE(99, 7) } },
        { "sums of columns of no rows", sum_columns, { OAR_SHAPE(0, 8) } },
        { "sums of some columns", sum_part, { OAR_SHAPE(200, 40) } },
        { "means of rows", mean_rows, { OAR_SHAPE(21, 64) } },
        { "means of long rows", mean_rows, { OAR_SHAPE(3, 4000) } },
        { "means of odd rows", mean_rows, { OAR_SHAPE(7, 33) } },
        { "a sum of all", sum_all, { OAR_SHAPE(5, 2400) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void sums_are_the_cpus(void **state)
{
    run(sums_agree, "sums");
}

/* ---- rows ---------------------------------------------------------------- */

static oar_tensor *layer_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_layer_norm(tape, in[0], in[1], in[2], 1e-5);
}

static oar_tensor *add_rms_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_rms_norm(tape, oar_add(tape, in[0], in[1]), in[2], 1e-5);
}

static oar_tensor *add_layer_norm(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *sum = NULL;
    oar_tensor *out =
        oar_add_layer_norm(tape, in[0], in[1], in[2], NULL, 1e-5, &sum);

    return oar_mul(tape, out, sum);
}

static oar_tensor *softmax(oar_tape *tape, oar_tensor *const *in)
{
    return oar_softmax(tape, in[0]);
}

static oar_tensor *log_softmax(oar_tape *tape, oar_tensor *const *in)
{
    return oar_log_softmax(tape, in[0], 1);
}

static int rows_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "layer norm by warps",
          layer_norm,
          { OAR_SHAPE(19, 264), OAR_SHAPE(264), OAR_SHAPE(264) } },
        { "layer norm by blocks",
          layer_norm,
          { OAR_SHAPE(5, 1040), OAR_SHAPE(1040), OAR_SHAPE(1040) } },
        { "layer norm of a warp's longest rows",
          layer_norm,
          { OAR_SHAPE(13, 768), OAR_SHAPE(768), OAR_SHAPE(768) } },
        { "layer norm by two packs a thread",
          layer_norm,
          { OAR_SHAPE(3, 2200), OAR_SHAPE(2200), OAR_SHAPE(2200) } },
        { "layer norm of long rows",
          layer_norm,
          { OAR_SHAPE(2, 4112), OAR_SHAPE(4112), OAR_SHAPE(4112) } },
        { "a sum and its layer norm",
          add_layer_norm,
          { OAR_SHAPE(9, 1032), OAR_SHAPE(9, 1032), OAR_SHAPE(1032) } },
        { "a sum and its rms norm",
          add_rms_norm,
          { OAR_SHAPE(30, 96), OAR_SHAPE(30, 96), OAR_SHAPE(96) } },
        { "softmax by warps", softmax, { OAR_SHAPE(11, 200) } },
        { "softmax by blocks", softmax, { OAR_SHAPE(3, 1544) } },
        { "softmax of long rows", softmax, { OAR_SHAPE(1, 8208) } },
        { "log softmax by blocks", log_softmax, { OAR_SHAPE(2, 2056) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void rows_are_the_cpus(void **state)
{
    run(rows_agree, "rows");
}

/* ---- picks --------------------------------------------------------------- */

enum { PICKS = 300 };

/* One row is picked more often than a warp looks at once. */
static oar_tensor *embedding(oar_tape *tape, oar_tensor *const *in)
{
    int64_t number[PICKS];

    for (int i = 0; i < PICKS; i++)
        number[i] = i % 3 == 0 ? 17 : i * 7 % 40;
    return oar_embedding(tape, in[0],
                         indices(tape, in[0], OAR_SHAPE(PICKS), number));
}

static oar_tensor *wide_embedding(oar_tape *tape, oar_tensor *const *in)
{
    int64_t number[40];

    for (int i = 0; i < 40; i++)
        number[i] = i < 20 ? 3 : i;
    return oar_embedding(tape, in[0],
                         indices(tape, in[0], OAR_SHAPE(40), number));
}

/* Its gradient is added to one that is there. */
/* Rows that a warp of the gradient takes after its first. */
static oar_tensor *far_embedding(oar_tape *tape, oar_tensor *const *in)
{
    int64_t number[90];

    for (int i = 0; i < 90; i++)
        number[i] = i % 2 ? 5999 : i * 66;
    return oar_embedding(tape, in[0],
                         indices(tape, in[0], OAR_SHAPE(90), number));
}

static oar_tensor *two_embeddings(oar_tape *tape, oar_tensor *const *in)
{
    static const int64_t few[] = { 5, 2, 5 };
    oar_tensor *first =
        oar_embedding(tape, in[0], indices(tape, in[0], OAR_SHAPE(3), few));

    return oar_add(tape, oar_sum(tape, first),
                   oar_sum(tape, embedding(tape, in)));
}

static oar_tensor *drop(oar_tape *tape, oar_tensor *const *in)
{
    return oar_dropout(tape, in[0], 0.3, 12345);
}

/* Of a part whose first element is in the middle of a block of random words. */
static oar_tensor *drop_part(oar_tape *tape, oar_tensor *const *in)
{
    oar_part_place place = oar_part_place_init();

    place.first = 6;
    place.stride[0] = 1;
    return oar_dropout_part(tape, in[0], 0.5, 99, &place);
}

static oar_tensor *classify(oar_tape *tape, oar_tensor *const *in)
{
    int64_t number[24];
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    for (int i = 0; i < 24; i++)
        number[i] = i * 11 % 40;
    o.has_ignore = 1;
    o.ignore = 22;
    return oar_linear_cross_entropy(
        tape, in[0], in[1], indices(tape, in[0], OAR_SHAPE(24), number), &o);
}

static int picks_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "embedding in packs", embedding, { OAR_SHAPE(40, 24) } },
        { "embedding of wide rows", wide_embedding, { OAR_SHAPE(41, 264) } },
        { "two embeddings", two_embeddings, { OAR_SHAPE(40, 16) } },
        { "embedding of many rows", far_embedding, { OAR_SHAPE(6000, 2) } },
        { "dropout in packs", drop, { OAR_SHAPE(17, 88) } },
        { "dropout of several blocks", drop, { OAR_SHAPE(130, 88) } },
        { "dropout of a part", drop_part, { OAR_SHAPE(1000) } },
        { "linear cross entropy",
          classify,
          { OAR_SHAPE(24, 16), OAR_SHAPE(40, 16) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void picks_are_the_cpus(void **state)
{
    run(picks_agree, "embedding, dropout, classifier");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_the_cpus),
        cmocka_unit_test(sums_are_the_cpus),
        cmocka_unit_test(rows_are_the_cpus),
        cmocka_unit_test(picks_are_the_cpus),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
