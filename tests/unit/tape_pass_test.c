/* SPDX-License-Identifier: Apache-2.0 */
/* What a tape says of the pass that runs and tells at its end, what it owns and
 * shares, and what the halves of a pass keep between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/shared.h>
#include <oarsong/tape.h>

#include "autograd/tape.h"
#include "base/status.h"
#include "device/segment.h"
#include "support/last_error.h"
#include "support/leak_check.h"

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

/* ---- which pass ---------------------------------------------------------- */

typedef struct pass_log {
    oar_tape *tape;
    char text[64]; /* a digit for the pass; r before it: replaying */
} pass_log;

static void log_pass(pass_log *log, const oar_tape *tape)
{
    size_t used = strlen(log->text);

    assert_true(used + 3 < sizeof log->text);
    if (oar_tape_replays(tape))
        log->text[used++] = 'r';
    log->text[used] = (char)('0' + oar_tape_pass(tape));
}

static oar_status on_module(oar_tape *tape, oar_module *module, void *arg)
{
    log_pass(arg, tape);
    return OAR_OK;
}

static oar_status on_leaf(oar_tensor *leaf, void *arg)
{
    pass_log *log = arg;

    log_pass(log, log->tape);
    return OAR_OK;
}

static void hooks_learn_which_pass_runs(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 3), 1), *in, *y;
    pass_log log = { .tape = tape };
    oar_module *layer;

    OK(oar_linear_create(3, 5, 1, NULL, &layer));
    OK(oar_module_on(layer, OAR_BEFORE_FORWARD, on_module, &log, NULL));
    OK(oar_module_on(layer, OAR_BEFORE_BACKWARD, on_module, &log, NULL));
    OK(oar_tensor_on_grad(oar_module_param(layer, 0), on_leaf, &log, NULL));
    y = oar_forward(tape, layer, x);
    OK(oar_backward_from(tape, 1, &y, NULL));
    assert_string_equal(log.text, "011");
    oar_tape_reset(tape);
    in = oar_tape_input(tape, x);
    y = oar_forward(tape, layer, in);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_string_equal(log.text, "01102");
    OK(oar_backward_weights(tape));
    assert_string_equal(log.text, "011023");
    oar_tape_reset(tape);
    memset(log.text, 0, sizeof log.text);
    in = oar_tape_input(tape, x); /* hooks of the module see the inner tape */
    y = oar_recompute(tape, layer, in);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_string_equal(log.text, "0r0r12");
    OK(oar_backward_weights(tape));
    assert_int_equal(oar_tape_pass(tape), OAR_PASS_NONE);
    assert_int_equal(oar_tape_pass(NULL), OAR_PASS_NONE);
    assert_int_equal(oar_tape_replays(NULL), 0);
    oar_tape_destroy(tape);
    oar_module_release(layer);
    oar_tensor_release(x);
}

/* ---- the end of a pass --------------------------------------------------- */

typedef struct end_log {
    oar_tape *tape;
    oar_status status[8];
    int count;
    int again; /* asks for the next end too */
    oar_pass pass;
} end_log;

static void on_end(void *arg, oar_status status)
{
    end_log *log = arg;

    assert_true(log->count < 8);
    log->status[log->count++] = status;
    log->pass = oar_tape_pass(log->tape);
    if (log->again-- > 0)
        OK(oar_tape_on_end(log->tape, on_end, log));
    oari_fail(OAR_E_ARG, "what an end function fails with is not told");
}

static oar_status fail_hook(oar_tensor *leaf, void *arg)
{
    return oari_fail(OAR_E_PEER, "this hook fails");
}

static oar_status fail_deferred(void *arg)
{
    return oari_fail(OAR_E_TIMEOUT, "this deferred function fails");
}

static void the_end_of_a_pass_is_told_once(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    end_log log = { .tape = tape };

    for (int i = 0; i < 3; i++)
        OK(oar_tape_on_end(tape, on_end, &log));
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_int_equal(log.count, 1);
    assert_int_equal(log.status[0], OAR_OK);
    assert_int_equal(log.pass, OAR_PASS_WHOLE);
    OK(oar_backward(tape, oar_sum(tape, w)));
    oar_tape_reset(tape);
    assert_int_equal(log.count, 1);
    log.again = 1;
    OK(oar_tape_on_end(tape, on_end, &log));
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_int_equal(log.count, 2);
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_int_equal(log.count, 3);
    assert_int_equal(oar_tape_on_end(NULL, on_end, &log), OAR_E_ARG);
    assert_int_equal(oar_tape_on_end(tape, NULL, &log), OAR_E_ARG);
    oar_tape_destroy(tape);
    assert_int_equal(log.count, 3);
    oar_tensor_release(w);
}

static void a_failed_pass_is_told_with_its_status(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *loss;
    end_log log = { .tape = tape };
    oar_hook *hook;

    OK(oar_tensor_on_grad(w, fail_hook, NULL, &hook));
    OK(oar_tape_on_end(tape, on_end, &log));
    loss = oar_sum(tape, w);
    assert_int_equal(oar_backward_from(tape, 1, &loss, &w), OAR_E_SHAPE);
    assert_int_equal(log.count, 0); /* refused: no pass */
    assert_fails_with(oar_backward(tape, loss), OAR_E_PEER, "this hook fails");
    assert_int_equal(log.count, 1);
    assert_int_equal(log.status[0], OAR_E_PEER);
    oar_hook_remove(hook);
    oar_tape_reset(tape);
    assert_int_equal(log.count, 1);
    OK(oar_tape_on_end(tape, on_end, &log));
    OK(oar_tape_defer(tape, fail_deferred, NULL));
    assert_fails_with(oar_backward(tape, oar_sum(tape, w)), OAR_E_TIMEOUT,
                      "this deferred function fails");
    assert_int_equal(log.count, 2);
    assert_int_equal(log.status[1], OAR_E_TIMEOUT);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void halves_end_with_the_second_or_with_a_failure(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 3), 1),
               *w = leaf_of(OAR_SHAPE(5, 3), 2);
    end_log log = { .tape = tape };
    oar_tensor *in = oar_tape_input(tape, x), *y;

    OK(oar_tape_on_end(tape, on_end, &log));
    y = oar_linear(tape, in, w, NULL);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_int_equal(log.count, 0);
    OK(oar_backward_weights(tape));
    assert_int_equal(log.count, 1);
    assert_int_equal(log.pass, OAR_PASS_WEIGHTS);
    oar_tape_reset(tape);
    in = oar_tape_input(tape, x);
    OK(oar_tensor_on_grad(in, fail_hook, NULL, NULL));
    OK(oar_tape_on_end(tape, on_end, &log));
    y = oar_linear(tape, in, w, NULL);
    assert_int_equal(oar_backward_inputs(tape, 1, &y, NULL), OAR_E_PEER);
    assert_int_equal(log.count, 2);
    assert_int_equal(log.status[1], OAR_E_PEER);
    assert_int_equal(oar_backward_weights(tape), OAR_E_STATE);
    assert_int_equal(log.count, 2);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

static void a_reset_before_the_end_is_told_as_a_wrong_state(void **state)
{
    oar_tape *tape = new_tape();
    end_log log = { .tape = tape };

    OK(oar_tape_on_end(tape, on_end, &log));
    oari_fail(OAR_E_SIZE, "an error from before");
    oar_tape_reset(tape);
    assert_int_equal(log.count, 1);
    assert_int_equal(log.status[0], OAR_E_STATE);
    assert_last_error_has("from before");
    OK(oar_tape_on_end(tape, on_end, &log));
    oar_tape_destroy(tape);
    assert_int_equal(log.count, 2);
    assert_int_equal(log.status[1], OAR_E_STATE);
}

static oar_status ask_for_end(oar_tape *tape, oar_module *module, void *arg)
{
    return oar_tape_on_end(tape, on_end, arg);
}

/* The inner tape is reset after the first run: that is no end. */
static void from_a_recomputed_part_the_outer_pass_is_meant(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 3), 1), *y;
    end_log log = { .tape = tape };
    oar_module *layer;

    OK(oar_linear_create(3, 3, 1, NULL, &layer));
    OK(oar_module_on(layer, OAR_BEFORE_FORWARD, ask_for_end, &log, NULL));
    y = oar_recompute(tape, layer, oar_recompute(tape, layer, x));
    assert_int_equal(log.count, 0);
    OK(oar_backward_from(tape, 1, &y, NULL));
    assert_int_equal(log.count, 1);
    assert_int_equal(log.status[0], OAR_OK);
    oar_tape_destroy(tape);
    assert_int_equal(log.count, 1);
    oar_module_release(layer);
    oar_tensor_release(x);
}

/* ---- objects ------------------------------------------------------------- */

static char dropped[8];

static void drop_letter(void *object)
{
    dropped[strlen(dropped)] = *(const char *)object;
}

static void owned_objects_are_dropped_by_reset_last_first(void **state)
{
    static char letter[] = "abc";
    oar_tape *tape = new_tape();

    memset(dropped, 0, sizeof dropped);
    for (int i = 0; i < 3; i++)
        OK(oar_tape_own(tape, &letter[i], drop_letter));
    assert_string_equal(dropped, "");
    oar_tape_reset(tape);
    assert_string_equal(dropped, "cba");
    oar_tape_reset(tape);
    assert_string_equal(dropped, "cba");
    OK(oar_tape_own(tape, &letter[0], drop_letter));
    assert_int_equal(oar_tape_own(NULL, letter, drop_letter), OAR_E_ARG);
    assert_int_equal(oar_tape_own(tape, letter, NULL), OAR_E_ARG);
    oar_tape_destroy(tape);
    assert_string_equal(dropped, "cbaa");
}

/* ---- shared results ------------------------------------------------------ */

static int is_shared(const oar_tensor *t)
{
    return oar_shared_reachable(oar_tensor_const_data(t),
                                (size_t)oar_tensor_count(t) * 4);
}

static void large_results_lie_in_shared_memory_and_are_reused(void **state)
{
    enum { LEAST = 1024 };
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(16, 16), 1); /* 1024 bytes */
    uint64_t made = 0;

    assert_int_equal(oar_tape_share(tape, LEAST), 0);
    for (int step = 0; step < 5; step++) {
        oar_tensor *in = oar_tape_input(tape, w);
        oar_tensor *y = oar_scale(tape, in, 2);
        oar_tensor *small = oar_narrow(tape, y, 0, 0, 1);

        assert_true(is_shared(y));
        small = oar_scale(tape, small, 3);
        assert_false(is_shared(small));
        OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, y, y))));
        assert_true(is_shared(oar_tensor_grad(in)));
        oar_tape_reset(tape);
        if (step == 2)
            made = memory_now().allocations;
    }
    assert_int_equal(memory_now().allocations, made);
    assert_int_equal(oar_tape_share(tape, 0), LEAST);
    assert_false(is_shared(oar_scale(tape, w, 2)));
    assert_int_equal(oar_tape_share(tape, 0), 0);
    assert_int_equal(oar_tape_share(NULL, 5), 0);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* Peers cannot reach it any more: the tape takes other memory. */
static void memory_that_was_taken_from_peers_is_not_reused(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *y;

    oar_tape_share(tape, 1);
    y = oar_zeros(tape, OAR_F32, OAR_SHAPE(64));
    assert_true(is_shared(y));
    OK(oari_segment_detach(oar_tensor_data(y), 1));
    assert_false(is_shared(y));
    oar_tape_reset(tape);
    assert_true(is_shared(oar_zeros(tape, OAR_F32, OAR_SHAPE(64))));
    oar_tape_destroy(tape);
}

static oar_status note_shared(oar_tape *tape, oar_module *module, void *arg)
{
    int *shared = arg;

    *shared += is_shared(oar_zeros(tape, OAR_F32, OAR_SHAPE(8, 8)));
    return OAR_OK;
}

static void what_is_recomputed_shares_too(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(8, 8), 1), *y;
    oar_module *layer;
    int shared = 0;

    OK(oar_linear_create(8, 8, 1, NULL, &layer));
    OK(oar_module_on(layer, OAR_BEFORE_FORWARD, note_shared, &shared, NULL));
    oar_tape_share(tape, 1);
    y = oar_recompute(tape, layer, x);
    assert_true(is_shared(y));
    OK(oar_backward_from(tape, 1, &y, NULL));
    assert_int_equal(shared, 2);
    oar_tape_destroy(tape);
    oar_module_release(layer);
    oar_tensor_release(x);
}

/* ---- between the halves -------------------------------------------------- */

static oar_module *new_net(void)
{
    oar_module *part[4], *net;

    OK(oar_linear_create(8, 8, 1, NULL, &part[0]));
    OK(oar_layer_norm_create(8, 0, OAR_F32, &part[1]));
    OK(oar_relu_create(&part[2]));
    OK(oar_linear_create(8, 8, 2, NULL, &part[3]));
    OK(oar_sequential_create(4, part, &net));
    return net;
}

/* Leaves the gradients of all parameters in out; `away`: the parameters have no
 * data while the weights half runs. */
static void run_net(int halves, int away, float *out)
{
    oar_module *net = new_net();
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(5, 8), 3), *in, *y;
    int params = oar_module_params(net);

    in = oar_tape_input(tape, x);
    y = oar_sum(tape, oar_forward(tape, net, in));
    if (!halves)
        OK(oar_backward(tape, y));
    else
        OK(oar_backward_inputs(tape, 1, &y, NULL));
    for (int i = 0; away && i < params; i++)
        OK(oar_storage_detach(oar_tensor_storage(oar_module_param(net, i))));
    if (halves)
        OK(oar_backward_weights(tape));
    for (int i = 0; i < params; i++) {
        oar_tensor *grad = oar_tensor_grad(oar_module_param(net, i));

        OK(oar_tensor_read(grad, OAR_F32, out));
        out += oar_tensor_count(grad);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

static void the_weights_half_does_without_the_parameters(void **state)
{
    float whole[160] = { 0 }, halves[160] = { 0 }, away[160] = { 0 };

    run_net(0, 0, whole);
    run_net(1, 0, halves);
    run_net(1, 1, away);
    assert_memory_equal(whole, halves, sizeof whole);
    assert_memory_equal(whole, away, sizeof whole);
}

/* Operations of two inputs, of which one is a leaf: its gradient does not read
 * the leaf itself where it need not. */
static oar_tensor *do_matmul(oar_tape *tape, oar_tensor *x, oar_tensor *w)
{
    return oar_matmul(tape, x, w);
}

static oar_tensor *do_mul(oar_tape *tape, oar_tensor *x, oar_tensor *w)
{
    return oar_mul(tape, x, w);
}

static oar_tensor *do_sub(oar_tape *tape, oar_tensor *x, oar_tensor *w)
{
    return oar_sub(tape, x, w);
}

static oar_tensor *do_conv(oar_tape *tape, oar_tensor *x, oar_tensor *w)
{
    x = oar_reshape(tape, x, OAR_SHAPE(1, 3, 3));
    return oar_conv1d(tape, x, w, NULL, NULL);
}

static void a_leaf_that_its_gradient_does_not_read_may_be_away(void **state)
{
    static const struct {
        oar_tensor *(*fn)(oar_tape *tape, oar_tensor *x, oar_tensor *w);
        oar_shape w;
    } ops[] = {
        { do_matmul, { 2, { 3, 3 } } },
        { do_mul, { 2, { 3, 3 } } },
        { do_sub, { 2, { 3, 3 } } },
        { do_conv, { 3, { 3, 3, 1 } } },
    };

    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        oar_tape *tape = new_tape();
        oar_tensor *x = leaf_of(OAR_SHAPE(3, 3), 1);
        oar_tensor *w = leaf_of(ops[k].w, 2), *in, *y;

        in = oar_tape_input(tape, x);
        y = ops[k].fn(tape, in, w);
        assert_non_null(y);
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        OK(oar_storage_detach(oar_tensor_storage(w)));
        OK(oar_backward_weights(tape));
        oar_tape_destroy(tape);
        oar_tensor_release(x);
        oar_tensor_release(w);
    }
}

static oar_tensor *do_layer_norm(oar_tape *tape, oar_tensor *x, oar_tensor *w,
                                 oar_tensor *b)
{
    return oar_layer_norm(tape, x, w, b, 1e-5);
}

static oar_tensor *do_group_norm(oar_tape *tape, oar_tensor *x, oar_tensor *w,
                                 oar_tensor *b)
{
    return oar_group_norm(tape, x, 2, w, b, 1e-5);
}

static oar_tensor *do_batch_norm(oar_tape *tape, oar_tensor *x, oar_tensor *w,
                                 oar_tensor *b)
{
    return oar_batch_norm(tape, x, w, b, NULL, NULL, 1, 0.1, 1e-5);
}

/* Nothing is computed in the inputs half: x needs no gradient. */
static void the_first_layer_may_be_a_norm_whose_weight_is_away(void **state)
{
    static oar_tensor *(*const norms[])(
        oar_tape *, oar_tensor *, oar_tensor *,
        oar_tensor *) = { do_layer_norm, do_group_norm, do_batch_norm };

    for (int k = 0; k < 3; k++) {
        oar_tape *tape = new_tape();
        oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5, 6), 1, -1, 1);
        float grad[2][12];

        for (int away = 0; away < 2; away++) {
            oar_tensor *w = leaf_of(OAR_SHAPE(6), 2), *y;
            oar_tensor *b = leaf_of(OAR_SHAPE(6), 3);

            y = norms[k](tape, x, w, b);
            assert_non_null(y);
            if (away) {
                OK(oar_backward_inputs(tape, 1, &y, NULL));
                OK(oar_storage_detach(oar_tensor_storage(w)));
                OK(oar_storage_detach(oar_tensor_storage(b)));
                OK(oar_backward_weights(tape));
            } else {
                OK(oar_backward_from(tape, 1, &y, NULL));
            }
            OK(oar_tensor_read(oar_tensor_grad(w), OAR_F32, grad[away]));
            OK(oar_tensor_read(oar_tensor_grad(b), OAR_F32, grad[away] + 6));
            oar_tape_reset(tape);
            oar_tensor_release(w);
            oar_tensor_release(b);
        }
        assert_memory_equal(grad[0], grad[1], sizeof grad[0]);
        oar_tape_destroy(tape);
        oar_tensor_release(x);
    }
}

/* Where it is read, its absence is still an error; and so is a change. */
static void a_leaf_that_its_gradient_reads_must_be_there(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(3), 1), *w = leaf_of(OAR_SHAPE(3), 2);
    oar_tensor *in = oar_tape_input(tape, x), *y = oar_div(tape, in, w);

    OK(oar_backward_inputs(tape, 1, &y, NULL));
    OK(oar_storage_detach(oar_tensor_storage(w)));
    assert_fails_with(oar_backward_weights(tape), OAR_E_STATE,
                      "backward of div needs a tensor [3]");
    OK(oar_storage_attach(oar_tensor_storage(w), NULL, NULL, NULL));
    oar_tape_reset(tape);
    in = oar_tape_input(tape, x);
    y = oar_mul(tape, in, w);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    OK(oar_tensor_fill(x, 3));
    assert_fails_with(oar_backward_weights(tape), OAR_E_STATE, "changed after");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

/* Held between the halves: of each linear layer its input and its gradient. In
 * units of a number for each position and each of the width, 7 and 9 a block;
 * and at the ends the head's input, its gradient, and the embeddings'. */
static void between_the_halves_only_what_weights_need_is_held(void **state)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(8, 32), 1, 0, 11);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(8 * 32), 2, 0, 11);
    size_t unit = (size_t)8 * 32 * 64 * sizeof(float), held = 0;
    oar_tape *tape = new_tape();
    oar_module *net;
    oar_tensor *loss;

    o.vocabulary = 11;
    o.width = 64;
    o.layers = 4;
    OK(oar_gpt_create(&o, &net));
    loss = oar_cross_entropy(tape, oar_forward(tape, net, x), y);
    OK(oar_backward_inputs(tape, 1, &loss, NULL));
    for (int64_t i = 0; i < tape->nodes; i++) {
        const oari_node *node = tape->node[i];

        if (node->op == NULL || node->state != OARI_HELD)
            continue;
        if (node->grad != NULL)
            held += oar_storage_bytes(node->grad->storage);
        for (int k = 0; k < OARI_MAX_SAVED; k++)
            if (node->saved[k] != NULL)
                held += oar_storage_bytes(node->saved[k]->storage);
    }
    if (held > (4 * 16 + 4) * unit)
        fail_msg("%zu bytes are held for units of %zu", held, unit);
    OK(oar_backward_weights(tape));
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_release(x);
    oar_tensor_release(y);
}

/* Returns the most bytes that three steps of a GPT keep on a tape. */
static uint64_t most_bytes(oar_module *net, int halves)
{
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(4, 64), 1, 0, 65);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(4 * 64), 2, 0, 65);
    uint64_t before = memory_now().live_bytes, most = 0;
    oar_tape *tape = new_tape();

    for (int step = 0; step < 3; step++) {
        oar_tensor *loss =
            oar_cross_entropy(tape, oar_forward(tape, net, x), y);

        if (halves) {
            OK(oar_backward_inputs(tape, 1, &loss, NULL));
            OK(oar_backward_weights(tape));
        } else {
            OK(oar_backward(tape, loss));
        }
        if (memory_now().live_bytes - before > most) /* the tape keeps it all */
            most = memory_now().live_bytes - before;
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(y);
    return most;
}

/* A whole pass computes much again, which the weights half cannot. */
static void halves_take_at_most_2_2_times_the_memory(void **state)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    uint64_t whole, halves;
    oar_module *net;

    o.vocabulary = 65;
    o.context = 64;
    o.width = 128;
    o.layers = 4;
    o.heads = 4;
    OK(oar_gpt_create(&o, &net));
    most_bytes(net, 0); /* gradients are there from now on */
    whole = most_bytes(net, 0);
    halves = most_bytes(net, 1);
    if (halves > whole * 22 / 10)
        fail_msg("%llu bytes in halves, %llu as a whole",
                 (unsigned long long)halves, (unsigned long long)whole);
    oar_module_release(net);
}

/* A result that the inputs half has passed is given back with that half. */
static void the_inputs_half_gives_results_back(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(3, 3), 1),
               *w = leaf_of(OAR_SHAPE(3, 3), 2);
    oar_tensor *in = oar_tape_input(tape, x);
    oar_tensor *mid = oar_linear(tape, in, w, NULL);
    oar_tensor *y = oar_scale(tape, mid, 2);

    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_null(oar_tensor_data(mid));
    assert_non_null(oar_tensor_data(y)); /* a root stays */
    OK(oar_backward_weights(tape));
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

/* ---- failing allocations ------------------------------------------------- */

static void count_end(void *arg, oar_status status)
{
    ++*(int *)arg;
}

static void count_drop(void *object)
{
    ++*(int *)object;
}

static oar_status use_everything(void *arg)
{
    int ends = 0, drops = 0, asked = 0, owned = 0;
    oar_tape *tape = NULL;
    oar_tensor *x = NULL, *y;
    oar_status status = oar_tape_create(&tape);

    if (status == OAR_OK) {
        oar_tape_share(tape, 64);
        status = oar_tape_on_end(tape, count_end, &ends);
        asked = status == OAR_OK;
    }
    if (status == OAR_OK) {
        status = oar_tape_own(tape, &drops, count_drop);
        owned = 1;
    }
    if (status == OAR_OK) {
        x = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5, 5));
        y = oar_tape_input(tape, x);
        y = oar_linear(tape, y, y, NULL);
        status = y != NULL ? oar_backward_inputs(tape, 1, &y, NULL)
                           : oar_last_error()->status;
        if (status == OAR_OK)
            status = oar_backward_weights(tape);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    assert_int_equal(ends, asked);
    assert_int_equal(drops, owned);
    return status;
}

static void no_failed_allocation_leaks_or_is_untold(void **state)
{
    fail_each_allocation(use_everything, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_learn_which_pass_runs),
        cmocka_unit_test(the_end_of_a_pass_is_told_once),
        cmocka_unit_test(a_failed_pass_is_told_with_its_status),
        cmocka_unit_test(halves_end_with_the_second_or_with_a_failure),
        cmocka_unit_test(a_reset_before_the_end_is_told_as_a_wrong_state),
        cmocka_unit_test(from_a_recomputed_part_the_outer_pass_is_meant),
        cmocka_unit_test(owned_objects_are_dropped_by_reset_last_first),
        cmocka_unit_test(large_results_lie_in_shared_memory_and_are_reused),
        cmocka_unit_test(memory_that_was_taken_from_peers_is_not_reused),
        cmocka_unit_test(what_is_recomputed_shares_too),
        cmocka_unit_test(the_weights_half_does_without_the_parameters),
        cmocka_unit_test(a_leaf_that_its_gradient_does_not_read_may_be_away),
        cmocka_unit_test(the_first_layer_may_be_a_norm_whose_weight_is_away),
        cmocka_unit_test(a_leaf_that_its_gradient_reads_must_be_there),
        cmocka_unit_test(between_the_halves_only_what_weights_need_is_held),
        cmocka_unit_test(halves_take_at_most_2_2_times_the_memory),
        cmocka_unit_test(the_inputs_half_gives_results_back),
        cmocka_unit_test(no_failed_allocation_leaks_or_is_untold),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
