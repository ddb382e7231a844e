/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of layers on a GPU against those of the cpu, results and
 * gradients: norms, softmax, losses, embedding, dropout, rotary; in every float
 * dtype, rows that fill packs and rows that do not; indices that are wrong. */
#include "gpu/layer_cases.h"

/* ---- norms and softmax --------------------------------------------------- */

static oar_tensor *layer_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_layer_norm(tape, in[0], in[1], in[2], 1e-5);
}

static oar_tensor *rms_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_rms_norm(tape, in[0], in[1], 1e-5);
}

/* Both results reach the one that is looked at. */
static oar_tensor *add_layer_norm(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *sum = NULL;
    oar_tensor *out =
        oar_add_layer_norm(tape, in[0], in[1], in[2], NULL, 1e-5, &sum);

    return oar_add(tape, out, sum);
}

static oar_tensor *linear_gelu(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], in[2], OAR_GELU);
}

static oar_tensor *linear_gelu_tanh(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], in[2], OAR_GELU_TANH);
}

/* Two layers of an MLP: the gradient between them is made with a product. */
static oar_tensor *mlp(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *h = oar_linear_act(tape, in[0], in[1], in[2], OAR_GELU_TANH);

    return oar_linear(tape, h, in[1], NULL);
}

/* The result between them is used a second time. */
static oar_tensor *forked_mlp(oar_tape *tape, oar_tensor *const *in)
{
    oar_tensor *h = oar_linear_act(tape, in[0], in[1], in[2], OAR_GELU_TANH);
    oar_tensor *before = oar_neg(tape, h);

    return oar_add(tape, oar_linear(tape, h, in[1], NULL), before);
}

static oar_tensor *linear_relu(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], in[2], OAR_RELU);
}

static oar_tensor *linear_silu(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], NULL, OAR_SILU);
}

static oar_tensor *linear_softplus(oar_tape *tape, oar_tensor *const *in)
{
    return oar_linear_act(tape, in[0], in[1], in[2], OAR_SOFTPLUS);
}

static oar_tensor *group_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_group_norm(tape, in[0], 2, in[1], in[2], 1e-5);
}

static oar_tensor *batch_norm(oar_tape *tape, oar_tensor *const *in)
{
    return oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0.1, 1e-5);
}

static oar_tensor *softmax(oar_tape *tape, oar_tensor *const *in)
{
    return oar_softmax(tape, in[0]);
}

static oar_tensor *log_softmax(oar_tape *tape, oar_tensor *const *in)
{
    return oar_log_softmax(tape, in[0], 0);
}

static int norms_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "layer norm",
          layer_norm,
          { OAR_SHAPE(3, 5, 24), OAR_SHAPE(24), OAR_SHAPE(24) } },
        { "layer norm of odd rows",
          layer_norm,
          { OAR_SHAPE(37, 7), OAR_SHAPE(7), OAR_SHAPE(7) } },
        { "layer norm without parameters", layer_norm, { OAR_SHAPE(9, 48) } },
        { "layer norm of one row",
          layer_norm,
          { OAR_SHAPE(1, 513), OAR_SHAPE(513), OAR_SHAPE(513) } },
        { "a sum and its layer norm",
          add_layer_norm,
          { OAR_SHAPE(19, 16), OAR_SHAPE(19, 16), OAR_SHAPE(16) } },
        { "rms norm", rms_norm, { OAR_SHAPE(11, 32), OAR_SHAPE(32) } },
        { "rms norm of odd rows", rms_norm, { OAR_SHAPE(5, 3), OAR_SHAPE(3) } },
        { "group norm",
          group_norm,
          { OAR_SHAPE(3, 4, 5, 9), OAR_SHAPE(4), OAR_SHAPE(4) } },
        { "group norm in packs",
          group_norm,
          { OAR_SHAPE(3, 4, 5, 8), OAR_SHAPE(4), OAR_SHAPE(4) } },
        { "batch norm",
          batch_norm,
          { OAR_SHAPE(3, 4, 5, 9), OAR_SHAPE(4), OAR_SHAPE(4) } },
        { "batch norm in packs",
          batch_norm,
          { OAR_SHAPE(9, 5, 4, 8), OAR_SHAPE(5), OAR_SHAPE(5) } },
        { "batch norm in packs of a block",
          batch_norm,
          { OAR_SHAPE(40, 2, 8, 8), OAR_SHAPE(2), OAR_SHAPE(2) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static int linear_acts_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "linear and gelu",
          linear_gelu,
          { OAR_SHAPE(9, 5), OAR_SHAPE(11, 5), OAR_SHAPE(11) } },
        { "linear and gelu by tanh",
          linear_gelu_tanh,
          { OAR_SHAPE(3, 50, 8), OAR_SHAPE(40, 8), OAR_SHAPE(40) } },
        { "linear and relu",
          linear_relu,
          { OAR_SHAPE(2, 40, 8), OAR_SHAPE(24, 8), OAR_SHAPE(24) } },
        { "an mlp",
          mlp,
          { OAR_SHAPE(3, 30, 16), OAR_SHAPE(16, 16), OAR_SHAPE(16) } },
        { "an mlp with a fork",
          forked_mlp,
          { OAR_SHAPE(30, 16), OAR_SHAPE(16, 16), OAR_SHAPE(16) } },
        { "linear and silu",
          linear_silu,
          { OAR_SHAPE(7, 16), OAR_SHAPE(16, 16) } },
        { "linear and softplus",
          linear_softplus,
          { OAR_SHAPE(7, 16), OAR_SHAPE(3, 16), OAR_SHAPE(3) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static int softmaxes_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "softmax", softmax, { OAR_SHAPE(5, 64) } },
        { "softmax of odd rows", softmax, { OAR_SHAPE(3, 2, 77) } },
        { "softmax of one class", softmax, { OAR_SHAPE(4, 1) } },
        { "log softmax over dim 0", log_softmax, { OAR_SHAPE(40, 3) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void norms_are_the_cpus(void **state)
{
    run(norms_agree, "norms");
}

static void softmaxes_are_the_cpus(void **state)
{
    run(softmaxes_agree, "softmax");
}

static void linear_layers_with_an_activation_are_the_cpus(void **state)
{
    run(linear_acts_agree, "linear layers with an activation");
}

/* ---- images -------------------------------------------------------------- */

/* A number that is no place in a plane: places are then of 64 bits. */
enum { FAR = (1 << 30) + 1 };

static oar_tensor *max_pool(oar_tape *tape, oar_tensor *const *in)
{
    return oar_max_pool2d(
        tape, in[0], 3, 2,
        OAR_OPTS(oar_pool2d_opts, .stride = { 2, 2 }, .padding = { 1, 0 }));
}

static oar_tensor *max_pool_far(oar_tape *tape, oar_tensor *const *in)
{
    return oar_max_pool2d(tape, in[0], 3, 2,
                          OAR_OPTS(oar_pool2d_opts, .stride = { 2, FAR }));
}

static oar_tensor *avg_pool(oar_tape *tape, oar_tensor *const *in)
{
    return oar_avg_pool2d(
        tape, in[0], 3, 3,
        OAR_OPTS(oar_pool2d_opts, .stride = { 1, 2 }, .padding = { 1, 1 }));
}

static oar_tensor *adaptive_pool(oar_tape *tape, oar_tensor *const *in)
{
    return oar_adaptive_avg_pool2d(tape, in[0], 3, 4);
}

static oar_tensor *conv(oar_tape *tape, oar_tensor *const *in)
{
    return oar_conv2d(tape, in[0], in[1], in[2],
                      OAR_OPTS(oar_conv2d_opts, .stride = { 2, 1 },
                               .padding = { 1, 2 }, .dilation = { 1, 2 }));
}

static oar_tensor *conv_far(oar_tape *tape, oar_tensor *const *in)
{
    return oar_conv2d(tape, in[0], in[1], in[2],
                      OAR_OPTS(oar_conv2d_opts, .dilation = { FAR, 1 }));
}

static int images_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "max pool", max_pool, { OAR_SHAPE(2, 3, 7, 9) } },
        { "max pool of far windows", max_pool_far, { OAR_SHAPE(2, 3, 7, 9) } },
        { "mean pool", avg_pool, { OAR_SHAPE(2, 3, 7, 9) } },
        { "mean pool that covers", adaptive_pool, { OAR_SHAPE(2, 3, 7, 9) } },
        { "convolution",
          conv,
          { OAR_SHAPE(2, 3, 7, 9), OAR_SHAPE(4, 3, 3, 2), OAR_SHAPE(4) } },
        { "convolution of far rows",
          conv_far,
          { OAR_SHAPE(2, 3, 7, 9), OAR_SHAPE(4, 3, 1, 2), OAR_SHAPE(4) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void layers_of_images_are_the_cpus(void **state)
{
    run(images_agree, "layers of images");
}

/* ---- losses -------------------------------------------------------------- */

static const int64_t targets[] = { 0, 6, 3, 3, 2, 5, 1, 4 };

static oar_tensor *entropy_with(oar_tape *tape, oar_tensor *const *in,
                                const oar_cross_entropy_opts *o)
{
    oar_tensor *target = indices(tape, in[0], OAR_SHAPE(8), targets);

    return oar_cross_entropy_with(tape, in[0], target, o);
}

static oar_tensor *entropy(oar_tape *tape, oar_tensor *const *in)
{
    return entropy_with(tape, in, NULL);
}

static oar_tensor *smooth_entropy(oar_tape *tape, oar_tensor *const *in)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.label_smoothing = 0.2;
    o.has_ignore = 1;
    o.ignore = 3;
    return entropy_with(tape, in, &o);
}

static oar_tensor *weighted_entropy(oar_tape *tape, oar_tensor *const *in)
{
    static const double number[] = { 1, 0.5, 2, 1, 3, 0.25, 1 };
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();
    oar_tensor *here = oar_from_data(tape, OAR_F64, OAR_SHAPE(7), number);

    here = oar_cast(tape, here, oar_tensor_dtype(in[0]));
    o.label_smoothing = 0.1;
    o.weight = oar_to(tape, here, oar_tensor_device(in[0]));
    return entropy_with(tape, in, &o);
}

static oar_tensor *each_entropy(oar_tape *tape, oar_tensor *const *in)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.reduction = OAR_LOSS_NONE;
    return entropy_with(tape, in, &o);
}

static oar_tensor *sum_entropy(oar_tape *tape, oar_tensor *const *in)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.reduction = OAR_LOSS_SUM;
    return entropy_with(tape, in, &o);
}

static oar_tensor *mse(oar_tape *tape, oar_tensor *const *in)
{
    return oar_mse(tape, in[0], in[1]);
}

static oar_tensor *huber(oar_tape *tape, oar_tensor *const *in)
{
    oar_loss_opts o = oar_loss_opts_init();

    o.reduction = OAR_LOSS_NONE;
    return oar_huber_loss(tape, in[0], in[1], 0.7, &o);
}

static oar_tensor *bce(oar_tape *tape, oar_tensor *const *in)
{
    return oar_bce_with_logits(tape, in[0], in[1], NULL);
}

static int losses_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "cross entropy", entropy, { OAR_SHAPE(8, 7) } },
        { "cross entropy in packs", entropy, { OAR_SHAPE(8, 64) } },
        { "cross entropy of long rows", entropy, { OAR_SHAPE(8, 1528) } },
        { "cross entropy, smooth", smooth_entropy, { OAR_SHAPE(8, 16) } },
        { "cross entropy, weighted", weighted_entropy, { OAR_SHAPE(8, 7) } },
        { "cross entropy, each", each_entropy, { OAR_SHAPE(8, 40) } },
        { "cross entropy, sum", sum_entropy, { OAR_SHAPE(8, 9) } },
        { "mse", mse, { OAR_SHAPE(7, 19), OAR_SHAPE(7, 19) } },
        { "huber", huber, { OAR_SHAPE(33), OAR_SHAPE(33) } },
        { "bce", bce, { OAR_SHAPE(5, 5), OAR_SHAPE(5, 5) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void losses_are_the_cpus(void **state)
{
    run(losses_agree, "losses");
}

/* ---- embedding, dropout, rotary ------------------------------------------ */

enum { PICKS = 700 };

/* Most rows several times, some never. */
static oar_tensor *embedding(oar_tape *tape, oar_tensor *const *in)
{
    int64_t number[PICKS], rows = oar_tensor_shape(in[0]).dim[0];

    for (int i = 0; i < PICKS; i++)
        number[i] = (int64_t)i * i * 7 % (rows - 1);
    return oar_embedding(tape, in[0],
                         indices(tape, in[0], OAR_SHAPE(PICKS), number));
}

static oar_tensor *embedding_part(oar_tape *tape, oar_tensor *const *in)
{
    oar_embedding_opts o = oar_embedding_opts_init();
    int64_t number[40];

    for (int i = 0; i < 40; i++)
        number[i] = i * 5 % 20;
    o.vocabulary = 20;
    o.first = 6;
    o.has_padding = 1;
    o.padding = 10;
    return oar_embedding_with(
        tape, in[0], indices(tape, in[0], OAR_SHAPE(5, 8), number), &o);
}

static oar_tensor *drop(oar_tape *tape, oar_tensor *const *in)
{
    return oar_dropout(tape, in[0], 0.3, 12345);
}

static oar_tensor *drop_part(oar_tape *tape, oar_tensor *const *in)
{
    oar_part_place place = oar_part_place_init();

    place.first = 6;
    place.stride[0] = 40;
    place.stride[1] = 1;
    return oar_dropout_part(tape, in[0], 0.5, 99, &place);
}

static oar_tensor *rotary(oar_tape *tape, oar_tensor *const *in)
{
    return oar_rotary(tape, in[0], 3, 10000);
}

static int picks_agree(test_job *c, int rank, void *arg)
{
    const layer_case cases[] = {
        { "embedding", embedding, { OAR_SHAPE(300, 5) } },
        { "embedding of few rows", embedding, { OAR_SHAPE(7, 8) } },
        { "a part of an embedding", embedding_part, { OAR_SHAPE(9, 12) } },
        { "dropout", drop, { OAR_SHAPE(3, 77) } },
        { "dropout of a part", drop_part, { OAR_SHAPE(9, 10) } },
        { "rotary", rotary, { OAR_SHAPE(2, 5, 6) } },
        { "rotary in packs", rotary, { OAR_SHAPE(2, 7, 3, 32) } },
    };

    CHECK_CASES(cases)
    return 0;
}

static void picks_are_the_cpus(void **state)
{
    run(picks_agree, "embedding, dropout, rotary");
}

/* ---- indices that are wrong ---------------------------------------------- */

static int says_which_index(test_job *c, int rank, void *arg)
{
    static const int64_t rows[] = { 1, 2, 9, 0 }, classes[] = { 0, -1, 1 };
    oar_tensor *table = make_input(gpu, OAR_F32, OAR_SHAPE(5, 4), 1);
    oar_tensor *logits = make_input(gpu, OAR_F32, OAR_SHAPE(3, 4), 2);
    oar_tensor *index = indices(NULL, table, OAR_SHAPE(4), rows);
    oar_tensor *target = indices(NULL, logits, OAR_SHAPE(3), classes);
    oar_tensor *out = oar_embedding(NULL, table, index);
    double number;

    RANK_CHECK(out != NULL); /* nobody has waited */
    RANK_CHECK(oar_stream_synchronize(gpu, NULL) == OAR_E_ARG);
    RANK_CHECK(strstr(oar_last_error()->text, "embedding") != NULL &&
               strstr(oar_last_error()->text, "element 2") != NULL &&
               strstr(oar_last_error()->text, "is 9") != NULL);
    RANK_OK(oar_stream_synchronize(gpu, NULL)); /* it was said once */
    oar_tensor_release(out);
    out = oar_cross_entropy(NULL, logits, target);
    RANK_CHECK(out != NULL);
    RANK_CHECK(oar_tensor_read(out, OAR_F64, &number) == OAR_E_ARG);
    RANK_CHECK(strstr(oar_last_error()->text, "cross_entropy") != NULL &&
               strstr(oar_last_error()->text, "is -1") != NULL);
    oar_tensor_release(out);
    setenv("OARSONG_GPU_CHECK", "1", 1);
    RANK_CHECK(oar_embedding(NULL, table, index) == NULL);
    unsetenv("OARSONG_GPU_CHECK");
    oar_tensor_release(index);
    oar_tensor_release(target);
    oar_tensor_release(table);
    oar_tensor_release(logits);
    return 0;
}

static void a_wrong_index_is_the_next_error(void **state)
{
    run(says_which_index, "indices that are wrong");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_the_cpus),
        cmocka_unit_test(softmaxes_are_the_cpus),
        cmocka_unit_test(linear_layers_with_an_activation_are_the_cpus),
        cmocka_unit_test(layers_of_images_are_the_cpus),
        cmocka_unit_test(losses_are_the_cpus),
        cmocka_unit_test(picks_are_the_cpus),
        cmocka_unit_test(a_wrong_index_is_the_next_error),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
