/* SPDX-License-Identifier: Apache-2.0 */
/* Models made tensor parallel by rules: what is sent, layers of one's own, the
 * loss over parts of the classes. Wrong use is in tp_refusal_test.c. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { IN = 6, HIDDEN = 7, OUT = 5, ROWS = 4 };

/* ---- what is sent -------------------------------------------------------- */

typedef struct traffic {
    int sums, gathers, scatters;
} traffic;

/* Counts the collectives of tensor parallel layers since the last call. */
static traffic read_traffic(oar_group *g, uint64_t *seen)
{
    oar_record r = oar_record_init();
    uint64_t last = *seen;
    traffic t = { 0 };

    for (int i = 0; oar_recorder_read(g, oar_group_rank(g), i, &r) == OAR_OK &&
                    r.sequence > last;
         i++) {
        if (i == 0)
            *seen = r.sequence;
        if (strncmp(r.label, "tensor parallel", 15) != 0 ||
            strncmp(r.label, "tensor parallel loss", 20) == 0)
            continue;
        t.sums += r.kind == OAR_COLL_ALL_REDUCE;
        t.gathers += r.kind == OAR_COLL_ALL_GATHER;
        t.scatters += r.kind == OAR_COLL_REDUCE_SCATTER;
    }
    return t;
}

/* Gives the collectives of a forward and of a backward pass. */
static oar_status traffic_of(oar_group *g, int layers, int sequence, int tied,
                             traffic pass[2])
{
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(2, 3), 1, 0, 11);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(6), 2, 0, 11), *loss;
    uint64_t seen = 0;
    oar_module *gpt;
    oar_tape *tape;

    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 11,
                                     .context = 3, .width = 6, .heads = 3,
                                     .layers = layers, .tied = tied),
                            &gpt));
    CHECK_OK(oar_tp_parallelize_gpt(
        gpt, g, OAR_OPTS(oar_tp_opts, .sequence = sequence)));
    CHECK_OK(oar_tape_create(&tape));
    read_traffic(g, &seen);
    loss =
        oar_tp_cross_entropy(tape, oar_forward(tape, gpt, x), y, g, 11, NULL);
    pass[0] = read_traffic(g, &seen);
    CHECK_OK(oar_backward(tape, loss));
    pass[1] = read_traffic(g, &seen);
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    oar_tensor_release(y);
    oar_tensor_release(x);
    return OAR_OK;
}

/* What a block adds, and what is left: the token table, and what goes into the
 * head. With sequence, the gradients of a block's two norms and two biases are
 * sums, and so are those of the last norm and of the positions. */
static oar_status count_traffic(oar_group *g, void *arg)
{
    for (int tied = 0; tied < 2; tied++) {
        traffic two[2], three[2];

        CHECK_OK(traffic_of(g, 2, 0, tied, two));
        CHECK_OK(traffic_of(g, 3, 0, tied, three));
        for (int way = 0; way < 2; way++) {
            CHECK(three[way].sums - two[way].sums == 2);
            CHECK(two[way].sums == 5);
            CHECK(three[way].gathers == 0 && three[way].scatters == 0);
        }
        CHECK_OK(traffic_of(g, 2, 1, tied, two));
        CHECK_OK(traffic_of(g, 3, 1, tied, three));
        for (int way = 0; way < 2; way++) {
            CHECK(three[way].gathers - two[way].gathers == 2);
            CHECK(three[way].scatters - two[way].scatters == 2);
            CHECK(two[way].gathers == 5 && two[way].scatters == 5);
            CHECK(two[way].sums == (way == 0 ? 0 : 2 * 4 + 2));
        }
    }
    return OAR_OK;
}

static void a_block_sums_twice_each_way(void **state)
{
    for (int n = 2; n <= 3; n++)
        assert_int_equal(ranks_run("sim", n, NULL, count_traffic, NULL),
                         OAR_OK);
}

/* ---- layers of one's own ------------------------------------------------- */

typedef enum net_kind { GATHERED, COLUMN_ROW, TWICE, RMS } net_kind;

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

/* Children "0", "1", ..: a linear, a relu, and another linear; TWICE: the first
 * pair runs twice; RMS: a norm follows. */
static oar_status make_net(net_kind kind, oar_module **net)
{
    oar_module *child[8] = { new_linear(IN, HIDDEN, 3, 0), NULL,
                             new_linear(HIDDEN, kind == TWICE ? IN : OUT, 5,
                                        kind == TWICE) };
    int count = 3;

    CHECK_OK(oar_relu_create(&child[1]));
    if (kind == TWICE)
        for (int i = 0; i < 3; i++)
            child[count++] = oar_module_retain(child[i]);
    if (kind == RMS)
        CHECK_OK(oar_rms_norm_create(OUT, 0.1, OAR_F64, &child[count++]));
    CHECK_OK(oar_sequential_create(count, child, net));
    if (kind == GATHERED)
        CHECK_OK(oar_tensor_require_grad(oar_module_param(*net, 2), 0));
    return OAR_OK;
}

static oar_status parallelize(net_kind kind, oar_module *net, oar_group *g)
{
    static const oar_tp_rule gathered[] = { { "0", OAR_TP_COLUMN, 1 },
                                            { "2", OAR_TP_COLUMN, 1 } };
    static const oar_tp_rule twice[] = { { "0", OAR_TP_COLUMN, 0 },
                                         { "2", OAR_TP_ROW, 0 },
                                         { "3", OAR_TP_COLUMN, 0 },
                                         { "5", OAR_TP_ROW, 0 } };
    static const oar_tp_rule rms[] = { { "0", OAR_TP_COLUMN, 0 },
                                       { "2", OAR_TP_ROW, 0 },
                                       { "3", OAR_TP_LAST_NORM, 0 } };

    if (kind == GATHERED)
        return oar_tp_parallelize(net, g, 2, gathered, NULL);
    if (kind == RMS)
        return oar_tp_parallelize(net, g, 3, rms, NULL);
    return oar_tp_parallelize(net, g, kind == TWICE ? 4 : 2, twice, NULL);
}

/* Compares the gradients of the parameters that are whole, and the sums of
 * squares of all: every element counts once. */
static oar_status compare_grads(oar_module *net, oar_module *whole,
                                oar_group *g)
{
    double norm[2], a[HIDDEN * IN], b[HIDDEN * IN];
    oar_tensor *param[16];

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *p = oar_module_param(net, i);
        oar_tensor *q = oar_module_param(whole, i);

        param[i] = q;
        CHECK(oar_tensor_requires_grad(p) == oar_tensor_requires_grad(q));
        if (!oar_tensor_requires_grad(p) || oar_tp_is_cut(net, p))
            continue;
        CHECK_OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, a));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(q), OAR_F64, b));
        for (int64_t k = 0; k < oar_tensor_count(q); k++)
            CHECK(fabs(a[k] - b[k]) <= 1e-12 * (1 + fabs(b[k])));
    }
    CHECK_OK(oar_tp_clip_grad_norm(net, 0.01, &norm[0]));
    CHECK_OK(
        oar_clip_grad_norm(oar_module_params(whole), param, 0.01, &norm[1]));
    CHECK(fabs(norm[0] - norm[1]) <= 1e-12 * norm[1]);
    CHECK_OK(oar_tp_clip_grad_norm(net, 100, &norm[0]));
    return fabs(norm[0] - 0.01) <= 1e-6 ? OAR_OK : OAR_E_DATA;
}

static oar_status run_net(oar_group *g, void *arg)
{
    net_kind kind = *(const net_kind *)arg;
    oar_tensor *x = oar_normal(NULL, OAR_F64, OAR_SHAPE(ROWS, IN), 1, 0, 1);
    oar_module *net, *whole;
    double a[ROWS * IN], b[ROWS * IN];
    oar_tensor *y[2];
    oar_tape *tape;

    CHECK_OK(make_net(kind, &net));
    CHECK_OK(make_net(kind, &whole));
    CHECK_OK(parallelize(kind, net, g));
    CHECK_OK(oar_tape_create(&tape));
    CHECK(oar_tensor_require_grad(x, 1) == OAR_OK);
    y[0] = oar_forward(tape, net, x);
    CHECK_OK(oar_backward(tape, oar_mean(tape, oar_mul(tape, y[0], y[0]))));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(x), OAR_F64, a));
    oar_tensor_clear_grad(x);
    y[1] = oar_forward(tape, whole, x);
    CHECK_OK(oar_backward(tape, oar_mean(tape, oar_mul(tape, y[1], y[1]))));
    CHECK_OK(oar_tensor_read(oar_tensor_grad(x), OAR_F64, b));
    for (int i = 0; kind != RMS && i < ROWS * IN; i++)
        CHECK(fabs(a[i] - b[i]) <= 1e-12);
    if (kind != RMS)
        CHECK_OK(compare_grads(net, whole, g));
    y[0] = oar_forward(NULL, net, x);
    y[1] = oar_forward(NULL, whole, x);
    CHECK(oar_tensor_count(y[0]) == oar_tensor_count(y[1]));
    CHECK_OK(oar_tensor_read(y[0], OAR_F64, a));
    CHECK_OK(oar_tensor_read(y[1], OAR_F64, b));
    for (int64_t i = 0; i < oar_tensor_count(y[1]); i++)
        CHECK(fabs(a[i] - b[i]) <= 1e-12);
    oar_tensor_release(y[0]);
    oar_tensor_release(y[1]);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_module_release(whole);
    oar_tensor_release(x);
    return OAR_OK;
}

static void rules_make_any_model_parallel(void **state)
{
    for (int n = 1; n <= 4; n++)
        for (net_kind kind = GATHERED; kind <= RMS; kind++)
            assert_int_equal(ranks_run("sim", n, NULL, run_net, &kind), OAR_OK);
}

/* ---- the loss ------------------------------------------------------------ */

static oar_status weighed_loss(oar_group *g, void *arg)
{
    static const int64_t word[] = { 3, 0, 6, 3, 1 };
    oar_tensor *x = oar_normal(NULL, OAR_F64, OAR_SHAPE(5, 7), 1, 0, 2);
    oar_tensor *weight = oar_uniform(NULL, OAR_F64, OAR_SHAPE(7), 2, 0.5, 2);
    oar_tensor *y = oar_from_data(NULL, OAR_I64, OAR_SHAPE(5), word);
    oar_cross_entropy_opts o = { .size = sizeof o,
                                 .has_ignore = 1,
                                 .ignore = 6,
                                 .label_smoothing = 0.2,
                                 .weight = weight };
    oar_tensor *part = oar_tp_scatter(NULL, x, g, 1);
    oar_tensor *loss[2] = { oar_tp_cross_entropy(NULL, part, y, g, 7, &o),
                            oar_cross_entropy_with(NULL, x, y, &o) };
    double a, b;

    CHECK_OK(oar_tensor_item(loss[0], &a));
    CHECK_OK(oar_tensor_item(loss[1], &b));
    CHECK(fabs(a - b) <= 1e-13 * b);
    CHECK(oar_tp_cross_entropy(NULL, part, y, g, 9, NULL) == NULL);
    CHECK(fails_with(oar_last_error()->status, OAR_E_SHAPE, "9 classes"));
    CHECK(oar_tp_cross_entropy(NULL, part, y, NULL, 7, NULL) == NULL);
    for (int i = 0; i < 2; i++)
        oar_tensor_release(loss[i]);
    oar_tensor_release(part);
    oar_tensor_release(y);
    oar_tensor_release(weight);
    oar_tensor_release(x);
    return OAR_OK;
}

static void the_loss_weighs_smooths_and_ignores_over_all_classes(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, weighed_loss, NULL), OAR_OK);
}

/* ---- no memory ----------------------------------------------------------- */

typedef struct short_case {
    uint64_t allocation; /* the one that fails */
    int ended;           /* none did */
} short_case;

/* Parallelizes a GPT and runs a pass. */
static oar_status pass_short_of_memory(oar_group *g, void *arg)
{
    short_case *c = arg;
    oar_tensor *x = oar_zeros(NULL, OAR_I64, OAR_SHAPE(2, 3));
    oar_tensor *y = oar_zeros(NULL, OAR_I64, OAR_SHAPE(6)), *before, *loss;
    oar_module *gpt;
    oar_tape *tape;
    oar_status status;

    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 7,
                                     .context = 3, .width = 4, .heads = 2,
                                     .layers = 1, .dropout = 0.5),
                            &gpt));
    CHECK_OK(oar_tape_create(&tape));
    before = oar_module_param(gpt, 0);
    oar_memory_fail_after(c->allocation);
    status =
        oar_tp_parallelize_gpt(gpt, g, OAR_OPTS(oar_tp_opts, .sequence = 1));
    CHECK((status == OAR_OK) != (oar_module_param(gpt, 0) == before));
    if (status == OAR_OK) {
        loss = oar_tp_cross_entropy(tape, oar_forward(tape, gpt, x), y, g, 7,
                                    NULL);
        status =
            loss != NULL ? oar_backward(tape, loss) : oar_last_error()->status;
    }
    oar_memory_fail_after(0);
    CHECK(status == OAR_OK || status == OAR_E_NOMEM);
    c->ended = status == OAR_OK;
    oar_tape_destroy(tape);
    oar_module_release(gpt);
    oar_tensor_release(y);
    oar_tensor_release(x);
    return OAR_OK;
}

/* A collective that fails ends its group, so each pass has one of its own. What
 * a failure leaves, the address sanitizer finds. */
static void without_memory_a_call_fails_and_leaves_nothing(void **state)
{
    short_case c = { 0 };

    while (!c.ended) {
        c.allocation++;
        assert_true(c.allocation < 5000);
        assert_int_equal(ranks_run("sim", 1, NULL, pass_short_of_memory, &c),
                         OAR_OK);
    }
    assert_true(c.allocation > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_sums_twice_each_way),
        cmocka_unit_test(rules_make_any_model_parallel),
        cmocka_unit_test(the_loss_weighs_smooths_and_ignores_over_all_classes),
        cmocka_unit_test(without_memory_a_call_fails_and_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
