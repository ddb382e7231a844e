/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP with mixed precision trains what one process trains by hand, to the bit:
 * master weights in the model's dtype, a copy in another for forward and
 * backward, and the mean of all ranks' gradients in f32. */
#include "support/test_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/parallel.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spread_gpt.h"

enum { VOCABULARY = 19, CONTEXT = 7, ROWS = 3, STEPS = 2 };

typedef struct precision_case {
    oar_fsdp_opts opts;
    oar_gpt_opts gpt;
    int passes; /* for each step; below 0: without communication but the last */
    int freezes;
    int groups;       /* of replicas; 0 means 1 */
    const int *order; /* in which ranks are added; NULL: from 0 */
} precision_case;

static precision_case usual_case(void)
{
    precision_case c = { .opts = oar_fsdp_opts_init(),
                         .gpt = oar_gpt_opts_init(),
                         .passes = 1 };

    c.gpt.vocabulary = VOCABULARY;
    c.gpt.context = CONTEXT;
    c.gpt.width = 36;
    c.gpt.layers = 2;
    c.gpt.heads = 3;
    c.gpt.seed = 5;
    c.opts.canonical = 1;
    c.opts.least_bytes = 1;
    c.opts.mixed = 1;
    c.opts.param_dtype = OAR_BF16;
    return c;
}

static oar_status make_gpt(const precision_case *c, oar_dtype dtype,
                           oar_module **gpt)
{
    oar_gpt_opts o = c->gpt;

    o.dtype = dtype;
    CHECK_OK(oar_gpt_create(&o, gpt));
    if (c->freezes)
        CHECK_OK(
            oar_module_freeze(oar_module_find_module(*gpt, "blocks.1"), 1));
    return OAR_OK;
}

/* A loss in f32, whatever the model computes in. */
static oar_status run_pass(oar_module *model, oar_tape *tape, int rank,
                           int pass)
{
    uint64_t seed = (uint64_t)(100 * pass + rank);
    oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), seed,
                                0, VOCABULARY);
    oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                seed + 50, 0, VOCABULARY);
    oar_tensor *logits = oar_forward(tape, model, x);

    CHECK(logits != NULL);
    if (oar_tensor_dtype(logits) != OAR_F32)
        logits = oar_cast(tape, logits, OAR_F32);
    CHECK_OK(oar_backward(tape, oar_cross_entropy(tape, logits, y)));
    oar_tape_reset(tape);
    return OAR_OK;
}

/* ---- by hand ------------------------------------------------------------- */

enum { MOST_PARAMS = 64 };

typedef struct by_hand {
    oar_module *master, *copy;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *grad[MOST_PARAMS]; /* of the masters; NULL: has none */
    float *sum[MOST_PARAMS], *total[MOST_PARAMS];
} by_hand;

static oar_status copy_masters(by_hand *h)
{
    for (int i = 0; i < oar_module_params(h->master); i++)
        CHECK_OK(oar_tensor_copy(oar_module_param(h->copy, i),
                                 oar_module_param(h->master, i)));
    return OAR_OK;
}

static oar_status hand_create(const precision_case *c, by_hand *h)
{
    *h = (by_hand){ 0 };
    CHECK_OK(make_gpt(c, c->gpt.dtype, &h->master));
    CHECK_OK(make_gpt(c, c->opts.param_dtype, &h->copy));
    CHECK(oar_module_params(h->master) <= MOST_PARAMS);
    CHECK_OK(oar_tape_create(&h->tape));
    CHECK_OK(oar_adamw_create(h->master, OAR_OPTS(oar_adam_opts, .lr = 1e-2),
                              &h->adam));
    for (int i = 0; i < oar_module_params(h->master); i++) {
        oar_tensor *p = oar_module_param(h->master, i);
        int seen = 0;

        for (int k = 0; k < i; k++)
            seen |= oar_module_param(h->master, k) == p;
        if (seen || !oar_tensor_requires_grad(p))
            continue;
        h->grad[i] = oar_zeros(NULL, c->gpt.dtype, oar_tensor_shape(p));
        CHECK_OK(oar_tensor_bind_grad(p, h->grad[i]));
        h->sum[i] = malloc((size_t)oar_tensor_count(p) * sizeof(float));
        h->total[i] = malloc((size_t)oar_tensor_count(p) * sizeof(float));
    }
    return copy_masters(h);
}

static void hand_destroy(by_hand *h)
{
    for (int i = 0; i < MOST_PARAMS; i++) {
        oar_tensor_release(h->grad[i]);
        free(h->sum[i]);
        free(h->total[i]);
    }
    oar_optim_destroy(h->adam);
    oar_tape_destroy(h->tape);
    oar_module_release(h->master);
    oar_module_release(h->copy);
}

static float round_to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Adds the copy's gradient to sum, and forgets it. */
static oar_status add_copy(by_hand *h, int i, int first)
{
    oar_tensor *p = oar_module_param(h->copy, i);
    size_t count = (size_t)oar_tensor_count(p);
    float *wide = malloc(count * sizeof(float));

    CHECK(wide != NULL && oar_tensor_grad(p) != NULL);
    CHECK_OK(oar_tensor_read(oar_tensor_grad(p), OAR_F32, wide));
    for (size_t k = 0; k < count; k++)
        h->sum[i][k] = first ? wide[k] : h->sum[i][k] + wide[k];
    free(wide);
    oar_tensor_clear_grad(p);
    return OAR_OK;
}

/* Adds the mean over all ranks to the gradient of a master. */
static void give_mean(const precision_case *c, by_hand *h, int i, int first)
{
    size_t count = (size_t)oar_tensor_count(h->grad[i]);
    void *data = oar_tensor_data(h->grad[i]);

    for (size_t k = 0; k < count; k++) {
        float mean = h->total[i][k];

        if (c->opts.reduce_dtype == OAR_BF16)
            mean = round_to_bf16(mean);
        if (c->gpt.dtype == OAR_F64)
            ((double *)data)[k] =
                first ? (double)mean : ((double *)data)[k] + (double)mean;
        else
            ((float *)data)[k] = first ? mean : ((float *)data)[k] + mean;
    }
}

/* The passes of all ranks whose gradients are added before they travel. */
static oar_status hand_passes(const precision_case *c, by_hand *h, int ranks,
                              int pass, int passes, int first)
{
    int groups = c->groups != 0 ? c->groups : 1, each = ranks / groups;

    for (int k = 0; k < ranks; k++) {
        int rank = c->order != NULL ? c->order[k] : k;

        for (int p = 0; p < passes; p++)
            CHECK_OK(run_pass(h->copy, h->tape, rank, pass + p));
        for (int i = 0; i < MOST_PARAMS; i++) {
            size_t count =
                h->grad[i] != NULL ? (size_t)oar_tensor_count(h->grad[i]) : 0;

            if (h->grad[i] == NULL)
                continue;
            CHECK_OK(add_copy(h, i, k % each == 0));
            for (size_t j = 0; k % each == each - 1 && j < count; j++) {
                float mean = h->sum[i][j] / (float)each;
                h->total[i][j] = k < each ? mean : h->total[i][j] + mean;
            }
        }
    }
    for (int i = 0; i < MOST_PARAMS; i++) {
        for (int64_t j = 0; j < oar_tensor_count(h->grad[i]); j++)
            h->total[i][j] /= (float)groups;
        if (h->grad[i] != NULL)
            give_mean(c, h, i, first);
    }
    return OAR_OK;
}

static oar_status hand_step(const precision_case *c, by_hand *h, int ranks,
                            int step)
{
    if (c->passes < 0)
        CHECK_OK(hand_passes(c, h, ranks, -c->passes * step, -c->passes, 1));
    for (int p = 0; p < c->passes; p++)
        CHECK_OK(hand_passes(c, h, ranks, c->passes * step + p, 1, p == 0));
    for (int i = 0; i < MOST_PARAMS; i++)
        if (h->grad[i] != NULL)
            CHECK_OK(oar_tensor_mark_grad(oar_module_param(h->master, i)));
    CHECK_OK(oar_optim_step(h->adam));
    oar_optim_zero_grad(h->adam);
    return copy_masters(h);
}

/* ---- by FSDP ------------------------------------------------------------- */

static oar_status fsdp_step(const precision_case *c, oar_module *net,
                            oar_tape *tape, oar_optim *adam, int rank, int step)
{
    int passes = abs(c->passes);

    for (int p = 0; p < passes; p++) {
        int silent = c->passes < 0 && p < passes - 1;

        if (silent)
            CHECK_OK(oar_fsdp_no_sync_begin(net));
        CHECK_OK(run_pass(net, tape, rank, passes * step + p));
        if (silent)
            CHECK_OK(oar_fsdp_no_sync_end(net));
    }
    CHECK_OK(oar_optim_step(adam));
    oar_optim_zero_grad(adam);
    return OAR_OK;
}

/* Whole parameters are the copy's bits, shards those of the masters. */
static oar_status same_as_by_hand(const precision_case *c, const by_hand *h,
                                  oar_module *net)
{
    oar_shards *s = oar_fsdp_shards(net);
    oar_shard shard = oar_shard_init();
    size_t size = oar_dtype_size(c->gpt.dtype);

    for (int i = 0; i < oar_shards_count(s); i++) {
        const char *master;

        CHECK_OK(oar_shards_shard(s, i, &shard));
        CHECK(shard.data.dtype == c->gpt.dtype);
        CHECK(shard.grad.data == NULL || shard.grad.dtype == c->gpt.dtype);
        master = oar_tensor_const_data(oar_module_param(
            h->master, oar_fsdp_param_index(net, shard.array)));
        CHECK(memcmp(shard.data.data, master + shard.first * size,
                     shard.count * size) == 0);
    }
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    for (int i = 0; i < oar_module_params(net); i++) {
        const oar_tensor *p = oar_module_param(net, i);
        oar_dtype dtype = oar_tensor_dtype(p);

        CHECK(dtype == c->opts.param_dtype);
        CHECK(memcmp(oar_tensor_const_data(p),
                     oar_tensor_const_data(oar_module_param(h->copy, i)),
                     (size_t)oar_tensor_count(p) * oar_dtype_size(dtype)) == 0);
    }
    return oar_fsdp_reshard(net, NULL);
}

static oar_status train_both(oar_group *g, void *arg)
{
    precision_case c = *(const precision_case *)arg;
    int rank = oar_group_rank(g), ranks = oar_group_size(g), count;
    int each = c.groups != 0 ? ranks / c.groups : ranks;
    oar_group *row = NULL, *column = NULL;
    oar_module *net;
    oar_tape *tape;
    oar_optim *adam;
    by_hand h;

    if (c.groups != 0) {
        CHECK_OK(oar_group_split(g, rank / each, rank, &row));
        CHECK_OK(oar_group_split(g, rank % each, rank, &column));
        c.opts.replicas = column;
    }
    CHECK_OK(hand_create(&c, &h));
    CHECK_OK(make_gpt(&c, c.gpt.dtype, &net));
    CHECK_OK(oar_fsdp_wrap(net, row != NULL ? row : g, &c.opts, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_adamw_create_over(count, param,
                                   OAR_OPTS(oar_adam_opts, .lr = 1e-2), &adam));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(same_as_by_hand(&c, &h, net));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_step(&c, net, tape, adam, rank, step));
        CHECK_OK(hand_step(&c, &h, ranks, step));
    }
    CHECK_OK(same_as_by_hand(&c, &h, net));
    hand_destroy(&h);
    oar_optim_destroy(adam);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static void train_everywhere(precision_case *c, int ranks)
{
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (hold_is_possible(*b, c->opts.hold, ranks))
            assert_int_equal(ranks_run(*b, ranks, NULL, train_both, c), OAR_OK);
}

static void fsdp_trains_what_is_trained_by_hand(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            precision_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            train_everywhere(&c, ranks);
        }
}

static void every_stage_and_dtype_trains_what_is_trained_by_hand(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int kind = 0; kind < 7; kind++) {
            precision_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            c.opts.stage = kind == 0   ? OAR_ZERO_STAGE_1
                           : kind == 1 ? OAR_ZERO_STAGE_2
                                       : OAR_ZERO_STAGE_3;
            c.opts.param_dtype = kind == 2                ? OAR_F16
                                 : kind == 3 || kind == 6 ? OAR_F32
                                                          : OAR_BF16;
            c.gpt.dtype = kind == 3 || kind == 4 ? OAR_F64 : OAR_F32;
            c.opts.reduce_dtype = kind == 5 ? OAR_BF16 : OAR_F32;
            c.passes = kind % 2 + 1; /* so that means are stored, and added */
            assert_int_equal(ranks_run("sim", 2, NULL, train_both, &c), OAR_OK);
            if (kind != 5) /* halves round once for each rank but the first */
                assert_int_equal(ranks_run("native", 3, NULL, train_both, &c),
                                 OAR_OK);
        }
}

static void models_of_every_kind_train_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int kind = 0; kind < 5; kind++) {
            precision_case c = usual_case();

            c.opts.hold = (oar_hold)h;
            c.gpt.recompute = kind == 0;
            c.gpt.tied = kind <= 1;
            c.gpt.rotary = kind == 2;
            c.freezes = kind == 3;
            c.opts.prefetch = kind == 4 ? 2 : 0;
            c.passes = kind == 4 ? -3 : 1;
            assert_int_equal(ranks_run("native", 3, NULL, train_both, &c),
                             OAR_OK);
        }
}

static void replicas_take_part_in_the_mean(void **state)
{
    for (int passes = 1; passes <= 2; passes++) {
        precision_case c = usual_case();

        c.groups = 2;
        c.passes = passes;
        c.opts.hold = passes == 1 ? OAR_HOLD_MAPPED : OAR_HOLD_OWN;
        assert_int_equal(ranks_run("sim", 4, NULL, train_both, &c), OAR_OK);
        assert_int_equal(ranks_run("native", 4, NULL, train_both, &c), OAR_OK);
    }
}

/* ---- two hosts ----------------------------------------------------------- */

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(train_both(g, arg));
    oar_group_destroy(g);
    return 0;
}

static void two_hosts_train_what_is_trained_by_hand(void **state)
{
    static const int by_index[] = { 0, 2, 1, 3 }; /* as parts are numbered */

    for (int stage = OAR_ZERO_STAGE_3; stage <= OAR_ZERO_STAGE_2; stage++) {
        precision_case c = usual_case();
        test_job job;

        c.opts.hold = OAR_HOLD_HOST;
        c.opts.stage = (oar_zero_stage)stage;
        c.order = by_index;
        test_job_start(&job, 4, train_on_hosts, &c, "mixed, stage %d", stage);
        for (int r = 0; r < 4; r++)
            test_job_expect(&job, r, 0);
        test_job_end(&job);
    }
}

/* ---- what mixed precision is for ----------------------------------------- */

enum { LONG_STEPS = 300, LETTERS = 13, LONG_ROWS = 3, LONG_CONTEXT = 9 };

/* Rows of a text in which each letter follows from the one before it and the
 * place; input and target. */
static void fill_rows(int rank, int step, int64_t *x, int64_t *y)
{
    for (int r = 0; r < LONG_ROWS; r++) {
        int64_t at = (step * 5 + (rank * LONG_ROWS + r) * 3) % LETTERS;

        for (int i = 0; i < LONG_CONTEXT; i++) {
            x[r * LONG_CONTEXT + i] = at;
            at = (at * 5 + 3 + i % 2) % LETTERS;
            y[r * LONG_CONTEXT + i] = at;
        }
    }
}

/* Gives the mean loss of the last twenty steps. */
static oar_status train_long(oar_group *g, oar_dtype dtype, int mixed,
                             double *loss)
{
    int64_t x[LONG_ROWS * LONG_CONTEXT], y[LONG_ROWS * LONG_CONTEXT];
    oar_fsdp_opts o = usual_case().opts;
    int count;
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;

    o.mixed = mixed;
    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = LETTERS,
                                     .context = LONG_CONTEXT, .width = 24,
                                     .layers = 2, .heads = 3, .seed = 7,
                                     .dtype = dtype),
                            &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(
        count, param, OAR_OPTS(oar_sgd_opts, .lr = 4e-3, .momentum = 0.9),
        &optim));
    CHECK_OK(oar_tape_create(&tape));
    *loss = 0;
    for (int step = 0; step < LONG_STEPS; step++) {
        oar_tensor *in, *logits, *value;
        double item;

        fill_rows(oar_group_rank(g), step, x, y);
        in =
            oar_from_data(tape, OAR_I64, OAR_SHAPE(LONG_ROWS, LONG_CONTEXT), x);
        logits = oar_forward(tape, net, in);
        CHECK(!mixed || oar_tensor_dtype(logits) == OAR_F32);
        value = oar_cross_entropy(
            tape, oar_cast(tape, logits, OAR_F32),
            oar_from_data(tape, OAR_I64, OAR_SHAPE(LONG_ROWS * LONG_CONTEXT),
                          y));
        CHECK_OK(oar_backward(tape, value));
        CHECK_OK(oar_tensor_item(value, &item));
        *loss += step >= LONG_STEPS - 20 ? item / 20 : 0;
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

typedef struct long_case {
    oar_dtype dtype;
    int mixed;
    double *loss; /* rank 0's, in a shared page */
} long_case;

static oar_status note_loss(oar_group *g, void *arg)
{
    const long_case *c = arg;
    double loss;

    CHECK_OK(train_long(g, c->dtype, c->mixed, &loss));
    if (oar_group_rank(g) == 0)
        *c->loss = loss;
    return OAR_OK;
}

static void mixed_trains_as_f32_does_where_bf16_stalls(void **state)
{
    double *loss = shared_page(3 * sizeof *loss);
    long_case c[3] = { { OAR_F32, 0, &loss[0] },
                       { OAR_F32, 1, &loss[1] },
                       { OAR_BF16, 0, &loss[2] } };

    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run("native", 2, NULL, note_loss, &c[i]),
                         OAR_OK);
    print_message("loss: f32 %.4f, mixed %.4f, bf16 %.4f\n", loss[0], loss[1],
                  loss[2]);
    assert_true(fabs(loss[1] - loss[0]) < 0.01 * loss[0]);
    assert_true(loss[2] > 1.05 * loss[0]);
    shared_page_free(loss, 3 * sizeof *loss);
}

static oar_status read_figures(oar_group *g, oar_fsdp_opts *o,
                               oar_shards_stats *stats)
{
    precision_case c = usual_case();
    oar_module *net;
    oar_tape *tape;

    c.gpt.width = 96;
    CHECK_OK(make_gpt(&c, OAR_F32, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, o, &net));
    CHECK(strcmp(oar_fsdp_unit_name(net, 0), "") == 0);
    CHECK(strcmp(oar_fsdp_unit_name(net, 2), "blocks.1") == 0);
    CHECK(oar_fsdp_unit_name(net, 3) == NULL);
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(run_pass(net, tape, oar_group_rank(g), 0));
    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), stats));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status compare_figures(oar_group *g, void *arg)
{
    oar_shards_stats full = oar_shards_stats_init(), mixed = full;
    oar_fsdp_opts o = usual_case().opts;

    o.hold = OAR_HOLD_OWN;
    CHECK_OK(read_figures(g, &o, &mixed));
    o.mixed = 0;
    CHECK_OK(read_figures(g, &o, &full));
    CHECK((double)mixed.most_bytes < 0.6 * (double)full.most_bytes);
    CHECK((double)mixed.gathered_bytes < 0.6 * (double)full.gathered_bytes);
    CHECK((double)mixed.reduced_bytes < 0.6 * (double)full.reduced_bytes);
    o.hold = OAR_HOLD_MAPPED;
    o.mixed = 1;
    CHECK_OK(read_figures(g, &o, &mixed));
    o.mixed = 0;
    CHECK_OK(read_figures(g, &o, &full));
    /* masters and gradients of f32, and one copy of half the size */
    CHECK((double)mixed.shard_bytes < 1.4 * (double)full.shard_bytes);
    CHECK((double)mixed.most_bytes < 0.6 * (double)full.most_bytes);
    return OAR_OK;
}

static void whole_parameters_take_half_the_memory(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, compare_figures, NULL),
                     OAR_OK);
    assert_int_equal(ranks_run("sim", 3, NULL, compare_figures, NULL), OAR_OK);
}

/* ---- inputs, outputs, buffers -------------------------------------------- */

enum { WIDTH = 5 };

/* A float input is cast and has a gradient of its own dtype; statistics keep
 * theirs. */
static oar_status cast_around(oar_group *g, void *arg)
{
    oar_fsdp_opts o = usual_case().opts;
    oar_module *net, *part[2];
    oar_tensor *x, *y;
    oar_tape *tape;

    o.hold = *(oar_hold *)arg;
    o.output_dtype = OAR_F16;
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_linear_create(WIDTH, WIDTH, 1, NULL, &part[0]));
    CHECK_OK(oar_batch_norm_create(1, WIDTH, NULL, &part[1]));
    CHECK_OK(oar_sequential_create(2, part, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(8, WIDTH),
                    (uint64_t)oar_group_rank(g), -1, 1);
    CHECK_OK(oar_tensor_require_grad(x, 1));
    y = oar_forward(tape, net, x);
    CHECK(y != NULL && oar_tensor_dtype(y) == OAR_F16);
    CHECK_OK(oar_backward(tape, oar_mean(tape, oar_mul(tape, y, y))));
    CHECK(oar_tensor_grad(x) != NULL);
    CHECK(oar_tensor_dtype(oar_tensor_grad(x)) == OAR_F32);
    CHECK(oar_module_buffers(net) >= 2);
    CHECK(oar_tensor_dtype(oar_module_buffer(net, 0)) == OAR_F32);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
    return OAR_OK;
}

static void inputs_and_outputs_are_cast_and_buffers_are_not(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 2, NULL, cast_around, &h), OAR_OK);
}

/* A scale that is too large for f16 is skipped by all ranks, one that fits is
 * stepped by all. */
static oar_status scale_losses(oar_group *g, void *arg)
{
    oar_fsdp_opts o = usual_case().opts;
    int count, stepped;
    oar_module *net;
    oar_scaler *scaler;
    oar_optim *sgd;
    oar_tape *tape;

    o.param_dtype = o.output_dtype = OAR_F16;
    CHECK_OK(oar_linear_create(WIDTH, WIDTH, 1, NULL, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    CHECK_OK(
        oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = 20000), &scaler));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < 2; step++) {
        double large = step == 0 && oar_group_rank(g) == 1 ? 4 : 0.01;
        oar_tensor *x = oar_full(tape, OAR_F32, OAR_SHAPE(3, WIDTH), large);
        oar_tensor *loss = oar_sum(tape, oar_forward(tape, net, x));

        loss = oar_scale(tape, loss, oar_scaler_scale(scaler));
        CHECK_OK(oar_backward(tape, loss));
        CHECK_OK(oar_scaler_step_over(1, &g, scaler, sgd, &stepped));
        CHECK(stepped == step);
        CHECK(oar_scaler_scale(scaler) == 10000);
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_scaler_destroy(scaler);
    oar_module_release(net);
    return OAR_OK;
}

static void all_ranks_skip_a_step_whose_gradients_overflow(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, scale_losses, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 3, NULL, scale_losses, NULL), OAR_OK);
}

/* A lazy model makes its master weights with the numbers of a whole one. */
static oar_status start_lazily(oar_group *g, void *arg)
{
    precision_case c = usual_case();
    oar_module *lazy;
    by_hand h;

    c.opts.hold = *(oar_hold *)arg;
    CHECK_OK(hand_create(&c, &h));
    oar_lazy(1);
    CHECK_OK(make_gpt(&c, OAR_F32, &lazy));
    oar_lazy(0);
    CHECK_OK(oar_fsdp_wrap(lazy, g, &c.opts, &lazy));
    CHECK_OK(same_as_by_hand(&c, &h, lazy));
    oar_module_release(lazy);
    hand_destroy(&h);
    return OAR_OK;
}

static void a_lazy_model_starts_with_the_same_bits(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 3, NULL, start_lazily, &h),
                         OAR_OK);
}

/* ---- errors -------------------------------------------------------------- */

static oar_status wrap_with(oar_group *g, oar_dtype model, oar_dtype param,
                            oar_dtype reduce, oar_dtype output)
{
    oar_fsdp_opts o = usual_case().opts;
    oar_module *net, *wrapped = NULL;
    oar_status status;

    o.param_dtype = param;
    o.reduce_dtype = reduce;
    o.output_dtype = output;
    CHECK_OK(oar_linear_create(
        WIDTH, WIDTH, 1, OAR_OPTS(oar_linear_opts, .dtype = model), &net));
    status = oar_fsdp_wrap(net, g, &o, &wrapped);
    oar_module_release(wrapped);
    return status;
}

static oar_status refuse(oar_group *g, void *arg)
{
    oar_dtype mine = oar_group_rank(g) == 0 ? OAR_BF16 : OAR_F16;
    oar_shards_opts o = oar_shards_opts_init();
    oar_span array = oar_span_of(NULL, 7, OAR_F32);
    oar_shards *s = NULL;
    int unit = 0;

    CHECK(wrap_with(g, OAR_F32, OAR_I32, OAR_F32, OAR_F32) == OAR_E_DTYPE);
    CHECK(wrap_with(g, OAR_F32, OAR_BF16, OAR_F32, OAR_I64) == OAR_E_DTYPE);
    CHECK(wrap_with(g, OAR_F32, OAR_F16, OAR_BF16, OAR_F32) == OAR_E_DTYPE);
    CHECK(strstr(oar_last_error_text(), "reduce_dtype is f16 or f32") != NULL);
    CHECK(wrap_with(g, OAR_F32, OAR_F32, OAR_BF16, OAR_F32) == OAR_E_DTYPE);
    CHECK(wrap_with(g, OAR_BF16, OAR_BF16, OAR_F32, OAR_F32) == OAR_E_DTYPE);
    CHECK(strstr(oar_last_error_text(), "\"weight\" is bf16") != NULL);
    CHECK(wrap_with(g, OAR_F32, mine, OAR_F32, OAR_F32) == OAR_E_MISMATCH);
    CHECK_OK(wrap_with(g, OAR_F64, OAR_F16, OAR_F16, OAR_F64));
    o.mixed = 1;
    o.whole_dtype = OAR_U8;
    CHECK(oar_shards_create(g, 1, &array, &unit, &o, &s) == OAR_E_DTYPE);
    o.whole_dtype = OAR_F64;
    CHECK(oar_shards_create(g, 1, &array, &unit, &o, &s) == OAR_E_DTYPE);
    o.whole_dtype = mine;
    CHECK(oar_shards_create(g, 1, &array, &unit, &o, &s) == OAR_E_MISMATCH);
    return oar_barrier(g, NULL, NULL);
}

static void wrong_dtypes_are_refused(void **state)
{
    ranks_all(2, refuse, NULL);
}

/* Two passes: the second mean needs memory of its own. */
static oar_status train_alone(void *arg)
{
    oar_fsdp_opts o = usual_case().opts;

    o.hold = *(oar_hold *)arg;
    return fsdp_train_alone(&o, 2);
}

static void every_failing_allocation_is_reported(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
        assert_int_equal(train_alone(&h), OAR_OK); /* segments are kept */
        fail_each_allocation(train_alone, &h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fsdp_trains_what_is_trained_by_hand),
        cmocka_unit_test(every_stage_and_dtype_trains_what_is_trained_by_hand),
        cmocka_unit_test(models_of_every_kind_train_the_same),
        cmocka_unit_test(replicas_take_part_in_the_mean),
        cmocka_unit_test(two_hosts_train_what_is_trained_by_hand),
        cmocka_unit_test(mixed_trains_as_f32_does_where_bf16_stalls),
        cmocka_unit_test(whole_parameters_take_half_the_memory),
        cmocka_unit_test(inputs_and_outputs_are_cast_and_buffers_are_not),
        cmocka_unit_test(all_ranks_skip_a_step_whose_gradients_overflow),
        cmocka_unit_test(a_lazy_model_starts_with_the_same_bits),
        cmocka_unit_test(wrong_dtypes_are_refused),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
