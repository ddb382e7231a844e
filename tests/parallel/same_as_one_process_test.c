/* SPDX-License-Identifier: Apache-2.0 */
/* N ranks train what one process trains on the joined batch: linear layers, a
 * CNN with synchronised batch norm, a GPT; by SGD, momentum and AdamW; in f32
 * and f64; with one bucket and with many, large gradients in pieces; with
 * accumulation, and with last batches of an epoch that are smaller and divided
 * unevenly, by a weighted mean. All parameters are compared after twenty steps;
 * after every step all ranks have the same bits.
 *
 * A case runs on 2, 3, 4 and 7 ranks, each number over another backend. With
 * OARSONG_TEST_ALL every combination runs over all of them. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "parallel/ddp/ddp.h"
#include "support/force_overlap.h"

enum {
    BATCH = 42,
    LAST = 23, /* rows in the last batch of an epoch, if that is uneven */
    EPOCH = 3, /* batches */
    STEPS = 20,
    IMAGE = 6,
    CONTEXT = 5,
    WORDS = 11,
    WIDE = 9,
    BROAD = 120 /* hidden layers of which one is nearly 64 KiB in f32 */
};

typedef enum model { MLP, CNN, GPT, BROAD_MLP, MODELS } model;
typedef enum method { SGD, MOMENTUM, ADAMW, METHODS } method;

typedef struct training_setup {
    model model;
    method method;
    oar_dtype dtype;
    int many;       /* buckets, or one */
    int accumulate; /* micro-batches in a step */
    int uneven;     /* see LAST */
    int params;     /* found by one process: */
    double *expected;
    double loss;
} training_setup;

/* How far parameters may be off; below 0: how far the loss may. */
static double tolerance(const training_setup *t)
{
    if (t->method == ADAMW)
        return t->dtype == OAR_F64 ? 1e-10 : -1e-3;
    return t->dtype == OAR_F64 ? 1e-11 : 1e-5;
}

static size_t bucket_bytes(const training_setup *t)
{
    static const size_t many[MODELS] = { 64, 512, 1024, 64 << 10 };

    return t->many ? many[t->model] : SIZE_MAX;
}

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

static oar_status make_broad(oar_dtype dtype, uint64_t seed, oar_module **net)
{
    oar_linear_opts o = oar_linear_opts_init();
    oar_module *layer[7] = { 0 };

    o.dtype = dtype;
    for (int i = 0; i < 4; i++)
        CHECK_OK(oar_linear_create(i == 0 ? WIDE : BROAD,
                                   i == 3 ? WORDS : BROAD,
                                   seed + 9 * (uint64_t)i, &o, &layer[2 * i]));
    for (int i = 0; i < 3; i++)
        CHECK_OK(oar_relu_create(&layer[2 * i + 1]));
    return oar_sequential_create(7, layer, net);
}

/* A bias in front of a batch norm has no gradient but what rounding leaves of
 * it; and what AdamW makes of that says nothing: there they are frozen. */
static oar_status make_cnn(const training_setup *t, uint64_t seed,
                           oar_module **net)
{
    CHECK_OK(
        oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = IMAGE, .classes = WORDS,
                                .width = 3, .seed = seed, .dtype = t->dtype),
                       net));
    for (int i = 0; t->method == ADAMW && i < oar_module_children(*net); i++) {
        oar_module *layer = oar_module_child(*net, i);
        if (strcmp(oar_module_name(layer), "conv2d") == 0)
            CHECK_OK(oar_tensor_require_grad(oar_module_param(layer, 1), 0));
    }
    return OAR_OK;
}

static oar_status make_net(const training_setup *t, uint64_t seed,
                           oar_module **net)
{
    if (t->model == MLP)
        return make_mlp(t->dtype, seed, net);
    if (t->model == BROAD_MLP)
        return make_broad(t->dtype, seed, net);
    if (t->model == CNN)
        return make_cnn(t, seed, net);
    return oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                   .context = CONTEXT, .width = 8, .layers = 2,
                                   .heads = 2, .seed = seed, .dtype = t->dtype),
                          net);
}

/* Rows of a batch: numbers or words, and what they should become. */
static oar_tensor *input(oar_tape *tape, const training_setup *t, int step,
                         int first, int rows)
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

static oar_tensor *loss_of(oar_tape *tape, const training_setup *t,
                           oar_module *net, int step, int first, int rows)
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

static oar_status make_optim(const training_setup *t, oar_module *net,
                             oar_optim **optim)
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

/* Rows of the p-th micro-batch of a step: from, to. */
static void micro_batch(const training_setup *t, int step, int p, int *from,
                        int *to)
{
    int rows = t->uneven && step % EPOCH == EPOCH - 1 ? LAST : BATCH;

    *from = rows * p / t->accumulate;
    *to = rows * (p + 1) / t->accumulate;
}

/* This rank's part of them; the last rank has what is left, and where it is to
 * be uneven rank 0 gives one of its rows to rank 1. */
static void share(const training_setup *t, int step, int p, const int place[2],
                  int *first, int *rows)
{
    int rank = place[0], ranks = place[1], from, to, each, given;

    micro_batch(t, step, p, &from, &to);
    each = (to - from) / ranks;
    given = t->uneven && ranks > 1 && each > 1;
    *first = from + rank * each - (given && rank == 1);
    *rows = (rank == ranks - 1 ? to - from - rank * each : each) +
            (given && rank == 1) - (given && rank == 0);
}

/* In all micro-batches of a step. */
static int rows_in(const training_setup *t, int step, const int place[2])
{
    int all = 0, first, rows;

    for (int p = 0; p < t->accumulate; p++) {
        share(t, step, p, place, &first, &rows);
        all += rows;
    }
    return all;
}

/* Whether ranks have different numbers of rows, at some time. */
static int needs_weights(const training_setup *t, int ranks)
{
    return t->uneven || BATCH % (ranks * t->accumulate) != 0;
}

/* loss: this rank's part of the mean over the last batch, times its rows. */
static oar_status take_step(const training_setup *t, oar_tape *tape,
                            oar_module *net, int step, const int place[2],
                            double *loss)
{
    int rows = rows_in(t, step, place), first, part;
    double now;

    *loss = 0;
    for (int p = 0; p < t->accumulate; p++) {
        oar_tensor *value;
        share(t, step, p, place, &first, &part);
        value = loss_of(tape, t, net, step, first, part);
        value = oar_scale(tape, value, part / (double)rows);
        CHECK_OK(oar_backward(tape, value));
        CHECK_OK(oar_tensor_item(value, &now));
        *loss += now * rows;
        oar_tape_reset(tape);
    }
    return OAR_OK;
}

/* place: rank and ranks. */
static oar_status train(const training_setup *t, oar_module *net,
                        const int place[2], double *loss)
{
    int weighted = place[1] > 1 && needs_weights(t, place[1]);
    oar_optim *optim;
    oar_tape *tape;

    CHECK_OK(make_optim(t, net, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++) {
        if (weighted)
            CHECK_OK(oar_ddp_weigh(net, rows_in(t, step, place)));
        CHECK_OK(take_step(t, tape, net, step, place, loss));
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

static oar_status as_one(const training_setup *t, oar_group *g,
                         const oar_module *net, double loss)
{
    double *mine = malloc((size_t)t->params * sizeof *mine), off = 0;
    double allowed = tolerance(t);

    CHECK(mine != NULL && read_params(net, mine) == t->params);
    for (int i = 0; i < t->params; i++)
        off = fmax(off, fabs(mine[i] - t->expected[i]));
    free(mine);
    CHECK(allowed < 0 || off <= allowed);
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&loss, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK(allowed > 0 || fabs(loss - t->loss) <= -allowed * BATCH);
    return OAR_OK;
}

/* A gradient that is larger than a bucket. */
static int has_large(const training_setup *t)
{
    return t->many &&
           (t->model == MLP || (t->model == BROAD_MLP && t->dtype == OAR_F64));
}

/* That one gradient is reduced in. */
static int most_pieces(oar_module *wrapped)
{
    const oar_reducer *r = ((oari_ddp *)oar_module_self(wrapped))->reducer;
    int most = 0;

    for (int i = 0; i < r->buckets; i++)
        if (r->bucket[i].pieces > most)
            most = r->bucket[i].pieces;
    return most;
}

static oar_status train_rank(oar_group *g, void *arg)
{
    const training_setup *t = arg;
    const int place[2] = { oar_group_rank(g), oar_group_size(g) };
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_ddp_stats stats = oar_ddp_stats_init();
    double loss = 0;
    oar_module *net;

    o.bucket_bytes = bucket_bytes(t);
    o.accumulate = t->accumulate;
    o.weighted = needs_weights(t, place[1]);
    o.check_every = 1; /* bitwise the same on all ranks, after every step */
    if (t->many)
        force_overlap(g);
    CHECK_OK(make_net(t, 3 + (uint64_t)place[0], &net));
    if (t->model == CNN)
        CHECK_OK(oar_sync_batch_norm_convert(net, g, NULL));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(train(t, net, place, &loss));
    CHECK_OK(oar_ddp_check_replicas(net));
    CHECK_OK(as_one(t, g, net, loss));
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.passes == STEPS && stats.copied_bytes == 0);
    CHECK(t->many ? stats.buckets > 1 : stats.buckets == 1);
    CHECK(most_pieces(net) > 1 || !has_large(t));
    oar_module_release(net);
    return OAR_OK;
}

/* ---- cases --------------------------------------------------------------- */

static int is_full(void)
{
    return getenv("OARSONG_TEST_ALL") != NULL;
}

/* On each number of ranks: over all backends, or the one whose turn it is. */
static void on_ranks(training_setup *t, int turn)
{
    static const int ranks[] = { 2, 3, 4, 7 };
    const char *const *backend = ranks_backends();

    for (int i = 0; i < 4; i++) {
        const char *one = backend[(turn + i) % 3];
        if (is_full())
            ranks_all(ranks[i], train_rank, t);
        else if (ranks_run(one, ranks[i], NULL, train_rank, t) != OAR_OK)
            fail_msg("%s, %d ranks: %s", one, ranks[i], oar_last_error_text());
    }
}

static void same_as_one_process(training_setup t)
{
    static const int alone[2] = { 0, 1 };
    static int turn;
    oar_module *net;

    print_message("model %d, method %d, %s, %s, %d accumulated%s\n", t.model,
                  t.method, oar_dtype_name(t.dtype),
                  t.many ? "many buckets" : "one bucket", t.accumulate,
                  t.uneven ? ", uneven" : "");
    assert_int_equal(make_net(&t, 3, &net), OAR_OK);
    t.params = read_params(net, NULL);
    t.expected = malloc((size_t)t.params * sizeof *t.expected);
    assert_non_null(t.expected);
    assert_int_equal(train(&t, net, alone, &t.loss), OAR_OK);
    read_params(net, t.expected);
    oar_module_release(net);
    on_ranks(&t, turn++);
    free(t.expected);
}

/* Every combination for a model. */
static void all_of(model which)
{
    for (int k = 0; k < METHODS * 16; k++)
        same_as_one_process(
            (training_setup){ .model = which,
                              .method = (method)(k / 16),
                              .dtype = k & 8 ? OAR_F64 : OAR_F32,
                              .many = (k & 4) != 0,
                              .accumulate = k & 2 ? 3 : 1,
                              .uneven = k & 1 });
}

/* Each method in both dtypes; each of the rest with and without. */
static void some_of(model which)
{
    static const training_setup some[] = {
        { .method = SGD, .dtype = OAR_F32, .many = 1, .accumulate = 1 },
        { .method = MOMENTUM, .dtype = OAR_F64, .accumulate = 1, .uneven = 1 },
        { .method = ADAMW,
          .dtype = OAR_F64,
          .many = 1,
          .accumulate = 3,
          .uneven = 1 },
        { .method = SGD, .dtype = OAR_F64, .accumulate = 3 },
        { .method = MOMENTUM, .dtype = OAR_F32, .many = 1, .accumulate = 3 },
        { .method = ADAMW, .dtype = OAR_F32, .accumulate = 1 },
    };

    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        training_setup t = some[i];
        t.model = which;
        same_as_one_process(t);
    }
}

static void linear_layers_train_the_same(void **state)
{
    (is_full() ? all_of : some_of)(MLP);
}

static void a_cnn_with_synchronised_batch_norm_trains_the_same(void **state)
{
    (is_full() ? all_of : some_of)(CNN);
}

static void a_gpt_trains_the_same(void **state)
{
    (is_full() ? all_of : some_of)(GPT);
}

static void buckets_of_64_kib_train_the_same(void **state)
{
    training_setup t = { .model = BROAD_MLP,
                         .method = MOMENTUM,
                         .dtype = OAR_F64,
                         .many = 1,
                         .accumulate = 1,
                         .uneven = 1 };

    if (is_full())
        all_of(BROAD_MLP);
    else
        same_as_one_process(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers_train_the_same),
        cmocka_unit_test(a_cnn_with_synchronised_batch_norm_trains_the_same),
        cmocka_unit_test(a_gpt_trains_the_same),
        cmocka_unit_test(buckets_of_64_kib_train_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
