/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: their parameters and what they compute; state by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/models.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "unit/same_numbers.h"

/* ---- layers -------------------------------------------------------------- */

static void layers_compute_what_operations_do(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(3, 5, 8), 1), *w;
    oar_module *m;

    OK(oar_layer_norm_create(8, 0, OAR_F32, &m));
    w = oar_module_find(m, "weight");
    assert_same(oar_forward(NULL, m, x),
                oar_layer_norm(NULL, x, w, oar_module_find(m, "bias"), 1e-5),
                0);
    oar_module_release(m);
    OK(oar_rms_norm_create(8, 0.5, OAR_F32, &m));
    assert_int_equal(oar_module_params(m), 1);
    assert_same(oar_forward(NULL, m, x), oar_rms_norm(NULL, x, NULL, 0.5), 0);
    oar_module_release(m);
    OK(oar_flatten_create(1, &m));
    assert_same(oar_forward(NULL, m, x), oar_reshape(NULL, x, OAR_SHAPE(3, 40)),
                0);
    oar_module_release(m);
    oar_tensor_release(x);
}

static void activations_compute_what_operations_do(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(3, 5), 1);
    oar_tensor *want[] = {
        [OAR_RELU] = oar_relu(NULL, x),
        [OAR_GELU] = oar_gelu(NULL, x),
        [OAR_GELU_TANH] = oar_gelu_tanh(NULL, x),
        [OAR_SILU] = oar_silu(NULL, x),
        [OAR_TANH] = oar_tanh(NULL, x),
        [OAR_SIGMOID] = oar_sigmoid(NULL, x),
        [OAR_SOFTPLUS] = oar_softplus(NULL, x),
    };
    oar_module *m = NULL;

    for (int k = OAR_RELU; k <= OAR_SOFTPLUS; k++) {
        OK(oar_activation_create((oar_activation)k, &m));
        assert_same(oar_forward(NULL, m, x), want[k], 0);
        oar_module_release(m);
    }
    assert_int_equal(oar_activation_create((oar_activation)8, &m), OAR_E_ARG);
    assert_int_equal(oar_activation_create(OAR_ACTIVATION_DEFAULT, &m),
                     OAR_E_ARG);
    OK(oar_relu_create(&m));
    assert_same(oar_forward(NULL, m, x), oar_relu(NULL, x), 0);
    oar_module_release(m);
    oar_tensor_release(x);
}

static void image_layers_compute_what_operations_do(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 4, 5, 6), 1);
    oar_conv2d_layer_opts lo = oar_conv2d_layer_opts_init();
    oar_conv2d_opts o = oar_conv2d_opts_init();
    oar_module *m;

    lo.stride[0] = o.stride[0] = 2;
    lo.padding[1] = o.padding[1] = 1;
    lo.groups = o.groups = 2;
    OK(oar_conv2d_create(4, 6, 3, 2, 7, &lo, &m));
    assert_int_equal(oar_tensor_shape(oar_module_param(m, 0)).dim[1], 2);
    assert_same(oar_forward(NULL, m, x),
                oar_conv2d(NULL, x, oar_module_find(m, "weight"),
                           oar_module_find(m, "bias"), &o),
                0);
    oar_module_release(m);
    OK(oar_max_pool2d_create(2, 3, NULL, &m));
    assert_same(oar_forward(NULL, m, x), oar_max_pool2d(NULL, x, 2, 3, NULL),
                0);
    oar_module_release(m);
    OK(oar_avg_pool2d_create(2, 3, NULL, &m));
    assert_same(oar_forward(NULL, m, x), oar_avg_pool2d(NULL, x, 2, 3, NULL),
                0);
    oar_module_release(m);
    oar_tensor_release(x);
}

static void an_embedding_has_normal_numbers(void **state)
{
    const int64_t index[] = { 4, 0, 4 };
    oar_tensor *i = oar_from_data(NULL, OAR_I64, OAR_SHAPE(3), index), *y;
    oar_tensor *table = oar_normal(NULL, OAR_F32, OAR_SHAPE(5, 3), 9, 0, 0.5);
    oar_module *m;

    OK(oar_embedding_create(5, 3, 9, 0.5, OAR_F32, &m));
    y = oar_forward(NULL, m, i);
    assert_memory_equal((float *)oar_tensor_data(y) + 6,
                        (float *)oar_tensor_data(table) + 12,
                        3 * sizeof(float));
    assert_same(y, oar_embedding(NULL, table, i), 0);
    oar_module_release(m);
    oar_tensor_release(table);
    oar_tensor_release(i);
}

/* Heads by views and the operation of three tensors. */
static oar_tensor *attention_by_views(oar_tape *tape, oar_module *m,
                                      oar_tensor *x, int rotary)
{
    oar_attention_opts o = oar_attention_opts_init();
    oar_tensor *qkv = oar_linear(tape, x, oar_module_find(m, "qkv.weight"),
                                 oar_module_find(m, "qkv.bias"));
    oar_tensor *part[3], *y;

    for (int i = 0; i < 3; i++) {
        y = oar_narrow(tape, qkv, 2, 8 * i, 8);
        y = oar_reshape(tape, y, OAR_SHAPE(3, 5, 2, 4));
        part[i] = oar_transpose(tape, y, 1, 2);
        if (rotary && i < 2)
            part[i] = oar_rotary(tape, part[i], 0, 50);
    }
    o.causal = 1;
    y = oar_attention(tape, part[0], part[1], part[2], &o);
    y = oar_reshape(tape, oar_transpose(tape, y, 1, 2), OAR_SHAPE(3, 5, 8));
    return oar_linear(tape, y, oar_module_find(m, "out.weight"),
                      oar_module_find(m, "out.bias"));
}

static void attention_is_the_same_packed_and_by_views(void **state)
{
    for (int rotary = 0; rotary < 2; rotary++) {
        oar_attention_layer_opts o = oar_attention_layer_opts_init();
        oar_tensor *x = normal(OAR_SHAPE(3, 5, 8), 1), *y, *z, *grad[4];
        oar_module *m;
        oar_tape *tape;

        o.causal = 1;
        o.rotary_base = rotary ? 50 : 0;
        OK(oar_tape_create(&tape));
        OK(oar_attention_create(8, 2, 5, &o, &m));
        y = oar_forward(tape, m, x);
        z = attention_by_views(tape, m, x, rotary);
        assert_same(oar_tensor_retain(y), oar_tensor_retain(z), 1e-6);
        assert_same(oar_forward(NULL, m, x), oar_tensor_retain(z), 1e-6);
        OK(oar_backward_from(tape, 1, &y, NULL));
        for (int i = 0; i < 4; i++) {
            oar_tensor *p = oar_module_param(m, i);

            grad[i] = oar_contiguous(NULL, oar_tensor_grad(p));
            if (grad[i] == oar_tensor_grad(p)) {
                oar_tensor_release(grad[i]);
                grad[i] = oar_scale(NULL, oar_tensor_grad(p), 1);
            }
            oar_tensor_clear_grad(p);
        }
        OK(oar_backward_from(tape, 1, &z, NULL));
        for (int i = 0; i < 4; i++)
            assert_same(
                grad[i],
                oar_tensor_retain(oar_tensor_grad(oar_module_param(m, i))),
                1e-5);
        oar_tape_destroy(tape);
        oar_module_release(m);
        oar_tensor_release(x);
    }
}

/* ---- batch norm ---------------------------------------------------------- */

static double running(oar_module *m, const char *name)
{
    double number[16];

    OK(oar_tensor_read(oar_module_find(m, name), OAR_F64, number));
    return number[0];
}

/* Two channels; the first of each batch is 1, 3: mean 2, variance 2. */
static void batch_norm_keeps_running_statistics(void **state)
{
    const float data[] = { 1, 7, 3, 9 };
    oar_tensor *x = oar_from_data(NULL, OAR_F32, OAR_SHAPE(2, 2), data), *y;
    oar_batch_norm_opts o = oar_batch_norm_opts_init();
    oar_module *m;

    o.momentum = -1;
    for (int k = 0; k < 2; k++) {
        double share = k == 0 ? 1 : 0.19; /* after two batches */

        OK(oar_batch_norm_create(1, 2, k == 0 ? &o : NULL, &m));
        oar_tensor_release(oar_forward(NULL, m, x));
        oar_tensor_release(oar_forward(NULL, m, x));
        assert_float_equal(running(m, "running_mean"), 2 * share, 1e-6);
        assert_float_equal(running(m, "running_var"), 1 + share, 1e-6);
        oar_module_train(m, 0);
        y = oar_forward(NULL, m, x);
        assert_float_equal(*(float *)oar_tensor_data(y),
                           (1 - 2 * share) / sqrt(1 + share + 1e-5), 1e-5);
        assert_int_equal(running(m, "num_batches_tracked"), 2);
        oar_tensor_release(y);
        oar_module_release(m);
    }
    o.no_running = o.no_affine = 1;
    OK(oar_batch_norm_create(1, 2, &o, &m));
    assert_int_equal(oar_module_params(m) + oar_module_buffers(m), 0);
    oar_module_train(m, 0);
    assert_same(oar_forward(NULL, m, x),
                oar_batch_norm(NULL, x, NULL, NULL, NULL, NULL, 1, 0, 1e-5), 0);
    oar_module_release(m);
    oar_tensor_release(x);
}

static void a_batch_norm_may_have_zeros_for_momentum_and_eps(void **state)
{
    const float data[] = { 1, 7, 3, 9 };
    oar_tensor *x = oar_from_data(NULL, OAR_F32, OAR_SHAPE(2, 2), data);
    oar_batch_norm_opts o = oar_batch_norm_opts_init();
    oar_module *m, *none = NULL;

    o.no_momentum = o.no_eps = 1;
    OK(oar_batch_norm_create(1, 2, &o, &m));
    assert_same(oar_forward(NULL, m, x),
                oar_batch_norm(NULL, x, NULL, NULL, NULL, NULL, 1, 0, 0), 0);
    assert_true(running(m, "running_mean") == 0);
    assert_true(running(m, "running_var") == 1);
    o.momentum = 0.1;
    assert_fails_with(oar_batch_norm_create(1, 2, &o, &none), OAR_E_ARG,
                      "one or the other");
    o.momentum = 0;
    o.eps = 1e-3;
    assert_fails_with(oar_batch_norm_create(1, 2, &o, &none), OAR_E_ARG,
                      "one or the other");
    assert_null(none);
    oar_module_release(m);
    oar_tensor_release(x);
}

/* ---- dropout ------------------------------------------------------------- */

static void dropout_keeps_its_share_and_takes_the_next_seed(void **state)
{
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(400), 1), *y;
    const float *number;
    int kept = 0;
    oar_module *m;

    OK(oar_dropout_create(0.25, 9, &m));
    y = oar_forward(NULL, m, x);
    number = oar_tensor_data(y);
    for (int i = 0; i < 400; i++) {
        assert_true(number[i] == 0 || fabsf(number[i] - 1 / 0.75f) < 1e-6f);
        kept += number[i] != 0;
    }
    assert_in_range(kept, 260, 340);
    assert_same(y, oar_dropout(NULL, x, 0.25, 9), 0);
    assert_same(oar_forward(NULL, m, x), oar_dropout(NULL, x, 0.25, 10), 0);
    oar_module_train(m, 0);
    y = oar_forward(NULL, m, x);
    assert_ptr_equal(y, x);
    oar_tensor_release(y);
    y = oar_dropout(NULL, x, 0, 1);
    assert_ptr_equal(y, x);
    oar_tensor_release(y);
    assert_same(oar_dropout(NULL, x, 1, 1), oar_scale(NULL, x, 0), 0);
    oar_module_release(m);
    oar_tensor_release(x);
}

/* ---- layers that work on a part ------------------------------------------ */

static void a_layer_says_what_it_is(void **state)
{
    oar_embedding_opts table = oar_embedding_opts_init();
    oar_module *m;

    OK(oar_linear_create(3, 2, 1, NULL, &m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_LINEAR);
    assert_true(oar_norm_eps(m) == 0);
    assert_fails_with(oar_embedding_describe(m, &table), OAR_E_ARG,
                      "of a linear: it is no embedding");
    assert_fails_with(oar_attention_heads(m, NULL, NULL), OAR_E_ARG,
                      "it is no attention");
    assert_fails_with(oar_attention_keep_heads(m, 0, 1), OAR_E_ARG,
                      "it is no attention");
    assert_fails_with(oar_dropout_place_by(m, NULL, NULL, NULL), OAR_E_ARG,
                      "it is no dropout");
    oar_module_release(m);
    OK(oar_embedding_create_with(
        4, 3, 1,
        OAR_OPTS(oar_embedding_layer_opts, .vocabulary = 9, .first = 2), &m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_EMBEDDING);
    OK(oar_embedding_describe(m, &table));
    assert_int_equal(table.vocabulary, 9);
    assert_int_equal(table.first, 2);
    oar_module_release(m);
    OK(oar_rms_norm_create(8, 0.5, OAR_F32, &m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_RMS_NORM);
    assert_true(oar_norm_eps(m) == 0.5);
    oar_module_release(m);
    OK(oar_layer_norm_create(8, 0, OAR_F32, &m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_LAYER_NORM);
    assert_true(oar_norm_eps(m) == 1e-5);
    oar_module_release(m);
    OK(oar_relu_create(&m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_OTHER);
    oar_module_release(m);
    assert_int_equal(oar_layer_kind_of(NULL), OAR_LAYER_OTHER);
}

static oar_status place_second_row(void *arg, const oar_tensor *x,
                                   oar_part_place *place)
{
    place->first = oar_tensor_count(x);
    return *(const int *)arg > 1 ? OAR_E_DATA : OAR_OK;
}

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

/* The second row of two alone has the mask that it has with the first. */
static void a_dropout_takes_its_part_of_a_mask(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 50));
    oar_tensor *row = oar_narrow(NULL, x, 0, 1, 1);
    oar_tensor *all = oar_dropout(NULL, x, 0.5, 7);
    oar_module *m;
    int drops = 0;

    OK(oar_dropout_create(0.5, 7, &m));
    assert_int_equal(oar_layer_kind_of(m), OAR_LAYER_DROPOUT);
    OK(oar_dropout_place_by(m, place_second_row, &drops, count_drop));
    assert_same(oar_forward(NULL, m, row), oar_narrow(NULL, all, 0, 1, 1), 0);
    assert_int_equal(*oar_module_find_counter(m, "next_seed"), 8);
    OK(oar_dropout_place_by(m, NULL, NULL, NULL));
    assert_int_equal(drops, 1);
    OK(oar_dropout_place_by(m, place_second_row, &drops, count_drop));
    drops = 2;
    assert_null(oar_forward(NULL, m, row)); /* no place, no result */
    oar_module_release(m);
    assert_int_equal(drops, 3);
    oar_tensor_release(all);
    oar_tensor_release(row);
    oar_tensor_release(x);
}

/* Attention of 6 heads, of which pairs share one of k and v, cut into parts by
 * hand: the parts' results add up to the whole's. */
static void attention_may_keep_some_of_its_heads(void **state)
{
    enum { WIDTH = 12, EACH = 2, ROW = 3 };
    static const int cut[] = { 0, 4, 6, 6 };
    const oar_attention_layer_opts *o = OAR_OPTS(
        oar_attention_layer_opts, .causal = 1, .kv_heads = 3, .no_bias = 1,
        .dropout = 0.3, .dropout_seed = 5, .rotary_base = 100);
    oar_tensor *x = normal(OAR_SHAPE(1, ROW, WIDTH), 1), *sum = NULL;
    oar_module *whole, *m;
    int heads, kv;

    OK(oar_attention_create(WIDTH, 6, 1, o, &whole));
    assert_int_equal(oar_layer_kind_of(whole), OAR_LAYER_ATTENTION);
    for (int part = 0; part < 3; part++) {
        int first = cut[part], count = cut[part + 1] - first;
        oar_tensor *piece[3], *w, *y, *added;

        OK(oar_attention_create(WIDTH, 6, 1, o, &m));
        OK(oar_attention_keep_heads(m, first, count));
        OK(oar_attention_heads(m, &heads, &kv));
        assert_int_equal(heads, count);
        assert_int_equal(kv, count / 2);
        w = oar_module_param(whole, 0);
        piece[0] = oar_narrow(NULL, w, 0, (int64_t)first * EACH,
                              (int64_t)count * EACH);
        for (int i = 1; i < 3; i++)
            piece[i] = oar_narrow(NULL, w, 0,
                                  (6 + 3 * (i - 1) + first / 2) * (int64_t)EACH,
                                  (int64_t)count / 2 * EACH);
        OK(oar_module_replace_param(m, "qkv.weight",
                                    oar_cat(NULL, 3, piece, 0)));
        w = oar_narrow(NULL, oar_module_param(whole, 1), 1,
                       (int64_t)first * EACH, (int64_t)count * EACH);
        OK(oar_module_replace_param(m, "out.weight", oar_contiguous(NULL, w)));
        y = oar_forward(NULL, m, x);
        assert_non_null(y);
        added = sum == NULL ? oar_tensor_retain(y) : oar_add(NULL, sum, y);
        oar_tensor_release(sum);
        sum = added;
        oar_tensor_release(y);
        oar_tensor_release(w);
        for (int i = 0; i < 3; i++)
            oar_tensor_release(piece[i]);
        oar_module_release(m);
    }
    assert_fails_with(oar_attention_keep_heads(whole, 1, 2), OAR_E_ARG,
                      "2 share a head of k and v");
    assert_fails_with(oar_attention_keep_heads(whole, 4, 4), OAR_E_ARG,
                      "4 from 4 on");
    assert_same(sum, oar_forward(NULL, whole, x), 1e-5);
    oar_module_release(whole);
    oar_tensor_release(x);
}

/* ---- state --------------------------------------------------------------- */

static oar_module *new_cnn(uint64_t seed, int64_t width)
{
    oar_cnn_opts o = oar_cnn_opts_init();
    oar_module *m;

    o.image = 8;
    o.width = width;
    o.seed = seed;
    OK(oar_cnn_create(&o, &m));
    return m;
}

static void state_is_found_by_name(void **state)
{
    oar_module *m = new_cnn(1, 2);
    char name[64], small[5];

    for (int i = 0; i < oar_module_params(m); i++) {
        OK(oar_module_param_name(m, i, name, sizeof name));
        assert_ptr_equal(oar_module_find(m, name), oar_module_param(m, i));
    }
    for (int i = 0; i < oar_module_buffers(m); i++) {
        OK(oar_module_buffer_name(m, i, name, sizeof name));
        assert_ptr_equal(oar_module_find(m, name), oar_module_buffer(m, i));
    }
    OK(oar_module_buffer_name(m, 1, name, sizeof name));
    assert_string_equal(name, "1.running_var");
    OK(oar_module_buffer_name(m, 1, small, sizeof small));
    assert_string_equal(small, "1.ru");
    assert_int_equal(oar_module_buffer_name(m, 6, name, sizeof name),
                     OAR_E_ARG);
    assert_null(oar_module_find(m, "1"));
    assert_null(oar_module_find(m, "1.weigh"));
    assert_null(oar_module_find(m, "1.weight.x"));
    assert_null(oar_module_find(m, ""));
    assert_null(oar_module_find(m, NULL));
    assert_null(oar_module_find(NULL, "x"));
    oar_module_release(m);
}

static void loading_copies_everything_or_nothing(void **state)
{
    oar_module *a = new_cnn(1, 2), *b = new_cnn(9, 2), *wide = new_cnn(9, 3);
    oar_module *one = oar_module_child(a, 0), *other = oar_module_child(a, 4);

    OK(oar_tensor_fill(oar_module_find(b, "5.running_mean"), 7));
    OK(oar_module_load(a, b, 1));
    for (int i = 0; i < oar_module_params(a); i++)
        assert_same(oar_tensor_retain(oar_module_param(a, i)),
                    oar_tensor_retain(oar_module_param(b, i)), 0);
    assert_float_equal(running(a, "5.running_mean"), 7, 0);
    OK(oar_tensor_fill(oar_module_find(wide, "9.bias"), 5));
    assert_int_equal(oar_module_load(a, wide, 0), OAR_E_SHAPE);
    assert_non_null(strstr(oar_last_error_text(), "0.weight"));
    assert_same(oar_tensor_retain(oar_module_find(a, "9.bias")),
                oar_tensor_retain(oar_module_find(b, "9.bias")), 0);
    assert_int_equal(oar_module_load(one, a, 1), OAR_E_ARG);
    OK(oar_module_load(one, a, 0)); /* no name in common */
    assert_int_equal(oar_module_load(one, other, 1), OAR_E_SHAPE);
    assert_int_equal(oar_module_load(a, one, 1), OAR_E_ARG);
    assert_int_equal(oar_module_load(NULL, a, 1), OAR_E_ARG);
    oar_module_release(a);
    oar_module_release(b);
    oar_module_release(wide);
}

static void frozen_parameters_get_no_gradient(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 1, 8, 8), 3);
    oar_module *m = new_cnn(1, 2);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_module_freeze(oar_module_child(m, 0), 1));
    OK(oar_backward_from(tape, 1, (oar_tensor *[]){ oar_forward(tape, m, x) },
                         NULL));
    assert_null(oar_tensor_grad(oar_module_find(m, "0.weight")));
    assert_non_null(oar_tensor_grad(oar_module_find(m, "1.weight")));
    OK(oar_module_freeze(m, 1));
    for (int i = 0; i < oar_module_params(m); i++)
        assert_false(oar_tensor_requires_grad(oar_module_param(m, i)));
    OK(oar_module_freeze(m, 0));
    assert_true(oar_tensor_requires_grad(oar_module_param(m, 0)));
    assert_int_equal(oar_module_freeze(NULL, 1), OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_module_release(m);
    oar_tensor_release(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_compute_what_operations_do),
        cmocka_unit_test(activations_compute_what_operations_do),
        cmocka_unit_test(image_layers_compute_what_operations_do),
        cmocka_unit_test(an_embedding_has_normal_numbers),
        cmocka_unit_test(attention_is_the_same_packed_and_by_views),
        cmocka_unit_test(batch_norm_keeps_running_statistics),
        cmocka_unit_test(a_batch_norm_may_have_zeros_for_momentum_and_eps),
        cmocka_unit_test(dropout_keeps_its_share_and_takes_the_next_seed),
        cmocka_unit_test(a_layer_says_what_it_is),
        cmocka_unit_test(a_dropout_takes_its_part_of_a_mask),
        cmocka_unit_test(attention_may_keep_some_of_its_heads),
        cmocka_unit_test(state_is_found_by_name),
        cmocka_unit_test(loading_copies_everything_or_nothing),
        cmocka_unit_test(frozen_parameters_get_no_gradient),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
