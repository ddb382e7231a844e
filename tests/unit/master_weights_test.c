/* SPDX-License-Identifier: Apache-2.0 */
/* Half parameters with f32 master weights and f32 gradients: what they save
 * that a half type alone loses. */
#include <math.h>
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

#include "support/leak_check.h"
#include "support/last_error.h"

static double first_of(const oar_tensor *t)
{
    double number[64];

    assert_true(oar_tensor_count(t) <= 64);
    OK(oar_tensor_read(t, OAR_F64, number));
    return number[0];
}

static oar_tensor *weight_of(oar_dtype dtype, double value)
{
    oar_tensor *w = oar_full(NULL, dtype, OAR_SHAPE(3), value);

    OK(oar_tensor_require_grad(w, 1));
    return w;
}

/* ---- steps that are small against the number ----------------------------- */

enum rule { SGD, SGD_MOMENTUM, ADAM, ADAMW, AMSGRAD, RULES };

static oar_optim *optim_of(enum rule rule, int count, oar_tensor *const *param,
                           double lr, int master)
{
    oar_optim *made = NULL;

    switch (rule) {
    case SGD:
    case SGD_MOMENTUM:
        OK(oar_sgd_create_over(count, param,
                               OAR_OPTS(oar_sgd_opts, .lr = lr,
                                        .master_weights = master,
                                        .momentum = rule == SGD ? 0 : 0.5),
                               &made));
        break;
    case ADAMW:
        OK(oar_adamw_create_over(
            count, param,
            OAR_OPTS(oar_adam_opts, .lr = lr, .master_weights = master),
            &made));
        break;
    default:
        OK(oar_adam_create_over(count, param,
                                OAR_OPTS(oar_adam_opts, .lr = lr,
                                         .amsgrad = rule == AMSGRAD,
                                         .master_weights = master),
                                &made));
    }
    return made;
}

/* Takes steps with a gradient of 1; returns where that leads from 1.5. */
static double walk(enum rule rule, oar_dtype dtype, int master, int steps)
{
    oar_tensor *w = weight_of(dtype, 1.5);
    oar_optim *optim = optim_of(rule, 1, &w, 1e-3, master);
    oar_tape *tape;
    double end;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < steps; i++) {
        OK(oar_backward(tape, oar_sum(tape, w)));
        OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    end = first_of(w);
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_tensor_release(w);
    return end;
}

static void a_thousand_small_steps_move_a_half_only_with_a_master(void **state)
{
    static const oar_dtype half[] = { OAR_BF16, OAR_F16 };

    assert_true(walk(SGD, OAR_BF16, 0, 1000) == 1.5);
    assert_true(walk(SGD, OAR_BF16, 1, 1000) == 0.5);
    assert_true(walk(ADAM, OAR_BF16, 0, 1000) == 1.5);
    for (int rule = 0; rule < RULES; rule++)
        for (int i = 0; i < 2; i++) {
            double want = walk((enum rule)rule, OAR_F32, 0, 701);
            double got = walk((enum rule)rule, half[i], 1, 701);

            assert_true(fabs(got - want) <= 0.004 * fabs(want));
            assert_true(fabs(want - 1.5) > 0.5);
        }
}

static void a_master_is_a_state_of_half_parameters_alone(void **state)
{
    for (int rule = 0; rule < RULES; rule++) {
        oar_tensor *w[3] = { weight_of(OAR_BF16, 1.5), weight_of(OAR_F32, 1.5),
                             weight_of(OAR_F16, 0.25) };
        oar_optim *optim = optim_of((enum rule)rule, 3, w, 1e-3, 1);
        oar_optim_description d = { .size = sizeof d };
        int slot = 0;

        while (strcmp(oar_optim_state_name(optim, slot), "master") != 0)
            slot++;
        assert_null(oar_optim_state_name(optim, slot + 1));
        assert_int_equal(oar_tensor_dtype(oar_optim_state(optim, 0, slot)),
                         OAR_F32);
        assert_true(first_of(oar_optim_state(optim, 0, slot)) == 1.5);
        assert_null(oar_optim_state(optim, 1, slot));
        assert_true(first_of(oar_optim_state(optim, 2, slot)) == 0.25);
        OK(oar_optim_describe(optim, &d));
        assert_int_equal(d.master_weights, 1);
        oar_optim_destroy(optim);
        optim = optim_of((enum rule)rule, 3, w, 1e-3, 0);
        assert_null(oar_optim_state(optim, 0, slot));
        assert_null(oar_optim_state_name(optim, slot));
        OK(oar_optim_describe(optim, &d));
        assert_int_equal(d.master_weights, 0);
        oar_optim_destroy(optim);
        for (int i = 0; i < 3; i++)
            oar_tensor_release(w[i]);
    }
}

/* Loading a model after the optimizer was made must not be undone. */
static void a_number_that_was_written_since_is_taken_over(void **state)
{
    oar_tensor *w = weight_of(OAR_BF16, 1.5), *home;
    oar_optim *optim = optim_of(SGD, 1, &w, 1e-3, 1);
    const float fresh[3] = { 1.5f, 4, 1.5f };
    double got[3];

    home = oar_full(NULL, OAR_F32, OAR_SHAPE(3), 1);
    OK(oar_tensor_bind_grad(w, home));
    OK(oar_tensor_mark_grad(w));
    OK(oar_optim_step(optim));
    OK(oar_tensor_write(w, OAR_F32, fresh));
    OK(oar_optim_step(optim));
    OK(oar_tensor_read(oar_optim_state(optim, 0, 0), OAR_F64, got));
    assert_true(fabs(got[0] - 1.498) < 1e-6);
    assert_true(fabs(got[1] - 3.999) < 1e-6);
    assert_true(fabs(got[2] - 1.498) < 1e-6);
    oar_optim_destroy(optim);
    oar_tensor_release(home);
    oar_tensor_release(w);
}

/* ---- gradients in f32 ---------------------------------------------------- */

static void the_dtype_of_a_gradient_can_be_f32_for_a_half(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_tensor *w = weight_of(OAR_BF16, 1), *single = weight_of(OAR_F32, 1);
    oar_tensor *plain = oar_full(NULL, OAR_BF16, OAR_SHAPE(3), 1), *wide, *half;
    oar_tape *tape;

    wide = oar_full(NULL, OAR_F32, OAR_SHAPE(3), 0);
    half = oar_full(NULL, OAR_F16, OAR_SHAPE(3), 0);
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_int_equal(oar_tensor_dtype(oar_tensor_grad(w)), OAR_BF16);
    OK(oar_tensor_set_grad_dtype(w, OAR_F32)); /* converts what is there */
    assert_int_equal(oar_tensor_dtype(oar_tensor_grad(w)), OAR_F32);
    assert_true(first_of(oar_tensor_grad(w)) == 1);
    /* 1 + 256 needs nine bits, a bf16 has eight */
    OK(oar_backward(tape, oar_sum(tape, oar_scale(tape, w, 256))));
    assert_true(first_of(oar_tensor_grad(w)) == 257);
    OK(oar_tensor_bind_grad(w, wide));
    assert_true(first_of(wide) == 257);
    OK(oar_tensor_set_grad_dtype(w, OAR_BF16)); /* for its own memory */
    assert_true(first_of(oar_tensor_grad(w)) == 257);
    OK(oar_tensor_bind_grad(w, NULL));
    assert_int_equal(oar_tensor_dtype(oar_tensor_grad(w)), OAR_BF16);
    assert_true(first_of(oar_tensor_grad(w)) == 256);
    assert_int_equal(oar_tensor_bind_grad(w, half), OAR_E_DTYPE);
    assert_int_equal(oar_tensor_set_grad_dtype(w, OAR_F64), OAR_E_DTYPE);
    assert_int_equal(oar_tensor_set_grad_dtype(single, OAR_BF16), OAR_E_DTYPE);
    assert_int_equal(oar_tensor_set_grad_dtype(plain, OAR_F32), OAR_E_STATE);
    assert_int_equal(oar_tensor_set_grad_dtype(NULL, OAR_F32), OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(single);
    oar_tensor_release(plain);
    oar_tensor_release(wide);
    oar_tensor_release(half);
    assert_int_equal(leak_check_begin().live, before);
}

typedef oar_tensor *(*made_of_fn)(oar_tape *tape, oar_tensor *w, oar_tensor *x);

static oar_tensor *by_linear(oar_tape *tape, oar_tensor *w, oar_tensor *x)
{
    return oar_linear(tape, x, w, NULL);
}

static oar_tensor *by_bias(oar_tape *tape, oar_tensor *w, oar_tensor *x)
{
    oar_tensor *none = oar_zeros(tape, oar_tensor_dtype(w), OAR_SHAPE(15, 5));

    return oar_linear(tape, x, none, w);
}

static oar_tensor *by_embedding(oar_tape *tape, oar_tensor *w, oar_tensor *x)
{
    static const int64_t at[] = { 2, 0, 2, 2, 1, 0, 2 };

    return oar_embedding(tape, w,
                         oar_from_data(tape, OAR_I64, OAR_SHAPE(7), at));
}

static oar_tensor *by_conv(oar_tape *tape, oar_tensor *w, oar_tensor *x)
{
    return oar_conv1d(tape, oar_reshape(tape, x, OAR_SHAPE(7, 1, 5)), w, NULL,
                      NULL);
}

static oar_tensor *twice(oar_tape *tape, oar_tensor *w, oar_tensor *x)
{
    return oar_add(tape, oar_linear(tape, x, w, NULL),
                   oar_linear(tape, oar_scale(tape, x, 0.5), w, NULL));
}

/* The gradient of w, 15 numbers, after two passes. */
static void gradient_of(made_of_fn fn, oar_shape shape, oar_dtype dtype,
                        double grad[15])
{
    oar_tensor *w = oar_normal(NULL, OAR_BF16, shape, 1, 0, 1);
    oar_tensor *x = oar_normal(NULL, OAR_BF16, OAR_SHAPE(7, 5), 2, 0, 1);
    oar_tensor *leaf = oar_cast(NULL, w, dtype), *in = oar_cast(NULL, x, dtype);
    oar_tape *tape;

    OK(oar_tensor_require_grad(leaf, 1));
    OK(oar_tensor_set_grad_dtype(leaf, OAR_F32));
    OK(oar_tape_create(&tape));
    for (int pass = 0; pass < 2; pass++) {
        oar_tensor *y = fn(tape, leaf, in), *seed, *cast;

        seed = oar_normal(NULL, OAR_BF16, oar_tensor_shape(y), 3, 0, 1);
        cast = oar_cast(NULL, seed, dtype);
        OK(oar_backward_from(tape, 1, &y, &cast));
        oar_tape_reset(tape);
        oar_tensor_release(seed);
        oar_tensor_release(cast);
    }
    OK(oar_tensor_read(oar_tensor_grad(leaf), OAR_F64, grad));
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(x);
    oar_tensor_release(leaf);
    oar_tensor_release(in);
}

/* The same numbers in f32 throughout have the same gradient. */
static void products_and_embeddings_round_nothing_on_the_way(void **state)
{
    const struct {
        made_of_fn fn;
        oar_shape shape;
    } c[] = { { by_linear, OAR_SHAPE(3, 5) },
              { by_bias, OAR_SHAPE(15) },
              { by_embedding, OAR_SHAPE(3, 5) },
              { by_conv, OAR_SHAPE(3, 1, 5) },
              { twice, OAR_SHAPE(3, 5) } };
    double half[15], single[15];

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        gradient_of(c[i].fn, c[i].shape, OAR_BF16, half);
        gradient_of(c[i].fn, c[i].shape, OAR_F32, single);
        assert_memory_equal(half, single, sizeof half);
    }
}

static void norms_give_their_parameters_gradients_in_f32(void **state)
{
    oar_module *net[2];
    double grad[2][5];

    for (int i = 0; i < 2; i++) {
        oar_dtype dtype = i ? OAR_F32 : OAR_BF16;
        oar_tensor *x = oar_normal(NULL, OAR_BF16, OAR_SHAPE(7, 5), 2, 0, 1);
        oar_tensor *in = oar_cast(NULL, x, dtype), *w, *y;
        oar_tape *tape;

        OK(oar_layer_norm_create(5, 0, dtype, &net[i]));
        w = oar_module_param(net[i], 0);
        OK(oar_tensor_set_grad_dtype(w, OAR_F32));
        OK(oar_tape_create(&tape));
        y = oar_forward(tape, net[i], in);
        OK(oar_backward_from(tape, 1, &y, &in));
        OK(oar_tensor_read(oar_tensor_grad(w), OAR_F64, grad[i]));
        oar_tape_destroy(tape);
        oar_tensor_release(x);
        oar_tensor_release(in);
        oar_module_release(net[i]);
    }
    for (int k = 0; k < 5; k++)
        assert_true(fabs(grad[0][k] - grad[1][k]) < 1e-5 * fabs(grad[1][k]));
}

/* ---- training ------------------------------------------------------------ */

enum { STEPS = 300, ROWS = 6, CONTEXT = 9, VOCABULARY = 13 };

static oar_module *small_gpt(oar_dtype dtype)
{
    oar_module *net;

    OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = VOCABULARY,
                               .context = CONTEXT, .width = 24, .layers = 2,
                               .heads = 3, .seed = 7, .dtype = dtype),
                      &net));
    return net;
}

/* Rows of a text in which each letter follows from the one before it and the
 * row; input and target. */
static void fill_rows(int step, int64_t *x, int64_t *y)
{
    for (int r = 0; r < ROWS; r++) {
        int64_t at = (step * 5 + r * 3) % VOCABULARY;

        for (int i = 0; i < CONTEXT; i++) {
            x[r * CONTEXT + i] = at;
            at = (at * 5 + 3 + i % 2) % VOCABULARY;
            y[r * CONTEXT + i] = at;
        }
    }
}

/* Returns the mean loss of the last twenty steps. */
static double train_gpt(oar_dtype dtype, int master)
{
    oar_module *net = small_gpt(dtype);
    int64_t x[ROWS * CONTEXT], y[ROWS * CONTEXT];
    oar_optim *optim;
    oar_tape *tape;
    double sum = 0, item;

    OK(oar_sgd_create(net,
                      OAR_OPTS(oar_sgd_opts, .lr = 4e-3, .momentum = 0.9,
                               .master_weights = master),
                      &optim));
    OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++) {
        oar_tensor *loss;

        fill_rows(step, x, y);
        loss = oar_cross_entropy(
            tape,
            oar_cast(tape,
                     oar_forward(tape, net,
                                 oar_from_data(tape, OAR_I64,
                                               OAR_SHAPE(ROWS, CONTEXT), x)),
                     OAR_F32),
            oar_from_data(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT), y));
        OK(oar_backward(tape, loss));
        OK(oar_optim_step(optim));
        OK(oar_tensor_item(loss, &item));
        sum += step >= STEPS - 20 ? item : 0;
        oar_optim_zero_grad(optim);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return sum / 20;
}

static void bf16_with_a_master_trains_as_f32_does_and_alone_stalls(void **state)
{
    double single = train_gpt(OAR_F32, 0), master = train_gpt(OAR_BF16, 1);
    double alone = train_gpt(OAR_BF16, 0);

    print_message("loss: f32 %.4f, bf16 with master %.4f, bf16 %.4f\n", single,
                  master, alone);
    assert_true(fabs(master - single) < 0.01 * single);
    assert_true(alone > 1.05 * single);
}

/* ---- casts --------------------------------------------------------------- */

/* A linear layer and a norm, trained by a step in f32. */
typedef struct layers {
    oar_module *net;
    oar_optim *optim;
} layers;

static oar_module *make_net(void)
{
    oar_module *linear, *norm, *net;

    OK(oar_linear_create(4, 4, 3, NULL, &linear));
    OK(oar_layer_norm_create(4, 0, OAR_F32, &norm));
    OK(oar_sequential_create(2, (oar_module *[]){ linear, norm }, &net));
    return net;
}

static void step_once(const layers *l)
{
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < oar_module_params(l->net); i++)
        OK(oar_backward(tape, oar_sum(tape, oar_module_param(l->net, i))));
    OK(oar_optim_step(l->optim));
    oar_optim_zero_grad(l->optim);
    oar_tape_destroy(tape);
}

static layers make_layers(int master)
{
    layers l = { .net = make_net() };

    OK(oar_adamw_create(
        l.net, OAR_OPTS(oar_adam_opts, .lr = 1e-3, .master_weights = master),
        &l.optim));
    step_once(&l);
    return l;
}

static void free_layers(layers *l)
{
    oar_optim_destroy(l->optim);
    oar_module_release(l->net);
}

static int is_same(const oar_tensor *a, const oar_tensor *b)
{
    double x[64], y[64];

    assert_int_equal(oar_tensor_count(a), oar_tensor_count(b));
    assert_true(oar_tensor_count(a) <= 64);
    OK(oar_tensor_read(a, OAR_F64, x));
    OK(oar_tensor_read(b, OAR_F64, y));
    return memcmp(x, y, (size_t)oar_tensor_count(a) * sizeof *x) == 0;
}

enum { MASTER_SLOT = 2 }; /* behind the two states of AdamW */

static void a_cast_with_the_optimizer_loses_no_digits(void **state)
{
    layers whole = make_layers(1), half = make_layers(1);
    oar_tensor *rounded;

    OK(oar_optim_cast(half.optim, half.net, OAR_BF16, 0));
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 2; i++) { /* weight and bias */
            oar_tensor *want = oar_module_param(whole.net, i);
            oar_tensor *param = oar_module_param(half.net, i);

            assert_int_equal(oar_tensor_dtype(param), OAR_BF16);
            assert_true(
                is_same(want, oar_optim_state(half.optim, i, MASTER_SLOT)));
            rounded = oar_cast(NULL, want, OAR_BF16);
            assert_true(is_same(rounded, param));
            assert_false(is_same(rounded, want));
            oar_tensor_release(rounded);
            for (int k = 0; k < MASTER_SLOT; k++)
                assert_true(is_same(oar_optim_state(whole.optim, i, k),
                                    oar_optim_state(half.optim, i, k)));
        }
        step_once(&whole);
        step_once(&half);
    }
    assert_int_equal(oar_tensor_dtype(oar_module_param(half.net, 2)), OAR_F32);
    assert_null(oar_optim_state(half.optim, 2, MASTER_SLOT));
    assert_int_equal(oar_optim_steps(half.optim), 4);
    free_layers(&whole);
    free_layers(&half);
}

/* A layer that is there twice has its parameters in the list twice. */
static void a_shared_parameter_gets_one_master(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *linear, *net;
    oar_optim *optim;

    OK(oar_linear_create(4, 4, 3, NULL, &linear));
    oar_module_retain(linear);
    OK(oar_sequential_create(2, (oar_module *[]){ linear, linear }, &net));
    OK(oar_adamw_create(net, OAR_OPTS(oar_adam_opts, .master_weights = 1),
                        &optim));
    OK(oar_optim_cast(optim, net, OAR_BF16, 0));
    assert_int_equal(oar_optim_params(optim), 2);
    assert_non_null(oar_optim_state(optim, 0, MASTER_SLOT));
    oar_optim_destroy(optim);
    oar_module_release(net);
    assert_int_equal(leak_check_begin().live, before);
}

static void a_cast_without_masters_is_that_of_the_module(void **state)
{
    layers l = make_layers(0);

    OK(oar_optim_cast(l.optim, l.net, OAR_F16, 1));
    for (int i = 0; i < oar_module_params(l.net); i++) {
        assert_int_equal(oar_tensor_dtype(oar_module_param(l.net, i)), OAR_F16);
        assert_null(oar_optim_state(l.optim, i, MASTER_SLOT));
    }
    step_once(&l);
    OK(oar_optim_cast(l.optim, l.net, OAR_F32, 1));
    step_once(&l);
    assert_int_equal(oar_tensor_dtype(oar_module_param(l.net, 0)), OAR_F32);
    free_layers(&l);
}

static void a_cast_that_loses_a_master_or_a_state_is_refused(void **state)
{
    layers l = make_layers(1);
    oar_module *other = make_net();

    assert_int_equal(oar_optim_cast(NULL, l.net, OAR_BF16, 0), OAR_E_ARG);
    assert_int_equal(oar_optim_cast(l.optim, NULL, OAR_BF16, 0), OAR_E_ARG);
    assert_fails_with(oar_optim_cast(l.optim, l.net, OAR_I32, 0), OAR_E_DTYPE,
                      "module_cast to i32: floats only");
    assert_fails_with(oar_optim_cast(l.optim, l.net, OAR_F64, 0), OAR_E_DTYPE,
                      "parameter 0 from f32 to f64");
    assert_int_equal(oar_tensor_dtype(oar_module_param(l.net, 0)), OAR_F32);
    OK(oar_optim_cast(l.optim, other, OAR_BF16, 0)); /* none of its own */
    assert_null(oar_optim_state(l.optim, 0, MASTER_SLOT));
    OK(oar_optim_cast(l.optim, l.net, OAR_BF16, 0));
    OK(oar_optim_cast(l.optim, l.net, OAR_BF16, 0)); /* as it is */
    assert_fails_with(oar_optim_cast(l.optim, l.net, OAR_F32, 0), OAR_E_STATE,
                      "parameter 0 of adamw is bf16 and has a master");
    step_once(&l);
    oar_module_release(other);
    free_layers(&l);
}

/* ---- failures ------------------------------------------------------------ */

static oar_status cast_layers(void *arg)
{
    layers *l = arg;

    return oar_optim_cast(l->optim, l->net, OAR_BF16, 0);
}

static void a_cast_that_fails_changes_nothing(void **state)
{
    layers l = make_layers(1);

    fail_each_allocation(cast_layers, &l);
    step_once(&l);
    free_layers(&l);
}

static oar_status make_optim(void *arg)
{
    oar_tensor *w = arg;
    oar_optim *made;
    oar_status status;

    status = oar_adamw_create_over(
        1, &w, OAR_OPTS(oar_adam_opts, .master_weights = 1), &made);
    if (status == OAR_OK)
        oar_optim_destroy(made);
    return status;
}

static oar_status widen(void *arg)
{
    oar_status status = oar_tensor_set_grad_dtype(arg, OAR_F32);

    if (status == OAR_OK)
        status = oar_tensor_set_grad_dtype(arg, OAR_BF16);
    return status;
}

static void failed_allocations_leave_nothing_behind(void **state)
{
    oar_tensor *w = weight_of(OAR_BF16, 1);
    oar_tape *tape;

    fail_each_allocation(make_optim, w);
    OK(oar_tensor_set_grad_dtype(w, OAR_BF16));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, w)));
    oar_tape_destroy(tape);
    fail_each_allocation(widen, w);
    assert_int_equal(oar_tensor_dtype(oar_tensor_grad(w)), OAR_BF16);
    oar_tensor_release(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_small_steps_move_a_half_only_with_a_master),
        cmocka_unit_test(a_master_is_a_state_of_half_parameters_alone),
        cmocka_unit_test(a_number_that_was_written_since_is_taken_over),
        cmocka_unit_test(the_dtype_of_a_gradient_can_be_f32_for_a_half),
        cmocka_unit_test(products_and_embeddings_round_nothing_on_the_way),
        cmocka_unit_test(norms_give_their_parameters_gradients_in_f32),
        cmocka_unit_test(
            bf16_with_a_master_trains_as_f32_does_and_alone_stalls),
        cmocka_unit_test(a_cast_with_the_optimizer_loses_no_digits),
        cmocka_unit_test(a_shared_parameter_gets_one_master),
        cmocka_unit_test(a_cast_without_masters_is_that_of_the_module),
        cmocka_unit_test(a_cast_that_loses_a_master_or_a_state_is_refused),
        cmocka_unit_test(a_cast_that_fails_changes_nothing),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
