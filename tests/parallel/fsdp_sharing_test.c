/* SPDX-License-Identifier: Apache-2.0 */
/* What units, passes and ranks have in common under FSDP: a parameter of two
 * units, gradients of several passes, large tables, and the numbers that one
 * rank evaluates alone. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/p2p.h>
#include <oarsong/tape.h>

#include "parallel/shards/shards.h"
#include "support/spread_gpt.h"

/* ---- one parameter in two units ------------------------------------------ */

enum { WIDTH = 37, ROWS = 4 };

static oar_tensor *multiply(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_matmul(tape, x, oar_module_param(module, 0));
}

static const oar_module_class product_class = {
    .size = sizeof(oar_module_class),
    .name = "product",
    .forward = multiply,
};

static oar_status make_product(oar_tensor *weight, oar_module **product)
{
    CHECK_OK(oar_module_create(&product_class, product));
    return oar_module_add_param(*product, "weight", oar_tensor_retain(weight));
}

/* Three products, of which the first and the last have one weight. */
static oar_status make_tied(oar_module **row)
{
    oar_module *part[3];

    for (int i = 0; i < 2; i++) {
        oar_tensor *weight = oar_uniform(NULL, OAR_F32, OAR_SHAPE(WIDTH, WIDTH),
                                         (uint64_t)i + 3, -0.2, 0.2);

        CHECK(weight != NULL);
        CHECK_OK(make_product(weight, &part[i]));
        if (i == 0)
            CHECK_OK(make_product(weight, &part[2]));
        oar_tensor_release(weight);
    }
    return oar_sequential_create(3, part, row);
}

static oar_tensor *tied_loss(oar_tape *tape, oar_module *net, int rank)
{
    oar_tensor *x = oar_uniform(tape, OAR_F32, OAR_SHAPE(ROWS, WIDTH),
                                (uint64_t)rank + 9, -1, 1);
    oar_tensor *y = oar_forward(tape, net, x);

    return oar_mean(tape, oar_mul(tape, y, y));
}

static oar_status train_tied(oar_module *net, oar_optim *sgd, oar_tape *tape,
                             int rank)
{
    for (int step = 0; step < 3; step++) {
        CHECK_OK(oar_backward(tape, tied_loss(tape, net, rank)));
        oar_tape_reset(tape);
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
    }
    return OAR_OK;
}

static oar_fsdp_opts every_part(oar_hold hold)
{
    static const char *const units[] = { "*", NULL };
    oar_fsdp_opts o = oar_fsdp_opts_init();

    o.hold = hold;
    o.units = units;
    o.least_bytes = 1;
    o.canonical = 1;
    return o;
}

static oar_status tie_units(oar_group *g, void *arg)
{
    oar_fsdp_opts o = every_part(*(const oar_hold *)arg);
    const oar_sgd_opts *rate = OAR_OPTS(oar_sgd_opts, .lr = 0.5);
    int rank = oar_group_rank(g), count;
    float number[WIDTH * WIDTH];
    oar_module *ddp, *net;
    oar_optim *a, *b;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_tied(&ddp));
    CHECK_OK(
        oar_ddp_wrap(ddp, g, OAR_OPTS(oar_ddp_opts, .canonical = 1), &ddp));
    CHECK_OK(oar_sgd_create(ddp, rate, &a));
    CHECK_OK(make_tied(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(oar_fsdp_units(net) == 2); /* the weight is in the one around both */
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param, rate, &b));
    CHECK_OK(train_tied(ddp, a, tape, rank));
    CHECK_OK(train_tied(net, b, tape, rank));
    for (int i = 0; i < 3; i++) {
        static const char *const name[] = { "0.weight", "1.weight",
                                            "2.weight" };

        CHECK_OK(oar_fsdp_read_param(net, name[i], OAR_F32, number));
        CHECK(memcmp(number, oar_tensor_const_data(oar_module_param(ddp, i)),
                     sizeof number) == 0);
    }
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_module_release(ddp);
    return OAR_OK;
}

static void a_parameter_of_two_units_trains_as_ddp_trains_it(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        assert_int_equal(ranks_run("native", 3, NULL, tie_units, &h), OAR_OK);
        assert_int_equal(ranks_run("sim", 2, NULL, tie_units, &h), OAR_OK);
    }
}

/* Its second name is enough. */
static oar_status ignore_tied(oar_group *g, void *arg)
{
    static const char *const last[] = { "2", NULL };
    oar_fsdp_opts o = every_part(OAR_HOLD_OWN);
    oar_module *net;
    oar_tape *tape;

    o.ignored = last;
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_tied(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(oar_fsdp_param_index(net, 0) == 1);
    CHECK(oar_fsdp_param_index(net, 1) == -1);
    CHECK_OK(oar_backward(tape, tied_loss(tape, net, oar_group_rank(g))));
    CHECK(oar_tensor_grad(oar_module_param(net, 0)) != NULL);
    CHECK(oar_tensor_grad(oar_module_param(net, 1)) == NULL);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_tied_parameter_is_ignored_under_each_of_its_names(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, ignore_tied, NULL), OAR_OK);
}

/* ---- several passes ------------------------------------------------------ */

/* Passes without communication reduce nothing; the first with it reduces each
 * unit once. Mapped parameters are not sent in any of them. */
static oar_status accumulate(oar_group *g, void *arg)
{
    oar_shards_stats stats = oar_shards_stats_init();
    spread_gpt c = spread_gpt_usual();
    int rank = oar_group_rank(g);
    oar_shards *s;
    oar_module *net;
    oar_tape *tape;

    c.opts.hold = *(const oar_hold *)arg;
    CHECK_OK(spread_gpt_make(&c, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &c.opts, &net));
    CHECK_OK(oar_tape_create(&tape));
    s = oar_fsdp_shards(net);
    CHECK_OK(oar_fsdp_no_sync_begin(net));
    for (int pass = 0; pass < 3; pass++)
        CHECK_OK(spread_gpt_pass(net, tape, rank, pass));
    CHECK_OK(oar_fsdp_no_sync_end(net));
    CHECK_OK(oar_shards_read_stats(s, &stats));
    CHECK(stats.reductions == 0 && stats.reduced_bytes == 0);
    CHECK(stats.passes == 0);
    CHECK((stats.communication_s > 0) == (stats.gathered_bytes > 0));
    CHECK_OK(spread_gpt_pass(net, tape, rank, 3));
    CHECK_OK(oar_shards_read_stats(s, &stats));
    CHECK(stats.reductions == oar_fsdp_units(net) && stats.passes == 1);
    CHECK(stats.communication_s > 0);
    CHECK((stats.gathered_bytes == 0) == (c.opts.hold == OAR_HOLD_MAPPED));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void passes_that_add_up_send_nothing(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2)
        assert_int_equal(ranks_run("native", 3, NULL, accumulate, &h), OAR_OK);
}

/* ---- large tables -------------------------------------------------------- */

static oar_status most_bytes(oar_group *g, const spread_gpt *c, uint64_t *most)
{
    oar_shards_stats stats = oar_shards_stats_init();
    oar_module *net;
    oar_tape *tape;

    CHECK_OK(spread_gpt_make(c, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &c->opts, &net));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(spread_gpt_pass(net, tape, oar_group_rank(g), 0));
    CHECK_OK(oar_shards_read_stats(oar_fsdp_shards(net), &stats));
    *most = stats.most_bytes;
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

/* Table and head of the outermost unit are whole together, and for the whole
 * backward; as units of their own they are whole one after the other. */
static oar_status cut_tables(oar_group *g, void *arg)
{
    static const char *const apart[] = { "tok", "blocks.*", "head", NULL };
    spread_gpt c = spread_gpt_usual();
    uint64_t together, alone;

    c.opts.hold = *(const oar_hold *)arg;
    c.gpt.vocabulary = 5003;
    CHECK_OK(most_bytes(g, &c, &together));
    c.opts.units = apart;
    CHECK_OK(most_bytes(g, &c, &alone));
    CHECK(alone < together);
    c.gpt.vocabulary = SPREAD_VOCABULARY;
    return spread_gpt_train_both(g, &c);
}

static void large_tables_can_be_units_of_their_own(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 2, NULL, cut_tables, &h), OAR_OK);
}

/* ---- one rank alone ------------------------------------------------------ */

/* After a step, rank 0 evaluates what was stepped, while the others wait for a
 * word from it. */
static oar_status evaluate_on_rank_0(oar_group *g, void *arg)
{
    oar_fsdp_opts o = every_part(OAR_HOLD_MAPPED);
    const oar_sgd_opts *rate = OAR_OPTS(oar_sgd_opts, .lr = 0.5);
    int rank = oar_group_rank(g), count;
    double loss[2] = { 0 };
    int32_t word = 0;
    oar_module *net[2];
    oar_optim *sgd[2];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(make_tied(&net[i]));
        if (i == 0)
            CHECK_OK(oar_ddp_wrap(
                net[i], g, OAR_OPTS(oar_ddp_opts, .canonical = 1), &net[i]));
        else
            CHECK_OK(oar_fsdp_wrap(net[i], g, &o, &net[i]));
    }
    CHECK_OK(oar_sgd_create(net[0], rate, &sgd[0]));
    oar_tensor *const *param = oar_fsdp_params(net[1], &count);
    CHECK_OK(oar_sgd_create_over(count, param, rate, &sgd[1]));
    for (int i = 0; i < 2; i++)
        CHECK_OK(train_tied(net[i], sgd[i], tape, rank));
    /* all begin a forward after the step */
    CHECK(tied_loss(tape, net[1], rank) != NULL);
    oar_tape_reset(tape);
    for (int i = 0; rank == 0 && i < 2; i++) {
        oar_tape_record(tape, 0);
        CHECK_OK(oar_tensor_item(tied_loss(tape, net[i], 5), &loss[i]));
        oar_tape_record(tape, 1);
        oar_tape_reset(tape);
    }
    CHECK(loss[0] == loss[1] && (rank != 0 || loss[0] > 0));
    for (int r = 1; r < oar_group_size(g); r++)
        if (rank == 0)
            CHECK_OK(
                oar_send(g, oar_span_of(&word, 1, OAR_I32), r, 7, NULL, NULL));
        else if (rank == r)
            CHECK_OK(
                oar_recv(g, oar_span_of(&word, 1, OAR_I32), 0, 7, NULL, NULL));
    CHECK_OK(train_tied(net[1], sgd[1], tape, rank));
    for (int i = 0; i < 2; i++) {
        oar_optim_destroy(sgd[i]);
        oar_module_release(net[i]);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void rank_0_evaluates_while_the_others_do_nothing(void **state)
{
    assert_int_equal(ranks_run("native", 3, NULL, evaluate_on_rank_0, NULL),
                     OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, evaluate_on_rank_0, NULL),
                     OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parameter_of_two_units_trains_as_ddp_trains_it),
        cmocka_unit_test(a_tied_parameter_is_ignored_under_each_of_its_names),
        cmocka_unit_test(passes_that_add_up_send_nothing),
        cmocka_unit_test(large_tables_can_be_units_of_their_own),
        cmocka_unit_test(rank_0_evaluates_while_the_others_do_nothing),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
