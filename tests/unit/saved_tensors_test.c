/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes save and when memory is freed: results freed by backward, results
 * that stay, tensors changed after they were saved, results that are computed
 * again, and how much memory a step of a model takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/dlpack.h>
#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "tensor/cpu/product/dnnl.h"
#include "tensor/tensor_pool.h"

static const char sentence[] = "retain it to read it after backward";

static oar_tape *new_tape(void)
{
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    return tape;
}

static oar_tensor *leaf_of(oar_shape shape, uint64_t seed)
{
    oar_tensor *leaf = oar_uniform(NULL, OAR_F32, shape, seed, -1, 1);

    assert_non_null(leaf);
    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

static void assert_refused(oar_status status)
{
    assert_int_equal(status, OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), sentence));
}

static void assert_no_tensor(const oar_tensor *made)
{
    assert_null(made);
    assert_refused(oar_last_error()->status);
    oar_clear_error();
}

/* ---- given back ---------------------------------------------------------- */

static void a_result_is_given_back_and_refused_afterwards(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3, 5), 1);
    oar_tensor *y = oar_scale(tape, w, 2), *loss;
    float number[15];
    char text[64];
    double value;
    oar_span span;

    loss = oar_sum(tape, oar_mul(tape, y, y));
    OK(oar_tensor_read(y, OAR_F32, number));
    OK(oar_backward(tape, loss));
    assert_null(oar_tensor_data(y));
    assert_null(oar_tensor_storage(y));
    oar_tensor_text(y, text, sizeof text);
    assert_string_equal(text, "f32 [3, 5] given back");
    assert_refused(oar_tensor_read(y, OAR_F32, number));
    assert_refused(oar_tensor_write(y, OAR_F32, number));
    assert_refused(oar_tensor_fill(y, 1));
    assert_refused(oar_tensor_touch(y));
    assert_refused(oar_tensor_copy(w, y));
    assert_refused(oar_tensor_span(y, &span));
    assert_non_null(strstr(oar_last_error_text(), "[3, 5]"));
    assert_no_tensor(oar_relu(tape, y));
    assert_no_tensor(oar_reshape(tape, y, OAR_SHAPE(15)));
    assert_no_tensor(oar_tape_input(tape, y));
    assert_no_tensor(oar_linear(NULL, y, w, NULL));
    OK(oar_tensor_item(loss, &value)); /* a root stays */
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void a_referenced_result_stays_readable(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(7), 1);
    oar_tensor *kept = oar_tensor_retain(oar_scale(tape, w, 2));
    oar_tensor *y = oar_scale(tape, kept, 3);
    oar_tensor *view = oar_tensor_retain(oar_narrow(tape, y, 0, 2, 3));
    oar_tensor *z = oar_scale(tape, y, 5);
    oar_storage *storage = oar_storage_retain(oar_tensor_storage(z));
    const float *held = oar_storage_data(storage);
    float first = held[0], number[7];

    OK(oar_backward(tape, oar_sum(tape, z)));
    for (int i = 0; i < 5; i++) /* would use the memory again */
        oar_full(tape, OAR_F32, OAR_SHAPE(7), 9);
    OK(oar_tensor_read(kept, OAR_F32, number));
    assert_true(number[2] == 2 * ((float *)oar_tensor_data(w))[2]);
    OK(oar_tensor_read(view, OAR_F32, number));
    assert_true(number[0] == 6 * ((float *)oar_tensor_data(w))[2]);
    assert_true(held[0] == first);
    oar_storage_release(storage);
    oar_tape_destroy(tape);
    OK(oar_tensor_read(kept, OAR_F32, number));
    oar_tensor_release(kept);
    oar_tensor_release(view);
    oar_tensor_release(w);
}

static void an_export_keeps_its_memory(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(5), 1), *y = oar_scale(tape, w, 2), *in;
    struct DLManagedTensorVersioned *out = NULL;
    float number[5];

    OK(oar_dlpack_export(y, &out));
    OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, y, y))));
    for (int i = 0; i < 5; i++)
        oar_full(tape, OAR_F32, OAR_SHAPE(5), 9);
    in = oar_dlpack_import(NULL, out);
    assert_non_null(in);
    OK(oar_tensor_read(in, OAR_F32, number));
    assert_true(number[4] == 2 * ((float *)oar_tensor_data(w))[4]);
    oar_tensor_release(in);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void inputs_and_other_computations_stay(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(3), 4);
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *in = oar_tape_input(tape, x);
    oar_tensor *one = oar_mul(tape, in, w), *two = oar_mul(tape, w, w);
    float number[3];

    OK(oar_backward(tape, oar_sum(tape, one)));
    OK(oar_tensor_read(in, OAR_F32, number));
    OK(oar_tensor_read(two, OAR_F32, number));
    OK(oar_backward(tape, oar_sum(tape, two)));
    assert_null(oar_tensor_data(two));
    assert_true(((float *)oar_tensor_data(oar_tensor_grad(in)))[0] ==
                ((float *)oar_tensor_data(w))[0]);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

/* The gradient of a sum is shared by what was added, until one of them is
 * written to: here by operations that work in place. */
static void a_shared_gradient_is_parted_before_it_is_written(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *twice, *sum;

    twice = oar_scale(tape, w, 2);
    sum = oar_add(tape, oar_neg(tape, twice), oar_scale(tape, w, 4));
    sum = oar_add(tape, oar_add(tape, sum, sum), twice);
    OK(oar_backward(tape, oar_sum(tape, sum)));
    for (int i = 0; i < 3; i++) /* 2 (-2 + 4) + 2 */
        assert_true(((float *)oar_tensor_data(oar_tensor_grad(w)))[i] == 6);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* Forward without a record needs little more than its largest results. */
static void without_a_record_a_model_keeps_nothing_inside(void **state)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(16, 64), 1, 0, 65);
    size_t unit = (size_t)16 * 64 * 32 * sizeof(float);
    oar_module *net;
    uint64_t before;

    o.vocabulary = 65;
    o.width = 32;
    o.layers = 6;
    OK(oar_gpt_create(&o, &net));
    oar_tape_record(tape, 0);
    before = memory_now().live_bytes;
    assert_non_null(oar_forward(tape, net, x));
    before = memory_now().live_bytes - before;
    if (before > 30 * unit) /* one block has 18, and there are 6 */
        fail_msg("%llu bytes for units of %zu", (unsigned long long)before,
                 unit);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_release(x);
}

/* ---- changed after it was saved ------------------------------------------ */

static void assert_changed(oar_status status, const char *op)
{
    assert_int_equal(status, OAR_E_STATE);
    assert_non_null(
        strstr(oar_last_error_text(), "changed after it was saved"));
    assert_non_null(strstr(oar_last_error_text(), op));
    assert_non_null(strstr(oar_last_error_text(), "[3, 5]"));
}

static void what_was_saved_must_not_change_before_backward(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3, 5), 1),
               *other = leaf_of(OAR_SHAPE(3, 5), 2);
    float number[15] = { 0 };

    for (int way = 0; way < 4; way++) {
        oar_tensor *loss = oar_sum(tape, oar_mul(tape, w, other));

        if (way == 0)
            OK(oar_tensor_fill(other, 3));
        else if (way == 1)
            OK(oar_tensor_copy(other, w));
        else if (way == 2)
            OK(oar_tensor_write(other, OAR_F32, number));
        else
            OK(oar_tensor_touch(other)); /* written through a pointer */
        assert_changed(oar_backward(tape, loss), "mul");
        oar_tape_reset(tape);
    }
    OK(oar_tensor_fill(w, 3)); /* before it is saved: fine */
    OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, w, other))));
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(other);
}

static void a_step_between_forward_and_backward_is_refused(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 5), 1);
    oar_module *net;
    oar_optim *sgd;

    OK(oar_linear_create(5, 3, 1, NULL, &net));
    OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .lr = 1), &sgd));
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    oar_tensor *loss = oar_sum(tape, oar_forward(tape, net, x));
    OK(oar_optim_step(sgd));
    assert_changed(oar_backward(tape, loss), "linear");
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_release(x);
}

static oar_status clear_it(oar_tensor *leaf, void *arg)
{
    return oar_tensor_fill(leaf, 0);
}

/* An optimizer may step as soon as a gradient is there. */
static void a_hook_may_change_the_weight_whose_gradient_is_ready(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 5), 1),
               *w = leaf_of(OAR_SHAPE(3, 5), 2);
    float before[10];
    oar_hook *hook;

    OK(oar_backward(tape, oar_sum(tape, oar_linear(tape, x, w, NULL))));
    OK(oar_tensor_read(oar_tensor_grad(x), OAR_F32, before));
    oar_tensor_clear_grad(x);
    oar_tape_reset(tape);
    OK(oar_tensor_on_grad(w, clear_it, NULL, &hook));
    OK(oar_backward(tape, oar_sum(tape, oar_linear(tape, x, w, NULL))));
    assert_true(((float *)oar_tensor_data(w))[0] == 0);
    assert_memory_equal(before, oar_tensor_data(oar_tensor_grad(x)),
                        sizeof before);
    oar_hook_remove(hook);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

/* ---- computed again ------------------------------------------------------ */

enum { BATCH = 3, TIME = 7, LAYERS = 5, WIDTH = 12 };

static oar_module *new_gpt(oar_dtype dtype, oar_activation activation,
                           double dropout)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *net;

    o.vocabulary = 11;
    o.context = TIME;
    o.width = WIDTH;
    o.heads = 3;
    o.layers = LAYERS;
    o.seed = 3;
    o.dtype = dtype;
    o.activation = activation;
    o.dropout = dropout;
    OK(oar_gpt_create(&o, &net));
    return net;
}

static oar_status look_on(oar_tape *tape, oar_module *module, void *arg)
{
    return OAR_OK;
}

/* A module with hooks keeps its result: nothing is rebuilt. The hooks go with
 * the module. */
static void watch(oar_module *module)
{
    oar_hook *hook;

    OK(oar_module_on(module, OAR_AFTER_BACKWARD, look_on, NULL, &hook));
    for (int i = 0; i < oar_module_children(module); i++)
        watch(oar_module_child(module, i));
}

/* Two steps; the growth of live memory in the first. */
static uint64_t run(oar_module *net, oar_tape *tape, int halves)
{
    oar_tensor *x =
        oar_uniform(NULL, OAR_I64, OAR_SHAPE(BATCH, TIME), 1, 0, 11);
    oar_tensor *y =
        oar_uniform(NULL, OAR_I64, OAR_SHAPE(BATCH * TIME), 2, 0, 11);
    uint64_t before = memory_now().live_bytes, grown = 0;

    for (int i = 0; i < 2; i++) {
        oar_tensor *loss =
            oar_cross_entropy(tape, oar_forward(tape, net, x), y);

        if (halves) {
            OK(oar_backward_inputs(tape, 1, &loss, NULL));
            OK(oar_backward_weights(tape));
        } else {
            OK(oar_backward(tape, loss));
        }
        oar_tape_reset(tape);
        grown = i == 0 ? memory_now().live_bytes - before : grown;
    }
    oar_tensor_release(x);
    oar_tensor_release(y);
    return grown;
}

static void assert_same_grads(const oar_module *a, const oar_module *b)
{
    for (int i = 0; i < oar_module_params(a); i++) {
        const oar_tensor *p = oar_tensor_grad(oar_module_param(a, i));
        const oar_tensor *q = oar_tensor_grad(oar_module_param(b, i));

        assert_memory_equal(oar_tensor_data(p), oar_tensor_data(q),
                            (size_t)oar_tensor_count(p) *
                                oar_dtype_size(oar_tensor_dtype(p)));
    }
}

static void rebuilding_gives_the_bits_that_keeping_gives(void **state)
{
    static const oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_BF16 };
    static const oar_activation kinds[] = { OAR_GELU, OAR_GELU_TANH, OAR_SILU,
                                            OAR_RELU };

    for (int i = 0; i < 3 * 4 * 2; i++) {
        oar_dtype dtype = dtypes[i % 3];
        oar_activation kind = kinds[i / 3 % 4];
        oar_module *one = new_gpt(dtype, kind, i % 2 ? 0.1 : 0);
        oar_module *two = new_gpt(dtype, kind, i % 2 ? 0.1 : 0);
        oar_tape *first = new_tape(), *second = new_tape();

        watch(two);
        assert_true(run(one, first, i >= 12) < run(two, second, i >= 12));
        assert_same_grads(one, two);
        oar_tape_destroy(first);
        oar_tape_destroy(second);
        oar_module_release(one);
        oar_module_release(two);
    }
}

static void products_are_kept_where_that_is_wanted(void **state)
{
    oar_module *one = new_gpt(OAR_F32, OAR_GELU, 0);
    oar_module *two = new_gpt(OAR_F32, OAR_GELU, 0);
    oar_tape *first = new_tape(), *second = new_tape();

    assert_int_equal(oar_tape_rebuild(second, 0), 1);
    assert_int_equal(oar_tape_rebuild(second, 0), 0);
    assert_true(run(one, first, 0) < run(two, second, 0));
    assert_same_grads(one, two);
    oar_tape_destroy(first);
    oar_tape_destroy(second);
    oar_module_release(one);
    oar_module_release(two);
}

static uint64_t bytes_of_params(const oar_module *net)
{
    uint64_t bytes = 0;

    for (int i = 0; i < oar_module_params(net); i++)
        bytes += (uint64_t)oar_tensor_count(oar_module_param(net, i)) * 4;
    return bytes;
}

/* One u is a number for each position and each of the width. Kept from forward:
 * x before and after attention and its result, 3 u a block, q, k and v, 3 u,
 * except in the first quarter of the blocks, and x at the end. Of the largest
 * block, besides: the hidden layer twice, 8 u, and three wanderers. */
static void a_step_takes_no_more_memory_than_it_should(void **state)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(8, 32), 1, 0, 11);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(8 * 32), 2, 0, 11);
    uint64_t u = (uint64_t)8 * 32 * 64 * sizeof(float), most, small;

    o.vocabulary = 11;
    o.width = 64;
    o.layers = 4;
    for (int kept = 0; kept < 2; kept++) {
        oar_tape *tape = new_tape();
        oar_module *net;
        uint64_t grown;

        OK(oar_gpt_create(&o, &net));
        if (kept)
            watch(net);
        grown = memory_now().live_bytes;
        OK(oar_backward(tape,
                        oar_cross_entropy(tape, oar_forward(tape, net, x), y)));
        grown = memory_now().live_bytes - grown;
        small = 200 * 1024; /* nodes, tensors, numbers for each row */
        if (oari_dnnl_takes(OAR_F32, 256, 64, 256)) /* its scratch memory */
            small += 6 * u;
        most = (4 * 3 + 3 * 3 + 1 + 8 + 3) * u + bytes_of_params(net) + small;
        if (kept ? grown <= most : grown > most)
            fail_msg("%s: %llu bytes, the bound is %llu",
                     kept ? "nothing rebuilt" : "rebuilt",
                     (unsigned long long)grown, (unsigned long long)most);
        oar_tape_destroy(tape);
        oar_module_release(net);
    }
    oar_tensor_release(x);
    oar_tensor_release(y);
}

/* ---- the pool ------------------------------------------------------------ */

static oar_tensor *take(oari_pool *pool, int64_t bytes)
{
    oar_tensor *t = oari_tensor_make(pool, OAR_U8, OAR_SHAPE(bytes));

    assert_non_null(t);
    return t;
}

static void a_pool_lends_larger_storages_only_while_it_should(void **state)
{
    oari_pool pool = { 0 };
    oar_tensor *t = take(&pool, 2048), *small;
    const oar_storage *large = t->storage;

    oari_tensor_drop(&pool, t);
    small = take(&pool, 1536);
    assert_ptr_not_equal(small->storage, large);
    pool.lends = OARI_LENDS_LARGE;
    t = take(&pool, 1536);
    assert_ptr_equal(t->storage, large);
    oari_tensor_drop(&pool, t);
    t = take(&pool, 1024); /* half the size: too small */
    assert_ptr_not_equal(t->storage, large);
    oari_tensor_drop(&pool, t);
    oari_tensor_drop(&pool, small);
    oari_pool_close(&pool);
}

static void a_pool_takes_the_oldest_offer_that_still_stands(void **state)
{
    oari_pool pool = { 0 };
    oar_tensor *t[4], *more;
    const oar_storage *storage;

    for (int i = 0; i < 4; i++) {
        t[i] = take(&pool, i == 0 ? 4096 : 1024);
        OK(oari_pool_own(&pool, t[i]));
    }
    for (int i = 0; i < 4; i++)
        oari_pool_offer(&pool, t[i]);
    oar_tensor_retain(t[1]); /* it is referenced after all */
    storage = t[2]->storage;
    more = take(&pool, 1000);
    assert_ptr_equal(more->storage, storage);
    assert_null(t[2]->storage);
    assert_non_null(t[0]->storage);
    assert_non_null(t[1]->storage);
    assert_non_null(t[3]->storage);
    oari_tensor_drop(&pool, more);
    oari_pool_reset(&pool);
    oar_tensor_release(t[1]);
    oari_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_result_is_given_back_and_refused_afterwards),
        cmocka_unit_test(a_referenced_result_stays_readable),
        cmocka_unit_test(an_export_keeps_its_memory),
        cmocka_unit_test(inputs_and_other_computations_stay),
        cmocka_unit_test(a_shared_gradient_is_parted_before_it_is_written),
        cmocka_unit_test(without_a_record_a_model_keeps_nothing_inside),
        cmocka_unit_test(what_was_saved_must_not_change_before_backward),
        cmocka_unit_test(a_step_between_forward_and_backward_is_refused),
        cmocka_unit_test(a_hook_may_change_the_weight_whose_gradient_is_ready),
        cmocka_unit_test(rebuilding_gives_the_bits_that_keeping_gives),
        cmocka_unit_test(products_are_kept_where_that_is_wanted),
        cmocka_unit_test(a_step_takes_no_more_memory_than_it_should),
        cmocka_unit_test(a_pool_lends_larger_storages_only_while_it_should),
        cmocka_unit_test(a_pool_takes_the_oldest_offer_that_still_stands),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
