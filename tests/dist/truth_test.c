/* SPDX-License-Identifier: Apache-2.0 */
/* N ranks train what one process trains on the joined batch: a network of
 * linear layers, a CNN with synchronised batch norm, a GPT; by SGD, momentum
 * and AdamW; with one bucket and with many, with accumulation, and with batches
 * of different sizes by a weighted mean. All parameters after twenty steps. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { BATCH = 42, STEPS = 20, IMAGE = 6, CONTEXT = 5, WORDS = 11, WIDE = 9 };

typedef enum model { MLP, CNN, GPT } model;
typedef enum method { SGD, MOMENTUM, ADAMW } method;

typedef struct truth {
    model model;
    method method;
    oar_dtype dtype;
    double tolerance; /* of every parameter; below 0: of the loss */
    size_t bucket_bytes;
    int accumulate; /* micro-batches in a step */
    int uneven;     /* rank r has r more rows than its share, or fewer */
    int params;     /* found by one process: */
    double *expected;
    double loss;
} truth;

/* ---- the model ----------------------------------------------------------- */

static oar_status make_mlp(oar_dtype dtype, uint64_t seed, oar_module **net)
{
    oar_linear_opts o = oar_linear_opts_init();
    oar_module *layer[3] = { 0 };

    o.dtype = dtype;
    CHECK_OK(oar_linear_create(WIDE, 17, seed, &o, &layer[0]));
    CHECK_OK(oar_relu_create(&layer[1]));
    CHECK_OK(oar_linear_create(17, WORDS, seed + 9, &o, &layer[2]));
    return oar_sequential_create(3, layer, net);
}

static oar_status make_net(const truth *t, uint64_t seed, oar_module **net)
{
    if (t->model == MLP)
        return make_mlp(t->dtype, seed, net);
    if (t->model == CNN)
        return oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = IMAGE,
                                       .classes = WORDS, .width = 3,
                                       .seed = seed, .dtype = t->dtype),
                              net);
    return oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                   .context = CONTEXT, .width = 8, .layers = 2,
                                   .heads = 2, .seed = seed, .dtype = t->dtype),
                          net);
}

/* Rows of a batch: numbers or words, and what they should become. */
static oar_tensor *input(oar_tape *tape, const truth *t, int step, int first,
                         int rows)
{
    int width = t->model == CNN ? IMAGE * IMAGE : WIDE;
    oar_shape shape = t->model == CNN ? OAR_SHAPE(rows, 1, IMAGE, IMAGE)
                                      : OAR_SHAPE(rows, WIDE);
    double x[BATCH * IMAGE * IMAGE];
    int64_t word[BATCH * CONTEXT];
    oar_tensor *made;

    if (t->model == GPT) {
        for (int i = 0; i < rows * CONTEXT; i++)
            word[i] = ((first * CONTEXT + i) * 7 + step * 3) % WORDS;
        return oar_from_data(tape, OAR_I64, OAR_SHAPE(rows, CONTEXT), word);
    }
    for (int i = 0; i < rows * width; i++)
        x[i] = sin((first * width + i) * 1.3 + step);
    made = oar_empty(tape, t->dtype, shape);
    return oar_tensor_write(made, OAR_F64, x) == OAR_OK ? made : NULL;
}

static oar_tensor *loss_of(oar_tape *tape, const truth *t, oar_module *net,
                           int step, int first, int rows)
{
    int each = t->model == GPT ? CONTEXT : 1;
    int64_t y[BATCH * CONTEXT];

    for (int i = 0; i < rows * each; i++)
        y[i] = ((first * each + i) * 5 + step) % WORDS;
    return oar_cross_entropy(
        tape, oar_forward(tape, net, input(tape, t, step, first, rows)),
        oar_from_data(tape, OAR_I64, OAR_SHAPE(rows * each), y));
}

/* ---- training ------------------------------------------------------------ */

static oar_status make_optim(const truth *t, oar_module *net, oar_optim **optim)
{
    if (t->method == ADAMW)
        return oar_adamw_create(net, OAR_OPTS(oar_adam_opts, .lr = 0.01),
                                optim);
    return oar_sgd_create(net,
                          OAR_OPTS(oar_sgd_opts,
                                   .lr = t->model == CNN ? 0.002 : 0.05,
                                   .momentum = t->method == MOMENTUM ? 0.9 : 0),
                          optim);
}

/* This rank's rows of a batch. */
static void share(const truth *t, int rank, int ranks, int *first, int *rows)
{
    int each = BATCH / ranks, left = BATCH - each * ranks;

    *first = rank * each;
    *rows = each + (rank == ranks - 1 ? left : 0);
    if (!t->uneven || ranks == 1)
        return;
    if (rank == 0)
        *rows -= 2;
    if (rank == 1) {
        *first -= 2;
        *rows += 2;
    }
}

static oar_status train(const truth *t, oar_module *net, int rank, int ranks,
                        double *loss)
{
    int pieces = t->accumulate > 1 ? t->accumulate : 1, first, rows;
    oar_optim *optim;
    oar_tape *tape;

    share(t, rank, ranks, &first, &rows);
    CHECK_OK(make_optim(t, net, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++) {
        for (int p = 0; p < pieces; p++) {
            int from = rows * p / pieces, to = rows * (p + 1) / pieces;
            oar_tensor *value =
                loss_of(tape, t, net, step, first + from, to - from);
            value = oar_scale(tape, value, (to - from) / (double)rows);
            CHECK_OK(oar_backward(tape, value));
            CHECK_OK(oar_tensor_item(value, loss));
            oar_tape_reset(tape);
        }
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    return OAR_OK;
}

static int read_params(const oar_module *net, double *to)
{
    int n = 0;

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *p = oar_module_param(net, i);
        if (to != NULL)
            oar_tensor_read(p, OAR_F64, to + n);
        n += (int)oar_tensor_count(p);
    }
    return n;
}

/* loss: times this rank's rows. */
static oar_status as_one(const truth *t, oar_group *g, const oar_module *net,
                         double loss)
{
    double *mine = malloc((size_t)t->params * sizeof *mine), off = 0;

    CHECK(mine != NULL && read_params(net, mine) == t->params);
    for (int i = 0; i < t->params; i++)
        off = fmax(off, fabs(mine[i] - t->expected[i]));
    free(mine);
    CHECK(t->tolerance < 0 || off <= t->tolerance);
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&loss, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK(t->tolerance > 0 || fabs(loss / BATCH - t->loss) <= -t->tolerance);
    return OAR_OK;
}

static oar_status train_rank(oar_group *g, void *arg)
{
    const truth *t = arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g), first, rows;
    oar_ddp_opts o = oar_ddp_opts_init();
    double loss;
    oar_module *net;

    o.bucket_bytes = t->bucket_bytes;
    o.accumulate = t->accumulate;
    o.weighted = 1;
    o.check_every = 1; /* bitwise the same on all ranks, after every step */
    CHECK_OK(make_net(t, 3 + (uint64_t)rank, &net));
    if (t->model == CNN)
        CHECK_OK(oar_sync_batch_norm_convert(net, g, NULL));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    share(t, rank, ranks, &first, &rows);
    CHECK_OK(oar_ddp_weigh(net, rows));
    CHECK_OK(train(t, net, rank, ranks, &loss));
    CHECK_OK(oar_ddp_check_replicas(net));
    CHECK_OK(as_one(t, g, net, loss * rows));
    oar_module_release(net);
    return OAR_OK;
}

static void same_as_one_process(truth t)
{
    static const int ranks[] = { 2, 3, 4, 7 };
    oar_module *net;

    assert_int_equal(make_net(&t, 3, &net), OAR_OK);
    t.params = read_params(net, NULL);
    t.expected = malloc((size_t)t.params * sizeof *t.expected);
    assert_non_null(t.expected);
    assert_int_equal(train(&t, net, 0, 1, &t.loss), OAR_OK);
    read_params(net, t.expected);
    oar_module_release(net);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        ranks_all(ranks[i], train_rank, &t);
    free(t.expected);
}

/* ---- cases --------------------------------------------------------------- */

static void linear_layers(void **state)
{
    same_as_one_process((truth){ .model = MLP,
                                 .method = SGD,
                                 .dtype = OAR_F32,
                                 .tolerance = 1e-5,
                                 .accumulate = 1 });
    same_as_one_process((truth){ .model = MLP,
                                 .method = MOMENTUM,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-11,
                                 .bucket_bytes = 64,
                                 .accumulate = 1,
                                 .uneven = 1 });
    same_as_one_process((truth){ .model = MLP,
                                 .method = ADAMW,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-10,
                                 .accumulate = 1 });
}

static void a_cnn_with_synchronised_batch_norm(void **state)
{
    same_as_one_process((truth){ .model = CNN,
                                 .method = SGD,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-11,
                                 .bucket_bytes = 512,
                                 .accumulate = 1 });
    same_as_one_process((truth){ .model = CNN,
                                 .method = MOMENTUM,
                                 .dtype = OAR_F32,
                                 .tolerance = 1e-5,
                                 .accumulate = 1 });
}

static void a_gpt(void **state)
{
    same_as_one_process((truth){ .model = GPT,
                                 .method = MOMENTUM,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-11,
                                 .bucket_bytes = 1024,
                                 .accumulate = 1,
                                 .uneven = 1 });
    same_as_one_process((truth){ .model = GPT,
                                 .method = ADAMW,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-10,
                                 .bucket_bytes = SIZE_MAX,
                                 .accumulate = 1 });
    same_as_one_process((truth){ .model = GPT,
                                 .method = ADAMW,
                                 .dtype = OAR_F32,
                                 .tolerance = -1e-3,
                                 .accumulate = 1 });
}

static void with_accumulation(void **state)
{
    same_as_one_process((truth){ .model = MLP,
                                 .method = MOMENTUM,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-11,
                                 .bucket_bytes = 64,
                                 .accumulate = 3,
                                 .uneven = 1 });
    same_as_one_process((truth){ .model = GPT,
                                 .method = SGD,
                                 .dtype = OAR_F64,
                                 .tolerance = 1e-11,
                                 .accumulate = 2 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers),
        cmocka_unit_test(a_cnn_with_synchronised_batch_norm),
        cmocka_unit_test(a_gpt),
        cmocka_unit_test(with_accumulation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
