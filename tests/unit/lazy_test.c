/* SPDX-License-Identifier: Apache-2.0 */
/* Lazy tensors: models built without memory, made whole or in ranges with the
 * bits they have when built at once; and what refuses them until then. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/dlpack.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/safetensors.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"

typedef oar_status (*build_fn)(oar_module **module);

/* ---- models -------------------------------------------------------------- */

static oar_status build_gpt(oar_module **module)
{
    return oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 37, .context = 9,
                                   .width = 12, .heads = 3, .layers = 3,
                                   .seed = 5),
                          module);
}

static oar_status build_tied_gpt(oar_module **module)
{
    return oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .vocabulary = 37, .context = 9, .width = 24,
                 .heads = 6, .layers = 2, .kv_heads = 3, .rotary = 1, .tied = 1,
                 .dropout = 0.1, .dtype = OAR_BF16, .seed = UINT64_MAX - 40),
        module);
}

static oar_status build_cnn(oar_module **module)
{
    return oar_cnn_create(OAR_OPTS(oar_cnn_opts, .channels = 3, .image = 9,
                                   .width = 5, .classes = 7, .seed = 11),
                          module);
}

static oar_status build_f64_cnn(oar_module **module)
{
    return oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = 5, .dtype = OAR_F64),
                          module);
}

static oar_status build_padded_table(oar_module **module)
{
    return oar_embedding_create_with(
        13, 7, 3,
        OAR_OPTS(oar_embedding_layer_opts, .has_padding = 1, .padding = -2,
                 .deviation = 0.3, .dtype = OAR_F16),
        module);
}

static oar_status build_transposed(oar_module **module)
{
    return oar_conv_transpose2d_create(3, 5, 3, 2, 8, NULL, module);
}

static oar_status build_conv1d(oar_module **module)
{
    return oar_conv1d_create(3, 5, 3, 8, NULL, module);
}

static oar_status build_group_norm(oar_module **module)
{
    return oar_group_norm_create(3, 9, NULL, module);
}

static oar_status build_rms_norm(oar_module **module)
{
    return oar_rms_norm_create(11, 0, OAR_F64, module);
}

static const build_fn builds[] = { build_gpt,          build_tied_gpt,
                                   build_cnn,          build_f64_cnn,
                                   build_padded_table, build_transposed,
                                   build_conv1d,       build_group_norm,
                                   build_rms_norm };
enum { BUILDS = sizeof builds / sizeof *builds };

static oar_status build_lazily(build_fn build, oar_module **module)
{
    int before = oar_lazy(1);
    oar_status status = build(module);

    oar_lazy(before);
    return status;
}

/* Parameters first, then buffers; NULL after the last. */
static oar_tensor *state_at(const oar_module *module, int i)
{
    int params = oar_module_params(module);

    return i < params ? oar_module_param(module, i)
                      : oar_module_buffer(module, i - params);
}

static size_t bytes_of(const oar_tensor *t)
{
    return (size_t)oar_tensor_count(t) * oar_dtype_size(oar_tensor_dtype(t));
}

static void assert_same_bits(const oar_tensor *a, const oar_tensor *b)
{
    assert_int_equal(bytes_of(a), bytes_of(b));
    assert_memory_equal(oar_tensor_const_data(a), oar_tensor_const_data(b),
                        bytes_of(a));
}

/* ---- the same bits ------------------------------------------------------- */

static void a_model_built_lazily_is_the_one_built_at_once(void **state)
{
    leak_check before = leak_check_begin();

    for (int k = 0; k < BUILDS; k++) {
        oar_module *whole, *lazy;
        int i;

        OK(builds[k](&whole));
        OK(build_lazily(builds[k], &lazy));
        assert_int_equal(oar_module_params(lazy), oar_module_params(whole));
        for (i = 0; state_at(whole, i) != NULL; i++) {
            oar_tensor *t = state_at(lazy, i);

            assert_true(oar_tensor_is_lazy(t));
            assert_false(oar_tensor_is_lazy(state_at(whole, i)));
            assert_null(oar_tensor_const_data(t));
            assert_int_equal(oar_tensor_requires_grad(t),
                             oar_tensor_requires_grad(state_at(whole, i)));
            OK(oar_tensor_realize(t));
            assert_false(oar_tensor_is_lazy(t));
            OK(oar_tensor_realize(t)); /* twice is fine */
            assert_same_bits(t, state_at(whole, i));
        }
        assert_true(i > 0);
        assert_null(state_at(lazy, i));
        oar_module_release(whole);
        oar_module_release(lazy);
    }
    leak_check_end(&before);
}

/* Makes t in `parts` ranges that are nearly equal. The caller frees. */
static void *make_in_parts(const oar_tensor *t, int parts, oar_dtype dtype)
{
    int64_t count = oar_tensor_count(t), done = 0;
    size_t size = oar_dtype_size(dtype);
    char *made = malloc((size_t)count * size + 1);

    assert_non_null(made);
    for (int p = 0; p < parts; p++) {
        int64_t n = count / parts + (p < count % parts);

        OK(oar_tensor_make_range(t, done, n, dtype,
                                 made + (size_t)done * size));
        done += n;
    }
    assert_int_equal(done, count);
    return made;
}

static void ranges_have_the_same_bits_however_a_model_is_cut(void **state)
{
    static const int parts[] = { 1, 2, 3, 5, 64 };

    for (int k = 0; k < BUILDS; k++) {
        oar_module *whole, *lazy;

        OK(builds[k](&whole));
        OK(build_lazily(builds[k], &lazy));
        for (int i = 0; state_at(whole, i) != NULL; i++)
            for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
                oar_tensor *t = state_at(whole, i);
                void *made = make_in_parts(state_at(lazy, i), parts[n],
                                           oar_tensor_dtype(t));

                assert_memory_equal(made, oar_tensor_const_data(t),
                                    bytes_of(t));
                assert_true(oar_tensor_is_lazy(state_at(lazy, i)));
                free(made);
            }
        oar_module_release(whole);
        oar_module_release(lazy);
    }
}

static oar_tensor *make_by(int rule, oar_dtype dtype, oar_shape shape)
{
    switch (rule) {
    case 0: return oar_zeros(NULL, dtype, shape);
    case 1: return oar_ones(NULL, dtype, shape);
    case 2: return oar_full(NULL, dtype, shape, 3);
    case 3: return oar_uniform(NULL, dtype, shape, 9, -3, 100);
    default: return oar_normal(NULL, dtype, shape, 9, 0.5, 2);
    }
}

static void every_start_and_length_of_a_range_has_the_same_bits(void **state)
{
    enum { COUNT = 41 };
    double got[COUNT], want[COUNT];

    for (int rule = 0; rule < 5; rule++)
        for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
            size_t size = oar_dtype_size((oar_dtype)d);
            oar_tensor *whole = make_by(rule, (oar_dtype)d, OAR_SHAPE(COUNT));
            oar_tensor *lazy;

            if (whole == NULL) /* normal integers */
                continue;
            oar_lazy(1);
            lazy = make_by(rule, (oar_dtype)d, OAR_SHAPE(COUNT));
            oar_lazy(0);
            for (int64_t first = 0; first <= COUNT; first++)
                for (int64_t n = 0; n <= COUNT - first; n++) {
                    memset(got, 0x5a, sizeof got);
                    memset(want, 0x5a, sizeof want);
                    memcpy(want,
                           (const char *)oar_tensor_const_data(whole) +
                               (size_t)first * size,
                           (size_t)n * size);
                    OK(oar_tensor_make_range(lazy, first, n, (oar_dtype)d,
                                             got));
                    assert_memory_equal(got, want, sizeof got);
                }
            oar_tensor_release(whole);
            oar_tensor_release(lazy);
        }
    oar_clear_error();
}

static void a_range_of_another_dtype_is_what_reading_gives(void **state)
{
    enum { COUNT = 1001 };
    static float got[COUNT], want[COUNT];
    static uint16_t half[COUNT], want_half[COUNT];
    oar_tensor *lazy, *whole;

    oar_lazy(1);
    lazy = oar_normal(NULL, OAR_BF16, OAR_SHAPE(7, 143), 3, 0, 1);
    oar_lazy(0);
    whole = oar_normal(NULL, OAR_BF16, OAR_SHAPE(7, 143), 3, 0, 1);
    OK(oar_tensor_read(whole, OAR_F32, want));
    OK(oar_tensor_make_range(lazy, 0, 500, OAR_F32, got));
    OK(oar_tensor_make_range(lazy, 500, COUNT - 500, OAR_F32, got + 500));
    assert_memory_equal(got, want, sizeof got);
    oar_tensor_release(lazy);
    oar_tensor_release(whole);

    oar_lazy(1);
    lazy = oar_uniform(NULL, OAR_F32, OAR_SHAPE(COUNT), 3, -1, 1);
    oar_lazy(0);
    whole = oar_uniform(NULL, OAR_F32, OAR_SHAPE(COUNT), 3, -1, 1);
    OK(oar_tensor_read(whole, OAR_F16, want_half));
    OK(oar_tensor_make_range(lazy, 0, COUNT, OAR_F16, half));
    assert_memory_equal(half, want_half, sizeof half);
    oar_tensor_release(lazy);
    oar_tensor_release(whole);
}

static double loss_of(oar_module *net)
{
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(2, 9), 1, 0, 37);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(18), 2, 0, 37);
    double loss = 0;
    oar_optim *sgd;
    oar_tape *tape;

    OK(oar_sgd_create(net, NULL, &sgd));
    OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        oar_tensor *l = oar_cross_entropy(tape, oar_forward(tape, net, x), y);

        OK(oar_backward(tape, l));
        OK(oar_tensor_item(l, &loss));
        OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_tensor_release(x);
    oar_tensor_release(y);
    return loss;
}

static void a_realized_model_trains_as_the_other(void **state)
{
    oar_module *whole, *lazy;

    OK(build_gpt(&whole));
    OK(build_lazily(build_gpt, &lazy));
    for (int i = 0; state_at(lazy, i) != NULL; i++)
        OK(oar_tensor_realize(state_at(lazy, i)));
    assert_true(loss_of(whole) == loss_of(lazy));
    oar_module_release(whole);
    oar_module_release(lazy);
}

/* ---- memory -------------------------------------------------------------- */

static oar_status build_huge(oar_module **module)
{
    return oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 50257,
                                   .context = 8192, .width = 16384,
                                   .heads = 128, .layers = 17, .seed = 1),
                          module);
}

static void a_model_that_no_memory_holds_can_be_built(void **state)
{
    enum { PART = 1003 };
    uint64_t before = memory_now().live_bytes;
    float whole[PART], part[PART];
    double bytes = 0;
    oar_module *net;

    OK(build_lazily(build_huge, &net));
    for (int i = 0; state_at(net, i) != NULL; i++) {
        const oar_tensor *t = state_at(net, i);
        int64_t count = oar_tensor_count(t), at = count - PART;

        bytes += (double)bytes_of(t);
        OK(oar_tensor_make_range(t, at, PART, OAR_F32, whole));
        OK(oar_tensor_make_range(t, at, 333, OAR_F32, part));
        OK(oar_tensor_make_range(t, at + 333, PART - 333, OAR_F32, part + 333));
        assert_memory_equal(whole, part, sizeof whole);
    }
    assert_true(bytes > 200.0 * (1 << 30));
    assert_true(memory_now().live_bytes - before < 1 << 20);
    oar_module_release(net);
    assert_int_equal(memory_now().live_bytes, before);
}

static oar_status build_and_realize(void *arg)
{
    oar_module *net = NULL;
    oar_status status = build_lazily(*(const build_fn *)arg, &net);

    for (int i = 0; status == OAR_OK && state_at(net, i) != NULL; i++)
        status = oar_tensor_realize(state_at(net, i));
    oar_module_release(net);
    return status;
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    for (int k = 0; k < BUILDS; k++) {
        build_fn build = builds[k];

        fail_each_allocation(build_and_realize, &build);
    }
}

static void a_tensor_that_gets_no_memory_stays_lazy(void **state)
{
    oar_tensor *t;
    double first;

    oar_lazy(1);
    t = oar_full(NULL, OAR_F32, OAR_SHAPE(5), 2.5);
    oar_lazy(0);
    oar_memory_fail_after(1);
    assert_int_equal(oar_tensor_realize(t), OAR_E_NOMEM);
    oar_memory_fail_after(0);
    assert_true(oar_tensor_is_lazy(t));
    OK(oar_tensor_make_range(t, 4, 1, OAR_F64, &first));
    assert_true(first == 2.5);
    OK(oar_tensor_realize(t));
    oar_tensor_release(t);
}

/* ---- the switch ---------------------------------------------------------- */

static void *make_elsewhere(void *arg)
{
    *(oar_tensor **)arg = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    return NULL;
}

static void the_switch_is_the_threads_and_spares_tapes(void **state)
{
    oar_tensor *here, *there, *on_tape, *given, *eye;
    pthread_t thread;
    oar_tape *tape;

    assert_int_equal(oar_lazy(1), 0);
    assert_int_equal(oar_lazy(7), 1);
    OK(oar_tape_create(&tape));
    on_tape = oar_ones(tape, OAR_F32, OAR_SHAPE(3));
    here = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    given = oar_from_data(NULL, OAR_F32, OAR_SHAPE(1), &(float){ 2 });
    eye = oar_eye(NULL, OAR_F32, 2, 2);
    assert_int_equal(pthread_create(&thread, NULL, make_elsewhere, &there), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(oar_lazy(0), 1);
    assert_int_equal(oar_lazy(0), 0);
    assert_true(oar_tensor_is_lazy(here));
    assert_false(oar_tensor_is_lazy(there));
    assert_false(oar_tensor_is_lazy(on_tape));
    assert_false(oar_tensor_is_lazy(given));
    assert_false(oar_tensor_is_lazy(eye));
    assert_false(oar_tensor_is_lazy(NULL));
    oar_tape_destroy(tape);
    oar_tensor_release(here);
    oar_tensor_release(there);
    oar_tensor_release(given);
    oar_tensor_release(eye);
}

static void an_optimizer_made_while_lazy_has_real_state(void **state)
{
    oar_tensor *leaf = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    oar_optim *adam;
    oar_tape *tape;
    double sum;

    OK(oar_tensor_require_grad(leaf, 1));
    oar_lazy(1);
    OK(oar_adam_create_over(1, &leaf, NULL, &adam));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    OK(oar_optim_step(adam));
    assert_int_equal(oar_lazy(0), 1);
    OK(oar_tensor_item(oar_sum(tape, leaf), &sum));
    assert_true(sum < 3);
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_tensor_release(leaf);
}

/* ---- refusals ------------------------------------------------------------ */

static oar_tensor *lazy_of(oar_shape shape)
{
    oar_tensor *made;

    oar_lazy(1);
    made = oar_normal(NULL, OAR_F32, shape, 1, 0, 1);
    oar_lazy(0);
    return made;
}

static void assert_none(const oar_tensor *result)
{
    assert_null(result);
    assert_fails_with(oar_last_error()->status, OAR_E_STATE, "lazy");
    oar_clear_error();
}

static void whatever_needs_the_numbers_says_that_it_is_lazy(void **state)
{
    oar_tensor *t = lazy_of(OAR_SHAPE(3, 3));
    oar_tensor *real = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 3));
    struct DLManagedTensorVersioned *out;
    float number[9] = { 0 };
    oar_span span;
    char text[40];

    assert_none(oar_matmul(NULL, t, real));
    assert_none(oar_add(NULL, real, t));
    assert_none(oar_transpose(NULL, t, 0, 1));
    assert_none(oar_contiguous(NULL, t));
    assert_fails_with(oar_tensor_copy(real, t), OAR_E_STATE, "lazy");
    assert_fails_with(oar_tensor_copy(t, real), OAR_E_STATE, "lazy");
    assert_fails_with(oar_tensor_fill(t, 1), OAR_E_STATE, "lazy");
    assert_fails_with(oar_tensor_read(t, OAR_F32, number), OAR_E_STATE, "lazy");
    assert_fails_with(oar_tensor_write(t, OAR_F32, number), OAR_E_STATE,
                      "lazy");
    assert_fails_with(oar_tensor_touch(t), OAR_E_STATE, "lazy");
    assert_fails_with(oar_tensor_span(t, &span), OAR_E_STATE, "lazy");
    assert_fails_with(oar_dlpack_export(t, &out), OAR_E_STATE, "lazy");
    assert_int_equal(oar_tensor_text(t, text, sizeof text), 15);
    assert_string_equal(text, "f32 [3, 3] lazy");
    oar_tensor_release(t);
    oar_tensor_release(real);
}

static void nothing_trains_or_saves_a_lazy_model(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3, 9, 9)), *param;
    oar_module *lazy, *real;
    char path[FOLDER_PATH], file[FOLDER_PATH + 8];
    const char *name = "w";
    oar_optim *sgd;
    double norm;

    OK(build_cnn(&real));
    OK(build_lazily(build_cnn, &lazy));
    param = oar_module_param(lazy, 0);
    assert_none(oar_forward(NULL, lazy, x));
    assert_fails_with(oar_sgd_create(lazy, NULL, &sgd), OAR_E_STATE, "lazy");
    assert_fails_with(oar_clip_grad_norm(1, &param, 1, &norm), OAR_E_STATE,
                      "lazy");
    assert_fails_with(oar_module_load(lazy, real, 1), OAR_E_STATE, "lazy");
    assert_fails_with(oar_module_load(real, lazy, 1), OAR_E_STATE, "lazy");
    folder_make(path);
    snprintf(file, sizeof file, "%s/w", path);
    assert_fails_with(oar_safetensors_save(file, 1, &name, &param, 0, NULL),
                      OAR_E_STATE, "lazy");
    assert_int_equal(folder_entries(path), 0);
    assert_int_equal(folder_remove(path), 0);
    oar_module_release(lazy);
    oar_module_release(real);
    oar_tensor_release(x);
}

static void a_batch_norm_with_lazy_buffers_is_refused(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(4, 3));
    oar_module *norm;

    oar_lazy(1);
    OK(oar_batch_norm_create(
        1, 3, OAR_OPTS(oar_batch_norm_opts, .no_affine = 1), &norm));
    oar_lazy(0);
    assert_none(oar_forward(NULL, norm, x));
    OK(oar_tensor_realize(oar_module_buffer(norm, 2)));
    assert_none(oar_forward(NULL, norm, x));
    oar_module_release(norm);
    oar_tensor_release(x);
}

static void wrong_ranges_are_refused(void **state)
{
    oar_tensor *t = lazy_of(OAR_SHAPE(5)), *real, *view;
    float number[5];

    OK(oar_tensor_make_range(t, 5, 0, OAR_F32, NULL));
    assert_fails_with(oar_tensor_make_range(t, 5, 1, OAR_F32, number),
                      OAR_E_ARG, "no such range");
    assert_fails_with(oar_tensor_make_range(t, -1, 1, OAR_F32, number),
                      OAR_E_ARG, "no such range");
    assert_fails_with(oar_tensor_make_range(t, 1, -1, OAR_F32, number),
                      OAR_E_ARG, "no such range");
    assert_fails_with(
        oar_tensor_make_range(t, INT64_MAX, INT64_MAX, OAR_F32, number),
        OAR_E_ARG, "no such range");
    assert_fails_with(oar_tensor_make_range(t, 0, 1, OAR_F32, NULL), OAR_E_ARG,
                      "nowhere");
    assert_int_equal(oar_tensor_make_range(t, 0, 1, (oar_dtype)99, number),
                     OAR_E_ARG);
    view = oar_view_of(NULL, oar_tensor_storage(t), 1, OAR_I32, OAR_SHAPE(2));
    assert_fails_with(oar_tensor_make_range(view, 0, 1, OAR_I32, number),
                      OAR_E_ARG, "view");
    real = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5));
    assert_fails_with(oar_tensor_make_range(real, 0, 1, OAR_F32, number),
                      OAR_E_STATE, "not lazy");
    OK(oar_storage_detach(oar_tensor_storage(real)));
    assert_fails_with(oar_tensor_realize(real), OAR_E_STATE, "detached");
    oar_clear_error();
    assert_int_equal(oar_tensor_make_range(NULL, 0, 0, OAR_F32, NULL),
                     OAR_E_ARG);
    assert_int_equal(oar_tensor_realize(NULL), OAR_E_ARG);
    oar_tensor_release(view);
    oar_tensor_release(real);
    oar_tensor_release(t);
}

/* ---- other ends ---------------------------------------------------------- */

static void a_view_of_a_lazy_tensor_is_part_of_it(void **state)
{
    oar_tensor *t = lazy_of(OAR_SHAPE(11));
    oar_tensor *view =
        oar_view_of(NULL, oar_tensor_storage(t), 3, OAR_F32, OAR_SHAPE(2, 3));
    float whole[11], part[6];

    assert_true(oar_tensor_is_lazy(view));
    OK(oar_tensor_make_range(t, 0, 11, OAR_F32, whole));
    OK(oar_tensor_make_range(view, 0, 6, OAR_F32, part));
    assert_memory_equal(part, whole + 3, sizeof part);
    OK(oar_tensor_realize(view));
    assert_memory_equal(oar_tensor_const_data(t), whole, sizeof whole);
    oar_tensor_release(view);
    oar_tensor_release(t);
}

static void memory_from_elsewhere_ends_laziness(void **state)
{
    oar_tensor *t = lazy_of(OAR_SHAPE(4)), *moved = lazy_of(OAR_SHAPE(4));
    oar_storage *s = oar_tensor_storage(t);
    float number[4] = { 1, 2, 3, 4 };

    OK(oar_storage_detach(s)); /* nothing to detach */
    assert_true(oar_tensor_is_lazy(t));
    assert_int_equal(oar_storage_attach_read_only(s, NULL, NULL, NULL),
                     OAR_E_ARG);
    assert_true(oar_tensor_is_lazy(t));
    OK(oar_storage_attach(s, number, NULL, NULL));
    assert_false(oar_tensor_is_lazy(t));
    assert_true(number[3] == 4);
    OK(oar_tensor_rebase(moved, s, 0, OAR_F32));
    assert_false(oar_tensor_is_lazy(moved));
    OK(oar_storage_detach(s));
    assert_fails_with(oar_tensor_realize(t), OAR_E_STATE, "detached");
    oar_tensor_release(t);
    oar_tensor_release(moved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_built_lazily_is_the_one_built_at_once),
        cmocka_unit_test(ranges_have_the_same_bits_however_a_model_is_cut),
        cmocka_unit_test(every_start_and_length_of_a_range_has_the_same_bits),
        cmocka_unit_test(a_range_of_another_dtype_is_what_reading_gives),
        cmocka_unit_test(a_realized_model_trains_as_the_other),
        cmocka_unit_test(a_model_that_no_memory_holds_can_be_built),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
        cmocka_unit_test(a_tensor_that_gets_no_memory_stays_lazy),
        cmocka_unit_test(the_switch_is_the_threads_and_spares_tapes),
        cmocka_unit_test(an_optimizer_made_while_lazy_has_real_state),
        cmocka_unit_test(whatever_needs_the_numbers_says_that_it_is_lazy),
        cmocka_unit_test(nothing_trains_or_saves_a_lazy_model),
        cmocka_unit_test(a_batch_norm_with_lazy_buffers_is_refused),
        cmocka_unit_test(wrong_ranges_are_refused),
        cmocka_unit_test(a_view_of_a_lazy_tensor_is_part_of_it),
        cmocka_unit_test(memory_from_elsewhere_ends_laziness),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
