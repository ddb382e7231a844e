/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation with an input it cannot take: none, on another device,
 * without its data, of another dtype, of a shape that does not fit. Each is
 * refused with its status and a sentence that has the shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>

#include "tensor/tensor.h"
#include "unit/nn_cases.h"
#include "unit/ops_cases.h"

/* ---- every operation, every input ---------------------------------------- */

typedef struct checked_op {
    const char *name;
    case_fn fn;
    oar_tensor *in[GOLDEN_INPUTS]; /* leaves of f32, or i64 */
} checked_op;

static checked_op call_of(const char *name, case_fn fn)
{
    checked_op c = { name, fn, { NULL } };

    for (int i = 0; i < GOLDEN_INPUTS; i++)
        c.in[i] = golden_input(name, i, OAR_F32, 0);
    return c;
}

static void release(checked_op *c)
{
    for (int i = 0; i < GOLDEN_INPUTS; i++)
        oar_tensor_release(c->in[i]);
}

/* Runs without recording; gives the status, and drops the result. */
static oar_status run(const checked_op *c)
{
    oar_status status = OAR_OK;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_clear_error();
    if (c->fn(tape, c->in) == NULL)
        status = oar_last_error()->status;
    oar_tape_destroy(tape);
    return status;
}

/* The sentence has this shape, or that of a transpose, which some cases take
 * first. */
static void named(const checked_op *c, const oar_tensor *t)
{
    oar_shape shape = t->at.shape;

    for (int d = 0; d < shape.ndim; d++) {
        oar_shape turned = shape;

        if (d > 0) {
            turned.dim[d - 1] = shape.dim[d];
            turned.dim[d] = shape.dim[d - 1];
        }
        if (strstr(oar_last_error_text(), oari_shape_text(turned).text) != NULL)
            return;
    }
    if (strstr(oar_last_error_text(), oari_shape_text(shape).text) == NULL)
        fail_msg("%s: \"%s\" does not name %s", c->name, oar_last_error_text(),
                 oari_shape_text(shape).text);
}

static void expect(const checked_op *c, int i, oar_status got,
                   oar_status wanted)
{
    if (got != wanted)
        fail_msg("%s with a bad input %d: %s, not %s: %s", c->name, i,
                 oar_status_name(got), oar_status_name(wanted),
                 oar_last_error_text());
}

typedef void (*check_fn)(checked_op *c, int i);

/* All of ops_cases.h and nn_cases.h. */
static void each_input(check_fn check)
{
    for (int k = 0; k < OP_CASES + NN_CASES; k++) {
        checked_op c = k < OP_CASES ? call_of(op_cases[k].name, op_cases[k].fn)
                                    : call_of(nn_cases[k - OP_CASES].name,
                                              nn_cases[k - OP_CASES].fn);

        expect(&c, -1, run(&c), OAR_OK);
        for (int i = 0; i < GOLDEN_INPUTS; i++)
            if (c.in[i] != NULL)
                check(&c, i);
        release(&c);
    }
}

/* Weights and biases may be left out; nothing else. */
static int may_be_null(const checked_op *c, int i)
{
    return i > 0 && (strstr(c->name, "norm") != NULL ||
                     (i == 2 && strstr(c->name, "conv2d") != NULL));
}

static void check_null(checked_op *c, int i)
{
    oar_tensor *kept = c->in[i];

    c->in[i] = NULL;
    expect(c, i, run(c), may_be_null(c, i) ? OAR_OK : OAR_E_ARG);
    c->in[i] = kept;
}

static void null_is_refused_by_every_operation(void **state)
{
    each_input(check_null);
}

/* One of several inputs is on another device. Masks and indices are cast by
 * their cases, which a GPU would really do. */
static void check_device(checked_op *c, int i)
{
    if (!c->in[i]->slot.required || c->in[1] == NULL)
        return;
    c->in[i]->storage->device.kind = OAR_CUDA;
    expect(c, i, run(c), OAR_E_DEVICE);
    named(c, c->in[i]);
    c->in[i]->storage->device.kind = OAR_CPU;
}

static void inputs_on_two_devices_are_refused_by_every_operation(void **state)
{
    each_input(check_device);
}

static void check_detached(checked_op *c, int i)
{
    oar_tensor *kept = c->in[i];

    c->in[i] = oar_scale(NULL, kept, 1);
    OK(oar_storage_detach(c->in[i]->storage));
    expect(c, i, run(c), OAR_E_STATE);
    named(c, kept);
    oar_tensor_release(c->in[i]);
    c->in[i] = kept;
}

static void detached_data_is_refused_by_every_operation(void **state)
{
    each_input(check_detached);
}

/* ---- dtypes of layers' operations ---------------------------------------- */

static oar_tensor *as(oar_tensor *a, oar_dtype dtype)
{
    return oar_cast(NULL, a, dtype);
}

/* A float where an index is wanted, or an f64 among f32; alone, an integer
 * where floats are. A table of integers is fine: rows are only picked. */
static void check_dtype(checked_op *c, int i)
{
    int several = c->in[1] != NULL && oar_tensor_requires_grad(c->in[1]);
    oar_tensor *kept = c->in[i];

    if (strcmp(c->name, "embedding") == 0 && i == 0)
        return;
    c->in[i] = as(kept, several ? OAR_F64 : i > 0 ? OAR_F32 : OAR_I32);
    expect(c, i, run(c), OAR_E_DTYPE);
    named(c, kept);
    if (c->in[1] != NULL)
        named(c, c->in[0]);
    oar_tensor_release(c->in[i]);
    c->in[i] = kept;
}

static void other_dtypes_are_refused_by_operations_of_layers(void **state)
{
    for (int k = 0; k < NN_CASES; k++) {
        checked_op c = call_of(nn_cases[k].name, nn_cases[k].fn);

        for (int i = 0; i < GOLDEN_INPUTS; i++)
            if (c.in[i] != NULL)
                check_dtype(&c, i);
        release(&c);
    }
}

/* The same for what takes an index, a mask or bools. */
static void indices_and_masks_of_other_dtypes_are_refused(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 5));
    oar_tensor *b = oar_ones(NULL, OAR_F32, OAR_SHAPE(7));

#define REFUSED(made)                                                        \
    do {                                                                     \
        oar_clear_error();                                                   \
        assert_null(made);                                                   \
        assert_fails_with(oar_last_error()->status, OAR_E_DTYPE, "[3, 5]");  \
        assert_fails_with(oar_last_error()->status, OAR_E_DTYPE, "f32 [7]"); \
    } while (0)
    REFUSED(oar_index_select(NULL, a, 0, b));
    REFUSED(oar_take_along(NULL, a, 0, b));
    REFUSED(oar_tensor_scatter_add(NULL, a, 0, b, b));
    REFUSED(oar_embedding(NULL, a, b));
    REFUSED(oar_cross_entropy(NULL, a, b));
    REFUSED(oar_masked_fill(NULL, a, b, 0));
    REFUSED(oar_where(NULL, b, a, a));
    REFUSED(oar_logical_and(NULL, b, a));
#undef REFUSED
    oar_tensor_release(a);
    oar_tensor_release(b);
}

/* ---- shapes of layers' operations ---------------------------------------- */

static oar_tensor *ones(oar_shape shape)
{
    return oar_ones(NULL, OAR_F32, shape);
}

/* Refused as a shape, with all of these words. Takes the inputs. */
static void unfit(case_fn fn, const char *a_word, const char *b_word,
                  oar_tensor *x, oar_tensor *y, oar_tensor *z)
{
    checked_op c = { a_word, fn, { x, y, z } };

    expect(&c, 0, run(&c), OAR_E_SHAPE);
    assert_fails_with(oar_last_error()->status, OAR_E_SHAPE, a_word);
    assert_fails_with(oar_last_error()->status, OAR_E_SHAPE, b_word);
    release(&c);
}

NN_CASE(linear, oar_linear(tape, in[0], in[1], in[2]))
NN_CASE(batch_norm_running,
        oar_batch_norm(tape, in[0], NULL, NULL, in[1], in[2], 1, 0.1, 1e-3))
NN_CASE(layer_norm_bias, oar_layer_norm(tape, in[0], NULL, in[1], 1e-3))

static void shapes_that_do_not_fit_are_both_named(void **state)
{
    unfit(nn_linear, "[3, 5]", "[7, 4]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(7, 4)), NULL);
    unfit(nn_linear, "[7, 5]", "[6]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(7, 5)), ones(OAR_SHAPE(6)));
    unfit(nn_cross_entropy, "[3, 5]", "[4]", ones(OAR_SHAPE(3, 5)),
          oar_zeros(NULL, OAR_I64, OAR_SHAPE(4)), NULL);
    unfit(nn_mse, "[3, 5]", "[5, 3]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(5, 3)), NULL);
    unfit(nn_layer_norm, "[3, 5]", "[7]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(7)), NULL);
    unfit(nn_layer_norm_bias, "[3, 5]", "[3]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(3)), NULL);
    unfit(nn_rms_norm, "[3, 5]", "[7]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(7)), NULL);
    unfit(nn_batch_norm, "[3, 5]", "[7]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(7)), NULL);
    unfit(nn_batch_norm_running, "[3, 5]", "[4]", ones(OAR_SHAPE(3, 5)),
          ones(OAR_SHAPE(5)), ones(OAR_SHAPE(4)));
    unfit(nn_conv2d, "[1, 2, 3, 3]", "[2, 3, 2, 2]",
          ones(OAR_SHAPE(1, 2, 3, 3)), ones(OAR_SHAPE(2, 3, 2, 2)), NULL);
    unfit(nn_conv2d, "[2, 2, 4, 2]", "[1, 2, 3, 3]",
          ones(OAR_SHAPE(1, 2, 3, 3)), ones(OAR_SHAPE(2, 2, 4, 2)), NULL);
    unfit(nn_conv2d, "[2, 2, 1, 1]", "[3]", ones(OAR_SHAPE(1, 2, 3, 3)),
          ones(OAR_SHAPE(2, 2, 1, 1)), ones(OAR_SHAPE(3)));
    unfit(nn_embedding, "[5]", "[4]", ones(OAR_SHAPE(5)),
          oar_zeros(NULL, OAR_I64, OAR_SHAPE(4)), NULL);
    unfit(nn_attention, "[2, 3, 5]", "[2, 7, 4]", ones(OAR_SHAPE(2, 3, 5)),
          ones(OAR_SHAPE(2, 7, 4)), ones(OAR_SHAPE(2, 7, 4)));
    unfit(nn_attention, "[2, 6, 5]", "[2, 7, 4]", ones(OAR_SHAPE(2, 3, 5)),
          ones(OAR_SHAPE(2, 6, 5)), ones(OAR_SHAPE(2, 7, 4)));
}

/* ---- the size of attention ----------------------------------------------- */

/* All heads' weights at once would be 8 x 300 x 300 numbers. What the tape's
 * pool holds after both passes is the most there was at any time. */
static void attention_never_holds_the_weights_of_all_heads(void **state)
{
    enum { HEADS = 8, T = 300, D = 4 };
    oar_memory_stats before = oar_memory_stats_init(), after = before;
    oar_shape shape = OAR_SHAPE(HEADS, T, D);
    oar_tensor *x = oar_uniform(NULL, OAR_F32, shape, 5, -1, 1), *y;
    oar_tape *tape;

    OK(oar_tensor_require_grad(x, 1));
    OK(oar_tape_create(&tape));
    OK(oar_memory_read(&before));
    y = oar_attention(tape, x, x, x, NULL);
    OK(oar_backward(tape, oar_sum(tape, y)));
    OK(oar_memory_read(&after));
    assert_true(after.live_bytes - before.live_bytes <
                HEADS * T * T * sizeof(float) / 2);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

/* ---- casts --------------------------------------------------------------- */

/* Small whole numbers survive every cast, from strided tensors too. */
static void every_dtype_is_cast_to_every_other(void **state)
{
    for (int from = 0; from < OAR_DTYPE_COUNT; from++)
        for (int to = 0; to < OAR_DTYPE_COUNT; to++) {
            oar_tensor *line = oar_arange(NULL, OAR_I64, 15, 0, 1);
            oar_tensor *rows = oar_reshape(NULL, line, OAR_SHAPE(3, 5));
            oar_tensor *plain = as(rows, (oar_dtype)from);
            oar_tensor *turned = oar_transpose(NULL, plain, 0, 1);
            oar_tensor *made = as(turned, (oar_dtype)to);
            double got[15];

            OK(oar_tensor_read(made, OAR_F64, got));
            assert_int_equal(oar_tensor_dtype(made), to);
            for (int i = 0; i < 15; i++) {
                double want = i % 3 * 5 + i / 3;

                if (from == OAR_BOOL || to == OAR_BOOL)
                    want = want != 0;
                if (got[i] != want)
                    fail_msg("%s to %s [%d]: %g, not %g",
                             oar_dtype_name((oar_dtype)from),
                             oar_dtype_name((oar_dtype)to), i, got[i], want);
            }
            oar_tensor_release(made);
            oar_tensor_release(turned);
            oar_tensor_release(plain);
            oar_tensor_release(rows);
            oar_tensor_release(line);
        }
}

static int load_both(void **state)
{
    return load_ops(state) != 0 ? -1 : golden_load("nn");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused_by_every_operation),
        cmocka_unit_test(inputs_on_two_devices_are_refused_by_every_operation),
        cmocka_unit_test(detached_data_is_refused_by_every_operation),
        cmocka_unit_test(other_dtypes_are_refused_by_operations_of_layers),
        cmocka_unit_test(indices_and_masks_of_other_dtypes_are_refused),
        cmocka_unit_test(shapes_that_do_not_fit_are_both_named),
        cmocka_unit_test(attention_never_holds_the_weights_of_all_heads),
        cmocka_unit_test(every_dtype_is_cast_to_every_other),
    };

    return cmocka_run_group_tests(tests, load_both, golden_close);
}
