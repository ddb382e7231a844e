/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with more input than others: those that have run out keep the others
 * going, also through synchronised batch norms, and the result is what one
 * process trains on all rows. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { RANKS = 3, MOST = 400, WIDE = 5, CLASSES = 3, MOST_ROWS = 12 };

/* How many batches each rank has, of how many rows. */
typedef struct join_case {
    int steps[RANKS], rows[RANKS];
    int cnn; /* instead of linear layers with norms of one dim */
    double *expected;
} join_case;

static int longest(const join_case *d)
{
    int most = 0;

    for (int r = 0; r < RANKS; r++)
        most = d->steps[r] > most ? d->steps[r] : most;
    return most;
}

/* ---- the model ----------------------------------------------------------- */

static oar_status make_layers(oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();
    oar_batch_norm_opts b = oar_batch_norm_opts_init();
    oar_module *layer[5] = { 0 };

    l.dtype = b.dtype = OAR_F64;
    CHECK_OK(oar_linear_create(WIDE, 4, 5, &l, &layer[0]));
    CHECK_OK(oar_batch_norm_create(1, 4, &b, &layer[1]));
    CHECK_OK(oar_relu_create(&layer[2]));
    b.momentum = -1; /* cumulative average */
    b.no_affine = 1;
    CHECK_OK(oar_batch_norm_create(1, 4, &b, &layer[3]));
    CHECK_OK(oar_linear_create(4, CLASSES, 9, &l, &layer[4]));
    return oar_sequential_create(5, layer, net);
}

static oar_status make_net(const join_case *d, oar_module **net)
{
    if (!d->cnn)
        return make_layers(net);
    return oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = 4, .classes = CLASSES,
                                   .width = 2, .seed = 3, .dtype = OAR_F64),
                          net);
}

/* A row is known by its rank, step and place. */
static oar_tensor *loss_of(oar_tape *tape, const join_case *d, oar_module *net,
                           int step, int first_rank, int end_rank)
{
    int width = d->cnn ? 16 : WIDE, n = 0;
    double x[MOST_ROWS * 16];
    int64_t y[MOST_ROWS];
    oar_tensor *in;

    for (int r = first_rank; r < end_rank; r++)
        for (int i = 0; step < d->steps[r] && i < d->rows[r]; i++, n++) {
            for (int c = 0; c < width; c++)
                x[n * width + c] = sin(step * 7 + r * 3.1 + i * 1.3 + c * 0.7);
            y[n] = (step + r + i) % CLASSES;
        }
    in = oar_from_data(tape, OAR_F64,
                       d->cnn ? OAR_SHAPE(n, 1, 4, 4) : OAR_SHAPE(n, WIDE), x);
    return oar_cross_entropy(tape, oar_forward(tape, net, in),
                             oar_from_data(tape, OAR_I64, OAR_SHAPE(n), y));
}

/* Parameters, then buffers; how many numbers. */
static int read_state(const oar_module *net, double *to)
{
    int n = 0;

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor_read(oar_module_param(net, i), OAR_F64, to + n);
        n += (int)oar_tensor_count(oar_module_param(net, i));
    }
    for (int i = 0; i < oar_module_buffers(net); i++) {
        oar_tensor_read(oar_module_buffer(net, i), OAR_F64, to + n);
        n += (int)oar_tensor_count(oar_module_buffer(net, i));
    }
    return n;
}

static oar_status make_optim(oar_module *net, oar_optim **optim)
{
    return oar_sgd_create(
        net, OAR_OPTS(oar_sgd_opts, .lr = 0.01, .momentum = 0.9), optim);
}

/* ---- both ways ----------------------------------------------------------- */

static oar_status train_alone(const join_case *d, double *state)
{
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;

    CHECK_OK(make_net(d, &net));
    CHECK_OK(make_optim(net, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < longest(d); step++) {
        CHECK_OK(oar_backward(tape, loss_of(tape, d, net, step, 0, RANKS)));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    CHECK(read_state(net, state) <= MOST);
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status step_together(oar_tape *tape, const join_case *d,
                                oar_module *net, int rank, int step,
                                int *active)
{
    int has = step < d->steps[rank];

    CHECK_OK(oar_ddp_join(net, has, active));
    if (has)
        CHECK_OK(
            oar_backward(tape, loss_of(tape, d, net, step, rank, rank + 1)));
    else
        oar_module_train(net, step % 2); /* which mode it is in is no matter */
    oar_tape_reset(tape);
    return OAR_OK;
}

static oar_status same_bits(oar_group *g, const double *mine, int n)
{
    double low[MOST], high[MOST];

    memcpy(low, mine, (size_t)n * sizeof *low);
    memcpy(high, mine, (size_t)n * sizeof *high);
    CHECK_OK(oar_all_reduce(g, oar_span_of(low, (size_t)n, OAR_F64), OAR_MIN,
                            NULL, NULL));
    CHECK_OK(oar_all_reduce(g, oar_span_of(high, (size_t)n, OAR_F64), OAR_MAX,
                            NULL, NULL));
    CHECK(memcmp(low, high, (size_t)n * sizeof *low) == 0);
    return OAR_OK;
}

static oar_status train_together(oar_group *g, void *arg)
{
    const join_case *d = arg;
    int rank = oar_group_rank(g), active = 1, step, n;
    oar_ddp_opts o = oar_ddp_opts_init();
    double state[MOST];
    oar_module *net;
    oar_optim *optim;
    oar_tape *tape;

    CHECK_OK(make_net(d, &net));
    CHECK_OK(oar_sync_batch_norm_convert(net, g, NULL));
    o.weighted = 1;
    o.bucket_bytes = 128;
    o.check_every = 1;
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_ddp_weigh(net, d->rows[rank]));
    CHECK_OK(make_optim(net, &optim));
    CHECK_OK(oar_tape_create(&tape));
    for (step = 0;; step++) {
        CHECK_OK(step_together(tape, d, net, rank, step, &active));
        if (active == 0)
            break;
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
    }
    CHECK(step == longest(d));
    n = read_state(net, state);
    CHECK_OK(same_bits(g, state, n));
    for (int i = 0; i < n; i++)
        CHECK(fabs(state[i] - d->expected[i]) <= 1e-11);
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

static void batch_norms_go_on_without_those_that_ran_out(void **state)
{
    static join_case deals[] = {
        { { 1, 2, 4 }, { 3, 2, 5 }, 0, NULL },
        { { 4, 1, 2 }, { 4, 2, 3 }, 1, NULL },
        { { 0, 3, 2 }, { 3, 4, 3 }, 0, NULL }, /* rank 0 never has any */
        { { 2, 0, 0 }, { 3, 2, 2 }, 1, NULL }, /* one goes on alone */
    };
    double expected[MOST];

    for (size_t i = 0; i < sizeof deals / sizeof *deals; i++) {
        deals[i].expected = expected;
        assert_int_equal(train_alone(&deals[i], expected), OAR_OK);
        ranks_all(RANKS, train_together, &deals[i]);
    }
}

/* ---- y = W x ------------------------------------------------------------- */

/* The gradient of mean(y) is x, in every row of W. */
static oar_status make_plain(oar_group *g, const oar_ddp_opts *o,
                             oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();

    l.no_bias = 1;
    l.dtype = OAR_F64;
    CHECK_OK(oar_linear_create(2, 1, 5, &l, net));
    return oar_ddp_wrap(*net, g, o, net);
}

static oar_status pass(oar_module *net, double value)
{
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(1, 2), value);
    CHECK_OK(oar_backward(tape, oar_mean(tape, oar_forward(tape, net, x))));
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status grad_is(const oar_module *net, double want)
{
    double value[2] = { NAN, NAN };

    CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(net, 0)), OAR_F64,
                             value));
    CHECK(fabs(value[0] - want) < 1e-12 && fabs(value[1] - want) < 1e-12);
    return OAR_OK;
}

/* Two passes a step. Rank 0 has three: in its second step it has added one up,
 * which counts, when it runs out. */
static oar_status in_the_middle(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g), active;
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;

    o.weighted = 1;
    o.accumulate = 2;
    CHECK_OK(make_plain(g, &o, &net));
    for (int i = 0; i < 6; i++) {
        int has = rank > 0 || i < 3;
        double own = 2 * rank, all = 0;
        CHECK_OK(oar_ddp_join(net, has, &active));
        CHECK(active == (i < 3 ? ranks : ranks - 1));
        if (has)
            CHECK_OK(pass(net, rank + (rank == 0 ? 10 : 0)));
        if (i % 2 == 0)
            continue;
        for (int r = 1; r < ranks; r++)
            all += 2 * r;
        own = i == 1 ? 20 : i == 3 ? 10 : 0; /* of rank 0 */
        CHECK_OK(grad_is(net, (all + own) / (i == 5 ? ranks - 1 : ranks)));
        oar_tensor_clear_grad(oar_module_param(net, 0));
    }
    oar_module_release(net);
    return OAR_OK;
}

static void what_was_added_up_before_running_out_counts(void **state)
{
    ranks_all(3, in_the_middle, NULL);
}

/* ---- buffers ------------------------------------------------------------- */

/* All ranks get the buffers of the first rank with input, not those of rank 0,
 * which no longer change. */
static oar_status shared_buffers(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), active;
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_batch_norm_opts b = oar_batch_norm_opts_init();
    double mean[2];
    oar_module *net;

    o.weighted = o.broadcast_buffers = 1;
    b.dtype = OAR_F64;
    CHECK_OK(oar_batch_norm_create(1, 2, &b, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_ddp_join(net, rank > 0, &active));
    CHECK(active == oar_group_size(g) - 1);
    CHECK_OK(oar_tensor_fill(oar_module_buffer(net, 0), rank));
    for (int i = 0; i < 2; i++) {
        double x[4] = { 1, 2, 3, 4 };
        oar_tape *tape;
        if (rank > 0) {
            CHECK_OK(oar_tape_create(&tape));
            CHECK_OK(oar_backward(
                tape, oar_mean(tape, oar_forward(tape, net,
                                                 oar_from_data(tape, OAR_F64,
                                                               OAR_SHAPE(2, 2),
                                                               x)))));
            oar_tape_destroy(tape);
        }
        CHECK_OK(oar_ddp_join(net, rank > 0 && i == 0, &active));
    }
    CHECK(active == 0);
    CHECK_OK(oar_tensor_read(oar_module_buffer(net, 0), OAR_F64, mean));
    /* rank 1 began with 1, or with 0.9 + 0.1 * 2 after its first batch */
    CHECK(fabs(mean[0] - (rank == 0 ? 1.1 : 1.19)) < 1e-12);
    oar_module_release(net);
    return OAR_OK;
}

static void buffers_come_from_a_rank_that_goes_on(void **state)
{
    ranks_all(3, shared_buffers, NULL);
}

/* ---- a step that does not come ------------------------------------------- */

static oar_status given_up(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), active;
    oar_ddp_opts o = oar_ddp_opts_init();
    join_case d = { { 0, 2, 2 }, { 0, 2, 2 }, 0, NULL };
    oar_status status;
    oar_module *net;
    oar_tape *tape;

    o.weighted = 1;
    CHECK_OK(make_net(&d, &net));
    CHECK_OK(oar_sync_batch_norm_convert(net, g, NULL));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    status = oar_ddp_join(net, rank > 0, &active);
    if (rank > 0) { /* forward, no backward, and on to the next step */
        CHECK_OK(status);
        CHECK(loss_of(tape, &d, net, 0, rank, rank + 1) != NULL);
        status = oar_ddp_join(net, 1, &active);
    }
    CHECK(fails_with(status, OAR_E_MISMATCH, "all_reduce"));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

/* Not over a plugin that only carries messages: the others may see only the
 * rank that reports first and leaves. */
static void a_step_that_was_begun_and_given_up_is_an_error(void **state)
{
    static const char *const backends[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run(backends[i], 3, NULL, given_up, NULL),
                         OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norms_go_on_without_those_that_ran_out),
        cmocka_unit_test(what_was_added_up_before_running_out_counts),
        cmocka_unit_test(buffers_come_from_a_rank_that_goes_on),
        cmocka_unit_test(a_step_that_was_begun_and_given_up_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
