/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of modules: listed by dotted name, and what a model with dropout
 * needs to go on bitwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/last_error.h"

/* ---- a module of our own ------------------------------------------------- */

typedef struct tally {
    double weight;
    uint64_t runs, rows;
} tally;

static oar_tensor *tally_forward(oar_tape *tape, oar_module *module,
                                 oar_tensor *x)
{
    tally *t = oar_module_self(module);

    t->runs++;
    t->rows += (uint64_t)oar_tensor_shape(x).dim[0];
    return oar_scale(tape, x, 1);
}

static const oar_counter_entry tally_counters[] = {
    { "runs", offsetof(tally, runs) },
    { "rows", offsetof(tally, rows) },
    { NULL, 0 }
};

static const oar_module_class tally_class = { .size = sizeof tally_class,
                                              .name = "tally",
                                              .self_size = sizeof(tally),
                                              .forward = tally_forward,
                                              .counters = tally_counters };

static oar_module *make_tally(void)
{
    oar_module *made;

    OK(oar_module_create(&tally_class, &made));
    return made;
}

static oar_module *make_dropout(uint64_t seed)
{
    oar_module *made;

    OK(oar_dropout_create(0.5, seed, &made));
    return made;
}

/* A tally with children: a dropout, a linear layer without counters, and a row
 * of a dropout and a tally. */
static oar_module *make_nest(void)
{
    oar_module *outer = make_tally(), *row, *linear;

    OK(oar_linear_create(3, 3, 1, NULL, &linear));
    OK(oar_sequential_create(
        2, (oar_module *[]){ make_dropout(7), make_tally() }, &row));
    OK(oar_module_add_child(outer, "drop", make_dropout(5)));
    OK(oar_module_add_child(outer, "linear", linear));
    OK(oar_module_add_child(outer, "row", row));
    return outer;
}

/* ---- names --------------------------------------------------------------- */

static void counters_have_dotted_names_in_order(void **state)
{
    static const char *const want[] = { "runs",           "rows",
                                        "drop.next_seed", "row.0.next_seed",
                                        "row.1.runs",     "row.1.rows" };
    oar_module *nest = make_nest();
    char name[64];

    assert_int_equal(oar_module_counters(nest), 6);
    for (int i = 0; i < 6; i++) {
        uint64_t *counter = oar_module_counter(nest, i);

        OK(oar_module_counter_name(nest, i, name, sizeof name));
        assert_string_equal(name, want[i]);
        assert_non_null(counter);
        assert_ptr_equal(counter, oar_module_find_counter(nest, name));
        *counter = 100 + (uint64_t)i;
    }
    for (int i = 0; i < 6; i++)
        assert_int_equal(*oar_module_counter(nest, i), 100 + i);
    OK(oar_module_counter_name(nest, 3, name, 8));
    assert_string_equal(name, "row.0.n");
    oar_module_release(nest);
}

static void what_is_no_counter_is_not_found(void **state)
{
    oar_module *nest = make_nest();
    const char *const none[] = { "",           "run",         "drop",
                                 "drop.",      "drop.runs",   "row.1",
                                 "row.2.runs", "linear.bias", "runs.runs",
                                 ".runs" };
    char name[16];

    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(oar_module_find_counter(nest, none[i]));
    assert_null(oar_module_find_counter(nest, NULL));
    assert_null(oar_module_find_counter(NULL, "runs"));
    assert_null(oar_module_find(nest, NULL));
    assert_null(oar_module_counter(nest, 6));
    assert_null(oar_module_counter(nest, -1));
    assert_null(oar_module_counter(NULL, 0));
    assert_int_equal(oar_module_counters(NULL), 0);
    assert_fails_with(oar_module_counter_name(nest, 6, name, sizeof name),
                      OAR_E_ARG, "6 counters, not number 6");
    oar_clear_error();
    assert_fails_with(oar_module_counter_name(NULL, 0, name, sizeof name),
                      OAR_E_ARG, "NULL");
    oar_module_release(nest);
}

static void a_class_with_bad_counters_is_refused(void **state)
{
    static const oar_counter_entry bad[][3] = {
        { { "a.b", 0 } },
        { { "", 0 } },
        { { "odd", 4 } },
        { { "outside", sizeof(tally) } },
        { { "far", SIZE_MAX - 7 } },
        { { "same", 0 }, { "same", 8 } },
    };
    oar_module_class kind = tally_class;
    oar_module *made = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kind.counters = bad[i];
        assert_fails_with(oar_module_create(&kind, &made), OAR_E_ARG,
                          "counter");
    }
    kind.counters = tally_counters;
    kind.self_size = 0;
    assert_fails_with(oar_module_create(&kind, &made), OAR_E_ARG, "counter");
    assert_null(made);
}

/* As a program compiled before there were counters has it. */
static void a_class_without_the_member_has_no_counters(void **state)
{
    oar_module_class kind = tally_class;
    oar_module *made;

    kind.size = offsetof(oar_module_class, counters);
    OK(oar_module_create(&kind, &made));
    assert_int_equal(oar_module_counters(made), 0);
    oar_module_release(made);
}

/* ---- going on ------------------------------------------------------------ */

enum { BATCH = 3, TIME = 5, VOCABULARY = 11 };

static oar_module *make_gpt(int recompute)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *net;

    o.vocabulary = VOCABULARY;
    o.context = 8;
    o.width = 12;
    o.heads = 3;
    o.layers = 2;
    o.dropout = 0.2;
    o.attention_dropout = 0.3;
    o.recompute = recompute;
    OK(oar_gpt_create(&o, &net));
    return net;
}

static void train(oar_module *net, int first, int end)
{
    oar_optim *sgd;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_sgd_create(net, NULL, &sgd));
    for (int i = first; i < end; i++) {
        oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(BATCH, TIME),
                                    (uint64_t)i, 0, VOCABULARY);
        oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(BATCH * TIME),
                                    (uint64_t)i + 50, 0, VOCABULARY);

        OK(oar_backward(tape,
                        oar_cross_entropy(tape, oar_forward(tape, net, x), y)));
        OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
}

static int same_params(const oar_module *a, const oar_module *b)
{
    for (int i = 0; i < oar_module_params(a); i++) {
        const oar_tensor *p = oar_module_param(a, i);

        if (memcmp(oar_tensor_const_data(p),
                   oar_tensor_const_data(oar_module_param(b, i)),
                   (size_t)oar_tensor_count(p) * sizeof(float)) != 0)
            return 0;
    }
    return 1;
}

static void a_model_with_dropout_goes_on_bitwise(void **state)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        oar_module *whole = make_gpt(recompute);
        oar_module *resumed = make_gpt(recompute), *forgot = make_gpt(0);

        train(whole, 0, 4);
        OK(oar_module_load(resumed, whole, 1));
        OK(oar_module_load(forgot, whole, 1));
        assert_int_equal(oar_module_counters(whole), 1 + 2 * 3);
        for (int i = 0; i < oar_module_counters(whole); i++) {
            char name[64];

            OK(oar_module_counter_name(whole, i, name, sizeof name));
            *oar_module_find_counter(resumed, name) =
                *oar_module_counter(whole, i);
        }
        train(whole, 4, 7);
        train(resumed, 4, 7);
        train(forgot, 4, 7);
        assert_true(same_params(whole, resumed));
        assert_false(same_params(whole, forgot));
        oar_module_release(whole);
        oar_module_release(resumed);
        oar_module_release(forgot);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_have_dotted_names_in_order),
        cmocka_unit_test(what_is_no_counter_is_not_found),
        cmocka_unit_test(a_class_with_bad_counters_is_refused),
        cmocka_unit_test(a_class_without_the_member_has_no_counters),
        cmocka_unit_test(a_model_with_dropout_goes_on_bitwise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
