/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP where ranks have more input than others: those that have run out take
 * part in the passes of the others, gathered or mapped, and the result is what
 * one process trains on all rows. */
#include "support/test_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "parallel/shards/shards.h"
#include "support/last_error.h"
#include "support/spread_gpt.h"

enum { RANKS = 4, MOST = 400, WIDE = 5, CLASSES = 3, MOST_ROWS = 16 };

/* How many batches each rank has, of how many rows. */
typedef struct uneven_case {
    int ranks;
    int steps[RANKS], rows[RANKS];
    oar_hold hold;
    oar_zero_stage stage;
    int columns; /* ranks that share the shards; 0: all */
    int hosts;
    double *expected;
} uneven_case;

static int longest(const uneven_case *d)
{
    int most = 0;

    for (int r = 0; r < d->ranks; r++)
        most = d->steps[r] > most ? d->steps[r] : most;
    return most;
}

static oar_status make_net(oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();
    oar_module *layer[7] = { 0 };

    l.dtype = OAR_F64;
    for (int i = 0; i < 7; i += 2)
        CHECK_OK(oar_linear_create(WIDE, i == 6 ? CLASSES : WIDE, (uint64_t)i,
                                   &l, &layer[i]));
    for (int i = 1; i < 7; i += 2)
        CHECK_OK(oar_relu_create(&layer[i]));
    return oar_sequential_create(7, layer, net);
}

/* A row is known by its rank, step and place. */
static oar_tensor *loss_of(oar_tape *tape, const uneven_case *d,
                           oar_module *net, int step, int first_rank,
                           int end_rank)
{
    double x[MOST_ROWS * WIDE];
    int64_t y[MOST_ROWS];
    oar_tensor *in;
    int n = 0;

    for (int r = first_rank; r < end_rank; r++)
        for (int i = 0; step < d->steps[r] && i < d->rows[r]; i++, n++) {
            for (int c = 0; c < WIDE; c++)
                x[n * WIDE + c] = sin(step * 7 + r * 3.1 + i * 1.3 + c * 0.7);
            y[n] = (step + r + i) % CLASSES;
        }
    in = oar_from_data(tape, OAR_F64, OAR_SHAPE(n, WIDE), x);
    return oar_cross_entropy(tape, oar_forward(tape, net, in),
                             oar_from_data(tape, OAR_I64, OAR_SHAPE(n), y));
}

static int read_params(const oar_module *net, double *to)
{
    int n = 0;

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor_read(oar_module_param(net, i), OAR_F64, to + n);
        n += (int)oar_tensor_count(oar_module_param(net, i));
    }
    return n;
}

static oar_sgd_opts sgd_opts(void)
{
    oar_sgd_opts o = oar_sgd_opts_init();

    o.lr = 0.1;
    o.momentum = 0.9;
    return o;
}

static oar_status train_alone(const uneven_case *d, double *to)
{
    oar_sgd_opts o = sgd_opts();
    oar_module *net;
    oar_optim *sgd;
    oar_tape *tape;

    CHECK_OK(make_net(&net));
    CHECK_OK(oar_sgd_create(net, &o, &sgd));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < longest(d); step++) {
        CHECK_OK(oar_backward(tape, loss_of(tape, d, net, step, 0, d->ranks)));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    CHECK(read_params(net, to) <= MOST);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(net);
    return OAR_OK;
}

/* ---- together ------------------------------------------------------------ */

static oar_status wrap_net(oar_group *g, oar_group *replicas,
                           const uneven_case *d, oar_module **net)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();

    o.hold = d->hold;
    o.stage = d->stage;
    o.least_bytes = 1;
    o.weighted = 1;
    o.replicas = replicas;
    CHECK_OK(make_net(net));
    return oar_fsdp_wrap(*net, g, &o, net);
}

/* A rank with input may evaluate before it joins, where it can do so alone. */
static oar_status step_together(oar_tape *tape, const uneven_case *d,
                                oar_module *net, int rank, int step,
                                int *active)
{
    int has = step < d->steps[rank];
    int want = 0;

    for (int r = 0; r < d->ranks; r++)
        want += step < d->steps[r];
    if (d->hold == OAR_HOLD_MAPPED && has && step % 2 == 1)
        CHECK(loss_of(tape, d, net, step, rank, rank + 1) != NULL);
    oar_tape_reset(tape);
    CHECK_OK(oar_fsdp_join(net, has, active));
    CHECK(*active == want);
    if (has)
        CHECK_OK(
            oar_backward(tape, loss_of(tape, d, net, step, rank, rank + 1)));
    oar_tape_reset(tape);
    return OAR_OK;
}

static oar_status train_together(oar_group *g, void *arg)
{
    const uneven_case *d = arg;
    int rank = oar_group_rank(g), active = 1, step, count;
    oar_group *row = NULL, *column = NULL;
    oar_sgd_opts o = sgd_opts();
    double params[MOST];
    oar_module *net;
    oar_optim *sgd;
    oar_tape *tape;

    if (d->columns > 0) {
        CHECK_OK(oar_group_split(g, rank / d->columns, rank, &row));
        CHECK_OK(oar_group_split(g, rank % d->columns, rank, &column));
    }
    CHECK_OK(wrap_net(row != NULL ? row : g, column, d, &net));
    CHECK_OK(oar_shards_weigh(oar_fsdp_shards(net), d->rows[rank]));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param, &o, &sgd));
    CHECK_OK(oar_tape_create(&tape));
    for (step = 0;; step++) {
        CHECK_OK(step_together(tape, d, net, rank, step, &active));
        if (active == 0)
            break;
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
    }
    CHECK(step == longest(d));
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    count = read_params(net, params);
    CHECK_OK(oar_fsdp_reshard(net, NULL));
    for (int i = 0; i < count; i++)
        CHECK(fabs(params[i] - d->expected[i]) <= 1e-11);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(net);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(train_together(g, arg));
    oar_group_destroy(g);
    return 0;
}

static void check_case(uneven_case *d)
{
    double expected[MOST];
    test_job job;

    d->expected = expected;
    assert_int_equal(train_alone(d, expected), OAR_OK);
    for (const char *const *b = ranks_backends(); *b != NULL && !d->hosts; b++)
        if (hold_is_possible(*b, d->hold, d->ranks))
            assert_int_equal(ranks_run(*b, d->ranks, NULL, train_together, d),
                             OAR_OK);
    if (!d->hosts)
        return;
    test_job_start(&job, d->ranks, train_on_hosts, d, "two hosts, hold %d",
                   (int)d->hold);
    for (int r = 0; r < d->ranks; r++)
        test_job_expect(&job, r, 0);
    test_job_end(&job);
}

static const uneven_case deals[] = {
    { .ranks = 3, .steps = { 1, 2, 4 }, .rows = { 3, 2, 5 } },
    { .ranks = 3, .steps = { 4, 1, 2 }, .rows = { 4, 2, 3 } },
    { .ranks = 3, .steps = { 0, 3, 2 }, .rows = { 3, 4, 3 } }, /* 0: none */
    { .ranks = 2, .steps = { 0, 3 }, .rows = { 3, 2 } },
    { .ranks = 2, .steps = { 2, 2 }, .rows = { 1, 6 } },
    { .ranks = 4, .steps = { 0, 0, 3, 5 }, .rows = { 1, 1, 2, 3 } },
};
enum { DEALS = sizeof deals / sizeof *deals };

static void ranks_that_ran_out_keep_the_others_going(void **state)
{
    for (int i = 0; i < DEALS; i++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
            uneven_case d = deals[i];

            d.hold = (oar_hold)h;
            check_case(&d);
            d.stage = OAR_ZERO_STAGE_2;
            check_case(&d);
        }
}

static void they_do_so_on_two_hosts(void **state)
{
    for (int i = 0; i < DEALS; i++)
        for (int h = OAR_HOLD_HOST; h <= OAR_HOLD_OWN; h++) {
            uneven_case d = deals[i];

            if (d.ranks < (h == OAR_HOLD_HOST ? 4 : 3))
                continue;
            d.hosts = 1;
            d.hold = (oar_hold)h;
            check_case(&d);
        }
}

/* A row of ranks may have no input at all. */
static void they_do_so_for_replicas(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        uneven_case d = deals[DEALS - 1];

        d.hold = (oar_hold)h;
        d.columns = 2;
        check_case(&d);
    }
}

/* ---- what was added up --------------------------------------------------- */

/* Rank 0 runs out in the middle of a step of two passes: its first counts. */
static oar_status in_the_middle(oar_group *g, void *arg)
{
    uneven_case d = { .ranks = 3, .rows = { 2, 2, 2 }, .steps = { 1, 2, 2 } };
    int rank = oar_group_rank(g), active, count;
    double norm = 0, want = 0;
    oar_module *net, *other;
    oar_tape *tape;

    d.hold = *(oar_hold *)arg;
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(wrap_net(g, NULL, &d, &net));
    CHECK_OK(wrap_net(g, NULL, &d, &other));
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0)
            CHECK_OK(oar_fsdp_no_sync_begin(net));
        CHECK_OK(step_together(tape, &d, net, rank, pass, &active));
        if (pass == 0)
            CHECK_OK(oar_fsdp_no_sync_end(net));
    }
    /* the other model: the same sums, in two passes of weights 3/3 and 2/3 */
    CHECK_OK(step_together(tape, &d, other, rank, 0, &active));
    for (int k = 0; k < 2; k++) {
        oar_module *m = k == 0 ? net : other;
        oar_tensor *const *param = oar_fsdp_params(m, &count);
        double squares = 0;

        if (k == 1) { /* a mean over three, of which one is zero */
            if (rank == 0)
                d.steps[0] = 2;
            CHECK_OK(oar_backward(
                tape,
                oar_scale(tape, loss_of(tape, &d, other, 1, rank, rank + 1),
                          rank == 0 ? 0 : 1)));
            oar_tape_reset(tape);
        }
        for (int i = 0; i < count; i++) {
            double part = 0;
            if (oar_tensor_grad(param[i]) != NULL)
                CHECK_OK(oar_grad_squares(1, &param[i], &part));
            squares += part;
        }
        CHECK_OK(oar_all_reduce(g, oar_span_of(&squares, 1, OAR_F64), OAR_SUM,
                                NULL, NULL));
        *(k == 0 ? &norm : &want) = squares;
    }
    CHECK(norm > 0 && fabs(norm - want) <= 1e-12 * want);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_module_release(other);
    return OAR_OK;
}

static void what_was_added_up_before_running_out_counts(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 3, NULL, in_the_middle, &h),
                         OAR_OK);
}

/* ---- what is refused ----------------------------------------------------- */

/* Forward, no backward, and on to the next step. */
static oar_status given_up(oar_group *g, void *arg)
{
    uneven_case d = { .ranks = 3, .rows = { 0, 2, 2 }, .steps = { 0, 2, 2 } };
    int rank = oar_group_rank(g), active;
    oar_status status;
    oar_module *net;
    oar_tape *tape;

    d.hold = *(oar_hold *)arg;
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(wrap_net(g, NULL, &d, &net));
    status = oar_fsdp_join(net, rank > 0, &active);
    if (rank > 0) {
        CHECK_OK(status);
        CHECK(loss_of(tape, &d, net, 0, rank, rank + 1) != NULL);
        oar_tape_reset(tape);
        status = oar_fsdp_join(net, 1, &active);
    }
    CHECK(status == OAR_E_STATE || status == OAR_E_ABORTED);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK(oar_fsdp_join(net, 0, &active) == status); /* it stays broken */
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_pass_that_was_given_up_is_an_error(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        assert_int_equal(ranks_run("native", 3, NULL, given_up, &h), OAR_OK);
        assert_int_equal(ranks_run("sim", 3, NULL, given_up, &h), OAR_OK);
    }
}

static oar_status misuse(oar_group *g, void *arg)
{
    oar_module *net;
    int active = 7;

    CHECK_OK(make_net(&net));
    CHECK(oar_fsdp_join(net, 1, &active) == OAR_E_ARG);
    CHECK_OK(oar_fsdp_wrap(net, g, NULL, &net));
    CHECK(fails_with(oar_fsdp_join(net, 1, &active), OAR_E_ARG, "weighted"));
    oar_module_release(net);
    CHECK_OK(oar_batch_norm_create(1, 2, NULL, &net));
    CHECK_OK(oar_sync_batch_norm_convert(net, g, NULL));
    CHECK_OK(
        oar_fsdp_wrap(net, g, OAR_OPTS(oar_fsdp_opts, .weighted = 1), &net));
    CHECK(oar_fsdp_join(net, 1, NULL) == OAR_E_ARG);
    CHECK(fails_with(oar_fsdp_join(net, 1, &active), OAR_E_UNSUPPORTED,
                     "batch norms"));
    CHECK(active == 7);
    oar_module_release(net);
    return OAR_OK;
}

static void wrong_calls_are_refused(void **state)
{
    ranks_all(2, misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_ran_out_keep_the_others_going),
        cmocka_unit_test(they_do_so_on_two_hosts),
        cmocka_unit_test(they_do_so_for_replicas),
        cmocka_unit_test(what_was_added_up_before_running_out_counts),
        cmocka_unit_test(a_pass_that_was_given_up_is_an_error),
        cmocka_unit_test(wrong_calls_are_refused),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
