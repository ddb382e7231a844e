/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a part of a larger tensor: what they give is the part of what
 * the whole would give, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>

#include "support/leak_check.h"
#include "unit/gradcheck.h"

/* Whether two tensors have the same shape and the same bits. */
static int same_bits(const oar_tensor *a, const oar_tensor *b)
{
    double x[512], y[512];

    if (oar_tensor_count(a) != oar_tensor_count(b) ||
        oar_tensor_count(a) > 512 || oar_tensor_dtype(a) != oar_tensor_dtype(b))
        return 0;
    OK(oar_tensor_read(a, OAR_F64, x));
    OK(oar_tensor_read(b, OAR_F64, y));
    return memcmp(x, y, (size_t)oar_tensor_count(a) * sizeof *x) == 0;
}

/* ---- dropout ------------------------------------------------------------- */

static const oar_dtype floats[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };

/* A box of a whole [5, 7, 11]: cut out before and after dropout. */
static void check_box(oar_dtype dtype, const int64_t from[3],
                      const int64_t size[3])
{
    const int64_t stride[3] = { 77, 11, 1 };
    oar_tensor *whole, *view[2];
    oar_part_place place = { .size = sizeof place };
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    whole = oar_uniform(tape, dtype, OAR_SHAPE(5, 7, 11), 3, 1, 2);
    view[0] = whole;
    view[1] = oar_dropout(tape, whole, 0.37, 12345);
    for (int d = 0; d < 3; d++) {
        place.first += from[d] * stride[d];
        place.stride[d] = stride[d];
        for (int i = 0; i < 2; i++)
            view[i] = oar_narrow(tape, view[i], d, from[d], size[d]);
    }
    assert_true(same_bits(oar_dropout_part(tape, view[0], 0.37, 12345, &place),
                          view[1]));
    oar_tape_destroy(tape);
}

static void dropout_of_a_box_is_the_box_of_dropout(void **state)
{
    const int64_t from[][3] = { { 0, 0, 0 }, { 2, 0, 0 }, { 0, 3, 0 },
                                { 0, 0, 4 }, { 1, 2, 3 }, { 4, 6, 10 },
                                { 1, 1, 1 }, { 2, 3, 0 } };
    const int64_t size[][3] = { { 5, 7, 11 }, { 3, 7, 11 }, { 5, 2, 11 },
                                { 5, 7, 5 },  { 2, 3, 4 },  { 1, 1, 1 },
                                { 0, 2, 3 },  { 1, 4, 11 } };

    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++)
        for (size_t i = 0; i < sizeof from / sizeof *from; i++)
            check_box(floats[d], from[i], size[i]);
}

static void dropout_of_a_flat_part_counts_from_its_first(void **state)
{
    oar_tape *tape;
    oar_tensor *whole, *all, *part;

    OK(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    whole = oar_uniform(tape, OAR_F32, OAR_SHAPE(311), 3, 1, 2);
    all = oar_dropout(tape, whole, 0.5, 9);
    assert_true(same_bits(all, oar_dropout_part(tape, whole, 0.5, 9, NULL)));
    for (int64_t first = 0; first < 311; first += 103) {
        part = oar_narrow(tape, whole, 0, first, 311 - first);
        part = oar_dropout_part(tape, part, 0.5, 9,
                                OAR_OPTS(oar_part_place, .first = first));
        assert_true(
            same_bits(part, oar_narrow(tape, all, 0, first, 311 - first)));
    }
    oar_tape_destroy(tape);
}

static void the_mask_of_a_part_is_the_same_in_backward(void **state)
{
    const oar_part_place *place =
        OAR_OPTS(oar_part_place, .first = 40, .stride = { 30, 1 });
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 6), 1), *y, *in;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    in = oar_tape_input(tape, x);
    y = oar_tensor_retain(oar_dropout_part(tape, in, 0.5, 9, place));
    OK(oar_backward(tape, oar_sum(tape, y)));
    assert_true(same_bits(y, oar_tensor_grad(in)));
    oar_tensor_release(y);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

static void places_that_are_none_are_refused(void **state)
{
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 6), 1), *y;

    assert_null(oar_dropout_part(NULL, x, 0.5, 9,
                                 OAR_OPTS(oar_part_place, .first = -1)));
    assert_last_error_has("no such positions");
    assert_null(oar_dropout_part(
        NULL, x, 0.5, 9, OAR_OPTS(oar_part_place, .stride = { -6, 1 })));
    assert_null(oar_dropout_part(
        NULL, x, 0.5, 9, OAR_OPTS(oar_part_place, .stride = { INT64_MAX, 1 })));
    assert_null(oar_dropout_part(NULL, x, 0.5, 9,
                                 OAR_OPTS(oar_part_place, .first = INT64_MAX)));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_null(oar_dropout_part(NULL, x, 1.5, 9, NULL));
    assert_null(oar_dropout_part(NULL, NULL, 0.5, 9, NULL));
    y = oar_dropout_part(NULL, x, 0, 9, NULL);
    assert_ptr_equal(y, x);
    oar_tensor_release(y);
    oar_tensor_release(x);
}

/* ---- attention ----------------------------------------------------------- */

static void heads_of_a_part_drop_what_they_drop_in_the_whole(void **state)
{
    const oar_attention_opts *all =
        OAR_OPTS(oar_attention_opts, .causal = 1, .dropout = 0.4, .seed = 77);
    oar_tensor *q, *whole, *part;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    q = oar_normal(tape, OAR_F32, OAR_SHAPE(2, 5, 7, 4), 1, 0, 1);
    whole = oar_attention(tape, q, q, q, all);
    for (int first = 0; first < 5; first += 2) {
        int count = 5 - first < 2 ? 5 - first : 2;
        oar_tensor *h = oar_narrow(tape, q, 1, first, count);

        part = oar_attention(tape, h, h, h,
                             OAR_OPTS(oar_attention_opts, .causal = 1,
                                      .dropout = 0.4, .seed = 77,
                                      .all_heads = 5, .first_head = first));
        assert_true(same_bits(part, oar_narrow(tape, whole, 1, first, count)));
    }
    assert_null(oar_attention(
        tape, q, q, q,
        OAR_OPTS(oar_attention_opts, .all_heads = 5, .first_head = 1)));
    assert_last_error_has("heads from 1 on of 5");
    assert_null(oar_attention(tape, q, q, q,
                              OAR_OPTS(oar_attention_opts, .first_head = 1)));
    assert_null(oar_attention(tape, q, q, q,
                              OAR_OPTS(oar_attention_opts, .all_heads = -1)));
    oar_tape_destroy(tape);
}

/* Copies some heads' rows of q, k and v, and their columns of out. */
static void copy_heads(oar_module *whole, oar_module *part, int heads, int head,
                       int first, int count)
{
    oar_tensor *from = oar_module_find(whole, "qkv.weight");
    oar_tensor *to = oar_module_find(part, "qkv.weight"), *a, *b;

    for (int i = 0; i < 3; i++) {
        a = oar_narrow(NULL, from, 0, (int64_t)(i * heads + first) * head,
                       (int64_t)count * head);
        b = oar_narrow(NULL, to, 0, (int64_t)i * count * head,
                       (int64_t)count * head);
        OK(oar_tensor_copy(b, a));
        oar_tensor_release(a);
        oar_tensor_release(b);
    }
    a = oar_narrow(NULL, oar_module_find(whole, "out.weight"), 1,
                   (int64_t)first * head, (int64_t)count * head);
    OK(oar_tensor_copy(oar_module_find(part, "out.weight"), a));
    oar_tensor_release(a);
}

/* Layers with some of the heads each add up to the layer with all of them. */
static void attention_layers_of_an_inner_width_add_up_to_the_whole(void **state)
{
    enum { WIDTH = 12, HEADS = 3, HEAD = 4 };
    oar_attention_layer_opts o = { .size = sizeof o,
                                   .causal = 1,
                                   .no_bias = 1,
                                   .dtype = OAR_F64,
                                   .rotary_base = 100,
                                   .dropout = 0.3,
                                   .dropout_seed = 5 };
    oar_tensor *x = oar_normal(NULL, OAR_F64, OAR_SHAPE(2, 5, WIDTH), 1, 0, 1);
    oar_module *whole, *part;
    oar_tensor *want, *sum = NULL;
    double a[120], b[120];
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    OK(oar_attention_create(WIDTH, HEADS, 1, &o, &whole));
    want = oar_forward(tape, whole, x);
    o.all_heads = HEADS;
    for (int first = 0, count; first < HEADS; first += count) {
        count = first == 0 ? 2 : 1;
        o.inner = (int64_t)count * HEAD;
        o.first_head = first;
        OK(oar_attention_create(WIDTH, count, 9, &o, &part));
        copy_heads(whole, part, HEADS, HEAD, first, count);
        sum = sum == NULL ? oar_forward(tape, part, x)
                          : oar_add(tape, sum, oar_forward(tape, part, x));
        assert_non_null(sum);
        oar_module_release(part);
    }
    OK(oar_tensor_read(want, OAR_F64, a));
    OK(oar_tensor_read(sum, OAR_F64, b));
    for (int i = 0; i < 120; i++)
        assert_true(fabs(a[i] - b[i]) <= 1e-13);
    oar_tape_destroy(tape);
    oar_module_release(whole);
    oar_tensor_release(x);
}

static void an_inner_width_is_checked(void **state)
{
    oar_module *made;

    assert_fails_with(
        oar_attention_create(
            12, 5, 1, OAR_OPTS(oar_attention_layer_opts, .inner = 12), &made),
        OAR_E_ARG, "5 heads: the heads divide the width inside");
    assert_int_equal(
        oar_attention_create(
            12, 3, 1, OAR_OPTS(oar_attention_layer_opts, .inner = -3), &made),
        OAR_E_ARG);
    assert_int_equal(
        oar_attention_create(
            12, 3, 1,
            OAR_OPTS(oar_attention_layer_opts, .inner = INT64_MAX / 3 / 3 * 9),
            &made),
        OAR_E_ARG);
    assert_fails_with(
        oar_attention_create(
            12, 3, 1,
            OAR_OPTS(oar_attention_layer_opts, .all_heads = 3, .first_head = 1),
            &made),
        OAR_E_ARG, "3 heads from 1 on of 3");
    /* heads that do not divide the width of the input */
    OK(oar_attention_create(
        7, 5, 1, OAR_OPTS(oar_attention_layer_opts, .inner = 15), &made));
    assert_int_equal(
        oar_tensor_shape(oar_module_find(made, "qkv.weight")).dim[0], 45);
    assert_int_equal(
        oar_tensor_shape(oar_module_find(made, "out.weight")).dim[1], 15);
    oar_module_release(made);
}

/* ---- embedding ----------------------------------------------------------- */

enum { VOCABULARY = 11, WIDTH = 5 };

static const int64_t ids[] = { 3, 0, 10, 3, 7, 2, 2, 9, 4, 10 };

/* The result of a table and its gradient, with a gradient of the result that
 * follows from the element's place. */
static void embed(oar_module *layer, oar_tensor **y, oar_tensor **grad)
{
    oar_dtype dtype = oar_tensor_dtype(oar_module_param(layer, 0));
    oar_tensor *seed =
                   oar_uniform(NULL, dtype, OAR_SHAPE(2, 5, WIDTH), 8, -1, 1),
               *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    out = oar_forward(tape, layer,
                      oar_from_data(tape, OAR_I64, OAR_SHAPE(2, 5), ids));
    assert_non_null(out);
    *y = oar_tensor_retain(out);
    OK(oar_backward_from(tape, 1, &out, &seed));
    *grad = oar_tensor_retain(oar_tensor_grad(oar_module_param(layer, 0)));
    oar_tape_destroy(tape);
    oar_tensor_release(seed);
}

/* Tables of some rows each: results add up, gradients stand side by side. */
static void check_tables(oar_dtype dtype, int has_padding, int64_t padding)
{
    const int64_t cut[] = { 0, 4, 4, 9, VOCABULARY };
    oar_embedding_layer_opts o = { .size = sizeof o,
                                   .dtype = dtype,
                                   .deviation = 0.7,
                                   .has_padding = has_padding,
                                   .padding = padding };
    oar_tensor *want, *want_grad, *sum = NULL;
    oar_module *whole;

    OK(oar_embedding_create_with(VOCABULARY, WIDTH, 3, &o, &whole));
    embed(whole, &want, &want_grad);
    o.vocabulary = VOCABULARY;
    for (int i = 0; i < 4; i++) {
        int64_t count = cut[i + 1] - cut[i];
        oar_tensor *y, *grad, *rows, *more;
        oar_module *part;

        o.first = cut[i];
        OK(oar_embedding_create_with(count, WIDTH, 3, &o, &part));
        rows = oar_narrow(NULL, oar_module_param(whole, 0), 0, cut[i], count);
        assert_true(same_bits(rows, oar_module_param(part, 0)));
        oar_tensor_release(rows);
        embed(part, &y, &grad);
        rows = oar_narrow(NULL, want_grad, 0, cut[i], count);
        assert_true(same_bits(rows, grad));
        oar_tensor_release(rows);
        oar_tensor_release(grad);
        more = sum != NULL ? oar_add(NULL, sum, y) : oar_tensor_retain(y);
        oar_tensor_release(sum);
        oar_tensor_release(y);
        sum = more;
        oar_module_release(part);
    }
    assert_true(same_bits(sum, want));
    oar_tensor_release(sum);
    oar_tensor_release(want);
    oar_tensor_release(want_grad);
    oar_module_release(whole);
}

static void tables_of_a_range_are_parts_of_the_whole(void **state)
{
    uint64_t before = leak_check_begin().live;

    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++) {
        check_tables(floats[d], 0, 0);
        check_tables(floats[d], 1, 0);
        check_tables(floats[d], 1, 3);
        check_tables(floats[d], 1, -1);
    }
    assert_int_equal(leak_check_begin().live, before);
}

static void a_lazy_table_of_a_range_begins_with_its_rows(void **state)
{
    oar_embedding_layer_opts o = { .size = sizeof o,
                                   .vocabulary = VOCABULARY,
                                   .first = 4,
                                   .has_padding = 1,
                                   .padding = 6 };
    oar_module *part[2];
    int lazy;

    OK(oar_embedding_create_with(5, WIDTH, 3, &o, &part[0]));
    lazy = oar_lazy(1);
    OK(oar_embedding_create_with(5, WIDTH, 3, &o, &part[1]));
    oar_lazy(lazy);
    assert_true(oar_tensor_is_lazy(oar_module_param(part[1], 0)));
    OK(oar_tensor_realize(oar_module_param(part[1], 0)));
    assert_true(
        same_bits(oar_module_param(part[0], 0), oar_module_param(part[1], 0)));
    oar_module_release(part[0]);
    oar_module_release(part[1]);
}

static void a_range_outside_the_vocabulary_is_refused(void **state)
{
    oar_tensor *table = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1);
    oar_tensor *at = oar_from_data(NULL, OAR_I64, OAR_SHAPE(10), ids), *y;
    oar_module *made;
    double number[30];

    assert_null(oar_embedding_with(
        NULL, table, at,
        OAR_OPTS(oar_embedding_opts, .vocabulary = 11, .first = 8)));
    assert_last_error_has("rows from 8 on of a vocabulary of 11");
    assert_null(oar_embedding_with(NULL, table, at,
                                   OAR_OPTS(oar_embedding_opts, .first = 1)));
    assert_null(oar_embedding_with(
        NULL, table, at, OAR_OPTS(oar_embedding_opts, .vocabulary = 3)));
    assert_null(oar_embedding_with(
        NULL, table, at,
        OAR_OPTS(oar_embedding_opts, .vocabulary = 11, .first = -1)));
    assert_null(oar_embedding_with(
        NULL, table, at, OAR_OPTS(oar_embedding_opts, .vocabulary = 10)));
    assert_last_error_has("element 2 is 10");
    assert_null(
        oar_embedding_with(NULL, table, at,
                           OAR_OPTS(oar_embedding_opts, .vocabulary = 11,
                                    .has_padding = 1, .padding = 11)));
    y = oar_embedding_with(
        NULL, table, at,
        OAR_OPTS(oar_embedding_opts, .vocabulary = 11, .first = 7));
    OK(oar_tensor_read(y, OAR_F64, number));
    for (int i = 0; i < 30; i++)
        assert_true(number[i] == (ids[i / 3] >= 7));
    oar_tensor_release(y);
    oar_tensor_release(at);
    oar_tensor_release(table);
    assert_int_equal(
        oar_embedding_create_with(
            4, 3, 1,
            OAR_OPTS(oar_embedding_layer_opts, .vocabulary = 11, .first = 8),
            &made),
        OAR_E_ARG);
    assert_int_equal(oar_embedding_create_with(
                         4, 3, 1,
                         OAR_OPTS(oar_embedding_layer_opts, .vocabulary = -1),
                         &made),
                     OAR_E_ARG);
    assert_int_equal(
        oar_embedding_create_with(
            4, 3, 1, OAR_OPTS(oar_embedding_layer_opts, .first = 1), &made),
        OAR_E_ARG);
}

/* ---- cross entropy ------------------------------------------------------- */

static oar_status same_numbers(void *arg, int64_t count, double *number)
{
    return OAR_OK;
}

static oar_status failing_merge(void *arg, int64_t count, double *number)
{
    return *(oar_status *)arg;
}

#define ALONE(count)                                      \
    OAR_OPTS(oar_cross_entropy_merge, .classes = (count), \
             .largest = same_numbers, .sums = same_numbers)

static void one_part_alone_has_the_bits_of_cross_entropy(void **state)
{
    const int64_t chosen[] = { 3, 0, 6, 2, 6 };

    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++)
        for (int k = 0; k < 24; k++) {
            oar_tensor *x =
                oar_normal(NULL, floats[d], OAR_SHAPE(5, 7), 1, 0, 3);
            oar_tensor *weight =
                oar_uniform(NULL, floats[d], OAR_SHAPE(7), 2, 0.5, 2);
            oar_cross_entropy_opts o = { .size = sizeof o,
                                         .has_ignore = k & 1,
                                         .ignore = 2,
                                         .label_smoothing = k & 2 ? 0.1 : 0,
                                         .weight = k & 4 ? weight : NULL,
                                         .reduction =
                                             (oar_loss_reduction)(k / 8) };
            oar_tensor *loss[2], *in[2];
            oar_tape *tape;

            OK(oar_tape_create(&tape));
            for (int i = 0; i < 2; i++) {
                oar_tensor *t =
                    oar_from_data(tape, OAR_I64, OAR_SHAPE(5), chosen);

                in[i] = oar_tape_input(tape, x);
                loss[i] = oar_tensor_retain(
                    i ? oar_cross_entropy_merged(tape, in[i], t, &o, ALONE(7))
                      : oar_cross_entropy_with(tape, in[i], t, &o));
                OK(oar_backward(tape, oar_sum(tape, loss[i])));
            }
            assert_true(same_bits(loss[0], loss[1]));
            assert_true(
                same_bits(oar_tensor_grad(in[0]), oar_tensor_grad(in[1])));
            oar_tensor_release(loss[0]);
            oar_tensor_release(loss[1]);
            oar_tape_destroy(tape);
            oar_tensor_release(weight);
            oar_tensor_release(x);
        }
}

static void a_merge_that_fails_ends_the_operation(void **state)
{
    const int64_t chosen[] = { 3, 0 };
    uint64_t before = leak_check_begin().live;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(2, 7), 1);
    oar_tensor *t = oar_from_data(NULL, OAR_I64, OAR_SHAPE(2), chosen);
    oar_status bad = OAR_E_TIMEOUT;

    for (int i = 0; i < 2; i++)
        assert_null(oar_cross_entropy_merged(
            NULL, x, t, NULL,
            OAR_OPTS(oar_cross_entropy_merge, .classes = 9, .arg = &bad,
                     .largest = i ? failing_merge : same_numbers,
                     .sums = failing_merge)));
    assert_null(oar_cross_entropy_merged(NULL, x, t, NULL, NULL));
    assert_null(oar_cross_entropy_merged(
        NULL, x, t, NULL,
        OAR_OPTS(oar_cross_entropy_merge, .classes = 9, .first = 3,
                 .largest = same_numbers, .sums = same_numbers)));
    assert_last_error_has("from class 3 on of 9");
    assert_null(oar_cross_entropy_merged(
        NULL, x, t, NULL,
        OAR_OPTS(oar_cross_entropy_merge, .classes = 9, .first = -1,
                 .largest = same_numbers, .sums = same_numbers)));
    assert_null(oar_cross_entropy_merged(NULL, x, t, NULL, ALONE(3)));
    assert_null(oar_cross_entropy_merged(
        NULL, x, t, NULL, OAR_OPTS(oar_cross_entropy_merge, .classes = 9)));
    assert_last_error_has("without functions");
    oar_tensor_release(t);
    oar_tensor_release(x);
    assert_int_equal(leak_check_begin().live, before);
}

/* ---- gradients against differences --------------------------------------- */

OP(dropout_box,
   oar_dropout_part(tape, in[0], 0.4, 5,
                    OAR_OPTS(oar_part_place, .first = 7, .stride = { 20, 1 })))
OP(dropout_apart,
   oar_dropout_part(tape, in[0], 0.4, 5,
                    OAR_OPTS(oar_part_place, .first = 7, .stride = { 1, 3 })))
OP(range, oar_embedding_with(tape, in[0],
                             oar_from_data(tape, OAR_I64, OAR_SHAPE(10), ids),
                             OAR_OPTS(oar_embedding_opts, .vocabulary = 11,
                                      .first = 2)))
OP(entropy,
   oar_cross_entropy_merged(tape, in[0], gradcheck_targets(tape, in[0]), NULL,
                            ALONE(7)))
OP(entropy_smooth,
   oar_cross_entropy_merged(tape, in[0], gradcheck_targets(tape, in[0]),
                            OAR_OPTS(oar_cross_entropy_opts,
                                     .label_smoothing = 0.2,
                                     .reduction = OAR_LOSS_NONE,
                                     .has_ignore = 1, .ignore = 5),
                            ALONE(7)))
OP(heads, oar_attention(tape, in[0], in[0], in[0],
                        OAR_OPTS(oar_attention_opts, .dropout = 0.3, .seed = 4,
                                 .all_heads = 7, .first_head = 3)))

static const gradcheck checks[] = {
    { "dropout of a box", dropout_box, { S(3, 11), END } },
    { "dropout of places apart", dropout_apart, { S(3, 5), END } },
    { "embedding of a range", range, { S(4, 3), END } },
    { "cross entropy merged", entropy, { S(4, 7), END } },
    { "cross entropy merged, smooth", entropy_smooth, { S(4, 7), END } },
    { "attention of some heads", heads, { S(2, 3, 4, 3), END } },
};

static void gradients_agree_with_differences(void **state)
{
    gradcheck_all(checks, sizeof checks / sizeof *checks, 1, -1);
    gradcheck_all(checks, sizeof checks / sizeof *checks, 2, -1);
}

/* ---- failures ------------------------------------------------------------ */

static oar_status result_of(oar_tensor *y)
{
    oar_status status = y != NULL ? OAR_OK : oar_last_error()->status;

    oar_tensor_release(y);
    return status;
}

static oar_status drop_part(void *arg)
{
    return result_of(oar_dropout_part(
        NULL, arg, 0.5, 3, OAR_OPTS(oar_part_place, .stride = { 20, 1 })));
}

static oar_status embed_range(void *arg)
{
    oar_tensor **a = arg;

    return result_of(oar_embedding_with(
        NULL, a[0], a[1],
        OAR_OPTS(oar_embedding_opts, .vocabulary = 20, .first = 2)));
}

static oar_status merge_entropy(void *arg)
{
    oar_tensor **a = arg;

    return result_of(oar_cross_entropy_merged(
        NULL, a[0], a[1],
        OAR_OPTS(oar_cross_entropy_opts, .weight = a[2],
                 .label_smoothing = 0.1),
        OAR_OPTS(oar_cross_entropy_merge, .classes = 20,
                 .largest = same_numbers, .sums = same_numbers)));
}

static oar_status make_range(void *arg)
{
    oar_module *made;
    oar_status status = oar_embedding_create_with(
        4, 3, 1,
        OAR_OPTS(oar_embedding_layer_opts, .vocabulary = 9, .first = 2,
                 .has_padding = 1, .padding = 3),
        &made);

    if (status == OAR_OK)
        oar_module_release(made);
    return status;
}

static oar_status make_inner(void *arg)
{
    oar_module *made;
    oar_status status = oar_attention_create(
        7, 3, 1, OAR_OPTS(oar_attention_layer_opts, .inner = 15), &made);

    if (status == OAR_OK)
        oar_module_release(made);
    return status;
}

static void failed_allocations_leave_nothing_behind(void **state)
{
    const int64_t at[] = { 3, 0, 6 };
    oar_tensor *a[3] = { oar_full(NULL, OAR_BF16, OAR_SHAPE(3, 9), 1),
                         oar_from_data(NULL, OAR_I64, OAR_SHAPE(3), at),
                         oar_full(NULL, OAR_BF16, OAR_SHAPE(9), 1) };

    fail_each_allocation(drop_part, a[0]);
    fail_each_allocation(embed_range, a);
    fail_each_allocation(merge_entropy, a);
    fail_each_allocation(make_range, NULL);
    fail_each_allocation(make_inner, NULL);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(a[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_of_a_box_is_the_box_of_dropout),
        cmocka_unit_test(dropout_of_a_flat_part_counts_from_its_first),
        cmocka_unit_test(the_mask_of_a_part_is_the_same_in_backward),
        cmocka_unit_test(places_that_are_none_are_refused),
        cmocka_unit_test(heads_of_a_part_drop_what_they_drop_in_the_whole),
        cmocka_unit_test(
            attention_layers_of_an_inner_width_add_up_to_the_whole),
        cmocka_unit_test(an_inner_width_is_checked),
        cmocka_unit_test(tables_of_a_range_are_parts_of_the_whole),
        cmocka_unit_test(a_lazy_table_of_a_range_begins_with_its_rows),
        cmocka_unit_test(a_range_outside_the_vocabulary_is_refused),
        cmocka_unit_test(one_part_alone_has_the_bits_of_cross_entropy),
        cmocka_unit_test(a_merge_that_fails_ends_the_operation),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
