/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong use of tensor parallel models: rules that cannot be followed, which all
 * ranks hear of before anything is changed, and layers that get what is not
 * theirs. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { IN = 6, HIDDEN = 7, OUT = 5, ROWS = 4 };

static const oar_tp_rule column_row[] = { { "0", OAR_TP_COLUMN, 0 },
                                          { "2", OAR_TP_ROW, 0 } };

static oar_module *new_linear(int64_t in, int64_t out, uint64_t seed,
                              int no_bias)
{
    oar_module *m = NULL;

    return oar_linear_create(
               in, out, seed,
               OAR_OPTS(oar_linear_opts, .dtype = OAR_F64, .no_bias = no_bias),
               &m) == OAR_OK
               ? m
               : NULL;
}

/* A linear, a relu, another linear and a norm: "0" to "3". */
static oar_status make_net(oar_module **net)
{
    oar_module *child[4] = { new_linear(IN, HIDDEN, 3, 0), NULL,
                             new_linear(HIDDEN, OUT, 5, 0) };

    CHECK_OK(oar_relu_create(&child[1]));
    CHECK_OK(oar_rms_norm_create(OUT, 0.1, OAR_F64, &child[3]));
    return oar_sequential_create(4, child, net);
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status refuse(oar_module *net, oar_group *g, oar_tp_rule rule,
                         const oar_tp_opts *opts, oar_status status,
                         const char *text)
{
    oar_tensor *before = oar_module_param(net, 0);

    CHECK(fails_with(oar_tp_parallelize(net, g, 1, &rule, opts), status, text));
    CHECK(oar_module_param(net, 0) == before);
    return OAR_OK;
}

static oar_status wrong_rules(oar_group *g, void *arg)
{
    const oar_tp_rule both[] = { { "0", OAR_TP_COLUMN, 0 },
                                 { "*", OAR_TP_ROW, 0 } };
    oar_module *net, *wrapped, *gpt;

    CHECK_OK(make_net(&net));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "9", OAR_TP_ROW, 0 }, NULL,
                    OAR_E_NOT_FOUND, "fits \"9\"; the nearest: \"0\""));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "1", OAR_TP_ROW, 0 }, NULL,
                    OAR_E_ARG,
                    "OAR_TP_ROW does not suit \"1\", which is a relu"));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "0", OAR_TP_VOCABULARY, 0 }, NULL,
                    OAR_E_ARG, "which is a linear"));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "3", OAR_TP_SEQUENCE, 0 }, NULL,
                    OAR_E_ARG, "without `sequence`"));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "2", OAR_TP_ROW, 1 }, NULL,
                    OAR_E_ARG, "gathers"));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "2", (oar_tp_style)17, 0 }, NULL,
                    OAR_E_ARG, "no such style"));
    CHECK(fails_with(oar_tp_parallelize(net, g, 2, both, NULL), OAR_E_ARG,
                     "both name \"0\""));
    CHECK(fails_with(oar_tp_parallelize(net, NULL, 2, both, NULL), OAR_E_ARG,
                     "group is NULL"));
    CHECK(fails_with(oar_tp_parallelize(NULL, g, 2, both, NULL), OAR_E_ARG,
                     "of NULL"));
    CHECK(fails_with(oar_tp_parallelize_gpt(net, g, NULL), OAR_E_ARG,
                     "it is no gpt"));
    CHECK(fails_with(oar_tp_clip_grad_norm(net, 1, NULL), OAR_E_ARG,
                     "nothing is tensor parallel"));
    CHECK_OK(oar_tp_parallelize(net, g, 2, column_row, NULL));
    CHECK(fails_with(oar_tp_parallelize(net, g, 2, column_row, NULL),
                     OAR_E_STATE, "tensor parallel already"));
    CHECK_OK(oar_gpt_create(NULL, &gpt));
    CHECK_OK(oar_ddp_wrap(gpt, g, NULL, &wrapped));
    CHECK(fails_with(oar_tp_parallelize_gpt(wrapped, g, NULL), OAR_E_STATE,
                     "first parallelize, then wrap"));
    oar_module_release(wrapped);
    oar_module_release(net);
    return OAR_OK;
}

/* A parameter that is used outside the layers that are cut. */
static oar_status shared_param(oar_group *g, void *arg)
{
    oar_module *child[2] = { new_linear(IN, IN, 1, 1),
                             new_linear(IN, IN, 2, 1) };
    const oar_tp_rule ways[] = { { "0", OAR_TP_COLUMN, 0 },
                                 { "1", OAR_TP_ROW, 0 } };
    oar_module *net;

    CHECK_OK(oar_module_replace_param(
        child[1], "weight", oar_tensor_retain(oar_module_param(child[0], 0))));
    CHECK_OK(oar_sequential_create(2, child, &net));
    CHECK_OK(refuse(net, g, (oar_tp_rule){ "0", OAR_TP_COLUMN, 0 }, NULL,
                    OAR_E_UNSUPPORTED, "a layer that no rule names"));
    CHECK(fails_with(oar_tp_parallelize(net, g, 2, ways, NULL),
                     OAR_E_UNSUPPORTED, "in two ways"));
    CHECK_OK(oar_tp_parallelize(net, g, 1,
                                &(oar_tp_rule){ "*", OAR_TP_COLUMN, 1 }, NULL));
    CHECK(oar_module_param(net, 0) == oar_module_param(net, 1));
    oar_module_release(net);
    return OAR_OK;
}

/* Ranks that do not do the same. */
static oar_status ranks_differ(oar_group *g, void *arg)
{
    int other = oar_group_rank(g) == 1;
    oar_tp_rule rule = { "0", other ? OAR_TP_ROW : OAR_TP_COLUMN, 0 };
    oar_module *net;

    CHECK_OK(make_net(&net));
    CHECK(fails_with(oar_tp_parallelize(net, g, 1, &rule, NULL), OAR_E_MISMATCH,
                     "OAR_TP_ROW on rank 1"));
    CHECK(fails_with(oar_tp_parallelize(net, g, other, &rule, NULL),
                     OAR_E_MISMATCH, "1 rules on rank 1"));
    rule.style = OAR_TP_COLUMN;
    if (other)
        CHECK_OK(oar_tensor_fill(oar_module_param(net, 2), 1));
    CHECK(fails_with(oar_tp_parallelize(net, g, 1, &rule, NULL), OAR_E_MISMATCH,
                     "2.weight f64 [5, 7] with numbers"));
    rule.name = other ? "none" : "0";
    CHECK(oar_tp_parallelize(net, g, 1, &rule, NULL) == OAR_E_NOT_FOUND);
    CHECK(last_error_has(other ? "fits \"none\"" : "rank 1"));
    oar_module_release(net);
    return OAR_OK;
}

/* An attention takes one rule; its linear layers have no other of their own. */
static oar_status wrong_heads(oar_group *g, void *arg)
{
    const oar_tp_rule twice[] = { { "blocks.*.attention", OAR_TP_HEADS, 0 },
                                  { "blocks.*.*.qkv", OAR_TP_COLUMN, 0 } };
    oar_module *gpt;

    CHECK_OK(
        oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 7, .context = 3,
                                .width = 6, .heads = 3, .layers = 2),
                       &gpt));
    CHECK_OK(refuse(gpt, g,
                    (oar_tp_rule){ "blocks.*.attention.qkv", OAR_TP_HEADS, 0 },
                    NULL, OAR_E_ARG,
                    "OAR_TP_HEADS does not suit \"blocks.0.attention.qkv\""));
    CHECK_OK(refuse(gpt, g,
                    (oar_tp_rule){ "blocks.*.attention", OAR_TP_COLUMN, 0 },
                    NULL, OAR_E_ARG, "OAR_TP_COLUMN does not suit"));
    CHECK_OK(refuse(gpt, g,
                    (oar_tp_rule){ "blocks.attention", OAR_TP_HEADS, 0 }, NULL,
                    OAR_E_NOT_FOUND, "\"blocks.0.attention\""));
    CHECK(fails_with(oar_tp_parallelize(gpt, g, 2, twice, NULL),
                     OAR_E_UNSUPPORTED, "attention.qkv"));
    oar_module_release(gpt);
    return OAR_OK;
}

static void wrong_use_is_named_on_all_ranks(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, wrong_rules, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, shared_param, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, wrong_heads, NULL), OAR_OK);
    assert_int_equal(ranks_run("sim", 3, NULL, ranks_differ, NULL), OAR_OK);
}

/* ---- layers -------------------------------------------------------------- */

typedef struct order_case {
    oar_tp_rule rule[2];
    int rules;
    const char *text;
} order_case;

/* Layers in an order that cannot be: the pass fails on every rank alike. */
static oar_status wrong_order(oar_group *g, void *arg)
{
    const order_case *c = arg;
    oar_tensor *x = oar_zeros(NULL, OAR_F64, OAR_SHAPE(ROWS, IN));
    oar_module *net;

    CHECK_OK(make_net(&net));
    CHECK_OK(oar_tp_parallelize(net, g, c->rules, c->rule, NULL));
    CHECK(oar_forward(NULL, net, x) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE, c->text));
    CHECK(strstr(oar_last_error_text(), "\"2\" is OAR_TP_") != NULL);
    oar_module_release(net);
    oar_tensor_release(x);
    return oar_barrier(g, NULL, NULL); /* the group is as it was */
}

static void layers_in_a_wrong_order_are_named(void **state)
{
    static const order_case cases[] = {
        { { { "2", OAR_TP_ROW, 0 } }, 1, "of its 7 inputs, and gives it 7" },
        { { { "0", OAR_TP_COLUMN, 1 }, { "2", OAR_TP_ROW, 0 } },
          2,
          "OAR_TP_COLUMN layer of that width that does not gather" },
        { { { "0", OAR_TP_COLUMN, 0 }, { "2", OAR_TP_COLUMN, 0 } },
          2,
          "it takes all 7 inputs" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        order_case c = cases[i];

        assert_int_equal(ranks_run("sim", 3, NULL, wrong_order, &c), OAR_OK);
    }
}

/* An optimizer that was made too early. */
static oar_status early_optimizer(oar_group *g, void *arg)
{
    oar_module *net;
    oar_optim *sgd;

    CHECK_OK(make_net(&net));
    CHECK_OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    CHECK_OK(oar_tp_parallelize(net, g, 2, column_row, NULL));
    CHECK(fails_with(oar_optim_step(sgd), OAR_E_STATE,
                     "parameter 0, a tensor [7, 6]: tp_parallelize has cut"));
    oar_optim_destroy(sgd);
    CHECK_OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    CHECK_OK(oar_optim_step(sgd));
    oar_optim_destroy(sgd);
    oar_module_release(net);
    return OAR_OK;
}

static void an_optimizer_that_was_made_before_is_refused(void **state)
{
    for (int n = 1; n <= 2; n++)
        assert_int_equal(ranks_run("sim", n, NULL, early_optimizer, NULL),
                         OAR_OK);
}

typedef struct samples_case {
    int sequence;
    int other_target; /* or other tokens */
} samples_case;

/* Ranks that share a model and read other samples. */
static oar_status read_other_samples(oar_group *g, void *arg)
{
    const samples_case *c = arg;
    uint64_t other = oar_group_rank(g) == 1;
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(2, 3),
                                c->other_target ? 1 : 1 + other, 0, 7);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(6), 5 + other, 0, 7);
    oar_module *gpt;
    oar_tape *tape;

    CHECK_OK(
        oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 7, .context = 3,
                                .width = 6, .heads = 3, .layers = 1),
                       &gpt));
    CHECK_OK(oar_tp_parallelize_gpt(
        gpt, g, OAR_OPTS(oar_tp_opts, .sequence = c->sequence)));
    CHECK_OK(oar_tape_create(&tape));
    CHECK(oar_tp_cross_entropy(tape, oar_forward(tape, gpt, x), y, g, 7,
                               NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_MISMATCH,
                     c->other_target ? "tensor parallel loss"
                                     : "tensor parallel tokens"));
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    oar_tensor_release(y);
    oar_tensor_release(x);
    return OAR_OK;
}

static void ranks_that_read_other_samples_are_told(void **state)
{
    for (int i = 0; i < 4; i++) {
        samples_case c = { i & 1, i >> 1 };

        assert_int_equal(ranks_run("sim", 2, NULL, read_other_samples, &c),
                         OAR_OK);
        assert_int_equal(ranks_run("native", 3, NULL, read_other_samples, &c),
                         OAR_OK);
    }
}

/* Rows must be spread before a layer can use them. */
static oar_status rows_missing(oar_group *g, void *arg)
{
    oar_tensor *x = oar_zeros(NULL, OAR_F64, OAR_SHAPE(ROWS, IN));
    oar_module *net;

    CHECK_OK(make_net(&net));
    CHECK_OK(oar_tp_parallelize(net, g, 1,
                                &(oar_tp_rule){ "0", OAR_TP_COLUMN, 0 },
                                OAR_OPTS(oar_tp_opts, .sequence = 1)));
    CHECK(oar_forward(NULL, net, x) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_STATE,
                     "nothing was spread by rows before"));
    oar_module_release(net);
    oar_tensor_release(x);
    return OAR_OK;
}

static void a_layer_before_the_first_scatter_is_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, rows_missing, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_use_is_named_on_all_ranks),
        cmocka_unit_test(layers_in_a_wrong_order_are_named),
        cmocka_unit_test(an_optimizer_that_was_made_before_is_refused),
        cmocka_unit_test(ranks_that_read_other_samples_are_told),
        cmocka_unit_test(a_layer_before_the_first_scatter_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
